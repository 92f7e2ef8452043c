# SPDX-License-Identifier: Apache-2.0
"""Which nodes only compute shapes: small integers that end as an operand that settles a shape.

Source:
    ONNX operators up to opset 24: the inputs on whose values the shape of an output depends.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from intarsia.graph.ops import operator_of

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node, Value

MOST_ELEMENTS = 64
"""A tensor with more elements is data; the same bound as that of constants that steer fusion."""


def shape_nodes(graph: Graph) -> frozenset[int]:
    """Return the nodes that read and make small integers only, all of which end in shapes."""
    found: set[int] = set()
    for node in reversed(graph.nodes):
        made = [graph.values[value] for value in node.outputs if value >= 0]
        read = [graph.values[value] for value in node.reads]
        if all(map(_is_small, (*made, *read))) and all(
            _only_shapes(graph, value, found) for value in made
        ):
            found.add(node.id)
    return frozenset(found)


def _is_small(value: Value) -> bool:
    if not value.is_static or value.shape is None or not value.dtype.startswith(("int", "uint")):
        return False
    return prod(value.shape) <= MOST_ELEMENTS


def _only_shapes(graph: Graph, value: Value, found: set[int]) -> bool:
    return bool(value.consumers) and all(
        consumer in found or _settles_shape(graph.nodes[consumer], value.id)
        for consumer in value.consumers
    )


def _settles_shape(node: Node, value_id: int) -> bool:
    positions = operator_of(node).shape_operands
    places = [place for place, value in enumerate(node.inputs) if value == value_id]
    return value_id not in node.captured and all(place in positions for place in places)
