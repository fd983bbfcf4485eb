"""Where KL and the noise of its estimators come from in a vocabulary."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure

from kllab import exact, figures, pairs
from kllab.explorables._element import Explorable, explorable, power_of_two, whole, within
from kllab.explorables._picture import ESTIMATORS, STYLE, image


def vocabulary(
    *,
    temperature: float = 0.6,
    noise: float = 0.3,
    top_p: float = 1.0,
    n: int = 64,
    seed: int = 1,
    sample: int = 1,
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
    within(temperature=(temperature, 0.5, 1.5), noise=(noise, 0.0, 1.0), top_p=(top_p, 0.5, 1.0))
    whole(seed=(seed, 0, 2**32 - 1), sample=(sample, 1, 9999))
    power_of_two("n", n, 4096)
    return explorable(
        "vocabulary",
        {"temperature": temperature, "noise": noise, "top": top_p}
        | {"n": n, "seed": seed, "sample": sample},
        _picture(temperature, noise, top_p),
        heights=("96rem", "57rem"),
    )


def _pair(temperature: float, noise: float, top_p: float) -> pairs.CategoricalPair:
    """The pair of the figure; its noise fills the square evenly, so that every language has it."""
    rank = torch.arange(1, 2**16, dtype=torch.float64)
    u, v = (rank / 1.324717957244746**power % 1 for power in (1, 2))
    normals = (-2 * u.log()).sqrt() * (2 * torch.pi * v).cos()
    log_p = torch.log_softmax(-1.25 * (rank + 1).log(), -1)
    whole = torch.log_softmax(log_p / temperature + noise * normals, -1)
    return pairs.categorical(pairs.top_p(whole, top_p).log_q, log_p)


def _picture(temperature: float, noise: float, top_p: float) -> str:
    """The static figure: what each octave of ranks adds to KL, and to each variance."""
    pair = _pair(temperature, noise, top_p)
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
    with mpl.rc_context(STYLE):
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
    return image(canvas, alt, caption.replace("%", " %"))
