# SPDX-License-Identifier: Apache-2.0
"""Matrix products as kernels, and how their constant operands are packed.

A register tile of rows times vectors of columns walks along k. The columns of a tile are a *panel*
of the right operand: contiguous along k if it was packed at compile time or copied by the kernel,
or else read where it lies. With one row it is a matrix-vector product, which reads each weight once
and is as fast as memory. That a panel stays in a near cache while rows go by is the scheme of Goto
and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008; the
left operand is not packed, as constant strides make its rows displacements of one address.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import load_lanes, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue, Type
from intarsia.codegen.kernels.gemm.schedules import CHAIN, schedule
from intarsia.codegen.kernels.gemm.small_pairs import DIGIT, place_bytes, split_groups
from intarsia.codegen.kernels.gemm.spec import Gemm, GemmSchedule, Panels, PanelSource, merged
from intarsia.codegen.kernels.lane_transpose import transpose_lanes
from intarsia.codegen.kernels.window import FreeSplit, Run, Split, panel_runs, split_extent
from intarsia.codegen.tile import (
    blocked_count,
    blocked_step,
    mma_step,
    multiply_add,
    rows_of_blocks,
)
from intarsia.extents import Expression
from intarsia.graph.arena import aligned_bytes

_LINE_BYTES = 64


def build(spec: Gemm) -> Function:
    """Return the kernel; its arguments are a, b (or its panels), c, fused operands."""
    plan = schedule(spec)
    if plan.source is PanelSource.DOTS:
        return _build_dots(merged(spec), plan)
    return _Product(merged(spec), plan).function()


def pack(spec: Gemm, weights: Array) -> Array:
    """Return a constant right operand (*its batch, k, n) as the kernel reads it.

    In order: its batch, panels of columns, k, the columns of a panel; the columns that fill the
    last vector are zero. Of narrow numbers a group along k lies in each column, the last one filled
    up with zeros. Behind the groups of a panel come the second parts of those that are split, and
    behind all panels the places of these.
    """
    assert isinstance(spec.b, Panels)
    lanes, group = spec.unit.lanes(spec.sum_dtype), spec.group
    vectors, steps = -(-spec.n // lanes), -(-spec.k // group)
    items = math.prod(spec.b.batch)
    split = spec.b.split or 0
    count = items * (steps + split) * group * vectors * lanes
    places = items * vectors * place_bytes(spec.b)
    packed = aligned_bytes(count * np.dtype(spec.b.dtype).itemsize + places)
    rest = packed.view(spec.b.dtype)
    at_places = packed[count:].reshape(items * vectors, -1) if places else packed
    whole = weights.reshape(items, spec.k, spec.n)
    if spec.k % group:
        whole = np.pad(whole, ((0, 0), (0, -spec.k % group), (0, 0)))
    for number, item in enumerate(whole.reshape(items, steps, group, spec.n).swapaxes(2, 3)):
        for run in Split.of(vectors, schedule(spec).vectors).runs:
            for first in run.begins:
                columns = item[:, first * lanes : (first + run.size) * lanes]
                if places:
                    columns, found = split_groups(columns, split)
                    at_places[number * vectors + first, : found.size] = found
                shape = (steps + split, run.size * lanes, group)
                place, rest = np.split(rest, [math.prod(shape)])
                place.reshape(shape)[:, : columns.shape[1]] = columns
    return packed.view(spec.b.dtype)


def packing(spec: Gemm) -> str:
    """Name the order of a packed right operand."""
    groups = f"by{'2x' * spec.is_blocked}{spec.group}" if spec.group > 1 else ""
    assert isinstance(spec.b, Panels)
    groups += f"and{spec.b.split}" if spec.has_small_pairs else ""
    return f"{spec.b.dtype}{groups}{spec.unit.lanes(spec.sum_dtype)}{schedule(spec)}"


@dataclass(frozen=True, slots=True)
class _PanelTurn:
    """What the tiles of one turn have in common.

    Attributes:
        batch: The item.
        vectors: Of the panel.
        column: The panel's first one.
        counts: Lanes that count, for each vector; None means all.
        begin: The first block of rows.
        end: Beyond the last one.
        rate: How many entries of the next panel a step of a tile asks for anew.
    """

    batch: list[Index]
    vectors: int
    column: Index
    counts: list[int | None]
    begin: Index
    end: Index
    rate: Index


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a turn of the parallel loop computes.

    Attributes:
        batch: The item.
        runs: All panels by their widths, and whether the last vector of these is not full.
        first_panel: Its first one.
        end_panel: Beyond the last one.
        begin: The first block of rows.
        end: Beyond the last one.
    """

    batch: list[Index]
    runs: list[tuple[Run, bool]]
    first_panel: Index
    end_panel: Index
    begin: Index
    end: Index


@dataclass(frozen=True, slots=True)
class _DepthRange:
    """A range along k.

    Attributes:
        begin: Where it begins.
        length: How long it is.
        is_later: 1 if the result has the sums of ranges before, else 0.
        is_last: 1 if the epilogue comes after it, else 0.
    """

    begin: Index
    length: Index
    is_later: Index
    is_last: Index


class _Product:
    """Makes one kernel."""

    def __init__(self, spec: Gemm, plan: GemmSchedule) -> None:
        self.plan = plan
        self.spec = spec
        self.group = spec.group
        self.dtype = spec.sum_dtype
        self.lanes = spec.unit.lanes(self.dtype)
        self.steps = spec.k if self.group == 1 else -(-spec.k // self.group)
        self.vectors = -(-spec.n // self.lanes)
        self.split = (spec.b.split or 0) if isinstance(spec.b, Panels) else 0
        self.depth_of_panel = (self.steps + self.split) * self.group
        self.b = b = Builder("gemm")
        self.left = spec.a.declare(b, "a", (*spec.batch, spec.m, spec.k))
        if isinstance(spec.b, Panels):
            size = math.prod(spec.b.batch) * self.vectors
            size *= self.depth_of_panel * self.lanes + place_bytes(spec.b)
            self.right = b.argument("b", spec.b.dtype, (size,), align=_LINE_BYTES)
        else:
            self.right = spec.b.declare(b, "b", (*spec.batch, spec.k, spec.n))
        domain = (*spec.batch, spec.m, spec.n)
        self.result = spec.c.declare(b, "c", domain, is_written=True)
        self.epilogue = spec.epilogue.bind(b, domain)
        self.rows = split_extent(spec.m, plan.rows)
        self.depth = plan.depth if plan.depth and plan.depth < spec.k else 0
        self.copy: Buffer | None = None
        if plan.source is PanelSource.COPY and spec.k:
            width = min(plan.vectors, self.vectors) * self.lanes
            self.copy = b.local("panel", self.dtype, (self.depth or spec.k, width))

    def function(self) -> Function:
        b, spec, plan = self.b, self.spec, self.plan
        b.note(f"batch {spec.batch}, m {spec.m}, n {spec.n}, k {spec.k}")
        b.note(f"{plan}")
        if 0 in (*spec.batch, spec.m, spec.n):
            return b.finish_empty()
        panels = Split.of(self.vectors, plan.vectors)
        groups = Split.of(panels.count, plan.turn_panels)
        chunks = split_extent(self.rows.count, plan.row_blocks)
        inner = (chunks.count, groups.count) if plan.is_rows_first else (groups.count, chunks.count)
        shape = (*spec.batch, *inner)
        # Vectors cut short are masked loads and stores: only the code of the last panel has them.
        runs = panel_runs(spec.n, self.lanes, panels)
        with b.parallel(math.prod(shape)) as number:
            *batch, first, second = b.unravel(number, shape)
            chunk, group = (first, second) if plan.is_rows_first else (second, first)
            begin, end = Index(0), Index(self.rows.count)
            if chunks.count != 1:
                begin, end = chunks.begin(b, chunk), chunks.begin(b, chunk + 1)
            among = groups.begin(b, group), groups.begin(b, group + 1)
            self._turn(_Turn(batch, runs, *among, begin, end))
        return b.finish()

    def _turn(self, turn: _Turn) -> None:
        """Compute a turn; a long k in parts, with sums in the result between them."""
        k, depth = self.steps, self.depth
        if not depth:
            self._part(turn, _DepthRange(Index(), Index(k), Index(0), Index(1)))
            return
        whole = k - k % depth
        with self.b.serial(0, whole, depth) as begin:
            is_last = self._from(begin, k - depth)
            self._part(turn, _DepthRange(begin, Index(depth), self._from(begin, 1), is_last))
        if whole < k:
            self._part(turn, _DepthRange(Index(whole), Index(k - whole), Index(1), Index(1)))

    def _from(self, begin: Index, least: int) -> Index:
        """Return 1 if a part begins at a place or behind it, else 0."""
        return self.b.smaller(self.b.larger(begin - (least - 1), 0), 1)

    def _part(self, turn: _Turn, part: _DepthRange) -> None:
        """Compute the panels of a turn, as far as a range along k goes."""
        for run, is_cut in turn.runs:
            counts: list[int | None] = [None] * run.size
            if is_cut:
                counts[-1] = self.spec.n - (self.vectors - 1) * self.lanes
            rate = self._rate(run.size)
            for column in self._columns(turn, run):
                place = _PanelTurn(turn.batch, run.size, column, counts, turn.begin, turn.end, rate)
                self._panel(place, part)

    def _columns(self, turn: _Turn, run: Run) -> Iterator[Index]:
        """Open a loop over the panels of a run in a turn; gives the first column of each."""
        if len(turn.runs) == 1 and self.plan.turn_panels == 1:
            yield (turn.first_panel * run.size + run.offset) * self.lanes
            return
        for vector in run.each(self.b, turn.first_panel, turn.end_panel):
            yield vector * self.lanes

    def _panel(self, place: _PanelTurn, part: _DepthRange) -> None:
        if self.copy and part.length != Index():
            self._copy_panel(place, part)
        for rows, row in self.rows.each(self.b, place.begin, place.end):
            self._tile(place, part, row, rows)

    def _tile(self, place: _PanelTurn, part: _DepthRange, row: Index, rows: int) -> None:
        b, lanes = self.b, self.lanes
        grid = [(r, v) for r in range(rows) for v in range(place.vectors)]

        def at(r: int, v: int) -> tuple[Index, ...]:
            return (*place.batch, row + r, place.column + v * lanes)

        def add(_: Index, *sums: IrValue) -> list[IrValue]:
            before = [load_lanes(b, self.result, at(r, v), lanes, place.counts[v]) for r, v in grid]
            return [b.add(*pair) for pair in zip(before, sums, strict=True)]

        def store(*, is_last: bool) -> None:
            def finish(place_in_tile: tuple[int, int], value: IrValue) -> None:
                count = place.counts[place_in_tile[1]]
                where = at(*place_in_tile)
                result = self.epilogue(value, where, count) if is_last else value
                store_lanes(b, result, self.result, where, count)

            # An epilogue waits for itself: several side by side take the time of one.
            entries = list(zip(grid, sums, strict=True))
            size = self.spec.unit.registers // 2
            for first in range(0, len(entries), size):
                b.interleave(partial(finish, *entry) for entry in entries[first : first + size])

        is_blocked = self.spec.is_blocked
        count = blocked_count(rows, place.vectors) if is_blocked else len(grid)
        zeros = [b.constant(0, Type(self.dtype, lanes))] * count
        sums = self._accumulate(place, part, row, rows, zeros)
        if is_blocked:
            sums = rows_of_blocks(b, sums, rows, place.vectors)
        # Loops of one turn or none: the code of a part is the same for all of them.
        if part.is_later != Index():
            sums = b.loop(0, part.is_later, sums, add)
        if part.is_last == Index(1) or not self.spec.epilogue.body.steps:
            store(is_last=True)
            return
        with b.serial(0, part.is_last):
            store(is_last=True)
        with b.serial(part.is_last, 1):
            store(is_last=False)

    def _accumulate(
        self, place: _PanelTurn, part: _DepthRange, row: Index, rows: int, sums: list[IrValue]
    ) -> list[IrValue]:
        """Add the products of a range along k, in chains; see `CHAIN`.

        The sums of the chains before wait in registers, or on the stack where these do not
        suffice: the compiler moves them there around the innermost loop.
        """
        b, length = self.b, part.length
        zeros = [b.constant(0, value.type) for value in sums]

        def chain(start: Index, *totals: IrValue) -> Sequence[IrValue]:
            end = start + CHAIN if is_whole else b.smaller(start + CHAIN, length)
            products = self._chain(place, part, row, rows, start, end - start, zeros)
            return [b.add(total, value) for total, value in zip(totals, products, strict=True)]

        is_free = length.terms or isinstance(length.const, Expression)
        is_whole = not is_free and length.const % CHAIN == 0
        # Of integers the order does not matter.
        if not is_free and (length.const <= CHAIN or self.group > 1):
            sums = self._chain(place, part, row, rows, Index(), length, sums)
            return self._split(place, row, rows, sums) if self.split else sums
        return b.loop(0, length, sums, chain, step=CHAIN)

    def _chain(
        self,
        place: _PanelTurn,
        part: _DepthRange,
        row: Index,
        rows: int,
        start: Index,
        length: Index,
        sums: list[IrValue],
    ) -> list[IrValue]:
        b = self.b

        def step(k: Index, sums: Sequence[IrValue], count: int | None = None) -> list[IrValue]:
            k = start + k
            self._prefetch(place, part, k)
            first = (part.begin + k) * self.group

            def of_row(r: int) -> IrValue:
                at = (*place.batch, row + r, first)
                return b.load(self.left, at, self.group, count=count)

            if self.spec.is_blocked:
                at = self._packed(place, part.begin + k)
                width = self.lanes * self.group // 2
                return blocked_step(
                    b,
                    sums,
                    rows,
                    place.vectors,
                    of_row,
                    lambda v, half: b.load(self.right, at + (2 * v + half) * width, width),
                )
            return mma_step(
                b,
                sums,
                rows,
                place.vectors,
                of_row,
                lambda v: self._column(place, part, k, v),
                fits_pairs=self.spec.has_small_pairs,
            )

        ahead = self._next_panel(place, part, row, rows)

        def steps(k: Index, *sums: IrValue) -> Sequence[IrValue]:
            current = list(sums)
            if ahead is not None:
                self._stream(ahead + self._times(start + k, place.rate), unroll)
            for number in range(unroll):
                current = step(k + number, current)
            return current

        # A length known only when it runs would need a loop for the rest, longer than what it
        # saves, unless there is none: chains and their rest are whole turns if all of k is.
        unroll, k = self.plan.unroll, self.spec.k
        is_free = length.terms or isinstance(length.const, Expression)
        if is_free and (isinstance(k, Expression) or k % unroll or CHAIN % unroll):
            unroll = 1
        rest = 0 if is_free else length.const % unroll
        cut = k % self.group if self.group > 1 else 0  # of the last group, if it is not full
        rest += unroll if cut and not rest else 0
        sums = b.loop(0, length - rest, sums, steps, step=unroll)
        for number in range(rest):
            is_last = number == rest - 1
            sums = step(length - rest + number, sums, cut if cut and is_last else None)
        return sums

    def _split(
        self, place: _PanelTurn, row: Index, rows: int, sums: list[IrValue]
    ) -> list[IrValue]:
        """Add the second parts of groups that are split."""
        b, spec = self.b, self.spec
        assert isinstance(spec.b, Panels)
        items = math.prod(spec.b.batch)
        begin = self._item(place) * self.vectors * self.lanes + place.column
        begin = begin * (place_bytes(spec.b) // self.lanes)
        begin += items * self.vectors * self.lanes * self.depth_of_panel

        def step(number: Index, *sums: IrValue) -> Sequence[IrValue]:
            digits = [b.cast(b.load(self.right, begin + number * 2 + i), "int64") for i in (0, 1)]
            first = (Index.of(digits[0]) + Index.of(digits[1]) * DIGIT) * self.group
            return mma_step(
                b,
                sums,
                rows,
                place.vectors,
                lambda r: b.load(self.left, (*place.batch, row + r, first), self.group),
                lambda v: self._packed_column(place, number + self.steps, v),
                fits_pairs=True,
            )

        return b.loop(0, self.split, sums, step)

    def _column(self, place: _PanelTurn, part: _DepthRange, k: Index, v: int) -> IrValue:
        b, lanes = self.b, self.lanes
        if self.copy:
            return b.load(self.copy, (k, v * lanes), lanes)
        if self.plan.source is PanelSource.PANELS:
            return self._packed_column(place, part.begin + k, v)
        at = (*place.batch, part.begin + k, place.column + v * lanes)
        return load_lanes(b, self.right, at, lanes, place.counts[v])

    def _packed_column(self, place: _PanelTurn, k: Index, v: int) -> IrValue:
        b, lanes = self.b, self.lanes
        at_panel = self._packed(place, k) + v * lanes * self.group
        column = b.load(self.right, at_panel, lanes * self.group)
        if self.group == 1:
            return b.cast(column, self.dtype)
        is_wide = self.left.item_bytes > self.right.item_bytes
        return b.cast(column, self.left.dtype) if is_wide else column

    def _packed(self, place: _PanelTurn, k: Index) -> Index:
        """Return where the columns of a panel lie; see `pack`."""
        depth = self.depth_of_panel
        start: Index = self._item(place) * (depth * self.vectors * self.lanes)
        start += place.column * depth
        return start + k * (place.vectors * self.lanes * self.group)

    def _item(self, place: _PanelTurn) -> Index:
        """Return which item of the packed operand's own batch is read."""
        spec = self.spec
        assert isinstance(spec.b, Panels)
        item = Index()
        extents = spec.b.batch
        for index, extent in zip(
            place.batch[len(place.batch) - len(extents) :], extents, strict=True
        ):
            item = item * extent + (index if extent > 1 else 0)
        return item

    def _prefetch(self, place: _PanelTurn, part: _DepthRange, k: Index) -> None:
        # A copy was written just now and is in the first cache.
        if not self.plan.prefetch or self.copy:
            return
        k = part.begin + k + self.plan.prefetch
        items = _LINE_BYTES // self.right.item_bytes
        for offset in range(0, place.vectors * self.lanes * self.group, items):
            if self.plan.source is PanelSource.PANELS:
                self.b.prefetch(self.right, self._packed(place, k) + offset)
            else:
                self.b.prefetch(self.right, (*place.batch, k, place.column + offset))

    def _rate(self, vectors: int) -> Index:
        """Return the `rate` of panels of so many vectors."""
        b, plan = self.b, self.plan
        if not plan.streamed or not isinstance(self.rows, FreeSplit):
            return Index(plan.streamed)
        tiles = b.index(b.smaller(self.rows.count, plan.row_blocks))
        even = b.div(b.add(tiles, vectors * self.lanes - 1), tiles)
        return b.smaller(even, plan.streamed)

    def _times(self, index: Index, factor: Index) -> Index:
        """Return a product of subscripts of which the second is a number or a value."""
        if not factor.terms:
            product: Index = index * factor.const
            return product
        return Index.of(self.b.mul(self.b.index(index), self.b.index(factor)))

    def _next_panel(
        self, place: _PanelTurn, part: _DepthRange, row: Index, rows: int
    ) -> Index | None:
        """Return where a tile begins to ask for the next panel, if it does."""
        b, plan = self.b, self.plan
        if not plan.streamed or plan.source is not PanelSource.PANELS:
            return None
        first = self.rows.begin(b, place.begin) if plan.is_rows_first else Index()
        entries = part.length.const * place.vectors * self.lanes
        # Each tile asks for as many. Tiles may be more than it takes: these ask for the end again.
        if place.rate.terms:
            before = self._times((row - first) * (part.length.const // plan.rows), place.rate)
        else:
            before = (row - first) * (part.length.const * plan.streamed // rows)
        begin: Index = self._packed(place, part.begin) + place.vectors * self.lanes * self.spec.k
        return begin + b.smaller(before, entries)

    def _stream(self, begin: Index, steps: int) -> None:
        """Ask for the entries of the next panel that some steps along k ask for."""
        line = _LINE_BYTES // self.right.item_bytes
        for offset in range(0, steps * self.plan.streamed, line):
            self.b.prefetch(self.right, begin + offset, is_far=True)

    def _copy_panel(self, place: _PanelTurn, part: _DepthRange) -> None:
        """Copy a range along k of a panel into the kernel's own buffer."""
        b, copy, lanes = self.b, self.copy, self.lanes
        assert copy is not None
        done = Index()
        if lanes > 1 and self.right.strides[-2] == 1 and self.right.strides[-1] != 1:
            # Its elements are contiguous along k alone: read so, and transposed in registers, a
            # square of lanes takes as many loads as lanes, not their square.
            blocks, _ = b.split(part.length, lanes)
            done = blocks * lanes
            with b.serial(0, blocks) as block:
                self._transpose(place, part, block * lanes)
        with b.serial(done, part.length) as k:
            for v in range(place.vectors):
                at = (*place.batch, part.begin + k, place.column + v * lanes)
                value = load_lanes(b, self.right, at, lanes, place.counts[v])
                b.store(value, copy, (k, v * lanes))

    def _transpose(self, place: _PanelTurn, part: _DepthRange, k: Index) -> None:
        """Copy a block of which k runs through memory."""
        b, lanes = self.b, self.lanes
        assert self.copy is not None
        zero = b.constant(0, Type(self.dtype, lanes))
        for v in range(place.vectors):
            column = place.column + v * lanes
            count = place.counts[v] or lanes
            rows = [
                b.load(self.right, (*place.batch, part.begin + k, column + c), lanes)
                for c in range(count)
            ]
            columns = transpose_lanes(b, rows + [zero] * (lanes - count))
            for number, value in enumerate(columns):
                b.store(value, self.copy, (k + number, v * lanes))


def _build_dots(spec: Gemm, plan: GemmSchedule) -> Function:
    """Return the kernel of a merged product of few rows, as dot products; `vectors` counts columns.

    Vectors go along k, along which the right operand is contiguous, and are summed up at the end:
    that spares a transposition, which few rows would share. Attention of one token over its past is
    such a product.
    """
    b = Builder("gemm")
    assert not isinstance(spec.b, Panels), "panels are contiguous along n"
    left = spec.a.declare(b, "a", (*spec.batch, spec.m, spec.k))
    *outer, k_stride, n_stride = spec.b.strides
    columns_of_b = replace(spec.b, strides=(*outer, n_stride, k_stride))
    right = columns_of_b.declare(b, "b", (*spec.batch, spec.n, spec.k))
    domain = (*spec.batch, spec.m, spec.n)
    result = spec.c.declare(b, "c", domain, is_written=True)
    epilogue = spec.epilogue.bind(b, domain)
    b.note(f"batch {spec.batch}, m {spec.m}, n {spec.n}, k {spec.k}")
    b.note(f"{plan}")
    dtype, lanes = spec.a.dtype, spec.unit.lanes(spec.a.dtype)
    rows, columns = split_extent(spec.m, plan.rows), split_extent(spec.n, plan.vectors)
    chunks = split_extent(columns.count, plan.row_blocks)

    def tile(batch: list[Index], row: Index, column: Index, height: int, width: int) -> None:
        def step(k: Index, sums: Sequence[IrValue], count: int | None = None) -> list[IrValue]:
            a, w = (
                [
                    b.load(buffer, (*batch, first + i, k), lanes, stride=along, count=count)
                    for i in range(size)
                ]
                for buffer, first, size, along in (
                    (left, row, height, left.strides[-1]),
                    (right, column, width, 1),
                )
            )
            pairs = [(x, y) for x in a for y in w]
            return [multiply_add(b, *pair, s) for pair, s in zip(pairs, sums, strict=True)]

        # A sum for each pair of a row and a column: `height * width` independent chains hide the
        # latency of a multiply-add.
        sums = [b.constant(0, Type(dtype, lanes))] * (height * width)
        # The last vector is read in part: lanes beyond k are zeros and add nothing.
        rest = spec.k % lanes
        sums = b.loop(0, spec.k - rest, sums, lambda k, *s: step(k, s), step=lanes)
        if rest:
            sums = step(Index(spec.k - rest), sums, rest)
        for number, total in enumerate(sums):
            r, c = divmod(number, width)
            at = (*batch, row + r, column + c)
            b.store(epilogue(b.reduce("add", total), at, None), result, at)

    shape = (*spec.batch, chunks.count)
    with b.parallel(math.prod(shape)) as turn:
        *batch, chunk = b.unravel(turn, shape)
        begin, end = chunks.begin(b, chunk), chunks.begin(b, chunk + 1)
        for width, column in columns.each(b, begin, end):
            for height, row in rows.each(b):
                tile(batch, row, column, height, width)
    return b.finish()
