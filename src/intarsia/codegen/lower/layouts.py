# SPDX-License-Identifier: Apache-2.0
"""The layout pass: which values are blocked, which carry a border of zeros, which lie in others.

Convolutions make blocked values and want them; what works lane by lane keeps the layout of its
operand; so the blocked layout lasts from the first to the last convolution of a region, or from
and to its border where that is blocked. What a `Concat` joins is written in place, where its place
allows that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.views import CHANNELS, Pads
from intarsia.graph.graph import ABSENT, Graph
from intarsia.graph.ops import ViewKind, operator_of


@dataclass(frozen=True, slots=True)
class Parent:
    """Where a value lies inside another one.

    Attributes:
        value: The id of the whole.
        dim: The dimension that is joined.
        start: Where the part starts in it.
    """

    value: int
    dim: int
    start: int


@dataclass(frozen=True, slots=True)
class Borders:
    """Which tensors at a region's border are blocked; all others are plain.

    A blocked one is dense, and its channels are whole blocks.

    Attributes:
        inputs: Channels of a block, by value id.
        outputs: The same.
    """

    inputs: Mapping[int, int] = field(default_factory=dict)
    outputs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """What the pass decided, by value id; a value that is not there is plain and by itself.

    Blocks of what is in `channels_last` lie beside one another at each pixel.
    """

    blocks: Mapping[int, int] = field(default_factory=dict)
    pads: Mapping[int, Pads] = field(default_factory=dict)
    parents: Mapping[int, Parent] = field(default_factory=dict)
    channels_last: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Wish:
    """The layouts that a group prefers.

    Attributes:
        output: `plain`, `blocked`, or `follow`: as the operands named here are.
        follows: Values whose layout decides.
        borders: For values that are wanted blocked with zeros around them: the border.
    """

    output: str = "plain"
    follows: tuple[int, ...] = ()
    borders: tuple[tuple[int, Pads], ...] = ()


def plan_layouts(
    graph: Graph,
    groups: Sequence[KernelGroup],
    wishes: Sequence[Wish],
    outputs: frozenset[int],
    lanes: int,
    inputs: Mapping[int, int] | None = None,
) -> LayoutPlan:
    """Return the layouts of a region's values.

    Args:
        graph: Where the groups are from.
        groups: In the order in which they run.
        wishes: Of each group.
        outputs: Values that are seen outside the region.
        lanes: Channels of a block.
        inputs: Channels of a block of what enters the region blocked, by value id.
    """
    blocks: dict[int, int] = dict(inputs or {})
    for group, wish in zip(groups, wishes, strict=True):
        is_blocked = wish.output == "blocked" or (
            wish.output == "follow" and any(value in blocks for value in wish.follows)
        )
        if is_blocked and _can_join_blocked(group, blocks):
            for value in group.members[-1].node.outputs:
                if value != ABSENT and len(graph.values[value].shape or ()) > CHANNELS:
                    blocks[value] = lanes
    parents = _find_parents(graph, groups, blocks, outputs)
    pads: dict[int, Pads] = {}
    for wish in wishes:
        for value, border in wish.borders:
            if value in blocks:
                # What a `Concat` joins along the channels has the border of the whole, which lies
                # around all parts.
                root = _root(value, parents)
                pads[root] = widest(pads.get(root), border)
    made = {group.result for group in groups} - outputs - pads.keys() - parents.keys()
    channels_last = frozenset(
        value_id
        for value_id in made & blocks.keys()
        if not (graph.values[value_id].shape or ())[CHANNELS] % lanes
        and _become_tokens(graph, value_id)
    )
    return LayoutPlan(blocks, pads, parents, channels_last)


def _become_tokens(graph: Graph, value_id: int) -> bool:
    """Tell whether all that read an image put its channels last, pixels in a row or not."""
    value = graph.values[value_id]
    readers = [graph.nodes[reader] for reader in value.consumers]
    for node in readers:
        result = graph.values[node.outputs[0]]
        is_flattened = (
            operator_of(node).view is ViewKind.RESHAPED
            and len(result.shape or ()) > CHANNELS + 1
            and (result.shape or ())[: CHANNELS + 1] == (value.shape or ())[: CHANNELS + 1]
        )
        if is_flattened and _become_tokens(graph, result.id):
            continue
        if node.op_type != "Transpose" or node.ir.attributes.get_ints("perm", (0,))[-1] != CHANNELS:
            return False
    return bool(readers)


def _root(value: int, parents: Mapping[int, Parent]) -> int:
    while value in parents and parents[value].dim == CHANNELS:
        value = parents[value].value
    return value


def widest(first: Pads | None, second: Pads) -> Pads:
    """Return a border that is wide enough for both."""
    if first is None:
        return second
    pairs = zip(first, second, strict=True)
    return tuple((max(a[0], b[0]), max(a[1], b[1])) for a, b in pairs)


def _can_join_blocked(group: KernelGroup, blocks: Mapping[int, int]) -> bool:
    """Tell whether everything that a `Concat` joins along the channels is blocked."""
    if group.anchor.op_type != "Concat" or concat_dim(group) != CHANNELS:
        return True
    return all(value_id in blocks for value_id in group.anchor.node.inputs)


def concat_dim(group: KernelGroup) -> int:
    """Return the dimension that a `Concat` joins, counted from the front."""
    axis: int = group.anchor.attribute("axis", 1)
    return axis % len(group.anchor.output_shape)


def _find_parents(
    graph: Graph, groups: Sequence[KernelGroup], blocks: Mapping[int, int], outputs: frozenset[int]
) -> dict[int, Parent]:
    """Return which values are written where a `Concat` wants them.

    A value has one place: the first `Concat` that reads it gets it. What only views another value
    (`Reshape`, `Slice`) has no place of its own, and what is an output has its own. Blocked
    channels that begin inside a block are copied: what lies before them fills that block first.
    """
    written = {
        group.result for group in groups if operator_of(group.anchor.node).view is ViewKind.NONE
    }
    parents: dict[int, Parent] = {}
    for group in groups:
        if group.anchor.op_type != "Concat":
            continue
        start, dim, whole = 0, concat_dim(group), group.result
        inputs = group.anchor.node.inputs
        for value_id in inputs:
            value = graph.values[value_id]
            block = blocks.get(whole, 0)
            begins_block = dim != CHANNELS or not block or start % block == 0
            fits = blocks.get(value_id, 0) == block and begins_block
            # Joined twice, a part would have to lie in two places.
            is_free = value_id not in parents and value_id not in outputs
            if value_id in written and fits and is_free and inputs.count(value_id) == 1:
                parents[value_id] = Parent(whole, dim, start)
            start += (value.shape or ())[dim]
    return parents
