"""What only ``<kl-prefixes>`` does."""

from __future__ import annotations

import re

import pytest
from cases import PREFIXES
from harness import (
    drag,
    drawn,
    handle_selector,
    pressed,
    reads,
    settle,
    state,
    table,
    wait_for_state,
)

pytestmark = pytest.mark.browser

KEY = PREFIXES.key
START, AFTER_A = (handle_selector(f"{name} in the tree") for name in ("q(A)", "q(A|A)"))
CURVE = handle_selector("q(A) on the curve")
REST, LEAST = "Token loss rests", "Least KL(Q‖P)"


@pytest.fixture(scope="module")
def figure():
    return PREFIXES


def test_tree_curve_and_slider_move_the_same_probability(open_page):
    page = open_page("one")
    drag(page, START, by=(40, 5))
    moved = reads(page, START)
    assert 0.65 < moved < 0.9
    assert reads(page, CURVE) == reads(page, ".control-q input") == moved
    page.locator(AFTER_A).focus()
    page.keyboard.press("Shift+ArrowLeft")
    assert reads(page, AFTER_A) == pytest.approx(0.8)
    assert page.locator(".control-qa .value").inner_text() == "0.80"


def test_where_the_loss_rests_a_gradient_is_left_and_at_the_least_none(open_page):
    page = open_page("one")
    assert pressed(page) == []
    page.get_by_role("button", name=REST).press("Enter")
    assert pressed(page) == [REST]
    assert table(page)[0].split("\t") == ["q(A)", "0", "0", "+0.270", "+0.270"]
    page.get_by_role("button", name=LEAST).press("Enter")
    assert pressed(page) == [LEAST]
    assert table(page)[0].split("\t") == ["q(A)", "−0.248", "0", "+0.248", "0"]
    assert reads(page, CURVE) == pytest.approx(0.327365, abs=1e-6)
    # The name stays while p moves; a drag gives it up.
    page.locator(".control-p input").fill("0.3")
    assert table(page)[0].endswith("\t0")
    assert state(page)["q"] == "least"
    page.locator(CURVE).focus()
    page.keyboard.press("ArrowRight")
    assert pressed(page) == []
    wait_for_state(page, r"q:0\.\d+,p:0\.3$")


def test_k3_shows_what_it_leaves_out_of_each_token(open_http):
    page = open_http("one")
    names = page.locator("svg.parts .labels text")
    assert names.all_text_contents().count("own") == 0
    page.locator(".control-loss select").select_option("k3")
    settle(page)
    assert names.all_text_contents().count("own") == 3
    assert table(page)[1].split("\t") == ["q(A|A)", "+0.350", "−0.189", "0", "+0.161"]
    page.get_by_role("status").get_by_text("−0.0014 of the token’s own part").wait_for()
    page.locator(".control-loss select").select_option("kl")
    settle(page)
    assert names.all_text_contents().count("own") == 0


def test_the_term_stands_under_the_tree(open_http):
    page = open_http("one")
    term = page.locator(".term")
    assert term.inner_text().endswith("= 0.250 × (1.15 − 0.020) = +0.281")
    page.locator(".control-qb input").fill("0.98")
    page.locator(".control-pb input").fill("0.02")
    settle(page)
    assert re.search(r"\(1\.15 − 3\.74\) = −0\.648$", term.inner_text())


def test_the_move_is_drawn_on_its_way_and_ends_in_its_place(open_http):
    page = open_http("one", reduced_motion="no-preference")
    start = reads(page, CURVE)
    page.get_by_role("button", name=LEAST).click()
    page.wait_for_function(
        """start => {
          const handle = document.querySelector('kl-prefixes').shadowRoot
            .querySelector('.handle[aria-label="q(A) on the curve"]');
          const q = Number(handle.getAttribute('aria-valuenow'));
          return q < start - 0.02 && q > 0.35;
        }""",
        arg=start,
    )
    page.wait_for_timeout(1000)
    assert reads(page, CURVE) == pytest.approx(0.327365, abs=1e-6)
    end = drawn(page)
    page.wait_for_timeout(200)
    assert drawn(page) == end
