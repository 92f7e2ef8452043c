# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear against onnxruntime, alone and with what is around them."""

import numpy as np
import pytest
from tests.codegen.lower.small_models import feeds_of, small_model

import intarsia
from intarsia.errors import UnsupportedError

DTYPES = ["int8", "uint8", "int16", "uint16"]
RNG = np.random.default_rng(0)


def draw(shape, dtype):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def scales(*shape):
    return RNG.uniform(0.01, 0.2, shape).astype(np.float32)


WAYS = {
    "tensor": ((), ""),
    "one": ((1,), ""),
    "channels": ((5,), "axis = 1"),
    "first axis": ((3,), "axis = 0"),
    "last axis": ((7,), "axis = -1"),
    "blocks": ((3, 2, 7), "axis = 1, block_size = 3"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_there_and_back(run_both, way, dtype):
    shape, flags = WAYS[way]
    flags = f"<{flags}>" if flags else ""
    parameters = {"s": scales(*shape), "z": draw(shape, dtype)}
    x = (RNG.standard_normal((3, 5, 7)) * 40).astype(np.float32)
    body = f"y = QuantizeLinear{flags}(x, s, z) d = DequantizeLinear{flags}(y, s, z)"
    opset = 21
    run_both(small_model("y, d", body, {"x": x}, parameters, opset), {"x": x})
    zero = {"z": np.zeros(shape, dtype)}
    run_both(small_model("y, d", body, {"x": x}, parameters | zero, opset), {"x": x})


@pytest.mark.parametrize("way", ["tensor", "one", "last axis"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_parameters_that_are_fed(backends, way, dtype):
    shape, flags = WAYS[way]
    flags = f"<{flags}>" if flags else ""
    feeds = {"x": draw((3, 5, 7), dtype), "s": scales(*shape), "z": draw(shape, dtype)}
    body = f"d = DequantizeLinear{flags}(x, s, z) y = QuantizeLinear{flags}(d, s, z)"
    model = small_model("d, y", body, feeds, {}, 21)
    got = intarsia.compile(model, "llvm", strict=True, backends=backends).run(feeds)
    wide = (feeds["x"].astype(np.int32) - feeds["z"].astype(np.int32)).astype(np.float32)
    np.testing.assert_array_equal(got["d"], wide * feeds["s"])
    np.testing.assert_array_equal(got["y"], feeds["x"])


def test_without_a_zero_point(run_both):
    x = (RNG.standard_normal((4, 6)) * 900).astype(np.float32)
    model = small_model("y", "y = QuantizeLinear(x, s)", {"x": x}, {"s": np.float32(1.5)})
    run_both(model, {"x": x})
    integers = draw((4, 6), "int32")
    body = "y = DequantizeLinear(x, s)"
    model = small_model("y", body, {"x": integers}, {"s": np.float32(1.5)})
    run_both(model, {"x": integers})


def test_ties_and_what_is_too_large(run_both):
    x = np.array(
        [0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 1e9, -1e9, np.inf, -np.inf, np.nan], "float32"
    )
    weights = {"s": np.float32(1), "z": np.int8(1)}
    run_both(small_model("y", "y = QuantizeLinear(x, s, z)", {"x": x}, weights), {"x": x})


def test_around_a_convolution(run_both):
    body = """
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        c = Conv<pads = [1, 1, 1, 1]>(d, w) r = Relu(c)
        p = QuantizeLinear(r, t, z) y = DequantizeLinear(p, t, z)"""
    weights = {"w": (32, 20, 3, 3), "s": np.float32(0.1), "t": np.float32(0.5), "z": np.uint8(9)}
    model = small_model("y", body, {"x": (1, 20, 6, 6)}, weights)
    run_both(model, feeds_of(model), rtol=1e-2)  # a tie may be rounded either way


def test_computed_scales_of_channels_are_for_others(backends):
    feeds = {"x": draw((2, 3, 4), "int8"), "s": scales(3)}
    model = small_model("y", "y = DequantizeLinear(x, s)", feeds)
    with pytest.raises(UnsupportedError, match="its scale is not constant"):
        intarsia.compile(model, "llvm", strict=True, backends=backends)
