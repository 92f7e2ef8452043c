# SPDX-License-Identifier: Apache-2.0
"""How values lie: blocked, padded, inside others, as views; the numbers are onnxruntime's."""

import numpy as np
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.lower.small_models import feeds_of, small_model

from intarsia.codegen.lower.program import StorageKind
from intarsia.codegen.lower.views import View
from intarsia.codegen.unit import AVX2, AVX512, NEON, SCALAR, SSE

W32, W3 = (32, 32, 1, 1), (32, 32, 3, 3)
PADDED = "<pads = [1, 1, 1, 1], kernel_shape = [3, 3]>"


def ints(*numbers):
    return np.array(numbers, np.int64)


CASES = {
    "blocked from the first to the last convolution": (
        f"y: a = Conv{PADDED}(x, w) b = Relu(a) c = Conv{PADDED}(b, w) y = Add(c, b)",
        {"w": W3},
    ),
    "channels that fill no block": (
        f"y: a = Conv{PADDED}(x, v) b = Relu(a) y = Conv{PADDED}(b, u)",
        {"v": (20, 32, 3, 3), "u": (7, 20, 3, 3)},
    ),
    "a blocked value as output": ("a, y: a = Conv(x, w) y = Conv(a, w)", {"w": W32}),
    "one value read blocked, plain and dense": (
        "y, z, t: a = Conv(x, w) y = Relu(a) z = Reshape(a, s) t = Conv(a, w)",
        {"w": W32, "s": ints(32, 25)},
    ),
    "concat of blocked values": (
        f"y: a = Conv(x, w) b = Conv(x, w) c = Concat<axis = 1>(a, b) y = Conv{PADDED}(c, v)",
        {"w": W32, "v": (8, 64, 3, 3)},
    ),
    "concat whose border the next convolution wants": (
        "y: a = Conv(x, w) c = Concat<axis = -3>(a, a) b = Relu(a) d = Concat<axis = 1>(b, c)"
        f" y = Conv{PADDED}(d, v)",
        {"w": W32, "v": (8, 96, 3, 3)},
    ),
    "concat with a part that fills no block at the end": (
        f"y: a = Conv(x, w) b = Conv(x, v) c = Concat<axis = 1>(a, b) y = Conv{PADDED}(c, u)",
        {"w": W32, "v": (7, 32, 1, 1), "u": (8, 39, 3, 3)},
    ),
    "concat with a part that fills no block in the middle": (
        f"y: a = Conv(x, w) b = Conv(x, v) c = Concat<axis = 1>(b, a) y = Conv{PADDED}(c, u)",
        {"w": W32, "v": (7, 32, 1, 1), "u": (8, 39, 3, 3)},
    ),
    "concat of parts that begin inside one block": (
        "y: a = Conv(x, w) b = Conv(x, v) c = Conv(x, u) d = Concat<axis = 1>(b, c, a, b, c)"
        f" y = Conv{PADDED}(d, t)",
        {"w": W32, "v": (20, 32, 1, 1), "u": (3, 32, 1, 1), "t": (8, 78, 3, 3)},
    ),
    "concat of a concat that fills no block": (
        "y, z: a = Conv(x, w) b = Conv(x, v) c = Concat<axis = 1>(b, a) z = Relu(b)"
        f" d = Concat<axis = 1>(c, a, b, c) y = Conv{PADDED}(d, t)",
        {"w": W32, "v": (9, 32, 1, 1), "t": (8, 123, 3, 3)},
    ),
    "nested concats": (
        "y: a = Conv(x, w) b = Relu(a) c = Concat<axis = 1>(a, b) d = Sigmoid(c)"
        " e = Concat<axis = 1>(c, d) f = Concat<axis = 1>(e, a) y = Neg(f)",
        {"w": W32},
    ),
    "two concats that share a part": (
        "y, z: a = Conv(x, w) b = Relu(a) y = Concat<axis = 1>(a, b) z = Concat<axis = 1>(b, a)",
        {"w": W32},
    ),
    "concat of one value twice": (
        "y: a = Conv(x, w) c = Concat<axis = 1>(a, a) y = Relu(c)",
        {"w": W32},
    ),
    "concat with an input of the region": (
        "y, z: a = Conv(x, w) y = Concat<axis = 1>(x, a) z = Concat<axis = 2>(x, x)",
        {"w": W32},
    ),
    "concat with a constant": (
        "y: a = Relu(x) y = Concat<axis = 1>(k, a, k)",
        {"k": (1, 3, 5, 5)},
    ),
    "concat with a part that is an output": (
        "a, y: a = Conv(x, w) b = Relu(a) c = Concat<axis = 1>(a, b) y = Neg(c)",
        {"w": W32},
    ),
    "concat over space": (
        f"y: a = Conv(x, w) b = Relu(a) c = Concat<axis = 2>(a, b) y = Conv{PADDED}(c, v)",
        {"w": W32, "v": W3},
    ),
    "concat over the batch": (
        f"y: a = Conv(x, w) b = Relu(a) c = Concat<axis = 0>(a, b) y = Conv{PADDED}(c, v)",
        {"w": W32, "v": W3},
    ),
    "concat of views": (
        "y: a = Relu(x) b = Transpose<perm = [0, 1, 3, 2]>(a) c = Expand(k, s)"
        " y = Concat<axis = 1>(b, c, a)",
        {"k": (1, 1, 5, 1), "s": ints(1, 4, 5, 5)},
    ),
    "concat of what is only renamed": (
        "y: a = Relu(x) b = Reshape(a, s) c = Reshape(x, s) y = Concat<axis = 0>(b, c)",
        {"s": ints(4, 8, 25)},
    ),
    "concat of parts of a split": (
        "y: a = Conv(x, w) b, c = Split<axis = 1>(a, s) y = Concat<axis = 1>(c, b)",
        {"w": W32, "s": ints(12, 20)},
    ),
    "split at whole blocks": (
        "y, z: a = Conv(x, w) b, c = Split<axis = 1>(a, s) y = Conv(b, v) z = Relu(c)",
        {"w": W32, "s": ints(16, 16), "v": (8, 16, 1, 1)},
    ),
    "split that cuts a block": (
        "y, z: a = Conv(x, w) b, c = Split<axis = 1>(a, s) y = Conv(b, v) z = Relu(c)",
        {"w": W32, "s": ints(8, 24), "v": (8, 8, 1, 1)},
    ),
    "split of a plain value, parts as outputs": (
        "y, z: y, z = Split<axis = 2>(x, s)",
        {"s": ints(2, 3)},
    ),
    "slice with a step": (
        "y: a = Conv(x, w) b = Slice(a, one, end, two, step) y = Conv(b, w)",
        {"w": W32, "one": ints(1), "end": ints(99), "two": ints(2), "step": ints(2)},
    ),
    "slice backwards": (
        "y: a = Conv(x, w) b = Slice(a, from, to, axes, step) y = Relu(b)",
        {
            "w": W32,
            "from": ints(-1, 30, 3),
            "to": ints(-99, 3, 0),
            "axes": ints(3, 1, 2),
            "step": ints(-1, -3, -2),
        },
    ),
    "slice of channels in the middle of a block": (
        f"y: a = Conv(x, w) b = Slice(a, from, to, axes) y = Conv{PADDED}(b, v)",
        {"w": W32, "from": ints(5), "to": ints(21), "axes": ints(1), "v": (8, 16, 3, 3)},
    ),
    "slice of whole blocks with fewer channels": (
        f"y: a = Conv(x, w) b = Slice(a, from, to, axes) y = Conv{PADDED}(b, v)",
        {"w": W32, "from": ints(16), "to": ints(25), "axes": ints(1), "v": (8, 9, 3, 3)},
    ),
    "a transposed value as every operand": (
        "y, z, p, m: t = Transpose<perm = [0, 1, 3, 2]>(x) y = Conv(t, w) z = Add(t, x)"
        " p = MaxPool<kernel_shape = [2, 2]>(t) m = MatMul(t, t)",
        {"w": W32},
    ),
    "channels last": (
        "y: t = Transpose<perm = [0, 2, 3, 1]>(x) a = MatMul(t, k) b = Relu(a)"
        f" c = Transpose<perm = [0, 3, 1, 2]>(b) y = Conv{PADDED}(c, w)",
        {"w": W3, "k": (32, 32)},
    ),
    "a broadcast value as every operand": (
        "y, z, p, m, c: t = Expand(k, s) y = Conv(t, w) z = Add(t, x)"
        " p = AveragePool<kernel_shape = [2, 2]>(t) m = MatMul(t, x) c = Concat<axis = 1>(t, t)",
        {"w": W32, "k": (1, 32, 1, 5), "s": ints(1, 32, 5, 5)},
    ),
    "a broadcast image for a plain convolution": (
        "y: r = Neg(k) t = Expand(r, s) y = Conv(t, w)",
        {"w": (3, 3, 3, 3), "k": (1, 3, 1, 5), "s": ints(1, 3, 5, 5)},
    ),
    "aliases as outputs": (
        "y, z, t: a = Relu(x) y = Reshape(a, s) z = Transpose(a) t = Slice(a, one, end, one)",
        {"s": ints(800), "one": ints(1), "end": ints(9)},
    ),
    "aliases of aliases as outputs": (
        "y, z: y = Reshape(x, s) z = Reshape(y, t)",
        {"s": ints(32, 25), "t": ints(5, 160)},
    ),
    "the same view twice": (
        "y, z: y = Transpose(x) z = Transpose(x)",
        {},
    ),
    "operands that are broadcast over a blocked value": (
        "y: a = Conv(x, w) b = Mul(a, k) c = Add(b, l) d = Add(c, m) e = Add(d, n) y = Add(e, q)",
        {
            "w": (20, 32, 1, 1),
            "k": (20, 1, 1),
            "l": (5,),
            "m": (1, 1, 5, 1),
            "n": (),
            "q": (20, 5, 5),
        },
    ),
    "operands that are broadcast, unknown when compiling": (
        "y: a = Conv(x, w) b = Mul(a, k) c = Add(b, l) d = Add(c, m) e = Add(d, n) y = Add(e, q)",
        {"w": (20, 32, 1, 1)},
        {
            "k": (20, 1, 1),
            "l": (5,),
            "m": (1, 1, 5, 1),
            "n": (),
            "q": (20, 5, 5),
            "x": (2, 32, 5, 5),
        },
    ),
    "squeeze and excitation": (
        f"y: a = Conv{PADDED}(x, w) p = GlobalAveragePool(a) q = Conv(p, v) r = Relu(q)"
        " s = Conv(r, u) t = Sigmoid(s) y = Mul(a, t)",
        {"w": W3, "v": (7, 32, 1, 1), "u": (32, 7, 1, 1)},
    ),
    "a classifier after pooling": (
        "y: a = Conv(x, w) p = GlobalAveragePool(a) f = Flatten(p) y = Gemm<transB = 1>(f, k, b)",
        {"w": W32, "k": (10, 32), "b": (10,)},
        {"x": (3, 32, 5, 5)},
    ),
    "weights that are called as ours are": (
        f"y, z: a = Conv{PADDED}(x, w) y = Add(a, zero) n0 = Relu(x)"
        " b = BatchNormalization(n0, scale, bias, mean, variance) z = Mul(b, k)",
        {
            "w": W3,
            "zero": (1, 1, 1, 1),
            "scale": (32,),
            "bias": (32,),
            "mean": (32,),
            "variance": np.linspace(1, 2, 32, dtype=np.float32),
            "k": (1, 32, 1, 1),
        },
    ),
    "weights that two operators read in two ways": (
        "y, z: y = Conv<group = 2>(x, w) s = Slice(x, a, b, c) z = Conv(s, w)",
        {"w": (32, 16, 1, 1), "a": ints(0), "b": ints(16), "c": ints(1)},
    ),
    "transposed convolutions of one weight with other strides": (
        "y, z: y = ConvTranspose<strides = [2, 2]>(x, w)"
        " z = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w)",
        {"w": (32, 16, 3, 3)},
    ),
    "scalars": ("y, z: y = Add(x, k) z = Expand(y, s)", {"k": (), "s": ints(2, 3)}, {"x": ()}),
    "a scalar of a tensor": (
        "y: a = Reshape(x, s) y = Mul(a, a)",
        {"s": ints().reshape(0)},
        {"x": (1, 1)},
    ),
    "empty tensors": (
        "y, z, c: y = Relu(x) z = Reshape(y, s) c = Concat<axis = 0>(y, k)",
        {"s": ints(0, 7), "k": (2, 3)},
        {"x": (0, 3)},
    ),
    "an empty batch": (
        f"y: a = Conv{PADDED}(x, w) b = Relu(a) y = Concat<axis = 1>(a, b)",
        {"w": W3},
        {"x": (0, 32, 5, 5)},
    ),
    "an empty slice": (
        "y: a = Conv(x, w) b = Slice(a, from, from, one) y = Relu(b)",
        {"w": W32, "from": ints(3), "one": ints(1)},
    ),
    "one dimension of space": (
        "y: a = Conv<pads = [1, 1]>(x, w) y = Concat<axis = 1>(a, x)",
        {"w": (32, 32, 3)},
        {"x": (2, 32, 9)},
    ),
    "three dimensions of space": (
        "y: a = Conv<pads = [1, 1, 1, 1, 1, 1]>(x, w) b = Relu(a) y = Conv(b, v)",
        {"w": (20, 32, 3, 3, 3), "v": (3, 20, 1, 1, 1)},
        {"x": (2, 32, 3, 4, 5)},
    ),
    "comparisons behind a convolution": (
        "y: a = Conv(x, w) b = Greater(a, x) y = Where(b, a, x)",
        {"w": W32},
    ),
    "tokens that become an image and tokens again": (
        "y: a = Transpose<perm = [0, 2, 1]>(x) b = Reshape(a, s)"
        " c = Conv<group = 32, pads = [1, 1, 1, 1]>(b, w)"
        " d = Reshape(c, t) e = Transpose<perm = [0, 2, 1]>(d) y = Erf(e)",
        {"w": (32, 1, 3, 3), "s": ints(2, 32, 5, 7), "t": ints(2, 32, 35)},
        {"x": (2, 35, 32)},
    ),
    "tokens that become an image whose channels fill no block": (
        "y: r = Relu(x) a = Transpose<perm = [0, 2, 1]>(r) b = Reshape(a, s) c = Conv(b, w)"
        " d = Reshape(c, t) e = Transpose<perm = [0, 2, 1]>(d) y = Relu(e)",
        {"w": (24, 20, 1, 1), "s": ints(2, 20, 5, 7), "t": ints(2, 24, 35)},
        {"x": (2, 35, 20)},
    ),
    "tokens for convolutions with and without a border": (
        "y, z: r = Relu(x) a = Transpose<perm = [0, 2, 1]>(r) b = Reshape(a, s)"
        f" c = Conv{PADDED}(b, w) d = Conv<strides = [2, 2], kernel_shape = [2, 2]>(b, v)"
        " y = Transpose<perm = [0, 2, 3, 1]>(c) e = Flatten<axis = 2>(d) z = Relu(d)",
        {"w": (32, 32, 3, 3), "v": (48, 32, 2, 2), "s": ints(2, 32, 6, 4)},
        {"x": (2, 24, 32)},
    ),
    "an image that becomes tokens in a residual": (
        f"y: a = Conv{PADDED}(x, w) b = Relu(a) c = Reshape(b, s)"
        " d = Transpose<perm = [0, 2, 1]>(c) e = MatMul(d, k)"
        " f = Add(e, d) y = LayerNormalization(f, g)",
        {"w": W3, "s": ints(0, 0, -1), "k": (32, 32), "g": (32,)},
    ),
    "an image that becomes tokens and stays an image": (
        f"y, z: a = Conv{PADDED}(x, w) b = Reshape(a, s) c = Transpose<perm = [0, 2, 1]>(b)"
        " y = MatMul(c, k) z = Conv(a, v)",
        {"w": W3, "s": ints(0, 0, -1), "k": (32, 32), "v": W32},
    ),
    "an image that becomes tokens and lies in another": (
        f"y, z: a = Conv{PADDED}(x, w) b = Reshape(a, s) c = Transpose<perm = [0, 2, 1]>(b)"
        " y = MatMul(c, k) d = Relu(x) z = Concat<axis = 1>(a, d)",
        {"w": W3, "s": ints(0, 0, -1), "k": (32, 32)},
    ),
    "an image pooled and resized into tokens": (
        "y, z: a = Conv(x, w) p = MaxPool<kernel_shape = [2, 2]>(a) b = Reshape(p, s)"
        ' y = Transpose<perm = [0, 2, 1]>(b) r = Resize<mode = "linear">(a, , , t)'
        " c = Reshape(r, s) z = Transpose<perm = [0, 2, 1]>(c)",
        {"w": W32, "s": ints(0, 0, -1), "t": ints(1, 32, 10, 7)},
    ),
    "tokens that become an image and are resized": (
        "y, z: r = Relu(x) a = Transpose<perm = [0, 2, 1]>(r) b = Reshape(a, s)"
        ' c = Resize<mode = "linear">(b, , , t) d = Sigmoid(c) y = Conv(d, w)'
        " z = Resize(b, , , t)",
        {"w": (8, 32, 1, 1), "s": ints(2, 32, 5, 7), "t": ints(2, 32, 10, 14)},
        {"x": (2, 35, 32)},
    ),
    "a volume that becomes tokens": (
        "y: a = Conv<pads = [1, 1, 1, 1, 1, 1]>(x, w) b = Reshape(a, s)"
        " y = Transpose<perm = [0, 2, 1]>(b)",
        {"w": (32, 16, 3, 3, 3), "s": ints(0, 0, -1)},
        {"x": (2, 16, 3, 4, 5)},
    ),
    "an image of one channel that is broadcast, in other groups": (
        "y: a = Expand(x, s) b = Reshape(a, t) c = Transpose<perm = [2, 0, 1]>(b)"
        " d = Reshape(c, u) y = Relu(d)",
        {"s": ints(4, 6, 5), "t": ints(2, 12, 5), "u": ints(5, 24)},
        {"x": (4, 1, 5)},
    ),
    "windows of tokens": (
        "y: r = Relu(x) a = Reshape(r, s) b = Transpose<perm = [0, 1, 3, 2, 4, 5]>(a)"
        " c = Reshape(b, t) d = MatMul(c, k) e = Reshape(d, u)"
        " f = Transpose<perm = [0, 1, 3, 2, 4, 5]>(e) g = Reshape(f, v) y = Add(g, r)",
        {
            "s": ints(1, 2, 3, 2, 3, 32),
            "t": ints(4, 9, 32),
            "k": (32, 32),
            "u": ints(1, 2, 2, 3, 3, 32),
            "v": ints(1, 6, 6, 32),
        },
        {"x": (1, 6, 6, 32)},
    ),
    "a cast behind a convolution": (
        "y, z: a = Conv(x, w) y = Cast<to = 7>(a) b = Conv(x, w) z = Cast<to = 11>(b)",
        {"w": W32},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers(case, run_both):
    text, weights, *inputs = CASES[case]
    outputs, body = text.split(": ", 1)
    model = small_model(outputs, body, inputs[0] if inputs else None, weights)
    run_both(model, feeds_of(model))


SHUFFLES = {
    "pairs": (2, 32, "<group = 64, kernel_shape = [3, 3], pads = [1, 1, 1, 1]>", "y"),
    "by four, two images": (4, 20, "<group = 80, kernel_shape = [3, 3], pads = [2, 0, 1, 3]>", "y"),
    "by eight, without a border": (8, 6, "<group = 48, kernel_shape = [2, 2]>", "y"),
    "more than a block": (32, 2, "<group = 64, kernel_shape = [3, 3]>", "y"),
    "a number that divides no block": (3, 16, "<group = 48, kernel_shape = [3, 3]>", "y"),
    "channels that fill no block": (2, 17, "<group = 34, kernel_shape = [3, 3]>", "y"),
    "seen as they are too": (4, 8, "<group = 32, kernel_shape = [3, 3]>", "y, e, z"),
}


@pytest.mark.parametrize("case", SHUFFLES)
def test_shuffled_channels(case, run_both):
    groups, width, conv, outputs = SHUFFLES[case]
    model = _shuffle(groups, width, conv, outputs)
    run_both(model, feeds_of(model))


def _shuffle(groups, width, conv, outputs="y"):
    """Return a depthwise convolution of channels that have changed places, of two images."""
    channels = groups * width
    body = f"""
        b = Relu(x) c = Reshape(b, apart) d = Transpose<perm = [0, 2, 1, 3, 4]>(c)
        e = Reshape(d, whole) f = Conv{conv}(e, w) y = Relu(f)"""
    if "z" in outputs:
        body += " z = Neg(e)"
    taps = (2, 2) if "[2, 2]" in conv else (3, 3)
    weights = {"w": (channels, 1, *taps), "whole": ints(2, channels, 5, 6)}
    weights["apart"] = ints(2, groups, width, 5, 6)
    return small_model(outputs, body, {"x": (2, channels, 5, 6)}, weights)


@pytest.mark.parametrize(
    ("groups", "width", "unit", "found"),
    [
        (4, 34, AVX2, ["plain to blocked by 8 e"]),
        (4, 68, AVX512, ["plain to blocked by 16 e"]),
        (4, 34, AVX512, ["pack d", "plain to blocked by 16 e"]),  # a block begins inside a group
        (3, 16, AVX512, ["pack d", "plain to blocked by 16 e"]),
    ],
)
def test_shuffled_channels_are_copied_once(groups, width, unit, found, lower_model):
    conv = f"<group = {groups * width}, kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"
    program, _ = lower_model(_shuffle(groups, width, conv), unit)
    assert conversions(program)[:-1] == found


@pytest.mark.parametrize("role", ["scale", "shift"])
def test_weights_may_be_called_as_ours_are(role, run_both):
    """What is made of a BatchNormalization is named after its node."""
    weights = dict.fromkeys(("s", "b", "m"), (32,))
    weights |= {"v": np.linspace(1, 2, 32, dtype=np.float32), "k": (1, 32, 1, 1)}
    body = "a = Mul(x, k) c = BatchNormalization(a, s, b, m, v) y = Concat<axis = 1>(c, k2)"
    weights["k2"] = (1, 8, 5, 5)
    for renamed in ("k", "k2"):
        model = small_model("y", body, weights=weights)
        (tensor,) = (item for item in model.graph.initializer if item.name == renamed)
        tensor.name = f"n1/{role}"
        for node in model.graph.node:
            node.input[:] = [tensor.name if name == renamed else name for name in node.input]
        run_both(model, feeds_of(model))


UNITS = {"AVX-512": AVX512, "AVX2": AVX2, "SSE": SSE, "NEON": NEON, "scalar": SCALAR}


@pytest.mark.sample(4)
@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
@pytest.mark.parametrize("case", CASES)
def test_every_width_can_be_lowered(case, unit, lower_model):
    text, weights, *inputs = CASES[case]
    outputs, body = text.split(": ", 1)
    model = small_model(outputs, body, inputs[0] if inputs else None, weights)
    program, _ = lower_model(model, unit)
    assert str(program)


def conversions(program):
    return [call.note for call in program.calls if not call.nodes and "border" not in call.note]


def notes(case, lower_model):
    text, weights, *inputs = CASES[case]
    outputs, body = text.split(": ", 1)
    return conversions(
        lower_model(small_model(outputs, body, inputs[0] if inputs else None, weights))[0]
    )


def test_only_the_ends_of_a_chain_are_converted(lower_model):
    found = notes("blocked from the first to the last convolution", lower_model)
    assert found == ["plain to blocked by 16 x", "blocked by 16 to plain y"]


def test_tokens_around_a_depthwise_convolution_are_copied_once(lower_model):
    found = notes("tokens that become an image and tokens again", lower_model)
    assert found == ["plain to blocked by 16 b"]


def test_tokens_are_resized_where_they_lie(lower_model):
    found = notes("tokens that become an image and are resized", lower_model)
    assert found == ["blocked by 16 to plain y", "blocked by 16 to plain z"]


def test_an_image_is_written_as_tokens(lower_model):
    found = notes("an image that becomes tokens in a residual", lower_model)
    assert found == ["plain to blocked by 16 x"]


@given(st.data())
def test_dimensions_are_grouped_anew_as_numpy_does(data):
    extents = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(extents))))
    repeat = data.draw(st.integers(1, 3))
    array = np.arange(np.prod(extents)).reshape(extents).transpose(order)
    array = np.broadcast_to(array, (repeat, *array.shape))
    factors = data.draw(st.permutations(_primes(array.size)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(factors)), max_size=4)))
    groups = zip([0, *cuts], [*cuts, len(factors)], strict=True)
    shape = tuple(int(np.prod(factors[first:end])) for first, end in groups)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    view = View(0, "int64", array.shape, strides).viewed_as(shape)
    try:
        wanted = array.view()
        wanted.shape = shape
    except AttributeError:
        assert view is None
    else:
        assert view is not None
        assert view.shape == shape
        steps = [stride * array.itemsize for stride in view.strides]
        got = np.lib.stride_tricks.as_strided(array, shape, steps)
        np.testing.assert_array_equal(got, wanted)


def _primes(number):
    """Return the prime factors of a number, each as often as it divides."""
    factors = []
    for factor in (2, 3):
        while number % factor == 0:
            factors.append(factor)
            number //= factor
    return factors


def test_a_concat_is_written_in_place(lower_model):
    found = notes("concat of blocked values", lower_model)
    assert found == ["plain to blocked by 16 x", "blocked by 16 to plain y"]


def test_views_cost_nothing(lower_model):
    body = "a = Transpose<perm = [0, 1, 3, 2]>(x) b = Slice(a, i, j, i) y = Relu(b)"
    model = small_model("y", body, weights={"i": ints(1), "j": ints(3)})
    program, _ = lower_model(model)
    assert [call.nodes for call in program.calls] == [("n2",)]


def test_outputs_are_written_where_they_belong(lower_model):
    """A plain result goes to the caller's memory at once, and others read it from there."""
    program, _ = lower_model(small_model("y, z", "y = Relu(x) z = Neg(y)"))
    assert len(program.calls) == 2
    assert program.scratch_bytes == 0
    kinds = [[program.storages[a.storage].kind for a in call.arguments] for call in program.calls]
    assert kinds == [
        [StorageKind.INPUT, StorageKind.OUTPUT],
        [StorageKind.OUTPUT, StorageKind.OUTPUT],
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Concat<axis = 0>(x, w)", ((0, 0),)),
        ("v = Transpose<perm = [1, 0]>(x) y = Concat<axis = 0>(v, w)", ()),
        ("v = Slice(x, one, three) y = Concat<axis = 0>(v, w)", ()),
        ("v = Slice(x, last, before, zero, back) y = Concat<axis = 0>(v, w)", ()),
        ("v = Slice(x, zero, three) y = Concat<axis = 0>(v, w)", ((0, 0),)),
    ],
    ids=["as they lie", "turned", "without the first one", "backwards", "without the last ones"],
)
def test_rows_stay_where_they_are_unless_a_view_moves_them(lower_model, body, expected):
    numbers = {"zero": 0, "one": 1, "three": 3, "last": -1, "before": -9, "back": -1}
    constants = ", ".join(f"int64[1] {name} = {{{number}}}" for name, number in numbers.items())
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    g (float[4,4] x, float[2,4] w) => (float[N,4] y) <{constants}> {{ {body} }}"""
    program, _ = lower_model(onnx.parser.parse_model(text))
    assert program.in_place == expected
