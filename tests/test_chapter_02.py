"""What chapter 02 says, for many seeds and against formulas written here."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import kllab
from kllab import K1, K2, K3, exact, runtime

ESTIMATORS = {"k1": K1, "k2": K2, "k3": K3}
Z = norm.isf(0.5e-6)


def by_hand(name: str, mu: float) -> tuple[float, float]:
    """Mean and variance of one value, for q = N(0, 1) and p = N(mu, 1)."""
    kl = mu**2 / 2
    return {
        "k1": (kl, mu**2),
        "k2": (kl + mu**4 / 8, mu**4 / 2 + mu**6 / 4),
        "k3": (kl, math.expm1(mu**2) - mu**2),
    }[name]


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("method", ["closed_form", "quadrature"])
def test_moments_are_the_ones_derived_on_the_page(name, mu, method):
    mean, variance = by_hand(name, mu)
    m = exact.moments(ESTIMATORS[name], kllab.pairs.gaussian(mu, 1.0), method=method)
    assert abs(m.mean - mean) <= m.error + 1e-14 * mean
    assert abs(m.variance - variance) <= m.error + 1e-12 * variance
    assert m.bias == pytest.approx(mean - mu**2 / 2, abs=1e-13)


@pytest.mark.parametrize(
    ("mu", "name", "bias", "sd"),
    [  # Schulman's table, and how many of its digits are rounded
        (0.1, "k1", (0, 0.0063), (20, 0.5)),
        (0.1, "k2", (0.002, 0.0014), (1.42, 0.005)),
        (0.1, "k3", (0, 0.0014), (1.42, 0.005)),
        (1.0, "k1", (0, 0.002), (2, 0.05)),
        (1.0, "k2", (0.25, 0.005), (1.73, 0.005)),
        (1.0, "k3", (0, 0.002), (1.7, 0.05)),
    ],
)
def test_printed_values_agree_within_their_rounding_and_error(mu, name, bias, sd):
    m = exact.moments(ESTIMATORS[name], kllab.pairs.gaussian(mu, 1.0))
    kl = mu**2 / 2
    assert abs(m.bias / kl - bias[0]) <= bias[1]
    assert abs(m.sd / kl - sd[0]) <= sd[1]


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_a_run_like_the_one_on_the_page(mu, name):
    n = 20_000
    mean, variance = by_hand(name, mu)
    pair = kllab.pairs.gaussian(mu, 1.0)
    off = [
        ESTIMATORS[name](
            pair.sample_log_r((n,), generator=runtime.generator(f"02 tables {mu}", seed))
        ).mean()
        - mean
        for seed in range(100)
    ]
    assert np.max(np.abs(off)) <= Z * math.sqrt(variance / n)


def test_upside_down_k3_is_noticed():
    mu, n = 1.0, 20_000
    _, variance = by_hand("k3", mu)
    pair = kllab.pairs.gaussian(mu, 1.0)
    flagged = 0
    for seed in range(100):
        log_r = pair.sample_log_r((n,), generator=runtime.generator("02 twin", seed))
        wrong = (-log_r).expm1() + log_r
        flagged += abs(float(wrong.mean()) - mu**2 / 2) > Z * math.sqrt(variance / n)
    assert flagged >= 99
    # Its mean, as "Break it" says: e^{μ²} − 1 − μ²/2.
    m = exact.moments(lambda log_r: (-log_r).expm1() + log_r, pair)
    assert m.mean == pytest.approx(math.expm1(mu**2) - mu**2 / 2, rel=1e-12)


def test_where_k3_stops_winning():
    over_k1 = brentq(lambda m: math.expm1(m) - 2 * m, 0.1, 5)
    over_k2 = brentq(lambda m: math.expm1(m) - m - m**2 / 2 - m**3 / 4, 0.01, 5)
    assert over_k1 / 2 == pytest.approx(0.6282, abs=5e-5)
    assert over_k2 / 2 == pytest.approx(0.7256, abs=5e-5)
    for squared, rival in ((over_k1, K1), (over_k2, K2)):
        for step, k3_is_noisier in ((-1e-6, False), (1e-6, True)):
            pair = kllab.pairs.gaussian(math.sqrt(squared + step), 1.0)
            noisier = exact.moments(K3, pair).variance > exact.moments(rival, pair).variance
            assert noisier == k3_is_noisier


def test_where_k2_loses_to_k1():
    for mu, n in ((1.0, 16.0), (0.1, (0.01 - (5e-5 + 2.5e-7)) / 1.25e-5**2)):
        pair = kllab.pairs.gaussian(mu, 1.0)
        m1, m2 = exact.moments(K1, pair), exact.moments(K2, pair)
        assert (m1.variance - m2.variance) / m2.bias**2 == pytest.approx(n, rel=1e-8)


def test_the_wrong_direction_as_a_truth():
    pair = kllab.pairs.gaussian(-0.1 / 1.5, 1 / 1.5)
    target, other = exact.target_value("kl_qp", pair), exact.target_value("kl_pq", pair)
    assert target == pytest.approx(math.log(1 / 1.5) + (1.5**2 + 0.1**2) / 2 - 0.5, rel=1e-12)
    assert other == pytest.approx(math.log(1.5) + (1 + 0.1**2) / (2 * 1.5**2) - 0.5, rel=1e-12)
    assert round((target - other) / other, 2) == 0.73


def test_samples_for_ten_percent():
    for kl, k1, k3 in ((0.005, 40_000, 201), (0.05, 4_000, 207), (0.5, 400, 288)):
        mu = math.sqrt(2 * kl)
        for name, n in (("k1", k1), ("k3", k3)):
            sd = math.sqrt(by_hand(name, mu)[1])
            assert math.ceil(round(100 * (sd / kl) ** 2, 6)) == n


def test_on_words_k3_is_quieter_and_k2_reads_high():
    words = kllab.pairs.word_frequencies()
    log_r = (words.log_p - words.log_q).numpy()
    q = np.exp(words.log_q.numpy())
    kl = math.fsum(q * -log_r)
    for name, values in (("k2", log_r**2 / 2), ("k3", np.expm1(log_r) - log_r)):
        m = exact.moments(ESTIMATORS[name], words)
        mean = math.fsum(q * values)
        assert m.mean == pytest.approx(mean, rel=1e-10)
        assert m.variance == pytest.approx(math.fsum(q * (values - mean) ** 2), rel=1e-10)
    assert exact.moments(K3, words).sd < exact.moments(K1, words).sd
    assert exact.moments(K2, words).bias > 0.5 * kl


def test_the_best_lambda_for_a_shift_of_two():
    mu = 2.0
    best = mu**2 / math.expm1(mu**2)
    pair = kllab.pairs.gaussian(mu, 1.0)
    variances = {
        lam: exact.moments(kllab.estimators.with_lambda("kl_qp", lam), pair).variance
        for lam in (best - 1e-3, best, best + 1e-3)
    }
    assert min(variances, key=variances.get) == best
    assert math.sqrt(variances[best]) / 2 == pytest.approx(0.9619, abs=1e-4)


def test_the_expansion_gives_the_sign_of_k2s_bias():
    pair = kllab.pairs.gaussian(0.1, 1.0)
    cube = exact.moments(lambda log_r: log_r**3, pair).mean
    bias = exact.moments(K2, pair).bias
    assert bias * cube < 0
