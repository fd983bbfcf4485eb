"""Print the one-page build to a tagged PDF: ``python tools/pdf.py FOLDER TARGET``."""

from __future__ import annotations

import sys
from pathlib import Path

from browser import chromium
from serve import serving

PAGE = {
    "format": "A4",
    "margin": {"top": "18mm", "bottom": "18mm", "left": "16mm", "right": "16mm"},
    "print_background": True,
    "tagged": True,
    "outline": True,
}


def main(folder: str, target: str) -> None:
    built = Path(folder)
    # Jupyter Book puts its own folders under the output path that it is given.
    inner = built / "_build" / "singlehtml"
    with serving(inner if inner.is_dir() else built) as address, chromium() as browser:
        page = browser.new_page(color_scheme="light")
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}/{start(inner if inner.is_dir() else built)}", wait_until="load")
        # Formulas are typeset after load; printing earlier shows TeX.
        page.evaluate("() => window.MathJax && MathJax.startup.promise")
        page.emulate_media(media="print")
        page.pdf(path=target, **PAGE)
    if errors:
        raise SystemExit("the page raised: " + "; ".join(errors))


def start(folder: Path) -> str:
    """The one page that holds the book: the largest HTML file, beside a redirecting index."""
    pages = sorted(folder.rglob("*.html"), key=lambda path: path.stat().st_size)
    return pages[-1].relative_to(folder).as_posix()


if __name__ == "__main__":
    main(*sys.argv[1:])
