"""Placements and exact gradients against explicit sums over tokens, fractions and 50 digits."""

import functools
import itertools
import math

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

import kllab
from kllab import K1, K2, K3, InputError, gradients
from kllab.estimators import with_lambda
from kllab.gradients import (
    as_both,
    as_loss,
    as_reward,
    as_reward_centred,
    as_reward_leave_one_out,
    coefficient,
    covariance,
    expected,
    importance_weighted,
    importance_weighted_detached,
    optimal_lambda_for_gradient,
    penalty_for,
    sampled,
    straight_through,
    variance,
)

USAGES = ("loss", "reward", "both")


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def weighted(fn):
    return functools.partial(importance_weighted, fn)


def weighted_detached(fn):
    return functools.partial(importance_weighted_detached, fn)


def plus(value, gradient):
    return functools.partial(straight_through, value, gradient)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def close(got, want, relative=1e-12):
    got, want = np.asarray(got, dtype=float), np.asarray(want, dtype=float)
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= relative * np.linalg.norm(want), (got, want)


def by_hand(c, q, mu=None):
    """Σₓ μ(x) c(x) ∂log q(x)/∂logits, one term after the other."""
    mu = q if mu is None else mu
    return [
        math.fsum(mu[x] * c[x] * ((x == i) - q[i]) for x in range(len(q))) for i in range(len(q))
    ]


def coefficients(q, p, old=None):
    """c of every placement, from l = log p/q, written out; w = q/old."""
    l = np.log(p / q)
    r, w = p / q, 1.0 if old is None else q / old
    k1, k2, k3 = -l, l**2 / 2, r - 1 - l
    one = np.ones_like(q)
    return {
        ("k1", "loss"): one,
        ("k2", "loss"): k1,
        ("k3", "loss"): 1 - r,
        ("abs", "loss"): -np.sign(l),
        ("upside down k3", "loss"): 1 / r - 1,
        ("k3+", "loss"): k1,
        ("k1", "reward"): k1,
        ("k2", "reward"): k2,
        ("k3", "reward"): k3,
        ("abs", "reward"): np.abs(l),
        ("upside down k3", "reward"): 1 / r - 1 + l,
        ("k3+", "reward"): k3,
        ("k1", "both"): k1 + 1,
        ("k2", "both"): k2 + k1,
        ("k3", "both"): k1,
        ("abs", "both"): np.abs(l) - np.sign(l),
        ("upside down k3", "both"): 2 / r - 2 + l,
        ("k3+", "both"): k3 + k1,
        ("w k1", "loss"): w * (k1 + 1),
        ("w k2", "loss"): w * (k2 + k1),
        ("w k3", "loss"): w * k1,
        ("sg(w) k1", "loss"): w * one,
        ("sg(w) k2", "loss"): w * k1,
        ("sg(w) k3", "loss"): w * (1 - r),
        ("w k1", "reward"): w * k1,
        ("sg(w) k3", "reward"): w * k3,
        ("w k2", "both"): w * (2 * k2 + k1),
    }


def upside_down(logprob, ref_logprob):
    d = logprob - ref_logprob
    return torch.exp(d) - 1 - d


FUNCTIONS = {
    "k1": K1,
    "k2": K2,
    "k3": K3,
    "abs": torch.abs,
    "upside down k3": upside_down,
    "k3+": plus(K3, K2),
    "w k1": weighted(K1),
    "w k2": weighted(K2),
    "w k3": weighted(K3),
    "sg(w) k1": weighted_detached(K1),
    "sg(w) k2": weighted_detached(K2),
    "sg(w) k3": weighted_detached(K3),
}
CASES = sorted(coefficients(np.ones(2) / 2, np.ones(2) / 2))


# --- every placement against the explicit sum -------------------------------------------------


@pytest.mark.parametrize(("name", "usage"), CASES)
@pytest.mark.parametrize("off_policy", [False, True])
def test_expected_is_the_sum_over_tokens(name, usage, off_policy):
    rng = np.random.default_rng(0)
    for V in (2, 3, 7):
        logits, p, old = (
            rng.normal(size=V),
            softmax(rng.normal(size=V)),
            softmax(rng.normal(size=V)),
        )
        q = softmax(logits)
        mu = old if off_policy else q
        want = by_hand(coefficients(q, p, mu)[name, usage], q, mu)
        log_old = torch.from_numpy(np.log(old)) if off_policy else None
        got = expected(
            FUNCTIONS[name],
            torch.from_numpy(logits),
            torch.from_numpy(np.log(p)),
            usage=usage,
            log_old=log_old,
        )
        assert got.dtype == torch.float64
        scale = np.linalg.norm(by_hand(np.ones(V), q, mu)) + 1  # k1 as a loss is 0
        assert np.linalg.norm(got.numpy() - want) <= 1e-13 * max(scale, np.linalg.norm(want))


@pytest.mark.parametrize(("name", "usage"), CASES)
def test_per_sample_surrogates(name, usage):
    """Each sample's own gradient, through the public placements, in a batch of any shape."""
    rng = np.random.default_rng(1)
    q, p, old = rng.uniform(0.01, 1, (3, 4, 5))
    lp, ref, before = (torch.from_numpy(np.log(a)) for a in (q, p, old))
    lp.requires_grad_()
    place = {"loss": as_loss, "reward": as_reward, "both": as_both}[usage]
    place(FUNCTIONS[name], lp, ref, before).sum().backward()
    want = coefficients(q, p, old)[name, usage]
    assert np.allclose(lp.grad.numpy(), want, rtol=1e-12, atol=1e-14)
    again = coefficient(FUNCTIONS[name], lp, ref, before, usage=usage)
    assert again.equal(lp.grad)
    assert not again.requires_grad


def test_surrogate_values():
    lp, ref, old = f64(-1.0, -3.0), f64(-1.5, -1.0), f64(-1.2, -2.0)
    l = ref - lp
    assert as_loss(K3, lp, ref).equal(K3(l))
    assert as_reward(K1, lp, ref).equal(K1(l) * lp)
    assert as_both(K1, lp, ref).equal(K1(l) + K1(l) * lp)
    assert straight_through(K3, K2, lp, ref).equal(K3(l))
    for place in (importance_weighted, importance_weighted_detached):
        assert torch.allclose(place(K2, lp, ref, old), (lp - old).exp() * l**2 / 2, rtol=1e-15)
    assert as_reward_centred(K1, lp, ref).equal((K1(l) - K1(l).mean()) * lp)
    others = K1(l).flip(0)
    assert as_reward_leave_one_out(K1, lp, ref).equal((K1(l) - others) * lp)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_placements_keep_the_dtype(dtype):
    lp = torch.tensor([-1.0, -2.0], dtype=dtype, requires_grad=True)
    ref = torch.tensor([-2.0, -0.5], dtype=dtype)
    for out in (
        as_loss(K3, lp, ref),
        as_reward(K3, lp, ref),
        as_both(K3, lp, ref),
        straight_through(K3, K2, lp, ref),
        importance_weighted(K3, lp, ref, ref),
        as_reward_leave_one_out(K3, lp, ref),
    ):
        assert out.dtype == dtype
        assert out.requires_grad


@given(st.integers(2, 12), st.integers(0, 2**31), st.sampled_from(CASES), st.booleans())
def test_expected_is_what_autograd_through_log_softmax_gives(V, seed, case, off_policy):
    """The other way round: one token's loss after the other, differentiated down to the logits."""
    name, usage = case
    rng = torch.Generator().manual_seed(seed)
    logits, log_p, log_old = torch.randn(3, V, generator=rng, dtype=torch.float64) * 2
    log_p, log_old = log_p.log_softmax(-1), log_old.log_softmax(-1)
    mu = log_old if off_policy else logits.log_softmax(-1)
    leaf = logits.clone().requires_grad_()
    log_q = leaf.log_softmax(-1)
    place = {"loss": as_loss, "reward": as_reward, "both": as_both}[usage]
    losses = place(FUNCTIONS[name], log_q, log_p, mu)
    (want,) = torch.autograd.grad((mu.exp() * losses).sum(), leaf)
    got = expected(
        FUNCTIONS[name], logits, log_p, usage=usage, log_old=log_old if off_policy else None
    )
    c = coefficient(FUNCTIONS[name], log_q, log_p, mu, usage=usage)
    assert (got - want).norm() <= 1e-13 * (mu.exp() * c.abs()).sum()
    assert abs(got.sum()) <= 1e-13 * (mu.exp() * c.abs()).sum()  # softmax ignores a shift


# --- the identities ---------------------------------------------------------------------------


def random_pair(seed=0, V=6):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=V)), torch.from_numpy(
        np.log(softmax(rng.normal(size=V)))
    )


def true(name, logits, log_p):
    return [float(g) for g in oracles.logit_gradient(name, logits, log_p)]


@pytest.mark.parametrize(
    ("fn", "usage", "combination"),
    [
        (K2, "loss", {"kl_qp": 1}),
        (K3, "loss", {"kl_pq": 1}),
        (torch.abs, "loss", {"tv": 2}),
        (upside_down, "loss", {"chi2_qp": 0.5}),
        (K1, "reward", {"kl_qp": 1}),
        (K3, "reward", {"kl_qp": 1, "kl_pq": -1}),
        (K2, "reward", {"half_squared_log": 1, "kl_qp": -1}),
        (K1, "both", {"kl_qp": 1}),
        (K2, "both", {"half_squared_log": 1}),
        (K3, "both", {"kl_qp": 1}),
        (with_lambda("kl_qp", -0.7), "both", {"kl_qp": 1}),
        (with_lambda("js", 3.0), "both", {"js": 1}),
        (plus(K3, K2), "loss", {"kl_qp": 1}),
        (weighted(K1), "loss", {"kl_qp": 1}),
        (weighted(K3), "loss", {"kl_qp": 1}),
        (weighted(K2), "loss", {"half_squared_log": 1}),
        (weighted_detached(K3), "loss", {"kl_pq": 1}),
        (weighted_detached(K2), "loss", {"kl_qp": 1}),
    ],
)
def test_identities_to_1e12(fn, usage, combination):
    for seed in range(3):
        logits, log_p = random_pair(seed)
        want = sum(c * np.array(true(name, logits, log_p)) for name, c in combination.items())
        close(expected(fn, logits, log_p, usage=usage), want)


@pytest.mark.parametrize("off", [False, True])
def test_weights_repair_staleness_only_when_differentiated(off):
    logits, log_p = random_pair(4)
    log_old = random_pair(5)[1] if off else None
    run = functools.partial(expected, logits=logits, log_p=log_p, usage="loss", log_old=log_old)
    kl, backwards = true("kl_qp", logits, log_p), true("kl_pq", logits, log_p)
    close(run(weighted(K3)), kl)
    close(run(weighted(K1)), kl)
    close(run(weighted_detached(K2)), kl)
    close(run(weighted_detached(K3)), backwards)
    with pytest.raises(AssertionError):
        close(run(weighted(K2)), kl, relative=0.01)


def test_k1_as_a_loss_is_exactly_zero():
    for seed in range(20):
        assert expected(K1, *random_pair(seed), usage="loss").equal(torch.zeros(6).double())


@pytest.mark.parametrize("usage", USAGES)
@pytest.mark.parametrize("name", [*oracles.REGISTERED, "alpha(0.3)", "alpha(-2.0)", "alpha(4.0)"])
def test_penalties_have_the_gradient_of_their_divergence(name, usage):
    for seed in range(2):
        logits, log_p = random_pair(seed, V=5)
        got = expected(penalty_for(name, usage=usage), logits, log_p, usage=usage)
        close(got, true(name, logits, log_p))


# --- numbers that sources printed -------------------------------------------------------------


def test_binary_numbers():
    """q = (.8, .2), p = (.5, .5), by the probability q(A): dq/dlogit = q(1 − q) = .16."""
    logits, log_p = f64(0.8, 0.2).log(), f64(0.5, 0.5).log()

    def slope(fn, usage):
        g = expected(fn, logits, log_p, usage=usage)
        up, down = g.tolist()
        assert up == pytest.approx(-down, rel=1e-14)
        return up / 0.16

    assert slope(K1, "reward") == pytest.approx(math.log(4), rel=1e-13)
    assert slope(K2, "loss") == pytest.approx(math.log(4), rel=1e-13)
    assert math.log(4) == pytest.approx(1.386294, abs=5e-7)
    assert slope(K1, "loss") == 0.0
    assert slope(K3, "loss") == pytest.approx(1.875, rel=1e-13)
    assert slope(K3, "reward") == pytest.approx(-0.488706, abs=5e-7)
    assert slope(K3, "reward") == pytest.approx(math.log(4) - 1.875, rel=1e-13)
    assert slope(K2, "reward") == pytest.approx(-0.309343, abs=5e-7)


THREE = f64(0.7, 0.2, 0.1).log(), f64(0.4, 0.4, 0.2).log()


@pytest.mark.parametrize(
    ("fn", "usage", "printed"),
    [
        (K1, "reward", (0.26308, -0.17539, -0.08769)),
        (K1, "loss", (0, 0, 0)),
        (K2, "loss", (0.26308, -0.17539, -0.08769)),
        (K3, "loss", (0.3, -0.2, -0.1)),
        (torch.abs, "loss", (0.42, -0.28, -0.14)),
        (weighted(K3), "loss", (0.26308, -0.17539, -0.08769)),
        (weighted(K2), "loss", (0.24552, -0.16368, -0.08184)),
        # ½ χ²(q‖p) by the quotient rule: qᵢ(qᵢ/pᵢ − Σ q²/p), in fractions .2625, −.175, −.0875.
        (upside_down, "loss", (0.2625, -0.175, -0.0875)),
    ],
)
def test_three_token_numbers(fn, usage, printed):
    assert expected(fn, *THREE, usage=usage).tolist() == pytest.approx(printed, abs=5.1e-6)


def test_three_token_values():
    q, l = THREE[0].exp(), THREE[1] - THREE[0]
    values = {K1: 0.18379, K2: 0.18168, K3: 0.18379, torch.abs: 0.59968}
    for fn, printed in values.items():
        assert float(q @ as_loss(fn, *THREE)) == pytest.approx(printed, abs=5.1e-6)
    assert float(q @ upside_down(*THREE)) == pytest.approx(0.375 - 0.18379, abs=5.1e-6)
    assert float(q @ torch.exp(l)) == pytest.approx(1)


def test_fifty_token_table():
    """|k3 as reward| and |k3 as loss − true|, relative to the true gradient: one number twice."""
    rng = np.random.default_rng(1)
    rng.normal(size=12)
    ref, direction = softmax(rng.normal(size=50)), None
    base, direction = np.log(ref), rng.normal(size=50)
    printed = {1: 0.513, 0.3: 0.095, 0.1: 0.0284, 0.03: 0.0083, 0.01: 0.0028, 0.001: 0.00028}
    log_p = torch.from_numpy(base)
    for eps, ratio in printed.items():
        logits = torch.from_numpy(base + eps * direction)
        kl = expected(K1, logits, log_p, usage="reward")
        reward = expected(K3, logits, log_p, usage="reward")
        loss = expected(K3, logits, log_p, usage="loss")
        half_digit = 0.5 * 10 ** -(len(str(ratio)) - 2) if eps != 0.001 else 5e-6
        assert float(reward.norm() / kl.norm()) == pytest.approx(ratio, abs=1.01 * half_digit)
        assert float((loss - kl).norm() / reward.norm()) == pytest.approx(1, rel=1e-10)


def test_off_policy_numbers():
    rng = np.random.default_rng(3)
    l = rng.normal(size=8)
    ref = softmax(l)
    old = softmax(l + 0.5 * rng.normal(size=8))
    new = softmax(np.log(old) + 0.5 * rng.normal(size=8))
    logits, log_p, log_old = (torch.from_numpy(np.log(a)) for a in (new, ref, old))
    kl = expected(K1, logits, log_p, usage="reward")
    close(kl, true("kl_qp", logits, log_p))

    def off(fn):
        g = expected(fn, logits, log_p, usage="loss", log_old=log_old)
        return float((g - kl).norm() / kl.norm())

    assert off(K2) == pytest.approx(0.196, abs=5e-4)
    assert off(K3) == pytest.approx(0.313, abs=5e-4)
    assert off(weighted(K3)) < 1e-14
    assert off(weighted_detached(K3)) == pytest.approx(0.203, abs=5e-4)
    assert off(weighted(K1)) < 1e-14
    assert off(weighted(K2)) == pytest.approx(0.282, abs=5e-4)
    values = {K3: 0.08569, K1: 0.03757}
    for fn, printed in values.items():
        assert float(log_old.exp() @ as_loss(fn, logits, log_p)) == pytest.approx(printed, abs=5e-6)
        repaired = log_old.exp() @ importance_weighted(fn, logits, log_p, log_old)
        assert float(repaired) == pytest.approx(0.08020, abs=5.1e-6)


# --- at π = ref -------------------------------------------------------------------------------


def test_at_the_reference_k2_and_k3_do_nothing_and_k1_is_noise():
    log_q = torch.log_softmax(random_pair(2, V=40)[0], -1)
    for fn in (K2, K3):
        assert as_loss(fn, log_q, log_q).abs().max() == 0
        assert coefficient(fn, log_q, log_q, usage="loss").abs().max() == 0
    assert as_loss(K1, log_q, log_q).abs().max() == 0
    assert coefficient(K1, log_q, log_q, usage="loss").equal(torch.ones(40).double())
    q = log_q.exp()
    # E‖∇log q‖² = 1 − Σq².
    assert float(variance(K1, log_q, log_q, usage="loss")) == pytest.approx(
        1 - float(q @ q), rel=1e-12
    )
    logits = torch.zeros(4).double()
    for fn in (K2, K3):
        assert variance(fn, logits, torch.log_softmax(logits, -1), usage="loss") == 0


# --- baselines --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4])
def test_centring_by_the_batch_mean_shrinks_and_leave_one_out_does_not(n):
    """All Vⁿ batches, each with its probability."""
    logits, log_p = random_pair(7, V=3)
    leaf = logits.clone().requires_grad_()
    log_q = leaf.log_softmax(-1)
    batches = torch.tensor(list(itertools.product(range(3), repeat=n)))
    weight = log_q.detach().exp()[batches].prod(-1, keepdim=True) / n
    want = true("kl_qp", logits, log_p)
    for place, factor in (
        (as_reward, 1.0),
        (as_reward_centred, 1 - 1 / n),
        (as_reward_leave_one_out, 1.0),
    ):
        for dim, turn in ((-1, lambda t: t), (0, torch.t)):
            extra = {} if place is as_reward else {"dim": dim}
            losses = place(K1, turn(log_q[batches]), turn(log_p[batches]), **extra)
            (g,) = torch.autograd.grad((turn(weight) * losses).sum(), leaf, retain_graph=True)
            close(g, factor * np.array(want))


def test_baselines_need_samples():
    one = f64(-1.0)
    assert as_reward_centred(K1, one, one).equal(f64(0.0))
    with pytest.raises(InputError, match="at least 2 samples"):
        as_reward_leave_one_out(K1, one, one)
    with pytest.raises(InputError, match="at least 2 samples"):
        as_reward_leave_one_out(K1, one[0], one[0])


# --- noise ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "usage"), CASES)
@pytest.mark.parametrize("off_policy", [False, True])
def test_covariance_token_by_token(name, usage, off_policy):
    logits, log_p = random_pair(8, V=5)
    log_old = random_pair(9, V=5)[1] if off_policy else None
    q, p = softmax(logits.numpy()), np.exp(log_p.numpy())
    mu = np.exp(log_old.numpy()) if off_policy else q
    c = coefficients(q, p, mu)[name, usage]
    each = c[:, None] * (np.eye(5) - q)
    mean = mu @ each
    want = sum(m * np.outer(g - mean, g - mean) for m, g in zip(mu, each, strict=True))
    kwargs = {"usage": usage, "log_old": log_old}
    got = covariance(FUNCTIONS[name], logits, log_p, **kwargs)
    assert np.allclose(got.numpy(), want, rtol=1e-12, atol=1e-14 * np.abs(want).max())
    total = variance(FUNCTIONS[name], logits, log_p, **kwargs)
    assert float(total) == pytest.approx(np.trace(want), rel=1e-12)


def test_variance_of_the_lambda_family_on_a_gaussian():
    """q = N(θ, 1) at θ = 0, score x: (μ²/2 + 1 − λ)² + 2μ², as printed."""
    x, w = np.polynomial.hermite_e.hermegauss(60)
    x, w = torch.from_numpy(x), torch.from_numpy(w / w.sum())
    printed = {
        1.0: {0: 4.25, 1: 2.25, 1.5: 2.00},
        2.0: {0: 17, 1: 12, 3: 8},
        0.1: {0: 1.03, 1: 0.02, 1.005: 0.02},
    }
    for mu, table in printed.items():
        for lam, value in table.items():
            logprob, ref = -(x**2) / 2, -((x - mu) ** 2) / 2
            g = coefficient(with_lambda("kl_qp", lam), logprob, ref, usage="both") * x
            mean = float(w @ g)
            assert mean == pytest.approx(-mu, rel=1e-10)  # d/dθ of (θ − μ)²/2
            got = float(w @ (g - mean) ** 2)
            assert got == pytest.approx((mu**2 / 2 + 1 - lam) ** 2 + 2 * mu**2, rel=1e-9)
            assert got == pytest.approx(value, abs=0.005)


@pytest.mark.parametrize(
    "name", ["kl_qp", "kl_pq", "js", "hellinger2", "chi2_qp", "tv", "alpha(0.3)"]
)
def test_the_best_lambda_for_the_gradient_is_the_bottom_of_the_parabola(name):
    logits, log_p = random_pair(11)
    lam = float(optimal_lambda_for_gradient(name, logits, log_p))

    def at(value):
        return float(variance(with_lambda(name, value), logits, log_p, usage="both"))

    # A parabola with curvature E‖s‖²: equal on both sides, and lower in the middle.
    q = logits.softmax(-1)
    curvature = 1 - float(q @ q)
    assert at(lam + 0.5) == pytest.approx(at(lam - 0.5), rel=1e-11)
    assert at(lam + 0.5) - at(lam) == pytest.approx(0.25 * curvature, rel=1e-10)


def test_best_lambda_closed_form_and_edges():
    q, k1 = np.array([0.7, 0.2, 0.1]), np.log([0.7 / 0.4, 0.5, 0.5])
    s2 = [((np.eye(3)[x] - q) ** 2).sum() for x in range(3)]
    want = 1 + (q * k1 * s2).sum() / (q * s2).sum()
    assert float(optimal_lambda_for_gradient("kl_qp", *THREE)) == pytest.approx(want, rel=1e-13)
    sure = f64(0.0, -math.inf)
    assert float(optimal_lambda_for_gradient("kl_qp", sure, f64(0.5, 0.5).log())) == 1.0
    assert float(optimal_lambda_for_gradient("kl_pq", sure, f64(0.5, 0.5).log())) == -1.0
    lost = f64(1.0, 0.0).log()
    assert float(optimal_lambda_for_gradient("kl_qp", f64(0.0, 0.0), lost)) == math.inf
    assert float(optimal_lambda_for_gradient("kl_pq", f64(0.0, 0.0), lost)) < math.inf


# --- zeros ------------------------------------------------------------------------------------


def test_tokens_that_the_policy_never_emits():
    q, p = np.array([0.6, 0.4, 0.0, 0.0]), np.array([0.2, 0.3, 0.5, 0.0])
    with np.errstate(divide="ignore"):
        logits, log_p = torch.from_numpy(np.log(q)), torch.from_numpy(np.log(p))
    inner = coefficients(q[:2], p[:2])
    for name, usage in CASES:
        g = expected(FUNCTIONS[name], logits, log_p, usage=usage)
        assert g[2:].equal(torch.zeros(2).double())
        want = by_hand(inner[name, usage], q[:2])
        assert np.allclose(g[:2].numpy(), want, rtol=1e-13, atol=1e-16)
        assert math.isfinite(variance(FUNCTIONS[name], logits, log_p, usage=usage))


def test_tokens_that_the_reference_lacks():
    logits, log_p = f64(0.6, 0.3, 0.1).log(), f64(0.5, 0.5, 0.0).log()
    q, p = logits.exp(), log_p.exp()
    # KL(p‖q) is finite there, and its gradient exact.
    assert torch.allclose(expected(K3, logits, log_p, usage="loss"), q - p, rtol=1e-14)
    assert expected(K1, logits, log_p, usage="loss").equal(torch.zeros(3).double())
    hellinger = expected(penalty_for("hellinger2", usage="loss"), logits, log_p, usage="loss")
    close(hellinger, [float(g) for g in oracles.logit_gradient("hellinger2", logits, log_p)])
    # KL(q‖p) is infinite; the gradient's entries are, with the signs that they have before.
    nearly = torch.log_softmax(f64(0.5, 0.5, 1e-300).log(), -1)
    for fn, usage in ((K1, "reward"), (K2, "loss"), (K3, "reward"), (K2, "reward"), (K3, "both")):
        g = expected(fn, logits, log_p, usage=usage)
        limit = expected(fn, logits, nearly, usage=usage)
        assert g.tolist() == (torch.sign(limit) * math.inf).tolist()
        assert variance(fn, logits, log_p, usage=usage) == math.inf
        with pytest.raises(InputError, match="finite coefficients"):
            covariance(fn, logits, log_p, usage=usage)


def test_an_infinite_coefficient_leaves_alone_what_it_does_not_reach():
    """The policy can neither emit nor be pushed towards token 2; token 3 is drawn but not lost."""
    g = expected(K1, f64(0.6, 0.4, 0.0).log(), f64(0.0, 1.0, 0.0).log(), usage="reward")
    assert g.tolist() == [math.inf, -math.inf, 0.0]
    logits, log_p = f64(0.6, 0.4, 0.0).log(), f64(0.0, 0.5, 0.5).log()
    log_old = f64(0.3, 0.3, 0.4).log()
    g = expected(penalty_for("kl_pq", usage="reward"), logits, log_p, usage="loss", log_old=log_old)
    # Only token 2's coefficient is infinite: −h' = r.
    assert g.tolist() == [-math.inf, -math.inf, math.inf]
    finite = expected(K1, logits, f64(0.2, 0.3, 0.5).log(), usage="loss", log_old=log_old)
    want = by_hand([1, 1, 1], [0.6, 0.4, 0.0], [0.3, 0.3, 0.4])
    close(finite, want)


def test_no_common_token_raises():
    with pytest.raises(InputError, match="in common"):
        expected(K1, f64(0.5, 0.5, 0.0).log(), f64(0.0, 0.0, 1.0).log(), usage="reward")
    lost = f64(*[-math.inf] * 9, 0.0)
    for seed in range(20):  # also where the sums leave some rounding
        logits = torch.cat([random_pair(seed, V=9)[0], f64(-math.inf)])
        with pytest.raises(InputError, match="in common"):
            expected(K1, logits, lost, usage="reward")
    # A tiny mass on the infinite side is not confused with none.
    rare = torch.log_softmax(f64(0.0, -60.0), -1)
    g = expected(K1, rare, f64(1.0, 0.0).log(), usage="reward")
    assert g.tolist() == [-math.inf, math.inf]
    g = expected(lambda l: l, rare, f64(1.0, 0.0).log(), usage="reward")
    assert g.tolist() == [math.inf, -math.inf]


def test_infinities_of_both_signs_raise():
    log_q, log_p = f64(0.5, 0.5, 0.0).log(), f64(0.0, 0.5, 0.5).log()
    log_old = f64(0.3, 0.3, 0.4).log()
    with pytest.raises(InputError, match="of one sign"):
        expected(K1, log_q, log_p, usage="reward", log_old=log_old)


def test_stale_samples_that_the_policy_no_longer_emits():
    """They weigh nothing, though k3 is infinite there."""
    logits, log_p = f64(0.6, 0.4, 0.0).log(), f64(0.2, 0.3, 0.5).log()
    log_old = f64(0.3, 0.3, 0.4).log()
    for fn in (K1, K2, K3):
        for place in (weighted, weighted_detached):
            got = expected(place(fn), logits, log_p, usage="loss", log_old=log_old)
            on = expected(place(fn), logits, log_p, usage="loss")
            assert torch.allclose(got, on, rtol=1e-14, atol=1e-16)
    lp = f64(-math.inf, -1.0).requires_grad_()
    loss = importance_weighted(K3, lp, f64(-1.0, -math.inf), f64(-2.0, -1.0))
    assert loss.tolist() == [0.0, math.inf]
    # Nor does a reference that lacks the token too bring in its own infinity.
    for ref in (-1.0, -math.inf):
        c = coefficient(weighted(K2), lp, f64(ref, -2.0), f64(-2.0, -1.0), usage="loss")
        assert c.tolist() == pytest.approx([0.0, 1.5], abs=0)


def test_both_impossible_is_a_ratio_of_one():
    never = f64(-math.inf)
    assert as_loss(K3, never, never).tolist() == [0.0]
    assert coefficient(K3, never, never, usage="loss").tolist() == [0.0]


def test_straight_through_keeps_an_infinite_gradient_out_of_the_value():
    lp = f64(-1.0).requires_grad_()
    out = straight_through(K1.clamped(value=(-10, 10)), K2, lp, f64(-math.inf))
    assert out.tolist() == [10.0]
    assert torch.autograd.grad(out.sum(), lp)[0].tolist() == [math.inf]


# --- what counts inside fn --------------------------------------------------------------------


def test_detaches_and_side_roads_inside_fn_count():
    logits, log_p = random_pair(12)

    def half_detached(logprob, ref_logprob):
        l = ref_logprob - logprob
        return l.detach() * l  # value l², gradient half of its

    got = expected(half_detached, logits, log_p, usage="loss")
    close(got, expected(K2, logits, log_p, usage="loss"))
    nothing = expected(lambda a, b: K3((b - a).detach()), logits, log_p, usage="loss")
    assert nothing.equal(torch.zeros(6).double())

    def in_place(logprob, ref_logprob):
        return logprob.neg_().add_(ref_logprob).square_().div_(2)

    close(expected(in_place, logits, log_p, usage="loss"), got)


def test_a_fn_that_works_in_place_spoils_nobodys_tensors():
    inputs = f64(-1.0, -2.0), f64(-2.0, -0.5), f64(-1.5, -1.0)
    kept = [t.clone() for t in inputs]

    def fn(logprob, ref_logprob, old_logprob):
        ref_logprob.sub_(logprob)
        old_logprob.zero_()
        return logprob.mul_(ref_logprob)

    coefficient(fn, *inputs, usage="both")
    for t, before in zip(inputs, kept, strict=True):
        assert t.equal(before)


@pytest.mark.parametrize("guard", [torch.no_grad(), torch.inference_mode()])
def test_a_guarded_fn_is_a_reward_but_no_loss(guard):
    logits, log_p = random_pair(13)
    fn = guard(lambda logprob, ref_logprob: logprob - ref_logprob)
    assert expected(fn, logits, log_p, usage="loss").equal(torch.zeros(6).double())
    close(expected(fn, logits, log_p, usage="reward"), true("kl_qp", logits, log_p))
    lp = f64(-1.0).requires_grad_()
    as_reward(fn, lp, f64(-2.0)).sum().backward()
    assert lp.grad.tolist() == [1.0]


def test_the_callers_grad_mode_does_not_matter():
    logits, log_p = random_pair(13)
    want = expected(K3, logits, log_p, usage="both")
    with torch.no_grad():
        assert expected(K3, logits, log_p, usage="both").equal(want)
    assert not expected(K3, logits.requires_grad_(), log_p, usage="both").requires_grad


def test_the_old_policy_is_a_constant_and_by_default_the_policy_itself():
    logits, log_p = random_pair(14)
    seen = []

    def look(logprob, ref_logprob, old_logprob):
        seen.append((old_logprob.requires_grad, torch.equal(old_logprob, logprob)))
        return logprob - ref_logprob

    expected(look, logits, log_p, usage="reward")
    assert set(seen) == {(False, True)}
    seen.clear()
    expected(look, logits, log_p, usage="reward", log_old=log_p)
    assert set(seen) == {(False, False)}


def test_plain_estimators_stay_plain_off_policy():
    logits, log_p = random_pair(15)
    log_old = random_pair(16)[1]
    q, p, old = softmax(logits.numpy()), np.exp(log_p.numpy()), np.exp(log_old.numpy())
    want = by_hand(np.log(q / p), q, old)
    close(expected(K2, logits, log_p, usage="loss", log_old=log_old), want)


def test_optional_arguments_do_not_count():
    def fn(logprob, ref_logprob, clip=20.0, *, scale=2.0):
        return scale * (logprob - ref_logprob).clamp(-clip, clip)

    logits, log_p = random_pair(17)
    close(expected(fn, logits, log_p, usage="reward"), 2 * np.array(true("kl_qp", logits, log_p)))


def test_float32_inside_and_outside():
    logits, log_p = random_pair(18)
    want = expected(K3, logits, log_p, usage="loss")
    got = expected(lambda a, b: K3((b - a).float()), logits, log_p, usage="loss")
    assert got.dtype == torch.float64
    close(got, want, relative=1e-6)
    got = expected(K3, logits.float(), log_p.float(), usage="loss")
    assert got.dtype == torch.float64
    # float32 log-probabilities are renormalised: q − p to the last digits.
    close(got, logits.float().double().softmax(-1) - log_p.float().double().softmax(-1), 1e-14)
    close(got, want, relative=1e-6)


@pytest.mark.parametrize("off_policy", [False, True])
def test_a_vocabulary_of_fifty_thousand(off_policy):
    V = 50_000
    rng = np.random.default_rng(0)
    logits, p, old = (
        3 * rng.normal(size=V),
        softmax(3 * rng.normal(size=V)),
        softmax(rng.normal(size=V)),
    )
    q = softmax(logits)
    mu = old if off_policy else q
    kwargs = {"log_old": torch.from_numpy(np.log(old)) if off_policy else None, "usage": "loss"}
    inputs = torch.from_numpy(logits), torch.from_numpy(np.log(p))
    for name in ("k2", "k3"):
        c = coefficients(q, p)[name, "loss"]
        close(expected(FUNCTIONS[name], *inputs, **kwargs), mu * c - q * (mu @ c), relative=1e-11)
        second = mu @ (c**2 * (1 - 2 * q + q @ q))
        g = mu * c - q * (mu @ c)
        total = float(variance(FUNCTIONS[name], *inputs, **kwargs))
        assert total == pytest.approx(second - g @ g, rel=1e-9)


# --- one sample at a time ---------------------------------------------------------------------


@pytest.mark.parametrize(("name", "usage"), CASES)
@pytest.mark.parametrize("off_policy", [False, True])
def test_sampled_is_the_coefficient_times_the_score(name, usage, off_policy):
    """Each token by hand, whatever the shape; with its probability, the sum over tokens."""
    logits, log_p = random_pair(12, V=5)
    log_old = random_pair(13, V=5)[1] if off_policy else None
    q, p = softmax(logits.numpy()), np.exp(log_p.numpy())
    mu = np.exp(log_old.numpy()) if off_policy else q
    c = coefficients(q, p, mu)[name, usage]
    tokens = torch.tensor([[3, 0, 3], [4, 1, 2]])
    kwargs = {"usage": usage, "log_old": log_old}
    got = sampled(FUNCTIONS[name], logits, log_p, tokens, **kwargs)
    assert got.dtype == torch.float64
    close(got, [[c[x] * (np.eye(5)[x] - q) for x in row] for row in tokens.tolist()])
    once = sampled(FUNCTIONS[name], logits, log_p, torch.arange(5), **kwargs).numpy()
    assert np.allclose(mu @ once, by_hand(c, q, mu), rtol=1e-12, atol=1e-14 * np.abs(once).max())
    v = np.array([0.5, -1.0, 2.0, 0.0, 3.0])
    along = sampled(FUNCTIONS[name], logits, log_p, tokens, **kwargs, along=torch.from_numpy(v))
    close(along, got.numpy() @ v)


def test_the_mean_of_sampled_is_what_backward_leaves_at_the_logits():
    logits, log_p = random_pair(14, V=6)
    tokens = torch.randint(6, (3, 50), generator=torch.Generator().manual_seed(0))
    leaf = logits.expand(3, -1).clone().requires_grad_()
    logprob = leaf.log_softmax(-1).gather(-1, tokens)
    as_both(K2, logprob, log_p[tokens]).mean(-1).sum().backward()
    close(sampled(K2, logits, log_p, tokens, usage="both").mean(1), leaf.grad)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": torch.tensor([0.0])}, "tokens: expected integers, got torch.float32"),
        ({"tokens": torch.tensor([True])}, "tokens: expected integers, got torch.bool"),
        ({"tokens": torch.tensor([0, 2])}, "tokens: expected integers from 0 to 1"),
        ({"tokens": torch.tensor([-1])}, "tokens: expected integers from 0 to 1"),
        ({"along": f64(1.0)}, r"along: expected shape \(2,\), got shape \(1,\)"),
        ({"log_p": f64(0.0, -math.inf), "usage": "reward"}, "fn: expected finite coefficients"),
        ({"log_p": f64(0.5, 0.6).log()}, "log_p"),
        ({"usage": "value"}, "usage"),
    ],
)
def test_sampled_refuses(change, message):
    good = {**GOOD, "tokens": torch.tensor([0, 1]), "usage": "loss"}
    with pytest.raises(InputError, match=message):
        sampled(K1, **{**good, **change})


# --- bad input --------------------------------------------------------------------------------


GOOD = {"logits": f64(0.0, 0.0), "log_p": f64(0.5, 0.5).log(), "log_old": f64(0.5, 0.5).log()}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("logits", f64(0.0, math.nan)),
        ("logits", f64(0.0, math.inf)),
        ("logits", f64(-math.inf, -math.inf)),
        ("logits", torch.zeros(2, 2).double()),
        ("logits", torch.zeros(0).double()),
        ("logits", torch.zeros(()).double()),
        ("logits", torch.zeros(2, dtype=torch.int64)),
        ("logits", torch.zeros(2, dtype=torch.float16)),
        ("log_p", f64(0.5, 0.6).log()),
        ("log_p", f64(0.5, 0.3, 0.2).log()),
        ("log_p", f64(0.5, math.nan)),
        ("log_p", torch.tensor([0.5, 0.5]).log().bfloat16()),
        ("log_p", f64(0.5, 0.5).log().expand(2, 2)),
        ("log_old", f64(0.5, 0.6).log()),
        ("log_old", f64(1.0).log()),
    ],
)
@pytest.mark.parametrize("call", [expected, variance, covariance])
def test_bad_arguments_are_named(call, argument, value):
    with pytest.raises(InputError) as error:
        call(K1, **{**GOOD, argument: value}, usage="loss")
    assert error.value.argument == argument


@pytest.mark.parametrize(
    ("fn", "expectation"),
    [
        (lambda: 0, "a function of log r"),
        (lambda a, b, c, d: a, "a function of log r"),
        (lambda a, *, beta: a, "a function of log r"),
        (lambda *args: args[0], "a function of log r"),
        (3.0, "a function"),
        (lambda l: l.mean(), "one value per sample"),
        (lambda l: l[None], "one value per sample"),
        (lambda l: 1.0, "one value per sample"),
        (lambda l: l - l.mean(), "element-wise"),
        (lambda l: l - l.mean().detach(), "element-wise"),
        (lambda l: l * l.detach().abs().sum(), "element-wise"),
        (lambda l: l * torch.rand_like(l), "element-wise"),
        (lambda l: (l - l).sqrt(), "a derivative that is a number"),
    ],
)
def test_bad_functions_are_refused(fn, expectation):
    with pytest.raises(InputError, match=expectation):
        expected(fn, f64(0.0, 1.0, 0.5), f64(0.2, 0.3, 0.5).log(), usage="loss")


def test_a_single_token_has_no_gradient():
    assert expected(K3, f64(2.0), f64(0.0), usage="both").tolist() == [0.0]


def test_bad_usage():
    for call in (
        lambda: expected(K1, *THREE, usage="metric"),
        lambda: coefficient(K1, *THREE, usage="metric"),
        lambda: penalty_for("kl_qp", usage="metric"),
    ):
        with pytest.raises(InputError, match="usage: expected one of loss, reward, both"):
            call()


def test_a_missing_old_policy():
    with pytest.raises(InputError, match="old_logprob"):
        as_loss(weighted(K3), *THREE)
    for place in (importance_weighted, importance_weighted_detached):
        with pytest.raises(InputError, match="old_logprob"):
            place(K3, *THREE, None)


def test_shapes_must_agree():
    with pytest.raises(InputError, match="ref_logprob: expected shape"):
        as_loss(K3, f64(-1.0, -2.0), f64(-1.0))
    with pytest.raises(InputError, match="old_logprob: expected shape"):
        importance_weighted(K3, f64(-1.0), f64(-1.0), f64(-1.0, -1.0))
    with pytest.raises(InputError, match="logprob: expected float32 or float64"):
        as_reward(K3, torch.zeros(1).half(), torch.zeros(1).half())
    with pytest.raises(InputError, match="NaN at logprob -1"):
        coefficient(lambda l: (l - l).sqrt(), f64(-1.0), f64(-2.0), usage="loss")


def test_straight_through_under_torch_func():
    ref = f64(-1.0, -2.0)
    grad = torch.func.grad(lambda a: straight_through(K3, K2, a, ref).sum())
    assert grad(f64(-1.5, -0.5)).tolist() == pytest.approx([-0.5, 1.5])


def test_kllab_reaches_the_module():
    assert kllab.gradients is gradients


def test_the_oracle_of_this_file():
    """by_hand against the 50-digit derivative."""
    logits, log_p = random_pair(20, V=4)
    q, p = softmax(logits.numpy()), np.exp(log_p.numpy())
    close(by_hand(np.log(q / p), q), true("kl_qp", logits, log_p))
    assert mp.dps == 50
