# SPDX-License-Identifier: Apache-2.0
"""The kind `llvm`: packages, other CPUs, damage, explanations."""

import hashlib
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import intarsia
from intarsia.backends.native_region import decode_payload
from intarsia.backends.registry import collect
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.lower.region import lower_region
from intarsia.errors import BackendError, PackageError, TargetError, UnsupportedError
from intarsia.graph.load import load as load_model
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.native.elf import can_link
from intarsia.native.machine import compile_assembly
from intarsia.native.native_target import target_cpu
from intarsia.runtime.package import read_package
from intarsia.target import Target

X86 = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="the code is for x86-64"
)
TEXT = """
g (float[1, 20, 9, 9] x) => (float[1, 10] y)
{
  a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w, b)
  c = Relu(a)
  d = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 20>(c, v)
  e = Concat<axis = 1>(c, d)
  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(e)
  q = GlobalAveragePool(p)
  f = Flatten(q)
  h = Gemm<transB = 1>(f, k)
  y = Sigmoid(h)
}
"""
SHAPES = {"w": (20, 20, 3, 3), "b": (20,), "v": (20, 1, 3, 3), "k": (10, 40)}
NODES = 9


@pytest.fixture(scope="module")
def model():
    parsed = onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 20]>' + TEXT)
    rng = np.random.default_rng(3)
    for name, shape in SHAPES.items():
        array = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        parsed.graph.initializer.append(numpy_helper.from_array(array, name))
    return parsed


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).standard_normal((1, 20, 9, 9)).astype(np.float32)


@pytest.fixture(scope="module")
def wanted(model, x, backends):
    return intarsia.compile(model, "onnxruntime", num_threads=1, backends=backends)(x)


@pytest.fixture(scope="module")
def exe(model, backends):
    return intarsia.compile(model, "llvm", num_threads=1, backends=backends)


@pytest.fixture(scope="module")
def artifact(exe):
    (only,) = exe.artifacts
    return only


def assemblies(model, text):
    """Return the assembly of each kernel of a model for a target."""
    graph = snapshot(load_model(model))
    cpu, unit = target_cpu(Target(text))
    program = lower_region(Region.of(graph, range(len(graph.nodes))), unit)
    return [compile_assembly(emit_llvm(kernel, unit), cpu) for kernel in program.kernels]


def test_a_network_is_one_region_with_the_right_numbers(exe, x, wanted):
    assert exe.placement.coverage() == {str(exe.placement.regions[0].target): NODES}
    np.testing.assert_allclose(exe(x), wanted, rtol=1e-5, atol=1e-6)


def test_a_package_runs_in_a_fresh_process(exe, x, wanted, tmp_path):
    exe.save(tmp_path / "m.intarsia")
    np.save(tmp_path / "x.npy", x)
    script = (
        "import sys, numpy as np, intarsia\n"
        "exe = intarsia.load('m.intarsia', num_threads=1)\n"
        "np.save('y.npy', exe(np.load('x.npy')))\n"
        "assert 'onnx' not in sys.modules and 'onnxruntime' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=600)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), exe(x))


UNNEEDED = (
    "asyncio", "importlib.metadata", "importlib.resources", "json",
    "multiprocessing", "onnx", "onnx_ir", "onnxruntime", "rich", "sqlalchemy", "subprocess",
    "tempfile", "typer",
    "intarsia.backends.sources", "intarsia.codegen.ir", "intarsia.compiler", "intarsia.cost",
    "intarsia.graph.graph", "intarsia.graph.ops", "intarsia.native.pool",
    "intarsia.native.routine", "intarsia.process.selftest", "intarsia.runtime.control_flow",
    "intarsia.target.registry", "intarsia.target.target",
)  # fmt: skip
"""What neither numpy imports nor a program needs that is loaded and run with one thread."""


def test_a_second_start_from_a_package_imports_nothing_that_it_does_not_need(exe, x, tmp_path):
    exe.save(tmp_path / "m.intarsia")
    np.save(tmp_path / "x.npy", x)
    script = (
        "import sys, numpy as np\n"
        "before = set(sys.modules)\n"
        "import intarsia\n"
        "x = np.load('x.npy')\n"
        "intarsia.load('m.intarsia', num_threads=1)(x)\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env={**os.environ, "INTARSIA_CACHE_DIR": str(tmp_path / "cache")},
            check=True,
            timeout=600,
            capture_output=True,
            text=True,
        ).stdout.split()
        for _ in range(2)
    )
    assert "llvmlite.binding" in first  # kernels are compiled
    own_linker = () if not can_link() else ("llvmlite.binding", "intarsia.target.cpu_tables")
    assert not {*UNNEEDED, *own_linker} & set(second)


COMPILE = """
import sys, intarsia
intarsia.compile(sys.argv[1], "llvm", num_threads=1).save(sys.argv[2])
"""


def test_two_compiles_make_the_same_bytes(model, tmp_path):
    """Whatever the order of sets, and whether the kernels were cached."""
    onnx.save(model, tmp_path / "m.onnx")
    packages = []
    for seed in ("0", "1", "4711"):
        path = tmp_path / f"{seed}.intarsia"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        environment["INTARSIA_CACHE_DIR"] = str(tmp_path / "cache" / str(seed != "0"))
        command = [sys.executable, "-c", COMPILE, str(tmp_path / "m.onnx"), str(path)]
        subprocess.run(command, env=environment, check=True, timeout=600)
        packages.append(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(set(packages)) == 1


# Other CPUs

NARROW = {"haswell": "ymm", "x86-64": "xmm", "x86-64-v3": "ymm"}


@X86
@pytest.mark.parametrize("cpu", NARROW)
def test_code_has_no_wider_vectors_than_its_cpu(cpu, model):
    found = set(re.findall(r"%([xyz]mm)\d+", "".join(assemblies(model, f"llvm -mcpu={cpu}"))))
    assert NARROW[cpu] in found
    assert "zmm" not in found
    if cpu == "x86-64":
        assert "ymm" not in found


@X86
def test_code_for_a_wide_cpu_uses_it(model):
    text = "".join(assemblies(model, "llvm -mcpu=skylake-avx512"))
    assert "zmm" in text
    assert "vfmadd" in text


def test_arm_code_uses_neon(model):
    text = "".join(assemblies(model, "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72"))
    assert "fmla\tv" in text
    assert "%zmm" not in text


def test_a_cpu_of_another_family_needs_no_triple(model):
    assert "fmla\tv" in "".join(assemblies(model, "llvm -mcpu=cortex-a72")) or (
        platform.machine().lower() in ("aarch64", "arm64")
    )


@X86
@pytest.mark.parametrize("cpu", NARROW)
def test_code_for_an_older_cpu_runs_here(cpu, model, x, wanted, backends):
    exe = intarsia.compile(model, f"llvm -mcpu={cpu}", num_threads=1, backends=backends)
    assert {region.backend for region in exe.placement.regions} == {"llvm"}
    np.testing.assert_allclose(exe(x), wanted, rtol=1e-5, atol=1e-6)


def foreign_triple():
    here = platform.machine().lower()
    return "x86_64-linux-gnu" if here in ("aarch64", "arm64") else "aarch64-linux-gnu"


@pytest.fixture
def foreign(model, backends, monkeypatch):
    """The artifact of a target that is not this machine: compiled, but not loaded."""
    taken = []
    backend = backends.named("llvm")
    monkeypatch.setattr(type(backend), "check_target", lambda self, target: ())
    monkeypatch.setattr(
        type(backend), "load", lambda self, artifact, device: taken.append(artifact) or Nothing()
    )
    text = f"llvm -mtriple={foreign_triple()}"
    intarsia.compile(model, text, num_threads=1, backends=backends)
    monkeypatch.undo()
    return taken[-1]


class Nothing:
    scratch_bytes = 0


def test_foreign_code_is_compiled_but_not_loaded(foreign, backends):
    assert foreign.payload
    backend = backends.named("llvm")
    with pytest.raises(BackendError, match="cannot run here: it is for") as caught:
        backend.load(foreign, backend.open(None, None))
    assert foreign_triple().partition("-")[0] in caught.value.message
    assert caught.value.hint


@X86
def test_code_that_this_cpu_lacks_features_for_is_refused(artifact, backends, monkeypatch):
    from intarsia.native import here, native_target
    from intarsia.target.cpu import LlvmCpu

    real = native_target.host_cpu()
    old = LlvmCpu("core2", (), frozenset({"sse", "sse2", "cx8"}), real.triple)
    monkeypatch.setattr(native_target, "host_cpu", lambda: old)
    monkeypatch.setattr(here, "cpu_text", lambda: "a core2")
    backend = backends.named("llvm")
    with pytest.raises(BackendError, match=r"this CPU \(core2\) lacks .*avx"):
        backend.load(artifact, backend.open(None, None))


# Damage


def loading(artifact, backends):
    backend = backends.named("llvm")
    return backend.load(artifact, backend.open(None, None))


def test_any_flipped_bit_is_noticed(artifact, backends):
    rng = np.random.default_rng(1)
    size = len(artifact.payload)
    for place in (0, 31, 32, 40, size - 1, *rng.integers(0, size, 200)):
        damaged = bytearray(artifact.payload)
        damaged[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(PackageError, match="damaged"):
            loading(replace(artifact, payload=bytes(damaged)), backends)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 500])
def test_a_cut_payload_is_noticed(size, artifact, backends):
    with pytest.raises(PackageError, match="damaged"):
        loading(replace(artifact, payload=artifact.payload[:size]), backends)


def signed(content):
    """Return a payload whose digest is right, as who forges one would make it."""
    encoded = msgspec.msgpack.encode(content)
    return hashlib.sha256(encoded).digest() + encoded


def forged(artifact, change):
    content = msgspec.msgpack.decode(artifact.payload[32:])
    change(content)
    return replace(artifact, payload=signed(content))


def set_in(path, value):
    """Return a change: of the entry that a path of keys names, to a value."""

    def change(content):
        *outer, last = path
        for key in outer:
            content = content[key]
        content[last] = value

    return change


FORGERIES = {
    "another type": set_in(("calls",), 3),
    "a kind of storage that there is not": set_in(("storages", 0, 0), "stack"),
    "an input that there is not": set_in(("storages", 0, 1), 7),
    "a negative input": set_in(("storages", 0, 1), -1),
    "an input that is larger": set_in(("storages", 0, 2), 1 << 40),
    "no scratch": set_in(("scratch_bytes",), 0),
    "negative scratch": set_in(("scratch_bytes",), -64),
    "a kernel that there is not": set_in(("calls", 0, 0), 99),
    "a negative kernel": set_in(("calls", 0, 0), -1),
    "a storage that there is not": set_in(("calls", 0, 1, 0, 0), 999),
    "an offset beyond the end": set_in(("calls", 0, 1, 0, 1), 1 << 40),
    "a negative offset": set_in(("calls", 0, 1, 0, 1), -8),
    "a negative extent": set_in(("calls", 0, 2), -1),
    "a call with too few arguments": set_in(("calls", 0, 1), []),
    "a kernel without its count": set_in(("counts",), []),
    "text that is not compressed": set_in(("kernels", 0, 1), b"define"),
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_pointers_stay_inside(forgery, artifact, backends):
    with pytest.raises(PackageError, match="damaged"):
        loading(forged(artifact, forgery), backends)


def test_a_kernel_of_another_name_is_an_error(artifact, backends):
    with pytest.raises((PackageError, BackendError)):
        loading(forged(artifact, set_in(("kernels", 0, 0), "nobody")), backends)


def test_what_is_not_damaged_loads(artifact, backends):
    assert loading(forged(artifact, lambda content: None), backends).scratch_bytes > 0


def test_a_damaged_package_is_an_error(exe, tmp_path):
    path = tmp_path / "m.intarsia"
    exe.save(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(PackageError):
        intarsia.load(path)


# What it says of itself


def test_constants_are_aligned_in_a_package(exe, tmp_path):
    exe.save(tmp_path / "m.intarsia")
    (artifact,) = read_package(tmp_path / "m.intarsia").artifacts
    assert artifact.constants
    assert all(constant.data.ctypes.data % 64 == 0 for constant in artifact.constants)


def test_explain_shows_kernels(exe):
    text = str(exe.explain())
    assert f"{NODES} nodes  llvm" in text
    assert re.search(r"\d+ calls of \d+ kernels", text), text


def test_the_command_line_explains_it(model, tmp_path):
    onnx.save(model, tmp_path / "m.onnx")
    command = [sys.executable, "-m", "intarsia", "explain", str(tmp_path / "m.onnx"), "-t", "llvm"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"region 0: \d+ calls of \d+ kernels", ran.stdout), ran.stdout


def test_one_region_binds_to_the_bare_call(exe, x, wanted):
    y = np.zeros_like(wanted)
    source = x.copy()
    call = exe.bind({"x": source}, {"y": y})
    assert type(call).__name__ == "builtin_function_or_method"
    call()
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    source[...] = 0
    call()
    np.testing.assert_array_equal(y, exe(np.zeros_like(x)))


def test_a_bound_call_outlives_everything(model, x, wanted, backends):
    y = np.zeros_like(wanted)
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    call = exe.bind({"x": x.copy()}, {"y": y})
    del exe
    for _ in range(3):
        bytearray(1 << 20)  # what was freed would be overwritten
        call()
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offset", [4, 8, 36, 60])
def test_bound_arrays_need_no_alignment(offset, exe, x, wanted):
    def misaligned(array):
        memory = np.zeros(array.nbytes + 128, np.uint8)
        start = -memory.ctypes.data % 64 + offset
        view = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        view[...] = array
        return view, memory, slice(start, start + array.nbytes)

    source, _, _ = misaligned(x)
    y, memory, inside = misaligned(np.zeros_like(wanted))
    exe.bind({"x": source}, {"y": y})()
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    memory[inside] = 0
    assert not memory.any()  # nothing was written around it


def test_threads_change_no_number(model, x, exe, backends):
    several = intarsia.compile(model, "llvm", num_threads=4, backends=backends)
    for _ in range(20):
        np.testing.assert_array_equal(several(x), exe(x))


def test_refusals_say_why(parse_model, backends):
    model = parse_model("g (float[2,2] x) => (float y) { y = Det(x) }")
    known = collect([backends.named("llvm")])  # nothing to run it on the host
    with pytest.raises(UnsupportedError, match=r"Det.*not on llvm"):
        intarsia.compile(model, "llvm", backends=known)


def test_operators_beyond_run_in_the_next_target(parse_model, backends):
    text = "g (float[1,2,2] x) => (float[1] y) { a = Relu(x) y = Det(a) }"
    exe = intarsia.compile(parse_model(text), "llvm, onnxruntime", num_threads=1, backends=backends)
    assert [region.backend for region in exe.placement.regions] == ["llvm", "onnxruntime"]
    np.testing.assert_array_equal(exe(np.array([[[1, -1], [2, 3]]], np.float32)), [3])


@pytest.mark.parametrize(
    ("text", "bits", "has_fma"),
    [
        ("llvm -mcpu=haswell", 256, True),
        ("llvm -mcpu=x86-64", 128, False),
        ("llvm -mcpu=cortex-a76", 128, True),
        ("llvm -mtriple=riscv64-linux-gnu -mattr=+v", 128, True),
        ("llvm -mcpu=cortex-m4 -mtriple=thumbv7em-none-eabihf", 0, False),
    ],
)
def test_the_target_says_what_vectors_there_are(text, bits, has_fma):
    _, unit = target_cpu(Target(text))
    assert (unit.bits, unit.has_fma) == (bits, has_fma)


def test_a_cpu_that_there_is_not_is_an_error(model):
    with pytest.raises(TargetError, match="mcpu: no CPU is called 'hasswell'"):
        intarsia.compile(model, "llvm -mcpu=hasswell")


def test_modifiers_of_a_cpu_are_features():
    cpu, _ = target_cpu(Target("llvm -mcpu=cortex-a72+nocrc"))
    assert (cpu.name, cpu.features) == ("cortex-a72", "-crc")


@pytest.mark.parametrize(
    ("winograd", "family"), [("off", "conv"), ("f2", "winograd"), ("f4", "winograd")]
)
def test_winograd_is_the_targets_choice(winograd, family):
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((64, 64, 3, 3)).astype(np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        " g (float[1, 64, 30, 29] x) => (float[1, 64, 30, 29] y)"
        " { c = Conv<pads = [1, 1, 1, 1]>(x, w) y = Relu(c) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    exe = intarsia.compile(model, f"llvm -winograd={winograd}", num_threads=1)
    (artifact,) = exe.artifacts
    names = [name for name, _ in decode_payload(artifact).kernels]
    assert any(name.startswith(family) for name in names)
    feeds = {"x": rng.standard_normal((1, 64, 30, 29)).astype(np.float32)}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (want,) = session.run(None, feeds)
    np.testing.assert_allclose(exe.run(feeds)["y"], want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_compiling_tells_how_many_kernels_are_done(model, tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path))
    told = []
    exe = intarsia.compile(
        model, "llvm", num_threads=1, progress=lambda *moment: told.append(moment)
    )
    kernels = [moment[1:] for moment in told if moment[0] == "kernels"]
    total = len(decode_payload(exe.artifacts[0]).kernels)
    assert kernels == sorted(kernels)
    assert kernels[-1] == (total, total)


@pytest.mark.parametrize("l2_bytes", [4 << 10, 64 << 10, 16 << 20])
def test_programs_shaped_for_other_caches_load_and_are_right(
    l2_bytes, tmp_path, random_feeds, evaluate, assert_same
):
    rng = np.random.default_rng(0)
    weights = {"w": (64, 64, 3, 3), "p": (64, 64, 1, 1), "m": (28, 600)}
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            onnx.helper.make_node("Conv", ["c", "p"], ["d"]),
            onnx.helper.make_node("MatMul", ["d", "m"], ["y"]),
        ],
        "caches",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 64, 28, 28])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 64, 28, 600])],
        [
            onnx.numpy_helper.from_array((rng.standard_normal(shape) / 24).astype("f4"), name)
            for name, shape in weights.items()
        ],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10
    )
    target = f"llvm -mcpu=native -l2-cache={l2_bytes}"
    program = intarsia.compile(model, target, num_threads=1)
    program.save(tmp_path / "m.intarsia")
    loaded = intarsia.load(tmp_path / "m.intarsia", num_threads=1)
    feeds = random_feeds(model)
    assert_same(loaded.run(feeds), evaluate(model, feeds), rtol=1e-4, atol=1e-4)
    assert f"-l2-cache={l2_bytes}" in str(loaded.placement)
