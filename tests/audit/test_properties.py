"""Random combinations are found, random curves are not, and every gradient is an exact sum's."""

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline

import kllab
from audit import reports
from audit.by_hand import (
    DIVERGENCE,
    LOSS,
    OTHER_WEIGHT,
    SIX,
    VALUE,
    WEIGHT,
    combined,
    expected_gradient,
    gradient_of,
)

sizes = st.floats(0.1, 3).flatmap(lambda c: st.sampled_from([c, -c]))
combinations = st.dictionaries(st.sampled_from(SIX), sizes, min_size=1, max_size=3)
coefficients = st.floats(-2, 2)


def on_policy(h):
    """x ~ logprob, so log r = ref − logprob."""
    return lambda logprob, ref_logprob: h(ref_logprob - logprob)


def on_reference(h):
    """x ~ ref, so log r = logprob − ref."""
    return lambda logprob, ref_logprob: h(logprob - ref_logprob)


# How each quantity is written for one sample, and what may be added without changing it.
PLACES = {
    ("metric", "logprob"): (VALUE, torch.expm1, on_policy),
    ("loss", "logprob"): (LOSS, lambda l: l, on_policy),
    ("reward", "logprob"): (WEIGHT, torch.ones_like, on_policy),
    ("metric", "ref_logprob"): (VALUE, torch.expm1, on_reference),
    ("loss", "ref_logprob"): (VALUE, torch.exp, on_reference),
    ("reward", "ref_logprob"): (OTHER_WEIGHT, torch.exp, on_reference),
}
places = st.sampled_from(sorted(PLACES))


def written(place, terms, free, change=lambda l: l):
    parts, besides, arguments = PLACES[place]

    def h(l):
        l = change(l)
        return combined(parts, terms, l) + free * besides(l)

    return arguments(h)


def is_constant(place, terms, free):
    """A weight with no slope: clamping its argument does nothing."""
    flat = {("reward", "logprob"): {"tv"}, ("reward", "ref_logprob"): {"kl_qp"}}
    moves = free if place == ("reward", "ref_logprob") else 0.0
    return set(terms) == flat.get(place) and not moves


def judged(report, place):
    return report.value if place[0] == "metric" else report.gradient


def one_name(terms):
    """jeffreys is the one name of equal parts of both KLs."""
    both = {"kl_qp", "kl_pq"}
    if set(terms) == both and terms["kl_qp"] == pytest.approx(terms["kl_pq"], rel=1e-9):
        return {"jeffreys": terms["kl_qp"]}
    return terms


def audit(fn, place, **more):
    return kllab.audit(fn, usage=place[0], samples=place[1], **more)


# --- what is found -----------------------------------------------------------------------------


@given(places, combinations, coefficients)
def test_random_combinations_are_found(place, terms, free):
    found = judged(audit(written(place, terms, free), place), place)
    want = one_name(terms)
    assert (found.verdict, set(found.terms)) == ("fits", set(want))
    assert found.terms == pytest.approx(want, abs=1e-6)


@given(places, combinations, coefficients, st.floats(0.01, 3.4), st.floats(0.01, 3.4))
def test_random_combinations_clamped_anywhere(place, terms, free, below, above):
    assume(not is_constant(place, terms, free))
    fn = written(place, terms, free, lambda l: l.clamp(-below, above))
    found = judged(audit(fn, place), place)
    low, high = -min(below, 3), min(above, 3)
    if high - low < 1.999:
        assert (found.verdict, found.terms) == ("unknown", {})
    elif high - low > 2.001:
        want = one_name(terms)
        assert (found.verdict, set(found.terms)) == ("fits", set(want))
        assert found.terms == pytest.approx(want, abs=1e-6)
        assert found.region == pytest.approx((low, high), abs=2e-3)


@given(places, combinations, st.floats(-1, 1))
@settings(max_examples=40)
def test_random_combinations_in_float32(place, terms, share):
    """What is left beside the free part must be large enough to be seen in seven digits."""
    free = share * min(abs(c) for c in terms.values())
    fn = written(place, terms, free, lambda l: l.float())
    found = judged(audit(fn, place), place)
    assert found.verdict == "fits"
    want = one_name(terms)
    extra = {name: c for name, c in found.terms.items() if name not in want}
    assert found.terms | dict.fromkeys(extra, 0.0) == pytest.approx(
        want | dict.fromkeys(extra, 0.0), abs=1e-4
    )
    assert all(abs(c) < 1e-4 for c in extra.values())


@given(places, combinations, coefficients, st.floats(-7, 7))
@settings(max_examples=20)
def test_a_factor_multiplies_the_terms(place, terms, free, power):
    fn, factor = written(place, terms, free), 10.0**power
    one = judged(audit(fn, place), place)
    many = judged(audit(lambda *a: factor * fn(*a), place), place)
    assert many.verdict == one.verdict == "fits"
    assert many.terms == pytest.approx({n: factor * c for n, c in one.terms.items()}, rel=1e-6)


@given(combinations, coefficients, st.sampled_from(["metric", "loss", "reward"]))
@settings(max_examples=20)
def test_names_say_who_is_who(terms, free, usage):
    """Arguments in the other order, or under other names, change nothing once they are named."""
    place = (usage, "logprob")
    fn = written(place, terms, free)
    plain = audit(fn, place)
    exchanged = audit(lambda a, b: fn(b, a), place, names=("ref_logprob", "logprob"))
    for one, other in ((plain.value, exchanged.value), (plain.gradient, exchanged.gradient)):
        assert one.verdict == other.verdict
        assert other.terms == pytest.approx(one.terms, rel=1e-9)


# --- what is not -------------------------------------------------------------------------------

KNOTS = np.linspace(-4, 4, 17)
SPLINES = 1000


@functools.cache
def splines():
    """(4, intervals, N): cubic pieces through random heights, twice differentiable."""
    heights = np.random.default_rng(0).normal(size=(len(KNOTS), SPLINES))
    return torch.from_numpy(CubicSpline(KNOTS, heights, bc_type="natural").c)


def spline(number):
    pieces, knots = splines()[:, :, number], torch.from_numpy(KNOTS)

    def h(l):
        place = (torch.bucketize(l.detach().double(), knots) - 1).clamp(0, len(KNOTS) - 2)
        x = l - knots[place]
        a, b, c, d = pieces[:, place]
        return ((a * x + b) * x + c) * x + d

    return h


def test_a_spline_is_the_curve_that_it_should_be():
    l = torch.linspace(-3, 3, 50, dtype=torch.float64)
    heights = np.random.default_rng(0).normal(size=(len(KNOTS), SPLINES))[:, 7]
    want = CubicSpline(KNOTS, heights, bc_type="natural")(l.numpy())
    assert np.allclose(spline(7)(l).numpy(), want, rtol=0, atol=1e-12)


def refuses_splines(numbers):
    for number in numbers:
        h = spline(number)
        for usage, samples in (("both", "logprob"), ("loss", "ref_logprob")):
            arguments = PLACES["metric", samples][2]
            report = kllab.audit(arguments(h), usage=usage, samples=samples)
            assert report.value.verdict == report.gradient.verdict == "unknown", (number, usage)
            assert report.value.terms == report.gradient.terms == {}
            assert "unknown" in {finding.code for finding in report.findings}


def test_random_splines_never_fit():
    refuses_splines(range(0, SPLINES, 20))


@pytest.mark.slow  # two audits for each of the thousand
def test_a_thousand_random_splines_never_fit():
    refuses_splines(range(SPLINES))


@given(places, combinations, st.floats(1, 6), st.floats(0, 3))
@settings(max_examples=30)
def test_a_wave_of_a_thousandth_is_seen(place, terms, speed, phase):
    """What a person would still call a combination, from its plot."""
    fn = written(place, terms, 0.0)
    size = 1e-3 * max(abs(c) for c in terms.values())
    wave = PLACES[place][2](lambda l: size * torch.sin(speed * l + phase))
    found = judged(audit(lambda *a: fn(*a) + wave(*a), place), place)
    assert (found.verdict, found.terms) == ("unknown", {})


four = st.lists(st.sampled_from(SIX), min_size=4, max_size=4, unique=True)


@settings(max_examples=20)
@given(four, st.lists(st.sampled_from([-2.0, -1.0, 0.5, 1.5]), min_size=4, max_size=4))
def test_four_terms_are_more_than_three(names, sizes):
    """kl_qp + kl_pq is jeffreys, one name, but only alone."""
    terms = dict(zip(names, sizes, strict=True))
    found = audit(written(("metric", "logprob"), terms, 0.3), ("metric", "logprob")).value
    assert (found.verdict, found.terms) == ("unknown", {})


# --- gradients against exact sums --------------------------------------------------------------


def models(seed, spread=0.5, size=7):
    generator = torch.Generator().manual_seed(seed)
    draw = functools.partial(torch.randn, size, generator=generator, dtype=torch.float64)
    logits, ref, old = draw(), draw(), draw()
    return spread * logits, (spread * ref).log_softmax(-1), (spread * old).log_softmax(-1)


def agrees_with_enumeration(fn, usage, samples, terms, seeds=range(3)):
    """The expected autograd gradient is that of Σ c D, on vocabularies that the audit never saw."""
    for seed in seeds:
        logits, ref, _ = models(seed)
        if samples == "logprob":
            sampled, policy = logits.softmax(-1), "q"
        else:
            sampled, policy = ref.exp(), "p"
        got = expected_gradient(fn, logits, ref, usage=usage, sampled=sampled)
        want = gradient_of(terms, logits, ref.exp(), policy=policy)
        scale = max(1e-3, float(want.abs().max()))
        assert torch.allclose(got, want, rtol=0, atol=1e-8 * scale), (fn, usage, samples, seed)


KNOWN = [
    reports.log_ratio,
    reports.half_square,
    reports.bregman,
    reports.upside_down,
    reports.absolute,
    reports.straight_through,
    reports.with_score_term,
    reports.under_no_grad,
    lambda a, b: reports.log_ratio(a, b).sign(),
    lambda a, b: reports.half_square(a, b) + 2 * reports.bregman(a, b) - 0.7,
    lambda a, b: (a - b).exp(),
    lambda a, b: (b - a).exp(),
]


@pytest.mark.parametrize("usage", ["loss", "reward", "both"])
@pytest.mark.parametrize("samples", ["logprob", "ref_logprob"])
def test_what_the_audit_says_is_what_an_exact_sum_gives(usage, samples):
    verdicts = []
    for fn in KNOWN:
        gradient = kllab.audit(fn, usage=usage, samples=samples).gradient
        verdicts.append(gradient.verdict)
        if gradient.verdict == "fits":
            assert gradient.terms
            agrees_with_enumeration(fn, usage, samples, gradient.terms)
        elif gradient.verdict == "zero":
            agrees_with_enumeration(fn, usage, samples, {})
    # Twelve functions; not all follow a divergence in each place.
    fits = {"loss": (9, 4), "reward": (8, 1), "both": (7, 0)}[usage][samples != "logprob"]
    assert (verdicts.count("fits"), verdicts.count("not_asked")) == (fits, 0), verdicts


@given(places.filter(lambda place: place[0] != "metric"), combinations, coefficients)
@settings(max_examples=40)
def test_random_combinations_against_exact_sums(place, terms, free):
    fn = written(place, terms, free)
    found = audit(fn, place).gradient
    assert found.verdict == "fits"
    agrees_with_enumeration(fn, *place, found.terms, seeds=(5,))


def test_the_exact_sum_tells_directions_apart():
    """What the tests above compare with is no rubber stamp."""
    right = {"kl_qp": 1.0}
    agrees_with_enumeration(reports.half_square, "loss", "logprob", right)
    for wrong in ({"kl_pq": 1.0}, {"kl_qp": -1.0}, {"kl_qp": 1.0001}, {}):
        with pytest.raises(AssertionError):
            agrees_with_enumeration(reports.half_square, "loss", "logprob", wrong)


STALE = [
    (reports.weighted_bregman, "loss", {"kl_qp": 1.0}),
    (reports.constant_weight_half_square, "loss", {"kl_qp": 1.0}),
    (lambda new, ref, old: (new - old).exp() * (new - ref), "loss", {"kl_qp": 1.0}),
    (
        lambda new, ref, old: (new - old).exp().detach() * reports.bregman(new, ref),
        "loss",
        {"kl_pq": 1.0},
    ),
    (lambda new, ref, old: (new - old).exp().detach() * (new - ref), "reward", {"kl_qp": 1.0}),
    (lambda new, ref, old: (new - old).exp() * reports.upside_down(new, ref), "loss", None),
    (reports.weighted_half_square, "loss", None),
    (reports.stale_half_square, "loss", None),
    (reports.stale_bregman, "loss", None),
]


@pytest.mark.parametrize(("fn", "usage", "terms"), STALE)
def test_stale_samples_against_exact_sums(fn, usage, terms):
    """q is the policy once its weight corrects for the law that was sampled."""
    found = kllab.audit(fn, usage=usage, samples="old_logprob").gradient
    if terms is not None:
        assert (found.verdict, set(found.terms)) == ("fits", set(terms))
        assert found.terms == pytest.approx(terms, abs=1e-9)
    if found.verdict == "fits":
        for seed in range(3):
            logits, ref, old = models(seed)
            got = expected_gradient(fn, logits, ref, usage=usage, sampled=old.exp(), old=old)
            want = gradient_of(found.terms, logits, ref.exp(), policy="q")
            assert torch.allclose(got, want, rtol=0, atol=1e-8), seed


# What is weighted by w = new/old, and whether w is differentiated: then the whole of E_new[h] is.
WEIGHTED = {
    ("metric", True): (VALUE, torch.expm1),
    ("loss", True): (VALUE, torch.expm1),
    ("loss", False): (LOSS, lambda l: l),
    ("reward", False): (WEIGHT, torch.ones_like),
}


@given(st.sampled_from(sorted(WEIGHTED)), combinations, coefficients)
@settings(max_examples=40)
def test_random_combinations_on_stale_samples(place, terms, free):
    parts, besides = WEIGHTED[place]

    def fn(logprob, ref_logprob, old_logprob):
        l, w = ref_logprob - logprob, (logprob - old_logprob).exp()
        return (w if place[1] else w.detach()) * (combined(parts, terms, l) + free * besides(l))

    usage, want = place[0], one_name(terms)
    report = kllab.audit(fn, usage=usage, samples="old_logprob")
    found = judged(report, place)
    assert (found.verdict, set(found.terms)) == ("fits", set(want))
    assert found.terms == pytest.approx(want, abs=1e-6)
    assert (found.q, found.p) == ("logprob", "ref_logprob")
    logits, ref, old = models(3)
    if usage == "metric":
        mean = float((old.exp() * fn(logits.log_softmax(-1), ref, old)).sum())
        laws = logits.softmax(-1), ref.exp()
        exact = math.fsum(c * float(DIVERGENCE[name](*laws)) for name, c in terms.items())
        assert mean == pytest.approx(exact, rel=1e-9, abs=1e-12)
    else:
        got = expected_gradient(fn, logits, ref, usage=usage, sampled=old.exp(), old=old)
        exact = gradient_of(terms, logits, ref.exp(), policy="q")
        assert torch.allclose(got, exact, rtol=0, atol=1e-8 * max(1, float(exact.abs().max())))


@given(combinations, coefficients)
@settings(max_examples=10)
def test_a_forgotten_weight_is_no_certainty(terms, free):
    def fn(logprob, ref_logprob, old_logprob):
        l = ref_logprob - logprob
        return combined(VALUE, terms, l) + free * torch.expm1(l)

    report = kllab.audit(fn, samples="old_logprob")
    assert report.value.verdict == "unknown"
    assert "off_policy" in {finding.code for finding in report.findings}


@pytest.mark.parametrize("usage", ["loss", "reward"])
def test_a_law_that_does_not_move_names_no_gradient(usage):
    """old/ref is the weight of χ²(old‖ref), of which no part moves with the policy."""

    def fn(logprob, ref_logprob, old_logprob):
        push = logprob - logprob.detach() if usage == "loss" else 1
        return (old_logprob - ref_logprob).exp() * push

    gradient = kllab.audit(fn, usage=usage, samples="old_logprob").gradient
    assert (gradient.verdict, gradient.terms) == ("unknown", {})


def test_what_depends_on_a_third_law_says_so():
    fn = reports.weighted_bregman
    assert "old_logprob" in str(kllab.audit(fn, usage="loss", samples="logprob"))
    report = kllab.audit(fn, usage="loss", samples="ref_logprob")
    assert (report.value.verdict, report.gradient.verdict) == ("unknown", "unknown")


# --- values against exact sums -----------------------------------------------------------------


@given(st.sampled_from(["logprob", "ref_logprob"]), combinations, coefficients)
@settings(max_examples=25)
def test_values_against_exact_sums(samples, terms, free):
    """Σ q h is Σ c D, on a vocabulary that the audit never saw."""
    fn = written(("metric", samples), terms, free)
    found = kllab.audit(fn, samples=samples).value
    logits, ref, _ = models(11)
    logprob = logits.log_softmax(-1)
    q, p = (logprob.exp(), ref.exp()) if samples == "logprob" else (ref.exp(), logprob.exp())
    mean = float((q * fn(logprob, ref)).sum())
    want = math.fsum(c * float(DIVERGENCE[name](q, p)) for name, c in found.terms.items())
    assert mean == pytest.approx(want, rel=1e-6, abs=1e-8)
