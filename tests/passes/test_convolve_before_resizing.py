# SPDX-License-Identifier: Apache-2.0
"""Pointwise convolutions come before resizes: the same numbers from fewer pixels."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import intarsia
from intarsia.graph.annotate import on_device
from intarsia.graph.load import load
from intarsia.passes.prepare import prepare

SMALL = {"a": (2, 24, 4, 5), "b": (2, 40, 8, 10)}
RESULT = (2, 16, 8, 10)


def resized(name, size=(8, 10), channels=24, by="sizes", **attributes):
    """Return a resize of `name` to `name`_big, and its constants."""
    extents = (2, channels, *size)
    if "axes" in attributes:
        extents = tuple(extents[axis] for axis in attributes["axes"])
    array = np.array(extents, np.int64)
    if by == "scales":
        array = np.array([1, 1, 2, 2], np.float32)
    inputs = [name, "", "", f"{name}_to"] if by == "sizes" else [name, "", f"{name}_to"]
    attributes = {"mode": "linear", **attributes}
    return helper.make_node(
        "Resize", inputs, [f"{name}_big"], name=f"resize_{name}", **attributes
    ), {f"{name}_to": array}


def head(nodes, constants, source, channels, *, bias=True, outputs=(), **attributes):
    """Return a model that ends in a convolution to 16 channels and a Relu."""
    rng = np.random.default_rng(0)
    arrays = {
        "conv.weight": rng.standard_normal((16, channels, 1, 1)).astype(np.float32),
        **constants,
    }
    if bias:
        arrays["bias"] = rng.standard_normal(16).astype(np.float32)
    reads = [source, "conv.weight", *["bias"] * bias]
    nodes = [
        *nodes,
        helper.make_node("Conv", reads, ["c"], name="conv", **attributes),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "head",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in SMALL.items()],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs),
        ],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def joined(order=("a_big", "b"), **options):
    node, constants = resized("a")
    concat = helper.make_node("Concat", list(order), ["j"], name="concat", axis=1)
    return head([node, concat], constants, "j", 64, **options)


def check(model, devices=None):
    """Prepare a model, compare its numbers, and return the shapes that convolutions read."""
    prepared = prepare(load(on_device(model, devices or {})))
    rng = np.random.default_rng(1)
    feeds = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SMALL.items()}
    feeds = {value.name: feeds[value.name] for value in prepared.model.graph.inputs}

    def run(proto):
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return session.run(None, feeds)

    after = ir.to_proto(prepared.model)
    onnx.checker.check_model(after, full_check=True)
    for got, want in zip(run(after), run(model), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    graph = prepared.graph
    convolutions = [node for node in graph.nodes if node.op_type == "Conv"]
    assert all("conv" in node.origins for node in convolutions)
    return [graph.values[node.inputs[0]].shape for node in convolutions]


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "pytorch_half_pixel"])
def test_a_convolution_of_resized_pixels_comes_first(mode, coordinates):
    node, constants = resized("a", mode=mode, coordinate_transformation_mode=coordinates)
    assert check(head([node], constants, "a_big", 24)) == [(2, 24, 4, 5)]


@pytest.mark.parametrize("options", [{"by": "scales"}, {"axes": (2, 3)}, {"axes": (-3, 2, 3)}])
def test_sizes_and_scales_are_those_of_the_new_channels(options):
    node, constants = resized("a", **options)
    assert check(head([node], constants, "a_big", 24, bias=False)) == [(2, 24, 4, 5)]


@pytest.mark.parametrize("order", [("a_big", "b"), ("b", "a_big")])
@pytest.mark.parametrize("bias", [True, False])
def test_what_is_joined_is_convolved_part_by_part(order, bias):
    assert check(joined(order, bias=bias)) == [(2, 40, 8, 10), (2, 24, 4, 5)]


def test_several_resizes_are_added():
    first, constants = resized("a", (16, 20))
    second, more = resized("b", (16, 20), 40, mode="nearest")
    concat = helper.make_node("Concat", ["a_big", "b_big", "a_big2"], ["j"], name="concat", axis=1)
    third = helper.make_node("Relu", ["a_big3"], ["a_big2"], name="another")
    fourth = helper.make_node("Resize", ["a", "", "", "a_to"], ["a_big3"], name="fourth")
    model = head([first, second, fourth, third, concat], constants | more, "j", 88)
    assert check(model) == [(2, 24, 16, 20), (2, 24, 4, 5), (2, 40, 8, 10)]


def test_a_resize_to_the_same_size_goes():
    node, constants = resized("b", channels=40)
    prepared = prepare(load(head([node], constants, "b_big", 40)))
    assert [node.op_type for node in prepared.graph.nodes] == ["Conv", "Relu"]


def test_a_resize_by_a_scale_near_one_stays():
    constants = {"to": np.array([1, 1, 1.04, 1.04], np.float32)}
    node = helper.make_node("Resize", ["b", "", "to"], ["b_big"], name="resize", mode="linear")
    model = head([node], constants, "b_big", 40)
    prepared = prepare(load(model))
    assert [node.op_type for node in prepared.graph.nodes] == ["Resize", "Conv", "Relu"]
    assert check(model) == [(2, 40, 8, 10)]


def test_a_resized_value_that_others_see_is_made_first():
    node, constants = resized("a")
    assert check(head([node], constants, "a_big", 24, outputs=("a_big",))) == [(2, 24, 8, 10)]


def test_a_joined_value_that_others_see_is_made_first():
    assert check(joined(outputs=("j",))) == [(2, 64, 8, 10)]


@pytest.mark.parametrize("device", ["conv", "resize_a", "concat"])
def test_nodes_for_different_devices_stay_apart(device):
    shapes = check(joined(), {device: "llvm"})
    assert shapes == [(2, 64, 8, 10)]


@pytest.mark.parametrize(
    "attributes", [{"pads": [1, 1, 1, 1]}, {"strides": [2, 2]}], ids=["pads", "strides"]
)
def test_a_convolution_that_moves_over_pixels_stays(attributes):
    node, constants = resized("a")
    assert check(head([node], constants, "a_big", 24, **attributes)) == [(2, 24, 8, 10)]


def test_little_growth_is_not_worth_it():
    node, constants = resized("a", (6, 6))
    assert check(head([node], constants, "a_big", 24)) == [(2, 24, 6, 6)]


def test_names_that_are_taken_are_not_given_twice():
    node, constants = resized("a")
    model = head([node], constants, "a_big", 24)
    model.graph.node[-1].name = "conv.conv0"
    assert check(model) == [(2, 24, 8, 10)]


def test_a_program_runs_the_fewer_pixels():
    model = joined()
    feeds = {
        n: np.random.default_rng(2).standard_normal(s, dtype=np.float32) for n, s in SMALL.items()
    }
    program = intarsia.compile(model, target="llvm")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (want,) = session.run(None, feeds)
    np.testing.assert_allclose(program.run(feeds)["y"], want, rtol=2e-5, atol=2e-5)
