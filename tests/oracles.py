"""References that share no code with kllab: 50-digit formulas, plain sums, brackets of a CDF.

Every generator is written here as a function of r, with its derivative; nothing is imported from
the package.  Numbers are in nats.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np
from mpmath import mp, mpf

mp.dps = 50

INF = math.inf


@dataclass(frozen=True)
class Generator:
    """f and f' on (0, ∞), f'(1), f''(1), f(0), and lim f(r)/r at infinity."""

    f: Callable
    df: Callable
    df1: float
    d2f1: float | None
    at_zero: float
    per_p: float


def alpha(a) -> Generator:
    a = mpf(a)
    return Generator(
        lambda r: (r**a - 1 - a * (r - 1)) / (a * (a - 1)),
        lambda r: (r ** (a - 1) - 1) / (a - 1),
        df1=0.0,
        d2f1=1.0,
        at_zero=float(1 / a) if a > 0 else INF,
        per_p=INF if a > 1 else float(1 / (1 - a)),
    )


GENERATORS = {
    "kl_qp": Generator(lambda r: -mp.log(r), lambda r: -1 / r, -1, 1, INF, 0),
    "kl_pq": Generator(lambda r: r * mp.log(r), lambda r: mp.log(r) + 1, 1, 1, 0, INF),
    "chi2_pq": Generator(lambda r: (r - 1) ** 2, lambda r: 2 * (r - 1), 0, 2, 1, INF),
    "chi2_qp": Generator(lambda r: 1 / r - 1, lambda r: -1 / r**2, -1, 2, INF, 0),
    "hellinger2": Generator(
        lambda r: (mp.sqrt(r) - 1) ** 2, lambda r: 1 - 1 / mp.sqrt(r), 0, 0.5, 1, 1
    ),
    "js": Generator(
        lambda r: (r * mp.log(r) - (r + 1) * mp.log((r + 1) / 2)) / 2,
        lambda r: mp.log(2 * r / (r + 1)) / 2,
        0,
        0.25,
        math.log(2) / 2,
        math.log(2) / 2,
    ),
    "jeffreys": Generator(
        lambda r: (r - 1) * mp.log(r), lambda r: mp.log(r) + 1 - 1 / r, 0, 2, INF, INF
    ),
    "tv": Generator(lambda r: abs(r - 1) / 2, lambda r: mp.sign(r - 1) / 2, 0, None, 0.5, 0.5),
    # k2's generator and what it becomes with q and p exchanged: not convex, not registered.
    "half_squared_log": Generator(
        lambda r: mp.log(r) ** 2 / 2, lambda r: mp.log(r) / r, 0, 1, INF, 0
    ),
    "half_r_squared_log": Generator(
        lambda r: r * mp.log(r) ** 2 / 2,
        lambda r: mp.log(r) ** 2 / 2 + mp.log(r),
        0,
        1,
        0,
        INF,
    ),
}
REGISTERED = [
    "kl_qp", "kl_pq", "chi2_pq", "chi2_qp", "hellinger2", "js", "jeffreys", "tv",
]  # fmt: skip
CONVEX = REGISTERED
REVERSE = {
    "kl_qp": "kl_pq",
    "kl_pq": "kl_qp",
    "chi2_pq": "chi2_qp",
    "chi2_qp": "chi2_pq",
    "hellinger2": "hellinger2",
    "js": "js",
    "jeffreys": "jeffreys",
    "tv": "tv",
    "half_squared_log": "half_r_squared_log",
    "half_r_squared_log": "half_squared_log",
}


def generator(name: str) -> Generator:
    """By name; ``alpha(a)`` too."""
    return alpha(float(name[6:-1])) if name.startswith("alpha(") else GENERATORS[name]


def of_ratio(name: str) -> Callable:
    """f on a float64 array of ratios, or one of them, through 50 digits."""
    f = generator(name).f
    return np.vectorize(lambda r: float(f(mpf(float(r)))), otypes=[float])


def value(name: str, l) -> mpf:
    """f(r) at l = log r, with the limits at ±inf."""
    g = generator(name)
    if l == -INF:
        return mpf(g.at_zero)
    return g.f(mp.exp(mpf(l)))


def slope(name: str, l) -> mpf:
    """r f'(r) at l = log r."""
    r = mp.exp(mpf(l))
    return r * generator(name).df(r)


def gap(name: str, l) -> mpf:
    """f(r) − f'(1)(r − 1)."""
    if l == -INF:
        return mpf(generator(name).at_zero) + generator(name).df1
    return value(name, l) - generator(name).df1 * (mp.exp(mpf(l)) - 1)


def token_cost(name: str, q, p) -> mpf:
    """One token's share of D_f, in 50 digits, with the limits for q = 0 and p = 0."""
    g = generator(name)
    q, p = mpf(q), mpf(p)
    if q == 0:
        return p * mpf(g.per_p) if p > 0 else mpf(0)
    return q * (g.f(p / q) if p > 0 else mpf(g.at_zero))


def divergence(name: str, q, p) -> mpf:
    """Σ over tokens, from probabilities (V,)."""
    return mpmath.fsum(token_cost(name, a, b) for a, b in zip(q, p, strict=True))


def normalised(log_probs) -> list[mpf]:
    """Probabilities from log-probabilities as floating point holds them, in 50 digits."""
    weights = [mp.exp(mpf(float(l))) if l > -INF else mpf(0) for l in log_probs]
    total = mpmath.fsum(weights)
    return [w / total for w in weights]


def logit_gradient(name: str, logits, log_p):
    """d D_f(softmax(logits), p) / d logits by central differences in 50 digits."""
    logits, step = [mpf(float(z)) for z in logits], mpf(10) ** -15
    p = normalised(log_p)

    def at(i, by):
        moved = [z + by * (i == j) for j, z in enumerate(logits)]
        weights = [mp.exp(z) for z in moved]
        total = mpmath.fsum(weights)
        return divergence(name, [w / total for w in weights], p)

    return [(at(i, step) - at(i, -step)) / (2 * step) for i in range(len(logits))]


def moments(fn: Callable, q, p) -> tuple[mpf, mpf]:
    """Mean and variance of fn(log r) under q, for q > 0 tokens; fn works on 50-digit numbers."""
    inside = [(a, fn(mp.log(b / a))) for a, b in zip(q, p, strict=True) if a > 0]
    mean = mpmath.fsum(a * v for a, v in inside)
    return mean, mpmath.fsum(a * (v - mean) ** 2 for a, v in inside)


# --- Gaussian pairs, q = N(0, 1), p = N(m, s²) ----------------------------------------------


def gaussian_log_r(m, s):
    m, s = mpf(m), mpf(s)
    return lambda x: x**2 / 2 - ((x - m) / s) ** 2 / 2 - mp.log(s)


def gaussian_expectation(fn: Callable, m, s, breaks=()) -> mpf:
    """E_q[fn(log r)] by tanh-sinh quadrature over the line, split at ``breaks``."""
    log_r = gaussian_log_r(m, s)
    points = sorted({-40, -12, -6, -3, -1, 0, 1, 3, 6, 12, 40, *breaks})
    with mp.workdps(30):
        return mp.quad(lambda x: fn(log_r(x)) * mp.exp(-(x**2) / 2) / mp.sqrt(2 * mp.pi), points)


def gaussian_power(k, m, s) -> mpf:
    """E_q[r^k] = ∫ q^{1−k} p^k, from the textbook product of two Gaussians; inf if it diverges."""
    k, m, s = mpf(k), mpf(m), mpf(s)
    precision = (1 - k) + k / s**2
    if precision <= 0:
        return mpf(INF)
    return s ** (-k) / mp.sqrt(precision) * mp.exp(-k * (1 - k) * m**2 / (2 * s**2 * precision))


# --- the law of a mean ----------------------------------------------------------------------


def enumerate_means(values, masses, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and probabilities of all K^n samples, one by one."""
    means, pmf = [], []
    for sample in itertools.product(range(len(values)), repeat=n):
        means.append(math.fsum(values[i] for i in sample) / n)
        pmf.append(math.prod(masses[i] for i in sample))
    return np.array(means), np.array(pmf)


def step_cdf(values, masses, x) -> np.ndarray:
    """P(value ≤ x) for a finite law."""
    order = np.argsort(values, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(np.asarray(masses)[order])])
    return total[np.searchsorted(np.asarray(values)[order], x, side="right")]


def between_atoms(values, at_least: float) -> np.ndarray:
    """Points halfway between atoms that lie more than ``at_least`` apart, and both outsides."""
    v = np.unique(values)
    wide = np.diff(v) > at_least
    middle = (v[1:] + v[:-1])[wide] / 2
    return np.concatenate([[v[0] - 1], middle, [v[-1] + 1]])


def bracket_cdf(low, high, masses, n: int, x, *, size: int = 2**20, give_up: float = 1e-12):
    """Rigorous bounds on P(mean of n ≤ x) from bounds low ≤ value ≤ high on each atom.

    Values are rounded down onto one lattice and up onto another, whose n-fold convolutions lie on
    either side of the truth.  Values that among n occur with probability below ``give_up`` are
    moved to the nearest kept one for the lower law, and counted against the upper one.  The
    lattice covers the sum up to Chernoff's bound at ``give_up``.
    """
    order = np.argsort(high)
    low, high, masses = low[order], high[order], masses[order]
    above = np.cumsum(masses[::-1])[::-1]
    kept = n * above > give_up
    top = high[kept].max()
    cut = np.minimum(high, top)
    bottom = low.min()
    mean = masses @ cut
    sd = math.sqrt(masses @ (cut - mean) ** 2)
    s = np.geomspace(0.01, 100, 60)[:, None] / (sd * math.sqrt(n))

    def reach(sign):
        z = sign * s * (cut - mean)
        shift = z.max(1, keepdims=True)
        log_m = shift[:, 0] + np.log(np.exp(z - shift) @ masses)
        return np.min((n * log_m - math.log(give_up)) / s[:, 0])

    up, down = reach(1.0), reach(-1.0)
    h = (up + down) * 1.05 / (size - 4 * n)
    first = math.floor((n * mean - down - n * bottom) / h) - 2 * n
    x = np.asarray(x)
    bounds = []
    for rounding, v in ((np.floor, np.minimum(low, top)), (np.ceil, cut)):
        index = rounding((v - bottom) / h).astype(np.int64)
        single = np.bincount(index % size, masses, size)
        law = np.fft.irfft(np.fft.rfft(single) ** n, size)
        law = np.roll(law, -(first % size))
        cdf = np.concatenate([[0.0], np.cumsum(law)])
        place = np.floor((n * x - n * bottom) / h).astype(np.int64) - first + 1
        bounds.append(cdf[np.clip(place, 0, size)])
    lost = n * float(masses[~kept].sum()) + 4 * give_up + 1e-9
    upper, lower = bounds[0] + lost, bounds[1] - lost
    return np.clip(lower, 0, 1), np.clip(upper, 0, 1)
