"""What mutation testing of ``divergences`` found untested, one test each."""

import oracles
import pytest
import torch

from kllab.divergences import alpha


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("a", [0.6, 0.9, 1 - 1e-6, 1 + 1e-6, 1.2])
def test_alpha_far_to_the_left_of_its_switch(a):
    """Beyond l = −80 rᵃ − r is written out: still rᵃ − r, in value and slope."""
    l = [-700.0, -300.0, -120.0, -81.0, -80.0, -79.0, -40.0]
    name, d = f"alpha({a!r})", alpha(a)
    for at, value, slope in zip(l, d.f(f64(*l)).tolist(), d.r_df(f64(*l)).tolist(), strict=True):
        assert value == pytest.approx(float(oracles.value(name, at)), rel=1e-14, abs=0)
        # Near a = 1 the difference of two powers loses what 1/(a − 1) gains.
        loss = 1e-13 / min(1.0, abs(a - 1) * abs(at))
        assert slope == pytest.approx(float(oracles.slope(name, at)), rel=loss, abs=0)


def test_the_formula_of_an_alpha_names_its_denominator():
    assert alpha(3).formula == "(r^3 - 1 - 3(r - 1)) / 6"
    assert alpha(-0.5).formula == "(r^-0.5 - 1 - -0.5(r - 1)) / 0.75"
