r"""Small RL problems whose optimum is known: where does each placement of a KL penalty lead?

The goal is E_π[R] − β KL(π‖ref) over whole sequences. Its maximum is π* ∝ ref · exp(R/β), in
closed form, and a tabular policy can reach it. What a run follows is the gradient of

    −E[R] + β · (the penalty, placed in the loss, in the reward, or both),

and only some placements have π* as their fixed point. The gradient is either the expected one,
by enumeration, or one from samples; all seeds and all β advance side by side as leading axes.

Divergences are in nats; rewards and β are in units of reward and of reward per nat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy import integrate, optimize
from torch import Tensor

from kllab import exact
from kllab._masks import one_of, weigh
from kllab.checks import InputError, as_count, as_generator, as_log, as_log_probs, as_number
from kllab.estimators import K1, K2, K3, Estimator
from kllab.gradients import USAGES, less_baseline
from kllab.penalties import k1_in_reward, k2_in_loss, k3_with_k2_gradient, weighted_k3
from kllab.sequences import CREDITS, PerToken, Tree, per_token, placed

NEVER = -600.0
"""A sequence less likely than e^-600 counts as impossible, while its ratio still fits float64."""

COLLAPSED = -80.0
"""A flow in which some sequence gets less likely than e^-80 has left for the boundary."""


@dataclass(frozen=True)
class Placement:
    """A per-token penalty and where it enters.

    ``fn``: an estimator, or (logprob, ref_logprob) to values, any common shape (..., T).
    ``usage``: ``"loss"``, ``"reward"`` or ``"both"``, each with the full β. ``credit``: what a
    token answers for as reward, see :func:`kllab.sequences.expected_gradient`.

    >>> Placement("k2 loss, token reward", K2, "both", credit="token").usage
    'both'
    """

    name: str
    fn: Estimator | PerToken
    usage: str
    credit: str = "to_go"

    def __post_init__(self) -> None:
        one_of("usage", self.usage, USAGES)
        one_of("credit", self.credit, CREDITS)


def _on_policy_weighted_k3(logprob: Tensor, ref_logprob: Tensor) -> Tensor:
    return weighted_k3(logprob, ref_logprob, logprob.detach())


PLACEMENTS = {
    placement.name: placement
    for placement in (
        Placement("k1 reward", k1_in_reward, "reward"),
        Placement("k2 loss", k2_in_loss, "loss"),
        Placement("w k3 loss", _on_policy_weighted_k3, "loss"),
        Placement("k3+ loss", k3_with_k2_gradient, "loss"),
        Placement("k3 both", K3, "both"),
        Placement("k3 loss", K3, "loss"),
        Placement("k3 reward", K3, "reward"),
        Placement("k2 reward", K2, "reward"),
        Placement("k1 loss", K1, "loss"),
    )
}
"""The placements that the book compares; those before "k3 loss" lead a bandit to π*."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Sequences with rewards, a reference, and the price β of leaving it.

    ``ref_logits``: (N, V), a row for each prefix of ``tree``; ``rewards``: (S,) finite, one for
    each sequence; ``beta``: above 0, a number or a tensor of any shape (...), to be compared side
    by side.

    Raises ``InputError`` for what does not fit.

    >>> tree = Tree(V=2, T=2)
    >>> problem = Problem(tree, torch.zeros(3, 2), torch.tensor([1.0, 0.0, 0.0, 0.0]), beta=0.5)
    >>> problem.log_optimum.exp()
    tensor([0.7112, 0.0963, 0.0963, 0.0963], dtype=torch.float64)
    """

    tree: Tree
    ref_logits: Tensor
    rewards: Tensor
    beta: Tensor | float

    def __post_init__(self) -> None:
        ref = as_log("ref_logits", self.ref_logits).double()
        rewards = as_log("rewards", self.rewards).double()
        given = isinstance(self.beta, Tensor)  # a float stays one: .2 in float32 is another β
        beta = self.beta if given else torch.as_tensor(self.beta, dtype=torch.float64)
        count = len(self.tree.tokens)
        if rewards.shape != (count,) or torch.isinf(rewards).any():
            raise InputError("rewards", f"{count} finite numbers", f"{tuple(rewards.shape)}")
        if not ((beta > 0) & torch.isfinite(beta)).all():
            raise InputError("beta", "finite numbers above 0", "others")
        for name, value in (("ref_logits", ref), ("rewards", rewards), ("beta", beta.double())):
            object.__setattr__(self, name, value)

    @cached_property
    def log_ref(self) -> Tensor:
        """(S,) log-probabilities of the sequences under the reference."""
        return self.tree.log_probs(self.ref_logits)

    @cached_property
    def log_optimum(self) -> Tensor:
        """(..., S): log π*, for each β."""
        return torch.log_softmax(self.log_ref + self.rewards / self.beta[..., None], -1)


def bandit(log_p: Tensor, rewards: Tensor, beta) -> Problem:
    """The one-step problem: V tokens with rewards (V,), reference ``log_p`` (V,), normalised.

    >>> half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    >>> bandit(half.log(), torch.tensor([1.0, 0.0]), beta=1.0).log_optimum.exp()
    tensor([0.7311, 0.2689], dtype=torch.float64)
    """
    log_p = as_log_probs("log_p", log_p)
    if log_p.ndim != 1:
        raise InputError("log_p", "one vocabulary (V,)", f"shape {tuple(log_p.shape)}")
    return Problem(Tree(V=len(log_p), T=1), log_p[None], rewards, beta)


# --- what a step follows --------------------------------------------------------------------


def expected_gradient(problem: Problem, placement: Placement, logits: Tensor) -> Tensor:
    """The mean gradient of the minimised cost, by enumeration: ``logits`` (..., N, V) to same.

    The leading axes broadcast with β's.

    >>> problem = bandit(torch.tensor([0.5, 0.5]).log(), torch.tensor([1.0, 0.0]), beta=1.0)
    >>> at_optimum = problem.log_optimum[None]
    >>> bool(expected_gradient(problem, PLACEMENTS["k2 loss"], at_optimum).abs().max() < 1e-15)
    True
    """
    logits = logits.detach().requires_grad_()
    tree = problem.tree
    logprob = tree.token_log_probs(logits)
    log_q = logprob.sum(-1)
    possible = log_q > NEVER
    live = tree.mask & possible[..., None]
    values = per_token(placement.fn, logprob, tree.token_log_probs(problem.ref_logits), live)
    cost = placed(values, logprob, live, usage=placement.usage, credit=placement.credit)
    log_weight = log_q.detach().where(possible, -torch.inf)
    # Any constant may go from the reward; without its mean the sum keeps more digits.
    reward = problem.rewards - weigh(log_weight, problem.rewards).sum(-1, keepdim=True)
    cost = problem.beta[..., None] * cost - reward * log_q.where(possible, 0.0)
    return torch.autograd.grad(weigh(log_weight, cost).sum(), logits)[0]


def sampled_gradient(
    problem: Problem,
    placement: Placement,
    logits: Tensor,
    drawn: Tensor,
    *,
    baseline: str = "leave_one_out",
) -> Tensor:
    """The gradient that n sampled sequences give: ``logits`` (..., N, V) to the same shape.

    ``drawn``: (n, ...) indices of sequences, as ``tree.sample`` returns them for ``logits``.
    ``baseline``, subtracted from each sequence's reward less its penalty: ``"none"``,
    ``"mean"`` of all n, which shrinks the whole reward part by 1 − 1/n, or ``"leave_one_out"``,
    the mean of the other n − 1.

    >>> problem = bandit(torch.tensor([0.5, 0.5]).log(), torch.tensor([1.0, 0.0]), beta=1.0)
    >>> drawn, logits = torch.tensor([0, 1]), torch.zeros(1, 2, dtype=torch.float64)
    >>> sampled_gradient(problem, PLACEMENTS["k2 loss"], logits, drawn)
    tensor([[-0.5000,  0.5000]], dtype=torch.float64)
    """
    logits = logits.detach().requires_grad_()
    tree, drawn = problem.tree, drawn.movedim(0, -1)
    if baseline == "leave_one_out" and drawn.shape[-1] < 2:
        raise InputError("drawn", "at least 2 samples to leave one out", str(drawn.shape[-1]))
    table = tree.token_log_probs(logits)
    logprob = torch.take_along_dim(table, drawn[..., None], -2)
    live = tree.mask[drawn]
    ref = tree.token_log_probs(problem.ref_logits)[drawn]
    values = per_token(placement.fn, logprob, ref, live)
    beta, reward = problem.beta[..., None], problem.rewards[drawn]
    cost = beta * placed(values, logprob, live, usage=placement.usage, credit=placement.credit)
    # What a token's penalty pushes on is in the cost already; the baseline sees all of the reward.
    penalty = beta * values.detach().sum(-1) if placement.usage != "loss" else 0.0
    advantage = less_baseline(reward - penalty, how=baseline) + penalty
    cost = cost - advantage * logprob.sum(-1)
    return torch.autograd.grad(cost.mean(-1).sum(), logits)[0]


# --- training -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Law:
    """Laws over sequences, (..., S), and how far they are from where they should be."""

    problem: Problem
    placement: Placement
    log_probs: Tensor

    @property
    def kl_policy_optimum(self) -> Tensor:
        """KL(π‖π*), (...), nats: β times this is what the goal still lacks."""
        return exact.divergence("kl_qp", self.log_probs, self.problem.log_optimum)

    @property
    def kl_optimum_policy(self) -> Tensor:
        """KL(π*‖π), (...), nats."""
        return exact.divergence("kl_pq", self.log_probs, self.problem.log_optimum)

    @property
    def kl_policy_ref(self) -> Tensor:
        """KL(π‖ref), (...), nats."""
        return exact.divergence("kl_qp", self.log_probs, self.problem.log_ref)

    @property
    def reward(self) -> Tensor:
        """E_π[R], (...)."""
        return weigh(self.log_probs, self.problem.rewards).sum(-1)

    def _columns(self) -> dict[str, np.ndarray]:
        names = ("kl_policy_optimum", "kl_optimum_policy", "kl_policy_ref", "reward")
        beta = self.problem.beta.expand(self.log_probs.shape[:-1])
        columns = {"beta": beta} | {name: getattr(self, name) for name in names}
        return {name: value.reshape(-1).numpy() for name, value in columns.items()}


@dataclass(frozen=True, eq=False)
class Run(_Law):
    """A training run: ``log_probs`` (M, seeds, ..., S) at the steps ``step`` (M,).

    The axes (...) are β's. ``logits``: (seeds, ..., N, V) at the end. Each distance is a
    property of shape (M, seeds, ...).
    """

    step: Tensor
    logits: Tensor

    def to_frame(self):
        """A pandas table: a row for each recorded step, seed and β."""
        import pandas as pd

        index = np.indices(self.log_probs.shape[:-1]).reshape(self.log_probs.ndim - 1, -1)
        columns = {"step": self.step.numpy()[index[0]], "seed": index[1]} | self._columns()
        return pd.DataFrame(columns).assign(placement=self.placement.name)


def train(
    problem: Problem,
    placement: Placement,
    *,
    steps: int,
    lr: float,
    seeds: int = 1,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    baseline: str = "leave_one_out",
    start: Tensor | None = None,
    optimizer: Callable = torch.optim.SGD,
    records: int = 100,
) -> Run:
    """Minimise the placed cost, all seeds and all β at once.

    ``samples`` sequences a step, drawn with ``generator``; ``None`` follows the expected gradient.
    ``start``: logits that broadcast to (seeds, ..., N, V), the reference by default.
    ``optimizer``: called with ([logits], lr=lr); it must work element by element, as SGD and
    Adam do, for seeds to stay independent. About ``records`` states are kept, first and last
    among them.

    Raises ``InputError`` for sizes below 1, a learning rate that is not above 0, or samples
    without a generator.

    >>> problem = bandit(torch.tensor([0.5, 0.5]).log(), torch.tensor([1.0, 0.0]), beta=1.0)
    >>> run = train(problem, PLACEMENTS["k1 reward"], steps=200, lr=1.0)
    >>> run.log_probs.shape, bool(run.kl_policy_optimum[-1] < 1e-12)
    (torch.Size([101, 1, 2]), True)
    """
    steps, seeds = as_count("steps", steps, least=1), as_count("seeds", seeds, least=1)
    every = -(-steps // as_count("records", records, least=1))
    if samples is not None:
        as_count("samples", samples, least=1), as_generator("generator", generator)
    tree = problem.tree
    shape = (seeds, *problem.beta.shape, tree.rows, tree.V)
    start = problem.ref_logits if start is None else as_log("start", start).double()
    logits = start.detach().expand(shape).clone()
    descent = optimizer([logits], lr=as_number("lr", lr, above=0.0))
    kept, laws = [0], [tree.log_probs(logits)]
    for step in range(1, steps + 1):
        if samples is None:
            logits.grad = expected_gradient(problem, placement, logits)
        else:
            drawn = tree.sample(logits, samples, generator=generator)
            logits.grad = sampled_gradient(problem, placement, logits, drawn, baseline=baseline)
        descent.step()
        if step % every == 0 or step == steps:
            kept.append(step)
            laws.append(tree.log_probs(logits))
    logits.grad = None
    return Run(problem, placement, torch.stack(laws), torch.tensor(kept), logits)


# --- fixed points ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FixedPoint(_Law):
    """Where the expected gradient leads: ``log_probs`` (S,), ``logits`` (N, V).

    ``status``: ``"converged"``; ``"collapsed"``, some sequence fell below e^-80; ``"moving"``,
    still on its way when time was up. ``residual``: the largest advantage that a token still has
    over its row's mean, penalty included, in units of reward; 0 at rest. The distances are
    properties, scalars.
    """

    logits: Tensor
    status: str
    residual: float


def fixed_point(
    problem: Problem,
    placement: Placement,
    *,
    start: Tensor | None = None,
    horizon: float = 1e6,
) -> FixedPoint:
    """Follow the expected gradient to where it vanishes, or to the boundary.

    One β. ``start``: (N, V) logits, the reference by default; tokens at -inf stay there.
    The flow is that of the natural gradient, each entry divided by how often its token is drawn:
    it rests where the gradient does, and rare tokens do not make it wait. Its speed is bounded
    by 1, so ``horizon``, the time to give up, is in nats. The end is refined by least squares
    on the same field; a residual below 1e-9 counts as converged.

    Raises ``InputError`` for several β, or a horizon that is not above 0.

    >>> problem = bandit(torch.tensor([0.5, 0.5]).log(), torch.tensor([1.0, 0.0]), beta=0.5)
    >>> at = {name: fixed_point(problem, PLACEMENTS[name]) for name in ("k1 reward", "k3 loss")}
    >>> [round(float(point.log_probs[0].exp()), 3) for point in at.values()]
    [0.881, 0.809]
    """
    if problem.beta.ndim:
        raise InputError("problem", "one beta", f"betas of shape {tuple(problem.beta.shape)}")
    start = problem.ref_logits if start is None else as_log("start", start).double()
    start = start.detach()
    free, tree = torch.isfinite(start), problem.tree

    def as_logits(flat: np.ndarray) -> Tensor:
        return start.masked_scatter(free, torch.from_numpy(np.array(flat)))

    def advantage(flat: np.ndarray) -> np.ndarray:
        """Minus the natural gradient, at the free entries."""
        logits = as_logits(flat)
        gradient = expected_gradient(problem, placement, logits)
        drawn = torch.exp(tree.reach(logits)[:, None] + torch.log_softmax(logits, -1))
        return -torch.where(drawn > 0, gradient / drawn, 0.0)[free].numpy()

    def velocity(_, flat: np.ndarray) -> np.ndarray:
        field = advantage(flat)
        return field / (1 + abs(field).max())

    def at_rest(_, flat: np.ndarray) -> float:
        return abs(advantage(flat)).max() - 1e-7

    def collapsed(_, flat: np.ndarray) -> float:
        law = tree.log_probs(as_logits(flat))
        return float(law[torch.isfinite(law)].min()) - COLLAPSED

    at_rest.terminal = collapsed.terminal = True
    flow = integrate.solve_ivp(
        velocity,
        (0.0, as_number("horizon", horizon, above=0.0)),
        start[free].numpy(),
        method="BDF",
        events=(at_rest, collapsed),
        rtol=1e-6,
        atol=1e-8,
    )
    end = flow.y[:, -1]
    status = "collapsed" if len(flow.t_events[1]) else "moving"
    if status == "moving":
        refined = optimize.root(advantage, end, method="lm", tol=1e-15).x
        moved = (tree.log_probs(as_logits(refined)) - tree.log_probs(as_logits(end))).abs()
        # A root that least squares finds far off is not where the flow went.
        if abs(advantage(refined)).max() < 1e-9 and moved.nan_to_num(0.0).max() < 1e-2:
            end, status = refined, "converged"
    logits, residual = as_logits(end), float(abs(advantage(end)).max())
    return FixedPoint(problem, placement, tree.log_probs(logits), logits, status, residual)


@dataclass(frozen=True, eq=False)
class Sweep:
    """Fixed points over placements and β, in that order."""

    points: tuple[FixedPoint, ...]

    def to_frame(self):
        """A pandas table: a row for each placement and β."""
        import pandas as pd

        parts = (
            pd.DataFrame(point._columns()).assign(
                placement=point.placement.name, status=point.status, residual=point.residual
            )
            for point in self.points
        )
        return pd.concat(parts, ignore_index=True)


def beta_sweep(problem: Problem, placements: Iterable[Placement], **options) -> Sweep:
    """The fixed point of each placement at each of the problem's β.

    ``options`` go to :func:`fixed_point`.

    >>> log_p = torch.tensor([0.5, 0.5]).log()
    >>> problem = bandit(log_p, torch.tensor([1.0, 0.0]), beta=torch.tensor([0.5, 1.0]))
    >>> table = beta_sweep(problem, [PLACEMENTS["k2 loss"]]).to_frame()
    >>> table["beta"].tolist(), bool((table["kl_policy_optimum"] < 1e-12).all())
    ([0.5, 1.0], True)
    """
    points = []
    for placement in placements:
        for beta in problem.beta.reshape(-1):
            one = Problem(problem.tree, problem.ref_logits, problem.rewards, beta)
            points.append(fixed_point(one, placement, **options))
    return Sweep(tuple(points))


# --- the dropped token ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DroppedToken:
    """Runs that start where the policy has nearly dropped a token that the reference likes.

    ``run``: of a two-token bandit without rewards, token 1 dropped, every step recorded.
    """

    run: Run

    @property
    def probability(self) -> Tensor:
        """(M, seeds): the policy's probability of the token."""
        return self.run.log_probs[..., 1].exp()

    @property
    def recovered(self) -> Tensor:
        """(seeds,) bool: at the end the token has at least half of the reference's probability."""
        return self.probability[-1] >= self.run.problem.log_ref[1].exp() / 2

    @property
    def largest_jump(self) -> Tensor:
        """(seeds,): the largest factor that one step multiplied the token's probability by."""
        return self.run.log_probs[..., 1].diff(dim=0).amax(0).exp()


def dropped_token(
    placement: Placement,
    *,
    probability: float = 1.5e-4,
    ref_probability: float = 0.2,
    samples: int = 64,
    steps: int = 1500,
    lr: float = 0.1,
    seeds: int = 20,
    generator: torch.Generator,
) -> DroppedToken:
    """Train on the penalty alone from a policy that has nearly dropped one of two tokens.

    Batches seldom hold the token. When one does, k3 as loss has the coefficient
    1 − r = −1332 there and throws the policy back; k2 as loss has log(q/p) = −7.2.

    >>> start = torch.Generator().manual_seed(0)
    >>> runs = dropped_token(PLACEMENTS["k3 loss"], steps=10, seeds=2, generator=start)
    >>> runs.probability.shape
    torch.Size([11, 2])

    Source: the blog post "GRPO's KL penalty pulls toward the forward KL" (khanhptnk, 2026).
    """
    for name, value in (("probability", probability), ("ref_probability", ref_probability)):
        as_number(name, value, above=0.0, at_most=1.0 - 1e-12)
    q, p = (
        torch.tensor([1 - x, x], dtype=torch.float64).log() for x in (probability, ref_probability)
    )
    run = train(
        bandit(p, torch.zeros_like(p), beta=1.0),
        placement,
        steps=steps,
        lr=lr,
        seeds=seeds,
        samples=samples,
        generator=generator,
        start=q[None],
        records=steps,
    )
    return DroppedToken(run)
