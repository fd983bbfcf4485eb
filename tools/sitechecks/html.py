"""Valid HTML on every page, by the W3C's checker (vnu), which needs a Java."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

from sitechecks import Result
from sitechecks.browsing import START, pages_of

JAR = Path(__file__).resolve().parents[2].joinpath("node_modules/vnu-jar/build/dist/vnu.jar")
JAVA = shutil.which("java")


def messages(files: list[Path]) -> list[str]:
    """What the checker calls an error in these files."""
    command = [JAVA, "-jar", str(JAR), "--format", "json", "--errors-only", *map(str, files)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return [describe(message) for message in json.loads(ended.stderr)["messages"]]


def describe(message: dict) -> str:
    where = re.sub(r".*/html/", "", message.get("url", ""))
    return f"{where}:{message.get('lastLine')}: {message['message']}"


def run(site: Path, options) -> Result:
    names = [START, *pages_of(site)]
    faults = messages([site / name for name in names]) if JAVA else ["no java, so not checked"]
    return Result("html", [("pages", str(len(names)))], faults)
