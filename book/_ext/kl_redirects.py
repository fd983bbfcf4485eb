"""Pages that moved, from ``book/redirects.toml``, written by sphinx-reredirects.

The list speaks of documents; here they become addresses that also work from a folder. A line that
would hide a page, lead nowhere or lead to another redirect stops the build.
"""

from __future__ import annotations

import posixpath
import tomllib
from collections.abc import Iterator, Set
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ConfigError

BOOK = Path(__file__).resolve().parents[1]
TEMPLATE = BOOK / "_templates" / "redirect.html"


def read_list(path: Path) -> dict[str, str]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def faults(moved: dict[str, str], documents: Set[str]) -> Iterator[str]:
    for old, new in moved.items():
        if old in documents:
            yield f"{old} is a page, and a redirect would hide it"
        if new.partition("#")[0] not in documents:
            yield f"{old} leads to {new}, which is no page"


def address(old: str, new: str) -> str:
    """Where a redirect points, seen from the folder of the old page."""
    page, hash_, section = new.partition("#")
    return posixpath.relpath(f"{page}.html", posixpath.dirname(old) or ".") + hash_ + section


def set_redirects(app: Sphinx, config) -> None:
    """Early, because Sphinx reads the whole book again where this value seems to change."""
    moved = read_list(Path(config.kl_redirects))
    config.redirects = {old: address(old, new) for old, new in moved.items()}
    config.redirect_html_template_file = str(TEMPLATE)


def check_redirects(app: Sphinx, env, documents: list[str]) -> None:
    path = Path(app.config.kl_redirects)
    found = list(faults(read_list(path), env.found_docs))
    if found:
        raise ConfigError(f"{path.name}: " + "; ".join(found))


def only_in_pages(app: Sphinx) -> list:
    """An EPUB has no old addresses. Late, so that Sphinx sees no changed value."""
    if app.builder.name != "html":
        app.config.redirects = {}
    return []


def setup(app: Sphinx) -> dict:
    app.setup_extension("sphinx_reredirects")
    app.add_config_value("kl_redirects", str(BOOK / "redirects.toml"), "")
    app.connect("config-inited", set_redirects)
    app.connect("env-before-read-docs", check_redirects)
    app.connect("html-collect-pages", only_in_pages, priority=400)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
