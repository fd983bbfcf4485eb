"""What only ``<kl-tangent-line>`` does."""

from __future__ import annotations

import pytest
from cases import TANGENT_LINE
from harness import (
    drag,
    handle_selector,
    pressed,
    query_state,
    reads,
    settle,
    table,
    wait_for_state,
)

pytestmark = pytest.mark.browser

KEY = TANGENT_LINE.key
R, LAMBDA = handle_selector("r on the curve"), handle_selector("λ on the parabola")


@pytest.fixture(scope="module")
def figure():
    return TANGENT_LINE


def test_the_mouse_drags_r_and_lambda(open_page):
    page = open_page("one")
    drag(page, R, by=(-70, -30))
    r = reads(page, R)
    assert 1.2 < r < 1.8
    assert page.locator(".control-r .value").inner_text() == f"{r:.2f}"

    drag(page, LAMBDA, by=(-100, 0))
    lam = reads(page, LAMBDA)
    assert page.locator(".control-lambda input").input_value() == f"{lam:g}"
    assert pressed(page) == []
    assert table(page)[-1].startswith("yours")


def test_keys_move_lambda_to_its_end_and_choose_the_best(open_page):
    page = open_page("one")
    assert pressed(page) == ["tangent"]
    page.locator(LAMBDA).focus()
    page.keyboard.press("ArrowLeft")
    assert reads(page, LAMBDA) == pytest.approx(0.99)
    page.keyboard.press("Home")
    low = reads(page, LAMBDA)
    assert low == float(page.locator(LAMBDA).get_attribute("aria-valuemin")) < 0
    assert query_state(wait_for_state(page, "lambda:-"), KEY) == f"lambda:{low:g}"
    page.get_by_role("button", name="least variance").press("Enter")
    wait_for_state(page, "lambda:best")
    assert pressed(page) == ["least variance, λ*"]
    page.get_by_role("status").get_by_text("No λ has less").wait_for()


def test_names_follow_the_generator(open_http):
    page = open_http("one")
    page.locator(".control-f select").select_option("chi2_qp")
    assert [row.split("\t")[0] for row in table(page)] == ["0", "tangent = λ*"]
    page.locator(".control-f select").select_option("hellinger2")
    assert reads(page, LAMBDA) == 0
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


def test_a_lambda_beyond_its_range_stays_on_the_parabola(open_http):
    page = open_http("one", f"?{KEY}=lambda:1e300")
    assert reads(page, LAMBDA) == float(page.locator(LAMBDA).get_attribute("aria-valuemax"))
