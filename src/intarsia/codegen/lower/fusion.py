# SPDX-License-Identifier: Apache-2.0
"""Which operators of a region run as one, and which tensors at its border are better blocked.

Both are told before anything is lowered. A value has one natural layout; who reads it in the other
one pays for a conversion. What follows the layout of its operands (`Add`, pooling, `Concat`) has,
with all that it reads and makes, either one: such values are a *component*, and blocked or plain
together.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from intarsia.codegen.lower.groups import KernelGroup, make_groups, split_tables, widen_later
from intarsia.codegen.lower.layouts import Borders, LayoutPlan, Wish, plan_layouts
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.operators import BYTES, entry_of
from intarsia.codegen.lower.products import dots_key
from intarsia.codegen.lower.recipes import (
    ANCHOR,
    Recipe,
    is_elementwise,
    is_worth_a_table,
    make_chain,
    recipe,
)
from intarsia.codegen.lower.views import CHANNELS
from intarsia.codegen.patterns import FUSED_SHAPES, SPELLINGS
from intarsia.codegen.patterns.attention import read_attention
from intarsia.codegen.patterns.blocks import read_blocks
from intarsia.codegen.patterns.codes import read_codes
from intarsia.codegen.patterns.fixed_point import read_fixed_point
from intarsia.codegen.patterns.quantised import read_quantised
from intarsia.codegen.patterns.quantised_convolutions import read_quantised_convolutions
from intarsia.codegen.patterns.quantised_pools import read_quantised_pools
from intarsia.codegen.patterns.shape import FusedChain, find_chains
from intarsia.codegen.patterns.spelling import read_operations
from intarsia.codegen.unit import CpuModel, Requantise
from intarsia.graph.graph import ABSENT, Graph, Value, item_bytes
from intarsia.graph.region import Region
from intarsia.graph.state import can_block


@dataclass(frozen=True, slots=True)
class FusedRegion:
    """What a region's kernels compute, before there are any.

    Attributes:
        groups: Operators of one kernel each, in the order in which they run.
        layouts: Of values between them.
        chains: Groups that are lowered together, by the result of the last.
    """

    groups: tuple[KernelGroup, ...]
    layouts: LayoutPlan
    chains: Mapping[int, FusedChain]


def fuse_region(
    region: Region,
    unit: CpuModel,
    borders: Borders | None = None,
    requantise: Requantise = Requantise.ONNX,
    most_buffers: int | None = None,
    settled: Container[str] = (),
) -> FusedRegion:
    """Return which operators of a region run as one.

    Args:
        region: Nodes that are all taken.
        unit: The vector unit of the target.
        borders: Which inputs and outputs are blocked; None for none.
        requantise: How sums of codes become codes.
        most_buffers: Arrays that a kernel can be given; None for any number.
        settled: Of what the program for all sizes has noted in which order it sums.
    """
    graph, outputs = region.graph, frozenset(region.outputs)
    groups, wishes = group_region(region, unit, requantise, most_buffers, settled)
    inputs = borders.inputs if borders else None
    layouts = plan_layouts(graph, groups, wishes, outputs, unit.lanes(), inputs)
    chains = find_chains(FUSED_SHAPES, graph, groups, layouts, outputs, unit)
    return FusedRegion(tuple(groups), layouts, chains)


def group_region(
    region: Region,
    unit: CpuModel,
    requantise: Requantise = Requantise.ONNX,
    most_buffers: int | None = None,
    settled: Container[str] = (),
) -> tuple[list[KernelGroup], list[Wish]]:
    """Return the groups of a region, and what each wants of layouts; see `fuse_region`."""
    graph = region.graph
    operations = read_attention(region, read_operations(region, SPELLINGS))
    if requantise is Requantise.TFLITE:
        operations = read_fixed_point(region, operations)

    def takes_computed(product: Operation) -> bool:
        return unit.has_byte_dots and dots_key(product) not in settled

    operations = read_quantised(region, operations, takes_computed)
    operations = read_quantised_convolutions(region, operations)
    operations = read_quantised_pools(region, operations)
    operations = read_blocks(region, operations)
    outputs = frozenset(region.outputs)

    def fits(group: KernelGroup) -> bool:
        return most_buffers is None or _count_buffers(group) <= most_buffers

    groups = make_groups(graph, operations, outputs, _accepts, is_elementwise, fits)
    groups = widen_later(groups, outputs, _widens, is_elementwise, fits)
    groups = split_tables(groups, _is_byte, is_worth_a_table, is_elementwise)
    return groups, [_wish(group, unit) for group in groups]


def _count_buffers(group: KernelGroup) -> int:
    """Return how many arrays a group's kernel is given, or a few more."""
    graph, anchor = group.anchor.graph, group.anchor
    if is_elementwise(anchor):
        items = [(member.node.outputs[0], recipe(member)) for member in group.members]
        return len(make_chain(graph, items).sources) + 1
    items = [(anchor.node.outputs[0], Recipe((ANCHOR,), ()))]
    items += [(member.node.outputs[0], recipe(member)) for member in group.chain]
    # A constant number becomes part of the code or of packed weights.
    own = {
        value.id for value in anchor.inputs if value.constant is None or prod(value.shape or ()) > 1
    }
    sources = make_chain(graph, items, anchor.output.dtype).sources
    others = [source for source in sources if not isinstance(source, int) or source not in own]
    # What makes floats of sums of codes: a factor, an offset and sums of the weights.
    numbers = 3 if any(value.dtype in BYTES for value in anchor.inputs) else 0
    return len(own) + len(others) + numbers + len(anchor.outputs)


def _wish(group: KernelGroup, unit: CpuModel) -> Wish:
    wish = entry_of(group.anchor).wish(group.anchor, unit)
    if wish.output == "follow" and not _is_blockable(group):
        return Wish(borders=wish.borders)
    return wish


def _is_blockable(group: KernelGroup) -> bool:
    """Tell whether a group's result can be blocked: it has channels, and is of floats or codes."""
    return len(group.anchor.output_shape) > 2 and all(  # noqa: PLR2004 - batch and channels
        value.dtype in _BLOCKED for member in group.members for value in member.outputs
    )


_BLOCKED = BYTES | {"float32"}


def _accepts(operation: Operation) -> bool:
    return entry_of(operation).has_epilogue


def _is_byte(value: Value) -> bool:
    return value.dtype in BYTES


def _widens(operation: Operation) -> bool:
    return operation.op_type == "DequantizeLinear" and item_bytes(operation.inputs[0].dtype) == 1


def best_borders(region: Region, unit: CpuModel) -> Borders:
    """Return the border with which a region converts fewest bytes of layouts.

    A tensor is blocked where that costs as little as plain, too (what follows its operands, what is
    read in both layouts): it may save its maker or another reader a conversion.

    Args:
        region: Nodes that are all taken.
        unit: The vector unit of the target; its lanes are the channels of a block.
    """
    region, lanes = read_codes(region), unit.lanes()
    groups, wishes = group_region(region, unit)
    sketch = _Sketch(region, groups, wishes, lanes)
    chosen = Borders()
    least = sketch.converted_bytes(chosen)
    # Whole components first: a single tensor of one would be converted at the component's other
    # ends. Then each end by itself. Greedy in the order of the border: trying all sets would be
    # exponential in its tensors.
    for ends in sketch.components():
        wanted = chosen
        for end in ends:
            wanted = _with(wanted, end, lanes)
        cost = sketch.converted_bytes(wanted)
        for end in ends:
            fewer = _with(wanted, end, 0)
            bytes_then = sketch.converted_bytes(fewer)
            if bytes_then < cost:
                wanted, cost = fewer, bytes_then
        if cost <= least:
            chosen, least = wanted, cost
    return chosen


@dataclass(frozen=True, slots=True)
class _End:
    """A tensor at the border."""

    value: int
    is_input: bool


def _with(borders: Borders, end: _End, block: int) -> Borders:
    """Return a border with one tensor blocked; with 0, plain."""
    side = dict(borders.inputs if end.is_input else borders.outputs)
    side.pop(end.value, None)
    if block:
        side[end.value] = block
    return replace(borders, **{"inputs" if end.is_input else "outputs": side})


@dataclass(slots=True)
class _Sketch:
    """A region as reads of values in layouts."""

    region: Region
    groups: Sequence[KernelGroup]
    wishes: Sequence[Wish]
    lanes: int

    @property
    def graph(self) -> Graph:
        """Where the region is from."""
        return self.region.graph

    def converted_bytes(self, borders: Borders) -> int:
        """Return the bytes of values that are needed in a layout that is not theirs."""
        region, outputs = self.region, frozenset(self.region.outputs)
        blocks = plan_layouts(
            self.graph, self.groups, self.wishes, outputs, self.lanes, borders.inputs
        ).blocks
        wrong = set()
        for group, wish in zip(self.groups, self.wishes, strict=True):
            for value_id, block in _reads(self.graph, group, wish, blocks, self.lanes):
                if blocks.get(value_id, 0) != block:
                    wrong.add(value_id)
        for value_id in region.outputs:
            if blocks.get(value_id, 0) != borders.outputs.get(value_id, 0):
                wrong.add(value_id)
        values = (self.graph.values[value_id] for value_id in wrong)
        # Without spatial extent both layouts are the same bytes where channels fill blocks.
        return sum(value.nbytes for value in values if max((value.shape or ())[2:], default=1) > 1)

    def components(self) -> list[list[_End]]:
        """Return the border tensors that can be blocked, by component, in order."""
        owners: dict[int, int] = {}

        def owner(value_id: int) -> int:
            while owners.get(value_id, value_id) != value_id:
                value_id = owners[value_id]
            return value_id

        for group, wish in zip(self.groups, self.wishes, strict=True):
            if wish.output == "follow":
                results = (value for value in group.members[-1].node.outputs if value != ABSENT)
                for value_id in (*results, *wish.follows, *_operands(self.graph, group)):
                    owners[owner(value_id)] = owner(group.result)
        ends: dict[int, list[_End]] = {}
        for values, is_input in ((self.region.inputs, True), (self.region.outputs, False)):
            for value_id in values:
                value = self.graph.values[value_id]
                shape = value.shape if value.is_static else None
                if shape and can_block(value.dtype, shape, self.lanes):
                    ends.setdefault(owner(value_id), []).append(_End(value_id, is_input))
        return list(ends.values())


def _reads(
    graph: Graph, group: KernelGroup, wish: Wish, blocks: Mapping[int, int], lanes: int
) -> Iterator[tuple[int, int]]:
    """Yield which values a group reads, and in blocks of how many channels."""
    block = blocks.get(group.result, 0)
    operands = _operands(graph, group)
    for position, value_id in enumerate(group.anchor.node.inputs):
        if value_id == ABSENT or graph.values[value_id].constant is not None:
            continue
        if wish.output == "blocked" and position == 0:  # few plain channels are read as they are
            is_wide = (graph.values[value_id].shape or ())[CHANNELS] >= lanes
            yield value_id, lanes if is_wide else blocks.get(value_id, 0)
        elif value_id in wish.follows:
            yield value_id, block
        elif value_id not in operands:
            yield value_id, 0
    for value_id in operands:
        yield value_id, block


def _operands(graph: Graph, group: KernelGroup) -> set[int]:
    """Return what elementwise operators of a group read in the layout of its result."""
    results = {value for member in group.members for value in member.node.outputs}
    rank = len(group.anchor.output_shape)
    read = {value for member in group.chain for value in member.node.inputs}
    return {
        value
        for value in read - results - {ABSENT}
        if graph.values[value].constant is None and len(graph.values[value].shape or ()) == rank
    }
