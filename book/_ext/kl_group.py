"""The pages of the reading group, which take from a chapter what the chapter already says.

``{chapter-facts} NN`` shows a chapter's claim, needs and time.  ``{question} N`` is its N-th
question to discuss, or one of the page's own, above a folded answer.  ``{agenda} MINUTES`` is a
list of times that must add up.  The roles ``{reading}`` and ``{minutes}`` say how long chapters
take to read, ``{show}`` leads to a browser figure in a state, and ``{still}`` is its picture.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path, PurePosixPath
from typing import ClassVar
from urllib.parse import quote

from chapters import browser_figure, chapter, parts
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import ReferenceRole, SphinxDirective, SphinxRole

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("warm-up", "core", "stretch", "open")
LINE = re.compile(r"^(?P<minutes>\d+): (?P<what>.+)$")
TARGET = re.compile(r"^(?P<chapter>\d\d)/(?P<name>[a-z-]+)\?(?P<state>.+)$")
PLACES = {"atlas": "the-table"}  # a figure stands in the section "Try it"


def moved(markdown: str) -> str:
    """Markdown of a chapter, for a page in ``book/group``."""
    return re.sub(r"\]\((?=\d\d_\w+\.ipynb)", "](../../notebooks/", markdown)


def part_of(env, page: str) -> str:
    """The caption of the part that holds a chapter."""
    return next((caption for caption, pages in parts(env) if page in pages), "")


class ChapterFacts(SphinxDirective):
    """A box with what the chapter says of itself."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        told = chapter(self.arguments[0])
        for path in (told.path, Path(__file__)):
            self.env.note_dependency(str(path))
        lines = (
            f"**Read before:** [{told.title}](../../notebooks/{told.path.name})"
            f" ({part_of(self.env, told.page)})",
            f"**The claim:** {moved(told.claim)}",
            f"**It needs** {moved(told.needs)}",
            f"**It helps** {moved(told.helps)}",
            f"**Time alone:** {moved(told.time)}",
        )
        box = nodes.admonition(classes=["tip", "chapter-facts"])
        box += nodes.title("", "The chapter")
        box += self.parse_text_to_nodes("\n\n".join(lines))
        return [box]


class Agenda(SphinxDirective):
    """Lines ``MINUTES: what`` whose minutes are those of the argument, as a table."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(__file__)
        items = agenda(self.content)
        total = sum(minutes for minutes, _ in items)
        if str(total) != self.arguments[0]:
            raise self.error(f"the agenda has {total} minutes, not {self.arguments[0]}")
        body, start = nodes.tbody(), 0
        for minutes, what in items:
            when = nodes.paragraph("", f"{start}–{start + minutes}")
            body += row([when], self.parse_text_to_nodes(what))
            start += minutes
        group = nodes.tgroup("", *(nodes.colspec(colwidth=w) for w in (15, 85)), cols=2)
        head = ([nodes.paragraph("", title)] for title in ("Minutes", "What happens"))
        group += nodes.thead("", row(*head))
        group += body
        return [nodes.table("", group, classes=["colwidths-given", "agenda"])]


def agenda(lines) -> list[tuple[int, str]]:
    """Minutes and what happens in them, from lines ``5: what``."""
    found = [LINE.match(line) for line in lines if line.strip()]
    if not found or None in found:
        raise ExtensionError(f"an agenda needs lines like '5: what', not {list(lines)}")
    return [(int(match["minutes"]), match["what"]) for match in found]


def row(*cells: list[nodes.Node]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", *cell) for cell in cells))


class Question(SphinxDirective):
    """A question, what it is for, and the answer, folded as a solution is."""

    optional_arguments = 1
    has_content = True
    option_spec: ClassVar[dict] = {
        "kind": lambda text: directives.choice(text, KINDS),
        "purpose": directives.unchanged_required,
        "ask": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        self.assert_has_content()
        if bool(self.arguments) == ("ask" in self.options) or "purpose" not in self.options:
            raise self.error("a question has a number or :ask:, and a :purpose:")
        self.env.note_dependency(__file__)
        kind = self.options["kind"]
        asked = moved(self.theirs()) if self.arguments else self.options["ask"]
        box = nodes.container(classes=["group-question"])
        number = f", question {self.arguments[0]}" if self.arguments else ""
        box += self.parse_text_to_nodes(f"**{kind.capitalize()}{number}.** {asked}")
        purpose = nodes.container(classes=["purpose"])
        purpose += self.parse_text_to_nodes(f"*Purpose:* {self.options['purpose']}")
        box += purpose
        answer = nodes.admonition(classes=["solution", "dropdown"])
        answer += nodes.title("", "Answer")
        answer += self.parse_content_to_nodes()
        return [box, answer]

    def theirs(self) -> str:
        """The chapter's own question of this number."""
        told = chapter(PurePosixPath(self.env.docname).name)
        self.env.note_dependency(str(told.path))
        number = int(self.arguments[0])
        if not 1 <= number <= len(told.questions):
            raise self.error(f"{told.path.name} has no question {number}")
        return told.questions[number - 1]


class Reading(SphinxRole):
    """``01 02``: the two chapters' titles, linked, and how many minutes they ask for."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        self.env.note_dependency(__file__)
        out: list[nodes.Node] = []
        told = [chapter(number) for number in self.text.split()]
        for place, one in enumerate(told):
            self.env.note_dependency(str(one.path))
            out.append(nodes.Text("; " if place else ""))
            out.append(link(f"{one.path.stem[:2]} {one.title}", one.page))
        out.append(nodes.Text(f": {sum(one.minutes for one in told)} minutes"))
        return out, []


class Minutes(SphinxRole):
    """``01 02``: how many minutes these chapters ask for."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        told = [chapter(number) for number in self.text.split()]
        for path in (*(one.path for one in told), Path(__file__)):
            self.env.note_dependency(str(path))
        return [nodes.Text(str(sum(one.minutes for one in told)))], []


class Show(ReferenceRole):
    """``words <NN/name?state>``: a link to the figure ``name`` of chapter NN in that state."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        self.env.note_dependency(__file__)
        match = TARGET.match(self.target)
        if not match or not self.has_explicit_title:
            raise ExtensionError(f"{self.env.docname}: no link to a figure: {self.text!r}")
        state, name = match["state"], match["name"]
        # As explorables/kit/link.js writes it, but for the few signs that HTML wants escaped.
        query = state if name in PLACES else f"fig-{name}={quote(state, safe=':,;*-/.()')}"
        page = chapter(match["chapter"]).page
        return [link(self.title, page, query, PLACES.get(name, "try-it"))], []


def link(text: str, page: str, query: str = "", section: str = "") -> nodes.reference:
    """A link whose address `point_links` fills in, when it is known where the pages lie."""
    words = nodes.inline("", text)
    found = nodes.reference("", "", words, internal=True, refuri="")
    found["kl_page"], found["kl_query"], found["kl_section"] = page, query, section
    return found


def point_links(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Addresses of the links; on paper a figure has no state, and the link leads to its chapter."""
    for node in doctree.findall(nodes.reference):
        if "kl_page" not in node:
            continue
        uri = app.builder.get_relative_uri(docname, node["kl_page"])
        if app.builder.name == "html" and node["kl_query"]:
            uri += f"?{node['kl_query']}#{node['kl_section']}"
        node["refuri"] = uri


class Still(SphinxDirective):
    """The picture of a browser figure, by its function in ``kllab.explorables`` and arguments."""

    required_arguments = 1
    option_spec: ClassVar[dict] = {"settings": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(__file__)
        made = browser_figure(self, **settings(self.options.get("settings", "")))
        picture = nodes.container(classes=["still"])
        picture += nodes.raw("", made.fallback, format="html")
        return [picture]


def settings(text: str) -> dict[str, object]:
    """``mean=1.0, n=4`` as arguments; nothing but literals."""
    call = ast.parse(f"f({text})", mode="eval").body
    return {word.arg: ast.literal_eval(word.value) for word in call.keywords}


def add_styles(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """The styles of these pages go to no other page; the one-page build holds all."""
    if pagename.startswith("book/group/") or app.builder.name == "singlehtml":
        app.add_css_file("css/group.css")


def setup(app: Sphinx) -> dict:
    app.add_directive("chapter-facts", ChapterFacts)
    app.add_directive("agenda", Agenda)
    app.add_directive("question", Question)
    app.add_directive("still", Still)
    app.add_role("reading", Reading())
    app.add_role("minutes", Minutes())
    app.add_role("show", Show())
    app.connect("doctree-resolved", point_links)
    app.connect("html-page-context", add_styles)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
