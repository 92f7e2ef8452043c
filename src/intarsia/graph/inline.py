# SPDX-License-Identifier: Apache-2.0
"""Put functions of the model in the place of their calls, so that every node can be placed.

A node that comes in is called `CALL/NODE`, stands for the call in the user's model, and has what
was said of the call.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from intarsia.graph.metadata import CALLS_KEY, DEVICE_KEY, ORIGIN_KEY
from intarsia.graph.snapshot import node_bodies

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CALL, _LOCAL = "intarsia.call", "intarsia.local"


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call in whose place a node stands.

    Attributes:
        name: Its name, after those of the calls around it: `outer/inner`.
        op_type: The function's name.
        device: The call's annotation, if it has one.
    """

    name: str
    op_type: str
    device: str | None


def calls_of(node: ir.Node) -> tuple[FunctionCall, ...]:
    """Return the calls in whose place a node stands, the outermost first."""
    return tuple(
        FunctionCall(*call) for call in json.loads(node.metadata_props.get(CALLS_KEY, "[]"))
    )


def inline_functions(model: ir.Model) -> bool:
    """Put functions in the place of their calls, in place; return whether any was.

    A call stays whose function takes a graph as an attribute, or hands an input through: what has
    the call runs all of it.

    Args:
        model: Ours to change; `onnx.checker` passed it, and its nodes are named.
    """
    inlined: dict[ir.Node, None] = {}
    while leaves := _leaves(model):
        calls = [node for node in _all_nodes(model) if node.op_identifier() in leaves]
        for index, call in enumerate(calls):
            call.metadata_props[_CALL] = str(index)
        for identifier in leaves:
            for node in model.functions[identifier].all_nodes():
                node.metadata_props[_LOCAL] = node.name or node.op_type
        own = [
            FunctionCall(
                call.name or call.op_type, call.op_type, call.metadata_props.get(DEVICE_KEY)
            )
            for call in calls
        ]
        around = [calls_of(call) for call in calls]
        devices = [call.device_configurations for call in calls]
        top = {call for call in calls if call.graph is model.graph}
        origins = [
            call.metadata_props.get(ORIGIN_KEY, json.dumps([call.name])) if call in top else None
            for call in calls
        ]
        for call in calls:
            call.metadata_props.pop(DEVICE_KEY, None)
            call.metadata_props.pop(CALLS_KEY, None)
            call.resize_outputs(len(model.functions[call.op_identifier()].outputs))
            for number, output in enumerate(call.outputs):
                if not output.name:  # a node inside may not leave out what a call may
                    output.name = f"{call.name}/{number}"
        InlinePass(criteria=lambda function: function.identifier() in leaves)(model)
        for node in _all_nodes(model):
            if _CALL in node.metadata_props:
                index = int(node.metadata_props.pop(_CALL))
                _adopt(node, own[index], around[index], origins[index])
                node.device_configurations = node.device_configurations or devices[index]
                inlined[node] = None
    _separate_values(model, [node for node in inlined if node.graph is not None])
    return bool(inlined)


def _separate_values(model: ir.Model, inlined: Sequence[ir.Node]) -> None:
    """Give what came in names that nothing else has: the pass does not look into bodies."""
    own = set(inlined)
    inlined_values = [
        value
        for node in inlined
        for body in (None, *node_bodies(node))
        for value in (node.outputs if body is None else (*body.inputs, *body.initializers.values()))
    ]
    other_values = [
        value for node in _all_nodes(model) if node not in own for value in node.outputs
    ]
    for graph in {model.graph, *(node.graph for node in _all_nodes(model))}:
        if isinstance(graph, ir.Graph):
            other_values += [*graph.inputs, *graph.initializers.values()]
    ends = {*model.graph.outputs}
    mine = set(inlined_values) - ends
    taken = {value.name for value in (*other_values, *ends) if value not in mine}
    for value in inlined_values:
        if not value.name or value in ends:
            continue
        name, count = value.name, 1
        while value.name in taken:
            count += 1
            value.name = f"{name}_{count}"
        taken.add(value.name)


def _adopt(
    node: ir.Node, call: FunctionCall, around: Sequence[FunctionCall], origins: str | None
) -> None:
    """Name a node that came in with a call, and write on it where it came from."""
    props = node.metadata_props
    node.name = f"{call.name}/{props.pop(_LOCAL)}"
    inner = (replace(each, name=f"{call.name}/{each.name}") for each in calls_of(node))
    props[CALLS_KEY] = json.dumps([astuple(each) for each in (*around, call, *inner)])
    if origins is not None:
        props[ORIGIN_KEY] = origins


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _leaves(model: ir.Model) -> set[ir.OperatorIdentifier]:
    """Return the functions that are called, call none that can be inlined, and can be inlined."""
    possible = {
        identifier
        for identifier in {node.op_identifier() for node in _all_nodes(model)}
        if identifier in model.functions and _makes_outputs(model.functions[identifier])
    }
    possible -= {node.op_identifier() for node in _all_nodes(model) if node_bodies(node)}
    leaves = set()
    for identifier in possible:
        function = model.functions[identifier]
        if not any(node.op_identifier() in possible for node in function.all_nodes()):
            leaves.add(identifier)
            for domain in function.opset_imports.keys() & model.opset_imports.keys():
                function.opset_imports[domain] = model.opset_imports[domain]  # checked: means that
    return leaves


def _makes_outputs(function: ir.Function) -> bool:
    """Whether each output is a node's own; else the pass would rename what the call reads."""
    ends = list(function.outputs)
    return len(set(ends)) == len(ends) and all(end.producer() is not None for end in ends)
