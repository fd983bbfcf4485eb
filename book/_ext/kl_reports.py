"""``{public-reports} KIND``: which public report is caught by what, found out during the build;
``{audit-codes}``: what a finding of an audit can be.

The functions and tensors are those of ``tests/audit/reports.py``.  Each is audited or diagnosed
here, and a fault that is no longer found stops the build.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from source_keys import reached
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "audit"
TITLES = ("Report", "Caught by")


class PublicReports(SphinxDirective):
    """A table of the reports of one kind."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        for path in (*TABLE.glob("*.py"), *package_files()):
            self.env.note_dependency(str(path))
        found = [report for report in table() if report.kind == self.arguments[0]]
        if not found:
            raise self.error(f"no report of the kind {self.arguments[0]!r}")
        body = nodes.tbody()
        for report in found:
            story = [nodes.paragraph("", report.fault), paragraph(links(report.threads))]
            body += row(story, list(answers(report)))
        return [table_of(TITLES, body, (50, 50))]


class AuditCodes(SphinxDirective):
    """A table of what a finding of an audit can be."""

    def run(self) -> list[nodes.Node]:
        from kllab.auditor import CODES

        for path in package_files():
            self.env.note_dependency(str(path))
        body = nodes.tbody()
        for code, meaning in CODES.items():
            name = nodes.paragraph("", "", nodes.literal("", code))
            body += row([name], [nodes.paragraph("", meaning)])
        return [table_of(("Code", "Meaning"), body, (30, 70))]


def table_of(titles: tuple[str, ...], body: nodes.tbody, widths: tuple[int, ...]) -> nodes.table:
    """A table with a head."""
    group = nodes.tgroup("", *(nodes.colspec(colwidth=w) for w in widths), cols=len(widths))
    group += nodes.thead("", row(*([nodes.paragraph("", title)] for title in titles)))
    group += body
    return nodes.table("", group, classes=["colwidths-given"])


def package_files() -> set[Path]:
    return reached({"kllab.auditor", "kllab.diagnosis"}, ROOT / "src" / "kllab")


def table():
    """The reports, from the tests' own file."""
    tests = str(TABLE.parent)
    sys.path.insert(0, tests)
    try:
        from audit.reports import REPORTS
    finally:
        sys.path.remove(tests)
    return REPORTS


def answers(report) -> Iterator[nodes.paragraph]:
    """One paragraph for each function or pair of tensors; the reason, where there is none."""
    if not report.cases:
        yield paragraph([nodes.strong("", "Nothing."), nodes.Text(f" {report.why_not}")])
    for case in report.cases:
        tool = "audit" if hasattr(case, "faulty") else "diagnose"
        if not case.codes:
            sentence = f" sees nothing. {case.why_not}"
            yield paragraph([nodes.literal("", f"kllab.{tool}"), nodes.Text(sentence)])
            continue
        said = {finding.code: finding.sentence for finding in found(case)}
        missing = set(case.codes) - set(said)
        if missing:
            raise ExtensionError(f"{report.threads[0]}: {', '.join(sorted(missing))} not found")
        parts: list[nodes.Node] = [nodes.literal("", f"kllab.{tool}"), nodes.Text(" says ")]
        for place, code in enumerate(case.codes):
            parts += [nodes.Text(", " if place else ""), nodes.literal("", code)]
        yield paragraph([*parts, nodes.Text(f": {said[case.codes[0]]}")])


def found(case) -> list:
    """The findings for one case, now."""
    import torch

    import kllab

    if hasattr(case, "faulty"):
        return kllab.audit(case.faulty, **case.call).findings
    return list(kllab.diagnose(*case.sick(torch.Generator().manual_seed(0))).findings)


def links(threads) -> list[nodes.Node]:
    """Addresses by repository and number; GitHub leads on to a pull request where it is one."""
    out: list[nodes.Node] = []
    for thread in threads:
        repository, number = thread.split("#")
        address = f"https://github.com/{repository}/issues/{number}"
        out += [nodes.Text("; " if out else ""), nodes.reference("", thread, refuri=address)]
    return out


def paragraph(parts: list[nodes.Node]) -> nodes.paragraph:
    return nodes.paragraph("", "", *parts)


def row(*cells: list[nodes.Node]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", *cell) for cell in cells))


def setup(app: Sphinx) -> dict:
    app.add_directive("public-reports", PublicReports)
    app.add_directive("audit-codes", AuditCodes)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
