r"""Score weights of the divergences, and which combination of them a function follows.

The gradient of D_f is E_q[(f − r f') ∇log q], so f − r f' is the weight that D_f puts on the score.
A constant adds nothing, since E_q[∇log q] = 0; here every weight is shifted to be 0 at r = 1.
Everything is a function of l = log r, in nats, float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kllab.divergences import Divergence, Fn, expm1_minus, get

# --- weights ----------------------------------------------------------------------------------

# Most divergences are sums of scaled alpha divergences, whose weight is the power (1 − rᵃ)/a.
_POWERS = {
    "kl_qp": ((1.0, 0.0),),
    "kl_pq": ((1.0, 1.0),),
    "chi2_pq": ((2.0, 2.0),),
    "chi2_qp": ((2.0, -1.0),),
    "hellinger2": ((0.5, 0.5),),
    "jeffreys": ((1.0, 0.0), (1.0, 1.0)),
}
_LOG2 = math.log(2)
_TINY = 1e-18  # below this, rᵃ is 1 + a log r to every digit


def slope_and_integral(divergence: str | Divergence) -> tuple[Fn, Fn]:
    """(s, S) with s(l) = r f' − f − f'(1), minus the weight, and S(l) = ∫₀ˡ s.

    Both are 0 at l = 0. S has a closed form for every registered divergence but ``js``; there, and
    for a generator that is not registered, it is a Gauss-Legendre sum, good to 1e-12 relative up
    to |l| = 20.
    """
    d = get(divergence)
    powers = _POWERS.get(d.name)
    if d.name.startswith("alpha("):
        powers = ((1.0, float(d.name[6:-1])),)
    if powers is not None:
        return (
            lambda l: sum(scale * _power(a, l) for scale, a in powers),
            lambda l: sum(scale * _power_integral(a, l) for scale, a in powers),
        )
    if d.name == "tv":
        return lambda l: torch.sign(l) / 2, lambda l: torch.abs(l) / 2
    slope = _js_slope if d.name == "js" else _slope_of(d)
    return slope, lambda l: _integral_from_zero(slope, l)


def _power(a: float, l: Tensor) -> Tensor:
    return l if abs(a) < _TINY else torch.expm1(a * l) / a


def _power_integral(a: float, l: Tensor) -> Tensor:
    return l * l / 2 if abs(a) < _TINY else expm1_minus(a * l) / a / a


def _js_slope(l: Tensor) -> Tensor:
    """½ log((1 + r)/2), accurate near r = 1 and finite wherever log r is."""
    near = torch.log1p(torch.expm1(l.clamp(max=1)) / 2)
    return torch.where(l < 1, near, torch.nn.functional.softplus(l) - _LOG2) / 2


def _slope_of(d: Divergence) -> Fn:
    return lambda l: (d.gap_slope or d.slope)(l) - d.gap(l)


_NODES, _WEIGHTS = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(64))


def _integral_from_zero(fn: Fn, l: Tensor) -> Tensor:
    """∫₀ˡ fn, element-wise; at l = ±inf the infinity that fn's sign there points to."""
    u, w = ((_NODES + 1) / 2).to(l), (_WEIGHTS / 2).to(l)
    bounded = l.clamp(-700, 700)
    inside = bounded * (fn(bounded.unsqueeze(-1) * u) * w).sum(-1)
    return torch.where(l.isinf(), torch.sign(l) * torch.sign(fn(bounded)) * math.inf, inside)


# --- an antiderivative of any weight ----------------------------------------------------------

_PANEL = 1 / 16
_PANEL_NODES, _PANEL_WEIGHTS = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(12))


def generator_of(weight: Fn, at_one: float, breaks: Sequence[float] = ()) -> Fn:
    """The f with f − r f' = weight − at_one, f(1) = 0, as a function of finite l.

    f(r) = −r ∫₁ʳ (weight − at_one)/ρ² dρ = −eˡ ∫₀ˡ e^{−t} (weight(t) − at_one) dt, by 12-point
    Gauss-Legendre on panels of 1/16 nat that end at the points asked for and at ``breaks``, where
    the weight has a kink.  With ``at_one`` the weight at r = 1, f'(1) = 0.
    """

    def f(l: Tensor) -> Tensor:
        out = torch.zeros_like(l)
        for sign in (1.0, -1.0):
            here = sign * l > 0
            if here.any():
                out[here] = one_side(sign, l[here].abs())
        return out

    def one_side(sign: float, distance: Tensor) -> Tensor:
        most = float(distance.max())
        ends = [torch.arange(0, most, _PANEL).to(distance), distance]
        ends.append(torch.tensor([sign * b for b in breaks if 0 < sign * b < most]).to(distance))
        knots = torch.cat(ends).unique()
        widths = knots.diff()
        t = knots[:-1, None] + widths[:, None] * ((_PANEL_NODES + 1) / 2).to(distance)
        t = sign * t
        values = torch.exp(-t) * (weight(t.reshape(-1)).reshape(t.shape) - at_one)
        panels = widths * (values * (_PANEL_WEIGHTS / 2).to(distance)).sum(-1)
        total = torch.cat([panels.new_zeros(1), panels.cumsum(0)])
        return -sign * torch.exp(sign * distance) * total[torch.searchsorted(knots, distance)]

    return f


# --- recognising a combination ----------------------------------------------------------------

COMBINED = ("kl_qp", "kl_pq", "chi2_qp", "chi2_pq", "tv", "hellinger2")
"""What sums of two and three are made of; a single name may be any that is registered."""

TOLERANCE = {torch.float64: 1e-8, torch.float32: 64 * torch.finfo(torch.float32).eps}
"""Largest relative residual of a fit, by the precision that the function really works in."""
_ROUNDING = {torch.float64: 1e-12, torch.float32: torch.finfo(torch.float32).eps}


@dataclass(frozen=True)
class Fit:
    """``verdict`` "fits", "zero" or "unknown"; ``terms`` {name: coefficient}, empty for the last
    two; ``free`` {name: coefficient} of what was allowed besides; ``residual`` relative to what
    is left of the target without the free part."""

    verdict: str
    terms: dict[str, float]
    free: dict[str, float]
    residual: float


def combination(
    target: Tensor,
    columns: Mapping[str, Tensor],
    free: Mapping[str, Tensor],
    *,
    precision: torch.dtype = torch.float64,
) -> Fit:
    """Write ``target`` (N,) as the fewest of ``columns``, at most three, plus any of ``free``.

    One column may be any; two or three come from ``COMBINED``.  The residual is a root mean
    square over the N points, relative to the target less its free part.  "zero": the free part is
    all there is.
    """
    y = target.numpy()
    basis = np.linalg.qr(np.stack([c.numpy() for c in free.values()], 1))[0]
    rest = _without(basis, y)
    size = float(np.linalg.norm(rest))
    if size <= _ROUNDING[precision] * float(np.linalg.norm(y)):
        return Fit("zero", {}, _free_part(y, free), 0.0)

    names, projected = [], []
    for name, column in columns.items():
        part = _without(basis, column.numpy())
        norm = np.linalg.norm(part)
        if norm > 1e-9 * np.linalg.norm(column.numpy()):  # else it is free already
            names.append(name)
            projected.append(part / norm)
    matrix = np.stack(projected, 1)
    # All fits happen in the few coordinates that the columns span.
    span = np.linalg.qr(matrix)[0]
    outside = float(np.linalg.norm(_without(span, rest))) / size
    matrix, rest = span.T @ matrix, span.T @ rest / size

    tolerance = TOLERANCE[precision]
    best = [_best(matrix, rest, outside, names, count) for count in (1, 2, 3)]
    chosen = next((b for b in best if b.residual <= tolerance), None)
    if chosen is None:
        return Fit("unknown", {}, _free_part(y, free), min(b.residual for b in best))
    # A sum that leaves ten times less is the truth, unless it does so with invisible terms.
    for other in best:
        closer = max(other.residual, _ROUNDING[precision]) < chosen.residual / 10
        if closer and np.abs(other.shares).min() > tolerance:
            chosen = other

    coefficients = np.linalg.lstsq(
        np.stack(
            [columns[n].numpy() for n in chosen.names] + [c.numpy() for c in free.values()], 1
        ),
        y,
        rcond=None,
    )[0]
    exact = precision == torch.float64 or chosen.residual < _ROUNDING[torch.float64]
    rounded = [float(f"{c:.{12 if exact else 6}g}") for c in coefficients]
    count = len(chosen.names)
    return Fit(
        "fits",
        dict(zip(chosen.names, rounded[:count], strict=True)),
        dict(zip(free, rounded[count:], strict=True)),
        chosen.residual,
    )


@dataclass(frozen=True)
class _Candidate:
    names: tuple[str, ...]
    shares: np.ndarray  # size of each term, relative to the target
    residual: float


def _best(matrix, rest, outside: float, names: list[str], count: int) -> _Candidate:
    """The closest fit by ``count`` columns."""
    allowed = [i for i, name in enumerate(names) if count == 1 or name in COMBINED]
    found = _Candidate((), np.zeros(1), math.inf)
    for subset in itertools.combinations(allowed, count):
        part = matrix[:, subset]
        shares = np.linalg.lstsq(part, rest, rcond=None)[0]
        residual = math.hypot(float(np.linalg.norm(rest - part @ shares)), outside)
        if residual < found.residual:
            found = _Candidate(tuple(names[i] for i in subset), shares, residual)
    return found


def _without(orthonormal: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """The part of ``vector`` orthogonal to the columns."""
    return vector - orthonormal @ (orthonormal.T @ vector)


def _free_part(y: np.ndarray, free: Mapping[str, Tensor]) -> dict[str, float]:
    solution = np.linalg.lstsq(np.stack([c.numpy() for c in free.values()], 1), y, rcond=None)[0]
    return dict(zip(free, map(float, solution), strict=True))


# --- the interval that is looked at -----------------------------------------------------------

REACH = 3.0
NARROWEST = 2.0
_STEP = 2.0**-12


def grid(step: float = _STEP) -> Tensor:
    """(N,) ascending multiples of ``step`` to one beyond ±3, without 0: exact in float32 for a
    power of 2, also halved.

    The one beyond tells a clamp just inside ±3 from none.
    """
    side = torch.arange(1, round(REACH / step) + 2, dtype=torch.float64) * step
    return torch.cat([-side.flip(0), side])


def unclamped(l: Tensor, parts: Mapping[str, Tensor]) -> tuple[Tensor, float, float]:
    """Where, around l = 0, nothing is clamped: a mask over the grid ``l``, and the two ends.

    ``parts`` are the ones that matter, of "value" and "slope". A clamp shows as a slope that is
    exactly 0, or a value that does not change by one bit, from somewhere on to the end of the
    grid.  A flat stretch that reaches 0 is the function itself, as in |l| or max(l, 0), and two
    flat values side by side are a step.  What is not finite is left out too.  Ends are good to
    the grid's spacing.
    """
    spacing = float(l[1] - l[0])
    keep = l.abs() <= REACH
    low, high = -REACH, REACH
    for kind, part in parts.items():
        flat = torch.zeros_like(keep)
        for sign in (1, -1):
            end = 0.0 if kind == "slope" else part[-1 if sign > 0 else 0]
            flat |= _outer_run(part == end, sign * l)
        if kind == "value" and len(part[~flat].unique()) < 3:
            flat[:] = False
        lost = ~torch.isfinite(part)
        outside = flat | _outer_run(lost, l) | _outer_run(lost, -l)
        inside = l[~outside]
        if len(inside) and outside.any():
            # At a clamp's bound the value is flat already, the slope is not yet 0.
            more = spacing if kind == "value" else 0.0
            low, high = max(low, float(inside[0]) - more), min(high, float(inside[-1]) + more)
        keep &= ~outside
    return keep, low, high


def _outer_run(flag: Tensor, distance: Tensor) -> Tensor:
    """The stretch of True at the end where ``distance`` is largest; none if it reaches 0."""
    if distance[-1] < 0:
        return _outer_run(flag.flip(0), distance.flip(0)).flip(0)
    run = flag.flip(0).cumprod(0).flip(0).bool() & (distance > 0)
    reaches_zero = bool(run[distance > 0].all())
    return torch.zeros_like(run) if reaches_zero else run
