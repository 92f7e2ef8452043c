"""Convolutions of codes: the reference evaluator's numbers to the bit, in integers."""

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.lower.small_models import small_model
from tests.codegen.lower.test_integer_products import (
    RNG,
    UNITS,
    check,
    check_unit,
    codes,
    reference,
    scales,
)

import intarsia
from intarsia.codegen.ir import Dot, walk
from intarsia.codegen.unit import NEON, CpuModel
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
    return (
        weights,
        {"x": codes(a, 2, inputs, *image)},
        f"<group = {groups}, {more or 'pads = PADS'}>",
    )


def convolution(name, a="uint8", b="int8", zero=True):
    """A ConvInteger and its feeds."""
    weights, feeds, attributes = parts(name, a, b)
    attributes = attributes.replace("PADS", str([0] * 2 * (weights.ndim - 2)))
    # The reference has one for each channel only of images.
    zeros = codes(b, *weights.shape[:1]) if weights.ndim == 4 else codes(b)
    arrays = {"w": weights} | ({"z": codes(a), "v": zeros} if zero else {})
    body = f"y = ConvInteger {attributes} (x, w{', z, v' if zero else ''})"
    return small_model("y", body, feeds, arrays, 21), feeds


@pytest.mark.parametrize("name", SHAPES)
def test_conv_integer(backends, name):
    number = list(SHAPES).index(name)
    check(backends, *convolution(name, *DTYPES[number % len(DTYPES)], zero=number % 3 > 0))


@pytest.mark.parametrize(("a", "b"), DTYPES)
def test_dtypes_of_codes(backends, a, b):
    check(backends, *convolution("part of a block", a, b))


@pytest.mark.parametrize(
    ("unit", "name", "zero"),
    [
        ("vnni", "few channels", False),
        ("vnni", "few channels", True),
        ("neon", "groups", False),
        ("avx512", "few channels", True),
        ("avx512", "depthwise", False),
        ("scalar", "narrow groups", True),
    ],
)
def test_conv_integer_for_other_units(lower_model, name, unit, zero):
    model, feeds = convolution(name, "uint8", "int8", zero)
    program = check_unit(lower_model, model, feeds, UNITS[unit])
    notes = [call.note for call in program.calls]
    # a byte that stands for zero is none, so that what is padded is widened
    is_bytes = not zero and UNITS[unit].has_byte_dots
    if name != "depthwise":
        assert ("uint8 times int8" in notes) == is_bytes, notes


def has_blocked_dots(program):
    """Which kernels have dot products of blocks, by their notes."""
    return {
        call.note
        for call in program.calls
        for item in walk(program.kernels[call.kernel].body)
        if isinstance(item, Dot) and item.is_blocked
    }


@pytest.mark.parametrize("zero", [0, 113])
@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        (20, "kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 1]"),
        (16, "kernel_shape = [1, 1]"),
        (7, "kernel_shape = [3, 2], pads = [0, 1, 2, 0], dilations = [2, 1]"),
        (5, "kernel_shape = [1, 1], strides = [1, 2]"),
    ],
    ids=str,
)
def test_blocks_of_positions_and_channels(lower_model, inputs, attributes, zero):
    """Of an input that lies plain, and of one in narrower blocks, of which half may be missing."""
    kernel = [int(n) for n in re.search(r"shape = \[(\d), (\d)", attributes).groups()]
    arrays = {
        "e": np.eye(16, inputs, dtype=np.int8).reshape(16, inputs, 1, 1),
        "v": codes("int8", 18, 16, *kernel),
        "w": codes("int8", 18, inputs, *kernel),
        "z": np.uint8(zero),
    }
    body = f"""
        c = ConvInteger(x, e) s = Cast<to = 2>(c)
        y = ConvInteger <{attributes}> (s, v{", z" * bool(zero)})
        p = ConvInteger <{attributes}> (x, w{", z" * bool(zero)})"""
    arrays = arrays if zero else {name: arrays[name] for name in "evw"}
    feeds = {"x": codes("uint8", 2, inputs, 7, 9)}
    model = small_model("y, p", body, feeds, arrays)
    program = check_unit(lower_model, model, feeds, UNITS["blocks"])
    assert has_blocked_dots(program) == {"uint8 times int8"}
    others = check_unit(lower_model, model, feeds, UNITS["neon"])
    assert not has_blocked_dots(others)


def test_where_no_blocks_pay(lower_model):
    """Of few channels a block is mostly empty, and few outputs do not pay for a copy."""
    arrays = {"w": codes("int8", 16, 4, 3, 3), "v": codes("int8", 8, 16, 1, 1)}
    body = "c = ConvInteger(x, w) s = Cast<to = 2>(c) y = ConvInteger(s, v)"
    feeds = {"x": codes("uint8", 1, 4, 7, 9)}
    program = check_unit(lower_model, small_model("y", body, feeds, arrays), feeds, UNITS["blocks"])
    assert not has_blocked_dots(program)


@pytest.mark.parametrize("unit", ["vnni", "pairs"])
def test_a_zero_point_in_what_is_read_as_it_is(lower_model, unit):
    """Without padding, what the zero point adds is known of each channel."""
    weights, feeds, _ = parts("pointwise", "uint8", "int8")
    arrays = {"w": weights, "z": np.uint8(113)}
    model = small_model("y", "y = ConvInteger(x, w, z)", feeds, arrays)
    notes = [call.note for call in check_unit(lower_model, model, feeds, UNITS[unit]).calls]
    assert ("uint8 times int8" in notes) == UNITS[unit].has_byte_dots


@pytest.mark.parametrize("unit", ["vnni", "neon", "wide"])
@pytest.mark.parametrize(
    ("a", "zero", "image", "taps", "attributes"),
    [
        ("uint8", 0, (7, 9), (3, 3), "pads = [1, 1, 1, 1]"),
        ("uint8", 113, (3, 37), (1, 1), ""),
        ("int8", -3, (7, 20), (3, 2), "pads = [1, 0, 2, 1], dilations = [1, 3]"),
        ("uint8", 9, (5, 41), (1, 3), "strides = [1, 2], pads = [0, 1, 0, 1]"),
        ("uint8", 7, (9, 9), (3, 3), "strides = [2, 2], pads = [0, 1, 2, 1]"),
        ("int8", 0, (2, 67), (2, 5), "strides = [1, 4]"),
        ("uint8", 0, (2, 50), (2, 3), "strides = [1, 3], dilations = [1, 2]"),
        ("uint8", 3, (40,), (3,), "strides = [2], pads = [1, 1]"),
    ],
)
def test_groups_of_few_channels_by_dot_products(
    lower_model, a, zero, image, taps, attributes, unit
):
    """Plain convolutions read four channels side by side, rows to their last entry."""
    units = {**UNITS, "wide": CpuModel(512, 32, dots=("avx512vnni",))}
    feeds = {"x": codes(a, 2, 12, *image)}
    arrays = {"w": codes("int8", 9, 4, *taps), "z": np.dtype(a).type(zero)}
    body = f"y = ConvInteger<group = 3, {attributes or 'strides = [1, 1]'}>(x, w, z)"
    model = small_model("y", body, feeds, arrays)
    program = check_unit(lower_model, model, feeds, units[unit])
    kernels = {call.note: program.kernels[call.kernel].name for call in program.calls}
    assert kernels[f"{a} times int8"].startswith("conv_plain")


@pytest.mark.parametrize("unit", ["vnni", "wide"])
@pytest.mark.parametrize("zero", [0, 5])
@pytest.mark.parametrize(("channels", "groups"), [(20, 5), (24, 3), (12, 1)])
def test_what_lies_in_blocks_of_lanes_is_read_in_blocks_of_groups(
    lower_model, channels, groups, zero, unit
):
    units = {**UNITS, "wide": CpuModel(512, 32, dots=("avx512vnni",))}
    outputs = 3 * groups
    arrays = {
        "e": codes("int8", channels, 8, 1, 1),
        "f": codes("int8", channels, 1, 3, 3),
        "w": codes("int8", outputs, channels // groups, 3, 3),
        "z": np.uint8(zero),
    }
    body = f"""
        c = ConvInteger(x, e) s = Cast<to = 2>(c)
        d = ConvInteger<group = {channels}, pads = [1, 1, 1, 1]>(s, f) t = Cast<to = 2>(d)
        y = ConvInteger<group = {groups}, pads = [1, 1, 1, 1]>(t, w, z)"""
    feeds = {"x": codes("uint8", 2, 8, 6, 11)}
    model = small_model("y", body, feeds, arrays)
    program = check_unit(lower_model, model, feeds, units[unit])
    assert "uint8 times int8" in [call.note for call in program.calls]


@pytest.mark.parametrize(
    ("x", "body"),
    [
        ((2, 8, 1, 1), "y = ConvInteger<group = 2>(x, w)"),
        ((2, 8, 5, 1), "y = ConvInteger<group = 2>(x, w)"),
        ((2, 5, 7, 8), "u = Transpose<perm = [0, 3, 1, 2]>(x) y = ConvInteger<group = 2>(u, w)"),
        ((2, 5, 1, 8), "u = Transpose<perm = [0, 3, 1, 2]>(x) y = ConvInteger<group = 2>(u, w)"),
        (
            (2, 8, 5, 6),
            "a = ConvInteger<group = 2, pads = [1, 1, 1, 1]>(x, v) "
            "b = ConvInteger<group = 2>(x, w) y = Add(a, b)",
        ),
        (
            (2, 8, 5, 1),
            "a = ConvInteger<group = 2, pads = [1, 1, 1, 1]>(x, v) "
            "b = ConvInteger<group = 2>(x, w) y = Add(a, b)",
        ),
    ],
    ids=str,
)
def test_groups_of_few_channels_of_what_lies_otherwise(lower_model, x, body):
    """Channels next to one another, rows of one position, and the inside of a border."""
    arrays = {"w": codes("int8", 6, 4, 1, 1), "v": codes("int8", 6, 4, 3, 3)}
    if "v)" not in body:
        del arrays["v"]
    feeds = {"x": codes("uint8", *x)}
    for unit in (UNITS["vnni"], CpuModel(512, 32, dots=("avx512vnni",))):
        check_unit(lower_model, small_model("y", body, feeds, arrays), feeds, unit)


def test_strides_beyond_a_few_vectors_and_part_groups_are_no_dot_products(lower_model):
    for inputs, stride in ((8, 5), (6, 1)):
        feeds = {"x": codes("uint8", 1, inputs, 4, 30)}
        arrays = {"w": codes("int8", 6, inputs // 2, 2, 2)}
        body = f"y = ConvInteger<group = 2, strides = [1, {stride}]>(x, w)"
        model = small_model("y", body, feeds, arrays)
        notes = [call.note for call in check_unit(lower_model, model, feeds, UNITS["vnni"]).calls]
        assert "uint8 times float32" in notes


@pytest.mark.parametrize(
    ("channels", "zero", "pads", "product"),
    [
        (57, 0, 1, "uint8 times float32"),  # sums of up to 57 * 9 * 127 * 255 < 2**24
        (58, 0, 1, "int32 times int32"),
        (57, 255, 0, "uint8 times float32"),
        (57, 255, 1, "uint8 times float32"),
        (57, None, 1, "int32 times float32"),
    ],
)
def test_plain_convolutions_are_in_floats_where_these_hold_all_sums(
    lower_model, channels, zero, pads, product
):
    """Codes and weights are the largest there are, so that a rounded sum would show."""
    inputs, outputs = 2 * channels, 6  # two groups, of no whole blocks
    weights = np.full((outputs, channels, 3, 3), 127, np.int8)
    weights[1::2] = -127
    weights[2, 0, 0, 0] = 126
    feeds = {"x": np.full((1, inputs, 5, 6), 255 if zero != 255 else 0, np.uint8)}
    feeds["x"][0, 3, 2, 2] = 1
    arrays = {"w": weights}
    if zero is None:
        feeds["z"] = np.uint8(0)
    else:
        arrays["z"] = np.uint8(zero)
    body = f"y = ConvInteger<group = 2, pads = {[pads] * 4}>(x, w, z)"
    model = small_model("y", body, feeds, arrays)
    notes = [call.note for call in check_unit(lower_model, model, feeds, UNITS["avx512"]).calls]
    assert product in notes


@pytest.mark.parametrize(
    ("name", "attributes", "zero"),
    [
        ("part of a block", "strides = [2, 1], pads = [1, 1, 0, 1]", 0),
        ("pointwise", "strides = [2, 3]", 7),
    ],
)
def test_bytes_by_twos(lower_model, backends, name, attributes, zero):
    """Where most weights are safe, `pmaddubsw` multiplies, and sums that it would cut are exact."""
    weights, feeds, _ = parts(name, "uint8", "int8")
    weights = np.clip(RNG.normal(0, 20, weights.shape), -127, 127).astype(np.int8)
    weights[3, 5:9] = 127
    feeds["x"][1] = 255
    # What reads codes in blocks is behind something that writes them so.
    body = f"""
        c = ConvInteger(x, e) s = Cast<to = 2>(c)
        y = ConvInteger <{attributes}> (s, w{", z" if zero else ""})"""
    inputs = weights.shape[1]
    first = np.eye(inputs, dtype=np.int8).reshape(inputs, inputs, 1, 1)
    arrays = {"w": weights, "e": first} | ({"z": np.uint8(zero)} if zero else {})
    model = small_model("y", body, feeds, arrays)
    check(backends, model, feeds)
    notes = [call.note for call in check_unit(lower_model, model, feeds, UNITS["pairs"]).calls]
    assert "uint8 times int8 by twos" in notes, notes


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


@pytest.mark.parametrize("unit", ["vnni", "scalar"])
def test_qlinear_conv_for_other_units(lower_model, unit):
    check_unit(lower_model, *qlinear("few channels"), UNITS[unit])


@pytest.mark.parametrize("name", SHAPES)
def test_where_memory_counts_first_weights_stay_bytes(lower_model, name):
    """All are plain convolutions of bytes; what is padded with a byte for zero is int16."""
    number = list(SHAPES).index(name)
    unit = replace(UNITS["scalar"] if number % 2 else NEON, is_small=True)
    model, feeds = convolution(name, zero=number % 3 > 0)
    program = check_unit(lower_model, model, feeds, unit)
    (call,) = [call for call in program.calls if "times" in call.note]
    assert "int32" not in call.note
    assert "float32" not in call.note
    weights = sum(np.prod(item.dims) for item in model.graph.initializer)
    held = sum(array.nbytes for array in program.constants.values())
    assert held <= weights * (2 if "times int16" in call.note else 1) + 4 * 64


@pytest.mark.parametrize("b", ["int8", "uint8"])
def test_winograd_is_exact(backends, b):
    """The largest codes of one sign, where transformed sums are largest, among random ones."""
    weights, x = codes(b, 16, 40, 3, 3), codes("uint8", 2, 40, 7, 8)
    weights[0], weights[1] = np.iinfo(b).max, np.iinfo(b).min
    x[0, :, :5] = 255
    feeds = {"x": x}
    body = "y = ConvInteger <pads = [1, 1, 1, 1]> (x, w)"
    model = small_model("y", body, feeds, {"w": weights})
    check(backends, model, feeds)


def between(activation, *, bias="int32", per_channel=True, outputs="q", dtype="uint8", groups=1):
    """A Conv between Q and DQ nodes, another that reads its codes, and their feeds."""
    rng = np.random.default_rng(11)
    count = (16,) if per_channel else ()
    scale = (rng.uniform(0.0005, 0.001, count)).astype(np.float32)
    arrays = {
        "w": codes("int8", 16, 16 // groups, 3, 3),
        "d": codes("int8", 8, 16, 1, 1),
        "s": np.float32(0.02),
        "z": np.uint8(117),
        "t": scale,
        "v": np.zeros(count, np.int8),
        "u": np.float32(0.05),
        "o": np.array(3, dtype),
        "bt": np.float32(0.02) * scale,
        "b": rng.integers(-9999, 9999, 16, np.int32),
        "f": rng.standard_normal(16).astype(np.float32),
        "six": np.float32(6),
        "nil": np.float32(0),
    }
    biases = {"int32": "bd = DequantizeLinear <axis = 0> (b, bt)", "float32": ""}
    steps = {"": "r = Identity(c)", "relu": "r = Relu(c)", "relu6": "r = Clip(c, nil, six)"}
    name = "bd" if bias == "int32" else "f"
    body = f"""
        xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
        wd = DequantizeLinear <axis = 0> (w, t, v) {biases[bias]}
        c = Conv <pads = [1, 1, 1, 1], group = {groups}> (xd, wd, {name}) {steps[activation]}
        q = QuantizeLinear(r, u, o) rd = DequantizeLinear(q, u, o)
        dd = DequantizeLinear(d, s, nz) e = Conv(rd, dd) y = QuantizeLinear(e, u, o)"""
    arrays["nz"] = np.int8(0)
    model = small_model(outputs, body, {"x": (2, 16, 7, 9)}, arrays, 21)
    return model, {"x": rng.standard_normal((2, 16, 7, 9)).astype(np.float32)}


@pytest.mark.parametrize(
    "case",
    [
        {"activation": ""},
        {"activation": "relu", "bias": "float32"},
        {"activation": "relu6", "per_channel": False, "dtype": "int8"},
        {"activation": "relu6", "groups": 16},
        {"activation": "", "outputs": "q, rd, y"},
    ],
    ids=str,
)
def test_between_q_and_dq(lower_model, backends, case):
    """Codes are within one of those that ONNX's definition makes; sums are the same."""
    model, feeds = between(**case)
    got = intarsia.compile(model, "llvm", strict=True, num_threads=1, backends=backends).run(feeds)
    for name, want in reference(model, feeds).items():
        step = 0.05 if want.dtype == np.float32 else 1
        difference = np.abs(got[name].astype(np.float64) - want)
        assert difference.max() <= 1.001 * step, name
        assert (difference > 0.001 * step).mean() < 0.01, name
    program, _ = lower_model(model, UNITS["pairs"])
    notes = [call.note for call in program.calls]
    assert not [note for note in notes if note.startswith("weights as they are")]
    assert sum("int16 times" in note or "times float32" in note for note in notes) >= 1


def test_codes_between_convolutions_stay_in_blocks(lower_model):
    """Nothing stands between two convolutions but codes as they lie, and their widened copy."""
    model, _ = between("relu", outputs="y")
    program, _ = lower_model(model, UNITS["pairs"])
    assert [call.note for call in program.calls] == [
        "",
        "border",
        "xq as int16",
        "int16 times int16",
        "q as int16",
        "int16 times int16",
        "blocked by 8 to plain y",
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"w": None}, "weights"),
        ({"z": np.zeros(16, np.uint8)}, "several zero points"),
    ],
    ids=["computed weights", "zero points"],
)
def test_what_is_refused(backends, change, words):
    weights, feeds, _ = parts("pointwise", "uint8", "int8")
    arrays = {"w": weights, "z": np.uint8(4)} | change
    for name in [name for name, array in arrays.items() if array is None]:
        del arrays[name]
        feeds[name] = weights
    model = small_model("y", "y = ConvInteger(x, w, z)", feeds, arrays)
    with pytest.raises(UnsupportedError, match=words):
        intarsia.compile(model, "llvm", strict=True, backends=backends)


def test_dynamic_quantisation(backends):
    """The scale and the zero point are those of each run; padding is that zero point."""
    body = """q, s, z = DynamicQuantizeLinear(x) m = ConvInteger <pads = [1, 1, 1, 1]> (q, w, z)
        c = Cast <to = 1> (m) f = Mul(s, t) y = Mul(c, f)"""
    arrays = {"w": codes("int8", 24, 16, 3, 3), "t": np.float32(0.01)}
    model = small_model("y", body, {"x": (1, 16, 6, 6)}, arrays)
    x = RNG.standard_normal((1, 16, 6, 6)).astype(np.float32)
    for moved in (x, x + 3):
        check(backends, model, {"x": moved})


def test_free_batch(backends):
    """One program for all numbers of images."""
    model, feeds = between("relu", outputs="y")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    for value in (*model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = "n"
    exe = intarsia.compile(model, "llvm", strict=True, num_threads=1, backends=backends)
    for count in (1, 2, 3):
        x = np.resize(feeds["x"], (count, 16, 7, 9))
        want = reference(model, {"x": x})["y"]
        difference = np.abs(exe.run({"x": x})["y"].astype(int) - want)
        assert difference.max() <= 1
