"""Browser figures in a notebook cell: in the built book, live in JupyterLab, and as a picture.

A figure is a custom element with a static picture inside.  Where the script runs, the picture gives
way to the figure; on paper, on GitHub and without scripts it stays.

- In the build of the book (``KLLAB_BOOK=1``) the page loads one script for all figures, so a cell
  emits the element alone.
- Live, the script travels with the output, as a module.
- Where the script was not built (``npm run build`` makes it), the picture stays and a sentence says
  so, with a link to the published page if ``KLLAB_BOOK_URL`` names one.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import norm

from kllab import exact, figures, pairs
from kllab.checks import InputError
from kllab.divergences import DIVERGENCES
from kllab.estimators import K1, K2, K3, with_lambda

SCRIPT = Path(__file__).parent / "static" / "explorables.js"
"""The module for live use; ``npm run build`` writes it."""

PICTURE_STYLE = {
    "svg.hashsalt": "kllab",  # the same picture gives the same bytes
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": figures.QUIET,
    "text.color": figures.INK,
    "xtick.color": "#595959",
}

ESTIMATORS = {"k1": K1, "k2": K2, "k3": K3}
GENERATORS = ("kl_qp", "kl_pq", "chi2_pq", "chi2_qp", "hellinger2", "js", "jeffreys", "tv")


@dataclass(frozen=True)
class Explorable:
    """A browser figure; a notebook shows it through ``_repr_html_``.

    ``tag`` and ``attributes`` make the custom element, ``fallback`` is the HTML inside it, and
    ``heights`` are the CSS lengths to reserve in one and in two columns, so that the page does not
    jump when the script draws.
    """

    tag: str
    attributes: Mapping[str, str]
    fallback: str
    heights: tuple[str, str]

    def __repr__(self) -> str:
        settings = " ".join(f"{name}={value}" for name, value in self.attributes.items())
        return f"<{self.tag} {settings}>: a figure for the browser"

    def element(self, **more: str) -> str:
        """The custom element with its static picture, as HTML."""
        one_column, two_columns = self.heights
        # The middle term is hugely positive below 650 px and hugely negative above.
        reserved = f"clamp({two_columns},(650px - 100vw)*9999,{one_column})"
        attributes = "".join(
            f' {name}="{escape(value)}"' for name, value in {**self.attributes, **more}.items()
        )
        style = f"display:block;min-height:{reserved}"
        return f'<{self.tag}{attributes} style="{style}">{self.fallback}</{self.tag}>'

    def _repr_html_(self) -> str:
        if os.environ.get("KLLAB_BOOK") == "1":
            return self.element()
        page = _published_page()
        if SCRIPT.is_file():
            script = SCRIPT.read_text(encoding="utf-8")
            element = self.element(**({"page": page} if page else {}))
            return f'{element}\n<script type="module">\n{script}\n</script>'
        where = f' It moves on <a href="{escape(page)}">the published page</a>.' if page else ""
        return (
            f"{self.fallback}\n<p>This is a picture of the figure: its script was not built here."
            f"{where}</p>"
        )


def two_gaussians(
    *,
    mean: float = 0.6,
    scale: float = 0.9,
    n: int = 16,
    seed: int = 1,
    runs: int = 200,
    show: tuple[str, ...] = ("k1", "k2", "k3"),
    fallback: str | None = None,
    height: tuple[str, str] | None = None,
) -> Explorable:
    """Three estimators of KL(q‖p) for q = N(0, 1) and p = N(mean, scale²), to be dragged.

    In the default state the average of 16 samples of k1 is below zero in one run of ten, that of k2
    is a third too high, and that of k3 is neither, with less than half of k1's spread.

    Parameters
    ----------
    mean, scale : of p; within [−2.5, 2.5] and [0.4, 2], in steps of 0.05.
    n : samples per run, a power of two up to 1024.
    seed : of the draws in the browser, an integer in [0, 2³²).
    runs : how many runs are drawn at first, up to 1000.
    show : which of ``"k1"``, ``"k2"``, ``"k3"`` are drawn at first.
    fallback : HTML in place of the picture that is made here from exact numbers.
    height : CSS lengths to reserve on a phone and on a wide screen.

    Raises
    ------
    InputError : a value that the figure cannot show.

    Examples
    --------
    >>> figure = two_gaussians(mean=1.0, scale=1.0, n=4)
    >>> figure
    <kl-two-gaussians mean=1 scale=1 n=4 seed=1 runs=200 show=k1+k2+k3>: a figure for the browser
    >>> "k2 is 25 % too high" in figure.fallback
    True
    """
    _within(mean=(mean, -2.5, 2.5), scale=(scale, 0.4, 2.0))
    _whole(seed=(seed, 0, 2**32 - 1), runs=(runs, 0, 1000))
    _power_of_two("n", n, 1024)
    if not show or not set(show) <= set(ESTIMATORS):
        raise InputError("show", "some of k1, k2, k3", repr(show))
    names = [name for name in ESTIMATORS if name in show]
    attributes = _attributes(
        {"mean": mean, "scale": scale, "n": n, "seed": seed, "runs": runs, "show": "+".join(names)}
    )
    if fallback is None:
        fallback = _two_gaussians_picture(mean, scale, n, names)
    return Explorable("kl-two-gaussians", attributes, fallback, height or ("94rem", "53rem"))


def _two_gaussians_picture(mean: float, scale: float, n: int, names: list[str]) -> str:
    """The static figure: both densities, and the exact distributions of averages of n samples."""
    pair = pairs.gaussian(mean, scale)
    kl = exact.moments(K1, pair).mean
    laws = {name: exact.sampling_distribution(ESTIMATORS[name], pair, n) for name in names}
    looks = figures.LOOKS
    with mpl.rc_context(PICTURE_STYLE):
        canvas = Figure(figsize=(7.2, 2.9), layout="constrained", facecolor="white")
        grid = canvas.add_gridspec(len(names), 2)

        densities = canvas.add_subplot(grid[:, 0], xlabel="x", yticks=[], title="q and p")
        x = np.linspace(-4.6, 4.6, 231)
        outwards = 1 if mean >= 0 else -1
        for name, centre, width, side in (("q", 0, 1, -outwards), ("p", mean, scale, outwards)):
            density = norm(centre, width).pdf
            look = looks[name]
            densities.plot(x, density(x), color=look.color, ls=look.dashes, lw=2)
            at = centre + 1.3 * side * width
            densities.annotate(name, (at, density(at)), xytext=(8 * side, 2), color=look.text,
                               textcoords="offset points", ha="center", weight="bold")  # fmt: skip
        densities.fill_between(x, density(x), color=look.color, alpha=0.16, lw=0)
        densities.set(ylim=(0, None), xlim=(x[0], x[-1]))

        usual = exact.sampling_distribution(K1, pair, n)
        reach = kl + 3 * (float(usual.quantile(0.995)) - kl)
        low = min(0.0, *(float(law.quantile(0.001)) for law in laws.values()))
        high = max(1.2 * kl, *(min(float(law.quantile(0.99)), reach) for law in laws.values()))
        if high == low:  # p is q: one atom at 0
            low, high = -1.0, 1.0
        edges = np.linspace(low, high, 161)
        for row, (name, law) in enumerate(laws.items()):
            axes = canvas.add_subplot(grid[row, 1], yticks=[], xlim=(edges[0], edges[-1]))
            mass = np.diff(law.cdf(edges).numpy())
            axes.plot(edges[1:], mass, color=looks[name].color, ls=looks[name].dashes, lw=1.8)
            axes.fill_between(edges[1:], mass, color=looks[name].color, alpha=0.16, lw=0)
            axes.axvline(kl, color=figures.INK, ls=looks["truth"].dashes, lw=1.4)
            axes.axvline(0, color=figures.QUIET, lw=0.8)
            # The density of one sample may be unbounded: a few bins must not set the height.
            axes.set_ylim(0, 1.15 * (np.partition(mass, -4)[-4] or mass.max()))
            axes.annotate(name, (1, 1), xycoords="axes fraction", ha="right", va="top",
                          color=looks[name].text, weight="bold")  # fmt: skip
            axes.tick_params(labelbottom=row == len(laws) - 1)
            if row == 0:
                axes.set_title(f"averages of {n}, KL = {kl:.3g} nats")
        return _image(canvas, *_two_gaussians_words(pair, kl, n, laws))


def _two_gaussians_words(pair, kl: float, n: int, laws: Mapping) -> tuple[str, str]:
    """The picture's text alternative and its caption, with the exact numbers."""
    samples = "one sample" if n == 1 else f"{n} samples"
    alt = (
        f"Left: the densities of q = N(0, 1) and p = N({pair.mean:g}, {pair.scale:g}²). Right: the "
        f"exact distributions of the average of {samples} of {', '.join(laws)}, around the "
        f"true KL(q‖p) of {kl:.3g} nats."
    )
    if kl == 0:
        return alt, "p is q, so every sample of every estimator is exactly 0."
    parts = []
    for name in laws:
        moments = exact.moments(ESTIMATORS[name], pair)
        if name == "k1":
            parts.append(f"k1 falls below 0 in {float(laws[name].cdf(0.0)):.1%} of runs")
        elif name == "k2":
            direction = "high" if moments.bias > 0 else "low"
            parts.append(f"k2 is {abs(moments.bias) / kl:.0%} too {direction} on average")
        elif np.isfinite(moments.variance):
            parts.append("k3 is right on average and never below 0")
        else:
            parts.append("k3 is right on average, never below 0, and its variance is infinite")
    caption = f"Averages of {samples} around the true KL of {kl:.3g} nats: {'; '.join(parts)}."
    return alt, caption.replace("%", " %")


def tangent_line(
    *,
    f: str = "kl_qp",
    mean: float = 1.0,
    lam: float | str = "tangent",
    r: float = 2.5,
    seed: int = 1,
    fallback: str | None = None,
    height: tuple[str, str] | None = None,
) -> Explorable:
    """One sample of f(r) + λ(r − 1) as the gap between the curve f and a line of slope −λ.

    q = N(0, 1) and p = N(mean, 1).  In the default state the line is the tangent at r = 1, so no
    sample is below zero, and the variance at λ* is 42 % less.

    Parameters
    ----------
    f : a name from ``kllab.DIVERGENCES`` except alpha's.
    mean : of p, within [0.1, 2], in steps of 0.05.
    lam : λ, or ``"tangent"`` for −f'(1), or ``"best"`` for λ*, which follow f and the mean.
    r : p(x)/q(x) of the sample that is marked, within [0.05, 4].
    seed : of the samples in the browser, an integer in [0, 2³²).
    fallback : HTML in place of the picture that is made here from exact numbers.
    height : CSS lengths to reserve on a phone and on a wide screen.

    Raises
    ------
    InputError : a value that the figure cannot show.

    Examples
    --------
    >>> figure = tangent_line(lam="best")
    >>> figure
    <kl-tangent-line f=kl_qp mean=1 lambda=best r=2.5 seed=1>: a figure for the browser
    >>> "λ* = 0.582 it is 0.418" in figure.fallback
    True
    """
    if f not in GENERATORS:
        raise InputError("f", f"one of {', '.join(GENERATORS)}", repr(f))
    _within(mean=(mean, 0.1, 2.0), r=(r, 0.05, 4.0))
    if lam not in ("tangent", "best"):
        _within(lam=(lam, -1e5, 1e5))
    _whole(seed=(seed, 0, 2**32 - 1))
    attributes = _attributes({"f": f, "mean": mean, "lambda": lam, "r": r, "seed": seed})
    if fallback is None:
        fallback = _tangent_line_picture(f, mean, lam, r)
    return Explorable("kl-tangent-line", attributes, fallback, height or ("87rem", "51rem"))


def _tangent_line_picture(f: str, mean: float, lam: float | str, r: float) -> str:
    """The static figure: the curve with its line and gap, and the variance against λ."""
    d = DIVERGENCES[f]
    pair = pairs.gaussian(mean, 1.0)
    plain = exact.moments(with_lambda(d, 0.0), pair)
    divergence, at_zero = plain.mean, plain.variance
    # Var f + 2λ Cov + λ² Var r, and a second point gives the covariance.
    var_r = float(np.expm1(mean**2))
    twice_cov = exact.moments(with_lambda(d, 1.0), pair).variance - at_zero - var_r
    tangent, best = -d.df1 + 0.0, -twice_cov / (2 * var_r)
    lam = {"tangent": tangent, "best": best}.get(lam, lam)

    def variance(at):
        return at_zero + at * (twice_cov + at * var_r)

    def curve(ratio):
        return d.f(torch.log(torch.as_tensor(ratio, dtype=torch.float64))).numpy()

    ratios = np.linspace(0.02, 4, 200)
    values, line = curve(ratios), -lam * (ratios - 1)
    ends = float(curve(r)), -lam * (r - 1)
    usual = [*values[ratios > 0.13], -3 * tangent, tangent, *ends]
    reach = 1.4 * max(abs(best - tangent), abs(best), 0.4)
    lams = np.linspace(best - reach, best + reach, 120)
    marks: dict[float, str] = {}
    for at, word in ((0.0, "0"), (tangent, "tangent"), (best, "λ*")):
        at = next((other for other in marks if abs(other - at) < 0.02 * reach), at)
        marks[at] = f"{marks[at]} = {word}" if at in marks else word
    with mpl.rc_context(PICTURE_STYLE):
        canvas = Figure(figsize=(7.2, 2.9), layout="constrained", facecolor="white")
        left, right = canvas.subplots(1, 2)
        left.plot(ratios, values, color=figures.INK, lw=2, label="f(r)")
        left.plot(ratios, line, color=figures.INK, lw=1.4, ls="--", label="−λ(r − 1)")
        left.plot([r, r], ends, color=figures.LOOKS["k3"].color, lw=4, solid_capstyle="butt")
        left.set(xlabel="r", title=f"{f}, and the gap at r = {r:g}", xlim=(0, 4))
        left.set_ylim(min(usual) - 0.2, max(usual) + 0.2)
        left.legend(frameon=False, loc="upper center")
        right.plot(lams, variance(lams), color=figures.INK, lw=2)
        right.set(xlabel="λ", xlim=(lams[0], lams[-1]), ylim=(0, None))
        right.set_title("variance of one sample", pad=18)
        for at, word in marks.items():
            right.plot(at, variance(at), "o", color=figures.LOOKS["k3"].color)
            figures.mark(right, at, word)
    gap, side = abs(ends[0] - ends[1]), "above" if ends[0] >= ends[1] else "below"
    alt = (
        f"Left: the curve f(r) of {f} and the line −λ(r − 1) with λ = {lam:.3g}. Right: the "
        f"variance of one sample against λ, a parabola, with {', '.join(marks.values())} marked."
    )
    caption = (
        f"At r = {r:g} the curve lies {gap:.3g} {side} the line of λ = {lam:.3g}. "
        f"The mean is {divergence:.3g} nats for every λ. The variance of one sample is "
        f"{variance(tangent):.3g} with the tangent, λ = {tangent:.3g}; "
        f"at λ* = {best:.3g} it is {variance(best):.3g}."
    )
    return _image(canvas, alt, caption.replace("-", "−"))


def vocabulary(
    *,
    temperature: float = 0.6,
    noise: float = 0.3,
    top_p: float = 1.0,
    n: int = 64,
    seed: int = 1,
    sample: int = 1,
    fallback: str | None = None,
    height: tuple[str, str] | None = None,
) -> Explorable:
    """Where KL(q‖p) and the noise of its estimators come from among 65,535 tokens.

    p falls with the rank like (rank + 1)^−1.25.  q is p^(1/temperature) with noise on its logits,
    cut to the smallest head of mass ``top_p``.  In the default state 95 % of k3's variance comes
    from ranks that q draws once in a thousand samples.

    Parameters
    ----------
    temperature, noise : of q; within [0.5, 1.5] and [0, 1], in steps of 0.05.  The noise is one
        fixed draw of normals, in nats.
    top_p : within [0.5, 1], in steps of 0.01.
    n : samples, a power of two up to 4096.
    seed, sample : of the draws in the browser, integers in [0, 2³²) and [1, 9999].
    fallback : HTML in place of the picture that is made here from exact numbers.
    height : CSS lengths to reserve on a phone and on a wide screen.

    Raises
    ------
    InputError : a value that the figure cannot show.

    Examples
    --------
    >>> figure = vocabulary(temperature=1.0, noise=0.0, top_p=0.9)
    >>> figure
    <kl-vocabulary temperature=1 noise=0 top=0.9 n=64 seed=1 sample=1>: a figure for the browser
    >>> "p(supp q) − 1 is −0.1," in figure.fallback
    True
    """
    _within(temperature=(temperature, 0.5, 1.5), noise=(noise, 0.0, 1.0), top_p=(top_p, 0.5, 1.0))
    _whole(seed=(seed, 0, 2**32 - 1), sample=(sample, 1, 9999))
    _power_of_two("n", n, 4096)
    state = {"temperature": temperature, "noise": noise, "top": top_p}
    attributes = _attributes(state | {"n": n, "seed": seed, "sample": sample})
    if fallback is None:
        fallback = _vocabulary_picture(temperature, noise, top_p)
    return Explorable("kl-vocabulary", attributes, fallback, height or ("96rem", "57rem"))


def _vocabulary_pair(temperature: float, noise: float, top_p: float) -> pairs.CategoricalPair:
    """The pair of the figure; its noise fills the square evenly, so that every language has it."""
    rank = torch.arange(1, 2**16, dtype=torch.float64)
    u, v = (rank / 1.324717957244746**power % 1 for power in (1, 2))
    normals = (-2 * u.log()).sqrt() * (2 * torch.pi * v).cos()
    log_p = torch.log_softmax(-1.25 * (rank + 1).log(), -1)
    whole = torch.log_softmax(log_p / temperature + noise * normals, -1)
    return pairs.categorical(pairs.top_p(whole, top_p).log_q, log_p)


def _vocabulary_picture(temperature: float, noise: float, top_p: float) -> str:
    """The static figure: what each octave of ranks adds to KL, and to each variance."""
    pair = _vocabulary_pair(temperature, noise, top_p)
    q, inside = pair.log_q.exp(), pair.log_q > -torch.inf
    moments = {name: exact.moments(k, pair) for name, k in ESTIMATORS.items()}
    # A variance of roundings, as of a constant log ratio, is none.
    noisy = [name for name, m in moments.items() if m.variance > 1e-24]

    def by_octave(terms: torch.Tensor) -> np.ndarray:
        return np.add.reduceat(torch.where(inside, terms, 0.0).numpy(), 2 ** np.arange(16) - 1)

    means = {name: by_octave(q * ESTIMATORS[name](pair.log_r)) for name in ("k1", "k3")}
    shares = {
        name: by_octave(q * (ESTIMATORS[name](pair.log_r) - moments[name].mean) ** 2)
        / moments[name].variance
        for name in noisy
    }
    kl, lost = moments["k1"].mean, moments["k3"].mean - moments["k1"].mean
    octaves = np.arange(16)  # octave o holds the ranks 2^o to 2^(o + 1) − 1
    with mpl.rc_context(PICTURE_STYLE):
        canvas = Figure(figsize=(7.2, 2.9), layout="constrained", facecolor="white")
        left, right = canvas.subplots(1, 2)
        for shift, (name, values) in zip((-0.2, 0.2), means.items(), strict=True):
            left.bar(octaves + shift, values, 0.4, color=figures.LOOKS[name].color, label=name)
        left.set_title("what each octave of ranks adds to KL, nats")
        for name, share in shares.items():
            look = figures.LOOKS[name]
            right.plot(octaves, share, color=look.color, ls=look.dashes, lw=2, label=name)
        right.set_title("its share of the variance")
        for axes in (left, right):
            axes.set_xticks(octaves[::3], [f"{2**octave:,}" for octave in octaves[::3]])
            axes.set_xlabel("rank")
            if axes.get_legend_handles_labels()[1]:
                axes.legend(frameon=False)
    tail = ", ".join(f"{share[10:].sum():.0%} of {name}’s" for name, share in shares.items())
    caption = (
        f"KL(q‖p) is {kl:.3g} nats. q draws ranks from 1,024 on in "
        f"{by_octave(q)[10:].sum():.2%} of its samples; their part of the variance is "
        f"{tail or 'none, as nothing varies'}."
    )
    if abs(lost) > 1e-9:
        caption += f" p(supp q) − 1 is {lost:.3g}, and that is the bias of k3.".replace("-", "−")
    alt = (
        "Left: what each octave of 65,535 ranks adds to KL, for k1 and k3. Right: the share of "
        "each octave in the variance of one sample, for k1, k2 and k3."
    )
    return _image(canvas, alt, caption.replace("%", " %"))


def _image(canvas: Figure, alt: str, caption: str) -> str:
    """A figure with its caption; the picture is inside the HTML, so no file is asked for."""
    data = io.BytesIO()
    canvas.savefig(data, format="svg", metadata={"Date": None})
    source = base64.b64encode(data.getvalue()).decode()
    return (
        '<figure style="margin:0"><img style="max-width:100%;height:auto" '
        f'src="data:image/svg+xml;base64,{source}" alt="{escape(alt)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _published_page() -> str | None:
    """``KLLAB_BOOK_URL`` if it is a web address; anything else must not become a link."""
    address = os.environ.get("KLLAB_BOOK_URL", "")
    return address if urlsplit(address).scheme in ("http", "https") else None


def _attributes(state: Mapping[str, object]) -> dict[str, str]:
    return {k: v if isinstance(v, str) else f"{v:.10g}" for k, v in state.items()}


def _within(**asked: tuple[float, float, float]) -> None:
    for argument, (value, low, high) in asked.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not low <= value <= high:
            raise InputError(argument, f"a number from {low:g} to {high:g}", repr(value))


def _whole(**asked: tuple[int, int, int]) -> None:
    for argument, (value, low, high) in asked.items():
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InputError(argument, f"an integer from {low} to {high}", repr(value))


def _power_of_two(argument: str, value: int, high: int) -> None:
    _whole(**{argument: (value, 1, high)})
    if value & (value - 1):
        raise InputError(argument, f"a power of two up to {high}", repr(value))
