"""Cards that show where a link leads: a source, a term, a figure, a function, a chapter.

After the pages are written, each target of a link within the book becomes one short text in
``_static/js/preview-cards.js``. ``previews.js`` asks for that file when a reader first rests on a
link. A script, not JSON: pages that are opened from a folder may load no other kind of file.
"""

from __future__ import annotations

import copy
import json
import posixpath
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup, SoupStrainer, Tag
from sphinx.application import Sphinx

CARDS = Path("_static", "js", "preview-cards.js")
HEADINGS = ["h1", "h2", "h3", "h4"]
# The same in previews.js. A solution stands below its exercise; the atlas has no room to spare.
LINKS = "a.internal[href]:not(.headerlink, table.atlas a, .solution > .admonition-title a)"
CODE = re.compile(r"<pre\b.*?</pre>", re.DOTALL)  # on no card, and most of a page's tags
LONGEST = 600  # characters; what is longer is left to the page
ROW = ("Used as", "Estimates", "Pushes on", "Audit")  # of the atlas


def make_cards(pages: dict[str, str]) -> dict[str, str]:
    """The card of each target of a link, by its address from the book's root."""
    only = SoupStrainer("article", class_="bd-article")
    articles = {
        name: BeautifulSoup(CODE.sub("", html), "html.parser", parse_only=only)
        for name, html in pages.items()
    }
    wanted = {
        target
        for name, article in articles.items()
        for link in article.select(LINKS)
        if (target := address(name, str(link["href"])))
    }
    cards = {}
    for target in sorted(wanted):
        page, _, anchor = target.partition("#")
        if page in articles and (card := card_of(articles[page], anchor)):
            cards[target] = with_root(card, page)
    return cards


def address(page: str, href: str) -> str | None:
    """A link's target as page and anchor, from the book's root; None for what is elsewhere."""
    parts = urlsplit(href)
    if parts.scheme or parts.netloc:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path)))
    anchor = unquote(parts.fragment)
    return (path if parts.path else page) + (f"#{anchor}" if anchor else "")


def card_of(article: Tag, anchor: str) -> str | None:
    """The text of one card as HTML, or None where there is nothing short to show."""
    target = article.find(id=anchor) if anchor else article.find("section")
    if target is None:
        return None
    parts = parts_of(target)
    if not parts:
        return None
    if sum(len(part.get_text()) for part in parts[1:]) > LONGEST:
        parts = parts[:2]
    return "".join(str(clean(part)) for part in parts)


def parts_of(target: Tag) -> list[Tag]:
    """What of a target stands on its card, the first part first."""
    classes = target.get("class") or []
    if "citation" in classes:
        return target.find_all("p", recursive=False)
    if target.name == "section":
        heading = target.find(HEADINGS, recursive=False)
        paragraph = target.find("p", recursive=False)
        return [titled(heading), *([paragraph] if paragraph else [])] if heading else []
    if target.name == "dt":
        return defined(target)
    if target.name == "tr":
        return row(target)
    if target.name == "figure" or {"math", "proof", "exercise"} & set(classes):
        return [target]
    return []


def element(name: str, *children, **attributes) -> Tag:
    made = BeautifulSoup("", "html.parser").new_tag(name, attrs=attributes)
    made.extend(children)
    return made


def titled(heading: Tag) -> Tag:
    """A heading as bold words: a card adds none to the page's outline."""
    inside = copy.copy(heading)
    for link in inside.select(".headerlink"):
        link.decompose()
    return element("p", element("strong", *list(inside.children)))


def defined(term: Tag) -> list[Tag]:
    """A term, or a function with its arguments, and the first sentences about it."""
    words = clean(copy.copy(term)).get_text()
    name = element("code" if "sig" in (term.get("class") or []) else "strong", words.strip())
    meaning = term.find_next_sibling("dd")
    found = meaning.find_all("p", recursive=False) if meaning else []
    # A class says first from which one it comes.
    paragraph = next((p for p in found if not p.get_text().startswith("Bases:")), None)
    return [element("p", name), *([paragraph] if paragraph else [])]


def row(target: Tag) -> list[Tag]:
    """A row of the atlas as a list of what its columns say."""
    titles = [cell.get_text().strip() for cell in target.find_parent("table").select("thead th")]
    cells = dict(zip(titles, target.find_all(["td", "th"], recursive=False), strict=False))
    shown = element("dl")
    for title in ROW:
        if title in cells:
            words = element("dd", "; ".join(said(part) for part in cells[title].find_all("p")))
            shown.append(element("div", element("dt", title), words))
    name = next(iter(cells.values())).get_text(" ").split()
    return [element("p", element("strong", name[0])), shown] if cells and name else []


def said(part: Tag) -> str:
    return " ".join(part.get_text(" ").split())


def clean(part: Tag) -> Tag:
    """A copy without links, ids and what belongs to the page alone."""
    part = copy.copy(part)
    for extra in part.select(".headerlink, .viewcode-link, .eqno"):
        extra.decompose()
    for link in part.find_all("a"):
        link.unwrap()
    for tag in [part, *part.find_all(True)]:
        for name in ("id", "tabindex", "role"):
            if name in tag.attrs:
                del tag[name]
    return part


def with_root(card: str, page: str) -> str:
    """Addresses of images from the book's root; the script puts the way to the root before them."""
    soup = BeautifulSoup(card, "html.parser")
    for image in soup.find_all("img"):
        image["src"] = address(page, str(image["src"]))
    return str(soup)


def write_cards(app: Sphinx, exception: Exception | None) -> None:
    if exception or app.builder.name != "html":
        return
    folder = Path(app.outdir)
    files = {f"{name}.html": folder / f"{name}.html" for name in sorted(app.env.found_docs)}
    target = folder / CARDS
    sources = [Path(__file__), *files.values()]
    if target.is_file() and all(
        path.stat().st_mtime <= target.stat().st_mtime for path in sources if path.is_file()
    ):
        return
    pages = {
        name: path.read_text(encoding="utf-8") for name, path in files.items() if path.is_file()
    }
    text = json.dumps(make_cards(pages), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"window.klPreviewCards={text};\n", encoding="utf-8")


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", write_cards)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
