"""What the extensions share: what a chapter says of itself, links to it, a browser figure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from docutils import nodes
from source_keys import reached
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
PACKAGE = ROOT / "src" / "kllab"
WORDS = {"five": 5, "ten": 10, "fifteen": 15, "twenty": 20, "thirty": 30}
CLAIM = re.compile(r"^\*The claim: (.+)\*$", re.MULTILINE)


@dataclass(frozen=True)
class Chapter:
    """What a chapter says of itself, as Markdown; links in it start at ``notebooks/``."""

    path: Path
    title: str
    claim: str
    needs: str
    helps: str
    time: str
    minutes: int
    questions: tuple[str, ...]

    @property
    def page(self) -> str:
        return f"notebooks/{self.path.stem}"


def chapter(number: str) -> Chapter:
    """The chapter whose file starts with ``number``; an error says what it does not hold."""
    found = list(NOTEBOOKS.glob(f"{number}_*.ipynb"))
    if len(found) != 1:
        raise ExtensionError(f"no chapter {number!r}")
    path = found[0]
    cells = nbformat.read(path, as_version=4).cells
    first = cells[0].source

    def part(pattern: str, text: str = first) -> str:
        match = re.search(pattern, text, re.MULTILINE)
        if not match:
            raise ExtensionError(f"{path.name}: nothing matches {pattern!r}")
        return match[1]

    time = part(r"^\*\*Time:\*\* (.+)$")
    last = next((c.source for c in cells if c.source.startswith("## Questions to discuss")), "")
    return Chapter(
        path,
        title=part(r"^# (.+)$"),
        claim=claim_of(path),
        needs=part(r"\*\*You need\*\* (.+?) \*\*It helps\*\*"),
        helps=part(r"\*\*It helps\*\* (.+)$"),
        time=time,
        minutes=in_digits(part(r"(\w+) (?:minutes to read|for the page)", time)),
        questions=tuple(re.findall(r"^\d+\. (.+)$", last, re.MULTILINE)),
    )


def claim_of(notebook: Path) -> str:
    """The claim below a chapter's title, as Markdown that starts with a capital letter."""
    found = CLAIM.search(nbformat.read(notebook, as_version=4).cells[0].source)
    if not found:
        raise ExtensionError(f"{notebook.name}: no line '*The claim: …*' below the title")
    return found[1][0].upper() + found[1][1:]


def in_digits(word: str) -> int:
    """A number as a chapter writes it: 30, or fifteen."""
    return int(word) if word.isdigit() else WORDS[word]


def parts(env) -> Iterator[tuple[str, list[str]]]:
    """The parts of the table of contents that hold chapters, in order."""
    for tree in env.external_site_map.root.subtrees:
        pages = [page for page in tree.files() if page.startswith("notebooks/")]
        if pages:
            yield tree.caption, pages


def link(env, page: str, text: str = "") -> addnodes.pending_xref:
    """A link to a page, by its title unless there is another text."""
    return addnodes.pending_xref(
        "",
        nodes.inline("", text, classes=["xref", "doc"]),
        refdomain="std",
        reftype="doc",
        reftarget=f"/{page}",
        refexplicit=bool(text),
        refwarn=True,
        refdoc=env.docname,
    )


def browser_figure(directive: SphinxDirective, **settings):
    """The figure that a directive's argument names, as ``kllab.explorables`` makes it."""
    from kllab import explorables

    for path in (*reached({"kllab.explorables"}, PACKAGE), Path(__file__)):
        directive.env.note_dependency(str(path))
    name = directive.arguments[0]
    if name not in explorables.__all__ or not name.islower():
        raise directive.error(f"no browser figure {name!r}")
    return getattr(explorables, name)(**settings)
