# SPDX-License-Identifier: Apache-2.0
"""Where large intervals may begin and end, so that they can be chosen along a line of cuts.

A cut is an operator whose results are all that is handed on from before it to after it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from intarsia.search.problem import PlacementProblem


@dataclass(frozen=True, slots=True)
class CutLayout:
    """The cuts that intervals use.

    Attributes:
        cuts: The operators, ascending; the last operator is always one.
        intervals: Positions of the intervals that begin and end at cuts.
    """

    cuts: tuple[int, ...]
    intervals: tuple[int, ...]

    def segment(self, op: int) -> int:
        """Return between which cuts an operator lies; a cut belongs to what ends with it."""
        return bisect_left(self.cuts, op)


def find_layout(problem: PlacementProblem, ties: Sequence[tuple[int, int]]) -> CutLayout:
    """Return the cuts at which intervals begin and end.

    Args:
        problem: The problem.
        ties: Pairs of operators that share a table because of a label that covers both.
    """
    ends = {problem.count - 1}
    for interval in problem.intervals:
        ends |= {interval.first, interval.last} - {-1}
    cuts = _unpassed(problem, ties, sorted(ends))
    usable = {*cuts, -1}
    return CutLayout(
        cuts=tuple(cuts),
        intervals=tuple(
            position
            for position, interval in enumerate(problem.intervals)
            if interval.first in usable and interval.last in usable
        ),
    )


def _unpassed(
    problem: PlacementProblem, ties: Sequence[tuple[int, int]], ops: Sequence[int]
) -> list[int]:
    """Return the operators that neither a tensor nor a tie passes by."""
    passing = np.zeros(problem.count + 1, dtype=np.intp)
    for first, second in ties:
        passing[first + 1] += 1
        passing[second] -= 1
    for tensor in problem.tensors:
        if tensor.consumers:
            first = tensor.producer + 1 if tensor.producer >= 0 else min(tensor.consumers)
            passing[first] += 1
            passing[max(first, *tensor.consumers)] -= 1
    passing = np.cumsum(passing)
    return [op for op in ops if not passing[op]]
