"""Mutation testing: break the code in one place at a time, and see whether a test notices.

``python tools/mutation.py divergences`` tries every mutant of a module, ``--sample 300`` as many
drawn at random, the same ones every time; ``--again`` tries once more what was not killed.
``tools/mutation.toml`` says which tests a module has, which of them are too slow to repeat that
often, and which mutants change nothing and why.

Cosmic Ray (``tools/mutation-requirements.txt``) makes the mutants, with all of its operators that
need no arguments.  Each is written into a copy of the tree and tested in a fork of this process,
because importing PyTorch takes longer than most tests.  Linux and macOS only.

A mutant is killed when a test fails.  It is not when it runs out of time.  One that the tests
cannot even import is not counted at all, nor is one that changes only annotations, which nobody
evaluates.  Kernels run as plain PyTorch, since a compiled one would be compiled for each mutant.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import gc
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIG = Path(__file__).with_suffix(".toml")
RESULTS = ROOT / "_build" / "mutation"
MEMORY = 16 * 2**30  # of address space: a mutant may ask for any size
# Nothing that a verdict does not need: no plugins, no explained assertions, no last collection.
QUICK = ("-x", "-q", "--tb=line", "--assert=plain", "--disable-plugin-autoload")
QUICK += ("-p", "no:cacheprovider", "-p", "no:unraisableexception", "-p", "no:threadexception")


@dataclass(frozen=True)
class Mutant:
    """One change: Cosmic Ray's operator and its occurrence, and the lines before and after."""

    operator: str
    occurrence: int
    number: int
    line: str
    becomes: str


@dataclass(frozen=True)
class Outcome:
    """``verdict``: "killed" (``by`` which test), "survived", "timeout" or "broken"."""

    mutant: Mutant
    verdict: str
    by: str = ""


# --- mutants ----------------------------------------------------------------------------------


def what_runs(source: str) -> str | None:
    """The syntax tree without annotations and docstrings; ``None`` for what is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        has_text = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
        if has_text and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.dump(tree)


def changed_lines(before: str, after: str) -> tuple[int, str, str]:
    """Number of the first changed line, and the changed lines without their indentation."""
    matcher = difflib.SequenceMatcher(None, a := before.split("\n"), b := after.split("\n"), False)
    (_, a1, a2, b1, b2), *_ = [op for op in matcher.get_opcodes() if op[0] != "equal"]
    old, new = (" ".join(filter(None, map(str.strip, lines))) for lines in (a[a1:a2], b[b1:b2]))
    return a1 + 1, old, new


def places(source: str) -> list[tuple[str, int]]:
    """Every operator and occurrence, in the order of Cosmic Ray."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    nodes = list(ast_nodes(get_ast(source)))
    found = []
    for name in plugins.operator_names():
        operator = plugins.get_operator(name)
        if not operator.arguments():
            count = sum(len(list(operator().mutation_positions(node))) for node in nodes)
            found += [(name, k) for k in range(count)]
    return found


def mutants(source: str, sample: int | None, seed: int) -> Iterator[tuple[Mutant, str]]:
    """Mutants with their source: all, or ``sample`` of those that are a different program."""
    from cosmic_ray import mutating, plugins

    candidates = places(source)
    if sample is not None:
        random.Random(seed).shuffle(candidates)
    original, made = what_runs(source), 0
    for name, occurrence in candidates:
        if made == sample:
            return
        code = mutating.mutate_code(source, plugins.get_operator(name)(), occurrence)
        if code is not None and what_runs(code) not in (None, original):
            made += 1
            yield Mutant(name, occurrence, *changed_lines(source, code)), code


# --- one run of the tests ---------------------------------------------------------------------


class Observer:
    """A pytest plugin: quick tests and those that killed before come first; who fails is told."""

    def __init__(self, durations: dict[str, float], kills: Counter[str]):
        self.durations, self.kills = dict(durations), kills
        self.failed = ""

    def pytest_collection(self):
        from hypothesis import Phase, settings

        # After conftest's profile, before the tests read it: a failure need not be made small.
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutation", settings(), phases=phases, database=None)
        settings.load_profile("mutation")

    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda i: (-self.kills[i.nodeid], self.durations.get(i.nodeid, 0.0)))

    def pytest_runtest_logreport(self, report):
        spent = self.durations.get(report.nodeid, 0.0) if report.when != "setup" else 0.0
        self.durations[report.nodeid] = spent + report.duration
        if report.failed:
            self.failed = report.nodeid


def run_tests(tests: list[str], observer: Observer, pipe, log: str) -> None:
    """In a fork: run pytest up to the first failure, and send (code, who failed, durations)."""
    import resource

    os.setsid()  # so that what a test starts can be ended with it
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with open(log, "w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    import pytest

    code = pytest.main([*QUICK, *tests], plugins=[observer])
    pipe.send((int(code), observer.failed, observer.durations))


def forked(tests: list[str], observer: Observer, seconds: float, log: str):
    """What ``run_tests`` sends; ``None`` when time is up, (−1, "crash", {}) when it dies."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=run_tests, args=(tests, observer, sender, log))
    process.start()
    sender.close()
    answered = receiver.poll(seconds)
    try:
        return receiver.recv() if answered else None
    except EOFError:
        return -1, "crash", {}
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()
        process.join()


def judged(answer) -> tuple[str, str]:
    """(verdict, by) from pytest's exit code: 0 all passed, 1 one failed, 2 not collected."""
    if answer is None:
        return "timeout", ""
    code, failed, _ = answer
    if code == 0:
        return "survived", ""
    return ("killed", failed) if failed else ("broken", "")


# --- a module ---------------------------------------------------------------------------------


def copy_of_the_tree(target: Path) -> None:
    """Files under version control, and new ones that are not ignored."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def preload() -> None:
    """Import what all forks share; not the package, which each imports mutated."""
    os.environ |= {"OMP_NUM_THREADS": "1", "KLLAB_COMPILE": "0"}
    for name in ("hypothesis", "mpmath", "pytest", "scipy.integrate", "scipy.fft", "scipy.special"):
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    gc.freeze()
    # Transforms import parts of PyTorch at their first use.
    torch.func.vmap(torch.func.grad(torch.sin))(torch.zeros(2))
    assert not [name for name in sys.modules if name.startswith("kllab")]


def test_module(name: str, tree: Path, sample: int | None, again: bool) -> list[Outcome]:
    config = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
    module, seed = config["module"][name], config["seed"]
    tests = [*module["tests"], *(f"--deselect={slow}" for slow in module.get("without", ()))]
    path = tree / "src" / "kllab" / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    log = str(tree / "pytest.log")

    start = time.monotonic()
    first = forked(tests, Observer({}, Counter()), 3600, log)
    if not first or first[0]:
        raise SystemExit(Path(log).read_text() + f"\nthe tests of {name} fail without a mutation")
    durations = first[2]
    limit = 3 * (time.monotonic() - start) + 10
    for cached in path.parent.glob(f"__pycache__/{name}.*"):
        cached.unlink()
    sys.dont_write_bytecode = True  # the module's would be taken for that of the next mutant

    record = RESULTS / f"{name}.jsonl"
    before = load(record) if again else []
    known = {o.mutant: o for o in before}  # of a line that has changed nothing is known
    kills: Counter[str] = Counter(o.by for o in before if o.by)
    record.parent.mkdir(parents=True, exist_ok=True)
    outcomes = []
    with record.open("a" if again else "w", encoding="utf-8") as out:
        for mutant, code in mutants(source, sample, seed):
            outcome = known.get(mutant)
            if outcome is None or outcome.verdict in ("survived", "timeout"):
                path.write_text(code, encoding="utf-8")
                answer = forked(tests, Observer(durations, kills), limit, log)
                outcome = Outcome(mutant, *judged(answer))
                kills[outcome.by] += 1
                print(f"{outcome.verdict:9}{mutant.number:5}  {mutant.becomes}", flush=True)
                out.write(json.dumps(asdict(outcome), ensure_ascii=False) + "\n")
                out.flush()
            outcomes.append(outcome)
    path.write_text(source, encoding="utf-8")
    return outcomes


def load(record: Path) -> list[Outcome]:
    rows = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    return [Outcome(Mutant(**row["mutant"]), row["verdict"], row["by"]) for row in rows]


# --- what is known to change nothing ----------------------------------------------------------


def equivalents(name: str) -> dict[tuple[str, str], str]:
    """(line, what it becomes) -> the reason why no test can tell."""
    config = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
    rows = config["module"][name].get("equivalent", [])
    return {(r["line"], after): r["reason"] for r in rows for after in r["becomes"]}


def report(name: str, outcomes: list[Outcome]) -> float:
    """Print the survivors that nobody explained, and return the share of mutants killed."""
    known = equivalents(name)
    count = Counter(o.verdict for o in outcomes)
    left = [o for o in outcomes if o.verdict in ("survived", "timeout")]
    open_ = [o for o in left if (o.mutant.line, o.mutant.becomes) not in known]
    for o in open_:
        print(
            f"{o.verdict} {name}.py:{o.mutant.number}\n  - {o.mutant.line}\n  + {o.mutant.becomes}"
        )
    counted = count["killed"] + len(left)
    score = count["killed"] / max(counted, 1)
    print(
        f"{name}: {counted} mutants, {count['killed']} killed ({score:.1%}), "
        f"{len(left) - len(open_)} shown equivalent, {count['timeout']} out of time, "
        f"{len(open_)} open; {count['broken']} more could not be imported"
    )
    return score


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation testing of the package.")
    parser.add_argument("module", nargs="+", help="as in tools/mutation.toml")
    parser.add_argument("--sample", type=int, help="so many mutants at random; all without it")
    parser.add_argument("--again", action="store_true", help="only what was not killed last time")
    parser.add_argument("--least", type=float, default=0.9, help="fail below this share killed")
    options = parser.parse_args()
    scores = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve()
        copy_of_the_tree(tree)
        sys.path.insert(0, str(tree / "src"))
        os.environ["PYTHONPATH"] = sys.path[0]  # for tests that start Python anew
        os.chdir(tree)
        preload()
        for name in options.module:
            outcomes = test_module(name, tree, options.sample, options.again)
            scores.append(report(name, outcomes))
    if min(scores) < options.least:
        raise SystemExit(f"below {options.least:.0%}")


if __name__ == "__main__":
    main()
