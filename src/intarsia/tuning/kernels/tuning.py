# SPDX-License-Identifier: Apache-2.0
"""Tuning of the kernels that a model has on native code: which there are, and what was found."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

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
from intarsia.tuning.kernels.tuner import KernelMoment, Prepare, tune_kernels

if TYPE_CHECKING:
    from intarsia.native.machine import NativeCpu
    from intarsia.place.setting import Setting
    from intarsia.target import Target


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


def tune_model_kernels(
    setting: Setting,
    *,
    budget: float = math.inf,
    again: bool = False,
    tell: Callable[[KernelMoment], None],
    prepare: Callable[[NativeCpu, int], Prepare] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[KernelResult]:
    """Measure the kernels of a model's native regions that are not known yet.

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
    results: list[KernelResult] = []
    end = clock() + budget
    for target, recorder in _record(setting).items():
        table = find_table(target, setting.num_threads, setting.backends.settings)
        known = {} if again else table.entries()
        jobs = {key: specs for key, specs in recorder.specs.items() if key not in known}
        new: set[str] = set()

        def keep(
            key: str, entry: TunedSchedule, table: ScheduleTable = table, new: set[str] = new
        ) -> None:
            table.add({key: entry})
            new.add(key)

        ready = prepare or (lambda cpu, threads: partial(NativeContest, cpu=cpu, threads=threads))
        try:
            tune_kernels(
                jobs,
                ready(table.cpu, table.threads),
                keep=keep,
                tell=tell,
                budget=end - clock(),
                clock=clock,
            )
        except KeyboardInterrupt:
            end = -math.inf
        entries = table.entries()
        results += [
            KernelResult(key, str(target), recorder.counts[key], entries.get(key), key in new)
            for key in recorder.specs
        ]
    return results


def _record(setting: Setting) -> dict[Target, Recorder]:
    """Return the kernels of the regions that a greedy placement puts on native code, by target.

    Raises:
        SettingError: There are none.
    """
    draft = make_draft(setting, decide_in_order(setting, Policy.GREEDY))
    found: dict[Target, Recorder] = {}
    for assigned in draft.regions:
        region, target = assigned.region, assigned.capability.target
        if not target.target.kind.is_native:
            continue
        options = lowering_options(target.target)
        candidate, _ = setting.pipeline.rewrite(Candidate.plain(region, target))
        recorder = found.setdefault(target.target, Recorder())
        lower_region(
            candidate.region,
            options.unit,
            options.winograd,
            half_weights=options.half_weights,
            accuracy=options.accuracy,
            is_bf16=options.is_bf16,
            requantise=options.requantise,
            chooser=recorder,
            threads=target_threads(target.target, setting.num_threads),
        )
    if not found:
        raise SettingError(
            "no part of the model runs on native code, so there are no kernels to tune",
            hint="give -t llvm",
        )
    return found
