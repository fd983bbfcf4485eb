"""One key per notebook: it changes when a number in the notebook may change, and only then.

The key covers the notebook's code, the modules of the package that it reaches through imports
(as syntax trees without docstrings), the package's data files, the lock file, the scale and Python.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

COMPUTES = ("torch", "numpy", "scipy", "matplotlib", "pandas")
# A page that prints source text depends on comments and docstrings too.
SHOWS_SOURCE = re.compile(r"getsource|\?\?|\bhelp\(|__doc__")
LOADS_BY_NAME = re.compile(r"importlib|__import__|def __getattr__")


def notebook_key(code: str, package: Path, lock: Path, scale: str) -> str:
    """Hex digest for a notebook whose code cells, joined, are ``code``.

    ``package`` is the folder of the package's source, ``lock`` the file with pinned versions.
    """
    total = hashlib.sha256()
    for part in (code, lock.read_text(encoding="utf-8"), scale, *installed()):
        total.update(part.encode() + b"\0")
    modules = reached(imports(parse(code)), package)
    show = SHOWS_SOURCE.search(code) is not None
    for path in sorted(modules):
        text = path.read_text(encoding="utf-8")
        total.update(path.relative_to(package).as_posix().encode() + b"\0")
        total.update((text if show else meaning(text)).encode() + b"\0")
    if modules:
        for path in data_files(package):
            total.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def installed() -> Iterator[str]:
    """Python and the installed versions of what computes, where they differ from the lock file."""
    yield platform.python_version()
    for name in COMPUTES:
        try:
            yield f"{name}=={metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield f"no {name}"


def parse(code: str) -> ast.Module:
    """The syntax tree of notebook code, magics and shell lines left out."""
    plain = "\n".join(
        re.sub(r"^(\s*)[%!].*", r"\1pass", line) if re.match(r"\s*[%!]", line) else line
        for line in code.split("\n")
    )
    return ast.parse(plain)


def imports(tree: ast.AST, inside: str = "") -> set[str]:
    """Dotted names that a tree imports, at any depth; ``inside`` resolves relative ones.

    For ``from a import b`` both ``a`` and ``a.b`` are named, since b may be a module.
    """
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = inside.split(".") if inside else []
                kept = parts[: len(parts) - node.level + 1]
                base = ".".join([*kept, *([node.module] if node.module else [])])
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


def reached(names: Iterable[str], package: Path) -> set[Path]:
    """Source files of the package that importing ``names`` executes."""
    found: set[Path] = set()
    waiting = [name for name in names if name.split(".")[0] == package.name]
    while waiting:
        for path, within in files_of(waiting.pop(), package):
            if path in found:
                continue
            found.add(path)
            text = path.read_text(encoding="utf-8")
            if LOADS_BY_NAME.search(text):
                # What such a module loads cannot be read off its text.
                return set(package.rglob("*.py"))
            more = imports(ast.parse(text), within)
            waiting += [name for name in more if name.split(".")[0] == package.name]
    return found


def files_of(name: str, package: Path) -> Iterator[tuple[Path, str]]:
    """(file, its package's dotted name) for each module that importing ``name`` executes."""
    parts = name.split(".")
    folder = package
    for depth in range(1, len(parts) + 1):
        within = ".".join(parts[:depth])
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py", within
        if depth < len(parts):
            module = folder / f"{parts[depth]}.py"
            if module.is_file():
                yield module, within
                return
            folder = folder / parts[depth]


def meaning(source: str) -> str:
    """What a module's text means to the interpreter: its syntax tree without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not is_text(statement)]
    return ast.dump(tree)


def is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a bare string: a docstring, or one after an assignment."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def data_files(package: Path) -> list[Path]:
    """Files that the package reads at run time: tables, not code, caches or browser bundles."""
    skip = {"__pycache__", "static"}
    return sorted(
        path
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc"} and not skip & set(path.parts)
    )


def scale() -> str:
    return os.environ.get("KLLAB_SCALE", "laptop")
