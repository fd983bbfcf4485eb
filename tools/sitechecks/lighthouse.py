"""Lighthouse on three pages, as on a phone over a slow line (simulated): four scores each.

Performance depends on the machine, so each page is visited several times and the median counts. On
a machine that is busy with something else it is shown and not judged.
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
SLOW = 1000  # Lighthouse's own index of the machine; below, its times say nothing about the page


def add_options(parser) -> None:
    parser.add_argument("--visits", type=int, default=3, help="of Lighthouse to each page")
    parser.add_argument("--desktop", action="store_true", help="Lighthouse as on a desk")


def visit(url: str, desktop: bool = False) -> dict:
    """Lighthouse's whole report on one visit."""
    node = shutil.which("node", path=str(ROOT / ".venv" / "bin")) or shutil.which("node")
    flags = " ".join(["--headless=new", *FLAGS]).replace("MAP * ~NOTFOUND,", "MAP\\ *\\ ~NOTFOUND,")
    command = [node, str(PROGRAM), url, "--quiet", "--output=json", "--output-path=stdout"]
    command += ["--throttling-method=simulate", "--no-enable-error-reporting"]
    command += [f"--only-categories={','.join(CATEGORIES)}", f"--chrome-flags={flags}"]
    command += ["--preset=desktop"] if desktop else []
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


def index(reports: list[dict]) -> float:
    """How fast the machine was meanwhile; an idle laptop has 1500 or more."""
    return statistics.median(report["environment"]["benchmarkIndex"] for report in reports)


def run(site: Path, options) -> Result:
    if not PROGRAM.is_file():
        return Result("lighthouse", [], ["not installed: `make checks` does it"])
    if not find_chromium():
        return Result("lighthouse", [], [HINT])
    rows, faults = [], []
    with serving(site, CompressingHandler) as address:
        for what, name in PAGES.items():
            url = f"{address}/{name}"
            reports = [visit(url, options.desktop) for _ in range(options.visits)]
            found, speed = scores(reports), index(reports)
            rows.append((what, ", ".join(f"{n} {score:.2f}" for n, score in found.items())))
            busy = "; a busy machine: performance is not judged" if speed < SLOW else ""
            rows.append(("", f"{times(reports)}; index of the machine {speed:.0f}{busy}"))
            faults += [
                f"{name}: {n} {score:.2f}, lost by {', '.join(lost(reports[0], n))}"
                for n, score in found.items()
                if score < LEAST and not (busy and n == "performance")
            ]
    return Result("lighthouse", rows, faults)
