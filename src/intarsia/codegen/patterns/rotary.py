# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings that exporters spell with halves of heads that change places.

`x * cos + concat(-x2, x1) * sin` for the halves x1 and x2 of x, as Hugging Face's `rotate_half`.
"""

from __future__ import annotations

from collections.abc import Iterator

from intarsia.codegen.lower.movement import is_slice_computed, slices
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.patterns.spelling import Meaning
from intarsia.graph.graph import Graph, Node
from intarsia.graph.pattern import ANY, SOURCE, Match, Op, Pattern


def _shapes() -> Iterator[Op]:
    split = Op("Split", SOURCE)
    pairs = ((Op("Slice", SOURCE), Op("Slice", SOURCE)), (split, split))
    for second, first in pairs:
        turned = Op("Concat", Op("Neg", second), first)
        yield Op("Add", Op("Mul", SOURCE, ANY), Op("Mul", turned, ANY))


def _meaning(match: Match) -> Meaning | str:
    graph, total = match.graph, match.nodes[0]
    (concat,) = (node for node in match.nodes if node.op_type == "Concat")
    (negated,) = (node for node in match.nodes if node.op_type == "Neg")
    shape = graph.values[match.source].shape
    if not shape or shape[-1] % 2 or len(concat.inputs) != 2:  # noqa: PLR2004 - halves
        return "it has no halves"
    if Operation(graph, concat).attribute("axis") % len(shape) != len(shape) - 1:
        return "other entries are joined"
    half = shape[-1] // 2
    starts = (_start(graph, negated.inputs[0]), _start(graph, concat.inputs[1]))
    sizes = (graph.values[i].shape for i in (negated.inputs[0], concat.inputs[1]))
    if starts != (half, 0) or any(size != (*shape[:-1], half) for size in sizes):
        return "its halves are other ones"
    if graph.values[total.outputs[0]].shape != shape:
        return "its angles have more dimensions"
    plain, turned = (graph.nodes[graph.values[i].producer] for i in total.inputs)
    if concat.outputs[0] in plain.inputs:
        plain, turned = turned, plain
    cos, sin = _other(plain, match.source), _other(turned, concat.outputs[0])
    return Meaning("RotaryEmbedding", (match.source, cos, sin), {"rotates_halves": 1})


def _start(graph: Graph, value: int) -> int | None:
    """Return where on the last dimension a part begins, if it is one of steps of 1 along it."""
    maker = graph.nodes[graph.values[value].producer]
    operation = Operation(graph, maker)
    rank = len(operation.shape())
    if maker.op_type == "Split":
        place = maker.outputs.index(value)
        sizes = [graph.values[i].shape for i in maker.outputs[:place]]
        is_last = operation.attribute("axis", 0) % rank == rank - 1
        return sum(size[-1] for size in sizes if size) if is_last else None
    if is_slice_computed(operation):
        return None
    *_, (start, _, step) = slices(operation)
    return start if step == 1 else None


def _other(node: Node, operand: int) -> int:
    first, second = node.inputs
    return second if first == operand else first


ROTARIES = tuple(Pattern("rotary embedding", shape, _meaning) for shape in _shapes())
