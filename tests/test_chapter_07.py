"""What chapter 07 says, against sums over tokens and closed forms written here."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import norm

import kllab
from kllab import K1, K2, K3, exact, gradients, runtime
from kllab.estimators import with_lambda

K = {"k1": K1, "k2": K2, "k3": K3}
PLACES = {
    "loss": gradients.as_loss,
    "reward": gradients.as_reward,
    "both": gradients.as_both,
}
Q, P = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])
Z = norm.isf(1e-6)


def weight(name, usage, r):
    """What multiplies the score: minus the slope along log r, the value, or both."""
    l = np.log(r)
    value = {"k1": -l, "k2": l**2 / 2, "k3": r - 1 - l}[name]
    slope = {"k1": np.ones_like(r), "k2": -l, "k3": 1 - r}[name]
    return {"loss": slope, "reward": value, "both": value + slope}[usage]


def summed(c, q):
    """Σ q(x) c(x) (e_x − q), token by token."""
    return sum(q[x] * c[x] * (np.eye(len(q))[x] - q) for x in range(len(q)))


def moments(c, q):
    """Mean and variance of a single sample's gradient, entry by entry."""
    each = np.stack([c[x] * (np.eye(len(q))[x] - q) for x in range(len(q))])
    mean = q @ each
    return mean, q @ (each - mean) ** 2


def kl_gradient(q, p):
    """∇KL(q‖p) at the logits: qᵢ (log qᵢ/pᵢ − KL), by the quotient rule."""
    l = np.log(q / p)
    return q * (l - q @ l)


def tensor(a):
    return torch.from_numpy(np.log(a))


def sampled(name, usage, pair, x):
    """Batch gradients as the page takes them: gather, place, mean, backward."""
    logits = pair.log_q.expand(len(x), -1).clone().requires_grad_()
    logprob = logits.log_softmax(-1).gather(-1, x)
    PLACES[usage](K[name], logprob, pair.log_p[x]).mean(-1).sum().backward()
    return logits.grad.numpy()


# --- the puzzle -------------------------------------------------------------------------------


def test_the_numbers_of_the_puzzle():
    r = P / Q
    values = {"k1": 0.18379, "k2": 0.18168, "k3": 0.18379}
    printed = {
        "k1": (0, 0, 0),
        "k2": (0.26308, -0.17539, -0.08769),
        "k3": (0.3, -0.2, -0.1),
    }
    for name, value in values.items():
        assert Q @ weight(name, "reward", r) == pytest.approx(value, abs=5e-6)
        m = exact.moments(K[name], kllab.pairs.categorical(tensor(Q), tensor(P)))
        assert m.mean == pytest.approx(value, abs=5e-6)
        ours = gradients.expected(K[name], tensor(Q), tensor(P), usage="loss").tolist()
        assert ours == pytest.approx(printed[name], abs=5e-6)
        assert ours == pytest.approx(summed(weight(name, "loss", r), Q).tolist(), abs=1e-15)
    assert printed["k2"] == pytest.approx(kl_gradient(Q, P).tolist(), abs=5e-6)
    # Of the three, the one whose value is off is the one whose gradient is right.
    assert abs(values["k2"] - 0.18379) > 0.002
    # All functions of the ratio agree in direction here: tokens 2 and 3 have one ratio.
    assert r[1] == r[2]
    assert (Q - P) / kl_gradient(Q, P) == pytest.approx([1.14034] * 3, abs=1e-5)


def test_autograd_through_the_full_sum_is_right_and_through_detached_weights_nothing():
    rng = np.random.default_rng(0)
    for _ in range(10):
        q, p = rng.dirichlet(np.ones(6), size=2)
        logits = tensor(q).requires_grad_()
        exact.divergence("kl_qp", logits.log_softmax(-1), tensor(p)).backward()
        assert np.allclose(logits.grad, kl_gradient(q, p), atol=1e-14)

        logits = tensor(q).requires_grad_()
        log_q = logits.log_softmax(-1)
        value = (log_q.exp().detach() * (log_q - tensor(p))).sum()
        value.backward()
        assert float(value.detach()) == pytest.approx(q @ np.log(q / p), rel=1e-13)
        assert float(logits.grad.abs().max()) < 1e-15


# --- every placement, by enumeration and from samples --------------------------------------------


@pytest.mark.parametrize("usage", PLACES)
@pytest.mark.parametrize("name", K)
def test_sampled_gradients_have_the_enumerated_mean(name, usage):
    rng = np.random.default_rng(1)
    q, p = rng.dirichlet(np.ones(5), size=2)
    pair = kllab.pairs.categorical(tensor(q), tensor(p))
    mean, variance = moments(weight(name, usage, p / q), q)
    batches, n = 50, 64
    bound = Z * np.sqrt(variance / (batches * n)) + 1e-12
    for seed in range(100):
        x = pair.sample((batches, n), generator=runtime.generator("07 test", seed))
        assert (np.abs(sampled(name, usage, pair, x).mean(0) - mean) <= bound).all(), seed


@pytest.mark.parametrize(
    ("name", "usage"),
    [("k1", "loss"), ("k3", "loss"), ("k2", "reward"), ("k3", "reward"), ("k2", "both")],
)
def test_a_wrong_placement_is_detected(name, usage):
    """On the page's two pairs: the mean is not ∇KL(q‖p), and the samples say so."""
    q, p = np.array([0.8, 0.2]), np.array([0.5, 0.5])
    pair = kllab.pairs.categorical(tensor(q), tensor(p))
    true = kl_gradient(q, p)
    _, variance = moments(weight(name, usage, p / q), q)
    batches, n = 200, 256
    bound = Z * np.sqrt(variance / (batches * n))
    noticed = 0
    for seed in range(100):
        x = pair.sample((batches, n), generator=runtime.generator("07 twin", seed))
        noticed += bool((np.abs(sampled(name, usage, pair, x).mean(0) - true) > bound).any())
    assert noticed >= 99


def test_nine_numbers_for_two_tokens():
    r = np.array([0.625, 2.5])
    right = math.log(4)
    printed = {
        ("k1", "loss"): 0,
        ("k2", "loss"): right,
        ("k3", "loss"): 1.875,
        ("k1", "reward"): right,
        ("k2", "reward"): -0.309343,
        ("k3", "reward"): right - 1.875,
        ("k1", "both"): right,
        ("k2", "both"): right - 0.309343,
        ("k3", "both"): right,
    }
    log_q, log_p = tensor(np.array([0.8, 0.2])), tensor(np.array([0.5, 0.5]))
    for (name, usage), number in printed.items():
        c = gradients.coefficient(K[name], log_q, log_p, usage=usage)
        by_hand = weight(name, usage, r)
        assert float(c[0] - c[1]) == pytest.approx(number, abs=1e-6)
        assert by_hand[0] - by_hand[1] == pytest.approx(number, abs=1e-6)
    # k3 as a reward pushes away, at about a third of the rate of the true pull.
    assert (1.875 - right) / right == pytest.approx(0.3525, abs=1e-4)


@pytest.mark.parametrize("theta", [0.02, 0.2, 0.45, 0.499, 0.51, 0.7, 0.95])
def test_k3_as_a_reward_always_leaves_a_fair_coin(theta):
    t = theta - 0.5
    log_q = tensor(np.array([theta, 1 - theta]))
    c = gradients.coefficient(K3, log_q, tensor(np.array([0.5, 0.5])), usage="reward")
    exactly = -4 * t / (1 - 4 * t**2) + 2 * math.atanh(2 * t)
    assert float(c[0] - c[1]) == pytest.approx(exactly, rel=1e-6, abs=1e-13)
    assert exactly * t < 0
    if abs(t) < 0.06:
        assert exactly == pytest.approx(-32 / 3 * t**3, rel=0.05)


@pytest.mark.parametrize("lam", [-1.0, 0.0, 0.5, 1.0])
def test_the_control_variate_is_the_gradient_of_the_loss(lam):
    k = with_lambda("kl_qp", lam)
    want = {
        "loss": lam * (Q - P),
        "reward": kl_gradient(Q, P) - lam * (Q - P),
        "both": kl_gradient(Q, P),
    }
    for usage, g in want.items():
        ours = gradients.expected(k, tensor(Q), tensor(P), usage=usage)
        assert np.allclose(ours, g, atol=1e-15)
    assert exact.moments(k, kllab.pairs.categorical(tensor(Q), tensor(P))).mean == pytest.approx(
        Q @ np.log(Q / P), rel=1e-12
    )


# --- near the reference, and far ---------------------------------------------------------------


def test_the_error_of_the_loss_is_the_reward_and_falls_like_the_root_of_kl():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        base, direction = rng.normal(size=(2, 50))
        p = np.exp(base) / np.exp(base).sum()
        factors = []
        for step in (1e-3, 1e-2):
            q = p * np.exp(step * direction)
            q /= q.sum()
            true = kl_gradient(q, p)
            reward = gradients.expected(K3, tensor(q), tensor(p), usage="reward").numpy()
            loss = gradients.expected(K3, tensor(q), tensor(p), usage="loss").numpy()
            assert np.allclose(true - loss, reward, atol=1e-14)
            error = np.linalg.norm(reward) / np.linalg.norm(true)
            factors.append(error / math.sqrt(q @ np.log(q / p)))
        assert factors[0] == pytest.approx(factors[1], rel=0.1)
        assert 0.2 < factors[0] < 4


def test_the_dropped_token_pulls_two_hundred_times_harder():
    q, p = np.array([1 - 1.5e-4, 1.5e-4]), np.array([0.8, 0.2])
    c = {
        name: gradients.coefficient(K[name], tensor(q), tensor(p), usage="loss")
        for name in ("k2", "k3")
    }
    assert float(c["k3"][1]) == pytest.approx(1 - 0.2 / 1.5e-4, rel=1e-12)
    assert float(c["k2"][1]) == pytest.approx(-math.log(0.2 / 1.5e-4), rel=1e-12)
    assert float(c["k3"][1] / c["k2"][1]) == pytest.approx(185.1, abs=0.1)


def test_a_small_kl_does_not_make_the_two_directions_agree():
    small = 1e-4
    q, p = np.array([1 - small**2, small**2]), np.array([1 - small, small])
    kl = q @ np.log(q / p)
    assert kl == pytest.approx(small, rel=0.01)
    error = np.linalg.norm((q - p) - kl_gradient(q, p)) / np.linalg.norm(kl_gradient(q, p))
    loss = gradients.expected(K3, tensor(q), tensor(p), usage="loss").numpy()
    true = gradients.expected(K1, tensor(q), tensor(p), usage="reward").numpy()
    assert np.linalg.norm(loss - true) / np.linalg.norm(true) == pytest.approx(error, rel=1e-6)
    assert error > 1000


# --- step one ------------------------------------------------------------------------------------


def test_at_the_reference_every_sample_of_k2_and_k3_is_silent_and_k1_is_noise():
    n = 16
    for seed in range(50):
        draw = runtime.generator("07 silent", seed)
        law = torch.randn(20, generator=draw, dtype=torch.float64).log_softmax(-1)
        pair = kllab.pairs.categorical(law, law)
        logits = law.clone().requires_grad_()
        logprob = logits.log_softmax(-1)[pair.sample((n,), generator=draw)]
        ref = logprob.detach()
        for name, usage in itertools.product(K, ("loss", "reward")):
            assert float(K[name](ref - logprob.detach()).abs().max()) == 0
            term = PLACES[usage](K[name], logprob, ref).mean()
            (g,) = torch.autograd.grad(term, logits, retain_graph=True)
            if (name, usage) == ("k1", "loss"):
                assert float(g.norm()) > 1e-3
            else:
                assert float(g.abs().max()) == 0
        q = law.exp().numpy()
        # E‖∇log q‖² = 1 − Σq², the noise of one sample.
        v = gradients.variance(K1, law, law, usage="loss")
        assert float(v) == pytest.approx(1 - q @ q, rel=1e-12)


def test_the_policy_term_reads_zero_and_follows_the_reward():
    """All groups of three answers over three tokens, with their probabilities."""
    q, reward, size = Q, np.array([1.0, 0.0, 0.25]), 3
    mean = np.zeros(3)
    for group in itertools.product(range(3), repeat=size):
        logits = tensor(q).requires_grad_()
        x = torch.tensor(group)
        logprob = logits.log_softmax(-1)[x]
        advantage = gradients.less_baseline(torch.from_numpy(reward)[x], how="mean")
        term = (-advantage * torch.exp(logprob - logprob.detach())).mean()
        term.backward()
        assert abs(float(term.detach())) < 1e-16
        mean += q[list(group)].prod() * logits.grad.numpy()
    signal = -(1 - 1 / size) * q * (reward - q @ reward)
    assert np.allclose(mean, signal, atol=1e-15)
    assert np.linalg.norm(signal) > 0.1


def test_a_group_that_earns_the_same_teaches_nothing():
    logits = tensor(Q).requires_grad_()
    logprob = logits.log_softmax(-1)[torch.tensor([0, 1, 2, 0])]
    advantage = gradients.less_baseline(torch.full((4,), 0.7).double(), how="mean")
    (-advantage * torch.exp(logprob - logprob.detach())).mean().backward()
    assert float(logits.grad.norm()) < 1e-15


def test_the_logged_loss_rises_while_training_works():
    V, groups, size, beta, good = 50, 32, 8, 0.1, 10
    reward = (torch.arange(V) < good).double()
    for seed in range(10):
        draw = runtime.generator("07 rises", seed)
        log_p = torch.randn(V, generator=draw, dtype=torch.float64).log_softmax(-1)
        logits, losses, rewards = log_p, [], []
        for _ in range(60):
            leaf = logits.detach().clone().requires_grad_()
            log_q = leaf.log_softmax(-1)
            law = kllab.sampling.Categorical(log_q.detach())
            x = law.sample((groups, size), generator=draw)
            logprob = log_q[x]
            advantage = gradients.less_baseline(reward[x], how="mean")
            policy = (-advantage * torch.exp(logprob - logprob.detach())).mean()
            penalty = K3(log_p[x] - logprob).mean()
            (policy + beta * penalty).backward()
            assert abs(policy.item()) < 1e-15
            losses.append(beta * penalty.item())
            rewards.append(float(log_q.detach().exp() @ reward))
            logits = leaf.detach() - leaf.grad
        assert losses[0] < 1e-12
        assert losses[-1] > 0.01 > 20 * losses[1]
        assert rewards[-1] > rewards[0] + 0.2


def test_how_far_the_noise_of_k1_carries_a_policy():
    steps, rate, n, walkers = 100, 0.1, 16, 400
    fisher = np.diag(P) - np.outer(P, P)
    noise = gradients.covariance(K1, tensor(P), tensor(P), usage="loss")
    assert np.allclose(noise, fisher, atol=1e-15)
    predicted = rate**2 * steps / (2 * n) * np.trace(fisher @ fisher)
    logits, draw = tensor(P).expand(walkers, -1), runtime.generator("07 drift", 1)
    for _ in range(steps):
        drawn = torch.multinomial(logits.softmax(-1), n, replacement=True, generator=draw)
        leaf = logits.clone().requires_grad_()
        logprob = leaf.log_softmax(-1).gather(-1, drawn)
        partial(gradients.as_loss, K1)(logprob, tensor(P)[drawn]).mean(-1).sum().backward()
        logits = logits - rate * leaf.grad
    q = logits.softmax(-1).numpy()
    kl = (q * np.log(q / P)).sum(-1)
    assert abs(kl.mean() - predicted) < 5 * kl.std() / math.sqrt(walkers) + 0.02 * predicted
