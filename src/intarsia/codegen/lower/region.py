# SPDX-License-Identifier: Apache-2.0
"""From a region to a program: refusals, groups, layouts, kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from intarsia.codegen.ir import Function
from intarsia.codegen.lower.assembler import Assembler, ignore
from intarsia.codegen.lower.groups import Group, make_groups
from intarsia.codegen.lower.layouts import Borders, LayoutPlan, Wish, plan_layouts
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.operators import Operator, find
from intarsia.codegen.lower.program import Program
from intarsia.codegen.lower.recipes import is_elementwise
from intarsia.codegen.lower.schedules import HEURISTICS, Chooser
from intarsia.codegen.patterns import FUSED_SHAPES
from intarsia.codegen.patterns.shape import FusedChain, find_chains
from intarsia.codegen.unit import VectorUnit, WinogradMode
from intarsia.errors import InternalError
from intarsia.graph.graph import Graph, Node
from intarsia.graph.region import Region


def refuse_node(graph: Graph, node: Node) -> tuple[str, str] | None:
    """Say why a node is not taken.

    Returns:
        Nothing; or what is in the way (`op`, `dtype` or `shape`), and a sentence.
    """
    operation = Operation(graph, node)
    entry = find(operation)
    if entry is None:
        return "op", f"there is no native code for {node.domain or 'ai.onnx'}.{node.op_type}"
    for value in (*operation.inputs, *operation.outputs):
        if not value.is_static:
            return "shape", f"the shape of {value.name!r} is not known when compiling"
    for value in (*operation.inputs[:1], *operation.outputs):
        if value.dtype not in entry.dtypes:
            return "dtype", f"{node.op_type} of {value.dtype} has no native code"
    problem = entry.refuse(operation)
    return None if problem is None else ("op", problem)


def lower_region(
    region: Region,
    unit: VectorUnit,
    winograd: WinogradMode = WinogradMode.OFF,
    announce: Callable[[Function], None] = ignore,
    *,
    half_weights: bool = False,
    chooser: Chooser = HEURISTICS,
    threads: int = 1,
    borders: Borders | None = None,
) -> Program:
    """Return the program of a region whose nodes are all taken.

    Args:
        region: What to lower.
        unit: The vector unit of the target.
        winograd: Which convolutions may be computed by Winograd's transforms.
        announce: Told each kernel as soon as it is made.
        half_weights: Whether large weights of products with few rows may be kept as float16.
        chooser: Says how kernels run that have a choice.
        threads: Of a run; they decide how kernels are cut, and no result.
        borders: Which inputs and outputs are blocked, by as many channels as the unit has lanes;
            None for none.
    """
    borders = borders or Borders()
    fused = fuse_region(region, unit, borders)
    assembler = Assembler(
        graph=region.graph,
        region=region,
        unit=unit,
        plan=fused.layouts,
        winograd=winograd,
        announce=announce,
        half_weights=half_weights,
        chooser=chooser,
        threads=threads,
        outputs=borders.outputs,
    )
    inner = {group.result for chain in fused.chains.values() for group in chain.groups[:-1]}
    for group in fused.groups:
        chain = fused.chains.get(group.result)
        if chain is not None:
            chain.shape.lower(assembler, chain.groups)
        elif group.result not in inner:
            _entry(group.anchor).lower(assembler, group)
    return assembler.finish()


@dataclass(frozen=True, slots=True)
class FusedRegion:
    """What a region's kernels compute, before there are any.

    Attributes:
        groups: Operators of one kernel each, in the order in which they run.
        layouts: Of values between them.
        chains: Groups that are lowered together, by the result of the last.
    """

    groups: tuple[Group, ...]
    layouts: LayoutPlan
    chains: Mapping[int, FusedChain]


def fuse_region(region: Region, unit: VectorUnit, borders: Borders | None = None) -> FusedRegion:
    """Return which operators of a region run as one.

    Args:
        region: Nodes that are all taken.
        unit: The vector unit of the target.
        borders: Which inputs and outputs are blocked; None for none.
    """
    graph, outputs = region.graph, frozenset(region.outputs)
    groups, wishes = group_region(region, unit)
    inputs = borders.inputs if borders else None
    layouts = plan_layouts(graph, groups, wishes, outputs, unit.lanes(), inputs)
    chains = find_chains(FUSED_SHAPES, graph, groups, layouts, outputs, unit)
    return FusedRegion(tuple(groups), layouts, chains)


def group_region(region: Region, unit: VectorUnit) -> tuple[list[Group], list[Wish]]:
    """Return the groups of a region, and what each wants of layouts."""
    graph = region.graph
    operations = [Operation(graph, graph.nodes[node]) for node in region.nodes]
    groups = make_groups(graph, operations, frozenset(region.outputs), _accepts, _can_join)
    return groups, [_wish(group, unit) for group in groups]


def _wish(group: Group, unit: VectorUnit) -> Wish:
    wish = _entry(group.anchor).wish(group.anchor, unit)
    if wish.output == "follow" and not _is_blockable(group):
        return Wish(borders=wish.borders)
    return wish


def _is_blockable(group: Group) -> bool:
    """Tell whether a group's result can be blocked: it has channels, and is of 4 bytes."""
    return len(group.anchor.output_shape) > 2 and all(  # noqa: PLR2004 - batch and channels
        value.dtype == "float32" for member in group.members for value in member.outputs
    )


def _accepts(operation: Operation) -> bool:
    return _entry(operation).has_epilogue


def _can_join(operation: Operation) -> bool:
    return is_elementwise(operation)


def _entry(operation: Operation) -> Operator:
    entry = find(operation)
    if entry is None:
        raise InternalError(f"{operation.op_type} is no native operator", node=operation.node.name)
    return entry
