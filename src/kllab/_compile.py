"""Compiled kernels where they pay and can be had; the same functions uncompiled elsewhere.

``KLLAB_COMPILE=0`` turns compilation off. Nothing is compiled on import, for small inputs, or
where no C++ compiler is found (on the CPU).
"""

from __future__ import annotations

import os
import shutil
import threading
import time
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
    """A function of tensors that is compiled at its first call, and called as it is before that.

    ``seconds`` is what the first compiled call took, ``error`` why there is none.
    """

    def __init__(self, function: Callable):
        self.function = function
        self.seconds: float | None = None
        self.error: str | None = None
        self._compiled: Callable | None = None
        self._lock = threading.Lock()

    def usable(self, device: torch.device, elements: int) -> bool:
        """Whether a call of this size on this device would be compiled."""
        if os.environ.get("KLLAB_COMPILE") == "0" or self.error or elements < WORTH:
            return False
        return device.type == "cuda" or (device.type == "cpu" and compiler() is not None)

    @torch.no_grad()
    def __call__(self, *arguments):
        """The compiled function's value; the plain one's where compilation fails."""
        if self.error:
            return self.function(*arguments)
        if self.seconds is not None:
            return self._compiled(*arguments)
        with self._lock:
            if self.seconds is None and not self.error:
                start = time.perf_counter()
                try:
                    value = self._compile()(*arguments)
                except Exception as error:  # whatever a tool chain can do wrong
                    self.error = f"{type(error).__name__}: {error}".splitlines()[0]
                else:
                    self.seconds = time.perf_counter() - start
                    return value
        return (self._compiled if self.seconds is not None else self.function)(*arguments)

    def _compile(self) -> Callable:
        options = {name: value for name, value in _ONE_LOOP.items() if name in _known_options()}
        self._compiled = torch.compile(self.function, fullgraph=True, dynamic=True, options=options)
        return self._compiled


@cache
def compiler() -> str | None:
    """Path of the C++ compiler that would be used, or ``None``."""
    names = [os.environ.get("CXX"), *(["cl"] if os.name == "nt" else ["g++", "clang++"])]
    return next((path for name in names if name and (path := shutil.which(name))), None)


@cache
def _known_options() -> frozenset[str]:
    from torch import _inductor  # seconds of import time, so not before it is needed

    return frozenset(_inductor.list_options())
