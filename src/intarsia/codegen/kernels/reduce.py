# SPDX-License-Identifier: Apache-2.0
"""Reductions over any dimensions: sums, means, extrema, norms, and where an extremum is.

Vectors go along the last kept dimension where the input is contiguous along it; otherwise along the
last reduced one, and are folded at the end. Several accumulators run side by side. NaN propagates
as in numpy, and an empty reduction gives the neutral element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from intarsia.codegen import maths
from intarsia.codegen.body import NOTHING, Fused, Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function, Index, IrValue, Type
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
from intarsia.codegen.kernels.reduce_kinds import KINDS, ReductionKind, fold, highest, lowest, merge
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Expression, Size, most, typical

_ACCUMULATORS = 4
"""Side by side: an addition is ready after 4 cycles, and one chain would wait for it."""
_BUDGET = 1 << 14
"""Entries that a turn of the parallel loop reads, about."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """One kernel; its arguments are x, y, then the operands of the epilogue.

    Attributes:
        domain: The extents of x.
        axes: The dimensions that go; not negative.
        kind: `Sum`, `Mean`, `Max`, `Min`, `Prod`, `L1`, `L2`, `LogSum`, `LogSumExp`, `SumSquare`,
            `ArgMax` or `ArgMin` (these over one dimension, and to int64).
        x: Over the domain.
        y: Over the kept dimensions, in their order.
        epilogue: What is done to a result; its operands lie over the kept dimensions.
        select_last: Whether `ArgMax` and `ArgMin` take the last of equal ones.
        unit: What the vectors are for.
        order: In which order entries are combined, as in the program for all sizes; its loops are
            over the numbers of `axes`. None leaves it to the sizes.
    """

    domain: tuple[Size, ...]
    axes: tuple[int, ...]
    kind: str
    x: Layout
    y: Layout
    epilogue: Fused = NOTHING
    select_last: bool = False
    unit: CpuModel = AVX512
    order: SumOrder | None = None


SPECS = (Reduction,)


def build(spec: Reduction) -> Function:
    """Return the kernel."""
    return ReductionKernel(Builder("reduce"), spec).build()


class ReductionKernel:
    """Makes one kernel, whose turns each have some results.

    Args:
        builder: Of the kernel.
        spec: What it computes.
    """

    def __init__(self, builder: Builder, spec: Reduction) -> None:
        self._b = builder
        self._spec = spec
        self._kept, self._gone, self._is_across = reduction_domains(spec)
        strides = (*self._kept.strides[0], *self._gone.strides[0])
        extents = (*self._kept.extents, *self._gone.extents)
        self._x = replace(spec.x, strides=strides).declare(builder, "x", extents)
        lying = replace(spec.y, strides=self._kept.strides[1])
        self._y = lying.declare(builder, "y", self._kept.extents, is_written=True)
        pairs = zip(spec.epilogue.operands, self._kept.strides[2:], strict=True)
        epilogue = spec.epilogue.over(replace(layout, strides=steps) for layout, steps in pairs)
        self._epilogue = epilogue.bind(builder, self._kept.extents)
        self._dtype = spec.x.dtype
        self._lanes = self._pick_lanes()

    def _pick_lanes(self) -> int:
        unit = self._spec.unit
        lanes = unit.lanes(self._dtype)
        # Places are int32 while it runs: half the registers of int64.
        if self._spec.kind.startswith("Arg"):
            lanes = min(lanes, unit.lanes("int32"))
        # Lanes beyond a short extent change no sum; but no typical one may have fewer than a longer
        # one.
        gone = self._gone.extents[-1]
        extent = typical(self._kept.extents[-1]) if self._is_across else most(gone, lanes)
        return min(lanes, 1 << max(0, extent - 1).bit_length())

    def build(self) -> Function:
        """Append the loops over the kept dimensions."""
        b, extents = self._b, self._kept.extents
        if 0 in extents:
            return b.finish_empty()
        last = len(extents) - 1
        vectors = -(-typical(extents[last]) // self._lanes)
        width = min(_ACCUMULATORS, vectors) if self._is_across else 1
        grains = {last: self._lanes * width} if self._is_across else {}
        budget = max(1, _BUDGET // max(1, typical(prod(self._gone.extents))))
        axes = plan_axes([entries_of(e) for e in extents], range(last + 1), grains, budget)

        def cell(at: dict[int, Index], counts: dict[int, int]) -> None:
            place = [at[dim] for dim in range(last + 1)]
            if self._is_across:
                self._across(place, counts[last])
            else:
                self._store(self._along(place), place, 1)

        with b.parallel(turns(axes)) as turn:
            walk(b, axes, turn, cell)
        return b.finish()

    def _store(self, result: IrValue, place: list[Index], count: int) -> None:
        value = self._epilogue(result, place, count)
        step = self._y.strides[-1] or 1
        self._b.store(value, self._y, place, stride=step, count=count)

    # Vectors along the last kept dimension

    def _across(self, place: list[Index], length: int) -> None:
        """Reduce some vectors of results side by side."""
        counts = [min(self._lanes, length - s) for s in range(0, length, self._lanes)]
        places = [[*place[:-1], place[-1] + number * self._lanes] for number in range(len(counts))]

        def read(point: list[Index], number: int) -> IrValue:
            return self._load((*places[number], *point), 1, counts[number])

        results = self._reduce_lanes(read, len(counts))
        for result, here, count in zip(results, places, counts, strict=True):
            self._store(result, here, count)

    def _reduce_lanes(
        self, read: Callable[[list[Index], int], IrValue], width: int
    ) -> list[IrValue]:
        """Return the results of `width` vectors, each lane its own reduction."""
        spec = self._spec
        type_ = Type(self._dtype, self._lanes)
        count = prod(self._gone.extents)
        if spec.kind.startswith("Arg"):
            best = self._b.constant(self._worst(), type_)
            where = self._b.constant(0, Type("int32", self._lanes))

            def step(point: list[Index], *carried: IrValue) -> list[IrValue]:
                number = self._b.splat(self._number(point[-1]), self._lanes)
                out = list(carried)
                for u in range(width):
                    value, index = out[2 * u : 2 * u + 2]
                    out[2 * u : 2 * u + 2] = self._better(read(point, u), number, value, index)
                return out

            extrema = self._nest(step, [best, where] * width)
            return [self._b.cast(index, "int64") for index in extrema[1::2]]
        if spec.kind != "LogSumExp":
            kind = KINDS[spec.kind]
            extrema = self._lane_pass(kind, read, width)
            return [kind.finish(self._b, value, count) for value in extrema]
        # Shifted by the maximum, as in `rows`: no exponential overflows.
        peaks = [self._finite(peak) for peak in self._lane_pass(KINDS["Max"], read, width)]

        def risen(point: list[Index], number: int) -> IrValue:
            return maths.exp(self._b, self._b.sub(read(point, number), peaks[number]))

        totals = self._lane_pass(KINDS["Sum"], risen, width)
        return [
            self._b.add(maths.log(self._b, total), peak)
            for total, peak in zip(totals, peaks, strict=True)
        ]

    def _lane_pass(
        self, kind: ReductionKind, read: Callable[[list[Index], int], IrValue], width: int
    ) -> list[IrValue]:
        neutral = self._b.constant(kind.neutral(self._dtype), Type(self._dtype, self._lanes))

        def step(point: list[Index], *carried: IrValue) -> list[IrValue]:
            return [kind.join(self._b, total, read(point, u)) for u, total in enumerate(carried)]

        return self._nest(step, [neutral] * width)

    # Vectors along the last reduced dimension

    def _along(self, place: list[Index]) -> IrValue:
        """Reduce to one result."""
        spec, b = self._spec, self._b
        if spec.kind.startswith("Arg"):
            return self.argument(place)
        count = prod(self._gone.extents)
        if spec.kind != "LogSumExp":
            kind = KINDS[spec.kind]
            return kind.finish(b, self.along_pass(kind, place, lambda value: value), count)
        peak = self._finite(self.along_pass(KINDS["Max"], place, lambda value: value))
        total = self.along_pass(KINDS["Sum"], place, lambda v: maths.exp(b, b.sub(v, peak)))
        return b.add(maths.log(b, total), peak)

    def along_pass(
        self, kind: ReductionKind, place: list[Index], change: Callable[[IrValue], IrValue]
    ) -> IrValue:
        """Return what a kind of reduction makes of all changed entries of a result."""
        neutral = kind.neutral(self._dtype)
        lanes, length = self._lanes, self._gone.extents[-1]
        # Vectors go to accumulators in turn, whatever their number is: those that a short extent
        # does without would stay neutral. So the order of a sum follows from its length alone.
        is_free = isinstance(length, Expression)
        width = _ACCUMULATORS if is_free else max(1, min(_ACCUMULATORS, -(-length // lanes)))

        def joined(point: list[Index], count: int, total: IrValue, offset: int) -> IrValue:
            at = (*place, *point[:-1], point[-1] + offset)
            value = change(self._load(at, 0, count))
            if count == lanes:
                return kind.join(self._b, total, value)
            # What is not read counts as 0, which is neutral for sums only.
            mixed = kind.join(self._b, total, value)  # of the lanes that are read only
            mask = [lane if lane < count else lanes + lane for lane in range(lanes)]
            return self._b.shuffle(mixed, total, mask)

        def step(point: list[Index], *carried: IrValue) -> list[IrValue]:
            return [joined(point, lanes, total, u * lanes) for u, total in enumerate(carried)]

        def rest(point: list[Index], *carried: IrValue) -> list[IrValue]:
            out = list(carried)
            for u, start in enumerate(
                range(length // (width * lanes) * width * lanes, length, lanes)
            ):
                count = min(lanes, length - start)
                out[u % width] = joined([*point[:-1], Index(start)], count, out[u % width], 0)
            return out

        def free_rest(point: list[Index], *carried: IrValue) -> list[IrValue]:
            """Go on accumulator by accumulator; the next one comes first."""
            b, begin, full = (
                self._b,
                length // (width * lanes) * width * lanes,
                length // lanes * lanes,
            )

            def turned(index: Index, *inner: IrValue) -> list[IrValue]:
                return [*inner[1:], inner[0]]

            def vector(index: Index, *inner: IrValue) -> list[IrValue]:
                after = joined([*point[:-1], index], lanes, inner[0], 0)
                return turned(index, after, *inner[1:])

            def entry(index: Index, *inner: IrValue) -> list[IrValue]:
                item = b.splat(b.load(self._x, (*place, *point[:-1], index)), lanes)
                after = kind.join(b, inner[0], change(item))
                lane = b.splat(b.cast(b.index(index - full), "int32"), lanes)
                is_own = b.compare("eq", lane_numbers(b, lane.type), lane)
                return [b.select(is_own, after, inner[0]), *inner[1:]]

            values = b.loop(begin, full, carried, vector, step=lanes)
            if lanes > 1:
                values = b.loop(full, length, values, entry)
            if len(self._gone.extents) > 1:
                values = b.loop(0, -(length // lanes) % width, values, turned)
            return values

        first = self._b.constant(neutral, Type(self._dtype, lanes))
        totals = self._nest(step, [first] * width, width * lanes, free_rest if is_free else rest)
        whole = merge(totals, lambda left, right: kind.combine(self._b, left, right))
        return fold(self._b, whole, kind.combine)

    def argument(self, place: list[Index]) -> IrValue:
        """Return where the extremum is: the best of each lane, then of the lanes."""
        b, lanes, length = self._b, self._lanes, self._gone.extents[-1]
        whole = length // lanes * lanes
        # Lanes keep where their own vectors began; a lane's number is added once, at the end.
        best = b.constant(self._worst(), Type(self._dtype, lanes))
        where = b.constant(0, Type("int32", lanes))

        def step(point: list[Index], *carried: IrValue) -> list[IrValue]:
            number = b.splat(self._number(point[-1]), lanes)
            return self._better(self._load((*place, *point), 0, lanes), number, *carried)

        def nothing(point: list[Index], *carried: IrValue) -> list[IrValue]:
            return list(carried)

        best, where = self._nest(step, [best, where], lanes, nothing)
        value, index = self._lane(best, where, 0)
        for lane in range(1, lanes):
            value, index = self._first_of(self._lane(best, where, lane), (value, index))
        for entry in range(whole, length):
            at = (*place, *[Index(0)] * (len(self._gone.extents) - 1), Index(entry))
            number = b.constant(entry, Type("int32"))
            value, index = self._better(self._b.load(self._x, at), number, value, index)
        return b.cast(index, "int64")

    def _lane(self, best: IrValue, where: IrValue, lane: int) -> tuple[IrValue, IrValue]:
        b = self._b
        if best.type.lanes == 1:
            return best, where
        return b.extract(best, lane), b.add(b.extract(where, lane), lane)

    def _first_of(
        self, new: tuple[IrValue, IrValue], old: tuple[IrValue, IrValue]
    ) -> tuple[IrValue, IrValue]:
        """Return the better one; of equal ones the first, or the last."""
        b = self._b
        value, index = self._better(*new, *old)
        both = b.compare("eq", new[0], old[0])
        if new[0].type.is_float:
            both_nan = b.binary("and", b.unary("isnan", new[0]), b.unary("isnan", old[0]))
            both = b.binary("or", both, both_nan)
        name = "max" if self._spec.select_last else "min"
        return value, b.select(both, b.binary(name, new[1], old[1]), index)

    # What both ways share

    def _nest(
        self,
        step: Callable[..., list[IrValue]],
        initial: list[IrValue],
        grain: int = 1,
        rest: Callable[..., list[IrValue]] | None = None,
    ) -> list[IrValue]:
        """Append the loops over the reduced dimensions, the last one by `grain` and a rest."""
        extents = self._gone.extents

        def level(dim: int, point: list[Index], carried: Sequence[IrValue]) -> list[IrValue]:
            if dim < len(extents) - 1:
                return self._b.loop(
                    0, extents[dim], carried, lambda i, *inner: level(dim + 1, [*point, i], inner)
                )
            whole = extents[dim] // grain * grain
            out = self._b.loop(
                0, whole, carried, lambda i, *inner: step([*point, i], *inner), step=grain
            )
            return out if rest is None or whole == extents[dim] else rest([*point, Index()], *out)

        return level(0, [], initial)

    def _load(self, at: Sequence[Index], along_kept: int, count: int) -> IrValue:
        """Read a vector along the last kept dimension (1) or the last reduced one (0)."""
        dim = len(self._kept.extents) - 1 if along_kept else -1
        step = self._x.strides[dim]
        if step == 0 or self._lanes == 1:
            return self._b.splat(self._b.load(self._x, at), self._lanes)
        return self._b.load(self._x, at, self._lanes, stride=step, count=count)

    def _finite(self, peak: IrValue) -> IrValue:
        """Return 0 for an infinite maximum: subtracting that would leave NaN."""
        is_endless = self._b.compare("eq", self._b.unary("abs", peak), float("inf"))
        return self._b.select(is_endless, 0.0, peak)

    def _number(self, index: Index) -> IrValue:
        return self._b.cast(self._b.index(index), "int32")

    def _worst(self) -> float | int | bool:
        return lowest(self._dtype) if self._spec.kind == "ArgMax" else highest(self._dtype)

    def _better(
        self, new: IrValue, number: IrValue, best: IrValue, where: IrValue
    ) -> list[IrValue]:
        """Return the better value and its place; the first NaN is better than all numbers."""
        b = self._b
        predicate = "gt" if self._spec.kind == "ArgMax" else "lt"
        if self._spec.select_last:
            predicate = "ge" if predicate == "gt" else "le"
        wins = b.compare(predicate, new, best)
        if new.type.is_float:
            is_nan = b.unary("isnan", new)
            if not self._spec.select_last:
                is_nan = b.binary("and", is_nan, b.unary("not", b.unary("isnan", best)))
            wins = b.binary("or", wins, is_nan)
        return [b.select(wins, new, best), b.select(wins, number, where)]


def sum_order(spec: Reduction) -> SumOrder:
    """Return in which order a reduction combines entries."""
    _, gone, is_across = reduction_domains(spec)
    return SumOrder(is_across, gone.merged)


def reduction_domains(spec: Reduction) -> tuple[Domain, Domain, bool]:
    """Return how the box is walked.

    Returns:
        The kept dimensions (strides of x, y, operands), the reduced ones (of x), and whether
        vectors go along the last of the kept ones.
    """
    remaining = [dim for dim in range(len(spec.domain)) if dim not in spec.axes]
    gone = [dim for dim in range(len(spec.domain)) if dim in spec.axes]
    layouts = (spec.y, *spec.epilogue.operands)
    strides = [tuple(spec.x.strides[dim] for dim in remaining), *(item.strides for item in layouts)]
    extents = [spec.domain[dim] for dim in remaining]
    order = sorted(range(len(remaining)), key=lambda dim: (-typical(spec.y.strides[dim]), dim))
    inner = [spec.domain[dim] for dim in gone]
    steps = tuple(spec.x.strides[dim] for dim in gone)
    reduced = sorted(range(len(gone)), key=lambda dim: (-typical(steps[dim]), dim))
    kept = simplify(extents, strides, order)
    if spec.order is not None and (arranged := spec.order.arrange(inner, [steps])) is not None:
        return kept, arranged, spec.order.is_across
    is_across = kept.strides[0][-1] == 1 and kept.extents[-1] != 1
    return kept, simplify(inner, [steps], reduced), is_across
