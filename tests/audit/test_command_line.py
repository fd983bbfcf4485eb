"""``python -m kllab audit``, the assertion for a test suite, and the hook for pre-commit."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from kllab import InputError

ROOT = Path(__file__).resolve().parents[2]

MINE = '''
    """A file as somebody may have it."""
    import torch

    print("imported")


    def k1(logprob, ref_logprob):
        return logprob - ref_logprob


    def k2(logprob, ref_logprob):
        return (logprob - ref_logprob).square() / 2


    def k3(logprob, ref_logprob):
        d = ref_logprob - logprob
        return torch.expm1(d) - d


    def neither(logprob, ref_logprob):
        return torch.sin(logprob - ref_logprob)


    def breaks(logprob, ref_logprob):
        raise ValueError("wrong mode")


    def rollout(train, rollout):
        return rollout - train


    def record(logprob, ref_logprob):
        open("called", "a").write("x")
        return logprob - ref_logprob


    class Losses:
        @staticmethod
        def k2(logprob, ref_logprob):
            return (logprob - ref_logprob).square() / 2


    number = 3

    if __name__ == "__main__":
        open("run-as-a-script", "w").close()
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(MINE), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def command(monkeypatch, capsys):
    """(exit code, standard output, standard error) of one command, in this process."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["kllab", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            runpy.run_module("kllab", run_name="__main__", alter_sys=True)
        out, err = capsys.readouterr()
        code = stop.value.code
        return (code if isinstance(code, int) else 0 if code is None else 1), out, err

    return run


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("k1", 0),
        ("k1 --claim kl_qp", 0),
        ("k3 --claim kl_qp", 0),
        ("k1 --claim kl_pq", 1),
        ("k2 --claim kl_qp", 2),
        ("k2 --usage loss --claim kl_qp", 0),
        ("k3 --usage loss --claim kl_qp", 1),
        ("k3 --usage loss --claim kl_pq", 0),
        ("k3 --usage loss --claim kl_pq --strict", 1),
        ("k1 --usage loss --claim kl_qp", 1),
        ("k1 --usage reward --claim kl_qp", 0),
        ("k1 --usage reward --claim kl_qp --strict", 0),
        ("k3 --usage both --claim kl_qp --strict", 0),
        ("neither --claim kl_qp", 2),
        ("breaks --claim kl_qp", 2),
        ("rollout --samples ref_logprob --names logprob,ref_logprob --claim kl_qp", 0),
        ("rollout --names logprob,ref_logprob --claim kl_qp", 1),
    ],
)
def test_the_exit_code_is_the_verdict(words, code, mine, command):
    function, *rest = words.split()
    got, out, _ = command("audit", f"mine.py:{function}", *rest)
    assert got == code, out
    assert "Traceback" not in out


def test_the_first_line_is_the_verdict(mine, command):
    _, out, _ = command("audit", "mine.py:k3", "--usage", "loss", "--claim", "kl_qp")
    lines = [line for line in out.splitlines() if line and line != "imported"]
    assert any("kl_pq" in line for line in lines[:3])
    assert "wrong_direction" in out


def test_it_says_that_it_imports_and_calls(mine, command):
    _, out, err = command("audit", "mine.py:k1")
    assert "import" in (out + err).replace("imported", "")
    _, out, _ = command("audit", "--help")
    assert "import" in out.lower()


def test_nothing_else_runs(mine, command):
    command("audit", "mine.py:record")
    assert not Path("run-as-a-script").exists()
    assert Path("called").exists()
    Path("called").unlink()
    command("audit", "mine.py:k1")
    assert not Path("called").exists()


def test_json_has_a_version_and_nothing_around_it(mine, command):
    code, out, _ = command("audit", "mine.py:k3", "--usage", "loss", "--claim", "kl_qp", "--json")
    start = out.index("{")
    assert out[:start].strip() in ("", "imported")

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    report = json.loads(out[start:], parse_constant=refuse)
    assert code == 1
    assert [key for key in report if "schema" in key]
    assert "wrong_direction" in {finding["code"] for finding in report["findings"]}
    assert report["gradient"]["terms"] == {"kl_pq": 1.0}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["audit", "absent.py:k1"], "absent.py"),
        (["audit", "mine.py:absent"], "absent"),
        (["audit", "mine.py:number"], "number"),
        (["audit", "mine.py"], "FUNCTION"),
        (["audit", "mine.py:k1", "--claim", "kl"], "kl"),
        (["audit", "mine.py:k1", "--usage", "metrics"], "metrics"),
        (["audit", "mine.py:k1", "--names", "a,b"], "a"),
        (["audit", "broken.py:k1"], "broken.py"),
        (["audit", "raising.py:k1"], "raising.py"),
        (["audit", "notes.txt:k1"], "notes.txt"),
        (["audit"], "audit"),
        (["inspect", "mine.py:k1"], "inspect"),
        ([], "audit"),
    ],
)
def test_what_cannot_be_judged_is_a_message_and_exit_code_two(words, names, mine, command):
    Path("broken.py").write_text("def k1(:\n", encoding="utf-8")
    Path("raising.py").write_text("raise RuntimeError('no GPU')\n", encoding="utf-8")
    Path("notes.txt").write_text("nothing\n", encoding="utf-8")
    code, out, err = command(*words)
    assert code == 2
    assert names in out + err
    assert "Traceback" not in out + err


def test_a_dataclass_whose_annotations_are_text(mine, command):
    Path("settings.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Settings:\n"
        "    half: float = 0.5\n"
        "def k2(logprob, ref_logprob):\n"
        "    return Settings().half * (logprob - ref_logprob) ** 2\n",
        encoding="utf-8",
    )
    code, out, err = command("audit", "settings.py:k2", "--usage", "loss", "--claim", "kl_qp")
    assert (code, out.startswith("agrees: k2")) == (0, True), err
    assert "settings" not in sys.modules


def test_a_file_finds_its_neighbours(mine, command):
    """Imported as Python would run it: its folder is on the path, and only meanwhile."""
    Path("helper.py").write_text("half = 0.5\n", encoding="utf-8")
    Path("asks.py").write_text(
        "from helper import half\n"
        "def k2(logprob, ref_logprob):\n"
        "    return half * (logprob - ref_logprob) ** 2\n",
        encoding="utf-8",
    )
    before = list(sys.path)
    try:
        code, out, err = command("audit", "asks.py:k2", "--usage", "loss", "--claim", "kl_qp")
    finally:
        sys.modules.pop("helper", None)
    assert code == 0, out + err
    assert sys.path == before


def test_as_a_process_of_its_own(mine):
    words = [sys.executable, "-m", "kllab", "audit", "mine.py:k1", "--claim", "kl_pq"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "wrong_direction" in done.stdout


# --- for a test suite --------------------------------------------------------------------------


def k1(logprob, ref_logprob):
    return logprob - ref_logprob


def test_the_assertion_passes_and_gives_the_report():
    from kllab.testing import assert_kl

    report = assert_kl(k1, claim="kl_qp")
    assert report.value.terms == {"kl_qp": 1.0}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"claim": "kl_pq"}, "wrong_direction"),
        ({"claim": "kl_qp", "usage": "loss"}, "zero_gradient"),
        ({"claim": "kl_qp", "samples": "ref_logprob"}, "wrong_sign"),
    ],
)
def test_the_assertion_fails_with_the_report_as_its_message(call, says):
    from kllab.testing import assert_kl

    with pytest.raises(AssertionError, match=says):
        assert_kl(k1, **call)


def test_the_assertion_fails_where_nothing_could_be_judged():
    import torch

    from kllab.testing import assert_kl

    with pytest.raises(AssertionError, match="unknown"):
        assert_kl(lambda logprob, ref_logprob: torch.sin(logprob - ref_logprob), claim="kl_qp")


def test_the_assertion_can_forbid_findings():
    from kllab.testing import assert_kl

    def k3(logprob, ref_logprob):
        d = ref_logprob - logprob
        return d.exp() - 1 - d

    assert_kl(k3, claim="kl_qp")
    with pytest.raises(AssertionError, match="overflow"):
        assert_kl(k3, claim="kl_qp", forbid=("overflow",))
    with pytest.raises(InputError, match="overflows"):
        assert_kl(k3, claim="kl_qp", forbid=("overflows",))


# --- for pre-commit ----------------------------------------------------------------------------

HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))


def test_the_hook_is_one_that_pre_commit_takes():
    words = [sys.executable, "-m", "pre_commit", "validate-manifest", ".pre-commit-hooks.yaml"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("claim", "code"), [("kl_qp", 0), ("kl_pq", 1)])
def test_the_hook_runs_what_it_says(claim, code, mine, command):
    """As pre-commit does it: the entry, the configured words, and no file names."""
    (hook,) = HOOKS
    assert hook["pass_filenames"] is False
    assert hook["entry"].split()[:3] == ["python", "-m", "kllab"]
    got, _, _ = command(*hook["entry"].split()[3:], "mine.py:k1", "--claim", claim)
    assert got == code
