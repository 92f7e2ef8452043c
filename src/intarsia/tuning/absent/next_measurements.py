# SPDX-License-Identifier: Apache-2.0
"""What to measure first, so that a plan for a machine that is not here is decided.

Greedy: of all candidates whose cost is not known, that one is measured (in thought, at the middle
of its interval) whose interval is widest beyond its slack, the difference between the best plan
with it and the best plan. What one measurement tells about others of the same target is learnt
from it as it will be from a real one. It is repeated until every unit is decided.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from intarsia.cost.cost import CostSource
from intarsia.errors import InternalError
from intarsia.plan.tuning import name_some
from intarsia.search.marginals import min_marginals
from intarsia.tuning.absent.intervals import MIDDLE, Planner, cases_of, high_seconds
from intarsia.tuning.absent.outlooks import solve_case, targets_of

if TYPE_CHECKING:
    from intarsia.cost.key import CostKey
    from intarsia.search.problem import PlacementProblem

MOST_MEASUREMENTS = 24
"""So many are looked for at most; who needs more should tune on the machine."""

MOST_SECONDS = 5.0
"""So long it is looked for at most."""

_SHOWN = 6
_PRECISION = 1.02
"""How far a measurement is off, as a factor."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One region to measure.

    Attributes:
        target: Text of the target.
        nodes: Names of the first nodes of the first unit that has its shape.
        count: How many units have it.
    """

    target: str
    nodes: tuple[str, ...]
    count: int

    def __str__(self) -> str:
        more = f" (x{self.count})" if self.count > 1 else ""
        return f"{', '.join(self.nodes)}{more} on {self.target}"


@dataclass(frozen=True, slots=True)
class Queue:
    """What to measure, in order.

    Attributes:
        measurements: The first ones tell most.
        left: How many units are open when all of them are known.
    """

    measurements: tuple[Measurement, ...] = ()
    left: int = 0

    @property
    def lines(self) -> tuple[str, ...]:
        """What the report says of it."""
        if not self.measurements:
            return ()
        shown = "; ".join(map(str, self.measurements[:_SHOWN]))
        more = len(self.measurements) - _SHOWN
        shown += f"; and {more} more" if more > 0 else ""
        count = len(self.measurements)
        what = "measurement" if count == 1 else f"{count} measurements"
        if not self.left:
            return (f"the {what} that would settle it: {shown}",)
        return (f"the first {what} to take, after which {self.left} units are open: {shown}",)


def settle(planner: Planner, undecided: frozenset[int]) -> Queue:
    """Return the fewest regions, as far as greedy search finds them, that decide every unit.

    Args:
        planner: What is known; it is not changed.
        undecided: Units whose target depends on costs.
    """
    found: list[Measurement] = []
    planner = replace(planner, estimator=copy.deepcopy(planner.estimator))
    end = time.monotonic() + MOST_SECONDS
    while undecided and len(found) < MOST_MEASUREMENTS and time.monotonic() < end:
        key = _widest(planner, undecided)
        if key is None:
            break
        same = {place: each for place, each in planner.subjects.items() if each.key == key}
        first = min(same)
        middle = planner.costs[first]
        known = replace(middle, source=CostSource.MEASURED).within(_PRECISION)
        planner.estimator.learn({key: known}, [same[first]])
        planner = replace(planner)  # asks for all costs again
        nodes = planner.space.units.units[first[1]].nodes
        names = name_some([planner.setting.graph.nodes[node].name for node in nodes])
        target = str(planner.setting.targets[first[0]])
        found.append(Measurement(target, names, len(same)))
        undecided = _open(planner) or _open(planner, with_calls=True)
    return Queue(tuple(found), len(undecided))


def _open(planner: Planner, *, with_calls: bool = False) -> frozenset[int]:
    """Return the units whose target depends on costs.

    Args:
        planner: What is known.
        with_calls: Whether to form calls and to keep the limits of devices, which takes longer.
    """
    count = len(planner.space.units.units)
    problems = map(planner.problem, cases_of(planner.positions))
    if with_calls:
        placed = [targets_of(solve_case(problem).chosen, count) for problem in problems]
    else:
        placed = [_targets(problem, count) for problem in problems]
    return frozenset(unit for unit in range(count) if len({each[unit] for each in placed}) > 1)


def _targets(problem: PlacementProblem, count: int) -> tuple[int, ...]:
    """Return by unit the position of the target that the best labels give it."""
    try:
        marginals = min_marginals(problem).labels
    except InternalError:  # the graph is too wide
        return targets_of(solve_case(problem).chosen, count)
    best = [(np.inf, -1)] * count
    for label, seconds in zip(problem.labels, marginals.tolist(), strict=True):
        for unit in label.ops:
            best[unit] = min(best[unit], (seconds, label.backend))
    return tuple(position for _, position in best)


def _widest(planner: Planner, undecided: frozenset[int]) -> CostKey | None:
    """Return the key of what is most worth measuring; None if nothing is open any more."""
    slack = _slack(planner)
    worth: dict[CostKey, float] = {}
    for (position, unit), cost in planner.costs.items():
        if unit not in undecided or cost.source.is_measured:
            continue
        width = high_seconds(cost) - cost.low_seconds
        beyond = width - slack.get((position, unit), 0.0)
        key = planner.subjects[position, unit].key
        worth[key] = worth.get(key, 0.0) + max(beyond, 1e-3 * width)
    return max(worth, key=worth.__getitem__, default=None)


def _slack(planner: Planner) -> dict[tuple[int, int], float]:
    """Return by position and unit how much slower the best plan is that has it there."""
    problem = planner.problem(MIDDLE)
    try:
        marginals = min_marginals(problem)
    except InternalError:  # the graph is too wide: then widths alone decide
        return {}
    found: dict[tuple[int, int], float] = {}
    for label, seconds in zip(problem.labels, marginals.labels, strict=True):
        if np.isfinite(seconds):
            for unit in label.ops:
                place = (label.backend, unit)
                slower = float(seconds) - marginals.best
                found[place] = min(found.get(place, np.inf), slower)
    return found
