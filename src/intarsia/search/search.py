# SPDX-License-Identifier: Apache-2.0
"""Everything that is built once for a problem, and the plans that scenarios of it give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.calls import Cycle, form_calls
from intarsia.search.conversions import Conversions
from intarsia.search.engine import Engine, Optimum, Scenario
from intarsia.search.intervals import CutChain
from intarsia.search.layout import find_layout
from intarsia.search.model import ModelBuilder, find_ties
from intarsia.search.pricing import price
from intarsia.search.problem import Label, Piece, PlacementProblem, PlannedCall, Price

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Sums of one plan in another order differ by 1e-13 or so; costs that were measured by far more.
_EQUAL = 1e-9
_MOST_CYCLES = 200


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """Chosen pieces with their calls and their price.

    Attributes:
        chosen: The pieces, ordered by their first operators.
        calls: The calls, in the order in which they run.
        price: What it costs with its calls.
    """

    chosen: tuple[Piece, ...]
    calls: tuple[PlannedCall, ...]
    price: Price

    def backends(self, count: int) -> tuple[int, ...]:
        """Return by operator which backend runs it."""
        by_op = [0] * count
        for piece in self.chosen:
            for op in piece.ops:
                by_op[op] = piece.backend
        return tuple(by_op)


@dataclass(frozen=True, slots=True)
class Exact:
    """The optimum of one scenario among plans that can be ordered.

    Attributes:
        bound: No such plan costs less in the scenario.
        optimum: The cheapest, or None if none was found.
    """

    bound: float
    optimum: Optimum | None


class Search:
    """A problem made ready: conversions, model, cuts.

    Args:
        problem: The problem.
        keep_all: Keep labels that are never better than another.
        intervals: Whether intervals may be chosen.
    """

    def __init__(
        self, problem: PlacementProblem, *, keep_all: bool = False, intervals: bool = True
    ) -> None:
        self.problem = problem
        self.conversions = Conversions.of(problem)
        layout = None
        if problem.intervals and intervals:
            layout = find_layout(problem, sorted(find_ties(problem)))
        usable = set(layout.intervals if layout else ())
        self.dropped_intervals = [
            interval for place, interval in enumerate(problem.intervals) if place not in usable
        ]
        self.model = ModelBuilder(
            problem, self.conversions, layout=layout, keep_all=keep_all
        ).build()
        self.chain = CutChain(problem, self.conversions, self.model, layout) if layout else None
        self.engine = Engine(problem, self.model, self.chain)
        self._formed: dict[tuple[int, ...], tuple[PlannedCall, ...] | Cycle] = {}
        self.has_crossings = self.engine.order is not None
        if self.engine.order is None:
            self.engine = Engine(problem, self.model, self.chain, has_crossings=False)

    @property
    def is_narrow(self) -> bool:
        """Whether all tables are small enough for an exact search."""
        return self.engine.order is not None

    def plan(self, chosen: tuple[Piece, ...], *, thorough: bool = False) -> PricedPlan | None:
        """Form calls and price them; None if no order can run the pieces.

        Nor is there a plan if a private state cannot be left or entered between two of its calls.

        Args:
            chosen: The pieces.
            thorough: Look harder for good calls.
        """
        formed = form_calls(self.problem, chosen, beam=True) if thorough else self._form(chosen)
        if isinstance(formed, Cycle):
            return None
        cost = price(self.problem, chosen, formed, self.conversions)
        return PricedPlan(chosen, formed, cost) if math.isfinite(cost.seconds) else None

    def _form(self, chosen: tuple[Piece, ...]) -> tuple[PlannedCall, ...] | Cycle:
        """Form calls, once for each choice of pieces; the problem keeps its pieces alive."""
        name = tuple(map(id, chosen))
        if name not in self._formed:
            self._formed[name] = form_calls(self.problem, chosen)
        return self._formed[name]

    def plans(
        self, scenarios: Sequence[Scenario], optima: Sequence[Optimum] | None = None
    ) -> list[PricedPlan]:
        """Return the plans of these scenarios that can be ordered, each once.

        Args:
            scenarios: The scenarios.
            optima: Their optima, if they are known.
        """
        optima = self.engine.solve(scenarios) if optima is None else optima
        plans: dict[tuple[int, ...], PricedPlan | None] = {}
        for scenario, each in zip(scenarios, optima, strict=True):
            name = tuple(map(id, each.chosen))
            if not each.chosen or name in plans:
                continue
            plans[name] = self.plan(each.chosen)
            if plans[name] is None:
                other = self.exact(scenario, each, most=_MOST_CYCLES // 10).optimum
                if other is not None:
                    plans[tuple(map(id, other.chosen))] = self.plan(other.chosen)
        return [plan for plan in plans.values() if plan is not None]

    def optimum(self) -> Exact:
        """Return the cheapest plan that can be ordered, before calls are formed."""
        plain = Scenario()
        return self.exact(plain, self.engine.solve([plain])[0])

    def exact(self, scenario: Scenario, optimum: Optimum, *, most: int = _MOST_CYCLES) -> Exact:
        """Exclude cycles, one label after another, until the cheapest plan has none.

        Every cycle among pieces has one of several operators, and goes away only if one of these
        is not chosen; so the search branches on them, the least cost first.

        Args:
            scenario: The scenario.
            optimum: Its optimum, cycles allowed.
            most: How many plans to look at.
        """
        heap: list[tuple[float, int, Optimum, frozenset[int]]] = [
            (optimum.value, 0, optimum, frozenset())
        ]
        seen = {frozenset[int]()}
        number = 0
        while heap:
            value, _, candidate, barred = heappop(heap)
            if not candidate.chosen:
                return Exact(value, None)
            formed = self._form(candidate.chosen)
            if not isinstance(formed, Cycle):
                return Exact(value, candidate)
            if len(seen) > most:
                return Exact(value, None)
            branches = []
            for piece in formed.pieces:
                label = candidate.chosen[piece]
                # A region with one exit is convex and in no cycle of regions, so every cycle has a
                # label of several operators. Barring one of those in turn loses no plan without the
                # cycle.
                if isinstance(label, Label) and len(label.ops) > 1:
                    further = barred | self.positions[id(label)]
                    if further not in seen:
                        seen.add(further)
                        branches.append(further)
            scenarios = [self._barring(scenario, labels) for labels in branches]
            for labels, other in zip(branches, self.engine.solve(scenarios), strict=True):
                number += 1
                heappush(heap, (other.value, number, other, labels))
        return Exact(float("inf"), None)

    @cached_property
    def positions(self) -> dict[int, set[int]]:
        """By label, where it stands among the problem's: more than once if it was given twice."""
        positions: dict[int, set[int]] = {}
        for place, each in enumerate(self.problem.labels):
            positions.setdefault(id(each), set()).add(place)
        return positions

    def _barring(self, scenario: Scenario, labels: Iterable[int]) -> Scenario:
        extra = np.zeros(len(self.model.seconds)) if scenario.extra is None else scenario.extra
        return replace(scenario, extra=extra + self.penalty(labels, np.inf))

    def penalty(self, labels: Iterable[int], seconds: float) -> NDArray[np.float64]:
        """Return f64 by value: seconds for every value that means one of these labels."""
        barred = set(labels)
        extra = np.zeros(len(self.model.seconds))
        offsets = self.model.offsets.tolist()
        for label in barred:
            for op in self.problem.labels[label].ops:
                options = self.model.options[op]
                if label in options:
                    extra[offsets[op] + options.index(label)] = seconds
        return extra


def best_plan(plans: Sequence[PricedPlan], count: int) -> PricedPlan:
    """Return the cheapest; ties go to fewer calls, then to the user's order of backends."""
    least = min(plan.price.seconds for plan in plans)
    equal = [plan for plan in plans if plan.price.seconds <= least * (1 + _EQUAL)]
    return min(equal, key=lambda plan: (len(plan.calls), plan.backends(count), plan.price.seconds))
