# SPDX-License-Identifier: Apache-2.0
"""Nodes that spell an operator: lowered as the operator would be.

A spelling is a pattern (`graph/pattern.py`) whose predicate returns the `Meaning` of a match. It is
found inside a region, where groups are made; nodes before placement stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.operators import refuse_operation
from intarsia.graph.pattern import Match, Table, match_region
from intarsia.graph.region import Region


@dataclass(frozen=True, slots=True)
class Meaning:
    """The operator that nodes spell.

    Attributes:
        op_type: It, as in the table of operators.
        inputs: The ids of its operands; -1 for one that is absent.
        attributes: Its attributes.
    """

    op_type: str
    inputs: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def read_operations(region: Region, table: Table) -> list[Operation]:
    """Return what a region's nodes compute, in an order in which it can run.

    Args:
        region: Nodes that are all taken.
        table: Spellings; nodes of a match that would be refused as an operator stay several.
    """
    graph = region.graph
    spelled: dict[int, Operation] = {}
    inner: set[int] = set()
    for match in match_region(region, table):
        operation = _operation(match)
        if refuse_operation(operation) is None:
            last = match.nodes[0].id
            spelled[last] = operation
            inner.update(match.members)
            inner.remove(last)
    return [
        spelled.get(node) or Operation(graph, graph.nodes[node])
        for node in region.nodes
        if node not in inner
    ]


def _operation(match: Match) -> Operation:
    meaning: Meaning = match.meaning
    node = replace(match.nodes[0], op_type=meaning.op_type, domain="", inputs=meaning.inputs)
    nodes = tuple(match.graph.nodes[member] for member in match.members)
    return Operation(match.graph, node, nodes, meaning.attributes)
