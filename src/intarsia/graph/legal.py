# SPDX-License-Identifier: Apache-2.0
"""Which values of a model's inputs are legal, as far as its operators tell: for made-up inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from intarsia.graph.indices import followers, index_uses
from intarsia.graph.model_info import Legal

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node, Value

_MICROSOFT = "com.microsoft"
_TABLES = {0: 2, 1: 4, 8: 3}
"""For inputs of EmbedLayerNormalization that hold indices: the input that they index."""
_AXES = frozenset(("Squeeze", "Unsqueeze"))


def legal_inputs(graph: Graph) -> dict[str, Legal]:
    """Return what inputs may hold, by name; those that may hold anything are left out."""
    legal = {}
    for position in graph.inputs:
        value = graph.values[position]
        bounds = [bound for bound in _bounds(graph, position) if bound > 0]
        values = _settled(graph, value)
        if bounds or values:
            legal[value.name] = Legal(min(bounds, default=0), values)
    return legal


def _bounds(graph: Graph, value: int) -> Iterator[int]:
    """Yield the extents that a value indexes, itself or after its elements were moved."""
    for use in index_uses(graph, value, whole=False):
        yield from use.extents
    for current, node in followers(graph, value, whole=False):
        place = node.inputs.index(current)
        if (node.domain, node.op_type) == ("", "OneHot") and place == 0:
            shape = graph.values[node.outputs[0]].shape
            if shape:
                yield shape[node.ir.attributes.get_int("axis", -1)]
        elif (node.domain, node.op_type) == (_MICROSOFT, "EmbedLayerNormalization"):
            table = _TABLES.get(place, len(node.inputs))
            rows = graph.values[node.inputs[table]] if table < len(node.inputs) else None
            if rows is not None and rows.shape:
                yield rows.shape[0]


def _settled(graph: Graph, value: Value) -> tuple[int, ...]:
    """Return what an input must hold that says how a shape is to be."""
    for reader in value.consumers:
        node = graph.nodes[reader]
        if value.id not in node.inputs[1:] or value.shape is None or len(value.shape) > 1:
            continue
        values = _operand(graph, node, value)
        if values and len(values) == (value.shape or (1,))[0]:
            return values
    return ()


def _operand(graph: Graph, node: Node, value: Value) -> tuple[int, ...]:
    """Return the operand of a node that says how its result is shaped."""
    result = graph.values[node.outputs[0]].shape
    count = (value.shape or (1,))[0]
    if node.op_type in ("Reshape", "Expand") and not node.domain:
        if result is not None:
            return result
        return (-1,) + (1,) * (count - 1) if node.op_type == "Reshape" else (1,) * count
    if node.op_type in _AXES and not node.domain:
        return tuple(range(count))
    return ()
