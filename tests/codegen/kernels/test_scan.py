"""CumSum, CumProd and Trilu against numpy and onnxruntime."""

import numpy as np
import pytest
from tests.codegen.kernels.test_gather import UNITS, dense, expected_of, numbers

from intarsia.codegen.kernels import scan
from intarsia.codegen.unit import AVX2


@pytest.mark.sample(4)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("shape", [(2, 5, 19), (3, 7, 1), (1, 1, 4), (0, 3, 2), (2, 0, 3)])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumsum(run_kernel, shape, exclusive, reverse, dtype, unit):
    x, y = numbers(shape, dtype), np.zeros(shape, dtype)
    flags = (bool(exclusive), bool(reverse))
    spec = scan.Scan(*shape, dense(x), dense(y), *flags, unit=unit)
    got = run_kernel(scan.build(spec), [x, y])[1]
    if x.size:
        axis = np.array(1)
        wanted = expected_of("CumSum", [x, axis], exclusive=exclusive, reverse=reverse)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.sample(4)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint32"])
@pytest.mark.parametrize("shape", [(2, 5, 19), (3, 7, 1), (1, 1, 4), (0, 3, 2), (2, 0, 3)])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumprod(run_kernel, shape, exclusive, reverse, dtype, unit):
    x, y = numbers(shape, dtype), np.zeros(shape, dtype)
    flags = (bool(exclusive), bool(reverse), "Prod")
    got = run_kernel(scan.build(scan.Scan(*shape, dense(x), dense(y), *flags, unit=unit)), [x, y])
    turned = x[:, ::-1] if reverse else x
    shifted = np.concatenate([np.ones_like(x[:, :1]), turned], 1)[:, : shape[1]]
    wanted = np.cumprod(shifted if exclusive else turned, 1, dtype)
    np.testing.assert_array_equal(got[1], wanted[:, ::-1] if reverse else wanted)


def test_cumsum_keeps_nan_and_infinity(run_kernel):
    x = np.array([1, np.inf, 1, -np.inf, 2], "float32")
    spec = scan.Scan(1, 5, 1, dense(x.reshape(1, 5, 1)), dense(x.reshape(1, 5, 1)), unit=AVX2)
    got = run_kernel(scan.build(spec), [x, np.zeros_like(x)])[1]
    np.testing.assert_array_equal(got, [1, np.inf, np.inf, np.nan, np.nan])


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("diagonal", [-9, -1, 0, 2, 9])
@pytest.mark.parametrize("shape", [(2, 4, 5), (1, 5, 3), (3, 1, 1), (2, 0, 3)])
def test_trilu(run_kernel, shape, diagonal, upper):
    x = numbers(shape, "int64") + 100
    y = np.full(shape, 7)
    spec = scan.Trilu(*shape, dense(x), dense(y), diagonal, bool(upper))
    got = run_kernel(scan.build(spec), [x, y])[1]
    pick = np.triu if upper else np.tril
    np.testing.assert_array_equal(got, pick(x, diagonal))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("shape", [(5, 4, 19), (3, 7, 1), (1, 2, 4), (0, 3, 2)])
def test_reversed_starts(run_kernel, shape, unit):
    x, y = numbers(shape), numbers(shape)
    lengths = np.random.default_rng(0).integers(0, shape[0] + 1, shape[1])
    spec = scan.ReversedStarts(*shape, dense(x), dense(lengths), dense(y), unit)
    got = run_kernel(scan.build(spec), [x, lengths, y])[2]
    wanted = x.copy()
    for row, length in enumerate(lengths):
        wanted[:length, row] = x[:length, row][::-1]
    np.testing.assert_array_equal(got, wanted)
