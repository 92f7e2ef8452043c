# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's operators on codes that mean: dequantise, compute in floats, quantise.

They are read as these three (`patterns/codes.py`), so that they are the same code as models with
Q and DQ nodes have. QLinearConv and QLinearMatMul are ONNX's own, and not here.
"""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.reductions import refuse_pool
from intarsia.errors import InternalError
from intarsia.graph.graph import ABSENT, Node

_MICROSOFT = "com.microsoft"
_CODES = frozenset(("int8", "uint8"))
_SOFTMAX_OPSET = 13
"""The operator set since which Softmax is along one dimension."""

_COMPUTED = {
    "QLinearAdd": ("Add", 2),
    "QLinearAveragePool": ("AveragePool", 1),
    "QLinearConcat": ("Concat", 0),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 1),
    "QLinearLeakyRelu": ("LeakyRelu", 1),
    "QLinearMul": ("Mul", 2),
    "QLinearSigmoid": ("Sigmoid", 1),
    "QLinearSoftmax": ("Softmax", 1),
    "QLinearWhere": ("Where", 2),
}
"""By operator, what it computes of floats, and how many operands are dequantised for that."""

QLINEAR = frozenset(f"{_MICROSOFT}.{name}" for name in _COMPUTED)
"""These operators, with their domain."""


@dataclass(frozen=True, slots=True)
class QLinear:
    """What such a node stands for; all numbers are ids of values.

    Attributes:
        op_type: The operator that computes, of ONNX's main domain.
        kept: Its operands before those that are dequantised.
        operands: Codes, scale and zero point of each.
        scale: Of the result.
        zero: The zero point of the result.
    """

    op_type: str
    kept: tuple[int, ...]
    operands: tuple[tuple[int, int, int], ...]
    scale: int
    zero: int


def read_qlinear(node: Node) -> QLinear | None:
    """Return what a node stands for, or None if its operator is none of these."""
    if node.domain != _MICROSOFT or node.op_type not in _COMPUTED:
        return None
    op_type, count = _COMPUTED[node.op_type]
    inputs = [*node.inputs, ABSENT, ABSENT]
    first = {"Concat": 2, "Where": 1}.get(op_type, 0)
    count = count or (len(node.inputs) - first) // 3
    behind = first + 3 * count
    operands = tuple(
        (inputs[place], inputs[place + 1], inputs[place + 2]) for place in range(first, behind, 3)
    )
    scale = 0 if op_type == "Concat" else behind
    kept = tuple(inputs[:first]) if op_type == "Where" else ()
    return QLinear(op_type, kept, operands, inputs[scale], inputs[scale + 1])


def refuse_qlinear(operation: Operation) -> str | None:
    """Say why such a node is not taken."""
    meant = read_qlinear(operation.node)
    assert meant is not None
    values = operation.graph.values
    results = (operation.node.outputs[0], meant.scale, meant.zero)
    for codes, scale, zero in (*meant.operands, results):
        if values[codes].dtype not in _CODES:
            return f"codes of {values[codes].dtype} have no native code"
        if values[scale].dtype != "float32":
            return f"its scale is {values[scale].dtype}"
        parameters = [values[value] for value in (scale, zero) if value != ABSENT]
        if any(value.shape not in ((), (1,)) for value in parameters):
            return "a scale or zero point is not one number"
    if operation.attribute("channels_last", 0):
        return "its channels are last"
    if meant.op_type in ("AveragePool", "GlobalAveragePool"):
        return refuse_pool(operation)
    if meant.op_type == "Softmax":
        opset = min(operation.opset, operation.attribute("opset", _SOFTMAX_OPSET))
        return None if opset >= _SOFTMAX_OPSET else f"Softmax before operator set {_SOFTMAX_OPSET}"
    return None


def lower_qlinear(_assembler: Assembler, group: KernelGroup) -> None:
    """Raise: what such a node stands for is lowered.

    Raises:
        InternalError: In any case.
    """
    raise InternalError("an operator on codes was not read", node=group.anchor.node.name)
