"""The six divergences by hand, as sums over a vocabulary and as functions of one sample.

Nothing here comes from the package.  l = log r = log p − log q, q sampled, nats.
"""

from __future__ import annotations

import torch
from torch import Tensor

SIX = ("kl_qp", "kl_pq", "chi2_qp", "chi2_pq", "tv", "hellinger2")

# D(q, p) from probabilities (V,).
DIVERGENCE = {
    "kl_qp": lambda q, p: (q * (q / p).log()).sum(),
    "kl_pq": lambda q, p: (p * (p / q).log()).sum(),
    "chi2_qp": lambda q, p: (q * q / p).sum() - 1,
    "chi2_pq": lambda q, p: (p * p / q).sum() - 1,
    "tv": lambda q, p: (q - p).abs().sum() / 2,
    "hellinger2": lambda q, p: (q.sqrt() - p.sqrt()).square().sum(),
    "jeffreys": lambda q, p: ((q - p) * (q / p).log()).sum(),
}

# f, with D = E_q[f(r)].
VALUE = {
    "kl_qp": lambda l: -l,
    "kl_pq": lambda l: l * l.exp(),
    "chi2_qp": lambda l: torch.expm1(-l),
    "chi2_pq": lambda l: torch.expm1(l).square(),
    "tv": lambda l: torch.expm1(l).abs() / 2,
    "hellinger2": lambda l: torch.expm1(l / 2).square(),
}

# f − r f', the weight of the policy's score where x ~ policy = q, up to a constant.
WEIGHT = {
    "kl_qp": lambda l: -l,
    "kl_pq": lambda l: -l.exp(),
    "chi2_qp": lambda l: 2 * torch.exp(-l),
    "chi2_pq": lambda l: -torch.exp(2 * l),
    "tv": lambda l: -torch.sign(l) / 2,
    "hellinger2": lambda l: -torch.exp(l / 2),
}

# A function whose derivative is minus that weight, up to c l: what follows D as a loss.
LOSS = {
    "kl_qp": lambda l: l**2 / 2,
    "kl_pq": lambda l: torch.exp(l) - l,
    "chi2_qp": lambda l: 2 * torch.exp(-l) + 2 * l,
    "chi2_pq": lambda l: torch.exp(2 * l) / 2 - l,
    "tv": lambda l: l.abs() / 2,
    "hellinger2": lambda l: 2 * torch.exp(l / 2) - l,
}

# r f', the weight of the score of p, where x ~ q and p is the policy; up to c r.
OTHER_WEIGHT = {
    "kl_qp": lambda l: -torch.ones_like(l),
    "kl_pq": lambda l: l * l.exp(),
    "chi2_qp": lambda l: -torch.exp(-l),
    "chi2_pq": lambda l: 2 * torch.exp(2 * l),
    "tv": lambda l: torch.sign(l) * l.exp() / 2,
    "hellinger2": lambda l: -torch.exp(l / 2),
}


def combined(parts: dict, terms: dict[str, float], l: Tensor) -> Tensor:
    return sum(c * parts[name](l) for name, c in terms.items())


def probabilities(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


def gradient_of(terms: dict[str, float], logits: Tensor, other: Tensor, *, policy: str) -> Tensor:
    """∂/∂logits of Σ c D(q, p), the policy being ``"q"`` (sampled) or ``"p"``; (V,)."""
    logits = logits.detach().requires_grad_()
    mine, fixed = logits.softmax(-1), other.detach()
    q, p = (mine, fixed) if policy == "q" else (fixed, mine)
    total = sum(c * DIVERGENCE[name](q, p) for name, c in terms.items()) + 0 * logits.sum()
    return torch.autograd.grad(total, logits)[0]


def expected_gradient(fn, logits: Tensor, ref: Tensor, *, usage: str, sampled: Tensor, old=None):
    """The gradient of what the loop minimises, averaged over every token by its probability.

    ``fn`` gets log-probabilities; as a reward it is a constant times logprob.  (V,)
    """
    logits = logits.detach().requires_grad_()
    logprob = logits.log_softmax(-1)
    arguments = [logprob, ref.detach()] + ([] if old is None else [old.detach()])
    value = fn(*arguments)
    cost = torch.zeros_like(logprob)
    if usage in ("loss", "both"):
        cost = cost + value
    if usage in ("reward", "both"):
        cost = cost + value.detach() * logprob
    total = (sampled.detach() * cost).sum() + 0 * logits.sum()
    return torch.autograd.grad(total, logits)[0]
