"""Text of a cell: a mean and its standard error."""

import pytest
import torch

from kllab import InputError
from kllab.tables import plus_minus


def test_a_sign_stands_before_the_mean_only():
    draws = torch.tensor([-1.25, 0.75, 0.75, 0.75])  # mean 1/4, variance 1, error 1/2
    assert plus_minus(draws) == "0.2500 ± 0.5000"
    assert plus_minus(draws, "+.2f") == "+0.25 ± 0.50"
    assert plus_minus(-draws, ".3f") == "-0.250 ± 0.500"
    assert plus_minus((torch.tensor(0.5), 0.125), "+.3f") == "+0.500 ± 0.125"


def test_one_draw_has_no_error():
    with pytest.raises(InputError, match="values"):
        plus_minus(torch.ones(1))
