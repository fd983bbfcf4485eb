"""The script that runs notebooks with the wheel alone: what it builds, hides and notices.

Installing and executing takes minutes and the network, so the scheduled job does that.
"""

from __future__ import annotations

import sys
import tomllib
import zipfile
from pathlib import Path

import nbformat
import pytest
import wheel_run

ROOT = Path(__file__).resolve().parents[1]


def test_the_wheel_holds_every_file_that_the_package_reads(tmp_path):
    built = wheel_run.build_wheel(tmp_path, "--no-build-isolation")  # asks no index
    with zipfile.ZipFile(built) as wheel:
        held = {name for name in wheel.namelist() if name.startswith("kllab/")}
    source = ROOT / "src" / "kllab"
    kept = {".py", ".toml", ".js"}
    wanted = {path for path in source.rglob("*") if path.suffix in kept}
    assert held == {f"kllab/{path.relative_to(source).as_posix()}" for path in wanted}
    assert {"kllab/atlas.toml", "kllab/static/explorables.js"} <= held


def test_the_oldest_versions_are_those_of_the_project():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lines = wheel_run.lowest_versions(text)
    project = tomllib.loads(text)["project"]
    assert len(lines) == len({*project["dependencies"], *project["optional-dependencies"]["book"]})
    assert all(line.count("==") == 1 and line.endswith(".*") for line in lines)
    one = '[project]\ndependencies = ["a>=1.2"]\n[project.optional-dependencies]\nbook = ["b>=3"]'
    assert wheel_run.lowest_versions(one) == ["a==1.2.*", "b==3.*"]


def test_a_run_sees_the_wheel_and_nothing_of_the_repository(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "src")
    monkeypatch.setenv("PIP_FIND_LINKS", "given")
    monkeypatch.delenv("KLLAB_SCALE", raising=False)
    env = wheel_run.settings(tmp_path, "cpu")
    assert "PYTHONPATH" not in env
    assert env["PIP_FIND_LINKS"] == f"{tmp_path.as_posix()} given"
    assert wheel_run.TORCH_CPU_INDEX in env["PIP_EXTRA_INDEX_URL"]
    assert env["KLLAB_SCALE"] == "test"


def test_notebooks_are_chosen_by_their_number():
    assert len(wheel_run.choose([])) == 16
    assert [path.name[:2] for path in wheel_run.choose(["02", "13"])] == ["02", "13"]
    with pytest.raises(SystemExit, match="no notebook"):
        wheel_run.choose(["99"])


def test_a_notebook_is_executed_alone_and_its_error_is_noticed(tmp_path):
    """What lies beside the original is not there."""
    (tmp_path / "data.txt").touch()
    codes = ('import os\nassert os.listdir() == ["one.ipynb"]', 'open("data.txt")')
    cells = [nbformat.v4.new_code_cell(code) for code in codes]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "one.ipynb")
    env = wheel_run.settings(tmp_path, "")
    with pytest.raises(wheel_run.Failed, match=r"FileNotFoundError.*data\.txt"):
        wheel_run.execute(Path(sys.executable), tmp_path / "one.ipynb", tmp_path / "run", env)


def test_a_package_from_elsewhere_is_noticed(tmp_path):
    package = tmp_path / "kllab"
    package.mkdir()
    (package / "__init__.py").touch()
    with pytest.raises(wheel_run.Failed, match="the notebooks imported"):
        wheel_run.came_from_the_wheel(Path(sys.executable), tmp_path, {"PYTHONPATH": str(tmp_path)})
