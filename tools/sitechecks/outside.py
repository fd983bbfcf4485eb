"""Questions to other hosts: politely, with a limit of time, and plain about a missing network."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path

EXCEPTIONS = Path(__file__).with_name("exceptions.toml")
PATIENCE = 30  # seconds for one answer
PAUSE = 3.0  # seconds between two questions, as arXiv asks
BUSY = {429, 500, 502, 503, 504}
NO_NETWORK = "no network: {} could not be reached, so nothing was checked there"

Ask = Callable[[str], bytes]  # an address to an answer


class NoNetwork(Exception):
    """The host was not reached at all."""


class Refused(Exception):
    """The host answered with an error; ``status`` is its number."""

    def __init__(self, url: str, status: int):
        super().__init__(f"{url} answers {status}")
        self.status = status


def exceptions() -> dict[str, dict[str, str]]:
    return tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8"))


def user_agent() -> str:
    """Who asks, so that a host can write to somebody."""
    repository = os.environ.get("KLLAB_REPOSITORY", "")
    return f"estimating-kl-checks/1 ({repository or 'checks of a book about KL'})"


def reachable(urls: Iterable[str], hosts: int = 3) -> bool:
    """Whether one of the first few hosts takes a connection at all."""
    names = dict.fromkeys(urllib.request.Request(url).host for url in urls)
    for name in list(names)[:hosts]:
        with contextlib.suppress(OSError), socket.create_connection((name, 443), PATIENCE):
            return True
    return False


def ask(url: str, pause: float = PAUSE) -> bytes:
    """The answer of an address; asked again once where the host is busy."""
    request = urllib.request.Request(url, headers={"User-Agent": user_agent()})
    for last in (False, True):
        time.sleep(pause)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            if last or error.code not in BUSY:
                raise Refused(url, error.code) from error
        except (urllib.error.URLError, TimeoutError) as error:
            raise NoNetwork(urllib.request.Request(url).host) from error
    raise AssertionError("unreachable")
