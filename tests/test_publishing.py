"""Publishing: the branch of Pages, redirects, releases, errata, forms, the version on a page.

A bare repository in a folder stands for GitHub's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from datetime import date
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import kl_errata
import kl_redirects
import kl_version
import make
import pages_branch
import pytest
import release
import yaml
from sitechecks import html

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


# --- pages that moved -----------------------------------------------------------------------------


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def released() -> list[str]:
    lines = read(release.ADDRESSES).splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_every_page_that_was_ever_released_is_there_or_leads_on():
    documents = set(release.documents(read("_toc.yml")))
    moved = kl_redirects.read_list(ROOT / "book" / "redirects.toml")
    assert list(kl_redirects.faults(moved, documents)) == []
    assert len(released()) == len(set(released())) > 20
    assert set(released()) <= documents | set(moved)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("a", "b", "would hide it"),
        ("old", "gone", "no page"),
        ("old", "gone#part", "no page"),
        ("old", "older", "no page"),  # another redirect
    ],
)
def test_a_line_that_leads_nowhere_or_hides_a_page_is_refused(old, new, says):
    moved = {"older": "a", old: new}
    assert [says in fault for fault in kl_redirects.faults(moved, {"a", "b"})] == [True]


CONF = """
import sys
sys.path.insert(0, {extensions!r})
extensions = ["myst_parser", "kl_redirects", "kl_errata", "kl_version"]
myst_enable_extensions = ["deflist", "dollarmath"]
templates_path = [{templates!r}]
html_theme = "basic"
html_sidebars = {{"**": ["kl-foot.html"]}}
kl_redirects = {moved!r}
kl_errata = {errata!r}
"""
PAGES = {
    "index": "# Start\n\n```{toctree}\nbook/errata\nparts/new\n```\n",
    "book/errata": (ROOT / "book" / "errata.md").read_text(encoding="utf-8"),
    "parts/new": "# New\n\n## Section\n\nText.\n",
}
MOVED = {"old": "parts/new", "parts/sub/older": "parts/new#section"}
ENTRY = {
    "page": "parts/new",
    "versions": ["0.1.0", "0.9.0"],
    "said": "that $x = 1$,\nand *more*",
    "right": "that $x = 2$",
    "since": "0.10.0",
}


def toml(entry: dict) -> str:
    return "[[erratum]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in entry.items())


def small_book(folder: Path, moved: dict = MOVED, errata: str = "") -> Path:
    lists = {"redirects.toml": "".join(f'"{a}" = "{b}"\n' for a, b in moved.items())}
    lists |= {"errata.toml": errata} | {f"{name}.md": text for name, text in PAGES.items()}
    for name, text in lists.items():
        path = folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    conf = CONF.format(
        extensions=str(ROOT / "book" / "_ext"),
        templates=str(ROOT / "book" / "_templates"),
        moved=str(folder / "source" / "redirects.toml"),
        errata=str(folder / "source" / "errata.toml"),
    )
    (folder / "source" / "conf.py").write_text(conf)
    return folder


def built(folder: Path, builder: str = "html", **variables: str) -> subprocess.CompletedProcess:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("KLLAB_")}
    # Warnings are errors where pages are made; an EPUB of a test has no author.
    strict = ["-W"] if builder == "html" else []
    command = [sys.executable, "-m", "sphinx", "-qn", *strict, "-b", builder, "source", builder]
    return subprocess.run(
        command, cwd=folder, env=kept | variables, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small book without an address, with two moved pages and one erratum."""
    folder = small_book(tmp_path_factory.mktemp("book"), errata=toml(ENTRY))
    result = built(folder)
    assert result.returncode == 0, result.stderr
    return folder


class Links(HTMLParser):
    """Of a page: attributes of each link, the title, names of meta elements with content."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.meta, self.title, self.inside = [], {}, "", ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found, self.inside = dict(attributes), tag
        if tag in ("a", "link"):
            self.links.append((tag, found.get("rel", ""), found.get("href", "")))
        if tag == "meta":
            self.meta[found.get("name") or found.get("http-equiv", "")] = found.get("content")

    def handle_data(self, data):
        self.title += data if self.inside == "title" else ""
        self.inside = ""


@pytest.mark.parametrize("old", MOVED)
def test_a_moved_page_leads_on_without_scripts_and_from_a_folder(small, old):
    page = small / "html" / f"{old}.html"
    read_page = Links(page.read_text(encoding="utf-8"))
    to = MOVED[old].replace("new", "new.html")
    assert read_page.title == "This page has moved"
    assert read_page.meta["robots"] == "noindex"
    relative = {href for _, _, href in read_page.links}
    assert len(relative) == 1, "canonical link and the link for people are the same"
    assert read_page.meta["refresh"] == f"0; url={relative.pop()}"
    (href,) = {href for tag, _, href in read_page.links if tag == "a"}
    target, _, section = href.partition("#")
    assert (page.parent / target).resolve() == small / "html" / "parts" / "new.html"
    assert f"parts/new.html{'#' + section if section else ''}" == to
    assert not section or f'id="{section}"' in (page.parent / target).read_text()


def test_moved_pages_are_valid_html(small):
    if not (html.JAVA and html.JAR.is_file()):
        pytest.skip("no java, or no checker")
    assert html.messages([small / "html" / f"{old}.html" for old in MOVED]) == []


def test_a_redirect_that_hides_a_page_stops_the_build(tmp_path):
    result = built(small_book(tmp_path, moved={"parts/new": "index"}))
    assert result.returncode != 0
    assert "a redirect would hide it" in result.stderr


def test_an_epub_has_no_moved_pages(tmp_path):
    book = small_book(tmp_path)
    assert built(book, "epub").returncode == 0
    names = {path.stem for path in (book / "epub").rglob("*.xhtml")}
    assert "new" in names
    assert names & {"old", "older"} == set()


# --- errata ---------------------------------------------------------------------------------------

DOCUMENTS = {"parts/new"}


def test_an_erratum_shows_where_what_and_since_when(small):
    text = (small / "html" / "book" / "errata.html").read_text(encoding="utf-8")
    plain = " ".join(re.sub(r"<[^>]+>", "", text).split())
    assert "New, in 0.1.0, 0.9.0; right since 0.10.0" in plain
    assert "It said: that \\(x = 1\\), and more" in plain
    assert "Right is: that \\(x = 2\\)" in plain
    assert "<em>more</em>" in text
    assert "No released version has a known error" not in text


def test_the_list_of_errata_is_in_order():
    documents = set(release.documents(read("_toc.yml")))
    assert list(kl_errata.faults(kl_errata.read_list(kl_errata.LIST), documents)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"page": "parts/gone"}, "no page"),
        ({"said": " "}, "said is empty"),
        ({"right": ENTRY["said"]}, "are the same"),
        ({"versions": []}, "no version has it"),
        ({"versions": ["0.10.0"]}, "after the correction"),
        ({"since": "soon"}, "no version"),
        ({"note": "more"}, "keys missing or unknown: note"),
        ({"since": 1}, "every value is a text"),
    ],
)
def test_an_erratum_that_lacks_something_is_refused(change, says):
    assert list(kl_errata.faults([ENTRY], DOCUMENTS)) == []
    found = list(kl_errata.faults([ENTRY | change], DOCUMENTS))
    assert found
    assert says in "; ".join(found)


def test_the_newest_correction_comes_first():
    newer = ENTRY | {"since": "0.11.0"}
    assert list(kl_errata.faults([newer, ENTRY], DOCUMENTS)) == []
    assert list(kl_errata.faults([ENTRY, newer], DOCUMENTS)) == [
        "the newest correction comes first"
    ]


# --- forms and the foot of a page -----------------------------------------------------------------

FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
ADDRESS = "https://github.com/an-owner/a.book"


def test_each_form_asks_for_something_and_the_errata_page_knows_it():
    names = {path.name for path in FORMS.glob("*.yml")} - {"config.yml"}
    assert names == {form for form, _ in kl_errata.FORMS}
    for name in names:
        form = yaml.safe_load((FORMS / name).read_text(encoding="utf-8"))
        assert {"name", "description", "labels", "body"} == set(form)
        ids = [part["id"] for part in form["body"]]
        labels = [part["attributes"]["label"] for part in form["body"]]
        assert len(set(ids)) == len(ids) == len(set(labels))
        assert any(part.get("validations", {}).get("required") for part in form["body"])


def foot(folder: Path, page: str = "parts/new") -> str:
    text = (folder / "html" / f"{page}.html").read_text(encoding="utf-8")
    return re.search(r'<p class="kl-version">.*?</a></p>', text, re.DOTALL)[0]


def test_without_an_address_a_mistake_leads_to_the_errata_page(small):
    assert 'href="../book/errata.html#report-a-mistake"' in foot(small)
    assert 'href="#report-a-mistake"' in foot(small, "book/errata")
    assert "github" not in foot(small)
    errata = (small / "html" / "book" / "errata.html").read_text(encoding="utf-8")
    assert 'id="report-a-mistake"' in errata
    assert "issues/new" not in errata


def test_with_an_address_a_mistake_opens_the_form_with_the_page_in_it(tmp_path):
    book = small_book(tmp_path)
    assert built(book).returncode == 0
    old = book / "html" / "parts" / "new.html"
    times = old.stat().st_mtime_ns
    old.write_text(
        re.sub("(?s)<p class=.kl-version.*?</p>", '<p class="kl-version">?</p>', old.read_text())
    )
    os.utime(old, ns=(times, times))
    result = built(book, KLLAB_REPOSITORY=ADDRESS, KLLAB_PREVIEW="PR-12")
    assert result.returncode == 0, result.stderr
    # A page that was not written again belongs to this build, too.
    found = kl_version.commit()
    line = foot(book)
    assert f"Version {kl_version.version()}, commit" in line
    assert f'<a href="{ADDRESS}/commit/{found.sha}"><code>{found.short}</code></a>' in line
    assert "Preview PR-12, not the published book." in line
    assert old.stat().st_mtime_ns == times
    # The errata page is read in each build.
    link = urlsplit(
        unescape(re.search(r'href="([^"]*issues/new[^"]*)"', foot(book, "book/errata"))[1])
    )
    fields = dict(parse_qsl(link.query))
    form = yaml.safe_load((FORMS / fields["template"]).read_text(encoding="utf-8"))
    assert set(fields) - {"template", "title"} <= {part["id"] for part in form["body"]}
    assert fields["page"] == "book/errata"
    assert kl_version.version() in fields["version"]
    text = (book / "html" / "book" / "errata.html").read_text(encoding="utf-8")
    for form, _ in kl_errata.FORMS:
        assert f'href="{ADDRESS}/issues/new?template={form}"' in text


def test_a_commit_is_named_and_marked_where_files_differ(tmp_path):
    assert kl_version.commit(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    (tmp_path / "a").write_text("a")
    git(tmp_path, "add", "a")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-qm", "a")
    git(tmp_path, "tag", "v1.0.0")
    sha = git(tmp_path, "rev-parse", "HEAD").strip()
    assert kl_version.commit(tmp_path) == kl_version.Commit(sha, changed=False)
    (tmp_path / "a").write_text("b")
    assert kl_version.commit(tmp_path) == kl_version.Commit(sha, changed=True)


# --- releases -------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path):
    """What a release writes, copied, with news in the changelog."""
    for name in {*(name for name, _, _ in release.PLACES), release.ADDRESSES, "_toc.yml"}:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(read(name), encoding="utf-8")
    changelog = tmp_path / "CHANGELOG.md"
    listed = tmp_path / release.ADDRESSES  # pages since the last release are another matter
    listed.write_text(release.with_pages(listed.read_text(), read("_toc.yml")), encoding="utf-8")
    news = "## Unreleased\n\n- New.\n\n## "
    changelog.write_text(changelog.read_text().replace("## ", news, 1))
    return tmp_path


def test_one_command_writes_the_version_everywhere(checkout):
    changed = release.release("7.8.9", date(2031, 2, 3), checkout)
    assert set(changed) == {name for name, _, _ in release.PLACES}
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    assert project["version"] == "7.8.9"
    assert '__version__ = "7.8.9"' in (checkout / "src/kllab/__init__.py").read_text()
    citation = yaml.safe_load((checkout / "CITATION.cff").read_text())
    assert (citation["version"], citation["date-released"]) == ("7.8.9", date(2031, 2, 3))
    assert "## 7.8.9\n\n- New.\n\n## " in (checkout / "CHANGELOG.md").read_text()
    # Again with the same version: nothing to do.
    assert release.release("7.8.9", date(2031, 2, 3), checkout) == []


def test_a_release_adds_addresses_and_removes_none(checkout):
    toc = checkout / "_toc.yml"
    toc.write_text(toc.read_text().replace("book/status", "book/state"))
    assert release.ADDRESSES in release.release("7.8.9", date(2031, 2, 3), checkout)
    lines = (checkout / release.ADDRESSES).read_text().splitlines()
    assert "book/status" in lines
    assert lines[-1] == "book/state"


def test_a_release_that_cannot_be_right_changes_nothing(checkout):
    before = {path: path.read_text() for path in checkout.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="or a later version already"):
        release.release("0.0.1", date(2031, 2, 3), checkout)
    citation = checkout / "CITATION.cff"
    broken = before[citation].replace("date-released", "released")
    citation.write_text(broken)
    with pytest.raises(ValueError, match=r"CITATION\.cff: .* 0 times"):
        release.release("7.8.9", date(2031, 2, 3), checkout)
    now = {path: path.read_text() for path in before}
    assert now == before | {citation: broken}


def test_zenodo_can_read_the_citation():
    """It takes one licence as a word, and names of authors; a list stops the archive."""
    citation = yaml.safe_load(read("CITATION.cff"))
    assert isinstance(citation["license"], str)
    for licence in ("MIT", "CC BY 4.0"):
        assert licence in citation["message"]
    assert all("name" in author or "family-names" in author for author in citation["authors"])
    assert not (ROOT / ".zenodo.json").exists(), "Zenodo would ignore CITATION.cff"


# --- taking over ----------------------------------------------------------------------------------


def test_whoever_takes_over_reads_about_every_workflow_label_and_file():
    text = read("MAINTAINING.md")
    workflows = {path.name for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    assert {name for name in workflows if f"`{name}`" not in text} == set()
    for path in FORMS.glob("*.yml"):
        for label in yaml.safe_load(path.read_text(encoding="utf-8")).get("labels", []):
            assert f"`{label}`" in text, label
    named = re.findall(r"`((?:tools|book|src|tests|\.github)/[\w./]+)`", text)
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_pythons_are_the_same_everywhere():
    """The matrix, the commands and the package agree on the oldest and the newest Python."""
    book = yaml.safe_load(read(".github/workflows/book.yml"))
    *tested, tried = book["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert tested == [f"3.{minor}" for minor in range(make.OLDEST[1], make.NEWEST[1] + 1)]
    assert f"matrix.python == '{tried}'" in book["jobs"]["test"]["continue-on-error"]
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert project["requires-python"] == f">={tested[0]}"
    assert "Python 3.11, 3.12 or 3.13" in read("README.md")
    assert tested == ["3.11", "3.12", "3.13"], "then the README names others, too"
