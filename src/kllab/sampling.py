"""Draws from a categorical at vocabulary scale, correct in the far tail.

``torch.multinomial`` on float32 probabilities accumulates them in float32: once the running sum
is near 1, a token of probability 1e-8 no longer changes it and is never drawn.
Here a probability is a multiple of 2 ** -62, and an alias table gives each token exactly its own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kllab import _alias
from kllab._compile import Kernel
from kllab.checks import InputError, as_generator, as_log_probs, as_shape

CHUNK = 1 << 14
"""Most draws in progress at once: a few buffers of 128 KiB, which stay in a core's own cache."""

LARGE_CHUNK = 1 << 22
"""The same on a GPU, and in a compiled loop, which holds nothing but what it returns."""


class Categorical:
    """A categorical law over V tokens, ready to be drawn from many times.

    ``log_q``: (..., V), normalised log-probabilities, float32 or float64, in nats; the leading
    axes are a batch of laws. float32 input is upcast and renormalised in float64.
    Holds 8 bytes for each of K entries per law, K the power of two >= V. No gradient flows
    through a draw.

    Every token's probability is right to 1e-15 absolute, and in vocabularies of more than some
    thousand tokens to 1e-18, so to a few 1e-7 relative at 1e-12; a token of probability 0 is
    never drawn. The table's own arithmetic is exact.

    Raises ``InputError`` for anything that is not a normalised log-probability.

    >>> law = Categorical(torch.tensor([0.5, 0.0, 0.5]).log())
    >>> tokens = law.sample((1000,), generator=torch.Generator().manual_seed(0))
    >>> tokens.shape, tokens.dtype, tokens.unique().tolist()
    (torch.Size([1000]), torch.int64, [0, 2])

    Sources: A. J. Walker (1977), "An Efficient Method for Generating Discrete Random Variables
    with General Distributions"; G. L. Steele, D. Lea and C. H. Flood (2014), "Fast Splittable
    Pseudorandom Number Generators".
    """

    def __init__(self, log_q):
        log_q = as_log_probs("log_q", log_q).detach().double()
        self.batch_shape = log_q.shape[:-1]
        self.V = log_q.shape[-1]
        self._table = _alias.table(log_q.softmax(-1).reshape(-1, self.V))

    @property
    def device(self) -> torch.device:
        """Where the law lives, and so where its draws appear."""
        return self._table.device

    def sample(self, shape, *, generator: torch.Generator) -> Tensor:
        """Independent draws: int64 tokens of shape ``shape + log_q.shape[:-1]``.

        ``shape``: a size or a tuple of sizes. ``generator``: a ``torch.Generator``, on the
        device of ``log_q`` or on the CPU. It gives a key, and the key and a counter give every
        draw, so the same CPU generator draws the same tokens on every device. Working memory
        does not grow with ``shape``.

        Raises ``InputError`` for a shape or a generator that cannot be used.

        >>> law = Categorical(torch.log_softmax(torch.zeros(4, 10), -1))
        >>> law.sample((3, 2), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([3, 2, 4])
        """
        shape = as_shape("shape", shape)
        stream = self.stream(generator)
        rows, batch = math.prod(shape), self._table.shape[0]
        out = torch.empty(rows, batch, dtype=torch.int64, device=self.device)
        chunk = chunk_for(_draw, self.device, rows)
        for law in range(batch):
            for start in range(0, rows, chunk):
                part = out[start : start + chunk, law]
                part.copy_(self.draw(law * rows + start, part.shape[0], stream, law=law))
        return out.reshape(shape + self.batch_shape)

    def stream(self, generator: torch.Generator) -> Tensor:
        """The key (2,) of a new stream of draws, on the law's device; advances ``generator``."""
        home = as_generator("generator", generator).device
        if home.type not in ("cpu", self.device.type):
            expected = f"a generator on the CPU or on {self.device}"
            raise InputError("generator", expected, f"one on {home}")
        return _alias.key(generator, self.device)

    def entries(self, law: int = 0) -> Tensor:
        """The alias table (K,) of one law: see ``kllab._alias``."""
        return self._table[law]

    def draw(self, start: int, count: int, stream: Tensor, *, law: int = 0) -> Tensor:
        """Draws number ``start`` to ``start + count`` of a stream: int64 tokens (count,).

        ``law`` counts within a batch. Any split into calls gives the same draws.

        >>> law = Categorical(torch.log_softmax(torch.zeros(10), -1))
        >>> stream = law.stream(torch.Generator().manual_seed(0))
        >>> law.draw(0, 8, stream)[5:].equal(law.draw(5, 3, stream))
        True
        """
        draw = _draw.form(self.device, count)
        return draw(start, count, stream, self._table[law])


def _drawn(start: int, count: int, stream: Tensor, table: Tensor) -> Tensor:
    counter = torch.arange(start, start + count, device=table.device)
    return _alias.tokens(_alias.words(counter, stream), table)


_draw = Kernel(_drawn, "draw")


def chunk_for(kernel, device: torch.device, draws: int) -> int:
    """How many of so many draws to make at once."""
    plain = device.type == "cpu" and kernel.form(device, draws) is kernel.function
    return CHUNK if plain else LARGE_CHUNK


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
