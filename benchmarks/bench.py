"""Speed as ratios measured in one run, beside what a user would write instead.

``make bench`` runs it; ``make bench ARGS="--machine 'two cores, 2023 server'"`` also writes
``benchmarks/results/``.  Every job is timed in turns with its peers, several times, and each side
counts by its best time, so that what else the machine does weighs on neither.  A peer is written
in two honest ways and the faster one counts; the other is shown too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics as statistics_
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# A fresh cache, so that the compile times shown are those of a first call on a GPU too.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="kllab-bench-")

import peers
import torch

import kllab
from kllab import _compile, exact, sampling, simulate

HERE = Path(__file__).parent
REPLICATES, N, VOCABULARY = 65_536, 64, 128_256
ROWS, LOGITS = 64, 151_936
TURN = 0.2
"""Seconds that a job gets in each turn, at least one run."""
THREE = [kllab.K1, kllab.K2, kllab.K3]


def timed(jobs: dict[str, Callable], device: torch.device, rounds: int) -> dict[str, list[float]]:
    """Seconds of each job, run in turns; the first of each list is the first call."""
    seconds = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            # A short job is run some times a turn: it shall not live by luck alone.
            end = time.perf_counter() + TURN * bool(turn)
            while True:
                wait(device)
                start = time.perf_counter()
                job()
                wait(device)
                now = time.perf_counter()
                seconds[name].append(now - start)
                if now >= end:
                    break
    return seconds


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def real_pair(device: torch.device):
    return kllab.pairs.lm_like(VOCABULARY, kl=0.05, generator=generator()).to(device)


def draw_and_reduce(device: torch.device, rounds: int) -> list[dict]:
    shape = (REPLICATES, N)
    draws = generator(1)
    rows = []
    pairs = {
        "LM-like": real_pair(device),
        "Zipf": kllab.pairs.zipf(VOCABULARY, 1.0, 1.1).to(device),
    }
    for law, pair in pairs.items():

        def ours(pair=pair):
            return simulate.means(pair, THREE, n=N, replicates=REPLICATES, generator=draws)

        seconds = timed(
            {
                "ours": ours,
                "Categorical.sample, log_prob": lambda p=pair: peers.distribution_pipeline(
                    p, shape
                ),
                "multinomial, one look-up": lambda p=pair: peers.multinomial_pipeline(p, shape),
                "torch.rand of as many": lambda: torch.rand(shape, device=device),
            },
            device,
            rounds,
        )
        rand = seconds.pop("torch.rand of as many")
        job = f"draw {REPLICATES:,} x {N}, reduce k1 k2 k3 ({law})"
        rows.append(row(job, seconds, 35.0))
        rows.append(row(job, {"ours": seconds["ours"], "torch.rand of as many": rand}, 1.0))
    return rows


def statistics(device: torch.device, rounds: int) -> list[dict]:
    a = 3 * torch.randn(ROWS, LOGITS, generator=generator())
    b = a + 0.1 * torch.randn(ROWS, LOGITS, generator=generator(1))
    a, b = a.to(device), b.to(device)
    seconds = timed(
        {
            "ours": lambda: exact.statistics(a, b),
            "the formulas, plainly": lambda: peers.shared_temporaries(a, b),
            "by library calls": lambda: peers.library_calls(a, b),
            "row by row": lambda: peers.row_by_row(a, b),
            "copy": lambda: b.clone(),
        },
        device,
        rounds,
    )
    copy, by_row = min(seconds.pop("copy")[1:]), seconds.pop("row by row")
    job = f"statistics, {ROWS} x {LOGITS:,} float32 logits"
    rows = [
        row(job, seconds, 20.0),
        row(job, {"ours": seconds["ours"], "the formulas, row by row": by_row}, None),
    ]
    # A copy reads and writes what statistics reads of one input.
    share = (a.nbytes + b.nbytes) / rows[0]["ours_seconds"] / (2 * b.nbytes / copy)
    rows[0]["share_of_copy_bandwidth"] = share
    rows[0]["extra_memory"] = extra_memory(lambda: exact.statistics(a, b), device)
    if rows[0]["extra_memory"] is not None:
        rows[0]["extra_memory"] /= a.nbytes + b.nbytes
    return rows


def sampling_distribution(device: torch.device, rounds: int) -> list[dict]:
    pair = real_pair(torch.device("cpu"))
    law = exact.sampling_distribution(kllab.K3, pair, N)
    shape = (REPLICATES // 4, N)
    # The standard error of an empirical CDF is at most 1/(2 √R).
    replicates = 1 / (4 * law.error**2)
    seconds = timed(
        {
            "ours": lambda: exact.sampling_distribution(kllab.K3, pair, N),
            "Categorical.sample, log_prob": lambda: peers.distribution_pipeline(pair, shape),
            "multinomial, one look-up": lambda: peers.multinomial_pipeline(pair, shape),
        },
        torch.device("cpu"),
        rounds,
    )
    for peer in list(seconds)[1:]:
        seconds[peer] = [s * replicates / shape[0] for s in seconds[peer]]
    job = (
        f"exact sampling distribution, V = {VOCABULARY:,}, n = {N}, or {replicates:.3g} replicates"
    )
    return [row(job, seconds, 1000.0) | {"cdf_error": law.error}]


def row(job: str, seconds: dict[str, list[float]], wanted: float | None) -> dict:
    """Best of ours and of each peer, as ratios; the fastest peer first."""
    first, *later = seconds["ours"]
    best = {peer: min(s[1:]) for peer, s in seconds.items() if peer != "ours"}
    ours = min(later)
    return {
        "job": job,
        "ours_seconds": ours,
        "ours_median_seconds": statistics_.median(later),
        "ours_first_call_seconds": first,
        "peer_seconds": dict(sorted(best.items(), key=lambda item: item[1])),
        "ratio": min(best.values()) / ours,
        "wanted": wanted,
    }


def extra_memory(job: Callable, device: torch.device) -> int | None:
    """Most bytes that a job holds beyond what was held before; ``None`` where nobody can tell."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        job()
        return torch.cuda.max_memory_allocated(device) - before
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    reset.write_text("5")  # the high-water mark starts anew
    before = kilobytes(status, "VmRSS")
    job()
    return 1024 * (kilobytes(status, "VmHWM") - before)


def kilobytes(status: Path, field: str) -> int:
    return int(re.search(rf"{field}:\s+(\d+)", status.read_text())[1])


def missing() -> list[str]:
    """What made something run uncompiled."""
    found = [kernel.error for kernel in (simulate._sums, sampling._draw) if kernel.error]
    if _compile.numba_module() is None:
        found.append("no numba: everything ran uncompiled on the CPU")
    return found


def show(report: dict) -> None:
    print(f"\ntorch {report['torch']}, {report['threads']} threads, {report['device']}")
    for r in report["rows"]:
        wanted = "" if r["wanted"] is None else f"  (wanted: {r['wanted']:g})"
        verdict = "" if r["wanted"] is None else "ok  " if r["ratio"] >= r["wanted"] else "slow"
        print(
            f"\n{r['job']}\n       ours {1e3 * r['ours_seconds']:.3g} ms at best, median "
            f"{1e3 * r['ours_median_seconds']:.3g} ms, first call "
            f"{r['ours_first_call_seconds']:.2g} s"
        )
        for peer, seconds in r["peer_seconds"].items():
            ratio = seconds / r["ours_seconds"]
            print(f"  {verdict:4s} {ratio:9.3g} x  {peer}: {1e3 * seconds:.4g} ms{wanted}")
            verdict = wanted = ""  # the fastest peer decides
        if "cdf_error" in r:
            print(f"       CDF error at most {r['cdf_error']:.2g}")
        if "share_of_copy_bandwidth" in r:
            print(f"       reads at {r['share_of_copy_bandwidth']:.0%} of the bandwidth of a copy")
        if r.get("extra_memory") is not None:
            print(f"       extra memory {r['extra_memory']:.1%} of the inputs")
    print()
    for reason in report["missing"]:
        print(reason)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--machine", default="", help="what to call this machine in results/")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--strict", action="store_true", help="fail where a job is too slow")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    device = torch.device(options.device)
    report = {
        "machine": options.machine,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kllab": kllab.__version__,
        "rows": [],
    }
    for job in (draw_and_reduce, statistics, sampling_distribution):
        print(f"measuring {job.__name__} …", flush=True)
        report["rows"] += job(device, options.rounds)
    report["missing"] = missing()
    show(report)
    if options.machine:
        name = re.sub(r"[^a-z0-9]+", "-", options.machine.lower()).strip("-")
        target = HERE / "results" / f"{name}.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"\nwritten: {target.relative_to(HERE.parent)}")
    missed = [r["job"] for r in report["rows"] if r["wanted"] and r["ratio"] < r["wanted"]]
    sys.exit(1 if missed and options.strict else 0)


if __name__ == "__main__":
    main()
