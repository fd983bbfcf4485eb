"""The built book says which version it is, on every page, and how long its chapters took."""

import re

import kl_version
import pytest
from sitechecks.browsing import pages_of

pytestmark = pytest.mark.browser  # they need the built book


def plain(markup: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", markup).split())


def test_every_page_has_one_version_and_the_same(site):
    names = pages_of(site)
    assert len(names) > 20
    lines = {name: kl_version.LINE.findall((site / name).read_text("utf-8")) for name in names}
    assert {name: len(found) for name, found in lines.items()} == dict.fromkeys(names, 1)
    assert len({found[0] for found in lines.values()}) == 1
    assert f"Version {kl_version.version()}" in lines[names[0]][0]


def test_every_page_leads_to_a_report_of_a_mistake(site):
    for name in pages_of(site):
        text = (site / name).read_text("utf-8")
        (address,) = re.findall(r'<p class="kl-report"><a href="([^"]+)"', text)
        if "/issues/new?" not in address:  # without a repository: a section of a page that is there
            page, _, section = address.partition("#")
            target = ((site / name).parent / page).resolve() if page else site / name
            assert f'id="{section}"' in target.read_text("utf-8"), name


def test_the_status_page_says_how_long_each_chapter_took(site):
    text = (site / "book" / "status.html").read_text("utf-8")
    table = re.search(r'<table class="run-times.*?</table>', text, re.DOTALL)[0]
    rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)[1:]
    cells = [[plain(cell) for cell in re.findall(r"<td>.*?</td>", row, re.DOTALL)] for row in rows]
    *chapters, together = cells
    assert [title.split()[0] for title, _, _ in chapters] == [f"{n:02d}" for n in range(1, 17)]
    assert all(re.fullmatch(r"\d{1,2} [A-Z]\w+ 20\d\d", day) for _, day, _ in chapters)
    assert all(int(seconds) > 0 for _, _, seconds in chapters)
    # Each is rounded, and so is the sum.
    assert abs(sum(int(s) for _, _, s in chapters) - int(together[2])) <= len(chapters) / 2 + 1
