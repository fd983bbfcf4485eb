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
