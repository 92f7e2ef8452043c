# SPDX-License-Identifier: Apache-2.0
"""Slice and Pad by parameters that come when a kernel runs: tables of the entries that are read.

Shapes are known when compiling; parameters that say others are a fault. A table has an entry for
each of a result's dimension; `remap` copies by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import INT64, Buffer, Function, Index, IrValue
from intarsia.codegen.scalar_ops.arithmetic import modulo


@dataclass(frozen=True, slots=True)
class SliceTables:
    """Where the entries of a `Slice` come from.

    Attributes:
        shape: Of what is sliced.
        result: Of the slice; without a 0.
        count: Dimensions that starts, ends, axes and steps are for.
        starts: Over (count,), as all that follow; int32 or int64.
        ends: Beyond the last entry.
        axes: None for the first dimensions.
        steps: None for 1.
    """

    shape: tuple[int, ...]
    result: tuple[int, ...]
    count: int
    starts: Layout
    ends: Layout
    axes: Layout | None = None
    steps: Layout | None = None


@dataclass(frozen=True, slots=True)
class PadTables:
    """Where the entries of a `Pad` come from; -1 for those of mode constant that are no copies.

    Attributes:
        shape: Of what is padded; without a 0 unless the mode is constant.
        result: Of the result; without a 0.
        count: Dimensions that pads are for.
        mode: ONNX's.
        pads: Over (2 * count,): what is added before each, then behind each; int32 or int64.
        axes: Over (count,); None for the first dimensions.
    """

    shape: tuple[int, ...]
    result: tuple[int, ...]
    count: int
    mode: str
    pads: Layout
    axes: Layout | None = None


SPECS = (SliceTables, PadTables)


def build(spec: SliceTables | PadTables) -> Function:
    """Return the kernel; its arguments are the layouts in order, the joined tables, fault."""
    return _slice(spec) if isinstance(spec, SliceTables) else _pad(spec)


def _slice(spec: SliceTables) -> Function:
    b = Builder("slice_tables")
    reader = _ParameterReader(b, spec)
    starts, ends = reader.argument("starts", spec.starts), reader.argument("ends", spec.ends)
    axes, steps = reader.argument("axes", spec.axes), reader.argument("steps", spec.steps)
    assert starts is not None
    assert ends is not None
    reader.declare_results()

    def cut(extent: int, at: int) -> tuple[IrValue, IrValue, IrValue]:
        """Return the first entry, the step and the length of what one item says."""
        # A step beyond the extent takes one entry, as does the extent and one more.
        step = b.constant(1, INT64) if steps is None else reader.number(steps, at)
        step = b.minimum(extent + 1, b.maximum(-extent - 1, step))
        is_back = b.compare("lt", step, 0)
        start, end = (_from_end(b, reader.number(item, at), extent) for item in (starts, ends))
        last = b.select(is_back, b.constant(extent - 1, INT64), extent)
        start = b.minimum(last, b.maximum(0, start))
        end = b.minimum(last, b.maximum(b.select(is_back, b.constant(-1, INT64), 0), end))
        size = b.select(is_back, b.unary("neg", step), step)
        way = b.select(is_back, b.sub(start, end), b.sub(end, start))
        size = b.maximum(1, size)  # of a step of 0, which is a fault
        length = b.maximum(0, b.div(b.add(way, b.sub(size, 1)), size))
        return start, step, b.select(b.compare("eq", step, 0), -1, length)

    with b.parallel(1):
        for dim, table in reader.each_table(axes):
            extent = spec.shape[dim]
            zero, one = b.constant(0, INT64), b.constant(1, INT64)
            whole = zero, one, b.constant(extent, INT64)
            start, step, length = reader.of_dim(axes, dim, whole, partial(cut, extent))
            reader.expect(length, spec.result[dim])
            reader.fill(dim, table, partial(_sliced, b, start, step, extent))
        reader.finish()
    return b.finish()


def _pad(spec: PadTables) -> Function:
    b = Builder("pad_tables")
    reader = _ParameterReader(b, spec)
    pads, axes = reader.argument("pads", spec.pads), reader.argument("axes", spec.axes)
    assert pads is not None
    reader.declare_results()

    def pair(at: int) -> tuple[IrValue, IrValue]:
        return reader.number(pads, at), reader.number(pads, at + spec.count)

    with b.parallel(1):
        for dim, table in reader.each_table(axes):
            extent, zero = spec.shape[dim], b.constant(0, INT64)
            limit = extent + spec.result[dim]  # what fits is less; so that no sum overflows
            before, after = (
                b.minimum(limit, b.maximum(-limit, number))
                for number in reader.of_dim(axes, dim, (zero, zero), pair)
            )
            reader.expect(b.add(b.add(before, after), extent), spec.result[dim])
            reader.fill(dim, table, partial(_padded, b, spec.mode, before, extent))
        reader.finish()
    return b.finish()


def _sliced(b: Builder, start: IrValue, step: IrValue, extent: int, at: IrValue) -> IrValue:
    """Return the entry that a slice takes to a place; one inside, also of what does not fit."""
    return b.minimum(extent - 1, b.maximum(0, b.add(start, b.mul(at, step))))


def _padded(b: Builder, mode: str, before: IrValue, extent: int, place: IrValue) -> IrValue:
    """Return the entry that a mode copies to a place."""
    at = b.sub(place, before)
    if mode == "constant":
        is_inside = b.binary("and", b.compare("ge", at, 0), b.compare("lt", at, extent))
        return b.select(is_inside, at, -1)
    if mode == "edge":
        return b.minimum(extent - 1, b.maximum(0, at))
    if mode == "wrap":
        return modulo(b, at, b.constant(extent, INT64))
    # Reflection does not repeat the edge: entries come back after 2 (extent - 1).
    period = max(1, 2 * (extent - 1))
    turned = modulo(b, at, b.constant(period, INT64))
    return b.select(b.compare("lt", turned, extent), turned, b.sub(period, turned))


def _from_end(b: Builder, number: IrValue, extent: int) -> IrValue:
    return b.select(b.compare("lt", number, 0), b.add(number, extent), number)


class _ParameterReader:
    """Reads parameters by dimension, and writes tables and whether something did not fit."""

    def __init__(self, b: Builder, spec: SliceTables | PadTables) -> None:
        self.b = b
        self.spec = spec

    def argument(self, name: str, layout: Layout | None) -> Buffer | None:
        """Declare the next parameter, if it is there."""
        count = self.spec.count * (2 if name == "pads" else 1)
        return None if layout is None else layout.declare(self.b, name, (count,))

    def declare_results(self) -> None:
        """Declare the tables, one behind the other, and the fault."""
        b, size = self.b, sum(self.spec.result)
        self._tables = b.argument("tables", INT64.dtype, (size,), is_written=True)
        self._fault = b.argument("fault", INT64.dtype, (1,), is_written=True)

    def number(self, buffer: Buffer, at: int) -> IrValue:
        """Return an item of a parameter."""
        return self.b.cast(self.b.load(buffer, Index(at)), INT64.dtype)

    def each_table(self, axes: Buffer | None) -> Iterator[tuple[int, int]]:
        """Give each dimension, and where its table begins."""
        b = self.b
        rank, fault = len(self.spec.shape), b.constant(0, INT64)
        if axes is not None:
            for at in range(self.spec.count):
                axis = self.number(axes, at)
                beyond = b.compare("ge", axis, rank)
                is_outside = b.binary("or", b.compare("lt", axis, -rank), beyond)
                fault = b.select(is_outside, 1, fault)
        self._problem = fault
        first = 0
        for dim, extent in enumerate(self.spec.result):
            yield dim, first
            first += extent

    def of_dim(
        self,
        axes: Buffer | None,
        dim: int,
        otherwise: tuple[IrValue, ...],
        read: Callable[[int], tuple[IrValue, ...]],
    ) -> tuple[IrValue, ...]:
        """Return what the parameters say of a dimension."""
        if axes is None:
            return read(dim) if dim < self.spec.count else otherwise
        b, values = self.b, otherwise
        for at in range(self.spec.count):
            axis = _from_end(b, self.number(axes, at), len(self.spec.shape))
            is_it = b.compare("eq", axis, dim)
            pairs = zip(read(at), values, strict=True)
            values = tuple(b.select(is_it, new, old) for new, old in pairs)
        return values

    def expect(self, value: IrValue, wanted: int) -> None:
        """Note a number that is not what the shapes say."""
        self._problem = self.b.select(self.b.compare("ne", value, wanted), 1, self._problem)

    def fill(self, dim: int, first: int, entry: Callable[[IrValue], IrValue]) -> None:
        """Write a table."""
        with self.b.serial(0, self.spec.result[dim]) as number:
            self.b.store(entry(self.b.index(number)), self._tables, first + number)

    def finish(self) -> None:
        """Write whether something did not fit."""
        self.b.store(self._problem, self._fault, 0)
