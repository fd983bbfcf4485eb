"""The repository's address, from one place: the environment variable KLLAB_REPOSITORY.

Without it no page has a repository, edit, issue, Binder or Colab button. With it, Colab opens
copies of the notebooks whose first cell installs the package from that address; the workflow
publishes them with the site in the branch gh-pages.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from urllib.parse import urlencode

from sphinx.application import Sphinx
from sphinx.errors import ConfigError

VARIABLE = "KLLAB_REPOSITORY"
ADDRESS = re.compile(r"https://github\.com/(?P<name>[\w.-]+/[\w.-]+?)(\.git)?/?")
REQUIREMENT = "kllab[book]"  # what a notebook's first cell installs where the package is missing
FOLDER, BRANCH = "colab", "gh-pages"
PREVIEW = "KLLAB_PREVIEW"  # PR-12 where the pages are a preview of change 12, in preview/PR-12
BUTTONS = ("use_repository_button", "use_issues_button", "use_edit_page_button")


def repository_name() -> str | None:
    """``owner/name`` from the environment, or None."""
    value = os.environ.get(VARIABLE, "").strip()
    if not value:
        return None
    match = ADDRESS.fullmatch(value)
    if not match:
        raise ConfigError(f"{VARIABLE}: expected https://github.com/OWNER/NAME, got {value!r}")
    return match["name"]


def issue_form(form: str, **fields: str) -> str | None:
    """The address of a form of .github/ISSUE_TEMPLATE with fields filled in, by their ids."""
    name = repository_name()
    if not name:
        return None
    return f"https://github.com/{name}/issues/new?{urlencode({'template': form, **fields})}"


def configure(app: Sphinx, config) -> None:
    name = repository_name()
    options = config.html_theme_options
    options["repository_url"] = f"https://github.com/{name}" if name else ""
    options.update(dict.fromkeys(BUTTONS, bool(name)))
    options["launch_buttons"] = (
        {
            "notebook_interface": "jupyterlab",
            "binderhub_url": "https://mybinder.org",
            "colab_url": "https://colab.research.google.com",
        }
        if name
        else {}
    )


def preview_name() -> str | None:
    """``PR-12`` from the environment, or None where the pages are the book."""
    value = os.environ.get(PREVIEW, "").strip()
    if value and not re.fullmatch(r"PR-[1-9][0-9]*", value):
        raise ConfigError(f"{PREVIEW}: expected PR-NUMBER, got {value!r}")
    return value or None


def point_colab_at_copies(app: Sphinx, pagename, templatename, context, doctree) -> None:
    name, preview = repository_name(), preview_name()
    folder = f"preview/{preview}/{FOLDER}" if preview else FOLDER
    for group in context.get("header_buttons", []) if name else []:
        for button in group.get("buttons", []):
            if button.get("text") == "Colab":
                button["url"] = (
                    f"https://colab.research.google.com/github/{name}/blob/{BRANCH}"
                    f"/{folder}/{Path(pagename).name}.ipynb"
                )


def write_copies(app: Sphinx, exception: Exception | None) -> None:
    if exception or app.builder.name != "html":
        return
    name, target = repository_name(), Path(app.outdir) / FOLDER
    shutil.rmtree(target, ignore_errors=True)  # an earlier build may have had another address
    if not name:
        return
    target.mkdir()
    for docname in sorted(app.env.found_docs):
        path = Path(app.env.doc2path(docname))
        if path.suffix == ".ipynb":
            copy = for_colab(path.read_text(encoding="utf-8"), name)
            (target / path.name).write_text(copy, encoding="utf-8")


def for_colab(notebook: str, name: str) -> str:
    """A notebook's JSON with the address of ``owner/name`` in its first code cell."""
    preview = preview_name()
    # The change itself, which GitHub keeps under this name also after its branch is gone.
    where = f"{name}@refs/pull/{preview.removeprefix('PR-')}/head" if preview else name
    # Inside JSON a quote is escaped, so the requirement stands between two backslashes.
    return notebook.replace(
        f'\\"{REQUIREMENT}\\"', f'\\"{REQUIREMENT} @ git+https://github.com/{where}\\"', 1
    )


def setup(app: Sphinx) -> dict:
    app.connect("config-inited", configure)
    app.connect("html-page-context", point_colab_at_copies, priority=900)
    app.connect("build-finished", write_copies)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
