"""Pages of their own for the browser figures, and what every figure must pass on them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from kllab import explorables
from kllab.explorables._element import SCRIPT

ROOT = Path(__file__).parents[2]
BOOK_BUNDLE = ROOT / "book" / "_vendor" / "js" / "explorables.js"
STYLE = """
body { margin: 0; font: 17px/1.5 sans-serif; color: #222832; background: #fff; }
html[data-theme="dark"] body { color: #ced6dd; background: #14181e; }
main { max-width: 760px; margin: 0 auto; padding: 0 16px; }
.tall { height: 3000px; }
"""


def page_html(body: str, *, script: str = '<script defer src="explorables.js"></script>') -> str:
    return (
        '<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<title>Harness</title><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style>{script}</head>"
        f"<body><main><h1>Harness</h1>{body}</main></body></html>"
    )


def publish(folder: Path, figure: explorables.Explorable) -> Path:
    """Writes both bundles and the pages that the tests of a figure open into a folder."""
    for bundle in (BOOK_BUNDLE, SCRIPT):
        if not bundle.is_file():
            pytest.fail(f"{bundle.relative_to(ROOT)} is missing: run `npm run build`")
    shutil.copy(BOOK_BUNDLE, folder / "explorables.js")
    shutil.copy(SCRIPT, folder / "live.js")
    element, tall = figure.element(), '<p class="tall">Text.</p>'
    pages = {
        "index": page_html(""),  # what a server asks for
        "one": page_html(f'{element}<h2 id="later">Later</h2>{tall}'),
        "two": page_html(element * 2),
        "far": page_html(f"{tall}{element}{tall}"),
        "live": page_html(figure._repr_html_(), script=""),
        "model": page_html('<div id="here"></div>', script=""),
    }
    for name, html in pages.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return folder


@dataclass
class Opener:
    """Opens pages and remembers what went wrong on them."""

    browser: object
    base: str
    contexts: list = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __call__(
        self, name: str, query: str = "", *, theme: str = "light", started=True, **context
    ):
        context.setdefault("viewport", {"width": 1280, "height": 900})
        context.setdefault("reduced_motion", "reduce")
        opened = self.browser.new_context(**context)
        self.contexts.append(opened)
        page = opened.new_page()
        page.on("console", lambda m: self.problems.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda e: self.problems.append(f"error: {e}"))
        page.on("requestfailed", lambda r: self.problems.append(f"failed: {r.url}"))
        page.on("request", lambda r: self._inside(r.url))
        page.add_init_script(
            f"document.addEventListener('readystatechange', () => "
            f"document.documentElement.dataset.theme = '{theme}', {{ once: true }})"
        )
        page.goto(f"{self.base}/{name}.html{query}")
        if started:
            page.locator("svg.plot .domain").first.wait_for(state="attached")
        return page

    def close(self):
        for context in self.contexts:
            context.close()
        assert not self.problems

    def _inside(self, url: str):
        if not url.startswith((self.base, "data:", "blob:")):
            self.problems.append(f"outside: {url}")


def settle(page):
    """Waits until what was asked for is drawn: figures draw in the next frame."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")


def drawn(page) -> list[str]:
    """Every line, dot and bar of the plots."""
    settle(page)
    return page.locator("svg.plot path[d]").evaluate_all("all => all.map(e => e.getAttribute('d'))")


def query_state(url: str, key: str) -> str:
    return parse_qs(urlsplit(url).query).get(key, [""])[0]


def state(page) -> dict:
    """The state of the only figure on a page."""
    return page.locator("[data-lm-suppress-shortcuts]").evaluate("e => e.state")


def pressed(page) -> list[str]:
    """The buttons that say of themselves that they are on."""
    settle(page)
    return page.locator("button[aria-pressed=true]").all_inner_texts()


def table(page) -> list[str]:
    """The rows of the table of numbers, cells parted by tabs."""
    settle(page)
    return page.locator(".numbers tbody tr").all_inner_texts()


def handle_selector(label: str) -> str:
    return f'.handle[aria-label="{label}"]'


def reads(page, selector: str) -> float:
    """The value of a handle or of a slider."""
    settle(page)
    text = page.locator(selector).evaluate("e => e.getAttribute('aria-valuenow') ?? e.value")
    return float(text)


def put(page, selector: str, text: str):
    """Fills in a field, chooses from a list, or presses a button or a box."""
    field = page.locator(selector)
    kind = field.evaluate("e => e.type")
    if kind in ("button", "checkbox"):
        field.click()
    elif kind == "select-one":
        field.select_option(text)
    else:
        field.fill(text)
        field.press("Tab")


def grip(page, selector: str) -> tuple[float, float]:
    """Where to take hold of a handle or of a slider."""
    settle(page)
    where = page.locator(selector).evaluate(
        """e => {
          const knob = e.querySelector('.knob');
          const { left, width, top, height } = (knob ?? e).getBoundingClientRect();
          const along = knob ? 0.5 : (e.value - e.min) / (e.max - e.min);
          const inset = knob ? 0 : 8;  // half a slider's thumb
          return [left + inset + along * (width - 2 * inset), top + height / 2];
        }"""
    )
    return tuple(where)


def drag(page, selector: str, *, by: tuple[float, float] = (0, 0), to=None):
    """Moves a handle or a slider with the mouse, by some pixels right and down or to a place."""
    x, y = grip(page, selector)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(*(to or (x + by[0], y + by[1])), steps=6)
    page.mouse.up()
    settle(page)


def wait_for_state(page, pattern: str) -> str:
    page.wait_for_function(
        "pattern => new RegExp(pattern).test(decodeURIComponent(location.search))", arg=pattern
    )
    return page.url


def touch(cdp, kind: str, *points):
    cdp.send(
        "Input.dispatchTouchEvent",
        {"type": kind, "touchPoints": [{"x": x, "y": y} for x, y in points]},
    )


def assert_accessible(page):
    """No violation, and axe has looked: it objects to what it is shown to object to."""
    from axe_playwright_python.sync_playwright import Axe

    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()
    # axe has looked inside the shadow root, and sees there what it should object to.
    page.locator(".reading").evaluate("e => { e.style.cssText = 'color: #777; background: #888'; }")
    found = Axe().run(page).response["violations"]
    assert [rule["id"] for rule in found] == ["color-contrast"]


def assert_fits(page, width: int):
    """Nothing wider than the page, and every target large enough for a finger."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for target in page.locator("button, select, input:not([hidden]), .handle .hit").all():
        box = target.bounding_box()
        label = target.evaluate("e => e.closest('label')?.getBoundingClientRect().height ?? 0")
        assert max(box["height"], label) >= 24, target.evaluate("e => e.outerHTML")
        assert box["width"] >= 17


def overlapping_labels(page) -> list[tuple[str, str]]:
    """Pairs of texts in one plot that lie on each other."""
    found = []
    for plot in page.locator("svg.plot").all():
        boxes = plot.locator("text").evaluate_all(
            "all => all.filter(e => e.textContent).map(e => {"
            " const b = e.getBBox(), m = e.getCTM();"
            " return [e.textContent, b.x + m.e, b.y + m.f, b.width, b.height]; })"
        )
        for i, (text, x, y, w, h) in enumerate(boxes):
            for other, x2, y2, w2, h2 in boxes[i + 1 :]:
                apart = x + w <= x2 + 1 or x2 + w2 <= x + 1 or y + h <= y2 + 4 or y2 + h2 <= y + 4
                if not apart:
                    found.append((text, other))
    return found


def layout_shift(page) -> float:
    return page.evaluate(
        """() => new Promise(done => {
          let sum = 0;
          new PerformanceObserver(list => {
            for (const entry of list.getEntries()) sum += entry.value;
          }).observe({ type: 'layout-shift', buffered: true });
          setTimeout(() => done(sum), 700);
        })"""
    )
