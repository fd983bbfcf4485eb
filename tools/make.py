"""Every command of this repository, on every platform: ``python tools/make.py COMMAND``.

``make COMMAND`` calls this file, and Windows calls it directly. It needs Python 3.11 or newer and
nothing else: packages go into ``.venv``, Node comes from PyPI into the same place. Each step leaves
a stamp that names what it was made from, so a second run does only what changed.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BUILD = ROOT / "_build"
SITE = BUILD / "html"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
VENDOR = ROOT / "book" / "_vendor"
LIVE_BUNDLE = ROOT / "src" / "kllab" / "static" / "explorables.js"
MATHJAX_PARTS = ("tex-chtml.js", "output/chtml", "input/tex/extensions")
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
OLDEST, NEWEST = (3, 11), (3, 13)


class Failed(SystemExit):
    """A step failed; the message says which."""


# --- small helpers --------------------------------------------------------------------------------


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Run a command in the repository root; stop everything when it fails."""
    words = [str(word) for word in command]
    # On Windows npm is npm.cmd or npm.exe, and only a full path finds it.
    words[0] = shutil.which(words[0], path=tool_path()) or words[0]
    result = subprocess.run(words, cwd=ROOT, env=env or environment(), check=False)
    if result.returncode:
        print(f"\nfailed ({result.returncode}): {' '.join(words)}", file=sys.stderr)
        raise Failed(result.returncode if result.returncode > 0 else 1)


def tool_path() -> str:
    """PATH with the environment's own programs first."""
    return os.pathsep.join([str(BIN), os.environ.get("PATH", "")])


def environment(**extra: str) -> dict[str, str]:
    """The environment for tools of ``.venv``, free of another active environment."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH")}
    return env | {"PATH": tool_path(), "VIRTUAL_ENV": str(VENV)} | extra


def digest(*parts: Path | str) -> str:
    """One SHA-256 over texts, files, and all files below folders."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            total.update(part.encode())
            continue
        for path in sorted(part.rglob("*")) if part.is_dir() else [part]:
            if path.is_file():
                total.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
                total.update(path.read_bytes())
    return total.hexdigest()


def step(name: str, key: str, makes: tuple[Path, ...] = ()):
    """Decorate a step: it runs only when its key changed or something that it makes is missing."""
    stamp = VENV / ".stamps" / name

    def decorate(function):
        @functools.wraps(function)
        def wrapper():
            done = stamp.is_file() and stamp.read_text(encoding="utf-8") == key
            if not (done and all(path.exists() for path in makes)):
                function()
                stamp.parent.mkdir(parents=True, exist_ok=True)
                stamp.write_text(key, encoding="utf-8")

        return wrapper

    return decorate


def python() -> Path:
    return BIN / ("python.exe" if os.name == "nt" else "python")


# --- set-up ---------------------------------------------------------------------------------------


def find_interpreter() -> str:
    """This interpreter where it is new enough, else a newer one on PATH."""
    if sys.version_info[:2] >= OLDEST:
        return sys.executable
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            return found
    raise Failed(f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed, this is {sys.version}")


def set_up(torch: str = "") -> None:
    """Python packages, then what the pages need in a browser."""
    if not python().is_file():
        print("setting up .venv (once; PyTorch is the large part)", flush=True)
        run(find_interpreter(), "-m", "venv", VENV)
    set_up_packages(torch)
    set_up_browser_code()


def set_up_packages(torch: str) -> None:
    requirements, project = ROOT / "requirements.txt", ROOT / "pyproject.toml"
    marker = VENV / "pyvenv.cfg"

    @step("packages", digest(requirements, marker, torch))
    def packages():
        index = ("--extra-index-url", TORCH_CPU_INDEX) if torch == "cpu" else ()
        pip = (python(), "-m", "pip", "install", "--disable-pip-version-check", "--quiet")
        run(*pip, *index, "-r", requirements)

    @step("kllab", digest(project, marker))
    def kllab():
        # The lock file holds setuptools, so nothing is resolved anew to build the package.
        pip = (python(), "-m", "pip", "install", "--disable-pip-version-check", "--quiet")
        run(*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT)

    packages()
    kllab()


def set_up_browser_code() -> None:
    lock, manifest = ROOT / "package-lock.json", ROOT / "package.json"
    modules = ROOT / "node_modules"
    source = modules / "mathjax" / "es5"

    @step("npm", digest(lock, manifest), (modules,))
    def npm():
        run("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error")

    @step("mathjax", digest(lock), (VENDOR / "mathjax" / MATHJAX_PARTS[0],))
    def mathjax():
        shutil.rmtree(VENDOR / "mathjax", ignore_errors=True)
        for part in MATHJAX_PARTS:
            target = VENDOR / "mathjax" / part
            target.parent.mkdir(parents=True, exist_ok=True)
            if (source / part).is_dir():
                shutil.copytree(source / part, target)
            else:
                shutil.copyfile(source / part, target)

    @step(
        "bundle",
        digest(ROOT / "explorables", lock, manifest),
        (VENDOR / "js" / "explorables.js", LIVE_BUNDLE),
    )
    def bundle():
        run("npm", "run", "--silent", "build")

    npm()
    mathjax()
    bundle()


def set_up_lighthouse() -> None:
    """Lighthouse has a lock file of its own, so that readers do not download it."""
    folder = ROOT / "tools" / "sitechecks"
    modules, lock = folder / "node_modules", folder / "package-lock.json"

    @step("lighthouse", digest(lock), (modules,))
    def lighthouse():
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        run("npm", "ci", "--prefix", folder, *quiet)

    lighthouse()


# --- commands -------------------------------------------------------------------------------------


def build(*builder: str) -> None:
    """The strict build: a warning, a dead reference or a failing cell ends it."""
    chosen = builder or ("html",)
    run("jupyter-book", "build", ROOT, "--builder", *chosen, "-W", "-n", "--keep-going")


def book(options) -> None:
    set_up(options.torch)
    build()
    print(f"\nThe book: {(SITE / 'index.html').as_uri()}\nOr serve it: make serve")


def serve(options) -> None:
    book(options)
    run(python(), ROOT / "tools" / "serve.py", SITE, str(options.port))


def lab_command(*more: str) -> list[str | Path]:
    """JupyterLab on the start page; open tabs are kept with this folder, not with others."""
    settings = (
        "--LabApp.extension_manager=readonly",  # the other one lists what a registry offers
        f"--LabApp.workspaces_dir={BUILD / 'lab'}",
    )
    program = (python(), "-m", "jupyterlab", "--notebook-dir", ROOT)
    return [*program, *settings, *more, ROOT / "start.ipynb"]


def lab_environment(**extra: str) -> dict[str, str]:
    """tools/jupyter turns off news and the look for updates, which would ask other hosts.

    It holds for this command alone: a reader's own JupyterLab stays as it is.
    """
    own = [str(ROOT / "tools" / "jupyter"), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    return environment(JUPYTER_CONFIG_PATH=os.pathsep.join(filter(None, own))) | extra


def lab(options) -> None:
    set_up(options.torch)
    run(*lab_command(*options.rest), env=lab_environment())


def test(options) -> None:
    """Build the book, then test the browser code, the package, the notebooks and the pages."""
    set_up(options.torch)
    build()
    run("npm", "test", "--silent")
    # A later option, as in ARGS="-m slow -n 0", counts instead of these.  A worker a core, with one
    # thread each; more than four would want more memory than a laptop has.
    usual = ("-m", "not slow", "-n", "auto", "--maxprocesses", "4", "--dist", "worksteal")
    one = environment(KLLAB_SCALE="test", OMP_NUM_THREADS="1")
    run(python(), "-m", "pytest", *usual, *options.rest, env=one)


def checks(options) -> None:
    """What is too slow for every change: `make checks ARGS="weight lighthouse"`, or all of them."""
    from sitechecks import CHECKS, SITELESS

    set_up(options.torch)
    chosen = [word for word in options.rest if word in CHECKS] or CHECKS
    if not SITELESS.issuperset(chosen):
        build()
    if "pdf" in chosen:
        build("singlehtml")
    if "lighthouse" in chosen:
        set_up_lighthouse()
    env = environment(PYTHONPATH=str(ROOT / "tools"))
    run(python(), "-m", "sitechecks", *options.rest, env=env)


def bench(options) -> None:
    """The table of speeds, as ratios measured in one run."""
    set_up(options.torch)
    run(python(), ROOT / "benchmarks" / "bench.py", *options.rest)


def pdf(options) -> None:
    set_up(options.torch)
    build("singlehtml")
    target = BUILD / "estimating-kl.pdf"
    run(python(), ROOT / "tools" / "pdf.py", BUILD / "singlehtml", target)
    print(f"\nThe PDF: {target.as_uri()}")


def epub(options) -> None:
    set_up(options.torch)
    build("custom", "--custom-builder", "epub")
    print(f"\nThe EPUB: {(BUILD / 'epub' / 'estimating-kl.epub').as_uri()}")


def lock(options) -> None:
    set_up(options.torch)
    run(python(), ROOT / "tools" / "lock.py", *options.rest)


def clean(options) -> None:
    """Remove what builds leave; ``.venv`` and ``node_modules`` stay."""
    for path in (BUILD, VENDOR, LIVE_BUNDLE.parent):
        shutil.rmtree(path, ignore_errors=True)


def site_dependencies(options) -> None:
    """Set up without building, for Binder and for a look at one page."""
    set_up(options.torch)


COMMANDS = {
    "book": book,
    "serve": serve,
    "lab": lab,
    "test": test,
    "checks": checks,
    "bench": bench,
    "pdf": pdf,
    "epub": epub,
    "lock": lock,
    "clean": clean,
    "setup": site_dependencies,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--torch", choices=("", "cpu"), default=os.environ.get("TORCH", ""))
    parser.add_argument("--port", type=int, default=int(os.environ.get("PORT") or 8000))
    options, options.rest = parser.parse_known_args()
    COMMANDS[options.command](options)


if __name__ == "__main__":
    main()
