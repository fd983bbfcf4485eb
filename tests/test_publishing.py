"""Publishing: the branch of Pages, redirects, releases, errata, forms, the version on a page.

A bare repository in a folder stands for GitHub's.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pages_branch
import pytest

ROOT = Path(__file__).resolve().parents[1]
NOINDEX = 'name="robots" content="noindex"'


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Hosted:
    """A clone, and the remote that it pushes to."""

    def __init__(self, folder: Path):
        self.remote, self.clone, self.folder = folder / "remote.git", folder / "clone", folder
        git(folder, "init", "--quiet", "--bare", str(self.remote))
        git(folder, "init", "--quiet", str(self.clone))
        # What a person's machine ignores must not be missing from the site.
        (self.clone / ".git" / "info" / "exclude").write_text("*.js\n")
        self.repository = pages_branch.Repository(self.clone, str(self.remote))

    def book(self, says: str, **files: str) -> Path:
        """A built book."""
        folder = self.folder / f"book-{says}"
        (folder / "_static").mkdir(parents=True)
        (folder / "index.html").write_text(f'<html><head lang="en"><title>{says}</title></head>')
        (folder / "_static" / "part.html").write_text("<p>part</p>")
        (folder / "_static" / "book.js").write_text("1")
        for name, text in files.items():
            (folder / f"{name}.html").write_text(text)
        return folder

    def names(self) -> set[str]:
        return set(git(self.remote, "ls-tree", "-r", "--name-only", "gh-pages").split())

    def read(self, name: str) -> str:
        return git(self.remote, "show", f"gh-pages:{name}")

    def commits(self) -> int:
        return int(git(self.remote, "rev-list", "--count", "gh-pages"))


@pytest.fixture
def hosted(tmp_path):
    return Hosted(tmp_path)


BOOK = {".nojekyll", "index.html", "_static/book.js", "_static/part.html"}


def under(name: str) -> set[str]:
    return {f"preview/{name}/{path}" for path in BOOK - {".nojekyll"}}


def test_publish_preview_publish_close(hosted):
    """The whole life of a preview; after each step the branch holds exactly what it should."""
    pages_branch.publish(hosted.book("one", old="<html>"), hosted.repository)
    assert hosted.names() == BOOK | {"old.html"}

    pages_branch.preview("PR-7", hosted.book("seven"), hosted.repository)
    pages_branch.preview("PR-12", hosted.book("twelve"), hosted.repository)
    assert hosted.names() == BOOK | {"old.html"} | under("PR-7") | under("PR-12")

    # A page that is gone from the book goes from the site, and no preview does.
    pages_branch.publish(hosted.book("two"), hosted.repository)
    assert hosted.names() == BOOK | under("PR-7") | under("PR-12")
    assert "two" in hosted.read("index.html")
    assert "seven" in hosted.read("preview/PR-7/index.html")

    # A preview is replaced as a whole.
    pages_branch.preview("PR-7", hosted.book("again", more="<html>"), hosted.repository)
    pages_branch.preview("PR-7", hosted.book("last"), hosted.repository)
    assert hosted.names() == BOOK | under("PR-7") | under("PR-12")
    assert "last" in hosted.read("preview/PR-7/index.html")

    pages_branch.close("PR-12", hosted.repository)
    assert hosted.names() == BOOK | under("PR-7")
    pages_branch.close("PR-12", hosted.repository)
    pages_branch.close("PR-7", hosted.repository)
    assert hosted.names() == BOOK
    assert hosted.commits() == 1


def test_previews_ask_search_engines_to_stay_away_and_the_book_does_not(hosted):
    book = hosted.book("one")
    pages_branch.publish(book, hosted.repository)
    pages_branch.preview("PR-7", book, hosted.repository)
    for name in ("index.html", "_static/part.html"):
        assert NOINDEX in hosted.read(f"preview/PR-7/{name}")
        assert NOINDEX not in hosted.read(name)
        assert NOINDEX not in (book / name).read_text()
    assert hosted.read("preview/PR-7/index.html").index(NOINDEX) > len('<html><head lang="en"')


def test_a_domain_that_was_set_on_github_stays(hosted, tmp_path):
    pages_branch.publish(hosted.book("one"), hosted.repository)
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", "--branch", "gh-pages", str(hosted.remote), str(other))
    (other / "CNAME").write_text("book.example")
    git(other, "add", "CNAME")
    git(other, "-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-qm", "domain")
    git(other, "push", "--quiet")
    pages_branch.publish(hosted.book("two"), hosted.repository)
    assert hosted.names() == BOOK | {"CNAME"}


def test_the_first_thing_published_may_be_a_preview(hosted):
    pages_branch.close("PR-7", hosted.repository)
    pages_branch.preview("PR-7", hosted.book("seven"), hosted.repository)
    assert hosted.names() == {".nojekyll"} | under("PR-7")


def test_who_comes_second_builds_on_what_came_first(hosted, monkeypatch):
    """Between reading the branch and pushing it, another job publishes a preview."""
    pages_branch.publish(hosted.book("one"), hosted.repository)
    late, seven = hosted.book("late"), hosted.book("seven")
    other = pages_branch.Repository(hosted.clone, str(hosted.remote))
    push = hosted.repository.push

    def push_late(*arguments):
        if not any(name.startswith("preview") for name in hosted.names()):
            pages_branch.preview("PR-7", seven, other)
        return push(*arguments)

    monkeypatch.setattr(hosted.repository, "push", push_late)
    pages_branch.publish(late, hosted.repository)
    assert "late" in hosted.read("index.html")
    assert hosted.names() == BOOK | under("PR-7")


def test_a_push_that_is_refused_is_an_error(hosted):
    pages_branch.publish(hosted.book("one"), hosted.repository)
    hook = hosted.remote / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(RuntimeError, match="git push"):
        pages_branch.publish(hosted.book("two"), hosted.repository)


@pytest.mark.parametrize("name", ["", "PR-0", "PR-", "../x", "PR-7/..", "main", "PR-7\n"])
def test_a_preview_has_a_plain_name(name):
    with pytest.raises(SystemExit):
        pages_branch.main(["close", name])


def test_what_is_not_a_book_is_not_published(hosted, tmp_path):
    with pytest.raises(SystemExit, match="no built book"):
        pages_branch.publish(tmp_path, hosted.repository)
    book = hosted.book("one")
    (book / "preview").mkdir()
    with pytest.raises(SystemExit, match="kept for the branch"):
        pages_branch.publish(book, hosted.repository)
