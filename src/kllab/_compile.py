"""Compiled kernels where they pay and can be had; the same functions uncompiled elsewhere.

On the CPU that is ``kllab._native``, where numba is installed; on a GPU, ``torch.compile``.
``KLLAB_COMPILE=0`` turns both off.  Nothing is compiled on import or for small inputs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from types import ModuleType

import torch

WORTH = 2**22
"""Fewest elements of one call for which a kernel is compiled."""

# Inline everything into one loop: intermediate buffers would cost more than the arithmetic.
_ONE_LOOP = {"realize_opcount_threshold": 10**6, "realize_reads_threshold": 10**6}


def wanted(elements: int) -> bool:
    """Whether a call of so many elements is to be compiled, where it can be."""
    return os.environ.get("KLLAB_COMPILE") != "0" and elements >= WORTH


def native(device: torch.device, elements: int) -> ModuleType | None:
    """``kllab._native``, where it can be had and is worth it for a call of so many elements."""
    return numba_module() if device.type == "cpu" and wanted(elements) else None


@cache
def numba_module() -> ModuleType | None:
    """``kllab._native``, or ``None`` where numba cannot be had."""
    try:
        from kllab import _native
    except ImportError:
        return None
    return _native


class Kernel:
    """A function of tensors that ``torch.compile`` compiles on a GPU, at its first call.

    ``name``: the function of ``kllab._native`` that does the same on the CPU. ``error`` says why
    there is no compiled one.
    """

    def __init__(self, function: Callable, name: str):
        self.function = function
        self.name = name
        self.error: str | None = None
        self._compiled: Callable | None = None
        self._lock = threading.Lock()

    def form(self, device: torch.device, elements: int) -> Callable:
        """What to call for so many elements on this device: compiled, or the plain function."""
        if device.type == "cuda" and wanted(elements) and not self.error:
            return self
        return getattr(native(device, elements), self.name, self.function)

    @torch.no_grad()
    def __call__(self, *arguments):
        """The compiled function's value; the plain one's where compilation fails."""
        if self._compiled is None and not self.error:
            with self._lock:
                if self._compiled is None:
                    compiled = self._compile()
                    try:
                        value = compiled(*arguments)
                    except Exception as error:  # whatever a tool chain can do wrong
                        self.error = f"{type(error).__name__}: {error}".splitlines()[0]
                    else:
                        self._compiled = compiled
                        return value
        return (self._compiled or self.function)(*arguments)

    def _compile(self) -> Callable:
        return torch.compile(self.function, fullgraph=True, dynamic=True, options=_ONE_LOOP)
