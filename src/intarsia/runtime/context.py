# SPDX-License-Identifier: Apache-2.0
"""The buffers and bound steps of one run at a time, and what has to wait for which queued copy.

A device with a queue does its work later, in order. Between its own steps nothing has to wait; the
host has to, before it looks at or overwrites memory that a queued copy writes, and before it
overwrites memory that one reads. At the end of a run all queues are waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from intarsia.arrays import Array, np_dtype
from intarsia.backends.artifact import fill
from intarsia.backends.device import (
    Buffer,
    Device,
    Executable,
    QueuedDevice,
    Step,
    ValueSlot,
    movable_step,
    never_fails,
    peer_of,
    profiled,
    queue_of,
)
from intarsia.backends.tracing import trace_step
from intarsia.backends.values import KernelCall, TensorSpec
from intarsia.errors import (
    ExecutionError,
    InputError,
    IntarsiaError,
    InternalError,
    LinkError,
    RunCancelledError,
)
from intarsia.graph.arena import aligned_bytes
from intarsia.plan.plan import (
    HOST,
    CopyStep,
    Plan,
    PlanStep,
    PlanTensor,
    RegionStep,
    TensorStorage,
    ends_of,
)
from intarsia.runtime.captures import (
    CapturedSpan,
    CaptureRecord,
    StepSpan,
    capturing_devices,
    find_spans,
)
from intarsia.runtime.device_array import DeviceArray
from intarsia.runtime.memories import RunMemory
from intarsia.runtime.moving import MovableTensor, PlainRun, is_worth_moving, moving_run
from intarsia.runtime.queued import QueuedCopy, plan_waits, queued_side

if TYPE_CHECKING:
    from intarsia.native.agent import LeftTensor
    from intarsia.runtime.control_flow import Runner
    from intarsia.runtime.forks import ForkGuard
    from intarsia.runtime.limited import IsOver

logger = logging.getLogger(__name__)

_ARENA, _SCRATCH = -1, -2
"""Keys of what a context has beside tensors."""


class Context:
    """The buffers and bound steps of one call at a time; not to be shared between threads.

    Args:
        plan: What is run.
        executables: Of its regions.
        devices: Its memories.
        constants: By name, the constants that are outputs of the model.
        given: By position, buffers of the caller.
        is_part: Whether it shares queues with others of one run.
        memory: Where what it needs of the host's memory lies; None allocates it.
        guard: Asked before each run whether it may be in this process; None asks nobody.
        records: What the program's contexts know of its spans; None if it has no other.
    """

    def __init__(  # noqa: PLR0913 - what a program has, and what is of one call
        self,
        plan: Plan,
        executables: Sequence[Executable],
        devices: Sequence[Device],
        constants: Mapping[str, Array],
        given: Mapping[int, Buffer | DeviceArray],
        *,
        is_part: bool = False,
        memory: RunMemory | None = None,
        guard: ForkGuard | None = None,
        records: dict[StepSpan, CaptureRecord] | None = None,
    ) -> None:
        self.plan = plan
        self._guard = guard
        self._records = {} if records is None else records
        self._opened = tuple(devices)
        # Parts of one run share its queues.
        self._devices = tuple(devices) if is_part else tuple(map(own_queue, devices))
        self._kept = (tuple(executables), self._devices)  # a context may outlive its program
        scratch = scratch_sizes(plan, [item.scratch_bytes for item in self._kept[0]])
        self._cuts: dict[int, Array] = {}
        if memory is not None:
            needs = {_ARENA: plan.arena_bytes[HOST], _SCRATCH: scratch[HOST]}
            needs |= {
                i: tensor.spec.nbytes
                for i, tensor in enumerate(plan.tensors)
                if i not in given and _is_own(tensor) and tensor.device == HOST
            }
            with suppress(MemoryError):  # then what is allocated by itself says for what
                self._cuts = memory.cut(needs)
        arenas = self._allocate(plan.arena_bytes, "an arena", _ARENA)
        self._arrays: dict[int, DeviceArray] = {}
        self._buffers: list[Buffer] = [
            self._given_buffer(i, given[i]) if i in given else self._buffer(i, arenas, constants)
            for i in range(len(plan.tensors))
        ]
        self._scratch = self._allocate(scratch, "scratch memory", _SCRATCH)
        self._left = self._leave_there()
        self._steps: list[Step] = []
        for position, step in enumerate(plan.steps):
            try:
                self._steps.append(self._bind(step))
            except Exception as error:
                raise self._failure(position, error) from error
        # Waits are settled here: a run is one loop without a question in it.
        self._sequence, self._positions = self._steps, list(range(len(self._steps)))
        self._queued = tuple(filter(None, map(queue_of, self._devices)))
        if self._queued:
            self._sequence, self._positions = self._with_waits()

    def plain_run(self) -> PlainRun | None:
        """Return what runs on arrays as they usually come; None where the border is not plain.

        A context does not hold it: the two would wait for a collection of garbage, arena and all.
        """
        plain_inputs, plain_outputs = (
            self._plain(self.plan.inputs),
            self._plain(self.plan.outputs),
        )
        if plain_inputs is None or plain_outputs is None:
            return None
        moving = self._moving_run(plain_inputs, plain_outputs)
        if moving is not None:
            return moving
        # All that a call looks at is looked up here: of a small model, a call is mostly that.
        inputs = [(name, plain, plain.dtype, plain.shape) for name, plain in plain_inputs]
        outputs = [(name, plain.copy) for name, plain in plain_outputs]
        count, run = len(inputs), self.step()

        def run_plain(feeds: Mapping[str, Any]) -> dict[str, Any] | None:
            if len(feeds) != count:
                return None
            for name, plain, dtype, shape in inputs:
                array = feeds.get(name)
                if type(array) is not ndarray or array.dtype is not dtype or array.shape != shape:
                    return None
                plain[...] = array
            run()
            try:
                return {name: copy() for name, copy in outputs}
            except MemoryError:
                return self.read_outputs()  # which says for what

        return run_plain

    def _moving_run(
        self, inputs: Sequence[tuple[str, Array]], outputs: Sequence[tuple[str, Array]]
    ) -> PlainRun | None:
        """Return what runs on the caller's arrays where they lie, and leaves results in fresh ones.

        None if the plan is more than one region, whose calls take addresses, on large tensors.

        Args:
            inputs: Names and arrays of this context.
            outputs: Likewise.
        """
        plan = self.plan
        alone = plan.steps[0] if len(plan.steps) == 1 else None
        is_large = any(is_worth_moving(array) for _, array in (*inputs, *outputs))
        if not is_large or not isinstance(alone, RegionStep) or self._queued:
            return None
        border = (*alone.inputs, *alone.outputs)
        if sorted(border) != sorted((*plan.inputs, *plan.outputs)):
            return None
        found = movable_step(self._kept[0][alone.region], *self._bound_to(alone))
        if found is None:
            return None
        places = dict(zip(border, (*found.inputs, *found.outputs), strict=True))
        self._steps = self._sequence = [found.step]
        both = ((plan.inputs, inputs), (plan.outputs, outputs))
        reads, makes = (
            [
                MovableTensor(name, own, places[i])
                for i, (name, own) in zip(some, named, strict=True)
            ]
            for some, named in both
        )
        return moving_run(self.step(), reads, makes)

    def run(self, is_over: IsOver | None = None) -> None:
        """Run every step on the buffers as they are.

        Args:
            is_over: Asked before each step, or span that is captured, whether to leave out the
                rest; None is not asked.

        Raises:
            RunCancelledError: The rest was left out.
            ExecutionError: A backend failed; names the region.
            LinkError: The way to another machine failed; the next run tries anew.
            InputError: An input holds what the model does not allow, as an index that is too large.
        """
        position = 0
        if self._guard is not None:
            self._guard.check()
        try:
            for position, step in enumerate(self._sequence):  # noqa: B007 - read in the handler
                if is_over is not None and is_over():
                    break
                step()
            else:
                return
        except Exception as error:
            self._settle()
            step = self._sequence[position]
            failed = self._positions[position]
            if isinstance(step, CapturedSpan):
                if step.reached is None:
                    raise _launch_failure(step.place, error) from error
                failed += step.reached
            raise self._failure(failed, error) from error
        self._settle()
        raise RunCancelledError("nobody waits for the run any more")

    def step(self) -> Step:
        """Return the shortest function of no arguments that does what `run` does."""
        regions = [step.region for step in self.plan.steps if isinstance(step, RegionStep)]
        executables = self._kept[0]
        # A try block and a loop around one call are a few tenths of a microsecond: much of a run of
        # a small model.
        is_alone = len(self._sequence) == 1 == len(regions)
        if is_alone and never_fails(executables[regions[0]]):
            return self._steps[0]  # there is no failure that `run` would have to explain
        return self.run

    def backend_steps(self) -> list[Step]:
        """Return the calls of the regions alone, to be measured without the plan.

        Each returns when its work is done, also on a device with a queue.
        """
        calls = []
        for step, bound in zip(self.plan.steps, self._steps, strict=True):
            if isinstance(step, RegionStep):
                queued = queue_of(self._devices[self._device_of(step)])
                calls.append(bound if queued is None else _waiting(bound, queued))
        return calls

    def calls(
        self, runner: Runner, *, by_kernel: bool = False, is_traced: bool = False
    ) -> Iterator[tuple[int, KernelCall | None, Step]]:
        """Yield the bound calls in order, to be timed.

        Args:
            runner: Runs the bodies of If, Loop and Scan, which are bound for this anew.
            by_kernel: Whether those of a region are its kernels, where it tells them.
            is_traced: Whether that of a region is a `TracedStep`, where it has one.

        Yields:
            The position of its step in the plan, the kernel if it is one, and the call.
        """
        from intarsia.runtime.control_flow import ControlExecutable  # few programs have any

        for position, (step, bound) in enumerate(zip(self.plan.steps, self._steps, strict=True)):
            if isinstance(step, CopyStep):
                yield position, None, bound
                continue
            executable = self._kept[0][step.region]
            inputs, outputs, scratch = self._bound_to(step)
            kernels = profiled(executable) if by_kernel else None
            if isinstance(executable, ControlExecutable):
                yield position, None, executable.bind_bodies(inputs, outputs, runner)
            elif is_traced:
                traced = trace_step(executable, inputs, outputs, scratch)
                yield position, None, bound if traced is None else traced
            elif kernels is not None:
                for kernel, call in kernels.kernel_steps(inputs, outputs, scratch):
                    yield position, kernel, call
            else:
                yield position, None, bound

    def call(self, position: int, step: Step) -> None:
        """Make a call of a step of the plan, and wait until it is done.

        Raises:
            ExecutionError: A backend failed; names the region.
            InputError: An input holds what the model does not allow, as an index that is too large.
        """
        try:
            step()
            for device in self._queued:
                device.synchronize()
        except Exception as error:
            self._settle()
            raise self._failure(position, error) from error

    def parts(self) -> Iterator[Context]:
        """Yield what runs one after another, each to be run before the next one is asked for."""
        yield self

    def bound_steps(self) -> Iterator[tuple[PlanStep, Step]]:
        """Yield each step of the plan and its call, in order."""
        yield from zip(self.plan.steps, self._steps, strict=True)

    def read(self, position: int) -> Any:
        """Return a copy of a tensor as it is now, in the host's memory.

        Args:
            position: In `Plan.tensors`.
        """
        tensor, buffer = self.plan.tensors[position], self._buffers[position]
        left = self._left.get(position)
        if left is not None and left.copy is None:
            return np.frombuffer(left.read(), buffer.dtype).reshape(buffer.shape).copy()
        if isinstance(buffer, ValueSlot):
            return _fresh(buffer.value)
        if tensor.device == HOST:
            return _fresh(buffer)
        array = np.empty(tensor.shape or (), np_dtype(tensor.dtype))
        self._devices[tensor.device].read(buffer, array)
        return array

    def inner_steps(self) -> list[Step]:
        """Return the bound calls but for copies of the model's inputs and into its outputs."""
        tensors = self.plan.tensors
        return [
            bound
            for step, bound in zip(self.plan.steps, self._steps, strict=True)
            if isinstance(step, RegionStep)
            or (
                tensors[step.source].storage is not TensorStorage.INPUT
                and tensors[step.destination].storage is not TensorStorage.OUTPUT
            )
        ]

    def border(self) -> tuple[list[Buffer], list[Buffer]]:
        """Return the buffers of the model's inputs and of its outputs, in its order."""
        inputs, outputs = self.plan.inputs, self.plan.outputs
        return [self._buffers[i] for i in inputs], [self._buffers[i] for i in outputs]

    def _plain(self, positions: Sequence[int]) -> list[tuple[str, Array]] | None:
        """Return the names and the arrays of tensors; None if one is something else."""
        buffers = [(self.plan.tensors[i].name, self._buffers[i]) for i in positions]
        is_plain = all(isinstance(buffer, np.ndarray) for _, buffer in buffers)
        return buffers if is_plain and self._arrays.keys().isdisjoint(positions) else None

    def write_inputs(self, arrays: Sequence[Any]) -> None:
        """Copy arrays into the model's inputs, in its order."""
        for position, array in zip(self.plan.inputs, arrays, strict=True):
            buffer, held = self._buffers[position], self._arrays.get(position)
            if held is not None:
                if held is not array:  # else it is read in place
                    self._devices[self.plan.tensors[position].device].write(array, buffer)
            elif isinstance(buffer, ValueSlot):
                buffer.value = array
            elif buffer is not array:
                np.copyto(buffer, array)

    def read_outputs(
        self, given: Mapping[str, Array] | None = None, names: Container[str] | None = None
    ) -> dict[str, Any]:
        """Return arrays with the model's outputs, by name.

        Args:
            given: Arrays to fill, by name; the others are fresh.
            names: The outputs that are wanted; None means all.
        """
        outputs = {}
        for position in self.plan.outputs:
            name = self.plan.tensors[position].name
            if names is not None and name not in names:
                continue
            buffer, held = self._buffers[position], self._arrays.get(position)
            value = buffer.value if isinstance(buffer, ValueSlot) else buffer
            if held is not None:
                value = held.numpy()
            if given and name in given:
                if given[name] is not value:  # else the plan wrote it in place
                    np.copyto(given[name], value)
                outputs[name] = given[name]
            else:
                with memory_for(f"a copy of {name!r}", "the host"):
                    outputs[name] = _fresh(value)
        return outputs

    def device_arrays(self) -> dict[str, DeviceArray]:
        """Return the outputs that are in a device's memory, by name."""
        named = ((self.plan.tensors[i].name, self._arrays.get(i)) for i in self.plan.outputs)
        return {name: array for name, array in named if array is not None}

    def _given_buffer(self, position: int, array: Buffer | DeviceArray) -> Buffer:
        """Return the buffer that code reads or writes in place of an array of the caller."""
        if not isinstance(array, DeviceArray):
            return array
        self._arrays[position] = array
        return array.buffer(self._devices[self.plan.tensors[position].device])

    def _buffer(
        self,
        position: int,
        arenas: Sequence[Any],
        constants: Mapping[str, Array],
    ) -> Buffer:
        tensor = self.plan.tensors[position]
        if tensor.storage is TensorStorage.CONSTANT:
            return constants[tensor.name]
        if tensor.storage is TensorStorage.SLOT or tensor.shape is None or tensor.dtype == "string":
            return ValueSlot()
        if tensor.storage is TensorStorage.ARENA:
            device, block = self._devices[tensor.device], arenas[tensor.device]
            if block is None:  # nothing but empty tensors
                block = device.allocate(0)
            return device.tensor(block, tensor.offset, tensor.spec)
        if tensor.device != HOST:
            opened, text = self._opened[tensor.device], self.plan.devices[tensor.device]
            return self._given_buffer(position, DeviceArray(opened, text, tensor.spec))
        block = self._cuts.get(position)
        if block is None:
            with memory_for(f"{tensor.name!r}, of {tensor.spec.nbytes} bytes,", "the host"):
                block = aligned_bytes(tensor.spec.nbytes)
        return block.view(np_dtype(tensor.dtype)).reshape(tensor.shape)

    def _bind(self, step: RegionStep | CopyStep) -> Step:
        plan = self.plan
        if isinstance(step, RegionStep):
            return self._kept[0][step.region].bind(*self._bound_to(step))
        source, destination = plan.tensors[step.source], plan.tensors[step.destination]
        from_buffer, to_buffer = self._buffers[step.source], self._buffers[step.destination]
        if isinstance(to_buffer, ValueSlot):
            return partial(_put, from_buffer, to_buffer)
        if isinstance(from_buffer, ValueSlot):
            return partial(_take, from_buffer, to_buffer, destination.spec)
        side = queued_side(plan, step, self._queued_positions())
        queued = None if side is None else queue_of(self._devices[side])
        if queued is not None:
            return QueuedCopy(queued, from_buffer, to_buffer, to_device=source.device == HOST)
        if source.device == HOST:
            return partial(self._devices[destination.device].write, from_buffer, to_buffer)
        read = self._devices[source.device].read
        if destination.device == HOST:
            return partial(read, from_buffer, to_buffer)
        peer = peer_of(self._devices[destination.device], self._devices[source.device])
        if peer is not None:
            return partial(peer.queue_copy, from_buffer, to_buffer)
        # Neither reads the other's memory, so the value goes through the host's.
        staging = np.empty(source.shape or (), np_dtype(source.dtype))
        device = self._devices[destination.device]
        queued = queue_of(device)
        send: Step = partial(device.write, staging, to_buffer)
        if queued is not None:
            send = QueuedCopy(queued, staging, to_buffer, to_device=True)

        def relay() -> None:
            read(from_buffer, staging)
            send()

        return relay

    def _bound_to(self, step: RegionStep) -> tuple[list[Buffer], list[Buffer], Any]:
        """Return a region's inputs, outputs and scratch memory."""
        scratch = self._scratch[self._device_of(step)]
        needs_it = self._kept[0][step.region].scratch_bytes
        inputs, outputs = (
            [self._bound_at(step, i) for i in some] for some in (step.inputs, step.outputs)
        )
        return inputs, outputs, scratch if needs_it else None

    def _leave_there(self) -> dict[int, LeftTensor]:
        """Return what stays on another machine, by position: what its regions hand to its regions.

        It comes back only if somebody here reads it too.
        """
        if not any(getattr(one, "takes_left", False) for one in self._kept[0]):
            return {}
        from intarsia.backends.remote import machine_memory  # most programs run here

        plan, memories = self.plan, list(map(machine_memory, self._kept[0]))
        writers: dict[int, PlanStep] = {}
        readers: dict[int, list[PlanStep]] = {}
        for step in plan.steps:
            read, written = ends_of(step)
            writers |= dict.fromkeys(written, step)
            for i in read:
                readers.setdefault(i, []).append(step)
        left: dict[int, LeftTensor] = {}
        for i, writer in writers.items():
            tensor = plan.tensors[i]
            memory = memories[writer.region] if isinstance(writer, RegionStep) else None
            if (
                memory is None
                or not isinstance(self._buffers[i], ndarray)
                or not tensor.spec.nbytes
            ):
                continue
            there = [
                isinstance(step, RegionStep) and memories[step.region] is memory
                for step in readers.get(i, ())
            ]
            if any(there):
                is_wanted = not all(there) or tensor.storage is not TensorStorage.ARENA
                copy = self._buffers[i] if is_wanted else None
                left[i] = memory.tensor(tensor.spec.nbytes, copy)
        return left

    def _bound_at(self, step: RegionStep, position: int) -> Buffer:
        """Return what a region reads or writes for a tensor."""
        left = self._left.get(position)
        if left is None:
            return self._buffers[position]
        from intarsia.backends.remote import machine_memory

        is_there = machine_memory(self._kept[0][step.region]) is left.memory
        return left if is_there else self._buffers[position]

    def _device_of(self, step: RegionStep) -> int:
        return self.plan.devices.index(self.plan.placement.regions[step.region].device)

    def _queued_positions(self) -> list[int]:
        return [i for i, device in enumerate(self._devices) if queue_of(device) is not None]

    def _with_waits(self) -> tuple[list[Step], list[int]]:
        """Return the steps with all waiting, and for each the step of the plan that it is of."""
        sequence: list[Step] = []
        positions: list[int] = []
        waits = plan_waits(self.plan, self._queued_positions())
        spans = {one.first: one for one in self._spans(waits)}
        position = 0
        while position < len(self._steps):
            for copy in waits[position]:
                pending = self._steps[copy]
                assert isinstance(pending, QueuedCopy)
                sequence.append(pending.wait)
                positions.append(copy)
            span = spans.get(position)
            sequence.append(self._steps[position] if span is None else self._captured(span))
            positions.append(position)
            position = position + 1 if span is None else span.last
        for device in self._queued:
            sequence.append(device.synchronize)
            positions.append(len(self._steps))
        return sequence, positions

    def _spans(self, waits: Sequence[Sequence[int]]) -> Sequence[StepSpan]:
        """Return what is captured."""
        return find_spans(self.plan, waits, capturing_devices(self._devices))

    def _captured(self, span: StepSpan) -> CapturedSpan:
        device = capturing_devices(self._devices)[span.device]
        record = self._records.setdefault(span, CaptureRecord())
        steps = self._steps[span.first : span.last]
        return CapturedSpan(device, steps, record, span.title(self.plan))

    def _settle(self) -> None:
        """After a failure, wait for what is queued: it may still write to host memory."""
        for device in self._queued:
            try:
                device.synchronize()
            except Exception as error:  # the first failure is the one that is told
                logger.info("a device failed again: %s", error)

    def _allocate(self, sizes: Sequence[int], what: str, key: int) -> list[Any]:
        """Return a block for each device that needs one; all regions on it have it in turn.

        Raises:
            ExecutionError: There is not so much memory.
        """
        blocks: list[Any] = [None] * len(sizes)
        for position, (device, nbytes) in enumerate(zip(self._devices, sizes, strict=True)):
            if position == HOST and key in self._cuts:
                blocks[position] = self._cuts[key]
            elif nbytes:
                text = self.plan.devices[position]
                with memory_for(f"{what} of {nbytes} bytes", text):
                    blocks[position] = device.allocate(nbytes)
        return blocks

    def _failure(self, position: int, error: Exception) -> IntarsiaError:
        if isinstance(error, InputError):
            return error  # the caller's fault, whoever found it
        text = error.message if isinstance(error, IntarsiaError) else str(error).strip()
        text = text or type(error).__name__
        if position == len(self.plan.steps):
            return ExecutionError(
                f"a device failed at queued work: {text}",
                backend=getattr(error, "backend", None),
                hint=getattr(error, "hint", None),
            )
        step = self.plan.steps[position]
        if isinstance(step, CopyStep):
            name = self.plan.tensors[step.source].name
            if isinstance(error, IntarsiaError):
                return ExecutionError(
                    f"copying {name!r} to another device failed: {text}", hint=error.hint
                )
            return InternalError(f"copying {name!r} to another device failed: {text}")
        region = self.plan.placement.regions[step.region]
        if isinstance(error, LinkError):  # says nothing about the region
            error.target = region.target
            return error
        return ExecutionError(
            f"region {step.region} ({region.operators}) failed on {region.target}: {text}",
            backend=region.backend,
            node=region.nodes[0].name,
            target=region.target,
            hint=f"exclude the operator at fault from {region.target}, or pin its nodes elsewhere",
        )


def _launch_failure(place: str, error: Exception) -> IntarsiaError:
    """Return the error of steps that one call started: which of them failed nobody knows.

    Args:
        place: The steps and their device, in words.
        error: Of the call.
    """
    if isinstance(error, InputError):
        return error
    text = error.message if isinstance(error, IntarsiaError) else str(error).strip()
    return ExecutionError(
        f"{place} failed, which one call starts: {text or type(error).__name__}",
        backend=getattr(error, "backend", None),
        hint=getattr(error, "hint", None),
    )


def _put(source: Array, slot: ValueSlot) -> None:
    """Put a copy of an array into a slot: its memory is used again."""
    slot.value = source.copy()


def _take(slot: ValueSlot, destination: Array, spec: TensorSpec) -> None:
    """Copy what is in a slot to where code reads it."""
    fill(destination, slot.value, spec, "")


def _waiting(step: Step, device: QueuedDevice) -> Step:
    def run() -> None:
        step()
        device.synchronize()

    return run


def scratch_sizes(plan: Plan, of_regions: Sequence[int]) -> list[int]:
    """Return the bytes of scratch memory on each device, given those of each region."""
    sizes = [0] * len(plan.devices)
    for step in plan.steps:
        if isinstance(step, RegionStep):
            device = plan.devices.index(plan.placement.regions[step.region].device)
            sizes[device] = max(sizes[device], of_regions[step.region])
    return sizes


def _is_own(tensor: PlanTensor) -> bool:
    """Tell whether a tensor is in memory of its own: neither a constant, in a slot nor an arena."""
    return (
        tensor.storage in (TensorStorage.INPUT, TensorStorage.OUTPUT)
        and tensor.shape is not None
        and tensor.dtype != "string"
    )


@contextmanager
def memory_for(what: str, place: str) -> Iterator[None]:
    """Say what there was no memory for.

    Raises:
        ExecutionError: There was none.
    """
    try:
        yield
    except MemoryError as error:
        raise ExecutionError(
            f"no memory for {what} on {place}",
            hint="place fewer nodes there, or give the model smaller inputs",
        ) from error


def _fresh(value: Any) -> Any:
    """Return a copy of an array, or of the arrays of a sequence."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list | tuple):
        return [_fresh(item) for item in value]
    return value if value is None else np.array(value)


def own_queue(device: Device) -> Device:
    """Return a device with a queue of its own, if it has queues."""
    queued = queue_of(device)
    return device if queued is None else queued.open_queue()
