"""What chapter 09 says of the noise of a gradient, against sums and quadrature written here."""

import itertools
import math

import numpy as np
import pytest
import torch

import kllab
from kllab import K1, K2, K3, exact, gradients, runtime
from kllab.estimators import with_lambda

THREE = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])
FAR = np.array([0.4, 0.35, 0.25]), np.array([0.02, 0.08, 0.9])
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
PLACEMENTS = {  # c as a function of r
    ("k1", "loss"): lambda r: np.ones_like(r),
    ("k1", "reward"): lambda r: -np.log(r),
    ("k1", "both"): lambda r: 1 - np.log(r),
    ("k2", "loss"): lambda r: -np.log(r),
    ("k2", "reward"): lambda r: np.log(r) ** 2 / 2,
    ("k3", "loss"): lambda r: 1 - r,
    ("k3", "reward"): lambda r: r - 1 - np.log(r),
    ("k3", "both"): lambda r: -np.log(r),
}
RIGHT = [("k1", "reward"), ("k1", "both"), ("k2", "loss"), ("k3", "both")]
ESTIMATORS = {"k1": K1, "k2": K2, "k3": K3}


def logs(pair):
    return tuple(torch.from_numpy(np.log(x)) for x in pair)


def gradient_of_kl(q, p):
    """d KL(softmax(z)‖p) / dz = q (log q/p − KL)."""
    k1 = np.log(q / p)
    return q * (k1 - q @ k1)


def spread(c, q):
    """Mean, and total variance, of c(x) (e_x − q) for x ~ q, token by token."""
    each = c[:, None] * (np.eye(len(q)) - q)
    mean = q @ each
    return mean, float(q @ ((each - mean) ** 2).sum(-1))


def on_the_line(c, mu):
    """The same for q = N(θ, 1) at θ = 0 and p = N(mu, 1), by quadrature; c of log r."""
    each = c(mu * NODES - mu**2 / 2) * NODES
    mean = WEIGHTS @ each
    return mean, WEIGHTS @ (each - mean) ** 2


# --- one number per sample ----------------------------------------------------------------------


@pytest.mark.parametrize("lam", [-1.0, 0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("pair", [THREE, FAR])
def test_the_ratio_cancels_and_lambda_is_a_baseline(pair, lam):
    log_q, log_p = logs(pair)
    c = gradients.coefficient(with_lambda("kl_qp", lam), log_q, log_p, usage="both")
    assert np.allclose(c.numpy(), np.log(pair[0] / pair[1]) + 1 - lam, atol=1e-13)
    mean = gradients.expected(with_lambda("kl_qp", lam), log_q, log_p, usage="both")
    assert np.allclose(mean.numpy(), gradient_of_kl(*pair), atol=1e-13)


def test_three_placements_are_one_gradient_sample_by_sample():
    log_q, log_p = logs(FAR)
    same = [
        gradients.coefficient(fn, log_q, log_p, usage=usage)
        for fn, usage in ((K1, "reward"), (K2, "loss"), (K3, "both"))
    ]
    assert torch.allclose(same[0], same[1], atol=1e-14)
    assert torch.allclose(same[0], same[2], atol=1e-14)
    other = gradients.coefficient(K1, log_q, log_p, usage="both")
    assert torch.allclose(other - same[0], torch.ones(3).double(), atol=1e-14)


# --- the two best coefficients ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mu", "lam", "printed"),
    [
        (0.1, 0.0, 1.03), (0.1, 1.0, 0.02), (1.0, 0.0, 4.25), (1.0, 1.0, 2.25), (1.0, 1.5, 2.0),
        (2.0, 0.0, 17.0), (2.0, 1.0, 12.0), (2.0, 3.0, 8.0),
    ],
)  # fmt: skip
def test_the_gaussian_parabola(mu, lam, printed):
    mean, variance = on_the_line(lambda l: -l + 1 - lam, mu)
    assert mean == pytest.approx(-mu, rel=1e-10)
    assert variance == pytest.approx((mu**2 / 2 + 1 - lam) ** 2 + 2 * mu**2, rel=1e-9)
    assert variance == pytest.approx(printed, abs=0.005)


def test_the_puzzle_at_a_shift_of_two():
    quietest_value, quietest_gradient = 4 / math.expm1(4), 3.0
    pair = kllab.pairs.gaussian(2.0, 1.0)
    value = {
        lam: exact.moments(with_lambda("kl_qp", lam), pair).sd / 2
        for lam in (0.0, quietest_value, 1.0, quietest_gradient)
    }
    push = {lam: math.sqrt(on_the_line(lambda l: -l + 1 - lam, 2.0)[1]) / 2 for lam in value}  # noqa: B023
    assert min(value, key=value.get) == quietest_value
    assert min(push, key=push.get) == quietest_gradient
    assert max(value, key=value.get) == quietest_gradient
    # Var(k_λ) = μ² − 2λμ² + λ²(e^{μ²} − 1), by hand.
    for lam, sd in value.items():
        assert (2 * sd) ** 2 == pytest.approx(4 - 8 * lam + lam**2 * math.expm1(4), rel=1e-9)


@pytest.mark.parametrize(
    ("pair", "value", "push"), [(THREE, 0.877, 0.574), (FAR, 1.049, 2.093), ("words", 0.769, 1.345)]
)
def test_the_best_coefficients_of_the_table(pair, value, push):
    if pair == "words":
        words = kllab.pairs.word_frequencies()
        q, p = words.log_q.exp().numpy(), words.log_p.exp().numpy()
    else:
        q, p = pair
    r, k1 = p / q, np.log(q / p)
    length = 1 - 2 * q + q @ q  # ‖e_x − q‖²
    lam_value = ((p - q) @ np.log(r)) / ((p**2 / q).sum() - 1)
    lam_push = 1 + (q * k1) @ length / (q @ length)
    log_q, log_p = torch.from_numpy(np.log(q)), torch.from_numpy(np.log(p))
    ours = gradients.optimal_lambda_for_gradient("kl_qp", log_q, log_p)
    assert float(ours) == pytest.approx(lam_push, rel=1e-9)
    assert lam_value == pytest.approx(value, abs=5e-4)
    assert lam_push == pytest.approx(push, abs=5e-4)


def test_the_best_coefficients_can_lie_on_any_side_of_one():
    """Both tend to one near the reference; far away all four signs occur."""
    rng, seen = np.random.default_rng(0), set()
    for _ in range(400):
        q, p = rng.dirichlet(np.ones(3), size=2)
        log_q, log_p = logs((q, p))
        value = ((p - q) @ np.log(p / q)) / ((p**2 / q).sum() - 1)
        push = float(gradients.optimal_lambda_for_gradient("kl_qp", log_q, log_p))
        seen.add((value > 1, push > 1))
    assert len(seen) == 4


@pytest.mark.parametrize("mu", [0.1, 1.0, 2.0])
def test_k3_as_a_loss_brings_the_tail_back(mu):
    by_hand = math.exp(mu**2) * (1 + 4 * mu**2) - 1 - 3 * mu**2
    mean, variance = on_the_line(lambda l: -np.expm1(l), mu)
    assert mean == pytest.approx(-mu, rel=1e-8)
    assert variance == pytest.approx(by_hand, rel=1e-6)
    _, shifted = on_the_line(lambda l: -np.expm1(l) + mu**2, mu)
    assert variance - shifted == pytest.approx(mu**4, rel=1e-5)
    mean, _ = on_the_line(lambda l: np.expm1(l) - l, mu)
    assert mean == pytest.approx(0, abs=1e-6)  # as reward: the two KLs are equal


def test_a_gradient_of_many_words_needs_many_samples():
    words = kllab.pairs.word_frequencies()
    q, p = words.log_q.exp().numpy(), words.log_p.exp().numpy()
    k1 = np.log(q / p)
    g = gradient_of_kl(q, p)
    length = 1 - 2 * q + q @ q
    cross = 2 * (q * k1) @ (g - q @ g)
    variance = (q * k1**2) @ length - cross + g @ g
    noise = math.sqrt(variance / (g @ g))
    assert noise == pytest.approx(23.12, abs=5e-3)
    ours = gradients.variance(K1, words.log_q, words.log_p, usage="reward")
    assert float(ours) == pytest.approx(variance, rel=1e-9)
    value = exact.moments(K3, words).sd / (q @ k1)
    assert 100 < (noise / value) ** 2 < 120


# --- measured -----------------------------------------------------------------------------------


def sampled(name, usage, pair, n, seed):
    log_q, log_p = logs(pair)
    draw = runtime.generator("09 twice", seed)
    x = kllab.pairs.categorical(log_q, log_p).sample((n,), generator=draw)
    c = gradients.coefficient(ESTIMATORS[name], log_q[x], log_p[x], usage=usage)
    score = torch.nn.functional.one_hot(x, len(log_q)) - log_q.exp()
    return (c[:, None] * score).mean(0).numpy()


@pytest.mark.parametrize(("name", "usage"), PLACEMENTS)
def test_samples_agree_with_the_enumeration_and_detect_a_wrong_placement(name, usage):
    q, p = THREE
    c = PLACEMENTS[name, usage](p / q)
    each = c[:, None] * (np.eye(3) - q)
    own = q @ each
    n = 4_000
    sd = np.sqrt(q @ (each - own) ** 2 / n)
    goal = gradient_of_kl(q, p)
    detected = 0
    for seed in range(100):
        mean = sampled(name, usage, THREE, n, seed)
        assert (np.abs(mean - own) < 4.6 * sd).all(), seed
        detected += bool((np.abs(mean - goal) > 4.6 * sd).any())
    assert detected == 0 if (name, usage) in RIGHT else detected >= 99


# --- baselines from the batch -------------------------------------------------------------------


def batch(pair, n, centre):
    """Exact mean, and n times the total variance, of (1/n) Σ (k_i − baseline) s_i."""
    q, p = pair
    k, s = np.log(q / p), np.eye(len(q)) - q
    mean, square = np.zeros(len(q)), 0.0
    for x in itertools.product(range(len(q)), repeat=n):
        odds, x = q[list(x)].prod(), list(x)
        g = (centre(k[x])[:, None] * s[x]).mean(0)
        mean, square = mean + odds * g, square + odds * g @ g
    return mean, n * (square - mean @ mean)


def others(k):
    return k - (k.sum() - k) / (len(k) - 1)


@pytest.mark.parametrize("n", [2, 3, 4, 6])
@pytest.mark.parametrize("pair", [THREE, FAR])
def test_centring_shrinks_and_leaving_one_out_does_not(pair, n):
    goal = gradient_of_kl(*pair)
    centred, _ = batch(pair, n, lambda k: k - k.mean())
    left_out, noise = batch(pair, n, others)
    assert np.allclose(centred, (1 - 1 / n) * goal, atol=1e-14)
    assert np.allclose(left_out, goal, atol=1e-14)
    k = torch.from_numpy(np.log(pair[0] / pair[1]))[[0, 1, 2, 0, 1, 2][:n]]
    assert np.allclose(gradients.less_baseline(k, how="leave_one_out"), others(k.numpy()))
    # The price of not knowing the mean.
    q, p = pair
    k1, kl = np.log(q / p), q @ np.log(q / p)
    price = (q @ (k1 - kl) ** 2 * (1 - q @ q) + goal @ goal) / (n - 1)
    assert noise == pytest.approx(spread(k1 - kl, q)[1] + price, rel=1e-12)


def test_the_table_of_baselines():
    q, p = THREE
    k1, kl = np.log(q / p), q @ np.log(q / p)
    best = float(gradients.optimal_lambda_for_gradient("kl_qp", *logs(THREE))) - 1
    none, known, optimal = (spread(k1 - b, q)[1] for b in (0.0, kl, best))
    assert best < 0 < kl
    assert known > 1.8 * none > 1.8 * 5 * optimal
    k1, kl = np.log(FAR[0] / FAR[1]), FAR[0] @ np.log(FAR[0] / FAR[1])
    none, known = (spread(k1 - b, FAR[0])[1] for b in (0.0, kl))
    assert known < none < batch(FAR, 4, others)[1]


@pytest.mark.parametrize("mu", [0.6, 0.9, 1.6, 1.9])
def test_when_leaving_one_out_pays_for_a_gaussian(mu):
    """2μ² n/(n − 1) by quadrature over pairs; it wins exactly if KL > 4/(n − 1)."""
    k = mu**2 / 2 - mu * NODES
    a, b = np.meshgrid(np.arange(80), np.arange(80), indexing="ij")
    g = ((k[a] - k[b]) * NODES[a] + (k[b] - k[a]) * NODES[b]) / 2
    odds = WEIGHTS[a] * WEIGHTS[b]
    assert (odds * g).sum() == pytest.approx(-mu, rel=1e-9)
    assert 2 * ((odds * g**2).sum() - mu**2) == pytest.approx(2 * mu**2 * 2, rel=1e-9)
    none = on_the_line(lambda l: -l, mu)[1]
    for n in (2, 3, 5, 9, 17):
        assert (2 * mu**2 * n / (n - 1) < none) == (mu**2 / 2 > 4 / (n - 1))
    assert 1 - 2 * mu**2 / none == pytest.approx((mu**2 / 2) / (mu**2 / 2 + 4), rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_samples_see_the_shrinking(seed):
    log_q, log_p = logs(THREE)
    pair = kllab.pairs.categorical(log_q, log_p)
    x = pair.sample((20_000, 4), generator=runtime.generator("09 batches", seed))
    goal = torch.from_numpy(gradient_of_kl(*THREE))
    score = torch.eye(3, dtype=torch.float64) - log_q.exp()
    for how, share, centre in (
        ("none", 1.0, lambda k: k),
        ("mean", 0.75, lambda k: k - k.mean()),
        ("leave_one_out", 1.0, others),
    ):
        k = gradients.less_baseline(K1(pair.log_r)[x], how=how)
        along = (k[..., None] * score[x]).mean(1) @ goal / (goal @ goal)
        _, noise = batch(THREE, 4, centre)
        bound = 5 * math.sqrt(noise / 4 / float(goal @ goal) / 20_000)
        assert abs(float(along.mean()) - share) < bound < 0.05


def test_dividing_by_the_spread_takes_the_size_of_the_kl_away():
    lengths = []
    for nearness in (0.0, 0.5, 0.99):
        p = FAR[1] ** (1 - nearness) * FAR[0] ** nearness
        pair = FAR[0], p / p.sum()

        def standardised(k):
            sd = k.std(ddof=1)
            return (k - k.mean()) / sd if sd > 1e-12 else 0 * k

        mean, _ = batch(pair, 4, standardised)
        centred, _ = batch(pair, 4, lambda k: k - k.mean())
        lengths.append((np.linalg.norm(mean), np.linalg.norm(centred)))
    assert lengths[0][0] == pytest.approx(lengths[2][0], rel=1e-9)
    assert lengths[2][1] < 0.02 * lengths[0][1]


def test_a_weighted_baseline_from_the_same_batch_bends_the_direction():
    q, p = THREE
    length = ((np.eye(3) - q) ** 2).sum(-1)
    k1 = np.log(q / p)
    goal, shares = gradient_of_kl(q, p), {}
    for leave_out in (False, True):
        mean = np.zeros(3)
        for x in map(list, itertools.product(range(3), repeat=4)):
            top, bottom = (k1 * length)[x], length[x]
            if leave_out:
                baseline = (top.sum() - top) / (bottom.sum() - bottom)
            else:
                baseline = top.sum() / bottom.sum()
            mean += q[x].prod() * ((k1[x] - baseline)[:, None] * (np.eye(3) - q)[x]).mean(0)
        shares[leave_out] = mean / goal
    assert np.allclose(shares[True], 1, atol=1e-13)
    assert np.ptp(shares[False]) > 0.01
    assert (shares[False] < 0.7).all()
