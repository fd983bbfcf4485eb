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
import functools
import io
import math
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kllab import _scan
from kllab._findings import CODES, SCHEMA, Finding, advice, plain
from kllab._look import LAWS, NO_DIFFERENCE, NOWHERE, Look, Part, column, frames
from kllab._probe import Binding, Probe, Refused, aggregation, bind
from kllab._report import as_html, as_text, figure, rows, verdict
from kllab._terms import sum_of
from kllab.checks import InputError
from kllab.divergences import get

__all__ = ["CASES", "CODES", "SAMPLES", "USAGES", "AuditReport", "Finding", "Part", "audit"]

USAGES = ("metric", "loss", "reward", "both")
SAMPLES = LAWS
GUARD = 50.0
"""Clamps farther out than this, in nats, that cost nothing on the cases are no finding."""
WEIGHT_GUARD = math.log(100)
"""The same for a cut of log w, the log importance weight."""

CASES = {
    "three tokens": ((0.7, 0.2, 0.1), (0.4, 0.4, 0.2)),
    "nearly equal": ((0.5, 0.3, 0.2), (0.48, 0.33, 0.19)),
    "dropped token": ((0.9999, 0.0001), (0.9, 0.1)),
    "found token": ((0.5, 0.5), (0.999, 0.001)),
}
"""Reference pairs (q, p) over which means and gradients are exact sums."""

TRIPLES = {
    "drifted": ((0.5, 0.4, 0.1), (0.1, 0.4, 0.5), (0.3, 0.3, 0.4)),
    "a step later": ((0.5, 0.3, 0.2), (0.7, 0.2, 0.1), (0.4, 0.4, 0.2)),
    "rare before": ((0.99, 0.01), (0.5, 0.5), (0.9, 0.1)),
}
"""Reference laws (old, policy, reference), for what weights samples of an older policy."""


# --- the report -------------------------------------------------------------------------------


@dataclass(frozen=True)
class AuditReport:
    """What :func:`audit` found.  ``str`` gives a screen of text whose first line is the verdict.

    ``value``, ``gradient``: :class:`Part`.  ``findings``: a list of faults, each with ``.code
    .sentence .numbers .instead``.  ``aggregation``: "token" for one value per token, one of
    ``kllab.sequences.HOW``, "mean" (without a mask), "sum", or ``None`` where none was found.
    ``nothing_kept``: what a batch, and one with an empty sequence, gives then, as text.
    ``non_negative``: whether no single value is below 0.  ``detached``: whether the gradient is
    not the derivative of the value.  Both are ``None`` where that was not looked at.  ``cases``:
    exact means on the reference pairs.  ``only``: intervals to which the verdict is limited, where
    leaving them costs something.  ``weight_cut``: whether an importance weight is cut; then nothing
    agrees strictly.  ``taken``: which parameter was taken for which role, where that was a guess.
    ``padding``: the parameter that got a mask of padding instead of one of kept tokens.
    ``curve``: log r, value, score weight, for the figure.
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
    only: tuple[str, ...]
    weight_cut: bool
    taken: str
    padding: str
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
        if strict and self.weight_cut:
            return False
        return False if False in answers else None if None in answers else True

    @property
    def agrees(self) -> bool | None:
        """:meth:`agreement` of the part that the usage needs."""
        return self.agreement()

    @property
    def exit_code(self) -> int:
        """0 agrees, 1 does not, 2 could not be judged."""
        return EXIT_CODE[self.agrees]

    def to_dict(self) -> dict:
        """Everything but methods, ready for JSON; inf and NaN are text.  "schema" is a version."""
        content = {key: value for key, value in vars(self).items() if key != "curve"}
        return plain({"schema": SCHEMA, "agrees": self.agrees, **content})

    def __str__(self) -> str:
        return as_text(verdict(self), rows(self), self.findings)

    def _repr_html_(self) -> str:
        return as_html(verdict(self), rows(self), self.findings, figure(self))


EXIT_CODE = {True: 0, False: 1, None: 2}


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
        (time,); or a function of log r alone, whose name says so (log_r, delta, x), such as an
        Estimator.  It returns one value per token, one per sequence, or a scalar.
    usage : "metric", "loss", "reward" (a penalty to minimise) or "both".
    samples : whose distribution drew the tokens, "logprob", "ref_logprob" or "old_logprob".
    claim : name of the divergence that it is said to be.
    names : roles of fn's parameters in their order, where their own names do not say it, or
        ("log_r",).  What is taken by place only, the report's first line says.

    Returns
    -------
    :class:`AuditReport`.  A divergence's name is given where the fit has a relative residual of
    1e-8 (64 float32 ε where ``fn`` casts to float32), on the interval around log r = 0 where
    nothing is clamped, at most ±3 nats; narrower than 2 nats, or half precision, is "unknown".
    Where a clamp costs something, or an importance weight is cut, the first line says on which
    interval it agrees; with a cut weight nothing agrees strictly.

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
    binding = bind(fn, samples, names)
    with _undisturbed():
        return _Audit(fn, usage, samples, claim, binding).report()


_GLOBAL = (
    (random.getstate, random.setstate),
    (np.random.get_state, np.random.set_state),
    (torch.get_rng_state, torch.set_rng_state),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """What a function may change for everybody is put back; what it prints is dropped."""
    before = [get() for get, _ in _GLOBAL]
    elsewhere = torch.get_default_device().type != "cpu"
    try:
        with (
            torch.device("cpu") if elsewhere else contextlib.nullcontext(),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
            torch.enable_grad(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for (_, put), was in zip(_GLOBAL, before, strict=True):
            put(was)


# --- one audit --------------------------------------------------------------------------------

_IDENTITY = {
    "wrong_sign",
    "mixed_sign",
    "wrong_direction",
    "upside_down",
    "off_policy",
    "no_grad",
    "constant",
}
_ASYMMETRIC = {"wrong_sign", "mixed_sign", "wrong_direction", "upside_down"}
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


class _Audit:
    """The steps of one audit, and what they have found so far."""

    def __init__(self, fn, usage: str, samples: str, claim: str | None, binding: Binding):
        self.fn, self.usage, self.samples, self.claim = fn, usage, samples, claim
        self.binding, self.candidates = binding, frames(samples, binding.roles)
        self.kinds = ("value",) if usage == "metric" else ("value", "gradient")
        self.judged, self.pushes = self.kinds[-1], usage in ("loss", "both")
        self.findings: list[Finding] = []
        self.parts, self.claimed = self.nothing(), dict.fromkeys(("value", "gradient"))
        self.facts = {"aggregation": None, "nothing_kept": "", "cases": {}, "curve": {}}
        self.facts |= {"non_negative": None, "detached": None, "only": (), "weight_cut": False}

    def nothing(self) -> dict[str, Part]:
        """Parts of which nothing is known."""
        return {
            "value": Part("unknown"),
            "gradient": Part("unknown" if "gradient" in self.kinds else "not_asked"),
        }

    def add(self, code: str, sentence: str, **numbers) -> None:
        moves_q = self.candidates[-1].q == "logprob"
        instead = advice(code, self.usage, self.claim or "kl_qp", moves_q=moves_q)
        self.findings.append(Finding(code, sentence, numbers, instead))

    def report(self) -> AuditReport:
        first = self.candidates[0]
        try:
            self.probe = Probe(self.fn, self.binding, first.q, first.p)
            self.look = Look(self.probe, self.usage, self.candidates)
            self.batches()
            if self.facts["aggregation"]:
                self.identity()
                self.numerics()
            if self.probe.mutates:
                names = ", ".join(self.probe.mutates)
                self.add("mutates_input", f"It writes into {names}.", arguments=names)
        except Refused as refused:
            self.add(refused.code, str(refused))
            self.parts, self.claimed = self.nothing(), dict.fromkeys(self.claimed)
        return AuditReport(
            name=name_of(self.fn),
            usage=self.usage,
            samples=self.samples,
            claim=self.claim,
            roles=self.binding.roles,
            taken=taken_as(self.binding),
            padding=self.binding.padding,
            findings=self.findings,
            claimed=self.claimed,
            **self.parts,
            **self.facts,
        )

    # --- batches: tokens that are put together, masks -----------------------------------------

    def batches(self) -> None:
        """Aggregation and masked places."""
        mask = torch.ones(3, 4, dtype=torch.float64)
        if self.probe.masked:
            mask[1, 2:] = mask[2, 1:] = 0
        mask = mask if self.probe.dims == 2 else mask.reshape(1, -1)
        batch, other = (self.batch(mask, step) for step in (0.37, 0.73))
        how = aggregation(self.probe, batch, mask)
        if how != aggregation(self.probe, other, mask):
            how = None
        self.facts["aggregation"] = how
        why = self.not_tokens() if how is None else ""
        if why:
            self.add("unknown", why)
        elif how is None and self.probe.kind == "token":
            self.add("not_elementwise", "A token's value or gradient depends on other tokens.")
        elif how is None:
            self.add("aggregation", "Its result is no mean and no sum of its tokens' values.")
        if how == "padded_mean":
            kept, places = int(mask.sum()), mask.numel()
            sentence = f"Masked places count: {kept} of {places} tokens kept, divided by {places}."
            self.add("padding_in_mean", sentence, kept=kept, places=places)
        if self.probe.masked:
            self.padding(self.probe.shaped(batch | {"mask": mask}))

    def not_tokens(self) -> str:
        """Why it is not put together from tokens, where that has a known reason."""
        half = False
        with contextlib.suppress(Refused):
            half = self.look.half_precision()
        if half:
            return "It works in half precision, too coarse to tell: not judged."
        if self.probe.takes_distributions():
            return (
                "It sums over its last axis, as over a vocabulary: functions of whole "
                "distributions (batch, time, vocabulary) are not judged."
            )
        return ""

    def batch(self, mask: Tensor, step: float) -> dict[str, Tensor]:
        """Log-probabilities (B, T) whose log-ratios run over ±1.5, equal in masked places."""
        places = torch.arange(1, mask.numel() + 1, dtype=torch.float64).reshape(mask.shape)
        l = (3 * torch.frac(step * places) - 1.5) * mask
        return self.candidates[-1].at(-4 - l / 2, -4 + l / 2, shift=0.25)

    def padding(self, batch: dict[str, Tensor]) -> None:
        """What stands in masked places must reach neither the result nor a gradient."""
        keep = batch["mask"]
        clean = self.outcome(batch)
        leaks = []
        for label, pads in _PADS.items():
            dirty = {role: torch.where(keep > 0, batch[role], pads[role]) for role in LAWS}
            got = self.outcome(dirty | {"mask": keep})
            if got is None or not torch.allclose(got, clean, rtol=1e-6, atol=1e-12):
                leaks.append(label)
        if leaks:
            sentence = f"Masked places change the result when they hold {', '.join(leaks)}."
            self.add("padding_leak", sentence, pads=leaks)
        last = torch.zeros_like(keep)
        last[-1] = keep[-1]
        said = []
        for mask in (torch.zeros_like(keep), keep - last)[: self.probe.dims]:
            got = self.outcome(batch | {"mask": mask})
            finite = got is not None and bool(torch.isfinite(got).all())
            said.append("raises" if got is None else "finite" if finite else "nan")
        self.facts["nothing_kept"] = ", one empty sequence: ".join(said)

    def outcome(self, batch: dict[str, Tensor]) -> Tensor | None:
        """Result, and gradient where there is a backward pass, in one vector; ``None``: raises."""
        try:
            out, grad = self.probe.call(batch)
        except Refused:
            return None
        return torch.cat(
            [t.reshape(-1) for t in (out, grad if self.pushes else None) if t is not None]
        )

    # --- identity: what it is --------------------------------------------------------------------

    def identity(self) -> None:
        """Which divergence, whether it is the claimed one, and what it is instead."""
        for kind in self.kinds:
            self.parts[kind] = self.look.part(kind)
        part = self.parts[self.judged]
        if self.pushes and not self.probe.attached:
            by = f" (it returns {self.probe.converted})" if self.probe.converted else ""
            self.add("no_grad", f"No gradient reaches logprob{by}: as a loss it does nothing.")
        elif part.verdict == "zero":
            idle = self.judged == "gradient" and not self.look.points["gradient"].y.any()
            sentence = "The gradient is exactly 0: no token gets any push." if idle else ""
            self.add(f"zero_{self.judged}", sentence or _ZERO[self.judged])
        if self.pushes and self.probe.backward_error:
            self.add("raises", f"Its backward pass raises {self.probe.backward_error}.")
        if part.verdict == "unknown":
            self.unknown(part)
        self.describe()
        if self.claim:
            self.claimed |= {kind: self.meets(kind) for kind in self.kinds}
        if not self.claimed[self.judged]:
            self.fault(part)
        if not self.claim:
            fine = not _IDENTITY & {f.code for f in self.findings}
            answers = {"fits": fine, "zero": False}
            self.claimed |= {k: answers.get(self.parts[k].verdict) for k in self.kinds}
        if self.binding.unnamed and _ASYMMETRIC & {f.code for f in self.findings}:
            self.claimed = dict.fromkeys(self.claimed)

    def describe(self) -> None:
        """Exact means, the curves, and what they show at once."""
        if self.usage != "metric" and self.probe.attached:
            self.facts["detached"] = not self.look.is_derivative()
        if "value" not in self.look.points:
            return
        terms = {self.claim: 1.0} if self.claim else self.parts["value"].terms
        self.facts["cases"] = {
            label: {"mean": float(got)} | ({"divergence": float(want)} if terms else {})
            for label, (got, want) in self.exact("value", terms).items()
        }
        curve = self.look.curve()
        self.facts |= {"curve": curve, "non_negative": min(curve["value"]) >= 0}
        zero = torch.zeros(1, dtype=torch.float64)
        at_one = float(self.look.near(self.look.found["value"], zero)[0])
        if self.judged == "value" and abs(at_one) > self.tolerance("value"):
            sentence = f"Where both agree its value is {at_one:.5g}, not 0."
            self.add("constant", sentence, value=at_one)

    def meets(self, kind: str) -> bool | None:
        """Whether a part that is known is the claimed divergence."""
        if self.parts[kind].verdict == "unknown":
            return None
        c = self.look.multiple(kind, self.claim)
        if c is None or kind == "gradient":
            return c is not None and c > 0
        off = abs(c - 1), abs(self.parts[kind].free["constant"])
        return max(off) <= self.tolerance(kind)

    def tolerance(self, kind: str) -> float:
        """Of a coefficient, and of what an exact sum may differ by."""
        return 1e-6 if self.look.precisions[kind] == torch.float64 else 1e-4

    def exact(self, kind: str, terms: dict[str, float]) -> dict[str, tuple[Tensor, Tensor]]:
        """{case: (what it gives, what the terms give)}, means or gradients by logprob's logits."""
        frame, found = self.look.found[kind], {}
        for label, laws in CASES.items():
            q, p = (torch.tensor(law, dtype=torch.float64) for law in laws)
            got = self.look.target(kind, self.look.measure(frame, q.log(), p.log()))
            columns = [c * column(d, kind, frame, (p / q).log()) for d, c in terms.items()]
            parts = [q * got, q * sum(columns, torch.zeros_like(q))]
            if kind == "gradient":  # E_q[c (e_x − π)], π the law that moves
                moved = q if frame.q == "logprob" else p
                found[label] = tuple(part - moved * part.sum() for part in parts)
            else:
                found[label] = tuple(part.sum() for part in parts)
        return found

    # --- what is wrong with it -------------------------------------------------------------------

    def unknown(self, part: Part) -> None:
        terms = self.look.on_policy(self.judged) if self.samples == "old_logprob" else None
        if terms is not None:
            old, new, ref = (torch.tensor(x, dtype=torch.float64) for x in _STALE)
            at = {"logprob": new.log(), "ref_logprob": ref.log(), "old_logprob": old.log()}
            v, _ = self.probe.tokens(at)
            means = {"on_old_samples": float(old @ v), "on_policy": float(new @ v)}
            self.add(
                "off_policy",
                "Samples are from old_logprob and nothing weights them; on policy the "
                f"{self.judged} would be {sum_of(terms) or 'another'}.",
                **means,
            )
        else:
            code = "not_difference" if NO_DIFFERENCE in part.why else "unknown"
            self.add(code, f"Its {self.judged} is not known: {part.why}.", residual=part.residual)

    def fault(self, part: Part) -> None:
        """Name it: exchanged, upside down, another sign, another divergence."""
        value, before = self.parts["value"].terms, len(self.findings)
        meant = self.claim or (next(iter(value)) if len(value) == 1 else None)
        if meant and len(part.terms) == 1 and get(meant).reverse in part.terms.keys() - {meant}:
            self.add(
                "wrong_direction",
                f"The {self.judged} is that of {sum_of(part.terms)}, and {meant} was meant: "
                "p and q are exchanged.",
                **part.terms,
            )
        self.sign(part)
        known = len(value) == 1 or self.parts["value"].verdict == "zero"
        turned = {} if known else self.look.flipped()
        if len(turned) == 1 and min(turned.values()) > 0:
            self.add(
                "upside_down",
                f"The ratio stands upside down: turned over, the value would be "
                f"{sum_of(turned)}; it is {sum_of(value) or 'no known divergence'}.",
                **value,
            )
        if (
            self.claim
            and sum_of(part.terms) not in ("", self.claim)
            and len(self.findings) == before
        ):
            sentence = f"The {self.judged} is {sum_of(part.terms)}, not {self.claim}."
            self.add("not_the_claim", sentence, **part.terms)
        off = {label: row for label, row in self.facts["cases"].items() if self.is_off(row)}
        if off and self.claim and self.judged == "value":
            label, row = next(iter(off.items()))
            said = f"{row['mean']:.5g} instead of {row['divergence']:.5g} on “{label}”"
            self.add("bias", f"Its mean is not {self.claim}: {said}.", **off)

    def is_off(self, row: dict[str, float]) -> bool:
        want = row.get("divergence", math.nan)
        return not abs(row["mean"] - want) <= self.tolerance("value") * abs(want)

    def sign(self, part: Part) -> None:
        """From the terms; of a gradient that they do not tell, from exact ones on the cases."""
        signs = {math.copysign(1, c) for c in part.terms.values()}
        if signs == {-1.0}:
            effect = "it is minus a divergence"
            if self.judged == "gradient":
                effect = "minimising it drives logprob away"
            self.add("wrong_sign", f"The sign is wrong: {effect}.", **part.terms)
        if (
            signs in ({-1.0}, {1.0})
            or part.verdict == "zero"
            or not self.look.points.get("gradient")
        ):
            return
        along: dict[str, float] = {}
        for name in ("kl_qp", "kl_pq"):
            for label, (g, drift) in self.exact("gradient", {name: 1.0}).items():
                cosine = float(torch.cosine_similarity(g, drift, dim=0))
                if math.isfinite(cosine):
                    along[label] = max(cosine, along.get(label, -1.0))
        against = [label for label, cosine in along.items() if cosine < 0]
        where = f"{len(against)} of {len(along)} reference cases ({', '.join(against)})"
        if against:
            code = "wrong_sign" if len(against) == len(along) else "mixed_sign"
            self.add(code, f"Minimising it raises both KLs on {where}.", **along)

    # --- numerics: where it breaks ---------------------------------------------------------------

    def numerics(self) -> None:
        """Clamps, overflow, NaN in the backward pass, cancellation; far from 0 it may refuse."""
        for kind in self.kinds[: 1 + self.pushes]:
            self.clamps(kind)
        low, high = self.parts[self.judged].clamps
        if min(-low, high) < math.inf and self.cost(self.judged):
            self.facts["only"] = (f"log r in [{low:.4g}, {high:.4g}]",)
        for kind in self.kinds:
            self.weight(kind)
        if self.look.floor <= GUARD:
            sentence = "Far out it is cut in a log-probability, not in the log-ratio."
            self.add("not_difference", sentence, log_ratio=self.look.floor)
        broken = _scan.not_finite(self.look.far, slope=self.pushes)
        for code, what in _BROKEN.items():
            if broken[code]:
                at = ", ".join(f"{l:.4g} in {name}" for name, l in broken[code].items())
                self.add(code, f"{what} from log r = {at}.", **broken[code])
        with contextlib.suppress(Refused):
            truth = functools.partial(self.look.close_to_zero, self.parts["value"])
            lost = _scan.cancellation(self.look.far, truth) if "value" in self.look.points else {}
            if lost:
                at, error = max(lost.items(), key=lambda item: item[1])
                sentence = f"At log r = {at} the value in float32 is off by {100 * error:.3g} %."
                self.add("cancellation", sentence, **lost)

    def clamps(self, kind: str) -> None:
        part, ends = self.parts[kind], self.look.clamps().get(kind, NOWHERE)
        cost = self.cost(kind)
        if ends == NOWHERE and cost:
            self.otherwise(kind, cost)
        if ends == NOWHERE or (not cost and min(map(abs, ends)) > GUARD):
            return
        sides = zip(("below", "above"), ends, strict=True)
        where = " and ".join(f"{side} log r = {l:.5g}" for side, l in sides if math.isfinite(l))
        price = "; on the reference cases that costs nothing" if part.verdict == "fits" else ""
        if cost:
            worst = max(cost, key=cost.get)
            price = f"; on “{worst}” that takes {100 * cost[worst]:.3g} % of it away"
        what = "value is constant" if kind == "value" else "gradient is exactly 0"
        sentence = f"The {what} {where}{price}."
        self.add(f"clamp_{kind}", sentence, low=ends[0], high=ends[1], cost=cost)

    def cost(self, kind: str) -> dict[str, float]:
        """{case: relative error} where what was fitted around log r = 0 is off."""
        part = self.parts[kind]
        if part.verdict != "fits":
            return {}
        constant = part.free["constant"] if kind == "value" else 0.0
        errors = {
            label: float((got - constant - want).norm() / want.norm())
            for label, (got, want) in self.exact(kind, part.terms).items()
        }
        return {label: e for label, e in errors.items() if not e <= self.tolerance(kind)}

    def weight(self, kind: str) -> None:
        """Where the importance weight is no longer w, and what that takes away."""
        ends, cost = self.look.weights(kind), {}
        if ends == NOWHERE:
            return
        for label, laws in TRIPLES.items():
            old, q, p = (torch.tensor(law, dtype=torch.float64) for law in laws)
            at = {"old_logprob": old.log(), "logprob": q.log(), "ref_logprob": p.log()}
            got = old * self.look.target(kind, self.probe.tokens(at))
            want = q * self.look.target(kind, self.probe.tokens(at | {"old_logprob": q.log()}))
            if kind == "gradient":  # E[c (e_x − π)]
                got, want = (part - q * part.sum() for part in (got, want))
            else:
                got, want = got.sum(), want.sum()
            cost[label] = float((got - want).norm() / want.norm())
        cost = {label: c for label, c in cost.items() if not c <= self.tolerance(kind)}
        if not cost and min(map(abs, ends)) > WEIGHT_GUARD:
            return
        low, high = map(math.exp, ends)
        bounds = [f"below w = {low:.5g}"] * (low > 0) + [f"above w = {high:.5g}"] * (
            high < math.inf
        )
        price = "; on the reference triples that costs nothing"
        if cost:
            worst = max(cost, key=cost.get)
            price = f"; on “{worst}” that moves it by {100 * cost[worst]:.3g} %"
        sentence = f"The {kind} is not weighted by w = exp(logprob − old_logprob) "
        sentence += f"{' and '.join(bounds)}{price}."
        numbers = {"low_weight": low, "high_weight": high, "weight_cost": cost}
        for found in [f for f in self.findings if f.code == f"clamp_{kind}"]:
            self.findings.remove(found)  # one finding says both
            sentence, numbers = f"{found.sentence} {sentence}", {**found.numbers, **numbers}
        self.add(f"clamp_{kind}", sentence, **numbers)
        self.facts["weight_cut"] = True
        where = f"w in [{low:.4g}, {high:.4g}]"
        if kind == self.judged:
            self.facts["only"] += (where,)

    def otherwise(self, kind: str, cost: dict[str, float]) -> None:
        """Fitted near log r = 0, and something else, though no clamp, farther out."""
        worst = max(cost, key=cost.get)
        low, high = self.parts[kind].region
        near, off = sum_of(self.parts[kind].terms), 100 * cost[worst]
        said = f"is not {near}: on “{worst}” off by {off:.3g} %"
        self.add("bias", f"Outside log r in [{low:.4g}, {high:.4g}] the {kind} {said}.", **cost)
        self.claimed[kind] = None


_BROKEN = {
    "overflow": "Not finite",
    "nan_gradient": "The gradient is NaN, the value finite,",
}


def taken_as(binding: Binding) -> str:
    """What of the roles is a guess: "a = logprob, b = ref_logprob"."""
    return ", ".join(f"{name} = {role}" for name, role in binding.guessed)


def name_of(fn) -> str:
    """A short name of a callable."""
    name = getattr(fn, "__name__", None) or getattr(fn, "name", None)
    return str(name or getattr(getattr(fn, "func", None), "__name__", type(fn).__name__))
