# SPDX-License-Identifier: Apache-2.0
"""A fused shape as data: what follows what, and how that is lowered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.layouts import LayoutPlan
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.unit import CpuModel
from intarsia.graph.graph import Graph

GroupChain: TypeAlias = tuple[KernelGroup, ...]
Link: TypeAlias = Callable[[Operation, CpuModel], bool]
"""Tells whether an operation can anchor the group at one place of a chain."""


@dataclass(frozen=True, slots=True)
class FusedShape:
    """Groups that follow one another, each read by the next one alone, as blocked data.

    Attributes:
        name: What it is called.
        links: What anchors each group, in order.
        least: How many of them must be there; what follows is taken if it is.
        lower: Appends the calls of a chain.
    """

    name: str
    links: tuple[Link, ...]
    least: int
    lower: Callable[[Assembler, GroupChain], None]


@dataclass(frozen=True, slots=True)
class FusedChain:
    """Groups that have a shape."""

    shape: FusedShape
    groups: GroupChain


def find_chains(
    shapes: Iterable[FusedShape],
    graph: Graph,
    groups: Sequence[KernelGroup],
    plan: LayoutPlan,
    outputs: frozenset[int],
    unit: CpuModel,
) -> Mapping[int, FusedChain]:
    """Return the chains of groups that have a shape, by the result of their last groups.

    Args:
        shapes: What to find; earlier ones have priority.
        graph: Where the groups are from.
        groups: In the order in which they run.
        plan: Layouts of values.
        outputs: Values that are seen outside the region.
        unit: What kernels are shaped for.
    """
    by_anchor = {group.anchor.node.id: group for group in groups}

    def reader(group: KernelGroup) -> KernelGroup | None:
        """Return the group that alone reads the result of one, as blocked data."""
        consumers = graph.values[group.result].consumers
        then = by_anchor.get(consumers[0]) if len(consumers) == 1 else None
        # A part of a joined tensor has its place there; a band in scratch memory would have to be
        # copied to it.
        if then is None or group.result in outputs or group.result in plan.parents:
            return None
        inputs = then.anchor.node.inputs
        is_data = inputs[0] == group.result and inputs.count(group.result) == 1
        return then if is_data and plan.blocks.get(group.result) else None

    def chain(shape: FusedShape, first: KernelGroup) -> GroupChain:
        """Return the groups from one on, as far as they have a shape."""
        linked: list[KernelGroup] = []
        group: KernelGroup | None = first
        for link in shape.links:
            if group is None or not link(group.anchor, unit):
                break
            linked.append(group)
            group = reader(group)
        return tuple(linked)

    chains: dict[int, FusedChain] = {}
    taken: set[int] = set()
    for shape in shapes:
        for first in groups:
            linked = chain(shape, first)
            results = {group.result for group in linked}
            # What one chain ends with may begin another, which would read what the first one does
            # not keep.
            if len(linked) >= shape.least and taken.isdisjoint(results):
                chains[linked[-1].result] = FusedChain(shape, linked)
                taken |= results
    return chains
