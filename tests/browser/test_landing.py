"""The first page: what it promises, its figure, its contents."""

from __future__ import annotations

import re

import pytest
from bs4 import BeautifulSoup
from harness import layout_shift, wait_for_state
from playwright.sync_api import expect

PAGE = "book/index.html"
FIGURE = "kl-two-gaussians"
PHONE, DESK = {"width": 360, "height": 780}, {"width": 1280, "height": 900}


def soup(path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def beginning(path) -> BeautifulSoup:
    """An article's first lines; the title and the claim are there, and the rest is long."""
    text = path.read_text(encoding="utf-8")
    start = text.index("<article")
    return BeautifulSoup(text[start : start + 5000], "html.parser")


def words(node) -> str:
    return " ".join(node.get_text().split())


def opened(chrome, address, viewport, **more):
    context = chrome.new_context(viewport=viewport, reduced_motion="reduce", **more)
    page = context.new_page()
    page.goto(f"{address}/{PAGE}", wait_until="load")
    return page


@pytest.mark.browser
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_promise_and_figure_are_seen_at_once_and_nothing_jumps(chrome, address, viewport):
    page = opened(chrome, address, viewport)
    page.locator(f"{FIGURE} svg.plot .domain").first.wait_for(state="attached")
    assert layout_shift(page) < 0.05
    screen = viewport["height"]
    assert bottom(page, ".promise") < screen / 2
    assert bottom(page, "ul.entries") < screen / 2
    # The handles can be dragged on the first screen, and what answers is on the second.
    assert bottom(page, f"{FIGURE} .handle") < screen
    assert bottom(page, f"{FIGURE} svg.plot >> nth=-1") < 2 * screen
    page.context.close()


def bottom(page, selector: str) -> float:
    box = page.locator(selector).first.bounding_box()
    return box["y"] + box["height"]


@pytest.mark.browser
def test_the_figure_answers_the_keyboard(chrome, address):
    page = opened(chrome, address, DESK)
    figure = page.locator(FIGURE)
    handle = figure.locator(".handle").first
    handle.wait_for()
    reading = figure.locator(".reading")
    before = reading.inner_text()
    handle.focus()
    page.keyboard.press("ArrowRight")
    wait_for_state(page, r"fig-two-gaussians=scale:0\.95")
    # The sentence follows when the exact distributions are there.
    expect(reading).not_to_have_text(before)
    page.context.close()


@pytest.mark.browser
def test_without_scripts_there_is_a_picture(chrome, address):
    page = opened(chrome, address, PHONE, java_script_enabled=False)
    picture = page.locator(f"{FIGURE} img")
    assert picture.is_visible()
    assert "densities" in picture.get_attribute("alt").lower()
    page.context.close()


def test_the_contents_are_the_chapters_own_claims(site):
    """Each chapter once, in the order of the sidebar, with the words below its own title."""
    front = soup(site / PAGE)
    lines = front.select("ul.claims > li")
    links = [line.a["href"] for line in lines]
    sidebar = [a["href"] for a in front.select("nav.bd-links a") if "notebooks/" in a["href"]]
    assert links == sidebar
    assert len(links) >= 16
    for number, line in enumerate(lines, start=1):
        chapter = beginning((site / PAGE).parent / line.a["href"])
        title = words(chapter.select_one("article h1")).rstrip("#").strip()
        told = words(chapter.find("em", string=re.compile("^The claim")) or claim(chapter))
        shown = words(line.select_one(".claim"))
        assert words(line.a) == title
        assert words(line.select_one(".number")) == f"{number:02d}"
        assert told.removeprefix("The claim: ").lower() == shown.lower()


def claim(chapter) -> BeautifulSoup:
    """The claim where there is markup in it."""
    return next(em for em in chapter.select("article em") if words(em).startswith("The claim"))
