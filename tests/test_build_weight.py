"""Light pages: icons, pictures, and what a page says of itself in its head."""

from types import SimpleNamespace

import kl_weight
import pytest
from docutils import nodes

SCRIPT = (
    'var a={house:[576,512,["home"],"f015","M0 0z"],"circle-half":[1,1,[],"f042",["M1","M2"]]};'
)


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        ({"house"}, 'var a={house:[576,512,["home"],"f015","M0 0z"],};'),
        ({"circle-half"}, 'var a={"circle-half":[1,1,[],"f042",["M1","M2"]]};'),
        ({"house", "circle-half"}, SCRIPT),
        (set(), "var a={};"),
    ],
)
def test_only_named_icons_stay(names, kept):
    assert kl_weight.keep_icons(SCRIPT, names) == kept


def test_icons_are_named_in_pages_and_in_scripts(tmp_path):
    (tmp_path / "a.html").write_text('<i class="fa-solid fa-bars"></i>')
    (tmp_path / "b.js").write_text("x.className = 'fa-xmark'")
    (tmp_path / "fontawesome.js").write_text("'fa-ghost'")
    assert kl_weight.icons_of(tmp_path) == {"solid", "bars", "xmark"}


def picture(tmp_path, body, svg='<svg xmlns="x" width="72pt" height="36.2pt" viewBox="0 0 1 1">'):
    (tmp_path / "one.svg").write_text(svg)
    builder = SimpleNamespace(name="html", images={"one.svg": "one.svg"})
    context = {"body": body}
    kl_weight.mend_images(
        SimpleNamespace(builder=builder, srcdir=tmp_path), "p", "page.html", context, None
    )
    return context["body"]


def test_a_picture_gets_its_size(tmp_path):
    mended = picture(tmp_path, '<img alt="A line." src="../_images/one.svg" />')
    assert mended == ('<img width="96" height="48" alt="A line." src="../_images/one.svg" />')


@pytest.mark.parametrize(
    "body",
    [
        '<img alt="a" src="data:image/svg+xml;base64,AA" />',
        '<img alt="a" src="../_images/other.svg" />',
        '<img alt="a" width="3" src="../_images/one.svg" />',
    ],
)
def test_other_pictures_stay_as_they_are(tmp_path, body):
    assert picture(tmp_path, body) == body


def test_a_picture_that_does_not_say_its_size_stays(tmp_path):
    body = '<img alt="a" src="../_images/one.svg" />'
    assert picture(tmp_path, body, svg='<svg viewBox="0 0 1 1">') == body


def test_a_description_has_the_first_plain_words_and_no_tex():
    formula = nodes.paragraph("", "", nodes.Text("Let "), nodes.math("", r"\pi"))
    section = nodes.section("", nodes.title("", "KL"), formula, nodes.paragraph("", "It is small."))
    document = SimpleNamespace(findall=section.findall)
    assert kl_weight.description(document) == "KL. It is small."
    section += nodes.paragraph("", "x")
    section[2][0] = nodes.Text("word " * 90)
    assert kl_weight.description(document).endswith("word …")
    assert len(kl_weight.description(document)) <= kl_weight.LONGEST + 2
