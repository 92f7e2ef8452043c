# SPDX-License-Identifier: Apache-2.0
"""The `llvm` kind: native code for CPUs, generated from the loop-level IR.

A region is lowered to a program of kernels (`codegen.lower`); the artifact holds the program and
the kernels' LLVM IR, which is the same for every CPU of one vector width. Loading compiles the
kernels for the target's CPU, or takes their objects from the cache, and packs nothing: weights lie
in the artifact's constants as the kernels want them, shared by all contexts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np

from intarsia.arrays import Array, address_of
from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.borders import blocked_border
from intarsia.backends.device import (
    Buffer,
    Device,
    HostDevice,
    MovableStep,
    Step,
    ThreadOptions,
)
from intarsia.backends.native import (
    native_artifact,
    native_groups,
    read_borders,
    refuse_unknown,
    unpack_text,
)
from intarsia.backends.native_calls import BoundCalls, CallTable, SizedCalls
from intarsia.backends.native_defects import native_defects
from intarsia.backends.native_free import FreeCalls
from intarsia.backends.native_region import (
    Found,
    NativePayload,
    NativeRegion,
    RemoteNative,
    decode_payload,
    load_remote,
    read_sums,
    threads_there,
)
from intarsia.backends.tracing import WorkSpan
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
from intarsia.errors import BackendError
from intarsia.native.callpath import make_step_of
from intarsia.native.chunk_log import ChunkLog, ChunkTime, can_log
from intarsia.native.here import why_not_runnable
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import NativeCpu, compile_assembly, driver, llvm_version
from intarsia.native.objects import ObjectCache

if TYPE_CHECKING:
    from intarsia.backends.values import Border, BuildContext, Candidate
    from intarsia.codegen.ir import Function
    from intarsia.cost.cost import Cost
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.native.pool import Team, ThreadPool
    from intarsia.target import Target, VirtualDevice

_MOST_OPERATIONS = 32
"""For a byte of inputs and outputs: with more, kernels lose more by memory that does not begin at a
cache line, as that of callers does, than copies cost."""
_LARGE_SCORES = 16 << 20
"""From this many bytes on, a Softmax's result is in memory rather than in a cache."""


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
    def of(cls, artifact: Artifact, payload: NativePayload, library: LoadedCode) -> _Shared:
        constants = [address_of(constant.data) for constant in artifact.constants]
        codes = [library.addresses[name] for name, _ in payload.kernels]
        table = CallTable(payload, constants, codes, payload.works)
        is_free = payload.free is not None
        return cls(table, FreeCalls(payload, artifact.target) if is_free else None)


class NativeExecutable(NativeRegion):
    """Linked kernels with their weights; bindings and threads share it."""

    survives_fork = True  # our pool starts anew there, and a team is left alone

    def __init__(
        self,
        artifact: Artifact,
        payload: NativePayload,
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
        self, inputs: Sequence[Buffer], found: Found, scratch: Buffer | None, faults: Array
    ) -> Step:
        """Return the call that runs the kernels, without what is looked at behind it."""
        bound = self._calls(inputs, found.outputs, scratch, (faults, found.counts))
        keep_alive = (self, tuple(inputs), found, scratch, faults, bound.words)
        return make_step_of(bound.rows, keep_alive, self._pool, self._caches)

    def trace_step(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> LoggedStep | None:
        """Return the call that `bind` returns, but one that tells when which thread ran what."""
        if not can_log():
            return None
        logs: list[tuple[ChunkLog, list[KernelCall]]] = []

        def bind(
            inputs: Sequence[Buffer], found: Found, scratch: Buffer | None, faults: Array
        ) -> Step:
            bound = self._calls(inputs, found.outputs, scratch, (faults, found.counts))
            log = ChunkLog(bound.rows, self._caches)
            logs.append((log, self._kernels(bound)))
            keep_alive = (self, tuple(inputs), found, scratch, faults, bound.words, log)
            return make_step_of(log.rows, keep_alive, self._pool, self._caches)

        step = self._bind_by(bind, inputs, outputs, scratch)
        ((log, kernels),) = logs
        return LoggedStep(step, log, kernels)

    def movable_step(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> MovableStep | None:
        """Return the call that `bind` returns with its places, where little is computed."""
        border = sum(one.nbytes for one in (*inputs, *outputs) if isinstance(one, np.ndarray))
        if self._shared.table.flop(self._sized) > _MOST_OPERATIONS * border:
            return None
        bound: list[BoundCalls] = []

        def bind(
            inputs: Sequence[Buffer], found: Found, scratch: Buffer | None, faults: Array
        ) -> Step:
            calls = self._calls(inputs, found.outputs, scratch, (faults, found.counts))
            bound.append(calls)
            keep_alive = (self, tuple(inputs), found, scratch, faults, calls.words)
            return make_step_of(calls.rows, keep_alive, self._pool, self._caches)

        step = self._bind_by(bind, inputs, outputs, scratch)
        words = bound[0].words
        places = (
            [self._shared.table.place(self._sized, words, kind, i) for i in range(len(some))]
            for kind, some in ((StorageKind.INPUT, inputs), (StorageKind.OUTPUT, outputs))
        )
        return MovableStep(step, *places)

    def kernel_steps(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> list[tuple[KernelCall, Step]]:
        """Return the calls that `bind` runs, each by itself, in order."""
        faults, found = self._sized.new_faults(), self._found(outputs)
        bound = self._calls(inputs, found.outputs, scratch, (faults, found.counts))
        keep_alive = (self, tuple(inputs), found, scratch, faults, bound.words)
        return [
            (kernel, make_step_of(row[None], keep_alive, self._pool, self._caches))
            for kernel, row in zip(self._kernels(bound), bound.rows, strict=True)
        ]

    def _kernels(self, bound: BoundCalls) -> list[KernelCall]:
        """Return what each of the calls is."""
        names, calls = [name for name, _ in self._payload.kernels], self._records().calls
        return [
            KernelCall(
                names[record.kernel].rpartition("_")[0],
                tuple(record.nodes),
                record.note,
                record.shape,
                record.flop,
                record.nbytes,
                "tuned" if record.is_tuned else "heuristic",
            )
            for record in [calls[i] for i in bound.numbers]
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


class LoggedStep:
    """The call of a region whose kernels write down when they run.

    Args:
        step: It.
        log: Where they do.
        kernels: What each of them is.
    """

    def __init__(self, step: Step, log: ChunkLog, kernels: Sequence[KernelCall]) -> None:
        self._step, self._log, self._kernels = step, log, kernels
        self._spans: list[WorkSpan] = []

    def __call__(self) -> None:
        """Run."""
        self._log.take()  # what a call that failed has left
        self._step()
        parts: dict[int, list[ChunkTime]] = {}
        for part in self._log.take():
            parts.setdefault(part.call, []).append(part)
        for number, some in sorted(parts.items()):
            kernel = self._kernels[number]
            start = min(part.start for part in some)
            seconds = max(part.start + part.seconds for part in some) - start
            told: dict[str, str | int] = {
                "note": kernel.note,
                "shape": kernel.shape,
                "schedule": kernel.schedule,
                "operations": kernel.flop,
                "bytes": kernel.nbytes,
                "chunks": len(some),
            }
            facts = {name: fact for name, fact in told.items() if fact}
            self._spans.append(WorkSpan(kernel.kernel, kernel.nodes, start, seconds, facts))
            self._spans += [
                WorkSpan(
                    kernel.kernel,
                    kernel.nodes,
                    part.start,
                    part.seconds,
                    {"first turn": part.first, "turns": part.last - part.first},
                    part.thread,
                )
                for part in some
            ]

    def spans(self) -> list[WorkSpan]:
        """Return each kernel, and the parts of it that threads ran."""
        return self._spans


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
        """Return what generates the code, schedules that were measured, and tiles it may use."""
        from intarsia.native.native_target import tiles_for
        from intarsia.native.schedule_table import find_table

        target = context.target.target
        digest = find_table(target, context.num_threads, self.settings).digest()
        facts = [f"schedules {digest}"] if digest else []
        facts += tiles_for(target, self.settings.cache_folder())
        return CodeIdentity(_GENERATORS, ", ".join(facts))

    def estimate(self, candidate: Candidate, context: BuildContext) -> Cost | None:
        """Return what the kernels take by the description of the target's CPU, if there is one."""
        from intarsia.native.estimates import estimate_cost  # running a package lowers nothing

        target, caches = context.target.target, self.settings.cache_folder()
        return estimate_cost(candidate.region, target, context.num_threads, caches)

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

        target = context.target.target
        cpu, _ = target_cpu(target)
        options = lowering_options(target, self.settings.cache_folder())
        is_here = not target.attrs.get("runner") and not why_not_here(cpu)
        unit = options.unit
        blocks = (0, unit.lanes())
        borders = read_borders(candidate, self.name, blocks)
        dumped: dict[str, str] = {}
        with CompilePool(cpu, ObjectCache(self.settings.cache_folder())) as pool:
            is_compiled = bool(target.attrs.get("runner")) or is_here

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
                options,
                emit,
                chooser=chooser,
                threads=threads,
                borders=borders,
                settled=read_sums(context.sums),
            )
            pool.finish(lambda done, total: context.tell("kernels", done, total))
        texts = [dumped[kernel.name] for kernel in program.kernels]
        dump_kernels(
            self.settings.dump_dir,
            program,
            str(cpu),
            lambda kernel: {"ll": texts[kernel], "s": compile_assembly(texts[kernel], cpu)},
        )
        payload = msgspec.structs.replace(
            NativePayload.of(program, cpu, texts, unit, target.attrs.get("num-cores") or 0),
            runner=target.attrs.get("runner") or "",
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
        payload = decode_payload(artifact)
        cpu = payload.native_cpu()
        caches = self.settings.cache_folder()
        if not payload.runner:
            _check_runs_here(cpu, artifact, caches)
            if payload.has_tiles:
                _check_tiles(artifact, caches)
        texts = {name: unpack_text(artifact, code) for name, code in payload.kernels}
        objects = _find_or_compile(texts, cpu, caches)
        if payload.runner:
            from intarsia.backends.native_remote import link_program

            files = {f"{name}.o": code for name, code in objects.items()}
            threads = threads_there(payload)
            linked = link_program(list(objects), files, cpu.triple, threads, caches)
            return load_remote(artifact, payload, linked, self.settings)
        options = device.options
        threads = min(options.num_threads, payload.num_cores or options.num_threads)
        pool = None if threads == 1 else _find_threads(threads, options, caches)
        return NativeExecutable(artifact, payload, LoadedCode(objects), pool, caches)


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


def _check_tiles(artifact: Artifact, caches: Path) -> None:
    """Ask for tiles for this process, before a kernel uses them.

    Raises:
        BackendError: It cannot have them, or they do not work.
    """
    from intarsia.native.tiles import why_no_tiles  # most programs have none

    problem = why_no_tiles(caches)
    if problem:
        raise BackendError(
            f"the native code has products of tiles (AMX), and cannot run here: {problem}",
            backend="llvm",
            target=artifact.target,
            hint="compile the model again here: its kernels will use no tiles",
        )


BACKEND = LlvmBackend()
