"""What a penalty follows on the simplex of three tokens, beside the gradient of KL(q‖p)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.integrate import solve_ivp
from torch import Tensor

from kllab import exact, figures, training
from kllab._terms import in_symbols
from kllab.checks import InputError
from kllab.estimators import K1, K2, K3
from kllab.explorables._element import Explorable, explorable, within
from kllab.explorables._picture import STYLE, image
from kllab.gradients import USAGES, dictionary

PENALTIES = {"k1": K1, "k2": K2, "k3": K3, "abs": torch.abs, "flipped": lambda log_r: K3(-log_r)}
NAMES = {"abs": "|log r|", "flipped": "k3 upside down"}
PLACES = {"loss": "as loss", "reward": "in the reward", "both": "in loss and reward"}
DEAD = -500.0  # a flow that takes a token below e^-500 has left for the boundary
LONG = 1e7  # the time by which others have arrived

Three = Sequence[float]


def simplex_flow(
    *,
    penalty: str = "k3",
    usage: str = "reward",
    policy: Three = (0.7, 0.2, 0.1),
    reference: Three = (0.4, 0.4, 0.2),
    reward: Three | None = None,
    beta: float = 0.5,
) -> Explorable:
    """Where a penalty takes a policy over three tokens, beside where ∇KL(q‖p) takes it.

    In the default state the penalty is k3 in the reward.  Its mean is KL(q‖p), and it walks away
    from the reference until one token is left.

    Parameters
    ----------
    penalty : ``"k1"``, ``"k2"``, ``"k3"``, ``"abs"`` for \\|log r\\|, ``"flipped"`` for k3 of 1/r.
    usage : ``"loss"``, ``"reward"`` or ``"both"``.
    policy, reference : q and p; hundredths from 0.01 to 0.98 that add up to 1.
    reward : of each token, within [−1, 1] in steps of 0.1; then π* is the point to reach.
    beta : the price of KL, within [0.2, 2] in steps of 0.05; of no use without a reward.

    Raises
    ------
    InputError : a value that the figure cannot show.

    Examples
    --------
    >>> figure = simplex_flow(penalty="k1", usage="loss", reward=(1.0, 0.0, -0.5))
    >>> figure.attributes["reward"]
    '1+0+-0.5'
    >>> "no expected gradient" in figure.fallback
    True
    """
    for argument, value, known in (("penalty", penalty, PENALTIES), ("usage", usage, USAGES)):
        if value not in known:
            raise InputError(argument, f"one of {', '.join(known)}", repr(value))
    for argument, law in (("policy", policy), ("reference", reference)):
        _three(argument, law, 0.01, 0.98)
        if abs(sum(law) - 1) > 1e-9:
            raise InputError(argument, "three numbers that add up to 1", repr(law))
    if reward is not None:
        _three("reward", reward, -1.0, 1.0)
    within(beta=(beta, 0.2, 2.0))
    state = {
        "penalty": penalty,
        "usage": usage,
        "q": _joined(policy),
        "p": _joined(reference),
        "reward": "none" if reward is None else _joined(reward),
        "beta": beta,
    }
    return explorable(
        "simplex-flow",
        state,
        _picture(penalty, usage, policy, reference, reward, beta),
        heights=("100rem", "57rem") if reward is None else ("105rem", "61rem"),
    )


def _three(argument: str, values: Three, low: float, high: float) -> None:
    if not isinstance(values, (tuple, list)) or len(values) != 3:
        raise InputError(argument, "three numbers", repr(values))
    for value in values:
        within(**{argument: (value, low, high)})


def _joined(values: Three) -> str:
    return "+".join(f"{value:.10g}" for value in values)


@dataclass(frozen=True)
class _Flow:
    """Gradient flow in the logits under one placement; q and p are (3,) log-probabilities."""

    problem: training.Problem
    placement: training.Placement

    def gradient(self, log_q: Tensor) -> Tensor:
        """Of the minimised cost by the logits: (..., 3) to same."""
        return training.expected_gradient(self.problem, self.placement, log_q[..., None, :])[
            ..., 0, :
        ]

    def step(self, log_q: Tensor) -> Tensor:
        """How q itself moves: (..., 3) to same, components adding up to 0."""
        q, down = log_q.exp(), -self.gradient(log_q)
        return q * (down - (q * down).sum(-1, keepdim=True))

    def path(self, log_q: Tensor) -> Tensor:
        """(M, 3) log-probabilities, from ``log_q`` to the end."""

        def laws(logits: np.ndarray) -> Tensor:
            return torch.log_softmax(torch.from_numpy(logits), -1)

        def dead(_, logits: np.ndarray) -> float:
            return float(laws(logits).min()) - DEAD

        dead.terminal = True
        solved = solve_ivp(
            lambda _, logits: -self.gradient(laws(logits)).numpy(),
            (0.0, LONG),
            log_q.numpy(),
            method="LSODA",
            events=dead,
            rtol=1e-5,
            atol=1e-6,
        )
        return laws(np.ascontiguousarray(solved.y.T))


def _flows(penalty: str, usage: str, reference: Three, reward: Three | None, beta: float):
    """The flow of the penalty and the true one."""
    fn, soft = PENALTIES[penalty], 1e-4
    if penalty == "abs":  # a flow would switch at the kink without end
        fn = lambda log_r: torch.sqrt(log_r.square() + soft**2) - soft  # noqa: E731
    zero = (0.0, 0.0, 0.0)
    problem = training.bandit(
        _log(reference), torch.tensor(reward or zero, dtype=torch.float64), beta if reward else 1.0
    )
    own = training.Placement(penalty, lambda logprob, ref: fn(ref - logprob), usage)
    return _Flow(problem, own), _Flow(problem, training.PLACEMENTS["k2 loss"])


def _log(law: Three) -> Tensor:
    return torch.log_softmax(torch.tensor(law, dtype=torch.float64).log(), -1)


def _picture(
    penalty: str, usage: str, policy: Three, reference: Three, reward: Three | None, beta: float
) -> str:
    """The static figure: two fields of steps, each with its path from the policy."""
    flows = _flows(penalty, usage, reference, reward, beta)
    log_q, name = _log(policy), f"{NAMES.get(penalty, penalty)} {PLACES[usage]}"
    titles = (name, "KL(q‖p)" if reward is None else "−E[R] + β KL(q‖p)")
    looks = (figures.look(penalty), figures.LOOKS["truth"])
    paths = [flow.path(log_q) for flow in flows]
    cells = [(i + 1 / 3, j + 1 / 3) for i in range(9) for j in range(9 - i)]
    lattice = torch.tensor([[a / 9, b / 9, 1 - (a + b) / 9] for a, b in cells], dtype=torch.float64)
    steps = [flow.step(lattice.log()) for flow in flows]
    usual = float(steps[1].norm(dim=-1).max())
    problem = flows[0].problem
    points = [("p", problem.log_ref.exp(), True), ("q", log_q.exp(), False)]
    if reward is not None:
        points.append(("π*", problem.log_optimum.exp(), True))
    marks = {"p": "s", "π*": "D"}
    with mpl.rc_context(STYLE):
        canvas = Figure(figsize=(7.2, 3.4), layout="constrained", facecolor="white")
        for axes, title, look, step, path in zip(
            canvas.subplots(1, 2), titles, looks, steps, paths, strict=True
        ):
            axes.plot(*_place(torch.eye(3).double()[[0, 1, 2, 0]]), color=figures.QUIET, lw=1)
            length = step.norm(dim=-1, keepdim=True).clamp(min=1e-14)
            # The square root keeps small steps visible, as in the browser.
            arrows = step / length * (length / usual).clamp(max=1).sqrt() * 0.12
            arrows = torch.where(length > 1e-13, arrows, 0.0)
            axes.quiver(*_place(lattice), *_place(arrows), color=look.color, width=0.005, scale=1,
                        angles="xy", scale_units="xy", pivot="mid", minlength=0)  # fmt: skip
            axes.plot(*_place(path.exp()), color=look.color, ls=look.dashes, lw=2.2)
            axes.plot(*_place(path[-1:].exp()), "o", color=look.color)
            for word, law, below in points:
                (at,), there = zip(*_place(law[None]), strict=True), figures.look(word)
                axes.plot(*at, marks.get(word, "o"), color=there.color, ms=6)
                axes.annotate(word, at, xytext=(0, -15 if below else 7), color=there.text,
                              textcoords="offset points", ha="center", weight="bold")  # fmt: skip
            for corner, at in zip("ABC", ((-0.04, -0.06), (1.04, -0.06), (0.5, 0.89)), strict=True):
                axes.annotate(corner, at, ha="center", weight="bold")
            axes.set(title=title, aspect="equal", xlim=(-0.08, 1.08), ylim=(-0.1, 0.97))
            axes.set_axis_off()
    alt = (
        f"Left: the triangle of laws over the tokens A, B and C, with the steps of {name} and the "
        f"path that starts at q. Right: the same for the gradient of {titles[1]}."
    )
    return image(canvas, alt, _caption(penalty, usage, flows, log_q, paths, name).replace("-", "−"))


def _place(laws: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Laws (M, 3), or differences of them, as points: A left below, B right below, C above."""
    return (laws[:, 1] + laws[:, 2] / 2).numpy(), (laws[:, 2] * math.sqrt(0.75)).numpy()


def _caption(penalty: str, usage: str, flows, log_q: Tensor, paths: list[Tensor], name: str) -> str:
    problem, entry = flows[0].problem, dictionary(PENALTIES[penalty], usage=usage)
    followed = {
        "fits": f"follows {in_symbols(entry.terms)}",
        "zero": "has no expected gradient",
        "unknown": "follows no known divergence",
    }[entry.verdict]
    ours, theirs = (_triple(flow.gradient(log_q), 3) for flow in flows)
    goal = "p" if not problem.rewards.any() else "π*"
    ends = [path[-1] for path in paths]
    left = float(exact.divergence("kl_qp", ends[0], problem.log_optimum))
    return (
        f"{name} {followed}. At q = {_triple(log_q.exp())} the gradient is {ours}, and the true "
        f"one {theirs}. Gradient flow from q ends at {_triple(ends[0].exp())}, where KL(q‖{goal}) "
        f"is {left:.3f}; the true gradient leads to {goal} = {_triple(problem.log_optimum.exp())}."
    )


def _triple(values: Tensor, digits: int = 2) -> str:
    # Adding 0 makes −0.000 what it is.
    return f"({', '.join(f'{round(float(v), digits) + 0.0:.{digits}f}' for v in values)})"
