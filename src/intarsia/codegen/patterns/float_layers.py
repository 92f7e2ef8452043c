# SPDX-License-Identifier: Apache-2.0
"""Layers between Q and DQ nodes that are computed in float32, where that was measured to be faster.

A convolution or product that could be computed of codes stays what the model says: its operands are
dequantised, its weights when compiling, and a QuantizeLinear behind it is part of its epilogue. To
dequantise, and to store four times the bytes, is part of what was measured: layers are compared
with their Q and DQ nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from intarsia.codegen.lower.integer_convolution import REQUANTIZED_CONV
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.quantization import dequantized
from intarsia.codegen.lower.schedules import Chooser
from intarsia.codegen.patterns.dequantised import OnCodes, dequantisers
from intarsia.codegen.patterns.quantised import read_product
from intarsia.codegen.patterns.quantised_convolutions import read_convolution, with_quantisation
from intarsia.codegen.unit import WinogradMode
from intarsia.graph.graph import Value
from intarsia.graph.region import Region

_ACTIVATIONS = 0
"""The input that is not constant."""


def keep_floats(
    region: Region, winograd: WinogradMode, chooser: Chooser
) -> tuple[Region, dict[str, float]]:
    """Return a region in which layers that are faster in float32 read numbers, and their gains.

    Args:
        region: Nodes that are all taken, with Q and DQ nodes where they cost least.
        winograd: Which convolutions may be computed by Winograd's transforms.
        chooser: Says which layers these are.
    """
    graph = region.graph
    operations = [Operation(graph, graph.nodes[number]) for number in region.nodes]
    makers = dequantisers(operations)
    by_node = {operation.node.id: operation for operation in operations}
    chosen: dict[int, float] = {}
    for operation in operations if makers else ():
        layer = read_convolution(operation, makers) or read_product(operation, makers)
        if layer is not None:
            layer = with_quantisation(region, operation, layer, by_node, REQUANTIZED_CONV)
            part = Region.of(graph, [node.id for node in (*layer.before, *layer.own)])
            gain = chooser.gain_of_floats(_key(operation, makers, layer, winograd), part)
            if gain is not None:
                chosen[operation.node.id] = gain
    if not chosen:
        return region, {}
    gains = {graph.nodes[number].name: gain for number, gain in chosen.items()}
    return _with_numbers(region, chosen, makers), gains


def _key(
    operation: Operation, makers: Mapping[int, Operation], layer: OnCodes, winograd: WinogradMode
) -> str:
    """Return what a layer is, as far as its time depends on it."""
    operands = [makers[value].inputs[0] for value in operation.node.inputs[:2]]
    result = operation.graph.values[layer.own[-1].outputs[0]]
    shapes = [f"{v.dtype}[{'x'.join(map(str, v.shape or ()))}]" for v in (*operands, result)]
    attributes = [f"{k} {_text(v)}" for k, v in sorted(operation.attributes.items())]
    way = f"winograd {winograd}" if operation.op_type == "Conv" else ""
    words = ", ".join(filter(None, (*attributes, way)))
    return f"{operation.op_type} of codes {shapes[0]} by {shapes[1]} to {shapes[2]} ({words})"


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _with_numbers(region: Region, layers: Iterable[int], makers: Mapping[int, Operation]) -> Region:
    """Return a region whose layers have their constant operands as numbers."""
    graph = region.graph
    values, nodes = list(graph.values), list(graph.nodes)
    made: dict[int, int] = {}
    for layer in layers:
        inputs = list(nodes[layer].inputs)
        for place, value in enumerate(inputs):
            if place == _ACTIVATIONS or value not in makers:
                continue
            if value not in made:
                made[value] = len(values)
                values.append(_numbers(values[value], len(values), makers[value]))
            inputs[place] = made[value]
        nodes[layer] = replace(nodes[layer], inputs=tuple(inputs))
    readers: dict[int, list[int]] = {}
    for node in nodes:
        for value in dict.fromkeys(node.reads):
            readers.setdefault(value, []).append(node.id)
    for old, new in made.items():
        for value in (old, new):
            values[value] = replace(values[value], consumers=tuple(readers.get(value, ())))
    kept = {old for old in made if values[old].consumers or old in region.outputs}
    unread = {values[old].producer for old in made.keys() - kept}
    rewritten = replace(graph, nodes=tuple(nodes), values=tuple(values), viewed=None)
    return Region.of(rewritten, [number for number in region.nodes if number not in unread])


def _numbers(value: Value, number: int, maker: Operation) -> Value:
    """Return the constant of what a DequantizeLinear makes of constants."""
    numbers = dequantized(maker)
    assert numbers is not None
    tensor = ir.tensor(np.ascontiguousarray(numbers.reshape(value.shape or ())))
    name = f"{value.name}/numbers"
    return replace(value, id=number, name=name, producer=-1, consumers=(), constant=tensor)
