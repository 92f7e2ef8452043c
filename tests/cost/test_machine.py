# SPDX-License-Identifier: Apache-2.0
"""The machine is described as it is."""

import math
import platform

from intarsia.cost.machine import find_cpu
from intarsia.cpus import quota_cpus


def test_the_extensions_are_those_of_the_first_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    text = "model name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 amx_tile\n\nflags : x\n"
    (tmp_path / "cpuinfo").write_text(text)
    cpu = find_cpu(tmp_path / "cpuinfo")
    assert cpu.model == "Some CPU @ 2 GHz"
    assert [name for name, there in cpu.extensions.items() if there] == ["AVX2", "AMX"]
    assert cpu.extensions["AVX-512"] is False


def test_without_cpuinfo_the_extensions_are_unknown(tmp_path):
    cpu = find_cpu(tmp_path / "none")
    assert cpu.model
    assert cpu.extensions == {}


def test_the_quota_is_the_tightest_of_a_group_and_those_above_it(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "own").write_text("0::/a/b\n")
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert quota_cpus(tmp_path, tmp_path / "own") == 1.5


def test_a_quota_of_the_first_version_counts_too(tmp_path):
    (tmp_path / "cpu,cpuacct" / "job").mkdir(parents=True)
    (tmp_path / "own").write_text("4:memory:/job\n3:cpu,cpuacct:/job\n")
    (tmp_path / "cpu,cpuacct" / "job" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu,cpuacct" / "job" / "cpu.cfs_period_us").write_text("100000\n")
    assert quota_cpus(tmp_path, tmp_path / "own") == 0.5


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert quota_cpus(tmp_path, tmp_path / "none") == math.inf
