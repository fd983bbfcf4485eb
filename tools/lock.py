"""Write requirements.txt from requirements.in: every version pinned, for Python 3.11 to 3.13.

``python tools/lock.py`` keeps the versions already pinned where they still fit;
``python tools/lock.py --upgrade`` takes the newest.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = "# Pinned by `make lock` from requirements.in. Do not edit by hand.\n"
# PyTorch's CUDA build on Linux pins these itself; the CPU build must not pull them in.
LEFT_TO_TORCH = re.compile(r"(nvidia|cuda|triton)(-|=)")


def keep(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#") and not LEFT_TO_TORCH.match(line)


def main(*extra: str) -> None:
    target = ROOT / "requirements.txt"
    compile_ = [sys.executable, "-m", "uv", "pip", "compile", "--universal", "--quiet"]
    options = ["--python-version", "3.11", "--prerelease", "disallow", "--no-header"]
    options += ["--no-annotate", "--output-file", str(target), *extra]
    subprocess.run([*compile_, *options, str(ROOT / "requirements.in")], check=True)
    lines = target.read_text(encoding="utf-8").splitlines()
    target.write_text(HEAD + "\n".join(filter(keep, lines)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
