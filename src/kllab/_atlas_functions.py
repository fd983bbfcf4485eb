"""What frameworks compute under the name KL, written anew from their formulas.

One function a formula, with the roles as parameter names: ``logprob`` carries the gradient,
``ref_logprob`` or ``old_logprob`` is the other distribution, ``mask`` is 1 where a token counts.
They keep what matters for the result: clamps and their place, casts, how tokens are put together,
how masked places are kept out. Rewards are written as the penalty that is subtracted.
Rows in ``atlas.toml`` name them, and say where each formula stands.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _k3(log_r: Tensor) -> Tensor:
    return log_r.exp() - log_r - 1


def _times_mask_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum()


def _times_mask_mean_safe(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum().clamp(min=1)


def _where_mask_mean(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.bool(), values, 0.0).sum() / (mask.sum() + 1e-8)


# --- one value per token ----------------------------------------------------------------------


def k1(logprob, ref_logprob):
    return logprob - ref_logprob


def k1_tenth(logprob, ref_logprob):
    return 0.1 * (logprob - ref_logprob)


def k1_float32(logprob, ref_logprob):
    return logprob.float() - ref_logprob.float()


def k1_clamped(logprob, ref_logprob):
    return (logprob.float() - ref_logprob.float()).clamp(-10, 10)


def k1_masked(logprob, ref_logprob, mask):
    return (logprob - ref_logprob) * mask


def k2(logprob, ref_logprob):
    return (logprob - ref_logprob) ** 2 / 2


def absolute(logprob, ref_logprob):
    return (logprob - ref_logprob).abs()


def k3(logprob, ref_logprob):
    return _k3(ref_logprob - logprob)


def k3_expm1(logprob, ref_logprob):
    l = (logprob - ref_logprob).clamp(-40, 40)
    return torch.expm1(-l) + l


def k3_clamped(logprob, ref_logprob):
    return _k3((ref_logprob - logprob).clamp(-20, 20)).clamp(-10, 10)


def k3_clamped_where(logprob, ref_logprob, mask):
    return torch.where(mask.bool(), k3_clamped(logprob, ref_logprob) * mask, 0.0)


def k3_clamped_with_k2_gradient(logprob, ref_logprob):
    pull = (logprob - ref_logprob) ** 2 / 2
    return k3_clamped(logprob, ref_logprob).detach() + (pull - pull.detach())


def k3_cut_after_exp(logprob, ref_logprob):
    return _k3(ref_logprob.float() - logprob.float()).clamp(-10, 10)


def k3_weighted(logprob, ref_logprob, old_logprob):
    return _k3(ref_logprob - logprob) * (logprob - old_logprob).exp()


def k3_weighted_cut(logprob, ref_logprob, old_logprob):
    weight = (logprob - old_logprob).exp()
    return (weight * _k3(ref_logprob.float() - logprob.float())).clamp(-10, 10)


def k1_weighted(logprob, ref_logprob, old_logprob):
    return (logprob - old_logprob).exp() * (logprob - ref_logprob).clamp(-40, 40)


def _on_policy_weight(logprob: Tensor, inside: Tensor) -> Tensor:
    weight = (logprob - logprob.detach()).exp()
    return torch.where(inside, weight, weight.detach())


def k3_with_score(logprob, ref_logprob):
    log_r = ref_logprob - logprob
    weight = _on_policy_weight(logprob, log_r.abs() <= 20)
    return (weight * _k3(log_r.clamp(-20, 20))).clamp(-10, 10)


def k2_with_score(logprob, ref_logprob):
    log_r = ref_logprob - logprob
    weight = _on_policy_weight(logprob, log_r.abs() <= 20)
    return (weight * log_r.clamp(-20, 20) ** 2 / 2).clamp(-10, 10)


def squared_masked(logprob, ref_logprob, mask):
    return mask * (logprob - ref_logprob) ** 2


# --- one number -------------------------------------------------------------------------------


@torch.no_grad()
def mean_old_minus_new(logprob, old_logprob):
    return (old_logprob - logprob).mean()


@torch.no_grad()
def mean_k3_of_new_over_old(logprob, old_logprob):
    return _k3(logprob - old_logprob).mean()


@torch.no_grad()
def mean_k2(logprob, old_logprob):
    return 0.5 * ((logprob - old_logprob) ** 2).mean()


@torch.no_grad()
def token_mean_new_minus_old(logprob, old_logprob, mask):
    return torch.where(mask.bool(), logprob - old_logprob, 0.0).sum() / mask.sum()


@torch.no_grad()
def token_mean_old_minus_new_clamped(logprob, old_logprob, mask):
    return _where_mask_mean(-(logprob - old_logprob).clamp(-20, 20), mask)


@torch.no_grad()
def token_mean_k1(logprob, ref_logprob, mask):
    return _where_mask_mean(ref_logprob - logprob, mask)


@torch.no_grad()
def token_mean_k3(logprob, ref_logprob, mask):
    return _where_mask_mean(_k3(logprob - ref_logprob), mask)


@torch.no_grad()
def token_mean_k3_times(logprob, ref_logprob, mask):
    return (_k3(logprob - ref_logprob) * mask).sum() / (mask.sum() + 1e-8)


@torch.no_grad()
def token_mean_k3_turned_over(logprob, ref_logprob, mask):
    return (_k3(ref_logprob - logprob) * mask).sum() / (mask.sum() + 1e-8)


@torch.no_grad()
def token_mean_k3_clamped(logprob, ref_logprob, mask):
    log_r = (logprob - ref_logprob) * mask
    return _times_mask_mean_safe(_k3(log_r.clamp(-20, 20)).clamp(-10, 10), mask)


@torch.no_grad()
def token_mean_k1_after_mask(logprob, ref_logprob, mask):
    return _times_mask_mean_safe(-(logprob - ref_logprob) * mask, mask)


@torch.no_grad()
def token_mean_k3_selected(logprob, ref_logprob, mask):
    return _k3(logprob - ref_logprob)[mask.bool()].sum() / mask.sum().clamp(min=1)


@torch.no_grad()
def token_mean_k1_selected(logprob, ref_logprob, mask):
    return (ref_logprob - logprob)[mask.bool()].mean()


@torch.no_grad()
def token_mean_k2_selected(logprob, ref_logprob, mask):
    return 0.5 * ((ref_logprob - logprob)[mask.bool()] ** 2).mean()


@torch.no_grad()
def token_mean_chi2(logprob, ref_logprob, mask):
    rho = (logprob - ref_logprob).clamp(-20, 20).exp()
    return _where_mask_mean(rho**2, mask) - 1


@torch.no_grad()
def token_mean_js(logprob, ref_logprob, mask):
    middle = (0.5 * logprob.exp() + 0.5 * ref_logprob.exp()).log()
    values = 0.5 * _k3(logprob - middle) + 0.5 * _k3(ref_logprob - middle)
    return (values * mask).sum() / (mask.sum() + 1e-8)


def loss_mean_k3(logprob, ref_logprob, mask):
    return (_k3(ref_logprob - logprob) * mask).sum() / (mask.sum() + 1e-8)


@torch.no_grad()
def sequence_mean_k1(logprob, ref_logprob, mask):
    values = torch.where(mask.bool(), (logprob - ref_logprob) * mask, 0.0)
    return (values.sum(-1) / (mask.sum(-1) + 1e-8)).mean()


@torch.no_grad()
def sequence_mean_k3(logprob, ref_logprob, mask):
    values = _k3(ref_logprob - logprob) * mask
    return (values.sum(-1) / mask.sum(-1)).mean()


@torch.no_grad()
def sequence_sum_k1(logprob, ref_logprob):
    return (logprob - ref_logprob).sum(-1).mean()


def sequence_sum_k1_masked(logprob, ref_logprob, mask):
    return ((logprob - ref_logprob) * mask).sum(-1).mean()


@torch.no_grad()
def sequence_sum_k3_turned_over(logprob, ref_logprob, mask):
    return _k3((logprob - ref_logprob) * mask).sum(-1).mean()


@torch.no_grad()
def padded_mean_k3(logprob, old_logprob, mask):
    return _k3((logprob - old_logprob) * mask).mean()


@torch.no_grad()
def padded_mean_k2(logprob, old_logprob, mask):
    new, old = (x.masked_fill(mask == 0, 1.0) for x in (logprob, old_logprob))
    return 0.5 * ((new - old) ** 2).mean()


@torch.no_grad()
def token_mean_log_ratio(logprob, ref_logprob, mask):
    return _times_mask_mean_safe((logprob - ref_logprob) * mask, mask)


@torch.no_grad()
def token_mean_k1_times(logprob, ref_logprob, mask):
    return _times_mask_mean(ref_logprob - logprob, mask)


@torch.no_grad()
def token_mean_k3_other_first(logprob, ref_logprob, mask):
    return _times_mask_mean_safe(_k3(ref_logprob - logprob), mask)


@torch.no_grad()
def padded_mean_k3_turned_over(logprob, ref_logprob, mask):
    l = logprob - ref_logprob
    return (((l * (l < 10)).exp() - 1 - l) * mask).mean()
