"""Resize against onnxruntime, in all its modes that are taken."""

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime import InferenceSession
from tests.codegen.kernels.test_pool import LAYOUTS, pack, unpack

from intarsia.backends.evaluator import make_evaluator
from intarsia.codegen.body import NOTHING, Apply, Body, Fused, Layout
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import remap, resize
from intarsia.codegen.kernels.resize import Filter, ResizedAxis
from intarsia.codegen.unit import AVX2, SCALAR

COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners"),
    "asymmetric",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def expected_of(x, mode, coordinates, rounding, *, scales=(), sizes=()):
    inputs = ["x", "", "scales" if scales else "", "sizes" if sizes else ""]
    node = helper.make_node(
        "Resize",
        inputs[: 3 if scales else 4],
        ["y"],
        mode=mode,
        coordinate_transformation_mode=coordinates,
        nearest_mode=rounding,
    )
    constants = []
    if scales:
        full = [1.0, 1.0, *scales]
        constants = [helper.make_tensor("scales", TensorProto.FLOAT, [len(full)], full)]
    if sizes:
        full = [*x.shape[:2], *sizes]
        constants = [helper.make_tensor("sizes", TensorProto.INT64, [len(full)], full)]
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [info], [out], constants)
    opsets = [helper.make_opsetid("", 19)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def evaluated(x, mode, coordinates, sizes, roi=(), **attributes):
    """Return what the reference evaluator makes, whose coordinates are float64."""
    node = helper.make_node(
        *("Resize", ["x", "roi" if roi else "", "", "sizes"], ["y"]),
        mode=mode,
        coordinate_transformation_mode=coordinates,
        **attributes,
    )
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    full = [*x.shape[:2], *sizes]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", element, x.shape)],
        [helper.make_tensor_value_info("y", element, None)],
        [
            helper.make_tensor("sizes", TensorProto.INT64, [len(full)], full),
            helper.make_tensor("roi", TensorProto.FLOAT, [len(roi)], roi),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return make_evaluator(model).run(None, {"x": x})[0]


def check(
    run_kernel, mode, x, expected, axes, unit, block, *, fused=None, how=None, extrapolation=None
):
    blocks = -(-x.shape[1] // block)
    domain = (x.shape[0], blocks, *(axis.out for axis in axes), block)
    lay_x = Layout(x.dtype.name, row_major((x.shape[0], blocks, *x.shape[2:], block)))
    lay_y = Layout(x.dtype.name, row_major(domain))
    epilogue = NOTHING if fused is None else Fused(fused, (lay_y,))
    more = [] if fused is None else [np.ones(domain, "float32")]
    outer = (x.shape[0], blocks)
    if mode == "nearest":
        spec, tables = resize.nearest(outer, axes, block, lay_x, lay_y, epilogue, unit)
        function = remap.build(spec)
    elif how is not None:
        weighted = resize.Weighted(
            outer, axes, how, lay_x, lay_y, block, extrapolation, epilogue, unit
        )
        function, tables = resize.build(weighted), resize.weighted_tables(weighted)
    else:
        linear = resize.Linear(outer, axes, lay_x, lay_y, block, epilogue, unit)
        function, tables = resize.build(linear), resize.linear_tables(linear)
    arrays = [pack(x, block), *tables, np.full(domain, 55, x.dtype), *more]
    got = run_kernel(function, arrays)[1 + len(tables)].reshape(domain)
    actual = unpack(got, (*x.shape[:2], *domain[2:-1]), x.shape[1])
    tolerance = 1e-14 if x.dtype == np.float64 else 1e-6
    np.testing.assert_allclose(actual, expected, rtol=10 * tolerance, atol=tolerance)
    return function


def make(shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


SCALES = ((2.0, 2.0), (1.0, 3.0), (0.6, 1.7), (0.5, 0.3), (2.5, 1.0))
NEAREST = [
    case
    for case in itertools.product(SCALES, ROUNDINGS, COORDINATES)
    # where an entry is met exactly, and one rounding error decides
    if not (case[0] in SCALES[2::2] and case[1] in ("floor", "ceil") and "symm" in case[2])
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("scales", "rounding", "coordinates"), NEAREST)
def test_nearest(run_kernel, scales, rounding, coordinates):
    x = make((2, 3, 5, 7))
    expected = expected_of(x, "nearest", coordinates, rounding, scales=scales)
    axes = tuple(
        ResizedAxis(extent, out, scale, coordinates, rounding)
        for extent, out, scale in zip(x.shape[2:], expected.shape[2:], scales, strict=True)
    )
    for unit, block in ((AVX2, 8), (AVX2, 1), (SCALAR, 1)):
        check(run_kernel, "nearest", x, expected, axes, unit, block)


@pytest.mark.sample(3)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("unit", "block"), LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 3, 4, 17), (1, 18, 1, 1), (3, 2, 5, 40)])
def test_twice_the_size(run_kernel, shape, unit, block, mode):
    x = make(shape)
    expected = expected_of(x, mode, "asymmetric", "floor", scales=(2.0, 2.0))
    axes = tuple(
        ResizedAxis(extent, 2 * extent, 2.0, "asymmetric", "floor") for extent in shape[2:]
    )
    check(run_kernel, mode, x, expected, axes, unit, block)


def test_repeating_a_row_reads_no_table():
    axes = (
        ResizedAxis(4, 8, 2.0, "asymmetric", "floor"),
        ResizedAxis(6, 18, 3.0, "asymmetric", "floor"),
    )
    layout = Layout("float32", (1,) * 5)
    spec, tables = resize.nearest((1, 3), axes, 1, layout, layout)
    assert (spec.factor, len(tables)) == (3, 1)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("sizes", [(10, 14), (3, 9), (1, 1), (5, 7), (7, 5)])
def test_linear(run_kernel, sizes, coordinates):
    x = make((1, 3, 5, 7))
    expected = expected_of(x, "linear", coordinates, "floor", sizes=sizes)
    axes = tuple(
        ResizedAxis(extent, out, out / extent, coordinates)
        for extent, out in zip(x.shape[2:], sizes, strict=True)
    )
    for unit, block in ((AVX2, 8), (SCALAR, 1)):
        check(run_kernel, "linear", x, expected, axes, unit, block)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("sizes", [(10, 21), (3, 9), (6, 4)])
def test_elements_that_onnxruntime_does_not_resize_have_coordinates_in_float64(
    run_kernel, sizes, coordinates, mode
):
    """In float32, weights are off by 1e-7, and a neighbour may be another one at a tie."""
    x = make((1, 3, 5, 7)).astype(np.float64)
    axes = tuple(
        ResizedAxis(extent, out, out / extent, coordinates, "round_prefer_floor")
        for extent, out in zip(x.shape[2:], sizes, strict=True)
    )
    expected = evaluated(x, mode, coordinates, sizes)
    for unit, block in ((AVX2, 8), (SCALAR, 1)):
        check(run_kernel, mode, x, expected, axes, unit, block)


@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
def test_nearest_neighbours_in_float64_are_exact_where_float32_would_miss_them(dtype):
    extent, out = 70001, 100003  # both odd and without a common factor: no ties
    at = np.arange(out)
    expected = {
        ("asymmetric", "floor"): at * extent // out,
        ("half_pixel", "round_prefer_floor"): -((2 * out - (2 * at + 1) * extent) // (2 * out)),
    }
    for (coordinates, rounding), entries in expected.items():
        axis = ResizedAxis(extent, out, out / extent, coordinates, rounding)
        np.testing.assert_array_equal(resize.nearest_table(axis, dtype), entries)
        assert (resize.nearest_table(axis, "float32") != entries).any()


@pytest.mark.parametrize("sizes", [(9,), (3, 4, 9)])
def test_linear_in_other_numbers_of_dimensions(run_kernel, sizes):
    x = make((1, 3, *(4, 3, 5)[: len(sizes)]))
    expected = expected_of(x, "linear", "half_pixel", "floor", sizes=sizes)
    axes = tuple(ResizedAxis(a, b, b / a) for a, b in zip(x.shape[2:], sizes, strict=True))
    check(run_kernel, "linear", x, expected, axes, AVX2, 8)
    check(run_kernel, "linear", x, expected, axes, AVX2, 1)


def test_infinities_and_nan_stay_where_they_are(run_kernel):
    x = make((1, 1, 3, 3))
    x[0, 0, 2, 2], x[0, 0, 0, 0] = np.inf, np.nan
    axes = (ResizedAxis(3, 6, 2.0), ResizedAxis(3, 6, 2.0))
    for mode in ("nearest", "linear"):
        expected = expected_of(x, mode, "half_pixel", "round_prefer_floor", scales=(2.0, 2.0))
        check(run_kernel, mode, x, expected, axes, AVX2, 1)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_epilogue(run_kernel, mode):
    body = Body(("float32", "float32"), (Apply("Add", (0, 1)),), (2,))
    x = make((1, 9, 4, 5))
    expected = expected_of(x, mode, "asymmetric", "floor", scales=(2.0, 2.0)) + 1
    axes = tuple(
        ResizedAxis(extent, 2 * extent, 2.0, "asymmetric", "floor") for extent in x.shape[2:]
    )
    for block in (1, 8):
        check(run_kernel, mode, x, expected, axes, AVX2, block, fused=body)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize(
    ("antialias", "exclude_outside"), [(False, False), (False, True), (True, True)]
)
@pytest.mark.parametrize(("mode", "sizes"), [("linear", (3, 4)), ("cubic", (9, 3))])
def test_weighted(run_kernel, mode, sizes, antialias, exclude_outside, coordinates):
    x = make((1, 9, 5, 7))
    expected = evaluated(
        *(x, mode, coordinates, sizes),
        antialias=int(antialias),
        exclude_outside=int(exclude_outside),
        cubic_coeff_a=-0.5,
    )
    how = Filter(mode, -0.5, antialias, exclude_outside)
    axes = tuple(
        ResizedAxis(extent, out, out / extent, coordinates)
        for extent, out in zip(x.shape[2:], sizes, strict=True)
    )
    for unit, block in ((AVX2, 8), (SCALAR, 1)):
        check(run_kernel, mode, x, expected, axes, unit, block, how=how)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_crop(run_kernel, mode, dtype):
    if (mode, dtype) == ("cubic", "float64"):
        pytest.skip("the reference computes these weights in float32")
    x = make((1, 9, 5, 7)).astype(dtype)
    crops, sizes = ((0.125, 0.875), (-0.25, 1.25)), (6, 8)
    roi = (0, 0, 0.125, -0.25, 1, 1, 0.875, 1.25)
    rule = "tf_crop_and_resize"
    expected = evaluated(x, mode, rule, sizes, roi, extrapolation_value=2.5)
    axes = tuple(
        ResizedAxis(extent, out, out / extent, rule, crop=crop)
        for extent, out, crop in zip(x.shape[2:], sizes, crops, strict=True)
    )
    for unit, block in ((AVX2, 8), (SCALAR, 1)):
        check(
            *(run_kernel, mode + " crop", x, expected, axes, unit, block),
            how=Filter(mode),
            extrapolation=2.5,
        )


def test_what_is_refused():
    for coordinates, rounding in itertools.product(COORDINATES, ROUNDINGS):
        assert resize.refuse("nearest", coordinates, rounding) is None
    assert "quartic" in resize.refuse("quartic", "half_pixel")
    assert "mirrored" in resize.refuse("linear", "mirrored")
    assert "up" in resize.refuse("nearest", "half_pixel", "up")
