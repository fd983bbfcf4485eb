"""Where a function is cut, overflows or loses digits, and how its tokens are put together."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

import kllab
from audit import reports
from audit.reports import bregman, half_square, log_ratio, upside_down


def finding(report, code):
    (found,) = [f for f in report.findings if f.code == code]
    return found


def codes(report):
    return {f.code for f in report.findings}


# --- clamps ------------------------------------------------------------------------------------


@given(st.floats(3.1, 45), st.floats(3.1, 45))
@settings(max_examples=25)
def test_clamps_far_out_are_found(below, above):
    """Beyond what is fitted; the terms are those of the part between."""

    def fn(logprob, ref_logprob):
        return log_ratio(logprob, ref_logprob).clamp(-above, below)

    report = kllab.audit(fn, usage="metric", claim="kl_qp")
    assert report.value.terms == {"kl_qp": 1.0}
    assert report.value.clamps == pytest.approx((-below, above), abs=0.01)
    assert "clamp_value" in codes(report)


@given(st.floats(0.5, 30))
@settings(max_examples=20)
def test_a_clamp_on_the_result_is_found_where_it_acts(top):
    """k3 = top on either side, by root finding."""
    h = lambda l: math.expm1(l) - l - top  # noqa: E731
    low, high = brentq(h, -top - 2, 0), brentq(h, 0, math.log(top + 2) + 2)
    report = kllab.audit(lambda a, b: bregman(a, b).clamp(max=top), usage="loss", claim="kl_pq")
    assert report.value.clamps == pytest.approx((low, high), abs=1e-3)
    assert report.gradient.clamps == pytest.approx((low, high), abs=1e-3)
    assert {"clamp_value", "clamp_gradient"} <= codes(report)


def test_a_clamp_that_never_binds_is_none():
    report = kllab.audit(lambda a, b: bregman(a, b).clamp(min=-10), claim="kl_qp")
    assert report.value.clamps == (-math.inf, math.inf)
    assert "clamp_value" not in codes(report)


def test_what_a_clamp_costs():
    """q = (.9999, .0001), p = (.9, .1): k3 of the rare token is 992, cut at 10."""
    report = kllab.audit(reports.clamped_after_exp, claim="kl_qp")
    case = report.cases["dropped token"]
    l = [math.log(0.9 / 0.9999), math.log(0.1 / 0.0001)]
    k3 = [math.expm1(x) - x for x in l]
    assert k3[1] > 992
    assert case["mean"] == pytest.approx(0.9999 * k3[0] + 0.0001 * 10, rel=1e-12)
    assert case["divergence"] == pytest.approx(0.9999 * k3[0] + 0.0001 * k3[1], rel=1e-9)


def test_a_clamp_that_passes_gradients_cuts_the_value_only():
    def fn(logprob, ref_logprob):
        k1 = log_ratio(logprob, ref_logprob)
        return half_square(logprob, ref_logprob) + (k1.clamp(-2, 2) - k1).detach()

    report = kllab.audit(fn, usage="loss", claim="kl_qp")
    assert report.gradient.terms == {"kl_qp": 1.0}
    assert "clamp_gradient" not in codes(report)


# --- overflow ----------------------------------------------------------------------------------

LARGEST = {
    "float32": math.log(torch.finfo(torch.float32).max),
    "bfloat16": math.log(torch.finfo(torch.bfloat16).max),
    "float16": math.log(torch.finfo(torch.float16).max),
}


@pytest.mark.parametrize(("fn", "sign"), [(bregman, 1), (upside_down, -1)])
def test_the_log_ratio_at_which_exp_overflows(fn, sign):
    numbers = finding(kllab.audit(fn), "overflow").numbers
    assert set(numbers) == set(LARGEST)
    for dtype, at in LARGEST.items():
        assert numbers[dtype] == pytest.approx(sign * at, rel=torch.finfo(torch.bfloat16).eps)


@pytest.mark.parametrize(
    ("fn", "usage"), [(log_ratio, "metric"), (half_square, "loss"), (reports.absolute, "metric")]
)
def test_what_has_no_exponential_does_not_overflow(fn, usage):
    assert "overflow" not in codes(kllab.audit(fn, usage=usage))


def test_the_gradient_is_not_a_number_where_the_value_is_clamped():
    """Zero times infinity, from where exp overflows."""
    report = kllab.audit(reports.clamped_after_exp, usage="loss")
    numbers = finding(report, "nan_gradient").numbers
    assert numbers["float32"] == pytest.approx(LARGEST["float32"], abs=0.01)
    leaf = torch.tensor([-numbers["float32"] - 0.1], requires_grad=True)
    reports.clamped_after_exp(leaf, torch.zeros(1)).sum().backward()
    assert leaf.grad.isnan().all()
    leaf = torch.tensor([-numbers["float32"] + 0.1], requires_grad=True)
    reports.clamped_after_exp(leaf, torch.zeros(1)).sum().backward()
    assert leaf.grad.isfinite().all()


# --- digits ------------------------------------------------------------------------------------


def naive(logprob, ref_logprob):
    d = ref_logprob - logprob
    return d.exp() - 1 - d


@pytest.mark.parametrize("fn", [naive, reports.as_printed_in_float32])
def test_digits_lost_near_zero(fn):
    """At log r = 1e-4 k3 is 5e-9, and float32 near 1 has steps of 1e-7."""
    assert "cancellation" in codes(kllab.audit(fn, claim="kl_qp"))
    d = torch.tensor([1e-4])
    assert abs(float(fn(-d, torch.zeros(1))) / (float(d) ** 2 / 2) - 1) > 0.1


@pytest.mark.parametrize(
    "fn", [bregman, log_ratio, half_square, lambda a, b: bregman(a.float(), b)]
)
def test_digits_kept_near_zero(fn):
    assert "cancellation" not in codes(kllab.audit(fn))


# --- signs and constants -----------------------------------------------------------------------


@given(st.floats(0.01, 5).flatmap(lambda c: st.sampled_from([c, -c])))
@settings(max_examples=15)
def test_a_constant_is_no_part_of_the_terms_and_is_found(constant):
    report = kllab.audit(lambda a, b: bregman(a, b) + constant, claim="kl_qp")
    assert report.value.terms == {"kl_qp": 1.0}
    assert finding(report, "constant").numbers["value"] == pytest.approx(constant, rel=1e-9)
    assert report.agrees is False


@pytest.mark.parametrize(
    ("usage", "samples", "free"),
    [
        ("metric", "logprob", {"r - 1", "constant"}),
        ("loss", "logprob", {"constant"}),
        ("loss", "ref_logprob", {"r"}),
    ],
)
def test_what_may_be_added_without_changing_a_mean(usage, samples, free):
    """The control variate of a value; under a score of q a constant, of p a multiple of r."""
    report = kllab.audit(bregman, usage=usage, samples=samples)
    assert set(report.value.free if usage == "metric" else report.gradient.free) == free


def test_a_cut_in_a_log_probability_is_no_cut_in_the_ratio():
    report = kllab.audit(lambda a, b: torch.where(a > -10, bregman(a, b), 0.0), claim="kl_qp")
    assert "not_difference" in codes(report)
    assert "clamp_value" not in codes(report)


def test_another_function_beyond_what_is_fitted_is_seen():
    """k3 up to 3.5 nats and k2 beyond: on a dropped token the mean is no KL."""

    def fn(logprob, ref_logprob):
        near = log_ratio(logprob, ref_logprob).abs() < 3.5
        return torch.where(near, bregman(logprob, ref_logprob), half_square(logprob, ref_logprob))

    assert "bias" in codes(kllab.audit(fn, claim="kl_qp"))
    assert "bias" not in codes(kllab.audit(bregman, claim="kl_qp"))


def test_a_constant_changes_no_gradient():
    for usage, fn in (("loss", half_square), ("reward", log_ratio), ("both", bregman)):
        report = kllab.audit(lambda a, b, fn=fn: fn(a, b) + 3, usage=usage, claim="kl_qp")
        assert report.gradient.terms == {"kl_qp": 1.0}
        assert report.agrees is True


# --- tokens put together -----------------------------------------------------------------------


def token_mean(x, m):
    return (x * m).sum() / m.sum()


def seq_sum(x, m):
    return (x * m).sum(-1).mean()


def seq_mean_token_mean(x, m):
    return ((x * m).sum(-1) / m.sum(-1)).mean()


def padded_mean(x, m):
    return (x * m).mean()


AGGREGATIONS = [token_mean, seq_sum, seq_mean_token_mean, padded_mean]


def put_together(value, how, *, clean=True):
    def fn(logprob, ref_logprob, mask):
        keep = mask.bool()
        if clean:
            logprob, ref_logprob = (torch.where(keep, x, 0.0) for x in (logprob, ref_logprob))
        return how(value(logprob, ref_logprob), mask.to(logprob.dtype))

    return fn


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("clean", [True, False])
def test_which_mean_it_is(how, clean):
    report = kllab.audit(put_together(bregman, how, clean=clean), usage="loss", claim="kl_pq")
    assert report.aggregation == how.__name__
    assert (report.value.terms, report.gradient.terms) == ({"kl_qp": 1.0}, {"kl_pq": 1.0})
    assert ("padding_leak" in codes(report)) == (not clean)
    assert ("padding_in_mean" in codes(report)) == (how is padded_mean)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_the_printed_table_of_means(how):
    """10 tokens of .2 and 100 of .02: .0364, 2.0, .11, .02."""
    x, m = torch.zeros(2, 100), torch.zeros(2, 100)
    x[0, :10], x[1], m[0, :10], m[1] = 0.2, 0.02, 1.0, 1.0
    printed = dict(zip(AGGREGATIONS, (0.0364, 2.0, 0.11, 0.02), strict=True))
    assert float(how(x, m)) == pytest.approx(printed[how], abs=6e-5)
    if how is not padded_mean:
        keep = m.bool()
        assert float(kllab.sequences.aggregate(x, keep, how=how.__name__)) == pytest.approx(
            float(how(x, m)), rel=1e-6
        )


@given(st.floats(0.1, 9), st.sampled_from(AGGREGATIONS))
@settings(max_examples=12)
def test_a_factor_belongs_to_the_terms(factor, how):
    assume(abs(factor - 1) > 1e-3)
    report = kllab.audit(
        put_together(lambda a, b: factor * bregman(a, b), how), usage="metric", claim="kl_qp"
    )
    assert report.aggregation == how.__name__
    assert report.value.terms == {"kl_qp": pytest.approx(factor, rel=1e-9)}
    assert report.agrees is False


def first_left_out(a, b, mask):
    return (bregman(a, b) * mask)[:, 1:].sum() / mask[:, 1:].sum()


def mask_one_late(a, b, mask):
    return (bregman(a, b)[:, 1:] * mask[:, :-1]).sum() / mask[:, :-1].sum()


def later_tokens_weigh_more(a, b, mask):
    weight = mask * torch.arange(1, mask.shape[-1] + 1)
    return (bregman(a, b) * weight).sum() / weight.sum()


def mean_of_medians(a, b, mask):
    return (bregman(a, b) * mask).median(-1).values.mean()


def of_the_whole_sequence(a, b, mask):
    """k3 of the sequences' ratio: another estimator, and no mean of tokens."""
    return bregman((a * mask).sum(-1), (b * mask).sum(-1)).mean()


def geometric(a, b, mask):
    """The exponential of a mean, less one."""
    return torch.expm1(2 * (log_ratio(b, a) * mask).sum(-1) / mask.sum(-1)).mean()


@pytest.mark.parametrize(
    "fn",
    [
        first_left_out,
        mask_one_late,
        later_tokens_weigh_more,
        mean_of_medians,
        of_the_whole_sequence,
        geometric,
    ],
)
def test_what_is_no_known_mean_is_not_judged(fn):
    names = ("logprob", "ref_logprob", "mask")
    report = kllab.audit(fn, names=names, claim="kl_qp")
    assert "aggregation" in codes(report)
    assert report.aggregation is None
    assert (report.value.verdict, report.agrees) == ("unknown", None)


@pytest.mark.parametrize(
    ("fn", "how"),
    [
        (lambda a, b: bregman(a, b).mean(), "mean"),
        (lambda a, b: bregman(a, b).sum(), "sum"),
        (lambda a, b: bregman(a, b).sum(-1).mean(), "seq_sum"),
        (bregman, "token"),
    ],
)
def test_without_a_mask(fn, how):
    report = kllab.audit(fn, usage="loss", claim="kl_pq")
    assert (report.aggregation, report.agrees) == (how, True)


def test_nothing_kept():
    """A denominator of zero is said to give NaN, of the batch or of one sequence."""

    def guarded(x, m):
        return (x * m).sum() / m.sum().clamp(min=1)

    said = {
        how: kllab.audit(put_together(bregman, how)).nothing_kept
        for how in (token_mean, guarded, seq_mean_token_mean, seq_sum)
    }
    assert said[token_mean] == "nan, one empty sequence: finite"
    assert said[seq_mean_token_mean] == "nan, one empty sequence: nan"
    assert said[guarded] == said[seq_sum] == "finite, one empty sequence: finite"


# --- what is recommended -----------------------------------------------------------------------

PENALTIES = [
    (kllab.penalties.k1_in_reward, "reward", "logprob"),
    (kllab.penalties.k2_in_loss, "loss", "logprob"),
    (kllab.penalties.k3_with_k2_gradient, "loss", "logprob"),
    (kllab.penalties.weighted_k3, "loss", "old_logprob"),
]


@pytest.mark.parametrize(("fn", "usage", "samples"), PENALTIES)
@pytest.mark.parametrize("how", [None, "token_mean", "seq_sum"])
def test_what_findings_recommend_has_none(fn, usage, samples, how):
    def called(logprob, ref_logprob, old_logprob, mask):
        laws = [logprob, ref_logprob] + [old_logprob] * (samples == "old_logprob")
        return fn(*laws, mask=mask, how=how)

    report = kllab.audit(called, usage=usage, samples=samples, claim="kl_qp")
    assert report.gradient.terms == {"kl_qp": 1.0}
    assert report.agrees is True
    # As a reward it is a constant, and is meant to be.
    assert codes(report) <= {"no_grad"} if usage == "reward" else not codes(report)
    assert report.aggregation == (how or "token")


@pytest.mark.parametrize("name", sorted(kllab.DIVERGENCES))
def test_each_estimator_is_what_it_says(name):
    report = kllab.audit(kllab.estimators.bregman(name), claim=name)
    assert report.value.terms == {name: 1.0}
    assert report.agrees is True
    assert codes(report) <= {"overflow"}
