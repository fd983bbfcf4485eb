r"""The f-divergences, each defined once, as functions of the log-ratio.

Convention, here and everywhere: x ~ q, r = p(x)/q(x), l = log r, and

    D_f(q, p) = E_q[f(r)],   f(1) = 0,   in nats.

A :class:`Divergence` carries f and its slope r f'(r) = df/dl.  Values, control variates and
gradients in the rest of the package are derived from these two.

Sources: I. Csiszár (1967), "Information-type measures of difference of probability
distributions"; S.-i. Amari (2016), "Information Geometry and Its Applications", for the alpha
family.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kllab.checks import InputError, as_log, as_number

Fn = Callable[[Tensor], Tensor]
Term = tuple[float, int, float]


@dataclass(frozen=True)
class Divergence:
    r"""A generator f of D_f = E_q[f(r)], written as functions of l = log r.

    Parameters
    ----------
    name : registry name; it carries the direction, e.g. ``kl_qp`` is KL(q‖p).
    formula : f(r) in words that a reader can check.
    value, slope : l -> f(r) and l -> r f'(r); element-wise, defined on [-inf, inf].
    df1, d2f1 : f'(1), and f''(1) (``None`` where f has no second derivative at 1).
    at_zero : f(0), the limit as r → 0.
    asymptote : (a, b) with f(r) ≈ a r + b as r → ∞; a is what a token with q = 0 < p costs, per
        unit of p.
    reverse : name of the divergence with q and p exchanged, f*(r) = r f(1/r) + c (r − 1).
    convex : whether f is convex on (0, ∞).  Only then is D_f ≥ 0 and an f-divergence.
    gap_value, gap_slope : l -> f(r) − f'(1)(r − 1) and its slope, written without cancellation
        near r = 1.  ``None`` where f'(1) = 0, since f is then its own gap.
    terms : f as Σ c lʲ e^{kl}, a tuple of (c, j, k); ``None`` where f is no such sum.  Gaussian
        moments have a closed form exactly where this exists.

    Examples
    --------
    >>> import torch
    >>> log_r = torch.log(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    >>> DIVERGENCES["chi2_pq"].f(log_r)
    tensor([0.2500, 0.0000, 1.0000], dtype=torch.float64)
    >>> DIVERGENCES["kl_qp"].r_df(log_r)
    tensor([-1., -1., -1.], dtype=torch.float64)
    """

    name: str
    formula: str
    value: Fn
    slope: Fn
    df1: float
    d2f1: float | None
    at_zero: float
    asymptote: tuple[float, float]
    reverse: str
    convex: bool = True
    gap_value: Fn | None = None
    gap_slope: Fn | None = None
    terms: tuple[Term, ...] | None = None

    def f(self, log_r: Tensor) -> Tensor:
        """f(r), same shape as ``log_r``, nats.  Differentiable: autograd returns r f'(r)."""
        return with_slope(checked("log_r", log_r), self.value, self.slope)

    def r_df(self, log_r: Tensor) -> Tensor:
        """r f'(r), same shape as ``log_r``: the slope of f along log r."""
        return self.slope(checked("log_r", log_r))

    def gap(self, log_r: Tensor) -> Tensor:
        """f(r) − f'(1)(r − 1), the height of f above its tangent at r = 1.

        Same shape as ``log_r``, nats, accurate near r = 1; never negative for a convex f.
        """
        log_r = checked("log_r", log_r)
        if self.gap_value is None:
            return with_slope(log_r, self.value, self.slope)
        return with_slope(log_r, self.gap_value, self.gap_slope)

    def reversed(self) -> Divergence:
        """The divergence with q and p exchanged, f*(r) = r f(1/r) + c (r − 1).

        Examples
        --------
        >>> DIVERGENCES["kl_qp"].reversed().name
        'kl_pq'
        """
        return get(self.reverse)

    def __repr__(self) -> str:
        return f"Divergence({self.name!r}: f(r) = {self.formula})"


class _Checked(torch.autograd.Function):
    """The identity, refusing what ``as_log`` refuses.  Under torch.vmap it sees the whole batch,
    where a plain check could read no value."""

    @staticmethod
    def forward(log_r: Tensor, argument: str) -> Tensor:
        return as_log(argument, log_r).view_as(log_r)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad, None

    @staticmethod
    def vmap(info, in_dims, log_r: Tensor, argument: str):
        return _Checked.apply(log_r, argument), in_dims[0]


def checked(argument: str, value) -> Tensor:
    """:func:`~kllab.checks.as_log`, usable inside torch.func transforms."""
    return _Checked.apply(value, argument) if isinstance(value, Tensor) else as_log(argument, value)


class _WithSlope(torch.autograd.Function):
    """A function of l whose derivative is given: finite, and exact, where autograd's is not."""

    generate_vmap_rule = True

    @staticmethod
    def forward(log_r: Tensor, value: Fn, slope: Fn) -> Tensor:
        return value(log_r)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        log_r, _, ctx.slope = inputs
        ctx.save_for_backward(log_r)

    @staticmethod
    def backward(ctx, grad: Tensor):
        (log_r,) = ctx.saved_tensors
        slope = ctx.slope(log_r)
        # A masked-out position has gradient 0, be its slope infinite.
        return grad * slope.masked_fill((grad == 0) & slope.isinf(), 0.0), None, None


def with_slope(log_r: Tensor, value: Fn, slope: Fn) -> Tensor:
    """Evaluate ``value(log_r)`` so that autograd differentiates it as ``slope(log_r)``."""
    return _WithSlope.apply(log_r, value, slope)


class Registry(Mapping[str, Divergence]):
    """Divergences by name: refuses a second one of the same name, lists what it has on a miss.

    Examples
    --------
    >>> "kl_qp" in DIVERGENCES
    True
    >>> DIVERGENCES["kl"]
    Traceback (most recent call last):
        ...
    KeyError: "no divergence 'kl'; there are kl_qp, kl_pq, chi2_pq, chi2_qp, hellinger2, js, \
jeffreys, tv, and alpha(a)"
    """

    def __init__(self, *divergences: Divergence):
        self._by_name: dict[str, Divergence] = {}
        for divergence in divergences:
            self.register(divergence)

    def register(self, divergence: Divergence) -> Divergence:
        """Add a divergence and return it; raises ``InputError`` where its name is taken."""
        if divergence.name in self._by_name:
            raise InputError("name", "a new name", f"{divergence.name!r}, which is taken")
        self._by_name[divergence.name] = divergence
        return divergence

    def __getitem__(self, name: str) -> Divergence:
        if name in self._by_name:
            return self._by_name[name]
        if member := re.fullmatch(r"alpha\(([^()]+)\)", name):
            try:
                a = float(member[1])
            except ValueError:
                a = None
            if a is not None:
                return alpha(a)
        known = ", ".join(self._by_name)
        raise KeyError(f"no divergence {name!r}; there are {known}, and alpha(a)")

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


# --- pieces that the generators share -------------------------------------------------------

_TAYLOR = tuple(1 / math.factorial(n) for n in range(16, 1, -1))
_LOG2 = math.log(2)


def expm1_minus(log_r: Tensor) -> Tensor:
    """e^l − 1 − l = (r − 1) − log r, to full relative precision for every l, +inf at ±inf."""
    series = torch.zeros_like(log_r)
    for coefficient in _TAYLOR:
        series = series * log_r + coefficient
    # Bounded above so that the limit at +inf is inf − finite, not inf − inf.
    direct = torch.expm1(log_r) - log_r.clamp(max=1e4)
    return torch.where(log_r.abs() < 0.5, log_r * log_r * series, direct)


def _r_log_r(log_r: Tensor) -> Tensor:
    """r log r, with 0 log 0 = 0."""
    return torch.exp(log_r) * log_r.masked_fill(log_r == -math.inf, 0.0)


def _kl_pq_gap(log_r: Tensor) -> Tensor:
    near = torch.exp(log_r) * expm1_minus(-log_r)
    return torch.where(log_r > -1, near, _r_log_r(log_r) - torch.expm1(log_r))


def _js(log_r: Tensor) -> Tensor:
    half = log_r.clamp(-1, 1) / 2
    log_cosh = torch.log1p(2 * torch.sinh(half / 2) ** 2)
    near = torch.exp(half) * (half * torch.sinh(half) - torch.cosh(half) * log_cosh)
    r_part = torch.where(log_r == -math.inf, 0.0, torch.exp(log_r) * _log_2r_over_1_plus_r(log_r))
    # softplus(l) grows like l while r_part grows like e^l: bound it so that inf − inf cannot be.
    log_half_sum = torch.nn.functional.softplus(log_r, threshold=1e9).clamp(max=1e4) - _LOG2
    return torch.where(log_r.abs() < 1, near, (r_part - log_half_sum) / 2)


def _js_slope(log_r: Tensor) -> Tensor:
    scaled = torch.exp(log_r) * _log_2r_over_1_plus_r(log_r) / 2
    return torch.where(log_r == -math.inf, 0.0, scaled)


def _log_2r_over_1_plus_r(log_r: Tensor) -> Tensor:
    """log(2r / (1 + r)) = log 2 − log(1 + e^{−l}), accurate near l = 0 through log1p."""
    near = -torch.log1p(torch.expm1(-log_r.clamp(-1, 1)) / 2)
    far = _LOG2 + torch.nn.functional.logsigmoid(log_r)
    return torch.where(log_r.abs() < 1, near, far)


def _jeffreys(log_r: Tensor) -> Tensor:
    return torch.expm1(log_r) * log_r


# --- the registry ---------------------------------------------------------------------------

DIVERGENCES = Registry(
    Divergence(
        name="kl_qp",
        formula="-log r",
        value=lambda l: -l,
        slope=lambda l: torch.full_like(l, -1.0),
        gap_value=expm1_minus,
        gap_slope=torch.expm1,
        df1=-1.0,
        d2f1=1.0,
        at_zero=math.inf,
        asymptote=(0.0, -math.inf),
        reverse="kl_pq",
        terms=((-1.0, 1, 0.0),),
    ),
    Divergence(
        name="kl_pq",
        formula="r log r",
        value=_r_log_r,
        slope=lambda l: torch.exp(l) * (1 + l.masked_fill(l == -math.inf, 0.0)),
        gap_value=_kl_pq_gap,
        gap_slope=_r_log_r,
        df1=1.0,
        d2f1=1.0,
        at_zero=0.0,
        asymptote=(math.inf, 0.0),
        reverse="kl_qp",
        terms=((1.0, 1, 1.0),),
    ),
    Divergence(
        name="chi2_pq",
        formula="(r - 1)^2",
        value=lambda l: torch.expm1(l) ** 2,
        slope=lambda l: 2 * torch.exp(l) * torch.expm1(l),
        df1=0.0,
        d2f1=2.0,
        at_zero=1.0,
        asymptote=(math.inf, 0.0),
        reverse="chi2_qp",
        terms=((1.0, 0, 2.0), (-2.0, 0, 1.0), (1.0, 0, 0.0)),
    ),
    Divergence(
        name="chi2_qp",
        formula="1/r - 1",
        value=lambda l: torch.expm1(-l),
        slope=lambda l: -torch.exp(-l),
        gap_value=lambda l: 4 * torch.sinh(l / 2) ** 2,
        gap_slope=lambda l: 2 * torch.sinh(l),
        df1=-1.0,
        d2f1=2.0,
        at_zero=math.inf,
        asymptote=(0.0, -1.0),
        reverse="chi2_pq",
        terms=((1.0, 0, -1.0), (-1.0, 0, 0.0)),
    ),
    Divergence(
        name="hellinger2",
        formula="(sqrt(r) - 1)^2",
        value=lambda l: torch.expm1(l / 2) ** 2,
        slope=lambda l: torch.exp(l / 2) * torch.expm1(l / 2),
        df1=0.0,
        d2f1=0.5,
        at_zero=1.0,
        asymptote=(1.0, -math.inf),
        reverse="hellinger2",
        terms=((1.0, 0, 1.0), (-2.0, 0, 0.5), (1.0, 0, 0.0)),
    ),
    Divergence(
        name="js",
        formula="1/2 [r log r - (r + 1) log((r + 1)/2)]",
        value=_js,
        slope=_js_slope,
        df1=0.0,
        d2f1=0.25,
        at_zero=_LOG2 / 2,
        asymptote=(_LOG2 / 2, -math.inf),
        reverse="js",
    ),
    Divergence(
        name="jeffreys",
        formula="(r - 1) log r",
        value=_jeffreys,
        slope=lambda l: _r_log_r(l) + torch.expm1(l),
        df1=0.0,
        d2f1=2.0,
        at_zero=math.inf,
        asymptote=(math.inf, -math.inf),
        reverse="jeffreys",
        terms=((1.0, 1, 1.0), (-1.0, 1, 0.0)),
    ),
    Divergence(
        name="tv",
        formula="1/2 |r - 1|",
        value=lambda l: torch.expm1(l).abs() / 2,
        slope=lambda l: torch.exp(l) * torch.sign(l) / 2,
        df1=0.0,
        d2f1=None,
        at_zero=0.5,
        asymptote=(0.5, -0.5),
        reverse="tv",
    ),
)
"""Every divergence of the book by name."""


def alpha(a: float) -> Divergence:
    """The alpha family, f(r) = (r^a − 1 − a(r − 1)) / (a(a − 1)), so that f''(1) = 1.

    a → 0 is ``kl_qp`` and a → 1 is ``kl_pq``; alpha(2) is half of ``chi2_pq``, alpha(−1) half of
    ``chi2_qp``, alpha(½) twice ``hellinger2``.  Raises ``InputError`` for |a| > 1e100 or NaN.

    Examples
    --------
    >>> alpha(0).name, alpha(1).name
    ('kl_qp', 'kl_pq')
    >>> alpha(2).f(torch.log(torch.tensor(3.0, dtype=torch.float64)))
    tensor(2.0000, dtype=torch.float64)
    """
    a = as_number("a", a, above=-1e100, at_most=1e100)
    if a == 1 or 1 - a == 1:  # so close to 0 that the reverse is ``kl_pq``
        return DIVERGENCES["kl_pq" if a == 1 else "kl_qp"]
    scale = 1 / (a * (a - 1))

    def value(l: Tensor) -> Tensor:
        # Near r = 1 by its series; for a near 1 as r f*(1/r), where nothing cancels.
        if a < 0.5:
            near = expm1_minus(a * l) - a * expm1_minus(l)
        else:
            near = torch.exp(l) * (expm1_minus((a - 1) * l) - (1 - a) * expm1_minus(-l))
        far = torch.expm1(a * l) - a * torch.expm1(l)
        if abs(a - 1) < 0.5:
            far = _power_minus_r(a, l) - (a - 1) * torch.expm1(l)
        # f → ∞ on the right for every a; where a e^l overflows say so, not inf − inf.
        overflow = (max(abs(a), 1.0) * torch.exp(l)).isinf()
        return torch.where(overflow, math.inf, scale * torch.where(l.abs() < 0.5, near, far))

    def slope(l: Tensor) -> Tensor:
        near = _power_minus_r(a, l)
        far = near if abs(a - 1) < 0.5 else torch.exp(a * l) - torch.exp(l)
        both = torch.where(l.abs() < 1, near, far) / (a - 1)
        return torch.where(torch.exp(l).isinf(), math.inf, both)

    return Divergence(
        name=f"alpha({a:.17g})",
        formula=f"(r^{a:g} - 1 - {a:g}(r - 1)) / {a * (a - 1):g}",
        value=value,
        slope=slope,
        df1=0.0,
        d2f1=1.0,
        at_zero=1 / a if a > 0 else math.inf,
        asymptote=(math.inf, 0.0) if a > 1 else (1 / (1 - a), 1 / a if a < 0 else -math.inf),
        reverse=f"alpha({1 - a:.17g})",
        terms=((scale, 0, float(a)), (-a * scale, 0, 1.0), ((a - 1) * scale, 0, 0.0)),
    )


def _power_minus_r(a: float, log_r: Tensor) -> Tensor:
    """r^a − r, accurate for a near 1; far to the left as it stands, which is never inf − inf."""
    near = torch.exp(log_r) * torch.expm1((a - 1) * log_r)
    return torch.where(log_r > -80, near, torch.exp(a * log_r) - torch.exp(log_r))


HALF_SQUARED_LOG = Divergence(
    name="half_squared_log",
    formula="(log r)^2 / 2",
    value=lambda l: l * l / 2,
    slope=lambda l: l,
    df1=0.0,
    d2f1=1.0,
    at_zero=math.inf,
    asymptote=(0.0, math.inf),
    reverse="half_r_squared_log",
    convex=False,
    terms=((0.5, 2, 0.0),),
)
"""The generator of k2.  It is not convex beyond r = e, so E_q[f(r)] is no f-divergence, and it
stays out of the registry."""

_REVERSE_OF_K2 = Divergence(
    name="half_r_squared_log",
    formula="r (log r)^2 / 2",
    value=lambda l: _r_log_r(l) * l.masked_fill(l == -math.inf, 0.0) / 2,
    slope=lambda l: _r_log_r(l) * (1 + l.masked_fill(l == -math.inf, 0.0) / 2),
    df1=0.0,
    d2f1=1.0,
    at_zero=0.0,
    asymptote=(math.inf, 0.0),
    reverse="half_squared_log",
    convex=False,
    terms=((0.5, 2, 1.0),),
)
_UNREGISTERED = {d.name: d for d in (HALF_SQUARED_LOG, _REVERSE_OF_K2)}


def get(divergence: str | Divergence) -> Divergence:
    """A divergence from its name, or itself.  Knows ``alpha(a)`` and k2's generator too.

    Examples
    --------
    >>> get("alpha(0.5)").d2f1
    1.0
    """
    if isinstance(divergence, Divergence):
        return divergence
    if not isinstance(divergence, str):
        raise InputError("divergence", "a name or a Divergence", type(divergence).__name__)
    return _UNREGISTERED.get(divergence) or DIVERGENCES[divergence]
