# SPDX-License-Identifier: Apache-2.0
"""How values lie that cross between regions: row by row, or in a layout that all sides share.

A value is in a shared blocked layout if and only if who makes it and all who read it are regions
in one memory, whose backends list that layout for it (`states`), and nobody
else reads it. So no plan has a value in two layouts, and none needs a step that converts one.
Layouts follow from the regions alone: who keeps the regions of a plan has kept its layouts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from intarsia.backends.values import Candidate
from intarsia.errors import IntarsiaError, InternalError
from intarsia.graph.per_graph import per_graph
from intarsia.graph.state import BLOCKS, PLAIN, can_block
from intarsia.place.capability import calling

if TYPE_CHECKING:
    from intarsia.backends.values import ListStates
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.graph.state import TensorState
    from intarsia.place.capability import Capability
    from intarsia.target.placed import MemoryDomain, VirtualDevice

logger = logging.getLogger("intarsia")

Layouts = Mapping[int, str]
"""By value id, the layout of what is not plain."""


@dataclass(frozen=True, slots=True)
class Side:
    """A region with who runs it where.

    Attributes:
        region: What runs.
        capability: Its target and backend.
        domain: The memory in which its tensors lie.
    """

    region: Region
    capability: Capability
    domain: MemoryDomain


def choose_layouts(graph: Graph, sides: Sequence[Side]) -> dict[int, str]:
    """Return the layout of each value between regions that is not plain.

    Of several layouts that all sides list, the one that its maker likes best is taken.

    Args:
        graph: Where the regions are from; its inputs and outputs are plain.
        sides: All regions of a plan, or some: what others read is plain.
    """
    nodes = frozenset(node for side in sides for node in side.region.nodes)
    made = {value: i for i, side in enumerate(sides) for value in side.region.outputs}
    readers: dict[int, list[int]] = {}
    for i, side in enumerate(sides):
        for value in side.region.inputs:
            readers.setdefault(value, []).append(i)
    found: dict[int, str] = {}
    for value, maker in made.items():
        ends = (maker, *readers.get(value, ()))
        if len(ends) == 1 or value in graph.output_set or not may_block(graph, value):
            continue
        if not nodes.issuperset(graph.values[value].consumers):
            continue
        if any(sides[i].capability.backend.states is None for i in ends):
            continue
        if len({sides[i].domain for i in ends}) > 1:
            continue
        liked = list_layouts(sides[maker].region, sides[maker].capability).get(value, ())
        for i in ends[1:]:
            if liked:  # asking may take a while
                others = list_layouts(sides[i].region, sides[i].capability).get(value, ())
                liked = tuple(layout for layout in liked if layout in others)
        if liked:
            found[value] = liked[0]
    return found


def may_block(graph: Graph, value: int) -> bool:
    """Tell whether a value can lie in some shared blocks of channels."""
    one = graph.values[value]
    if not one.is_static or one.shape is None or not one.is_tensor:
        return False
    return any(can_block(one.dtype, one.shape, block) for block in BLOCKS.values())


def list_layouts(region: Region, capability: Capability) -> Mapping[int, tuple[str, ...]]:
    """Return the shared layouts, other than plain, that a region may have for its border's values.

    They are by value id, what its backend likes best first. A backend that fails here gets its
    tensors plain, with a warning. Answers are kept with the graph, and regions that are written
    alike share them.
    """
    if capability.backend.states is None:
        return {}
    context = capability.context
    kept = _known_layouts(region.graph)
    how = (str(capability.target), context.num_threads, context.is_frozen)
    found = kept.get((region.bits, *how))
    if found is None:
        alike = (_wiring(region), *how)
        if alike not in kept:
            kept[alike] = _ask(region, capability, capability.backend.states)
        found = kept[region.bits, *how] = kept[alike]
    return dict(zip((*region.inputs, *region.outputs), found, strict=True))


@per_graph
def _known_layouts(_graph: Graph) -> dict[object, tuple[tuple[str, ...], ...]]:
    """By a region, or how it is wired, and who was asked how: the layouts of its border."""
    return {}


@per_graph
def _failed_targets(_graph: Graph) -> set[VirtualDevice]:
    return set()


def _ask(
    region: Region,
    capability: Capability,
    states: ListStates,
) -> tuple[tuple[str, ...], ...]:
    """Return the layouts that a backend lists for each input and output of a region."""
    backend, context, graph = capability.backend, capability.context, region.graph
    candidate = Candidate.plain(region, capability.target)
    plain = (*candidate.inputs, *candidate.outputs)
    found: list[list[str]] = [[] for _ in plain]
    try:
        with calling(backend.name, context, "when asked for layouts of a region's border"):
            for given, made in states(candidate, context):
                listed = *_of_side(given, candidate.inputs), *_of_side(made, candidate.outputs)
                for layouts, state, usual in zip(found, listed, plain, strict=True):
                    is_new = _is_shared(state, usual) and state.layout not in layouts
                    if is_new and state.layout in BLOCKS:
                        layouts.append(state.layout)
    except InternalError:
        raise
    except IntarsiaError as error:
        told = _failed_targets(graph)
        if capability.target not in told:  # once is enough
            told.add(capability.target)
            logger.warning("borders of %s are plain: %s", capability.target, error.message)
        return tuple(() for _ in plain)
    return tuple(
        tuple(layout for layout in layouts if _fits(graph, value, layout))
        for value, layouts in zip((*region.inputs, *region.outputs), found, strict=True)
    )


def _of_side(
    states: Sequence[TensorState], plain: Sequence[TensorState]
) -> tuple[TensorState, ...]:
    """Return the states of one side of a border, one for each of its tensors."""
    return tuple(state for state, _ in zip(states, plain, strict=True))


def _wiring(region: Region) -> tuple[object, ...]:
    """Return a key that only regions have that are alike node by node and value by value."""
    from intarsia.graph.signature import constant_digest, node_signature

    graph, constants = region.graph, frozenset(region.constants)
    numbers = {value: position for position, value in enumerate(region.inputs)}
    types = [(graph.values[value].dtype, graph.values[value].shape) for value in region.inputs]
    rows: list[object] = []
    for node in region.nodes:
        signature = node_signature(graph, node, content=False)
        for read in (*graph.nodes[node].inputs, *signature.captured):
            if read in constants:
                rows.append(constant_digest(graph, read, content=False))
            else:
                rows.append(numbers[read] if read >= 0 else -1)
        for made in graph.nodes[node].outputs:
            numbers[made] = len(numbers)
        rows.append(signature.digest)
    return (*types, *rows, *(numbers[value] for value in region.outputs))


def _is_shared(state: TensorState, plain: TensorState) -> bool:
    """Tell whether a state differs from the plain one in a shared layout and in nothing else."""
    return not state.runtime and state.layout != PLAIN and replace(state, layout=PLAIN) == plain


def _fits(graph: Graph, value: int, layout: str) -> bool:
    one = graph.values[value]
    return can_block(one.dtype, one.shape or (), BLOCKS.get(layout, 0))


def candidate_of(region: Region, capability: Capability, layouts: Layouts) -> Candidate:
    """Return a region as a candidate whose border's tensors lie as a plan has them."""
    plain = Candidate.plain(region, capability.target)
    if layouts.keys().isdisjoint((*region.inputs, *region.outputs)):
        return plain
    return replace(
        plain,
        inputs=_states(region.inputs, plain.inputs, layouts),
        outputs=_states(region.outputs, plain.outputs, layouts),
    )


def _states(
    values: Sequence[int], states: Sequence[TensorState], layouts: Layouts
) -> tuple[TensorState, ...]:
    return tuple(
        replace(state, layout=layouts.get(value, PLAIN))
        for value, state in zip(values, states, strict=True)
    )


def border_text(candidate: Candidate) -> str:
    """Return the layouts of a candidate's border as a key: empty if all of it is plain."""
    sides = [[state.layout for state in some] for some in (candidate.inputs, candidate.outputs)]
    if all(layout == PLAIN for side in sides for layout in side):
        return ""
    return " -> ".join(",".join(side) for side in sides)
