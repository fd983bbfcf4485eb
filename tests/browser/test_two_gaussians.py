"""What only ``<kl-two-gaussians>`` does, and what the kit does once for all figures."""

from __future__ import annotations

import re
import time

import pytest
from cases import TWO_GAUSSIANS
from harness import grip, handle_selector, reads, settle, wait_for_state

pytestmark = pytest.mark.browser

KEY = TWO_GAUSSIANS.key
MEAN, SCALE = handle_selector("mean of p"), handle_selector("scale of p")


@pytest.fixture(scope="module")
def figure():
    return TWO_GAUSSIANS


# --- dragging ---------------------------------------------------------------------------------


def test_the_flank_follows_the_mouse_without_a_jump(open_page):
    page = open_page("one")
    x, y = grip(page, SCALE)
    page.mouse.move(x + 3, y)  # off centre: the curve must not jump under the pointer
    page.mouse.down()
    page.mouse.move(x + 4, y)
    assert abs(reads(page, SCALE) - 0.9) <= 0.05
    page.mouse.move(x + 33, y, steps=4)
    page.mouse.up()
    scale = reads(page, SCALE)
    assert 1.5 < scale <= 2
    assert page.locator(".control-scale .value").inner_text() == f"{scale:.2f}"
    assert page.locator(".control-scale input").input_value() == f"{scale:g}"
    page.mouse.move(x - 60, y)  # released: nothing follows any more
    assert reads(page, SCALE) == scale
    page.get_by_text("variance is infinite").wait_for()


def test_keys_move_by_a_step_and_by_ten(open_page):
    page = open_page("one")
    page.locator(MEAN).focus()
    page.keyboard.press("ArrowRight")
    assert reads(page, MEAN) == pytest.approx(0.65)
    # Three keys within one frame are three steps.
    page.locator(MEAN).evaluate(
        "e => { for (const key of ['ArrowLeft', 'ArrowLeft', 'ArrowUp'])"
        " e.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true })); }"
    )
    assert reads(page, MEAN) == pytest.approx(0.6)
    page.keyboard.press("Shift+ArrowLeft")
    assert reads(page, MEAN) == pytest.approx(0.1)
    page.keyboard.press("Shift+ArrowLeft")
    settle(page)
    assert page.locator(".control-mean .value").inner_text() == "−0.40"

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


def title(page) -> str:
    settle(page)
    return page.locator(".panel-distributions .panel-title").inner_text()


def test_with_reduced_motion_the_result_is_there_at_once(open_page):
    page = open_page("one")
    assert title(page).startswith("Averages of 200 runs")
    page.get_by_role("button", name="Draw 100 runs").click()
    assert "300 runs" in title(page)
    before = page.locator(".panel-running svg").get_attribute("aria-label")
    page.get_by_role("button", name="Draw one run of 16").click()
    assert "301 runs" in title(page)
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


# --- the kit: links, and a host's model ---------------------------------------------------------


def test_back_and_forward_bring_the_state_along(open_http):
    page = open_http("one")
    page.locator(".control-mean input").fill("1")
    wait_for_state(page, "mean:1")
    page.evaluate("history.pushState(null, '', location.pathname)")
    page.go_back()
    page.wait_for_function("() => location.search.includes('mean:1')")
    assert reads(page, MEAN) == 1


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
    assert reads(page, MEAN) == 1
    page.evaluate("model.change('mean', -0.5)")
    page.wait_for_function("document.querySelector('kl-two-gaussians').state.mean === -0.5")
    page.locator(".control-n input").fill("5")
    assert page.evaluate("model.values") == {"mean": -0.5, "n": 32}
    assert page.evaluate("saved") >= 1
    page.evaluate("stop()")
    assert page.locator("kl-two-gaussians").count() == 0
    assert page.evaluate("Object.keys(model.listeners)") == []
