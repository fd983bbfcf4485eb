"""The built book in a real browser: every page, over http and from a folder, in both modes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from cases import CASES

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
PHONE, DESK = {"width": 360, "height": 780}, {"width": 1280, "height": 900}
START = "index.html"  # leads to the first page at once, so it cannot be looked at for long
OURS = ("http://127.0.0.1", "file://", "data:", "blob:", "about:")
SETTLED = """async () => {
  await document.fonts.ready;
  await window.MathJax?.startup?.promise;
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""


def pages() -> list[str]:
    """Every page of the book; templates that the theme leaves in _static are none."""
    found = [path.relative_to(SITE) for path in SITE.rglob("*.html")]
    kept = [path.as_posix() for path in found if path.parts[0] != "_static"]
    # Before the first build one page that is not there keeps the tests from passing by absence.
    return sorted(name for name in kept if name != START) or ["the book is not built"]


@contextmanager
def watched(chrome, **options):
    """A page, and the list of what went wrong on it."""
    context = chrome.new_context(**options)
    page = context.new_page()
    faults: list[str] = []

    def note(kind):
        return lambda what: faults.append(f"{kind}: {what}")

    page.on("pageerror", note("exception"))
    loud = ("error", "warning")
    page.on("console", lambda m: m.type in loud and faults.append(f"console: {m.text}"))
    page.on("requestfailed", lambda request: faults.append(f"failed: {request.url}"))
    page.on(
        "response", lambda r: faults.append(f"{r.status}: {r.url}") if r.status >= 400 else None
    )
    page.on(
        "request",
        lambda r: None if r.url.startswith(OURS) else faults.append(f"outside: {r.url}"),
    )
    try:
        yield page, faults
    finally:
        context.close()


def open_page(page, url: str) -> None:
    page.goto(url, wait_until="load")
    page.evaluate(SETTLED)


def overflow(page) -> int:
    """CSS pixels by which the page is wider than the window."""
    return page.evaluate(
        "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


def violations(page) -> list[str]:
    # Preloading would fetch imported styles again, by an address that is relative to the page.
    found = Axe().run(page, options={"preload": False}).response["violations"]
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]} ({len(v['nodes'])} times)" for v in found]


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", pages())
class TestPage:
    def test_over_http(self, chrome, address, name, scheme):
        for viewport in (DESK, PHONE):
            with watched(chrome, color_scheme=scheme, viewport=viewport) as (page, faults):
                open_page(page, f"{address}/{name}")
                assert page.title()
                assert violations(page) == []
                assert overflow(page) <= 0
                assert faults == []

    def test_from_a_folder(self, chrome, site, name, scheme):
        with watched(chrome, color_scheme=scheme, viewport=PHONE) as (page, faults):
            open_page(page, (site / name).as_uri())
            assert overflow(page) <= 0
            assert faults == []


@pytest.mark.browser
def test_the_root_leads_to_the_book(chrome, site):
    with watched(chrome) as (page, faults):
        page.goto((site / START).as_uri())
        page.wait_for_url("**/book/index.html")
        assert page.locator(".bd-article h1").inner_text().startswith("Estimating KL")
        assert faults == []


@pytest.mark.browser
def test_what_the_page_test_looks_for_is_found(chrome, tmp_path):
    """A page with each fault, so that a silent watcher would show."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<html><body style='width:2000px'><img src='missing.png'><img src='http://a.example/x.png'>"
        "<script>console.error('no'); setTimeout(() => { throw new Error('thrown') })</script>"
    )
    with watched(chrome, viewport=PHONE) as (page, faults):
        page.goto(bad.as_uri(), wait_until="load")
        assert overflow(page) > 0
        assert any("image-alt" in v for v in violations(page))
    for sign in ("console: no", "failed: file", "outside: http://a.example", "thrown"):
        assert any(sign in fault for fault in faults), (sign, faults)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_of_cells_have_no_box_in_dark_mode(chrome, address, scheme):
    with watched(chrome, color_scheme=scheme, viewport=DESK) as (page, _):
        open_page(page, f"{address}/{chapters()[0]}")
        styles = page.eval_on_selector_all(
            ".bd-content figure img",
            """images => images.map(image => {
              const { backgroundColor, filter } = getComputedStyle(image);
              return [backgroundColor, filter];
            })""",
        )
    assert styles
    for background, turned in styles:
        assert background == "rgba(0, 0, 0, 0)"
        assert turned == ("invert(1) hue-rotate(180deg)" if scheme == "dark" else "none")


@pytest.mark.browser
def test_what_scrolls_sideways_on_a_phone_takes_the_focus(chrome, address):
    with watched(chrome, viewport=PHONE) as (page, _):
        open_page(page, f"{address}/{chapters()[0]}")
        boxes = page.eval_on_selector_all(
            ".bd-article pre, .bd-article .text_html, .bd-article mjx-container",
            "all => all.filter(b => b.clientWidth && b.scrollWidth > b.clientWidth + 1"
            " && getComputedStyle(b).overflowX === 'auto').map(b => b.tabIndex)",
        )
    assert boxes
    assert set(boxes) == {0}


@pytest.mark.browser
def test_without_scripts_the_chapter_is_there(chrome, address):
    with watched(chrome, java_script_enabled=False, viewport=PHONE) as (page, faults):
        for name in chapters():
            page.goto(f"{address}/{name}", wait_until="networkidle")
            assert page.locator(".bd-article h1").count() == 1
            assert page.locator("figure img").count() > 0
            for figure in page.locator(", ".join(case.tag for case in CASES)).all():
                assert figure.locator("img").is_visible()
        # Scripts that the page preloads are given up, and that counts as failed.
        assert [fault for fault in faults if ".js" not in fault] == []


# --- links and markup, which need no browser ------------------------------------------------------


def chapters() -> list[str]:
    return [name for name in pages() if name.startswith("notebooks/")]


class Anchors(HTMLParser):
    """Ids and links of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids.update(filter(None, (attributes.get("id"), attributes.get("name"))))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])


def test_every_internal_link_meets_its_target(site):
    """Files and the anchors within them; linkinator looks at files only."""
    known = {name: Anchors(site / name) for name in pages()}
    dead, looked_at = [], 0
    for name, anchors in known.items():
        for link in anchors.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            looked_at += 1
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            relative = target.resolve().relative_to(site.resolve()).as_posix()
            # A browser figure reads its state from a fragment with an equals sign.
            fragment = unquote(parts.fragment)
            # A browser figure reads its state from a fragment with an equals sign.
            anchor = fragment if relative in known and "=" not in fragment else ""
            if not target.is_file() or (anchor and anchor not in known[relative].ids):
                dead.append(f"{name} -> {link}")
    assert looked_at > 100
    assert dead == []


def test_linkinator_finds_no_broken_link(address):
    program = shutil.which("node", path=str(ROOT / ".venv" / "bin")) or shutil.which("node")
    script = ROOT / "node_modules" / "linkinator" / "build" / "src" / "cli.js"
    command = [program, str(script), f"{address}/", "--recurse", "--format", "json"]
    command += ["--skip", r"^https?://(?!127\.0\.0\.1)"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    report = json.loads(result.stdout)
    broken = [link["url"] for link in report["links"] if link["state"] == "BROKEN"]
    assert broken == []
    assert sum(link["state"] == "OK" for link in report["links"]) > len(pages())


JAVA = shutil.which("java")


@pytest.mark.skipif(not JAVA, reason="vnu, the HTML checker, needs a Java")
def test_html_is_valid(site):
    jar = ROOT / "node_modules" / "vnu-jar" / "build" / "dist" / "vnu.jar"
    files = [str(site / name) for name in [START, *pages()]]
    result = subprocess.run(
        [JAVA, "-jar", str(jar), "--format", "json", "--errors-only", *files],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    messages = json.loads(result.stderr)["messages"]
    assert [describe(message) for message in messages] == []


def describe(message: dict) -> str:
    where = re.sub(r".*/html/", "", message.get("url", ""))
    return f"{where}:{message.get('lastLine')}: {message['message']}"
