"""``{build-facts}``: when, where and with what this copy of the book was built.

``{run-times}``: when each notebook ran, and how long it took. MyST-NB measured that, and its own
table is too wide for a phone.
"""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from chapters import link
from docutils import nodes
from kl_version import commit, day, version
from myst_nb.sphinx_ import NbMetadataCollector
from source_keys import COMPUTES, scale
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

MODEL = re.compile(r"^model name\s*:\s*(.+?)\s*$", re.MULTILINE)


def built_from() -> str:
    """The commit, marked where files differ from it."""
    found = commit()
    if not found:
        return "not a Git checkout"
    return found.short + (", changed since" if found.changed else "")


def processor() -> str:
    """The model's name, where the system tells one."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        match = MODEL.search(cpuinfo.read_text(encoding="utf-8", errors="replace"))
        if match and match[1].lower() != "unknown":
            return match[1]
    return platform.processor() or platform.machine()


def device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def facts() -> list[tuple[str, str]]:
    now = datetime.now(UTC)
    return [
        ("Version", version()),
        ("Built", f"{day(now)}, {now:%H:%M} UTC"),
        ("Commit", built_from()),
        ("Scale (KLLAB_SCALE)", scale()),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("Processor", f"{processor()}, {os.cpu_count()} cores"),
        ("PyTorch computes on", device()),
        *((name, metadata.version(name)) for name in (*COMPUTES, "jupyter-book")),
    ]


class BuildFacts(SphinxDirective):
    """A two-column table of facts about this build."""

    def run(self) -> list[nodes.Node]:
        body = nodes.tbody()
        for name, value in facts():
            body += row(name, value)
        group = nodes.tgroup("", nodes.colspec(colwidth=30), nodes.colspec(colwidth=70), cols=2)
        group += nodes.thead("", row("What", "Value"))
        group += body
        return [nodes.table("", group)]


def row(*texts: str) -> nodes.row:
    return table_row(*([nodes.Text(text)] for text in texts))


class Placeholder(nodes.General, nodes.Element):
    """Where the times stand once every notebook has run."""


class RunTimes(SphinxDirective):
    """A table of notebooks: when each last ran, and for how long."""

    def run(self) -> list[nodes.Node]:
        return [Placeholder()]


class WriteRunTimes(SphinxPostTransform):
    default_priority = 8  # before references are resolved

    def run(self, **kwargs) -> None:
        for place in list(self.document.findall(Placeholder)):
            place.replace_self(self.table())

    def table(self) -> nodes.table:
        found = {
            name: data["exec_data"]
            for name, data in sorted(NbMetadataCollector.get_doc_data(self.env).items())
            if data.get("exec_data")
        }
        body, total = nodes.tbody(), 0.0
        for name, data in found.items():
            ran = day(datetime.fromtimestamp(data["mtime"]))
            seconds = data["runtime"] or 0.0
            total += seconds
            body += table_row([self.chapter(name)], [nodes.Text(ran)], [seconds_text(seconds)])
        body += table_row([nodes.Text("Together")], [], [seconds_text(total)])
        titles = ([nodes.Text(title)] for title in ("Chapter", "Ran on", "Seconds"))
        widths = (nodes.colspec(colwidth=width) for width in (55, 28, 17))
        group = nodes.tgroup("", *widths, cols=3)
        group += nodes.thead("", table_row(*titles))
        group += body
        return nodes.table("", group, classes=["run-times"])

    def chapter(self, name: str) -> nodes.Node:
        number = Path(name).name.partition("_")[0]
        title = f"{number} {self.env.titles[name].astext()}"
        return link(self.env, name, title)


def seconds_text(seconds: float) -> nodes.Text:
    return nodes.Text(f"{seconds:.0f}")


def table_row(*cells: list[nodes.Node]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def outdated(app: Sphinx, env, added, changed, removed) -> list[str]:
    """A page with build facts is read again in each build."""
    return [name for name in env.found_docs if name == "book/status"]


def setup(app: Sphinx) -> dict:
    app.add_node(Placeholder)
    app.add_directive("build-facts", BuildFacts)
    app.add_directive("run-times", RunTimes)
    app.add_post_transform(WriteRunTimes)
    app.connect("env-get-outdated", outdated)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
