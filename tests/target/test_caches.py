# SPDX-License-Identifier: Apache-2.0
"""What targets say of the caches that kernels are shaped for."""

from dataclasses import replace

import pytest

from intarsia.native.native_target import lowering_options, target_cpu
from intarsia.target import Target, caches, cpu
from intarsia.target.caches import Cache, core_l2_bytes, read_caches
from intarsia.target.cpu_tables import FAMILIES, load_table

ARM = cpu.LlvmCpu("neoverse-n1", (), frozenset(), "aarch64-unknown-linux-gnu")


@pytest.fixture
def cpu0(tmp_path):
    """A folder as Linux has it of a CPU with two threads, and a second cache of two cores."""

    def write(name, **facts):
        folder = tmp_path / "cache" / name
        folder.mkdir(parents=True)
        for fact, value in facts.items():
            (folder / fact).write_text(f"{value}\n")

    write("index0", type="Data", level=1, size="64K", shared_cpu_list="0-1")
    write("index1", type="Instruction", level=1, size="64K", shared_cpu_list="0-1")
    write("index2", type="Unified", level=2, size="1M", shared_cpu_list="0-3")
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology" / "thread_siblings_list").write_text("0-1\n")
    return tmp_path


@pytest.fixture
def arm(monkeypatch, cpu0):
    """This machine is one whose name does not tell its caches."""
    monkeypatch.setattr(cpu, "host_cpu", lambda: ARM)
    monkeypatch.setattr(caches, "_CPU0", str(cpu0))


def test_caches_of_this_machine_are_those_of_its_first_cpu(cpu0):
    assert read_caches(cpu0) == (Cache("L1d", "64K", 2), Cache("L2", "1M", 4))
    assert core_l2_bytes(cpu0) == 512 << 10


def test_a_system_that_says_nothing_has_no_caches(tmp_path):
    assert read_caches(tmp_path) == ()
    assert core_l2_bytes(tmp_path) == 0


@pytest.mark.parametrize(("size", "nbytes"), [("48K", 48 << 10), ("512", 512), ("much", 0)])
def test_sizes_are_read_as_linux_writes_them(size, nbytes):
    assert Cache("L2", size, 1).nbytes == nbytes


def test_every_cpu_with_caches_is_one_of_llvm():
    known = set().union(*(load_table(family).cpus for family in FAMILIES))
    assert known >= set(caches._TABLE)


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("llvm -mcpu=znver3", 32, 512),
        ("llvm -mcpu=znver4", 32, 1024),
        ("llvm -mcpu=cascadelake", 32, 1024),
        ("llvm -mcpu=sapphirerapids", 48, 2048),
        ("llvm -mcpu=haswell", 32, 256),
        ("llvm -mcpu=neoverse-n1", 64, 1024),  # of a product: their makers choose
        ("llvm -mcpu=cortex-a53", 32, 128),
        ("llvm -mcpu=cortex-a710", 32, 512),  # what most have
        ("c -mcpu=cortex-m7", 16, 16),
        ("llvm -mcpu=neoverse-n1 -l2-cache=524288", 64, 512),
        ("llvm -mcpu=znver3 -l2-cache=1048576", 32, 1024),
        ("c -mcpu=znver4", 32, 1024),
        ("c", 32, 512),
    ],
)
def test_kernels_are_shaped_for_the_caches_of_the_target(text, first, second):
    unit = lowering_options(Target(text)).unit
    assert (unit.l1_bytes, unit.l2_bytes) == (first << 10, second << 10)


def test_a_plain_target_may_say_its_second_cache():
    assert target_cpu(Target("llvm -l2-cache=65536"))[1].l2_bytes == 64 << 10


@pytest.mark.usefixtures("arm")
def test_native_says_the_caches_that_the_name_of_the_cpu_does_not():
    said = Target("llvm -mcpu=neoverse-n1 -l2-cache=524288")
    assert _made(mcpu="native") == _made(from_device=0) == said
    assert Target(str(said)) == said
    assert _made(mcpu="native", **{"l2-cache": 4096}).attrs["l2-cache"] == 4096
    assert Target({"kind": "c", "mcpu": "native"}) == Target("c -mcpu=neoverse-n1")


@pytest.mark.usefixtures("arm")
def test_native_says_no_caches_that_the_name_of_the_cpu_tells(monkeypatch):
    monkeypatch.setattr(cpu, "host_cpu", lambda: replace(ARM, name="ampere1"))
    assert "l2-cache" not in _made(mcpu="native").attrs


def _made(**attrs):
    """Return a target of attributes: what texts mean on this machine is remembered."""
    return Target({"kind": "llvm", **attrs})
