# SPDX-License-Identifier: Apache-2.0
"""Digests of sources: they change with any of them, and with nothing else."""

import sys

import pytest

from intarsia.codegen.sources import source_digest


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `generator_of_test` in files."""
    folder = tmp_path / "generator_of_test" / "kernels"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder.parent / "lower.py").write_text("TILE = 4\n")
    (folder / "__init__.py").write_text("")
    (folder / "conv.py").write_text("STRIDE = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder.parent
    for name in [name for name in sys.modules if name.startswith("generator_of_test")]:
        del sys.modules[name]


def _digest(*names):
    source_digest.cache_clear()
    return source_digest(names)


def test_a_changed_source_is_another_digest(package):
    every = ("generator_of_test.lower", "generator_of_test.kernels")
    first = _digest(*every)
    assert _digest(*every) == first
    (package / "kernels" / "conv.py").write_text("STRIDE = 4\n")
    second = _digest(*every)
    (package / "lower.py").write_text("TILE = 8\n")
    third = _digest(*every)
    (package / "kernels" / "gemm.py").write_text("")
    assert len({first, second, third, _digest(*every)}) == 4


def test_what_no_region_runs_on_does_not_count(package):
    before = _digest("generator_of_test.kernels")
    (package / "lower.py").write_text("TILE = 8\n")
    (package / "kernels" / "notes.txt").write_text("faster now")
    assert _digest("generator_of_test.kernels") == before
