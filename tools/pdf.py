"""Print the one-page build to a tagged PDF: ``python tools/pdf.py FOLDER TARGET``."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from browser import chromium
from serve import serving

START = "print.html"
TIMEOUT = 600_000  # ms; a whole book of formulas on a busy machine
# Pictures that were to be loaded late have to be here, and each has to have a size.
MISSING = """async () => {
  const all = [...document.querySelectorAll("img")];
  for (const image of all) image.loading = "eager";
  await Promise.allSettled(all.map(image => image.decode()));
  return all.filter(image => !image.naturalWidth).map(image => image.src);
}"""
# The text of an entry of the outline: in Latin letters, or as hexadecimal digits after a mark.
TITLE = re.compile(
    rb"/Title (?P<open>[(<])(?P<mark>FEFF)?(?P<text>(?:[^()<>\\]|\\.)*)(?P<close>[)>])"
)
# Margins and page numbers are in book/_static/css/print.css.
PAGE = {
    "format": "A4",
    "print_background": True,
    "tagged": True,
    "outline": True,
}


def main(folder: str, target: str) -> None:
    faults = print_book(Path(folder), Path(target))
    if faults:
        raise SystemExit("the page is incomplete: " + "; ".join(faults))


def print_book(built: Path, target: Path) -> list[str]:
    """Print the one-page build in ``built`` to ``target``; the value is what was not there."""
    # Sphinx writes the page's addresses as seen from the root of the folder, so it must lie there.
    shutil.copyfile(largest_page(built), built / START)
    with serving(built) as address, chromium() as browser:
        page = browser.new_page(color_scheme="light")
        page.set_default_timeout(TIMEOUT)
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        # One page has no search index.
        page.route("**/searchindex.js", lambda route: route.fulfill(body=""))
        page.on("response", lambda r: r.status >= 400 and faults.append(f"{r.status}: {r.url}"))
        page.goto(f"{address}/{START}", wait_until="load")
        # Formulas are typeset after load; printing earlier shows TeX.
        page.evaluate("() => MathJax.startup.promise")
        page.emulate_media(media="print")
        faults += [f"no picture: {source[:80]}" for source in page.evaluate(MISSING)]
        page.pdf(path=target, **PAGE)
    mend_outline(target)
    return faults


def mend_outline(path: Path) -> None:
    """Chromium writes a heading twice into its entry when it had to move it to the next page.

    Each half is replaced by as many blanks after the entry's text, so that every offset in the
    file stays right.
    """
    path.write_bytes(TITLE.sub(once, path.read_bytes()))


def once(match: re.Match[bytes]) -> bytes:
    opening, mark, text, closing = (
        match["open"],
        match["mark"] or b"",
        match["text"],
        match["close"],
    )
    half = len(text) // 2
    if not text or text != text[:half] * 2:
        return match[0]
    return b"/Title " + opening + mark + text[:half] + closing + b" " * half


def largest_page(folder: Path) -> Path:
    """The one page that holds the book, beside a small one that leads to it."""
    pages = [path for path in folder.rglob("*.html") if path.name != START]
    return max(pages, key=lambda path: path.stat().st_size)


if __name__ == "__main__":
    main(*sys.argv[1:])
