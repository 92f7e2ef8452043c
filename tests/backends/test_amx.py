# SPDX-License-Identifier: Apache-2.0
"""Products with AMX that take their process are found by a trial, and done without AMX."""

from dataclasses import replace
from pathlib import Path

import pytest

from intarsia.backends import amx
from intarsia.cost.machine import find_cpu
from intarsia.process.selftest import SelfTestVerdict

CACHES = Path("caches")


@pytest.fixture
def tried(monkeypatch):
    """The trials that were asked for, on a CPU that says it has AMX; each ends by SIGILL."""
    asked = []

    def judge(test, caches):
        asked.append(test)
        return SelfTestVerdict("it aborted (SIGILL)")

    cpu = replace(find_cpu(), extensions={"AMX": True})
    monkeypatch.setattr(amx, "find_cpu", lambda: cpu)
    monkeypatch.setattr(amx, "judge", judge)
    monkeypatch.delenv(amx.VARIABLE, raising=False)
    amx.keep_off_broken_tiles.cache_clear()
    yield asked
    amx.keep_off_broken_tiles.cache_clear()


def setting():
    import os

    return os.environ.get(amx.VARIABLE)


def test_a_library_that_dies_of_tiles_is_kept_off_them(tried):
    problem = amx.keep_off_broken_tiles("oneDNN", "dnnl", ("file 1 2",), CACHES)
    assert "SIGILL" in problem
    assert setting() == amx.WITHOUT_TILES
    (line,) = amx.tile_notes("oneDNN", problem)
    assert "AMX is not used" in line


def test_a_library_that_passes_keeps_its_tiles(tried, monkeypatch):
    monkeypatch.setattr(amx, "judge", lambda test, caches: SelfTestVerdict())
    assert amx.keep_off_broken_tiles("oneDNN", "dnnl", ("file 1 2",), CACHES) == ""
    assert setting() is None
    assert not amx.tile_notes("oneDNN", "")


def test_nothing_is_tried_without_tiles_or_library_or_against_the_user(tried, monkeypatch):
    assert amx.keep_off_broken_tiles("oneDNN", "dnnl", (), CACHES) == ""
    monkeypatch.setenv(amx.VARIABLE, "AVX2")
    assert amx.keep_off_broken_tiles("oneDNN", "dnnl", ("file 1 2",), CACHES) == ""
    assert setting() == "AVX2"
    monkeypatch.delenv(amx.VARIABLE)
    monkeypatch.setattr(amx, "find_cpu", lambda: replace(find_cpu(), extensions={}))
    amx.keep_off_broken_tiles.cache_clear()
    assert amx.keep_off_broken_tiles("oneDNN", "dnnl", ("file 1 2",), CACHES) == ""
    assert not tried
