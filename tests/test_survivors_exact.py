"""What mutation testing of ``exact`` and its lattice found untested, one test each."""

import itertools
import math

import numpy as np
import pytest
import torch

from kllab import K1, K3, _lattice, exact, pairs
from kllab.estimators import bregman


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_method_has_to_be_named():
    with pytest.raises(TypeError, match="positional"):
        exact.moments(K1, pairs.gaussian(0.1, 1.0), "quadrature")


@pytest.mark.parametrize(("sign", "mean"), [(1, 1.0), (-1, math.exp(9))])
@pytest.mark.parametrize("shift", [3.0, -3.0])
def test_quadrature_of_what_overflows_on_one_side(sign, mean, shift):
    """E r = 1 and E 1/r = e^{μ²}, although r or 1/r leaves the float64 range on one side only."""
    m = exact.moments(
        lambda l: torch.exp(sign * l), pairs.gaussian(shift, 1.0), method="quadrature"
    )
    assert abs(m.mean - mean) <= m.error
    assert m.mean == pytest.approx(mean, rel=1e-9)


def test_the_error_of_a_sum_by_hand():
    """8 roundings a product, |log q| of them for the rarest token, one for each halving."""
    log_q, log_p = f64(0.5, 0.25, 0.125, 0.125).log(), f64(0.125, 0.125, 0.25, 0.5).log()
    m = exact.moments(K1, pairs.categorical(log_q, log_p))
    size = math.log(2) * (0.5 * 2 + 0.25 * 1 + 0.125 * 1 + 0.125 * 2)
    ulps = 8 + math.log(8) + 2
    assert m.error == pytest.approx(ulps * 2.0**-52 * max(size, m.variance), rel=1e-9, abs=0)


def test_rows_go_one_by_one_where_one_fills_a_block(monkeypatch):
    monkeypatch.setattr(exact, "_ROWS_AT_ONCE", 4)
    log_q = torch.zeros(3, 7)
    assert [tuple(lq.shape) for _, lq, _ in exact._blocks(log_q, log_q)] == [(1, 7)] * 3


@pytest.mark.parametrize(("exponent", "variance"), [(708.5, math.exp(708.5)), (709.9, math.inf)])
def test_a_variance_at_the_end_of_the_float64_range(exponent, variance):
    """Var k3 = e^{μ²} − 1 − μ²; e^709.78 is the largest float."""
    m = exact.moments(K3, pairs.gaussian(math.sqrt(exponent), 1.0), method="closed_form")
    assert m.variance == pytest.approx(variance, rel=1e-9)
    assert m.mean == pytest.approx(exponent / 2, rel=1e-12)


def test_rounding_of_the_total_mass_reaches_neither_cdf_nor_quantile():
    values = f64(0.0, 1.0)
    above = exact.SamplingDistribution(values, f64(0.5, 0.5 + 1e-15), 0.0, 1)
    below = exact.SamplingDistribution(values, f64(0.5, 0.5 - 1e-15), 0.0, 1)
    assert above.cdf(2.0).item() == 1.0
    assert above.quantile(1.0).item() == below.quantile(1.0).item() == 1.0


@pytest.mark.parametrize("mean", [0.0, 0.3, -0.3])
def test_an_integrand_that_does_not_decay_on_one_side_is_infinite(mean):
    """At s² = 2 the integrand of E r² is constant, or an exponential to one side."""
    m = exact.moments(bregman("chi2_pq"), pairs.gaussian(mean, math.sqrt(2)), method="quadrature")
    assert (m.mean, m.variance) == (math.inf, math.inf)


@pytest.mark.parametrize(
    ("fn", "coefficients", "end"),
    [
        (torch.exp, (0.0, 3.0, -4.5), (709.78 + 4.5) / 3),  # overflows on the right
        (torch.exp, (0.0, -3.0, -4.5), (709.78 + 4.5) / 3),  # on the left
        (torch.exp, (0.25, 1.0, -2.0), math.sqrt(4 + 4 * 711.78) - 2),  # sooner on the right
        (torch.exp, (0.25, -1.0, -2.0), math.sqrt(4 + 4 * 711.78) - 2),
        (torch.ones_like, (0.25, 1.0, -2.0), 600.0),
    ],
)
def test_the_end_of_the_range_is_where_either_side_overflows(fn, coefficients, end):
    step = 599 / 2399
    assert end - 1.001 * step <= exact._end_of_range(fn, coefficients) <= end


def test_roots_are_those_on_the_line_and_within_the_range():
    assert exact._roots(1.0, -3.0, 2.0, 10.0) == pytest.approx([2.0, 1.0])
    assert exact._roots(1.0, -3.0, 2.0, 1.5) == pytest.approx([1.0])
    assert exact._roots(1.0, 0.0, 1.0, 10.0) == []
    assert exact._roots(0.0, 2.0, 3.0, 10.0) == [-1.5]
    assert exact._roots(0.0, 0.0, 3.0, 10.0) == []


def test_pieces_and_error_of_a_quadrature_by_hand(monkeypatch):
    """Dyadic pieces out to the end; ten times QUADPACK's bound, and 64 roundings."""
    pieces = []

    def quad(fn, left, right, **options):
        pieces.append((left, right))
        return 2.0, 1e-3

    monkeypatch.setattr(exact.integrate, "quad", quad)
    value, error = exact._integrate(torch.ones_like, pairs.gaussian(0.3, 1.0))
    powers = [2.0**i for i in range(-1, 10)]
    cuts = sorted([-600.0, *(-x for x in powers), 0.0, 0.15, *powers, 600.0])
    assert np.array(pieces) == pytest.approx(np.array(list(itertools.pairwise(cuts))))
    assert value == 2.0 * len(pieces)
    assert error == pytest.approx(len(pieces) * (1e-2 + 128 * 2.0**-52), rel=1e-14, abs=0)


def test_the_tail_beyond_the_range_is_in_the_error(monkeypatch):
    """r⁴ overflows at |x| = 38; there the integrand still falls, like e^{−.02 x²}."""
    monkeypatch.setattr(exact.integrate, "quad", lambda *_, **options: (0.0, 0.0))
    scale = 1 / math.sqrt(0.76)
    _, error = exact._integrate(lambda l: torch.exp(4 * l), pairs.gaussian(0.0, scale))
    end = exact._end_of_range(lambda l: torch.exp(4 * l), (0.12, 0.0, -math.log(scale)))
    assert 37 < end < 39
    outer = math.exp(-0.02 * end**2) / scale**4 / math.sqrt(2 * math.pi)
    tail = outer * 0.02 * end / (0.02 * end**2 * (1 - 0.98**2))
    assert error == pytest.approx(2 * tail, rel=1e-9, abs=0)


def test_the_error_of_a_closed_form_shrinks_with_its_terms():
    m = exact.moments(K1, pairs.gaussian(1e-6, 1.0), method="closed_form")
    assert m.mean == pytest.approx(5e-13, rel=1e-12, abs=0)
    assert m.error < 1e-13 * m.mean


def test_an_infinite_integral_has_no_error():
    for m in (0.3, -0.3):
        got = exact._integrate(lambda l: torch.exp(2 * l), pairs.gaussian(m, math.sqrt(2)))
        assert got == (math.inf, 0.0)


@pytest.mark.parametrize(
    ("j", "k", "m", "s2", "value", "ulps"),
    [
        (0, 1.0, 2.0, 1.0, 1.0, 1 + (2 + 4) * 2),
        (0, 2.0, 1.0, 1.0, math.e, 1 + (1 + 4) * 2),
        (1, 0.0, 2.0, 1.0, -2.0, 2),
        # a = 1/8: 1 − 2ka = 3/4 keeps 3/5 of its digits' worth, so each step counts 5/3.
        (0, 1.0, 0.0, 4 / 3, 1.0, 5 / 3 + math.log(4 / 3) / 2 * (8 / 3)),
        (0, 1.0, 0.5, 4 / 3, 1.0, 5 / 3 + (math.log(4 / 3) / 2 + 3 / 32 + 3 / 16) * (8 / 3)),
    ],
)
def test_a_tilted_moment_and_its_roundings_by_hand(j, k, m, s2, value, ulps):
    """E_q[lʲ rᵏ], and |k c| + (k b)²/(1 − 2ka) in its exponent."""
    got, size = exact._tilted(j, k, pairs.gaussian(m, math.sqrt(s2)))
    assert got == pytest.approx(value, rel=1e-12)
    assert size == pytest.approx(abs(value) * ulps, rel=1e-12)


def test_a_weight_that_underflows_leaves_the_error_finite():
    pair = pairs.categorical(f64(0.0, -800.0), f64(0.5, 0.5).log())
    assert exact.moments(K1, pair).error < 1e-14


def test_values_that_differ_by_rounding_only_are_one_constant():
    values = 1 + 2.0**-52 * np.arange(20)
    law = _lattice.of_atoms(values, np.full(20, 0.05), 1000)
    assert law.values.tolist() == pytest.approx([1.0], rel=1e-14)
    assert (law.pmf.tolist(), law.error) == ([1.0], 0.0)
