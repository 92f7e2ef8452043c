# SPDX-License-Identifier: Apache-2.0
"""Plans of a small problem in the order of their bounds, until these reach the best price.

What tables know of calls is a bound; the plan with the least bound need not be the cheapest. So
plans are enumerated by their bound: what is left beside the best one is split into parts, each of
which keeps its first labels and loses the next one, and each part is solved again. E. L. Lawler,
"A procedure for computing the K best solutions to discrete optimization problems" (Management
Science 18(7), 1972).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.engine import Scenario
from intarsia.search.proof import gap
from intarsia.search.search import best_plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.search.engine import Engine, Optimum
    from intarsia.search.problem import Piece
    from intarsia.search.search import PricedPlan, Search

_MOST_OPS = 24
_MOST_ROWS = 8000  # operators times solutions

_Part = tuple[float, int, "Optimum", frozenset[int], "NDArray[np.float64]"]


def rank(
    search: Search, engine: Engine, first: Optimum, plan: PricedPlan
) -> tuple[PricedPlan, int]:
    """Return the best of all plans whose bounds are below its price, and how many were looked at.

    Args:
        search: The problem.
        engine: Tables whose optimum is a bound on plans with their calls.
        first: Their optimum.
        plan: The best plan so far.
    """
    problem = search.problem
    if problem.count > _MOST_OPS or engine.chain is not None or not first.chosen:
        return plan, 0
    nothing = np.zeros(len(engine.model.seconds))
    heap: list[_Part] = [(first.value, 0, first, frozenset(), nothing)]
    looked = rows = number = 0
    while heap and rows * problem.count < _MOST_ROWS:
        value, _, found, kept, extra = heappop(heap)
        if not gap(plan.price.seconds, value):
            break
        looked += 1
        other = search.plan(found.chosen, thorough=True)
        plan = best_plan([plan, other], problem.count) if other else plan
        parts: list[tuple[frozenset[int], NDArray[np.float64]]] = []
        for piece in found.chosen:
            if piece.ops[0] in kept:
                continue
            is_piece, is_other = _masks(search, engine, piece)
            parts.append((kept, extra + is_piece))
            extra = extra + is_other
            kept |= {piece.ops[0]}
        rows += len(parts)
        scenarios = [Scenario(spine=1.0, extra=part) for _, part in parts]
        for (mine, part), each in zip(parts, engine.solve(scenarios), strict=True):
            if each.chosen and gap(plan.price.seconds, each.value):
                number += 1
                heappush(heap, (each.value, number, each, mine, part))
    return plan, looked


def _masks(
    search: Search, engine: Engine, piece: Piece
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return f64 by value: infinite for this label at its first operator; for all others there."""
    model = engine.model
    op = piece.ops[0]
    places = search.positions[id(piece)]
    is_piece, is_other = np.zeros((2, len(model.seconds)))
    begin = int(model.offsets[op])
    for value, option in enumerate(model.options[op], start=begin):
        (is_piece if option in places else is_other)[value] = np.inf
    return is_piece, is_other
