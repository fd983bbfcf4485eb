"""The built book in a real browser: every page, over http and from a folder, in both modes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import CASES
from sitechecks.browsing import (
    DESK,
    PHONE,
    START,
    faults_in_all_looks,
    look,
    open_page,
    overflow,
    pages_of,
    violations,
    watched,
)
from sitechecks.html import JAVA, messages
from sitechecks.links import crawled, dead_links

# A page with formulas and figures, and the two that are unlike the others.
LOOKED_AT_AGAIN = {"notebooks/02_three_estimators.html", "notebooks/14_atlas.html", "search.html"}
SITE = Path(__file__).resolve().parents[2] / "_build" / "html"


def pages() -> list[str]:
    # Before the first build one page that is not there keeps the tests from passing by absence.
    return pages_of(SITE) or ["the book is not built"]


@pytest.mark.browser
@pytest.mark.parametrize("name", pages())
class TestPage:
    def test_over_http(self, chrome, address, name):
        """One visit, several looks: light and dark, on a desk and on a phone."""
        with watched(chrome, viewport=DESK) as (page, faults):
            open_page(page, f"{address}/{name}")
            assert page.title()
            assert faults_in_all_looks(page, more=name in LOOKED_AT_AGAIN) == []
            assert faults == []

    def test_from_a_folder(self, chrome, site, name):
        """What differs there is what loads: no module, no fetch, other addresses."""
        with watched(chrome, viewport=PHONE) as (page, faults):
            open_page(page, (site / name).as_uri())
            assert overflow(page) <= 0
            assert faults == []


@pytest.mark.browser
def test_the_root_leads_to_the_book(chrome, site):
    with watched(chrome) as (page, faults):
        page.goto((site / START).as_uri())
        page.wait_for_url("**/book/index.html")
        assert page.locator(".bd-article h1").inner_text().startswith("Estimating KL")
        assert faults == []


@pytest.mark.browser
def test_what_the_page_test_looks_for_is_found(chrome, tmp_path):
    """A page with each fault, so that a silent watcher would show."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><html><body style='width:2000px; background: #fff'>"
        "<ul style='font: 9px/1 sans-serif'><li><a href='#a'>a</a></li><li><a href='#b'>b</a></ul>"
        "<img src='missing.png'><img src='http://a.example/x.png'>"
        "<script>console.error('no'); setTimeout(() => { throw new Error('thrown') })</script>"
    )
    with watched(chrome, viewport=PHONE) as (page, faults):
        page.goto(bad.as_uri(), wait_until="load")
        assert overflow(page) > 0
        assert any("image-alt" in v for v in violations(page))
        assert any("target-size" in v for v in violations(page))
        assert any("wider than a window of 320" in v for v in faults_in_all_looks(page))
    for sign in ("console: no", "failed: file", "outside: http://a.example", "thrown"):
        assert any(sign in fault for fault in faults), (sign, faults)


@pytest.mark.browser
def test_figures_of_cells_have_no_box_in_dark_mode(chrome, address):
    with watched(chrome, viewport=DESK) as (page, _):
        open_page(page, f"{address}/{chapters()[0]}")
        for scheme, turned in (("light", "none"), ("dark", "invert(1) hue-rotate(180deg)")):
            look(page, scheme, DESK)
            styles = page.eval_on_selector_all(
                ".bd-content figure img",
                """images => images.map(image => {
                  const { backgroundColor, filter } = getComputedStyle(image);
                  return [backgroundColor, filter];
                })""",
            )
            assert styles
            assert {tuple(style) for style in styles} == {("rgba(0, 0, 0, 0)", turned)}


@pytest.mark.browser
def test_what_scrolls_sideways_on_a_phone_takes_the_focus(chrome, address):
    with watched(chrome, viewport=PHONE) as (page, _):
        open_page(page, f"{address}/{chapters()[0]}")
        boxes = page.eval_on_selector_all(
            ".bd-article pre, .bd-article .text_html, .bd-article mjx-container",
            "all => all.filter(b => b.clientWidth && b.scrollWidth > b.clientWidth + 1"
            " && getComputedStyle(b).overflowX === 'auto').map(b => b.tabIndex)",
        )
    assert boxes
    assert set(boxes) == {0}


@pytest.mark.browser
def test_without_scripts_the_chapter_is_there(chrome, address):
    with watched(chrome, java_script_enabled=False, viewport=PHONE) as (page, faults):
        for name in chapters():
            page.goto(f"{address}/{name}", wait_until="networkidle")
            assert page.locator(".bd-article h1").count() == 1
            assert page.locator("figure img").count() > 0
            for figure in page.locator(", ".join(case.tag for case in CASES)).all():
                assert figure.locator("img").is_visible()
        # Scripts that the page preloads are given up, and that counts as failed.
        assert [fault for fault in faults if ".js" not in fault] == []


# --- links and markup, which need no browser ------------------------------------------------------


def chapters() -> list[str]:
    return [name for name in pages() if name.startswith("notebooks/")]


def test_every_internal_link_meets_its_target(site):
    """Files and the anchors within them; linkinator looks at files only."""
    dead, looked_at = dead_links(site)
    assert looked_at > 100
    assert dead == []


def test_linkinator_finds_no_broken_link(address):
    broken, loaded = crawled(address)
    assert broken == []
    assert loaded > len(pages())


@pytest.mark.skipif(not JAVA, reason="vnu, the HTML checker, needs a Java")
def test_html_is_valid(site):
    assert messages([site / name for name in [START, *pages()]]) == []
