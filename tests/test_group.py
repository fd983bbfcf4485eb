"""The reading group: every chapter has its guide, times add up, links show what a guide says, and
small exact values in the answers are what the package computes."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path

import chapters
import kl_group
import nbformat
import pytest
import torch
from sphinx.errors import ExtensionError

import kllab
from kllab import K1, K2, K3, exact, gradients, sequences
from kllab.testing import assert_kl
from kllab.training import bandit

ROOT = Path(__file__).resolve().parents[1]
GROUP = ROOT / "book" / "group"
CHAPTERS = {path.name[:2]: path for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))}
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(GROUP.glob("*.md"))}
GUIDES = {name: text for name, text in PAGES.items() if name.isdigit()}

AGENDA = re.compile(r"```\{agenda\} (\d+)\n(.*?)```", re.DOTALL)
QUESTION = re.compile(r"```\{question\}(?P<number> \d+)?\n(?P<body>.*?)\n```", re.DOTALL)
SHOWN = re.compile(r"\{show\}`[^`]*<(?P<target>[^`]*)>`")
chapter = functools.cache(chapters.chapter)
MEETING = re.compile(r"^### Meeting (\d):.*?(?=^##)", re.MULTILINE | re.DOTALL)


def law(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


# --- what a guide must hold -----------------------------------------------------------------------


def test_every_chapter_has_a_guide_and_only_those_have():
    assert len(CHAPTERS) >= 16
    assert list(GUIDES) == list(CHAPTERS)


def test_every_page_of_the_group_is_in_the_contents():
    listed = re.findall(r"file: book/group/([\w-]+)", (ROOT / "_toc.yml").read_text("utf-8"))
    assert sorted(listed) == sorted(PAGES)


@pytest.mark.parametrize("number", GUIDES)
def test_a_guide_is_about_its_chapter(number):
    text, told = GUIDES[number], chapter(number)
    assert text.startswith(f"# Guide {number}: {told.title}\n")
    assert f"```{{chapter-facts}} {number}\n" in text
    for section in ("Agenda", "Open together", "Questions", "Usual confusions", "Break it"):
        assert f"\n## {section}\n" in text
    assert "\n**Short of time:**" in text
    assert f"<ex-{number}-break>" in text
    # What is known before comes from the chapter; nobody types it again.
    for said in (told.claim, told.needs, told.helps, told.time):
        assert said not in text


@pytest.mark.parametrize("number", GUIDES)
def test_each_question_of_a_chapter_has_its_answer(number):
    found = list(QUESTION.finditer(GUIDES[number]))
    asked = [int(match["number"]) for match in found if match["number"]]
    count = len(chapter(number).questions)
    assert count == 3
    assert asked == list(range(1, count + 1))
    assert 4 <= len(found) <= 6
    for match in found:
        options, _, answer = match["body"].partition("\n\n")
        assert re.search(r"^:purpose: \S", options, re.MULTILINE)
        assert (":ask:" in options) == (not match["number"])
        assert len(answer.split()) >= 20


@pytest.mark.parametrize("number", GUIDES)
def test_questions_go_from_warm_up_to_open(number):
    kinds = re.findall(r"^:kind: (.+)$", GUIDES[number], re.MULTILINE)
    assert set(kinds) <= set(kl_group.KINDS)
    assert kinds == sorted(kinds, key=kl_group.KINDS.index)
    assert kinds[0] == "warm-up"
    assert kinds[-1] == "open"


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_agendas_add_up(page):
    found = AGENDA.findall(PAGES[page])
    assert len(found) == {"index": 0, "ten-minutes": 0, "late": 6}.get(page, 1)
    for total, lines in found:
        assert sum(minutes for minutes, _ in kl_group.agenda(lines.splitlines())) == int(total)


def meetings() -> dict[int, list[str]]:
    """The chapters of each of the seven meetings."""
    read = re.compile(r"\{reading\}`([\d ]+)`")
    found = {int(m[1]): read.search(m[0]) for m in MEETING.finditer(PAGES["index"])}
    return {number: match[1].split() for number, match in found.items()}


def test_seven_meetings_hold_all_chapters_in_order_and_take_ninety_minutes():
    plan = meetings()
    assert list(plan) == [1, 2, 3, 4, 5, 6, 7]
    assert [chapter for held in plan.values() for chapter in held] == list(CHAPTERS)
    for number, held in plan.items():
        length = sum(int(AGENDA.search(GUIDES[chapter])[1]) for chapter in held)
        pause = 10 if number < 7 else 0
        assert length + pause == 90
    table = re.findall(r"\{minutes\}`([\d ]+)`", PAGES["index"])
    assert [row.split() for row in table] == list(plan.values())


def test_the_hours_of_catching_up_are_hours():
    assert re.findall(r"^### Before meeting (\d)$", PAGES["late"], re.MULTILINE) == list("234567")
    assert {total for total, _ in AGENDA.findall(PAGES["late"])} == {"60"}


def test_ten_minutes_are_five_stops_and_end_on_monday():
    text = PAGES["ten-minutes"]
    stops = re.split(r"^## Stop \d: .+$", text, flags=re.MULTILINE)[1:]
    assert len(stops) == 5
    for stop in stops:
        stop = stop.split("\n## ")[0]
        assert stop.count("```{still}") == 1
        assert stop.count("\nNext: ") == 1
    assert re.findall(r"^## (.+)$", text, re.MULTILINE)[-1] == "On Monday"


# --- links to figures -----------------------------------------------------------------------------


@functools.cache
def figures_of(number: str) -> set[str]:
    """Names of the browser figures in a chapter's code, and the atlas' table."""
    cells = nbformat.read(CHAPTERS[number], as_version=4).cells
    source = "\n".join(cell.source for cell in cells)
    found = {name.replace("_", "-") for name in re.findall(r"explorables\.(\w+)\(", source)}
    return found | ({"atlas"} if "```{atlas-table}" in source else set())


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_a_figure_of_their_chapter(page):
    targets = [kl_group.TARGET.match(match["target"]) for match in SHOWN.finditer(PAGES[page])]
    assert PAGES[page].count("{show}`") == len(targets)
    assert None not in targets
    for target in targets:
        assert target["name"] in figures_of(target["chapter"])
    if page in GUIDES:
        own = [target for target in targets if target["chapter"] == page]
        assert len(own) >= 3 if figures_of(page) else not own


def test_numbers_and_words_of_a_time_are_read():
    assert chapters.in_digits("30") == 30
    assert chapter("16").minutes == 15
    assert chapter("01").minutes == 20
    with pytest.raises(ExtensionError, match="no chapter '99'"):
        chapters.chapter("99")


def test_an_agenda_without_times_is_refused():
    with pytest.raises(ExtensionError, match="5: what"):
        kl_group.agenda(["talk"])


# --- exact values in the answers ------------------------------------------------------------------


def kl(q, p) -> float:
    return float(exact.divergence("kl_qp", q, p))


def chi2(q, p) -> float:
    return float(exact.divergence("chi2_qp", q, p))


def mean(q, values) -> float:
    return float(q.exp() @ values)


QUARTER, HALF = law(0.25, 0.75), law(0.5, 0.5)
TWO, THREE = math.log(2), math.log(3)


def test_values_of_part_one():
    # 01: counts of three to one are q itself; of two to two they are not.
    q = law(0.75, 0.25)
    seen = (q - HALF)[torch.tensor([0, 0, 0, 1])].mean()
    assert math.isclose(seen, kl(q, HALF))
    other = float((q - HALF)[torch.tensor([0, 0, 1, 1])].mean())
    assert math.isclose(other, math.log(3 / 4) / 2)
    assert other < 0
    # 02: two samples.
    l = torch.tensor([2.0, 0.5], dtype=torch.float64).log()
    assert torch.allclose(K1(l), torch.tensor([-TWO, TWO], dtype=torch.float64))
    assert torch.allclose(K2(l), torch.full((2,), TWO**2 / 2, dtype=torch.float64))
    assert torch.allclose(K3(l), torch.tensor([1 - TWO, TWO - 0.5], dtype=torch.float64))
    assert K3(l)[0] > K3(l)[1] > 0
    # 03: total variation and chi-squared, both a quarter.
    p = law(0.75, 0.25)
    for name in ("tv", "chi2_pq"):
        assert math.isclose(float(exact.divergence(name, HALF, p)), 0.25)
    # 05: the rare token, and the flat line with one jump.
    value = float(K3(torch.tensor(500.0, dtype=torch.float64).log()))
    assert math.isclose(value, 499 - math.log(500))
    assert 0.49 < value / 1000 < 0.5
    assert 1 / 3 < (1 - 1 / 1000) ** 1000 < 1 / math.e
    assert math.isclose((200 * 0.02 + 8) / 201, 12 / 201)
    assert 2.9 < 12 / 201 / 0.02 < 3
    # 06: the top two of four tokens.
    model = law(1 / 2, 1 / 4, 1 / 8, 1 / 8)
    engine = kllab.pairs.top_p(model, 0.7)
    drawn = engine.log_q > -math.inf
    assert drawn.tolist() == [True, True, False, False]
    assert torch.allclose(engine.log_r[drawn].exp(), torch.full((2,), 0.75, dtype=torch.float64))
    assert math.isclose(exact.moments(K1, engine).mean, math.log(4 / 3))
    assert math.isclose(exact.moments(K3, engine).mean, math.log(4 / 3) - 0.25)
    assert math.isclose(exact.target_value("kl_qp", engine), math.log(4 / 3))
    k1, k3 = -math.log(0.95), -math.log(0.95) - 0.05
    assert 39 < k1 / k3 < 41


def test_values_of_part_two():
    # 07: two tokens, three losses.
    weights = {k: gradients.coefficient(k, HALF, QUARTER, usage="loss") for k in (K1, K2, K3)}
    pushes = [float(c[0] - c[1]) for c in weights.values()]
    assert pushes == pytest.approx([0, THREE, 1])
    slope = float((HALF - QUARTER)[0] - (HALF - QUARTER)[1])
    assert math.isclose(slope, THREE)
    # 08: the rule, on four formulas.
    follows = {
        "-l": (lambda l: -l, (None, True)),
        "l²": (lambda l: l**2, (True, False)),
        "e^l": (torch.exp, (True, False)),
        "e^-l": (lambda l: torch.exp(-l), (True, True)),
        "l⁴": (lambda l: l**4, (True, False)),
    }
    for fn, expected in follows.values():
        for usage, convex in zip(("loss", "reward"), expected, strict=True):
            entry = gradients.dictionary(fn, usage=usage)
            assert (entry.verdict == "zero") if convex is None else entry.is_convex == convex
    assert gradients.dictionary(torch.exp, usage="loss").terms == {"kl_pq": 1.0}
    for usage in ("loss", "reward"):
        entry = gradients.dictionary(follows["e^-l"][0], usage=usage)
        assert entry.terms == pytest.approx({"chi2_qp": 0.5})
    # 09: a group of two, and of one.
    k = torch.tensor([3.0, 1.0], dtype=torch.float64)
    assert gradients.less_baseline(k, how="mean").tolist() == [1, -1]
    assert gradients.less_baseline(k, how="leave_one_out").tolist() == [2, -2]
    assert gradients.less_baseline(k[:1], how="mean").tolist() == [0]
    # 10: the reference wrote the samples.
    k1, w = HALF - QUARTER, (HALF - QUARTER).exp()
    assert math.isclose(mean(QUARTER, k1), TWO - 0.75 * THREE)
    assert mean(QUARTER, k1) < 0
    assert w.tolist() == pytest.approx([2, 2 / 3])
    assert math.isclose(mean(QUARTER, w), 1)
    assert math.isclose(mean(QUARTER, w * k1), math.log(4 / 3) / 2)
    assert math.isclose(kl(HALF, QUARTER), math.log(4 / 3) / 2)
    # 11: the first rows agree, and those after B do not.
    tree = sequences.Tree(V=2, T=2)
    q, p = (torch.stack([HALF, HALF, last]) for last in (law(0.75, 0.25), QUARTER))
    assert math.isclose(float(tree.divergence("kl_qp", q, p)), THREE / 4)
    token = sequences.expected_gradient(tree, K2, q, p, usage="loss")
    assert float(token[0].abs().max()) < 1e-12
    assert math.isclose(float(tree.gradient("kl_qp", q, p)[0, 1]), THREE / 8)
    # 12: the tilt.
    pay = torch.tensor([THREE, 0.0], dtype=torch.float64)
    best = bandit(HALF, pay, beta=1.0).log_optimum
    assert best.exp().tolist() == pytest.approx([0.75, 0.25])
    assert math.isclose(mean(best, pay) - kl(best, HALF), TWO)
    assert math.isclose(kl(best, HALF), 0.75 * THREE - TWO)


def test_values_of_part_three():
    # 13: the napkin.
    l = QUARTER - HALF
    assert math.isclose(mean(HALF, K3(l)), kl(HALF, QUARTER))
    assert math.isclose(chi2(HALF, QUARTER), 1 / 3)
    assert math.isclose(mean(HALF, K3(-l)), 1 / 3 - math.log(4 / 3) / 2)
    assert math.isclose(kl(QUARTER, HALF), 0.75 * THREE - TWO)

    def low_var_kl(logprob, ref_logprob):
        return K3.clamped(log_r=(-20, 20), value=(-10, 10))(ref_logprob - logprob)

    assert_kl(low_var_kl, usage="loss", claim="kl_pq")

    # 15: what the audit says before anybody runs it.
    def verdict(k, usage):
        def fn(logprob, ref_logprob):
            return k(ref_logprob - logprob)

        return str(kllab.audit(fn, usage=usage, claim="kl_qp")).split(":")[0]

    assert verdict(K1, "metric") == "agrees"
    assert verdict(K1, "loss") == verdict(K3, "loss") == "differs"
    assert verdict(K2, "metric") == "not judged"
    assert verdict(K2, "loss") == "agrees"
