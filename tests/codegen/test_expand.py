"""Expanding loops changes no result."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.codegen.builder import Builder
from intarsia.codegen.expand import expand
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.ir import INT64, Index, Loop, LoopKind, walk
from intarsia.codegen.verifier import verify

EXTENT = 64
loops = st.recursive(
    st.just(()),
    lambda inner: st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 2), inner), max_size=2
    ),
    max_leaves=4,
)


def build(nest):
    """A kernel of nested loops, each of which carries, counts and stores."""
    b = Builder("nest")
    y = b.argument("y", "int64", (EXTENT,), is_written=True)

    def fill(loops, outer, total):
        for lower, turns, step, inner in loops:

            def body(index, carried, step=step, inner=inner):
                carried = b.add(b.mul(carried, 3), b.index(index * 2 + outer + 1))
                carried = fill(inner, index + outer, carried)
                place = b.split(Index.of(b.binary("and", carried, EXTENT - 1)), 1)[0]
                b.store(b.add(b.index(index), carried), y, place)
                return [carried]

            (total,) = b.loop(lower, lower + turns * step, [total], body, step=step)
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
    b = Builder("corner")
    y = b.argument("y", "int64", (3, 3), is_written=True)
    with b.serial(2, 3) as i, b.serial(i, i + 1) as j:
        b.store(b.index(i * 10 + j), y, (i, j))
    expanded = expand(b.finish())
    assert not [item for item in walk(expanded.body) if isinstance(item, Loop)]
    out = np.zeros(9, "int64")
    interpret(expanded, [out])
    assert out.reshape(3, 3).tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 22]]
