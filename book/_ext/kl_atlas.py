"""``{atlas-table}``: all rows of ``kllab.ATLAS``; ``{atlas-row}`` is one, ``{chapter}`` a number.

The table is complete without scripts; ``atlas.js`` lets a reader filter and sort it. Both files go
to the pages that need them, and to no other.
"""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from kl_reports import paragraph, row, table_of
from source_keys import reached
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective, SphinxRole

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "kllab"
TOC = ROOT / "_toc.yml"

COLUMNS = (  # title, and the width that it wants
    ("Formula", 22),
    ("Used as", 20),
    ("Estimates", 12),
    ("Pushes on", 11),
    ("Tokens; clamp", 13),
    ("Audit", 15),
    ("See", 7),
)
VERDICTS = {True: "agrees", False: "differs", None: "not judged"}
NO_TERMS = {"zero": "nothing", "unknown": "no known divergence", "not_asked": "—"}


def written(part: str | dict[str, float]) -> str:
    """What an audit finds, in symbols."""
    from kllab._terms import in_symbols

    return NO_TERMS[part] if isinstance(part, str) else in_symbols(part)


def agrees(entry) -> bool | None:
    """Whether a row is what it is meant as, from what the audit finds in it."""
    metric = entry.usage == "metric"
    found = entry.finds["value" if metric else "gradient"]
    if found == "unknown":
        return None
    if found == "zero" or set(found) != {entry.claim}:
        return False
    return found[entry.claim] == 1 if metric else found[entry.claim] > 0


def atlas_files() -> tuple[Path, ...]:
    """What a page with parts of the atlas depends on."""
    return *reached({"kllab.atlas"}, PACKAGE), PACKAGE / "atlas.toml", TOC, Path(__file__)


def chapter_page(env: BuildEnvironment, number: int) -> str | None:
    """The document of a chapter, where there is one already."""
    names = sorted(n for n in env.found_docs if n.startswith(f"notebooks/{number:02d}_"))
    if len(names) > 1:
        raise ExtensionError(f"two chapters {number}: {', '.join(names)}")
    return names[0] if names else None


def chapter_link(env: BuildEnvironment, docname: str, number: int, text: str) -> nodes.Node:
    """A link that says ``text``, or the text alone while the chapter is not written."""
    page = chapter_page(env, number)
    words = nodes.inline("", text, classes=["doc"])
    if page is None:
        return words
    return addnodes.pending_xref(
        "",
        words,
        refdomain="std",
        reftype="doc",
        reftarget=f"/{page}",
        refexplicit=True,
        refwarn=True,
        refdoc=docname,
    )


class Chapter(SphinxRole):
    """``{chapter}`8```: "chapter 08", linked where the chapter is in the book."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        number = int(self.text)
        self.env.note_dependency(str(TOC))
        text = f"chapter {number:02d}"
        return [chapter_link(self.env, self.env.docname, number, text)], []


def anchor(name: str) -> str:
    """Where a row of the table stands on its page, for a link to it."""
    return nodes.make_id(f"atlas-{name}")


class AtlasRow(SphinxRole):
    """``{atlas-row}`verl/k1```: a row's name, linked to it, and what the audit finds."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        from kllab.atlas import ATLAS

        for path in atlas_files():
            self.env.note_dependency(str(path))
        if self.text not in ATLAS:
            raise ExtensionError(f"{self.env.docname}: no row {self.text} in the atlas")
        entry = ATLAS[self.text]
        found = f" estimates {written(entry.finds['value'])}"
        if entry.usage != "metric":
            found += f", pushes on {written(entry.finds['gradient'])}"
        link = addnodes.pending_xref(
            "",
            nodes.inline("", self.text),
            refdomain="std",
            reftype="ref",
            reftarget=anchor(self.text),
            refexplicit=True,
            refwarn=True,
            refdoc=self.env.docname,
        )
        return [link, nodes.Text(found)], []


class AtlasTable(SphinxDirective):
    """One row a formula: what it is meant as, what it is, and where both are explained."""

    def run(self) -> list[nodes.Node]:
        for path in atlas_files():
            self.env.note_dependency(str(path))
        from kllab.atlas import ATLAS

        body = nodes.tbody()
        for entry in ATLAS.values():
            body += row(*self.cells(entry))
            body[-1]["names"].append(anchor(entry.name))
            self.state.document.note_explicit_target(body[-1])
        titles, widths = zip(*COLUMNS, strict=True)
        table = table_of(titles, body, widths)
        table["classes"].append("atlas")
        return [table]

    def cells(self, entry) -> list[list[nodes.Node]]:
        lines = f"line{'s' * (not entry.lines.isdigit())} {entry.lines}"
        place = f"{Path(entry.file).name}, {lines}, at {entry.commit[:9]}"
        number = f"{entry.chapter:02d}"
        source = nodes.reference("", "", nodes.literal("", entry.name), refuri=entry.url)
        codes = [
            part
            for code in entry.finds["codes"]
            for part in (nodes.Text(" "), nodes.literal("", code))
        ]
        cells = [
            [paragraph([source]), nodes.paragraph("", place, classes=["place"])],
            [
                nodes.paragraph("", entry.placement),
                nodes.paragraph("", f"meant as {entry.direction}", classes=["place"]),
            ],
            [nodes.paragraph("", written(entry.finds["value"]))],
            [nodes.paragraph("", written(entry.finds["gradient"]))],
            [nodes.paragraph("", entry.aggregation + clamp(entry.clamp))],
            [paragraph([nodes.strong("", VERDICTS[agrees(entry)]), *codes])],
            [paragraph([chapter_link(self.env, self.env.docname, entry.chapter, number)])],
        ]
        if entry.note:
            cells[0].append(nodes.paragraph("", entry.note, classes=["place"]))
        return cells


def clamp(text: str) -> str:
    return "" if text == "none" else f"; {text}"


def add_files(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """The script and the styles, on pages with the table or the sheet."""
    classes = {
        name
        for node in (doctree.findall(nodes.Element) if doctree else ())
        for name in node.get("classes", ())
    }
    if "atlas" in classes:
        app.add_css_file("css/atlas.css")
        app.add_js_file("js/atlas.js", loading_method="defer")
    if "sheet" in classes:
        app.add_css_file("css/sheet.css")


def setup(app: Sphinx) -> dict:
    app.add_directive("atlas-table", AtlasTable)
    app.add_role("atlas-row", AtlasRow())
    app.add_role("chapter", Chapter())
    app.connect("html-page-context", add_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
