"""The audit's parts, one by one: clamps, numerics, masks, roles, signs, the report.

What each function should be is a closed form or an exact sum that is written here.
"""

import functools
import json
import math
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from scipy.optimize import brentq

import kllab
from kllab import penalties
from kllab._findings import CODES, advice
from kllab._probe import bind
from kllab.auditor import CASES, GUARD

audit = kllab.audit
float64 = functools.partial(torch.tensor, dtype=torch.float64)


def k1(logprob, ref_logprob):
    return logprob - ref_logprob


def k2(logprob, ref_logprob):
    return (logprob - ref_logprob) ** 2 / 2


def k3(logprob, ref_logprob):
    d = ref_logprob - logprob
    return torch.expm1(d) - d


def flipped_k3(logprob, ref_logprob):
    return k3(ref_logprob, logprob)


def of_log_r(h):
    """x ~ logprob."""
    return lambda logprob, ref_logprob: h(ref_logprob - logprob)


def numbers(report, code):
    (found,) = [f for f in report.findings if f.code == code]
    return found.numbers


# --- the worked example: q = (.7, .2, .1), p = (.4, .4, .2) --------------------------------------


@pytest.mark.parametrize(
    ("fn", "usage", "value", "gradient"),
    [
        (k1, "loss", {"kl_qp": 1.0}, "zero"),
        (k2, "loss", "unknown", {"kl_qp": 1.0}),
        (k3, "loss", {"kl_qp": 1.0}, {"kl_pq": 1.0}),
        (flipped_k3, "loss", {"chi2_qp": 1.0, "kl_qp": -1.0}, {"chi2_qp": 0.5}),
        (of_log_r(torch.abs), "loss", "unknown", {"tv": 2.0}),
        (k1, "reward", {"kl_qp": 1.0}, {"kl_qp": 1.0}),
        (k2, "reward", "unknown", "unknown"),
        (k3, "reward", {"kl_qp": 1.0}, {"kl_qp": 1.0, "kl_pq": -1.0}),
        (k3, "both", {"kl_qp": 1.0}, {"kl_qp": 1.0}),
        (k3, "metric", {"kl_qp": 1.0}, "not_asked"),
    ],
)
def test_the_dictionary(fn, usage, value, gradient):
    report = audit(fn, usage=usage)
    for part, want in ((report.value, value), (report.gradient, gradient)):
        assert (part.terms or part.verdict) == want
        assert part.region == (-3.0, 3.0) or part.verdict == "not_asked"
        assert (part.q, part.p) == ("logprob", "ref_logprob") or part.verdict == "not_asked"


@pytest.mark.parametrize(
    ("fn", "mean"), [(k1, 0.18379), (k2, 0.18168), (k3, 0.18379), (flipped_k3, 0.19121)]
)
def test_means_are_exact_sums(fn, mean):
    report = audit(fn, claim="chi2_qp")
    assert report.cases["three tokens"] == pytest.approx(
        {"mean": mean, "divergence": 0.375}, abs=5e-6
    )
    assert set(report.cases) == set(CASES)
    assert numbers(report, "bias")["three tokens"] == report.cases["three tokens"]


def test_rollout_metrics():
    """(train, rollout), samples from the second: KL(rollout‖train), by both estimators."""
    first = audit(lambda train, rollout: -(train - rollout).mean(), samples="ref_logprob")

    def second_metric(logprob, ref_logprob):
        log_rho = logprob - ref_logprob
        return (log_rho.exp() - 1 - log_rho).mean()

    second = audit(second_metric, samples="ref_logprob")
    for report in (first, second):
        assert report.value.terms == {"kl_qp": 1.0}
        assert (report.value.q, report.value.p) == ("ref_logprob", "logprob")
        assert (report.aggregation, report.exit_code) == ("mean", 0)


# --- gradients where p moves, or a weight does ---------------------------------------------------

Q, P, OLD = float64([0.7, 0.2, 0.1]), float64([0.4, 0.4, 0.2]), float64([0.5, 0.3, 0.2])
BY_SUM = {
    "kl_qp": lambda q, p: (q * (q / p).log()).sum(),
    "kl_pq": lambda q, p: (p * (p / q).log()).sum(),
    "chi2_qp": lambda q, p: (q * q / p).sum() - 1,
    "chi2_pq": lambda q, p: (p * p / q).sum() - 1,
    "hellinger2": lambda q, p: ((q.sqrt() - p.sqrt()) ** 2).sum(),
    "tv": lambda q, p: (q - p).abs().sum() / 2,
}


def gradient_by_sum(terms, sampled, moved, *, moves):
    """∇ Σ c D(q, p) by the logits of the law that moves, by autograd through the exact sum."""
    logits = moved.log().clone().requires_grad_()
    law = logits.softmax(-1)
    q, p = (law, sampled) if moves == "q" else (sampled, law)
    total = sum(c * BY_SUM[name](q, p) for name, c in terms.items())
    return torch.autograd.grad(total, logits)[0]


def expected_by_sum(fn, sampled, policy, *others):
    """E_sampled[∇ fn], by the logits of the policy; the samples' law is held."""
    logits = policy.log().clone().requires_grad_()
    mean = (sampled * fn(logits.log_softmax(-1), *others)).sum()
    return torch.autograd.grad(mean, logits)[0]


@pytest.mark.parametrize(
    ("fn", "terms"),
    [
        (lambda new, old: old - new, {"kl_qp": 1.0}),
        (lambda new, old: k3(old, new), {"kl_qp": 1.0}),
        (lambda new, old: (new - old).exp() * (new - old), {"kl_pq": 1.0}),
        (lambda new, old: torch.expm1(2 * (new - old)), {"chi2_pq": 1.0}),
        (lambda new, old: torch.expm1(old - new), {"chi2_qp": 1.0}),
        (lambda new, old: torch.expm1((new - old) / 2) ** 2, {"hellinger2": 1.0}),
        (lambda new, old: torch.expm1(new - old).abs() / 2, {"tv": 1.0}),
        (lambda new, old: k2(new, old), None),
        (lambda new, old: (new - old).exp(), {}),
    ],
)
@pytest.mark.parametrize("samples", ["ref_logprob", "old_logprob"])
def test_p_moves(fn, terms, samples):
    """The weight that D_f puts on the score of p is r f', up to c·r."""
    part = audit(fn, usage="loss", samples=samples).gradient
    if terms is None:
        assert part.verdict == "unknown"
        return
    assert (part.verdict, part.terms) == ("fits" if terms else "zero", terms)
    got = expected_by_sum(fn, P, Q, P.log())
    want = gradient_by_sum(terms, P, Q, moves="p") if terms else torch.zeros(3)
    assert torch.allclose(got, want.double(), atol=1e-12)


def weight(new, old):
    return (new - old).exp()


@pytest.mark.parametrize(
    ("fn", "terms"),
    [
        (
            lambda logprob, ref_logprob, old: weight(logprob, old) * k3(logprob, ref_logprob),
            "kl_qp",
        ),
        (lambda logprob, ref, old: weight(logprob, old) * k1(logprob, ref), "kl_qp"),
        (lambda logprob, ref, old: weight(logprob, old).detach() * k2(logprob, ref), "kl_qp"),
        (lambda logprob, ref, old: weight(logprob, old).detach() * k3(logprob, ref), "kl_pq"),
        (lambda logprob, ref, old: weight(logprob, old) * k2(logprob, ref), None),
    ],
)
def test_a_weight_moves_the_samples(fn, terms):
    report = audit(fn, usage="loss", samples="old_logprob")
    assert report.roles == ("logprob", "ref_logprob", "old_logprob")
    if terms is None:
        assert report.gradient.verdict == "unknown"
        assert report.codes == ["unknown"] or "off_policy" not in report.codes
        return
    assert report.gradient.terms == {terms: 1.0}
    assert (report.gradient.q, report.gradient.p) == ("logprob", "ref_logprob")
    got = expected_by_sum(fn, OLD, Q, P.log(), OLD.log())
    assert torch.allclose(got, gradient_by_sum({terms: 1.0}, P, Q, moves="q"), atol=1e-12)


def test_what_leaves_out_one_of_three_is_judged_by_the_other_two():
    approx = audit(lambda new, ref, old: old - new, usage="loss", samples="old_logprob")
    assert (approx.gradient.terms, approx.gradient.q) == ({"kl_qp": 1.0}, "old_logprob")
    assert approx.gradient.p == "logprob"
    frozen = audit(lambda new, ref, old: old - ref, usage="loss", samples="old_logprob")
    assert (frozen.value.terms, frozen.value.p) == ({"kl_qp": 1.0}, "ref_logprob")
    assert (frozen.gradient.verdict, frozen.codes) == ("zero", ["no_grad"])


def test_stale_samples():
    """Plain k3 has mean .2189 under old = (.5, .3, .2), and KL is .1838."""
    report = audit(k3, usage="metric", samples="old_logprob", claim="kl_qp")
    assert (report.value.verdict, report.exit_code) == ("unknown", 2)
    assert numbers(report, "off_policy") == pytest.approx(
        {"on_old_samples": 0.2189, "on_policy": 0.18379}, abs=5e-5
    )
    assert "kl_qp" in report.findings[0].sentence
    on_policy = lambda logprob, ref_logprob, old_logprob: k3(logprob, ref_logprob)  # noqa: E731
    assert audit(on_policy, samples="logprob", claim="kl_qp").agrees


def test_on_policy_a_weight_of_one_still_counts():
    fn = lambda logprob, ref_logprob: weight(logprob, logprob.detach()) * k3(logprob, ref_logprob)  # noqa: E731
    report = audit(fn, usage="loss", claim="kl_qp")
    assert (report.gradient.terms, report.detached) == ({"kl_qp": 1.0}, True)


# --- clamps --------------------------------------------------------------------------------------

TEN = brentq(lambda l: math.exp(l) - 1 - l - 10, 1, 4, xtol=1e-14)
LOW = brentq(lambda l: math.exp(l) - 1 - l - 10, -12, -10, xtol=1e-14)
INF = math.inf


@pytest.mark.parametrize(
    ("h", "value", "gradient"),
    [
        (lambda l: torch.expm1(l) - l, (-INF, INF), (-INF, INF)),
        (lambda l: (torch.expm1(l) - l).clamp(-10, 10), (LOW, TEN), (LOW, TEN)),
        (lambda l: torch.expm1(l.clamp(-20, 20)) - l.clamp(-20, 20), (-20, 20), (-20, 20)),
        (lambda l: (l**2 / 2).clamp(max=50), (-10, 10), (-10, 10)),
        (lambda l: -l.clamp(max=0.3), (-INF, 0.3), (-INF, 0.3)),
        (lambda l: l.clamp(-2.5, 1.5).detach() + (l - l.detach()), (-2.5, 1.5), (-INF, INF)),
        (lambda l: l.clamp(-70, 70) ** 2 / 2, (-70, 70), (-70, 70)),
        # These level off by themselves.
        (lambda l: torch.expm1(l / 2) ** 2, (-INF, INF), (-INF, INF)),
        (lambda l: torch.expm1(l).abs() / 2, (-INF, INF), (-INF, INF)),
        (torch.sigmoid, (-INF, INF), (-INF, INF)),
        (torch.relu, (-INF, INF), (-INF, INF)),
    ],
)
@pytest.mark.parametrize("aggregate", [False, True])
def test_where_it_is_cut(h, value, gradient, aggregate):
    one = of_log_r(h)
    fn = (lambda logprob, ref_logprob: one(logprob, ref_logprob).mean()) if aggregate else one
    report = audit(fn, usage="loss")
    assert report.value.clamps == pytest.approx(value, abs=1e-9)
    assert report.gradient.clamps == pytest.approx(gradient, abs=1e-9)
    for part, (low, high) in ((report.value, value), (report.gradient, gradient)):
        if low > -3 or high < 3:
            assert part.region == pytest.approx((max(low, -3), min(high, 3)), abs=1e-9)
    for kind, ends in (("value", value), ("gradient", gradient)):
        assert (f"clamp_{kind}" in report.codes) == (min(map(abs, ends)) < GUARD)


def test_what_a_clamp_costs():
    """k3 cut at 10, q = (.9999, .0001), p = (.9, .1): .00635 is left of .10456."""
    fn = of_log_r(lambda l: (torch.expm1(l) - l).clamp(-10, 10))
    report = audit(fn, usage="loss")
    kl = 0.9999 * math.log(0.9999 / 0.9) + 0.0001 * math.log(0.0001 / 0.1)
    r = 0.9 / 0.9999
    mean = 0.9999 * (r - 1 - math.log(r)) + 0.0001 * 10
    assert report.cases["dropped token"]["mean"] == pytest.approx(mean, rel=1e-12)
    cost = numbers(report, "clamp_value")["cost"]
    assert cost == pytest.approx({"dropped token": 1 - mean / kl}, rel=1e-9)
    assert numbers(report, "clamp_value")["low"] == pytest.approx(LOW)
    # The gradient of KL(p‖q) is q − p = ±.0999; what is left of it, q(1 − q)(1 − r) for the head.
    left = 0.9999 * 0.0001 * (1 - r)
    cost = numbers(report, "clamp_gradient")["cost"]
    assert cost == pytest.approx({"dropped token": 1 - left / 0.0999}, rel=1e-9)
    assert "takes 93.9 % of it away" in str(report)
    wide = audit(of_log_r(lambda l: -l.clamp(-20, 20)))
    assert numbers(wide, "clamp_value")["cost"] == {}
    assert "costs nothing" in wide.findings[0].sentence


def test_float32_is_no_clamp():
    report = audit(
        lambda logprob, ref_logprob: logprob.float() - ref_logprob.float(), claim="kl_qp"
    )
    assert (report.codes, report.value.terms) == ([], {"kl_qp": 1.0})


# --- numerics ------------------------------------------------------------------------------------

LARGEST = {n: math.log(torch.finfo(getattr(torch, n)).max) for n in ("float32", "float16")}


@pytest.mark.parametrize(("factor", "sign"), [(1, 1), (2, 1), (1, -1)])
def test_overflow(factor, sign):
    report = audit(of_log_r(lambda l: torch.expm1(factor * sign * l)), usage="metric")
    got = numbers(report, "overflow")
    for dtype, largest in LARGEST.items():
        assert sign * got[dtype] == pytest.approx(largest / factor, rel=2e-3)
    assert abs(got["bfloat16"]) == pytest.approx(LARGEST["float32"] / factor, abs=0.5)


def test_a_clamp_before_exp_is_enough_where_it_is_low_enough():
    for bound, dtypes in ((20, {"float16"}), (11, set())):
        fn = of_log_r(lambda l, b=bound: torch.expm1(l.clamp(-b, b)) - l.clamp(-b, b))
        report = audit(fn, usage="metric")
        assert set(numbers(report, "overflow") if dtypes else {}) == dtypes
        assert ("overflow" in report.codes) == bool(dtypes)


@pytest.mark.parametrize("usage", ["loss", "both"])
def test_zero_times_infinity(usage):
    after = audit(of_log_r(lambda l: (torch.expm1(l) - l).clamp(-10, 10)), usage=usage)
    got = numbers(after, "nan_gradient")
    assert got["float32"] == pytest.approx(LARGEST["float32"], rel=2e-3)
    assert got["float16"] == pytest.approx(LARGEST["float16"], rel=2e-3)
    # A where that hides the value hides no gradient.
    hidden = audit(of_log_r(lambda l: torch.where(l < 5, torch.expm1(l), 0.0)), usage=usage)
    assert "nan_gradient" in hidden.codes
    at_one = audit(of_log_r(lambda l: (l * l).sqrt()), usage=usage)
    assert set(numbers(at_one, "nan_gradient").values()) == {0.0}


def test_a_metric_has_no_backward_pass():
    report = audit(of_log_r(lambda l: (torch.expm1(l) - l).clamp(-10, 10)))
    assert not {"nan_gradient", "clamp_gradient"} & set(report.codes)


def test_cancellation():
    plain = audit(of_log_r(lambda l: l.exp() - 1 - l))
    lost = numbers(plain, "cancellation")
    assert all(abs(float(at)) < 2e-3 and error > 0.1 for at, error in lost.items())
    # e^x − 1 − x is x²/2 = 2.9e-11 at 2^-17, and float32 rounds e^x to 2^-23 or so.
    assert lost["7.6e-06"] > 0.9
    assert "cancellation" not in audit(of_log_r(lambda l: torch.expm1(l) - l)).codes
    double = audit(of_log_r(lambda l: l.double().exp() - 1 - l.double()))
    assert "cancellation" not in double.codes


# --- batches -------------------------------------------------------------------------------------


def masked(how, clean=True):
    def fn(logprob, ref_logprob, mask):
        keep = mask.bool()
        if clean:
            logprob, ref_logprob = (torch.where(keep, x, 0.0) for x in (logprob, ref_logprob))
        v, n = k1(logprob, ref_logprob) * mask, mask.sum(-1)
        return {
            "token_mean": lambda: v.sum() / mask.sum(),
            "seq_sum": lambda: v.sum(-1).mean(),
            "seq_mean_token_mean": lambda: (v.sum(-1) / n).mean(),
            "padded_mean": lambda: v.mean(),
            "sum": lambda: v.sum(),
            "per sequence": lambda: v.sum(-1),
            "per sequence mean": lambda: v.sum(-1) / n,
            "root mean square": lambda: (v.square().sum() / mask.sum()).sqrt(),
            "mean of a square": lambda: (v.sum() / mask.sum()) ** 2,
            "largest": lambda: v.max(),
            "mean and a half": lambda: 1.5 * v.sum() / mask.sum(),
            "token": lambda: v,
        }[how]()

    return fn


@pytest.mark.parametrize(
    ("written", "how"),
    [
        *((how, how) for how in kllab.sequences.HOW),
        ("sum", "sum"),
        ("token", "token"),
        ("per sequence", "seq_sum"),
        ("per sequence mean", "seq_mean_token_mean"),
        ("root mean square", None),
        ("mean of a square", None),
        ("largest", None),
    ],
)
def test_aggregation(written, how):
    report = audit(masked(written), claim="kl_qp")
    assert report.aggregation == how
    assert ("aggregation" in report.codes) == (how is None)
    assert ("padding_in_mean" in report.codes) == (how == "padded_mean")
    assert report.value.terms == ({"kl_qp": 1.0} if how else {})
    assert "padding_leak" not in report.codes
    for dtype in (torch.bool, torch.int64):

        def strict(logprob, ref_logprob, mask, dtype=dtype):
            assert mask.dtype == dtype
            return masked(written)(logprob, ref_logprob, mask.double())

        assert audit(strict).aggregation == how


def test_a_factor_is_part_of_the_token():
    report = audit(masked("mean and a half"), claim="kl_qp")
    assert (report.aggregation, report.value.terms) == ("token_mean", {"kl_qp": 1.5})
    assert (report.exit_code, report.codes) == (1, ["not_the_claim", "bias"])


def test_without_a_mask():
    for fn, how in (
        (lambda a, b: k1(a, b).mean(), "mean"),
        (lambda a, b: k1(a, b).sum(), "sum"),
        (lambda a, b: k1(a, b).sum(-1).mean(), "seq_sum"),
        (lambda a, b: k1(a, b).sum(-1), "seq_sum"),
    ):
        report = audit(fn, usage="both")
        assert (report.aggregation, report.gradient.terms) == (how, {"kl_qp": 1.0})

    def flat(logprob, ref_logprob):
        assert logprob.ndim == 1
        return k1(logprob, ref_logprob).mean()

    assert audit(flat).aggregation == "mean"


def test_what_reaches_through_a_mask():
    product = audit(masked("token_mean", clean=False))
    assert numbers(product, "padding_leak") == {"pads": ["-inf", "NaN"]}
    late = audit(lambda logprob, ref_logprob, mask: (k3(logprob, ref_logprob) * mask).sum())
    assert numbers(late, "padding_leak")["pads"] == ["-inf", "-1e10", "NaN"]
    ignored = audit(lambda logprob, ref_logprob, mask: k1(logprob, ref_logprob).sum())
    assert numbers(ignored, "padding_leak")["pads"][0] == "other finite values"

    def hidden(logprob, ref_logprob, mask):
        """The value is clean, the gradient is 0 times infinity."""
        return torch.where(mask.bool(), k3(logprob, ref_logprob), 0.0).sum() / mask.sum()

    assert "padding_leak" not in audit(hidden).codes
    assert "padding_leak" in audit(hidden, usage="loss").codes


def test_what_stands_in_padding_could_stand_in_a_batch():
    """Log-probabilities, or something that is plainly none."""
    held = set()

    def spy(logprob, ref_logprob, old_logprob, mask):
        for name, x in (("log q", logprob), ("log p", ref_logprob), ("log mu", old_logprob)):
            held.update((name, float(v)) for v in x.detach()[mask == 0])
        ratio = (logprob - old_logprob).exp()
        kept = (ratio * (logprob - ref_logprob)).masked_fill(mask == 0, 0.0)
        return kept.sum() / mask.sum()

    assert "padding_leak" not in audit(spy).codes
    finite = {(name, v) for name, v in held if math.isfinite(v)}
    assert {name for name, _ in finite} == {"log q", "log p", "log mu"}
    assert max(v for _, v in finite) <= 0
    assert min(v for _, v in finite) < -1e9
    assert ("log p", -math.inf) in held
    assert ("log p", math.inf) not in held
    assert any(math.isnan(v) for _, v in held)


def test_when_nothing_is_kept():
    for how, said in (
        ("token_mean", "nan, one empty sequence: finite"),
        ("seq_mean_token_mean", "nan, one empty sequence: nan"),
        ("padded_mean", "finite, one empty sequence: finite"),
    ):
        report = audit(masked(how))
        assert report.nothing_kept == said
        assert f"with nothing kept: {said}" in str(report)
    fn = functools.partial(penalties.k2_in_loss, how="token_mean")
    assert audit(fn, usage="loss").nothing_kept == "raises, one empty sequence: finite"
    assert audit(k1).nothing_kept == ""


# --- the package's own penalties are what they say -----------------------------------------------


@pytest.mark.parametrize("how", [None, *kllab.sequences.HOW])
@pytest.mark.parametrize(
    ("fn", "usage", "samples"),
    [
        (penalties.k1_in_reward, "reward", "logprob"),
        (penalties.k2_in_loss, "loss", "logprob"),
        (penalties.k3_with_k2_gradient, "loss", "logprob"),
        (penalties.weighted_k3, "loss", "old_logprob"),
    ],
)
def test_what_is_advised_passes(fn, usage, samples, how):
    report = audit(functools.partial(fn, how=how), usage=usage, samples=samples, claim="kl_qp")
    assert report.agrees
    assert report.aggregation == (how or "token")
    assert not set(report.codes) - {"padding_in_mean", "overflow"}


def test_advice_names_things_that_exist():
    texts = [
        advice(code, usage, claim, moves_q=moves_q)
        for code in CODES
        for usage in ("metric", "loss", "reward", "both")
        for claim in ("kl_qp", "chi2_pq")
        for moves_q in (True, False)
    ]
    names = {name for text in texts for name in re.findall(r"kllab(?:\.\w+)+", text)}
    assert "kllab.penalties.k2_in_loss" in names
    for name in names:
        found = kllab
        for part in name.split(".")[1:]:
            found = getattr(found, part)
    assert all(texts)
    other = advice("wrong_direction", "loss", "kl_pq", moves_q=True)
    assert other == 'kllab.gradients.penalty_for("kl_pq", usage="loss")'
    assert audit(eval(other), usage="loss", claim="kl_pq").agrees


# --- signs and directions ------------------------------------------------------------------------


def test_wrong_signs():
    for fn, usage in ((lambda a, b: -k2(a, b), "loss"), (lambda a, b: -k1(a, b), "reward")):
        report = audit(fn, usage=usage, claim="kl_qp")
        assert numbers(report, "wrong_sign") == {"kl_qp": -1.0}
        assert (report.exit_code, audit(fn, usage=usage).exit_code) == (1, 1)
    assert audit(lambda a, b: b - a).codes == ["wrong_sign"]


def test_the_sign_of_what_has_no_name():
    """Exact gradients decide: −k2³ pushes away everywhere, k3 as a reward here and there."""
    away = audit(lambda a, b: -(k2(a, b) ** 3), usage="loss")
    assert away.gradient.verdict == "unknown"
    cosines = numbers(away, "wrong_sign")
    assert set(cosines) == set(CASES)
    assert max(cosines.values()) < 0
    back = audit(lambda a, b: k2(a, b) ** 3, usage="loss")
    assert back.codes == ["unknown", "overflow"]
    mixed = numbers(audit(k3, usage="reward"), "mixed_sign")
    # ∇KL(q‖p) − ∇KL(p‖q) = (.26308, −.17539, −.08769) − (.3, −.2, −.1): against both.
    g = float64([0.26308 - 0.3, 0.2 - 0.17539, 0.1 - 0.08769])
    want = max(
        float(g @ d / g.norm() / d.norm())
        for d in (float64([0.26308, -0.17539, -0.08769]), float64([0.3, -0.2, -0.1]))
    )
    assert mixed["three tokens"] == pytest.approx(want, abs=1e-3)
    assert min(mixed.values()) < 0 < max(mixed.values())


def test_upside_down():
    report = audit(flipped_k3, claim="kl_qp")
    assert numbers(report, "upside_down") == {"chi2_qp": 1.0, "kl_qp": -1.0}
    assert "bias" in report.codes
    square = audit(of_log_r(lambda l: torch.expm1(-l) ** 2), claim="chi2_pq")
    assert (square.value.verdict, "upside_down" in square.codes) == ("unknown", True)
    # As a loss it follows ½ χ²(q‖p): no fault where that is meant.
    assert "upside_down" not in audit(flipped_k3, usage="loss", claim="chi2_qp").codes
    for fn in (k1, k2, k3, of_log_r(torch.abs)):
        assert "upside_down" not in audit(fn, claim="chi2_pq").codes


def test_wrong_direction():
    assert audit(k3, usage="loss").codes[0] == "wrong_direction"
    assert audit(k3, usage="loss", claim="kl_pq").agrees
    assert "wrong_direction" not in audit(k3, usage="loss", claim="kl_pq").codes
    assert audit(k1, claim="kl_pq").codes == ["wrong_direction", "bias"]
    assert audit(k1, claim="tv").codes == ["not_the_claim", "bias"]


def test_a_cut_in_a_log_probability():
    report = audit(
        lambda logprob, ref_logprob: torch.where(logprob > -10, k1(logprob, ref_logprob), 0.0)
    )
    assert report.value.clamps == (-INF, INF)
    assert numbers(report, "not_difference") == {"log_ratio": pytest.approx(9.0)}
    # −80, as in kllab.penalties, is no finding.
    assert audit(penalties.k2_in_loss, usage="loss").codes == []


def test_a_constant():
    report = audit(lambda a, b: k1(a, b) + 0.25, claim="kl_qp")
    assert report.value.free["constant"] == pytest.approx(0.25)
    assert numbers(report, "constant") == {"value": pytest.approx(0.25)}
    assert (report.exit_code, report.codes) == (1, ["constant", "bias"])
    assert audit(lambda a, b: k1(a, b) + 0.25).exit_code == 1
    assert audit(lambda a, b: k2(a, b) + 3, usage="loss", claim="kl_qp").agrees
    assert "constant" not in audit(k3).codes


# --- agreement -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "call", "plain", "strict"),
    [
        (k1, {"claim": "kl_qp"}, 0, 0),
        (k2, {"claim": "kl_qp"}, 2, 2),
        (k2, {"claim": "kl_qp", "usage": "loss"}, 0, 2),
        (k3, {"claim": "kl_pq", "usage": "loss"}, 0, 1),
        (k1, {"claim": "kl_qp", "usage": "loss"}, 1, 1),
        (lambda a, b: 0.04 * k2(a, b), {"claim": "kl_qp", "usage": "loss"}, 0, 2),
        (lambda a, b: 2 * k1(a, b), {"claim": "kl_qp"}, 1, 1),
        (lambda a, b: 2 * k1(a, b), {}, 0, 0),
        (k1, {}, 0, 0),
        (k2, {"usage": "loss"}, 0, 2),
        (k3, {"usage": "loss"}, 1, 1),
        (k1, {"usage": "loss"}, 1, 1),
        (k2, {}, 2, 2),
        (of_log_r(lambda l: torch.expm1(l) ** 2 / 2), {"claim": "alpha(2)"}, 0, 0),
        (of_log_r(lambda l: torch.expm1(l) * l), {"claim": "jeffreys"}, 0, 0),
        (torch.no_grad()(k2), {"claim": "kl_qp", "usage": "loss"}, 1, 1),
        (lambda a, b: a.nope, {"claim": "kl_qp"}, 2, 2),
    ],
)
def test_exit_codes(fn, call, plain, strict):
    report = audit(fn, **call)
    assert report.exit_code == plain
    assert {True: 0, False: 1, None: 2}[report.agreement(strict=strict is not None)] == strict
    assert str(report).split(":")[0] == {0: "agrees", 1: "differs", 2: "not judged"}[plain]


# --- roles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "samples", "roles"),
    [
        (lambda logprob, ref_logprob: 0, "logprob", "logprob ref_logprob"),
        (lambda ref_logp, logp: 0, "logprob", "ref_logprob logprob"),
        (lambda a, b: 0, "logprob", "logprob ref_logprob"),
        (lambda a, b: 0, "old_logprob", "logprob old_logprob"),
        (lambda new, old: 0, "logprob", "logprob old_logprob"),
        (lambda train, rollout: 0, "ref_logprob", "logprob ref_logprob"),
        (lambda old_log_prob, ref_log_prob: 0, "logprob", "logprob ref_logprob"),
        (lambda a, b, c: 0, "old_logprob", "logprob ref_logprob old_logprob"),
        (lambda a, b, response_mask: 0, "logprob", "logprob ref_logprob mask"),
        (lambda a, b, c, mask: 0, "logprob", "logprob ref_logprob old_logprob mask"),
        (lambda a, b, mask=None, beta=1: 0, "logprob", "logprob ref_logprob mask"),
        (lambda a, b, old_logprob=None: 0, "logprob", "logprob ref_logprob"),
        (lambda a, b, old_logprob=None: 0, "old_logprob", "logprob old_logprob"),
        (lambda *args: 0, "logprob", "logprob ref_logprob"),
        (lambda log_ratio: 0, "logprob", "logprob ref_logprob"),
        (torch.abs, "logprob", "logprob ref_logprob"),
        (penalties.weighted_k3, "old_logprob", "logprob ref_logprob old_logprob mask"),
    ],
)
def test_roles(fn, samples, roles):
    assert bind(fn, samples, None).roles == tuple(roles.split())


def test_names_are_roles_in_the_parameters_order():
    swapped = audit(k1, names=("ref_logprob", "logprob"))
    assert swapped.value.terms == {"kl_qp": -1.0}
    fn = lambda a, b, *, c: (k1(a, b) * c).sum() / c.sum()  # noqa: E731
    assert audit(fn, names=("logprob", "ref_logprob", "mask")).aggregation == "token_mean"
    for names in (("a", "b"), ("logprob",), ("logprob", "mask"), ("logprob",) * 2):
        with pytest.raises(kllab.InputError, match="names"):
            audit(k1, names=names)
    with pytest.raises(kllab.InputError, match="names"):
        audit(k1, names=("logprob", "ref_logprob", "old_logprob"))
    with pytest.raises(kllab.InputError, match="names"):
        audit(k1, samples="ref_logprob", names=("logprob", "old_logprob"))


# --- the report ----------------------------------------------------------------------------------

VERL = of_log_r(lambda l: (torch.expm1(l.clamp(-20, 20)) - l.clamp(-20, 20)).clamp(-10, 10))


def test_text():
    report = audit(VERL, usage="loss", claim="kl_qp")
    lines = str(report).splitlines()
    assert lines[0] == "differs: <lambda> as loss: the gradient is kl_pq, claimed kl_qp"
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    assert "[-3, 2.611]" in lines[1]
    for found in report.findings:
        assert found.sentence.endswith(".")
        assert f"- {found.code}: " in str(report)
        assert set(found.code) <= set("abcdefghijklmnopqrstuvwxyz_0123456789")
        assert found.code in CODES


def test_html_is_well_formed_and_marks_clamps():
    report = audit(VERL, usage="loss", claim="kl_qp")
    page = ET.fromstring(report._repr_html_().replace("<br>", "<br/>"))
    svg = page.find("svg")
    assert svg.get("role") == "img"
    assert len(svg.findall("rect")) == 2
    lines = {path.get("stroke"): path.get("d") for path in svg.findall("path")}
    value, weight_line = lines["#3b8fd6"], lines["#d9722b"]
    _, _, width, height = map(float, svg.get("viewBox").split())
    for path in (value, weight_line):
        for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height - 20
    # What leaves the picture leaves a gap: 1 − r from −6 on, and 0 again beyond the clamp.
    assert (value.count("M"), weight_line.count("M")) == (1, 2)
    assert {text.text for text in svg.findall("text")} >= {"value", "weight"}
    assert "&lt;lambda&gt;" in report._repr_html_()
    bare = audit(lambda a, b: a.nope)._repr_html_()
    assert ET.fromstring(bare.replace("<br>", "<br/>")).find("svg") is None


def test_json():
    for fn in (VERL, lambda a, b: a.nope, of_log_r(lambda l: l * math.nan), masked("token_mean")):
        report = audit(fn, usage="loss", claim="kl_qp")
        content = json.loads(json.dumps(report.to_dict(), allow_nan=False))
        assert content["schema"] == 1
        assert [f["code"] for f in content["findings"]] == report.codes
        assert content["agrees"] is report.agrees
        assert content["value"]["verdict"] == report.value.verdict
        assert "curve" not in content
    assert audit(k3).to_dict()["value"]["clamps"] == ["-inf", "inf"]


def test_every_code_of_the_list_can_be_found():
    def noise(a, b):
        return k1(a, b) + torch.rand(())

    def writes(a, b):
        b += 1
        return k1(a, b)

    faults = [
        audit(fn, **call)
        for fn, call in (
            (k3, {"usage": "loss"}),
            (k3, {"usage": "reward"}),
            (flipped_k3, {"claim": "kl_qp"}),
            (lambda a, b: 2 - k1(a, b), {"claim": "kl_qp"}),
            (lambda a, b: 2 * k1(a, b), {"claim": "kl_qp"}),
            (k1, {"usage": "loss"}),
            (torch.ones_like, {}),
            (k2, {}),
            (torch.no_grad()(k1), {"usage": "loss"}),
            (k1, {"samples": "old_logprob"}),
            (of_log_r(lambda l: (l.exp() - 1 - l).clamp(-10, 10)), {"usage": "loss"}),
            (masked("padded_mean", clean=False), {}),
            (masked("largest"), {}),
            (lambda a, b: k1(a, b).cumsum(-1), {}),
            (lambda a, b: a.exp() * k1(a, b), {}),
            (noise, {}),
            (writes, {}),
            (lambda a, b: None, {}),
            (lambda a, b: a.nope, {}),
        )
    ]
    assert {code for report in faults for code in report.codes} == set(CODES)


def test_what_turns_into_something_else_far_out():
    """k3 up to 3.5 nats and k2 beyond: no clamp explains the mean on “dropped token”."""

    def changes(logprob, ref_logprob):
        near = k1(logprob, ref_logprob).abs() < 3.5
        return torch.where(near, k3(logprob, ref_logprob), k2(logprob, ref_logprob))

    report = audit(changes, usage="both", claim="kl_qp")
    l = math.log(1000)
    kl = 0.9999 * math.log(0.9999 / 0.9) - 0.0001 * l
    mean = kl + 0.0001 * (l**2 / 2 - (999 - l))
    assert report.value.terms == {"kl_qp": 1.0}
    got = [f.numbers for f in report.findings if f.code == "bias"]
    assert got[0]["dropped token"] == pytest.approx(1 - mean / kl, rel=1e-9)
    assert set(got[0]) == {"dropped token", "found token"}
    assert (report.agrees, report.exit_code) == (None, 2)


def test_cancellation_behind_a_cast():
    for fn, found in (
        (lambda d: d.exp() - 1 - d, True),
        (lambda d: torch.expm1(d) - d, False),
        (lambda d: -d, False),
        (lambda d: torch.expm1(d) ** 2, False),
    ):
        report = audit(of_log_r(lambda l, fn=fn: fn(l.float())), claim="kl_qp")
        assert report.value.verdict == "fits"
        assert ("cancellation" in report.codes) == found


def test_a_clamp_in_float32_is_in_the_log_ratio():
    fn = of_log_r(lambda l: (torch.expm1(l.float()) - l.float()).clamp(-10, 10))
    report = audit(fn, usage="loss")
    assert report.value.clamps == pytest.approx((LOW, TEN), abs=1e-5)
    assert report.gradient.clamps == pytest.approx((LOW, TEN), abs=1e-5)
    assert "not_difference" not in report.codes


def test_a_dtype_that_is_refused_hides_no_other():
    """kllab's estimators take no half precision."""
    assert numbers(audit(kllab.K3), "overflow") == {
        "float32": pytest.approx(LARGEST["float32"], rel=1e-4)
    }


def test_nan_beside_an_infinite_value_is_overflow():
    """The root of e^2l: infinity above, and below a root of 0, which has no derivative."""
    report = audit(of_log_r(lambda l: (2 * l).exp().sqrt()), usage="loss")
    assert min(numbers(report, "overflow").values()) > 0
    assert max(numbers(report, "nan_gradient").values()) < 0


def test_a_mean_whose_gradient_is_another():
    def uneven(logprob, ref_logprob):
        v = k1(logprob, ref_logprob)
        w = torch.arange(v.numel(), dtype=v.dtype).reshape(v.shape) * v
        return v.mean().detach() + w.sum() - w.sum().detach()

    assert audit(uneven, usage="loss").codes == ["aggregation"]


def test_kept_tokens_alone_are_no_value_per_token():
    report = audit(lambda logprob, ref_logprob, mask: k1(logprob, ref_logprob)[mask.bool()])
    assert report.codes[0] == "not_elementwise"
    assert report.value.verdict == "unknown"


def test_one_batch_is_not_enough():
    def threshold(logprob, ref_logprob):
        v = k1(logprob, ref_logprob)
        return v + (v.max() > 1.35) * (v.numel() > 1)

    assert audit(threshold).codes == ["not_elementwise"]


def test_a_divergence_that_is_its_own_reverse_has_no_wrong_direction():
    report = audit(of_log_r(lambda l: 2 * torch.expm1(l / 2) ** 2), claim="hellinger2")
    assert report.codes == ["not_the_claim", "bias", "overflow"]


def test_how_close_is_close():
    for size, code in ((1 + 1e-5, 1), (1 + 1e-8, 0)):
        fn = lambda a, b, size=size: size * k1(a, b)  # noqa: E731
        assert audit(fn, claim="kl_qp").exit_code == code
    assert audit(lambda a, b: (1 + 1e-5) * k1(a, b).float(), claim="kl_qp").agrees


def test_too_narrow_to_tell():
    report = audit(of_log_r(lambda l: -l.clamp(-0.9, 0.9)), claim="kl_qp")
    assert (report.value.verdict, report.exit_code) == ("unknown", 2)
    assert report.value.region == pytest.approx((-0.9, 0.9))
    assert "1.8 nats" in report.value.why


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_unknown_even_where_it_looks_exact(dtype):
    """The slope of |l| is ±1 in every precision."""
    report = audit(of_log_r(lambda l: l.to(dtype).abs()), usage="loss", claim="tv")
    assert (report.gradient.verdict, report.exit_code) == ("unknown", 2)
    assert "half precision" in report.gradient.why
    exact = audit(of_log_r(torch.abs), usage="loss", claim="tv")
    assert (exact.gradient.terms, exact.exit_code) == ({"tv": 2.0}, 0)


def test_a_law_that_does_not_move_gives_no_gradient_its_name():
    """−p/old as the derivative: E_old[−(p/old) ∇log q] = −E_p[∇log q], the gradient of KL(p‖q)."""

    def fn(logprob, ref_logprob, old_logprob):
        return weight(logprob, old_logprob).detach() * (ref_logprob - logprob).exp()

    part = audit(fn, usage="loss", samples="old_logprob").gradient
    assert part.terms == {"kl_pq": 1.0}
    got = expected_by_sum(fn, OLD, Q, P.log(), OLD.log())
    assert torch.allclose(got, gradient_by_sum({"kl_pq": 1.0}, P, Q, moves="q"), atol=1e-12)


def test_an_old_policy_that_is_not_sampled():
    def fn(logprob, ref_logprob, old_logprob):
        return k3(logprob, ref_logprob) * (1 + (logprob - old_logprob) ** 2)

    report = audit(fn, samples="logprob", claim="kl_qp")
    assert (report.value.terms, report.agrees) == ({"kl_qp": 1.0}, True)
    assert "changes with old_logprob" in str(report)
    assert "old_logprob" not in str(audit(k3))

    def weighted(logprob, ref_logprob, old_logprob):
        return weight(logprob, old_logprob) * k3(logprob, ref_logprob)

    assert audit(weighted, samples="ref_logprob").value.verdict == "unknown"
