"""kllab: Monte Carlo estimators of KL divergence, checked against exact sums.

x ~ q is sampled (the policy), p is the other distribution (the reference), log r = log p − log q.
All results are in nats.
"""

from kllab import (
    atlas,
    auditor,
    checks,
    diagnosis,
    divergences,
    estimators,
    exact,
    gradients,
    pairs,
    penalties,
    runtime,
    sampling,
    sequences,
    simulate,
    training,
)
from kllab.atlas import ATLAS
from kllab.auditor import AuditReport, audit
from kllab.checks import InputError
from kllab.diagnosis import Diagnosis, diagnose
from kllab.divergences import DIVERGENCES, Divergence
from kllab.estimators import K1, K2, K3, Estimator

__version__ = "0.1.0"
__all__ = [
    "ATLAS",
    "DIVERGENCES",
    "K1",
    "K2",
    "K3",
    "AuditReport",
    "Diagnosis",
    "Divergence",
    "Estimator",
    "InputError",
    "atlas",
    "audit",
    "auditor",
    "checks",
    "diagnose",
    "diagnosis",
    "divergences",
    "estimators",
    "exact",
    "gradients",
    "pairs",
    "penalties",
    "runtime",
    "sampling",
    "sequences",
    "simulate",
    "training",
]
