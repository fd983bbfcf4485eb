"""The atlas: filtered and sorted by keyboard, over http and from a folder; the sheet in print."""

from __future__ import annotations

import itertools

import pytest
from axe_playwright_python.sync_playwright import Axe
from test_site import DESK, PHONE, open_page, overflow, violations, watched

from kllab import ATLAS

ATLAS_PAGE = "notebooks/14_atlas.html"
SHEET_PAGE = "notebooks/16_field_guide.html"
PRINTED = {"width": 718, "height": 979}  # A4's width and Letter's height without 10 mm of margin

pytestmark = pytest.mark.browser


@pytest.fixture(params=["http", "file"])
def base(request, site, address):
    return address if request.param == "http" else site.as_uri()


def shown(page) -> list[str]:
    """Names of the rows that are visible, in their order."""
    return page.eval_on_selector_all(
        "table.atlas tbody tr",
        "rows => rows.filter(r => !r.hidden && r.offsetHeight).map(r => r.querySelector('code')"
        ".textContent)",
    )


def status(page) -> str:
    return page.locator(".atlas-tools [role=status]").inner_text()


def choose(page, label: str):
    return page.get_by_role("combobox", name=label)


def settle(page):
    page.wait_for_timeout(300)  # typing waits a moment before it acts


def type_words(page, words: str):
    page.get_by_label("Words").fill(words)
    settle(page)


def test_words_and_choices_filter_the_rows(chrome, base):
    with watched(chrome, viewport=DESK) as (page, faults):
        open_page(page, f"{base}/{ATLAS_PAGE}")
        assert shown(page) == list(ATLAS)
        assert status(page) == f"{len(ATLAS)} of {len(ATLAS)} rows"
        type_words(page, "nan_gradient")
        wanted = [n for n, row in ATLAS.items() if "nan_gradient" in row.finds["codes"]]
        assert shown(page) == wanted
        assert status(page).startswith(f"{len(wanted)} of ")
        choose(page, "Used as").select_option("loss")
        choose(page, "Audit says").select_option("agrees")
        assert shown(page) == [
            n for n in wanted
            if ATLAS[n].usage == "loss" and ATLAS[n].report().agrees
        ]  # fmt: skip
        type_words(page, "no such words")
        assert shown(page) == []
        page.get_by_role("button", name="Show all").click()
        assert shown(page) == list(ATLAS)
        assert page.evaluate("document.activeElement.type") == "search"
        assert faults == []


def test_two_bars_find_the_sign_of_a_divergence(chrome, address):
    with watched(chrome, viewport=DESK) as (page, _):
        open_page(page, f"{address}/{ATLAS_PAGE}")
        type_words(page, "χ²(q||p)")
        upside_down = [n for n, row in ATLAS.items() if "chi2_qp" in str(row.finds["value"])]
        assert shown(page) == upside_down


def test_a_heading_sorts_by_keyboard_and_says_so(chrome, base):
    with watched(chrome, viewport=DESK) as (page, faults):
        open_page(page, f"{base}/{ATLAS_PAGE}")
        heading = page.get_by_role("columnheader", name="Formula")
        assert heading.get_attribute("aria-sort") is None
        heading.get_by_role("button").focus()
        page.keyboard.press("Enter")
        assert heading.get_attribute("aria-sort") == "ascending"
        upwards = shown(page)
        frameworks = [name.split("/")[0] for name in upwards]
        assert frameworks == sorted(row.framework for row in ATLAS.values())
        assert status(page).endswith("by formula")
        page.keyboard.press("Space")
        assert heading.get_attribute("aria-sort") == "descending"
        assert shown(page) == upwards[::-1]
        assert page.locator("th[aria-sort]").count() == 1
        choose(page, "In order of").select_option("See")
        numbers = [ATLAS[name].chapter for name in shown(page)]
        assert numbers == sorted(numbers)
        assert faults == []


def test_every_control_is_reached_with_the_tab_key(chrome, address):
    with watched(chrome, viewport=DESK) as (page, _):
        open_page(page, f"{address}/{ATLAS_PAGE}")
        page.get_by_label("Words").focus()
        seen = []
        for _ in range(14):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.textContent.trim()"))
        for wanted in ("Show all", "Formula", "Used as", "Estimates", "Audit", "See"):
            assert wanted in seen


def test_the_address_keeps_what_was_asked(chrome, base):
    with watched(chrome, viewport=DESK) as (page, faults):
        open_page(page, f"{base}/{ATLAS_PAGE}")
        type_words(page, "trl/")
        choose(page, "Used as").select_option("reward")
        before, link = shown(page), page.url
        assert before == [n for n in before if n.startswith("trl/")] != []
        open_page(page, link)
        assert shown(page) == before
        assert page.get_by_label("Words").input_value() == "trl/"
        assert faults == []


@pytest.mark.parametrize(
    "query",
    ["?order=nothing&used=%3Cb%3E&audit=x", "?words=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
     f"?words={'a' * 5000}", "?words=%E0%A4%A"],
)  # fmt: skip
def test_a_link_that_asks_for_nonsense_does_nothing_else(chrome, address, query):
    with watched(chrome, viewport=DESK) as (page, faults):
        page.on("dialog", lambda dialog: faults.append("dialog"))
        open_page(page, f"{address}/{ATLAS_PAGE}{query}")
        settle(page)
        assert page.locator(".atlas-tools img, .atlas-tools b").count() == 0
        assert " of " in status(page)
        assert len(page.get_by_label("Words").input_value()) <= 100
        assert faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_the_filtered_table_is_accessible_and_fits(chrome, address, scheme, viewport):
    with watched(chrome, viewport=viewport, color_scheme=scheme) as (page, faults):
        open_page(page, f"{address}/{ATLAS_PAGE}?used=reward&order=Audit")
        assert violations(page) == []
        assert overflow(page) <= 0
        assert page.get_by_role("table", name="Atlas").count() == 1
        cell = page.locator("table.atlas tbody tr:not([hidden]) td").nth(2)
        assert cell.get_attribute("role") == "cell"
        for target in page.locator(".atlas-tools :is(input, select, button)").all():
            assert target.bounding_box()["height"] >= 24
        assert faults == []


def test_on_a_phone_a_row_is_a_card_with_its_labels(chrome, address):
    with watched(chrome, viewport=PHONE) as (page, _):
        open_page(page, f"{address}/{ATLAS_PAGE}")
        card = page.locator("table.atlas tbody tr").first
        boxes = [cell.bounding_box() for cell in card.locator("td").all()]
        assert all(a["y"] + a["height"] <= b["y"] + 1 for a, b in itertools.pairwise(boxes))
        assert all(box["x"] + box["width"] <= PHONE["width"] for box in boxes)
        labels = [
            cell.evaluate("e => getComputedStyle(e, '::before').content.replaceAll('\"', '')")
            for cell in card.locator("td").all()[1:]
        ]
        titles = page.locator("table.atlas th").all_text_contents()
        assert labels == titles[1:]
        assert page.locator("table.atlas th button:not([tabindex='-1'])").count() == 0


def test_without_scripts_the_table_is_whole(chrome, address):
    with watched(chrome, java_script_enabled=False, viewport=DESK) as (page, _):
        page.goto(f"{address}/{ATLAS_PAGE}")
        assert page.locator("table.atlas tbody tr").count() == len(ATLAS)
        assert page.locator(".atlas-tools, table.atlas button").count() == 0


def test_only_the_pages_that_need_them_load_the_files(site):
    for name, files in {
        ATLAS_PAGE: ("js/atlas.js", "css/atlas.css"),
        SHEET_PAGE: ("css/sheet.css",),
        "notebooks/02_three_estimators.html": (),
    }.items():
        html = (site / name).read_text(encoding="utf-8")
        for file in ("js/atlas.js", "css/atlas.css", "css/sheet.css"):
            assert (file in html) is (file in files), (name, file)


# --- the sheet ------------------------------------------------------------------------------------


def pages_of(pdf: bytes) -> int:
    return pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type /Page/")


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_the_sheet_prints_on_one_side(chrome, base, paper):
    with watched(chrome, viewport=DESK) as (page, _):
        open_page(page, f"{base}/{SHEET_PAGE}")
        assert pages_of(page.pdf(format=paper)) == 1
        page.emulate_media(media="print")
        assert page.locator(".sheet table").count() == 4
        for hidden in ("h1", "nav.bd-links", ".cell", "footer.bd-footer-content"):
            for part in page.locator(hidden).all():
                assert not part.is_visible()
        page.emulate_media(media="screen")
        assert page.locator(".bd-article h1").is_visible()


def test_another_chapter_prints_on_many(chrome, address):
    """So that a count of one above means something."""
    with watched(chrome, viewport=DESK) as (page, _):
        open_page(page, f"{address}/notebooks/02_three_estimators.html")
        assert pages_of(page.pdf(format="A4")) > 5


def test_the_sheet_stays_readable_in_print(chrome, address):
    with watched(chrome, viewport=PRINTED) as (page, _):
        open_page(page, f"{address}/{SHEET_PAGE}")
        page.emulate_media(media="print")
        size = page.locator(".sheet td").first.evaluate(
            "e => parseFloat(getComputedStyle(e).fontSize)"
        )
        assert size >= 7 * 96 / 72
        assert page.locator(".sheet").bounding_box()["height"] <= PRINTED["height"]


def test_axe_sees_the_table(chrome, address):
    """A heading without a name is found, so that silence above counts."""
    with watched(chrome, viewport=DESK) as (page, _):
        open_page(page, f"{address}/{ATLAS_PAGE}")
        page.evaluate("document.querySelector('.atlas-tools label span').remove()")
        found = Axe().run(page, options={"preload": False}).response["violations"]
        assert "label" in [rule["id"] for rule in found]
