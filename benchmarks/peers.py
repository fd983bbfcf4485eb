"""What a user would write instead, each in two honest ways; the benchmark takes the faster one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.nn import functional as F

Moments = tuple[Tensor, ...]


# --- replicate means of k1, k2, k3 ----------------------------------------------------------


def distribution_pipeline(pair, shape: tuple[int, int]) -> Moments:
    """Categorical.sample, two log_prob, three means."""
    q, p = Categorical(logits=pair.log_q.float()), Categorical(logits=pair.log_p.float())
    x = q.sample(shape)
    log_r = p.log_prob(x) - q.log_prob(x)
    return tuple(k.mean(-1) for k in (-log_r, log_r**2 / 2, log_r.exp() - 1 - log_r))


def multinomial_pipeline(pair, shape: tuple[int, int]) -> Moments:
    """torch.multinomial, one look-up in a table of log r, three means."""
    log_r = (pair.log_p - pair.log_q).float()
    draws = torch.multinomial(pair.log_q.exp().float(), shape[0] * shape[1], replacement=True)
    l = log_r[draws.view(shape)]
    return tuple(k.mean(-1) for k in (-l, l**2 / 2, l.exp() - 1 - l))


# --- every divergence, and the moments of k1, k2, k3 ----------------------------------------


def shared_temporaries(logits_q: Tensor, logits_p: Tensor) -> list[Tensor]:
    """Each formula once, over probabilities and ratios computed once."""
    log_q, log_p = logits_q.log_softmax(-1), logits_p.log_softmax(-1)
    q, p = log_q.exp(), log_p.exp()
    log_r = log_p - log_q
    r = log_r.exp()
    log_m = ((q + p) / 2).log()
    out = [
        -(q * log_r).sum(-1),
        (p * log_r).sum(-1),
        (q * (r - 1) ** 2).sum(-1),
        (p * (1 / r - 1) ** 2).sum(-1),
        (q * (r.sqrt() - 1) ** 2).sum(-1),
        ((p * (log_p - log_m)).sum(-1) + (q * (log_q - log_m)).sum(-1)) / 2,
        (q * (r - 1) * log_r).sum(-1),
        (q * (r - 1).abs()).sum(-1) / 2,
    ]
    return out + _moments(q, log_r)


def library_calls(logits_q: Tensor, logits_p: Tensor) -> list[Tensor]:
    """What torch has a function for by that function, and as few passes as the rest allows."""
    log_q, log_p = logits_q.log_softmax(-1), logits_p.log_softmax(-1)
    q, p = log_q.exp(), log_p.exp()
    log_m = torch.logaddexp(log_q, log_p) - 0.6931471805599453
    difference = p - q

    def kl(log_b: Tensor, log_a: Tensor) -> Tensor:
        return F.kl_div(log_b, log_a, reduction="none", log_target=True).sum(-1)

    out = [
        kl(log_p, log_q),
        kl(log_q, log_p),
        (p * p / q).sum(-1) - 1,
        (q * q / p).sum(-1) - 1,
        2 - 2 * ((log_q + log_p) / 2).exp().sum(-1),
        (kl(log_m, log_q) + kl(log_m, log_p)) / 2,
        (difference * (log_p - log_q)).sum(-1),
        difference.abs().sum(-1) / 2,
    ]
    return out + _moments(q, log_p - log_q)


def _moments(q: Tensor, log_r: Tensor) -> list[Tensor]:
    out = []
    for k in (-log_r, log_r**2 / 2, log_r.exp() - 1 - log_r):
        mean = (q * k).sum(-1, keepdim=True)
        out += [mean[..., 0], (q * (k - mean) ** 2).sum(-1)]
    return out


def row_by_row(logits_q: Tensor, logits_p: Tensor) -> list[Tensor]:
    """``shared_temporaries``, a row at a time, so that temporaries stay in a cache."""
    rows = zip(logits_q.split(1), logits_p.split(1), strict=True)
    return [torch.cat(x) for x in zip(*(shared_temporaries(*row) for row in rows), strict=True)]
