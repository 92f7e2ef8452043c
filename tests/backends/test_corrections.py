# SPDX-License-Identifier: Apache-2.0
"""The reference evaluator with what it gets wrong put right, against independent computations."""

import itertools
import math

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference

from intarsia.backends import corrections
from intarsia.backends.evaluator import make_evaluator

OPSET = 19


def built(op_type, x, attributes, outputs=1, inputs=(), opset=OPSET):
    names = [f"i{i}" if value is not None else "" for i, value in enumerate(inputs)]
    node = helper.make_node(op_type, ["x", *names], [f"y{i}" for i in range(outputs)], **attributes)
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", element, x.shape)],
        [
            helper.make_tensor_value_info(name, element if i == 0 else TensorProto.INT64, None)
            for i, name in enumerate(node.output)
        ],
        [
            numpy_helper.from_array(value, name)
            for name, value in zip(names, inputs, strict=True)
            if value is not None
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def by_onnx_runtime(model, x):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})


def by_evaluator(model, x):
    with np.errstate(all="ignore"):
        return make_evaluator(model).run(None, {"x": x})


def inferred(model):
    """Return the shape of the output that ONNX infers."""
    made = shape_inference.infer_shapes(model, strict_mode=True)
    return [dim.dim_value for dim in made.graph.output[0].type.tensor_type.shape.dim]


def explicit(attributes, model, x):
    """Return attributes with the pads that `auto_pad` stands for, given ONNX's own shape."""
    pads = []
    for dim, out in enumerate(inferred(model)[2:]):
        reach = (attributes["kernel_shape"][dim] - 1) * attributes["dilations"][dim] + 1
        pads.append(max(0, (out - 1) * attributes["strides"][dim] + reach - x.shape[2 + dim]))
    less, more = [total // 2 for total in pads], [total - total // 2 for total in pads]
    ends = [less, more] if attributes["auto_pad"] == "SAME_UPPER" else [more, less]
    kept = {name: value for name, value in attributes.items() if name != "auto_pad"}
    return {**kept, "pads": [*ends[0], *ends[1]], "ceil_mode": 0}


POOLS = (
    ("MaxPool", 1, {}),
    ("MaxPool", 2, {}),
    ("MaxPool", 2, {"storage_order": 1}),
    ("AveragePool", 1, {}),
    ("AveragePool", 1, {"count_include_pad": 1}),
    ("LpPool", 1, {"p": 3}),
)


@pytest.mark.parametrize(("op_type", "outputs", "own"), POOLS)
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
def test_pools_see_the_windows_that_shape_inference_counts(op_type, outputs, own, auto_pad):
    """With strides longer than the kernel, dilated, padded by itself: every combination."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 7, 6)).astype(np.float32)
    compared = 0
    turns = itertools.product((1, 2, 3), (1, 2, 3), (1, 2), (0, 1))
    for kernel, stride, dilation, ceil_mode in turns:
        attributes = {
            **own,
            "kernel_shape": [kernel, 2],
            "strides": [stride, 1],
            "dilations": [dilation, 2],
            "auto_pad": auto_pad,
            "ceil_mode": ceil_mode,
        }
        if auto_pad == "NOTSET":
            attributes["pads"] = [(kernel - 1) // 2, 1, 0, 0]
        if ceil_mode and op_type != "MaxPool":
            continue  # ONNX Runtime takes what ceil_mode adds for padding, or fails
        model = built(op_type, x, attributes, outputs)
        found = by_evaluator(model, x)
        assert list(found[0].shape) == inferred(model)
        if auto_pad.startswith("SAME"):  # ONNX Runtime forgets dilations there
            plain = explicit(attributes, model, x)
            wanted = by_onnx_runtime(built(op_type, x, plain, outputs), x)
        else:
            wanted = by_onnx_runtime(model, x)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-6)
        compared += 1
    assert compared >= 18


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 2), (2, 3, 1)])
@pytest.mark.parametrize("op_type", ["GlobalMaxPool", "GlobalAveragePool"])
def test_global_pools_take_all_axes_but_the_first_two(op_type, shape):
    x = np.random.default_rng(0).random(shape, np.float32)
    model = built(op_type, x, {})
    (found,) = by_evaluator(model, x)
    assert list(found.shape) == inferred(model)
    if len(shape) > 2:  # ONNX Runtime takes no others
        np.testing.assert_allclose(found, by_onnx_runtime(model, x)[0], rtol=2e-6)


def test_what_ceil_mode_adds_is_no_padding_that_is_counted():
    x = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5)
    attributes = {"kernel_shape": [3], "strides": [2], "ceil_mode": 1, "pads": [1, 0]}
    wanted = {0: [1.5, 3, 4.5], 1: [1, 3, 4.5]}  # (1+2)/2 or (0+1+2)/3, (2+3+4)/3, (4+5)/2
    for flag, numbers in wanted.items():
        model = built("AveragePool", x, {**attributes, "count_include_pad": flag})
        np.testing.assert_array_equal(by_evaluator(model, x)[0].ravel(), numbers)


@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool"])
def test_sums_of_halves_do_not_overflow(op_type):
    x = np.full((1, 1, 4), 60000, np.float16)
    attributes = {"kernel_shape": [4]} | ({"p": 1} if op_type == "LpPool" else {})
    (found,) = by_evaluator(built(op_type, x, attributes), x)
    np.testing.assert_array_equal(found, np.float16(60000 if op_type == "AveragePool" else np.inf))
    (found,) = by_evaluator(built("LpPool", x / 60, {"kernel_shape": [4], "p": 3}), x / 60)
    np.testing.assert_allclose(found.item(), 1000 * 4 ** (1 / 3), rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_the_largest_of_padding_alone_is_the_least_number(dtype):
    x = np.ones((1, 1, 1), dtype)
    attributes = {"kernel_shape": [2], "dilations": [2], "pads": [1, 1]}
    least = np.iinfo(dtype).min if dtype == "int8" else -np.inf
    found = by_evaluator(built("MaxPool", x, attributes), x)[0]
    assert found.dtype == dtype
    assert found.item() == least


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "uint8"])
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_neighbours_are_picked_and_not_multiplied(dtype, rounding):
    """By 0, NaN and infinities beside an element would become NaN in it."""
    x = np.arange(24).reshape(1, 2, 4, 3).astype(dtype)
    if np.dtype(dtype).kind == "f":
        x.ravel()[3:9] = [np.inf, -np.inf, np.nan, np.finfo(dtype).max, np.finfo(dtype).min, -0.0]
    scales = np.array([1, 1, 2, 1.5], np.float32)
    attributes = {"mode": "nearest", "nearest_mode": rounding}
    attributes["coordinate_transformation_mode"] = "asymmetric"
    found = by_evaluator(built("Resize", x, attributes, inputs=(None, scales)), x)[0]
    at = [np.arange(8) / 2, np.arange(4) / 1.5]
    half = {"round_prefer_floor": lambda v: np.ceil(v - 0.5)}
    half |= {"round_prefer_ceil": lambda v: np.floor(v + 0.5), "floor": np.floor, "ceil": np.ceil}
    rows, columns = (
        np.clip(half[rounding](place), 0, extent - 1).astype(int)
        for place, extent in zip(at, (4, 3), strict=True)
    )
    np.testing.assert_array_equal(found, x[:, :, rows][..., columns])


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_infinities_stay_infinite_between_neighbours(dtype):
    x = np.array([[[1, np.inf, np.inf, -np.inf, -np.inf]]], dtype)
    scales = np.array([1, 1, 2], np.float32)
    found = by_evaluator(built("Resize", x, {"mode": "linear"}, inputs=(None, scales)), x)[0]
    wanted = [1, np.inf, np.inf, np.inf, np.inf, np.nan, np.nan, -np.inf, -np.inf, -np.inf]
    np.testing.assert_array_equal(found.ravel(), np.array(wanted, dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_erf_is_that_of_c_rounded(dtype):
    rng = np.random.default_rng(0)
    few = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, 5.99, -6, 6.01, 1 / 2048, 3 / 2048, 1e-7]
    x = np.concatenate([few, rng.uniform(-6.5, 6.5, 20000), 10.0 ** rng.uniform(-7, 0, 2000)])
    x = x.astype(dtype)
    found = by_evaluator(built("Erf", x, {}, opset=13), x)[0]
    wanted = np.array([math.erf(v) for v in x.tolist()])
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, wanted.astype(dtype))
    assert np.signbit(found[1])
    if dtype == "float32":  # what is rounded, before it is
        exact = corrections._erf_by_table(x.astype(np.float64))
        np.testing.assert_allclose(exact, wanted, rtol=1e-14, atol=0)
        scalar = np.array(0.5, dtype)
        assert by_evaluator(built("Erf", scalar, {}, opset=13), scalar)[0].shape == ()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_as_exact_as_its_type(dtype, approximate):
    x = np.linspace(-3, 3, 41).astype(dtype)
    found = by_evaluator(built("Gelu", x, {"approximate": approximate}, opset=20), x)[0]

    def gelu(v):
        if approximate == "tanh":
            return v / 2 * (1 + math.tanh((2 / math.pi) ** 0.5 * (v + 0.044715 * v**3)))
        return v / 2 * math.erfc(-v / 2**0.5)

    wanted = np.array([gelu(float(v)) for v in x])
    assert found.dtype == dtype
    np.testing.assert_allclose(found, wanted, rtol=0, atol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("axis", [-3, -1, 0, 1, 2])
def test_log_softmax_of_numbers_far_apart_is_finite_and_leaves_its_input(axis):
    x = np.array([[[0, -200, 3], [1, 88, -88]]], np.float32)
    model = built("LogSoftmax", x, {"axis": axis})
    x.setflags(write=False)
    np.testing.assert_allclose(by_evaluator(model, x)[0], by_onnx_runtime(model, x)[0], rtol=1e-6)
    empty = np.zeros((2, 0, 3), np.float32)
    empty.setflags(write=False)
    assert by_evaluator(built("LogSoftmax", empty, {"axis": axis}), empty)[0].shape == (2, 0, 3)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3)])
def test_a_loop_stacks_what_its_turns_make(shape):
    text = f"""<ir_version: 9, opset_import: ["": 17]>
    g (float[{",".join(map(str, shape))}] x) => (float last, float all)
    <int64 turns = {{3}}, bool go = {{1}}> {{
        last, all = Loop<body = b (int64 i, bool c, float[{",".join(map(str, shape))}] s) =>
            (bool on, float[{",".join(map(str, shape))}] t, float[{",".join(map(str, shape))}] seen)
            {{ on = Identity(c) t = Add(s, x) seen = Neg(t) }}>(turns, go, x)
    }}"""
    text = text.replace("float[]", "float")
    model = onnx.parser.parse_model(text)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found, wanted = by_evaluator(model, x), by_onnx_runtime(model, x)
    for one, other in zip(found, wanted, strict=True):
        assert np.shape(one) == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-6)
