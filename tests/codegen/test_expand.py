"""Expanding loops changes no result."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.codegen.builder import Builder
from intarsia.codegen.expand import expand
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.ir import INT64, Index, Loop, LoopKind, walk
from intarsia.codegen.verifier import verify

EXTENT = 64
kinds = st.sampled_from([LoopKind.SERIAL, LoopKind.UNROLLED])
loops = st.recursive(
    st.just(()),
    lambda inner: st.lists(
        st.tuples(kinds, st.integers(0, 2), st.integers(0, 3), st.integers(1, 2), inner), max_size=2
    ),
    max_leaves=4,
)


def build(nest):
    """A kernel of nested loops, each of which carries, counts and stores."""
    b = Builder("nest")
    y = b.argument("y", "int64", (EXTENT,), is_written=True)

    def fill(loops, outer, total):
        for kind, lower, turns, step, inner in loops:

            def body(index, carried, step=step, inner=inner):
                carried = b.add(b.mul(carried, 3), b.index(index * 2 + outer + 1))
                carried = fill(inner, index + outer, carried)
                place = b.split(Index.of(b.binary("and", carried, EXTENT - 1)), 1)[0]
                b.store(b.add(b.index(index), carried), y, place)
                return [carried]

            (total,) = b.loop(lower, lower + turns * step, [total], body, step=step, kind=kind)
        return total

    b.store(fill(nest, Index(), b.constant(1, INT64)), y, 0)
    return b.finish()


@settings(deadline=None)
@given(loops)
def test_an_expanded_kernel_does_the_same(nest):
    function = build(nest)
    expanded = expand(function)
    verify(function)
    verify(expanded)
    left, right = np.zeros(EXTENT, "int64"), np.zeros(EXTENT, "int64")
    interpret(function, [left])
    interpret(expanded, [right])
    np.testing.assert_array_equal(left, right)
    for item in walk(expanded.body):
        if isinstance(item, Loop):
            assert item.kind is LoopKind.SERIAL
            assert item.trip_count is None or item.trip_count > 1


def test_bounds_of_outer_loops_become_known():
    b = Builder("triangle")
    y = b.argument("y", "int64", (3, 3), is_written=True)

    def row(i):
        def entry(j):
            b.store(b.index(i * 10 + j), y, (i, j))
            return []

        b.loop(0, i + 1, [], entry, kind=LoopKind.UNROLLED)
        return []

    b.loop(0, 3, [], row, kind=LoopKind.UNROLLED)
    expanded = expand(b.finish())
    assert not [item for item in walk(expanded.body) if isinstance(item, Loop)]
    out = np.zeros(9, "int64")
    interpret(expanded, [out])
    assert out.reshape(3, 3).tolist() == [[0, 0, 0], [10, 11, 0], [20, 21, 22]]


def test_only_constant_bounds_are_unrolled():
    b = Builder("unknown")
    b.loop(0, b.size("n"), [], lambda i: [], kind=LoopKind.UNROLLED)
    with pytest.raises(AssertionError, match="constant bounds"):
        expand(b.finish())
