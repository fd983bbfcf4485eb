"""Accessibility by axe on every page: light and dark, on a phone and on a desk."""

from __future__ import annotations

from pathlib import Path

from browser import chromium
from serve import serving

from sitechecks import Result
from sitechecks.browsing import DESK, faults_in_all_looks, open_page, pages_of, watched


def run(site: Path, options) -> Result:
    names, faults = pages_of(site), []
    with serving(site) as address, chromium() as chrome:
        for name in names:
            with watched(chrome, viewport=DESK) as (page, broken):
                open_page(page, f"{address}/{name}")
                faults += [
                    f"{name}: {fault}" for fault in faults_in_all_looks(page, more=True) + broken
                ]
    return Result("axe", [("pages, each in four looks", str(len(names)))], faults)
