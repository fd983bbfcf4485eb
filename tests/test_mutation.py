"""The runner of the mutation tests: what counts as a change, what a verdict is, what is excused.

Cosmic Ray itself is not in the lock file; the scheduled job installs it and runs the whole.
"""

import json
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import mutation
import pytest

ROOT = Path(__file__).resolve().parents[1]
CONFIG = tomllib.loads(mutation.CONFIG.read_text(encoding="utf-8"))
MODULES = CONFIG["module"]


def source_of(name: str) -> str:
    return (ROOT / "src" / "kllab" / f"{name}.py").read_text(encoding="utf-8")


# --- the configuration ------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_each_module_has_tests_that_exist(name):
    assert source_of(name)
    assert MODULES[name]["tests"]
    for test in [*MODULES[name]["tests"], *MODULES[name].get("without", ())]:
        path, _, rest = test.partition("::")
        assert (ROOT / path).exists(), test
        function = f"def {rest.partition('[')[0]}("
        assert not rest or function in (ROOT / path).read_text(encoding="utf-8"), test


def excused() -> list[tuple[str, dict]]:
    return [(name, row) for name in MODULES for row in MODULES[name].get("equivalent", [])]


def test_each_excuse_is_about_a_line_that_is_there():
    for name, row in excused():
        assert set(row) == {"line", "becomes", "reason"}
        assert row["reason"].strip()
        flat = " ".join(source_of(name).split())
        assert " ".join(row["line"].split()) in flat, f"{name} has no more: {row['line']}"
        assert len(set(row["becomes"])) == len(row["becomes"]) > 0
        assert row["line"] not in row["becomes"]


def test_no_mutant_is_excused_twice():
    keys = [(name, row["line"], after) for name, row in excused() for after in row["becomes"]]
    assert len(set(keys)) == len(keys)


def test_the_scheduled_job_has_every_module():
    workflow = (ROOT / ".github" / "workflows" / "mutation.yml").read_text(encoding="utf-8")
    listed = workflow.split("module: [")[1].split("]")[0]
    assert {name.strip() for name in listed.split(",")} == set(MODULES)


# --- mutants ----------------------------------------------------------------------------------

CODE = '''
from __future__ import annotations


def f(x: int | None, *, y: float = 1.0) -> int | None:
    """Twice x."""
    z: int | None = 2 * x
    return z
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("x: int | None", "x: int + None", True),
        ("-> int | None", "-> int & None", True),
        ("z: int | None", "z: int ^ None", True),
        ("Twice", "Half", True),
        ("2 * x", "2 + x", False),
        ("1.0", "2.0", False),
        (", *, y", ", y", False),
    ],
)
def test_only_what_runs_counts_as_a_change(old, new, same):
    assert old in CODE
    changed = mutation.what_runs(CODE.replace(old, new))
    assert (changed == mutation.what_runs(CODE)) == same


def test_what_is_no_python_is_no_mutant():
    assert mutation.what_runs(CODE.replace("*, y", "+, y")) is None


def test_changed_lines_are_given_without_indentation():
    after = CODE.replace("2 * x", "2 + x")
    number = CODE.split("\n").index("    z: int | None = 2 * x") + 1
    assert mutation.changed_lines(CODE, after) == (
        number,
        "z: int | None = 2 * x",
        "z: int | None = 2 + x",
    )
    gone = CODE.replace("    return z\n", "")
    assert mutation.changed_lines(CODE, gone)[1:] == ("return z", "")


# --- verdicts ---------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="the runner forks")
@pytest.mark.parametrize(
    ("test", "verdict", "by"),
    [
        ("def test_a():\n    assert True", "survived", ""),
        ("def test_a():\n    assert False", "killed", "test_a"),
        ("import nothing_of_this_name", "broken", ""),
        ("def test_a():\n    while True: pass", "timeout", ""),
        ("import os\ndef test_a():\n    os.abort()", "killed", "crash"),
    ],
)
def test_a_verdict(tmp_path, test, verdict, by):
    path = tmp_path / "test_it.py"
    path.write_text(test, encoding="utf-8")
    seconds = 2 if verdict == "timeout" else 600
    script = f"""
    import json, sys
    from collections import Counter
    sys.path.insert(0, {str(ROOT / "tools")!r})
    import mutation
    observer = mutation.Observer({{}}, Counter())
    answer = mutation.forked([{str(path)!r}], observer, {seconds}, {str(tmp_path / "log")!r})
    print(json.dumps(mutation.judged(answer)))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    got, who = json.loads(done.stdout)
    assert got == verdict
    assert who.rpartition("::")[2] == by


class Item:
    def __init__(self, nodeid):
        self.nodeid = nodeid


def test_tests_that_killed_come_first_then_quick_ones():
    items = [Item(name) for name in ("slow", "quick", "new", "killer")]
    observer = mutation.Observer(
        {"slow": 3.0, "quick": 0.1, "killer": 9.0}, mutation.Counter(killer=2)
    )
    observer.pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["killer", "new", "quick", "slow"]


def test_the_score_counts_neither_timeouts_as_kills_nor_broken_ones_at_all(monkeypatch, capsys):
    monkeypatch.setattr(mutation, "equivalents", lambda name: {("a", "b"): "the same"})

    def outcome(verdict, line="x"):
        return mutation.Outcome(mutation.Mutant("op", 0, 1, line, "b"), verdict)

    outcomes = [outcome("killed")] * 6 + [outcome("survived", "a"), outcome("survived")]
    outcomes += [outcome("timeout"), outcome("broken")]
    assert mutation.report("m", outcomes) == pytest.approx(6 / 9)
    printed = capsys.readouterr().out
    assert "9 mutants, 6 killed (66.7%), 1 shown equivalent, 1 out of time, 2 open" in printed
    assert printed.count("  - x") == 2
    assert "  - a" not in printed


def test_outcomes_are_read_back_as_written(tmp_path):
    outcome = mutation.Outcome(mutation.Mutant("op", 3, 7, "a − b", "a + b"), "killed", "test_x")
    record = tmp_path / "m.jsonl"
    record.write_text(json.dumps(mutation.asdict(outcome)) + "\n", encoding="utf-8")
    assert mutation.load(record) == [outcome]
