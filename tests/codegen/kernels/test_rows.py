"""Softmax and normalisations against numpy in float64."""

import numpy as np
import pytest

from intarsia.codegen.body import Apply, Body, Fused, Layout
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels.rows import Rows, build
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE

UNITS = [AVX512, AVX2, SSE, SCALAR]
SHAPES = [(3, 5), (2, 64), (3, 130), (2, 400), (1, 1), (4, 7, 9), (2, 3, 4, 37)]


def softmax(x, axis):
    with np.errstate(all="ignore"):
        risen = np.exp(x - x.max(axis, keepdims=True))
        return risen / risen.sum(axis, keepdims=True)


def log_softmax(x, axis):
    with np.errstate(all="ignore"):
        moved = x - x.max(axis, keepdims=True)
        return moved - np.log(np.exp(moved).sum(axis, keepdims=True))


def hardmax(x, axis):
    y = np.zeros_like(x)
    np.put_along_axis(y, np.argmax(x, axis, keepdims=True), 1, axis)
    return y


KINDS = {"Softmax": softmax, "LogSoftmax": log_softmax, "Hardmax": hardmax}


def numbers(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype) * 3


def rows(run_kernel, kind, x, axes, unit=AVX512, extra=(), **options):
    axes = tuple(sorted(axis % x.ndim for axis in axes))
    layout = Layout(x.dtype.name, row_major(x.shape))
    spec = Rows(x.shape, axes, kind, layout, layout, unit=unit, **options)
    before = sum(options.get(name) is not None for name in ("scale", "bias"))
    arrays = [x, *extra[:before], np.zeros_like(x), *extra[before:]]
    got = run_kernel(build(spec), arrays, rtol=1e-5)
    return got[before + 1 :]


def close(got, expected):
    tolerance = 2e-6 if got.dtype == "float32" else 1e-14
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.sample(3)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_and_kin(run_kernel, kind, dtype, unit):
    for shape in SHAPES:
        x = numbers(shape, dtype)
        if kind == "Hardmax":
            x = np.round(x)  # equal ones
        for axis in range(x.ndim):
            (got,) = rows(run_kernel, kind, x, (axis,), unit)
            close(got, KINDS[kind](x.astype("float64"), axis))


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("columns", [20, 500])
def test_softmax_of_hard_values(run_kernel, kind, columns):
    x = numbers((6, columns))
    x[0, 3] = -np.inf
    x[1] = -np.inf
    x[2, 5] = np.inf
    x[3, 7] = np.nan
    x[4] = 3e38
    x[5, 1:] = -200
    (got,) = rows(run_kernel, kind, x, (1,))
    close(got, KINDS[kind](x.astype("float64"), 1))
    turned = np.ascontiguousarray(x.T)
    (got,) = rows(run_kernel, kind, turned, (0,))
    close(got, KINDS[kind](turned.astype("float64"), 0))


@pytest.mark.parametrize("kind", [*KINDS, "Normalize"])
def test_empty(run_kernel, kind):
    for shape in ((0, 4), (3, 0)):
        (got,) = rows(run_kernel, kind, np.zeros(shape, "float32"), (1,))
        assert got.shape == shape


def normalize(x, axes, epsilon):
    x = x.astype("float64")
    mean = x.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)
    return (x - mean) * inverse, mean, inverse


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [1, 7, 96, 401])
def test_layer_normalization(run_kernel, columns, dtype, unit):
    x, scale, bias = numbers((5, columns), dtype), *(numbers(columns, dtype, s) for s in (1, 2))
    flat, one = Layout(dtype, (0, 1)), Layout(dtype, (1,))
    options = {"scale": flat, "bias": flat, "mean": one, "inverse": one}
    extra = (scale, bias, np.zeros(5, dtype), np.zeros(5, dtype))
    y, mean, inverse = rows(run_kernel, "Normalize", x, (1,), unit, extra, **options)
    expected, average, deviation = normalize(x, 1, 1e-5)
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(y, expected * scale + bias, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(mean, average[:, 0], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(inverse, deviation[:, 0], rtol=tolerance)


@pytest.mark.parametrize("unit", UNITS)
def test_rms_normalization(run_kernel, unit):
    x, scale = numbers((4, 70)), numbers(70, seed=1)
    options = {"scale": Layout("float32", (0, 1)), "epsilon": 1e-6}
    (y,) = rows(run_kernel, "RmsNormalize", x, (1,), unit, (scale,), **options)
    wide = x.astype("float64")
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * scale
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("unit", UNITS)
def test_instance_and_group_normalization(run_kernel, unit):
    x, scale, bias = numbers((2, 3, 5, 7)), numbers(3, seed=1), numbers(3, seed=2)
    layout = Layout("float32", (0, 1, 0, 0))
    options = {"scale": layout, "bias": layout}
    (y,) = rows(run_kernel, "Normalize", x, (2, 3), unit, (scale, bias), **options)
    expected = normalize(x, (2, 3), 1e-5)[0] * scale[:, None, None] + bias[:, None, None]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    x, scale = numbers((2, 2, 3, 5, 7)), numbers((2, 3), seed=1)  # two groups of three channels
    options = {"scale": Layout("float32", (0, 3, 1, 0, 0))}
    (y,) = rows(run_kernel, "Normalize", x, (2, 3, 4), unit, (scale,), **options)
    expected = normalize(x, (2, 3, 4), 1e-5)[0] * scale[:, :, None, None]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("unit", UNITS)
def test_mean_variance_normalization_over_outer_dimensions(run_kernel, unit):
    x = numbers((3, 4, 5, 18))
    options = {"epsilon": 1e-9, "adds_to_deviation": True}
    (y,) = rows(run_kernel, "Normalize", x, (0, 2), unit, **options)
    wide = x.astype("float64")
    deviation = wide.std((0, 2), keepdims=True) + 1e-9
    expected = (wide - wide.mean((0, 2), keepdims=True)) / deviation
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_epilogue(run_kernel):
    x, other = numbers((4, 50)), numbers((4, 50), seed=1)
    body = Body(("float32", "float32"), (Apply("Add", (0, 1)),), (2,))
    epilogue = Fused(body, (Layout("float32", (50, 1)),))
    got, _ = rows(run_kernel, "Softmax", x, (1,), extra=(other,), epilogue=epilogue)
    close(got, softmax(x.astype("float64"), 1) + other)


def test_epilogue_to_another_dtype(run_kernel):
    epilogue = Fused(Body(("float32",), (Apply("Cast", (0,), (), "float64"),), (1,)))
    for columns in (50, 600):
        x = numbers((4, columns))
        layout, out = Layout("float32", (columns, 1)), Layout("float64", (columns, 1))
        spec = Rows(x.shape, (1,), "Softmax", layout, out, epilogue=epilogue)
        _, got = run_kernel(build(spec), [x, np.zeros(x.shape)], rtol=1e-5)
        np.testing.assert_allclose(got, softmax(x.astype("float64"), 1), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("is_wanted", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((3, 37), 1), ((3, 700), 1), ((19, 40), 0)])
@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax", "Normalize", "RmsNormalize"])
@pytest.mark.parametrize("unit", [AVX512, SCALAR])
def test_what_is_added_first(run_kernel, kind, shape, axis, is_wanted, unit):
    x, skip, bias = numbers(shape), numbers(shape, seed=1), numbers(shape[-1:], seed=2)
    layout = Layout("float32", row_major(shape))
    wide = Layout("float32", (0, 1))
    steps = (Apply("Add", (0, 1)), Apply("Add", (3, 2)))
    prologue = Fused(Body(("float32",) * 3, steps, (4,)), (layout, wide))
    spec = Rows(
        shape,
        (axis,),
        kind,
        layout,
        layout,
        prologue=prologue,
        made=layout if is_wanted else None,
        unit=unit,
    )
    room = [np.zeros_like(x)] * is_wanted
    got = run_kernel(build(spec), [x, np.zeros_like(x), skip, bias, *room], rtol=1e-5)
    total = x.astype("float64") + skip + bias
    if kind in KINDS:
        exact = KINDS[kind](total, axis)
    else:
        centred = total - total.mean(axis, keepdims=True) if kind == "Normalize" else total
        exact = centred / np.sqrt((centred**2).mean(axis, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got[1], exact, rtol=2e-5, atol=2e-5)
    if is_wanted:
        np.testing.assert_allclose(got[4], total, rtol=1e-6, atol=1e-6)
