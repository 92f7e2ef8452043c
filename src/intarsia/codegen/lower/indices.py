# SPDX-License-Identifier: Apache-2.0
"""Operators that pick or put entries by indices, and those along one dimension of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod

import numpy as np

from intarsia.codegen.body import Apply, Body, Fused, Layout, identity
from intarsia.codegen.kernels import gather, scan, scatter, top_k
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.lower.assembler import Assembler, Guard
from intarsia.codegen.lower.caches import put_rows
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import fuse
from intarsia.codegen.lower.views import View
from intarsia.codegen.scalar_ops.operator import NUMBERS, WIDE
from intarsia.extents import UndecidedError, is_free
from intarsia.graph.graph import ABSENT
from intarsia.graph.indices import index_problem, index_use

_INDEX_DTYPES = frozenset(("int32", "int64"))
_MATRIX = 2
"""Dimensions of a matrix."""


def _axis(operation: Operation, default: int = 0) -> int:
    axis: int = operation.attribute("axis", default)
    return axis % max(1, len(operation.shape()))


@contextmanager
def dense_target(assembler: Assembler, group: KernelGroup) -> Iterator[View]:
    """Give memory without gaps to write the result to, and bring it to its place afterwards."""
    y = assembler.target(group.result)
    if y.is_dense:
        yield y
    else:
        dense = assembler.scratch(y.dtype, y.shape)
        yield dense
        assembler.copy(dense, y, group.names)


def _read_indices(assembler: Assembler, operation: Operation) -> View:
    """Return an operation's indices without gaps, and look first whether they are legal.

    Those that are known when compiling have been looked at: see `refuse_gather`.
    """
    use = index_use(operation.graph, operation.node)
    assert use is not None
    picks = assembler.read_dense(use.value)
    if operation.graph.values[use.value].constant is None:
        count = prod(picks.shape) // max(1, len(use.extents))
        names = (operation.node.name, operation.graph.values[use.value].name)
        for column, extent in enumerate(use.extents):
            place = (count,), (len(use.extents),), picks.offset + column
            of_dim = replace(picks, shape=place[0], strides=place[1], offset=place[2])
            assembler.check_indices(of_dim, extent, *names)
    return picks


# Gather


def refuse_gather(operation: Operation) -> str | None:
    """Say why entries are not gathered."""
    if not operation.shape():
        return "its input is a scalar"
    dtype = operation.inputs[1].dtype
    if dtype not in _INDEX_DTYPES:
        return f"its indices are {dtype}"
    return index_problem(operation.graph, operation.node)


def lower_gather(assembler: Assembler, group: KernelGroup) -> None:
    """Pick slices; one that is known when compiling is a view."""
    operation = group.anchor
    axis, data_id = _axis(operation), operation.node.inputs[0]
    shape, indices = operation.shape(), operation.shape(1)
    if operation.is_constant(1) and prod(indices) == 1 and shape[axis]:
        (at,) = operation.numbers(1) or (0,)
        start = at + shape[axis] if at < 0 else at
        view = assembler.read(data_id).part(axis, start, 1)
        strides = (*view.strides[:axis], *(0 for _ in indices), *view.strides[axis + 1 :])
        assembler.alias(group.result, replace(view, shape=operation.output_shape, strides=strides))
        return
    data = assembler.read_dense(data_id)
    outer, inner, count = prod(shape[:axis]), prod(shape[axis + 1 :]), prod(indices)
    data = data.reshaped((outer, shape[axis], inner))
    picks = _read_indices(assembler, operation).reshaped((count,))
    with dense_target(assembler, group) as target:
        y = target.reshaped((outer, count, inner))
        spec = gather.Gather(
            outer,
            shape[axis],
            count,
            inner,
            data.layout,
            picks.layout,
            y.layout,
            Fused(identity(data.dtype)),
            assembler.unit,
        )
        assembler.call(spec, (data, picks, y), group.names, is_picked=True)


def lower_gather_elements(assembler: Assembler, group: KernelGroup) -> None:
    """Pick entries one by one."""
    operation = group.anchor
    data, picks = assembler.read(operation.node.inputs[0]), _read_indices(assembler, operation)
    fused, operands = fuse(assembler, group, data.dtype)
    y = assembler.target(group.result)
    spec = gather.GatherElements(
        data.shape, picks.shape, _axis(operation), data.layout, picks.layout, y.layout, fused
    )
    assembler.call(spec, (data, picks, y, *operands), group.names, is_picked=True)


def lower_gather_nd(assembler: Assembler, group: KernelGroup) -> None:
    """Pick slices by tuples of indices."""
    operation = group.anchor
    data = assembler.read_dense(operation.node.inputs[0])
    picks = _read_indices(assembler, operation)
    dims, depth = operation.attribute("batch_dims", 0), picks.shape[-1]
    batch, count = prod(data.shape[:dims]), prod(picks.shape[dims:-1])
    extents, inner = data.shape[dims : dims + depth], prod(data.shape[dims + depth :])
    data = data.reshaped((batch, *extents, inner))
    picks = picks.reshaped((batch, count, depth))
    with dense_target(assembler, group) as target:
        y = target.reshaped((batch, count, inner))
        spec = gather.GatherND(
            batch,
            count,
            extents,
            inner,
            data.layout,
            picks.layout,
            y.layout,
            Fused(identity(data.dtype)),
            assembler.unit,
        )
        assembler.call(spec, (data, picks, y), group.names, is_picked=True)


# OneHot


def refuse_one_hot(operation: Operation) -> str | None:
    """Say why a `OneHot` is not taken."""
    dtype = operation.inputs[0].dtype
    return None if dtype in NUMBERS | {"float16"} else f"its indices are {dtype}"


def lower_one_hot(assembler: Assembler, group: KernelGroup) -> None:
    """Write one of two values for each class."""
    operation = group.anchor
    shape, whole = operation.shape(), operation.output_shape
    axis = operation.attribute("axis", -1) % len(whole)
    outer, inner = prod(shape[:axis]), prod(shape[axis:])
    picks = assembler.read_dense(operation.node.inputs[0]).reshaped((outer, inner))
    values = assembler.read(operation.node.inputs[2])
    with dense_target(assembler, group) as target:
        y = target.reshaped((outer, whole[axis], inner))
        spec = gather.OneHot(outer, whole[axis], inner, picks.layout, values.layout, y.layout)
        assembler.call(spec, (picks, values, y), group.names)


# Scatter


def refuse_scatter(operation: Operation) -> str | None:
    """Say why entries are not scattered."""
    reduction = operation.attribute("reduction", "none")
    dtype = operation.inputs[0].dtype
    if reduction not in scatter.REDUCTIONS:
        return f"{operation.op_type} with reduction {reduction}"
    if reduction != "none" and dtype not in WIDE:
        return f"{operation.op_type} of {dtype} with reduction {reduction} has no native code"
    return refuse_gather(operation)


def lower_scatter_elements(assembler: Assembler, group: KernelGroup) -> None:
    """Copy the data, and put entries into it one by one."""
    operation = group.anchor
    picks = _read_indices(assembler, operation)
    data, updates = (assembler.read(operation.node.inputs[i]) for i in (0, 2))
    y = assembler.target(group.result)
    assembler.copy(data, y, group.names, "data")
    spec = scatter.ScatterElements(
        data.shape,
        picks.shape,
        _axis(operation),
        picks.layout,
        updates.layout,
        y.layout,
        operation.attribute("reduction", "none"),
    )
    assembler.call(spec, (picks, updates, y), group.names)


def lower_scatter_nd(assembler: Assembler, group: KernelGroup) -> None:
    """Copy the data, and put slices into it by tuples of indices."""
    operation = group.anchor
    data = assembler.read(operation.node.inputs[0])
    picks = _read_indices(assembler, operation)
    updates = assembler.read_dense(operation.node.inputs[2])
    depth = picks.shape[-1]
    count, inner = prod(picks.shape[:-1]), prod(data.shape[depth:])
    extents = data.shape[:depth]
    picks, updates = picks.reshaped((count, depth)), updates.reshaped((count, inner))
    with dense_target(assembler, group) as target:
        assembler.copy(data, target, group.names, "data")
        y = target.reshaped((*extents, inner))
        spec = scatter.ScatterND(
            count,
            extents,
            inner,
            picks.layout,
            updates.layout,
            y.layout,
            operation.attribute("reduction", "none"),
            assembler.unit,
        )
        assembler.call(spec, (picks, updates, y), group.names)


def refuse_tensor_scatter(operation: Operation) -> str | None:
    """Say why new entries are not put into a cache."""
    if operation.attribute("mode", "linear") != "linear":
        return "it goes on at the front where its cache ends"
    return None


def lower_tensor_scatter(assembler: Assembler, group: KernelGroup) -> None:
    """Copy a cache, with new entries where each item's index says."""
    operation = group.anchor
    shape = operation.shape()
    axis = operation.attribute("axis", -2) % len(shape)
    new = operation.shape(1)[axis]
    if not isinstance(new, int):
        raise UndecidedError(f"{new} new entries")
    outer, inner = prod(shape[1:axis]), prod(shape[axis + 1 :])
    past, update = (
        assembler.read_dense(value).reshaped((shape[0], outer, extent, inner))
        for value, extent in zip(operation.node.inputs, (shape[axis], new), strict=False)
    )
    name, write = operation.node.name, operation.value(2)
    ends = assembler.constant(f"{name}/new", np.full(1, new, np.int64)).expanded((shape[0],))
    if write is not None:
        begins = assembler.read_dense(write.id)
        extent = shape[axis] - new + 1
        assembler.check_indices(begins, extent, name, write.name, are_counts=True)
        counts, ends = ends, assembler.scratch("int64", (shape[0],))
        body = Body(("int64",) * 2, (Apply("Add", (0, 1), (), "int64"),), (2,))
        layouts = (begins.layout, counts.layout)
        spec = Elementwise(ends.domain, layouts, (ends.layout,), body, assembler.unit)
        assembler.call(spec, (begins, counts, ends), group.names)
    with dense_target(assembler, group) as target:
        y = target.reshaped((shape[0], outer, shape[axis], inner))
        put_rows(assembler, group, past, update, ends, y, keeps=True)


# CumSum, CumProd and Trilu


_MOST_AXES = 8
"""Dimensions along each of which a kernel is compiled where the axis comes when it runs."""


def refuse_scan(operation: Operation) -> str | None:
    """Say why a `CumSum` or `CumProd` is not taken."""
    if not operation.is_constant(1) and not 0 < len(operation.shape()) <= _MOST_AXES:
        return "its axis is not constant"
    dtype = operation.inputs[0].dtype
    return None if dtype in WIDE else f"{operation.op_type} of {dtype} has no native code"


def lower_scan(assembler: Assembler, group: KernelGroup) -> None:
    """Append sums or products along one dimension."""
    operation = group.anchor
    x = assembler.read_dense(operation.node.inputs[0])
    shape, axis_value = x.shape, operation.value(1)
    assert axis_value is not None
    axes: list[tuple[tuple[int, ...], Guard | None]]
    if operation.is_constant(1):
        axes = [((operation.array(1).item() % len(shape),), None)]
    else:
        each = [(axis,) for axis in range(len(shape))]
        axes = assembler.choose_axes(axis_value, each, operation)
    with dense_target(assembler, group) as target:
        for (axis,), guard in axes:
            domain = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
            data, y = x.reshaped(domain), target.reshaped(domain)
            spec = scan.Scan(
                *domain,
                data.layout,
                y.layout,
                bool(operation.attribute("exclusive", 0)),
                bool(operation.attribute("reverse", 0)),
                operation.op_type.removeprefix("Cum"),
                assembler.unit,
            )
            assembler.call(spec, (data, y), group.names, guard=guard)


def refuse_trilu(operation: Operation) -> str | None:
    """Say why a `Trilu` is not taken."""
    return None if len(operation.shape()) >= _MATRIX else "its input is not a matrix"


def lower_trilu(assembler: Assembler, group: KernelGroup) -> None:
    """Append what keeps one side of a diagonal."""
    operation = group.anchor
    x = assembler.read_dense(operation.node.inputs[0])
    *batch, rows, columns = x.shape
    domain = (prod(batch), rows, columns)
    x = x.reshaped(domain)
    given = operation.value(1)
    k = []
    diagonal: int | Layout = 0
    if operation.is_constant(1):
        diagonal = operation.array(1).item()
    elif given is not None:
        k = [assembler.read_dense(given.id).reshaped((1,))]
        diagonal = k[0].layout
    with dense_target(assembler, group) as target:
        y = target.reshaped(domain)
        is_upper = bool(operation.attribute("upper", 1))
        spec = scan.Trilu(*domain, x.layout, y.layout, diagonal, is_upper)
        assembler.call(spec, (x, *k, y), group.names)


# ReverseSequence and Range


def refuse_reverse_sequence(operation: Operation) -> str | None:
    """Say why a `ReverseSequence` is not taken."""
    axes = operation.attribute("time_axis", 0), operation.attribute("batch_axis", 1)
    if sorted(axes) != [0, 1]:
        return f"its axes are {axes}"
    steps = operation.shape()[axes[0]]
    lengths = operation.numbers(1) or () if operation.is_constant(1) else ()
    if not all(0 <= length <= steps for length in lengths):
        return f"its sequences are not all of 0 to {steps} steps"
    return None


def lower_reverse_sequence(assembler: Assembler, group: KernelGroup) -> None:
    """Turn the beginning of each sequence round."""
    operation = group.anchor
    x, lengths = assembler.read_dense(operation.node.inputs[0]), operation.inputs[1]
    counts = assembler.read(lengths.id)
    order = (operation.attribute("time_axis", 0), operation.attribute("batch_axis", 1), 2)
    shape = (*x.shape[:2], prod(x.shape[2:]))
    if lengths.constant is None:
        extent = shape[order[0]]
        assembler.check_indices(
            counts, extent + 1, operation.node.name, lengths.name, are_counts=True
        )
    with dense_target(assembler, group) as target:
        data, y = (view.reshaped(shape).permuted(order) for view in (x, target))
        steps, batch, inner = data.shape
        spec = scan.ReversedStarts(
            steps, batch, inner, data.layout, counts.layout, y.layout, assembler.unit
        )
        assembler.call(spec, (data, counts, y), group.names)


def lower_range(assembler: Assembler, group: KernelGroup) -> None:
    """Append `start + i * delta`; how many there are is known, and looked at.

    A free size follows from the operands, so that nothing has to be looked at.
    """
    operation = group.anchor
    views = [assembler.read_dense(value.id).reshaped((1,)) for value in operation.inputs]
    (count,) = operation.output_shape
    if not is_free((count,)):
        assembler.check_range(views, count, operation.inputs[0], operation.node)
    start, _, delta = views
    y = assembler.target(group.result)
    spec = scan.Progression(count, start.layout, delta.layout, y.layout)
    assembler.call(spec, (start, delta, y), group.names)


# TopK


def refuse_top_k(operation: Operation) -> str | None:
    """Say why a `TopK` is not taken."""
    shape, node = operation.shape(), operation.node
    if not shape:
        return "its input is a scalar"
    if node.outputs[0] == ABSENT:
        return "it has no values"
    count, extent = _count(operation), shape[_axis(operation, -1)]
    if not 0 <= count <= extent:
        return f"k is {count}, of {extent} entries"
    return None


def _count(operation: Operation) -> int:
    """Return k, which was an attribute before operator set 10."""
    return operation.output_shape[_axis(operation, -1)]


def lower_top_k(assembler: Assembler, group: KernelGroup) -> None:
    """Append the largest or smallest entries along a dimension; they are sorted in any case."""
    operation = group.anchor
    x, y = assembler.read(operation.node.inputs[0]), assembler.target(group.result)
    k = operation.value(1)
    if k is not None and k.constant is None:
        assembler.check_numbers(k, (_count(operation),), operation.node)
    places = operation.outputs[1:]
    indices = assembler.target(places[0].id) if places else assembler.scratch("int64", y.shape)
    count, views = _count(operation), [x, y, indices]
    if count > top_k.MOST_IN_REGISTERS:
        views.append(assembler.scratch("int64", y.shape))
    spec = top_k.TopK(
        x.shape,
        _axis(operation, -1),
        count,
        x.layout,
        y.layout,
        indices.layout,
        bool(operation.attribute("largest", 1)),
        views[3].layout if views[3:] else None,
        assembler.unit,
    )
    assembler.call(spec, views, group.names)
