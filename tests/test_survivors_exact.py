"""What mutation testing of ``exact`` and its lattice found untested, one test each."""

import pytest

from kllab import K1, exact, pairs


def test_the_method_has_to_be_named():
    with pytest.raises(TypeError, match="positional"):
        exact.moments(K1, pairs.gaussian(0.1, 1.0), "quadrature")
