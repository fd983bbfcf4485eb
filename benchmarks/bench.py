"""Speed as ratios measured in one run, beside what a user would write instead.

``make bench`` runs it; ``make bench ARGS="--machine 'two cores, 2023 server'"`` also writes
``benchmarks/results/``.  Every job is timed in turns with its peers, several times, and each side
counts by its best time, so that what else the machine does weighs on neither.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# A fresh cache, so that the compile times shown are those of a first call.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="kllab-bench-")

import peers
import torch

import kllab
from kllab import _compile, _statistics, exact, sampling, simulate

HERE = Path(__file__).parent
REPLICATES, N, VOCABULARY = 65_536, 64, 128_256
ROWS, LOGITS = 64, 151_936
THREE = [kllab.K1, kllab.K2, kllab.K3]


def timed(jobs: dict[str, Callable], device: torch.device, rounds: int) -> dict[str, float]:
    """Best seconds of each job, run in turns; the first turn is not counted."""
    best = dict.fromkeys(jobs, float("inf"))
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            wait(device)
            start = time.perf_counter()
            job()
            wait(device)
            if turn:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


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

        best = timed(
            {
                "ours": ours,
                "distribution": lambda pair=pair: peers.distribution_pipeline(pair, shape),
                "multinomial": lambda pair=pair: peers.multinomial_pipeline(pair, shape),
                "rand": lambda: torch.rand(shape, device=device),
            },
            device,
            rounds,
        )
        plain = min(best["distribution"], best["multinomial"])
        job = f"draw {REPLICATES:,} x {N}, reduce k1 k2 k3 ({law})"
        rows.append(row(job, "plain torch pipeline", best["ours"], plain, 35.0))
        rows.append(row(job, "torch.rand of as many", best["ours"], best["rand"], 1.0))
    return rows


def statistics(device: torch.device, rounds: int) -> list[dict]:
    a = 3 * torch.randn(ROWS, LOGITS, generator=generator())
    b = a + 0.1 * torch.randn(ROWS, LOGITS, generator=generator(1))
    a, b = a.to(device), b.to(device)
    best = timed(
        {
            "ours": lambda: exact.statistics(a, b),
            "shared": lambda: peers.shared_temporaries(a, b),
            "library": lambda: peers.library_calls(a, b),
            "rows": lambda: peers.row_by_row(a, b),
            "copy": lambda: b.clone(),
        },
        device,
        rounds,
    )
    plain = min(best["shared"], best["library"])
    job = f"statistics, {ROWS} x {LOGITS:,} float32 logits"
    rows = [
        row(job, "the same formulas, plainly", best["ours"], plain, 20.0),
        row(job, "the same, row by row", best["ours"], best["rows"], None),
    ]
    # A copy reads and writes what statistics reads of one input.
    share = (a.nbytes + b.nbytes) / best["ours"] / (2 * b.nbytes / best["copy"])
    rows[0]["share_of_copy_bandwidth"] = share
    rows[0]["extra_memory"] = extra_memory(lambda: exact.statistics(a, b), device)
    if rows[0]["extra_memory"] is not None:
        rows[0]["extra_memory"] /= a.nbytes + b.nbytes
    return rows


def sampling_distribution(device: torch.device, rounds: int) -> list[dict]:
    pair = real_pair(torch.device("cpu"))
    law = exact.sampling_distribution(kllab.K3, pair, N)
    shape = (REPLICATES // 4, N)
    best = timed(
        {
            "ours": lambda: exact.sampling_distribution(kllab.K3, pair, N),
            "distribution": lambda: peers.distribution_pipeline(pair, shape),
            "multinomial": lambda: peers.multinomial_pipeline(pair, shape),
        },
        torch.device("cpu"),
        rounds,
    )
    # The standard error of an empirical CDF is at most 1/(2 √R).
    replicates = 1 / (4 * law.error**2)
    plain = min(best["distribution"], best["multinomial"]) / shape[0] * replicates
    job = f"exact sampling distribution, V = {VOCABULARY:,}, n = {N}"
    result = row(job, f"plain torch, {replicates:.3g} replicates", best["ours"], plain, 1000.0)
    return [result | {"cdf_error": law.error}]


def row(job: str, peer: str, ours: float, theirs: float, wanted: float | None) -> dict:
    return {
        "job": job,
        "peer": peer,
        "ours_seconds": ours,
        "peer_seconds": theirs,
        "ratio": theirs / ours,
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


def compiled() -> dict[str, float | str | None]:
    kernels = {
        "draw": sampling._draw,
        "draw and reduce": simulate._sums,
        "statistics, first pass": _statistics._first,
        "statistics, second pass": _statistics._second,
    }
    return {name: kernel.error or kernel.seconds for name, kernel in kernels.items()}


def show(report: dict) -> None:
    print(f"\ntorch {report['torch']}, {report['threads']} threads, {report['device']}")
    for r in report["rows"]:
        wanted = "" if r["wanted"] is None else f"  (wanted: {r['wanted']:g})"
        verdict = "" if r["wanted"] is None else "ok  " if r["ratio"] >= r["wanted"] else "slow"
        print(f"\n{r['job']}\n  against {r['peer']}")
        print(
            f"  {verdict:4s} {r['ratio']:9.3g} x   ours {1e3 * r['ours_seconds']:.3g} ms, "
            f"peer {1e3 * r['peer_seconds']:.4g} ms{wanted}"
        )
        if "cdf_error" in r:
            print(f"       CDF error at most {r['cdf_error']:.2g}")
        if "share_of_copy_bandwidth" in r:
            print(f"       reads at {r['share_of_copy_bandwidth']:.0%} of the bandwidth of a copy")
        if r.get("extra_memory") is not None:
            print(f"       extra memory {r['extra_memory']:.1%} of the inputs")
    print()
    for name, value in report["compile"].items():
        if isinstance(value, float):
            print(f"first call of the compiled kernel, {name}: {value:.1f} s")
        elif value:
            print(f"not compiled, {name}: {value}")
    if report["compiler"] is False:
        print("no C++ compiler found: everything ran uncompiled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--machine", default="", help="what to call this machine in results/")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=4)
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
    report["compile"] = compiled()
    report["compiler"] = _compile.compiler() is not None
    show(report)
    if options.machine:
        name = re.sub(r"[^a-z0-9]+", "-", options.machine.lower()).strip("-")
        target = HERE / "results" / f"{name}.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"\nwritten: {target.relative_to(HERE.parent)}")
    missed = [r["job"] for r in report["rows"] if r["wanted"] and r["ratio"] < r["wanted"]]
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
