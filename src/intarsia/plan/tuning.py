# SPDX-License-Identifier: Apache-2.0
"""What a tuner found, as frozen values that `report` shows and the database keeps as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from intarsia.decoding import decode_json


@dataclass(frozen=True, slots=True)
class Finalist:
    """A whole plan that was run end to end.

    Attributes:
        name: `greedy`, `openvino alone`, `search 1`.
        nodes: By text of the target, how many nodes it has.
        regions: How many there are.
        is_single: Whether it is the plan of one target with its fallback.
        predicted_seconds: What the search said before it was run; None if it did not say.
        seconds: Measured, end to end; None if it failed.
        ratio: Of its time to that of the best plan with one backend, paired by round.
        low: Lower end of the ratio's interval.
        high: Upper end.
        rounds: How many there were.
        fate: `ships`, or why it does not.
        nbytes: Bytes by which a process grows that loads and runs it; 0 if that was not measured.
        runs_per_second: Of all processes together; 0 if that was not measured.
        low_seconds: What it takes at best, by the intervals of costs that were not measured; None
            if it was measured.
        high_seconds: What it takes at worst.
        figure: What the objective measured of it, in words; empty where its time says it all.
    """

    name: str
    nodes: dict[str, int]
    regions: int
    is_single: bool
    predicted_seconds: float | None = None
    seconds: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    fate: str = ""
    nbytes: int = 0
    runs_per_second: float = 0.0
    low_seconds: float | None = None
    high_seconds: float | None = None
    figure: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """A candidate that was excluded.

    Attributes:
        target: Text of the target.
        nodes: Names of the first nodes, at most `MOST_NAMES`.
        count: How many nodes there are.
        code: The reason's code.
        reason: One sentence.
    """

    target: str
    nodes: tuple[str, ...]
    count: int
    code: str
    reason: str


MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class UnitCost:
    """What one unit costs on one target.

    Attributes:
        target: Text of the target.
        alone_seconds: Measured as a region of its own, plain tensors in and out; None if it was
            not measured.
        inside_seconds: Inside a larger region: its share.
        source: Where the figure comes from: `measured`, `fingerprint`; `hoped`: it was not
            measured, and is the least that was thought possible; or `group`: the same, and the
            target takes it only with others that it runs as one.
        plan_seconds: What the best plan costs that has it there; None if there is none.
        refusal: Why the target cannot have it; empty if it can.
    """

    target: str
    alone_seconds: float | None = None
    inside_seconds: float | None = None
    source: str = ""
    plan_seconds: float | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class UnitReport:
    """Nodes that are placed together, and what they cost everywhere.

    Attributes:
        nodes: Their names.
        operators: Their operators.
        target: Text of the target that has them in the plan that ships.
        region: The position of their region there.
        costs: One per target, in the user's order.
    """

    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    target: str
    region: int
    costs: tuple[UnitCost, ...]


@dataclass(frozen=True, slots=True)
class CutReport:
    """What one unit would save if another target took it as well as its own does.

    Attributes:
        nodes: The unit's nodes.
        target: Where they are.
        other: The target of their neighbours.
        saved_seconds: What the plan would be faster by.
        calls: How many calls fewer it would have.
    """

    nodes: tuple[str, ...]
    target: str
    other: str
    saved_seconds: float
    calls: int


@dataclass(frozen=True, slots=True)
class BoundaryReport:
    """A boundary between two calls of a plan that was measured in place.

    Attributes:
        before: Text of the target of the first call.
        after: Text of the target of the second, which runs right after it.
        last: Name of the first call's last node.
        first: Name of the second call's first node.
        assumed_seconds: What was taken for its cost before.
        seconds: What it costs, by the median of the rounds; it may be negative.
        rounds: How many there were; 0 if it was measured before.
        is_known: Whether it comes from the database.
        layout: The shared layout in which tensors cross it; empty for plain ones.
    """

    before: str
    after: str
    last: str
    first: str
    assumed_seconds: float
    seconds: float
    rounds: int = 0
    is_known: bool = False
    layout: str = ""


@dataclass(frozen=True, slots=True)
class TuningReport:
    """What a tuner found, and how sure it is.

    Attributes:
        targets: Text of every target, in the user's order.
        versions: Name and version of their backends.
        machine: The machine's fingerprint in words.
        threads: Of one run.
        objective: What was minimised.
        finalists: Every whole plan that was run, the best first.
        winner: Name of the one that ships.
        is_mixed: Whether several backends run in it.
        single: Name of the best plan with one backend.
        seconds: The winner's measured time; None if nothing was measured.
        single_seconds: That of the best plan with one backend, in the same rounds.
        predicted_seconds: What the search said of the winner before it was run.
        confidence: Of the claim that the winner is not slower than the best single plan.
        proof: What the search says of its plan.
        bound_seconds: No plan can be faster, by the search's costs.
        nodes: How many are placed.
        units: How many pieces the search places.
        measured: How many regions were measured by this run.
        known: How many costs came from the database.
        unmeasured: How many regions of the winner rest on estimates.
        failures: Candidates that were excluded.
        caps: What was left out of the search.
        notes: What else the user should know.
        spent: Seconds by what they were spent on.
        budget_seconds: What could have been spent.
        in_flight: How many processes ran a plan at the same time, where throughput was compared.
        is_interrupted: Whether the tuner was stopped before it was done.
        is_reused: Whether the plan is one that was accepted before.
        unit_reports: What every unit costs where; empty unless asked for.
        cuts: What other targets would have to take to save most.
        junctions: Boundaries between calls that were measured in place.
        slowdown: Where memory was compared, how many times the fastest plan's time a plan may take;
            None if that was not limited.
        figure_name: What the figures of the finalists are; empty where their times say it all.
        outcome: What ships, and why, in one line, where that is not said by times.
        steps: Names of the operators that the plan runs itself, with bodies that are placed.
    """

    targets: tuple[str, ...]
    versions: tuple[str, ...]
    machine: str
    threads: int
    objective: str
    finalists: tuple[Finalist, ...]
    winner: str
    is_mixed: bool
    single: str
    seconds: float | None
    single_seconds: float | None
    predicted_seconds: float | None
    confidence: float
    proof: str = ""
    bound_seconds: float | None = None
    nodes: int = 0
    units: int = 0
    measured: int = 0
    known: int = 0
    unmeasured: int = 0
    failures: tuple[Failure, ...] = ()
    caps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    spent: dict[str, float] = field(default_factory=dict)
    budget_seconds: float = 0.0
    in_flight: int = 1
    is_interrupted: bool = False
    is_reused: bool = False
    unit_reports: tuple[UnitReport, ...] = ()
    cuts: tuple[CutReport, ...] = ()
    junctions: tuple[BoundaryReport, ...] = ()
    slowdown: float | None = None
    figure_name: str = ""
    outcome: str = ""
    steps: tuple[str, ...] = ()

    @property
    def residual(self) -> float | None:
        """How far the prediction was off, as a part of what was measured."""
        if self.seconds is None or self.predicted_seconds is None:
            return None
        return self.predicted_seconds / self.seconds - 1.0

    @property
    def summary(self) -> str:
        """One line: which plan ships, and why."""
        if self.outcome:
            return self.outcome
        if self.seconds is None:
            predicted = time_text(self.predicted_seconds)
            row = next(
                (finalist for finalist in self.finalists if finalist.name == self.winner), None
            )
            interval = ""
            if row is not None and row.low_seconds is not None:
                low, high = time_text(row.low_seconds), time_text(row.high_seconds)
                interval = f", between {low} and {high}"
            return f"{self.winner}: planned without measuring, {predicted} predicted{interval}"
        text = f"{self.winner}: {time_text(self.seconds)}"
        if self.winner == self.single or not self.single_seconds:
            return f"{text}, {best_of(len(self.finalists))}"
        gain = self.single_seconds / self.seconds
        sure = f"{self.confidence:.1%} sure not to be slower"
        return f"{text}, {gain:.2f} times as fast as {self.single}, the best single one ({sure})"

    def __str__(self) -> str:
        lines = [self.summary]
        lines += [
            f"  {finalist.name}: {time_text(finalist.seconds)}, {finalist.regions} regions, "
            f"{finalist.fate}"
            for finalist in self.finalists
        ]
        lines += [
            f"excluded: {failure.target}: {failure.code}: {failure.reason}"
            for failure in self.failures
        ]
        return "\n".join((*lines, *self.caps, *self.notes))


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """What would be measured on one target.

    Attributes:
        target: Its text.
        regions: Pieces of the model that it may have, each shape once.
        known: How many of them have a cost; for memory, a weight too.
        excluded: How many failed before.
    """

    target: str
    regions: int
    known: int
    excluded: int


@dataclass(frozen=True, slots=True)
class BorderForecast:
    """Borders between two targets, which may be measured in place.

    Attributes:
        before: Text of the target of the first region.
        after: Text of the target of the second.
        known: How many of any model were measured on machines like this one.
    """

    before: str
    after: str
    known: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What tuning would measure.

    Attributes:
        nodes: Of the model.
        units: Pieces that the search places.
        plans: Names of the whole plans that are run in any case.
        known_plans: Seconds of those that were run before, by name.
        rows: One per target.
        is_accepted: Whether a plan was accepted before, so that nothing would be measured.
        caps: What is left out of the search.
        budget_seconds: What may be spent.
        borders: By pairs of targets that may be neighbours; none are measured for memory.
    """

    nodes: int
    units: int
    plans: tuple[str, ...]
    known_plans: dict[str, float]
    rows: tuple[ForecastRow, ...]
    is_accepted: bool
    caps: tuple[str, ...]
    budget_seconds: float
    borders: tuple[BorderForecast, ...] = ()


_SHORT_SECONDS = 1e-4
"""Times below it are shown with three significant digits."""


def best_of(count: int) -> str:
    """Return what a plan is that none of so many, itself among them, beat."""
    return (
        "the only plan that was run" if count == 1 else f"the best of {count} plans that were run"
    )


def time_text(seconds: float | None) -> str:
    """Return a time for people: `38.123 ms`, `0.000213 ms`; a dash if it is not known."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:{'.3f' if seconds >= _SHORT_SECONDS else '.3g'}} ms"


def to_json(report: TuningReport) -> str:
    """Return a report as JSON text."""
    return msgspec.json.encode(report).decode()


def from_json(text: str) -> TuningReport | None:
    """Return the report of a JSON text; nothing if it is of another version."""
    try:
        return decode_json(text, TuningReport)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def name_some(names: Sequence[str]) -> tuple[str, ...]:
    """Return the first names of many."""
    return tuple(names[:MOST_NAMES])
