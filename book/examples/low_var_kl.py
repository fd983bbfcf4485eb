"""Case (c) of chapter 13: one penalty by its names, and a metric of the update.

python -m kllab audit book/examples/low_var_kl.py:low_var_kl --usage loss --claim kl_qp
"""

import torch


def k1(logprob, ref_logprob):
    return logprob - ref_logprob


def k2(logprob, ref_logprob):
    return (logprob - ref_logprob) ** 2 / 2


def low_var_kl(logprob, ref_logprob):
    l = (ref_logprob - logprob).clamp(-20, 20)
    return (torch.expm1(l) - l).clamp(-10, 10)


def ppo_kl(logprob, old_logprob):
    return (old_logprob - logprob).mean()
