# SPDX-License-Identifier: Apache-2.0
"""The table of what the library computes, and the patterns of what runs as one of its functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from intarsia.backends.arm_acl import lowering
from intarsia.backends.arm_acl.builder import NotTaken, unsupported
from intarsia.backends.arm_acl.lowering import FUSED, Act, Lower, activation_of
from intarsia.backends.scaled_integers import (
    ScaledIntegers,
    integers_of,
    read_linear,
    read_parameters,
)
from intarsia.codegen.lower.operation import Operation
from intarsia.errors import ReasonCode
from intarsia.graph.graph import Graph, Node, Value
from intarsia.graph.ops import ViewKind, names_of
from intarsia.graph.pattern import CONSTANT, SOURCE, Match, Op, Pattern, Tier

FLOATS = frozenset(("float32",))
BYTES = frozenset(("int8", "uint8"))


@dataclass(frozen=True, slots=True)
class AclRow:
    """What is computed by one function.

    Attributes:
        name: Printed as the reason of a placement.
        types: Operators.
        lower: Adds its calls; None for what `fusion` lowers.
        functions: The library's functions, for people.
        dtypes: Element types of the tensors of numbers.
        data: How many of its inputs are such; None for all.
        fuses: Whether it takes in an activation that follows.
        integers: Whether it runs on integers between Q and DQ.
    """

    name: str
    types: tuple[str, ...]
    lower: Lower | None
    functions: str
    dtypes: frozenset[str] = FLOATS
    data: int | None = None
    fuses: bool = False
    integers: bool = False


_ANY = FLOATS | BYTES
_QUANTISE, _DEQUANTISE = "quantize", "dequantize"

TABLE: tuple[AclRow, ...] = (
    AclRow(
        "convolution",
        ("Conv",),
        lowering.lower_conv,
        "NEConvolutionLayer, NEDepthwiseConvolutionLayer",
        fuses=True,
        integers=True,
    ),
    AclRow(
        "dense",
        ("Gemm", "MatMul"),
        lowering.lower_dense,
        "NEFullyConnectedLayer, NEGEMM",
        fuses=True,
        integers=True,
    ),
    AclRow(
        "integer convolution",
        ("QLinearConv",),
        lowering.lower_conv,
        "NEConvolutionLayer, NEDepthwiseConvolutionLayer",
        BYTES,
        data=1,
    ),
    AclRow(
        "integer dense",
        ("QLinearMatMul",),
        lowering.lower_dense,
        "NEFullyConnectedLayer",
        BYTES,
        data=1,
    ),
    AclRow(
        "pooling",
        ("AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
        lowering.lower_pool,
        "NEPoolingLayer",
        integers=True,
    ),
    AclRow("max pooling", ("MaxPool",), lowering.lower_pool, "NEPoolingLayer", _ANY, integers=True),
    AclRow("softmax", ("Softmax", "LogSoftmax"), lowering.lower_softmax, "NESoftmaxLayer"),
    AclRow(
        "activation",
        (
            "Abs",
            "Clip",
            "Elu",
            "HardSwish",
            "LeakyRelu",
            "Relu",
            "Sigmoid",
            "Softplus",
            "Sqrt",
            "Tanh",
        ),
        lowering.lower_activation,
        "NEActivationLayer",
        data=1,
    ),
    AclRow(
        "unary",
        ("Exp", "Log", "Neg", "Sin"),
        lowering.lower_unary,
        "NEExpLayer, NELogLayer, NENegLayer, NESinLayer",
    ),
    AclRow(
        "sum",
        ("Add", "Sum"),
        lowering.lower_binary,
        "NEArithmeticAddition",
        integers=True,
    ),
    AclRow(
        "binary",
        ("Sub", "Mul", "Div", "Max", "Min"),
        lowering.lower_binary,
        "NEArithmeticSubtraction, NEPixelWiseMultiplication, NEElementwiseDivision, "
        "NEElementwiseMax, NEElementwiseMin",
    ),
    AclRow(
        "batch normalization",
        ("BatchNormalization",),
        lowering.lower_batch_normalization,
        "NEBatchNormalizationLayer",
    ),
    AclRow("local response normalization", ("LRN",), lowering.lower_lrn, "NENormalizationLayer"),
    AclRow("mean", ("ReduceMean",), lowering.lower_mean, "NEReduceMean", data=1),
    AclRow("prelu", ("PRelu",), lowering.lower_prelu, "NEPReluLayer"),
    AclRow(
        "concatenation",
        ("Concat",),
        lowering.lower_concat,
        "NEConcatenateLayer",
        _ANY,
        integers=True,
    ),
    AclRow("border", ("Pad",), lowering.lower_pad, "NEPadLayer", data=1),
    AclRow("part", ("Slice",), lowering.lower_slice, "NESlice", _ANY, data=1),
    AclRow("parts", ("Split",), lowering.lower_split, "NESlice", _ANY, data=1),
    AclRow(
        "permutation", ("Transpose",), lowering.lower_transpose, "NEPermute", _ANY, integers=True
    ),
    AclRow(
        "view",
        names_of(lambda operator: operator.view is ViewKind.RESHAPED),
        lowering.lower_view,
        "NEReshapeLayer",
        _ANY,
        data=1,
        integers=True,
    ),
    AclRow(_QUANTISE, ("QuantizeLinear",), None, "NEQuantizationLayer", _ANY, data=1),
    AclRow(
        _DEQUANTISE,
        ("DequantizeLinear",),
        None,
        "NEDequantizationLayer",
        _ANY | {"int32"},
        data=1,
    ),
)

_BY_TYPE = {op_type: row for row in TABLE for op_type in row.types}


def row_of(node: Node) -> AclRow | None:
    """Return the row of a node's operator, or None."""
    return _BY_TYPE.get(node.op_type) if node.domain in ("", "ai.onnx") else None


def why_not(operation: Operation, disabled: tuple[str, ...] = ()) -> NotTaken | None:
    """Return why the table does not take a node whatever it is a part of; None if it does.

    Args:
        operation: The node.
        disabled: Operators that the target leaves to the one that it refines.
    """
    node, row = operation.node, row_of(operation.node)
    if row is None:
        return unsupported(f"Arm Compute Library has no function for {operation.op_type}")
    if node.op_type in disabled:
        return NotTaken(ReasonCode.USER, f"disabled_ops has {node.op_type}")
    if not operation.inputs or node.captured:
        return unsupported("it has no inputs")
    for value in (*operation.inputs[: row.data], *operation.outputs):
        if not value.is_static:
            return NotTaken(ReasonCode.DYNAMIC_SHAPE, f"the shape of {value.name!r} is not known")
        if value.dtype not in row.dtypes:
            return NotTaken(
                ReasonCode.UNSUPPORTED_DTYPE,
                f"{value.name!r} is of {value.dtype}, not {' or '.join(sorted(row.dtypes))}",
            )
    return None


@dataclass(frozen=True, eq=False)
class IntegerMatch:
    """What stands for what in a match of integers.

    Attributes:
        integers: By the floats.
    """

    integers: dict[int, ScaledIntegers] = field(default_factory=dict)


def _activation(match: Match) -> Act | None:
    """Return an activation that is taken in: one, and of those that have a bound."""
    before = match.follows
    assert before is not None
    if any(follower.pattern is not BIAS for follower in before.followers):
        return None
    act = activation_of(Operation(match.graph, match.nodes[0]))
    return act if act is not None and act[0] in FUSED else None


def _bias(match: Match) -> Value | None:
    """Return the row of numbers that is added to a product."""
    before = match.follows
    assert before is not None
    head = Operation(match.graph, before.nodes[0])
    has_bias = head.op_type != "MatMul" or before.followers
    if has_bias or not head.is_constant(1):
        return None
    added = Operation(match.graph, match.nodes[0])
    other = next(value for value in added.inputs if value.id != match.source)
    is_row = other.shape == added.output_shape[-1:] and len(head.output_shape) > 1
    return other if is_row else None


def _quantised(match: Match) -> IntegerMatch | None:
    """Return what a match computes with where all of it is integers."""
    before = match.follows
    assert before is not None
    if any(follower.pattern is QUANTIZE for follower in before.followers):
        return None
    head, row = Operation(match.graph, before.nodes[0]), row_of(before.nodes[0])
    assert row is not None
    result = read_linear(Operation(match.graph, match.nodes[0]))
    if not isinstance(result, ScaledIntegers) or result.axis is not None:
        return None
    integers = {match.source: result}
    for position, value in enumerate(head.inputs[: row.data]):
        held = integers_of(value, match.region)
        is_bias = position == 2 and "Concat" not in head.op_type  # noqa: PLR2004
        if held is None and not (is_bias and value.constant is not None):
            return None
        if held is not None:
            integers[value.id] = held
    integers[head.output.id] = result
    return IntegerMatch(integers)


def dequantising(graph: Graph, nodes: Sequence[int]) -> set[int]:
    """Return the nodes that make floats of integers for some nodes."""
    producers = {
        graph.values[value].producer
        for node in nodes
        for value in graph.nodes[node].inputs
        if value >= 0
    }
    return {
        node for node in producers if node >= 0 and graph.nodes[node].op_type == "DequantizeLinear"
    }


BIAS = Pattern("bias", Op("Add", SOURCE, CONSTANT), _bias)
ACTIVATION = Pattern("activation", Op(("Relu", "Clip"), SOURCE), _activation)
QUANTIZE = Pattern("quantize", Op("QuantizeLinear", SOURCE), _quantised)


def _pattern(row: AclRow) -> Pattern:
    followers: tuple[Pattern, ...] = ()
    if row.fuses:
        followers += (BIAS, ACTIVATION)
    if row.integers:
        followers += (QUANTIZE,)
    return Pattern(row.name, Op(row.types), None, followers)


OPERATORS = tuple(Pattern(row.name, Op(row.types)) for row in TABLE)
"""A pattern for each row: whatever else it is a part of, an operator is placed for its own."""

_ROWS = {row.name: _pattern(row) for row in TABLE}
_HEADS = tuple(_ROWS[row.name] for row in TABLE if row.fuses)

PATTERNS: tuple[Tier | Pattern, ...] = (
    Tier(_HEADS),
    Tier(
        tuple(
            pattern
            for pattern in _ROWS.values()
            if pattern not in _HEADS and pattern.name != _DEQUANTISE
        )
    ),
    _ROWS[_DEQUANTISE],  # last: what reads integers reads these
)
"""What runs as one function."""


def linear_parts(operation: Operation) -> dict[int, ScaledIntegers]:
    """Return what the tensors of an operator of integers mean, by their ids.

    Raises:
        NotTaken: They are not constant.
    """
    is_conv = operation.op_type == "QLinearConv"
    weights = operation.inputs[3]
    axis = 0 if is_conv else len(weights.shape or ()) - 1
    found = {}
    for value, scale_at, along in (
        (operation.inputs[0], 1, None),
        (weights, 4, axis),
        (operation.output, 6, None),
    ):
        part = read_parameters(operation, value, scale_at, scale_at + 1, along)
        if not isinstance(part, ScaledIntegers):
            raise NotTaken(*part)
        found[value.id] = part
    return found
