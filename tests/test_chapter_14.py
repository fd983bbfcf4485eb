"""What chapter 14 says about the atlas, and the table that stands on its page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import kl_atlas
import pytest
import torch

from kllab import ATLAS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "_build" / "html" / "notebooks" / "14_atlas.html"
TRAINED = [row for row in ATLAS.values() if row.usage != "metric"]


# --- the table ------------------------------------------------------------------------------------


class Table(HTMLParser):
    """Rows of the table ``atlas``: per cell its text and its links."""

    def __init__(self, html: str):
        super().__init__()
        self.rows: list[list[SimpleNamespace]] = []
        self.inside = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "table":
            self.inside = "atlas" in attributes.get("class", "").split()
        elif self.inside and tag == "tr":
            self.rows.append([])
        elif self.inside and tag in ("td", "th"):
            self.rows[-1].append(SimpleNamespace(text="", links=[]))
        elif self.inside and tag == "a":
            self.rows[-1][-1].links.append(attributes["href"])

    def handle_endtag(self, tag):
        if tag == "table":
            self.inside = False

    def handle_data(self, data):
        if self.inside and self.rows and self.rows[-1]:
            self.rows[-1][-1].text += data


@pytest.fixture(scope="module")
def table() -> list[list[SimpleNamespace]]:
    assert PAGE.is_file(), "no built book: run `make book` first"
    return Table(PAGE.read_text(encoding="utf-8")).rows


def test_the_page_shows_every_row_of_the_atlas_once(table):
    titles = [cell.text.strip() for cell in table[0]]
    assert titles == [title for title, _ in kl_atlas.COLUMNS]
    names = [row[0].text.split()[0] for row in table[1:]]
    assert names == list(ATLAS)
    assert len(names) >= 20
    assert len({name.split("/")[0] for name in names}) >= 12


def test_a_link_to_a_row_finds_it():
    page = PAGE.read_text(encoding="utf-8")
    for name in ATLAS:
        assert page.count(f' id="{kl_atlas.anchor(name)}"') == 1
    glossary = (PAGE.parents[1] / "book" / "glossary.html").read_text(encoding="utf-8")
    assert f'href="../notebooks/14_atlas.html#{kl_atlas.anchor("verl/k1")}"' in glossary


def test_each_row_links_to_its_lines_at_its_commit_and_to_its_chapter(table):
    chapters = {path.name[:2]: path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    for row in table[1:]:
        entry = ATLAS[row[0].text.split()[0]]
        (source,) = row[0].links
        assert re.match(rf"https://github\.com/{entry.repository}/blob/[0-9a-f]{{40}}/", source)
        assert f"/{entry.commit}/{entry.file}#L" in source
        number = f"{entry.chapter:02d}"
        assert row[-1].text.strip() == number
        # A chapter that is not written yet has no page to lead to.
        assert row[-1].links == ([f"{chapters[number]}.html"] if number in chapters else [])


def test_each_row_says_what_the_audit_finds(table):
    for row in table[1:]:
        entry = ATLAS[row[0].text.split()[0]]
        said = row[5].text.split()
        codes = [word for word in said if "_" in word or word in entry.finds["codes"]]
        assert codes == entry.finds["codes"]
        verdict = " ".join(word for word in said if word not in codes)
        assert verdict in ("agrees", "differs", "not judged")


ONE_OF_EACH = {
    (row.usage, str(row.finds["value"]), str(row.finds["gradient"])): name
    for name, row in ATLAS.items()
}


@pytest.mark.parametrize("name", sorted(ONE_OF_EACH.values()))
def test_the_verdict_is_the_audits(name):
    row = ATLAS[name]
    assert kl_atlas.agrees(row) is row.report().agrees


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"kl_qp": 1.0}, "KL(q‖p)"),
        ({"kl_qp": -1.0}, "−KL(q‖p)"),
        ({"kl_qp": -1.0, "chi2_qp": 1.0}, "χ²(q‖p) − KL(q‖p)"),
        ({"kl_qp": 1.0, "kl_pq": -1.0}, "KL(q‖p) − KL(p‖q)"),
        ({"tv": 2.0}, "2 TV(q, p)"),
        ({"kl_qp": 0.1}, "0.1 KL(q‖p)"),
        ("zero", "nothing"),
        ("unknown", "no known divergence"),
        ("not_asked", "—"),
    ],
)
def test_terms_are_written_as_a_formula(part, text):
    assert kl_atlas.written(part) == text


def test_a_chapter_that_is_not_there_is_named_and_not_linked():
    env = SimpleNamespace(found_docs={"notebooks/08_the_dictionary", "book/index"})
    there = kl_atlas.chapter_link(env, "book/x", 8, "08")
    assert there["reftarget"] == "/notebooks/08_the_dictionary"
    assert kl_atlas.chapter_link(env, "book/x", 9, "09").astext() == "09"
    assert "reftarget" not in kl_atlas.chapter_link(env, "book/x", 9, "09")


# --- what the prose says --------------------------------------------------------------------------


def three_tokens(fn, role: str = "loss"):
    """The exact expected gradient in logits on (.7, .2, .1) against (.4, .4, .2)."""
    logits = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log().requires_grad_()
    ref = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).log()
    logprob = torch.log_softmax(logits, -1)
    values = torch.stack([fn(logprob[i : i + 1], ref[i : i + 1]).sum() for i in range(3)])
    cost = values if role == "loss" else values.detach() * logprob
    (got,) = torch.autograd.grad((logprob.exp().detach() * cost).sum(), logits)
    return got


Q = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
P = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
LOG_RATIO = (Q / P).log()
TRUE = Q * (LOG_RATIO - (Q * LOG_RATIO).sum())  # ∇KL(q‖p) in logits
OTHER = Q - P  # ∇KL(p‖q)


def two_roles(row) -> bool:
    code = row.fn.__wrapped__.__code__ if hasattr(row.fn, "__wrapped__") else row.fn.__code__
    return code.co_varnames[: code.co_argcount] == ("logprob", "ref_logprob")


@pytest.mark.parametrize("row", [r for r in TRAINED if two_roles(r)], ids=lambda row: row.name)
def test_what_a_loss_or_reward_follows(row):
    found = row.finds["gradient"]
    got = three_tokens(row.fn, row.usage)
    if found == "zero":
        assert float(got.abs().max()) < 1e-7  # one works in float32
    elif isinstance(found, dict) and set(found) <= {"kl_qp", "kl_pq"}:
        expected = found.get("kl_qp", 0) * TRUE + found.get("kl_pq", 0) * OTHER
        assert torch.allclose(got, expected, atol=1e-6)
    else:
        assert not torch.allclose(got, TRUE, rtol=1e-2)


def test_losses_of_the_other_direction_print_the_right_number():
    """All rows that follow KL(p‖q) have KL(q‖p) as their mean: a log cannot tell."""
    other = [row for row in TRAINED if row.finds["gradient"] == {"kl_pq": 1.0}]
    assert len(other) >= 5
    exact = float((Q * LOG_RATIO).sum())
    for row in other:
        assert row.finds["value"] == {"kl_qp": 1.0}
        assert row.finds["mean"] == pytest.approx(exact, rel=1e-5)


def test_rewards_that_follow_kl_are_multiples_of_k1():
    rewards = [row for row in TRAINED if row.usage == "reward"]
    right = [row for row in rewards if set(row.finds["gradient"]) == {"kl_qp"}]
    assert 0 < len(right) < len(rewards)
    l = torch.linspace(-2, 2, 9, dtype=torch.float64)
    for row in right:
        one = torch.ones(9, 1, dtype=torch.float64)
        roles = row.fn.__code__.co_varnames[: row.fn.__code__.co_argcount]
        args = {"logprob": l[:, None] - 3, "ref_logprob": -3 * one, "mask": one}
        each = [row.fn(*(args[r][i : i + 1] for r in roles)).sum().double() for i in range(9)]
        slope = row.finds["gradient"]["kl_qp"]
        assert torch.allclose(torch.stack(each), slope * l, atol=1e-6)


def test_one_batch_gives_numbers_of_both_signs_and_of_the_length_of_a_sequence():
    """Two sequences of 10 and 100 tokens with k1 of .2 and .02 each, as in chapter 11."""
    mask = torch.zeros(2, 100, dtype=torch.float64)
    mask[0, :10], mask[1] = 1, 1
    k1 = torch.tensor([[0.2], [0.02]], dtype=torch.float64) * mask
    given = {"mask": mask}
    for name, expected in {
        "verl/rollout_corr_kl": 4 / 110,
        "verl/reward_kl_penalty": 0.11,
        "lm-human-preferences/objective_kl": 2.0,
        "areal/approx_kl": -4 / 110,
        "cleanrl/old_approx_kl": 0.02,
    }.items():
        row = ATLAS[name]
        roles = row.fn.__wrapped__.__code__ if hasattr(row.fn, "__wrapped__") else row.fn.__code__
        for role in roles.co_varnames[: roles.co_argcount]:
            if role != "mask":
                given[role] = k1 - 5 if role == row.samples else torch.full_like(k1, -5.0)
        args = [given[role] for role in roles.co_varnames[: roles.co_argcount]]
        assert float(row.fn(*args)) == pytest.approx(expected, rel=1e-6), name


def test_samples_of_the_new_policy_turn_the_ratio_over():
    """Exercise: stable-baselines3's approx_kl on samples of its first argument."""
    fn = ATLAS["stable-baselines3/approx_kl"].fn
    each = [float(fn(Q[i : i + 1].log()[None], P[i : i + 1].log()[None])) for i in range(3)]
    chi2 = float((Q**2 / P).sum()) - 1
    expected = chi2 - float((Q * LOG_RATIO).sum())
    assert float(Q @ torch.tensor(each, dtype=torch.float64)) == pytest.approx(expected, rel=1e-9)
