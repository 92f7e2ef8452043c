# SPDX-License-Identifier: Apache-2.0
"""Where blocks and arrays lie in memory."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from intarsia.graph.arena import ALIGNMENT, on_large_pages

needs_large_pages = pytest.mark.skipif(
    not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no large pages"
)


def arrays(count, shape, dtype="float32"):
    rng = np.random.default_rng(5)
    return [rng.integers(0, 100, shape).astype(dtype) for _ in range(count)]


@needs_large_pages
@pytest.mark.parametrize(("shape", "dtype"), [((333, 701), "float32"), ((1_000_003,), "int8")])
def test_copies_on_large_pages_are_equal_aligned_and_side_by_side(shape, dtype):
    own = arrays(9, shape, dtype)
    copies = on_large_pages(own)
    begins = [copy.ctypes.data for copy in copies]
    for array, copy in zip(own, copies, strict=True):
        np.testing.assert_array_equal(array, copy, strict=True)
        assert not np.shares_memory(array, copy)
        assert copy.ctypes.data % ALIGNMENT == 0
        assert not copy.flags.writeable
    assert begins[0] % (2 << 20) == 0
    assert max(np.diff(begins)) < own[0].nbytes + ALIGNMENT


def test_few_bytes_stay_where_they_are():
    own = arrays(3, (100, 100))
    assert all(copy is array for array, copy in zip(own, on_large_pages(own), strict=True))


def test_no_array_is_no_copy():
    assert on_large_pages([]) == []
