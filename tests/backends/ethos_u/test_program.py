# SPDX-License-Identifier: Apache-2.0
"""A region as a step of a C program, built with a stand-in for the driver, and run."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from intarsia.backends.ethos_u.backend import BACKEND, compile_region
from intarsia.codegen.emit.c_program import Tensor, emit_c_program
from intarsia.export import export_c
from intarsia.graph.graph import Graph
from intarsia.graph.load import load
from intarsia.target import Target

pytest.importorskip("ethosu.regor", reason="ethos-u-vela is not installed")
interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

DRIVER = Path(__file__).parent / "driver"
NETWORK = """<ir_version: 9, opset_import: ["": 17]>
net (int8[1, 3, 12, 12] x) => (int8[1, 8, 6, 6] y)
<float s = {0.05}, int8 z = {3}, float t = {0.01}, int8 zero = {0}> {
 [dx] xf = DequantizeLinear(x, s, z)
 [dw] wf = DequantizeLinear(w, t, zero)
 [conv] c = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(xf, wf)
 [relu] r = Relu(c)
 [qc] a = QuantizeLinear(r, s, z)
 [da] af = DequantizeLinear(a, s, z)
 [dv] vf = DequantizeLinear(v, t, zero)
 [conv2] c2 = Conv<pads = [1, 1, 1, 1]>(af, vf)
 [qc2] b = QuantizeLinear(c2, s, z)
 [db] bf = DequantizeLinear(b, s, z)
 [sum] d = Add(af, bf)
 [qd] y = QuantizeLinear(d, s, z) }"""
MAIN = """#include <stdio.h>
#include "net.h"
int main(void)
{
    static int8_t x[NET_INPUT0_COUNT], y[NET_OUTPUT0_COUNT];
    if (fread(x, 1, sizeof x, stdin) != sizeof x || net_run(x, y))
        return 1;
    return fwrite(y, 1, sizeof y, stdout) != sizeof y;
}
"""
KNOWN = """#include "ref.h"
int ethosu_standin_network(uint32_t digest, uint8_t *arena, size_t bytes)
{{
    static int8_t x[{size}];
    size_t i;
    if (digest != {digest}u || bytes != {arena})
        return -1;
    for (i = 0; i < sizeof x; i++)
        x[i] = ((int8_t *)arena)[{source} + i];
    for (i = 0; i < bytes; i++)
        arena[i] = 0x5a; /* what lies elsewhere does not outlive a call */
    return ref_run(x, (int8_t *)arena + {result});
}}
"""


def fnv(content):
    digest = 2166136261
    for byte in content:
        digest = ((digest ^ byte) * 16777619) % 2**32
    return digest


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    model = onnx.parser.parse_model(NETWORK)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (8, 3, 3, 3)), ("v", (8, 8, 3, 3))):
        weights = rng.integers(-99, 99, shape).astype(np.int8)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path, Graph.from_model(load(str(path)))


def build(folder, path, graph, accelerator):
    """Write the program with its region as a driver call, and the stand-in; return the program."""
    target = Target(f"ethos-u -accelerator_config={accelerator}")
    program = BACKEND.c_program(graph.whole, target)
    made = compile_region(graph.whole, accelerator)
    tensors = [
        tuple(Tensor(graph.values[i].name, "int8", graph.values[i].shape) for i in side)
        for side in (graph.inputs, graph.outputs)
    ]
    sources = emit_c_program("net", program, *tensors)
    (folder / "net.c").write_text(sources.source)
    (folder / "net.h").write_text(sources.header)
    assert not sources.weights
    export_c(path, folder, "c -requantise=tflite", name="ref")
    known = KNOWN.format(
        size=made.inputs[0][1], source=made.inputs[0][0], result=made.outputs[0][0],
        digest=fnv(made.commands), arena=made.arena_bytes,
    )  # fmt: skip
    (folder / "known.c").write_text(known)
    (folder / "main.c").write_text(MAIN)
    binary = folder / "net"
    subprocess.run(
        ["gcc", "-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{DRIVER}", "-o", binary,
         *(folder / name for name in ("net.c", "ref.c", "known.c", "main.c")),
         DRIVER / "ethosu_standin.c", "-lm"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return sources, binary, made


@needs_gcc
@pytest.mark.parametrize(
    "accelerator", ["ethos-u55-128", pytest.param("ethos-u65-512", marks=pytest.mark.exhaustive)]
)
def test_a_program_calls_the_driver(graph, tmp_path, accelerator):
    path, snapshot = graph
    sources, binary, made = build(tmp_path, path, snapshot, accelerator)
    assert sources.source.count("ethosu_invoke_v3(") == 1
    x = np.random.default_rng(1).integers(-128, 128, (1, 3, 12, 12)).astype(np.int8)
    done = subprocess.run([binary], input=x.tobytes(), capture_output=True, check=True)
    got = np.frombuffer(done.stdout, np.int8)
    reference = interpreter.OpResolverType.BUILTIN_REF
    run = interpreter.Interpreter(
        model_content=made.network, experimental_op_resolver_type=reference
    )
    run.allocate_tensors()
    run.set_tensor(run.get_input_details()[0]["index"], x)
    run.invoke()
    expected = run.get_tensor(run.get_output_details()[0]["index"])
    assert len(np.unique(expected)) > 50
    np.testing.assert_array_equal(got, expected.reshape(-1))


@needs_gcc
@pytest.mark.exhaustive
def test_a_driver_that_fails_is_told(graph, tmp_path):
    path, snapshot = graph
    _, binary, made = build(tmp_path, path, snapshot, "ethos-u55-128")
    known = tmp_path / "known.c"
    known.write_text(known.read_text().replace(str(fnv(made.commands)), "1"))
    subprocess.run(
        ["gcc", "-std=c99", f"-I{DRIVER}", "-o", binary,
         *(tmp_path / name for name in ("net.c", "ref.c", "known.c", "main.c")),
         DRIVER / "ethosu_standin.c", "-lm"], check=True,
    )  # fmt: skip
    done = subprocess.run([binary], input=bytes(432), capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stdout == b""


@needs_gcc
def test_one_program_of_the_processor_and_plain_c(graph, tmp_path):
    path, snapshot = graph
    inner = onnx.load(path)
    text = (
        '<ir_version: 9, opset_import: ["": 17]> net (float[1, 3, 12, 12] data) =>'
        " (float[1, 8, 6, 6] out) <float s = {0.05}, int8 z = {3}> {"
        " [quantise] x = QuantizeLinear(data, s, z) [last] yf = DequantizeLinear(y, s, z)"
        " [tanh] out = Tanh(yf) }"
    )
    model = onnx.parser.parse_model(text)
    nodes = [model.graph.node[0], *inner.graph.node, *model.graph.node[1:]]
    names = {item.name for item in model.graph.initializer}
    model.graph.initializer.extend(i for i in inner.graph.initializer if i.name not in names)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    mixed = tmp_path / "mixed.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model), mixed)
    target = "ethos-u -accelerator_config=ethos-u55-128, c -mcpu=cortex-m55"
    build(tmp_path, path, snapshot, "ethos-u55-128")  # the stand-in's network
    written = export_c(mixed, tmp_path, target, name="net")
    assert {file.name for file in written} == {"net.c", "net.h"}
    assert (tmp_path / "net.c").read_text().count("ethosu_invoke_v3(") == 1
    main = (tmp_path / "main.c").read_text().replace("static int8_t x", "static float x")
    main = main.replace(", y[NET", "; static float y[NET").replace("1, sizeof x", "4, sizeof x / 4")
    main = main.replace("!= sizeof x ", "!= sizeof x / 4 ").replace(
        "1, sizeof y", "4, sizeof y / 4"
    )
    (tmp_path / "main.c").write_text(main.replace("!= sizeof y;", "!= sizeof y / 4;"))
    binary = tmp_path / "mixed"
    subprocess.run(
        ["gcc", "-std=c99", "-O1", f"-I{DRIVER}", "-o", binary,
         *(tmp_path / name for name in ("net.c", "ref.c", "known.c", "main.c")),
         DRIVER / "ethosu_standin.c", "-lm"], check=True,
    )  # fmt: skip
    data = np.random.default_rng(2).normal(0, 2, (1, 3, 12, 12)).astype(np.float32)
    done = subprocess.run([binary], input=data.tobytes(), capture_output=True, check=True)
    got = np.frombuffer(done.stdout, np.float32).reshape(1, 8, 6, 6)
    session = onnxruntime.InferenceSession(mixed)
    (expected,) = session.run(None, {"data": data})
    assert np.abs(np.arctanh(got) - np.arctanh(expected)).max() <= 2 * 0.0501  # two steps
    assert np.mean(np.abs(got - expected) > 1e-3) < 0.2
