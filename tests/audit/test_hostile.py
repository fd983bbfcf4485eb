"""Functions that misbehave: a verdict or a refusal, no traceback of ours, the world as it was."""

from __future__ import annotations

import functools
import json
import math
import warnings

import numpy as np
import pytest
import torch

import kllab
from audit.reports import bregman, half_square, log_ratio, upside_down

# --- what somebody may bring -------------------------------------------------------------------


class Callable:
    def __call__(self, logprob, ref_logprob):
        return bregman(logprob, ref_logprob)

    def method(self, logprob, ref_logprob):
        return bregman(logprob, ref_logprob)

    @staticmethod
    def static(logprob, ref_logprob):
        return bregman(logprob, ref_logprob)


class Stateful:
    def __init__(self):
        self.calls = 0

    def __call__(self, logprob, ref_logprob):
        self.calls += 1
        return self.calls * bregman(logprob, ref_logprob)


class ThenBreaks:
    """Right until it is called often."""

    def __init__(self, after):
        self.left = after

    def __call__(self, logprob, ref_logprob):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("enough")
        return bregman(logprob, ref_logprob)


def add_in_place(logprob, ref_logprob):
    ref_logprob -= logprob
    return torch.expm1(ref_logprob) - ref_logprob


def clamp_data_in_place(logprob, ref_logprob):
    ref_logprob.data.clamp_(min=-5)
    return bregman(logprob, ref_logprob)


def noisy(logprob, ref_logprob):
    return bregman(logprob, ref_logprob) + 0.1 * torch.randn_like(logprob)


def drops_out(logprob, ref_logprob):
    return torch.nn.functional.dropout(bregman(logprob, ref_logprob), 0.1)


def seeds_the_world(logprob, ref_logprob):
    torch.manual_seed(0)
    np.random.seed(0)
    return bregman(logprob, ref_logprob)


def changes_the_dtype(logprob, ref_logprob):
    torch.set_default_dtype(torch.float64)
    return bregman(logprob, ref_logprob)


def turns_gradients_off(logprob, ref_logprob):
    torch.set_grad_enabled(False)
    return bregman(logprob, ref_logprob)


def turns_anomalies_on(logprob, ref_logprob):
    torch.autograd.set_detect_anomaly(True)
    return bregman(logprob, ref_logprob)


def chooses_a_device(logprob, ref_logprob):
    torch.set_default_device("meta")
    return bregman(logprob, ref_logprob)


def chooses_threads(logprob, ref_logprob):
    torch.set_num_threads(torch.get_num_threads() + 1)
    return bregman(logprob, ref_logprob)


def wants_determinism(logprob, ref_logprob):
    torch.use_deterministic_algorithms(True)
    return bregman(logprob, ref_logprob)


def turns_off_a_leaf(logprob, ref_logprob):
    logprob.requires_grad_(False)
    return bregman(logprob, ref_logprob)


def detaches_in_place(logprob, ref_logprob):
    logprob.detach_()
    return bregman(logprob, ref_logprob)


def for_inference(logprob, ref_logprob):
    with torch.inference_mode():
        return bregman(logprob, ref_logprob)


def calls_backward(logprob, ref_logprob):
    value = bregman(logprob, ref_logprob)
    value.sum().backward()
    return value


def yields(logprob, ref_logprob):
    yield bregman(logprob, ref_logprob)


def depends_on_the_batch(logprob, ref_logprob):
    l = log_ratio(logprob, ref_logprob)
    return bregman(logprob, ref_logprob) if l.mean() > 0 else l


def clipped_at_a_quantile(logprob, ref_logprob):
    value = bregman(logprob, ref_logprob)
    return torch.minimum(value, value.quantile(0.9))


def whitened(logprob, ref_logprob):
    l = log_ratio(logprob, ref_logprob)
    return (l - l.mean()) / (l.std(correction=0) + 1e-8)


def odd_and_even(logprob, ref_logprob):
    even = (logprob * 1e6).long() % 2 == 0
    return torch.where(even, bregman(logprob, ref_logprob), log_ratio(logprob, ref_logprob))


def warns(logprob, ref_logprob):
    warnings.warn("old name", DeprecationWarning, stacklevel=1)
    return bregman(logprob, ref_logprob)


def prints(logprob, ref_logprob):
    print("kl", float(log_ratio(logprob, ref_logprob).mean()))
    return bregman(logprob, ref_logprob)


def asserts_two_dimensions(logprob, ref_logprob):
    batch, length = logprob.shape
    return bregman(logprob, ref_logprob).reshape(batch, length)


def sorted_first(logprob, ref_logprob):
    return bregman(logprob.sort(-1).values, ref_logprob.sort(-1).values)


def softmax_inside(logprob, ref_logprob):
    return bregman(logprob.log_softmax(-1), ref_logprob.log_softmax(-1))


def centred(logprob, ref_logprob):
    l = log_ratio(logprob, ref_logprob)
    return l - l.mean()


def running_sum(logprob, ref_logprob):
    return log_ratio(logprob, ref_logprob).cumsum(-1)


def weighted_by_probability(logprob, ref_logprob):
    return logprob.exp() * log_ratio(logprob, ref_logprob)


def kl_div_of_torch(logprob, ref_logprob):
    """Meant for whole distributions; on one token's log-probabilities it weights by p(x)."""
    return torch.nn.functional.kl_div(logprob, ref_logprob, log_target=True, reduction="none")


def normalised_by_logprob(logprob, ref_logprob):
    return log_ratio(logprob, ref_logprob) / logprob.abs()


def to_numpy(logprob, ref_logprob):
    return bregman(logprob, ref_logprob).detach().numpy()


def through_numpy(logprob, ref_logprob):
    l = logprob.detach().numpy() - ref_logprob.detach().numpy()
    return torch.from_numpy(np.expm1(-l) + l)


def numpy_on_a_leaf(logprob, ref_logprob):
    """What torch itself refuses where a gradient is asked for."""
    return logprob.numpy() - ref_logprob.numpy()


def through_data(logprob, ref_logprob):
    return bregman(logprob.data, ref_logprob)


def one_item(logprob, ref_logprob):
    return bregman(logprob, ref_logprob).mean().item()


def item_by_item(logprob, ref_logprob):
    pairs = zip(logprob.flatten().tolist(), ref_logprob.flatten().tolist(), strict=True)
    return torch.tensor([math.expm1(b - a) - (b - a) for a, b in pairs]).reshape(logprob.shape)


def half_precision(logprob, ref_logprob):
    return bregman(logprob.bfloat16(), ref_logprob.bfloat16())


def recurses(logprob, ref_logprob):
    return recurses(ref_logprob, logprob)


def exits(logprob, ref_logprob):
    raise SystemExit(3)


def raises(kind, *args):
    def function(logprob, ref_logprob):
        raise kind(*args)

    return function


class Odd(Exception):
    def __str__(self):
        raise RuntimeError("not even a message")


def rejects_gradients(logprob, ref_logprob):
    if logprob.requires_grad:
        raise RuntimeError("inference only")
    return bregman(logprob, ref_logprob)


def rejects_float64(logprob, ref_logprob):
    if logprob.dtype != torch.float32:
        raise TypeError("float32 only")
    return bregman(logprob, ref_logprob)


def nan_at_zero(logprob, ref_logprob):
    l = log_ratio(logprob, ref_logprob)
    return bregman(logprob, ref_logprob) * l / l


def nan_everywhere(logprob, ref_logprob):
    return log_ratio(logprob, ref_logprob) * math.nan


def custom_backward_raises(logprob, ref_logprob):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return torch.expm1(b - a) - (b - a)

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("no backward")

    return Broken.apply(logprob, ref_logprob)


def custom_backward_lies(logprob, ref_logprob):
    class Other(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return torch.expm1(b - a) - (b - a)

        @staticmethod
        def backward(ctx, grad):
            return 7 * grad, None

    return Other.apply(logprob, ref_logprob)


PARAMETER = torch.nn.Parameter(torch.tensor(2.0))
LINEAR = torch.nn.Linear(1, 1)


def closes_over_a_parameter(logprob, ref_logprob):
    return PARAMETER * bregman(logprob, ref_logprob)


def a_network(logprob, ref_logprob):
    l = log_ratio(logprob, ref_logprob).unsqueeze(-1)
    return LINEAR(l.float()).squeeze(-1)


def needs_a_keyword(logprob, ref_logprob, *, beta):
    return beta * bregman(logprob, ref_logprob)


def needs_four(logprob, ref_logprob, old_logprob, mask):
    return bregman(logprob, ref_logprob) * mask


def half_clamped(logprob, ref_logprob):
    """The value is cut at one bound, the gradient at another."""
    l = ref_logprob - logprob
    k3 = torch.expm1(l.clamp(-2.5, 1.5)) - l.clamp(-2.5, 1.5)
    push = half_square(logprob, ref_logprob)
    return push - push.detach() + k3.detach()


NO_ANSWER = {
    "none": lambda a, b: None,
    "float": lambda a, b: 0.5,
    "int": lambda a, b: 1,
    "bool": lambda a, b: True,
    "text": lambda a, b: "kl",
    "tuple": lambda a, b: (bregman(a, b), {}),
    "dict": lambda a, b: {"kl": bregman(a, b)},
    "list": lambda a, b: bregman(a, b).tolist(),
    "complex": lambda a, b: torch.complex(bregman(a, b), bregman(a, b)),
    "integers": lambda a, b: bregman(a, b).long(),
    "keep or drop": lambda a, b: bregman(a, b) < 1,
    "one too few": lambda a, b: bregman(a, b)[..., 1:],
    "an axis too many": lambda a, b: bregman(a, b).unsqueeze(0),
    "all pairs": lambda a, b: bregman(a.unsqueeze(-1), b.unsqueeze(-2)),
    "empty": lambda a, b: torch.empty(0),
    "a constant": lambda a, b: torch.full_like(a, 3.0),
    "zeros": lambda a, b: torch.zeros_like(a),
    "a fresh leaf": lambda a, b: torch.zeros_like(a).requires_grad_(),
    "its first argument": lambda a, b: a,
    "its second argument": lambda a, b: b,
    "nested": lambda a, b: torch.nested.nested_tensor(list(bregman(a, b))),
    "transposed": lambda a, b: bregman(a, b).T,
    "flipped": lambda a, b: bregman(a, b).flip(-1),
    "misaligned": lambda a, b: bregman(a, b.roll(1, -1)),
    "repeated mean": lambda a, b: bregman(a, b).mean().expand(a.shape),
    "a generator": yields,
    "depends on the batch": depends_on_the_batch,
    "clipped at a quantile": clipped_at_a_quantile,
    "whitened": whitened,
    "odd and even": odd_and_even,
    "sparse": lambda a, b: bregman(a, b).to_sparse(),
    "meta": lambda a, b: bregman(a, b).to("meta"),
    "numpy": to_numpy,
    "numpy on a leaf": numpy_on_a_leaf,
    "item": one_item,
    "all infinite": lambda a, b: torch.full_like(a, math.inf),
    "not a number": nan_everywhere,
    "sorted": sorted_first,
    "softmax": softmax_inside,
    "centred": centred,
    "running sum": running_sum,
    "times probability": weighted_by_probability,
    "over logprob": normalised_by_logprob,
    "kl_div": kl_div_of_torch,
    "max": lambda a, b: bregman(a, b).max(),
    "median": lambda a, b: bregman(a, b).median(),
    "standard deviation": lambda a, b: log_ratio(a, b).std(),
    "noise": noisy,
    "dropout": drops_out,
    "stateful": Stateful(),
    "breaks at the second call": ThenBreaks(1),
    "breaks at the eighth call": ThenBreaks(7),
    "raises": raises(ValueError, "wrong mode"),
    "raises without a message": raises(AssertionError),
    "raises what has no text": raises(Odd),
    "out of memory": raises(torch.OutOfMemoryError, "16 GiB"),
    "memory": raises(MemoryError),
    "stops an iteration": raises(StopIteration),
    "recurses": recurses,
    "needs a keyword": needs_a_keyword,
    "a class": dict,
    "a builtin": max,
    "no arguments": lambda: torch.zeros(3),
    "one argument": lambda a: a,
    "five arguments": lambda a, b, c, d, e: a,
}

HONEST = {
    "callable": Callable(),
    "method": Callable().method,
    "static method": Callable.static,
    "partial": functools.partial(bregman),
    "partial with a keyword": functools.partial(needs_a_keyword, beta=1.0),
    "lambda": lambda logprob, ref_logprob: bregman(logprob, ref_logprob),
    "default": lambda logprob, ref_logprob, beta=1.0: beta * bregman(logprob, ref_logprob),
    "any keyword": lambda logprob, ref_logprob, **kwargs: bregman(logprob, ref_logprob),
    "wrapped": functools.wraps(bregman)(lambda *a: bregman(*a)),
    "two dimensions": asserts_two_dimensions,
    "parameter": lambda logprob, ref_logprob: closes_over_a_parameter(logprob, ref_logprob) / 2,
    "prints": prints,
    "warns": warns,
}

CHANGES = {
    "in place": add_in_place,
    "data in place": clamp_data_in_place,
    "seeds": seeds_the_world,
    "default dtype": changes_the_dtype,
    "gradient mode": turns_gradients_off,
    "anomaly mode": turns_anomalies_on,
    "default device": chooses_a_device,
    "threads": chooses_threads,
    "determinism": wants_determinism,
}


# --- the checks --------------------------------------------------------------------------------


def state():
    return (
        torch.get_rng_state().tolist(),
        np.random.get_state()[1].tolist(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_anomaly_enabled(),
        torch.get_num_threads(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        warnings.filters[:],
    )


def codes(report):
    return {finding.code for finding in report.findings}


def is_a_report(report):
    """Text, a page and JSON, whatever was brought."""
    text = str(report)
    assert text.strip()
    assert len(text.splitlines()) <= 45
    assert report._repr_html_().strip()
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain
    for finding in report.findings:
        assert finding.code
        assert finding.sentence.strip()
    for part in (report.value, report.gradient):
        assert part.verdict in ("fits", "zero", "unknown", "not_asked")
        assert bool(part.terms) == (part.verdict == "fits")
        assert all(math.isfinite(c) for c in part.terms.values())


# Where a certain answer is the right one, (value, gradient as a loss); all others are unknown.
SURE = {
    "numpy": ({"kl_qp": 1.0}, "zero"),
    "numpy on a leaf": ({"kl_qp": 1.0}, "zero"),
    "item": ({"kl_qp": 1.0}, "zero"),
    "a constant": ("zero", "zero"),
    "zeros": ("zero", "zero"),
    "float": ("zero", "zero"),
    "a fresh leaf": ("zero", "zero"),
    "its first argument": ("unknown", "zero"),
    "its second argument": ("unknown", "zero"),
    "one argument": ({"kl_qp": -1.0}, "zero"),
}

# A call that no rule can make; the message names the roles.
NO_CALL = {"no arguments", "one argument", "five arguments", "needs a keyword"}

MUST_SAY = {
    "raises": "raises",
    "raises without a message": "raises",
    "raises what has no text": "raises",
    "out of memory": "raises",
    "memory": "raises",
    "stops an iteration": "raises",
    "recurses": "raises",
    "sorted": "not_elementwise",
    "flipped": "not_elementwise",
    "misaligned": "not_elementwise",
    "repeated mean": "not_elementwise",
    "depends on the batch": "not_elementwise",
    "clipped at a quantile": "not_elementwise",
    "whitened": "not_elementwise",
    "nested": "bad_return",
    "transposed": "bad_return",
    "a generator": "bad_return",
    "tuple": "bad_return",
    "none": "bad_return",
    "integers": "bad_return",
    "keep or drop": "bad_return",
    "complex": "bad_return",
    "sparse": "bad_return",
    "meta": "bad_return",
    "softmax": "not_elementwise",
    "max": "aggregation",
    "median": "aggregation",
    "standard deviation": "aggregation",
    "noise": "random",
    "stateful": "random",
    "running sum": "not_elementwise",
    "centred": "not_elementwise",
    "times probability": "not_difference",
    "over logprob": "not_difference",
    "kl_div": "not_difference",
}


def answer(part):
    return part.terms if part.verdict == "fits" else part.verdict


@pytest.mark.parametrize("usage", ["metric", "loss"])
@pytest.mark.parametrize("name", sorted(set(NO_ANSWER) - NO_CALL))
def test_what_has_no_answer_gets_none(name, usage):
    report = kllab.audit(NO_ANSWER[name], usage=usage, claim="kl_pq")
    is_a_report(report)
    value, gradient = SURE.get(name, ("unknown", "unknown"))
    assert answer(report.value) in ("unknown", value)
    assert answer(report.gradient) in ("unknown", gradient, "not_asked")
    assert (report.gradient.verdict == "not_asked") == (usage == "metric")
    assert report.agrees is not True
    assert codes(report)
    assert MUST_SAY.get(name, "anything") in codes(report) | {"anything"}


@pytest.mark.parametrize("name", sorted(NO_CALL))
def test_what_cannot_be_called_by_any_rule_is_refused(name):
    with pytest.raises(kllab.InputError, match="logprob, ref_logprob, old_logprob, mask"):
        kllab.audit(NO_ANSWER[name])


@pytest.mark.parametrize("name", HONEST)
def test_what_is_written_in_another_way_gets_the_same_answer(name, capsys):
    report = kllab.audit(HONEST[name], usage="loss", claim="kl_pq")
    is_a_report(report)
    assert (answer(report.value), answer(report.gradient)) == ({"kl_qp": 1.0}, {"kl_pq": 1.0})
    assert not codes(report) & {"raises", "unknown", "not_elementwise", "not_difference"}
    capsys.readouterr()


@pytest.mark.parametrize("name", sorted({*NO_ANSWER, *HONEST, *CHANGES} - NO_CALL))
def test_the_world_is_as_it_was(name, capsys):
    fn = (NO_ANSWER | HONEST | CHANGES)[name]
    before, threads = state(), torch.get_num_threads()
    try:
        kllab.audit(fn, usage="both")
        after = state()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
        torch.autograd.set_detect_anomaly(False)
        torch.set_default_device("cpu")
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    assert after == before


def test_a_run_repeats_itself():
    """Nothing is drawn from the global generators, so two audits are one."""
    one = kllab.audit(upside_down, usage="both", claim="kl_qp").to_dict()
    torch.manual_seed(5)
    assert kllab.audit(upside_down, usage="both", claim="kl_qp").to_dict() == one


def test_edits_of_the_inputs_are_seen():
    report = kllab.audit(add_in_place, usage="metric")
    assert "mutates_input" in codes(report)
    assert answer(report.value) in ("unknown", {"kl_qp": 1.0})
    assert "mutates_input" in codes(kllab.audit(clamp_data_in_place, usage="loss"))
    assert "mutates_input" not in codes(kllab.audit(bregman, usage="both"))


@pytest.mark.parametrize("fn", [noisy, drops_out, Stateful()])
def test_chance_and_memory_are_no_certainty(fn):
    report = kllab.audit(fn, usage="metric", claim="kl_qp")
    assert report.value.verdict == "unknown"
    assert not report.agrees


@pytest.mark.parametrize(
    "fn",
    [
        through_data,
        through_numpy,
        item_by_item,
        to_numpy,
        turns_off_a_leaf,
        detaches_in_place,
        for_inference,
        torch.no_grad()(bregman),
        lambda a, b: bregman(a, b).detach(),
        lambda a, b: torch.nn.Parameter(bregman(a, b)),
    ],
)
def test_a_value_without_a_gradient(fn):
    """The value stands; minimising it moves nothing."""
    assert answer(kllab.audit(fn, usage="metric").value) in ({"kl_qp": 1.0}, "unknown")
    report = kllab.audit(fn, usage="loss", claim="kl_qp")
    assert report.gradient.verdict == "zero"
    assert "no_grad" in codes(report)
    assert report.agrees is False


def test_no_grad_is_told_from_no_expected_gradient():
    assert "no_grad" in codes(kllab.audit(torch.no_grad()(half_square), usage="loss"))
    assert "no_grad" not in codes(kllab.audit(log_ratio, usage="loss"))
    assert "zero_gradient" in codes(kllab.audit(log_ratio, usage="loss"))


@pytest.mark.parametrize(
    "fn", [rejects_gradients, rejects_float64, custom_backward_raises, calls_backward]
)
def test_functions_that_refuse_some_inputs(fn):
    report = kllab.audit(fn, usage="loss", claim="kl_pq")
    is_a_report(report)
    assert answer(report.value) in ({"kl_qp": pytest.approx(1.0, abs=1e-4)}, "unknown")
    assert answer(report.gradient) in (
        "unknown",
        {rejects_float64: {"kl_pq": pytest.approx(1.0, abs=1e-4)}, rejects_gradients: "zero"}.get(
            fn, "unknown"
        ),
    )
    assert codes(report)


def test_a_backward_of_its_own_is_what_counts():
    """The value is k3, the gradient that of −7 log r: none on average."""
    report = kllab.audit(custom_backward_lies, usage="loss")
    assert (answer(report.value), answer(report.gradient)) == ({"kl_qp": 1.0}, "zero")


def test_half_precision_is_not_judged():
    report = kllab.audit(half_precision, usage="both")
    assert (report.value.verdict, report.gradient.verdict) == ("unknown", "unknown")


def test_a_function_that_is_nowhere_a_number():
    for fn in (nan_everywhere, lambda a, b: torch.full_like(a, math.inf)):
        report = kllab.audit(fn, usage="both")
        assert (report.value.verdict, report.gradient.verdict) == ("unknown", "unknown")


def test_nan_at_one_point_is_no_certainty_and_no_traceback():
    report = kllab.audit(nan_at_zero, usage="both")
    is_a_report(report)
    assert answer(report.value) in ("unknown", {"kl_qp": 1.0})


def test_one_layer_of_a_network_is_a_multiple_of_k1():
    report = kllab.audit(a_network, usage="both")
    is_a_report(report)
    slope = float(LINEAR.weight)
    assert answer(report.value) == {"kl_qp": pytest.approx(slope, rel=1e-4)}
    assert LINEAR.weight.grad is None


def test_parameters_keep_no_gradient():
    kllab.audit(closes_over_a_parameter, usage="both")
    assert PARAMETER.grad is None


def test_value_and_gradient_clamped_at_different_places():
    report = kllab.audit(half_clamped, usage="loss", claim="kl_qp")
    assert answer(report.value) == {"kl_qp": 1.0}
    assert answer(report.gradient) == {"kl_qp": 1.0}
    assert report.gradient.region == pytest.approx((-3, 3), abs=1e-3)
    assert report.value.region == pytest.approx((-2.5, 1.5), abs=1e-3)
    assert "clamp_value" in codes(report)
    assert "clamp_gradient" not in codes(report)


def test_wrong_signs_of_everything():
    for usage in ("metric", "loss", "reward", "both"):
        fn = {"loss": half_square, "reward": log_ratio}.get(usage, bregman)
        right = kllab.audit(fn, usage=usage, claim="kl_qp")
        wrong = kllab.audit(lambda a, b, fn=fn: -fn(a, b), usage=usage, claim="kl_qp")
        assert "wrong_sign" in codes(wrong)
        assert "wrong_sign" not in codes(right)
        assert (right.agrees, wrong.agrees) == (True, False)


def test_an_interrupt_passes_through():
    with pytest.raises(KeyboardInterrupt):
        kllab.audit(raises(KeyboardInterrupt))


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("usage", {"usage": "metrics"}),
        ("samples", {"samples": "logprobs"}),
        ("names", {"names": ("logprob", "reference")}),
        ("names", {"names": ("logprob", "logprob")}),
        ("names", {"names": ("logprob",)}),
        ("claim", {"claim": "kl"}),
    ],
)
def test_a_wrong_word_is_an_error_that_names_it(argument, call):
    with pytest.raises((kllab.InputError, KeyError), match=argument):
        kllab.audit(bregman, **call)


def test_what_cannot_be_called_is_an_error():
    with pytest.raises((kllab.InputError, TypeError)):
        kllab.audit(3)
