# SPDX-License-Identifier: Apache-2.0
"""Results as long as the data says: places of what is not zero, slices that a condition keeps.

A kernel counts first, so that it can write rows one behind the other without gaps, into memory for
as many as there may be. It is one turn: a prefix sum over threads is not worth it for what is read
twice and written once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import INT64, Buffer, Function, Index, IrValue, Type
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Expression, Size, typical

_MOST_LANES = 16


@dataclass(frozen=True, slots=True)
class NonZero:
    """The subscripts of all entries that are not zero, in row-major order, a row for each axis.

    Attributes:
        extents: Of x; at least one.
        x: Over their product.
        unit: What it is shaped for.
    """

    extents: tuple[Size, ...]
    x: Layout
    unit: CpuModel = AVX512

    @property
    def entries(self) -> Size:
        """Of x."""
        return prod(self.extents)


@dataclass(frozen=True, slots=True)
class Compress:
    """`y[o, k] = x[o, a]` for the k-th a for which the condition holds.

    Attributes:
        outer: Slices of x.
        extent: Entries of the dimension that is compressed; as many as the condition has, or more.
        inner: Entries of a slice's entry.
        count: Of the condition.
        x: Over (outer, extent, inner).
        condition: Over (count,); bool.
        unit: What it is shaped for.
    """

    outer: Size
    extent: Size
    inner: Size
    count: Size
    x: Layout
    condition: Layout
    unit: CpuModel = AVX512


SPECS = (NonZero, Compress)


def build(spec: NonZero | Compress) -> Function:
    """Return the kernel; its arguments are what it reads in order, the result, and its count."""
    return _nonzero(spec) if isinstance(spec, NonZero) else _compress(spec)


def _nonzero(spec: NonZero) -> Function:
    b = Builder("nonzero")
    x = spec.x.declare(b, "x", (spec.entries,))
    places = b.argument("places", INT64.dtype, (len(spec.extents) * spec.entries,), is_written=True)
    count = b.argument("count", INT64.dtype, (1,), is_written=True)
    b.note(f"{spec.extents} {x.dtype}")
    with b.parallel(1):
        total = _count(b, x, spec.entries, spec.unit)
        b.store(total, count, 0)

        def visit(at: Index, number: IrValue) -> list[IrValue]:
            is_kept = _is_kept(b, b.load(x, at))
            with b.where(is_kept):
                for row, subscript in enumerate(b.unravel(at, spec.extents)):
                    place = b.add(b.mul(total, row), number) if row else number
                    b.store(b.index(subscript), places, Index.of(place))
            return [b.add(number, b.cast(is_kept, INT64.dtype))]

        _scan(b, x, spec.entries, spec.unit, visit)
    return b.finish()


def _compress(spec: Compress) -> Function:
    b = Builder("compress")
    x = spec.x.declare(b, "x", (spec.outer, spec.extent, spec.inner))
    condition = spec.condition.declare(b, "condition", (spec.count,))
    entries = spec.outer * spec.extent * spec.inner
    y = b.argument("y", x.dtype, (entries,), is_written=True)
    count = b.argument("count", INT64.dtype, (1,), is_written=True)
    b.note(f"{spec.count} of ({spec.outer}, {spec.extent}, {spec.inner}) {x.dtype}")
    lanes = min(spec.unit.lanes(x.dtype), 1 << (typical(spec.inner).bit_length() - 1))
    step = x.strides[-1]
    if isinstance(step, Expression) or isinstance(spec.inner, Expression):
        lanes = 1
    with b.parallel(1):
        total = _count(b, condition, spec.count, spec.unit)
        b.store(total, count, 0)

        def copy(outer: Index, at: Index, number: IrValue) -> None:
            row = b.add(b.mul(total, b.index(outer)), number)
            start = Index.of(b.mul(row, b.index(spec.inner)))
            whole = spec.inner if lanes == 1 else spec.inner // lanes * lanes
            with b.serial(0, whole, lanes) as inner:
                value = b.load(x, (outer, at, inner), lanes, stride=step)
                b.store(value, y, start + inner)
            if lanes > 1:
                with b.serial(whole, spec.inner) as inner:
                    b.store(b.load(x, (outer, at, inner)), y, start + inner)

        def visit(at: Index, number: IrValue) -> list[IrValue]:
            is_kept = _is_kept(b, b.load(condition, at))
            with b.where(is_kept), b.serial(0, spec.outer) as outer:
                copy(outer, at, number)
            return [b.add(number, b.cast(is_kept, INT64.dtype))]

        _scan(b, condition, spec.count, spec.unit, visit)
    return b.finish()


def _is_kept(b: Builder, value: IrValue) -> IrValue:
    return value if value.type.dtype == "bool" else b.compare("ne", value, 0)


def _vectors(x: Buffer, entries: Size, unit: CpuModel) -> tuple[int, Size]:
    """Return the lanes of a vector, and the entries that whole ones have."""
    lanes = min(_MOST_LANES, unit.lanes(x.dtype))
    if x.strides[0] != 1:
        lanes = 1
    return lanes, entries // lanes * lanes


def _count(b: Builder, x: Buffer, entries: Size, unit: CpuModel) -> IrValue:
    """Append a count of what is kept."""
    lanes, whole = _vectors(x, entries, unit)

    def add(at: Index, *numbers: IrValue, width: int = 1) -> list[IrValue]:
        is_kept = _is_kept(b, b.load(x, at, width))
        return [b.add(numbers[0], b.cast(is_kept, INT64.dtype))]

    if lanes == 1:
        (total,) = b.loop(0, entries, [b.constant(0, INT64)], add)
        return total
    (several,) = b.loop(
        0,
        whole,
        [b.constant(0, Type(INT64.dtype, lanes))],
        lambda at, numbers: add(at, numbers, width=lanes),
        step=lanes,
    )
    (total,) = b.loop(whole, entries, [b.reduce("add", several)], add)
    return total


def _scan(
    b: Builder,
    x: Buffer,
    entries: Size,
    unit: CpuModel,
    visit: Callable[[Index, IrValue], list[IrValue]],
) -> None:
    """Append a walk in order that passes over vectors of which nothing is kept.

    Args:
        b: The kernel.
        x: What tells.
        entries: Of it.
        unit: What it is shaped for.
        visit: From an entry and the number of those that were kept to the next number.
    """
    lanes, whole = _vectors(x, entries, unit)

    def vector(first: Index, number: IrValue) -> list[IrValue]:
        is_kept = b.cast(_is_kept(b, b.load(x, first, lanes)), "int32")
        is_any = b.cast(b.reduce("or", is_kept), INT64.dtype)
        return b.loop(
            0,
            Index.of(is_any),
            [number],
            lambda _turn, same: b.loop(first, first + lanes, [same], visit),
        )

    number = [b.constant(0, INT64)]
    if lanes > 1:
        number = b.loop(0, whole, number, vector, step=lanes)
        b.loop(whole, entries, number, visit)
    else:
        b.loop(0, entries, number, visit)
