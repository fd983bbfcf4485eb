"""The site as a publisher serves it: text compressed, connections kept, files fresh a while."""

from __future__ import annotations

import gzip
from functools import cache
from http import HTTPStatus
from pathlib import Path

from serve import QuietHandler

TEXT = {".html", ".css", ".js", ".mjs", ".json", ".svg", ".txt", ".xml", ".inv"}


@cache
def compressed(path: Path) -> bytes:
    return gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)


class CompressingHandler(QuietHandler):
    protocol_version = "HTTP/1.1"

    def end_headers(self):
        self.send_header("Cache-Control", "max-age=600")
        super().end_headers()

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() and self.path.endswith("/") else path
        wanted = "gzip" in self.headers.get("Accept-Encoding", "")
        if not (wanted and path.suffix in TEXT and path.is_file()):
            super().do_GET()
            return
        body = compressed(path)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
