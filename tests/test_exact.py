"""Exact sums, their gradients, and moments: against 50-digit sums, closed forms, quadrature."""

import dataclasses
import math

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy import stats

from kllab import K1, K2, K3, InputError, exact, pairs
from kllab.divergences import DIVERGENCES, HALF_SQUARED_LOG, get
from kllab.estimators import bregman, with_lambda

NAMES = [*oracles.REGISTERED, "half_squared_log", "half_r_squared_log"]
ALL = [*NAMES, "alpha(0.3)", "alpha(-1.5)", "alpha(2.5)", "alpha(1.000001)"]
NEVER = -math.inf


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def log(*values):
    return f64(*values).log()


def random_logits(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, dtype=torch.float64, generator=generator)


def law(*shape, seed=0, scale=1.0):
    return torch.log_softmax(random_logits(*shape, seed=seed, scale=scale), -1)


def oracle(name, log_q, log_p):
    p_q = (oracles.normalised(x.tolist()) for x in (log_q, log_p))
    return float(oracles.divergence(name, *p_q))


def refused(call, argument, expected="", received=""):
    with pytest.raises(InputError) as caught:
        call()
    error = caught.value
    assert error.argument == argument
    assert expected in error.expected
    assert received in error.received


# --- divergence: values -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.3, 2.0, 8.0])
def test_sums_to_thirteen_digits(name, scale):
    log_p = law(12, seed=1)
    log_q = torch.log_softmax(log_p + random_logits(12, seed=2, scale=scale), -1)
    got = exact.divergence(name, log_q, log_p).item()
    # At distance ε the rounding of the inputs themselves is worth ulp/ε.
    tolerance = 2e-13 + 2e-15 / scale
    assert got == pytest.approx(oracle(name, log_q, log_p), rel=tolerance, abs=0)


def laws(v):
    """Two laws over v tokens on a grid of 1/64, unequal supports included."""
    counts = st.lists(st.integers(0, 12), min_size=v, max_size=v).filter(any)
    return st.tuples(counts, counts)


def as_log_law(counts):
    counts = f64(*counts)
    return (counts / counts.sum()).log()


@settings(max_examples=40)
@given(counts=st.integers(2, 6).flatmap(laws))
def test_any_supports(counts):
    """Limits at q = 0 and p = 0, infinities, and p = q = 0, all against the table of limits."""
    log_q, log_p = map(as_log_law, counts)
    q, p = ([mpf(c) / sum(side) for c in side] for side in counts)
    for name in ALL:
        got = exact.divergence(name, log_q, log_p).item()
        want = float(oracles.divergence(name, q, p))
        assert got == pytest.approx(want, rel=1e-12, abs=1e-15), name


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("kl_qp", 0.0),
        ("chi2_qp", 0.0),
        ("tv", 0.5),
        ("hellinger2", 1.0),
        ("js", math.log(2) / 2),
        ("kl_pq", math.inf),
        ("chi2_pq", math.inf),
        ("jeffreys", math.inf),
        ("half_squared_log", 0.0),
    ],
)
def test_a_token_that_q_cannot_emit(name, cost):
    """It costs p times lim f(r)/r."""
    log_q, log_p = log(0.5, 0.5, 0.0), log(0.3, 0.3, 0.4)
    on_support = 1.0 * float(oracles.value(name, math.log(0.6)))
    want = on_support + 0.4 * cost
    assert exact.divergence(name, log_q, log_p).item() == pytest.approx(want, rel=1e-14)


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("kl_qp", math.inf),
        ("chi2_qp", math.inf),
        ("jeffreys", math.inf),
        ("kl_pq", 0.0),
        ("chi2_pq", 1.0),
        ("tv", 0.5),
        ("hellinger2", 1.0),
        ("js", math.log(2) / 2),
    ],
)
def test_a_token_that_p_cannot_emit(name, cost):
    """It costs q f(0)."""
    log_q, log_p = log(0.3, 0.3, 0.4), log(0.5, 0.5, 0.0)
    want = 0.6 * float(oracles.value(name, math.log(5 / 3))) + 0.4 * cost
    assert exact.divergence(name, log_q, log_p).item() == pytest.approx(want, rel=1e-14)


@pytest.mark.parametrize("name", ALL)
def test_tokens_that_neither_emits_cost_nothing(name):
    log_q, log_p = law(4, seed=3), law(4, seed=4)
    never = f64(NEVER, NEVER)
    padded = exact.divergence(name, torch.cat([log_q, never]), torch.cat([log_p, never]))
    assert padded.item() == pytest.approx(exact.divergence(name, log_q, log_p).item(), rel=1e-15)


@pytest.mark.parametrize("name", ALL)
def test_equal_laws_and_disjoint_laws(name):
    log_q = law(3, 7)
    assert exact.divergence(name, log_q, log_q).tolist() == [0.0, 0.0, 0.0]
    apart = exact.divergence(name, log(1.0, 0.0), log(0.0, 1.0)).item()
    g = oracles.generator(name)
    assert apart == pytest.approx(g.at_zero + g.per_p, rel=1e-14)
    assert exact.divergence(name, f64(0.0), f64(0.0)).item() == 0.0  # one token


def test_known_bounds():
    assert exact.divergence("js", log(1.0, 0.0), log(0.0, 1.0)).item() == pytest.approx(math.log(2))
    assert exact.divergence("tv", log(1.0, 0.0), log(0.0, 1.0)).item() == 1.0
    assert exact.divergence("hellinger2", log(1.0, 0.0), log(0.0, 1.0)).item() == 2.0


# --- divergence: properties -------------------------------------------------------------------


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 6), v=st.integers(2, 9))
def test_non_negative_reversed_and_symmetric(seed, scale, v):
    log_q, log_p = law(2, v, seed=seed, scale=scale)
    for name in [*oracles.REGISTERED, "alpha(0.3)", "alpha(-1.5)", "alpha(2.5)"]:
        there = exact.divergence(name, log_q, log_p).item()
        assert there >= 0
        back = exact.divergence(get(name).reversed(), log_p, log_q).item()
        assert back == pytest.approx(there, rel=1e-12)
    jeffreys = exact.divergence("jeffreys", log_q, log_p).item()
    both = sum(exact.divergence(d, log_q, log_p).item() for d in ("kl_qp", "kl_pq"))
    assert jeffreys == pytest.approx(both, rel=1e-12)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 5), v=st.integers(3, 8))
def test_data_processing(seed, scale, v):
    """Merging two tokens cannot raise an f-divergence; a convex f is all that it takes."""
    log_q, log_p = law(2, v, seed=seed, scale=scale)

    def merge(log_probs):
        return torch.cat([torch.logsumexp(log_probs[:2], 0, keepdim=True), log_probs[2:]])

    for name in oracles.CONVEX:
        before = exact.divergence(name, log_q, log_p).item()
        after = exact.divergence(name, merge(log_q), merge(log_p)).item()
        assert after <= before * (1 + 1e-12) + 1e-15, name


def test_k2s_generator_fails_data_processing():
    """Two tokens with r beyond e: merging raises E[k2], so it is no f-divergence."""
    log_q, log_p = log(0.05, 0.05, 0.9), log(0.25, 0.6, 0.15)
    merged_q, merged_p = log(0.1, 0.9), log(0.85, 0.15)
    before = exact.divergence(HALF_SQUARED_LOG, log_q, log_p).item()
    after = exact.divergence(HALF_SQUARED_LOG, merged_q, merged_p).item()
    assert after > before * 1.001
    assert before == pytest.approx(oracle("half_squared_log", log_q, log_p), rel=1e-13)


@settings(max_examples=25)
@given(c=st.floats(-4, 4), seed=st.integers(0, 1000))
def test_shift_invariance(c, seed):
    """f + c (r − 1) is the same divergence, and the moments' target agrees."""
    d = DIVERGENCES["kl_pq"]
    log_q, log_p = law(2, 6, seed=seed)
    shifted = dataclasses.replace(
        d,
        value=lambda l: d.value(l) + c * torch.expm1(l),
        slope=lambda l: d.slope(l) + c * torch.exp(l),
        df1=d.df1 + c,
    )
    assert exact.divergence(shifted, log_q, log_p).item() == pytest.approx(
        exact.divergence(d, log_q, log_p).item(), rel=1e-13
    )
    pair = pairs.categorical(log_q, log_p)
    mean = exact.moments(with_lambda("kl_pq", c), pair).mean
    assert mean == pytest.approx(exact.divergence(d, log_q, log_p).item(), rel=1e-12)


def test_normalised_divergences_agree_to_second_order():
    """Divided by f''(1), all but tv approach ½χ² as p → q."""
    log_q = law(8, seed=5)
    log_p = torch.log_softmax(log_q + 1e-4 * random_logits(8, seed=6), -1)
    half_chi2 = exact.divergence("chi2_pq", log_q, log_p).item() / 2
    for name in ALL:
        if name != "tv":
            ratio = exact.divergence(name, log_q, log_p).item() / get(name).d2f1 / half_chi2
            assert ratio == pytest.approx(1, abs=1e-3), name
    assert exact.divergence("tv", log_q, log_p).item() > 1000 * half_chi2


# --- divergence: shapes, streaming, precision -------------------------------------------------


@pytest.mark.parametrize("rows", [1, 4])
def test_block_size_changes_nothing(rows, monkeypatch):
    log_q, log_p = law(3, 2, 11, seed=7), law(3, 2, 11, seed=8)

    def run():
        a, b = log_q.clone().requires_grad_(), log_p.clone().requires_grad_()
        value = exact.divergence("js", a, b)
        value.pow(2).sum().backward()
        return value.detach(), a.grad, b.grad

    whole = run()
    monkeypatch.setattr(exact, "_ROWS_AT_ONCE", 11 * rows)
    for got, want in zip(run(), whole, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-17)
    monkeypatch.setattr(exact, "_ROWS_AT_ONCE", 1)  # less than one row
    torch.testing.assert_close(run()[0], whole[0], rtol=1e-14, atol=0)


def test_blocks_are_bounded():
    """What is held at once does not grow with the batch."""
    log_q = torch.zeros(1000, 4096).expand(1000, 4096)
    sizes = [lq.numel() for _, lq, _ in exact._blocks(log_q, log_q)]
    assert sum(sizes) == 1000 * 4096
    assert max(sizes) <= min(exact._ROWS_AT_ONCE, 2**21)  # 16 MB of float64
    assert len(sizes) < 8


def test_broadcasting():
    log_q, log_p = law(4, 1, 6, seed=9), law(3, 6, seed=10)
    got = exact.divergence("kl_pq", log_q, log_p)
    assert got.shape == (4, 3)
    for i in range(4):
        for j in range(3):
            one = exact.divergence("kl_pq", log_q[i, 0], log_p[j])
            assert got[i, j] == one
    a, b = log_q.clone().requires_grad_(), log_p.clone().requires_grad_()
    exact.divergence("kl_pq", a, b).sum().backward()
    assert a.grad.shape == a.shape
    assert b.grad.shape == b.shape
    rows = torch.zeros_like(log_p)
    for i in range(4):
        p = log_p.clone().requires_grad_()
        exact.divergence("kl_pq", log_q[i], p).sum().backward()
        rows += p.grad
    torch.testing.assert_close(b.grad, rows, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (0, 5), (2, 0, 5), (2, 3, 5)])
def test_output_shape(shape):
    log_q = torch.log_softmax(torch.ones(shape), -1)
    assert exact.divergence("tv", log_q, log_q).shape == shape[:-1]


def test_a_transposed_leaf():
    storage = law(4, 3, 6, seed=12)
    leaf = storage.transpose(0, 1).detach().requires_grad_()
    assert not leaf.is_contiguous()
    log_p = law(3, 4, 6, seed=13)
    exact.divergence("kl_pq", leaf, log_p).sum().backward()
    plain = leaf.detach().contiguous().requires_grad_()
    exact.divergence("kl_pq", plain, log_p).sum().backward()
    assert torch.equal(leaf.grad, plain.grad)


@pytest.mark.parametrize("kl", [1e-6, 1e-4, 1e-2, 1.0])
def test_float32_is_as_good_as_its_inputs(kl):
    """1e-5 relative for KL >= 1e-6, against the same float32 numbers summed in float64."""
    V = 4096
    log_p = torch.log_softmax(-1.3 * torch.arange(1, V + 1).double().log(), -1)
    pair = pairs.perturbed(log_p, kl, generator=torch.Generator().manual_seed(1))
    log_q, log_p = pair.log_q.float(), pair.log_p.float()
    for name in [*oracles.REGISTERED, "alpha(0.3)"]:
        got = exact.divergence(name, log_q, log_p)
        assert got.dtype == torch.float32
        q, p = (torch.softmax(x.double(), -1).numpy() for x in (log_q, log_p))
        r = torch.from_numpy(p / q).log()
        want = math.fsum(q * get(name).gap(r).numpy())
        # tv is of first order: float32's rounding of the total mass, 1e-7, is in it directly.
        rel = 1e-7 / want if name == "tv" else 1e-5
        assert got.item() == pytest.approx(want, rel=rel, abs=0), name


def test_float32_is_summed_in_float64():
    log_q, log_p = (law(50_000, seed=s, scale=2.0).float() for s in (30, 31))
    for name in ALL:
        got = exact.divergence(name, log_q, log_p).item()
        wide = exact.divergence(name, log_q.double(), log_p.double()).item()
        assert got == pytest.approx(wide, rel=7e-8, abs=0), name


def test_a_weight_that_underflows_is_not_nan():
    """q = e^−800 is 0 in floating point, and the tokens around it keep their divergence."""
    log_q, log_p = f64(0.0, -800.0).requires_grad_(), f64(0.0, NEVER).requires_grad_()
    for name in ALL:
        for a, b in ((log_q, log_p), (log_p, log_q)):
            value = exact.divergence(name, a, b)
            assert value.item() == pytest.approx(0.0, abs=1e-15), name
            for grad in torch.autograd.grad(value, (log_q, log_p)):
                assert not torch.isnan(grad).any(), name


def test_a_plain_float32_sum_is_not():
    """Why differences of logits and Σ q k3: the obvious formula misses by more than it measures."""
    V = 4096
    log_p = torch.log_softmax(-1.3 * torch.arange(1, V + 1).double().log(), -1)
    pair = pairs.perturbed(log_p, 1e-6, generator=torch.Generator().manual_seed(1))
    log_q, log_p = pair.log_q.float(), pair.log_p.float()
    plain = (log_q.exp() * (log_q - log_p)).sum().item()
    assert abs(plain / 1e-6 - 1) > 1e-2
    assert exact.divergence("kl_qp", log_q, log_p).item() == pytest.approx(1e-6, rel=1e-2)


def test_mixed_dtypes_and_lists():
    log_q, log_p = law(5, seed=1), law(5, seed=2)
    want = exact.divergence("kl_qp", log_q, log_p).item()
    assert exact.divergence("kl_qp", log_q.tolist(), log_p.numpy()).item() == want
    for a, b in ((log_q.float(), log_p), (log_q, log_p.float())):
        got = exact.divergence("kl_qp", a, b)
        assert got.dtype == torch.float64
        assert got.item() == pytest.approx(want, rel=1e-5)


# --- divergence: gradients --------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0])
def test_gradient_through_log_softmax(name, scale):
    """Against Σ_x q(x) (f − r f')(x) (1{x = v} − q(v)) and central differences, 50 digits both."""
    log_p = law(6, seed=14)
    logits = (log_p + random_logits(6, seed=15, scale=scale)).requires_grad_()
    exact.divergence(name, torch.log_softmax(logits, -1), log_p).backward()
    if name != "tv":
        differences = oracles.logit_gradient(name, logits.tolist(), log_p.tolist())
        want = [float(g) for g in differences]
        size = max(map(abs, want))
        assert logits.grad.tolist() == pytest.approx(want, rel=1e-10, abs=1e-11 * max(size, 1e-4))
    q, p = (oracles.normalised(x.tolist()) for x in (logits.detach(), log_p))
    g = oracles.generator(name)
    weight = [a * (g.f(b / a) - b / a * g.df(b / a)) for a, b in zip(q, p, strict=True)]
    total = sum(weight, mpf(0))
    enumerated = [float(w - a * total) for w, a in zip(weight, q, strict=True)]
    size = max(map(abs, enumerated))
    assert logits.grad.tolist() == pytest.approx(enumerated, rel=1e-9, abs=1e-12 + 1e-13 * size)


@pytest.mark.parametrize("name", ALL)
def test_gradient_in_either_argument(name):
    """∂/∂log q(x) of Σ q f(p/q) is q (f − r f'), ∂/∂log p(x) is q r f', whichever is larger."""
    log_q, log_p = law(7, seed=16).requires_grad_(), law(7, seed=17).requires_grad_()
    exact.divergence(name, log_q, log_p).backward()
    g = oracles.generator(name)
    for a, b, got_q, got_p in zip(
        log_q.tolist(), log_p.tolist(), log_q.grad.tolist(), log_p.grad.tolist(), strict=True
    ):
        q, r = mp.exp(a), mp.exp(mpf(b) - mpf(a))
        assert got_q == pytest.approx(float(q * (g.f(r) - r * g.df(r))), rel=1e-11, abs=1e-14)
        assert got_p == pytest.approx(float(q * r * g.df(r)), rel=1e-11, abs=1e-14)


@pytest.mark.parametrize("name", ["kl_qp", "kl_pq", "chi2_pq", "chi2_qp", "js", "alpha(0.3)"])
def test_gradcheck(name):
    log_q, log_p = law(2, 4, seed=18).requires_grad_(), law(2, 4, seed=19).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, b: exact.divergence(name, torch.log_softmax(a, -1), torch.log_softmax(b, -1)),
        (log_q, log_p),
    )


def slope_at_zero(name):
    """lim r f'(r) as r → 0."""
    if name in ("kl_qp", "jeffreys"):
        return -1.0
    falls = name in ("chi2_qp", "half_squared_log") or name.startswith("alpha(-")
    return -math.inf if falls else 0.0


@pytest.mark.parametrize("name", ALL)
def test_gradient_with_unequal_supports(name):
    """Where q = 0 or p = 0 the derivatives are the limits, finite or not, and never NaN."""
    log_q = log(0.4, 0.3, 0.0, 0.3, 0.0).requires_grad_()
    log_p = log(0.2, 0.0, 0.3, 0.5, 0.0).requires_grad_()
    exact.divergence(name, log_q, log_p).backward()
    g = oracles.generator(name)
    reverse = oracles.REVERSE.get(name) or get(name).reversed().name
    for i, (q, p) in enumerate([(0.4, 0.2), (0.3, 0), (0, 0.3), (0.3, 0.5), (0, 0)]):
        if q and p:
            r = mpf(p) / mpf(q)
            want = q * (g.f(r) - r * g.df(r)), q * r * g.df(r)
        elif q:
            at_zero = slope_at_zero(name)
            want = q * (g.at_zero - at_zero), q * at_zero
        elif p:
            # r f'(r) → r lim f(r)/r; and f − r f' → the slope of the reverse at 0.
            want = p * slope_at_zero(reverse), p * g.per_p
        else:
            want = 0.0, 0.0
        got = log_q.grad[i].item(), log_p.grad[i].item()
        assert got == pytest.approx(tuple(map(float, want)), rel=1e-11, abs=1e-13), (q, p)


@pytest.mark.parametrize("name", ["kl_qp", "chi2_qp", "hellinger2", "js", "tv", "alpha(0.3)"])
def test_gradient_through_masked_logits(name):
    """Logits of −inf get gradient 0, the others that of the divergence on their support."""
    logits = f64(0.3, -0.2, NEVER, 0.5, NEVER).requires_grad_()
    log_p = log(0.2, 0.3, 0.1, 0.4, 0.0)
    exact.divergence(name, torch.log_softmax(logits, -1), log_p).backward()
    assert logits.grad[2] == 0 == logits.grad[4]
    kept = torch.tensor([0, 1, 3])
    q, p = (
        torch.softmax(logits.detach(), -1)[kept].tolist(),
        [mpf(x) for x in ("0.2", "0.3", "0.4")],
    )
    g = oracles.generator(name)
    weight = [a * (g.f(b / a) - b / a * g.df(b / a)) for a, b in zip(q, p, strict=True)]
    want = [float(w - a * sum(weight)) for w, a in zip(weight, q, strict=True)]
    assert logits.grad[kept].tolist() == pytest.approx(want, rel=1e-11, abs=1e-14)


def test_cross_entropy_to_a_masked_logit():
    """KL(p‖q) is infinite there; its gradient in the logits is q − p, as for cross-entropy."""
    logits = f64(0.3, NEVER, 0.5).requires_grad_()
    log_p = log(0.2, 0.3, 0.5)
    value = exact.divergence("kl_pq", torch.log_softmax(logits, -1), log_p)
    value.backward()
    assert value.item() == math.inf
    want = torch.softmax(logits.detach(), -1) - log_p.exp()
    torch.testing.assert_close(logits.grad, want, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", ["kl_pq", "chi2_pq", "hellinger2", "js", "alpha(0.3)"])
def test_gradient_where_p_is_zero(name):
    log_p = log(0.5, 0.0, 0.5)
    logits = f64(0.1, 0.7, -0.3).requires_grad_()
    exact.divergence(name, torch.log_softmax(logits, -1), log_p).backward()
    want = [float(x) for x in oracles.logit_gradient(name, logits.tolist(), log_p.tolist())]
    assert logits.grad.tolist() == pytest.approx(want, rel=1e-10, abs=1e-12)


def test_a_masked_infinite_row_has_gradient_zero():
    """A row left out of the loss by where() stays out, be its divergence infinite."""
    for name in ALL:
        log_q = torch.stack([log(0.5, 0.5, 0.0), law(3, seed=20)]).requires_grad_()
        log_p = torch.stack([log(0.0, 0.5, 0.5), law(3, seed=21)]).requires_grad_()
        rows = exact.divergence(name, log_q, log_p)
        torch.where(torch.tensor([False, True]), rows, 0.0).sum().backward()
        for grad in (log_q.grad, log_p.grad):
            assert grad[0].tolist() == [0.0, 0.0, 0.0]
            assert torch.isfinite(grad).all()
            assert (grad[1] != 0).any()


def test_gradient_at_equality_is_zero_and_scales():
    log_p = law(6, seed=22)
    for name in ALL:
        logits = log_p.clone().requires_grad_()
        exact.divergence(name, torch.log_softmax(logits, -1), log_p).backward()
        assert logits.grad.abs().max() < 1e-15
    logits = random_logits(6, seed=23).requires_grad_()
    (3 * exact.divergence("js", torch.log_softmax(logits, -1), log_p)).backward()
    tripled, logits.grad = logits.grad, None
    exact.divergence("js", torch.log_softmax(logits, -1), log_p).backward()
    torch.testing.assert_close(tripled, 3 * logits.grad, rtol=1e-15, atol=0)


def test_torch_func_grad():
    log_p, logits = law(6, seed=24), random_logits(6, seed=25)

    def loss(x):
        return exact.divergence("kl_qp", torch.log_softmax(x, -1), log_p)

    x = logits.clone().requires_grad_()
    loss(x).backward()
    assert torch.equal(torch.func.grad(loss)(logits), x.grad)


# --- bad input --------------------------------------------------------------------------------

HALVES = log(0.5, 0.5)


@pytest.mark.parametrize("argument", ["log_q", "log_p"])
@pytest.mark.parametrize(
    ("bad", "expected", "received"),
    [
        (log(0.5, 0.4), "normalised", "logsumexp"),
        (log(0.5, 0.5) + 2e-6, "1e-06", "2e-06"),
        (log(0.5, 0.5).float() + 2e-3, "0.001", "0.002"),
        (f64(math.nan, 0.0), "no NaN", "1 NaN"),
        (torch.tensor([0, 0]), "float32 or float64", "int64"),
        (log(0.5, 0.5).bfloat16(), "upcast, then renormalise", "bfloat16"),
        (log(0.5, 0.5).half(), "upcast, then renormalise", "float16"),
        (torch.tensor(0.0), "trailing vocabulary axis", "()"),
        (torch.zeros(3, 0), "trailing vocabulary axis", "(3, 0)"),
        (f64(NEVER, NEVER), "normalised", "inf"),
        (f64(math.inf, 0.0), "normalised", "inf"),
        ("halves", "tensor", "str"),
    ],
)
def test_divergence_refuses(argument, bad, expected, received):
    arguments = {"log_q": HALVES, "log_p": HALVES} | {argument: bad}
    refused(lambda: exact.divergence("kl_qp", **arguments), argument, expected, received)


def test_divergence_refuses_shapes_and_names():
    refused(lambda: exact.divergence("kl_qp", HALVES, law(3)), "log_p", "2 tokens", "3 tokens")
    refused(lambda: exact.divergence("kl_qp", law(2, 2), law(3, 2)), "log_p", "(2, 2)", "(3, 2)")
    with pytest.raises(KeyError, match="there are kl_qp, kl_pq"):
        exact.divergence("kl", HALVES, HALVES)
    refused(lambda: exact.divergence(None, HALVES, HALVES), "divergence", "a name", "NoneType")
    # Just inside the bounds it is accepted.
    exact.divergence("kl_qp", log(0.5, 0.5) + 5e-7, HALVES)
    exact.divergence("kl_qp", (log(0.5, 0.5) + 5e-4).float(), HALVES.float())


def either_infinity(l):
    return torch.where(l == 0, 0.0, l * math.inf)


def test_moments_refuse():
    pair, gaussian = pairs.categorical(HALVES, HALVES), pairs.gaussian(0.1, 1.0)
    split = pairs.categorical(log(0.25, 0.25, 0.5), log(0.5, 0.25, 0.25))
    refused(lambda: exact.moments(K1, pair, method="exact"), "method", "closed_form", "'exact'")
    refused(lambda: exact.moments(K1, pair, method="closed_form"), "method", "sum", "closed_form")
    refused(lambda: exact.moments(K1, pair, method="quadrature"), "method", "sum", "quadrature")
    refused(lambda: exact.moments(K1, gaussian, method="sum"), "method", "quadrature", "sum")
    refused(
        lambda: exact.moments(bregman("js"), gaussian, method="closed_form"),
        "method",
        "quadrature",
        "closed_form",
    )
    for call in (
        exact.moments,
        lambda e, p: exact.sampling_distribution(e, p, 4),
    ):
        refused(lambda c=call: c(K1, 3), "pair", "log_q", "int")
        for bad in (pair, gaussian):
            refused(lambda c=call, b=bad: c(lambda l: l * math.nan, b), "estimator", "NaN")
            refused(lambda c=call, b=bad: c(lambda l: 3.0, b), "estimator", "shape", "float")
        refused(lambda c=call: c(lambda l: l.mean(), pair), "estimator", "shape (2,)", "()")
        refused(lambda c=call: c(lambda l: l.long(), pair), "estimator", "float", "int64")
        refused(lambda c=call: c(either_infinity, split), "estimator", "one infinity", "-inf")
    refused(lambda: exact.moments(None, pair), "estimator", "callable", "NoneType")


# --- moments over a vocabulary ----------------------------------------------------------------

ESTIMATORS = {
    "k1": (K1, lambda l: -l),
    "k2": (K2, lambda l: l**2 / 2),
    "k3": (K3, lambda l: mp.exp(l) - 1 - l),
    "js": (bregman("js"), lambda l: oracles.gap("js", l)),
    "lam": (with_lambda("kl_pq", 0.3), lambda l: l * mp.exp(l) + mpf(0.3) * (mp.exp(l) - 1)),
    "clamped": (K3.clamped(value=(-10, 0.4)), lambda l: min(mp.exp(l) - 1 - l, mpf(0.4))),
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("scale", [1e-4, 0.5, 5.0, 60.0])
def test_moments_within_their_error(name, scale):
    estimator, formula = ESTIMATORS[name]
    log_q = law(30, seed=26)
    log_p = torch.log_softmax(log_q + random_logits(30, seed=27, scale=scale), -1)
    m = exact.moments(estimator, pairs.categorical(log_q, log_p))
    q, p = ([mp.exp(mpf(x)) for x in side.tolist()] for side in (log_q, log_p))
    mean, variance = oracles.moments(formula, q, p)
    assert abs(m.mean - mean) <= m.error
    assert abs(m.variance - variance) <= m.error
    assert m.error <= 1e-11 * max(float(abs(mean)), float(variance), 1e-3)
    assert m.sd == pytest.approx(math.sqrt(float(variance)), rel=1e-9)
    assert m.method == "sum"
    if name != "clamped":
        truth = oracle(estimator.target.name, log_q, log_p)
        assert m.bias == pytest.approx(float(mean) - truth, abs=4 * m.error + 1e-14)


def test_moments_of_a_callable():
    pair = pairs.categorical(log(0.5, 0.3, 0.2), log(0.2, 0.3, 0.5))
    m = exact.moments(lambda l: (l > 0).double(), pair)
    assert (m.mean, m.bias) == (pytest.approx(0.2), None)
    assert m.variance == pytest.approx(0.16)
    m = exact.moments(lambda l: l.float().abs(), pair)  # what it returns may be float32
    assert m.mean == pytest.approx(0.7 * math.log(2.5), rel=1e-6)


@pytest.mark.parametrize("mass", [0.5, 0.9])
@pytest.mark.parametrize("lam", [-0.5, 0.0, 0.4, 1.0])
def test_lost_mass_is_the_bias(mass, lam):
    """Where q = 0 < p: bias = λ (p(supp q) − 1)."""
    pair = pairs.top_p(law(20, seed=28, scale=1.5), mass)
    kept = pair.log_p[pair.log_q > NEVER].exp().sum().item()
    assert kept < 0.99
    for name in ("kl_qp", "chi2_qp"):  # such tokens cost nothing here
        m = exact.moments(with_lambda(name, lam), pair)
        assert m.bias == pytest.approx(lam * (kept - 1), rel=1e-12, abs=1e-15)
    assert exact.moments(K3, pair).bias == pytest.approx(kept - 1, rel=1e-12)
    assert exact.moments(K1, pair).bias == pytest.approx(0, abs=1e-15)
    # tv charges ½ for them, which no sample from q can show.
    m = exact.moments(with_lambda("tv", lam), pair)
    assert m.bias == pytest.approx((lam + 0.5) * (kept - 1), rel=1e-12, abs=1e-15)


def test_infinite_moments():
    """p = 0 at a token that q emits: KL is inf, k1 sees it, and the bias is 0, not NaN."""
    pair = pairs.categorical(log(0.5, 0.25, 0.25), log(0.5, 0.5, 0.0))
    for estimator in (K1, K3):
        m = exact.moments(estimator, pair)
        assert (m.mean, m.variance, m.bias) == (math.inf, math.inf, 0.0)
    m = exact.moments(lambda l: torch.where(l < -1, -math.inf, l), pair)
    assert (m.mean, m.variance) == (-math.inf, math.inf)
    m = exact.moments(bregman("kl_pq"), pair)
    assert m.bias == pytest.approx(0, abs=1e-15)
    # KL(p‖q) is infinite, yet every sample of its estimator is finite.
    pair = pairs.categorical(log(0.5, 0.5, 0.0), log(0.5, 0.25, 0.25))
    assert exact.moments(bregman("kl_pq"), pair).bias == -math.inf


def test_underflowing_weights_are_not_nan():
    pair = pairs.categorical(f64(0.0, -800.0), f64(math.log(0.5), math.log(0.5)))
    for estimator in (K1, K2, bregman("tv")):
        m = exact.moments(estimator, pair)
        assert not math.isnan(m.mean)
        assert not math.isnan(m.error)
    assert exact.moments(lambda l: torch.where(l > 5, -math.inf, 0.0), pair).mean == -math.inf


@pytest.mark.parametrize("seed", range(4))
def test_lambda_star_minimises_the_exact_variance(seed):
    """λ* = −Cov(f, r − 1)/Var(r − 1); the variance is a parabola with its lowest point there."""
    pair = pairs.categorical(law(8, seed=seed), law(8, seed=seed + 50))
    q = pair.log_q.exp()
    ratio, k1 = torch.expm1(pair.log_r), K1(pair.log_r)
    cov = (q * ratio * k1).sum() - (q * ratio).sum() * (q * k1).sum()
    best = float(-cov / ((q * ratio**2).sum() - (q * ratio).sum() ** 2))
    v = {x: exact.moments(with_lambda("kl_qp", best + x), pair).variance for x in (-0.2, 0, 0.2)}
    chi2 = exact.divergence("chi2_pq", pair.log_q, pair.log_p).item()
    assert v[0.2] == pytest.approx(v[0] + 0.04 * chi2, rel=1e-10)
    assert v[-0.2] == pytest.approx(v[0] + 0.04 * chi2, rel=1e-10)


# --- Gaussian pairs ---------------------------------------------------------------------------

GAUSSIANS = [(0.1, 1.0), (1.0, 1.0), (-0.7, 0.5), (0.3, 1.25), (0.0, 0.8), (2.0, 1.0), (0.2, 1.38)]


def gaussian_kl(m1, s1, m2, s2):
    """KL(N(m1, s1²) ‖ N(m2, s2²)), the textbook formula."""
    return math.log(s2 / s1) + (s1**2 + (m1 - m2) ** 2) / (2 * s2**2) - 0.5


def closed_divergence(name, m, s):
    """Textbook closed forms, through E_q[r^k] and the two KLs."""

    def power(k):
        return float(oracles.gaussian_power(k, m, s))

    if name.startswith("alpha("):
        a = float(name[6:-1])
        return (power(a) - 1) / (a * (a - 1))
    kls = gaussian_kl(0, 1, m, s), gaussian_kl(m, s, 0, 1)
    return {
        "kl_qp": kls[0],
        "kl_pq": kls[1],
        "jeffreys": sum(kls),
        "chi2_pq": power(2) - 1,
        "chi2_qp": power(-1) - 1,
        "hellinger2": 2 - 2 * power(0.5),
    }[name]


@pytest.mark.parametrize(("m", "s"), GAUSSIANS)
def test_gaussian_divergences(m, s):
    for name in ("kl_qp", "kl_pq", "jeffreys", "chi2_pq", "chi2_qp", "hellinger2", "alpha(0.3)"):
        got = exact.target_value(name, pairs.gaussian(m, s))
        assert got == pytest.approx(closed_divergence(name, m, s), rel=1e-11, abs=1e-15), name


@pytest.mark.parametrize(("m", "s"), [(0.1, 1.0), (1.0, 1.0), (-0.7, 0.5), (0.3, 1.25)])
def test_gaussian_divergences_without_closed_form(m, s):
    pair = pairs.gaussian(m, s)
    log_r = oracles.gaussian_log_r(m, s)
    a, b, c = (s * s - 1) / (2 * s * s), m / s**2, log_r(0)
    breaks = [float(z.real) for z in np.roots([a, b, float(c)] if a else [b, float(c)])]
    js = oracles.gaussian_expectation(lambda l: oracles.value("js", l), m, s, breaks)
    assert exact.target_value("js", pair) == pytest.approx(float(js), rel=1e-11)
    tv = oracles.gaussian_expectation(lambda l: oracles.value("tv", l), m, s, breaks)
    assert exact.target_value("tv", pair) == pytest.approx(float(tv), rel=1e-11)
    if s == 1:
        assert float(tv) == pytest.approx(2 * stats.norm.cdf(abs(m) / 2) - 1, rel=1e-12)


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "lam"])
@pytest.mark.parametrize(("m", "s"), [*GAUSSIANS, (20.0, 1.0), (1e-3, 1.0), (0.1, 1.4142)])
def test_closed_form_within_its_error(name, m, s):
    """Against 50-digit tilted moments: E_q[lʲ r^k] = E_q[r^k] times a Gaussian moment of l."""
    estimator, _ = ESTIMATORS[name]
    got = exact.moments(estimator, pairs.gaussian(m, s), method="closed_form")
    terms = {
        "k1": [(-1, 1, 0)],
        "k2": [(mpf(1) / 2, 2, 0)],
        "k3": [(1, 0, 1), (-1, 0, 0), (-1, 1, 0)],
    }
    terms["lam"] = [(1, 1, 1), (mpf(0.3), 0, 1), (-mpf(0.3), 0, 0)]
    mean = sum(c * tilted(j, k, m, s) for c, j, k in terms[name])
    second = sum(
        c * d * tilted(i + j, k + n, m, s) for c, i, k in terms[name] for d, j, n in terms[name]
    )
    assert abs(got.mean - mean) <= got.error
    variance = second - mean**2
    if mp.isinf(second):
        assert got.variance == math.inf
    else:
        assert abs(got.variance - variance) <= got.error
        assert got.error <= (1e-10 if s < 1.41 else 1e-6) * max(1.0, float(variance))


def tilted(j, k, m, s):
    """E_q[lʲ e^{kl}] from derivatives of log-normal moments in k, by mpmath's own differences."""
    power = oracles.gaussian_power(k, m, s)
    if j == 0 or mp.isinf(power):
        return power
    with mp.workdps(80):
        return mp.diff(lambda t: oracles.gaussian_power(t, m, s), k, j)


@pytest.mark.parametrize(
    ("estimator", "m", "s"),
    [
        (K1, 0.1, 1.0),
        (K2, 1.0, 1.0),
        (K3, 0.1, 1.0),
        (K3, -0.7, 0.5),
        (K3, 0.3, 1.25),
        (with_lambda("kl_pq", 0.3), 0.4, 0.9),
        (bregman("chi2_qp"), 0.2, 1.1),
    ],
)
def test_quadrature_and_closed_form_agree(estimator, m, s):
    pair = pairs.gaussian(m, s)
    closed = exact.moments(estimator, pair)
    quadrature = exact.moments(estimator, pair, method="quadrature")
    assert (closed.method, quadrature.method) == ("closed_form", "quadrature")
    together = closed.error + quadrature.error
    assert abs(closed.mean - quadrature.mean) <= together
    assert abs(closed.variance - quadrature.variance) <= together
    assert together <= 1e-9 * max(1.0, closed.variance)


@pytest.mark.parametrize(("m", "s"), [(0.1, 1.0), (-0.7, 0.5)])
def test_quadrature_of_what_has_no_closed_form(m, s):
    pair, log_r = pairs.gaussian(m, s), oracles.gaussian_log_r(m, s)
    clamped = K3.clamped(value=(0.0, 0.02))
    edges = [float(mp.findroot(lambda l: mp.expm1(l) - l - 0.02, x)) for x in (-0.2, 0.2)]
    breaks = []
    for edge in (*edges, 0.0):
        a, b, c = (s * s - 1) / (2 * s * s), m / s**2, float(log_r(0)) - edge
        roots = np.roots([a, b, c] if a else [b, c])
        breaks += [float(z.real) for z in roots if abs(z.imag) < 1e-12 and abs(z) < 38]
    mean = oracles.gaussian_expectation(lambda l: min(mp.expm1(l) - l, mpf(0.02)), m, s, breaks)
    got = exact.moments(clamped, pair)
    assert got.method == "quadrature"
    assert abs(got.mean - mean) <= got.error
    assert got.error < 1e-9
    assert got.bias == pytest.approx(float(mean) - gaussian_kl(0, 1, m, s), rel=1e-9)


def test_quadrature_splits_where_r_is_one():
    """|log r| has its kink there: found, it costs no accuracy and few evaluations."""
    calls = []

    def distance(l):
        calls.append(l.numel())
        return l.abs()

    m = exact.moments(distance, pairs.gaussian(0.7, 1.0))
    # |N(−μ²/2, μ²)| has a folded normal mean.
    want = stats.foldnorm.mean(0.35, scale=0.7)
    assert abs(m.mean - want) <= m.error
    assert m.error < 1e-12
    assert len(calls) < 2200


def test_quadrature_of_a_jump():
    """P(log r > .3) for a shift: the normal CDF, within the stated error."""
    got = exact.moments(lambda l: (l > 0.3).double(), pairs.gaussian(1.0, 1.0))
    truth = stats.norm.sf(0.3 + 0.5)
    assert abs(got.mean - truth) <= got.error
    assert got.error < 1e-6
    assert got.bias is None


@pytest.mark.parametrize("method", ["closed_form", "quadrature"])
def test_where_moments_stop_existing(method):
    """k3 has a variance iff var_p < 2 var_q; χ²(p‖q) a value iff the same."""
    for s, finite in ((1.38, True), (1.45, False)):
        m = exact.moments(K3, pairs.gaussian(0.2, s), method=method)
        assert math.isfinite(m.variance) == finite
        assert m.mean == pytest.approx(gaussian_kl(0, 1, 0.2, s), rel=1e-9)
        chi2 = exact.moments(bregman("chi2_pq"), pairs.gaussian(0.2, s), method=method)
        assert math.isfinite(chi2.mean) == finite
        if not finite:
            assert (chi2.mean, chi2.variance, chi2.bias) == (math.inf, math.inf, 0.0)
    # χ²(q‖p) needs var_q < 2 var_p.
    for s, finite in ((0.72, True), (0.69, False))[method == "quadrature" :]:
        m = exact.moments(bregman("chi2_qp"), pairs.gaussian(0.2, s), method=method)
        assert math.isfinite(m.mean) == finite
    assert (
        exact.moments(K3, pairs.gaussian(0.0, math.sqrt(2)), method="closed_form").variance
        == math.inf
    )


def test_the_sign_of_an_infinite_mean():
    """log r / r, where p is too narrow: E_q is −∞; log r · r² where p is too wide: +∞."""

    class Term:
        def __init__(self, j, k):
            self.terms = ((1.0, j, k),)
            self.j, self.k = j, k

        def __call__(self, l):
            return l**self.j * torch.exp(self.k * l)

    for method in ("closed_form", "quadrature"):
        assert (
            exact.moments(Term(1, -1.0), pairs.gaussian(0.1, 0.5), method=method).mean == -math.inf
        )
        assert exact.moments(Term(1, 2.0), pairs.gaussian(0.1, 1.5), method=method).mean == math.inf
        assert (
            exact.moments(Term(2, -1.0), pairs.gaussian(0.1, 0.5), method=method).mean == math.inf
        )


def test_the_steepest_term_decides_the_sign():
    """r² − r^1.5 with both means infinite; at one exponent the higher power of log r."""
    pair = pairs.gaussian(0.1, 2.0)

    def mean(*terms):
        estimator = with_lambda("kl_qp", 0.0)
        generator = dataclasses.replace(estimator.generator, terms=terms)
        estimator = dataclasses.replace(estimator, generator=generator)
        return exact.moments(estimator, pair, method="closed_form").mean

    assert mean((-1.0, 0, 1.5), (1.0, 0, 2.0)) == math.inf
    assert mean((1.0, 0, 1.5), (-1.0, 0, 2.0)) == -math.inf
    assert mean((1.0, 1, 2.0), (-5.0, 0, 2.0)) == math.inf
    assert mean((1.0, 0, 2.0), (-1.0, 0, 2.0), (0.0, 0, 3.0), (3.0, 0, 0.0)) == 3.0


def test_overflow_is_infinite_not_nan():
    m = exact.moments(K3, pairs.gaussian(30.0, 1.0))
    assert m.mean == pytest.approx(450.0)
    assert m.variance == math.inf
    assert m.bias == pytest.approx(0.0, abs=1e-10)


def test_small_shifts_keep_their_digits():
    """auto leaves the closed form where its cancellation would eat the variance."""
    for mu in (0.1, 1e-2, 1e-4):
        m = exact.moments(K3, pairs.gaussian(mu, 1.0))
        variance = float(mp.expm1(mpf(mu) ** 2) - mpf(mu) ** 2)
        assert m.mean == pytest.approx(mu**2 / 2, rel=1e-9, abs=0)
        assert m.variance == pytest.approx(variance, rel=1e-6, abs=0)
        assert abs(m.variance - variance) <= m.error
        assert m.method == ("quadrature" if mu < 0.02 else "closed_form")
        assert (
            exact.moments(K3, pairs.gaussian(mu, 1.0), method="closed_form").method == "closed_form"
        )


def test_equal_gaussians():
    for estimator in (K1, K2, K3, bregman("js"), bregman("tv")):
        m = exact.moments(estimator, pairs.gaussian(0.0, 1.0))
        assert (m.mean, m.variance, m.bias) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", oracles.REGISTERED)
@pytest.mark.parametrize("spread", [1.0, 1e-4])
def test_optimal_lambda_is_the_slope_of_the_least_squares_line(name, spread):
    generator = torch.Generator().manual_seed(3)
    log_q = torch.randn(6, generator=generator, dtype=torch.float64).log_softmax(-1)
    noise = spread * torch.randn(6, generator=generator, dtype=torch.float64)
    pair = pairs.categorical(log_q, (log_q + noise).log_softmax(-1))
    q = oracles.normalised(pair.log_q.tolist())
    r = [mp.exp(mpf(l)) for l in pair.log_r.tolist()]
    f = [oracles.generator(name).f(x) for x in r]
    mean_f, mean_r = (mp.fsum(map(mp.fmul, q, x)) for x in (f, r))
    cov = mp.fsum(w * (a - mean_f) * (b - mean_r) for w, a, b in zip(q, f, r, strict=True))
    var = mp.fsum(w * (b - mean_r) ** 2 for w, b in zip(q, r, strict=True))
    assert exact.optimal_lambda(name, pair) == pytest.approx(float(-cov / var), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("mean", [0.1, 1.0, 2.0])
def test_optimal_lambda_of_shifted_gaussians(mean):
    pair = pairs.gaussian(mean, 1.0)
    expected = mean**2 / math.expm1(mean**2)
    assert exact.optimal_lambda("kl_qp", pair) == pytest.approx(expected, rel=1e-9)


def test_optimal_lambda_where_q_does_not_cover_p():
    pair = pairs.categorical(log(0.5, 0.5, 0.0), log(0.2, 0.5, 0.3))
    # Two points lie on a line, whose slope is −λ.
    slope = (-math.log(0.4) + math.log(1.0)) / (0.4 - 1.0)
    assert exact.optimal_lambda("kl_qp", pair) == pytest.approx(-slope, rel=1e-12)


def test_optimal_lambda_at_p_equal_q_and_without_a_variance():
    for name, lam in (("kl_qp", 1.0), ("kl_pq", -1.0), ("hellinger2", 0.0)):
        assert exact.optimal_lambda(name, pairs.gaussian(0.0, 1.0)) == lam
    with pytest.raises(InputError, match="finite variance"):
        exact.optimal_lambda("kl_qp", pairs.gaussian(0.0, 1.5))
