# SPDX-License-Identifier: Apache-2.0
"""Operators on whole rows: softmax and its kin, and normalisations.

A row is what lies along some dimensions of the domain. Vectors go along it where it is contiguous,
and a short row stays in registers; otherwise they go along the last other dimension, and many rows
are computed side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from intarsia.codegen import maths
from intarsia.codegen.body import NOTHING, Fused, Layout, load_lanes, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue, Type
from intarsia.codegen.kernels.domain import (
    Domain,
    SumOrder,
    entries_of,
    plan_axes,
    simplify,
    turns,
    walk,
)
from intarsia.codegen.kernels.lane_transpose import lane_numbers
from intarsia.codegen.kernels.reduce_kinds import fold, merge
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Expression, Size, most, typical

_SLOTS = 4
"""Accumulators side by side: an addition is ready after 4 cycles, and one chain would wait for
it."""
# Entries of a turn of the parallel loop, about: half of a reduction's, as each takes several
# passes.
_BUDGET = 1 << 13
_ROWS_AHEAD = 4
"""How far ahead rows are fetched that stay in registers. Without it a softmax of 4608 rows of 384,
which lie in memory, took 1.03 to 1.25 times as long as in ONNX Runtime on Cascade Lake; with it as
long."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One kernel.

    Its arguments are x, scale and bias if there are any, y, the mean and the inverse standard
    deviation if they are wanted, then the operands of the epilogue, those of the prologue, and the
    prologue's result if it is wanted.

    Attributes:
        domain: The extents of x and y.
        axes: The dimensions of a row; not negative.
        kind: `Softmax`, `LogSoftmax`, `Hardmax`, `Normalize` (to mean 0 and deviation 1) or
            `RmsNormalize` (by the root of the mean square).
        x: Over the domain.
        y: Over the domain.
        scale: Over the domain, of normalisations; 0 where it is broadcast.
        bias: Likewise.
        epsilon: Added to the variance, or to the mean square.
        mean: Over the other dimensions, in their order.
        inverse: Likewise, the inverse standard deviation.
        adds_to_deviation: Whether epsilon is added to the deviation instead, as
            MeanVarianceNormalization does.
        epilogue: What is done to an entry of y first.
        prologue: What is done to an entry of x first; it yields x's dtype.
        made: What the prologue yields, over the domain.
        unit: What the vectors are for.
        order: In which order entries are combined, as in the program for all sizes; its loops are
            over the numbers of `axes`. None leaves it to the sizes.
    """

    domain: tuple[Size, ...]
    axes: tuple[int, ...]
    kind: str
    x: Layout
    y: Layout
    scale: Layout | None = None
    bias: Layout | None = None
    epsilon: float = 1e-5
    mean: Layout | None = None
    inverse: Layout | None = None
    adds_to_deviation: bool = False
    epilogue: Fused = NOTHING
    prologue: Fused = NOTHING
    made: Layout | None = None
    unit: CpuModel = AVX512
    order: SumOrder | None = None


@dataclass(frozen=True, slots=True)
class RowVector:
    """A vector of a row, or of several rows side by side.

    Attributes:
        number: Of the vector in its row, where rows are in registers.
        at: Its subscripts.
        count: Lanes that count.
        offset: Where in its row it lies, along the last dimension of the row.
        is_spread: Whether it is one entry, which stands in every lane.
    """

    number: int
    at: tuple[Index, ...]
    count: int
    offset: Index
    is_spread: bool = False


Step: TypeAlias = Callable[[RowVector, tuple[IrValue, ...]], Sequence[IrValue]]


SPECS = (Rows,)


def build(spec: Rows) -> Function:
    """Return the kernel."""
    return RowsKernel(Builder("rows"), spec).build()


def sum_order(spec: Rows) -> SumOrder:
    """Return in which order the entries of a row are combined."""
    _, gone, is_across = row_domains(spec)
    return SumOrder(is_across, gone.merged)


def row_domains(spec: Rows) -> tuple[Domain, Domain, bool]:
    """Return how the box is walked.

    Returns:
        The rows, what lies along one, and whether vectors go along the last dimension of the rows.
    """
    layouts = [spec.x, spec.y, *(item for item in (spec.scale, spec.bias) if item)]
    layouts += (*spec.epilogue.operands, *spec.prologue.operands)
    layouts += [spec.made] if spec.made else []

    def part(dims: Sequence[int]) -> tuple[list[Size], list[tuple[Size, ...]], list[int]]:
        strides = [tuple(layout.strides[dim] for dim in dims) for layout in layouts]
        order = sorted(range(len(dims)), key=lambda i: (-typical(strides[0][i]), i))
        return [spec.domain[dim] for dim in dims], strides, order

    extents, strides, order = part([d for d in range(len(spec.domain)) if d not in spec.axes])
    strides += [item.strides for item in (spec.mean, spec.inverse) if item]
    kept = simplify(extents, strides, order)
    extents, strides, order = part(spec.axes)
    if spec.order is not None and (arranged := spec.order.arrange(extents, strides)) is not None:
        return kept, arranged, spec.order.is_across
    gone = simplify(extents, strides, order)
    along = gone.strides[0][-1] == 1 or gone.extents[-1] == 1
    across = kept.strides[0][-1] == 1 and kept.extents[-1] != 1
    return kept, gone, across and not along


class RowsKernel:
    """Makes one kernel, whose turns each have some rows.

    Args:
        builder: Of the kernel.
        spec: What it computes.
    """

    keeps_in_memory = True
    """Whether one pass over a row leaves in y, or in `made`, what the next one reads there."""

    def __init__(self, builder: Builder, spec: Rows) -> None:
        self._b = builder
        self._spec = spec
        self._kept, self._gone, self._is_across = row_domains(spec)
        self._declare()
        self._dtype = spec.x.dtype
        lanes = spec.unit.lanes(self._dtype)
        length = self._gone.extents[-1]
        # Lanes beyond a short row change no sum; but no typical row may have fewer than a longer
        # one.
        extent = typical(self._kept.extents[-1]) if self._is_across else most(length, lanes)
        self._lanes = min(lanes, 1 << max(0, extent - 1).bit_length())
        # The other half is for accumulators and for what an exponential needs.
        limit = spec.unit.registers // 2 * self._lanes
        is_short = isinstance(length, int) and length <= limit
        self._is_resident = not self._is_across and len(self._gone.extents) == 1 and is_short
        self._held: dict[int, IrValue] = {}
        self._is_made = False  # whether a pass over the row has stored what the prologue yields

    def _join(self, kept: Sequence[int], gone: Sequence[int]) -> tuple[int, ...]:
        """Return subscripts, extents or strides with the dimension of the vectors last."""
        return (*gone, *kept) if self._is_across else (*kept, *gone)

    def _declare(self) -> None:
        spec, b = self._spec, self._b
        extents = self._join(self._kept.extents, self._gone.extents)
        lying = [
            self._join(kept, gone)
            for kept, gone in zip(self._kept.strides, self._gone.strides, strict=False)
        ]
        following = iter(lying[2:])

        def declare(layout: Layout | None, name: str) -> Buffer | None:
            if layout is None:
                return None
            return replace(layout, strides=next(following)).declare(b, name, extents)

        self._x = replace(spec.x, strides=lying[0]).declare(b, "x", extents)
        self._scale, self._bias = declare(spec.scale, "scale"), declare(spec.bias, "bias")
        self._y = replace(spec.y, strides=lying[1]).declare(b, "y", extents, is_written=True)
        statistics = iter(self._kept.strides[len(lying) :])
        self._statistics: list[Buffer | None] = []
        for layout, name in ((spec.mean, "mean"), (spec.inverse, "inverse")):
            buffer = None
            if layout is not None:
                placed = replace(layout, strides=next(statistics))
                buffer = placed.declare(b, name, self._kept.extents, is_written=True)
            self._statistics.append(buffer)
        operands = [replace(layout, strides=next(following)) for layout in spec.epilogue.operands]
        self._epilogue = spec.epilogue.over(operands).bind(b, extents)
        operands = [replace(layout, strides=next(following)) for layout in spec.prologue.operands]
        self._prologue = spec.prologue.over(operands).bind(b, extents, "p")
        self._made = self._y if spec.y.dtype == spec.x.dtype else None
        if spec.made is not None:
            placed = replace(spec.made, strides=next(following))
            self._made = placed.declare(b, "made", extents, is_written=True)

    def build(self) -> Function:
        """Append the loops over rows."""
        b, extents = self._b, self._kept.extents
        if 0 in self._spec.domain:
            return b.finish_empty()
        last = len(extents) - 1
        grains = {last: self._lanes} if self._is_across else {}
        budget = max(1, _BUDGET // typical(prod(self._gone.extents)))
        axes = plan_axes([entries_of(e) for e in extents], range(last + 1), grains, budget)

        def cell(at: dict[int, Index], counts: dict[int, int]) -> None:
            self._held, self._is_made = {}, False
            self._row([at[dim] for dim in range(last + 1)], counts[last])

        with b.parallel(turns(axes)) as turn:
            walk(b, axes, turn, cell)
        return b.finish()

    def fetch_ahead(self, place: list[Index]) -> None:
        """Ask for a row that comes later."""
        ahead = [*place[:-1], place[-1] + _ROWS_AHEAD]
        for start in range(0, self._gone.extents[-1], 64 // self._x.item_bytes):
            self._b.prefetch(self._x, (*ahead, Index(start)))

    def _row(self, place: list[Index], count: int) -> None:
        if self._is_resident:
            self.fetch_ahead(place)
        match self._spec.kind:
            case "Softmax":
                self._softmax(place, count)
            case "LogSoftmax":
                self._log_softmax(place, count)
            case "Hardmax":
                self._hardmax(place, count)
            case _:
                self._normalize(place, count)

    # Softmax and its kin

    def _softmax(self, place: list[Index], count: int) -> None:
        b = self._b
        # Shifted by the maximum, no exponential overflows and their sum is at least 1 (Blanchard,
        # Higham and Higham, "Accurately computing the log-sum-exp and softmax functions", IMA
        # Journal of Numerical Analysis 41(4), 2021).
        peak = self._peak(place, count)
        risen: dict[int, IrValue] = {}
        # A result of another dtype cannot hold them until the sum is known.
        # Meanwhile; else it is computed twice.
        is_stored = self.keeps_in_memory and self._y.dtype == self._dtype

        def risen_to(entry: RowVector) -> IrValue:
            return maths.exp_nonpositive(b, b.sub(self._load(entry), peak))

        def rise(entry: RowVector, total: tuple[IrValue, ...]) -> list[IrValue]:
            value = risen_to(entry)
            if self._is_resident:
                risen[entry.number] = value
            elif is_stored:
                self.put(value, self._y, entry)
            return [b.add(total[0], value)]

        # One division for each row: products with the reciprocal are off by up to 1.5 units in the
        # last place, not half a unit.
        part = self._spread(b.div(1.0, self._reduce(place, count, 0.0, rise, b.add)))

        def write(entry: RowVector, carried: tuple[IrValue, ...]) -> list[IrValue]:
            if self._is_resident:
                value = risen[entry.number]
            elif not is_stored:
                value = risen_to(entry)
            else:
                value = load_lanes(b, self._y, entry.at, self._lanes, entry.count)
            self._store(b.mul(value, part), entry)
            return []

        self.visit(place, count, [], write)

    def _log_softmax(self, place: list[Index], count: int) -> None:
        b = self._b
        peak = self._peak(place, count)

        def rise(entry: RowVector, total: tuple[IrValue, ...]) -> list[IrValue]:
            return [b.add(total[0], maths.exp_nonpositive(b, b.sub(self._load(entry), peak)))]

        size = self._spread(maths.log(b, self._reduce(place, count, 0.0, rise, b.add)))

        def write(entry: RowVector, carried: tuple[IrValue, ...]) -> list[IrValue]:
            self._store(b.sub(b.sub(self._load(entry), peak), size), entry)
            return []

        self.visit(place, count, [], write)

    def _hardmax(self, place: list[Index], count: int) -> None:
        """Write 1 where the first of the largest entries is, and 0 elsewhere."""
        b, end = self._b, prod(self._gone.extents)
        peak = self._peak(place, count)

        def find(entry: RowVector, first: tuple[IrValue, ...]) -> list[IrValue]:
            is_peak = b.compare("eq", self._load(entry), peak)
            return [b.minimum(b.select(is_peak, self._numbers(entry), first[0]), first[0])]

        first = self._spread(self._reduce(place, count, end, find, b.minimum, "int32"))

        def write(entry: RowVector, carried: tuple[IrValue, ...]) -> list[IrValue]:
            is_first = b.compare("eq", self._numbers(entry), first)
            one = b.constant(1.0, Type(self._dtype, self._lanes))
            self._store(b.select(is_first, one, 0.0), entry)
            return []

        self.visit(place, count, [], write)

    def _peak(self, place: list[Index], count: int) -> IrValue:
        """Return the largest entry; a NaN makes what comes of the row NaN anyway."""

        def rise(entry: RowVector, peak: tuple[IrValue, ...]) -> list[IrValue]:
            return [self._b.maximum(self._load(entry), peak[0])]

        largest = self._reduce(place, count, float("-inf"), rise, self._b.maximum)
        return self._spread(largest)

    def _numbers(self, entry: RowVector) -> IrValue:
        """Return where in their rows the lanes of an entry lie."""
        b = self._b
        first = b.splat(b.cast(b.index(entry.offset), "int32"), self._lanes)
        if self._is_across or entry.is_spread:
            return first
        return b.add(first, lane_numbers(b, first.type))

    # Normalisations

    def _normalize(self, place: list[Index], count: int) -> None:
        b, spec, length = self._b, self._spec, prod(self._gone.extents)
        first = mean = None
        if spec.kind == "Normalize":
            (total,) = self._sums(place, count, self._add, 1)
            first = b.mul(total, 1.0 / length)
            mean = self._spread(first)

        # Two passes: the mean of squares less the square of the mean cancels where the mean is
        # large (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", The
        # American Statistician 37(3), 1983). The second one finds the row in registers or in a
        # cache. It also finds by how much the mean was rounded (their corrected algorithm).
        def square(entry: RowVector, totals: tuple[IrValue, ...]) -> list[IrValue]:
            value = self._centred(entry, mean)
            rest = [] if mean is None else [b.add(totals[1], value)]
            return [b.fma(value, value, totals[0]), *rest]

        sums = self._sums(place, count, square, 1 if mean is None else 2)
        variance, *rests = (b.mul(total, 1.0 / length) for total in sums)
        for rest in rests:
            variance = b.maximum(0.0, b.sub(variance, b.mul(rest, rest)))
        if spec.adds_to_deviation:
            deviation = b.add(b.unary("sqrt", variance), spec.epsilon)
        else:
            deviation = b.unary("sqrt", b.add(variance, spec.epsilon))
        inverse = b.div(1.0, deviation)
        self.write_statistic(1, inverse, place, count)
        factor = self._spread(inverse)
        moved = [self._spread(b.mul(b.unary("neg", rest), inverse)) for rest in rests]
        if first is not None:
            self.write_statistic(0, b.add(first, rests[0]), place, count)

        def write(entry: RowVector, carried: tuple[IrValue, ...]) -> list[IrValue]:
            value = self._centred(entry, mean)
            value = b.fma(value, factor, moved[0]) if moved else b.mul(value, factor)
            self._store(self._scaled(value, entry), entry)
            return []

        self.visit(place, count, [], write)

    def _add(self, entry: RowVector, total: tuple[IrValue, ...]) -> list[IrValue]:
        return [self._b.add(total[0], self._load(entry))]

    def _centred(self, entry: RowVector, mean: IrValue | None) -> IrValue:
        value = self._load(entry)
        return value if mean is None else self._b.sub(value, mean)

    def _scaled(self, value: IrValue, entry: RowVector) -> IrValue:
        b = self._b
        scale, bias = self._operand(self._scale, entry), self._operand(self._bias, entry)
        if scale is not None and bias is not None:
            return b.fma(value, scale, bias)
        if scale is not None:
            return b.mul(value, scale)
        return value if bias is None else b.add(value, bias)

    def _operand(self, buffer: Buffer | None, entry: RowVector) -> IrValue | None:
        if buffer is None:
            return None
        return load_lanes(self._b, buffer, entry.at, self._lanes, entry.count)

    def write_statistic(self, number: int, value: IrValue, place: list[Index], count: int) -> None:
        """Write a mean or an inverse deviation, if it is wanted."""
        buffer = self._statistics[number]
        if buffer is not None:
            store_lanes(self._b, value, buffer, place, count if self._is_across else 1)

    # What all share

    def _load(self, entry: RowVector) -> IrValue:
        if entry.number in self._held:
            return self._held[entry.number]
        b, lanes, spec = self._b, self._lanes, self._spec
        if self._is_made and self._made is not None:
            return self._read(self._made, entry)
        value = self._read(self._x, entry)
        if spec.prologue.body.steps:
            value = self._prologue(value, entry.at, entry.count)
            # y has room for it until its own entries come.
            is_wanted = spec.made or (self.keeps_in_memory and not self._is_resident)
            if self._made is not None and is_wanted:
                self.put(value, self._made, entry)
            if entry.is_spread:
                value = b.splat(b.extract(value, 0), lanes)
        if self._is_resident:
            self._held[entry.number] = value
        return value

    def _read(self, buffer: Buffer, entry: RowVector) -> IrValue:
        if entry.is_spread:
            return self._spread(self._b.load(buffer, entry.at))
        return load_lanes(self._b, buffer, entry.at, self._lanes, entry.count)

    def _store(self, value: IrValue, entry: RowVector) -> None:
        self.put(self._epilogue(value, entry.at, entry.count), self._y, entry)

    def put(self, value: IrValue, buffer: Buffer, entry: RowVector) -> None:
        """Write an entry."""
        store_lanes(self._b, value, buffer, entry.at, entry.count)

    def _spread(self, value: IrValue) -> IrValue:
        return self._b.splat(value, self._lanes)

    def _sums(self, place: list[Index], count: int, step: Step, number: int) -> list[IrValue]:
        """Return so many sums over all entries of a row, as `_reduce` does."""
        b = self._b
        slots = self.visit(
            place, count, [b.constant(0.0, Type(self._dtype, self._lanes))] * number, step
        )
        wholes = [merge(slots[start::number], b.add) for start in range(number)]
        if self._is_across:
            return wholes
        return self.joined([fold(b, whole, Builder.add) for whole in wholes], b.add)

    def _reduce(
        self,
        place: list[Index],
        count: int,
        neutral: float,
        step: Step,
        combine: Callable[[IrValue, IrValue], IrValue],
        dtype: str | None = None,
    ) -> IrValue:
        """Return what a step makes of all entries of a row; a scalar where vectors go along it."""
        type_ = Type(dtype or self._dtype, self._lanes)
        slots = self.visit(place, count, [self._b.constant(neutral, type_)], step)
        whole = merge(slots, combine)
        if self._is_across:
            return whole
        folded = fold(self._b, whole, lambda b, left, right: combine(left, right))
        return self.joined([folded], combine)[0]

    def joined(
        self, values: list[IrValue], combine: Callable[[IrValue, IrValue], IrValue]
    ) -> list[IrValue]:
        """Return what the parts of a row come to; here one has all of it."""
        return values

    def visit(  # noqa: C901, PLR0915 - a case for each way in which a row is cut
        self, place: list[Index], count: int, initial: list[IrValue], step: Step
    ) -> list[IrValue]:
        """Append a step for every vector of a row; returns what each slot carries at last."""
        extents = self._gone.extents
        grain = 1 if self._is_across else self._lanes
        length = extents[-1]
        cells = length // grain
        # Entries go to slots in turn, whatever their number is: those of a short row, which has
        # fewer, are sums that would be zero. So the order of a sum follows from the row alone.
        slots = (
            _SLOTS if isinstance(length, Expression) else max(1, min(_SLOTS, -(-length // grain)))
        )
        carried = initial * slots
        size = len(initial)

        def visit(
            slot: int, point: list[Index], number: int, lanes: int, values: list[IrValue]
        ) -> None:
            part = slice(slot * size, (slot + 1) * size)
            at = self._join(place, point)  # type: ignore[arg-type] # subscripts, not numbers
            before = tuple(values[part])
            after = step(RowVector(number, at, lanes, point[-1]), before)  # type: ignore[arg-type]
            is_cut = not self._is_across and lanes < self._lanes
            values[part] = [
                self._only(new, old, lanes) if is_cut else new
                for new, old in zip(after, before, strict=True)
            ]

        def level(dim: int, point: list[Index], values: Sequence[IrValue]) -> list[IrValue]:
            if dim < len(extents) - 1:
                return self._b.loop(
                    0, extents[dim], values, lambda i, *inner: level(dim + 1, [*point, i], inner)
                )
            if self._is_resident:
                return vectors(point, 0, list(values))
            whole = cells // slots * slots * grain

            def turn(index: Index, *inner: IrValue) -> list[IrValue]:
                out = list(inner)
                for slot in range(slots):
                    visit(slot, [*point, index + slot * grain], -1, count_of(0), out)
                return out

            out = self._b.loop(0, whole, values, turn, step=grain * slots)
            if isinstance(whole, Expression):
                return free_rest(point, whole, out)
            return vectors(point, whole, out)

        def count_of(start: int) -> int:
            if self._is_across:
                return count
            return grain if isinstance(length, Expression) else min(grain, length - start)

        def free_rest(point: list[Index], first: Size, values: list[IrValue]) -> list[IrValue]:
            """Go on slot by slot; the next one comes first, which changes no sum of all."""

            def turned(values: Sequence[IrValue]) -> list[IrValue]:
                return [*values[size:], *values[:size]]

            def one(index: Index, *inner: IrValue) -> list[IrValue]:
                out = list(inner)
                visit(0, [*point, index], -1, count_of(0), out)
                return turned(out)

            def lane(index: Index, *inner: IrValue) -> list[IrValue]:
                at = self._join(place, [*point, index])  # type: ignore[arg-type, list-item]
                before = inner[:size]
                after = step(RowVector(-1, at, 1, index, is_spread=True), before)  # type: ignore[arg-type]
                if not after:
                    return list(inner)
                number = self._b.splat(self._b.cast(self._b.index(index - full), "int32"), grain)
                is_own = self._b.compare("eq", lane_numbers(self._b, number.type), number)
                own = [
                    self._b.select(is_own, new, old) for new, old in zip(after, before, strict=True)
                ]
                return [*own, *inner[size:]]

            full = cells * grain
            values = self._b.loop(first, full, values, one, step=grain)
            if not self._is_across and grain != 1:
                values = self._b.loop(full, length, values, lane)
            if len(extents) > 1:
                back = -cells % slots
                values = self._b.loop(0, back, values, lambda _, *inner: turned(inner))
            return values

        def vectors(point: list[Index], first: int, values: list[IrValue]) -> list[IrValue]:
            for number, start in enumerate(range(first, extents[-1], grain)):
                register = number if self._is_resident else -1
                visit(number % slots, [*point, Index(start)], register, count_of(start), values)
            return values

        results = level(0, [], carried)
        has_prologue = bool(self._spec.prologue.body.steps)
        self._is_made = has_prologue and self.keeps_in_memory and not self._is_resident
        return results

    def _only(self, new: IrValue, old: IrValue, count: int) -> IrValue:
        lanes = range(self._lanes)
        mask = [lane if lane < count else self._lanes + lane for lane in lanes]
        return self._b.shuffle(new, old, mask)
