# SPDX-License-Identifier: Apache-2.0
"""How values lie that cross between regions: row by row, or in a layout that all sides share.

A value is in a shared blocked layout if and only if who makes it and all who read it are regions
in one memory, whose backends list that layout for it (`Bordered`), and nobody
else reads it. So no plan has a value in two layouts, and none needs a step that converts one.
Layouts follow from the regions alone: who keeps the regions of a plan has kept its layouts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from intarsia.backends.api import Bordered
from intarsia.backends.candidate import Candidate
from intarsia.errors import IntarsiaError, InternalError
from intarsia.graph.state import BLOCKS, PLAIN, can_block
from intarsia.place.hooks import calling

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.graph.state import TensorState
    from intarsia.place.capability import Capability
    from intarsia.target.placed import MemoryDomain

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
        if not all(isinstance(sides[i].capability.backend, Bordered) for i in ends):
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
    tensors plain, with a warning. Answers are kept with the graph.
    """
    backend, context = capability.backend, capability.context
    if not isinstance(backend, Bordered):
        return {}
    kept: dict[object, Mapping[int, tuple[str, ...]]]
    kept = region.graph.memo.setdefault("border_layouts", {})
    key = (region.bits, str(capability.target), context.num_threads, context.is_frozen)
    if key not in kept:
        candidate = Candidate.plain(region, capability.target)
        found: dict[int, list[str]] = {}
        try:
            with calling(backend.name, context, "when asked for layouts of a region's border"):
                borders = tuple(backend.states(candidate, context))
                for given, made in borders:
                    pairs = (
                        *zip(region.inputs, given, candidate.inputs, strict=True),
                        *zip(region.outputs, made, candidate.outputs, strict=True),
                    )
                    for value, state, plain in pairs:
                        if _is_shared(state, plain) and state.layout not in found.get(value, ()):
                            found.setdefault(value, []).append(state.layout)
        except InternalError:
            raise
        except IntarsiaError as error:
            told = region.graph.memo.setdefault("border_failures", set())
            if capability.target not in told:  # once is enough
                told.add(capability.target)
                logger.warning("borders of %s are plain: %s", capability.target, error.message)
            found = {}
        kept[key] = {
            value: tuple(layout for layout in layouts if _fits(region.graph, value, layout))
            for value, layouts in found.items()
        }
    return kept[key]


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
