"""Repairs of pages, the repository's address, and docstrings in the reference."""

import json
from types import SimpleNamespace

import kl_api
import kl_pages
import kl_repository
import pytest
from sphinx.errors import ConfigError

ADDRESS = "https://github.com/an-owner/a.book"
CELL = '%pip install --quiet "kllab[book]"'


@pytest.fixture(autouse=True)
def no_preview(monkeypatch):
    """On continuous integration these tests run for a preview, too."""
    monkeypatch.delenv(kl_repository.PREVIEW, raising=False)


def configured(monkeypatch, address):
    if address is None:
        monkeypatch.delenv(kl_repository.VARIABLE, raising=False)
    else:
        monkeypatch.setenv(kl_repository.VARIABLE, address)
    options = {"repository_url": "", "use_edit_page_button": False}
    kl_repository.configure(None, SimpleNamespace(html_theme_options=options))
    return options


@pytest.mark.parametrize("address", [ADDRESS, ADDRESS + "/", ADDRESS + ".git", f" {ADDRESS} "])
def test_one_address_turns_on_every_button(monkeypatch, address):
    options = configured(monkeypatch, address)
    assert options["repository_url"] == ADDRESS
    assert all(options[button] is True for button in kl_repository.BUTTONS)
    assert options["launch_buttons"]["colab_url"]
    assert options["launch_buttons"]["binderhub_url"]


@pytest.mark.parametrize("address", [None, "", "  "])
def test_without_an_address_there_is_no_button(monkeypatch, address):
    options = configured(monkeypatch, address)
    assert not options["repository_url"]
    assert not options["launch_buttons"]
    assert not any(options[button] for button in kl_repository.BUTTONS)


@pytest.mark.parametrize(
    "address", ["an-owner/a.book", "https://github.com/an-owner", "https://gitlab.com/a/b"]
)
def test_another_address_is_refused(monkeypatch, address):
    with pytest.raises(ConfigError, match="KLLAB_REPOSITORY: expected https"):
        configured(monkeypatch, address)


def test_colab_opens_the_copy_that_knows_the_address(monkeypatch):
    monkeypatch.setenv(kl_repository.VARIABLE, ADDRESS)
    button = {"text": "Colab", "url": "elsewhere"}
    context = {"header_buttons": [{"buttons": [{"text": "Binder", "url": "binder"}, button]}]}
    kl_repository.point_colab_at_copies(None, "notebooks/01_x", "page.html", context, None)
    assert button["url"].endswith("/github/an-owner/a.book/blob/gh-pages/colab/01_x.ipynb")
    assert context["header_buttons"][0]["buttons"][0]["url"] == "binder"


def test_the_copy_for_colab_installs_from_the_address():
    notebook = {"cells": [{"source": ["try:\n", f"    {CELL}"]}, {"source": [CELL]}]}
    copy = json.loads(kl_repository.for_colab(json.dumps(notebook, indent=1), "an-owner/a.book"))
    expected = f'    %pip install --quiet "kllab[book] @ git+{ADDRESS}"'
    assert copy["cells"][0]["source"][1] == expected
    assert copy["cells"][1]["source"] == [CELL]


def test_a_preview_opens_and_installs_the_change(monkeypatch):
    monkeypatch.setenv(kl_repository.VARIABLE, ADDRESS)
    monkeypatch.setenv(kl_repository.PREVIEW, "PR-12")
    button = {"text": "Colab"}
    context = {"header_buttons": [{"buttons": [button]}]}
    kl_repository.point_colab_at_copies(None, "notebooks/01_x", "page.html", context, None)
    assert button["url"].endswith("/blob/gh-pages/preview/PR-12/colab/01_x.ipynb")
    copy = json.dumps({"cells": [{"source": [CELL]}]})
    assert f"git+{ADDRESS}@refs/pull/12/head" in kl_repository.for_colab(copy, "an-owner/a.book")
    monkeypatch.setenv(kl_repository.PREVIEW, "main")
    with pytest.raises(ConfigError, match="PR-NUMBER"):
        kl_repository.preview_name()


def mended(body):
    context = {"body": body}
    kl_pages.mend_body(None, "page", "page.html", context, None)
    return context["body"]


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (
            '<summary aria-label="x">\n<p class="collapsed">Show</p>\n</summary><p>text</p>',
            '<summary aria-label="x">\n<span class="collapsed">Show</span>\n</summary><p>text</p>',
        ),
        ('<style scoped>\n a {}\n</style><table class="dataframe">', '<table class="dataframe">'),
        ('<tr><th class="blank">&nbsp;</th><th>a</th>', '<tr><td class="blank"></td><th>a</th>'),
        ('<table id="T_kl"><td id="T_kl_row0">', "<table><td>"),
        (
            '<style type="text/css">#T_a {}</style><table id="T_a">',
            '<style type="text/css">#T_a {}</style><table id="T_a">',
        ),
        ('<section id="exercise-content">', "<section>"),
        ('<div role="list" class="citation-list">', '<div class="citation-list">'),
        ("<p>nothing to mend</p>", "<p>nothing to mend</p>"),
    ],
)
def test_markup_is_mended_where_it_is_invalid_and_nowhere_else(body, result):
    assert mended(body) == result


def test_a_repeated_script_stands_once_and_thebe_not_at_all():
    def script(filename=None, **attributes):
        return SimpleNamespace(filename=filename, attributes=attributes)

    kept = script("a.js"), script(body="let x = 1")
    repeated = [*kept, script("a.js"), script(body="let x = 1"), script("sphinx-thebe.js")]
    context = {"script_files": repeated}
    kl_pages.drop_repeated_scripts(None, "page", "page.html", context, None)
    assert context["script_files"] == list(kept)


DOCSTRING = """The mean of |log r|.

Parameters
----------
log_q, log_p : (..., V) normalised, ``a|b``;
    float64.
n : samples.

Prose - not a section.

Returns
-------
A tensor.

Examples
--------
>>> 1 | 2
3"""


def test_sections_become_headings_and_definitions():
    lines = kl_api.to_rst(DOCSTRING.splitlines())
    text = "\n".join(lines)
    assert lines[0] == "The mean of \\|log r\\|."
    assert "**Parameters**" in text
    assert "\n``log_q, log_p``\n    (..., V) normalised, ``a|b``;\n    float64." in text
    assert "\n``n``\n    samples." in text
    assert "\nProse - not a section." in text
    assert "**Returns**\n\nA tensor." in text
    assert ">>> 1 | 2" in text
    assert "---" not in text


def test_a_fold_of_the_sidebar_is_named_after_its_page():
    page = '<li><a class="reference internal" href="#">A {}</a>'
    fold = '<details open="open"><summary><span class="toctree-toggle"></span></summary>'
    made = kl_pages.named(page.format("group") + fold + "</details></li>" + page.format("leaf"))
    assert '<summary aria-label="Pages of: A group">' in made
    assert made.count("aria-label") == 1
    assert kl_pages.named(page.format("leaf")) == page.format("leaf")
    assert 'aria-label="Pages of: A &quot;group&quot;"' in kl_pages.named(
        page.format('"group"') + fold
    )
