# SPDX-License-Identifier: Apache-2.0
"""The fingerprint: equal for what measures alike, different for what does not."""

import dataclasses

import pytest

from intarsia.cost import fingerprint
from intarsia.cost.fingerprint import Fingerprint, find_fingerprint, host_id, this_machine

_SOME = Fingerprint("CPU X", "x86_64", ("AVX2", "FMA"), 4, 2, ("L1d 48K",), "Linux")


def test_it_is_the_same_each_time():
    assert find_fingerprint() == this_machine()
    assert this_machine().digest in str(this_machine())
    assert len(this_machine().digest) == 16
    assert len(host_id()) == 12


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "CPU Y"},
        {"architecture": "aarch64"},
        {"extensions": ("AVX2",)},
        {"cpus": 8},
        {"threads_per_core": 1},
        {"caches": ("L1d 32K",)},
        {"system": "Darwin"},
    ],
)
def test_every_fact_counts(change):
    assert dataclasses.replace(_SOME, **change).digest != _SOME.digest


def test_the_text_says_it_all():
    assert _SOME.text == "CPU X, x86_64, 4 CPUs (2 per core), L1d 48K, AVX2 FMA, Linux"


def test_a_grant_of_less_than_the_cpus_counts(monkeypatch):
    monkeypatch.setattr(fingerprint, "quota_cpus", lambda: 0.5)
    assert find_fingerprint().cpus == 0.5


def test_caches_and_siblings_are_read(tmp_path):
    for number, (level, kind, size) in enumerate(
        [("1", "Data", "32K"), ("1", "Instruction", "32K"), ("2", "Unified", "1024K")]
    ):
        folder = tmp_path / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology" / "thread_siblings_list").write_text("0-1,8\n")
    found = find_fingerprint(tmp_path)
    assert found.caches == ("L1d 32K", "L2 1024K")
    assert found.threads_per_core == 3


def test_a_system_that_tells_nothing_still_has_one(tmp_path):
    found = find_fingerprint(tmp_path)
    assert (found.caches, found.threads_per_core) == ((), 0)
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology" / "thread_siblings_list").write_text("all of them")
    assert find_fingerprint(tmp_path).threads_per_core == 0
