# SPDX-License-Identifier: Apache-2.0
"""Runners-up that differ from the best plan and from one another, to be measured end to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.engine import Scenario
from intarsia.search.folding import make_search
from intarsia.search.search import PricedPlan, Search
from intarsia.search.sweep import bounding, variations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.search.problem import Piece, PlacementProblem, Solution

_PENALTIES = (0.1, 0.5)
_FAR = 0.02


def finalists(problem: PlacementProblem, solution: Solution, count: int) -> tuple[PricedPlan, ...]:
    """Return up to `count` plans beside the solution, cheap and unlike one another.

    They come from the sweep, from leaving out backends, from each backend on its own, and from
    making the solution's labels dearer where tensors cross between its calls. A plan is taken if
    it runs at least 2% of the work elsewhere than every plan before it; if these are too few, any
    other plan is.

    Args:
        problem: The problem.
        solution: Its solution.
        count: How many are wanted.
    """
    if count < 1 or not problem.count:
        return ()
    search = make_search(problem)
    if not search.is_narrow:
        return ()
    scenarios = [
        *bounding(search),
        *variations(search),
        *_against_cuts(search, solution),
    ]
    plans = [plan for plan in search.plans(scenarios) if plan.chosen != solution.chosen]
    plans.sort(key=lambda plan: (plan.price.seconds, len(plan.calls), plan.backends(problem.count)))
    weights = _weights(problem)
    taken = [_placement(problem, solution.chosen)]
    chosen: list[PricedPlan] = []
    for least in (_FAR, 0.0):
        for plan in plans:
            mine = _placement(problem, plan.chosen)
            if (
                len(chosen) < count
                and plan not in chosen
                and _distance(mine, taken, weights) >= least
            ):
                chosen.append(plan)
                taken.append(mine)
    return tuple(sorted(chosen, key=lambda plan: (plan.price.seconds, len(plan.calls))))


def _against_cuts(search: Search, solution: Solution) -> list[Scenario]:
    """Return scenarios in which the labels at the borders of the solution's calls cost more."""
    call_of = {op: place for place, call in enumerate(solution.calls) for op in call.ops}
    border = set()
    for tensor in search.problem.tensors:
        for op in tensor.consumers:
            if tensor.producer >= 0 and call_of[op] != call_of[tensor.producer]:
                border |= {op, tensor.producer}
    model = search.model
    share = np.zeros(len(model.seconds))
    placement = _placement(search.problem, solution.chosen)
    usual = solution.label_seconds / search.problem.count
    for op in sorted(border):
        values = slice(model.offsets[op], model.offsets[op + 1])
        share[values] = np.where(model.backends[values] == placement[op][0], usual, 0.0)
    if not share.any():
        return []
    return [Scenario(extra=penalty * share) for penalty in _PENALTIES]


def _placement(problem: PlacementProblem, chosen: Sequence[Piece]) -> list[tuple[int, int, int]]:
    by_op = [(0, 0, 0)] * problem.count
    for piece in chosen:
        for op in piece.ops:
            by_op[op] = (piece.backend, piece.source, piece.state)
    return by_op


def _weights(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return by operator how much of the work it is, by its cheapest label."""
    least = np.full(problem.count, np.inf)
    for label in problem.labels:
        for op in label.ops:
            least[op] = min(least[op], label.seconds / len(label.ops))
    least[np.isinf(least)] = 0.0
    total = least.sum()
    return least / total if total > 0 else np.full(problem.count, 1 / problem.count)


def _distance(
    mine: Sequence[tuple[int, int, int]],
    taken: Sequence[Sequence[tuple[int, int, int]]],
    weights: NDArray[np.float64],
) -> float:
    apart = [
        sum(float(weight) for weight, a, b in zip(weights, mine, other, strict=True) if a != b)
        for other in taken
    ]
    return min(apart)
