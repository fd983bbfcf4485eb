"""Links within the site: every file and every anchor that a page points to is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from serve import serving

from sitechecks import Result
from sitechecks.browsing import pages_of

ROOT = Path(__file__).resolve().parents[2]
LINKINATOR = ROOT / "node_modules" / "linkinator" / "build" / "src" / "cli.js"


class Anchors(HTMLParser):
    """Ids and links of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids.update(filter(None, (attributes.get("id"), attributes.get("name"))))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])


def dead_links(site: Path) -> tuple[list[str], int]:
    """Links that miss their file or the anchor in it, and how many were looked at."""
    known = {name: Anchors(site / name) for name in pages_of(site)}
    dead, looked_at = [], 0
    for name, anchors in known.items():
        for link in anchors.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            looked_at += 1
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            relative = os.path.relpath(target, site).replace(os.sep, "/")
            # A browser figure reads its state from a fragment with an equals sign.
            fragment = unquote(parts.fragment)
            anchor = fragment if relative in known and "=" not in fragment else ""
            if not target.is_file() or (anchor and anchor not in known[relative].ids):
                dead.append(f"{name} -> {link}")
    return dead, looked_at


def linkinator(address: str, *words: str, patience: int = 300) -> list[dict]:
    """What linkinator found at an address: ``url``, ``state`` and ``status`` of each link."""
    program = shutil.which("node", path=str(ROOT / ".venv" / "bin")) or shutil.which("node")
    command = [program, str(LINKINATOR), f"{address}/", "--format", "json", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience)
    return json.loads(ended.stdout)["links"]


def crawled(address: str) -> tuple[list[str], int]:
    """Addresses that linkinator cannot load (pictures, scripts and styles too), and all loaded."""
    links = linkinator(address, "--recurse", "--skip", r"^https?://(?!127\.0\.0\.1)")
    broken = [link["url"] for link in links if link["state"] == "BROKEN"]
    return broken, sum(link["state"] == "OK" for link in links)


def run(site: Path, options) -> Result:
    dead, looked_at = dead_links(site)
    with serving(site) as address:
        broken, loaded = crawled(address)
    rows = [("links within the site", str(looked_at)), ("addresses loaded", str(loaded))]
    return Result("links", rows, [*dead, *(f"not loaded: {url}" for url in broken)])
