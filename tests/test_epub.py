"""The EPUB: formulas as MathML, pages as XML, nothing that runs. Held by building a small book."""

import subprocess
import sys
import zipfile
from pathlib import Path
from posixpath import dirname, join, normpath
from xml.etree import ElementTree

import pytest
from sphinx.errors import ExtensionError

EXTENSIONS = Path(__file__).resolve().parents[1] / "book" / "_ext"
CONF = f"""
import sys
sys.path.insert(0, {str(EXTENSIONS)!r})
project, author, copyright = "Small book", "Nobody", "nobody"
extensions = ["myst_parser", "sphinx.ext.mathjax", "kl_epub"]
myst_enable_extensions = ["dollarmath", "attrs_block"]
html_math_renderer = "mathjax"
epub_basename, epub_show_urls, epub_use_index = "small", "no", False
root_doc = "book/index"
"""
FIRST = """# Start

{.touch}
Drag the handle.

```{toctree}
../chapters/one
```
"""
CHAPTER = r"""# One

Half is $\frac12$.

$$
a &= b \\
c &= d
$$ (eq-pair)

By {eq}`eq-pair` it holds.

```{raw} html
<script>alert(1)</script>
<kl-figure mean="1"><img src="data:," alt="A picture"></kl-figure>
<details class="dropdown"><summary>Solution</summary>Two<br>lines &nbsp; &lt;</details>
<svg viewBox="0 0 2 1" width="40"><path d="M0 0H2"/></svg>
<details class="hide"><summary>Code</summary>long</details>
```
"""
SVG = "{http://www.w3.org/2000/svg}"
XHTML, MATHML = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/1998/Math/MathML}"


def sphinx(folder: Path, builder: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "-q", "-b", builder]
    return subprocess.run(
        [*command, "-d", str(folder / "_trees"), str(folder), str(folder / "_out" / builder)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    for name, text in (("book/index", FIRST), ("chapters/one", CHAPTER)):
        (folder / name).parent.mkdir()
        (folder / name).with_suffix(".md").write_text(text, encoding="utf-8")
    (folder / "conf.py").write_text(CONF, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def book(source) -> dict[str, str]:
    """The texts in the EPUB, by name."""
    done = sphinx(source, "epub")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(source / "_out" / "epub" / "small.epub") as archive:
        names = [n for n in archive.namelist() if n.endswith((".xhtml", ".opf", ".ncx"))]
        return {name: archive.read(name).decode("utf-8") for name in names}


def chapter(book) -> ElementTree.Element:
    return ElementTree.fromstring(book["chapters/one.xhtml"])


def test_formulas_are_mathml_and_keep_their_rows_and_numbers(book):
    formulas = chapter(book).findall(f".//{MATHML}math")
    assert [formula.get("display") for formula in formulas] == [None, "block"]
    assert formulas[0].find(f".//{MATHML}mfrac") is not None
    assert len(formulas[1].findall(f".//{MATHML}mtr")) == 2
    assert [e.text for e in chapter(book).iter(f"{XHTML}span") if e.get("class") == "eqno"] == [
        "(1)"
    ]


def test_nothing_runs_and_nothing_waits_to_be_dragged_or_opened(book):
    page = chapter(book)
    names = {element.tag.removeprefix(XHTML) for element in page.iter()}
    assert "script" not in names
    assert not [name for name in names if name.startswith("kl-")]
    assert page.find(f".//{XHTML}img").get("alt") == "A picture"
    opened = {d.get("class"): d.get("open") for d in page.iter(f"{XHTML}details")}
    assert opened == {"dropdown": "", "hide": None}
    assert "Drag the handle" not in book["book/index.xhtml"]


def test_the_list_of_files_says_where_formulas_and_drawings_are(book):
    package = ElementTree.fromstring(book["content.opf"])
    properties = {e.get("href"): e.get("properties") for e in package.iter() if e.get("href")}
    assert properties["chapters/one.xhtml"] == "mathml svg"
    assert chapter(book).find(f".//{SVG}svg").get("viewBox") == "0 0 2 1"
    assert properties["book/index.xhtml"] is None


def test_every_page_is_in_the_reading_order_and_every_address_is_there(book):
    package = ElementTree.fromstring(book["content.opf"])
    items = {e.get("id"): e.get("href") for e in package.iter() if e.tag.endswith("}item")}
    order = [items[e.get("idref")] for e in package.iter() if e.tag.endswith("}itemref")]
    assert order[:2] == ["book/index.xhtml", "chapters/one.xhtml"]
    links = [a.get("href") for a in ElementTree.fromstring(book["nav.xhtml"]).iter(f"{XHTML}a")]
    assert "chapters/one.xhtml" in links
    assert {link.split("#")[0] for link in links} <= set(book)
    styles = [e.get("href") for e in chapter(book).iter(f"{XHTML}link")]
    assert "../_static/epub-book.css" in styles
    here = dirname("chapters/one.xhtml")
    assert {normpath(join(here, style)) for style in styles} <= set(items.values())


def test_other_builders_keep_their_formulas(source):
    done = sphinx(source, "html")
    assert done.returncode == 0, done.stderr
    page = (source / "_out" / "html" / "chapters" / "one.html").read_text(encoding="utf-8")
    assert r"\(\frac12\)" in page
    assert "<math" not in page


def test_a_formula_that_mathjax_does_not_know_stops_the_build():
    from kl_epub import Converter

    convert = Converter()
    try:
        assert "<mi>x</mi>" in convert("x", False)
        with pytest.raises(ExtensionError, match="unknown macro"):
            convert(r"\nosuchmacro x", True)
        with pytest.raises(ExtensionError, match="no MathML for"):
            convert(r"\frac{1", True)
    finally:
        convert.close()
