# SPDX-License-Identifier: Apache-2.0
"""Models of float16 and bfloat16 as lowering sees them: everything is float32.

Memory keeps what the model says, which views tell (`View.half`): so no operator's lowering knows
of halves, and all that takes float32 takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.codegen.halves import HALVES, SINGLE
from intarsia.graph.per_graph import per_graph
from intarsia.graph.snapshot import dtype_name

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Value


@per_graph
def halves_of(graph: Graph) -> Mapping[int, str]:
    """Return the values that are halves, each with its dtype."""
    return {value.id: value.dtype for value in graph.values if value.dtype in HALVES}


def in_singles(graph: Graph) -> Graph:
    """Return the graph with float32 in the place of halves; itself if it has none."""
    return _with_singles(graph) if halves_of(graph) else graph


@per_graph
def _with_singles(graph: Graph) -> Graph:
    values = (
        replace(value, dtype=SINGLE) if value.dtype in HALVES else value for value in graph.values
    )
    return replace(graph, values=tuple(values), viewed=None)


def model_dtype(value: Value) -> str:
    """Return the dtype that a value has in the model."""
    dtype = value.ir.dtype if value.constant is None else value.constant.dtype
    return value.dtype if value.dtype != SINGLE or dtype is None else dtype_name(dtype)
