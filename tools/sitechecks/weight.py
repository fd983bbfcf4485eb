"""Weight: what a browser loads for each page, compressed, without fonts and MathJax."""

from __future__ import annotations

from pathlib import Path

from browser import chromium
from serve import serving

from sitechecks import Result
from sitechecks.browsing import DESK, open_page, pages_of, watched
from sitechecks.published import CompressingHandler

LIMIT = 1_000_000  # bytes
SHOWN = 5
# Browser figures start when they are near, so the whole page passes by.
TO_THE_END = """async () => {
  for (let y = 0; y < document.body.scrollHeight; y += innerHeight) {
    scrollTo({ top: y, behavior: "instant" });
    await new Promise(done => setTimeout(done, 30));
  }
  const pictures = [...document.images].filter(image => image.offsetParent);
  await Promise.all(pictures.map(image => image.decode().catch(() => null)));
}"""


def counts(response) -> bool:
    """Fonts and MathJax do not: they are the same files for every page, and stay in the cache."""
    return "/mathjax/" not in response.url and response.request.resource_type != "font"


def weight(chrome, url: str) -> tuple[int, list[str]]:
    """Bytes that a first visit loads for a page, and what went wrong meanwhile."""
    with watched(chrome, viewport=DESK) as (page, broken):
        responses: list = []
        page.on("response", lambda response: responses.append(response))
        open_page(page, url)
        page.evaluate(TO_THE_END)
        sizes = [int(r.headers.get("content-length", 0)) for r in responses if counts(r)]
        return sum(sizes), broken


def run(site: Path, options) -> Result:
    bytes_of, faults = {}, []
    with serving(site, CompressingHandler) as address, chromium() as chrome:
        for name in pages_of(site):
            bytes_of[name], broken = weight(chrome, f"{address}/{name}")
            faults += [f"{name}: {fault}" for fault in broken]
    heaviest = sorted(bytes_of, key=bytes_of.get, reverse=True)
    rows = [(name, f"{bytes_of[name] / 1000:.0f} kB") for name in heaviest[:SHOWN]]
    faults += [f"{name}: {n / 1e6:.2f} MB" for name, n in bytes_of.items() if n > LIMIT]
    return Result("weight", rows, faults)
