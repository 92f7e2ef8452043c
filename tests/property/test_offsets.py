# SPDX-License-Identifier: Apache-2.0
"""Arena offsets for any lives: aligned, apart while alive, and never worse than no sharing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.graph.arena import ALIGNMENT, assign_offsets

BLOCKS = st.tuples(
    st.integers(0, 30), st.integers(0, 12), st.one_of(st.just(0), st.integers(1, 700))
)


def rounded(nbytes):
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@settings(max_examples=2000, deadline=None, derandomize=True, database=None)
@given(drawn=st.lists(BLOCKS, max_size=40))
def test_blocks_that_are_alive_together_lie_apart(drawn):
    lives = sorted(((first, first + length, nbytes) for first, length, nbytes in drawn))
    offsets, size = assign_offsets(lives)
    assert len(offsets) == len(lives)
    assert size <= sum(rounded(nbytes) for _, _, nbytes in lives)
    for i, (offset, (first, last, nbytes)) in enumerate(zip(offsets, lives, strict=True)):
        assert offset % ALIGNMENT == 0
        assert 0 <= offset <= offset + nbytes <= size
        for other, (start, stop, width) in zip(offsets[:i], lives[:i], strict=True):
            if nbytes and width and first <= stop and start <= last:
                assert offset + nbytes <= other or other + width <= offset


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(drawn=st.lists(BLOCKS, max_size=40))
def test_the_arena_holds_at_least_what_is_alive_at_once(drawn):
    lives = sorted(((first, first + length, nbytes) for first, length, nbytes in drawn))
    _, size = assign_offsets(lives)
    for when in range(43):
        alive = (rounded(nbytes) for first, last, nbytes in lives if first <= when <= last)
        assert sum(alive) <= size


def test_a_chain_needs_two_blocks():
    lives = [(i, i + 1, 1000) for i in range(50)]
    _, size = assign_offsets(lives)
    assert size == 2 * 1024
