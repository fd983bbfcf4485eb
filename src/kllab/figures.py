"""Figures of the book: results in, ``Axes`` out, nothing computed that a claim rests on.

One palette (Okabe and Ito's, safe for colour-blind readers) and one dash pattern per estimator,
the same as in the browser figures.  Every function takes ``ax=None`` and returns the ``Axes``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator


@dataclass(frozen=True)
class Look:
    """Colour of the line, colour of text about it (darker, for contrast), and dash pattern."""

    color: str
    text: str
    dashes: str | tuple = "-"


INK = "#1b1b1b"
QUIET = "#6b6b6b"
LOOKS: Mapping[str, Look] = {
    "k1": Look("#D55E00", "#B04E00"),
    "k2": Look("#009E73", "#00785A", (0, (5, 1.6))),
    "k3": Look("#0072B2", "#0067A1", (0, (6, 1.4, 1.4, 1.4))),
    "truth": Look(INK, INK, (0, (1.2, 1.6))),
    "q": Look(QUIET, "#595959"),
    "p": Look("#CC79A7", "#A2487A", (0, (3, 1.2))),
    "chi2_pq": Look("#E69F00", "#8A5F00", (0, (4, 1.2, 1.2, 1.2, 1.2, 1.2))),
    "chi2_qp": Look("#56B4E9", "#1B6E9C", (0, (8, 1.5))),
}
"""Palette by name; unknown names fall back to ink."""


def use_style() -> None:
    """Set the book's matplotlib style, and vector output in notebooks."""
    mpl.rcParams.update(
        {
            "figure.figsize": (4.4, 3.0),
            "figure.facecolor": "none",
            "savefig.facecolor": "none",
            "axes.facecolor": "none",
            "figure.constrained_layout.use": True,
            "svg.hashsalt": "kllab",
            "font.size": 10,
            "axes.labelsize": 10,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "axes.edgecolor": QUIET,
            "axes.labelcolor": INK,
            "text.color": INK,
            "xtick.color": "#595959",
            "ytick.color": "#595959",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#d9d9d9",
            "grid.linewidth": 0.6,
            "lines.linewidth": 2.0,
            "axes.axisbelow": True,
        }
    )
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:  # plain Python, no notebook
        return
    set_matplotlib_formats("svg")


def look(name: str) -> Look:
    return LOOKS.get(name, Look(INK, INK))


def lines(
    x,
    curves: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    ylabel: str,
    labels: Mapping[str, str] | None = None,
    label_at: Mapping[str, tuple[float, str]] | None = None,
    xscale: str = "linear",
    yscale: str = "linear",
    ylim: tuple[float, float] | None = None,
    palette: Mapping[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Named curves over a common x, each labelled on the line itself.

    ``labels`` overrides the text, ``palette`` the entry of the palette.  ``label_at`` gives the x
    at which a label stands and on which side of the line ("above", "below", "left", "right"); the
    default is the right end.
    """
    ax = ax or plt.subplots()[1]
    x = np.asarray(x)
    ax.set(xlabel=xlabel, ylabel=ylabel, xscale=xscale, yscale=yscale)
    styles = {name: look((palette or {}).get(name, name)) for name in curves}
    for name, y in curves.items():
        ax.plot(x, y, color=styles[name].color, ls=styles[name].dashes)
    ax.set_xlim(x[0], x[-1])
    if ylim:
        ax.set_ylim(*ylim)
    for name, y in curves.items():
        at, text = (label_at or {}).get(name), (labels or {}).get(name, name)
        _label_line(ax, x, np.asarray(y), text, at, styles[name].text)
    return ax


_SIDES = {  # offset in points, horizontal and vertical alignment
    "above": ((0, 5), "center", "bottom"),
    "below": ((0, -5), "center", "top"),
    "left": ((-7, 0), "right", "center"),
    "right": ((7, 0), "left", "center"),
}


def _label_line(ax: Axes, x, y, text: str, at: tuple[float, str] | None, color: str) -> None:
    """The name of a curve beside it, in its own (darker) colour."""
    if at:
        where, side = at
        i = int(np.argmin(np.abs(x - where)))
    else:
        low, high = ax.get_ylim()
        i, side = np.flatnonzero((y >= low) & (y <= high) & np.isfinite(y))[-1], "right"
    offset, ha, va = _SIDES[side]
    ax.annotate(text, (x[i], y[i]), xytext=offset, textcoords="offset points", ha=ha, va=va,
                color=color, fontweight="bold", annotation_clip=False)  # fmt: skip


def mark(ax: Axes, x: float, text: str, *, color: str = QUIET, ha: str = "center") -> Axes:
    """A vertical line with a word on top, for a crossing or a threshold."""
    ax.axvline(x, color=color, lw=1, zorder=0)
    ax.annotate(text, (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                textcoords="offset points", ha=ha, va="bottom", color="#595959",
                fontsize=9)  # fmt: skip
    return ax


def contributions(
    labels: Sequence[str], values: Sequence[float], *, xlabel: str, ax: Axes | None = None
) -> Axes:
    """Signed bars, one a label, from top to bottom: what each outcome adds to a sum over q.

    Where the bar is positive q has more probability, where it is negative p has.
    """
    ax = ax or plt.subplots(figsize=(4.4, 0.24 * len(labels) + 0.9))[1]
    values = np.asarray(values)
    where = np.arange(len(values))
    ax.barh(where, values, color=np.where(values < 0, LOOKS["p"].color, LOOKS["q"].color))
    ax.axvline(0, color=INK, lw=0.8)
    ax.set_yticks(where, labels)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(xlabel)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    return ax


def running_means(
    means: np.ndarray,
    truth: float,
    *,
    sd: float | None = None,
    name: str = "k1",
    ylim: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Running means (runs, n), n = 1, 2, …: the first run strong, the others faint.

    With ``sd``, the standard deviation of one sample, the band truth ± 2 sd/√n is drawn too.
    """
    ax = ax or plt.subplots()[1]
    n = np.arange(1, means.shape[-1] + 1)
    if sd is not None:
        half = 2 * sd / np.sqrt(n)
        ax.fill_between(n, truth - half, truth + half, color="#d6d6d6", lw=0)
    for run in means[1:]:
        ax.plot(n, run, color=look(name).color, lw=0.8, alpha=0.5)
    ax.plot(n, means[0], color=look(name).color)
    ax.axhline(truth, color=INK, ls=LOOKS["truth"].dashes)
    ax.set(xscale="log", xlabel="number of samples n", xlim=(1, n[-1]))
    ax.set_ylabel(f"mean of {name} so far [nats]")
    ax.annotate("exact", (n[-1], truth), xytext=(5, 0), textcoords="offset points", va="center",
                fontweight="bold", annotation_clip=False)  # fmt: skip
    if ylim:
        ax.set_ylim(*ylim)
    _plain_ticks(ax.xaxis)
    return ax


def sampling_distributions(
    laws: Mapping[str, object],
    truth: float,
    *,
    xlim: tuple[float, float],
    shade_negative: bool = False,
    palette: Mapping[str, str] | None = None,
    label_left: Sequence[str] = (),
    ax: Axes | None = None,
) -> Axes:
    """Densities of exact sampling distributions (``.values``, ``.pmf``), with the truth marked.

    ``laws`` maps a label to a law; ``palette`` maps a label to a name of the palette where the
    label is none.  ``shade_negative`` fills the part below zero.  Labels stand on the right flank
    of their curve, those in ``label_left`` on the left.
    """
    ax = ax or plt.subplots()[1]
    edges = np.linspace(*xlim, 241)
    centres = (edges[1:] + edges[:-1]) / 2
    top = 0.0
    for label, law in laws.items():
        style = look((palette or {}).get(label, label))
        mass, _ = np.histogram(law.values.numpy(), edges, weights=law.pmf.numpy())
        density = mass / np.diff(edges)
        top = max(top, np.sort(density)[-4])  # a single atom must not set the scale
        ax.plot(centres, density, color=style.color, ls=style.dashes)
        if shade_negative:
            ax.fill_between(centres, density, where=centres <= 0, color=style.color,
                            alpha=0.25, lw=0)  # fmt: skip
        left = label in label_left
        at = _flank(density, left)
        ax.annotate(label, (centres[at], density[at]), xytext=(-6 if left else 6, 3),
                    textcoords="offset points", ha="right" if left else "left",
                    color=style.text, fontweight="bold")  # fmt: skip
    ax.axvline(truth, color=INK, ls=LOOKS["truth"].dashes, lw=1.6)
    ax.annotate("exact KL", (truth, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                textcoords="offset points", ha="center", va="bottom", fontsize=9)  # fmt: skip
    ax.set(xlim=xlim, ylim=(0, top * 1.15), xlabel="mean over n samples [nats]", yticks=[])
    ax.set_ylabel("density")
    return ax


def _flank(density: np.ndarray, left: bool) -> int:
    """Where a curve has fallen to two thirds of its peak on one side: a place for its label."""
    low = np.flatnonzero(density < density.max() * 0.66)
    peak = int(np.argmax(density))
    side = low[low < peak][-1:] if left else low[low > peak][:1]
    return int(side[0]) if len(side) else peak


def _plain_ticks(axis) -> None:
    """1, 10, 1,000 instead of powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}"))
