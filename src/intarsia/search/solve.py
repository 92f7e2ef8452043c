# SPDX-License-Identifier: Apache-2.0
"""The search: the cheapest plan, its calls, and how good it is."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from intarsia.errors import InternalError
from intarsia.search.cpsat import HINT, solve_by_cpsat
from intarsia.search.cpsat import is_available as cpsat_is_available
from intarsia.search.folding import fold, make_search
from intarsia.search.limits import fits, has_limits, search_within_limits
from intarsia.search.phases import solve_phased
from intarsia.search.pricing import price
from intarsia.search.problem import Infeasible, Interval, Piece, PlacementProblem, Price, Solution
from intarsia.search.proof import bound_with_calls, gap, proof_text
from intarsia.search.ranking import rank
from intarsia.search.reshaping import reshape
from intarsia.search.search import PricedPlan, Search, best_plan
from intarsia.search.sequences import complete
from intarsia.search.sweep import bounding, improve, polish, variations
from intarsia.search.wide import search_wide

_TOLERANCE = 1e-6
_LOOSE = 0.005  # a bound that is closer is not worth larger tables
_SPINE = 0.9  # of all operators
_SINGLES = 3  # where the scenarios of single backends begin


def solve(
    problem: PlacementProblem, *, seconds: float = 10.0, seed: int = 0
) -> Solution | Infeasible:
    """Return the cheapest plan found, with a bound that no plan can beat.

    The same problem and seed give the same plan, unless `seconds` cut the search short.

    Args:
        problem: What to solve.
        seconds: How long at most to go on where elimination alone does not do: tables that are
            too large, limits of memory.
        seed: For what is tried at random there.
    """
    lacking = _lacking(problem)
    if lacking:
        return Infeasible(f"no label covers operator {lacking[0]}", lacking)
    if not problem.count:
        return _nothing(problem)
    with _without_collector():
        if has_limits(problem):
            return _solve_within_limits(Search(problem), seconds, seed)
        return _solve_plain(problem, seconds, seed)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Hold back the collector of cycles: there are none, and millions of small objects to walk."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _solve_plain(problem: PlacementProblem, seconds: float, seed: int) -> Solution | Infeasible:
    search = make_search(problem)
    if not search.is_narrow:
        return _solve_wide(Search(problem, intervals=False), seconds, seed)
    found = _solve_exactly(search)
    if isinstance(found, Infeasible) and search.dropped_intervals:
        search = Search(fold(problem, problem.intervals))
        if not search.is_narrow:
            return Infeasible(f"{found}, unless intervals are chosen that no cut allows")
        found = _solve_exactly(search)
    return found


def _solve_exactly(search: Search) -> Solution | Infeasible:
    problem = search.problem
    first = bounding(search)
    further = variations(search) if _is_branched(search) else []
    everything = search.engine.solve([*first, *further])  # one pass is quicker than two
    found, others = everything[: len(first)], everything[len(first) :]
    if not found[0].chosen:
        return Infeasible(
            "every plan costs an infinite time: a conversion or a label is impossible"
        )
    exact = search.exact(first[0], found[0])
    if math.isinf(exact.bound):
        return Infeasible("the operators of every plan wait for one another")
    bound = bound_with_calls(problem, exact.bound, [each.value for each in found[_SINGLES:]])
    if search.is_strained:
        bound = max(bound, found[1].value)
    bound = min([bound, *_bounds_with(problem, search.dropped_intervals)])
    plans = search.plans(first, found)
    if exact.found is not None:
        plans += [plan for plan in [search.plan(exact.found.chosen)] if plan]
    if not plans or gap(best_plan(plans, problem.count).price.seconds, bound):
        further = further or variations(search)
        plans += search.plans(further, others or None)
    if not plans:
        return Infeasible("no plan was found whose calls can run one after another")
    best = polish(search, plans)
    tables, relaxed = search.engine, found[1]
    if gap(best.price.seconds, bound) > _LOOSE and (phased := solve_phased(search)):
        tables, relaxed = phased
        bound = max(bound, min([relaxed.value, *_bounds_with(problem, search.dropped_intervals)]))
        other = search.plan(relaxed.chosen, thorough=True) if relaxed.chosen else None
        best = best_plan([best, other], problem.count) if other else best
    best, looked = improve(search, best, bound)
    best, reshaped = reshape(search, best, bound)
    best, ranked = rank(search, tables, relaxed, best)
    best, bound, begun = complete(search, best, bound)
    statistics = _statistics(search) | {
        "scenarios": len(first) + len(further),
        "plans": len(plans) + looked + reshaped + ranked + begun,
    }
    return solution(search, best, bound, exact.bound, statistics)


def _is_branched(search: Search) -> bool:
    """Whether one path misses so much that its calls will hardly prove a plan to be the best."""
    return len(search.model.spine) < _SPINE * search.problem.count


def _solve_wide(search: Search, seconds: float, seed: int) -> Solution | Infeasible:
    """Neighbourhoods and a bound by small tables; CP-SAT for the rest of the time."""
    problem = search.problem
    wide = search_wide(search, seconds / 2, seed)
    chosen = [*wide.chosen, *whole_intervals(problem)]
    bound = min([wide.bound, *_bounds_with(problem, problem.intervals)])
    start = min(chosen, key=lambda pieces: _label_seconds(search, pieces), default=())
    remark = f" ({HINT})"
    if cpsat_is_available():
        remark = ""
        scale = _label_seconds(search, start) if start else max(bound, 1e-6)
        proven = solve_by_cpsat(
            problem, search.conversions, seconds=seconds / 2, seed=seed, hint=start, scale=scale
        )
        if proven.is_impossible:
            return Infeasible("every plan costs an infinite time, or has a cycle")
        bound = max(bound, proven.bound)
        chosen += [proven.chosen] if proven.chosen else []
    plans = [
        plan for pieces in dict.fromkeys(chosen) if (plan := search.plan(pieces, thorough=True))
    ]
    if not plans:
        return Infeasible(f"no plan found within {seconds} s")
    bound = min([bound, *(_label_seconds(search, plan.chosen) for plan in plans)])
    total = bound_with_calls(problem, bound, [bound] * problem.backends)
    statistics = _statistics(search) | {"plans": len(plans), "neighbourhoods": wide.rounds}
    return solution(search, best_plan(plans, problem.count), total, bound, statistics, remark)


def _solve_within_limits(search: Search, seconds: float, seed: int) -> Solution | Infeasible:
    """Prices of bytes, then CP-SAT."""
    problem = search.problem
    priced = search_within_limits(problem)
    bound = priced.bound if priced else 0.0
    chosen = list(priced.chosen) if priced else []
    remark = f" ({HINT})"
    if cpsat_is_available():
        remark = ""
        plans = [plan for pieces in chosen if (plan := search.plan(pieces))]
        best = min(plans, key=lambda plan: plan.price.seconds, default=None)
        proven = solve_by_cpsat(
            problem,
            search.conversions,
            seconds=seconds,
            seed=seed,
            hint=best.chosen if best else (),
            scale=best.price.seconds if best else max(bound, 1e-6),
        )
        if proven.is_impossible:
            return Infeasible("no plan keeps the limits of memory")
        bound = max(bound, proven.bound)
        chosen += [proven.chosen] if proven.chosen else []
    plans = [
        plan
        for pieces in dict.fromkeys(chosen)
        if fits(problem, pieces) and (plan := search.plan(pieces, thorough=True))
    ]
    if not plans:
        return Infeasible("no plan found that keeps the limits of memory")
    statistics = _statistics(search) | {"plans": len(plans)}
    bound += min(problem.overheads, default=0.0)
    return solution(search, best_plan(plans, problem.count), bound, 0.0, statistics, remark)


def _label_seconds(search: Search, chosen: tuple[Piece, ...]) -> float:
    return price(search.problem, chosen, None, search.conversions).seconds


def _bounds_with(problem: PlacementProblem, intervals: Sequence[Interval]) -> list[float]:
    """Return by interval what no plan with it undercuts: all else at its cheapest share."""
    if not intervals:
        return []
    least = np.full(problem.count, np.inf)
    pieces: list[Piece] = [*problem.labels, *problem.intervals]
    for piece in pieces:
        ops = slice(piece.first + 1, piece.last + 1) if isinstance(piece, Interval) else piece.ops
        index = ops if isinstance(ops, slice) else list(ops)
        least[index] = np.minimum(least[index], piece.seconds / len(piece.ops))
    sums = np.concatenate([[0.0], np.cumsum(np.where(np.isinf(least), 0.0, least))])
    return [
        float(each.seconds + sums[each.first + 1] + sums[-1] - sums[each.last + 1])
        for each in intervals
    ]


def _statistics(search: Search) -> dict[str, float]:
    problem = search.problem
    return {
        "operators": problem.count,
        "labels": len(problem.labels),
        "labels dropped": search.model.dropped,
        "intervals": len(problem.intervals),
        "intervals dropped": len(search.dropped_intervals),
        "largest table": search.engine.order.entries if search.engine.order else math.inf,
    }


def solution(
    search: Search,
    plan: PricedPlan,
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
    before = _label_seconds(search, plan.chosen)
    value = plan.price.seconds
    slack = _TOLERANCE * max(value, before, 1e-12)
    if not math.isfinite(value):
        raise InternalError("the plan found needs a conversion that is impossible")
    if before < label_bound - slack or value < bound - slack:
        raise InternalError(f"a plan of {value} s, {before} s without calls, beats its bound")
    if not fits(problem, plan.chosen):
        raise InternalError("the plan found keeps more bytes than it may")
    executed = [op for call in plan.calls for op in call.ops]
    if sorted(executed) != list(range(problem.count)):
        raise InternalError("the calls do not run every operator once")
    return Solution(
        chosen=plan.chosen,
        calls=plan.calls,
        price=plan.price,
        label_seconds=before,
        bound=min(bound, value),
        proof=proof_text(value, bound, remark),
        statistics=statistics | {"label bound": label_bound, "calls": len(plan.calls)},
    )


def whole_intervals(problem: PlacementProblem) -> list[tuple[Piece, ...]]:
    """Return the plans that are one interval."""
    return [
        (interval,)
        for interval in problem.intervals
        if interval.first == -1 and interval.last == problem.count - 1
    ]


def _nothing(problem: PlacementProblem) -> Solution:
    cost = price(problem, (), ())
    total = Price(0.0, cost.conversions, 0.0)
    return Solution((), (), total, total.seconds, total.seconds, proof_text(0, 0), {})


def _lacking(problem: PlacementProblem) -> tuple[int, ...]:
    covered = [False] * problem.count
    for label in problem.labels:
        for op in label.ops:
            covered[op] = True
    for interval in problem.intervals:
        covered[interval.first + 1 : interval.last + 1] = [True] * len(interval.ops)
    return tuple(op for op, is_covered in enumerate(covered) if not is_covered)
