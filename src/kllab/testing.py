"""One line for the test suite of a training framework.

``assert_kl`` audits a function and fails with the whole report where it is not what it should be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kllab._findings import CODES
from kllab.auditor import AuditReport, audit
from kllab.checks import InputError


def assert_kl(
    fn: Callable, *, claim: str, forbid: Sequence[str] = (), strict: bool = False, **how
) -> AuditReport:
    """Fail unless ``fn`` is ``claim``, as far as its usage needs it, and free of some findings.

    Parameters
    ----------
    fn, claim : as for :func:`~kllab.auditor.audit`.
    forbid : codes of findings that must not be there either, such as "overflow".
    strict : both the value and the gradient must be ``claim``.
    how : ``usage``, ``samples`` and ``names`` of :func:`~kllab.auditor.audit`.

    Returns the report, in nats.

    Raises
    ------
    AssertionError : with the report as its message; also where nothing could be judged.
    InputError : for a word that the audit, or its list of codes, does not have.

    Examples
    --------
    >>> def penalty(logprob, ref_logprob):
    ...     return (logprob - ref_logprob).square() / 2
    >>> assert_kl(penalty, usage="loss", claim="kl_qp").gradient.terms
    {'kl_qp': 1.0}
    >>> assert_kl(penalty, usage="loss", claim="kl_pq")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    AssertionError: differs: penalty as loss: the gradient is kl_qp, claimed kl_pq
    """
    if unknown := set(forbid) - set(CODES):
        raise InputError("forbid", "published codes", ", ".join(sorted(unknown)))
    report = audit(fn, claim=claim, **how)
    if not report.agreement(strict=strict) or set(forbid) & set(report.codes):
        raise AssertionError(f"\n{report}")
    return report
