"""The checks of the world outside: each sees what is wrong, and says so when it cannot look."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from pybtex.database import parse_string
from serve import serving
from sitechecks import CHECKS, SITELESS, Result, __main__, atlas, bibliography, external_links
from sitechecks.outside import NoNetwork, Refused, exceptions

# --- the bibliography, without the network --------------------------------------------------------

REFERENCES = bibliography.entries()


def test_every_entry_is_cited_and_complete():
    assert len(REFERENCES) > 40
    assert bibliography.offline(REFERENCES, bibliography.cited()) == []


def entry(text: str):
    return parse_string(text, "bibtex").entries


GOOD = """@article{kay2020, author={Kay, Ada}, title={On {KL}}, year={2020}, journal={Letters},
  volume={1}, pages={1--9}, doi={10.1/x}, url={https://doi.org/10.1/x}}"""
PREPRINT = """@misc{kay2021, author={Kay, Ada}, title={A {KL} for $f$}, year={2021},
  eprint={2101.00001}, archiveprefix={arXiv}, url={https://arxiv.org/abs/2101.00001}}"""
COMMIT = "0123456789" * 4
CODE = f"""@misc{{code, author={{{{Somebody}}}}, title={{Code}}, year={{2021}},
  note={{Read at commit 0123456}}, url={{https://github.com/a/b/blob/{COMMIT}/c.py}}}}"""


@pytest.mark.parametrize("text", [GOOD, PREPRINT, CODE])
def test_a_complete_entry_has_no_fault(text):
    found = entry(text)
    assert bibliography.offline(found, set(found)) == []


@pytest.mark.parametrize(
    ("text", "old", "new", "fault"),
    [
        (GOOD, "volume={1},", "", "no volume"),
        (GOOD, "pages={1--9}", "pages={1-9}", "pages that"),
        (GOOD, "author={Kay, Ada},", "", "nobody wrote it"),
        (GOOD, "year={2020}", "year={20}", "four digits"),
        (GOOD, "org/10.1/x", "org/10.1/y", "not its DOI's"),
        (GOOD, ", url={https://doi.org/10.1/x}", "", "no url"),
        (GOOD, "@article", "@booklet", "has no rule"),
        (PREPRINT, "abs/2101.00001", "abs/2101.00002", "not its eprint's"),
        (PREPRINT, "eprint={2101.00001}, archiveprefix={arXiv},", "", "no eprint"),
        (PREPRINT, "eprint={2101.00001}", "eprint={2101.1}", "not one of arXiv's"),
        (PREPRINT, "year={2021}", "year={2020}", "older than its eprint"),
        (CODE, COMMIT, "main", "which moves"),
        (CODE, "Read at commit 0123456", "Read", "names the commit"),
    ],
)
def test_an_incomplete_entry_is_seen(text, old, new, fault):
    found = entry(text.replace(old, new))
    (said,) = bibliography.offline(found, set(found))
    assert fault in said


def test_entries_and_citations_that_miss_each_other_are_seen():
    assert bibliography.offline(entry(GOOD), {"other"}) == [
        "kay2020: no page cites it",
        "other: cited and not in the bibliography",
    ]


def test_one_work_under_two_keys_is_seen():
    found = entry(GOOD + GOOD.replace("kay2020", "again"))
    said = bibliography.offline(found, set(found))
    assert any("again: 10.1/x stands twice" in fault for fault in said)


# --- the bibliography, with answers written down here ---------------------------------------------


def arxiv(title="A KL for f", author="Ada Kay", year="2021", more="") -> bytes:
    return f"""<?xml version="1.0" encoding="UTF-8"?>
    <feed xmlns="http://www.w3.org/2005/Atom" xmlns:arxiv="http://arxiv.org/schemas/atom">
      <entry><id>http://arxiv.org/abs/2101.00001v3</id><title>{title}</title>
        <published>{year}-01-01T00:00:00Z</published><author><name>{author}</name></author>{more}
      </entry></feed>""".encode()


def dblp(*infos: dict) -> bytes:
    hits = {"@total": str(len(infos)), **({"hit": [{"info": i} for i in infos]} if infos else {})}
    return json.dumps({"result": {"hits": hits}}).encode()


PROCEEDINGS = {
    "title": "A KL for f.",
    "venue": "ICML",
    "year": "2022",
    "type": "Conference and Workshop Papers",
    "authors": {"author": {"@pid": "1", "text": "Ada Kay 0001"}},
    "ee": "https://proceedings.example/kay",
}
INFORMAL = PROCEEDINGS | {"venue": "CoRR", "type": "Informal and Other Publications"}


def world(arxiv_says=None, dblp_says=None, doi_says=1):
    """A stand-in for the network that answers as the hosts do."""

    def ask(url: str) -> bytes:
        if "export.arxiv.org" in url:
            return arxiv_says or arxiv()
        if "dblp.org" in url:
            return dblp_says or dblp(INFORMAL)
        if doi_says == 404:
            raise Refused(url, 404)
        return json.dumps({"responseCode": doi_says}).encode()

    return ask


def test_true_entries_pass_and_all_hosts_were_asked():
    faults, asked = bibliography.online(entry(GOOD + PREPRINT), world())
    assert faults == []
    assert asked == ["arXiv", "DBLP", "doi.org"]


REFERENCE = "<arxiv:journal_ref>J. of Sums 3 (2022)</arxiv:journal_ref>"


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        (world(arxiv(title="Another title")), "arXiv's title is 'Another title'"),
        (world(arxiv(author="Bob Bell")), "arXiv's first author is Bob Bell"),
        (world(arxiv(year="2020")), "arXiv's first version is of 2020"),
        (world(arxiv(more=REFERENCE)), "published since: arXiv names J. of Sums 3 (2022)"),
        (world(arxiv().replace(b"2101.00001", b"2101.00009")), "no such number"),
        (world(dblp_says=dblp(INFORMAL, PROCEEDINGS)), "published since: DBLP names ICML 2022"),
        (world(doi_says=404), "10.1/x is not registered"),
        (world(doi_says=100), "10.1/x is not registered"),
    ],
)
def test_what_the_hosts_know_better_is_a_fault(answers, fault):
    (said,), _ = bibliography.online(entry(GOOD + PREPRINT), answers)
    assert fault in said


@pytest.mark.parametrize(
    "hit",
    [
        PROCEEDINGS | {"title": "A KL for g."},
        PROCEEDINGS | {"authors": {"author": [{"text": "Bob Bell"}, {"text": "Carol Clay"}]}},
    ],
)
def test_another_work_with_a_like_title_is_no_fault(hit):
    assert bibliography.online(entry(PREPRINT), world(dblp_says=dblp(hit)))[0] == []


def test_an_excused_preprint_stays_one(monkeypatch):
    listed = {"published": {"kay2021": "the preprint has the proof"}, "links": {}}
    monkeypatch.setattr(bibliography, "exceptions", lambda: listed)
    said, _ = bibliography.online(entry(PREPRINT), world(arxiv(more=REFERENCE), dblp(PROCEEDINGS)))
    assert said == []
    assert bibliography.offline(entry(PREPRINT), {"kay2021"}) == []
    assert "kay2021: excused" in bibliography.offline({}, set())[0]


def test_a_missing_network_is_said_plainly():
    def nobody(url: str) -> bytes:
        raise NoNetwork(url.split("/")[2])

    faults, asked = bibliography.online(entry(GOOD + PREPRINT), nobody)
    assert asked == []
    assert [fault.split(" could")[0] for fault in faults] == [
        f"no network: {host}" for host in ("export.arxiv.org", "dblp.org", "doi.org")
    ]


def test_a_busy_host_is_a_fault_and_the_others_are_asked():
    def busy(url: str) -> bytes:
        if "dblp" in url:
            raise Refused(url, 503)
        return world()(url)

    (fault,), asked = bibliography.online(entry(GOOD + PREPRINT), busy)
    assert "503" in fault
    assert asked == ["arXiv", "doi.org"]


# --- links that leave the site --------------------------------------------------------------------

PAGE = """<!DOCTYPE html><html lang="en"><title>t</title>
<a href="https://a.example/x#y">a</a> <a href="https://a.example/x">b</a>
<a href="other.html">c</a> <a href="http://b.example/">d</a></html>"""


def test_addresses_of_other_hosts_are_found_once(tmp_path):
    (tmp_path / "page.html").write_text(PAGE, encoding="utf-8")
    found = external_links.addresses(tmp_path)
    assert found == {"https://a.example/x": "page.html", "http://b.example/": "page.html"}


def test_linkinator_tells_an_address_that_is_there_from_one_that_is_gone(tmp_path):
    """A server on this machine stands for another host, by another name."""
    (tmp_path / "index.html").write_text(PAGE, encoding="utf-8")
    with serving(tmp_path) as address:
        host = address.replace("127.0.0.1", "localhost")
        status = external_links.ask_all([f"{host}/index.html?a=1&b=2", f"{host}/gone.html"])
    assert status == {f"{host}/index.html?a=1&b=2": 200, f"{host}/gone.html": 404}


def test_a_dead_address_is_a_fault_with_its_page():
    said = external_links.faults_of(
        {"https://a.example/x": 200, "http://b.example/": 404, "http://c.example/": 0},
        {"http://b.example/": "page.html", "http://c.example/": "page.html"},
    )
    assert said == [
        "page.html: http://b.example/ answers 404",
        "page.html: http://c.example/ does not answer",
    ]


def test_every_exception_has_a_reason_and_a_use():
    for reasons in exceptions().values():
        assert all(len(reason) > 10 for reason in reasons.values())
    urls = {fields["url"] for fields in (entry.fields for entry in REFERENCES.values())}
    assert external_links.stale(urls, exceptions()["links"]) == []
    assert external_links.stale({"https://a.example"}, {"https://b.example": "a reason"})


# --- the atlas ------------------------------------------------------------------------------------

FILE = "loss.py"
BEFORE = ["import math", "", "def kl(a, b):", "    d = a - b", "    return d", "", "X = 1"]


@pytest.fixture
def framework(tmp_path):
    """A small framework with one commit, and a way to make the next one."""
    folder = tmp_path / "framework"
    folder.mkdir()

    def git(*words: str) -> str:
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(folder), *who, *words]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()

    def commit(files: dict[str, list[str]], remove: str = "") -> str:
        for name, lines in files.items():
            (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        if remove:
            (folder / remove).unlink()
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "--message", "m")
        return git("rev-parse", "HEAD")

    git("init", "--quiet")
    first = commit({FILE: BEFORE})
    return SimpleNamespace(path=folder, commit=commit, git=git, first=first)


def row(framework, lines="3-5", **other):
    return SimpleNamespace(name="f/kl", commit=framework.first, file=FILE, lines=lines, **other)


def states(framework, lines="3-5", path=None) -> tuple[str, list[str]]:
    rows = [row(framework, lines)]
    result = atlas.examine(path or framework.path, rows, framework.first, "HEAD")
    return result.rows[0][1] if result.rows else "", result.faults


@pytest.mark.parametrize(
    ("after", "lines", "said"),
    [
        ([*BEFORE[:6], "X = 2"], "3-5", "unchanged"),
        ([*BEFORE, "Y = 1"], "3-5", "unchanged"),
        (["# new", *BEFORE], "3-5", "moved  loss.py, 4-6"),
        (["# new", *BEFORE], "1, 4-5", "moved  loss.py, 2; loss.py, 5-6"),
        ([*BEFORE[5:], *BEFORE[:5]], "3-5", "moved  loss.py, 5-7"),
        ([*BEFORE[:2], "# between", *BEFORE[2:]], "3-5", "moved  loss.py, 4-6"),
        ([*BEFORE[:5], "# after", *BEFORE[5:]], "3-5", "unchanged"),
    ],
)
def test_lines_that_stayed_are_followed(framework, after, lines, said):
    framework.commit({FILE: after})
    assert states(framework, lines) == (said, [])


@pytest.mark.parametrize(
    ("after", "where"),
    [
        ([*BEFORE[:3], "    d = b - a", *BEFORE[4:]], "3-5"),
        ([*BEFORE[:4], "    d = d.abs()", *BEFORE[4:]], "3-6"),
        (["# new", *BEFORE[:3], "    d = b - a", *BEFORE[4:]], "4-6"),
        ([*BEFORE[:4], *BEFORE[5:]], "3-4"),
    ],
)
def test_a_changed_line_is_a_fault_with_its_difference(framework, after, where):
    framework.commit({FILE: after})
    said, (fault,) = states(framework)
    assert said == f"changed  loss.py, {where}"
    assert fault.startswith(f"f/kl: changed since {framework.first[:9]}: loss.py, {where}\n")
    assert "\n    @@ " in fault
    assert any(line.lstrip().startswith(("+ ", "- ")) for line in fault.splitlines()[3:])


def test_a_renamed_file_is_followed_and_a_lost_one_is_gone(framework):
    framework.commit({"renamed.py": BEFORE}, remove=FILE)
    assert states(framework) == ("moved  renamed.py, 3-5", [])
    framework.commit({"new.py": ["def kl(a, b):", *["# other"] * 20]}, remove="renamed.py")
    said, (fault,) = states(framework)
    assert said == "gone  its longest line stands in new.py, 1"
    assert fault.startswith("f/kl: gone since")


def test_removed_lines_are_gone(framework):
    framework.commit({FILE: [*BEFORE[:2], *BEFORE[5:]]})
    said, faults = states(framework)
    assert said.startswith("gone")
    assert len(faults) == 1


def test_the_worst_passage_counts(framework):
    framework.commit({FILE: ["# new", *BEFORE[:-1], "X = 2"]})
    said, faults = states(framework, "3-5, 7")
    assert said.startswith("changed")
    assert len(faults) == 1


def test_a_row_of_the_past_is_not_compared(framework):
    second = framework.commit({FILE: ["nothing"]})
    result = atlas.examine(framework.path, [row(framework)], second, "HEAD")
    assert result.faults == []
    assert result.rows[0][1].startswith("history")


def test_a_bare_clone_will_do_and_a_shallow_one_says_what_it_lacks(framework, tmp_path):
    framework.commit({FILE: ["# new", *BEFORE]})
    bare = atlas.clone("framework", tmp_path / "bare", host=tmp_path.as_uri())
    assert states(framework, path=bare) == ("moved  loss.py, 4-6", [])
    framework.commit({FILE: ["# new", "# newer", *BEFORE]})
    assert atlas.clone("framework", bare, host=tmp_path.as_uri()) == bare
    assert states(framework, path=bare) == ("moved  loss.py, 5-7", [])
    shallow = tmp_path / "shallow"
    framework.git("clone", "--quiet", "--depth=1", framework.path.as_uri(), str(shallow))
    said, (fault,) = states(framework, path=shallow)
    assert not said
    assert "a shallow clone" in fault
    _, (fault,) = states(framework, path=tmp_path)
    assert "no git repository" in fault
    with pytest.raises(atlas.Missing, match="nobody/nothing"):
        atlas.clone("nobody/nothing", tmp_path / "none", host=tmp_path.as_uri())


def test_a_wrong_checkout_is_a_fault_and_none_is_not(tmp_path):
    options = SimpleNamespace(checkout=[], clone=False, revision="HEAD", build=tmp_path)
    assert atlas.run(tmp_path, options) == Result(
        "atlas", [("not asked for", "--checkout FRAMEWORK=PATH, or --clone")]
    )
    options.checkout = ["trl"]
    assert "expected FRAMEWORK=PATH" in atlas.run(tmp_path, options).faults[0]
    options.checkout = [f"trl={tmp_path}"]
    result = atlas.run(tmp_path, options)
    assert len(result.faults) == 5
    assert all("no git repository" in fault for fault in result.faults)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_ends_with_one_where_there_are_faults(tmp_path, capsys, framework):
    build = ["--build", str(tmp_path / "_build")]
    assert __main__.main(["bibliography", "atlas", *build]) == 0
    assert __main__.main(["atlas", "--checkout", f"trl={framework.path}", *build]) == 1
    assert "has no commit" in capsys.readouterr().out
    report = json.loads(Path(tmp_path, "_build", "checks.json").read_text(encoding="utf-8"))
    assert report[0]["name"] == "atlas"
    assert __main__.main(["links", *build]) == 2, "a check of the site without a site"
    assert set(CHECKS) >= SITELESS
