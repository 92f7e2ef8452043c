# SPDX-License-Identifier: Apache-2.0
"""Remove nodes that return their first input as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.passes.provenance import device_of, replace_output

if TYPE_CHECKING:
    import onnx_ir as ir

_SAME_SHAPE_IS_IDENTITY = ("Reshape", "Flatten", "Expand", "Squeeze", "Unsqueeze")
_DROPOUT_INFERS_SINCE = 7
_DROPOUT_TRAINS_SINCE = 12


def eliminate_identities(model: ir.Model) -> list[str]:
    """Remove Identity, Dropout in inference, and casts and reshapes that change nothing.

    A node annotated for another device than its producer stays: it may stand there as a copy.
    """
    done = []
    version = model.opset_imports.get("", 0)
    for node in list(model.graph):
        if node.domain or not _is_identity(node, version):
            continue
        source, result = node.inputs[0], node.outputs[0]
        if source is None or not _may_go(node, source, result):
            continue
        done.append(node.name or "")
        if source.shape is None:
            source.shape = result.shape
        replace_output(model.graph, result, source, rename=result.is_graph_output())
    return done


def _may_go(node: ir.Node, source: ir.Value, result: ir.Value) -> bool:
    producer = source.producer()
    device = device_of(node)
    if device is not None and (producer is None or device_of(producer) != device):
        return False
    if not result.is_graph_output():
        return True
    return producer is not None and producer.graph is node.graph and not source.is_graph_output()


def _is_identity(node: ir.Node, version: int) -> bool:
    if not node.inputs or node.inputs[0] is None:
        return False
    source, result = node.inputs[0], node.outputs[0]
    match node.op_type:
        case "Identity":
            return True
        case "Dropout":
            return _is_inference(node, version)
        case "Cast":
            return source.dtype is not None and source.dtype == result.dtype
        case "Concat":
            return len(node.inputs) == 1
        case "Transpose":
            perm = node.attributes.get("perm")
            ints = () if perm is None or perm.is_ref() else perm.as_ints()
            return bool(ints) and list(ints) == sorted(ints)
        case operator if operator in _SAME_SHAPE_IS_IDENTITY:
            return _is_static(source) and _is_static(result) and source.shape == result.shape
        case _:
            return False


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.is_static()


def _is_inference(node: ir.Node, version: int) -> bool:
    """Whether a Dropout passes its input on and nobody reads its mask."""
    if version < _DROPOUT_INFERS_SINCE:
        return False
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return False
    training = node.inputs[2] if len(node.inputs) > 2 else None  # noqa: PLR2004 - training_mode
    if version < _DROPOUT_TRAINS_SINCE or training is None:
        return True
    return training.const_value is not None and not training.const_value.numpy().any()
