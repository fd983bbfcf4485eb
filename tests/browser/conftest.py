"""A real Chromium for the tests marked ``browser``; without one they are skipped, loudly.

On continuous integration (CI is set) Chromium and the built site are required.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from browser import HINT, chromium, find_chromium
from cases import CASES, Case
from harness import Opener, publish
from serve import serving

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
REQUIRED = bool(os.environ.get("CI"))
MISSING = pytest.StashKey[str]()


def pytest_collection_modifyitems(config, items):
    wanting = [item for item in items if item.get_closest_marker("browser")]
    if not wanting:
        return
    reason = "" if find_chromium() else HINT
    if not reason:
        return
    if REQUIRED:
        raise pytest.UsageError(f"CI is set, so browser tests are required: {reason}")
    config.stash[MISSING] = f"{len(wanting)} BROWSER TESTS SKIPPED: {reason}"
    for item in wanting:
        item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter, config):
    if MISSING in config.stash:
        terminalreporter.section(config.stash[MISSING], red=True, bold=True)


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built book."""
    assert (SITE / "index.html").is_file(), "no built book: run `make book` first"
    return SITE


@pytest.fixture(scope="session")
def address(site):
    """The built book over http, on this machine only."""
    with serving(site) as base:
        yield base


@pytest.fixture(scope="module")
def chrome():
    """One Chromium for a file of tests; contexts keep them apart.

    Not for the session: Playwright's synchronous interface runs only once at a time.
    """
    with chromium() as running:
        yield running


# --- pages with one browser figure; a file of tests for one figure overrides `figure` -------------


@pytest.fixture(scope="module", params=CASES, ids=str)
def figure(request) -> Case:
    return request.param


@pytest.fixture(scope="module")
def figure_site(figure, tmp_path_factory) -> Path:
    return publish(tmp_path_factory.mktemp("site"), figure.make())


@pytest.fixture(scope="module")
def served(figure_site):
    with serving(figure_site) as base:
        yield base


@pytest.fixture(params=["http", "file"])
def open_page(request, chrome, figure_site, served):
    opener = Opener(chrome, served if request.param == "http" else f"file://{figure_site}")
    yield opener
    opener.close()


@pytest.fixture
def open_http(chrome, served):
    opener = Opener(chrome, served)
    yield opener
    opener.close()
