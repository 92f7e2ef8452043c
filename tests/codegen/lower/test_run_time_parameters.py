# SPDX-License-Identifier: Apache-2.0
"""Axes, counts and the like that come when a model runs, while its shapes are known."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.codegen.lower.conftest import evaluate
from tests.codegen.lower.small_models import small_model

import intarsia
from intarsia.errors import InputError, UnsupportedError


def one_node(op_type, feeds, shapes, constants=None, opset=18, **attributes):
    """A model of one node and a Relu behind its first result, whose shapes are declared."""
    constants = constants or {}
    names = [*feeds, *constants]
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    results = [f"y{number}" for number in range(len(shapes))]
    node = helper.make_node(op_type, sorted(names), results, name="n", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, kinds[n], array.shape) for n, array in feeds.items()],
        [
            helper.make_tensor_value_info(name, TensorProto.INT64 if number else kinds["a"], shape)
            for number, (name, shape) in enumerate(zip(results, shapes, strict=True))
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def numbers(*shape, dtype=np.float32):
    return (np.random.default_rng(0).standard_normal(shape) * 4).astype(dtype)


REDUCTIONS = ["ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2", "ReduceLogSumExp", "ReduceProd"]


@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_axes_that_the_shapes_leave_open(run_both, op_type):
    x = numbers(3, 2, 2, 2)
    for axes in ([1], [-1], [2]):
        feeds = {"a": x, "b": np.array(axes)}
        run_both(one_node(op_type, feeds, [(3, 2, 2)], keepdims=0), feeds)
    feeds = {"a": x, "b": np.array([3, -3])}
    run_both(one_node(op_type, feeds, [(3, 1, 2, 1)]), feeds)


def test_one_program_takes_all_axes(backends):
    x = numbers(4, 4, 4)
    model = one_node("ReduceSum", {"a": x, "b": np.array([0])}, [(4, 4)], keepdims=0)
    exe = intarsia.compile(model, "llvm", strict=True, backends=backends)
    for axis in (0, 1, 2, -1, -2, -3):
        got = exe.run({"a": x, "b": np.array([axis])})["y0"]
        np.testing.assert_allclose(got, x.sum(axis), rtol=1e-5, atol=1e-5)


def test_no_axes(run_both):
    x = numbers(2, 3)
    empty = np.zeros(0, np.int64)
    feeds = {"a": x, "b": empty}
    run_both(one_node("ReduceSum", feeds, [(1, 1)]), feeds)
    run_both(one_node("ReduceSum", feeds, [(2, 3)], noop_with_empty_axes=1), feeds)


def test_reduction_by_axes_with_what_follows(run_both):
    x, axes = numbers(2, 40, 40), np.array([-1])
    model = small_model("y", "r = ReduceMax(x, w) y = Relu(r)", {"x": x}, {"w": axes}, 18)
    del model.graph.initializer[:]
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.INT64, [1]))
    run_both(model, {"x": x, "w": axes})


@pytest.mark.parametrize("op_type", ["CumSum"])
@pytest.mark.parametrize("flags", [{}, {"exclusive": 1}, {"reverse": 1}])
def test_axis_of_a_scan(run_both, op_type, flags):
    for axis in (0, 2, -2):
        feeds = {"a": numbers(3, 4, 5), "b": np.array(axis)}
        run_both(one_node(op_type, feeds, [(3, 4, 5)], **flags), feeds)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-(2**62), -2, 0, 3, 2**62])
def test_diagonal(backends, upper, k):
    feeds = {"a": numbers(2, 4, 5), "b": np.array(k)}
    model = one_node("Trilu", feeds, [(2, 4, 5)], upper=upper)
    got = intarsia.compile(model, "llvm", strict=True, backends=backends).run(feeds)["y0"]
    pick = np.triu if upper else np.tril
    np.testing.assert_array_equal(got, pick(feeds["a"], max(-9, min(k, 9))))


def test_count_of_the_best(run_both):
    feeds = {"a": numbers(3, 9), "b": np.array([4])}
    run_both(one_node("TopK", feeds, [(3, 4), (3, 4)]), feeds)


def test_repeats(run_both):
    feeds = {"a": numbers(3, 2), "b": np.array([2, 3])}
    run_both(one_node("Tile", feeds, [(6, 6)]), feeds)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_sizes(run_both, mode):
    feeds = {"a": numbers(1, 2, 4, 5), "d": np.array([1, 2, 7, 3])}
    nothing = {"b": np.zeros(0, np.float32), "c": np.zeros(0, np.float32)}
    run_both(one_node("Resize", feeds, [(1, 2, 7, 3)], nothing, mode=mode), feeds)


@pytest.mark.parametrize("seed", range(5))
def test_slices(run_both, seed):
    rng = np.random.default_rng(seed)
    x = numbers(5, 1, 7, 6)
    axes = rng.permutation(4)[: rng.integers(1, 5)]
    starts, ends = rng.integers(-8, 8, (2, len(axes)))
    steps = rng.choice([1, 1, 2, -1, -3], len(axes))
    parameters = {"b": starts, "c": ends, "d": axes, "e": steps}
    known = one_node("Slice", {"a": x}, [None], parameters)
    shape = evaluate(known, {"a": x})["y0"].shape
    is_fixed = rng.random(4) < 0.3
    fixed = {n: p for (n, p), fix in zip(parameters.items(), is_fixed, strict=True) if fix}
    feeds = {"a": x} | {name: p for name, p in parameters.items() if name not in fixed}
    run_both(one_node("Slice", feeds, [shape], fixed), feeds)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads(run_both, mode):
    pads = {"b": np.array([0, 2, 1, 0, 1, 2])}
    feeds = {"a": numbers(2, 3, 5)} | pads
    run_both(one_node("Pad", feeds, [(2, 6, 8)], opset=19, mode=mode), feeds)
    if mode == "constant":
        feeds["b"][1] = -1
        feeds["c"] = np.array(7, np.float32)
        run_both(one_node("Pad", feeds, [(2, 3, 8)], opset=19, mode=mode), feeds)
        del feeds["b"]
        run_both(one_node("Pad", feeds, [(2, 3, 8)], pads, opset=19), feeds)


def test_slice_and_pad_between_blocked_tensors(run_both):
    body = "c = Conv<pads = [1, 1, 1, 1]>(x, w) s = Slice(c, i, j, k) p = Pad(s, n) y = Relu(p)"
    x, weights = numbers(1, 32, 6, 6), {"w": (32, 32, 3, 3)}
    steering = {"i": np.array([1]), "j": np.array([4]), "k": np.array([2])}
    steering["n"] = np.array([0, 1, 0, 0, 0, 0, 0, 2])
    model = small_model("y", body, {"x": x}, weights | steering)
    for tensor in list(model.graph.initializer):
        if tensor.name in steering:
            model.graph.initializer.remove(tensor)
            array = steering[tensor.name]
            shape = helper.make_tensor_value_info(tensor.name, TensorProto.INT64, array.shape)
            model.graph.input.append(shape)
    run_both(model, {"x": x} | steering)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32", "int64"])
def test_range(backends, dtype):
    for start, limit, delta in ((1, 9, 3), (9, -40, -2), (3, 3, 1), (0, 100, 7)):
        ends = {"a": start, "b": limit, "c": delta}
        feeds = {name: np.array(number, dtype) for name, number in ends.items()}
        model = one_node("Range", feeds, [(len(range(start, limit, delta)),)])
        got = intarsia.compile(model, "llvm", strict=True, backends=backends).run(feeds)
        np.testing.assert_array_equal(got["y0"], np.arange(start, limit, delta, dtype))


@pytest.mark.parametrize("time_axis", [0, 1])
@pytest.mark.parametrize("is_constant", [True, False])
def test_sequences_turned_round(run_both, time_axis, is_constant):
    x, lengths = numbers(4, 4, 5), {"b": np.array([1, 4, 2, 3])}
    fed, fixed = ({}, lengths) if is_constant else (lengths, {})
    flags = {"time_axis": time_axis, "batch_axis": 1 - time_axis}
    feeds = {"a": x} | fed
    run_both(one_node("ReverseSequence", feeds, [x.shape], fixed, **flags), feeds)


def test_lengths_that_no_sequence_has(backends):
    """A negative length does not count from the end, as an index would; ONNX Runtime refuses it."""
    x, lengths = numbers(4, 4, 5), np.array([1, 4, 2, 0])
    feeds = {"a": x, "b": lengths}
    model = one_node("ReverseSequence", feeds, [x.shape])
    exe = intarsia.compile(model, "llvm", strict=True, backends=backends)
    exe.run(feeds)
    for wrong in (-1, -4, 5):
        with pytest.raises(InputError, match="'b' does not fit the shapes of node 'n'"):
            exe.run({"a": x, "b": np.array([1, wrong, 2, 3])})


def test_a_range_of_another_length(backends):
    good = {name: np.array(number) for name, number in zip("abc", (1, 9, 2), strict=True)}
    exe = intarsia.compile(one_node("Range", good, [(4,)]), "llvm", strict=True, backends=backends)
    for name, number in (("a", 5), ("b", 10), ("c", 0), ("c", -1)):
        with pytest.raises(InputError, match="'a' does not fit the shapes of node 'n'"):
            exe.run(good | {name: np.array(number)})
    np.testing.assert_array_equal(exe.run(good)["y0"], [1, 3, 5, 7])


MISFITS = {
    "starts": ("Slice", {"b": np.array([1]), "c": np.array([9])}, {"b": np.array([0])}, (1, 3)),
    "pads": ("Pad", {"b": np.array([0, 1, 1, 0])}, {"b": np.array([1, 0, 1, 1])}, (3, 4)),
    "axes": ("ReduceSum", {"b": np.array([0])}, {"b": np.array([1])}, (1, 3)),
    "axes outside": ("ReduceSum", {"b": np.array([0])}, {"b": np.array([-3])}, (1, 3)),
    "axis": ("CumSum", {"b": np.array(1)}, {"b": np.array(2)}, (2, 3)),
    "repeats": ("Tile", {"b": np.array([1, 2])}, {"b": np.array([2, 1])}, (2, 6)),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_parameter_that_does_not_fit(backends, case):
    op_type, good, bad, shape = MISFITS[case]
    x = numbers(2, 3)
    model = one_node(op_type, {"a": x, **good}, [shape])
    exe = intarsia.compile(model, "llvm", strict=True, backends=backends)
    wanted = evaluate(model, {"a": x, **good})["y0"]
    np.testing.assert_allclose(exe.run({"a": x, **good})["y0"], wanted, rtol=1e-5)
    bad = {**good, **bad}
    with pytest.raises(InputError, match="'b' does not fit the shapes of node 'n'"):
        exe.run({"a": x, **bad})
    np.testing.assert_allclose(exe.run({"a": x, **good})["y0"], wanted, rtol=1e-5)


def test_many_sets_of_axes_are_for_others(backends):
    feeds = {"a": numbers(2, 2, 2, 2, 2), "b": np.array([0, 1])}
    model = one_node("ReduceSum", feeds, [(2, 2, 2)], keepdims=0)
    with pytest.raises(UnsupportedError, match="do not follow from its shapes"):
        intarsia.compile(model, "llvm", strict=True, backends=backends)
