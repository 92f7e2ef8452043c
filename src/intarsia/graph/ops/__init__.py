# SPDX-License-Identifier: Apache-2.0
"""The operators of ONNX's main domain, a row each: what is true of them on every backend.

What one library or code generator can do with an operator stands with that. An operator without a
row is `UNLISTED`: heavy, and an operation for each element of its result and operand but one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from intarsia.graph.ops import counts
from intarsia.graph.ops.counts import NodeShapes, UnknownShapeError
from intarsia.graph.ops.operator import CallWeight, Family, Indexing, OnnxOperator, Part, ViewKind
from intarsia.graph.ops.rows import (
    AXES,
    CONTRACTIONS,
    ELEMENTWISE,
    MICROSOFT,
    MOVEMENT,
    OTHERS,
)
from intarsia.graph.per_graph import per_graph

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph


class NamesOperator(Protocol):
    """A node of any representation."""

    @property
    def domain(self) -> str:
        """The operator's domain; "" is ONNX's main one."""

    @property
    def op_type(self) -> str:
        """The operator."""


OPERATORS: Mapping[str, OnnxOperator] = {
    row.name: row for row in (*ELEMENTWISE, *CONTRACTIONS, *AXES, *OTHERS, *MOVEMENT)
}
MICROSOFT_OPERATORS: Mapping[str, OnnxOperator] = {row.name: row for row in MICROSOFT}
"""The rows of ONNX Runtime's own domain."""
UNLISTED = OnnxOperator("", Family.OTHER, counts.elementwise)
FOREIGN = OnnxOperator("", Family.OTHER)
"""The row of operators of other domains: unknown, so nothing is counted."""


def operator_named(name: str) -> OnnxOperator:
    """Return the row of an operator of ONNX's main domain."""
    return OPERATORS.get(name, UNLISTED)


def operator_of(node: NamesOperator) -> OnnxOperator:
    """Return the row of a node's operator."""
    if node.domain == _MICROSOFT:
        return MICROSOFT_OPERATORS.get(node.op_type, FOREIGN)
    return FOREIGN if node.domain else operator_named(node.op_type)


_MICROSOFT = "com.microsoft"


def names_of(belongs: Callable[[OnnxOperator], bool]) -> tuple[str, ...]:
    """Return the names of the operators whose rows satisfy a condition, in alphabetical order."""
    return tuple(sorted(row.name for row in OPERATORS.values() if belongs(row)))


@per_graph
def node_flop(graph: Graph, position: int) -> int:
    """Return the operations of a node; 0 where shapes are unknown or the operator is not ONNX's.

    Args:
        graph: Where the node is.
        position: Its id.
    """
    return _count(graph, position, operator_of(graph.nodes[position]).flops)


def least_flop(graph: Graph, position: int) -> int:
    """Return the operations of a node by the cheapest algorithm that is in use."""
    cheapest = operator_of(graph.nodes[position]).least_flops
    return _count(graph, position, cheapest) if cheapest else node_flop(graph, position)


def _count(graph: Graph, position: int, count: Callable[[NodeShapes], int] | None) -> int:
    try:
        return count(NodeShapes(graph, graph.nodes[position])) if count else 0
    except UnknownShapeError:
        return 0


__all__ = [
    "FOREIGN",
    "MICROSOFT_OPERATORS",
    "OPERATORS",
    "UNLISTED",
    "CallWeight",
    "Family",
    "Indexing",
    "OnnxOperator",
    "Part",
    "ViewKind",
    "least_flop",
    "names_of",
    "node_flop",
    "operator_named",
    "operator_of",
]
