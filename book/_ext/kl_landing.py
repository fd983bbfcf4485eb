"""The first page: ``{live-figure}`` shows a browser figure, ``{chapter-claims}`` the contents.

Both are made from what the book already says: a figure with its picture comes from
``kllab.explorables``, a claim from the line below the title of its chapter.
On paper the first page is the title page, with the version and the day.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import nbformat
from docutils import nodes
from kl_version import day, version
from source_keys import reached
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "kllab"
TOC = ROOT / "_toc.yml"
CLAIM = re.compile(r"^\*The claim: (?P<claim>.+)\*$", re.MULTILINE)
PRINTED = ("singlehtml", "epub")


class LiveFigure(SphinxDirective):
    """A figure in its default state, by the name of its function in ``kllab.explorables``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from kllab import explorables

        for path in (*reached({"kllab.explorables"}, PACKAGE), Path(__file__)):
            self.env.note_dependency(str(path))
        name = self.arguments[0]
        if name not in explorables.__all__ or not name.islower():
            raise self.error(f"no browser figure {name!r}")
        figure = nodes.container(classes=["live-figure"])
        figure += nodes.raw("", getattr(explorables, name)().element(), format="html")
        return [figure]


class ChapterClaims(SphinxDirective):
    """One section a part, one line a chapter: its number, its title and its claim."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(TOC))
        self.env.note_dependency(__file__)
        return [self.part(caption, pages) for caption, pages in parts(self.env)]

    def part(self, caption: str, pages: list[str]) -> nodes.Node:
        section = nodes.section(ids=[nodes.make_id(caption)], names=[])
        section += nodes.title("", caption)
        lines = nodes.bullet_list(classes=["claims"])
        for page in pages:
            lines += nodes.list_item("", self.line(page))
        section += lines
        return section

    def line(self, page: str) -> nodes.paragraph:
        source = Path(self.env.doc2path(page))
        self.env.note_dependency(str(source))
        number = PurePosixPath(page).name[:2]
        link = addnodes.pending_xref(
            "",
            nodes.inline(classes=["xref", "doc"]),
            refdomain="std",
            reftype="doc",
            reftarget=f"/{page}",
            refexplicit=False,
            refwarn=True,
            refdoc=self.env.docname,
        )
        claim, messages = self.parse_inline(claim_of(source), lineno=self.lineno)
        return nodes.paragraph(
            "",
            "",
            nodes.inline("", f"{number} ", classes=["number"]),
            link,
            nodes.Text(" "),
            nodes.inline("", "", *claim, classes=["claim"]),
            *messages,
        )


def parts(env) -> Iterator[tuple[str, list[str]]]:
    """The parts of the table of contents that hold chapters, in order."""
    for tree in env.external_site_map.root.subtrees:
        pages = [page for page in tree.files() if page.startswith("notebooks/")]
        if pages:
            yield tree.caption, pages


def claim_of(notebook: Path) -> str:
    """The claim below a chapter's title, as Markdown that starts with a capital letter."""
    first = nbformat.read(notebook, as_version=4).cells[0].source
    found = CLAIM.search(first)
    if not found:
        raise ExtensionError(f"{notebook.name}: no line '*The claim: …*' below the title")
    claim = found["claim"]
    return claim[0].upper() + claim[1:]


def edition() -> str:
    """The version and the day of the build, as the title page has them."""
    return f"Version {version()}, {day(datetime.now(UTC))}"


def add_edition(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """On paper the version and the day stand below the promise."""
    if app.builder.name in PRINTED and docname == app.config.root_doc:
        promise = next(n for n in doctree.findall(nodes.paragraph) if "promise" in n["classes"])
        after = promise.parent.index(promise) + 1
        promise.parent[after:after] = [
            nodes.paragraph("", text, classes=["edition"])
            for text in (app.config.author, edition())
        ]


def add_styles(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """The first page's styles go to no other page; the one-page build begins with it."""
    if pagename == app.config.root_doc:
        app.add_css_file("css/landing.css")


def setup(app: Sphinx) -> dict:
    app.add_directive("live-figure", LiveFigure)
    app.add_directive("chapter-claims", ChapterClaims)
    app.connect("doctree-resolved", add_edition)
    app.connect("html-page-context", add_styles)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
