"""Every generator against 50-digit arithmetic: values, slopes, gaps, limits, derivatives."""

import dataclasses
import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from kllab import DIVERGENCES, Divergence, InputError
from kllab.divergences import HALF_SQUARED_LOG, Registry, alpha, expm1_minus, get, with_slope

NAMES = oracles.REGISTERED
ALPHAS = [-2.0, -1.0, -0.3, 1e-12, 1e-6, 0.3, 0.5, 0.9, 1 - 1e-9, 1 + 1e-6, 1.5, 2.0, 3.0]
ALL = [*NAMES, "half_squared_log", "half_r_squared_log", *(f"alpha({a!r})" for a in ALPHAS)]

# Dense near 0, where r − 1 and log r cancel, around the switches at 1/2 and 1, and out to ±20.
LOG_R = sorted(
    sign * l
    for sign in (-1, 1)
    for l in (
        *(1e-12, 1e-9, 1e-6, 1e-4, 0.003, 0.02, 0.1, 0.3, 0.4999, 0.5001, 0.7, 0.9999, 1.0001),
        *(1.0, 1.3, 2.0, 2.9, 5.0, 9.7, 14.2, 20.0),
    )
)


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def relative(got, want):
    want = float(want)
    return abs(got - want) / abs(want) if want else abs(got)


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("part", ["f", "r_df", "gap"])
def test_fourteen_digits_over_forty_nats(name, part):
    d = get(name)
    ours = getattr(d, part)(f64(*LOG_R)).tolist()
    theirs = {"f": oracles.value, "r_df": oracles.slope, "gap": oracles.gap}[part]
    for l, got in zip(LOG_R, ours, strict=True):
        want = theirs(name, l)
        # tv's derivative at r = 1 is a convention, checked below; elsewhere nothing is exempt.
        # exp(a l) itself is off by |a l| half-ulps, so steep powers get that much more.
        steep = 1 + 0.03 * abs(l) * max(1.0, abs(float(name[6:-1])) if "alpha" in name else 1.0)
        assert relative(got, want) < 1e-14 * steep, (l, got, want)


@pytest.mark.parametrize("name", ALL)
def test_at_one(name):
    d = get(name)
    zero = f64(0.0)
    assert d.f(zero).item() == 0.0
    assert d.gap(zero).item() == 0.0
    # tv has no derivative at 1; its f'(1) is 0 by convention, and so is its slope there.
    expected = 0.0 if "alpha" in name else float(oracles.generator(name).df1)
    assert d.r_df(zero).item() == expected == d.df1


@pytest.mark.parametrize("name", ALL)
def test_second_derivative_at_one(name):
    d = get(name)
    if name == "tv":
        assert d.d2f1 is None
        return
    with mp.workdps(60):
        h = mp.mpf(10) ** -15
        g = oracles.generator(name)
        curvature = (g.df(1 + h) - g.df(1 - h)) / (2 * h)
    assert d.d2f1 == pytest.approx(float(curvature), rel=1e-12)
    assert d.gap(f64(1e-4)).item() / 0.5e-8 == pytest.approx(d.d2f1, rel=1e-3)


@pytest.mark.parametrize("name", ALL)
def test_the_oracle_itself(name):
    """Its f' is the derivative of its f, and its limits are those of its f."""
    g = oracles.generator(name)
    for r in (0.2, 0.7, 1.6, 5.0):
        assert abs(mp.diff(g.f, r) - g.df(mp.mpf(r))) < 1e-18 * (1 + abs(g.df(mp.mpf(r))))
    with mp.workdps(400):
        small, large = mp.mpf(10) ** -4000, mp.mpf(10) ** 4000
        near_zero, per_p = g.f(small), g.f(large) / large
    a = float(name[6:-1]) if "alpha" in name else 0.5
    if math.isinf(g.at_zero):
        assert near_zero > 1000
    elif 0.01 < a < 0.99 or a > 1.01 or a < 0:
        assert abs(near_zero - g.at_zero) < 1e-9
    if math.isinf(g.per_p):
        assert per_p > 1000
    elif a < 0.99:
        assert abs(per_p - g.per_p) < 1e-9


@pytest.mark.parametrize("name", ALL)
def test_declared_limits(name):
    d, g = get(name), oracles.generator(name)
    assert d.at_zero == pytest.approx(g.at_zero, rel=1e-9)
    assert d.asymptote[0] == pytest.approx(g.per_p, rel=1e-9)
    # What lies beyond a r is b: finite, or it too grows (with the sign that b carries).
    a, b = d.asymptote
    if math.isinf(a):
        return
    with mp.workdps(300):
        # The table's floats are rounded; the difference of large numbers wants them exact.
        exact = mp.log(2) / 2 if name == "js" else mp.mpf(g.per_p)
        if "alpha" in name:
            exact = 1 / (1 - mp.mpf(float(name[6:-1])))
        rest = [g.f(r) - exact * r for r in (mp.mpf(10) ** 40, mp.mpf(10) ** 80)]
    if math.isinf(b):
        assert mp.sign(rest[1]) == math.copysign(1, b)
        assert abs(rest[1]) > abs(rest[0]) > 1
    else:
        assert abs(rest[1] - b) < 1e-9


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infinities_are_limits_and_never_nan(name, dtype):
    d = get(name)
    a, b = d.asymptote
    f = d.f(torch.tensor([-math.inf, math.inf], dtype=dtype)).double().tolist()
    assert f[0] == pytest.approx(d.at_zero, rel=1e-6)
    at_infinity = math.inf if a > 0 else b
    assert f[1] == at_infinity
    gap = d.gap(torch.tensor([-math.inf, math.inf], dtype=dtype)).double().tolist()
    assert gap[0] == pytest.approx(d.at_zero + d.df1, rel=1e-6)
    assert gap[1] == math.inf


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_overflow_keeps_the_sign_and_is_never_nan(name, dtype):
    d = get(name)
    far = torch.tensor([20.0, 80, 89, 100, 354, 356, 700, 709, 710, 800, 5e3, 1e30], dtype=dtype)
    l = torch.cat([-far, torch.zeros(1, dtype=dtype), far]).requires_grad_()
    for part in ("f", "gap", "r_df"):
        value = getattr(d, part)(l)
        assert not torch.isnan(value).any(), part
        if part != "r_df" and d.convex and d.df1 == 0:
            assert (value >= 0).all(), part
    assert (d.gap(l) >= 0).all()
    (grad,) = torch.autograd.grad(d.f(l).sum(), l)
    assert not torch.isnan(grad).any()
    # Past the overflow, the slope has the sign that it has before it.
    at_20 = torch.sign(d.r_df(l[-12:-11].detach()))
    assert (torch.sign(d.r_df(l.detach())[-11:]) * at_20 >= 0).all()


@pytest.mark.parametrize("name", ALL)
def test_float32_keeps_float32_digits(name):
    d = get(name)
    l = torch.tensor([v for v in LOG_R if abs(v) > 1e-5 and abs(v) < 15], dtype=torch.float32)
    wide = l.double()
    for part in ("f", "gap", "r_df"):
        got = getattr(d, part)(l)
        assert got.dtype == torch.float32
        want = getattr(d, part)(wide)
        assert ((got.double() - want).abs() <= 2e-5 * want.abs()).all(), part


def test_expm1_minus_where_the_plain_formula_fails():
    """exp(x) − 1 − x in float32 is 3.3 times too large at 1e-4, and 270 times at 1e-5."""
    l = torch.tensor([1e-3, 1e-4, 1e-5, 1e-6], dtype=torch.float32)
    for got, x in zip(expm1_minus(l).tolist(), l.double().tolist(), strict=True):
        assert relative(got, mp.expm1(x) - x) < 3e-7
    plain = torch.exp(l) - 1 - l
    assert plain[0].item() == pytest.approx(5.235e-7, rel=1e-3)
    assert plain[1].item() == pytest.approx(1.660e-8, rel=1e-3)
    assert plain[1].item() / 5e-9 == pytest.approx(3.3, abs=0.05)
    assert plain[2].item() == pytest.approx(1.36e-8, rel=5e-3)
    assert plain[2].item() / 5e-11 == pytest.approx(270, abs=5)
    expm1 = (torch.expm1(l) - l).tolist()
    assert expm1[:3] == pytest.approx([5.002e-7, 5.0e-9, 5.0e-11], rel=1e-3)
    assert expm1[3] / 5e-13 == pytest.approx(0.91, abs=0.005)  # 9 % low


# --- derivatives ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_autograd_returns_the_slope_bit_for_bit(name):
    d = get(name)
    points = [-math.inf, -800.0, *LOG_R, 0.0, 800.0, math.inf]
    l = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(d.f(l).sum(), l)
    assert torch.equal(grad, d.r_df(l.detach()))
    (grad,) = torch.autograd.grad(d.gap(l).sum(), l)
    for x, got in zip(points, grad.tolist(), strict=True):
        if 0 < abs(x) < 21:
            want = oracles.slope(name, x) - oracles.generator(name).df1 * mp.exp(x)
            assert relative(got, want) < 5e-14, x


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    l = f64(-3.0, -0.7, -0.2, 0.3, 0.8, 2.5).requires_grad_()
    assert torch.autograd.gradcheck(get(name).f, l)
    assert torch.autograd.gradcheck(get(name).gap, l)


@pytest.mark.parametrize("name", ALL)
def test_a_masked_infinity_has_gradient_zero(name):
    """A padded position may hold ±inf; where() gives it upstream gradient 0, and 0 it stays."""
    d = get(name)
    for fn in (d.f, d.gap):
        l = f64(-math.inf, 0.5, math.inf).requires_grad_()
        torch.where(f64(0, 1, 0) > 0, fn(l), 0.0).sum().backward()
        assert l.grad[0] == 0 == l.grad[2]
        assert torch.isfinite(l.grad).all()
        assert l.grad[1] != 0


@pytest.mark.parametrize("name", [*NAMES, "half_squared_log", "alpha(0.3)"])
def test_torch_func(name):
    d = get(name)
    l = f64(-2.0, -0.4, 0.6, 1.7)
    assert torch.equal(torch.func.grad(lambda x: d.f(x).sum())(l), d.r_df(l))
    assert torch.equal(torch.vmap(d.f)(l), d.f(l))
    assert torch.equal(torch.vmap(d.r_df)(l), d.r_df(l))
    assert torch.equal(torch.vmap(d.gap)(l), d.gap(l))
    assert torch.equal(torch.vmap(torch.func.grad(d.f))(l), d.r_df(l))
    assert torch.equal(torch.vmap(d.f, in_dims=1, out_dims=1)(l.reshape(2, 2)).flatten(), d.f(l))
    assert torch.equal(torch.func.jacrev(d.f)(l), torch.diag(d.r_df(l)))


def test_vmap_still_refuses_bad_input():
    d = get("js")
    for part in (d.f, d.gap, d.r_df):
        with pytest.raises(InputError, match="log_r"):
            torch.vmap(part)(f64(0.0, math.nan))
        with pytest.raises(InputError, match="log_r"):
            torch.vmap(part)(torch.zeros(3, dtype=torch.bfloat16))


def test_second_derivative_through_autograd():
    """r d/dr (r f') exists for the penalties that differentiate twice."""
    l = f64(0.4).requires_grad_()
    (first,) = torch.autograd.grad(DIVERGENCES["chi2_pq"].f(l).sum(), l, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), l)
    r = math.exp(0.4)
    assert second.item() == pytest.approx(4 * r * r - 2 * r, rel=1e-14)


def test_with_slope_uses_the_given_slope():
    l = f64(1.5).requires_grad_()
    with_slope(l, lambda x: x**2, lambda x: torch.full_like(x, 7.0)).sum().backward()
    assert l.grad.item() == 7.0


# --- identities -------------------------------------------------------------------------------

log_ratios = st.floats(-30, 30, allow_nan=False)


@given(l=log_ratios)
def test_reversal(l):
    """f*(r) = r f(1/r) up to c (r − 1), and exchanging twice gives the generator back."""
    for name in ALL:
        d = get(name)
        reverse = d.reversed()
        expected = oracles.REVERSE.get(name) or f"alpha({1 - float(name[6:-1]):.17g})"
        assert reverse.name == get(expected).name
        back = reverse.reversed()
        if "alpha" in name:
            assert float(back.name[6:-1]) == pytest.approx(float(d.name[6:-1]), rel=1e-9, abs=2e-16)
        else:
            assert back is d
        r = math.exp(l)
        # chi2_pq and chi2_qp are written without the c (r − 1) that would make f* itself agree.
        ours = reverse.gap(f64(l)).item()
        from_d = r * d.gap(f64(-l)).item()
        assert ours == pytest.approx(from_d, rel=1e-12, abs=1e-300), name


@given(l=log_ratios)
def test_convex_generators_lie_above_their_tangent(l):
    for name in [*NAMES, *(f"alpha({a!r})" for a in ALPHAS)]:
        d = get(name)
        assert d.convex
        assert d.gap(f64(l)).item() >= 0.0, name


@given(l=st.floats(-4, 4), m=st.floats(-4, 4))
def test_convexity_flag(l, m):
    """A convex f lies below its chord at the midpoint in r."""
    for name in NAMES:
        f = get(name).f
        middle = math.log((math.exp(l) + math.exp(m)) / 2)
        chord = (f(f64(l)).item() + f(f64(m)).item()) / 2
        assert f(f64(middle)).item() <= chord + 1e-9 * (1 + abs(chord)), name


@pytest.mark.parametrize("d", [HALF_SQUARED_LOG, HALF_SQUARED_LOG.reversed()])
def test_k2s_generator_breaks_convexity(d):
    assert not d.convex
    rs = (4.0, 8.0, 16.0) if d is HALF_SQUARED_LOG else (0.05, 0.1, 0.15)
    left, middle, right = d.f(torch.log(f64(*rs))).tolist()
    t = (rs[1] - rs[0]) / (rs[2] - rs[0])
    assert middle > (1 - t) * left + t * right


@pytest.mark.parametrize("name", [n for n in ALL if get(n).terms is not None])
def test_terms_are_the_generator(name):
    """f = Σ c lʲ e^{kl}: what closed forms of Gaussian moments are built from."""
    d = get(name)
    big = max(abs(c) for c, _, _ in d.terms)
    for l in (-1.7, -0.3, 0.4, 2.1):
        total = math.fsum(c * l**j * math.exp(k * l) for c, j, k in d.terms)
        want = float(oracles.value(name, l))
        assert total == pytest.approx(want, rel=1e-12, abs=1e-14 * big)


def test_which_have_terms():
    assert {n for n in ALL if get(n).terms is None} == {"js", "tv"}


# --- the alpha family -------------------------------------------------------------------------


def test_alpha_special_members():
    l = f64(-3.0, -0.6, -0.1, 0.2, 0.7, 2.5)
    for a, name, factor in (
        (2.0, "chi2_pq", 0.5),
        (-1.0, "chi2_qp", 0.5),
        (0.5, "hellinger2", 2.0),
    ):
        torch.testing.assert_close(alpha(a).f(l), factor * get(name).gap(l), rtol=2e-14, atol=0.0)
        assert alpha(a).name != name


def test_alpha_limits_are_the_registry_entries():
    assert alpha(0) is DIVERGENCES["kl_qp"] is DIVERGENCES["alpha(0)"] is DIVERGENCES["alpha(-0.0)"]
    assert alpha(1) is DIVERGENCES["kl_pq"] is get("alpha(1.0)")


@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.parametrize("off", [1e-3, 1e-6, 1e-9, 1e-12, -1e-5, -1e-10])
def test_alpha_approaches_its_limits(limit, off):
    """f is analytic in a: the distance to the limit is O(|a − limit|), with no noise floor."""
    l = f64(-4.0, -1.5, -0.6, -0.2, 1e-3, 0.3, 0.8, 2.0, 4.0)
    want = get("kl_qp" if limit == 0 else "kl_pq").gap(l)
    for part in ("f", "gap"):
        got = getattr(alpha(limit + off), part)(l)
        assert ((got / want - 1).abs() < 6 * abs(off) + 1e-14).all()
    slope = get("kl_qp" if limit == 0 else "kl_pq").r_df(l)
    slope = slope + torch.exp(l) if limit == 0 else slope - torch.exp(l)
    got = alpha(limit + off).r_df(l)
    assert ((got / slope - 1).abs() < 6 * abs(off) + 1e-14).all()


@pytest.mark.parametrize("a", [5e-324, 1e-310, -1e-310, 1e-200, 5e-17])
def test_alpha_next_to_zero_is_its_limit(a):
    """1 − a rounds to 1, so the reverse is kl_pq; the formula itself would divide by 0."""
    assert alpha(a) is DIVERGENCES["kl_qp"]
    assert alpha(1.0 - a) is DIVERGENCES["kl_pq"]


@pytest.mark.parametrize("a", [math.nan, math.inf, -math.inf, 1e200, -1e160, "x", None])
def test_alpha_refuses(a):
    with pytest.raises(InputError, match="a: expected a finite number") as caught:
        alpha(a)
    assert caught.value.argument == "a"
    assert str(a) in caught.value.received or type(a).__name__ in caught.value.received


# --- the registry -----------------------------------------------------------------------------


def test_registry_holds_the_convention_table():
    assert list(DIVERGENCES) == NAMES
    assert len(DIVERGENCES) == 8
    for name in NAMES:
        assert name in DIVERGENCES
        assert DIVERGENCES[name].name == name
        assert repr(get(name)) == f"Divergence({name!r}: f(r) = {get(name).formula})"
    assert "half_squared_log" not in DIVERGENCES
    assert get("half_squared_log") is HALF_SQUARED_LOG
    assert get(HALF_SQUARED_LOG) is HALF_SQUARED_LOG


@pytest.mark.parametrize("name", ["kl", "alpha(foo)", "alpha()", "xalpha(2)", "alpha(2)x", ""])
def test_a_miss_lists_what_there_is(name):
    with pytest.raises(KeyError) as caught:
        DIVERGENCES[name]
    message = str(caught.value)
    assert repr(name) in message
    for known in [*NAMES, "alpha(a)"]:
        assert known in message


@pytest.mark.parametrize("value", [3, None, 2.5, ["kl_qp"]])
def test_get_refuses_what_is_no_name(value):
    with pytest.raises(InputError, match="divergence: expected a name or a Divergence"):
        get(value)


def test_registry_refuses_a_second_one_of_the_same_name():
    own = Registry(DIVERGENCES["kl_qp"])
    with pytest.raises(InputError, match="'kl_qp', which is taken") as caught:
        own.register(dataclasses.replace(DIVERGENCES["kl_pq"], name="kl_qp"))
    assert caught.value.argument == "name"
    assert own["kl_qp"] is DIVERGENCES["kl_qp"]
    assert own.register(DIVERGENCES["tv"]) is DIVERGENCES["tv"]
    assert list(own) == ["kl_qp", "tv"]
    with pytest.raises(InputError):
        Registry(DIVERGENCES["tv"], DIVERGENCES["tv"])


def test_a_divergence_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DIVERGENCES["kl_qp"].df1 = 0.0
    assert isinstance(DIVERGENCES["kl_qp"], Divergence)


@pytest.mark.parametrize("part", ["f", "r_df", "gap"])
@pytest.mark.parametrize(
    ("bad", "received"),
    [
        (torch.tensor([0.0, math.nan]), "1 NaN"),
        (torch.tensor([0, 1]), "torch.int64"),
        (torch.zeros(2, dtype=torch.bfloat16), "torch.bfloat16"),
        (torch.zeros(2, dtype=torch.float16), "torch.float16"),
        ("l", "str"),
    ],
)
def test_bad_log_r(part, bad, received):
    for name in NAMES:
        with pytest.raises(InputError) as caught:
            getattr(DIVERGENCES[name], part)(bad)
        assert caught.value.argument == "log_r"
        assert received in caught.value.received


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)])
def test_shape_and_lists(shape):
    l = torch.full(shape, 0.3, dtype=torch.float64)
    for name in ALL:
        for part in ("f", "gap", "r_df"):
            assert getattr(get(name), part)(l).shape == shape
    assert DIVERGENCES["kl_qp"].f([0.5, -1.0]).tolist() == [-0.5, 1.0]
