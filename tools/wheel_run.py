"""Does a notebook run where there is only Jupyter's kernel and the package's wheel?

``python tools/wheel_run.py [02 13 …]`` builds the wheel, makes an environment that holds nothing
but a kernel and the program that executes notebooks, copies one notebook after the other into an
empty folder, and executes it there. Its own first cell installs the package, as on Colab. The
environment is new once for all notebooks, and with ``--each`` once for every notebook.

``--lowest`` lets pip take only the oldest series of each package that ``pyproject.toml`` allows.
It needs the package index, and minutes: the scheduled job runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
REPORT = ROOT / "_build" / "wheel.json"
PROGRAMS = ("ipykernel", "nbclient")
CELL_SECONDS = 600
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TAIL = 25  # lines of a failed run that are shown


class Failed(Exception):
    """A program ended with an error; the message is the end of what it said."""


def call(*words: str | Path, **options) -> str:
    """What a program says; an exception with its last lines when it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
        **options,
    )
    if done.returncode:
        raise Failed("\n".join(done.stdout.rstrip().splitlines()[-TAIL:]))
    return done.stdout


def pip(python: Path | str, *words: str | Path, env: dict[str, str] | None = None) -> str:
    return call(python, "-m", "pip", "--disable-pip-version-check", *words, env=env)


def build_wheel(target: Path, *options: str) -> Path:
    """The wheel of a copy of the sources, so that no earlier build can lend it a file."""
    source = target / "source"
    source.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    litter = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=litter)
    words = ("--quiet", "--no-deps", "--wheel-dir", target, *options, source)
    pip(sys.executable, "wheel", *words)
    shutil.rmtree(source)
    (wheel,) = target.glob("kllab-*.whl")
    return wheel


def lowest_versions(project: str) -> list[str]:
    """Constraints that hold each dependency to the series of its lower bound: 1.26 is 1.26.*"""
    found = tomllib.loads(project)["project"]
    lines = [*found["dependencies"], *found["optional-dependencies"]["book"]]
    return sorted({line.replace(">=", "==") + ".*" for line in lines})


def settings(links: Path, torch: str) -> dict[str, str]:
    """Environment variables of a run: the wheel is found, and nothing of the repository is."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "JUPYTER_PATH", "IPYTHONDIR")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env["PIP_FIND_LINKS"] = " ".join([links.as_posix(), env.get("PIP_FIND_LINKS", "")]).strip()
    if torch == "cpu":
        given = env.get("PIP_EXTRA_INDEX_URL", "")
        env["PIP_EXTRA_INDEX_URL"] = f"{given} {TORCH_CPU_INDEX}".strip()
    return {"KLLAB_SCALE": "test", "OMP_NUM_THREADS": "1"} | env


def make_environment(folder: Path) -> Path:
    """A new environment with a kernel and nbclient; its Python."""
    venv.create(folder, with_pip=True, clear=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip(python, "install", "--quiet", *PROGRAMS)
    return python


def execute(python: Path, notebook: Path, folder: Path, env: dict[str, str]) -> None:
    """Execute one notebook in a folder that holds nothing else."""
    folder.mkdir()
    shutil.copyfile(notebook, folder / notebook.name)
    program = python.with_name("jupyter-execute" + python.suffix)
    call(program, f"--timeout={CELL_SECONDS}", notebook.name, cwd=folder, env=env)


def came_from_the_wheel(python: Path, folder: Path, env: dict[str, str]) -> None:
    """The package that the notebooks imported is the installed one."""
    says = call(python, "-c", "import kllab; print(kllab.__file__)", cwd=folder, env=env)
    if not Path(says.strip()).resolve().is_relative_to(python.parents[1].resolve()):
        raise Failed(f"the notebooks imported {says.strip()}")


def choose(words: list[str]) -> list[Path]:
    """Notebooks whose names begin with the words; all without words."""
    found = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    chosen = [path for path in found if not words or path.name.startswith(tuple(words))]
    if not chosen:
        raise SystemExit(f"no notebook begins with {', '.join(words)}")
    return chosen


def run_all(notebooks: list[Path], work: Path, torch: str, each: bool, lowest: bool) -> list[dict]:
    wheel = build_wheel(work / "wheel")
    env = settings(wheel.parent, torch)
    if lowest:
        lines = lowest_versions((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        held = work / "lowest.txt"
        held.write_text("\n".join(lines) + "\n", encoding="utf-8")
        env["PIP_CONSTRAINT"] = str(held)
    python, rows = None, []
    for number, notebook in enumerate(notebooks):
        begun, fault = time.perf_counter(), ""
        folder = work / f"run-{number}"
        try:
            if each or python is None:
                python = make_environment(work / "environment")
            execute(python, notebook, folder, env)
            came_from_the_wheel(python, folder, env)
        except Failed as error:
            fault = str(error)
        seconds = time.perf_counter() - begun
        rows.append({"notebook": notebook.stem, "seconds": round(seconds, 1), "fault": fault})
        print(f"{notebook.stem:40} {'FAILED' if fault else 'passed'} {seconds:7.1f} s", flush=True)
        if fault:
            print(fault, flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("notebooks", nargs="*", help="their first letters, as 02; all without")
    parser.add_argument("--each", action="store_true", help="a new environment for each notebook")
    parser.add_argument("--lowest", action="store_true", help="the oldest packages allowed")
    parser.add_argument("--torch", choices=("", "cpu"), default=os.environ.get("TORCH", ""))
    parser.add_argument("--work", type=Path, help="keep everything in this folder, which is empty")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        chosen = choose(options.notebooks)
        rows = run_all(chosen, work, options.torch, options.each, options.lowest)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    failed = [row["notebook"] for row in rows if row["fault"]]
    print(f"{len(rows) - len(failed)} of {len(rows)} notebooks ran with the wheel alone")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
