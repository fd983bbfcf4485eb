"""Case (b) of chapter 13: what an adaptive controller is fed.

python -m kllab audit book/examples/mean_kl.py:place_mean --claim kl_qp
"""

import torch


def response_sum(logprob, ref_logprob, mask):
    l = torch.where(mask.bool(), logprob - ref_logprob, 0.0)
    return l.sum(-1).mean()


def of_the_update(logprob, old_logprob, mask):
    d = torch.where(mask.bool(), logprob - old_logprob, 0.0)
    return (torch.expm1(d) - d).sum() / mask.sum()


def place_mean(logprob, ref_logprob, mask):
    d = torch.where(mask.bool(), logprob - ref_logprob, 0.0)
    return (torch.expm1(d) - d).mean()


def place_sum(logprob, ref_logprob, mask):
    d = torch.where(mask.bool(), logprob - ref_logprob, 0.0)
    return (torch.expm1(d) - d).sum(-1).mean()
