"""What chapter 04 says, against sums over all samples and formulas written here."""

import itertools
import math

import numpy as np
import pytest
import torch
from oracles import REGISTERED, generator, of_ratio

import kllab
from kllab import K1, K3, exact, runtime
from kllab.estimators import bregman, cross_fitted, optimal_lambda, with_lambda

SMOOTH = [name for name in REGISTERED if name != "tv"]
Q, P = np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.3, 0.4])
R = P / Q
KL = float(-(Q * np.log(R)).sum())


def best_lambda(f, q, r):
    """Minus the slope of the least-squares line of f on r under q, by a linear solve."""
    design = np.stack([np.ones_like(r), r], 1)
    return -np.linalg.solve(design.T * q @ design, design.T * q @ f)[1]


@pytest.mark.parametrize("name", SMOOTH)
def test_the_gap_is_the_height_above_the_tangent(name):
    f, slope = of_ratio(name), generator(name).df1
    r = np.geomspace(1e-3, 1e3, 301)
    gap = bregman(name)(torch.from_numpy(np.log(r))).numpy()
    expected = f(r) - slope * (r - 1)
    assert np.allclose(gap, expected, rtol=1e-9, atol=1e-11)
    assert (gap >= 0).all()


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("off", [-0.05, 0.05])
def test_no_other_coefficient_is_non_negative(name, off):
    r = np.linspace(0.9, 1.1, 2001)
    f, slope = of_ratio(name), generator(name).df1
    assert (f(r) + (-slope + off) * (r - 1)).min() < 0
    ours = with_lambda(name, -slope + off)(torch.from_numpy(np.log(r)))
    assert float(ours.min()) < 0


def test_one_vocabulary_entry_costs_a_bregman_gap_of_u_log_u():
    rng = np.random.default_rng(0)
    q, p = rng.dirichlet(np.ones(50), size=2)
    gap = q * np.log(q) - p * np.log(p) - (np.log(p) + 1) * (q - p)
    assert np.allclose(q * K3(torch.from_numpy(np.log(p / q))).numpy(), gap, atol=1e-15)


@pytest.mark.parametrize(
    ("mu", "lam", "best"), [(0.1, 0.9950, 1.4130), (1.0, 0.5820, 1.2931), (2.0, 0.0746, 0.9620)]
)
def test_the_printed_lambda_table(mu, lam, best):
    exactly = mu**2 / math.expm1(mu**2)
    assert exactly == pytest.approx(lam, abs=5e-5)
    pair, kl = kllab.pairs.gaussian(mu, 1.0), mu**2 / 2
    spread = exact.moments(with_lambda("kl_qp", exactly), pair).sd / kl
    assert spread == pytest.approx(best, abs=5e-5)
    by_hand = mu**2 - mu**4 / math.expm1(mu**2)  # Var(log r) (1 − ρ²)
    assert spread * kl == pytest.approx(math.sqrt(by_hand), rel=1e-9)
    for other in (exactly - 0.01, exactly + 0.01):
        assert exact.moments(with_lambda("kl_qp", other), pair).sd / kl > spread


def test_the_best_coefficient_for_kl_is_jeffreys_over_chi_squared():
    rng = np.random.default_rng(2)
    for _ in range(20):
        q, p = rng.dirichlet(np.ones(5), size=2)
        r = p / q
        jeffreys, chi2 = ((p - q) * np.log(r)).sum(), (p**2 / q).sum() - 1
        assert best_lambda(-np.log(r), q, r) == pytest.approx(jeffreys / chi2, rel=1e-9)


@pytest.mark.parametrize("mu", [0.3, 0.8, 1.1, 1.13, 1.5, 2.5])
def test_k3_beats_k1_exactly_where_the_best_coefficient_exceeds_a_half(mu):
    pair = kllab.pairs.gaussian(mu, 1.0)
    k3_wins = exact.moments(K3, pair).variance < exact.moments(K1, pair).variance
    assert k3_wins == (mu**2 / math.expm1(mu**2) > 0.5)


@pytest.mark.parametrize("name", SMOOTH)
def test_near_the_reference_the_tangent_is_the_best_line(name):
    f, slope = of_ratio(name), generator(name).df1
    rng = np.random.default_rng(1)
    q, h = rng.dirichlet(np.ones(5)), rng.normal(size=5)
    h -= (q * h).sum()
    off = [best_lambda(f(1 + e * h), q, 1 + e * h) + slope for e in (1e-2, 1e-3)]
    assert abs(off[1]) < 5e-3
    assert abs(off[1]) < abs(off[0]) / 5 + 1e-9


def all_samples(n):
    """Every count of three tokens, with its probability, by multiplication."""
    for a, b in itertools.product(range(n + 1), repeat=2):
        if a + b <= n:
            counts = np.array([a, b, n - a - b])
            ways = math.factorial(n) / math.prod(math.factorial(int(c)) for c in counts)
            yield counts, ways * float(np.prod(Q**counts))


def plug_in(counts):
    """Mean of −log r + λ(r − 1) with λ by least squares on the same samples."""
    w = counts / counts.sum()
    f, ratio = -np.log(R), R - 1
    variance = (w * ratio**2).sum() - (w * ratio).sum() ** 2
    lam = 1.0  # the tangent, where the samples are all equal
    if np.count_nonzero(counts) > 1:
        lam = -((w * f * ratio).sum() - (w * f).sum() * (w * ratio).sum()) / variance
    return (w * (f + lam * ratio)).sum()


@pytest.mark.parametrize("n", [4, 8, 16, 32])
def test_the_coefficient_of_the_same_samples_biases_the_mean(n):
    mean = sum(odds * plug_in(counts) for counts, odds in all_samples(n))
    log_r = torch.from_numpy(np.log(R))
    ours = 0.0
    for counts, odds in all_samples(n):
        sample = log_r.repeat_interleave(torch.from_numpy(counts))
        lam = optimal_lambda("kl_qp", sample)
        ours += odds * float((K1(sample) + lam * torch.expm1(sample)).mean())
    assert ours == pytest.approx(mean, abs=1e-9)
    off = {4: 0.563, 8: 0.413, 16: 0.188, 32: 0.047}[n]
    assert 1 - mean / KL == pytest.approx(off, abs=5e-4)


@pytest.mark.parametrize("n", [4, 8, 12])
def test_cross_fitting_is_unbiased_for_every_n(n):
    log_r = torch.from_numpy(np.log(R))
    halves = list(all_samples(n // 2))
    mean = 0.0
    for (a, odds_a), (b, odds_b) in itertools.product(halves, repeat=2):
        sample = torch.empty(n, dtype=torch.float64)
        sample[0::2] = log_r.repeat_interleave(torch.from_numpy(a))
        sample[1::2] = log_r.repeat_interleave(torch.from_numpy(b))
        mean += odds_a * odds_b * float(cross_fitted("kl_qp", sample).mean())
    assert mean == pytest.approx(KL, abs=1e-12)


def test_the_leading_bias_is_approached():
    lam = best_lambda(-np.log(R), Q, R)
    left = -np.log(R) - KL + lam * (R - 1)
    leading = -(Q * left * (R - 1) ** 2).sum() / (Q * (R - 1) ** 2).sum()
    ratios = []
    for n in (32, 128):
        bias = sum(odds * plug_in(counts) for counts, odds in all_samples(n)) - KL
        ratios.append(bias / (leading / n))
    assert ratios[0] > ratios[1] > 1


def test_the_best_coefficient_of_the_words_is_rarely_seen_in_a_sample():
    words = kllab.pairs.word_frequencies()
    q, r = words.log_q.exp().numpy(), words.log_r.exp().numpy()
    star = best_lambda(-np.log(r), q, r)
    assert star == pytest.approx(0.7692, abs=5e-5)
    for seed in range(10):
        draw = runtime.generator("04 tail", seed)
        lam = optimal_lambda("kl_qp", words.sample_log_r((100, 4_096), generator=draw))
        assert float(lam.median()) > 1.1
        assert float((lam <= star).double().mean()) < 0.1
