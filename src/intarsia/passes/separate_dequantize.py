# SPDX-License-Identifier: Apache-2.0
"""Each node that reads dequantised numbers gets a DequantizeLinear of its own.

Exporters write one for all readers. A kind whose operators take the codes instead needs one that
nobody else reads: else it would have to make numbers for the readers that run elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.passes.provenance import stand_for

if TYPE_CHECKING:
    import onnx_ir as ir


def separate_dequantize(model: ir.Model) -> int:
    """Copy DequantizeLinear for its second and further readers; say how many there are.

    One whose numbers are an output of the graph is copied for all.
    """
    count = 0
    for node in list(model.graph):
        if (node.domain, node.op_type) != ("", "DequantizeLinear"):
            continue
        result = node.outputs[0]
        readers = dict.fromkeys(reader for reader, _ in result.uses())
        inside = [reader for reader in readers if reader.graph is model.graph]
        kept = 0 if result.is_graph_output() or len(inside) < len(readers) else 1
        for number, reader in enumerate(inside[kept:], 2):
            copy = _copied(node, number)
            model.graph.insert_before(reader, copy)
            for position, value in enumerate(reader.inputs):
                if value is result:
                    reader.replace_input_with(position, copy.outputs[0])
            count += 1
    return count


def _copied(node: ir.Node, number: int) -> ir.Node:
    import onnx_ir as ir

    result = node.outputs[0]
    value = ir.Value(name=f"{result.name}/{number}", shape=result.shape, type=result.type)
    copy = ir.Node(
        "",
        "DequantizeLinear",
        node.inputs,
        node.attributes.values(),
        outputs=[value],
        name=f"{node.name}/{number}",
    )
    stand_for(copy, [node])
    return copy
