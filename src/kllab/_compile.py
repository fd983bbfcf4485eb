"""Compiled kernels where they pay and can be had; the same functions uncompiled elsewhere.

``KLLAB_COMPILE=0`` turns compilation off. Nothing is compiled on import or for small inputs, nor,
on the CPU, where numba is not installed (draws) or no C++ compiler is found (the rest).
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from functools import cache

import torch

WORTH = 2**22
"""Fewest elements of one call for which a kernel is compiled."""

# Inline everything into one loop: intermediate buffers would cost more than the arithmetic.
_ONE_LOOP = {
    "realize_opcount_threshold": 10**6,
    "realize_reads_threshold": 10**6,
    "realize_acc_reads_threshold": 10**6,
    "cpp.enable_floating_point_contract_flag": "fast",
}


class Kernel:
    """A function of tensors that ``torch.compile`` compiles at its first call.

    ``native`` names the function of ``kllab._native`` that does the same on the CPU. ``error``
    says why there is no compiled one.
    """

    def __init__(self, function: Callable, native: str | None = None):
        self.function = function
        self.native = native
        self.error: str | None = None
        self._compiled: Callable | None = None
        self._lock = threading.Lock()

    def form(self, device: torch.device, elements: int) -> Callable:
        """What to call for so many elements on this device: compiled, or the plain function."""
        if os.environ.get("KLLAB_COMPILE") == "0" or self.error or elements < WORTH:
            return self.function
        if device.type == "cpu" and self.native:
            return getattr(native(), self.native, self.function)
        can = device.type == "cuda" or (device.type == "cpu" and compiler() is not None)
        return self if can else self.function

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
        options = {name: value for name, value in _ONE_LOOP.items() if name in _known_options()}
        return torch.compile(self.function, fullgraph=True, dynamic=True, options=options)


@cache
def native():
    """The module of machine code for the CPU, or ``None`` where numba cannot be had."""
    try:
        from kllab import _native
    except ImportError:
        return None
    return _native


@cache
def compiler() -> str | None:
    """Path of the C++ compiler that would be used, or ``None``."""
    names = [os.environ.get("CXX"), *(["cl"] if os.name == "nt" else ["g++", "clang++"])]
    return next((path for name in names if name and (path := shutil.which(name))), None)


@cache
def _known_options() -> frozenset[str]:
    from torch import _inductor  # seconds of import time, so not before it is needed

    return frozenset(_inductor.list_options())
