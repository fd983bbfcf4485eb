"""The book's index: terms lead to the section that explains them, and the search finds them first.

Sphinx' search prefers a page to others only by its titles and by its index. The terms stand in
``book/index-terms.toml``, not on the pages, so that the whole index can be read and changed at
once. The atlas adds its rows and the names of the frameworks.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from docutils import nodes
from source_keys import reached
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "kllab"
TERMS = ROOT / "book" / "index-terms.toml"
ATLAS_PAGE = "notebooks/14_atlas"


class IndexTerms(SphinxTransform):
    """Puts the terms of a page on its sections, before Sphinx collects the index."""

    default_priority = 800

    def apply(self, **_) -> None:
        page = self.env.docname
        places = places_of(page, Path(self.config.kl_terms))
        if places:
            self.env.note_dependency(self.config.kl_terms)
            sections = {name: s for s in self.document.findall(nodes.section) for name in s["ids"]}
        for anchor, terms in places.items():
            if anchor not in sections:
                raise ExtensionError(f"{self.config.kl_terms}: {page} has no section {anchor!r}")
            sections[anchor].insert(1, entry(terms, anchor))
        if page == ATLAS_PAGE:
            self.name_rows()

    def name_rows(self) -> None:
        """A row is found by its name, and a framework by its first row."""
        from kllab.atlas import ATLAS

        for path in (*reached({"kllab.atlas"}, PACKAGE), PACKAGE / "atlas.toml"):
            self.env.note_dependency(str(path))
        rows = {
            name: row
            for table in self.document.findall(nodes.table)
            for row in table.findall(nodes.row)
            for name in row["ids"]
        }
        frameworks = set()
        for found in ATLAS.values():
            anchor = nodes.make_id(f"atlas-{found.name}")
            terms = [found.name]
            if found.framework not in frameworks:
                frameworks.add(found.framework)
                terms.append(found.framework)
            first = next(rows[anchor].findall(nodes.paragraph))
            first.insert(0, entry(terms, anchor))


def places_of(page: str, path: Path) -> dict[str, list[str]]:
    """The terms of a page, by the section that they lead to."""
    folder, _, name = page.rpartition("/")
    return {
        anchor: terms
        for key, terms in tomllib.loads(path.read_text(encoding="utf-8")).get(folder, {}).items()
        for key_page, anchor in [key.split("#")]
        if key_page == name
    }


def pages_of(path: Path) -> Iterator[str]:
    """Every page that the list of terms names."""
    for folder, places in tomllib.loads(path.read_text(encoding="utf-8")).items():
        for key in places:
            yield f"{folder}/{key.split('#')[0]}"


def entry(terms: Iterable[str], anchor: str) -> addnodes.index:
    """A main entry for each term; the search puts others behind all pages."""
    return addnodes.index(entries=[("single", term, anchor, "main", None) for term in terms])


def check_pages(app: Sphinx, env) -> None:
    """A page that is not in the book would lose its terms in silence."""
    gone = set(pages_of(Path(app.config.kl_terms))) - env.found_docs
    if gone:
        raise ExtensionError(f"{app.config.kl_terms}: no page {', '.join(sorted(gone))}")


def add_script(app: Sphinx, pagename, templatename, context, doctree) -> None:
    if pagename == "search":
        app.add_js_file("js/search.js", loading_method="defer")


def setup(app: Sphinx) -> dict:
    app.add_config_value("kl_terms", str(TERMS), "env")
    app.add_transform(IndexTerms)
    app.connect("html-page-context", add_script)
    app.connect("env-check-consistency", check_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
