"""What chapter 01 says, for many seeds and against sums written here."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

import kllab
from kllab import exact, runtime

N = 20_000
SEEDS = range(100)
Z = norm.isf(0.5e-6)  # two-sided, one in a million: 100 seeds pass together


@pytest.fixture(scope="module")
def words():
    return kllab.pairs.word_frequencies()


@pytest.fixture(scope="module")
def tables(words):
    """q, p and log q/p as NumPy arrays, so that sums here share no code with the package."""
    log_q, log_p = words.log_q.numpy(), words.log_p.numpy()
    return np.exp(log_q), np.exp(log_p), log_q - log_p


@pytest.fixture(scope="module")
def draws(words):
    """(seed, N) word numbers, drawn as the chapter draws them."""
    return torch.stack(
        [words.sample((N,), generator=runtime.generator("01 sample mean", s)) for s in SEEDS]
    ).numpy()


def rejected(values: np.ndarray, mean: float, sd: float) -> np.ndarray:
    """Per seed: is the mean of (seed, n) values further from ``mean`` than chance allows?"""
    return np.abs(values.mean(-1) - mean) > Z * sd / math.sqrt(values.shape[-1])


def test_the_mean_over_samples_is_the_weighted_sum(tables, draws):
    q, _, k1 = tables
    kl = math.fsum(q * k1)
    sd = math.sqrt(math.fsum(q * (k1 - kl) ** 2))
    assert not rejected(k1[draws], kl, sd).any()


def test_the_factor_written_twice_is_noticed(tables, draws):
    q, _, k1 = tables
    kl = math.fsum(q * k1)
    sd = math.sqrt(math.fsum(q * (k1 - kl) ** 2))
    twice = q[draws] * k1[draws]
    assert rejected(twice, kl, sd).sum() >= 99
    target = math.fsum(q * q * k1)
    assert target < 0
    assert not rejected(twice, target, math.sqrt(math.fsum(q * (q * k1 - target) ** 2))).any()


def test_the_ratio_turned_over_only_changes_the_sign(tables, draws):
    q, p, k1 = tables
    kl_qp, kl_pq = math.fsum(q * k1), -math.fsum(p * k1)
    sd = math.sqrt(math.fsum(q * (k1 - kl_qp) ** 2))
    turned = -k1[draws]
    assert not rejected(turned, -kl_qp, sd).any()
    # It is never the other direction, with either sign.
    for other in (kl_pq, -kl_pq):
        assert rejected(turned, other, sd).sum() >= 99


def test_collecting_equal_samples_changes_nothing(tables, draws):
    _, _, k1 = tables
    counts = np.bincount(draws[0], minlength=len(k1))
    assert math.isclose(math.fsum(counts / N * k1), math.fsum(k1[draws[0]]) / N, rel_tol=1e-12)


def test_weights_carry_samples_to_the_other_distribution(tables):
    q, p, k1 = tables
    r = p / q
    assert math.isclose(math.fsum(q * r * -k1), -math.fsum(p * k1), rel_tol=1e-12)


def test_a_single_sample_is_negative_wherever_p_is_larger(words, tables):
    q, p, _ = tables
    law = exact.sampling_distribution(kllab.K1, words, 1)
    assert abs(float(law.cdf(-1e-12)) - math.fsum(q[p > q])) <= law.error + 1e-12


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32, 64])
def test_the_chance_of_a_negative_mean_matches_draws(words, n):
    """The printed table, against as many means as resolve it to its last printed digits."""
    law = exact.sampling_distribution(kllab.K1, words, n)
    chance, repeats = float(law.cdf(-1e-12)), 60_000
    draw = runtime.generator(f"chance {n}")
    negative = sum(
        int((kllab.K1(words.sample_log_r((repeats // 10, n), generator=draw)).mean(-1) < 0).sum())
        for _ in range(10)
    )
    allowed = Z * math.sqrt(chance * (1 - chance) / repeats) + law.error
    assert abs(negative / repeats - chance) <= allowed


def test_gaussian_chances_are_the_ones_printed_in_the_literature():
    printed = {0.005: (0.480, 0.421, 0.345, 0.212, 0.055), 0.05: (0.437, 0.264, 0.103, 0.006)}
    for kl, chances in printed.items():
        pair = kllab.pairs.gaussian(math.sqrt(2 * kl), 1.0)
        for n, chance in zip((1, 16, 64, 256, 1024), chances, strict=False):
            law = exact.sampling_distribution(kllab.K1, pair, n)
            assert abs(float(law.cdf(0.0)) - chance) <= 5e-4 + law.error
            assert abs(norm.cdf(-math.sqrt(2 * kl * n) / 2) - chance) <= 5e-4


def test_uniform_samples_need_the_weight(tables):
    """Exercise 1: the plain mean estimates the unweighted average, the weighted one the KL."""
    q, _, k1 = tables
    assert math.isclose(math.fsum(q * len(q) * k1) / len(q), math.fsum(q * k1), rel_tol=1e-12)
    assert abs(math.fsum(k1) / len(k1) - math.fsum(q * k1)) > 0.1


def test_off_by_one_makes_another_number(tables):
    """Break it: log-probabilities of the next word in the table."""
    q, _, k1 = tables
    shifted = math.fsum(q * np.roll(k1, -1))
    assert abs(shifted - math.fsum(q * k1)) > 0.1
