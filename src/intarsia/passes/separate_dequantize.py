# SPDX-License-Identifier: Apache-2.0
"""Each node that reads dequantised numbers gets a DequantizeLinear of its own.

Exporters write one for all readers. Whoever computes of codes needs one that nobody else reads:
else a region would have to make numbers for readers that run elsewhere, and a layer without its
DequantizeLinear is one of floats, whose cost says nothing of what it takes inside. The copies read
the same codes, and are part of their readers.

Those of weights are a pass of their own. What is made of constants crosses no border, so it may be
shared, and ONNX Runtime fails to load some models with several DequantizeLinear nodes of the same
weights; but a processor of integers has no numbers to share with others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.passes.names import names_of
from intarsia.passes.provenance import stand_for

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir


def separate_dequantize(model: ir.Model) -> int:
    """Copy DequantizeLinear of computed codes for its second and further readers.

    One whose numbers are an output of the graph, or are read in a body, is copied for all others.

    Returns:
        How many copies were made.
    """
    return _separate(model, lambda codes: not _is_constant(codes))


def separate_weights(model: ir.Model) -> int:
    """Copy DequantizeLinear of constants likewise; say how many copies there are."""
    return _separate(model, _is_constant)


def _separate(model: ir.Model, is_meant: Callable[[ir.Value | None], bool]) -> int:
    """Copy DequantizeLinear of some codes for its second and further readers."""
    count = 0
    graph = model.graph
    names = names_of(graph)
    for node in list(graph):
        if (node.domain, node.op_type) != ("", "DequantizeLinear") or not is_meant(node.inputs[0]):
            continue
        result = node.outputs[0]
        readers = dict.fromkeys(reader for reader, _ in result.uses())
        inside = [reader for reader in readers if reader.graph is graph]
        kept = 0 if result.is_graph_output() or len(inside) < len(readers) else 1
        for reader in inside[kept:]:
            copy = _copied(node, names)
            graph.insert_before(reader, copy)
            for position, value in enumerate(reader.inputs):
                if value is result:
                    reader.replace_input_with(position, copy.outputs[0])
            count += 1
    return count


def _is_constant(value: ir.Value | None) -> bool:
    return value is not None and value.is_initializer() and not value.is_graph_input()


def _copied(node: ir.Node, names: set[str]) -> ir.Node:
    """Return a node that computes the same, whose names are not among some, and add them."""
    import onnx_ir as ir

    result, number = node.outputs[0], 2
    while {f"{node.name}/{number}", f"{result.name}/{number}"} & names:
        number += 1
    value = ir.Value(name=f"{result.name}/{number}", shape=result.shape, type=result.type)
    copy = ir.Node(
        "",
        "DequantizeLinear",
        node.inputs,
        node.attributes.values(),
        outputs=[value],
        name=f"{node.name}/{number}",
    )
    names |= {f"{node.name}/{number}", f"{result.name}/{number}"}
    stand_for(copy, [node])
    return copy
