# SPDX-License-Identifier: Apache-2.0
"""How slow a plan may be that is looked for because it needs little memory.

The search is told the seconds of every piece as what a device may keep of it, with the limit as the
memory of the only device: it prices seconds until they fit. What nobody has timed may be as fast
as the roofline; what the best plan uses is timed when it is weighed. What that leaves out
(conversions, calls) is settled by running the plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from intarsia.tuning.proposals.candidates import PlanCandidate

if TYPE_CHECKING:
    from intarsia.search.problem import Piece, Problem
    from intarsia.tuning.costing.costing import Costing
    from intarsia.tuning.costing.model import TargetModel
    from intarsia.tuning.options import Options

PACE_LOOKS = (6,)
"""Rounds in which plans that were never run are timed against the fastest one."""

_TICKS = 1e9
"""Seconds are told to the search in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The time that a plan may take.

    Attributes:
        times: What is known of the seconds of its pieces.
        limit: Seconds of one run at most.
    """

    times: Costing
    limit: float
    _bounds: dict[tuple[int, int], float] = field(default_factory=dict)

    def limited(self, problem: Problem) -> Problem:
        """Return a problem whose plans keep the limit, as far as is known.

        One with limits of devices has no room for it: then running the plans settles it all.
        """
        if problem.memory:
            return problem
        self.times.look_up()
        models = self.times.models()

        def ticks(piece: Piece) -> int:
            units = tuple(piece.ops)
            seconds = self.times.seconds_of((piece.backend, units)) if len(units) > 1 else None
            model = models.get(piece.backend)
            if seconds is None and model is not None:
                inside = sum(self._unit_seconds(model, piece.backend, unit) for unit in units)
                seconds = min(inside, model.groups.get(units, math.inf))
            return round(_TICKS * (seconds or 0.0))

        return replace(
            problem,
            labels=tuple(replace(label, nbytes=ticks(label)) for label in problem.labels),
            intervals=tuple(replace(each, nbytes=ticks(each)) for each in problem.intervals),
            devices=(0,) * problem.backends,
            memory=(_TICKS * self.limit,),
        )

    def _unit_seconds(self, model: TargetModel, position: int, unit: int) -> float:
        """Return what a unit takes inside a region: at least, if that was not measured."""
        if unit in model.measured:
            return model.marginals[unit]
        place = position, unit
        if place not in self._bounds:
            region = self.times.space.units.region((unit,))
            self._bounds[place] = self.times.bound(region, position)
        return self._bounds[place]


def pace_of(times: Costing, options: Options, fastest: float) -> Pace | None:
    """Return the time that a plan may take; None if it may take any.

    Args:
        times: What is known of seconds.
        options: How to tune.
        fastest: Seconds of the fastest plan that was measured.
    """
    if options.slowdown is None or not math.isfinite(fastest):
        return None
    return Pace(times, options.slowdown * fastest)


def quick_enough(
    plans: Sequence[PlanCandidate],
    options: Options,
    measure: Callable[[Sequence[PlanCandidate]], Mapping[PlanCandidate, float]],
) -> list[PlanCandidate]:
    """Return the plans that are not slower than the fastest by more than the user allows.

    Args:
        plans: Those that can be run.
        options: How to tune.
        measure: Returns seconds by plan, and runs those that were never run.
    """
    if options.slowdown is None:
        return list(plans)
    seconds = measure(plans)
    limit = options.slowdown * min(seconds.values(), default=math.inf)
    return [plan for plan in plans if seconds[plan] <= limit and math.isfinite(seconds[plan])]
