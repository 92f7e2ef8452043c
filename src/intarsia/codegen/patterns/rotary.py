# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings that exporters spell with entries of heads that change places.

`x * cos + concat(-x2, x1) * sin` for the halves x1 and x2 of x, as Hugging Face's `rotate_half`; or
for the even and the odd entries, put side by side again, as timm's `rot`.
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
        yield _sum(Op("Concat", Op("Neg", second), first))
    (odd, even), _ = pairs
    beside = Op("Concat", Op("Unsqueeze", Op("Neg", odd)), Op("Unsqueeze", even))
    yield _sum(Op("Reshape", beside, ANY))


def _sum(turned: Op) -> Op:
    return Op("Add", Op("Mul", SOURCE, ANY), Op("Mul", turned, ANY))


def _meaning(match: Match) -> Meaning | str:
    graph, total = match.graph, match.nodes[0]
    nodes = {node.op_type: node for node in match.nodes}
    concat, negated, joined = nodes["Concat"], nodes["Neg"], nodes.get("Reshape")
    shape = graph.values[match.source].shape
    if not shape or shape[-1] % 2 or len(concat.inputs) != 2:  # noqa: PLR2004 - halves
        return "it has no halves"
    (rank, half), first = (len(shape), shape[-1] // 2), concat.inputs[1]
    if joined is not None:
        sides = [graph.values[value].shape for value in concat.inputs]
        if sides != [(*shape[:-1], half, 1)] * 2:
            return "its pairs do not lie side by side"
        rank, first = rank + 1, graph.nodes[graph.values[first].producer].inputs[0]
    if Operation(graph, concat).attribute("axis") % rank != rank - 1:
        return "other entries are joined"
    parts = negated.inputs[0], first
    wanted = [(half, 1), (0, 1)] if joined is None else [(1, 2), (0, 2)]
    sizes = {graph.values[value].shape for value in parts}
    if [_cut(graph, value) for value in parts] != wanted or sizes != {(*shape[:-1], half)}:
        return "its halves are other ones"
    if graph.values[total.outputs[0]].shape != shape:
        return "its angles have more dimensions"
    result = (joined or concat).outputs[0]
    if graph.values[result].shape != shape:
        return "what is turned has another shape"
    plain, turned = (graph.nodes[graph.values[i].producer] for i in total.inputs)
    if result in plain.inputs:
        plain, turned = turned, plain
    cos, sin = _other(plain, match.source), _other(turned, result)
    attributes = {"full_angles": 1, "interleaved": int(joined is not None)}
    return Meaning("RotaryEmbedding", (match.source, cos, sin), attributes)


def _cut(graph: Graph, value: int) -> tuple[int, int] | None:
    """Return where on the last dimension a part begins, and its step; None if it is no such."""
    maker = graph.nodes[graph.values[value].producer]
    operation = Operation(graph, maker)
    rank = len(operation.shape())
    if maker.op_type == "Split":
        place = maker.outputs.index(value)
        sizes = [graph.values[i].shape for i in maker.outputs[:place]]
        is_last = operation.attribute("axis", 0) % rank == rank - 1
        return (sum(size[-1] for size in sizes if size), 1) if is_last else None
    if is_slice_computed(operation):
        return None
    *others, (start, _, step) = slices(operation)
    is_last = all((first, between) == (0, 1) for first, _, between in others)
    return (start, step) if is_last else None


def _other(node: Node, operand: int) -> int:
    first, second = node.inputs
    return second if first == operand else first


ROTARIES = tuple(Pattern("rotary embedding", shape, _meaning) for shape in _shapes())
