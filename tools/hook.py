"""Run a tool of ``.venv`` for pre-commit, on every platform: ``python tools/hook.py TOOL …``."""

import subprocess
import sys

from make import environment, python

if __name__ == "__main__":
    tool, *rest = sys.argv[1:]
    command = [str(python()), "-m", tool, *rest]
    sys.exit(subprocess.run(command, env=environment(), check=False).returncode)
