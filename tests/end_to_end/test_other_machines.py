# SPDX-License-Identifier: Apache-2.0
"""Objects for other machines, run under emulators: floats, halves, bytes, and what dots become."""

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from tests.c_compiler import CACHE
from tests.codegen.lower.small_models import feeds_of, small_model
from tests.emulated import run_emulated
from tests.free_model import BOUNDS, free_case, save_free_model

from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.export import export_executable, export_object, export_shared
from intarsia.export.region import lower_model
from intarsia.native.machine import compile_assembly
from intarsia.place.request import Request

MACHINES = {
    "aarch64": ("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76", "max"),
    "neoverse-v1": ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1", "max"),
    "armv7": ("llvm -mtriple=armv7-linux-gnueabihf -mcpu=cortex-a7", "max"),
    "riscv64": ("llvm -mtriple=riscv64-linux-gnu -mattr=+m,+a,+f,+d,+c,+v", "rv64,v=true,vlen=128"),
    "riscv64-scalar": ("llvm -mtriple=riscv64-linux-gnu -mattr=+m,+a,+f,+d,+c", "rv64"),
    "x86-64-v2": ("llvm -mtriple=x86_64-linux-musl -mcpu=x86-64-v2", "Nehalem"),
}
WASM = "llvm -mtriple=wasm32-unknown-unknown -mattr=+simd128"

BODY = """
    a = Conv<pads = [1, 1, 1, 1]>(x, w, b) c = Relu(a)
    d = Conv<pads = [1, 1, 1, 1], group = 8>(c, dw)
    p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(d)
    f = Flatten(p) g = Gemm(f, m) y = Softmax(g)
    h = Cast<to = 10>(g) i = Add(h, h) half = Cast<to = 1>(i)
    e = Erf(g) z = LayerNormalization<axis = -1>(e, scale)
    r = Round(x) low = Floor(x) high = Ceil(x) q = QuantizeLinear(x, step, zero)
    k = Mod<fmod = 1>(x, part)"""
WEIGHTS = {
    "w": (8, 3, 3, 3),
    "b": (8,),
    "dw": (8, 1, 3, 3),
    "m": (288, 21),
    "scale": (21,),
    "part": np.float32(0.3),
    "step": np.float32(0.02),
    "zero": np.uint8(119),
}
BYTES = """
    us = MatMulInteger(u, s) ss = MatMulInteger(i, s) uu = MatMulInteger(u, v)
    ur = MatMulInteger(u, r)
    c = ConvInteger<pads = [1, 1, 1, 1]>(image, taps)"""


def bytes_model():
    drawn = np.random.default_rng(4)
    weights = {
        "s": drawn.integers(-128, 128, (40, 24)).astype(np.int8),
        "v": drawn.integers(0, 256, (40, 24)).astype(np.uint8),
        "taps": drawn.integers(-128, 128, (16, 8, 3, 3)).astype(np.int8),
    }
    inputs = {
        "u": drawn.integers(0, 256, (9, 40)).astype(np.uint8),
        "i": drawn.integers(-128, 128, (9, 40)).astype(np.int8),
        "r": drawn.integers(0, 256, (40, 11)).astype(np.uint8),
        "image": drawn.integers(0, 256, (1, 8, 6, 6)).astype(np.uint8),
    }
    return small_model("us, ss, uu, ur, c", BYTES, inputs, weights), inputs


@pytest.fixture(scope="module", params=["floats", "bytes"])
def case(request, tmp_path_factory):
    """A file, its inputs, and what it gives here."""
    if request.param == "floats":
        model = small_model("y, half, z, r, low, high, q, k", BODY, {"x": (1, 3, 12, 12)}, WEIGHTS)
        feeds = feeds_of(model)
    else:
        model, feeds = bytes_model()
    path = tmp_path_factory.mktemp("case") / f"{request.param}.onnx"
    onnx.save(model, path)
    if request.param == "bytes":  # ONNX Runtime's sums of bytes saturate on some CPUs
        return path, list(feeds.values()), onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return path, list(feeds.values()), session.run(None, feeds)


@pytest.fixture
def zig_cache(monkeypatch):
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(CACHE))


def agree(got, want):
    for one, other in zip(got, want, strict=True):
        if other.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)
        else:
            np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("zig_cache")
@pytest.mark.parametrize("machine", MACHINES)
def test_an_object_computes_the_model_on_its_machine(case, machine, tmp_path):
    path, feeds, want = case
    target, emulated = MACHINES[machine]
    exported = export_object(path, tmp_path, target)
    agree(run_emulated(target, emulated, exported, feeds, want, tmp_path), want)


@pytest.mark.usefixtures("zig_cache")
@pytest.mark.parametrize(
    "machine", [pytest.param("aarch64", marks=pytest.mark.exhaustive), "armv7"]
)
def test_a_size_is_told_when_it_runs(machine, tmp_path):
    save_free_model(tmp_path / "free.onnx")
    target, emulated = MACHINES[machine]
    exported = export_object(tmp_path / "free.onnx", tmp_path, target, shapes=BOUNDS)
    for sizes in ((1, 9), (3, 2)):
        feeds, want = free_case(tmp_path / "free.onnx", *sizes)
        inputs = list(feeds.values())
        agree(run_emulated(target, emulated, exported, inputs, want, tmp_path, sizes), want)


@pytest.mark.usefixtures("zig_cache")
def test_a_module_of_webassembly_computes_the_model(case, tmp_path):
    wasmtime = pytest.importorskip("wasmtime", reason="wasmtime is not installed")
    path, feeds, want = case
    module, _ = export_shared(path, tmp_path, WASM)
    store = wasmtime.Store()
    instance = wasmtime.Instance(store, wasmtime.Module(store.engine, module.read_bytes()), [])
    shown = instance.exports(store)
    memory, places = shown["memory"], []
    at = -(-shown["__heap_base"].value(store) // 64) * 64
    memory.grow(store, 16)
    for array in feeds:
        memory.write(store, array.tobytes(), at)
        places.append(at)
        at += array.nbytes
    outputs = []
    for array in want:
        places.append(at)
        outputs.append((at, array))
        at += -(-array.nbytes // 64) * 64
    assert shown[f"{path.stem}_run"](store, *places) == 0
    got = [
        np.frombuffer(bytes(memory.read(store, at, at + array.nbytes)), array.dtype)
        for at, array in outputs
    ]
    agree([one.reshape(other.shape) for one, other in zip(got, want, strict=True)], want)


@pytest.mark.exhaustive  # the first time, the compiler builds its C library
@pytest.mark.usefixtures("zig_cache")
@pytest.mark.parametrize("case", ["floats"], indirect=True)
def test_a_program_of_webassembly_runs_with_files(case, tmp_path):
    wasmtime = pytest.importorskip("wasmtime", reason="wasmtime is not installed")
    path, feeds, want = case
    program, _ = export_executable(path, tmp_path, "llvm -mtriple=wasm32-wasi -mattr=+simd128")
    linker = wasmtime.Linker(wasmtime.Engine())
    linker.define_wasi()
    settings = wasmtime.WasiConfig()
    settings.preopen_dir(str(tmp_path), "/files")
    for number, array in enumerate(feeds):
        np.save(tmp_path / f"{number}.npy", array)
    inputs = [f"/files/{number}.npy" for number in range(len(feeds))]
    settings.argv = ["net", "-o", "/files", *inputs]
    store = wasmtime.Store(linker.engine)
    store.set_wasi(settings)
    module = wasmtime.Module(linker.engine, program.read_bytes())
    start = linker.instantiate(store, module).exports(store)["_start"]
    start(store)  # a program that fails exits, which is an exception here
    names = [output.name for output in onnx.load(path).graph.output]
    agree([np.load(tmp_path / f"{name}.npy") for name in names], want)


BLOCKS = {"smmla", "ummla", "usmmla"}
"""Instructions for blocks of two by two sums; sums of columns are of `usdot`."""


@pytest.mark.parametrize(
    ("target", "instructions"),
    [
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76", {"sdot", "udot"}),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1", BLOCKS | {"usdot"}),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-x2", BLOCKS | {"usdot"}),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -mattr=+i8mm", BLOCKS | {"usdot"}),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-x2 -mattr=-i8mm", {"sdot", "udot"}),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a53", set()),
    ],
)
def test_products_of_bytes_are_the_cpus_instructions(tmp_path, target, instructions):
    model, _ = bytes_model()
    onnx.save(model, tmp_path / "net.onnx")
    native = lower_model(Request(model=tmp_path / "net.onnx", target=target))
    text = "".join(
        compile_assembly(emit_llvm(kernel, native.unit), native.cpu)
        for kernel in native.program.kernels
    )
    found = {word for word in text.split() if word in {"sdot", "udot", "usdot", *BLOCKS}}
    assert found == instructions


@pytest.mark.usefixtures("zig_cache")
@pytest.mark.parametrize(
    ("target", "instructions"),
    [
        ("-mcpu=neoverse-v1", {"bfmmla"}),
        ("-mcpu=cortex-a76 -mattr=+bf16", {"bfmmla"}),
        ("-mcpu=neoverse-v1 -mattr=-bf16", set()),
    ],
)
def test_bfloat16_is_multiplied_by_the_cpu(tmp_path, target, instructions):
    drawn = np.random.default_rng(4)
    weights = {"m": drawn.standard_normal((64, 48)).astype(np.float32)}
    x = drawn.standard_normal((8, 64)).astype(np.float32)
    onnx.save(small_model("y", "y = MatMul(x, m)", {"x": x}, weights), tmp_path / "net.onnx")
    target = f"llvm -mtriple=aarch64-linux-gnu {target} -precision=bf16"
    native = lower_model(Request(model=tmp_path / "net.onnx", target=target))
    text = "".join(
        compile_assembly(emit_llvm(kernel, native.unit), native.cpu)
        for kernel in native.program.kernels
    )
    assert {word for word in text.split() if word in ("bfdot", "bfmmla")} == instructions
    exported = export_object(tmp_path / "net.onnx", tmp_path, target)
    want = x @ weights["m"]
    (got,) = run_emulated(target, "max", exported, [x], [want], tmp_path)
    assert 1e-5 < np.abs(got - want).max() < 0.2


@pytest.mark.usefixtures("zig_cache")
@pytest.mark.parametrize(
    "target",
    [
        "llvm -mtriple=thumbv7em-none-eabihf -mcpu=cortex-m7",
        "llvm -mtriple=thumbv8.1m.main-none-eabihf -mcpu=cortex-m55",
        "llvm -mcpu=cascadelake",
        "llvm -mcpu=x86-64-v4",
        "llvm -mtriple=riscv64-linux-gnu -mcpu=sifive-x280",
        "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v2",
    ],
)
def test_an_object_for_a_machine_that_is_not_emulated(case, target, tmp_path):
    path, _, _ = case
    written, header = export_object(path, tmp_path, target)
    assert written.read_bytes()[:4] == b"\x7fELF"
    assert f"{path.stem}_run(" in header.read_text()
