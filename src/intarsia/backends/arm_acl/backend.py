# SPDX-License-Identifier: Apache-2.0
"""The `arm_acl` kind: a partial backend of Arm Compute Library's functions for Neon.

A region becomes a C++ program of the library's functions (`fusion`, `program`), which a cross
compiler builds (`toolchain`) and a runner brings to the machine. What the library takes it is asked
itself, on that machine (`helper`). Attributes: `acl_root`, `cxx`, `runner`, `num_threads`,
`enable_fast_math`, `disabled_ops`.
"""

from __future__ import annotations

import platform
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from intarsia.backends.arm_acl.defects import DEFECTS
from intarsia.backends.arm_acl.helper import Helper, helper_of
from intarsia.backends.arm_acl.program import AclProgram, make_source
from intarsia.backends.arm_acl.toolchain import (
    DEFAULT_ROOT,
    Toolchain,
    find_compiler,
    find_library,
)
from intarsia.backends.artifact import refuse
from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.borders import border_specs, read_blocks
from intarsia.backends.defects import refuse_defects
from intarsia.backends.device import Device, HostDevice, ThreadOptions
from intarsia.backends.patterns import pattern_rules
from intarsia.backends.remote import RemoteExecutable
from intarsia.backends.values import (
    ABOUT,
    Artifact,
    ArtifactConstant,
    CodeIdentity,
    Detection,
    FusedGroup,
    Refusal,
    Rule,
)
from intarsia.errors import BackendError, PackageError, ReasonCode, SettingError
from intarsia.graph.per_graph import per_graph
from intarsia.native.agent import agent_sources
from intarsia.process.runner import HERE, parse_runner
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.arm_acl.builder import DerivedConstant
    from intarsia.backends.artifact import Verdict
    from intarsia.backends.values import BuildContext, Candidate
    from intarsia.codegen.lower.program import Program
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice

_GENERATORS = ("intarsia.backends.arm_acl", "intarsia.codegen.lower.windows")
_RUNNER = "runner"
"""Attribute, and key of an artifact's metadata: the way to the machine."""
_REGION = "region"
_ARCH = "aarch64"
_EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
_NAMED = "as acl_root says"
"""In place of a release where only targets can name a library."""


@dataclass(frozen=True)
class ArmAclBackend(ConfiguredBackend):
    """Serves the kind `arm_acl`. Settings say where the library is."""

    name = "arm_acl"
    kinds = ("arm_acl",)
    defects = DEFECTS

    def toolchain(self, target: Target | None = None) -> Toolchain:
        """Return the library and the compiler that a target names, or that are here.

        Raises:
            BackendError: There are none.
        """
        attrs = target.attrs if target is not None else {}
        root = attrs.get("acl_root") or self.settings.acl_root or DEFAULT_ROOT
        try:
            caches = self.settings.cache_folder()
        except SettingError:
            caches = None
        return Toolchain(find_library(root), find_compiler(attrs.get("cxx") or ""), caches)

    def version(self) -> str:
        """Return the release of the library that the settings name.

        A target may name another one, which `identity` tells from it.
        """
        try:
            return self.toolchain().library.version
        except BackendError:
            return _NAMED

    def detect(self) -> Detection:
        """Return this machine's CPU, or why the library does not run here."""
        try:
            self.toolchain()
        except BackendError as error:
            return Detection.failed(error)
        if platform.machine() != "aarch64":
            return Detection(
                reason=f"the library is for aarch64, and this machine is {platform.machine()}",
                hint="say how to reach a machine for it: arm_acl -runner=...",
            )
        return Detection((Target("arm_acl"),), rank=3)

    def notes(self) -> Sequence[str]:
        """Return where the library and the compiler are."""
        toolchain = self.toolchain()
        return (
            f"library {toolchain.library.folder}, release {toolchain.library.version}",
            f"compiler {' '.join(toolchain.compiler)}",
        )

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return what decides which code runs: our sources, the library, and the machine."""
        toolchain = self.toolchain(context.target.target)
        device = f"{toolchain.library.version} {toolchain.digest[:12]} {_runner(context)}"
        return CodeIdentity(_GENERATORS, device=device)

    def check_target(self, target: Target) -> Sequence[str]:
        """Return `tuner`, which is for GPUs."""
        return ("tuner",) if target.attrs.get("tuner") else ()

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return a rule per row of the table."""
        from intarsia.backends.arm_acl.patterns import OPERATORS

        return pattern_rules(OPERATORS, partial(_all_refusals, self))

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Refuse a region of which the library refuses a part once it is together."""
        graph, nodes = candidate.region.graph, candidate.region.nodes
        try:
            problem = self.find_problem(graph, nodes, context, with_operands=False)
        except BackendError as error:
            problem = (ReasonCode.UNAVAILABLE, error.message)
        return None if problem is None else refuse(graph.nodes[nodes[0]], context, *problem)

    def find_problem(
        self,
        graph: Graph,
        nodes: Sequence[int],
        context: BuildContext,
        *,
        with_operands: bool = True,
    ) -> Verdict:
        """Return nothing, or why nodes are not taken together.

        Args:
            graph: Where they are.
            nodes: Their ids.
            context: Names the target.
            with_operands: Whether the nodes that dequantise their operands are beside them.

        Raises:
            BackendError: The library cannot be asked.
        """
        from intarsia.backends.arm_acl.builder import NotTaken
        from intarsia.backends.arm_acl.patterns import dequantising
        from intarsia.graph.region import Region

        together = {*nodes, *dequantising(graph, nodes)} if with_operands else nodes
        try:
            program, _ = self._lower(Region.of(graph, sorted(together)), context)
        except NotTaken as answer:
            return answer.code, answer.reason
        problem = self.helper(context).validate(program)
        return (ReasonCode.UNSUPPORTED_OP, f"the library says: {problem}") if problem else None

    def groups(self, region: Region, context: BuildContext) -> Sequence[FusedGroup]:
        """Return the nodes of each function: with bias, activation and quantising."""
        from intarsia.backends.arm_acl.fusion import fused_groups

        return fused_groups(region)

    def helper(self, context: BuildContext) -> Helper:
        """Return what asks the library on the machine of a target.

        Raises:
            BackendError: There is no library, no compiler, or no such machine.
        """
        runner = _runner(context)
        if runner == HERE and not _is_here(context):
            runner = _emulator()
        return helper_of(self.toolchain(context.target.target), runner)

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as a program for its machine, with its constants referred to.

        Raises:
            BackendError: The program does not build, or the border is not plain.
        """
        from intarsia.backends.arm_acl.builder import NotTaken
        from intarsia.graph.arena import align_array
        from intarsia.graph.extract import aligned_constant

        region, graph = candidate.region, candidate.region.graph
        for values, states in (
            (region.inputs, candidate.inputs),
            (region.outputs, candidate.outputs),
        ):
            read_blocks(region, values, states, self.name, blocks=(0,))
        try:
            program, constants = self._lower(region, context)
        except NotTaken as answer:
            raise BackendError(answer.reason, backend=self.name) from answer
        toolchain = self.toolchain(context.target.target)
        num_threads = context.attrs.get("num_threads") or context.num_threads
        source = make_source(program, _REGION, len(region.inputs), num_threads)
        sources = {f"{_REGION}.cpp": source, **agent_sources((_REGION,))}
        built = np.frombuffer(toolchain.executable(sources), np.uint8)
        # A constant, which packages and programs refer to and do not copy, as they do weights.
        executable = ArtifactConstant(f"{_REGION}.elf", align_array(built), is_packed=True)
        inputs, outputs = border_specs(candidate)

        def artifact_constant(constant: int | DerivedConstant) -> ArtifactConstant:
            if not isinstance(constant, int):
                array = align_array(constant.array)
                return ArtifactConstant(constant.name, array, is_packed=True)
            return ArtifactConstant(graph.values[constant].name, aligned_constant(graph, constant))

        return Artifact(
            backend=self.name,
            version=self.version(),
            target=str(candidate.target),
            payload=source.encode(),
            inputs=inputs,
            outputs=outputs,
            constants=(executable, *map(artifact_constant, constants)),
            metadata={
                ABOUT: f"Arm Compute Library {toolchain.library.version}, {_summary(program)}",
                _RUNNER: _runner(context),
            },
        )

    def linked_program(self, region: Region, context: BuildContext) -> Program:
        """Return a region as a C function that calls the library, with its machine code.

        Raises:
            BackendError: It does not build, or the library does not take it.
        """
        from intarsia.backends.arm_acl.builder import NotTaken
        from intarsia.backends.arm_acl.linked import make_linked_program

        try:
            tables, constants = self._lower(region, context)
        except NotTaken as answer:
            raise BackendError(answer.reason, backend=self.name) from answer
        num_threads = context.attrs.get("num_threads") or context.num_threads
        toolchain = self.toolchain(context.target.target)
        return make_linked_program(region, tables, constants, toolchain, num_threads)

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Return host memory."""
        return HostDevice(options)

    def load(self, artifact: Artifact, device: Device) -> RemoteExecutable:
        """Bring the program to its machine.

        Raises:
            PackageError: The artifact is damaged.
        """
        runner = artifact.metadata.get(_RUNNER)
        if not runner or not artifact.constants:
            raise PackageError(
                f"an artifact of {self.name} is damaged: it lacks its program or its runner",
                target=artifact.target,
            )
        executable, *constants = artifact.constants
        return RemoteExecutable(
            executable.data.tobytes(),
            parse_runner(runner),
            artifact.target,
            constants=[constant.data for constant in constants],
            seconds=self.settings.call_seconds,
        )

    def _lower(
        self, region: Region, context: BuildContext
    ) -> tuple[AclProgram, Sequence[int | DerivedConstant]]:
        """Return the program of a region, and its constants."""
        from intarsia.backends.arm_acl.fusion import make_program

        fast = bool(context.attrs.get("enable_fast_math"))
        return make_program(region, self.helper(context).validate, fast=fast)


def _runner(context: BuildContext) -> str:
    """Return the way to the machine: the target's, else that of the target that it refines."""
    return str(context.attrs.get(_RUNNER) or context.refined.attrs.get(_RUNNER) or HERE)


def _is_here(context: BuildContext) -> bool:
    """Tell whether the target is this machine; another one may be compiled for, and not run."""
    triple = context.refined.attrs.get("mtriple") or ""
    return not triple.startswith(_ARCH) or platform.machine() == _ARCH


def _emulator() -> str:
    """Return what asks the library here for a machine that no runner leads to.

    Raises:
        BackendError: There is none.
    """
    for name in _EMULATORS:
        if shutil.which(name):
            return name
    raise BackendError(
        f"the library is asked what it takes, and nothing here runs programs for {_ARCH}",
        backend="arm_acl",
        hint="name the way to a machine that does (-runner=), or install qemu-user-static",
    )


def _summary(program: AclProgram) -> str:
    """Return how many calls of which function there are."""
    counts = Counter(call.function for call in program.calls)
    listed = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    return f"{counts.total()} functions: {listed}"


def _all_refusals(
    backend: ArmAclBackend, graph: Graph, context: BuildContext
) -> Mapping[int, Refusal]:
    """Return the refusals of nodes, which are found once for a target."""
    by_target = _known_refusals(graph)
    key = f"{context.target.target} {_runner(context)}"
    if key not in by_target:
        by_target[key] = _find_refusals(backend, graph, context)
    return by_target[key]


@per_graph
def _known_refusals(_graph: Graph) -> dict[str, Mapping[int, Refusal]]:
    return {}


def _find_refusals(
    backend: ArmAclBackend, graph: Graph, context: BuildContext
) -> Mapping[int, Refusal]:
    from intarsia.backends.arm_acl.patterns import PATTERNS, why_not
    from intarsia.codegen.lower.operation import Operation
    from intarsia.graph.pattern import match_region
    from intarsia.graph.region import Region

    disabled = tuple(context.attrs.get("disabled_ops") or ())
    try:
        toolchain, helper = backend.toolchain(context.target.target), backend.helper(context)
        helper.validate(AclProgram((), ()))
    except BackendError as error:
        unavailable = (ReasonCode.UNAVAILABLE, error.message, error.hint)
        return {node.id: refuse(node, context, *unavailable) for node in graph.nodes}
    refusals = {}
    for node in graph.nodes:
        answer = why_not(Operation(graph, node), disabled)
        if answer is not None:
            refusals[node.id] = refuse(node, context, answer.code, answer.reason)
    taken = Region.of(graph, [node.id for node in graph.nodes if node.id not in refusals])
    for match in match_region(taken, PATTERNS):
        if backend.find_problem(graph, match.members, context) is None:
            continue
        for member in match.members:  # what follows an operator that is refused may be taken
            problem = backend.find_problem(graph, (member,), context)
            if problem is not None:
                refusals[member] = refuse(graph.nodes[member], context, *problem)
    return {**refusals, **refuse_defects(graph, context, DEFECTS, toolchain.library.version)}


BACKEND = ArmAclBackend()
