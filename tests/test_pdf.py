"""The printed book and the EPUB: entries of the outline written twice, and what the checks see."""

from types import SimpleNamespace

import pdf
import pytest
from sitechecks import epub
from sitechecks.pdf import faults_of, faults_of_outline


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (b"(Try itTry it)", b"(Try it)"),
        (rb"(Where did P\(x\) go?Where did P\(x\) go?)", rb"(Where did P\(x\) go?)"),
        (b"<FEFF03BB002103BB0021>", b"<FEFF03BB0021>"),
        (b"(Try it)", b"(Try it)"),
        (b"<FEFF03BB0021>", b"<FEFF03BB0021>"),
        (b"()", b"()"),
    ],
)
def test_an_entry_written_twice_is_mended_where_it_stands(tmp_path, entry, text):
    """No byte after it moves: the file's table of offsets stays right."""
    before, after = b"7 0 obj\n<</Title ", b"\n/Next 8 0 R>>\nendobj\n"
    path = tmp_path / "book.pdf"
    path.write_bytes(before + entry + after)
    pdf.mend_outline(path)
    blanks = b" " * (len(entry) - len(text))
    assert path.read_bytes() == before + text + blanks + after


def test_the_check_of_the_outline_sees_a_missing_and_a_doubled_entry():
    entries = ["One", "Two", "PlayPlay"]
    assert faults_of_outline(entries[:2], ["One", "Two"]) == []
    faults = faults_of_outline(entries, ["One", "Three"])
    assert faults == [
        "not in the outline: 'Three'",
        "twice in one entry of the outline: 'PlayPlay'",
    ]


def test_the_check_of_the_text_sees_tex_and_a_missing_chapter():
    info = {"Tagged": "yes", "Title": "Book"}
    assert faults_of(info, "One\nand 1/2", ["One"]) == []
    assert len(faults_of(info, r"One \(\frac12\)", ["One"])) == 1
    assert len(faults_of({}, "", ["One"])) == 3


def test_the_check_of_the_epub_lists_what_makes_it_invalid(tmp_path):
    def message(level):
        return SimpleNamespace(id="RSC-005", level=level, location="a.xhtml:1:2", message="a\n b")

    assert epub.faults_of([message("WARNING"), message("INFO")]) == []
    assert epub.faults_of([message("ERROR")]) == ["RSC-005: a.xhtml:1:2: a b"]
    assert epub.faults_of([message("FATAL")] * 23)[-1] == "and 3 more"
    missing = epub.run(tmp_path / "html", SimpleNamespace(build=tmp_path))
    assert missing.faults == ["the EPUB is missing: run `make epub` first"]
