"""The presentation view of every chapter: slides of its own page, which is whole afterwards."""

from __future__ import annotations

import re

import pytest
from harness import handle_selector
from sitechecks.browsing import PHONE, open_page, overflow, violations, watched
from test_site import chapters

ROOM = {"width": 1280, "height": 720}
FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
SHOWN = ".kl-present[open] .slide:not([hidden])"
PAGE = "document.documentElement.outerHTML"
# Goes through all slides: what each shows, and how far its content runs out of the window.
WALK = """async () => {
  const frame = () =>
    new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const stage = document.querySelector(".kl-present .stage");
  const over = (box) => [box.scrollHeight - box.clientHeight, box.scrollWidth - box.clientWidth];
  const seen = [];
  for (const slide of document.querySelectorAll(".kl-present .slide")) {
    await frame();
    const wide = [...slide.querySelectorAll("mjx-container[display], .cell_output > *, "
      + ".pst-scrollable-table-container")].filter((box) => over(box)[1] > 1);
    const [down, across] = over(stage);
    seen.push({
      shown: !slide.hidden,
      others: document.querySelectorAll(".kl-present .slide:not([hidden])").length - 1,
      heading: slide.querySelector("h1, h2").textContent.trim(),
      parts: slide.children.length - slide.querySelectorAll(":scope > :is(.kicker, h1, h2)").length,
      high: slide.offsetHeight > 40,
      progress: document.querySelector(".kl-present .progress").textContent,
      across, reached: down <= 1 || stage.tabIndex === 0,
      cut: wide.filter((box) => getComputedStyle(box).overflowX !== "auto" || box.tabIndex !== 0)
        .map((box) => box.outerHTML.slice(0, 90)),
      twice: [...slide.querySelectorAll("[id]")].filter((e) => !e.localName.startsWith("kl-"))
        .length,
      code: slide.querySelectorAll(".cell_input, button.copybtn").length,
    });
    const press = { key: "ArrowRight", bubbles: true, composed: true };
    stage.dispatchEvent(new KeyboardEvent("keydown", press));
  }
  return seen;
}"""


def start(page, url: str, slide: int = 1) -> int:
    """Open a page at a slide; the number of slides."""
    open_page(page, f"{url}#present={slide}")
    page.wait_for_selector(SHOWN)
    return page.locator(".kl-present .slide").count()


def at(page) -> str:
    return page.locator(".kl-present .progress").text_content().split(":")[0]


def leave(page) -> None:
    page.keyboard.press("Escape")
    page.wait_for_selector(".kl-present", state="detached")


def check_slides(page, where: str) -> list[str]:
    """Each slide says something and can be reached, none is repeated; the headings."""
    slides = page.evaluate(WALK)
    assert 10 <= len(slides) <= 45, where
    for number, slide in enumerate(slides, 1):
        here = f"{where}, slide {number}: {slide}"
        assert slide["shown"], here
        assert slide["others"] == 0, here
        assert slide["heading"], here
        assert slide["parts"] >= 1, here
        assert slide["high"], here
        assert slide["progress"].startswith(f"Slide {number} of {len(slides)}: "), here
        assert slide["across"] <= 0, here
        assert slide["reached"], here
        assert slide["cut"] == [], here
        assert slide["twice"] == slide["code"] == 0, here
    return [slide["heading"] for slide in slides]


@pytest.mark.browser
@pytest.mark.parametrize("name", chapters())
def test_all_slides_of_a_chapter_and_the_page_afterwards(chrome, site, name):
    """On a projector and on a phone. The page is as it was, byte for byte."""
    with watched(chrome, viewport=ROOM) as (page, faults):
        open_page(page, (site / name).as_uri())
        # Figures that have started once draw no more after the view than before.
        for figure in page.locator(":is(.bd-article [id^=fig-]):not(figure)").all():
            figure.scroll_into_view_if_needed()
            page.wait_for_function(
                "figure => figure.style.minHeight === '0px'", arg=figure.element_handle()
            )
        page.evaluate("scrollTo({ top: 500, behavior: 'instant' })")
        page.wait_for_timeout(300)  # the theme marks where the reader is
        page.locator("#present").focus()
        before, scroll = page.evaluate(PAGE), page.evaluate("scrollY")
        page.keyboard.press("Enter")
        page.wait_for_selector(SHOWN)
        assert page.evaluate(PAGE) != before
        page.keyboard.press("Home")
        headings = check_slides(page, f"{name} in a room")
        assert {"The puzzle", "Summary", "Questions to discuss"} <= set(headings)
        assert not {"Exercises", "Break it", "Sources", "Play"} & set(headings)
        assert headings.count("Questions to discuss") >= 3
        leave(page)
        page.wait_for_function("() => location.hash === ''")
        assert page.evaluate("scrollY") == scroll
        assert page.evaluate("document.activeElement.id") == "present"
        assert page.evaluate(PAGE) == before
        page.keyboard.press("Enter")
        page.wait_for_selector(SHOWN)
        page.set_viewport_size(PHONE)
        assert check_slides(page, f"{name} on a phone") == headings
        assert faults == []


GAUSSIANS = "notebooks/02_three_estimators.html"
FIGURE = "kl-two-gaussians"
HANDLE = handle_selector("mean of p")


@pytest.mark.browser
def test_the_view_begins_where_the_reader_is(chrome, site):
    with watched(chrome, viewport=ROOM) as (page, faults):
        open_page(page, (site / GAUSSIANS).as_uri())
        for place, expected in (
            ("kl-two-gaussians", "Try it"),  # first: a figure that starts moves what is below it
            ("#summary", "Summary"),
            (".bd-article h1", "Three estimators"),
        ):
            page.locator(place).first.evaluate(
                "e => e.scrollIntoView({ block: 'start', behavior: 'instant' })"
            )
            page.locator("#present").evaluate("b => b.click()")  # a real click scrolls before it
            page.wait_for_selector(SHOWN)
            assert page.locator(f"{SHOWN} :is(h1, h2)").inner_text() == expected
            assert (page.locator(f"{SHOWN} kl-two-gaussians").count() == 1) == (place[:2] == "kl")
            leave(page)
            page.wait_for_function("() => location.hash === ''")
        assert faults == []


@pytest.mark.browser
def test_a_list_stands_with_the_sentence_that_leads_up_to_it(chrome, site):
    with watched(chrome, viewport=ROOM) as (page, _):
        start(page, (site / "notebooks/05_unbiased_and_useless.html").as_uri())
        slide = page.locator(".kl-present .slide", has_text="Two numbers warn")
        assert slide.count() == 1
        assert slide.locator("li").count() >= 2


def to_figure(page) -> None:
    """Go on to the slide with the live figure, by keys."""
    page.wait_for_selector(SHOWN)
    for _ in range(40):
        if page.locator(f"{SHOWN} {FIGURE}").count():
            return
        page.keyboard.press("ArrowRight")
    raise AssertionError("no slide with the figure")


@pytest.mark.browser
@pytest.mark.parametrize("way", ["escape", "back"])
def test_a_live_figure_moves_and_keeps_its_state(chrome, address, way):
    state = f"() => document.querySelector('{FIGURE}').state.mean"
    with watched(chrome, viewport=ROOM) as (page, faults):
        open_page(page, f"{address}/{GAUSSIANS}")
        page.locator(FIGURE).scroll_into_view_if_needed()
        page.evaluate(f"document.querySelector('{FIGURE}').update({{ mean: 1.3 }})")
        home = page.evaluate(f"document.querySelector('{FIGURE}').parentElement.outerHTML.length")
        page.locator("#present").click()
        to_figure(page)
        assert page.locator(FIGURE).count() == 1
        assert page.evaluate(state) == 1.3
        # It works on the slide, and its keys are its own: an arrow moves the mean, not the slide.
        slide = at(page)
        page.locator(f"{SHOWN} {FIGURE} input[type=range]").first.focus()
        page.keyboard.press("ArrowLeft")
        page.evaluate(FRAMES)
        moved = page.evaluate(state)
        assert moved < 1.3
        assert at(page) == slide
        page.locator(f"{SHOWN} {FIGURE} {HANDLE}").focus()
        page.keyboard.press("ArrowLeft")
        page.evaluate(FRAMES)
        last, moved = moved, page.evaluate(state)
        assert moved < last
        assert at(page) == slide
        page.wait_for_timeout(600)  # a figure writes the address at most every 400 ms
        if way == "escape":
            leave(page)
        else:
            page.go_back()
        page.wait_for_selector(".kl-present", state="detached")
        page.wait_for_timeout(600)
        assert page.evaluate(state) == moved
        assert f"mean:{moved}" in page.evaluate("decodeURIComponent(location.search)")
        assert page.evaluate("location.hash") == ""
        there = page.evaluate(f"document.querySelector('{FIGURE}').parentElement.outerHTML.length")
        assert abs(there - home) < 100
        assert page.locator(f".bd-article {FIGURE}").is_visible()
        assert faults == []


@pytest.mark.browser
def test_keys_buttons_and_address(chrome, address):
    with watched(chrome, viewport=ROOM) as (page, faults):
        count = start(page, f"{address}/{GAUSSIANS}", 3)
        assert f"3 of {count}" in at(page)
        press = page.keyboard.press
        for key, expected in [
            ("ArrowRight", 4), ("ArrowLeft", 3), ("Space", 4), ("Shift+Space", 3), ("PageDown", 4),
            ("PageUp", 3), ("ArrowDown", 4), ("ArrowUp", 3), ("End", count), ("ArrowRight", count),
            ("Home", 1), ("ArrowLeft", 1), ("Control+ArrowRight", 1),
        ]:  # fmt: skip
            press(key)
            page.evaluate(FRAMES)
            assert f"{expected} of {count}" in at(page), key
        page.get_by_role("button", name="Next slide").click()
        page.get_by_role("button", name="Next slide").click()
        page.get_by_role("button", name="Slide before").click()
        assert f"2 of {count}" in at(page)
        assert page.evaluate("location.hash") == "#present=2"
        status = page.locator(".kl-present [role=status]")
        assert status.text_content() == f"Slide 2 of {count}: The puzzle"
        # Help is a box of its own: Esc closes it, and only it.
        press("?")
        assert page.get_by_role("dialog", name="Keys").is_visible()
        press("Escape")
        assert not page.get_by_role("dialog", name="Keys").is_visible()
        assert page.locator(SHOWN).is_visible()
        page.evaluate("location.hash = '#present=5'")
        page.wait_for_function(
            "() => document.querySelector('.progress').textContent.includes('5 of')"
        )
        # Tab stays within: the page behind is inert.
        for _ in range(12):
            press("Tab")
            assert page.evaluate(
                "document.activeElement === document.body "
                "|| !!document.activeElement.closest('.kl-present')"
            )
        # A link within the page leads out of the view.
        page.evaluate("location.hash = '#summary'")
        page.wait_for_selector(".kl-present", state="detached")
        assert page.locator("#summary h2").first.is_visible()
        assert faults == []


@pytest.mark.browser
def test_fingers(chrome, address):
    options = {"viewport": PHONE, "has_touch": True, "is_mobile": True}
    with watched(chrome, **options) as (page, faults):
        count = start(page, f"{address}/{GAUSSIANS}")
        swipe = """([from, to, y]) => {
          const on = document.querySelector(".kl-present .slide:not([hidden]) > :last-child");
          const touch = (x) =>
            new Touch({ identifier: 1, target: on, clientX: x, clientY: 300 + y });
          const send = (kind, x, y, touches) => on.dispatchEvent(new TouchEvent(kind, {
            bubbles: true, touches, changedTouches: [touch(x)] }));
          send("touchstart", from, 0, [touch(from)]);
          send("touchend", to, y, []);
        }"""
        for from_to_y, expected in [([300, 80, 0], 2), ([300, 270, 0], 2), ([80, 300, 0], 1)]:
            page.evaluate(swipe, from_to_y)
            assert f"{expected} of {count}" in at(page)
        page.get_by_role("button", name="Next slide").tap()
        assert f"2 of {count}" in at(page)
        for button in page.locator(".kl-present .tools button").all():
            box = button.bounding_box()
            assert min(box["width"], box["height"]) >= 44
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= PHONE["width"]
        assert overflow(page) <= 0
        assert faults == []


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_slides(chrome, address, scheme):
    with watched(chrome, color_scheme=scheme, viewport=PHONE) as (page, faults):
        start(page, f"{address}/{GAUSSIANS}", 5)  # a table
        assert page.locator(f"{SHOWN} table").is_visible()
        assert violations(page, part=".kl-present") == []
        to_figure(page)
        assert violations(page, part=".kl-present") == []
        page.get_by_role("button", name="Keys").click()
        assert violations(page, part=".kl-present") == []
        assert faults == []


@pytest.mark.browser
def test_a_printout_has_one_slide_a_page(chrome, site):
    with watched(chrome, viewport=ROOM) as (page, faults):
        count = start(page, (site / GAUSSIANS).as_uri())
        printed = page.pdf(prefer_css_page_size=True)
        assert printed.count(b"/Type /Page\n") == count
        boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed)
        assert boxes
        assert all(float(width) > float(height) for width, height in boxes)
        assert faults == []
