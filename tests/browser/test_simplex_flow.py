"""What only ``<kl-simplex-flow>`` does."""

from __future__ import annotations

import pytest
from cases import SIMPLEX_FLOW
from harness import drag, grip, handle_selector, settle, state, table, touch

pytestmark = pytest.mark.browser

KEY = SIMPLEX_FLOW.key
POLICY, REFERENCE = handle_selector("policy q"), handle_selector("reference p")
PHONE = {"viewport": {"width": 360, "height": 700}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def figure():
    return SIMPLEX_FLOW


def corner(page, token: str) -> tuple[float, float]:
    """Where a corner of the left triangle lies on the page."""
    x, y = page.locator("svg.own").evaluate(
        """(svg, i) => {
          const { left, top } = svg.getBoundingClientRect();
          const d = svg.querySelector('.outline path').getAttribute('d');
          const [x, y] = d.match(/[-.0-9]+/g).map(Number).slice(2 * i, 2 * i + 2);
          return [left + x, top + y];
        }""",
        "ABC".index(token),
    )
    return x, y


def path(page) -> str:
    return page.locator("svg.own .paths [data-key=path]").get_attribute("d")


def test_the_mouse_takes_a_law_to_any_place(open_page):
    page = open_page("one")
    a, b, c = (corner(page, token) for token in "ABC")
    there = [0.2 * a[i] + 0.3 * b[i] + 0.5 * c[i] for i in (0, 1)]
    for handle, name in ((REFERENCE, "p"), (POLICY, "q")):
        drag(page, handle, to=there)
        assert state(page)[name] == pytest.approx([0.2, 0.3, 0.5], abs=0.011), name
        assert page.locator(handle).get_attribute("aria-valuetext").startswith("A 0.2, B 0.")
        if name == "p":  # out of the other one's way
            drag(page, handle, to=(c[0] + 300, c[1] - 200))  # outside: as near as can be
            assert state(page)["p"][2] > 0.5
            assert min(state(page)["p"]) == 0.01


def test_arrow_keys_take_a_law_along_both_axes(open_http):
    page = open_http("one")
    page.locator(POLICY).focus()
    for key, law in (
        ("ArrowLeft", [0.71, 0.19, 0.1]),
        ("ArrowUp", [0.7, 0.18, 0.12]),
        ("ArrowDown", [0.71, 0.19, 0.1]),
        ("Shift+ArrowRight", [0.61, 0.29, 0.1]),
        ("PageDown", [0.66, 0.33, 0.01]),
    ):
        page.keyboard.press(key)
        assert state(page)["q"] == pytest.approx(law), key
    before = page.evaluate("scrollY")
    page.keyboard.press("Control+ArrowRight")
    assert state(page)["q"] == pytest.approx([0.66, 0.33, 0.01])
    assert page.evaluate("scrollY") == before


def test_a_finger_takes_a_law_upwards_and_the_page_stays(open_http):
    page = open_http("one", **PHONE)
    page.locator(POLICY).scroll_into_view_if_needed()
    cdp = page.context.new_cdp_session(page)
    x, y = grip(page, POLICY)
    before = page.evaluate("scrollY")
    touch(cdp, "touchStart", (x + 6, y + 6))
    for step in range(1, 11):
        touch(cdp, "touchMove", (x + 6 + 3 * step, y + 6 - 9 * step))
    touch(cdp, "touchEnd")
    settle(page)
    assert page.evaluate("scrollY") == before
    assert state(page)["q"][2] > 0.35


def test_the_sliders_of_a_law_share_what_is_left(open_http):
    page = open_http("one")
    page.locator(".control-pA input").fill("0.7")
    settle(page)
    assert state(page)["p"] == pytest.approx([0.7, 0.2, 0.1])
    assert page.locator(".shares.p .value").all_inner_texts() == ["0.70", "0.20", "0.10"]
    assert table(page)[0] == "mean of the penalty\t0\t0"


def test_a_reward_brings_its_sliders_and_its_optimum(open_http):
    page = open_http("one")
    assert page.locator(".control-beta").count() == 0
    assert not page.locator("svg.own .best").get_attribute("d")
    page.get_by_role("button", name="With a reward").press("Enter")
    page.locator(".control-rewardA input").fill("0")
    page.locator(".control-rewardC input").fill("1")
    settle(page)
    assert state(page)["reward"] == [0, 0, 1]
    assert page.locator("svg.own .best").get_attribute("d")
    assert table(page)[-1].startswith("KL(q‖π*) there")
    page.get_by_role("button", name="With a reward").press("Enter")
    settle(page)
    assert page.locator(".control-beta").count() == 0
    assert table(page)[-1].startswith("KL(q‖p) there")


def test_a_placement_without_a_gradient_has_no_arrows(open_http):
    page = open_http("one", f"?{KEY}=penalty:k1,usage:loss")
    own, true = (
        page.locator(f"svg.{name} .field path").get_attribute("d") for name in ("own", "true")
    )
    assert own.count("h0") == own.count("M") == 45  # dots
    assert "h0" not in true
    assert path(page).count("L") == 1  # from q to q


def test_the_paths_run_and_end_where_they_were(open_http):
    page = open_http("one", reduced_motion="no-preference")
    settle(page)
    whole = path(page)
    page.get_by_role("button", name="Let it run").click()
    page.wait_for_function(
        """whole => {
          const root = document.querySelector('kl-simplex-flow').shadowRoot;
          const d = root.querySelector('svg.own .paths [data-key=path]').getAttribute('d');
          return d.length < 0.8 * whole.length;
        }""",
        arg=whole,
    )
    page.wait_for_function(
        """whole => {
          const root = document.querySelector('kl-simplex-flow').shadowRoot;
          return root.querySelector('svg.own .paths [data-key=path]').getAttribute('d') === whole;
        }""",
        arg=whole,
    )


def test_a_change_while_the_paths_run_shows_its_result_at_once(open_http):
    page = open_http("one", reduced_motion="no-preference")
    page.get_by_role("button", name="Let it run").click()
    page.wait_for_timeout(200)
    page.locator(".control-usage select").select_option("loss")
    settle(page)
    shown = path(page)
    page.wait_for_timeout(300)
    assert path(page) == shown
    assert table(page)[5] == "flow ends at\tp\tp"


def test_nothing_offers_to_run_where_no_motion_is_wanted(open_http):
    page = open_http("one")
    assert page.get_by_role("button", name="With a reward").count() == 1
    assert page.get_by_role("button", name="Let it run").count() == 0
