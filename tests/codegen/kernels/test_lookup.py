# SPDX-License-Identifier: Apache-2.0
"""Functions of codes by a table, against numpy."""

import numpy as np
import pytest

from intarsia.codegen.body import Layout
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import lookup
from intarsia.codegen.kernels.lookup import CodeLookup


@pytest.mark.parametrize("source", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(256,), (3, 5, 19), (0, 4)])
def test_each_entry_is_what_the_table_has(run_kernel, shape, source):
    rng = np.random.default_rng(0)
    first = np.iinfo(source).min
    x = (np.arange(np.prod(shape)).reshape(shape) * 7 % 256 + first).astype(source)
    table = rng.integers(-128, 128, 256).astype(np.int8)
    spec = CodeLookup(shape, Layout(source, row_major(shape)), Layout("int8", row_major(shape)))
    y = np.zeros(shape, np.int8)
    got = run_kernel(lookup.build(spec), [x, table, y])[-1]
    np.testing.assert_array_equal(got, table[x.astype(int) - first])


def test_of_transposed_codes(run_kernel):
    x = np.arange(60, dtype=np.uint8).reshape(12, 5)
    table = np.arange(255, -1, -1, dtype=np.uint8)
    spec = CodeLookup((5, 12), Layout("uint8", (1, 5)), Layout("uint8", (12, 1)))
    got = run_kernel(lookup.build(spec), [x, table, np.zeros((5, 12), np.uint8)])[-1]
    np.testing.assert_array_equal(got, 255 - x.T)
