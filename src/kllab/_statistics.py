r"""Every divergence, and the moments of k1, k2, k3, of rows of logits in one streamed pass.

All in float64, a tile of a row at a time: what a row takes does not grow with it.  Where numba is
installed, the CPU has the same sums as one loop (``_native.statistics``) for rows without
infinities; the functions here know every limit, and run on every device.

Both sum what each token costs (its gap above the tangent), so that nothing cancels between tokens.
Here q and p are B and B e^{−t}, with B the larger of the two and t = |log r|, so that nothing
overflows.  exp2, sinh and log2 stand for exp, expm1 and log1p, since torch hands those to a library
that starts threads for the smallest tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kllab import _compile
from kllab.checks import InputError

_LOG2E = math.log2(math.e)
_TILE = 2**13
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class MeanVariance:
    """Mean and variance of one sample's value, each (...,) float64, in nats and nats²."""

    mean: Tensor
    variance: Tensor


@dataclass(frozen=True)
class Statistics:
    """Divergences of each row, (...,) float64 in nats, and moments of k1, k2, k3 for x ~ q.

    Indexing takes a name: ``stats["kl_qp"]`` is ``stats.kl_qp``.
    """

    kl_qp: Tensor
    kl_pq: Tensor
    chi2_pq: Tensor
    chi2_qp: Tensor
    hellinger2: Tensor
    js: Tensor
    jeffreys: Tensor
    tv: Tensor
    k1: MeanVariance
    k2: MeanVariance
    k3: MeanVariance

    def __getitem__(self, name: str):
        if name not in (known := [field.name for field in fields(self)]):
            raise KeyError(f"no statistic {name!r}; there are {', '.join(known)}")
        return getattr(self, name)


def statistics(logits_q: Tensor, logits_p: Tensor) -> Statistics:
    r"""Every divergence of the registry, and the exact moments of k1, k2, k3, for rows of logits.

    Parameters
    ----------
    logits_q, logits_p : (..., V) raw logits of one shape, dtype and device, float16, bfloat16,
        float32 or float64; half precision is upcast.  They need not be normalised.  −inf is a
        token of probability 0; +inf takes all of its row's mass, in equal parts.

    Returns
    -------
    Statistics : (...,) float64 each, in nats, summed in float64 whatever the logits are.
        Infinite divergences and moments are ``inf``.  No gradient is kept.

    On the CPU, calls of at least 2^22 elements are compiled where numba is installed, once per
    process, in a second or two; ``KLLAB_COMPILE=0`` turns that off.  Working memory is a few MB
    whatever the shape.

    Raises
    ------
    InputError : NaN, integers, an empty vocabulary, a row without a logit above −inf, or two
        shapes, dtypes or devices.

    Examples
    --------
    >>> import torch
    >>> q = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.5, 0.0]])
    >>> p = torch.tensor([[0.4, 0.4, 0.2], [0.5, 0.25, 0.25]])
    >>> stats = statistics(q.log(), p.log())
    >>> stats.kl_qp, stats["tv"]
    (tensor([0.1838, 0.3466], dtype=torch.float64), tensor([0.3000, 0.2500], dtype=torch.float64))
    >>> stats.k3.mean         # .25 less than KL in the second row: p has that much where q is 0
    tensor([0.1838, 0.0966], dtype=torch.float64)
    """
    a, b = _logits(logits_q, logits_p)
    shape, v = a.shape[:-1], a.shape[-1]
    a, b = a.reshape(-1, v), b.reshape(-1, v)
    out = torch.empty(_COLUMNS, a.shape[0], dtype=torch.float64, device=a.device)
    left = torch.arange(a.shape[0])
    if native := _compile.native(a.device, a.numel()):
        left = native.statistics(a, b, out)
    if a.device.type == "cpu":
        for row in left.tolist():
            out[:, row : row + 1] = _exact(a[row : row + 1], b[row : row + 1])
    else:
        for rows in left.to(a.device).split(max(1, 2**22 // v)) if len(left) else ():
            out[:, rows] = _exact(a[rows], b[rows])
    kl, kl_pq, chi2_pq, chi2_qp, hellinger2, js, tv, k2, k3, *variances = out.view(_COLUMNS, *shape)
    return Statistics(
        kl, kl_pq, chi2_pq, chi2_qp, hellinger2, js, kl + kl_pq, tv,
        *(MeanVariance(*pair) for pair in zip((kl, k2, k3), variances, strict=True)),
    )  # fmt: skip


_COLUMNS = 12  # seven divergences, the means of k2 and k3, three variances


def _logits(logits_q, logits_p) -> tuple[Tensor, Tensor]:
    for name, x in (("logits_q", logits_q), ("logits_p", logits_p)):
        if not isinstance(x, Tensor) or x.dtype not in _FLOATS:
            came = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise InputError(name, "a tensor of floats", str(came))
        if x.ndim == 0 or x.shape[-1] == 0:
            raise InputError(name, "a trailing vocabulary axis (..., V)", str(tuple(x.shape)))
    for what in ("shape", "dtype", "device"):
        q, p = (getattr(x, what) for x in (logits_q, logits_p))
        if q != p:
            q, p = (tuple(x) if what == "shape" else x for x in (q, p))
            raise InputError("logits_p", f"{what} {q}, as logits_q has", str(p))
    return logits_q.detach(), logits_p.detach()


# --- float64, tile by tile ------------------------------------------------------------------


def _exact(a: Tensor, b: Tensor) -> Tensor:
    """(12, rows) from logits (rows, V)."""
    a, b = _settled("logits_q", a), _settled("logits_p", b)
    norm_a, norm_b = _log_sum(a), _log_sum(b)
    width = max(1, _TILE // a.shape[0]) if a.device.type == "cpu" else a.shape[1]

    def tiles():
        for x, y in zip(a.split(width, -1), b.split(width, -1), strict=True):
            yield x.double() - norm_a, y.double() - norm_b

    sums = sum(_costs(*tile) for tile in tiles())
    means = torch.stack([sums[0], sums[7], sums[8]])
    centre = torch.where(means.isfinite(), means, 0.0)[..., None]
    variances = sum(_spread(*tile, centre) for tile in tiles())
    return torch.cat([sums, variances.masked_fill(means.isinf(), math.inf)])


def _settled(argument: str, x: Tensor) -> Tensor:
    """The same rows without +inf: where that stands are equal parts of all there is."""
    top = x.amax(-1, keepdim=True)
    if torch.isnan(top).any():
        raise InputError(argument, "no NaN", f"NaN in {int(top.isnan().sum())} rows or more")
    if (top == -math.inf).any():
        raise InputError(argument, "a logit above -inf in each row", "a row of -inf")
    if (top == math.inf).any():
        certain = torch.where(x == math.inf, 0.0, -math.inf).to(x.dtype)
        x = torch.where(top == math.inf, certain, x)
    return x


def _log_sum(x: Tensor) -> Tensor:
    """logsumexp in float64, (rows, 1)."""
    top = x.amax(-1, keepdim=True).double()
    width = max(1, _TILE // x.shape[0]) if x.device.type == "cpu" else x.shape[1]
    total = sum(
        torch.exp2((t.double() - top) * _LOG2E).sum(-1, keepdim=True) for t in x.split(width, -1)
    )
    return top + torch.log(total)


def _sides(log_q: Tensor, log_p: Tensor):
    """B, t = |log r| (0 where nothing has mass), e^{−t/2}, e^{−t} − 1, where p > q, and q > 0."""
    larger = torch.exp2(torch.maximum(log_q, log_p) * _LOG2E)
    log_r = torch.where(larger > 0, log_p - log_q, 0.0)
    t = log_r.abs()
    half = t.clamp(max=1400.0) / 2  # e^−1400 is 0, and sinh(700) a number
    root = torch.exp2(half * -_LOG2E)
    u = -2 * root * torch.sinh(half)
    return larger, t, root, u, log_r > 0, log_q > -math.inf


def _log1p(x: Tensor) -> Tensor:
    y = 1 + x
    return torch.where(y == 1, x, torch.log2(y) / _LOG2E * (x / (y - 1)))


def _costs(log_q: Tensor, log_p: Tensor) -> Tensor:
    """(9, rows): the divergences without jeffreys, and the means of k2 and k3."""
    larger, t, root, u, up, can = _sides(log_q, log_p)
    e = root * root
    et = torch.where(e > 0, e * t, 0.0)
    shared = t + u  # k3 of the larger to the smaller
    other = -u - et  # and of the smaller to the larger
    one, two = larger * shared, larger * other
    square = larger * u * u
    over = torch.where(square > 0, square / e, 0.0)
    gap = u / (1 + root)
    js = -(et + (1 + e) * _log1p(u / 2)) / 2
    k3 = torch.where(up, two, one)
    q = larger * torch.where(up, e, 1.0)
    parts = (
        k3,
        torch.where(up, one, two),
        torch.where(up, over, square),
        torch.where(up, square, over),
        larger * gap * gap,
        larger * js,
        -larger * u / 2,
        torch.where(q > 0, q * t * t, 0.0) / 2,
        torch.where(can, k3, 0.0),
    )
    return torch.stack([part.sum(-1) for part in parts])


def _spread(log_q: Tensor, log_p: Tensor, mean: Tensor) -> Tensor:
    """(3, rows): the variances of k1, k2, k3 around their means (3, rows, 1), where finite."""
    larger, t, root, u, up, can = _sides(log_q, log_p)
    e = root * root
    q = larger * torch.where(up, e, 1.0)
    k1 = torch.where(up, -t, t)
    # Above q, k3 = e^t − 1 − t may overflow where q k3² does not.
    k3 = torch.where(up, (-u - torch.where(e > 0, e * t, 0.0)) / e, t + u)
    parts = []
    for value, centre in zip((k1, k1 * k1 / 2, k3), mean, strict=True):
        off = value - centre
        parts.append(torch.where(q > 0, q * off * off, 0.0).sum(-1))
    # e = 0 and q = 0 in float64, but q k3² = p²/q is beyond every float.
    beyond = (can & up & (e == 0) & (larger > 0)).any(-1)
    parts[2] = parts[2].masked_fill(beyond, math.inf)
    return torch.stack(parts)
