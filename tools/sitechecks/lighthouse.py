"""Lighthouse on three pages, as on a phone over a slow line (simulated): four scores each.

Performance depends on the machine, so each page is visited several times and the median counts.
The load of the machine is reported beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
from pathlib import Path

from browser import FLAGS, HINT, find_chromium
from serve import serving

from sitechecks import Result
from sitechecks.published import CompressingHandler

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAM = HERE / "node_modules" / "lighthouse" / "cli" / "index.js"
PAGES = {
    "chapter": "notebooks/02_three_estimators.html",
    "landing": "book/index.html",
    "atlas": "notebooks/14_atlas.html",
}
CATEGORIES = ("performance", "accessibility", "best-practices", "seo")
LEAST = 0.95
METRICS = ("first-contentful-paint", "largest-contentful-paint", "total-blocking-time")
SHIFT = "cumulative-layout-shift"


def add_options(parser) -> None:
    parser.add_argument("--visits", type=int, default=3, help="of Lighthouse to each page")


def visit(url: str) -> dict:
    """Lighthouse's whole report on one visit."""
    node = shutil.which("node", path=str(ROOT / ".venv" / "bin")) or shutil.which("node")
    flags = " ".join(["--headless=new", *FLAGS]).replace("MAP * ~NOTFOUND,", "MAP\\ *\\ ~NOTFOUND,")
    command = [node, str(PROGRAM), url, "--quiet", "--output=json", "--output-path=stdout"]
    command += ["--throttling-method=simulate", "--no-enable-error-reporting"]
    command += [f"--only-categories={','.join(CATEGORIES)}", f"--chrome-flags={flags}"]
    environment = os.environ | {"CHROME_PATH": find_chromium()}
    ended = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    if ended.returncode:
        raise RuntimeError(f"Lighthouse ended with {ended.returncode}: {ended.stderr[-500:]}")
    return json.loads(ended.stdout)


def scores(reports: list[dict]) -> dict[str, float]:
    """The median of each category."""
    return {
        name: statistics.median(report["categories"][name]["score"] for report in reports)
        for name in CATEGORIES
    }


def lost(report: dict, category: str) -> list[str]:
    """Audits that cost a category something, those that cost most first."""
    audits = report["audits"]
    costs = {
        reference["id"]: reference["weight"] * (1 - audits[reference["id"]]["score"])
        for reference in report["categories"][category]["auditRefs"]
        if reference["weight"] and audits[reference["id"]]["score"] is not None
    }
    return sorted((name for name, cost in costs.items() if cost > 0), key=lambda n: -costs[n])


def times(reports: list[dict]) -> str:
    """Medians of what performance is made of."""
    medians = [
        f"{name} {statistics.median(r['audits'][name]['numericValue'] for r in reports):.0f} ms"
        for name in METRICS
    ]
    shift = statistics.median(r["audits"][SHIFT]["numericValue"] for r in reports)
    return ", ".join([*medians, f"{SHIFT} {shift:.3f}"])


def run(site: Path, options) -> Result:
    if not PROGRAM.is_file():
        return Result("lighthouse", [], ["not installed: `make checks` does it"])
    if not find_chromium():
        return Result("lighthouse", [], [HINT])
    rows, faults = [], []
    with serving(site, CompressingHandler) as address:
        for what, name in PAGES.items():
            reports = [visit(f"{address}/{name}") for _ in range(options.visits)]
            found = scores(reports)
            rows.append((what, ", ".join(f"{n} {score:.2f}" for n, score in found.items())))
            rows.append(("", times(reports)))
            faults += [
                f"{name}: {n} {score:.2f}, lost by {', '.join(lost(reports[0], n))}"
                for n, score in found.items()
                if score < LEAST
            ]
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count()
    rows.append(("load of the machine", f"{load:.1f} on {cores} cores"))
    return Result("lighthouse", rows, faults)
