"""Repairs of pages that Jupyter Book 1, Sphinx 7 and their theme leave imperfect."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

START = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="0; url={page}">
<title>{title}</title>
</head>
<body><main><h1>{title}</h1><p><a href="{page}">Open the book</a></p></main></body>
</html>
"""

PANDAS_STYLE = re.compile(
    r"<style scoped>.*?</style>|<style type=\"text/css\">\s*</style>", re.DOTALL
)
TABLE_ID = re.compile(r' id="(T_[\w-]+)"')
EMPTY_HEADING = re.compile(r"<th\b([^>]*)>(?:\s|&nbsp;)*</th>")
CONTENT_ID = re.compile(r' id="(?:exercise|solution|proof)-content"')
SUMMARY = re.compile(r"<summary.*?</summary>", re.DOTALL)
FOLD = re.compile(r"(?P<title>[^<>]*)</a>(?P<details>\s*<details[^>]*>\s*)<summary>")
PARAGRAPH = re.compile(r"<(/?)p\b([^>]*)>")


def drop_repeated_scripts(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Extensions register some inline scripts twice; the second throws in every page's console."""
    seen: set[str] = set()
    kept = []
    for script in context.get("script_files", []):
        attributes = getattr(script, "attributes", {})
        key = attributes.get("body") or str(getattr(script, "filename", script))
        # Nothing is run in the page by Thebe, and its loader names another host.
        if key not in seen and "thebe" not in key.lower():
            kept.append(script)
        seen.add(key)
    context["script_files"] = kept


def mend_body(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Valid HTML where docutils, pandas and MyST-NB write something else."""
    body = context.get("body")
    if not body:
        return
    # A list whose children are not list items is an accessibility error.
    body = body.replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    body = body.replace(' role="doc-biblioentry"', "")
    # Tables of pandas: styles that book.css gives, ids that repeat, headings without text.
    body = PANDAS_STYLE.sub("", body)
    body = TABLE_ID.sub(lambda match: match[0] if f"#{match[1]}" in body else "", body)
    body = EMPTY_HEADING.sub(r"<td\1></td>", body)
    # Exercises and proofs repeat one id for their content.
    body = CONTENT_ID.sub("", body)
    # A summary holds phrases, not paragraphs.
    context["body"] = SUMMARY.sub(lambda match: PARAGRAPH.sub(r"<\1span\2>", match[0]), body)


def name_folds(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """The theme folds a branch of the sidebar behind an arrow that has no name."""
    theirs = context.get("generate_toctree_html")
    if theirs is None:
        return

    def ours(*args, **options):
        made = theirs(*args, **options)
        return named(str(made)) if options.get("kind") == "sidebar" else made

    context["generate_toctree_html"] = ours


def named(sidebar: str) -> str:
    """The sidebar's HTML, where each fold is named after the page above it."""

    def name(match: re.Match) -> str:
        label = f"Pages of: {match['title'].strip()}".replace('"', "&quot;")
        return f'{match["title"]}</a>{match["details"]}<summary aria-label="{label}">'

    return FOLD.sub(name, sidebar)


def share_html_visitors(app: Sphinx, config) -> None:
    """An extension registers visitors for ``singlehtml``, which hides all those for ``html``."""
    handlers = app.registry.translation_handlers
    if "singlehtml" in handlers:
        for node, visitors in handlers.get("html", {}).items():
            handlers["singlehtml"].setdefault(node, visitors)


def write_start_page(app: Sphinx, exception: Exception | None) -> None:
    """A valid page at the root that leads to the book's first page."""
    root = app.config.root_doc
    if exception is None and app.builder.name == "html" and root != "index":
        text = START.format(page=f"{root}.html", title=app.config.html_title)
        (Path(app.outdir) / "index.html").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict:
    app.connect("config-inited", share_html_visitors, priority=999)
    app.connect("html-page-context", drop_repeated_scripts, priority=999)
    app.connect("html-page-context", mend_body, priority=999)
    app.connect("html-page-context", name_folds, priority=999)
    app.connect("build-finished", write_start_page, priority=999)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
