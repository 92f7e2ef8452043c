# SPDX-License-Identifier: Apache-2.0
"""The search: the cheapest plan, its calls, and how good it is."""

from __future__ import annotations

import math

from intarsia.errors import InternalError
from intarsia.place.search.pricing import price
from intarsia.place.search.problem import Infeasible, Price, Problem, Solution
from intarsia.place.search.proof import bound_with_calls, proof_text
from intarsia.place.search.search import Plan, Search, best_plan
from intarsia.place.search.sweep import improve, plain_and_single, variations

_TOLERANCE = 1e-6


def solve(problem: Problem, *, seconds: float = 10.0, seed: int = 0) -> Solution | Infeasible:
    """Return the cheapest plan found, with a bound that no plan can beat.

    The same problem and seed give the same plan, unless `seconds` cut the search short.

    Args:
        problem: What to solve.
        seconds: How long at most to go on where elimination alone does not do: tables that are
            too large, limits of memory, other objectives.
        seed: For what is tried at random there.
    """
    lacking = _lacking(problem)
    if lacking:
        return Infeasible(f"no label covers operator {lacking[0]}", lacking)
    if not problem.count:
        return _nothing(problem)
    search = Search(problem)
    return _solve_exactly(search)


def _solve_exactly(search: Search) -> Solution | Infeasible:
    problem = search.problem
    bounding = plain_and_single(problem.backends)
    plain = search.engine.solve(bounding)
    if not plain[0].chosen:
        return Infeasible("every plan needs a conversion that is impossible")
    exact = search.exact(bounding[0], plain[0])
    if math.isinf(exact.bound):
        return Infeasible("the operators of every plan wait for one another")
    scenarios = variations(search, exact.bound)
    plans = search.plans([*bounding, *scenarios], [*plain, *search.engine.solve(scenarios)])
    if exact.found is not None:
        plans += [plan for plan in [search.plan(exact.found.chosen)] if plan]
    if not plans:
        return Infeasible(f"no plan without a cycle among {len(scenarios)} searches")
    singles = [each.value for each in plain[1:]]
    best, looked = improve(search, best_plan(plans, problem.count))
    bound = bound_with_calls(problem, exact.bound, singles)
    statistics = {
        "operators": problem.count,
        "labels": len(problem.labels),
        "labels dropped": search.model.dropped,
        "intervals": len(problem.intervals),
        "intervals dropped": search.dropped_intervals,
        "largest table": search.engine.order.entries if search.engine.order else 0,
        "scenarios": len(bounding) + len(scenarios),
        "plans": len(plans) + looked,
    }
    return solution(search, best, bound, exact.bound, statistics)


def solution(
    search: Search,
    plan: Plan,
    bound: float,
    label_bound: float,
    statistics: dict[str, float],
    remark: str = "",
) -> Solution:
    """Return a plan with its proof, after checking that it is what it claims to be.

    Raises:
        InternalError: A cost does not hold; our bug.
    """
    problem = search.problem
    before = price(problem, plan.chosen, None, search.conversions).seconds
    seconds = plan.price.seconds
    slack = _TOLERANCE * max(seconds, 1e-12)
    if not math.isfinite(seconds):
        raise InternalError("the plan found needs a conversion that is impossible")
    if before < label_bound - slack or seconds < bound - slack:
        raise InternalError(f"a plan of {before} s, {seconds} s with its calls, beats its bound")
    executed = [op for call in plan.calls for op in call.ops]
    if sorted(executed) != list(range(problem.count)):
        raise InternalError("the calls do not run every operator once")
    return Solution(
        chosen=plan.chosen,
        calls=plan.calls,
        price=plan.price,
        label_seconds=before,
        bound=min(bound, seconds),
        value=seconds,
        proof=proof_text(seconds, bound, remark),
        statistics=statistics | {"label bound": label_bound, "calls": len(plan.calls)},
    )


def _nothing(problem: Problem) -> Solution:
    cost = price(problem, (), ())
    total = Price(0.0, cost.conversions, 0.0)
    return Solution(
        (), (), total, total.seconds, total.seconds, total.seconds, proof_text(0, 0), {}
    )


def _lacking(problem: Problem) -> tuple[int, ...]:
    covered = [False] * problem.count
    for label in problem.labels:
        for op in label.ops:
            covered[op] = True
    for interval in problem.intervals:
        covered[interval.first + 1 : interval.last + 1] = [True] * len(interval.ops)
    return tuple(op for op, is_covered in enumerate(covered) if not is_covered)
