# SPDX-License-Identifier: Apache-2.0
"""Native code whose results are as long as the data says, against ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import intarsia


def compare(node, inputs, constants=(), free=()):
    """Run one node natively on several inputs.

    Args:
        node: Its output is `y`.
        inputs: Lists of arrays by name.
        constants: By name, inputs that are known when compiling.
        free: Inputs whose first dimension is free.
    """
    declared = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(arrays[0].dtype),
            (["n"] if name in free else [arrays[0].shape[0]]) + list(arrays[0].shape[1:]),
        )
        for name, arrays in inputs.items()
    ]
    first = inputs[node.input[0]][0]
    kind = TensorProto.INT64
    if node.op_type == "Compress":
        kind = helper.np_dtype_to_tensor_dtype(first.dtype)
    result = helper.make_tensor_value_info("y", kind, None)
    held = [numpy_helper.from_array(array, name) for name, array in dict(constants).items()]
    graph = helper.make_graph([node], "g", declared, [result], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    exe = intarsia.compile(model, target="llvm", cache=False)
    program = exe.generic if free else exe
    assert {region.backend for region in program.placement.regions} == {"llvm"}
    peer = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for arrays in zip(*inputs.values(), strict=True):
        feeds = dict(zip(inputs, arrays, strict=True))
        (expected,) = peer.run(None, feeds)
        actual = exe.run(feeds)["y"]
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", ["bool", "float32", "int64", "uint8"])
def test_places_of_what_is_not_zero(dtype):
    rng = np.random.default_rng(1)
    shares = (0, 0.02, 0.5, 1)
    arrays = [(rng.random((5, 7, 9)) < share).astype(dtype) for share in shares]
    if dtype == "float32":
        arrays.append(np.where(arrays[2] > 0, np.float32(np.nan), np.float32(-0.0)))
    compare(helper.make_node("NonZero", ["x"], ["y"]), {"x": arrays})


def test_places_in_a_vector_of_any_length():
    rng = np.random.default_rng(2)
    arrays = [(rng.random(count) < 0.3).astype(np.int32) for count in (1, 2, 31, 64, 100)]
    compare(helper.make_node("NonZero", ["x"], ["y"]), {"x": arrays}, free=("x",))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_slices_that_a_condition_keeps(axis):
    rng = np.random.default_rng(3)
    attributes = {} if axis is None else {"axis": axis}
    node = helper.make_node("Compress", ["x", "c"], ["y"], **attributes)
    x = [rng.standard_normal((4, 6, 19)).astype(np.float32) for _ in range(4)]
    # A condition may be shorter than the dimension.
    length = {None: 300, 0: 4, 1: 5, -1: 19}[axis]
    conditions = [rng.random(length) < share for share in (0, 0.3, 0.7, 1)]
    compare(node, {"x": x, "c": conditions})


CASES = {
    "few": (1, 1, 33, 5, 0.5, 0.2, 0),
    "no threshold": (2, 3, 20, 50, 0.3, None, 0),
    "centred": (1, 2, 40, 7, 0.4, 0.5, 1),
    "none wanted": (1, 2, 16, 0, 0.4, 0.5, 0),
    "no overlap allowed": (1, 1, 50, 50, 0.0, 0.1, 0),
}


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_boxes_that_are_not_suppressed(name, is_constant):
    images, classes, count, most, overlap, threshold, centred = CASES[name]
    rng = np.random.default_rng(4)
    boxes, scores = [], []
    for digits in (7, 1, 7, 7):  # with one digit, many scores are equal
        corner = rng.random((images, count, 2)) * 3
        sizes = rng.random((images, count, 2)) - (0.1 if digits == 1 else 0)  # flipped corners
        other = sizes if centred else corner + sizes
        boxes.append(np.concatenate([corner, other], -1).astype(np.float32))
        scores.append(np.round(rng.random((images, classes, count)), digits).astype(np.float32))
    scores[-1][...] = 0
    parameters = {"most": np.array([most]), "overlap": np.array([overlap], np.float32)}
    if threshold is not None:
        parameters["least"] = np.array([threshold], np.float32)
    node = helper.make_node(
        "NonMaxSuppression", ["b", "s", *parameters], ["y"], center_point_box=centred
    )
    inputs = {"b": boxes, "s": scores}
    if is_constant:
        compare(node, inputs, parameters)
    else:
        compare(node, {**inputs, **{k: [v] * len(boxes) for k, v in parameters.items()}})


def test_boxes_of_any_number_of_images():
    rng = np.random.default_rng(5)
    boxes = [rng.random((images, 12, 4)).astype(np.float32) for images in (1, 3, 2)]
    scores = [rng.random((images, 2, 12)).astype(np.float32) for images in (1, 3, 2)]
    node = helper.make_node("NonMaxSuppression", ["b", "s", "most", "overlap", "least"], ["y"])
    parameters = {
        "most": np.array([4]),
        "overlap": np.array([0.3], np.float32),
        "least": np.array([0.4], np.float32),
    }
    compare(node, {"b": boxes, "s": scores}, parameters, free=("b", "s"))


def test_a_scalar_has_no_places_here():
    graph = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float x) => (int64[1,n] y) { y = NonZero(x) }'
    )
    exe = intarsia.compile(graph, target="llvm, onnxruntime", cache=False)
    (refusal,) = [one for one in exe.placement.refusals if one.op_type == "NonZero"]
    assert "scalar" in refusal.reason
