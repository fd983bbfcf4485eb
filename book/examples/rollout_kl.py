"""Case (a) of chapter 13: a trainer beside the engine that drew the tokens.

python -m kllab audit book/examples/rollout_kl.py:kl_before --samples ref_logprob --claim kl_pq
"""

import torch


def kl_before(train, rollout):
    return (train - rollout).mean()


def kl_after(train, rollout):
    return (rollout - train).mean()


def k3_kl(train, rollout):
    log_rho = train - rollout
    return (torch.expm1(log_rho) - log_rho).mean()


def k3_turned_over(train, rollout):
    log_rho = train - rollout
    return (torch.expm1(-log_rho) + log_rho).mean()
