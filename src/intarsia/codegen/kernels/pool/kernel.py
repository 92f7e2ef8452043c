# SPDX-License-Identifier: Apache-2.0
"""Pooling over any number of spatial dimensions, on blocks of channels or on plain NCHW.

On blocks, vectors go along the channels and neighbouring positions share what they read; on plain
memory they go along the last spatial dimension. Positions whose window lies inside the image have
constant taps; at the border the taps are clipped when the kernel runs.

The largest of a window with NaN among its entries depends on their order, as in onnxruntime: it is
NaN or one of the numbers. Of nothing but NaN it is NaN.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from intarsia.codegen.body import store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue, Type, row_major
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.pool.combination import Combination, PoolKind
from intarsia.codegen.kernels.pool.schedules import schedule
from intarsia.codegen.kernels.pool.spec import Pool
from intarsia.codegen.kernels.pool.tile import (
    PoolTile,
    entries,
    interleaved_tile,
    pick_taps,
    separate_tile,
    shared_tile,
)
from intarsia.codegen.kernels.window import over_taps

_CLOSE_STRIDES = (2, 3, 4)
"""Strides for which reading everything and picking lanes beats reading lane by lane."""


def build(spec: Pool) -> Function:
    """Return the kernel; its arguments are x, y, indices if any, fused operands."""
    return _PoolKernel(spec).function()


@dataclass(frozen=True, slots=True)
class _Taps:
    """Taps of one dimension that are in the image, and by how many an average divides."""

    lower: Index
    upper: Index
    divisor: Index


class _PoolKernel:
    """Makes one kernel."""

    def __init__(self, spec: Pool) -> None:
        self.plan = schedule(spec)
        self.spec, self.window = spec, spec.window
        self.is_blocked = spec.is_blocked
        self.b = b = Builder(f"{spec.kind}_pool")
        self.math = Combination(b, spec.kind, spec.p, spec.zero)
        self.sum_dtype = self.math.sum_dtype(spec.x.dtype)
        self.lanes = spec.block if self.is_blocked else spec.unit.lanes(self.sum_dtype)
        self.span = 1 if self.is_blocked else self.lanes  # positions of a vector
        domain = spec.domain(spec.window.out)
        self.x = spec.own(spec.x).declare(b, "x", spec.domain(spec.extents))
        self.y = spec.own(spec.y).declare(b, "y", domain, is_written=True)
        self.indices: Buffer | None = None
        if spec.indices is not None:
            self.indices = spec.own(spec.indices).declare(b, "indices", domain, is_written=True)
        self.epilogue = spec.own_epilogue.bind(b, domain)

    def function(self) -> Function:
        spec, b, out = self.spec, self.b, self.window.out
        b.note(
            f"{out} positions, {self.window.kernel} taps, {spec.channels} channels by {spec.block}"
        )
        b.note(f"{self.plan}")
        rows = out[-2] if len(out) > 1 else 1
        size = max(1, -(-rows // self.plan.bands))
        shape = (spec.batch, spec.blocks, *out[:-2], -(-rows // size))
        for *place, band in each_turn(b, shape, out[-1]):
            if len(out) == 1:
                self._row(place, is_inner=True)
                continue
            begin = band * size
            end = b.smaller(begin + size, rows)
            for lower, upper, is_inner in self._parts(len(out) - 2):
                first, last = b.larger(begin, lower), b.smaller(end, upper)
                with b.serial(first, last) as row:
                    self._row([*place, row], is_inner=is_inner)
        return b.finish()

    def _parts(self, dim: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the positions of a dimension: before the interior, inside, and after it."""
        first, end = self.spec.interior(dim)
        out = self.window.out[dim]
        for lower, upper, is_inner in ((0, first, False), (first, end, True), (end, out, False)):
            if lower < upper:
                yield lower, upper, is_inner

    def _row(self, at: list[Index], *, is_inner: bool) -> None:
        """Append a row of results; `is_inner` tells of the rows' dimension."""
        rank = self.window.rank
        taps = [
            self._taps(dim, position, is_inner=is_inner and dim == rank - 2)
            for dim, position in enumerate(at[2:])
        ]
        for lower, upper, is_inside in self._parts(rank - 1):
            # A wider window would have more accumulators than registers.
            is_narrow = self.window.kernel[-1] <= self.spec.unit.registers
            if is_inside and is_narrow and self.indices is None:
                self._tiles(at, taps, lower, upper)
                continue
            with self.b.serial(lower, upper) as column:
                last = self._taps(rank - 1, column, is_inner=is_inside)
                self._one([*at, column], [*taps, last])

    def _taps(self, dim: int, position: Index, *, is_inner: bool) -> _Taps:
        """Return the taps of a window that meet the image in a dimension."""
        b, window = self.b, self.window
        kernel, dilation = window.kernel[dim], window.dilations[dim]
        if is_inner or self.spec.interior(dim) == (0, window.out[dim]):
            return _Taps(Index(), Index(kernel), Index(kernel))
        before, after = self.spec.pads[dim]
        first = position * window.strides[dim] - before

        def reaching(end: int) -> Index:
            """Return how many taps lie before an entry."""
            steps = b.larger(end + dilation - 1 - first, 0)
            return b.smaller(b.split(steps, dilation)[0], kernel)

        extent = self.spec.extents[dim]
        lower, upper = reaching(0), reaching(extent)
        counted = reaching(extent + after) if self.spec.counts_padding else upper - lower
        divisor = b.larger(counted, 1) if self.spec.kind is PoolKind.AVERAGE else Index(1)
        return _Taps(lower, upper, divisor)

    def _entry(self, position: Sequence[Index], tap: Sequence[Index]) -> list[Index]:
        at = self.window.at(position, tap)
        return [index - before for index, (before, _) in zip(at, self.spec.pads, strict=True)]

    def _store(self, total: IrValue, taps: Sequence[_Taps], at: list[Index], count: int) -> None:
        b, lanes = self.b, total.type.lanes
        # Divisors that are known now are one factor; only clipped dimensions multiply when it runs.
        divisor = Index(math.prod(tap.divisor.const for tap in taps if not tap.divisor.terms))
        for tap in taps:
            if tap.divisor.terms:
                divisor = Index.of(b.mul(b.index(divisor), b.index(tap.divisor)))
        at = [*at, Index()] if self.is_blocked else at
        part = count if count < lanes else None
        store_lanes(b, self.epilogue(self.math.close(total, divisor), at, part), self.y, at, part)

    # One result at a time

    def _one(self, at: list[Index], taps: Sequence[_Taps]) -> None:
        """Append a result whose taps are clipped, many, or wanted by index."""
        lanes = self.lanes if self.is_blocked else 1
        place, position = at[:2], at[2:]
        loops = [(tap.lower, tap.upper, 1) for tap in taps]
        if self.indices is not None:
            self._one_with_index(at, taps, loops)
            return

        def step(tap: list[Index], totals: Sequence[IrValue]) -> list[IrValue]:
            item = self._load([*place, *self._entry(position, tap)], lanes, lanes, 1)
            return [self.math.combine(totals[0], self.math.map(item))]

        start = self.math.start(Type(self.sum_dtype, lanes))
        (total,) = over_taps(self.b, loops, [start], step)
        self._store(total, taps, at, lanes)

    def _one_with_index(
        self, at: list[Index], taps: Sequence[_Taps], loops: Sequence[tuple[Index, Index, int]]
    ) -> None:
        """Append the largest entry and its index: of equal ones the first."""
        b, spec = self.b, self.spec
        assert self.indices is not None
        lanes = self.lanes if self.is_blocked else 1
        place, position = at[:2], at[2:]
        steps = row_major(spec.extents)
        if spec.is_column_major:
            steps = tuple(reversed(row_major(tuple(reversed(spec.extents)))))

        def read(entry: list[Index]) -> tuple[IrValue, IrValue]:
            offset = sum((e * step for e, step in zip(entry, steps, strict=True)), Index())
            item = self._load([*place, *entry], lanes, lanes, 1)
            return item, b.splat(b.index(offset), lanes)

        def step(tap: list[Index], best: Sequence[IrValue]) -> list[IrValue]:
            item, number = read(self._entry(position, tap))
            # Strictly: of equal ones the first stays.
            is_larger = b.compare("gt", item, best[0])
            return [
                b.select(is_larger, new, old) for new, old in zip((item, number), best, strict=True)
            ]

        first = self._entry(position, [tap.lower for tap in taps])
        ends = [extent - 1 for extent in spec.extents]
        # Where a window lies in the padding alone, the nearest entry stands for it: its index has
        # to be one of the tensor.
        first = [b.smaller(b.larger(e, 0), end) for e, end in zip(first, ends, strict=True)]
        largest, offset = over_taps(b, loops, read(first), step)
        self._store(largest, taps, at, lanes)
        size = math.prod(spec.extents)
        base = place[0] * (spec.channels * size) + place[1] * (spec.block * size)
        for lane in range(lanes):
            number = b.add(
                b.extract(offset, lane) if lanes > 1 else offset, b.index(base + lane * size)
            )
            where = [*at, Index(lane)] if self.is_blocked else at
            b.store(number, self.indices, where)

    def _load(self, at: list[Index], lanes: int, count: int, step: int) -> IrValue:
        """Read a vector along the channels, or every `step`-th entry of a row."""
        if self.is_blocked:
            return self.b.load(self.x, [*at, 0], lanes, stride=self.x.strides[-1])
        return self.b.load(self.x, at, lanes, stride=step * self.x.strides[-1], count=count)

    # Tiles of the interior

    def _tiles(self, at: list[Index], taps: list[_Taps], lower: int, upper: int) -> None:
        """Append the interior of a row."""
        b, span = self.b, self.span
        vectors, rest = divmod(upper - lower, span)
        whole = self._tile(1 if self._is_interleaved else max(1, min(self.plan.positions, vectors)))
        size = len(whole.parts)
        with b.serial(0, vectors // size) as number:
            self._fill(whole, at, taps, number * (size * span) + lower)
        if vectors % size:
            begin = lower + (vectors - vectors % size) * span
            self._fill(self._tile(vectors % size), at, taps, Index(begin))
        if rest and vectors:  # once more what the last vector shares with the one before
            self._fill(self._tile(1), at, taps, Index(upper - span))
        elif rest:
            self._fill(self._tile(1, rest), at, taps, Index(lower))

    @property
    def _is_interleaved(self) -> bool:
        window = self.window
        is_dense = not self.is_blocked and self.lanes > 1 and self.x.strides[-1] == 1
        is_close = window.strides[-1] in _CLOSE_STRIDES
        return is_dense and is_close and (window.kernel[-1] - 1) * window.dilations[-1] < self.lanes

    def _tile(self, size: int, count: int | None = None) -> PoolTile:
        """Return how so many vectors of neighbouring results are made."""
        window, lanes = self.window, self.lanes
        if self._is_interleaved:
            return interleaved_tile(window, count or lanes, lanes)
        is_sharing = len(entries(window, size)) < size * window.kernel[-1]
        if self.is_blocked and is_sharing:
            return shared_tile(window, size, lanes)
        return separate_tile(window, size, count or lanes, self.span)

    def _fill(self, tile: PoolTile, at: list[Index], taps: list[_Taps], column: Index) -> None:
        """Append a tile's results."""
        position = [*at[2:], column]

        def row(tap: Sequence[Index], totals: Sequence[IrValue]) -> list[IrValue]:
            *outer, first = self._entry(position, [*tap, Index()])
            out = []
            for number, reads in enumerate(tile.reads):
                items = [] if not totals else [totals[number]]
                for offset, count in reads:
                    where = [*at[:2], *outer, first + offset]
                    item = self._load(where, self.lanes, count, tile.step)
                    items.append(self.math.map(item))
                out.append(self._combined(items))
            return out

        outer = self.window.kernel[:-1]
        is_unrolled = math.prod(outer) <= self.plan.unrolled and not any(
            tap.lower.terms or tap.upper.terms for tap in taps
        )
        start = [self.math.start(Type(self.sum_dtype, self.lanes))] * len(tile.reads)
        totals: list[IrValue] = []
        if is_unrolled:
            ranges = (range(tap.lower.const, tap.upper.const) for tap in taps)
            for entry in itertools.product(*ranges):
                totals = row([Index(index) for index in entry], totals)
        else:
            loops = [(tap.lower, tap.upper, 1) for tap in taps]
            totals = over_taps(self.b, loops, start, row)
        totals = totals or start  # of no taps: all are in the padding
        divisors = [*taps, _Taps(Index(), Index(), Index(self.window.kernel[-1]))]
        for number, parts in enumerate(tile.parts):
            if parts is None:
                items = pick_taps(self.b, self.window, totals, tile.count)
            else:
                items = [totals[part] for part in parts]
            where = [*at, column + number * self.span]
            self._store(self._combined(items), divisors, where, tile.count)

    def _combined(self, items: Sequence[IrValue]) -> IrValue:
        return functools.reduce(self.math.combine, items)
