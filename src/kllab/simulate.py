r"""What an estimator's n-sample mean does over many replicates, beside what it must do.

A replicate is n samples x ~ q and the mean of v(log r(x)) over them.  For categorical pairs an
estimator is a table with one value a token, so that a draw costs one random word and a few
look-ups, whatever the estimator computes; every other case goes through ``pair.sample_log_r``.
Memory grows with a chunk, not with n or the number of replicates.  All results are in nats.
"""

from __future__ import annotations

import copyreg
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from scipy.special import ndtri
from torch import Tensor
from tqdm import tqdm

from kllab import _alias, exact, runtime
from kllab._compile import Kernel
from kllab._moments import Moments
from kllab.checks import InputError, as_count, as_generator, as_number
from kllab.divergences import Divergence, get
from kllab.estimators import Estimator
from kllab.pairs import CategoricalPair
from kllab.sampling import chunk_for, on_device

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
KEPT = 2**20
"""Quantiles come from the first so many replicates; everything else from all of them."""


@dataclass(frozen=True)
class OfSample:
    """An estimator that looks at the whole sample: self-normalised, cross-fitted, medians of means.

    ``function`` maps log r (rows, n) to one estimate per row (rows,), or to values (rows, n) whose
    mean is the estimate.  ``target`` is the divergence that it is used for.

    Examples
    --------
    >>> import kllab
    >>> from kllab.estimators import median_of_means
    >>> OfSample("median of means", lambda l: median_of_means(kllab.K3(l), 8), "kl_qp").target
    'kl_qp'
    """

    name: str
    function: Callable[[Tensor], Tensor]
    target: str | Divergence | None = None

    def __call__(self, log_r: Tensor) -> Tensor:
        return self.function(log_r)


PerSample = Callable[[Tensor], Tensor]
Estimators = PerSample | Sequence[PerSample] | Mapping[str, PerSample]


# --- results --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """One estimator over all replicates; ``*_error`` are standard errors of this simulation.

    Attributes
    ----------
    mean, bias, variance : of the n-sample mean, in nats and nats²; bias against the ``truth``,
        the exact divergence of the estimator's target.
    exact_mean, exact_variance : what the first and the third must be.
    below_zero : share of replicates whose mean is negative.
    coverage : share whose interval mean ± z s/√n holds the truth.
    quantiles : level to value.

    Notes
    -----
    ``None`` stands for what is not defined: no target, a single sample, an estimator that gives
    one number per sample without a spread, or (the exact columns) one that is not per-sample.
    """

    estimator: str
    target: str | None
    truth: float | None
    mean: float
    mean_error: float
    bias: float | None
    exact_mean: float | None
    variance: float
    variance_error: float
    exact_variance: float | None
    below_zero: float
    below_zero_error: float
    coverage: float | None
    coverage_error: float | None
    quantiles: dict[float, float] = field(repr=False)

    @property
    def exact_bias(self) -> float | None:
        """exact_mean − truth; 0 where both are the same infinity."""
        if self.exact_mean is None or self.truth is None:
            return None
        return 0.0 if self.exact_mean == self.truth else self.exact_mean - self.truth


@dataclass(frozen=True)
class Simulation:
    """A :class:`Summary` for each estimator, by name: ``result["k3"].variance``."""

    pair: str
    n: int
    replicates: int
    level: float
    rows: tuple[Summary, ...]

    def __getitem__(self, name: str) -> Summary:
        for row in self.rows:
            if row.estimator == name:
                return row
        raise KeyError(f"no estimator {name!r}; there are {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(row.estimator for row in self.rows)

    def to_frame(self):
        """A pandas ``DataFrame``, one row per estimator, standard errors in ``*_se`` columns."""
        import pandas as pd

        return pd.DataFrame([_record(row) for row in self.rows])


def _record(row: Summary) -> dict:
    return {
        "estimator": row.estimator,
        "target": row.target,
        "truth": row.truth,
        "mean": row.mean,
        "mean_se": row.mean_error,
        "exact_mean": row.exact_mean,
        "bias": row.bias,
        "bias_se": None if row.bias is None else row.mean_error,
        "exact_bias": row.exact_bias,
        "variance": row.variance,
        "variance_se": row.variance_error,
        "exact_variance": row.exact_variance,
        "below_zero": row.below_zero,
        "below_zero_se": row.below_zero_error,
        "coverage": row.coverage,
        "coverage_se": row.coverage_error,
        **{f"q{100 * u:g}": value for u, value in row.quantiles.items()},
    }


# --- the entry points -----------------------------------------------------------------------


def bias_variance(
    pair,
    estimators: Estimators,
    *,
    n: int,
    replicates: int,
    generator: torch.Generator,
    device: torch.device | str | None = None,
    chunk: int | None = None,
    quantiles: Sequence[float] = QUANTILES,
    level: float = 0.95,
    progress: bool | None = None,
) -> Simulation:
    """Bias, variance, quantiles and coverage of n-sample means over replicates.

    Parameters
    ----------
    pair : what ``kllab.pairs`` returns, or anything with ``.sample_log_r(shape, generator=...)``
        besides what :func:`kllab.exact.moments` asks for.
    estimators : one, several, or a mapping from names.  Each is an
        :class:`~kllab.estimators.Estimator`, another callable from log r to one value per
        sample, or an :class:`OfSample`.  All see the same samples.
    n, replicates : samples per mean, at least 1, and means, at least 2.
    generator : a CPU generator serves every device: it seeds what runs there.
    device : where to sample; the pair's own by default.
    chunk : samples in progress at once; by default what suits the device.  Results do not depend
        on it, but for the order of sums (and, for Gaussian pairs, of draws).
    quantiles : levels in (0, 1]; each quantile is an observed mean.
    level : nominal level of the interval whose coverage is reported.
    progress : a bar on stdout; by default in terminals and notebooks, for what takes seconds, and
        never while the book is built (``KLLAB_BOOK=1``).

    On the CPU, runs of at least 2^22 samples from a categorical pair are compiled where numba is
    installed, once per process, in about a second; ``KLLAB_COMPILE=0`` turns that off.

    Raises
    ------
    InputError : an argument out of range, two estimators of one name, NaN values, or values that
        are not one number per sample.

    Examples
    --------
    >>> import kllab
    >>> generator = torch.Generator().manual_seed(0)
    >>> result = bias_variance(kllab.pairs.gaussian(1.0, 1.0), [kllab.K1, kllab.K2], n=16,
    ...                        replicates=20_000, generator=generator)
    >>> k2 = result["k2"]
    >>> k2.exact_bias, abs(k2.bias - k2.exact_bias) < 4 * k2.mean_error
    (0.125, True)
    """
    n, replicates = as_count("n", n, least=1), as_count("replicates", replicates, least=2)
    quantiles = [as_number("quantiles", u, above=0.0, at_most=1.0) for u in quantiles]
    z = float(ndtri((1 + as_number("level", level, above=0.0, at_most=1 - 1e-12)) / 2))
    named = _named(estimators)
    knowledge = _known(named, pair)
    tally = _Tally([k.truth for k in knowledge], z, n)
    blocks = _blocks(pair, list(named.values()), n, replicates, generator, device, chunk)
    with _bar(replicates, progress) as bar:
        for means, squares in blocks:
            tally.add(means, squares)
            bar.update(means.shape[-1])
    rows = (
        tally.summary(e, name, known, quantiles)
        for e, (name, known) in enumerate(zip(named, knowledge, strict=True))
    )
    return Simulation(getattr(pair, "name", type(pair).__name__), n, replicates, level, tuple(rows))


def means(
    pair,
    estimators: Estimators,
    *,
    n: int,
    replicates: int,
    generator: torch.Generator,
    device: torch.device | str | None = None,
    chunk: int | None = None,
) -> dict[str, Tensor]:
    """The means themselves: name to (replicates,) float64, for a histogram.

    Parameters and errors as for :func:`bias_variance`; the same generator gives the same means.

    Examples
    --------
    >>> import kllab
    >>> generator = torch.Generator().manual_seed(0)
    >>> drawn = means(kllab.pairs.zipf(1000, 1.0, 1.1), kllab.K3, n=10, replicates=500,
    ...               generator=generator)
    >>> drawn["k3"].shape, bool((drawn["k3"] >= 0).all())
    (torch.Size([500]), True)
    """
    n, replicates = as_count("n", n, least=1), as_count("replicates", replicates, least=1)
    named = _named(estimators)
    blocks = _blocks(pair, list(named.values()), n, replicates, generator, device, chunk, False)
    return dict(zip(named, torch.cat([block[0] for block in blocks], -1), strict=True))


def mean_and_error(values: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """The mean of independent draws along ``dim``, and its standard error s/√n.

    Parameters
    ----------
    values : floats, at least 2 along ``dim``; in the unit of what comes back.

    Returns two tensors of the shape without ``dim``.  Raises ``InputError`` for other values.

    Examples
    --------
    >>> mean, error = mean_and_error(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> mean, error
    (tensor([2., 5.]), tensor([1., 0.]))
    """
    if not (isinstance(values, Tensor) and values.is_floating_point() and values.ndim):
        came = str(values.dtype) if isinstance(values, Tensor) else type(values).__name__
        raise InputError("values", "a tensor of floats with at least one dimension", came)
    n = as_count(f"values along dim {dim}", values.shape[dim], least=2)
    return values.mean(dim), values.std(dim) / math.sqrt(n)


def _named(estimators: Estimators) -> dict[str, PerSample]:
    if isinstance(estimators, Mapping):
        named = dict(estimators)
    else:
        several = [estimators] if callable(estimators) else list(estimators)
        names = [getattr(e, "name", getattr(e, "__name__", type(e).__name__)) for e in several]
        if len(set(names)) < len(names):
            raise InputError("estimators", "one name each (or a mapping)", ", ".join(names))
        named = dict(zip(names, several, strict=True))
    if not named:
        raise InputError("estimators", "at least one", "none")
    for name, estimator in named.items():
        if not callable(estimator):
            raise InputError("estimators", "callables of log r", f"{name}: {estimator!r}")
    return named


# --- what is known exactly ------------------------------------------------------------------


@dataclass(frozen=True)
class _Known:
    target: str | None
    truth: float | None
    mean: float | None
    variance: float | None  # of one sample


def _known(named: Mapping[str, PerSample], pair) -> list[_Known]:
    truths: dict[str, float] = {}  # one sum over the vocabulary per target, not per estimator
    known = []
    for estimator in named.values():
        target = getattr(estimator, "target", None)
        name = None if target is None else get(target).name
        if name is not None and name not in truths:
            truths[name] = exact.target_value(target, pair)
        mean = variance = None
        if not isinstance(estimator, OfSample):
            # A bound method has no target, so that the sum of the bias is not made again.
            bare = estimator.__call__ if isinstance(pair, CategoricalPair) else estimator
            moments = exact.moments(bare, pair)
            mean, variance = moments.mean, moments.variance
        known.append(_Known(name, truths.get(name), mean, variance))
    return known


# --- replicates -----------------------------------------------------------------------------

Block = tuple[Tensor, ...]  # (E, rows) means, and means of squares (NaN where there are none)


def _blocks(
    pair, estimators, n, replicates, generator, device, chunk, squares=True
) -> Iterator[Block]:
    as_generator("generator", generator)
    if chunk is not None:
        chunk = as_count("chunk", chunk, least=1)
    if device is not None and hasattr(pair, "to"):
        pair = pair.to(torch.device(device))
    whole = any(isinstance(e, OfSample) for e in estimators)
    if isinstance(pair, CategoricalPair) and not whole:
        return _by_table(pair, estimators, n, replicates, generator, chunk, squares)
    home = pair.log_q.device if hasattr(pair, "log_q") else device or generator.device
    return _by_log_r(pair, estimators, n, replicates, on_device(generator, home), chunk)


def _by_table(pair, estimators, n, replicates, generator, chunk, squares) -> Iterator[Block]:
    """Categorical pairs: every estimator is a column over tokens, or a polynomial in log r."""
    law = pair.sampler
    stream, entries = law.stream(generator), law.entries()
    call = _sums.form(law.device, n * replicates)
    chunk = chunk or chunk_for(_sums, law.device, n * replicates)
    record = _record_of(pair, estimators)

    def sums(start: int, rows: int, columns: int) -> Tensor:
        return call(start, rows, columns, stream, entries, *record, squares)

    if n <= chunk // 2:
        step = chunk // n
        for first in range(0, replicates, step):
            yield tuple(sums(first * n, min(step, replicates - first), n).div_(n))
        return
    # A replicate larger than a chunk: in lines, which are summed in turn.
    lines = min(64, chunk)
    length = chunk // lines
    for first in range(replicates):
        start, end = first * n, first * n + n
        total = 0.0
        while end - start >= lines * length:
            total = total + sums(start, lines, length).sum(-1, keepdim=True)
            start += lines * length
        if start < end:
            total = total + sums(start, 1, end - start)
        yield tuple(total / n)


_PREPARED: WeakKeyDictionary = WeakKeyDictionary()


def _record_of(pair: CategoricalPair, estimators) -> tuple[Tensor, tuple[int, ...], Tensor]:
    """``_recorded``, kept as long as the pair is, where estimators cannot change."""
    if not all(isinstance(e, Estimator) for e in estimators):
        return _recorded(pair, estimators)
    kept = _PREPARED.setdefault(pair, {})
    if (which := tuple(estimators)) not in kept:
        kept[which] = _recorded(pair, estimators)
    return kept[which]


def _recorded(pair: CategoricalPair, estimators) -> tuple[Tensor, tuple[int, ...], Tensor]:
    """What is known of each token, (V, C): log r, then values; and how estimators follow from it.

    Estimator e is column ``kinds[e]`` of the record or, where that is 0, the polynomial in log r
    with coefficients ``polynomials[e]``.
    """
    log_r = torch.where(pair.log_q > -math.inf, pair.log_r, 0.0)
    finite = bool(torch.isfinite(log_r).all())
    columns, kinds, polynomials = [log_r if finite else torch.zeros_like(log_r)], [], []
    for estimator in estimators:
        coefficients = _polynomial(estimator) if finite else None
        kinds.append(0 if coefficients else len(columns))
        polynomials.append(coefficients or (0.0, 0.0, 0.0))
        if not coefficients:
            columns.append(_values(estimator, log_r))
    if len(columns) == 1:
        columns *= 2  # a kernel may read two at once
    return torch.stack(columns, -1), tuple(kinds), log_r.new_tensor(polynomials)


def _polynomial(estimator) -> tuple[float, float, float] | None:
    """Coefficients of 1, l and l², for an estimator that is such a polynomial (k1, k2)."""
    if not isinstance(estimator, Estimator) or estimator.terms is None:
        return None
    coefficients = [0.0, 0.0, 0.0]
    for c, j, k in estimator.terms:
        if c != 0 and (k != 0 or j > 2):
            return None
        if c != 0:
            coefficients[j] += c
    return tuple(coefficients)


def _sum_record(start, rows, columns, stream, entries, record, kinds, polynomials, squares=True):
    """Sums over columns of each estimator's values, and of their squares: (2, E, rows).

    Without ``squares`` the sums alone: (1, E, rows).
    """
    counter = torch.arange(start, start + rows * columns, device=entries.device)
    token = _alias.tokens(_alias.words(counter.view(rows, columns), stream), entries)
    known = _alias.look_up(record, token)
    l = known[..., 0]
    sums = []
    for c, kind in zip(polynomials, kinds, strict=True):
        values = known[..., kind] if kind else (c[2] * l + c[1]) * l + c[0]
        sums += [values.sum(-1), values.square().sum(-1)][: 1 + squares]
    return torch.stack(sums).view(len(kinds), 1 + squares, rows).transpose(0, 1)


_sums = Kernel(_sum_record, "sums")


def _by_log_r(pair, estimators, n, replicates, generator, chunk) -> Iterator[Block]:
    """Everything else: log r at samples, (rows, n), and the estimators of it."""
    chunk = chunk or 2**20
    whole = any(isinstance(e, OfSample) for e in estimators)
    rows = max(1, chunk // n)
    columns = n if whole else min(n, chunk)
    for first in range(0, replicates, rows):
        shape = (min(rows, replicates - first), columns)
        total, squares = 0.0, 0.0
        for start in range(0, n, columns):
            shape = (shape[0], min(columns, n - start))
            log_r = pair.sample_log_r(shape, generator=generator)
            values = [_values(estimator, log_r) for estimator in estimators]
            total = total + torch.stack([v.sum(-1) if v.ndim > 1 else v * n for v in values])
            squares = squares + torch.stack(
                [v.square().sum(-1) if v.ndim > 1 else torch.full_like(v, math.nan) for v in values]
            )
        yield total / n, squares / n


def _values(estimator: PerSample, log_r: Tensor) -> Tensor:
    values = estimator(log_r)
    allowed = [log_r.shape] + [log_r.shape[:-1]] * isinstance(estimator, OfSample)
    if not isinstance(values, Tensor) or values.shape not in allowed:
        came = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        expected = " or ".join(str(tuple(shape)) for shape in allowed)
        raise InputError("estimators", f"values of shape {expected}", str(came))
    values = values.detach().double()
    if torch.isnan(values).any():
        raise InputError("estimators", "values without NaN", f"{int(values.isnan().sum())} NaN")
    return values


# --- sums over replicates -------------------------------------------------------------------


class _Tally:
    """Collects blocks on the device; nothing is read back before the end."""

    def __init__(self, truths: Sequence[float | None], z: float, n: int):
        self._truths = [math.nan if t is None else t for t in truths]
        self._z, self._n = z, n
        self._moments: Moments | None = None
        self._below = self._covered = 0
        self._kept: list[Tensor] = []

    def add(self, means: Tensor, squares: Tensor) -> None:
        moments = Moments.of(means)
        self._moments = self._moments.merge(moments) if self._moments else moments
        self._below = self._below + (means < 0).sum(-1)
        if self._n > 1:
            truth = means.new_tensor(self._truths)[:, None]
            variance = (squares - means * means).clamp(min=0.0) / (self._n - 1)
            self._covered = self._covered + (
                (means - truth).abs() <= self._z * variance.sqrt()
            ).sum(-1)
            self._spread = ~torch.isnan(squares[:, 0])
        room = KEPT - sum(block.shape[-1] for block in self._kept)
        if room > 0:
            self._kept.append(means[:, :room])

    def summary(self, e: int, name: str, known: _Known, levels: Sequence[float]) -> Summary:
        m = self._moments
        mean = float(m.mean[e])
        bias = None
        if known.truth is not None:
            bias = 0.0 if mean == known.truth else mean - known.truth
        below, below_error = _share(int(self._below[e]), m.count)
        coverage = coverage_error = None
        if self._n > 1 and known.truth is not None and bool(self._spread[e]):
            coverage, coverage_error = _share(int(self._covered[e]), m.count)
        values = torch.cat([block[e] for block in self._kept]).sort().values
        places = [max(0, math.ceil(u * len(values)) - 1) for u in levels]
        return Summary(
            estimator=name,
            target=known.target,
            truth=known.truth,
            mean=mean,
            mean_error=float(m.mean_error[e]),
            bias=bias,
            exact_mean=known.mean,
            variance=float(m.variance[e]),
            variance_error=float(m.variance_error[e]),
            exact_variance=None if known.variance is None else known.variance / self._n,
            below_zero=below,
            below_zero_error=below_error,
            coverage=coverage,
            coverage_error=coverage_error,
            quantiles={u: float(values[i]) for u, i in zip(levels, places, strict=True)},
        )


def _share(count: int, total: int) -> tuple[float, float]:
    share = count / total
    return share, math.sqrt(share * (1 - share) / total)


# --- progress -------------------------------------------------------------------------------


def _bar(total: int, wanted: bool | None, unit: str = "replicate") -> tqdm:
    """A bar on stdout, since stderr is where a strict build looks for warnings."""
    return tqdm(
        total=total,
        unit=unit,
        unit_scale=True,
        file=sys.stdout,
        leave=False,
        delay=0.0 if wanted else 2.0,
        disable=not (_watched() if wanted is None else wanted),
    )


def _watched() -> bool:
    if os.environ.get("KLLAB_BOOK") == "1":
        return False
    notebook = "ipykernel" in sys.modules and type(sys.stdout).__module__.startswith("ipykernel")
    return notebook or sys.stdout.isatty()


# --- sweeps ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """A :class:`Simulation` for each (case, n)."""

    results: dict[tuple[str, int], Simulation]

    def __getitem__(self, key: tuple[str, int]) -> Simulation:
        return self.results[key]

    def to_frame(self):
        """One pandas ``DataFrame`` of all, with columns ``case`` and ``n`` in front."""
        import pandas as pd

        return pd.DataFrame(
            {"case": case, "n": n, **_record(row)}
            for (case, n), result in self.results.items()
            for row in result.rows
        )


def sweep(
    cases: Mapping[str, object],
    estimators: Estimators,
    *,
    n: int | Iterable[int],
    replicates: int,
    seed: int = 0,
    executor: Executor | None = None,
    progress: bool | None = None,
    **options,
) -> Sweep:
    """:func:`bias_variance` for each named pair and each n, here or wherever an executor runs it.

    Parameters
    ----------
    cases : name to pair, or to a function without arguments that makes one where it is used.
    executor : any ``concurrent.futures.Executor``: a thread or process pool, or a cluster's, such
        as ``dask.distributed.Client(...).get_executor()``.  ``None`` runs here, in order.
    seed : each case and n has its own generator, made from their names and this, so that results
        depend neither on the executor nor on the order or number of the cases.
    options : what else :func:`bias_variance` takes.

    Process pools pickle their work: functions of a module can be sent, lambdas cannot.

    Examples
    --------
    >>> import kllab
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> cases = {"near": kllab.pairs.gaussian(0.1, 1.0), "far": kllab.pairs.gaussian(1.0, 1.0)}
    >>> with ThreadPoolExecutor(2) as executor:
    ...     result = sweep(cases, [kllab.K1, kllab.K3], n=(4, 16), replicates=1000,
    ...                    executor=executor)
    >>> result["near", 16]["k3"].exact_variance < result["near", 16]["k1"].exact_variance
    True
    >>> len(result.to_frame())
    8
    """
    sizes = [n] if isinstance(n, int) else list(n)
    options = {"replicates": replicates, **options, "progress": False}
    jobs = {
        (case, size): (pair, estimators, f"sweep {case} {size}", seed, {"n": size, **options})
        for case, pair in cases.items()
        for size in sizes
    }
    if executor is not None:
        futures = [executor.submit(_job, *job) for job in jobs.values()]
        outcomes = (future.result() for future in futures)
    else:
        outcomes = (_job(*job) for job in jobs.values())
    results = {}
    with _bar(len(jobs), progress, "run") as bar:
        for key, outcome in zip(jobs, outcomes, strict=True):
            results[key] = outcome
            bar.update(1)
    return Sweep(results)


def _job(pair, estimators, name: str, seed: int, options: dict) -> Simulation:
    pair = pair() if callable(pair) else pair
    return bias_variance(pair, estimators, generator=runtime.generator(name, seed), **options)


def _by_name(divergence: Divergence):
    """Registered divergences hold lambdas, which pickle refuses: they travel by name."""
    try:
        found = get(divergence.name)
    except KeyError:
        found = None
    same = found is divergence or (found is not None and divergence.name.startswith("alpha("))
    return (get, (divergence.name,)) if same else divergence.__reduce_ex__(2)


copyreg.pickle(Divergence, _by_name)
