"""What only ``<kl-vocabulary>`` does."""

from __future__ import annotations

import re

import pytest
from cases import VOCABULARY
from harness import drawn, table

pytestmark = pytest.mark.browser

KEY = VOCABULARY.key


@pytest.fixture(scope="module")
def figure():
    return VOCABULARY


def test_the_next_sample_is_another_one_and_reset_goes_back(open_http):
    page = open_http("one")
    before, exact = table(page), drawn(page)[:12]
    page.get_by_role("button", name="Next sample of 64").click()
    after = table(page)
    assert [row.split("\t")[:4] for row in after] == [row.split("\t")[:4] for row in before]
    assert [row.split("\t")[4] for row in after] != [row.split("\t")[4] for row in before]
    assert drawn(page)[:12] == exact  # what is exact has not moved
    page.get_by_role("button", name="Reset").click()
    assert table(page) == before


def test_top_p_says_what_is_lost(open_http):
    page = open_http("one", f"?{KEY}=temperature:1,noise:0")
    assert page.get_by_role("status").inner_text().startswith("q is p")
    page.locator(".control-top input").fill("0.9")
    words = r"keeps 2,192 tokens: p\(supp q\) − 1 is −0\.100, so k3 is 0\.100 nats too low"
    page.get_by_role("status").get_by_text(re.compile(words)).wait_for()
    assert table(page)[2].split("\t")[1] == "0.0054"
