# SPDX-License-Identifier: Apache-2.0
"""From exact labels to good calls: sweep the price of crossing, then take calls apart.

The tables know nothing of calls, because calls follow from an order of the whole plan. A
*price* of crossing tensors stands in for their overhead; several values are tried, and every plan
is then priced with its real calls. Without these variations, three of the 81 plans of
`benchmarks/search_stages.py` are up to 3.4% dearer. After that, each call of the best plan in turn
is denied to its backend; without it, four plans are up to 3.4% dearer.
Runners-up come from the same variations, and from subsets of the backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.engine import Scenario
from intarsia.search.folding import make_search
from intarsia.search.pricing import gap
from intarsia.search.search import PricedPlan, Search, best_plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.search.problem import Piece, PlacementProblem, Solution

# On the 81 recorded problems of benchmarks/search_stages.py, 1.0 alone or 0.5 and 2.0 alone each
# leave one plan 1.25% dearer.
_CROSSING_PRICES = (0.25, 0.5, 1.0, 2.0)
_MANY_OPS = 5000  # of more, half of the prices are tried
# Above what sums of thousands of costs lose to rounding, below any difference that was measured.
_TIE = 1e-10
_USUAL = 1e-6
# With 4, one of the 81 plans is 1.42% dearer; with 40, one is 0.08% cheaper.
_DISSOLVED = 12
_DISSOLVED_OPS = 20_000  # operators times scenarios
# The plans of the 81 problems are the same without subsets of the backends; runners-up are not: of
# 42 problems with three targets or more, 15 have others, 7 if only pairs are left out.
_SUBSET_PRICE = 0.5
_PAIRED_BACKENDS = 5
_PENALTIES = (0.1, 0.5)
_FAR = 0.02


def bounding(search: Search) -> list[Scenario]:
    """Return the scenarios that bounds come from.

    No change; the calls that one path cannot avoid; the same with ties broken by fewer crossings,
    then by the user's order; then each backend on its own, if there are several.
    """
    problem = search.problem
    least = np.minimum.reduceat(search.model.seconds, search.model.offsets[:-1])
    scale = float(least[np.isfinite(least)].sum()) or _USUAL
    overhead = max(problem.overheads, default=0.0) or _USUAL
    tie = Scenario(crossing_price=_TIE * scale / overhead, spine=1.0, lean=_TIE * 1e-3 * scale)
    everybody = frozenset(range(problem.backends))
    singles = [Scenario(barred=everybody - {backend}) for backend in sorted(everybody)]
    return [Scenario(), Scenario(spine=1.0), tie, *(singles if len(singles) > 1 else [])]


def variations(search: Search) -> list[Scenario]:
    """Return the scenarios whose plans may have better calls."""
    problem = search.problem
    if problem.backends <= 1 or not (any(problem.overheads) or problem.private):
        return []
    prices = _CROSSING_PRICES if problem.count <= _MANY_OPS else _CROSSING_PRICES[1::2]
    return [Scenario(crossing_price=price) for price in prices]


def improve(search: Search, plan: PricedPlan, bound: float) -> tuple[PricedPlan, int]:
    """Deny each call to its backend in turn.

    Args:
        search: The problem.
        plan: The best plan so far.
        bound: What no plan undercuts.

    Returns:
        The best plan, and how many others were looked at.
    """
    problem = search.problem
    if problem.backends <= 1 or not (any(problem.overheads) or problem.private):
        return plan, 0
    calls = sorted(plan.calls, key=lambda call: (len(call.ops), call.ops))[:_DISSOLVED]
    work = problem.count * len(calls) * 2
    if len(plan.calls) <= 1 or work > _DISSOLVED_OPS or not gap(plan.price.seconds, bound):
        return plan, 0
    scenarios = [
        Scenario(crossing_price=price, extra=_denied(search, call.ops, call.backend))
        for call in calls
        # Once for labels alone and once with calls in mind: which is better depends on what
        # else is near.
        for price in (0.0, 1.0)
    ]
    others = search.plans(scenarios)
    better = best_plan([plan, *others], problem.count)
    return better if better.price.seconds < plan.price.seconds else plan, len(others)


def _denied(search: Search, ops: Sequence[int], backend: int) -> NDArray[np.float64]:
    """Return what bars a backend from these operators, unless it alone can run one."""
    model = search.model
    extra = np.zeros(len(model.seconds))
    for op in ops:
        values = slice(model.offsets[op], model.offsets[op + 1])
        mine = model.backends[values] == backend
        if not mine.all():
            extra[values][mine] = np.inf
    return extra


def finalists(problem: PlacementProblem, solution: Solution, count: int) -> tuple[PricedPlan, ...]:
    """Return up to `count` plans beside the solution, cheap and unlike one another.

    They come from the sweep, from subsets of the backends, from each backend on its own, and from
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
        *_subsets(search),
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


def _subsets(search: Search) -> list[Scenario]:
    """Return scenarios without each backend in turn, and with each pair."""
    problem = search.problem
    if problem.backends <= 1 or not (any(problem.overheads) or problem.private):
        return []
    everybody = frozenset(range(problem.backends))
    barred = {frozenset({backend}) for backend in everybody}
    if problem.backends <= _PAIRED_BACKENDS and problem.count <= _MANY_OPS:
        barred |= {everybody - set(pair) for pair in combinations(everybody, 2)}
    return [
        Scenario(crossing_price=_SUBSET_PRICE, barred=each)
        for each in sorted(barred, key=sorted)
        if 0 < len(each) < problem.backends - 1
    ]


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
