# SPDX-License-Identifier: Apache-2.0
"""Fuse what scales and shifts channels into the convolution or product before it.

Batch normalisation in inference, and Mul, Div, Add and Sub with a constant per channel, become
part of the weights and bias of Conv, ConvTranspose and Gemm. Arithmetic is in float64, rounded
once.

Source: Ioffe and Szegedy, Batch Normalization, ICML 2015, section 3.1 (inference).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from intarsia.passes.provenance import absorb, can_merge, replace_output

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ANCHORS = ("Conv", "ConvTranspose", "Gemm")
_DEFAULT_EPSILON = 1e-5
_BATCH_NORM_INPUTS = 5
_BATCH_NORM_INFERS_SINCE = 7
_BIAS = 2


@dataclass(frozen=True, slots=True)
class _Affine:
    """y = x * scale + shift; f64[channels] each."""

    scale: NDArray[Any]
    shift: NDArray[Any]


def fuse_affine(model: ir.Model) -> list[str]:
    """Fuse affine nodes into the node before them; the latter keeps its name."""
    done: list[str] = []
    version = model.opset_imports.get("", 0)
    names = _names(model.graph)
    for node in list(model.graph):
        if node.domain or node.op_type not in _ANCHORS:
            continue
        while (follower := _only_reader(node)) is not None:
            with np.errstate(all="ignore"):  # results that are not finite are not used
                fused = can_merge(node, follower) and _fuse(model, node, follower, version, names)
            if not fused:
                break
            done.append(follower.name or "")
            absorb(node, follower)
            replace_output(model.graph, follower.outputs[0], node.outputs[0], rename=True)
    return done


def _names(graph: ir.Graph) -> set[str]:
    names = {value.name or "" for value in graph.inputs}
    names.update(graph.initializers)
    names.update(value.name or "" for node in graph.all_nodes() for value in node.outputs)
    return names


def _only_reader(node: ir.Node) -> ir.Node | None:
    value = node.outputs[0]
    if value.is_graph_output() or len(value.uses()) != 1:
        return None
    reader = value.consumers()[0]
    return reader if reader.graph is node.graph and not reader.domain else None


def _fuse(model: ir.Model, node: ir.Node, follower: ir.Node, version: int, names: set[str]) -> bool:
    weights = _constant(node.inputs[1])
    if weights is None or len(node.inputs[1].uses()) != 1:  # type: ignore[union-attr]
        return False
    bias_value = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
    bias = _constant(bias_value)
    if bias_value is not None and bias is None:
        return False
    channels = _channels(node, weights)
    rank = weights.ndim
    affine = _affine(node.outputs[0], follower, channels, rank, version)
    if affine is None:
        return False
    new_weights = _scale_weights(node, weights.astype(np.float64), affine.scale)
    beta = _float(node, "beta", 1.0) if node.op_type == "Gemm" else 1.0
    old_bias = np.zeros(channels) if bias is None else beta * bias.astype(np.float64)
    made = [
        new_weights.astype(weights.dtype),
        (old_bias * affine.scale + affine.shift).astype(weights.dtype),
    ]
    if not all(np.isfinite(array.astype(np.float64)).all() for array in made):
        return False
    if len(node.inputs) <= _BIAS:
        node.resize_inputs(_BIAS + 1)
    base = node.inputs[1].name or ""  # type: ignore[union-attr]
    for slot, array, suffix in ((1, made[0], "fused"), (_BIAS, made[1], "fused_bias")):
        _set_constant(model.graph, node, slot, array, _fresh(f"{base}_{suffix}", names))
    node.attributes.pop("beta", None)
    return True


def _constant(value: ir.Value | None) -> NDArray[Any] | None:
    if value is None or value.const_value is None or not value.is_initializer():
        return None
    if not value.const_value.dtype.is_floating_point():
        return None
    return value.const_value.numpy()


def _channels(node: ir.Node, weights: NDArray[Any]) -> int:
    if node.op_type == "Conv":
        return int(weights.shape[0])
    if node.op_type == "ConvTranspose":
        return int(weights.shape[1]) * _int(node, "group", 1)
    return int(weights.shape[0 if _int(node, "transB", 0) else 1])


def _affine(
    value: ir.Value, follower: ir.Node, channels: int, rank: int, version: int
) -> _Affine | None:
    if follower.op_type == "BatchNormalization":
        return _batch_norm(value, follower, version)
    if follower.op_type not in ("Mul", "Div", "Add", "Sub") or len(follower.inputs) != 2:  # noqa: PLR2004 - binary
        return None
    first = follower.inputs[0] is value
    constant = _constant(follower.inputs[1 if first else 0])
    if constant is None or not (first or follower.op_type in ("Mul", "Add")):
        return None
    operand = _per_channel(constant.astype(np.float64), channels, rank)
    if operand is None:
        return None
    one, zero = np.ones(channels), np.zeros(channels)
    match follower.op_type:
        case "Mul":
            return _Affine(operand, zero)
        case "Div":
            return _Affine(1.0 / operand, zero)
        case "Add":
            return _Affine(one, operand)
        case _:
            return _Affine(one, -operand)


def _per_channel(operand: NDArray[Any], channels: int, rank: int) -> NDArray[Any] | None:
    """Return the operand as f64[channels], if it is one number per channel of axis 1."""
    if operand.ndim > rank:
        return None
    shape = (1,) * (rank - operand.ndim) + operand.shape
    if any(dim != 1 for axis, dim in enumerate(shape) if axis != 1) or shape[1] not in (
        1,
        channels,
    ):
        return None
    return np.broadcast_to(operand.reshape(-1), (channels,))


def _batch_norm(value: ir.Value, node: ir.Node, version: int) -> _Affine | None:
    trains = _int(node, "training_mode", 0) or not _int(node, "spatial", 1)
    extra = any(out.uses() or out.is_graph_output() or out.name for out in node.outputs[1:])
    if version < _BATCH_NORM_INFERS_SINCE or trains or extra or node.inputs[0] is not value:
        return None
    parameters = [_constant(value) for value in node.inputs[1:]]
    found = [array.astype(np.float64) for array in parameters if array is not None]
    if len(found) != _BATCH_NORM_INPUTS - 1:
        return None
    gamma, beta, mean, variance = found
    scale = gamma / np.sqrt(variance + _float(node, "epsilon", _DEFAULT_EPSILON))
    return _Affine(scale, beta - mean * scale)


def _scale_weights(node: ir.Node, weights: NDArray[Any], scale: NDArray[Any]) -> NDArray[Any]:
    scaled: NDArray[Any]
    if node.op_type == "Conv":
        scaled = weights * scale.reshape(-1, *(1,) * (weights.ndim - 1))
    elif node.op_type == "Gemm":
        scaled = weights * (scale[:, None] if _int(node, "transB", 0) else scale)
    else:
        group = _int(node, "group", 1)
        inputs, outputs, *kernel = weights.shape
        grouped = weights.reshape(group, inputs // group, outputs, *kernel)
        by_group = scale.reshape(group, 1, outputs, *(1,) * len(kernel))
        scaled = (grouped * by_group).reshape(weights.shape)
    return scaled


def _int(node: ir.Node, name: str, default: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default


def _float(node: ir.Node, name: str, default: float) -> float:
    return node.attributes[name].as_float() if name in node.attributes else default


def _fresh(name: str, names: set[str]) -> str:
    candidate, count = name, 0
    while candidate in names:
        count += 1
        candidate = f"{name}_{count}"
    names.add(candidate)
    return candidate


def _set_constant(
    graph: ir.Graph, node: ir.Node, slot: int, array: NDArray[Any], name: str
) -> None:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
        const_value=tensor,
    )
    graph.register_initializer(value)
    old = node.inputs[slot]
    node.replace_input_with(slot, value)
    if old is not None and not old.uses() and old.name and not old.is_graph_output():
        graph.initializers.pop(old.name, None)
