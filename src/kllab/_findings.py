"""What an audit or a diagnosis can find: one shape, and the published list of the audit's codes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass

SCHEMA = 1
"""Version of what ``to_dict`` returns; it changes when a key changes its meaning or goes."""

CODES: Mapping[str, str] = {
    "wrong_sign": "minimising it, or reading it, turns the divergence around",
    "mixed_sign": "its gradient reduces the divergence on some reference cases and raises it on "
    "others",
    "wrong_direction": "the divergence with the two distributions exchanged",
    "upside_down": "p and q are exchanged inside the ratio only",
    "not_the_claim": "a known divergence, or a multiple of it, but not the claimed one",
    "bias": "its mean differs from the claimed divergence on reference cases",
    "constant": "its value is not 0 where both distributions agree",
    "zero_value": "its mean is the same for every pair",
    "zero_gradient": "no expected gradient: noise only",
    "no_grad": "no gradient reaches logprob",
    "off_policy": "samples come from old_logprob, and no importance weight says so",
    "clamp_value": "the value, or its importance weight, is cut",
    "clamp_gradient": "the gradient is exactly zero from some log-ratio on, or its importance "
    "weight is cut",
    "overflow": "not finite at a log-ratio that can occur",
    "nan_gradient": "the gradient is NaN where the value is finite",
    "cancellation": "float32 loses the value where the distributions nearly agree",
    "padding_leak": "what stands in masked places changes the result",
    "padding_in_mean": "masked places count in the mean's denominator",
    "aggregation": "a mean or sum of tokens of no kind that is known",
    "not_elementwise": "a token's value depends on other tokens, or on its place",
    "not_difference": "depends on more than the difference of the two log-probabilities",
    "random": "two calls with the same input differ: chance, or a state that is kept",
    "mutates_input": "writes into its arguments",
    "bad_return": "returns something that is no value per token and no mean of such",
    "raises": "raises an exception",
    "unknown": "the part that the usage needs is no combination of known divergences",
}
"""Every code that a finding of an audit can have, with its meaning."""

_RIGHT = {
    "metric": "kllab.K3(log_r), that is torch.expm1(log_r) - log_r, of log_r = log p − log q "
    "with samples from q",
    "loss": "kllab.penalties.k2_in_loss on samples of the policy, "
    "kllab.penalties.weighted_k3 on samples of an older one",
    "reward": "kllab.penalties.k1_in_reward, subtracted from the reward",
    "both": "kllab.penalties.k1_in_reward as reward or kllab.penalties.k2_in_loss as loss",
}
_CLEAN = "replace masked places before any arithmetic, as kllab.penalties.clean does"
_HOW = "kllab.sequences.aggregate(values, mask, how=...)"
_INSTEAD: Mapping[str, str] = {
    "off_policy": "kllab.penalties.weighted_k3, which takes old_logprob",
    "clamp_value": "log k1 beside it, which needs no clamp; "
    "if something must be cut, cut the log-ratio and say so",
    "clamp_gradient": "kllab.penalties.k2_in_loss: its gradient, the log-ratio, needs no clamp",
    "overflow": "clamp the log-ratio before exp (max_log_ratio of kllab.penalties), "
    "or use kllab.penalties.k2_in_loss",
    "nan_gradient": "clamp the log-ratio before exp, not the result: 0 times inf is NaN",
    "cancellation": "torch.expm1(x) - x, in float32 or better",
    "padding_leak": _CLEAN,
    "padding_in_mean": _HOW,
    "aggregation": _HOW,
    "not_elementwise": "one value per token, from that token alone",
    "not_difference": "the log-ratio ref_logprob - logprob alone",
    "random": "a deterministic function; draw before it is called",
    "mutates_input": "operations without a trailing underscore, or a clone first",
    "bad_return": "a floating tensor: one value per token, one per sequence, or a scalar",
    "raises": "a call that works: fn(logprob, ref_logprob) on tensors of shape (batch, time)",
    "no_grad": "remove torch.no_grad, detach and NumPy from the way of logprob, or use the "
    "value in the reward (kllab.penalties.k1_in_reward)",
}


@dataclass(frozen=True)
class Finding:
    """Something worth knowing: a published ``code``, one plain ``sentence``, the ``numbers``
    behind it by name (nats where they have a unit), and what to do ``instead``."""

    code: str
    sentence: str
    numbers: Mapping[str, object]
    instead: str


def advice(code: str, usage: str, claim: str, *, moves_q: bool) -> str:
    """What to write instead, for a finding of an audit whose function is meant to be ``claim``.

    ``moves_q``: samples come from the policy itself, or are weighted to be.
    """
    if code in _INSTEAD:
        return _INSTEAD[code]
    if usage != "metric" and moves_q:
        if claim == "kl_qp":
            return _RIGHT[usage]
        return f'kllab.gradients.penalty_for("{claim}", usage="{usage}")'
    if claim == "kl_qp":
        return _RIGHT["metric"]
    return f'kllab.estimators.bregman("{claim}") of log_r = log p − log q, samples from q'


def plain(value):
    """The same, dataclasses too, as dicts, lists, strings and numbers; NaN and infinities as text.

    >>> plain({"share": math.inf, "region": (-3.0, 3)})
    {'share': 'inf', 'region': [-3.0, 3]}
    """
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
