"""Simulation against exact moments: bounds from exact variances, seeds 0-99, twins refused."""

import math
import os
import pickle
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import kllab
from kllab import K1, K2, K3, _compile, simulate
from kllab._moments import Moments
from kllab.checks import InputError
from kllab.estimators import bregman, cross_fitted, median_of_means, optimal_lambda
from kllab.simulate import OfSample, bias_variance, mean_and_error, means, sweep

SEEDS = range(100)
THREE = [K1, K2, K3]
needs_numba = pytest.mark.skipif(_compile.numba_module() is None, reason="needs numba")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def pair():
    """Real enough, and with a bias of k2, 12 % of the KL, that 20,000 samples show."""
    return kllab.pairs.zipf(500, 1.0, 1.3)


# --- against what must come out -------------------------------------------------------------

N, REPLICATES = 16, 4000
Z = stats.norm.isf(2.5e-6)  # two-sided, of 100 seeds times what is compared


def mean_accepts(summary, exact_mean: float) -> bool:
    """The grand mean within Z of its exact standard errors."""
    error = math.sqrt(summary.exact_variance / REPLICATES)
    return abs(summary.mean - exact_mean) <= Z * error


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_means_and_biases(pair, kind):
    pair = pair if kind == "categorical" else kllab.pairs.gaussian(0.6, 1.1)
    exact = {e.name: kllab.exact.moments(e, pair) for e in THREE}
    twin_refused = 0
    for seed in SEEDS:
        result = bias_variance(
            pair, THREE, n=N, replicates=REPLICATES, generator=seeded(seed), quantiles=()
        )
        for name, moments in exact.items():
            row = result[name]
            assert row.exact_mean == moments.mean
            assert row.exact_bias == pytest.approx(moments.bias, rel=1e-9, abs=1e-15)
            assert row.exact_variance == pytest.approx(moments.variance / N)
            assert mean_accepts(row, moments.mean)
            assert row.bias == pytest.approx(row.mean - row.truth)
        # The twin: k2 taken for an unbiased estimator.
        twin_refused += not mean_accepts(result["k2"], result["k2"].truth)
    assert twin_refused >= 99


def test_variances_and_standard_errors(pair):
    # Scores of variance and mean over 100 seeds are standard normal: their squares add up to χ².
    rows = [
        bias_variance(pair, [K1], n=N, replicates=REPLICATES, generator=seeded(s)).rows[0]
        for s in SEEDS
    ]
    of_mean = [(r.mean - r.exact_mean) / r.mean_error for r in rows]
    of_variance = [(r.variance - r.exact_variance) / r.variance_error for r in rows]
    for scores in (of_mean, of_variance):
        total = sum(z * z for z in scores)
        assert 1e-5 < stats.chi2.sf(total, 100) < 1 - 1e-5
    # Twins: the variance of one sample, and that of a mean of n − 1.
    assert all(r.variance < r.exact_variance * N / 2 for r in rows)
    refused = [abs(r.variance - r.exact_variance * N / (N - 1)) for r in rows]
    assert sum(x * x for x in refused) > 2 * sum((r.variance - r.exact_variance) ** 2 for r in rows)


def test_below_zero_and_quantiles_against_the_exact_law():
    pair = kllab.pairs.gaussian(0.1, 1.0)
    law = kllab.exact.sampling_distribution(K1, pair, 64)
    result = bias_variance(pair, K1, n=64, replicates=20_000, generator=seeded(3))
    row = result["k1"]
    exact_share = float(law.cdf(0.0))
    assert exact_share == pytest.approx(0.345, abs=5e-4)  # Φ(−√64 · .1 / 2)
    assert abs(row.below_zero - exact_share) < 4.5 * math.sqrt(exact_share / 20_000)
    assert row.below_zero_error == pytest.approx(math.sqrt(0.345 * 0.655 / 20_000), rel=0.05)
    for u, value in row.quantiles.items():
        # The share of the exact law below an empirical quantile is u, give or take √(u(1−u)/R).
        assert abs(float(law.cdf(value)) - u) < 4.5 * math.sqrt(u * (1 - u) / 20_000)
    assert list(row.quantiles) == list(simulate.QUANTILES)


def test_quantiles_are_order_statistics():
    drawn = means(kllab.pairs.gaussian(1.0, 1.0), K3, n=3, replicates=101, generator=seeded(4))
    ordered = drawn["k3"].sort().values.tolist()
    levels = (0.001, 0.5, 0.9, 1.0)
    result = bias_variance(
        kllab.pairs.gaussian(1.0, 1.0),
        K3,
        n=3,
        replicates=101,
        generator=seeded(4),
        quantiles=levels,
    )
    assert list(result["k3"].quantiles.values()) == [ordered[i] for i in (0, 50, 90, 100)]


def test_coverage_is_the_student_shortfall():
    # k1 of a shift is Gaussian, so mean ± z s/√n covers with P(|t_{n−1}| ≤ z √((n−1)/n))…
    pair, n, replicates = kllab.pairs.gaussian(0.5, 1.0), 5, 40_000
    row = bias_variance(pair, K1, n=n, replicates=replicates, generator=seeded(5), level=0.9)["k1"]
    z = stats.norm.ppf(0.95)
    want = 2 * stats.t.cdf(z, n - 1) - 1  # s² is the unbiased one: no factor
    assert abs(row.coverage - want) < 4.5 * math.sqrt(want * (1 - want) / replicates)
    assert abs(row.coverage - 0.9) > 10 * row.coverage_error
    assert row.coverage_error == pytest.approx(math.sqrt(want * (1 - want) / replicates), rel=0.05)


def test_biased_estimators_lose_coverage(pair):
    result = bias_variance(pair, THREE, n=20_000, replicates=200, generator=seeded(6))
    assert result["k2"].coverage < 0.2 < 0.85 < result["k3"].coverage


# --- one path or another --------------------------------------------------------------------


def test_a_table_gives_what_the_estimator_gives(pair):
    several = [*THREE, bregman("js"), K3.clamped(value=(-1, 0.05)), lambda l: l.exp()]
    named = {f"e{i}": e for i, e in enumerate(several)}
    drawn = means(pair, named, n=7, replicates=50, generator=seeded(7))
    tokens = pair.sampler.draw(0, 350, pair.sampler.stream(seeded(7))).view(50, 7)
    for name, estimator in named.items():
        want = estimator(pair.log_r[tokens]).mean(-1)
        torch.testing.assert_close(drawn[name], want, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("chunk", [1, 64, 129, 1000, 10_000])
def test_chunks_change_nothing(pair, chunk):
    options = {"n": 100, "replicates": 37}
    whole = bias_variance(pair, THREE, generator=seeded(8), **options)
    parts = bias_variance(pair, THREE, generator=seeded(8), chunk=chunk, **options)
    for a, b in zip(whole.rows, parts.rows, strict=True):
        assert b.mean == pytest.approx(a.mean, rel=1e-12)
        assert b.variance == pytest.approx(a.variance, rel=1e-9)
        assert b.variance_error == pytest.approx(a.variance_error, rel=1e-9)
        assert (b.below_zero, b.coverage) == (a.below_zero, a.coverage)
        assert list(b.quantiles.values()) == pytest.approx(list(a.quantiles.values()), rel=1e-12)


def test_chunks_change_nothing_in_law_for_gaussian_pairs():
    pair = kllab.pairs.gaussian(0.5, 1.0)
    for chunk in (7, 50, 4096):
        row = bias_variance(pair, K3, n=10, replicates=4000, generator=seeded(chunk), chunk=chunk)[
            "k3"
        ]
        assert abs(row.mean - row.exact_mean) < 4.5 * math.sqrt(row.exact_variance / 4000)


def test_memory_is_bounded_by_the_chunk(pair, monkeypatch):
    asked, look_up = [], simulate._alias.look_up
    monkeypatch.setattr(
        simulate._alias, "look_up", lambda t, i: asked.append(i.numel()) or look_up(t, i)
    )
    means(pair, THREE, n=1000, replicates=20, generator=seeded(), chunk=300)
    assert max(asked) <= 300
    assert sum(asked) >= 20_000


EACH_KIND = {
    "values": [K3, bregman("js"), K3.clamped(value=(-1, 0.05)), lambda l: l.exp()],
    "polynomials": [K1, K2],
    "both": [K2, bregman("tv"), K1, K3],
}


@needs_numba
@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.parametrize(("n", "replicates"), [(1, 501), (64, 501), (100, 77), (5000, 3)])
def test_machine_code_gives_the_same_sums(pair, monkeypatch, kind, n, replicates):
    named = {f"e{i}": e for i, e in enumerate(EACH_KIND[kind])}
    options = {"n": n, "replicates": replicates, "quantiles": ()}
    plain = bias_variance(pair, named, generator=seeded(11), **options)
    used = []
    sums = _compile.numba_module().sums
    monkeypatch.setattr(_compile.numba_module(), "sums", lambda *a: used.append(1) or sums(*a))
    monkeypatch.delenv("KLLAB_COMPILE", raising=False)
    monkeypatch.setattr(_compile, "WORTH", 1)
    fast = bias_variance(pair, named, generator=seeded(11), **options)
    assert used
    for name in named:
        assert fast[name].mean == pytest.approx(plain[name].mean, rel=1e-12)
        assert fast[name].variance == pytest.approx(plain[name].variance, rel=1e-10)
        assert fast[name].coverage == plain[name].coverage


@needs_numba
@pytest.mark.parametrize(("rows", "columns"), [(70, 3), (3, 64), (2, 1000)])
def test_machine_code_takes_any_polynomial_and_column(pair, rows, columns):
    record = torch.randn(500, 5, dtype=torch.float64, generator=seeded(13))
    polynomials = torch.randn(6, 3, dtype=torch.float64, generator=seeded(14))
    kinds = (4, 0, 1, 0, 2, 3)
    law = pair.sampler
    head = (12_345, rows, columns, law.stream(seeded(15)), law.entries())
    tokens = law.draw(12_345, rows * columns, head[3]).view(rows, columns)
    for e, kind in enumerate(kinds):
        l, c = record[tokens, 0], polynomials[e]
        values = record[tokens, kind] if kind else c[0] + c[1] * l + c[2] * l**2
        want = torch.stack([values.sum(-1), (values**2).sum(-1)])
        for sums in (_compile.numba_module().sums, simulate._sum_record):
            got = sums(*head, record, kinds, polynomials)[:, e]
            torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
            alone = sums(*head, record, kinds, polynomials, False)[:, e]
            torch.testing.assert_close(alone, want[:1], rtol=1e-11, atol=1e-11)


@needs_numba
@pytest.mark.parametrize("columns", [1, 2, 63, 64, 65, 128, 200])
@pytest.mark.parametrize("kinds", [(0,), (1,), (0, 1, 0)])
def test_machine_code_for_sums_of_one_table(pair, columns, kinds):
    rows = 7
    record = torch.randn(500, 2, dtype=torch.float64, generator=seeded(13))
    polynomials = torch.randn(len(kinds), 3, dtype=torch.float64, generator=seeded(14))
    law = pair.sampler
    head = (12_345, rows, columns, law.stream(seeded(15)), law.entries())
    tokens = law.draw(12_345, rows * columns, head[3]).view(rows, columns)
    l, v = record[tokens].unbind(-1)
    want = [
        (v if kind else c[0] + c[1] * l + c[2] * l**2).sum(-1)
        for kind, c in zip(kinds, polynomials, strict=True)
    ]
    got = _compile.numba_module().sums(*head, record, kinds, polynomials, False)
    assert got.shape == (1, len(kinds), rows)
    torch.testing.assert_close(got[0], torch.stack(want), rtol=1e-11, atol=1e-11)


@needs_numba
def test_machine_code_and_infinite_values(monkeypatch):
    # p lacks a token that q has: k1, k2 and k3 are infinite there, and may not spoil each other.
    q, p = torch.tensor([0.9, 0.1]).log(), torch.tensor([1.0, 0.0]).log()
    pair = kllab.pairs.categorical(q, p)
    estimators = [*THREE, K3.clamped(value=(0, 1))]
    options = {"n": 5, "replicates": 200}
    plain = means(pair, estimators, generator=seeded(12), **options)
    monkeypatch.delenv("KLLAB_COMPILE", raising=False)
    monkeypatch.setattr(_compile, "WORTH", 1)
    fast = means(pair, estimators, generator=seeded(12), **options)
    assert 0 < int(plain["k1"].isinf().sum()) < 200
    for name, value in plain.items():
        torch.testing.assert_close(fast[name], value, rtol=1e-12, atol=1e-15)


def test_without_numba_the_plain_functions_run(monkeypatch):
    monkeypatch.delenv("KLLAB_COMPILE", raising=False)
    cpu = torch.device("cpu")
    monkeypatch.setattr(_compile, "numba_module", lambda: None)
    assert simulate._sums.form(cpu, 2**30) is simulate._sum_record
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "kllab._native", raising=False)
    monkeypatch.delattr(kllab, "_native", raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)  # what an import of it meets where it is not
    assert _compile.numba_module.__wrapped__() is None


@needs_numba
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_draws_too():
    """It inherits the pool of threads, but none of the threads."""
    script = """
    import os, torch
    from kllab import _alias, _native
    entries = _alias.table(torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64))[0]
    stream = _alias.key(torch.Generator().manual_seed(0), "cpu")
    before = _native.draw(0, 1000, stream, entries)
    if child := os.fork():
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0 if torch.equal(before, _native.draw(0, 1000, stream, entries)) else 3)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    assert subprocess.run(command, timeout=300).returncode == 0


def test_kernels_fall_back_where_compilation_fails(monkeypatch):
    kernel = _compile.Kernel(lambda x: x + 1, "none")
    monkeypatch.delenv("KLLAB_COMPILE", raising=False)
    monkeypatch.setattr(kernel, "_compile", lambda: lambda x: 1 / 0)
    cuda = torch.device("cuda")
    assert kernel.form(cuda, 2**22) is kernel
    assert int(kernel(torch.tensor(1))) == 2
    assert kernel.error == "ZeroDivisionError: division by zero"
    assert int(kernel(torch.tensor(2))) == 3
    assert kernel.form(cuda, 2**40) is kernel.function


@needs_numba
def test_what_is_compiled(monkeypatch):
    sums, native = simulate._sums, _compile.numba_module()
    monkeypatch.delenv("KLLAB_COMPILE", raising=False)
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert sums.form(cpu, 2**22) is native.sums
    assert sums.form(cpu, 2**22 - 1) is sums.function
    assert sums.form(cuda, 2**22) is sums
    assert sums.form(cuda, 2**22 - 1) is sums.function
    assert sums.form(torch.device("mps"), 2**22) is sums.function
    monkeypatch.setenv("KLLAB_COMPILE", "0")
    assert sums.form(cpu, 2**22) is sums.form(cuda, 2**22) is sums.function


def test_the_plain_sums_are_one_graph(pair):
    """What a GPU compiles: no call of Python in between, on any shape."""
    law = pair.sampler
    record = simulate._record_of(pair, (K1, K3))
    compiled = torch.compile(simulate._sum_record, fullgraph=True, dynamic=True, backend="eager")
    head = (law.stream(seeded(16)), law.entries(), *record)
    for rows, columns in ((5, 7), (11, 3)):
        want = simulate._sum_record(100, rows, columns, *head)
        torch.testing.assert_close(compiled(100, rows, columns, *head), want, rtol=1e-13, atol=0)


# --- estimators of the whole sample ---------------------------------------------------------


def test_cross_fitting_is_unbiased_where_lambda_of_the_sample_is_not():
    pair = kllab.pairs.gaussian(1.0, 1.0)

    def in_sample(l):
        lam = optimal_lambda("kl_qp", l)
        return -l + lam[:, None] * torch.expm1(l)

    estimators = [
        OfSample("cross-fitted", lambda l: cross_fitted("kl_qp", l), "kl_qp"),
        OfSample("in-sample", in_sample, "kl_qp"),
    ]
    result = bias_variance(pair, estimators, n=8, replicates=60_000, generator=seeded(12))
    fitted, biased = result.rows
    assert abs(fitted.bias) < 4.5 * fitted.mean_error
    assert abs(biased.bias) > 10 * biased.mean_error
    assert (fitted.exact_mean, fitted.exact_variance, fitted.exact_bias) == (None, None, None)
    assert 0 < fitted.coverage < 1


def test_one_number_per_sample_has_no_interval(pair):
    of_sample = OfSample("mom", lambda l: median_of_means(K3(l), 4), "kl_qp")
    result = bias_variance(pair, [K3, of_sample], n=8, replicates=500, generator=seeded(13))
    assert result["mom"].coverage is None
    assert result["mom"].quantiles.keys() == result["k3"].quantiles.keys()
    assert result["k3"].coverage is not None
    assert result["k3"].exact_mean == pytest.approx(result["k3"].truth)
    drawn = means(pair, [K3, of_sample], n=8, replicates=500, generator=seeded(13))
    plain = means(pair, K3, n=8, replicates=500, generator=seeded(13))
    # K3 sees the same samples, whichever path they take.
    torch.testing.assert_close(drawn["k3"], plain["k3"], rtol=1e-12, atol=1e-15)


# --- limits ---------------------------------------------------------------------------------


def test_infinite_values():
    half = math.log(0.5)
    pair = kllab.pairs.categorical([half, half], [0.0, -math.inf])
    result = bias_variance(pair, THREE, n=2, replicates=100, generator=seeded(14))
    for row in result.rows:
        assert row.mean == row.exact_mean == row.truth == math.inf
        assert (
            row.variance == row.exact_variance == row.mean_error == row.variance_error == math.inf
        )
        assert row.bias == row.exact_bias == 0.0
        assert row.quantiles[0.95] == math.inf
        assert math.isfinite(row.quantiles[0.05])


def test_lost_mass_is_a_bias():
    pair = kllab.pairs.top_p(kllab.pairs.zipf(50, 1.0, 1.0).log_p, 0.9)
    row = bias_variance(pair, K3, n=4, replicates=1000, generator=seeded(15))["k3"]
    lost = 1 - float(pair.log_p[pair.log_q > -math.inf].exp().sum())
    assert row.exact_bias == pytest.approx(-lost)


def test_one_sample_has_no_interval(pair):
    row = bias_variance(pair, K1, n=1, replicates=50, generator=seeded())["k1"]
    assert row.coverage is None
    assert row.exact_variance == kllab.exact.moments(K1, pair).variance


def test_without_a_target(pair):
    row = bias_variance(pair, {"r": torch.exp}, n=4, replicates=2000, generator=seeded())["r"]
    assert (row.target, row.truth, row.bias, row.coverage) == (None, None, None, None)
    assert row.exact_mean == pytest.approx(1.0)


# --- moments that merge ---------------------------------------------------------------------


def check_moments(moments: Moments, values: torch.Tensor) -> None:
    off = values - values.mean()
    scale = float(off.abs().max()) + 1e-300
    assert moments.count == len(values)
    assert float(moments.mean[0]) == pytest.approx(float(values.mean()), rel=1e-12, abs=1e-12)
    for k, got in ((2, moments.sum2), (3, moments.sum3), (4, moments.sum4)):
        want = float((off**k).sum())
        assert float(got[0]) == pytest.approx(want, rel=1e-9, abs=1e-9 * scale**k * len(values))


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=40), st.data())
def test_merging_in_any_order(values, data):
    values = torch.tensor(values, dtype=torch.float64)
    cuts = data.draw(st.lists(st.integers(1, len(values) - 1), max_size=6, unique=True))
    edges = [0, *sorted(cuts), len(values)]
    parts = [Moments.of(values[None, a:b]) for a, b in pairwise(edges)]
    while len(parts) > 1:
        i = data.draw(st.integers(0, len(parts) - 1))
        first = parts.pop(i)
        j = data.draw(st.integers(0, len(parts) - 1))
        parts.append(first.merge(parts.pop(j)))
    check_moments(parts[0], values)


def test_merging_far_from_zero():
    values = 1e9 + torch.randn(1000, dtype=torch.float64, generator=seeded())
    merged = Moments.of(values[None, :300]).merge(Moments.of(values[None, 300:]))
    assert float(merged.variance) == pytest.approx(float(values.var()), rel=1e-6)
    assert float(merged.mean_error) == pytest.approx(
        float(values.std()) / math.sqrt(1000), rel=1e-6
    )


def test_infinity_survives_merging():
    finite = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    infinite = torch.tensor([[3.0, math.inf]], dtype=torch.float64)
    orders = [
        Moments.of(finite).merge(Moments.of(infinite)),
        Moments.of(infinite).merge(Moments.of(finite)),
        Moments.of(infinite).merge(Moments.of(infinite)),
    ]
    for moments in orders:
        for value in (moments.mean, moments.variance, moments.mean_error, moments.variance_error):
            assert value.tolist() == [math.inf]


def test_few_values_say_nothing_of_spread():
    one = Moments.of(torch.tensor([[2.0]], dtype=torch.float64))
    assert one.variance.tolist() == [math.inf]
    three = Moments.of(torch.tensor([[2.0, 3.0, 4.0]], dtype=torch.float64))
    assert three.variance.tolist() == [1.0]
    assert three.variance_error.tolist() == [math.inf]


# --- sweeps ---------------------------------------------------------------------------------


def _zipf():
    return kllab.pairs.zipf(300, 1.0, 1.2)


CASES = {"zipf": _zipf, "gaussian": kllab.pairs.gaussian(0.5, 1.0)}
OPTIONS = {"n": (4, 8), "replicates": 300, "seed": 5}


@pytest.fixture(scope="module")
def swept():
    return sweep(CASES, [*THREE, bregman("alpha(0.3)")], **OPTIONS)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_results_do_not_depend_on_the_executor(swept, kind):
    pool = (
        ThreadPoolExecutor(3)
        if kind == "threads"
        else ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    )
    with pool as executor:
        result = sweep(CASES, [*THREE, bregman("alpha(0.3)")], executor=executor, **OPTIONS)
    assert result == swept


def test_a_dask_cluster_runs_a_sweep(swept):
    distributed = pytest.importorskip("distributed", reason="needs dask.distributed")
    cluster = {"n_workers": 2, "threads_per_worker": 1, "processes": False}
    with distributed.Client(**cluster, dashboard_address=None) as client:
        workers = client.scheduler_info()["workers"]
        executor = client.get_executor(pure=False)
        result = sweep(CASES, [*THREE, bregman("alpha(0.3)")], executor=executor, **OPTIONS)
    assert len(workers) == 2
    assert result == swept


def test_results_do_not_depend_on_the_other_cases(swept):
    alone = sweep({"zipf": _zipf()}, [*THREE, bregman("alpha(0.3)")], n=8, replicates=300, seed=5)
    assert alone["zipf", 8] == swept["zipf", 8]
    other = sweep({"zipf": _zipf()}, K3, n=8, replicates=300, seed=6)
    assert other["zipf", 8]["k3"].mean != swept["zipf", 8]["k3"].mean


def test_frames(swept):
    frame = swept.to_frame()
    assert frame.columns[:3].tolist() == ["case", "n", "estimator"]
    assert len(frame) == 2 * 2 * 4
    single = swept["zipf", 4].to_frame()
    assert single["estimator"].tolist() == list(swept["zipf", 4].names)
    row = swept["zipf", 4].rows[0]
    cells = single.iloc[0]
    assert cells["mean"] == row.mean
    assert cells["mean_se"] == cells["bias_se"] == row.mean_error
    assert cells["variance_se"] == row.variance_error
    assert cells["coverage_se"] == row.coverage_error
    assert cells["below_zero_se"] == row.below_zero_error
    assert cells["q50"] == row.quantiles[0.5]
    assert cells["exact_bias"] == row.exact_bias


def test_divergences_are_pickled_by_name():
    for d in (*kllab.DIVERGENCES.values(), K2.generator):
        assert pickle.loads(pickle.dumps(d)) is d
    back = pickle.loads(pickle.dumps(kllab.divergences.alpha(0.3)))
    assert back.name == "alpha(0.29999999999999999)"
    assert pickle.loads(pickle.dumps(K3)) == K3
    own = replace(kllab.DIVERGENCES["tv"], name="own", value=torch.abs, slope=torch.sign)
    assert pickle.loads(pickle.dumps(own)).value is torch.abs


# --- a mean and its error -------------------------------------------------------------------


def test_mean_and_error_by_hand_along_each_axis():
    values = torch.tensor([[1.0, 4.0, 7.0], [3.0, 4.0, 2.0]], dtype=torch.float64)
    for dim, rows in ((0, values.T.tolist()), (1, values.tolist()), (-1, values.tolist())):
        mean, error = mean_and_error(values, dim)
        for got, spread, row in zip(mean.tolist(), error.tolist(), rows, strict=True):
            m = math.fsum(row) / len(row)
            square = math.fsum((x - m) ** 2 for x in row) / (len(row) - 1)
            assert got == pytest.approx(m)
            assert spread == pytest.approx(math.sqrt(square / len(row)))
    assert torch.equal(mean_and_error(values)[0], values.mean(0))


@pytest.mark.parametrize(
    "values", [torch.ones(1), torch.ones(()), torch.ones(3, dtype=torch.int64), [1.0, 2.0]]
)
def test_mean_and_error_refuses(values):
    with pytest.raises(InputError, match="values"):
        mean_and_error(values)


# --- arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n: expected a whole number, at least 1"),
        ({"replicates": 1}, "replicates: expected a whole number, at least 2"),
        ({"chunk": 0}, "chunk: expected a whole number, at least 1"),
        ({"level": 1.0}, "level: expected a finite number above 0"),
        ({"quantiles": [0.0]}, "quantiles: expected a finite number above 0"),
        ({"generator": None}, "generator: expected a torch.Generator"),
        ({"estimators": []}, "estimators: expected at least one"),
        ({"estimators": [K1, K1]}, r"estimators: expected one name each .* got k1, k1"),
        ({"estimators": {"x": 3}}, "estimators: expected callables of log r, got x: 3"),
        ({"estimators": lambda l: l.sum()}, "estimator"),
        ({"estimators": OfSample("s", lambda l: l.sum())}, "estimators: expected values of shape"),
        ({"estimators": OfSample("s", lambda l: l * math.nan)}, "estimators: expected values with"),
    ],
)
def test_refuses(pair, change, message):
    arguments = {"estimators": K1, "n": 4, "replicates": 10, "generator": seeded()} | change
    with pytest.raises(InputError, match=message):
        bias_variance(pair, **arguments)


def test_unknown_name(pair):
    with pytest.raises(KeyError, match="no estimator 'k4'; there are k1, k2, k3"):
        bias_variance(pair, THREE, n=2, replicates=2, generator=seeded())["k4"]


def test_the_generator_decides_and_advances(pair):
    generator = seeded(1)
    first, second = (means(pair, K3, n=4, replicates=9, generator=generator)["k3"] for _ in "ab")
    assert torch.equal(first, means(pair, K3, n=4, replicates=9, generator=seeded(1))["k3"])
    assert not torch.equal(first, second)


def test_progress(pair, monkeypatch, capsys):
    options = {"n": 2, "replicates": 10, "generator": seeded()}
    bias_variance(pair, K3, **options)
    assert capsys.readouterr().out == ""
    bias_variance(pair, K3, progress=True, **options)
    shown = capsys.readouterr()
    assert "/10.0" in shown.out
    assert shown.err == ""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert simulate._watched()
    monkeypatch.setenv("KLLAB_BOOK", "1")
    assert not simulate._watched()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees(pair):
    options = {"n": 64, "replicates": 65_536}
    home = bias_variance(pair, THREE, generator=seeded(1), **options)
    away = bias_variance(pair, THREE, generator=seeded(1), device="cuda", **options)
    gaussian = kllab.pairs.gaussian(0.5, 1.0)
    normal = bias_variance(gaussian, THREE, generator=seeded(1), device="cuda", **options)
    for a, b in zip(home.rows, away.rows, strict=True):
        assert b.mean == pytest.approx(a.mean, rel=1e-9)  # the same draws
    for row in (*away.rows, *normal.rows):
        assert abs(row.mean - row.exact_mean) < 4.5 * math.sqrt(row.exact_variance / 65_536)
