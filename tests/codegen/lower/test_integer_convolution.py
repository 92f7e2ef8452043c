"""Convolutions of codes: the reference evaluator's numbers to the bit, in integers."""

import numpy as np
import pytest
from tests.codegen.lower.small_models import small_model
from tests.codegen.lower.test_integer_products import UNITS, check, check_unit, codes, scales

import intarsia
from intarsia.errors import UnsupportedError

DTYPES = [(a, b) for a in ("uint8", "int8") for b in ("uint8", "int8")]
SHAPES = {
    "pointwise": (16, 24, 1, (1, 1), ""),
    "part of a block": (20, 11, 1, (3, 3), "pads = [1, 1, 1, 1]"),
    "few channels": (3, 16, 1, (3, 3), "strides = [2, 2], pads = [1, 1, 1, 1]"),
    "dilated": (16, 16, 1, (3, 2), "dilations = [2, 1], pads = [1, 0, 2, 1]"),
    "groups": (32, 32, 2, (3, 3), 'auto_pad = "SAME_UPPER"'),
    "narrow groups": (6, 4, 2, (3, 3), "pads = [1, 1, 1, 1]"),
    "depthwise": (20, 20, 20, (3, 3), "strides = [2, 1], pads = [1, 1, 1, 1]"),
    "depthwise without padding": (16, 16, 16, (3, 3), ""),
    "few outputs": (10, 2, 1, (1, 1), ""),
    "one dimension": (16, 16, 1, (3,), "pads = [1, 1]"),
    "volume": (8, 8, 1, (2, 2, 2), "pads = [1, 0, 0, 0, 1, 0]"),
}


def parts(name, a, b):
    """The shape of weights, feeds, and attributes of a case."""
    inputs, outputs, groups, taps, more = SHAPES[name]
    image = (7, 9, 4)[: len(taps)]
    weights = codes(b, outputs, inputs // groups, *taps)
    return weights, {"x": codes(a, 2, inputs, *image)}, f"<group = {groups}, {more or 'pads = PADS'}>"


def convolution(name, a="uint8", b="int8", zero=True):
    """A ConvInteger and its feeds."""
    weights, feeds, attributes = parts(name, a, b)
    attributes = attributes.replace("PADS", str([0] * 2 * (weights.ndim - 2)))
    # The reference has one for each channel only of images.
    zeros = codes(b, *weights.shape[:1]) if weights.ndim == 4 else codes(b)
    arrays = {"w": weights} | ({"z": codes(a), "v": zeros} if zero else {})
    body = f"y = ConvInteger {attributes} (x, w{', z, v' if zero else ''})"
    return small_model("y", body, feeds, arrays, 21), feeds


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_conv_integer(backends, name, zero):
    a, b = DTYPES[list(SHAPES).index(name) % len(DTYPES)]
    check(backends, *convolution(name, a, b, zero))


@pytest.mark.parametrize(("a", "b"), DTYPES)
def test_dtypes_of_codes(backends, a, b):
    check(backends, *convolution("part of a block", a, b))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", ["pointwise", "few channels", "groups", "depthwise"])
def test_conv_integer_for_other_units(lower_model, name, unit):
    for zero in (False, True):
        model, feeds = convolution(name, "uint8", "int8", zero)
        program = check_unit(lower_model, model, feeds, UNITS[unit])
        notes = [call.note for call in program.calls]
        # a byte that stands for zero is none, so that what is padded is widened
        is_bytes = not zero and UNITS[unit].has_byte_dots
        if name != "depthwise":
            assert ("uint8 times int8" in notes) == is_bytes, notes


@pytest.mark.parametrize("unit", ["vnni", "pairs"])
def test_a_zero_point_in_what_is_read_as_it_is(lower_model, unit):
    """Without padding, what the zero point adds is known of each channel."""
    weights, feeds, _ = parts("pointwise", "uint8", "int8")
    arrays = {"w": weights, "z": np.uint8(113)}
    model = small_model("y", "y = ConvInteger(x, w, z)", feeds, arrays)
    notes = [call.note for call in check_unit(lower_model, model, feeds, UNITS[unit]).calls]
    assert ("uint8 times int8" in notes) == UNITS[unit].has_byte_dots


def test_sums_that_float32_does_not_hold(backends):
    """Filters of 289 taps of the largest codes, of which one is less: an odd sum above 2^24."""
    weights = np.full((8, 1, 29, 29), 127, np.int8)
    weights[:, 0, 3, 5] = 126
    feeds = {"x": np.full((1, 8, 29, 29), 255, np.uint8)}
    model = small_model("y", "y = ConvInteger <group = 8> (x, w)", feeds, {"w": weights})
    check(backends, model, feeds)


def qlinear(name, a="uint8", w_scale=True, bias=True):
    """A QLinearConv and its feeds."""
    weights, feeds, attributes = parts(name, a, "int8")
    attributes = attributes.replace("PADS", str([0] * 2 * (weights.ndim - 2)))
    count = len(weights)
    arrays = {
        "w": weights,
        "s": scales(),
        "z": codes(a),
        "t": scales(count) if w_scale else scales(),
        "v": np.zeros(count if w_scale else (), np.int8),
        "u": np.float32(1.7),
        "o": codes(a),
        "b": np.random.default_rng(5).integers(-9999, 9999, count, np.int32),
    }
    body = f"y = QLinearConv {attributes} (x, s, z, w, t, v, u, o{', b' if bias else ''})"
    return small_model("y", body, feeds, arrays), feeds


@pytest.mark.parametrize("name", ["pointwise", "part of a block", "depthwise", "few outputs"])
@pytest.mark.parametrize("a", ["uint8", "int8"])
def test_qlinear_conv(backends, name, a):
    check(backends, *qlinear(name, a, w_scale=a == "int8", bias=name != "depthwise"))


@pytest.mark.parametrize("unit", ["vnni", "avx512", "scalar"])
def test_qlinear_conv_for_other_units(lower_model, unit):
    check_unit(lower_model, *qlinear("few channels"), UNITS[unit])


def network(activation="", *, bias="int32", per_channel=True, y="uint8", extra=""):
    """Two convolutions between Q and DQ nodes, the second depthwise, and their feeds."""
    n = (24,) if per_channel else ()
    rng = np.random.default_rng(11)
    arrays = {
        "w": codes("int8", 24, 16, 3, 3),
        "d": codes("int8", 24, 1, 3, 3),
        "s": np.float32(0.02),
        "z": np.uint8(117),
        "t": scales(*n) / 10,
        "v": np.zeros(n, np.int8),
        "u": np.float32(0.05),
        "o": np.array(0 if activation else 60, y),
        "bt": (np.float32(0.02) * scales(*n) / 10).astype(np.float32),
        "b": rng.integers(-9999, 9999, 24, np.int32),
        "f": rng.standard_normal(24).astype(np.float32),
        "k": np.float32(0.1),
        "six": np.float32(6),
        "nil": np.float32(0),
    }
    zero = "v" if per_channel else "v"
    bias_node = {"int32": "bd = DequantizeLinear <axis = 0> (b, bt)", "float32": "bd = Identity(f)"}
    clip = {"": "r = Identity(c)", "relu": "r = Relu(c)", "relu6": "r = Clip(c, nil, six)"}
    body = f"""
        xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
        wd = DequantizeLinear <axis = 0> (w, t, {zero}) {bias_node[bias]}
        c = Conv <pads = [1, 1, 1, 1]> (xd, wd, bd) {clip[activation]}
        q = QuantizeLinear(r, u, o) rd = DequantizeLinear(q, u, o)
        dd = DequantizeLinear <axis = 0> (d, t, {zero})
        e = Conv <group = 24, pads = [1, 1, 1, 1]> (rd, dd)
        p = QuantizeLinear(e, k, o) {extra or 'y = DequantizeLinear(p, k, o)'}"""
    feeds = {"x": rng.standard_normal((2, 16, 7, 9)).astype(np.float32)}
    return small_model("y", body, {"x": (2, 16, 7, 9)}, arrays, 21), feeds
