"""A sample of an estimator as the gap between a curve and a line."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure

from kllab import exact, figures, pairs
from kllab.checks import InputError
from kllab.divergences import DIVERGENCES
from kllab.estimators import with_lambda
from kllab.explorables._element import Explorable, explorable, whole, within
from kllab.explorables._picture import STYLE, image

GENERATORS = ("kl_qp", "kl_pq", "chi2_pq", "chi2_qp", "hellinger2", "js", "jeffreys", "tv")


def tangent_line(
    *,
    f: str = "kl_qp",
    mean: float = 1.0,
    lam: float | str = "tangent",
    r: float = 2.5,
    seed: int = 1,
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
    within(mean=(mean, 0.1, 2.0), r=(r, 0.05, 4.0))
    if lam not in ("tangent", "best"):
        within(lam=(lam, -1e5, 1e5))
    whole(seed=(seed, 0, 2**32 - 1))
    return explorable(
        "tangent-line",
        {"f": f, "mean": mean, "lambda": lam, "r": r, "seed": seed},
        _picture(f, mean, lam, r),
        heights=("87rem", "51rem"),
    )


def _picture(f: str, mean: float, lam: float | str, r: float) -> str:
    """The static figure: the curve with its line and gap, and the variance against λ."""
    d = DIVERGENCES[f]
    pair = pairs.gaussian(mean, 1.0)
    plain, tangent = exact.moments(with_lambda(d, 0.0), pair), -d.df1 + 0.0
    best, var_r = float(exact.optimal_lambda(d, pair)), float(np.expm1(mean**2))
    lam = {"tangent": tangent, "best": best}.get(lam, lam)

    def variance(at):
        return plain.variance + at * (at - 2 * best) * var_r

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
    with mpl.rc_context(STYLE):
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
        f"The mean is {plain.mean:.3g} nats for every λ. The variance of one sample is "
        f"{variance(tangent):.3g} with the tangent, λ = {tangent:.3g}; "
        f"at λ* = {best:.3g} it is {variance(best):.3g}."
    )
    return image(canvas, alt, caption.replace("-", "−"))
