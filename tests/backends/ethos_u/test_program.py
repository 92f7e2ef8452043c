# SPDX-License-Identifier: Apache-2.0
"""A region as a step of a C program, built with a stand-in for the driver, and run."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from intarsia.backends.ethos_u.backend import compile_region
from intarsia.export import export_c
from intarsia.graph.graph import Graph
from intarsia.graph.load import load

pytest.importorskip("ethosu.regor", reason="ethos-u-vela is not installed")
interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

DRIVER = Path(__file__).parent / "driver"
_SPEC = importlib.util.spec_from_file_location("networks", DRIVER / "networks.py")
networks = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(networks)
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


def build(folder, path, target):
    """Write and build the program of a model with the stand-in for its processor."""
    source, _ = export_c(path, folder, target, name="net")
    made, _ = networks.write_networks(path, target, folder)
    (folder / "main.c").write_text(MAIN)
    return source, link(folder, source, *made)


def link(folder, *sources):
    binary = folder / "net"
    subprocess.run(
        ["gcc", "-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{DRIVER}", "-o", binary,
         *sources, folder / "main.c", DRIVER / "ethosu_standin.c", "-lm"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return binary


@needs_gcc
@pytest.mark.parametrize(
    "accelerator", ["ethos-u55-128", pytest.param("ethos-u65-512", marks=pytest.mark.exhaustive)]
)
def test_a_program_calls_the_driver(graph, tmp_path, accelerator):
    path, snapshot = graph
    target = f"ethos-u -accelerator_config={accelerator}, c"
    source, binary = build(tmp_path, path, target)
    made = compile_region(snapshot.whole, accelerator)
    assert source.read_text().count("ethosu_invoke_v3(") == 1
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
    target = "ethos-u -accelerator_config=ethos-u55-128, c"
    source, _ = build(tmp_path, path, target)
    made = compile_region(snapshot.whole, "ethos-u55-128")
    known = tmp_path / "known.c"
    known.write_text(known.read_text().replace(str(networks.digest_of(made.commands)), "1"))
    binary = link(tmp_path, source, known, tmp_path / "npu0.c")
    done = subprocess.run([binary], input=bytes(432), capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stdout == b""


@needs_gcc
def test_one_program_of_the_processor_and_plain_c(graph, tmp_path):
    path, _ = graph
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
    source, _ = export_c(mixed, tmp_path, target, name="net")
    made, _ = networks.write_networks(mixed, target, tmp_path)
    assert source.read_text().count("ethosu_invoke_v3(") == 1
    main = MAIN.replace("static int8_t x", "static float x").replace(
        ", y[NET", "; static float y[NET"
    )
    main = main.replace("1, sizeof x", "4, sizeof x / 4").replace(
        "!= sizeof x ", "!= sizeof x / 4 "
    )
    main = main.replace("1, sizeof y", "4, sizeof y / 4").replace(
        "!= sizeof y;", "!= sizeof y / 4;"
    )
    (tmp_path / "main.c").write_text(main)
    binary = link(tmp_path, source, *made)
    data = np.random.default_rng(2).normal(0, 2, (1, 3, 12, 12)).astype(np.float32)
    done = subprocess.run([binary], input=data.tobytes(), capture_output=True, check=True)
    got = np.frombuffer(done.stdout, np.float32).reshape(1, 8, 6, 6)
    session = onnxruntime.InferenceSession(mixed)
    (expected,) = session.run(None, {"data": data})
    assert np.abs(np.arctanh(got) - np.arctanh(expected)).max() <= 2 * 0.0501  # two steps
    assert np.mean(np.abs(got - expected) > 1e-3) < 0.2
