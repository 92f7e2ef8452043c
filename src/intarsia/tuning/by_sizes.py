# SPDX-License-Identifier: Apache-2.0
"""Tunes a model with free dimensions: at some sizes, then where one plan gives way to another.

1. Each sizes is tuned as a model of its own, with its share of the time. What was measured for one
   counts for all that have the same regions, and what was accepted before takes no time.
2. The program for all sizes runs beside the plan that won: where it is as fast, none is compiled.
3. Where one dimension differs and neighbours have different plans, both run at sizes in between:
   the interval is halved, by logarithms, until its ends are within a tenth of one another, or
   neither plan is faster.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from intarsia.accepted.choices import fit_calls
from intarsia.cost.key import new_session
from intarsia.errors import BackendError, IntarsiaError, InternalError, UnsupportedError
from intarsia.graph.free_sizes import sizes_text
from intarsia.measure.racing import LOOKS, TIE, Ratio, halve, paired_ratio
from intarsia.plan.by_sizes import Crossover, MeasuredSizes, PlansBySizes, Regions
from intarsia.plan.lock import placed_regions
from intarsia.runtime.feeds import check_feeds
from intarsia.tuning.budget import Budget
from intarsia.tuning.costing.cost_table import CostTable, KeyMaker
from intarsia.tuning.costing.runner import ProbeRunner
from intarsia.tuning.finalists import align_rounds
from intarsia.tuning.laboratory.laboratory import Laboratory
from intarsia.tuning.laboratory.model_worker import preparing_limits
from intarsia.tuning.laboratory.sampling import Sampler, TimedRun, program_clock, time_in_rounds
from intarsia.tuning.laboratory.values import OutOfTimeError
from intarsia.tuning.options import Options, TuningStatus
from intarsia.tuning.proposals.space import PlanCandidate

if TYPE_CHECKING:
    from intarsia.cost.database import CostDatabase
    from intarsia.place.setting import Setting
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.runtime.free import GenericProgram

logger = logging.getLogger("intarsia")

POINTS_END = 0.7
"""Part of the time after which no sizes are tuned any more: the rest is for what lies between."""

FINENESS = 1.1
"""Sizes that are no further apart than by this factor need no other between them."""

_FEWEST_EARLIER = LOOKS[1]
"""Rounds of before that may decide without others."""

TuneAt = Callable[[Mapping[str, int], Options], "tuple[PlanExecutable, bool]"]
"""From sizes and options to the program of the plan that won, and whether it was accepted."""

SettingAt = Callable[[Mapping[str, int]], "Setting"]
"""From sizes to the model at these."""


@dataclass(slots=True)
class SizesTuner:
    """Tunes one model at several sizes.

    Attributes:
        tune_at: Tunes it at some sizes.
        setting_at: Returns it at some sizes.
        options: How to tune; the time is for all sizes together.
        database: Where costs are kept.
        keep: Given what is known so far, to keep it: a tuner that is stopped loses no more.
        generic: The program for all sizes, if there is one.
        programs: What was tuned, by position of the sizes.
    """

    tune_at: TuneAt
    setting_at: SettingAt
    options: Options
    database: CostDatabase
    keep: Callable[[PlansBySizes], None] = lambda plans: None
    generic: GenericProgram | None = None
    programs: list[PlanExecutable] = field(default_factory=list)
    _budget: Budget = field(init=False)
    _notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._budget = Budget(self.options.budget_seconds)

    def run(self, sizes: Sequence[Mapping[str, int]]) -> PlansBySizes:
        """Tune at sizes, then find where plans change.

        Args:
            sizes: Of every free dimension; at least one.

        Raises:
            IntarsiaError: As of tuning one of them; that nothing runs at some sizes is one only if
                it is so at all of them.
        """
        every = list({tuple(sorted(one.items())): dict(one) for one in sizes}.values())
        dimension = _find_dimension(every)
        if dimension:
            every.sort(key=lambda one: one[dimension])
        is_open = bool(dimension) and self.options.objective.compares_run_seconds
        points, plans = self._tune_each(every, POINTS_END if is_open else 1.0)
        found = PlansBySizes(
            dimension if len(points) > 1 else "",
            plans,
            points,
            _guess_switches(dimension, points, is_settled=not is_open) if len(points) > 1 else (),
            self.options.objective.describe(),
            tuple(self._notes),
            self.options.chosen,
        )
        self.keep(found)
        if is_open and len(points) == len(every):
            found = self._find_switches(found)
        return found

    def _tune_each(
        self, every: Sequence[Mapping[str, int]], until: float
    ) -> tuple[tuple[MeasuredSizes, ...], tuple[Regions, ...]]:
        """Return what was measured at each sizes, and the plans, each once."""
        plans: dict[Regions, int] = {}
        points: list[MeasuredSizes] = []
        for index, sizes in enumerate(every):
            name = f"{sizes_text(sizes)} ({index + 1} of {len(every)})"
            share = self._budget.left(until) / (len(every) - index)
            options = replace(self.options, budget_seconds=share, tell=self._teller(name))
            try:
                program, is_accepted = self.tune_at(sizes, options)
            except (BackendError, UnsupportedError) as error:
                if index == len(every) - 1 and not points:
                    raise
                self._notes.append(f"not measured at {sizes_text(sizes)}: {error.message}")
                continue
            self.programs.append(program)
            report = program.plan.tuning
            plan = plans.setdefault(_sorted(placed_regions(program.plan)), len(plans))
            point = MeasuredSizes(
                dict(sizes), plan, program.placement.policy, None, is_proven=is_accepted
            )
            if report is not None:
                point = replace(
                    point,
                    winner=report.winner,
                    seconds=report.seconds,
                    single=report.single,
                    single_seconds=report.single_seconds,
                )
            is_interrupted = report is not None and report.is_interrupted
            if not is_interrupted and self.options.objective.compares_run_seconds:
                point = replace(point, generic_ratio=self._compare_generic(sizes, program))
            points.append(point)
            logger.info("%s: %s", name, "" if report is None else report.summary)
            if is_interrupted:
                left = "; ".join(map(sizes_text, every[index + 1 :]))
                if left:
                    self._notes.append(f"interrupted: not measured at {left}")
                break
        late = "; ".join(sizes_text(point.sizes) for point in points if not point.is_proven)
        if late:
            self._notes.append(f"not measured to the end at {late}, so not kept: tune again")
        return tuple(points), tuple(plans)

    def _compare_generic(self, sizes: Mapping[str, int], program: PlanExecutable) -> float | None:
        """Return what the program for all sizes takes over what another one takes."""
        if self.generic is None or not self.generic.takes(sizes):
            return None
        try:
            ratio = compare_programs(self.generic.program.at(sizes), program)
        except InternalError:
            raise
        except Exception as error:  # a step is a backend's own
            self._notes.append(f"the program for all sizes fails at {sizes_text(sizes)}: {error}")
            return None
        return ratio.value if math.isfinite(ratio.value) else None

    def _find_switches(self, found: PlansBySizes) -> PlansBySizes:
        """Return plans with the switches between them as they were measured."""
        for index, switch in enumerate(found.switches):
            if switch is None:
                continue
            lower, upper = found.points[index], found.points[index + 1]
            try:
                measured = find_switch(
                    lower.sizes[found.dimension],
                    upper.sizes[found.dimension],
                    lambda size: self._compare_at(size, found, lower, upper),  # noqa: B023 - called at once
                )
            except KeyboardInterrupt:
                note = "interrupted: all measurements are kept; tune again to go on"
                return replace(found, notes=(*found.notes, note))
            switches = (*found.switches[:index], measured, *found.switches[index + 1 :])
            found = replace(found, switches=switches)
            self.keep(found)
        if any(switch is not None and not switch.is_settled for switch in found.switches):
            note = "there was no time to look closer where plans change: tune again to go on"
            found = replace(found, notes=(*found.notes, note))
            self.keep(found)
        return found

    def _compare_at(
        self, size: int, found: PlansBySizes, lower: MeasuredSizes, upper: MeasuredSizes
    ) -> Ratio | None:
        """Return the time of the upper plan over that of the lower one at a size between them.

        Returns:
            None if there is no time, or neither of them runs there.
        """
        sizes = {**lower.sizes, found.dimension: size}
        if not self._budget.left():
            return None
        self._teller(f"{found.dimension}={size}")(
            TuningStatus(
                "compare", f"{lower.winner} and {upper.winner}", "", None, self._budget.left()
            )
        )
        try:
            return race_plans(
                self.setting_at(sizes),
                (found.plans[lower.plan], found.plans[upper.plan]),
                self.database,
                self._budget,
            )
        except OutOfTimeError:
            return None
        except InternalError:
            raise
        except IntarsiaError as error:
            logger.info("nothing can be measured at %s: %s", sizes_text(sizes), error.message)
            return None

    def _teller(self, name: str) -> Callable[[TuningStatus], None]:
        """Return what tells the user, with the sizes."""

        def tell(status: TuningStatus) -> None:
            if self.options.tell is not None:
                self.options.tell(replace(status, sizes=name))

        return tell


def _sorted(regions: Regions) -> Regions:
    """Return regions with their nodes in order, so that equal plans are equal."""
    return tuple(replace(region, nodes=tuple(sorted(region.nodes))) for region in regions)


def _find_dimension(every: Sequence[Mapping[str, int]]) -> str:
    """Return the one dimension that differs between sizes; nothing if there is none or several."""
    names = [name for name in every[0] if len({sizes[name] for sizes in every}) > 1]
    return names[0] if len(names) == 1 else ""


def _guess_switches(
    dimension: str, points: Sequence[MeasuredSizes], *, is_settled: bool
) -> tuple[Crossover | None, ...]:
    """Return a switch in the middle of each two neighbours with different plans."""
    if not dimension:
        return ()
    switches: list[Crossover | None] = []
    for lower, upper in pairwise(points):
        low, high = lower.sizes[dimension], upper.sizes[dimension]
        is_one = lower.plan == upper.plan
        guess = Crossover(middle(low, high), low, high, is_settled=is_settled)
        switches.append(None if is_one else guess)
    return tuple(switches)


def middle(low: int, high: int) -> int:
    """Return the geometric middle of two sizes, above the first one and not above the second."""
    return max(low + 1, min(high, round(math.sqrt(low * high))))


def find_switch(low: int, high: int, compare: Callable[[int], Ratio | None]) -> Crossover:
    """Return where the plan of a larger size takes over from that of a smaller one.

    Between the last two sizes that were measured, it is where their ratios say.

    Args:
        low: A size at which the first plan is faster.
        high: A size at which the second one is.
        compare: Returns the time of the second plan over that of the first at a size between them;
            None if it cannot be had.
    """
    ends: dict[int, float | None] = {low: None, high: None}
    below, above = low, high
    measured: list[int] = []
    is_settled = True
    while above - below > 1 and above > FINENESS * below:
        size = middle(below, above)
        ratio = compare(size)
        if ratio is None or math.isnan(ratio.value):
            is_settled = False
            break
        measured.append(size)
        ends[size] = ratio.value
        if abs(ratio.value - 1.0) <= TIE:
            return Crossover(size, below, above, tuple(measured), tie=size)
        if ratio.value < 1.0:
            above = size
        else:
            below = size
    size = _interpolate(below, above, ends[below], ends[above])
    return Crossover(size, below, above, tuple(measured), is_settled=is_settled)


def _interpolate(below: int, above: int, first: float | None, second: float | None) -> int:
    """Return the size between two at which a ratio is 1; the middle if it is not known at both."""
    if first is None or second is None or not 0.0 < second < 1.0 < first < math.inf:
        return middle(below, above)
    part = math.log(first) / (math.log(first) - math.log(second))
    size = below * math.exp(part * math.log(above / below))
    return max(below + 1, min(above, math.ceil(size)))


def race_plans(
    setting: Setting, plans: tuple[Regions, Regions], database: CostDatabase, budget: Budget
) -> Ratio | None:
    """Return the time of the second of two plans over that of the first.

    Rounds of before count. One that cannot be run is infinitely slow.

    Args:
        setting: The model at some sizes, and the machine.
        plans: By names, as they were found at other sizes.
        database: Where costs are kept.
        budget: The time.

    Returns:
        None if neither can be run.

    Raises:
        OutOfTimeError: There is no time for it.
        BackendError: Nothing here can run the model.
    """
    setting = setting.whole
    fitted = [fit_calls(setting, plan) for plan in plans]
    known = [
        PlanCandidate(str(index), calls) for index, calls in enumerate(fitted) if calls is not None
    ]
    if len(known) == 2 and known[0].calls == known[1].calls:  # noqa: PLR2004 - both
        return Ratio(1.0, 1.0, 1.0, 0)
    limits = preparing_limits(0.5 * budget.left())
    lab = Laboratory(setting, limits=limits, left=budget.allowance)
    try:
        runner = ProbeRunner(lab, CostTable(KeyMaker(setting), database, new_session()))
        earlier = align_rounds({plan: runner.samples(plan.calls) for plan in known})
        if len(known) == 2:  # noqa: PLR2004
            first, second = known
            ratio = paired_ratio(earlier[second], earlier[first])
            if ratio.rounds >= _FEWEST_EARLIER:
                return ratio
        sound = runner.prepare([plan.calls for plan in known])
        if runner.late:
            raise OutOfTimeError(next(iter(runner.late.values())))
        live = [plan for plan in known if plan.calls in sound]
        if len(live) < 2:  # noqa: PLR2004
            return _walkover(live)

        def measure(
            contenders: Sequence[PlanCandidate], rounds: int
        ) -> dict[PlanCandidate, tuple[float, ...]]:
            seconds = runner.race([plan.calls for plan in contenders], rounds)
            return {plan: seconds[plan.calls] for plan in contenders}

        race = halve(live, measure)
        return paired_ratio(race.samples[live[1]], race.samples[live[0]])
    finally:
        lab.close()


def _walkover(live: Sequence[PlanCandidate]) -> Ratio | None:
    """Return the ratio where only one of two plans can be run, or none."""
    if not live:
        return None
    value = math.inf if live[0].name == "0" else 0.0
    return Ratio(value, value, value, 1)


def compare_programs(first: PlanExecutable, second: PlanExecutable) -> Ratio:
    """Return the time of a program over that of another, both in this process and in turns.

    Args:
        first: At some sizes.
        second: Of the same model, at the same sizes.
    """
    feeds = second.sample_feeds()
    sampler = Sampler()
    contexts = []
    for program in (first, second):
        context = program.context()
        context.write_inputs(check_feeds(program.inputs, feeds))
        context.run()
        contexts.append(TimedRun(context.run, program_clock(program)))
    done = 0

    def measure(contenders: Sequence[int], rounds: int) -> dict[int, list[float]]:
        nonlocal done
        done += rounds
        subjects = [contexts[position] for position in contenders]
        seconds = time_in_rounds(sampler, subjects, rounds, seed=done).seconds
        return dict(zip(contenders, seconds, strict=True))

    race = halve((0, 1), measure)
    return paired_ratio(race.samples[0], race.samples[1])
