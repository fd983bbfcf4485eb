"""What frameworks compute under the name KL: one row a formula, and what the audit finds in it.

A row's facts were read in the framework's code at the commit that it names; code moves on, so say
"at commit X". ``fn`` is the same formula written anew, with the roles as parameter names, and
``finds`` is what :func:`~kllab.auditor.audit` must find in it. Values are in nats.

>>> row = ATLAS["verl/low_var_kl"]
>>> row.usage, row.samples, row.claim, row.commit[:9]
('loss', 'logprob', 'kl_qp', '1dda039b9')
>>> row.report().gradient.terms
{'kl_pq': 1.0}
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

from kllab import _atlas_functions
from kllab.auditor import AuditReport, audit

__all__ = ["ATLAS", "Row"]


@dataclass(frozen=True)
class Row:
    """One formula of one framework, as its code had it at one commit.

    ``name``: framework/what. ``function``: its name among the re-derived functions. ``usage``,
    ``samples``, ``claim``: the arguments of the audit; the claim is a divergence with q the
    sampled distribution. ``direction``, ``placement``, ``aggregation``, ``clamp``: in words.
    ``says``: what the framework's own text claims, paraphrased. ``read``: when, ``checked``: how.
    ``chapter``: the one that explains it. ``finds``: ``value`` and ``gradient``, each the terms
    {divergence: coefficient} or a verdict, ``mean``, the exact one on the audit's three-token case,
    ``codes``, and ``aggregation`` as the audit names it.
    """

    name: str
    function: str
    usage: str
    samples: str
    claim: str
    repository: str
    commit: str
    file: str
    lines: str
    direction: str
    placement: str
    aggregation: str
    clamp: str
    says: str
    read: str
    checked: str
    chapter: int
    finds: Mapping[str, object]
    note: str = ""

    @property
    def framework(self) -> str:
        """The first half of the name."""
        return self.name.split("/")[0]

    @property
    def fn(self) -> Callable:
        """The formula as a function of the log-probabilities that it names."""
        return getattr(_atlas_functions, self.function)

    @property
    def source(self) -> str:
        """Where it stands, in words."""
        lines = f"line{'s' * (not self.lines.isdigit())} {self.lines}"
        return f"{self.repository}, {self.file}, {lines}, at commit {self.commit[:9]}"

    @property
    def url(self) -> str:
        """The same as an address of that commit; of several passages the first.

        >>> ATLAS["openrlhf/vllm_kl"].url.partition("/blob/")[2][:9]
        '3c3be6234'
        """
        first, _, last = self.lines.split(",")[0].partition("-")
        place = f"#L{first}-L{last or first}"
        return f"https://github.com/{self.repository}/blob/{self.commit}/{self.file}{place}"

    def report(self, fn: Callable | None = None) -> AuditReport:
        """The audit of this row, or of ``fn`` in its place."""
        return audit(fn or self.fn, usage=self.usage, samples=self.samples, claim=self.claim)

    def disagreements(self, report: AuditReport) -> list[str]:
        """Where a report differs from ``finds``; nothing when it is as the row says.

        >>> row = ATLAS["verl/abs"]
        >>> row.disagreements(row.report())
        []
        """
        mean = report.cases.get("three tokens", {}).get("mean", math.nan)
        seen = {"codes": sorted(report.codes), "aggregation": report.aggregation or "none"}
        seen["mean"] = float(f"{mean:.6g}")
        for part in ("value", "gradient"):
            found = getattr(report, part)
            terms = {name: float(f"{c:.6g}") for name, c in found.terms.items()}
            seen[part] = terms or found.verdict
        want = {**self.finds, "codes": sorted(self.finds["codes"])}
        return [f"{key}: {seen[key]}, not {want[key]}" for key in seen if seen[key] != want[key]]


def _load() -> dict[str, Row]:
    text = resources.files("kllab").joinpath("atlas.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    shared = data["every"]
    return {
        name: Row(name=name, **{**shared, **data["frameworks"][name.split("/")[0]], **row})
        for name, row in data["rows"].items()
    }


ATLAS: Mapping[str, Row] = MappingProxyType(_load())
"""All rows by name."""
