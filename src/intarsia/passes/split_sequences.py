# SPDX-License-Identifier: Apache-2.0
"""A sequence of parts of a tensor that is read at known places is a Split.

PyTorch's exporter writes `torch.split` and `chunk` as SplitToSequence with SequenceAt behind it.
Few backends have sequences, so that one of them would send a whole network to the fallback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from intarsia.passes.names import names_of
from intarsia.passes.provenance import stand_for

if TYPE_CHECKING:
    from intarsia.arrays import Array

_SPLIT = "SplitToSequence"
_SIZES_ARE_INPUT = 13
"""The operator set from which on Split reads its sizes."""
_MOST_PARTS = 4096
"""Split has an output for each part, whether that is read or not."""


def split_sequences(model: ir.Model) -> int:
    """Replace SplitToSequence by Split where only SequenceAt of constants reads it.

    Those become Identity. What may fail while running stays as it is: places that are not there,
    and sizes that do not add up to the extent or, as that is free, might not.

    Returns:
        How many were replaced.
    """
    if model.opset_imports.get("", 0) < _SIZES_ARE_INPUT:
        return 0
    nodes = [node for node in model.graph if (node.domain, node.op_type) == ("", _SPLIT)]
    return sum(_replace(model.graph, node) for node in nodes)


def _replace(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace a node, if that can be done."""
    sizes, sequence = _sizes_of(node), node.outputs[0]
    if sizes is None or sequence.is_graph_output():
        return False
    places: dict[ir.Node, int] = {}
    for reader, _ in sequence.uses():
        place = _place_of(reader, len(sizes)) if reader.graph is graph else None
        if place is None:
            return False
        places[reader] = place
    names, stem = names_of(graph), f"{sequence.name}/part"
    while any(name.startswith(stem) for name in names):
        stem += "/part"
    constant = ir.Value(
        name=f"{stem}s",
        const_value=ir.tensor(np.array(sizes, np.int64)),
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape([len(sizes)]),
    )
    graph.register_initializer(constant)
    parts = [ir.Value(name=f"{stem}{number}") for number in range(len(sizes))]
    axis = ir.AttrInt64("axis", node.attributes.get_int("axis", 0))
    split = ir.Node("", "Split", [node.inputs[0], constant], [axis], outputs=parts, name=node.name)
    stand_for(split, [node])
    graph.insert_before(node, split)
    for reader, place in places.items():
        part, result = parts[place], reader.outputs[0]
        part.type, part.shape = result.type, result.shape
        reader.op_type = "Identity"
        reader.resize_inputs(1)
        reader.replace_input_with(0, part)
    graph.remove(node, safe=True)
    return True


def _sizes_of(node: ir.Node) -> list[int] | None:
    """Return how long the parts are, if that is known and each has all dimensions."""
    split = _constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if split is None:
        return None
    sizes, extent = [int(size) for size in split.reshape(-1)], _extent_of(node)
    if extent is None:
        return None
    if split.ndim == 0:
        (size,) = sizes
        if not node.attributes.get_int("keepdims", 1):
            return None  # ONNX ignores it, and ONNX Runtime does not
        if size <= 0 or extent > size * _MOST_PARTS:
            return None
        sizes = [min(size, extent - start) for start in range(0, extent, size)]
    fits = 0 < len(sizes) <= _MOST_PARTS and min(sizes) >= 0 and sum(sizes) == extent
    return sizes if fits else None


def _extent_of(node: ir.Node) -> int | None:
    """Return the extent of what is split, if it is known."""
    shape, axis = node.inputs[0].shape, node.attributes.get_int("axis", 0)  # type: ignore[union-attr]
    extent = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    return extent if isinstance(extent, int) else None


def _place_of(reader: ir.Node, count: int) -> int | None:
    """Return which of some parts a node reads, or None if it is no SequenceAt of a constant."""
    if (reader.domain, reader.op_type) != ("", "SequenceAt"):
        return None
    position = _constant(reader.inputs[1])
    if position is None or position.size != 1:
        return None
    place = int(position.reshape(-1)[0])
    return place % count if -count <= place < count else None


def _constant(value: ir.Value | None) -> Array | None:
    """Return what a value is, if that is known; a default of an input may be fed otherwise."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()
