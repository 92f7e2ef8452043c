# SPDX-License-Identifier: Apache-2.0
"""The bodies of If, Loop and Scan: each as a model of its own, and what their shapes say outside.

ONNX's inference leaves open what a Loop carries, as an iteration may change its shape. Where one
does not, the shape is that before the loop (`settle_loops`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from intarsia.errors import ModelError
from intarsia.graph.infer import infer_shapes
from intarsia.graph.snapshot import captured_values, node_bodies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONTROL_FLOW = ("If", "Loop", "Scan")

_LOOP_INPUTS = 2
"""Inputs of a Loop, and of its body, before those that it carries: a number and a condition."""


def is_control_flow(node: ir.Node) -> bool:
    """Tell whether a node is an If, a Loop or a Scan of ONNX."""
    return node.domain in ("", "ai.onnx") and node.op_type in CONTROL_FLOW


def outer_values(node: ir.Node) -> list[ir.Value]:
    """Return the values from outside that the bodies of a node read, in order of first use."""
    own: set[ir.Value] = set()
    stack = node_bodies(node)
    while stack:
        body = stack.pop()
        own.update(body.inputs, body.initializers.values())
        for inner in body:
            own.update(inner.outputs)
            stack += node_bodies(inner)
    return [value for value in captured_values(node) if value not in own]


def body_model(model: ir.Model, node: ir.Node, name: str) -> ir.Model:
    """Return a body as a model of its own, to be changed; tensors are shared.

    Its inputs are the body's, then the values from outside that it reads; those of them that are
    constants are constants of it.

    Args:
        model: What the node is in.
        node: An If, Loop or Scan.
        name: The attribute that holds the body.

    Raises:
        ModelError: A name means a value outside and another one inside, or a value that is read
            has no type.
    """
    body = node.attributes[name].as_graph().clone(allow_outer_scope_values=True)
    inner = list(body.all_nodes())
    graphs = (body, *(each for one in inner for each in node_bodies(one)))
    reads = {value for one in inner for value in one.inputs}
    reads.update(value for graph in graphs for value in graph.outputs)
    names = {
        value.name for graph in graphs for value in (*graph.inputs, *graph.initializers.values())
    }
    names |= {value.name for one in inner for value in one.outputs}
    stand_ins: dict[ir.Value, ir.Value] = {}
    for value in outer_values(node):
        if value not in reads:
            continue  # another body of the node reads it
        if value.name in names or (value.type is None and value.const_value is None):
            raise ModelError(
                f"{value.name!r}, which {name} of {node.name!r} reads from outside, "
                + ("has the name of a value inside" if value.name in names else "has no type"),
                node=node.name,
            )
        is_constant = value.const_value is not None and value.producer() is None
        stand_ins[value] = ir.Value(
            name=value.name,
            shape=value.shape,
            type=value.type,
            const_value=value.const_value if is_constant else None,
        )
    for one in inner:
        for position, read in enumerate(one.inputs):
            if read in stand_ins:
                one.replace_input_with(position, stand_ins[read])
    for graph in graphs:
        give_copies(graph, stand_ins)
    for value in stand_ins.values():
        if value.const_value is None:
            body.inputs.append(value)
        else:
            body.register_initializer(value)
    body.opset_imports.update(model.opset_imports)
    _give_types(node, body)
    return ir.Model(
        body, ir_version=model.ir_version, functions=[f.clone() for f in model.functions.values()]
    )


def give_copies(body: ir.Graph, values: Mapping[ir.Value, ir.Value]) -> None:
    """Let a body give a copy of another value where it gives one from outside, in place.

    Args:
        body: Ours to change.
        values: From what it gives to what it is to give a copy of.
    """
    for position, value in enumerate(body.outputs):
        if value in values:
            node = ir.node("Identity", [values[value]], name=f"{body.name}/{value.name}/{position}")
            node.outputs[0].name = node.name
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            body.append(node)
            body.outputs[position] = node.outputs[0]


def _give_types(node: ir.Node, body: ir.Graph) -> None:
    """Give the inputs of a body what its operator says of their types and shapes.

    A shape that is declared stays. What a Loop carries keeps its own: it may change.
    """
    if node.op_type == "Loop":
        for value, dtype in zip(body.inputs, (ir.DataType.INT64, ir.DataType.BOOL), strict=False):
            value.type = value.type or ir.TensorType(dtype)
            value.shape = value.shape if value.shape is not None else ir.Shape(())
        pairs = zip(body.inputs[_LOOP_INPUTS:], node.inputs[_LOOP_INPUTS:], strict=False)
        for value, outer in pairs:
            value.type = value.type or (outer.type if outer is not None else None)
    elif node.op_type == "Scan":
        scanned = node.attributes.get_int("num_scan_inputs", 0)
        states = len(node.inputs) - scanned
        axes = node.attributes.get_ints("scan_input_axes", [0] * scanned)
        for position, (value, outer) in enumerate(zip(body.inputs, node.inputs, strict=False)):
            if outer is None:
                continue
            value.type = value.type or outer.type
            if value.shape is None and outer.shape is not None:
                dims = list(outer.shape)
                if position >= states:
                    del dims[axes[position - states]]
                value.shape = ir.Shape(dims)


def settle_loops(model: ir.Model) -> None:
    """Write the shapes that loops keep, and what follows from them, into a model, in place.

    What a Loop carries keeps its shape if the body makes it of the shape in which it gets it. If
    moreover the number of iterations is a constant and no condition may end it early, what is
    stacked has that many entries.

    Args:
        model: Its shapes are inferred.

    Raises:
        ModelError: As `infer_shapes`.
    """
    loops = [node for node in model.graph if is_control_flow(node) and node.op_type == "Loop"]
    while loops:
        settled = [node for node in loops if _settle(model, node)]
        if not settled:
            return
        infer_shapes(model)  # what follows may be what another loop waits for
        loops = [node for node in loops if node not in settled]


def _settle(model: ir.Model, node: ir.Node) -> bool:
    """Write what is known of a Loop's shapes; return whether that is more than before."""
    body = node.attributes["body"].as_graph()
    carried = len(node.inputs) - _LOOP_INPUTS
    if all(_is_static(value) for value in (*body.inputs, *node.outputs)):
        return False
    shapes = [
        value.shape if value is not None and _is_static(value) else None
        for value in node.inputs[_LOOP_INPUTS:]
    ]
    stacked: Sequence[ir.Value] = ()
    for _ in range(carried + 1):  # each time one more turns out to change
        try:
            made = _made(model, node, shapes)
        except ModelError:  # a shape that is assumed does not fit: there is no telling which
            return False
        results, stacked = made[1 : carried + 1], made[carried + 1 :]
        kept = [
            before if before is not None and after.shape == before else None
            for before, after in zip(shapes, results, strict=True)
        ]
        if kept == shapes:
            break
        shapes = kept
    is_news = False
    for shape, outer, inner, result in zip(
        shapes,
        node.inputs[_LOOP_INPUTS:],
        body.inputs[_LOOP_INPUTS:],
        node.outputs[:carried],
        strict=True,
    ):
        if outer is not None:
            inner.type = inner.type or outer.type
        if shape is not None and not (_is_static(inner) and _is_static(result)):
            inner.shape, result.shape = ir.Shape(shape), ir.Shape(shape)
            is_news = True
    count = trip_count(node)
    for value, result in zip(stacked, node.outputs[carried:], strict=True):
        if count is not None and _is_static(value) and not _is_static(result):
            result.shape = ir.Shape([count, *(value.shape or ())])
            is_news = True
    return is_news


def _made(model: ir.Model, node: ir.Node, shapes: Sequence[ir.Shape | None]) -> list[ir.Value]:
    """Return the outputs of a Loop's body if what it carries comes in these shapes."""
    inner = body_model(model, node, "body")
    for value, shape in zip(inner.graph.inputs[_LOOP_INPUTS:], shapes, strict=False):
        value.shape = None if shape is None else ir.Shape(shape)
    infer_shapes(inner)
    settle_loops(inner)
    return list(inner.graph.outputs)


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.is_static()


def trip_count(node: ir.Node) -> int | None:
    """Return how often a Loop runs, if that is a constant and no condition may end it early."""
    most, condition = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    count = None if most is None else constant_of(most)
    body = node.attributes["body"].as_graph()
    if count is None or (condition is not None and constant_of(condition) is not True):
        return None
    goes_on = body.outputs[0]
    producer = goes_on.producer()
    while producer is not None and producer.op_type == "Identity" and producer.inputs[0]:
        goes_on = producer.inputs[0]
        producer = goes_on.producer()
    is_endless = goes_on is body.inputs[1] or constant_of(goes_on) is True
    return max(0, int(count)) if is_endless else None


def constant_of(value: ir.Value) -> bool | int | None:
    """Return the one number of a constant of integers or of a truth value, else None."""
    tensor = value.const_value
    producer = value.producer()
    if tensor is None and producer is not None and producer.op_type == "Constant":
        attribute = producer.attributes.get("value")
        tensor = None if attribute is None else attribute.as_tensor()
    if tensor is None or tensor.size != 1:
        return None
    if tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL):
        return None
    number = tensor.numpy().reshape(-1)[0]
    return bool(number) if tensor.dtype == ir.DataType.BOOL else int(number)
