"""Cards that show where a link leads: by pointer, by keyboard, and not under a finger."""

from __future__ import annotations

from pathlib import Path

import kl_previews
import pytest
from sitechecks.browsing import DESK, PHONE, open_page, overflow, violations, watched

CHAPTER = "notebooks/02_three_estimators.html"
CARD = ".kl-preview:popover-open"
CITATION = '.bd-article a.internal[href*="bibliography"]'
FORMULA = "notebooks/13_three_arguments_settled.html"
TO_FORMULA = '.bd-article a.internal[href="08_the_dictionary.html"]'  # its claim has an f
# How many cards come while a pointer goes over a link without rest.
PASS_BY = """async (selector) => {
  let cards = 0;
  const watch = new MutationObserver((changes) => changes.forEach((change) => {
    cards += [...change.addedNodes].filter((node) => node.matches?.(".kl-preview")).length;
  }));
  watch.observe(document.body, { childList: true });
  const options = { bubbles: true, pointerType: "mouse" };
  const link = document.querySelector(selector);
  link.dispatchEvent(new PointerEvent("pointerover", options));
  await new Promise((done) => queueMicrotask(() => queueMicrotask(() => queueMicrotask(done))));
  link.dispatchEvent(new PointerEvent("pointerout", options));
  await new Promise((done) => setTimeout(done, 600));
  return cards;
}"""
STILL = "() => new Promise(done => setTimeout(done, 600))"  # longer than a card takes to come or go


def card(page):
    page.wait_for_selector(CARD)
    return page.locator(CARD)


# --- what the build writes ------------------------------------------------------------------------

PAGES = {
    "book/sources.html": """<article class="bd-article"><section id="sources"><h1>Sources<a
      class="headerlink" href="#sources">#</a></h1><p>All of them.</p>
      <div class="citation" id="a2020"><span class="label">1</span>
      <p>A. Writer. <em>A title.</em> <a href="https://a.example">link</a></p></div>
      <dl class="py"><dt class="sig" id="f"><span>f</span>(x)<a
      class="headerlink" href="#f">#</a></dt>
      <dd><p>Bases: object</p><p>What f does.</p></dd></dl>
      <figure id="fig-a"><img src="../_images/a.svg" alt="A"><figcaption><p>Seen.</p>
      </figcaption></figure>
      <div class="math notranslate nohighlight" id="equation-e">\\[x\\]</div>
      </section></article>""",
    "notebooks/01.html": """<article class="bd-article"><section id="one"><h1>One</h1>
      <p>The claim.</p><p><a class="reference internal" href="../book/sources.html#a2020">A</a>
      <a class="reference internal" href="../book/sources.html#f">f</a>
      <a class="reference internal" href="../book/sources.html#fig-a">Fig.</a>
      <a class="reference internal" href="../book/sources.html#equation-e">(1)</a>
      <a class="reference internal" href="../book/sources.html#nowhere">?</a>
      <a class="reference internal" href="#one">here</a>
      <a class="reference external" href="https://a.example">away</a></p></section></article>""",
}


def test_a_card_for_each_kind_of_target():
    assert kl_previews.make_cards(PAGES) == {
        "book/sources.html#a2020": "<p>A. Writer. <em>A title.</em> link</p>",
        "book/sources.html#f": "<p><code>f(x)</code></p><p>What f does.</p>",
        "book/sources.html#fig-a": '<figure><img alt="A" src="_images/a.svg"/>'
        "<figcaption><p>Seen.</p>\n</figcaption></figure>",
        "book/sources.html#equation-e": '<div class="math notranslate nohighlight">\\[x\\]</div>',
        "notebooks/01.html#one": "<p><strong>One</strong></p><p>The claim.</p>",
    }


def test_the_cards_of_the_book_are_small_and_name_no_id(site):
    text = (site / kl_previews.CARDS).read_text(encoding="utf-8")
    assert text.startswith("window.klPreviewCards={")
    assert len(text) < 200_000
    assert ' id=\\"' not in text
    assert "<a " not in text
    for kind in ("book/bibliography.html#", "book/api.html#", "14_atlas.html#", CHAPTER):
        assert kind in text


def test_the_script_looks_at_the_links_that_the_build_looks_at():
    script = Path(kl_previews.__file__).parents[1] / "_static" / "js" / "previews.js"
    assert f'".bd-article {kl_previews.LINKS}"' in script.read_text(encoding="utf-8")


# --- in a browser ---------------------------------------------------------------------------------


@pytest.mark.browser
def test_the_pointer_rests_on_a_link(chrome, site):
    """From a folder: the file of cards is a script, since nothing else loads there."""
    with watched(chrome, viewport=DESK) as (page, faults):
        open_page(page, (site / CHAPTER).as_uri())
        assert page.locator("script[src*=preview-cards]").count() == 0
        link = page.locator(CITATION).first
        title = link.get_attribute("title")
        link.hover()
        shown = card(page)
        assert "Approximating KL divergence" in shown.inner_text()
        assert page.locator("script[src*=preview-cards]").count() == 1
        # It describes its link, and the browser's own tip does not lie on top of it.
        assert link.get_attribute("aria-describedby") == shown.get_attribute("id")
        assert shown.get_attribute("role") == "tooltip"
        assert link.get_attribute("title") is None
        # It can be pointed at, and stays meanwhile.
        box = shown.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.evaluate(STILL)
        assert shown.is_visible()
        page.mouse.move(1, 1)
        page.wait_for_selector(CARD, state="detached")
        assert link.get_attribute("title") == title
        assert link.get_attribute("aria-describedby") is None
        # A pointer that passes by shows nothing, not even for a moment.
        assert page.evaluate(PASS_BY, CITATION) == 0
        assert faults == []


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_keyboard_reaches_a_link(chrome, address, scheme):
    """On a narrow screen; the card holds a formula, Esc puts it away, and axe finds nothing."""
    with watched(chrome, viewport=PHONE, color_scheme=scheme) as (page, faults):
        open_page(page, f"{address}/{FORMULA}")
        link = page.locator(TO_FORMULA).first
        link.evaluate("link => link.focus({ focusVisible: true })")
        shown = card(page)
        page.wait_for_selector(f"{CARD} mjx-container")
        assert "every penalty" in shown.inner_text()
        box = shown.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= PHONE["height"]
        assert overflow(page) <= 0
        assert violations(page, part=CARD) == []
        page.evaluate(STILL)
        assert shown.is_visible()
        page.keyboard.press("Escape")
        assert page.locator(CARD).count() == 0
        assert link.evaluate("link => document.activeElement === link")
        page.keyboard.press("Tab")
        page.keyboard.press("Shift+Tab")
        card(page)
        # The next link may have a card of its own.
        page.keyboard.press("Tab")
        page.evaluate(STILL)
        assert link.get_attribute("aria-describedby") is None
        assert faults == []


@pytest.mark.browser
def test_a_finger_follows_the_link_at_once(chrome, address):
    with watched(chrome, viewport=PHONE, has_touch=True, is_mobile=True) as (page, faults):
        open_page(page, f"{address}/{CHAPTER}")
        link = page.locator(CITATION).first
        # What would come if the link led nowhere: nothing either.
        link.evaluate(
            "link => link.addEventListener('click', e => e.preventDefault(), { once: true })"
        )
        link.tap()
        page.evaluate(STILL)
        assert page.locator(CARD).count() == 0
        assert page.locator("script[src*=preview-cards]").count() == 0
        link.tap()
        page.wait_for_url("**/bibliography.html#*")
        assert faults == []


@pytest.mark.browser
def test_on_a_slide_esc_puts_away_the_card_first(chrome, address):
    with watched(chrome, viewport=DESK) as (page, faults):
        open_page(page, f"{address}/{CHAPTER}#present=2")
        page.wait_for_selector(".kl-present[open]")
        page.locator(f".kl-present {CITATION}").first.hover()
        assert card(page).is_visible()
        page.keyboard.press("Escape")
        assert page.locator(CARD).count() == 0
        assert page.locator(".kl-present[open]").count() == 1
        assert faults == []


@pytest.mark.browser
def test_the_table_of_the_atlas_has_none(chrome, address):
    with watched(chrome, viewport=DESK) as (page, faults):
        open_page(page, f"{address}/notebooks/14_atlas.html")
        page.locator("table.atlas a.internal").first.hover()
        page.evaluate(STILL)
        assert page.locator(CARD).count() == 0
        assert faults == []
