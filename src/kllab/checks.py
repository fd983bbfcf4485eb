"""Input checks shared by every module: typed errors that say what was expected and what came."""

from __future__ import annotations

import math
import operator

import numpy as np
import torch
from torch import Tensor

NORMALISED_WITHIN = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest |logsumexp| that counts as normalised, by dtype."""


class InputError(ValueError):
    """An argument is not what the function can work with.

    Attributes name the ``argument``, what was ``expected`` and what was ``received``.

    >>> raise InputError("tau", "a number above 0", "-1.0")
    Traceback (most recent call last):
    kllab.checks.InputError: tau: expected a number above 0, got -1.0
    """

    def __init__(self, argument: str, expected: str, received: str):
        self.argument, self.expected, self.received = argument, expected, received
        super().__init__(f"{argument}: expected {expected}, got {received}")


def as_log(argument: str, value) -> Tensor:
    """Return ``value`` as a float32 or float64 tensor without NaN, or raise ``InputError``.

    Python floats, lists and NumPy arrays become float64 unless they already carry a dtype.

    >>> as_log("log_r", [0.0, float("-inf")])
    tensor([0., -inf], dtype=torch.float64)
    """
    tensor = value if isinstance(value, Tensor) else _from_array_like(argument, value)
    if tensor.dtype in (torch.float16, torch.bfloat16):
        raise InputError(
            argument,
            "float32 or float64; upcast, then renormalise with log_softmax",
            str(tensor.dtype),
        )
    if tensor.dtype not in NORMALISED_WITHIN:
        raise InputError(argument, "float32 or float64", str(tensor.dtype))
    if torch.isnan(tensor).any():
        raise InputError(argument, "no NaN", f"{int(torch.isnan(tensor).sum())} NaN values")
    return tensor


def as_log_probs(argument: str, value) -> Tensor:
    """Like ``as_log``, for log-probabilities (..., V) that must be normalised over V.

    >>> as_log_probs("log_q", torch.tensor([0.5, 0.5]).log()).shape
    torch.Size([2])
    """
    tensor = as_log(argument, value)
    if tensor.ndim == 0 or tensor.shape[-1] == 0:
        raise InputError(
            argument, "a trailing vocabulary axis (..., V)", f"shape {tuple(tensor.shape)}"
        )
    total = torch.logsumexp(tensor.detach(), -1)
    worst = float(total.abs().max()) if total.numel() else 0.0
    if not worst <= NORMALISED_WITHIN[tensor.dtype]:
        raise InputError(
            argument,
            f"normalised log-probabilities (|logsumexp| <= {NORMALISED_WITHIN[tensor.dtype]:g})",
            f"|logsumexp| = {worst:.3g}",
        )
    return tensor


def same_vocabulary(log_q: Tensor, log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Broadcast (..., V) against (..., V); V itself must agree, and so must the device.

    >>> log_q, log_p = same_vocabulary(torch.zeros(4, 3), torch.zeros(3))
    >>> log_p.shape
    torch.Size([4, 3])
    """
    if log_q.shape[-1] != log_p.shape[-1]:
        raise InputError(
            "log_p", f"{log_q.shape[-1]} tokens, as log_q has", f"{log_p.shape[-1]} tokens"
        )
    if log_q.device != log_p.device:
        raise InputError("log_p", f"device {log_q.device}, as log_q has", f"{log_p.device}")
    try:
        return torch.broadcast_tensors(log_q, log_p)
    except RuntimeError:
        raise InputError(
            "log_p",
            f"a shape that broadcasts with {tuple(log_q.shape)}",
            f"shape {tuple(log_p.shape)}",
        ) from None


def as_number(argument: str, value, *, above: float = -math.inf, at_most: float = math.inf):
    """Return ``value`` as a finite float with above < value <= at_most, or raise ``InputError``.

    >>> as_number("tau", 2, above=0.0)
    2.0
    """
    expected = "a finite number"
    expected += f" above {above:g}" if above > -math.inf else ""
    expected += f" and at most {at_most:g}" if at_most < math.inf else ""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError(argument, expected, _described(value)) from None
    # Written so that NaN fails every comparison.
    if not (math.isfinite(number) and above < number <= at_most):
        raise InputError(argument, expected, repr(number))
    return number


def as_count(argument: str, value, *, least: int = 0, most: int | None = None) -> int:
    """Return ``value`` as an int with least <= value <= most, or raise ``InputError``.

    >>> as_count("k", 5, least=1, most=10)
    5
    """
    expected = f"a whole number, at least {least}"
    expected += f" and at most {most}" if most is not None else ""
    try:
        count = operator.index(value)
    except TypeError:
        raise InputError(argument, expected, _described(value)) from None
    if isinstance(value, bool) or count < least or (most is not None and count > most):
        raise InputError(argument, expected, repr(value))
    return count


def as_shape(argument: str, value) -> tuple[int, ...]:
    """Return ``value``, one size or a sequence of sizes, as a tuple, or raise ``InputError``.

    >>> as_shape("shape", 3), as_shape("shape", (2, 3)), as_shape("shape", ())
    ((3,), (2, 3), ())
    """
    sizes = value if isinstance(value, (tuple, list)) else (value,)
    try:
        return tuple(as_count(argument, size) for size in sizes)
    except InputError:
        raise InputError(argument, "sizes that are whole numbers >= 0", repr(value)) from None


def as_generator(argument: str, value) -> torch.Generator:
    """Return ``value`` if it is a ``torch.Generator``, or raise ``InputError``.

    >>> as_generator("generator", torch.Generator()).device
    device(type='cpu')
    """
    if not isinstance(value, torch.Generator):
        raise InputError(argument, "a torch.Generator", _described(value))
    return value


def _from_array_like(argument: str, value) -> Tensor:
    expected = "a tensor, an array or floats"
    if isinstance(value, np.ndarray) and min(value.strides, default=0) < 0:
        value = value.copy()  # torch refuses reversed views
    dtype = None if hasattr(value, "dtype") else torch.float64
    if dtype is not None and not _has_float(value):
        raise InputError(argument, expected, _described(value))
    try:
        return torch.as_tensor(value, dtype=dtype)
    except (TypeError, RuntimeError, ValueError) as error:
        raise InputError(argument, expected, f"{_described(value)} ({error})") from None


def _has_float(value) -> bool:
    if isinstance(value, (list, tuple)):
        return not value or any(_has_float(v) for v in value)
    return isinstance(value, float) or hasattr(value, "dtype")


def _described(value) -> str:
    """What came, short enough for a message."""
    if isinstance(value, (bool, int)) or value is None:
        return repr(value)
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, int) for v in value):
        return "integers"
    return type(value).__name__
