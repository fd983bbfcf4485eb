"""The numbers of the field guide's sheet, as the built page has them, against sums from here."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

import kllab
from kllab import K1, K3, exact, penalties, runtime, sequences, training

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "_build" / "html" / "notebooks" / "16_field_guide.html"
GLOSSARY = ROOT / "_build" / "html" / "book" / "glossary.html"
Q, P, OLD = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2]), np.array([0.5, 0.3, 0.2])
RARE = np.array([0.9999, 0.0001]), np.array([0.9, 0.1])


def softmax_gradient(weights, coefficient, q=Q):
    """Σ weights · coefficient · ∇log q(x) in logits."""
    each = weights * coefficient
    return each - q * each.sum()


def off(got, wanted):
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


TRUE = softmax_gradient(Q, np.log(Q / P))


# --- numbers --------------------------------------------------------------------------------------


VOID = {"img", "br", "col", "hr", "input", "wbr", "meta", "link"}


class Sheet(HTMLParser):
    """The rows of the tables in the sheet: cells' texts and links."""

    def __init__(self, html: str):
        super().__init__()
        self.rows: list[list[list]] = []
        self.depth = 0
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if self.depth and tag not in VOID:
            self.depth += 1
        elif tag == "div" and "sheet" in (attributes.get("class") or "").split():
            self.depth = 1
        if self.depth and tag == "tr":
            self.rows.append([])
        elif self.depth and tag in ("td", "th"):
            self.rows[-1].append(["", []])
        elif self.depth and tag == "a" and self.rows:
            self.rows[-1][-1][1].append(attributes["href"])

    def handle_endtag(self, tag):
        if self.depth and tag not in VOID:
            self.depth -= 1

    def handle_data(self, data):
        if self.depth and self.rows and self.rows[-1]:
            self.rows[-1][-1][0] += data


@pytest.fixture(scope="module")
def rows():
    assert PAGE.is_file(), "no built book: run `make book` first"
    found = Sheet(PAGE.read_text(encoding="utf-8")).rows
    return [row for row in found if row[0][0].strip() != "If"]


def reason(rows, start: str) -> str:
    """The third cell of the row whose first cell starts so, in one line."""
    (row,) = [row for row in rows if row[0][0].strip().startswith(start)]
    return " ".join(row[2][0].split())


def test_the_noise_of_k1_and_k3(rows):
    crossing = brentq(lambda s: math.expm1(s) - 2 * s, 0.5, 2.0) / 2
    q, p = RARE
    sd = [
        math.sqrt((q * v**2).sum() - (q * v).sum() ** 2)
        for v in (-np.log(p / q), p / q - 1 - np.log(p / q))
    ]
    text = reason(rows, "you log the distance")
    assert f"a KL of {crossing:.2f} " in text
    assert f"{sd[1] / sd[0]:.0f} times as noisy" in text


def test_the_spread_of_a_sequence_value(rows):
    """1,000 Gaussian tokens with a shift of .1: Var(k3) = e^{μ²} − 1 − μ² each."""
    total = math.sqrt(1_000 * (math.expm1(0.01) - 0.01))
    whole = math.sqrt(math.expm1(10) - 10)
    assert f"{whole / total:.0f} times the spread" in reason(rows, "you log per response")


def test_one_batch_in_four_ways(rows):
    """10 tokens of .2 and 100 of .02 in a grid of 2 by 100."""
    ways = 4 / 110, (0.2 + 0.02) / 2, 4 / 2, 4 / 200
    text = "{:.3f}, {:.2f}, {:.1f}, {:.2f}".format(*ways)
    assert text in reason(rows, "you compare logs")


def test_stale_samples(rows):
    l, w = np.log(Q / P), Q / OLD
    r = P / Q
    plain = {
        "k2": off(softmax_gradient(OLD, l), TRUE),
        "k3": off(softmax_gradient(OLD, 1 - r), TRUE),
        "constant": off(softmax_gradient(OLD * w, 1 - r), TRUE),
        "weighted": off(softmax_gradient(OLD * w, l), TRUE),
    }
    assert plain["weighted"] < 1e-12
    text = reason(rows, "the samples are an older")
    assert f"{plain['k2']:.0%} (k2) and {plain['k3']:.0%} (k3)" in text
    assert f"{plain['constant']:.0%} with a constant" in text


def test_the_partial_gradient(rows):
    """The printed table of chapter 11: .031 and .300 at logit noise .1 and 1."""
    assert "3% near the reference, 30% farther off" in reason(rows, "you sum token losses")
    tree, errors = sequences.Tree(V=3, T=3), {0.1: [], 1.0: []}
    for noise, found in errors.items():
        for seed in range(20):
            rng = np.random.default_rng(seed)
            ref = rng.normal(size=(tree.rows, 3))
            logits = torch.tensor(ref + noise * rng.normal(size=(tree.rows, 3)))
            logits.requires_grad_()
            log_q = tree.log_probs(logits)  # of whole sequences
            kl = (log_q.exp() * (log_q - tree.log_probs(torch.tensor(ref)))).sum()
            (true,) = torch.autograd.grad(kl, logits)
            token = sequences.expected_gradient(
                tree, kllab.K2, logits.detach(), torch.tensor(ref), usage="loss"
            )
            found.append(off(token.numpy(), true.numpy()))
    assert np.mean(errors[0.1]) == pytest.approx(0.031, abs=5e-4)
    assert np.mean(errors[1.0]) == pytest.approx(0.300, abs=5e-4)


def test_the_clamp(rows):
    edge = brentq(lambda d: math.exp(d) - 1 - d - 10, 1, 5)
    q, p = RARE
    k3 = p / q - 1 - np.log(p / q)
    lost = 1 - (q * k3.clip(-10, 10)).sum() / (q * k3).sum()
    text = reason(rows, "exp overflows")
    assert f"log r = {edge:.2f}" in text.replace(r"\(", "").replace(r"\)", "").replace("\\", "")
    assert f"can hide {lost:.0%}" in text


def test_noise_between_engines(rows):
    assert f"adds {0.05**2 / 2:.5f} to k3" in reason(rows, "two engines").replace(r"\(", "")


def test_rounds_from_the_last_policy(rows):
    reward, beta = np.array([1.0, 0.0, 0.5]), 0.5

    def optimum(p, b):
        tilted = p * np.exp(reward / b)
        return tilted / tilted.sum()

    def kl(q):
        return float((q * np.log(q / P)).sum())

    now = P
    for _ in range(4):
        now = optimum(now, beta)
    assert np.allclose(now, optimum(P, beta / 4))
    text = reason(rows, "you train")
    assert f"KL {kl(now):.2f} from the first" in text
    assert f"one round: {kl(optimum(P, beta)):.2f}" in text
    ours = training.bandit(torch.tensor(P).log(), torch.tensor(reward), beta).log_optimum
    assert np.allclose(ours.exp().numpy(), optimum(P, beta))


def test_the_ruler(rows):
    text = ", ".join(f"{math.log(n) - (n - 1) / n:.2f} for {n}" for n in (4, 16, 64))
    assert text in reason(rows, "you want a number")


# --- what the rows advise -------------------------------------------------------------------------


def sampled(penalty, n, seed):
    """Mean gradient in logits over n samples of Q, and its standard error."""
    draw = runtime.generator("test 16", seed)
    q, p = torch.tensor(Q).log(), torch.tensor(P).log()
    seen = torch.multinomial(q.exp(), n, replacement=True, generator=draw)
    logprob = q[seen].clone().requires_grad_()
    value = penalty(logprob, p[seen])
    value = value if value.requires_grad else value * logprob
    (weight,) = torch.autograd.grad(value.sum(), logprob)
    score = torch.nn.functional.one_hot(seen, 3) - q.exp()
    each = weight[:, None] * score
    return each.mean(0).numpy(), each.std(0).numpy() / math.sqrt(n)


ADVISED = (penalties.k1_in_reward, penalties.k2_in_loss, penalties.k3_with_k2_gradient)


@pytest.mark.parametrize("penalty", ADVISED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", range(10))
def test_what_is_advised_follows_kl_on_samples(penalty, seed):
    mean, error = sampled(penalty, 20_000, seed)
    assert (np.abs(mean - TRUE) < 5 * error).all()


def test_what_is_not_advised_is_seen_on_as_many_samples():
    for seed in range(10):
        mean, error = sampled(lambda a, b: K3(b - a), 100_000, seed)
        assert (np.abs(mean - TRUE) > 5 * error).any()
        mean, error = sampled(lambda a, b: a - b, 20_000, seed)
        assert (np.abs(mean) < 5 * error).all()  # k1 as a loss: nothing
        assert (np.abs(mean - TRUE) > 5 * error).any()


def test_k3_in_the_reward_points_uphill_on_two_tokens():
    q, p = np.array([0.8, 0.2]), np.array([0.5, 0.5])
    r = p / q
    uphill = softmax_gradient(q, r - 1 - np.log(r), q)
    assert uphill @ softmax_gradient(q, -np.log(r), q) < 0


def test_k1_can_be_quieter_below_the_crossing():
    q, p = torch.tensor([0.6, 0.38, 0.02]).double(), torch.tensor([0.5, 0.3, 0.2]).double()
    pair = kllab.pairs.categorical((q / q.sum()).log(), (p / p.sum()).log())
    assert exact.target_value("kl_qp", pair) < 0.2
    assert exact.moments(K1, pair).sd < exact.moments(K3, pair).sd


# --- the sheet and the glossary as pages ----------------------------------------------------------


def test_every_row_leads_to_its_proof(rows):
    chapters = {path.name[:2]: f"{path.stem}.html" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert len(rows) >= 15
    for first, _, _, see in rows:
        numbers = re.findall(r"\d\d", see[0])
        assert numbers or see[1] == ["#sec-16-much"], first[0]
        for number in numbers:
            if number in chapters:
                assert chapters[number] in see[1], f"{first[0]}: {number} is not a link"


def test_the_sheet_names_every_penalty_of_the_package(rows):
    links = {link for row in rows for cell in row for link in cell[1]}
    for name in (*(f.__name__ for f in ADVISED), "weighted_k3", "full_kl", "clean"):
        assert any(link.endswith(f"#kllab.penalties.{name}") for link in links), name


def test_the_sheet_is_the_source_of_no_typed_number():
    """Digits of the column "because" are computed, or belong to a symbol or an assumption."""
    notebook = json.loads((ROOT / "notebooks" / "16_field_guide.ipynb").read_text("utf-8"))
    (cell,) = [c for c in notebook["cells"] if c["id"] == "md-sheet-table"]
    text = re.sub(r"\{eval\}`[^`]+`|\[[^\]]*\]\([^)]*\)|`[^`]*`", "", "".join(cell["source"]))
    typed = set(re.findall(r"(?<![\w.])\d+\.\d+", text))
    assert typed == {"0.05"}  # the noise that the row supposes


def test_each_question_is_answered_somewhere():
    assert GLOSSARY.is_file(), "no built book: run `make book` first"
    html = GLOSSARY.read_text(encoding="utf-8")
    questions = html[html.index('id="questions-readers-ask"') :]
    body = re.findall(r"<tr.*?</tr>", questions, re.DOTALL)[1:]
    assert len(body) == 15
    for row in body:
        cells = re.findall(r"<td>(.*?)</td>", row, re.DOTALL)
        assert len(cells) == 3
        chapters = set(re.findall(r"chapter (\d\d)", cells[2]))
        assert chapters
        links = set(re.findall(r'href="\.\./notebooks/(\d\d)_\w+\.html"', cells[2]))
        there = {path.name[:2] for path in (ROOT / "notebooks").glob("*.ipynb")}
        assert links == chapters & there


def test_the_glossary_says_of_a_row_what_the_audit_finds():
    import kl_atlas

    html = GLOSSARY.read_text(encoding="utf-8")
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html)).replace("&amp;", "&")
    source = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    named = re.findall(r"\{atlas-row\}`([^`]+)`", source)
    assert len(named) > 25
    for name in named:
        finds = kllab.ATLAS[name].finds
        assert f"{name} estimates {kl_atlas.written(finds['value'])}" in text, name
