"""What a finding says, where the reason is known."""

import pytest
import torch

import kllab


def k1(logprob, ref_logprob):
    return logprob - ref_logprob


def k2(logprob, ref_logprob):
    return (logprob - ref_logprob) ** 2 / 2


def only(report):
    (found,) = report.findings
    return found.code, found.sentence


def test_a_warm_up_that_has_not_begun():
    def fn(logprob, ref_logprob, step=0):
        return min(step / 100, 1) * k2(logprob, ref_logprob)

    assert only(kllab.audit(fn, usage="loss")) == (
        "zero_gradient",
        "The gradient is exactly 0: no token gets any push.",
    )
    noise = only(kllab.audit(k1, usage="loss"))
    assert noise[0] == "zero_gradient"
    assert "noise" in noise[1]


@pytest.mark.parametrize(
    ("share", "how"),
    [
        (lambda mask: mask / mask.sum(), "token_mean"),
        (lambda mask: mask / mask.numel(), "padded_mean"),
        (lambda mask: mask / mask.sum(-1, keepdim=True) / len(mask), "seq_mean_token_mean"),
        (lambda mask: mask, "token"),
    ],
)
def test_a_mean_that_is_left_to_be_summed(share, how):
    def fn(logprob, ref_logprob, mask):
        keep = mask.bool()
        return torch.where(keep, k2(logprob, ref_logprob), 0.0) * share(mask)

    report = kllab.audit(fn, usage="loss", claim="kl_qp")
    assert (report.aggregation, report.gradient.terms) == (how, {"kl_qp": 1.0})
    assert report.agrees
    assert "not_elementwise" not in report.codes


def test_a_controller_is_no_chance():
    class Controller:
        beta = 1.0

        def __call__(self, logprob, ref_logprob):
            self.beta *= 1.1
            return self.beta * k1(logprob, ref_logprob)

    code, sentence = only(kllab.audit(Controller()))
    assert code == "random"
    assert "keeps something from call to call" in sentence
    _, drawn = only(kllab.audit(lambda a, b: k1(a, b) + torch.rand(())))
    assert drawn == "Two calls with the same input give different results."


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mean_in_half_precision(dtype):
    for fn in (
        lambda a, b: k1(a, b).to(dtype).mean(),
        lambda a, b: k1(a.to(dtype), b.to(dtype)).mean().float(),
    ):
        code, sentence = only(kllab.audit(fn))
        assert (code, "half precision" in sentence) == ("unknown", True)
    assert only(kllab.audit(lambda a, b: k1(a, b).float().max()))[0] == "aggregation"


def test_whole_distributions():
    def full(logprob, ref_logprob):
        log_q, log_p = logprob.log_softmax(-1), ref_logprob.log_softmax(-1)
        return (log_q.exp() * (log_q - log_p)).sum(-1)

    code, sentence = only(kllab.audit(full))
    assert code == "unknown"
    assert "(batch, time, vocabulary) are not judged" in sentence


def percent(x):
    return f"{100 * x:.3g} %"


@pytest.mark.parametrize(
    ("low", "high", "where"),
    [
        (None, 1.0, "above log r = 1"),
        (-1.0, None, "below log r = -1"),
        (-1.0, 1.5, "below log r = -1 and above log r = 1.5"),
    ],
)
def test_where_a_clamp_is_and_what_it_takes(low, high, where):
    def fn(logprob, ref_logprob):
        l = (ref_logprob - logprob).clamp(low, high)
        return torch.expm1(l) - l

    found = {f.code: f for f in kllab.audit(fn, usage="loss", claim="kl_pq").findings}
    said = {"value": "value is constant", "gradient": "gradient is exactly 0"}
    for kind, words in said.items():
        finding = found[f"clamp_{kind}"]
        cost = finding.numbers["cost"]
        worst = max(cost, key=cost.get)
        price = f"on “{worst}” that takes {percent(cost[worst])} of it away"
        assert finding.sentence == f"The {words} {where}; {price}."


@pytest.mark.parametrize(
    ("low", "high", "where"),
    [(None, 2.0, "above w = 2"), (0.5, None, "below w = 0.5"),
     (0.25, 4.0, "below w = 0.25 and above w = 4")],
)  # fmt: skip
def test_where_a_weight_is_cut_and_what_that_moves(low, high, where):
    def fn(logprob, ref_logprob, old_logprob):
        w = (logprob - old_logprob).exp().clamp(low, high)
        return (w * (logprob - ref_logprob)).mean()

    report = kllab.audit(fn, usage="loss", samples="old_logprob", claim="kl_qp")
    assert report.weight_cut
    assert not report.agreement(strict=True)
    for finding in report.findings:
        cost = finding.numbers["weight_cost"]
        worst = max(cost, key=cost.get)
        assert f" {where}; on “{worst}” that moves it by {percent(cost[worst])}." in (
            finding.sentence
        )


def test_another_function_farther_out():
    def fn(logprob, ref_logprob):
        l = ref_logprob - logprob
        return torch.where(l.abs() < 3.5, -l, -3 * l)

    report = kllab.audit(fn, claim="kl_qp")
    finding = next(f for f in report.findings if f.code == "bias")
    worst = max(finding.numbers, key=finding.numbers.get)
    assert finding.sentence.startswith("Outside log r in [-3")
    assert f"off by {percent(finding.numbers[worst])}" in finding.sentence
    assert not report.weight_cut


def test_whether_single_values_can_be_negative():
    def k3(logprob, ref_logprob):
        return torch.expm1(ref_logprob - logprob) - (ref_logprob - logprob)

    assert kllab.audit(k3).non_negative is True
    assert kllab.audit(k2).non_negative is True
    assert kllab.audit(k1).non_negative is False
    assert (
        kllab.audit(lambda logprob, ref_logprob: k3(logprob, ref_logprob) - 0.5).non_negative
        is False
    )
    assert "single values may be negative" in str(kllab.audit(k1))
    assert "single values may be negative" not in str(kllab.audit(k3))


def test_strict_judges_a_gradient_that_is_not_known_and_the_value():
    def fn(logprob, ref_logprob):
        l = ref_logprob - logprob
        return -l.detach() + torch.sin(l) - torch.sin(l).detach()

    report = kllab.audit(fn, usage="loss", claim="kl_pq")
    assert (report.value.terms, report.gradient.verdict) == ({"kl_qp": 1.0}, "unknown")
    assert report.agreement() is None
    assert report.agreement(strict=True) is False


def test_a_record_has_every_field_but_the_curve():
    report = kllab.audit(k1, claim="kl_qp")
    fields = set(vars(report)) - {"curve"}
    assert set(report.to_dict()) == fields | {"schema", "agrees"}
    assert fields >= {"cases", "aggregation", "value"}


def test_the_advice_for_samples_of_an_older_policy():
    """Weighted, they count as samples of the policy: a penalty; else an estimator."""

    def weighted(logprob, ref_logprob, old_logprob):
        l = ref_logprob - logprob
        return (logprob - old_logprob).exp().detach() * (torch.expm1(l) - l)

    def plain(logprob, old_logprob):
        l = logprob - old_logprob
        return torch.expm1(l) - l

    for fn, claim, said in ((weighted, "kl_qp", "weighted_k3"), (plain, "chi2_pq", "bregman")):
        report = kllab.audit(fn, usage="loss", samples="old_logprob", claim=claim)
        assert not report.agrees
        assert said in report.findings[0].instead, fn
