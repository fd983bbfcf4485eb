"""Which parameter is which: by name, by place with a warning, or a refusal; no false certainty."""

import functools
import warnings

import pytest
import torch

import kllab
from kllab._probe import bind


class Owner:
    def method(self, logprob, ref_logprob):
        return logprob - ref_logprob

    @classmethod
    def of_class(cls, logprob, ref_logprob):
        return logprob - ref_logprob


class Layer(torch.nn.Module):
    def forward(self, ref_logprob, logprob):
        return logprob - ref_logprob


def traced(fn):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(fn, (torch.zeros(2, 3), torch.zeros(2, 3)))


@pytest.mark.parametrize("fn", [Owner.method, Owner.__dict__["of_class"].__func__])
def test_an_unbound_method_is_refused(fn):
    with pytest.raises(kllab.InputError, match="unbound"):
        kllab.audit(fn)


@pytest.mark.parametrize(
    "fn",
    [
        Owner().method,
        Owner.of_class,
        Layer(),
        traced(Layer()),
    ],
)
def test_what_is_bound_has_the_names_of_its_own(fn):
    report = kllab.audit(fn, claim="kl_qp")
    assert (report.agrees, report.taken) == (True, "")


def test_a_compiled_function_has_names():
    def reversed_order(ref_logprob: torch.Tensor, logprob: torch.Tensor):
        return logprob - ref_logprob

    for fn in (
        traced(reversed_order),
        functools.wraps(reversed_order)(lambda *a, **k: reversed_order(*a, **k)),
    ):
        report = kllab.audit(fn, claim="kl_qp")
        assert (report.agrees, report.taken) == (True, "")


def test_names_that_say_their_role_are_kept():
    """E_old[log old − log ref] is KL(old‖ref), which moves nothing."""

    def fn(old_logprob, ref_logprob):
        return old_logprob - ref_logprob

    for names in (None, ("old_logprob", "ref_logprob")):
        report = kllab.audit(fn, samples="old_logprob", claim="kl_qp", names=names)
        assert report.roles == ("old_logprob", "ref_logprob")
        assert (report.value.terms, report.value.q, report.value.p) == (
            {"kl_qp": 1.0},
            "old_logprob",
            "ref_logprob",
        )
        assert (report.agrees, report.codes) == (True, [])
    assert kllab.audit(fn, usage="loss", samples="old_logprob").codes == ["no_grad"]


@pytest.mark.parametrize(
    ("fn", "samples", "roles"),
    [
        (lambda init_logprobs, logprobs: 0, "logprob", "ref_logprob logprob"),
        (lambda teacher_logps, student_logps: 0, "logprob", "ref_logprob logprob"),
        (lambda student_logps, teacher_logps: 0, "ref_logprob", "logprob ref_logprob"),
        (lambda logq, logp: 0, "logprob", "logprob ref_logprob"),
        (lambda logp, logq: 0, "logprob", "ref_logprob logprob"),
        (lambda lp, lq: 0, "logprob", "ref_logprob logprob"),
        (lambda vllm_logprobs, hf_logprobs: 0, "old_logprob", "old_logprob logprob"),
        (lambda refLogProbs, actorLogProbs: 0, "logprob", "ref_logprob logprob"),
        (lambda other, log_probs: 0, "logprob", "ref_logprob logprob"),
        (lambda ref_logps, something: 0, "logprob", "ref_logprob logprob"),
        (lambda inference, sft, trainer: 0, "old_logprob", "old_logprob ref_logprob logprob"),
        (lambda rollout, train: 0, "ref_logprob", "ref_logprob logprob"),
        (lambda old, reference: 0, "ref_logprob", "logprob ref_logprob"),
        (lambda cur_logp, base_logp, loss_mask: 0, "logprob", "logprob ref_logprob mask"),
        (lambda policy, ref, old, keep: 0, "logprob", "logprob ref_logprob old_logprob mask"),
        (lambda logprob, ref_logprob=None: 0, "logprob", "logprob ref_logprob"),
    ],
)
def test_names_of_frameworks(fn, samples, roles):
    found = bind(fn, samples, None)
    assert found.roles == tuple(roles.split())
    assert not found.guessed


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda a, b: b - a, "a = logprob, b = ref_logprob"),
        (lambda logprobs_1, logprobs_2: logprobs_2 - logprobs_1, "logprobs_1 = logprob"),
        (lambda p, q: p - q, "p = ref_logprob, q = logprob"),
    ],
)
def test_a_guess_is_in_the_first_line_and_below(fn, said):
    report = kllab.audit(fn, claim="kl_qp")
    assert said in report.taken
    text = " ".join(str(report).split())
    assert f"claimed kl_qp, if {said}" in text
    assert f"taken as: {said}" in text


def test_without_names_there_is_no_verdict_on_the_sign():
    wrong = kllab.audit(lambda *args: args[1] - args[0], claim="kl_qp")
    assert (wrong.agrees, wrong.exit_code) == (None, 2)
    assert wrong.taken == "argument 1 = logprob, argument 2 = ref_logprob"
    named = kllab.audit(
        lambda *args: args[1] - args[0], claim="kl_qp", names=("ref_logprob", "logprob")
    )
    assert (named.agrees, named.taken) == (True, "")


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda logprob: 0, "log r"),
        (lambda logps: 0, "log r"),
        (lambda ref_logprob: 0, "log r"),
        (lambda ratio: 0, "log r"),
        (lambda logprob, ref_logprob, beta: 0, "`beta`"),
        (lambda a, b, coef: 0, "`coef`"),
        (lambda logprob, ref_logprob, foo: 0, "`foo`"),
        (lambda old_logp, rollout_logp: 0, "different roles"),
        (lambda ref, teacher, logprob: 0, "different roles"),
        (lambda ref_logprob, mask: 0, "logprob"),
    ],
)
def test_what_does_not_say_what_it_is_gets_refused(fn, says):
    with pytest.raises(kllab.InputError, match=says):
        kllab.audit(fn)


def test_an_annotation_says_that_it_is_a_number():
    def fn(a, b, much: float):
        return much * (a - b)

    with pytest.raises(kllab.InputError, match=r"`much`.*functools\.partial"):
        kllab.audit(fn)
    assert kllab.audit(functools.partial(fn, much=1.0), claim="kl_qp").agrees


@pytest.mark.parametrize(
    "fn",
    [
        lambda log_r: -log_r,
        lambda logr: -logr,
        lambda log_ratio: -log_ratio,
        lambda x: -x,
        lambda d: -d,
        lambda delta: -delta,
        lambda logp_diff: -logp_diff,
        torch.neg,
    ],
)
def test_one_parameter_that_is_a_log_ratio(fn):
    assert kllab.audit(fn, claim="kl_qp").agrees


def test_names_can_say_that_it_is_one():
    for names in ("log_r", ("log_r",)):
        assert kllab.audit(lambda logprob: -logprob, claim="kl_qp", names=names).agrees


@pytest.mark.parametrize("name", ["padding_mask", "pad_mask", "ignore_mask"])
def test_a_mask_of_padding_is_true_where_there_is_padding(name):
    def mean(logprob, ref_logprob, masked):
        keep = ~masked.bool()
        d = torch.where(keep, logprob - ref_logprob, 0.0)
        return d.sum() / keep.sum()

    space = {"mean": mean}
    exec(f"def fn(logprob, ref_logprob, {name}): return mean(logprob, ref_logprob, {name})", space)
    report = kllab.audit(space["fn"], claim="kl_qp")
    assert (report.aggregation, report.agrees, report.codes) == ("token_mean", True, [])
    assert f"{name} is taken as true where there is padding" in " ".join(str(report).split())
    plain = kllab.audit(lambda logprob, ref_logprob, mask: mean(logprob, ref_logprob, 1 - mask))
    assert plain.aggregation == "token_mean"


def test_an_exit_is_a_finding():
    def leaves(logprob, ref_logprob):
        raise SystemExit(3)

    assert kllab.audit(leaves).codes == ["raises"]


def test_logits_are_whole_distributions():
    with pytest.raises(kllab.InputError, match="whole distributions are not judged"):
        kllab.audit(lambda logits, ref_logits: logits - ref_logits)
