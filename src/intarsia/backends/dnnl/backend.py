# SPDX-License-Identifier: Apache-2.0
"""The `dnnl` kind: a partial backend of oneDNN's primitives.

A region is lowered to a program of fused primitives that names no layout (`fusion`); loading
chooses implementations and layouts for this CPU and reorders constants (`assembly`).
Attributes: `precision`, `fpmath`, `num-cores`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from intarsia.backends.api import (
    ABOUT,
    Artifact,
    Constant,
    Detection,
    Device,
    HostDevice,
    ReasonCode,
    Refusal,
    Rule,
    RunOptions,
)
from intarsia.backends.artifact import align_array, probe_nodes, refuse, tensor_spec
from intarsia.backends.dnnl.assembly import Assembler
from intarsia.backends.dnnl.execution import DnnlExecutable
from intarsia.backends.dnnl.library import StatusError, driver
from intarsia.backends.dnnl.program import Program, decode, encode
from intarsia.backends.dnnl.threads import warn_of_several
from intarsia.errors import BackendError
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.candidate import BuildContext, Candidate
    from intarsia.backends.dnnl.table import Entry
    from intarsia.cost.cost import Cost
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice


class DnnlBackend:
    """Serves the kind `dnnl`."""

    name = "dnnl"
    kinds = ("dnnl",)

    def version(self) -> str:
        """Return oneDNN's version.

        Raises:
            BackendError: It is missing, too old, or cannot be used.
        """
        return ".".join(map(str, driver().version))

    def detect(self) -> Detection:
        """Return this machine's CPU, or why oneDNN cannot be used."""
        try:
            driver()
        except BackendError as error:
            return Detection(reason=error.message, hint=error.hint or "")
        return Detection((Target("dnnl"),), is_default=False)

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return a rule per pattern of the table."""
        from intarsia.backends.dnnl.table import TABLE

        del context
        return tuple(
            Rule(entry.name, partial(_refuse_others, entry), f"pattern {entry.name!r}")
            for entry in TABLE
        )

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: what is taken node by node is taken together."""
        del candidate, context
        return None

    def estimate(self, candidate: Candidate, context: BuildContext) -> Cost | None:
        """Return nothing: it has to be measured."""
        del candidate, context
        return None

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as a program of primitives with its constants referred to."""
        from intarsia.graph.extract import constant_array

        region, graph = candidate.region, candidate.region.graph
        program, constants = _lower(region, context)
        arrays = graph.memo.setdefault("constant_arrays", {})  # one array serves all regions
        for value_id in constants:
            if value_id not in arrays:
                arrays[value_id] = align_array(constant_array(graph.values[value_id]))
        return Artifact(
            backend=self.name,
            version=self.version(),
            target=str(candidate.target),
            payload=encode(program),
            inputs=tuple(tensor_spec(graph.values[i]) for i in region.inputs),
            outputs=tuple(tensor_spec(graph.values[i]) for i in region.outputs),
            constants=tuple(Constant(graph.values[i].name, arrays[i]) for i in constants),
            metadata={ABOUT: _summary(program)},
        )

    def open(self, placed: VirtualDevice, options: RunOptions) -> Device:
        """Return host memory."""
        del placed
        return HostDevice(options)

    def gomp_parallel(self) -> int:
        """Return where the library's OpenMP runtime starts its team; 0 for a library without."""
        try:
            return driver().address("GOMP_parallel")
        except BackendError:
            return 0

    def load(self, artifact: Artifact, device: Device) -> DnnlExecutable:
        """Choose implementations and layouts, and put the constants into these.

        Raises:
            BackendError: oneDNN does not compute a primitive here.
            PackageError: The artifact is damaged.
        """
        program = decode(artifact)
        warn_of_several()
        return DnnlExecutable(driver(), program, artifact, device.options.num_threads)


def _lower(region: Region, context: BuildContext) -> tuple[Program, Sequence[int]]:
    """Return the program of a region, and the values of its constants."""
    from intarsia.backends.dnnl.fusion import Fusion

    assert context.target.target is not None
    attrs = context.target.target.attrs
    fusion = Fusion(region)
    program = fusion.run(
        attrs.get("precision") or "f32",
        attrs.get("fpmath") or "strict",
        attrs.get("num-cores") or 0,
    )
    return program, fusion.constants


def _summary(program: Program) -> str:
    """Return how many primitives of which kind there are."""
    kinds = Counter(call.kind for call in program.calls if call.kind != "view")
    posts = sum(len(call.posts) for call in program.calls)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return f"{kinds.total()} primitives with {posts} post-ops: {listed}"


def _refuse_others(entry: Entry, graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
    """Refuse what is not of one pattern; of that, what the library does not compute."""
    refusals = dict(_all_refusals(graph, context))
    for node in graph.nodes:
        if node.id not in refusals and node.op_type not in entry.types:
            reason = f"it is no {entry.name}"
            refusals[node.id] = refuse(node, context, ReasonCode.UNSUPPORTED_OP, reason)
    return refusals


def _all_refusals(graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
    """Return the refusals of nodes that no pattern takes; kept with the graph."""
    from intarsia.backends.dnnl.table import find_problem

    key = f"dnnl refusals for {context.target.target}"
    known: Mapping[int, Refusal] | None = graph.memo.get(key)
    if known is not None:
        return known

    def attempt(region: Region) -> tuple[ReasonCode, str] | None:
        (node_id,) = region.nodes
        problem = find_problem(graph, graph.nodes[node_id])
        if problem is not None:
            return problem
        try:
            Assembler(driver(), _lower(region, context)[0]).run()
        except StatusError as error:
            return ReasonCode.UNSUPPORTED_OP, error.message
        return None

    graph.memo[key] = probe_nodes(graph, context, attempt)
    found: Mapping[int, Refusal] = graph.memo[key]
    return found


BACKEND = DnnlBackend()
