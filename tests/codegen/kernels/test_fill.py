"""Filling boxes and borders, and the tables of Pad, against numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.codegen.body import Fused, Layout, identity
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import fill, remap
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE

UNITS = (AVX512, AVX2, SSE, SCALAR)


def check(run_kernel, extents, inner, unit, *, dtype="float32", value=0.0, interpreted=True):
    spec = fill.Fill(extents, inner, Layout(dtype, row_major(extents)), value, unit)
    y = np.full(extents, 1, dtype)
    expected = np.full(extents, value, dtype)
    stays = tuple(slice(first, end) for first, end in inner)
    expected[stays] = y[stays]
    got = run_kernel(fill.build(spec), [y], interpreted=interpreted)[0]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("extents", "inner"),
    [
        ((2, 3, 6, 7, 16), ((0, 2), (0, 3), (1, 5), (1, 6), (0, 16))),
        ((1, 2, 5, 40), ((0, 1), (0, 2), (0, 3), (3, 38))),
        ((3, 9), ((0, 3), (0, 9))),
        ((7,), ((2, 4),)),
        ((4, 5), ((1, 3), (0, 5))),
        ((2, 3, 33), ((0, 0), (0, 3), (0, 33))),
        ((0, 3, 4), ((0, 0), (0, 3), (0, 4))),
    ],
)
def test_everything_but_the_inner_box(run_kernel, extents, inner, unit):
    check(run_kernel, extents, inner, unit)


@pytest.mark.parametrize(("dtype", "value"), [("int64", -3), ("bool", False), ("uint8", 200)])
def test_other_dtypes(run_kernel, dtype, value):
    check(run_kernel, (2, 4, 9), ((0, 2), (1, 3), (2, 9)), AVX2, dtype=dtype, value=value)


def test_infinity_for_pooling(run_kernel):
    check(run_kernel, (2, 4, 9), ((0, 2), (1, 3), (2, 9)), AVX2, value=-np.inf)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4
    ),
    st.sampled_from(UNITS),
)
def test_random_boxes(run_kernel, dims, unit):
    extents = tuple(sum(dim) for dim in dims)
    inner = tuple((before, before + size) for before, size, _ in dims)
    check(run_kernel, extents, inner, unit, interpreted=np.prod(extents) < 500)


def test_memory_with_gaps_stays(run_kernel):
    spec = fill.Fill((3, 4), ((0, 3), (1, 3)), Layout("float32", (12, 2)), 7.0, AVX2)
    got = run_kernel(fill.build(spec), [np.zeros((3, 6, 2), "float32")])[0]
    expected = np.zeros((3, 6, 2), "float32")
    expected[:, [0, 3], 0] = 7
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 3), (4, 1), (-1, 2), (3, -2)])
def test_tables_are_numpys_padding(mode, before, after):
    x = np.arange(5)
    grown = np.pad(x, (max(0, before), max(0, after)), mode)
    end = len(grown) + min(0, after)
    expected = grown[-min(0, before) : end]
    np.testing.assert_array_equal(x[fill.pad_table(mode, 5, before, after)], expected)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pad_by_tables(run_kernel, mode, dtype, unit):
    x = np.random.default_rng(0).integers(0, 2, (2, 4, 5)).astype(dtype)
    expected = np.pad(x, ((0, 0), (1, 2), (3, 2)), mode)
    tables = [fill.pad_table(mode, 4, 1, 2), fill.pad_table(mode, 5, 3, 2)]
    spec = remap.Remap(
        expected.shape,
        x.shape,
        (False, True, True),
        Layout(dtype, row_major(x.shape)),
        Layout(dtype, row_major(expected.shape)),
        unit=unit,
        epilogue=Fused(identity(dtype)),
    )
    got = run_kernel(remap.build(spec), [x, *tables, np.zeros(expected.shape, dtype)])[-1]
    np.testing.assert_array_equal(got, expected)
