"""exact.statistics against 50-digit sums; its machine code against the plain functions."""

import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

import kllab
from kllab import _compile, _statistics, exact
from kllab.checks import InputError
from kllab.exact import statistics

INF = math.inf
DIVERGENCES = ["kl_qp", "kl_pq", "chi2_pq", "chi2_qp", "hellinger2", "js", "jeffreys", "tv"]
K = {
    "k1": lambda l: -l,
    "k2": lambda l: l * l / 2,
    "k3": lambda l: mp.exp(l) - 1 - l,
}
needs_numba = pytest.mark.skipif(_compile.numba_module() is None, reason="needs numba")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits(rows, v, *, sd=3.0, noise=0.1, seed=0, dtype=torch.float64):
    q = sd * torch.randn(rows, v, dtype=torch.float64, generator=seeded(seed))
    p = q + noise * torch.randn(rows, v, dtype=torch.float64, generator=seeded(seed + 1000))
    return q.to(dtype), p.to(dtype)


def flat(stats) -> dict[str, torch.Tensor]:
    parts = {name: stats[name] for name in DIVERGENCES}
    for k in K:
        parts |= {f"{k} mean": stats[k].mean, f"{k} variance": stats[k].variance}
    return parts


def expected(q_logits, p_logits) -> dict[str, float]:
    """One row in 50 digits."""
    q, p = oracles.normalised(q_logits.tolist()), oracles.normalised(p_logits.tolist())
    parts = {name: oracles.divergence(name, q, p) for name in DIVERGENCES}
    for k, fn in K.items():
        mean, variance = oracles.moments(fn, q, p)
        parts |= {f"{k} mean": mean, f"{k} variance": variance}
    return {name: float(value) for name, value in parts.items()}


@pytest.mark.parametrize("noise", [1e-3, 0.1, 3.0])
def test_against_50_digits(noise):
    a, b = logits(3, 40, noise=noise)
    got = flat(statistics(a, b))
    for row in range(3):
        for name, value in expected(a[row], b[row]).items():
            assert float(got[name][row]) == pytest.approx(value, rel=1e-8, abs=0), name


@given(
    st.lists(
        st.tuples(st.floats(-30, 30), st.floats(-30, 30)),
        min_size=1,
        max_size=12,
    )
)
def test_against_exact_divergence_and_moments(pairs):
    a, b = torch.tensor(pairs, dtype=torch.float64).T
    got = flat(statistics(a, b))
    pair = kllab.pairs.categorical(torch.log_softmax(a, -1), torch.log_softmax(b, -1))
    for name in DIVERGENCES:
        want = float(exact.divergence(name, pair.log_q, pair.log_p))
        assert float(got[name]) == pytest.approx(want, rel=1e-9, abs=1e-13), name
    for estimator in (kllab.K1, kllab.K2, kllab.K3):
        want = exact.moments(estimator, pair)
        mean, variance = (got[f"{estimator.name} {m}"] for m in ("mean", "variance"))
        assert float(mean) == pytest.approx(want.mean, rel=1e-9, abs=1e-13)
        assert float(variance) == pytest.approx(want.variance, rel=1e-7, abs=1e-13)


def test_every_registered_divergence_is_there():
    stats = statistics(*logits(2, 5))
    for name in kllab.DIVERGENCES:
        assert stats[name] is getattr(stats, name)
    with pytest.raises(KeyError, match="no statistic 'kl'; there are kl_qp, kl_pq"):
        stats["kl"]


# --- limits ---------------------------------------------------------------------------------


def test_unequal_supports():
    # q never gives the last token, p never gives the first.
    a = torch.tensor([0.5, 0.25, 0.25, 0.0]).log()
    b = torch.tensor([0.0, 0.25, 0.25, 0.5]).log()
    got = {name: float(value) for name, value in flat(statistics(a, b)).items()}
    infinite = {"kl_qp", "kl_pq", "chi2_pq", "chi2_qp", "jeffreys"}
    infinite |= {f"{k} {m}" for k in K for m in ("mean", "variance")}
    assert {name for name, value in got.items() if value == INF} == infinite
    assert got["tv"] == pytest.approx(0.5)
    assert got["hellinger2"] == pytest.approx(1.0)
    assert got["js"] == pytest.approx(math.log(2) / 2)


def test_lost_mass():
    # top-p like: q lacks a token that p has.
    a = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64).log()
    b = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
    stats = statistics(a, b)
    assert float(stats.kl_qp) == pytest.approx(math.log(2) / 2)
    assert float(stats.kl_pq) == float(stats.chi2_pq) == INF
    assert float(stats.chi2_qp) == pytest.approx(0.5)
    assert float(stats.k3.mean) == pytest.approx(math.log(2) / 2 - 0.25)
    assert float(stats.k1.variance) == pytest.approx((math.log(2) / 2) ** 2)


def test_tokens_that_both_lack_change_nothing():
    a, b = logits(4, 30)
    gap = torch.full((4, 9), -INF, dtype=torch.float64)
    wide = statistics(torch.cat([gap, a], -1), torch.cat([gap, b], -1))
    for name, value in flat(statistics(a, b)).items():
        torch.testing.assert_close(flat(wide)[name], value, rtol=1e-12, atol=0)


def test_infinite_logits_take_all_the_mass_in_equal_parts():
    a = torch.tensor([[INF, 0.0, INF], [0.0, 1.0, 2.0]])
    b = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 2.0]])
    stats = statistics(a, b)
    assert stats.kl_qp.tolist() == pytest.approx([math.log(1.5), 0.0])
    assert stats.tv.tolist() == pytest.approx([1 / 3, 0.0])


def test_equal_rows_give_exact_zeros():
    a, _ = logits(3, 100)
    for value in flat(statistics(a, a.clone())).values():
        assert value.tolist() == [0.0] * 3


def test_logits_hundreds_apart():
    a = torch.tensor([[0.0, -700.0, -2000.0], [0.0, -1e9, -1e9]], dtype=torch.float64)
    b = torch.tensor([[0.0, -1.0, -1900.0], [0.0, -1e9, 0.0]], dtype=torch.float64)
    stats = statistics(a, b)
    assert stats.kl_qp.tolist() == pytest.approx([math.log1p(math.exp(-1)), math.log(2)])
    # p²/q of the second token: e^700 p², which float64 holds.
    p = math.exp(-1) / (1 + math.exp(-1))
    assert float(stats.chi2_pq[0]) == pytest.approx(p * p * math.exp(700), rel=1e-9)
    assert float(stats.chi2_pq[1]) == INF
    assert not any(value.isnan().any() for value in flat(stats).values())


# --- machine code -----------------------------------------------------------------------------

CASES = [
    pytest.param(sd, noise, offset, id=f"sd {sd}, noise {noise}, offset {offset}")
    for sd, noise, offset in [
        (3.0, 0.0025, 0.0), (3.0, 0.1, 0.0), (3.0, 3.0, 0.0), (0.3, 0.002, 0.0), (0.3, 4.0, 0.0),
        (8.0, 0.05, 0.0), (8.0, 3.0, 0.0), (3.0, 0.0025, 7.0), (3.0, 0.1, -300.0), (6.0, 0.02, 1e3),
        (30.0, 10.0, 0.0),
    ]
]  # fmt: skip


@pytest.fixture
def compiled(monkeypatch):
    """Calls of every size run as machine code."""
    monkeypatch.delenv("KLLAB_COMPILE", raising=False)
    monkeypatch.setattr(_compile, "WORTH", 1)


def check_machine_code(a, b, rtol=1e-10) -> None:
    """Every row, against float64 tile by tile."""
    out = torch.empty(12, len(a), dtype=torch.float64)
    assert _compile.numba_module().statistics(a, b, out).tolist() == []
    want = torch.cat([_statistics._exact(x[None], y[None]) for x, y in zip(a, b, strict=True)], -1)
    assert (want > 0).all()
    torch.testing.assert_close(out, want, rtol=rtol, atol=0)


@needs_numba
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("sd", "noise", "offset"), CASES)
def test_machine_code_gives_the_same_sums(sd, noise, offset, dtype):
    a, b = logits(5, 5000, sd=sd, noise=noise, dtype=dtype)
    check_machine_code(a, (b.double() + offset).to(dtype))


@needs_numba
def test_the_exponential_and_the_logarithm():
    from kllab import _native

    for x in (*torch.linspace(-690, 690, 997).tolist(), 0.3466, -0.3466, 1e-3, -1e-9, 0.0):
        power, less = _native._exp(x)
        assert power == pytest.approx(float(mp.exp(x)), rel=4e-15 + abs(x) * 1e-16)
        assert less == pytest.approx(float(mp.expm1(x)), rel=4e-15 + abs(x) * 1e-16)
    for x in (*torch.linspace(-0.5, 0, 501).double().tolist(), -1e-3, -1e-9):
        assert 2 * _native._artanh(x / (2 + x)) == pytest.approx(float(mp.log1p(x)), rel=4e-15)


@needs_numba
@pytest.mark.parametrize("v", [1, 2, 7, 64, 4099])
def test_machine_code_takes_any_width(v):
    a, b = logits(3, v)
    out = torch.empty(12, 3, dtype=torch.float64)
    assert _compile.numba_module().statistics(a, b, out).tolist() == []
    want = torch.cat([_statistics._exact(x[None], y[None]) for x, y in zip(a, b, strict=True)], -1)
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-30 if v > 1 else 1e-15)


@needs_numba
@pytest.mark.parametrize("noise", [1e-3, 0.1, 3.0])
def test_machine_code_against_50_digits(compiled, noise):
    a, b = logits(1, 200, noise=noise)
    got = flat(statistics(a, b))
    for name, value in expected(a[0], b[0]).items():
        assert got[name].item() == pytest.approx(value, rel=1e-9), name


@needs_numba
@pytest.mark.parametrize("top", [1, 3, 30])
def test_machine_code_on_peaked_rows(top):
    # A few tokens have nearly all of the mass, first, so that sums must not lose the rest.
    a, b = logits(4, 20_000, sd=0.5, noise=0.05, dtype=torch.float32)
    a[:, :top] += 16
    b[:, :top] += 16 + 0.1 * torch.randn(4, top, generator=seeded(5))
    check_machine_code(a, b)


@needs_numba
def test_machine_code_on_a_flat_row_with_one_outlier():
    # Almost all of the variance is one rare token's; a centre far from the mean would lose it.
    a, b = logits(2, 8192, sd=0.0, noise=0.01, dtype=torch.float32)
    b[:, 17] += 11
    check_machine_code(a, b)


@needs_numba
def test_machine_code_where_log_r_is_nearly_constant():
    # p has half of its mass where q has next to none: k1 is log 2 but for 1e-6.
    a, b = logits(2, 5000, sd=0.0, noise=1e-6)
    a[:, :2500] -= 250
    check_machine_code(a, b, rtol=1e-6)


@needs_numba
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_machine_code_on_half_precision(dtype):
    check_machine_code(*logits(3, 4500, dtype=dtype))


@needs_numba
def test_machine_code_leaves_what_it_cannot_do(compiled):
    a, b = logits(8, 4096, dtype=torch.float32)
    a[1, 5], b[2, 6], a[3, 7], b[4, 7] = -INF, -INF, -330.0, INF
    a[5, 8] = b[5, 8] = -INF
    b[6] = -INF
    b[6, 3] = 0.0
    out = torch.empty(12, 8, dtype=torch.float64)
    assert _compile.numba_module().statistics(a, b, out).tolist() == [1, 2, 3, 4, 5, 6]
    got = flat(statistics(a, b))
    for row in range(8):
        alone = _statistics._exact(a[row : row + 1], b[row : row + 1])[0]
        assert got["kl_qp"][row].item() == pytest.approx(alone.item(), rel=1e-12)
    a[7, 0] = math.nan
    with pytest.raises(InputError, match="logits_q: expected no NaN"):
        statistics(a, b)


@needs_numba
def test_machine_code_is_used_and_holds_the_stated_bounds(compiled, monkeypatch):
    a, b = logits(19, 9000, noise=0.002, dtype=torch.float32)
    used = []
    kernel = _compile.numba_module().statistics
    monkeypatch.setattr(
        _compile.numba_module(), "statistics", lambda *x: used.append(1) or kernel(*x)
    )
    got = flat(statistics(a, b))
    assert used
    monkeypatch.setenv("KLLAB_COMPILE", "0")
    want = flat(statistics(a, b))
    assert len(used) == 1
    assert (want["kl_qp"] >= 1e-6).all()
    for name, value in want.items():
        rtol = 1e-5 if name.startswith("kl") else 1e-4
        torch.testing.assert_close(got[name], value, rtol=rtol / 100, atol=0)


# --- memory, shapes, bad input --------------------------------------------------------------


def most_alive(function, *arguments) -> int:
    """Most bytes of tensors that the operations of a call hold at once."""
    import weakref

    from torch.utils._python_dispatch import TorchDispatchMode

    alive, most, seen = 0, 0, set()

    class Ledger(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            nonlocal alive, most
            result = op(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    if storage._cdata not in seen and storage.data_ptr() not in inputs:
                        seen.add(storage._cdata)
                        size, key = storage.nbytes(), storage._cdata
                        alive += size
                        most = max(most, alive)
                        weakref.finalize(tensor, freed, size, key)
            return result

    def freed(size, key):
        nonlocal alive
        alive -= size
        seen.discard(key)

    inputs = {x.untyped_storage().data_ptr() for x in arguments}
    with Ledger():
        function(*arguments)
    return most


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_is_a_twentieth_of_the_inputs(dtype):
    a, b = logits(4, 151_936, dtype=dtype)
    used = most_alive(statistics, a, b)
    # 64 rows are the stated case; what is held does not grow with rows.
    assert 0 < used <= 0.05 * 64 / 4 * (a.nbytes + b.nbytes), used


def test_shapes():
    a, b = logits(6, 10)
    whole = statistics(a, b)
    for shape in ((2, 3, 10), (6, 1, 10), (3, 2, 10)):
        assert torch.equal(statistics(a.view(shape), b.view(shape)).js, whole.js.view(shape[:-1]))
    assert statistics(a[0], b[0]).kl_qp.shape == ()
    assert statistics(a[:0], b[:0]).kl_qp.shape == (0,)
    # Logits of the last position, as a slice of (batch, time, V).
    stacked = torch.stack([b, a], 1)
    assert torch.equal(statistics(stacked[:, 1], stacked[:, 0]).tv, whole.tv)


def test_no_gradient_and_no_change_of_the_inputs():
    a, b = logits(2, 50)
    before = a.clone()
    assert not statistics(a.requires_grad_(), b).kl_qp.requires_grad
    assert torch.equal(a.detach(), before)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (torch.zeros(2, 3).long(), torch.zeros(2, 3), "logits_q: expected a tensor of floats"),
        ([0.0], torch.zeros(1), "logits_q: expected a tensor of floats, got list"),
        (torch.zeros(2, 3), torch.zeros(3), r"logits_p: expected shape \(2, 3\)"),
        (torch.zeros(2), torch.zeros(2).double(), "logits_p: expected dtype torch.float32"),
        (torch.zeros(2, 0), torch.zeros(2, 0), r"logits_q: expected a trailing vocabulary"),
        (torch.tensor(0.0), torch.tensor(0.0), r"logits_q: expected a trailing vocabulary"),
        (torch.tensor([0.0, math.nan]), torch.zeros(2), "logits_q: expected no NaN"),
        (torch.zeros(2), torch.tensor([math.nan, INF]), "logits_p: expected no NaN"),
        (torch.full((2,), -INF), torch.zeros(2), "logits_q: expected a logit above -inf"),
    ],
)
def test_refuses(a, b, message):
    with pytest.raises(InputError, match=message):
        statistics(a, b)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees():
    a, b = logits(64, 151_936, dtype=torch.float32)
    a[3, 5] = -INF
    want, got = flat(statistics(a, b)), flat(statistics(a.cuda(), b.cuda()))
    for name, value in want.items():
        torch.testing.assert_close(got[name].cpu(), value, rtol=1e-5, atol=0)
