"""The examples in the package's docstrings run and give what they show."""

import doctest
import importlib
import pkgutil

import pytest

import kllab

NAMES = ["kllab", *(m.name for m in pkgutil.walk_packages(kllab.__path__, "kllab."))]
# Figures are drawn and checks raise: neither has a value that an example could show.  A browser
# figure's example is in its own private module.
WITHOUT = {"kllab", "kllab.checks", "kllab.figures", "kllab.explorables"}
WITH = [name for name in NAMES if "._" not in name and name not in WITHOUT]


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0


@pytest.mark.parametrize("name", WITH)
def test_each_public_module_has_examples(name):
    module = importlib.import_module(name)
    tests = doctest.DocTestFinder(exclude_empty=True).find(module)
    assert sum(len(test.examples) for test in tests) > 0
