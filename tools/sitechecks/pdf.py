"""The printed book: pages, outline, tags, and that formulas, pictures and chapters are in it."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

from bs4 import BeautifulSoup

from sitechecks import Result

PROGRAMS = ("pdfinfo", "pdftotext", "pdftohtml")  # poppler-utils


def output(*command: str | Path) -> str:
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    return ended.stdout


def titles(site: Path) -> list[str]:
    """First headings of the chapters, as text."""
    found = []
    for path in sorted((site / "notebooks").glob("*.html")):
        # The theme writes a second heading, for paper, which the book does not show.
        heading = BeautifulSoup(path.read_text("utf-8"), "html.parser").select_one("article h1")
        heading.select_one(".headerlink").decompose()
        found.append(heading.get_text().strip())
    return found


def outline(target: Path) -> list[str]:
    """Titles of the outline; of the pages only the first is converted."""
    xml = output("pdftohtml", "-xml", "-i", "-l", "1", "-stdout", target)
    return [unescape(title) for title in re.findall(r"<item[^>]*>(.*?)</item>", xml)]


def faults_of_outline(entries: list[str], wanted: list[str]) -> list[str]:
    """A chapter that is missing, and a title that Chromium wrote twice into one entry."""
    known = {" ".join(entry.split()) for entry in entries}
    missing = [title for title in wanted if " ".join(title.split()) not in known]
    twice = [e for e in entries if e and e == e[: len(e) // 2] * 2]
    return [f"not in the outline: {title!r}" for title in missing] + [
        f"twice in one entry of the outline: {entry!r}" for entry in twice
    ]


def faults_of(info: dict[str, str], text: str, wanted: list[str]) -> list[str]:
    words = " ".join(text.split())
    faults = [f"no chapter {title!r}" for title in wanted if " ".join(title.split()) not in words]
    if info.get("Tagged") != "yes":
        faults.append("not tagged, so a screen reader has no structure")
    if not info.get("Title"):
        faults.append("no title")
    raw = re.search(r"\\\(.{0,40}|\\\[.{0,40}|\\(?:frac|mathbb|operatorname)\b.{0,40}", text)
    if raw:
        faults.append(f"TeX that was not typeset: {raw[0]!r}")
    return faults


def run(site: Path, options) -> Result:
    from pdf import print_book

    missing = [program for program in PROGRAMS if not shutil.which(program)]
    folder, target = options.build / "singlehtml", options.build / "estimating-kl.pdf"
    if missing:
        return Result("pdf", [], [f"no {', '.join(missing)}: install poppler-utils"])
    if not folder.is_dir():
        return Result("pdf", [], ["the one-page build is missing: run `make pdf` first"])
    faults = print_book(folder, target)
    lines = output("pdfinfo", target).splitlines()
    info = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    rows = [("pages", info["Pages"]), ("size", f"{target.stat().st_size / 1e6:.1f} MB")]
    entries = outline(target)
    rows.append(("entries of the outline", str(len(entries))))
    faults += faults_of(info, output("pdftotext", target, "-"), titles(site))
    faults += faults_of_outline(entries, titles(site))
    return Result("pdf", rows, faults)
