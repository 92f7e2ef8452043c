# SPDX-License-Identifier: Apache-2.0
"""Which values have a shape that depends on what is fed: what a file declares of it is a guess.

A shape that an operand says, as that of a Reshape, is another matter: who declares what a fed
operand makes of it states which runs there are, and a run that makes something else is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.graph.ops import Part, operator_of
from intarsia.graph.snapshot import node_bodies

if TYPE_CHECKING:
    import onnx_ir as ir


def data_dependent_shapes(graph: ir.Graph) -> set[ir.Value]:
    """Return the values of as many entries as operators find, and all that is computed of them.

    A shape may follow from the nodes all the same, as after a ReduceSum over all axes.

    Args:
        graph: Its nodes, and those of its bodies, are in topological order.
    """
    open_shapes: set[ir.Value] = set()
    _spread(graph, {value for value in graph.inputs if value.const_value is None}, open_shapes)
    return open_shapes


def _spread(graph: ir.Graph, fed: set[ir.Value], open_shapes: set[ir.Value]) -> None:
    """Go through a graph.

    Args:
        graph: A graph or a body.
        fed: Values whose numbers depend on what is fed; grows.
        open_shapes: Values whose shapes do; grows.
    """
    for node in graph:
        read = {value for value in node.inputs if value is not None}
        bodies = node_bodies(node)
        for body in bodies:
            fed.update(body.inputs)
            _spread(body, fed, open_shapes)
            read.update(body.outputs)
        is_fed, is_open = not read.isdisjoint(fed), not read.isdisjoint(open_shapes)
        operator = operator_of(node)
        is_open |= operator.finds_entries and is_fed
        is_fed &= operator.reads is not Part.NONE
        if is_open:
            open_shapes.update(node.outputs)
        if is_open or is_fed:
            fed.update(node.outputs)
