"""``{build-facts}``: when, where and with what this copy of the book was built."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from docutils import nodes
from kl_version import commit, day, version
from source_keys import COMPUTES, scale
from sphinx.application import Sphinx
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
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", text)) for text in texts))


def outdated(app: Sphinx, env, added, changed, removed) -> list[str]:
    """A page with build facts is read again in each build."""
    return [name for name in env.found_docs if name == "book/status"]


def setup(app: Sphinx) -> dict:
    app.add_directive("build-facts", BuildFacts)
    app.connect("env-get-outdated", outdated)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
