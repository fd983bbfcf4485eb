"""Notebooks in the build: computed numbers in the prose, and no number older than the code.

Each notebook gets hidden cells for the build only. The first holds the notebook's key, so the
execution cache, which compares code cells, finds a record only where nothing that counts changed.
The others compute the expressions of the prose (`evals`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import nbformat
from evals import BadExpression, replace_evals
from jupyter_cache import get_cache
from source_keys import notebook_key, scale
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

ROOT = Path(__file__).resolve().parents[2]


def is_notebook(env: BuildEnvironment, docname: str) -> bool:
    return env.doc2path(docname).endswith(".ipynb")


def key_of(notebook: nbformat.NotebookNode, config) -> str:
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return notebook_key(code, Path(config.kl_package), Path(config.kl_lock), scale())


def outdated(app: Sphinx, env: BuildEnvironment, added, changed, removed) -> list[str]:
    """Notebooks whose key is not the one that they were last read with."""
    known = getattr(env, "kl_keys", {})
    waiting = {name for name in env.found_docs if is_notebook(env, name)} - set(added)
    return [
        name
        for name in waiting
        if known.get(name) != key_of(nbformat.read(env.doc2path(name), as_version=4), app.config)
    ]


def prepare(app: Sphinx, docname: str, source: list[str]) -> None:
    """Rewrite a notebook's text before MyST-NB reads it; the file stays as it is."""
    if not is_notebook(app.env, docname):
        return
    notebook = nbformat.reads(source[0], as_version=4)
    key = key_of(notebook, app.config)
    try:
        source[0] = nbformat.writes(with_hidden_cells(notebook, key))
    except BadExpression as error:
        raise ExtensionError(f"{docname}: {error}") from None
    if not hasattr(app.env, "kl_keys"):
        app.env.kl_keys = {}
    app.env.kl_keys[docname] = key


# In prose a minus is a minus, not a hyphen.
PREAMBLE = """
import re as _re
from myst_nb import glue as _glue
_in_prose = lambda value: _re.sub(r"(?<![\\w-])-(?=[.\\d])", "\u2212", str(value))
"""


def with_hidden_cells(notebook: nbformat.NotebookNode, key: str) -> nbformat.NotebookNode:
    """The notebook with its key cell, and with each ``{eval}`` computed by a hidden cell.

    A role in a Markdown cell is computed just before that cell; one in a figure's caption, just
    after the cell that draws the figure.
    """
    first = f"# {key}\n{PREAMBLE}"
    cells, lines, names = [hidden_cell(first, "kl-key")], [1], itertools.count()
    for index, cell in enumerate(notebook.cells):
        wanted: dict[str, str] = {}
        paste = functools.partial(paste_later, wanted, names)
        if cell.cell_type == "markdown":
            cell.source = replace_evals(cell.source, paste)
        elif "caption" in cell.metadata.get("mystnb", {}).get("figure", {}):
            figure = cell.metadata["mystnb"]["figure"]
            figure["caption"] = replace_evals(figure["caption"], paste)
        group = [cell]
        if wanted:
            code = "\n".join(
                f'_glue("{name}", _in_prose({expression}), display=False)'
                for name, expression in wanted.items()
            )
            group.insert(cell.cell_type == "code", hidden_cell(code, f"kl-{next(iter(wanted))}"))
        cells += group
        # Warnings then name the cell of the author's notebook, not of this one.
        lines += [(index + 1) * 10000] * len(group)
    notebook.cells = cells
    notebook.metadata["source_map"] = lines
    return notebook


def paste_later(wanted: dict[str, str], names: Iterator[int], expression: str) -> str:
    """Note an expression under a new name; the value is the role that pastes it."""
    name = f"eval-{next(names)}"
    wanted[name] = expression
    return f"{{glue:text}}`{name}`"


def hidden_cell(code: str, name: str) -> nbformat.NotebookNode:
    cell = nbformat.v4.new_code_cell(code, metadata={"tags": ["remove-cell"]})
    cell["id"] = name
    return cell


def complete_executed(app: Sphinx, doctree) -> None:
    """Put the outputs into the executed notebook beside the pages.

    MyST-NB writes the notebook that it was given, so one that came from the cache has none.
    """
    if not is_notebook(app.env, app.env.docname):
        return
    path = Path(app.outdir).parent / "jupyter_execute" / f"{app.env.docname}.ipynb"
    cache = get_cache(app.env.mystnb_config.execution_cache_path)
    with contextlib.suppress(KeyError):  # not kept in the cache: it has its outputs
        _, merged = cache.merge_match_into_notebook(nbformat.read(path, as_version=4))
        nbformat.write(merged, path)


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
    app.add_config_value("kl_package", str(ROOT / "src" / "kllab"), "env")
    app.add_config_value("kl_lock", str(ROOT / "requirements.txt"), "env")
    app.connect("env-get-outdated", outdated)
    app.connect("source-read", prepare)
    app.connect("doctree-read", complete_executed)
    app.connect("build-finished", forget_failed_build)
    return {"version": "1", "env_version": 1, "parallel_read_safe": False}
