# SPDX-License-Identifier: Apache-2.0
"""Helpers of C without a C library: numpy's bits, over all exponents and odd numbers."""

import ctypes

import numpy as np
import pytest
from tests.c_compiler import STRICT, compile_c

from intarsia.codegen.emit.c_maths import helpers
from intarsia.codegen.emit.c_text import PRELUDE, bitcast_helper

UNARY = {
    "abs": np.abs, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil,
    "trunc": np.trunc, "rint": np.rint,
}  # fmt: skip
BINARY = {"copysign": np.copysign, "rem": np.fmod}
SUFFIXES = {"float32": ("f32", "float"), "float64": ("f64", "double")}


@pytest.fixture(scope="module", params=["freestanding", "hosted", "wide sums"])
def library(request, tmp_path_factory):
    """All helpers, each over an array."""
    folder = tmp_path_factory.mktemp("maths")
    calls = [(name, dtype) for name in (*UNARY, *BINARY) for dtype in SUFFIXES]
    parts = [PRELUDE, helpers(calls, has_halves=True), bitcast_helper("float32", "uint32")]
    for suffix, real in SUFFIXES.values():
        one, two = f"const {real} *x, {real} *y", f"const {real} *x, const {real} *z, {real} *y"
        parts += [_over(f"{name}_{suffix}", one, "x[i]") for name in UNARY]
        parts += [_over(f"{name}_{suffix}", two, "x[i], z[i]") for name in BINARY]
    parts.append(_over("half_to_float", "const uint16_t *x, float *y", "x[i]"))
    parts.append(_over("float_to_half", "const double *x, uint16_t *y", "x[i]"))
    parts.append(_over("float32_bits_as_uint32", "const float *x, uint32_t *y", "x[i]"))
    text = "\n".join(parts)
    if request.param == "wide sums":  # as on a machine that holds sums in more bits
        text = text.replace("FLT_EVAL_METHOD == 0", "0")
    (folder / "maths.c").write_text(text)
    flags = [] if request.param == "hosted" else ["-ffreestanding"]
    where = folder / "maths.so"
    compile_c(*STRICT, *flags, "-O1", "-shared", "-fPIC", folder / "maths.c", "-o", where, "-lm")
    return ctypes.CDLL(str(where))


def _over(name, parameters, arguments):
    head = f"void all_{name}({parameters}, int64_t n)"
    return (
        f"{head};\n{head}\n{{\n    int64_t i;\n    for (i = 0; i < n; ++i)\n"
        f"        y[i] = {name}({arguments});\n}}\n"
    )


def call(library, name, *arrays, dtype=None):
    out = np.empty(arrays[0].shape, dtype or arrays[0].dtype)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*arrays, out)]
    getattr(library, f"all_{name}")(*pointers, ctypes.c_int64(out.size))
    return out


def numbers(dtype, count=20000):
    """Bits drawn evenly, so that every exponent comes; small numbers and halves; odd ones."""
    rng = np.random.default_rng(5)
    width = np.dtype(dtype).itemsize
    bits = rng.integers(0, 256, count * width, np.uint8).view(dtype)
    small = (rng.integers(-4000, 4000, count) / 4).astype(dtype)
    info = np.finfo(dtype)
    odd = [0, 0.5, 1, 1.5, 2.5, info.tiny, info.smallest_subnormal, info.max, np.inf, np.nan]
    edge = [2.0**e + d for e in (info.nmant - 1, info.nmant, info.nmant + 1) for d in (0, 0.5, 1)]
    listed = [s * x for x in (*odd, *edge) for s in (1, -1)]
    return np.concatenate([bits, small, np.array(listed, dtype)])


def same(got, want):
    """Compare bits, but for those of NaN."""
    held = ~np.isnan(want)
    assert np.array_equal(np.isnan(got), ~held)
    word = f"u{want.dtype.itemsize}"
    np.testing.assert_array_equal(got[held].view(word), want[held].view(word))


@pytest.mark.parametrize("dtype", SUFFIXES)
def test_functions_have_the_bits_of_the_library(library, dtype):
    suffix, x = SUFFIXES[dtype][0], numbers(dtype)
    y = np.roll(x, 7)
    with np.errstate(all="ignore"):
        for name, function in UNARY.items():
            same(call(library, f"{name}_{suffix}", x), function(x))
        for name, function in BINARY.items():
            same(call(library, f"{name}_{suffix}", x, y), function(x, y))


def test_every_half_and_what_rounds_to_it(library):
    halves = np.arange(1 << 16, dtype=np.uint16)
    floats = halves.view(np.float16).astype(np.float32)
    same(call(library, "half_to_float", halves, dtype=np.float32), floats)
    finite = np.unique(floats[np.isfinite(floats)]).astype(np.float64)
    middles = (finite[1:] + finite[:-1]) / 2
    beyond = [65519.99, 65520, 1e300, -1e-300, np.inf, -np.inf]
    x = np.concatenate([finite, middles, np.nextafter(middles, 1e9), middles * 1.0001, beyond])
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    got = call(library, "float_to_half", x, dtype=np.uint16).view(np.float16)
    same(got, want)
