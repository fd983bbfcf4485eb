"""One function seen as a function of log r: which divergences its value and gradient are.

Convention: q is sampled, p is the other one, log r = log p − log q, nats.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kllab import _fit, _scan
from kllab._probe import Probe, Refused
from kllab.divergences import DIVERGENCES, Divergence, get

LAWS = ("logprob", "ref_logprob", "old_logprob")


@dataclass(frozen=True)
class Part:
    """The value, or the gradient, of an audited function.

    ``verdict``: "fits" (``terms`` says what: {divergence: coefficient}), "zero", "unknown" or
    "not_asked".  ``region``: the interval of log r that was fitted.  ``residual``: relative, root
    mean square.  ``free``: the parts that change no mean ("r - 1", "r" or "constant"), and the
    "constant" of a value, which does.  ``clamps``: (low, high), where it is cut, ∓inf if nowhere.
    ``q``, ``p``: the roles that the names in ``terms`` speak of.  ``why``: why it is unknown.
    """

    verdict: str
    terms: dict[str, float] = field(default_factory=dict)
    region: tuple[float, float] = (math.nan, math.nan)
    residual: float = math.nan
    free: dict[str, float] = field(default_factory=dict)
    clamps: tuple[float, float] = (-math.inf, math.inf)
    q: str = ""
    p: str = ""
    why: str = ""


@dataclass(frozen=True)
class Frame:
    """Roles of q and p; ``weighted``: samples are from ``old_logprob``, and w makes them q's."""

    q: str
    p: str
    weighted: bool = False

    def at(self, log_q: Tensor, log_p: Tensor, shift: float = 0.0) -> dict[str, Tensor]:
        """All three log-probabilities; the third is ``shift`` below logprob, or the middle."""
        given = {self.q: log_q, self.p: log_p}
        third = next(role for role in LAWS if role not in given)
        base = given["logprob"] if third == "old_logprob" else (log_q + log_p) / 2
        return given | {third: base - shift}


def frames(samples: str, roles: Sequence[str]) -> list[Frame]:
    """What a function with these roles may be a function of, the simplest first."""
    if samples == "logprob":
        return [Frame("logprob", "ref_logprob" if "ref_logprob" in roles else "old_logprob")]
    found = [Frame(samples, "logprob")]
    if samples == "old_logprob" and "ref_logprob" in roles:
        found += [Frame("old_logprob", "ref_logprob"), Frame("logprob", "ref_logprob", True)]
    return found


# --- what a divergence looks like ---------------------------------------------------------------


def column(d: str | Divergence, kind: str, frame: Frame, l: Tensor) -> Tensor:
    """D_f's value, or the weight that its gradient puts on the score of ``logprob``, at log r."""
    if kind == "value":
        return get(d).gap(l)
    if frame.q == "logprob":
        return -_fit.slope_and_integral(d)[0](l)
    return get(d).r_df(l)


def free_columns(kind: str, frame: Frame, l: Tensor) -> dict[str, Tensor]:
    """What may be added: it changes no mean, but for the constant of a value."""
    one = torch.ones_like(l)
    if kind == "value":
        return {"r - 1": torch.expm1(l), "constant": one}
    return {"constant": one} if frame.q == "logprob" else {"r": torch.exp(l)}


# --- looking ------------------------------------------------------------------------------------

_ANCHORS = (-4.0, -7.0)  # the mean of both log-probabilities
_SHIFTS = (0.375, -0.5)  # exact in float32, as all points are
_SOME = torch.tensor([-2, -1.25, -0.75, -0.25, 0.25, 0.5, 1, 1.75, 2.25], dtype=torch.float64)
_OFF_CORNERS = _SOME + 2.0**-6  # where clamps are not put
_POINTS = 4096
_WEIGHED = torch.tensor([-1, -0.5, 0.5, 1], dtype=torch.float64)
_TOP = -2.0  # nothing above 0
_LOG_WEIGHTS = [x / 8 for x in range(33)] + [x / 2 for x in range(9, 33)]  # exact in float32
NOWHERE = (-math.inf, math.inf)
ON_POLICY = "where old_logprob is logprob; it changes with old_logprob"
NO_DIFFERENCE = "the difference of the two log-probabilities"
_COARSE = 2.0**-4  # spacing of the grid where each token costs a call


@dataclass(frozen=True)
class Points:
    """Where a part was fitted, and what it was there; both (N,)."""

    l: Tensor
    y: Tensor
    precision: torch.dtype


class Look:
    """A probed function in one usage."""

    def __init__(self, probe: Probe, usage: str, candidates: list[Frame]):
        self.probe, self.usage, self.candidates = probe, usage, candidates
        self.found: dict[str, Frame] = {}
        self.floor = math.inf  # log r closest to 0 at which a log-probability is cut
        self.points: dict[str, Points] = {}
        self.precisions: dict[str, torch.dtype] = {}
        self._grids: dict[Frame, tuple[Tensor, Tensor, Tensor]] = {}
        self._clamps: dict[Frame, dict[str, tuple[float, float]]] = {}

    def measure(self, frame: Frame, log_q: Tensor, log_p: Tensor, *, shift=0.0, dtype=None):
        """(value, derivative by logprob), less the weight: (N,) float64 each."""
        at = frame.at(log_q, log_p, shift)
        if dtype is not None:
            at = {role: t.to(dtype) for role, t in at.items()}
        v, c = self.probe.tokens(at)
        back = math.exp(-shift) if frame.weighted else 1.0
        return v * back, c * back

    def near(self, frame: Frame, l: Tensor, *, anchor: float = _ANCHORS[0], shift: float = 0.0):
        """The same at log r = l, between two log-probabilities around ``anchor``."""
        return self.measure(frame, anchor - l / 2, anchor + l / 2, shift=shift)

    def far(self, l: Tensor, dtype: torch.dtype = torch.float64, *, top: float = -1.0):
        """The same, the larger log-probability being ``top``, so that both stay negative."""
        low, high = (top - part.clamp(min=0) for part in (l, -l))
        frame = next(iter(self.found.values()), self.candidates[-1])
        return self.measure(frame, low, high, dtype=dtype)

    def target(self, kind: str, measured: tuple[Tensor, Tensor]) -> Tensor:
        """The value, or the weight on the score that the usage gives."""
        v, c = measured
        if kind == "value" or self.usage == "reward":
            return v
        return c if self.usage == "loss" else v + c

    def part(self, kind: str) -> Part:
        """Fit the value or the gradient."""
        frame, precision, note = self._frame(kind)
        if frame is None:
            return Part("unknown", why=note)
        self.found[kind], self.precisions[kind] = frame, precision
        l, v, c = self._on_grid(frame)
        # A weight that stays differentiable leaves a clamped value behind, not 0.
        slope = {"value": c} if frame.weighted else {"slope": c}
        parts = {"value": {"value": v}, "loss": slope, "reward": {"value": v}}
        parts["both"] = {"value": v + c} if frame.weighted else {"value": v, "slope": c}
        usage = "value" if kind == "value" else self.usage
        y = self.target(kind, (v, c))
        keep, low, high = _fit.unclamped(l, parts[usage])
        step = float(l[1] - l[0])
        for end in self._ends(usage):
            low = end if abs(end - low) < 2 * step else low
            high = end if abs(end - high) < 2 * step else high
        l, y = l[keep], y[keep]
        if not (len(l) and torch.isfinite(y).all()):
            return Part("unknown", q=frame.q, p=frame.p, why="it is not finite around log r = 0")
        some = torch.linspace(0, len(l) - 1, min(len(l), _POINTS)).long()
        l, y = l[some], y[some]
        self.points[kind] = Points(l, y, precision)
        fit = self._combination(kind, l, y, DIVERGENCES)
        verdict, terms, why = fit.verdict, fit.terms, note
        if high - low < _fit.NARROWEST:
            verdict, terms = "unknown", {}
            why = f"it is cut to {high - low:.2g} nats around log r = 0, too few to tell"
        elif verdict == "unknown":
            why = f"no sum of known divergences comes closer than {fit.residual:.1g} of it"
        clamps = self.clamps().get("value" if usage in ("value", "reward") else "gradient", NOWHERE)
        return Part(
            verdict, terms, (low, high), fit.residual, fit.free, clamps, frame.q, frame.p, why
        )

    def close_to_zero(self, value: Part, l: Tensor) -> Tensor:
        """The value without rounding: in float64, or from the terms where it casts to float32."""
        if self.precisions["value"] == torch.float64 or value.verdict != "fits":
            return self.far(l)[0]
        columns = free_columns("value", self.found["value"], l)
        # What a float32 fit leaves of a part that is not there.
        free = {name: c for name, c in value.free.items() if abs(c) > 1e-4}
        parts = [c * column(d, "value", self.found["value"], l) for d, c in value.terms.items()]
        return sum(parts) + sum(c * columns[name] for name, c in free.items())

    def curve(self) -> dict[str, list[float]]:
        """Value, and the weight on the score, over ±6 nats, for the figure."""
        l = torch.linspace(-6, 6, 49, dtype=torch.float64)
        try:
            measured = self.far(l)
        except Refused:
            return {"log_r": [], "value": [math.nan]}
        curve = {"log_r": l.tolist(), "value": measured[0].tolist()}
        if self.usage != "metric":
            curve["weight"] = self.target("gradient", measured).tolist()
        return curve

    def clamps(self) -> dict[str, tuple[float, float]]:
        """Where value and derivative are cut, far out; nothing where the function refuses."""
        frame = next(iter(self.found.values()), self.candidates[-1])
        if frame not in self._clamps:
            self._clamps[frame] = {}
            noise = 1e-14 if torch.float64 in self.precisions.values() else 1e-5
            with contextlib.suppress(Refused):
                found = _scan.clamps(self.far, noise=noise)
                if set(found.values()) != {NOWHERE}:
                    lower = functools.partial(self.far, top=-3.0)
                    found = self._in_log_r(found, _scan.clamps(lower, noise=noise))
                self._clamps[frame] = found
        return self._clamps[frame]

    def weights(self, kind: str) -> tuple[float, float]:
        """(low, high) in log w between which a weighted part is w times the same function of log r,
        ∓inf where that is so as far as is looked; nothing where the function refuses."""
        frame = self.found.get(kind)
        if frame is None or not frame.weighted:
            return NOWHERE
        unit = self.target(kind, self.near(frame, _WEIGHED, anchor=_TOP))
        slack = _fit.TOLERANCE[self.precisions[kind]] * float(unit.abs().max())

        def leaves(log_w: float) -> bool:
            # Both log-probabilities stay as near to 0 as they can, where none is floored.
            measured = self.near(frame, _WEIGHED, anchor=_TOP + min(log_w, 0.0), shift=log_w)
            return not bool(((self.target(kind, measured) - unit).abs() <= slack).all())

        ends = list(NOWHERE)
        with contextlib.suppress(Refused):
            for side, sign in enumerate((-1, 1)):
                ends[side] = sign * _scan.first(lambda d, sign=sign: leaves(sign * d), _LOG_WEIGHTS)
        return ends[0], ends[1]

    def _in_log_r(self, found: dict, elsewhere: dict) -> dict[str, tuple[float, float]]:
        """Those ends that do not move with the log-probabilities; notes that some do."""
        kept = {}
        for kind, ends in found.items():
            triples = zip(ends, elsewhere[kind], NOWHERE, strict=True)
            kept[kind] = tuple(
                end if math.isclose(end, other, abs_tol=0.5) else nowhere
                for end, other, nowhere in triples
            )
            gone = {abs(end) for end in set(ends) - set(kept[kind])}
            self.floor = min({self.floor} | gone)
        return kept

    def _ends(self, usage: str) -> tuple[float, ...]:
        """The ends that matter to a usage, or to the "value"."""
        wanted = {"value": ("value",), "reward": ("value",), "loss": ("gradient",)}
        found = self.clamps()
        return sum((found.get(k, ()) for k in wanted.get(usage, ("value", "gradient"))), ())

    def _on_grid(self, frame: Frame) -> tuple[Tensor, Tensor, Tensor]:
        """log r, value and derivative around 0; fewer points where each token costs a call."""
        if frame not in self._grids:
            costly = self.probe.kind == "scalar" or self.probe.alone
            l = _fit.grid(_COARSE) if costly else _fit.grid()
            self._grids[frame] = (l, *self.near(frame, l))
        return self._grids[frame]

    def multiple(self, kind: str, d: str) -> float | None:
        """c where the part is c times this one divergence, 0 where it is nothing, else ``None``."""
        at = self.points[kind]
        fit = self._combination(kind, at.l, at.y, [d])
        return {"fits": fit.terms.get(d), "zero": 0.0}.get(fit.verdict)

    def flipped(self) -> dict[str, float]:
        """Terms of the value with log r turned into −log r."""
        if "value" not in self.points:
            return {}
        at = self.points["value"]
        both = at.l.abs() <= min(float(-at.l[0]), float(at.l[-1]))
        if float(at.l[both][-1] - at.l[both][0]) < _fit.NARROWEST / 2:
            return {}
        return self._combination("value", -at.l[both], at.y[both], DIVERGENCES).terms

    def _combination(self, kind: str, l: Tensor, y: Tensor, names) -> _fit.Fit:
        columns = {name: column(name, kind, self.found[kind], l) for name in names}
        free = free_columns(kind, self.found[kind], l)
        return _fit.combination(y, columns, free, precision=self.points[kind].precision)

    def on_policy(self, kind: str) -> dict[str, float] | None:
        """The terms with old_logprob = logprob, where nothing is weighted; else ``None``."""
        frame = Frame("logprob", "ref_logprob")
        here, *others = (self.near(frame, _SOME, shift=shift) for shift in (0.0, *_SHIFTS))
        if any(not torch.equal(self.target(kind, o), self.target(kind, here)) for o in others):
            return None
        return Look(self.probe, self.usage, [frame]).part(kind).terms

    def is_derivative(self) -> bool:
        """Whether autograd's derivative is that of the value, by central differences."""
        frame, step = self.candidates[-1], 2.0**-10
        at = frame.at(_ANCHORS[0] - _OFF_CORNERS / 2, _ANCHORS[0] + _OFF_CORNERS / 2)
        ahead, behind = (
            self.probe.tokens(at | {"logprob": at["logprob"] + by})[0] for by in (step, -step)
        )
        slope, c = (ahead - behind) / (2 * step), self.probe.tokens(at)[1]
        return bool((slope - c).abs().max() <= 1e-3 * torch.stack([slope, c]).abs().max())

    def _frame(self, kind: str) -> tuple[Frame | None, torch.dtype, str]:
        """The frame in which the part is a function of log r alone, and its precision; or why
        there is none."""
        several = len(self.candidates) > 1
        for frame in self.candidates:
            here = self.target(kind, self.near(frame, _SOME))
            precision = self._precision(kind, frame, here)
            if precision is None:
                return None, torch.float16, "it works in half precision"
            # Where neither q nor p is the law that moves, only a weight of 0 says anything.
            if kind == "gradient" and "logprob" not in (frame.q, frame.p) and here.any():
                continue
            slack = _fit.TOLERANCE[precision] * float(here.nan_to_num(0, 0, 0).abs().max())
            lower = self.near(frame, _SOME, anchor=_ANCHORS[1])
            shifted = [self.near(frame, _SOME, shift=shift) for shift in _SHIFTS]
            if self._farthest(kind, here, [lower]) > slack:
                continue
            if self._farthest(kind, here, shifted) <= slack:
                return frame, precision, ""
            if not several and frame.q == "logprob":
                return frame, precision, ON_POLICY
        several = several or "old_logprob" in self.probe.binding.roles
        why = "one log-ratio and its weight" if several else NO_DIFFERENCE
        return None, precision, f"it depends on more than {why}"

    def half_precision(self) -> bool:
        """Whether the values of single tokens are all numbers of half precision."""
        v = self.near(self.candidates[-1], _SOME * 1.2345)[0]
        coarse = any(torch.equal(v.to(t).double(), v) for t in (torch.bfloat16, torch.float16))
        return coarse and len(v.unique()) > 3

    def _farthest(self, kind: str, here: Tensor, others: list) -> float:
        """The largest difference where ``here`` is finite; the fit says what is not."""
        known = torch.isfinite(here)
        gaps = torch.stack([self.target(kind, other) - here for other in others])[:, known]
        return float(gaps.abs().nan_to_num(nan=math.inf).max()) if known.any() else 0.0

    def _precision(self, kind: str, frame: Frame, here: Tensor) -> torch.dtype | None:
        """float64 moves when its argument moves by 2⁻⁴², float32 by 2⁻¹⁴; half does not."""
        value, _ = self.near(frame, _SOME)
        for by, precision in ((2.0**-42, torch.float64), (2.0**-14, torch.float32)):
            moved = self.near(frame, _SOME + by)
            if not torch.equal(self.target(kind, moved).nan_to_num(), here.nan_to_num()):
                return precision
        # A constant or a step moves never; the value beside it says what precision there is.
        steps = len(here.unique()) <= 3
        moves = len(value.unique()) <= 3 or not torch.equal(moved[0], value)
        return torch.float32 if steps and moves else None
