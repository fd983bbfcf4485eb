"""Prepare a release: ``python tools/release.py 0.2.0``, then look at the difference and commit it.

Writes the version and the day wherever they stand, makes "Unreleased" in CHANGELOG.md that version,
and adds the pages of the book to ``book/addresses.txt``, from where no address is ever removed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
VERSION = r"\d+\.\d+\.\d+"
ADDRESSES = "book/addresses.txt"

# File, and a pattern that stands there once; its group becomes the version or the day.
PLACES = (
    ("pyproject.toml", rf'^version = "({VERSION})"$', "version"),
    ("src/kllab/__init__.py", rf'^__version__ = "({VERSION})"$', "version"),
    ("CITATION.cff", rf"^version: ({VERSION})$", "version"),
    ("CITATION.cff", r"^date-released: (\d{4}-\d\d-\d\d)$", "day"),
    ("CHANGELOG.md", rf"\A(?:(?!## ).*\n)*## (Unreleased|{VERSION})$", "version"),
)


def replaced(text: str, pattern: str, value: str) -> str:
    """The text with the pattern's group replaced."""
    matches = list(re.finditer(pattern, text, re.MULTILINE))
    if len(matches) != 1:
        raise ValueError(f"{pattern} stands there {len(matches)} times")
    (match,) = matches
    return text[: match.start(1)] + value + text[match.end(1) :]


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def check_changelog(text: str, version: str) -> None:
    """Its first heading is "Unreleased" or this version, and what stands below is older."""
    first, *older = re.findall(r"^## (\S+)$", text, re.MULTILINE)
    if first not in ("Unreleased", version):
        raise ValueError(f"CHANGELOG.md begins with {first}: write what is new under Unreleased")
    if any(number(name) >= number(version) for name in older):
        raise ValueError(f"CHANGELOG.md has {version} or a later version already")


def documents(toc: str) -> list[str]:
    """The book's documents, in order, from its table of contents."""
    contents = yaml.safe_load(toc)

    def below(part: dict) -> Iterator[str]:
        if "file" in part:
            yield part["file"]
        for kind in ("parts", "chapters", "sections"):
            for inner in part.get(kind, []):
                yield from below(inner)

    return [contents["root"], *below(contents)]


def with_pages(listed: str, toc: str) -> str:
    """The list of addresses with today's pages; the old ones stay, in their place."""
    known = [line for line in listed.splitlines() if line and not line.startswith("#")]
    new = [page for page in documents(toc) if page not in known]
    return listed + "".join(f"{page}\n" for page in new)


def release(version: str, day: date, root: Path = ROOT) -> list[str]:
    """Write all files, or none; the names of those that changed."""
    check_changelog((root / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    values = {"version": version, "day": day.isoformat()}
    texts: dict[str, str] = {}
    for name, pattern, kind in PLACES:
        before = texts.get(name) or (root / name).read_text(encoding="utf-8")
        try:
            texts[name] = replaced(before, pattern, values[kind])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    listed, toc = ((root / name).read_text(encoding="utf-8") for name in (ADDRESSES, "_toc.yml"))
    texts[ADDRESSES] = with_pages(listed, toc)
    changed = [n for n, text in texts.items() if text != (root / n).read_text(encoding="utf-8")]
    for name in changed:
        (root / name).write_text(texts[name], encoding="utf-8")
    return changed


def version_word(text: str) -> str:
    if not re.fullmatch(VERSION, text):
        raise argparse.ArgumentTypeError(f"{text!r}: a version is three numbers, 0.2.0")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", type=version_word)
    parser.add_argument("--day", type=date.fromisoformat, default=date.today())
    options = parser.parse_args()
    try:
        changed = release(options.version, options.day)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    print("Changed: " + (", ".join(changed) or "nothing"))
    print(f"Next: make test, commit, tag v{options.version}, push both (see MAINTAINING.md)")


if __name__ == "__main__":
    main()
