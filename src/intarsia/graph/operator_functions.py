# SPDX-License-Identifier: Apache-2.0
"""Operators that ONNX defines as a function of others, and that no runtime has a kernel for.

Their functions become functions of the model (`define_functions`), which are inlined as a user's
own are: each node of theirs is placed, and stands for the operator in the user's model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Sequence

EXPANDED = frozenset(
    (
        ("", "BlackmanWindow"),
        ("", "CausalConvWithState"),
        ("", "HammingWindow"),
        ("", "HannWindow"),
        ("", "LinearAttention"),
        ("", "NegativeLogLikelihoodLoss"),
        ("", "SoftmaxCrossEntropyLoss"),
        ("ai.onnx.preview", "FlexAttention"),
    )
)
"""By domain and name, what has a function in ONNX's own schemas and gains nothing from being whole;
a backend with a kernel of its own for one of them would take it off this list."""


def define_functions(model: ir.Model) -> bool:
    """Give the model the functions of its operators in `EXPANDED`; return whether there are any.

    An operator stays as it is where a type that its function depends on is not known, and where its
    version has none.

    Args:
        model: Ours to change; the types of its values are inferred.
    """
    has_any = False
    for number, node in enumerate(list(model.graph.all_nodes())):
        if (node.domain, node.op_type) not in EXPANDED or node.overload:
            continue
        version = model.opset_imports.get(node.domain)
        schema = None if version is None else _schema(node, version)
        proto = None if schema is None else _function(schema, node)
        if schema is None or proto is None:
            continue
        for name, attribute in schema.attributes.items():
            if name not in node.attributes and attribute.default_value.type:
                node.attributes[name] = ir.serde.deserialize_attribute(attribute.default_value)
        for name in [key for key, value in node.attributes.items() if value.type in _GRAPHS]:
            del node.attributes[name]  # its nodes are among the function's
        # Each call has a function of its own, as what it is made of depends on the call.
        if node.op_type in WINDOWS and node.attributes[_DATATYPE].as_int() == ir.DataType.DOUBLE:
            _widen(proto)
        proto.overload = node.overload = f"intarsia.{number}"
        model.functions[node.op_identifier()] = ir.serde.deserialize_function(proto)
        has_any = True
    return has_any


_DATATYPE = "output_datatype"
WINDOWS = ("BlackmanWindow", "HammingWindow", "HannWindow")
_TERMS = (0.42, 0.08, 25 / 46, 21 / 46, 2 * math.pi)
"""Numbers in the functions of windows that are no float32 numbers."""


def _widen(function: onnx.FunctionProto) -> None:
    """Let the function of a window compute in float64, as its result is of that type.

    ONNX's own computes in float32 whatever is asked for, which is off by 6e-8; its reference
    evaluator and ONNX Runtime do not.
    """
    exact = {np.float32(term).item(): term for term in _TERMS}
    for node in function.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.DOUBLE
            if attribute.HasField("t") and attribute.t.data_type == onnx.TensorProto.FLOAT:
                numbers = onnx.numpy_helper.to_array(attribute.t)
                wide = np.array([exact.get(n, n) for n in numbers.ravel().tolist()])
                attribute.t.CopyFrom(onnx.numpy_helper.from_array(wide.reshape(numbers.shape)))


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _schema(node: ir.Node, version: int) -> Any:  # onnx's types leave functions out
    try:
        return onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return None


def _function(schema: Any, node: ir.Node) -> onnx.FunctionProto | None:
    """Return what an operator is defined as, or None if it has no function here."""
    if schema.has_context_dependent_function:
        types = _types(node.inputs)
        if types is None:
            return None
        version = schema.context_dependent_function_opset_versions[-1]
        text = ir.to_proto(node).SerializeToString()
        body = schema.get_context_dependent_function_with_opset_version(version, text, types)
    elif schema.has_function:
        body = schema.get_function_with_opset_version(schema.function_opset_versions[-1])
    else:
        return None
    proto = onnx.FunctionProto()
    proto.ParseFromString(body)
    results = {name for inner in proto.node for name in inner.output}
    while proto.output and proto.output[-1] not in results:  # optional, and not asked for
        proto.output.pop()
    return proto


def _types(values: Sequence[ir.Value | None]) -> list[bytes] | None:
    """Return the types of operands as ONNX stores them, or None if one is not known."""
    types = []
    for value in values:
        if value is not None and value.type is None:
            return None
        proto = onnx.TypeProto() if value is None else ir.to_proto(value).type
        types.append(proto.SerializeToString())
    return types
