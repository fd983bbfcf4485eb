r"""What somebody's KL function estimates, which gradient it follows, and where it breaks.

:func:`audit` calls a function on chosen log-probabilities, without drawing a sample, and reports.

Convention: in divergence names q is the *sampled* distribution and p the other one; log r = log p −
log q, nats.  The gradient is always with respect to ``logprob``, so two cases differ:

- ``logprob`` is sampled (q = exp logprob).  The gradient of D_f is E_q[(f − r f') ∇log q], and a
  constant weight adds nothing, since E_q[∇log q] = 0.
- ``logprob`` is p, and x ~ q is fixed: rollout metrics, ``approx_kl``.  Then ∇D_f = E_q[f'(r) ∇r] =
  E_q[r f' ∇log p], and a weight c·r adds nothing, since E_q[r ∇log p] = E_p[∇log p] = 0.

With three log-probabilities and x ~ old, a weight w = exp(logprob − old_logprob) makes E_old[w h] =
E_logprob[h]: value and derivative are divided by w, and if what is left is a function of log r =
ref_logprob − logprob alone, q is ``logprob`` and p is ``ref_logprob``.  A function that leaves out
one of the three is judged by the other two.
"""

from __future__ import annotations

import contextlib
import io
import math
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from kllab import _scan
from kllab._findings import CODES, SCHEMA, Finding, advice, plain
from kllab._look import LAWS, NO_DIFFERENCE, Look, Part, column, frames
from kllab._probe import Binding, Probe, Refused, aggregation, bind
from kllab._report import as_html, as_text, words
from kllab.checks import InputError
from kllab.divergences import get
from kllab.exact import divergence

__all__ = ["CASES", "CODES", "SAMPLES", "USAGES", "AuditReport", "Finding", "Part", "audit"]

USAGES = ("metric", "loss", "reward", "both")
SAMPLES = LAWS
GUARD = 50.0
"""Clamps farther out than this, in nats, that cost nothing on the cases are no finding."""

CASES = {
    "three tokens": ((0.7, 0.2, 0.1), (0.4, 0.4, 0.2)),
    "nearly equal": ((0.5, 0.3, 0.2), (0.48, 0.33, 0.19)),
    "dropped token": ((0.9999, 0.0001), (0.9, 0.1)),
    "found token": ((0.5, 0.5), (0.999, 0.001)),
}
"""Reference pairs (q, p) over which means and gradients are exact sums."""


# --- the report -------------------------------------------------------------------------------


@dataclass(frozen=True)
class AuditReport:
    """What :func:`audit` found.  ``str`` gives a screen of text whose first line is the verdict.

    ``value``, ``gradient``: :class:`Part`.  ``findings``: a list of faults, each with ``.code
    .sentence .numbers .instead``.  ``aggregation``: "token" for one value per token, one of
    :data:`kllab.sequences.HOW`, "mean" (without a mask), "sum", or ``None`` where none was found.
    ``nothing_kept``: what a batch, and one with an empty sequence, gives then, as text.
    ``non_negative``: whether no single value is below 0.  ``detached``: whether the gradient is
    not the derivative of the value.  Both are ``None`` where that was not looked at.  ``cases``:
    exact means on the reference pairs.  ``curve``: log r, value, score weight, for the figure.
    """

    name: str
    usage: str
    samples: str
    claim: str | None
    roles: tuple[str, ...]
    value: Part
    gradient: Part
    findings: list[Finding]
    aggregation: str | None
    nothing_kept: str
    non_negative: bool | None
    detached: bool | None
    cases: dict[str, dict[str, float]]
    claimed: dict[str, bool | None]
    curve: dict[str, list[float]] = field(repr=False)
    unit: str = "nats"

    @property
    def codes(self) -> list[str]:
        """The findings' codes, in order."""
        return [f.code for f in self.findings]

    @property
    def judged(self) -> str:
        """The part that the usage needs: "value" for a metric, else "gradient"."""
        return "value" if self.usage == "metric" else "gradient"

    def agreement(self, *, strict: bool = False) -> bool | None:
        """Whether the claim holds: of the part that the usage needs, with ``strict`` of both.

        A value must be the divergence itself; a gradient may be a positive multiple.  Without a
        claim: whether that part is a combination of divergences with no fault of identity (a
        wrong sign, an upside-down ratio, no gradient …).  ``None``: it could not be judged.
        """
        both = strict and self.gradient.verdict != "not_asked"
        answers = [
            self.claimed[part] for part in (("value", "gradient") if both else (self.judged,))
        ]
        return False if False in answers else None if None in answers else True

    @property
    def agrees(self) -> bool | None:
        """:meth:`agreement` of the part that the usage needs."""
        return self.agreement()

    @property
    def exit_code(self) -> int:
        """0 agrees, 1 does not, 2 could not be judged."""
        return exit_code(self.agrees)

    def to_dict(self) -> dict:
        """Everything but methods, ready for JSON; inf and NaN are text.  "schema" is a version."""
        content = {key: value for key, value in vars(self).items() if key != "curve"}
        content |= {"value": vars(self.value), "gradient": vars(self.gradient)}
        return plain({"schema": SCHEMA, "agrees": self.agrees, **content})

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def exit_code(agrees: bool | None) -> int:
    """0 for agreement, 1 for none, 2 for neither."""
    return 2 if agrees is None else int(not agrees)


# --- the audit --------------------------------------------------------------------------------


def audit(
    fn: Callable,
    *,
    usage: str = "metric",
    samples: str = "logprob",
    claim: str | None = None,
    names: tuple[str, ...] | None = None,
) -> AuditReport:
    """Find out what ``fn`` estimates and which gradient it follows, in nats, without sampling.

    Parameters
    ----------
    fn : fn(logprob, ref_logprob), also with old_logprob and mask, of shape (batch, time) or
        (time,); or a function of log r alone, such as an Estimator.  It returns one value per
        token, one per sequence, or a scalar.
    usage : "metric", "loss", "reward" (a penalty to minimise) or "both".
    samples : whose distribution drew the tokens, "logprob", "ref_logprob" or "old_logprob".
    claim : name of the divergence that it is said to be.
    names : roles of fn's parameters in their order, where their own names do not say it.

    Returns
    -------
    :class:`AuditReport`.  A divergence's name is given where the fit has a relative residual of
    1e-8 (64 float32 ε where ``fn`` casts to float32), on the interval around log r = 0 where
    nothing is clamped, at most ±3 nats; narrower than 2 nats, or half precision, is "unknown".

    Raises
    ------
    InputError : another usage, samples or claim, or roles that do not fit the function.  What
        ``fn`` itself raises becomes a finding; KeyboardInterrupt passes through.

    Examples
    --------
    >>> import kllab
    >>> report = audit(kllab.K3, usage="loss", claim="kl_qp")
    >>> report.value.terms, report.gradient.terms
    ({'kl_qp': 1.0}, {'kl_pq': 1.0})
    >>> report.agrees, report.codes[0]
    (False, 'wrong_direction')
    >>> audit(lambda new, old: (old - new).mean(), samples="old_logprob").value.terms
    {'kl_qp': 1.0}
    """
    for argument, given, known in (("usage", usage, USAGES), ("samples", samples, SAMPLES)):
        if given not in known:
            raise InputError(argument, f"one of {', '.join(known)}", repr(given))
    if claim is not None:
        try:
            claim = get(claim).name
        except (KeyError, TypeError) as error:
            raise InputError("claim", "a divergence's name", str(error.args[0])) from None
    with _undisturbed():
        return _Audit(fn, usage, samples, claim).report(names)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """What a function may change for everybody is put back; what it prints is dropped."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    dtype, anomaly = torch.get_default_dtype(), torch.is_anomaly_enabled()
    quiet = contextlib.redirect_stdout(io.StringIO())
    try:
        with quiet, warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.autograd.set_detect_anomaly(anomaly)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


# --- one audit --------------------------------------------------------------------------------

_IDENTITY = {
    "wrong_sign", "mixed_sign", "wrong_direction", "upside_down", "zero_gradient", "no_grad",
    "off_policy",
}  # fmt: skip
_TINY = 1e-6


class _Audit:
    """The steps of one audit, and what they have found so far."""

    def __init__(self, fn, usage: str, samples: str, claim: str | None):
        self.fn, self.usage, self.samples, self.claim = fn, usage, samples, claim
        self.binding = Binding((), {})
        self.candidates = frames(samples, LAWS)
        self.judged = "value" if usage == "metric" else "gradient"
        self.kinds = ("value",) if usage == "metric" else ("value", "gradient")
        self.parts = {"value": Part("unknown"), "gradient": Part("unknown")}
        if usage == "metric":
            self.parts["gradient"] = Part("not_asked")
        self.findings: list[Finding] = []
        self.claimed: dict[str, bool | None] = {"value": None, "gradient": None}
        self.cases: dict[str, dict[str, float]] = {}
        self.curve: dict[str, list[float]] = {}
        self.how: str | None = None
        self.empty = ""
        self.non_negative: bool | None = None
        self.detached: bool | None = None

    def add(self, code: str, sentence: str, **numbers) -> None:
        moves_q = self.candidates[-1].q == "logprob"
        instead = advice(code, self.usage, self.claim or "kl_qp", moves_q=moves_q)
        self.findings.append(Finding(code, sentence, numbers, instead))

    def report(self, names) -> AuditReport:
        try:
            self.binding = bind(self.fn, self.samples, names)
            self.candidates = frames(self.samples, self.binding.roles)
            first = self.candidates[0]
            self.probe = Probe(self.fn, self.binding, first.q, first.p)
            self.look = Look(self.probe, self.usage, self.candidates)
            self.batches()
            if self.how is not None:
                self.identity()
                self.numerics()
                self.curve = self.drawn()
                lowest = min(self.curve["value"])
                self.non_negative = None if math.isnan(lowest) else lowest >= 0
                if self.usage != "metric" and self.probe.attached:
                    self.detached = not self.look.is_derivative()
            self.writes()
        except Refused as refused:
            self.add(refused.code, str(refused), **refused.numbers)
            self.parts = {
                kind: replace(
                    p, terms={}, verdict=p.verdict if p.verdict == "not_asked" else "unknown"
                )
                for kind, p in self.parts.items()
            }
            self.claimed = dict.fromkeys(self.claimed)
        return AuditReport(
            name=name_of(self.fn),
            usage=self.usage,
            samples=self.samples,
            claim=self.claim,
            roles=self.binding.roles,
            **self.parts,
            findings=self.findings,
            aggregation=self.how,
            nothing_kept=self.empty,
            non_negative=self.non_negative,
            detached=self.detached,
            cases=self.cases,
            claimed=self.claimed,
            curve=self.curve,
        )

    # --- batches: tokens that are put together, masks -----------------------------------------

    def batches(self) -> None:
        """Aggregation and masked places."""
        mask = torch.ones(3, 4, dtype=torch.float64)
        if self.probe.masked:
            mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.float64)
        if self.probe.dims == 1:
            mask = mask.reshape(1, -1)
        first, second = (self.batch(mask, step) for step in (0.37, 0.73))
        how = aggregation(self.probe, first, mask)
        self.how = how if how == aggregation(self.probe, second, mask) else None
        if self.how is None and self.probe.kind == "token":
            self.add("not_elementwise", "A token's value or gradient depends on other tokens.")
        elif self.how is None:
            self.add("aggregation", "Its result is no mean and no sum of its tokens' values.")
        if self.how == "padded_mean":
            self.add(
                "padding_in_mean",
                f"Masked places count in the denominator: with {int(mask.sum())} of "
                f"{mask.numel()} kept, the mean is {mask.mean():.2g} of the token mean.",
                kept=int(mask.sum()),
                places=mask.numel(),
            )
        if self.probe.masked:
            self.padding(first, mask)

    def batch(self, mask: Tensor, step: float) -> dict[str, Tensor]:
        """Log-probabilities (B, T) whose log-ratios run over ±1.5, equal in masked places."""
        places = torch.arange(mask.numel(), dtype=torch.float64).reshape(mask.shape)
        l = (3 * torch.frac(step * (places + 1)) - 1.5) * mask
        frame = self.candidates[-1]
        return frame.at(-4 - l / 2, -4 + l / 2, shift=0.25)

    def padding(self, batch: dict[str, Tensor], mask: Tensor) -> None:
        """What stands in masked places must reach neither the result nor a gradient."""
        shaped = {r: t if self.probe.dims == 2 else t.reshape(-1) for r, t in batch.items()}
        keep = (mask if self.probe.dims == 2 else mask.reshape(-1)).double()
        shaped["mask"] = keep
        clean = self.probe.call(shaped)
        leaks = []
        for label, values in _PADS.items():
            dirty = {
                role: t if role == "mask" else torch.where(keep > 0, t, values[role])
                for role, t in shaped.items()
            }
            try:
                got = self.probe.call(dirty)
            except Refused:
                leaks.append(label)
                continue
            pairs = [p for p in zip(got, clean, strict=True) if None not in p]
            if any(not torch.allclose(a, b, rtol=1e-6, atol=1e-12) for a, b in pairs):
                leaks.append(label)
        if leaks:
            self.add(
                "padding_leak",
                f"Masked places change the result when they hold {', '.join(leaks)}.",
                pads=leaks,
            )
        some_empty = keep.clone()
        some_empty[-1] = 0
        said = [self.kept_nothing(shaped, torch.zeros_like(keep))]
        if self.probe.dims == 2:
            said.append(f"one empty sequence: {self.kept_nothing(shaped, some_empty)}")
        self.empty = ", ".join(said)

    def kept_nothing(self, batch: dict[str, Tensor], mask: Tensor) -> str:
        try:
            out, grad = self.probe.call(batch | {"mask": mask})
        except Refused:
            return "raises"
        finite = torch.isfinite(out).all() and (grad is None or torch.isfinite(grad).all())
        return f"{float(out.sum()):.4g}" if finite else "nan"

    def writes(self) -> None:
        if self.probe.mutates:
            names = ", ".join(self.probe.mutates)
            self.add("mutates_input", f"It writes into {names}.", arguments=names)

    # --- identity: what it is --------------------------------------------------------------------

    def identity(self) -> None:
        """Which divergence, whether it is the claimed one, and what it is instead."""
        for kind in self.kinds:
            self.parts[kind] = self.look.part(kind)
            if self.parts[kind].verdict != "unknown":
                self.claimed[kind] = self.meets(kind)
        if self.usage in ("loss", "both") and not self.probe.attached:
            self.no_gradient()
        elif self.probe.backward_error and self.usage in ("loss", "both"):
            self.add("raises", f"Its backward pass raises {self.probe.backward_error}.")
        self.cases = self.means()
        part = self.parts[self.judged]
        if part.verdict == "zero" and "no_grad" not in (f.code for f in self.findings):
            self.add(
                "zero_gradient" if self.judged == "gradient" else "unknown", _ZERO[self.judged]
            )
        if part.verdict == "unknown":
            self.unknown(part)
        if self.claim is None or not self.claimed[self.judged]:
            self.instead_of_the_claim(part)
        self.constant()
        if self.claim is None:
            faults = _IDENTITY & {f.code for f in self.findings}
            for kind in self.kinds:
                self.claimed[kind] = {"fits": not faults, "zero": False}.get(
                    self.parts[kind].verdict
                )

    def meets(self, kind: str) -> bool | None:
        """Whether a part that is known is the claimed divergence."""
        if self.claim is None:
            return None
        c = self.look.multiple(kind, self.claim)
        return c is not None and (c > 0 if kind == "gradient" else abs(c - 1) <= _TINY)

    def no_gradient(self) -> None:
        by = f" (it returns {self.probe.converted})" if self.probe.converted else ""
        self.add("no_grad", f"No gradient reaches logprob{by}: as a loss it does nothing.")

    def unknown(self, part: Part) -> None:
        elsewhere = self.look.on_policy(self.judged) if self.samples == "old_logprob" else None
        if elsewhere is not None:
            self.off_policy(elsewhere)
        elif NO_DIFFERENCE in part.why:
            self.add("not_difference", f"Its {self.judged} is not judged: {part.why}.")
        else:
            self.add(
                "unknown", f"Its {self.judged} is not known: {part.why}.", residual=part.residual
            )

    def off_policy(self, terms: dict[str, float]) -> None:
        old, new, ref = (torch.tensor(x, dtype=torch.float64).log() for x in _STALE)
        v, _ = self.probe.tokens({"logprob": new, "ref_logprob": ref, "old_logprob": old})
        plain_mean, weighted = (float((law.exp() * v).sum()) for law in (old, new))
        self.add(
            "off_policy",
            "Samples are from old_logprob and nothing weights them; on policy the "
            f"{self.judged} would be {words(terms) or 'another'}.",
            on_old_samples=plain_mean,
            on_policy=weighted,
        )

    def instead_of_the_claim(self, part: Part) -> None:
        """Name the fault: exchanged, upside down, or another sign."""
        value = self.parts["value"].terms
        meant = self.claim or (next(iter(value)) if len(value) == 1 else None)
        before = len(self.findings)
        only = next(iter(part.terms)) if len(part.terms) == 1 else None
        if meant and only and only != meant and get(meant).reverse == only:
            self.add(
                "wrong_direction",
                f"The {self.judged} is that of {words(part.terms)}, and {meant} was meant: "
                f"p and q are exchanged.",
                **part.terms,
            )
        self.sign(part)
        if (
            self.parts["value"].verdict != "zero"
            and len(value) != 1
            and "value" in self.look.points
        ):
            turned = self.look.flipped()
            if len(turned) == 1 and min(turned.values()) > 0:
                self.add(
                    "upside_down",
                    f"The ratio stands upside down: turned over, the value would be "
                    f"{words(turned)}; it is {words(value) or 'no known divergence'}.",
                    **value,
                )
        if self.claim and part.verdict == "fits" and len(self.findings) == before:
            self.add(
                "not_the_claim", f"The {self.judged} is {words(part.terms)}, not {self.claim}.",
                **part.terms,
            )  # fmt: skip
        if self.claim and self.judged == "value" and self.cases:
            self.bias()

    def sign(self, part: Part) -> None:
        signs = {math.copysign(1, c) for c in part.terms.values()}
        if signs == {-1.0}:
            effect = "minimising it drives logprob away" if self.judged == "gradient" else (
                "it is minus a divergence")  # fmt: skip
            self.add("wrong_sign", f"The sign is wrong: {effect}.", **part.terms)
        elif self.judged == "gradient" and part.verdict != "zero" and signs != {1.0}:
            self.direction()

    def direction(self) -> None:
        """The sign of a gradient that no terms tell, from exact gradients on the cases."""
        if "gradient" not in self.look.points:
            return
        along = {}
        for label, (log_q, log_p) in _logs().items():
            g, drift = self.pulls(log_q, log_p)
            size = float(g.norm())
            if math.isfinite(size) and size > 0:
                along[label] = max(float(g @ d / size / d.norm()) for d in drift)
        against = [label for label, cosine in along.items() if cosine < 0]
        if against and len(against) == len(along):
            self.add(
                "wrong_sign",
                "On every reference case its gradient points away from those of both KLs: "
                "minimising it drives logprob away.",
                **along,
            )
        elif against:
            self.add(
                "mixed_sign",
                f"On {len(against)} of {len(along)} reference cases minimising it raises both "
                f"KLs ({', '.join(against)}).",
                **along,
            )

    def pulls(self, log_q: Tensor, log_p: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Exact expected gradient by the logits of logprob, and those of both KLs."""
        frame = self.look.found["gradient"]
        c = self.look.target("gradient", self.look.measure(frame, log_q, log_p))
        q, p, l = log_q.exp(), log_p.exp(), log_p - log_q
        moved = q if frame.q == "logprob" else p
        weights = [column(name, "gradient", frame, l) for name in ("kl_qp", "kl_pq")]
        return _push(q, moved, c), tuple(_push(q, moved, w) for w in weights)

    def means(self) -> dict[str, dict[str, float]]:
        """Exact means over the reference pairs, beside what they should be."""
        if "value" not in self.look.points:
            return {}
        found = {}
        terms = {self.claim: 1.0} if self.claim else self.parts["value"].terms
        for label, (log_q, log_p) in _logs().items():
            v, _ = self.look.measure(self.look.found["value"], log_q, log_p)
            row = {"mean": float((log_q.exp() * v).sum())}
            if terms:
                row["divergence"] = sum(
                    c * float(divergence(name, log_q, log_p)) for name, c in terms.items()
                )
            found[label] = row
        return found

    def bias(self) -> None:
        off = {
            label: row for label, row in self.cases.items()
            if not abs(row["mean"] - row["divergence"]) <= _TINY * abs(row["divergence"])
        }  # fmt: skip
        if off:
            label, row = next(iter(off.items()))
            self.add(
                "bias",
                f"Its mean is not {self.claim}: {row['mean']:.5g} instead of "
                f"{row['divergence']:.5g} on “{label}”.",
                **off,
            )

    def constant(self) -> None:
        if "value" not in self.look.points or self.judged == "gradient":
            return
        zero = torch.zeros(1, dtype=torch.float64)
        at_one = float(self.look.near(self.look.found["value"], zero)[0])
        if abs(at_one) > _TINY:
            self.add(
                "constant", f"Where both agree its value is {at_one:.5g}, not 0.", value=at_one
            )

    # --- numerics: where it breaks ---------------------------------------------------------------

    def numerics(self) -> None:
        """Clamps, overflow, NaN in the backward pass, cancellation; far from 0 it may refuse."""
        slope = self.usage in ("loss", "both")
        for kind in self.kinds if slope else ("value",):
            self.clamps(kind)
        with contextlib.suppress(Refused):
            broken = _scan.not_finite(self.look.far, slope=slope)
            if broken["overflow"]:
                at = ", ".join(f"{l:.4g} in {name}" for name, l in broken["overflow"].items())
                self.add("overflow", f"Not finite from log r = {at}.", **broken["overflow"])
            if broken["nan_gradient"]:
                at = ", ".join(f"{l:.4g} in {name}" for name, l in broken["nan_gradient"].items())
                self.add(
                    "nan_gradient",
                    f"The gradient is NaN, the value finite, from log r = {at}.",
                    **broken["nan_gradient"],
                )
        with contextlib.suppress(Refused):
            lost = _scan.cancellation(self.look.far)
            if lost:
                worst = max(lost.values())
                self.add(
                    "cancellation",
                    f"In float32 the value at log r = {min(lost, key=lambda l: abs(float(l)))} is "
                    f"wrong by up to {worst:.2g} of itself.",
                    **lost,
                )

    def clamps(self, kind: str) -> None:
        part, ends = self.parts[kind], self.look.clamps().get(kind, (-math.inf, math.inf))
        cost = self.cost(kind) if part.verdict == "fits" else {}
        worst = max(cost, key=lambda label: abs(cost[label]), default=None)
        if not worst and min(map(abs, ends)) > GUARD:
            return
        where = " and ".join(
            f"{'below' if end < 0 else 'above'} log r = {end:.5g}"
            for end in ends
            if math.isfinite(end)
        )
        price = ""
        if worst:
            price = f"; on “{worst}” that takes {100 * abs(cost[worst]):.3g} % of it away"
        elif part.verdict == "fits":
            price = "; on the reference cases that costs nothing"
        what = "value is constant" if kind == "value" else "gradient is exactly 0"
        sentence = f"The {what} {where}{price}."
        self.add(f"clamp_{kind}", sentence, low=ends[0], high=ends[1], cost=cost)

    def cost(self, kind: str) -> dict[str, float]:
        """Relative change by clamps, on the cases where there is one."""
        found = {}
        terms, frame = self.parts[kind].terms, self.look.found[kind]
        for label, (log_q, log_p) in _logs().items():
            q, p, l = log_q.exp(), log_p.exp(), log_p - log_q
            measured = self.look.measure(frame, log_q, log_p)
            want = sum(c * column(name, kind, frame, l) for name, c in terms.items())
            if kind == "value":
                mean = float((q * measured[0]).sum()) - self.parts[kind].free["constant"]
                change = mean / float((q * want).sum()) - 1
            else:
                moved = q if frame.q == "logprob" else p
                got = _push(q, moved, self.look.target(kind, measured))
                true = _push(q, moved, want)
                change = float((got - true).norm() / true.norm())
            if not abs(change) <= _TINY:
                found[label] = change
        return found

    def drawn(self) -> dict[str, list[float]]:
        """Value and weight over ±6 nats, for the figure."""
        l = torch.linspace(-6, 6, 97, dtype=torch.float64)
        v, c = self.look.far(l)
        curve = {"log_r": l.tolist(), "value": v.tolist()}
        if self.usage != "metric":
            curve["weight"] = self.look.target("gradient", (v, c)).tolist()
        return curve


_ZERO = {
    "gradient": "No expected gradient: every token gets the same push on average, which is noise.",
    "value": "Its mean is the same for every pair: it measures nothing.",
}
_STALE = ((0.5, 0.3, 0.2), (0.7, 0.2, 0.1), (0.4, 0.4, 0.2))
_PADS = {
    "other finite values": {"logprob": -3.0, "ref_logprob": -5.0, "old_logprob": -2.0},
    "-inf": {"logprob": -1.0, "ref_logprob": -math.inf, "old_logprob": -1.0},
    "-1e10": {"logprob": -1e10, "ref_logprob": 0.0, "old_logprob": 0.0},
    "NaN": dict.fromkeys(LAWS, math.nan),
}


def _push(q: Tensor, moved: Tensor, c: Tensor) -> Tensor:
    """E_q[c (e_x − π)], π the law that moves: an exact gradient by its logits."""
    return q * c - moved * (q * c).sum()


def _logs() -> dict[str, tuple[Tensor, Tensor]]:
    return {
        label: tuple(torch.tensor(x, dtype=torch.float64).log() for x in pair)
        for label, pair in CASES.items()
    }


def name_of(fn) -> str:
    """A short name of a callable."""
    name = getattr(fn, "__name__", None) or getattr(fn, "name", None)
    return str(name or getattr(getattr(fn, "func", None), "__name__", type(fn).__name__))
