# SPDX-License-Identifier: Apache-2.0
"""Compute what depends on constants only, with the ONNX reference evaluator.

Only cheap, deterministic operators are folded, quantisation never is: backends look for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FOLDABLE = frozenset(
    """Abs Add And Cast Ceil Clip Concat ConstantOfShape Cos CumSum Div Equal Erf Exp Expand
    EyeLike Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity Less
    LessOrEqual Log Max Min Mod Mul Neg NonZero Not OneHot Or Pad Pow Range Reciprocal ReduceMax
    ReduceMin ReduceProd ReduceSum Reshape Round ScatterElements ScatterND Sigmoid Sign Sin Slice
    Split Sqrt Squeeze Sub Sum Tanh Tile Transpose Trilu Unsqueeze Where Xor""".split()  # noqa: SIM905 - sixty lines otherwise
)
_MOST_INPUT_ELEMENTS = 2**26
_MOST_NEW_ELEMENTS = 2**20
_NATIVE_KINDS = "fiub"


def lift_constants(model: ir.Model) -> list[str]:
    """Turn Constant nodes into initializers, except those that are graph outputs."""
    done = []
    for node in list(model.graph):
        if (node.domain, node.op_type) != ("", "Constant") or node.outputs[0].is_graph_output():
            continue
        tensor = _constant_tensor(node)
        if tensor is not None:
            done.append(node.name or "")
            _replace(model.graph, node, [tensor])
    return done


def fold_constants(model: ir.Model) -> list[str]:
    """Replace nodes with constant inputs, and Shape and Size of static values, by initializers.

    A node that makes a graph output stays, so that every output is still made by a node.
    """
    done = []
    for node in list(model.graph):
        if node.domain or any(value.is_graph_output() for value in node.outputs):
            continue
        arrays = _evaluate(model, node)
        if arrays is not None:
            done.append(node.name or "")
            _replace(model.graph, node, [ir.tensor(array) for array in arrays])
    return done


def _constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    attribute = next(iter(node.attributes.values()), None)
    if attribute is None or attribute.is_ref() or len(node.attributes) != 1:
        return None
    match attribute.name:
        case "value":
            return attribute.as_tensor()
        case "value_int" | "value_ints":
            return ir.tensor(np.array(attribute.value, dtype=np.int64))
        case "value_float" | "value_floats":
            return ir.tensor(np.array(attribute.value, dtype=np.float32))
        case "value_string" | "value_strings":
            texts = np.array(attribute.value, dtype=object)
            return ir.StringTensor(texts, shape=ir.Shape(texts.shape))
        case _:
            return None


def _replace(graph: ir.Graph, node: ir.Node, tensors: list[ir.TensorProtocol]) -> None:
    names = [value.name for value in node.outputs]
    made = []
    for name, tensor in zip(names, tensors, strict=True):
        shape = ir.Shape(tensor.shape.numpy())
        type_ = ir.TensorType(tensor.dtype)
        made.append(ir.Value(name=name, type=type_, shape=shape, const_value=tensor))
    for value, constant in zip(node.outputs, made, strict=True):
        value.replace_all_uses_with(constant)
    graph.remove(node, safe=True)
    for constant in made:
        if constant.name:
            graph.register_initializer(constant)


def _evaluate(model: ir.Model, node: ir.Node) -> list[NDArray[Any]] | None:
    if node.op_type in ("Shape", "Size"):
        return _evaluate_shape(node)
    if node.op_type not in _FOLDABLE or not any(node.inputs):
        return None
    tensors = [value.const_value for value in node.inputs if value is not None]
    if any(value is not None and not value.is_initializer() for value in node.inputs):
        return None
    if sum(tensor.size for tensor in tensors if tensor is not None) > _MOST_INPUT_ELEMENTS:
        return None
    expected = _elements(node)
    if expected is not None and not _is_worth(node, expected):
        return None
    arrays = _run(model, node)
    if arrays is None or not _is_worth(node, sum(array.size for array in arrays)):
        return None
    return arrays if _agrees(node, arrays) else None


def _evaluate_shape(node: ir.Node) -> list[NDArray[Any]] | None:
    value = node.inputs[0]
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    dims = np.array(value.shape.numpy(), dtype=np.int64)
    if node.op_type == "Size":
        return [np.array(dims.prod(), dtype=np.int64)]
    start = node.attributes["start"].as_int() if "start" in node.attributes else 0
    end = node.attributes["end"].as_int() if "end" in node.attributes else len(dims)
    return [dims[start:end]]


def _elements(node: ir.Node) -> int | None:
    """Return how many elements the outputs have, if their shapes are known."""
    total = 0
    for value in node.outputs:
        if value.shape is None or not value.shape.is_static():
            return None
        total += int(np.prod(value.shape.numpy(), dtype=np.int64))
    return total


def _is_worth(node: ir.Node, elements: int) -> bool:
    """Whether the constants made are small, or no bigger than those that they replace."""
    freed = sum(
        value.const_value.size
        for value in node.inputs
        if value is not None and value.const_value is not None and len(value.uses()) == 1
    )
    return elements <= max(_MOST_NEW_ELEMENTS, freed)


def _run(model: ir.Model, node: ir.Node) -> list[NDArray[Any]] | None:
    feeds: dict[str, NDArray[Any]] = {}
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.graph.name = "folded"
    proto.graph.node.add().CopyFrom(ir.to_proto(node))
    for value in node.inputs:
        if value is None or value.const_value is None or value.name in feeds:
            continue
        array = value.const_value.numpy()
        if array.dtype.kind not in _NATIVE_KINDS:
            return None
        feeds[value.name or ""] = array
        ir.serde.serialize_value_into(proto.graph.input.add(), value)
    for value in node.outputs:
        proto.graph.output.add(name=value.name or "")
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(proto).run(None, feeds)
    except Exception:  # the evaluator may raise anything on what it does not implement
        return None
    if not all(isinstance(result, np.ndarray | np.generic) for result in results):
        return None
    arrays = [np.ascontiguousarray(result).reshape(np.shape(result)) for result in results]
    return arrays if all(array.dtype.kind in _NATIVE_KINDS for array in arrays) else None


def _agrees(node: ir.Node, arrays: list[NDArray[Any]]) -> bool:
    """Whether the results have the types and shapes inferred, as a check on the evaluator."""
    for value, array in zip(node.outputs, arrays, strict=True):
        if value.dtype is not None and value.dtype != ir.DataType.from_numpy(array.dtype):
            return False
        shape = value.shape
        if shape is not None and shape.is_static() and tuple(shape.numpy()) != array.shape:
            return False
    return True
