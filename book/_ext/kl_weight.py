"""Light pages: the icons that are used and no others, pictures that keep their place.

The theme's icon script holds two thousand icons, more than half of what a page weighed.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

ICONS = Path("scripts") / "fontawesome.js"
# An icon in that script: its name, width, height, other names, code point, one path or two.
ICON = re.compile(
    r'"?(?P<name>[\w-]+)"?:\[\d+,\d+,\[[^\]]*\],"[0-9a-f]*",(?:"[^"]*"|\[(?:"[^"]*",?)+\])\],?'
)
USED = re.compile(r"\bfa-([\w-]+)")
IMAGE = re.compile(r'<img\b(?![^>]*\bwidth=)(?P<before>[^>]*?\bsrc="(?P<src>[^"]+)")')
SVG_SIZE = re.compile(r'<svg\b[^>]*?\swidth="([\d.]+)pt"[^>]*?>', re.DOTALL)
SVG_HEIGHT = re.compile(r'\sheight="([\d.]+)pt"')
LONGEST = 200  # characters of a description that search engines show


# --- icons ----------------------------------------------------------------------------------------


def keep_icons(script: str, names: set[str]) -> str:
    """The script without the icons that no page names."""
    return ICON.sub(lambda icon: icon[0] if icon["name"] in names else "", script)


def icons_of(folder: Path) -> set[str]:
    """Names of icons in the pages and scripts of a built site."""
    files = [path for kind in ("*.html", "*.js") for path in folder.rglob(kind)]
    kept = [path for path in files if path.name != ICONS.name]
    return {name for path in kept for name in USED.findall(path.read_text(encoding="utf-8"))}


def trim_icons(app: Sphinx, exception: Exception | None) -> None:
    if exception or app.builder.name != "html":
        return
    # From the theme's own file: the one in the site may have been trimmed before.
    folders = [Path(folder) / "static" for folder in app.builder.theme.get_theme_dirs()]
    source = next((folder / ICONS for folder in folders if (folder / ICONS).is_file()), None)
    if source is None:
        raise ExtensionError(f"the theme has no {ICONS.as_posix()} any more: see kl_weight.py")
    script, out = source.read_text(encoding="utf-8"), Path(app.outdir)
    kept = keep_icons(script, icons_of(out))
    if len(kept) > len(script) / 4:
        raise ExtensionError("the theme writes its icons in another way: see kl_weight.py")
    (out / "_static" / ICONS).write_text(kept, encoding="utf-8")


# --- pictures -------------------------------------------------------------------------------------


def size_of(path: Path) -> tuple[int, int] | None:
    """Width and height of an SVG of Matplotlib in CSS pixels; None where it does not say."""
    if path.suffix != ".svg" or not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        width = SVG_SIZE.search(file.read(4000))
    height = width and SVG_HEIGHT.search(width[0])
    return (round(float(width[1]) * 4 / 3), round(float(height[1]) * 4 / 3)) if height else None


def mend_images(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Give each picture its size, so that nothing moves when it comes."""
    body = context.get("body")
    if not body or app.builder.name != "html":
        return
    sources = {name: Path(app.srcdir) / path for path, name in app.builder.images.items()}

    def mended(image: re.Match) -> str:
        path = sources.get(image["src"].rpartition("/")[2])
        size = size_of(path) if path else None
        if not size:
            return image[0]
        return f'<img width="{size[0]}" height="{size[1]}"{image["before"]}'

    context["body"] = IMAGE.sub(mended, body)


# --- what a search engine shows -------------------------------------------------------------------


def description(doctree: nodes.document) -> str:
    """The title and the first paragraph of plain words."""
    title = next((node.astext() for node in doctree.findall(nodes.title)), "")
    for paragraph in doctree.findall(nodes.paragraph):
        apart = isinstance(paragraph.parent, (nodes.Admonition, nodes.caption))
        if not apart and not any(paragraph.findall(nodes.math)):
            text = " ".join(f"{title}. {paragraph.astext()}".split())
            return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " …"
    return title


def describe(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """A page says in its head what it is about."""
    text = description(doctree) if doctree else context.get("title", "")
    if text and 'name="description"' not in context.get("metatags", ""):
        meta = f'<meta name="description" content="{escape(text)}">'
        context["metatags"] = context.get("metatags", "") + meta


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", mend_images, priority=998)
    app.connect("html-page-context", describe)
    app.connect("build-finished", trim_icons)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
