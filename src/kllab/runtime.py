"""How large a run is, where it runs, and which seed it uses: the settings that a reader changes.

``KLLAB_SCALE`` is ``test``, ``laptop`` (the default) or ``full``.
"""

from __future__ import annotations

import os
import zlib

import torch

from kllab.checks import InputError

SCALES = ("test", "laptop", "full")


def scale() -> str:
    """The scale of this run, from the environment variable ``KLLAB_SCALE``.

    Raises ``InputError`` for a name that is none of ``test``, ``laptop``, ``full``.
    """
    value = os.environ.get("KLLAB_SCALE", "laptop")
    if value not in SCALES:
        raise InputError("KLLAB_SCALE", f"one of {', '.join(SCALES)}", repr(value))
    return value


def choose(*, test, laptop, full):
    """One of three values, by the scale of this run.

    Examples
    --------
    >>> choose(test=1_000, laptop=1_000_000, full=10_000_000) in (1_000, 1_000_000, 10_000_000)
    True
    """
    return {"test": test, "laptop": laptop, "full": full}[scale()]


def generator(name: str, seed: int = 0) -> torch.Generator:
    """A CPU generator for the draw called ``name``: other names give unrelated streams.

    A figure keeps its numbers when another cell draws more or fewer samples.

    Examples
    --------
    >>> a, b = generator("running mean"), generator("running mean")
    >>> bool(torch.rand(3, generator=a).equal(torch.rand(3, generator=b)))
    True
    """
    return torch.Generator().manual_seed((zlib.crc32(name.encode()) << 31) ^ seed)


def device() -> torch.device:
    """The GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
