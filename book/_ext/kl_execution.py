"""Notebooks in the build: computed numbers in the prose, and no number older than the code.

Each notebook gets hidden cells for the build only. The first holds the notebook's key, so the
execution cache, which compares code cells, finds a record only where nothing that counts changed.
The others compute the expressions of the prose (`evals`).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import nbformat
from evals import BadExpression, replace_evals
from source_keys import notebook_key, scale
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "kllab"
LOCK = ROOT / "requirements.txt"


def is_notebook(env: BuildEnvironment, docname: str) -> bool:
    return env.doc2path(docname).endswith(".ipynb")


def key_of(notebook: nbformat.NotebookNode) -> str:
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return notebook_key(code, PACKAGE, LOCK, scale())


def outdated(app: Sphinx, env: BuildEnvironment, added, changed, removed) -> list[str]:
    """Notebooks whose key is not the one that they were last read with."""
    known = getattr(env, "kl_keys", {})
    waiting = {name for name in env.found_docs if is_notebook(env, name)} - set(added)
    return [
        name
        for name in waiting
        if known.get(name) != key_of(nbformat.read(env.doc2path(name), as_version=4))
    ]


def prepare(app: Sphinx, docname: str, source: list[str]) -> None:
    """Rewrite a notebook's text before MyST-NB reads it; the file stays as it is."""
    if not is_notebook(app.env, docname):
        return
    notebook = nbformat.reads(source[0], as_version=4)
    key = key_of(notebook)
    try:
        source[0] = nbformat.writes(with_hidden_cells(notebook, key))
    except BadExpression as error:
        raise ExtensionError(f"{docname}: {error}") from None
    if not hasattr(app.env, "kl_keys"):
        app.env.kl_keys = {}
    app.env.kl_keys[docname] = key


def with_hidden_cells(notebook: nbformat.NotebookNode, key: str) -> nbformat.NotebookNode:
    """The notebook with its key cell, and with each ``{eval}`` computed by a hidden cell.

    A role in a Markdown cell is computed just before that cell; one in a figure's caption, just
    after the cell that draws the figure.
    """
    first = f"# {key}\nfrom myst_nb import glue as _glue"
    cells, lines, count = [hidden_cell(first, "kl-key")], [1], 0
    for index, cell in enumerate(notebook.cells):
        wanted: list[tuple[str, str]] = []

        def paste(expression: str, wanted=wanted) -> str:
            name = f"eval-{count + len(wanted)}"
            wanted.append((name, expression))
            return f"{{glue:text}}`{name}`"

        if cell.cell_type == "markdown":
            cell.source = replace_evals(cell.source, paste)
        else:
            figure = cell.metadata.get("mystnb", {}).get("figure", {})
            if "caption" in figure:
                figure["caption"] = replace_evals(figure["caption"], paste)
        # Warnings then name the cell of the author's notebook, not of this one.
        line = (index + 1) * 10000
        group = [cell]
        if wanted:
            code = "\n".join(f'_glue("{n}", "{{}}".format({e}), display=False)' for n, e in wanted)
            computing = hidden_cell(code, f"kl-{wanted[0][0]}")
            group = [computing, cell] if cell.cell_type == "markdown" else [cell, computing]
        cells += group
        lines += [line] * len(group)
        count += len(wanted)
    notebook.cells = cells
    notebook.metadata["source_map"] = lines
    return notebook


def hidden_cell(code: str, name: str) -> nbformat.NotebookNode:
    cell = nbformat.v4.new_code_cell(code, metadata={"tags": ["remove-cell"]})
    cell["id"] = name
    return cell


def forget_failed_build(app: Sphinx, exception: Exception | None) -> None:
    """Read every page again after a build that failed: its warnings must show again.

    Sphinx keeps pages that it read with warnings, and the next build would pass without them.
    Executed notebooks stay in their cache.
    """
    if exception is not None or (app.keep_going and app._warncount):
        with contextlib.suppress(FileNotFoundError):
            (Path(app.doctreedir) / "environment.pickle").unlink()


def setup(app: Sphinx) -> dict:
    os.environ["KLLAB_BOOK"] = "1"  # kernels inherit it: browser figures emit only their element
    app.connect("env-get-outdated", outdated)
    app.connect("source-read", prepare)
    app.connect("build-finished", forget_failed_build)
    return {"version": "1", "env_version": 1, "parallel_read_safe": False}
