"""What chapter 15 says: the functions and runs of its cells, against sums written here."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import pytest
import torch

import kllab
from kllab import runtime

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "15_audit_your_own.ipynb"
Q = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
P = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
OLD = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
KL = float((Q * (Q / P).log()).sum())
CHI2 = float((Q**2 / P).sum()) - 1


@cache
def cells() -> dict[str, str]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return {c["id"]: "".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"}


@cache
def page(*names: str) -> dict:
    """What the named cells define, after those that every cell needs."""
    space: dict = {}
    for name in ("imports", *names):
        exec(compile(cells()[name], name, "exec"), space)
    return space


FUNCTIONS = page(
    "two", "fit", "verdicts", "one-code", "clamp-code", "stale-code", "mask-code", "rollout-code"
)


def mean_and_gradient(fn, weights=Q, *more):
    """E under ``weights`` of fn's value, and of its gradient in logits of the policy."""
    logits = Q.log().requires_grad_()
    logprob = torch.log_softmax(logits, -1)
    values = torch.stack(
        [fn(logprob[i : i + 1], P[i : i + 1].log(), *(m[i : i + 1] for m in more)).sum()
         for i in range(3)]
    )  # fmt: skip
    (gradient,) = torch.autograd.grad((weights * values).sum(), logits)
    return float((weights * values.detach()).sum()), gradient


TRUE = Q * ((Q / P).log() - KL)  # ∇KL(q‖p) in logits
OTHER = Q - P  # ∇KL(p‖q)
HALF_CHI2 = Q * (Q / P - float((Q * Q / P).sum()))  # ∇½χ²(q‖p)


# --- the two of the puzzle, and the fit -----------------------------------------------------------


def test_what_the_two_of_the_puzzle_estimate_and_follow():
    value, gradient = mean_and_gradient(FUNCTIONS["hers"])
    assert value == pytest.approx(KL, abs=1e-12)
    assert torch.allclose(gradient, OTHER, atol=1e-12)
    value, gradient = mean_and_gradient(FUNCTIONS["his"])
    assert value == pytest.approx(CHI2 - KL, abs=1e-12)
    assert torch.allclose(gradient, HALF_CHI2, atol=1e-12)


def test_near_the_reference_a_log_does_not_tell_them_apart():
    """Closed forms for a shift of .1: KL .005 and χ² − KL .00505."""
    upside_down = math.expm1(0.01) - 0.005
    assert upside_down == pytest.approx(0.00505, abs=1e-6)
    sd = math.sqrt(math.expm1(0.01) - 0.01)
    assert abs(upside_down - 0.005) < 2 * sd / math.sqrt(4_000)


@pytest.mark.parametrize(
    ("fn", "value", "gradient"),
    [
        (lambda a, b: a - b, {"kl_qp": 1.0}, {}),
        (lambda a, b: (b - a).exp() - 1 - (b - a), {"kl_qp": 1.0}, {"kl_pq": 1.0}),
        (lambda a, b: ((b - a).exp() - 1) ** 2, {"chi2_pq": 1.0}, {"kl_pq": -2.0, "chi2_pq": 2.0}),
    ],
)
def test_the_page_fit_finds_the_amounts(fn, value, gradient):
    """By hand: −h' of k1 is 1, of k3 1 − r, of (r − 1)² it is 2r − 2r²."""
    (found, left), (pushed, left_too) = FUNCTIONS["read"](fn)
    assert max(left, left_too) < 1e-9
    assert found == pytest.approx(value, abs=1e-7)
    assert pushed == pytest.approx(gradient, abs=1e-7)


def test_what_is_no_combination_leaves_something_over():
    (_, left), (pushed, left_too) = FUNCTIONS["read"](lambda a, b: (a - b).square() / 2)
    assert left > 1e-4
    assert left_too < 1e-9
    assert pushed == pytest.approx({"kl_qp": 1.0}, abs=1e-7)


# --- the five functions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "usage", "agrees", "codes"),
    [
        ("log_ratio", "loss", False, {"zero_gradient"}),
        ("log_ratio", "metric", True, set()),
        ("half_square", "loss", True, set()),
        ("clamped", "loss", False, {"wrong_direction", "clamp_value", "clamp_gradient"}),
        ("straight_through", "loss", True, {"clamp_value"}),
    ],
)
def test_functions_of_two_log_probabilities(name, usage, agrees, codes):
    report = kllab.audit(FUNCTIONS[name], usage=usage, claim="kl_qp")
    assert report.agrees is agrees
    assert codes <= set(report.codes)
    if usage == "loss":  # the same by an exact sum
        _, gradient = mean_and_gradient(FUNCTIONS[name])
        assert torch.allclose(gradient, TRUE, atol=1e-10) is agrees


@pytest.mark.parametrize(
    ("name", "agrees", "code"),
    [("stale", None, "off_policy"), ("constant_weight", False, "wrong_direction"),
     ("weighted", True, None)],
)  # fmt: skip
def test_functions_of_stale_samples(name, agrees, code):
    report = kllab.audit(FUNCTIONS[name], usage="loss", samples="old_logprob", claim="kl_qp")
    assert report.agrees is agrees
    assert code is None or code in report.codes
    _, gradient = mean_and_gradient(FUNCTIONS[name], OLD, OLD.log())
    assert torch.allclose(gradient, TRUE, atol=1e-10) is (agrees is True)
    assert torch.allclose(gradient, OTHER, atol=1e-10) is (name == "constant_weight")


@pytest.mark.parametrize(
    ("name", "code"),
    [("mask_after", "padding_leak"), ("padded", "padding_in_mean"), ("mask_before", None)],
)
def test_functions_with_a_mask(name, code):
    fn = FUNCTIONS[name]
    report = kllab.audit(fn, claim="kl_qp")
    faults = {"padding_leak", "padding_in_mean"} & set(report.codes)
    assert faults == ({code} if code else set())
    a, b = torch.tensor([[-1.0, -2.0, -1.0]]), torch.tensor([[-1.5, -1.0, -1.0]])
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    k3 = [math.exp(d) - 1 - d for d in (-0.5, 1.0)]
    right = float(fn(a, b, mask)) == pytest.approx(sum(k3) / 2, rel=1e-5)
    assert right is (name != "padded")
    b[0, 2] = math.inf
    assert math.isnan(fn(a, b, mask)) is (name == "mask_after")


def test_rollout_samples_turn_the_sign():
    """(.6, .25, .15) trains, (.7, .2, .1) sampled: the mean of log train − log rollout."""
    train = torch.tensor([0.6, 0.25, 0.15], dtype=torch.float64)
    mean = float((Q * (train / Q).log()).sum())
    assert mean == pytest.approx(-0.0227, abs=5e-5)
    how = {"samples": "ref_logprob", "names": ("logprob", "ref_logprob"), "claim": "kl_qp"}
    assert kllab.audit(FUNCTIONS["rollout_kl"], **how).value.terms == {"kl_qp": -1.0}
    assert kllab.audit(FUNCTIONS["repaired"], **how).agrees is True


def test_the_average_of_both_is_half_of_a_chi_squared():
    value, gradient = mean_and_gradient(
        lambda *args: (FUNCTIONS["hers"](*args) + FUNCTIONS["his"](*args)) / 2
    )
    assert value == pytest.approx(CHI2 / 2, abs=1e-12)
    assert torch.allclose(gradient, OTHER / 2 + HALF_CHI2 / 2, atol=1e-12)


# --- runs -----------------------------------------------------------------------------------------

RUNS = page("laws", "pick", "sick", "sick-too", "blind", "break-it", "break-solution")
WANTED = {
    "top_two": "negative_kl",
    "swapped": "swapped",
    "misaligned": "misaligned",
    "padding_counted": "padding",
    "cooler_engine": "temperature",
    "rounding": "noise",
}
SEEDS = range(1, 9)


def drawn(name: str, seed: int):
    draw = runtime.generator(f"test 15 {name}", seed)
    q, p = RUNS["laws"](draw)
    return kllab.diagnose(*RUNS[name](q, p, draw)), q, p


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_run_is_called_healthy(seed):
    d, q, p = drawn("healthy", seed)
    assert d.healthy, d.codes
    exact = float((q.exp() * (q - p)).sum(-1).mean())
    assert abs(d.k1.value - exact) < 5 * d.k1.error
    assert abs(d.k3.value - exact) < 5 * d.k3.error


@pytest.mark.parametrize("name", WANTED)
def test_a_sick_run_is_found_whatever_the_seed(name):
    for seed in SEEDS:
        d, *_ = drawn(name, seed)
        assert WANTED[name] in d.codes, (seed, d.codes)


@pytest.mark.parametrize("name", ["moved_back", "cooler_than_both"])
def test_what_the_page_calls_blind_passes_and_is_off(name):
    for seed in SEEDS:
        d, q, p = drawn(name, seed)
        exact = float((q.exp() * (q - p)).sum(-1).mean())
        assert d.healthy, (seed, d.codes)
        assert d.mean_ratio.value < 1
    assert d.k1.value > 1.2 * exact


def test_noise_between_engines_is_half_its_square_in_k3_and_nothing_in_k1():
    draw = runtime.generator("test 15 noise", 0)
    x = 0.05 * torch.randn(400_000, generator=draw, dtype=torch.float64)
    for estimator, mean in ((kllab.K1, 0.0), (kllab.K3, math.expm1(0.05**2 / 2))):
        v = estimator(x)
        assert abs(float(v.mean()) - mean) < 5 * float(v.std()) / len(x) ** 0.5
    assert math.expm1(0.05**2 / 2) == pytest.approx(0.00125, abs=1e-6)


def test_a_reference_that_sums_to_less_than_one_passes():
    for seed in SEEDS:
        draw = runtime.generator("test 15 quieter", seed)
        a, b = RUNS["healthy"](*RUNS["laws"](draw), draw)
        before, after = kllab.diagnose(a, b), kllab.diagnose(*RUNS["quieter"](a, b))
        assert after.healthy
        assert after.k1.value - before.k1.value == pytest.approx(0.01, abs=1e-9)


def test_a_damaged_run_is_noticed():
    draw = runtime.generator("test 15 damage", 0)
    a, b = RUNS["healthy"](*RUNS["laws"](draw), draw)
    assert "misaligned" in kllab.diagnose(*RUNS["damage"](a, b)).codes
