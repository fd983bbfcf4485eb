"""The atlas: each row is what the audit finds and exact sums give, and no mutant is."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kllab import _atlas_functions as functions
from kllab import auditor
from kllab.atlas import ATLAS, Row
from kllab.sequences import HOW

ROOT = Path(__file__).resolve().parents[1]
NAMES = sorted(ATLAS)
rows = pytest.mark.parametrize("name", NAMES)


def parameters(fn) -> list[str]:
    return list(inspect.signature(fn).parameters)


# --- what stands in a row -------------------------------------------------------------------------


def test_there_are_enough_of_different_kinds():
    def shape(fn):
        body = ast.parse(inspect.getsource(fn)).body[0].body
        return ast.dump(ast.Module(body, []))

    assert len({row.framework for row in ATLAS.values()}) >= 12
    assert len({shape(row.fn) for row in ATLAS.values()}) >= 20
    assert len({row.function for row in ATLAS.values()}) >= 40


def test_every_function_has_a_row():
    written = {
        name
        for name, fn in vars(functions).items()
        if inspect.isfunction(fn) and fn.__module__ == functions.__name__ and name[0] != "_"
    }
    assert written == {row.function for row in ATLAS.values()}


@rows
def test_a_row_says_where_when_and_what(name):
    row = ATLAS[name]
    assert row.name == name
    assert re.fullmatch(r"[a-z0-9-]+/[\w+]+", name)
    assert re.fullmatch(r"[0-9a-f]{40}", row.commit)
    assert re.fullmatch(r"\d+(-\d+)?(, \d+(-\d+)?)*", row.lines)
    for passage in row.lines.split(", "):
        first, _, last = passage.partition("-")
        assert int(first) < int(last or first) + 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", row.read)
    assert row.file.endswith(".py")
    assert 1 <= row.chapter <= 16
    for field in fields(Row):
        value = getattr(row, field.name)
        assert value != "" or field.name == "note", field.name
    lines = "line" if re.fullmatch(r"\d+", row.lines) else "lines"
    assert row.source.startswith(f"{row.repository}, {row.file}, {lines} {row.lines}, at commit ")
    place = f"https://github.com/{row.repository}/blob/{row.commit}/{row.file}#L"
    assert row.url.startswith(place)
    assert re.fullmatch(r"\d+-L\d+", row.url.removeprefix(place))
    assert row.url.removeprefix(place).startswith(re.match(r"\d+", row.lines)[0])


@rows
def test_a_row_fits_the_audit(name):
    row = ATLAS[name]
    roles = parameters(row.fn)
    assert row.usage in auditor.USAGES
    assert row.samples in roles
    assert roles[0] == "logprob"
    assert set(roles) <= {"logprob", "ref_logprob", "old_logprob", "mask"}
    assert set(row.finds) == {"value", "gradient", "mean", "codes", "aggregation"}
    assert set(row.finds["codes"]) <= set(auditor.CODES)
    assert row.finds["aggregation"] in {*HOW, "token", "mean"}


@rows
def test_a_row_is_courteous(name):
    row = ATLAS[name]
    words = " ".join([row.says, row.note, row.direction, row.placement, row.aggregation]).lower()
    assert not re.search(r"\b(wrong|bug|error|mistake|incorrect|broken|fault|fail)", words)


def test_the_rows_travel_with_the_package():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "*.toml" in data["package-data"]["kllab"]


# --- what the audit finds -------------------------------------------------------------------------


@rows
def test_the_audit_finds_what_the_row_says(name):
    assert ATLAS[name].disagreements(ATLAS[name].report()) == []


def weights(n: Tensor) -> Tensor:
    return n / n.sum()


def of_rows(fn, args) -> Tensor:
    return torch.stack([fn(*(a[i : i + 1] for a in args)) for i in range(len(args[0]))])


def regrouped(fn, how: str, masked: bool):
    """The same values per token, put together in another way."""

    @functools.wraps(fn)
    def other(*args):
        if how == "token":
            return fn(*args).sum()
        if how == "mean":
            return fn(*args) * args[0].numel()
        if not masked:
            return fn(*args) / args[0].shape[-1]
        one = of_rows(fn, [a.reshape(-1, a.shape[-1]) for a in args])
        lengths = args[-1].reshape(-1, args[-1].shape[-1]).sum(-1)
        return one.mean() if how == "token_mean" else (weights(lengths) * one).sum()

    return other


def negated(fn):
    return functools.wraps(fn)(lambda *args: -fn(*args))


def inverted(fn):
    """The ratio upside down: the first two log-probabilities exchanged."""
    return functools.wraps(fn)(lambda a, b, *rest: fn(b, a, *rest))


@rows
def test_another_sign_is_seen(name):
    row = ATLAS[name]
    assert row.disagreements(row.report(negated(row.fn)))


def value_and_gradient(fn) -> tuple[Tensor, Tensor | None]:
    g = torch.Generator().manual_seed(0)
    args = [-1 - torch.rand(3, 4, generator=g, dtype=torch.float64) for _ in parameters(fn)]
    if "mask" in parameters(fn):
        args[-1] = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).double()
    args[0].requires_grad_()
    out = fn(*args)
    if not out.requires_grad:
        return out, None
    return out.detach(), torch.autograd.grad(out.sum(), args[0])[0]


EVEN = {
    "verl/abs",
    "verl/mse",
    "trl/ppo_approxkl",
    "lm-human-preferences/approxkl",
    "nemo-rl/js_divergence_error",
    "prime-rl/kl_loss",
    "tinker-cookbook/kl_sample_train_v2",
}


@rows
def test_a_ratio_upside_down_is_seen(name):
    row = ATLAS[name]
    if name in EVEN:  # the same function: nothing is there to be seen
        one, other = value_and_gradient(row.fn), value_and_gradient(inverted(row.fn))
        assert all(a is b is None or torch.allclose(a, b) for a, b in zip(one, other, strict=True))
    else:
        assert row.disagreements(row.report(inverted(row.fn)))


@rows
def test_another_aggregation_is_seen(name):
    row = ATLAS[name]
    other = regrouped(row.fn, row.finds["aggregation"], "mask" in parameters(row.fn))
    assert row.disagreements(row.report(other))


# --- the same by exact sums -----------------------------------------------------------------------

OLD = [0.5, 0.3, 0.2]
CASES = [([0.7, 0.2, 0.1], [0.4, 0.4, 0.2]), ([0.3, 0.25, 0.45], [0.35, 0.45, 0.2])]
PLAIN = {
    "kl_qp": lambda q, p: (q * (q / p).log()).sum(),
    "kl_pq": lambda q, p: (p * (p / q).log()).sum(),
    "chi2_qp": lambda q, p: (q * q / p).sum() - 1,
    "chi2_pq": lambda q, p: (p * p / q).sum() - 1,
    "tv": lambda q, p: (q - p).abs().sum() / 2,
}


def laws(row: Row, case):
    """Logits of logprob with a gradient, and all log-probabilities by role, each (3, 1)."""
    first, second = (torch.tensor(x, dtype=torch.float64) for x in case)
    logits = first.log().requires_grad_()
    by_role = {
        "logprob": torch.log_softmax(logits, -1)[:, None],
        "ref_logprob": second.log()[:, None],
        "old_logprob": torch.tensor(OLD, dtype=torch.float64).log()[:, None],
        "mask": torch.ones(3, 1, dtype=torch.float64),
    }
    return logits, by_role


def values(row: Row, by_role) -> Tensor:
    """One value for each of the three tokens, (3,)."""
    args = [by_role[role] for role in parameters(row.fn)]
    return torch.stack([row.fn(*(a[i : i + 1] for a in args)).sum() for i in range(3)])


def divergence(row: Row, terms, by_role) -> Tensor:
    """Σ coefficient · D(q, p): q is sampled; of three, q is logprob and old only drew."""
    roles = [role for role in parameters(row.fn) if role != "mask"]
    q = row.samples if len(roles) == 2 else "logprob"
    p = next(role for role in roles if role not in (q, "old_logprob" if len(roles) == 3 else q))
    q, p = by_role[q].exp(), by_role[p].exp()
    return sum(c * PLAIN[name](q, p) for name, c in terms.items())


@pytest.mark.parametrize("case", CASES)
@rows
def test_the_value_is_that_of_an_exact_sum(name, case):
    row = ATLAS[name]
    _, by_role = laws(row, case)
    mean = (by_role[row.samples].exp()[:, 0] * values(row, by_role)).sum().detach()
    terms = row.finds["value"]
    if terms == "unknown":  # then it is not the claimed divergence, and not another one of the six
        for plain in PLAIN:
            exact = float(divergence(row, {plain: 1.0}, by_role).detach())
            assert abs(float(mean) - exact) > 1e-5 * exact
    else:
        exact = divergence(row, terms, by_role).detach()
        assert float(mean) == pytest.approx(float(exact), rel=1e-5, abs=1e-7)


@rows
def test_the_mean_on_three_tokens_is_that_of_an_exact_sum(name):
    """q = (.7, .2, .1), which is sampled, and p = (.4, .4, .2)."""
    row = ATLAS[name]
    laws_of = [role for role in parameters(row.fn) if role != "mask"]
    swapped = row.samples == laws_of[1]
    case = CASES[0][::-1] if swapped else CASES[0]
    _, by_role = laws(row, case)
    if swapped:
        by_role["old_logprob"] = by_role["ref_logprob"]
    mean = (by_role[row.samples].exp()[:, 0] * values(row, by_role)).sum().detach()
    assert row.finds["mean"] == pytest.approx(float(mean), rel=1e-5)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [n for n in NAMES if ATLAS[n].usage != "metric"])
def test_the_gradient_is_that_of_an_exact_sum(name, case):
    row = ATLAS[name]
    logits, by_role = laws(row, case)
    sampled = by_role[row.samples].exp()[:, 0].detach()
    v = values(row, by_role)
    cost = v.detach() * by_role["logprob"][:, 0] if row.usage == "reward" else v
    got = torch.autograd.grad((sampled * cost).sum(), logits, retain_graph=True)[0]

    def of(terms):
        return torch.autograd.grad(divergence(row, terms, by_role), logits, retain_graph=True)[0]

    terms = row.finds["gradient"]
    if terms == "zero":
        assert float(got.norm()) < 1e-7
    elif terms == "unknown":
        for plain in PLAIN if case is CASES[1] else ():  # the other has two ratios only
            one = of({plain: 1.0})
            assert float((got - one * (got @ one) / (one @ one)).norm()) > 1e-4 * float(got.norm())
    else:
        torch.testing.assert_close(got, of(terms), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", [n for n in NAMES if ATLAS[n].finds["aggregation"] in HOW])
def test_tokens_are_put_together_as_the_row_says(name):
    """By hand: three sequences of 4, 2 and 1 tokens, in four places."""
    row = ATLAS[name]
    g = torch.Generator().manual_seed(1)
    roles = parameters(row.fn)
    args = [-1 - torch.rand(3, 4, generator=g, dtype=torch.float64) for _ in roles]
    mask = torch.ones(3, 4, dtype=torch.float64)
    if roles[-1] == "mask":
        mask[1, 2:], mask[2, 1:] = 0, 0
        args[-1] = mask
    one = torch.ones(1, 1, dtype=torch.float64)
    token = torch.zeros(3, 4, dtype=torch.float64)
    for i, t in mask.nonzero().tolist():
        here = [one if role == "mask" else a[i : i + 1, t : t + 1]
                for role, a in zip(roles, args, strict=True)]  # fmt: skip
        token[i, t] = row.fn(*here).sum()
    sums, counts = token.sum(-1), mask.sum(-1)
    expected = {
        "token_mean": sums.sum() / counts.sum(),
        "seq_sum": sums.mean(),
        "seq_mean_token_mean": (sums / counts).mean(),
        "padded_mean": sums.sum() / 12,
    }[row.finds["aggregation"]]
    assert float(row.fn(*args)) == pytest.approx(float(expected), rel=1e-6)
