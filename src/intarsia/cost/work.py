# SPDX-License-Identifier: Apache-2.0
"""What a region has to do at least, whoever runs it: operations, and bytes across its border."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.cost.flops import least_flop, node_flop

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node
    from intarsia.graph.region import Region

VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Dropout"))
"""Operators whose output may be the memory of their input."""

PARTIAL = frozenset(("Gather", "GatherElements", "GatherND", "Slice"))
"""Operators that read of their first input only what they put out."""

_BLIND = frozenset(("Shape", "Size"))


@dataclass(frozen=True, slots=True)
class Work:
    """What a region has to do.

    Attributes:
        flop: Operations by the definitions of its operators; a multiply-add is two.
        least_flop: Operations by the cheapest algorithms in use.
        nbytes: Bytes that cross its border: inputs and constants read, outputs written, once each.
        dtype: The element type in which most of its operations are done; empty without any.
    """

    flop: int
    least_flop: int
    nbytes: int
    dtype: str

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flop / self.nbytes if self.nbytes else 0.0


def region_work(region: Region) -> Work:
    """Return what a region has to do at least; values of unknown shape count nothing."""
    graph = region.graph
    flop = least = 0
    by_dtype: dict[str, int] = {}
    for node in region.nodes:
        count = node_flop(graph, node)
        flop += count
        least += least_flop(graph, node)
        dtype = _dtype(graph, graph.nodes[node])
        by_dtype[dtype] = by_dtype.get(dtype, 0) + count
    nbytes = sum(_bytes_read(region, value) for value in (*region.inputs, *region.constants))
    nbytes += sum(_bytes_written(graph, value) for value in region.outputs)
    dtype = max(by_dtype, key=by_dtype.__getitem__) if flop else ""
    return Work(flop, least, nbytes, dtype)


def _dtype(graph: Graph, node: Node) -> str:
    """Of the first input: what an operator multiplies decides its speed, not what it sums in."""
    for value in (*node.inputs, *node.outputs):
        if value >= 0:
            return graph.values[value].dtype
    return ""


def _bytes_read(region: Region, value: int) -> int:
    """Return what must be read of a value: what its most demanding reader inside needs."""
    graph = region.graph
    full = graph.values[value].nbytes
    most = 0
    for position in graph.values[value].consumers:
        if position in region and most < full:
            most = max(most, _bytes_for(graph, graph.nodes[position], value, full))
    return most


def _bytes_for(graph: Graph, node: Node, value: int, full: int) -> int:
    if node.domain or value in node.inputs[1:] or value in node.captured:
        return full
    if node.op_type in VIEWS or node.op_type in _BLIND:
        return 0
    if node.op_type in PARTIAL:
        return min(full, sum(graph.values[out].nbytes for out in node.outputs if out >= 0))
    return full


def _bytes_written(graph: Graph, value: int) -> int:
    found = graph.values[value]
    if found.producer >= 0 and not graph.nodes[found.producer].domain:
        op_type = graph.nodes[found.producer].op_type
        if op_type in VIEWS:
            return 0
    return found.nbytes
