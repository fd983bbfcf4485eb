"""Pairs (q, p): q is the distribution that is sampled, p the other one; log r = log p - log q.

Two kinds: ``CategoricalPair`` over a vocabulary, ``GaussianPair`` on the line. Everything is
float64 and in nats.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from scipy.optimize import brentq
from torch import Tensor

from kllab.checks import (
    InputError,
    as_count,
    as_generator,
    as_log,
    as_log_probs,
    as_number,
    as_shape,
    same_vocabulary,
)
from kllab.sampling import Categorical, on_device

TOP_P_SLACK = 1e-12
"""A head whose mass misses the wanted one by no more than this has it: rounding, not tokens."""

LOG_T_MOST = 40.0
"""Where ``perturbed`` stops looking: q is a point mass to all digits by then."""


@dataclass(frozen=True, eq=False, repr=False)
class CategoricalPair:
    """Two laws over one vocabulary, as the functions of this module return them.

    ``log_q``, ``log_p``: (V,) float64, normalised; -inf where a token has probability 0.
    ``name``: what the pair is, for tables and legends.

    >>> categorical([math.log(0.5), math.log(0.5)], [math.log(0.2), math.log(0.8)])
    CategoricalPair('categorical', V=2)
    """

    log_q: Tensor
    log_p: Tensor
    name: str

    @property
    def V(self) -> int:
        """Number of tokens."""
        return self.log_q.shape[0]

    @cached_property
    def log_r(self) -> Tensor:
        """log p - log q, (V,), nats: -inf where only p is 0, +inf where only q is 0.

        Where both are 0 it is 0, so r = 1: every generator has f(1) = 0, and such tokens
        contribute nothing whatever weighs them.
        """
        neither = torch.isneginf(self.log_q) & torch.isneginf(self.log_p)
        return (self.log_p - self.log_q).masked_fill(neither, 0.0)

    @cached_property
    def sampler(self) -> Categorical:
        """The law q, ready to be drawn from; built at the first draw."""
        return Categorical(self.log_q)

    def sample(self, shape, *, generator: torch.Generator) -> Tensor:
        """Tokens drawn from q: int64 of shape ``shape``; see ``sampling.Categorical.sample``."""
        return self.sampler.sample(shape, generator=generator)

    def sample_log_r(self, shape, *, generator: torch.Generator) -> Tensor:
        """log r at tokens drawn from q: float64 of shape ``shape``, nats, never +inf.

        >>> pair = zipf(1000, 1.0, 1.2)
        >>> pair.sample_log_r((2, 3), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3])
        """
        return self.log_r[self.sample(shape, generator=generator)]

    def to(self, device) -> CategoricalPair:
        """The same pair on another device."""
        moved = {"log_q": self.log_q.to(device), "log_p": self.log_p.to(device)}
        return dataclasses.replace(self, **moved)

    def __repr__(self):
        return f"{type(self).__name__}({self.name!r}, V={self.V})"


@dataclass(frozen=True)
class GaussianPair:
    """q = N(0, 1) and p = N(mean, scale ** 2), as ``gaussian`` returns it."""

    mean: float
    scale: float

    @property
    def name(self) -> str:
        """What the pair is, for tables and legends."""
        return f"gaussian(mean={self.mean:g}, scale={self.scale:g})"

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """(a, b, c) with log r(x) = a x ** 2 + b x + c, in nats.

        a = (s - 1)(s + 1) / (2 s ** 2), which keeps its digits near s = 1 where
        (1 - 1 / s ** 2) / 2 loses them; b = m / s ** 2; c = -(m / s) ** 2 / 2 - log s.

        >>> gaussian(1.0, 2.0).coefficients[:2]
        (0.375, 0.25)
        """
        m, s = self.mean, self.scale
        return (s - 1) / s * ((s + 1) / s) / 2, m / s / s, -((m / s) ** 2) / 2 - math.log(s)

    def log_r(self, x) -> Tensor:
        """log p(x) - log q(x), float64, nats, of the shape of ``x``.

        Raises ``InputError`` for NaN, infinite or integer ``x``.

        >>> gaussian(1.0, 1.0).log_r([0.0, 0.5])
        tensor([-0.5000,  0.0000], dtype=torch.float64)
        """
        x = as_log("x", x).double()
        if not torch.isfinite(x).all():
            raise InputError("x", "finite values", f"{int(torch.isinf(x).sum())} infinite ones")
        a, b, c = self.coefficients
        return (a * x + b) * x + c

    def sample(self, shape, *, generator: torch.Generator) -> Tensor:
        """x drawn from q: float64 of shape ``shape``, on the generator's device."""
        device = as_generator("generator", generator).device
        size = as_shape("shape", shape)
        return torch.randn(size, dtype=torch.float64, device=device, generator=generator)

    def sample_log_r(self, shape, *, generator: torch.Generator) -> Tensor:
        """log r at x drawn from q: float64 of shape ``shape``, nats.

        >>> pair = gaussian(0.1, 1.0)
        >>> pair.sample_log_r((4,), generator=torch.Generator().manual_seed(0)).dtype
        torch.float64
        """
        return self.log_r(self.sample(shape, generator=generator))


@dataclass(frozen=True, eq=False, repr=False)
class WordPair(CategoricalPair):
    """A pair over words, as ``word_frequencies`` returns it.

    ``words``: the V words, sorted. ``kept_q``, ``kept_p``: the mass that these words hold in
    each table before renormalising. ``left_out``: how many words of each table are not in the
    other, {"q": ..., "p": ...}. ``note``: all this as a paragraph to print.
    """

    words: tuple[str, ...]
    kept_q: float
    kept_p: float
    left_out: dict[str, int]
    note: str


def categorical(log_q, log_p, *, name: str = "categorical") -> CategoricalPair:
    """The pair of two given laws.

    ``log_q``, ``log_p``: (V,) normalised log-probabilities, nats. float64 is kept as it is;
    float32 is upcast and renormalised in float64. -inf is legal, in different places too.

    Raises ``InputError`` for another shape, two vocabularies, NaN, half precision, integers, or
    what is not normalised.

    >>> half, never = math.log(0.5), float("-inf")
    >>> categorical([half, half, never, never], [half, never, half, never]).log_r
    tensor([0., -inf, inf, 0.], dtype=torch.float64)
    """
    log_q, log_p = _vocabulary("log_q", log_q), _vocabulary("log_p", log_p)
    return CategoricalPair(*same_vocabulary(log_q, log_p), name)


def gaussian(mean, scale) -> GaussianPair:
    """q = N(0, 1), p = N(mean, scale ** 2).

    Raises ``InputError`` unless both are finite, scale > 0, and log r has finite coefficients.

    >>> gaussian(0.1, 1.0)
    GaussianPair(mean=0.1, scale=1.0)
    """
    pair = GaussianPair(as_number("mean", mean), as_number("scale", scale, above=0.0))
    try:
        fits = all(map(math.isfinite, pair.coefficients))
    except OverflowError:
        fits = False
    if not fits:
        raise InputError("mean, scale", "log r with finite coefficients", pair.name)
    return pair


def zipf(V, a_q, a_p) -> CategoricalPair:
    """Power laws over ranks 1..V: q ∝ rank ** -a_q, p ∝ rank ** -a_p, one order of tokens.

    Raises ``InputError`` unless V is a whole number >= 1 and the exponents are finite.

    >>> (zipf(3, 0.0, 1.0).log_p.exp() * 11).round()
    tensor([6., 3., 2.], dtype=torch.float64)
    """
    V = as_count("V", V, least=1)
    a_q, a_p = as_number("a_q", a_q), as_number("a_p", a_p)
    log_rank = torch.arange(1, V + 1, dtype=torch.float64).log()
    log_q, log_p = (torch.log_softmax(-a * log_rank, -1) for a in (a_q, a_p))
    return CategoricalPair(log_q, log_p, f"zipf(V={V}, a_q={a_q:g}, a_p={a_p:g})")


def temperature(log_p, tau) -> CategoricalPair:
    """q ∝ p ** (1 / tau): what sampling at temperature ``tau`` draws from.

    ``log_p``: (V,) normalised, nats. Raises ``InputError`` for what ``categorical`` refuses and
    unless tau is a finite number above 0.

    >>> log_p = torch.tensor([0.8, 0.2], dtype=torch.float64).log()
    >>> (temperature(log_p, 0.5).log_q.exp() * 17).round()
    tensor([16.,  1.], dtype=torch.float64)
    """
    log_p, tau = _vocabulary("log_p", log_p), as_number("tau", tau, above=0.0)
    # From the mode, so that a tau near 0 gives the mode and not 0 / 0.
    log_q = torch.log_softmax((log_p - log_p.max()) / tau, -1)
    return CategoricalPair(log_q, log_p, f"temperature(tau={tau:g})")


def top_p(log_p, mass) -> CategoricalPair:
    """q is the smallest head of p with at least that mass, renormalised; p stays whole.

    ``log_p``: (V,) normalised, nats; ``mass`` in (0, 1]. Of equally likely tokens the lower
    index goes first. Masses are compared to within 1e-12; mass 1 keeps the whole support.

    Raises ``InputError`` for what ``categorical`` refuses and for a mass outside (0, 1].

    >>> log_p = torch.tensor([0.3, 0.5, 0.2], dtype=torch.float64).log()
    >>> (top_p(log_p, 0.8).log_q.exp() * 8).round()
    tensor([3., 5., 0.], dtype=torch.float64)
    """
    log_p, mass = _vocabulary("log_p", log_p), as_number("mass", mass, above=0.0, at_most=1.0)
    descending = log_p.softmax(-1).sort(descending=True).values
    reached = descending.cumsum(-1) >= mass - TOP_P_SLACK
    size = int((descending > 0).sum()) if mass == 1 else int((~reached).sum()) + 1
    return CategoricalPair(_head(log_p, size), log_p, f"top_p(mass={mass:g})")


def top_k(log_p, k) -> CategoricalPair:
    """q is the k likeliest tokens of p, renormalised; p stays whole.

    ``log_p``: (V,) normalised, nats; 1 <= k <= V. Of equally likely tokens the lower index
    goes first. Raises ``InputError`` for what ``categorical`` refuses and for another k.

    >>> log_p = torch.tensor([0.3, 0.5, 0.2], dtype=torch.float64).log()
    >>> top_k(log_p, 1).log_q.exp()
    tensor([0., 1., 0.], dtype=torch.float64)
    """
    log_p = _vocabulary("log_p", log_p)
    k = as_count("k", k, least=1, most=log_p.shape[0])
    return CategoricalPair(_head(log_p, k), log_p, f"top_k(k={k})")


def perturbed(log_p, kl, *, generator: torch.Generator) -> CategoricalPair:
    """q ∝ p exp(t g), g standard Gaussian noise on the logits, t such that KL(q‖p) = ``kl``.

    ``log_p``: (V,) normalised, nats; ``kl`` in nats, met to 1e-10 relative (from 1e-10 nats on;
    below that the rounding of log q shows). KL(q‖p) grows with t, so t > 0 is unique.

    Raises ``InputError`` for what ``categorical`` refuses, unless kl is finite and above 0, and
    for a kl that this noise cannot reach: its most is -log p of the token that it favours.

    >>> log_p = torch.log_softmax(torch.zeros(1000, dtype=torch.float64), -1)
    >>> pair = perturbed(log_p, 0.01, generator=torch.Generator().manual_seed(0))
    >>> round(float((pair.log_q.exp() * -pair.log_r).sum()), 10)
    0.01
    """
    log_p, kl = _vocabulary("log_p", log_p), as_number("kl", kl, above=0.0)
    generator = on_device(generator, log_p.device)
    noise = torch.randn(log_p.shape, dtype=torch.float64, device=log_p.device, generator=generator)
    fixed = log_p.detach()  # t is a root, so no gradient flows into q

    def tilted(log_t: float) -> Tensor:
        return torch.log_softmax(fixed + math.exp(log_t) * noise, -1)

    def excess(log_t: float) -> float:
        return _kl(tilted(log_t), fixed) / kl - 1

    most = -float(fixed[noise.masked_fill(torch.isneginf(fixed), -math.inf).argmax()])
    low = high = math.log(2 * kl) / 2  # KL is about t ** 2 / 2 while small
    while excess(low) > 0:
        low -= 1.0
    while kl < most and excess(high) < 0 and high < LOG_T_MOST:
        high += 1.0
    if not (kl < most and excess(high) >= 0):
        raise InputError("kl", f"less than {most:.6g} nats, all this noise can reach", f"{kl:g}")
    log_t = brentq(excess, low, high, xtol=1e-14, rtol=1e-15) if low < high else low
    return CategoricalPair(tilted(log_t), log_p, f"perturbed(kl={kl:g})")


def bf16_rounded(log_p) -> CategoricalPair:
    """q: the log-probabilities rounded to bfloat16, read as logits, renormalised in float64.

    ``log_p``: (V,) normalised, nats. bfloat16 keeps 8 significant bits, so a logit between 8
    and 16 in size moves by up to 1/32 nat. Raises ``InputError`` for what ``categorical``
    refuses.

    >>> log_p = torch.log_softmax(torch.arange(10, dtype=torch.float64), -1)
    >>> 0 < float(bf16_rounded(log_p).log_r.abs().max()) < 1 / 16
    True
    """
    log_p = _vocabulary("log_p", log_p)
    log_q = torch.log_softmax(log_p.to(torch.bfloat16).double(), -1)
    return CategoricalPair(log_q, log_p, "bf16_rounded")


def lm_like(V, *, kl, generator: torch.Generator) -> CategoricalPair:
    """A made-up next-token law p with a few likely tokens and a long tail; q = perturbed(p, kl).

    Recipe: the token of rank k has logit -1.2 log k - 0.08 (log k) ** 2 + g / 2 with standard
    Gaussian g, tokens in random order. At V = 128,256 some 70 to 90 % of the mass is on ten
    tokens, the median token has a probability of a few 1e-11 and the least likely of some
    1e-12. The shape is chosen, not measured.

    Raises ``InputError`` unless V is a whole number >= 2, and for what ``perturbed`` refuses.

    >>> lm_like(1000, kl=0.05, generator=torch.Generator().manual_seed(0))
    CategoricalPair('lm_like(V=1000, kl=0.05)', V=1000)
    """
    V = as_count("V", V, least=2)
    like = {"device": as_generator("generator", generator).device, "generator": generator}
    log_rank = torch.arange(1, V + 1, dtype=torch.float64, device=like["device"]).log()
    logits = -1.2 * log_rank - 0.08 * log_rank.square()
    logits = logits + 0.5 * torch.randn(V, dtype=torch.float64, **like)
    logits = logits[torch.randperm(V, **like)]
    pair = perturbed(torch.log_softmax(logits, -1), kl, generator=generator)
    return dataclasses.replace(pair, name=f"lm_like(V={V}, kl={kl:g})")


@cache
def word_frequencies() -> WordPair:
    """A real pair: how often English words occur on the web of 2006, and in newer, mixed text.

    q: the 333,000 most common words of the web, as ``wordsegment`` ships them. p: the large
    English list of ``wordfreq``, mixed from books, subtitles, Wikipedia, news, Reddit, Twitter
    and web text up to about 2021. Both over the words that the two tables share, V = 212,165
    with the versions below, renormalised in float64. ``.note`` says what is left out.

    q is the older table on purpose: then the large ratios r = p/q belong to words that the web
    of 2006 hardly knew (twitter, iphone, facebook), and rare draws of those carry E_q[r].
    The other way round they would belong to spam.

    ``wordfreq`` stores log10 frequencies rounded to 1/100, so each log p is off by at most
    0.005 log 10 = 0.0115 nats, and log r by that plus one shift, the same for all words and no
    larger, from renormalising. KL(q‖p) changes by about 2e-4 when the rounding is drawn anew.

    Loaded once, then kept in memory. Raises ``ImportError`` naming ``pip install
    "kllab[words]"`` when a package is missing.

    >>> pair = word_frequencies()
    >>> pair.V, pair.words[int(pair.log_q.argmax())], pair.words[int(pair.log_r.argmax())]
    (212165, 'the', 'twitter')

    Sources: ``wordsegment`` 1.3.1 by G. Jenks (Apache 2.0), counts after P. Norvig, Natural
    Language Corpus Data, in Beautiful Data (2009), from the Google Web Trillion Word Corpus of
    T. Brants and A. Franz (2006), LDC2006T13. ``wordfreq`` 3.1.1 by R. Speer (2022), code
    Apache 2.0, data CC BY-SA 4.0, doi:10.5281/zenodo.7199437; it builds on SUBTLEX by M.
    Brysbaert and others, OpenSubtitles, Google Books Ngrams, the Leeds Internet Corpus,
    Wikipedia and ParaCrawl.
    """
    table_q, table_p, versions = _word_tables()
    words = tuple(sorted(table_q.keys() & table_p.keys()))
    left_out = {"q": len(table_q) - len(words), "p": len(table_p) - len(words)}
    log_q, kept_q = _restricted(table_q, words)
    log_p, kept_p = _restricted(table_p, words)
    note = (
        f"{len(words):,} English words. q: web, 2006 (wordsegment {versions['wordsegment']}); "
        f"these words hold {kept_q:.1%} of its mass, {left_out['q']:,} others are left out. "
        f"p: mixed text to about 2021 (wordfreq {versions['wordfreq']}, data CC BY-SA 4.0); "
        f"these words hold {kept_p:.1%} of its mass, {left_out['p']:,} others are left out, "
        "among them all with an apostrophe or a digit. Both are renormalised. wordfreq rounds to "
        "1/100 of a decade, so a log-ratio is off by at most 0.0115 nats plus one shift common "
        "to all words."
    )
    return WordPair(log_q, log_p, "word_frequencies", words, kept_q, kept_p, left_out, note)


def _word_tables() -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
    """The two tables, word to count or frequency, and the packages' versions."""
    from importlib.metadata import version

    try:
        import wordfreq
        import wordsegment
    except ImportError as error:
        raise ImportError(
            f'word_frequencies() needs {error.name}: pip install "kllab[words]"', name=error.name
        ) from error
    wordsegment.load()
    table_p = wordfreq.get_frequency_dict("en", wordlist="large")
    versions = {package: version(package) for package in ("wordsegment", "wordfreq")}
    return wordsegment.UNIGRAMS, table_p, versions


def _restricted(table: dict[str, float], words: tuple[str, ...]) -> tuple[Tensor, float]:
    """Log-probabilities over ``words`` and the share of the table's mass that they hold."""
    mass = [table[word] for word in words]
    kept = math.fsum(mass)
    log_probs = (torch.tensor(mass, dtype=torch.float64) / kept).log()
    return log_probs, kept / math.fsum(table.values())


def _vocabulary(argument: str, value) -> Tensor:
    """(V,) float64 log-probabilities; float32 is renormalised, float64 kept as it is."""
    log_probs = as_log_probs(argument, value)
    if log_probs.ndim != 1:
        raise InputError(argument, "one vocabulary (V,)", f"shape {tuple(log_probs.shape)}")
    if log_probs.dtype == torch.float64:
        return log_probs
    return torch.log_softmax(log_probs.double(), -1)


def _head(log_p: Tensor, size: int) -> Tensor:
    """The ``size`` likeliest tokens, renormalised; -inf elsewhere; ties to the lower index."""
    kept = log_p.sort(descending=True, stable=True).indices[:size]
    log_q = torch.full_like(log_p, -math.inf)
    return log_q.index_copy(0, kept, torch.log_softmax(log_p[kept], -1))


def _kl(log_q: Tensor, log_p: Tensor) -> float:
    """KL(q‖p) as Σ q k3, which keeps its digits near q = p; p = 0 only where q = 0."""
    log_r = (log_p - log_q).masked_fill(torch.isneginf(log_q), 0.0)
    q, p = log_q.exp(), log_p.exp()
    # Far out, q (r - 1) is p - q: no exponential of a large log r, no 0 times inf.
    near = q * (torch.expm1(log_r.clamp(max=1.0)) - log_r)
    return float(torch.where(log_r < 1.0, near, p - q - q * log_r).sum())
