"""The bibliography: entries against the text, each against its type, and all against the world.

Without the network it sees whether every entry is cited, complete and written in one way. With
``--network`` it asks arXiv, DBLP and doi.org for titles, authors and years, for preprints that have
since been published, and for DOIs that lead nowhere. The tests run the first part on every change.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

from pybtex.database import Entry, parse_file
from pybtex.richtext import Text

from sitechecks import Result
from sitechecks.outside import NO_NETWORK, Ask, NoNetwork, Refused, ask, exceptions

ROOT = Path(__file__).resolve().parents[2]
BIBLIOGRAPHY = ROOT / "book" / "references.bib"
CITE = re.compile(r"\{cite(?::\w+)?\}`([^`]+)`")
ATOM = {"a": "http://www.w3.org/2005/Atom", "arxiv": "http://arxiv.org/schemas/atom"}

# What each type of entry says beside its author or editor, title and year.
FIELDS = {
    "article": ("journal", "volume", "pages"),
    "book": ("publisher",),
    "incollection": ("booktitle", "publisher"),
    "inproceedings": ("booktitle",),
    "misc": (),
}


# --- without the network --------------------------------------------------------------------------


def entries(path: Path = BIBLIOGRAPHY) -> dict[str, Entry]:
    return dict(parse_file(str(path)).entries)


def cited() -> set[str]:
    """Keys that a page or a notebook names."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "book").rglob("*.md")]
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts += ["".join(cell["source"]) for cell in cells]
    return {key.strip() for text in texts for keys in CITE.findall(text) for key in keys.split(",")}


def disagreements(found: dict[str, Entry], used: set[str]) -> list[str]:
    """Entries that nobody cites, and citations without an entry."""
    unused = [f"{key}: no page cites it" for key in sorted(set(found) - used)]
    return unused + [
        f"{key}: cited and not in the bibliography" for key in sorted(used - set(found))
    ]


def incomplete(key: str, entry: Entry) -> list[str]:
    """What an entry lacks, and what contradicts itself in it."""
    fields = {name.lower(): value for name, value in entry.fields.items()}
    if entry.type not in FIELDS:
        return [f"{key}: the type {entry.type} has no rule; there are {', '.join(FIELDS)}"]
    faults = [f"no {name}" for name in ("title", "year", *FIELDS[entry.type]) if name not in fields]
    if not (entry.persons.get("author") or entry.persons.get("editor")):
        faults.append("nobody wrote it")
    if "url" not in fields:
        faults.append("no url, so a reader cannot follow it")
    if not re.fullmatch(r"\d{4}", fields.get("year", "0000")):
        faults.append("a year of other than four digits")
    if "pages" in fields and not re.fullmatch(r"\d+--\d+", fields["pages"]):
        faults.append("pages that are not written 1--2")
    return [f"{key}: {fault}" for fault in faults + misdirected(fields)]


def misdirected(fields: dict[str, str]) -> list[str]:
    """Where the address and what names it differ."""
    url, faults = fields.get("url", ""), []
    number = fields.get("eprint", "")
    if "arxiv.org" in url and not number:
        faults.append("an address at arXiv and no eprint")
    if number:
        if fields.get("archiveprefix") != "arXiv" or not re.fullmatch(r"\d{4}\.\d{5}", number):
            faults.append("an eprint that is not one of arXiv's numbers")
        elif "doi" not in fields and url != f"https://arxiv.org/abs/{number}":
            faults.append("an address that is not its eprint's")
        elif int(fields.get("year", 0)) < 2000 + int(number[:2]):
            faults.append("older than its eprint")
    if "doi" in fields and url and url != f"https://doi.org/{fields['doi']}":
        faults.append("an address that is not its DOI's")
    commit = re.search(r"/(?:blob|tree)/([^/]+)/", url)
    if commit and not re.fullmatch(r"[0-9a-f]{40}", commit[1]):
        faults.append("code on a branch, which moves: name the commit")
    elif commit and f"commit {commit[1][:7]}" not in fields.get("note", ""):
        faults.append("no note that names the commit")
    return faults


def repeated(found: dict[str, Entry]) -> list[str]:
    """One work under two keys: the same DOI, eprint or title and year."""
    names = {
        key: [entry.fields[name] for name in ("doi", "eprint") if name in entry.fields]
        + [f"{words(plain(entry.fields.get('title', '')))} {entry.fields.get('year')}"]
        for key, entry in found.items()
    }
    counts = Counter(name for several in names.values() for name in several)
    return [
        f"{key}: {name} stands twice"
        for key, several in names.items()
        for name in several
        if counts[name] > 1
    ]


def offline(found: dict[str, Entry], used: set[str]) -> list[str]:
    """All faults that can be seen without the network."""
    stale = [
        f"{key}: excused in exceptions.toml, and not in the bibliography"
        for key in exceptions()["published"]
        if key not in found
    ]
    one_by_one = [fault for key in sorted(found) for fault in incomplete(key, found[key])]
    return disagreements(found, used) + one_by_one + repeated(found) + stale


# --- with the network -----------------------------------------------------------------------------


def plain(latex: str) -> str:
    """Text without TeX's braces and accents."""
    return str(Text.from_latex(latex.replace("$", "")))


def words(text: str) -> str:
    """A title or a name in the form in which two sources agree: letters and digits."""
    spelt = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in spelt if letter.isalnum())


def families(entry: Entry) -> set[str]:
    persons = entry.persons.get("author", [])
    return {words(plain(" ".join(person.prelast_names + person.last_names))) for person in persons}


def preprints(found: dict[str, Entry]) -> dict[str, Entry]:
    """Entries with one of arXiv's numbers."""
    return {key: entry for key, entry in found.items() if "eprint" in entry.fields}


def arxiv_faults(found: dict[str, Entry], ask: Ask) -> list[str]:
    """One question for all preprints: title, first author, year, and where they were published."""
    asked = preprints(found)
    if not asked:
        return []
    numbers = ",".join(entry.fields["eprint"] for entry in asked.values())
    url = f"https://export.arxiv.org/api/query?max_results={len(asked)}&id_list={numbers}"
    answers = {}
    for one in ElementTree.fromstring(ask(url)).findall("a:entry", ATOM):
        address = one.findtext("a:id", "", ATOM)
        answers[re.sub(r"v\d+$", "", address.rsplit("/", 1)[-1])] = one
    faults = []
    for key, entry in asked.items():
        answer = answers.get(entry.fields["eprint"])
        said = ["arXiv has no such number"] if answer is None else differences(entry, answer)
        faults += [f"{key}: {fault}" for fault in said]
    return faults


def differences(entry: Entry, answer: ElementTree.Element) -> list[str]:
    """How arXiv's record differs from ours, and whether it names a journal."""
    faults = []
    title = answer.findtext("a:title", "", ATOM)
    if words(title) != words(plain(entry.fields["title"])):
        faults.append(f"arXiv's title is {' '.join(title.split())!r}")
    first = answer.findtext("a:author/a:name", "", ATOM)
    # A company's report may list its people there.
    collective = not entry.persons["author"][0].first_names
    if not collective and not any(words(first).endswith(name) for name in families(entry)):
        faults.append(f"arXiv's first author is {first}")
    year = answer.findtext("a:published", "", ATOM)[:4]
    if entry.type == "misc" and year != entry.fields["year"]:
        faults.append(f"arXiv's first version is of {year}")
    place = answer.findtext("arxiv:journal_ref", "", ATOM) or answer.findtext("arxiv:doi", "", ATOM)
    if entry.type == "misc" and place:
        faults.append(f"published since: arXiv names {' '.join(place.split())}")
    return faults


def dblp_faults(key: str, entry: Entry, ask: Ask) -> list[str]:
    """Where a preprint appeared by DBLP, which knows conferences that give no DOI."""
    title = re.sub(r"[^\w\s-]", " ", plain(entry.fields["title"]))
    url = f"https://dblp.org/search/publ/api?format=json&h=20&q={quote(' '.join(title.split()))}"
    hits = json.loads(ask(url))["result"]["hits"].get("hit", [])
    for info in (hit["info"] for hit in hits):
        informal = info.get("venue") == "CoRR" or info.get("type", "").startswith("Informal")
        same = words(info.get("title", "")) == words(plain(entry.fields["title"]))
        if same and not informal and families(entry) & dblp_families(info):
            venue, year = info.get("venue", "a place without a name"), info.get("year", "")
            return [f"{key}: published since: DBLP names {venue} {year}, {info.get('ee', '')}"]
    return []


def dblp_families(info: dict) -> set[str]:
    """Last words of the authors' names; DBLP tells namesakes apart by a number."""
    authors = info.get("authors", {}).get("author", [])
    names = [one["text"] for one in (authors if isinstance(authors, list) else [authors])]
    return {words(re.sub(r" \d{4}$", "", name).rsplit(" ", 1)[-1]) for name in names}


def doi_faults(key: str, entry: Entry, ask: Ask) -> list[str]:
    """Whether a DOI is registered; the page behind it often refuses robots."""
    try:
        answer = json.loads(ask(f"https://doi.org/api/handles/{quote(entry.fields['doi'])}"))
    except Refused as error:
        if error.status != 404:
            raise
        answer = {"responseCode": 100}
    registered = answer.get("responseCode") == 1
    return [] if registered else [f"{key}: the DOI {entry.fields['doi']} is not registered"]


def online(found: dict[str, Entry], ask: Ask = ask) -> tuple[list[str], list[str]]:
    """Faults, and whom it asked with success. A host that fails is a fault and not the end."""
    excused = exceptions()["published"]
    open_preprints = {
        key: entry
        for key, entry in preprints(found).items()
        if entry.type == "misc" and key not in excused
    }
    hosts = {
        "arXiv": lambda: arxiv_faults(found, ask),
        "DBLP": lambda: [f for k, e in open_preprints.items() for f in dblp_faults(k, e, ask)],
        "doi.org": lambda: [
            f for k, e in found.items() if "doi" in e.fields for f in doi_faults(k, e, ask)
        ],
    }
    faults, asked = [], []
    for name, question in hosts.items():
        try:
            said = question()
        except NoNetwork as error:
            faults.append(NO_NETWORK.format(error))
        except Refused as error:
            faults.append(f"{name}: {error}, so the rest was not checked there")
        else:
            asked.append(name)
            faults += said
    kept = [
        fault
        for fault in faults
        if not ("published since" in fault and fault.split(":")[0] in excused)
    ]
    return kept, asked


def run(site: Path, options) -> Result:
    found = entries()
    faults, asked = offline(found, cited()), []
    if options.network:
        more, asked = online(found)
        faults += more
    where = ", ".join(asked) or ("none" if options.network else "none: --network asks them")
    rows = [("entries", str(len(found))), ("preprints", str(len(preprints(found))))]
    return Result("bibliography", [*rows, ("hosts asked", where)], faults)
