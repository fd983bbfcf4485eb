"""What mutation testing of ``estimators`` found untested, one test each."""

import pytest
import torch

from kllab import K3, InputError
from kllab.estimators import cross_fitted, optimal_lambda


@pytest.mark.parametrize("dim", [-4, -3, 2, 3, 5])
def test_an_axis_further_out_is_refused_too(dim):
    with pytest.raises(InputError, match=f"log_r: expected samples along axis {dim}"):
        optimal_lambda("kl_qp", torch.zeros(2, 3), dim=dim)


@pytest.mark.parametrize(
    "call",
    [
        lambda l: K3.clamped((-1, 1)),
        lambda l: K3(l, l),
        lambda l: cross_fitted("kl_qp", l, 2),
    ],
)
def test_options_have_to_be_named(call):
    with pytest.raises(TypeError, match="positional"):
        call(torch.tensor([0.1, 0.2, -0.3, 0.4]))


def test_two_folds_of_two_samples_leave_one_outside():
    with pytest.raises(InputError, match="at least 2 samples outside of each fold"):
        cross_fitted("kl_qp", torch.zeros(2))
