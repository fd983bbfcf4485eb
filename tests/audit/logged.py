"""Tensors as a training run logs them, drawn from small models whose every logit is known.

Each function takes a generator and gives (logprob, ref_logprob, mask) of the same shape (B, T).
What a run believes is that tokens were sampled from ``logprob``'s distribution.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor

B, T, V = 64, 128, 50
DRIFT = 0.3  # standard deviation of policy − reference logits: about 0.04 nats a token


class Tensors(NamedTuple):
    logprob: Tensor
    ref_logprob: Tensor
    mask: Tensor


def models(generator: Generator, drift: float = DRIFT) -> tuple[Tensor, Tensor]:
    """Normalised log-probabilities (B, T, V) of a policy and of its reference."""
    ref = 2 * torch.randn(B, T, V, generator=generator, dtype=torch.float64)
    policy = ref + drift * torch.randn(B, T, V, generator=generator, dtype=torch.float64)
    return policy.log_softmax(-1), ref.log_softmax(-1)


def draw(log_law: Tensor, generator: Generator) -> Tensor:
    """One token for each place, from a law with few outcomes: (B, T) int64."""
    flat = log_law.exp().reshape(-1, log_law.shape[-1])
    return torch.multinomial(flat, 1, generator=generator).reshape(log_law.shape[:-1])


def at(log_law: Tensor, tokens: Tensor) -> Tensor:
    return log_law.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def lengths(generator: Generator) -> Tensor:
    """A mask of right-padded sequences, from a quarter of the width to all of it."""
    length = torch.randint(T // 4, T + 1, (B, 1), generator=generator)
    return torch.arange(T) < length


def top_k(log_law: Tensor, k: int) -> Tensor:
    kept = log_law.topk(k, -1).indices
    out = torch.full_like(log_law, -math.inf).scatter(-1, kept, log_law.gather(-1, kept))
    return out.log_softmax(-1)


def top_p(log_law: Tensor, mass: float) -> Tensor:
    order = log_law.argsort(-1, descending=True)
    falling = log_law.gather(-1, order)
    before = falling.exp().cumsum(-1) - falling.exp()
    falling = falling.masked_fill(before >= mass, -math.inf)
    return torch.empty_like(log_law).scatter(-1, order, falling).log_softmax(-1)


# --- a healthy run, and what can happen to it --------------------------------------------------


def healthy(generator: Generator) -> Tensors:
    policy, ref = models(generator)
    tokens = draw(policy, generator)
    return Tensors(at(policy, tokens), at(ref, tokens), lengths(generator))


def top_two(generator: Generator) -> Tensors:
    """A policy flatter than its reference, of which generation kept the two likeliest tokens."""
    policy, ref = models(generator)
    policy = (0.7 * policy).log_softmax(-1)
    tokens = draw(top_k(policy, 2), generator)
    return Tensors(at(policy, tokens), at(ref, tokens), lengths(generator))


def cooler(generator: Generator) -> Tensors:
    """Generation at a temperature of 0.6, which neither model is scored at."""
    policy, ref = models(generator)
    tokens = draw((policy / 0.6).log_softmax(-1), generator)
    return Tensors(at(policy, tokens), at(ref, tokens), lengths(generator))


def without_end(generator: Generator) -> Tensors:
    """A minimal length bans the end of the text, which the policy likes and the reference not."""
    policy, ref = models(generator)
    policy[..., 0] = policy.logsumexp(-1) + 1
    policy = policy.log_softmax(-1)
    banned = policy.clone()
    banned[..., 0] = -math.inf
    tokens = draw(banned.log_softmax(-1), generator)
    return Tensors(at(policy, tokens), at(ref, tokens), lengths(generator))


def stale(generator: Generator) -> Tensors:
    """Tokens of a policy that has moved on since."""
    old, ref = models(generator)
    step = 0.5 * torch.randn(B, T, V, generator=generator, dtype=torch.float64)
    new = (old + step).log_softmax(-1)
    tokens = draw(old, generator)
    return Tensors(at(new, tokens), at(ref, tokens), lengths(generator))


def renormalised_by_the_engine(generator: Generator) -> Tensors:
    """The engine's log-probabilities are those of the kept tokens, the trainer's of all; the
    weights are the same."""
    policy, _ = models(generator)
    engine = top_p(policy, 0.9)
    tokens = draw(engine, generator)
    return Tensors(at(engine, tokens), at(policy, tokens), lengths(generator))


def engine_at_another_temperature(generator: Generator) -> Tensors:
    """The engine scores what it sampled, at 0.6; the trainer scores at 1, with the same weights."""
    policy, _ = models(generator)
    engine = (policy / 0.6).log_softmax(-1)
    tokens = draw(engine, generator)
    return Tensors(at(engine, tokens), at(policy, tokens), lengths(generator))


def divided_log_probabilities(generator: Generator) -> Tensors:
    """A temperature applied to log-probabilities, without a new softmax."""
    policy, _ = models(generator)
    engine = (policy / 0.6).log_softmax(-1)
    tokens = draw(engine, generator)
    return Tensors(at(engine, tokens), at(policy, tokens) / 0.6, lengths(generator))


def noisy(scale: float):
    """The same weights on two engines whose arithmetic differs; nothing rises above 0."""

    def run(generator: Generator) -> Tensors:
        policy, _ = models(generator)
        logprob = at(policy, draw(policy, generator))
        noise = scale * torch.randn(B, T, generator=generator, dtype=torch.float64)
        other = logprob + noise * (-logprob).clamp(max=1)
        return Tensors(logprob, other.clamp(max=0), lengths(generator))

    return run


def in_half_precision(generator: Generator) -> Tensors:
    """The same weights; one engine gives its log-probabilities in bfloat16."""
    policy, _ = models(generator)
    logprob = at(policy, draw(policy, generator))
    return Tensors(logprob, logprob.bfloat16().double(), lengths(generator))


def policy_scored_differently(scale: float):
    """The same weights, but the policy is scored with dropout, or at other positions, than when it
    generated; the reference is not."""

    def run(generator: Generator) -> Tensors:
        policy, _ = models(generator)
        change = scale * torch.randn(B, T, V, generator=generator, dtype=torch.float64)
        scored = (policy + change).log_softmax(-1)
        tokens = draw(policy, generator)
        return Tensors(at(scored, tokens), at(policy, tokens), lengths(generator))

    return run


def mask_not_shifted(generator: Generator) -> Tensors:
    """The mask counts one place too many: the padding token, which nobody sampled."""
    logprob, ref_logprob, mask = healthy(generator)
    ends = mask.roll(1, 1) & ~mask
    ends[:, 0] = False
    noise = torch.randn(B, T, generator=generator, dtype=torch.float64)
    logprob, ref_logprob = (
        torch.where(ends, -12.0, logprob),
        torch.where(ends, -9 + noise, ref_logprob),
    )
    return Tensors(logprob, ref_logprob, mask | ends)


def misaligned(generator: Generator) -> Tensors:
    """The reference's log-probabilities stand one place early."""
    logprob, ref_logprob, mask = healthy(generator)
    return Tensors(logprob, ref_logprob.roll(-1, 1), mask)


def pads_as_zeros(generator: Generator) -> Tensors:
    """Padding scored zero by both models, and no mask."""
    logprob, ref_logprob, mask = healthy(generator)
    logprob, ref_logprob = (torch.where(mask, x, 0.0) for x in (logprob, ref_logprob))
    return Tensors(logprob, ref_logprob, torch.ones_like(mask))


def pads_as_ones(generator: Generator) -> Tensors:
    """Padding marked by log-probability +1 in both, and no mask."""
    logprob, ref_logprob, mask = healthy(generator)
    logprob, ref_logprob = (torch.where(mask, x, 1.0) for x in (logprob, ref_logprob))
    return Tensors(logprob, ref_logprob, torch.ones_like(mask))


def one_token_carries_it(generator: Generator) -> Tensors:
    """One token on which the reference is e^22.6 times as likely: its k3 is 6.8e9."""
    logprob, ref_logprob, mask = healthy(generator)
    logprob[0, 0] = ref_logprob[0, 0] - 22.643
    return Tensors(logprob, ref_logprob, mask)
