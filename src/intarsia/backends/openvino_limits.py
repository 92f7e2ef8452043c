# SPDX-License-Identifier: Apache-2.0
"""Which types and shapes OpenVINO's CPU plug-in is trusted with: part of the `openvino` leaf.

What it gets wrong beside is listed in `openvino_defects`. Float32 and float16 are computed; other
types are taken where they are only moved, compared with nothing, or are indices. Arithmetic on
integers is not: int64 is computed in 32 bits (2**33 comes out of Identity as 0), int32 partly in
float32 (2**24 + 1 equals 2**24), 8-bit integers saturate instead of wrapping, QuantizeLinear rounds
after it adds the zero point.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from intarsia.backends.artifact import refuse
from intarsia.backends.defects import refuse_defects
from intarsia.backends.openvino_defects import DEFECTS
from intarsia.backends.openvino_rewrites import REWRITES
from intarsia.backends.rewriting import is_rewritten
from intarsia.backends.values import Refusal
from intarsia.errors import ReasonCode
from intarsia.graph.indices import has_free_bound

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext
    from intarsia.graph.graph import Graph, Node, Value

FLOATS = frozenset(("float32", "float16"))
"""Element types that every operator may compute in."""

MOVED = frozenset(("bool", "int8", "uint8", "int32"))
"""Element types that are exact where they are only moved."""

MOVES = frozenset(
    (
        *("Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"),
        *("Identity", "Reshape", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth"),
        *("Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"),
    )
)
"""Operators that move elements and do nothing else to them."""

TRUTHS = frozenset(("And", "Not", "Or", "Xor"))
"""Operators on truth values."""

TESTS = frozenset(("Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual"))
"""Operators that give truth values, exactly so if their inputs are floats."""

CASTS = frozenset(
    (
        *(("bool", "float32"), ("int8", "float32"), ("uint8", "float32"), ("int32", "float32")),
        *(("float16", "float32"), ("float32", "float16"), ("bool", "int32")),
        *(("int8", "int32"), ("uint8", "int32")),
    )
)
"""Casts that keep the value, or round it as ONNX says."""

INDEX_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Expand": (1,),
    "Gather": (1,),
    "GatherElements": (1,),
    "GatherND": (1,),
    "Reshape": (1,),
    "Resize": (3,),
    "ScatterElements": (1,),
    "ScatterND": (1,),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
}
"""By operator, the inputs that hold indices within an axis, or sizes: they fit into 32 bits."""

MASK_INPUTS: Mapping[str, tuple[int, ...]] = {"Attention": (3,)}
"""By operator, the inputs of truth values that say what counts."""

INDEX_OUTPUTS: Mapping[str, tuple[int, ...]] = {
    "ArgMax": (0,),
    "ArgMin": (0,),
    "Shape": (0,),
    "Size": (0,),
    "TopK": (1,),
}
"""By operator, the outputs that hold indices or sizes."""

BOUNDS: Mapping[str, tuple[int, ...]] = {"Slice": (1, 2)}
"""By operator, the inputs whose constants may be as large as they like: they saturate."""

QUANTIZED_INPUTS: Mapping[str, tuple[int, ...]] = {"DequantizeLinear": (0, 2)}
"""By operator, the inputs of 8 or 32 bits that it computes from as ONNX says."""

FUSED = "fused"
"""Value of `-quantize` with which QuantizeLinear is taken though it rounds otherwise at ties."""


def refuse_values(graph: Graph, context: BuildContext, version: str) -> dict[int, Refusal]:
    """Refuse nodes with loose shapes, types that would not be exact, and known errors."""
    refusals = refuse_defects(graph, context, DEFECTS, version, is_rewritten(REWRITES, version))
    target = context.target.target
    is_fused = target.attrs.get("quantize") == FUSED
    for node in graph.nodes:
        verdict = _host_verdict(graph, node) or _value_verdict(graph, node, is_fused=is_fused)
        if verdict is not None:
            refusals[node.id] = refuse(node, context, *verdict)
    return refusals


def _host_verdict(graph: Graph, node: Node) -> tuple[ReasonCode, str] | None:
    """Return why a node is one for the host, or None."""
    from intarsia.graph.indices import index_problem
    from intarsia.graph.snapshot import node_bodies

    if node_bodies(node.ir) or node.ir.op_identifier() in graph.model.functions:
        return ReasonCode.UNSUPPORTED_OP, "control flow and functions stay with the host"
    problem = index_problem(graph, node) or _free_index_problem(graph, node)
    return None if problem is None else (ReasonCode.UNSUPPORTED_OP, problem)


def _free_index_problem(graph: Graph, node: Node) -> str | None:
    """Say which indices cannot be looked at: of a free dimension, unless its first or last one."""
    if not has_free_bound(graph, node):
        return None
    indices = graph.values[node.inputs[1]]
    is_certain = indices.constant is not None and bool(
        np.isin(indices.constant.numpy(), (0, -1)).all()
    )
    return None if is_certain else f"{indices.name!r} indexes a dimension that is free"


def _value_verdict(graph: Graph, node: Node, *, is_fused: bool) -> tuple[ReasonCode, str] | None:
    ports = _trusted_ports(graph, node)
    if is_fused and node.op_type == "QuantizeLinear":
        ports |= {*node.inputs[2:], *node.outputs}
    for value_id in (*node.inputs, *node.captured, *node.outputs):
        if value_id < 0:
            continue
        value = graph.values[value_id]
        if not value.is_static:
            return ReasonCode.DYNAMIC_SHAPE, f"{value.name!r} has no static shape"
        if is_empty(value):
            return ReasonCode.NUMERICS, f"{value.name!r} is empty: what reads it may write nothing"
        is_trusted = value.dtype in FLOATS or value_id in ports or _is_narrow(value)
        if not is_trusted and not (value.dtype in MOVED and _moves(graph, node)):
            return ReasonCode.UNSUPPORTED_DTYPE, f"{node.op_type} of {value.dtype} ({value.name!r})"
    return None


def is_empty(value: Value) -> bool:
    """Tell whether a value has no elements and is not a constant.

    Args:
        value: Of static shape.
    """
    return 0 in (value.shape or ()) and value.constant is None


def _trusted_ports(graph: Graph, node: Node) -> set[int]:
    """Return the values that hold indices, sizes or quantised numbers for this node."""
    kinds = (INDEX_INPUTS, MASK_INPUTS, QUANTIZED_INPUTS)
    inputs = [position for kind in kinds for position in kind.get(node.op_type, ())]
    bounds = [node.inputs[i] for i in BOUNDS.get(node.op_type, ()) if i < len(node.inputs)]
    return {
        *(value for value in bounds if graph.values[value].constant is not None),
        *(node.inputs[i] for i in inputs if i < len(node.inputs)),
        *(node.outputs[i] for i in INDEX_OUTPUTS.get(node.op_type, ()) if i < len(node.outputs)),
    }


def _moves(graph: Graph, node: Node) -> bool:
    """Whether a node leaves the integers and truth values that it touches as they are."""
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in MOVES | TRUTHS:
        return True
    sources = [graph.values[i].dtype for i in node.inputs if i >= 0]
    if node.op_type in TESTS:
        return all(dtype in FLOATS for dtype in sources)
    return node.op_type == "Cast" and (sources[0], graph.values[node.outputs[0]].dtype) in CASTS


def _is_narrow(value: Value) -> bool:
    """Whether an int64 constant keeps its values in 32 bits: axes, sizes, small numbers."""
    if value.constant is None or value.dtype != "int64":
        return False
    numbers = value.constant.numpy()
    bounds = np.iinfo(np.int32)
    return bool(((numbers >= bounds.min) & (numbers <= bounds.max)).all())
