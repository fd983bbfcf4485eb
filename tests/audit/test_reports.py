"""Each public report: the fault is found, the repaired twin is clean, and the page says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import kllab
from audit import logged, reports
from audit.by_hand import expected_gradient, gradient_of
from audit.reports import REPORTS, Code, Logged
from kllab.auditor import AuditReport

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(5)


def cases(kind):
    return [
        pytest.param(case, id=f"{report.number}-{report.threads[0]}-{place}")
        for report in REPORTS
        for place, case in enumerate(report.cases)
        if isinstance(case, kind)
    ]


def codes(report):
    return {finding.code for finding in report.findings}


def judged(report: AuditReport):
    return report.value if report.usage == "metric" else report.gradient


# --- code --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases(Code))
def test_the_fault_is_found(case):
    report = kllab.audit(case.faulty, **case.call)
    assert set(case.codes) <= codes(report), report
    if case.terms is not None:
        assert judged(report).terms == pytest.approx(case.terms, abs=1e-9)


@pytest.mark.parametrize("case", cases(Code))
def test_the_repaired_twin_is_clean(case):
    report = kllab.audit(case.repaired, **case.call | {"claim": case.right_claim or case.claim})
    assert report.agrees is True, report
    assert codes(report) == set(case.remain)
    assert judged(report).terms == pytest.approx(case.right_terms, abs=1e-9)


@pytest.mark.parametrize("case", cases(Code))
def test_a_finding_can_be_acted_upon(case):
    """A sentence, what to do instead, and on a screen the verdict first."""
    report = kllab.audit(case.faulty, **case.call)
    for finding in report.findings:
        assert finding.code in finding_codes()
        assert finding.sentence.endswith(".")
        assert finding.instead
    text = str(report).splitlines()
    assert len(text) <= 45
    assert all(len(line) <= 120 for line in text)


def finding_codes():
    from kllab._findings import CODES

    return CODES


# --- tensors -----------------------------------------------------------------------------------


def diagnosed(run, seed):
    tensors = run(torch.Generator().manual_seed(seed))
    return kllab.diagnose(tensors.logprob, tensors.ref_logprob, tensors.mask)


@pytest.mark.parametrize("case", cases(Logged))
def test_the_cause_is_named(case):
    """Also where it cannot be: a cause that comes to be named belongs into the table."""
    for seed in SEEDS:
        found = codes(diagnosed(case.sick, seed))
        assert set(case.codes) <= found if case.codes else not found


def test_a_healthy_run_is_called_healthy():
    for seed in range(20):
        assert diagnosed(logged.healthy, seed).healthy


def test_a_healthy_run_is_one():
    """The tensors are what they say: samples of exp(logprob), normalised, with E[r] = 1."""
    generator = torch.Generator().manual_seed(1)
    policy, ref = logged.models(generator)
    assert torch.allclose(policy.logsumexp(-1), torch.zeros(logged.B, logged.T).double())
    tokens = logged.draw(policy, generator)
    ratios = (logged.at(ref, tokens) - logged.at(policy, tokens)).exp()
    variance = float((policy.exp() * ((ref - policy).exp() - 1).square()).sum(-1).mean())
    assert abs(float(ratios.mean()) - 1) < 5 * (variance / ratios.numel()) ** 0.5
    assert 0.02 < float((policy.exp() * (policy - ref)).sum(-1).mean()) < 0.1


# --- the table ---------------------------------------------------------------------------------


def test_every_report_is_caught_or_has_a_reason():
    for report in REPORTS:
        assert bool(report.cases) != bool(report.why_not), report.number
        for case in report.cases:
            if isinstance(case, Logged):
                assert bool(case.codes) != bool(case.why_not), report.number
            else:
                assert case.codes, report.number


def test_numbers_and_threads_stand_once():
    numbers = [report.number for report in REPORTS]
    threads = [thread for report in REPORTS for thread in report.threads]
    assert len(set(numbers)) == len(numbers)
    assert len(set(threads)) == len(threads)
    for thread in threads:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread)


def test_repaired_and_faulty_differ():
    for report in REPORTS:
        for case in report.cases:
            if isinstance(case, Code):
                assert case.faulty is not case.repaired or case.right_claim


# --- two that came first -----------------------------------------------------------------------


@pytest.mark.parametrize("mask", [False, True])
def test_rollout_metrics(mask):
    """Under samples of the rollout, mean(−log ρ) and mean(ρ − 1 − log ρ) are KL(rollout‖train)."""

    def k1(train, rollout):
        return rollout - train

    def k3(train, rollout):
        log_rho = train - rollout
        return torch.expm1(log_rho) - log_rho

    for value in (k1, k3):
        fn = reports.token_mean_of(value) if mask else reports.mean_of(value)
        names = ("logprob", "ref_logprob", "mask")[: 2 + mask]
        report = kllab.audit(fn, samples="ref_logprob", names=names, claim="kl_qp")
        assert report.value.terms == {"kl_qp": 1.0}
        assert report.agrees is True
        assert report.aggregation == ("token_mean" if mask else "mean")
        assert (report.value.q, report.value.p) == ("ref_logprob", "logprob")
        other = kllab.audit(fn, samples="ref_logprob", names=names, claim="kl_pq")
        assert other.agrees is False
        assert "wrong_direction" in codes(other)


def test_a_mean_kl_that_is_none():
    """χ² − KL: upside down, with padding and prompt in the mean."""
    fn = reports.mean_with_pads(reports.upside_down)
    report = kllab.audit(fn, claim="kl_qp")
    assert report.value.terms == {"chi2_qp": 1.0, "kl_qp": -1.0}
    assert {"upside_down", "padding_in_mean"} <= codes(report)
    assert report.aggregation == "padded_mean"
    assert report.agrees is False


# --- three tokens, by hand ---------------------------------------------------------------------

PI, REF = (torch.tensor(p, dtype=torch.float64) for p in ((0.7, 0.2, 0.1), (0.4, 0.4, 0.2)))
# Printed to five digits: expected values and expected gradients of each function as a loss.
PRINTED = [
    (reports.log_ratio, 0.18379, (0, 0, 0)),
    (reports.half_square, 0.18168, (0.26308, -0.17539, -0.08769)),
    (reports.bregman, 0.18379, (0.3, -0.2, -0.1)),
    (reports.absolute, 0.59968, (0.42, -0.28, -0.14)),
    (reports.upside_down, 0.19121, None),
]


@pytest.mark.parametrize(("fn", "value", "gradient"), PRINTED)
def test_the_terms_give_the_printed_numbers(fn, value, gradient):
    from audit.by_hand import DIVERGENCE

    report = kllab.audit(fn, usage="loss")
    mean = float((PI * fn(PI.log(), REF.log())).sum())
    assert mean == pytest.approx(value, abs=6e-6)
    if report.value.verdict == "fits":
        terms = report.value.terms.items()
        total = sum(c * float(DIVERGENCE[name](PI, REF)) for name, c in terms)
        assert total == pytest.approx(value, abs=6e-6)
    got = expected_gradient(fn, PI.log(), REF.log(), usage="loss", sampled=PI)
    if gradient is not None:
        assert got.tolist() == pytest.approx(gradient, abs=6e-6)
    want = gradient_of(report.gradient.terms, PI.log(), REF, policy="q")
    assert want.tolist() == pytest.approx(got.tolist(), abs=1e-12)
    assert report.gradient.verdict == ("zero" if fn is reports.log_ratio else "fits")


# --- the page ----------------------------------------------------------------------------------


def test_the_page_shows_every_kind_once():
    page = (ROOT / "book" / "reports.md").read_text(encoding="utf-8")
    shown = re.findall(r"```\{public-reports\} (.*)\n", page)
    kinds = list(dict.fromkeys(report.kind for report in REPORTS))
    assert shown == kinds


def test_the_page_says_what_is_found():
    import kl_reports

    by_number = {report.number: report for report in REPORTS}
    (caught,) = kl_reports.answers(by_number["3"])
    assert caught.astext().startswith("kllab.audit says upside_down: ")
    (logged_case,) = kl_reports.answers(by_number["29"])
    assert logged_case.astext().startswith("kllab.diagnose says one_token: ")
    (nothing,) = kl_reports.answers(by_number["11"])
    assert nothing.astext() == f"Nothing. {by_number['11'].why_not}"


def test_a_fault_that_is_no_longer_found_stops_the_build():
    import kl_reports
    from sphinx.errors import ExtensionError

    case = Code(reports.log_ratio, reports.log_ratio, ("upside_down",))
    report = reports.Report("0", reports.DIRECTION, ("a/b#1",), "", (case,))
    with pytest.raises(ExtensionError, match="a/b#1: upside_down not found"):
        list(kl_reports.answers(report))
