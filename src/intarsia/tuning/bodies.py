# SPDX-License-Identifier: Apache-2.0
"""The tuned plan once more with its If, Loop and Scan as steps, whose bodies are placed greedily.

The tuner searches with whole operators: it knows what they cost on the targets that take them. What
their bodies cost in pieces is known only when the plan runs, so plans are raced against each other
as packages, and the faster one ships.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from intarsia.errors import IntarsiaError, InternalError, ReasonCode
from intarsia.measure.divergence import compare_value
from intarsia.measure.racing import CONFIRMING_LOOKS
from intarsia.place.assign import refusal_of
from intarsia.place.build import RegionBuilder
from intarsia.place.decide import Calls, PlanChoice, cut_regions, decide_as_chosen
from intarsia.place.schedule import make_draft
from intarsia.plan.placement import THE_PLAN
from intarsia.plan.tuning import Finalist
from intarsia.runtime.loader import SharedConstants
from intarsia.tuning.finalists import LOOKS, compare_plans, count_nodes
from intarsia.tuning.laboratory.values import OutOfTimeError, Probe
from intarsia.tuning.objectives.packages import ROUND_SECONDS, Packages
from intarsia.tuning.proposals.space import PlanCandidate

if TYPE_CHECKING:
    from intarsia.place.setting import Setting
    from intarsia.plan.tuning import TuningReport
    from intarsia.tuning.finalists import FinalRound
    from intarsia.tuning.tuner import Tuner

logger = logging.getLogger(__name__)

SHARE = 0.25
"""Part of the budget that is kept for this."""

_MOST_ALONE = 3
"""Up to so many operators have a plan in which only one of them is a step."""

_ROUND_SECONDS = 1.2 * ROUND_SECONDS


@dataclass(frozen=True, slots=True)
class _Contender:
    """A plan with some operators as steps.

    Attributes:
        plan: As finalists are; the calls of steps are on the host.
        steps: Ids of these operators.
    """

    plan: PlanCandidate
    steps: frozenset[int]

    @property
    def probe(self) -> Probe:
        """What its package is filed under."""
        return Probe(self.plan.calls, steps=tuple(sorted(self.steps)))


def place_bodies(setting: Setting, tuner: Tuner, choice: PlanChoice) -> PlanChoice:
    """Return the choice, or one in which the plan runs control flow itself, if that is faster.

    An operator is a step without a race if the user said something of a node inside, or if no
    target that was given takes it whole.

    Args:
        setting: The model with its bodies, and the machine.
        tuner: One that has run, with whole operators.
        choice: The plan that it would ship.
    """
    assert choice.calls is not None
    assert choice.report is not None
    setting = setting.complete
    must, may = _find_steps(setting, choice.calls)
    if not tuner.options.objective.compares_run_seconds:
        may = frozenset()
    if not (must or may) or tuner.is_interrupted:
        return choice
    tuner.budget.seconds = tuner.options.budget_seconds
    packages = Packages(tuner.whole.runner.lab, 1)
    found: list[_Contender] = []
    whole = _Contender(PlanCandidate(choice.report.winner, choice.calls, 0), frozenset())
    try:
        with tuner.budget.charge("bodies"):
            found = list(_contenders(setting, choice, must, may, packages))
            if must and not found:
                return choice  # it is told why when the plan is built
            rivals = found if must else [whole, *found]
            final = _race(tuner, packages, rivals)
    except OutOfTimeError:
        final = None
    finally:
        packages.close()
    ships = next((one for one in found if final is not None and one.plan == final.winner), None)
    if ships is None and must:
        ships = found[0]
    report = _tell(choice.report, setting, found, final, ships, is_compared=not must)
    if ships is None:
        return replace(choice, report=report)
    return replace(choice, calls=ships.plan.calls, steps=ships.steps, report=report)


def _find_steps(setting: Setting, calls: Calls) -> tuple[frozenset[int], frozenset[int]]:
    """Return ids of operators that are to be steps, and of those that may be."""
    host = setting.config.placed_host
    if host not in setting.targets:
        return frozenset(), frozenset()
    capability = setting.capabilities[setting.targets.index(host)]
    given = len(setting.config.targets)
    position_of = {node: position for position, nodes in calls for node in nodes}
    must, may = set(), set()
    for number, bodies in setting.bodies.items():
        refusal = refusal_of(setting.graph.nodes[number], capability, setting.constraints)
        if refusal is not None and refusal.code is ReasonCode.USER:
            continue
        if bodies.is_pinned or position_of[number] >= given:
            must.add(number)
        elif number not in setting.constraints.pins:
            may.add(number)
    return frozenset(must), frozenset(may)


def _contenders(
    setting: Setting,
    choice: PlanChoice,
    must: frozenset[int],
    may: frozenset[int],
    packages: Packages,
) -> Iterator[_Contender]:
    """Build the plans with steps and keep their packages; yield those that compute rightly."""
    assert choice.calls is not None
    assert choice.report is not None
    every = [must] if must else []
    if 1 < len(may) <= _MOST_ALONE:
        every += [must | {one} for one in sorted(may)]
    every += [must | may] if may else []
    for steps in every:
        names = ", ".join(repr(setting.graph.nodes[one].name) for one in sorted(steps))
        calls = _with_steps(setting, choice.calls, steps)
        name = f"{choice.report.winner}, bodies of {names} placed"
        contender = _Contender(PlanCandidate(name, calls), steps)
        try:
            problem = _build(setting, choice, contender, packages)
        except (InternalError, OutOfTimeError):
            raise
        except IntarsiaError as error:
            problem = error.message
        if problem:
            logger.info("%s is no plan: %s", name, problem)
        else:
            yield contender


def _with_steps(setting: Setting, calls: Calls, steps: frozenset[int]) -> Calls:
    """Return calls in which some operators stand alone, on the host."""
    host = setting.targets.index(setting.config.placed_host)
    positions = [position for position, _ in calls]
    choices = [0] * len(setting.graph.nodes)
    for number, (_, nodes) in enumerate(calls):
        for node in nodes:
            choices[node] = number
    for node in steps:  # a call of its own
        choices[node] = len(positions)
        positions.append(host)
    regions = cut_regions(setting.graph, choices)
    return tuple((positions[number], tuple(nodes)) for number, nodes in regions)


def _build(setting: Setting, choice: PlanChoice, contender: _Contender, packages: Packages) -> str:
    """Build a plan, compare what it computes, and keep its package; return what is wrong."""
    bodies = {one: setting.bodies[one] for one in contender.steps}
    setting = replace(setting, bodies=bodies)
    builder = RegionBuilder(
        setting, strict=False, tell=_quiet, store=choice.store, shared=SharedConstants()
    )
    decision = decide_as_chosen(setting, contender.plan.calls, steps=contender.steps)
    draft = make_draft(setting, decision)
    failed = builder.build(draft)
    if failed is not None:
        return str(next(iter(failed[1].values())))
    draft = replace(draft, plan=replace(draft.plan, model=setting.info))
    program = builder.finish(draft, ())
    expected = packages.lab.values()
    feeds = {one.name: expected[one.name] for one in program.inputs}
    for name, actual in program.run(feeds).items():
        if name in expected:
            problem = compare_value(name, expected[name], actual).problem
            if problem:
                return problem
    program.save(packages.reserve(contender.probe))
    return ""


def _quiet(stage: str, done: int, total: int) -> None:
    del stage, done, total


def _race(tuner: Tuner, packages: Packages, rivals: Sequence[_Contender]) -> FinalRound | None:
    probes = {rival.plan: rival.probe for rival in rivals}

    def measure(
        plans: Sequence[PlanCandidate], rounds: int
    ) -> Mapping[PlanCandidate, Sequence[float]]:
        tuner.whole.tell("compare", f"{len(plans)} plans, {rounds} rounds")
        seconds = packages.time_rounds([probes[plan] for plan in plans], rounds)
        return {plan: seconds[probes[plan]] for plan in plans}

    most = partial(_affordable, tuner, len(rivals))
    looks = most(LOOKS, 0.5)
    earlier = measure(list(probes), looks[0]) if len(rivals) == 1 else {}
    return compare_plans(
        list(probes),
        measure,
        looks=looks,
        confirming_looks=most(CONFIRMING_LOOKS, 0.5),
        earlier=earlier,
    )


def _affordable(tuner: Tuner, count: int, looks: Sequence[int], part: float) -> tuple[int, ...]:
    """Return the looks that there is time for in a part of what is left; the first in any case."""
    most = part * tuner.budget.left() / (count * _ROUND_SECONDS)
    return tuple(look for look in looks if look <= most) or (looks[0],)


def _tell(
    report: TuningReport,
    setting: Setting,
    found: Sequence[_Contender],
    final: FinalRound | None,
    ships: _Contender | None,
    *,
    is_compared: bool,
) -> TuningReport:
    """Return the report with a row for each plan with steps.

    Args:
        report: On plans with whole operators.
        setting: The model and the machine.
        found: The plans.
        final: What their race gave; None if there was no time for it.
        ships: The one that ships, if one does.
        is_compared: Whether the best plan with whole operators was in the race.
    """
    targets = tuple(map(str, setting.targets))
    rows: list[Finalist] = []
    for one in found:
        samples = () if final is None else final.samples[one.plan]
        finite = list(filter(math.isfinite, samples))
        seconds = median(finite) if finite else None
        if is_compared and final is not None and seconds is not None and report.seconds is not None:
            seconds = report.seconds * final.ratio(one.plan).value  # both in the same rounds
        fate = "not run: out of time" if final is None else final.fates.get(one.plan, "")
        calls = tuple(call for call in one.plan.calls if one.steps.isdisjoint(call[1]))
        rows.append(
            Finalist(
                name=one.plan.name,
                nodes={**count_nodes(targets, calls), THE_PLAN: len(one.steps)},
                regions=len(one.plan.calls),
                is_single=False,
                seconds=seconds,
                rounds=len(finite),
                fate="ships" if one is ships else fate,
            )
        )
    if ships is None:
        return replace(report, finalists=(*report.finalists, *rows))
    rows.sort(key=lambda row: row.fate != "ships")
    why = f"slower than {ships.plan.name}" if is_compared else "what it has whole is to be in steps"
    before = tuple(
        replace(row, fate=why) if row.fate == "ships" else row for row in report.finalists
    )
    return replace(
        report,
        finalists=(*rows, *before),
        winner=ships.plan.name,
        is_mixed=True,
        single=report.single if is_compared else ships.plan.name,
        single_seconds=report.single_seconds if is_compared else rows[0].seconds,
        seconds=rows[0].seconds,
        predicted_seconds=None,
        steps=tuple(setting.graph.nodes[one].name for one in sorted(ships.steps)),
    )
