# SPDX-License-Identifier: Apache-2.0
"""If, Loop and Scan written out as plain nodes, for numbers that are known.

Rules are about nodes, and those of a body are inside another one. Written out, each turn of a body
has nodes of its own, which rules describe and rounding moves like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_TURN = "@"
"""Stands in the name of a node that was written out, behind that of the node of the body."""

_AXES_ARE_READ = 13
"""From this operator set on the axes of Unsqueeze are an input."""


def body_name(name: str) -> str:
    """Return the name of the node of a body that a node was written out from, or its own."""
    return name.partition(_TURN)[0]


def unroll(model: onnx.ModelProto, values: Mapping[str, Any]) -> onnx.ModelProto | None:
    """Return a model without bodies that computes the same of the same inputs; None if none can.

    Args:
        model: The model, whose shapes are known.
        values: What it computes, by name: they tell which branch is taken, and how many turns.
    """
    opset = next(item.version for item in model.opset_import if item.domain in ("", "ai.onnx"))
    writing = _Writing(opset, values)
    for node in model.graph.node:
        bodies = {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
        if not bodies:
            writing.nodes.append(node)
        elif any(_has_bodies(body) for body in bodies.values()):
            return None
        elif node.op_type == "If":
            taken = bool(np.asarray(values[node.input[0]]).ravel()[0])
            body = bodies["then_branch" if taken else "else_branch"]
            writing.join(node.output, writing.turn(node, body, 0, {}))
        elif node.op_type == "Loop":
            if not writing.loop(node, bodies["body"]):
                return None
        elif node.op_type == "Scan":
            writing.scan(node, bodies["body"])
        else:
            return None
    if len(writing.nodes) == len(model.graph.node) and not writing.constants:
        return None
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    del plain.graph.node[:]
    plain.graph.node.extend(writing.nodes)
    plain.graph.initializer.extend(writing.constants)
    return plain


def _has_bodies(graph: onnx.GraphProto) -> bool:
    return any(
        attribute.type == onnx.AttributeProto.GRAPH
        for node in graph.node
        for attribute in node.attribute
    )


@dataclass(slots=True)
class _Writing:
    """Nodes and constants that are being written out.

    Attributes:
        opset: Version of the operator set.
        values: What the model computes, by name.
        nodes: In order.
        constants: Initializers beside those of the model.
    """

    opset: int
    values: Mapping[str, Any]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, array: Any, name: str) -> str:
        """Add a constant; return its name."""
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node of one output; return that."""
        self.nodes.append(helper.make_node(op_type, inputs, [output], output, **attributes))
        return output

    def join(self, outputs: Sequence[str], made: Sequence[str]) -> None:
        """Give values the names that the outputs of a node have."""
        for name, source in zip(outputs, made, strict=True):
            if name:
                self.add("Identity", [source], name)

    def turn(
        self, node: onnx.NodeProto, body: onnx.GraphProto, number: int, inputs: Mapping[str, str]
    ) -> list[str]:
        """Add the nodes of a body once; return the names of what it makes.

        Args:
            node: That has the body.
            body: The body.
            number: Of the turn.
            inputs: By name in the body, what it reads.
        """
        prefix = f"{node.output[0] or node.name}/{body.name}/{number}/"
        names = dict(inputs)
        for tensor in body.initializer:
            array = numpy_helper.to_array(tensor)
            names[tensor.name] = self.constant(array, prefix + tensor.name)
        for inner in body.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(inner)
            first = next(name for name in inner.output if name)
            copy.name = f"{inner.name or first}{_TURN}{prefix}"
            names |= {name: prefix + name for name in inner.output if name}
            del copy.input[:], copy.output[:]
            copy.input.extend(names.get(name, name) for name in inner.input)
            copy.output.extend(names[name] if name else "" for name in inner.output)
            self.nodes.append(copy)
        return [names.get(output.name, output.name) for output in body.output]

    def collected(self, name: str, rows: Sequence[str], axis: int) -> None:
        """Put one value for each turn together, along a new axis."""
        if not name:
            return
        if not rows:
            self.add("Identity", [self.constant(self.values[name], f"{name}/none")], name)
            return
        wide = []
        for number, row in enumerate(rows):
            made = f"{name}/row/{number}"
            if self.opset < _AXES_ARE_READ:
                wide.append(self.add("Unsqueeze", [row], made, axes=[axis]))
            else:
                axes = self.constant(np.array([axis]), f"{made}/axes")
                wide.append(self.add("Unsqueeze", [row, axes], made))
        self.add("Concat", wide, name, axis=axis)

    def loop(self, node: onnx.NodeProto, body: onnx.GraphProto) -> bool:
        """Write a Loop out; False if nothing tells how many turns it takes."""
        carried = list(node.input[2:])
        collected = list(node.output[len(carried) :])
        named = next((name for name in collected if name), "")
        if named:
            turns = len(self.values[named])
        elif node.input[0] and not "".join(node.input[1:2]):
            turns = int(np.asarray(self.values[node.input[0]]).ravel()[0])
        else:
            return False
        rows: list[list[str]] = [[] for _ in collected]
        go = self.constant(np.array(True), f"{node.output[0] or node.name}/go")
        for number in range(turns):
            turn = self.constant(np.array(number), f"{node.output[0] or node.name}/turn/{number}")
            inputs = dict(zip((one.name for one in body.input), (turn, go, *carried), strict=True))
            go, *made = self.turn(node, body, number, inputs)
            carried = made[: len(carried)]
            for row, name in zip(rows, made[len(carried) :], strict=True):
                row.append(name)
        self.join(node.output[: len(carried)], carried)
        for name, row in zip(collected, rows, strict=True):
            self.collected(name, row, 0)
        return True

    def scan(self, node: onnx.NodeProto, body: onnx.GraphProto) -> None:
        """Write a Scan out."""
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        count = given["num_scan_inputs"]
        states, scanned = list(node.input[:-count]), list(node.input[-count:])
        collected = list(node.output[len(states) :])
        axes = given.get("scan_input_axes") or [0] * count
        is_backward = given.get("scan_input_directions") or [0] * count
        turns = np.shape(self.values[scanned[0]])[axes[0]]
        rows: list[list[str]] = [[] for _ in collected]
        for number in range(turns):
            parts = []
            for source, axis, backward in zip(scanned, axes, is_backward, strict=True):
                part = f"{node.output[0] or node.name}/{source}/{number}"
                position = turns - 1 - number if backward else number
                index = self.constant(np.array(position), f"{part}/index")
                parts.append(self.add("Gather", [source, index], part, axis=axis))
            inputs = dict(zip((one.name for one in body.input), (*states, *parts), strict=True))
            made = self.turn(node, body, number, inputs)
            states = made[: len(states)]
            for row, name in zip(rows, made[len(states) :], strict=True):
                row.append(name)
        self.join(node.output[: len(states)], states)
        made_axes = given.get("scan_output_axes") or [0] * len(collected)
        made_backward = given.get("scan_output_directions") or [0] * len(collected)
        for name, row, axis, backward in zip(
            collected, rows, made_axes, made_backward, strict=True
        ):
            self.collected(name, row[::-1] if backward else row, axis)
