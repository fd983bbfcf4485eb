"""Where the build finds ``{eval}`` roles in Markdown, and where it must not."""

import pytest
from evals import BadExpression, replace_evals


def found(markdown):
    expressions = []
    out = replace_evals(markdown, lambda e: expressions.append(e) or f"<{len(expressions)}>")
    return expressions, out


@pytest.mark.parametrize(
    ("markdown", "expressions", "result"),
    [
        ("a {eval}`x` b", ["x"], "a <1> b"),
        ('{eval}`f"{kl:.3f}"`, {eval}`n`', ['f"{kl:.3f}"', "n"], "<1>, <2>"),
        ("{eval}``d['`']``", ["d['`']"], "<1>"),
        ("over\n{eval}`a +\n b` lines", ["a +  b"], "over\n<1> lines"),
        ("- item {eval}`x`\n\n> quoted {eval}`y`", ["x", "y"], "- item <1>\n\n> quoted <2>"),
        ("| a | {eval}`x` |", ["x"], "| a | <1> |"),
        ("before `code` {eval}`x` `more`", ["x"], "before `code` <1> `more`"),
        ("unpaired `` ticks {eval}`x`", ["x"], "unpaired `` ticks <1>"),
    ],
)
def test_a_role_in_prose_is_replaced(markdown, expressions, result):
    assert found(markdown) == (expressions, result)


@pytest.mark.parametrize(
    "markdown",
    [
        "`{eval}` alone",
        "`` {eval}`x` `` in a code span",
        "\\{eval}`x` escaped",
        "a ` tick pairs with the next one: {eval}`",
        "```python\n{eval}`x`\n```",
        "~~~\n{eval}`x`\n~~~",
        "```{code-block} python\n{eval}`x`\n```",
        "````{code}\n```\n{eval}`x`\n```\n````",
        "% a comment {eval}`x`",
        "{evaluate}`x` and {math}`x`",
    ],
)
def test_what_only_looks_like_a_role_stays(markdown):
    assert found(markdown) == ([], markdown)


def test_content_of_directives_is_prose():
    markdown = "```{note}\nin {eval}`x`\n```\n\n:::{tip}\nin {eval}`y`\n:::\n\nafter {eval}`z`\n"
    assert found(markdown)[0] == ["x", "y", "z"]


def test_code_inside_a_directive_is_not_prose():
    markdown = "````{note}\n```python\n{eval}`x`\n```\nbut {eval}`y`\n````\nand {eval}`z`"
    assert found(markdown)[0] == ["y", "z"]


@pytest.mark.parametrize("source", ["x =", "x; y", "import os", ""])
def test_anything_but_one_expression_is_refused(source):
    with pytest.raises(BadExpression, match="not a Python expression"):
        replace_evals(f"text {{eval}}``{source} ``", str)
