"""The distribution of the mean of n independent values, exactly or on a lattice by FFT.

Arrays in and out are NumPy float64.  Every step adds what it can cost to one bound on the CDF.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import fft, special

from kllab.checks import InputError

ATOMS, CELLS = 2**20, 2**18
"""Lattice points for a law of atoms, and for a continuous one, which is cut to fit them."""

_ENUMERATE_UP_TO = 50_000  # multisets of a small support
_EPS = float(np.finfo(np.float64).eps)


class Law(NamedTuple):
    """Ascending values, their probabilities, and a uniform bound on the error of the CDF."""

    values: np.ndarray
    pmf: np.ndarray
    error: float


class _Cells(NamedTuple):
    """A single sample's law in pieces: conditional means, masses, and widths (0 for an atom)."""

    means: np.ndarray
    masses: np.ndarray
    widths: np.ndarray


def of_atoms(values: np.ndarray, masses: np.ndarray, n: int) -> Law:
    """Law of the mean of n draws from atoms ``values`` (K,) with probabilities ``masses`` (K,)."""
    keep = masses > 0
    values, masses = _merge(values[keep], masses[keep])
    infinite = np.isinf(values)
    if infinite.any():
        return _with_infinity(values, masses, infinite, n)
    if len(values) == 1:
        return Law(values, np.ones(1), 0.0)
    if n == 1:
        return Law(values, masses / masses.sum(), len(values) * _EPS)
    if math.comb(n + len(values) - 1, n) <= _ENUMERATE_UP_TO:
        return _enumerate(values, masses, n)
    return _convolve(lambda low, high, h: _Cells(values, masses, np.zeros(len(values))), n, ATOMS)


def of_normal(at: Callable[[np.ndarray], np.ndarray], n: int) -> Law:
    """Law of the mean of n values ``at(x)``, x ~ N(0, 1), for a continuous function ``at``."""
    coarse = np.linspace(-_X_END, _X_END, 2**14 + 1)

    def cells(low: float, high: float, h: float) -> _Cells:
        """Cells of x narrow enough that the clipped value moves by at most h/4 within each."""
        x = coarse
        if math.isfinite(h):
            steps = np.abs(np.diff(np.clip(at(x), low, high)))
            parts = np.ceil(4 * steps / h).clip(min=1).astype(np.int64)
            left = np.repeat(x[:-1], parts)
            within = np.arange(len(left)) - np.repeat(np.cumsum(parts) - parts, parts)
            x = np.append(left + within * np.repeat(np.diff(x) / parts, parts), x[-1])
        ends = np.clip(at(x), low, high)
        middle = np.clip(at((x[:-1] + x[1:]) / 2), low, high)
        corners = np.stack([ends[:-1], middle, ends[1:]])
        masses = _normal_masses(x)
        means = (corners[0] + 4 * corners[1] + corners[2]) / 6
        return _Cells(means, masses / masses.sum(), np.ptp(corners, axis=0))

    return _convolve(cells, n, CELLS)


_X_END = 9.0  # 2 Φ(−9) is 2e−19: less than one ulp of the total


def _normal_masses(x: np.ndarray) -> np.ndarray:
    """Φ(x[i+1]) − Φ(x[i]), from whichever tail keeps the digits."""
    upper = special.ndtr(-np.abs(x))
    right = x[:-1] >= 0
    masses = np.where(right, upper[:-1] - upper[1:], upper[1:] - upper[:-1])
    across = (x[:-1] < 0) & (x[1:] > 0)
    return np.where(across, 1 - upper[:-1] - upper[1:], masses)


def _merge(values: np.ndarray, masses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort, and add up the masses of equal values."""
    unique, index = np.unique(values, return_inverse=True)
    return unique, np.bincount(index, masses, len(unique))


def _with_infinity(values, masses, infinite, n: int) -> Law:
    """An infinite value makes the mean infinite: an atom at the end, the rest as a finite law."""
    if infinite.sum() > 1:
        raise InputError("estimator", "values of at most one infinity", "both inf and -inf")
    finite_mass = 1 - float(masses[infinite].sum())
    survival = finite_mass**n
    end = float(values[infinite][0])
    if not (~infinite).any():
        return Law(np.array([end]), np.array([1.0]), 0.0)
    law = of_atoms(values[~infinite], masses[~infinite] / finite_mass, n)
    at = len(law.values) if end > 0 else 0
    return Law(
        np.insert(law.values, at, end),
        np.insert(law.pmf * survival, at, 1 - survival),
        law.error * survival + n * _EPS,
    )


def _enumerate(values: np.ndarray, masses: np.ndarray, n: int) -> Law:
    """Every multiset of n atoms with its multinomial probability."""
    k = len(values)
    bars = np.array(list(itertools.combinations(range(n + k - 1), k - 1)), dtype=np.int64)
    bars = bars.reshape(-1, k - 1)
    edges = np.hstack([np.full((len(bars), 1), -1), bars, np.full((len(bars), 1), n + k - 1)])
    counts = np.diff(edges, axis=1) - 1
    log_ways = special.gammaln(n + 1) - special.gammaln(counts + 1).sum(1)
    pmf = np.exp(log_ways + counts @ np.log(masses))
    means, pmf = _merge(counts @ values / n, pmf)
    return Law(means, pmf / pmf.sum(), 64 * n * _EPS)


# --- the lattice ----------------------------------------------------------------------------


class _Window(NamedTuple):
    """Clip single values to [low, high]; cover sums in [start, start + size · spacing)."""

    low: float
    high: float
    start: float
    spacing: float
    size: int
    outside: float  # bound on the probability that clipping or leaving the window matters
    cost: float  # what the CDF is expected to be off by


def _convolve(cells_at: Callable[[float, float, float], _Cells], n: int, size: int) -> Law:
    """n-fold convolution, on the window that promises the smallest error."""
    summary = _summarise(cells_at(-math.inf, math.inf, math.inf))
    if summary.sd == 0:
        return Law(np.array([summary.mean]), np.array([1.0]), 0.0)
    window = min((_window(summary, n, cut, size) for cut in _CUTS), key=lambda w: w.cost)
    return _power(cells_at(window.low, window.high, window.spacing), window, n)


_CUTS = (1e-13, 1e-11, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)  # probability given up on each side
_BINS = 512


class _Summary(NamedTuple):
    """A single value's law on a few bins, fine near the mean and geometric in the tails."""

    edges: np.ndarray
    masses: np.ndarray
    means: np.ndarray
    mean: float
    sd: float


def _summarise(cells: _Cells) -> _Summary:
    mean = float(cells.masses @ cells.means)
    sd = math.sqrt(float(cells.masses @ (cells.means - mean) ** 2))
    if sd <= 64 * _EPS * abs(mean):
        return _Summary(*[np.empty(0)] * 3, mean, 0.0)
    low = cells.means - cells.widths / 2
    high = cells.means + cells.widths / 2
    reach = np.arcsinh((np.array([low.min(), high.max()]) - mean) / sd)
    edges = mean + sd * np.sinh(np.linspace(*reach, _BINS + 1))
    index = np.clip(np.searchsorted(edges, cells.means, side="right") - 1, 0, _BINS - 1)
    masses = np.bincount(index, cells.masses, _BINS)
    sums = np.bincount(index, cells.masses * cells.means, _BINS)
    means = np.divide(sums, masses, out=(edges[:-1] + edges[1:]) / 2, where=masses > 0)
    return _Summary(edges, masses, np.clip(means, edges[:-1], edges[1:]), mean, sd)


def _window(summary: _Summary, n: int, cut: float, size: int) -> _Window:
    edges, masses = summary.edges, summary.masses
    # Whole bins are clipped, as long as the chance that any of n values is there stays below cut.
    below = np.concatenate([[0.0], np.cumsum(masses)])
    above = np.concatenate([np.cumsum(masses[::-1])[::-1], [0.0]])
    first = int(np.flatnonzero(n * below <= cut)[-1])
    last = int(np.flatnonzero(n * above <= cut)[0])
    low, high = float(edges[first]), float(edges[last])

    # Each bin's mass moves to the bin's two ends without moving its mean.  That can only raise
    # the moment generating function, so Chernoff's bound stays a bound.
    left, right = edges[:-1].clip(low, high), edges[1:].clip(low, high)
    width = np.maximum(right - left, 1e-300)
    share = np.where(right > left, (summary.means.clip(low, high) - left) / width, 0.0)
    points = np.concatenate([left, right])
    weights = np.concatenate([masses * (1 - share), masses * share])
    mean = float(weights @ points)
    sd = max(math.sqrt(float(weights @ (points - mean) ** 2)), 1e-300)
    up = min(_chernoff(points - mean, weights, sd, n, cut), n * (high - mean))
    down = min(_chernoff(mean - points, weights, sd, n, cut), n * (mean - low))

    spacing = (up + down) * (1 + 16 / size) / size
    outside = n * float(below[first] + above[last]) + 2 * cut
    blur = spacing * min(n / 2, 1.5 * math.sqrt(n) + 3)
    density = 1 / (math.sqrt(2 * math.pi * n) * sd)
    start = n * mean - down - 8 * spacing
    return _Window(low, high, start, spacing, size, outside, outside + blur * density)


def _chernoff(points: np.ndarray, weights: np.ndarray, sd: float, n: int, cut: float) -> float:
    """u with P(sum of n centred values > u) <= cut: min over s of (n log M(s) − log cut)/s."""
    used = weights > 0
    s = np.geomspace(0.1, 60, 40)[:, None] / (sd * math.sqrt(n))
    log_m = special.logsumexp(s * points[used], b=weights[used], axis=1)
    return float(np.min((n * log_m - math.log(cut)) / s[:, 0]))


def _power(cells: _Cells, window: _Window, n: int) -> Law:
    h, size = window.spacing, window.size
    values = np.clip(cells.means, window.low, window.high)
    index = np.rint((values - window.low) / h).astype(np.int64)
    rounding = values - (window.low + index * h)
    single = np.bincount(index % size, cells.masses, size)
    pmf = fft.irfft(fft.rfft(single) ** n, size)
    # The mean of the rounding is known and taken out, also of where the window lies: rounded sums
    # are n·drift away from the true ones.  What remains is centred noise.
    drift = float(cells.masses @ rounding)
    first = math.ceil((window.start - n * (window.low + drift)) / h)
    pmf = np.roll(pmf, -(first % size)).clip(min=0.0)
    pmf /= pmf.sum()

    sums = n * window.low + (first + np.arange(size)) * h + n * drift
    noise = float(cells.masses @ ((rounding - drift) ** 2 + (cells.widths / 2) ** 2))
    largest = float(np.max(np.abs(rounding - drift) + cells.widths))
    moved = _moved(pmf, h, n, noise, largest)
    floating_point = n * _EPS * math.sqrt(size) + size * _EPS
    inside = np.flatnonzero(pmf)
    keep = slice(inside[0], inside[-1] + 1)
    return Law(sums[keep] / n, pmf[keep], min(1.0, window.outside + moved + floating_point))


def _moved(pmf: np.ndarray, h: float, n: int, variance: float, largest: float) -> float:
    """What moving the sum by n independent centred errors can change in its CDF.

    Bernstein: the move exceeds t with probability at most eps, for
    t = bL/3 + √((bL/3)² + 2nσ²L), L = log(2/eps).  A move of at most t changes the CDF by at most
    the mass of a window of length t.
    """
    if largest == 0:
        return 0.0
    cdf = np.concatenate([[0.0], np.cumsum(pmf)])
    bounds = []
    for eps in (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4):
        t = n * largest
        if eps:
            log = math.log(2 / eps)
            linear = largest * log / 3
            t = min(t, linear + math.sqrt(linear**2 + 2 * n * variance * log))
        window = min(int(t / h) + 1, len(pmf))
        bounds.append(eps + float(np.max(cdf[window:] - cdf[:-window])))
    return min(bounds)
