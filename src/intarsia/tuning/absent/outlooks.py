# SPDX-License-Identifier: Apache-2.0
"""Which plan to take where costs are intervals: the one that is least slow at worst.

The model is placed by the middles and in every other case. Of the plans that are best in some case,
and those of single targets, the one is taken that is least slow if all that it uses is as slow as
it may be, among those that no case shows to be much slower than the best (`REGRET_CAP`). A plan of
which every cost was measured is left only for one that is faster even then.

Source:
    Minimax regret: Savage, The Theory of Statistical Decision, JASA 46(253), 1951.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from intarsia.errors import UnsupportedError
from intarsia.search.pricing import price
from intarsia.search.problem import Infeasible, Piece, PlacementProblem, Solution
from intarsia.search.solve import solve
from intarsia.tuning.absent.intervals import Case, Planner, cases_of
from intarsia.tuning.proposals.candidates import short_names

REGRET_CAP = 2.0
"""A plan should in no case take more than so many times the time of the best one of that case."""

TIE = 1.01
"""Plans whose times are within this factor are alike."""

_SEARCH_SECONDS = 5.0


def solve_case(problem: PlacementProblem) -> Solution:
    """Return the best plan of a case.

    Raises:
        UnsupportedError: There is no plan.
    """
    solution = solve(problem, seconds=_SEARCH_SECONDS)
    if isinstance(solution, Infeasible):
        raise UnsupportedError(f"there is no plan: {solution}")
    return solution


def targets_of(chosen: Sequence[Piece], count: int) -> tuple[int, ...]:
    """Return by unit the position of the target that a plan gives it."""
    found = [-1] * count
    for piece in chosen:
        for op in piece.ops:
            found[op] = piece.backend
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Outlook:
    """A plan, and what it would take.

    Attributes:
        name: For people.
        solution: Its pieces and calls.
        seconds: By the middles.
        low: If all that it uses is as fast as it may be.
        high: If all of that is as slow.
        regret: By how many times it is slower than the best plan in the worst case for it.
        single: The position of its only target but for the fallback; -1 if it is no such plan.
        is_measured: Whether all costs of its units were measured.
    """

    name: str
    solution: Solution
    seconds: float
    low: float
    high: float
    regret: float
    single: int = -1
    is_measured: bool = False


def survey(planner: Planner) -> tuple[tuple[Outlook, ...], frozenset[int]]:
    """Return all plans worth a look, the one to take first, and the units that are not decided.

    Raises:
        UnsupportedError: There is no plan.
    """
    count = len(planner.space.units.units)
    cases = cases_of(planner.positions)
    problems = [planner.problem(case) for case in cases]
    best = [solve_case(problem) for problem in problems]
    found: dict[tuple[int, ...], tuple[str, Solution, int]] = {}
    for position, name in enumerate(short_names(planner.setting)):
        alone = _only(problems[0], position)
        if position in planner.positions and not isinstance(alone, Infeasible):
            places = targets_of(alone.chosen, count)
            found.setdefault(places, (f"{name} alone", alone, position))
    placed = [targets_of(solution.chosen, count) for solution in best]
    mixes = 0
    for places, solution in zip(placed, best, strict=True):
        if places not in found:
            mixes += 1
            found[places] = (f"mix {mixes}", solution, -1)
    ends = [
        planner.problem(Case("best", fast=frozenset(planner.positions))),
        planner.problem(Case("worst", slow=frozenset(planner.positions))),
    ]
    outlooks = []
    for name, solution, single in found.values():
        in_cases = [_price(problem, solution) for problem in problems]
        low, high = (_price(problem, solution) for problem in ends)
        regret = max(own / one.seconds for own, one in zip(in_cases, best, strict=True))
        sources = {planner.costs[e.backend, op].source for e in solution.chosen for op in e.ops}
        is_measured = all(source.is_measured for source in sources)
        outlooks.append(
            Outlook(name, solution, in_cases[0], low, high, regret, single, is_measured)
        )
    undecided = frozenset(
        unit for unit in range(count) if len({places[unit] for places in placed}) > 1
    )
    return rank(outlooks), undecided


def rank(outlooks: Sequence[Outlook]) -> tuple[Outlook, ...]:
    """Return plans with the one to take first: least slow at worst, of those within the cap."""
    cap = max(REGRET_CAP, min(each.regret for each in outlooks))
    kept = [each for each in outlooks if each.regret <= cap * TIE]
    measured = [each for each in outlooks if each.is_measured]
    if measured:
        bar = min(each.high for each in measured)
        kept = [each for each in kept if each.high < bar] or measured
    least = min(each.high for each in kept)
    # of those that are alike at worst, the one that is faster by the middles
    first = min((e for e in kept if e.high <= TIE * least), key=lambda each: each.seconds)
    others = sorted((e for e in outlooks if e is not first), key=lambda each: each.high)
    return (first, *others)


def _only(problem: PlacementProblem, position: int) -> Solution | Infeasible:
    """Return the plan that gives one target all that it takes."""
    mine = {unit for label in problem.labels if label.backend == position for unit in label.ops}
    labels = tuple(
        label for label in problem.labels if label.backend == position or mine.isdisjoint(label.ops)
    )
    return solve(replace(problem, labels=labels), seconds=_SEARCH_SECONDS)


def _price(problem: PlacementProblem, solution: Solution) -> float:
    """Return what a plan takes by the costs of another case."""
    labels = {label.key: label for label in problem.labels}
    chosen = tuple(labels[piece.key] for piece in solution.chosen)
    calls = tuple(
        replace(call, pieces=tuple(labels[piece.key] for piece in call.pieces))
        for call in solution.calls
    )
    return price(problem, chosen, calls).seconds
