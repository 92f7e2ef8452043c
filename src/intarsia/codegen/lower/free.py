# SPDX-License-Identifier: Apache-2.0
"""Lowering for sizes that are known only when a program runs.

Shapes of the graph that is lowered are extents then. What needs a number instead of an expression
raises `UndecidedError`: such a node is refused, and none is taken for the sizes of one run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.extents import Size, UndecidedError, is_free, nonempty, typical
from intarsia.graph.per_graph import per_graph
from intarsia.graph.region import Region

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node, Value


@per_graph
def with_extents(graph: Graph) -> Graph:
    """Return the graph whose values have their extents as shapes.

    Kernels may take every extent to be at least 1 when they choose how to run: what is decided so
    is right where there is nothing too, as loops do not turn then.
    """
    values = (
        value if value.extents is None else _with_shape(value, tuple(map(nonempty, value.extents)))
        for value in map(_with_entries, graph.values)
    )
    return replace(graph, values=tuple(values), viewed=None)


def _with_entries(value: Value) -> Value:
    if not has_free_entries(value):
        return value
    assert value.entries is not None
    return replace(value, entries=tuple(map(nonempty, value.entries)))


@per_graph
def with_sizes(graph: Graph) -> Graph:
    """Return the graph whose values have shapes also where the data decides them: likely ones."""
    values = (
        _with_shape(value, tuple(map(typical, value.extents)))
        if value.extents is not None and value.shape is None
        else value
        for value in graph.values
    )
    return replace(graph, values=tuple(values), viewed=None)


def _with_shape(value: Value, shape: Size) -> Value:
    return replace(value, shape=shape)


def touches_free(graph: Graph, node: Node) -> bool:
    """Tell whether a node reads or makes something of a free size, or of free entries."""
    values = [graph.values[i] for i in (*node.inputs, *node.outputs) if i >= 0]
    return any(value.is_free or has_free_entries(value) for value in values)


def has_free_entries(value: Value) -> bool:
    """Tell whether a value holds extents that are known only when it runs."""
    return value.entries is not None and is_free(value.entries)


@per_graph
def why_not_free(graph: Graph, position: int) -> str | None:
    """Say why a node that native code takes for known sizes is not taken for free ones."""
    from intarsia.codegen.lower.region import lower_region
    from intarsia.codegen.unit import AVX512

    try:
        lower_region(Region(graph, 1 << position), AVX512)
    except UndecidedError as error:
        return str(error)
    return None
