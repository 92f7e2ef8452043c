# SPDX-License-Identifier: Apache-2.0
"""Keep the propagation of data in `onnx.shape_inference` from working on more than shapes.

It carries the entries of vectors from operator to operator, one object of some hundred bytes for
each, known or not: a model of 200 bytes whose Range has 2**40 entries would never end.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import onnx
import onnx.defs
from onnx import helper, numpy_helper

_MOST_ENTRIES = 1024
"""Of a vector whose entries are carried; shapes have a few."""
_SINCE = 9
"""The operator set that brought ConstantOfShape."""
_FILLED = frozenset(
    (
        *("float", "float16", "double", "bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    )
)
"""What it may consist of."""


def is_complete(inferred: onnx.ModelProto) -> bool:
    """Tell whether all shapes are known, so that propagating data would add nothing."""
    graph = inferred.graph
    if any(item.HasField("g") or item.graphs for node in graph.node for item in node.attribute):
        return False
    types = {info.name: info.type for info in (*graph.value_info, *graph.output)}
    made = (name for node in graph.node for name in node.output if name)
    return all(name in types and _extents(types[name]) is not None for name in made)


def cut_propagation(proto: onnx.ModelProto, inferred: onnx.ModelProto) -> bool:
    """Replace the nodes of a skeleton that would carry long vectors, and tell whether all could be.

    Each becomes a ConstantOfShape with a result of the same type and shape.

    Args:
        proto: The skeleton.
        inferred: The same after inference without propagation.
    """
    graph, found = proto.graph, inferred.graph
    infos = (*found.value_info, *found.input, *found.output)
    types = {info.name: info.type for info in infos}
    constants = {item.name: tuple(item.dims) for item in graph.initializer}
    extents = {name: _extents(item) for name, item in types.items()} | constants
    version = next((item.version for item in proto.opset_import if not item.domain), 1)
    for node in graph.node:
        if node.domain or len(node.output) != 1 or not _propagates(node.op_type, version):
            continue
        result = extents.get(node.output[0])
        known = (extents.get(name) for name in (*node.input, *node.output))
        if not any(map(_is_long, known)):
            continue
        if result is None or version < _SINCE or not _is_fillable(types[node.output[0]]):
            return False
        _make_anonymous(graph, node, result, types)
    return True


def _is_fillable(kind: onnx.TypeProto) -> bool:
    return onnx.TensorProto.DataType.Name(kind.tensor_type.elem_type).lower() in _FILLED


def _is_long(extents: tuple[int, ...] | None) -> bool:
    return extents is not None and len(extents) == 1 and extents[0] > _MOST_ENTRIES


@cache
def _propagates(op_type: str, version: int) -> bool:
    try:
        schema = onnx.defs.get_schema(op_type, version)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_data_propagation_function)


def _extents(kind: onnx.TypeProto) -> tuple[int, ...] | None:
    """Return the dimensions of a tensor type if all are known."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return tuple(d.dim_value for d in dims) if all(d.HasField("dim_value") for d in dims) else None


def _make_anonymous(
    graph: onnx.GraphProto,
    node: onnx.NodeProto,
    extents: tuple[int, ...],
    types: Mapping[str, onnx.TypeProto],
) -> None:
    """Make a node one of the same result that carries nothing."""
    (output,) = node.output
    shape = f"{output}/intarsia.extents"
    graph.initializer.append(numpy_helper.from_array(np.array(extents, np.int64), shape))
    filler = helper.make_tensor("filler", types[output].tensor_type.elem_type, [1], [0])
    node.CopyFrom(helper.make_node("ConstantOfShape", [shape], [output], node.name, value=filler))
