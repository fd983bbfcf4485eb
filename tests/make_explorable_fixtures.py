"""Numbers that the browser figures must reproduce, computed by other means than theirs.

``python tests/make_explorable_fixtures.py`` writes ``tests/fixtures/explorables/*.json``; the Node
tests beside the figures read them, and ``test_explorables.py`` checks that they are up to date.

The generator is written out again with Python's integers.  Per-sample values and moments come from
30-digit arithmetic and integration, not from the closed forms of the figures.  The distributions of
averages come from ``kllab.exact``, with its error bound.
"""

from __future__ import annotations

import json
from pathlib import Path

import mpmath as mp
import numpy as np
import torch
from scipy.integrate import solve_ivp

import kllab

FOLDER = Path(__file__).parent / "fixtures" / "explorables"
MASK = 0xFFFFFFFF
PAIRS = [(0.0, 1.0), (0.1, 1.0), (0.6, 0.9), (1.0, 1.0), (-1.5, 0.4), (0.0, 1.35), (2.5, 1.2)]
HEAVY = [(0.0, 1.45), (-1.0, 2.0)]  # scale² ≥ 2: k3 has no variance
AVERAGES = [
    (0.6, 0.9, 1),
    (0.6, 0.9, 16),
    (0.6, 0.9, 1024),
    (0.1, 1.0, 64),
    (1.0, 1.0, 2),
    (-1.5, 0.4, 8),
    (2.0, 1.2, 32),
    (0.0, 1.6, 256),
]
LEVELS = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99]


# --- the generator: xoshiro128**, seeded by the finaliser of MurmurHash3 ---------------------


def mix32(z: int) -> int:
    z = (z ^ (z >> 16)) * 0x85EBCA6B & MASK
    z = (z ^ (z >> 13)) * 0xC2B2AE35 & MASK
    return z ^ (z >> 16)


def rotate(x: int, k: int) -> int:
    return (x << k | x >> (32 - k)) & MASK


class Xoshiro128:
    def __init__(self, seed: int, stream: int):
        state = mix32(seed) ^ (stream * 0x9E3779B9 & MASK)
        self.s = []
        for i in range(4):
            state = (state + 0x9E3779B9) & MASK
            self.s.append(mix32(state ^ mix32((stream + i) & MASK)))

    def uint32(self) -> int:
        a, b, c, d = self.s
        result = rotate(b * 5 & MASK, 7) * 9 & MASK
        shifted = b << 9 & MASK
        c, d = c ^ a, d ^ b
        self.s = [a ^ d, b ^ c, c ^ shifted, rotate(d, 11)]
        return result

    def uniform(self) -> mp.mpf:
        bits = (self.uint32() >> 5 << 26) + (self.uint32() >> 6)
        return mp.mpf(bits) / 2**53

    def normals(self, pairs: int) -> list[mp.mpf]:
        values = []
        for _ in range(pairs):
            radius = mp.sqrt(-2 * mp.log1p(-self.uniform()))
            angle = 2 * mp.pi * self.uniform()
            values += [radius * mp.cos(angle), radius * mp.sin(angle)]
        return values


def generator() -> list[dict]:
    return [
        {
            "seed": seed,
            "stream": stream,
            "uint32": [r.uint32() for r in [Xoshiro128(seed, stream)] for _ in range(8)],
            "uniform": [float(r.uniform()) for r in [Xoshiro128(seed, stream)] for _ in range(4)],
            "normal": [float(v) for v in Xoshiro128(seed, stream).normals(3)],
        }
        for seed, stream in [(0, 0), (1, 0), (1, 1), (1, 999), (20200307, 7), (MASK, MASK)]
    ]


# --- arithmetic at 30 digits -----------------------------------------------------------------


def per_sample() -> list[dict]:
    values = [0.0, 1e-12, -1e-9, 1e-5, -1e-3, 0.1, -0.4999, 0.5, -0.5001, 1.0, -3.0, 12.5, -40.0]
    return [
        {"log_r": l, "k1": -l, "k2": float(mp.mpf(l) ** 2 / 2), "k3": float(mp.expm1(l) - l)}
        for l in values
    ]


def normal_cdf() -> list[dict]:
    at = [-38.0, -12.0, -6.5, -2.50001, -2.49999, -1.0, -1e-9, 0.0, 0.3, 2.49999, 2.50001, 6.0, 9.0]
    return [{"x": x, "cdf": float(mp.ncdf(x))} for x in at]


def pair_moments(mean: float, scale: float) -> dict:
    m, s = mp.mpf(mean), mp.mpf(scale)

    def log_r(x):
        return x**2 / 2 - ((x - m) / s) ** 2 / 2 - mp.log(s)

    def expect(f, density=mp.npdf, cuts=(-mp.inf, -12, -4, 0, 4, 12, mp.inf)):
        return mp.quad(lambda x: density(x) * f(x), cuts)

    def squared_distance(value, centre):
        return lambda x: (value(x) - centre) ** 2

    estimators = {
        "k1": lambda x: -log_r(x),
        "k2": lambda x: log_r(x) ** 2 / 2,
        "k3": lambda x: mp.expm1(log_r(x)) - log_r(x),
    }
    kl = expect(estimators["k1"])
    out = {"mean": mean, "scale": scale, "kl_qp": float(kl), "estimators": {}}
    out["kl_pq"] = float(
        mp.quad(lambda x: mp.npdf(x, m, s) * log_r(x), [-mp.inf, m - 6 * s, m, m + 6 * s, mp.inf])
    )
    for name, value in estimators.items():
        first = expect(value)
        infinite = name == "k3" and scale**2 >= 2
        variance = None if infinite else float(expect(squared_distance(value, first)))
        out["estimators"][name] = {
            "mean": float(first),
            "variance": variance,
            "bias": float(first - kl),
        }
    return out


def arithmetic() -> dict:
    with mp.workdps(30):
        return {
            "normal_cdf": normal_cdf(),
            "per_sample": per_sample(),
            "moments": [pair_moments(mean, scale) for mean, scale in PAIRS + HEAVY],
        }


# --- averages of n samples -------------------------------------------------------------------


def law_of_average(mean: float, scale: float, n: int, estimator: str):
    pair = kllab.pairs.gaussian(mean, scale)
    return kllab.exact.sampling_distribution(getattr(kllab, estimator.upper()), pair, n)


def averages() -> list[dict]:
    out = []
    for mean, scale, n in AVERAGES:
        for name in ("k1", "k2", "k3"):
            law = law_of_average(mean, scale, n, name)
            at = [float(f"{float(law.quantile(level)):.6g}") for level in LEVELS]
            out.append(
                {
                    "mean": mean,
                    "scale": scale,
                    "n": n,
                    "estimator": name,
                    "at": at,
                    "cdf": [round(float(c), 7) for c in law.cdf(at)],
                    "below_zero": round(float(law.cdf(0.0)), 7) if name == "k1" else 0.0,
                    "error": float(f"{law.error:.3g}"),
                }
            )
    return out


# --- generators f and their control variate ---------------------------------------------------

GENERATORS = {  # f(r), and f'(1)
    "kl_qp": (lambda r: -mp.log(r), -1),
    "kl_pq": (lambda r: r * mp.log(r), 1),
    "chi2_pq": (lambda r: (r - 1) ** 2, 0),
    "chi2_qp": (lambda r: 1 / r - 1, -1),
    "hellinger2": (lambda r: (mp.sqrt(r) - 1) ** 2, 0),
    "js": (lambda r: (r * mp.log(r) - (r + 1) * mp.log((r + 1) / 2)) / 2, 0),
    "jeffreys": (lambda r: (r - 1) * mp.log(r), 0),
    "tv": (lambda r: abs(r - 1) / 2, 0),
}


def share_below_zero(f, lam, mean) -> float:
    """P(f(r) + λ(r − 1) < 0), from sign changes on a grid of log r."""

    def value(log_r):
        return f(mp.exp(log_r)) + lam * mp.expm1(log_r)

    def cdf(log_r):
        return mp.ncdf(log_r / mean + mean / 2)

    far = [mp.mpf(10) ** (mp.mpf(k) / 8) for k in range(-16, 12)]
    grid = [*(-l for l in reversed(far)), mp.mpf(0), *far]
    negative = [value(l) < -(mp.mpf(10) ** -14) for l in grid]
    total = mp.mpf(0)
    for left, right, here, there in zip(grid, grid[1:], negative, negative[1:], strict=False):
        if here and there:
            total += cdf(right) - cdf(left)
        elif here != there:  # 1 is a root of its own, and the grid holds it
            inside, outside = (left, right) if here else (right, left)
            end = outside
            if abs(outside) > 0:
                end = mp.findroot(value, (inside, outside), solver="anderson", tol=1e-24)
            total += abs(cdf(end) - cdf(inside))
    return float(total)


def control_variate(name: str, mean: float) -> dict:
    f, slope = GENERATORS[name]
    m = mp.mpf(mean)
    cuts = [-16 - 2 * m, -6, -3, -1, m / 2, 1, 3, 6, 16 + 4 * m]
    cuts = sorted({mp.mpf(cut) for cut in cuts})

    def expect(fn):
        return mp.quad(lambda x: mp.npdf(x) * fn(mp.exp(m * x - m * m / 2)), cuts)

    mean_f = expect(f)
    var_f = expect(lambda r: (f(r) - mean_f) ** 2)
    var_r = expect(lambda r: (r - 1) ** 2)
    covariance = expect(lambda r: (f(r) - mean_f) * (r - 1))
    best = -covariance / var_r
    return {
        "f": name,
        "mean": mean,
        "divergence": float(mean_f),
        "best": float(best),
        "lines": [
            {
                "lambda": float(lam),
                "variance": float(var_f + 2 * lam * covariance + lam**2 * var_r),
                "below": share_below_zero(f, lam, m),
            }
            for lam in (mp.mpf(0), mp.mpf(-slope), best, best + mp.mpf("0.7"))
        ],
    }


def control_variates() -> list[dict]:
    with mp.workdps(20):
        return [control_variate(name, mean) for name in GENERATORS for mean in (0.3, 1.0, 2.0)]


# --- a vocabulary -----------------------------------------------------------------------------

TOKENS = 2**16 - 1
VOCABULARIES = [  # temperature, noise, top-p
    (0.6, 0.3, 1.0),
    (1.0, 0.0, 0.9),
    (0.8, 0.3, 0.95),
    (1.3, 1.0, 1.0),
    (1.0, 0.05, 1.0),
    (0.5, 1.0, 0.5),
]


def fixed_noise() -> np.ndarray:
    plastic = 1.324717957244746
    u, v = (np.arange(1, TOKENS + 1) * a % 1 for a in (1 / plastic, 1 / plastic**2))
    return np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)


def vocabulary(temperature: float, noise: float, top: float) -> dict:
    """Sums over tokens sorted by size, in 80-bit floats where the machine has them."""
    real = np.longdouble
    p = (np.arange(TOKENS, dtype=real) + 2) ** real(-1.25)
    p /= p.sum()
    weight = np.exp(np.log(p) / real(temperature) + real(noise) * fixed_noise().astype(real))
    q = weight / weight.sum()
    order = np.argsort(-q, kind="stable")
    size = TOKENS if top == 1 else int(np.searchsorted(np.cumsum(q[order]), real(top))) + 1
    head = np.sort(order[:size])
    q, inside = q[head] / q[head].sum(), p[head]
    log_r = np.log(inside) - np.log(q)
    values = {"k1": -log_r, "k2": log_r**2 / 2, "k3": np.expm1(log_r) - log_r}
    octave = np.floor(np.log2(head + 1)).astype(int)

    def by_octave(parts) -> list[float]:
        return [float(part) for part in np.bincount(octave, parts.astype(float), 16)]

    out = {"temperature": temperature, "noise": noise, "top": top, "tokens": size}
    out["kl"] = float((q * values["k1"]).sum())
    out["lost"] = float(inside.sum() - 1) if size < TOKENS else 0.0
    for name, value in values.items():
        mean = (q * value).sum()
        spread = q * (value - mean) ** 2
        out[name] = {
            "mean": float(mean),
            "variance": float(spread.sum()),
            "variance_by_octave": by_octave(spread),
            "mean_by_octave": by_octave(q * value),
        }
    rng, cumulative = Xoshiro128(7, 3), np.cumsum(q)
    uniforms = [real(float(rng.uniform())) for _ in range(64)]
    out["drawn"] = [int(head[np.searchsorted(cumulative, u, side="right")]) for u in uniforms]
    return out


def vocabularies() -> list[dict]:
    return [vocabulary(*settings) for settings in VOCABULARIES]


# --- the simplex of three tokens ------------------------------------------------------------------

PENALTIES = {  # of l = log r
    "k1": lambda l: -l,
    "k2": lambda l: l**2 / 2,
    "k3": lambda l: mp.expm1(l) - l,
    "abs": abs,
    "flipped": lambda l: mp.expm1(-l) + l,
}
LAWS = [([0.7, 0.2, 0.1], [0.4, 0.4, 0.2]), ([0.05, 0.15, 0.8], [0.6, 0.3, 0.1])]
FLOWS = [  # penalty, usage, which of the laws, reward or None
    ("k2", "loss", 0, None),
    ("k2", "loss", 1, [1.0, 0.0, -0.5]),
    ("k3", "loss", 1, None),
    ("k3", "loss", 0, [0.0, 0.5, 1.0]),
    ("k3", "reward", 0, None),
    ("k2", "reward", 1, None),
    ("flipped", "loss", 0, [1.0, 0.0, -0.5]),
    ("k1", "loss", 0, [1.0, 0.0, -0.5]),
]
TIMES = [0.3, 1.0, 3.0, 10.0, 30.0]


def surrogate_gradient(penalty: str, usage: str, q, p) -> list[float]:
    """Of the surrogate at softmax(z), by numerical differentiation at 30 digits.

    The law that is drawn from, and the value of a reward, are held at q.
    """
    h, z0 = PENALTIES[penalty], [mp.log(share) for share in q]
    drawn = [mp.mpf(share) for share in q]

    def cost(*z):
        total = mp.fsum(mp.exp(logit) for logit in z)
        log_q = [logit - mp.log(total) for logit in z]
        value = mp.mpf(0)
        for mass, here, old, ref in zip(drawn, log_q, z0, p, strict=True):
            if usage != "reward":
                value += mass * h(mp.log(ref) - here)
            if usage != "loss":
                value += mass * h(mp.log(ref) - old) * here
        return value

    unit = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    return [float(mp.diff(cost, tuple(z0), order)) + 0.0 for order in unit]


def simplex_gradients() -> list[dict]:
    with mp.workdps(30):
        return [
            {"penalty": name, "usage": usage, "q": q, "p": p}
            | {"gradient": surrogate_gradient(name, usage, q, p)}
            for q, p in LAWS
            for name in PENALTIES
            for usage in kllab.gradients.USAGES
        ]


def simplex_flows() -> list[dict]:
    """Laws along gradient flow in the logits, by a multistep method."""
    slopes = {  # dh/dl
        "k1": lambda l: -np.ones_like(l),
        "k2": lambda l: l,
        "k3": np.expm1,
        "flipped": lambda l: -np.expm1(-l),
    }
    values = {"k1": np.negative, "k2": lambda l: l**2 / 2, "k3": lambda l: np.expm1(l) - l}

    def run(penalty, usage, which, reward):
        q, p = (np.array(law) for law in LAWS[which])
        beta, gain = (1.0, np.zeros(3)) if reward is None else (0.5, np.array(reward))

        def law(z):
            weights = np.exp(z - z.max())
            return weights / weights.sum()

        def rate(_, z):
            here = law(z)
            l = np.log(p) - (z - z.max() - np.log(np.exp(z - z.max()).sum()))
            score = np.eye(3) - here  # row x: the gradient of log q(x)
            push = values[penalty](l) if usage == "reward" else -slopes[penalty](l)
            return (here * (gain - beta * push)) @ score

        span = (0, TIMES[-1])
        solved = solve_ivp(
            rate, span, np.log(q), method="LSODA", t_eval=TIMES, rtol=1e-9, atol=1e-11
        )
        laws = [[float(share) for share in law(z)] for z in solved.y.T]
        return {"penalty": penalty, "usage": usage, "q": q.tolist(), "p": p.tolist()} | {
            "reward": reward or "none", "beta": 0.5, "times": TIMES, "laws": laws
        }  # fmt: skip

    return [run(*case) for case in FLOWS]


def simplex_targets() -> dict:
    """What the package's dictionary finds; None where it knows no name."""
    fns = {"k1": kllab.K1, "k2": kllab.K2, "k3": kllab.K3, "abs": torch.abs}
    fns["flipped"] = lambda log_r: kllab.K3(-log_r)
    entries = {
        name: {
            usage: kllab.gradients.dictionary(fn, usage=usage) for usage in kllab.gradients.USAGES
        }
        for name, fn in fns.items()
    }
    return {
        name: {u: None if e.verdict == "unknown" else e.terms for u, e in row.items()}
        for name, row in entries.items()
    }


# --- two tokens, and what a loss on them drops --------------------------------------------------

PREFIXES = [  # q(A), q(A|A), q(A|B), and the same of p
    (0.5, 0.9, 0.4, 0.6, 0.2, 0.5),
    (0.1, 0.98, 0.02, 0.6, 0.02, 0.98),
    (0.3, 0.25, 0.7, 0.3, 0.6, 0.55),
    (0.85, 0.5, 0.1, 0.35, 0.5, 0.45),
]


def prefix(*chances: float) -> dict:
    """Derivatives of sums over the four sequences, with the sampled ones held where a loss does.

    ``later`` is the mean of the first token's score times the second one's log ratio, and ``own``
    of each token's score times its own value of k3, which is what k3 as a loss leaves out of it.
    """
    q, p = [mp.mpf(str(c)) for c in chances[:3]], [mp.mpf(str(c)) for c in chances[3:]]
    start = [mp.log(c / (1 - c)) for c in q]

    def tokens(of_a):
        """The probabilities of the two tokens of AA, AB, BA and BB."""
        first = [of_a[0], 1 - of_a[0]]
        return [(first[i], (1 - c, c)[j]) for i, c in enumerate(of_a[1:]) for j in (1, 0)]

    def policy(logits):
        return tokens([1 / (1 + mp.exp(-logit)) for logit in logits])

    ref, now = tokens(p), policy(start)
    drawn = [a * b for a, b in now]

    def mean(values):
        return sum(weight * value for weight, value in zip(drawn, values, strict=True))

    def kl(logits):
        pairs = zip(policy(logits), ref, strict=True)
        return sum(a * b * mp.log(a * b / (c * d)) for (a, b), (c, d) in pairs)

    def log_ratios(logits):
        both = zip(policy(logits), ref, strict=True)
        return [[mp.log(s / t) for s, t in zip(us, them, strict=True)] for us, them in both]

    def gradient(fn):
        def along(i, x):
            return fn([x if k == i else logit for k, logit in enumerate(start)])

        return [float(mp.diff(lambda x, i=i: along(i, x), start[i])) for i in range(3)]

    def loss(value):
        return lambda logits: mean([sum(value(-l) for l in row) for row in log_ratios(logits)])

    held = log_ratios(start)
    fixed = [[mp.expm1(-l) + l for l in row] for row in held]

    def scored(weights):
        """A policy gradient: the derivative of the mean of weights times log q of the tokens."""
        return lambda logits: mean(
            [
                sum(w * mp.log(s) for w, s in zip(ws, us, strict=True))
                for ws, us in zip(weights, policy(logits), strict=True)
            ]
        )

    def first(of_a):
        return kl([mp.log(of_a / (1 - of_a)), *start[1:]])

    least = mp.findroot(lambda x: mp.diff(first, x), (p[0] / 3, p[0]), solver="secant")
    return {
        "chances": list(chances),
        "kl": float(kl(start)),
        "kept": {
            "k2": gradient(loss(lambda l: l**2 / 2)),
            "k3": gradient(loss(lambda l: mp.expm1(l) - l)),
        },
        "own": gradient(scored(fixed)),
        "later": gradient(scored([[second, 0] for _, second in held])),
        "sum": gradient(kl),
        "rest": float(first(p[0])),
        "least": {"q": float(least), "kl": float(first(least))},
        "leaves": [
            [float(weight), float(a * b)] for weight, (a, b) in zip(drawn, ref, strict=True)
        ],
    }


def prefixes() -> list[dict]:
    with mp.workdps(30):
        return [prefix(*chances) for chances in PREFIXES]


# --- formulas ---------------------------------------------------------------------------------


def straight_through(l):
    """k3 with the gradient of k2."""
    return (l.exp() - 1 - l - l**2 / 2).detach() + l**2 / 2


FORMULAS = {  # as typed, and the same by hand
    "-l": lambda l: -l,
    "l^2/2": lambda l: l.square() / 2,
    "r - 1 - l": lambda l: l.exp() - 1 - l,
    "abs(l)": torch.abs,
    "max(l, 0)": torch.relu,
    "exp(-l) - 1 + l": lambda l: torch.exp(-l) - 1 + l,
    "clamp(r - 1 - l, -10, 10)": lambda l: (l.exp() - 1 - l).clamp(-10, 10),
    "clamp(l, -2, 2)^2/2": lambda l: l.clamp(-2, 2).square() / 2,
    "clamp(l, -0.75, 0.75)": lambda l: l.clamp(-0.75, 0.75),
    "detach(k3 - k2) + k2": straight_through,
    "(k2 + k3)/2": lambda l: (l.square() / 2 + l.exp() - 1 - l) / 2,
    "sqrt(1 + l^2) - 1": lambda l: torch.sqrt(1 + l.square()) - 1,
    "l^4/12 + 2": lambda l: l.pow(4) / 12 + 2,
    "-log(1 + r)/2": lambda l: -torch.nn.functional.softplus(l) / 2,
    "tanh(l)": torch.tanh,
    "sign(l)": torch.sign,
    "r^1.5/1.5 - l": lambda l: torch.exp(1.5 * l) / 1.5 - l,
    "r^2/3 - 2*sqrt(r) + abs(l)/4": lambda l: (2 * l).exp() / 3 - 2 * (l / 2).exp() + l.abs() / 4,
    "2*(r - 1) + 3": lambda l: 2 * torch.expm1(l) + 3,
    "-l + 0.37*(r - 1)": lambda l: -l + 0.37 * torch.expm1(l),
}
FORMULA_POINTS = [-2.0, -0.5, 0.25, 1.25]
THREE_TOKENS = ([0.7, 0.2, 0.1], [0.4, 0.4, 0.2])


def formulas() -> list[dict]:
    """What ``audit`` says of each one's value, and ``gradients.dictionary`` of its gradient.

    ``f`` is the generator less its tangent at r = 1, where the package knows it by quadrature.
    """
    at = torch.tensor(FORMULA_POINTS, dtype=torch.float64)
    log_q, log_p = (torch.tensor(law, dtype=torch.float64).log() for law in THREE_TOKENS)
    out = []
    for text, fn in FORMULAS.items():
        report = kllab.audit(lambda log_r, fn=fn: fn(log_r))
        part = report.value
        value = {"verdict": part.verdict, "terms": part.terms, "region": list(part.region)}
        value["constant"] = part.free.get("constant", 0.0) if part.verdict != "unknown" else 0.0
        value["mean"] = float(log_q.exp() @ fn(log_p - log_q))
        for usage in kllab.gradients.USAGES:
            entry = kllab.gradients.dictionary(fn, usage=usage)
            gradient = kllab.gradients.expected(fn, log_q, log_p, usage=usage)
            out.append(
                {
                    "formula": text,
                    "usage": usage,
                    "value": value,
                    "verdict": entry.verdict,
                    "terms": entry.terms,
                    "region": list(entry.region),
                    "convex": entry.is_convex,
                    "f": entry.f(at).tolist() if entry.verdict == "unknown" else None,
                    "gradient": (gradient + 0.0).tolist(),
                }
            )
    return out


def fixtures() -> dict[str, object]:
    return {
        "generator": generator(),
        "arithmetic": arithmetic(),
        "averages": averages(),
        "control_variates": control_variates(),
        "prefixes": prefixes(),
        "vocabularies": vocabularies(),
        "formulas": formulas(),
        "simplex_gradients": simplex_gradients(),
        "simplex_flows": simplex_flows(),
        "simplex_targets": simplex_targets(),
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in fixtures().items():
        (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
