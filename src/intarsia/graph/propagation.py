# SPDX-License-Identifier: Apache-2.0
"""Keep the propagation of data in `onnx.shape_inference` from working on more than shapes.

It carries the entries of vectors from operator to operator, one object of some hundred bytes for
each, known or not: a model of 200 bytes whose Range has 2**40 entries would never end.

Vectors known to be long are cut out (`cut_propagation`). The length of others becomes known only
while data is propagated (`ConstantOfShape(Mul(a, b))`), so what reads them is first hidden
(`hide_readers`). The bodies of If, Loop and Scan are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import numpy as np
import onnx
import onnx.defs
from onnx import helper, numpy_helper

_MOST_ENTRIES = 1024
"""Most entries of a vector that are propagated; shapes have a few."""
_HIDDEN_DOMAIN = "intarsia.hidden"
"""No operator is defined here, so inference keeps what is stated of the outputs."""
_SINCE = 9
"""The operator set that brought ConstantOfShape."""
_INTEGERS = (f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_FILLED = frozenset(("float", "float16", "double", "bool", *_INTEGERS))
"""The types of elements that ConstantOfShape may fill in."""


def is_complete(inferred: onnx.ModelProto) -> bool:
    """Tell whether all shapes are known, so that propagating data would add nothing."""
    graph = inferred.graph
    if any(item.HasField("g") or item.graphs for node in graph.node for item in node.attribute):
        return False
    types = {info.name: info.type for info in (*graph.value_info, *graph.output)}
    names = (name for node in graph.node for name in node.output if name)
    return all(name in types and _extents(types[name]) is not None for name in names)


def cut_propagation(proto: onnx.ModelProto, inferred: onnx.ModelProto) -> bool:
    """Replace the nodes of a skeleton that would carry long vectors, and tell whether all could be.

    Each becomes a ConstantOfShape with a result of the same type and shape.

    Args:
        proto: The skeleton.
        inferred: The same after inference without propagation.
    """
    graph, types = proto.graph, _types(inferred)
    constants = {item.name: tuple(item.dims) for item in graph.initializer}
    extents = {name: _extents(item) for name, item in types.items()} | constants
    version = _version(proto)
    for node in graph.node:
        if node.domain or len(node.output) != 1 or not _propagates(node.op_type, version):
            continue
        result = extents.get(node.output[0])
        shapes = (extents.get(name) for name in (*node.input, *node.output))
        if not any(map(_is_long, shapes)):
            continue
        if result is None or version < _SINCE or not _is_fillable(types[node.output[0]]):
            return False
        _make_anonymous(graph, node, result, types)
    return True


def hide_readers(
    proto: onnx.ModelProto, inferred: onnx.ModelProto
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Copy a skeleton with the nodes that would carry vectors of unknown length made opaque.

    Their results have the types that are known of them, and carry nothing.

    Args:
        proto: The skeleton, without nodes that carry vectors known to be long.
        inferred: The same after inference without propagation.

    Returns:
        The copy, and the names of the values that its opaque nodes read and make.
    """
    types = _types(inferred)
    sized = {item.name for item in proto.graph.initializer}
    sized |= {name for name, kind in types.items() if not _may_be_long(kind)}
    version = _version(proto)
    hidden = [
        index
        for index, node in enumerate(proto.graph.node)
        if not node.domain
        and node.op_type != "Shape"  # the only one that reads no entries; Size does
        and _propagates(node.op_type, version)
        and any(name and name not in sized for name in node.input)
    ]
    if not hidden:
        return proto, ()
    copy = state_types(proto, inferred)
    copy.opset_import.add(domain=_HIDDEN_DOMAIN, version=1)
    for index in hidden:
        copy.graph.node[index].domain = _HIDDEN_DOMAIN
    nodes = (proto.graph.node[index] for index in hidden)
    return copy, tuple(name for node in nodes for name in (*node.input, *node.output))


def state_types(proto: onnx.ModelProto, inferred: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a skeleton with the types of values that were inferred for it, or for a copy of it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for field in ("value_info", "output"):
        copy.graph.ClearField(field)
        getattr(copy.graph, field).extend(getattr(inferred.graph, field))
    return copy


def dimensions(inferred: onnx.ModelProto, names: Iterable[str]) -> list[list[int | None] | None]:
    """Return the known parts of values' shapes; None stands for an unknown dimension or rank."""
    types = _types(inferred)
    return [
        [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.tensor_type.shape.dim]
        if kind is not None and kind.tensor_type.HasField("shape")
        else None
        for kind in map(types.get, names)
    ]


def _types(inferred: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    graph = inferred.graph
    return {info.name: info.type for info in (*graph.value_info, *graph.input, *graph.output)}


def _version(proto: onnx.ModelProto) -> int:
    return next((item.version for item in proto.opset_import if not item.domain), 1)


def _may_be_long(kind: onnx.TypeProto) -> bool:
    """Tell whether it may be a vector, and of any length."""
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return True
    return len(tensor.shape.dim) == 1 and not tensor.shape.dim[0].HasField("dim_value")


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
