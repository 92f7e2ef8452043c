# SPDX-License-Identifier: Apache-2.0
"""Operators whose results are as long as the data says: NonZero, Compress, Unique, suppression.

Their results go into memory for as much as there may be, and end a region: what reads them is
given their size before it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from intarsia.codegen.kernels import compaction, suppression, unique
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.views import View
from intarsia.extents import Size
from intarsia.graph.graph import ABSENT


def refuse_found(operation: Operation) -> str | None:
    """Say why a result of a size that the data decides is not made."""
    if operation.op_type == "NonZero" and not operation.shape():
        return "its input is a scalar"
    return None if operation.output.extents is not None else "its size is known when compiling"


def lower_nonzero(assembler: Assembler, group: KernelGroup) -> None:
    """Append the count of what is not zero, and where it is."""
    operation = group.anchor
    x, extents = assembler.read_dense(operation.node.inputs[0]), operation.shape()
    spec = compaction.NonZero(extents, x.reshaped((prod(extents),)).layout, assembler.unit)
    places, count = assembler.found(group.result, len(extents) * spec.entries, 1)
    assembler.call(spec, (x.reshaped((spec.entries,)), places, count), group.names)


def _as_slices(shape: Sequence[Size], axis: int | None) -> tuple[Size, Size, Size, int]:
    """Return extents before a dimension, its own, and behind it, and its number.

    Args:
        shape: Of a tensor.
        axis: The dimension; None for the only one of the flat tensor.
    """
    if axis is None:
        return 1, prod(shape), 1, 0
    dim = axis % len(shape)
    return prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :]), dim


def lower_compress(assembler: Assembler, group: KernelGroup) -> None:
    """Append a copy of the slices that the condition keeps."""
    operation = group.anchor
    outer, extent, inner, dim = _as_slices(operation.shape(), operation.attribute("axis"))
    x = assembler.read_dense(operation.node.inputs[0]).reshaped((outer, extent, inner))
    condition = assembler.read_dense(operation.node.inputs[1])
    (count,) = condition.shape
    spec = compaction.Compress(
        outer, extent, inner, count, x.layout, condition.layout, assembler.unit
    )
    y, total = assembler.found(group.result, outer * extent * inner, dim)
    assembler.call(spec, (x, condition, y, total), group.names)


def refuse_compress(operation: Operation) -> str | None:
    """Say why slices are not picked by a condition."""
    shape, axis = operation.shape(), operation.attribute("axis")
    if not shape:
        return "its input is a scalar"
    extent = prod(shape) if axis is None else shape[axis % len(shape)]
    if operation.shape(1)[0] > extent:
        return "its condition is longer than the dimension"
    return refuse_found(operation)


def refuse_unique(operation: Operation) -> str | None:
    """Say why distinct entries are not found."""
    y, firsts, _, counts = (*operation.node.outputs, ABSENT, ABSENT, ABSENT)[:4]
    found = [operation.graph.values[value] for value in (y, firsts, counts) if value != ABSENT]
    is_late = all(value.extents is not None for value in found)
    return None if is_late else "its size is known when compiling"


def lower_unique(assembler: Assembler, group: KernelGroup) -> None:
    """Append what finds distinct entries, or slices, and where and how often they are."""
    operation, word = group.anchor, "int64"
    axis = operation.attribute("axis")
    outer, extent, inner, dim = _as_slices(operation.shape(), axis)
    x = assembler.read_dense(operation.node.inputs[0]).reshaped((outer, extent, inner))
    _, *others = (*operation.node.outputs, ABSENT, ABSENT, ABSENT)[:4]

    def found(value_id: int) -> tuple[View, View]:
        if value_id == ABSENT:
            return assembler.scratch(word, (extent,)), assembler.scratch(word, (1,))
        return assembler.found(value_id, extent, 0)

    y, y_size = assembler.found(group.result, outer * extent * inner, dim)
    (firsts, firsts_size), (counts, counts_size) = found(others[0]), found(others[2])
    if others[1] == ABSENT:
        inverse = assembler.scratch(word, (extent,))
    else:
        inverse = assembler.target(others[1])
    spec = unique.Unique(
        outer,
        extent,
        inner,
        x.layout,
        is_sorted=bool(operation.attribute("sorted", 1)),
        # As in the ONNX reference, by what numpy does.
        has_equal_nans=axis is None or len(operation.shape()) == 1,
    )
    memories = (assembler.scratch(word, (extent,)) for _ in range(2))
    results = (y, firsts, inverse, counts, y_size, firsts_size, counts_size)
    assembler.call(spec, (x, *memories, *results), group.names)


_MOST, _OVERLAP, _THRESHOLD = 2, 3, 4


def refuse_suppression(operation: Operation) -> str | None:
    """Say why boxes are not selected."""
    if 0 in (*operation.shape(), *operation.shape(1)):
        return "its input is empty"
    return refuse_found(operation)


def lower_suppression(assembler: Assembler, group: KernelGroup) -> None:
    """Append the selection for each class, and the list of what is selected."""
    operation = group.anchor
    images, count, _ = operation.shape()
    classes = operation.shape(1)[1]
    most: Size = count
    if operation.is_constant(_MOST) and isinstance(count, int):
        (said,) = operation.numbers(_MOST) or (0,)
        most = max(0, min(said, count))

    def parameter(position: int, default: float, dtype: str) -> View:
        value = operation.value(position)
        if value is None:
            return assembler.constant(f"{dtype} {default}", np.array([default], dtype))
        return assembler.read_dense(value.id).reshaped((1,))

    spec = suppression.Suppression(
        images,
        classes,
        count,
        most,
        is_centered=bool(operation.attribute("center_point_box", 0)),
        has_threshold=operation.value(_THRESHOLD) is not None,
        unit=assembler.unit,
    )
    arguments = (
        assembler.read_dense(operation.node.inputs[0]),
        assembler.read_dense(operation.node.inputs[1]).reshaped((spec.pairs, count)),
        parameter(_MOST, 0, "int64"),
        parameter(_OVERLAP, 0.0, "float32"),
        parameter(_THRESHOLD, 0.0, "float32"),
        assembler.scratch("float32", (spec.pairs, count)),
        assembler.scratch("int32", (spec.pairs, count)),
        assembler.scratch("float32", (spec.pairs, 4, spec.room)),
    )
    chosen = assembler.scratch("int32", (spec.pairs, most))
    counts = assembler.scratch("int64", (spec.pairs,))
    assembler.call(spec, (*arguments, chosen, counts), group.names)
    rows, total = assembler.found(group.result, spec.pairs * most * 3, 0)
    listing = suppression.Listing(images, classes, most)
    assembler.call(listing, (chosen, counts, rows, total), group.names)
