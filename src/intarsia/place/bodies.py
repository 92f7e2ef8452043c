# SPDX-License-Identifier: Apache-2.0
"""Which If, Loop and Scan can be steps of a plan: their bodies as models to be placed.

What cannot goes whole to a target that takes it: what exchanges sequences, optionals or strings
with its bodies, Scan before operator set 9, and what iterates over tensors of unknown size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec
import onnx_ir as ir

from intarsia.backends.artifact import tensor_spec
from intarsia.backends.values import Artifact, ArtifactConstant
from intarsia.errors import ModelError
from intarsia.graph.bodies import body_model, is_control_flow, outer_values, settle_loops
from intarsia.graph.extract import aligned_constant
from intarsia.graph.infer import infer_shapes
from intarsia.graph.snapshot import node_bodies
from intarsia.plan.placement import CONTROL_FLOW
from intarsia.runtime.control_flow import ControlSpec

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node
    from intarsia.graph.region import Region

_SCAN_VERSION = 9
"""Since this operator set a Scan has no batch of its own."""
_LOOP_INPUTS = 2


def list_bodies(graph: Graph) -> Iterator[tuple[Node, dict[str, ir.Model] | str]]:
    """Yield each control flow node with the models of its bodies, or why the plan cannot run it."""
    for node in graph.nodes:
        if is_control_flow(node.ir):
            try:
                yield node, _models(graph, node)
            except ModelError as error:
                yield node, error.message


def _models(graph: Graph, node: Node) -> dict[str, ir.Model]:
    """Return the bodies of a node, by attribute.

    Raises:
        ModelError: The plan cannot run it.
    """
    if node.op_type == "Scan" and graph.model.opset_imports.get("", 0) < _SCAN_VERSION:
        raise ModelError("a Scan of this operator set has a batch of its own", node=node.name)
    outside = [value for value in node.ir.inputs if value is not None]
    for value in (*outside, *node.ir.outputs, *outer_values(node.ir)):
        if value.name:
            _check_type(node, value)
    for value in node.ir.outputs:
        if value.name and not _is_static(value) and not _is_known_to_numpy(value):
            raise ModelError(
                f"{value.name!r} is {value.dtype}, of a size that is only known while running",
                node=node.name,
            )
    models = {}
    for name, attribute in node.ir.attributes.items():
        if attribute.type == ir.AttributeType.GRAPH:
            model = body_model(graph.model, node.ir, name)
            infer_shapes(model)
            settle_loops(model)
            _check_border(node, model.graph, attribute.as_graph())
            models[name] = model
    return models


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.is_static()


def _is_known_to_numpy(value: ir.Value) -> bool:
    """Whether runtimes can exchange a value as an array that they make themselves."""
    return value.dtype is not None and value.dtype.numpy().isbuiltin == 1


def _check_type(node: Node, value: ir.Value) -> None:
    is_tensor = value.const_value is not None or isinstance(value.type, ir.TensorType)
    if not is_tensor or value.dtype in (None, ir.DataType.STRING, ir.DataType.UNDEFINED):
        kind = "text" if value.dtype == ir.DataType.STRING else str(value.type or "unknown")
        raise ModelError(f"{value.name!r} is {kind}, and not a tensor of numbers", node=node.name)


def _check_border(node: Node, model: ir.Graph, body: ir.Graph) -> None:
    """Check what a body takes and gives.

    Raises:
        ModelError: The plan cannot run it.
    """
    own = model.inputs[: len(body.inputs)]
    for value in (*own, *model.outputs):
        _check_type(node, value)
    made = len(model.outputs)
    if node.op_type == "If":
        _check_count(node, (len(own), 0), (made, len(node.outputs)))
        return
    if node.op_type == "Loop":
        carried = len(node.inputs) - _LOOP_INPUTS
        _check_count(node, (len(own), carried + _LOOP_INPUTS), (made - 1, len(node.outputs)))
        fixed = (*own[:_LOOP_INPUTS], model.outputs[0], *model.outputs[carried + 1 :])
    else:
        carried = len(node.inputs) - node.ir.attributes.get_int("num_scan_inputs", 0)
        _check_count(node, (len(own), len(node.inputs)), (made, len(node.outputs)))
        fixed = (*own[carried:], *model.outputs[carried:])
    for value in fixed:
        if not _is_static(value):
            raise ModelError(f"the size of {value.name!r} in the body is not known", node=node.name)


def _check_count(node: Node, inputs: tuple[int, int], outputs: tuple[int, int]) -> None:
    if inputs[0] != inputs[1] or outputs[0] < outputs[1]:
        raise ModelError(
            f"{node.op_type} does not fit its body: {inputs[0]} inputs for {inputs[1]}, "
            f"{outputs[0]} outputs for {outputs[1]}",
            node=node.name,
        )


def control_artifact(region: Region, target: str) -> Artifact:
    """Return what the plan has to know of a control flow node beside the programs of its bodies.

    Args:
        region: The node alone.
        target: Text of the host.
    """
    graph = region.graph
    (node,) = (graph.nodes[position] for position in region.nodes)
    constants = {i for i in node.inputs if i >= 0 and graph.values[i].constant is not None}
    return Artifact(
        CONTROL_FLOW,
        version("intarsia"),
        target,
        msgspec.json.encode(_spec(graph, node)),
        tuple(tensor_spec(graph.values[i]) for i in region.inputs),
        tuple(tensor_spec(graph.values[i]) for i in region.outputs),
        tuple(
            ArtifactConstant(graph.values[i].name, aligned_constant(graph, i))
            for i in sorted(constants)
        ),
    )


def _spec(graph: Graph, node: Node) -> ControlSpec:
    made = max(len(body.outputs) for body in node_bodies(node.ir)) - (node.op_type == "Loop")
    outputs = [graph.values[i].name if i >= 0 else "" for i in node.outputs]
    attributes = node.ir.attributes
    scanned = attributes.get_int("num_scan_inputs", 0)
    stacked = made - (len(node.inputs) - scanned)

    def listed(name: str, count: int) -> Sequence[int]:
        return attributes.get_ints(name) or (0,) * count

    is_scan = node.op_type == "Scan"
    return ControlSpec(
        node.op_type,
        tuple(graph.values[i].name if i >= 0 else "" for i in node.inputs),
        (*outputs, *[""] * (made - len(outputs))),
        scanned if is_scan else 0,
        tuple(listed("scan_input_axes", scanned)) if is_scan else (),
        tuple(map(bool, listed("scan_input_directions", scanned))) if is_scan else (),
        tuple(listed("scan_output_axes", stacked)) if is_scan else (),
        tuple(map(bool, listed("scan_output_directions", stacked))) if is_scan else (),
    )
