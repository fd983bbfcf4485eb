"""Serve the built book on this machine only: ``python tools/serve.py FOLDER [PORT]``."""

from __future__ import annotations

import contextlib
import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

ADDRESS = "127.0.0.1"


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Files of one folder, without a line per request."""

    def log_message(self, *_):
        pass


def server(folder: Path, port: int = 0) -> http.server.ThreadingHTTPServer:
    """A server for ``folder``, which holds an index.html; port 0 takes a free one."""
    if not (folder / "index.html").is_file():
        raise SystemExit(f"{folder} holds no index.html: run `make book` first")
    handler = functools.partial(QuietHandler, directory=str(folder))
    return http.server.ThreadingHTTPServer((ADDRESS, port), handler)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve ``folder`` from a thread; the value is its address."""
    running = server(folder)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{ADDRESS}:{running.server_address[1]}"
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


def main(folder: str, port: str = "8000") -> None:
    running = server(Path(folder), int(port))
    print(
        f"The book: http://{ADDRESS}:{running.server_address[1]}/  (stop with Ctrl-C)", flush=True
    )
    with contextlib.suppress(KeyboardInterrupt):
        running.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
