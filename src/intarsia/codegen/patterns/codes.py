# SPDX-License-Identifier: Apache-2.0
"""Q and DQ nodes are put where few bytes lie between kernels: numbers travel as their codes.

A region is rewritten before its operators are fused, by what is equal to the bit:

* what moves elements, and `MaxPool`, is done with codes: a DequantizeLinear goes behind it, and a
  QuantizeLinear before it;
* where codes meet a QuantizeLinear that would make the same ones again, they stay as they are;
* elementwise operators dequantise by themselves what they read, each for its own; of constants that
  are as few as channels they get the numbers.

Only Q and DQ with one scale take part. Where somebody wants the floats who cannot dequantise, they
are written once, and all read them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from intarsia.arrays import Array
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.operators import find
from intarsia.codegen.lower.qlinear import read_qlinear
from intarsia.codegen.lower.quantization import dequantized, refuse_quantization
from intarsia.codegen.lower.recipes import is_elementwise
from intarsia.codegen.patterns.dequantised import has_one_scale
from intarsia.graph.extract import constant_array
from intarsia.graph.graph import ABSENT, Graph, Node, Value
from intarsia.graph.ops import operator_of
from intarsia.graph.ops.operator import Family
from intarsia.graph.region import Region

_ENDS = ("QuantizeLinear", "DequantizeLinear")
_CODES = frozenset(("int8", "uint8", "int16", "uint16"))
_PRODUCTS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
"""What may be computed of the codes of its operands."""
_SHRINKING = frozenset(("Compress", "Gather", "GatherElements", "GatherND", "Slice", "Split"))
"""What drops elements: to quantise before it would be more work than behind it."""
_LEAST_SCALE, _LARGEST_SCALE = 1e-30, 1e30
"""Multiples of scales between them, up to 2**16, neither overflow nor lose digits."""
_FEW_NUMBERS = 1 << 14
"""Constants that may take four times as many bytes in a package."""
_PAD_BY_INPUTS = 11
"""The operator set since which a Pad has its value as input."""
_DATA = -2
"""Stands for an operand that is moved."""


def read_codes(region: Region) -> Region:
    """Return the nodes of a region with Q and DQ where they cost least.

    The graph of the result has these nodes alone, in another order and with values of its own
    between them. Inputs and outputs are the region's.

    Args:
        region: Nodes that are all taken.
    """
    graph = region.graph
    nodes = [graph.nodes[number] for number in region.nodes]
    if not any(node.op_type in _ENDS or read_qlinear(node) for node in nodes):
        return region
    draft = _GraphDraft(graph, frozenset(region.outputs), list(graph.values), nodes)
    draft.spell()
    draft.dequantise_constants()
    while draft.quantise_earlier():
        pass
    draft.dequantise_later()
    draft.dequantise_apart()
    draft.drop_unread()
    return draft.finish(region.inputs, region.outputs).whole


@dataclass(frozen=True, slots=True)
class _Quantum:
    """What codes stand for: Q and DQ of equal ones undo each other.

    Attributes:
        dtype: Of the codes.
        scale: Of a step; of one that comes when it runs, the name of its value.
        zero: The code of 0, or the name of its value.
        zero_id: The id of that value, or -1.
    """

    dtype: str
    scale: float | str
    zero: int | str
    zero_id: int = field(compare=False)

    @property
    def is_exact(self) -> bool:
        """Whether numbers that are dequantised and quantised give the codes that they were."""
        return not isinstance(self.scale, str) and _LEAST_SCALE < self.scale < _LARGEST_SCALE


@dataclass(frozen=True, slots=True)
class _Dequantized:
    """A value that a DequantizeLinear makes: of which codes, what they stand for, and the node."""

    codes: int
    quantum: _Quantum
    node: Node


@dataclass(slots=True)
class _GraphDraft:
    """A graph while it is rewritten: who reads and makes its values is not kept up."""

    graph: Graph
    outputs: frozenset[int]
    values: list[Value]
    nodes: list[Node]
    dequantized: dict[int, _Dequantized] = field(default_factory=dict)

    def spell(self) -> None:
        """Put three nodes, or more, in the place of an operator that stands for them."""
        nodes: list[Node] = []
        for node in self.nodes:
            meant = read_qlinear(node)
            if meant is None:
                nodes.append(node)
                continue
            numbers = []
            for operand in meant.operands:
                numbers.append(self._new_value(operand[0], operand[1]))
                nodes.append(_standard(node, "DequantizeLinear", operand, numbers[-1]))
            result = self._new_value(node.outputs[0], meant.scale)
            ends = (result, meant.scale, meant.zero)
            nodes.append(_standard(node, meant.op_type, (*meant.kept, *numbers), result))
            nodes.append(_standard(node, "QuantizeLinear", ends, node.outputs[0]))
        self._renew(nodes)

    def dequantise_constants(self) -> None:
        """Let elementwise operators read the numbers that a DequantizeLinear makes of constants.

        Batch norms are elementwise if their parameters are known, and part of an epilogue.
        """
        made = {
            node.outputs[0]: numbers
            for node in self.nodes
            if (numbers := self._known_numbers(node)) is not None
        }
        known: dict[int, int] = {}
        nodes: list[Node] = []
        for node in self.nodes:
            takes = node.op_type == "BatchNormalization" or is_elementwise(self._operation(node))
            for value in made.keys() & node.inputs if takes else ():
                if value not in known:
                    known[value] = self._new_value(value, value)
                    tensor = ir.tensor(made[value].reshape(self.values[value].shape))
                    self.values[known[value]] = replace(self.values[known[value]], constant=tensor)
            inputs = tuple(known.get(value, value) for value in node.inputs) if takes else None
            nodes.append(node if inputs is None else replace(node, inputs=inputs))
        self._renew(nodes)

    def _known_numbers(self, node: Node) -> Array | None:
        """Return what a DequantizeLinear makes of few constants."""
        if node.op_type != "DequantizeLinear" or node.domain:
            return None
        operation = self._operation(node)
        is_few = operation.is_constant(0) and math.prod(operation.shape()) <= _FEW_NUMBERS
        return dequantized(operation) if is_few and not refuse_quantization(operation) else None

    def quantise_earlier(self) -> bool:
        """Move each QuantizeLinear before what moves its operand, once; tell whether one was."""
        readers = self._readers()
        makers = {value: node for node in self.nodes for value in node.outputs}
        instead: dict[int, list[Node]] = {}
        for node in self.nodes:
            quantum = self._quantum(node, "QuantizeLinear")
            maker = makers.get(node.inputs[0]) if quantum else None
            if quantum is None or maker is None or maker.id in instead:
                continue
            x = node.inputs[0]
            operands = self._moved_operands(maker, quantum)
            if operands is None or maker.op_type in _SHRINKING or x in self.outputs:
                continue
            moved = [maker.inputs[place] for place, value in operands.items() if value == _DATA]
            if readers[x] > 1 or any(self.values[value].constant is not None for value in moved):
                continue
            codes = [self._new_value(value, node.outputs[0]) for value in moved]
            instead[maker.id] = [
                replace(node, inputs=(value, *node.inputs[1:]), outputs=(code,))
                for value, code in zip(moved, codes, strict=True)
            ]
            inputs = _with_operands(maker.inputs, operands, codes)
            instead[node.id] = [replace(maker, inputs=inputs, outputs=node.outputs)]
        self._renew(new for node in self.nodes for new in instead.get(node.id, [node]))
        return bool(instead)

    def dequantise_later(self) -> None:
        """Move codes instead of numbers, and leave codes that would be made again."""
        same: dict[int, int] = {}
        nodes: list[Node] = []
        for before in self.nodes:
            node = replace(before, inputs=tuple(same.get(value, value) for value in before.inputs))
            quantum = self._quantum(node, "DequantizeLinear")
            kept = self._kept(node)
            if quantum:
                self.dequantized[node.outputs[0]] = _Dequantized(node.inputs[0], quantum, node)
            if kept is None:
                nodes += self._moved(node) or [node]
            elif node.outputs[0] in self.outputs:
                nodes.append(replace(node, op_type="Identity", inputs=(kept,)))
            else:
                same[node.outputs[0]] = kept
        self._renew(nodes)

    def _kept(self, node: Node) -> int | None:
        """Return the codes that a QuantizeLinear would make again."""
        item = self.dequantized.get(node.inputs[0]) if node.inputs else None
        if item is None or not item.quantum.is_exact:
            return None
        return item.codes if self._quantum(node, "QuantizeLinear") == item.quantum else None

    def _moved(self, node: Node) -> list[Node]:
        """Return a node that moves codes, and what dequantises its results; nothing if none can."""
        first = self.dequantized.get(node.inputs[0]) if node.inputs else None
        operands = self._moved_operands(node, first.quantum) if first else None
        if first is None or operands is None:
            return []
        codes = []
        for place, value in operands.items():
            item = self.dequantized.get(node.inputs[place]) if value == _DATA else None
            if value == _DATA and (item is None or item.quantum != first.quantum):
                return []
            codes += [item.codes] if item else []
        results = tuple(self._new_value(value, first.codes) for value in node.outputs)
        inputs = _with_operands(node.inputs, operands, codes)
        nodes = [replace(node, inputs=inputs, outputs=results)]
        for value, code in zip(node.outputs, results, strict=True):
            back = replace(first.node, inputs=(code, *first.node.inputs[1:]), outputs=(value,))
            self.dequantized[value] = _Dequantized(code, first.quantum, back)
            nodes.append(back)
        return nodes

    def dequantise_apart(self) -> None:
        """Give each elementwise reader of a dequantised value a DequantizeLinear of its own.

        If all that read it can do with codes: else the numbers are there, and are read.
        """
        takes_codes = dict.fromkeys(self.dequantized.keys() - self.outputs, True)
        for node in self.nodes:
            takes = node.op_type in _PRODUCTS or is_elementwise(self._operation(node))
            for value in takes_codes.keys() & node.inputs:
                takes_codes[value] &= takes
        readers = self._readers()
        nodes: list[Node] = []
        for node in self.nodes:
            own: dict[int, int] = {}
            for value in () if node.op_type in _PRODUCTS else dict.fromkeys(node.inputs):
                if takes_codes.get(value) and readers[value] > 1:
                    own[value] = self._new_value(value, value)
                    nodes.append(replace(self.dequantized[value].node, outputs=(own[value],)))
            inputs = tuple(own.get(value, value) for value in node.inputs)
            nodes.append(replace(node, inputs=inputs))
        self._renew(nodes)

    def drop_unread(self) -> None:
        """Drop nodes whose results nobody reads."""
        wanted = set(self.outputs)
        kept = []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                kept.append(node)
                wanted.update(node.reads)
        self._renew(reversed(kept))

    def finish(self, inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
        """Return the graph."""
        makers = {value: node.id for node in self.nodes for value in node.outputs}
        readers: dict[int, list[int]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.reads):
                readers.setdefault(value, []).append(node.id)
        values = [
            replace(
                value,
                producer=makers.get(value.id, -1),
                consumers=tuple(readers.get(value.id, ())),
            )
            for value in self.values
        ]
        before = (sorted({makers[i] for i in node.reads if i in makers}) for node in self.nodes)
        after = (
            sorted({j for i in node.outputs for j in readers.get(i, ())}) for node in self.nodes
        )
        return replace(
            self.graph,
            nodes=tuple(self.nodes),
            values=tuple(values),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            predecessors=tuple(map(tuple, before)),
            successors=tuple(map(tuple, after)),
            viewed=None,
        )

    def _quantum(self, node: Node, op_type: str) -> _Quantum | None:
        """Return what the codes stand for that a Q makes or a DQ reads, if they have one scale."""
        if node.op_type != op_type or node.domain:
            return None
        operation = self._operation(node)
        codes = operation.inputs[0] if op_type == "DequantizeLinear" else operation.output
        scale, zero = operation.value(1), operation.value(2)
        is_one = has_one_scale(operation)
        if codes.dtype not in _CODES or not is_one or refuse_quantization(operation):
            return None
        assert scale is not None
        return _Quantum(
            codes.dtype,
            scale.name if scale.constant is None else float(constant_array(scale).item()),
            0
            if zero is None
            else zero.name
            if zero.constant is None
            else int(constant_array(zero).item()),
            ABSENT if zero is None else zero.id,
        )

    def _moved_operands(self, node: Node, quantum: _Quantum) -> dict[int, int] | None:
        """Return the operands of a node that it only moves, if it does as much with codes.

        Returns:
            For positions of its inputs what is read there instead: `_DATA` for codes of what was
            there. None if it does something else, or has no kernel for codes.
        """
        operation = self._operation(node)
        entry = find(operation)
        if entry is None or node.domain or quantum.dtype not in entry.dtypes:
            return None
        row = operator_of(node)
        if node.op_type in ("Resize", "Upsample"):
            is_crop = operation.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
            is_copy = operation.attribute("mode", "nearest") == "nearest" and not is_crop
            return {0: _DATA} if is_copy else None
        if node.op_type == "Pad":
            return _padded(operation, quantum)
        if not row.keeps_scale or row.is_random:
            return None
        if row.family is Family.ELEMENTWISE:
            return {0: _DATA} if node.op_type == "Identity" else None
        if row.family is not Family.MOVEMENT:  # an extremum
            is_rising = not isinstance(quantum.scale, str) and quantum.scale > 0
            is_one = all(value == ABSENT for value in node.outputs[1:])
            return {0: _DATA} if is_rising and is_one and 0 not in operation.shape() else None
        return dict.fromkeys(range(len(node.inputs)) if node.op_type == "Concat" else (0,), _DATA)

    def _operation(self, node: Node) -> Operation:
        if len(self.graph.values) != len(self.values):
            self.graph = replace(self.graph, values=tuple(self.values), viewed=None)
        return Operation(self.graph, node)

    def _readers(self) -> dict[int, int]:
        """Return how many nodes read each value that is read."""
        counts: dict[int, int] = {}
        for node in self.nodes:
            for value in set(node.reads):
                counts[value] = counts.get(value, 0) + 1
        return counts

    def _new_value(self, like: int, of: int) -> int:
        """Return a value as large as another, with elements as those of a third."""
        if like == ABSENT:
            return ABSENT
        number, model = len(self.values), self.values[like]
        name, dtype = f"{model.name}/{number}", self.values[of].dtype
        self.values.append(replace(model, id=number, name=name, dtype=dtype, constant=None))
        return number

    def _renew(self, nodes: Iterable[Node]) -> None:
        self.nodes = [replace(node, id=number) for number, node in enumerate(nodes)]


def _standard(node: Node, op_type: str, inputs: tuple[int, ...], output: int) -> Node:
    """Return one of the nodes of ONNX's main domain that a node stands for."""
    return replace(node, op_type=op_type, domain="", inputs=inputs, outputs=(output,))


def _padded(operation: Operation, quantum: _Quantum) -> dict[int, int] | None:
    """Return what a Pad reads of codes: where it adds zeros it adds their code."""
    if operation.opset < _PAD_BY_INPUTS:
        return None
    if operation.attribute("mode", "constant") != "constant":
        return {0: _DATA}
    is_zero = operation.value(2) is None or (
        operation.is_constant(2) and not operation.array(2).any()
    )
    return {0: _DATA, 2: quantum.zero_id} if is_zero else None


def _with_operands(
    inputs: Sequence[int], operands: dict[int, int], codes: Sequence[int]
) -> tuple[int, ...]:
    """Return the inputs of a node that moves codes."""
    changed = dict(enumerate(inputs))
    rest = iter(codes)
    for place, value in operands.items():
        changed[place] = next(rest) if value == _DATA else value
    return tuple(changed.get(place, ABSENT) for place in range(max(changed) + 1))
