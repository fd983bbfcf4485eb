"""Pages of the built site in a real browser, with a note of everything that goes wrong on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe

PHONE, DESK = {"width": 360, "height": 780}, {"width": 1280, "height": 900}
NARROW = {"width": 320, "height": 640}  # a desk's window at 400 %
START = "index.html"  # leads to the first page at once, so it cannot be looked at for long
OURS = ("http://127.0.0.1", "file://", "data:", "blob:", "about:")
SETTLED = """async () => {
  await document.fonts.ready;
  await window.MathJax?.startup?.promise;
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""
# Boxes of some size that are lighter than middle grey, with text or without; axe sees only text.
LIGHT_BOXES = """() => {
  const light = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return a > 0.3 && (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255 > 0.5;
  };
  return [...document.querySelectorAll('body, body *')].filter(e => {
    const { width, height } = e.getBoundingClientRect();
    return width * height > 900 && !e.closest('.skip-link') && !e.matches('a, button')
      && light(getComputedStyle(e).backgroundColor);
  }).map(e => e.outerHTML.slice(0, 120));
}"""
# What a colour scheme can change; the rest of axe's rules read the same in light and dark.
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


def violations(page, what: str = "all", part: str | None = None) -> list[str]:
    """What axe objects to on the page or in a part of it.

    By all its rules, by those of "colour", or by the "form", which is all others.
    """
    # Preloading would fetch imported styles again, by an address that is relative to the page.
    options = {"preload": False, "resultTypes": ["violations"]}
    if what == "colour":
        options["runOnly"] = {"type": "rule", "values": RULES_OF_COLOUR}
    else:
        # Off unless asked for: 24 by 24 pixels for a finger, with the exceptions of WCAG 2.5.8.
        options["rules"] = {"target-size": {"enabled": True}}
        options["rules"] |= {rule: {"enabled": what == "all"} for rule in RULES_OF_COLOUR}
    found = Axe().run(page, context=part, options=options).response["violations"]
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]} ({len(v['nodes'])} times)" for v in found]


def look(page, scheme: str, width: dict) -> None:
    """Turn the open page light or dark, and into a phone's or a desk's."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(width)
    settle(page)


# Colours are most of axe's work.  Once in each scheme and at one width is enough to see a wrong
# one; the other two looks are taken by `make checks`, and in the tests by a few pages.
LOOKS = (("light", DESK, "all"), ("light", PHONE, "form"), ("dark", PHONE, "colour"))
MORE_LOOKS = (("light", DESK, "all"), ("light", PHONE, "all"), ("dark", PHONE, "colour"))
MORE_LOOKS += (("dark", DESK, "colour"),)


def faults_in_all_looks(page, *, more: bool = False) -> list[str]:
    """What axe, the width and the boxes in dark mode say of the open page; it is left dark."""
    found = []
    for scheme, width, what in MORE_LOOKS if more else LOOKS:
        look(page, scheme, width)
        faults = violations(page, what)
        if overflow(page) > 0:
            faults.append(f"{overflow(page)} px wider than the window")
        if scheme == "dark":
            faults += [f"light box: {box}" for box in page.evaluate(LIGHT_BOXES)]
        found += [f"{scheme} at {width['width']} px: {fault}" for fault in faults]
    page.set_viewport_size(NARROW)
    if overflow(page) > 0:
        found.append(f"{overflow(page)} px wider than a window of {NARROW['width']} px")
    return found
