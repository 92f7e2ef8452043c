# SPDX-License-Identifier: Apache-2.0
"""Prepare a model with free dimensions: as any model, and what exporters compute shapes with goes.

A Reshape to `[batch, seq, 12, 64]` of a value `[batch, seq, 768]` is the constant `[0, 0, 12, 64]`:
whatever a backend makes of it, the nodes that computed the shape are no longer needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from intarsia.extents import Expression, Symbol
from intarsia.graph.infer_free import FreeShapes, infer_free_shapes
from intarsia.graph.model_info import read_model_info
from intarsia.graph.snapshot import snapshot
from intarsia.passes.prepare import PreparedModel, Rewrite, prepare, remove_unused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_COPIED, _REST = 0, -1
"""What entries of a Reshape's shape mean: the extent at the same place, and what is left."""


def prepare_free(
    model: ir.Model, nominal: Mapping[str, int], symbols: Mapping[str, Symbol] | None = None
) -> tuple[PreparedModel, FreeShapes]:
    """Return a copy of a loaded model with free dimensions after the standard passes.

    Args:
        model: What `load` returned; not changed.
        nominal: The sizes of its symbols for which decisions are taken.
        symbols: Those that have bounds.

    Raises:
        ModelError: A pass showed that the operators' shapes do not fit together.
    """
    prepared = prepare(model)
    rewritten = prepared.graph.model
    written = write_shapes(rewritten, infer_free_shapes(rewritten, symbols))
    before = {node.name or "" for node in rewritten.graph}
    remove_unused(rewritten)
    gone = tuple(sorted(before - {node.name or "" for node in rewritten.graph}))
    shapes = infer_free_shapes(rewritten, symbols)
    graph = snapshot(rewritten, shapes, nominal)
    rewrites = prepared.rewrites
    if gone:
        rewrites = (*rewrites, Rewrite("write-shapes", written, gone))
    return PreparedModel(graph, read_model_info(graph), rewrites), shapes


def write_shapes(model: ir.Model, shapes: FreeShapes) -> int:
    """Write the shapes of Reshapes as constants where they can be, in place; return how many."""
    rewrites = list(_constant_shapes(model.graph, shapes))
    for node, entries in rewrites:
        name = f"{node.name}.shape"
        while name in model.graph.initializers:
            name += "_"
        value = ir.val(name, ir.DataType.INT64, (len(entries),))
        value.const_value = ir.tensor(np.array(entries, np.int64), name=name)
        model.graph.register_initializer(value)
        node.replace_input_with(1, value)
    return len(rewrites)


def _constant_shapes(
    graph: ir.Graph, shapes: FreeShapes
) -> Iterator[tuple[ir.Node, tuple[int, ...]]]:
    for node in graph:
        if (node.domain, node.op_type) != ("", "Reshape") or node.inputs[1] is None:
            continue
        source = shapes.extents.get(node.inputs[0]) if node.inputs[0] is not None else None
        extents = shapes.extents.get(node.outputs[0])
        is_computed = node.inputs[1].const_value is None
        if source is None or extents is None or not is_computed or 0 in extents:
            continue
        entries = [
            _COPIED
            if isinstance(extent, Expression) and source[axis : axis + 1] == (extent,)
            else extent
            for axis, extent in enumerate(extents)
        ]
        free = [axis for axis, entry in enumerate(entries) if isinstance(entry, Expression)]
        if len(free) <= 1 and not node.attributes.get_int("allowzero", 0):
            for axis in free:
                entries[axis] = _REST
            yield node, tuple(entry for entry in entries if isinstance(entry, int))
