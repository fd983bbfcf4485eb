"""Estimators, sample by sample and in expectation; then what is fitted to samples."""

import dataclasses
import itertools
import math

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy import stats

import kllab
from kllab import DIVERGENCES, K1, K2, K3, Estimator, InputError
from kllab.divergences import HALF_SQUARED_LOG, alpha, get
from kllab.estimators import (
    bregman,
    cross_fitted,
    median_of_means,
    optimal_lambda,
    rao_blackwell,
    self_normalised,
    with_lambda,
)

NAMES = [*oracles.REGISTERED, "half_squared_log", "alpha(0.3)", "alpha(-1.5)", "alpha(2.5)"]
LOG_R = [-18.0, -5.0, -1.2, -0.6, -0.3, -0.01, 0.0, 0.02, 0.4, 0.55, 1.1, 4.0, 17.0]


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def log(*values):
    return f64(*values).log()


def refused(call, argument, expected="", received=""):
    with pytest.raises(InputError) as caught:
        call()
    error = caught.value
    assert error.argument == argument
    assert expected in error.expected
    assert received in error.received
    assert str(error) == f"{argument}: expected {error.expected}, got {error.received}"


# --- one sample -------------------------------------------------------------------------------


def test_the_three_by_their_definitions():
    l = f64(*LOG_R)
    assert torch.equal(K1(l), -l)
    torch.testing.assert_close(K2(l), l**2 / 2, rtol=1e-15, atol=0)
    for x, got in zip(LOG_R, K3(l).tolist(), strict=True):
        want = mp.exp(x) - 1 - mpf(x)
        assert abs(got - float(want)) <= 1e-15 * abs(float(want))
    assert [e.name for e in (K1, K2, K3)] == ["k1", "k2", "k3"]
    assert [e.target.name for e in (K1, K2, K3)] == ["kl_qp"] * 3
    assert [e.lam for e in (K1, K2, K3)] == [0.0, 0.0, 1.0]
    assert K2.generator is HALF_SQUARED_LOG


def test_signs_near_zero():
    """k1 takes both signs, k3 stays above 0 where e^l − 1 − l would be rounding noise."""
    tiny = f64(-1e-9, 1e-9)
    assert K1(tiny).tolist() == [1e-9, -1e-9]
    assert (K3(tiny) > 0).all()
    assert (K2(tiny) > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infinities(dtype):
    ends = torch.tensor([-math.inf, math.inf], dtype=dtype)
    assert K1(ends).tolist() == [math.inf, -math.inf]
    assert K2(ends).tolist() == K3(ends).tolist() == [math.inf, math.inf]
    far = torch.tensor([-1e4, -800.0, 89.0, 800.0, 1e4], dtype=dtype)
    assert not torch.isnan(K3(far)).any()
    assert K3(far)[0].item() == 1e4 - 1
    # Beyond the overflow of r nothing but r is lost: k1 and k2 and their slopes are finite.
    far = far.requires_grad_()
    for estimator, value, slope in ((K1, -far, -torch.ones_like(far)), (K2, far**2 / 2, far)):
        assert torch.equal(estimator(far), value)
        assert torch.equal(torch.autograd.grad(estimator(far).sum(), far)[0], slope)
    assert K3(far.detach()).dtype == dtype


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lam", [-1.7, -1.0, -0.5, 0.0, 0.3, 1.0, 2.5])
def test_value_and_slope_for_any_lambda(name, lam):
    estimator = with_lambda(name, lam)
    l = f64(*LOG_R).requires_grad_()
    value = estimator(l)
    (slope,) = torch.autograd.grad(value.sum(), l)
    for x, v, s in zip(LOG_R, value.tolist(), slope.tolist(), strict=True):
        extra = lam * mp.expm1(x)
        f = oracles.value(name, x)
        assert abs(v - float(f + extra)) <= 4e-15 * float(abs(f) + abs(extra)), x
        if name == "tv" and x == 0:
            assert s == lam
            continue
        df, extra = oracles.slope(name, x), lam * mp.exp(x)
        assert abs(s - float(df + extra)) <= 4e-14 * float(abs(df) + abs(extra)), x


@pytest.mark.parametrize("name", NAMES)
def test_limits_for_any_lambda(name):
    """inf − inf at r → ∞ is resolved by lim f(r)/r against −λ."""
    g = oracles.generator(name)
    for lam in (-3.0, -1.0, -0.5, -0.2, 0.7, 3.0):
        estimator = with_lambda(name, lam)
        for dtype in (torch.float32, torch.float64):
            l = torch.tensor([-math.inf, 800.0, math.inf], dtype=dtype, requires_grad=True)
            value = estimator(l)
            (slope,) = torch.autograd.grad(value.sum(), l)
            at_zero, far, end = value.double().tolist()
            assert at_zero == pytest.approx(g.at_zero - lam, rel=1e-6)
            assert not math.isnan(far)
            assert not torch.isnan(slope).any()
            growth = g.per_p + lam
            if growth:
                assert end == math.copysign(math.inf, growth), lam
                assert slope[2].item() == math.copysign(math.inf, growth)


def test_limits_where_the_growth_cancels():
    end = f64(math.inf)
    # ½(r − 1) − ½(r − 1) = 0; (√r − 1)² − (r − 1) = 2 − 2√r; 1/r − 1 alone.
    assert with_lambda("tv", -0.5)(end).item() == 0.0
    assert with_lambda("hellinger2", -1.0)(end).item() == -math.inf
    assert with_lambda("chi2_qp", 0.0)(end).item() == -1.0
    # (1/r − 1 + (r − 1))/2 − ½(r − 1) = (1/r − 1)/2
    assert with_lambda("alpha(-1)", -0.5)(end).item() == -0.5
    l = f64(math.inf).requires_grad_()
    with_lambda("tv", -0.5)(l).sum().backward()
    assert l.grad.item() == 0.0


@given(l=st.floats(-40, 40), lam=st.floats(-5, 5))
def test_bregman_is_f_plus_lambda_r_minus_one_and_never_negative(l, lam):
    for name in oracles.REGISTERED:
        d, estimator = get(name), bregman(name)
        assert estimator.lam == -d.df1
        assert estimator.target is d
        value = estimator(f64(l)).item()
        assert value >= 0.0
        assert value == d.gap(f64(l)).item()
        # Moving λ by δ moves the value by δ (r − 1), no more and no less.
        moved = with_lambda(name, lam)(f64(l)).item()
        expected = d.f(f64(l)).item() + lam * math.expm1(l)
        assert moved == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_bregman_members():
    l = f64(*LOG_R)
    assert torch.equal(bregman("kl_qp")(l), K3(l))
    assert bregman("kl_qp").name == "bregman kl_qp"
    assert math.copysign(1, bregman("tv").lam) == 1  # +0, also in print
    # The other direction from the same samples: r log r − (r − 1).
    for x, got in zip(LOG_R, bregman("kl_pq")(l).tolist(), strict=True):
        want = float(mpf(x) * mp.exp(x) - mp.expm1(x))
        assert got == pytest.approx(want, rel=2e-15, abs=0)
    # k2's generator is its own gap and not convex, yet never negative.
    assert torch.equal(bregman(HALF_SQUARED_LOG)(l), K2(l))


@pytest.mark.parametrize("estimator", [K1, K2, K3, bregman("js"), with_lambda("tv", 0.3)])
def test_autograd_is_finite_and_right(estimator):
    l = f64(-3.0, -0.7, -0.2, 0.3, 0.8, 2.5).requires_grad_()
    assert torch.autograd.gradcheck(estimator, l)
    assert torch.equal(torch.vmap(estimator)(l), estimator(l))
    expected = torch.autograd.grad(estimator(l).sum(), l)[0]
    assert torch.equal(torch.vmap(torch.func.grad(estimator))(l.detach()), expected)


def test_gradients_of_the_three():
    """−h'(log r) as loss: k1 gives 1, k2 gives −log r, k3 gives 1 − r."""
    l = f64(-2.0, 0.0, 1.0)
    for estimator, want in (
        (K1, [-1.0, -1.0, -1.0]),
        (K2, [-2.0, 0.0, 1.0]),
        (K3, torch.expm1(l).tolist()),
    ):
        assert torch.func.grad(lambda x, e=estimator: e(x).sum())(l).tolist() == want


# --- clamps -----------------------------------------------------------------------------------


def test_clamps_bound_value_and_gradient():
    l = f64(-math.inf, -30.0, -12.0, -0.5, 2.0, 2.7, 25.0, math.inf).requires_grad_()
    clamped = K3.clamped(log_r=(-20, 20), value=(-10, 10))
    value = clamped(l)
    inside = [K3(f64(x)).item() for x in (-0.5, 2.0)]
    assert value.tolist() == [10, 10, 10, *inside, 10, 10, 10]
    value.sum().backward()
    want = [0, 0, 0, math.expm1(-0.5), math.expm1(2.0), 0, 0, 0]
    assert l.grad.tolist() == pytest.approx(want, rel=1e-15)
    assert clamped.name == "k3 clamped"
    assert (clamped.lam, clamped.target) == (K3.lam, K3.target)
    assert K3.clamp_log_r is None is K3.clamp_value


def test_clamp_on_log_r_alone():
    clamped = K1.clamped(log_r=(-2.0, 1.0))
    l = f64(-math.inf, -3.0, 0.5, 4.0).requires_grad_()
    value = clamped(l)
    assert value.tolist() == [2.0, 2.0, -0.5, -1.0]
    value.sum().backward()
    assert l.grad.tolist() == [0.0, 0.0, -1.0, 0.0]


def test_a_clamp_on_the_value_has_two_sides():
    l = f64(-3.0, 0.2, 5.0).requires_grad_()
    value = K1.clamped(value=(-1.0, 0.5))(l)
    assert value.tolist() == [0.5, -0.2, -1.0]
    value.sum().backward()
    assert l.grad.tolist() == [0.0, -1.0, 0.0]


def test_where_verls_clamp_bites():
    """k3 = 10 at log r = 2.6109 (ratio 13.61) and at −11.0."""
    clamped = K3.clamped(log_r=(-20, 20), value=(-10, 10))
    up = float(mp.findroot(lambda x: mp.exp(x) - 1 - x - 10, 2.6))
    down = float(mp.findroot(lambda x: mp.exp(x) - 1 - x - 10, -11))
    assert round(up, 4) == 2.6109
    assert round(math.exp(up), 2) == 13.61
    assert round(down, 1) == -11.0
    for root, outward in ((up, 1e-6), (down, -1e-6)):
        l = f64(root - outward, root + outward).requires_grad_()
        clamped(l).sum().backward()
        assert l.grad[0] != 0
        assert l.grad[1] == 0
        assert clamped(l)[1].item() == 10.0


# --- importance weights -----------------------------------------------------------------------

LOG_MU, LOG_Q, LOG_P = log(0.5, 0.3, 0.1, 0.1), log(0.2, 0.3, 0.4, 0.1), log(0.1, 0.2, 0.3, 0.4)


@pytest.mark.parametrize("estimator", [K1, K2, K3, bregman("js"), with_lambda("kl_qp", 0.4)])
def test_weights_give_the_expectation_under_q(estimator):
    """Σ μ (q/μ) v = Σ q v by enumeration, and without weights it is something else."""
    values = estimator(LOG_P - LOG_Q)
    weighted = estimator(LOG_P - LOG_Q, log_weight=LOG_Q - LOG_MU)
    mean, _ = oracles.moments(
        lambda l: oracles.value(estimator.generator.name, l) + estimator.lam * mp.expm1(l),
        oracles.normalised(LOG_Q),
        oracles.normalised(LOG_P),
    )
    assert (LOG_MU.exp() * weighted).sum().item() == pytest.approx(float(mean), rel=1e-14)
    assert abs((LOG_MU.exp() * values).sum().item() - float(mean)) > 0.01


def test_the_weight_is_differentiated_unless_detached():
    log_r, log_w = f64(0.3).requires_grad_(), f64(-0.4).requires_grad_()
    K3(log_r, log_weight=log_w).sum().backward()
    w, v = math.exp(-0.4), math.exp(0.3) - 1 - 0.3
    assert log_w.grad.item() == pytest.approx(w * v, rel=1e-14)
    assert log_r.grad.item() == pytest.approx(w * math.expm1(0.3), rel=1e-14)
    assert not K3(f64(0.3), log_weight=f64(-0.4).requires_grad_().detach()).requires_grad


@pytest.mark.parametrize("estimator", [K1, K2, K3, bregman("chi2_pq"), bregman("kl_pq")])
def test_a_weight_of_zero_silences_an_infinite_value(estimator):
    log_r = f64(-math.inf, 0.2, math.inf).requires_grad_()
    log_w = f64(-math.inf, 0.0, -math.inf).requires_grad_()
    value = estimator(log_r, log_weight=log_w)
    assert value.tolist() == [0.0, estimator(f64(0.2)).item(), 0.0]
    value.sum().backward()
    assert log_r.grad[0] == 0 == log_r.grad[2]
    assert log_w.grad[0] == 0 == log_w.grad[2]
    assert torch.isfinite(log_r.grad).all()
    assert torch.isfinite(log_w.grad).all()
    assert log_w.grad[1] == value[1]


def test_an_infinite_weight_is_never_nan():
    value = K3(f64(0.0, 1.0), log_weight=f64(math.inf, math.inf))
    assert value.tolist()[0] == 0.0
    assert value.tolist()[1] > 1e307
    log_r = f64(0.0).requires_grad_()
    K1(log_r, log_weight=f64(0.5)).sum().backward()  # value 0, yet not gradient 0
    assert log_r.grad.item() == pytest.approx(-math.exp(0.5), rel=1e-15)


def test_weights_broadcast():
    value = K2(torch.zeros(3, 4).double() + 0.5, log_weight=f64(0.0, 1.0, -1.0)[:, None])
    assert value.shape == (3, 4)
    assert value[:, 0].tolist() == pytest.approx([0.125, 0.125 * math.e, 0.125 / math.e])
    refused(
        lambda: K2(torch.zeros(3, 4).double(), log_weight=torch.zeros(3).double()),
        "log_weight",
        "broadcasts with (3, 4)",
        "(3,)",
    )


# --- the class --------------------------------------------------------------------------------


def test_terms():
    for estimator in (K1, K2, K3, with_lambda("jeffreys", 0.3), bregman(alpha(2.5))):
        for l in (-1.3, 0.2, 1.9):
            total = math.fsum(c * l**j * math.exp(k * l) for c, j, k in estimator.terms)
            assert total == pytest.approx(estimator(f64(l)).item(), rel=1e-12)
    assert bregman("js").terms is None is bregman("tv").terms
    assert K3.clamped(value=(-1, 1)).terms is None
    assert K3.clamped(log_r=(-1, 1)).terms is None


def test_construction():
    e = Estimator("mine", "kl_pq", lam=0.25)
    assert e.generator is e.target is DIVERGENCES["kl_pq"]
    assert Estimator("mine", "kl_pq", target="kl_qp").target is DIVERGENCES["kl_qp"]
    assert with_lambda("kl_qp", 2).name == "kl_qp + 2(r - 1)"
    assert with_lambda("kl_qp", 2).lam == 2.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        K1.lam = 1.0
    with pytest.raises(KeyError, match="no divergence 'kl'"):
        bregman("kl")


def test_float32_and_lists():
    assert K3(torch.tensor([0.1])).dtype == torch.float32
    assert K1([0.5, -0.5]).tolist() == [-0.5, 0.5]
    assert K3(torch.zeros(0)).shape == (0,)
    l = torch.tensor([1e-4, 1e-3, -1e-4], dtype=torch.float32)
    want = [float(mp.expm1(x) - x) for x in l.double().tolist()]
    assert K3(l).tolist() == pytest.approx(want, rel=3e-7)


@pytest.mark.parametrize("lam", [math.nan, math.inf, -math.inf, "x", None])
def test_bad_lambda(lam):
    refused(lambda: Estimator("e", DIVERGENCES["tv"], lam=lam), "lam", "a finite number")
    if not isinstance(lam, (str, type(None))):
        refused(lambda: with_lambda("tv", lam), "lam", "a finite number", str(lam))


@pytest.mark.parametrize("bounds", [(1, 1), (2, 1), (math.nan, 1), (0,), (0, 1, 2), 3, ("a", 1)])
def test_bad_clamps(bounds):
    refused(lambda: K1.clamped(value=bounds), "clamp_value", "low < high", str(bounds))
    refused(lambda: K1.clamped(log_r=bounds), "clamp_log_r", "low < high", str(bounds))


@pytest.mark.parametrize(
    ("bad", "received"),
    [
        (torch.tensor([0.0, math.nan]), "1 NaN"),
        (torch.tensor([0, 1]), "torch.int64"),
        (torch.zeros(2, dtype=torch.bfloat16), "torch.bfloat16"),
        (torch.zeros(2, dtype=torch.float16), "torch.float16"),
        (None, "None"),
    ],
)
def test_bad_input_everywhere(bad, received):
    good = torch.zeros(2)
    for e in (K1, K2, K3, K3.clamped(log_r=(-0.5, 1.5)), K3.clamped(value=(-1, 1))):
        refused(lambda e=e: e(bad), "log_r", "", received)
        if bad is not None:
            refused(lambda e=e: e(good, log_weight=bad), "log_weight", "", received)
    refused(lambda: optimal_lambda("kl_qp", bad), "log_r", "", received)
    refused(lambda: cross_fitted("kl_qp", bad), "log_r", "", received)
    refused(lambda: self_normalised(good, bad), "log_weight", "", received)
    refused(lambda: self_normalised(bad, good), "values", "", received)
    refused(lambda: median_of_means(bad, 2), "values", "", received)
    refused(lambda: rao_blackwell("kl_qp", bad, log(0.5, 0.5)), "log_q", "", received)
    refused(lambda: rao_blackwell("kl_qp", log(0.5, 0.5), bad), "log_p", "", received)


# --- λ from samples ---------------------------------------------------------------------------


def plain_lambda(name, log_r):
    """λ* by the textbook formula, 50 digits."""
    f = [oracles.value(name, x) for x in log_r]
    r = [mp.exp(x) for x in log_r]
    n = len(r)
    mean_f, mean_r = mpmath_mean(f), mpmath_mean(r)
    cov = sum((a - mean_f) * (b - mean_r) for a, b in zip(f, r, strict=True)) / n
    var = sum((b - mean_r) ** 2 for b in r) / n
    return float(-cov / var)


def mpmath_mean(values):
    return sum(values, mpf(0)) / len(values)


def samples(reach, least, most):
    """Distinct log-ratios on a grid of 1/100 nat."""
    grid = st.integers(-100 * reach, 100 * reach)
    return st.lists(grid, min_size=least, max_size=most, unique=True).map(
        lambda values: [v / 100 for v in values]
    )


@settings(max_examples=25)
@given(log_r=samples(8, 2, 9))
def test_optimal_lambda_is_the_regression_coefficient(log_r):
    for name in NAMES:
        want = plain_lambda(name, log_r)
        got = optimal_lambda(name, f64(*log_r)).item()
        assert got == pytest.approx(want, rel=1e-10, abs=1e-10), name


@given(log_r=samples(3, 3, 7))
def test_optimal_lambda_minimises_the_sample_variance(log_r):
    best = optimal_lambda("kl_qp", f64(*log_r)).item()

    def variance(lam):
        return with_lambda("kl_qp", lam)(f64(*log_r)).var(correction=0).item()

    for step in (0.01, 0.5):
        assert variance(best) <= variance(best + step) + 1e-12
        assert variance(best) <= variance(best - step) + 1e-12


def test_optimal_lambda_shapes_and_limits():
    log_r = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for dim in (0, 1, 2, -1, -3):
        lam = optimal_lambda("js", log_r, dim=dim)
        assert lam.shape == tuple(s for i, s in enumerate(log_r.shape) if i != dim % 3)
        rows = log_r.movedim(dim, -1).reshape(-1, log_r.shape[dim])
        want = [plain_lambda("js", row.tolist()) for row in rows]
        assert lam.flatten().tolist() == pytest.approx(want, rel=1e-10)
    # No spread: every λ is optimal, and the limit for p → q is named.
    assert optimal_lambda("kl_qp", torch.zeros(5)).item() == 1.0
    assert optimal_lambda("kl_pq", torch.full((5,), 0.7)).item() == -1.0
    assert optimal_lambda("tv", torch.full((5,), 0.7)).item() == 0.0
    near = f64(-1e-7, 0.0, 2e-7)
    assert optimal_lambda("kl_qp", near).item() == pytest.approx(1.0, abs=1e-6)
    assert optimal_lambda("kl_qp", near.float()).dtype == torch.float32


def test_optimal_lambda_where_numbers_overflow():
    # f infinite: no λ helps, and the answer is a number.
    assert optimal_lambda("kl_qp", f64(-math.inf, 0.0, 1.0)).item() == 1.0
    assert optimal_lambda("kl_pq", f64(0.0, 1.0, 800.0)).item() == -1.0
    # r² overflows, λ does not.
    log_r = [0.0, 1.0, 400.0]
    assert optimal_lambda("kl_qp", f64(*log_r)).item() == pytest.approx(
        plain_lambda("kl_qp", log_r), rel=1e-9
    )
    assert optimal_lambda("kl_qp", torch.tensor([0.0, 1.0, 60.0])).item() == pytest.approx(
        plain_lambda("kl_qp", [0.0, 1.0, 60.0]), rel=1e-5, abs=1e-12
    )


TOKENS_Q, TOKENS_P = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]


def all_samples(n):
    """Every sample of n tokens: log r (3^n, n) and probabilities (3^n,)."""
    log_r = log(*TOKENS_P) - log(*TOKENS_Q)
    index = torch.tensor(list(itertools.product(range(3), repeat=n)))
    return log_r[index], f64(*TOKENS_Q)[index].prod(-1)


@pytest.mark.parametrize("name", ["kl_qp", "kl_pq", "chi2_pq", "js", "tv"])
@pytest.mark.parametrize(("n", "folds"), [(4, 2), (4, 4), (5, 2), (5, 3)])
def test_cross_fitted_is_unbiased_and_the_same_sample_is_not(name, n, folds):
    log_r, probability = all_samples(n)
    truth = float(oracles.divergence(name, TOKENS_Q, TOKENS_P))
    mean = (probability * cross_fitted(name, log_r, folds=folds).mean(-1)).sum().item()
    assert mean == pytest.approx(truth, rel=1e-12)

    lam = optimal_lambda(name, log_r)[:, None]
    naive = (get(name).f(log_r) + lam * torch.expm1(log_r)).mean(-1)
    bias = (probability * naive).sum().item() - truth
    assert abs(bias) > 0.01 * truth


def test_the_same_sample_bias_falls_like_one_over_n():
    def bias(n):
        log_r, probability = all_samples(n)
        lam = optimal_lambda("kl_qp", log_r)[:, None]
        naive = (K1(log_r) + lam * torch.expm1(log_r)).mean(-1)
        return abs(
            float((probability * naive).sum())
            - float(oracles.divergence("kl_qp", TOKENS_Q, TOKENS_P))
        )

    assert 1.5 < bias(5) / bias(10) < 3


def test_cross_fitted_uses_the_other_folds_only():
    log_r = f64(-0.5, 0.3, 0.9, -0.2, 0.1, 0.4)
    out = cross_fitted("kl_qp", log_r, folds=3)
    for i in range(6):
        others = [j for j in range(6) if j % 3 != i % 3]
        lam = plain_lambda("kl_qp", log_r[others].tolist())
        want = -log_r[i].item() + lam * math.expm1(log_r[i].item())
        assert out[i].item() == pytest.approx(want, rel=1e-12)
    batch = torch.stack([log_r, log_r.flip(0)])
    assert torch.equal(cross_fitted("kl_qp", batch)[0], cross_fitted("kl_qp", log_r))
    assert torch.equal(cross_fitted("kl_qp", batch.T, dim=0), cross_fitted("kl_qp", batch).T)
    assert cross_fitted("kl_qp", log_r.float()).dtype == torch.float32


def test_cross_fitted_with_infinite_values():
    out = cross_fitted("kl_qp", f64(-math.inf, 0.0, 1.0, 2.0))
    assert out[0].item() == math.inf
    assert torch.isfinite(out[1:]).all()
    for name in NAMES:
        for sample in ((0.1, 0.2, 900.0, 0.5), (-900.0, 0.2, 0.3, 0.5), (900.0, 901.0, 0.3, 0.5)):
            assert not torch.isnan(cross_fitted(name, f64(*sample))).any(), name


def test_bad_samples():
    refused(lambda: optimal_lambda("kl_qp", f64(1.0)), "log_r", "at least 2 samples", "(1,)")
    refused(lambda: optimal_lambda("kl_qp", torch.tensor(1.0)), "log_r", "axis -1", "()")
    refused(lambda: optimal_lambda("kl_qp", torch.zeros(2, 3), dim=2), "log_r", "axis 2", "(2, 3)")
    refused(lambda: optimal_lambda("kl_qp", torch.zeros(3, 1)), "log_r", "at least 2", "(3, 1)")
    for folds in (1, 0, -2, 5, 2.5, None, True):
        refused(lambda f=folds: cross_fitted("kl_qp", torch.zeros(4), folds=f), "folds")
    refused(lambda: cross_fitted("kl_qp", torch.tensor(0.5)), "log_r", "axis -1", "()")
    # Two folds of three samples: the one sample of fold 1 cannot give a λ.
    refused(lambda: cross_fitted("kl_qp", torch.zeros(3)), "log_r", "2 samples outside", "(3,)")


# --- means ------------------------------------------------------------------------------------


def test_rao_blackwell_is_the_exact_token_divergence():
    logits = torch.randn(2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    log_q, log_p = torch.log_softmax(logits, -1)
    for name in ("kl_qp", "tv"):
        want = [
            float(oracles.divergence(name, oracles.normalised(a), oracles.normalised(b)))
            for a, b in zip(log_q.tolist(), log_p.tolist(), strict=True)
        ]
        assert rao_blackwell(name, log_q, log_p).tolist() == pytest.approx(want, rel=1e-13)


def test_rao_blackwell_can_raise_the_variance_of_a_sum():
    """Two steps, mean 2.39545 both, Var(MC) 3.31591, Var(RB) 5.06974."""
    first_q, first_p = log(0.5, 0.5), log(0.25, 0.75)
    second_q = torch.stack([log(0.5, 0.5), log(0.01, 0.99)])
    second_p = torch.stack([log(0.5, 0.5), log(0.99, 0.01)])
    probability = (first_q[:, None] + second_q).exp()
    sampled = K1(first_p - first_q)[:, None] + K1(second_p - second_q)
    exact_steps = rao_blackwell("kl_qp", first_q, first_p) + rao_blackwell(
        "kl_qp", second_q, second_p
    )
    results = []
    for values in (sampled, exact_steps[:, None].expand(2, 2)):
        mean = (probability * values).sum()
        results.append((mean.item(), (probability * (values - mean) ** 2).sum().item()))
    assert [round(mean, 5) for mean, _ in results] == [2.39545, 2.39545]
    assert [round(variance, 5) for _, variance in results] == [3.31591, 5.06974]


def test_self_normalised():
    values, log_w = f64(1.0, 5.0, -2.0), f64(0.0, 1.0, -1.0)
    w = [math.exp(x) for x in (0.0, 1.0, -1.0)]
    want = (1 * w[0] + 5 * w[1] - 2 * w[2]) / sum(w)
    assert self_normalised(values, log_w).item() == pytest.approx(want, rel=1e-14)
    assert self_normalised(values, log_w + 700).item() == pytest.approx(want, rel=1e-12)
    stacked = torch.stack([values, 2 * values], 1)
    assert self_normalised(stacked, log_w[:, None].expand(3, 2), dim=0).tolist() == pytest.approx(
        [want, 2 * want], rel=1e-14
    )
    assert self_normalised(stacked.T, log_w).tolist() == pytest.approx([want, 2 * want])
    zero = f64(-math.inf, 0.0).requires_grad_()
    inf_value = f64(math.inf, 3.0).requires_grad_()
    out = self_normalised(inf_value, zero)
    assert out.item() == 3.0
    out.backward()
    assert inf_value.grad.tolist() == [0.0, 1.0]
    assert zero.grad.tolist() == [0.0, 0.0]
    assert self_normalised(f64(math.inf, 3.0), f64(-2.0, 0.0)).item() == math.inf


def test_self_normalised_bias_by_enumeration():
    """Consistent, not unbiased: the mean over all samples moves towards E_q as n grows."""
    w = [b / a for a, b in zip(TOKENS_Q, TOKENS_P, strict=True)]
    values = f64(1.0, 0.0, 0.0)
    truth = TOKENS_P[0]
    biases = []
    for n in (1, 2, 4, 8):
        index = torch.tensor(list(itertools.product(range(3), repeat=n)))
        probability = f64(*TOKENS_Q)[index].prod(-1)
        estimate = self_normalised(values[index], f64(*w).log()[index])
        biases.append(float((probability * estimate).sum()) - truth)
    assert biases[0] == pytest.approx(TOKENS_Q[0] - truth, rel=1e-12)
    assert all(1.5 < a / b < 2.6 for a, b in itertools.pairwise(biases))


def test_bad_weights():
    refused(
        lambda: self_normalised(f64(1.0, 2.0), f64(-math.inf, -math.inf)),
        "log_weight",
        "a weight above 0",
    )
    refused(
        lambda: self_normalised(torch.ones(2, 2), torch.tensor([[0.0, 0.0], [-math.inf] * 2])),
        "log_weight",
        "a weight above 0",
    )
    refused(lambda: self_normalised(f64(1.0, 2.0), f64(0.0, math.inf)), "log_weight", "below +inf")
    refused(lambda: self_normalised(torch.ones(3), torch.ones(2)), "log_weight", "(3,)", "(2,)")
    refused(lambda: self_normalised(torch.ones(2), torch.ones(2), dim=1), "log_weight", "axis 1")
    refused(lambda: self_normalised(torch.ones(0), torch.ones(0)), "log_weight", "a weight above")


def test_median_of_means():
    values = f64(0, 2, 10, 20, 5, 7, 1, 1)  # block means 1, 15, 6, 1
    assert median_of_means(values, 4).item() == 3.5
    assert median_of_means(values, 1).item() == pytest.approx(5.75)
    assert median_of_means(values, 8).item() == 3.5
    assert median_of_means(values, 2).item() == pytest.approx((8 + 3.5) / 2)
    assert median_of_means(f64(3, 9, 1, 2, 8, 100), 3).item() == 6.0
    both = torch.stack([values, values + 1])
    assert median_of_means(both, 4).tolist() == [3.5, 4.5]
    assert median_of_means(both.T, 4, dim=0).tolist() == [3.5, 4.5]
    assert median_of_means(values.float(), 4).dtype == torch.float32


def test_median_of_means_with_infinities():
    assert median_of_means(f64(math.inf, 1, math.inf, 2), 2).item() == math.inf
    assert median_of_means(f64(math.inf, 1.0, 2.0), 3).item() == 2.0
    assert median_of_means(f64(math.inf, 1, 1, 1), 2).item() == math.inf


@pytest.mark.parametrize("blocks", [0, -1, 3, 9, 2.0, None, True])
def test_bad_blocks(blocks):
    refused(lambda: median_of_means(torch.zeros(8), blocks), "blocks", "n = 8", str(blocks))
    refused(lambda: median_of_means(torch.tensor(1.0), 1), "values", "axis -1", "()")
    refused(lambda: median_of_means(torch.zeros(0), 1), "blocks", "n = 0")


# --- honest Monte Carlo -----------------------------------------------------------------------

MU, N, SEEDS = 1.0, 20_000, 100
# Two-sided; all of 100 seeds pass with probability 0.9999, and n is large enough for the normal.
BOUND = stats.norm.isf(1e-4 / SEEDS / 2)


@pytest.fixture(scope="module")
def gaussian_runs():
    """Sample means of log r = μx − μ²/2, x ~ N(0, 1), through each estimator, for 100 seeds."""
    runs = {name: [] for name in ("k1", "k2", "k3", "flipped", "upside_down")}
    for seed in range(SEEDS):
        x = np.random.default_rng(seed).standard_normal(N)
        log_r = torch.from_numpy(MU * x - MU**2 / 2)
        k1, k2, k3 = (e(log_r).mean().item() for e in (K1, K2, K3))
        upside_down = K3(-log_r).mean().item()
        for name, value in zip(runs, (k1, k2, k3, -k1, upside_down), strict=True):
            runs[name].append(value)
    return {name: np.array(values) for name, values in runs.items()}


# Exact: KL = μ²/2; Var k1 = μ²; Var k2 = μ⁴/2 + μ⁶/4, E k2 = KL + μ⁴/8; Var k3 = e^{μ²} − 1 − μ².
KL = MU**2 / 2
EXACT = {
    "k1": (KL, MU**2),
    "k2": (KL + MU**4 / 8, MU**4 / 2 + MU**6 / 4),
    "k3": (KL, math.exp(MU**2) - 1 - MU**2),
}


def z_scores(means, name, n=N):
    mean, variance = EXACT[name]
    return np.abs(means - mean) / math.sqrt(variance / n)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_every_seed_within_its_exact_bound(gaussian_runs, name):
    scores = z_scores(gaussian_runs[name], name)
    assert scores.max() < BOUND
    # The scores are those of a normal, not of something with a smaller spread.
    assert np.mean(scores > 1) == pytest.approx(0.317, abs=0.15)
    assert stats.kstest(scores, stats.halfnorm.cdf).pvalue > 1e-3


@pytest.mark.parametrize(("twin", "as_if"), [("flipped", "k1"), ("upside_down", "k3")])
def test_a_wrong_estimator_is_rejected(gaussian_runs, twin, as_if):
    """k1 with its sign flipped; k3 upside down, whose mean is χ²(q‖p) − KL = 1.218 for .5."""
    assert np.mean(z_scores(gaussian_runs[twin], as_if) > BOUND) >= 0.99


def test_k2_is_rejected_as_an_unbiased_estimator(gaussian_runs):
    mean, variance = KL, EXACT["k2"][1]
    scores = np.abs(gaussian_runs["k2"] - mean) / math.sqrt(variance / N)
    assert np.mean(scores > BOUND) >= 0.99


def test_a_bias_of_a_quarter_percent_is_rejected():
    """μ = .1 at k2's own bias, 2.5e-3 relative: k3 against the KL passes, k2 does not.

    At sd/mean 1.417 a relative bias of 2.5e-3 needs n = 2.4e7 for a power of .99 at this level;
    on a finite pair with the same moments the mean of n samples is a multinomial draw.
    """
    mu, n = 0.1, 40_000_000
    # Gauss–Hermite turns the Gaussian pair into 40 tokens with the same moments to 1e-15.
    x, w = np.polynomial.hermite_e.hermegauss(40)
    w = w / w.sum()
    log_r = torch.from_numpy(mu * x - mu**2 / 2)
    k2, k3 = K2(log_r).numpy(), K3(log_r).numpy()
    kl = mu**2 / 2
    sd = math.sqrt(math.exp(mu**2) - 1 - mu**2)
    assert math.sqrt(w @ (k3 - kl) ** 2) == pytest.approx(sd, rel=1e-9)
    accepted, rejected = 0, 0
    for seed in range(SEEDS):
        share = np.random.default_rng(seed).multinomial(n, w) / n
        accepted += abs(share @ k3 - kl) / (sd / math.sqrt(n)) < BOUND
        rejected += abs(share @ k2 - kl) / (sd / math.sqrt(n)) > BOUND
    assert accepted == SEEDS
    assert rejected >= 0.99 * SEEDS


def test_the_public_names():
    assert kllab.K1 is K1
    assert kllab.estimators.bregman is bregman
    assert kllab.estimators.optimal_lambda is optimal_lambda
