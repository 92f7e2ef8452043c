# SPDX-License-Identifier: Apache-2.0
"""Networks from the light models that the onnx package carries for its own tests.

A light model has a published network's structure with each weight written as `ConstantOfShape`.
Here the structure is kept, nodes and values get readable names, and every weight is drawn anew.

Source: the `onnx` package, `backend/test/data/light`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from intarsia.errors import ModelError
from intarsia.zoo.naming import Rules, node_name
from intarsia.zoo.weights import fill

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Array = npt.NDArray[np.generic]

_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
_IR_VERSION = 8  # version 3, that of the files, wants each initializer listed as an input too
_ROLES: Mapping[str, tuple[str, ...]] = {
    "BatchNormalization": ("", "scale", "bias", "mean", "var"),
    "Conv": ("", "weight", "bias"),
    "Gemm": ("", "weight", "bias"),
    "Reshape": ("", "shape"),
    "Unsqueeze": ("value",),
}


def from_light(
    name: str, rules: Rules, output: str, gain: float, rng: np.random.Generator
) -> ModelProto:
    """Build a network from the light model of this name.

    Args:
        name: What follows `light_` in the file's name.
        rules: How its nodes are to be called.
        output: How its one output is to be called.
        gain: The standard deviation that its last Conv or Gemm is to give.
        rng: Draws every weight.

    Raises:
        ModelError: If the installed onnx package lacks the light model.
    """
    source = _load(name)
    kept = [node for node in source.graph.node if node.op_type != "ConstantOfShape"]
    shapes, constants = _parameters(source.graph, kept)
    kept = _without_weight_reshapes(kept, shapes, constants)
    (image,) = (value for value in source.graph.input if value.name in kept[0].input[:1])
    names = {image.name: "data"}
    nodes = _renamed(kept, rules, names, shapes)
    nodes[-1].output[0] = output
    shapes = {names[key]: shape for key, shape in shapes.items()}
    constants = {names[key]: value for key, value in constants.items()}
    weights = {**fill(nodes, shapes, constants, rng, gain), **constants}
    graph = helper.make_graph(
        nodes,
        name,
        [_typed("data", image)],
        [_typed(output, source.graph.output[0])],
        [numpy_helper.from_array(array, key) for key, array in weights.items()],
    )
    return helper.make_model(
        graph,
        ir_version=_IR_VERSION,
        opset_imports=source.opset_import,
        producer_name="intarsia.zoo",
    )


def _load(name: str) -> ModelProto:
    """Read one light model."""
    path = _FOLDER / f"light_{name}.onnx"
    if not path.is_file():
        msg = f"the installed onnx package has no light model of {name}"
        raise ModelError(
            msg,
            hint="reinstall onnx from its own wheel; some distributions leave its test data out",
        )
    return onnx.load(path)


def _parameters(
    graph: GraphProto, nodes: Sequence[NodeProto]
) -> tuple[dict[str, tuple[int, ...]], dict[str, Array]]:
    """Return the shape of each weight, and the value of each integer constant, that is used."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    shapes = {
        node.output[0]: tuple(int(extent) for extent in values[node.input[0]])
        for node in graph.node
        if node.op_type == "ConstantOfShape"
    }
    shapes |= {key: value.shape for key, value in values.items() if value.dtype == np.float32}
    used = dict.fromkeys(name for node in nodes for name in node.input)
    return (
        {name: shapes[name] for name in used if name in shapes},
        {name: values[name] for name in used if name in values and name not in shapes},
    )


def _without_weight_reshapes(
    nodes: Sequence[NodeProto],
    shapes: dict[str, tuple[int, ...]],
    constants: dict[str, Array],
) -> list[NodeProto]:
    """Give each weight that only a Reshape reads its final shape, and drop that Reshape.

    Args:
        nodes: The source's nodes.
        shapes: The shape of each weight; changed here.
        constants: The integer constants; the shapes that are no longer read leave.
    """
    kept: list[NodeProto] = []
    for node in nodes:
        if node.op_type == "Reshape" and node.input[0] in shapes:
            del shapes[node.input[0]]
            shapes[node.output[0]] = tuple(int(n) for n in constants.pop(node.input[1]))
        else:
            kept.append(node)
    return kept


def _renamed(
    nodes: Iterable[NodeProto],
    rules: Rules,
    names: dict[str, str],
    shapes: Mapping[str, tuple[int, ...]],
) -> list[NodeProto]:
    """Return the nodes with readable names for themselves and for every value.

    Args:
        nodes: The source's nodes, in topological order.
        rules: How its nodes are to be called.
        names: Source names of the values so far and what they are called; extended here.
        shapes: The source names of weights, and their shapes.
    """
    renamed: list[NodeProto] = []
    for node in nodes:
        new = [(i, key) for i, key in enumerate(node.input) if key not in names]
        weights = [key for _, key in new if key in shapes]
        name = node_name(rules, node.op_type, weights[0] if weights else renamed[-1].name)
        names |= {key: f"{name}.{_ROLES[node.op_type][i]}" for i, key in new}
        names[node.output[0]] = name
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = name
        copy.input[:] = [names[key] for key in node.input]
        copy.output[:] = [name]  # drops the mask of a Dropout, which nothing reads
        renamed.append(copy)
    return renamed


def _typed(name: str, value: ValueInfoProto) -> ValueInfoProto:
    """Return a graph input or output under another name."""
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy
