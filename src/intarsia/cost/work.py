# SPDX-License-Identifier: Apache-2.0
"""What a region has to do at least, on any backend: operations, and bytes across its border."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.graph.ops import Part, ViewKind, least_flop, node_flop, operator_of

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node
    from intarsia.graph.region import Region

_FREE = (ViewKind.SAME, ViewKind.RESHAPED)
"""Views that cost nothing: a strided one is copied as soon as its reader wants dense memory."""


@dataclass(frozen=True, slots=True)
class Work:
    """The operations and bytes of a region.

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
    """Return the dtype of the first input: that of factors decides the speed, not that of sums."""
    for value in (*node.inputs, *node.outputs):
        if value >= 0:
            return graph.values[value].dtype
    return ""


def _bytes_read(region: Region, value: int) -> int:
    """Return the bytes of a value that must be read: as many as its most demanding reader needs."""
    graph = region.graph
    full = graph.values[value].nbytes
    most = 0
    for position in graph.values[value].consumers:
        if position in region and most < full:
            most = max(most, _bytes_for(graph, graph.nodes[position], value, full))
    return most


def _bytes_for(graph: Graph, node: Node, value: int, full: int) -> int:
    # Weights, indices, shapes: whatever is read of the first input, these are read whole.
    if value in node.inputs[1:] or value in node.captured:
        return full
    operator = operator_of(node)
    if operator.view in _FREE or operator.reads is Part.NONE:
        return 0
    if operator.reads is Part.SOME:
        return min(full, sum(graph.values[out].nbytes for out in node.outputs if out >= 0))
    return full


def _bytes_written(graph: Graph, value: int) -> int:
    written = graph.values[value]
    if written.producer >= 0 and operator_of(graph.nodes[written.producer]).view in _FREE:
        return 0
    return written.nbytes
