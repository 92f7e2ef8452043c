# SPDX-License-Identifier: Apache-2.0
"""Descriptions of cores: complete, of CPUs that LLVM knows, and found from a target."""

from __future__ import annotations

from intarsia.target import Target
from intarsia.target.cores import _cores, core_named, core_of
from intarsia.target.cpu_tables import FAMILIES, load_table

KINDS = ("fma", "mul", "add", "alu", "shuffle", "divide", "load", "store", "scalar")
OURS = {"generic-x86", "generic-rv64", "generic-rv64v"}


def test_each_core_says_where_its_figures_are_from_and_has_pipes_for_every_operation() -> None:
    cores, _ = _cores()
    for core in cores.values():
        assert core.source
        assert set(core.ports) - {"tile", "mmla", "bfmmla"} == set(KINDS), core.name
        assert core.hz > 0
        sizes = [level.nbytes for level in core.caches]
        assert sizes == sorted(sizes), core.name
        assert all(level.bytes_per_cycle for level in core.caches[:-1]), core.name


def test_cores_of_cpus_with_tiles_say_how_long_products_of_tiles_take() -> None:
    cores, names = _cores()
    table = load_table("x86")
    for cpu, name in names.items():
        if cpu in table.cpus and "amx-tile" in table.features(cpu):
            core = cores[name]
            assert core.ports["tile"] not in "".join(
                v for k, v in core.ports.items() if k != "tile"
            )
            assert core.slots["tile"] == 16
            assert core.latency["tile"] > core.latency["tile_load"] > core.latency["load"]


def test_arms_large_cores_say_how_long_products_of_blocks_take() -> None:
    """On as many pipes as multiply-adds; those of bfloat16 take longer (Neoverse V1: 3 and 5)."""
    _, names = _cores()
    for cpu in ("neoverse-v1", "neoverse-n2", "cortex-a710", "cortex-x2"):
        assert {"i8mm", "bf16"} <= load_table("aarch64").features(cpu)
        core = core_named(cpu)
        assert core is not None
        assert core.ports["mmla"] == core.ports["bfmmla"] == core.ports["fma"]
        assert core.latency["mmla"] < core.latency["fma"] < core.latency["bfmmla"]
    has_neither = [cpu for cpu in names if "mmla" not in core_named(cpu).ports]  # type: ignore[union-attr]
    assert {"cortex-a53", "cortex-a72", "znver4"} <= set(has_neither)


def test_most_cpus_of_cores_are_llvms() -> None:
    known = set().union(*(load_table(family).cpus for family in FAMILIES))
    _, names = _cores()
    assert len(known & set(names)) > 0.8 * len(names)


def test_sizes_of_caches_that_a_target_tells_come_first() -> None:
    core, is_named = core_of(Target("llvm -mcpu=znver3 -l2-cache=262144"))  # type: ignore[misc]
    assert is_named
    assert [level.nbytes for level in core.caches] == [32 << 10, 256 << 10, 4 << 20]


def test_a_cpu_that_is_not_named_is_a_typical_one() -> None:
    core, is_named = core_of(Target("llvm -mtriple=aarch64-linux-gnu"))  # type: ignore[misc]
    assert core.name == "cortex-a72"
    assert not is_named
    assert core_named("no-such-cpu") is None
