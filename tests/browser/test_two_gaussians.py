"""``<kl-two-gaussians>`` in a real browser: a page of its own, over http and from a file."""

from __future__ import annotations

import re
import time
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

KEY = "fig-two-gaussians"


@pytest.fixture(scope="module")
def figure_site(tmp_path_factory) -> Path:
    """A folder with the bundles and the pages that the tests open."""
    figure = explorables.two_gaussians()
    element = figure.element()
    return publish(
        tmp_path_factory.mktemp("site"),
        {
            "one": page_html(f'{element}<h2 id="later">Later</h2><p class="tall">After.</p>'),
            "two": page_html(element + element.replace('mean="0.6"', 'mean="-1"')),
            "far": page_html(f'<p class="tall">Before.</p>{element}<p class="tall">After.</p>'),
            "live": page_html(figure._repr_html_(), script=""),
            "model": page_html('<div id="here"></div>', script=""),
        },
    )


def handle(page, name: str):
    return page.get_by_role("slider", name=f"{name} of p").and_(page.locator("g"))


def value(page, name: str) -> float:
    settle(page)
    return float(handle(page, name).get_attribute("aria-valuenow"))


def centre(page, name: str) -> tuple[float, float]:
    settle(page)
    box = handle(page, name).locator(".knob").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def table(page) -> list[str]:
    settle(page)
    return page.locator(".numbers tbody td").all_inner_texts()


def state_in(url: str) -> str:
    return query_state(url, KEY)


# --- the default state ------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_opens_with_its_point_made(open_page, theme):
    page = open_page("one", theme=theme)
    reading = page.get_by_role("status").inner_text()
    assert "k1 is right on average but falls below 0 in 10\u00a0% of runs" in reading
    assert "k2 is 35\u00a0% too high" in reading
    assert (
        page.locator(".panel-distributions .panel-title")
        .inner_text()
        .startswith("Averages of 200 runs")
    )
    assert page.locator("svg.plot").count() == 4
    assert page.url.count("?") == 0


def test_dark_and_light_follow_the_page_as_it_changes(open_http):
    page = open_http("one")

    def ink() -> str:
        return page.locator(".figure").evaluate("e => getComputedStyle(e).color")

    assert ink() == "rgb(27, 27, 27)"
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert ink() == "rgb(228, 228, 228)"
    # JupyterLab says it on the body; no theme at all leaves it to the system.
    page.evaluate("delete document.documentElement.dataset.theme")
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    assert ink() == "rgb(228, 228, 228)"
    page.evaluate("delete document.body.dataset.jpThemeLight")
    assert ink() == "rgb(27, 27, 27)"
    page.emulate_media(color_scheme="dark")
    assert ink() == "rgb(228, 228, 228)"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("query", ["", f"?{KEY}=scale:1.8,runs:1000,show:k1%2Bk3"])
def test_no_axe_violation(open_http, theme, width, query):
    page = open_http("one", query, theme=theme, viewport={"width": width, "height": 800})
    assert_accessible(page)


@pytest.mark.parametrize("width", [320, 360, 700, 1280])
def test_nothing_overflows_and_targets_are_large_enough(open_http, width):
    query = f"?{KEY}=mean:-0.1,scale:1,n:1024"
    page = open_http("one", query, viewport={"width": width, "height": 800})
    assert_fits(page, width)
    wide = page.locator(".figure").evaluate("e => e.classList.contains('wide')")
    assert wide == (width >= 700)


def test_no_two_labels_overlap(open_http):
    for query in ["", "mean:0.1,scale:1", "mean:2.5,scale:0.4,n:1", "mean:-1,scale:2,n:1024"]:
        page = open_http("one", f"?{KEY}={query}", viewport={"width": 360, "height": 800})
        assert overlapping_labels(page) == [], query


@pytest.mark.parametrize("width", [360, 660, 1280])
def test_the_page_does_not_jump(open_http, width):
    page = open_http("one", started=False, viewport={"width": width, "height": 900})
    assert layout_shift(page) < 0.05


# --- dragging ---------------------------------------------------------------------------------


def test_the_mouse_drags_the_peak_and_the_flank(open_page):
    page = open_page("one")
    x, y = centre(page, "mean")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 30, y + 5, steps=4)
    page.mouse.move(x - 60, y + 40, steps=4)
    page.mouse.up()
    mean = value(page, "mean")
    assert -1.6 < mean < -0.6
    assert page.locator(".control-mean .value").inner_text() == f"{mean:.2f}".replace("-", "−")
    assert page.locator(".control-mean input").input_value() == f"{mean:g}"

    x, y = centre(page, "scale")
    page.mouse.move(x + 3, y)  # off centre: the curve must not jump under the pointer
    page.mouse.down()
    page.mouse.move(x + 4, y)
    assert abs(value(page, "scale") - 0.9) <= 0.05
    page.mouse.move(x + 33, y, steps=4)
    page.mouse.up()
    scale = value(page, "scale")
    assert 1.5 < scale <= 2
    page.mouse.move(x - 60, y)  # released: nothing follows any more
    assert value(page, "scale") == scale
    page.get_by_text("variance is infinite").wait_for()


def test_a_finger_drags_sideways_and_still_scrolls_the_page(open_http):
    page = open_http("one", viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True)
    handle(page, "mean").scroll_into_view_if_needed()
    cdp = page.context.new_cdp_session(page)
    x, y = centre(page, "mean")
    touch(cdp, "touchStart", (x + 8, y + 8))  # beside the knob, within its reach
    for step in range(1, 9):
        touch(cdp, "touchMove", (x + 8 - 6 * step, y + 8))
    touch(cdp, "touchEnd")
    dragged = value(page, "mean")
    assert dragged < 0
    before = page.evaluate("scrollY")

    x, y = centre(page, "mean")
    touch(cdp, "touchStart", (x, y))
    for step in range(1, 13):
        touch(cdp, "touchMove", (x, y - 12 * step))
    touch(cdp, "touchEnd")
    page.wait_for_function("before => scrollY > before", arg=before)
    assert value(page, "mean") == dragged


def test_the_keyboard_reaches_and_moves_everything(open_page):
    page = open_page("one")
    page.locator("main h1").click()
    order = []
    for _ in range(13):
        page.keyboard.press("Tab")
        order.append(
            page.evaluate(
                "() => { const e = document.activeElement.shadowRoot.activeElement;"
                " return e.getAttribute('aria-label') || e.name || e.value || e.textContent; }"
            )
        )
    assert order == [
        *("mean", "scale", "k1", "k2", "k3", "scale of p", "mean of p", "n", "seed"),
        *("Draw one run of 16", "Draw 100 runs", "Reset", "Copy link"),
    ]

    handle(page, "mean").focus()
    page.keyboard.press("ArrowRight")
    assert value(page, "mean") == pytest.approx(0.65)
    # Three keys within one frame are three steps.
    handle(page, "mean").evaluate(
        "e => { for (const key of ['ArrowLeft', 'ArrowLeft', 'ArrowUp'])"
        " e.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true })); }"
    )
    assert value(page, "mean") == pytest.approx(0.6)
    page.keyboard.press("Shift+ArrowLeft")
    assert value(page, "mean") == pytest.approx(0.1)
    page.keyboard.press("End")
    handle(page, "scale").focus()
    page.keyboard.press("Home")
    url = wait_for_state(page, "mean:2.5,scale:0.4")
    assert state_in(url) == "mean:2.5,scale:0.4"

    page.locator(".control-n input").focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    assert page.locator(".control-n .value").inner_text() == "32"
    assert page.locator(".control-n input").get_attribute("aria-valuetext") == "32"


def test_a_focused_handle_shows_it(open_http):
    page = open_http("one")
    page.locator(".control-mean input").focus()
    for _ in range(5):
        page.keyboard.press("Tab")
    ring = page.locator(".handle:focus-visible .ring")
    assert ring.evaluate("e => getComputedStyle(e).strokeWidth") == "3px"


def test_toggles_keep_at_least_one_line(open_http):
    page = open_http("one")
    for name in ("k1", "k2"):
        page.get_by_role("checkbox", name=name).uncheck()
    last = page.get_by_role("checkbox", name="k3")
    last.click()
    assert last.is_checked()
    assert page.locator(".distributions .bars path").count() == 1
    assert page.locator(".numbers tbody tr").count() == 1


# --- drawing ----------------------------------------------------------------------------------


def test_with_reduced_motion_the_result_is_there_at_once(open_page):
    page = open_page("one")
    page.get_by_role("button", name="Draw 100 runs").click()
    settle(page)
    assert "300 runs" in page.locator(".panel-distributions .panel-title").inner_text()
    before = page.locator(".panel-running svg").get_attribute("aria-label")
    page.get_by_role("button", name="Draw one run of 16").click()
    settle(page)
    assert "301 runs" in page.locator(".panel-distributions .panel-title").inner_text()
    assert page.locator(".panel-running svg").get_attribute("aria-label") != before


def with_stopped_clock(page):
    """From here on time passes only in ``page.clock.run_for``, however busy the machine is."""
    page.clock.install(time=0)
    page.clock.pause_at(1000)


def test_with_motion_runs_come_in_one_after_the_other(open_http):
    page = open_http("one", reduced_motion="no-preference")
    with_stopped_clock(page)

    def runs_in_title() -> int:
        title = page.locator(".panel-distributions .panel-title").inner_text()
        return int(re.search(r"\d+", title)[0])

    page.get_by_role("button", name="Draw 100 runs").evaluate("e => e.click()")
    seen = []
    for _ in range(5):
        page.clock.run_for(300)
        seen.append(runs_in_title())
    assert seen == sorted(seen)
    assert 200 < seen[0] < seen[2] < 300
    page.clock.run_for(300)
    assert runs_in_title() == 300


def test_an_animation_ends_when_the_figure_leaves_the_screen(open_http):
    page = open_http("one", reduced_motion="no-preference")
    with_stopped_clock(page)
    page.get_by_role("button", name="Draw 100 runs").evaluate("e => e.click()")
    element = page.locator("kl-two-gaussians")
    assert element.evaluate("e => e.animator.running")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    # The observer reports in a real frame; the page's own clock stands still.
    deadline = time.monotonic() + 10
    while element.evaluate("e => e.animator.running") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not element.evaluate("e => e.animator.running")
    page.clock.run_for(50)
    assert "300 runs" in page.locator(".panel-distributions .panel-title").inner_text()


def test_a_thousand_runs_is_the_most(open_http):
    page = open_http("one", f"?{KEY}=runs:950")
    page.get_by_role("button", name="Draw 100 runs").click()
    full = page.get_by_role("button", name="1000 is the most")
    full.wait_for()
    assert full.get_attribute("aria-disabled") == "true"
    full.click(force=True)  # clickable, but without effect
    assert page.locator("kl-two-gaussians").evaluate("e => e.state.runs") == 1000
    page.get_by_role("button", name="Reset").click()
    page.get_by_role("button", name="Draw 100 runs").wait_for()


def test_nothing_is_drawn_until_the_figure_is_near(open_http):
    page = open_http("far", started=False)
    page.wait_for_function("!!customElements.get('kl-two-gaussians')")
    assert page.locator("svg.plot").count() == 0
    assert page.locator("kl-two-gaussians img").is_visible()
    page.evaluate("scrollTo(0, 2400)")
    page.locator("svg.plot").first.wait_for()
    assert not page.locator("kl-two-gaussians img").is_visible()


# --- the link ---------------------------------------------------------------------------------


def test_a_link_brings_everybody_to_the_same_picture(open_page):
    page = open_page("one")
    page.locator(".control-mean input").fill("1.2")
    page.locator(".control-n input").fill("3")
    page.locator(".control-seed input").fill("77")
    page.locator(".control-seed input").press("Enter")
    page.get_by_role("checkbox", name="k2").uncheck()
    page.get_by_role("button", name="Draw one run of 8").click()
    url = wait_for_state(page, "runs:201")
    assert state_in(url) == "mean:1.2,n:8,seed:77,runs:201,show:k1+k3"

    query = "?" + urlsplit(url).query
    other = open_page("one", f"{query}#{KEY}")
    assert table(other) == table(page)
    assert drawn(other) == drawn(page)
    top = other.locator("kl-two-gaussians").evaluate("e => e.getBoundingClientRect().top")
    assert abs(top) < 2


def test_section_anchors_and_other_parameters_are_left_alone(open_page):
    page = open_page("one", "?highlight=kl#later")
    assert page.locator("#later").evaluate("e => e.getBoundingClientRect().top") < 900
    page.locator(".control-mean input").fill("1")
    url = wait_for_state(page, "mean:1")
    assert urlsplit(url).fragment == "later"
    assert urlsplit(url).query == f"highlight=kl&{KEY}=mean:1"
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function("() => location.search === '?highlight=kl'")


def test_back_and_forward_bring_the_state_along(open_http):
    page = open_http("one")
    page.locator(".control-mean input").fill("1")
    wait_for_state(page, "mean:1")
    page.evaluate("history.pushState(null, '', location.pathname)")
    page.go_back()
    page.wait_for_function("() => location.search.includes('mean:1')")
    assert value(page, "mean") == 1


def test_two_figures_do_not_share_a_parameter(open_http):
    page = open_http("two")
    page.locator("kl-two-gaussians").nth(1).scroll_into_view_if_needed()
    second = page.locator("kl-two-gaussians").nth(1)
    second.locator(".control-scale input").fill("1.5")
    wait_for_state(page, "scale:1.5")
    assert urlsplit(page.url).query == f"{KEY}-2=scale:1.5"
    states = page.locator("kl-two-gaussians").evaluate_all("all => all.map(e => e.state.scale)")
    assert states == [0.9, 1.5]


@pytest.mark.parametrize(
    "text",
    [
        "mean:NaN,n:-1,show:none",
        "mean:%3Cimg%20src=x%20onerror=alert(1)%3E",
        "__proto__:1,constructor:2",
        "%E0%A4%A",
        "," * 3000,
    ],
)
def test_a_hostile_link_changes_nothing(open_http, text):
    plain = table(open_http("one"))
    page = open_http("one", f"?{KEY}={text}&other=%E0%A4%A")
    assert table(page) == plain


def test_copy_link(open_http):
    page = open_http("one", f"?{KEY}=mean:1", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Link copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"{open_http.base}/one.html?{KEY}=mean:1#{KEY}"


def test_where_copying_is_refused_the_link_is_shown(open_http):
    page = open_http("one")
    page.evaluate("() => { navigator.clipboard.writeText = async () => { throw Error('no'); }; }")
    page.get_by_role("button", name="Copy link").click()
    field = page.get_by_role("textbox", name="Link to this state")
    field.wait_for()
    assert field.input_value().endswith(f"one.html#{KEY}")


# --- without the script, on paper, and live ---------------------------------------------------


def test_the_picture_shows_without_scripts(open_page):
    page = open_page("one", java_script_enabled=False, started=False)
    assert page.get_by_role("img", name=re.compile("^Left: the densities")).is_visible()
    assert page.get_by_text("k2 is 35 % too high").is_visible()


def test_paper_shows_the_picture(open_page):
    page = open_page("one")
    picture = page.locator("kl-two-gaussians img")
    assert not picture.is_visible()
    page.emulate_media(media="print")
    assert picture.is_visible()
    assert not page.locator(".figure").is_visible()
    # The height that was reserved for the figure is not left as a hole.
    heights = page.locator("kl-two-gaussians").evaluate(
        "e => [e.offsetHeight, e.querySelector('figure').offsetHeight]"
    )
    assert heights[0] <= heights[1] + 40


def test_live_output_starts_and_leaves_the_address_alone(open_page):
    page = open_page("live")
    before = page.url
    page.locator(".control-mean input").fill("1")
    assert value(page, "mean") == 1
    page.wait_for_timeout(600)  # longer than the address writer waits
    assert page.url == before
    assert page.get_by_role("button", name="Copy link").count() == 0
    # JupyterLab takes single keys for commands unless the element says that it needs them.
    element = page.locator("kl-two-gaussians")
    assert element.get_attribute("data-lm-suppress-shortcuts") == "true"


def test_the_module_renders_for_a_model(open_http):
    page = open_http("model", started=False)
    page.evaluate(
        """async () => {
          const { default: widget } = await import('/live.js');
          const values = { mean: 1, n: 4 };
          const listeners = {};
          window.model = {
            values,
            get: name => values[name],
            set: (name, value) => { values[name] = value; },
            save_changes: () => { window.saved = (window.saved ?? 0) + 1; },
            on: (name, heard) => { listeners[name] = heard; },
            off: name => { delete listeners[name]; },
            change: (name, value) => { values[name] = value; listeners[`change:${name}`](); },
            listeners,
          };
          window.stop = widget.render({ model, el: document.querySelector('#here') });
        }"""
    )
    page.locator(".densities .handle").first.wait_for()
    assert value(page, "mean") == 1
    page.evaluate("model.change('mean', -0.5)")
    page.wait_for_function("document.querySelector('kl-two-gaussians').state.mean === -0.5")
    page.locator(".control-n input").fill("5")
    assert page.evaluate("model.values") == {"mean": -0.5, "n": 32}
    assert page.evaluate("saved") >= 1
    page.evaluate("stop()")
    assert page.locator("kl-two-gaussians").count() == 0
    assert page.evaluate("Object.keys(model.listeners)") == []
