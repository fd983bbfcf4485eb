"""The dictionary and its inverse: known entries, random combinations, splines, 50-digit slopes."""

import functools
import math

import mpmath
import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from kllab import DIVERGENCES, K1, K2, K3, Estimator, InputError, _fit
from kllab.divergences import Divergence
from kllab.estimators import with_lambda
from kllab.gradients import coefficient, dictionary, penalty_for, straight_through

USAGES = ("loss", "reward", "both")
SIX = ("kl_qp", "kl_pq", "chi2_qp", "chi2_pq", "tv", "hellinger2")
ALPHAS = ("alpha(-2.0)", "alpha(-1.0)", "alpha(1e-12)", "alpha(0.3)", "alpha(0.5)", "alpha(1.7)")
LOG_R = torch.linspace(-2.9, 2.9, 117, dtype=torch.float64)

# Each divergence's penalty, by hand: h as a loss, and h as a reward, up to a constant.
BY_HAND = {
    "kl_qp": (lambda l: l**2 / 2, lambda l: -l),
    "kl_pq": (lambda l: torch.exp(l) - l, lambda l: -torch.exp(l)),
    "chi2_pq": (lambda l: torch.exp(2 * l) / 2 - l, lambda l: -torch.exp(2 * l)),
    "chi2_qp": (lambda l: 2 * torch.exp(-l) + 2 * l, lambda l: 2 * torch.exp(-l)),
    "tv": (lambda l: l.abs() / 2, lambda l: -torch.sign(l) / 2),
    "hellinger2": (lambda l: 2 * torch.exp(l / 2) - l, lambda l: -torch.exp(l / 2)),
}


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def upside_down(logprob, ref_logprob):
    d = logprob - ref_logprob
    return torch.exp(d) - 1 - d


def two_arguments(h):
    return lambda logprob, ref_logprob: h(ref_logprob - logprob)


k3_plus = functools.partial(straight_through, K3, K2)


# --- what is known ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "usage", "terms"),
    [
        (K2, "loss", {"kl_qp": 1}),
        (K3, "loss", {"kl_pq": 1}),
        (torch.abs, "loss", {"tv": 2}),
        (torch.relu, "loss", {"tv": 1}),
        (upside_down, "loss", {"chi2_qp": 0.5}),
        (k3_plus, "loss", {"kl_qp": 1}),
        (K1, "reward", {"kl_qp": 1}),
        (K3, "reward", {"kl_qp": 1, "kl_pq": -1}),
        (upside_down, "reward", {"chi2_qp": 0.5, "kl_qp": -1}),
        (k3_plus, "reward", {"kl_qp": 1, "kl_pq": -1}),
        (torch.sign, "reward", {"tv": -2}),
        (K1, "both", {"kl_qp": 1}),
        (K3, "both", {"kl_qp": 1}),
        (k3_plus, "both", {"kl_qp": 2, "kl_pq": -1}),
        (with_lambda("kl_qp", 0.37), "both", {"kl_qp": 1}),
        (with_lambda("kl_qp", 0.37), "loss", {"kl_pq": 0.37}),
        (with_lambda("js", -2.0), "both", {"js": 1}),
        (lambda l: -K1(l), "reward", {"kl_qp": -1}),
        (lambda l: torch.nn.functional.softplus(l) * -0.5, "reward", {"js": 1}),
        (lambda l: K2(l) + K3(l), "loss", {"jeffreys": 1}),
        (lambda l: 0.5 * K2(l) + 0.25 * K3(l), "loss", {"kl_qp": 0.5, "kl_pq": 0.25}),
        (lambda l: 1e-7 * K2(l), "loss", {"kl_qp": 1e-7}),
        (lambda l: torch.sqrt(l * l), "loss", {"tv": 2}),
    ],
)
def test_known_entries(fn, usage, terms):
    entry = dictionary(fn, usage=usage)
    assert entry.verdict == "fits"
    assert entry.terms == pytest.approx(terms, rel=1e-10, abs=0)
    assert set(entry.terms) == set(terms)
    assert 0 <= entry.residual < 1e-12
    assert entry.region == (-3.0, 3.0)
    assert (entry.usage, entry.unit) == (usage, "nats")
    assert all(isinstance(value, float) for value in entry.terms.values())


@pytest.mark.parametrize(
    ("fn", "usage", "constant"),
    [
        (K1, "loss", 1.0),
        (lambda l: 3 * l + 1, "loss", -3.0),
        (lambda l: 0 * l + 2, "reward", 2.0),
        (lambda l: K3(l.detach()), "loss", 0.0),
        (torch.no_grad()(lambda l: K3(l)), "loss", 0.0),
        (torch.sign, "loss", 0.0),
        (lambda l: torch.exp(l), "both", 0.0),
        (lambda l: torch.log(torch.exp(l)), "loss", -1.0),
    ],
)
def test_zero(fn, usage, constant):
    """No expected gradient: also r − 1 as both, which is why every λ will do."""
    entry = dictionary(fn, usage=usage)
    assert (entry.verdict, entry.terms) == ("zero", {})
    assert entry.constant == pytest.approx(constant, abs=1e-12)
    assert entry.is_convex
    assert entry.f(LOG_R).equal(torch.zeros_like(LOG_R))


def test_a_wrong_placement_is_seen():
    """k3 belongs in the loss for KL(p‖q) and nowhere for KL(q‖p)."""
    right = {"kl_qp": 1.0}
    assert dictionary(K1, usage="reward").terms == right == dictionary(K2, usage="loss").terms
    for fn, usage in ((K1, "loss"), (K2, "reward"), (K3, "loss"), (K3, "reward"), (K2, "both")):
        assert dictionary(fn, usage=usage).terms != right


def test_k2_as_a_reward_is_told_by_its_f():
    entry = dictionary(K2, usage="reward")
    assert (entry.verdict, entry.terms, entry.is_convex) == ("unknown", {}, False)
    assert entry.residual > 0.01
    # E[k2] − KL(q‖p): ½l² + l, less its tangent l = r − 1.
    want = LOG_R**2 / 2 + LOG_R - torch.expm1(LOG_R)
    assert torch.allclose(entry.f(LOG_R), want, rtol=1e-12, atol=1e-15)
    assert entry.f(f64(0.0)).tolist() == [0.0]


def test_f_right_beside_one_and_of_a_fast_wave():
    near = dictionary(K2, usage="both").f(f64(-1e-20, 1e-20))
    assert near.tolist() == pytest.approx([5e-41, 5e-41], rel=1e-9, abs=0)
    wave = dictionary(lambda l: torch.sin(40 * l), usage="reward")
    # −eˡ ∫₀ˡ e^{−t} sin 40t dt, by parts.
    want = (torch.sin(40 * LOG_R) + 40 * torch.cos(40 * LOG_R) - 40 * torch.exp(LOG_R)) / 1601
    assert torch.allclose(wave.f(LOG_R), want, rtol=0, atol=1e-12)


def test_text():
    assert str(dictionary(K3, usage="reward")) == (
        "as reward: the gradient of kl_qp − kl_pq for log r in [-3, 3]"
    )
    assert "of −2 tv for" in str(dictionary(torch.sign, usage="reward"))
    both = dictionary(lambda l: K2(l) / 2 + 3 * torch.abs(l), usage="loss")
    assert "of 0.5 kl_qp + 6 tv for" in str(both)
    assert str(dictionary(K1, usage="loss")) == "as loss: no expected gradient for log r in [-3, 3]"
    clamped = K2.clamped(log_r=(-2.0, 1.5))
    assert str(dictionary(clamped, usage="reward")) == (
        "as reward: no combination of known divergences; f is not convex for log r in [-2, 1.5]"
    )
    assert "f is convex" in str(dictionary(penalty_for("alpha(0.3)", usage="loss"), usage="loss"))


# --- random combinations ----------------------------------------------------------------------

coefficients = st.floats(0.1, 3).flatmap(lambda c: st.sampled_from([c, -c]))
combinations = st.dictionaries(st.sampled_from(SIX), coefficients, min_size=1, max_size=3)


def combined(terms, usage, constant):
    """h that follows Σ terms: as a loss, as a reward, or half of it as each."""

    def h(l):
        at = USAGES.index(usage)
        total = sum(c * BY_HAND[name][at](l) for name, c in terms.items())
        return total + constant * (l if usage == "loss" else 1)

    return h


def expected_terms(terms):
    """jeffreys is one name for equal parts of both KLs."""
    if set(terms) == {"kl_qp", "kl_pq"} and terms["kl_qp"] == terms["kl_pq"]:
        return {"jeffreys": terms["kl_qp"]}
    return terms


@given(combinations, st.sampled_from(["loss", "reward"]), st.floats(-2, 2), st.booleans())
def test_random_combinations(terms, usage, constant, pairwise):
    h = combined(terms, usage, constant)
    entry = dictionary(two_arguments(h) if pairwise else h, usage=usage)
    want = expected_terms(terms)
    assert (entry.verdict, set(entry.terms)) == ("fits", set(want))
    assert entry.terms == pytest.approx(want, abs=1e-6)


@given(
    combinations, st.sampled_from(["loss", "reward"]), st.floats(0.01, 2.9), st.floats(0.01, 2.9)
)
def test_random_combinations_clamped(terms, usage, below, above):
    h = combined(terms, usage, 0.37)
    entry = dictionary(lambda l: h(l.clamp(-below, above)), usage=usage)
    assert entry.region == pytest.approx((-below, above), abs=3e-4)
    if below + above < 1.999:
        assert (entry.verdict, entry.terms) == ("unknown", {})
    elif below + above > 2.001:
        want = expected_terms(terms)
        assert (entry.verdict, set(entry.terms)) == ("fits", set(want))
        assert entry.terms == pytest.approx(want, abs=1e-6)


@given(combinations, st.sampled_from(["loss", "reward"]), st.booleans())
def test_random_combinations_in_float32(terms, usage, back):
    h = combined(terms, usage, 0.37)

    def fn(logprob, ref_logprob):
        value = h((ref_logprob - logprob).float())
        return value.double() * 0.7 if back else value

    entry = dictionary(fn, usage=usage)
    scale = 0.7 if back else 1.0
    want = expected_terms(terms)
    assert (entry.verdict, set(entry.terms)) == ("fits", set(want))
    assert entry.terms == pytest.approx({n: scale * c for n, c in want.items()}, abs=1e-4)


def spline(rng):
    """A natural-looking cubic spline on [−3, 3] with random knots, as a torch function of l."""
    knots = torch.from_numpy(np.sort(rng.uniform(-3, 3, rng.integers(3, 9))))
    jumps = torch.from_numpy(rng.normal(size=len(knots)))
    poly = torch.from_numpy(rng.normal(size=4))

    def h(l):
        cubic = ((poly[3] * l + poly[2]) * l + poly[1]) * l + poly[0]
        return cubic + (jumps * torch.relu(l[:, None] - knots) ** 3).sum(-1)

    return h


def test_a_thousand_splines_never_fit():
    rng = np.random.default_rng(0)
    for i in range(1000):
        entry = dictionary(spline(rng), usage=("loss", "reward")[i % 2])
        assert entry.verdict == "unknown", i
        assert entry.terms == {}
        assert entry.residual > 1e-6


@pytest.mark.parametrize("usage", ["loss", "reward"])
def test_the_residual_decides(usage):
    """A wiggle of relative size 1e-7 is not KL(q‖p), one of 1e-9 is; float32 is given 64 ε."""

    def fn(size, l, wave=torch.sin):
        return BY_HAND["kl_qp"][USAGES.index(usage)](l) + size * wave(7 * l)

    size = 0.2 if usage == "loss" else 1.0
    assert dictionary(lambda l: fn(1e-7 * size, l), usage=usage).verdict == "unknown"
    entry = dictionary(lambda l: fn(5e-9 * size, l), usage=usage)
    assert (entry.verdict, set(entry.terms)) == ("fits", {"kl_qp"})
    assert 1e-9 < entry.residual < 1e-8
    entry = dictionary(lambda l: fn(1e-6 * size, l.float()), usage=usage)
    assert (entry.verdict, set(entry.terms)) == ("fits", {"kl_qp"})
    assert dictionary(lambda l: fn(1e-4 * size, l.float()), usage=usage).verdict == "unknown"


@pytest.mark.parametrize(
    ("terms", "ends"),
    [
        ({"kl_qp": -1.0275, "chi2_qp": 2.1941, "hellinger2": 0.0033}, (-1.88, 0.55)),
        ({"kl_pq": -0.0355, "chi2_pq": 2.6155, "hellinger2": -0.0036}, (-1.41, 1.92)),
    ],
)
def test_a_small_third_term_that_two_could_pass_without(terms, ends):
    """Two names stay within 64 ε of float32, at coefficients that are 2e-3 off."""
    h = combined(terms, "reward", 0.37)
    entry = dictionary(lambda l: h(l.float().clamp(*ends)), usage="reward")
    assert entry.terms == pytest.approx(terms, abs=1e-4)


def test_terms_that_cannot_be_seen_are_not_named():
    entry = dictionary(lambda l: K2(l) + 2e-9 * torch.exp(-l), usage="loss")
    assert entry.terms == pytest.approx({"kl_qp": 1.0}, abs=1e-8)
    assert 1e-9 < entry.residual < 1e-8
    # One name, although two fit better by a rounding.
    assert dictionary(lambda l: K2(l) + (1 + 1e-13) * K3(l), usage="loss").terms == {"jeffreys": 1}


def test_a_small_divergence_beside_a_large_constant():
    entry = dictionary(lambda l: K1(l) + 1e-7 * K2(l), usage="loss")
    assert entry.terms == pytest.approx({"kl_qp": 1e-7}, rel=1e-6, abs=0)
    assert entry.constant == pytest.approx(1.0)


def test_as_many_digits_as_there_are():
    assert dictionary(lambda l: K3(l.float()), usage="loss").terms == {"kl_pq": 1.0}
    assert dictionary(lambda l: 1.234567891 * l.abs(), usage="loss").terms == {"tv": 2.469135782}


def test_a_removable_gap_at_one():
    entry = dictionary(lambda l: torch.sin(l) / l, usage="reward")
    assert entry.constant == pytest.approx(1.0, abs=1e-13)
    assert dictionary(torch.abs, usage="reward").constant == 0.0


def test_js_in_a_sum_is_not_listed():
    js, kl = penalty_for("js", usage="loss"), penalty_for("kl_qp", usage="loss")
    assert dictionary(lambda l: js(l) + kl(l), usage="loss").verdict == "unknown"


@pytest.mark.parametrize("usage", USAGES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_unknown_unless_float64_is_honoured(usage, dtype):
    rounded = dictionary(lambda l: K3(l.to(dtype).float()), usage=usage)
    assert (rounded.verdict, rounded.terms) == ("unknown", {})
    honoured = dictionary(lambda l: K3(l if l.dtype == torch.float64 else l.float()), usage=usage)
    assert honoured.verdict == "fits"


def test_values_are_fitted_by_the_same_code():
    """Modulo c(r − 1), a constant told apart: what an audit of values asks."""
    l = _fit.grid()
    columns = {name: DIVERGENCES[name].gap(l) for name in DIVERGENCES}
    free = {"r - 1": torch.expm1(l), "constant": torch.ones_like(l)}
    fit = _fit.combination(K1(l) + 0.5 * DIVERGENCES["tv"].f(l) + 0.25, columns, free)
    assert (fit.verdict, fit.terms) == ("fits", {"kl_qp": 1.0, "tv": 0.5})
    assert fit.free == pytest.approx({"r - 1": -1.0, "constant": 0.25}, abs=1e-11)
    fit = _fit.combination(3 * torch.expm1(l) + 2, columns, free)
    assert (fit.verdict, fit.terms) == ("zero", {})
    assert fit.free == pytest.approx({"r - 1": 3.0, "constant": 2.0}, abs=1e-11)
    fit = _fit.combination(K2(l), columns, free)
    assert (fit.verdict, fit.terms) == ("unknown", {})


# --- the region -------------------------------------------------------------------------------


@pytest.mark.parametrize("usage", USAGES)
@pytest.mark.parametrize(
    ("fn", "region"),
    [
        (K3.clamped(log_r=(-20, 20), value=(-10, 10)), (-3.0, 2.6109)),
        (K3.clamped(log_r=(-1.2, 0.9)), (-1.2, 0.9)),
        (K3.clamped(log_r=(-1.0, 1.0)), (-1.0, 1.0)),
        (K1.clamped(value=(-1.25, 2.0)), (-2.0, 1.25)),
        (lambda a, b: K3((b - a).clamp(-2.5, 0.01)), (-2.5, 0.01)),
    ],
)
def test_clamps_end_the_region(fn, region, usage):
    entry = dictionary(fn, usage=usage)
    assert entry.region == pytest.approx(region, abs=3e-4)
    free = dictionary(K1 if getattr(fn, "name", "").startswith("k1") else K3, usage=usage)
    assert (entry.verdict, entry.terms) == (free.verdict, free.terms)


def test_exactly_two_nats_is_wide_enough():
    for usage in USAGES:
        assert dictionary(K3.clamped(log_r=(-1.0, 1.0)), usage=usage).region == (-1.0, 1.0)
        narrow = dictionary(K3.clamped(log_r=(-1.0, 0.99)), usage=usage)
        assert (narrow.verdict, narrow.terms) == ("unknown", {})
        assert narrow.residual < 1e-12
    narrow = dictionary(K1.clamped(log_r=(-0.5, 0.5)), usage="loss")
    assert narrow.verdict == "unknown"


@pytest.mark.parametrize("usage", USAGES)
def test_a_clamp_just_inside_three_nats(usage):
    for edge in (2.9999, 2.99999, 3.0):
        entry = dictionary(lambda l, edge=edge: K3(l.clamp(-edge, edge)), usage=usage)
        assert entry.verdict == "fits"
        assert entry.residual < 1e-12
        assert entry.region == pytest.approx((-3, 3), abs=3e-4)
        assert entry.region[1] <= 3


def test_a_clamp_on_the_value_does_not_matter_to_a_straight_through_loss():
    capped = functools.partial(straight_through, K3.clamped(value=(0, 0.5)), K2)
    entry = dictionary(capped, usage="loss")
    assert (entry.terms, entry.region) == ({"kl_qp": 1.0}, (-3.0, 3.0))
    assert dictionary(capped, usage="reward").region[1] == pytest.approx(0.8577, abs=3e-4)


@pytest.mark.parametrize("usage", ["reward", "both"])
def test_a_step_is_no_clamp(usage):
    entry = dictionary(lambda l: torch.sign(l - 0.5), usage=usage)
    assert (entry.verdict, entry.region) == ("unknown", (-3.0, 3.0))


def test_a_kink_beside_zero_is_no_clamp():
    """Huber bends, max(l − ½, 0) starts: both are what they are on all of ±3."""
    huber = functools.partial(torch.nn.functional.huber_loss, reduction="none", delta=1.5)
    for fn in (lambda l: huber(l, 0 * l), lambda l: torch.relu(l - 0.5)):
        entry = dictionary(fn, usage="loss")
        assert (entry.verdict, entry.region, entry.is_convex) == ("unknown", (-3.0, 3.0), True)


def test_where_fn_is_undefined_the_region_ends():
    entry = dictionary(lambda l: torch.log1p(l), usage="reward")
    assert entry.region == pytest.approx((-1.0, 3.0), abs=3e-4)
    with pytest.raises(InputError, match="finite values"):
        dictionary(torch.log, usage="reward")
    with pytest.raises(InputError, match="finite values"):
        dictionary(lambda l: 0 * l / 0, usage="loss")


# --- f ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("usage", USAGES)
@pytest.mark.parametrize(
    "fn",
    [
        K2,
        K3,
        torch.abs,
        upside_down,
        torch.atan,
        penalty_for("js", usage="loss"),
        lambda l: torch.sin(3 * l) + K3(l),
        K2.clamped(log_r=(-2.0, 1.0)),
    ],
)
def test_f_has_the_coefficient_of_fn(fn, usage):
    """f − r f' = c up to a constant, f(1) = 0; without terms f'(1) = 0 too."""
    entry = dictionary(fn, usage=usage)
    l = torch.linspace(*entry.region, 203, dtype=torch.float64)[1:-1]
    l = l[l.abs() > 1e-9].requires_grad_()
    f = entry.f(l)
    (slope,) = torch.autograd.grad(f.sum(), l)
    c = coefficient(
        fn if fn is upside_down else two_arguments(fn), -l, torch.zeros_like(l), usage=usage
    )
    rest = (f - slope - c).detach()
    assert torch.allclose(rest, rest[:1], rtol=0, atol=1e-11 * float(c.abs().max()))
    assert entry.f(f64(0.0)).item() == 0.0
    # The slope itself is that of the values.
    h = 1e-4
    with torch.no_grad():
        difference = (entry.f(l + h) - entry.f(l - h)) / (2 * h)
    smooth = (l.detach().abs() > 2 * h) & (l.detach() < entry.region[1] - 2 * h)
    assert torch.allclose(slope[smooth], difference[smooth], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["alpha(0.3)", "alpha(-2.0)", "alpha(1.7)", "half_squared_log"])
@pytest.mark.parametrize("usage", USAGES)
def test_numeric_f_in_fifty_digits(name, usage):
    entry = dictionary(penalty_for(name, usage=usage), usage=usage)
    assert (entry.verdict, entry.terms) == ("unknown", {})
    l = f64(-2.7, -1.0, -0.3, -1e-3, 1e-3, 0.0625, 0.77, 2.9)
    for at, got in zip(l.tolist(), entry.f(l).tolist(), strict=True):
        assert got == pytest.approx(float(oracles.gap(name, at)), rel=1e-11, abs=1e-17)
    assert entry.f(l.reshape(2, 4)).shape == (2, 4)
    beyond = float(entry.f(f64(5.0)))
    assert beyond == pytest.approx(float(oracles.gap(name, 5.0)), rel=1e-11)
    with pytest.raises(InputError, match="finite values"):
        entry.f(f64(math.inf))


def test_f_across_a_clamp_is_that_of_the_clamped_fn():
    a = 0.9
    entry = dictionary(K2.clamped(log_r=(-3, a)), usage="reward")
    # c = ½l² up to a, then ½a²: −eˡ ∫₀ˡ e^{−t} c dt in closed form.
    at_a = -math.exp(a) * (1 - math.exp(-a) * (a * a / 2 + a + 1))
    want = math.exp(2.5 - a) * at_a - a * a / 2 * (math.exp(2.5 - a) - 1)
    assert float(entry.f(f64(2.5))) == pytest.approx(want, rel=1e-7)


def test_recognised_f_is_the_sum_of_the_registered_ones():
    entry = dictionary(K3, usage="reward")
    want = DIVERGENCES["kl_qp"].f(LOG_R) - DIVERGENCES["kl_pq"].f(LOG_R)
    assert entry.f(LOG_R).equal(want)
    assert entry.f(f64(-math.inf)).tolist() == [math.inf]
    opposite = dictionary(upside_down, usage="reward").f
    assert opposite(f64(-800.0)).tolist() == [math.inf]
    with pytest.raises(InputError, match="is defined, got infinities of both signs"):
        opposite(f64(0.0, -math.inf))
    assert entry.f(LOG_R.float()).dtype == torch.float64
    assert dictionary(K1, usage="loss").f(LOG_R.float()).dtype == torch.float64


@pytest.mark.parametrize(
    ("fn", "usage", "convex"),
    [
        (K2, "loss", True),
        (K3, "loss", True),
        (torch.abs, "loss", True),
        (K3, "reward", False),
        (upside_down, "reward", False),
        (lambda l: -K2(l), "loss", False),
        # k2's own generator bends down beyond r = e only.
        (K2, "both", False),
        (K2.clamped(log_r=(-3, 0.999)), "both", True),
        (K2.clamped(log_r=(-3, 1.1)), "both", False),
        (lambda l: K3(l.float()), "loss", True),
        (lambda l: K2(l.float()), "reward", False),
    ],
)
def test_convexity(fn, usage, convex):
    assert dictionary(fn, usage=usage).is_convex is convex


# --- the inverse ------------------------------------------------------------------------------


@pytest.mark.parametrize("usage", USAGES)
@pytest.mark.parametrize("name", oracles.REGISTERED)
def test_round_trip(name, usage):
    entry = dictionary(penalty_for(name, usage=usage), usage=usage)
    assert (entry.verdict, entry.terms) == ("fits", {name: 1.0})
    assert entry.is_convex
    assert torch.allclose(entry.f(LOG_R), DIVERGENCES[name].f(LOG_R), rtol=1e-12, atol=0)
    assert set(DIVERGENCES) == set(oracles.REGISTERED)


@pytest.mark.parametrize("usage", USAGES)
@pytest.mark.parametrize("name", ALPHAS)
def test_round_trip_of_the_alpha_family(name, usage):
    entry = dictionary(penalty_for(name, usage=usage), usage=usage)
    known = {
        "alpha(-1.0)": {"chi2_qp": 0.5},
        "alpha(1e-12)": {"kl_qp": 1.0},
        "alpha(0.5)": {"hellinger2": 2.0},
    }
    assert entry.terms == pytest.approx(known.get(name, {}), rel=1e-9)
    assert set(entry.terms) == set(known.get(name, {}))
    assert entry.is_convex
    gap = entry.f(LOG_R) - torch.expm1(LOG_R) * sum(
        c * DIVERGENCES[n].df1 for n, c in entry.terms.items()
    )
    want = [float(oracles.gap(name, l)) for l in LOG_R.tolist()]
    assert torch.allclose(gap, f64(*want), rtol=1e-9, atol=1e-14)


LADDER = [-14.0, -2.9, -0.4, -1e-6, 1e-3, 0.49, 0.99, 1.01, 9.0]


@pytest.mark.parametrize("name", [*oracles.REGISTERED, *ALPHAS, "half_squared_log"])
def test_penalties_in_fifty_digits(name):
    """h' = r f' − f − f'(1) as a loss, −h' as a reward, the Bregman gap as both."""
    df1 = 0 if "alpha" in name else oracles.generator(name).df1

    def slope(l):
        return oracles.slope(name, l) - oracles.value(name, l) - df1

    loss, reward, both = (penalty_for(name, usage=usage) for usage in USAGES)
    l = f64(*LADDER).requires_grad_()
    (got,) = torch.autograd.grad(loss(l).sum(), l)
    for at, a, b, c, d in zip(
        LADDER, got.tolist(), reward(l).tolist(), both(l).tolist(), loss(l).tolist(), strict=True
    ):
        want, gap = float(slope(at)), float(oracles.gap(name, at))
        area = mpmath.quad(slope, mpmath.linspace(0, mpf(at), 3))
        assert a == pytest.approx(want, rel=1e-13, abs=0)
        assert b == pytest.approx(-want, rel=1e-13, abs=0)
        assert c == pytest.approx(gap, rel=1e-13, abs=0)
        assert d == pytest.approx(float(area), rel=2e-12, abs=0)


@pytest.mark.parametrize("name", [*oracles.REGISTERED, *ALPHAS, "alpha(0)", "alpha(1)"])
def test_penalties_at_one_and_at_the_ends(name):
    zero = f64(0.0).requires_grad_()
    for usage in USAGES:
        penalty = penalty_for(name, usage=usage)
        value = penalty(zero)
        (slope,) = torch.autograd.grad(value.sum(), zero)
        assert value.item() == 0.0
        if usage != "reward":
            assert slope.item() == 0.0
        elif name != "tv":
            curvature = 1.0 if "alpha" in name else oracles.generator(name).d2f1
            assert slope.item() == pytest.approx(-curvature, rel=1e-12)
        for dtype in (torch.float32, torch.float64):
            far = torch.tensor([-math.inf, -800, -90, 90, 800, math.inf], dtype=dtype)
            far.requires_grad_()
            value = penalty(far)
            assert value.dtype == dtype
            assert not value.isnan().any(), usage
            if usage != "reward":
                assert (value >= 0).all()
                (slope,) = torch.autograd.grad(value.sum(), far)
                assert not slope.isnan().any(), usage
    ends = penalty_for(name, usage="loss")(f64(-math.inf, math.inf))
    assert ends.tolist() == [math.inf, math.inf]


def test_penalties_that_have_a_name():
    assert torch.allclose(penalty_for("kl_qp", usage="loss")(LOG_R), K2(LOG_R), rtol=1e-15)
    assert penalty_for("kl_pq", usage="loss")(LOG_R).equal(K3(LOG_R))
    assert penalty_for("kl_qp", usage="reward")(LOG_R).equal(K1(LOG_R))
    assert penalty_for("kl_qp", usage="both")(LOG_R).equal(K3(LOG_R))
    assert penalty_for("tv", usage="loss").__name__ == "tv_loss"
    assert penalty_for(DIVERGENCES["js"], usage="reward").__name__ == "js_reward"


def test_a_generator_of_ones_own():
    """r³-ish, not registered: alpha(3) written without its name."""
    own = Divergence(
        name="own",
        formula="(r^3 - 1) / 6",
        value=lambda l: torch.expm1(3 * l) / 6,
        slope=lambda l: torch.exp(3 * l) / 2,
        gap_value=lambda l: torch.expm1(3 * l) / 6 - torch.expm1(l) / 2,
        gap_slope=lambda l: torch.exp(l) * torch.expm1(2 * l) / 2,
        df1=0.5,
        d2f1=1.0,
        at_zero=-1 / 6,
        asymptote=(math.inf, 0.0),
        reverse="own",
    )
    for usage in USAGES:
        ours, named = penalty_for(own, usage=usage), penalty_for("alpha(3)", usage=usage)
        assert torch.allclose(ours(LOG_R), named(LOG_R), rtol=1e-10, atol=1e-15)


def test_penalties_refuse_bad_input():
    for usage in USAGES:
        for bad in (f64(math.nan), torch.zeros(2).half(), torch.zeros(2, dtype=torch.int64)):
            with pytest.raises(InputError, match="log_r"):
                penalty_for("kl_pq", usage=usage)(bad)
    with pytest.raises(KeyError, match="no divergence 'kl'"):
        penalty_for("kl", usage="loss")


# --- bad functions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "expectation"),
    [
        (lambda a, b, c: a, "of log r or of"),
        (lambda a, b: a * b, "of ref_logprob − logprob alone"),
        (lambda a, b: (b - a) * (1 + 1e-6 * a), "of ref_logprob − logprob alone"),
        (lambda a, b: ((b - a) * (1 + 1e-3 * a)).float(), "of ref_logprob − logprob alone"),
        (lambda l: l**2 - (l**2).mean(), "element-wise"),
        (lambda l: l**2 * torch.rand(()), "element-wise"),
        (lambda l: (l**2).mean(), "one value per sample"),
        (None, "a function"),
    ],
)
@pytest.mark.parametrize("usage", USAGES)
def test_bad_functions_are_refused(fn, expectation, usage):
    with pytest.raises(InputError, match=expectation) as error:
        dictionary(fn, usage=usage)
    assert error.value.argument == "fn"


def test_bad_usage():
    with pytest.raises(InputError, match="usage: expected one of loss, reward, both"):
        dictionary(K1, usage="metric")


def test_an_entry_is_frozen_and_an_estimator_is_a_function():
    entry = dictionary(Estimator("mine", DIVERGENCES["chi2_pq"]), usage="both")
    assert entry.terms == {"chi2_pq": 1.0}
    with pytest.raises(AttributeError):
        entry.terms = {}
