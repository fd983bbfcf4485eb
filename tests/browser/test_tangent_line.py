"""``<kl-tangent-line>`` in a real browser: a page of its own, over http and from a file."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from harness import (
    assert_accessible,
    assert_fits,
    drawn,
    layout_shift,
    overlapping_labels,
    page_html,
    publish,
    query_state,
    settle,
    touch,
    wait_for_state,
)

from kllab import explorables

pytestmark = pytest.mark.browser

KEY = "fig-tangent-line"


@pytest.fixture(scope="module")
def figure_site(tmp_path_factory) -> Path:
    figure = explorables.tangent_line()
    element = figure.element()
    return publish(
        tmp_path_factory.mktemp("site"),
        {
            "one": page_html(f'{element}<p class="tall">After.</p>'),
            "far": page_html(f'<p class="tall">Before.</p>{element}'),
            "live": page_html(figure._repr_html_(), script=""),
            "model": page_html('<div id="here"></div>', script=""),
        },
    )


def handle(page, name: str):
    return page.get_by_role("slider", name=f"{name} on the").and_(page.locator("g"))


def value(page, name: str) -> float:
    settle(page)
    return float(handle(page, name).get_attribute("aria-valuenow"))


def knob(page, name: str) -> tuple[float, float]:
    settle(page)
    box = handle(page, name).locator(".knob").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def table(page) -> list[str]:
    settle(page)
    return page.locator(".numbers tbody tr").all_inner_texts()


def pressed(page) -> list[str]:
    settle(page)
    return page.locator("button[aria-pressed=true]").all_inner_texts()


# --- the default state ------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_opens_with_its_point_made(open_page, theme):
    page = open_page("one", theme=theme)
    reading = page.get_by_role("status").inner_text()
    assert "curve lies 0.584 above the line" in reading
    assert "no sample is ever below 0, and the variance of one sample is 0.718" in reading
    assert "λ* = 0.582 has 42\u00a0% less variance, with 24\u00a0% of samples below 0" in reading
    assert pressed(page) == ["tangent"]
    assert page.locator("svg.plot").count() == 3
    assert page.url.count("?") == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("query", ["", f"?{KEY}=f:chi2_pq,lambda:-4,mean:1.5"])
def test_no_axe_violation(open_http, theme, width, query):
    page = open_http("one", query, theme=theme, viewport={"width": width, "height": 800})
    assert_accessible(page)


@pytest.mark.parametrize("width", [320, 360, 700, 1280])
def test_nothing_overflows_and_targets_are_large_enough(open_http, width):
    query = f"?{KEY}=f:chi2_pq,lambda:3,mean:2"
    page = open_http("one", query, viewport={"width": width, "height": 800})
    assert_fits(page, width)
    wide = page.locator(".figure").evaluate("e => e.classList.contains('wide')")
    assert wide == (width >= 700)


def test_no_two_labels_overlap(open_http):
    for query in [
        "",
        "lambda:0,r:4",
        "mean:0.1,lambda:0.5",
        "f:chi2_pq,lambda:best,mean:2,r:0.05",
        "f:tv,lambda:best,r:0.5",
        "f:js,r:3.9,lambda:-0.3",
    ]:
        page = open_http("one", f"?{KEY}={query}", viewport={"width": 360, "height": 800})
        assert overlapping_labels(page) == [], query


@pytest.mark.parametrize("width", [360, 660, 1280])
def test_the_page_does_not_jump(open_http, width):
    page = open_http("one", started=False, viewport={"width": width, "height": 900})
    assert layout_shift(page) < 0.05


# --- moving -----------------------------------------------------------------------------------


def test_the_mouse_drags_r_and_lambda(open_page):
    page = open_page("one")
    x, y = knob(page, "r")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 70, y - 30, steps=5)
    page.mouse.up()
    r = value(page, "r")
    assert 1.2 < r < 1.8
    assert page.locator(".control-r .value").inner_text() == f"{r:.2f}"

    x, y = knob(page, "λ")
    page.mouse.move(x + 2, y)
    page.mouse.down()
    page.mouse.move(x - 98, y, steps=5)
    page.mouse.up()
    lam = value(page, "λ")
    assert 0.2 < lam < 0.6
    assert page.locator(".control-lambda input").input_value() == f"{lam:g}"
    assert pressed(page) == []
    assert table(page)[-1].startswith("yours")
    page.mouse.move(x, y)  # released: nothing follows any more
    assert value(page, "λ") == lam


def test_a_finger_drags_lambda(open_http):
    page = open_http("one", viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True)
    handle(page, "λ").scroll_into_view_if_needed()
    cdp = page.context.new_cdp_session(page)
    x, y = knob(page, "λ")
    touch(cdp, "touchStart", (x + 8, y + 8))  # beside the knob, within its reach
    for step in range(1, 9):
        touch(cdp, "touchMove", (x + 8 - 6 * step, y + 8))
    touch(cdp, "touchEnd")
    assert value(page, "λ") < 0.9


def test_the_keyboard_reaches_and_moves_everything(open_page):
    page = open_page("one")
    page.locator("main h1").click()
    order = []
    for _ in range(12):
        page.keyboard.press("Tab")
        order.append(
            page.evaluate(
                "() => { const e = document.activeElement.shadowRoot.activeElement;"
                " return e.getAttribute('aria-label') || e.name || e.textContent; }"
            )
        )
    assert order == [
        *("f", "r", "mean", "r on the curve", "lambda", "λ = 0", "tangent"),
        *("least variance, λ*", "λ on the parabola", "New samples", "Reset", "Copy link"),
    ]

    handle(page, "r").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert value(page, "r") == pytest.approx(2.4)
    handle(page, "λ").focus()
    page.keyboard.press("ArrowLeft")
    assert value(page, "λ") == pytest.approx(0.99)
    page.keyboard.press("Home")
    low = value(page, "λ")
    assert low == float(handle(page, "λ").get_attribute("aria-valuemin")) < 0
    page.locator(".control-f select").focus()
    page.keyboard.press("ArrowDown")  # kl_pq
    url = wait_for_state(page, "f:kl_pq")
    assert query_state(url, KEY) == f"f:kl_pq,lambda:{low:g},r:2.4"
    page.get_by_role("button", name="least variance").press("Enter")
    wait_for_state(page, "lambda:best")
    page.get_by_role("status").get_by_text("No λ has less").wait_for()


def test_names_follow_the_generator(open_http):
    page = open_http("one")
    page.locator(".control-f select").select_option("chi2_qp")
    assert [row.split("\t")[0] for row in table(page)] == ["0", "tangent = λ*"]
    page.locator(".control-f select").select_option("hellinger2")
    assert value(page, "λ") == 0
    assert pressed(page) == ["tangent"]
    assert [row.split("\t")[0] for row in table(page)] == ["0 = tangent", "λ*"]


def test_the_gap_says_below_zero_where_it_is(open_http):
    page = open_http("one", f"?{KEY}=lambda:0,r:2")
    words = page.locator("svg.curve .labels text").all_text_contents()
    assert {"−0.693", "below 0"} <= set(words)
    page.locator(".control-r input").fill("0.5")
    settle(page)
    words = page.locator("svg.curve .labels text").all_text_contents()
    assert "0.693" in words
    assert "below 0" not in words


def test_new_samples_are_new_and_their_seed_is_in_the_link(open_http):
    page = open_http("one")
    before = drawn(page)
    page.get_by_role("button", name="New samples").click()
    wait_for_state(page, "seed:2")
    assert drawn(page) != before
    page.get_by_role("button", name="Reset").click()
    assert drawn(page) == before


def test_nothing_is_drawn_until_the_figure_is_near(open_http):
    page = open_http("far", started=False)
    page.wait_for_function("!!customElements.get('kl-tangent-line')")
    assert page.locator("svg.plot").count() == 0
    assert page.locator("kl-tangent-line img").is_visible()
    page.evaluate("scrollTo(0, 2400)")
    page.locator("svg.plot").first.wait_for()


# --- the link ---------------------------------------------------------------------------------


def test_a_link_brings_everybody_to_the_same_picture(open_page):
    page = open_page("one")
    page.locator(".control-f select").select_option("jeffreys")
    page.locator(".control-mean input").fill("0.5")
    page.get_by_role("button", name="least variance").click()
    url = wait_for_state(page, "lambda:best")
    assert query_state(url, KEY) == "f:jeffreys,mean:0.5,lambda:best"
    other = open_page("one", f"?{urlsplit(url).query}#{KEY}")
    assert table(other) == table(page)
    assert drawn(other) == drawn(page)


@pytest.mark.parametrize(
    "text",
    [
        "f:nope,lambda:NaN,r:-,mean:",
        "f:constructor,lambda:%3Cimg%20src=x%20onerror=alert(1)%3E",
        "__proto__:1,constructor:2",
        "%E0%A4%A",
        "," * 3000,
    ],
)
def test_a_hostile_link_changes_nothing(open_http, text):
    plain = table(open_http("one"))
    page = open_http("one", f"?{KEY}={text}&other=%E0%A4%A")
    assert table(page) == plain


def test_a_link_beyond_the_range_is_brought_back(open_http):
    page = open_http("one", f"?{KEY}=lambda:1e300,r:1e300,mean:-5")
    assert value(page, "r") == 4
    assert value(page, "λ") == float(handle(page, "λ").get_attribute("aria-valuemax"))
    assert page.locator(".control-mean .value").inner_text() == "0.10"


# --- without the script, on paper, and live ---------------------------------------------------


def test_the_picture_shows_without_scripts(open_page):
    page = open_page("one", java_script_enabled=False, started=False)
    assert page.get_by_role("img", name=re.compile("^Left: the curve")).is_visible()
    assert page.get_by_text("at λ* = 0.582 it is 0.418").is_visible()


def test_paper_shows_the_picture(open_page):
    page = open_page("one")
    picture = page.locator("kl-tangent-line img")
    assert not picture.is_visible()
    page.emulate_media(media="print")
    assert picture.is_visible()
    assert not page.locator(".figure").is_visible()


def test_live_output_starts_and_leaves_the_address_alone(open_page):
    page = open_page("live")
    before = page.url
    page.locator(".control-r input").fill("1")
    assert value(page, "r") == 1
    page.wait_for_timeout(600)  # longer than the address writer waits
    assert page.url == before
    assert page.get_by_role("button", name="Copy link").count() == 0


def test_the_module_renders_for_a_model(open_http):
    page = open_http("model", started=False)
    page.evaluate(
        """async () => {
          const { default: widget } = await import('/live.js');
          const values = { figure: 'tangent-line', f: 'js', lambda: 'best' };
          const model = { get: name => values[name] };
          widget.render({ model, el: document.querySelector('#here') });
        }"""
    )
    page.locator("svg.plot").first.wait_for()
    assert pressed(page) == ["least variance, λ*"]
    assert page.locator(".control-f select").input_value() == "js"
