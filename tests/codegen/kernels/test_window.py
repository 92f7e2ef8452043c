# SPDX-License-Identifier: Apache-2.0
"""Cuts of extents that are known only when a kernel runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.codegen.builder import Builder
from intarsia.codegen.expand import expand
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.kernels.window import FreeSplit, Split, split_extent
from intarsia.codegen.verifier import verify
from intarsia.extents import evaluate, evaluate_all, symbol

LIMIT = 90


def cut(size, extent, parts):
    """Return for each row the size of the part that it is in, and its turn; -1 where in none.

    Turns take so many parts; 0 is one turn without a range.
    """
    rows = symbol("m", 0)
    split = split_extent(rows, size)
    assert isinstance(split, FreeSplit)
    b = Builder("cut")
    sizes = b.argument("sizes", "int64", (LIMIT,), is_written=True)
    turns = b.argument("turns", "int64", (LIMIT,), is_written=True)
    with b.parallel(-(-split.count // parts) if parts else 1) as turn:
        among = (turn * parts, b.smaller((turn + 1) * parts, split.count)) if parts else ()
        for width, begin in split.each(b, *among):
            for row in range(width):
                b.store(b.constant(width, b.index(begin).type), sizes, (begin + row,))
                b.store(b.index(turn), turns, (begin + row,))
    function = b.finish()
    verify(function)
    named = {"m": extent}
    count = evaluate(function.turns, named) if function.turns is not None else 1
    found = np.full((2, LIMIT), -1)
    interpret(expand(function), [*found], list(evaluate_all(function.free, named)), range(count))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 6, 9, 14])
def test_free_parts_cover_an_extent_once(size):
    for extent in range(min(3 * size + 2, LIMIT)):
        sizes, _ = cut(size, extent, 0)
        assert (sizes[:extent] > 0).all()
        assert (sizes[extent:] == -1).all()
        assert sizes.max() <= size


@settings(max_examples=40)
@given(st.integers(1, 14), st.integers(0, LIMIT - 1), st.integers(1, 5))
def test_free_parts_of_turns_cover_an_extent_once(size, extent, parts):
    whole, _ = cut(size, extent, 0)
    sizes, turns = cut(size, extent, parts)
    np.testing.assert_array_equal(sizes, whole)
    assert (turns[:extent] >= 0).all()
    assert (np.diff(turns[:extent]) >= 0).all()


def test_free_parts_are_as_many_as_those_of_a_known_extent_and_no_smaller():
    for extent in range(1, 40):
        sizes, _ = cut(6, extent, 0)
        known = Split.of(extent, 6)
        assert round(sum(1 / sizes[:extent])) == known.count
        assert sizes[:extent].min() >= (extent if extent < 6 else 3)
