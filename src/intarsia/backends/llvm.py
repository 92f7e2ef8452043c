# SPDX-License-Identifier: Apache-2.0
"""The `llvm` kind: native code for CPUs, generated from the loop-level IR.

A region is lowered to a program of kernels (`codegen.lower`); the artifact holds the program and
the kernels' LLVM IR, which is the same for every CPU of one vector width. Loading compiles the
kernels for the target's CPU, or takes their objects from the cache, and packs nothing: weights lie
in the artifact's constants as the kernels want them, shared by all contexts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np

from intarsia.arrays import Array, address_of, np_dtype
from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.borders import blocked_border
from intarsia.backends.device import (
    Buffer,
    Device,
    HostDevice,
    Step,
    ThreadOptions,
    ValueSlot,
)
from intarsia.backends.native import (
    CallRecord,
    CheckRecord,
    FoundRecord,
    FreeRecord,
    argument_counts,
    call_records,
    check_records,
    damaged,
    found_records,
    native_artifact,
    native_groups,
    pack_text,
    raise_fault,
    read_borders,
    read_payload,
    refuse_unknown,
    storage_records,
    unpack_text,
)
from intarsia.backends.native_calls import BoundCalls, CallTable, SizedCalls
from intarsia.backends.native_defects import native_defects
from intarsia.backends.native_free import FreeCalls, free_record
from intarsia.backends.values import (
    ABOUT,
    IN_PLACE,
    LAYERS,
    SCRATCH,
    SUMS,
    Artifact,
    CodeIdentity,
    Detection,
    FusedGroup,
    KernelCall,
    Refusal,
    Rule,
)
from intarsia.codegen.storage import StorageKind
from intarsia.decoding import decode_json
from intarsia.errors import BackendError
from intarsia.graph.arena import aligned_bytes
from intarsia.native.callpath import make_step_of
from intarsia.native.here import why_not_runnable
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import NativeCpu, compile_assembly, driver, llvm_version
from intarsia.native.objects import ObjectCache

if TYPE_CHECKING:
    from intarsia.backends.native_remote import RemoteProgram
    from intarsia.backends.values import Border, BuildContext, Candidate
    from intarsia.codegen.ir import Function
    from intarsia.cost.cost import Cost
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.native.pool import Team, ThreadPool
    from intarsia.settings import Settings
    from intarsia.target import Target, VirtualDevice

_LARGE_SCORES = 16 << 20
"""From this many bytes on, a Softmax's result is in memory rather than in a cache."""


class _Payload(msgspec.Struct, frozen=True):
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


@dataclass(frozen=True, slots=True)
class _FoundSlot:
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
class _Found:
    """Memory for outputs, with what is put into slots after a run.

    Attributes:
        outputs: A buffer for each.
        counts: The sizes that are found.
        slots: The outputs that have one of these.
    """

    outputs: Sequence[Buffer]
    counts: Array
    slots: Sequence[_FoundSlot]


@dataclass(frozen=True, slots=True)
class _Shared:
    """What a program has at all sizes.

    Attributes:
        table: Its calls.
        free: What depends on sizes; None if nothing does.
    """

    table: CallTable
    free: FreeCalls | None

    @classmethod
    def of(cls, artifact: Artifact, payload: _Payload, library: LoadedCode) -> _Shared:
        constants = [address_of(constant.data) for constant in artifact.constants]
        codes = [library.addresses[name] for name, _ in payload.kernels]
        table = CallTable(payload, constants, codes, payload.works)
        is_free = payload.free is not None
        return cls(table, FreeCalls(payload, artifact.target) if is_free else None)


class _NativeRegion(ABC):
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
        payload: _Payload,
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
        self, inputs: Sequence[Buffer], found: _Found, scratch: Buffer | None, faults: Array
    ) -> Step:
        """Return the call that runs the kernels, without what is looked at behind it."""

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that runs the region on these arrays; it releases the lock of Python."""
        faults, found = self._sized.new_faults(), self._found(outputs)
        step = self._bind(inputs, found, scratch, faults)
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

    def _found(self, outputs: Sequence[Buffer]) -> _Found:
        """Return memory for the outputs, that of those whose sizes are found among them."""
        counts = np.zeros(len(self._sized.found), np.int64)
        if not counts.size:
            return _Found(outputs, counts, ())
        buffers, slots = list(outputs), []
        held = zip(self._payload.storages, self._sized.nbytes.tolist(), strict=True)
        room = {index: nbytes for (kind, index, _), nbytes in held if kind == StorageKind.OUTPUT}
        for number, record in enumerate(self._sized.found):
            spec = self._artifact.outputs[record.output]
            buffers[record.output] = aligned_bytes(room[record.output])
            slots.append(
                _FoundSlot(
                    outputs[record.output],
                    buffers[record.output].view(np_dtype(spec.dtype)),
                    counts[number : number + 1],
                    tuple(record.shape),
                    record.axis,
                )
            )
        return _Found(buffers, counts, slots)

    def _run_and_tell(self, step: Step, faults: Array, clean: bytes, found: _Found) -> None:
        """Run, and put what was found into its slots."""
        step()
        if faults.tobytes() != clean:
            self._raise_fault(faults)
        for slot in found.slots:
            slot.fill()

    def _raise_fault(self, faults: Array) -> None:
        raise_fault(self._records(), faults, self._artifact.target)

    def _records(self) -> _Payload:
        """Return the records of the program at its sizes, which only few runs look at."""
        return self._payload if self._free is None else self._sized.recorded(self._payload)


class NativeExecutable(_NativeRegion):
    """Linked kernels with their weights; bindings and threads share it."""

    def __init__(
        self,
        artifact: Artifact,
        payload: _Payload,
        library: LoadedCode,
        pool: ThreadPool | Team | None,
        caches: Path,
        shared: _Shared | None = None,
        sized: SizedCalls | None = None,
    ) -> None:
        shared = _Shared.of(artifact, payload, library) if shared is None else shared
        super().__init__(artifact, payload, shared.free, sized)
        self._pool = pool
        self._library = library
        self._caches = caches
        self._shared = shared

    def _resized(self, sized: SizedCalls) -> Self:
        return type(self)(
            self._artifact,
            self._payload,
            self._library,
            self._pool,
            self._caches,
            self._shared,
            sized,
        )

    def _bind(
        self, inputs: Sequence[Buffer], found: _Found, scratch: Buffer | None, faults: Array
    ) -> Step:
        """Return the call that runs the kernels, without what is looked at behind it."""
        bound = self._calls(inputs, found.outputs, scratch, (faults, found.counts))
        keep_alive = (self, tuple(inputs), found, scratch, faults, bound.words)
        return make_step_of(bound.rows, keep_alive, self._pool, self._caches)

    def kernel_steps(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> list[tuple[KernelCall, Step]]:
        """Return the calls that `bind` runs, each by itself, in order."""
        faults, found = self._sized.new_faults(), self._found(outputs)
        bound = self._calls(inputs, found.outputs, scratch, (faults, found.counts))
        keep_alive = (self, tuple(inputs), found, scratch, faults, bound.words)
        names, calls = [name for name, _ in self._payload.kernels], self._records().calls
        return [
            (
                KernelCall(
                    names[record.kernel].rpartition("_")[0],
                    tuple(record.nodes),
                    record.note,
                    record.shape,
                    record.flop,
                    record.nbytes,
                    "tuned" if record.is_tuned else "heuristic",
                ),
                make_step_of(row[None], keep_alive, self._pool, self._caches),
            )
            for record, row in zip([calls[i] for i in bound.numbers], bound.rows, strict=True)
        ]

    def _calls(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        scratch: Buffer | None,
        told: tuple[Array, Array],
    ) -> BoundCalls:
        """Return calls on memory.

        Args:
            inputs: Of the region.
            outputs: Of the region.
            scratch: Memory for what is in between.
            told: Memory for faults, and for sizes that are found.
        """
        faults, counts = told
        blocks = {
            StorageKind.INPUT: inputs,
            StorageKind.OUTPUT: outputs,
            StorageKind.SCRATCH: () if scratch is None else (scratch,),
            StorageKind.FAULT: (faults,),
            StorageKind.COUNT: (counts,),
        }
        memory = {str(kind): [address_of(one) for one in some] for kind, some in blocks.items()}
        threads = 1 if self._pool is None else self._pool.threads
        return self._shared.table.bind(self._sized, memory, threads)


class RemoteNative(_NativeRegion):
    """Kernels on another machine, where their weights are too; tensors travel with each call."""

    scratch_bytes = 0
    never_fails = False  # the way may

    def __init__(
        self,
        artifact: Artifact,
        payload: _Payload,
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

    def _resized(self, sized: SizedCalls) -> Self:
        return type(self)(self._artifact, self._payload, self._program, self._free, sized)

    def _bind(
        self, inputs: Sequence[Buffer], found: _Found, scratch: Buffer | None, faults: Array
    ) -> Step:
        return partial(
            self._program.run,
            self._list,
            self._sized,
            tuple(inputs),
            tuple(found.outputs),
            (faults, found.counts),
        )


_GENERATORS = (
    "intarsia.backends.llvm",
    "intarsia.backends.native",
    "intarsia.codegen",
    "intarsia.native",
)


@dataclass(frozen=True)
class LlvmBackend(ConfiguredBackend):
    """Serves the kind `llvm`. Settings say where compiled kernels and tuned schedules are."""

    name = "llvm"
    kinds = ("llvm",)
    takes_free = True
    takes_late = True
    defects = native_defects("llvm")

    def version(self) -> str:
        """Return LLVM's version.

        Raises:
            BackendError: llvmlite is not installed.
        """
        return llvm_version()

    def detect(self) -> Detection:
        """Return this machine's CPU, or why no code can be generated."""
        try:
            driver()
        except BackendError as error:
            return Detection.failed(error)
        from intarsia.target import Target  # a package runs without reading one

        return Detection((Target("llvm"),), rank=1)

    def check_target(self, target: Target) -> Sequence[str]:
        """Check that the target means this machine, and return what it says in vain."""
        from intarsia.native.native_target import check_here  # running a package asks no target

        return check_here(target)

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: every operator that lowering knows."""
        return (Rule("native", partial(refuse_unknown, takes_late=True)),)

    def yields(self, graph: Graph) -> str | None:
        """Let others run attention whose scores no cache holds and no pattern of ours finds.

        They go through memory then: products that make them or read them took up to twice as long
        as others in Whisper's encoder (54 MB for each layer) before attention was one kernel, and
        the encoder 1.2 times OpenVINO's time. With up to 2 MB it was about as long as there.
        """
        from intarsia.codegen.patterns.attention import find_attention

        fused = find_attention(graph.whole)
        inside = {node.id for operation in fused for node in operation.nodes}
        for node in graph.nodes:
            if node.op_type != "Softmax" or node.id in inside:
                continue
            scores = graph.values[node.outputs[0]]
            is_attention = any(graph.nodes[i].op_type == "MatMul" for i in scores.consumers)
            if is_attention and scores.nbytes >= _LARGE_SCORES:
                return f"attention at {node.name!r} has scores of {scores.nbytes >> 20} MiB"
        return None

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: what lowering takes node by node it takes together."""
        return None

    def groups(self, region: Region, context: BuildContext) -> Sequence[FusedGroup]:
        """Return the nodes of each kernel."""
        from intarsia.native.native_target import target_cpu

        return native_groups(region, target_cpu(context.target.target)[1])

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return what generates the code, and the schedules that were measured here."""
        from intarsia.native.schedule_table import find_table

        digest = find_table(context.target.target, context.num_threads, self.settings).digest()
        return CodeIdentity(_GENERATORS, f"schedules {digest}" if digest else "")

    def estimate(self, candidate: Candidate, context: BuildContext) -> Cost | None:
        """Return what the kernels take by the description of the target's CPU, if there is one."""
        from intarsia.native.estimates import estimate_cost  # running a package lowers nothing

        return estimate_cost(candidate.region, context.target.target, context.num_threads)

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as a program of kernels with its weights packed.

        Raises:
            BackendError: A state of the border is not one that native code can be given: row-major,
                or in blocks of as many channels as a vector of the target has lanes.
        """
        from intarsia.codegen.dump import dump_kernels  # running a package lowers nothing
        from intarsia.codegen.emit.llvm import emit_llvm
        from intarsia.codegen.lower.region import lower_region
        from intarsia.codegen.lower.schedules import HEURISTICS, Chooser, OneWay
        from intarsia.native.compile_pool import CompilePool
        from intarsia.native.native_target import (
            lowering_options,
            target_cpu,
            target_threads,
            why_not_here,
        )
        from intarsia.native.schedule_table import find_table
        from intarsia.native.work import count_work

        target = context.target.target
        cpu, _ = target_cpu(target)
        options = lowering_options(target)
        unit = options.unit
        blocks = (0, unit.lanes())
        borders = read_borders(candidate, self.name, blocks)
        dumped: dict[str, str] = {}
        with CompilePool(cpu, ObjectCache(self.settings.cache_folder())) as pool:
            is_compiled = bool(target.attrs.get("runner")) or not why_not_here(cpu)

            def emit(kernel: Function) -> None:
                dumped[kernel.name] = text = emit_llvm(kernel, unit)
                if is_compiled:
                    pool.submit(kernel.name, text)

            threads = target_threads(target, context.num_threads)
            chooser: Chooser = HEURISTICS
            if not context.is_frozen:
                table = find_table(target, context.num_threads, self.settings)
                chooser = table.schedules()
            if LAYERS in candidate.options:
                chooser = OneWay(chooser, candidate.options[LAYERS] == "float32")
            program = lower_region(
                candidate.region,
                unit,
                options.winograd,
                emit,
                half_weights=options.half_weights,
                accuracy=options.accuracy,
                is_bf16=options.is_bf16,
                requantise=options.requantise,
                chooser=chooser,
                threads=threads,
                borders=borders,
                settled=_read_sums(context.sums),
            )
            pool.finish(lambda done, total: context.tell("kernels", done, total))
        texts = [dumped[kernel.name] for kernel in program.kernels]
        dump_kernels(
            self.settings.dump_dir,
            program,
            str(cpu),
            lambda kernel: {"ll": texts[kernel], "s": compile_assembly(texts[kernel], cpu)},
        )
        payload = _Payload(
            cpu.triple,
            cpu.name,
            [feature for feature in cpu.features.split(",") if feature],
            [
                (kernel.name, pack_text(text))
                for kernel, text in zip(program.kernels, texts, strict=True)
            ],
            storage_records(program),
            call_records(program),
            program.scratch_bytes,
            [count_work(kernel, unit) for kernel in program.kernels],
            argument_counts(program),
            target.attrs.get("num-cores") or 0,
            check_records(program),
            free_record(program),
            found_records(program),
            target.attrs.get("runner") or "",
        )
        about = {ABOUT: program.summary(), SCRATCH: str(program.scratch_bytes)}
        if program.sums:
            about[SUMS] = msgspec.json.encode(program.sums).decode()
        if program.in_place:
            about[IN_PLACE] = msgspec.json.encode(program.in_place).decode()
        return native_artifact(
            self.name, self.version(), candidate, program, payload, about, blocks
        )

    def states(self, candidate: Candidate, context: BuildContext) -> Sequence[Border]:
        """Return the border with fewest conversions, in blocks of channels as wide as a vector.

        Where blocked and plain convert as little, as around a pooling alone, it is the blocked one.
        """
        from intarsia.codegen.lower.fusion import best_borders
        from intarsia.native.native_target import target_cpu

        region = candidate.region
        best = best_borders(region, target_cpu(context.target.target)[1])
        if not best.inputs and not best.outputs:
            return ()
        inputs = [best.inputs.get(value, 0) for value in region.inputs]
        outputs = [best.outputs.get(value, 0) for value in region.outputs]
        return (blocked_border(candidate, inputs, outputs),)

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Return host memory."""
        return HostDevice(options)

    def load(self, artifact: Artifact, device: Device) -> NativeExecutable | RemoteNative:
        """Compile and link the kernels, or take them from the cache.

        Raises:
            BackendError: The code is for another kind of machine.
            PackageError: The artifact is damaged.
        """
        payload = _decode(artifact)
        cpu = NativeCpu(payload.triple, payload.cpu, ",".join(payload.features))
        caches = self.settings.cache_folder()
        if not payload.runner:
            _check_runs_here(cpu, artifact, caches)
        texts = {name: unpack_text(artifact, code) for name, code in payload.kernels}
        objects = _find_or_compile(texts, cpu, caches)
        if payload.runner:
            return _load_remote(artifact, payload, objects, cpu, self.settings)
        options = device.options
        threads = min(options.num_threads, payload.num_cores or options.num_threads)
        pool = None if threads == 1 else _find_threads(threads, options, caches)
        return NativeExecutable(artifact, payload, LoadedCode(objects), pool, caches)


def _load_remote(
    artifact: Artifact,
    payload: _Payload,
    objects: Mapping[str, bytes],
    cpu: NativeCpu,
    settings: Settings,
) -> RemoteNative:
    """Link kernels with the agent; it is started when it is first asked.

    Raises:
        BackendError: Nothing here links for that machine.
    """
    from intarsia.backends.native_remote import RemoteProgram, link_program
    from intarsia.backends.remote import RemoteRegion
    from intarsia.native.agent import Agent
    from intarsia.process.runner import parse_runner

    threads = payload.num_cores or 1  # how many are asked for here says nothing about the machine
    linked = link_program(objects, cpu, threads, settings.cache_folder())
    agent = Agent(linked, parse_runner(payload.runner), settings.call_seconds)
    region = RemoteRegion(agent, artifact.target)
    program = RemoteProgram(region, artifact.constants, payload.works, threads)
    free = FreeCalls(payload, artifact.target) if payload.free is not None else None
    return RemoteNative(artifact, payload, program, free)


def _find_threads(threads: int, options: ThreadOptions, caches: Path) -> ThreadPool | Team | None:
    from intarsia.native.pool import find_pool, find_team  # one thread needs neither

    if options.gomp_parallel:
        return find_team(threads, options.gomp_parallel, caches)
    return find_pool(threads, is_shared=options.is_shared, caches=caches)


def _find_or_compile(texts: Mapping[str, str], cpu: NativeCpu, caches: Path) -> Mapping[str, bytes]:
    """Return the objects of kernels, from the cache as far as they are there.

    Raises:
        BackendError: LLVM refused a kernel.
    """
    cache = ObjectCache(caches)
    cached = {name: cache.find_object(text, cpu) for name, text in texts.items()}
    missing = [name for name, code in cached.items() if code is None]
    compiled: Mapping[str, bytes] = {}
    if missing:
        from intarsia.native.compile_pool import CompilePool  # most programs need none

        with CompilePool(cpu, cache) as pool:
            for name in missing:
                pool.submit(name, texts[name])
            compiled = pool.finish()
    return {name: compiled[name] if code is None else code for name, code in cached.items()}


def _check_runs_here(cpu: NativeCpu, artifact: Artifact, caches: Path) -> None:
    """Check that this machine can run code for a CPU.

    Raises:
        BackendError: It cannot.
    """
    problem = why_not_runnable(cpu, caches)
    if problem:
        raise BackendError(
            f"the native code cannot run here: {problem}",
            backend="llvm",
            target=artifact.target,
            hint="load it on the machine that it is for, or compile with plain 'llvm' here",
        )


def _decode(artifact: Artifact) -> _Payload:
    """Read a payload.

    Raises:
        PackageError: It is damaged.
    """
    payload = read_payload(artifact, _Payload)
    if not len(payload.works) == len(payload.counts) == len(payload.kernels):
        raise damaged(artifact, "its kernels")
    return payload


def _read_sums(texts: Sequence[str]) -> Mapping[str, str]:
    """Return which order sums have in the program for all sizes, of all its regions together."""
    regions = (decode_json(text, dict[str, str]) for text in texts)
    return {key: order for region in regions for key, order in region.items()}


BACKEND = LlvmBackend()
