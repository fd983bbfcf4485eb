"""The search of the built book: terms lead to the page that explains them."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe

CH = "notebooks/"
# For each term, the pages of which a reader who knows the book would expect one. Terms that are
# found from a folder too are tried there as well; the index is the same file.
EXPECTED = {
    "k1": (CH + "02_three_estimators.html#three-estimators",),
    "k3": (CH + "02_three_estimators.html#three-estimators",),
    "low_var_kl": (CH + "13_three_arguments_settled.html#c-the-penalty-with-many-names",),
    "chi2": (CH + "03_f_divergences.html#one-formula",),
    "χ²": (CH + "03_f_divergences.html#one-formula",),
    "kl_qp": ("book/notation.html#direction",),
    "f-divergence": (CH + "03_f_divergences.html#one-formula",),
    "leave-one-out": (CH + "09_noise_in_the_gradient.html#a-baseline-from-the-batch",),
    "baseline": (CH + "09_noise_in_the_gradient.html#a-baseline-from-the-batch",),
    "mean_kl": (CH + "13_three_arguments_settled.html#b-the-metric-of-a-controller",),
    "verl": (CH + "14_atlas.html#atlas-verl-k1",),
    "TRL": (CH + "14_atlas.html#atlas-trl-grpo-kl",),
    "clamp": (CH + "05_unbiased_and_useless.html#what-a-clamp-costs",),
    "Rao-Blackwell": (
        CH + "06_at_vocabulary_scale.html#why-sample-at-all",
        CH + "11_tokens_and_sequences.html#averaging-each-step-is-not-always-better",
    ),
    "Schulman": (CH + "02_three_estimators.html#schulman-s-two-tables",),
    "padding": (CH + "15_audit_your_own.html#the-mask-comes-one-line-late",),
    "negative KL": (CH + "01_where_did_p_go.html#negative-estimates-are-normal",),
}
DONE = "() => /\\d|did not/.test(document.querySelector('.search-summary')?.innerText ?? '')"


@pytest.fixture(scope="module", params=["http", "file"])
def search(request, chrome, site, address):
    """Looks for a term; the value is the links in their order, and the page stays open."""
    base = address if request.param == "http" else f"file://{site}"
    page = chrome.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "console", lambda m: m.type in ("error", "warning") and faults.append(f"console: {m.text}")
    )

    def look_for(term: str) -> list[str]:
        page.goto(f"{base}/search.html?q={quote(term)}")
        page.wait_for_function(DONE)
        links = page.locator("ul.search > li > a:first-child")
        return links.evaluate_all("all => all.map(a => a.getAttribute('href'))")

    look_for.page, look_for.faults = page, faults
    yield look_for
    page.close()


@pytest.mark.browser
def test_a_term_leads_to_its_page_among_the_first_three(search):
    found = {term: search(term)[:3] for term in EXPECTED}
    missing = {
        term: links for term, links in found.items() if not set(EXPECTED[term]) <= set(links)
    }
    assert missing == {}
    assert search.faults == []


@pytest.mark.browser
def test_a_word_that_is_not_in_the_book_is_not_found(search):
    assert search("zygomorphic") == []


@pytest.mark.browser
def test_the_excerpts_hold_no_formula_in_tex(search):
    search("leave-one-out")
    if search.page.url.startswith("file:"):
        assert search.page.locator("ul.search p").count() == 0
        return
    search.page.wait_for_function(
        "() => document.querySelectorAll('ul.search p').length >= 5"  # fetched one by one
    )
    texts = search.page.locator("ul.search p").all_inner_texts()
    assert any("the mean of the others" in text for text in texts)
    assert [text for text in texts if "\\(" in text or "\\bar" in text] == []


@pytest.mark.browser
def test_the_results_are_readable_in_the_dark_on_a_phone(chrome, address):
    viewport = {"width": 360, "height": 780}
    page = chrome.new_page(color_scheme="dark", viewport=viewport)
    page.goto(f"{address}/search.html?q=clamp")
    page.wait_for_function("() => document.querySelectorAll('ul.search p').length >= 5")
    found = Axe().run(page, options={"preload": False}).response["violations"]
    assert [rule["id"] for rule in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    page.close()


def test_terms_of_the_index_stand_on_sections_that_exist():
    """A term has at most three places, else one of them is not among the first three."""
    import tomllib
    from collections import Counter

    from kl_index import TERMS

    listed = tomllib.loads(TERMS.read_text(encoding="utf-8"))
    terms = Counter(t for places in listed.values() for terms in places.values() for t in terms)
    assert len(terms) > 80
    assert {term: n for term, n in terms.items() if n > 3} == {}
