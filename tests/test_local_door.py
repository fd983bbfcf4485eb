"""``make lab``: the start page is right, and JupyterLab shows it, a chapter and a live figure."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from time import sleep

import make
import nbformat
import pytest
import yaml
from browser import chromium

ROOT = Path(__file__).resolve().parents[1]
START = nbformat.read(ROOT / "start.ipynb", as_version=4)
TEXT = "\n".join(cell.source for cell in START.cells if cell.cell_type == "markdown")
ROW = re.compile(r"^\| (\d\d) \| \[(.+?)\]\((.+?)\) \| (.+) \|$", re.MULTILINE)


def front(path: Path) -> tuple[str, str]:
    """A chapter's title and its claim."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    title, _, claim = "".join(cells[0]["source"]).splitlines()[:3]
    return title.removeprefix("# "), claim.strip("*").removeprefix("The claim: ").replace("**", "*")


def test_the_start_page_lists_every_chapter_as_the_chapter_calls_itself():
    parts = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    listed = [chapter["file"] for part in parts for chapter in part["chapters"]]
    paths = [f"{name}.ipynb" for name in listed if name.startswith("notebooks/")]
    rows = ROW.findall(TEXT)
    assert [link for _, _, link, _ in rows] == paths
    for number, title, link, claim in rows:
        assert Path(link).name.startswith(number)
        assert (title, claim) == front(ROOT / link)
    captions = re.findall(r"^\*\*(Part .+)\*\*$", TEXT, re.MULTILINE)
    assert captions == [part["caption"] for part in parts if part["caption"].startswith("Part")]


def test_every_link_of_the_start_page_leads_to_a_file():
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert len(links) > 16
    assert all((ROOT / link).is_file() for link in links)


def test_every_notebook_is_valid_by_the_formats_own_schema():
    paths = [ROOT / "start.ipynb", *(ROOT / "notebooks").glob("*.ipynb")]
    assert len(paths) > 16
    for path in paths:
        nbformat.validate(nbformat.read(path, as_version=nbformat.NO_CONVERT))


def test_the_start_page_holds_no_output():
    codes = [cell for cell in START.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in codes)


def said() -> dict[str, str]:
    """What the cell that looks at the environment prints."""
    (cell,) = (cell for cell in START.cells if cell.cell_type == "code")
    with redirect_stdout(StringIO()) as out:
        exec(compile(cell.source, "start.ipynb", "exec"), {})
    return dict(line.split(maxsplit=1) for line in out.getvalue().splitlines())


def test_the_cell_sees_that_everything_is_here():
    assert said()["Missing"] == "nothing"
    assert said()["Figures"] == "move"


def test_the_cell_sees_what_is_missing(monkeypatch):
    from importlib import metadata

    listed = ["nobody-has-this>=1", "torch>=999", 'pytest>=9999 ; extra == "fast"', "numpy>=1"]
    monkeypatch.setattr(metadata, "requires", lambda name: listed)
    assert said()["Missing"] == "nobody-has-this>=1, torch>=999"


# --- in JupyterLab itself -------------------------------------------------------------------------

WINDOW = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer"
PATIENCE = 180_000  # milliseconds; a limit for what hangs


@contextmanager
def lab(folder: Path, monkeypatch) -> Iterator[str]:
    """The JupyterLab of ``make lab`` on copies, since it saves what it runs; its address."""
    env = make.lab_environment(
        KLLAB_SCALE="test", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT / "src")
    )
    shutil.copy(ROOT / "start.ipynb", folder)
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    monkeypatch.setattr(make, "ROOT", folder)
    monkeypatch.setattr(make, "BUILD", folder)
    quiet = ("--no-browser", "--allow-root", "--ServerApp.port=8890")
    command = make.lab_command(*quiet, "--IdentityProvider.token=test")
    log = folder / "lab.log"
    with log.open("w") as out:
        running = subprocess.Popen([str(w) for w in command], env=env, stdout=out, stderr=out)
        try:
            yield address_in(log)
        finally:
            running.terminate()
            running.wait()


def address_in(log: Path) -> str:
    """The address that JupyterLab took, which may be another port than it was asked for."""
    for _ in range(240):
        sleep(0.5)
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        with suppress(OSError):
            if found:
                urllib.request.urlopen(f"{found[0]}/api")
                return found[0]
    raise AssertionError(log.read_text())


@pytest.mark.slow
@pytest.mark.browser
def test_jupyterlab_shows_the_start_page_a_chapter_and_a_live_figure(tmp_path, monkeypatch):
    with lab(tmp_path, monkeypatch) as address, chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        outside: list[str] = []
        ours = (address, address.replace("http", "ws"), "data:", "blob:")
        page.on("request", lambda r: r.url.startswith(ours) or outside.append(r.url))
        page.goto(f"{address}/lab/tree/start.ipynb?token=test")
        page.wait_for_selector(".jp-Notebook h1:has-text('Start here')", timeout=PATIENCE)

        page.locator(".jp-Notebook a", has_text="Three estimators").first.click()
        page.wait_for_selector(f"{WINDOW} h1:has-text('Three estimators')", timeout=PATIENCE)
        page.wait_for_selector("#jp-main-statusbar :text('| Idle')", timeout=PATIENCE)
        page.locator("#jp-MainMenu").get_by_text("Run", exact=True).click()
        page.locator(".lm-Menu-itemLabel").get_by_text("Run All Cells", exact=True).click()

        figure = page.locator("kl-two-gaussians")
        figure.wait_for(state="attached", timeout=PATIENCE)
        figure.scroll_into_view_if_needed()
        slider = figure.locator("input[type=range]").first
        slider.wait_for(timeout=PATIENCE)
        before = float(slider.input_value())
        slider.focus()
        page.keyboard.press("ArrowRight")
        assert float(slider.input_value()) > before
        assert page.locator(".jp-Dialog, .Toastify__toast").count() == 0
        assert outside == []
