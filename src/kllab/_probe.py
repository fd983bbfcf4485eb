"""Calling somebody's function: which argument is what, one value and derivative per token.

Whatever the function does ends here: an exception becomes :class:`Refused`, inputs are copies, and
what it returns is brought to float64 per-token values and their derivatives by ``logprob``.
"""

from __future__ import annotations

import inspect
import itertools
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kllab.checks import InputError

ROLES = ("logprob", "ref_logprob", "old_logprob", "mask")
_SAY = {
    "mask": "mask masks",
    "ref_logprob": "ref refs reference base sft teacher init initial prior frozen p",
    "old_logprob": "old rollout rollouts behavior behaviour gen generation generator sampling "
    "sampler mu prev previous vllm sglang inference infer",
    "logprob": "policy student new actor cur curr current train trainer training learner hf pi "
    "theta q logq lq",
}
_WORDS = {word: role for role, said in _SAY.items() for word in said.split()}
_PLAIN = re.compile(r"log_?p(rob)?s?|lps?|(per_)?token_log_?p(rob)?s?")
_LOG_RATIO = re.compile(
    r"_|[ldxz]|lr|input|\w*log_?(r|rs|ratio|ratios|rho)|(\w+_)?(delta|diff|difference)s?"
)
_NO_LAW = """
    beta coef coeff coefficient alpha eps epsilon lam lamb lambda gamma tau temp temperature clip
    step steps scale penalty mode kind estimator config cfg adv advantage advantages reward rewards
    return returns value values weight weights token tokens ids labels
"""
_NUMBERS = set(_NO_LAW.split())


class Refused(Exception):
    """The function cannot be called, or what it returns cannot be used; becomes a finding."""

    def __init__(self, code: str, sentence: str, **numbers):
        super().__init__(sentence)
        self.code, self.numbers = code, numbers


# --- roles ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Binding:
    """Roles of the positional arguments, and of those passed by keyword {parameter: role}.

    ``log_ratio``: the one argument is log p − log q itself.  ``padding``: the mask's name, where
    that says that it is true in masked places.
    ``guessed``: (parameter, role) where their names do not say which is which.
    """

    positional: tuple[str, ...]
    keyword: Mapping[str, str]
    log_ratio: bool = False
    padding: str = ""
    guessed: tuple[tuple[str, str], ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        return (*self.positional, *self.keyword.values())

    @property
    def unnamed(self) -> bool:
        """Whether its arguments have no names at all."""
        return any(name.startswith("argument ") for name, _ in self.guessed)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_UNNAMED = inspect.Parameter("_", inspect.Parameter.POSITIONAL_ONLY)
_ROLES = f"1 to 4 required parameters, of roles {', '.join(ROLES)}"


def bind(fn: Callable, samples: str, names) -> Binding:
    """Which role each parameter of ``fn`` has, from ``names``, else from their own names."""
    if not callable(fn):
        raise InputError("fn", "a function", type(fn).__name__)
    parameters = _parameters(fn)
    if parameters and parameters[0].name in ("self", "cls"):
        raise InputError("fn", "a function or a bound method", f"{parameters[0].name}, unbound")
    takes = [p for p in parameters if p.kind not in _VARIADIC]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        takes += [_UNNAMED] * ((len(names) if names else 2) - len(takes))
    required = [p for p in takes if p.default is p.empty]
    other = "ref_logprob" if samples == "logprob" else samples
    of_log_ratio = Binding(("logprob", other), {}, log_ratio=True)
    one = len(required) == 1 and required[0].kind is not inspect.Parameter.KEYWORD_ONLY
    if one and names in ("log_r", ("log_r",), ["log_r"]):
        return of_log_ratio
    if names is not None:
        roles = _checked(names, samples, len(required), len(takes))
        return _binding(takes, roles)
    if one and _LOG_RATIO.fullmatch(required[0].name.lower()):
        return of_log_ratio
    if one:
        required = [p for p in takes if p in required or role_of(p.name) in ROLES[:3]]
    if len(required) == 1:
        got = f"{required[0].name} alone, whose name does not say log r (log_r, log_ratio, delta)"
        raise InputError("fn", _ROLES, f'{got}; names=("log_r",) says it')
    if not 2 <= len(required) <= 4:
        raise InputError("fn", _ROLES, f"({', '.join(p.name for p in required)})")
    roles, guessed = _guessed(required, samples)
    for p in takes:  # what may be left out is passed where it matters
        extra = role_of(p.name)
        if p not in required and extra not in roles and extra in ("mask", samples):
            required, roles = [*required, p], [*roles, extra]
    padding = [
        p.name
        for p, role in zip(required, roles, strict=True)
        if role == "mask" and _words(p.name) & {"pad", "padding", "padded", "ignore"}
    ]
    return replace(_binding(required, roles), guessed=guessed, padding="".join(padding))


def _parameters(fn) -> list[inspect.Parameter]:
    """Parameters of a function, of a module's ``forward``, of what TorchScript compiled."""
    fn = fn.forward if isinstance(fn, torch.nn.Module) else fn
    schema = getattr(fn, "schema", None)
    if hasattr(schema, "arguments"):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        named = [a for a in schema.arguments if a.name != "self"]
        defaults = {a.name: a.default_value for a in named if a.has_default_value()}
        empty = inspect.Parameter.empty
        return [inspect.Parameter(a.name, kind, default=defaults.get(a.name, empty)) for a in named]
    try:
        return list(inspect.signature(fn).parameters.values())
    except (ValueError, TypeError):  # a builtin such as torch.abs
        return [_UNNAMED]


def _words(name: str) -> set[str]:
    """Words of ``snake_case`` and ``camelCase``."""
    return set(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))


def role_of(name: str) -> str | None:
    """The role that a parameter's own name says, ``None`` where it says none."""
    said = {_WORDS[word] for word in _words(name) & _WORDS.keys()}
    return next((role for role in _SAY if role in said), None)


def _guessed(required, samples: str) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Roles by name, and by place where a name says none; and what of it is a guess."""
    names = [p.name for p in required]
    roles = [role_of(name) for name in names]
    whole = [name for name in names if "logits" in _words(name)]
    if whole:
        expected = "log-probabilities of drawn tokens; whole distributions are not judged"
        raise InputError("fn", expected, ", ".join(whole))
    said = [role for role in roles if role]
    count = len(roles) - said.count("mask")
    if len(set(said)) < len(said):
        raise InputError("fn", "names of different roles, or names=(...)", ", ".join(names))
    plain = [i for i, n in enumerate(names) if roles[i] is None and _PLAIN.fullmatch(n.lower())]
    if len(plain) == 1 and "logprob" not in roles:
        roles[plain[0]] = "logprob"
    spare = count == 3 and samples == "logprob" and {"logprob", "ref_logprob"} <= set(roles)
    strange = [
        p.name
        for p, role in zip(required, roles, strict=True)
        if role is None and (spare or _words(p.name) & _NUMBERS or _of_numbers(p))
    ]
    if strange:
        got = f"`{strange[0]}`, which I do not know; fix it with functools.partial"
        raise InputError("fn", _ROLES, got)
    other = "ref_logprob" if samples == "logprob" else samples
    free = [r for r in (("logprob", other) if count <= 2 else ROLES[:count]) if r not in roles]
    unsure = (None in roles and len(free) > 1) or bool({"p", "q"} & set(names))
    roles = [role or free.pop(0) for role in roles]
    if count == 2 and samples != "old_logprob":
        # Of two laws the older one is the sampled one, or the only policy.
        missing = [role for role in ("logprob", samples) if role not in roles]
        roles = [missing.pop() if missing and role == "old_logprob" else role for role in roles]
    allowed = "logprob" in roles or {"old_logprob", "ref_logprob"} <= set(roles)
    if not allowed or samples not in (*roles, "old_logprob"):
        expected = f"parameters for logprob and {other}, or names=(...)"
        raise InputError("fn", expected, ", ".join(names))
    called = [f"argument {i}" if n == "_" else n for i, n in enumerate(names, 1)]
    pairs = zip(called, roles, strict=True)
    return roles, tuple(pair for pair in pairs if pair[1] != "mask") if unsure else ()


def _of_numbers(p: inspect.Parameter) -> bool:
    return p.annotation in (float, int, bool, str, "float", "int", "bool", "str")


def _checked(names, samples: str, least: int, most: int) -> tuple[str, ...]:
    names = (names,) if isinstance(names, str) else tuple(names)
    expected = f"different roles of {', '.join(ROLES)}, 'logprob' and {samples!r} among them"
    if not (
        set(names) <= set(ROLES)
        and len(set(names)) == len(names)
        and samples in {*names, "old_logprob"}
        and ("logprob" in names or samples == "old_logprob")
        and len(set(names) - {"mask"}) > 1
    ):
        raise InputError("names", expected, repr(names))
    if not least <= len(names) <= most:
        raise InputError("names", f"a role for each of {least} parameters", repr(names))
    return names


def _binding(parameters, roles) -> Binding:
    """Required ones by position, the others by keyword."""
    pairs = list(zip(parameters, roles, strict=False))
    by_place = [p.default is p.empty and p.kind is not p.KEYWORD_ONLY for p, _ in pairs]
    return Binding(
        tuple(role for (_, role), place in zip(pairs, by_place, strict=True) if place),
        {p.name: role for (p, role), place in zip(pairs, by_place, strict=True) if not place},
    )


# --- calls ------------------------------------------------------------------------------------

_MASKS = (torch.float64, torch.bool, torch.int64)


class Probe:
    """One function, called safely.

    ``kind``: "token", "sequence" or "scalar", by what it returns for a batch; ``dims``: 2 where it
    takes (batch, time), else 1.  ``alone``: set where a token's value is a share of a mean, so that
    each needs a call.  ``attached``: whether any result had a gradient.
    """

    def __init__(self, fn: Callable, binding: Binding, q: str, p: str):
        self.fn, self.binding, self.q, self.p = fn, binding, q, p
        self.attached, self.backward_error, self.converted = False, "", ""
        self.with_grad, self.mask_type, self.alone = True, torch.float64, False
        self.mutates: tuple[str, ...] = ()
        self.kind, self.dims = self._find_kind()

    @property
    def masked(self) -> bool:
        return "mask" in self.binding.roles

    def call(self, at: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """The result as it comes, float64, and its sum's derivative by logprob, or ``None``."""
        out, leaf = self._raw(at)
        grad = None
        if out.requires_grad:
            try:
                (grad,) = torch.autograd.grad(out.sum(), leaf, allow_unused=True)
            except (Exception, SystemExit) as error:
                self.backward_error = _said(error)
                grad = torch.full_like(leaf, torch.nan)
        self.attached |= grad is not None
        return out.detach().double().cpu(), None if grad is None else grad.double()

    def tokens(self, at: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Value and derivative (N,) of each token alone, nothing masked; ``at``: role to (N,)."""
        n = len(at["logprob"])
        width, rows = (
            (n if self.kind == "token" and not self.alone else 1),
            (n if self.kind == "sequence" else 1),
        )
        each = [
            self.call(self.shaped({r: t.reshape(-1, width)[i : i + rows] for r, t in at.items()}))
            for i in range(0, n // width, rows)
        ]
        values = torch.cat([out.reshape(-1) for out, _ in each])
        grads = [torch.zeros_like(out) if g is None else g for out, g in each]
        return values, torch.cat([g.reshape(-1) for g in grads])

    def shaped(self, at: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """(batch, time), or one axis where the function takes one."""
        return {role: t if self.dims == 2 else t.reshape(-1) for role, t in at.items()}

    def takes_distributions(self) -> bool:
        """Whether it gives one value per (batch, time) for (batch, time, vocabulary)."""
        law = torch.arange(30, dtype=torch.float64).reshape(2, 3, 5).sin().log_softmax(-1)
        try:
            out, _ = self._raw({role: law.roll(i, -1) for i, role in enumerate(ROLES[:3])})
        except Refused:
            return False
        return self.kind == "sequence" and out.shape == (2, 3)

    def _raw(self, at: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        if self.masked:
            mask = at.get("mask", torch.ones_like(at["logprob"]))
            at = {**at, "mask": 1 - mask if self.binding.padding else mask}
        leaf = at["logprob"].detach().clone().requires_grad_(self.with_grad)
        with torch.set_grad_enabled(self.with_grad):
            given = {role: t.detach().clone() for role, t in at.items()}
            given["logprob"] = leaf.clone()
            if self.masked:
                given["mask"] = given["mask"].to(_mask_type(self.mask_type, leaf.dtype))
            if self.binding.log_ratio:
                args = [given[self.p] - given[self.q]]
            else:
                args = [given[role] for role in self.binding.positional]
            keywords = {name: given[role] for name, role in self.binding.keyword.items()}
            device = torch.get_default_device()
            try:
                out = self._as_tensor(self.fn(*args, **keywords))
            except Refused:
                raise
            except (Exception, SystemExit) as error:
                raise Refused("raises", f"It raises {_said(error)}.") from None
            finally:
                if torch.get_default_device() != device:
                    torch.set_default_device(None if device.type == "cpu" else device)
        self._note_writes(at, given)
        return out, leaf

    def _note_writes(self, at, given) -> None:
        for role, before in at.items():
            after = given[role].detach()
            same = after.shape == before.shape and torch.equal(
                after.to(before.dtype).nan_to_num(), before.nan_to_num()
            )
            if not same and role not in self.mutates:
                self.mutates = (*self.mutates, role)

    def _as_tensor(self, out) -> Tensor:
        if not isinstance(out, Tensor):
            kind = type(out).__name__
            if not (isinstance(out, float) or hasattr(out, "__array__")):
                raise Refused("bad_return", f"It returns {kind}, not a tensor.")
            try:
                out = torch.as_tensor(out)
            except Exception as error:
                raise Refused("bad_return", f"It returns {kind}: {_said(error)}.") from None
            self.converted = kind
        plain = out.layout == torch.strided and not out.is_nested and out.device.type != "meta"
        if not (plain and out.is_floating_point()):
            kind = f"{out.dtype}, {out.layout}, on {out.device.type}"
            raise Refused("bad_return", f"It returns no plain floating tensor, but {kind}.")
        return out

    def _find_kind(self) -> tuple[str, int]:
        first = None
        masks = _MASKS if self.masked else _MASKS[:1]
        # .numpy() refuses what has a gradient, so that comes last.
        for grad, dims, mask_type in itertools.product((True, False), (2, 1), masks):
            self.with_grad, self.mask_type = grad, mask_type
            try:
                return self._kind(dims), dims
            except Refused as refused:
                first = first or refused
                if refused.code != "raises":
                    break
        raise first

    def _seeded(self, at: Mapping[str, Tensor]) -> Tensor:
        """The result after everybody's generators are seeded."""
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(0)
        return self._raw(at)[0].nan_to_num()

    def _kind(self, dims: int) -> str:
        shape = (2, 3) if dims == 2 else (5,)
        steps = torch.arange(6, dtype=torch.float64)[: 6 if dims == 2 else 5].reshape(shape)
        at = {
            "logprob": -1 - steps / 8,
            "ref_logprob": -2 + steps / 16,
            "old_logprob": -1.5 - steps / 8,
        }
        out, _ = self._raw(at)
        again, _ = self._raw(at)
        if out.shape != again.shape or not torch.equal(out.nan_to_num(), again.nan_to_num()):
            said = "Two calls with the same input give different results"
            twice = [self._seeded(at) for _ in range(2)]
            if not torch.equal(*twice):
                said += ", with the same seed too: it keeps something from call to call"
            raise Refused("random", f"{said}.")
        kinds = {shape: "token", (6,): "token", (): "scalar", (1,): "scalar"}
        if dims == 2:
            kinds |= {(2,): "sequence", (2, 1): "sequence"}
        kind = kinds.get(tuple(out.shape))
        if kind is None:
            raise Refused(
                "bad_return",
                f"For inputs of shape {shape} it returns shape {tuple(out.shape)}.",
            )
        return kind


def _mask_type(kind: torch.dtype, data: torch.dtype) -> torch.dtype:
    """A floating mask has the data's dtype, so that it does not promote it."""
    return data if kind.is_floating_point else kind


def _said(error: Exception) -> str:
    """Type and first line of an exception, short."""
    try:
        text = str(error).strip().splitlines()
    except Exception:
        text = []
    text = text[0] if text else ""
    return f"{type(error).__name__}: {text[:120]}" if text else type(error).__name__


# --- tokens in a batch -------------------------------------------------------------------------


def aggregation(probe: Probe, at: Mapping[str, Tensor], mask: Tensor) -> str | None:
    """How one batch (B, T) is put together from its tokens, each alone: "token" (not at all),
    "mean" (no mask, so equal to every mean), "sum", one of ``kllab.sequences.HOW``, or ``None``.

    Values and derivatives must both say so.
    """
    rows, _ = mask.shape
    flat = {role: t.reshape(-1) for role, t in at.items()}
    probe.alone = False
    alone = [
        probe.tokens({role: t[i : i + 1] for role, t in flat.items()}) for i in range(mask.numel())
    ]
    v, c = (torch.cat(part).reshape(mask.shape) for part in zip(*alone, strict=True))
    batch = dict(at if probe.dims == 2 else flat)
    if probe.masked:
        batch["mask"] = mask if probe.dims == 2 else mask.reshape(-1)
    out, grad = probe.call(batch)
    counts = mask.sum(-1, keepdim=True)
    weights = {
        "token_mean": mask / mask.sum(),
        "seq_mean_token_mean": mask / counts / rows,
        "padded_mean": mask / mask.numel(),
        "seq_sum": mask / rows,
        "sum": mask,
    }
    if probe.kind == "token":
        # A mean may be left to be summed: each token's share of it.
        weights = {"token": mask, **{how: w for how, w in weights.items() if "mean" in how}}
    elif probe.kind == "sequence":  # a mean over sequences is left to the caller
        weights = {how: rows * w for how, w in weights.items() if how not in ("token_mean", "sum")}
    if not probe.masked and "token_mean" in weights:
        weights = {"mean" if how == "token_mean" else how: w for how, w in weights.items()}
    for how, weight in weights.items():
        parts = torch.where(weight > 0, weight * v, 0.0)
        dims = {"token": (), "sequence": (-1,), "scalar": (0, 1)}[probe.kind]
        whole = parts.sum(dims) if dims else parts
        if out.numel() != whole.numel():
            return None
        kept = out.reshape(mask.shape) * mask if probe.kind == "token" else out.reshape(whole.shape)
        slopes = torch.where(weight > 0, weight * c, 0.0)
        got = slopes if grad is None else grad.reshape(mask.shape) * (mask > 0)
        if close(kept, whole, parts) and close(got, slopes, slopes):
            probe.alone = probe.kind == "token" and how != "token"
            return how
    return None


def close(got: Tensor, want: Tensor, scale: Tensor, tolerance: float = 1e-5) -> bool:
    """Equal within a few float32 roundings of the largest of ``scale``; NaN is never close."""
    return bool(((got - want).abs() <= tolerance * scale.abs().max() + 1e-12).all())
