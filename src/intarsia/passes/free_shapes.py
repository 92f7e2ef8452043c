# SPDX-License-Identifier: Apache-2.0
"""Prepare a model with free dimensions: as any model, and what exporters compute shapes with goes.

What is the same for all sizes becomes a constant, before anything else is folded: half of a head's
size, by which rotary embeddings cut it, or the root of that size. A Reshape of a value
`[batch, seq, 768]` to `[batch, seq, 12, 64]` is to the constant `[0, 0, 12, 64]`, and an Expand
names only extents that its operand does not have: whatever a backend makes of them, the nodes that
computed their shapes are no longer needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from intarsia.extents import Expression, Extent, Symbol, is_free, late_symbols
from intarsia.graph.infer_free import FreeShapes, infer_free_shapes
from intarsia.graph.metadata import COMPUTED_KEY
from intarsia.graph.model_info import read_model_info
from intarsia.graph.ops import Part, operator_of
from intarsia.graph.snapshot import node_bodies, snapshot
from intarsia.passes.prepare import PreparedModel, prepare, remove_unused, standard_passes
from intarsia.passes.provenance import makes_output, stand_for

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from intarsia.passes.prepare import NamedPass

_COPIED, _REST = 0, -1
"""What entries of a Reshape's shape mean: the extent at the same place, and what is left."""
_WRITTEN = frozenset((ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL))


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
    known = dict(symbols or {})

    def write(model: ir.Model) -> None:
        shapes = infer_free_shapes(model, known)
        known.update(shapes.symbols)  # what was written holds within their bounds
        write_shapes(model, shapes)
        remove_unused(model)

    named: NamedPass = ("write-shapes", write)
    passes: list[NamedPass] = []
    for one in standard_passes():
        # Before the folding, which goes on from what is written; and once more behind it.
        passes += [named, one] if one[0] == "fold-constants" else [one]
    prepared = prepare(model, (*passes, named))
    _keep_computed(prepared.model)
    shapes = infer_free_shapes(prepared.model, known)
    graph = snapshot(prepared.model, shapes, nominal)
    return PreparedModel(graph, read_model_info(graph), prepared.rewrites), shapes


def _keep_computed(model: ir.Model) -> None:
    """Mark what makes floats of sizes alone, in place: nothing computes them when sizes are known.

    Angles of positions are an example. Folding has other functions than native code, and constants
    go where computed values do not; both would change a result's last bits with the sizes. Not
    marked is what nothing but a shape depends on.
    """
    fed = {value for value in model.graph.inputs if value.const_value is None}
    for node in model.graph:
        if operator_of(node).reads is not Part.NONE and not fed.isdisjoint(node.inputs):
            fed.update(node.outputs)
    for node in reversed(list(model.graph)):
        if fed.isdisjoint(node.outputs) and any(map(_is_float, node.outputs)):
            uses = [use for value in node.outputs for use in value.uses()]
            if makes_output(node) or any(_computes_with(*use, fed) for use in uses):
                node.metadata_props[COMPUTED_KEY] = ""


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _computes_with(reader: ir.Node, position: int, fed: Collection[ir.Value]) -> bool:
    """Whether a node reads a value for numbers that depend on what is fed, or are marked."""
    if position in operator_of(reader).shape_operands:
        return False
    is_fed = any(value in fed for value in reader.outputs)
    return is_fed or COMPUTED_KEY in reader.metadata_props or bool(node_bodies(reader))


def with_late_sizes(prepared: PreparedModel) -> PreparedModel:
    """Return a prepared model without free dimensions with the sizes that the data decides.

    Args:
        prepared: Whose values of unknown size have no shape.
    """
    graph = prepared.graph
    if all(value.shape is not None or not value.is_tensor for value in graph.values):
        return prepared
    shapes = infer_free_shapes(graph.model, is_fixed=True)
    return replace(prepared, graph=snapshot(graph.model, shapes)) if shapes.late else prepared


def write_shapes(model: ir.Model, shapes: FreeShapes) -> None:
    """Write what is known of shapes, in place.

    As constants where they are the same for all sizes; and onto values, of which rewrites ask
    whether extents are equal, with the names of what is free.
    """
    for value, extents in shapes.extents.items():
        if value.producer() is not None and not late_symbols(extents):
            value.shape = ir.Shape([one if isinstance(one, int) else str(one) for one in extents])
    for node in list(model.graph):
        if node.domain not in ("", "ai.onnx") or not node.outputs:
            continue
        _write_entries(model.graph, node.outputs[0], shapes)
        write = _OPERANDS.get(node.op_type)
        entries = None if write is None else write(node, shapes)
        if entries is not None:
            array = np.array(entries, np.int64)
            node.replace_input_with(1, _constant(model.graph, f"{node.name}.shape", array))
            node.attributes.pop("allowzero", None)  # no extent is 0
        elif node.op_type == "Resize":
            _write_sizes(model.graph, node, shapes)


def _write_sizes(graph: ir.Graph, resize: ir.Node, shapes: FreeShapes) -> None:
    """Let a resize have the number of images from an input of the graph.

    Exporters take it from what is resized, which then has a reader that rewrites must heed.
    """
    sizes = resize.inputs[_SIZES] if len(resize.inputs) > _SIZES else None
    images, *rest = (None if sizes is None else shapes.entries.get(sizes)) or (0,)
    name = f"{resize.name}.sizes"
    if sizes is None or sizes.name == name or not isinstance(images, Expression) or is_free(rest):
        return
    for value in graph.inputs:
        extents = shapes.extents.get(value, ())
        if images in extents:
            index = _constant(graph, f"{name}.axis", np.array([extents.index(images)]))
            others = _constant(graph, f"{name}.rest", np.array(rest, np.int64))
            shape = ir.node("Shape", [value], name=f"{name}.shape")
            count = ir.node("Gather", [shape.outputs[0], index], {"axis": 0}, name=f"{name}.images")
            whole = ir.node("Concat", [count.outputs[0], others], {"axis": 0}, name=name)
            for node, length in ((shape, len(extents)), (count, 1), (whole, 1 + len(rest))):
                result = node.outputs[0]
                result.name, result.dtype = node.name, ir.DataType.INT64
                result.shape = ir.Shape([length])
                stand_for(node, [resize])
            graph.insert_before(resize, [shape, count, whole])
            resize.replace_input_with(_SIZES, whole.outputs[0])
            return


_SIZES = 3
"""The input of a Resize with the extents of its result."""


def _write_entries(graph: ir.Graph, value: ir.Value, shapes: FreeShapes) -> None:
    """Let a constant stand for a small tensor that is the same for all sizes."""
    entries, extents = shapes.entries.get(value), shapes.extents.get(value)
    if entries is None or extents is None or value.is_graph_output() or not value.uses():
        return
    if value.dtype not in _WRITTEN or not all(isinstance(entry, int) for entry in entries):
        return
    array = np.array(entries, value.dtype.numpy()).reshape(extents)
    value.replace_all_uses_with(_constant(graph, f"{value.name}.written", array))


def _constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    while name in graph.initializers:
        name += "_"
    value = ir.val(name, ir.DataType.from_numpy(array.dtype), array.shape)
    value.const_value = ir.tensor(array, name=name)
    graph.register_initializer(value)
    return value


def _operand(
    node: ir.Node, shapes: FreeShapes
) -> tuple[tuple[Extent, ...], tuple[Extent, ...]] | None:
    """Return what is known of a shape that is computed: the extents before and after."""
    source, shape = node.inputs[:2]
    if source is None or shape is None or shape.const_value is not None:
        return None
    before, after = shapes.extents.get(source), shapes.extents.get(node.outputs[0])
    return None if before is None or after is None else (before, after)


def _reshape_entries(node: ir.Node, shapes: FreeShapes) -> tuple[int, ...] | None:
    known = _operand(node, shapes)
    if known is None or 0 in known[1]:
        return None
    source, extents = known
    entries = [
        _COPIED
        if isinstance(extent, Expression) and source[axis : axis + 1] == (extent,)
        else extent
        for axis, extent in enumerate(extents)
    ]
    free = [axis for axis, entry in enumerate(entries) if isinstance(entry, Expression)]
    if len(free) > 1:
        return None
    for axis in free:
        entries[axis] = _REST
    return tuple(entry for entry in entries if isinstance(entry, int))


def _expand_entries(node: ir.Node, shapes: FreeShapes) -> tuple[int, ...] | None:
    known = _operand(node, shapes)
    if known is None:
        return None
    source, extents = known
    padded = (*[1] * (len(extents) - len(source)), *source)
    entries = [1 if own == extent else extent for own, extent in zip(padded, extents, strict=True)]
    free = any(isinstance(entry, Expression) for entry in entries)
    return None if free else tuple(entry for entry in entries if isinstance(entry, int))


_OPERANDS = {"Reshape": _reshape_entries, "Expand": _expand_entries}
"""By operator, what the shape that it makes may be written as; None if it depends on sizes."""
