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


class QuietServer(http.server.ThreadingHTTPServer):
    """A reader who goes away before the answer is sent is no error."""

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def server(
    folder: Path, port: int = 0, handler: type[QuietHandler] = QuietHandler
) -> http.server.ThreadingHTTPServer:
    """A server for ``folder``, which holds an index.html; port 0 takes a free one."""
    if not (folder / "index.html").is_file():
        raise SystemExit(f"{folder} holds no index.html: run `make book` first")
    answers = functools.partial(handler, directory=str(folder))
    return QuietServer((ADDRESS, port), answers)


@contextlib.contextmanager
def serving(folder: Path, handler: type[QuietHandler] = QuietHandler) -> Iterator[str]:
    """Serve ``folder`` from a thread; the value is its address."""
    running = server(folder, handler=handler)
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
