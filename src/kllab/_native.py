"""Machine code for the CPU, made by numba: draws and their sums, and statistics of logits.

Draws: same words, same tokens as in ``_alias``; only the order of sums differs from the plain
functions.  A block goes through in short loops, each of one kind: arithmetic that fills vector
registers, then look-ups that wait for memory together instead of one after the other.

Statistics: the sums of ``_statistics`` in float64, for rows without infinities.  The exponential
and the logarithm are polynomials, since a call of a library would end the vectors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from numba import njit
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor

BLOCK = 64
_SLICES = 4  # per thread, so that one which is held up leaves work to the others


def draw(start: int, count: int, stream: Tensor, entries: Tensor) -> Tensor:
    """Tokens (count,) int64 at ``start`` and after it, by one law's table (K,)."""
    out = torch.empty(count, dtype=torch.int64)
    arrays, tokens = (stream.numpy(), entries.numpy()), out.numpy()
    _in_slices(lambda first, end: _draw(start + first, *arrays, tokens[first:end]), count, BLOCK)
    return out


def sums(
    start: int,
    rows: int,
    columns: int,
    stream: Tensor,
    entries: Tensor,
    record: Tensor,
    kinds: tuple[int, ...],
    polynomials: Tensor,
    squares: bool = True,
) -> Tensor:
    """What ``simulate._sum_record`` gives: (2, E, rows) float64, or (1, E, rows) of sums alone."""
    lean = not squares and record.shape[1] == 2
    kernel = _lean_sums if lean else _sums
    out = torch.empty(1 if lean else 2, len(kinds), rows, dtype=torch.float64)
    arrays = [x.numpy() for x in (stream, entries, record)]
    arrays += [np.array(kinds), polynomials.numpy()]
    results = out.numpy()
    _in_slices(
        lambda first, end: kernel(
            start + first * columns, columns, *arrays, results[:, :, first:end]
        ),
        rows,
    )
    return out[: 1 + squares]


def statistics(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Fill ``out`` (12, B) from logits (B, V); the rows that are left, (N,) int64.

    Those have NaN, an infinity, or a logit ``_NEAR`` nats or more below the largest.
    """
    left = torch.zeros(len(a), dtype=torch.bool)
    results = out.numpy()

    def work(first: int, end: int) -> None:
        for row in range(first, end):
            x, y = (_array(logits[row]) for logits in (a, b))
            tops = float(x.max()), float(y.max())
            if x.min() > tops[0] - _NEAR and y.min() > tops[1] - _NEAR:
                results[:, row] = _statistics(x, y, *tops)
            else:
                left[row] = True

    _in_slices(work, len(a))
    return torch.nonzero(left).flatten()


def _array(row: Tensor) -> np.ndarray:
    """(V,) float32 or float64, without a copy where there need be none."""
    return row.to(torch.promote_types(row.dtype, torch.float32)).contiguous().numpy()


def _in_slices(work: Callable[[int, int], None], count: int, least: int = 1) -> None:
    """work(first, end) for slices of range(count), on as many threads as torch uses."""
    threads = torch.get_num_threads()
    slices = max(1, min(threads * _SLICES, count // least))
    edges = [count * i // slices for i in range(slices + 1)]
    list(_pool(threads).map(work, edges[:-1], edges[1:]))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Kept, since new threads cost a twentieth of a draw of four million tokens."""
    return ThreadPoolExecutor(threads, "kllab")


if hasattr(os, "register_at_fork"):  # a child has the pool, but not its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


@njit(nogil=True)
def _words(counter, stream, words):
    """Fill ``words`` (BLOCK,) from ``counter`` on, as ``_alias.words``."""
    first = np.uint64(counter) + np.uint64(stream[0])
    twist, weyl = np.uint64(stream[1]), np.uint64(stream[2])
    mix_1, mix_2 = np.uint64(stream[3]), np.uint64(stream[4])
    for i in range(BLOCK):
        z = (first + np.uint64(i)) * weyl
        z = (z ^ (z >> np.uint64(30))) * mix_1 ^ twist
        z = (z ^ (z >> np.uint64(27))) * mix_2
        words[i] = np.int64((z ^ (z >> np.uint64(31))) >> np.uint64(2))


@njit(nogil=True)
def _tokens(counter, stream, entries, words, tokens):
    """Fill ``tokens`` (BLOCK,) from ``counter`` on, as ``_alias.tokens``."""
    _words(counter, stream, words)
    mask = len(entries) - 1
    for i in range(BLOCK):
        tokens[i] = entries[words[i] & mask]
    for i in range(BLOCK):
        alias, place = tokens[i] & mask, words[i] & mask
        below = (words[i] - (tokens[i] - alias)) >> 63
        tokens[i] = alias ^ ((alias ^ place) & below)


@njit(nogil=True, inline="always")
def _token(word, mask, entries):
    """One of ``_tokens``; unsigned, since a signed index might count from the end."""
    place = word & mask
    entry = entries[np.uint64(place)]
    alias = entry & mask
    below = (word - (entry - alias)) >> 63
    return np.uint64(alias ^ ((alias ^ place) & below))


@njit(nogil=True)
def _draw(start, stream, entries, out):
    words, tokens = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for begin in range(0, len(out), BLOCK):
        _tokens(start + begin, stream, entries, words, tokens)
        part = out[begin : begin + BLOCK]
        part[:] = tokens[: len(part)]


@njit(nogil=True, fastmath={"reassoc", "contract"})
def _sums(start, columns, stream, entries, record, kinds, polynomials, out):
    words, tokens = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    values, squares = np.empty(record.shape[1]), np.empty(record.shape[1])
    for row in range(out.shape[2]):
        values[:] = 0.0
        squares[:] = 0.0
        l1 = l2 = l3 = l4 = v1 = v2 = 0.0
        for begin in range(0, columns, BLOCK):
            _tokens(start + row * columns + begin, stream, entries, words, tokens)
            count = min(BLOCK, columns - begin)
            # log r and one table in one go, since they share a cache line; powers of log r, since
            # the sums of every polynomial in it follow from theirs.
            for i in range(count):
                l, v = record[tokens[i], 0], record[tokens[i], 1]
                square = l * l
                l1 += l
                l2 += square
                l3 += square * l
                l4 += square * square
                v1 += v
                v2 += v * v
            for k in range(2, record.shape[1]):
                for i in range(count):
                    v = record[tokens[i], k]
                    values[k] += v
                    squares[k] += v * v
        values[1], squares[1] = v1, v2
        for e in range(len(kinds)):
            c0, c1, c2 = polynomials[e]
            out[0, e, row] = values[kinds[e]]
            out[1, e, row] = squares[kinds[e]]
            if kinds[e] == 0:
                out[0, e, row] = c0 * columns + c1 * l1 + c2 * l2
                out[1, e, row] = (
                    c0 * c0 * columns
                    + 2 * c0 * c1 * l1
                    + (c1 * c1 + 2 * c0 * c2) * l2
                    + 2 * c1 * c2 * l3
                    + c2 * c2 * l4
                )


@njit(nogil=True)
def _lean_sums(start, columns, stream, entries, record, kinds, polynomials, out):
    """``_sums`` of one table, without squares.

    Sums in this order cannot become vectors, and so neither do the look-ups: those wait less one
    by one.  Two of each, since a sum waits for itself.
    """
    words, mask = np.empty(BLOCK, np.int64), len(entries) - 1
    for row in range(out.shape[2]):
        l1 = l2 = v1 = m1 = m2 = w1 = 0.0
        for begin in range(0, columns, BLOCK):
            _words(start + row * columns + begin, stream, words)
            if columns - begin < BLOCK:
                for i in range(columns - begin):
                    t = _token(words[i], mask, entries)
                    l, v = record[t, 0], record[t, 1]
                    l1, l2, v1 = l1 + l, l2 + l * l, v1 + v
                continue
            for i in range(0, BLOCK, 2):
                t = _token(words[i], mask, entries)
                l, v = record[t, 0], record[t, 1]
                l1, l2, v1 = l1 + l, l2 + l * l, v1 + v
                t = _token(words[i + 1], mask, entries)
                l, v = record[t, 0], record[t, 1]
                m1, m2, w1 = m1 + l, m2 + l * l, w1 + v
        for e in range(len(kinds)):
            c0, c1, c2 = polynomials[e]
            out[0, e, row] = v1 + w1
            if kinds[e] == 0:
                out[0, e, row] = c0 * columns + c1 * (l1 + m1) + c2 * (l2 + m2)


_NEAR = 300.0  # e^600, a square of k3, still fits float64
_LOG2E, _LN2 = 1 / math.log(2), math.log(2)


def _economised(terms, low: float, high: float, keep: int) -> tuple[float, ...]:
    """A power series cut to ``keep`` terms as Chebyshev polynomials, where a cut costs least."""
    series = Polynomial(terms).convert(domain=[low, high], kind=Chebyshev)
    return tuple(series.truncate(keep).convert(kind=Polynomial).coef.tolist())


# (e^x − 1 − x)/x², and (artanh(s)/s − 1)/s² as a series in s².
_EXP = _economised([1 / math.factorial(i) for i in range(2, 18)], -_LN2 / 2, _LN2 / 2, 10)
_ARTANH = _economised([1 / i for i in range(3, 35, 2)], 0.0, 1 / 9, 10)

# What lets sums become vectors.  Nothing here divides by 0.
_VECTORS = {"nogil": True, "fastmath": {"reassoc", "contract"}, "error_model": "numpy"}


@njit(inline="always", **_VECTORS)
def _at(x, terms):
    total = terms[-1]
    for term in terms[-2::-1]:
        total = term + x * total
    return total


@njit(inline="always", **_VECTORS)
def _exp(x):
    """e^x, and e^x − 1 with its own digits near 0, for |x| <= 700; to 1e-15."""
    k = np.rint(x * _LOG2E)
    r = x - k * _LN2
    two_to_k = np.int64(np.int64(k + 1023.0) << 52).view(np.float64)
    part = two_to_k * (r + r * r * _at(r, _EXP))
    return part + two_to_k, part + (two_to_k - 1.0)


@njit(inline="always", **_VECTORS)
def _artanh(s):
    """log((1 + s) / (1 − s)) / 2 for |s| <= 1/3, to 1e-15."""
    z = s * s
    return s * (1 + z * _at(z, _ARTANH))


@njit(**_VECTORS)
def _statistics(a, b, top_a, top_b):
    """The twelve statistics of one row, (V,) each."""
    sum_a = sum_b = first = second = 0.0
    for i in range(len(a)):
        x, y = a[i] - top_a, b[i] - top_b
        q, l = _exp(x)[0], y - x
        sum_a += q
        sum_b += _exp(y)[0]
        first += q * l
        second += q * l * l
    change = math.log(sum_b) - math.log(sum_a)
    norm_a, norm_b = top_a + math.log(sum_a), top_b + math.log(sum_b)
    # The means of k1 and of k2.  Squares around these lose no digits; divergences are summed below.
    k1 = change - first / sum_a
    k2 = (second / sum_a - 2 * change * first / sum_a + change * change) / 2
    kl_qp = kl_pq = chi2_pq = chi2_qp = hellinger2 = js = tv = 0.0
    square_1 = square_2 = square_3 = 0.0
    for i in range(len(a)):
        log_q = a[i] - norm_a
        l = b[i] - norm_b - log_q
        q = _exp(log_q)[0]
        half, root = _exp(l / 2)
        r, u = half * half, root * (2 + root)  # u = r − 1
        gap, square = u - l, q * u * u
        kl_qp += q * gap
        kl_pq += q * (r * l - u)
        chi2_pq += square
        chi2_qp += square / r
        hellinger2 += q * root * root
        # log((1 + r)/2) = max(l, 0) − 2 artanh(s): at r and at 1/r the same s.
        s = abs(u) / (1 + r + 2 * max(r, 1.0))
        js += q * ((r * min(l, 0.0) - max(l, 0.0)) / 2 + (1 + r) * _artanh(s))
        tv += q * abs(u)
        d1, d2, d3 = l + k1, l * l / 2 - k2, gap - k1
        square_1 += q * d1 * d1
        square_2 += q * d2 * d2
        square_3 += q * d3 * d3
    divergences = kl_qp, kl_pq, chi2_pq, chi2_qp, hellinger2, js, tv / 2
    return *divergences, k2, kl_qp, square_1, square_2, square_3
