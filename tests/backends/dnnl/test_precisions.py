# SPDX-License-Identifier: Apache-2.0
"""bfloat16 and float16: inside a region of float32, and as the model's own types.

The tolerance is in units of the type's rounding: a network of a few layers may be some roundings
from the float32 numbers, relative to the largest of them.
"""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import intarsia
from intarsia import zoo

EPSILON = {"bf16": 2.0**-8, "f16": 2.0**-11}
MODEL_TYPES = {
    "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
    "f16": (TensorProto.FLOAT16, np.float16),
}


@pytest.fixture(params=["bf16", "f16"])
def precision(request, library):
    """A precision, or a skip where this CPU has no instructions for it."""
    if request.param not in library.precisions:
        pytest.skip(f"this CPU has no fast {request.param}")
    return request.param


def block(element=TensorProto.FLOAT, dtype=np.float32):
    """Return a small network: convolutions, a residual sum, poolings, a product, softmax."""
    rng = np.random.default_rng(0)

    def constant(name, *shape, scale=0.1):
        array = (rng.standard_normal(shape) * scale).astype(np.float32)
        return numpy_helper.from_array(array.astype(dtype), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], "c0", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"], "r0"),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], "c1", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c1", "r0"], ["a"], "a"),
        helper.make_node("Sigmoid", ["a"], ["s"], "s"),
        helper.make_node("MaxPool", ["s"], ["p"], "p", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"], "g"),
        helper.make_node("Flatten", ["g"], ["f"], "f"),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["y"], "y", transB=1),
    ]
    constants = [
        *(constant("w0", 32, 5, 3, 3), constant("b0", 32), constant("w1", 32, 32, 3, 3)),
        *(constant("w2", 10, 32), constant("b2", 10)),
    ]
    inputs = [helper.make_tensor_value_info("x", element, [2, 5, 12, 11])]
    outputs = [helper.make_tensor_value_info("y", element, [2, 10])]
    graph = helper.make_graph(nodes, "block", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 22)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def error(actual, expected):
    """Return the largest difference relative to the largest number."""
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    return difference.max() / np.abs(expected).max()


def test_a_block_is_as_exact_as_the_type(precision, peer):
    model = block()
    x = np.random.default_rng(1).standard_normal((2, 5, 12, 11)).astype(np.float32)
    exe = intarsia.compile(model, f"dnnl -precision={precision}, reference", num_threads=1)
    assert exe.placement.coverage()["reference"] == 0
    (expected,) = peer(model, {"x": x}).values()
    (actual,) = exe.run({"x": x}).values()
    assert actual.dtype == np.float32
    assert 0 < error(actual, expected) < 4 * EPSILON[precision]
    dtypes = {
        argument.form.layout.dtype.name
        for step in exe._executables[0].assembly.steps
        for argument in step.arguments
    }
    assert precision.upper() in dtypes


def test_a_models_own_type(precision, peer):
    element, dtype = MODEL_TYPES[precision]
    model = block(element, dtype)
    x = np.random.default_rng(1).standard_normal((2, 5, 12, 11)).astype(dtype)
    exe = intarsia.compile(model, "dnnl, reference", num_threads=1)
    assert exe.placement.coverage()["reference"] == 0
    plain = block()
    for own, tensor in zip(plain.graph.initializer, model.graph.initializer, strict=True):
        array = numpy_helper.to_array(tensor).astype(np.float32)
        own.CopyFrom(numpy_helper.from_array(array, tensor.name))
    (expected,) = peer(plain, {"x": x.astype(np.float32)}).values()
    (actual,) = exe.run({"x": x}).values()
    assert actual.dtype == dtype
    assert 0 < error(actual, expected) < 4 * EPSILON[precision]


@pytest.mark.parametrize("back", [False, True])
def test_casts(precision, back):
    element, dtype = MODEL_TYPES[precision]
    kinds = (element, TensorProto.FLOAT) if back else (TensorProto.FLOAT, element)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=kinds[1])],
        *("cast", [helper.make_tensor_value_info("x", kinds[0], [3, 5])]),
        [helper.make_tensor_value_info("y", kinds[1], [3, 5])],
    )
    opsets = [helper.make_opsetid("", 19)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    exe = intarsia.compile(model, "dnnl, reference", num_threads=1)
    assert exe.placement.coverage()["reference"] == 0
    x = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    given, wanted = (x.astype(dtype), np.float32) if back else (x, dtype)
    (actual,) = exe.run({"x": given}).values()
    assert actual.dtype == wanted
    np.testing.assert_array_equal(actual, given.astype(wanted))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["alexnet", "squeezenet"])
def test_a_network_in_lower_precision(precision, peer, random_feeds, name):
    """Random weights amplify roundings; all of them do some times what the input's alone does."""
    model = zoo.build(name)
    feeds = random_feeds(model)
    exe = intarsia.compile(model, f"dnnl -precision={precision}, onnxruntime", num_threads=2)
    assert exe.placement.coverage()["onnxruntime"] == 0
    _, dtype = MODEL_TYPES[precision]
    rounded = {key: array.astype(dtype).astype(np.float32) for key, array in feeds.items()}
    inputs_only = peer(model, rounded)
    for output, expected in peer(model, feeds).items():
        bound = 8 * error(inputs_only[output], expected)
        assert error(exe.run(feeds)[output], expected) < bound


def test_a_precision_without_instructions_is_refused(library, monkeypatch):
    monkeypatch.setattr(type(library), "precisions", property(lambda _: ("f32",)))
    exe = intarsia.compile(block(), "dnnl -precision=bf16, reference", num_threads=1)
    assert exe.placement.coverage()["dnnl -precision=bf16"] == 0
    assert "no fast bf16" in exe.placement.refusals[0].reason


def test_what_has_no_kernel_of_halves_goes_to_the_next_target(parse_model, backends):
    model = parse_model("g (float16[3] x) => (float16[3] y) { y = Round(x) }")
    program = intarsia.compile(model, "dnnl, llvm", num_threads=1, backends=backends)
    x = np.array([0.5, 1.5, -2.4], np.float16)
    np.testing.assert_array_equal(program.run({"x": x})["y"], np.round(x))
