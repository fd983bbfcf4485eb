"""The build's promises, held by building a two-page book with the book's own extensions."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

EXTENSIONS = Path(__file__).resolve().parents[1] / "book" / "_ext"
CONF = """
import sys
sys.path.insert(0, {extensions!r})
extensions = ["myst_nb", "kl_execution"]
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_cache_path = {cache!r}
kl_package = {package!r}
kl_lock = {lock!r}
"""
PROSE = """# Page

Twice is {eval}`f"{lab.twice(21):.1f}"`, markup is {eval}`"<b>&"`, a float is {eval}`0.1 + 0.2`,
and `` {eval}`1/0` `` is code.
"""


class Book:
    """A book in a folder: a package ``lab``, a page and a notebook that computes with it."""

    def __init__(self, folder):
        self.folder = folder
        self.package = folder / "lab"
        self.package.mkdir()
        self.module = self.package / "__init__.py"
        self.module.write_text('"""Lab."""\n\n\ndef twice(x):\n    return 2 * x\n')
        (folder / "lock.txt").write_text("lab==1\n")
        self.source = folder / "source"
        self.source.mkdir()
        (self.source / "index.md").write_text("# Start\n\n```{toctree}\npage\n```\n")
        (self.source / "conf.py").write_text(
            CONF.format(
                extensions=str(EXTENSIONS),
                cache=str(folder / "cache"),
                package=str(self.package),
                lock=str(folder / "lock.txt"),
            )
        )
        self.write(PROSE)

    def write(self, prose, code="import lab\n\nprint('sum', lab.twice(3) + 1)"):
        v4 = nbformat.v4
        spec = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        cells = [v4.new_code_cell(code), v4.new_markdown_cell(prose)]
        cells[0]["id"], cells[1]["id"] = "code", "prose"
        nbformat.write(v4.new_notebook(cells=cells, metadata=spec), self.source / "page.ipynb")

    def build(self):
        command = [sys.executable, "-m", "sphinx", "-W", "-n", "--keep-going"]
        env = os.environ | {"PYTHONPATH": str(self.folder), "NO_COLOR": "1"}
        return subprocess.run(
            [*command, str(self.source), str(self.folder / "build" / "html")],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    def text(self):
        html = (self.folder / "build" / "html" / "page.html").read_text()
        return re.sub(r"<(?!b>)[^>]+>", "", html)

    def outputs(self):
        """What the executed notebook beside the pages holds: counts, and text of its cells."""
        notebook = nbformat.read(self.folder / "build" / "jupyter_execute" / "page.ipynb", 4)
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        printed = [o.text for cell in cells for o in cell.outputs if o.output_type == "stream"]
        return [cell.execution_count for cell in cells], "".join(printed)


def executed(result):
    return "Executing notebook" in result.stdout + result.stderr


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The book, built once; every test leaves it building."""
    made = Book(tmp_path_factory.mktemp("book"))
    first = made.build()
    assert first.returncode == 0, first.stderr
    assert executed(first)
    return made


def test_numbers_in_the_prose_come_from_the_kernel_unquoted_and_escaped(book):
    text = book.text()
    assert "Twice is 42.0, markup is &lt;b&gt;&amp;, a float is 0.30000000000000004" in text
    assert "{eval}`1/0`" in text
    assert "sum 7" in text


def test_hidden_cells_do_not_show(book):
    assert "_glue" not in book.text()


def test_nothing_runs_again_when_nothing_changed(book):
    result = book.build()
    assert result.returncode == 0
    assert not executed(result)
    assert "0 source files" in result.stdout or "0 added, 0 changed" in result.stdout


def test_a_docstring_runs_nothing(book):
    book.module.write_text(book.module.read_text().replace("Lab.", "A lab."))
    result = book.build()
    assert result.returncode == 0
    assert not executed(result)


def test_a_changed_constant_changes_the_page_and_its_return_comes_from_the_cache(book):
    source = book.module.read_text()
    book.module.write_text(source.replace("2 * x", "3 * x"))
    result = book.build()
    assert result.returncode == 0, result.stderr
    assert executed(result)
    assert "Twice is 63.0" in book.text()
    assert "sum 10" in book.text()

    book.module.write_text(source)
    result = book.build()
    assert result.returncode == 0, result.stderr
    assert not executed(result)
    assert "Twice is 42.0" in book.text()


def test_a_changed_sentence_runs_nothing_and_loses_no_output(book):
    before = book.outputs()
    assert before == ([1, 2, 3], "sum 7\n")
    book.write(PROSE.replace("Twice is", "Two times is"))
    result = book.build()
    assert result.returncode == 0, result.stderr
    assert not executed(result)
    assert "Two times is 42.0" in book.text()
    assert book.outputs() == before
    book.write(PROSE)
    assert book.build().returncode == 0


@pytest.mark.parametrize(
    ("prose", "code", "says"),
    [
        ("# Page\n\n{eval}`1 / 0`", "import lab", "ZeroDivisionError"),
        ("# Page\n\n{eval}`1 +`", "import lab", "not a Python expression"),
        ("# Page", "raise RuntimeError('no')", "RuntimeError"),
    ],
)
def test_a_failing_cell_or_expression_fails_the_build(book, prose, code, says):
    book.write(prose, code)
    result = book.build()
    assert result.returncode != 0
    assert says in result.stdout + result.stderr


def test_a_dead_reference_fails_every_build_until_it_is_mended(book):
    book.write("# Page\n\n[dead](nowhere.md)")
    for _ in range(2):
        result = book.build()
        assert result.returncode != 0
        assert "nowhere.md" in result.stdout + result.stderr
    book.write(PROSE)
    assert book.build().returncode == 0
