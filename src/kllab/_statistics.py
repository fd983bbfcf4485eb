r"""Every divergence, and the moments of k1, k2, k3, of rows of logits in one streamed pass.

Two kernels give the same twelve numbers a row.  The exact one works in float64, a tile of a row at
a time, and knows every limit.  The fast one works in float32, compiled to one loop where that can
be, for long rows without −inf whose log-ratios stay within ±60 nats; there differences of logits
are rounded once, and sums of sums are float64.

Of equal operations the code has those that are fast: exp2, x ** 0.5 and log2, since torch hands
exp, sqrt and log to a library that starts threads for the smallest tile; and x ** 2 for x * x,
since inductor expands whatever is used twice.

Both write q and p as B and B e^{−t}, with B the larger of the two and t = |log r|, so that nothing
overflows, and both sum what each token costs (its gap above the tangent), so that nothing cancels
between tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kllab._compile import Kernel
from kllab.checks import InputError

TILE = 2**14
"""Elements of a tile of what is not compiled: some 3 MB of temporaries."""

ROWS = 8
"""Rows that the fast kernel reads together: few enough for a cache, many enough for threads."""

_LOG2E = math.log2(math.e)
_EXACT_TILE = 2**13
_LINE = 1024  # float32 sums run over so many; their sums are float64
_TAME = 60.0  # beyond this |log r| float32 has no e^{|log r|} to spare
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
    Statistics : (...,) float64 each, in nats.  For float32 logits and KL ≥ 1e-6 the KLs are right
        to 1e-5 relative and everything else to 1e-4; float64 logits are summed in float64.
        Infinite divergences and moments are ``inf``.  No gradient is kept.

    On the CPU, calls of at least 2^22 elements are compiled where there is a C++ compiler, once
    per process, in some seconds; ``KLLAB_COMPILE=0`` turns that off.  Working memory is a few
    MB whatever the shape.

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
    if _fast_applies(a):
        left = _fast(a, b, out)
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


# --- exact: float64, tile by tile -----------------------------------------------------------


def _exact(a: Tensor, b: Tensor) -> Tensor:
    """(12, rows) from logits (rows, V)."""
    a, b = _settled("logits_q", a), _settled("logits_p", b)
    norm_a, norm_b = _log_sum(a), _log_sum(b)
    width = max(1, _EXACT_TILE // a.shape[0]) if a.device.type == "cpu" else a.shape[1]

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
    width = max(1, _EXACT_TILE // x.shape[0]) if x.device.type == "cpu" else x.shape[1]
    total = sum(
        torch.exp2((t.double() - top) * _LOG2E).sum(-1, keepdim=True) for t in x.split(width, -1)
    )
    return top + torch.log(total)


def _sides(log_q: Tensor, log_p: Tensor):
    """B, t = |log r| (0 where nothing has mass), where p > q, and where q has mass."""
    larger = torch.exp2(torch.maximum(log_q, log_p) * _LOG2E)
    log_r = torch.where(larger > 0, log_p - log_q, 0.0)
    return larger, log_r.abs(), log_r > 0, log_q > -math.inf


def _costs(log_q: Tensor, log_p: Tensor) -> Tensor:
    """(9, rows): the divergences without jeffreys, and the means of k2 and k3."""
    larger, t, up, can = _sides(log_q, log_p)
    e, u = torch.exp2(t * -_LOG2E), torch.expm1(-t)
    et = torch.where(e > 0, e * t, 0.0)
    shared = t + u  # k3 of the larger to the smaller
    other = -u - et  # and of the smaller to the larger
    one, two = larger * shared, larger * other
    square = larger * u * u
    over = torch.where(square > 0, square / e, 0.0)
    root = u / (1 + e**0.5)
    js = -(et + (1 + e) * torch.log1p(u / 2)) / 2
    k3 = torch.where(up, two, one)
    q = larger * torch.where(up, e, 1.0)
    parts = (
        k3,
        torch.where(up, one, two),
        torch.where(up, over, square),
        torch.where(up, square, over),
        larger * root * root,
        larger * js,
        -larger * u / 2,
        torch.where(q > 0, q * t * t, 0.0) / 2,
        torch.where(can, k3, 0.0),
    )
    return torch.stack([part.sum(-1) for part in parts])


def _spread(log_q: Tensor, log_p: Tensor, mean: Tensor) -> Tensor:
    """(3, rows): the variances of k1, k2, k3 around their means (3, rows, 1), where finite."""
    larger, t, up, can = _sides(log_q, log_p)
    e, u = torch.exp2(t * -_LOG2E), torch.expm1(-t)
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


# --- fast: one compiled loop in float32 -----------------------------------------------------


def _fast_applies(a: Tensor) -> bool:
    return a.dtype != torch.float64 and a.shape[0] > 0 and a.shape[1] >= 4 * _LINE


def _fast(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Fill ``out`` (12, B), and return the rows that need the exact kernel."""
    count, v = a.shape
    compiled = count > 1 and _second.form(a.device, a.numel()) is _second
    rows = 1 if not compiled else min(count, ROWS) if a.device.type == "cpu" else count
    whole = v // _LINE * _LINE
    rest = torch.empty(2, rows, 2, _LINE // 2, dtype=a.dtype, device=a.device)
    far = torch.empty(count, device=a.device)
    for start in range(0, count, rows):
        start = min(start, count - rows)  # the last block overlaps, if it must
        block = slice(start, start + rows)
        pieces = [x[block, :whole].unflatten(-1, (-1, _LINE)) for x in (a, b)]
        top = torch.stack([x[block].amax(-1) for x in (a, b)]).float()
        # What is left of each row, filled up with tokens of no probability in float32.
        for x, end, high in zip((a, b), rest, top, strict=True):
            end.copy_((high - 200.0)[:, None, None])
            end.view(rows, _LINE)[:, : v - whole] = x[block, whole:]
        lines = (pieces, rest)
        first = [part for piece in lines for part in _parts(_first, compiled, piece, *top)]
        far[block] = torch.stack([part[-1].amax(-1) for part in first]).amax(0)
        row = _row_constants(*_summed(part[:-1] for part in first))
        second = (_parts(_second, compiled, piece, *top, *row.float()) for piece in lines)
        out[:, block] = _finished(_summed(part for parts in second for part in parts), row)
    return torch.nonzero(~(far < _TAME)).flatten().cpu()


def _parts(kernel: Kernel, compiled: bool, lines, *per_row):
    """What a kernel gives for lines (rows, lines, width) of q and p: at once, or some at a time."""
    if compiled:
        yield kernel(*lines, *per_row)
        return
    rows, _, width = lines[0].shape
    budget = TILE if lines[0].device.type == "cpu" else 2**22
    step = max(1, budget // (rows * width))
    for a, b in zip(*(x.split(step, 1) for x in lines), strict=True):
        yield kernel.function(a, b, *per_row)


def _summed(parts) -> Tensor:
    """(sums, rows) float64 from tuples of (rows, lines)."""
    return sum(torch.stack(part).double().sum(-1) for part in parts)


def _row_constants(sum_a, sum_b, difference, first, second) -> Tensor:
    """(6, rows): what log r, its centred form, and both log-probabilities subtract, and centres."""
    # The log-normaliser of p less that of q: near 0 it needs the sum of the differences.
    change = difference / sum_a
    shift = torch.where(change.abs() < 0.5, torch.log1p(change), torch.log(sum_b / sum_a))
    mean = first / sum_a
    variance = (second / sum_a - mean * mean).clamp(min=0.0)
    centre = mean - shift  # E_q[log r]
    log_a = torch.log(sum_a)
    return torch.stack([shift, mean, centre, variance, log_a, log_a + shift])


def _log_ratio(a: Tensor, b: Tensor, top_a: Tensor, top_b: Tensor):
    """Logits below their maxima, and the difference of the two, rounded once; float32."""
    offset = top_b.double() - top_a.double()
    high = offset.float()
    low = (offset - high.double()).float()
    top_a, top_b, high, low = (y[:, None, None] for y in (top_a, top_b, high, low))
    a, b = a.float(), b.float()
    # D. Knuth's two-sum: b − a is ``difference + lost`` exactly.
    difference = b - a
    part = difference - b
    lost = (b - (difference - part)) - (a + part)
    return a - top_a, b - top_b, (difference - high) + (lost - low)


def _excess(x: Tensor) -> Tensor:
    """e^x − 1 − x for |x| < 1/4, to float32."""
    return x**2 * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x / 5040)))))


def _first_pass(a: Tensor, b: Tensor, top_a: Tensor, top_b: Tensor):
    """Sums over lines (rows, lines) of e^a, e^b, e^b − e^a, e^a x, e^a x², and the largest |x|."""
    low_a, low_b, x = _log_ratio(a, b, top_a, top_b)
    e_a, e_b = torch.exp2(low_a * _LOG2E), torch.exp2(low_b * _LOG2E)
    difference = torch.where(x.abs() < 0.25, e_a * (x + _excess(x)), e_b - e_a)
    weighted = e_a * x
    return (
        e_a.sum(-1),
        e_b.sum(-1),
        difference.sum(-1),
        weighted.sum(-1),
        (weighted * x).sum(-1),
        x.abs().amax(-1),
    )


def _second_pass(a, b, top_a, top_b, shift, mean, centre, variance, log_a, log_b):
    """Sums over lines (rows, lines) of the seven divergences' costs, and of three squares."""
    low_a, low_b, x = _log_ratio(a, b, top_a, top_b)
    shift, mean, centre, variance, log_a, log_b = (
        y[:, None, None] for y in (shift, mean, centre, variance, log_a, log_b)
    )
    larger = torch.exp2(torch.maximum(low_a - log_a, low_b - log_b) * _LOG2E)
    log_r = x - shift
    down, t = log_r <= 0, log_r.abs()
    e = torch.exp2(t * -_LOG2E)
    near = t < 0.25
    shared = torch.where(near, _excess(-t), e - 1 + t)
    u = shared - t
    other = -shared - t * u
    square = larger * u**2
    inverse = 1 / e
    over = square * inverse
    root = e**0.5
    half = 0.5 + 0.5 * e
    t2 = t**2
    js = torch.where(
        near,
        root * t2 * (1 / 8 + t2**2 / 9216),
        -0.5 * e * t - half * (torch.log2(half) / _LOG2E),
    )
    g = u / (1 + root)
    q = torch.where(down, larger, larger * e)
    off_1 = x - mean
    off_2 = off_1 * (off_1 + 2 * centre) - variance
    off_3 = torch.where(down, shared, other * inverse) + centre
    parts = (
        larger * torch.where(down, shared, other),
        larger * torch.where(down, other, shared),
        torch.where(down, square, over),
        torch.where(down, over, square),
        larger * g**2,
        larger * js,
        larger * u,
        q * off_1**2,
        q * off_2**2,
        q * off_3**2,
    )
    return tuple(part.sum(-1) for part in parts)


_first, _second = Kernel(_first_pass), Kernel(_second_pass)


def _finished(sums: Tensor, row: Tensor) -> Tensor:
    """(12, rows) from the ten sums of the second pass."""
    *divergences, tv, square_1, square_2, square_3 = sums
    centre, variance = row[2], row[3]
    kl = divergences[0]
    # Squares are around row constants that nearly are the means: take out the rest.
    variance_1 = square_1 - (kl + centre) ** 2
    second_moment = variance_1 + kl * kl
    variance_2 = (square_2 - (variance_1 - variance) ** 2) / 4
    variance_3 = square_3 - (kl + centre) ** 2
    spreads = (x.clamp(min=0.0) for x in (variance_1, variance_2, variance_3))
    return torch.stack([*divergences, -tv / 2, second_moment / 2, kl, *spreads])
