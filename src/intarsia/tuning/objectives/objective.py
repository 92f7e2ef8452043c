# SPDX-License-Identifier: Apache-2.0
"""Objectives of tuning: the protocol that they answer, and the table of them.

A new objective is one file beside this one and one row of `OBJECTIVES`. Nothing else asks which
objective it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from intarsia.errors import SettingError

if TYPE_CHECKING:
    from intarsia.plan.tuning import Finalist, TuningReport
    from intarsia.tuning.finalists import FinalRound
    from intarsia.tuning.proposals.space import PlanCandidate
    from intarsia.tuning.prospector import Prospector
    from intarsia.tuning.whole_plans import WholePlans

OBJECTIVES = {
    "latency": "intarsia.tuning.objectives.latency:Latency",
    "memory": "intarsia.tuning.objectives.memory:Memory",
    "throughput": "intarsia.tuning.objectives.throughput:Throughput",
}
"""The class of each objective, by the name that users write; imported when needed."""

SLOWDOWN = 2.0
"""A plan for memory may take so many times as long as the fastest one, unless the user says."""


class Objective(Protocol):
    """What tuning optimises: `measure`, `compare`, `describe` and `limits`.

    The other answers are those of an objective of speed that runs plans one at a time. An
    objective inherits them, and gives its own where it differs.
    """

    @property
    def name(self) -> str:
        """What users write and reports show."""

    @property
    def compares_run_seconds(self) -> bool:
        """Whether plans are compared by the seconds of one run.

        Then rounds of before count, and what whole plans take corrects the predictions.
        """
        return False

    @property
    def weighs_pieces(self) -> bool:
        """Whether pieces of the model are weighed before it is searched, and not timed alone."""
        return False

    @property
    def default_threads(self) -> int | None:
        """Threads of one run unless the user says; None means as many as anywhere else."""
        return None

    @property
    def slowdown(self) -> float | None:
        """How many times as long as the fastest plan a plan may take; None means any."""
        return None

    @property
    def figure_name(self) -> str:
        """What is above the figures of plans in the report; empty where their times say it all."""
        return ""

    def describe(self) -> str:
        """Return the text that names the objective with its limits.

        Accepted plans are filed under it, so that it never changes.
        """
        return self.name

    def limits(self, fastest: float) -> float:
        """Return the seconds that one run of a plan may take.

        Args:
            fastest: Seconds of the fastest plan that was measured.
        """
        return math.inf if self.slowdown is None else self.slowdown * fastest

    def measure(
        self, plans: WholePlans, candidates: Sequence[PlanCandidate], rounds: int
    ) -> Mapping[PlanCandidate, Sequence[float]]:
        """Return how much each plan needs in every round, the less the better; NaN where it failed.

        Args:
            plans: Runs them.
            candidates: Those that can be run.
            rounds: How many.
        """
        ...

    def compare(self, plans: WholePlans, candidates: Sequence[PlanCandidate]) -> FinalRound | None:
        """Return which plan ships, and why; None if none has been run.

        Args:
            plans: Runs them.
            candidates: Those that can be run.
        """
        ...

    def search(
        self,
        plans: WholePlans,
        prospector: Prospector,
        candidates: Sequence[PlanCandidate],
        best: float,
        *,
        is_again: bool,
    ) -> list[PlanCandidate]:
        """Return plans of several targets that are worth running.

        Args:
            plans: Runs them.
            prospector: Looks for the fastest plan.
            candidates: Those that were run.
            best: Seconds of the fastest of a single backend.
            is_again: Whether what whole plans told was fed back.
        """
        if not is_again:
            prospector.measure_calls_and_copies()
        return prospector.search(candidates, best, is_again=is_again)

    def with_slowdown(self, slowdown: float | None) -> Objective:
        """Return the objective with a limit on how slow plans may be.

        Args:
            slowdown: How many times as long as the fastest plan; None means any.

        Raises:
            SettingError: It looks for the fastest plan.
        """
        if slowdown != SLOWDOWN:
            raise SettingError(
                f"a slowdown has no effect on {self.name}, which looks for the fastest plan anyway",
                hint="leave it out, or add --objective memory",
            )
        return self

    def circumstance(self) -> str:
        """Return what an error says of the objective; nothing of the default one."""
        return f", for objective {self.name}"

    def estimate_note(self) -> str:
        """Return what a plan that is made from estimates leaves out; empty if nothing.

        Raises:
            SettingError: Nothing is known of the objective without measuring.
        """
        return ""

    def show(self, row: Finalist, _amount: float, /) -> Finalist:
        """Return the row of a plan with the median of what `measure` returned of it."""
        return row

    def outcome(self, _report: TuningReport, /) -> str:
        """Return what ships, and why, in one line; empty where the seconds of one run say it."""
        return ""


def outcome_in_words(
    report: TuningReport,
    name: Callable[[Finalist], str],
    compare: Callable[[Finalist, Finalist], str],
) -> str:
    """Return what ships, and how it compares with the best single plan; empty without figures.

    Args:
        report: How the plan was found.
        name: Returns how good a plan is.
        compare: Returns how a plan compares with another, of which the name follows.
    """
    rows = {row.name: row for row in report.finalists}
    winner, single = rows.get(report.winner), rows.get(report.single)
    if not any(row.figure for row in rows.values()):
        return ""
    if winner is None or single is None:
        return f"{report.winner}: {report.objective} was not measured"
    text = f"{winner.name}: {name(winner)}"
    if winner is single:
        from intarsia.plan.tuning import best_of

        return f"{text}, {best_of(len(rows))}"
    return f"{text}, {compare(winner, single)} {single.name}, the best single one"


def parse_objective(text: str, slowdown: float | str | None = SLOWDOWN) -> Objective:
    """Return the objective that the user asks for.

    Args:
        text: Its name.
        slowdown: How many times as long as the fastest plan a plan may take: a factor of at least
            1, as a number or as text, or `none`; None means no limit.

    Raises:
        SettingError: There is no such objective, or it has no such limit.
    """
    if text not in OBJECTIVES:
        raise SettingError(
            f"objective {text!r} is unknown", hint=f"use one of {', '.join(OBJECTIVES)}"
        )
    module, _, name = OBJECTIVES[text].partition(":")
    objective: Objective = getattr(import_module(module), name)()
    return objective.with_slowdown(_parse_slowdown(slowdown))


def _parse_slowdown(slowdown: float | str | None) -> float | None:
    text = str(slowdown).strip().lower()
    try:
        factor = math.inf if text == "none" else float(text)
    except ValueError:
        factor = math.nan
    if not factor >= 1:
        raise SettingError(
            f"slowdown {text!r} is not a factor of at least 1",
            hint="write for example 1.5, or none for no limit",
        )
    return None if math.isinf(factor) else factor
