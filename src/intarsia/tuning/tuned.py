# SPDX-License-Identifier: Apache-2.0
"""Placement by cost for the compiler: an accepted plan, a new one, or none.

`ask_costs` is what every compilation asks; it loads what opens a database only if there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from intarsia.cost.storage import has_database
from intarsia.errors import CostDatabaseError
from intarsia.place.decide import Calls
from intarsia.place.program import build_plan
from intarsia.plan.tuning import Forecast, TuningReport, from_json
from intarsia.tuning.objectives.latency import LATENCY

if TYPE_CHECKING:
    from intarsia.cost.records import PlanVerdict, VerdictKey
    from intarsia.place.build import Store
    from intarsia.place.setting import Progress, Setting
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.tuning.objectives.objective import Objective
    from intarsia.tuning.options import Options

logger = logging.getLogger("intarsia")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the cost database said of a setting.

    Attributes:
        key: What it was asked for; None if it was not, or did not answer.
        verdict: The plan that was accepted; None if none was.
    """

    key: VerdictKey | None = None
    verdict: PlanVerdict | None = None

    def plan(self, setting: Setting) -> tuple[Calls, TuningReport] | None:
        """Return the accepted plan with its report, if it fits the setting."""
        if self.verdict is None:
            return None
        from intarsia.accepted.verdicts import verdict_calls

        calls, report = verdict_calls(setting, self.verdict), from_json(self.verdict.report)
        return None if calls is None or report is None else (calls, report)

    def after_storing(self, setting: Setting) -> Asked:
        """Return the same with a key, if there was no database and now there is one."""
        if self.key is not None or not has_database():
            return self
        from intarsia.place.identity import verdict_key

        return replace(self, key=verdict_key(setting))


def ask_costs(setting: Setting, objective: str = "latency", costs: str | None = None) -> Asked:
    """Return which plan was accepted for a setting, if any was.

    A database that cannot be read is one warning: placement is greedy then.

    Args:
        setting: The model and the machine.
        objective: What was minimised.
        costs: The database; None means what the settings say.
    """
    try:
        return _ask(setting, objective, costs)
    except CostDatabaseError as error:
        logger.warning("the costs cannot be read, so placement is greedy: %s", error.message)
        return Asked()


def _ask(setting: Setting, objective: str, costs: str | None) -> Asked:
    if not has_database(costs):
        return Asked()
    from intarsia.cost.glance import find_verdict
    from intarsia.place.identity import verdict_key

    key = verdict_key(setting, objective)
    return Asked(key, find_verdict(key, costs))


@dataclass(frozen=True, slots=True)
class Found:
    """A plan that ships.

    Attributes:
        calls: What it runs.
        report: How it was found.
        store: Artifacts that were compiled meanwhile, if any were.
        accepted: What the plan is recorded under, and the record; None if it was not accepted.
    """

    calls: Calls
    report: TuningReport
    store: Store | None = None
    accepted: tuple[VerdictKey, PlanVerdict] | None = None


@contextmanager
def tuned_plan(
    setting: Setting, options: Options, *, costs: str | None = None, again: bool = False
) -> Iterator[Found]:
    """Yield the plan that ships: the one that was accepted before, else one that is measured now.

    What is measured is kept even if this is interrupted; then the best plan so far is yielded, and
    not recorded as accepted. What was compiled is at hand until the end.

    Args:
        setting: The model and the machine.
        options: How to tune.
        costs: The database; None means what the settings say.
        again: Whether to go on measuring although a plan was accepted.

    Raises:
        CostDatabaseError: The database is damaged or out of reach.
        BackendError: Nothing here can run the model.
        UnsupportedError: A node has no target.
    """
    from intarsia.accepted.verdicts import make_verdict, verdict_calls
    from intarsia.cost.database import CostDatabase
    from intarsia.place.identity import verdict_key
    from intarsia.tuning.report import conclude
    from intarsia.tuning.tuner import Tuner

    with CostDatabase.open(costs) as database:
        key = verdict_key(setting, options.objective.describe())
        known = None if again else database.verdict(key)
        if known is not None:
            calls, report = verdict_calls(setting, known), from_json(known.report)
            if calls is not None and report is not None:
                yield Found(calls, replace(report, is_reused=True), accepted=(key, known))
                return
        with Tuner(setting, database, options) as tuner:
            tuner.run()
            calls, report = conclude(tuner)
            accepted = None
            if tuner.is_proven and (tuner.final is not None or report.seconds is not None):
                verdict = make_verdict(setting, calls, report, tuner.table.session)
                database.save_verdict(key, verdict)
                accepted = (key, verdict)
            yield Found(calls, report, tuner.store, accepted)


def frozen_plan(
    setting: Setting, objective: Objective = LATENCY, *, costs: str | None = None
) -> tuple[Calls, TuningReport]:
    """Return the plan that was accepted before; nothing is measured.

    Args:
        setting: The model and the machine.
        objective: What was minimised.
        costs: The database; None means what the settings say.

    Raises:
        CostDatabaseError: None was accepted under these circumstances, or the database is damaged
            or out of reach.
    """
    found = _ask(setting, objective.describe(), costs).plan(setting)
    if found is None:
        raise CostDatabaseError(
            f"no plan was accepted for this model, {setting.config.text!r}, "
            f"{setting.num_threads} threads, these versions and this machine"
            f"{objective.circumstance()}",
            hint="run `intarsia tune` without --frozen, or point --database at one that has it",
        )
    return found[0], replace(found[1], is_reused=True)


def plan_absent(
    setting: Setting, options: Options, *, costs: str | None = None
) -> tuple[Calls, TuningReport]:
    """Return a plan for a machine that is not here, by estimates.

    Raises:
        UnsupportedError: A node has no target.
    """
    from intarsia.tuning.absent.absent import plan_without_measuring

    if not has_database(costs):
        return plan_without_measuring(setting, None, options)
    from intarsia.cost.database import CostDatabase

    with CostDatabase.open(costs, create=False) as database:
        return plan_without_measuring(setting, database, options)


def foresee(setting: Setting, options: Options, *, costs: str | None = None) -> Forecast:
    """Return what tuning would measure; nothing is measured.

    Raises:
        UnsupportedError: A node has no target.
    """
    from intarsia.tuning.forecast import forecast

    if not has_database(costs):
        return forecast(setting, None, options)
    from intarsia.cost.database import CostDatabase

    with CostDatabase.open(costs, create=False) as database:
        return forecast(setting, database, options)


def build_tuned(
    setting: Setting,
    options: Options,
    *,
    costs: str | None = None,
    again: bool = False,
    strict: bool = False,
    tell: Progress | None = None,
    keep: Callable[[PlanExecutable, VerdictKey, PlanVerdict], object] | None = None,
) -> PlanExecutable:
    """Find the plan that is measured to be best, and compile it.

    Args:
        setting: The model and the machine.
        options: How to measure.
        costs: The cost database; None means the setting.
        again: Whether to go on measuring although a plan was accepted before.
        strict: Whether it is an error if a backend fails on the plan.
        tell: Told about compiling as it goes.
        keep: Given the program if the plan was accepted, now or before, with what it is recorded
            under and the record.

    Raises:
        CostDatabaseError: The cost database is damaged or out of reach.
        BackendError: Nothing here can run the model; or, if `strict`, a backend failed.
        UnsupportedError: A node has no target.
    """
    with tuned_plan(setting, options, costs=costs, again=again) as found:
        executable = build_plan(
            *(setting, found.calls, found.report), store=found.store, strict=strict, tell=tell
        )
        if keep is not None and found.accepted is not None:
            keep(executable, *found.accepted)
        return executable
