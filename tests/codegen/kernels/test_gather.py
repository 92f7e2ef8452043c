"""Gathers and scatters against onnxruntime, and clamped indices."""

import numpy as np
import pytest
from onnx import helper
from onnxruntime import InferenceSession

from intarsia.codegen.body import Fused, Layout, identity
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import bounds, gather, scatter
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE

UNITS = (AVX512, AVX2, SSE, SCALAR)


def expected_of(op_type, arrays, **attributes):
    names = [f"x{number}" for number in range(len(arrays))]
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in zip(names, arrays, strict=True)
    ]
    result = arrays[-1] if op_type == "OneHot" else arrays[0]
    type_ = helper.np_dtype_to_tensor_dtype(result.dtype)
    node = helper.make_node(op_type, names, ["y"], **attributes)
    out = helper.make_tensor_value_info("y", type_, None)
    model = helper.make_model(
        helper.make_graph([node], "g", infos, [out]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )
    session = InferenceSession(model.SerializeToString())
    return session.run(None, dict(zip(names, arrays, strict=True)))[0]


def dense(array):
    return Layout(array.dtype.name, row_major(array.shape))


def numbers(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).integers(-50, 50, shape).astype(dtype)


def picks(shape, extent, dtype="int64"):
    return np.random.default_rng(1).integers(-extent, extent, shape).astype(dtype)


def gathered(run_kernel, data, indices, axis, unit, dtype=None):
    outer, inner = int(np.prod(data.shape[:axis])), int(np.prod(data.shape[axis + 1 :]))
    flat = data.reshape(outer, data.shape[axis], inner)
    y = np.zeros((outer, indices.size, inner), data.dtype)
    spec = gather.Gather(
        *(outer, data.shape[axis], indices.size, inner),
        *(dense(flat), dense(indices.reshape(-1)), dense(y)),
        epilogue=Fused(identity(data.dtype.name)),
        unit=unit,
    )
    got = run_kernel(gather.build(spec), [flat, indices, y])[2]
    return got.reshape(*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize(("shape", "axis"), [((5, 37), 0), ((2, 7, 3), 1), ((3, 9), 1), ((4,), 0)])
def test_gather(run_kernel, shape, axis, index_dtype, dtype, unit):
    data, indices = numbers(shape, dtype), picks((2, 3), shape[axis], index_dtype)
    got = gathered(run_kernel, data, indices, axis, unit)
    np.testing.assert_array_equal(got, expected_of("Gather", [data, indices], axis=axis))


def test_rows_of_an_embedding(run_kernel):
    data, indices = numbers((100, 64)), picks((300,), 100)
    got = gathered(run_kernel, data, indices, 0, AVX512)
    np.testing.assert_array_equal(got, data[indices])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("count", "step"), [(1, 1), (7, 1), (33, 2), (150_003, 1)])
def test_an_index_outside_is_found_wherever_it_is(run_kernel, count, step, dtype, unit):
    extent = 50
    legal = picks((count, step), extent, dtype)
    spec = bounds.IndexBounds(count, extent, Layout(dtype, (step,)), unit)
    places = [None, 0, count // 2, count - 1]
    for place, bad in zip(places, (0, extent, -extent - 1, np.iinfo(dtype).max), strict=True):
        indices = legal.copy()
        if step > 1:
            indices[:, 1] = extent  # of another dimension
        if place is not None:
            indices[place, 0] = bad
        fault = np.full(spec.turns, 7)
        is_small = count < 100
        found = run_kernel(bounds.build(spec), [indices, fault], interpreted=is_small)[1]
        assert set(found[found != 0]) == ({bad} if place is not None else set())


def test_indices_outside_are_clamped(run_kernel):
    data = np.arange(4, dtype="float32")
    indices = np.array([-9, -5, -4, 3, 4, 2**62, -(2**62)])
    got = gathered(run_kernel, data, indices, 0, AVX2)
    np.testing.assert_array_equal(got, [0, 0, 0, 3, 3, 3, 0])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_to_gather(run_kernel, shape):
    got = gathered(run_kernel, numbers(shape), np.zeros(shape[0], "int64"), 0, AVX2)
    assert got.shape == shape


@pytest.mark.parametrize(
    ("extents", "shape"), [((4, 5), (4, 3)), ((3, 4, 5), (2, 6, 5)), ((6,), (9,))]
)
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_elements(run_kernel, extents, shape, axis):
    axis = min(axis, len(shape) - 1)
    shape = tuple(
        n if dim == axis else min(n, m)
        for dim, (n, m) in enumerate(zip(shape, extents, strict=True))
    )
    data, indices = numbers(extents), picks(shape, extents[axis], "int32")
    y = np.zeros(shape, "float32")
    spec = gather.GatherElements(extents, shape, axis, dense(data), dense(indices), dense(y))
    got = run_kernel(gather.build(spec), [data, indices, y])[2]
    wanted = expected_of("GatherElements", [data, indices], axis=axis)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("batch_dims", "depth"), [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)])
def test_gather_nd(run_kernel, batch_dims, depth, unit):
    data = numbers((3, 4, 5))
    extents = data.shape[batch_dims : batch_dims + depth]
    batch = int(np.prod(data.shape[:batch_dims]))
    indices = np.stack([picks((*data.shape[:batch_dims], 6), extent) for extent in extents], -1)
    inner = int(np.prod(data.shape[batch_dims + depth :]))
    y = np.zeros((batch, 6, inner), "float32")
    spec = gather.GatherND(
        *(batch, 6, extents, inner),
        Layout("float32", row_major((batch, *extents, inner))),
        Layout("int64", row_major((batch, 6, depth))),
        *(dense(y), Fused(identity("float32")), unit),
    )
    got = run_kernel(gather.build(spec), [data, indices, y])[2]
    wanted = expected_of("GatherND", [data, indices], batch_dims=batch_dims)
    np.testing.assert_array_equal(got.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_hot(run_kernel, axis):
    indices = np.array([[0, 3, -1], [4, 2, -4]], "int64")  # 4 is outside: all are off
    values = np.array([-1, 7], "float32")
    wanted = expected_of("OneHot", [indices, np.array([4]), values], axis=axis)
    outer, inner = int(np.prod(indices.shape[:axis])), int(np.prod(indices.shape[axis:]))
    y = np.zeros((outer, 4, inner), "float32")
    layout = Layout("int64", row_major((outer, inner)))
    spec = gather.OneHot(outer, 4, inner, layout, dense(values), dense(y))
    got = run_kernel(gather.build(spec), [indices, values, y])[2]
    np.testing.assert_array_equal(got.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_one_hot_of_floats_cuts_them(run_kernel, dtype):
    numbers = [0, 1.9, -0.5, -1, 4, -4.2, -5, 65000, np.inf, -np.inf, np.nan, -np.nan]
    classes = [0, 1, 0, 3, None, 0, *[None] * 6]
    check_one_hot(run_kernel, np.array(numbers, dtype), classes)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "uint64"])
def test_one_hot_of_other_integers(run_kernel, dtype):
    highest = np.iinfo(dtype).max
    indices = np.array([0, 3, 4, highest, highest - 1], dtype)
    check_one_hot(run_kernel, indices, [0, 3, None, None, None])


def check_one_hot(run_kernel, indices, classes, depth=4):
    values, y = np.array([-1, 7], "float32"), np.zeros((1, depth, len(indices)), "float32")
    indices = indices.reshape(1, -1)
    spec = gather.OneHot(1, depth, indices.size, dense(indices), dense(values), dense(y))
    got = run_kernel(gather.build(spec), [indices, values, y])[2]
    wanted = [[7 if entry == class_ else -1 for class_ in classes] for entry in range(depth)]
    np.testing.assert_array_equal(got[0], wanted)


@pytest.mark.parametrize("reduction", sorted(scatter.REDUCTIONS))
@pytest.mark.parametrize(
    ("extents", "shape", "axis"), [((4, 5), (9, 3), 0), ((4, 5), (4, 7), 1), ((6,), (9,), 0)]
)
def test_scatter_elements(run_kernel, extents, shape, axis, reduction):
    data, updates = numbers(extents), numbers(shape, seed=2)
    indices = picks(shape, extents[axis])
    if reduction == "none":  # ONNX leaves open which of equal ones wins
        shape = tuple(min(n, extents[axis]) if d == axis else n for d, n in enumerate(shape))
        keep = tuple(slice(n) for n in shape)
        indices, updates = np.argsort(updates[keep], axis), updates[keep]
    wanted = expected_of(
        "ScatterElements", [data, indices, updates], axis=axis, reduction=reduction
    )
    layouts = (dense(indices), dense(updates), dense(data))
    spec = scatter.ScatterElements(extents, shape, axis, *layouts, reduction)
    got = run_kernel(scatter.build(spec), [indices, updates, data])[2]
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("reduction", sorted(scatter.REDUCTIONS))
@pytest.mark.parametrize("depth", [1, 2])
def test_scatter_nd(run_kernel, depth, reduction, unit):
    data = numbers((7, 4, 9))
    extents, inner = data.shape[:depth], int(np.prod(data.shape[depth:]))
    indices = np.stack([picks((5,), extent) for extent in extents], -1)
    if reduction == "none":
        indices = np.stack([np.arange(5) % extent for extent in extents], -1)
    updates = numbers((5, *data.shape[depth:]), seed=2)
    wanted = expected_of("ScatterND", [data, indices, updates], reduction=reduction)
    spec = scatter.ScatterND(
        *(5, extents, inner, dense(indices)),
        Layout("float32", (inner, 1)),
        Layout("float32", row_major((*extents, inner))),
        reduction,
        unit,
    )
    got = run_kernel(scatter.build(spec), [indices, updates, data])[2]
    np.testing.assert_array_equal(got, wanted)
