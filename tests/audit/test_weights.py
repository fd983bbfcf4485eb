"""Importance weights that are cut, and verdicts that hold on an interval only.

The oracle is enumeration over three tokens, written here.
"""

import math

import pytest
import torch

import kllab

float64 = torch.float64
OLD, NEW, REF = (
    torch.tensor(x, dtype=float64) for x in ((0.5, 0.4, 0.1), (0.1, 0.4, 0.5), (0.3, 0.3, 0.4))
)


def k1(logprob, ref_logprob):
    return logprob - ref_logprob


def k2(logprob, ref_logprob):
    return (logprob - ref_logprob) ** 2 / 2


def k3(logprob, ref_logprob):
    return torch.expm1(ref_logprob - logprob) - (ref_logprob - logprob)


CUTS = {
    "at 1.5": (lambda w: w.clamp(max=1.5), (0, 1.5)),
    "at 2": (lambda w: w.clamp(max=2.0), (0, 2)),
    "at 10": (lambda w: w.clamp(max=10.0), (0, 10)),
    "below a half": (lambda w: w.clamp(min=0.5), (0.5, math.inf)),
    "on both sides": (lambda w: w.clamp(0.25, 4.0), (0.25, 4)),
    "dropped": (lambda w: w * (w < 2), (0, 2)),
    "its square root above 3": (lambda w: torch.where(w < 3, w, (3 * w).sqrt()), (0, 3)),
}


def weighted(h, cut, *, held=False, mean=True):
    def fn(logprob, ref_logprob, old_logprob):
        w = cut((logprob - old_logprob).exp())
        v = (w.detach() if held else w) * h(logprob, ref_logprob)
        return v.mean() if mean else v

    return fn


def enumerated(fn):
    """E_old[fn] and its gradient by the policy's logits."""
    logits = NEW.log().clone().requires_grad_()
    logprob = logits.log_softmax(-1)
    each = [fn(logprob[i], REF.log()[i], OLD.log()[i]) for i in range(3)]
    mean = (OLD * torch.stack(each)).sum()
    return mean.item(), torch.autograd.grad(mean, logits)[0]


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    ("h", "held", "claim"),
    [(k1, False, "kl_qp"), (k3, False, "kl_qp"), (k2, True, "kl_qp"), (k3, True, "kl_pq")],
)
def test_a_cut_weight_never_agrees_without_saying_so(h, held, claim, cut, mean):
    shape, (low, high) = CUTS[cut]
    fn = weighted(h, shape, held=held, mean=mean)
    report = kllab.audit(fn, usage="loss", samples="old_logprob", claim=claim)
    assert report.gradient.terms == {claim: 1.0}
    assert report.agreement(strict=True) is False
    assert f"agrees on w in [{low:g}, {high:g}] only: " in str(report)
    by_code = {f.code: f.numbers for f in report.findings}
    for code in ("clamp_value", "clamp_gradient"):
        got = by_code[code]
        assert got["low_weight"] == pytest.approx(low, rel=1e-6)
        assert got["high_weight"] == pytest.approx(high, rel=1e-6)
    cut_mean, cut_gradient = enumerated(fn)
    mean_, gradient = enumerated(weighted(h, lambda w: w, held=held))
    costs = {
        "clamp_value": abs(cut_mean / mean_ - 1),
        "clamp_gradient": float((cut_gradient - gradient).norm() / gradient.norm()),
    }
    for code, cost in costs.items():
        assert by_code[code]["weight_cost"].get("drifted", 0.0) == pytest.approx(cost, abs=1e-9)


def test_the_numbers_of_a_weight_cut_at_two():
    """.0498 of .1168; (−.080, .233, −.153) where (−.122, .068, .053) is the gradient."""
    value, gradient = enumerated(weighted(k1, CUTS["at 2"][0]))
    true, right = enumerated(weighted(k1, lambda w: w))
    assert (value, true) == pytest.approx((0.0498, 0.1168), abs=5e-5)
    assert gradient.tolist() == pytest.approx([-0.080, 0.233, -0.153], abs=5e-4)
    assert right.tolist() == pytest.approx([-0.122, 0.068, 0.053], abs=1e-3)
    fn = weighted(k1, CUTS["at 2"][0])
    metric = kllab.audit(fn, samples="old_logprob", claim="kl_qp")
    (found,) = metric.findings
    assert found.code == "clamp_value"
    assert found.numbers["weight_cost"]["drifted"] == pytest.approx(1 - value / true, rel=1e-9)


@pytest.mark.parametrize("cast", [torch.Tensor.double, torch.Tensor.float])
def test_a_whole_weight_is_no_finding(cast):
    for h, held in ((k1, False), (k3, False), (k2, True)):

        def fn(logprob, ref_logprob, old_logprob, h=h, held=held):
            return weighted(h, lambda w: w, held=held)(
                cast(logprob), cast(ref_logprob), cast(old_logprob)
            )

        report = kllab.audit(fn, usage="loss", samples="old_logprob", claim="kl_qp")
        assert not {"clamp_value", "clamp_gradient"} & set(report.codes)
        assert str(report).startswith("agrees: ")
        assert report.agreement(strict=True) in (True, None)


def test_a_far_cut_that_costs_nothing_is_none():
    for bound, found in ((1e3, False), (60.0, True)):
        fn = weighted(k3, lambda w, b=bound: w.clamp(max=b), mean=False)
        report = kllab.audit(fn, samples="old_logprob", claim="kl_qp")
        assert ("clamp_value" in report.codes) == found
        assert report.agreement(strict=True) == (not found)
        if found:
            assert "costs nothing" in str(report)


def test_one_finding_for_both_cuts():
    def fn(logprob, ref_logprob, old_logprob):
        w = (logprob - old_logprob).exp().clamp(max=2)
        return w * k1(logprob, ref_logprob).clamp(-2, 2)

    report = kllab.audit(fn, samples="old_logprob", claim="kl_qp")
    (found,) = report.findings
    assert (found.numbers["low"], found.numbers["high"]) == pytest.approx((-2, 2))
    assert found.numbers["high_weight"] == pytest.approx(2)
    assert "agrees on log r in [-2, 2] and w in [0, 2] only: " in str(report)


# --- the first line says what it leaves out -------------------------------------------------------


@pytest.mark.parametrize(
    ("h", "usage", "bound", "said"),
    [
        (lambda x: x.clamp(-1, 1), "metric", 1, "agrees on log r in [-1, 1] only: "),
        (lambda x: x.clamp(-2, 2), "reward", 2, "agrees on log r in [-2, 2] only: "),
        (lambda x: x.clamp(-2, 2) ** 2 / 2, "loss", 2, "agrees on log r in [-2, 2] only: "),
        (lambda x: x.clamp(-20, 20), "metric", 20, "agrees: "),
    ],
)
def test_a_cut_that_costs_something_is_in_the_first_line(h, usage, bound, said):
    report = kllab.audit(
        lambda logprob, ref_logprob: h(logprob - ref_logprob), usage=usage, claim="kl_qp"
    )
    assert report.exit_code == 0
    assert str(report).startswith(said)


def test_a_constant_is_in_the_first_line():
    for constant, said in ((1e-3, "kl_qp + 0.001,"), (-0.25, "kl_qp − 0.25,")):
        report = kllab.audit(lambda a, b, c=constant: a - b + c, claim="kl_qp")
        assert f"differs: <lambda> as metric: the value is {said} claimed kl_qp" in str(report)
    nearly = kllab.audit(lambda a, b: (1 + 4e-7) * 1.00001 * (a - b), claim="kl_qp")
    assert "is 1.00001 kl_qp" in str(nearly)
    nearer = kllab.audit(lambda a, b: (1 + 3e-6) * (a - b), claim="kl_qp")
    assert "is 1.000003 kl_qp" in str(nearer)
