"""The guides' links: each opens its figure in the state that it names, and the figure says of it
what the guide says."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import kl_group
import pytest
from bs4 import BeautifulSoup
from harness import settle

GROUP = "book/group"
QUOTED = re.compile(r"The figure says “([^”]+)”")
# The words are drawn a frame after the state has changed.
SAYS = """([figure, claim]) => figure.shadowRoot.querySelector('.reading').textContent
    .split(/\\s+/).join(' ').includes(claim)"""
GO = """address => {
    history.replaceState(null, '', address);
    dispatchEvent(new PopStateEvent('popstate'));
}"""

pytestmark = pytest.mark.browser


def links(site) -> dict[str, list[str]]:
    """Address and what the figure must say there, for each link of the built pages."""
    found: dict[str, list[str]] = {}
    for path in sorted((site / GROUP).glob("*.html")):
        soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for a in soup.select("article a[href*='?']"):
            claims = QUOTED.findall(plain(a.find_parent(["li", "p"]).get_text()))
            found.setdefault(f"{GROUP}/{a['href']}", []).extend(claims)
    return found


def plain(text: str) -> str:
    """With ordinary spaces."""
    return " ".join(text.split())


def test_every_link_of_a_guide_is_on_its_page(site):
    """What is checked below is what the sources ask for."""
    sources = kl_group.ROOT / "book" / "group"
    wanted = sum(path.read_text("utf-8").count("{show}`") for path in sources.glob("*.md"))
    pages = [
        BeautifulSoup(p.read_text("utf-8"), "html.parser") for p in (site / GROUP).glob("*.html")
    ]
    assert sum(len(page.select("article a[href*='?']")) for page in pages) == wanted > 30


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_a_link_opens_what_the_guide_says(chrome, site, address, scheme):
    base = address if scheme == "http" else site.as_uri()
    wanted = sorted(links(site).items())
    assert sum(len(says) for _, says in wanted) > 20
    if scheme == "file":
        wanted = wanted[:1]  # the figures' own tests open links of each from a folder
    context = chrome.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page, faults, loaded = context.new_page(), [], ""
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.route("**/mathjax/**", lambda route: route.abort())  # formulas take most of the time
    for link, says in wanted:
        parts = urlsplit(link)
        query = parse_qs(parts.query)
        a_figure = any(name.startswith("fig-") for name in query)
        if a_figure and parts.path == loaded:
            go_to(page, f"{base}/{link}")
        else:
            page.goto("about:blank")
            page.goto(f"{base}/{link}", wait_until="load")
            loaded = parts.path
            place = page.locator(f"#{parts.fragment}").bounding_box()
            assert -60 <= place["y"] < 450, f"{link} opens elsewhere: {place}"
        if a_figure:
            in_state(page, query, says)
        else:
            rows_shown(page, query)
    context.close()
    assert not faults


def go_to(page, address: str):
    """To another state on the same page, as the browser's back button does."""
    page.evaluate(GO, address)


def in_state(page, query, says):
    """The figure has each value that the link names, none is refused, and it says so in words."""
    ((name, (asked,)),) = query.items()
    figure = page.locator(name.replace("fig-", "kl-", 1))
    figure.locator(".reading").wait_for()
    settle(page)
    state, refused = figure.evaluate("e => [e.state, e.refused]")
    assert not refused, asked
    for field in asked.split(","):
        key, _, value = field.partition(":")
        assert same(state[key], value), f"{asked}: {key} is {state[key]}"
    for claim in says:
        page.wait_for_function(SAYS, arg=[figure.element_handle(), plain(claim)], timeout=5_000)


def same(seen, asked: str) -> bool:
    """A value of a state against its text in a link."""
    if isinstance(seen, (int, float)):
        return seen == float(asked)
    return str(seen).replace(" ", "") == asked.replace(" ", "").replace(";", ",")


def rows_shown(page, query):
    """The atlas takes the choice, and shows some of its rows but not all."""
    for name, (value,) in query.items():
        assert value in page.locator(".atlas-tools").evaluate(
            "form => [...form.elements].map(field => field.value)"
        ), name
    shown, every = re.match(
        r"(\d+) of (\d+) rows", page.locator(".atlas-tools [role=status]").inner_text()
    ).groups()
    assert 0 < int(shown) < int(every)


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_answers_are_folded_by_scripts_and_open_without_and_on_paper(chrome, address, scripts):
    context = chrome.new_context(java_script_enabled=scripts)
    page = context.new_page()
    page.goto(f"{address}/{GROUP}/01.html", wait_until="load")
    answers = page.locator("article div.admonition.solution")
    assert answers.count() == 6  # five questions, and what should be seen
    first = answers.first.locator("p:not(.admonition-title)").first
    if scripts:
        page.wait_for_function("() => document.querySelector('.toggle-hidden')")
        assert not first.is_visible()
        page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert first.is_visible()
    context.close()
