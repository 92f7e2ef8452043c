# SPDX-License-Identifier: Apache-2.0
"""TopK against numpy: ties, NaN, every dtype, any axis; few entries and many, every unit."""

import numpy as np
import pytest
from tests.codegen.kernels.test_gather import dense

from intarsia.codegen.kernels import top_k
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE

SHAPES = [((3, 40), 1, 7), ((7, 3, 2), 0, 7), ((2, 9, 5), 1, 1), ((11,), 0, 10), ((2, 1), 1, 1)]


def expected(x, axis, count, *, largest):
    """Sorted by size, then by place; NaN above all."""
    rows = np.moveaxis(x, axis, -1)
    ranks = np.unique(rows, return_inverse=True)[1].reshape(rows.shape)  # NaN are one, the last
    places = np.argsort(-ranks if largest else ranks, -1, kind="stable")[..., :count]
    values = np.take_along_axis(rows, places, -1)
    return np.moveaxis(values, -1, axis), np.moveaxis(places, -1, axis)


def check_top_k(run_kernel, x, axis, count, *, largest, unit=AVX512, sorts=False):
    wanted = expected(x, axis, count, largest=largest)
    y, places = np.zeros_like(wanted[0]), np.full(wanted[1].shape, -7)
    layouts = (dense(x), dense(y), dense(places))
    spec = top_k.TopK(x.shape, axis, count, *layouts, largest, layouts[2] if sorts else None, unit)
    arrays = [x, y, places, *([places] if sorts else [])]
    got = run_kernel(top_k.build(spec), arrays, interpreted=x.size < 150)[1:3]
    for have, want in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(have, want)


@pytest.mark.sample(4)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "axis", "count"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint64", "int64"])
def test_top_k(run_kernel, shape, axis, count, dtype, largest):
    x = np.random.default_rng(0).integers(0, 12, shape).astype(dtype)  # with ties
    check_top_k(run_kernel, x, axis, count, largest=largest)


SORTED = [((3, 40), 1, 30), ((70, 3, 2), 0, 7), ((2, 200), 1, 3), ((2, 19), 1, 19), ((5,), 0, 1)]


@pytest.mark.sample(4)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "axis", "count"), SORTED)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint64", "int64"])
def test_many_are_sorted(run_kernel, shape, axis, count, dtype, largest):
    x = np.random.default_rng(0).integers(0, 60, shape).astype(dtype)
    check_top_k(run_kernel, x, axis, count, largest=largest, sorts=True)


@pytest.mark.sample(4)
@pytest.mark.parametrize("sorts", [True, False])
@pytest.mark.parametrize("unit", [AVX512, AVX2, SSE, SCALAR])
@pytest.mark.parametrize("order", ["ascending", "descending", "random", "equal"])
def test_every_unit(run_kernel, order, unit, sorts):
    x = np.arange(2 * 1501, dtype="float32").reshape(2, -1)
    x = {
        "ascending": x,
        "descending": -x,
        "random": np.random.default_rng(0).permuted(x, axis=1),
        "equal": np.zeros_like(x),
    }[order]
    for count in (1, 5, 21):
        check_top_k(run_kernel, x, 1, count, largest=True, unit=unit, sorts=sorts)


def test_zeros_of_either_sign_are_equal(run_kernel):
    x = np.array([[0.0, -0.0, 1, -0.0, 0.0, -1]], "float32")
    for sorts in (True, False):
        for largest in (True, False):
            check_top_k(run_kernel, x, 1, 5, largest=largest, sorts=sorts)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_nan_is_the_largest(run_kernel, dtype, largest):
    x = np.random.default_rng(1).integers(-3, 4, (5, 12)).astype(dtype)
    x[:3, 2:9:3] = np.nan
    x[1, 1], x[1, 10], x[2, ::4], x[3] = np.inf, -np.inf, np.nan, np.nan
    x = np.tile(x, 8)
    x[0, 20], x[1, 3] = -np.nan, np.nan
    for count, sorts in ((1, False), (4, True), (12, False), (50, True), (1, True), (60, False)):
        check_top_k(run_kernel, x, 1, count, largest=largest, sorts=sorts)


@pytest.mark.parametrize("dtype", ["uint64", "int64", "int8"])
def test_extremes_of_integers(run_kernel, dtype):
    limits = np.iinfo(dtype)
    x = np.array([[0, limits.max, limits.min, 1, limits.max - 1, limits.max, limits.min]], dtype)
    for largest in (True, False):
        for sorts in (True, False):
            check_top_k(run_kernel, x, 1, 5, largest=largest, sorts=sorts)


def test_nothing(run_kernel):
    for shape, axis, count in (((2, 0), 1, 0), ((0, 3), 1, 2), ((2, 3), 1, 0)):
        check_top_k(run_kernel, np.zeros(shape, "float32"), axis, count, largest=True)
