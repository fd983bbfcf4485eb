"""What chapter 06 says, against float64 sums written here."""

import math

import numpy as np
import pytest
import torch

import kllab
from kllab import K1, K2, K3, exact, runtime, sequences, simulate

V = 32_000
Z = 4.9  # two-sided, one in a million


def k3(l):
    return np.expm1(l) - l


def pair_of(label, seed=0):
    lm = kllab.pairs.lm_like(V, kl=0.05, generator=runtime.generator("06 model", seed))
    return {
        "zipf": lambda: kllab.pairs.zipf(V, 1.0, 1.1),
        "perturbed": lambda: lm,
        "temperature": lambda: kllab.pairs.temperature(lm.log_p, 0.8),
        "top-p": lambda: kllab.pairs.top_p(lm.log_p, 0.95),
        "bfloat16": lambda: kllab.pairs.bf16_rounded(lm.log_p),
    }[label]()


@pytest.mark.parametrize("seed", range(10))
def test_a_cut_costs_minus_log_of_the_kept_mass_and_k3_loses_it(seed):
    engine = pair_of("top-p", seed)
    q, p = engine.log_q.exp().numpy(), engine.log_p.exp().numpy()
    S = p[q > 0].sum()
    assert 0.95 <= S < 0.97
    assert exact.target_value("kl_qp", engine) == pytest.approx(-math.log(S), rel=1e-9)
    m1, m3 = exact.moments(K1, engine), exact.moments(K3, engine)
    assert m1.bias == pytest.approx(0, abs=1e-12)
    assert m3.bias == pytest.approx(S - 1, rel=1e-9)
    assert m1.sd < 1e-12
    log_r = engine.sample_log_r((512,), generator=runtime.generator("06 engines", seed))
    assert float(K3(log_r).mean()) == pytest.approx(-math.log(S) - (1 - S), rel=1e-9)


@pytest.mark.parametrize("label", ["zipf", "perturbed", "temperature", "bfloat16"])
def test_statistics_are_the_sums(label):
    pair = pair_of(label)
    q, l = pair.log_q.exp().numpy(), pair.log_r.numpy()
    s = exact.statistics(pair.log_q[None], pair.log_p[None])
    for name, value in (("k1", -l), ("k2", l * l / 2), ("k3", k3(l))):
        mean = math.fsum(q * value)
        variance = math.fsum(q * (value - mean) ** 2)
        assert float(s[name].mean) == pytest.approx(mean, rel=1e-5)
        assert float(s[name].variance) == pytest.approx(variance, rel=1e-4)
    chi2 = math.fsum(q * np.expm1(l) ** 2)
    assert float(s.chi2_pq) == pytest.approx(chi2, rel=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_what_the_table_of_five_says_for_any_model(seed):
    spread = {}
    for label in ("zipf", "perturbed", "temperature"):
        pair = pair_of(label, seed)
        kl = exact.target_value("kl_qp", pair)
        assert 0.03 < kl < 0.12
        spread[label] = {e.name: exact.moments(e, pair).sd / kl for e in (K1, K3)}
    assert all(3 < s["k1"] < 9 for s in spread.values())
    assert spread["temperature"]["k3"] > 1.5 * spread["perturbed"]["k3"]
    floor = pair_of("bfloat16", seed)
    assert 1e-6 < exact.target_value("kl_qp", floor) < 1e-4
    need = {e.name: (3 * (m := exact.moments(e, floor)).sd / m.mean) ** 2 for e in (K1, K3)}
    assert need["k1"] > 1_000 * need["k3"]


@pytest.mark.parametrize("estimator", [K1, K2, K3], ids=lambda e: e.name)
def test_the_law_of_a_mean_has_the_exact_moments(estimator):
    pair, n = pair_of("perturbed"), 64
    law = exact.sampling_distribution(estimator, pair, n)
    m = exact.moments(estimator, pair)
    mean = float(law.pmf @ law.values)
    sd = math.sqrt(float(law.pmf @ (law.values - mean) ** 2))
    assert mean == pytest.approx(m.mean, rel=1e-3)
    assert sd == pytest.approx(m.sd / math.sqrt(n), rel=1e-2)
    assert law.error < 1e-3


def test_the_simulation_agrees_for_many_seeds():
    pair = pair_of("perturbed")
    for seed in range(10):
        run = simulate.bias_variance(
            pair, [K1, K2, K3], n=64, replicates=2_000, generator=runtime.generator("06", seed)
        )
        frame = run.to_frame().set_index("estimator")
        for e in (K1, K2, K3):
            m = exact.moments(e, pair)
            assert abs(frame.loc[e.name]["bias"] - m.bias) < Z * m.sd / math.sqrt(64 * 2_000)


@pytest.mark.parametrize(
    ("tau", "k1", "ratio"), [(1.0, 0.3394, 1.000), (0.8, 0.1037, 1.147), (0.6, -0.1771, 1.306)]
)
def test_the_wrong_sampler_on_the_words(tau, k1, ratio):
    words = kllab.pairs.word_frequencies()
    weight = np.exp(words.log_q.numpy() / tau)
    weight /= weight.sum()
    l = words.log_r.numpy()
    assert math.fsum(weight * -l) == pytest.approx(k1, abs=6e-5)
    assert math.fsum(weight * np.exp(l)) == pytest.approx(ratio, abs=6e-4)


def test_rao_blackwell_on_the_bigrams():
    chain, T = sequences.word_bigrams(), 64
    kl = float(chain.kl_steps(T).sum())
    (m1, v1), (m3, v3) = chain.moments(K1, T), chain.moments(K3, T)
    m, v = chain.moments(K1, T, rao_blackwell=True)
    assert (m1, m3, m) == pytest.approx((kl, kl, kl), rel=1e-8)
    assert v < v3 / 20 < v1 / 20
    # A Monte Carlo look at the same two variances.
    tokens = chain.sample(2_000, T, generator=runtime.generator("06 bigrams", 0))
    log_q, log_p = chain.token_log_probs(tokens)
    sampled = (log_q - log_p).sum(-1)
    rows = chain.row_means(K3)
    before = torch.cat([torch.full((2_000, 1), chain.V), tokens[:, :-1]], -1)
    summed = rows[before].sum(-1)
    for values, variance in ((sampled, v1), (summed, v)):
        assert abs(float(values.mean()) - kl) < Z * math.sqrt(variance / 2_000)
        assert float(values.var()) == pytest.approx(variance, rel=0.25)


def test_two_engines_with_noise_show_half_its_variance_in_k3():
    s = 0.05
    l = s * torch.randn(1_000_000, generator=runtime.generator("06 noise"), dtype=torch.float64)
    assert float(K3(l).mean()) == pytest.approx(s**2 / 2, rel=0.01)
    assert abs(float(K1(l).mean())) < Z * s / 1_000


@pytest.mark.parametrize(("exponent", "loud"), [(0.7, 0.8), (1.3, 1.25)])
def test_which_sampler_turns_k1_negative_depends_on_the_pair(exponent, loud):
    """Logged at temperature 1: the sharper sampler where the policy is flatter, else the hotter."""
    p = torch.arange(1, 1001, dtype=torch.float64).reciprocal().log().log_softmax(0)
    q = (exponent * p).log_softmax(0)
    for temperature in (0.8, 1.25):
        drawn = (q / temperature).softmax(0)
        k1, ratio = float(drawn @ (q - p)), float(drawn @ (p - q).exp())
        assert (k1 < 0) == (ratio > 1) == (temperature == loud)
