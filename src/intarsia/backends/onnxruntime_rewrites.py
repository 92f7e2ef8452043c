# SPDX-License-Identifier: Apache-2.0
"""What ONNX Runtime gets otherwise than the model has it: operators, types, operator sets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from intarsia.backends.rewriting import (
    BATCH_FIRST,
    SPACE_TO_DEPTH,
    WINDOWS,
    NodeRewrite,
    RegionDraft,
)
from intarsia.graph.graph import ABSENT

if TYPE_CHECKING:
    import onnx

    from intarsia.graph.graph import Graph, Node
    from intarsia.graph.region import Region

NEWEST_OPSET = 26
"""The newest operator set of ONNX that release 1.31 knows."""
_NEWEST_WITH_KERNEL = {"Bernoulli": 21, "RandomUniformLike": 21, "RoiAlign": 21}
"""By operator, the newest operator set whose definition has a kernel in release 1.31."""
_SHORT = frozenset(("int16", "uint16"))


def newest_opset(region: Region) -> int:
    """Return the newest operator set of which ONNX Runtime runs the operators of a region."""
    operators = {region.graph.nodes[node].op_type for node in region.nodes}
    return min(_NEWEST_WITH_KERNEL.get(operator, NEWEST_OPSET) for operator in operators)


def _is_short(graph: Graph, node: Node) -> bool:
    return graph.values[node.inputs[0]].dtype in _SHORT


def _make_wide(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    """Compare 16 bits as 32, which changes no number."""
    from onnx import TensorProto

    wide = [draft.add("Cast", name, to=TensorProto.INT32) for name in proto.input]
    dtype = graph.values[node.inputs[0]].ir.dtype
    assert dtype is not None
    outputs = list(proto.output)
    draft.keep(proto, wide, [f"{draft.name}/wide"])
    draft.add("Cast", f"{draft.name}/wide", result=outputs[0], to=dtype.value)


def _has_unsigned_power(graph: Graph, node: Node) -> bool:
    return graph.values[node.inputs[1]].dtype == "uint32"


def _make_signed_power(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    from onnx import TensorProto

    power = draft.add("Cast", proto.input[1], to=TensorProto.INT64)
    draft.keep(proto, [proto.input[0], power], list(proto.output))


def _counts_with_vectors(graph: Graph, node: Node) -> bool:
    shapes = (graph.values[value].ir.shape for value in node.inputs)
    return any(shape is not None and len(shape) == 1 for shape in shapes)


def _make_scalars(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    scalars = [draft.reshape(name, ()) for name in proto.input]
    draft.keep(proto, scalars, list(proto.output))


_RIGHT_FACTORS = {"MatMulInteger": (1, 3), "QLinearMatMul": (3, 5), "QLinearConv": (3, 5)}
"""By operator, where the right factor and its zero point stand; the left one is the first."""
_HALF = 128


def _has_signed_factor(graph: Graph, node: Node) -> bool:
    """Tell whether bytes without a sign are multiplied by such with one.

    Where a CPU lacks VNNI, ONNX Runtime sums such products in pairs of 16 bits, which saturate:
    it is 520,192 off for a row of 33 times 255 by -128.
    """
    right, _ = _RIGHT_FACTORS[node.op_type]
    dtypes = tuple(graph.values[node.inputs[at]].dtype for at in (0, right))
    return dtypes == ("uint8", "int8")


def _has_signed_factor_fed(graph: Graph, node: Node) -> bool:
    right, _ = _RIGHT_FACTORS[node.op_type]
    is_fed = graph.values[node.inputs[right]].constant is None
    return is_fed and _has_signed_factor(graph, node)


def _make_unsigned(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    """Add 128 to the factor and to its zero point, which changes no sum."""
    from onnx import TensorProto

    def shift(name: str) -> str:
        wide = draft.add("Cast", name, to=TensorProto.INT32)
        wide = draft.add("Add", wide, draft.constant(_HALF, "int32"))
        return draft.add("Cast", wide, to=TensorProto.UINT8)

    right, zero = _RIGHT_FACTORS[node.op_type]
    inputs = [*proto.input, *[""] * (zero + 1 - len(proto.input))]
    inputs[right] = shift(inputs[right])
    inputs[zero] = shift(inputs[zero]) if inputs[zero] else draft.constant(_HALF, "uint8")
    draft.keep(proto, inputs, list(proto.output))


_ZERO_POINT = 2
"""Where a zero point stands among the inputs of a DequantizeLinear."""


def _shares_zero_point(graph: Graph, node: Node) -> bool:
    zero = node.inputs[_ZERO_POINT] if len(node.inputs) > _ZERO_POINT else ABSENT
    if zero == ABSENT:
        return False
    value = graph.values[zero]
    is_constant = value.constant is not None and value.dtype == "int8"
    return is_constant and len(set(value.consumers)) > 1


def _has_blocks_alone(graph: Graph, node: Node) -> bool:
    """Tell whether a node has constant int8 weights in blocks, and no zero points."""
    has_zero = len(node.inputs) > _ZERO_POINT and node.inputs[_ZERO_POINT] != ABSENT
    weights, scales = (graph.values[value] for value in node.inputs[:_ZERO_POINT])
    is_constant = weights.constant is not None and weights.dtype == "int8"
    has_blocks = node.ir.attributes.get_int("block_size", 0) > 0
    return has_blocks and is_constant and not has_zero and scales.shape is not None


def _write_zero_points(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    shape = graph.values[node.inputs[1]].shape
    assert shape is not None
    zeros = draft.constant(np.zeros(shape, np.int8), "int8")
    draft.keep(proto, [*proto.input[:_ZERO_POINT], zeros], list(proto.output))


def _own_zero_point(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    zero = graph.values[node.inputs[_ZERO_POINT]].constant
    assert zero is not None
    own = draft.constant(zero.numpy(), "int8")
    draft.keep(proto, [*proto.input[:_ZERO_POINT], own], list(proto.output))


UNSIGNED_FACTORS = NodeRewrite(
    frozenset(_RIGHT_FACTORS),
    "without VNNI it sums products of uint8 and int8 in 16 bits, which saturate",
    _has_signed_factor,
    _make_unsigned,
)
"""For sessions that do not optimise: others turn constants into uint8 where the CPU needs it."""

REWRITES = (
    replace(UNSIGNED_FACTORS, where=_has_signed_factor_fed),
    BATCH_FIRST,
    SPACE_TO_DEPTH,
    WINDOWS,
    NodeRewrite(
        frozenset(("DequantizeLinear",)),
        "where it makes weights uint8, a zero point that two nodes read is one too many",
        _shares_zero_point,
        _own_zero_point,
    ),
    NodeRewrite(
        frozenset(("DequantizeLinear",)),
        "where it makes weights uint8, it gives blocks without zero points one number for all",
        _has_blocks_alone,
        _write_zero_points,
    ),
    NodeRewrite(frozenset(("Max", "Min")), "it has no kernel of 16 bits", _is_short, _make_wide),
    NodeRewrite(
        frozenset(("Range",)),
        "it refuses vectors of one element, which bodies that ONNX declares give it",
        _counts_with_vectors,
        _make_scalars,
    ),
    NodeRewrite(
        frozenset(("Pow",)),
        "it has no kernel of such powers",
        _has_unsigned_power,
        _make_signed_power,
    ),
)
"""What is said otherwise for ONNX Runtime."""
