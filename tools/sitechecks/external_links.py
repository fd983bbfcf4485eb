"""Links that leave the site: every address of another host that a page names still answers.

linkinator asks each address once. ``exceptions.toml`` lists those that refuse robots, with the
reason. Other hosts are asked only with ``--network``.
"""

from __future__ import annotations

import html
import tempfile
from pathlib import Path

from serve import serving

from sitechecks import Result
from sitechecks.browsing import pages_of
from sitechecks.links import Anchors, linkinator
from sitechecks.outside import NO_NETWORK, PATIENCE, exceptions, reachable, user_agent

OUTSIDE = ("http://", "https://")
OURS = "http://127.0.0.1"
UNREACHED = 0  # linkinator's status where no host answered
POLITE = ("--concurrency", "4", "--timeout", f"{PATIENCE}000", "--retry", "--retry-errors")
ALL_TOGETHER = 1800  # seconds


def addresses(site: Path) -> dict[str, str]:
    """Addresses of other hosts, without their fragments, and the first page that links to each."""
    found: dict[str, str] = {}
    for name in pages_of(site):
        for link in Anchors(site / name).links:
            if link.startswith(OUTSIDE):
                found.setdefault(link.partition("#")[0], name)
    return found


def is_excused(url: str, known: dict[str, str]) -> bool:
    return any(url.startswith(beginning) for beginning in known)


def stale(urls: set[str], known: dict[str, str]) -> list[str]:
    """Exceptions for addresses that no page names any more."""
    return [
        f"{beginning}: excused in exceptions.toml, and no page links there"
        for beginning in known
        if not any(url.startswith(beginning) for url in urls)
    ]


def ask_all(urls: list[str]) -> dict[str, int]:
    """The status of each address, asked from one page that lists them."""
    items = "".join(f'<p><a href="{html.escape(url)}">link</a></p>' for url in urls)
    with tempfile.TemporaryDirectory() as folder:
        page = f'<!DOCTYPE html><html lang="en"><title>Links</title>{items}</html>'
        Path(folder, "index.html").write_text(page, encoding="utf-8")
        with serving(Path(folder)) as address:
            words = (*POLITE, "--user-agent", user_agent())
            links = linkinator(address, *words, patience=ALL_TOGETHER)
    return {
        link["url"]: 200 if link["state"] == "OK" else link.get("status", UNREACHED)
        for link in links
        if not link["url"].startswith(OURS)
    }


def faults_of(status: dict[str, int], pages: dict[str, str]) -> list[str]:
    """Addresses that do not answer as they should, each with a page that links there."""
    said = {UNREACHED: "does not answer"}
    return [
        f"{pages.get(url, 'a page')}: {url} {said.get(number, f'answers {number}')}"
        for url, number in sorted(status.items())
        if number != 200
    ]


def run(site: Path, options) -> Result:
    pages, known = addresses(site), exceptions()["links"]
    urls = [url for url in pages if not is_excused(url, known)]
    rows = [("addresses of other hosts", str(len(pages))), ("excused", str(len(pages) - len(urls)))]
    if not options.network:
        return Result("external_links", [*rows, ("asked", "none: --network asks them")])
    if not reachable(urls):
        return Result("external_links", rows, [NO_NETWORK.format(f"{len(urls)} addresses")])
    faults = faults_of(ask_all(urls), pages) + stale(set(pages), known)
    return Result("external_links", [*rows, ("asked", str(len(urls)))], faults)
