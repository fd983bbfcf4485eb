"""The EPUB: formulas as MathML, pages as XHTML, and no script.

``make epub`` writes it. MathJax, the same that the pages use, turns
each formula into MathML in Node; a formula that it cannot read stops the build. The other builders
keep to the browser's MathJax.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
from pathlib import Path

from bs4 import BeautifulSoup
from docutils import nodes
from kl_version import version
from sphinx.application import Sphinx
from sphinx.builders.epub3 import Epub3Builder
from sphinx.errors import ExtensionError
from sphinx.util.math import get_node_equation_number

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "tex2mml.cjs"
STYLES = ROOT / "book" / "_static" / "css" / "epub-book.css"
PROPERTIES = {"mathml": "<math", "svg": "<svg"}
BROWSER_FIGURE = re.compile("^kl-")
ITEM = re.compile(r'<item id="[^"]+" href="(?P<href>[^"]+)" media-type="[^"]+" />')


class Converter:
    """One MathJax for the whole build: starting one takes longer than a formula."""

    def __init__(self) -> None:
        node = shutil.which("node")
        if node is None:
            raise ExtensionError("the EPUB needs Node for its formulas")
        self.process = subprocess.Popen(
            [node, str(SCRIPT)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.known: dict[tuple[str, bool], str] = {}

    def __call__(self, tex: str, display: bool) -> str:
        key = tex, display
        if key not in self.known:
            self.process.stdin.write(json.dumps({"tex": tex, "display": display}) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
            if 'mathcolor="red"' in answer.get("mml", ""):  # MathJax' way to show an unknown macro
                answer = {"error": "an unknown macro"}
            if "error" in answer:
                raise ExtensionError(f"no MathML for {tex!r}: {answer['error']}")
            self.known[key] = re.sub(r">\s+<", "><", answer["mml"])
        return self.known[key]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def whole(node: nodes.math_block) -> str:
    """A displayed formula as Sphinx hands it to MathJax, with rows and blank lines aligned."""
    if node["nowrap"]:
        return node.astext()
    parts = [part for part in node.astext().split("\n\n") if part.strip()]
    rows = [rf"\begin{{split}}{p}\end{{split}}" if r"\\" in p else p for p in parts]
    if len(rows) == 1:
        return rows[0]
    return r"\begin{aligned}" + r"\\".join(rows) + r"\end{aligned}"


def visit_inline(self, node: nodes.math) -> None:
    self.body.append(self.builder.mathml(node.astext(), False))
    raise nodes.SkipNode


def visit_display(self, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})</span>')
    self.body.append(self.builder.mathml(whole(node), True) + "</div>\n")
    raise nodes.SkipNode


class BookEpub(Epub3Builder):
    """Sphinx' builder, for a book whose first page is not at the root and that has formulas."""

    def init(self) -> None:
        self.config.version = self.config.version or version()
        self.config.html_math_renderer = "mathml"
        self.config.html_static_path = []  # scripts, fonts and styles of the site
        self.config.epub_tocscope = "includehidden"  # the book's tables of contents are hidden
        self.config.epub_exclude_files = [".nojekyll", "index.html"]
        super().init()
        self.mathml = Converter()

    def get_toc(self) -> None:
        super().get_toc()
        # Addresses are taken from the first page's folder, and the spine compares them as text.
        for item in self.refnodes:
            item["refuri"] = posixpath.normpath(item["refuri"])

    def copy_static_files(self) -> None:
        super().copy_static_files()
        shutil.copyfile(STYLES, Path(self.outdir) / "_static" / STYLES.name)

    def build_content(self) -> None:
        super().build_content()
        package = Path(self.outdir) / "content.opf"
        text = package.read_text(encoding="utf-8")
        package.write_text(ITEM.sub(self.with_properties, text), encoding="utf-8")

    def with_properties(self, match: re.Match) -> str:
        """A page with formulas or drawings in it has to say so in the list of files."""
        page = Path(self.outdir) / match["href"]
        text = page.read_text(encoding="utf-8") if page.suffix == ".xhtml" else ""
        has = [name for name, tag in PROPERTIES.items() if tag in text]
        return match[0].replace(" />", f' properties="{" ".join(has)}" />') if has else match[0]


def as_xhtml(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """A page as a reader for books takes it: no script, nothing to drag, solutions open."""
    if app.builder.name != "epub":
        return
    context["css_files"] = ["_static/pygments.css", f"_static/{STYLES.name}"]
    context["script_files"] = []
    page = BeautifulSoup(context.get("body") or "", "html.parser")
    for element in page.select("script, .touch, ul.entries"):
        element.decompose()
    for figure in page.find_all(BROWSER_FIGURE):
        figure.unwrap()  # what is inside is its picture
    for details in page.select("details:not(.hide)"):
        details["open"] = ""
    for drawing in page.select("svg"):
        drawing["xmlns"] = "http://www.w3.org/2000/svg"
        if "viewbox" in drawing.attrs:  # HTML forgives the lower case that the parser leaves
            drawing["viewBox"] = drawing.attrs.pop("viewbox")
    context["body"] = page.decode(formatter="minimal")


def finish(app: Sphinx, exception: Exception | None) -> None:
    if isinstance(app.builder, BookEpub):
        app.builder.mathml.close()


def setup(app: Sphinx) -> dict:
    app.add_builder(BookEpub, override=True)
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_display, None))
    app.connect("html-page-context", as_xhtml, priority=1000)
    app.connect("build-finished", finish)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}
