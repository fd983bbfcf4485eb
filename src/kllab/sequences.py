r"""Tokens and sequences: autoregressive policies small enough to enumerate, and exact sums.

A :class:`Tree` lists every sequence over V tokens and up to T steps. A policy on it is a table of
logits (..., N, V), one row for each prefix; leading axes are a batch of policies. q is the policy,
p the reference, l = log q − log p of one token, and everything is in nats.

KL(Q‖P) of whole sequences is E[Σ_t l_t], with prefixes from q. As a function of the parameters a
sum over tokens moves in two ways: each term's own derivative, and the score, since the law of the
prefixes moves too. A token loss keeps only the first (:func:`gradient_parts`).

Also here: masks and aggregation, rewards to go, and word bigrams at full size
(:func:`word_bigrams`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kllab import exact, gradients
from kllab._markov import BigramPair, bigrams, word_bigrams
from kllab._masks import HOW, aggregate, eos_mask, one_of, reward_to_go, weigh
from kllab.checks import InputError, as_count, as_log, as_log_probs, as_number
from kllab.divergences import Divergence
from kllab.estimators import Estimator
from kllab.exact import Moments
from kllab.pairs import gaussian
from kllab.sampling import Categorical

__all__ = [
    "HOW",
    "BigramPair",
    "GradientParts",
    "Tree",
    "aggregate",
    "best_of_n",
    "best_of_n_kl",
    "bigrams",
    "eos_mask",
    "expected_gradient",
    "expected_token_sum",
    "gradient_parts",
    "moments",
    "placed",
    "rao_blackwell",
    "reward_to_go",
    "shifted_tokens",
    "word_bigrams",
]

PerToken = Callable[[Tensor, Tensor], Tensor]

MOST_SEQUENCES = 2**22
CREDITS = ("to_go", "token", "sequence")
WEIGHTS = ("none", "token", "prefix", "sequence")


@dataclass(frozen=True)
class Tree:
    """All sequences over ``V`` tokens, ``T`` steps long or ended earlier by the token ``eos``.

    Prefixes that can still grow are numbered breadth first: 0 is the empty one, and its
    children follow in the order of their tokens. N = ``rows`` prefixes, S sequences in
    lexicographic order.

    Raises ``InputError`` for sizes that make no tree, and for more than 2^22 sequences.

    >>> tree = Tree(V=3, T=2, eos=0)
    >>> tree.rows, tree.tokens.tolist()
    (3, [[0, -1], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]])
    """

    V: int
    T: int
    eos: int | None = None

    def __post_init__(self) -> None:
        as_count("V", self.V, least=1)
        as_count("T", self.T, least=1)
        if self.eos is not None:
            as_count("eos", self.eos, most=self.V - 1)
        branches, alive, count = self.branches, 1, 0
        for _ in range(self.T):
            count += alive * (self.V - branches)
            alive *= branches
            if count + alive > MOST_SEQUENCES:
                raise InputError("V, T", f"at most {MOST_SEQUENCES:,} sequences", "more")

    @property
    def branches(self) -> int:
        """Tokens after which a sequence goes on."""
        return self.V - (self.eos is not None)

    @property
    def rows(self) -> int:
        """N, the number of prefixes that a policy has a row for."""
        return sum(self.branches**t for t in range(self.T))

    @cached_property
    def _paths(self) -> tuple[Tensor, Tensor]:
        tokens = prefix = torch.empty(1, 0, dtype=torch.int64)
        row, alive = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.bool)
        for _ in range(self.T):
            copies = torch.where(alive, self.V, 1)
            parent = torch.repeat_interleave(torch.arange(len(copies)), copies)
            token = torch.arange(len(parent)) - (copies.cumsum(0) - copies)[parent]
            token = torch.where(alive[parent], token, -1)
            tokens = torch.cat([tokens[parent], token[:, None]], 1)
            prefix = torch.cat([prefix[parent], row[parent].where(token >= 0, -1)[:, None]], 1)
            alive = token >= 0
            rank = token
            if self.eos is not None:
                alive = alive & (token != self.eos)
                rank = token - (token > self.eos).long()
            row = torch.where(alive, self.branches * row[parent] + 1 + rank, -1)
        return tokens, prefix

    @property
    def tokens(self) -> Tensor:
        """(S, T) int64: every sequence; -1 after its end."""
        return self._paths[0]

    @property
    def prefix(self) -> Tensor:
        """(S, T) int64: the row that each token was drawn from; -1 after the end."""
        return self._paths[1]

    @property
    def mask(self) -> Tensor:
        """(S, T) bool: true for tokens, false after the end."""
        return self.tokens >= 0

    def token_log_probs(self, logits: Tensor) -> Tensor:
        """log q(y_t | y_<t) of every token of every sequence: (..., N, V) to (..., S, T).

        Nats; 0 after the end; differentiable. Raises ``InputError`` for another shape, NaN,
        integers or half precision.

        >>> tree = Tree(V=2, T=2)
        >>> tree.token_log_probs(torch.zeros(3, 2)).exp().unique()
        tensor([0.5000])
        """
        rows = self._rows("logits", logits).flatten(-2)
        place = (self.prefix * self.V + self.tokens).clamp(min=0).to(rows.device)
        return torch.where(self.mask.to(rows.device), rows[..., place], 0.0)

    def log_probs(self, logits: Tensor) -> Tensor:
        """log Q(y) of every sequence: (..., N, V) to (..., S), normalised, nats."""
        return self.token_log_probs(logits).sum(-1)

    def reach(self, logits: Tensor) -> Tensor:
        """Log-probability of arriving at each prefix: (..., N, V) to (..., N), nats.

        Of prefixes of one length the probabilities sum to 1, less what has ended before.

        >>> Tree(V=2, T=2).reach(torch.zeros(3, 2)).exp()
        tensor([1.0000, 0.5000, 0.5000])
        """
        rows = self._rows("logits", logits)
        going_on = [a for a in range(self.V) if a != self.eos]
        level, levels, first = torch.zeros_like(rows[..., :1, 0]), [], 0
        for _ in range(self.T):
            levels.append(level)
            last = first + level.shape[-1]
            level = (level[..., None] + rows[..., first:last, going_on]).flatten(-2)
            first = last
        return torch.cat(levels, -1)

    def divergence(self, d: str | Divergence, logits: Tensor, ref_logits: Tensor) -> Tensor:
        """D_f of the two laws over whole sequences: (..., N, V) twice to (...), nats.

        Differentiable: its gradient is the full one. Raises what :meth:`token_log_probs` raises.

        >>> tree, logits = Tree(V=2, T=3), torch.zeros(7, 2, dtype=torch.float64)
        >>> logits[0, 0] = 1.0
        >>> round(float(tree.divergence("kl_qp", logits, torch.zeros_like(logits))), 6)
        0.110944
        """
        return exact.divergence(d, self.log_probs(logits), self.log_probs(ref_logits))

    def gradient(self, d: str | Divergence, logits: Tensor, ref_logits: Tensor) -> Tensor:
        """∇D_f of whole sequences with respect to ``logits``, of their shape (..., N, V)."""
        logits = logits.detach().requires_grad_()
        value = self.divergence(d, logits, ref_logits)
        return torch.autograd.grad(value.sum(), logits)[0]

    def sample(self, logits: Tensor, shape, *, generator: torch.Generator) -> Tensor:
        """Sequences drawn from the policy, as indices into ``tokens``: ``shape + (...)``.

        >>> tree = Tree(V=2, T=2)
        >>> drawn = tree.sample(torch.zeros(3, 2), 5, generator=torch.Generator().manual_seed(0))
        >>> tree.tokens[drawn].shape
        torch.Size([5, 2])
        """
        return Categorical(self.log_probs(logits)).sample(shape, generator=generator)

    def _rows(self, argument: str, logits: Tensor) -> Tensor:
        logits = as_log(argument, logits)
        if logits.shape[-2:] != (self.rows, self.V):
            expected = f"shape (..., {self.rows}, {self.V}), a row for each prefix"
            raise InputError(argument, expected, f"shape {tuple(logits.shape)}")
        return torch.log_softmax(logits, -1)


# --- sums over the tokens of a sequence -----------------------------------------------------


def expected_token_sum(
    tree: Tree,
    fn: Estimator | PerToken,
    logits: Tensor,
    ref_logits: Tensor,
    *,
    old_logits: Tensor | None = None,
    weight: str = "none",
) -> Tensor:
    """E[Σ_t w_t v_t] over whole sequences, by enumeration: (..., N, V) to (...), nats.

    ``fn``: an estimator, or a function (logprob, ref_logprob) to values, both (..., S, T).
    Sequences come from ``old_logits`` where given, else from ``logits``. ``weight``: ``"none"``;
    ``"token"``, w_t = q/μ of token t alone; ``"prefix"``, the product of these up to t;
    ``"sequence"``, the product of all. Token weights leave the prefixes with μ's frequencies; the
    last two have the same mean, which for k1 and k3 is KL(Q‖P).

    Raises ``InputError`` for another ``weight`` or a shape that does not fit ``tree``.

    >>> from kllab import K1, K3
    >>> tree = Tree(V=2, T=3)
    >>> logits, ref = torch.randn(2, 7, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> kl = tree.divergence("kl_qp", logits, ref)
    >>> [bool(expected_token_sum(tree, k, logits, ref).isclose(kl)) for k in (K1, K3)]
    [True, True]
    """
    terms = _Terms.of(tree, fn, logits, ref_logits, old_logits, weight)
    return weigh(terms.log_mu, terms.values.sum(-1)).sum(-1)


def expected_gradient(
    tree: Tree,
    fn: Estimator | PerToken,
    logits: Tensor,
    ref_logits: Tensor,
    *,
    usage: str,
    credit: str = "to_go",
    old_logits: Tensor | None = None,
    weight: str = "none",
) -> Tensor:
    """What training follows when Σ_t w_t v_t enters it, in expectation: (..., N, V), nats.

    ``usage``: ``"loss"`` differentiates the values and leaves the sampled sequences alone;
    ``"reward"`` takes them as constants in a policy gradient; ``"both"`` adds the two.
    ``credit`` says which values a token answers for as reward: ``"to_go"``, its own and later
    ones; ``"sequence"``, all (the same in expectation); ``"token"``, its own only. Gradient of
    the minimised cost with respect to ``logits``. Weights as in :func:`expected_token_sum`,
    differentiated as written.

    Raises ``InputError`` for another ``usage``, ``credit`` or ``weight``.

    >>> from kllab import K1, K2
    >>> tree = Tree(V=2, T=3)
    >>> logits, ref = torch.randn(2, 7, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> true = tree.gradient("kl_qp", logits, ref)
    >>> reward = expected_gradient(tree, K1, logits, ref, usage="reward")
    >>> token_loss = expected_gradient(tree, K2, logits, ref, usage="loss")
    >>> bool(reward.allclose(true)), bool(token_loss.allclose(true))
    (True, False)
    """
    logits = logits.detach().requires_grad_()
    terms = _Terms.of(tree, fn, logits, ref_logits, old_logits, weight)
    cost = placed(terms.values, terms.logprob, terms.live, usage=usage, credit=credit)
    total = weigh(terms.log_mu.detach(), cost).sum()
    if not total.requires_grad:  # a constant as loss
        return torch.zeros_like(logits)
    return torch.autograd.grad(total, logits)[0]


@dataclass(frozen=True)
class GradientParts:
    """The two parts of ∇E[Σ_t v_t], each (..., N, V): ``pathwise`` + ``score`` = ``full``.

    ``pathwise`` is E[Σ_t ∇v_t], what the sum follows as a loss: the partial gradient.
    ``score`` is E[(Σ_t v_t) ∇log Q(y)], what it follows as a reward.
    """

    pathwise: Tensor
    score: Tensor

    @property
    def full(self) -> Tensor:
        """The gradient of the expectation."""
        return self.pathwise + self.score

    @property
    def relative_error(self) -> Tensor:
        """‖pathwise − full‖ / ‖full‖, (...): what a loss on tokens gets wrong."""
        norm = torch.linalg.vector_norm
        return norm(self.score, dim=(-2, -1)) / norm(self.full, dim=(-2, -1))


def gradient_parts(
    tree: Tree, fn: Estimator | PerToken, logits: Tensor, ref_logits: Tensor
) -> GradientParts:
    """The pathwise and the score part of ∇E_q[Σ_t v_t], by enumeration.

    For k1 and k3 the two add up to ∇KL(Q‖P) of whole sequences.

    >>> from kllab import K3
    >>> tree = Tree(V=2, T=3)
    >>> logits, ref = torch.randn(2, 7, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> parts = gradient_parts(tree, K3, logits, ref)
    >>> bool(parts.full.allclose(tree.gradient("kl_qp", logits, ref)))
    True

    Source: V. Shah and others, A Comedy of Estimators (2025), arXiv:2512.21852, equation 6.
    """
    parts = [
        expected_gradient(tree, fn, logits, ref_logits, usage=usage, credit="sequence")
        for usage in ("loss", "reward")
    ]
    return GradientParts(*parts)


def placed(
    values: Tensor, logprob: Tensor, mask: Tensor, *, usage: str, credit: str = "to_go"
) -> Tensor:
    """A cost whose derivative is what ``values`` push on when used as loss, reward or both.

    ``values``, ``logprob``, ``mask``: (..., T); returns (...), one cost for each sequence. Only
    its derivative means something. See :func:`expected_gradient` for ``usage`` and ``credit``.

    >>> logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> mask = torch.ones(2, dtype=torch.bool)
    >>> placed(torch.tensor([0.5, 3.0]), logprob, mask, usage="reward").backward()
    >>> logprob.grad
    tensor([3.5000, 3.0000])
    """
    one_of("credit", credit, CREDITS)
    values = torch.where(mask, values, 0.0)
    reward = credited(values, mask, credit)
    return gradients.placed(values, logprob, usage=usage, reward=reward).sum(-1)


def credited(values: Tensor, mask: Tensor, credit: str) -> Tensor:
    """(..., T) values to what each token answers for: see :func:`expected_gradient`."""
    if credit == "to_go":
        return reward_to_go(values, mask)
    kept = torch.where(mask, values, 0.0)
    return kept if credit == "token" else kept.sum(-1, keepdim=True).where(mask, 0.0)


def per_token(
    fn: Estimator | PerToken, logprob: Tensor, ref_logprob: Tensor, live: Tensor
) -> Tensor:
    """fn at the tokens that ``live`` marks, 0 elsewhere; (..., T) each."""
    logprob, ref_logprob = (torch.where(live, x, 0.0) for x in (logprob, ref_logprob))
    return torch.where(live, gradients.as_loss(fn, logprob, ref_logprob), 0.0)


@dataclass(frozen=True)
class _Terms:
    """What the enumeration sums: log μ(y) (..., S), and w_t v_t with its tokens (..., S, T)."""

    log_mu: Tensor
    values: Tensor
    logprob: Tensor
    live: Tensor

    @classmethod
    def of(cls, tree, fn, logits, ref_logits, old_logits, weight) -> _Terms:
        one_of("weight", weight, WEIGHTS)
        logprob = tree.token_log_probs(logits)
        logprob, ref = torch.broadcast_tensors(logprob, tree.token_log_probs(ref_logits))
        old = logprob if old_logits is None else tree.token_log_probs(old_logits)
        log_mu = old.sum(-1).expand(logprob.shape[:-1])
        # Sequences that μ never draws count nothing, whatever their ratios are.
        live = tree.mask.to(logprob.device) & (log_mu > -math.inf)[..., None]
        values = per_token(fn, logprob, ref, live)
        if weight != "none":
            log_w = torch.where(live, logprob - old.detach(), 0.0)
            if weight == "prefix":
                log_w = log_w.cumsum(-1)
            elif weight == "sequence":
                log_w = log_w.sum(-1, keepdim=True).expand(log_w.shape)
            values = torch.where(live, weigh(log_w, values), 0.0)
        return cls(log_mu, values, logprob, live)


# --- Rao-Blackwell and exact variances ------------------------------------------------------


def rao_blackwell(tree: Tree, d: str | Divergence, logits: Tensor, ref_logits: Tensor) -> Tensor:
    """Σ_t D_f(q(·|y_<t), p(·|y_<t)) for every sequence y: (..., N, V) to (..., S), nats.

    Each token's value is replaced by its exact mean given the prefix. For ``"kl_qp"`` the mean
    over sequences is KL(Q‖P). A single step never gets noisier; the sum over steps can.

    >>> tree = Tree(V=2, T=2)
    >>> q = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.01, 0.99]], dtype=torch.float64).log()
    >>> p = torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.99, 0.01]], dtype=torch.float64).log()
    >>> k1 = tree.log_probs(q) - tree.log_probs(p)
    >>> [round(float(moments(tree, q, y)[1]), 5) for y in (k1, rao_blackwell(tree, "kl_qp", q, p))]
    [3.31591, 5.06974]

    Source: A. Amini, T. Vieira and R. Cotterell, Better Estimation of the Kullback-Leibler
    Divergence Between Language Models (2025), arXiv:2504.10637.
    """
    rows = exact.divergence(d, tree._rows("logits", logits), tree._rows("ref_logits", ref_logits))
    at_steps = rows[..., tree.prefix.clamp(min=0).to(rows.device)]
    # A step that q never takes has a row too; the sum over y must not see 0 times inf.
    live = tree.mask.to(rows.device) & (tree.log_probs(logits) > -math.inf)[..., None]
    return torch.where(live, at_steps, 0.0).sum(-1)


def moments(tree: Tree, logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``values`` (..., S), one for each sequence, under the policy.

    Returns two (...), in nats and nats². Sequences of probability 0 count nothing.

    >>> mean, variance = moments(Tree(V=2, T=1), torch.zeros(1, 2), torch.tensor([0.0, 2.0]))
    >>> round(float(mean), 6), round(float(variance), 6)
    (1.0, 1.0)
    """
    log_q = tree.log_probs(logits)
    if values.shape[-1:] != log_q.shape[-1:]:
        expected = f"shape (..., {log_q.shape[-1]}), one for each sequence"
        raise InputError("values", expected, f"shape {tuple(values.shape)}")
    mean = weigh(log_q, values).sum(-1)
    return mean, weigh(log_q, (values - mean[..., None]).square()).sum(-1)


def shifted_tokens(estimator: Estimator, mean: float, T: int) -> tuple[Moments, Moments]:
    """T independent Gaussian-shift tokens: moments of the token sum, and of the sequence value.

    Each token is N(0, 1) under q and N(mean, 1) under p, so the sequence's log-ratio is that of
    one pair with shift mean √T. First Σ_t v(l_t), then v(Σ_t l_t), both in nats. For k1 they
    agree; for k3 the second one's spread grows like e^(T mean² / 2).

    Raises ``InputError`` unless T is a whole number >= 1 and the shift is finite.

    >>> from kllab import K3
    >>> tokens, sequence = shifted_tokens(K3, mean=0.1, T=1000)
    >>> round(tokens.sd / tokens.mean, 4), round(sequence.sd / sequence.mean, 1)
    (0.0448, 29.7)
    """
    T, mean = as_count("T", T, least=1), as_number("mean", mean)
    one = exact.moments(estimator, gaussian(mean, 1.0))
    tokens = Moments(
        T * one.mean,
        T * one.variance,
        None if one.bias is None else T * one.bias,
        T * one.error,
        one.method,
    )
    return tokens, exact.moments(estimator, gaussian(mean * math.sqrt(T), 1.0))


# --- best of n ------------------------------------------------------------------------------


def best_of_n_kl(n: int) -> float:
    """KL(best of n‖base) = log n − (n − 1)/n in nats, for rewards without ties.

    With ties it is less: :func:`best_of_n`.

    >>> round(best_of_n_kl(64), 3)
    3.175

    Source: N. Stiennon and others, Learning to summarize from human feedback (2020), table 10.
    """
    n = as_count("n", n, least=1)
    return math.log(n) - (n - 1) / n


def best_of_n(log_p: Tensor, n: int) -> Tensor:
    """Log-probabilities of the best of n draws from ``log_p`` (..., V), items worst first.

    P(best = i) = F_i^n − F_{i−1}^n, with F the running sum of the base. Same shape, nats. Raises
    ``InputError`` for what is not normalised, and unless n is a whole number >= 1.

    >>> log_p = torch.full((20,), 1 / 20, dtype=torch.float64).log()
    >>> round(float(exact.divergence("kl_qp", best_of_n(log_p, 8), log_p)), 3)
    1.198

    Source: A. Beirami and others, Theoretical guarantees on the best-of-n alignment policy
    (2024), arXiv:2401.01879.
    """
    n, log_p = as_count("n", n, least=1), as_log_probs("log_p", log_p)
    height = log_p.exp().cumsum(-1)
    log_height = (n * (height / height[..., -1:]).log()).clamp(max=0.0)
    below = torch.cat([torch.full_like(log_height[..., :1], -math.inf), log_height[..., :-1]], -1)
    # log(e^b − e^a) from the larger one, so that no digit is lost where F^n is tiny.
    gap = torch.where(log_height > -math.inf, (below - log_height).clamp(max=0.0), 0.0)
    return log_height + torch.log(-torch.expm1(gap))
