# SPDX-License-Identifier: Apache-2.0
"""Normalisations that exporters spell with means and arithmetic.

Only what leads to mean 0 and deviation 1 is a spelling: a scale and a shift after it join the
kernel as every elementwise operator does. TensorFlow's spelling has them inside.
"""

from __future__ import annotations

from collections.abc import Iterator

from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.reductions import reduced_axes
from intarsia.codegen.patterns.spelling import Meaning
from intarsia.graph.extract import constant_array
from intarsia.graph.graph import Graph, Node
from intarsia.graph.pattern import ANY, CONSTANT, SOURCE, Match, Op, Pattern


def _squares(value: Op | str) -> Iterator[Op]:
    """Yield the spellings of a square."""
    yield Op("Pow", value, CONSTANT)
    yield Op("Mul", value, value)


def _quotients(value: Op | str, variance: Op) -> Iterator[Op]:
    """Yield the spellings of a value over the root of a variance and a small number."""
    moved = Op("Add", variance, CONSTANT)
    root = Op("Sqrt", moved)
    yield Op("Div", value, root)
    yield Op("Div", value, Op("Pow", moved, CONSTANT))
    yield Op("Mul", value, Op("Reciprocal", root))
    yield Op("Mul", value, Op("Div", CONSTANT, root))
    yield Op("Mul", value, Op("Pow", moved, CONSTANT))


def _layer_shapes() -> Iterator[Op]:
    centred = Op("Sub", SOURCE, Op("ReduceMean", SOURCE))
    for square in _squares(centred):
        variance = Op("ReduceMean", square)
        yield from _quotients(centred, variance)
        yield Op("Div", centred, Op("Add", Op("Sqrt", variance), CONSTANT))


def _rms_shapes() -> Iterator[Op]:
    for square in _squares(SOURCE):
        yield from _quotients(SOURCE, Op("ReduceMean", square))


def _tensorflow_shape() -> Op:
    """Return `x * f + (shift - mean * f)` with the factor `f = scale / deviation`."""
    mean = Op("ReduceMean", SOURCE)
    centred = Op("Sub", SOURCE, mean)
    moved = Op("Add", Op("ReduceMean", Op("Mul", centred, centred)), CONSTANT)
    factor = Op("Mul", Op("Reciprocal", Op("Sqrt", moved)), CONSTANT)
    return Op("Add", Op("Mul", SOURCE, factor), Op("Sub", CONSTANT, Op("Mul", mean, factor)))


def _layer(match: Match) -> Meaning | str:
    return _meaning(match, "LayerNormalization")


def _rms(match: Match) -> Meaning | str:
    return _meaning(match, "RMSNormalization")


def _tensorflow(match: Match) -> Meaning | str:
    vectors = [
        _constant(match.graph, node) for node in match.nodes[1:] if node.op_type in ("Mul", "Sub")
    ]
    scale, shift = (value for value in vectors if value is not None)
    return _meaning(match, "LayerNormalization", scale, shift)


def _groups(match: Match) -> Meaning | str:
    """Return the normalisation of groups that one of images with a channel for each group is."""
    graph, (result, norm, _) = match.graph, match.nodes
    x, split = (graph.values[value].shape for value in (match.source, norm.inputs[0]))
    if x is None or split is None or graph.values[result.outputs[0]].shape != x:
        return "the shapes before and after differ"
    if len(split) != _SPLIT_RANK or split[0] != x[0] or x[1] % split[1] or 0 in x:
        return "its channels are not those of groups"
    scale, shift = (constant_array(graph.values[value]) for value in norm.inputs[1:])
    is_plain = bool((scale == 1).all() and (shift == 0).all())
    inputs = (match.source,) if is_plain else (match.source, *norm.inputs[1:])
    epsilon = Operation(graph, norm).attribute("epsilon", 1e-5)
    attributes = {"num_groups": split[1], "epsilon": epsilon, "per_group": True}
    return Meaning("GroupNormalization", inputs, attributes)


_SPLIT_RANK = 3


def _meaning(match: Match, op_type: str, *vectors: int) -> Meaning | str:
    """Return which normalisation a match means, or why none."""
    graph, result = match.graph, match.nodes[0]
    axes: set[tuple[int, ...]] = set()
    attributes: dict[str, float] = {}
    for node in match.nodes:
        inner = Operation(graph, node)
        if node.op_type == "ReduceMean":
            if not _keeps_dimensions(inner):
                return "a mean is not over known dimensions that stay"
            axes.add(reduced_axes(inner))
            continue
        place = _constant(graph, node)
        if place is None or node is result or place in vectors:
            continue
        number = _number(graph, place)
        if number is None:
            return "a constant is not one number"
        if node.op_type == "Add":
            attributes["epsilon"] = number
            maker = graph.nodes[graph.values[_other(node, place)].producer]
            attributes["adds_to_deviation"] = maker.op_type == "Sqrt"
        elif number != _wanted(graph, node, result):
            return "an exponent or a numerator is another one"
    if len(axes) != 1 or () in axes:
        return "the means are not over the same dimensions"
    if graph.values[result.outputs[0]].shape != graph.values[match.source].shape:
        return "a scale or a shift has more dimensions"
    return Meaning(op_type, (match.source, *vectors), {**attributes, "axes": axes.pop()})


def _wanted(graph: Graph, node: Node, result: Node) -> float:
    """Return which number a normalisation has as an exponent, or as a numerator."""
    if node.op_type == "Div":
        return 1.0
    base = graph.values[node.inputs[0]].producer
    if base < 0 or graph.nodes[base].op_type != "Add" or node.outputs[0] not in result.inputs:
        return 2.0
    return 0.5 if result.op_type == "Div" else -0.5


def _keeps_dimensions(operation: Operation) -> bool:
    is_known = operation.value(1) is None or operation.is_constant(1)
    return is_known and operation.inputs[0].is_static and bool(operation.attribute("keepdims", 1))


def _constant(graph: Graph, node: Node) -> int | None:
    """Return the constant operand of a node, if there is one."""
    return next((i for i in node.inputs if i >= 0 and graph.values[i].constant is not None), None)


def _other(node: Node, operand: int) -> int:
    return next(value for value in node.inputs if value != operand)


def _number(graph: Graph, value: int) -> float | None:
    array = constant_array(graph.values[value])
    return float(array.reshape(())) if array.size == 1 else None


_GROUPS_SHAPE = Op(
    "Reshape",
    Op("InstanceNormalization", Op("Reshape", SOURCE, CONSTANT), CONSTANT, CONSTANT),
    ANY,
)

NORMS: tuple[Pattern, ...] = (
    Pattern("normalisation of groups", _GROUPS_SHAPE, _groups),
    Pattern("TensorFlow's layer normalisation", _tensorflow_shape(), _tensorflow),
    *(Pattern("layer normalisation", shape, _layer) for shape in _layer_shapes()),
    *(Pattern("RMS normalisation", shape, _rms) for shape in _rms_shapes()),
)
"""What is centred and divided goes before what is divided only, as that is a part of it."""
