"""Input checks shared by every module: typed errors that say what was expected and what came."""

from __future__ import annotations

import torch
from torch import Tensor

NORMALISED_WITHIN = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest |logsumexp| that counts as normalised, by dtype."""


class InputError(ValueError):
    """An argument is not what the function can work with.

    Attributes name the ``argument``, what was ``expected`` and what was ``received``.
    """

    def __init__(self, argument: str, expected: str, received: str):
        self.argument, self.expected, self.received = argument, expected, received
        super().__init__(f"{argument}: expected {expected}, got {received}")


def as_log(argument: str, value) -> Tensor:
    """Return ``value`` as a float32 or float64 tensor without NaN, or raise ``InputError``.

    Python floats, lists and NumPy arrays become float64 unless they already carry a dtype.
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
    """Like ``as_log``, for log-probabilities (..., V) that must be normalised over V."""
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
    """Broadcast (..., V) against (..., V); V itself must agree, and so must the device."""
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


def _from_array_like(argument: str, value) -> Tensor:
    try:
        dtype = None if hasattr(value, "dtype") else torch.float64
        if dtype is not None and not _has_float(value):
            raise InputError(argument, "float32 or float64", "integers")
        return torch.as_tensor(value, dtype=dtype)
    except (TypeError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(argument, "a tensor, array or float", type(value).__name__) from None


def _has_float(value) -> bool:
    if isinstance(value, (list, tuple)):
        return not value or any(_has_float(v) for v in value)
    return isinstance(value, float) or hasattr(value, "dtype")
