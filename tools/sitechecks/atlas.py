"""Rows of the atlas against the code that a framework has today.

``make checks ARGS="atlas --checkout verl=PATH"`` compares each row of that framework: its lines at
the commit that the row names with a later commit of the checkout (``--revision``, else its HEAD).
``PATH`` is any clone, bare ones too. It needs git and no network. ``--clone`` instead fetches every
framework's history from the network, for the scheduled job.

It sees lines, not meaning: a formula whose lines stayed may be used in another way by now.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import tomllib
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

from sitechecks import Result

HOST = "https://github.com"
HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
STATES = ("unchanged", "moved", "changed", "gone")  # from good to bad
FAULTS = ("changed", "gone")


def add_options(parser) -> None:
    parser.add_argument(
        "--checkout", action="append", default=[], metavar="FRAMEWORK=PATH", help="for atlas"
    )
    parser.add_argument("--revision", default="HEAD", help="what atlas compares the rows with")
    parser.add_argument("--clone", action="store_true", help="fetch every framework for atlas")


class Missing(Exception):
    """Git has no such file or commit; the message says what to do."""


@dataclass(frozen=True)
class Checkout:
    """A clone of a framework, with a work tree or bare."""

    path: Path

    def git(self, *words: str) -> str:
        inside = ("--git-dir", str(self.folder))
        done = subprocess.run(["git", *inside, *words], capture_output=True, check=False)
        if done.returncode:
            raise Missing(done.stderr.decode(errors="replace").strip())
        return done.stdout.decode(errors="replace")

    @cached_property
    def folder(self) -> Path:
        """Where git keeps this clone; found by git, since a work tree may have it elsewhere."""
        bare = (self.path / "HEAD").is_file() and (self.path / "objects").is_dir()
        if bare:
            return self.path
        command = ["git", "-C", str(self.path), "rev-parse", "--absolute-git-dir"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(f"{self.path} is no git repository")
        return Path(done.stdout.strip())

    def commit(self, name: str) -> str:
        folder = self.folder
        try:
            return self.git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").strip()
        except Missing as error:
            hint = "; fetch it: a shallow clone has only its newest commits"
            raise Missing(f"{folder} has no commit {name[:9]}{hint}") from error

    def lines(self, commit: str, file: str) -> list[str]:
        """A file as git counts its lines, which end at nothing but a newline."""
        return self.git("show", f"{commit}:{file}").removesuffix("\n").split("\n")

    def name_at(self, old: str, new: str, file: str) -> str | None:
        """What a file of one commit is called at another; None where it is gone."""
        if self.git("ls-tree", "--full-tree", "--name-only", new, "--", file):
            return file
        renamed = self.git("diff", "--name-status", "--find-renames", "--diff-filter=R", old, new)
        for line in renamed.splitlines():
            _, before, after = line.split("\t")
            if before == file:
                return after
        return None

    def hunks(self, old: str, new: str) -> list[tuple[range, range]]:
        """Changed lines between two blobs: those of the old one, and what stands there now."""
        text = self.git("diff", "--unified=0", "--no-color", "--no-ext-diff", old, new)
        return [(extent(m[1], m[2]), extent(m[3], m[4])) for m in HUNK.finditer(text)]


def extent(start: str, count: str | None) -> range:
    """Lines of one side of a hunk; an empty one stands after the line that it names."""
    first, length = int(start), 1 if count is None else int(count)
    first += length == 0
    return range(first, first + length)


def passages(lines: str) -> list[range]:
    """``66, 184-185`` as ranges of lines."""
    found = []
    for part in lines.split(","):
        first, _, last = part.strip().partition("-")
        found.append(range(int(first), int(last or first) + 1))
    return found


def follow(passage: range, hunks: list[tuple[range, range]]) -> tuple[range, bool]:
    """Where a passage stands after the hunks, and whether one of them touches it."""
    start, stop, touched = passage.start, passage.stop, False
    for old, new in hunks:
        shift = new.stop - old.stop
        # Lines that are put between two lines of a passage change it, those at its edges do not.
        inside = old.start < passage.stop and old.stop > passage.start
        if inside:
            touched = True
            stop = passage.stop + shift if old.stop <= passage.stop else new.stop
            if old.start < passage.start:
                start = new.start
        elif old.stop <= passage.start:
            start, stop = passage.start + shift, passage.stop + shift
    return range(start, stop), touched


@dataclass(frozen=True)
class Found:
    """What became of a passage: its state, where it is now, and the difference."""

    state: str
    where: str = ""
    difference: str = ""


def numbers(lines: range) -> str:
    return str(lines.start) if len(lines) == 1 else f"{lines.start}-{lines.stop - 1}"


def places(wanted: list[str], text: list[str]) -> list[range]:
    """Where these lines stand in a text, one after the other."""
    size = len(wanted)
    starts = range(len(text) - size + 1)
    return [range(i + 1, i + 1 + size) for i in starts if text[i : i + size] == wanted]


def compare(checkout: Checkout, file: str, passage: range, old: str, new: str) -> Found:
    """A passage of a file at one commit, and at another."""
    before = checkout.lines(old, file)
    if passage.stop - 1 > len(before):
        raise Missing(f"{file} has only {len(before)} lines at commit {old[:9]}")
    wanted = before[passage.start - 1 : passage.stop - 1]
    name = checkout.name_at(old, new, file)
    if name is None:
        return Found("gone", elsewhere(checkout, new, wanted))
    now, touched = follow(passage, checkout.hunks(f"{old}:{file}", f"{new}:{name}"))
    text = checkout.lines(new, name)
    if touched:
        others = places(wanted, text)
        # A block that was put elsewhere in its file; one short line could be any.
        if len(others) != 1 or len(wanted) == 1:
            return changed(wanted, text, now, name)
        now = others[0]
    same = name == file and now == passage
    return Found("unchanged") if same else Found("moved", f"{name}, {numbers(now)}")


def changed(wanted: list[str], text: list[str], now: range, name: str) -> Found:
    there = text[now.start - 1 : now.stop - 1]
    if not there:
        return Found("gone", f"its lines were removed from {name}")
    difference = difflib.unified_diff(wanted, there, "the row", "now", lineterm="", n=2)
    return Found("changed", f"{name}, {numbers(now)}", "\n".join(difference))


def elsewhere(checkout: Checkout, commit: str, wanted: list[str]) -> str:
    """A hint where to look on: another file with the longest line of a passage that is gone."""
    line = max((line.strip() for line in wanted), key=len)
    try:
        found = checkout.git("grep", "-n", "-F", "--max-count=1", "-e", line, commit)
    except Missing:
        return "no file has its longest line"
    _, file, number, _ = found.splitlines()[0].split(":", 3)
    return f"its longest line stands in {file}, {number}"


def of_row(checkout: Checkout, row, revision: str) -> Found:
    """The worst of a row's passages."""
    old, new = checkout.commit(row.commit), checkout.commit(revision)
    found = [compare(checkout, row.file, lines, old, new) for lines in passages(row.lines)]
    worst = max(found, key=lambda one: STATES.index(one.state))
    differences = "\n".join(one.difference for one in found if one.difference)
    where = "; ".join(dict.fromkeys(one.where for one in found if one.where))
    return Found(worst.state, where, differences)


def examine(path: Path, rows: list, commit: str, revision: str) -> Result:
    """Rows of one framework against one clone; ``commit`` is where the framework was read."""
    result, checkout = Result("atlas"), Checkout(path)
    for row in rows:
        if row.commit != commit:  # says what the code once did, so today's code cannot differ
            result.rows.append((row.name, f"history  as of {row.commit[:9]}"))
            continue
        try:
            found = of_row(checkout, row, revision)
        except Missing as error:
            result.faults.append(f"{row.name}: {error}")
            continue
        result.rows.append((row.name, f"{found.state}  {found.where}".strip()))
        if found.state in FAULTS:
            difference = found.difference.replace("\n", "\n    ")
            said = f"{row.name}: {found.state} since {row.commit[:9]}: {found.where}"
            result.faults.append(f"{said}\n    {difference}".rstrip())
    return result


def clone(repository: str, target: Path, host: str = HOST) -> Path:
    """The history of a repository; the contents of files come when they are asked for."""
    again = ("--git-dir", str(target), "fetch", "--quiet", "origin", "+refs/heads/*:refs/heads/*")
    once = ("clone", "--quiet", "--bare", "--filter=blob:none", f"{host}/{repository}", str(target))
    command = ["git", *(again if target.is_dir() else once)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise Missing(f"{repository}: {done.stderr.decode(errors='replace').strip()}")
    return target


def read_at() -> dict[str, str]:
    """The commit at which each framework was read."""
    text = resources.files("kllab").joinpath("atlas.toml").read_text(encoding="utf-8")
    return {name: one["commit"] for name, one in tomllib.loads(text)["frameworks"].items()}


def checkouts(options, frameworks: dict[str, str]) -> tuple[dict[str, Path], list[str]]:
    """Paths by framework, and what is wrong with those that were asked for."""
    found, faults = {}, []
    for given in options.checkout:
        name, _, path = given.partition("=")
        if name not in frameworks or not path:
            known = ", ".join(sorted(frameworks))
            faults.append(f"--checkout {given}: expected FRAMEWORK=PATH with one of {known}")
        else:
            found[name] = Path(path).expanduser()
    for name, repository in frameworks.items() if options.clone else ():
        try:
            found.setdefault(name, clone(repository, options.build / "frameworks" / name))
        except Missing as error:
            faults.append(str(error))
    return found, faults


def run(site: Path, options) -> Result:
    from kllab import ATLAS

    frameworks = {row.framework: row.repository for row in ATLAS.values()}
    if options.clone:
        (options.build / "frameworks").mkdir(parents=True, exist_ok=True)
    paths, faults = checkouts(options, frameworks)
    if not paths and not faults:
        return Result("atlas", [("not asked for", "--checkout FRAMEWORK=PATH, or --clone")])
    result, commits = Result("atlas", faults=faults), read_at()
    for name, path in paths.items():
        rows = [row for row in ATLAS.values() if row.framework == name]
        one = examine(path, rows, commits[name], options.revision)
        result.rows += one.rows
        result.faults += one.faults
    return result
