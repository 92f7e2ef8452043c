# SPDX-License-Identifier: Apache-2.0
"""Convolutions and products of codes as products of tiles: exact sums, in the interpreter.

So they are tried where the CPU has no tiles; where it has them, all tests of integers use them.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.lower.small_models import small_model
from tests.codegen.lower.test_interpreted import run_program

from intarsia.codegen.interpreter import interpret
from intarsia.codegen.unit import AVX512

VNNI = replace(AVX512, dots=("avx512bw", "avx512vl", "avx512vnni"))
TILES = replace(VNNI, tiles=("amx-tile", "amx-int8"))


def draw(shape, dtype, seed=0):
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def run_tiled(lower_model, model, feeds, unit=TILES, *, has_tiles=True):
    program, region = lower_model(model, unit)
    assert any(kernel.tiles for kernel in program.kernels) == has_tiles
    return run_program(
        program,
        region,
        feeds,
        lambda call, arrays: interpret(program.kernels[call.kernel], arrays),
    )


def convolve(x, w, strides, pads, dilations):
    """Sums of integers without zero points, by definition."""
    (top, left, bottom, right), rank = pads, 2
    padded = np.pad(x.astype(np.int64), [(0, 0), (0, 0), (top, bottom), (left, right)])
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    assert windows.ndim == 4 + rank
    return np.einsum("ncijkl,ockl->noij", windows, w.astype(np.int64))


CONVOLUTIONS = {
    "one tap": ((1, 64, 5, 6), (32, 64, 1, 1), "", (1, 1), (0, 0, 0, 0), (1, 1)),
    "channels that fill no row": ((1, 40, 4, 4), (20, 40, 1, 1), "", (1, 1), (0, 0, 0, 0), (1, 1)),
    "several rows of channels": ((2, 144, 3, 4), (16, 144, 1, 1), "", (1, 1), (0,) * 4, (1, 1)),
    "padding": ((1, 64, 5, 4), (24, 64, 3, 3), "pads = [1, 1, 1, 1]", (1, 1), (1,) * 4, (1, 1)),
    "more on one side": (
        *((1, 16, 6, 5), (16, 16, 3, 2), "pads = [0, 1, 2, 0], strides = [2, 1]"),
        *((2, 1), (0, 1, 2, 0), (1, 1)),
    ),
    "an image": (
        *((1, 3, 9, 10), (20, 3, 7, 7), "pads = [3, 3, 3, 3], strides = [2, 2]"),
        *((2, 2), (3,) * 4, (1, 1)),
    ),
    "few channels": (
        (2, 9, 4, 6),
        (16, 9, 3, 3),
        "pads = [1, 0, 1, 1]",
        (1, 1),
        (1, 0, 1, 1),
        (1, 1),
    ),
    "dilations": (
        *((1, 64, 7, 7), (17, 64, 3, 3), "pads = [2, 2, 2, 2], dilations = [2, 2]"),
        *((1, 1), (2,) * 4, (2, 2)),
    ),
}


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(lower_model, case, dtype):
    shape, weights, text, *window = CONVOLUTIONS[case]
    x, zero = draw(shape, dtype), np.array(93, dtype)
    w, w_zero = draw(weights, "int8", 1) // 2, np.array(-3, np.int8)
    text = f"<{text}>" if text else ""
    model = small_model(
        *("y", f"y = ConvInteger{text}(x, w, z, v)", {"x": x}),
        {"w": w, "z": zero, "v": w_zero},
    )
    got = run_tiled(lower_model, model, {"x": x})["y"]
    wanted = convolve(x.astype(int) - int(zero), w.astype(int) - int(w_zero), *window)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("case", ["padding", "an image", "dilations"])
def test_padding_with_a_zero_point_and_no_tiles(lower_model, case):
    """Bytes are copied with a border of their zero point, where a CPU multiplies bytes."""
    shape, weights, text, *window = CONVOLUTIONS[case]
    x, w, zero = draw(shape, "uint8"), draw(weights, "int8", 1), np.uint8(93)
    model = small_model("y", f"y = ConvInteger<{text}>(x, w, z)", {"x": x}, {"w": w, "z": zero})
    program, _ = lower_model(model, VNNI)
    assert not any(b.dtype == "int16" for kernel in program.kernels for b in kernel.buffers)
    got = run_tiled(lower_model, model, {"x": x}, VNNI, has_tiles=False)["y"]
    np.testing.assert_array_equal(got, convolve(x.astype(int) - 93, w.astype(int), *window))


def test_depthwise_padding_with_a_zero_point(lower_model):
    x, w, zero = draw((1, 32, 5, 6), "uint8"), draw((32, 1, 3, 3), "int8", 1), np.uint8(201)
    text = "<pads = [1, 1, 1, 1], group = 32>"
    model = small_model("y", f"y = ConvInteger{text}(x, w, z)", {"x": x}, {"w": w, "z": zero})
    got = run_tiled(lower_model, model, {"x": x}, VNNI, has_tiles=False)["y"]
    channels = [
        convolve(x[:, [c]].astype(int) - 201, w[[c]].astype(int), (1, 1), (1,) * 4, (1, 1))
        for c in range(32)
    ]
    np.testing.assert_array_equal(got, np.concatenate(channels, 1))


def test_codes_between_layers(lower_model):
    """A residual layer: one copy of its input is for both that read it, with one zero point."""
    x, weights = draw((1, 64, 6, 6), "uint8"), draw((64, 64, 3, 3), "int8", 1)
    body = """
        d = DequantizeLinear(x, s, z) e = DequantizeLinear(w, t, v)
        c = Conv<pads = [1, 1, 1, 1]>(d, e) q = QuantizeLinear(c, u, z)
        f = DequantizeLinear(q, u, z) a = Add(f, d) r = Relu(a) y = QuantizeLinear(r, u, k)"""
    constants = {"s": np.float32(0.02), "z": np.uint8(120), "w": weights, "t": np.float32(0.004)}
    constants |= {"v": np.int8(0), "u": np.float32(0.7), "k": np.uint8(0)}
    model = small_model("y", body, {"x": x}, constants)
    got = run_tiled(lower_model, model, {"x": x})["y"]
    sums = convolve(x.astype(int) - 120, weights, (1, 1), (1,) * 4, (1, 1))
    codes = np.clip(np.rint(sums * (0.02 * 0.004) / 0.7) + 120, 0, 255)
    wanted = (codes - 120) * 0.7 + (x.astype(float) - 120) * 0.02
    wanted = np.clip(np.rint(np.maximum(wanted, 0) / 0.7), 0, 255)
    assert np.abs(got - wanted).max() <= 1
    assert (got != wanted).mean() < 0.01


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("rows", "k", "n"), [(17, 64, 33), (40, 1024, 16), (8, 192, 5)])
def test_products(lower_model, rows, k, n, dtype):
    a, b, zero = draw((rows, k), dtype), draw((k, n), "int8", 1), np.array(77, dtype)
    model = small_model("y", "y = MatMulInteger(a, b, z)", {"a": a}, {"b": b, "z": zero})
    got = run_tiled(lower_model, model, {"a": a})["y"]
    np.testing.assert_array_equal(got, (a.astype(int) - int(zero)) @ b.astype(int))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3, 17, 32), (2, 3, 32, 33)),
        ((3, 8, 144), (3, 144, 16)),
        ((3, 1, 9, 64), (1, 2, 64, 20)),
        ((9, 16), (16, 5)),
    ],
)
def test_products_of_computed_operands(lower_model, left, right):
    a, b = draw(left, "uint8"), draw(right, "uint8", 1)
    zeros = {"z": np.uint8(77), "u": np.uint8(140)}
    model = small_model("y", "y = MatMulInteger(a, b, z, u)", {"a": a, "b": b}, zeros)
    got = run_tiled(lower_model, model, {"a": a, "b": b})["y"]
    np.testing.assert_array_equal(got, (a.astype(int) - 77) @ (b.astype(int) - 140))


@pytest.mark.parametrize(("rows", "k"), [(3, 64), (16, 72)])
def test_products_that_are_none_of_tiles(lower_model, rows, k):
    a, b = draw((rows, k), "uint8"), draw((k, 16), "int8", 1)
    model = small_model("y", "y = MatMulInteger(a, b)", {"a": a}, {"b": b})
    got = run_tiled(lower_model, model, {"a": a}, has_tiles=False)["y"]
    np.testing.assert_array_equal(got, a.astype(int) @ b.astype(int))
