# SPDX-License-Identifier: Apache-2.0
"""Benchmarks are not run by tests, but what they import must be there."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_benchmark_can_be_imported(script, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))  # they import each other
    for other in SCRIPTS:
        monkeypatch.delitem(sys.modules, other.stem, raising=False)
    name = f"{script.stem}_benchmark"
    spec = importlib.util.spec_from_file_location(name, script)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    before = set(sys.modules)
    spec.loader.exec_module(module)
    for other in SCRIPTS:
        if other.stem not in before:
            sys.modules.pop(other.stem, None)
    if "__main__" in script.read_text():
        assert callable(module.main)
