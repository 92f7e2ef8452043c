# SPDX-License-Identifier: Apache-2.0
"""From exact labels to good calls: sweep the price of crossing, then take calls apart.

The tables know nothing of calls, because calls follow from an order of the whole plan. A *strain*
on crossing tensors stands in for their overhead; several values are tried, with all backends,
with each left out, and with each pair; every plan is then priced with its real calls. After that,
each call of the best plan in turn is denied to its backend, as long as this helps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.calls import BEAM_CLUSTERS
from intarsia.search.engine import Scenario
from intarsia.search.proof import gap
from intarsia.search.search import PricedPlan, Search, best_plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STRAINS = (0.25, 0.5, 1.0, 2.0)
_SUBSET_STRAIN = 0.5
_PAIRED_BACKENDS = 5
_PAIRED_OPS = 5000
_TIE = 1e-10
_USUAL = 1e-6
_ROUNDS = 6
_DISSOLVED = 12
_DISSOLVED_OPS = 20_000  # operators times scenarios in all rounds
_FINALISTS = 4


def bounding(search: Search) -> list[Scenario]:
    """Return the scenarios that bounds come from.

    No change; the calls that one path cannot avoid; the same with ties broken by fewer crossings,
    then by the user's order; then each backend on its own, if there are several.
    """
    problem = search.problem
    least = np.minimum.reduceat(search.model.seconds, search.model.offsets[:-1])
    scale = float(least[np.isfinite(least)].sum()) or _USUAL
    overhead = max(problem.overheads, default=0.0) or _USUAL
    tie = Scenario(strain=_TIE * scale / overhead, spine=1.0, lean=_TIE * 1e-3 * scale)
    everybody = frozenset(range(problem.backends))
    singles = [Scenario(barred=everybody - {backend}) for backend in sorted(everybody)]
    return [Scenario(), Scenario(spine=1.0), tie, *(singles if len(singles) > 1 else [])]


def variations(search: Search) -> list[Scenario]:
    """Return the scenarios whose plans may have better calls."""
    problem = search.problem
    backends = problem.backends
    if backends <= 1 or not (any(problem.overheads) or problem.private):
        return []
    strains = _STRAINS if problem.count <= _PAIRED_OPS else _STRAINS[1::2]
    everybody = frozenset(range(backends))
    kept = {everybody - {backend} for backend in everybody}
    if backends <= _PAIRED_BACKENDS and problem.count <= _PAIRED_OPS:
        kept |= {frozenset(pair) for pair in combinations(range(backends), 2)}
    subsets = sorted((each for each in kept if len(each) > 1 and each != everybody), key=sorted)
    return [
        *(Scenario(strain=strain) for strain in strains),
        *(Scenario(strain=_SUBSET_STRAIN, barred=everybody - subset) for subset in subsets),
    ]


def improve(search: Search, plan: PricedPlan, bound: float) -> tuple[PricedPlan, int]:
    """Deny each call to its backend in turn, and go on from the best while that helps.

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
    looked = 0
    budget = _DISSOLVED_OPS
    for _ in range(_ROUNDS):
        calls = sorted(plan.calls, key=lambda call: (len(call.ops), call.ops))[:_DISSOLVED]
        budget -= problem.count * len(calls) * 2
        if len(plan.calls) <= 1 or budget < 0 or not gap(plan.price.seconds, bound):
            break
        scenarios = [
            Scenario(strain=strain, extra=_denied(search, call.ops, call.backend))
            for call in calls
            for strain in (0.0, 1.0)
        ]
        others = search.plans(scenarios)
        looked += len(others)
        better = best_plan([plan, *others], problem.count)
        if better.price.seconds >= plan.price.seconds:
            break
        plan = better
    return plan, looked


def polish(search: Search, plans: Sequence[PricedPlan]) -> PricedPlan:
    """Look harder for the calls of the best few plans, and return the best plan then."""
    few = sorted(plans, key=lambda plan: (plan.price.seconds, len(plan.calls)))[:_FINALISTS]
    again = [
        search.plan(plan.chosen, thorough=True) for plan in few if len(plan.calls) <= BEAM_CLUSTERS
    ]
    return best_plan([*plans, *(plan for plan in again if plan)], search.problem.count)


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
