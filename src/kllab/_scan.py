"""Along the log-ratio, far out and near zero: where a function is cut, overflows, loses digits.

``fn`` here takes log r (N,) and a dtype and returns (values, derivatives), both (N,) float64, from
log-probabilities of that dtype.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kllab._probe import Refused

At = Callable[..., tuple[Tensor, Tensor]]

FARTHEST = 100.0
"""Nats to either side that are looked at."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NEAR = (2.0**-10, 2.0**-13, 2.0**-17)  # about 1e-3, 1e-4, 1e-5, exact in float32
_LOST = 0.1


def distances() -> Tensor:
    """0 to ``FARTHEST`` nats, ascending, closer together near 0."""
    near = torch.tensor([0, 2**-6, 1 / 8, 1 / 2, 1, 2, 3], dtype=torch.float64)
    return torch.cat([near, torch.arange(4, FARTHEST + 1, 6, dtype=torch.float64)])


def clamps(fn: At, *, noise: float) -> dict[str, tuple[float, float]]:
    """(low, high) in log r of what is cut: "value", constant from there on, and "gradient",
    exactly 0 from there on; ∓inf where nothing is.

    A cut has a corner; what levels off smoothly, as r does for r → 0, is none.  A flat stretch
    that reaches log r = 0 is the function itself.  ``noise``: the rounding of a derivative,
    relative to the value.
    """
    found = {"value": [-math.inf, math.inf], "gradient": [-math.inf, math.inf]}
    x = distances()
    for side, sign in enumerate((-1, 1)):
        measured = fn(sign * x)
        for which, (kind, part) in enumerate(zip(found, measured, strict=True)):

            def at(distance: float, sign=sign, which=which) -> float:
                return float(fn(torch.tensor([sign * distance], dtype=torch.float64))[which])

            finite = torch.isfinite(part).nonzero()
            last = int(finite[-1]) + 1 if len(finite) else 0
            if last < 3:
                continue
            end = float(part[last - 1]) if kind == "value" else 0.0
            moving = (part[:last] != end).nonzero()
            if not len(moving) or int(moving[-1]) > last - 3:
                continue
            inside = int(moving[-1])
            edge = bisect(lambda d, at=at, end=end: at(d) == end, x[inside], x[inside + 1])
            step = abs(at(max(edge - 2.0**-10, 0.0)) - end)
            small = 1e-7 * (abs(end) if kind == "value" else float(part[:last].abs().max()))
            if step > max(small, noise * float(measured[0][inside].abs())):
                found[kind][side] = sign * edge
    return {kind: (low, high) for kind, (low, high) in found.items()}


def first(holds: Callable[[float], bool], distances: Sequence[float]) -> float:
    """Where ``holds`` turns true, between two of the ascending ``distances``; inf if nowhere."""
    for before, here in itertools.pairwise(distances):
        if holds(here):
            return bisect(holds, before, here, rounds=24)
    return math.inf


def bisect(holds: Callable[[float], bool], without, having, *, rounds: int = 44) -> float:
    """The smallest distance at which ``holds`` is true, between one where it is not and one where
    it is."""
    low, high = float(without), float(having)
    for _ in range(rounds):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def not_finite(fn: At, *, slope: bool) -> dict[str, dict[str, float]]:
    """{"overflow" | "nan_gradient": {dtype: log r}}: the log-ratio closest to 0 where the value,
    with ``slope`` also its derivative, is not finite, and where only the derivative is NaN.

    A dtype that the function refuses is left out.
    """
    found: dict[str, dict[str, float]] = {"overflow": {}, "nan_gradient": {}}
    for name, dtype in DTYPES.items():
        for sign in (1, -1):
            with contextlib.suppress(Refused):
                for code, edge in _first_faults(fn, sign, dtype, slope).items():
                    found[code][name] = min(sign * edge, found[code].get(name, math.inf), key=abs)
    return found


def _first_faults(fn: At, sign: int, dtype: torch.dtype, slope: bool) -> dict[str, float]:
    """{code: distance} on one side, to 2⁻¹²."""

    def faults(distance: Tensor) -> dict[str, Tensor]:
        v, c = fn(sign * distance, dtype)
        known = torch.isfinite(v)
        nan = known & torch.isnan(c) & slope
        return {"overflow": ~known | (torch.isinf(c) & slope), "nan_gradient": nan}

    def at(distance: float, code: str) -> bool:
        return bool(faults(torch.tensor([distance], dtype=torch.float64))[code])

    found = {}
    for code, flags in faults(distances()).items():
        where = flags.nonzero()
        if len(where):
            first = int(where[0])
            edges = distances()[max(first - 1, 0)], distances()[first]
            found[code] = bisect(lambda d, code=code: at(d, code), *edges, rounds=14)
    return found


def cancellation(fn: At, truth: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """{log r: relative error of the value in float32}, where more than a tenth is lost."""
    l = torch.tensor([sign * x for x in _NEAR for sign in (1, -1)], dtype=torch.float64)
    exact, (rounded, _) = truth(l), fn(l, torch.float32)
    error = torch.where(exact == 0, 0.0, (rounded - exact).abs() / exact.abs())
    return {f"{float(a):.2g}": float(e) for a, e in zip(l, error, strict=True) if e > _LOST}
