# SPDX-License-Identifier: Apache-2.0
"""The tuner: measures what the best plan needs, searches again, and proves the winner end to end.

1. Every plan of a single backend runs end to end: the safety net, and the scale of all else.
2. The search covers the model at optimistic costs; what its plan uses and was not measured is
   measured: units first, then the plan's calls as the regions that they are. Then it is solved
   again, until its plan is measured or no plan can beat the best single one any more.
3. The finalists run against each other (`finalists`); what the prediction missed is fed back, and
   the search repeated at most twice.

Every step may be the last: time is handed out by a budget, and what was measured is kept.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from intarsia.accepted.choices import Accepted, ask_accepted, make_verdict
from intarsia.cost.fingerprint import this_machine
from intarsia.cost.key import new_session
from intarsia.errors import BackendError, CostDatabaseError
from intarsia.measure.racing import ACCEPTANCE_ALPHA, MARGIN, halve, paired_ratio
from intarsia.place.assign import Policy
from intarsia.place.decide import PlanChoice
from intarsia.tuning.budget import CHOOSING_END, HEATS_END, REGIONS_END, Budget
from intarsia.tuning.costing.cost_table import CostTable, KeyMaker
from intarsia.tuning.costing.runner import ProbeRunner
from intarsia.tuning.finalists import RIVAL, FinalRound
from intarsia.tuning.kernels.tuning import tune_model_layers
from intarsia.tuning.laboratory.laboratory import Laboratory
from intarsia.tuning.laboratory.model_worker import preparing_limits
from intarsia.tuning.laboratory.trials import RegionTrials
from intarsia.tuning.laboratory.values import OutOfTimeError
from intarsia.tuning.objectives.latency import LATENCY
from intarsia.tuning.objectives.packages import Packages
from intarsia.tuning.options import Options, TuningStatus
from intarsia.tuning.proposals.space import PlanCandidate, Space, make_space
from intarsia.tuning.prospector import Prospector
from intarsia.tuning.whole_plans import WholePlans

if TYPE_CHECKING:
    from intarsia.cost.database import CostDatabase
    from intarsia.graph.graph import Graph
    from intarsia.place.build import RegionStore
    from intarsia.place.setting import Setting
    from intarsia.tuning.kernels.tuner import KernelMoment
    from intarsia.tuning.objectives.objective import Objective

logger = logging.getLogger(__name__)

EARLY_LOOKS = (3, 6)
"""Rounds of the heats, after each of which plans may leave; they count in the final too."""
MOST_REPEATS = 2
"""How often the search is repeated because a whole plan was not what had been predicted."""
MOST_FINALISTS = 5
_FEWEST_FINALISTS = 2
RESIDUAL = 0.05
"""A prediction that is off by more than this is fed back."""
_SINGLE_LIMIT = 1.3
"""A plan that is slower than the best single one by more than this is out of the final.

Of a single plan the lower end of its interval is, as it would be a rival.
"""
_LAYERS_SHARE = 0.2
"""Of the time, for layers that native code can compute in integers or in float32."""
_PLANNED_ROUNDS = 6
"""Planned rounds of the final, for each plan in it."""


def note_late_sizes(graph: Graph) -> tuple[str, ...]:
    """Say what is measured on fewer targets, as there is no size to measure it at."""
    unknown = [
        node
        for node in graph.nodes
        for value in (graph.values[i] for i in (*node.reads, *node.outputs) if i >= 0)
        if value.is_tensor and value.shape is None
    ]
    nodes = list(dict.fromkeys(unknown))
    if not nodes:
        return ()
    return (
        f"the data decides sizes from {nodes[0].name!r} ({nodes[0].op_type}) on: {len(nodes)} "
        "nodes were measured only on targets that take unknown shapes; `compile --placement "
        "greedy` has native code take them",
    )


@dataclass(slots=True)
class Tuner:
    """One run of the tuner on one model. A context manager: what it compiled is kept until its end.

    Attributes:
        setting: The model and the machine.
        database: Where costs are kept.
        options: How to tune.
        budget: The time.
        table: What is known of costs.
        space: What may be chosen.
        prospector: Looks for plans of several targets.
        whole: Runs whole plans.
        plans: Whole plans that can be run.
        final: The last comparison of whole plans.
        left_out: Plans that a limit kept out of a final, and which.
        is_interrupted: Whether it was stopped.
        is_out_of_time: Whether its time was over before plans had been compared.
    """

    setting: Setting
    database: CostDatabase
    options: Options
    budget: Budget = field(init=False)
    table: CostTable = field(init=False)
    space: Space = field(init=False)
    prospector: Prospector = field(init=False)
    whole: WholePlans = field(init=False)
    plans: tuple[PlanCandidate, ...] = ()
    final: FinalRound | None = None
    left_out: dict[PlanCandidate, str] = field(default_factory=dict)
    is_interrupted: bool = False
    is_out_of_time: bool = False
    _notes: list[str] = field(default_factory=list)
    _absent_rivals: tuple[PlanCandidate, ...] = ()  # single plans without time in the last final
    _confirmations: int = 0

    def __post_init__(self) -> None:
        setting, options = self.setting, self.options
        self.budget = Budget(options.budget_seconds)
        self.table = CostTable(KeyMaker(setting), self.database, new_session())
        self.space = make_space(setting)
        self.plans = self.space.plans
        lab = Laboratory(
            setting,
            feeds=options.feeds,
            limits=preparing_limits(0.5 * options.budget_seconds),  # a large model compiles long
            left=self.budget.allowance,
        )
        runner = ProbeRunner(lab, self.table)
        packages = Packages(lab, max(1, int(this_machine().cpus) // setting.num_threads))
        self.whole = WholePlans(runner, packages, self.budget, options.tell)
        self.prospector = Prospector(setting, self.space, runner, self.budget, self.whole.tell)

    def run(self) -> None:
        """Tune until the plan is proven, the budget is spent, or the user interrupts.

        Raises:
            BackendError: Nothing here can run the model.
        """
        try:
            self._tune()
        except KeyboardInterrupt:
            self.is_interrupted = True
            self._notes.append("interrupted: all measurements are kept; tune again to go on")
        except OutOfTimeError as error:
            self.is_out_of_time = self.final is None
            self._notes.append(f"{error.message}: give more with --budget, or tune again to go on")
        if self._lacks_rivals:
            names = ", ".join(plan.name for plan in self._absent_rivals)
            self._notes.append(f"there was no time to run it against {names} again: tune again")

    def _tune(self) -> None:
        """Run single backends; then search, measure and compare until it is settled."""
        objective = self.options.objective
        self.plans = self._race_singles(self.plans)
        if len(self.prospector.costing.positions) <= 1:
            if len(self.plans) > 1 or not objective.compares_run_seconds:
                self._compare(self.plans)
            return
        for turn in range(1 + MOST_REPEATS):
            mixes = objective.search(
                self.whole,
                self.prospector,
                self.plans,
                self._best_single_seconds(),
                is_again=turn > 0,
            )
            if turn and not mixes:
                return
            self.plans = (*self.plans, *self._prepare_mixes(mixes))
            self._compare(self._finalists())
            if not self._feed_back() or not self.budget.left(REGIONS_END):
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.whole.packages.close()
        self.whole.runner.lab.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know."""
        late = note_late_sizes(self.setting.graph)
        return (*self.whole.notes, *self._notes, *self.prospector.notes, *late)

    @property
    def is_proven(self) -> bool:
        """Whether nothing that could beat the plan that ships was left out for lack of time."""
        is_missing = any(plan.single >= 0 for plan in self.whole.given_up)
        is_stopped = self.is_interrupted or self.is_out_of_time
        return not (is_stopped or is_missing or self._lacks_rivals)

    @property
    def _lacks_rivals(self) -> bool:
        """Whether a mixed plan ships that was not run against all that might be faster."""
        return bool(self.final and self.final.winner.single < 0 and self._absent_rivals)

    @property
    def store(self) -> RegionStore:
        """What was compiled, until the tuner is left."""
        return self.whole.runner.lab.artifacts

    def predicted(self, plan: PlanCandidate) -> float | None:
        """Return the prediction of a mixed plan's time, at the present scale of costs.

        The machine may have become faster or slower since: the best single plan tells by how much.
        """
        first = self.prospector.predictions.get(plan.calls)
        if first is None:
            return None
        now = self._best_single_seconds()
        is_known = math.isfinite(now) and math.isfinite(first.best_seconds)
        return first.seconds * (now / first.best_seconds if is_known else 1.0)

    def _race_singles(self, singles: Sequence[PlanCandidate]) -> tuple[PlanCandidate, ...]:
        """Run the single-backend plans whose time is not known; return those that work."""
        whole = self.whole
        with self.budget.charge("search"):
            self.table.ask(self.table.keys.key(plan.calls) for plan in singles)
        new = [plan for plan in singles if not whole.has_run(plan)]
        if new:
            alive = whole.prepare(new, CHOOSING_END)
            with self.budget.charge("compare"):
                looks = whole.affordable(EARLY_LOOKS, alive, HEATS_END)
                if len(alive) == 1:  # a race of one has no rounds
                    whole.race(alive, looks[0])
                halve(alive, whole.race, looks=looks)
        working = tuple(plan for plan in singles if whole.has_run(plan))
        for plan in working:
            self.prospector.propose(plan.calls)
        whole.choose_best(working)
        return working

    def _prepare_mixes(self, mixes: Sequence[PlanCandidate]) -> list[PlanCandidate]:
        """Compile mixed plans; where the time for that is over, the best one only."""
        if not self.budget.left(CHOOSING_END):
            self.whole.give_up(mixes[1:])
            mixes = mixes[:1]
        return self.whole.prepare(mixes, CHOOSING_END)

    def _compare(self, plans: Sequence[PlanCandidate]) -> None:
        """Run the finalists against each other."""
        plans = self.whole.prepare(plans)
        with self.budget.charge("compare"):
            final = self.options.objective.compare(self.whole, plans)
        if final is not None and final.is_confirmation:  # each has a chance to err
            self._confirmations += 1
            if final.winner.single < 0:
                final = replace(final, confidence=1.0 - self._confirmations * ACCEPTANCE_ALPHA)
        self.final = final

    def _finalists(self) -> list[PlanCandidate]:
        """Return the plans of the final: the best ones first, as many as there is time for.

        A single plan that is clearly slower than the best one by more than what makes a rival need
        not be run again: a mixed plan would not have to beat it.
        """
        singles = [plan for plan in self.plans if plan.single >= 0]
        singles.sort(key=self.whole.seconds)
        others = [plan for plan in self.plans if plan.single < 0]
        others.sort(key=lambda plan: (self._expected(plan), len(plan.calls)))
        champion = [self.final.winner] if self.final is not None else []
        ranked = dict.fromkeys([*champion, *singles[:1], *others[:1], *singles[1:], *others[1:]])
        is_timed = self.options.objective.compares_run_seconds
        out = self._clear_losers(singles, others) if is_timed else set()
        worth = [plan for plan in ranked if plan in champion or plan not in out]
        # room for all single plans, and two mixed ones that go before the last of them
        left, most = self.budget.left(), max(MOST_FINALISTS, len(singles) + 2)
        crowded = f"not run: the final has {most} plans at most"
        self.left_out.update(dict.fromkeys(worth[most:], crowded))
        chosen: list[PlanCandidate] = []
        for plan in worth[:most]:
            left -= _PLANNED_ROUNDS * self.whole.sample_seconds(plan)
            if len(chosen) < _FEWEST_FINALISTS or left > 0:
                chosen.append(plan)
        self._absent_rivals = tuple(
            plan for plan in worth if plan.single >= 0 and plan not in chosen and is_timed
        )
        return chosen

    def _clear_losers(
        self, singles: Sequence[PlanCandidate], others: Sequence[PlanCandidate]
    ) -> set[PlanCandidate]:
        """Return plans of which earlier rounds say that they can neither ship nor be rivals."""
        if not singles:
            return set()
        rounds = self.whole.earlier_rounds([*singles, *others])
        ratios = {plan: paired_ratio(rounds[plan], rounds[singles[0]]) for plan in rounds}
        limit = _SINGLE_LIMIT * self._best_single_seconds()
        return {
            plan
            for plan, ratio in ratios.items()
            if ratio.low > (RIVAL if plan.single >= 0 else 1 - MARGIN)
            or (self.whole.has_run(plan) and self.whole.least_seconds(plan) > limit)
        }

    def _expected(self, plan: PlanCandidate) -> float:
        if self.whole.has_run(plan):
            return self.whole.seconds(plan)
        return self.predicted(plan) or math.inf

    def _best_single_seconds(self) -> float:
        singles = (plan for plan in self.plans if plan.single >= 0)
        return min(map(self.whole.seconds, singles), default=math.inf)

    def _feed_back(self) -> bool:
        """Let the search know by what its plans were slower than predicted; whether it matters."""
        if not self.options.objective.compares_run_seconds:
            return False
        worst = 0.0
        for plan in self.plans:
            predicted = self.predicted(plan)
            if predicted is None or len(plan.calls) < 2:  # noqa: PLR2004 - one call is as measured
                continue
            excess = self.whole.seconds(plan) - predicted
            if math.isfinite(excess) and excess > RESIDUAL * predicted:
                worst = max(worst, excess / len(plan.calls))
        return self.prospector.costing.raise_call_penalty(worst)


@contextmanager
def tuned_choice(
    setting: Setting, options: Options, *, costs: str | None = None, again: bool = False
) -> Iterator[tuple[PlanChoice, Accepted]]:
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
    from intarsia.cost.database import CostDatabase
    from intarsia.tuning.bodies import SHARE, place_bodies
    from intarsia.tuning.report import conclude

    with CostDatabase.open(costs, settings=setting.backends.settings) as database:
        identity = setting.identity(is_exact=True)
        key = identity.verdict_key(options.objective.describe())
        accepted = Accepted(key, None if again else database.verdict(key))
        choice = accepted.choice(setting)
        if choice is not None:
            yield choice.reused(), accepted
            return
        options = _tune_layers(setting, options)
        identity = setting.identity(is_exact=True)  # with the code that is faster now
        key = identity.verdict_key(options.objective.describe())
        with Tuner(setting.whole, database, options) as tuner:
            if setting.bodies:
                tuner.budget.seconds *= 1 - SHARE
            tuner.run()
            calls, report = conclude(tuner)
            trial = RegionTrials(setting, tuner.whole.runner.lab)
            choice = PlanChoice(Policy.COLLAGE, calls, report, store=tuner.store, trial=trial)
            if setting.bodies:
                choice = place_bodies(setting, tuner, choice)
                calls, report = choice.calls or calls, choice.report or report
            accepted = Accepted()
            if tuner.is_proven and (tuner.final is not None or report.seconds is not None):
                verdict = make_verdict(setting.complete, calls, report, tuner.table.session)
                database.save_verdict(key, verdict)
                accepted = Accepted(key, verdict)
            with trial:
                yield choice, accepted


def _tune_layers(setting: Setting, options: Options) -> Options:
    """Find which layers between Q and DQ nodes native code computes in float32.

    Returns:
        The options with the time that is left.
    """
    if not options.objective.compares_run_seconds:
        return options
    start = time.monotonic()
    end = start + options.budget_seconds

    def tell(moment: KernelMoment) -> None:
        if options.tell is not None:
            left = max(0.0, end - time.monotonic())
            options.tell(TuningStatus("measure", moment.key, "", None, left))

    try:
        tune_model_layers(setting, budget=_LAYERS_SHARE * options.budget_seconds, tell=tell)
    except BackendError as error:
        logger.warning("layers between Q and DQ nodes were not compared: %s", error.message)
    return replace(options, budget_seconds=max(0.0, end - time.monotonic()))


def accepted_choice(
    setting: Setting, objective: Objective = LATENCY, *, costs: str | None = None
) -> tuple[PlanChoice, Accepted]:
    """Return the plan that was accepted before; nothing is measured.

    Args:
        setting: The model and the machine.
        objective: What was minimised.
        costs: The database; None means what the settings say.

    Raises:
        CostDatabaseError: None was accepted under these circumstances, or the database is damaged
            or out of reach.
    """
    accepted = ask_accepted(setting, objective.describe(), costs)
    choice = accepted.choice(setting)
    if choice is None:
        raise CostDatabaseError(
            f"no plan was accepted for this model, {setting.config.text!r}, "
            f"{setting.num_threads} threads, these versions and this machine"
            f"{objective.circumstance()}",
            hint="run `intarsia tune` without --frozen, or point --database at one that has it",
        )
    return choice.reused(), accepted
