"""Draws from a categorical at vocabulary scale, correct in the far tail.

``torch.multinomial`` on float32 probabilities accumulates them in float32: once the running sum
is near 1, a token of probability 1e-8 no longer changes it and is never drawn.
Here the whole path is float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kllab.checks import InputError, as_generator, as_log_probs, as_shape

CHUNK = 1 << 20
"""Most uniform numbers held at once: 8 MiB, plus as much for each of two index buffers."""


class Categorical:
    """A categorical law over V tokens, ready to be drawn from many times.

    ``log_q``: (..., V), normalised log-probabilities, float32 or float64, in nats; the leading
    axes are a batch of laws. float32 input is upcast and renormalised in float64.
    Holds 16 bytes per entry of ``log_q``. No gradient flows through a draw.

    Every token's probability is right to 2 ** -52 (2.2e-16) absolute, so to .03 % at 1e-12;
    a token of probability 0 is never drawn.

    Raises ``InputError`` for anything that is not a normalised log-probability.

    >>> law = Categorical(torch.tensor([0.5, 0.0, 0.5]).log())
    >>> tokens = law.sample((1000,), generator=torch.Generator().manual_seed(0))
    >>> tokens.shape, tokens.dtype, tokens.unique().tolist()
    (torch.Size([1000]), torch.int64, [0, 2])

    Source: inversion of the distribution function, L. Devroye, Non-Uniform Random Variate
    Generation (1986), section III.2.
    """

    def __init__(self, log_q):
        log_q = as_log_probs("log_q", log_q).detach().double()
        self.batch_shape = log_q.shape[:-1]
        self.V = log_q.shape[-1]
        # In ascending order the tail is summed while the sum is small, so rounding is relative
        # to the tail, and tokens of probability 0 stand first, at height 0.
        ascending, self._token = log_q.softmax(-1).reshape(-1, self.V).sort(-1)
        # A parallel prefix sum may dip by one rounding; searchsorted needs it not to.
        self._height = ascending.cumsum(-1).cummax(-1).values

    @property
    def device(self) -> torch.device:
        """Where the law lives, and so where its draws appear."""
        return self._height.device

    def sample(self, shape, *, generator: torch.Generator) -> Tensor:
        """Independent draws: int64 tokens of shape ``shape + log_q.shape[:-1]``.

        ``shape``: a size or a tuple of sizes. ``generator``: a ``torch.Generator``, on the
        device of ``log_q`` or on the CPU; a CPU generator seeds one on the device, so CPU and
        CUDA agree in law, not in bits. Working memory does not grow with ``shape``.

        Raises ``InputError`` for a shape or a generator that cannot be used.

        >>> law = Categorical(torch.log_softmax(torch.zeros(4, 10), -1))
        >>> law.sample((3, 2), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([3, 2, 4])
        """
        shape = as_shape("shape", shape)
        generator = on_device(generator, self.device)
        rows, batch = math.prod(shape), self._height.shape[0]
        out = torch.empty(rows, batch, dtype=torch.int64, device=self.device)
        if out.numel():
            for part in out.split(max(1, CHUNK // batch)):
                part.copy_(self._draw(part.shape[0], generator))
        return out.reshape(shape + self.batch_shape)

    def _draw(self, rows: int, generator: torch.Generator) -> Tensor:
        batch = self._height.shape[0]
        uniform = torch.rand(
            rows, batch, dtype=torch.float64, device=self.device, generator=generator
        )
        # uniform <= 1 - 2 ** -53, so the product rounds to less than the total: place < V.
        level = uniform.T * self._height[:, -1:]  # (batch, rows), in [0, total)
        # right=True: the first height strictly above, so height 0 is skipped even at level 0.
        place = torch.searchsorted(self._height, level.contiguous(), right=True)
        return self._token.gather(-1, place).T  # (rows, batch)


def on_device(generator: torch.Generator, device) -> torch.Generator:
    """The generator itself if it lives on ``device``, else a new one there, seeded by it.

    A CPU generator advances by one draw, so that two calls give two different streams.
    Raises ``InputError`` for a generator of another device than the CPU or ``device``.

    >>> generator = torch.Generator().manual_seed(0)
    >>> on_device(generator, "cpu") is generator
    True
    """
    device = torch.device(device)
    home = as_generator("generator", generator).device
    if home.type == device.type and device.index in (None, home.index):
        return generator
    if home.type != "cpu":
        raise InputError("generator", f"a generator on the CPU or on {device}", f"one on {home}")
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    return torch.Generator(device).manual_seed(seed)
