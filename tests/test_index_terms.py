"""The list of the index, and the first page's claims: what is not there stops the build."""

import json
import subprocess
import sys
from pathlib import Path

import chapters
import nbformat
import pytest
from sphinx.errors import ExtensionError

EXTENSIONS = Path(__file__).resolve().parents[1] / "book" / "_ext"
CONF = """
import sys
sys.path.insert(0, {extensions!r})
extensions = ["myst_parser", "kl_index"]
kl_terms = {terms!r}
"""


def built(folder: Path, terms: str) -> subprocess.CompletedProcess:
    (folder / "terms.toml").write_text(terms, encoding="utf-8")
    conf = CONF.format(extensions=str(EXTENSIONS), terms=str(folder / "terms.toml"))
    (folder / "conf.py").write_text(conf, encoding="utf-8")
    (folder / "book").mkdir()
    (folder / "book" / "page.md").write_text("# Page\n\nText.\n\n## A section\n\nMore.\n")
    (folder / "index.md").write_text("# Start\n\n```{toctree}\nbook/page\n```\n")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html"]
    return subprocess.run(
        [*command, str(folder), str(folder / "_out")], capture_output=True, text=True, check=False
    )


def test_a_term_leads_to_its_section_before_any_page(tmp_path):
    done = built(tmp_path, '[book]\n"page#a-section" = ["Rao-Blackwell"]\n')
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "_out" / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    [[page, anchor, main]] = index["indexentries"]["rao-blackwell"]
    assert (index["docnames"][page], anchor, main) == ("book/page", "a-section", True)


@pytest.mark.parametrize(
    ("key", "complaint"),
    [("page#gone", "book/page has no section 'gone'"), ("gone#a-section", "no page book/gone")],
)
def test_a_term_without_a_place_stops_the_build(tmp_path, key, complaint):
    done = built(tmp_path, f'[book]\n"{key}" = ["term"]\n')
    assert done.returncode != 0
    assert complaint in done.stderr


def test_a_claim_is_read_below_the_title(tmp_path):
    path = tmp_path / "01_x.ipynb"
    v4 = nbformat.v4
    for text, claim in (("# T\n\n*The claim: it **is** so.*\n", "It **is** so."), ("# T\n", None)):
        nbformat.write(v4.new_notebook(cells=[v4.new_markdown_cell(text)]), path)
        if claim:
            assert chapters.claim_of(path) == claim
        else:
            with pytest.raises(ExtensionError, match="no line"):
                chapters.claim_of(path)
