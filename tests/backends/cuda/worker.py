# SPDX-License-Identifier: Apache-2.0
"""Programs on the stand-in of NVIDIA's driver, in a process that finds it as the driver.

What a kernel's PTX would do is done by the same LLVM IR, compiled for this CPU.
"""

import contextlib
import ctypes
import functools
import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from tests.backends.cuda import (
    captures,
    cublas_stand_in,
    cudnn_stand_in,
    cutlass_stand_in,
)
from tests.codegen.emit import runners, test_families
from tests.gpu_on_cpu import WAIT, link_kernel, waits

import intarsia
from intarsia.backends.cuda import backend, driver
from intarsia.backends.cuda.cublas import backend as cublas
from intarsia.backends.cuda.cublas import execution, library
from intarsia.backends.cuda.cublas.products import LtProduct, LtProgram
from intarsia.backends.cuda.cudnn import backend as cudnn
from intarsia.backends.cuda.cudnn import execution as cudnn_execution
from intarsia.backends.cuda.cudnn import library as cudnn_library
from intarsia.backends.cuda.cudnn.graphs import (
    DnnGraph,
    DnnOperation,
    DnnProgram,
    DnnTensor,
    EngineRules,
)
from intarsia.backends.cuda.library_program import LibraryPlace, LibraryTensor
from intarsia.backends.values import Artifact, TensorSpec
from intarsia.codegen.emit.nvptx import emit_nvptx
from intarsia.errors import (
    BackendError,
    ExecutionError,
    InputError,
    PackageError,
    PlacementError,
)
from intarsia.plan.plan import CopyStep
from intarsia.process.selftest import TriedDevices

TEXT = """
<ir_version: 9, opset_import: ["" : 20]>
g (float[1,3,9,9] x, int64[2] rows) => (float[1,4,3,3] y, float[2,4] picked, float[4,1] m)
<int64[2] form = {4, 9}, int64[1] last = {1}> {
    a = Conv <pads=[1,1,1,1]> (x, w)
    b = Relu(a)
    y = MaxPool <kernel_shape=[3,3], strides=[3,3]> (b)
    flat = Reshape(y, form)
    soft = Softmax(flat)
    turned = Transpose(soft)
    picked = Gather <axis=0> (turned, rows)
    wide = MatMul(flat, v)
    m = ReduceMean(wide, last)
}"""

stand_in = ctypes.CDLL("libcuda.so.1")
stand_in.stand_in_count.restype = ctypes.c_int64
held = []


def count(what):
    return stand_in.stand_in_count(what.encode())


def emitted(function, limits):
    """Emit a kernel, and tell the stand-in what does the same here."""
    kernel = emit_nvptx(function, limits)
    functions = {
        "tid.x": stand_in.stand_in_tid_x,
        "ctaid.x": stand_in.stand_in_ctaid_x,
        "ctaid.y": stand_in.stand_in_ctaid_y,
        "nctaid.y": stand_in.stand_in_nctaid_y,
        WAIT: stand_in.stand_in_wait,
    }
    addresses = {name: ctypes.cast(one, ctypes.c_void_p).value for name, one in functions.items()}
    library, address = link_kernel(kernel, addresses, is_table=True)
    held.append(library)
    stand_in.stand_in_kernel(kernel.name.encode(), ctypes.c_void_p(address), waits(kernel))
    return kernel


def make_model():
    made = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(1)
    for name, shape in (("w", (4, 3, 3, 3)), ("v", (9, 700))):
        weight = rng.standard_normal(shape).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    for node in made.graph.node:
        node.name = f"{node.op_type}_{node.output[0]}"
    return made


def check_numbers(exe, model):
    x = np.random.default_rng(0).standard_normal((1, 3, 9, 9)).astype(np.float32)
    feeds = {"x": x, "rows": np.array([-1, 2])}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    for _ in range(3):
        found = exe.run(feeds)
        for name, peer in zip(names, session.run(names, feeds), strict=True):
            np.testing.assert_allclose(found[name], peer, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="rows"):
        exe.run({**feeds, "rows": np.array([0, 1 << 40])})


def two_devices(folder):
    """Two devices and the host share a model; packages hold PTX; memory is given back."""
    model = make_model()
    pins = {"MaxPool*": "llvm", "Softmax*": "cuda:1"}
    targets = "cuda:0, cuda:1, llvm"
    exe = intarsia.compile(model, targets, pins=pins, num_threads=1, cache=False)
    assert set(exe.plan.devices) == {"cpu:0", "cuda:0", "cuda:1"}, exe.plan.devices
    check_numbers(exe, model)
    feeds = {"x": np.zeros((1, 3, 9, 9), np.float32), "rows": np.array([0, 1])}
    for _ in range(2):  # as they are, and captured: the last run above failed
        exe.run(feeds)
    gc.collect()
    before = count("copies in"), count("copies out"), count("pinned")
    launched, between = (count("launches"), count("graph launches")), count("copies between")
    exe.run(feeds)
    copies = [step for step in exe.plan.steps if isinstance(step, CopyStep)]
    places = [exe.plan.devices[tensor.device] for tensor in exe.plan.tensors]
    ends = [(places[step.source][:4], places[step.destination][:4]) for step in copies]
    copied_in, copied_out = ends.count(("cpu:", "cuda")), ends.count(("cuda", "cpu:"))
    assert count("copies between") - between == ends.count(("cuda", "cuda")) > 0
    # What follows one another on a device is one launch.
    captured = exe.explain().captures
    assert len(captured) > 2, captured
    assert all("one call" in line for line in captured), captured
    assert count("launches") == launched[0]
    assert count("graph launches") - launched[1] == len(captured)
    # One more: whether an index was out of bounds.
    assert count("copies in") - before[0] == copied_in
    assert count("copies out") - before[1] == copied_out + 1
    assert count("pinned") == before[2], "pinned memory is not used again"
    launched = count("graph launches")
    by_itself = exe.context()
    by_itself.write_inputs(list(feeds.values()))
    by_itself.run()
    for _ in range(2):
        for step in by_itself.backend_steps():
            step()
    assert count("graph launches") > launched, "no region by itself was a graph"
    assert "cuda:1" in str(exe.explain())
    exe.save(folder / "p.intarsia")
    check_numbers(intarsia.load(folder / "p.intarsia"), model)
    del exe, by_itself, step
    gc.collect()
    assert count("device") == count("graphs") == 0


def from_one_to_another():
    """A value goes to another GPU once, directly or, if neither reads the other, by the host."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 20]>
        g (float[6,50] x) => (float[6,50] y) {
            a = Exp(x)
            b = Neg(a)
            c = Sqrt(a)
            d = Add(b, c)
            y = Mul(d, a)
        }""")
    for node in model.graph.node:
        node.name = node.output[0]
    pins = dict.fromkeys("bcd", "cuda:1") | dict.fromkeys("ay", "cuda:0")
    x = np.random.default_rng(2).uniform(-1, 1, (6, 50)).astype(np.float32)
    (wanted,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    kinds = ("copies in", "copies out", "copies between")
    # They are peers, are not, or are more than the driver lets be.
    for peers, copied in ((1, (1, 1, 2)), (0, (3, 3, 0)), (2, (3, 3, 0))):
        stand_in.stand_in_peers(peers)
        exe = intarsia.compile(model, "cuda:0, cuda:1, llvm", pins=pins, num_threads=1, cache=False)
        for _ in range(4):
            before = [count(kind) for kind in kinds]
            np.testing.assert_allclose(exe.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-6)
            found = tuple(count(kind) - was for kind, was in zip(kinds, before, strict=True))
            assert found == copied, exe.explain()
        routes = [row.route for row in exe.explain().copies]
        way = "direct" if peers == 1 else "through the host"
        assert sorted(routes) == ["", "", way, way]
        assert f"B, {way}" in str(exe.explain())
    stand_in.stand_in_peers(1)


def no_room():
    """Too little memory is an error that says how much is asked for and how much there is."""
    exe = intarsia.compile(make_model(), "cuda, llvm", num_threads=1, cache=False)
    stand_in.stand_in_limit(ctypes.c_size_t(1000))
    with pytest.raises(ExecutionError, match=r"cuda:0 has no room for \d+ bytes") as caught:
        exe.run({"x": np.zeros((1, 3, 9, 9), np.float32), "rows": np.array([0, 1])})
    assert "has 1000 bytes, " in caught.value.hint


def too_old():
    """A target that is newer than the device is refused."""
    with pytest.raises(BackendError, match="says sm_90"):
        intarsia.compile(make_model(), "cuda -arch=sm_90, llvm", num_threads=1, cache=False)


def products_by_cublas(folder):
    """`cublas` beside `cuda` on one device: no copies between them, the table's products there."""
    parser = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 20]>
        g (float[6,16] x, float16[3,4,8] h, float16[8,8] s) => (float[6,5] y, float16[3,4,6] z) {
            a = MatMul(x, u)
            b = Add(a, c)
            d = Relu(b)
            e = Softmax(d)
            y = Gemm<transB=1, alpha=0.5>(e, v, f)
            i = Gemm<transA=1>(s, s)
            j = Gemm(i, t)
            z = MatMul(h, j)
        }""")
    rng = np.random.default_rng(3)
    shapes = {"u": (16, 12), "c": (12,), "v": (5, 12), "f": (5,), "t": (8, 6)}
    for name, shape in shapes.items():
        dtype = "float16" if name == "t" else "float32"
        weight = rng.uniform(-1, 1, shape).astype(dtype)
        parser.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    feeds = {
        "x": rng.standard_normal((6, 16)).astype("float32"),
        "h": rng.uniform(-1, 1, (3, 4, 8)).astype("float16"),
        "s": rng.uniform(-1, 1, (8, 8)).astype("float16"),
    }
    wanted = onnx.reference.ReferenceEvaluator(parser).run(None, feeds)
    lt = cublas_stand_in.StandIn()
    with mock.patch.object(library, "library", return_value=library.CublasLt(lt)):
        for module in (cublas, execution):
            mock.patch.object(module, "library", library.library).start()
        target = "cublas -workspace_size=4096, cuda, llvm"
        exe = intarsia.compile(parser, target, num_threads=1, cache=False, placement="greedy")
        on = [region.backend for region in exe.placement.regions for _ in region.nodes]
        assert sorted(on) == ["cublas"] * 7 + ["cuda"], exe.explain()
        before = count("copies in"), count("copies out")
        lt.ran.clear()
        found = exe.run(feeds)
        for name, value in zip(("y", "z"), wanted, strict=True):
            np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=2e-3)
        assert (count("copies in") - before[0], count("copies out") - before[1]) == (3, 2)
        assert lt.asked[1] == 4096
        exe.save(folder / "c.intarsia")
        again = intarsia.load(folder / "c.intarsia").run(feeds)
        np.testing.assert_array_equal(again["y"], found["y"])
        assert {epilogue for _, epilogue, _ in lt.ran} == {1, 4, 6}, lt.ran
        del exe, again
        gc.collect()
        assert not [one for one in lt.made.values() if one.kind != "handle"], lt.made
    mock.patch.stopall()


def graphs_by_cudnn(folder):
    """`cudnn` beside `cuda` on one device: no copies between them, a handle a stream."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 20]>
        g (float[2,3,9,9] x, float16[4,8] h) => (float[2,4,3,3] y, float16[4,6] z) {
            a = Conv <pads=[1,1,1,1]> (x, w, b)
            c = Relu(a)
            d = Sigmoid(c)
            e = Conv <pads=[1,1,1,1]> (d, v)
            f = Add(e, c)
            g = Relu(f)
            y = MaxPool <kernel_shape=[3,3], strides=[3,3]> (g)
            i = LayerNormalization(h, s, r)
            z = MatMul(i, t)
        }""")
    rng = np.random.default_rng(5)
    single = {"w": (4, 3, 3, 3), "b": (4,), "v": (4, 4, 3, 3)}
    half = {"s": (8,), "r": (8,), "t": (8, 6)}
    for shapes, dtype in ((single, "float32"), (half, "float16")):
        for name, shape in shapes.items():
            weight = rng.uniform(-1, 1, shape).astype(dtype)
            model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    feeds = {
        "x": rng.standard_normal((2, 3, 9, 9)).astype("float32"),
        "h": rng.uniform(-1, 1, (4, 8)).astype("float16"),
    }
    wanted = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    wait = functools.partial(driver.call, "cuStreamSynchronize")
    dnn = cudnn_stand_in.StandIn(wait)
    made = cudnn_library.Cudnn(dnn)
    with contextlib.ExitStack() as stack:
        for module in (cudnn, cudnn_execution, cudnn_library):
            stack.enter_context(mock.patch.object(module, "library", return_value=made))
        exe = intarsia.compile(
            model,
            "cudnn -workspace_size=300, cuda, llvm",
            num_threads=1,
            cache=False,
            placement="greedy",
        )
        on = [region.backend for region in exe.placement.regions for _ in region.nodes]
        assert sorted(on) == ["cuda"] + ["cudnn"] * 8, exe.explain()
        before = count("copies in"), count("copies out")
        dnn.ran.clear()
        found = exe.run(feeds)
        for name, value in zip(("y", "z"), wanted, strict=True):
            np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=2e-3)
        assert (count("copies in") - before[0], count("copies out") - before[1]) == (2, 2)
        # Engines that need more workspace are not tried: 2 and 3.
        assert {engine for _, engine in dnn.ran} <= {0, 1, 4}
        context = exe.context()  # of another stream, which has plans of its own
        context.write_inputs(list(feeds.values()))
        context.run()
        del context
        dnn.ran.clear()
        exe.run(feeds)
        kinds = sorted(kinds for kinds, _ in dnn.ran)
        assert kinds == [(10, 13, 13), (10, 13, 13, 13), (19,), (25,), (29,)], kinds
        exe.save(folder / "n.intarsia")
        again = intarsia.load(folder / "n.intarsia").run(feeds)
        np.testing.assert_array_equal(again["y"], found["y"])
        with pytest.raises(PlacementError, match="no engine for it on this device"):
            intarsia.compile(
                model, "cudnn -math_type=fma, cuda, llvm", pins={"z": "cudnn"}, cache=False
            )
        # Where all that a heuristic proposes is refused in the end, the next one is asked.
        dnn.refused_engines = {0}
        again = intarsia.load(folder / "n.intarsia")
        dnn.ran.clear()
        np.testing.assert_array_equal(again.run(feeds)["y"], found["y"])
        assert {engine for _, engine in dnn.ran} == {1, 4}
        del exe, again
        gc.collect()
        assert not dnn.made, dnn.made


def damaged_programs():
    """Numbers of tensors and places that a program does not have are errors of the package."""
    view = SimpleNamespace(number=0)
    spec = TensorSpec("x", "float32", (4, 4))
    place = LibraryTensor(LibraryPlace.INPUT, 0)

    def check(executable, program):
        artifact = Artifact("b", "1", "t", b"", inputs=(spec,), outputs=(spec,))
        with pytest.raises(PackageError, match=r"is damaged: .* none|is damaged: tensor 0 is no"):
            executable(artifact, program, view)

    product = LtProduct("y", "float32", 4, 4, 4, 1, 0, 0, 7)
    check(execution.CublasExecutable, LtProgram([place], [product], 0, "default", False, 0))
    outside = DnnTensor("float32", [4], [1], 5)
    graph = DnnGraph("y", [outside], [])
    check(cudnn_execution.CudnnExecutable, DnnProgram([place], [graph], 0, EngineRules()))
    graph = DnnGraph("y", [], [DnnOperation("product", {"A": 3})])
    check(cudnn_execution.CudnnExecutable, DnnProgram([place], [graph], 0, EngineRules()))
    with mock.patch.object(cudnn_execution, "library"):
        for wrong in (
            (LibraryPlace.OUTPUT, 1),
            (LibraryPlace.SCRATCH, 0),
            (LibraryPlace.INPUT, -1),
        ):
            program = DnnProgram([LibraryTensor(*wrong)], [], 0, EngineRules())
            check(cudnn_execution.CudnnExecutable, program)


def main(folder):
    names = tuple(one.name for one in driver._devices())
    tried = TriedDevices(passed=names, failed=())
    with (
        mock.patch.object(driver, "tried_devices", return_value=tried),
        mock.patch.object(backend, "emit_nvptx", emitted),
    ):
        assert backend.BACKEND.detect().devices[1].startswith("cuda:1 stand-in (sm_80, driver 12.9")
        two_devices(folder)
        from_one_to_another()
        products_by_cublas(folder)
        captures.check(stand_in)
        graphs_by_cudnn(folder)
        damaged_programs()
        cutlass_stand_in.check(stand_in, folder)
        with mock.patch.object(runners, "emit_nvptx", emitted):
            test_families.FAMILIES["pad"](runners.run_cuda)
        too_old()
        no_room()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
