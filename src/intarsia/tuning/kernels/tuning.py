# SPDX-License-Identifier: Apache-2.0
"""Tuning of the kernels that a model has on native code: which there are, and what was found."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from msgspec import structs

from intarsia.backends.values import Candidate
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.lower.schedules import Recorder
from intarsia.errors import SettingError
from intarsia.native.native_target import lowering_options, target_threads
from intarsia.native.schedule_table import ScheduleTable, TunedSchedule, find_table
from intarsia.place.assign import Policy
from intarsia.place.decide import decide_in_order
from intarsia.place.schedule import make_draft
from intarsia.tuning.kernels.contest import NativeContest
from intarsia.tuning.kernels.layers import AS_MEASURED, BOTH_WAYS, RegionContest, find_layers
from intarsia.tuning.kernels.tuner import (
    Contest,
    Job,
    KernelMoment,
    Prepare,
    compare,
    tune_kernel,
    tune_kernels,
    tune_layer,
)

if TYPE_CHECKING:
    from intarsia.graph.region import Region
    from intarsia.native.machine import NativeCpu
    from intarsia.place.setting import Capability, Setting
    from intarsia.target import Target

LayerPrepare: TypeAlias = "Callable[[Region, Capability, Sequence[Mapping[str, str]]], Contest]"
"""Makes ways of one region ready to be run."""


@dataclass(frozen=True, slots=True)
class KernelResult:
    """What is known of the kernels of one shape.

    Attributes:
        kernel: Its shape and the algorithms there are, in words.
        target: Where it runs.
        calls: How often a run calls it.
        entry: What was found; None if it was not measured yet.
        is_new: Whether it was measured now.
    """

    kernel: str
    target: str
    calls: int
    entry: TunedSchedule | None
    is_new: bool

    @property
    def saved_microseconds(self) -> float:
        """What a run gains by the tuned schedule, as far as kernels alone tell."""
        if self.entry is None or self.entry.choice is None:
            return 0.0
        return self.calls * self.entry.microseconds * (1 - 1 / self.entry.ratio)


@dataclass(slots=True)
class _Session:
    """One call of the tuner, over all targets.

    Attributes:
        setting: The model and the machine.
        end: When no more is begun.
        again: Whether what is known is measured too.
        tell: Told how far it is.
        clock: What seconds are counted by.
    """

    setting: Setting
    end: float
    again: bool
    tell: Callable[[KernelMoment], None]
    clock: Callable[[], float]

    def table(self, target: Target) -> ScheduleTable:
        """Return where results for a target are kept."""
        return find_table(target, self.setting.num_threads, self.setting.backends.settings)

    def measure(
        self, target: Target, jobs: Mapping[str, Job], counts: Mapping[str, int]
    ) -> list[KernelResult]:
        """Measure what is not known of a target, and return what is known then.

        Args:
            target: Where it runs.
            jobs: By key what finds the fastest.
            counts: How often a run does it.
        """
        table = self.table(target)
        known = {} if self.again else table.entries()
        new: set[str] = set()

        def keep(key: str, entry: TunedSchedule) -> None:
            table.add({key: entry})
            new.add(key)

        try:
            tune_kernels(
                {key: job for key, job in jobs.items() if key not in known},
                keep=keep,
                tell=self.tell,
                budget=self.end - self.clock(),
                clock=self.clock,
            )
        except KeyboardInterrupt:
            self.end = -math.inf
        entries = table.entries()
        return [
            KernelResult(key, str(target), counts[key], entries.get(key), key in new)
            for key in jobs
        ]


def tune_model_kernels(
    setting: Setting,
    *,
    budget: float = math.inf,
    again: bool = False,
    tell: Callable[[KernelMoment], None],
    prepare: Callable[[NativeCpu, int], Prepare] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[KernelResult]:
    """Measure the layers and kernels of a model's native regions that are not known yet.

    An interruption ends it; what was found until then is kept, and the next run goes on.

    Args:
        setting: The model and the machine.
        budget: Seconds after which no more kernels are begun, those of all targets together.
        again: Whether to measure those that are known too.
        tell: Told how far it is.
        prepare: From a CPU and threads to what runs candidates; None runs them natively.
        clock: What seconds are counted by.

    Returns:
        A result for each shape, in the order in which a run first calls it.

    Raises:
        SettingError: No part of the model is on native code for this machine.
        BackendError: LLVM refused a kernel.
    """
    session = _Session(setting, clock() + budget, again, tell, clock)
    results = _tune_layers(session)
    for target, recorder in _record(session).items():
        table = session.table(target)
        ready = prepare or (lambda cpu, threads: partial(NativeContest, cpu=cpu, threads=threads))
        one = ready(table.cpu, table.threads)
        jobs = {key: partial(tune_kernel, specs, one) for key, specs in recorder.specs.items()}
        results += session.measure(target, jobs, recorder.counts)
    return results


def tune_model_layers(
    setting: Setting,
    *,
    budget: float = math.inf,
    again: bool = False,
    tell: Callable[[KernelMoment], None],
    prepare: LayerPrepare = RegionContest,
    clock: Callable[[], float] = time.monotonic,
) -> list[KernelResult]:
    """Measure which layers between Q and DQ nodes are faster in float32 on native code.

    Where a target takes the whole model, it is run with what was found and without: if it is no
    faster with it, its layers stay in integers.

    Args:
        setting: The model and the machine.
        budget: Seconds after which no more layers are begun, those of all targets together.
        again: Whether to measure those that are known too.
        tell: Told how far it is.
        prepare: Makes the ways of a region ready.
        clock: What seconds are counted by.

    Returns:
        A result for each shape of a layer; none if the model has no such layers.

    Raises:
        BackendError: A layer cannot be compiled.
    """
    return _tune_layers(_Session(setting, clock() + budget, again, tell, clock), prepare)


def _tune_layers(session: _Session, prepare: LayerPrepare = RegionContest) -> list[KernelResult]:
    results: list[KernelResult] = []
    graph = session.setting.graph
    for capability in session.setting.capabilities:
        if not capability.target.target.kind.is_native:
            continue
        target = capability.target.target
        recorder = find_layers(capability, graph, session.table(target).schedules())
        jobs = {
            key: partial(tune_layer, partial(prepare, part, capability, BOTH_WAYS))
            for key, part in recorder.layers.items()
        }
        found = session.measure(target, jobs, recorder.counts)
        if any(one.is_new for one in found) and not capability.refusals:
            whole = partial(prepare, graph.whole, capability, AS_MEASURED)
            found = _confirm(session, target, found, whole)
        results += found
    return results


def _confirm(
    session: _Session,
    target: Target,
    found: list[KernelResult],
    prepare: Callable[[], Contest],
) -> list[KernelResult]:
    """Return what holds in the whole model: all stay in integers if together they are no faster.

    Args:
        session: With the time that is left.
        target: Of the layers.
        found: What is known of each by itself.
        prepare: Makes the whole model ready in integers, and as was found.
    """
    chosen = {one.kernel: one.entry for one in found if one.entry and one.entry.choice}
    if not chosen or session.clock() >= session.end:
        return found
    if compare(prepare, Random(" ".join(chosen))).value > 1.0:
        return found
    dropped = {key: structs.replace(entry, choice=None) for key, entry in chosen.items()}
    session.table(target).add(dropped)
    return [replace(one, entry=dropped.get(one.kernel, one.entry)) for one in found]


def _record(session: _Session) -> dict[Target, Recorder]:
    """Return the kernels of the regions that a greedy placement puts on native code, by target.

    Raises:
        SettingError: There are none.
    """
    setting = session.setting
    draft = make_draft(setting, decide_in_order(setting, Policy.GREEDY))
    found: dict[Target, Recorder] = {}
    for assigned in draft.regions:
        region, target = assigned.region, assigned.capability.target
        if not target.target.kind.is_native:
            continue
        options = lowering_options(target.target, setting.backends.settings.cache_folder())
        candidate, _ = setting.pipeline.rewrite(Candidate.plain(region, target))
        known = session.table(target.target).schedules()
        recorder = found.setdefault(target.target, Recorder(known))
        lower_region(
            candidate.region,
            options,
            chooser=recorder,
            threads=target_threads(target.target, setting.num_threads),
        )
    if not found:
        raise SettingError(
            "no part of the model runs on native code, so there are no kernels to tune",
            hint="give -t llvm",
        )
    return found
