"""Find ``{eval}`` roles in Markdown, and nothing that only looks like one.

JupyterLab shows ``{eval}`` live. The book's build cannot (MyST-NB evaluates only without a cache),
so `kl_execution` replaces each role by a value that a hidden cell computed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

FENCE = re.compile(r"^(?:[ ]{0,3}|[ >*+-]*[ ])(?P<ticks>`{3,}|~{3,})(?P<info>[^`\n]*)$")
DIRECTIVE = re.compile(r"^\{(?P<name>[\w:.+-]+)\}")
ROLE = re.compile(r"\{eval\}(?=`)")
TICKS = re.compile(r"`+")
# The content of these is not Markdown.
LITERAL_DIRECTIVES = {
    "code",
    "code-block",
    "code-cell",
    "sourcecode",
    "math",
    "raw",
    "eval-rst",
    "literalinclude",
}


class BadExpression(ValueError):
    """The content of an ``{eval}`` role is not one Python expression."""


def replace_evals(markdown: str, replace: Callable[[str], str]) -> str:
    """Return ``markdown`` with each ``{eval}`` role replaced by ``replace(expression)``.

    Roles inside code blocks, inline code, comments and after a backslash stay as they are.
    """
    out: list[str] = []
    prose: list[str] = []

    def flush() -> None:
        out.append(_replace_in_prose("".join(prose), replace))
        prose.clear()

    directives: list[str] = []  # fences of open directives, whose content is Markdown
    literal: str | None = None  # the fence of an open code block
    for line in markdown.splitlines(keepends=True):
        bare = line.rstrip("\n")
        fence = FENCE.match(bare)
        if literal is not None:
            out.append(line)
            if _closes(bare, literal):
                literal = None
        elif fence or not bare.strip() or bare.lstrip().startswith("%"):
            # A code span ends with its paragraph; `%` starts a MyST comment.
            flush()
            out.append(line)
            if fence and directives and _closes(bare, directives[-1]):
                directives.pop()
            elif fence and _holds_markdown(fence["info"].strip()):
                directives.append(fence["ticks"])
            elif fence:
                literal = fence["ticks"]
        else:
            prose.append(line)
    flush()
    return "".join(out)


def _holds_markdown(info: str) -> bool:
    directive = DIRECTIVE.match(info)
    return bool(directive) and directive["name"] not in LITERAL_DIRECTIVES


def _closes(line: str, opening: str) -> bool:
    text = line.strip().lstrip("> ")
    return len(text) >= len(opening) and set(text) == {opening[0]}


def _replace_in_prose(text: str, replace: Callable[[str], str]) -> str:
    out: list[str] = []
    position = 0
    while position < len(text):
        role = ROLE.match(text, position)
        if role and _escapes(text, position) % 2 == 0:
            ticks = TICKS.match(text, role.end())
            end = _closing(text, ticks.end(), len(ticks[0]))
            if end is not None:
                out.append(replace(expression(text[ticks.end() : end])))
                position = end + len(ticks[0])
                continue
        ticks = TICKS.match(text, position)
        if ticks:
            end = _closing(text, ticks.end(), len(ticks[0]))
            stop = ticks.end() if end is None else end + len(ticks[0])
            out.append(text[position:stop])
            position = stop
            continue
        out.append(text[position])
        position += 1
    return "".join(out)


def _escapes(text: str, position: int) -> int:
    before = text[:position]
    return len(before) - len(before.rstrip("\\"))


def _closing(text: str, start: int, length: int) -> int | None:
    for ticks in TICKS.finditer(text, start):
        if len(ticks[0]) == length:
            return ticks.start()
    return None


def expression(source: str) -> str:
    """The role's content as one line of Python, or ``BadExpression``."""
    line = " ".join(source.split("\n")).strip()
    try:
        ast.parse(line, mode="eval")
    except SyntaxError as error:
        raise BadExpression(f"{{eval}}`{line}` is not a Python expression: {error.msg}") from None
    return line
