"""A typed penalty, and the divergence that it follows."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from kllab import _fit, figures, gradients
from kllab._terms import in_symbols
from kllab.auditor import Part, audit
from kllab.checks import InputError
from kllab.estimators import K1, K2, K3
from kllab.explorables._element import Explorable, explorable, within
from kllab.explorables._picture import STYLE, image

Q, P = (0.7, 0.2, 0.1), (0.4, 0.4, 0.2)
LONGEST = 120
WEIGHTS = {"loss": "−h′", "reward": "h", "both": "h − h′"}

# What a formula may hold; the same in the browser, where it may arrive in a link.  Where both are
# equal the first argument of max and min counts, so that a bound belongs to what it bounds.
_NAMES = {
    "l": lambda log_r: log_r,
    "r": torch.exp,
    "k1": K1,
    "k2": K2,
    "k3": K3,
    "e": lambda log_r: log_r.new_tensor(math.e),
    "pi": lambda log_r: log_r.new_tensor(math.pi),
}
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    fn.__name__: fn
    for fn in (torch.exp, torch.expm1, torch.log, torch.log1p, torch.sqrt, torch.tanh, torch.abs)
} | {
    "sign": torch.sign,
    "detach": Tensor.detach,
    "max": lambda a, b: torch.where(a >= b, a, b),
    "min": lambda a, b: torch.where(a <= b, a, b),
}
_ARGUMENTS = {"max": range(2, 9), "min": range(2, 9), "clamp": range(3, 4)}


def dictionary(
    *,
    formula: str = "r - 1 - l",
    usage: str = "loss",
    log_r: float = 1.0,
) -> Explorable:
    """A penalty as a formula in l = log r: what its value and its gradient are of.

    In the default state a loss whose mean is KL(q‖p), and never below 0, follows KL(p‖q).

    Parameters
    ----------
    formula : of numbers, l, r, k1, k2, k3, e, pi, + - * / ^, exp, expm1, log, log1p, sqrt, tanh,
        abs, sign, max, min, clamp(x, low, high), and detach, which has no gradient.
    usage : ``"loss"``, ``"reward"`` or ``"both"``.
    log_r : of the sample that is marked, within [−3, 3], in steps of 0.05.

    Raises
    ------
    InputError : a formula that is none or that gives no numbers around log r = 0, or another value
        that the figure cannot show.

    Examples
    --------
    >>> figure = dictionary(formula="abs(l)")
    >>> figure
    <kl-dictionary formula=abs(l) usage=loss l=1>: a figure for the browser
    >>> "the gradient is that of 2 TV(q, p)" in figure.fallback
    True
    """
    penalty = penalty_of(formula)
    if usage not in gradients.USAGES:
        raise InputError("usage", f"one of {', '.join(gradients.USAGES)}", repr(usage))
    within(log_r=(log_r, -3.0, 3.0))
    return explorable(
        "dictionary",
        {"formula": formula, "usage": usage, "l": log_r},
        _picture(formula, penalty, usage, log_r),
        heights=("87rem", "56rem"),
    )


def penalty_of(formula: str) -> Callable[[Tensor], Tensor]:
    """The function of log r that a formula is; ``InputError`` where it is none."""
    told = "a formula in l = log r, such as r - 1 - l"
    odd = not isinstance(formula, str) or re.search(
        r"[^\w\s.,+*/^()-]|_|\d[xobj]", formula, re.A | re.I
    )
    if odd or len(formula) > LONGEST:
        raise InputError("formula", f"{told}, of at most {LONGEST} characters", repr(formula))
    try:
        tree = ast.parse(formula.strip().replace("^", "**"), mode="eval").body
    except SyntaxError as error:
        raise InputError("formula", told, f"{formula!r}: {error.msg}") from None

    def penalty(log_r: Tensor) -> Tensor:
        return torch.broadcast_to(_value(tree, log_r), log_r.shape).clone()

    penalty(torch.ones(1, dtype=torch.float64))
    return penalty


def _value(node: ast.expr, log_r: Tensor) -> Tensor:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            if math.isfinite(number):
                return log_r.new_tensor(float(number))
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name](log_r)
        case ast.UnaryOp(op=sign, operand=inner) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(inner, log_r))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(left, log_r), _value(right, log_r))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            if len(args) in _ARGUMENTS.get(name, range(1, 2)) and name in {*_FUNCTIONS, "clamp"}:
                first, *rest = (_value(arg, log_r) for arg in args)
                if name == "clamp":
                    return _FUNCTIONS["min"](_FUNCTIONS["max"](first, rest[0]), rest[1])
                for other in rest or [()]:
                    first = _FUNCTIONS[name](first, *([other] if rest else []))
                return first
    raise InputError("formula", "numbers, names and functions that it knows", ast.unparse(node))


def _picture(formula: str, penalty, usage: str, log_r: float) -> str:
    """The static figure: value, weight on the score, and generator, beside those of KL(q‖p)."""
    try:
        entry = gradients.dictionary(penalty, usage=usage)
    except InputError as error:
        raise InputError("formula", error.expected, error.received) from None
    value = audit(penalty).value

    def weight(l: Tensor) -> Tensor:
        return gradients.coefficient(penalty, -l, torch.zeros_like(l), usage=usage) - entry.constant

    l = torch.linspace(-3, 3, 241, dtype=torch.float64)
    l = l[l != 0]
    curve = (penalty(l), weight(l), _fit.generator_of(weight, 0.0, entry.region)(l))
    at = torch.tensor([log_r], dtype=torch.float64)
    marks = (penalty(at), weight(at), curve[2][(l - log_r).abs().argmin()][None])
    truths, names = (None, -l, K3(l)), ("h", WEIGHTS[usage], "f")
    titles = ("value of a sample", "weight on its score", "f, less its tangent at 1")
    with mpl.rc_context(STYLE):
        canvas = Figure(figsize=(7.2, 2.6), layout="constrained", facecolor="white")
        panels = canvas.subplots(1, 3)
        for axes, y, mark, truth, name, title in zip(
            panels, curve, marks, truths, names, titles, strict=True
        ):
            x, place = (l.exp(), math.exp(log_r)) if axes is panels[-1] else (l, log_r)
            axes.plot(x, y, color=figures.INK, lw=2, label=name)
            usual = [y[l.abs() < 1.6]]
            if truth is not None:
                usual.append(truth[l.abs() < 1.6])
                axes.plot(x, truth, color=figures.INK, ls=figures.LOOKS["truth"].dashes,
                          label="KL(q‖p)")  # fmt: skip
                axes.legend(frameon=False, fontsize=8)
            axes.plot(place, mark, "o", color=figures.LOOKS["k3"].color)
            axes.axhline(0, color="#d9dce0", zorder=0)
            finite = torch.cat(usual).nan_to_num(0, 0, 0)
            low, high = float(finite.min()), float(finite.max())
            pad = 0.12 * (high - low or 1.0)
            axes.set(title=title, ylim=(min(low, 0) - pad, max(high, 0) + pad))
            axes.set_xlabel("r" if axes is panels[-1] else "l = log r")
        panels[-1].set_xlim(0, 4)
    alt = (
        f"Left: the value of {formula} against log r. Middle: the weight that it puts on the score "
        f"{_PLACES[usage]}, beside that of KL(q‖p). Right: the generator f that belongs to it."
    )
    return image(canvas, alt, _caption(formula, penalty, usage, entry, value).replace("-", "−"))


_PLACES = {"loss": "as a loss", "reward": "as a reward", "both": "as a loss and as a reward"}


def _caption(formula: str, penalty, usage: str, entry: gradients.Entry, value: Part) -> str:
    constant = round(value.free.get("constant", 0.0), 9)
    more = f" {'-' if constant < 0 else '+'} {abs(constant):.4g}" if constant else ""
    measured = {
        "fits": f"{in_symbols(value.terms)}{more}",
        "zero": "the same for every pair",
        "unknown": "no sum of known divergences",
    }[value.verdict]
    followed = {
        "fits": f"the gradient is that of {in_symbols(entry.terms)}",
        "zero": "there is no expected gradient",
        "unknown": "the gradient is that of no sum of known divergences",
    }[entry.verdict]
    low, high = entry.region
    convex = "" if entry.verdict == "zero" else f"; f is {'' if entry.is_convex else 'not '}convex"
    log_q, log_p = (torch.tensor(law, dtype=torch.float64).log() for law in (Q, P))
    mean, kl = (float(log_q.exp() @ fn(log_p - log_q)) for fn in (penalty, K1))
    ours, true = (
        gradients.expected(fn, log_q, log_p, usage=place)
        for fn, place in ((penalty, usage), (K1, "reward"))
    )
    return (
        f"h = {formula}. The mean is {measured}; {_PLACES[usage]}, {followed}, for log r from "
        f"{low:.3g} to {high:.3g}{convex}. With q = {Q} and p = {P} the mean is {mean:.3f} and "
        f"KL(q‖p) is {kl:.3f}; the gradient is {_vector(ours)} and that of KL(q‖p) {_vector(true)}."
    )


def _vector(values: Tensor) -> str:
    # Adding 0 makes −0.000 what it is.
    return f"({', '.join(f'{x:.3f}' for x in np.round(values.numpy(), 3) + 0.0)})"
