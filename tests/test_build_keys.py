"""A notebook's key changes when its numbers may, and only then."""

import sys

import pytest
import source_keys
from source_keys import files_of, imports, meaning, notebook_key, parse, reached

FILES = {
    "__init__.py": '"""Front."""\n',
    "core.py": '"""Core."""\nSCALE = 2.0\n',
    "middle.py": "def f(x):\n    from . import core\n    return x * core.SCALE\n",
    "apart.py": "OTHER = 1\n",
    "sub/__init__.py": "",
    "sub/leaf.py": "from ..core import SCALE\n",
    "table.toml": "row = 1\n",
    "static/bundle.js": "0;\n",
}
CODE = "from lab import middle\nmiddle.f(1)"


@pytest.fixture
def lab(tmp_path):
    package = tmp_path / "lab"
    for name, text in FILES.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "requirements.txt").write_text("torch==1\n")
    return package


def key(package, code=CODE, scale="laptop"):
    return notebook_key(code, package, package.parent / "requirements.txt", scale)


def edit(package, name, old, new):
    path = package / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("core.py", "2.0", "3.0"),
        ("middle.py", "x *", "2 * x *"),
        ("__init__.py", '"""Front."""', "A = 1"),
        ("table.toml", "1", "2"),
        ("../requirements.txt", "==1", "==2"),
    ],
)
def test_what_counts_changes_the_key(lab, name, old, new):
    before = key(lab)
    edit(lab, name, old, new)
    assert key(lab) != before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("core.py", "Core.", "The core, explained at length."),
        ("core.py", "SCALE", "# a remark\nSCALE"),
        ("core.py", "2.0\n", "2.0\n'''About SCALE.'''\n"),
        ("apart.py", "1", "2"),
        ("static/bundle.js", "0", "1"),
    ],
)
def test_what_does_not_count_keeps_the_key(lab, name, old, new):
    before = key(lab)
    edit(lab, name, old, new)
    assert key(lab) == before


def test_code_scale_and_python_count(lab, monkeypatch):
    keys = {key(lab), key(lab, CODE + " "), key(lab, scale="full")}
    monkeypatch.setattr(source_keys.platform, "python_version", lambda: "9.9.9")
    assert len(keys | {key(lab)}) == 4


def test_a_notebook_that_shows_source_depends_on_docstrings(lab):
    code = CODE + "\nimport inspect\nprint(inspect.getsource(middle.f))"
    before = key(lab, code)
    edit(lab, "core.py", "Core.", "Another docstring.")
    assert key(lab, code) != before


def test_a_module_that_loads_by_name_reaches_everything(lab):
    edit(lab, "middle.py", "def f", "import importlib\ndef f")
    assert lab / "apart.py" in reached({"lab.middle"}, lab)


def test_imports_are_resolved_at_any_depth():
    tree = parse("import a.b\ndef f():\n    from .c import d\n    from .. import e\n%pip install x")
    assert imports(tree, "p.q") == {"a.b", "p.q.c", "p.q.c.d", "p", "p.e"}


def test_relative_imports_of_a_subpackage_are_followed(lab):
    names = {path.relative_to(lab).as_posix() for path in reached({"lab.sub.leaf"}, lab)}
    assert names == {"__init__.py", "sub/__init__.py", "sub/leaf.py", "core.py"}


def test_other_packages_reach_nothing(lab):
    assert reached({"torch", "laboratory.core"}, lab) == set()
    assert list(files_of("lab.no_such_module", lab)) == [(lab / "__init__.py", "lab")]


def test_meaning_keeps_strings_that_are_values():
    assert meaning("x = 'a'") != meaning("x = 'b'")
    assert meaning("def f():\n    'doc'\n    return 1") == meaning("def f():\n    return 1")


def test_installed_versions_name_this_python():
    assert next(iter(source_keys.installed())) == ".".join(map(str, sys.version_info[:3]))
