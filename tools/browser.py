"""One way to start Chromium, for tests and PDF: no address outside this machine resolves."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
HINT = (
    "no Chromium found: install your system's chromium package, "
    "or run `playwright install chromium` in .venv"
)


def find_chromium() -> str | None:
    """The path of a Chromium, from the system or from ``playwright install``; None without one."""
    candidates = [os.environ.get("CHROMIUM", ""), *filter(None, map(shutil.which, NAMES))]
    for path in candidates:
        if path and Path(path).exists():
            return path
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium; ``RuntimeError`` says how to get one where there is none."""
    path = find_chromium()
    if path is None:
        raise RuntimeError(HINT)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()
