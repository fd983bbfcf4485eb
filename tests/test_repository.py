"""Rules that the whole repository keeps: pins, notebooks, versions, imports."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from source_keys import imports

import kllab

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PACKAGE = ROOT / "src" / "kllab"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST_CELL = 25

# Each tier imports earlier tiers only, and may use the helpers below; a private module stands just
# above the highest tier that it imports, so it opens no way up.
TIERS = (
    {"divergences"},
    {"exact", "sampling"},
    {"pairs"},
    {"estimators"},
    {"simulate", "gradients"},
    {"sequences", "penalties"},
    {"training", "auditor", "diagnosis"},
    {"atlas"},
)
FACES = {"figures", "explorables", "models", "tables", "testing", "__main__"}  # imported by none
HELPERS = {"checks", "runtime"}  # below all tiers, public


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def tracked() -> tuple[Path, ...]:
    """Files under version control."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    names = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    return tuple(ROOT / name for name in names if name and (ROOT / name).is_file())


# --- what is installed ----------------------------------------------------------------------------


def pins() -> list[str]:
    lines = read("requirements.txt").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


PIN = re.compile(r"(?P<name>[a-z0-9.-]+)==(?P<version>[0-9][0-9a-z.]*)( ; (?P<marker>[^#]+))?")


@pytest.mark.parametrize("line", pins())
def test_each_line_of_the_lock_file_is_one_plain_pin(line):
    match = PIN.fullmatch(line)
    assert match, f"{line!r}: expected name==version, with at most a marker"
    assert not re.match(r"(nvidia|cuda|triton)\b", match["name"])


@pytest.mark.parametrize(
    "line",
    [
        "torch==2.13.0+cpu",
        "torch>=2.13",
        "torch",
        "torch==2.13.0 --hash=sha256:00",
        "-e .",
        "--index-url https://a.example",
        "torch @ https://a.example/torch.whl",
    ],
)
def test_the_pattern_for_a_pin_refuses_other_lines(line):
    assert not PIN.fullmatch(line)


def test_each_direct_dependency_is_pinned_and_explained():
    locked = {PIN.fullmatch(line)["name"]: PIN.fullmatch(line)["version"] for line in pins()}
    blocks = read("requirements.in").strip().split("\n\n")[1:]
    assert blocks
    for block in blocks:
        assert block.startswith("#"), f"no reason above: {block!r}"
        for line in block.splitlines():
            if not line.startswith("#"):
                name, _, version = line.partition("==")
                assert locked.get(name.lower()), f"{name} is missing from requirements.txt"
                assert version in ("", locked[name.lower()])


def test_the_package_has_lower_bounds_only():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    extras = project["optional-dependencies"].values()
    for requirement in [*project["dependencies"], *(r for extra in extras for r in extra)]:
        assert re.fullmatch(r"[a-z-]+>=[0-9.]+", requirement), requirement


def reasons_of_extras(text: str) -> dict[str, str]:
    """The optional groups of pyproject.toml, each with the comment above it."""
    block = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    lines = block.splitlines()
    return {
        line.partition(" =")[0]: above.removeprefix("#").strip() if above[:1] == "#" else ""
        for above, line in zip(["", *lines], lines, strict=False)
        if re.match(r"[a-z]+ = ", line)
    }


def test_each_optional_group_has_a_reason():
    text = read("pyproject.toml")
    found = reasons_of_extras(text)
    assert set(found) == set(tomllib.loads(text)["project"]["optional-dependencies"])
    assert all(len(reason) > 20 for reason in found.values()), found
    bare = "[project.optional-dependencies]\n# a\na = []\nb = []\n\n[x]"
    assert reasons_of_extras(bare) == {"a": "a", "b": ""}


def test_each_npm_package_has_a_reason_and_a_use():
    manifest = json.loads(read("package.json"))
    names = {*manifest["dependencies"], *manifest["devDependencies"]}
    assert set(manifest["why"]) == names
    assert all(len(reason) > 10 for reason in manifest["why"].values())
    code = [path for path in tracked() if path.suffix in {".js", ".py"} and path != Path(__file__)]
    texts = [path.read_text(encoding="utf-8") for path in code]
    assert not [name for name in names if not any(name in text for text in texts)]


def test_each_system_package_has_a_reason():
    found = re.findall(r"missing\+=\(([\w-]+)\)(?: # (.+))?", read(".ci/run"))
    assert len(found) >= 5
    assert not [name for name, reason in found if len(reason) < 10]


def test_the_npm_lock_file_names_no_host_and_every_version_is_exact():
    assert '"resolved"' not in read("package-lock.json")
    manifest = json.loads(read("package.json"))
    for kind in ("dependencies", "devDependencies"):
        for name, version in manifest.get(kind, {}).items():
            assert re.fullmatch(r"[0-9.]+", version), f"{name}: {version}"


# --- notebooks ------------------------------------------------------------------------------------


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code_cells(path: Path) -> list[dict]:
    return [cell for cell in cells(path) if cell["cell_type"] == "code"]


def test_no_two_files_of_tests_have_one_name():
    """Without packages pytest imports a file by its name alone and refuses the second."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) > 40
    assert sorted(set(names)) == sorted(names)


def test_every_notebook_is_in_the_table_of_contents():
    toc = yaml.safe_load(read("_toc.yml"))
    listed = [c["file"] for part in toc["parts"] for c in part["chapters"]]
    in_book = [name for name in listed if name.startswith("notebooks/")]
    assert in_book == [f"notebooks/{path.stem}" for path in NOTEBOOKS]
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_holds_no_output(self, path):
        for cell in code_cells(path):
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            assert not {"execution", "collapsed", "scrolled"} & set(cell["metadata"])

    def test_has_short_cells_with_ids(self, path):
        for cell in cells(path):
            assert re.fullmatch(r"[\w-]+", cell["id"])
        for cell in code_cells(path):
            lines = "".join(cell["source"]).splitlines()
            assert len(lines) <= LONGEST_CELL, f"{cell['id']}: {len(lines)} lines"

    def test_runs_on_the_kernel_of_its_environment(self, path):
        metadata = json.loads(path.read_text(encoding="utf-8"))["metadata"]
        assert metadata["kernelspec"]["name"] == "python3"
        # A version here would change with each reader's save.
        assert "version" not in metadata.get("language_info", {})

    def test_installs_the_package_where_it_is_missing(self, path):
        first = code_cells(path)[0]
        assert "remove-cell" in first["metadata"]["tags"]
        assert "".join(first["source"]) == "".join(code_cells(NOTEBOOKS[0])[0]["source"])
        assert '%pip install --quiet "kllab[book]"' in "".join(first["source"])

    def test_folds_code_in_the_book_and_in_jupyterlab(self, path):
        for cell in code_cells(path):
            tags = cell["metadata"].get("tags", [])
            hidden = cell["metadata"].get("jupyter", {}).get("source_hidden", False)
            assert bool({"hide-input", "hide-cell"} & set(tags)) == hidden, cell["id"]


# --- text -----------------------------------------------------------------------------------------

ELSEWHERE = re.compile(
    r"(?<![\w.~*-])/(?:work|tmp|root|home|Users)/\w"
    r"|files\.pythonhosted\.org|registry\.npmjs\.org|pypi\.org/simple"
)


def test_no_file_names_a_path_of_one_machine_or_a_registry():
    found = []
    for path in tracked():
        if path == Path(__file__) or path.suffix in {".png", ".ico", ".pdf"}:
            continue
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(ROOT)}: {m[0]}" for m in ELSEWHERE.finditer(text)]
    assert not found


def test_one_version_everywhere():
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    assert kllab.__version__ == version
    assert yaml.safe_load(read("CITATION.cff"))["version"] == version
    headings = re.findall(r"^## (\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert next(name for name in headings if name != "Unreleased") == version
    # Browser code is never published by itself, so it has no version to forget.
    assert "version" not in json.loads(read("package.json"))


def test_both_licences_and_the_licences_of_the_data_are_named():
    assert read("LICENSE").startswith("MIT License")
    text = read("LICENSE-TEXT")
    assert "https://creativecommons.org/licenses/by/4.0/legalcode" in text
    for source in ("wordfreq", "wordsegment"):
        assert source in text
        assert source in read("README.md")
    assert "https://creativecommons.org/licenses/by-sa/4.0/" in text


def test_every_repository_address_comes_from_the_environment():
    """A fork publishes under its own address without an edit."""
    own = re.compile(r"github\.com/[\w.-]+/(estimating-kl|kllab)\b", re.IGNORECASE)
    assert not [
        path for path in tracked() if path.suffix != ".png" and own.search(path.read_text())
    ]


# --- imports --------------------------------------------------------------------------------------


def module_of(path: Path) -> str:
    """The module that a file is, or the one that the package around it is."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def is_private(name: str) -> bool:
    return name in HELPERS or (name.startswith("_") and name not in ("__init__", "__main__"))


@cache
def tier(name: str) -> float:
    """Where a module stands: 0 below all, then the tiers, then the faces."""
    if is_private(name):
        used = own_imports(read(f"src/kllab/{name}.py"))
        return max((tier(other) + (0 if is_private(other) else 0.5) for other in used), default=0)
    if name in FACES:
        return len(TIERS) + 1
    found = [number for number, names in enumerate(TIERS, start=1) if name in names]
    assert found, f"{name} has no tier: see the table in this test"
    return found[0]


def own_imports(source: str) -> set[str]:
    """Modules of the package that a module imports, also inside functions."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert "kllab" not in {alias.name for alias in node.names}, "import the module itself"
    modules = {module_of(path) for path in MODULES}
    names = [name.split(".") for name in imports(tree, inside="kllab")]
    return {parts[1] for parts in names if parts[0] == "kllab" and len(parts) > 1} & modules


PUBLIC = [p for p in MODULES if not is_private(module_of(p)) and module_of(p) != "__init__"]


@pytest.mark.parametrize("path", PUBLIC, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    module = module_of(path)
    for name in own_imports(path.read_text(encoding="utf-8")) - {module}:
        assert tier(name) < tier(module) or module in FACES, f"{module} imports {name}"


def test_a_private_module_opens_no_way_up():
    names = {module_of(path) for path in MODULES}
    heights = {name: tier(name) for name in names if is_private(name)}
    assert {heights[name] for name in HELPERS} == {0}
    assert all(0 <= height < len(TIERS) + 1 for height in heights.values()), heights


def test_the_import_rule_sees_imports_inside_functions():
    assert own_imports("def f():\n    from kllab.exact import moments\n") == {"exact"}
    assert own_imports("def f():\n    from . import pairs\n") == {"pairs"}


def test_the_front_imports_no_face():
    front = read("src/kllab/__init__.py")
    assert not own_imports(front) & FACES


# --- pages ----------------------------------------------------------------------------------------


def test_every_browser_figure_reserves_its_place():
    """Without a rule in book.css the page jumps when the figure starts."""
    css = read("book/_static/css/book.css")
    defined = re.compile(r"[\"'](kl-[a-z][a-z-]*)[\"']")
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "explorables").glob("*.js")]
    names = {name for source in sources for name in defined.findall(source)}
    assert "kl-two-gaussians" in names
    for name in names:
        assert re.search(rf"\n{name} \{{[^}}]*min-height", css), name
