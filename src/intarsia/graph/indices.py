# SPDX-License-Identifier: Apache-2.0
"""Integers that steer: indices into a dimension, with what is legal there; what settles shapes.

Source:
    ONNX operators up to opset 24: "All index values are expected to be within bounds [-s, s-1]
    along axis of size s. It is an error if any of the index values are out of bounds."
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from intarsia.graph.ops import Indexing, Part, operator_of

if TYPE_CHECKING:
    import numpy as np

    from intarsia.graph.graph import Graph, Node, Value


_HOLDS = frozenset(("float32", "float64", "int32", "int64"))
"""Types in which an index is the same number; a bool is none any more."""


@dataclass(frozen=True, slots=True)
class IndexUse:
    """Indices that a node reads.

    Attributes:
        node: The node.
        value: The indices.
        extents: Of the dimension that they index; of tuples of indices (the last dimension of the
            value) of each dimension.
    """

    node: int
    value: int
    extents: tuple[int, ...]


def has_free_bound(graph: Graph, node: Node) -> bool:
    """Tell whether a node reads indices of a dimension that is known only when it runs."""
    if operator_of(node).indexing is Indexing.NONE:
        return False
    extents = graph.values[node.inputs[0]].extents
    if extents is None or index_use(graph, node) is None:
        return False
    if operator_of(node).indexing is Indexing.AXIS:
        return not isinstance(extents[node.ir.attributes.get_int("axis", 0)], int)
    return True


def find_outside(indices: np.ndarray[Any, Any], extents: Sequence[int]) -> tuple[int, int] | None:
    """Return an index that is out of bounds, and the extent that it is out of; or nothing.

    Args:
        indices: Of the dimension; of several, each entry of the last dimension of one.
        extents: Of the dimensions.
    """
    if not indices.size:
        return None
    flat = indices.reshape(-1, len(extents))
    for column, extent in enumerate(extents):
        # Extremes only: indices may be as many as the data.
        for index in (int(flat[:, column].min()), int(flat[:, column].max())):
            if not -extent <= index < extent:
                return index, extent
    return None


def index_use(graph: Graph, node: Node) -> IndexUse | None:
    """Return the indices that a node reads, if it reads any and their bounds are known."""
    indexing = operator_of(node).indexing
    if indexing is Indexing.NONE:
        return None
    data, indices = (graph.values[i] for i in node.inputs[:2])
    shape = data.shape
    if shape is None or not data.is_static:
        return None
    if indexing is Indexing.AXIS:
        axis = node.ir.attributes.get_int("axis", 0)
        return IndexUse(node.id, indices.id, (shape[axis],)) if shape else None
    depth = indices.shape[-1] if indices.shape else None
    if not isinstance(depth, int):
        return None
    first = node.ir.attributes.get_int("batch_dims", 0)
    return IndexUse(node.id, indices.id, tuple(shape[first : first + depth]))


def index_problem(graph: Graph, node: Node) -> str | None:
    """Say which index of a node is known now to be out of bounds, if one is."""
    use = index_use(graph, node)
    if use is None:
        return None
    value = graph.values[use.value]
    if value.constant is None:
        if 0 in use.extents and 0 not in (value.shape or ()):
            return "it indexes a dimension without entries"
        return None
    outside = find_outside(value.constant.numpy(), use.extents)
    return None if outside is None else f"its index {outside[0]} is out of {outside[1]} entries"


def index_uses(graph: Graph, value: int, *, whole: bool = True) -> Iterator[IndexUse]:
    """Yield where a value is read as indices, itself or after its elements were only moved.

    Args:
        graph: Where it is.
        value: The value.
        whole: Whether only uses count that read all of its elements.
    """
    for current, node in followers(graph, value, whole=whole):
        use = index_use(graph, node)
        if use is None or use.value != current:
            continue
        if current == value or len(use.extents) == 1 or not whole:
            yield use  # moved tuples may lie otherwise


def followers(graph: Graph, value: int, *, whole: bool) -> Iterator[tuple[int, Node]]:
    """Yield the nodes that read a value, or what only moves its elements, with what they read.

    Args:
        graph: Where it is.
        value: The value.
        whole: Whether what leaves elements out counts as another value.
    """
    enough = (Part.ALL,) if whole else (Part.ALL, Part.SOME)
    seen, stack = {value}, [value]
    while stack:
        current = stack.pop()
        for reader in graph.values[current].consumers:
            node = graph.nodes[reader]
            if current not in node.inputs:
                continue  # a body captures it
            yield current, node
            if operator_of(node).carries in enough and _is_moved(graph, node, current):
                moved = [item for item in node.outputs if item >= 0 and item not in seen]
                seen.update(moved)
                stack += moved


def _is_moved(graph: Graph, node: Node, value: int) -> bool:
    """Tell whether a node moves a value unchanged, rather than being controlled by it."""
    if operator_of(node).casts and graph.values[node.outputs[0]].dtype not in _HOLDS:
        return False
    return node.op_type == "Concat" or value not in node.inputs[1:]


MOST_ELEMENTS = 64
"""A tensor with more elements is data; the same bound as that of constants that steer fusion."""


def shape_nodes(graph: Graph) -> frozenset[int]:
    """Return the nodes that read and make small integers only, all of which end in shapes."""
    shaping: set[int] = set()
    for node in reversed(graph.nodes):
        outputs = [graph.values[value] for value in node.outputs if value >= 0]
        read = [graph.values[value] for value in node.reads]
        if all(map(_is_small, (*outputs, *read))) and all(
            _only_shapes(graph, value, shaping) for value in outputs
        ):
            shaping.add(node.id)
    return frozenset(shaping)


def _is_small(value: Value) -> bool:
    if not value.is_static or value.shape is None or not value.dtype.startswith(("int", "uint")):
        return False
    return prod(value.shape) <= MOST_ELEMENTS


def _only_shapes(graph: Graph, value: Value, shaping: set[int]) -> bool:
    return bool(value.consumers) and all(
        consumer in shaping or _settles_shape(graph.nodes[consumer], value.id)
        for consumer in value.consumers
    )


def _settles_shape(node: Node, value_id: int) -> bool:
    positions = operator_of(node).shape_operands
    places = [place for place, value in enumerate(node.inputs) if value == value_id]
    return value_id not in node.captured and all(place in positions for place in places)
