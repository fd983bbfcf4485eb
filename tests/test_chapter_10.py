"""What chapter 10 says of stale samples, against sums over tokens written here."""

import math
from functools import partial

import numpy as np
import pytest
import torch

import kllab
from kllab import K1, K2, K3, gradients, runtime
from kllab.gradients import importance_weighted, importance_weighted_detached

THREE = tuple(np.array(x) for x in ((0.7, 0.2, 0.1), (0.4, 0.4, 0.2), (0.5, 0.3, 0.2)))
ESTIMATORS = {"k1": K1, "k2": K2, "k3": K3}


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def eight():
    """q, p, μ of the eight tokens, each half a unit of logits from the one before."""
    rng = np.random.default_rng(3)
    ref = rng.normal(size=8)
    old = ref + 0.5 * rng.normal(size=8)
    return softmax(old + 0.5 * rng.normal(size=8)), softmax(ref), softmax(old)


# What is written in the loss: how the package says it, c by hand, and whether it is ∇KL(q‖p).
WRITTEN = {
    "k1 reward": (("k1", "plain", "reward"), lambda w, r: -np.log(r), False),
    "w k1 reward": (("k1", "weighted", "reward"), lambda w, r: -w * np.log(r), True),
    "k2": (("k2", "plain", "loss"), lambda w, r: -np.log(r), False),
    "sg(w) k2": (("k2", "held", "loss"), lambda w, r: -w * np.log(r), True),
    "w k2": (("k2", "weighted", "loss"), lambda w, r: w * (np.log(r) ** 2 / 2 - np.log(r)), False),
    "k3": (("k3", "plain", "loss"), lambda w, r: 1 - r, False),
    "sg(w) k3": (("k3", "held", "loss"), lambda w, r: w * (1 - r), False),
    "w k3": (("k3", "weighted", "loss"), lambda w, r: -w * np.log(r), True),
    "k1": (("k1", "plain", "loss"), lambda w, r: np.ones_like(w), False),
    "sg(w) k1": (("k1", "held", "loss"), lambda w, r: w, False),
    "w k1": (("k1", "weighted", "loss"), lambda w, r: w * (1 - np.log(r)), True),
}


def as_written(how):
    name, weight, usage = how
    k = ESTIMATORS[name]
    fn = {
        "plain": k,
        "weighted": partial(importance_weighted, k),
        "held": partial(importance_weighted_detached, k),
    }[weight]
    return fn, usage


def logs(*laws):
    return tuple(torch.from_numpy(np.log(x)) for x in laws)


def mean_gradient(c, q, mu):
    """Σ μ c (e_x − q)."""
    return mu * c - (mu @ c) * q


def kl(a, b):
    return float(a @ np.log(a / b))


def gradient_of_kl(q, p):
    return q * (np.log(q / p) - kl(q, p))


def off(g, goal):
    return float(np.linalg.norm(g - goal) / np.linalg.norm(goal))


# --- the puzzle ---------------------------------------------------------------------------------


@pytest.mark.parametrize("log_ratio", [-2.0, -0.4, 0.4, 1.5])
def test_a_weight_of_one_keeps_the_value_and_changes_the_gradient(log_ratio):
    logprob = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    ref, old = logprob.detach() - log_ratio, logprob.detach()
    plain, weighted = K3(ref - logprob), importance_weighted(K3, logprob, ref, old)
    assert plain.detach().equal(weighted.detach())
    slopes = [float(torch.autograd.grad(x.sum(), logprob)[0]) for x in (plain, weighted)]
    assert slopes == pytest.approx([-math.expm1(-log_ratio), log_ratio], rel=1e-12)
    if log_ratio == 0.4:
        assert slopes[1] / slopes[0] - 1 == pytest.approx(0.213, abs=5e-4)


# --- values -------------------------------------------------------------------------------------


def test_plain_means_of_stale_samples_and_weighted_ones():
    for (q, p, mu), k1, k3, true in (
        (THREE, -0.0668, 0.2189, 0.18379),
        (eight(), 0.03757, 0.08569, 0.08020),
    ):
        log_r, w = np.log(p / q), q / mu
        assert mu @ -log_r == pytest.approx(kl(mu, p) - kl(mu, q), rel=1e-12)
        assert mu @ -log_r == pytest.approx(k1, abs=5.1e-5)
        assert mu @ (np.expm1(log_r) - log_r) == pytest.approx(k3, abs=6e-5)
        assert kl(q, p) == pytest.approx(true, abs=5.1e-6)
        log_q, log_p, log_mu = logs(q, p, mu)
        for k in (K1, K3):
            ours = importance_weighted(k, log_q, log_p, log_mu)
            assert float(log_mu.exp() @ ours) == pytest.approx(kl(q, p), rel=1e-12)
            assert w @ (mu * k(log_p - log_q).numpy()) == pytest.approx(kl(q, p), rel=1e-12)


def test_the_plain_mean_of_k1_crosses_zero_once_on_the_way_home():
    q, p, _ = THREE
    means = []
    for a in np.linspace(0, 1, 41):
        mu = q ** (1 - a) * p**a
        means.append(mu / mu.sum() @ np.log(q / p))
    assert (np.diff(means) < 0).all()
    assert means[0] == pytest.approx(kl(q, p))
    assert means[-1] == pytest.approx(-kl(p, q))


# --- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("label", WRITTEN)
def test_each_line_has_its_coefficient_and_four_are_right(label):
    how, by_hand, right = WRITTEN[label]
    fn, usage = as_written(how)
    for q, p, mu in (THREE, eight(), *np.random.default_rng(1).dirichlet(np.ones(5), (4, 3))):
        c = by_hand(q / mu, p / q)
        log_q, log_p, log_mu = logs(q, p, mu)
        ours = gradients.coefficient(fn, log_q, log_p, log_mu, usage=usage)
        assert np.allclose(ours.numpy(), c, rtol=1e-10, atol=1e-12)
        g = gradients.expected(fn, log_q, log_p, usage=usage, log_old=log_mu).numpy()
        assert np.allclose(g, mean_gradient(c, q, mu), rtol=1e-10, atol=1e-12)
        error = off(g, gradient_of_kl(q, p))
        assert error < 1e-10 if right else error > 0.02


@pytest.mark.parametrize(
    ("label", "printed"),
    [("k2", 0.196), ("k3", 0.313), ("sg(w) k3", 0.203), ("w k2", 0.282), ("sg(w) k1", 1.0)],
)
def test_the_printed_errors_of_the_eight_tokens(label, printed):
    q, p, mu = eight()
    g = mean_gradient(WRITTEN[label][1](q / mu, p / q), q, mu)
    assert off(g, gradient_of_kl(q, p)) == pytest.approx(printed, abs=5e-4)


def test_what_the_wrong_lines_follow():
    q, p, mu = eight()
    held_k3 = mean_gradient(WRITTEN["sg(w) k3"][1](q / mu, p / q), q, mu)
    assert np.allclose(held_k3, q - p, atol=1e-14)  # ∇KL(p‖q)
    k1 = mean_gradient(WRITTEN["k1"][1](q / mu, p / q), q, mu)
    assert np.allclose(k1, mu - q, atol=1e-14)  # −∇KL(μ‖q)

    def mean_k2(logits):
        law = softmax(logits)
        return law @ np.log(law / p) ** 2 / 2

    weighted_k2 = mean_gradient(WRITTEN["w k2"][1](q / mu, p / q), q, mu)
    step = 1e-6 * np.eye(8)
    logits = np.log(q)
    by_steps = [(mean_k2(logits + d) - mean_k2(logits - d)) / 2e-6 for d in step]
    assert np.allclose(weighted_k2, by_steps, atol=1e-9)


@pytest.mark.parametrize(
    ("label", "printed"),
    [
        ("w k3", (0.26308, -0.17539, -0.08769)),
        ("k3", (0.3, -0.2, -0.1)),
        ("sg(w) k3", (0.3, -0.2, -0.1)),
        ("k2", (0.26308, -0.17539, -0.08769)),
        ("w k2", (0.24552, -0.16368, -0.08184)),
    ],
)
def test_on_policy_the_weight_is_one_and_matters(label, printed):
    q, p, _ = THREE
    fn, usage = as_written(WRITTEN[label][0])
    g = gradients.expected(fn, *logs(q, p), usage=usage)
    assert g.tolist() == pytest.approx(printed, abs=5.1e-6)
    assert np.allclose(g, mean_gradient(WRITTEN[label][1](np.ones(3), p / q), q, q), atol=1e-14)


@pytest.mark.parametrize("label", WRITTEN)
def test_samples_agree_with_the_enumeration_and_detect_a_wrong_line(label):
    how, by_hand, right = WRITTEN[label]
    fn, usage = as_written(how)
    q, p, mu = eight()
    each = by_hand(q / mu, p / q)[:, None] * (np.eye(8) - q)
    own, goal, n = mu @ each, gradient_of_kl(q, p), 8_000
    sd = np.sqrt(mu @ (each - own) ** 2 / n)
    log_q, log_p, log_mu = logs(q, p, mu)
    writer, detected = kllab.sampling.Categorical(log_mu), 0
    for seed in range(100):
        x = writer.sample((n,), generator=runtime.generator("10 stale", seed))
        c = gradients.coefficient(fn, log_q[x], log_p[x], log_mu[x], usage=usage)
        score = torch.nn.functional.one_hot(x, 8) - log_q.exp()
        mean = (c[:, None] * score).mean(0).numpy()
        assert (np.abs(mean - own) < 5 * sd).all(), seed
        detected += bool((np.abs(mean - goal) > 5 * sd).any())
    assert detected == 0 if right else detected >= 99


# --- published forms ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fkl", "ufkl", "rkl", "urkl"])
def test_the_four_losses_with_the_writer_as_reference(name):
    forms = {
        "fkl": (lambda l, ref, old: old - l, lambda w: -np.ones_like(w)),
        "ufkl": (lambda l, ref, old: torch.expm1(l - old) - (l - old), lambda w: w - 1),
        "rkl": (lambda l, ref, old: (l - old).exp() * (l - old), lambda w: w * (np.log(w) + 1)),
        "urkl": (
            lambda l, ref, old: (l - old).exp() * (l - old - 1),
            lambda w: w * np.log(w),
        ),
    }
    loss, by_hand = forms[name]
    for near in (1.0, 0.1, 0.0):
        q, _, mu = eight()
        q = mu ** (1 - near) * q**near
        q = q / q.sum()
        log_q, log_mu = logs(q, mu)
        args = {"usage": "loss", "log_old": log_mu}
        g = gradients.expected(loss, log_q, log_mu, **args).numpy()
        goal = q - mu if name.endswith("fkl") else gradient_of_kl(q, mu)
        assert np.allclose(g, goal, atol=1e-13)
        each = by_hand(q / mu)[:, None] * (np.eye(8) - q)
        variance = mu @ ((each - mu @ each) ** 2).sum(-1)
        assert float(gradients.variance(loss, log_q, log_mu, **args)) == pytest.approx(
            variance, rel=1e-9, abs=1e-20
        )
        if near == 0.0:
            assert (variance < 1e-24) == name.startswith("u")


def test_the_atlas_rows_follow_what_the_table_says():
    for row, name in (
        ("trl/grpo_kl", "kl_pq"),
        ("trl/grpo_kl_corrected", "kl_qp"),
        ("nemo-rl/kl_loss_k3", "kl_qp"),
    ):
        assert kllab.ATLAS[row].report().gradient.terms == pytest.approx({name: 1.0}, abs=1e-6)
    assert not kllab.ATLAS["nemo-rl/kl_loss_k2"].report().gradient.terms


# --- staleness ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words():
    pair = kllab.pairs.word_frequencies()
    return pair.log_q.exp().numpy(), pair.log_p.exp().numpy()


def test_the_sweep_over_ages(words):
    q, p = words
    goal = gradient_of_kl(q, p)
    before = {"k2": -1.0, "k3": 0.4}
    for age in (0.0, 0.1, 0.3, 0.5):
        mu = p**age * q ** (1 - age)
        mu = mu / mu.sum()
        w, r = q / mu, p / q
        assert np.allclose(np.diff(np.log(w) - age * np.log(q / p)), 0, atol=1e-9)  # w ∝ e^{a k1}
        error = {
            label: off(mean_gradient(WRITTEN[label][1](w, r), q, mu), goal)
            for label in ("k2", "k3", "sg(w) k3", "w k3")
        }
        assert error["w k3"] < 1e-12
        assert error["sg(w) k3"] == pytest.approx(0.443, abs=5e-4)
        for label in ("k2", "k3"):
            assert error[label] > before[label]
            before[label] = error[label]
    assert before == pytest.approx({"k2": 0.452, "k3": 0.750}, abs=5e-4)


def total_variance(c, q, mu):
    length = 1 - 2 * q + q @ q
    g = mean_gradient(c, q, mu)
    return (mu * c**2) @ length - 2 * (mu * c) @ (g - q @ g) + g @ g


def test_the_price_of_the_weight(words):
    q, p = words
    noise = {}
    for age in (0.0, 0.5):
        mu = p**age * q ** (1 - age)
        mu = mu / mu.sum()
        for label in ("k2", "w k3"):
            c = WRITTEN[label][1](q / mu, p / q)
            noise[label, age] = total_variance(c, q, mu)
            fn, usage = as_written(WRITTEN[label][0])
            ours = gradients.variance(fn, *logs(q, p), usage=usage, log_old=logs(mu)[0])
            assert float(ours) == pytest.approx(noise[label, age], rel=1e-8)
    assert noise["w k3", 0.5] / noise["w k3", 0.0] == pytest.approx(4.4, abs=0.05)
    assert noise["k2", 0.5] < noise["k2", 0.0]
    assert q @ (q / mu) == pytest.approx(1.301, abs=5e-4)
    bias = mean_gradient(-np.log(p / q), q, mu) - gradient_of_kl(q, p)
    n_star = (noise["w k3", 0.5] - noise["k2", 0.5]) / (bias @ bias)
    assert n_star == pytest.approx(10_115, rel=1e-3)


# --- exercises ----------------------------------------------------------------------------------


def test_the_best_lambda_for_stale_samples():
    q, p, mu = eight()
    k1, length = np.log(q / p), 1 - 2 * q + q @ q
    weight = q**2 / mu * length
    best = weight @ k1 / weight.sum()
    at = [total_variance(q / mu * (k1 - b), q, mu) for b in (best - 0.1, best, best + 0.1)]
    assert at[0] == pytest.approx(at[2], rel=1e-10)
    assert at[1] < at[0]
    fresh = (q * length) @ k1 / (q @ length)
    assert 0 < fresh < best


def test_clipping_lies_between_no_weight_and_the_full_one():
    q, p, mu = eight()
    goal, k1 = gradient_of_kl(q, p), np.log(q / p)
    w = np.clip(q / mu, 0.8, 1.28)
    lines = [
        (off(mean_gradient(c, q, mu), goal), total_variance(c, q, mu))
        for c in (k1, w * k1, q / mu * k1)
    ]
    assert lines == sorted(lines, reverse=True)
    # clamp() cuts the derivative too: outside, k3 has only its loss half.
    inside = (q / mu > 0.8) & (q / mu < 1.28)
    c = np.where(inside, w * k1, w * (1 - p / q))
    logprob = torch.from_numpy(np.log(q)).requires_grad_()
    log_p, log_mu = logs(p, mu)
    loss = (logprob - log_mu).exp().clamp(0.8, 1.28) * K3(log_p - logprob)
    assert np.allclose(torch.autograd.grad(loss.sum(), logprob)[0].numpy(), c, atol=1e-12)
    assert 0 < inside.sum() < 8


def test_recomputed_log_probabilities_hide_the_staleness():
    q, p, mu = eight()
    log_q, log_p, log_mu = logs(q, p, mu)

    def recomputed(logprob, ref, old):
        return torch.exp(logprob - logprob.detach()) * K3(ref - logprob)

    g = gradients.expected(recomputed, log_q, log_p, usage="loss", log_old=log_mu).numpy()
    assert np.allclose(g, mean_gradient(np.log(q / p), q, mu), atol=1e-13)
    assert off(g, gradient_of_kl(q, p)) == pytest.approx(0.196, abs=5e-4)


def test_a_squared_log_ratio_to_the_writer_follows_neither_kl():
    q, _, mu = eight()
    errors = []
    for near in (1.0, 0.1):
        law = mu ** (1 - near) * q**near
        law = law / law.sum()
        g = mean_gradient(np.log(law / mu), law, mu)
        log_q, log_mu = logs(law, mu)
        ours = gradients.expected(K2, log_q, log_mu, usage="loss", log_old=log_mu)
        assert np.allclose(ours.numpy(), g, atol=1e-14)
        errors.append((off(g, gradient_of_kl(law, mu)), off(g, law - mu)))
    assert min(errors[0]) > 0.05
    for far, near in zip(*errors, strict=True):
        assert near < 0.15 * far
    source = kllab.ATLAS["prime-rl/kl_loss"]
    assert source.samples == "ref_logprob"
    logprob, ref = torch.tensor([-1.0, -2.0]).double(), torch.tensor([-1.5, -1.0]).double()
    assert source.fn(logprob, ref, torch.ones(2)).equal(2 * K2(ref - logprob))
