# SPDX-License-Identifier: Apache-2.0
"""Running a plan in stages, where the data decides sizes that code is given before it runs.

A stage ends where the next step needs a size that a step of it finds. What follows is then bound at
these sizes, with an arena of its own, and remembered: at sizes that came before, nothing is bound.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.backends.device import Device, Executable, Resizable, Step, ValueSlot
from intarsia.plan.plan import (
    LateSize,
    Plan,
    PlanTensor,
    RegionStep,
    TensorStorage,
    ends_of,
    needed_sizes,
)
from intarsia.runtime.context import Context

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.backends.device import Buffer
    from intarsia.backends.values import KernelCall
    from intarsia.runtime.control_flow import Runner
    from intarsia.runtime.device_array import DeviceArray
    from intarsia.runtime.forks import ForkGuard
    from intarsia.runtime.limited import IsOver

_MOST_BOUND = 16
"""Sizes for which a stage stays bound; those that came least recently go."""


@dataclass(frozen=True, slots=True)
class PlanStage:
    """Some steps of a plan that run one after another at sizes that are known before.

    Attributes:
        first: Position of its first step.
        plan: These steps; what other stages write or read too has memory of its own.
        found: The sizes that are known when it begins, and were not when the stage before it began.
        shared: Positions of tensors of known sizes that several stages use.
        handed: Those of sizes that the data decides, likewise.
        sized: Regions whose code is given sizes.
    """

    first: int
    plan: Plan
    found: tuple[LateSize, ...]
    shared: frozenset[int]
    handed: frozenset[int]
    sized: frozenset[int]


def split_stages(plan: Plan) -> tuple[PlanStage, ...]:
    """Return the stages of a plan; one if its sizes are known before it runs."""
    written = dict.fromkeys(plan.inputs, -1)
    for number, step in enumerate(plan.steps):
        written |= dict.fromkeys(ends_of(step)[1], number)
    starts, known = [0], frozenset[str]()
    found: list[tuple[LateSize, ...]] = [()]
    for number, step in enumerate(plan.steps):
        if not needed_sizes(plan, step) <= known:
            new = [one for one in plan.late if one.name not in known]
            found.append(tuple(one for one in new if written[one.tensor] < number))
            known |= {one.name for one in found[-1]}
            starts.append(number)
    ranges = list(zip(starts, (*starts[1:], len(plan.steps)), strict=True))
    uses = [
        {i for step in plan.steps[first:last] for side in ends_of(step) for i in side}
        for first, last in ranges
    ]
    several = {i for i in range(len(plan.tensors)) if sum(i in some for some in uses) > 1}
    several = {i for i in several if plan.tensors[i].storage is TensorStorage.ARENA}
    handed = frozenset(i for i in several if plan.tensors[i].shape is None)
    return tuple(
        PlanStage(
            first,
            _part(plan, first, last, used, several),
            some,
            frozenset(several) - handed,
            handed,
            frozenset(
                step.region
                for step in plan.steps[first:last]
                if isinstance(step, RegionStep) and step.sizes
            ),
        )
        for (first, last), used, some in zip(ranges, uses, found, strict=True)
    )


def _part(plan: Plan, first: int, last: int, used: set[int], several: set[int]) -> Plan:
    def in_part(position: int, tensor: PlanTensor) -> PlanTensor:
        if position in several:
            return replace(tensor, storage=TensorStorage.OUTPUT)
        if position not in used and tensor.storage is TensorStorage.ARENA:
            return replace(tensor, storage=TensorStorage.SLOT, shape=None)
        return tensor

    tensors = [in_part(position, tensor) for position, tensor in enumerate(plan.tensors)]
    extents = {i: one for i, one in plan.extents.items() if i in used}
    part = replace(plan, tensors=tuple(tensors), steps=plan.steps[first:last], extents=extents)
    return part.at({})


@dataclass(slots=True)
class _BoundStage:
    """A stage bound at some sizes, and what follows it at others."""

    context: Context
    following: OrderedDict[tuple[int, ...], _BoundStage] = field(default_factory=OrderedDict)


class StagedContext(Context):
    """The buffers and bound steps of one call at a time of a plan of several stages.

    Args:
        plan: What is run.
        stages: It, split.
        executables: Of its regions.
        devices: Its memories.
        constants: By name, the constants that are outputs of the model.
        given: By position, buffers of the caller.
        guard: As of `Context`.
    """

    def __init__(
        self,
        plan: Plan,
        stages: Sequence[PlanStage],
        executables: Sequence[Executable],
        devices: Sequence[Device],
        constants: Mapping[str, Array],
        given: Mapping[int, Array | DeviceArray],
        guard: ForkGuard | None = None,
    ) -> None:
        shared = {i for stage in stages for i in stage.shared}
        # It has no steps of its own, and the buffers that no stage has alone.
        super().__init__(
            _part(plan, 0, 0, set(), shared), executables, devices, constants, given, guard=guard
        )
        self.plan = plan
        self._stages = stages
        self._constants = constants
        self._first = _BoundStage(self._bind_stage(stages[0], plan.sizes, {}))
        self._last: list[Context] = []

    def parts(self) -> Iterator[Context]:
        """Yield the context of each stage, to be run before the next one is asked for."""
        yield self._first.context
        last, following = [self._first.context], self._first.following
        sizes = dict(self.plan.sizes)
        handed: dict[int, Buffer] = {}
        for stage in self._stages[1:]:
            key = tuple(_read_size(self._buffers[one.tensor], one) for one in stage.found)
            sizes |= {one.name: size for one, size in zip(stage.found, key, strict=True)}
            bound = following.get(key)
            if bound is None:
                bound = following[key] = _BoundStage(self._bind_stage(stage, sizes, handed))
                if len(following) > _MOST_BOUND:
                    following.popitem(last=False)
            following.move_to_end(key)
            handed |= {
                i: bound.context._buffers[i]  # noqa: SLF001 - of our own class
                for i in stage.handed
                if not isinstance(bound.context._buffers[i], ValueSlot)  # noqa: SLF001
            }
            last.append(bound.context)
            yield bound.context
            following = bound.following
        self._last = last

    def _bind_stage(
        self, stage: PlanStage, sizes: Mapping[str, int], handed: Mapping[int, Buffer]
    ) -> Context:
        plan = stage.plan.at(sizes)
        own = [
            executable.at(sizes)
            if number in stage.sized and isinstance(executable, Resizable)
            else executable
            for number, executable in enumerate(self._kept[0])
        ]
        given = {
            i: self._buffers[i]
            for i, tensor in enumerate(plan.tensors)
            if i in stage.shared
            or (tensor.storage is not TensorStorage.ARENA and i not in stage.handed)
        }
        return Context(plan, own, self._devices, self._constants, {**given, **handed}, is_part=True)

    def run(self, is_over: IsOver | None = None) -> None:
        """Run every step on the buffers as they are.

        Args:
            is_over: As of `Context.run`.

        Raises:
            RunCancelledError: The rest was left out.
            ExecutionError: A backend failed; names the region.
            InputError: An input holds what the model does not allow, as an index that is too large.
        """
        if self._guard is not None:
            self._guard.check()
        for context in self.parts():
            context.run(is_over)

    def step(self) -> Step:
        """Return the shortest function of no arguments that does what `run` does."""
        return self.run

    def _bound_parts(self) -> list[Context]:
        """Return the contexts of the stages as the last run had them."""
        if not self._last:
            self.run()
        return self._last

    def backend_steps(self) -> list[Step]:
        """Return the calls of the regions alone, at the sizes of the last run."""
        return [step for part in self._bound_parts() for step in part.backend_steps()]

    def inner_steps(self) -> list[Step]:
        """Return the bound calls but for copies at the border, at the sizes of the last run."""
        return [step for part in self._bound_parts() for step in part.inner_steps()]

    def calls(
        self, runner: Runner, *, by_kernel: bool = False, is_traced: bool = False
    ) -> Iterator[tuple[int, KernelCall | None, Step]]:
        """Yield the bound calls in order, at the sizes of the last run; before any, all as one.

        Args:
            runner: As of `Context.calls`, and so is what it yields.
            by_kernel: Likewise.
            is_traced: Likewise.
        """
        if not self._last:
            yield 0, None, self.run
        for stage, part in zip(self._stages, self._last, strict=False):
            calls = part.calls(runner, by_kernel=by_kernel, is_traced=is_traced)
            for position, kernel, step in calls:
                yield stage.first + position, kernel, step

    def call(self, position: int, step: Step) -> None:
        """Make a call of a step of the plan, and wait until it is done.

        Raises:
            ExecutionError: A backend failed; names the region.
            InputError: An input holds what the model does not allow, as an index that is too large.
        """
        if not self._last:
            step()
            return
        number = bisect_right([stage.first for stage in self._stages], position) - 1
        self._last[number].call(position - self._stages[number].first, step)


def _read_size(buffer: Buffer, size: LateSize) -> int:
    value: Any = buffer.value if isinstance(buffer, ValueSlot) else buffer
    return int(np.shape(value)[size.axis])
