# SPDX-License-Identifier: Apache-2.0
"""Better plans near a plan: all labels and the bounds of all calls at once.

The sequence of a plan's calls is kept; each operator may have any label of a backend whose call
is near its present one. That is solved exactly (`stages.py`), with all calls and without each of
the shorter ones, and again from the best plan of these while it gets better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.engine import Engine, Scenario
from intarsia.search.folding import Unfolded
from intarsia.search.proof import gap
from intarsia.search.search import best_plan
from intarsia.search.stages import SequencedCall, StagedBuilder

if TYPE_CHECKING:
    from intarsia.search.search import PricedPlan, Search

_FEWEST_OPS = 15  # what has fewer is solved completely
_MOST_OPS = 160
_MOST_ENTRIES = 1 << 14
_BATCH_ENTRIES = 1 << 19
_NEAR = 3
_LEFT_OUT = 8
_ROUNDS = 3
_WORTH = 0.001  # less than that is not worth the time


def reshape(search: Search, plan: PricedPlan, bound: float) -> tuple[PricedPlan, int]:
    """Return the best plan near a plan, and how many others were looked at.

    Args:
        search: The problem.
        plan: The best plan so far.
        bound: What no plan undercuts.
    """
    count = search.problem.count
    looked = 0
    if not _FEWEST_OPS <= count <= _MOST_OPS:
        return plan, looked
    unfolded = Unfolded(search.problem)
    for _ in range(_ROUNDS):
        if len(plan.calls) <= 1 or gap(plan.price.seconds, bound) <= _WORTH:
            break
        others = _near(search, unfolded, plan)
        looked += len(others)
        better = best_plan([plan, *others], count)
        if better.price.seconds >= plan.price.seconds:
            break
        plan = better
    return plan, looked


def _near(search: Search, unfolded: Unfolded, plan: PricedPlan) -> list[PricedPlan]:
    """Return the best plan in the sequence of a plan's calls, and those without one of them."""
    problem = unfolded.problem
    calls: list[list[SequencedCall]] = []
    windows = [(0, 0)] * problem.count
    last = len(plan.calls) - 1
    for place, call in enumerate(plan.calls):
        label = unfolded.position(call.pieces[0])
        calls.append([SequencedCall(call.backend, label if problem.labels[label].alone else -1)])
        for op in call.ops:
            windows[op] = max(0, place - _NEAR), min(last, place + _NEAR)
    builder = StagedBuilder(problem, search.conversions, calls, is_open=False, windows=windows)
    engine = Engine(problem, builder.build(), limit=_MOST_ENTRIES)
    if engine.order is None:
        return []
    stages = np.concatenate([values.reads for values in builder.values])
    short = sorted(range(last + 1), key=lambda place: len(plan.calls[place].ops))[:_LEFT_OUT]
    barred = [np.where(stages == place, np.inf, 0.0) for place in short]
    scenarios = [Scenario(), *(Scenario(extra=each) for each in barred)]
    batch = max(1, int(_BATCH_ENTRIES / engine.order.entries))
    found = []
    for start in range(0, len(scenarios), batch):
        totals, values = engine.assign(scenarios[start : start + batch])
        for total, column in zip(totals.tolist(), values.T, strict=True):
            if np.isfinite(total):
                chosen = unfolded.pieces(builder.decode(column)[0])
                other = search.plan(chosen, thorough=True)
                found += [other] if other else []
    return found
