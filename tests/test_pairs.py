"""Pairs against closed forms, exact fractions and high-precision sums written here."""

import builtins
import math
import re
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from kllab import pairs
from kllab.checks import InputError
from kllab.sampling import Categorical

HALF = math.log(0.5)
NEVER = -math.inf
EXACT = mpmath.MPContext()
EXACT.dps = 50


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_pair(pair, V):
    """What every categorical pair promises."""
    assert isinstance(pair, pairs.CategoricalPair)
    assert pair.V == V
    assert pair.name
    for log_probs in (pair.log_q, pair.log_p, pair.log_r):
        assert log_probs.dtype == torch.float64
        assert log_probs.shape == (V,)
        assert not log_probs.isnan().any()
    assert math.fsum(pair.log_q.exp().tolist()) == pytest.approx(1, abs=1e-12)
    assert math.fsum(pair.log_p.exp().tolist()) == pytest.approx(1, abs=1e-12)


def exact_kl(pair) -> mpmath.mpf:
    """KL(q‖p) as Σ q (r - 1 - log r) in 50 digits, so that rounding of log q enters squared."""
    terms = (
        EXACT.exp(log_q) * (EXACT.expm1(log_p - log_q) - (log_p - log_q))
        for log_q, log_p in zip(
            map(EXACT.mpf, pair.log_q.tolist()), map(EXACT.mpf, pair.log_p.tolist()), strict=True
        )
        if log_q != -EXACT.inf
    )
    return EXACT.fsum(terms)


@st.composite
def laws(draw, *, least=1, most=30, zeros=True):
    """Log-probabilities over a small vocabulary, over up to 30 orders of magnitude, some -inf."""
    V = draw(st.integers(least, most))
    floats = st.floats(-70, 0, allow_subnormal=False)
    logits = draw(st.lists(floats | st.just(NEVER) if zeros else floats, min_size=V, max_size=V))
    assume(max(logits) > NEVER)
    return torch.log_softmax(torch.tensor(logits, dtype=torch.float64), -1)


# categorical


def test_categorical_log_r_where_supports_differ():
    pair = pairs.categorical(
        [HALF, HALF, NEVER, NEVER], [math.log(0.25), NEVER, math.log(0.75), NEVER]
    )
    assert_pair(pair, 4)
    assert pair.name == "categorical"
    assert pair.log_r.tolist() == [math.log(0.25) - HALF, NEVER, math.inf, 0.0]
    assert pairs.categorical([0.0], [0.0], name="one token").name == "one token"


def test_categorical_keeps_float64_and_renormalises_float32():
    log_q = torch.log_softmax(torch.randn(50_000, generator=seeded()), -1) + 5e-4
    log_p = torch.log_softmax(torch.randn(50_000, dtype=torch.float64, generator=seeded()), -1)
    pair = pairs.categorical(log_q, log_p)
    assert_pair(pair, 50_000)
    assert pair.log_p is log_p
    torch.testing.assert_close(pair.log_q, log_q.double() - 5e-4, rtol=0, atol=1e-6)


def test_categorical_lets_gradients_through():
    logits = torch.tensor([0.3, 0.1, NEVER], dtype=torch.float64, requires_grad=True)
    log_p = torch.tensor([0.2, 0.8, 0.0], dtype=torch.float64).log()
    pair = pairs.categorical(torch.log_softmax(logits, -1), log_p)
    kl = -(pair.log_q.exp() * pair.log_r).sum()
    kl.backward()
    q = torch.softmax(torch.tensor([0.3, 0.1], dtype=torch.float64), -1)
    k1 = q.log() - torch.tensor([0.2, 0.8], dtype=torch.float64).log()
    torch.testing.assert_close(logits.grad, torch.cat([q * (k1 - (q * k1).sum()), q.new_zeros(1)]))


@pytest.mark.parametrize(
    ("log_q", "log_p", "message"),
    [
        ([HALF, HALF], [0.0], "log_p: expected 2 tokens, as log_q has, got 1 tokens"),
        ([0.0, 0.0], [HALF, HALF], "log_q: expected normalised"),
        ([HALF, HALF], [HALF, math.nan], "log_p: expected no NaN"),
        (
            [[HALF, HALF]],
            [HALF, HALF],
            r"log_q: expected one vocabulary \(V,\), got shape \(1, 2\)",
        ),
        ([HALF, HALF], torch.zeros(1, dtype=torch.bfloat16), "log_p: expected .* upcast"),
        ([1, 0], [HALF, HALF], "log_q: expected .*, got integers"),
    ],
)
def test_categorical_refuses(log_q, log_p, message):
    with pytest.raises(InputError, match=message):
        pairs.categorical(log_q, log_p)


@settings(deadline=None)
@given(laws(), st.randoms())
def test_log_r_is_the_difference_and_never_nan(log_q, random):
    order = list(range(len(log_q)))
    random.shuffle(order)
    pair = pairs.categorical(log_q, log_q[order])
    assert_pair(pair, len(log_q))
    for q, p, r in zip(pair.log_q.tolist(), pair.log_p.tolist(), pair.log_r.tolist(), strict=True):
        assert r == (0.0 if q == p == NEVER else p - q)


def test_samples_are_from_q_and_carry_its_log_r():
    pair = pairs.categorical([math.log(0.2), math.log(0.8), NEVER], [HALF, NEVER, HALF])
    tokens = pair.sample((10, 100), generator=seeded(1))
    # The sampler's own tests hold it to its law.
    assert torch.equal(tokens, Categorical(pair.log_q).sample((10, 100), generator=seeded(1)))
    log_r = pair.sample_log_r((10, 100), generator=seeded(1))
    assert torch.equal(log_r, pair.log_r[tokens])
    assert set(log_r.unique().tolist()) == {HALF - math.log(0.2), NEVER}
    assert pair.sample_log_r((2, 0, 3), generator=seeded()).shape == (2, 0, 3)
    assert pair.sampler is pair.sampler


def test_pairs_are_frozen_and_show_themselves():
    pair = pairs.zipf(5, 1.0, 2.0)
    with pytest.raises(AttributeError):
        pair.log_q = pair.log_p
    with pytest.raises(AttributeError):
        pairs.gaussian(1.0, 1.0).mean = 2.0
    assert repr(pair) == "CategoricalPair('zipf(V=5, a_q=1, a_p=2)', V=5)"
    assert pairs.gaussian(0.1, 2).name == "gaussian(mean=0.1, scale=2)"


def test_to_moves_both_laws():
    moved = pairs.zipf(5, 1.0, 2.0).to("meta")
    assert (moved.log_q.device.type, moved.log_p.device.type, moved.name) == (
        "meta",
        "meta",
        "zipf(V=5, a_q=1, a_p=2)",
    )


# gaussian


@settings(deadline=None)
@given(st.floats(-50, 50), st.floats(-4, 4).map(math.exp))
def test_gaussian_coefficients_against_50_digits(mean, scale):
    m, s = EXACT.mpf(mean), EXACT.mpf(scale)
    a, b, c = pairs.gaussian(mean, scale).coefficients
    close = {"rel": 1e-15, "abs": 1e-300}
    assert a == pytest.approx(float((1 - 1 / s**2) / 2), **close)
    assert b == pytest.approx(float(m / s**2), **close)
    # c is a sum of two terms that may cancel: relative to the larger one.
    larger = max((m / s) ** 2 / 2, abs(EXACT.log(s)))
    assert abs(c - (-((m / s) ** 2) / 2 - EXACT.log(s))) <= 1e-15 * larger + 1e-300


@pytest.mark.parametrize("scale", [1 + 1e-12, 1 - 1e-9])
def test_gaussian_coefficient_keeps_its_digits_near_scale_one(scale):
    exact = float((1 - 1 / EXACT.mpf(scale) ** 2) / 2)
    assert pairs.gaussian(0.0, scale).coefficients[0] == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize(("mean", "scale"), [(0.1, 1.0), (-3.0, 0.4), (2.0, 5.0), (0.0, 1.0)])
def test_gaussian_log_r_against_scipy(mean, scale):
    x = np.linspace(-6, 6, 25)
    expected = stats.norm.logpdf(x, mean, scale) - stats.norm.logpdf(x)
    log_r = pairs.gaussian(mean, scale).log_r(x)
    np.testing.assert_allclose(log_r.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_gaussian_log_r_upcasts_and_keeps_the_shape():
    x = torch.randn(2, 3, generator=seeded())
    log_r = pairs.gaussian(1.0, 1.0).log_r(x)
    assert log_r.dtype == torch.float64
    torch.testing.assert_close(log_r, x.double() - 0.5)


def normal_accepts(x: torch.Tensor) -> bool:
    return 5e-6 < stats.kstest(x.numpy(), "norm").pvalue < 1 - 5e-6


def test_gaussian_samples_are_from_q():
    pair, n, seeds = pairs.gaussian(0.1, 1.0), 20_000, range(100)
    draws = [pair.sample((n,), generator=seeded(seed)) for seed in seeds]
    assert draws[0].dtype == torch.float64
    assert all(map(normal_accepts, draws))
    # The twin draws from p, a tenth of a standard deviation away.
    assert sum(not normal_accepts(x + 0.1) for x in draws) >= 99
    for seed in (0, 1):
        log_r = pair.sample_log_r((n,), generator=seeded(seed))
        assert torch.equal(log_r, pair.log_r(draws[seed]))
    assert pair.sample((), generator=seeded()).shape == ()


@pytest.mark.parametrize(
    ("mean", "scale", "message"),
    [
        (0.0, 0.0, "scale: expected a finite number above 0, got 0.0"),
        (0.0, -1.0, "scale: expected a finite number above 0, got -1.0"),
        (0.0, math.nan, "scale: expected a finite number above 0, got nan"),
        (0.0, math.inf, "scale: expected a finite number above 0, got inf"),
        (math.nan, 1.0, "mean: expected a finite number, got nan"),
        (-math.inf, 1.0, "mean: expected a finite number, got -inf"),
        ("0", [1.0], "scale: expected a finite number above 0, got list"),
        (0.0, 1e-200, "mean, scale: expected log r with finite coefficients"),
        (1e200, 1.0, "mean, scale: expected log r with finite coefficients"),
    ],
)
def test_gaussian_refuses(mean, scale, message):
    with pytest.raises(InputError, match=message):
        pairs.gaussian(mean, scale)


def test_gaussian_methods_refuse():
    pair = pairs.gaussian(0.0, 1.0)
    for x, message in [
        ([0.0, math.inf], "x: expected finite values, got 1 infinite ones"),
        ([math.nan], "x: expected no NaN"),
        (torch.zeros(2, dtype=torch.int64), "x: expected float32 or float64"),
    ]:
        with pytest.raises(InputError, match=message):
            pair.log_r(x)
    with pytest.raises(InputError, match="shape: expected"):
        pair.sample((-1,), generator=seeded())
    with pytest.raises(InputError, match="generator: expected"):
        pair.sample((1,), generator=None)
    with pytest.raises(TypeError, match="generator"):
        pair.sample_log_r((1,))


# zipf


@pytest.mark.parametrize(("a_q", "a_p"), [(1, 2), (0, 3)])
def test_zipf_against_fractions(a_q, a_p):
    V = 40
    pair = pairs.zipf(V, a_q, a_p)
    assert_pair(pair, V)
    for log_probs, a in ((pair.log_q, a_q), (pair.log_p, a_p)):
        weights = [Fraction(1, rank**a) for rank in range(1, V + 1)]
        expected = [float(weight / sum(weights)) for weight in weights]
        np.testing.assert_allclose(log_probs.exp().numpy(), expected, rtol=1e-14)


def test_zipf_at_vocabulary_scale():
    pair = pairs.zipf(128_256, 1.0, 1.2)
    assert_pair(pair, 128_256)
    harmonic = float(mpmath.harmonic(128_256))
    assert float(pair.log_q[0]) == pytest.approx(-math.log(harmonic), rel=1e-14)
    # log r = (a_q - a_p) log rank + constant
    slope = (pair.log_r[1:] - pair.log_r[0]) / torch.arange(2, 128_257).double().log()
    torch.testing.assert_close(slope, torch.full_like(slope, -0.2), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1.0, 1.0), "V: expected a whole number, at least 1, got 0"),
        ((2.5, 1.0, 1.0), "V: expected a whole number, at least 1, got float"),
        ((5, math.nan, 1.0), "a_q: expected a finite number, got nan"),
        ((5, 1.0, math.inf), "a_p: expected a finite number, got inf"),
    ],
)
def test_zipf_refuses(arguments, message):
    with pytest.raises(InputError, match=message):
        pairs.zipf(*arguments)


# temperature


@settings(deadline=None)
@given(laws(), st.floats(-3, 3).map(math.exp))
def test_temperature_scales_every_difference(log_p, tau):
    pair = pairs.temperature(log_p, tau)
    assert_pair(pair, len(log_p))
    assert pair.log_p is log_p
    top = int(log_p.argmax())
    q_gap, p_gap = pair.log_q - pair.log_q[top], log_p - log_p[top]
    torch.testing.assert_close(q_gap, p_gap / tau, rtol=1e-12, atol=1e-12)


def test_temperature_limits():
    log_p = torch.tensor([0.3, 0.5, 0.0, 0.2], dtype=torch.float64).log()
    for tau in (1e-300, 1e-320):  # the second overflows log p / tau
        assert pairs.temperature(log_p, tau).log_q.exp().tolist() == [0, 1, 0, 0]
    hot = pairs.temperature(log_p, 1e300).log_q.exp()
    torch.testing.assert_close(hot, torch.tensor([1, 1, 0, 1], dtype=torch.float64) / 3)
    torch.testing.assert_close(pairs.temperature(log_p, 1).log_q, log_p)


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan, math.inf])
def test_temperature_refuses(tau):
    with pytest.raises(InputError, match="tau: expected a finite number above 0"):
        pairs.temperature([HALF, HALF], tau)


# top_p, top_k


def renormalised(pair, kept) -> bool:
    """q is p over ``kept``, divided by its mass there, and 0 elsewhere."""
    mass = math.fsum(pair.log_p.exp()[kept].tolist())
    return (
        bool((pair.log_q[~kept] == NEVER).all())
        and (pair.log_r[kept] - math.log(mass)).abs().max() < 1e-12
    )


@settings(deadline=None)
@given(laws(), st.floats(0, 1, exclude_min=True) | st.just(1.0))
def test_top_p_is_the_smallest_head_with_that_mass(log_p, mass):
    pair = pairs.top_p(log_p, mass)
    assert_pair(pair, len(log_p))
    assert pair.log_p is log_p
    p, kept = log_p.exp(), pair.log_q > NEVER
    assert renormalised(pair, kept)
    head = math.fsum(p[kept].tolist())
    assert head >= mass - 2e-12
    if mass == 1:
        assert torch.equal(kept, log_p > NEVER)
    else:
        assert kept.sum() == 1 or head - float(p[kept].min()) < mass
    assert not (~kept).any() or p[~kept].max() <= p[kept].min()


def test_top_p_where_the_mass_is_met_exactly():
    # 0.5 + 0.3 is below 0.8 in some float64 orders; the slack decides.
    for p in ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.3, 0.2, 0.5]):
        kept = pairs.top_p(np.log(p), 0.8).log_q > NEVER
        assert kept.tolist() == [value > 0.25 for value in p]
    tenths = np.log([0.1] * 10)
    for k in range(1, 11):
        assert int((pairs.top_p(tenths, k / 10).log_q > NEVER).sum()) == k


def test_top_p_slack_is_a_rounding_and_no_more():
    log_p = np.log([1 - 3e-11, 3e-11])
    assert (pairs.top_p(log_p, 1 - 1e-11).log_q > NEVER).tolist() == [True, True]
    assert (pairs.top_p(log_p, 1 - 3e-11).log_q > NEVER).tolist() == [True, False]


def test_top_p_ties_go_to_the_lower_index():
    log_p = np.log([0.1, 0.3, 0.3, 0.3])
    assert (pairs.top_p(log_p, 0.5).log_q > NEVER).tolist() == [False, True, True, False]


def test_top_p_keeps_the_whole_support_at_mass_one():
    log_p = torch.log_softmax(torch.tensor([0.0, -80.0, NEVER, -300.0], dtype=torch.float64), -1)
    assert (pairs.top_p(log_p, 1.0).log_q > NEVER).tolist() == [True, True, False, True]
    assert (pairs.top_p(log_p, 1e-300).log_q > NEVER).tolist() == [True, False, False, False]


@pytest.mark.parametrize("mass", [0.0, -0.1, 1.1, math.nan])
def test_top_p_refuses(mass):
    with pytest.raises(InputError, match="mass: expected a finite number above 0 and at most 1"):
        pairs.top_p([HALF, HALF], mass)


@settings(deadline=None)
@given(laws(), st.data())
def test_top_k_keeps_k_likeliest(log_p, data):
    k = data.draw(st.integers(1, len(log_p)))
    pair = pairs.top_k(log_p, k)
    assert_pair(pair, len(log_p))
    kept = pair.log_q > NEVER
    assert kept.sum() == min(k, int((log_p > NEVER).sum()))
    assert renormalised(pair, kept)
    assert not (~kept).any() or log_p[~kept].max() <= log_p[kept].min()


def test_top_k_ties_go_to_the_lower_index():
    log_p = np.log([0.1, 0.3, 0.3, 0.3])
    assert (pairs.top_k(log_p, 2).log_q > NEVER).tolist() == [False, True, True, False]


@pytest.mark.parametrize("k", [0, 3, 1.0])
def test_top_k_refuses(k):
    with pytest.raises(InputError, match="k: expected a whole number, at least 1 and at most 2"):
        pairs.top_k([HALF, HALF], k)


# perturbed, lm_like


@pytest.mark.parametrize("kl", [1e-10, 1e-8, 1e-4, 0.1, 1.0, 3.0])
def test_perturbed_meets_its_kl(kl):
    log_p = pairs.zipf(300, 1.0, 1.2).log_p
    pair = pairs.perturbed(log_p, kl, generator=seeded(1))
    assert_pair(pair, 300)
    assert abs(exact_kl(pair) / kl - 1) < 1e-10


@settings(deadline=None)
@given(laws(least=2), st.floats(-18, 1).map(math.exp), st.integers(0, 2**32))
def test_perturbed_meets_its_kl_or_says_why_not(log_p, kl, seed):
    noise = torch.randn(len(log_p), dtype=torch.float64, generator=seeded(seed))
    most = -float(log_p[noise.masked_fill(log_p == NEVER, NEVER).argmax()])
    if kl >= most:
        reach = re.escape(f"kl: expected less than {most:.6g} nats")
        with pytest.raises(InputError, match=reach):
            pairs.perturbed(log_p, kl, generator=seeded(seed))
    else:
        pair = pairs.perturbed(log_p, kl, generator=seeded(seed))
        assert_pair(pair, len(log_p))
        assert (pair.log_q[log_p == NEVER] == NEVER).all()
        assert abs(exact_kl(pair) / kl - 1) < 1e-10


def test_perturbed_adds_scaled_gaussian_noise_to_the_logits():
    log_p = pairs.zipf(50_000, 1.0, 1.0).log_p
    noise = torch.randn(50_000, dtype=torch.float64, generator=seeded(3))
    log_r = pairs.perturbed(log_p, 0.02, generator=seeded(3)).log_r
    spread = (log_r - log_r.mean()).norm() / (noise - noise.mean()).norm()
    torch.testing.assert_close(
        log_r - log_r.mean(), -spread * (noise - noise.mean()), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(
    ("log_p", "kl", "message"),
    [
        ([HALF, HALF], 0.0, "kl: expected a finite number above 0, got 0.0"),
        ([HALF, HALF], math.nan, "kl: expected a finite number above 0, got nan"),
        ([HALF, HALF], 0.7, "kl: expected less than 0.693147 nats, .*, got 0.7"),
        ([0.0], 0.1, "kl: expected less than -?0 nats"),
        ([0.0, NEVER], 0.1, "kl: expected less than -?0 nats"),
    ],
)
def test_perturbed_refuses(log_p, kl, message):
    with pytest.raises(InputError, match=message):
        pairs.perturbed(log_p, kl, generator=seeded())
    with pytest.raises(InputError, match=r"generator: expected a torch\.Generator, got 0"):
        pairs.perturbed([HALF, HALF], 0.1, generator=0)


def test_perturbed_gives_q_no_gradient():
    log_p = torch.log_softmax(torch.zeros(3, dtype=torch.float64, requires_grad=True), -1)
    pair = pairs.perturbed(log_p, 0.1, generator=seeded())
    assert (pair.log_q.requires_grad, pair.log_p.requires_grad) == (False, True)


def test_perturbed_just_below_what_the_noise_can_reach():
    with pytest.raises(InputError, match="kl: expected less than"):
        pairs.perturbed([HALF, HALF], math.log(2), generator=seeded())
    pair = pairs.perturbed([HALF, HALF], math.log(2) * (1 - 1e-9), generator=seeded())
    assert abs(exact_kl(pair) / math.log(2) - (1 - 1e-9)) < 1e-10


def test_lm_like_is_what_its_docstring_says():
    for seed in range(2):
        pair = pairs.lm_like(128_256, kl=0.05, generator=seeded(seed))
        assert_pair(pair, 128_256)
        q, p = pair.log_q.exp(), pair.log_p.exp().sort(descending=True).values
        assert float((q * (torch.expm1(pair.log_r) - pair.log_r)).sum()) == pytest.approx(
            0.05, rel=1e-10
        )
        assert 0.65 < float(p[:10].sum()) < 0.95
        assert 1e-11 < float(p.median()) < 8e-11
        assert 2e-13 < float(p[-1]) < 2e-12
        index = torch.arange(128_256, dtype=torch.float64)
        assert abs(float(torch.corrcoef(torch.stack([pair.log_p, index]))[0, 1])) < 0.015


def test_lm_like_follows_its_recipe():
    log_rank = np.log(np.arange(1, 1001))
    noise = torch.randn(1000, dtype=torch.float64, generator=seeded(2)).numpy()
    logits = -1.2 * log_rank - 0.08 * log_rank**2 + noise / 2
    expected = np.sort(logits - np.logaddexp.reduce(logits))
    log_p = pairs.lm_like(1000, kl=0.05, generator=seeded(2)).log_p
    np.testing.assert_allclose(np.sort(log_p.numpy()), expected, rtol=0, atol=1e-12)


def test_lm_like_refuses():
    for V in (1, 10.0):
        with pytest.raises(InputError, match="V: expected a whole number, at least 2"):
            pairs.lm_like(V, kl=0.1, generator=seeded())
    with pytest.raises(InputError, match="kl: expected a finite number above 0"):
        pairs.lm_like(10, kl=-1, generator=seeded())
    with pytest.raises(InputError, match=r"generator: expected a torch\.Generator"):
        pairs.lm_like(10, kl=0.1, generator=None)


# bf16_rounded


def to_bf16(value: float) -> float:
    """Nearest number of 8 significant bits, ties to even."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256), exponent - 8)


def test_bf16_rounded_against_arithmetic():
    log_p = pairs.lm_like(2000, kl=0.1, generator=seeded()).log_p
    pair = pairs.bf16_rounded(log_p)
    assert_pair(pair, 2000)
    rounded = [to_bf16(value) for value in log_p.tolist()]
    total = math.log(math.fsum(map(math.exp, rounded)))
    np.testing.assert_allclose(pair.log_q.numpy(), np.array(rounded) - total, rtol=0, atol=1e-13)
    assert 0 < float(pair.log_r.abs().max()) < 2**-4


def test_bf16_rounded_keeps_impossible_tokens():
    assert pairs.bf16_rounded([HALF, NEVER, HALF]).log_q.tolist() == [HALF, NEVER, HALF]


@pytest.mark.parametrize(
    "build",
    [
        lambda log_p: pairs.temperature(log_p, 1.0),
        lambda log_p: pairs.top_p(log_p, 0.9),
        lambda log_p: pairs.top_k(log_p, 1),
        lambda log_p: pairs.perturbed(log_p, 0.1, generator=seeded()),
        pairs.bf16_rounded,
    ],
    ids=["temperature", "top_p", "top_k", "perturbed", "bf16_rounded"],
)
def test_every_pair_from_one_law_checks_it(build):
    for bad, message in [
        ([0.5, 0.5], "log_p: expected normalised"),
        ([[0.0]], r"log_p: expected one vocabulary \(V,\)"),
        ([0.0, math.nan], "log_p: expected no NaN"),
        (torch.zeros(1, dtype=torch.float16), "log_p: expected .* upcast"),
    ]:
        with pytest.raises(InputError, match=message):
            build(bad)
    float32 = torch.log_softmax(torch.randn(5000, generator=seeded()), -1)
    assert_pair(build(float32), 5000)


# word_frequencies


@pytest.fixture(scope="module")
def words():
    return pairs.word_frequencies()


def test_words_are_what_both_tables_have(words):
    assert_pair(words, 212_165)
    assert len(words.words) == words.V
    assert list(words.words) == sorted(set(words.words))
    assert words.left_out == {"q": 333_213 - 212_165, "p": 321_180 - 212_165}
    assert words.kept_q == pytest.approx(0.9901, abs=5e-5)
    assert words.kept_p == pytest.approx(0.9576, abs=5e-5)
    assert pairs.word_frequencies() is words


def test_word_probabilities_against_the_tables(words):
    import wordfreq
    import wordsegment

    counts = wordsegment.UNIGRAMS  # loaded by the fixture
    for word in ("the", "twitter", "cannot", words.words[0], words.words[-1]):
        i = words.words.index(word)
        q = counts[word] / (words.kept_q * math.fsum(counts.values()))
        assert float(words.log_q[i]) == pytest.approx(math.log(q), rel=1e-13)
    # One constant turns wordfreq's frequencies into p.
    frequency = wordfreq.get_frequency_dict("en", wordlist="large")
    log_f = torch.tensor([frequency[word] for word in words.words], dtype=torch.float64).log()
    shift = words.log_p - log_f
    torch.testing.assert_close(shift, shift[:1].expand_as(shift), rtol=0, atol=1e-12)


def test_word_frequencies_are_rounded_to_hundredths_of_a_decade(words):
    # Up to the shift, every log10 p sits on that grid: the bound of 0.005 log 10 in the docstring.
    hundredths = (words.log_p - words.log_p[0]) / math.log(10) * 100
    assert float((hundredths - hundredths.round()).abs().max()) < 1e-9
    assert f"{0.005 * math.log(10):.4f} nats" in words.note


def test_word_note_says_what_was_kept(words):
    for fact in ("212,165", "99.0%", "121,048", "95.8%", "109,015", "CC BY-SA 4.0"):
        assert fact in words.note
    from importlib.metadata import version

    for package in ("wordsegment", "wordfreq"):
        assert f"{package} {version(package)}" in words.note
    assert not any("'" in word or any(map(str.isdigit, word)) for word in words.words)


def test_word_divergences(words):
    # Recomputed in NumPy from the two laws; the values that chapter 1 shows.
    log_q, log_r = words.log_q.numpy(), words.log_r.numpy()
    q, r = np.exp(log_q), np.exp(log_r)
    assert math.fsum(q * -log_r) == pytest.approx(0.339371, abs=5e-7)
    assert math.fsum(q * r * log_r) == pytest.approx(0.244240, abs=5e-7)
    assert math.fsum(q * (r - 1) ** 2) == pytest.approx(0.758697, abs=5e-7)
    largest = np.argsort(-r)[:6]
    assert [words.words[i] for i in largest] == [
        "twitter",
        "cannot",
        "iphone",
        "ipad",
        "youtube",
        "facebook",
    ]
    assert r.max() == pytest.approx(1360.57, abs=0.005)


def test_word_pairs_sample_and_move_like_the_others(words):
    tokens = words.sample((1000,), generator=seeded(4))
    assert torch.equal(tokens, Categorical(words.log_q).sample((1000,), generator=seeded(4)))
    assert words.to("cpu").words is words.words


@pytest.mark.parametrize("missing", ["wordfreq", "wordsegment"])
def test_word_frequencies_without_its_packages(monkeypatch, missing):
    real = builtins.__import__

    def absent(name, *arguments, **keywords):
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", absent)
    message = rf'needs {missing}: pip install "kllab\[words\]"'
    with pytest.raises(ImportError, match=message):
        pairs.word_frequencies.__wrapped__()
