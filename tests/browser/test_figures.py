"""What every browser figure must do, in a real browser: on pages of its own, see `cases.py`."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from harness import (
    assert_accessible,
    assert_fits,
    drag,
    drawn,
    grip,
    layout_shift,
    overlapping_labels,
    put,
    query_state,
    reads,
    settle,
    state,
    table,
    touch,
    wait_for_state,
)
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

PHONE = {"viewport": {"width": 360, "height": 700}, "has_touch": True, "is_mobile": True}


# --- the default state ------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_opens_with_its_point_made(open_page, figure, theme):
    page = open_page("one", theme=theme)
    reading = page.get_by_role("status").inner_text()
    for words in figure.says:
        assert words in reading
    assert page.locator("svg.plot").count() == figure.plots
    assert page.url.count("?") == 0


def test_dark_and_light_follow_the_page_as_it_changes(open_http):
    page = open_http("one")
    ink = expect(page.locator(".figure"))
    light, dark = "rgb(27, 27, 27)", "rgb(228, 228, 228)"
    ink.to_have_css("color", light)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    ink.to_have_css("color", dark)
    # JupyterLab says it on the body; no theme at all leaves it to the system.
    page.evaluate("delete document.documentElement.dataset.theme")
    ink.to_have_css("color", light)
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    ink.to_have_css("color", dark)
    page.evaluate("delete document.body.dataset.jpThemeLight")
    ink.to_have_css("color", light)
    page.emulate_media(color_scheme="dark")
    ink.to_have_css("color", dark)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("full", [False, True], ids=["default", "full"])
def test_no_axe_violation(open_http, figure, theme, width, full):
    query = f"?{figure.key}={figure.full}" if full else ""
    page = open_http("one", query, theme=theme, viewport={"width": width, "height": 800})
    assert_accessible(page)


@pytest.mark.parametrize("width", [320, 360, 700, 1280])
def test_nothing_overflows_and_targets_are_large_enough(open_http, figure, width):
    query = f"?{figure.key}={figure.crowded[-1]}"
    page = open_http("one", query, viewport={"width": width, "height": 800})
    assert_fits(page, width)
    wide = page.locator(".figure").evaluate("e => e.classList.contains('wide')")
    assert wide == (width >= 700)


def test_no_two_labels_overlap(open_http, figure):
    for query in figure.crowded:
        page = open_http("one", f"?{figure.key}={query}", viewport={"width": 360, "height": 800})
        assert overlapping_labels(page) == [], query


@pytest.mark.parametrize("width", [360, 660, 1280])
def test_the_page_does_not_jump(open_http, width):
    page = open_http("one", started=False, viewport={"width": width, "height": 900})
    assert layout_shift(page) < 0.05


def test_nothing_is_drawn_until_the_figure_is_near(open_http, figure):
    page = open_http("far", started=False)
    page.wait_for_function(f"!!customElements.get('{figure.tag}')")
    picture = page.locator(f"{figure.tag} img")
    assert page.locator("svg.plot").count() == 0
    assert picture.is_visible()
    page.evaluate("scrollTo(0, 2400)")
    page.locator("svg.plot").first.wait_for()
    assert not picture.is_visible()


# --- mouse, finger, keys ------------------------------------------------------------------------


def test_the_mouse_drags(open_page, figure):
    page = open_page("one")
    asked = figure.mouse
    start = grip(page, asked.grip)
    drag(page, asked.grip, by=(asked.by, 40))
    moved = reads(page, asked.grip)
    assert asked.low < moved < asked.high
    page.mouse.move(*start)  # released: nothing follows any more
    assert reads(page, asked.grip) == moved
    wait_for_state(page, f":{moved:g}".replace(".", r"\."))


def test_a_finger_drags_sideways_and_still_scrolls_the_page(open_http, figure):
    page = open_http("one", **PHONE)
    asked = figure.finger
    page.locator(asked.grip).scroll_into_view_if_needed()
    cdp = page.context.new_cdp_session(page)
    x, y = grip(page, asked.grip)
    touch(cdp, "touchStart", (x + 5, y + 5))  # beside the knob, within its reach
    for step in range(1, 9):
        touch(cdp, "touchMove", (x + 5 + asked.by * step / 8, y + 5))
    touch(cdp, "touchEnd")
    dragged = reads(page, asked.grip)
    assert asked.low < dragged < asked.high
    before = page.evaluate("scrollY")

    x, y = grip(page, asked.grip)
    touch(cdp, "touchStart", (x, y))
    for step in range(1, 13):
        touch(cdp, "touchMove", (x, y - 12 * step))
    touch(cdp, "touchEnd")
    page.wait_for_function("before => scrollY > before", arg=before)
    assert reads(page, asked.grip) == dragged


def test_the_keyboard_reaches_and_moves_everything(open_page, figure):
    page = open_page("one")
    page.locator("main h1").click()
    order = []
    for _ in figure.stops:
        page.keyboard.press("Tab")
        order.append(
            page.evaluate(
                "() => { const e = document.activeElement.shadowRoot.activeElement;"
                " return e.getAttribute('aria-label') || e.name || e.value || e.textContent; }"
            )
        )
    assert tuple(order) == figure.stops
    for selector, key in figure.keys:
        page.locator(selector).focus()
        page.keyboard.press(key)
        settle(page)
    page.wait_for_function("() => location.search")
    page.wait_for_timeout(500)  # longer than the address writer waits
    assert query_state(page.url, figure.key) == figure.keyed


def test_many_moves_within_a_frame_are_drawn_once(open_http, figure):
    page = open_http("one")
    settle(page)
    drawings, shown, last = page.evaluate(
        """tag => new Promise(done => {
          const figure = document.querySelector(tag);
          let drawings = 0;
          const draw = figure.draw.bind(figure);
          figure.draw = width => { drawings++; draw(width); };
          const input = figure.shadowRoot.querySelector('input[type=range]');
          const [low, high] = [Number(input.min), Number(input.max)];
          for (let i = 1; i <= 15; i++) {
            input.value = low + (high - low) * i / 15;
            input.dispatchEvent(new Event('input'));
          }
          requestAnimationFrame(() => setTimeout(
            () => done([drawings, figure.linkText(), high])
          ));
        })""",
        figure.tag,
    )
    assert drawings == 1
    assert f":{last:g}" in shown


def test_with_reduced_motion_the_result_is_there_at_once(open_page, figure):
    page = open_page("one")
    before = drawn(page)
    page.get_by_role("button", name=figure.again).click()
    after = drawn(page)
    assert after != before
    page.wait_for_timeout(300)
    assert drawn(page) == after
    page.get_by_role("button", name="Reset").click()
    assert drawn(page) == before


# --- the link ---------------------------------------------------------------------------------


def test_a_link_brings_everybody_to_the_same_picture(open_page, figure):
    page = open_page("one")
    for selector, text in figure.change:
        put(page, selector, text)
    page.wait_for_timeout(500)  # longer than the address writer waits
    assert query_state(page.url, figure.key) == figure.changed

    other = open_page("one", f"?{urlsplit(page.url).query}#{figure.key}")
    assert table(other) == table(page)
    assert drawn(other) == drawn(page)
    top = other.locator(figure.tag).evaluate("e => e.getBoundingClientRect().top")
    assert abs(top) < 2


def test_section_anchors_and_other_parameters_are_left_alone(open_page, figure):
    page = open_page("one", "?highlight=kl#later")
    assert page.locator("#later").evaluate("e => e.getBoundingClientRect().top") < 900
    put(page, *figure.change[0])
    url = wait_for_state(page, f"{figure.key}=")
    assert urlsplit(url).fragment == "later"
    assert urlsplit(url).query.startswith(f"highlight=kl&{figure.key}=")
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function("() => location.search === '?highlight=kl'")


def test_two_figures_do_not_share_a_parameter(open_http, figure):
    page = open_http("two")
    both = page.locator(figure.tag)
    both.nth(1).scroll_into_view_if_needed()
    selector, text = figure.change[0]
    both.nth(1).locator(selector).fill(text)
    url = wait_for_state(page, f"{figure.key}-2=")
    assert urlsplit(url).query.startswith(f"{figure.key}-2=")
    first, second = both.evaluate_all("all => all.map(e => e.linkText())")
    assert (first, second) == ("", query_state(url, f"{figure.key}-2"))


HOSTILE = {
    "markup": "{name}:%3Cimg%20src=x%20onerror=alert(1)%3E",
    "prototype": "__proto__:1,constructor:2",
    "percent": "%E0%A4%A",
    "commas": "," * 3000,
    "own": "{own}",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_link_changes_nothing(open_http, figure, kind):
    page = open_http("one")
    plain, initial = table(page), state(page)
    name = next(iter(initial))
    text = HOSTILE[kind].format(name=name, own=figure.hostile)
    page = open_http("one", f"?{figure.key}={text}&other=%E0%A4%A")
    assert state(page) == initial
    assert table(page) == plain


def test_a_link_beyond_the_range_is_brought_back(open_http, figure):
    text, brought = figure.beyond
    page = open_http("one", f"?{figure.key}={text.replace('+', '%2B')}")
    assert state(page) == brought
    assert not re.search("NaN|undefined", page.locator(".figure").inner_text())


# --- without the script, on paper, and live ---------------------------------------------------


def test_the_picture_shows_without_scripts(open_page, figure):
    page = open_page("one", java_script_enabled=False, started=False)
    assert page.get_by_role("img", name=re.compile(f"^{figure.picture}")).is_visible()
    assert page.get_by_text(figure.caption).is_visible()


def test_paper_shows_the_picture(open_page, figure):
    page = open_page("one")
    picture = page.locator(f"{figure.tag} img")
    assert not picture.is_visible()
    page.emulate_media(media="print")
    assert picture.is_visible()
    assert not page.locator(".figure").is_visible()
    # The height that was reserved for the figure is not left as a hole.
    heights = page.locator(figure.tag).evaluate(
        "e => [e.offsetHeight, e.querySelector('figure').offsetHeight]"
    )
    assert heights[0] <= heights[1] + 40


def test_live_output_starts_and_leaves_the_address_alone(open_page, figure):
    page = open_page("live")
    before, address = state(page), page.url
    put(page, *figure.change[0])
    settle(page)
    assert state(page) != before
    page.wait_for_timeout(600)  # longer than the address writer waits
    assert page.url == address
    assert page.get_by_role("button", name="Copy link").count() == 0
    # JupyterLab takes single keys for commands unless the element says that it needs them.
    assert page.locator(figure.tag).get_attribute("data-lm-suppress-shortcuts") == "true"


def test_the_module_renders_for_a_model(open_http, figure):
    page = open_http("model", started=False)
    page.evaluate(
        """async values => {
          const { default: widget } = await import('/live.js');
          const model = { get: name => values[name] };
          widget.render({ model, el: document.querySelector('#here') });
        }""",
        {"figure": figure.name, **figure.model},
    )
    page.locator("svg.plot").first.wait_for()
    assert state(page).items() >= figure.model.items()
