# SPDX-License-Identifier: Apache-2.0
"""Gather, GatherElements, GatherND, OneHot: entries picked by indices that come when it runs.

A negative index counts from the end. An index outside the data is clamped to it, so that no memory
outside is ever read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from intarsia.codegen.body import NOTHING, Fused, Layout, load_lanes, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue, Subscript
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.scalar_ops.conversion import convert
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Size, typical


@dataclass(frozen=True, slots=True)
class Gather:
    """`y[o, m, i] = data[o, indices[m], i]`.

    Attributes:
        outer: Entries before the gathered dimension.
        extent: Of the gathered dimension.
        count: Indices.
        inner: Entries after it.
        data: Over (outer, extent, inner).
        indices: Over (count,); int32 or int64.
        y: Over (outer, count, inner).
        epilogue: Over the domain of y.
        unit: What it is shaped for.
    """

    outer: Size
    extent: Size
    count: Size
    inner: int
    data: Layout
    indices: Layout
    y: Layout
    epilogue: Fused = NOTHING
    unit: CpuModel = AVX512


@dataclass(frozen=True, slots=True)
class GatherElements:
    """`y[i, j, k] = data[i, indices[i, j, k], k]`, the axis anywhere.

    Attributes:
        extents: Of the data.
        shape: Of the indices and of y; at most the extents beside the axis.
        axis: The gathered dimension.
        data: Over the extents.
        indices: Over the shape; int32 or int64.
        y: Over the shape.
        epilogue: Over the shape.
    """

    extents: tuple[int, ...]
    shape: tuple[int, ...]
    axis: int
    data: Layout
    indices: Layout
    y: Layout
    epilogue: Fused = NOTHING


@dataclass(frozen=True, slots=True)
class GatherND:
    """`y[b, m, i] = data[b, *indices[b, m], i]`.

    Attributes:
        batch: Entries of the batch dimensions.
        count: Tuples of indices in each.
        extents: Of the gathered dimensions.
        inner: Entries after them.
        data: Over (batch, *extents, inner).
        indices: Over (batch, count, number of gathered dimensions); int32 or int64.
        y: Over (batch, count, inner).
        epilogue: Over the domain of y.
        unit: What it is shaped for.
    """

    batch: int
    count: int
    extents: tuple[int, ...]
    inner: int
    data: Layout
    indices: Layout
    y: Layout
    epilogue: Fused = NOTHING
    unit: CpuModel = AVX512


@dataclass(frozen=True, slots=True)
class OneHot:
    """`y[o, d, i]` is the second of two values where `indices[o, i]` is d, else the first.

    Attributes:
        outer: Entries before the new dimension.
        depth: Size of the new dimension.
        inner: Entries after it.
        indices: Over (outer, inner); any numbers, of which floats are cut to integers.
        values: Over (2,).
        y: Over (outer, depth, inner).
    """

    outer: int
    depth: int
    inner: int
    indices: Layout
    values: Layout
    y: Layout


SPECS = (Gather, GatherElements, GatherND, OneHot)


def build(spec: Gather | GatherElements | GatherND | OneHot) -> Function:
    """Return the kernel.

    Its arguments are data, indices, y, fused operands; of a OneHot indices, values, y.
    """
    match spec:
        case Gather():
            return _gather(spec)
        case GatherElements():
            return _gather_elements(spec)
        case GatherND():
            return _gather_nd(spec)
        case OneHot():
            return _one_hot(spec)


_TURN_ENTRIES = 4096
"""Entries that make a turn of the parallel loop worth while."""


def read_index(builder: Builder, indices: Buffer, at: Sequence[Subscript], extent: Size) -> Index:
    """Read an index of a dimension: counted from the end if negative, clamped to the dimension."""
    # Clamped, not checked: `bounds` has looked at all of them before and ends the run; this only
    # keeps reads inside meanwhile.
    number = builder.cast(builder.load(indices, tuple(at)), "int64")
    wrapped = builder.select(builder.compare("lt", number, 0), builder.add(number, extent), number)
    return builder.smaller(builder.larger(Index.of(wrapped), 0), extent - 1 if extent != 0 else 0)


def vectors(
    builder: Builder, unit: CpuModel, dtype: str, extent: int
) -> Iterator[tuple[Index, int, int | None]]:
    """Open a block for the vectors of a row: gives first entry, lanes, and how many count."""
    lanes = min(unit.lanes(dtype), 1 << (max(1, extent).bit_length() - 1))
    with builder.serial(0, extent // lanes) as number:
        yield number * lanes, lanes, None
    rest = extent % lanes
    if rest:
        yield Index(extent - rest), lanes, rest


def _gather(spec: Gather) -> Function:
    b = Builder("gather")
    data = spec.data.declare(b, "data", (spec.outer, spec.extent, spec.inner))
    indices = spec.indices.declare(b, "indices", (spec.count,))

    def entry(_outer: Index, number: Index) -> list[Index]:
        return [read_index(b, indices, (number,), spec.extent)]

    b.note(f"{spec.count} of {spec.extent} rows of {spec.inner}")
    return _copy_slices(b, spec, data, spec.outer, entry)


def _gather_nd(spec: GatherND) -> Function:
    b = Builder("gather_nd")
    data = spec.data.declare(b, "data", (spec.batch, *spec.extents, spec.inner))
    indices = spec.indices.declare(b, "indices", (spec.batch, spec.count, len(spec.extents)))

    def entry(batch: Index, number: Index) -> list[Index]:
        extents = enumerate(spec.extents)
        return [read_index(b, indices, (batch, number, dim), extent) for dim, extent in extents]

    b.note(f"{spec.count} of {spec.extents}, rows of {spec.inner}")
    return _copy_slices(b, spec, data, spec.batch, entry)


def _copy_slices(
    b: Builder,
    spec: Gather | GatherND,
    data: Buffer,
    outer: Size,
    entry: Callable[[Index, Index], list[Index]],
) -> Function:
    """Return the kernel that copies slices of data.

    Args:
        b: Of the kernel.
        spec: What is gathered.
        data: The first argument; indices are the second one.
        outer: Entries of the first dimension of data and y.
        entry: From an outer entry and the number of a slice to where it is read.
    """
    domain = (outer, spec.count, spec.inner)
    y = spec.y.declare(b, "y", domain, is_written=True)
    epilogue = spec.epilogue.bind(b, domain)
    size = max(1, min(typical(spec.count), _TURN_ENTRIES // max(1, spec.inner)))
    shape = (outer, -(-spec.count // size))
    for place, chunk in each_turn(b, shape, prod(domain) * prod(data.shape[1:-1])):
        with b.serial(chunk * size, b.smaller(chunk * size + size, spec.count)) as number:
            begin = (place, *entry(place, number))
            for first, lanes, count in vectors(b, spec.unit, data.dtype, spec.inner):
                value = load_lanes(b, data, (*begin, first), lanes, count)
                at = (place, number, first)
                store_lanes(b, epilogue(value, at, count), y, at, count)
    return b.finish()


def _gather_elements(spec: GatherElements) -> Function:
    b = Builder("gather_elements")
    data = spec.data.declare(b, "data", spec.extents)
    indices = spec.indices.declare(b, "indices", spec.shape)
    y = spec.y.declare(b, "y", spec.shape, is_written=True)
    epilogue = spec.epilogue.bind(b, spec.shape)
    b.note(f"{spec.shape} of {spec.extents} along {spec.axis}")
    *outer, last = spec.shape
    for place in each_turn(b, outer, last * prod(spec.extents)):
        with b.serial(0, last) as column:
            at = [*place, column]
            entry = list(at)
            entry[spec.axis] = read_index(b, indices, at, spec.extents[spec.axis])
            b.store(epilogue(b.load(data, entry), at, None), y, at)
    return b.finish()


def _one_hot(spec: OneHot) -> Function:
    b = Builder("one_hot")
    indices = spec.indices.declare(b, "indices", (spec.outer, spec.inner))
    values = spec.values.declare(b, "values", (2,))
    domain = (spec.outer, spec.depth, spec.inner)
    y = spec.y.declare(b, "y", domain, is_written=True)
    turns = spec.outer if prod(domain) else 0
    b.note(f"{spec.depth} classes")
    with b.parallel(turns) as outer, b.serial(0, spec.inner) as column:
        off, on = b.load(values, 0), b.load(values, 1)
        number = _whole_number(b, b.load(indices, (outer, column)))
        if not indices.dtype.startswith("uint"):  # a uint64 that int64 cannot hold is no class
            number = b.select(b.compare("lt", number, 0), b.add(number, spec.depth), number)
        with b.serial(0, spec.depth) as entry:
            # An index outside of the classes equals none of them: its row is all `off`, as ONNX
            # says.
            is_hot = b.compare("eq", number, b.index(entry))
            b.store(b.select(is_hot, on, off), y, (outer, entry, column))
    return b.finish()


def _whole_number(b: Builder, x: IrValue) -> IrValue:
    """Return a number as int64, a float cut; far below zero if it is NaN or too large."""
    if not x.type.is_float:
        return b.cast(x, "int64")
    x = convert(b, x, "float32") if x.type.dtype == "float16" else x
    is_held = b.compare("lt", b.unary("abs", x), _FAR)
    return b.cast(b.select(is_held, x, -_FAR), "int64")


_FAR = 2.0**62
"""A float that int64 holds, also with an extent added to it."""
