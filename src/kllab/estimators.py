r"""Monte Carlo estimators of a divergence, one value per sample.

An :class:`Estimator` is a generator f, a coefficient λ of the control variate r − 1, and
optionally clamps:

    v(l) = f(r) + λ (r − 1),   r = e^l,   l = log p(x) − log q(x),   x ~ q.

E_q[r − 1] = 0 while supp p ⊆ supp q, so the mean of v is D_f for every λ.  λ = −f'(1) makes v the
gap between f and its tangent at r = 1, which is never negative when f is convex.

Nothing here reduces over samples except where the name says so.

Source: J. Schulman (2020), "Approximating KL Divergence", for k1, k2, k3 and the construction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kllab import exact
from kllab.checks import InputError, as_count, as_log, as_number
from kllab.divergences import (
    DIVERGENCES,
    HALF_SQUARED_LOG,
    Divergence,
    Term,
    checked,
    get,
    with_slope,
)

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Estimator:
    """A per-sample estimator v(log r) = f(r) + λ(r − 1), optionally clamped.

    Parameters
    ----------
    name : how tables and figures call it.
    generator : f, a :class:`~kllab.divergences.Divergence`.
    lam : λ, the coefficient of the control variate r − 1.
    target : the divergence whose value the estimator is used for; by default the generator.
    clamp_log_r : (low, high) applied to log r before anything else; off by default.
    clamp_value : (low, high) applied to the value; off by default.

    Calling it maps ``log_r`` of any shape to values of the same shape, in nats.  The derivative
    along log r is exact, also where a plain formula would give inf − inf.  A clamp has derivative
    zero outside of its bounds.  NaN, integer and half-precision input raises
    :class:`~kllab.checks.InputError`.

    Examples
    --------
    >>> import torch
    >>> log_r = torch.tensor([-0.5, 0.0, 2.0], dtype=torch.float64)
    >>> K1(log_r)
    tensor([ 0.5000, -0.0000, -2.0000], dtype=torch.float64)
    >>> K3(log_r)
    tensor([0.1065, 0.0000, 4.3891], dtype=torch.float64)
    >>> K3(torch.tensor([-math.inf, math.inf]))
    tensor([inf, inf])
    """

    name: str
    generator: Divergence
    lam: float = 0.0
    target: Divergence = field(default=None)  # type: ignore[assignment]
    clamp_log_r: Bounds | None = None
    clamp_value: Bounds | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "generator", get(self.generator))
        object.__setattr__(self, "target", get(self.target or self.generator))
        object.__setattr__(self, "lam", as_number("lam", self.lam))
        for argument in ("clamp_log_r", "clamp_value"):
            bounds = getattr(self, argument)
            if bounds is not None and not _ascending(bounds):
                raise InputError(argument, "(low, high) with low < high", str(bounds))

    def __call__(self, log_r: Tensor, *, log_weight: Tensor | None = None) -> Tensor:
        """Values v(log r), same shape, nats; times e^log_weight when the samples are not from q.

        ``log_weight`` is log q(x) − log μ(x) for x ~ μ, of a shape that broadcasts with
        ``log_r``.  It is differentiated unless you detach it.
        """
        log_r = checked("log_r", log_r)
        if self.clamp_log_r is not None:
            log_r = log_r.clamp(*self.clamp_log_r)
        value = with_slope(log_r, self._value, self._slope)
        if self.clamp_value is not None:
            value = value.clamp(*self.clamp_value)
        if log_weight is None:
            return value
        log_weight = checked("log_weight", log_weight)
        _same_shape("log_weight", log_weight, value)
        # Bounded above, so that 0 times a weight beyond every float is 0.
        weight = torch.exp(log_weight).clamp(max=torch.finfo(log_weight.dtype).max)
        return _weigh(weight, value)

    def clamped(self, *, log_r: Bounds | None = None, value: Bounds | None = None) -> Estimator:
        """The same estimator with clamps on log r, on the value, or on both.

        Examples
        --------
        >>> K3.clamped(log_r=(-20, 20), value=(-10, 10)).clamp_value
        (-10, 10)
        """
        return replace(self, name=f"{self.name} clamped", clamp_log_r=log_r, clamp_value=value)

    @property
    def terms(self) -> tuple[Term, ...] | None:
        """v as Σ c lʲ e^{kl}, where the generator is such a sum and nothing is clamped."""
        if self.generator.terms is None or self.clamp_log_r or self.clamp_value:
            return None
        return (*self.generator.terms, (self.lam, 0, 1.0), (-self.lam, 0, 0.0))

    def _value(self, l: Tensor) -> Tensor:
        d = self.generator
        if self.lam == -d.df1:
            return (d.gap_value or d.value)(l)
        if self.lam == 0:
            return d.value(l)
        return _plus_control(d, torch.as_tensor(self.lam, dtype=l.dtype, device=l.device), l)

    def _slope(self, l: Tensor) -> Tensor:
        d = self.generator
        if self.lam == -d.df1:
            return (d.gap_slope or d.slope)(l)
        if self.lam == 0:
            return d.slope(l)
        slope = d.slope(l) + self.lam * torch.exp(l)
        growth = d.asymptote[0] + self.lam
        return torch.where(
            torch.isnan(slope), math.copysign(math.inf, growth) if growth else 0, slope
        )


def _ascending(bounds) -> bool:
    try:
        low, high = map(float, bounds)
    except (TypeError, ValueError):
        return False
    return low < high


def _same_shape(argument: str, tensor: Tensor, values: Tensor) -> None:
    try:
        torch.broadcast_shapes(tensor.shape, values.shape)
    except RuntimeError:
        expected = f"a shape that broadcasts with {tuple(values.shape)}"
        raise InputError(argument, expected, str(tuple(tensor.shape))) from None


def _weigh(weight: Tensor, value: Tensor) -> Tensor:
    """w v, where a token without weight carries no value, be it infinite, and no gradient."""
    return weight * torch.where(weight == 0, 0.0, value)


def _plus_control(d: Divergence, lam: Tensor, log_r: Tensor) -> Tensor:
    """f(r) + λ (r − 1).  Where f → ∞ and λ(r − 1) → −∞, or the reverse, the limit is known."""
    value = d.value(log_r) + lam * torch.expm1(log_r)
    growth, rest = d.asymptote[0] + lam, d.asymptote[1] - lam
    limit = torch.where(growth == 0, rest, torch.copysign(torch.full_like(lam, math.inf), growth))
    return torch.where(torch.isnan(value), limit, value)


K1 = Estimator("k1", DIVERGENCES["kl_qp"], lam=0.0)
"""k1 = −log r.  Unbiased for KL(q‖p); negative wherever p(x) > q(x)."""

K2 = Estimator("k2", HALF_SQUARED_LOG, target=DIVERGENCES["kl_qp"])
"""k2 = ½ (log r)².  Biased for KL(q‖p); its gradient as a loss is right (chapter 07)."""

K3 = Estimator("k3", DIVERGENCES["kl_qp"], lam=1.0)
"""k3 = (r − 1) − log r.  Unbiased for KL(q‖p) and never negative."""


def bregman(divergence: Divergence | str) -> Estimator:
    """f(r) − f'(1)(r − 1): unbiased for D_f, and non-negative sample by sample when f is convex.

    Examples
    --------
    >>> bregman("kl_qp")(torch.tensor([0.0, 1.0])).equal(K3(torch.tensor([0.0, 1.0])))
    True
    """
    d = get(divergence)
    return Estimator(f"bregman {d.name}", d, lam=-d.df1 + 0.0)


def with_lambda(divergence: Divergence | str, lam: float) -> Estimator:
    """f(r) + λ(r − 1) for a given λ: unbiased for D_f whatever λ is."""
    d = get(divergence)
    return Estimator(f"{d.name} + {lam:g}(r - 1)", d, lam=float(lam))


def _length(argument: str, tensor: Tensor, dim: int) -> int:
    """Number of samples along ``dim``."""
    if not -tensor.ndim <= dim < tensor.ndim:
        raise InputError(argument, f"samples along axis {dim}", f"shape {tuple(tensor.shape)}")
    return tensor.shape[dim]


def optimal_lambda(divergence: Divergence | str, log_r: Tensor, dim: int = -1) -> Tensor:
    """λ* = −Cov(f, r − 1) / Var(r − 1) over samples of log r along ``dim``.

    The λ that minimises the sample variance of f + λ(r − 1).  Where all samples are equal, or f
    is infinite at one, no λ is better than another, and −f'(1), the limit for p → q, is returned.
    Used on the samples that it came from, λ* biases the mean by O(1/n): see :func:`cross_fitted`.

    Examples
    --------
    >>> log_r = torch.log(torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64))
    >>> optimal_lambda("kl_qp", log_r)
    tensor(1.0986, dtype=torch.float64)
    """
    d = get(divergence)
    log_r = as_log("log_r", log_r)
    if _length("log_r", log_r, dim) < 2:
        raise InputError("log_r", f"at least 2 samples along axis {dim}", f"{tuple(log_r.shape)}")
    ratio = torch.expm1(log_r)
    # The gap instead of f: the same λ up to f'(1), without cancellation near r = 1.
    gap = d.gap(log_r)
    centred = ratio - ratio.mean(dim, keepdim=True)
    unit = centred.abs().amax(dim, keepdim=True)  # squares of r would overflow
    scaled = centred / torch.where(unit > 0, unit, 1.0)
    covariance = (scaled * (gap - gap.mean(dim, keepdim=True))).mean(dim)
    lam = -covariance / scaled.square().mean(dim) / unit.squeeze(dim)
    return torch.where(torch.isfinite(lam), lam, 0.0) - d.df1


def cross_fitted(
    divergence: Divergence | str, log_r: Tensor, *, folds: int = 2, dim: int = -1
) -> Tensor:
    """f + λ(r − 1) with each sample's λ estimated from the other folds: unbiased for every n.

    ``log_r`` (..., n) along ``dim`` gives values of the same shape.  Sample i is in fold
    i mod ``folds``; ``2 <= folds <= n``, and the other folds must hold two samples.
    """
    d = get(divergence)
    log_r = as_log("log_r", log_r)
    n = _length("log_r", log_r, dim)
    folds = as_count("folds", folds, least=2, most=n)
    if n - math.ceil(n / folds) < 2:
        raise InputError(
            "log_r", "at least 2 samples outside of each fold", str(tuple(log_r.shape))
        )
    log_r = log_r.movedim(dim, -1)
    fold = torch.arange(n, device=log_r.device) % folds
    out = torch.empty_like(log_r)
    for k in range(folds):
        lam = optimal_lambda(d, log_r[..., fold != k])
        out[..., fold == k] = _plus_control(d, lam[..., None], log_r[..., fold == k])
    return out.movedim(-1, dim)


def rao_blackwell(divergence: Divergence | str, log_q: Tensor, log_p: Tensor) -> Tensor:
    """E[value | prefix]: the exact divergence of each next-token distribution.

    ``log_q``, ``log_p`` (..., V) give (...,).  Averaged over sampled prefixes it is unbiased for
    the same sum as the sampled token values, without the noise of the token.

    Source: Amini, Vieira and Cotterell (2025), "Better Estimation of the Kullback-Leibler
    Divergence Between Language Models".
    """
    return exact.divergence(divergence, log_q, log_p)


def self_normalised(values: Tensor, log_weight: Tensor, dim: int = -1) -> Tensor:
    """Σ w v / Σ w along ``dim``, for weights known up to a constant; biased by O(1/n)."""
    values, log_weight = as_log("values", values), as_log("log_weight", log_weight)
    if values.shape != log_weight.shape:
        _same_shape("log_weight", log_weight, values)
        values, log_weight = torch.broadcast_tensors(values, log_weight)
    _length("log_weight", log_weight, dim)
    if torch.isposinf(log_weight).any():
        raise InputError("log_weight", "weights below +inf", "+inf")
    if torch.isneginf(log_weight).all(dim).any():
        raise InputError("log_weight", f"a weight above 0 along axis {dim}", "none")
    return _weigh(torch.softmax(log_weight, dim), values).sum(dim)


def median_of_means(values: Tensor, blocks: int, dim: int = -1) -> Tensor:
    """Median of the means of ``blocks`` equal blocks of consecutive samples along ``dim``.

    For an even number of blocks the lower of the two middle means is not favoured: they are
    averaged.  ``n`` must be a multiple of ``blocks``.
    """
    values = as_log("values", values)
    n = _length("values", values, dim)
    whole = isinstance(blocks, int) and not isinstance(blocks, bool)
    if not whole or not 1 <= blocks <= n or n % blocks:
        raise InputError("blocks", f"a divisor of n = {n}", str(blocks))
    means = values.movedim(dim, -1).unflatten(-1, (blocks, n // blocks)).mean(-1).sort(-1).values
    lower, upper = means[..., (blocks - 1) // 2], means[..., blocks // 2]
    return torch.where(lower == upper, lower, (lower + upper) / 2)
