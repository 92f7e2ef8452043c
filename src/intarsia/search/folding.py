# SPDX-License-Identifier: Apache-2.0
"""Intervals that no cut allows, as labels.

An interval is a label of its own call; only the way in which it is found differs. As a label it
ties its operators together, which makes tables larger, and nothing can be cut inside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.search.problem import Interval, Label, PlacementProblem
from intarsia.search.search import Search

if TYPE_CHECKING:
    from collections.abc import Sequence

# On 81 recorded problems 2^16 entries give the same plans.
_MOST_ENTRIES = 1 << 19
_MOST_WORK = 1 << 26  # operators times entries: about a second of a whole search
_MOST_TIED = 20_000  # operators of all intervals together
_MANY_OPS, _FEW_OPS = 2_000, 12  # of many operators, only short intervals are tried
_ROUNDS = 4


def make_search(problem: PlacementProblem) -> Search:
    """Return the search of a problem with as many of its intervals as its tables allow.

    Intervals that do not begin and end at cuts become labels, with their keys, if the tables stay
    small; of a large problem, those that are short. An interval that nothing can be cut inside of
    any more becomes a label too.
    """
    search = Search(problem)
    if search.engine.order is None or not search.dropped_intervals:
        return search
    wanted = search.dropped_intervals
    if problem.count > _MANY_OPS:
        wanted = [each for each in wanted if len(each.ops) <= _FEW_OPS]
    if sum(len(each.ops) for each in wanted) > _MOST_TIED:
        return search
    return _folded(search, wanted) or search


def _folded(search: Search, intervals: Sequence[Interval]) -> Search | None:
    """Return the search with these intervals as labels; None if it would lose or cost too much.

    What is folded takes cuts away; so intervals between these are folded in turn.
    """
    most = max(_MOST_ENTRIES, search.engine.order.entries if search.engine.order else 0.0)
    before = {id(each) for each in search.dropped_intervals}
    problem = search.problem
    for _ in range(_ROUNDS):
        problem = fold(problem, intervals)
        folded = Search(problem)
        order = folded.engine.order
        work = problem.count * (order.entries if order else 0.0)
        # A label ties its operators together: one that is too long widens all tables.
        if order is None or order.entries > most or work > _MOST_WORK:
            return None
        intervals = [each for each in folded.dropped_intervals if id(each) not in before]
        if not intervals:
            return folded
    return None


def fold(problem: PlacementProblem, intervals: Iterable[Interval]) -> PlacementProblem:
    """Return the problem with some of its intervals as labels, behind all others."""
    gone = {id(each) for each in intervals}
    labels = tuple(
        Label(
            tuple(each.ops),
            each.source,
            each.state,
            each.seconds,
            each.backend,
            each.key,
            alone=True,
            nbytes=each.nbytes,
        )
        for each in problem.intervals
        if id(each) in gone
    )
    return replace(
        problem,
        labels=(*problem.labels, *labels),
        intervals=tuple(each for each in problem.intervals if id(each) not in gone),
    )


class Unfolded:
    """A problem with all of its intervals as labels, and the way back.

    Args:
        given: The problem.

    Attributes:
        problem: The same with labels alone.
    """

    def __init__(self, given: PlacementProblem) -> None:
        self.problem = fold(given, given.intervals)
        self._pieces: tuple[Label | Interval, ...] = (*given.labels, *given.intervals)
        self._positions = {id(piece): place for place, piece in enumerate(self._pieces)}

    def position(self, piece: Label | Interval) -> int:
        """Return the position of a piece of the given problem among the labels."""
        return self._positions[id(piece)]

    def labels(self, by_op: Sequence[int]) -> tuple[Label, ...]:
        """Return the labels that operators have by their positions, each once."""
        given = self.problem.labels
        return tuple(given[label] for op, label in enumerate(by_op) if given[label].ops[0] == op)

    def pieces(self, by_op: Sequence[int]) -> tuple[Label | Interval, ...]:
        """Return the same as pieces of the given problem."""
        given = self.problem.labels
        return tuple(
            self._pieces[label] for op, label in enumerate(by_op) if given[label].ops[0] == op
        )
