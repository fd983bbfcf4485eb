"""Accessibility where axe is blind: keys, focus, alternative texts, formulas, readers' settings."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from cases import CASES
from sitechecks.browsing import DESK, NARROW, PHONE, look, open_page, overflow, pages_of, watched

CHAPTER, ATLAS = "notebooks/02_three_estimators.html", "notebooks/14_atlas.html"
LANDING = "book/index.html"
UNLIKE = (LANDING, CHAPTER, ATLAS)


# --- alternative texts, language, headings: no browser needed -------------------------------------


class Outline(HTMLParser):
    """A page's language, levels of headings and pictures."""

    def __init__(self, html: str):
        super().__init__()
        self.language = ""
        self.levels: list[int] = []
        self.pictures: list[dict] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attributes = {name: value or "" for name, value in attrs}
        if tag == "html":
            self.language = attributes.get("lang", "")
        elif re.fullmatch("h[1-6]", tag):
            self.levels.append(int(tag[1]))
        elif tag == "img":
            self.pictures.append(attributes)


def faults_of(html: str) -> list[str]:
    faults = []
    if Outline(html).language != "en":
        faults.append(f"language {Outline(html).language!r}")
    # The theme repeats the title for print, hidden, above the article.
    page = Outline(html.partition('<article class="bd-article"')[2] or html)
    if page.levels.count(1) != 1:
        faults.append(f"{page.levels.count(1)} first headings")
    texts = [picture.get("alt", "") for picture in page.pictures]
    for text in texts:
        if not re.search(r"\w+ \w+ \w+", text) or re.search(r"\.(svg|png)$|[0-9a-f]{16}", text):
            faults.append(f"an alternative text that says nothing: {text!r}")
    faults += [f"repeated: {text!r}" for text in set(texts) if texts.count(text) > 1]
    return faults


def test_headings_language_and_alternative_texts(site):
    found, pictures = [], 0
    for name in set(pages_of(site)) - {"py-modindex.html"}:  # its pictures are minus signs
        html = (site / name).read_text(encoding="utf-8")
        pictures += html.count("<img ")
        found += [f"{name}: {fault}" for fault in faults_of(html)]
    assert pictures > 30
    assert found == []


@pytest.mark.parametrize(
    "body",
    [
        "<h2>no first</h2>",
        "<h1>a</h1><h1>b</h1>",
        "<h1>a</h1><img src='a.svg'>",
        "<h1>a</h1><img src='a.svg' alt='figure.svg'>",
        "<h1>a</h1><img alt='one of two pictures'><img alt='one of two pictures'>",
    ],
)
def test_each_of_these_faults_is_found(body):
    assert faults_of(f'<html lang="en">{body}')
    assert not faults_of('<html lang="en"><h1>a</h1><img alt="Three curves that meet in zero.">')


def test_pictures_keep_their_place(site):
    """Width and height are there before the picture is, so the text below does not move."""
    pictures = Outline((site / CHAPTER).read_text(encoding="utf-8")).pictures
    outside = [picture for picture in pictures if not picture["src"].startswith("data:")]
    assert outside
    for picture in outside:
        assert int(picture["width"]) > 100
        assert int(picture["height"]) > 100


def test_icons_that_no_page_shows_are_not_loaded(site):
    script = (site / "_static" / "scripts" / "fontawesome.js").read_text(encoding="utf-8")
    assert '"magnifying-glass":[' in script
    assert len(script) < 120_000


# --- what a browser has to say --------------------------------------------------------------------

FOCUS = """() => {
  const deep = (root) => root.activeElement?.shadowRoot?.activeElement
    ? deep(root.activeElement.shadowRoot) : root.activeElement;
  const e = deep(document);
  if (!e || e === document.body) return null;
  // Some controls hand their ring to the element around them.
  const marks = [];
  for (let box = e, up = 0; box && up < 3; box = box.parentElement, up++) {
    const style = getComputedStyle(box);
    marks.push([style.outlineStyle, parseFloat(style.outlineWidth), style.outlineColor,
      style.boxShadow]);
    if (box.querySelectorAll('a, button, input, select').length > 1) break;
  }
  // The arrow of the sidebar stands outside its box, which has no height.
  const box = e.getBoundingClientRect();
  const inner = e.firstElementChild;
  const rect = box.height || !inner ? box : inner.getBoundingClientRect();
  if (!box.height && inner) {
    const style = getComputedStyle(inner);
    marks.splice(0, 9, [style.outlineStyle, parseFloat(style.outlineWidth), style.outlineColor,
      'none']);
  }
  let host = e;
  while (host.getRootNode().host) host = host.getRootNode().host;
  window.order ??= [...document.querySelectorAll('*')];
  // The handle of a figure has a ring that is drawn.
  const ring = e.querySelector('.ring');
  if (ring) {
    const style = getComputedStyle(ring);
    marks.push([style.stroke === 'none' ? 'none' : 'solid', parseFloat(style.strokeWidth),
      style.stroke, 'none']);
  }
  return {
    what: e.outerHTML.slice(0, 140), place: window.order.indexOf(host), marks,
    visible: rect.width > 0 && rect.height > 0,
    seen: rect.bottom > 0 && rect.top < innerHeight,
  };
}"""


def luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def is_marked(stop: dict, paper: str) -> bool:
    """An outline, or a shadow as a ring, that stands out from the page's background."""
    for kind, width, colour, shadow in stop["marks"]:
        if colour == "rgba(0, 0, 0, 0)":
            continue
        if kind != "none" and width >= 1 and contrast(colour, paper) >= 3:
            return True
        ring = re.search(r"rgba?\([^)]*\)", shadow)
        if shadow != "none" and ring and contrast(ring[0], paper) >= 3:
            return True
    return False


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", UNLIKE)
def test_the_keyboard_goes_through_the_page(chrome, address, name, scheme):
    """In the order of the page, always with a visible mark, and out at the end."""
    with watched(chrome, viewport=DESK, color_scheme=scheme, reduced_motion="reduce") as (page, _):
        open_page(page, f"{address}/{name}")
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        stops = []
        for _ in range(1500):
            page.keyboard.press("Tab")
            stop = page.evaluate(FOCUS)
            if stop is None or (stops and stop["place"] == stops[0]["place"]):
                break
            stops.append(stop)
        else:
            pytest.fail(f"a trap: {stops[-1]['what']}")
        assert len(stops) > 30
        assert "Skip to main content" in stops[0]["what"]
        places = [stop["place"] for stop in stops]
        jumps = [s["what"] for s, a, b in zip(stops[1:], places, places[1:], strict=False) if b < a]
        assert jumps == []
        assert [stop["what"] for stop in stops if not (stop["visible"] and stop["seen"])] == []
        assert [stop["what"] for stop in stops if not is_marked(stop, paper)] == []


@pytest.mark.browser
def test_the_skip_link_leads_to_the_text(chrome, address):
    with watched(chrome, viewport=DESK) as (page, _):
        open_page(page, f"{address}/{CHAPTER}")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("!!document.activeElement.closest('#main-content, main')")


@pytest.mark.browser
def test_a_screen_reader_meets_formulas_as_mathml(chrome, address):
    """What is drawn is hidden from it; beside it stands the formula, which Chromium passes on."""
    with watched(chrome, viewport=DESK) as (page, _):
        open_page(page, f"{address}/{CHAPTER}")
        shown, hidden, read, blind = page.evaluate(
            """() => {
              const all = [...document.querySelectorAll('mjx-container')];
              const maths = all.map(e => e.querySelector('mjx-assistive-mml math'));
              return [
                all.length,
                all.filter(e => e.querySelector('mjx-math').ariaHidden === 'true').length,
                maths.filter(e => e && e.textContent.trim()).length,
                // In a folded solution neither is shown.
                maths.filter(e => e.checkVisibility({ visibilityProperty: true })
                  !== e.closest('mjx-container').checkVisibility({ visibilityProperty: true })
                  || e.closest('[aria-hidden=true]')).length,
              ];
            }"""
        )
        assert shown > 50
        assert (hidden, read, blind) == (shown, shown, 0)
        session = page.context.new_cdp_session(page)
        tree = session.send("Accessibility.getFullAXTree")["nodes"]
        roles = [node["role"]["value"] for node in tree if not node["ignored"]]
        assert sum(role.startswith("MathML") for role in roles) >= shown


@pytest.mark.browser
def test_without_motion_nothing_moves(chrome, address):
    with watched(chrome, viewport=DESK, reduced_motion="reduce") as (page, _):
        open_page(page, f"{address}/{CHAPTER}")
        moving = page.evaluate(
            """() => [
              ...[...document.querySelectorAll('*')].filter(e => {
                const s = getComputedStyle(e);
                return s.scrollBehavior === 'smooth';
              }).map(e => e.outerHTML.slice(0, 80)),
              ...document.getAnimations().filter(a => a.playState === 'running')
                .map(a => a.effect.target.outerHTML.slice(0, 80)),
            ]"""
        )
        assert moving == []
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        at_once = page.evaluate("scrollY")
        page.wait_for_timeout(200)
        assert page.evaluate("scrollY") == pytest.approx(at_once, abs=2)


SPACED = """* { line-height: 1.5 !important; letter-spacing: 0.12em !important;
  word-spacing: 0.16em !important; } p { margin-bottom: 2em !important; }"""
# A text that is cut: more in the box than fits, and no way to scroll to it.
CUT = """() => [...document.querySelectorAll('.bd-article *')].filter(e => {
  const style = getComputedStyle(e);
  const hides = ['hidden', 'clip'].includes(style.overflowX) && e.scrollWidth > e.clientWidth + 2
    || ['hidden', 'clip'].includes(style.overflowY) && e.scrollHeight > e.clientHeight + 2;
  const hidden = e.clientWidth < 3 || e.matches('mjx-assistive-mml, mjx-assistive-mml *');
  return hides && !hidden && !e.closest('mjx-container') && style.display !== 'inline'
    && !e.matches('.toggle-hidden') && !e.querySelector(':scope > mjx-container')
    && e.textContent.trim();
}).map(e => e.outerHTML.slice(0, 140))"""


@pytest.mark.browser
@pytest.mark.parametrize("name", UNLIKE)
def test_with_the_reader_s_spacing_and_at_400_percent_nothing_is_lost(chrome, address, name):
    with watched(chrome, viewport=NARROW) as (page, _):
        open_page(page, f"{address}/{name}")
        for css in ("", SPACED):
            page.add_style_tag(content=css or "/* as it is */")
            look(page, "light", NARROW)
            assert overflow(page) <= 0
            assert page.evaluate(CUT) == []


@pytest.mark.browser
def test_with_forced_colours_figures_and_focus_are_seen(chrome, address):
    with watched(chrome, viewport=DESK, forced_colors="active") as (page, _):
        open_page(page, f"{address}/{CHAPTER}")
        tag = next(c.tag for c in CASES if page.locator(c.tag).count())
        page.locator(tag).scroll_into_view_if_needed()
        page.locator("svg.plot .domain").first.wait_for(state="attached")
        ink, paper = page.locator("svg.plot .domain").first.evaluate(
            "e => [getComputedStyle(e).stroke, getComputedStyle(document.body).backgroundColor]"
        )
        assert contrast(ink, paper) >= 3
        page.locator(".bd-article a").first.focus()
        page.keyboard.press("Tab")
        assert is_marked(page.evaluate(FOCUS), paper)


def test_the_check_of_contrast_knows_black_and_white():
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(200, 200, 200)", "rgb(255, 255, 255)") < 3
    grey = {"marks": [["solid", 2, "rgb(200, 200, 200)", "none"]]}
    assert not is_marked(grey, "rgb(255, 255, 255)")
    assert not is_marked({"marks": [["none", 0, "rgb(0, 0, 0)", "none"]]}, "rgb(255, 255, 255)")


@pytest.mark.browser
def test_a_page_on_a_phone_has_its_menu_by_keyboard(chrome, address):
    with watched(chrome, viewport=PHONE) as (page, _):
        open_page(page, f"{address}/{CHAPTER}")
        menu = page.locator("button.primary-toggle")
        menu.focus()
        page.keyboard.press("Enter")
        dialog = page.locator("dialog[open]")
        dialog.wait_for()
        assert page.evaluate("!!document.activeElement.closest('dialog[open]')")
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        assert page.evaluate("document.activeElement.matches('button.primary-toggle')")


@pytest.mark.browser
def test_a_dark_page_is_printed_light_and_is_dark_again(chrome, address):
    with watched(chrome, viewport=DESK, color_scheme="dark") as (page, _):
        open_page(page, f"{address}/{CHAPTER}")
        page.evaluate(
            """() => {
              const { dataset } = document.documentElement;
              window.seen = [];
              for (const kind of ['beforeprint', 'afterprint'])
                addEventListener(kind, () => window.seen.push(dataset.theme));
            }"""
        )
        page.pdf()
        assert page.evaluate("window.seen") == ["light", "dark"]
