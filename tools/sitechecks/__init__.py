"""Checks of the built site: ``python tools/make.py checks [NAME ...]``.

A check is a module of this package with ``run(site: Path, options) -> Result``, and its name
stands in ``CHECKS``. It may have ``add_options(parser)``. It returns faults and never prints. What
it needs and cannot find (a browser, the network) is a fault, too, unless an option says that it was
not asked for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

# In the order in which they run: what is quick comes first.
CHECKS = (
    "bibliography",
    "atlas",
    "links",
    "html",
    "external_links",
    "weight",
    "axe",
    "pdf",
    "epub",
    "lighthouse",
)
SITELESS = {"bibliography", "atlas"}  # look at sources, so they need no built book


@dataclass
class Result:
    """What a check found: rows of (what, figure) for people, and faults.

    A fault is one line. What a person has to see of it, as a difference, may follow, indented.
    """

    name: str
    rows: list[tuple[str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def as_dict(self) -> dict:
        return asdict(self)
