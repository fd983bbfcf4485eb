"""The law of a mean of n: every sample enumerated, textbook CDFs, and brackets computed apart.

``error`` is a claim about the CDF at every point, so it is tested as one: |CDF − truth| <= error.
Where the truth has atoms, rounding decides on which side of an atom its own location falls; there
the claim is tested halfway between atoms.
"""

import itertools
import math

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from kllab import K1, K2, K3, InputError, _lattice, exact, pairs
from kllab.estimators import bregman, with_lambda

F64 = torch.float64
NEVER = -math.inf


def log(*values):
    return torch.tensor(values, dtype=F64).log()


def pair_of(q, p):
    return pairs.categorical(log(*q), log(*p))


def atoms(estimator, pair):
    """Values and probabilities over the tokens that q can emit, computed here."""
    can = pair.log_q > NEVER
    values = estimator(pair.log_p[can] - pair.log_q[can]).numpy()
    masses = pair.log_q[can].exp().numpy()
    return values, masses / masses.sum()


def check_form(law, n):
    values, pmf = law.values.numpy(), law.pmf.numpy()
    assert law.values.dtype == law.pmf.dtype == F64
    assert (np.diff(values) > 0).all()
    assert (pmf >= 0).all()
    assert pmf.sum() == pytest.approx(1, abs=1e-12)
    assert 0 <= law.error <= 1
    assert law.n == n


def worst(law, points, truth):
    return np.abs(law.cdf(points).numpy() - truth).max()


# --- small supports, every sample -------------------------------------------------------------

SMALL = {
    "two": ((0.7, 0.3), (0.4, 0.6)),
    "three": ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5)),
    "equal ratios": ((0.25, 0.25, 0.5), (0.375, 0.375, 0.25)),
    "rare": ((0.999, 0.001), (0.9, 0.1)),
    "q = p": ((0.6, 0.4), (0.6, 0.4)),
    "q misses a token": ((0.5, 0.5, 0.0), (0.2, 0.5, 0.3)),
    "p misses a token": ((0.5, 0.3, 0.2), (0.6, 0.4, 0.0)),
}
VARIOUS = {
    "k1": K1,
    "k2": K2,
    "k3": K3,
    "clamped": K3.clamped(log_r=(-1.0, 0.5), value=(0.0, 0.2)),
    "js": bregman("js"),
    "indicator": lambda l: (l > 0).double(),
    "constant": lambda l: torch.full_like(l, 0.25),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("of", VARIOUS)
def test_against_every_sample(name, of):
    pair, estimator = pair_of(*SMALL[name]), VARIOUS[of]
    values, masses = atoms(estimator, pair)
    for n in (1, 2, 5, 8):
        law = exact.sampling_distribution(estimator, pair, n)
        check_form(law, n)
        means, pmf = oracles.enumerate_means(values.tolist(), masses.tolist(), n)
        finite = np.isfinite(means)
        points = oracles.between_atoms(means[finite], 1e-9)
        assert worst(law, points, oracles.step_cdf(means, pmf, points)) <= law.error + 1e-14
        assert law.error < 1e-12
        assert law.cdf(1e300).item() == pytest.approx(pmf[finite].sum(), abs=1e-13)
        assert law.cdf(math.inf).item() == pytest.approx(1, abs=1e-14)
        if finite.all():
            mean = (law.values * law.pmf).sum().item()
            assert mean == pytest.approx(masses @ values, rel=1e-13, abs=1e-14)
            spread = (law.pmf * (law.values - mean) ** 2).sum().item()
            variance = masses @ (values - masses @ values) ** 2
            assert spread == pytest.approx(variance / n, rel=1e-11, abs=1e-15)
        else:
            hit = 1 - (1 - masses[np.isinf(values)].sum()) ** n
            assert law.values[-1].item() == math.inf
            assert law.pmf[-1].item() == pytest.approx(hit, rel=1e-12)


def test_minus_infinity_is_an_atom_at_the_start():
    pair = pair_of((0.5, 0.3, 0.2), (0.6, 0.4, 0.0))
    law = exact.sampling_distribution(lambda l: -K1(l), pair, 3)
    check_form(law, 3)
    assert law.values[0].item() == NEVER
    assert law.pmf[0].item() == pytest.approx(1 - 0.8**3, rel=1e-14)
    assert law.cdf(-1e300).item() == pytest.approx(1 - 0.8**3, rel=1e-14)


def test_law_of_a_slightly_unnormalised_pair():
    """|logsumexp| up to 1e-6 is accepted; the law is that of the normalised one."""
    log_q = log(0.5, 0.3, 0.2) + 8e-7
    law = exact.sampling_distribution(K1, pairs.categorical(log_q, log(0.6, 0.4, 0.0)), 3)
    assert law.pmf.sum().item() == pytest.approx(1, abs=1e-14)
    assert law.pmf[-1].item() == pytest.approx(1 - 0.8**3, rel=1e-12)


def test_only_infinity():
    pair = pair_of((1.0, 0.0), (0.0, 1.0))
    law = exact.sampling_distribution(K1, pair, 4)
    assert (law.values.tolist(), law.pmf.tolist(), law.error) == ([math.inf], [1.0], 0.0)


@pytest.mark.parametrize(("kept_tokens", "n"), [(250, 40), (60, 6)])
def test_infinity_over_a_lattice(kept_tokens, n):
    """Enough atoms that the finite part goes through the FFT."""
    pair = pairs.zipf(300, 1.0, 1.2)
    kept = pair.log_p.clone()
    kept[kept_tokens:] = NEVER
    pair = pairs.categorical(pair.log_q, torch.log_softmax(kept, -1))
    values, masses = atoms(K1, pair)
    inf = masses[np.isinf(values)].sum()
    law = exact.sampling_distribution(K1, pair, n)
    check_form(law, n)
    assert law.pmf[-1].item() == pytest.approx(1 - (1 - inf) ** n, rel=1e-10)
    finite = np.isfinite(values)
    points = np.linspace(values[finite].min(), 0.4, 201)
    lower, upper = oracles.bracket_cdf(
        values[finite], values[finite], masses[finite] / (1 - inf), n, points
    )
    inside = (1 - inf) ** n
    cdf = law.cdf(points).numpy()
    assert (cdf >= inside * lower - law.error).all()
    assert (cdf <= inside * upper + law.error).all()


@settings(max_examples=40)
@given(
    counts=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=4),
    n=st.integers(1, 5),
    lam=st.floats(-2, 2),
)
def test_any_small_law(counts, n, lam):
    q, p = ([c / sum(side) for c in side] for side in zip(*counts, strict=True))
    pair, estimator = pair_of(q, p), with_lambda("kl_qp", lam)
    values, masses = atoms(estimator, pair)
    law = exact.sampling_distribution(estimator, pair, n)
    check_form(law, n)
    means, pmf = oracles.enumerate_means(values.tolist(), masses.tolist(), n)
    points = oracles.between_atoms(means, 1e-9)
    assert worst(law, points, oracles.step_cdf(means, pmf, points)) <= law.error + 1e-14


# --- few atoms and many samples: the binomial law ---------------------------------------------

TWO_ATOMS = [(0.3, 0.31), (0.01, 0.02), (0.001, 0.1), (0.5, 0.8)]


@pytest.mark.parametrize(("q", "p"), TWO_ATOMS)
@pytest.mark.parametrize("n", [16, 49_999, 50_000, 100_000])
@pytest.mark.parametrize("estimator", [K1, K3], ids=["k1", "k3"])
def test_binomial(q, p, n, estimator):
    """On either side of the switch from enumeration to the lattice, at 50,000 multisets."""
    pair = pair_of((q, 1 - q), (p, 1 - p))
    (first, second), _ = atoms(estimator, pair)
    counts = np.arange(n + 1)
    means = (counts * first + (n - counts) * second) / n
    pmf = stats.binom.pmf(counts, n, float(pair.log_q[0].exp()))
    law = exact.sampling_distribution(estimator, pair, n)
    check_form(law, n)
    points = oracles.between_atoms(means[pmf > 0], 0.0)
    # scipy's own pmf is good to about 1e-13 n relative.
    assert worst(law, points, oracles.step_cdf(means, pmf, points)) <= law.error + 1e-14 * n
    if n + 1 <= 50_000:
        assert law.error < 1e-8
        assert len(law.values) <= n + 1
    else:  # of the order of one atom of the binomial, since the bound covers the atoms themselves
        assert law.error < 10 * pmf.max()
        # Closer than one lattice cell, 3.3e-5 of these: the rounding is taken out of the mean and
        # of the window, and only the tails that were given up are missing.
        mean = (law.values * law.pmf).sum().item()
        sd = abs(first - second) * math.sqrt(q * (1 - q) / n)
        assert abs(mean - (q * first + (1 - q) * second)) < 2e-5 * sd


@pytest.mark.parametrize("n", [400, 20_000])
def test_a_lattice_whose_rounding_drifts(n):
    """Most of the mass on one atom that falls between lattice points: n times its rounding is
    taken out of the sum, or the law would be shifted or wrapped around."""
    values = np.array([0.0, 0.37, 1.0, 2.71])
    masses = np.array([0.02, 0.95, 0.02, 0.01])
    law = _lattice.of_atoms(values, masses, n)
    points = np.linspace(0.3, 0.5, 400)
    lower, upper = oracles.bracket_cdf(values, values, masses, n, points, size=2**21)
    cdf = exact.SamplingDistribution(*map(torch.as_tensor, law[:2]), law.error, n)
    cdf = cdf.cdf(points).numpy()
    assert (cdf >= lower - law.error).all()
    assert (cdf <= upper + law.error).all()
    mean = law.values @ law.pmf
    sd = math.sqrt(masses @ (values - masses @ values) ** 2 / n)
    assert mean == pytest.approx(masses @ values, abs=1e-3 * sd)
    assert math.sqrt(law.pmf @ (law.values - mean) ** 2) == pytest.approx(sd, rel=1e-3)


def test_a_narrow_law_is_not_taken_for_a_constant():
    values = 1 + 1e-6 * np.random.default_rng(0).normal(size=300)
    law = _lattice.of_atoms(values, np.full(300, 1 / 300), 40)
    spread = math.sqrt(law.pmf @ (law.values - law.values @ law.pmf) ** 2)
    assert spread == pytest.approx(values.std() / math.sqrt(40), rel=1e-4)


def test_equal_values_are_one_atom():
    law = exact.sampling_distribution(K1, pair_of((0.25, 0.25, 0.5), (0.375, 0.375, 0.25)), 1)
    assert len(law.values) == 2
    assert law.pmf.tolist() == pytest.approx([0.5, 0.5], rel=1e-14)
    assert law.error < 1e-14


# --- Gaussian pairs: textbook CDFs ------------------------------------------------------------


def quantile_points(law):
    """CDF points from the far left to the far right of the law, and beyond."""
    inner = law.quantile(torch.linspace(1e-6, 1 - 1e-6, 301, dtype=F64)).numpy()
    width = inner[-1] - inner[0]
    return np.concatenate([[inner[0] - width], inner, [inner[-1] + width]])


@pytest.mark.parametrize("mu", [0.1, -2.0])
@pytest.mark.parametrize("n", [1, 2, 256, 100_000])
def test_k1_of_a_shift_is_normal(mu, n):
    law = exact.sampling_distribution(K1, pairs.gaussian(mu, 1.0), n)
    check_form(law, n)
    points = quantile_points(law)
    truth = stats.norm.cdf((points - mu**2 / 2) / (abs(mu) / math.sqrt(n)))
    assert worst(law, points, truth) <= law.error
    assert law.error < (1e-3 if n <= 256 else 0.02)


@pytest.mark.parametrize("mu", [0.1, 1.0])
@pytest.mark.parametrize("n", [1, 3, 64, 100_000])
def test_k2_of_a_shift_is_noncentral_chi_square(mu, n):
    """k2 = ½ μ² (x − μ/2)²."""
    law = exact.sampling_distribution(K2, pairs.gaussian(mu, 1.0), n)
    check_form(law, n)
    points = quantile_points(law)
    truth = stats.ncx2.cdf(np.maximum(points, 0) * 2 * n / mu**2, n, n * mu**2 / 4)
    assert worst(law, points, truth) <= law.error
    assert law.error < 0.02


@pytest.mark.parametrize(("m", "s"), [(0.0, 2.0), (0.0, 0.5), (0.3, 1.5), (-0.2, 0.8)])
@pytest.mark.parametrize("n", [1, 100])
def test_k1_of_a_scale_is_noncentral_chi_square(m, s, n):
    """log r = a (x + b/2a)² + c − b²/4a; a > 0 where p is the wider one."""
    pair = pairs.gaussian(m, s)
    a, b = (s * s - 1) / (2 * s * s), m / s**2
    least = -math.log(s) - m * m / (2 * s * s) - b * b / (4 * a)
    law = exact.sampling_distribution(K1, pair, n)
    points = quantile_points(law)
    z = (-points - least) / a * n
    below = stats.ncx2.cdf(np.maximum(z, 0), n, n * (b / (2 * a)) ** 2)
    truth = 1 - below if a > 0 else below
    assert worst(law, points, truth) <= law.error
    assert law.error < 0.01


@pytest.mark.parametrize("mu", [0.1, 1.0, 2.0])
def test_one_k3_of_a_shift(mu):
    """P(k3 <= v) is the normal mass between the two roots of e^l − 1 − l = v."""
    law = exact.sampling_distribution(K3, pairs.gaussian(mu, 1.0), 1)
    points = quantile_points(law)
    v = points[points > 1e-12]
    z = -np.exp(-(1 + v))
    roots = [-(1 + v) - np.real(special.lambertw(z, k)) for k in (0, -1)]
    x = [(l + mu**2 / 2) / mu for l in roots]
    truth = stats.norm.cdf(x[1]) - stats.norm.cdf(x[0])
    assert worst(law, v, truth) <= law.error
    assert law.error < 0.03


def callable_with_atoms(estimator):
    """A clamp or a jump: at its atoms the bound has to be an atom's size."""
    return getattr(estimator, "clamp_value", True) is not None


@pytest.mark.parametrize(
    ("estimator", "m", "s"),
    [
        (K3, 1.0, 1.0),
        (K3, 0.2, 1.3),
        (K3, 0.0, 2.0),  # no variance: r has E r² = ∞
        (K3, 0.0, 0.3),
        (bregman("kl_pq"), 1.0, 1.0),
        (K3.clamped(value=(0.0, 0.5)), 1.0, 1.0),
        (K1.clamped(log_r=(-0.3, 0.3)), 0.5, 1.0),
        (lambda l: (l > 0.2).double(), 1.0, 1.0),
        (lambda l: l.abs(), 0.7, 1.0),
    ],
    ids=["shift", "scale", "heavy", "narrow", "kl_pq", "clamp", "clamp_log_r", "jump", "kink"],
)
@pytest.mark.parametrize("n", [1, 64])
def test_gaussian_pairs_within_brackets(estimator, m, s, n):
    """Cells of x, with the smallest and the largest value in each, bracket the truth."""
    pair = pairs.gaussian(m, s)
    log_r = oracles.gaussian_log_r(m, s)
    a, b, c = (s * s - 1) / (2 * s * s), m / s**2, float(log_r(0))
    edges = np.linspace(-9, 9, 2**16 + 1)
    kinks = [0.0, 0.2, -0.3, 0.3] if a == 0 else [0.0]
    for level in kinks:
        roots = np.roots([a, b, c - level] if a else [b, c - level]) if (a or b) else []
        edges = np.append(edges, [z.real for z in roots if abs(z.imag) < 1e-12 and abs(z) < 9])
    edges = np.sort(np.append(edges, -b / (2 * a) if a else 0.0))
    masses = np.diff(stats.norm.cdf(edges))
    inner = np.stack([edges[:-1], edges[1:]]) + np.array([[1e-13], [-1e-13]])
    values = estimator(torch.from_numpy((a * inner + b) * inner + c)).numpy()
    law = exact.sampling_distribution(estimator, pair, n)
    check_form(law, n)
    points = np.unique(np.concatenate([quantile_points(law), law.values.numpy()[:: 2**12]]))
    points = points + 1e-7 * (1 + np.abs(points))  # off the atoms of a clamp
    lower, upper = oracles.bracket_cdf(
        values.min(0), values.max(0), masses / masses.sum(), n, points, size=2**19
    )
    cdf = law.cdf(points).numpy()
    assert (cdf >= lower - law.error).all()
    assert (cdf <= upper + law.error).all()
    if n > 1 and not callable_with_atoms(estimator):
        assert law.error < (0.02 if s < 2 else 0.2)


def test_equal_gaussians():
    for n in (1, 100):
        law = exact.sampling_distribution(K3, pairs.gaussian(0.0, 1.0), n)
        assert (law.values.tolist(), law.pmf.tolist(), law.error) == ([0.0], [1.0], 0.0)


# --- vocabularies -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vocabularies():
    generator = torch.Generator().manual_seed(0)
    words = pairs.word_frequencies()
    return {
        "words": words,
        "zipf": pairs.zipf(20_000, 1.0, 1.4),
        "zipf heavy": pairs.zipf(5_000, 1.5, 0.8),
        "lm": pairs.lm_like(20_000, kl=0.05, generator=generator),
        "bf16": pairs.bf16_rounded(pairs.zipf(3_000, 1.1, 1.1).log_p),
        "top_p": pairs.top_p(words.log_p, 0.9),
    }


@pytest.mark.parametrize("name", ["words", "zipf", "zipf heavy", "lm", "bf16", "top_p"])
@pytest.mark.parametrize("n", [2, 64, 4096])
def test_vocabularies_within_brackets(vocabularies, name, n):
    """Brackets from values rounded down, and up, to a lattice of their own."""
    pair = vocabularies[name]
    for estimator in (K1, K3):
        values, masses = atoms(estimator, pair)
        law = exact.sampling_distribution(estimator, pair, n)
        check_form(law, n)
        points = quantile_points(law)
        if np.ptp(values) < 1e-12:  # top_p's k1 is one constant, up to the rounding of log q
            points = values.mean() + np.array([-1e-9, 1e-9])
        lower, upper = oracles.bracket_cdf(values, values, masses, n, points, size=2**19)
        cdf = law.cdf(points).numpy()
        assert (cdf >= lower - law.error).all()
        assert (cdf <= upper + law.error).all()
        assert law.error < {2: 0.3, 64: 0.06, 4096: 0.2}[n]
        assert (name, n) != ("lm", 64) or law.error < 1e-4  # what the speed is counted at


def test_the_brackets_can_fail(vocabularies):
    """A law off by a tenth of a standard deviation, and k3 for k2, are told from the truth."""
    pair = vocabularies["lm"]
    values, masses = atoms(K3, pair)
    law = exact.sampling_distribution(K3, pair, 64)
    points = quantile_points(law)
    lower, upper = oracles.bracket_cdf(values, values, masses, 64, points)
    sd = math.sqrt(masses @ (values - masses @ values) ** 2 / 64)
    shifted = law.cdf(points - 0.1 * sd).numpy()
    assert (shifted < lower - law.error).any()
    other = exact.sampling_distribution(K2, pair, 64).cdf(points).numpy()
    assert ((other > upper + law.error) | (other < lower - law.error)).any()
    assert np.max(upper - lower) < 0.02


def test_a_hundred_thousand_samples_of_words(vocabularies):
    """By then the central limit theorem is near: within Berry and Esseen's bound."""
    values, masses = atoms(K1, vocabularies["words"])
    n = 100_000
    mean = masses @ values
    sd = math.sqrt(masses @ (values - mean) ** 2)
    third = masses @ np.abs(values - mean) ** 3
    law = exact.sampling_distribution(K1, vocabularies["words"], n)
    points = mean + np.linspace(-5, 5, 201) * sd / math.sqrt(n)
    bound = 0.4748 * third / sd**3 / math.sqrt(n)
    assert bound < 0.02
    assert worst(law, points, stats.norm.cdf(np.linspace(-5, 5, 201))) <= law.error + bound
    assert law.error < 0.05


def test_more_samples_of_the_same_law(vocabularies):
    """The mean of n has the mean of one and 1/n of its variance, seen from the law's own atoms."""
    for name in ("lm", "bf16"):
        values, masses = atoms(K3, vocabularies[name])
        mean = masses @ values
        for n in (1, 64, 1024):
            law = exact.sampling_distribution(K3, vocabularies[name], n)
            assert (law.values * law.pmf).sum().item() == pytest.approx(mean, rel=2e-3)


# --- cdf, quantile, arguments -----------------------------------------------------------------


def test_cdf_and_quantile():
    law = exact.SamplingDistribution(
        torch.tensor([0.0, 1.0, 3.0], dtype=F64), torch.tensor([0.2, 0.5, 0.3], dtype=F64), 0.0, 1
    )
    x = torch.tensor([[-1.0, 0.0, 0.5], [1.0, 2.9, 3.0]], dtype=F64)
    assert law.cdf(x).tolist() == [[0.0, 0.2, 0.2], [0.7, 0.7, 1.0]]
    assert law.cdf(1.5).item() == 0.7
    assert law.cdf([0.0, 4.0]).tolist() == [0.2, 1.0]
    u = torch.tensor([1e-9, 0.2, 0.2000001, 0.7, 0.9, 1.0], dtype=F64)
    assert law.quantile(u).tolist() == [0.0, 0.0, 1.0, 1.0, 3.0, 3.0]
    assert law.quantile(0.5).item() == 1.0


@given(u=st.floats(1e-6, 1.0))
def test_quantile_is_the_generalised_inverse(u):
    law = exact.sampling_distribution(K3, pair_of((0.5, 0.3, 0.2), (0.2, 0.3, 0.5)), 4)
    x = law.quantile(u)
    assert law.cdf(x).item() >= u - 1e-15
    below = law.values[law.values < x]
    if len(below):
        assert law.cdf(below[-1]).item() < u


@pytest.mark.parametrize("u", [0.0, -0.1, 1.5, math.nan, [0.5, 0.0]])
def test_quantile_refuses(u):
    law = exact.sampling_distribution(K1, pair_of((0.5, 0.5), (0.2, 0.8)), 2)
    with pytest.raises(InputError, match=r"u: expected .*\(0, 1\]") as caught:
        law.quantile(u)
    assert caught.value.argument == "u"


def test_cdf_refuses_nan():
    law = exact.sampling_distribution(K1, pair_of((0.5, 0.5), (0.2, 0.8)), 2)
    with pytest.raises(InputError, match="x: expected no NaN, got 1"):
        law.cdf(math.nan)


@pytest.mark.parametrize("n", [0, -3, 2.0, 1.5, "4", None, True])
def test_n_refused(n):
    with pytest.raises(InputError, match="n: expected a whole number, at least 1, got") as caught:
        exact.sampling_distribution(K1, pair_of((0.5, 0.5), (0.2, 0.8)), n)
    assert caught.value.argument == "n"


def test_numpy_n():
    law = exact.sampling_distribution(K1, pair_of((0.5, 0.5), (0.2, 0.8)), np.int64(3))
    assert law.n == 3
    assert type(law.n) is int
    assert len(law.values) == 4


# --- the pieces of the error bound ------------------------------------------------------------


def test_normal_masses_keep_their_digits():
    x = np.array([-9.0, -8.0, -0.5, 0.5, 8.0, 8.5, 9.0])
    got = _lattice._normal_masses(x)
    want = [float(oracles.mp.ncdf(b) - oracles.mp.ncdf(a)) for a, b in itertools.pairwise(x)]
    assert got.tolist() == pytest.approx(want, rel=1e-11, abs=0)


def test_cells_of_a_normal_cover_what_happens_in_them(monkeypatch):
    """Each cell's width is the range of the clipped value in it, about h/4 at most, and not 0."""
    seen = []
    monkeypatch.setattr(_lattice, "_convolve", lambda cells_at, n, size: seen.append(cells_at))
    _lattice.of_normal(lambda x: np.exp(x), 3)
    low, high, h = 0.01, 20.0, 1e-3
    cells = seen[0](low, high, h)
    assert cells.masses.sum() == pytest.approx(1, rel=1e-13)
    # Where the clip begins within a cell of the coarse grid, a few are wider.
    assert np.mean(cells.widths <= h / 4 * 1.01) > 0.999
    inside = (cells.means > low) & (cells.means < high)
    assert (cells.widths[inside] > 0).all()
    assert (cells.widths[cells.means == high] == 0).all()
    # Neighbouring cells meet: centre to centre is half of each width, to second order.
    gaps = np.diff(cells.means[inside])
    halves = (cells.widths[inside][1:] + cells.widths[inside][:-1]) / 2
    assert np.mean(np.isclose(gaps, halves, rtol=1e-3, atol=1e-9)) > 0.999
    mean = cells.masses @ cells.means
    exact_mean = math.exp(0.5) * stats.norm.cdf(math.log(high) - 1) + high * stats.norm.sf(
        math.log(high)
    )
    exact_mean -= math.exp(0.5) * stats.norm.cdf(math.log(low) - 1)
    exact_mean += low * stats.norm.cdf(math.log(low))
    assert mean == pytest.approx(exact_mean, rel=1e-6)


def test_bernstein_window_by_hand():
    """One lattice point each, uniform: with no room for eps, the move is n times the largest."""
    pmf = np.full(1000, 1e-3)
    assert _lattice._moved(pmf, 1.0, 10, 0.0, 0.0) == 0.0
    # n · largest = 2.5 spacings: a window of that length holds at most 3 points.
    assert _lattice._moved(pmf, 1.0, 5, 0.25, 0.5) == pytest.approx(3e-3)
    n, variance, largest = 10_000, 1 / 12, 0.5
    bound = min(
        eps
        + 1e-3
        * min(
            1000,
            int(largest * L / 3 + math.sqrt((largest * L / 3) ** 2 + 2 * n * variance * L)) + 1,
        )
        for eps in (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
        for L in [math.log(2 / eps)]
    )
    assert _lattice._moved(pmf, 1.0, n, variance, largest) == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("cut", [1e-4, 1e-9])
def test_chernoff_bounds_a_tail(cut):
    """P(sum of n centred values > u) <= cut, against the binomial; and u is not absurdly far."""
    q, n = 0.3, 50
    points = np.array([1 - q, -q])
    u = _lattice._chernoff(points, np.array([q, 1 - q]), math.sqrt(q * (1 - q)), n, cut)
    assert stats.binom.sf(u + n * q, n, q) <= cut
    assert stats.binom.sf(u + n * q - 4, n, q) > cut / 3


def test_spread_bins_raise_the_moment_generating_function():
    """Each bin keeps its mass and mean, so the window's Chernoff bound covers the true law."""
    generator = np.random.default_rng(0)
    values = np.sort(generator.lognormal(0, 1.5, 4000))
    masses = np.full(4000, 1 / 4000)
    summary = _lattice._summarise(_lattice._Cells(values, masses, np.zeros(4000)))
    assert summary.masses.sum() == pytest.approx(1, rel=1e-12)
    assert summary.masses @ summary.means == pytest.approx(values.mean(), rel=1e-12)
    assert summary.mean == pytest.approx(values.mean(), rel=1e-12)
    assert summary.sd == pytest.approx(values.std(), rel=1e-12)
    assert summary.edges[0] == pytest.approx(values[0], abs=1e-9)
    assert summary.edges[-1] == pytest.approx(values[-1], rel=1e-9)
    inside = (summary.edges[:-1] <= summary.means) & (summary.means <= summary.edges[1:])
    assert inside.all()
    for n in (1, 50):
        for cut in (1e-9, 1e-4):
            window = _lattice._window(summary, n, cut, 2**18)
            assert window.low <= values[0] + 1e-9
            total = n * values.mean()
            assert window.start < total < window.start + 2**18 * window.spacing
            lost = n * (values > window.high * (1 + 1e-9)).mean()
            assert window.outside >= lost + 2 * cut - 1e-18
            assert window.outside <= 4 * cut + 2 * cut
