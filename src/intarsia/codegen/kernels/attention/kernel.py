# SPDX-License-Identifier: Apache-2.0
"""Attention as one kernel: keys go by in blocks, and no matrix of scores is ever whole.

Sums over keys are kept with the largest score so far and scaled anew when it grows: Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022.

Lanes are queries. A turn transposes its queries once and its result at the end; in between, scores
are products of keys, read one by one where they lie, with the transposed queries, and sums are
products of entries of values, read so too, with the exponentials. So keys and values are neither
packed nor transposed, largest scores and sums are vectors, and nothing is reduced across lanes.
Lanes beyond the last query compute that query again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from intarsia.codegen import maths
from intarsia.codegen.body import load_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue, Type
from intarsia.codegen.kernels.attention.arguments import declare_buffers
from intarsia.codegen.kernels.attention.limits import begin_of, limit_of, shift_of
from intarsia.codegen.kernels.attention.parts import few_turns
from intarsia.codegen.kernels.attention.spec import (
    Attention,
    AttentionSchedule,
    EmptyRow,
    MaskKind,
)
from intarsia.codegen.kernels.lane_transpose import lane_numbers, transpose_lanes
from intarsia.codegen.kernels.window import Run, Split, split_extent
from intarsia.codegen.maths import LOG2_E
from intarsia.codegen.tile import mma_step
from intarsia.extents import Expression, Size

_DTYPE = "float32"
_LINE_BYTES = 64
_KEY = "int32"
"""Numbers of keys and queries in vectors: as many lanes as there are scores."""
_LOWEST = float(np.finfo(_DTYPE).min)
"""Where largest scores start: minus infinity would make a first block without scores NaN."""


class AttentionKernel:
    """Makes one kernel."""

    def __init__(self, spec: Attention, plan: AttentionSchedule) -> None:
        self.spec, self.plan = spec, plan
        self.lanes = spec.unit.lanes(_DTYPE)
        self.b = b = Builder("attention")
        buffers = declare_buffers(b, spec)
        self.q, self.k, self.v, self.y = buffers.q, buffers.k, buffers.v, buffers.y
        self.masks, self.lengths = buffers.masks, buffers.lengths
        self.blocks = split_extent(-(-spec.queries // self.lanes), self.plan.vectors)
        self.width = width = max(self.blocks.sizes, default=1) * self.lanes
        keys, tiles = self.rows_of_block(), plan.tiles
        self.scores = b.local("scores", _DTYPE, (keys, width))
        # What differs from query to query is turned, as queries are; else one number is for all.
        self.turned_masks = [
            b.local(f"turned{number}", _DTYPE, (keys, width)) if mask.layout.strides[-2] else None
            for number, mask in enumerate(spec.masks)
        ]
        self.peaks = b.local("peaks", _DTYPE, (tiles, width))
        self.totals = b.local("totals", _DTYPE, (tiles, width))
        self.declare_operands(keys)
        # Powers of two want a multiplication less than those of e, which is one of the queries'
        # factor; a mask that is added is a natural logarithm.
        self.is_binary = all(mask.kind is not MaskKind.ADDED for mask in spec.masks)

    def rows_of_block(self) -> int:
        """Return how many keys of a block there is room for."""
        # A tile of the last keys has all its rows, where the number of keys is free.
        keys, rows = self.plan.keys, self.plan.rows
        return -(-keys // rows) * rows if isinstance(self.spec.keys, Expression) else keys

    def declare_operands(self, keys: int) -> None:
        """Declare what the products of a turn read, and the sums of values.

        Args:
            keys: Of a block.
        """
        b, spec, tiles, width = self.b, self.spec, self.plan.tiles, self.width
        self.turned = b.local("turned", _DTYPE, (tiles, max(1, spec.key_size), width))
        self.sums = b.local("sums", _DTYPE, (tiles, max(1, spec.value_size), width))
        self.near_keys = self._near("near_keys", self.k, keys)
        self.near_values = self._near("near_values", self.v, keys)

    def has_rest(self, size: Size) -> bool:
        """Tell whether rows of a block of so many keys may lie beyond the last one."""
        return isinstance(size, Expression)

    def turn(self, batch: list[Index], number: Index) -> AttentionTurn:
        """Return what makes a turn."""
        return AttentionTurn(self, batch, number)

    def tile(
        self, batch: list[Index], first: Index, vectors: int, place: tuple[Index, Index], rest: bool
    ) -> AttentionTile:
        """Return what makes a tile of a turn; see `AttentionTile`."""
        return AttentionTile(self, batch, first, vectors, place, is_rest=rest)

    def _near(self, name: str, buffer: Buffer, keys: int) -> Buffer | None:
        """Return where a block's rows are brought together, if they lie apart."""
        columns, lanes = buffer.shape[-1], self.lanes
        assert isinstance(columns, int)
        if not self.plan.is_gathered or buffer.strides[-1] != 1 or buffer.strides[-2] == columns:
            return None
        return self.b.local(name, _DTYPE, (keys, -(-columns // lanes) * lanes))

    def function(self) -> Function:
        """Return the kernel."""
        b, spec = self.b, self.spec
        b.note(
            f"batch {spec.batch}, {spec.queries} queries, {spec.keys} keys, "
            f"sizes {spec.key_size} and {spec.value_size}"
        )
        b.note(f"{self.plan}")
        if 0 in (*spec.batch, spec.queries, spec.value_size):
            return b.finish_empty()
        shape = (*spec.batch, -(-self.blocks.count // self.plan.tiles))
        turns = math.prod(shape)
        if self.plan.few:  # fewer queries are another kernel's
            turns = turns * (1 - few_turns(spec))
        with b.parallel(turns) as turn:
            *batch, number = b.unravel(turn, shape)
            self.turn(batch, number).append()
        return b.finish()


class AttentionTurn:
    """Makes what one turn does: some tiles of queries of one item against all keys.

    A block of keys and values is read for all tiles before the next one.
    """

    def __init__(self, kernel: AttentionKernel, batch: list[Index], number: Index) -> None:
        self.kernel, self.spec, self.plan = kernel, kernel.spec, kernel.plan
        self.b, self.batch = kernel.b, batch
        self.first = number * self.plan.tiles
        self.end = self.first + self.plan.tiles
        if self.plan.tiles > 1:
            self.end = self.b.smaller(self.end, kernel.blocks.count)

    def append(self) -> None:
        """Append the turn."""
        b, spec, size = self.b, self.spec, self.plan.keys
        for tile in self._tiles():
            tile.start()
        end = limit_of(b, spec, self.kernel.lengths, self.batch, self._row(self.end))
        begin = begin_of(b, spec, self.kernel.lengths, self.batch, self._row(self.first), size)
        whole = spec.keys // size * size
        rest = spec.keys - whole
        self._blocks(begin, b.smaller(whole, end), size)
        if isinstance(rest, Expression) or rest:
            self._blocks(Index.of(whole), end, rest)
        for tile in self._tiles():
            tile.finish()

    def _row(self, tile: Index) -> Index:
        """Return the first query of a tile, which may lie behind the last one."""
        return self.kernel.blocks.begin(self.b, tile) * self.kernel.lanes

    def _blocks(self, begin: Index, end: Index, size: Size) -> None:
        """Append blocks of keys of one size."""
        b, spec, is_several = self.b, self.spec, self.plan.tiles > 1
        with b.serial(begin, end, self.plan.keys) as key:
            self.fetch(key, size)
            for tile in self._tiles(is_rest=self.kernel.has_rest(size)):
                if is_several and spec.last is not None:
                    with b.where(b.compare("lt", b.index(key), b.index(tile.end))):
                        tile.block(key, size)
                else:
                    tile.block(key, size)

    def _tiles(self, *, is_rest: bool = False) -> Iterator[AttentionTile]:
        """Open blocks in which tiles are the current one."""
        kernel, blocks, lanes = self.kernel, self.kernel.blocks, self.kernel.lanes
        with ExitStack() as stack:
            number = self.first
            if self.plan.tiles > 1:
                number = stack.enter_context(self.b.serial(self.first, self.end))
            for run, vector in blocks.at(self.b, number):
                lane = Index()
                if isinstance(self.spec.queries, Expression):  # vectors of a rest come one by one
                    lane = (vector - number * self.plan.vectors) * lanes
                place = (number - self.first, lane)
                yield kernel.tile(self.batch, vector * lanes, run.size, place, is_rest)

    def fetch(self, begin: Index, size: Size) -> None:
        """Bring keys and values of a block together, and ask for those of the next one."""
        b, kernel, lanes = self.b, self.kernel, self.kernel.lanes
        pairs = ((kernel.k, kernel.near_keys), (kernel.v, kernel.near_values))
        gathered = [(far, near) for far, near in pairs if near is not None]
        if not gathered and not self.plan.is_far:
            return
        with b.serial(0, size) as key:
            for far, near in gathered:
                columns = far.shape[-1]
                for at in range(0, columns, lanes):
                    count = min(lanes, columns - at)
                    value = b.load(far, (*self.batch, begin + key, at), lanes, count=count)
                    b.store(value, near, (key, at))
            self.ask(begin + key + self.plan.keys)

    def ask(self, key: Index) -> None:
        """Ask for a key and a value that are read later, if they come from afar."""
        for buffer in (self.kernel.k, self.kernel.v) if self.plan.is_far else ():
            step = max(1, _LINE_BYTES // buffer.item_bytes)
            for entry in range(0, buffer.shape[-1], step):
                self.b.prefetch(buffer, (*self.batch, key, entry), is_far=True)


class AttentionTile:
    """Makes what some vectors of queries do with blocks of keys.

    Args:
        kernel: Where it is in.
        batch: The item.
        first: Its first query.
        vectors: How many.
        place: Which tile of the turn it is, and its first lane there.
        is_rest: Whether rows of a tile of keys may lie beyond the last one, which stands for them.
    """

    def __init__(
        self,
        kernel: AttentionKernel,
        batch: list[Index],
        first: Index,
        vectors: int,
        place: tuple[Index, Index],
        *,
        is_rest: bool = False,
    ) -> None:
        self.kernel, self.spec, self.plan = kernel, kernel.spec, kernel.plan
        self.b, self.lanes = kernel.b, kernel.lanes
        self.batch, self.first, self.vectors = batch, first, vectors
        self.number, self.lane = place
        self.is_rest = is_rest
        self.type = Type(_DTYPE, self.lanes)

    @property
    def end(self) -> Index:
        """Beyond the last key that any of its queries sees."""
        final = self.first + self.vectors * self.lanes
        return limit_of(self.b, self.spec, self.kernel.lengths, self.batch, final)

    def start(self) -> None:
        """Transpose the queries, and clear the sums."""
        b, kernel = self.b, self.kernel
        self.turn_queries()
        zero = b.constant(0.0, self.type)
        with b.serial(0, self.spec.value_size) as entry:
            for v in range(self.vectors):
                b.store(zero, kernel.sums, (self.number, entry, self.lane + v * self.lanes))
        self._keep(kernel.peaks, [b.constant(_LOWEST, self.type)] * self.vectors)
        self._keep(kernel.totals, [zero] * self.vectors)

    @property
    def _unit(self) -> float:
        """What scores are multiplied by, beside the scale."""
        return LOG2_E if self.kernel.is_binary else 1.0

    def power(self, score: IrValue, peak: IrValue) -> IrValue:
        """Return the exponential of what a score is below the largest one."""
        below = self.b.sub(score, peak)
        if not self.kernel.is_binary:
            below = self.b.mul(below, LOG2_E)
        return maths.exp2_nonpositive(self.b, below)

    def _keep(self, buffer: Buffer, values: Sequence[IrValue]) -> None:
        for v, value in enumerate(values):
            self.b.store(value, buffer, (self.number, self.lane + v * self.lanes))

    def _kept(self, buffer: Buffer) -> list[IrValue]:
        return [
            self.b.load(buffer, (self.number, self.lane + v * self.lanes), self.lanes)
            for v in range(self.vectors)
        ]

    def _row(self, lane: int) -> Index:
        """Return the query of a lane, counted on from vector to vector."""
        row = self.first + lane
        if self.spec.queries % self.lanes == 0:
            return row
        return self.b.smaller(row, self.spec.queries - 1)

    def _key(self, key: Index) -> Index:
        """Return a key that is there."""
        return self.b.smaller(key, self.spec.keys - 1) if self.is_rest else key

    def _key_at(self, begin: Index, row: Index, size: Size) -> tuple[Buffer, list[Index]]:
        """Return where the key of a row of a block lies."""
        near = self.kernel.near_keys
        if near is None:
            return self.kernel.k, [*self.batch, self._key(begin + row)]
        return near, [self.b.smaller(row, size - 1) if self.is_rest else row]

    def limits(self) -> list[tuple[str, list[IrValue]]]:
        """Return comparisons that hold for keys that are seen, and to what of each vector."""
        b, spec, lengths = self.b, self.spec, self.kernel.lengths
        limits: list[tuple[str, list[IrValue]]] = []
        if lengths is not None:
            length = b.cast(b.load(lengths, self.batch), _KEY)
            limits.append(("lt", [length] * self.vectors))
        if self.is_rest:
            limits.append(("lt", [b.cast(b.index(spec.keys), _KEY)] * self.vectors))
        if spec.last is None and spec.first is None:
            return limits
        shift = shift_of(b, spec, lengths, self.batch)
        numbers = lane_numbers(b, Type(_KEY, self.lanes))
        last_row = b.cast(b.index(spec.queries - 1), _KEY)
        for predicate, distance in (("le", spec.last), ("ge", spec.first)):
            if distance is None:
                continue
            bound = b.cast(b.index(shift + distance), _KEY)
            rows = [b.cast(b.index(self.first + v * self.lanes), _KEY) for v in range(self.vectors)]
            limits.append(
                (predicate, [b.add(b.minimum(b.add(numbers, r), last_row), bound) for r in rows])
            )
        return limits

    def squares(self, extent: Size, body: Callable[[Index, int, list[Index], int], None]) -> None:
        """Append a step for each square of queries and entries; their rows are found once.

        Args:
            extent: Entries.
            body: From the first entry, the number of entries, the rows of the lanes and the first
                lane.
        """
        b, lanes = self.b, self.lanes
        whole = extent // lanes * lanes
        for v in range(self.vectors):
            rows = [self._row(v * lanes + lane) for lane in range(lanes)]
            with b.serial(0, whole, lanes) as entry:
                body(entry, lanes, rows, v * lanes)
            if isinstance(extent, Expression):
                with b.serial(whole, extent) as entry:
                    body(entry, 1, rows, v * lanes)
            elif extent > whole:
                body(Index(whole), extent - whole, rows, v * lanes)

    def turn_queries(self) -> None:
        """Transpose the queries and scale them."""
        b, spec, q = self.b, self.spec, self.kernel.q
        factor = spec.scale / spec.cap if spec.cap else spec.scale * self._unit

        def turn(entry: Index, count: int, rows: list[Index], lane: int) -> None:
            loaded = [
                b.load(q, (*self.batch, row, entry), self.lanes, stride=q.strides[-1], count=count)
                for row in rows
            ]
            columns = transpose_lanes(b, loaded)[:count]
            scaled = [column if factor == 1 else b.mul(column, factor) for column in columns]
            self.store_queries(entry, lane, scaled)

        self.squares(spec.key_size, turn)

    def store_queries(self, entry: Index, lane: int, values: Sequence[IrValue]) -> None:
        """Keep some entries of turned queries, from one on, for the lanes from one on."""
        for number, value in enumerate(values):
            at = (self.number, entry + number, self.lane + lane)
            self.b.store(value, self.kernel.turned, at)

    def block(self, begin: Index, size: Size) -> None:
        """Append what a block of keys adds to the sums."""
        b, kernel = self.b, self.kernel
        before, totals = self._kept(kernel.peaks), self._kept(kernel.totals)
        self._turn_masks(begin, size)
        peaks = self.write_scores(begin, size, before)
        falls = [self.power(old, new) for old, new in zip(before, peaks, strict=True)]
        added = self.rise(size, peaks)
        totals = [
            b.fma(total, fall, new) for total, fall, new in zip(totals, falls, added, strict=True)
        ]
        self.add_values(begin, size, falls)
        self._keep(kernel.peaks, peaks)
        self._keep(kernel.totals, totals)

    def _tiles(
        self, extent: Size, carried: Sequence[IrValue], tile: Callable[..., Sequence[IrValue]]
    ) -> list[IrValue]:
        """Append tiles of rows: `tile` maps the first row, their number and what is carried.

        The last tile of a free extent goes beyond its end.
        """
        values, most = list(carried), self.plan.rows
        is_free = isinstance(extent, Expression)
        whole = (Run(0, -(-extent // most), most, 0),)
        for run in whole if is_free else Split.of(extent, most).runs:

            def part(index: Index, *inner: IrValue, run: Run = run) -> Sequence[IrValue]:
                return tile(index * run.size + run.offset, run.size, inner)

            values = self.b.loop(run.first, run.end, values, part)
        return values

    def write_scores(self, begin: Index, size: Size, peaks: Sequence[IrValue]) -> list[IrValue]:
        """Write the scores of a block of keys; return the largest of each query so far."""
        b, lanes, kernel, spec = self.b, self.lanes, self.kernel, self.spec
        limits = self.limits()

        def tile(row: Index, rows: int, peaks: Sequence[IrValue]) -> Sequence[IrValue]:
            keys = [self._key_at(begin, row + r, size) for r in range(rows)]

            def step(entry: Index, *sums: IrValue) -> Sequence[IrValue]:
                return mma_step(
                    b,
                    sums,
                    rows,
                    self.vectors,
                    lambda r: b.load(keys[r][0], (*keys[r][1], entry)),
                    lambda v: b.load(
                        kernel.turned, (self.number, entry, self.lane + v * lanes), lanes
                    ),
                )

            zeros = [b.constant(0.0, self.type)] * (rows * self.vectors)
            sums = self._steps(spec.key_size, zeros, step)
            peaks = list(peaks)
            for r in range(rows):
                row_sums = sums[r * self.vectors : (r + 1) * self.vectors]
                masked = self.masked(row_sums, begin, row + r, limits)
                for v, score in enumerate(masked):
                    b.store(score, kernel.scores, (row + r, v * lanes))
                    peaks[v] = b.maximum(score, peaks[v])
            return peaks

        return self._tiles(size, peaks, tile)

    def _turn_masks(self, begin: Index, size: Size) -> None:
        """Transpose a block of keys of those masks that differ from query to query."""
        b, kernel = self.b, self.kernel
        for mask, buffer, turned in zip(
            self.spec.masks, kernel.masks, kernel.turned_masks, strict=True
        ):
            if turned is None:
                continue

            def turn(
                key: Index,
                count: int,
                rows: list[Index],
                lane: int,
                buffer: Buffer = buffer,
                turned: Buffer = turned,
                kind: MaskKind = mask.kind,
            ) -> None:
                loaded = []
                for row in rows:
                    at = (*self.batch, row, begin + key)
                    value = load_lanes(b, buffer, at, self.lanes, count)
                    loaded.append(b.cast(value, _DTYPE))
                for number, value in enumerate(transpose_lanes(b, loaded)[:count]):
                    b.store(value, turned, (key + number, lane))

            self.squares(size, turn)

    def masked(
        self,
        scores: Sequence[IrValue],
        begin: Index,
        row: Index,
        limits: Sequence[tuple[str, list[IrValue]]],
    ) -> list[IrValue]:
        """Return the scores of a key, row of a block, as the softmax is to see them."""
        b, spec, kernel = self.b, self.spec, self.kernel
        out = list(scores)
        if spec.cap:
            out = [b.mul(maths.tanh(b, value), spec.cap * self._unit) for value in out]
        for mask, buffer, turned in zip(spec.masks, kernel.masks, kernel.turned_masks, strict=True):
            if turned is None:
                one = b.load(buffer, (*self.batch, self.first, self._key(begin + row)))
                items = [one] * self.vectors
            else:
                items = [
                    b.load(turned, (row, v * self.lanes), self.lanes) for v in range(self.vectors)
                ]
            if mask.kind is MaskKind.ADDED:
                out = [b.add(value, item) for value, item in zip(out, items, strict=True)]
                continue
            if turned is not None:
                items = [b.compare("ne", item, 0.0) for item in items]
            number = mask.fill * self._unit
            if math.isfinite(mask.fill):  # the lowest number stands for "as good as not at all"
                number = min(max(number, _LOWEST), -_LOWEST)
            fill = b.constant(number, self.type)
            pairs = [(value, fill) for value in out]
            if mask.kind is MaskKind.DROPPED:
                pairs = [pair[::-1] for pair in pairs]
            out = [b.select(item, *pair) for item, pair in zip(items, pairs, strict=True)]
        if limits:
            key = b.cast(b.index(begin + row), _KEY)
            for predicate, bounds in limits:
                seen = [b.compare(predicate, key, bound) for bound in bounds]
                out = [
                    b.select(item, value, -math.inf) for value, item in zip(out, seen, strict=True)
                ]
        return out

    def rise(self, size: Size, peaks: Sequence[IrValue]) -> list[IrValue]:
        """Put exponentials in the place of the scores; return their sums."""
        b, lanes, scores = self.b, self.lanes, self.kernel.scores

        def rise(row: Index, *totals: IrValue) -> Sequence[IrValue]:
            out = []
            for v, total in enumerate(totals):
                at = (row, v * lanes)
                value = self.power(b.load(scores, at, lanes), peaks[v])
                b.store(value, scores, at)
                out.append(b.add(total, value))
            return out

        zeros = [b.constant(0.0, self.type)] * self.vectors
        return b.loop(0, size, zeros, rise)

    def add_values(self, begin: Index, size: Size, falls: Sequence[IrValue]) -> None:
        """Add the values of a block of keys to the sums, which fall first."""
        b, lanes, kernel = self.b, self.lanes, self.kernel

        def tile(entry: Index, rows: int, _: Sequence[IrValue]) -> Sequence[IrValue]:
            grid = [
                (self.number, entry + r, self.lane + v * lanes)
                for r in range(rows)
                for v in range(self.vectors)
            ]
            sums = [
                b.mul(b.load(kernel.sums, at, lanes), falls[number % self.vectors])
                for number, at in enumerate(grid)
            ]

            def step(key: Index, *sums: IrValue) -> Sequence[IrValue]:
                return mma_step(
                    b,
                    sums,
                    rows,
                    self.vectors,
                    lambda r: self._value(begin, key, entry + r),
                    lambda v: b.load(kernel.scores, (key, v * lanes), lanes),
                )

            for value, at in zip(self._steps(size, sums, step), grid, strict=True):
                b.store(value, kernel.sums, at)
            return ()

        self._tiles(self.spec.value_size, (), tile)

    def _value(self, begin: Index, key: Index, entry: Index) -> IrValue:
        """Read an entry of a value of a block."""
        if self.kernel.near_values is not None:
            return self.b.load(self.kernel.near_values, (key, entry))
        return self.b.load(self.kernel.v, (*self.batch, begin + key, entry))

    def _steps(
        self, size: Size, sums: Sequence[IrValue], step: Callable[..., Sequence[IrValue]]
    ) -> list[IrValue]:
        """Append the steps of a tile's products: `step` maps a number and sums to the next sums."""

        def steps(index: Index, *sums: IrValue) -> Sequence[IrValue]:
            for number in range(self.plan.unroll):
                sums = tuple(step(index + number, *sums))
            return sums

        # A free number of keys is that of the last block alone.
        whole = 0 if isinstance(size, Expression) else size // self.plan.unroll * self.plan.unroll
        sums = self.b.loop(0, whole, sums, steps, step=self.plan.unroll)
        return self.b.loop(whole, size, sums, step)

    def finish(self) -> None:
        """Divide the sums, and write them turned."""
        b, kernel, y = self.b, self.kernel, self.kernel.y
        totals = self._kept(kernel.totals)
        parts = [b.div(1.0, total) for total in totals]
        ends = {EmptyRow.ZERO: "ne", EmptyRow.CLEAN: "gt"}.get(self.spec.empty)
        seen = [b.compare(ends, total, 0.0) if ends else None for total in totals]

        def turn(entry: Index, count: int, rows: list[Index], lane: int) -> None:
            v = lane // self.lanes
            zero = b.constant(0.0, self.type)
            columns = []
            for number in range(count):
                at = (self.number, entry + number, self.lane + lane)
                value = b.mul(b.load(kernel.sums, at, self.lanes), parts[v])
                condition = seen[v]
                columns.append(value if condition is None else b.select(condition, value, 0.0))
            columns += [zero] * (self.lanes - count)
            for row, value in zip(rows, transpose_lanes(b, columns), strict=True):
                b.store(value, y, (*self.batch, row, entry), stride=y.strides[-1] or 1, count=count)

        self.squares(self.spec.value_size, turn)
