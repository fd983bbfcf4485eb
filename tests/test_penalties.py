"""Penalties: value, expected gradient, and finiteness under masks, -inf and half precision."""

import inspect
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kllab import penalties
from kllab.checks import InputError
from kllab.sequences import HOW, aggregate

NAN, INF = math.nan, math.inf


def on_policy_weighted(logprob, ref_logprob, mask=None, **options):
    return penalties.weighted_k3(logprob, ref_logprob, logprob.detach(), mask, **options)


BY_TOKEN = {
    "k1_in_reward": penalties.k1_in_reward,
    "k2_in_loss": penalties.k2_in_loss,
    "weighted_k3": on_policy_weighted,
    "k3_with_k2_gradient": penalties.k3_with_k2_gradient,
}
VALUES = {
    "k1_in_reward": lambda l: l,
    "k2_in_loss": lambda l: l**2 / 2,
    "weighted_k3": lambda l: math.expm1(-l) + l,
    "k3_with_k2_gradient": lambda l: math.expm1(-l) + l,
}
IN_LOSS = [name for name in BY_TOKEN if name != "k1_in_reward"]


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


# --- what the penalty is worth, and what it pushes on


@given(
    st.lists(
        st.tuples(st.floats(-20, 0), st.floats(-20, 0), st.booleans()), min_size=1, max_size=6
    ),
    st.sampled_from(sorted(BY_TOKEN)),
    st.sampled_from([NAN, INF, -INF, 1e300]),
)
def test_values_and_gradients_token_by_token(tokens, name, rubbish):
    *log_probs, keep = zip(*tokens, strict=True)
    keep = torch.tensor(keep)
    q, p = (torch.tensor(x).double() for x in np.array(log_probs))
    q, p = (x.masked_fill(~keep, rubbish) for x in (q, p))
    q.requires_grad_()
    p.requires_grad_()
    got = BY_TOKEN[name](q, p, keep)
    l = np.array([a - b if k else 0.0 for a, b, k in tokens])
    # k3 and its own derivative pass through e^(-l), so that much rounding is unavoidable.
    rounding = 1e-15 * (1 + np.exp(-l) + np.abs(l))
    assert (
        abs(got.detach().numpy() - [VALUES[name](x) for x in l]) <= rounding + 1e-15 * l**2
    ).all()
    if name == "k1_in_reward":
        assert not got.requires_grad
        return
    got.sum().backward()
    assert p.grad is None  # the reference is a constant
    assert (abs(q.grad.numpy() - l) <= rounding).all()


@pytest.mark.parametrize("name", BY_TOKEN)
@pytest.mark.parametrize("how", [None, *HOW])
def test_aggregated_or_not(name, how):
    rng = np.random.default_rng(0)
    q, p = -torch.tensor(rng.exponential(size=(2, 3, 5)))
    mask = torch.tensor(rng.integers(0, 2, size=(3, 5)))
    per_token = BY_TOKEN[name](q, p, mask)
    assert per_token.shape == (3, 5)
    assert (per_token[mask == 0] == 0).all()
    assert (per_token[mask == 1] != 0).all()
    if how is not None:
        got = BY_TOKEN[name](q, p, mask, how=how)
        assert float(got) == pytest.approx(float(aggregate(per_token, mask, how=how)), rel=1e-14)


def off_policy():
    """The printed 8-token case: reference, old and new policy, half a logit apart."""
    rng = np.random.default_rng(3)
    first = rng.normal(size=8)
    old = softmax(first + 0.5 * rng.normal(size=8))
    new = softmax(np.log(old) + 0.5 * rng.normal(size=8))
    return softmax(first), old, new


def expected(sampler, penalty, new):
    """E over the sampler of a per-token penalty, and its gradient on new's logits."""
    logits = torch.tensor(np.log(new)).requires_grad_()
    logprob = torch.log_softmax(logits, -1)
    value = torch.tensor(sampler) @ penalty(logprob)
    gradient = torch.autograd.grad(value, logits)[0].numpy() if value.requires_grad else None
    return float(value.detach()), gradient


def kl_gradient(q, p):
    """∇KL(q‖p) on q's logits, by the chain rule on paper: q (l − KL)."""
    l = np.log(q / p)
    return q * (l - q @ l)


def relative(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def test_stale_samples_by_enumeration():
    ref, old, new = off_policy()
    log_ref, log_old = torch.tensor(np.log(ref)), torch.tensor(np.log(old))
    kl, true = float(new @ np.log(new / ref)), kl_gradient(new, ref)
    assert kl == pytest.approx(0.08020, abs=5e-6)
    value, gradient = expected(old, lambda x: penalties.weighted_k3(x, log_ref, log_old), new)
    assert value == pytest.approx(kl, rel=1e-12)
    assert relative(gradient, true) < 1e-14
    # Without the weight, values and gradients are those that were printed, and wrong.
    value, gradient = expected(old, lambda x: penalties.k3_with_k2_gradient(x, log_ref), new)
    assert value == pytest.approx(0.08569, abs=5e-6)
    assert relative(gradient, true) == pytest.approx(0.196, abs=5e-4)
    value, gradient = expected(old, lambda x: penalties.k1_in_reward(x, log_ref), new)
    assert value == pytest.approx(0.03757, abs=5e-6)
    assert gradient is None
    _, gradient = expected(old, lambda x: penalties.k2_in_loss(x, log_ref), new)
    assert relative(gradient, true) == pytest.approx(0.196, abs=5e-4)


THREE = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])


@pytest.mark.parametrize("name", IN_LOSS)
def test_each_loss_follows_kl_qp_on_policy(name):
    q, p = THREE
    log_p = torch.tensor(np.log(p))
    value, gradient = expected(q, lambda x: BY_TOKEN[name](x, log_p), q)
    np.testing.assert_allclose(gradient, kl_gradient(q, p), rtol=1e-12)
    np.testing.assert_allclose(gradient, [0.26308, -0.17539, -0.08769], atol=5e-6)
    printed = 0.18168 if name == "k2_in_loss" else 0.18379
    assert value == pytest.approx(printed, abs=5e-6)


def test_k1_in_reward_follows_kl_qp():
    q, p = THREE
    log_p = torch.tensor(np.log(p))
    gradient = expected(q, lambda x: penalties.k1_in_reward(x, log_p) * x, q)[1]
    np.testing.assert_allclose(gradient, kl_gradient(q, p), rtol=1e-12)


def test_full_kl_follows_kl_qp_and_is_what_the_samples_estimate():
    q, p = THREE
    logits = torch.tensor(np.log(q) + 3.0).requires_grad_()
    ref = torch.tensor(np.log(p) - 2.0).requires_grad_()
    got = penalties.full_kl(logits, ref)
    assert got.shape == ()
    assert float(got.detach()) == pytest.approx(float(q @ np.log(q / p)), rel=1e-13)
    got.backward()
    np.testing.assert_allclose(logits.grad, kl_gradient(q, p), rtol=1e-12)
    assert ref.grad is None


@pytest.mark.parametrize("how", HOW)
def test_full_kl_over_masked_rows(how):
    rng = np.random.default_rng(1)
    logits, ref = torch.tensor(rng.normal(size=(2, 2, 3, 4)))
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    want = [
        [float(a @ np.log(a / b)) for a, b in zip(map(softmax, x), map(softmax, y), strict=True)]
        for x, y in zip(logits.numpy(), ref.numpy(), strict=True)
    ]
    logits = logits.masked_fill(mask[..., None] == 0, NAN).requires_grad_()
    ref = ref.masked_fill(mask[..., None] == 0, -INF)
    got = penalties.full_kl(logits, ref, mask)
    np.testing.assert_allclose(got.detach(), want * mask.numpy(), rtol=1e-12, atol=0)
    penalties.full_kl(logits, ref, mask, how=how).backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[mask == 0] == 0).all()
    assert (logits.grad[mask == 1] != 0).any(-1).all()


# --- finite, always


EXTREMES = [0.0, -1e-7, -1.0, -30.0, -79.0, -81.0, -1e4, -INF]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", BY_TOKEN)
def test_finite_at_every_extreme_in_every_precision(name, dtype):
    q, p = (
        torch.tensor(x, dtype=dtype)
        for x in zip(*itertools.product(EXTREMES, repeat=2), strict=True)
    )
    q.requires_grad_()
    got = BY_TOKEN[name](q, p)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.isfinite(got).all()
    assert torch.isfinite(got.sum())
    if name != "k1_in_reward":
        got.sum().backward()
        assert q.grad.dtype == dtype
        assert torch.isfinite(q.grad).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weighted_k3_is_finite_for_any_old_policy(dtype):
    q, p, old = (
        torch.tensor(x, dtype=dtype)
        for x in zip(*itertools.product(EXTREMES, repeat=3), strict=True)
    )
    q.requires_grad_()
    got = penalties.weighted_k3(q, p, old)
    assert torch.isfinite(got).all()
    got.sum().backward()
    assert torch.isfinite(q.grad).all()
    # A policy that has given a token up, on samples that still hold it: p/μ remains, no push.
    value = penalties.weighted_k3(*(torch.tensor(x) for x in (-INF, -1.5, -1.0)))
    assert float(value) == pytest.approx(math.exp(-0.5), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_full_kl_is_finite_at_every_extreme(dtype):
    logits = torch.tensor([[0.0, x, y] for x, y in itertools.product(EXTREMES, repeat=2)])
    logits = logits.to(dtype)
    q = logits[:, None].expand(-1, len(logits), -1).clone().requires_grad_()
    p = logits[None].expand(len(logits), -1, -1)
    got = penalties.full_kl(q, p)
    assert torch.isfinite(got).all()
    assert (got >= -1e-6).all()
    got.sum().backward()
    assert torch.isfinite(q.grad).all()


@pytest.mark.parametrize("name", BY_TOKEN)
@pytest.mark.parametrize("how", HOW)
def test_nothing_leaks_from_masked_places_through_a_softmax(name, how):
    """Padding whose logits are NaN or -inf: the gradient on them is exactly zero."""
    logits = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    logits[0, 2], logits[0, 3, 1] = NAN, -INF
    logits[1, 3] = INF
    logits.requires_grad_()
    logprob = torch.log_softmax(logits, -1)[..., 1]
    ref = torch.full((2, 4), -2.0).masked_fill(mask == 0, NAN)
    got = BY_TOKEN[name](logprob, ref, mask, how=how)
    assert torch.isfinite(got)
    if name != "k1_in_reward":
        (gradient,) = torch.autograd.grad(got, logprob)
        assert (gradient[mask == 0] == 0).all()
        assert (gradient[mask == 1] != 0).all()


def test_half_precision_is_raised_before_it_is_subtracted():
    # bf16 has 8 digits of two; the difference of two exact bf16 numbers is exact in float32.
    q, p = torch.tensor([-10.0625, -3.015625]).bfloat16(), torch.tensor([-10.0, -3.0]).bfloat16()
    want = (q.double() - p.double()).float()
    assert penalties.k1_in_reward(q, p).equal(want)
    assert penalties.k2_in_loss(q, p).equal(want**2 / 2)


# --- the clamps, by name


def test_the_floor_and_where_it_binds():
    q = torch.tensor([-79.0, -90.0, -INF], dtype=torch.float64, requires_grad=True)
    p = torch.full((3,), -1.0, dtype=torch.float64)
    got = penalties.k2_in_loss(q, p)
    np.testing.assert_allclose(got.detach(), [78**2 / 2, 79**2 / 2, 79**2 / 2])
    got.sum().backward()
    assert q.grad.tolist() == [-78.0, 0.0, 0.0]
    lower = penalties.k1_in_reward(q, p, floor=-100.0)
    assert lower.tolist() == [-78.0, -89.0, -99.0]
    assert penalties.FLOOR == -80.0
    both = torch.tensor([-INF])
    assert penalties.k1_in_reward(both, both).tolist() == [0.0]


def test_max_log_ratio_is_off_unless_asked_for():
    q = torch.tensor([-1.0, -1.0, -9.0], dtype=torch.float64, requires_grad=True)
    p = torch.tensor([-1.5, -9.0, -1.0], dtype=torch.float64)
    assert penalties.k1_in_reward(q, p, max_log_ratio=2.0).tolist() == [0.5, 2.0, -2.0]
    clamped = penalties.k2_in_loss(q, p, max_log_ratio=2.0)
    assert clamped.tolist() == [0.125, 2.0, 2.0]
    gradient = torch.autograd.grad(clamped.sum(), q)[0]
    assert gradient.tolist() == [0.5, 0.0, 0.0]
    through = penalties.k3_with_k2_gradient(q, p, max_log_ratio=2.0)
    np.testing.assert_allclose(
        through.detach(), [VALUES["weighted_k3"](x) for x in (0.5, 2.0, -2.0)], rtol=1e-12
    )
    assert torch.autograd.grad(through.sum(), q)[0].tolist() == [0.5, 8.0, -8.0]
    weighted = penalties.weighted_k3(q, p, q.detach(), max_log_ratio=2.0)
    np.testing.assert_allclose(
        weighted.detach(), [VALUES["weighted_k3"](x) for x in (0.5, 2.0, -2.0)], rtol=1e-12
    )
    # Beyond the clamp k3 is a constant, and w's derivative is left.
    np.testing.assert_allclose(
        torch.autograd.grad(weighted.sum(), q)[0],
        [0.5, VALUES["weighted_k3"](2.0), VALUES["weighted_k3"](-2.0)],
        rtol=1e-12,
    )


def test_max_log_weight_cuts_the_size_and_keeps_the_derivative():
    q = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
    p, old = torch.tensor([-2.0, -2.0]).double(), torch.tensor([-1.5, -11.0]).double()
    old.requires_grad_()
    got = penalties.weighted_k3(q, p, old, max_log_weight=1.0)
    k3 = VALUES["weighted_k3"](1.0)
    np.testing.assert_allclose(got.detach(), [math.exp(0.5) * k3, math.e * k3], rtol=1e-12)
    got.sum().backward()
    np.testing.assert_allclose(q.grad, [math.exp(0.5), math.e], rtol=1e-12)
    assert old.grad is None
    capped = penalties.weighted_k3(q.detach(), p, old)[1]
    assert float(capped) == pytest.approx(math.exp(5) * k3, rel=1e-12)


# --- bad input, and the promise that one can paste them


@pytest.mark.parametrize("name", BY_TOKEN)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ref_logprob": torch.zeros(2, 1)}, r"ref_logprob: expected shape \(2, 3\)"),
        ({"mask": torch.ones(2, 1)}, r"mask: expected shape \(2, 3\), got shape \(2, 1\)"),
        ({"mask": torch.full((2, 3), 0.5)}, "mask: expected booleans, or zeros and ones"),
        ({"logprob": torch.zeros(2, 3).int()}, "logprob: expected floating"),
        ({"ref_logprob": torch.full((2, 3), NAN)}, "ref_logprob: expected no NaN"),
        ({"logprob": torch.full((2, 3), INF)}, r"logprob: expected no NaN and no \+inf"),
        ({"floor": -INF}, "floor: expected a finite number"),
        ({"how": "mean"}, "how: expected one of"),
    ],
)
def test_bad_input(name, changes, message):
    arguments = {"logprob": torch.zeros(2, 3), "ref_logprob": torch.zeros(2, 3)}
    with pytest.raises(InputError, match=message):
        BY_TOKEN[name](**(arguments | changes))


def test_bad_old_logprob():
    zeros = torch.zeros(2, 3)
    with pytest.raises(InputError, match=r"old_logprob: expected shape \(2, 3\)"):
        penalties.weighted_k3(zeros, zeros, torch.zeros(2, 1))
    with pytest.raises(InputError, match="old_logprob: expected no NaN"):
        penalties.weighted_k3(zeros, zeros, torch.full((2, 3), NAN))


@pytest.mark.parametrize(
    ("logits", "ref", "mask", "message"),
    [
        ([[0.0, 1.0]], [[0.0, 1.0, 2.0]], None, r"ref_logits: expected shape \(1, 2\)"),
        ([[0.0, NAN]], [[0.0, 1.0]], None, "logits: expected no NaN"),
        ([[0.0, INF]], [[0.0, 1.0]], None, r"logits: expected no NaN and no \+inf"),
        ([[0.0, 1.0]], [[-INF, -INF]], None, "ref_logits: expected a possible token"),
        ([[0.0, 1.0]], [[0.0, 1.0]], [1.0, 1.0], r"mask: expected shape \(1,\)"),
        (1.0, 1.0, None, "logits: expected a trailing vocabulary axis"),
    ],
)
def test_full_kl_refuses(logits, ref, mask, message):
    mask = None if mask is None else torch.tensor(mask)
    with pytest.raises(InputError, match=message):
        penalties.full_kl(torch.tensor(logits), torch.tensor(ref), mask)


PASTED = (*VALUES, "full_kl")


@pytest.mark.parametrize("name", PASTED)
def test_each_runs_where_kllab_is_not(name):
    """The function and ``clean``, less the lines that the module's head says to leave out."""
    lines = inspect.getsource(getattr(penalties, name)).splitlines()
    kept = [
        line for line in lines if not line.strip().startswith(("_check", "if how", "return agg"))
    ]
    assert len(lines) - len(kept) == 3
    source = inspect.getsource(penalties.clean) + "\n" + "\n".join(kept)
    namespace = {"torch": torch, "Tensor": torch.Tensor, "math": math}
    namespace |= {"FLOOR": penalties.FLOOR, "MAX_LOG_WEIGHT": penalties.MAX_LOG_WEIGHT}
    exec(source, namespace)
    inputs = -torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(0))
    count = 3 if name == "weighted_k3" else 2
    mask = torch.tensor([1, 0]) if name == "full_kl" else torch.ones(2, 4)
    got = namespace[name](*inputs[:count], mask)
    assert got.equal(getattr(penalties, name)(*inputs[:count], mask))
