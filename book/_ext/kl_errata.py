"""``{errata}``: the entries of ``book/errata.toml``; ``{report-forms}``: where to report.

An entry that does not say where, in which versions, what stood there, what is right and since when
stops the build.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Set
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from kl_repository import issue_form
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

LIST = Path(__file__).resolve().parents[1] / "errata.toml"
TEXTS = ("page", "said", "right", "since")
KEYS = {*TEXTS, "versions"}
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
FORMS = (
    ("mistake.yml", "a mistake in the text, a formula or a number"),
    ("figure.yml", "a browser figure that fails"),
    ("atlas.yml", "a row of the atlas that changed in its project"),
    ("verdict.yml", "a verdict of the audit that is false"),
)


def number(version: str) -> tuple[int, ...]:
    """A version as numbers, so that 0.10.0 comes after 0.9.0."""
    match = VERSION.fullmatch(version)
    if not match:
        raise ValueError(f"{version!r} is no version")
    return tuple(map(int, match.groups()))


def faults(entries: list[dict], documents: Set[str]) -> Iterator[str]:
    """What is wrong with the list, each in a line."""
    since = []
    for place, entry in enumerate(entries, start=1):
        try:
            yield from (f"entry {place}: {fault}" for fault in entry_faults(entry, documents))
            since.append(number(entry["since"]))
        except (KeyError, TypeError, ValueError) as error:
            yield f"entry {place}: {error}"
    if since != sorted(since, reverse=True):
        yield "the newest correction comes first"


def entry_faults(entry: dict, documents: Set[str]) -> Iterator[str]:
    if set(entry) != KEYS:
        yield f"keys missing or unknown: {', '.join(sorted(KEYS ^ set(entry)))}"
        return
    if not all(isinstance(word, str) for word in (*map(entry.get, TEXTS), *entry["versions"])):
        yield "every value is a text, and versions are a list of texts"
        return
    yield from (f"{key} is empty" for key in TEXTS if not entry[key].strip())
    if entry["page"] not in documents:
        yield f"{entry['page']} is no page"
    if entry["said"].strip() == entry["right"].strip():
        yield "what it said and what is right are the same"
    if not entry["versions"]:
        yield "no version has it"
    if any(number(version) >= number(entry["since"]) for version in entry["versions"]):
        yield f"a version that has it comes after the correction in {entry['since']}"


def read_list(path: Path) -> list[dict]:
    return tomllib.loads(path.read_text(encoding="utf-8")).get("erratum", [])


def markdown(entry: dict) -> list[str]:
    """An entry as a term with two definitions, in MyST."""
    versions = ", ".join(entry["versions"])
    lines = [f"{{doc}}`/{entry['page']}`, in {versions}; right since {entry['since']}"]
    for opening, key in (("It said:", "said"), ("Right is:", "right")):
        first, *rest = f"{opening} {entry[key].strip()}".splitlines()
        lines += [f": {first}", *(f"  {line}" for line in rest), ""]
    return [*lines, ""]


class Errata(SphinxDirective):
    """Every known mistake of a released version, or a sentence that there is none."""

    def run(self) -> list[nodes.Node]:
        path = Path(self.config.kl_errata)
        self.env.note_dependency(str(path))
        entries = read_list(path)
        found = list(faults(entries, self.env.found_docs))
        if found:
            raise ExtensionError(f"{path.name}: " + "; ".join(found))
        lines = [line for entry in entries for line in markdown(entry)]
        if not lines:
            lines = ["No released version has a known error."]
        box = nodes.container()
        self.state.nested_parse(StringList(lines, path.name), 0, box)
        return box.children


class ReportForms(SphinxDirective):
    """One link a form, or where to look for the forms."""

    def run(self) -> list[nodes.Node]:
        found = nodes.bullet_list()
        for form, text in FORMS:
            address = issue_form(form)
            words = nodes.reference("", text, refuri=address) if address else nodes.Text(text)
            found += nodes.list_item("", nodes.paragraph("", "", words))
        if issue_form(FORMS[0][0]):
            return [nodes.paragraph("", "There is a form for each of these:"), found]
        start = "Open an issue in the repository that this copy comes from. It has a form for:"
        return [nodes.paragraph("", start), found]


def outdated(app: Sphinx, env, added, changed, removed) -> list[str]:
    """The repository's address comes from outside, so this page is read in each build."""
    return [name for name in env.found_docs if name == "book/errata"]


def setup(app: Sphinx) -> dict:
    app.add_config_value("kl_errata", str(LIST), "env")
    app.add_directive("errata", Errata)
    app.add_directive("report-forms", ReportForms)
    app.connect("env-get-outdated", outdated)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
