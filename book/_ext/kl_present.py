"""Chapters, and no other pages, get the button, scripts and style of the presentation view."""

from __future__ import annotations

from sphinx.application import Sphinx


def add_presentation(app: Sphinx, pagename, templatename, context, doctree) -> None:
    context["kl_presents"] = pagename.startswith("notebooks/")
    if context["kl_presents"]:
        app.add_css_file("css/present.css")
        app.add_js_file("js/spine.js", loading_method="defer")
        app.add_js_file("js/present.js", loading_method="defer")


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", add_presentation)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
