"""Which book this is: version, commit and day of the build, at the foot of every page.

The version stands in pyproject.toml. Below it is a link to report a mistake on that page. A page
that did not change is not written again, so its foot gets the facts of this build afterwards.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from kl_repository import issue_form, preview_name, repository_name
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
ERRATA = "book/errata"
REPORT = "report-a-mistake"  # the section of that page
LINE = re.compile(r'<p class="kl-version">.*?</p>', re.DOTALL)


@dataclass(frozen=True)
class Commit:
    sha: str
    changed: bool  # files differ from it

    @property
    def short(self) -> str:
        return self.sha[:9]


def version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["version"]


def commit(folder: Path = ROOT) -> Commit | None:
    """The commit that is built; None where the folder is no Git checkout."""
    # A commit's name alone, never a tag: only it can be linked and tells two builds apart.
    command = ["git", "-C", str(folder), "describe", "--always", "--exclude=*", "--abbrev=40"]
    try:
        done = subprocess.run(
            [*command, "--dirty=+"], capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None
    text = done.stdout.strip()
    return Commit(text.removesuffix("+"), text.endswith("+"))


def day(time: datetime) -> str:
    return f"{time.day} {time:%B %Y}"


def version_line(found: Commit | None, now: datetime) -> str:
    """The foot's sentence, in HTML."""
    parts = [f"Version {escape(version())}"]
    if found:
        name = f"<code>{found.short}</code>"
        repository = repository_name()
        if repository:
            address = f"https://github.com/{repository}/commit/{found.sha}"
            name = f'<a href="{address}">{name}</a>'
        parts.append(f"commit {name}" + (" with changes" if found.changed else ""))
    parts.append(f"built on {day(now)}")
    preview = preview_name()
    note = f" <strong>Preview {preview}, not the published book.</strong>" if preview else ""
    return f'<p class="kl-version">{", ".join(parts)}.{note}</p>'


def report_address(page: str, found: Commit | None) -> str | None:
    """Where a mistake on a page is reported; None where the repository is not known."""
    where = f"version {version()}" + (f", commit {found.short}" if found else "")
    return issue_form("mistake.yml", title=f"{page}: ", page=page, version=where)


def add_foot(app: Sphinx, pagename, templatename, context, doctree) -> None:
    context["kl_version_line"] = version_line(app.kl_commit, app.kl_started)
    if app.builder.name != "html":  # one long page: nobody reads "this page" there
        return
    report = report_address(pagename, app.kl_commit)
    # From the page itself the way is "#".
    section = context["pathto"](ERRATA).removesuffix("#") + f"#{REPORT}"
    context["kl_report"] = report or section
    for group in context.get("header_buttons", []) if report else []:
        for button in group.get("buttons", []):
            if button.get("label") == "source-issues-button":
                button["url"] = escape(report)  # the theme writes it as it is


def note_build(app: Sphinx) -> None:
    app.kl_commit, app.kl_started = commit(), datetime.now(UTC)


def renew_lines(app: Sphinx, exception: Exception | None) -> None:
    """Pages of earlier builds say which build they now belong to."""
    if exception or app.builder.name != "html":
        return
    line = version_line(app.kl_commit, app.kl_started)
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        renewed = LINE.sub(lambda _: line, text)
        if renewed != text:
            # Sphinx compares times to see what is out of date, so the page keeps its own.
            times = page.stat()
            page.write_text(renewed, encoding="utf-8")
            os.utime(page, ns=(times.st_atime_ns, times.st_mtime_ns))


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", note_build)
    app.connect("html-page-context", add_foot, priority=950)  # after the theme's buttons
    app.connect("build-finished", renew_lines)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
