# SPDX-License-Identifier: Apache-2.0
"""CPUs: the bundled tables against vendors' data sheets, LLVM and this machine."""

import importlib.util
import platform
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.errors import TargetError
from intarsia.native.machine import compile_assembly
from intarsia.native.native_target import lowering_options, target_cpu, target_features
from intarsia.target import CompilationConfig, Target
from intarsia.target import cpu as cpu_module
from intarsia.target.cpu import has_llvm, host_cpu, host_triple, vector_bits, vector_registers
from intarsia.target.cpu_tables import FAMILIES, find_family, load_table, read_flags

ROOT = Path(__file__).parents[2]
NEEDS_LLVM = pytest.mark.skipif(not has_llvm(), reason="llvmlite is not installed")


@pytest.mark.parametrize(
    ("text", "bits", "registers"),
    [
        ("llvm", 0, 0),
        ("llvm -mcpu=cake", 0, 0),
        ("llvm -mtriple=powerpc64le-linux-gnu", 0, 0),
        ("llvm -mtriple=x86_64-linux-gnu", 128, 16),
        ("llvm -mtriple=i686-linux-gnu -mcpu=pentium4", 128, 8),
        ("llvm -mcpu=core2", 128, 16),
        ("llvm -mcpu=sandybridge", 256, 16),
        ("llvm -mcpu=haswell", 256, 16),
        ("llvm -mcpu=haswell -mattr=+avx512f", 512, 32),
        ("llvm -mcpu=skylake-avx512", 512, 32),
        ("llvm -mcpu=skylake-avx512 -mattr=-avx512f", 256, 16),
        ("llvm -mcpu=znver4 -mattr=-avx", 128, 16),
        ("llvm -mcpu=alderlake", 256, 16),
        ("llvm -mcpu=cortex-a72", 128, 32),
        ("llvm -mtriple=aarch64-linux-gnu -mattr=-neon", 0, 0),
        ("llvm -mtriple=armv7a-linux-gnueabihf -mattr=+neon", 128, 16),
        ("llvm -mtriple=armv7a-linux-gnueabihf -mcpu=cortex-a7", 128, 16),
        ("c -mcpu=cortex-m55", 128, 8),
        ("c -mcpu=cortex-m4", 0, 0),
        ("llvm -mtriple=riscv64-linux-gnu", 0, 0),
        ("llvm -mtriple=riscv64-linux-gnu -mattr=+v", 128, 32),
        ("llvm -mtriple=riscv64-linux-gnu -mattr=+v,+zvl256b", 256, 32),
        ("llvm -mtriple=riscv64-linux-gnu -mcpu=sifive-u74", 0, 0),
        ("llvm -mtriple=riscv64-linux-gnu -mcpu=sifive-x280", 512, 32),
        ("llvm -mcpu=spacemit-x60", 256, 32),
        ("c -march=rv64gcv_zvl512b", 512, 32),
        ("c -march=rv32imc", 0, 0),
        ("c -march=skylake-avx512", 512, 32),
        ("hexagon -mcpu=v68 -mattr=+hvxv68,+hvx-length128b", 1024, 32),
    ],
)
def test_the_width_of_vectors_is_known(text, bits, registers):
    target = Target(text)
    assert (vector_bits(target), vector_registers(target)) == (bits, registers)


@pytest.mark.parametrize(
    ("cpu", "has", "lacks"),
    [
        ("nehalem", "sse4.2 popcnt", "avx aes"),
        ("haswell", "avx2 fma f16c bmi2", "avx512f adx"),
        ("broadwell", "avx2 adx", "avx512f"),
        ("knl", "avx512f avx512cd", "avx512bw avx512vl avx512vnni"),
        ("skylake-avx512", "avx512f avx512bw avx512dq avx512vl avx512cd", "avx512vnni avx512bf16"),
        ("cascadelake", "avx512vnni", "avx512bf16"),
        ("cooperlake", "avx512bf16 avx512vnni", "avx512vbmi"),
        ("icelake-server", "avx512vbmi2 avx512ifma gfni vaes", "avx512bf16 amx-tile"),
        ("sapphirerapids", "amx-tile amx-int8 amx-bf16 avx512fp16 avxvnni", "amx-fp16"),
        ("graniterapids", "amx-fp16", "avx10.2"),
        ("alderlake", "avxvnni avx2", "avx512f"),
        ("znver1", "avx2 sse4a", "vaes avx512f"),
        ("znver3", "avx2 vaes vpclmulqdq", "avx512f"),
        ("znver4", "avx512bf16 avx512vnni avx512vl", "avx512fp16 avxvnni avx512vp2intersect"),
        ("znver5", "avxvnni avx512vp2intersect", "avx512fp16"),
        ("bdver1", "avx fma4 xop", "avx2 fma"),
        ("x86-64-v2", "sse4.2", "avx"),
        ("x86-64-v3", "avx2 fma", "avx512f"),
        ("x86-64-v4", "avx512vl", "avx512vnni"),
    ],
)
def test_x86_cpus_have_what_their_vendors_say(cpu, has, lacks):
    features = load_table("x86").features(cpu)
    assert set(has.split()) <= features
    assert not set(lacks.split()) & features
    assert Target(f"llvm -mcpu={cpu}").features.cpu_known is True


@pytest.mark.parametrize(
    ("cpu", "dotprod", "i8mm", "fp16", "sve"),
    [
        ("cortex-a53", False, False, False, False),
        ("cortex-a72", False, False, False, False),
        ("cortex-a55", True, False, True, False),
        ("cortex-a76", True, False, True, False),
        ("neoverse-n1", True, False, True, False),
        ("neoverse-v1", True, True, True, True),
        ("neoverse-n2", True, True, True, True),
        ("a64fx", False, False, True, True),
        ("apple-m1", True, False, True, False),
        ("apple-m2", True, True, True, False),
    ],
)
def test_arm_cpus_have_what_their_vendors_say(cpu, dotprod, i8mm, fp16, sve):
    target = Target(f"llvm -mcpu={cpu} -mtriple=aarch64-linux-gnu")
    found = target.features
    assert (found.has_dotprod, found.has_matmul_i8) == (dotprod, i8mm)
    assert (found.has_fp16_simd, found.has_sve) == (fp16, sve)
    assert Target(f"llvm -mcpu={cpu}").features == found


def test_removing_a_feature_removes_what_needs_it_and_adding_brings_what_it_needs():
    isa = Target("llvm -mcpu=sapphirerapids -mattr=-avx512f").features.isa
    assert not [name for name in isa if name.startswith("avx512")]
    assert {"avx2", "amx-tile"} <= set(isa)
    added = Target("llvm -mcpu=haswell -mattr=+avx512vnni").features
    assert added.has_avx512
    assert added.has_avx512_vnni
    assert not added.has_avx512_bf16
    last = Target("llvm -mcpu=haswell -mattr=+avx512f,-avx512f")
    assert last.attrs["mattr"] == ("-avx512f",)
    assert not last.features.has_avx512


def test_a_float_abi_is_one_of_two():
    with pytest.raises(TargetError, match="mfloat-abi"):
        Target("llvm -mfloat-abi=softish")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_table_is_consistent(family):
    table = load_table(family)
    assert table.llvm
    assert "generic" in table.cpus
    assert len(table.cpus) > 40
    for implied in table.implies.values():
        assert implied <= set(table.implies)
    for name, features in table.cpus.items():
        assert features <= set(table.implies)
        for feature in features:
            missing = table.implies[feature] - features
            assert not missing, (name, feature, missing)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_cpu_of_the_tables_makes_a_target(family):
    for cpu in load_table(family).cpus:
        if cpu == "generic":
            continue
        target = Target({"kind": "llvm", "mcpu": cpu})
        assert target.features.cpu_known is True
        assert Target(str(target)) == target
        assert (target.keys == ("arm_cpu", "cpu")) == (family in ("arm", "aarch64"))
        assert set(target.attrs) == {"mcpu"}


@pytest.mark.parametrize("family", ["x86", "riscv"])
@given(data=st.data())
def test_features_are_always_complete(family, data):
    table = load_table(family)
    flags = st.tuples(st.sampled_from("+-"), st.sampled_from(sorted(table.implies))).map("".join)
    cpu = data.draw(st.sampled_from(sorted(table.cpus)))
    chosen = data.draw(st.lists(flags, max_size=5))
    found = table.features(cpu, chosen)
    assert all(table.implies[name] <= found for name in found)
    if chosen:
        assert (chosen[-1][1:] in found) == (chosen[-1][0] == "+")


@NEEDS_LLVM
@pytest.mark.parametrize(
    ("family", "cpu"),
    [("x86", "haswell"), ("x86", "znver4"), ("aarch64", "neoverse-v1"), ("arm", "cortex-m55"),
     ("riscv", "sifive-x280")],
)  # fmt: skip
def test_the_tables_are_those_of_llvm(family, cpu, monkeypatch):
    import llvmlite.binding as llvm

    script = ROOT / "scripts" / "make_cpu_tables.py"
    spec = importlib.util.spec_from_file_location("make_cpu_tables", script)
    maker = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, maker)
    spec.loader.exec_module(maker)
    table = load_table(family)
    if ".".join(map(str, llvm.llvm_version_info)) != table.llvm:
        pytest.skip("the tables are those of another LLVM")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = next(item.triples[0] for item in maker.FAMILIES if item.name == family)
    names = set(table.implies) - maker.APX
    assert maker.find_features(triple, cpu, names) == table.cpus[cpu]


@pytest.mark.parametrize(
    ("triple", "cpu", "family"),
    [
        ("x86_64-pc-windows-msvc", None, "x86"),
        ("i686-linux-gnu", None, "x86"),
        ("arm64-apple-macosx", None, "aarch64"),
        ("aarch64_be-linux-gnu", None, "aarch64"),
        ("thumbv7em-none-eabi", None, "arm"),
        ("riscv32-unknown-elf", None, "riscv"),
        ("wasm32-unknown-unknown", "haswell", None),
        (None, "haswell", "x86"),
        (None, "cortex-a53", "aarch64"),
        (None, "cortex-a9", "arm"),
        (None, "generic", None),
        (None, None, None),
        ("aarch64-linux-gnu", "cortex-m0plus", "arm"),
    ],
)
def test_the_architecture_follows_from_triple_or_cpu(triple, cpu, family):
    assert find_family(triple, cpu) == family


def test_flags_are_read_in_all_spellings():
    assert read_flags("cortex-m55+nomve+x", ("+nodsp+y", "-z", "+fp-armv8", "w")) == (
        "-mve", "+x", "-dsp", "+y", "-z", "+fp-armv8", "+w",
    )  # fmt: skip


@NEEDS_LLVM
@pytest.mark.parametrize(
    ("text", "register"),
    [
        ("llvm -mcpu=core2", "xmm"),
        ("llvm -mcpu=haswell", "ymm"),
        ("llvm -mcpu=skylake-avx512", "zmm"),
        ("llvm -mcpu=haswell -mattr=+avx512f", "zmm"),
        ("llvm -mcpu=znver4 -mattr=-avx512f", "ymm"),
    ],
)
def test_llvm_makes_vectors_of_that_width_from_the_features(text, register):
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = Target(text)
    flags = ",".join(f"+{name}" for name in target.features.isa)
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu="x86-64", features=flags
    )
    assembly = machine.emit_assembly(
        llvm.parse_assembly(
            """define <16 x float> @f(<16 x float> %a, <16 x float> %b) {
                 %c = fadd <16 x float> %a, %b
                 ret <16 x float> %c }"""
        )
    )
    widest = max((name for name in ("xmm", "ymm", "zmm") if name in assembly), default="")
    assert widest == register
    assert vector_bits(target) == {"xmm": 128, "ymm": 256, "zmm": 512}[widest]


@NEEDS_LLVM
def test_native_becomes_this_machines_cpu():
    here = host_cpu()
    target = Target("llvm -mcpu=native")
    assert target.attrs["mcpu"] == here.name != "native"
    assert target.attrs.get("mattr", ()) == here.mattr
    assert "native" not in str(target)
    assert Target(str(target)) == target
    assert set(target.features.isa) == here.features
    assert Target(f"c -mcpu=native -mtriple={here.triple}").attrs["mcpu"] == here.name
    assert Target("llvm -mcpu=native -mattr=+sve-x").attrs["mattr"] == (*here.mattr, "+sve-x")
    assert Target("llvm -from_device=0") == target
    with pytest.raises(TargetError, match="from_device: there is no CPU device 1"):
        Target("llvm -from_device=1")


@NEEDS_LLVM
def test_native_is_refused_for_another_architecture():
    other = "riscv64-linux-gnu" if platform.machine() != "riscv64" else "x86_64-linux-gnu"
    with pytest.raises(TargetError, match="mcpu: 'native' is this machine's CPU"):
        Target(f"llvm -mcpu=native -mtriple={other}")


@NEEDS_LLVM
def test_generic_is_the_baseline_here():
    target = Target("llvm -mcpu=generic")
    assert target.attrs["mtriple"] == host_triple()
    assert Target(str(target)) == target
    assert target.features.isa == Target(f"llvm -mtriple={host_triple()}").features.isa


@NEEDS_LLVM
@pytest.mark.skipif(
    platform.machine() != "x86_64" or not Path("/proc/cpuinfo").exists(),
    reason="the kernel's names of features are those of Linux on x86-64",
)
def test_this_machine_has_the_features_that_its_kernel_lists():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split())
    for llvm, kernel in {
        "sse4.2": "sse4_2", "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c",
        "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512vl": "avx512vl",
        "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "amx-tile": "amx_tile",
        "gfni": "gfni", "vaes": "vaes", "bmi2": "bmi2", "movbe": "movbe",
    }.items():  # fmt: skip
        assert (llvm in host_cpu().features) == (kernel in flags), llvm


class FakeLlvm:
    """LLVM on a machine whose CPU is a Zen 4 with some features masked."""

    @staticmethod
    def get_process_triple():
        return "x86_64-unknown-linux-gnu"

    @staticmethod
    def get_host_cpu_name():
        return "znver4"

    @staticmethod
    def get_host_cpu_features():
        has = load_table("x86").cpus["znver4"]
        return {
            name: name in has and "avx512" not in name for name in load_table("x86").implies
        } | {
            "avxvnni": True,
            "pku": False,
        }


@pytest.fixture
def fake_llvm(monkeypatch):
    monkeypatch.setattr(cpu_module, "_host_facts", lambda: cpu_module._ask(FakeLlvm))
    host_cpu.cache_clear()
    yield FakeLlvm
    host_cpu.cache_clear()


def test_what_a_virtual_machine_hides_is_written_down(fake_llvm):
    here = host_cpu()
    assert here.name == "znver4"
    assert "-avx512f" in here.mattr
    assert "+avxvnni" in here.mattr
    assert not [flag for flag in here.mattr if "pku" in flag or flag == "-avx2"]
    assert not [name for name in here.features if name.startswith("avx512")]
    target = Target({"kind": "llvm", "mcpu": "native"})
    assert vector_bits(target) == 256
    assert target.features.has_avx_vnni


def test_a_cpu_newer_than_the_tables_says_all_it_has(fake_llvm, monkeypatch):
    monkeypatch.setattr(fake_llvm, "get_host_cpu_name", lambda: "znver99")
    target = Target({"kind": "llvm", "mcpu": "native"})
    assert target.attrs["mcpu"] == "znver99"
    assert {"+avx2", "-avx512f", "+sse2"} <= set(target.attrs["mattr"])
    assert vector_bits(target) == 256
    assert target.attrs["mtriple"] == "x86_64-unknown-linux-gnu"
    assert target.features.cpu_known is False


@NEEDS_LLVM
def test_what_llvm_says_of_the_host_is_remembered_among_the_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path))
    ask = cpu_module._host_facts.__wrapped__
    asked = ask()
    monkeypatch.setattr(cpu_module, "_ask", lambda llvm: pytest.fail("it was asked again"))
    assert ask() == asked
    (note,) = (tmp_path / "installed").iterdir()
    monkeypatch.setattr(cpu_module, "_ask", lambda llvm: asked)
    note.write_bytes(b"znver4")  # cut short
    assert ask() == asked
    assert note.read_text("ascii").splitlines() == list(asked)


def test_without_llvmlite_native_is_a_clear_error(monkeypatch):
    def missing(name):
        raise ImportError(f"no module named {name}")

    host_cpu.cache_clear()
    cpu_module._host_facts.cache_clear()
    monkeypatch.setattr(cpu_module.importlib, "import_module", missing)
    for text in ("llvm -mcpu=native", "llvm -mcpu=generic"):
        with pytest.raises(TargetError, match="llvmlite is missing") as caught:
            Target({"kind": "llvm", "mcpu": text.partition("=")[2]})
        assert "pip install llvmlite" in caught.value.hint
    assert vector_bits(Target("llvm -mcpu=skylake-avx512")) == 512


def test_without_llvmlite_a_plain_llvm_stays_plain_and_says_so(monkeypatch):
    monkeypatch.setattr(cpu_module, "find_spec", lambda name: None)
    config = CompilationConfig.resolve("arm_acl, llvm")
    assert str(config.fallback) == "llvm"
    assert "target llvm: complete, on cpu:0; which CPU is not known without llvmlite" in str(config)
    assert vector_bits(config.fallback.target) == 0
    assert CompilationConfig.resolve(config) == config


@pytest.mark.parametrize(
    ("text", "has", "lacks"),
    [
        ("llvm -mtriple=armv8a-arm-none-eabi", {"v8", "aclass"}, {"neon", "dotprod"}),
        ("llvm -mtriple=armv8a-arm-none-eabi -mattr=+neon", {"v8", "neon"}, {"dotprod"}),
        ("llvm -mtriple=armv8.2a-linux-gnueabihf", {"v8.2a"}, {"v8.3a"}),
        ("llvm -mtriple=armv8l-linux-gnueabihf", {"v8"}, {"neon"}),
        ("llvm -mtriple=armv7a-linux-gnueabihf", {"v7", "aclass"}, {"v8"}),
        ("llvm -mtriple=armv7l-linux-gnueabihf -mcpu=cortex-a7", {"v7", "neon"}, {"v8"}),
        ("llvm -mtriple=armv6-linux-gnueabihf", {"v6"}, {"v7"}),
        ("llvm -mtriple=thumbv7em-none-eabi", {"v7", "mclass", "dsp"}, {"mve"}),
        ("llvm -mtriple=thumbv6m-none-eabi", {"v6m", "mclass"}, {"v7"}),
        ("c -march=armv8.1-m.main+mve", {"v8.1m.main", "mclass", "mve"}, {"neon"}),
        ("c -march=armv7-a", {"v7", "aclass"}, {"v8"}),
        ("c -march=armv8.2-a+dotprod", {"v8.2a", "dotprod", "neon"}, {"i8mm"}),
        ("llvm -mcpu=cortex-a78+nodotprod", {"v8.2a", "neon"}, {"dotprod"}),
        ("llvm -mcpu=neoverse-v1+noi8mm+nosve", {"dotprod"}, {"i8mm", "sve"}),
        ("llvm -mcpu=cortex-a76+nosimd", {"fp-armv8"}, {"neon"}),
        ("llvm -mcpu=cortex-m7+nofp", {"v7", "dsp"}, {"fpregs", "fp64"}),
    ],
)
def test_triples_and_modifiers_say_what_an_arm_cpu_has(text, has, lacks):
    target = Target(text)
    assert has <= set(target.features.isa)
    assert not lacks & set(target.features.isa)
    assert target.keys == ("arm_cpu", "cpu")


def test_keys_of_the_users_get_those_of_an_arm_cpu():
    assert Target("llvm -keys=cpu -mcpu=cortex-m55").keys == ("cpu", "arm_cpu")
    assert Target("llvm -keys=cpu,arm_cpu -mcpu=cortex-a72").keys == ("cpu", "arm_cpu")
    assert Target("llvm -keys=mine -mcpu=haswell").keys == ("mine",)


def test_this_machine_may_be_given_with_less(fixed_cpu):
    target = Target("llvm -mcpu=native+noavx2 -mattr=+aes")
    assert target == Target("llvm -mcpu=skylake -mattr=-clflushopt,-avx2,+aes")
    assert "avx2" not in target.features.isa


@pytest.mark.parametrize(
    ("cpu", "triple"),
    [
        ("cortex-m0", "thumbv6m-none-eabi"),
        ("cortex-m23", "thumbv8m.base-none-eabi"),
        ("cortex-m3", "thumbv7m-none-eabi"),
        ("cortex-m4", "thumbv7em-none-eabi"),
        ("cortex-m33", "thumbv8m.main-none-eabi"),
        ("cortex-m55+nomve", "thumbv8.1m.main-none-eabi"),
        ("cortex-r52", "armv8r-none-eabi"),
        ("cortex-a7", "armv7-unknown-linux-gnueabihf"),
        ("arm1176jzf-s", "armv6-unknown-linux-gnueabihf"),
    ],
)
def test_microcontrollers_are_bare_metal(cpu, triple):
    native = target_cpu(Target(f"llvm -mcpu={cpu}"))[0]
    assert native.triple == triple
    text = "define i32 @f(i32 %a) { ret i32 %a }"
    assert "f:" in compile_assembly(text, native)


@pytest.mark.parametrize(
    ("cpu", "is_fast"),
    [("cooperlake", True), ("znver4", True), ("sapphirerapids", False), ("graniterapids", False)],
)
def test_pairs_of_bfloat16_are_multiplied_where_that_is_fast(cpu, is_fast):
    _, unit = target_cpu(Target(f"llvm -mcpu={cpu}"))
    assert unit.has_bf16_dots == is_fast
    assert unit.has_byte_dots


def test_a_target_alone_has_no_tiles():
    """A process has to ask the system for them: code for elsewhere does without."""
    options = lowering_options(Target("llvm -mcpu=sapphirerapids -precision=bf16"))
    assert options.is_bf16
    assert options.unit.tiles == ()
    assert "amx-bf16" in target_features(Target("llvm -mcpu=sapphirerapids"))
