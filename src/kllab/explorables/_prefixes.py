"""The term that a loss on tokens drops, on a tree of two steps."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from kllab import exact, figures
from kllab.checks import InputError
from kllab.estimators import K2, K3
from kllab.explorables._element import Explorable, explorable, within
from kllab.explorables._picture import STYLE, image
from kllab.sequences import Tree, expected_gradient

# The exact KL of a token is the mean of k1, whose gradient k2 has in expectation.
LOSSES = {"k2": K2, "k3": K3, "kl": K2}
NAMES = {"k2": "k2", "k3": "k3", "kl": "the exact KL"}
TREE = Tree(V=2, T=2)


def prefixes(
    *,
    loss: str = "k2",
    q: float | str = 0.5,
    q_after: tuple[float, float] = (0.9, 0.4),
    p: float = 0.6,
    p_after: tuple[float, float] = (0.2, 0.5),
) -> Explorable:
    """What a loss summed over tokens keeps of ∇KL(Q‖P), for two tokens that are each A or B.

    In the default state the first token's gradient has one sign in the loss and the other one in
    KL(Q‖P), because the loss drops the score of that token times the KL that follows.

    Parameters
    ----------
    loss : ``"k2"`` or ``"k3"`` of each token, or ``"kl"``, the exact KL(q‖p) of each.
    q, p : probability of A as the first token, within [0.02, 0.98], in steps of 0.01.  q may be
        ``"token"``, where the loss rests if the second step is held, or ``"least"``, where
        KL(Q‖P) is least.
    q_after, p_after : probability of A after A and after B, likewise.

    Raises
    ------
    InputError : a value that the figure cannot show.

    Examples
    --------
    >>> figure = prefixes(q="least")
    >>> figure
    <kl-prefixes loss=k2 q=least qa=0.9 qb=0.4 p=0.6 pa=0.2 pb=0.5>: a figure for the browser
    >>> "at q(A) = 0.327" in figure.fallback
    True
    """
    if loss not in LOSSES:
        raise InputError("loss", f"one of {', '.join(LOSSES)}", repr(loss))
    within(p=(p, 0.02, 0.98))
    if q not in ("token", "least"):
        within(q=(q, 0.02, 0.98))
    for argument, pair in (("q_after", q_after), ("p_after", p_after)):
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InputError(argument, "two numbers, after A and after B", repr(pair))
        for value in pair:
            within(**{argument: (value, 0.02, 0.98)})
    (qa, qb), (pa, pb) = q_after, p_after
    return explorable(
        "prefixes",
        {"loss": loss, "q": q, "qa": qa, "qb": qb, "p": p, "pa": pa, "pb": pb},
        _picture(loss, q, _logits(p, *q_after), _logits(p, *p_after)),
        heights=("101rem", "57rem"),
    )


def _logits(*of_a: float) -> Tensor:
    """Logits (3, 2) of the tokens A and B at the start, after A and after B."""
    chance = torch.tensor(of_a, dtype=torch.float64)
    return torch.stack([chance.log(), torch.log1p(-chance)], -1)


def _starting(logits: Tensor, first: Tensor) -> Tensor:
    """The policy with another law (..., 2) of the first token."""
    rest = logits[1:].expand(*first.shape[:-1], 2, 2)
    return torch.cat([first[..., None, :], rest], -2)


def _best(logits: Tensor, ref: Tensor) -> Tensor:
    """The first token's law with the least KL(Q‖P) if the second step is held: p exp(−KL)."""
    return torch.log_softmax(ref[0] - exact.divergence("kl_qp", logits[1:], ref[1:]), -1)


def _parts(loss: str, logits: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
    """What the loss keeps, and ∇KL(Q‖P): for the logit of A, (3,) each."""
    kept = expected_gradient(TREE, LOSSES[loss], logits, ref, usage="loss")
    both = kept[:, 0], TREE.gradient("kl_qp", logits, ref)[:, 0]
    return tuple(torch.where(x.abs() < 1e-14, 0.0, x) for x in both)  # roundings are none


def _own(loss: str, first: Tensor, ref: Tensor) -> Tensor:
    """What the loss descends in the first token's law (..., 2), with what follows held."""
    return exact.divergence("kl_pq" if loss == "k3" else "kl_qp", first, ref[0])


def _picture(loss: str, q: float | str, logits: Tensor, ref: Tensor) -> str:
    """The static figure: what is kept and dropped, and KL(Q‖P) against q(A)."""
    rest, best = ref[0], _best(logits, ref)
    first = {"token": rest, "least": best}.get(q)
    logits = _starting(logits, _logits(q)[0] if first is None else first)
    kept, full = _parts(loss, logits, ref)
    kl, at_rest, least = (
        float(TREE.divergence("kl_qp", _starting(logits, law), ref))
        for law in (logits[0], rest, best)
    )
    grid = _logits(*np.linspace(0.01, 0.99, 99))
    chance = grid[:, 0].exp().numpy()
    believed = _own(loss, grid, ref) - _own(loss, logits[0], ref) + kl
    look, look_of = figures.look(loss), {"kept": loss, "dropped": None, "∇KL(Q‖P)": "truth"}
    with mpl.rc_context(STYLE):
        canvas = Figure(figsize=(7.2, 3.2), layout="constrained", facecolor="white")
        left, right = canvas.subplots(1, 2)
        places = np.arange(3)
        left.use_sticky_edges = False
        for shift, (name, values) in zip(
            (-0.26, 0.0, 0.26),
            {"kept": kept, "dropped": full - kept, "∇KL(Q‖P)": full}.items(),
            strict=True,
        ):
            missing = name == "dropped"
            left.bar(
                places + shift,
                values.numpy(),
                0.24,
                bottom=kept.numpy() if missing else 0,
                color="none" if missing else figures.look(look_of[name]).color,
                edgecolor=figures.INK if missing else "none",
                ls="--",
                label=name,
            )
        left.axhline(0, color=figures.QUIET, lw=0.8)
        left.set_xticks(places, ["q(A)", "q(A|A)", "q(A|B)"])
        left.set_title("gradient by logit")
        curve = TREE.divergence("kl_qp", _starting(logits, grid), ref).numpy()
        right.plot(chance, curve, color=figures.INK, lw=2, label="KL(Q‖P)")
        right.plot(chance, believed.numpy(), color=look.color, ls="--", lw=2, label="token loss")
        right.plot(float(logits[0, 0].exp()), kl, "o", color=figures.INK)
        right.set(xlabel="q(A)", xlim=(0, 1), ylim=(None, 1.05 * curve.max()))
        right.set_title("KL(Q‖P) as q(A) moves", pad=18)
        for axes, below in ((left, -0.1), (right, -0.2)):
            axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, below), ncols=3)
        sides = ("right", "left") if best[0] < rest[0] else ("left", "right")
        for law, word, side in zip((best, rest), (" least ", " rests "), sides, strict=True):
            figures.mark(right, float(law[0].exp()), word, ha=side)
    numbers = [f"{x:+.3f}" if abs(x) > 1e-14 else "0" for x in (kept[0], (full - kept)[0], full[0])]
    alt = (
        f"Left: for three logits, what the loss of {NAMES[loss]} keeps of the gradient of KL(Q‖P), "
        "what it drops, and their sum. Right: KL(Q‖P) against q(A), and what the loss descends."
    )
    caption = (
        f"At the first token {NAMES[loss]} as a loss on tokens keeps {numbers[0]} and leaves out "
        f"{numbers[1]} of a gradient of {numbers[2]}. With the second step held it rests at "
        f"q(A) = p(A) = {float(rest[0].exp()):.3g}, where KL(Q‖P) is {at_rest:.3f} nats; the least "
        f"is {least:.3f}, at q(A) = {float(best[0].exp()):.3g}."
    )
    return image(canvas, alt, caption.replace("-", "−"))
