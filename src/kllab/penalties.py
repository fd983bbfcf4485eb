r"""KL penalties to paste into a training loop, each tested for value, gradient and finiteness.

Arguments are per-token log-probabilities of the *sampled* tokens, (..., T), the policy's first:
``logprob`` carries the gradient, ``ref_logprob`` (and ``old_logprob``) are constants. x ~ q, the
policy; p is the reference; l = log q − log p = −log r. Results are in nats.

Each function returns per-token values, zero where masked; with ``how=`` their aggregate, a
scalar, see :func:`kllab.sequences.aggregate`.

========================  ===================  ======================  ==========================
function                  value                expected gradient       instead of
========================  ===================  ======================  ==========================
``k1_in_reward``          k1 = l               none (a constant)       k3 in reward, k1 as loss
``k2_in_loss``            k2 = ½ l²            ∇KL(q‖p)                k1 or k3 as loss
``weighted_k3``           w k3                 ∇KL(q‖p), off-policy    k3 as loss on old samples
``k3_with_k2_gradient``   k3                   ∇KL(q‖p)                k3 as loss, k3 logged
``full_kl``               KL(q‖p) of a prefix  ∇KL(q‖p), no noise      any of them, when it fits
========================  ===================  ======================  ==========================

All hold token by token, with the prefix as it came: a sum of token losses leaves out how a token
changes the later prefixes. Only k1 in the reward with returns counts that (chapter 11).

Two clamps are on by default, because finiteness needs them; both act beyond what a trained model
shows. ``floor`` = −80: a log-probability below it counts as −80, with gradient zero, so that −inf
gives a large and not an infinite penalty, and e^80 still fits float32.
``max_log_weight`` = 5 in ``weighted_k3``: a weight counts at most e^5 = 148, so that 148 · 80,
the largest gradient, fits float16. ``max_log_ratio`` clamps l; it is off by default, since a
clamped term is biased and pushes no more.

To use one elsewhere, copy it with :func:`clean` and the constants that it names, without the call
of ``_check`` and the branch ``if how``; what is left needs torch and ``math``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kllab._masks import aggregate, as_mask
from kllab.checks import InputError, as_number

FLOOR = -80.0
"""Lowest log-probability that counts as itself, nats: e^80 = 5.5e34 leaves room in float32."""

MAX_LOG_WEIGHT = 5.0
"""Largest log importance weight that counts as itself: e^5 · 80 = 11,873 fits float16."""


def clean(logprob: Tensor, mask: Tensor | None, floor: float) -> Tensor:
    """Log-probabilities in at least float32, zero where masked, and at least ``floor``.

    Same shape. Masked places are replaced before any arithmetic, so that NaN and infinities
    there reach neither the value nor the gradient (0 times NaN is NaN).

    >>> half = torch.tensor([-1.0, -math.inf, math.nan], dtype=torch.bfloat16)
    >>> clean(half, torch.tensor([1, 1, 0]), -80.0)
    tensor([ -1., -80.,   0.])
    """
    logprob = logprob.to(torch.promote_types(logprob.dtype, torch.float32))
    if mask is not None:
        logprob = torch.where(mask.bool(), logprob, 0.0)
    return logprob.clamp(min=floor)


def k1_in_reward(
    logprob: Tensor,
    ref_logprob: Tensor,
    mask: Tensor | None = None,
    *,
    how: str | None = None,
    floor: float = FLOOR,
    max_log_ratio: float = math.inf,
) -> Tensor:
    """k1 = log q − log p, detached: subtract β times it from each token's reward.

    (..., T) each; returns (..., T) in nats, or a scalar with ``how``. As a reward its expected
    gradient is ∇KL(q‖p); summed to the end (:func:`kllab.sequences.reward_to_go`) it is the
    gradient of the whole sequence's KL, which no token loss gives. Single values are negative
    about half of the time; that is not an error.

    Raises ``InputError`` for shapes that differ, integers, NaN at a kept place, an infinite
    ``floor``, or another ``how``. Clamps: see the module's head.

    >>> logprob = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    >>> k1_in_reward(logprob, torch.tensor([-1.5, -1.0, -9.0]), torch.tensor([1, 1, 0]))
    tensor([ 0.5000, -1.0000,  0.0000])

    Source: D. Ziegler and others, Fine-Tuning Language Models from Human Preferences (2019).
    """
    _check(mask, floor, logprob=logprob, ref_logprob=ref_logprob)
    log_ratio = clean(logprob, mask, floor) - clean(ref_logprob, mask, floor)
    values = log_ratio.clamp(-max_log_ratio, max_log_ratio).detach()
    if how is not None:
        return aggregate(values, mask, how=how)
    return values


def k2_in_loss(
    logprob: Tensor,
    ref_logprob: Tensor,
    mask: Tensor | None = None,
    *,
    how: str | None = None,
    floor: float = FLOOR,
    max_log_ratio: float = math.inf,
) -> Tensor:
    """k2 = ½ (log q − log p)²: add β times its aggregate to the loss.

    (..., T) each; returns (..., T) in nats, or a scalar with ``how``. Its gradient is k1 times
    the score, sample by sample that of k1 in the reward, so in expectation ∇KL(q‖p) of each
    token. Its value is a biased estimate of KL: log k1 or k3 instead.

    Raises ``InputError`` as :func:`k1_in_reward` does. With a finite ``max_log_ratio`` a token
    beyond it has gradient zero.

    >>> logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> k2_in_loss(logprob, torch.tensor([-1.5, -1.0]), how="token_mean").backward()
    >>> logprob.grad
    tensor([ 0.2500, -0.5000])

    Source: Y. Tang and R. Munos, On a few pitfalls in KL divergence gradient estimation for RL
    (2025), arXiv:2506.09477.
    """
    _check(mask, floor, logprob=logprob, ref_logprob=ref_logprob)
    log_ratio = clean(logprob, mask, floor) - clean(ref_logprob.detach(), mask, floor)
    values = 0.5 * log_ratio.clamp(-max_log_ratio, max_log_ratio) ** 2
    if how is not None:
        return aggregate(values, mask, how=how)
    return values


def weighted_k3(
    logprob: Tensor,
    ref_logprob: Tensor,
    old_logprob: Tensor,
    mask: Tensor | None = None,
    *,
    how: str | None = None,
    floor: float = FLOOR,
    max_log_ratio: float = math.inf,
    max_log_weight: float = MAX_LOG_WEIGHT,
) -> Tensor:
    """w k3 with w = q/μ, differentiated through w as well; samples from μ, the old policy.

    (..., T) each; returns (..., T) in nats, or a scalar with ``how``. The gradient is w l times
    the score: in expectation over μ's tokens that of KL(q‖p). With w detached it would be that
    of KL(p‖q). On policy pass ``logprob.detach()`` as ``old_logprob``: then w = 1, and still
    changes the gradient. Token weights leave the prefixes as μ drew them.

    The weight's size, not its derivative, is cut at e^max_log_weight. Rounding in the gradient
    is of the size of p/μ. With a finite ``max_log_ratio`` k3 is that of the clamped ratio, and a
    token beyond it keeps only the gradient of w. Raises ``InputError`` as :func:`k1_in_reward`
    does.

    >>> logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> weighted_k3(logprob, torch.tensor([-1.5, -1.0]), logprob.detach()).sum().backward()
    >>> logprob.grad
    tensor([ 0.5000, -1.0000])

    Source: DeepSeek-V3.2 (2025), arXiv:2512.02556, section 3.1.
    """
    _check(mask, floor, logprob=logprob, ref_logprob=ref_logprob, old_logprob=old_logprob)
    logprob = clean(logprob, mask, floor)
    log_weight = logprob - clean(old_logprob.detach(), mask, floor)
    # Size and derivative apart: the size is cut, the derivative is w's own, relative to it.
    weight = log_weight.clamp(max=max_log_weight).exp().detach()
    weight = weight * torch.exp(log_weight - log_weight.detach())
    log_r = clean(ref_logprob.detach(), mask, floor) - logprob
    log_r = log_r.clamp(-max_log_ratio, max_log_ratio)
    values = weight * (torch.expm1(log_r) - log_r)
    if how is not None:
        return aggregate(values, mask, how=how)
    return values


def k3_with_k2_gradient(
    logprob: Tensor,
    ref_logprob: Tensor,
    mask: Tensor | None = None,
    *,
    how: str | None = None,
    floor: float = FLOOR,
    max_log_ratio: float = math.inf,
) -> Tensor:
    """Straight-through: the value of k3, unbiased and never negative, with the gradient of k2.

    (..., T) each; returns (..., T) in nats, or a scalar with ``how``. The gradient is l times
    the score, in expectation ∇KL(q‖p) of each token. ``max_log_ratio`` clamps the value only;
    the gradient stays l.

    Raises ``InputError`` as :func:`k1_in_reward` does.

    >>> logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> values = k3_with_k2_gradient(logprob, torch.tensor([-1.5, -1.0]))
    >>> values.sum().backward()
    >>> values.detach(), logprob.grad
    (tensor([0.1065, 0.7183]), tensor([ 0.5000, -1.0000]))

    Source: the ``k3+`` mode of verl, pull request 2953 (2025).
    """
    _check(mask, floor, logprob=logprob, ref_logprob=ref_logprob)
    log_ratio = clean(logprob, mask, floor) - clean(ref_logprob.detach(), mask, floor)
    log_r = -log_ratio.detach().clamp(-max_log_ratio, max_log_ratio)
    pull = 0.5 * log_ratio**2
    values = torch.expm1(log_r) - log_r + (pull - pull.detach())
    if how is not None:
        return aggregate(values, mask, how=how)
    return values


def full_kl(
    logits: Tensor,
    ref_logits: Tensor,
    mask: Tensor | None = None,
    *,
    how: str | None = None,
    floor: float = FLOOR,
) -> Tensor:
    """KL(q‖p) of each next-token distribution, summed over the vocabulary.

    ``logits``, ``ref_logits``: (..., T, V), not normalised; ``mask``: (..., T). Returns (..., T)
    in nats, or a scalar with ``how``. No noise from the sampled token, at the price of both
    models' logits. Still one token at a time: the prefix is held fixed.

    Raises ``InputError`` for shapes that differ, integers, NaN, +inf or nothing but -inf in a
    kept row, or another ``how``.

    >>> logits = torch.tensor([[0.7, 0.2, 0.1]]).log()
    >>> full_kl(logits, torch.tensor([[0.4, 0.4, 0.2]]).log())
    tensor([0.1838])

    Source: A. Amini, T. Vieira and R. Cotterell, Better Estimation of the Kullback-Leibler
    Divergence Between Language Models (2025), arXiv:2504.10637.
    """
    _check_rows(mask, floor, logits=logits, ref_logits=ref_logits)
    rows = None if mask is None else mask.unsqueeze(-1)
    # A masked row is cleaned twice: its logits before the softmax, nothing left to do after.
    log_q = clean(torch.log_softmax(clean(logits, rows, -math.inf), -1), None, floor)
    log_p = clean(torch.log_softmax(clean(ref_logits.detach(), rows, -math.inf), -1), None, floor)
    # The floor is under the logarithms only, so a token with q = 0 counts 0.
    values = (log_q.exp() * (log_q - log_p)).sum(-1)
    if how is not None:
        return aggregate(values, mask, how=how)
    return values


def _check(mask: Tensor | None, floor: float, **log_probs: Tensor) -> None:
    """Same shape, floating, and neither NaN nor +inf at a kept place, or ``InputError``."""
    as_number("floor", floor)  # -inf would let -inf - -inf through
    first, *_ = log_probs.values()
    keep = None if mask is None else as_mask(mask, first.shape, first.device)
    for name, tensor in log_probs.items():
        if tensor.shape != first.shape:
            raise InputError(name, f"shape {tuple(first.shape)}", f"shape {tuple(tensor.shape)}")
        if not tensor.is_floating_point():
            raise InputError(name, "floating log-probabilities", str(tensor.dtype))
        kept = tensor.detach() if keep is None else tensor.detach()[keep]
        if (torch.isnan(kept) | (kept == math.inf)).any():
            raise InputError(name, "no NaN and no +inf at kept places", "some")


def _check_rows(mask: Tensor | None, floor: float, **logits: Tensor) -> None:
    """The same for rows of logits, which must leave at least one token possible."""
    first, *_ = logits.values()
    if first.ndim == 0 or first.shape[-1] == 0:
        raise InputError("logits", "a trailing vocabulary axis", f"shape {tuple(first.shape)}")
    keep = torch.ones(first.shape[:-1], dtype=torch.bool, device=first.device)
    if mask is not None:
        keep = as_mask(mask, first.shape[:-1], first.device)
    _check(keep.unsqueeze(-1).expand(first.shape), floor, **logits)
    for name, tensor in logits.items():
        if (tensor.detach()[keep] == -math.inf).all(-1).any():
            raise InputError(name, "a possible token in each kept row", "a row of -inf")
