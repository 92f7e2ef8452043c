# SPDX-License-Identifier: Apache-2.0
"""How long each step of a plan took, and each step of the bodies that it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import TypeAlias

from intarsia.plan.plan import Plan, RegionStep

CallPath: TypeAlias = tuple[int | str, ...]
"""The way to a call: its position in its plan. Behind the position of an operator with bodies, the
attribute of a body, and so on inside of it: `(2, "body", 0)`. Without the last one, the body."""


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One call of one run, of a step, of a kernel, or of a whole body.

    Attributes:
        path: Which one; that of a body has each iteration.
        start: Seconds since the run began.
        seconds: How long it took, with all that it called.
    """

    path: CallPath
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class CallTotal:
    """All calls of one path in a run: the median over the runs.

    Attributes:
        count: How many.
        seconds: Of all of them.
    """

    count: int
    seconds: float


def sum_calls(runs: Sequence[Iterable[TimedCall]]) -> Mapping[CallPath, CallTotal]:
    """Return what the calls of each path come to; a path that no run took has 0."""
    seconds: dict[CallPath, list[float]] = defaultdict(lambda: [0.0] * len(runs))
    counts: dict[CallPath, list[int]] = defaultdict(lambda: [0] * len(runs))
    for number, run in enumerate(runs):
        for call in run:
            seconds[call.path][number] += call.seconds
            counts[call.path][number] += 1
    totals: dict[CallPath, CallTotal] = defaultdict(lambda: CallTotal(0, 0.0))
    for path, times in seconds.items():
        totals[path] = CallTotal(median_low(counts[path]), median(times))
    return totals


@dataclass(frozen=True, slots=True)
class Profile:
    """How long each step of a plan took, each waited for by itself.

    Devices that work side by side in a run take turns here: the sum may be more than a run takes.

    Attributes:
        seconds: The median of each step, in the order of `Plan.steps`; in a body, of all iterations
            of a run.
        runs: How many runs were timed.
        bodies: Of the plan's bodies.
    """

    seconds: tuple[float, ...]
    runs: int
    bodies: tuple[BodyProfile, ...] = ()

    def of_regions(self, plan: Plan) -> tuple[float, ...]:
        """Return the seconds of each region of the plan that was profiled."""
        totals = [0.0] * len(plan.placement.regions)
        for step, seconds in zip(plan.steps, self.seconds, strict=True):
            if isinstance(step, RegionStep):
                totals[step.region] += seconds
        return tuple(totals)


@dataclass(frozen=True, slots=True)
class BodyProfile:
    """How long a body took in a run, over all of its iterations.

    Attributes:
        region: Position of the operator's region, in the plan around it.
        name: The attribute that holds the body.
        iterations: How often it ran; of a branch that was not taken, 0.
        seconds: How long these took.
        profile: Of its steps.
    """

    region: int
    name: str
    iterations: int
    seconds: float
    profile: Profile


def make_profile(plan: Plan, runs: Sequence[Iterable[TimedCall]]) -> Profile:
    """Return the profile of a plan from what was timed of its steps in each run."""
    return _profile(plan, sum_calls(runs), len(runs), ())


def _profile(
    plan: Plan, totals: Mapping[CallPath, CallTotal], runs: int, path: CallPath
) -> Profile:
    position_of = {
        step.region: position
        for position, step in enumerate(plan.steps)
        if isinstance(step, RegionStep)
    }
    bodies = []
    for body in plan.bodies:
        inner = (*path, position_of[body.region], body.name)
        whole = totals[inner]
        profile = _profile(body.plan, totals, runs, inner)
        bodies.append(BodyProfile(body.region, body.name, whole.count, whole.seconds, profile))
    seconds = tuple(totals[*path, i].seconds for i in range(len(plan.steps)))
    return Profile(seconds, runs, tuple(bodies))
