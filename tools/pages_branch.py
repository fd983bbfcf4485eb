"""The branch that Pages serves: the book at its root, previews of changes in ``preview/``.

``site FOLDER`` replaces the book and keeps the previews, ``preview NAME FOLDER`` puts a copy into
``preview/NAME`` and ``close NAME`` takes it away. The branch is one commit without a past, so the
repository does not grow with each build. It is written by Git's objects alone, without a checkout,
and a push counts only on top of what was read: where another came first, it is all done again.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BRANCH = "refs/heads/gh-pages"
PREVIEWS = "preview"
# CNAME holds a custom domain, and GitHub itself writes it into the branch.
KEPT = (PREVIEWS, "CNAME")
NAME = re.compile(r"PR-[1-9][0-9]*")
HEAD = re.compile(r"<head\b[^>]*>", re.IGNORECASE)
NOINDEX = '<meta name="robots" content="noindex">'
ATTEMPTS = 5
Entries = dict[str, str]  # what a folder holds: a name, and "mode kind hash" as Git lists it
AUTHOR = {
    "GIT_AUTHOR_NAME": "github-actions[bot]",
    "GIT_AUTHOR_EMAIL": "41898282+github-actions[bot]@users.noreply.github.com",
    "GIT_COMMITTER_NAME": "github-actions[bot]",
    "GIT_COMMITTER_EMAIL": "41898282+github-actions[bot]@users.noreply.github.com",
}


class Repository:
    """Git's objects, read and written without a checkout."""

    def __init__(self, folder: Path, remote: str):
        self.folder, self.remote = folder, remote

    def git(self, *words: str, stdin: str | None = None, **env: str) -> str:
        done = subprocess.run(
            ["git", "-c", "core.autocrlf=false", *words],
            cwd=self.folder,
            env=os.environ | AUTHOR | env,
            input=stdin,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"git {words[0]}: {done.stderr.strip()}")
        return done.stdout.strip()

    def remote_tip(self) -> str:
        """The branch's commit on the remote; empty where there is no branch yet."""
        return self.git("ls-remote", self.remote, BRANCH).partition("\t")[0]

    def fetch_tip(self) -> str:
        if not self.remote_tip():
            return ""
        self.git("fetch", "--quiet", "--no-tags", self.remote, BRANCH)
        return self.git("rev-parse", "FETCH_HEAD")

    def read(self, tree: str) -> Entries:
        lines = self.git("ls-tree", tree).splitlines()
        return {name: about for about, _, name in (line.partition("\t") for line in lines)}

    def write(self, entries: Entries) -> str:
        lines = [f"{about}\t{name}\n" for name, about in entries.items()]
        return self.git("mktree", stdin="".join(lines))

    def write_folder(self, folder: Path) -> str:
        """The tree of a folder's files, all of them, whatever this machine ignores."""
        with tempfile.TemporaryDirectory() as scratch:
            env = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
            tree = ("--work-tree", str(folder.resolve()))
            self.git(*tree, "add", "--all", "--force", str(folder.resolve()), **env)
            return self.git("write-tree", **env)

    def push(self, entries: Entries, tip: str, message: str) -> bool:
        """Whether the branch now has the tree; False where another push came first."""
        tree = self.write(entries)
        if tip and tree == self.git("rev-parse", f"{tip}^{{tree}}"):
            return True
        commit = self.git("commit-tree", tree, "-m", message)
        try:
            lease = f"--force-with-lease={BRANCH}:{tip}"
            self.git("push", "--quiet", lease, self.remote, f"{commit}:{BRANCH}")
        except RuntimeError:
            if self.remote_tip() == tip:
                raise  # nobody came first, so trying again does not help
            return False
        return True


def update(change: Callable[[Entries], Entries], message: str, repository: Repository) -> None:
    """Make the change to what the branch has, again where another push came first."""
    for _ in range(ATTEMPTS):
        tip = repository.fetch_tip()
        entries = change(repository.read(tip) if tip else {})
        # Without this file Pages would leave out folders whose name begins with ``_``.
        empty = repository.git("hash-object", "-w", "--stdin", stdin="")
        entries.setdefault(".nojekyll", f"100644 blob {empty}")
        if repository.push(entries, tip, message):
            return
    raise RuntimeError(f"{ATTEMPTS} times another push came first")


def built(folder: Path) -> Path:
    if not (folder / "index.html").is_file():
        raise SystemExit(f"{folder}: no built book there")
    return folder


def publish(folder: Path, repository: Repository) -> None:
    """The book at the root, the previews as they are."""
    for name in KEPT:
        if (built(folder) / name).exists():
            raise SystemExit(f"{folder / name}: that name is kept for the branch")
    book = repository.read(repository.write_folder(folder))

    def change(now: Entries) -> Entries:
        return book | {name: now[name] for name in KEPT if name in now}

    update(change, "Book", repository)


def preview(name: str, folder: Path, repository: Repository) -> None:
    """A copy of the book in preview/NAME that search engines are asked to leave out."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "site"
        shutil.copytree(built(folder), copy)
        hide_from_search(copy)
        tree = repository.write_folder(copy)
    change_previews(repository, f"Preview {name}", lambda now: now | {name: f"040000 tree {tree}"})


def close(name: str, repository: Repository) -> None:
    """Take a preview away; nothing happens where there is none."""
    if repository.remote_tip():
        change_previews(
            repository,
            f"No preview {name}",
            lambda now: {key: about for key, about in now.items() if key != name},
        )


def change_previews(
    repository: Repository, message: str, change: Callable[[Entries], Entries]
) -> None:
    def change_root(now: Entries) -> Entries:
        held = repository.read(now[PREVIEWS].split()[2]) if PREVIEWS in now else {}
        book = {key: about for key, about in now.items() if key != PREVIEWS}
        previews = change(held)
        return book | ({PREVIEWS: f"040000 tree {repository.write(previews)}"} if previews else {})

    update(change_root, message, repository)


def hide_from_search(folder: Path) -> None:
    for page in folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        hidden, count = HEAD.subn(lambda match: match[0] + NOINDEX, text, count=1)
        page.write_text(hidden if count else NOINDEX + text, encoding="utf-8")


def preview_name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: a preview is named PR-1, PR-2, …")
    return text


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--remote", default="origin", help="a remote's name or address")
    commands = parser.add_subparsers(dest="command", required=True)
    for command, words in (("site", ("folder",)), ("preview", ("name", "folder"))):
        made = commands.add_parser(command)
        for word in words:
            made.add_argument(word, type=Path if word == "folder" else preview_name)
    commands.add_parser("close").add_argument("name", type=preview_name)
    options = parser.parse_args(arguments)
    repository = Repository(ROOT, options.remote)
    if options.command == "site":
        publish(options.folder, repository)
    elif options.command == "preview":
        preview(options.name, options.folder, repository)
    else:
        close(options.name, repository)


if __name__ == "__main__":
    main()
