# SPDX-License-Identifier: Apache-2.0
"""The `dnnl` kind: a partial backend of oneDNN's primitives.

A region is lowered to a program of fused primitives that names no layout (`fusion`); loading
chooses implementations and layouts for this CPU and reorders constants (`assembly`).
Attributes: `precision`, `fpmath`, `num-cores`, `special_values`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from intarsia.backends.artifact import probe_nodes, refuse
from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.borders import blocked_border, border_specs, read_blocks
from intarsia.backends.defects import refuse_defects
from intarsia.backends.device import Device, HostDevice, ThreadOptions
from intarsia.backends.dnnl.assembly import PrimitiveAssembler
from intarsia.backends.dnnl.defects import DEFECTS
from intarsia.backends.dnnl.execution import DnnlExecutable
from intarsia.backends.dnnl.library import OneDnn, StatusError, driver
from intarsia.backends.dnnl.offers import CHOOSERS
from intarsia.backends.dnnl.program import PrimitiveProgram, decode, encode
from intarsia.backends.dnnl.threads import openmp_runtimes, warn_of_several
from intarsia.backends.onednn_isa import tile_notes
from intarsia.backends.patterns import pattern_rules
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
from intarsia.errors import BackendError, ReasonCode
from intarsia.graph.per_graph import per_graph
from intarsia.graph.state import can_block
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.dnnl.numbering import Derived
    from intarsia.backends.values import Border, BuildContext, Candidate
    from intarsia.cost.cost import Cost
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice


_GENERATORS = (
    "intarsia.backends.dnnl",
    "intarsia.native.callpath",
    "intarsia.native.routine",
    "intarsia.codegen.lower.operation",
    "intarsia.codegen.lower.windows",
)


@dataclass(frozen=True)
class DnnlBackend(ConfiguredBackend):
    """Serves the kind `dnnl`. Settings say which library is loaded."""

    name = "dnnl"
    kinds = ("dnnl",)
    defects = DEFECTS

    def library(self) -> OneDnn:
        """Return oneDNN, loaded.

        Raises:
            BackendError: It is missing, too old, or cannot be used.
        """
        return driver(self.settings)

    def version(self) -> str:
        """Return oneDNN's version.

        Raises:
            BackendError: It is missing, too old, or cannot be used.
        """
        return ".".join(map(str, self.library().version))

    def detect(self) -> Detection:
        """Return this machine's CPU, or why oneDNN cannot be used."""
        try:
            self.library()
        except BackendError as error:
            return Detection.failed(error)
        return Detection((Target("dnnl"),), rank=4)

    def notes(self) -> Sequence[str]:
        """Return which library is used and why, what the CPU has, and which runtimes clash."""
        library = self.library()
        runtimes = openmp_runtimes()
        lines = [
            f"library {library.path}: {library.why}",
            f"precisions {', '.join(library.precisions)}; fast int8 "
            f"{'yes' if library.has_integer_products else 'no'}",
        ]
        lines += tile_notes("oneDNN", library.without_tiles)
        if len(runtimes) > 1:
            lines.append(f"several OpenMP runtimes in this process: {', '.join(runtimes)}")
        return lines

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return what decides which primitives a region becomes."""
        return CodeIdentity(_GENERATORS)

    def check_target(self, target: Target) -> Sequence[str]:
        """Return `fpmath` if this CPU is not faster in what it allows."""
        allowed = target.attrs.get("fpmath") or "strict"
        is_used = allowed in ("strict", "any") or allowed in self.library().precisions
        return () if is_used else ("fpmath",)

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return a rule per row of the table."""
        from intarsia.backends.dnnl.patterns import OPERATORS

        return pattern_rules(OPERATORS, partial(_all_refusals, self))

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Refuse a part of several operators that are only taken together."""
        from intarsia.backends.dnnl.chains import chains_of
        from intarsia.backends.dnnl.table import find_alone

        region = candidate.region
        for node_id in region.nodes:
            chain = chains_of(region.graph).get(node_id, ())
            if all(node in region for node in chain):
                continue
            problem = find_alone(region.graph, region.graph.nodes[node_id])
            if problem is not None:
                return refuse(region.graph.nodes[node_id], context, *problem)
        return None

    def groups(self, region: Region, context: BuildContext) -> Sequence[FusedGroup]:
        """Return the nodes of each primitive: with post-ops, or a chain that is one function."""
        from intarsia.backends.dnnl.fusion import fused_groups

        return fused_groups(region)

    def estimate(self, candidate: Candidate, context: BuildContext) -> Cost | None:
        """Return a roofline's estimate; nothing where the library is missing."""
        from intarsia.backends.dnnl.estimate import estimate_program

        try:
            program, _ = _lower(candidate.region, context)
            return estimate_program(program, self.library().isa, context.num_threads)
        except BackendError:
            return None

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as a program of primitives with its constants referred to.

        Raises:
            BackendError: A state of the border is not one that oneDNN can be given.
        """
        from intarsia.graph.arena import align_array
        from intarsia.graph.extract import aligned_constant

        region, graph = candidate.region, candidate.region.graph
        program, constants = _lower(region, context)
        program = msgspec.structs.replace(
            program,
            input_blocks=read_blocks(region, region.inputs, candidate.inputs, self.name),
            output_blocks=read_blocks(region, region.outputs, candidate.outputs, self.name),
        )
        inputs, outputs = border_specs(candidate)

        def artifact_constant(constant: int | Derived) -> ArtifactConstant:
            if not isinstance(constant, int):
                return ArtifactConstant(constant.name, align_array(constant.array))
            return ArtifactConstant(graph.values[constant].name, aligned_constant(graph, constant))

        return Artifact(
            backend=self.name,
            version=self.version(),
            target=str(candidate.target),
            payload=encode(program),
            inputs=inputs,
            outputs=outputs,
            constants=tuple(artifact_constant(constant) for constant in constants),
            metadata={ABOUT: _summary(program)},
        )

    def states(self, candidate: Candidate, context: BuildContext) -> Sequence[Border]:
        """Return the border in blocks of channels, where that saves reorders.

        A region without convolutions follows its operands: it is listed where it is as good so.
        """
        # The block is the vector's lanes: what other backends' code for this CPU uses too.
        region, block = candidate.region, self.library().block
        program, _ = _lower(region, context)
        blocks = [
            tuple(
                block if can_block(value.dtype, value.shape or (), block) else 0
                for value in (region.graph.values[i] for i in ids)
            )
            for ids in (region.inputs, region.outputs)
        ]
        if not any(map(any, blocks)):
            return ()
        blocked = msgspec.structs.replace(program, input_blocks=blocks[0], output_blocks=blocks[1])
        library = self.library()
        before, slow_before = count_waste(library, program)
        after, slow_after = count_waste(library, blocked)
        follows = all(call.kind not in CHOOSERS for call in program.calls)
        is_better = after < before or (after == before and follows)
        return (
            (blocked_border(candidate, *blocks),) if is_better and slow_after <= slow_before else ()
        )

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Return host memory."""
        return HostDevice(options)

    def gomp_parallel(self) -> int:
        """Return where the library's OpenMP runtime starts its team; 0 for a library without."""
        try:
            return self.library().address("GOMP_parallel")
        except BackendError:
            return 0

    def is_data(self, artifact: Artifact) -> bool:
        """Return that every artifact is: calls of primitives, which `decode` checks."""
        return True

    def load(self, artifact: Artifact, device: Device) -> DnnlExecutable:
        """Choose implementations and layouts, and put the constants into these.

        Raises:
            BackendError: oneDNN does not compute a primitive here.
            PackageError: The artifact is damaged.
        """
        program = decode(artifact)
        warn_of_several()
        return DnnlExecutable(self.library(), program, artifact, device.options.num_threads)


def count_waste(library: OneDnn, program: PrimitiveProgram) -> tuple[int, int]:
    """Return how many reorders a run of a program has, and how many plain loops.

    A reorder is a primitive that computes no node.
    """
    steps = PrimitiveAssembler(library, program).run().steps
    slow = sum(step.descriptor.is_reference for step in steps)
    return sum(not step.nodes for step in steps), slow


def _lower(
    region: Region, context: BuildContext
) -> tuple[PrimitiveProgram, Sequence[int | Derived]]:
    """Return the program of a region, and its constants."""
    from intarsia.backends.dnnl.fusion import make_program

    attrs = context.attrs
    return make_program(
        region,
        attrs.get("precision") or "f32",
        attrs.get("fpmath") or "strict",
        attrs.get("num-cores") or 0,
    )


def _summary(program: PrimitiveProgram) -> str:
    """Return how many primitives of which kind there are."""
    kinds = Counter(call.kind for call in program.calls if call.kind != "view")
    posts = sum(len(call.posts) for call in program.calls)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return f"{kinds.total()} primitives with {posts} post-ops: {listed}"


def _all_refusals(
    backend: DnnlBackend, graph: Graph, context: BuildContext
) -> Mapping[int, Refusal]:
    """Return the refusals of nodes that no pattern takes, which are found once for a target."""
    by_target = _known_refusals(graph)
    target = str(context.target.target)
    if target not in by_target:
        by_target[target] = _find_refusals(backend, graph, context)
    return by_target[target]


@per_graph
def _known_refusals(_graph: Graph) -> dict[str, Mapping[int, Refusal]]:
    return {}


def _find_refusals(
    backend: DnnlBackend, graph: Graph, context: BuildContext
) -> Mapping[int, Refusal]:
    from intarsia.backends.dnnl.chains import chains_of
    from intarsia.backends.dnnl.table import entry_of, find_alone, find_problem

    library = backend.library()
    exact = {}  # content decides here, and nodes with other contents count as alike below
    for node in graph.nodes:
        entry = entry_of(node)
        problem = find_problem(graph, node) if entry and entry.reads_numbers else None
        if problem is not None:
            exact[node.id] = refuse(node, context, *problem)

    def attempt(region: Region) -> tuple[ReasonCode, str] | None:
        (node_id,) = region.nodes
        problem = find_alone(graph, graph.nodes[node_id])
        if problem is not None:
            return problem
        missing = _missing_precision(library, region, context)
        if missing:
            return ReasonCode.UNSUPPORTED_DTYPE, f"this CPU has no fast {missing}"
        try:
            PrimitiveAssembler(library, _lower(region, context)[0]).run()
        except (BackendError, StatusError) as error:  # the first names the node
            return ReasonCode.UNSUPPORTED_OP, error.message
        return None

    whole = {
        node_id for node_id in chains_of(graph) if find_problem(graph, graph.nodes[node_id]) is None
    }
    defects = refuse_defects(graph, context, DEFECTS, backend.version())
    refusals = {**probe_nodes(graph, context, attempt), **exact}
    taken = {node: refusals[node] for node in refusals if node not in whole}
    return {**taken, **defects}


def _missing_precision(library: OneDnn, region: Region, context: BuildContext) -> str:
    """Return a precision that a region needs and the CPU has no instructions for, or nothing."""
    wanted = context.attrs.get("precision") or "f32"
    names = {"float32": wanted, "bfloat16": "bf16", "float16": "f16"}
    values = (region.graph.values[value] for value in (*region.inputs, *region.outputs))
    needed = {names.get(value.dtype, "f32") for value in values}
    return next((name for name in sorted(needed) if name not in library.precisions), "")


BACKEND = DnnlBackend()
