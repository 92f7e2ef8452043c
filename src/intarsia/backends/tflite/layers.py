# SPDX-License-Identifier: Apache-2.0
"""Integer layers of a region, whichever way the model writes them.

The ways are: an operator between Q and DQ nodes (with an activation before the Q), an operator
that has scales as inputs (`QLinearConv` and those of `com.microsoft`), and one that only moves or
compares codes. All become a `Layer`: what is computed, of which codes, into which codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.tflite.network import Quantity
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.qlinear import read_qlinear
from intarsia.graph.extract import constant_array
from intarsia.graph.graph import ABSENT, Graph, Node, Value
from intarsia.graph.ops import operator_of

if TYPE_CHECKING:
    from intarsia.graph.region import Region

NARROW = frozenset(("int8", "uint8"))
_SHIFT = 128
_ONE = Quantity((1.0,), (0,))
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_ACTIVATIONS = frozenset(("Relu", "Clip"))
_NUMBERED = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul"}


class NotTakenError(Exception):
    """A node is no such layer; the text says why."""


@dataclass(frozen=True, slots=True)
class Codes:
    """Integers that stand for numbers.

    Attributes:
        value: The value that holds them, of the model.
        quantity: What they mean, as the model has it.
    """

    value: Value
    quantity: Quantity

    @property
    def shape(self) -> tuple[int, ...]:
        """Their shape."""
        if self.value.shape is None:
            raise NotTakenError(f"the shape of {self.value.name!r} is not fixed")
        return self.value.shape

    @property
    def is_constant(self) -> bool:
        """Whether they are known."""
        return self.value.constant is not None

    @property
    def narrow(self) -> Quantity:
        """What they mean as int8: 128 is taken from codes without a sign, as TFLite has none."""
        is_unsigned = self.value.dtype == "uint8"
        return self.quantity.shifted(-_SHIFT) if is_unsigned else self.quantity

    def array(self) -> Array:
        """Return codes that are known, as int8 where they are bytes."""
        array = constant_array(self.value)
        if array.dtype != np.uint8:
            return array
        return (array.astype(np.int16) - _SHIFT).astype(np.int8)


@dataclass(frozen=True, eq=False)
class Layer:
    """One integer layer.

    Attributes:
        operation: The node that computes, for its attributes; that of a Q that follows a DQ
            changes scales alone.
        op_type: What it computes of numbers: an operator of ONNX's main domain; `Identity` for
            what changes scales alone.
        operands: Codes that it reads, in the order of the operator; None for one that is absent.
        bias: A constant that is added to each channel, in numbers; float32 or int32 codes.
        result: Codes that it makes.
        limits: The numbers to which an activation limits the result.
        nodes: Ids of all its nodes, ascending.
    """

    operation: Operation
    op_type: str
    operands: tuple[Codes, ...]
    bias: Codes | Value | None
    result: Codes
    limits: tuple[float, float]
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found in a region.

    Attributes:
        layers: In the order of their last nodes.
        reasons: By node id, why it is in no layer.
    """

    layers: tuple[Layer, ...]
    reasons: dict[int, str]


def read_layers(
    region: Region, computed: frozenset[str], refuse: Callable[[Layer], str | None]
) -> Reading:
    """Find the integer layers of a region.

    Args:
        region: Where.
        computed: Types of operators that may compute, such as `Conv`.
        refuse: Says why a layer is not taken; None if it is.
    """
    reader = _LayerReader(region, computed)
    layers: dict[int, Layer] = {}
    reasons: dict[int, str] = {}
    for number in region.nodes:
        node = region.graph.nodes[number]
        try:
            layer = reader.read(node)
        except NotTakenError as error:
            reasons[number] = str(error)
            continue
        if layer is None:
            continue
        refusal = refuse(layer)
        if refusal is None:
            layers[number] = layer
        else:
            reasons.update(dict.fromkeys(layer.nodes, refusal))
    dropped = True
    while dropped:  # a DQ that others read as well cannot be left out
        taken = {one for layer in layers.values() for one in layer.nodes}
        dropped = False
        for number, layer in list(layers.items()):
            shared = _read_outside(region, layer, taken)
            if shared is not None:
                reasons.update(dict.fromkeys(layer.nodes, shared))
                del layers[number]
                dropped = True
    taken = {one for layer in layers.values() for one in layer.nodes}
    for number in region.nodes:
        if number not in taken and number not in reasons:
            reasons[number] = _why_left(region.graph, number, reasons)
    found = {number: reason for number, reason in reasons.items() if number not in taken}
    return Reading(tuple(layers.values()), found)


def _read_outside(region: Region, layer: Layer, taken: set[int]) -> str | None:
    graph = region.graph
    for number in layer.nodes:
        node = graph.nodes[number]
        if node.outputs[0] == layer.result.value.id:
            continue
        value = graph.values[node.outputs[0]]
        others = [one for one in value.consumers if one not in taken]
        if value.id in graph.output_set:
            return f"{value.name!r} is an output of numbers"
        if others:
            return f"{graph.nodes[others[0]].name!r} reads the numbers {value.name!r}"
    return None


def _why_left(graph: Graph, number: int, reasons: dict[int, str]) -> str:
    """Return what keeps a node out that was not asked itself: its neighbour's reason, if any."""
    node = graph.nodes[number]
    near = [
        reasons[one]
        for one in (*graph.successors[number], *graph.predecessors[number])
        if one in reasons
    ]
    if node.op_type in (_QUANTIZE, _DEQUANTIZE, *_ACTIVATIONS) and near:
        return f"it belongs to a node that is not taken: {near[0]}"
    if node.op_type in (_QUANTIZE, _DEQUANTIZE):
        return "it turns numbers into codes or back: a network of integers has no numbers"
    return f"{node.op_type} is not between a DequantizeLinear and a QuantizeLinear"


class _LayerReader:
    """Reads the layer whose result a node makes."""

    def __init__(self, region: Region, computed: frozenset[str]) -> None:
        self._region = region
        self._graph = region.graph
        self._computed = computed

    def read(self, node: Node) -> Layer | None:
        """Return the layer that ends with a node; None where none does.

        Raises:
            NotTakenError: One would, but for a reason.
        """
        if node.op_type == _QUANTIZE and not node.domain:
            return self._between(node)
        meant = read_qlinear(node)
        if meant is not None or node.op_type in _NUMBERED:
            return self._with_scales(node)
        is_moving = operator_of(node).keeps_scale and node.op_type in self._computed
        dtypes = {self._graph.values[one].dtype for one in (*node.inputs[:1], *node.outputs)}
        return self._moving(node) if is_moving and dtypes <= NARROW else None

    def _between(self, last: Node) -> Layer:
        """Read an operator between DQ and Q nodes."""
        result = self._codes(last.outputs[0], last.inputs[1], _at(last, 2), _axis(last))
        nodes, limits = [last.id], (-math.inf, math.inf)
        node = self._maker(last.inputs[0])
        if node.op_type in _ACTIVATIONS:
            before = self._maker(node.inputs[0], is_needed=False)
            if before is not None and before.op_type in self._computed - _ACTIVATIONS:
                limits = _limits(Operation(self._graph, node))
                nodes.append(node.id)
                node = before
        if node.op_type == _DEQUANTIZE:
            operation, op_type, read = Operation(self._graph, last), "Identity", last.inputs[:1]
        else:
            if node.op_type not in self._computed or node.domain:
                raise NotTakenError(f"{node.op_type} is no operator of integers here")
            operation, op_type, read = Operation(self._graph, node), node.op_type, node.inputs
            nodes.append(node.id)
            if len(node.outputs) != 1:
                raise NotTakenError("it has several outputs")
            if op_type in _ACTIVATIONS:
                limits = _limits(operation)
        count = _data_inputs(node.op_type if op_type != "Identity" else op_type, len(read))
        operands: list[Codes] = []
        for value in read[:count]:
            dequantize = self._maker(value)
            if dequantize.op_type != _DEQUANTIZE:
                raise NotTakenError(f"{self._graph.values[value].name!r} is not dequantised")
            nodes.append(dequantize.id)
            operands.append(self._dequantised(dequantize))
        bias, more = self._bias(op_type, read)
        return self._checked(
            Layer(
                operation,
                op_type,
                tuple(operands),
                bias,
                result,
                limits,
                tuple(sorted({*nodes, *more})),
            )
        )

    def _bias(
        self, op_type: str, read: Sequence[int]
    ) -> tuple[Codes | Value | None, tuple[int, ...]]:
        if op_type not in ("Conv", "Gemm") or len(read) <= 2 or read[2] == ABSENT:  # noqa: PLR2004
            return None, ()
        value = self._graph.values[read[2]]
        if value.constant is not None:
            return value, ()
        dequantize = self._maker(read[2])
        if dequantize.op_type != _DEQUANTIZE:
            raise NotTakenError("its bias is computed")
        return self._dequantised(dequantize), (dequantize.id,)

    def _dequantised(self, node: Node) -> Codes:
        if node.ir.attributes.get("block_size") is not None and _int(node, "block_size", 0):
            raise NotTakenError("it has scales of blocks")
        return self._codes(node.inputs[0], node.inputs[1], _at(node, 2), _axis(node))

    def _with_scales(self, node: Node) -> Layer:
        """Read an operator that has scales and zero points as inputs."""
        bias: Codes | Value | None = None
        meant = read_qlinear(node)
        if meant is not None:
            op_type, triples, scale, zero = (
                meant.op_type,
                meant.operands,
                meant.scale,
                meant.zero,
            )
            if _int(node, "channels_last", 0):
                raise NotTakenError("its channels are last")
        else:
            op_type = _NUMBERED[node.op_type]
            inputs = node.inputs
            triples = tuple((inputs[at], inputs[at + 1], inputs[at + 2]) for at in (0, 3))
            scale, zero = inputs[6], inputs[7]
        if op_type not in self._computed:
            raise NotTakenError(f"{op_type} is no operator of integers here")
        axes = [1] * len(triples)
        if op_type == "Conv":
            axes[1] = 0
        elif op_type == "MatMul":
            axes[1] = -1
        operands = tuple(
            self._codes(*triple, axis) for triple, axis in zip(triples, axes, strict=True)
        )
        if node.op_type == "QLinearConv" and _at(node, 8) != ABSENT:
            bias_value = self._graph.values[node.inputs[8]]
            x, weights = operands[0].quantity, operands[1].quantity
            product = tuple(x.scale * one for one in weights.scales)
            bias = Codes(bias_value, Quantity(product, (0,) * len(product)))
        return self._checked(
            Layer(
                Operation(self._graph, node),
                op_type,
                operands,
                bias,
                self._codes(node.outputs[0], scale, zero, 1),
                (-math.inf, math.inf),
                (node.id,),
            )
        )

    def _moving(self, node: Node) -> Layer:
        """Read an operator that moves or compares codes, whatever they mean."""
        if len(node.outputs) != 1:
            raise NotTakenError("it has several outputs")
        values = self._graph.values
        count = _data_inputs(node.op_type, len(node.inputs))
        quantity = _quantity_of(self._graph, node.outputs[0]) or _ONE
        return self._checked(
            Layer(
                Operation(self._graph, node),
                node.op_type,
                tuple(Codes(values[one], quantity) for one in node.inputs[:count]),
                None,
                Codes(values[node.outputs[0]], quantity),
                (-math.inf, math.inf),
                (node.id,),
            )
        )

    def _checked(self, layer: Layer) -> Layer:
        """Return a layer of bytes whose scales are those with which its operands were written."""
        for codes in (*layer.operands, layer.result):
            if codes.value.dtype not in NARROW:
                raise NotTakenError(f"{codes.value.name!r} is {codes.value.dtype}, not int8")
            if codes.is_constant:
                continue
            if len(codes.quantity.scales) != 1:
                raise NotTakenError(f"{codes.value.name!r} has a scale for each channel")
            written = _quantity_of(self._graph, codes.value.id)
            if written is not None and not is_same(written, codes.quantity):
                raise NotTakenError(
                    f"{codes.value.name!r} is read with another scale than it was written with"
                )
        operands = {codes.value.id for codes in layer.operands}
        for number in layer.nodes:
            for read in self._graph.nodes[number].reads:
                value = self._graph.values[read]
                is_known = value.constant is not None or value.producer in layer.nodes
                if not is_known and read not in operands:
                    raise NotTakenError(f"{value.name!r} is computed")
        return layer

    def _maker(self, value: int, *, is_needed: bool = True) -> Node:
        """Return the node of the region that makes a value."""
        producer = self._graph.values[value].producer if value != ABSENT else -1
        if producer < 0 or producer not in self._region:
            if not is_needed:
                return None  # type: ignore[return-value]
            name = self._graph.values[value].name if value != ABSENT else "an operand"
            raise NotTakenError(f"{name!r} are numbers that nothing in the region dequantises")
        return self._graph.nodes[producer]

    def _codes(self, codes: int, scale: int, zero: int, axis: int) -> Codes:
        value = self._graph.values[codes]
        return Codes(value, _quantity(self._graph, value, scale, zero, axis))


def is_same(one: Quantity, other: Quantity) -> bool:
    """Tell whether codes mean the same."""
    return one.zeros == other.zeros and np.array_equal(
        np.asarray(one.scales, np.float32), np.asarray(other.scales, np.float32)
    )


def _quantity(graph: Graph, value: Value, scale: int, zero: int, axis: int) -> Quantity:
    parameters = [graph.values[one] for one in (scale, zero) if one != ABSENT]
    if any(one.constant is None for one in parameters):
        raise NotTakenError(f"the scale of {value.name!r} is computed")
    scales = constant_array(parameters[0]).astype(np.float64).reshape(-1)
    zeros = (
        constant_array(parameters[1]).astype(np.int64).reshape(-1)
        if len(parameters) > 1
        else np.zeros(1, np.int64)
    )
    if len(zeros) != len(scales):
        zeros = np.broadcast_to(zeros, scales.shape) if len(zeros) == 1 else zeros
    if len(zeros) != len(scales):
        raise NotTakenError(f"{value.name!r} has another number of zero points than of scales")
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise NotTakenError(f"a scale of {value.name!r} is not positive")
    rank = len(value.shape or ()) or 1
    return Quantity(
        tuple(map(float, scales)),
        tuple(map(int, zeros)),
        axis % rank if len(scales) > 1 else 0,
    )


def _quantity_of(graph: Graph, value: int) -> Quantity | None:
    """Return what the codes of a value mean: as they are written, else as they are read.

    Codes that are only moved mean what they meant before, or will mean after.
    """
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        producer = graph.values[one].producer
        node = graph.nodes[producer] if producer >= 0 else None
        found = None if node is None else _written(graph, node)
        if found is not None:
            return found
        if node is not None and operator_of(node).keeps_scale:
            waiting += [
                read for read in node.inputs if read >= 0 and graph.values[read].constant is None
            ]
            continue
        if node is not None:
            return None
        for quantity in _read_as(graph, one):
            return quantity
        waiting += [
            made
            for reader in graph.values[one].consumers
            if operator_of(graph.nodes[reader]).keeps_scale
            for made in graph.nodes[reader].outputs
            if made >= 0
        ]
    return None


def _written(graph: Graph, node: Node) -> Quantity | None:
    """Return what the codes mean that a node writes; None if it does not say."""
    meant = read_qlinear(node)
    if meant is not None:
        scale, zero = meant.scale, meant.zero
    elif node.op_type == _QUANTIZE and not node.domain:
        scale, zero = node.inputs[1], _at(node, 2)
    elif node.op_type in _NUMBERED:
        scale, zero = node.inputs[6], node.inputs[7]
    else:
        return None
    try:
        return _quantity(graph, graph.values[node.outputs[0]], scale, zero, 1)
    except NotTakenError:
        return None


def _read_as(graph: Graph, value: int) -> Iterator[Quantity]:
    """Yield what its readers take the codes of a value to mean."""
    for reader in graph.values[value].consumers:
        node = graph.nodes[reader]
        meant = read_qlinear(node)
        triples: Sequence[tuple[int, int, int]] = ()
        if meant is not None:
            triples = meant.operands
        elif node.op_type == _DEQUANTIZE and not node.domain:
            triples = ((node.inputs[0], node.inputs[1], _at(node, 2)),)
        elif node.op_type in _NUMBERED:
            triples = (node.inputs[0:3], node.inputs[3:6])  # type: ignore[assignment]
        for codes, scale, zero in triples:
            if codes == value:
                try:
                    yield _quantity(graph, graph.values[value], scale, zero, 1)
                except NotTakenError:  # no quantity of one scale and zero point
                    continue


def _limits(operation: Operation) -> tuple[float, float]:
    if operation.op_type == "Relu":
        return 0.0, math.inf
    if any(operation.value(at) is not None and not operation.is_constant(at) for at in (1, 2)):
        raise NotTakenError("the limits of Clip are computed")
    low, high = (
        float(operation.array(at).reshape(()))
        if operation.value(at) is not None
        else float(operation.attribute(name, default))
        for at, name, default in ((1, "min", -math.inf), (2, "max", math.inf))
    )
    if math.isnan(low) or math.isnan(high) or low > high:
        raise NotTakenError("the limits of Clip are in no order")
    return low, high


_OPERANDS = {"Conv": 2, "Gemm": 2, "MatMul": 2, "Add": 2, "Sub": 2, "Mul": 2}


def _data_inputs(op_type: str, count: int) -> int:
    """Return how many inputs of an operator are numbers that it computes with."""
    return count if op_type == "Concat" else _OPERANDS.get(op_type, 1)


def _at(node: Node, position: int) -> int:
    return node.inputs[position] if position < len(node.inputs) else ABSENT


def _int(node: Node, name: str, default: int) -> int:
    attribute = node.ir.attributes.get(name)
    return default if attribute is None else int(attribute.value)


def _axis(node: Node) -> int:
    return _int(node, "axis", 1)
