r"""The oracle: divergences, moments and sampling distributions without sampling.

Sums run over the whole vocabulary in float64; Gaussians have closed forms, and quadrature beside
them.  Nothing here knows a particular estimator: a per-sample function is any callable of log r.
What it may carry besides is read by name, ``.target`` (whose value it is used for) and ``.terms``
(v as Σ c lʲ e^{kl}, which is what a closed form needs).

A pair is anything with ``.log_q`` and ``.log_p`` (V,), or with Gaussian ``.mean`` and ``.scale``
(q = N(0, 1), p = N(mean, scale²)).  All results are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy import integrate
from torch import Tensor

from kllab import _lattice
from kllab._statistics import MeanVariance as MeanVariance
from kllab._statistics import Statistics as Statistics
from kllab._statistics import statistics as statistics
from kllab.checks import InputError, as_count, as_log, as_log_probs, same_vocabulary
from kllab.divergences import Divergence, Term, get

PerSample = Callable[[Tensor], Tensor]

_EPS = float(np.finfo(np.float64).eps)
_ROWS_AT_ONCE = 2**20  # elements of one streamed block: a few MB of float64 temporaries
_METHODS = ("auto", "closed_form", "quadrature", "sum")


# --- divergences over a vocabulary ----------------------------------------------------------


def divergence(d: str | Divergence, log_q: Tensor, log_p: Tensor) -> Tensor:
    r"""D_f(q, p) = E_q[f(p/q)], summed over the whole vocabulary.

    Parameters
    ----------
    d : name or :class:`~kllab.divergences.Divergence`.
    log_q, log_p : (..., V) normalised log-probabilities, float32 or float64; −inf is legal.

    Returns
    -------
    (...,) in nats, of the wider of the inputs' dtypes, summed in float64.  Differentiable in both
    arguments, exactly also at −inf, where a derivative may be infinite too.  Tokens with q = 0
    cost p·lim f(r)/r; tokens with p = q = 0 nothing; an infinite divergence is ``inf``.

    Raises
    ------
    InputError : unnormalised, NaN, integer or half-precision input, or shapes that do not match.

    Examples
    --------
    >>> import torch
    >>> log_q = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log()
    >>> log_p = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).log()
    >>> divergence("kl_qp", log_q, log_p)
    tensor(0.1838, dtype=torch.float64)
    >>> divergence("chi2_qp", log_q, log_p)
    tensor(0.3750, dtype=torch.float64)
    """
    log_q, log_p = same_vocabulary(as_log_probs("log_q", log_q), as_log_probs("log_p", log_p))
    return _Divergence.apply(log_q, log_p, get(d))


class _Divergence(torch.autograd.Function):
    """The sum and its gradient, streamed over rows.

    With r ≤ 1 a token costs q·gap(log r); with r > 1 the same number is p·gap*(−log r), where gap*
    belongs to the divergence with q and p exchanged.  Both are evaluated at log-ratios ≤ 0 only,
    so nothing overflows, and every limit at q = 0 or p = 0 is the plain value of a function.
    Since Σq = Σp = 1, the gaps sum to D_f without cancellation between tokens.
    """

    @staticmethod
    def forward(log_q: Tensor, log_p: Tensor, d: Divergence) -> Tensor:
        dtype = torch.promote_types(log_q.dtype, log_p.dtype)
        out = log_q.new_empty(log_q.shape[:-1], dtype=dtype)
        for rows, lq, lp in _blocks(log_q, log_p):
            below, above = _both_sides(lq, lp)
            cost = _weigh(lq, d.gap(below)) + _weigh(lp, d.reversed().gap(above))
            out.view(-1)[rows] = cost.sum(-1).to(out.dtype)
        return out

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        log_q, log_p, ctx.divergence = inputs
        ctx.save_for_backward(log_q, log_p)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        log_q, log_p = ctx.saved_tensors
        d, reverse = ctx.divergence, ctx.divergence.reversed()
        grad_q, grad_p = (x.new_empty(x.shape) for x in (log_q, log_p))  # contiguous
        v = log_q.shape[-1]
        for rows, lq, lp in _blocks(log_q, log_p):
            up = grad.reshape(-1)[rows].unsqueeze(-1).double()
            # ∂D/∂log q = q (f − r f'), which is p·s f*'(s), s = 1/r, seen from the other side.
            # ∂D/∂log p = p f'(r): with q and p exchanged the same, up to c (r − 1) in f*.
            c = d.df1 + reverse.df1
            in_q = _slope_in_first(d, reverse, lq, lp)
            in_p = _slope_in_first(reverse, d, lp, lq) + c * torch.exp(lp)
            grad_q.view(-1, v)[rows] = _scaled(up, in_q).to(grad_q.dtype)
            grad_p.view(-1, v)[rows] = _scaled(up, in_p).to(grad_p.dtype)
        return grad_q, grad_p, None


def _blocks(log_q: Tensor, log_p: Tensor):
    """Float64 blocks of rows (slice, (rows, V), (rows, V)) of bounded size."""
    v = log_q.shape[-1]
    flat_q, flat_p = log_q.reshape(-1, v), log_p.reshape(-1, v)
    step = max(1, _ROWS_AT_ONCE // v)
    for start in range(0, flat_q.shape[0], step):
        rows = slice(start, start + step)
        yield rows, flat_q[rows].double(), flat_p[rows].double()


def _both_sides(log_q: Tensor, log_p: Tensor) -> tuple[Tensor, Tensor]:
    """(min(log r, 0), min(−log r, 0)), with 0 where p = q = 0."""
    log_r = torch.where((log_q == -math.inf) & (log_p == -math.inf), 0.0, log_p - log_q)
    return log_r.clamp(max=0), (-log_r).clamp(max=0)


def _weigh(log_weight: Tensor, value: Tensor) -> Tensor:
    """e^log_weight · value with 0 · inf = 0: an outcome without mass costs nothing."""
    weight = torch.exp(log_weight)
    return torch.where(weight == 0, 0.0, weight * value)


def _scaled(upstream: Tensor, slope: Tensor) -> Tensor:
    """upstream · slope; a row that is left out (upstream 0) stays out, be its slope infinite."""
    return torch.where(upstream == 0, 0.0, upstream * slope)


def _slope_in_first(d: Divergence, reverse: Divergence, log_a: Tensor, log_b: Tensor) -> Tensor:
    """∂/∂log a of Σ a f(b/a): a (f − r f') where b ≤ a, and b · df*/dlog(a/b) where b > a.

    The registered reverse is r f(1/r) + c (r − 1) with c = f'(1) + f*'(1), hence − c a.
    """
    below, above = _both_sides(log_a, log_b)
    left = _weigh(log_a, d.f(below) - d.r_df(below))
    right = _weigh(log_b, reverse.r_df(above)) - (d.df1 + reverse.df1) * torch.exp(log_a)
    return torch.where(above < 0, right, left)


# --- moments of one sample ------------------------------------------------------------------


@dataclass(frozen=True)
class Moments:
    """Mean and variance of one sample's value, in nats and nats².

    ``bias`` is mean − D of the estimator's target (``None`` for a callable without one; 0 where
    both are the same infinity).  ``error`` bounds the absolute numerical error of mean and
    variance where they are finite.
    """

    mean: float
    variance: float
    bias: float | None
    error: float
    method: str

    @property
    def sd(self) -> float:
        return math.sqrt(self.variance)


def moments(estimator: PerSample, pair, *, method: str = "auto") -> Moments:
    """Exact mean, variance and bias of ``estimator(log r)`` for one x ~ q.

    Parameters
    ----------
    estimator : an :class:`~kllab.estimators.Estimator`, or any callable from log r to values.
    pair : categorical or Gaussian, see the module's head.
    method : "sum" (categorical), "closed_form" or "quadrature" (Gaussian); "auto" takes the first
        that applies, in the order sum, closed form, quadrature; quadrature also where the closed
        form's cancellation leaves fewer than six digits of the variance.

    Raises
    ------
    InputError : the method does not apply to this pair or estimator; the estimator returns NaN,
        another shape, or both infinities.

    Examples
    --------
    >>> import kllab
    >>> m = moments(kllab.K3, kllab.pairs.gaussian(0.1, 1.0))
    >>> round(m.mean, 12), round(m.sd / m.mean, 5), m.method
    (0.005, 1.41657, 'closed_form')
    """
    if method not in _METHODS:
        raise InputError("method", f"one of {', '.join(_METHODS)}", repr(method))
    asked, method = method, _choose(method, estimator, pair)
    if method == "sum":
        mean, variance, error = _sum_moments(estimator, pair)
    elif method == "closed_form":
        mean, variance, error = _closed_moments(estimator.terms, pair)
        if asked == "auto" and error > 1e-6 * variance:
            method = "quadrature"
    if method == "quadrature":
        mean, variance, error = _quadrature_moments(estimator, pair)
    return Moments(mean, variance, _bias(mean, estimator, pair), error, method)


def target_value(target: str | Divergence, pair) -> float:
    """D_f of a pair, categorical or Gaussian, in nats.

    Examples
    --------
    >>> import kllab
    >>> round(target_value("kl_pq", kllab.pairs.gaussian(0.0, 2.0)), 6)
    0.806853
    """
    d = get(target)
    if _is_categorical(pair):
        return float(divergence(d, pair.log_q.double(), pair.log_p.double()))
    if d.terms is not None:
        return _expect_terms(d.terms, pair)[0]
    return _integrate(d.gap, pair)[0]


def optimal_lambda(target: str | Divergence, pair) -> float:
    """λ* = −Cov(f, r) / Var(r), the λ with the least variance of f(r) + λ(r − 1), x ~ q.

    For ``kl_qp`` it is Jeffreys' divergence over χ²(p‖q) where q covers p.  −f'(1) for p = q.
    From samples instead: :func:`kllab.estimators.optimal_lambda`.  Raises ``InputError`` where the
    variance of r is infinite.

    Examples
    --------
    >>> import kllab
    >>> round(optimal_lambda("kl_qp", kllab.pairs.gaussian(1.0, 1.0)), 6)  # 1 / (e − 1)
    0.581977
    """
    d = get(target)
    if _is_categorical(pair):
        ratio = moments(torch.expm1, pair)
        mean, variance = ratio.mean, ratio.variance  # a mean below 0 where q does not cover p
    else:
        mean, variance = 0.0, target_value("chi2_pq", pair)
    if not math.isfinite(variance):
        raise InputError("pair", "a ratio with a finite variance", "an infinite one")
    if variance == 0:
        return -d.df1
    # The gap instead of f: the same λ up to f'(1), without cancellation near r = 1.
    gap = moments(d.gap, pair).mean
    covariance = moments(lambda l: (d.gap(l) - gap) * (torch.expm1(l) - mean), pair).mean
    return -covariance / variance - d.df1


def _bias(mean: float, estimator, pair) -> float | None:
    target = getattr(estimator, "target", None)
    if target is None:
        return None
    truth = target_value(target, pair)
    return 0.0 if mean == truth else mean - truth


def _is_categorical(pair) -> bool:
    if hasattr(pair, "log_q"):
        return True
    if hasattr(pair, "mean") and hasattr(pair, "scale"):
        return False
    raise InputError("pair", ".log_q and .log_p, or .mean and .scale", type(pair).__name__)


def _evaluate(estimator: PerSample, log_r: Tensor) -> Tensor:
    """estimator(log_r) in float64, refused unless it is one number per sample."""
    if not callable(estimator):
        raise InputError("estimator", "a callable of log r", type(estimator).__name__)
    values = estimator(log_r)
    if not isinstance(values, Tensor) or not values.is_floating_point():
        came = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise InputError("estimator", f"a float tensor of shape {tuple(log_r.shape)}", str(came))
    if values.shape != log_r.shape:
        expected = f"values of log r's shape {tuple(log_r.shape)}"
        raise InputError("estimator", expected, str(tuple(values.shape)))
    values = values.detach().double()
    if torch.isnan(values).any():
        raise InputError("estimator", "values without NaN", f"{int(values.isnan().sum())} NaN")
    return values


def _choose(method: str, estimator, pair) -> str:
    closed = getattr(estimator, "terms", None) is not None
    possible = ["sum"] if _is_categorical(pair) else ["closed_form"] * closed + ["quadrature"]
    if method == "auto":
        return possible[0]
    if method not in possible:
        raise InputError("method", " or ".join(possible) + " for this pair and estimator", method)
    return method


def _atoms(estimator: PerSample, pair) -> tuple[Tensor, Tensor]:
    """Values (K,) and probabilities (K,) over the tokens that q can emit, float64."""
    log_q, log_p = pair.log_q.detach().double(), pair.log_p.detach().double()
    can = log_q > -math.inf
    return _evaluate(estimator, log_p[can] - log_q[can]), torch.exp(log_q[can])


def _sum_moments(estimator: PerSample, pair) -> tuple[float, float, float]:
    values, weights = _atoms(estimator, pair)
    infinite = values[torch.isinf(values)]
    if len(infinite):
        if (infinite != infinite[0]).any():
            raise InputError("estimator", "values of at most one infinity", "both inf and -inf")
        return float(infinite[0]), math.inf, 0.0
    mean = float((weights * values).sum())
    variance = float((weights * (values - mean) ** 2).sum())
    # Each product is off by a few ulp (exp of a log-probability costs |log q| of them), and a
    # pairwise sum adds one ulp a level.
    ulps = 8 + float(-weights[weights > 0].min().log()) + math.log2(len(values))
    scale = max(float((weights * values.abs()).sum()), variance)
    return mean, variance, ulps * _EPS * scale


# --- Gaussian pairs: closed forms -----------------------------------------------------------


def _log_ratio(pair) -> tuple[float, float, float]:
    """(a, b, c) with log r(x) = a x² + b x + c for q = N(0, 1), p = N(mean, scale²)."""
    m, s = float(pair.mean), float(pair.scale)
    return (s - 1) * (s + 1) / (2 * s * s), m / (s * s), -math.log(s) - m * m / (2 * s * s)


def _tilted(j: int, k: float, pair) -> tuple[float, float]:
    """E_q[lʲ e^{kl}] by completing the square under e^{kl} q, and its rounding error in ulps."""
    a, b, c = _log_ratio(pair)
    precision = 1 - 2 * k * a
    if precision <= 0:
        return math.inf, 0.0
    exponent = k * c + (k * b) ** 2 / (2 * precision)
    weight = math.exp(exponent) / math.sqrt(precision) if exponent < 709 else math.inf
    centre, sd = k * b / precision, 1 / math.sqrt(precision)
    # l as a polynomial in z, where x = centre + sd z and z ~ N(0, 1).
    l = np.array([c + b * centre + a * centre**2, (b + 2 * a * centre) * sd, a * sd * sd])
    power = np.array([1.0])
    for _ in range(j):
        power = np.convolve(power, l)
    z_moments = [0.0 if i % 2 else float(math.prod(range(1, i, 2))) for i in range(len(power))]
    parts = power * z_moments
    # 1 − 2ka cancels near the boundary of existence, and an exponent's error is absolute.
    cancelled = (1 + 2 * abs(k * a)) / precision
    ulps = (j + 1) * cancelled + (abs(k * c) + (k * b) ** 2 / precision) * (1 + cancelled)
    return weight * float(parts.sum()), weight * float(np.abs(parts).sum()) * ulps


def _expect_terms(terms: tuple[Term, ...], pair) -> tuple[float, float]:
    """E_q[Σ c lʲ e^{kl}] and a bound on its rounding error; infinite where a term diverges."""
    merged: dict[tuple[int, float], float] = {}
    for c, j, k in terms:
        merged[j, k] = merged.get((j, k), 0.0) + c
    total, scale, diverging = [], 0.0, []
    for (j, k), c in merged.items():
        if c == 0:
            continue
        value, size = _tilted(j, k, pair)
        if math.isinf(value):
            diverging.append((abs(k), j, c))
        total.append(c * value)
        scale += abs(c) * size
    if diverging:  # the steepest exponent outgrows the others, out where log r → ±∞ with p's width
        _, j, c = max(diverging)
        tail = 1.0 if pair.scale > 1 else (-1.0) ** j
        return math.copysign(math.inf, c * tail), 0.0
    return math.fsum(total), 32 * _EPS * scale


def _closed_moments(terms: tuple[Term, ...], pair) -> tuple[float, float, float]:
    mean, mean_error = _expect_terms(terms, pair)
    if math.isinf(mean):
        return mean, math.inf, 0.0
    # v² − mean² directly: (v − mean)² keeps the constant part small.
    centred = (*terms, (-mean, 0, 0.0))
    squares = tuple((c * d, i + j, k + m) for c, i, k in centred for d, j, m in centred)
    variance, variance_error = _expect_terms(squares, pair)
    return mean, max(variance, 0.0), max(mean_error, variance_error)


# --- Gaussian pairs: quadrature -------------------------------------------------------------


def _quadrature_moments(estimator: PerSample, pair) -> tuple[float, float, float]:
    mean, mean_error = _integrate(lambda l: _evaluate(estimator, l), pair)
    if math.isinf(mean):
        return mean, math.inf, 0.0
    variance, variance_error = _integrate(lambda l: (_evaluate(estimator, l) - mean) ** 2, pair)
    return mean, variance, max(mean_error, variance_error)


def _integrate(fn: PerSample, pair) -> tuple[float, float]:
    """∫ fn(log r(x)) φ(x) dx by adaptive Gauss–Kronrod on dyadic pieces, and an error bound.

    Infinite where the integrand does not decay by the end of the float64 range.
    """
    a, b, c = _log_ratio(pair)

    def integrand(x: float) -> float:
        l = (a * x + b) * x + c
        value = float(fn(torch.tensor([l], dtype=torch.float64)))
        if value == 0:
            return 0.0
        return math.copysign(math.exp(math.log(abs(value)) - x * x / 2 - _LOG_SQRT_2PI), value)

    end = _end_of_range(fn, (a, b, c))
    cuts = sorted({s * 2.0**i for s in (-1, 1) for i in range(-1, 10) if 2.0**i < end} | {0.0})
    cuts = sorted({*cuts, *_roots(a, b, c, end), -end, end})
    total, error = [], 0.0
    for left, right in pairwise(cuts):
        value, bound = integrate.quad(integrand, left, right, epsabs=1e-15, epsrel=1e-13, limit=200)
        total.append(value)
        error += 10 * bound  # room for kinks, where QUADPACK's estimate may fall short
    for side in (-1, 1):
        outer, inner = abs(integrand(side * end)), abs(integrand(side * end * 0.98))
        if outer > 0 and outer >= inner * (1 - 1e-9):
            return math.copysign(math.inf, integrand(side * end)), 0.0
        if outer > 0:  # what lies beyond falls at least as fast as this exponential
            error += outer * 0.02 * end / math.log(inner / outer)
    return math.fsum(total), error + 64 * _EPS * sum(map(abs, total))


_LOG_SQRT_2PI = math.log(2 * math.pi) / 2


def _end_of_range(fn: PerSample, coefficients: tuple[float, float, float]) -> float:
    """The largest |x| up to 600 at which fn is finite and nonzero on both sides."""
    a, b, c = coefficients
    x = torch.linspace(1, 600, 2400, dtype=torch.float64)
    finite = torch.ones_like(x, dtype=torch.bool)
    for side in (-1, 1):
        value = fn((a * x * side + b) * x * side + c)
        finite &= torch.isfinite(value)
    cut = int((~finite).float().argmax()) if not finite.all() else len(x)
    return float(x[max(cut - 1, 0)])


def _roots(a: float, b: float, c: float, end: float) -> list[float]:
    """Where log r = 0: kinks of |r − 1| and the like."""
    roots = np.roots([a, b, c]) if a else ([-c / b] if b else [])
    return [float(np.real(z)) for z in roots if abs(np.imag(z)) < 1e-12 and abs(z) < end]


# --- the sampling distribution of a mean ----------------------------------------------------


@dataclass(frozen=True)
class SamplingDistribution:
    """The distribution of the mean of n independent values.

    ``values`` ascend and ``pmf`` sums to 1, both (K,) float64; ``error`` bounds the difference
    between the CDF and the true one, uniformly.  It says nothing about moments: a value too rare
    to matter for the CDF can carry most of a variance.  Those come from :func:`moments`.
    """

    values: Tensor
    pmf: Tensor
    error: float
    n: int

    def cdf(self, x) -> Tensor:
        """P(mean ≤ x), element-wise; ``InputError`` for NaN."""
        x = as_log("x", torch.as_tensor(x, dtype=torch.float64))
        index = torch.searchsorted(self.values, x, right=True)
        total = torch.cat([torch.zeros(1, dtype=torch.float64), self.pmf.cumsum(0)])
        return total[index].clamp(max=1.0)

    def quantile(self, u) -> Tensor:
        """The smallest value whose CDF reaches u, element-wise for u in (0, 1]."""
        u = torch.as_tensor(u, dtype=torch.float64)
        if not ((u > 0) & (u <= 1)).all():
            raise InputError("u", "probabilities in (0, 1]", str(u.tolist()))
        index = torch.searchsorted(self.pmf.cumsum(0), u).clamp(max=len(self.values) - 1)
        return self.values[index]


def sampling_distribution(estimator: PerSample, pair, n: int) -> SamplingDistribution:
    """The exact distribution of the mean of n samples, with a bound on its CDF error.

    Small supports are enumerated.  Otherwise the values go on a lattice, whose n-fold convolution
    is a power in Fourier space.  ``error`` adds up what rounding to the lattice (Bernstein's
    inequality), cut tails (Chernoff's) and floating point can do.

    Parameters
    ----------
    estimator, pair : as for :func:`moments`.
    n : number of samples in the mean, at least 1.

    Raises
    ------
    InputError : n < 1, or the estimator is both +inf and −inf with positive probability.

    Examples
    --------
    >>> import kllab
    >>> mean_k1 = sampling_distribution(kllab.K1, kllab.pairs.gaussian(0.1, 1.0), n=64)
    >>> round(float(mean_k1.cdf(0.0)), 3), mean_k1.error < 1e-3     # Φ(−√64 · .1 / 2) = .345
    (0.345, True)
    """
    n = as_count("n", n, least=1)
    if _is_categorical(pair):
        values, weights = (t.numpy() for t in _atoms(estimator, pair))
        law = _lattice.of_atoms(values, weights / weights.sum(), n)
    else:
        a, b, c = _log_ratio(pair)

        def at(x: np.ndarray) -> np.ndarray:
            return _evaluate(estimator, torch.from_numpy((a * x + b) * x + c)).numpy()

        law = _lattice.of_normal(at, n)
    return SamplingDistribution(
        torch.from_numpy(law.values), torch.from_numpy(law.pmf), law.error, n
    )
