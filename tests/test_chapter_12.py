"""What chapter 12 says, against closed forms, rows solved backwards by hand, and many seeds."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from kllab import K3, exact, runtime
from kllab.sequences import Tree
from kllab.training import (
    PLACEMENTS,
    DroppedToken,
    Placement,
    Problem,
    bandit,
    expected_gradient,
    fixed_point,
    sampled_gradient,
    train,
)

P5 = np.array([0.40, 0.30, 0.15, 0.10, 0.05])
PAY = np.array([0.0, 0.3, 0.2, 0.6, 1.0])


def double(values):
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def exponential(p, g):
    w = p * np.exp(g - g.max())
    return w / w.sum()


def hyperbola(p, g):
    l = brentq(
        lambda l: (p / (l - g)).sum() - 1, g.max() + p[g.argmax()] / 2, g.max() + 2, xtol=1e-15
    )
    return p / (l - g)


# --- the goal and one token


@pytest.mark.parametrize("seed", range(10))
def test_what_a_policy_lacks_is_its_distance_from_the_optimum(seed):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(8), size=2)
    reward, beta = rng.normal(size=8), rng.uniform(0.1, 2)
    z = (p * np.exp(reward / beta)).sum()
    goal = q @ reward - beta * (q * np.log(q / p)).sum()
    star = bandit(double(p).log(), double(reward), beta).log_optimum.exp().numpy()
    np.testing.assert_allclose(star, p * np.exp(reward / beta) / z, rtol=1e-12)
    lacks = beta * (q * np.log(q / star)).sum()
    assert goal == pytest.approx(beta * math.log(z) - lacks, rel=1e-10)


FIVE = bandit(double(P5).log(), double(PAY), beta=0.5)
C = {  # what multiplies the score, as a function of r
    "k1 reward": lambda r: -np.log(r),
    "k2 loss": lambda r: -np.log(r),
    "w k3 loss": lambda r: -np.log(r),
    "k3+ loss": lambda r: -np.log(r),
    "k3 both": lambda r: -np.log(r),
    "k3 loss": lambda r: 1 - r,
    "k3 reward": lambda r: r - 1 - np.log(r),
    "k2 reward": lambda r: np.log(r) ** 2 / 2,
    "k1 loss": np.ones_like,
}


def field(name, q):
    """Σ_a q(a) (e_a − q) [β c(a) − R(a)]."""
    weight = q * (0.5 * C[name](P5 / q) - PAY)
    return weight - q * weight.sum()


@pytest.mark.parametrize("name", PLACEMENTS)
def test_one_token_rests_where_the_coefficient_is_linear_in_the_reward(name):
    ends = {
        **dict.fromkeys(list(PLACEMENTS)[:5], exponential(P5, PAY / 0.5)),
        "k3 loss": hyperbola(P5, PAY / 0.5),
    }
    for seed in range(3):
        q = np.random.default_rng(seed).dirichlet(np.ones(5))
        ours = expected_gradient(FIVE, PLACEMENTS[name], double(q).log()[None])[0]
        np.testing.assert_allclose(ours, field(name, q), rtol=1e-9, atol=1e-14)
    point = fixed_point(FIVE, PLACEMENTS[name])
    if name in ends:
        assert point.status == "converged"
        np.testing.assert_allclose(point.log_probs.exp(), ends[name], rtol=1e-9)
        np.testing.assert_allclose(field(name, ends[name]), 0, atol=1e-13)
    else:
        assert point.status == "collapsed"
        assert float(point.log_probs.min()) < -79


def test_k3_as_loss_is_the_best_policy_for_the_other_direction():
    best = hyperbola(P5, PAY / 0.5)

    def goal(q):
        return q @ PAY - 0.5 * (P5 * np.log(P5 / q)).sum()

    for seed in range(20):
        other = np.random.default_rng(seed).dirichlet(np.ones(5))
        for step in (1.0, 0.01):
            assert goal((1 - step) * best + step * other) < goal(best)
    assert best @ PAY > exponential(P5, PAY / 0.5) @ PAY  # earns more than it should, here
    for beta in (0.03, 0.01):  # gives a worse token up in proportion to β
        assert hyperbola(P5, PAY / beta)[3] == pytest.approx(beta * 0.1 / 0.4, rel=0.05)
        relative = exponential(P5, PAY / beta)
        assert relative[3] / relative[4] == pytest.approx(2 * math.exp(-0.4 / beta), rel=1e-9)


def batch_law(name, at):
    """Mean and variance, over all batches of two, of the last component of the gradient."""
    mean = square = 0.0
    c = C[name](P5 / at)
    for a, b in itertools.product(range(5), repeat=2):
        scores = [(x == 4) - at[4] for x in (a, b)]
        total = 0.0
        for i, (mine, other) in enumerate(((a, b), (b, a))):
            if name.endswith("reward"):
                advantage = (PAY[mine] - 0.5 * c[mine]) - (PAY[other] - 0.5 * c[other])
                total -= advantage * scores[i] / 2
            else:
                total += (0.5 * c[mine] - (PAY[mine] - PAY[other])) * scores[i] / 2
        mean += at[a] * at[b] * total
        square += at[a] * at[b] * total**2
    return mean, square - mean**2


@pytest.mark.parametrize("name", ["k1 reward", "k2 loss", "k3 loss", "k3 reward", "k1 loss"])
def test_samples_at_the_optimum_tell_who_rests_there_for_any_seed(name):
    star = exponential(P5, PAY / 0.5)
    mean, variance = batch_law(name, star)
    exactly = field(name, star)[4]
    assert mean == pytest.approx(exactly, abs=1e-15)
    rests = name in ("k1 reward", "k2 loss")
    assert (abs(exactly) < 1e-15) == rests
    one = double(star).log()[None]
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        drawn = FIVE.tree.sample(one, (2, 20_000), generator=draw)
        each = sampled_gradient(FIVE, PLACEMENTS[name], one.expand(20_000, 1, 5), drawn)[:, 0, 4]
        if name == "k1 reward":  # R − β k1 is the same for all tokens: no batch pushes
            assert variance < 1e-30
            assert each.abs().max() < 1e-14
            continue
        se = math.sqrt(variance / 20_000)
        assert abs(float(each.mean()) - exactly) < 5 * se
        assert (abs(float(each.mean())) > 10 * se) != rests  # the wrong ones are seen


# --- 27 sequences


def seeded_reference():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(13, 3, generator=draw, dtype=torch.float64)


TREE, REF = Tree(3, 3), seeded_reference()
REWARDS = torch.zeros(27, dtype=torch.float64)
REWARDS[0] = 1.0
ROW = {h: i for i, h in enumerate(
    itertools.chain(*(itertools.product(range(3), repeat=t) for t in range(3)))
)}  # fmt: skip


def solve(beta, rule, price_later, h=()):
    """(worth of prefix h, {prefix: row}) with the rows after h solved first."""
    if len(h) == 3:
        return float(h == (0, 0, 0)), {}
    p, worth, rows = softmax(REF[ROW[h]].numpy()), [], {}
    for a in range(3):
        value, below = solve(beta, rule, price_later, (*h, a))
        worth.append(value)
        rows |= below
    q = rule(p, np.array(worth) / beta)
    price = beta * (q * np.log(q / p)).sum() if price_later else 0.0
    return q @ worth - price, {h: q, **rows}


def law(rows):
    return np.array([
        math.prod(rows[y[:t]][y[t]] for t in range(3))
        for y in itertools.product(range(3), repeat=3)
    ])  # fmt: skip


SOLVED = {
    "k1 reward": (exponential, True),
    "k2 loss": (exponential, False),
    "k3 loss": (hyperbola, False),
}


@pytest.mark.parametrize("name", SOLVED)
@pytest.mark.parametrize("beta", [0.2, 0.5])
def test_rows_solved_backwards_are_where_the_flow_ends(name, beta):
    at = law(solve(beta, *SOLVED[name])[1])
    point = fixed_point(Problem(TREE, REF, REWARDS, beta), PLACEMENTS[name])
    assert point.status == "converged"
    np.testing.assert_allclose(point.log_probs.exp(), at, rtol=1e-7)
    printed = {
        ("k1 reward", 0.2): 0.8831, ("k1 reward", 0.5): 0.2734,
        ("k2 loss", 0.2): 0.9285, ("k2 loss", 0.5): 0.3374,
        ("k3 loss", 0.2): 0.7340, ("k3 loss", 0.5): 0.4097,
    }  # fmt: skip
    assert at[0] == pytest.approx(printed[name, beta], abs=5e-5)
    if name == "k1 reward":
        ref = law({h: softmax(REF[i].numpy()) for h, i in ROW.items()})
        star = ref * np.exp(REWARDS.numpy() / beta)
        np.testing.assert_allclose(at, star / star.sum(), rtol=1e-12)


def test_the_optima_are_those_that_the_source_printed():
    # Entropies of the optimum in its log, and the chances to win in its post.
    ref = law({h: softmax(REF[i].numpy()) for h, i in ROW.items()})
    for beta, entropy in ((0.05, 0.0), (0.1, 0.010), (0.2, 0.682), (0.5, 2.583), (1.0, 2.783)):
        star = ref * np.exp(REWARDS.numpy() / beta)
        star /= star.sum()
        assert -(star * np.log(star)).sum() == pytest.approx(entropy, abs=5e-4)
        if beta in (0.2, 0.5):
            assert star[0] == pytest.approx({0.2: 0.88, 0.5: 0.27}[beta], abs=5e-3)


def test_the_three_penalties_order_the_chance_to_win_for_every_seed():
    problem, wins = Problem(TREE, REF, REWARDS, 0.2), {}
    for name in SOLVED:
        run = train(
            problem, PLACEMENTS[name], steps=300, lr=0.5, seeds=12, samples=64,
            baseline="mean", generator=torch.Generator().manual_seed(7), records=1,
        )  # fmt: skip
        wins[name] = run.reward[-1]
    assert wins["k3 loss"].max() < 0.75
    assert 0.82 < wins["k1 reward"].min() <= wins["k1 reward"].max() < 0.883
    assert wins["k2 loss"].min() > wins["k1 reward"].max()


def test_at_equal_distance_k2_is_close_to_the_frontier_and_k3_is_below():
    ref = law({h: softmax(REF[i].numpy()) for h, i in ROW.items()})
    traced = {}
    for name, rule in SOLVED.items():
        laws = [law(solve(beta, *rule)[1]) for beta in np.geomspace(0.08, 3.0, 60)]
        traced[name] = [(q * np.log(q / ref)).sum() for q in laws], [q[0] for q in laws]
    # The frontier itself, finely.
    stars = [ref * np.exp(REWARDS.numpy() / beta) for beta in np.geomspace(0.05, 6, 3000)]
    stars = [x / x.sum() for x in stars][::-1]
    kl = [(q * np.log(q / ref)).sum() for q in stars]
    short = {
        name: np.max(np.interp(far, kl, [q[0] for q in stars]) - won)
        for name, (far, won) in traced.items()
    }
    assert abs(short["k1 reward"]) < 1e-5
    assert short["k2 loss"] == pytest.approx(0.0004, abs=1e-4)
    assert short["k3 loss"] == pytest.approx(0.0237, abs=5e-4)


def test_the_own_tokens_reward_and_straight_through_take_the_steps_of_k2():
    problem, ends = Problem(TREE, REF, REWARDS, 0.2), {}
    own = Placement("own", PLACEMENTS["k1 reward"].fn, "reward", credit="token")
    options = {"steps": 30, "lr": 0.5, "seeds": 2, "samples": 16, "baseline": "none"}
    for placement in (PLACEMENTS["k2 loss"], own, PLACEMENTS["k3+ loss"], PLACEMENTS["k3 loss"]):
        draw = torch.Generator().manual_seed(3)
        ends[placement.name] = train(problem, placement, generator=draw, **options).log_probs[-1]
    for name in ("own", "k3+ loss"):
        np.testing.assert_allclose(ends[name], ends["k2 loss"], rtol=0, atol=1e-10)
    assert (ends["k3 loss"] - ends["k2 loss"]).abs().max() > 0.01


def test_half_of_each_part_is_half_of_the_penalty():
    half = Placement("half each", lambda q, p: 0.5 * K3(p - q), "both")
    point = fixed_point(Problem(TREE, REF, REWARDS, 0.2), half)
    for beta, there in ((0.1, True), (0.2, False)):
        star = Problem(TREE, REF, REWARDS, beta).log_optimum
        assert (float(exact.divergence("kl_qp", point.log_probs, star)) < 1e-12) == there


# --- the dropped token


def test_a_dropped_token_returns_once_it_is_drawn_or_never():
    likes = np.full(10, 0.8 / 9)
    likes[1] = 0.2
    start = np.log(likes)
    start[1] = -9.0
    q = softmax(start)
    assert q[1] == pytest.approx(1.54e-4, abs=5e-7)
    seen = 1 - (1 - q[1]) ** (64 * 300)
    assert 20 * seen == pytest.approx(18.96, abs=0.01)

    problem = bandit(double(likes).log(), torch.zeros(10), beta=1.0)
    options = {"steps": 300, "lr": 0.5, "seeds": 20, "samples": 64, "records": 300}
    clamped = Placement("clamped", K3.clamped(log_r=(-20, 20), value=(-10, 10)), "loss")
    back = {}
    for placement in (PLACEMENTS["k3 loss"], PLACEMENTS["k2 loss"]):
        draw = runtime.generator("12 dropped, tested", 0)
        found = DroppedToken(
            train(problem, placement, start=double(start)[None], generator=draw, **options)
        )
        back[placement.name] = int((found.probability > 0.01).any(0).sum())
        if placement.name == "k3 loss":
            # One draw in the batch: the logits move by lr (r − 1)/64 (e − q), and the rest.
            c = 1 - likes / q
            counts = np.full(10, 63 / 9)
            counts[1] = 1
            moved = start - 0.5 * ((counts * c) - (counts @ c) * q) / 64
            jump = softmax(moved)[1] / q[1]
            assert float(found.largest_jump.median()) == pytest.approx(jump, rel=0.02)
    assert back["k2 loss"] == 0
    assert back["k3 loss"] >= 14  # fewer: once in 10,000 seeds, by the binomial law
    tail = sum(math.comb(20, k) * seen**k * (1 - seen) ** (20 - k) for k in range(14))
    assert tail < 1e-4
    # Clamped, the token pushes nothing when it is drawn.
    gradient = torch.autograd.functional.jacobian(clamped.fn, double([math.log(0.2 / q[1])]))
    assert float(gradient) == 0.0


def test_without_noise_both_return_and_k2_slowly():
    likes = np.full(10, 0.8 / 9)
    likes[1] = 0.2
    first = {}
    for name, c in (("k2 loss", C["k2 loss"]), ("k3 loss", C["k3 loss"])):
        z = np.log(likes)
        z[1] = -9.0
        for step in range(1, 8_001):
            q = softmax(z)
            weight = q * c(likes / q)
            z = z - 0.5 * (weight - q * weight.sum())
            if softmax(z)[1] > 0.1:
                first[name] = step
                break
    assert first["k3 loss"] < 150
    assert first["k2 loss"] > 1_000
    problem = bandit(double(likes).log(), torch.zeros(10), beta=1.0)
    start = double(np.log(likes))
    start[1] = -9.0
    run = train(problem, PLACEMENTS["k3 loss"], steps=150, lr=0.5, start=start[None], records=150)
    reached = torch.nonzero(DroppedToken(run).probability[:, 0] > 0.1)
    assert int(reached[0, 0]) == first["k3 loss"]


def test_a_token_below_its_reference_pays_more_k3_the_further_it_falls():
    q = np.linspace(1e-4, 0.2, 400)
    for c in (C["k3 reward"], C["k2 reward"]):
        assert (np.diff(c(0.2 / q)) < 0).all()
    for c in (C["k1 reward"], C["k3 loss"]):
        assert (np.diff(c(0.2 / q)) > 0).all()


def test_k3_in_the_reward_can_rest_inside_and_not_at_the_optimum():
    """R − β k3 is the same for both tokens there, written out; and it is not π*."""
    p, reward, beta = np.array([0.9, 0.1]), np.array([0.0, 0.2]), 0.5
    problem = bandit(torch.tensor(p).log(), torch.tensor(reward), beta=beta)
    point = fixed_point(problem, PLACEMENTS["k3 reward"])
    q = point.log_probs.exp().numpy()
    assert point.status == "converged"
    pushes = reward - beta * (p / q - 1 - np.log(p / q))
    assert pushes[0] == pytest.approx(pushes[1], abs=1e-9)
    assert q[0] == pytest.approx(0.699, abs=1e-3)
    star = p * np.exp(reward / beta)
    assert abs(q[0] - star[0] / star.sum()) > 0.1
