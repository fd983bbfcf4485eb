"""Browser figures as seen from Python: their HTML, their fixtures, their palette."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from math import log
from pathlib import Path

import pytest
import torch
from make_explorable_fixtures import (
    AVERAGES,
    FOLDER,
    FORMULAS,
    arithmetic,
    control_variates,
    formulas,
    generator,
    law_of_average,
    prefixes,
    simplex_flows,
    simplex_gradients,
    simplex_targets,
    vocabularies,
)

import kllab
from kllab import InputError, explorables, figures
from kllab.explorables import _dictionary, _element, _prefixes, _simplex_flow, _vocabulary
from kllab.explorables._picture import ESTIMATORS

ROOT = Path(__file__).parents[1]
# Without a real picture, which takes half a second.
PLAIN = _element.explorable(
    "plain", {"mean": 1.0}, '<img src="data:," alt="a picture">', heights=("80rem", "40rem")
)


def stored(name: str):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


class Outline(HTMLParser):
    """Tags with their attributes, in order, and the text between them."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(autouse=True)
def _reader(monkeypatch):
    """A live notebook without a published page, until a test says otherwise."""
    monkeypatch.delenv("KLLAB_BOOK", raising=False)
    monkeypatch.delenv("KLLAB_BOOK_URL", raising=False)


@pytest.fixture
def script(monkeypatch, tmp_path) -> Path:
    path = tmp_path / "explorables.js"
    path.write_text("/* the module */", encoding="utf-8")
    monkeypatch.setattr(_element, "SCRIPT", path)
    return path


@pytest.fixture
def no_script(monkeypatch, tmp_path):
    monkeypatch.setattr(_element, "SCRIPT", tmp_path / "absent.js")


def test_the_book_gets_the_element_alone(monkeypatch, script):
    monkeypatch.setenv("KLLAB_BOOK", "1")
    outline = Outline(explorables.two_gaussians(mean=1.0, scale=1.0, n=4)._repr_html_())
    (element,) = outline.all("kl-two-gaussians")
    style = element.pop("style")
    assert element == {
        "mean": "1",
        "scale": "1",
        "n": "4",
        "seed": "1",
        "runs": "200",
        "show": "k1+k2+k3",
    }
    assert "min-height" in style
    assert not outline.all("script")
    (image,) = outline.all("img")
    assert "exact distributions" in image["alt"]
    assert image["src"].startswith("data:image/svg+xml;base64,")
    assert "k2 is 25 % too high" in outline.text


def test_live_the_module_travels_with_the_output(script):
    outline = Outline(PLAIN._repr_html_())
    assert outline.all("script") == [{"type": "module"}]
    assert "/* the module */" in outline.text
    assert "page" not in outline.all("kl-plain")[0]


def test_live_links_lead_to_the_published_page(monkeypatch, script):
    monkeypatch.setenv("KLLAB_BOOK_URL", 'https://example.org/book?a="b"')
    html = PLAIN._repr_html_()
    (element,) = Outline(html).all("kl-plain")
    assert element["page"] == 'https://example.org/book?a="b"'


def test_without_the_script_the_picture_stays(no_script):
    outline = Outline(PLAIN._repr_html_())
    assert not outline.all("kl-plain") + outline.all("script") + outline.all("a")
    assert outline.all("img")
    assert "not built" in outline.text


def test_without_the_script_a_sentence_links_to_the_page(monkeypatch, no_script):
    monkeypatch.setenv("KLLAB_BOOK_URL", "https://example.org/book/02.html")
    outline = Outline(PLAIN._repr_html_())
    assert outline.all("a") == [{"href": "https://example.org/book/02.html"}]


@pytest.mark.parametrize("address", ["javascript:alert(1)", "file:///etc/passwd", "02.html"])
def test_only_web_addresses_become_links(monkeypatch, no_script, address):
    monkeypatch.setenv("KLLAB_BOOK_URL", address)
    html = PLAIN._repr_html_()
    assert not Outline(html).all("a")
    assert address not in html


def test_the_picture_is_a_valid_svg_and_the_same_every_time():
    first, second = (explorables.two_gaussians().fallback for _ in range(2))
    assert first == second
    data = base64.b64decode(re.search(r'base64,([^"]+)"', first)[1]).decode()
    assert data.startswith("<?xml")
    assert data.rstrip().endswith("</svg>")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "k1 falls below 0 in 10.4 % of runs; k2 is 35 % too high"),
        ({"mean": 0.0, "scale": 1.0}, "p is q"),
        ({"mean": 0.0, "scale": 1.6}, "its variance is infinite"),
        ({"mean": 0.0, "scale": 1.4}, "k3 is right on average and never below 0"),
        ({"mean": 0.0, "scale": 1.6, "n": 256}, "k2 is 36 % too low"),
        ({"n": 1, "show": ("k1",)}, "Averages of one sample"),
    ],
)
def test_the_caption_says_what_the_picture_shows(settings, words):
    assert words in Outline(explorables.two_gaussians(**settings).fallback).text


def test_the_element_reserves_the_height_of_one_column_or_of_two():
    assert "clamp(40rem,(650px - 100vw)*9999,80rem)" in PLAIN.element()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("mean", 2.6),
        ("mean", float("nan")),
        ("mean", "1"),
        ("scale", 0.0),
        ("scale", True),
        ("n", 0),
        ("n", 12),
        ("n", 2048),
        ("n", 16.0),
        ("seed", -1),
        ("seed", 2**32),
        ("runs", 1001),
        ("show", ()),
        ("show", ("k1", "k4")),
    ],
)
def test_what_the_figure_cannot_show_is_refused(argument, value):
    with pytest.raises(InputError) as error:
        explorables.two_gaussians(**{argument: value})
    assert error.value.argument == argument


def test_tangent_line_brings_its_state_and_its_picture(monkeypatch):
    monkeypatch.setenv("KLLAB_BOOK", "1")
    outline = Outline(explorables.tangent_line(lam=0.25, r=0.5, mean=0.5)._repr_html_())
    (element,) = outline.all("kl-tangent-line")
    assert "min-height" in element.pop("style")
    assert element == {"f": "kl_qp", "mean": "0.5", "lambda": "0.25", "r": "0.5", "seed": "1"}
    (image,) = outline.all("img")
    assert "a parabola" in image["alt"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        # k3(2.5) = 1.5 − log 2.5; Var = e − 2 with the tangent, 1 − 1/(e − 1) at λ* = 1/(e − 1).
        ({}, "0.584 above the line of λ = 1."),
        ({}, "is 0.718 with the tangent, λ = 1; at λ* = 0.582 it is 0.418"),
        ({"lam": "best", "r": 1.5}, "0.114 below the line of λ = 0.582"),
        ({"f": "chi2_qp", "r": 0.5}, "at λ* = 1 it is 11."),
        ({"f": "jeffreys", "lam": 0.0, "r": 2.0}, "0.693 above"),
        ({"f": "chi2_pq"}, "at λ* = −8.11 it is 221"),
    ],
)
def test_the_caption_of_tangent_line(settings, words):
    assert words in Outline(explorables.tangent_line(**settings).fallback).text


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("f", "alpha"),
        ("f", None),
        ("mean", 0.0),
        ("mean", 2.1),
        ("lam", "zero"),
        ("lam", float("inf")),
        ("r", 0.0),
        ("r", 4.5),
        ("seed", 0.5),
    ],
)
def test_what_tangent_line_cannot_show_is_refused(argument, value):
    with pytest.raises(InputError) as error:
        explorables.tangent_line(**{argument: value})
    assert error.value.argument == argument


def test_vocabulary_brings_its_state_and_its_picture(monkeypatch):
    monkeypatch.setenv("KLLAB_BOOK", "1")
    outline = Outline(explorables.vocabulary(top_p=0.95, n=1024, seed=2**32 - 1)._repr_html_())
    (element,) = outline.all("kl-vocabulary")
    assert "min-height" in element.pop("style")
    assert element == {
        "temperature": "0.6",
        "noise": "0.3",
        "top": "0.95",
        "n": "1024",
        "seed": "4294967295",
        "sample": "1",
    }
    (image,) = outline.all("img")
    assert "each octave" in image["alt"]


@pytest.mark.parametrize("row", stored("vocabularies"), ids=lambda row: f"{row['kl']:.3g}")
def test_the_picture_of_vocabulary_has_the_pair_of_the_browser(row):
    """The sums of the fixture, which the figure in the browser reproduces, from kllab's pair."""
    pair = _vocabulary._pair(row["temperature"], row["noise"], row["top"])
    assert int((pair.log_q > -torch.inf).sum()) == row["tokens"]
    for name, estimator in ESTIMATORS.items():
        ours = kllab.exact.moments(estimator, pair)
        assert ours.mean == pytest.approx(row[name]["mean"], rel=1e-9)
        assert ours.variance == pytest.approx(row[name]["variance"], rel=1e-8, abs=1e-20)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {},
            "0.10 % of its samples; their part of the variance is 5 % of k1’s, 37 % of k2’s, 95 %",
        ),
        (
            {"temperature": 1.0, "noise": 0.0, "top_p": 0.9},
            "nothing varies. p(supp q) − 1 is −0.1,",
        ),
        ({"temperature": 1.0, "noise": 0.0}, "KL(q‖p) is 0 nats"),
        ({"temperature": 0.8, "top_p": 0.95}, "p(supp q) − 1 is −0.211"),
    ],
)
def test_the_caption_of_vocabulary(settings, words):
    text = Outline(explorables.vocabulary(**settings).fallback).text
    assert words in text
    assert ("supp q" in text) == ("top_p" in settings)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("temperature", 0.4),
        ("noise", -0.1),
        ("noise", float("nan")),
        ("top_p", 0.4),
        ("top_p", 1.01),
        ("n", 48),
        ("n", 8192),
        ("seed", -1),
        ("sample", 0),
        ("sample", True),
    ],
)
def test_what_vocabulary_cannot_show_is_refused(argument, value):
    with pytest.raises(InputError) as error:
        explorables.vocabulary(**{argument: value})
    assert error.value.argument == argument


def test_simplex_flow_brings_its_state_and_its_picture(monkeypatch):
    monkeypatch.setenv("KLLAB_BOOK", "1")
    figure = explorables.simplex_flow(
        penalty="k2", usage="loss", policy=(0.1, 0.3, 0.6), reward=(1.0, 0.0, -0.5), beta=0.8
    )
    outline = Outline(figure._repr_html_())
    (element,) = outline.all("kl-simplex-flow")
    assert "min-height" in element.pop("style")
    assert element == {
        "penalty": "k2",
        "usage": "loss",
        "q": "0.1+0.3+0.6",
        "p": "0.4+0.4+0.2",
        "reward": "1+0+-0.5",
        "beta": "0.8",
    }
    (image,) = outline.all("img")
    assert "gradient of −E[R] + β KL(q‖p)" in image["alt"]


@pytest.mark.parametrize("row", stored("simplex_gradients"), ids=lambda row: row["penalty"])
def test_the_picture_of_simplex_flow_has_the_steps_of_the_browser(row):
    own, true = _simplex_flow._flows(row["penalty"], row["usage"], row["p"], None, 0.5)
    log_q = torch.tensor(row["q"], dtype=torch.float64).log()
    # |log r| is rounded at its kink, by 1e-4.
    assert own.gradient(log_q).tolist() == pytest.approx(row["gradient"], rel=1e-6, abs=1e-12)
    wanted = next(
        other["gradient"]
        for other in stored("simplex_gradients")
        if (other["penalty"], other["usage"], other["q"]) == ("k2", "loss", row["q"])
    )
    assert true.gradient(log_q).tolist() == pytest.approx(wanted, rel=1e-12)
    h = 1e-6
    ahead, behind = (torch.softmax(log_q - sign * h * own.gradient(log_q), -1) for sign in (1, -1))
    assert own.step(log_q).tolist() == pytest.approx(
        ((ahead - behind) / (2 * h)).tolist(), abs=1e-8
    )


@pytest.mark.parametrize(
    "case",
    [
        (
            {},
            "k3 in the reward follows KL(q‖p) − KL(p‖q).",
            "At q = (0.70, 0.20, 0.10) the gradient is (−0.037, 0.025, 0.012), and the true one "
            "(0.263, −0.175, −0.088).",
            # KL of (1, 0, 0) from (.4, .4, .2) is −log .4.
            "ends at (1.00, 0.00, 0.00), where KL(q‖p) is 0.916; the true gradient leads to p =",
        ),
        (
            {"penalty": "k1", "usage": "loss"},
            "k1 as loss has no expected gradient.",
            "the gradient is (0.000, 0.000, 0.000), and the true one (0.263",
            "ends at (0.70, 0.20, 0.10)",
        ),
        (
            {"penalty": "abs", "usage": "loss"},
            "|log r| as loss follows 2 TV(q, p).",
            # q times (1, −1, −1) less its mean, which is .4.
            "is (0.420, −0.280, −0.140)",
            "ends at (0.40, 0.40, 0.20), where KL(q‖p) is 0.000",
        ),
        (
            {"penalty": "flipped", "usage": "loss", "reward": (1.0, 0.0, -0.5)},
            "k3 upside down as loss follows 0.5 χ²(q‖p).",
            # q/p is linear in R where q > 0, and gives up C.
            "ends at (0.90, 0.10, 0.00)",
            # π* ∝ p e^(2R): .4 e², .4 and .2 e^−1, over their sum 3.4292.
            "the true gradient leads to π* = (0.86, 0.12, 0.02)",
        ),
        ({"penalty": "k2"}, "k2 in the reward follows no known divergence."),
    ],
    ids=lambda case: case[0].get("penalty", "k3"),
)
def test_the_caption_of_simplex_flow(case):
    settings, *sentences = case
    text = Outline(explorables.simplex_flow(**settings).fallback).text
    for words in sentences:
        assert words in text


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("penalty", "k4"),
        ("usage", "rewards"),
        ("policy", (0.5, 0.5)),
        ("policy", (0.5, 0.5, 0.0)),
        ("policy", (0.5, 0.3, 0.1)),
        ("policy", "0.7+0.2+0.1"),
        ("reference", (0.5, 0.25, float("nan"))),
        ("reference", None),
        ("reward", (1.0, 0.0, 1.5)),
        ("reward", (True, 0.0, 0.0)),
        ("beta", 0.1),
        ("beta", 2.5),
    ],
)
def test_what_simplex_flow_cannot_show_is_refused(argument, value):
    with pytest.raises(InputError) as error:
        explorables.simplex_flow(**{argument: value})
    assert error.value.argument == argument


def test_prefixes_brings_its_state_and_its_picture(monkeypatch):
    monkeypatch.setenv("KLLAB_BOOK", "1")
    figure = explorables.prefixes(loss="k3", q="token", q_after=(0.25, 0.7), p_after=(0.02, 0.98))
    outline = Outline(figure._repr_html_())
    (element,) = outline.all("kl-prefixes")
    assert "min-height" in element.pop("style")
    expected = {"loss": "k3", "q": "token", "qa": "0.25", "qb": "0.7"}
    assert element == expected | {"p": "0.6", "pa": "0.02", "pb": "0.98"}
    (image,) = outline.all("img")
    assert "what the loss of k3 keeps of the gradient" in image["alt"]


@pytest.mark.parametrize("loss", ["k2", "k3", "kl"])
@pytest.mark.parametrize("row", stored("prefixes"), ids=lambda row: f"{row['kl']:.3g}")
def test_the_picture_of_prefixes_has_the_gradients_of_the_browser(row, loss):
    """Parts and best first token from kllab are those of the fixture, by sums over sequences."""
    logits, ref = (_prefixes._logits(*row["chances"][i : i + 3]) for i in (0, 3))
    kept, full = _prefixes._parts(loss, logits, ref)
    exact = {"rel": 1e-12, "abs": 1e-13}
    assert kept.tolist() == pytest.approx(row["kept"]["k3" if loss == "k3" else "k2"], **exact)
    assert full.tolist() == pytest.approx(row["sum"], **exact)
    assert float(_prefixes._best(logits, ref)[0].exp()) == pytest.approx(row["least"]["q"])


@pytest.mark.parametrize(
    ("loss", "own"),
    [
        ("k2", lambda q, p: q * log(q / p) + (1 - q) * log((1 - q) / (1 - p))),
        ("k3", lambda q, p: p * log(p / q) + (1 - p) * log((1 - p) / (1 - q))),
    ],
)
def test_the_curve_of_the_loss_in_the_picture_of_prefixes(loss, own):
    ref = _prefixes._logits(0.6, 0.2, 0.5)
    for q in (0.1, 0.9):
        drawn = _prefixes._own(loss, _prefixes._logits(q)[0], ref)
        assert float(drawn) == pytest.approx(own(q, 0.6), rel=1e-12)


# With q(A) = ½: kept ¼ log(p(B)/p(A)), and the KL after A is .9 log 4.5 − .1 log 8, after B
# .4 log .8 + .6 log 1.2; the dropped term is ¼ of their difference.
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "k2 as a loss on tokens keeps −0.101 and leaves out +0.281 of a gradient of +0.180"),
        ({}, "q(A) = p(A) = 0.6, where KL(Q‖P) is 0.695 nats; the least is 0.540, at q(A) = 0.327"),
        ({"loss": "k3"}, "k3 as a loss on tokens keeps −0.100 and leaves out +0.280 of"),
        ({"loss": "kl", "q": "token"}, "the exact KL as a loss on tokens keeps 0 and leaves out"),
        ({"q": "least"}, "keeps −0.248 and leaves out +0.248 of a gradient of 0."),
        ({"q_after": (0.2, 0.5)}, "keeps −0.101 and leaves out 0 of a gradient of −0.101"),
        ({"q": "token", "q_after": (0.2, 0.5)}, "keeps 0 and leaves out 0 of a gradient of 0"),
    ],
)
def test_the_caption_of_prefixes(settings, words):
    assert words in Outline(explorables.prefixes(**settings).fallback).text


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("loss", "k1"),
        ("loss", None),
        ("q", 0.0),
        ("q", "most"),
        ("q_after", (0.5, 0.99)),
        ("q_after", (0.5,)),
        ("q_after", 0.5),
        ("p", "token"),
        ("p", float("nan")),
        ("p_after", (True, 0.5)),
    ],
)
def test_what_prefixes_cannot_show_is_refused(argument, value):
    with pytest.raises(InputError) as error:
        explorables.prefixes(**{argument: value})
    assert error.value.argument == argument


def test_dictionary_brings_its_state_and_its_picture(monkeypatch):
    monkeypatch.setenv("KLLAB_BOOK", "1")
    html = explorables.dictionary(formula="max(l, 0)", usage="both", log_r=-0.5)._repr_html_()
    (element,) = Outline(html).all("kl-dictionary")
    assert "min-height" in element.pop("style")
    assert element == {"formula": "max(l, 0)", "usage": "both", "l": "-0.5"}
    (image,) = Outline(html).all("img")
    assert "the value of max(l, 0) against log r" in image["alt"]
    assert "as a loss and as a reward" in image["alt"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_the_function_that_is_written_by_hand(text):
    """Values and slopes, off the places where a slope jumps."""
    log_r = torch.linspace(-3.1, 3.2, 50, dtype=torch.float64)
    both = []
    for fn in (_dictionary.penalty_of(text), FORMULAS[text]):
        leaf = log_r.clone().requires_grad_()
        value = fn(leaf)
        slope = torch.zeros_like(leaf)
        if value.requires_grad:
            (slope,) = torch.autograd.grad(value.sum(), leaf, materialize_grads=True)
        both.append((value.detach(), slope))
    for ours, by_hand in zip(*both, strict=True):
        assert torch.allclose(ours, by_hand, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("-l^2", lambda l: -(l**2)),
        ("2^-l^2", lambda l: 2 ** -(l**2)),
        ("2^3^2 + 0*l", lambda l: 512 + 0 * l),
        ("e^l/pi**2", lambda l: l.exp() / torch.pi**2),
        ("min(max(+l, -1, k1/2), 1)", lambda l: l.clamp(-1, 1).maximum(-l / 2).clamp(max=1)),
        ("log1p(expm1(l)) - log(r)", lambda l: 0 * l),
        (" 7 ", lambda l: torch.full_like(l, 7)),
    ],
)
def test_a_formula_binds_as_on_paper(text, own):
    log_r = torch.tensor([[-1.3, 0.4], [1.1, 2.0]], dtype=torch.float64)
    value = _dictionary.penalty_of(text)(log_r)
    assert value.shape == log_r.shape
    assert torch.allclose(value, own(log_r), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "The mean is KL(q‖p); as a loss, the gradient is that of KL(p‖q), for log r"),
        # q − p, and q(log(q/p) − KL(q‖p)) with KL(q‖p) = .7 log 1.75 − .3 log 2 = .1838.
        ({}, "is (0.300, −0.200, −0.100) and that of KL(q‖p) (0.263, −0.175, −0.088)"),
        (
            {"formula": "k3", "usage": "reward"},
            "KL(q‖p) − KL(p‖q), for log r from −3 to 3; f is not",
        ),
        ({"formula": "-l"}, "there is no expected gradient, for log r from −3 to 3. With"),
        (
            {"formula": "abs(l)"},
            "no sum of known divergences; as a loss, the gradient is that of 2 TV",
        ),
        ({"formula": "clamp(k3, -10, 10)"}, "for log r from −3 to 2.61; f is convex"),
        ({"formula": "3 + 0*l", "usage": "both"}, "The mean is the same for every pair"),
        (
            {"formula": "l^4"},
            "that of no sum of known divergences, for log r from −3 to 3; f is convex",
        ),
        ({"formula": "exp(-l) + l", "log_r": -3}, "The mean is χ²(q‖p) − KL(q‖p) + 1; as a loss"),
    ],
)
def test_the_caption_of_dictionary(settings, words):
    assert words in Outline(explorables.dictionary(**settings).fallback).text


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(
            ("formula", text)
            for text in ("", " ", "x", "\uff4c", "l.real", "open(1)", "l if l else l", "not l")
        ),
        *(
            ("formula", text)
            for text in ("exp", "exp()", "exp(l, l)", "max(l)", "clamp(l, 1)", "f(x=1)")
        ),
        *(
            ("formula", text)
            for text in ("1j", "0x10", "1_0", "True", "1e999", "l//2", "l%2", "[l]")
        ),
        *(
            ("formula", text)
            for text in ("exp(*l)", "lambda: l", "(l:=1)", "'a'", "__import__('os')")
        ),
        *(("formula", text) for text in ("l+" * 60 + "l", "(" * 60 + "l", "l\0", 3, None)),
        ("usage", "metric"),
        ("log_r", 3.5),
        ("log_r", "1"),
    ],
)
def test_what_dictionary_cannot_show_is_refused(argument, value):
    with pytest.raises(InputError) as error:
        explorables.dictionary(**{argument: value})
    assert error.value.argument == argument


def test_a_formula_without_numbers_is_refused():
    with pytest.raises(InputError, match="formula: expected finite values"):
        explorables.dictionary(formula="log(-1 - l^2)", usage="reward")


def numbers(value):
    """A nested fixture with its numbers as pytest.approx, so that a rounding is no difference."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return pytest.approx(value, rel=1e-9, abs=2e-6) if isinstance(value, float) else value


@pytest.mark.parametrize(
    "make",
    [
        *(generator, arithmetic, control_variates, formulas, prefixes, vocabularies),
        *(simplex_gradients, simplex_flows, simplex_targets),
    ],
)
def test_fixtures_are_up_to_date(make):
    assert stored(make.__name__) == numbers(make())


def test_stored_averages_agree_with_the_package():
    """Within both stated errors: the lattice may move, the law may not."""
    rows = stored("averages")
    asked = [(*average, name) for average in AVERAGES for name in ("k1", "k2", "k3")]
    assert [(r["mean"], r["scale"], r["n"], r["estimator"]) for r in rows] == asked
    for row, case in zip(rows, asked, strict=True):
        law = law_of_average(*case)
        both = law.error + row["error"] + 1e-7
        off = max(abs(float(law.cdf(x)) - c) for x, c in zip(row["at"], row["cdf"], strict=True))
        assert off <= both, case
        shifted = law.cdf([x + 0.3 * abs(x) for x in row["at"]])
        assert max(abs(shifted - torch.tensor(row["cdf"], dtype=shifted.dtype))) > both, case


def test_the_browser_has_the_palette_of_the_book():
    theme = (ROOT / "explorables" / "kit" / "theme.js").read_text(encoding="utf-8")
    light = theme[theme.index("const LIGHT") : theme.index("const DARK")]
    for name in ("k1", "k2", "k3", "truth", "q", "p"):  # what the browser draws so far
        look = figures.LOOKS[name]
        colour = re.search(rf'\b{name}: "(#\w+)"', light)[1]
        assert colour == look.color.lower(), name
        text = re.search(rf'"{name}-text": "(#\w+)"', light)
        assert (text[1] if text else colour) == look.text.lower(), name


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "truth", "p"])
def test_the_browser_has_the_dashes_of_the_book(name):
    theme = (ROOT / "explorables" / "kit" / "theme.js").read_text(encoding="utf-8")
    pattern = re.search(rf'\b{name}: "([\d. ]+|none)"', theme[theme.index("DASHES") :])[1]
    dashes = figures.LOOKS[name].dashes
    if pattern == "none":
        assert dashes == "-"
    else:  # matplotlib counts in line widths, and a line here is 2 px wide
        assert [float(part) for part in pattern.split()] == [2 * part for part in dashes[1]]
