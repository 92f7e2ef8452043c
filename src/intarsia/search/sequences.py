# SPDX-License-Identifier: Apache-2.0
"""The best plan with its calls, proven: branch and bound over sequences of calls.

A node is how a plan begins: the backends of its first calls. Its tables (`stages.py`) choose
labels and which of these calls run them, all at once; what is left for later calls is priced too
low, so a node bounds all plans that begin like this. The least node is looked at next; its
sequence is made longer by each call there could be. A node that leaves nothing for later is a plan.
A. H. Land and A. G. Doig, "An automatic method of solving discrete programming problems"
(Econometrica 28(3), 1960).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.calls import Cycle, form_calls
from intarsia.search.engine import Engine, Scenario
from intarsia.search.folding import Unfolded
from intarsia.search.pricing import price
from intarsia.search.problem import PlannedCall
from intarsia.search.proof import gap
from intarsia.search.search import PricedPlan, best_plan
from intarsia.search.stages import SequencedCall, StagedBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from intarsia.search.problem import Piece
    from intarsia.search.search import Search

_MOST_ENTRIES = 1 << 20
MOST_OPS = 14
MOST_WORK = 12_000  # operators times scenarios
_NODE_WORK = 8  # scenarios that building tables costs as much as


@dataclass(frozen=True, slots=True)
class _Node:
    """Plans that begin alike.

    Attributes:
        begin: Their first calls.
        moves: The calls that may follow, if not any.
        barred: Labels that they do not use, positions: these have been in a cycle.
    """

    begin: tuple[SequencedCall, ...] = ()
    moves: tuple[SequencedCall, ...] | None = None
    barred: frozenset[int] = frozenset()


def complete(
    search: Search, plan: PricedPlan, bound: float, *, most: float = MOST_WORK
) -> tuple[PricedPlan, float, int]:
    """Return the best plan found, a bound on all plans, and how many beginnings were looked at.

    Args:
        search: The problem.
        plan: The best plan so far.
        bound: What no plan undercuts.
        most: How much work to do, in operators times scenarios.
    """
    if search.problem.count > MOST_OPS or not gap(plan.price.seconds, bound):
        return plan, bound, 0
    tree = _Tree(search, plan)
    heap: list[tuple[float, int, _Node]] = [(bound, 0, _Node())]
    work = looked = number = 0
    while heap and gap(tree.plan.price.seconds, heap[0][0]):
        value, _, node = heap[0]
        moves = tree.moves(node)
        work += (_NODE_WORK + 2 * len(moves)) * search.problem.count
        children = tree.expand(node, moves) if work <= most else None
        if children is None:
            break
        heappop(heap)
        looked += 1
        for child, least in children:
            if gap(tree.plan.price.seconds, least):
                number += 1
                heappush(heap, (max(value, least), number, child))
    least = min(heap[0][0] if heap else inf, tree.unsettled)
    return tree.plan, max(bound, min(least, tree.plan.price.seconds)), looked


class _Tree:
    """What all nodes share, and the best plan met."""

    def __init__(self, search: Search, plan: PricedPlan) -> None:
        self.search = search
        self.plan = plan
        self.unsettled = inf
        self.unfolded = Unfolded(search.problem)
        self.problem = self.unfolded.problem
        labels = self.problem.labels
        self.single = [
            SequencedCall(label.backend, place) for place, label in enumerate(labels) if label.alone
        ]
        mixed = {label.backend for label in labels if not label.alone}
        self.mixed = [SequencedCall(backend) for backend in sorted(mixed)]

    def moves(self, node: _Node) -> tuple[SequencedCall, ...]:
        """Return the calls that may follow."""
        if node.moves is not None:
            return node.moves
        labels = self.problem.labels
        taken = {op for each in node.begin if each.label >= 0 for op in labels[each.label].ops}
        last = node.begin[-1] if node.begin else None
        return (
            *(each for each in self.mixed if each != last),
            *(each for each in self.single if not taken.intersection(labels[each.label].ops)),
        )

    def expand(
        self, node: _Node, moves: Sequence[SequencedCall]
    ) -> list[tuple[_Node, float]] | None:
        """Return longer beginnings that leave something for later, with bounds.

        None if the tables would be too large.
        """
        if not moves:
            return []
        calls = [*([each] for each in node.begin), moves]
        builder = StagedBuilder(self.problem, self.search.conversions, calls, is_open=True)
        engine = Engine(self.problem, builder.build(), limit=_MOST_ENTRIES)
        if engine.order is None:
            return None
        scenarios = _scenarios(builder, moves, node.barred)
        batch = max(1, int(_MOST_ENTRIES / engine.order.entries))
        children: list[tuple[_Node, float]] = []
        again: set[SequencedCall] = set()
        for start in range(0, len(scenarios), batch):
            some = scenarios[start : start + batch]
            totals, values = engine.assign([scenario for _, _, scenario in some])
            for (move, is_open, _), total, column in zip(
                some, totals.tolist(), values.T, strict=True
            ):
                begin = (*node.begin, move)
                least = total + sum(self.problem.overheads[each.backend] for each in begin)
                if move in again or not gap(self.plan.price.seconds, least):
                    continue
                labels, stages = builder.decode(column)
                apart = self._apart(node, move, labels)
                if apart is not None:  # these nodes stand for what is left for later as well
                    again.add(move)
                    children += [(each, least) for each in apart]
                elif max(stages) < len(begin):
                    self._close(labels, stages, least)
                elif is_open:
                    self._look(labels)
                    children.append((_Node(begin, None, node.barred), least))
        return children

    def _apart(self, node: _Node, move: SequencedCall, labels: Sequence[int]) -> list[_Node] | None:
        """Return nodes without one label each of those in a cycle; None if there is none."""
        formed = form_calls(self.problem, self.unfolded.labels(labels))
        if not isinstance(formed, Cycle):
            return None
        given = self.problem.labels
        first = [label for op, label in enumerate(labels) if given[label].ops[0] == op]
        several = {first[piece] for piece in formed.pieces}
        return [
            _Node(node.begin, (move,), node.barred | {label})
            for label in sorted(several)
            if len(given[label].ops) > 1
        ]

    def _look(self, labels: Sequence[int]) -> None:
        """Price the plan of these labels, whatever calls they get."""
        other = self.search.plan(self.unfolded.pieces(labels), thorough=True)
        self.plan = best_plan([self.plan, *([other] if other else [])], self.problem.count)

    def _close(self, labels: Sequence[int], stages: Sequence[int], least: float) -> None:
        """Price the plan of these labels in these calls; keep in mind if the tables said less."""
        chosen = self.unfolded.pieces(labels)
        calls = _calls(chosen, stages)
        cost = price(self.search.problem, chosen, calls, self.search.conversions)
        self.plan = best_plan([self.plan, PricedPlan(chosen, calls, cost)], self.problem.count)
        if gap(cost.seconds, least):
            self.unsettled = min(self.unsettled, least)


def _scenarios(
    builder: StagedBuilder, moves: Sequence[SequencedCall], barred: frozenset[int]
) -> list[tuple[SequencedCall, bool, Scenario]]:
    """Return by move two scenarios: something may be left for later, or nothing."""
    stages = np.concatenate([values.reads for values in builder.values])
    labels = np.concatenate([values.labels for values in builder.values])
    backends = np.concatenate([values.backends for values in builder.values])
    alone = np.concatenate([values.alone for values in builder.values])
    is_last, is_rest = stages == builder.rest - 1, stages == builder.rest
    never = np.isin(labels, sorted(barred))
    found = []
    for move in moves:
        mine = labels == move.label if move.label >= 0 else ~alone & (backends == move.backend)
        other = (is_last & ~mine) | never
        for is_open, gone in ((True, other), (False, other | is_rest)):
            scenario = Scenario(spine=1.0, extra=np.where(gone, np.inf, 0.0))
            found.append((move, is_open, scenario))
    return found


def _calls(chosen: Sequence[Piece], stages: Sequence[int]) -> tuple[PlannedCall, ...]:
    """Return the calls of pieces by the stages of their operators."""
    pieces: dict[int, list[Piece]] = {}
    for piece in chosen:
        pieces.setdefault(stages[piece.ops[0]], []).append(piece)
    return tuple(
        PlannedCall(
            each[0].backend, tuple(sorted(op for piece in each for op in piece.ops)), tuple(each)
        )
        for _, each in sorted(pieces.items())
    )
