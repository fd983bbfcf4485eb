"""What chapter 03 says, against sums and formulas written here."""

import itertools
import math

import numpy as np
import pytest
import torch
from oracles import REGISTERED, generator, of_ratio
from scipy.special import softmax

import kllab
from kllab import DIVERGENCES, exact, runtime
from kllab.divergences import HALF_SQUARED_LOG

# f'''(1)/f''(1), by hand.
KAPPA = {
    "kl_qp": -2, "kl_pq": -1, "chi2_pq": 0, "chi2_qp": -3, "hellinger2": -3 / 2, "js": -3 / 2,
    "jeffreys": -3 / 2,
}  # fmt: skip


def mean_of(f, q, p):
    return float((q * f(p / q)).sum())


def merged(prob):
    return np.array([prob[0] + prob[1], *prob[2:]])


half_squared_log = of_ratio("half_squared_log")


@pytest.mark.parametrize("name", REGISTERED)
def test_curvatures_of_the_table(name):
    f, curvature = of_ratio(name), generator(name).d2f1
    assert DIVERGENCES[name].d2f1 == curvature
    if curvature:
        h = 1e-3
        assert (f(1 + h) - 2 * f(1) + f(1 - h)) / h**2 == pytest.approx(curvature, rel=1e-5)


@pytest.mark.parametrize("name", KAPPA)
def test_the_third_order_term_has_the_kappa_of_the_page(name):
    f, curvature, kappa = of_ratio(name), generator(name).d2f1, KAPPA[name]
    rng = np.random.default_rng(1)
    q, h = rng.dirichlet(np.ones(6)), rng.normal(size=6)
    h -= (q * h).sum()  # so that r = 1 + εh has mean one
    errors = []
    for epsilon in (1e-2, 5e-3):
        r = 1 + epsilon * h
        second, third = (q * (r - 1) ** 2).sum(), (q * (r - 1) ** 3).sum()
        exactly = (q * f(r)).sum()
        predicted = curvature * (second / 2 + kappa * third / 6)
        errors.append(abs(exactly - predicted) / second)
    # What is left is of fourth order: of second order relative to the leading term.
    assert errors[1] < errors[0] / 3.5 + 1e-12
    assert errors[0] < 1e-2


@pytest.mark.parametrize("name", REGISTERED)
def test_merging_never_raises_a_divergence(name):
    rng = np.random.default_rng(2)
    f = of_ratio(name)
    for _ in range(200):
        q, p = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4))
        tokens, groups = (
            float(exact.divergence(name, *(torch.from_numpy(np.log(x)) for x in (a, b))))
            for a, b in ((q, p), (merged(q), merged(p)))
        )
        assert tokens == pytest.approx(mean_of(f, q, p), rel=1e-9)
        assert groups == pytest.approx(mean_of(f, merged(q), merged(p)), rel=1e-9)
        assert groups <= tokens + 1e-12


def test_merging_raises_the_mean_of_k2_on_the_three_tokens():
    q, p = np.array([0.01, 0.01, 0.98]), np.array([0.10, 0.40, 0.50])
    tokens, groups = (mean_of(half_squared_log, a, b) for a, b in ((q, p), (merged(q), merged(p))))
    assert groups > tokens * 1.02
    ours = exact.divergence(HALF_SQUARED_LOG, torch.from_numpy(q).log(), torch.from_numpy(p).log())
    assert float(ours) == pytest.approx(tokens, rel=1e-12)


def test_k2_bends_down_exactly_beyond_e():
    """While all ratios stay below e, merging cannot raise the mean of k2."""
    h = 1e-4
    bend = [half_squared_log(r + h) - 2 * half_squared_log(r) + half_squared_log(r - h)
            for r in (math.e - 0.01, math.e + 0.01)]  # fmt: skip
    assert bend[0] > 0 > bend[1]


def test_the_mean_of_k2_lies_on_either_side_of_the_kl():
    rng = np.random.default_rng(3)
    below = 0
    ratios = []
    for _ in range(20_000):
        q, p = softmax(2 * rng.normal(size=(2, 3)), axis=-1)
        ratio = mean_of(half_squared_log, q, p) / mean_of(of_ratio("kl_qp"), q, p)
        below += ratio < 1
        ratios.append(ratio)
    # 29 % in a count of 20,000, so one standard error is .0032.
    assert below / 20_000 == pytest.approx(0.29, abs=4.5 * 0.0032)
    assert min(ratios) < 0.2
    assert max(ratios) > 4


def test_a_yes_or_no_question_can_show_the_total_variation_and_no_more():
    rng = np.random.default_rng(4)
    q, p = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    best = max(
        abs(sum(q[i] - p[i] for i in subset))
        for k in range(7)
        for subset in itertools.combinations(range(6), k)
    )
    log_q, log_p = torch.from_numpy(q).log(), torch.from_numpy(p).log()
    assert float(exact.divergence("tv", log_q, log_p)) == pytest.approx(best, rel=1e-12)


def along_the_run(name, t):
    words = kllab.pairs.word_frequencies()
    log_q = torch.log_softmax(words.log_p - t * words.log_r, -1)
    return float(exact.divergence(name, log_q, words.log_p))


@pytest.mark.parametrize("name", KAPPA)
def test_early_in_the_run_only_the_curvature_is_left(name):
    ratio = along_the_run(name, 0.02) / along_the_run("kl_qp", 0.02)
    assert ratio == pytest.approx(DIVERGENCES[name].d2f1, rel=0.01)


def test_late_in_the_run_the_scaled_measures_are_far_apart():
    late = [along_the_run(n, 1.0) / DIVERGENCES[n].d2f1 for n in KAPPA]
    assert max(late) > 5 * min(late)


def test_total_variation_is_of_first_order():
    assert along_the_run("tv", 0.02) / along_the_run("tv", 0.002) == pytest.approx(10, rel=0.01)
    assert along_the_run("kl_qp", 0.02) / along_the_run("kl_qp", 0.002) == pytest.approx(
        100, rel=0.01
    )


@pytest.mark.parametrize("seed", range(20))
def test_play_finds_merges_that_raise_k2_for_any_seed(seed):
    draw = runtime.generator("03 play", seed)
    log_q, log_p = (2.0 * torch.randn(2, 2_000, 3, generator=draw).double()).log_softmax(-1)

    def k2(log_q, log_p):
        return (log_q.exp() * (log_p - log_q) ** 2 / 2).sum(-1)

    def first_two(x):
        return torch.cat([x[:, :2].logsumexp(-1, keepdim=True), x[:, 2:]], -1)

    raised = (k2(first_two(log_q), first_two(log_p)) > k2(log_q, log_p)).double().mean()
    assert 0.05 < float(raised) < 0.25
