# SPDX-License-Identifier: Apache-2.0
"""Puts bodies in the place of their operators: the branch that an If always takes, short loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from intarsia.errors import ModelError
from intarsia.graph.bodies import (
    constant_of,
    give_copies,
    is_control_flow,
    settle_loops,
    trip_count,
)
from intarsia.graph.infer import infer_shapes
from intarsia.graph.metadata import DEVICE_KEY, ORIGIN_KEY
from intarsia.graph.snapshot import node_bodies
from intarsia.passes.fold_constants import fold_constants, lift_constants

if TYPE_CHECKING:
    from collections.abc import Iterator

    from intarsia.arrays import Array

_MOST_NODES = 128
"""A loop whose iterations have more nodes in all stays one: compiling would take longer."""
_MOST_ROUNDS = 8
"""What is inlined may settle the conditions of others; more rounds are not worth their time."""
_AXES_ARE_INPUTS = 13
"""Since this operator set Unsqueeze takes its axes as an input."""
_LOOP_INPUTS = 2


def inline_bodies(model: ir.Model) -> None:
    """Inline each If with a constant condition, and each Loop of few iterations whose number is.

    A model whose shapes onnx's inference does not follow then, as those of AffineGrid's function,
    stays as it is.
    """
    if not any(is_control_flow(node) for node in model.graph):
        return
    try:
        _inline_all(model.clone())
    except ModelError:
        return
    _inline_all(model)


def _inline_all(model: ir.Model) -> None:
    for _ in range(_MOST_ROUNDS):
        inlined = [node for node in list(model.graph) if _inline(model, node)]
        if not inlined:
            return
        lift_constants(model)
        infer_shapes(model)
        settle_loops(model)
        fold_constants(model)


def _inline(model: ir.Model, node: ir.Node) -> bool:
    """Inline one node; return whether it was."""
    if not is_control_flow(node) or node.op_type == "Scan":
        return False
    if node.op_type == "If":
        condition = node.inputs[0]
        taken = None if condition is None else constant_of(condition)
        if not isinstance(taken, bool):
            return False
        body = node.attributes["then_branch" if taken else "else_branch"].as_graph()
        _hoist_initializers(model, node, body)
        copy = body.clone(allow_outer_scope_values=True)
        results = list(copy.outputs)
        copy.outputs.clear()
        _splice(model, node, copy)
    else:
        count = trip_count(node)
        body = node.attributes["body"].as_graph()
        carried = len(node.inputs) - _LOOP_INPUTS
        has_stack = any(value.uses() or value.is_graph_output() for value in node.outputs[carried:])
        if count is None or count * len(list(body.all_nodes())) > _MOST_NODES:
            return False
        if (count == 0 and has_stack) or None in node.inputs[_LOOP_INPUTS:]:
            return False
        results = _unroll(model, node, count)
    _replace(model, node, results)
    return True


def _replace(model: ir.Model, node: ir.Node, results: list[ir.Value]) -> None:
    """Put values in the place of a node's outputs; outputs of the graph keep their names."""
    graph = model.graph
    for output, result in zip(node.outputs, results, strict=False):
        if any(value is output for value in graph.outputs):
            name = output.name
            copy = ir.node("Identity", [result], name=f"{node.name}/{name}")
            _mark(copy, node)
            graph.insert_before(node, copy)
            value = copy.outputs[0]
            value.type, value.shape = output.type, output.shape
            value.metadata_props.update(output.metadata_props)
            for position, each in enumerate(graph.outputs):
                if each is output:
                    graph.outputs[position] = value
            output.name, value.name = f"{name}/before", name
        for body in [each for inner in graph.all_nodes() for each in node_bodies(inner)]:
            give_copies(body, {output: result})
        output.replace_all_uses_with(result)
    graph.remove(node, safe=True)


def _mark(inner: ir.Node, node: ir.Node) -> None:
    """Say of a node what was said of the operator in whose place it stands."""
    if ORIGIN_KEY in node.metadata_props:
        inner.metadata_props[ORIGIN_KEY] = node.metadata_props[ORIGIN_KEY]
    if DEVICE_KEY in node.metadata_props:
        inner.metadata_props.setdefault(DEVICE_KEY, node.metadata_props[DEVICE_KEY])


def _splice(model: ir.Model, node: ir.Node, body: ir.Graph, suffix: str = "") -> None:
    """Put the nodes of a copy of a body before its operator.

    Args:
        model: Ours to change.
        node: The operator.
        body: A copy of its body.
        suffix: Of the names of what comes in, where there are several copies.
    """
    for inner in list(body):
        body.remove(inner)
        inner.name = f"{inner.name}{suffix}"
        for value in inner.outputs:
            if value.name:
                value.name = f"{node.name}/{value.name}{suffix}"
        for deeper in (each for graph in node_bodies(inner) for each in graph.all_nodes()):
            deeper.name = f"{deeper.name}{suffix}"
        _mark(inner, node)
        model.graph.insert_before(node, inner)


def _hoist_initializers(model: ir.Model, node: ir.Node, body: ir.Graph) -> None:
    """Make the constants of a body constants of the model."""
    for name, value in list(body.initializers.items()):
        del body.initializers[name]
        value.name = f"{node.name}/{name}"
        model.graph.register_initializer(value)


def _unroll(model: ir.Model, node: ir.Node, count: int) -> list[ir.Value]:
    """Put the iterations of a Loop before it; return the values of its outputs."""
    body = node.attributes["body"].as_graph()
    _hoist_initializers(model, node, body)
    carried = [value for value in node.inputs[_LOOP_INPUTS:] if value is not None]
    goes_on = _constant(model, f"{node.name}/condition", np.array(True))
    stacks: list[list[ir.Value]] = [[] for _ in node.outputs[len(carried) :]]
    is_settled = all(value.shape is not None and value.shape.is_static() for value in body.inputs)
    for number in range(count):
        copy = body.clone(allow_outer_scope_values=True)
        position = _constant(model, f"{node.name}/number/{number}", np.array(number, np.int64))
        given = dict(zip(copy.inputs, (position, goes_on, *carried), strict=True))
        made = [given.get(value, value) for value in copy.outputs]
        copy.outputs.clear()
        for graph in [body for inner in copy.all_nodes() for body in node_bodies(inner)]:
            give_copies(graph, given)
        for before, value in given.items():
            before.replace_all_uses_with(value)
        for made_value in () if is_settled else _made(copy):  # an iteration may change shapes
            made_value.shape = None
        _splice(model, node, copy, f"/{number}")
        carried = made[1 : 1 + len(carried)]
        for stack, value in zip(stacks, made[1 + len(carried) :], strict=False):
            stack.append(value)
    return [*carried, *(_stack(model, node, at, one) for at, one in enumerate(stacks))]


def _made(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield what the nodes of a graph, and of bodies in it, make."""
    for node in graph.all_nodes():
        yield from node.outputs


def _stack(model: ir.Model, node: ir.Node, at: int, entries: list[ir.Value]) -> ir.Value:
    """Return the entries of an output one after another along a new first axis."""
    output = node.outputs[len(node.inputs) - _LOOP_INPUTS + at]
    if not entries:
        return output  # nothing reads it
    is_input = model.opset_imports.get("", 0) >= _AXES_ARE_INPUTS
    axes = _constant(model, f"{node.name}/axes/{at}", np.array([0])) if is_input else None
    rows = []
    for number, entry in enumerate(entries):
        name = f"{node.name}/row/{at}/{number}"
        row = ir.node(
            "Unsqueeze",
            [entry, *([] if axes is None else [axes])],
            {} if is_input else {"axes": [0]},
            name=name,
        )
        row.outputs[0].name = name
        rows.append(row)
    name = f"{node.name}/rows/{at}"
    whole = ir.node("Concat", [row.outputs[0] for row in rows], {"axis": 0}, name=name)
    whole.outputs[0].name = name
    whole.outputs[0].type = output.type
    for each in (*rows, whole):
        _mark(each, node)
        model.graph.insert_before(node, each)
    return whole.outputs[0]


def _constant(model: ir.Model, name: str, array: Array) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    model.graph.register_initializer(value)
    return value
