"""The draws of ``_alias`` and their sums as machine code for the CPU, made by numba.

Same words, same tokens: only the order of sums differs from the plain functions.  A block of draws
goes through in short loops, each of one kind: arithmetic that fills vector registers, then
look-ups that wait for memory together instead of one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numba import njit
from torch import Tensor

BLOCK = 64
_SLICES = 4  # per thread, so that one which is held up leaves work to the others


def draw(start: int, count: int, stream: Tensor, entries: Tensor) -> Tensor:
    """Tokens (count,) int64 at ``start`` and after it, by one law's table (K,)."""
    out = torch.empty(count, dtype=torch.int64)
    arrays, tokens = (stream.numpy(), entries.numpy()), out.numpy()
    _in_slices(lambda first, end: _draw(start + first, *arrays, tokens[first:end]), count)
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
) -> Tensor:
    """What ``simulate._sum_record`` gives: (2, E, rows) float64."""
    out = torch.empty(2, len(kinds), rows, dtype=torch.float64)
    arrays = [x.numpy() for x in (stream, entries, record)]
    arrays += [np.array(kinds), polynomials.numpy()]
    results = out.numpy()
    _in_slices(
        lambda first, end: _sums(
            start + first * columns, columns, *arrays, results[:, :, first:end]
        ),
        rows,
    )
    return out


def _in_slices(work: Callable[[int, int], None], count: int) -> None:
    """work(first, end) for slices of range(count), on as many threads as torch uses."""
    threads = torch.get_num_threads()
    slices = max(1, min(threads * _SLICES, count // BLOCK))
    edges = [count * i // slices for i in range(slices + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, edges[:-1], edges[1:]))


@njit(nogil=True)
def _tokens(counter, stream, entries, words, tokens):
    """Fill ``tokens`` (BLOCK,) from ``counter`` on: ``_alias.words``, then ``_alias.tokens``."""
    first = np.uint64(counter) + np.uint64(stream[0])
    twist, weyl = np.uint64(stream[1]), np.uint64(stream[2])
    mix_1, mix_2 = np.uint64(stream[3]), np.uint64(stream[4])
    for i in range(BLOCK):
        z = (first + np.uint64(i)) * weyl
        z = (z ^ (z >> np.uint64(30))) * mix_1 ^ twist
        z = (z ^ (z >> np.uint64(27))) * mix_2
        words[i] = np.int64((z ^ (z >> np.uint64(31))) >> np.uint64(2))
    mask = len(entries) - 1
    for i in range(BLOCK):
        tokens[i] = entries[words[i] & mask]
    for i in range(BLOCK):
        alias, place = tokens[i] & mask, words[i] & mask
        below = (words[i] - (tokens[i] - alias)) >> 63
        tokens[i] = alias ^ ((alias ^ place) & below)


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
