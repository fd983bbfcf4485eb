"""What mutation testing of ``exact`` and its lattice found untested, one test each."""

import math

import pytest
import torch

from kllab import K1, K3, exact, pairs


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
    assert m.error == pytest.approx(ulps * 2.0**-52 * max(size, m.variance), rel=1e-12)


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
