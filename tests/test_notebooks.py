"""What the built book's notebooks hold after their one execution, which is the build's.

Each chapter's own numbers are tested beside the functions that compute them; here stand the rules
that every chapter keeps.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest
from evals import replace_evals

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXECUTED = ROOT / "_build" / "jupyter_execute" / "notebooks"
PAGES = ROOT / "_build" / "html" / "notebooks"
SHOWN = ("image/svg+xml", "image/png")


@cache
def load(path: Path) -> dict:
    assert path.is_file(), f"{path.name} was not built: run `make book` first"
    return json.loads(path.read_text(encoding="utf-8"))


def text(cell: dict) -> str:
    return "".join(cell["source"])


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def glued(source: Path) -> dict[str, str]:
    """Computed expressions of the prose: name to the text that stands on the page."""
    outputs = load(EXECUTED / f"{source.stem}.glue.json")
    return {
        name: str(ast.literal_eval(output["data"]["text/plain"]))
        for name, output in outputs.items()
        if name.startswith("eval-")
    }


def expressions(notebook: dict) -> list[str]:
    found: list[str] = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            replace_evals(text(cell), lambda e: found.append(e) or "")
        caption = cell["metadata"].get("mystnb", {}).get("figure", {}).get("caption", "")
        replace_evals(caption, lambda e: found.append(e) or "")
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
class TestNotebook:
    def test_is_the_one_that_was_built(self, source):
        """Its code cells stand in the executed one, in order: the build is not older."""
        built = [text(cell) for cell in code_cells(load(EXECUTED / source.name))]
        hidden = [code for code in built if "_glue" in code]
        assert [code for code in built if code not in hidden] == [
            text(cell) for cell in code_cells(load(source))
        ]

    def test_ran_every_cell_in_order_without_an_error(self, source):
        cells = [c for c in code_cells(load(EXECUTED / source.name)) if text(c).strip()]
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
        kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
        assert "error" not in kinds

    def test_computed_every_number_of_the_prose(self, source):
        values = glued(source)
        assert len(values) == len(expressions(load(source)))
        assert values, "a chapter without a computed number"
        for name, value in values.items():
            assert value.strip(), name
            assert not re.search(r"\bnan\b|tensor\(|<\w+ object", value), f"{name}: {value}"

    def test_leaves_no_markup_on_the_page(self, source):
        """A role inside of a formula, say, is not computed but shown."""
        page = (PAGES / f"{source.stem}.html").read_text(encoding="utf-8")
        assert not re.search(r"\{(glue|eval|cite|ref|numref)\b", page)

    def test_writes_a_minus_and_not_a_hyphen(self, source):
        assert not [v for v in glued(source).values() if re.match(r"-[.\d]", v)]

    def test_describes_every_picture(self, source):
        pictures = 0
        for cell in code_cells(load(EXECUTED / source.name)):
            shown = [o for o in cell["outputs"] if set(o.get("data", {})) & set(SHOWN)]
            if not shown:
                continue
            pictures += len(shown)
            about = cell["metadata"].get("mystnb", {})
            alt = about.get("image", {}).get("alt", "")
            caption = about.get("figure", {}).get("caption", "")
            assert len(alt) > 30, f"{cell['id']}: alt text says what the picture shows"
            assert len(caption) > 30, f"{cell['id']}: a caption says what to see"
            assert about["figure"].get("name"), f"{cell['id']}: a name to refer to"
            assert all("image/svg+xml" in output["data"] for output in shown), cell["id"]
        assert pictures, "a chapter without a figure"

    def test_says_what_its_author_owes_a_reader(self, source):
        """The front and end matter of CONTRIBUTING's recipe."""
        prose = "\n".join(text(c) for c in load(source)["cells"] if c["cell_type"] == "markdown")
        for part in ("After this chapter you can", "You need", "Time"):
            assert part in prose, part
        headings = re.findall(r"^## (.+)$", prose, re.MULTILINE)
        for heading in ("Summary", "Exercises", "Questions to discuss", "Sources"):
            assert heading in headings, f"{heading}: not in {headings}"
        exercises = re.findall(r"\{exercise(?:-start)?\}", prose)
        assert len(exercises) == len(re.findall(r"\{solution(?:-start)?\}", prose)) > 0
