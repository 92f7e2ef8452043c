# SPDX-License-Identifier: Apache-2.0
"""Operators where ONNX's tests of single nodes do not look: blocked, joined, empty, old, fused."""

import numpy as np
import pytest
from tests.codegen.lower.small_models import feeds_of, small_model

import intarsia
from intarsia.errors import UnsupportedError

WIDE = {"w": (20, 20, 1, 1)}
IMAGE = {"x": (2, 20, 5, 6)}
CONV = "c = Conv(x, w)"


def ints(*numbers):
    return np.array(numbers, np.int64)


BLOCKED = {
    "pad": ("p = Pad(c, pads) y = Conv(p, w)", {"pads": ints(0, 0, 1, 2, 0, 0, 0, 1)}),
    "pad with a number": (
        "y = Pad(c, pads, n)",
        {"pads": ints(0, 0, 1, 0, 0, 0, 0, 3), "n": np.float32(2.5)},
    ),
    "pad channels": ("p = Pad(c, pads) y = Relu(p)", {"pads": ints(0, 3, 0, 0, 0, 1, 0, 0)}),
    "cut and pad": ("y = Pad(c, pads)", {"pads": ints(0, 0, -1, 1, 0, 0, 2, -2)}),
    "reflect": ('y = Pad<mode = "reflect">(c, pads)', {"pads": ints(0, 0, 2, 1, 0, 0, 1, 3)}),
    "edge": ('y = Pad<mode = "edge">(c, pads)', {"pads": ints(0, 2, 2, 1, 0, 1, 1, 3)}),
    "nearest": (
        'r = Resize<mode = "nearest">(c, , s) y = Add(r, b)',
        {"s": np.array([1, 1, 2, 3], np.float32), "b": (20, 1, 1)},
    ),
    "linear": (
        'r = Resize<mode = "linear">(c, , s) y = Relu(r)',
        {"s": np.array([1, 1, 2, 1.5], np.float32)},
    ),
    "linear to a size": (
        'r = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(c, , , s)'
        " y = Mul(r, r)",
        {"s": ints(2, 20, 9, 4)},
    ),
    "cubic": (
        'r = Resize<mode = "cubic">(c, , s) y = Add(r, b)',
        {"s": np.array([1, 1, 2, 1.5], np.float32), "b": (20, 1, 1)},
    ),
    "cubic with what is outside left out": (
        'y = Resize<mode = "cubic", cubic_coeff_a = -0.5, exclude_outside = 1>(c, , , s)',
        {"s": ints(2, 20, 9, 3)},
    ),
    "antialias": (
        'r = Resize<mode = "linear", antialias = 1>(c, , , s) y = Relu(r)',
        {"s": ints(2, 20, 2, 3)},
    ),
    "wide antialias": (
        'y = Resize<mode = "cubic", antialias = 1>(c, , , s)',
        {"s": ints(2, 20, 1, 1)},
    ),
    "crop": (
        'r = Resize<mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize",'
        " extrapolation_value = 2.5>(c, o, , s) y = Neg(r)",
        {"o": np.array([0, 0, 0.25, -0.25, 1, 1, 0.75, 1.25], np.float32), "s": ints(2, 20, 7, 4)},
    ),
    "crop of channels": (
        'y = Resize<coordinate_transformation_mode = "tf_crop_and_resize">(c, o, , s)',
        {"o": np.array([0, 0.3, 0, 0, 1, 0.8, 1, 1.35], np.float32), "s": ints(2, 7, 3, 5)},
    ),
    "resized channels": ("y = Resize(c, , s)", {"s": np.array([1, 0.5, 1, 1], np.float32)}),
    "LRN": ("l = LRN<size = 5, alpha = 0.01>(c) y = Relu(l)", {}),
    "wide LRN": ("y = LRN<size = 41, alpha = 0.01, beta = 0.6>(c)", {}),
    "InstanceNormalization": (
        "i = InstanceNormalization(c, g, h) y = Relu(i)",
        {"g": (20,), "h": (20,)},
    ),
    "softmax of channels": ("y = Softmax<axis = 1>(c)", {}),
    "softmax of a row": ("s = Softmax(c) y = Add(s, c)", {}),
    "mean and deviation": ("y = MeanVarianceNormalization<axes = [0, 2, 3]>(c)", {}),
    "LayerNormalization": ("y = LayerNormalization(c, g)", {"g": (6,)}),
    "LpNormalization": ("y = LpNormalization<axis = 1, p = 1>(c)", {}),
    "gather channels": ("g = Gather<axis = 1>(c, i) y = Relu(g)", {"i": ints(3, 0, -1, 3)}),
    "gather one": ("g = Gather<axis = 1>(c, i) y = Neg(g)", {"i": np.array(-2, np.int64)}),
    "scatter": (
        "y = ScatterElements<axis = 1>(c, i, u)",
        {"i": ints(3, 1).reshape(1, 2, 1, 1), "u": (1, 2, 1, 1)},
    ),
    "tile": ("t = Tile(c, r) y = Relu(t)", {"r": ints(1, 2, 1, 3)}),
    "cumsum": ("y = CumSum<reverse = 1>(c, a)", {"a": np.array(1, np.int64)}),
    "trilu": ("y = Trilu<upper = 0>(c)", {}),
    "einsum": (
        'e = Einsum<equation = "nchw,cm->nmhw">(c, m) r = Relu(e) y = Conv(r, w)',
        {"m": (20, 20)},
    ),
    "einsum and blocked addend": (
        'e = Einsum<equation = "nchw,cm->nmhw">(c, m) y = Add(e, c)',
        {"m": (20, 20)},
    ),
    "turned by einsum": ('e = Einsum<equation = "nchw->nhwc">(c) y = Concat<axis = 1>(e, e)', {}),
    "joined einsum": (
        'e = Einsum<equation = "nchw,nchv->ncv">(c, c) f = ReduceMax<axes = [3], keepdims = 0>(c)'
        ' g = Einsum<equation = "ncv,ncw->ncw">(f, f) y = Concat<axis = 2>(e, g)',
        {},
    ),
    "best channels": (
        "v, i = TopK<axis = 1>(c, k) r = Relu(v) f = Cast<to = 1>(i) y = Add(r, f)",
        {"k": ints(7)},
    ),
    "shape": ("s = Shape(c) d = Cast<to = 1>(s) r = ReduceSum(d) y = Mul(c, r)", {}),
    "depth to space": ("d = DepthToSpace<blocksize = 2>(c) y = Relu(d)", {}),
}


@pytest.mark.parametrize("case", BLOCKED)
def test_on_a_blocked_tensor(run_both, case):
    body, weights = BLOCKED[case]
    opset = 18 if "antialias" in case else 17
    model = small_model("y", f"{CONV} {body}", IMAGE, WIDE | weights, opset)
    run_both(model, feeds_of(model))


JOINED = {
    "gather": ("g = Gather<axis = 1>(x, i)", {"i": ints(1, 0, 2)}),
    "cumsum": ("g = CumSum(x, a)", {"a": np.array(2, np.int64)}),
    "tile": ("g = Tile(x, r)", {"r": ints(1, 2, 1, 1)}),
    "depth to space": (
        "h = Pad(x, p) g = SpaceToDepth<blocksize = 2>(h)",
        {"p": ints(0, 0, 5, 6, 0, 0, 0, 0)},
    ),
    "trilu": ("g = Trilu(x)", {}),
    "least": ("g, i = TopK<axis = 2, largest = 0>(x, k)", {"k": ints(5)}),
    "places": ("h, i = TopK(x, k) g = Cast<to = 1>(i)", {"k": ints(6)}),
    "softmax": ("g = Softmax<axis = 2>(x)", {}),
    "scatter": ("g = ScatterND(x, i, u)", {"i": ints(0, 1).reshape(1, 2), "u": (1, 5, 6)}),
    "pad": ("g = Pad(x, p)", {"p": ints(0, 1, 0, 0, 0, 1, 0, 0)}),
    "one hot": (
        "k = Cast<to = 7>(x) l = Slice(k, b, e) m = OneHot<axis = 1>(l, d, v)"
        " n = Reshape(m, s) g = Relu(n)",
        {
            "b": ints(0, 0, 0, 0),
            "e": ints(1, 1, 5, 6),
            "d": np.array(3, np.int64),
            "v": np.array([2, 5], np.float32),
            "s": ints(1, 3, 5, 6),
        },
    ),
}


@pytest.mark.parametrize("case", JOINED)
def test_as_a_part_of_a_concat(run_both, case):
    body, weights = JOINED[case]
    model = small_model("y", f"{body} y = Concat<axis = 1>(x, g, x)", {"x": (1, 4, 5, 6)}, weights)
    run_both(model, feeds_of(model))


OLD = {
    "Softmax": ("y = Softmax<axis = 2>(x)", {}, 11),
    "Softmax of all": ("y = Softmax<axis = 0>(x)", {}, 11),
    "LogSoftmax": ("y = LogSoftmax(x)", {}, 11),
    "Pad": ("y = Pad<pads = [0, 0, 1, 2, 0, 0, 0, 1], value = 3.0>(x)", {}, 9),
    "Clip": ("y = Clip<min = -0.5, max = 1.0>(x)", {}, 9),
    "Slice": ("y = Slice<axes = [1, 3], starts = [1, -3], ends = [3, 100]>(x)", {}, 9),
    "Upsample": ("y = Upsample(x, s)", {"s": np.array([1, 1, 2, 3], np.float32)}, 9),
    "Upsample by attributes": ("y = Upsample<scales = [1.0, 1.0, 2.0, 2.0]>(x)", {}, 8),
    "Resize": ("y = Resize(x, s)", {"s": np.array([1, 1, 1.5, 2], np.float32)}, 10),
    "linear Resize": (
        'y = Resize<mode = "linear">(x, s)',
        {"s": np.array([1, 1, 2, 2], np.float32)},
        10,
    ),
    "Squeeze": ("y = Squeeze<axes = [0]>(x)", {}, 11),
    "Unsqueeze": ("y = Unsqueeze<axes = [0, 3]>(x)", {}, 11),
    "ReduceSum": ("y = ReduceSum<axes = [1, -1], keepdims = 0>(x)", {}, 11),
    "Split": ("y, z = Split<axis = 1, split = [1, 3]>(x)", {}, 11),
    "Dropout": ("d = Dropout(x) y = Relu(d)", {}, 10),
    "TopK by attribute": ("y, i = TopK<k = 3, axis = 2>(x)", {}, 9),
    "TopK of opset 10": ("y, i = TopK<axis = -2>(x, k)", {"k": ints(3)}, 10),
    "Scatter": (
        "y = Scatter<axis = 1>(x, i, u)",
        {"i": ints(3, 1).reshape(1, 2, 1, 1), "u": (1, 2, 1, 1)},
        9,
    ),
}


@pytest.mark.parametrize("case", OLD)
def test_of_an_old_operator_set(run_both, case):
    body, weights, opset = OLD[case]
    model = small_model("y", body, {"x": (1, 4, 5, 6)}, weights, opset)
    run_both(model, feeds_of(model))


BOOLS = {
    "any": ("r = ReduceMax(b, a) y = Where(r, x, x0)", ints(2, 3)),
    "any along channels": ("r = ReduceMax(b, a) y = Where(r, x, x0)", ints(1)),
    "all": ("r = ReduceMin<keepdims = 0>(b, a) y = Not(r)", ints(0, 1, 2, 3)),
    "all along a row": ("r = ReduceMin<keepdims = 0>(b, a) y = Cast<to = 6>(r)", ints(3)),
}


@pytest.mark.parametrize("shape", [(2, 20, 5, 6), (1, 1, 1, 1), (3, 4, 2, 67)])
@pytest.mark.parametrize("case", BOOLS)
def test_extrema_of_bools(run_both, case, shape):
    body, axes = BOOLS[case]
    weights = {"a": axes, "x0": np.float32(9)}
    model = small_model("y", f"b = Greater(x, x0) {body}", {"x": shape}, weights, 20)
    feeds = feeds_of(model)
    for threshold in (-1.5, 0, 2):
        run_both(model, {"x": feeds["x"] + np.float32(9 - threshold)})


POOLED = {
    "strided": "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]",
    "dilated": "kernel_shape = [2, 3], dilations = [2, 1], ceil_mode = 1, strides = [2, 1]",
    "windows in the padding": "kernel_shape = [2, 2], strides = [3, 3], pads = [1, 1, 1, 1]",
    "same": 'kernel_shape = [4, 3], auto_pad = "SAME_UPPER", strides = [1, 2]',
    "by column": "kernel_shape = [3, 2], storage_order = 1",
}


@pytest.mark.parametrize("width", [5, 40, 150])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "float64", "float32"])
@pytest.mark.parametrize("case", POOLED)
def test_the_largest_of_any_dtype(run_both, case, dtype, width):
    image = np.random.default_rng(3).integers(-128, 128, (2, 3, 6, width)).astype(dtype)
    for outputs in ("y", "y, i"):
        body = f"{outputs} = MaxPool<{POOLED[case]}>(x)"
        run_both(small_model(outputs, body, {"x": image}, opset=18), {"x": image})
    body = f"c = Relu(x) m = MaxPool<{POOLED[case]}>(c) y = Cast<to = 1>(m)"
    if dtype != "uint8":
        run_both(small_model("y", body, {"x": image}, opset=18), {"x": image})


def test_the_largest_of_a_blocked_tensor_has_its_index(run_both):
    body = f"{CONV} p, i = MaxPool<kernel_shape = [2, 2], strides = [2, 1]>(c) y = Relu(p)"
    model = small_model("y, i", body, IMAGE, WIDE)
    run_both(model, feeds_of(model))


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_the_first_of_equal_entries_come_first(run_both, dtype, axis, largest):
    rng = np.random.default_rng(axis + 1)
    for _ in range(3):
        shape = rng.integers(1, 9, 3)
        x = rng.integers(-4, 5, shape).astype(dtype)
        k = ints(rng.integers(1, shape[axis] + 1))
        body = f"y, i = TopK<axis = {axis}, largest = {largest}>(x, k)"
        run_both(small_model("y, i", body, {"x": x}, {"k": k}), {"x": x})


@pytest.mark.parametrize("shape", [(2, 100), (3, 9000), (100, 3)])
@pytest.mark.parametrize("largest", [0, 1])
def test_a_large_k(run_both, shape, largest):
    axis = int(shape[0] < shape[1])
    x = np.random.default_rng(0).integers(-5000, 5000, shape).astype(np.float32)
    for k in (64, 65, 100):
        body = f"y, i = TopK<axis = {axis}, largest = {largest}>(x, k)"
        model = small_model("y, i", body, {"x": x}, {"k": ints(k)})
        run_both(model, {"x": x})


@pytest.mark.parametrize(
    ("body", "region", "reason"),
    [
        ("y = Resize<{}>(x, o, , s)", [0, 0, 0.2, 0, 1, 1, 1, 1], "up to rounding"),
        ('y = Resize<mode = "cubic", {}>(x, o, , s)', [0, 0, 0, 0.3, 1, 1, 1, 1], "up to rounding"),
        (
            'y = Resize<mode = "linear", antialias = 1, {}>(x, o, , s)',
            [0, 0, 0, 0, 1, 1, 1, 1],
            "antialias of a region",
        ),
    ],
)
def test_a_resized_region_that_is_refused(backends, body, region, reason):
    """At 0.2 + 0.8 it ends at the last entry, or just beyond."""
    body = body.format('coordinate_transformation_mode = "tf_crop_and_resize"')
    weights = {"o": np.array(region, np.float32), "s": ints(1, 2, 7, 4)}
    model = small_model("y", body, {"x": (1, 2, 5, 6)}, weights, 18)
    with pytest.raises(UnsupportedError, match=reason):
        intarsia.compile(model, "llvm", strict=True, backends=backends)


FLOAT64 = {
    "chain": ("a = Add(x, w) b = Tanh(a) y = Mul(b, x)", {"w": np.linspace(-1, 1, 6)}),
    "MatMul": ("y = MatMul(x, w)", {"w": np.linspace(-1, 1, 18).reshape(6, 3)}),
    "Softmax": ("y = Softmax<axis = 1>(x)", {}),
    "LayerNormalization": ("y = LayerNormalization(x, g)", {"g": np.linspace(1, 2, 6)}),
    "ReduceMean": ("y = ReduceMean<axes = [1]>(x)", {}),
    "Pad": ("y = Pad(x, p)", {"p": ints(0, 1, 0, 2, 1, 0, 0, 0)}),
    "Gather": ("y = Gather<axis = 3>(x, i)", {"i": ints(0, 5, -2)}),
    "Where": ("c = Greater(x, w) y = Where(c, x, w)", {"w": np.linspace(-1, 1, 6)}),
    "Cast": (
        "a = Cast<to = 1>(x) b = Cast<to = 10>(a) c = Cast<to = 6>(x) y = Cast<to = 1>(b)",
        {},
    ),
}


@pytest.mark.parametrize("case", FLOAT64)
def test_of_float64(run_both, case):
    body, weights = FLOAT64[case]
    model = small_model("y", body, {"x": np.zeros((2, 4, 5, 6))}, weights)
    run_both(model, feeds_of(model))


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
def test_a_transposed_convolution_of_a_given_shape_is_cut_or_longer(run_both, auto_pad, kernel):
    """Down to half of what is made, and up to a stride more."""
    stride, extent = 3, 4
    natural = stride * (extent - 1) + kernel
    for long in range(natural - 2, natural + stride):
        body = (
            f"y = ConvTranspose<strides = [{stride}], output_shape = [{long}],"
            f' auto_pad = "{auto_pad}">(x, w)'
        )
        model = small_model("y", body, {"x": (2, 3, extent)}, {"w": (3, 4, kernel)})
        run_both(model, feeds_of(model))


LONG_SUMS = {"conv": "p = Conv<pads = [1, 1, 1, 1]>(r, w)", "product": "p = MatMul(r, v)"}


@pytest.mark.parametrize("dtype", [6, 7, 9, 10, 11])
@pytest.mark.parametrize("case", LONG_SUMS)
def test_a_long_sum_in_another_dtype(run_both, case, dtype):
    rng = np.random.default_rng(3)
    weights = {
        "w": rng.integers(-2, 3, (20, 256, 3, 3)).astype(np.float32),
        "v": rng.integers(-2, 3, (3000, 20)).astype(np.float32),
    }
    name, shape = ("w", (1, 256, 5, 6)) if case == "conv" else ("v", (4, 3000))
    body = f"r = Round(x) {LONG_SUMS[case]} y = Cast<to = {dtype}>(p)"
    model = small_model("y", body, {"x": shape}, {name: weights[name]})
    run_both(model, feeds_of(model))


EMPTY = (
    *("y = Softmax(x)", "y = Softmax<axis = 1>(x)", "y = Transpose(x)", "y = Relu(x)"),
    *("y = Concat<axis = 1>(x, x)", "y = Gather<axis = 0>(x, i)", "y = Tile(x, r)"),
    "y, j = TopK<axis = 0>(x, i)",
    *("y = CumSum(x, a)", "y = ReduceSum<keepdims = 0>(x, i)", "y = Pad(x, p)", "y = Trilu(x)"),
    "y = ScatterElements(x, x0, x)",
)


@pytest.mark.parametrize("body", EMPTY)
def test_on_an_empty_tensor(run_both, body):
    weights = {"i": ints(1), "r": ints(2, 1, 2), "a": np.array(0, np.int64)}
    weights |= {"p": ints(0, 1, 0, 0, 2, 0), "x0": np.zeros((2, 0, 3), np.int64)}
    used = {
        name: array for name, array in weights.items() if f" {name})" in body or f" {name}," in body
    }
    model = small_model("y", body, {"x": (2, 0, 3)}, used)
    run_both(model, feeds_of(model))


def test_a_number_meets_an_empty_tensor_in_a_kernel(run_both):
    model = small_model("y", "s = Softmax<axis = 1>(x) y = Add(s, b)", {"x": (0, 4, 3), "b": ()})
    run_both(model, feeds_of(model))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]
)
def test_an_empty_tensor_is_resized_by_another_backend(backends, mode, coordinates):
    body = f'y = Resize<mode = "{mode}", coordinate_transformation_mode = "{coordinates}">(x, , s)'
    scales = {"s": np.array([1, 1, 1.5, 3], np.float32)}
    model = small_model("y", body, {"x": (0, 1, 4, 2)}, scales)
    exe = intarsia.compile(model, "llvm, onnxruntime", num_threads=1, backends=backends)
    assert exe.run(feeds_of(model))["y"].shape == (0, 1, 6, 6)


@pytest.mark.parametrize("height", [1, 2, 4, 5, 6, 7, 9])
@pytest.mark.parametrize("wanted", [(3, 20, 5), (1, 19, 8), (4, 23, 1)])
def test_cropped_and_padded_around_the_centre(run_both, height, wanted):
    weights = {"s": ints(*wanted[:2], height, wanted[2])}
    cropped = "c = Conv(x, w) y = CenterCropPad(c, s)"
    model = small_model("y", cropped, IMAGE, WIDE | weights, 18)
    run_both(model, feeds_of(model))
    part = "c = Conv(x, w) p = CenterCropPad<axes = [-2, 3]>(c, s) y = Conv(p, w)"
    weights = {"s": ints(height, wanted[2])}
    model = small_model("y", part, IMAGE, WIDE | weights, 18)
    run_both(model, feeds_of(model))
