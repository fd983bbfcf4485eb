"""Docstrings of the package, as they are written, turned into reStructuredText for the reference.

They have NumPy's sections, but prose where NumPy has a type: shapes, units and ranges say more
about a tensor than its class. So types are read from signatures, and a section becomes a heading
with a definition list, without guessing at cross-references.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sphinx.application import Sphinx

CODE = re.compile(r"(``.*?``)")
UNDERLINE = re.compile(r"-{3,}\s*")
ITEM = re.compile(r"(?P<name>[\w*][\w*., ]*?) : (?P<text>.*)")
LISTS = {"Parameters", "Attributes", "Raises"}


def to_rst(lines: list[str]) -> list[str]:
    """The docstring's lines with sections as bold headings and named items as definitions."""
    out: list[str] = []
    for title, body in sections([keep_bars(line) for line in lines]):
        if title:
            out += ["", f"**{title}**", ""]
        out += list(definitions(body)) if title in LISTS else body
    return [*out, ""]


def sections(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """(title, lines) for each section; the part before the first has an empty title."""
    title, body = "", []
    for number, line in enumerate(lines):
        after = lines[number + 1] if number + 1 < len(lines) else ""
        if line and not line[0].isspace() and UNDERLINE.fullmatch(after):
            yield title, body
            title, body = line.strip(), []
        elif not (UNDERLINE.fullmatch(line) and not body and title):
            body.append(line)
    yield title, body


def definitions(lines: list[str]) -> Iterator[str]:
    for line in lines:
        item = ITEM.fullmatch(line)
        if item:
            yield from ("", f"``{item['name']}``", f"    {item['text']}")
        else:
            yield line


def keep_bars(line: str) -> str:
    """A bar is an absolute value or a condition, not a substitution; the package has none."""
    if line.lstrip().startswith((">>>", "...")):
        return line
    parts = CODE.split(line)
    parts[::2] = [part.replace("|", "\\|") for part in parts[::2]]
    return "".join(parts)


def process(app: Sphinx, what, name, obj, options, lines: list[str]) -> None:
    lines[:] = to_rst(lines)


def setup(app: Sphinx) -> dict:
    app.connect("autodoc-process-docstring", process)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
