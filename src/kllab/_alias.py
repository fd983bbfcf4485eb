"""Draws by an exact alias table, from words that a counter determines.

A law over V tokens becomes K = 2^k >= V bins of equal mass, each shared by at most two tokens.
Probabilities are whole multiples of 2^-62 and the table splits them without remainder, so a draw
costs one 62-bit word, one look-up and one comparison, and its law is known exactly.

Sources: A. J. Walker (1977), "An Efficient Method for Generating Discrete Random Variables with
General Distributions"; the construction by prefix sums follows L. Hübschle-Schneider and P.
Sanders (2022), "Parallel Weighted Random Sampling". Words: G. L. Steele, D. Lea and C. H. Flood
(2014), "Fast Splittable Pseudorandom Number Generators", with D. Stafford's mixing constants.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 62
"""Bits of a word, and of a probability: all arithmetic stays within signed 64-bit integers."""

_MIXING = tuple(
    constant - 2**64 for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def units(q: Tensor) -> Tensor:
    """Probabilities (B, V) as whole multiples of 2^-62 that sum to 2^62 exactly, (B, V) int64.

    Each is within half a unit of q, plus its share of what is then missing to 1, which goes to
    the largest, one unit each. A token of probability 0 keeps 0.
    """
    whole = (q * 2.0**BITS).round().to(torch.int64)
    missing = 2**BITS - whole.sum(-1, keepdim=True)
    support = (whole > 0).sum(-1, keepdim=True)
    by_size = whole.argsort(-1, descending=True)
    place = torch.empty_like(by_size)
    place.scatter_(-1, by_size, torch.arange(q.shape[-1], device=q.device).expand_as(by_size))
    share = missing.abs() // support + (place < missing.abs() % support)
    return whole + torch.where(whole > 0, missing.sign() * share, 0)


def table(q: Tensor) -> Tensor:
    """Alias table of each law in ``q`` (B, V) float64: (B, K) int64, K the power of two >= V.

    Entry i is threshold * K + alias: bin i gives token i to ``threshold`` of its 2^62 / K words
    and ``alias`` to the others. A bin that token i fills is written as threshold 0, alias i.
    """
    v = q.shape[-1]
    k = max(1, (v - 1).bit_length())
    bins, capacity = 1 << k, 1 << (BITS - k)
    mass = torch.zeros(q.shape[0], bins, dtype=torch.int64, device=q.device)
    mass[:, :v] = units(q)
    # Light tokens, in order, take what they lack from heavy ones, in order. The running totals
    # of both say who meets whom, and how much of a heavy token is left when it is the next one's
    # turn.
    excess = (mass - capacity).clamp_(min=0).cumsum_(-1)
    lacking = (capacity - mass).clamp_(min=0)
    lack = lacking.cumsum(-1)
    heavy = mass > capacity
    turn = torch.where(heavy, excess, lack - lacking)
    del lacking
    alias = torch.searchsorted(excess, turn, right=True).clamp_(max=bins - 1)
    del turn
    met = lack.gather(-1, torch.searchsorted(lack, excess).clamp_(max=bins - 1))
    threshold = torch.where(heavy, capacity + excess - met, mass)
    del excess, lack, met
    own = torch.arange(bins, device=q.device).expand_as(mass)
    full = threshold == capacity
    return (threshold.masked_fill_(full, 0) << k) | torch.where(full, own, alias)


def implied(entries: Tensor) -> Tensor:
    """What a table (B, K) gives to each token, in units of 2^-62: the exact inverse of it."""
    bins = entries.shape[-1]
    capacity = 2**BITS // bins
    own = torch.arange(bins, device=entries.device).expand_as(entries)
    threshold = entries // bins
    out = torch.zeros_like(entries).scatter_add_(-1, own, threshold)
    return out.scatter_add_(-1, entries & (bins - 1), capacity - threshold)


def key(generator: torch.Generator, device) -> Tensor:
    """A new stream (5,) int64: two random words, which name it, then the mixing constants.

    Advances ``generator``, and never waits for a device.
    """
    size = {"size": (2,), "dtype": torch.int64, "device": generator.device}
    name = torch.randint(-(2**63), 2**63 - 1, generator=generator, **size)
    # The constants travel as data.  Signed overflow wraps here, but a C++ compiler that sees a
    # constant factor may conclude from it that a counter stays small, and end its loop early.
    return torch.cat([name, name.new_tensor(_MIXING)]).to(device)


def words(counter: Tensor, stream: Tensor) -> Tensor:
    """The words (62 bits) of a stream at ``counter``, any shape, int64.

    Distinct counters are distinct places of one sequence of period 2^64, so streams cut out of
    it do not overlap; streams of two keys are different functions of their place.
    """
    start, twist, weyl, mix_1, mix_2 = stream.unbind()
    z = (counter + start) * weyl
    z = (z ^ _shifted(z, 30)) * mix_1 ^ twist
    z = (z ^ _shifted(z, 27)) * mix_2
    return _shifted(z ^ _shifted(z, 31), 64 - BITS)


def _shifted(z: Tensor, by: int) -> Tensor:
    """z >> by without copies of the sign."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def tokens(word: Tensor, entries: Tensor) -> Tensor:
    """The token that each word stands for, by one law's table (K,)."""
    mask = entries.shape[-1] - 1
    place = word & mask
    entry = look_up(entries, place)
    alias = entry & mask
    # The low bits of a word name its bin, the high ones its place there: one comparison of both.
    # As arithmetic (-1 where below the threshold, else 0), since it is a coin that no processor
    # can predict.
    below = (word - (entry - alias)) >> 63
    return alias ^ ((alias ^ place) & below)


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """table[index] along the first axis of a table, by the faster of two ways."""
    if torch.compiler.is_compiling():
        return table[index]
    return table.index_select(0, index.reshape(-1)).view(index.shape + table.shape[1:])
