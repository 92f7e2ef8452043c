# SPDX-License-Identifier: Apache-2.0
"""The search: the cheapest plan, its calls, and how good it is."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.errors import InternalError
from intarsia.place.search.calls import Cycle, form_calls
from intarsia.place.search.conversions import Conversions
from intarsia.place.search.engine import Engine, Found, Scenario
from intarsia.place.search.model import Builder
from intarsia.place.search.pricing import price
from intarsia.place.search.problem import Infeasible, Piece, Problem, Solution

_STRAINS = (0.25, 0.5, 1.0, 2.0)
_EQUAL = 1e-9


def solve(problem: Problem, *, seconds: float = 10.0, seed: int = 0) -> Solution | Infeasible:
    """Return the cheapest plan found, with a bound that no plan can beat.

    Args:
        problem: What to solve.
        seconds: How long to go on where the optimum is not found at once.
        seed: For what is tried at random there.
    """
    lacking = _lacking(problem)
    if lacking:
        return Infeasible(f"no label covers operator {lacking[0]}", lacking)
    conversions = Conversions.of(problem)
    model = Builder(problem, conversions).build()
    engine = Engine(problem, model, strained=True)
    found = engine.solve(_scenarios(problem, model.seconds.sum()))
    if not found[0].chosen and problem.count:
        return Infeasible("every plan needs a conversion that is impossible")
    plans = [
        plan
        for chosen in dict.fromkeys(each.chosen for each in found if each.chosen)
        if (plan := _evaluate(problem, conversions, chosen)) is not None
    ]
    best = min(plans, key=_rank)
    return best


def _rank(solution: Solution) -> tuple[float, int]:
    return (solution.value, len(solution.calls))


def _lacking(problem: Problem) -> tuple[int, ...]:
    covered = {op for piece in problem.labels for op in piece.ops}
    for interval in problem.intervals:
        covered.update(interval.ops)
    return tuple(op for op in range(problem.count) if op not in covered)


def _scenarios(problem: Problem, scale: float) -> list[Scenario]:
    return [Scenario(), *(Scenario(strain) for strain in _STRAINS)]


def _evaluate(
    problem: Problem, conversions: Conversions, chosen: Sequence[Piece]
) -> Solution | None:
    formed = form_calls(problem, chosen)
    if isinstance(formed, Cycle):
        return None
    calls = formed[0]
    cost = price(problem, chosen, calls, conversions)
    before = price(problem, chosen, None, conversions).seconds
    return Solution(tuple(chosen), calls, cost, before, before, cost.seconds, "", {})
