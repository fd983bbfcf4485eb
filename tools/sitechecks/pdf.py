"""The printed book: pages, outline, tags, language, and that formulas and chapters are in it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from sitechecks import Result

PROGRAMS = ("pdfinfo", "pdftotext")  # poppler-utils


def output(*command: str | Path) -> str:
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    return ended.stdout


def titles(site: Path) -> list[str]:
    """First headings of the chapters, as text."""
    found = []
    for path in sorted((site / "notebooks").glob("*.html")):
        heading = re.search(r"<h1>(.*?)<a class=\"headerlink", path.read_text("utf-8"), re.DOTALL)
        found.append(re.sub(r"<[^>]+>", "", heading[1]))
    return found


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
    from pdf import main as print_book

    missing = [program for program in PROGRAMS if not shutil.which(program)]
    folder, target = options.build / "singlehtml", options.build / "estimating-kl.pdf"
    if missing:
        return Result("pdf", [], [f"no {', '.join(missing)}: install poppler-utils"])
    if not folder.is_dir():
        return Result("pdf", [], ["the one-page build is missing: run `make pdf` first"])
    print_book(str(folder), str(target))
    lines = output("pdfinfo", target).splitlines()
    info = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    rows = [("pages", info["Pages"]), ("size", f"{target.stat().st_size / 1e6:.1f} MB")]
    faults = faults_of(info, output("pdftotext", target, "-"), titles(site))
    return Result("pdf", rows, faults)
