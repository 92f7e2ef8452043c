# SPDX-License-Identifier: Apache-2.0
"""From a region to a program: refusals, groups, layouts, kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from intarsia.codegen.ir import Function
from intarsia.codegen.lower.assembler import Assembler, ignore
from intarsia.codegen.lower.convolution import find_tiled_reads
from intarsia.codegen.lower.free import (
    has_free_entries,
    touches_free,
    why_not_free,
    with_extents,
    with_sizes,
)
from intarsia.codegen.lower.fusion import fuse_region
from intarsia.codegen.lower.halves import halves_of, in_singles
from intarsia.codegen.lower.layouts import Borders
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.operators import entry_of, refuse_operation
from intarsia.codegen.lower.program import Program
from intarsia.codegen.lower.schedules import HEURISTICS, Chooser
from intarsia.codegen.patterns.codes import read_codes
from intarsia.codegen.patterns.float_layers import keep_floats
from intarsia.codegen.unit import CpuModel, GpuModel, LoweringOptions, Requantise
from intarsia.graph.graph import Graph, Node
from intarsia.graph.region import Region


def refuse_node(graph: Graph, node: Node) -> tuple[str, str] | None:
    """Say why a node is not taken.

    Returns:
        Nothing; or what is in the way (`op`, `dtype` or `shape`), and a sentence.
    """
    graph = in_singles(graph)
    is_free = touches_free(graph, node)
    if is_free and has_free_entries(graph.values[node.outputs[0]]):
        return None
    problem = refuse_operation(Operation(with_sizes(graph) if is_free else graph, node))
    if problem is None and is_free:
        reason = why_not_free(graph, node.id)
        return None if reason is None else ("shape", f"{node.op_type} of free sizes: {reason}")
    return problem


def lower_region(  # noqa: PLR0913 - each is one fact of the target or of the run
    region: Region,
    machine: CpuModel | GpuModel | LoweringOptions,
    announce: Callable[[Function], None] = ignore,
    *,
    chooser: Chooser = HEURISTICS,
    threads: int = 1,
    borders: Borders | None = None,
    settled: Mapping[str, str] | None = None,
    is_sketch: bool = False,
    most_buffers: int | None = None,
) -> Program:
    """Return the program of a region whose nodes are all taken.

    Args:
        region: What to lower.
        machine: What kernels are shaped for, with what else its target says if it says anything.
        announce: Told each kernel as soon as it is made.
        chooser: Says how kernels run that have a choice.
        threads: Of a run; they decide how kernels are cut, and no result.
        borders: Which inputs and outputs are blocked, by as many channels as the unit has lanes;
            None for none.
        is_sketch: Whether nobody runs it: large weights are left out.
        settled: The `sums` of the program for all sizes, if this is one for some: sums have the
            same order then, and results are the same bits.
        most_buffers: Arrays that a kernel can be given; None for any number.
    """
    borders = borders or Borders()
    if isinstance(machine, LoweringOptions):
        options, machine = machine, machine.unit
    else:
        options = LoweringOptions(machine.item if isinstance(machine, GpuModel) else machine)
    unit = options.unit
    halves = halves_of(region.graph)
    region = Region(in_singles(region.graph), region.bits)
    nominal = region.graph
    in_floats: Mapping[str, float] = {}
    if any(touches_free(nominal, nominal.nodes[node]) for node in region.nodes):
        region = read_codes(Region(with_extents(nominal), region.bits))
        nominal = with_sizes(nominal)
    else:
        region = read_codes(region)
        if options.requantise is Requantise.ONNX and not options.is_bf16:
            region, in_floats = keep_floats(region, options.winograd, chooser)
        nominal = region.graph
    fused = fuse_region(region, unit, borders, options.requantise, most_buffers, settled or {})
    assembler = Assembler(
        graph=region.graph,
        region=region,
        machine=machine,
        plan=fused.layouts,
        winograd=options.winograd,
        announce=announce,
        half_weights=options.half_weights,
        accuracy=options.accuracy,
        is_bf16=options.is_bf16,
        chooser=chooser,
        threads=threads,
        outputs=borders.outputs,
        nominal=nominal,
        settled=settled or {},
        is_sketch=is_sketch,
        most_buffers=most_buffers,
        halves=halves,
    )
    chained = {group.result for chain in fused.chains.values() for group in chain.groups}
    single = [group for group in fused.groups if group.result not in chained]
    assembler.tiled = find_tiled_reads(assembler, single)
    inner = {group.result for chain in fused.chains.values() for group in chain.groups[:-1]}
    for group in fused.groups:
        value = region.graph.values[group.result]
        if has_free_entries(value):
            if group.result in region.outputs:
                assembler.write_entries(group.result)
            continue
        chain = fused.chains.get(group.result)
        if chain is not None:
            chain.shape.lower(assembler, chain.groups)
        elif group.result not in inner:
            entry_of(group.anchor).lower(assembler, group)
    return replace(assembler.finish(), in_floats=in_floats)
