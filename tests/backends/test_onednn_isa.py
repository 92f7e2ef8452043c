# SPDX-License-Identifier: Apache-2.0
"""Products with AMX that take their process are found by a trial, and done without AMX."""

from dataclasses import replace
from pathlib import Path

import pytest

from intarsia.backends import onednn_isa
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
    monkeypatch.setattr(onednn_isa, "find_cpu", lambda: cpu)
    monkeypatch.setattr(onednn_isa, "judge", judge)
    # So that it is put back: what was not there would not be.
    monkeypatch.setenv(onednn_isa.VARIABLE, "")
    monkeypatch.delenv(onednn_isa.VARIABLE)
    onednn_isa.keep_off_broken_tiles.cache_clear()
    yield asked
    onednn_isa.keep_off_broken_tiles.cache_clear()


def setting():
    import os

    return os.environ.get(onednn_isa.VARIABLE)


def test_a_library_that_dies_of_tiles_is_kept_off_them(tried):
    problem = onednn_isa.keep_off_broken_tiles("oneDNN", "dnnl", ("file 1 2",), CACHES)
    assert "SIGILL" in problem
    assert setting() == onednn_isa.WITHOUT_TILES
    (line,) = onednn_isa.tile_notes("oneDNN", problem)
    assert "AMX is not used" in line


def test_a_library_that_passes_keeps_its_tiles(tried, monkeypatch):
    monkeypatch.setattr(onednn_isa, "judge", lambda test, caches: SelfTestVerdict())
    assert onednn_isa.keep_off_broken_tiles("oneDNN", "dnnl", ("file 1 2",), CACHES) == ""
    assert setting() is None
    assert not onednn_isa.tile_notes("oneDNN", "")


def test_nothing_is_tried_without_tiles_or_library_or_against_the_user(tried, monkeypatch):
    assert onednn_isa.keep_off_broken_tiles("oneDNN", "dnnl", (), CACHES) == ""
    monkeypatch.setenv(onednn_isa.VARIABLE, "AVX2")
    assert onednn_isa.keep_off_broken_tiles("oneDNN", "dnnl", ("file 1 2",), CACHES) == ""
    assert setting() == "AVX2"
    monkeypatch.delenv(onednn_isa.VARIABLE)
    monkeypatch.setattr(onednn_isa, "find_cpu", lambda: replace(find_cpu(), extensions={}))
    onednn_isa.keep_off_broken_tiles.cache_clear()
    assert onednn_isa.keep_off_broken_tiles("oneDNN", "dnnl", ("file 1 2",), CACHES) == ""
    assert not tried


@pytest.mark.parametrize(
    ("architecture", "extensions", "limit", "is_exact"),
    [
        ("x86_64", {"AVX-VNNI": True}, "", True),
        ("x86_64", {"AVX-VNNI": False, "AVX-512 VNNI": True}, "avx512_core_vnni", True),
        ("x86_64", {"AVX-512 VNNI": True}, "avx512_core", False),
        ("x86_64", {"AVX-512 VNNI": True}, "AVX2", False),
        ("x86_64", {"AVX-512 VNNI": True}, "AVX2_VNNI", False),
        ("x86_64", {"AVX-VNNI": True}, "AVX2_VNNI_2", True),
        ("x86_64", {"AVX2": True, "AVX-512 VNNI": False}, "", False),
        ("x86_64", {}, "", False),
        ("aarch64", {}, "", True),
    ],
)
def test_sums_of_bytes_are_exact_where_there_is_vnni(
    monkeypatch, architecture, extensions, limit, is_exact
):
    cpu = replace(find_cpu(), architecture=architecture, extensions=extensions)
    monkeypatch.setattr(onednn_isa, "find_cpu", lambda: cpu)
    monkeypatch.delenv(onednn_isa.VARIABLE, raising=False)
    for variable in (onednn_isa.VARIABLE, "DNNL_MAX_CPU_ISA"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, limit)
            assert onednn_isa.sums_bytes_exactly() is is_exact
