"""The first page: ``{live-figure}`` shows a browser figure, ``{chapter-claims}`` the contents.

Both are made from what the book already says: a figure with its picture comes from
``kllab.explorables``, a claim from the line below the title of its chapter.
On paper the first page is the title page, with the version and the day.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from chapters import browser_figure, claim_of, link, parts
from docutils import nodes
from kl_version import day, version
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
TOC = ROOT / "_toc.yml"
PRINTED = ("singlehtml", "epub")


class LiveFigure(SphinxDirective):
    """A figure in its default state, by the name of its function in ``kllab.explorables``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(__file__)
        figure = nodes.container(classes=["live-figure"])
        figure += nodes.raw("", browser_figure(self).element(), format="html")
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
        claim, messages = self.parse_inline(claim_of(source), lineno=self.lineno)
        return nodes.paragraph(
            "",
            "",
            nodes.inline("", f"{number} ", classes=["number"]),
            link(self.env, page),
            nodes.Text(" "),
            nodes.inline("", "", *claim, classes=["claim"]),
            *messages,
        )


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
