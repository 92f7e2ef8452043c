# SPDX-License-Identifier: Apache-2.0
"""Caches that a decoder joins new rows to become tensors whose rows come first.

Optimum exports `present = Concat(past, new)` along an inner axis, mostly over (batch, heads, rows,
size): each head's rows have to move when there is one more. With rows first, new ones lie behind
the old ones, and a cache grows in memory that has room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class GrownCache:
    """An input and an output of a graph, the one and new rows behind it.

    Attributes:
        past: Name of the input.
        present: Name of the output.
        axis: Of the rows in the model as it was; now they are the first one.
    """

    past: str
    present: str
    axis: int


def grow_caches(model: ir.Model) -> tuple[GrownCache, ...]:
    """Put the rows of caches first, as inputs and outputs; inside, they are views as before.

    A cache is an input of free rows that one Concat joins others to, the result of which is an
    output; nothing else reads the input's numbers.
    """
    graph = model.graph
    return tuple(_grown(graph, node) for node in list(graph) if _joins_a_cache(graph, node))


def _joins_a_cache(graph: ir.Graph, node: ir.Node) -> bool:
    if (node.domain, node.op_type, len(node.inputs)) != ("", "Concat", 2):
        return False
    past, present = node.inputs[0], node.outputs[0]
    if past is None or past not in graph.inputs or list(graph.outputs).count(present) != 1:
        return False
    if past.shape is None or past is node.inputs[1] or past in graph.initializers.values():
        return False
    if past in graph.outputs:
        return False
    axis, rank = node.attributes["axis"].as_int(), len(past.shape)
    others = [reader for reader, _ in past.uses() if reader is not node]
    # What asks for its shape reads none of its numbers.
    return not isinstance(past.shape[axis % rank], int) and all(
        (reader.domain, reader.op_type) == ("", "Shape") for reader in others
    )


def _grown(graph: ir.Graph, node: ir.Node) -> GrownCache:
    """Rewrite the Concat of a cache."""
    import onnx_ir as ir

    past, new, present = node.inputs[0], node.inputs[1], node.outputs[0]
    assert past is not None
    assert past.shape is not None
    assert past.name is not None
    assert present.name is not None
    rank = len(past.shape)
    axis = node.attributes["axis"].as_int() % rank
    first = (axis, *(i for i in range(rank) if i != axis))
    back = tuple(first.index(i) for i in range(rank))
    cache = GrownCache(past.name, present.name, axis)

    given = ir.Value(name=past.name, type=past.type, shape=_permuted(past.shape, first))
    result = ir.Value(name=present.name, type=present.type)
    if present.shape is not None:
        result.shape = _permuted(present.shape, first)
    seen = _transpose(given, back, f"{past.name}/as it was", past)
    turned = _transpose(new, first, f"{present.name}/new rows", None)
    joined = ir.Node(
        "", "Concat", [given, turned.outputs[0]], [ir.AttrInt64("axis", 0)], outputs=[result]
    )
    joined.name = node.name
    whole = _transpose(result, back, f"{present.name}/as it was", present)

    graph.insert_before(graph[0], seen)  # who asks for its shape may come before the Concat
    graph.insert_before(node, [turned, joined, whole])
    graph.inputs[list(graph.inputs).index(past)] = given
    for old, other in ((past, seen), (present, whole)):
        for reader, position in list(old.uses()):
            if reader is not node:
                reader.replace_input_with(position, other.outputs[0])
    graph.outputs[list(graph.outputs).index(present)] = result
    graph.remove(node, safe=True)
    return cache


def _permuted(shape: ir.Shape, order: Sequence[int]) -> ir.Shape:
    import onnx_ir as ir

    return ir.Shape([shape[i] for i in order])


def _transpose(
    value: ir.Value | None, order: Sequence[int], name: str, like: ir.Value | None
) -> ir.Node:
    """Return a node that permutes a value; its result has the type and the shape of another."""
    import onnx_ir as ir

    output = ir.Value(name=name)
    if like is not None:
        output.type, output.shape = like.type, like.shape
    return ir.Node(
        "", "Transpose", [value], [ir.AttrInt64s("perm", order)], outputs=[output], name=name
    )
