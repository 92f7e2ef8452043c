# SPDX-License-Identifier: Apache-2.0
"""Types that numpy lacks, against ml_dtypes and ONNX: every bit pattern, every rounding."""

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

from intarsia.codegen.body import Apply, Body, Layout
from intarsia.codegen.kernels.elementwise import Elementwise, build
from intarsia.codegen.scalar_ops.narrow import NARROW, storage_of
from intarsia.codegen.unit import AVX512, SCALAR, SSE

FLOATS = [name for name in NARROW if "float" in name and "e8m0" not in name]
INTEGERS = [name for name in NARROW if "float" not in name]
EIGHT_BITS = [name for name in FLOATS if "float8" in name]


def of_numpy(name):
    return np.dtype(getattr(ml_dtypes, name)) if name in NARROW else np.dtype(name)


def patterns(name):
    """Every element of a narrow type."""
    bits = {"bfloat16": 16, "float4_e2m1fn": 4, "float8": 8}.get(name) or 8
    bits = getattr(NARROW[name], "bits", bits)
    return np.arange(1 << bits).astype(storage_of(name)).view(of_numpy(name))


def converted(run_kernel, x, source, target, unit=AVX512, **attributes):
    names = {"from": source, "to": target}
    attributes |= {key: name for key, name in names.items() if name in NARROW}
    kept, dtype = storage_of(source), storage_of(target)
    step = Apply("Cast", (0,), tuple(sorted(attributes.items())), dtype)
    layouts = (Layout(kept, (1,)),), (Layout(dtype, (1,)),)
    spec = Elementwise(x.shape, *layouts, Body((kept,), (step,), (1,)), unit)
    arrays = [x.view(kept), np.zeros(x.shape, dtype)]
    return run_kernel(build(spec), arrays)[1].view(of_numpy(target))


def assert_same_bits(got, wanted):
    size = np.dtype(f"uint{8 * got.dtype.itemsize}")
    np.testing.assert_array_equal(got.view(size), wanted.view(size))


@pytest.mark.parametrize("unit", [AVX512, SSE, SCALAR])
@pytest.mark.parametrize("source", FLOATS)
def test_every_float_widens(run_kernel, source, unit):
    x = patterns(source)
    got = converted(run_kernel, x, source, "float32", unit)
    np.testing.assert_array_equal(got, x.astype("float32"))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x.astype("float32")))


def near(name):
    """float32 around every element and between neighbours, and what is special."""
    kept = patterns(name).astype("float32")
    kept = np.sort(kept[np.isfinite(kept)]).astype("float64")
    between = (kept[1:] + kept[:-1]) / 2
    special = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e9, -1e9, 3e38, 1e-30, -1e-30]
    exact = np.concatenate([kept, between, special, 1.06 * kept[:1], 1.06 * kept[-1:]])
    with np.errstate(over="ignore"):
        single = exact.astype("float32")
    around = [np.nextafter(single, np.float32(side)) for side in (-np.inf, np.inf)]
    return np.concatenate([single, *around])


@pytest.mark.parametrize("target", FLOATS)
def test_floats_are_rounded_to_even(run_kernel, target):
    x = near(target)
    for source in ("float32", "float64"):
        got = converted(run_kernel, x.astype(source), source, target, saturate=0)
        with np.errstate(all="ignore"):
            assert_same_bits(got, x.astype(source).astype(of_numpy(target)))
    with np.errstate(over="ignore"):
        half = x.astype("float16")
    got = converted(run_kernel, half, "float16", target, saturate=0)
    with np.errstate(all="ignore"):
        assert_same_bits(got, half.astype(of_numpy(target)))


@pytest.mark.parametrize("target", EIGHT_BITS)
def test_large_floats_become_the_largest(run_kernel, target):
    x = near(target)
    with np.errstate(all="ignore"):
        wanted = numpy_helper.saturate_cast(x, of_numpy(target))
    assert_same_bits(converted(run_kernel, x, "float32", target), wanted)


def test_a_float64_is_rounded_once(run_kernel):
    halfway = 1 + 2.0**-8  # between two bfloat16; a float32 cannot see what is beyond
    x = np.array([halfway, halfway + 2.0**-40, halfway - 2.0**-40, 3 * halfway])
    got = converted(run_kernel, x, "float64", "bfloat16").astype("float64")
    np.testing.assert_array_equal(got[:3], [1, 1 + 2.0**-7, 1])


@pytest.mark.parametrize("rounding", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_scales(run_kernel, rounding, saturate):
    exponents = np.array([-127, -126, -20, 0, 1, 126, 127])
    fractions = np.array([1, 1.25, 1.5, 1.5000001, 1.75, 1.9999999])
    x = np.ldexp(fractions, exponents[:, None]).astype("float32").reshape(-1)
    x = np.concatenate([x, -x, np.float32([np.nan, np.inf, -np.inf, 0, 1e-45])])
    got = converted(
        run_kernel, x, "float32", "float8_e8m0fnu", saturate=saturate, round_mode=rounding
    )
    wanted = numpy_helper.to_float8e8m0(x, bool(saturate), rounding)
    assert_same_bits(got, wanted)
    every = np.arange(256).astype("uint8").view(ml_dtypes.float8_e8m0fnu)
    got = converted(run_kernel, every, "float8_e8m0fnu", "float32")
    np.testing.assert_array_equal(got, every.astype("float32"))


@pytest.mark.parametrize("target", ["float32", "float16", "int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("source", INTEGERS)
def test_every_integer_widens(run_kernel, source, target):
    x = patterns(source)
    got = converted(run_kernel, x, source, target)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, x.astype(target))


@pytest.mark.parametrize("source", ["float32", "float16", "float64", "int8", "uint64", "int64"])
@pytest.mark.parametrize("target", INTEGERS)
def test_integers_keep_their_low_bits(run_kernel, source, target):
    x = np.array([0, 1, 2, 3, 7, 8, 15, 16, 17, 100, 127]).astype(source)
    if not source.startswith("u"):
        x = np.concatenate([x, -x - 1])
    if "float" in source:
        x = np.concatenate([x, x + np.dtype(source).type(0.75)])
    got = converted(run_kernel, x, source, target)
    assert_same_bits(got, x.astype(of_numpy(target)))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("bfloat16", "float8_e4m3fn"),
        ("float8_e5m2", "float8_e4m3fnuz"),
        ("float8_e4m3fn", "int4"),
        ("int4", "bfloat16"),
        ("uint4", "float8_e5m2"),
        ("float4_e2m1fn", "float16"),
    ],
)
def test_from_one_to_another(run_kernel, source, target):
    x = patterns(source)
    wide = x.astype("float32")
    x = x[np.isfinite(wide)] if target in INTEGERS else x
    got = converted(run_kernel, x, source, target, saturate=0)
    with np.errstate(all="ignore"):
        assert_same_bits(got, x.astype("float32").astype(of_numpy(target)))


BITS = [("float32", "int32"), ("int64", "float64"), ("float16", "uint16"), ("int16", "float16")]
BITS += [("uint8", "int8"), ("int32", "uint32"), ("bool", "int8"), ("uint64", "float64")]


@pytest.mark.parametrize(("source", "target"), BITS)
def test_bits_are_taken_as_another_type(run_kernel, source, target):
    bits = np.random.default_rng(0).integers(0, 256, 37 * 8).astype("uint8")
    size = 37 * np.dtype(source).itemsize
    x = bits[:37] > 100 if source == "bool" else bits[:size].view(source)
    body = Body((source,), (Apply("BitCast", (0,), (), target),), (1,))
    for unit in (AVX512, SSE, SCALAR):
        layouts = (Layout(source, (1,)),), (Layout(target, (1,)),)
        arrays = [x, np.zeros(x.shape, target)]
        got = run_kernel(build(Elementwise(x.shape, *layouts, body, unit)), arrays)[1]
        assert got.tobytes() == x.tobytes()
