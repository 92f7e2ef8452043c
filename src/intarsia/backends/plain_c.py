# SPDX-License-Identifier: Apache-2.0
"""The `c` kind: plain C99, compiled for the machine of the target's runner and run there.

A region is lowered to a program of kernels, as for native code; the artifact holds them as C.
Loading compiles them for that machine and links them with the agent (`native_remote`), which runs
there. Without a runner nothing is known of the machine but that it has a C compiler: then programs
are written (`intarsia.export`), and none is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.device import Device, HostDevice, ThreadOptions
from intarsia.backends.native import (
    native_artifact,
    native_groups,
    read_borders,
    refuse_unknown,
    unpack_text,
)
from intarsia.backends.native_region import (
    NativePayload,
    RemoteNative,
    decode_payload,
    load_remote,
    read_sums,
    threads_there,
)
from intarsia.backends.values import (
    ABOUT,
    SUMS,
    Artifact,
    CodeIdentity,
    Detection,
    FusedGroup,
    Refusal,
    Rule,
)
from intarsia.graph.arena import ALIGNMENT

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext, Candidate
    from intarsia.codegen.ir import Function
    from intarsia.cost.cost import Cost
    from intarsia.graph.region import Region
    from intarsia.target import Target, VirtualDevice

_GENERATORS = (
    "intarsia.backends.plain_c",
    "intarsia.backends.native",
    "intarsia.codegen",
    "intarsia.native",
)
_OF_SOURCES = ("workspace-byte-alignment", "constants-byte-alignment", "weights-in")
"""Attributes that say how a program is written, which change nothing of what an agent runs."""
_ENTRY = """\
void {name}_entry(const uint64_t *arguments, int64_t begin, int64_t end);
void {name}_entry(const uint64_t *arguments, int64_t begin, int64_t end)
{{
    (void)arguments;
    {name}({passed});
}}
"""


@dataclass(frozen=True)
class CBackend(ConfiguredBackend):
    """Serves the kind `c`. Settings say where compiled programs are."""

    name = "c"
    kinds = ("c",)
    takes_free = True
    takes_late = True
    is_default = False

    def version(self) -> str:
        """Return which C it is."""
        return "C99"

    def detect(self) -> Detection:
        """Return that nothing is found: C is for whatever machine the user says."""
        return Detection(
            reason="its code is compiled for the machine that a target names",
            hint="say how that is reached: c -runner=here",
        )

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return what generates the code."""
        return CodeIdentity(_GENERATORS)

    def check_target(self, target: Target) -> Sequence[str]:
        """Check that programs can be carried to the target's machine; return what is said in vain.

        Raises:
            TargetError: They cannot.
        """
        from intarsia.native.native_target import cpu_behind_runner

        cpu_behind_runner(target)
        return tuple(name for name in _OF_SOURCES if name in target.attrs)

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: every operator that lowering knows."""
        return (Rule("native", partial(refuse_unknown, takes_late=True)),)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: what lowering takes node by node it takes together."""
        return None

    def groups(self, region: Region, context: BuildContext) -> Sequence[FusedGroup]:
        """Return the nodes of each kernel."""
        from intarsia.native.native_target import lowering_options

        return native_groups(region, lowering_options(context.target.target).unit)

    def estimate(self, candidate: Candidate, context: BuildContext) -> Cost | None:
        """Return what the kernels take by the description of the target's CPU, if there is one."""
        from intarsia.native.estimates import estimate_cost  # running a package lowers nothing

        return estimate_cost(candidate.region, context.target.target, context.num_threads)

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as a program of kernels in C with its weights packed.

        Raises:
            TargetError: No program can be carried to the target's machine.
            BackendError: A state of the border is not plain.
        """
        from intarsia.codegen.emit.c_memory import with_tight_arena
        from intarsia.codegen.lower.region import lower_region
        from intarsia.native.native_target import (
            cpu_behind_runner,
            lowering_options,
            target_threads,
        )

        target = context.target.target
        cpu, options = cpu_behind_runner(target), lowering_options(target)
        program = lower_region(
            candidate.region,
            options,
            threads=target_threads(target, context.num_threads),
            borders=read_borders(candidate, self.name, (0,)),
            settled=read_sums(context.sums),
        )
        if not program.is_free:  # kernels' own buffers are on the stack else
            program = with_tight_arena(program, ALIGNMENT)
        march = target.attrs.get("march")
        payload = msgspec.structs.replace(
            NativePayload.of(program, cpu, map(_source, program.kernels), options.unit, 1),
            runner=str(target.attrs["runner"]),
            options=[f"-march={march}"] if march else [],
        )
        about = {ABOUT: program.summary()}
        if program.sums:
            about[SUMS] = msgspec.json.encode(program.sums).decode()
        return native_artifact(self.name, self.version(), candidate, program, payload, about)

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Return host memory."""
        return HostDevice(options)

    def load(self, artifact: Artifact, device: Device) -> RemoteNative:
        """Compile the kernels and link them with the agent, or take that from the cache.

        Raises:
            BackendError: Nothing here compiles for that machine.
            PackageError: The artifact is damaged.
        """
        from intarsia.backends.native_remote import compile_c, link_program

        payload = decode_payload(artifact)
        cpu = payload.native_cpu()
        caches = self.settings.cache_folder()
        texts = {f"{name}.c": unpack_text(artifact, code) for name, code in payload.kernels}
        objects = {"kernels.o": compile_c(texts, cpu, caches, ("-std=c99", *payload.options))}
        names = [f"{name}_entry" for name, _ in payload.kernels]
        linked = link_program(names, objects, cpu.triple, threads_there(payload), caches)
        return load_remote(artifact, payload, linked, self.settings)


def _source(kernel: Function) -> str:
    """Return a kernel as a source with one function, of addresses and numbers and of its turns."""
    from intarsia.codegen.emit.c import emit_c, parameters

    *given, (begin, _), (end, _) = parameters(kernel)
    passed = [
        f"({type_.removesuffix('restrict')})(uintptr_t)arguments[{number}]"
        if "*" in type_
        else f"({type_})arguments[{number}]"
        for number, (type_, _) in enumerate(given)
    ]
    passed += [f"({begin})begin", f"({end})end"]
    entry = _ENTRY.format(name=kernel.name, passed=", ".join(passed))
    return f"{emit_c([kernel])}\n{entry}"


BACKEND = CBackend()
