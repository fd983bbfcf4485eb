"""Run checks of the built site, print one table and the faults, end with 1 where there are any."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from sitechecks import CHECKS, SITELESS, Result

BUILD = Path(__file__).resolve().parents[2] / "_build"


def parser(modules: dict) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="make checks", description=__doc__)
    made.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CHECKS)}; all")
    made.add_argument("--build", type=Path, default=BUILD, help="the folder that holds html/")
    made.add_argument("--network", action="store_true", help="other hosts may be asked")
    for module in modules.values():
        if hasattr(module, "add_options"):
            module.add_options(made)
    return made


def run(module, name: str, options) -> Result:
    """The check's result; one that breaks is a fault and does not hold up the others."""
    try:
        return module.run(options.build / "html", options)
    except Exception as error:
        traceback.print_exc()
        return Result(name, [], [f"the check broke: {type(error).__name__}: {error}"])


def table(results: Iterable[Result]) -> str:
    lines = [
        (result.name if not number else "", what, figure)
        for result in results
        for number, (what, figure) in enumerate(result.rows or [("nothing to report", "")])
    ]
    first, second = (max((len(line[column]) for line in lines), default=0) for column in (0, 1))
    return "\n".join(f"{a:{first}}  {b:{second}}  {c}".rstrip() for a, b, c in lines)


def main(arguments: list[str]) -> int:
    modules = {name: importlib.import_module(f"sitechecks.{name}") for name in CHECKS}
    options = parser(modules).parse_args(arguments)
    unknown = sorted(set(options.names) - set(CHECKS))
    if unknown:
        print(f"no such check: {', '.join(unknown)}; there are {', '.join(CHECKS)}")
        return 2
    chosen = options.names or CHECKS
    built = (options.build / "html" / "index.html").is_file()
    if not built and not SITELESS.issuperset(chosen):
        print(f"no built book in {options.build}: run `make book` first")
        return 2
    results = []
    for name in chosen:
        print(f"{name} …", flush=True)
        results.append(run(modules[name], name, options))
    print(f"\n{table(results)}")
    faults = [f"{result.name}: {fault}" for result in results for fault in result.faults]
    print("\n" + "\n".join([*faults, f"{len(faults)} faults in {len(results)} checks"]))
    report = json.dumps([result.as_dict() for result in results], indent=1, ensure_ascii=False)
    options.build.mkdir(exist_ok=True)
    (options.build / "checks.json").write_text(report + "\n", encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
