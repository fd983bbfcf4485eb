"""Sums of divergences, {name: coefficient}, as text."""

from __future__ import annotations

from collections.abc import Mapping

SYMBOLS = {
    "kl_qp": "KL(q‖p)",
    "kl_pq": "KL(p‖q)",
    "chi2_qp": "χ²(q‖p)",
    "chi2_pq": "χ²(p‖q)",
    "tv": "TV(q, p)",
    "hellinger2": "H²(q, p)",
    "js": "JS(q, p)",
    "jeffreys": "J(q, p)",
}


def sum_of(terms: Mapping[str, float]) -> str:
    """As code would say it.

    >>> sum_of({"kl_qp": 1.0, "kl_pq": -0.5})
    'kl_qp − 0.5 kl_pq'
    """
    text = ""
    for name, c in terms.items():
        short = f"{abs(c):.6g}"
        size = "" if abs(c) == 1 else f"{abs(c):.9g} " if short == "1" else f"{short} "
        sign = "−" if c < 0 else "+"
        text += f" {sign} {size}{name}" if text else f"{sign.strip('+')}{size}{name}"
    return text


def in_symbols(terms: Mapping[str, float]) -> str:
    """As a book would, what is added first.

    >>> in_symbols({"kl_qp": -1.0, "chi2_qp": 1.0})
    'χ²(q‖p) − KL(q‖p)'
    """
    first = sorted(terms.items(), key=lambda term: term[1] < 0)
    return sum_of({SYMBOLS.get(name, name): c for name, c in first})
