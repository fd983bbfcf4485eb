"""Central moments up to the fourth that merge: from chunks, in any order, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Count, mean and sums of powers 2 to 4 of deviations from the mean, each (E,) float64.

    One infinite value makes the mean that infinity and the sums infinite, as it makes the exact
    moments.

    Source: P. Pébay (2008), "Formulas for Robust, One-Pass Parallel Computation of Covariances
    and Arbitrary-Order Statistical Moments".

    Examples
    --------
    >>> values = torch.tensor([[1.0, 2.0, 6.0]], dtype=torch.float64)
    >>> halves = Moments.of(values[:, :1]).merge(Moments.of(values[:, 1:]))
    >>> halves.count, float(halves.mean), float(halves.variance)
    (3, 3.0, 7.0)
    """

    count: int
    mean: Tensor
    sum2: Tensor
    sum3: Tensor
    sum4: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Moments:
        """Moments along the last axis of (E, n), n >= 1."""
        mean = values.mean(-1)
        off = values - mean[:, None]
        square = off * off
        sums = (square.sum(-1), (square * off).sum(-1), (square * square).sum(-1))
        return cls(values.shape[-1], mean, *(_infinite_with(mean, s) for s in sums))

    def merge(self, other: Moments) -> Moments:
        """Moments of both together."""
        m, n = self.count, other.count
        total = m + n
        delta = other.mean - self.mean
        step = delta / total
        mean = self.mean + n * step
        # inf − inf where both sides are the same infinity.
        mean = torch.where(self.mean.isinf(), self.mean, mean)
        mean = torch.where(other.mean.isinf(), other.mean, mean)
        sum2 = self.sum2 + other.sum2 + m * n * step * delta
        sum3 = (
            self.sum3
            + other.sum3
            + m * n * (m - n) * step * step * delta
            + 3 * step * (m * other.sum2 - n * self.sum2)
        )
        sum4 = (
            self.sum4
            + other.sum4
            + m * n * (m * m - m * n + n * n) * step * step * step * delta
            + 6 * step * step * (m * m * other.sum2 + n * n * self.sum2)
            + 4 * step * (m * other.sum3 - n * self.sum3)
        )
        return Moments(total, mean, *(_infinite_with(mean, s) for s in (sum2, sum3, sum4)))

    @property
    def variance(self) -> Tensor:
        """Unbiased, (E,); infinite for a single value, which says nothing of it."""
        if self.count < 2:
            return torch.full_like(self.sum2, math.inf)
        return self.sum2 / (self.count - 1)

    @property
    def mean_error(self) -> Tensor:
        """Standard error of the mean, (E,)."""
        return (self.variance / self.count).sqrt()

    @property
    def variance_error(self) -> Tensor:
        """Standard error of the variance, (E,), from the fourth moment."""
        if self.count < 4:
            return torch.full_like(self.sum2, math.inf)
        n, fourth = self.count, self.sum4 / self.count
        square = (fourth - (n - 3) / (n - 1) * self.variance**2) / n
        return _infinite_with(self.mean, square.clamp(min=0.0)).sqrt()


def _infinite_with(mean: Tensor, value: Tensor) -> Tensor:
    return torch.where(mean.isinf(), math.inf, value)
