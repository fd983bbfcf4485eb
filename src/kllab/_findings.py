"""One finding of the audit or the diagnosis, and numbers in a form that JSON has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something worth knowing: a published ``code``, one plain ``sentence``, the ``numbers``
    behind it by name (nats where they have a unit), and what to do ``instead``."""

    code: str
    sentence: str
    numbers: Mapping[str, float]
    instead: str

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence} {self.instead}"


def plain(value):
    """The same with NaN and infinities as strings, and only dicts, lists, strings and numbers.

    >>> plain({"share": math.inf, "region": (-3.0, 3)})
    {'share': 'inf', 'region': [-3.0, 3]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
