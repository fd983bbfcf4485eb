"""Three estimators between two Gaussians that can be dragged."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy.stats import norm

from kllab import exact, figures, pairs
from kllab.checks import InputError
from kllab.estimators import K1
from kllab.explorables._element import Explorable, explorable, power_of_two, whole, within
from kllab.explorables._picture import ESTIMATORS, STYLE, image


def two_gaussians(
    *,
    mean: float = 0.6,
    scale: float = 0.9,
    n: int = 16,
    seed: int = 1,
    runs: int = 200,
    show: tuple[str, ...] = ("k1", "k2", "k3"),
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
    within(mean=(mean, -2.5, 2.5), scale=(scale, 0.4, 2.0))
    whole(seed=(seed, 0, 2**32 - 1), runs=(runs, 0, 1000))
    power_of_two("n", n, 1024)
    if not show or not set(show) <= set(ESTIMATORS):
        raise InputError("show", "some of k1, k2, k3", repr(show))
    names = [name for name in ESTIMATORS if name in show]
    state = {"mean": mean, "scale": scale, "n": n, "seed": seed, "runs": runs}
    return explorable(
        "two-gaussians",
        state | {"show": "+".join(names)},
        _picture(mean, scale, n, names),
        heights=("94rem", "53rem"),
    )


def _picture(mean: float, scale: float, n: int, names: list[str]) -> str:
    """The static figure: both densities, and the exact distributions of averages of n samples."""
    pair = pairs.gaussian(mean, scale)
    kl = exact.moments(K1, pair).mean
    laws = {name: exact.sampling_distribution(ESTIMATORS[name], pair, n) for name in names}
    looks = figures.LOOKS
    with mpl.rc_context(STYLE):
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
        return image(canvas, *_words(pair, kl, n, laws))


def _words(pair, kl: float, n: int, laws: Mapping) -> tuple[str, str]:
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
