"""What only ``<kl-dictionary>`` does: a formula is typed, or comes in a link from a stranger."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from cases import DICTIONARY
from harness import (
    drag,
    handle_selector,
    pressed,
    query_state,
    reads,
    settle,
    state,
    table,
    wait_for_state,
)

pytestmark = pytest.mark.browser

KEY = DICTIONARY.key
SAMPLE = handle_selector("log r of the sample")
FIELD = ".control-formula input"


@pytest.fixture(scope="module")
def figure():
    return DICTIONARY


def rows(page) -> dict[str, list[str]]:
    return {name: cells for name, *cells in (row.split("\t") for row in table(page))}


def problem(page) -> str:
    settle(page)
    return page.get_by_role("alert").inner_text()


def test_what_is_typed_is_looked_up_while_it_is_typed(open_page):
    page = open_page("one")
    field = page.locator(FIELD)
    field.fill("")
    field.press_sequentially("abs(l")
    assert rows(page)["target"] == ["KL(q‖p)", "KL(p‖q)"]  # still the last one that was whole
    page.get_by_text("Not taken over: Expected ), at character 6.").wait_for()
    assert field.get_attribute("aria-invalid") == "true"
    assert field.get_attribute("aria-describedby") == page.get_by_role("alert").get_attribute("id")
    field.press_sequentially(")")
    assert rows(page)["target"] == ["unknown", "2 TV(q, p)"]
    assert problem(page) == ""
    assert field.get_attribute("aria-invalid") == "false"
    field.press_sequentially("/2  ")
    assert rows(page)["target"] == ["unknown", "TV(q, p)"]
    assert field.input_value() == "abs(l)/2  "  # as typed, until the reader leaves it
    field.press("Enter")
    settle(page)
    assert field.input_value() == "abs(l)/2"
    assert page.locator(".control-example select").input_value() == ""
    assert query_state(wait_for_state(page, r"abs\(l\)/2"), KEY) == "formula:abs(l)/2"


def test_a_mistake_stays_until_it_is_mended(open_page):
    page = open_page("one")
    field = page.locator(FIELD)
    field.fill("l +")
    field.press("Tab")
    assert "Expected expression after +" in problem(page)
    page.locator(SAMPLE).press("ArrowLeft")  # another change leaves what was typed alone
    assert (field.input_value(), problem(page) != "") == ("l +", True)
    page.locator(".control-example select").select_option("-l")
    assert problem(page) == ""
    assert field.input_value() == "-l"
    assert rows(page)["target"] == ["KL(q‖p)", "nothing"]
    field.fill("x")
    field.press("Tab")
    assert "x is not known" in problem(page)
    page.get_by_role("button", name="Reset").click()
    assert problem(page) == ""
    assert field.input_value() == "r - 1 - l"
    # The same formula in other words changes nothing but the words.
    field.fill("((r) - 1) - l")
    field.press("Tab")
    settle(page)
    assert field.input_value() == "r - 1 - l"


STRANGERS = [
    *("alert(1)", "fetch('//example.org')", "l.constructor.constructor('alert(1)')()"),
    *("<img src=x onerror=alert(1)>", "import('data:text/javascript,alert(1)')", "[].map(alert)"),
    *("__proto__", "constructor", "toString()", "this", "l;alert(1)", "a=>alert(1)", "`${1}`"),
    *("(" * 110, "l+" * 200, "\x00"),
]


@pytest.mark.parametrize("formula", STRANGERS)
def test_a_stranger_formula_is_shown_as_text_and_never_run(open_http, formula):
    page = open_http("one")
    initial, plain = state(page), table(page)
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
    page.goto(f"{page.url}?{KEY}=formula:{quote(formula)},l:2")
    page.locator("svg.plot .domain").first.wait_for(state="attached")
    assert state(page) == {**initial, "l": 2}
    assert table(page) == plain
    assert problem(page).startswith("The link’s formula is not taken over: “")
    assert page.locator("img").count() <= 1  # the static picture
    # It goes with the next change, and so does the link's text.
    page.locator(SAMPLE).press("ArrowLeft")
    assert problem(page) == ""
    assert query_state(wait_for_state(page, "l:1.95"), KEY) == "l:1.95"


def test_back_and_forth_between_links(open_http):
    page = open_http("one", f"?{KEY}=formula:abs(l)")
    assert page.locator(FIELD).input_value() == "abs(l)"
    page.evaluate("key => history.pushState(null, '', `?${key}=formula:nope`)", KEY)
    page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")
    assert "nope is not known" in problem(page)
    page.go_back()
    assert problem(page) == ""
    assert page.locator(FIELD).input_value() == "abs(l)"


def test_the_marked_sample_moves_in_all_panels(open_http):
    page = open_http("one")
    drag(page, SAMPLE, by=(-150, 0))
    l = reads(page, SAMPLE)
    assert -2.4 < l < -1.8
    assert page.locator(".control-l .value").inner_text() == f"{l:.2f}".replace("-", "−")
    for name in ("weight", "f"):
        assert page.locator(f"svg.{name} .dots path").get_attribute("d").count("M") == 2
    page.locator(SAMPLE).press("End")  # r = 20 is beyond the panel of f
    settle(page)
    assert page.locator("svg.f .dots path").get_attribute("d") == ""


def test_each_place_has_its_own_target(open_page):
    page = open_page("one")
    seen = {}
    for place in ("as loss", "as reward", "as both"):
        page.get_by_role("button", name=place).click()
        assert pressed(page) == [place]
        seen[place] = rows(page)["target"][1]
    assert seen == {
        "as loss": "KL(p‖q)",
        "as reward": "KL(q‖p) − KL(p‖q)",
        "as both": "KL(q‖p)",
    }
    assert "−h′" not in page.locator(".panel-weight .panel-title").inner_text()


def test_a_clamp_is_marked_and_named(open_http):
    page = open_http("one", f"?{KEY}=formula:clamp(k3;0;1.5),l:-1")
    assert page.locator("svg.value .flats path").count() == 2
    assert "flat" in page.locator("svg.value .labels text").all_text_contents()
    assert rows(page)["flat"][0].startswith("below −2.")
    page.get_by_role("status").get_by_text("beyond, it is clamped").wait_for()
