"""Pages of the built site in a real browser, with a note of everything that goes wrong on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe

PHONE, DESK = {"width": 360, "height": 780}, {"width": 1280, "height": 900}
START = "index.html"  # leads to the first page at once, so it cannot be looked at for long
OURS = ("http://127.0.0.1", "file://", "data:", "blob:", "about:")
SETTLED = """async () => {
  await document.fonts.ready;
  await window.MathJax?.startup?.promise;
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""
# What a colour scheme can change: the rest of axe's rules read the same in light and dark.
RULES_OF_COLOUR = ["color-contrast", "link-in-text-block"]


def pages_of(site: Path) -> list[str]:
    """Every page of the book; templates that the theme leaves in _static are none."""
    found = [path.relative_to(site) for path in site.rglob("*.html")]
    kept = [path.as_posix() for path in found if path.parts[0] != "_static"]
    return sorted(name for name in kept if name != START)


@contextmanager
def watched(chrome, **options) -> Iterator[tuple]:
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


def settle(page) -> None:
    """Wait until fonts are there, formulas are typeset and a frame is drawn."""
    page.evaluate(SETTLED)


def open_page(page, url: str) -> None:
    page.goto(url, wait_until="load")
    settle(page)


def overflow(page) -> int:
    """CSS pixels by which the page is wider than the window."""
    return page.evaluate(
        "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


def violations(page, rules: list[str] | None = None, part: str | None = None) -> list[str]:
    """What axe objects to, by all its rules or by some, on the page or in a part of it."""
    # Preloading would fetch imported styles again, by an address that is relative to the page.
    options = {"preload": False, "resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    found = Axe().run(page, context=part, options=options).response["violations"]
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]} ({len(v['nodes'])} times)" for v in found]


def looks(page) -> Iterator[str]:
    """The open page at each width and in each scheme: a name for each of the four looks."""
    for scheme, width in (("light", DESK), ("light", PHONE), ("dark", PHONE), ("dark", DESK)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(width)
        settle(page)
        yield f"{scheme} at {width['width']}"


def faults_in_all_looks(page) -> list[str]:
    """What axe and the width say of the open page: all rules in light, those of colour in dark."""
    found = []
    for look in looks(page):
        dark = look.startswith("dark")
        faults = violations(page, RULES_OF_COLOUR if dark else None)
        if overflow(page) > 0:
            faults.append(f"{overflow(page)} px wider than the window")
        found += [f"{look}: {fault}" for fault in faults]
    return found
