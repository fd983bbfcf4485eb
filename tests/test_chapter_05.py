"""What chapter 05 says, for many seeds and against closed forms written here."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate
from scipy.stats import norm

import kllab
from kllab import K1, K3, exact, runtime
from kllab.estimators import median_of_means

# q = N(0.1, 0.2²), p = N(0, 1), in units in which q is N(0, 1).
MEAN, SCALE = -0.5, 5.0
KL = math.log(1 / 0.2) + (0.2**2 + 0.1**2) / 2 - 0.5
CLAMPED = K3.clamped(log_r=(-20, 20), value=(-10, 10))
RARE = 1.5e-4


def k3(l):
    return np.expm1(l) - l


def clamped(l):
    return np.clip(k3(np.clip(l, -20, 20)), -10, 10)


@pytest.fixture(scope="module")
def narrow():
    return kllab.pairs.gaussian(MEAN, SCALE)


def dropped():
    q, p = (torch.tensor(x, dtype=torch.float64) for x in ([1 - RARE, RARE], [0.8, 0.2]))
    return kllab.pairs.categorical(q.log(), p.log())


def test_the_kl_of_the_puzzle_and_the_spread_of_k1(narrow):
    assert exact.target_value("kl_qp", narrow) == pytest.approx(KL, rel=1e-12)
    assert pytest.approx(1.1344, abs=5e-5) == KL
    assert exact.moments(K1, narrow).sd == pytest.approx(0.680, abs=1.1e-3)
    # −log r = ½z² − ½((z − m)/s)² + const: variance by hand
    a, b = 0.5 - 0.5 / SCALE**2, MEAN / SCALE**2
    assert exact.moments(K1, narrow).variance == pytest.approx(2 * a**2 + b**2, rel=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_k3_is_too_low_in_nine_runs_of_ten_for_any_seed(narrow, seed):
    draw = runtime.generator("05 narrow", seed)
    log_r = narrow.sample_log_r((200, 10_000), generator=draw)
    mean = K3(log_r).mean(-1)
    assert float((mean < KL).double().mean()) > 0.85
    assert float(mean.median()) < 0.8
    robust = median_of_means(K3(log_r), 20)
    assert float((robust < KL).double().mean()) > 0.99
    assert float(robust.median()) < float(mean.median())
    k1 = K1(log_r).mean(-1)
    se = exact.moments(K1, narrow).sd / math.sqrt(200 * 10_000)
    assert abs(float(k1.mean()) - KL) < 4.5 * se


@pytest.mark.parametrize("seed", range(4))
def test_the_measured_spread_grows_with_n_for_any_seed(narrow, seed):
    medians = []
    for n in (1_000, 10_000, 60_000):
        draw = runtime.generator(f"05 sd {n}", seed)
        medians.append(float(K3(narrow.sample_log_r((50, n), generator=draw)).std(-1).median()))
    assert medians[0] * 1.5 < medians[1] < medians[2] / 1.5


@pytest.mark.parametrize("n", [100, 10_000])
def test_what_lies_beyond_reach_predicts_what_is_seen(narrow, n):
    c = norm.isf(0.5 / n)
    unseen = norm.sf((c - MEAN) / SCALE) + norm.cdf((-c - MEAN) / SCALE)
    for seed in range(5):
        draw = runtime.generator(f"05 reach {n}", seed)
        seen = float(K3(narrow.sample_log_r((300, n), generator=draw)).mean(-1).median())
        assert abs(seen - (KL - unseen)) < 0.13


@pytest.mark.parametrize("ratio", [0.5, 1.2, 1.5, 1.9, 1.99])
@pytest.mark.parametrize("mean", [0.0, 0.7])
def test_second_moment_of_r_by_the_integral(ratio, mean):
    pair = kllab.pairs.gaussian(mean, math.sqrt(ratio))
    by_hand = math.exp(mean**2 / (2 - ratio)) / math.sqrt(ratio * (2 - ratio))

    def integrand(x):
        log_p = -((x - mean) ** 2) / 2 / ratio - math.log(ratio) / 2
        return math.exp(2 * log_p + x * x / 2) / math.sqrt(2 * math.pi)

    integral = integrate.quad(integrand, -400, 400, points=(-20, 0, 20), limit=1000)[0]
    assert integral == pytest.approx(by_hand, rel=1e-7)
    assert 1 + exact.target_value("chi2_pq", pair) == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("mean", [0.0, 0.7, -3.0])
def test_the_variance_is_infinite_exactly_from_twice_the_variance_on(mean):
    for ratio, finite in ((1.9, True), (2.0, False), (2.001, False), (25.0, False)):
        variance = exact.moments(K3, kllab.pairs.gaussian(mean, math.sqrt(ratio))).variance
        assert math.isfinite(variance) == finite


def test_the_tail_index():
    """P(r > t) by the normal tail, over decades far out."""
    scale = 5.0
    alpha = scale**2 / (scale**2 - 1)

    def log_tail(log_t):
        x = math.sqrt(2 * (log_t + math.log(scale)) / (1 - 1 / scale**2))
        return math.log(2) + norm.logsf(x)

    slope = (log_tail(4_000) - log_tail(2_000)) / 2_000
    assert -slope == pytest.approx(alpha, rel=1e-3)
    assert alpha == pytest.approx(1.0417, abs=5e-5)


def test_the_dropped_token():
    pair = dropped()
    q, p = np.array([1 - RARE, RARE]), np.array([0.8, 0.2])
    l = np.log(p / q)
    for estimator, value, mean, sd in ((K1, -l, 0.22188, 0.091), (K3, k3(l), 0.22188, 16.2)):
        by_hand = (q * value).sum()
        m = exact.moments(estimator, pair)
        assert m.mean == pytest.approx(by_hand, rel=1e-6)
        assert m.mean == pytest.approx(mean, abs=5e-6)
        assert m.sd == pytest.approx(math.sqrt((q * (value - by_hand) ** 2).sum()), rel=1e-6)
        assert m.sd == pytest.approx(sd, rel=5e-3)
    cut = exact.moments(CLAMPED, pair)
    assert cut.mean == pytest.approx((q * clamped(l)).sum(), rel=1e-9)
    assert cut.mean == pytest.approx(0.02461, abs=5e-6)
    assert cut.bias / 0.22188 == pytest.approx(-0.889, abs=5e-4)


def test_one_token_carries_the_batch():
    law = exact.sampling_distribution(K3, dropped(), 1_000)
    never = (1 - RARE) ** 1_000
    assert float(law.cdf(0.22188)) == pytest.approx(never, abs=law.error + 1e-9)
    assert never == pytest.approx(0.861, abs=5e-4)


def test_where_the_clamp_acts():
    assert math.expm1(2.6109) - 2.6109 == pytest.approx(10, abs=1e-3)
    assert math.exp(2.6109) == pytest.approx(13.61, abs=5e-3)
    assert math.expm1(-11.0) + 11.0 == pytest.approx(10, abs=2e-5)


@pytest.mark.parametrize(
    ("mean", "scale", "bias"), [(0.1, 1, 0), (1, 1, -0.009), (2, 1, -0.114), (MEAN, SCALE, -0.451)]
)
def test_clamp_biases_by_integration(mean, scale, bias):
    def integrand(z):
        l = z * z / 2 - ((z - mean) / scale) ** 2 / 2 - math.log(scale)
        return float(clamped(np.float64(l))) * norm.pdf(z)

    pair = kllab.pairs.gaussian(mean, scale)
    kl = exact.target_value("kl_qp", pair)
    # Kinks at the clamps: many panels.
    edges = np.linspace(-12, 12, 1_001)
    integral = sum(
        integrate.fixed_quad(np.vectorize(integrand), a, b, n=6)[0]
        for a, b in itertools.pairwise(edges)
    )
    cut = exact.moments(CLAMPED, pair)
    assert cut.mean == pytest.approx(integral, rel=2e-5)
    assert cut.bias / kl == pytest.approx(bias, abs=6e-4)


def test_ten_words_hold_two_fifths_of_the_variance_of_r():
    words = kllab.pairs.word_frequencies()
    q, r = words.log_q.exp().numpy(), words.log_r.exp().numpy()
    share = np.sort(q * (r - 1) ** 2)[::-1] / (q * (r - 1) ** 2).sum()
    assert share[:10].sum() == pytest.approx(0.40, abs=0.005)


def test_the_naive_formula_is_wrong_where_the_page_says_so():
    l = torch.tensor([1e-3, 1e-4, 1e-5])
    truth = k3(l.double().numpy())
    naive = (l.exp() - 1 - l).double().numpy() / truth
    assert naive == pytest.approx([1.047, 3.3, 270], rel=0.02)
    better = (torch.expm1(l) - l).double().numpy() / truth
    assert np.abs(better - 1).max() < 1e-3
    assert np.abs(K3(l).double().numpy() / truth - 1).max() < 1e-3


def test_a_clamp_after_the_exponential_leaves_nan_in_the_gradient():
    l = torch.tensor(200.0, requires_grad=True)
    after = (l.exp() - 1 - l).clamp(max=10)
    assert float(after.detach()) == 10
    assert math.isnan(float(torch.autograd.grad(after, l)[0]))
    before = torch.expm1(l.clamp(-20, 20)) - l.clamp(-20, 20)
    assert float(torch.autograd.grad(before, l)[0]) == 0
