# SPDX-License-Identifier: Apache-2.0
"""Unique as native code: distinct entries and slices, where they are first, and how often."""

import numpy as np
import pytest
from onnx import helper

import intarsia

OUTPUTS = ("y", "first", "inverse", "count")


def make(dtype, shape, outputs=OUTPUTS, **attributes):
    axis = attributes.get("axis")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("Unique", ["x"], list(outputs), "unique", **attributes)
    ranks = [1 if axis is None else len(shape), 1, 1, 1]
    results = [
        helper.make_tensor_value_info(name, kind if name == "y" else 7, [None] * rank)
        for name, rank in zip(outputs, ranks, strict=False)
        if name
    ]
    x = helper.make_tensor_value_info("x", kind, shape)
    graph = helper.make_graph([node], "distinct", [x], results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def expected(x, axis, is_sorted):
    """What numpy says; the evaluator takes no slices where nothing is sorted."""
    y, first, inverse, count = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not is_sorted:
        order = np.argsort(first)
        rank = np.argsort(order)
        first, count, inverse = first[order], count[order], rank[inverse]
        y = x.reshape(-1)[first] if axis is None else np.take(x, first, axis)
    return y, first, inverse, count


def draw(dtype, shape, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0 if np.dtype(dtype).kind in "ub" else -3, 4, shape).astype(dtype)


def check(model, x, axis, is_sorted):
    exe = intarsia.compile(model, "llvm", strict=True)
    wanted = dict(zip(OUTPUTS, expected(x, axis, is_sorted), strict=True))
    for name, array in exe.run({"x": x}).items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name, strict=name == "y")


SHAPES = [
    *(((), None), ((7,), None), ((600,), None), ((3, 4, 5), None), ((0,), None), ((2, 0), None)),
    *(((6, 3), 0), ((2, 9, 3), 1), ((2, 9, 3), -1), ((0, 3), 0), ((40,), 0), ((1, 1), 1)),
]


@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_distinct_entries_and_slices(shape, axis, is_sorted):
    attributes = {} if axis is None else {"axis": axis}
    model = make("float32", shape, sorted=is_sorted, **attributes)
    check(model, draw("float32", shape, 1), axis, is_sorted)


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "int8", "uint8", "int16", "int32", "uint64", "int64", "bool"]
)
def test_every_type(dtype):
    model = make(dtype, (5, 30), axis=1)
    check(model, draw(dtype, (5, 30), 2), 1, 1)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_what_is_no_number_comes_last(axis):
    """NaN are one among entries and several among slices; both zeros are one."""
    x = draw("float32", (8, 3), 3)
    x[[1, 4, 5], 0] = np.nan
    x[2, 2], x[3, 2], x[6, 0], x[7, 0] = -0.0, 0.0, np.inf, -np.inf
    attributes = {} if axis is None else {"axis": axis}
    check(make("float32", (8, 3), **attributes), x, axis, 1)


@pytest.mark.parametrize(
    "outputs",
    [("y",), ("y", "", "inverse"), ("y", "first"), ("y", "", "", "count")],
)
def test_outputs_may_be_missing(outputs):
    check(make("int64", (50,), outputs), draw("int64", (50,), 4), None, 1)


def test_what_is_found_is_read_by_native_code(parse_model):
    """Words that occur, their rows of a table, and every word as one of these, at any length."""
    model = parse_model(
        """g (int64[B,S] ids, float[50,8] table) => (float[M,8] rows, float[B,S,8] back)
           { flat, first, inverse, count = Unique(ids)
             rows = Gather(table, flat)
             half = Mul(rows, rows)
             words = Gather(half, inverse)
             size = Shape(ids)
             eight = Constant<value_ints = [8]>()
             shape = Concat<axis = 0>(size, eight)
             back = Reshape(words, shape) }"""
    )
    exe = intarsia.compile(model, "llvm")
    rng = np.random.default_rng(6)
    table = rng.standard_normal((50, 8), np.float32)
    for shape in ((1, 1), (2, 17), (3, 40)):
        ids = rng.integers(0, 50, shape)
        found = exe.run({"ids": ids, "table": table})
        assert set(exe.placement.coverage()) == {exe.placement.regions[0].target}
        np.testing.assert_array_equal(found["rows"], table[np.unique(ids)])
        np.testing.assert_array_equal(found["back"], table[ids] ** 2)
