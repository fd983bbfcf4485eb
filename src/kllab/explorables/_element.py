"""The custom element of a browser figure, and checks of what it is asked to show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from kllab.checks import InputError

SCRIPT = Path(__file__).parent.parent / "static" / "explorables.js"
"""The module for live use; ``npm run build`` writes it."""


@dataclass(frozen=True)
class Explorable:
    """A browser figure; a notebook shows it through ``_repr_html_``.

    ``tag`` and ``attributes`` make the custom element, ``fallback`` is the HTML inside it, and
    ``heights`` are the CSS lengths to reserve in one and in two columns, so that the page does not
    jump when the script draws.
    """

    tag: str
    attributes: Mapping[str, str]
    fallback: str
    heights: tuple[str, str]

    def __repr__(self) -> str:
        settings = " ".join(f"{name}={value}" for name, value in self.attributes.items())
        return f"<{self.tag} {settings}>: a figure for the browser"

    def element(self, **more: str) -> str:
        """The custom element with its static picture, as HTML."""
        one_column, two_columns = self.heights
        # The middle term is hugely positive below 650 px and hugely negative above.
        reserved = f"clamp({two_columns},(650px - 100vw)*9999,{one_column})"
        attributes = "".join(
            f' {name}="{escape(value)}"' for name, value in {**self.attributes, **more}.items()
        )
        style = f"display:block;min-height:{reserved}"
        return f'<{self.tag}{attributes} style="{style}">{self.fallback}</{self.tag}>'

    def _repr_html_(self) -> str:
        if os.environ.get("KLLAB_BOOK") == "1":
            return self.element()
        page = _published_page()
        if SCRIPT.is_file():
            script = SCRIPT.read_text(encoding="utf-8")
            element = self.element(**({"page": page} if page else {}))
            return f'{element}\n<script type="module">\n{script}\n</script>'
        where = f' It moves on <a href="{escape(page)}">the published page</a>.' if page else ""
        return (
            f"{self.fallback}\n<p>This is a picture of the figure: its script was not built here."
            f"{where}</p>"
        )


def _published_page() -> str | None:
    """``KLLAB_BOOK_URL`` if it is a web address; anything else must not become a link."""
    address = os.environ.get("KLLAB_BOOK_URL", "")
    return address if urlsplit(address).scheme in ("http", "https") else None


def explorable(
    name: str, state: Mapping[str, object], picture: str, *, heights: tuple[str, str]
) -> Explorable:
    """The figure ``name`` in a state, with its static picture inside."""
    texts = {k: v if isinstance(v, str) else f"{v:.10g}" for k, v in state.items()}
    return Explorable(f"kl-{name}", texts, picture, heights)


def within(**asked: tuple[float, float, float]) -> None:
    for argument, (value, low, high) in asked.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not low <= value <= high:
            raise InputError(argument, f"a number from {low:g} to {high:g}", repr(value))


def whole(**asked: tuple[int, int, int]) -> None:
    for argument, (value, low, high) in asked.items():
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InputError(argument, f"an integer from {low} to {high}", repr(value))


def power_of_two(argument: str, value: int, high: int) -> None:
    whole(**{argument: (value, 1, high)})
    if value & (value - 1):
        raise InputError(argument, f"a power of two up to {high}", repr(value))
