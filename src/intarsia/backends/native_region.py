# SPDX-License-Identifier: Apache-2.0
"""A region as a program of kernels, whatever made the kernels and wherever they run.

What is compiled is a `NativePayload`; what is loaded, a `NativeRegion`: of machine code here (see
`llvm`), or of a program on another machine, `RemoteNative`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self, TypeAlias

import msgspec
import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.artifact import damaged
from intarsia.backends.device import Buffer, Step, ValueSlot
from intarsia.backends.native import (
    CallRecord,
    CheckRecord,
    FoundRecord,
    FreeRecord,
    argument_counts,
    call_records,
    check_records,
    found_records,
    pack_text,
    raise_fault,
    read_payload,
    storage_records,
)
from intarsia.backends.native_calls import SizedCalls
from intarsia.backends.native_free import FreeCalls, free_record
from intarsia.codegen.storage import StorageKind
from intarsia.decoding import decode_json
from intarsia.graph.arena import aligned_bytes
from intarsia.native.machine import NativeCpu

if TYPE_CHECKING:
    from intarsia.backends.native_remote import RemoteProgram
    from intarsia.backends.values import Artifact
    from intarsia.codegen.lower.program import Program
    from intarsia.codegen.unit import CpuModel
    from intarsia.settings import Settings


class NativePayload(msgspec.Struct, frozen=True):
    """The content of an artifact, except its constants."""

    triple: str
    cpu: str
    features: list[str]
    kernels: list[tuple[str, bytes]]
    storages: list[tuple[str, int, int]]
    calls: list[CallRecord]
    scratch_bytes: int
    works: list[int]
    """For each kernel, the work that decides whether several threads pay off."""
    counts: list[int]
    """For each kernel, the number of arguments that it reads."""
    num_cores: int
    """Most threads; 0 for no limit."""
    checks: list[CheckRecord] = []
    """The checks of indices, in the order of their calls."""
    free: FreeRecord | None = None
    """What depends on sizes that are known when it runs; None if nothing does."""
    found: list[FoundRecord] = []
    """The outputs whose sizes are found, in the order of their calls."""
    runner: str = ""
    """The way to the machine; empty means here."""
    options: list[str] = []
    """Of the compiler, where kernels are C."""
    has_tiles: bool = False
    """Whether kernels use tiles, which a process has to ask for (`native.tiles`)."""

    @classmethod
    def of(
        cls, program: Program, cpu: NativeCpu, texts: Iterable[str], unit: CpuModel, num_cores: int
    ) -> Self:
        """Return that of a program, without a runner.

        Args:
            program: What a region became.
            cpu: What it is compiled for.
            texts: Of its kernels.
            unit: What they were shaped for.
            num_cores: Most threads; 0 for no limit.
        """
        from intarsia.native.work import count_work  # running a package counts nothing

        names = [kernel.name for kernel in program.kernels]
        return cls(
            cpu.triple,
            cpu.name,
            [feature for feature in cpu.features.split(",") if feature],
            list(zip(names, map(pack_text, texts), strict=True)),
            storage_records(program),
            call_records(program),
            program.scratch_bytes,
            [count_work(kernel, unit) for kernel in program.kernels],
            argument_counts(program),
            num_cores,
            check_records(program),
            free_record(program),
            found_records(program),
            has_tiles=any(kernel.tiles for kernel in program.kernels),
        )

    def native_cpu(self) -> NativeCpu:
        """Return what its kernels are compiled for."""
        return NativeCpu(self.triple, self.cpu, ",".join(self.features))


@dataclass(frozen=True, slots=True)
class FoundSlot:
    """An output whose size is found when it runs.

    Attributes:
        slot: Where it is handed over.
        room: Memory for as many entries as there may be.
        count: Where its size is left.
        shape: Its extents; that of `axis` does not count.
        axis: Which of them is found.
    """

    slot: ValueSlot
    room: Array
    count: Array
    shape: tuple[int, ...]
    axis: int

    def fill(self) -> None:
        """Put what is there into the slot; the next run writes over it."""
        size = int(self.count[0])
        shape = (*self.shape[: self.axis], size, *self.shape[self.axis + 1 :])
        self.slot.value = self.room[: math.prod(shape)].reshape(shape)


@dataclass(frozen=True, slots=True)
class Found:
    """Memory for outputs, with what is put into slots after a run.

    Attributes:
        outputs: A buffer for each.
        counts: The sizes that are found.
        slots: The outputs that have one of these.
    """

    outputs: Sequence[Buffer]
    counts: Array
    slots: Sequence[FoundSlot]


_Bind: TypeAlias = Callable[[Sequence[Buffer], Found, Buffer | None, Array], Step]
"""Returns the call that runs kernels: of inputs, outputs, scratch memory and memory for faults."""


class NativeRegion(ABC):
    """A program of kernels, wherever they run: its sizes, and what its calls tell.

    Args:
        artifact: What was compiled.
        payload: Its content.
        free: What of it depends on sizes; None if nothing does.
        sized: What it is at some sizes; None means as recorded.
    """

    def __init__(
        self,
        artifact: Artifact,
        payload: NativePayload,
        free: FreeCalls | None,
        sized: SizedCalls | None,
    ) -> None:
        self._artifact = artifact  # steps point to its constants
        self._payload = payload
        self._free = free
        self._sized = SizedCalls.of(payload) if sized is None else sized

    @property
    def scratch_bytes(self) -> int:
        """Bytes of memory here for what lies between its calls."""
        return self._sized.scratch_bytes

    @property
    def never_fails(self) -> bool:
        """Whether its steps raise nothing."""
        return not self._payload.checks  # machine code raises nothing else

    def at(self, sizes: Mapping[str, int]) -> Self:
        """Return the program for sizes of its free dimensions, on the same code and weights.

        Args:
            sizes: Of every symbol, by name.

        Raises:
            PackageError: The program is damaged.
            ExecutionError: No memory is so large.
        """
        return self if self._free is None else self._resized(self._free.at(sizes))

    @abstractmethod
    def _resized(self, sized: SizedCalls) -> Self:
        """Return the program at other sizes."""

    @abstractmethod
    def _bind(
        self, inputs: Sequence[Buffer], found: Found, scratch: Buffer | None, faults: Array
    ) -> Step:
        """Return the call that runs the kernels, without what is looked at behind it."""

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that runs the region on these arrays; it releases the lock of Python."""
        return self._bind_by(self._bind, inputs, outputs, scratch)

    def _bind_by(
        self,
        bind: _Bind,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        scratch: Buffer | None,
    ) -> Step:
        """Return the call that runs the region, and what is looked at behind it.

        Args:
            bind: Returns the call that runs the kernels.
            inputs: As of `bind`, and so is the rest.
            outputs: Likewise.
            scratch: Likewise.
        """
        faults, found = self._sized.new_faults(), self._found(outputs)
        step = bind(inputs, found, scratch, faults)
        if found.slots:
            return partial(self._run_and_tell, step, faults, faults.tobytes(), found)
        if self.never_fails:
            return step
        # Kernels return nothing; an index outside of its axis is left in memory.
        clean = faults.tobytes()

        def checked() -> None:
            step()
            if faults.tobytes() != clean:
                self._raise_fault(faults)

        return checked

    def _found(self, outputs: Sequence[Buffer]) -> Found:
        """Return memory for the outputs, that of those whose sizes are found among them."""
        counts = np.zeros(len(self._sized.found), np.int64)
        if not counts.size:
            return Found(outputs, counts, ())
        buffers, slots = list(outputs), []
        held = zip(self._payload.storages, self._sized.nbytes.tolist(), strict=True)
        room = {index: nbytes for (kind, index, _), nbytes in held if kind == StorageKind.OUTPUT}
        for number, record in enumerate(self._sized.found):
            spec = self._artifact.outputs[record.output]
            buffers[record.output] = aligned_bytes(room[record.output])
            slots.append(
                FoundSlot(
                    outputs[record.output],
                    buffers[record.output].view(np_dtype(spec.dtype)),
                    counts[number : number + 1],
                    tuple(record.shape),
                    record.axis,
                )
            )
        return Found(buffers, counts, slots)

    def _run_and_tell(self, step: Step, faults: Array, clean: bytes, found: Found) -> None:
        """Run, and put what was found into its slots."""
        step()
        if faults.tobytes() != clean:
            self._raise_fault(faults)
        for slot in found.slots:
            slot.fill()

    def _raise_fault(self, faults: Array) -> None:
        raise_fault(self._records(), faults, self._artifact.target)

    def _records(self) -> NativePayload:
        """Return the records of the program at its sizes, which only few runs look at."""
        return self._payload if self._free is None else self._sized.recorded(self._payload)


class RemoteNative(NativeRegion):
    """Kernels on another machine, where their weights are too; tensors travel with each call."""

    scratch_bytes = 0
    never_fails = False  # the way may
    takes_left = True

    def __init__(
        self,
        artifact: Artifact,
        payload: NativePayload,
        program: RemoteProgram,
        free: FreeCalls | None,
        sized: SizedCalls | None = None,
    ) -> None:
        super().__init__(artifact, payload, free, sized)
        self._program = program
        self._list = program.list_calls(payload, self._sized)

    @property
    def runner(self) -> str:
        """Text of the way to its machine."""
        return self._payload.runner

    def away_seconds(self) -> float:
        """Return how much of the time of all calls so far was spent on the way."""
        return self._program.region.away_seconds()

    @property
    def carried_tensors(self) -> int:
        """How many tensors all calls so far sent there or had back."""
        return self._program.region.agent.carried_tensors

    def _resized(self, sized: SizedCalls) -> Self:
        return type(self)(self._artifact, self._payload, self._program, self._free, sized)

    def _bind(
        self, inputs: Sequence[Buffer], found: Found, scratch: Buffer | None, faults: Array
    ) -> Step:
        return partial(
            self._program.run,
            self._list,
            self._sized,
            tuple(inputs),
            tuple(found.outputs),
            (faults, found.counts),
        )


def load_remote(
    artifact: Artifact, payload: NativePayload, linked: bytes, settings: Settings
) -> RemoteNative:
    """Return a region whose kernels are linked with the agent, which starts when it is first asked.

    Args:
        artifact: What was compiled.
        payload: Its content.
        linked: The program, see `link_program`.
        settings: How long a call may take.
    """
    from intarsia.backends.native_remote import RemoteProgram
    from intarsia.backends.remote import RemoteRegion
    from intarsia.native.agent import Agent
    from intarsia.process.runner import parse_runner

    agent = Agent(linked, parse_runner(payload.runner), settings.call_seconds)
    region = RemoteRegion(agent, artifact.target)
    program = RemoteProgram(region, artifact.constants, payload.works, threads_there(payload))
    free = FreeCalls(payload, artifact.target) if payload.free is not None else None
    return RemoteNative(artifact, payload, program, free)


def threads_there(payload: NativePayload) -> int:
    """Return how many threads share a kernel on another machine.

    How many are asked for here says nothing about it.
    """
    return payload.num_cores or 1


def decode_payload(artifact: Artifact) -> NativePayload:
    """Read a payload.

    Raises:
        PackageError: It is damaged.
    """
    payload = read_payload(artifact, NativePayload)
    if not len(payload.works) == len(payload.counts) == len(payload.kernels):
        raise damaged(artifact, "its kernels")
    return payload


def read_sums(texts: Sequence[str]) -> Mapping[str, str]:
    """Return which order sums have in the program for all sizes, of all its regions together."""
    regions = (decode_json(text, dict[str, str]) for text in texts)
    return {key: order for region in regions for key, order in region.items()}
