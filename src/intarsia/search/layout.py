# SPDX-License-Identifier: Apache-2.0
"""Where large intervals may begin and end, so that they can be chosen along a line of cuts.

A cut is an operator whose results are all that is handed on from before it to after it. A tensor
that many cuts see passing by (an attention mask) may be *conditioned* on: the search is repeated
for each set of states in which it may be available.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from intarsia.search.problem import PlacementProblem

_MOST_ASSIGNMENTS = 256
_MOST_PASSING = 4


@dataclass(frozen=True, slots=True)
class CutLayout:
    """The cuts that intervals use.

    Attributes:
        cuts: The operators, ascending; the last operator is always one.
        conditioned: Positions of the tensors that are conditioned on.
        intervals: Positions of the intervals that begin and end at cuts.
    """

    cuts: tuple[int, ...]
    conditioned: tuple[int, ...]
    intervals: tuple[int, ...]

    def segment(self, op: int) -> int:
        """Return between which cuts an operator lies; a cut belongs to what ends with it."""
        return bisect_left(self.cuts, op)


def find_layout(problem: PlacementProblem, ties: Sequence[tuple[int, int]]) -> CutLayout:
    """Return as many cuts as can be used together, those of the most intervals first.

    Args:
        problem: The problem.
        ties: Pairs of operators that share a table because of a label that covers both.
    """
    uses: dict[int, int] = {problem.count - 1: len(problem.intervals) + 1}
    for interval in problem.intervals:
        for op in {interval.first, interval.last} - {-1}:
            uses[op] = uses.get(op, 0) + 1
    passing = _passing(problem, ties, sorted(uses))
    wanted = _sources(problem)
    conditioned: list[int] = []
    assignments = 1
    cuts = []
    for op in sorted(uses, key=lambda op: (-uses[op], len(passing.get(op, ())), op)):
        if op not in passing:
            continue
        fresh = [tensor for tensor in passing[op] if tensor not in conditioned]
        more = assignments * int(np.prod([1 << len(wanted(tensor)) for tensor in fresh]))
        if more <= _MOST_ASSIGNMENTS:
            assignments = more
            conditioned += fresh
            cuts.append(op)
    usable = {*cuts, -1}
    return CutLayout(
        cuts=tuple(sorted(cuts)),
        conditioned=tuple(sorted(conditioned)),
        intervals=tuple(
            position
            for position, interval in enumerate(problem.intervals)
            if interval.first in usable and interval.last in usable
        ),
    )


def _passing(
    problem: PlacementProblem, ties: Sequence[tuple[int, int]], ops: Sequence[int]
) -> dict[int, list[int]]:
    """Return which tensors pass by each operator; none that too many, or a tie, pass by."""
    blocked = np.zeros(problem.count + 1, dtype=np.intp)
    for first, second in ties:
        blocked[first + 1] += 1
        blocked[second] -= 1
    blocked = np.cumsum(blocked)
    passing: dict[int, list[int]] = {op: [] for op in ops if not blocked[op]}
    left = sorted(passing)
    for position, tensor in enumerate(problem.tensors):
        if not tensor.consumers:
            continue
        first = tensor.producer + 1 if tensor.producer >= 0 else min(tensor.consumers)
        for op in left[bisect_left(left, first) : bisect_left(left, max(tensor.consumers))]:
            if op in passing:
                passing[op].append(position)
                if len(passing[op]) > _MOST_PASSING:
                    del passing[op]
    return passing


class _Sources:
    """Which states of a tensor anybody may want; tensors are looked up as they are needed."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.of_op: list[set[int]] = [set() for _ in range(problem.count)]
        for label in problem.labels:
            for op in label.ops:
                self.of_op[op].add(label.source)
        self.of_intervals = {interval.source for interval in problem.intervals}

    def __call__(self, tensor: int) -> tuple[int, ...]:
        wanted = set(self.of_intervals)
        for op in self.problem.tensors[tensor].consumers:
            wanted |= self.of_op[op]
        return tuple(sorted(wanted))


def _sources(problem: PlacementProblem) -> _Sources:
    return _Sources(problem)
