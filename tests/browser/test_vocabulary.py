"""``<kl-vocabulary>`` in a real browser: a page of its own, over http and from a file."""

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

KEY = "fig-vocabulary"


@pytest.fixture(scope="module")
def figure_site(tmp_path_factory) -> Path:
    figure = explorables.vocabulary()
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


def table(page) -> list[str]:
    settle(page)
    return page.locator(".numbers tbody tr").all_inner_texts()


def state(page) -> dict:
    return page.locator("kl-vocabulary").evaluate("e => e.state")


def reading(page, words: str):
    page.get_by_role("status").get_by_text(re.compile(words)).wait_for()


# --- the default state ------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_opens_with_its_point_made(open_page, theme):
    page = open_page("one", theme=theme)
    words = page.get_by_role("status").inner_text()
    assert "KL(q‖p) is 0.598 nats" in words
    assert "q draws ranks from 1,024 on in 0.1\u00a0% of its samples" in words
    assert "95\u00a0% of k3’s variance and 4.9\u00a0% of k1’s" in words
    assert "one token, rank 347, carries 44\u00a0% of the k3 mean" in words
    assert page.locator("svg.plot").count() == 5
    assert page.url.count("?") == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("query", ["", f"?{KEY}=temperature:0.8,top:0.95,n:1024"])
def test_no_axe_violation(open_http, theme, width, query):
    page = open_http("one", query, theme=theme, viewport={"width": width, "height": 800})
    assert_accessible(page)


@pytest.mark.parametrize("width", [320, 360, 700, 1280])
def test_nothing_overflows_and_targets_are_large_enough(open_http, width):
    query = f"?{KEY}=temperature:0.5,noise:1,n:4096"
    page = open_http("one", query, viewport={"width": width, "height": 800})
    assert_fits(page, width)
    wide = page.locator(".figure").evaluate("e => e.classList.contains('wide')")
    assert wide == (width >= 700)


def test_no_two_labels_overlap(open_http):
    for query in [
        "",
        "temperature:1,noise:0",
        "temperature:1,noise:0,top:0.9",
        "temperature:1.5,noise:1,n:4096",
        "temperature:0.5,noise:1,n:1",
        "temperature:1,noise:0.05",
    ]:
        page = open_http("one", f"?{KEY}={query}", viewport={"width": 360, "height": 800})
        assert overlapping_labels(page) == [], query


@pytest.mark.parametrize("width", [360, 660, 1280])
def test_the_page_does_not_jump(open_http, width):
    page = open_http("one", started=False, viewport={"width": width, "height": 900})
    assert layout_shift(page) < 0.05


# --- moving -----------------------------------------------------------------------------------


def test_the_mouse_moves_a_slider(open_page):
    page = open_page("one")
    box = page.locator(".control-temperature input").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.15 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], y, steps=8)
    page.mouse.up()
    settle(page)
    assert 0.9 < state(page)["temperature"] < 1.3
    wait_for_state(page, "temperature:")


def test_a_finger_moves_a_slider(open_http):
    page = open_http("one", viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True)
    box = page.locator(".control-top input").bounding_box()
    cdp = page.context.new_cdp_session(page)
    y = box["y"] + box["height"] / 2
    touch(cdp, "touchStart", (box["x"] + box["width"] - 9, y))
    for step in range(1, 9):
        touch(cdp, "touchMove", (box["x"] + box["width"] - 9 - 9 * step, y))
    touch(cdp, "touchEnd")
    page.wait_for_function("document.querySelector('kl-vocabulary').state.top < 0.95")
    reading(page, "Top-p keeps")


def test_the_keyboard_reaches_and_moves_everything(open_page):
    page = open_page("one")
    page.locator("main h1").click()
    order = []
    for _ in range(8):
        page.keyboard.press("Tab")
        order.append(
            page.evaluate(
                "() => { const e = document.activeElement.shadowRoot.activeElement;"
                " return e.name || e.textContent; }"
            )
        )
    assert order == [
        *("temperature", "noise", "top", "n", "seed"),
        *("Next sample of 64", "Reset", "Copy link"),
    ]
    for name, key in (
        ("temperature", "ArrowRight"),
        ("noise", "Home"),
        ("top", "ArrowLeft"),
        ("n", "End"),
    ):
        page.locator(f".control-{name} input").focus()
        page.keyboard.press(key)
    page.get_by_role("button", name="Next sample of 4,096").press("Enter")
    url = wait_for_state(page, "sample:2")
    assert query_state(url, KEY) == "temperature:0.65,top:0.99,noise:0,n:4096,sample:2"


def test_the_next_sample_is_another_one_and_reset_goes_back(open_http):
    page = open_http("one")
    before, exact = table(page), drawn(page)[:12]
    page.get_by_role("button", name="Next sample of 64").click()
    after = table(page)
    assert [row.split("\t")[:4] for row in after] == [row.split("\t")[:4] for row in before]
    assert [row.split("\t")[4] for row in after] != [row.split("\t")[4] for row in before]
    assert drawn(page)[:12] == exact  # what is exact has not moved
    page.get_by_role("button", name="Reset").click()
    assert table(page) == before


def test_top_p_says_what_is_lost(open_http):
    page = open_http("one", f"?{KEY}=temperature:1,noise:0")
    assert page.get_by_role("status").inner_text().startswith("q is p")
    page.locator(".control-top input").fill("0.9")
    reading(page, r"keeps 2,192 tokens: p\(supp q\) − 1 is −0\.100, so k3 is 0\.100 nats too low")
    assert table(page)[2].split("\t")[1] == "0.0054"


def test_many_moves_within_a_frame_are_drawn_once(open_http):
    page = open_http("one")
    counts = page.evaluate(
        """() => new Promise(done => {
          const figure = document.querySelector('kl-vocabulary');
          let drawn = 0;
          const draw = figure.draw.bind(figure);
          figure.draw = width => { drawn++; draw(width); };
          const input = figure.shadowRoot.querySelector('.control-temperature input');
          for (let i = 0; i < 15; i++) {
            input.value = 0.7 + 0.05 * i;
            input.dispatchEvent(new Event('input'));
          }
          requestAnimationFrame(() => setTimeout(() => done([drawn, figure.state.temperature])));
        })"""
    )
    assert counts == [1, 1.4]


def test_nothing_is_computed_until_the_figure_is_near(open_http):
    page = open_http("far", started=False)
    page.wait_for_function("!!customElements.get('kl-vocabulary')")
    assert page.locator("svg.plot").count() == 0
    assert page.locator("kl-vocabulary img").is_visible()
    page.evaluate("scrollTo(0, 2400)")
    page.locator("svg.plot").first.wait_for()


# --- the link ---------------------------------------------------------------------------------


def test_a_link_brings_everybody_to_the_same_picture(open_page):
    page = open_page("one")
    page.locator(".control-temperature input").fill("0.8")
    page.locator(".control-top input").fill("0.97")
    page.locator(".control-seed input").fill("77")
    page.locator(".control-seed input").press("Enter")
    url = wait_for_state(page, "seed:77")
    other = open_page("one", f"?{urlsplit(url).query}#{KEY}")
    assert table(other) == table(page)
    assert drawn(other) == drawn(page)


@pytest.mark.parametrize(
    "text",
    [
        "temperature:NaN,top:-,noise:,n:none",
        "temperature:%3Cimg%20src=x%20onerror=alert(1)%3E",
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
    page = open_http("one", f"?{KEY}=temperature:0,top:-1,noise:1e300,n:1e9,sample:-3,seed:1e99")
    assert state(page) == {
        "temperature": 0.5,
        "top": 0.5,
        "noise": 1,
        "n": 4096,
        "seed": 2**32 - 1,
        "sample": 1,
    }
    assert not re.search("NaN|undefined", page.locator(".figure").inner_text())


# --- without the script, on paper, and live ---------------------------------------------------


def test_the_picture_shows_without_scripts(open_page):
    page = open_page("one", java_script_enabled=False, started=False)
    assert page.get_by_role("img", name=re.compile("^Left: what each octave")).is_visible()
    assert page.get_by_text("95 % of k3’s").is_visible()


def test_paper_shows_the_picture(open_page):
    page = open_page("one")
    picture = page.locator("kl-vocabulary img")
    assert not picture.is_visible()
    page.emulate_media(media="print")
    assert picture.is_visible()
    assert not page.locator(".figure").is_visible()


def test_live_output_starts_and_leaves_the_address_alone(open_page):
    page = open_page("live")
    before = page.url
    page.locator(".control-top input").fill("0.9")
    settle(page)
    assert state(page)["top"] == 0.9
    page.wait_for_timeout(600)  # longer than the address writer waits
    assert page.url == before
    assert page.get_by_role("button", name="Copy link").count() == 0


def test_the_module_renders_for_a_model(open_http):
    page = open_http("model", started=False)
    page.evaluate(
        """async () => {
          const { default: widget } = await import('/live.js');
          const values = { figure: 'vocabulary', temperature: 1, n: 16 };
          const model = { get: name => values[name] };
          widget.render({ model, el: document.querySelector('#here') });
        }"""
    )
    page.get_by_role("button", name="Next sample of 16").wait_for()
    assert state(page)["temperature"] == 1
