# SPDX-License-Identifier: Apache-2.0
"""Keys behind those of earlier runs, against numpy."""

import numpy as np
import pytest
from tests.codegen.kernels.test_gather import dense

from intarsia.codegen.kernels import cache
from intarsia.codegen.kernels.cache import Append, CacheLengths
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE

UNITS = {"avx512": AVX512, "avx2": AVX2, "sse": SSE, "scalar": SCALAR}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("past", "new", "capacity", "size", "lengths"),
    [
        (6, 1, 7, 20, (7, 3)),
        (0, 5, 5, 16, (5, 5)),
        (300, 260, 600, 8, (513, 260)),
        (9, 3, 9, 7, (3, 9)),
    ],
)
def test_append(run_kernel, unit, past, new, capacity, size, lengths):
    rng = np.random.default_rng(0)
    old, x = (rng.standard_normal((2, 3, rows, size)).astype("f4") for rows in (past, new))
    y = np.full((2, 3, capacity, size), np.nan, "f4")
    ends = np.array(lengths)
    layouts = [dense(array) for array in (old, x, y, ends)]
    before = layouts[0] if past else None
    spec = Append(2, 3, past, new, capacity, size, before, *layouts[1:], UNITS[unit])
    arrays = [*[old] * bool(past), x, ends, y]
    got = run_kernel(cache.build(spec), arrays, interpreted=past < 100)[-1]
    want = np.zeros_like(y)
    for item, end in enumerate(lengths):
        want[item, :, : end - new] = old[item, :, : end - new]
        want[item, :, end - new : end] = x[item]
    np.testing.assert_array_equal(got, want)


LENGTHS = {
    "tokens": (6, 1, 7, (6, 4), 7, (7, 5), 0),
    "a first run that ends in padding": (9, 3, 9, (2, 0), 3, (3, 3), 0),
    "a buffer": (9, 1, 9, (3, 8), 9, (4, 9), 0),
    "beyond the past": (4, 1, 7, (6, 4), 7, (5, 5), 1),
    "beyond the buffer": (9, 2, 9, (9, 8), 10, (9, 9), 1),
    "no key at all": (6, 1, 7, (-1, 4), 7, (1, 5), 1),
    "another total": (6, 1, 7, (6, 4), 8, (7, 5), 1),
    "far numbers": (6, 1, 7, (2**31 - 1, -(2**31)), 7, (7, 1), 1),
}


@pytest.mark.parametrize("case", LENGTHS)
@pytest.mark.parametrize("is_given", [False, True])
def test_lengths(run_kernel, case, is_given):
    past, new, capacity, last, total, wanted, wrong = LENGTHS[case]
    arrays = [np.array(last, "i4"), np.array([total], "i4")]
    given = np.arange(2 * new).reshape(2, new) * 10 + 3
    lengths, positions = np.full(2, -9), np.full((2, new), -9)
    layouts = [dense(array) for array in (*arrays, lengths, positions)]
    spec = CacheLengths(2, past, new, capacity, *layouts, dense(given) if is_given else None)
    arrays += [given] * is_given
    results = run_kernel(cache.build(spec), [*arrays, lengths, positions, np.array([-9])])
    got, places, fault = results[-3:]
    follow = np.arange(new)
    whole = given if total != new else np.stack([given[0, 0] + follow] * 2)
    want = whole if is_given else np.array(wanted)[:, None] - new + follow
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(places, want)
    assert fault[0] == wrong
