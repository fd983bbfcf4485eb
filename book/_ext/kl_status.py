"""``{build-facts}``: when, where and with what this copy of the book was built."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from docutils import nodes
from source_keys import COMPUTES, scale
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]


def commit() -> str:
    """The commit that was built, marked where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=, changed since"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return "not a Git checkout"
    return result.stdout.strip()


def device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def facts() -> list[tuple[str, str]]:
    return [
        ("Built", datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC")),
        ("Commit", commit()),
        ("Scale (KLLAB_SCALE)", scale()),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("Cores", str(os.cpu_count())),
        ("Device", device()),
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
