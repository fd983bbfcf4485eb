"""``python -m kllab audit FILE.py:FUNCTION``: the audit from a command line.

It imports the file and calls the function, and executes nothing else.
Exit code 0: it is the claimed divergence; without a claim, it is some divergence, with no fault of
sign or direction.  1: it is not.  2: it could not be judged, or not be found.

    python -m kllab audit losses.py:kl_penalty --usage loss --claim kl_qp
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from kllab.auditor import EXIT_CODE, SAMPLES, USAGES, audit
from kllab.checks import InputError


def load(target: str) -> Callable:
    """The function of ``FILE.py:FUNCTION``, which may be dotted; ``InputError`` if there is none.

    The file's folder is on the import path meanwhile, as when Python runs it.
    """
    file, colon, function = target.rpartition(":")
    path = Path(file)
    if not (colon and function and path.suffix == ".py"):
        raise InputError("target", "FILE.py:FUNCTION", target)
    if not path.is_file():
        raise InputError("target", "a file", f"no file {file}")
    # Dataclasses look their module up by name; this one hides no other.
    spec = importlib.util.spec_from_file_location(f"_audited_{path.stem}", path.resolve())
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    try:
        spec.loader.exec_module(found)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        said = f"{type(error).__name__}: {error}"
        raise InputError("target", f"a file that can be imported, {file}", said) from None
    for name in function.split("."):
        if not hasattr(found, name):
            raise InputError("target", f"a function of {file}", f"no {name} in it")
        found = getattr(found, name)
    if not callable(found):
        raise InputError("target", "a function", f"{function}, {type(found).__name__}")
    return found


@contextlib.contextmanager
def beside(target: str) -> Iterator[None]:
    """The target's folder first on the import path."""
    before = list(sys.path)
    sys.path.insert(0, str(Path(target.rpartition(":")[0]).resolve().parent))
    try:
        yield
    finally:
        sys.path[:] = before


def parser() -> argparse.ArgumentParser:
    """The command's words."""
    top = argparse.ArgumentParser("kllab", description="Monte Carlo estimators of KL divergence.")
    command = top.add_subparsers(dest="command", required=True).add_parser(
        "audit",
        help="which divergence does a function estimate, or push on?",
        description="This imports FILE.py and calls FUNCTION, and executes nothing else. "
        "Exit code 0: as claimed (without a claim: a divergence, the right way round); "
        "1: not so; 2: could not be judged.",
    )
    command.add_argument("target", metavar="FILE.py:FUNCTION")
    command.add_argument("--usage", choices=USAGES, default="metric")
    command.add_argument("--samples", choices=SAMPLES, default="logprob", help="whose they are")
    command.add_argument("--claim", help="the divergence that it should be, such as kl_qp")
    command.add_argument("--names", help="roles of the parameters: logprob,ref_logprob,...")
    command.add_argument("--strict", action="store_true", help="judge value and gradient")
    command.add_argument("--json", action="store_true", help="the report as JSON")
    return top


def main(words: list[str] | None = None) -> int:
    """Run one command; returns its exit code.

    >>> main(["audit", "absent.py:kl"])
    2
    """
    options = parser().parse_args(words)
    names = tuple(options.names.split(",")) if options.names else None
    note = f"kllab audit: importing the file and calling the function of {options.target}, no more"
    print(note, file=sys.stderr)
    try:
        with beside(options.target):
            report = audit(
                load(options.target),
                usage=options.usage,
                samples=options.samples,
                claim=options.claim,
                names=names,
            )
    except (InputError, SystemExit) as error:
        print(f"kllab audit: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report.to_dict(), indent=2) if options.json else report)
    return EXIT_CODE[report.agreement(strict=options.strict)]


if __name__ == "__main__":
    sys.exit(main())
