# SPDX-License-Identifier: Apache-2.0
"""The provider of one session: says which nodes it takes, and compiles them.

Whether a part of a graph can be compiled is found out by compiling it: what is said to ONNX Runtime
cannot be taken back. The programs wait until it asks for them.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Collection, Sequence
from ctypes import c_void_p
from typing import TYPE_CHECKING

from intarsia.compiler import compile as compile_model
from intarsia.compiler import read_setting
from intarsia.errors import BackendError, IntarsiaError, UnsupportedError
from intarsia.place.request import Request
from intarsia.provider.abi import VERSION, ComputeInfo, FusionOptions
from intarsia.provider.callbacks import (
    make_table,
    release_table,
    returning_status,
)
from intarsia.provider.contexts import load_context, make_context_node
from intarsia.provider.kernel import RegionKernel
from intarsia.provider.library import function_address
from intarsia.provider.options import NAME, ProviderOptions
from intarsia.provider.partition import group_nodes
from intarsia.provider.reading import GraphNode, OrtGraph
from intarsia.runtime.executor import PlanExecutable
from intarsia.target import CompilationConfig

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.provider.abi import OrtApi
    from intarsia.runtime.free import Program

logger = logging.getLogger("intarsia")

_COMPUTE_FUNCTIONS = ("create_state", "compute", "release_state", "callback")
_WORD = 8
_OWNERS = ("", "If", "Loop", "Scan")
"""Whose graphs may have nodes of ours. Others are functions (SequenceMap), which ONNX Runtime
writes out when our nodes are in them already, and then does not know these."""
_Key = tuple[tuple[str, ...], tuple[str, ...]]
"""Of a region: what its nodes write, and what is wanted of it."""


class SessionProvider:
    """The provider of one session.

    Args:
        api: ONNX Runtime's functions.
        options: What the session says.

    Raises:
        TargetError: The target is wrong.

    Attributes:
        api: The same.
        programs: Those that ONNX Runtime has not asked for.
    """

    def __init__(self, api: OrtApi, options: ProviderOptions) -> None:
        self.api = api
        self.programs: dict[_Key, Program] = {}
        self._options = options
        self._config = CompilationConfig.resolve(options.target)

    def find_capability(self, graph: int, support: int) -> None:
        """Say which nodes of a graph are to be one, and by that ours."""
        shown = OrtGraph.read(self.api, graph)
        by_number = {node.number: node for node in shown.nodes}
        groups = [[node.number] for node in shown.nodes if self._is_ours(shown, node)]
        if not groups:
            groups = self._settle(shown)
        for group in groups:
            nodes = (c_void_p * len(group))(*(by_number[number].address for number in group))
            fusion = FusionOptions(VERSION, drops_constants=True)
            self.api.call(
                "EpGraphSupportInfo_AddNodesToFuse",
                support,
                nodes,
                len(group),
                ctypes.byref(fusion),
            )

    def compile(self, graphs: int, fused: int, count: int, infos: int, context_nodes: int) -> None:
        """Make what ONNX Runtime calls of graphs, each of nodes that were said to be one."""
        for i in range(count):
            graph, node = (
                c_void_p.from_address(some + _WORD * i).value or 0 for some in (graphs, fused)
            )
            shown = OrtGraph.read(self.api, graph)
            name, inputs, outputs = self._ends(node)
            program = self._program(shown, outputs)
            kernel = RegionKernel(self.api, program, inputs, outputs)
            c_void_p.from_address(infos + _WORD * i).value = self._make_info(kernel, len(inputs))
            if self._options.writes_context:
                made = make_context_node(
                    self.api, self._options, program, shown.path(), (name, inputs, outputs)
                )
                c_void_p.from_address(context_nodes + _WORD * i).value = made

    def release(self, infos: int, count: int) -> None:
        """Give back what `compile` made."""
        for i in range(count):
            address = c_void_p.from_address(infos + _WORD * i).value
            if address:
                release_table(address)

    def _is_ours(self, graph: OrtGraph, node: GraphNode) -> bool:
        """Tell whether a node holds what this provider compiled before."""
        return node.is_context and graph.attributes(node).get("source") == NAME.encode()

    def _settle(self, graph: OrtGraph) -> list[list[int]]:
        """Return the nodes that are ours, in groups of which each has been compiled."""
        if graph.owner not in _OWNERS:
            return []
        taken = {node.number for node in graph.nodes if graph.takes(node)}
        before = set(self.programs)
        while taken:
            groups = group_nodes(graph.nodes, taken)
            refused = set[int]()
            for group in groups:
                refused |= self._try(graph, group)
            if not refused:
                # Other groups that were tried on the way have weights too.
                last = {_key_of(_nodes_of(graph, each), graph.results(each)) for each in groups}
                for key in set(self.programs) - before - last:
                    del self.programs[key]
                return groups
            taken -= refused
        return []

    def _try(self, graph: OrtGraph, group: Sequence[int]) -> set[int]:
        """Compile some nodes; return those for which that is not possible, none if it is."""
        nodes, outputs = _nodes_of(graph, group), graph.results(group)
        key = _key_of(nodes, outputs)
        if key in self.programs and not graph.owner:
            return set()
        numbers = {node.name: node.number for node in nodes}
        try:
            found = self._find_program(graph.model(nodes, outputs))
        except IntarsiaError as error:
            logger.warning("ONNX Runtime keeps what Intarsia cannot compile: %s", error.message)
            at_fault = numbers.get(error.node or "")
            return set(numbers.values()) if at_fault is None else {at_fault}
        if isinstance(found, set):
            refused = {numbers[name] for name in found if name in numbers}
            return refused or set(numbers.values())  # else these would be asked for ever
        self.programs[key] = found
        return set()

    def _find_program(self, model: ir.Model) -> Program | set[str]:
        """Return the program of a model, or the names of the nodes that no target takes.

        Raises:
            IntarsiaError: It cannot be compiled.
        """
        if all(_is_fixed(value) for value in model.graph.inputs):
            try:  # the usual case first: it may be among the programs that are kept
                return self._compile(model, strict=True)
            except (UnsupportedError, BackendError) as error:
                logger.info("asking for each node: %s", error.message)
        refused = self._ask(model)
        if refused:
            return refused
        program = self._compile(model)
        if isinstance(program, PlanExecutable):
            own = program.placement.targets
            for region in program.placement.regions:
                if region.target not in own:
                    refused.update(origin for node in region.nodes for origin in node.origins)
        return refused or program

    def _ask(self, model: ir.Model) -> set[str]:
        """Return the names of the nodes that no target takes."""
        setting = read_setting(self._request(model))
        own = setting.capabilities[: len(self._config.targets)]
        return {
            origin
            for node in setting.graph.nodes
            if all(node.id in one.refusals for one in own)
            for origin in node.origins
        }

    def _request(self, model: ir.Model) -> Request:
        return Request(
            model=model,
            target=self._config,
            placement=self._options.placement,
            num_threads=self._options.num_threads,
        )

    def _compile(self, model: ir.Model, *, strict: bool = False) -> Program:
        return compile_model(
            model,
            self._config,
            placement=self._options.placement,
            num_threads=self._options.num_threads,
            strict=strict,
        )

    def _program(self, graph: OrtGraph, outputs: Sequence[str]) -> Program:
        """Return the program of a graph that is ours."""
        if len(graph.nodes) == 1 and self._is_ours(graph, graph.nodes[0]):
            folder = self._options.context_file or graph.path()
            return load_context(graph.attributes(graph.nodes[0]), folder, self._options)
        program = self.programs.pop(_key_of(graph.nodes, outputs), None)
        if program is None or graph.owner:
            program = self._compile(graph.model(graph.nodes, outputs))
        return program

    def _ends(self, node: int) -> tuple[str, list[str], list[str]]:
        """Return the name of a node that stands for a graph, what it reads, and what it writes."""
        inputs, outputs = (
            [self.api.text("GetValueInfoName", one) if one else "" for one in some]
            for some in (self.api.list("Node_Inputs", node), self.api.list("Node_Outputs", node))
        )
        return self.api.text("Node_GetName", node), inputs, outputs

    def _make_info(self, kernel: RegionKernel, input_count: int) -> int:
        """Return the address of what ONNX Runtime calls to run a region."""
        words = [word for shape in kernel.shapes for word in (len(shape), *shape)]
        size = ctypes.sizeof(ComputeInfo)
        behind = size - _WORD * (1 + len(_COMPUTE_FUNCTIONS))
        owner = _Running(self.api, kernel)
        address = make_table(
            _COMPUTE_FUNCTIONS, _COMPUTE, owner, behind + _WORD * max(len(words), 1)
        )
        info = ComputeInfo.from_address(address)
        info.api, info.input_count = self.api.address, input_count
        info.output_count, info.shapes = len(kernel.shapes), address + size
        ctypes.memmove(address + size, (ctypes.c_int64 * len(words))(*words), _WORD * len(words))
        return address


class _Running:
    """A region that ONNX Runtime calls.

    Args:
        api: ONNX Runtime's functions.
        kernel: Runs it.
    """

    __slots__ = ("api", "compute")

    def __init__(self, api: OrtApi, kernel: RegionKernel) -> None:
        self.api = api
        self.compute = kernel.compute


def _nodes_of(graph: OrtGraph, group: Collection[int]) -> list[GraphNode]:
    wanted = set(group)
    return [node for node in graph.nodes if node.number in wanted]


def _key_of(nodes: Sequence[GraphNode], outputs: Sequence[str]) -> _Key:
    written = (name for node in nodes for name in node.outputs if name)
    return tuple(sorted(written)), tuple(sorted(outputs))


def _is_fixed(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.is_static()


_COMPUTE = {
    "create_state": function_address("intarsia_nothing"),
    "compute": function_address("intarsia_compute"),
    "release_state": function_address("intarsia_nothing"),
    "callback": returning_status(lambda running, *told: running.compute(*told), 4),
}
