r"""How a KL term enters training, which gradient that gives, and which divergence it follows.

Convention: x ~ q is sampled from the policy, p is the reference, l = log r = log p − log q, nats.
A per-sample function h gives the gradient of the minimised cost

    E[c ∇log q(x)],   c = −h'(log r) as a loss,  h(log r) as a reward,  their sum as both,

and a constant in c changes nothing on average, since E_q[∇log q] = 0.  ∇D_f has c = f − r f'.
So h as a loss follows the divergence with f = r∫ h'(log r)/r² dr, as a reward the one with
f = −r∫ h(log r)/r² dr: see :func:`dictionary`, and :func:`penalty_for` for the way back.

Wherever ``fn`` stands, it may be an :class:`~kllab.estimators.Estimator` or another function of
log r alone, a function (logprob, ref_logprob), or one (logprob, ref_logprob, old_logprob); the
number of its required arguments tells which.  It must be element-wise.

Sources: V. Shah et al. (2025), "A Comedy of Estimators", arXiv:2512.21852, for what a loss and a
reward keep of the gradient; Y. Tang and R. Munos (2025), arXiv:2506.09477, for the losses;
K. Liu et al. (2025), arXiv:2510.01555, for the coefficient of the score.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from kllab import _fit
from kllab._masks import one_of
from kllab._terms import sum_of
from kllab.checks import InputError, as_log, as_log_probs
from kllab.divergences import DIVERGENCES, Divergence, get, with_slope

PerSample = Callable[..., Tensor]
USAGES = ("loss", "reward", "both")
BASELINES = ("none", "mean", "leave_one_out")


# --- placements: surrogate losses, one value per sample ---------------------------------------


def as_loss(fn: PerSample, logprob: Tensor, ref_logprob: Tensor, old_logprob=None) -> Tensor:
    """``fn`` itself, differentiated: autograd reaches logprob through its value.

    Parameters
    ----------
    fn : see the module's text.
    logprob, ref_logprob, old_logprob : log-probabilities of the sampled tokens, of one shape,
        float32 or float64, nats.  ``old_logprob`` is for a ``fn`` of three arguments.

    Returns
    -------
    Same shape, nats.  The mean's gradient is E[−h'(log r) ∇log q].

    Raises
    ------
    InputError : NaN, integer or half-precision input, shapes that differ, or a ``fn`` that does
        not return one value per sample.

    Examples
    --------
    >>> import kllab
    >>> logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> as_loss(kllab.K2, logprob, torch.tensor([-1.5, -1.0])).sum().backward()
    >>> logprob.grad
    tensor([ 0.5000, -1.0000])
    """
    return _evaluate(fn, *_inputs(logprob, ref_logprob, old_logprob))


def as_reward(fn: PerSample, logprob: Tensor, ref_logprob: Tensor, old_logprob=None) -> Tensor:
    """The penalty as part of the reward: its value, detached, times logprob.

    The sign is that of a minimised cost, so the mean's gradient is E[h(log r) ∇log q].
    Arguments, shape and errors as for :func:`as_loss`.

    >>> import kllab
    >>> logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> as_reward(kllab.K1, logprob, torch.tensor([-1.5, -1.0])).sum().backward()
    >>> logprob.grad
    tensor([ 0.5000, -1.0000])
    """
    inputs = _inputs(logprob, ref_logprob, old_logprob)
    return placed(_evaluate(fn, *inputs), inputs[0], usage="reward")


def as_both(fn: PerSample, logprob: Tensor, ref_logprob: Tensor, old_logprob=None) -> Tensor:
    """Reward and loss together, each with coefficient 1: the whole gradient of E_q[h].

    For any estimator that is unbiased for D_f, whatever its λ, this is ∇D_f on average.
    Arguments, shape and errors as for :func:`as_loss`.

    >>> import kllab
    >>> logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> as_both(kllab.K3, logprob, torch.tensor([-1.5, -1.0])).sum().backward()
    >>> logprob.grad
    tensor([ 0.5000, -1.0000])
    """
    inputs = _inputs(logprob, ref_logprob, old_logprob)
    return placed(_evaluate(fn, *inputs), inputs[0], usage="both")


def placed(value: Tensor, logprob: Tensor, *, usage: str, reward: Tensor | None = None) -> Tensor:
    """The surrogate for values that are there already: their shape, nats.

    ``usage``: "loss", "reward" or "both".  ``reward``: what a token answers for as reward, where
    that is not ``value`` itself; detached here.  Raises ``InputError`` for another usage.

    >>> logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> placed(torch.tensor([0.5, -1.0]), logprob, usage="reward").sum().backward()
    >>> logprob.grad
    tensor([ 0.5000, -1.0000])
    """
    one_of("usage", usage, USAGES)
    if usage == "loss":
        return value
    pushed = _constant(value if reward is None else reward) * logprob
    return pushed if usage == "reward" else value + pushed


def straight_through(
    value: PerSample, gradient: PerSample, logprob: Tensor, ref_logprob: Tensor, old_logprob=None
) -> Tensor:
    """The value of one function with the gradient of another, as a loss.

    What frameworks write as ``k3+`` is ``straight_through(K3, K2, logprob, ref_logprob)``: it is
    logged as k3 and trains as k2.  Shape and errors as for :func:`as_loss`.

    >>> import kllab
    >>> logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> k3_plus = straight_through(kllab.K3, kllab.K2, logprob, torch.tensor([-1.5, -1.0]))
    >>> k3_plus.detach()
    tensor([0.1065, 0.7183])
    >>> k3_plus.sum().backward()
    >>> logprob.grad
    tensor([ 0.5000, -1.0000])
    """
    inputs = _inputs(logprob, ref_logprob, old_logprob)
    return _ValueOf.apply(_evaluate(value, *inputs), _evaluate(gradient, *inputs))


def importance_weighted(
    fn: PerSample, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor
) -> Tensor:
    """w·fn as a loss, w = q(x)/old(x) differentiated, for samples from the old policy.

    Unbiased for the whole gradient of E_q[h]: of k1 and k3 that of KL(q‖p), of k2 not.  It acts
    on policy too, where w = 1 but ∇w = ∇log q.  A token that q cannot emit (logprob −inf) counts
    0 in value and gradient.  Shape and errors as for :func:`as_loss`.

    Source: DeepSeek-AI (2025), "DeepSeek-V3.2", arXiv:2512.02556, eq. 7, for w·k3.

    >>> import kllab
    >>> logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> ref, old = torch.tensor([-1.5, -1.0]), torch.tensor([-1.0, -2.0])
    >>> importance_weighted(kllab.K3, logprob, ref, old).sum().backward()
    >>> logprob.grad
    tensor([ 0.5000, -1.0000])
    """
    return _weighted(fn, logprob, ref_logprob, old_logprob, detach=False)


def importance_weighted_detached(
    fn: PerSample, logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor
) -> Tensor:
    """w·fn as a loss, w = q(x)/old(x) held constant: ``as_loss`` of samples from q, no more.

    Right for k2, and for k3 the gradient of KL(p‖q).  Otherwise as :func:`importance_weighted`.

    >>> import kllab
    >>> logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> ref, old = torch.tensor([-1.5, -1.0]), torch.tensor([-1.0, -2.0])
    >>> importance_weighted_detached(kllab.K3, logprob, ref, old).sum().backward()
    >>> logprob.grad
    tensor([ 0.3935, -1.7183])
    """
    return _weighted(fn, logprob, ref_logprob, old_logprob, detach=True)


def as_reward_centred(
    fn: PerSample, logprob: Tensor, ref_logprob: Tensor, old_logprob=None, *, dim: int = -1
) -> Tensor:
    """``as_reward`` less the batch mean of the values along ``dim``.

    The mean holds the sample itself, so the expected gradient is 1 − 1/n of the true one, n being
    the size along ``dim``.  Other arguments, shape and errors as for :func:`as_loss`.

    >>> import kllab
    >>> logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> as_reward_centred(kllab.K1, logprob, torch.tensor([-1.5, -1.0])).sum().backward()
    >>> logprob.grad
    tensor([ 0.7500, -0.7500])
    """
    inputs = _inputs(logprob, ref_logprob, old_logprob)
    return less_baseline(_constant(_evaluate(fn, *inputs)), how="mean", dim=dim) * inputs[0]


def as_reward_leave_one_out(
    fn: PerSample, logprob: Tensor, ref_logprob: Tensor, old_logprob=None, *, dim: int = -1
) -> Tensor:
    """``as_reward`` less the mean of the *other* samples' values along ``dim``: not shrunk.

    Raises ``InputError`` for fewer than 2 samples along ``dim``; otherwise as :func:`as_loss`.

    Source: W. Kool, H. van Hoof and M. Welling (2019), "Buy 4 REINFORCE samples, get a baseline
    for free!".

    >>> import kllab
    >>> logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> as_reward_leave_one_out(kllab.K1, logprob, torch.tensor([-1.5, -1.0])).sum().backward()
    >>> logprob.grad
    tensor([ 1.5000, -1.5000])
    """
    inputs = _inputs(logprob, ref_logprob, old_logprob)
    value = _constant(_evaluate(fn, *inputs))
    return less_baseline(value, how="leave_one_out", dim=dim) * inputs[0]


def less_baseline(value: Tensor, *, how: str, dim: int = -1) -> Tensor:
    """Values less a baseline from the samples along ``dim``; same shape.

    ``how``: "none"; "mean" of all n, which shrinks an expected gradient by 1 − 1/n;
    "leave_one_out", the mean of the other n − 1, which does not.  Raises ``InputError`` for
    another ``how`` and for too few samples.

    >>> less_baseline(torch.tensor([1.0, 2.0, 6.0]), how="leave_one_out")
    tensor([-3.0000, -1.5000,  4.5000])
    """
    one_of("baseline", how, BASELINES)
    if how == "none":
        return value
    n = value.shape[dim] if value.ndim else 0
    if n < (least := 1 + (how == "leave_one_out")):
        raise InputError("logprob", f"at least {least} samples along dim {dim}", f"{n}")
    total = value.sum(dim, keepdim=True)
    return value - (total / n if how == "mean" else (total - value) / (n - 1))


_PLACEMENTS = {"loss": as_loss, "reward": as_reward, "both": as_both}


def coefficient(
    fn: PerSample, logprob: Tensor, ref_logprob: Tensor, old_logprob=None, *, usage: str
) -> Tensor:
    """c, what multiplies each sample's score ∇log q(x) in the gradient of the minimised cost.

    By autograd through the placement itself, so that detaches and straight-through count.
    ``usage``: "loss", "reward" or "both".  Other arguments as for :func:`as_loss`.

    Returns float64 of the samples' shape, nats.  Raises ``InputError`` as :func:`as_loss` does,
    and where the derivative is NaN.

    >>> import kllab
    >>> log_r = torch.tensor([-0.5, 0.0, 2.0], dtype=torch.float64)
    >>> coefficient(kllab.K3, -log_r, torch.zeros(3), usage="loss")     # 1 − r
    tensor([ 0.3935, -0.0000, -6.3891], dtype=torch.float64)
    >>> coefficient(kllab.K1, -log_r, torch.zeros(3), usage="reward")   # −log r
    tensor([ 0.5000, -0.0000, -2.0000], dtype=torch.float64)
    """
    c, _ = _coefficient(fn, logprob, ref_logprob, old_logprob, usage)
    return _not_nan(c, logprob, ref_logprob)


# --- exact gradients over a vocabulary --------------------------------------------------------


def expected(fn: PerSample, logits, log_p, *, usage: str, log_old=None) -> Tensor:
    r"""The exact expected gradient of the minimised cost with respect to ``logits``.

    Parameters
    ----------
    fn : the per-sample function; see the module's text.  A ``fn`` of three arguments is given the
        sampled law as old_logprob; others are not weighted.
    logits : (V,) of the policy q = softmax(logits); −inf where it never goes.
    log_p : (V,) normalised log-probabilities of the reference; −inf is legal.
    usage : "loss", "reward" or "both".
    log_old : (V,) normalised; the law that x is drawn from, detached.  By default x ~ q.

    Returns
    -------
    (V,) float64, Σₓ μ(x) cₓ (eₓ − q) with μ the sampled law and c from :func:`coefficient`; one
    pass over the vocabulary.  A c that is infinite (k1 as a reward where p = 0) gives infinite
    entries, with the signs that they have on the way there.

    Raises
    ------
    InputError : NaN, integer, half-precision, unnormalised or misshapen input, a ``fn`` that is
        not element-wise or whose derivative is NaN at a token that can be drawn, infinite
        coefficients of both signs.

    Examples
    --------
    >>> import kllab
    >>> log_q, log_p = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]], dtype=torch.float64).log()
    >>> expected(kllab.K2, log_q, log_p, usage="loss")       # the gradient of KL(q‖p)
    tensor([ 0.2631, -0.1754, -0.0877], dtype=torch.float64)
    >>> expected(kllab.K3, log_q, log_p, usage="loss")       # q − p, the gradient of KL(p‖q)
    tensor([ 0.3000, -0.2000, -0.1000], dtype=torch.float64)
    >>> expected(kllab.K1, log_q, log_p, usage="loss")
    tensor([0., 0., 0.], dtype=torch.float64)
    """
    law = _enumerate(fn, logits, log_p, usage, log_old)
    return _gradient(law)


def sampled(
    fn: PerSample, logits, log_p, tokens: Tensor, *, usage: str, log_old=None, along=None
) -> Tensor:
    r"""What each sampled token contributes to the gradient: cₓ (eₓ − q).

    Over tokens drawn from q, or from ``log_old`` where that is given, the mean estimates
    :func:`expected`.

    Parameters
    ----------
    tokens : integers from 0 to V − 1, any shape (...).
    along : (V,) a direction v; then only each contribution's inner product with v is computed,
        which needs no memory for the V entries.
    fn, logits, log_p, usage, log_old : as for :func:`expected`.

    Returns
    -------
    (..., V) float64, or (...) with ``along``.

    Raises
    ------
    InputError : laws that :func:`expected` refuses, what :func:`coefficient` refuses, infinite
        coefficients, tokens that are no integers or not in the vocabulary, another shape of
        ``along``.

    Examples
    --------
    >>> import kllab
    >>> log_q, log_p = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]], dtype=torch.float64).log()
    >>> tokens = torch.tensor([0, 2])
    >>> sampled(kllab.K1, log_q, log_p, tokens, usage="loss")       # c = 1: the score
    tensor([[ 0.3000, -0.2000, -0.1000],
            [-0.7000, -0.2000,  0.9000]], dtype=torch.float64)
    >>> sampled(kllab.K1, log_q, log_p, tokens, usage="loss", along=torch.tensor([1.0, 0, 0]))
    tensor([ 0.3000, -0.7000], dtype=torch.float64)
    """
    log_q, log_p, log_mu = _laws(logits, log_p, log_old)
    tokens = _in_vocabulary(tokens, len(log_q))
    c = coefficient(fn, log_q[tokens], log_p[tokens], log_mu[tokens], usage=usage)
    if torch.isinf(c).any():
        raise InputError("fn", "finite coefficients", "infinite ones")
    q = log_q.exp()
    if along is None:
        return c[..., None] * (one_hot(tokens, len(q)) - q)
    along = torch.as_tensor(along, dtype=q.dtype, device=q.device)
    if along.shape != q.shape:
        raise InputError("along", f"shape {tuple(q.shape)}", f"shape {tuple(along.shape)}")
    return c * (along[tokens] - q @ along)


def variance(fn: PerSample, logits, log_p, *, usage: str, log_old=None) -> Tensor:
    """The total variance of the single-sample gradient: the trace of :func:`covariance`.

    Scalar, float64, by one pass over the vocabulary; divide by n for a mean of n samples.
    Arguments and errors as for :func:`expected`; ``inf`` where a coefficient is infinite.

    >>> import kllab
    >>> log_q, log_p = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]], dtype=torch.float64).log()
    >>> variance(kllab.K1, log_q, log_p, usage="loss")       # of a gradient that is 0 on average
    tensor(0.4600, dtype=torch.float64)
    >>> bool(variance(kllab.K2, log_q, log_q, usage="loss") < 1e-30)     # p = q
    True
    """
    law = _enumerate(fn, logits, log_p, usage, log_old)
    if torch.isinf(law.c).any():
        return law.c.new_tensor(math.inf)
    g = _gradient(law)
    square = law.c.square() * _squared_score(law.q)
    cross = 2 * law.c * (g - law.q @ g)
    return (law.mu * (square - cross + g @ g)).sum().clamp(min=0)


def covariance(fn: PerSample, logits, log_p, *, usage: str, log_old=None) -> Tensor:
    """The covariance (V, V) of the single-sample gradient, float64.

    Arguments and errors as for :func:`expected`; besides, infinite coefficients raise.

    >>> import kllab
    >>> log_q, log_p = torch.tensor([[0.5, 0.5], [0.2, 0.8]], dtype=torch.float64).log()
    >>> covariance(kllab.K1, log_q, log_p, usage="loss")
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]], dtype=torch.float64)
    """
    law = _enumerate(fn, logits, log_p, usage, log_old)
    if torch.isinf(law.c).any():
        raise InputError("fn", "finite coefficients", "infinite ones")
    weight = law.mu * law.c.square()
    cross = torch.outer(weight, law.q)
    g = _gradient(law)
    second = weight.diag() - cross - cross.T + weight.sum() * torch.outer(law.q, law.q)
    return second - torch.outer(g, g)


def optimal_lambda_for_gradient(divergence: str | Divergence, logits, log_p) -> Tensor:
    r"""The λ for which f + λ(r − 1), used as both, has the least noisy gradient.

    Its coefficient is f − r f' − λ, so λ = E[(f − r f')‖∇log q‖²]/E‖∇log q‖²; for KL(q‖p) that is
    1 + E[k1 ‖∇log q‖²]/E‖∇log q‖².  The best λ for the *value* is another one:
    :func:`kllab.estimators.optimal_lambda`.

    ``logits`` (V,), ``log_p`` (V,) as for :func:`expected`; scalar, float64.  A q that is certain
    has no gradient and any λ will do: −f'(1).  ``inf`` or ``-inf`` where f − r f' is.

    >>> log_q, log_p = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]], dtype=torch.float64).log()
    >>> optimal_lambda_for_gradient("kl_qp", log_q, log_p)
    tensor(0.5737, dtype=torch.float64)
    """
    d = get(divergence)
    law = _enumerate(penalty_for(d, usage="reward"), logits, log_p, "reward", None)
    share = law.mu * _squared_score(law.q)
    total = share.sum()
    shifted = torch.where(share > 0, share * law.c, 0.0).sum()
    return torch.where(total > 0, shifted / total, 0.0) - d.df1


# --- the dictionary ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """Which divergence the gradient of a per-sample function follows.

    ``verdict``: "fits" (``terms`` says what), "zero" (no expected gradient, pure noise) or
    "unknown".  ``terms``: {divergence: coefficient}, empty unless it fits.
    ``f``: the generator as a function of log r, float64 of the same shape: the sum of the terms,
    or, where there is none, by quadrature with f(1) = 0 and f'(1) = 0.  A generator is known up
    to c(r − 1).
    ``is_convex``: whether f is convex on the region; only then is it a divergence's.
    ``region``: the interval of log r that was looked at.  ``residual``: relative, root mean
    square; for "unknown" that of the closest combination.
    ``constant``: the part of the coefficient that has mean zero and is pure noise, at r = 1.
    ``unit``: of log r, and so of every number here.
    """

    usage: str
    verdict: str
    terms: dict[str, float]
    f: Callable[[Tensor], Tensor]
    is_convex: bool
    region: tuple[float, float]
    residual: float
    constant: float
    unit: str = "nats"

    def __str__(self) -> str:
        low, high = self.region
        where = f"for log r in [{low:.3g}, {high:.3g}]"
        if self.verdict == "fits":
            return f"as {self.usage}: the gradient of {sum_of(self.terms)} {where}"
        if self.verdict == "zero":
            return f"as {self.usage}: no expected gradient {where}"
        convex = "convex" if self.is_convex else "not convex"
        return f"as {self.usage}: no combination of known divergences; f is {convex} {where}"


def dictionary(fn: PerSample, *, usage: str) -> Entry:
    r"""Find the divergence whose gradient a per-sample function follows.

    As a loss, h follows f = r∫ h'(log r)/r² dr; as a reward, f = −r∫ h(log r)/r² dr; as both, the
    sum.  The derivative is autograd's, so straight-through counts.

    Parameters
    ----------
    fn : a function of log r (an Estimator is one), or (logprob, ref_logprob) through their
        difference alone.
    usage : "loss", "reward" or "both".

    Returns
    -------
    An :class:`Entry`.  One name where one does, any that is registered; else the fewest, at most
    three, of kl_qp kl_pq chi2_qp chi2_pq tv hellinger2.  The fit is in float64, on the interval
    around log r = 0 where nothing is clamped, at most ±3 nats; narrower than 2 nats is "unknown".
    It counts at a relative residual of 1e-8, or 64 float32 ε where ``fn`` works in float32.
    f is convex exactly where the coefficient falls as log r grows.

    Raises
    ------
    InputError : a ``fn`` of three arguments, that is not element-wise, depends on more than the
        difference, or is not finite around log r = 0.

    Examples
    --------
    >>> import kllab
    >>> dictionary(kllab.K3, usage="loss").terms
    {'kl_pq': 1.0}
    >>> dictionary(kllab.K3, usage="reward").terms
    {'kl_qp': 1.0, 'kl_pq': -1.0}
    >>> print(dictionary(torch.abs, usage="loss"))
    as loss: the gradient of 2 tv for log r in [-3, 3]
    >>> dictionary(kllab.K1, usage="loss").verdict
    'zero'
    >>> entry = dictionary(kllab.K2, usage="reward")       # E[k2] − KL(q‖p), as f tells
    >>> entry.verdict, entry.is_convex
    ('unknown', False)
    >>> log_r = torch.tensor([-1.0, 0.5], dtype=torch.float64)
    >>> bool(torch.allclose(entry.f(log_r), kllab.K2(log_r) - kllab.K3(log_r)))
    True
    """
    one_of("usage", usage, USAGES)
    if _arity(fn) > 2:
        raise InputError(
            "fn", "a function of log r or of (logprob, ref_logprob)", "three arguments"
        )
    wanted = {"value": "reward", "slope": "loss"}
    wanted = {kind: place for kind, place in wanted.items() if usage in (place, "both")}

    # One argument gets every log r exactly; two get it between two log-probabilities.
    anchors = (0.0,) if _arity(fn) == 1 else _ANCHORS

    def parts(log_r: Tensor, anchor: float = anchors[0]) -> dict[str, Tensor]:
        pair = anchor - log_r / 2, anchor + log_r / 2
        return {kind: _coefficient(fn, *pair, None, place)[0] for kind, place in wanted.items()}

    def c_at(log_r: Tensor) -> Tensor:
        return sum(parts(log_r).values())

    l = _fit.grid()
    coarse = l[:: len(l) // _POINTS]
    _element_wise(fn, anchors[0] - coarse / 2, anchors[0] + coarse / 2, None, usage)
    on_grid = parts(l)
    keep, low, high = _fit.unclamped(l, on_grid)
    points, c = l[keep], sum(on_grid.values())[keep]
    if not (len(points) and torch.isfinite(c).all()):
        raise InputError("fn", "finite values and derivatives around log r = 0", "NaN or inf")
    slack = float(c.abs().max())
    falls = c.diff()
    some = torch.linspace(0, len(points) - 1, min(len(points), _POINTS)).long()
    points, c = points[some], c[some]
    # float64 moves when its argument moves by 2⁻⁴²; what was cast to float32 on the way does not.
    precision = torch.float32 if torch.equal(c_at(points + 2.0**-42), c) else torch.float64
    elsewhere = sum(parts(points, anchors[-1]).values())
    if float((elsewhere - c).abs().max()) > _fit.TOLERANCE[precision] * slack:
        expected = "a penalty whose weight is a function of ref_logprob − logprob alone"
        raise InputError("fn", expected, "one of more than that")

    columns = {name: -_fit.slope_and_integral(name)[0](points) for name in DIVERGENCES}
    one = {"constant": torch.ones_like(points)}
    fit = _fit.combination(c, columns, one, precision=precision)
    if high - low < _fit.NARROWEST:
        fit = _fit.Fit("unknown", {}, fit.free, fit.residual)

    slack *= 64 * torch.finfo(precision).eps
    at_one = sum(_at_one(part) for part in parts(_AROUND_ONE).values())
    return Entry(
        usage=usage,
        verdict=fit.verdict,
        terms=fit.terms,
        f=_generator(fit, c_at, at_one, (low, high)),
        is_convex=bool((falls <= slack).all()),
        region=(low, high),
        residual=fit.residual,
        constant=at_one,
    )


def penalty_for(divergence: str | Divergence, *, usage: str) -> Callable[[Tensor], Tensor]:
    r"""The per-sample penalty whose gradient follows a divergence: the dictionary read backwards.

    ``usage`` "loss": h' = r f' − f − f'(1), so h has value 0 and slope 0 at r = 1.
    "reward": h = f − r f' + f'(1), with value 0 at r = 1; its slope there, −f''(1), is not ours to
    choose.  "both": h = f − f'(1)(r − 1), value and slope 0.

    Returns a function of ``log_r`` (any shape, float32 or float64) to the same shape, nats, with an
    exact derivative, never NaN.  Closed forms for everything registered but ``js`` as a loss, which
    is a quadrature good to 1e-12 for |log r| ≤ 20, as is a generator of your own.

    Raises ``InputError`` for another usage, and the penalty for input that is NaN, integer or half
    precision; ``KeyError`` for a name that is not registered.

    Examples
    --------
    >>> log_r = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    >>> penalty_for("kl_qp", usage="loss")(log_r)             # k2
    tensor([0.5000, 0.0000, 0.5000], dtype=torch.float64)
    >>> penalty_for("kl_pq", usage="loss")(log_r)             # k3
    tensor([0.3679, 0.0000, 0.7183], dtype=torch.float64)
    >>> penalty_for("tv", usage="reward")(log_r)
    tensor([ 0.5000, -0.0000, -0.5000], dtype=torch.float64)
    """
    one_of("usage", usage, USAGES)
    d = get(divergence)
    if usage == "both":
        return d.gap
    slope, integral = _fit.slope_and_integral(d)

    def loss(log_r: Tensor) -> Tensor:
        return with_slope(as_log("log_r", log_r), integral, slope)

    def reward(log_r: Tensor) -> Tensor:
        return -slope(as_log("log_r", log_r))

    penalty = loss if usage == "loss" else reward
    penalty.__name__ = penalty.__qualname__ = f"{d.name}_{usage}"
    return penalty


# --- calling somebody's function --------------------------------------------------------------


def _arity(fn: PerSample) -> int:
    """How many positional arguments fn requires: 1 (log r), 2 or 3."""
    if not callable(fn):
        raise InputError("fn", "a function", type(fn).__name__)
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # a builtin such as torch.abs
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.default is p.empty and p.kind in positional]
    keyword = [p for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    if keyword or not 1 <= len(required) <= 3:
        raise InputError(
            "fn",
            "a function of log r, of (logprob, ref_logprob) or of those and old_logprob",
            f"one that requires ({', '.join(p.name for p in [*required, *keyword])})",
        )
    return len(required)


def _inputs(logprob, ref_logprob, old_logprob) -> tuple[Tensor, Tensor, Tensor | None]:
    logprob, ref_logprob = as_log("logprob", logprob), as_log("ref_logprob", ref_logprob)
    others = {"ref_logprob": ref_logprob}
    if old_logprob is not None:
        others["old_logprob"] = old_logprob = as_log("old_logprob", old_logprob)
    for name, tensor in others.items():
        if tensor.shape != logprob.shape:
            raise InputError(name, f"shape {tuple(logprob.shape)}", f"shape {tuple(tensor.shape)}")
    return logprob, ref_logprob, old_logprob


def _evaluate(fn: PerSample, logprob: Tensor, ref_logprob: Tensor, old_logprob) -> Tensor:
    arity = _arity(fn)
    if arity == 1:
        # p = q = 0 is a token of ratio 1, as in pairs.CategoricalPair.log_r.
        neither = torch.isneginf(logprob) & torch.isneginf(ref_logprob)
        value = fn((ref_logprob - logprob).masked_fill(neither, 0.0))
    elif arity == 2:
        value = fn(logprob, ref_logprob)
    elif old_logprob is None:
        raise InputError("old_logprob", "log-probabilities, for a fn of three arguments", "None")
    else:
        value = fn(logprob, ref_logprob, old_logprob)
    if not (isinstance(value, Tensor) and value.shape == logprob.shape):
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError("fn", f"one value per sample, shape {tuple(logprob.shape)}", got)
    return value


def _constant(value: Tensor) -> Tensor:
    """Detached; a clone, since autograd may not keep a tensor made in inference mode."""
    return value.detach().clone()


class _ValueOf(torch.autograd.Function):
    """The first argument's value, the second one's gradient; unlike v + g − g, right at inf."""

    @staticmethod
    def forward(value: Tensor, gradient: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, grad: Tensor):
        return None, grad


def _weighted(fn, logprob, ref_logprob, old_logprob, *, detach: bool) -> Tensor:
    logprob, ref_logprob, old_logprob = _inputs(logprob, ref_logprob, old_logprob)
    if old_logprob is None:
        raise InputError("old_logprob", "log-probabilities of the sampled policy", "None")
    # Where q = 0 the weight is 0 and the value may be infinite: neither enters.
    dead = torch.isneginf(logprob)
    live = torch.where(dead, 0.0, logprob)
    weight = torch.exp(live - old_logprob)
    value = _evaluate(fn, live, ref_logprob, old_logprob)
    return torch.where(dead, 0.0, (weight.detach() if detach else weight) * value)


# --- coefficients of the score ----------------------------------------------------------------


def _coefficient(fn, logprob, ref_logprob, old_logprob, usage: str) -> tuple[Tensor, Tensor]:
    """c and the surrogate loss itself, both of the samples' shape."""
    one_of("usage", usage, USAGES)
    logprob, *rest = _inputs(logprob, ref_logprob, old_logprob)
    leaf = logprob.detach().double().requires_grad_()
    rest = [None if t is None else t.detach().double().clone() for t in rest]
    with torch.enable_grad():
        surrogate = _PLACEMENTS[usage](fn, leaf.clone(), *rest)  # clones: fn may work in place
        total = surrogate.sum()
    if not total.requires_grad:
        return torch.zeros_like(leaf), surrogate
    (grad,) = torch.autograd.grad(total, leaf, materialize_grads=True)
    return grad, surrogate.detach()


def _element_wise(fn, logprob, ref_logprob, old_logprob, usage: str) -> Tensor:
    """``_coefficient`` (N,), after checking that every second sample alone gives the same."""
    whole = _coefficient(fn, logprob, ref_logprob, old_logprob, usage)
    if len(logprob) > 1:
        half = [None if t is None else t[::2] for t in (logprob, ref_logprob, old_logprob)]
        for alone, together in zip(_coefficient(fn, *half, usage), whole, strict=True):
            # Vector and scalar code may differ in a few float32 roundings, no more.
            if not torch.allclose(alone, together[::2], rtol=1e-5, atol=1e-9, equal_nan=True):
                raise InputError("fn", "an element-wise, deterministic function", "one that is not")
    return whole[0]


def _not_nan(c: Tensor, logprob: Tensor, ref_logprob: Tensor) -> Tensor:
    bad = torch.isnan(c)
    if bad.any():
        where = f"logprob {float(logprob[bad][0]):g}, ref_logprob {float(ref_logprob[bad][0]):g}"
        raise InputError("fn", "a derivative that is a number", f"NaN at {where}")
    return c


class _Law(NamedTuple):
    """q, the sampled μ, and the coefficient c at every token, 0 where μ = 0; all (V,) float64."""

    q: Tensor
    mu: Tensor
    c: Tensor


def _laws(logits, log_p, log_old) -> tuple[Tensor, Tensor, Tensor]:
    """log q, log p and log μ, each (V,) float64."""
    logits = as_log("logits", logits).detach().double()
    if logits.ndim != 1 or not len(logits):
        raise InputError("logits", "one vocabulary (V,)", f"shape {tuple(logits.shape)}")
    if torch.isposinf(logits).any() or torch.isneginf(logits).all():
        raise InputError("logits", "finite or −inf, not all −inf", "others")
    log_q = torch.log_softmax(logits, -1)
    log_p = _same_law("log_p", log_p, log_q)
    return log_q, log_p, log_q if log_old is None else _same_law("log_old", log_old, log_q)


def _enumerate(fn, logits, log_p, usage: str, log_old) -> _Law:
    log_q, log_p, log_mu = _laws(logits, log_p, log_old)
    can = ~torch.isneginf(log_mu)
    c = torch.zeros_like(log_q)
    c[can] = _not_nan(
        _element_wise(fn, log_q[can], log_p[can], log_mu[can], usage), log_q[can], log_p[can]
    )
    return _Law(log_q.exp(), log_mu.exp(), c)


def _in_vocabulary(tokens, V: int) -> Tensor:
    """Integers from 0 to V − 1; a negative index would wrap around without a word."""
    tokens = torch.as_tensor(tokens)
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise InputError("tokens", "integers", str(tokens.dtype))
    if ((tokens < 0) | (tokens >= V)).any():
        raise InputError("tokens", f"integers from 0 to {V - 1}", "others")
    return tokens.long()


def _same_law(argument: str, value, log_q: Tensor) -> Tensor:
    """(V,) float64 log-probabilities; float32 is renormalised, float64 kept as it is."""
    log_probs = as_log_probs(argument, value).detach()
    if log_probs.shape != log_q.shape or log_probs.device != log_q.device:
        got = f"shape {tuple(log_probs.shape)} on {log_probs.device}"
        raise InputError(argument, f"shape {tuple(log_q.shape)} on {log_q.device}, as logits", got)
    if log_probs.dtype == torch.float64:
        return log_probs
    return torch.log_softmax(log_probs.double(), -1)


def _gradient(law: _Law) -> Tensor:
    """Σₓ μ(x) cₓ (eₓ − q), with the mean of c taken out first: it cancels on policy."""
    q, mu, c = law
    infinite = torch.isinf(c)
    if infinite.any():
        return _infinite_gradient(law, infinite)
    mean = (mu * c).sum() / mu.sum()
    return mu * (c - mean) + mean * (mu - q)


def _infinite_gradient(law: _Law, infinite: Tensor) -> Tensor:
    """±inf where infinite coefficients, growing together, take the gradient; else finite."""
    q, mu, c = law
    signs = torch.sign(c[infinite])
    if (signs != signs[0]).any():
        raise InputError("fn", "infinite coefficients of one sign", "both inf and -inf")
    share = torch.where(infinite, mu, 0.0)
    back = q * share.sum()
    direction = share - back
    direction[direction.abs() <= 64 * torch.finfo(q.dtype).eps * (share + back)] = 0.0
    if not direction.any():
        raise InputError("log_p", "a token in common with what is sampled", "none")
    rest = _gradient(_Law(q, mu, torch.where(infinite, 0.0, c)))
    return torch.where(direction == 0, rest, signs[0] * torch.sign(direction) * math.inf)


def _squared_score(q: Tensor) -> Tensor:
    """‖eₓ − q‖² for every x, (V,)."""
    others = (q @ q - q.square()).clamp(min=0)
    return (1 - q).square() + others


# --- parts of the dictionary ------------------------------------------------------------------

_ANCHORS = (-4.0, -7.0)  # the mean of both log-probabilities; two, to compare
_POINTS = 4096


_AROUND_ONE = torch.tensor([0, 1, -1, 2, -2], dtype=torch.float64) * 2.0**-12


def _at_one(c: Tensor) -> float:
    """c at r = 1 from ``_AROUND_ONE``; between its two sides where autograd has no number there."""
    near, far = (c[1] + c[2]) / 2, (c[3] + c[4]) / 2
    return float(c[0] if torch.isfinite(c[0]) else (4 * near - far) / 3)


def _generator(fit: _fit.Fit, c_at, at_one: float, region: tuple[float, float]):
    if fit.verdict == "fits":
        return lambda log_r: _sum_of_generators(fit.terms, as_log("log_r", log_r).double())
    if fit.verdict == "zero":
        return lambda log_r: torch.zeros_like(as_log("log_r", log_r).double())
    f = _fit.generator_of(c_at, at_one, region)

    def numeric(log_r: Tensor) -> Tensor:
        log_r = as_log("log_r", log_r).double()
        if not torch.isfinite(log_r).all():
            raise InputError("log_r", "finite values; this f is known by quadrature", "inf")
        return with_slope(
            log_r, f, lambda l: f(l) - (c_at(l.reshape(-1)).reshape(l.shape) - at_one)
        )

    return numeric


def _sum_of_generators(terms: dict[str, float], log_r: Tensor) -> Tensor:
    total = sum(value * get(name).f(log_r) for name, value in terms.items())
    bad = torch.isnan(total)
    if bad.any():
        at = f"infinities of both signs at log r = {float(log_r[bad][0]):g}"
        raise InputError("log_r", f"values where {sum_of(terms)} is defined", at)
    return total
