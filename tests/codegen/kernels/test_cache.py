# SPDX-License-Identifier: Apache-2.0
"""Keys behind those of earlier runs, against numpy."""

from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.kernels.test_attention import sketch
from tests.codegen.kernels.test_gather import dense

from intarsia.codegen.kernels import cache
from intarsia.codegen.kernels.attention import schedule, ways
from intarsia.codegen.kernels.cache import CLEAN_ROWS, Append, CacheLengths, Carry
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE
from intarsia.extents import symbol

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
def test_what_was_before_is_carried_and_what_is_new_appended(
    run_kernel, unit, past, new, capacity, size, lengths
):
    rng = np.random.default_rng(0)
    old, x = (rng.standard_normal((2, 3, rows, size)).astype("f4") for rows in (past, new))
    y = np.full((2, 3, capacity, size), np.nan, "f4")
    ends = np.array(lengths)
    layouts = [dense(array) for array in (old, x, y, ends)]
    sizes = (new, capacity, size)
    carry = Carry(2, 3, past, *sizes, layouts[0] if past else None, *layouts[2:], UNITS[unit])
    append = Append(2, 3, *sizes, *layouts[1:], UNITS[unit])
    options = {"interpreted": past < 100}
    y = run_kernel(cache.build(carry), [*[old] * bool(past), ends, y], **options)[-1]
    for item, end in enumerate(lengths):
        assert np.isnan(y[item, :, end - new : end]).all()
    y = run_kernel(cache.build(append), [x, ends, y], **options)[-1]
    want = np.zeros_like(y)
    for item, end in enumerate(lengths):
        want[item, :, : end - new] = old[item, :, : end - new]
        want[item, :, end - new : end] = x[item]
    np.testing.assert_array_equal(y, want)


def test_rows_behind_are_kept_where_they_are_to_be(run_kernel):
    old = np.random.default_rng(1).standard_normal((2, 3, 9, 7)).astype("f4")
    x, y, ends = np.ones((2, 3, 2, 7), "f4"), np.full_like(old, np.nan), np.array([4, 9])
    layouts = [dense(array) for array in (old, x, y, ends)]
    carry = Carry(2, 3, 9, 2, 9, 7, layouts[0], *layouts[2:], AVX2, keeps=True)
    append = Append(2, 3, 2, 9, 7, *layouts[1:], AVX2, keeps=True)
    y = run_kernel(cache.build(carry), [old, ends, y])[-1]
    y = run_kernel(cache.build(append), [x, ends, y])[-1]
    want = old.copy()
    for item, end in enumerate(ends):
        want[item, :, end - 2 : end] = 1
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("queries", [1, 4, 40, 300, symbol("queries")])
@pytest.mark.parametrize("keys", [5000, symbol("keys")])
def test_rows_are_clean_up_to_where_attention_reads(unit, queries, keys):
    spec = sketch((1, 4), 300, 5000, 64, unit=UNITS[unit])
    spec = replace(spec, queries=queries, keys=keys)
    for way in ways(spec):
        if way is not None:
            assert CLEAN_ROWS % schedule(way).keys == 0


@pytest.mark.parametrize("end", [5, 6, CLEAN_ROWS, CLEAN_ROWS + 1, CLEAN_ROWS + 5, 799, 800])
@pytest.mark.parametrize("new", [1, 5])
def test_rows_behind_are_numbers_where_blocks_are_read(run_kernel, end, new):
    x, ends = np.ones((1, 1, new, 8), "f4"), np.array([end])
    y = np.full((1, 1, 800, 8), np.nan, "f4")
    layouts = [dense(array) for array in (x, y, ends)]
    kernel = cache.build(Append(1, 1, new, 800, 8, *layouts, AVX2))
    start = end - new
    y[0, 0, : -(-start // CLEAN_ROWS) * CLEAN_ROWS] = 2  # as runs before left it
    before = y.copy()
    y = run_kernel(kernel, [x, ends, y])[-1]
    clean = min(800, -(-end // CLEAN_ROWS) * CLEAN_ROWS)
    np.testing.assert_array_equal(y[0, 0, :start], before[0, 0, :start])
    np.testing.assert_array_equal(y[0, 0, start:end], 1)
    assert not np.isnan(y[0, 0, :clean]).any()
    assert np.isnan(y[0, 0, clean:]).all()


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
