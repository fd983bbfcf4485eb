"""Audits and diagnoses as text and HTML: a verdict, rows of a label and a text, findings."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence

from kllab._findings import Finding
from kllab._terms import sum_of

WIDTH = 98
_HANGING = {"subsequent_indent": "  "}
Rows = Sequence[tuple[str, str]]


def as_text(verdict: str, rows: Rows, findings: Sequence[Finding]) -> str:
    """A screen of text, the verdict first."""
    lines = textwrap.wrap(verdict, WIDTH, subsequent_indent="  ")
    wide = max(len(label) for label, _ in rows) + 1
    for label, text in rows:
        row, below = f"  {label:<{wide}}{text}", " " * (wide + 2)
        lines += textwrap.wrap(row, WIDTH, subsequent_indent=below)
    for found in findings:
        said = f"- {found.code}: {found.sentence}", f"  instead: {found.instead}"
        lines += [line for text in said for line in textwrap.wrap(text, WIDTH, **_HANGING)]
    return "\n".join(lines)


def as_html(verdict: str, rows: Rows, findings: Sequence[Finding], figure: str = "") -> str:
    """The text's content, with a figure, which is HTML already."""
    cells = "".join(
        f"<tr><th>{html.escape(label)}</th><td>{html.escape(text)}</td></tr>"
        for label, text in rows
    )
    notes = "".join(
        f"<li><code>{html.escape(found.code)}</code> {html.escape(found.sentence)}"
        f"<br><em>Instead:</em> {html.escape(found.instead)}</li>"
        for found in findings
    )
    head = f"<p><strong>{html.escape(verdict)}</strong></p>"
    return f"<div>{head}<table>{cells}</table>{figure}<ul>{notes}</ul></div>"


# --- an audit's ---------------------------------------------------------------------------------

_ANSWER = {True: "agrees", False: "differs", None: "not judged"}


def verdict(report) -> str:
    """The first line: whether it is what it should be, and what it is."""
    part = getattr(report, report.judged)
    known = sum_of(part.terms)
    if "constant" in report.codes and report.judged == "value":
        constant = part.free.get("constant", 0.0)
        known += f" {'−' if constant < 0 else '+'} {abs(constant):.6g}" if constant else ""
    what = {
        "fits": f"the {report.judged} is {known}",
        "zero": "no expected gradient"
        if report.judged == "gradient"
        else "a value that says nothing",
        "unknown": f"the {report.judged} is unknown",
    }[part.verdict]
    claim = f", claimed {report.claim}" if report.claim else ""
    claim += f", if {report.taken}" if report.taken else ""
    only = f" on {' and '.join(report.only)} only" if report.agrees and report.only else ""
    return f"{_ANSWER[report.agrees]}{only}: {report.name} as {report.usage}: {what}{claim}"


def _part(part) -> str:
    text = sum_of(part.terms) or part.verdict.replace("_", " ")
    if part.why:
        text += f": {part.why}"
    if part.q:
        low, high = part.region
        text += f"  (q {part.q}, p {part.p}"
        text += f"; log r in [{low:.4g}, {high:.4g}])" if math.isfinite(low) else ")"
    return text


def rows(report) -> list[tuple[str, str]]:
    """What stands between an audit's verdict and its findings."""
    value, gradient = _part(report.value), _part(report.gradient)
    if report.non_negative is False and report.usage == "metric":
        value += ", single values may be negative"
    if report.detached:
        gradient += ", not the derivative of the value: something is detached"
    found = [("value", value), ("gradient", gradient)]
    if report.aggregation not in (None, "token"):
        text = report.aggregation
        if report.nothing_kept:
            text += f"; with nothing kept: {report.nothing_kept}"
        elif "mask" not in report.roles:
            text += "; it takes no mask, so padding would count"
        found.append(("tokens", text))
    if report.padding:
        found.append(("mask", f"{report.padding} is taken as true where there is padding"))
    if report.taken:
        found.append(("roles", f"taken as: {report.taken}; names=(...) says it"))
    for label, row in report.cases.items():
        if label in ("three tokens", "dropped token"):
            beside = f", exact {row['divergence']:.5g}" if "divergence" in row else ""
            found.append(("mean", f"{row['mean']:.5g}{beside}  ({label})"))
    return found


# --- its figure ---------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _BELOW = 420, 180, 22
_INK = {"value": ("#3b8fd6", "none"), "weight": ("#d9722b", "6 3")}
_TOP = 6.0


def figure(report) -> str:
    """Value, and weight on the score, against log r; clamped stretches are shaded.

    Colours read on light and dark.  Nothing where nothing was drawn.
    """
    if not report.curve:
        return ""
    l = report.curve["log_r"]
    low, high = l[0], l[-1]

    def x(at: float) -> float:
        return round((at - low) / (high - low) * _WIDTH, 1)

    def y(at: float) -> float:
        return round((_TOP - at) / _TOP * _HEIGHT / 2, 1)

    marks = [
        f'<rect x="{x(start)}" y="0" width="{round(x(stop) - x(start), 1)}" height="{_HEIGHT}" '
        'fill="currentColor" opacity="0.08"/>'
        for part in (report.value, report.gradient)
        for start, stop in ((low, part.clamps[0]), (part.clamps[1], high))
        if low <= start < stop <= high
    ]
    for path in (f"M0 {y(0)}H{_WIDTH}", f"M{x(0)} 0V{_HEIGHT}"):
        marks.append(f'<path d="{path}" stroke="currentColor" opacity="0.4"/>')
    for place, (name, (colour, dash)) in enumerate(_INK.items()):
        if name in report.curve:
            path, pen = "", "M"
            for at, height in zip(l, report.curve[name], strict=True):
                inside = abs(height) <= _TOP  # also false for NaN
                path += f"{pen}{x(at)} {y(height)}" if inside else ""
                pen = "L" if inside else "M"
            marks.append(
                f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2" '
                f'stroke-dasharray="{dash}"/><text x="{70 * place}" y="{_HEIGHT + 16}" '
                f'fill="{colour}" font-size="13">{name}</text>'
            )
    text = f"log r from {low:g} to {high:g} nats"
    marks.append(
        f'<text x="{_WIDTH}" y="{_HEIGHT + 16}" fill="currentColor" font-size="13" '
        f'text-anchor="end">{text}</text>'
    )
    label = f"Value and weight on the score against {text}, heights up to {_TOP:g}"
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {_WIDTH} {_HEIGHT + _BELOW}" '
        f'width="{_WIDTH}" style="max-width:100%;height:auto">{"".join(marks)}</svg>'
    )
