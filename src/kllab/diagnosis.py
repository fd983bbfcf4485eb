r"""What a run's logged log-probabilities say about the run, and what they cannot say.

Two tensors (B, T) and a mask: ``logprob`` of the tokens that were sampled, under the policy q that
is said to have drawn them, and ``ref_logprob`` of the same tokens under p. r = p/q, in nats.

If the tokens were drawn from exp(logprob), and both are normalised, then E[r] at a prefix is the
mass that p has where q is above 0, as long as the mask does not look at the token itself. That is
1, or less where q is cut, as after top-k; it is never more. So the running product of 1 + λ(r − 1),
0 ≤ λ ≤ 1, never gains on average: that it reaches 10,000 has probability below 1/10,000. This needs
no variance, no independence of tokens and no number of samples.

A mean *below* 1 says less. A cut that is in logprob too brings it about, and all is well: k1
estimates KL(q‖p), and k3 lies below it by 1 − E[r]. The missing mass can also be on a token too
rare to have come. The game that is played here is fair where p has no mass outside of q's, and
where no r is above ten times the largest one before it.

=============== ==================================== ============================================
code            what shows it                        how sure
=============== ==================================== ============================================
above_zero      a log-probability above 0            certain
impossible      log q = −inf at a drawn token        certain
infinite        log p = −inf at a drawn token        certain
identical       log r = 0 everywhere                 certain; right at step 0
padding         equal values along an edge           a model that repeats a token looks the same
half_precision  all values on a 16-bit grid          certain
scaled          log p a multiple of log q            certain: one of them is not normalised
misaligned      log p fits the next token better     5 standard errors
truncated       log r never above 0, or never below  E[r] ≠ 1; a rare token can look the same
swapped         E[1/r] = 1 and E[r] > 1              E[r] > 1, then the closer of the two
noise           k1 near 0, k3 and the mean of r not  E[r] > 1; a sampler half way looks the same
temperature     log r is a fifth explained by log q  a trained policy can look the same
negative_kl     Σ k1 < −log 10,000                   wrong in 1 run of 10,000
mean_ratio      E[r] > 1                             wrong in 1 run of 10,000; names no cause
ratio_below_one E[r] < 1                             q cut, a tail not drawn, or another sampler
one_token       one token has half of Σ k3           a fact about these samples
heavy_tail      tail index of r below 2              4 standard errors of the Hill estimate
=============== ==================================== ============================================

How much it takes, for 99 runs of 100: 200 tokens for a temperature, 50 pairs of neighbours for
misaligned, k padded rows of T places with (T/2)^k > 10,000, so three at T = 64. Of n tokens:
n · KL = 100 for swapped, n · s² = 400 for noise of sd s, n · (1 − S) = 100 for a filter that keeps
S of the mass. With less, a run can pass as healthy.

Not to be seen here: samples at another temperature than *both* tensors, when the two models are
close; a wrong position or dropout in p alone, which is one more distribution; a loss, its sign and
its clamps, which :func:`~kllab.auditor.audit` looks at.

Sources: J. Ville (1939) for the inequality; B. Hill (1975) for the tail index; R. A. Fisher (1915)
for the comparison of correlations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kllab._findings import SCHEMA, Finding, plain
from kllab._masks import HOW, aggregate, as_mask
from kllab._report import as_html, as_text
from kllab.checks import InputError, _from_array_like
from kllab.estimators import K1, K3

LOG_ODDS = math.log(1e4)
"""Evidence that counts, in nats: a fair game reaches it once in 10,000 runs, or less often."""
FEW = 8
"""From so many sequences on, standard errors are those of sequences, else those of tokens."""

INSTEAD = {
    "above_zero": "Mask padding before you average, and pass log-probabilities: no probabilities,"
    " negatives or logits.",
    "impossible": "Use the log-probabilities that the sampler used, after its own filters.",
    "infinite": "Compare models on the tokens that both can produce, or report KL as infinite.",
    "identical": "Right at step 0. Later, check that ref_logprob comes from frozen weights.",
    "padding": "Pass the mask of the tokens that were sampled.",
    "half_precision": "Compute log_softmax in float32 and keep its result in float32.",
    "scaled": "Divide logits by the temperature, then take log_softmax.",
    "misaligned": "logprob[t] and ref_logprob[t] must belong to one token: shift one of them,"
    " or put its rows in order.",
    "truncated": "Take both log-probabilities over one set of tokens, all or those kept. If a cut"
    " policy is what you measure, log k1.",
    "swapped": "Exchange the two tensors, or weight each token by exp(logprob − old_logprob).",
    "noise": "Log k1 beside k3, and compute both log-probabilities with one engine in float32.",
    "temperature": "Give both models the temperature of the sampler.",
    "heavy_tail": "Trust neither the mean of k3 nor its standard error: log k1.",
    "one_token": "Report k1 beside k3, and look at this token.",
    "negative_kl": "Take logprob from the model and the settings that drew the tokens.",
    "mean_ratio": "Compare the sampler with logprob: temperature, filters, banned tokens, weights"
    " that have moved since, mask.",
    "ratio_below_one": "If logprob has the sampler's top-k, top-p or bans, log k1: it is right, and"
    " k3 too low by 1 − mean r. If not, draw more tokens and see whether r stays below 1; then"
    " compare the sampler with logprob, and check that ref_logprob sums to 1.",
}
"""Every code that a diagnosis can have, and what to do."""


@dataclass(frozen=True)
class Mean:
    """An average in nats (a ratio for ``mean_ratio``) and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ± {self.error:.2g}"


@dataclass(frozen=True)
class Tail:
    """Hill's tail index of r, P(r > x) ∝ x^−index, from the ``rests_on`` largest ratios.

    Below 2, these samples cannot measure the variance of r. ``inf`` where no tail is to be seen.
    """

    index: float
    error: float
    rests_on: int


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found, all means over kept tokens.

    ``evidence``: that E[r] is ``"above"`` 1, and that it is ``"below"``, each the log of a game's
    winnings, nats; it counts from ``LOG_ODDS`` on. ``noise_sd``: sd of independent noise on log r
    that would make the mean of r as large as it is: of ``k3`` its half square is noise.
    ``largest_share``: of the largest token, in the sums of r and of k3. ``aggregations``:
    ``{"k1": {how: value}, "k3": ...}``, see :func:`kllab.sequences.aggregate`. ``clustered``:
    standard errors take sequences as the independent units; with fewer than eight they take tokens.
    """

    tokens: int
    sequences: int
    clustered: bool
    k1: Mean
    k3: Mean
    mean_ratio: Mean
    evidence: Mapping[str, float]
    noise_sd: float
    tail: Tail
    largest_share: Mapping[str, float]
    aggregations: Mapping[str, Mapping[str, float]]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Nothing found."""
        return not self.findings

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the findings, the most telling first."""
        return tuple(finding.code for finding in self.findings)

    def __str__(self) -> str:
        return as_text(self._verdict(), self._rows(), self.findings)

    def _repr_html_(self) -> str:
        return as_html(self._verdict(), self._rows(), self.findings)

    def to_dict(self) -> dict:
        """Everything as dicts, lists, strings and numbers, with the version of this schema."""
        return plain({"schema": SCHEMA, "healthy": self.healthy, **vars(self)})

    def _verdict(self) -> str:
        verdict = "healthy" if self.healthy else "found " + ", ".join(self.codes)
        return f"{verdict}: {self.tokens:,} tokens in {self.sequences:,} sequences"

    def _rows(self) -> list[tuple[str, str]]:
        unit = "sequences" if self.clustered else "tokens, taken as independent"
        sides = ", ".join(f"{side} 1: {x:.3g} nats" for side, x in self.evidence.items())
        noise = f"sd {self.noise_sd:.3g} would do it: {self.noise_sd**2 / 2:.2g} of k3"
        shares = ", ".join(f"{x:.1%} of {of}" for of, x in self.largest_share.items())
        k1s, k3s = self.aggregations["k1"], self.aggregations["k3"]
        return [
            ("k1", f"{self.k1} nats; errors from {unit}"),
            ("k3", f"{self.k3} nats"),
            ("mean r", f"{self.mean_ratio}; evidence that it is {sides}"),
            ("mean r as noise", noise),
            ("tail of r", f"index {self.tail.index:.3g}, from {self.tail.rests_on} tokens"),
            ("largest token", shares),
            *((how, f"k1 {k1s[how]:.4g}, k3 {k3s[how]:.4g} nats") for how in HOW),
        ]


def diagnose(logprob, ref_logprob, mask=None) -> Diagnosis:
    """Look at logged log-probabilities of sampled tokens, and name what is wrong with them.

    ``logprob``, ``ref_logprob``: (B, T), or (T,) for one sequence, floating, nats, of tokens drawn
    from exp(logprob); half precision is upcast. ``mask``: the same shape, bool or 0/1, true for
    tokens that count. Values in masked places never matter, NaN included. −inf is legal.

    Returns a :class:`Diagnosis`. Statistics leave out tokens with log q = −inf, which cannot have
    been drawn. Codes, and how sure each is, are in the table above.

    Raises ``InputError`` for shapes that differ, integers, NaN or +inf at a kept place, or no token
    to look at.

    >>> g = torch.Generator().manual_seed(0)
    >>> logits = torch.randn(100, generator=g, dtype=torch.float64)
    >>> log_q = torch.log_softmax(logits, -1)
    >>> log_p = torch.log_softmax(logits + 0.3 * torch.randn(100, generator=g), -1)
    >>> tokens = torch.multinomial(log_q.exp(), 64 * 50, replacement=True, generator=g).view(64, 50)
    >>> diagnose(log_q[tokens], log_p[tokens]).healthy
    True
    >>> diagnose(log_q[tokens], log_p[tokens].roll(1, -1)).codes[0]
    'misaligned'
    """
    log_q, log_p = _logged("logprob", logprob), _logged("ref_logprob", ref_logprob)
    if log_q.shape != log_p.shape:
        raise InputError("ref_logprob", f"shape {tuple(log_q.shape)}", f"{tuple(log_p.shape)}")
    keep = torch.ones_like(log_q, dtype=torch.bool)
    if mask is not None:
        mask = torch.as_tensor(mask).detach().cpu()
        keep = as_mask(mask[None] if mask.ndim == 1 else mask, log_q.shape, log_q.device)
    for name, x in (("logprob", log_q), ("ref_logprob", log_p)):
        if (bad := torch.isnan(x[keep]) | (x[keep] == math.inf)).any():
            raise InputError(name, "no NaN and no +inf at kept places", f"{int(bad.sum())}")
    drawn = keep & (log_q > -math.inf)
    if not drawn.any():
        raise InputError("logprob", "at least one kept token with log q > -inf", "none")
    # Other places are replaced before any arithmetic.
    run = _Run(torch.where(drawn, log_q, 0.0), torch.where(drawn, log_p, 0.0), drawn)
    log_ratio, impossible = run.log_p - run.log_q, int((keep & ~drawn).sum())
    values = {"k1": K1(log_ratio), "k3": K3(log_ratio)}
    values |= {"r": log_ratio.exp(), "1/r": (-log_ratio).exp()}
    means = {name: run.mean(value) for name, value in values.items()}
    shares = {name: _share(values[name][drawn]) for name in ("r", "k3")}
    log_r = log_ratio[drawn]
    evidence, tail = _evidence(log_r), _hill(log_r)
    found = _note(
        "impossible",
        impossible > 0,
        f"logprob gives probability 0 to {impossible} tokens that were drawn.",
        count=impossible,
    )
    found |= run.at_a_look(log_r) | run.patterns(log_r, means, evidence)
    found |= _tails(log_r, shares["k3"], tail)
    return Diagnosis(
        tokens=len(log_r),
        sequences=run.sequences,
        clustered=run.sequences >= FEW,
        k1=means["k1"],
        k3=means["k3"],
        mean_ratio=means["r"],
        evidence=evidence,
        noise_sd=math.sqrt(2 * max(0.0, means["r"].value - 1)),
        tail=tail,
        largest_share=shares,
        aggregations={name: run.aggregations(values[name]) for name in ("k1", "k3")},
        findings=tuple(Finding(c, *found[c], INSTEAD[c]) for c in INSTEAD if c in found),
    )


def _logged(argument: str, value) -> Tensor:
    x = value if isinstance(value, Tensor) else _from_array_like(argument, value)
    if not x.is_floating_point() or x.ndim not in (1, 2):
        raise InputError(argument, "floating (B, T) or (T,)", f"{x.dtype} {tuple(x.shape)}")
    return torch.atleast_2d(x.detach().cpu().double())


def _note(code: str, holds: bool, sentence: str, /, **numbers: float) -> dict:
    return {code: (sentence, numbers)} if holds else {}


@dataclass(frozen=True)
class _Run:
    """Cleaned tensors (B, T) float64: 0 where not kept, log q finite."""

    log_q: Tensor
    log_p: Tensor
    keep: Tensor

    @property
    def sequences(self) -> int:
        return int(self.keep.any(-1).sum())

    def mean(self, values: Tensor) -> Mean:
        count, mean = int(self.keep.sum()), float(values[self.keep].mean())
        if not math.isfinite(mean) or count < 2:
            return Mean(mean, math.inf)
        off = torch.where(self.keep, values - mean, 0.0)
        off = off.sum(-1)[self.keep.any(-1)] if self.sequences >= FEW else off[self.keep]
        return Mean(mean, math.sqrt(float(off @ off) * len(off) / (len(off) - 1)) / count)

    def aggregations(self, values: Tensor) -> dict[str, float]:
        return {how: float(aggregate(values, self.keep, how=how)) for how in HOW}

    def at_a_look(self, log_r: Tensor) -> dict:
        """What shows whatever the noise."""
        both = {"logprob": self.log_q[self.keep], "ref_logprob": self.log_p[self.keep]}
        top, never = max(float(x.max()) for x in both.values()), int((log_r == -math.inf).sum())
        found = _note(  # rounding of a probability near 1 stays below
            "above_zero",
            top > 1e-3,
            f"Some log-probabilities are above 0, up to {top:.4g}.",
            largest=top,
        )
        found |= _note(
            "infinite",
            never > 0,
            f"ref_logprob gives probability 0 to {never} drawn tokens: KL(q‖p) is infinite.",
            count=never,
        )
        found |= _note("identical", not log_r.any(), "Both tensors are equal at every token.")
        evidence = self.padding()
        found |= _note(
            "padding",
            evidence > LOG_ODDS,
            "Rows begin or end with repeated values: padding, or a model in a loop.",
            evidence=evidence,
        )
        grids = {name: eps for name, x in both.items() if (eps := _grid(x))}
        ulps = [
            eps * both[n].abs().clamp(min=1e-30).log2().floor().exp2() for n, eps in grids.items()
        ]
        noise = sum(float(ulp[ulp.isfinite()].square().mean()) / 12 for ulp in ulps)
        return found | _note(
            "half_precision",
            bool(grids),
            f"{' and '.join(grids)} in half precision: rounding alone is {noise / 2:.2g} of k3.",
            noise_sd=noise**0.5,
            k3_floor=noise / 2,
        )

    def padding(self) -> float:
        """Log evidence that equal neighbours along the tensor's edges are more than chance, nats.

        Each pair of values stands in a run, mostly of one token. Were the edges like the rest, the
        k longest runs would all be there with probability (edges/runs)^k.
        """
        if self.keep.shape[1] == 1:
            return 0.0
        pair = self.keep[:, 1:] & self.keep[:, :-1]
        other = pair & ((self.log_q.diff() != 0) | (self.log_p.diff() != 0))
        same = pair & ~other
        lead, trail = same.int().cumprod(-1), same.flip(-1).int().cumprod(-1)
        inside = same & (lead == 0) & (trail.flip(-1) == 0)
        place = torch.arange(1, same.shape[1] + 1)
        longest = (place - torch.where(inside, 0, place).cummax(-1).values).amax()
        # A row of one pair all along is one run, at both of its edges.
        at_edge = torch.cat([lead.sum(-1), trail.sum(-1) * other.any(-1)])
        runs, edges = int(other.sum()), int(pair[:, 0].sum() + pair[:, -1].sum())
        return int((at_edge > longest).sum()) * math.log(max(runs, 1) / max(edges, 1))

    def patterns(self, log_r: Tensor, means: Mapping[str, Mean], evidence: Mapping) -> dict:
        """What only many tokens show."""
        low, high = float(log_r.min()), float(log_r.max())
        k1, k3, r, inverse = (means[name] for name in ("k1", "k3", "r", "1/r"))
        numbers = {"mean_ratio": r.value, "mean_inverse": inverse.value, "k1": k1.value}
        above = evidence["above"] > LOG_ODDS  # Fixed stakes win only where the mean is above 1.
        below = evidence["below"] > LOG_ODDS and r.value < 1
        here, pairs = self.correlation(0)
        there, shift = max((self.correlation(shift)[0], shift) for shift in (1, -1))
        better = math.atanh(there) - math.atanh(here)  # Fisher's z
        shifted = there > 0.5 and better > 5 * math.sqrt(2 / pairs)
        found = _note(
            "misaligned",
            shifted or (above and pairs >= 200 and here < 0.1),
            f"logprob[t] has correlation {here:.2g} with ref_logprob[t], and {there:.2g} with"
            f" ref_logprob[t {shift:+d}].",
            here=here,
            there=there,
            shift=shift,
        )
        # One law is a power of the other only where the two go together.
        found = found or (_line(self.log_q[self.keep], log_r) if here > 0.5 else {})
        if (above or below) and found.keys() <= {"temperature"}:
            found = _note(
                "truncated",
                high < 1e-5 or low > -1e-5,
                f"r is {r.value:.4g} on average and never "
                + (
                    "above 1: logprob is over fewer tokens, or a rare token has not come."
                    if high < 1e-5
                    else "below 1: the sampler keeps fewer tokens than logprob does."
                ),
                **numbers,
            )
            found = found or _note(
                "swapped",
                r.value - 1 > max(3 * abs(inverse.value - 1), 4 * inverse.error, 4 * r.error),
                f"The mean of 1/r is {inverse}, that of r is {r}: as samples from ref_logprob.",
                **numbers,
            )
            found = found or _note(
                "noise",
                r.value > 1 + 4 * r.error
                and 3 * abs(k1.value) < k3.value
                and abs(k1.value) < max(4 * k1.error, k3.value / 10),
                "log r scatters to both sides alike, as by rounding, dropout, or a sampler that is"
                f" neither: k1 is {k1}, k3 {k3}.",
                **numbers,
            )
            if "swapped" in found and here > 0.5:
                found |= _line(self.log_p[self.keep], log_r)
        total = float(log_r.sum())
        found |= _note(
            "negative_kl",
            total > LOG_ODDS,
            f"k1 sums to {-total:.4g} nats, which samples from logprob hardly ever do.",
            sum=-total,
        )
        found |= _note(
            "mean_ratio",
            above,
            f"The mean of r is {r}, above 1: these are not samples from logprob, or one of the two"
            " is not normalised.",
            evidence=evidence["above"],
            **numbers,
        )
        return found | _note(
            "ratio_below_one",
            below,
            f"The mean of r is {r}, below 1: logprob is cut where ref_logprob is not, or tokens of"
            " large r have not come, or logprob is not what drew them, or ref_logprob is not"
            " normalised.",
            evidence=evidence["below"],
            **numbers,
        )

    def correlation(self, shift: int) -> tuple[float, int]:
        """Of logprob[t] with ref_logprob[t + shift] inside sequences, and the number of pairs."""
        width = self.keep.shape[1] - abs(shift)
        usable = self.keep & self.log_p.isfinite()
        a, b = (slice(max(0, s), max(0, s) + width) for s in (-shift, shift))
        pair = usable[:, a] & usable[:, b]
        both = torch.stack([self.log_q[:, a][pair], self.log_p[:, b][pair]])
        if both.shape[1] < 50 or float(both.std(-1).min()) < 1e-9:
            return 0.0, 1
        return float(torch.corrcoef(both)[0, 1].clamp(-0.9999, 0.9999)), both.shape[1]


def _line(log_s: Tensor, log_r: Tensor) -> dict:
    """Whether log r is a line in the sampler's log-probability: one law a power of the other."""
    both = torch.stack([log_s, log_r])
    # Tokens of one prefix and one kind are one point of the line, however often they came.
    points = len(log_s) ** 2 / float(log_s.unique(return_counts=True)[1].square().sum())
    if len(log_s) < 200 or points < 10 or not both.isfinite().all():
        return {}
    (vx, cov), (_, vy) = torch.cov(both).tolist()
    slope, explained = cov / vx, cov**2 / (vx * vy) if vy > 1e-12 else 0.0
    start = abs(float(log_r.mean()) - slope * float(log_s.mean()))
    scaled = _note(
        "scaled",
        explained > 1 - 1e-6 and start < 1e-4,
        f"log r is {slope:.4g} times the log-probability: one of the two is not normalised.",
        slope=slope,
    )
    return scaled or _note(
        "temperature",
        explained > 0.2 and explained * (points - 2) > 25 * (1 - explained),
        f"log r follows the log-probability, {explained:.0%} of it, as by another temperature.",
        slope=slope,
        explained=explained,
    )


def _share(values: Tensor) -> float:
    """Of the largest value in the sum; 1 where it is infinite, 0 where all are 0."""
    top, total = float(values.max()), float(values.sum())
    return 1.0 if total == math.inf else top / total if total > 0 else 0.0


def _grid(x: Tensor) -> float:
    """ε of the 16-bit format whose grid has all of ``x``; 0 if none, or too few values to tell."""
    for dtype in (torch.bfloat16, torch.float16):
        if len(x.unique()) >= 16 and bool((x.to(dtype).double() == x).all()):
            return torch.finfo(dtype).eps
    return 0.0


def _evidence(log_r: Tensor) -> dict[str, float]:
    """Log of the winnings of two games: that E[r] is above 1, and that it is below."""
    log_r = log_r.clamp(max=700.0)
    excess = torch.expm1(log_r)
    # A stake must be known before its token: what is the largest r so far, at least 1?
    largest = torch.cat([log_r.new_zeros(1), log_r.cummax(0).values[:-1]]).clamp(min=0.0).exp()
    down = -1 / (10 * largest - 1)
    bets = torch.stack([x * excess for x in (0.5, 0.125, 0.03125, down, down / 4)])
    games = torch.cat([log_r.sum()[None], torch.log1p(bets.clamp(min=-1.0)).sum(-1)])
    sides = {"above": games[:4], "below": games[4:]}
    return {side: float(x.logsumexp(0)) - math.log(len(x)) for side, x in sides.items()}


def _hill(log_r: Tensor) -> Tail:
    k = min(math.ceil(math.sqrt(len(log_r))), len(log_r) - 1)
    top = log_r.sort(descending=True).values[: k + 1]
    spread = float((top[:-1] - top[-1]).sum())
    if not 0 < spread < math.inf:
        return Tail(math.inf, math.inf, 0)
    return Tail(k / spread, k**0.5 / spread, k)


def _tails(log_r: Tensor, share: float, tail: Tail) -> dict:
    largest = float(log_r[K3(log_r).argmax()])
    found = _note(
        "one_token",
        share > 0.5 and len(log_r) >= 100 and math.log(10) < abs(largest) < math.inf,
        f"One token of {len(log_r):,} has {share:.0%} of k3; its log r is {largest:.4g}.",
        share=share,
        log_r=largest,
    )
    return found | _note(
        "heavy_tail",
        tail.rests_on >= 10 and tail.index + 4 * tail.error < 2,
        f"P(r > x) falls like x^−{tail.index:.2g}: these samples cannot measure the variance of r.",
        **vars(tail),
    )
