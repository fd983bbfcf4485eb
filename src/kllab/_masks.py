"""What happens along a sequence's time axis: masks, rewards to go, and the four aggregations.

Public through ``kllab.sequences``. Tensors are (..., T): the last axis is time, the others count
sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kllab.checks import InputError, as_number

HOW = ("token_mean", "seq_sum", "seq_mean_token_mean", "padded_mean")


def aggregate(values, mask=None, *, how: str) -> Tensor:
    """One number from per-token values, in one of the four ways that frameworks use.

    ``values``: (..., T) floating; half precision is summed in float32. ``mask``: the same shape,
    bool or 0/1, true where a token counts; ``None`` keeps every token. Returns a scalar in the
    unit of ``values``, differentiable. With B sequences that have a token left:

    - ``"token_mean"``: sum of all values / number of all tokens;
    - ``"seq_sum"``: mean over the B sequences of their sums;
    - ``"seq_mean_token_mean"``: mean over the B sequences of their means;
    - ``"padded_mean"``: sum of all values / (B T), padding counted as zeros.

    Sequences without a token left are left out. What stands in masked places never matters, NaN
    and infinities included, neither for the value nor for the gradient.

    Raises ``InputError`` for another ``how``, a mask of another shape or with other values than
    0 and 1, no token left, or NaN at a kept place (also +inf beside -inf, whose sum is NaN).

    Ten tokens of .2 nats and a hundred of .02, one data set and four log lines:

    >>> values = torch.zeros(2, 100, dtype=torch.float64)
    >>> values[0, :10], values[1] = 0.2, 0.02
    >>> mask = values > 0
    >>> [round(float(aggregate(values, mask, how=how)), 4) for how in HOW]
    [0.0364, 2.0, 0.11, 0.02]
    """
    one_of("how", how, HOW)
    values, keep = _grid(values, mask)
    sums = torch.where(keep, values, 0.0).sum(-1)  # before any arithmetic: 0 times NaN is NaN
    counts = keep.sum(-1)
    sequences = (counts > 0).sum()
    if not sequences:
        raise InputError("mask", "at least one token", "none")
    if how == "token_mean":
        out = sums.sum() / counts.sum()
    elif how == "seq_sum":
        out = sums.sum() / sequences
    elif how == "seq_mean_token_mean":
        out = (sums / counts.clamp(min=1)).sum() / sequences
    else:
        out = sums.sum() / (sequences * values.shape[-1])
    if torch.isnan(out):
        raise InputError("values", "no NaN and no inf - inf at kept places", "some")
    return out


def reward_to_go(values, mask=None, *, discount: float = 1.0) -> Tensor:
    """Σ_{j ≥ t} discount^(j − t) values_j: what is still to come at each step, t included.

    ``values``, ``mask``: as for :func:`aggregate`. Returns the shape of ``values``, zero at
    masked places; masked values count as zero. ``discount`` in [0, 1]; 0 keeps each token's own
    value.

    Raises ``InputError`` for a mask that does not fit or another discount.

    >>> reward_to_go(torch.tensor([1.0, 2.0, 4.0]))
    tensor([7., 6., 4.])
    >>> reward_to_go(torch.tensor([1.0, 2.0, float("nan")]), torch.tensor([1, 1, 0]))
    tensor([3., 2., 0.])
    """
    values, keep = _grid(values, mask)
    discount = as_number("discount", discount, at_most=1.0)
    if discount < 0:
        raise InputError("discount", "a number in [0, 1]", repr(discount))
    kept = torch.where(keep, values, 0.0)
    if discount == 1:
        to_go = kept.flip(-1).cumsum(-1).flip(-1)
    else:
        steps, carried = [], torch.zeros_like(kept[..., 0])
        for now in kept.unbind(-1)[::-1]:
            carried = now + discount * carried
            steps.append(carried)
        to_go = torch.stack(steps[::-1], -1)
    return torch.where(keep, to_go, 0.0)


def eos_mask(tokens: Tensor, eos: int) -> Tensor:
    """True up to and including the first ``eos``: the tokens that the policy chose.

    ``tokens``: (..., T) integers. Returns bool of the same shape; all true in a sequence without
    ``eos``. The end token counts: it is sampled, so it has a log-probability and a ratio. The
    mask fits ``logprob`` (..., T) when ``logprob[..., t]`` belongs to ``tokens[..., t]``.

    Raises ``InputError`` for tokens that are not integers.

    >>> eos_mask(torch.tensor([[5, 2, 0, 0], [5, 7, 7, 2]]), eos=2).int()
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
    """
    if tokens.is_floating_point() or tokens.dtype == torch.bool or tokens.ndim == 0:
        raise InputError("tokens", "integers (..., T)", f"{tokens.dtype} {tuple(tokens.shape)}")
    ended = (tokens == eos).int()
    return ended.cumsum(-1) - ended == 0


def _grid(values, mask) -> tuple[Tensor, Tensor]:
    """Values in at least float32, and a bool mask of exactly their shape."""
    if not isinstance(values, Tensor):
        values = torch.as_tensor(values, dtype=torch.float64)
    if not values.is_floating_point() or values.ndim == 0 or values.shape[-1] == 0:
        received = f"{values.dtype} {tuple(values.shape)}"
        raise InputError("values", "floating values (..., T)", received)
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    if mask is None:
        return values, torch.ones_like(values, dtype=torch.bool)
    return values, as_mask(mask, values.shape, values.device)


def as_mask(mask, shape: torch.Size, device: torch.device) -> Tensor:
    """``mask`` as bool, of exactly this shape, or raise ``InputError``.

    A mask that only broadcasts is refused: (B, 1) against (B, T) is a bug more often than a wish.
    """
    keep = torch.as_tensor(mask, device=device)
    if keep.shape != shape:
        raise InputError("mask", f"shape {tuple(shape)}", f"shape {tuple(keep.shape)}")
    if keep.dtype != torch.bool:
        if not ((keep == 0) | (keep == 1)).all():
            raise InputError("mask", "booleans, or zeros and ones", "other values")
        keep = keep == 1
    return keep


def weigh(log_weight: Tensor, value: Tensor) -> Tensor:
    """e^log_weight · value with 0 · inf = 0: what never happens counts nothing.

    >>> weigh(torch.tensor([0.0, -torch.inf]), torch.tensor([2.0, torch.inf]))
    tensor([2., 0.])
    """
    weight = torch.exp(log_weight)
    return torch.where(weight == 0, 0.0, weight * value)


def one_of(argument: str, value: str, names: tuple[str, ...]) -> None:
    """Pass, or raise ``InputError`` with the names that there are."""
    if value not in names:
        raise InputError(argument, f"one of {', '.join(names)}", repr(value))
