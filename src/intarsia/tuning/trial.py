# SPDX-License-Identifier: Apache-2.0
"""A program timed once while it is compiled: against another library's, or for its slow part.

One look at what the default order chose: it runs beside the plan that another library gives.

What our own code is good at is known, and how much; libraries differ from model to model. A GRU
took six times as long on OpenVINO as on ONNX Runtime, an RNN four fifths as long. So where the
user gave no order, and a library has nodes of a small model, both plans are timed once, and the
other one is taken if it takes half the time at most. Both times go into the cost database, which
decides from then on.

Where nodes fall back to the ONNX reference evaluator, one run says how much of the time it takes.
There is no telling beforehand, least of all of a Loop. So the program runs on made-up inputs in a
process of its own, which may hang or die.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from intarsia.backends.artifact import shared_sizes
from intarsia.backends.sources import code_identity
from intarsia.cost.key import CostKey, Sample, new_session
from intarsia.cost.storage import has_database
from intarsia.errors import (
    CostDatabaseError,
    IntarsiaError,
    InternalError,
    PackageError,
    ReasonCode,
)
from intarsia.graph.legal import legal_inputs
from intarsia.place.decide import FEW_REGIONS, Decision, decide_in_order
from intarsia.place.schedule import make_draft
from intarsia.process.workers import Limits, Worker
from intarsia.runtime.feeds import check_feeds, sample_feeds
from intarsia.runtime.package import PACKAGE_SUFFIX
from intarsia.settings import Settings
from intarsia.tuning.costing.cost_table import KeyMaker
from intarsia.tuning.laboratory.sampling import Sampler, TimedRun, time_in_rounds

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph
    from intarsia.place.build import RegionBuilder
    from intarsia.place.setting import Setting
    from intarsia.runtime.context import Context
    from intarsia.runtime.executor import PlanExecutable


SLOW = 2.0
"""A plan gives way that takes so many times as long as the other one."""

CLEAR = 3.0
"""A round that says so, or that the plan stays, needs no second one."""

MOST_BYTES, MOST_NODES = 32 << 20, 500
"""Of the constants and nodes of a model that is compiled for a second library unasked."""

MOST_SECONDS = 0.5
"""Limit of both first runs and all that follows, including compiling for the second library."""

USUAL_BUILD_SECONDS = 0.1
"""What compiling for the second library takes, roughly, with loading it."""

LONG_SECONDS = 0.05
"""If the first runs of both take longer, each runs but once more."""

logger = logging.getLogger("intarsia")


@dataclass(frozen=True, slots=True)
class _Pair:
    """What was chosen, and the same model without the library that has most of its nodes.

    Attributes:
        plans: Both.
        keys: What their costs are filed under.
        library: The target that goes last in the second plan.
        instead: The target that has most of its nodes there.
    """

    plans: tuple[Decision, Decision]
    keys: tuple[CostKey, CostKey]
    library: str
    instead: str

    def choose(self, seconds: tuple[float, float]) -> Decision:
        """Return the plan to take by what each costs, and say so in one line."""
        chosen, other = self.plans
        is_slow = seconds[0] >= SLOW * seconds[1]
        line = (
            f"{self.library} {'goes last' if is_slow else 'stays'}: a run takes "
            f"{1e3 * seconds[0]:.3g} ms, and {1e3 * seconds[1]:.3g} ms "
            f"with {self.instead} in its place"
        )
        logger.info(line)
        if not is_slow:
            return chosen
        passed_over = (*other.assignment.passed_over, line)
        return replace(other, assignment=replace(other.assignment, passed_over=passed_over))


def choose_quicker(setting: Setting, decision: Decision, builder: RegionBuilder) -> Decision:
    """Return a decision, or one without a library that makes it twice as slow.

    What the cost database knows is not measured again. What fails changes nothing.

    Args:
        setting: The model and the machine.
        decision: By the default order.
        builder: Compiles what is timed; what it has compiled needs not be compiled again.
    """
    try:
        pair = None if _is_large(setting.graph) else _find_pair(setting, decision)
    except InternalError:
        raise
    except IntarsiaError as error:  # another order may leave a node without a target
        logger.info("what was chosen is not timed: %s", error.message)
        return decision
    if pair is None:
        return decision
    settings = setting.backends.settings
    seconds = _look_up(pair, settings)
    if seconds is None:
        rounds = _measure(setting, pair, builder)
        if not rounds:
            return decision
        seconds = _store(pair, rounds, settings)
    return pair.choose(seconds)


def _is_large(graph: Graph) -> bool:
    constants = sum(value.nbytes for value in graph.values if value.constant is not None)
    return constants > MOST_BYTES or len(graph.nodes) > MOST_NODES


def _find_pair(setting: Setting, decision: Decision) -> _Pair | None:
    """Return two plans to compare; None if no library has nodes, or no other one would do.

    Nor is it worth compiling other regions of our own, or cutting the model into more pieces.
    """
    target_count = len(setting.config.targets)
    is_ours = [
        bool(code_identity(each.backend, each.context).generators) for each in setting.capabilities
    ]
    choices = decision.assignment.choices
    counts = Counter(choice for choice in choices if choice < target_count and not is_ours[choice])
    if not counts:
        return None
    library = counts.most_common(1)[0][0]
    other = decide_in_order(setting, last=library)
    calls, other_calls = decision.calls(setting.targets), other.calls(setting.targets)
    moved = Counter(
        after
        for before, after in zip(choices, other.assignment.choices, strict=True)
        if before == library != after
    )
    is_other = bool(moved) and len(other_calls) <= max(FEW_REGIONS, len(calls))
    if not is_other or any(is_ours[call[0]] for call in set(other_calls) - set(calls)):
        return None
    keys = KeyMaker(setting)
    targets = setting.targets
    return _Pair(
        (decision, other),
        (keys.key(calls), keys.key(other_calls)),
        str(targets[library]),
        str(targets[moved.most_common(1)[0][0]]),
    )


def _look_up(pair: _Pair, settings: Settings) -> tuple[float, float] | None:
    """Return what both plans cost, if the database knows."""
    try:
        if not has_database(settings=settings):
            return None
        from intarsia.cost.direct import read_costs

        costs = read_costs(pair.keys, settings=settings)
    except CostDatabaseError as error:  # looking for an accepted plan has warned of it
        logger.info("the costs cannot be read: %s", error.message)
        return None
    if any(key not in costs for key in pair.keys):
        return None
    return costs[pair.keys[0]].seconds, costs[pair.keys[1]].seconds


def _store(
    pair: _Pair, rounds: list[tuple[float, float]], settings: Settings
) -> tuple[float, float]:
    """Add the times of rounds to the database; return what both plans cost by it."""
    from intarsia.cost.direct import add_samples, read_costs

    session, now = new_session(), time.time()
    columns = list(zip(*rounds, strict=True))
    try:
        add_samples(
            {
                key: [Sample(each, taken_at=now, session=session) for each in seconds]
                for key, seconds in zip(pair.keys, columns, strict=True)
            },
            settings=settings,
        )
        costs = read_costs(pair.keys, settings=settings)
        return costs[pair.keys[0]].seconds, costs[pair.keys[1]].seconds
    except (CostDatabaseError, OSError) as error:
        logger.info("what was timed cannot be kept: %s", error)
        return median(columns[0]), median(columns[1])


@dataclass(frozen=True, slots=True)
class _StartedPlans:
    """Both plans, ready, and run once.

    Attributes:
        contexts: What runs them.
        seconds: Of the first runs.
        end: When the time for all runs is up, by `perf_counter`.
    """

    contexts: tuple[Context, Context]
    seconds: tuple[float, float]
    end: float


def _measure(
    setting: Setting, pair: _Pair, builder: RegionBuilder
) -> list[tuple[float, float]] | None:
    """Return the seconds of both plans in one round, or two if the first says no clear word.

    Returns:
        Nothing if either fails, or it would take too long.
    """
    try:
        started = _start(setting, pair, builder)
        if started is None:
            return None
        if sum(started.seconds) > LONG_SECONDS:
            return _run_long(started)
    except InternalError:
        raise
    except Exception as error:  # a step is a backend's own
        logger.info("what was chosen is not timed: %s", error)
        return None
    sampler = Sampler()
    subjects = [TimedRun(each.run, num_threads=setting.num_threads) for each in started.contexts]
    rounds: list[tuple[float, float]] = []
    for seed in range(2):
        timed = time_in_rounds(sampler, subjects, 1, seed=seed)
        if timed.failures:
            return None
        chosen, other = (seconds[0] for seconds in timed.seconds)
        rounds.append((chosen, other))
        if not SLOW * other <= chosen < CLEAR * other:
            break
    return rounds


def _start(setting: Setting, pair: _Pair, builder: RegionBuilder) -> _StartedPlans | None:
    """Run both plans once; the second one only if a run as long as the first's is in time."""
    chosen = _prepare(setting, pair.plans[0], builder)
    if chosen is None:
        return None
    end = time.perf_counter() + MOST_SECONDS
    first = _time_run(chosen)
    if time.perf_counter() + USUAL_BUILD_SECONDS + first > end:
        return None
    other = _prepare(setting, pair.plans[1], builder)
    if other is None or time.perf_counter() + first > end:
        return None
    return _StartedPlans((chosen, other), (first, _time_run(other)), end)


def _run_long(started: _StartedPlans) -> list[tuple[float, float]] | None:
    """Run both once more if there is time; without, the first runs decide if they are clear."""
    chosen, other = started.seconds
    if other > SLOW * chosen:
        return None
    if time.perf_counter() + chosen + other <= started.end:
        first, second = started.contexts
        return [(_time_run(first), _time_run(second))]
    return [started.seconds] if chosen >= CLEAR * other else None


def _prepare(setting: Setting, plan: Decision, builder: RegionBuilder) -> Context | None:
    """Return a plan that is ready to run on made-up inputs; None if it cannot be compiled."""
    draft = make_draft(setting, plan)
    if builder.build(draft) is not None:
        return None
    executable = builder.finish(draft, ())
    feeds = sample_feeds(executable.inputs, legal=legal_inputs(setting.graph))
    context = executable.context()
    context.write_inputs(check_feeds(executable.inputs, feeds))
    return context


def _time_run(context: Context) -> float:
    start = time.perf_counter()
    context.run()
    return time.perf_counter() - start


LIMIT_SECONDS = 10.0
"""Time limit of the process, including its start."""

MOST_PROGRAM_BYTES = 1 << 30
"""Limit of the program's size, since it is written to a file."""


def time_slow_part(executable: PlanExecutable, num_threads: int) -> str:
    """Return the remark on the share of a run that the reference evaluator takes.

    Returns:
        The end of a sentence; nothing where the evaluator has no node, or its time cannot be had.
    """
    regions = executable.placement.regions
    names = " and ".join(dict.fromkeys(region.backend for region in regions if region.is_slow))
    if not names:
        return ""
    if sum(shared_sizes(executable.artifacts)) > MOST_PROGRAM_BYTES:
        logger.info("a run is not timed: the program is large")
        return ""
    with tempfile.TemporaryDirectory(prefix="intarsia-") as folder, Worker() as worker:
        file = Path(folder) / f"program{PACKAGE_SUFFIX}"
        try:
            executable.save(file)
        except PackageError as error:
            logger.info("a run is not timed: %s", error.message)
            return ""
        limits = Limits(LIMIT_SECONDS)
        outcome = worker.call(f"{__name__}:split_seconds", str(file), num_threads, limits=limits)
    if outcome.is_ok:
        slow, whole = outcome.value
        return f"; {names} takes {1e3 * slow:.3g} ms of the {1e3 * whole:.3g} ms of a run"
    if outcome.reason is ReasonCode.TIMEOUT:
        return f"; {names} takes over {LIMIT_SECONDS:.0f} s of a run"
    logger.info("a run is not timed: %s", outcome.message)
    return ""


def split_seconds(file: str, num_threads: int) -> tuple[float, float]:
    """Return how long a run of a package takes on the reference evaluator, and in all.

    Args:
        file: The package.
        num_threads: Threads that the run may use.

    Raises:
        IntarsiaError: It cannot be loaded, or does not run on made-up inputs.
    """
    from intarsia.runtime.loading import load

    executable = load(file, num_threads=num_threads, trust=True)
    profile = executable.profile(executable.sample_feeds(), 1)
    seconds = profile.of_regions(executable.plan)
    regions = executable.placement.regions
    slow = (one for one, region in zip(seconds, regions, strict=True) if region.is_slow)
    return sum(slow), sum(profile.seconds)
