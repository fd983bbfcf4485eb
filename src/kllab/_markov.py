r"""A Markov language model over a real vocabulary, whose sequence KL is an exact sum.

Both models share word bigrams and back off to two different tables of single words:

    q(b|a) = s(a, b) + β(a) u(b),     p(b|a) = s(a, b) + β(a) v(b),

with s(a, b) the probability of the bigrams that are listed, and β(a), the back-off weight, what
they leave: β(a) = 1 − Σ_b s(a, b). A row is a sparse part plus a multiple of one dense vector, so
a sum over all next words costs as many operations as the row lists bigrams, and T steps of all V
words cost T sparse products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from kllab.checks import InputError, as_count, as_log, as_log_probs
from kllab.estimators import K3, Estimator
from kllab.pairs import word_frequencies
from kllab.sampling import Categorical, on_device

START = -1
"""What stands before the first word."""


@dataclass(frozen=True, eq=False, repr=False)
class BigramPair:
    """Two bigram models (q, p) with common bigrams and two back-off tables.

    ``log_u`` (of q), ``log_v`` (of p): (V,) normalised, nats, finite. ``row``, ``column``,
    ``seen``: (E,) the listed bigrams a b and their s(a, b) > 0, sorted by a, then b. States are
    the words 0..V-1 and V, the start of a sequence. Sequences have a fixed length.
    ``words``: the V words, where they have names. Built by :func:`bigrams` or
    :func:`word_bigrams`.
    """

    log_u: Tensor
    log_v: Tensor
    row: Tensor
    column: Tensor
    seen: Tensor
    words: tuple[str, ...] = ()

    @property
    def V(self) -> int:
        """Number of words."""
        return self.log_u.shape[0]

    @cached_property
    def listed_mass(self) -> Tensor:
        """Σ_b s(a, b), (V + 1,): how much of each row its bigrams hold; 1 − β(a)."""
        out = torch.zeros(self.V + 1, dtype=torch.float64)
        return out.index_add_(0, self.row, self.seen)

    def log_probs(self, previous: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """(log q, log p) of ``token`` after ``previous``, nats; int64 of one shape.

        ``previous`` is -1 at the start of a sequence.

        >>> u, v = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64).log()
        >>> pair = bigrams([0], [1], [0.75], u, v)
        >>> torch.stack(pair.log_probs(torch.tensor([0, 0]), torch.tensor([0, 1]))).exp()
        tensor([[0.1250, 0.8750],
                [0.0625, 0.9375]], dtype=torch.float64)
        """
        state = torch.where(previous == START, self.V, previous)
        key, keys = state * self.V + token, self.row * self.V + self.column
        # One more entry at the end, for the keys beyond the last bigram.
        place = torch.searchsorted(keys, key)
        found = torch.cat([keys, keys.new_tensor([-1])])[place] == key
        seen = torch.where(found, torch.cat([self.seen, self.seen.new_zeros(1)])[place], 0.0)
        beta = (1 - self.listed_mass)[state]
        q, p = (seen + beta * table[token].exp() for table in (self.log_u, self.log_v))
        return q.log(), p.log()

    def token_log_probs(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(log q, log p) of every token of sequences (..., T), nats, (..., T) each."""
        start = torch.full_like(tokens[..., :1], START)
        return self.log_probs(torch.cat([start, tokens[..., :-1]], -1), tokens)

    def sample(self, n: int, T: int, *, generator: torch.Generator) -> Tensor:
        """n sequences of T words from q: (n, T) int64, drawn side by side, a step at a time.

        A bigram's probability is right to 1e-11 absolute, a single word's as in
        ``sampling.Categorical``. Raises ``InputError`` for sizes below 1.
        """
        n, T = as_count("n", n, least=1), as_count("T", T, least=1)
        generator = on_device(generator, self.log_u.device)
        single = Categorical(self.log_u)
        height = self.seen.cumsum(0)
        end = torch.searchsorted(self.row, torch.arange(self.V + 1), right=True)
        below = torch.cat([height.new_zeros(1), height])[torch.cat([end.new_zeros(1), end[:-1]])]
        tokens = torch.empty(n, T, dtype=torch.int64)
        state = torch.full((n,), self.V)
        for t in range(T):
            level = torch.rand(n, dtype=torch.float64, generator=generator)
            word = single.sample(n, generator=generator)
            # Below the row's listed mass the level itself picks the bigram, above it backs off.
            place = torch.searchsorted(height, below[state] + level, right=True)
            place = torch.minimum(place, end[state] - 1)
            listed = level < self.listed_mass[state]
            word[listed] = self.column[place[listed]]
            tokens[:, t] = state = word
        return tokens

    def state_law(self, t: int) -> Tensor:
        """The law under q of what stands before step t = 0, 1, ...: (V + 1,), sums to 1.

        >>> u, v = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64).log()
        >>> bigrams([0], [1], [0.75], u, v).state_law(2)
        tensor([0.3125, 0.6875, 0.0000], dtype=torch.float64)
        """
        *_, law = self._state_laws(as_count("t", t) + 1)
        return torch.from_numpy(law)

    def row_means(self, estimator: Estimator) -> Tensor:
        """E_q[v(log r)] of the next word, for each state: (V + 1,), nats.

        With k1 or k3 it is KL of each row.
        """
        return torch.from_numpy(self._mean_with(estimator).of_ones())

    def kl_steps(self, T: int) -> Tensor:
        """What each of T steps adds to KL(Q‖P), (T,), nats; their sum is the sequence KL.

        Exact by the chain rule: the law of the state goes forward, and weighs the KL of each row.

        >>> u, v = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64).log()
        >>> bigrams([0], [1], [0.75], u, v).kl_steps(2)
        tensor([0.1438, 0.0851], dtype=torch.float64)
        """
        rows = self.row_means(K3).numpy()  # of non-negative terms: small rows keep their digits
        laws = self._state_laws(as_count("T", T, least=1))
        return torch.tensor([_dot(law, rows) for law in laws], dtype=torch.float64)

    def moments(
        self, estimator: Estimator, T: int, *, rao_blackwell: bool = False
    ) -> tuple[float, float]:
        """Mean and variance of Σ_t v(log r_t) over T steps under q, exact, nats and nats².

        With ``rao_blackwell`` each value is replaced by its mean given the state. Goes backwards:
        with m(b) the mean and c(b) the variance of what follows word b, the variance one step
        earlier is Var[v + m(b)] + E[c(b)].

        >>> from kllab import K1
        >>> u, v = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64).log()
        >>> pair = bigrams([0], [1], [0.75], u, v)
        >>> [round(x, 6) for x in pair.moments(K1, 2)]
        [0.228899, 0.423247]
        """
        valued, now = self._mean_with(estimator), self._mean_with(estimator).of_ones()
        own = np.zeros_like(now)  # Var[v], by itself and with m(b)
        if not rao_blackwell:
            own = self._mean_with(lambda l: estimator(l).square()).of_ones() - now**2
        mean = variance = np.zeros(self.V + 1)
        plain = self._mean_with(torch.ones_like)
        for _ in range(as_count("T", T, least=1)):
            # A variance does not see a shift; without it squares of T · KL would be subtracted.
            shift = _dot(self._u, mean[:-1])
            ahead = mean[:-1] - shift
            expected = plain(ahead)
            together = plain(ahead**2 + variance[:-1]) - expected**2 + own
            if not rao_blackwell:
                together += 2 * (valued(ahead) - now * expected)
            mean, variance = now + shift + expected, together
        return float(mean[self.V]), float(variance[self.V])

    @cached_property
    def _u(self) -> np.ndarray:
        return self.log_u.exp().numpy()

    @cached_property
    def _sparse(self) -> sparse.csr_array:
        return self._matrix(self.seen)

    def _matrix(self, data: Tensor) -> sparse.csr_array:
        place = (self.row.numpy(), self.column.numpy())
        return sparse.csr_array((data.numpy(), place), shape=(self.V + 1, self.V))

    def _mean_with(self, fn: Callable[[Tensor], Tensor]) -> _RowMean:
        """g -> E_q[fn(log r) g(b)] by row, for any function g of the next word."""
        after = torch.where(self.row == self.V, START, self.row)
        log_q, log_p = self.log_probs(after, self.column)
        listed, single = fn(log_p - log_q), fn(self.log_v - self.log_u)
        beta = 1 - self.listed_mass
        # As if every word backed off, then put right where a bigram is listed.
        backed_off = beta[self.row] * self.log_u.exp()[self.column]
        data = self.seen * listed + backed_off * (listed - single[self.column])
        return _RowMean(self._matrix(data), beta.numpy(), self._u * single.numpy())

    def _state_laws(self, T: int) -> Iterator[np.ndarray]:
        beta, columns = (1 - self.listed_mass).numpy(), self._sparse.T
        law = np.zeros(self.V + 1)
        law[self.V] = 1.0
        yield law
        for _ in range(T - 1):
            law = np.append(columns @ law + _dot(beta, law) * self._u, 0.0)
            yield law

    def __repr__(self) -> str:
        return f"BigramPair(V={self.V}, bigrams={len(self.seen)})"


@dataclass(frozen=True)
class _RowMean:
    """g (V,) -> sparse @ g + β (dense @ g), (V + 1,)."""

    sparse: sparse.csr_array
    beta: np.ndarray
    dense: np.ndarray

    def __call__(self, g: np.ndarray) -> np.ndarray:
        return self.sparse @ g + self.beta * _dot(self.dense, g)

    def of_ones(self) -> np.ndarray:
        return self(np.ones(len(self.dense)))


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    """Not BLAS: its threads cost more than the product, above all beside those of torch."""
    return float((a * b).sum())


def bigrams(row, column, seen, log_u, log_v, *, words: tuple[str, ...] = ()) -> BigramPair:
    """Two bigram models from s(a, b), in any order, and their back-off tables.

    ``row``, ``column``: (E,) words a and b, a = V for the start of a sequence; ``seen``: (E,)
    s(a, b) > 0, each row's sum at most 1. ``log_u``, ``log_v``: (V,) normalised log-probabilities
    of single words under q and p, nats.

    Raises ``InputError`` for what is not normalised, a word of probability 0 in a table, indices
    out of range, a bigram given twice, or rows that sum to more than 1.
    """
    log_u, log_v = (
        as_log_probs(name, table).double() for name, table in (("log_u", log_u), ("log_v", log_v))
    )
    for name, table in (("log_u", log_u), ("log_v", log_v)):
        if table.shape != log_u.shape or table.ndim != 1:
            expected = f"one vocabulary, shape ({log_u.shape[-1]},)"
            raise InputError(name, expected, f"shape {tuple(table.shape)}")
        if torch.isinf(table).any():
            raise InputError(name, "every word possible", "a word of probability 0")
    V = log_u.shape[0]
    row, column = (torch.as_tensor(index, dtype=torch.int64) for index in (row, column))
    seen = as_log("seen", seen).double()
    if not row.shape == column.shape == seen.shape == (len(seen),):
        shapes = f"{tuple(row.shape)}, {tuple(column.shape)}, {tuple(seen.shape)}"
        raise InputError("row, column, seen", "one entry each for a bigram", shapes)
    if ((row < 0) | (row > V) | (column < 0) | (column >= V)).any():
        raise InputError("row, column", f"0 <= row <= {V} and 0 <= column < {V}", "others")
    key, order = torch.sort(row * V + column)
    if (key[1:] == key[:-1]).any():
        raise InputError("row, column", "each bigram once", "one twice")
    pair = BigramPair(log_u, log_v, row[order], column[order], seen[order], words)
    worst = float(pair.listed_mass.max())
    if not ((seen > 0).all() and worst <= 1):
        raise InputError("seen", "s > 0 with rows that sum to at most 1", f"a row of {worst:g}")
    return pair


@cache
def word_bigrams(words: tuple[str, ...] | None = None) -> BigramPair:
    """English word bigrams of the web of 2006, backed off to an older and a newer word table.

    s(a, b) = count(a b) / count(a) over the 258,437 most frequent bigrams, as ``wordsegment``
    ships them; the rest of each row backs off to single words. q backs off to the web's own
    table, p to newer, mixed text: the two tables of :func:`kllab.pairs.word_frequencies`, over
    whose words the models run (V = 212,165, with 256,993 of the bigrams). The table gives no
    count of sentences, so the row of the start gets the share of bigrams that words have on
    average, .333.

    ``words``: a smaller vocabulary, over which the single words are renormalised; bigrams that
    leave it are backed off. Loaded once, then kept in memory.

    Raises ``ImportError`` naming ``pip install "kllab[words]"`` when a package is missing, and
    ``InputError`` for a word that the tables do not have, or one given twice.

    >>> pair = word_bigrams()
    >>> pair, round(float(pair.kl_steps(2)[0]), 4)
    (BigramPair(V=212165, bigrams=256993), 0.1416)

    Sources: those of :func:`kllab.pairs.word_frequencies`; bigrams from the same web corpus.
    """
    pair = word_frequencies()
    import wordsegment  # word_frequencies has loaded its tables

    index = {word: i for i, word in enumerate(pair.words)}
    if words is None:
        words, kept = pair.words, slice(None)
    else:
        missing = [word for word in words if word not in index]
        if missing or not words or len(set(words)) < len(words):
            raise InputError("words", "different words of both tables", repr(missing or words))
        kept = torch.tensor([index[word] for word in words])
        index = {word: i for i, word in enumerate(words)}
    index["<s>"] = len(words)
    counts = dict(wordsegment.UNIGRAMS)
    split = [(*key.split(" "), count) for key, count in wordsegment.BIGRAMS.items()]
    starts = math.fsum(count for a, _, count in split if a == "<s>")
    within = math.fsum(count for a, _, count in split if a in counts)
    share = within / math.fsum(counts.values())
    counts["<s>"] = starts / share
    inside = [(index[a], index[b], c / counts[a]) for a, b, c in split if a in index and b in index]
    row, column, seen = zip(*inside, strict=True)
    log_u, log_v = (torch.log_softmax(table[kept], -1) for table in (pair.log_q, pair.log_p))
    return bigrams(row, column, list(seen), log_u, log_v, words=tuple(words))
