"""The diagnosis: numbers against plain sums, healthy runs called healthy, sick runs named.

Runs are drawn from tables of logits, one row a prefix, so that every cause is known. A sick run
is named on at least 99 of 100 seeds; a healthy one has no finding on any of them.
"""

from __future__ import annotations

import itertools
import json
import math
import re

import numpy as np
import pytest
import torch

import kllab.diagnosis
from kllab.checks import InputError
from kllab.diagnosis import INSTEAD, diagnose

SEEDS = range(100)
NEVER = -math.inf


# --- runs -----------------------------------------------------------------------------------------


def table(g, prefixes=32, V=50) -> torch.Tensor:
    """Logits (prefixes, V), from nearly flat rows to nearly certain ones."""
    scale = 0.5 + 4.5 * torch.rand(prefixes, 1, generator=g, dtype=torch.float64)
    return scale * torch.randn(prefixes, V, generator=g, dtype=torch.float64)


def moved(logits, by, g):
    return logits + by * torch.randn(logits.shape, generator=g, dtype=torch.float64)


def any_seed(g):
    return int(torch.randint(10**6, (), generator=g))


def draw(logits, g, B=64, T=64):
    """Prefixes and tokens, as one index into a table."""
    law = torch.softmax(logits, -1)
    prefix = torch.randint(len(law), (B * T,), generator=g)
    cdf = law.cumsum(-1) / law.sum(-1, keepdim=True)
    stacked = (cdf + torch.arange(len(law))[:, None]).flatten()
    u = torch.rand(B * T, generator=g, dtype=torch.float64)
    token = torch.searchsorted(stacked, prefix + u, right=True) - prefix * law.shape[1]
    return prefix.view(B, T), token.clamp(max=law.shape[1] - 1).view(B, T)


def at(logits, drawn):
    return torch.log_softmax(logits, -1)[drawn]


def ragged(shape, g):
    length = torch.randint(shape[1] // 4 + 1, shape[1] + 1, (shape[0], 1), generator=g)
    return torch.arange(shape[1]) < length


def head(logits, mass):
    """The same with -inf outside the smallest head that has ``mass``."""
    p, order = torch.softmax(logits, -1).sort(-1, descending=True)
    out = torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, p.cumsum(-1) - p >= mass)
    return logits.masked_fill(out, NEVER)


def top(logits, k):
    """The same with -inf outside the k likeliest."""
    return logits.masked_fill(logits < logits.topk(k, -1).values[:, -1:], NEVER)


def healthy_run(seed, B, T, V, prefixes, by):
    g = torch.Generator().manual_seed(seed)
    ref = table(g, prefixes, V)
    policy = moved(ref, by, g)
    drawn = draw(policy, g, B, T)
    return at(policy, drawn).float(), at(ref, drawn).float(), ragged((B, T), g)


@pytest.mark.parametrize(
    ("B", "T", "V", "prefixes", "by"),
    [
        (1, 64, 50, 32, 0.1),
        (2, 8, 50, 8, 0.2),
        (4, 256, 200, 32, 0.03),
        (96, 64, 50, 32, 0.01),
        (64, 32, 50, 32, 0.3),
        (512, 1, 50, 32, 0.2),
        (16, 512, 8, 4, 0.5),
        (1, 2048, 50, 1, 0.2),
        (64, 64, 2, 1, 0.5),
        (64, 64, 1000, 16, 0.2),
        (1, 1, 5, 1, 0.2),
        (64, 64, 50, 32, 0.7),
    ],
)
def test_a_healthy_run_is_called_healthy(B, T, V, prefixes, by):
    found = [diagnose(*healthy_run(seed, B, T, V, prefixes, by)).codes for seed in SEEDS]
    assert not [(seed, codes) for seed, codes in enumerate(found) if codes]


def test_a_healthy_run_in_which_the_prefix_is_what_was_drawn_before():
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        ref = 1.5 * torch.randn(20, 20, generator=g, dtype=torch.float64)
        policy = moved(ref, 0.3, g)
        law, state, rows = torch.softmax(policy, -1), torch.zeros(64, dtype=torch.long), []
        for _ in range(40):
            token = torch.multinomial(law[state], 1, generator=g)[:, 0]
            rows.append((state, token))
            state = token
        drawn = tuple(torch.stack(part, 1) for part in zip(*rows, strict=True))
        assert diagnose(at(policy, drawn), at(ref, drawn)).healthy


CUTS = {
    "top-2": lambda logits: top(logits, 2),
    "top-20": lambda logits: top(logits, 20),
    "top-p .5": lambda logits: head(logits, 0.5),
    "top-p .9": lambda logits: head(logits, 0.9),
    "top-p .99": lambda logits: head(logits, 0.99),
}


@pytest.mark.parametrize("by", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_that_logprob_knows_of_is_not_called_another_sampler(cut, by):
    """Top-k and top-p, renormalised, against a whole reference: E[r] is the kept mass of p."""
    for seed in SEEDS:
        g = torch.Generator().manual_seed(seed)
        ref = table(g)
        policy = CUTS[cut](moved(ref, by, g))
        drawn = draw(policy, g)
        d = diagnose(at(policy, drawn), at(ref, drawn), ragged((64, 64), g))
        assert set(d.codes) <= {"truncated", "ratio_below_one"}
        assert d.evidence["above"] < 0


@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_of_nearly_flat_models_is_not_called_a_shift(cut):
    """Their log-probabilities have no correlation, as those of tensors out of place."""
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        policy, ref = (0.3 * torch.randn(64, 50, generator=g, dtype=torch.float64) for _ in "qp")
        policy = CUTS[cut](policy)
        drawn = draw(policy, g)
        assert set(diagnose(at(policy, drawn), at(ref, drawn)).codes) <= {
            "truncated",
            "ratio_below_one",
        }


SICK = {}


def sick(*codes):
    """A run that must have these codes, the first one first if it names a cause."""

    def register(make):
        SICK[make.__name__] = make, codes
        return make

    return register


@sick("temperature")
def rollout_at_another_temperature(g):
    trainer = table(g)
    drawn = draw(trainer / 0.6, g)
    return at(trainer / 0.6, drawn), at(trainer, drawn), ragged((64, 64), g)


@sick("swapped", "temperature", "mean_ratio")
def trainer_without_the_temperature_of_the_rollout(g):
    trainer = table(g)
    drawn = draw(trainer / 0.6, g)
    return at(trainer, drawn), at(trainer / 0.6, drawn), ragged((64, 64), g)


@sick("scaled", "mean_ratio")
def log_probabilities_divided_by_the_temperature(g):
    trainer = table(g)
    drawn = draw(trainer / 0.6, g)
    return at(trainer, drawn) / 0.6, at(trainer, drawn), ragged((64, 64), g)


@sick("truncated", "ratio_below_one")
def rollout_renormalised_after_top_p(g):
    trainer = table(g)
    rollout = head(trainer, 0.9)
    drawn = draw(rollout, g)
    return at(rollout, drawn), at(trainer, drawn), ragged((64, 64), g)


@sick("truncated", "negative_kl", "mean_ratio")
def trainer_against_a_renormalised_rollout(g):
    trainer = table(g)
    rollout = head(trainer, 0.9)
    drawn = draw(rollout, g)
    return at(trainer, drawn), at(rollout, drawn), ragged((64, 64), g)


@sick("truncated", "negative_kl", "mean_ratio")
def top_2_of_five_tokens(g):
    policy = torch.tensor([[0.3, 0.25, 0.2, 0.15, 0.1]], dtype=torch.float64).log()
    ref = torch.tensor([[0.4, 0.3, 0.2, 0.06, 0.04]], dtype=torch.float64).log()
    drawn = draw(policy.masked_fill(policy < policy[0, 1], NEVER), g)
    return at(policy, drawn), at(ref, drawn), ragged((64, 64), g)


@sick("truncated", "negative_kl", "mean_ratio")
def end_of_sequence_banned(g):
    policy = torch.tensor([[0.9, 0.05, 0.05]], dtype=torch.float64).log()
    ref = torch.tensor([[0.2, 0.4, 0.4]], dtype=torch.float64).log()
    drawn = draw(policy.index_fill(1, torch.tensor([0]), NEVER), g)
    return at(policy, drawn), at(ref, drawn), ragged((64, 64), g)


def padded(g, policy_pad, ref_pad, left=False):
    ref = table(g)
    policy = moved(ref, 0.3, g)
    drawn = draw(policy, g)
    mask = ragged((64, 64), g)
    mask = mask.flip(-1) if left else mask
    return at(policy, drawn).where(mask, policy_pad), at(ref, drawn).where(mask, ref_pad), None


@sick("above_zero", "padding")
def pads_of_plus_one(g):
    return padded(g, 1.0, 1.0)


@sick("padding")
def pads_of_zero(g):
    return padded(g, 0.0, 0.0)


@sick("padding", "mean_ratio")
def pads_on_the_left_with_a_value_of_their_own(g):
    return padded(g, -3.2, -2.9, left=True)


@sick("misaligned")
def one_token_early(g):
    ref = table(g)
    policy = moved(ref, 0.3, g)
    drawn = draw(policy, g)
    return at(policy, drawn)[:, 1:], at(ref, drawn)[:, :-1], ragged((64, 63), g)


@sick("misaligned")
def one_token_late(g):
    logprob, ref, mask = one_token_early(g)
    return ref, logprob, mask


@sick("misaligned", "mean_ratio")
def rows_of_another_batch(g):
    ref = table(g)
    policy = moved(ref, 0.3, g)
    drawn = draw(policy, g)
    return at(policy, drawn), at(ref, drawn).roll(1, 0), None


@sick("swapped", "mean_ratio")
def stale_samples_from_the_second_tensor(g):
    old = table(g)
    drawn = draw(old, g)
    return at(moved(old, 0.4, g), drawn), at(old, drawn), ragged((64, 64), g)


@sick("swapped", "mean_ratio")
def dropout_in_the_policy_only(g):
    """Dropout differs at every token: each has a prefix of its own."""
    model = table(g, 1024, 20)
    drawn = draw(model, g, 16)
    return at(moved(model, 0.5, g), drawn), at(model, drawn), None


@sick("mean_ratio")
def stale_samples_from_a_third_model(g):
    old = table(g)
    drawn = draw(old, g, 96)
    return at(moved(old, 0.6, g), drawn), at(moved(old, 1.2, g), drawn), ragged((96, 64), g)


@sick("ratio_below_one")
def a_sharper_policy_and_a_filter_that_it_does_not_know_of(g):
    """Where the policy sits above its reference, so that most ratios are below 1."""
    ref = table(g)
    policy = moved(1.4 * ref, 0.1, g)
    drawn = draw(head(policy, 0.8), g)
    return at(policy, drawn), at(ref, drawn), ragged((64, 64), g)


@sick("ratio_below_one")
def a_reference_without_its_normalisation(g):
    ref = table(g)
    policy = moved(ref, 0.3, g)
    drawn = draw(policy, g)
    return at(policy, drawn), at(ref, drawn) / 0.7, ragged((64, 64), g)


@sick("noise", "mean_ratio")
def equal_weights_with_noise_on_both_sides(g):
    model = table(g, 1024, 20)
    drawn = draw(model, g)
    return at(moved(model, 0.6, g), drawn), at(moved(model, 0.6, g), drawn), None


@sick("half_precision")
def bfloat16(g):
    logprob, ref, mask = healthy_run(any_seed(g), 16, 32, 50, 32, 0.1)
    return logprob.bfloat16(), ref.bfloat16(), mask


@sick("half_precision")
def float16_on_one_side_and_upcast(g):
    logprob, ref, mask = healthy_run(any_seed(g), 16, 32, 50, 32, 0.1)
    return logprob, ref.half().float(), mask


@sick("identical")
def the_policy_as_its_own_reference(g):
    logprob, _, mask = healthy_run(any_seed(g), 16, 32, 50, 32, 0.1)
    return logprob, logprob.clone(), mask


@sick("one_token")
def one_token_at_22_nats(g):
    logprob, ref, mask = healthy_run(any_seed(g), 64, 32, 50, 32, 0.1)
    logprob[3, 1], ref[3, 1] = -22.743, -0.1
    return logprob, ref, mask


@sick("heavy_tail")
def a_ratio_with_tail_index_one_and_a_tenth(g):
    """r is Pareto with mean 1 and no variance."""
    u = torch.rand(128, 128, generator=g, dtype=torch.float64)
    log_r = math.log(0.1 / 1.1) - u.log() / 1.1
    ref = -10 - 30 * torch.rand(128, 128, generator=g, dtype=torch.float64)
    return ref - log_r, ref, None


@sick("infinite")
def reference_after_a_filter(g):
    model = table(g)
    drawn = draw(model, g)
    return at(model, drawn), at(head(model, 0.9), drawn), ragged((64, 64), g)


@sick("impossible", "truncated")
def policy_after_a_filter_that_the_sampler_had_not(g):
    model = table(g)
    drawn = draw(model, g)
    return at(head(model, 0.9), drawn), at(model, drawn), ragged((64, 64), g)


@sick("above_zero")
def negatives(g):
    logprob, ref, mask = healthy_run(any_seed(g), 16, 32, 50, 32, 0.1)
    return -logprob, -ref, mask


@sick("mean_ratio")
def a_prompt_that_somebody_else_wrote(g):
    ref = table(g)
    policy = moved(ref, 0.5, g)
    prompt = draw(moved(ref, 1.5, g), g, 128)
    answer = draw(policy, g, 128)
    drawn = tuple(torch.cat(part, 1)[:, 32:-32] for part in zip(prompt, answer, strict=True))
    return at(policy, drawn), at(ref, drawn), None


@pytest.mark.parametrize("name", SICK)
def test_a_sick_run_is_named(name):
    make, codes = SICK[name]
    found = [diagnose(*make(torch.Generator().manual_seed(seed))) for seed in SEEDS]
    first = codes[:1] if codes[0] not in ("mean_ratio", "ratio_below_one") else ()
    named = [set(codes) <= set(d.codes) and d.codes[: len(first)] == first for d in found]
    assert sum(named) >= 99, [d.codes for d, ok in zip(found, named, strict=True) if not ok][:5]


# --- numbers --------------------------------------------------------------------------------------


def won(side, sampler, policy, ref, n):
    """E[exp(evidence)] over all sequences of n tokens from ``sampler``."""
    log_q, log_p = (torch.tensor(law, dtype=torch.float64).log() for law in (policy, ref))
    log_r = log_p - log_q
    total = 0.0
    for tokens in itertools.product([x for x, mass in enumerate(sampler) if mass], repeat=n):
        weight = math.prod(sampler[token] for token in tokens)
        total += weight * math.exp(kllab.diagnosis._evidence(log_r[list(tokens)])[side])
    return total


PAIRS = [
    ((0.7, 0.2, 0.1), (0.4, 0.4, 0.2)),
    ((0.5, 0.5), (0.2, 0.8)),
    ((0.9, 0.05, 0.05), (0.2, 0.4, 0.4)),
    ((0.8, 0.2), (1.0, 0.0)),
    ((0.97, 0.03), (0.9, 0.1)),
]
CUT = (0.75, 0.25, 0.0), (0.3, 0.5, 0.2)


@pytest.mark.parametrize(("policy", "ref"), PAIRS)
@pytest.mark.parametrize("n", [1, 2, 6])
@pytest.mark.parametrize("side", ["above", "below"])
def test_the_evidence_is_a_fair_game(side, policy, ref, n):
    """By enumeration: the mean of what it wins is 1, so Markov's inequality holds."""
    assert won(side, policy, policy, ref, n) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 6])
def test_a_cut_loses_the_game_above_and_may_win_the_one_below(n):
    """E[r] = .8 at each token, so that a stake λ leaves 1 − .2 λ of itself."""
    expected = sum((1 - 0.2 * stake) ** n for stake in (1.0, 0.5, 0.125, 0.03125)) / 4
    assert won("above", CUT[0], *CUT, n) == pytest.approx(expected, abs=1e-12)
    assert won("below", CUT[0], *CUT, n) > 1.01


def test_the_evidence_is_too_sure_only_below_and_where_a_ratio_jumps_tenfold():
    """As the module says: the mean is below 1 until the rare token comes."""
    rare = (0.999, 0.001), (0.9, 0.1)
    assert won("below", rare[0], *rare, 6) > 1.001
    assert won("above", rare[0], *rare, 6) == pytest.approx(1, abs=1e-12)


def test_the_evidence_wins_where_the_samples_are_from_elsewhere():
    policy, ref = PAIRS[0]
    assert won("above", ref, policy, ref, 6) > 2
    assert won("above", (0.1, 0.1, 0.8), policy, ref, 6) > 2
    assert won("below", (1.0, 0.0, 0.0), policy, ref, 6) > 1.1


def test_the_evidence_by_hand():
    log_r = torch.tensor([0.5, -0.25, 1.0, -3.0], dtype=torch.float64)
    r = np.exp(log_r.numpy())
    down = -1 / (10 * np.array([1.0, r[0], r[0], r[2]]) - 1)
    sides = {"above": (1.0, 0.5, 0.125, 0.03125), "below": (down, down / 4)}
    assert kllab.diagnosis._evidence(log_r) == {
        side: pytest.approx(
            math.log(sum(np.prod(1 + stake * (r - 1)) for stake in stakes) / len(stakes)),
            rel=1e-12,
        )
        for side, stakes in sides.items()
    }


def test_a_tail_that_has_not_come():
    """q has .001 where p has .1; in a third of runs of 1,100 tokens that never comes."""
    q, p = (torch.full((1, 1100), math.log(x), dtype=torch.float64) for x in (0.999, 0.9))
    d = diagnose(q, p)
    assert d.codes == ("truncated", "ratio_below_one")
    assert d.mean_ratio.value == pytest.approx(0.9 / 0.999)
    assert finding(d, "ratio_below_one").numbers["evidence"] == d.evidence["below"]


def test_a_tail_that_comes_late_is_not_said_to_be_missing():
    """4,300 ratios of .9, then 30 of 20: the game below is won long before, the mean is 1.03."""
    logprob = -5 - torch.rand(1, 4330, generator=torch.Generator().manual_seed(0)).double()
    log_r = torch.full_like(logprob, math.log(0.9))
    assert diagnose(logprob, logprob + log_r).codes == ("truncated", "ratio_below_one")
    log_r[0, -30:] = math.log(20)
    d = diagnose(logprob, logprob + log_r)
    assert d.evidence["below"] > math.log(1e4)
    assert d.mean_ratio.value == pytest.approx((4300 * 0.9 + 600) / 4330)
    assert not {"ratio_below_one", "mean_ratio"} & set(d.codes)


@pytest.mark.parametrize("B", [1, 7, 8, 30])
def test_means_and_errors_are_plain_sums(B):
    g = torch.Generator().manual_seed(B)
    logprob = -torch.rand(B, 20, generator=g, dtype=torch.float64) - 1
    ref, mask = moved(logprob, 0.3, g), ragged((B, 20), g)
    if B == 30:
        mask[4] = False
    d = diagnose(logprob, ref, mask)
    keep, log_r = mask.numpy(), (ref - logprob).numpy()
    r, sequences = np.exp(log_r), int(keep.any(1).sum())
    assert (d.tokens, d.sequences, d.clustered) == (keep.sum(), sequences, B >= 8)
    for mean, values in ((d.k1, -log_r), (d.k3, r - 1 - log_r), (d.mean_ratio, r)):
        n, m = keep.sum(), values[keep].mean()
        off = (values - m) * keep
        if B < 8:
            error = values[keep].std(ddof=1) / math.sqrt(n)
        else:
            rows = off.sum(1)[keep.any(1)]
            error = math.sqrt(sequences / (sequences - 1) * (rows**2).sum()) / n
        assert mean.value == pytest.approx(m, rel=1e-12)
        assert mean.error == pytest.approx(error, rel=1e-12)
    assert d.noise_sd == pytest.approx(math.sqrt(2 * max(0, r[keep].mean() - 1)))
    k3 = (r - 1 - log_r)[keep]
    assert d.largest_share["r"] == pytest.approx(r[keep].max() / r[keep].sum())
    assert d.largest_share["k3"] == pytest.approx(k3.max() / k3.sum())
    k = math.ceil(math.sqrt(keep.sum()))
    top = np.sort(log_r[keep])[::-1]
    index = k / (top[:k] - top[k]).sum()
    assert d.tail.index == pytest.approx(index)
    assert d.tail.error == pytest.approx(index / math.sqrt(k))
    assert d.tail.rests_on == k


def test_the_four_aggregations_of_one_data_set():
    """Ten tokens of .2 nats and a hundred of .02."""
    k1 = torch.full((2, 100), math.nan, dtype=torch.float64)
    k1[0, :10], k1[1] = 0.2, 0.02
    mask = ~torch.isnan(k1)
    d = diagnose(torch.full_like(k1, -1.0), -1 - k1, mask)
    expected = {
        "token_mean": 4 / 110,
        "seq_sum": 2.0,
        "seq_mean_token_mean": 0.11,
        "padded_mean": 0.02,
    }
    assert d.aggregations["k1"] == pytest.approx(expected)
    a, b = (math.expm1(-k) + k for k in (0.2, 0.02))
    assert d.aggregations["k3"]["seq_sum"] == pytest.approx((10 * a + 100 * b) / 2)
    assert d.aggregations["k3"]["padded_mean"] == pytest.approx((10 * a + 100 * b) / 200)


def finding(d, code):
    return next(f for f in d.findings if f.code == code)


def numbers(make, code, seed=0):
    run = SICK[make.__name__][0](torch.Generator().manual_seed(seed))
    return run, finding(diagnose(*run), code).numbers


def test_numbers_of_what_is_certain():
    g = torch.Generator().manual_seed(1)
    logprob, ref, _ = healthy_run(1, 10, 32, 50, 32, 0.1)
    logprob, ref = logprob.double(), ref.double()
    logprob[2, 3], ref[4, 5] = NEVER, NEVER
    logprob[0, 0], ref[1, 1] = 0.25, 0.5
    d = diagnose(logprob, ref)
    assert d.tokens == 319
    assert finding(d, "impossible").numbers == {"count": 1}
    assert finding(d, "infinite").numbers == {"count": 1}
    assert finding(d, "above_zero").numbers == {"largest": 0.5}
    assert (d.k1.value, d.k3.value, d.k1.error) == (math.inf,) * 3
    rest = torch.ones_like(ref, dtype=torch.bool)
    rest[2, 3] = False
    assert d.mean_ratio.value == pytest.approx(float((ref - logprob).exp()[rest].mean()))
    assert d.largest_share["k3"] == 1
    rounding = torch.rand(10, 32, generator=g) * 1e-3
    assert "above_zero" not in diagnose(rounding, rounding - 0.1).codes
    assert "above_zero" in diagnose(rounding + 2e-3, rounding - 0.1).codes


def test_the_noise_of_rounding_is_that_of_a_grid():
    """A value in [2, 4) lies on a bfloat16 grid of 1/64, so its error has variance 1/64²/12."""
    g = torch.Generator().manual_seed(0)
    exact = -2.01 - 1.9 * torch.rand(64, 64, generator=g, dtype=torch.float64)
    rounded = exact.bfloat16()
    d = diagnose(rounded, (exact - 0.3).float())
    assert d.codes[0] == "half_precision"
    found = finding(d, "half_precision").numbers
    assert found["noise_sd"] == pytest.approx(1 / 64 / math.sqrt(12))
    assert found["k3_floor"] == pytest.approx(1 / 64**2 / 24)
    measured = float((rounded.double() - exact).std())
    assert measured == pytest.approx(found["noise_sd"], rel=0.05)
    both = finding(diagnose(rounded, (exact - 0.3).half()), "half_precision")
    low = (exact - 0.3).abs()
    step = torch.where(low < 4, 1 / 512, 1 / 256)
    expected = 1 / 64**2 / 12 + float((step**2).mean()) / 12
    assert both.numbers["noise_sd"] ** 2 == pytest.approx(expected, rel=1e-3)
    few = torch.full((64, 64), -2.0)
    assert "half_precision" not in diagnose(few, few - 0.25).codes


def test_numbers_of_patterns():
    (logprob, ref, mask), found = numbers(stale_samples_from_the_second_tensor, "swapped")
    log_r = (ref - logprob)[mask]
    assert found["mean_ratio"] == pytest.approx(float(log_r.exp().mean()))
    assert found["mean_inverse"] == pytest.approx(float((-log_r).exp().mean()))
    assert found["k1"] == pytest.approx(-float(log_r.mean()))
    d = diagnose(logprob, ref, mask)
    assert finding(d, "mean_ratio").numbers["evidence"] == d.evidence["above"]
    negative = finding(d, "negative_kl")
    assert negative.numbers["sum"] == pytest.approx(-float(log_r.sum()))
    assert f" {negative.numbers['sum']:.4g} nats" in negative.sentence

    (logprob, ref, mask), found = numbers(one_token_early, "misaligned")
    pair = mask[:, 1:] & mask[:, :-1]
    here = np.corrcoef(logprob[mask], ref[mask])[0, 1]
    there = np.corrcoef(logprob[:, :-1][pair], ref[:, 1:][pair])[0, 1]
    assert found == {"here": pytest.approx(here), "there": pytest.approx(there), "shift": 1}
    assert numbers(one_token_late, "misaligned")[1]["shift"] == -1

    (logprob, ref, mask), found = numbers(rollout_at_another_temperature, "temperature")
    x, y = logprob[mask].numpy(), (ref - logprob)[mask].numpy()
    assert found["slope"] == pytest.approx(np.polyfit(x, y, 1)[0])
    assert found["explained"] == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)
    (logprob, ref, mask), found = numbers(log_probabilities_divided_by_the_temperature, "scaled")
    assert found == {"slope": pytest.approx(0.6 - 1)}

    (logprob, ref, mask), found = numbers(one_token_at_22_nats, "one_token")
    assert found["log_r"] == pytest.approx(22.643, rel=1e-6)
    assert found["share"] > 0.999


@pytest.mark.parametrize("tau", [0.5, 0.8, 1.25])
def test_one_prefix_at_another_temperature_is_a_line_of_slope_tau_minus_one(tau):
    g = torch.Generator().manual_seed(0)
    ref = torch.randn(1, 200, generator=g, dtype=torch.float64)
    drawn = draw(ref / tau, g)
    d = diagnose(at(ref / tau, drawn), at(ref, drawn))
    assert d.codes == ("temperature",)
    assert d.findings[0].numbers["slope"] == pytest.approx(tau - 1)
    assert d.findings[0].numbers["explained"] == pytest.approx(1)


def test_a_third_sampler_is_not_called_noise_nor_swapped():
    """k1 is a quarter of k3 here, and known to be: neither 0 nor minus k3."""
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        old = table(g, 2048, 20)
        drawn = draw(old, g, 128)
        d = diagnose(at(moved(old, 0.6, g), drawn), at(moved(old, 0.8, g), drawn))
        assert 0.1 < d.k1.value / d.k3.value < 1 / 3
        assert d.codes == ("mean_ratio",)


def test_a_mean_of_one_over_r_that_is_not_known_swaps_nothing():
    """396 tokens with r = 1.1 and 4 with r = .1: the mean of 1/r is 1, give or take .045."""
    g = torch.Generator().manual_seed(0)
    logprob = moved(torch.full((4, 100), -5.0, dtype=torch.float64), 1.0, g)
    log_r = torch.full_like(logprob, math.log(1.1))
    log_r[:, 50] = math.log(0.1)
    assert diagnose(logprob, logprob + log_r).codes == ("negative_kl", "mean_ratio")
    many = [torch.cat([x] * 100) for x in (logprob, logprob + log_r)]
    assert diagnose(*many).codes[0] == "swapped"


def test_nearly_flat_models_that_differ_in_all_are_healthy():
    """Their log-probabilities have no correlation, and nothing is out of place."""
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        policy, ref = (0.02 * torch.randn(32, 50, generator=g, dtype=torch.float64) for _ in "qp")
        drawn = draw(policy, g)
        assert abs(np.corrcoef(at(policy, drawn).flatten(), at(ref, drawn).flatten())[0, 1]) < 0.1
        assert diagnose(at(policy, drawn), at(ref, drawn)).healthy


def test_tensors_that_go_against_each_other():
    logprob = -torch.linspace(1, 5, 60, dtype=torch.float64)[None]
    assert "misaligned" not in diagnose(logprob, -6 - logprob).codes


@pytest.mark.parametrize(
    ("n", "rest", "log_r", "found"),
    [(100, 0.5, 3.0, True), (99, 0.5, 3.0, False), (100, 0.6, 3.0, False), (100, 0.1, 2.2, False)],
)
def test_one_token_has_half_of_k3_or_is_no_finding(n, rest, log_r, found):
    """Tokens at ±rest nats and one at 3: its share of k3 is .56, or .47; at 2.2 r is below 10."""
    g = torch.Generator().manual_seed(0)
    logprob = moved(torch.full((1, n), -9.0, dtype=torch.float64), 1.0, g)
    ratios = torch.full((1, n), rest, dtype=torch.float64)
    ratios[0, 1::2] *= -1
    ratios[0, 4] = log_r
    d = diagnose(logprob, logprob + ratios)
    assert ("one_token" in d.codes) is found
    k3 = np.exp(ratios.numpy()) - 1 - ratios.numpy()
    assert d.largest_share["k3"] == pytest.approx(k3.max() / k3.sum())
    assert bool(k3.max() / k3.sum() > 0.5) is (rest != 0.6)


@pytest.mark.parametrize(("n", "found"), [(82, True), (81, False)])
def test_a_tail_takes_ten_tokens(n, found):
    """Quantiles of a tail of index 1/2; the largest ten, or nine, are looked at."""
    log_r = -2 * ((torch.arange(n, dtype=torch.float64)[None] + 0.5) / n).log() - 9
    logprob = moved(torch.full_like(log_r, -50.0), 30.0, torch.Generator().manual_seed(0))
    d = diagnose(logprob.clamp(max=-1), logprob.clamp(max=-1) + log_r)
    assert d.tail.rests_on == (10 if found else 9)
    assert ("heavy_tail" in d.codes) is found


@pytest.mark.parametrize(("n", "V", "codes"), [(200, 50, 1), (199, 50, 0), (5000, 3, 0)])
def test_a_temperature_takes_200_tokens_and_more_kinds_than_three(n, V, codes):
    g = torch.Generator().manual_seed(0)
    ref = torch.randn(1, V, generator=g, dtype=torch.float64) / 2
    drawn = draw(ref / 0.7, g, 1, n)
    assert diagnose(at(ref / 0.7, drawn), at(ref, drawn)).codes == ("temperature",) * codes


def test_truncation_says_which_side_keeps_fewer_tokens():
    for make, word in (
        (rollout_renormalised_after_top_p, "above 1: logprob is over fewer"),
        (trainer_against_a_renormalised_rollout, "below 1: the sampler keeps fewer"),
    ):
        d = diagnose(*make(torch.Generator().manual_seed(0)))
        assert word in finding(d, "truncated").sentence


@pytest.mark.parametrize("kept", [0.95, 0.9, 0.8])
def test_one_prefix_after_top_p_has_the_kept_mass_as_its_ratio(kept):
    """log r = log S at every token; it takes about 100 tokens of missing mass to be sure."""
    ref = torch.tensor([[kept / 2, kept / 2, 1 - kept]], dtype=torch.float64).log()
    policy = ref.index_fill(1, torch.tensor([2]), NEVER)
    n = math.ceil(100 / (1 - kept))
    d = diagnose(
        *(at(t, draw(policy, torch.Generator().manual_seed(0), 1, n)) for t in (policy, ref))
    )
    assert d.codes == ("truncated", "ratio_below_one")
    assert d.mean_ratio.value == pytest.approx(kept)
    assert d.k1.value == pytest.approx(-math.log(kept))


def slow(g, B, T):
    """Log-probabilities that resemble their neighbours: a random walk that is pulled back."""
    x = torch.randn(B, T, generator=g, dtype=torch.float64)
    for t in range(1, T):
        x[:, t] = 0.8 * x[:, t - 1] + 0.6 * x[:, t]
    return x - 8


def test_misaligned_tensors_are_seen_where_neighbours_resemble_each_other():
    """There the two still agree by .8, so that nothing but the better fit tells."""
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        ref = slow(g, 16, 65)
        policy = moved(ref, 0.2, g)  # they agree by .98 at best
        assert "misaligned" not in diagnose(policy, ref).codes
        assert "misaligned" in diagnose(policy[:, 1:], ref[:, :-1]).codes
        assert "misaligned" in diagnose(policy[:, :-1], ref[:, 1:]).codes
        assert "misaligned" not in diagnose(policy[:1, 1:50], ref[:1, :49]).codes  # 49 pairs


def test_a_fit_that_is_better_by_chance_is_no_finding():
    """Both fits are the same in law: every second token comes from before, every second after."""
    better = 0
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        ref = slow(g, 4, 41)
        early = torch.rand(4, 40, generator=g) < 0.5
        policy = moved(torch.where(early, ref[:, 1:], ref[:, :-1]), 0.05, g)
        d = diagnose(policy, ref[:, :-1])
        better += "misaligned" in d.codes
    assert better == 0


def test_evidence_stays_finite_and_a_lost_game_is_lost():
    """A ratio of e^100 wins; one that jumps twentyfold takes what was staked on less."""

    def evidence(*log_r):
        return kllab.diagnosis._evidence(torch.tensor(log_r, dtype=torch.float64))

    jump = evidence(0.0, math.log(20))
    up = sum(1 + stake * 19 for stake in (1.0, 0.5, 0.125, 0.03125)) / 4
    assert jump["above"] == pytest.approx(math.log(up), rel=1e-12)
    assert jump["below"] == pytest.approx(math.log((0 + 1 - 19 / 36) / 2), rel=1e-12)
    assert evidence(100.0) == {
        "above": pytest.approx(100 + math.log((1 + 0.5 + 0.125 + 0.03125) / 4), rel=1e-9),
        "below": NEVER,
    }
    assert evidence(1e4, NEVER)["above"] < math.inf


def test_the_stated_sizes_are_enough():
    for seed in range(50):
        g = torch.Generator().manual_seed(seed)
        old = table(g, 256)
        new = moved(old, 0.4, g)
        q, p = torch.log_softmax(old, -1), torch.log_softmax(new, -1)
        kl = float((q.exp() * (q - p)).sum(-1).mean())
        drawn = draw(old, g, 16, math.ceil(100 / kl / 16))
        assert diagnose(at(new, drawn), at(old, drawn)).codes[0] == "swapped"


def test_a_sum_of_k1_counts_from_minus_log_ten_thousand():
    step = math.log(1e4) / 100
    g = torch.Generator().manual_seed(0)
    base = moved(torch.full((1, 100), -5.0, dtype=torch.float64), 1.0, g)
    assert "negative_kl" not in diagnose(base, base + 0.999 * step).codes
    assert "negative_kl" in diagnose(base, base + 1.001 * step).codes


def test_pads_are_told_from_repeated_tokens():
    """Four prefixes of two tokens repeat each other all the time, and a pad is one more value."""
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        ref = torch.randn(4, 2, generator=g, dtype=torch.float64)
        policy = moved(ref, 0.2, g)
        drawn, mask = draw(policy, g), ragged((64, 64), g)
        logprob, other = at(policy, drawn), at(ref, drawn)
        assert "padding" not in diagnose(logprob, other, mask).codes
        assert "padding" in diagnose(logprob.where(mask, 0.0), other.where(mask, 0.0)).codes
        flipped = [x.where(mask, -3.0).flip(-1) for x in (logprob, other)]
        assert "padding" in diagnose(*flipped).codes


@pytest.mark.parametrize("which", [0, 1])
def test_values_that_repeat_in_one_tensor_only_are_no_padding(which):
    """As those of a model that is certain of its last tokens."""
    ref = table(g := torch.Generator().manual_seed(0))
    policy = moved(ref, 0.3, g)
    drawn = draw(policy, g)
    pair = [at(policy, drawn), at(ref, drawn)]
    pair[which][:, -6:] = -1e-9
    assert "padding" not in diagnose(*pair).codes


def test_an_infinite_ratio_hides_no_shift():
    logprob, ref, mask = one_token_early(torch.Generator().manual_seed(0))
    ref = ref.clone()
    ref[3, 2] = NEVER
    d = diagnose(logprob, ref, mask)
    assert {"infinite", "misaligned"} <= set(d.codes)
    assert math.isfinite(finding(d, "misaligned").numbers["there"])


@pytest.mark.parametrize(("kinds", "found"), [(16, True), (15, False)])
def test_a_grid_takes_sixteen_values(kinds, found):
    rough = -1 - torch.arange(kinds, dtype=torch.float64).repeat(8)[None] / 16
    fine = moved(rough, 0.01, torch.Generator().manual_seed(0))
    assert ("half_precision" in diagnose(rough, fine).codes) is found


@pytest.mark.parametrize(("rows", "found"), [(2, False), (3, True)])
def test_rows_that_are_all_padding_count_once(rows, found):
    g = torch.Generator().manual_seed(0)
    ref = table(g)
    policy = moved(ref, 0.3, g)
    drawn = draw(policy, g, 20)
    pair = [at(policy, drawn), at(ref, drawn)]
    for x in pair:
        x[:rows] = 0.0
    assert ("padding" in diagnose(*pair).codes) is found


@pytest.mark.parametrize(("T", "rows"), [(64, 3), (256, 2)])
def test_padding_takes_the_rows_that_it_says(T, rows):
    """(T/2)^rows > 10,000; with one row less it could be chance."""
    g = torch.Generator().manual_seed(0)
    ref = table(g)
    policy = moved(ref, 0.3, g)
    drawn = draw(policy, g, 20, T)
    logprob, other = at(policy, drawn), at(ref, drawn)
    for padded_rows, found in ((rows, True), (rows - 1, False)):
        mask = torch.ones(20, T, dtype=torch.bool)
        mask[:padded_rows, -5:] = False
        d = diagnose(logprob.where(mask, 0.0), other.where(mask, 0.0))
        assert ("padding" in d.codes) is found
        if found:  # runs: one for each pair of unequal neighbours; edges: two a row
            pairs = torch.stack([logprob, other], -1).where(mask[..., None], 0.0)
            breaks = int((pairs[:, 1:] != pairs[:, :-1]).any(-1).sum())
            evidence = rows * math.log(breaks / 40)
            assert finding(d, "padding").numbers["evidence"] == pytest.approx(evidence)


# --- what comes back, and bad input ---------------------------------------------------------------


def test_masked_places_never_matter():
    logprob, ref, mask = healthy_run(3, 16, 32, 50, 32, 0.3)
    clean = diagnose(logprob, ref, mask)
    for junk in (math.nan, math.inf, NEVER, 1e30):
        dirty = diagnose(logprob.where(mask, junk), ref.where(mask, junk), mask.int())
        assert dirty == clean
    assert diagnose(logprob, ref).tokens == 16 * 32


def test_one_sequence_may_come_without_its_axis():
    logprob, ref, mask = healthy_run(3, 1, 64, 50, 32, 0.3)
    assert diagnose(logprob[0], ref[0], mask[0]) == diagnose(logprob, ref, mask)
    assert diagnose(logprob[0].tolist(), ref[0].tolist(), mask[0].tolist()).tokens == mask.sum()


def test_arguments_are_left_alone_and_need_no_gradient():
    logprob, ref, mask = healthy_run(3, 4, 64, 50, 32, 0.3)
    before = logprob.clone(), ref.clone(), mask.clone()
    diagnose(logprob.requires_grad_(), ref, mask)
    for one, other in zip(before, (logprob, ref, mask), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("logprob", "ref", "mask", "argument"),
    [
        (torch.zeros(2, 3).int(), torch.zeros(2, 3), None, "logprob"),
        (torch.zeros(2, 3), torch.zeros(2, 3).bool(), None, "ref_logprob"),
        (torch.zeros(2, 3), torch.zeros(3), None, "ref_logprob"),
        (torch.zeros(2, 3), torch.zeros(2, 1), None, "ref_logprob"),
        (torch.zeros(2, 3, 4), torch.zeros(2, 3, 4), None, "logprob"),
        (torch.tensor(0.0), torch.tensor(0.0), None, "logprob"),
        (torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 1), "mask"),
        (torch.zeros(2, 3), torch.zeros(2, 3), torch.full((2, 3), 0.5), "mask"),
        (torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3), "logprob"),
        (torch.zeros(2, 0), torch.zeros(2, 0), None, "logprob"),
        (torch.full((2, 3), math.nan), torch.zeros(2, 3), None, "logprob"),
        (torch.zeros(2, 3), torch.full((2, 3), math.nan), None, "ref_logprob"),
        (torch.full((2, 3), math.inf), torch.zeros(2, 3), None, "logprob"),
        (torch.full((2, 3), NEVER), torch.zeros(2, 3), None, "logprob"),
        ("words", torch.zeros(2, 3), None, "logprob"),
        ([[1.0], [2.0, 3.0]], torch.zeros(2, 3), None, "logprob"),
        ([[-1, -2]], torch.zeros(1, 2), None, "logprob"),
    ],
)
def test_bad_input_raises_and_names_the_argument(logprob, ref, mask, argument):
    with pytest.raises(InputError) as raised:
        diagnose(logprob, ref, mask)
    assert raised.value.argument == argument


def every_run():
    for make, _ in SICK.values():
        yield diagnose(*make(torch.Generator().manual_seed(0)))
    yield diagnose(torch.tensor([[-1.0]]), torch.tensor([[-2.0]]))
    yield diagnose(torch.full((2, 3), -1.0), torch.full((2, 3), NEVER))
    yield diagnose(torch.full((2, 3), -1000.0), torch.zeros(2, 3))


def test_reports_can_be_read_by_people_and_by_programs():
    for d in every_run():
        record = json.loads(json.dumps(d.to_dict(), allow_nan=False))
        assert (record["schema"], record["healthy"]) == (1, d.healthy)
        assert [f["code"] for f in record["findings"]] == list(d.codes)
        assert "nan" not in str(record).lower().replace("nanc", "")
        lines = str(d).splitlines()
        assert lines[0].startswith("healthy: " if d.healthy else f"found {', '.join(d.codes)}: ")
        assert f"{d.tokens:,} tokens in {d.sequences:,} sequences" in lines[0]
        assert "nan" not in str(d)
        assert max(map(len, lines)) <= 98
        text = " ".join(str(d).split())
        # Noise of that sd on log r makes a mean ratio of exp(sd²/2), so k3 takes about sd²/2 of it.
        sd = math.sqrt(2 * max(0.0, d.mean_ratio.value - 1))
        assert f"sd {sd:.3g} would do it: {sd * sd / 2:.2g} of k3" in text
        for f in d.findings:
            assert f"- {f.code}: {f.sentence} instead: {f.instead}" in text
            assert f.instead == INSTEAD[f.code]
            assert f.sentence.endswith(".")
        page = d._repr_html_()
        assert page.count("<tr>") == page.count("</tr>") == 10
        assert page.count("<li>") == len(d.findings)
        assert f"{d.k1.value:.4g}" in page


def test_the_table_of_codes_is_the_list_of_codes():
    table_in_words = kllab.diagnosis.__doc__.split("==\n")[2]
    assert sorted(re.findall(r"^(\w+)", table_in_words, re.MULTILINE)) == sorted(INSTEAD)
    assert {code for _, codes in SICK.values() for code in codes} == set(INSTEAD)
