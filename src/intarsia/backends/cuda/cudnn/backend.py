# SPDX-License-Identifier: Apache-2.0
"""The kind `cudnn`: a partial backend of cuDNN's graphs, on the device that `cuda` opens.

Attributes: `math_type`, `conv_algorithm`, `deterministic`, `workspace_size`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.backends.artifact import refuse, unpack_payload
from intarsia.backends.cuda.cudnn.graphs import DnnProgram, EngineRules
from intarsia.backends.cuda.cudnn.library import BACKEND_NAME, library
from intarsia.backends.cuda.library_backend import CudaLibraryBackend, region_matches
from intarsia.backends.cuda.library_program import RegionTensors
from intarsia.errors import ReasonCode

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.backends.cuda.cudnn.execution import CudnnExecutable
    from intarsia.backends.cuda.device import CudaView
    from intarsia.backends.values import Artifact, BuildContext, Refusal
    from intarsia.graph.graph import Graph
    from intarsia.graph.pattern import Table
    from intarsia.graph.region import Region


@dataclass(frozen=True)
class CudnnBackend(CudaLibraryBackend):
    """Serves the kind `cudnn`."""

    name = BACKEND_NAME
    title = "cuDNN"
    kinds = (BACKEND_NAME,)

    def library_version(self) -> str:
        """Return the version of cuDNN.

        Raises:
            BackendError: It is not installed, or too old.
        """
        return library().version()

    def table(self) -> Table:
        """Return what cuDNN computes, as patterns."""
        from intarsia.backends.cuda.cudnn.table import TABLE  # running a package reads no graph

        return TABLE

    def refuse_on_device(self, graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
        """Refuse what cuDNN has no engine for on this device; it is asked for each match."""
        from intarsia.backends.cuda.cudnn.asking import problems  # running a package reads no graph

        found = problems(graph, rules_of(context), self.device(context).number)
        return {
            node: refuse(graph.nodes[node], context, ReasonCode.UNSUPPORTED_OP, problem)
            for node, problem in found.items()
        }

    def write(self, region: Region, context: BuildContext) -> tuple[DnnProgram, dict[str, Array]]:
        """Return a region as graphs, and its constants by name.

        Raises:
            BackendError: A node is of no pattern.
        """
        return program_of(region, context)

    def executable(self, artifact: Artifact, view: CudaView) -> CudnnExecutable:
        """Return graphs that are loaded.

        Raises:
            BackendError: The library has no engine for a graph.
            ExecutionError: The weights do not fit.
            PackageError: The artifact is damaged.
        """
        from intarsia.backends.cuda.cudnn.execution import CudnnExecutable

        return CudnnExecutable(artifact, unpack_payload(artifact, DnnProgram), view)


def program_of(region: Region, context: BuildContext) -> tuple[DnnProgram, dict[str, Array]]:
    """Return a region as graphs, and its constants by name.

    Raises:
        BackendError: A node is of no pattern.
    """
    from intarsia.backends.cuda.cudnn.drafts import graph_of
    from intarsia.backends.cuda.cudnn.table import TABLE

    tensors = RegionTensors(region)
    matches = region_matches(region, TABLE, BACKEND_NAME, "operation of cuDNN's")
    graphs = [graph_of(match, tensors) for match in matches]
    program = DnnProgram(tensors.tensors, graphs, tensors.scratch_bytes, rules_of(context))
    return program, tensors.constants


def rules_of(context: BuildContext) -> EngineRules:
    """Return which engines a target allows."""
    attrs = context.attrs
    size = attrs.get("workspace_size")
    return EngineRules(
        str(attrs.get("math_type") or "default"),
        str(attrs.get("conv_algorithm") or ""),
        bool(attrs.get("deterministic")),
        -1 if size is None else int(size),
    )


BACKEND = CudnnBackend()
