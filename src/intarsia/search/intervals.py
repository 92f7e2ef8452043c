# SPDX-License-Identifier: Apache-2.0
"""Choosing large intervals: a shortest path over cuts.

What lies between two cuts is eliminated once, to a table over the labels of both; an interval is
one more edge from cut to cut. A cut has one more value for each state, "covered by an interval
that leaves its result in this state": without it, an interval could only be followed by what some
label of the cut's own operator would allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from intarsia.errors import InternalError
from intarsia.search.elimination import Eliminated

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.search.conversions import Conversions
    from intarsia.search.engine import Scenario
    from intarsia.search.layout import CutLayout
    from intarsia.search.model import Model
    from intarsia.search.problem import Interval, PlacementProblem


@dataclass(frozen=True, eq=False, slots=True)
class Path:
    """The cheapest way of one row.

    Attributes:
        total: Its cost.
        values: By cut, the value of its operator.
        intervals: Positions of the intervals that it takes.
    """

    total: float
    values: list[int]
    intervals: list[int]


class _Sums:
    """Sums over consecutive segments, some of which may be infinite."""

    def __init__(self, costs: NDArray[np.float64]) -> None:
        # Apart, as differences of cumulative sums would be infinity less infinity.
        endless = np.isinf(costs)
        nothing = np.zeros((1, *costs.shape[1:]))
        self._finite = np.cumsum(np.concatenate([nothing, np.where(endless, 0, costs)]), axis=0)
        self._endless = np.cumsum(np.concatenate([nothing, endless]), axis=0)

    def between(self, first: int, last: int) -> NDArray[np.float64]:
        """Return the sums over the segments from the first up to, without, the last."""
        sums = self._finite[last] - self._finite[first]
        return np.where(self._endless[last] > self._endless[first], np.inf, sums)


class CutChain:
    """The cuts of one model, and what intervals between them cost beside their own seconds.

    Args:
        problem: The problem.
        conversions: Its conversions.
        model: Its model, whose values of cuts include those of intervals.
        layout: The cuts.
    """

    def __init__(
        self, problem: PlacementProblem, conversions: Conversions, model: Model, layout: CutLayout
    ) -> None:
        self.problem = problem
        self.conversions = conversions
        self.model = model
        self.layout = layout
        self.place = {op: place for place, op in enumerate(layout.cuts)}
        self.starts = self._starts()
        self.inside, self.handed = self._costs_inside()
        self.ending: list[list[int]] = [[] for _ in layout.cuts]
        for position in layout.intervals:
            self.ending[self.place[problem.intervals[position].last]].append(position)
        self.set_segments = [
            layout.segment(min(problem.tensors[tensor].consumers)) for tensor, _ in model.sets
        ]

    def virtual(self, place: int, state: int) -> int:
        """Return the value of a cut for "an interval leaves this state"."""
        return self.model.domains[self.layout.cuts[place]] - self.problem.states + state

    def _starts(self) -> list[NDArray[np.float64]]:
        """Return by cut f64[S, values]: taking its results into an interval by its source."""
        problem, multicast = self.problem, self.conversions.multicast
        states = problem.states
        starts = []
        for op in self.layout.cuts:
            options = self.model.options[op]
            cost = np.zeros((states, len(options)))
            for column, option in enumerate(options):
                if option >= 0 and problem.labels[option].ops[-1] > op:
                    cost[:, column] = np.inf  # it covers what the interval would cover
            starts.append(cost)
        for tensor in problem.tensors:
            cut = self.place.get(tensor.producer)
            if cut is None or not tensor.consumers:
                continue
            always = 1 << problem.outside if tensor.is_output else 0
            producer_states = [
                problem.labels[option].state if option >= 0 else -1 - option
                for option in self.model.options[tensor.producer]
            ]
            wanted = (1 << np.arange(states)) | always
            starts[cut] += multicast[tensor.transition][producer_states][:, wanted].T
        return starts

    def _costs_inside(self) -> tuple[_Sums, _Sums]:
        """Return what an interval pays for the problem's inputs and outputs inside it.

        Returns:
            By segment f64[S, S] by source and state; and f64[S] by state: outputs at cuts that
            are also handed on, which count only if the interval goes on behind the cut.
        """
        problem, layout = self.problem, self.layout
        direct, multicast = self.conversions.direct, self.conversions.multicast
        states, segments = problem.states, len(layout.cuts)
        entering = np.zeros((segments, states))
        leaving = np.zeros((segments, states))
        handed = np.zeros((segments, states))
        wanted = 1 << np.arange(states)
        for tensor in problem.tensors:
            always = 1 << problem.outside if tensor.is_output else 0
            if tensor.producer < 0:
                if tensor.consumers:
                    segment = layout.segment(tensor.consumers[0])
                    costs = multicast[tensor.transition, problem.outside]
                    entering[segment] += costs[wanted | always]
            elif tensor.is_output:
                at_cut = tensor.producer in self.place and bool(tensor.consumers)
                target = handed if at_cut else leaving
                target[layout.segment(tensor.producer)] += direct[tensor.transition][
                    :, problem.outside
                ]
        return _Sums(entering[:, :, None] + leaving[:, None, :]), _Sums(handed)

    def _between(self, interval: Interval) -> float:
        """Return an interval's cost without what leads to its start."""
        first, last = self.place.get(interval.first, -1) + 1, self.place[interval.last] + 1
        cost = interval.seconds
        cost += self.inside.between(first, last)[interval.source, interval.state]
        cost += self.handed.between(first, last - 1)[interval.state]
        return float(cost)

    def paths(self, eliminated: Eliminated, scenarios: Sequence[Scenario]) -> list[Path]:
        """Return the cheapest way of each scenario.

        Args:
            eliminated: Everything but the cuts, eliminated.
            scenarios: The scenarios.
        """
        rows = len(scenarios)
        tables, constant = self._tables(eliminated, rows)
        sums: list[NDArray[np.float64]] = []
        before: list[NDArray[np.intp]] = []
        jumps: list[NDArray[np.intp]] = []
        starts: dict[tuple[int, int], tuple[NDArray[np.float64], NDArray[np.intp]]] = {}
        for place, table in enumerate(tables):
            total = table if place == 0 else sums[-1][:, :, None] + table
            before.append(total.argmin(1))
            here = total.min(1)
            best = np.full((rows, self.problem.states), np.inf)
            taken = np.full((rows, self.problem.states), -1, dtype=np.intp)
            for position in self.ending[place]:
                interval = self.problem.intervals[position]
                cost = self._cost(interval, scenarios)
                start = self.place.get(interval.first, -1)
                if start >= 0:
                    name = (start, interval.source)
                    if name not in starts:
                        entering = sums[start] + self.starts[start][interval.source]
                        starts[name] = (entering.min(1), entering.argmin(1))
                    cost = cost + starts[name][0]
                better = cost < best[:, interval.state]
                best[better, interval.state] = cost[better]
                taken[better, interval.state] = position
            first = self.virtual(place, 0)
            # Nothing else reaches these values: the tables of labels have none for them.
            here[:, first : first + self.problem.states] = best
            sums.append(here)
            jumps.append(taken)
        return [self._trace(row, sums, before, jumps, starts, constant) for row in range(rows)]

    def _cost(self, interval: Interval, scenarios: Sequence[Scenario]) -> NDArray[np.float64]:
        overhead = self.problem.overheads[interval.backend]
        extra = np.array(
            [
                np.inf
                if interval.backend in scenario.barred or scenario.held in interval.ops
                else (scenario.crossing_price + scenario.spine) * overhead
                + scenario.lean * interval.backend
                for scenario in scenarios
            ]
        )
        return extra + self._between(interval)

    def _tables(
        self, eliminated: Eliminated, rows: int
    ) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
        """Return by cut f64[rows, values of the cut before, values], and what all ways pay."""
        cuts, domains = self.layout.cuts, self.model.domains
        sizes = [1, *(domains[op] for op in cuts)]
        tables = [np.zeros((rows, a, b)) for a, b in pairwise(sizes)]
        constant = np.zeros(rows)
        for origin, factor in eliminated.left:
            if not factor.scope:
                if origin < 0:
                    constant += factor.table
                else:
                    tables[self._segment(origin)] += factor.table.reshape(-1, 1, 1)
                continue
            segment = self._segment(origin if origin >= 0 else max(factor.scope))
            here = cuts[segment] if segment < len(cuts) else -1
            table = factor.table
            batch = table.shape[: table.ndim - len(factor.scope)]
            places = tuple(op == here for op in factor.scope)
            if places == (True,):
                table = table.reshape(*batch, 1, sizes[segment + 1])
            elif places == (False,) and factor.scope[0] == cuts[segment - 1]:
                table = table.reshape(*batch, sizes[segment], 1)
            elif places != (False, True) or factor.scope[0] != cuts[segment - 1]:
                raise InternalError(f"a table over {factor.scope} crosses the cut {here}")
            tables[segment] += table
        return tables, constant

    def _segment(self, variable: int) -> int:
        count = len(self.model.options)
        if variable < count:
            return self.layout.segment(variable)
        return self.set_segments[variable - count]

    def _trace(
        self,
        row: int,
        sums: Sequence[NDArray[np.float64]],
        before: Sequence[NDArray[np.intp]],
        jumps: Sequence[NDArray[np.intp]],
        starts: dict[tuple[int, int], tuple[NDArray[np.float64], NDArray[np.intp]]],
        constant: NDArray[np.float64],
    ) -> Path:
        values = [0] * len(sums)
        intervals: list[int] = []
        place = len(sums) - 1
        # The first of equal ones, here and on the way back: one problem has one plan.
        value = int(sums[place][row].argmin())
        total = float(sums[place][row, value] + constant[row])
        while place >= 0 and np.isfinite(total):
            values[place] = value
            state = value - self.virtual(place, 0)
            jump = int(jumps[place][row, state]) if state >= 0 else -1
            if jump >= 0:
                interval = self.problem.intervals[jump]
                intervals.append(jump)
                place = self.place.get(interval.first, -1)
                value = int(starts[place, interval.source][1][row]) if place >= 0 else 0
            else:
                value = int(before[place][row, value])
                place -= 1
        return Path(total, values, sorted(intervals))
