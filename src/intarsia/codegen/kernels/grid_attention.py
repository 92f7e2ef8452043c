# SPDX-License-Identifier: Apache-2.0
"""Attention for GPUs: a block has some queries, and keys and values go by in shared memory.

Sums over keys are kept with the largest score so far and scaled anew when it grows (Dao et al.,
"FlashAttention", 2022); no matrix of scores is ever whole. The lanes of an octet, eight neighbours,
have the same queries: of a slice of keys each has the scores of every eighth one, and of the result
every eighth vector of entries. The largest score goes from lane to lane by shuffles; exponentials
go through shared memory, as each lane needs those of all.

Beyond the last query or key the last one is read again: such queries are not written, and such keys
do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from intarsia.codegen import maths
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue, Type
from intarsia.codegen.kernels.attention import Attention, EmptyRow, MaskKind
from intarsia.codegen.kernels.attention.arguments import declare_buffers
from intarsia.codegen.kernels.attention.limits import begin_of, length_of, limit_of, shift_of
from intarsia.codegen.maths import LOG2_E
from intarsia.codegen.unit import GpuModel
from intarsia.extents import is_free

_DTYPE = "float32"
_VECTOR = 4
"""Entries of a vector: what a work-item reads at once, where memory lets it."""
_OCTET = 8
"""Lanes that share queries."""
_EARLY = 16
"""Entries of values that a work-item may have on their way while it computes scores: with 32 and
`sm_80` it has 213 registers, else 197."""
_LOWEST = float(np.finfo(_DTYPE).min)
"""Where largest scores start: minus infinity would make a slice without scores NaN."""


@dataclass(frozen=True, slots=True)
class GridAttentionSchedule:
    """The choices of a kernel.

    Attributes:
        queries: Of a block.
        keys: Of a slice in shared memory; a multiple of eight.
        item_queries: Of a work-item; a part of `queries`.
    """

    queries: int
    keys: int
    item_queries: int

    @property
    def work_items(self) -> int:
        """Work-items of a block."""
        return self.queries // self.item_queries * _OCTET


@dataclass(frozen=True, slots=True)
class GridAttention:
    """One kernel; its arguments are q, k, v, y, masks, lengths.

    Attributes:
        attention: What is computed.
        machine: What it is shaped for.
        schedule: How it is cut.
    """

    attention: Attention
    machine: GpuModel
    schedule: GridAttentionSchedule


SPECS = (GridAttention,)

_LEAST = 16
"""Queries and keys from which a slice is worth sharing."""
_SCHEDULES = (GridAttentionSchedule(32, 32, 2), GridAttentionSchedule(32, 16, 2))
"""The first that a machine has memory for. An estimate: nobody has measured them on a GPU."""


def grid_attention(attention: Attention, machine: GpuModel) -> GridAttention | None:
    """Return the same for a GPU; None if it has no slices that are worth sharing.

    Args:
        attention: What is computed.
        machine: What it is for.
    """
    spec = attention
    sizes = (*spec.batch, spec.queries, spec.keys)
    layouts = (spec.q, spec.k, spec.v, spec.y)
    if is_free((*sizes, *(step for layout in layouts for step in layout.strides))):
        return None
    if {layout.dtype for layout in layouts} != {_DTYPE} or not math.prod(spec.batch):
        return None
    if min(int(spec.queries), int(spec.keys)) < _LEAST or spec.value_size == 0:
        return None
    cuts = (GridAttention(spec, machine, plan) for plan in _SCHEDULES)
    return next((cut for cut in cuts if fits(cut)), None)


def fits(spec: GridAttention) -> bool:
    """Tell whether the machine has what a kernel needs."""
    plan, machine = spec.schedule, spec.machine
    meeting = 0 if machine.has_shuffles else 4 * plan.work_items  # of the shuffles
    sums = plan.item_queries * _widths(spec).value // _OCTET
    return (
        plan.work_items <= machine.most_items
        and plan.work_items % machine.lanes == 0
        and machine.lanes % _OCTET == 0
        and _widths(spec).shared_bytes(plan) + meeting <= machine.shared_bytes
        and 2 * sums <= machine.registers
    )


@dataclass(frozen=True, slots=True)
class _Widths:
    """Entries of rows in shared memory.

    Attributes:
        key: Of a query or a key, filled up to whole vectors.
        value: Of a value, filled up to a vector for each lane of an octet.
    """

    key: int
    value: int

    @property
    def pitch(self) -> int:
        """Entries from one query or key to the next: neighbours lie in other banks."""
        return self.key + _VECTOR

    def slice_entries(self, plan: GridAttentionSchedule) -> int:
        """Return the entries of a slice of keys, or of values in the same place."""
        return plan.keys * max(self.pitch, self.value)

    def shared_bytes(self, plan: GridAttentionSchedule) -> int:
        """Return what queries, a slice, and exponentials take."""
        powers = plan.queries * (plan.keys + _VECTOR)
        return 4 * (plan.queries * self.pitch + self.slice_entries(plan) + powers)


def _widths(spec: GridAttention) -> _Widths:
    def whole(entries: int, step: int) -> int:
        return -(-entries // step) * step

    attention = spec.attention
    return _Widths(
        whole(attention.key_size, _VECTOR), whole(attention.value_size, _VECTOR * _OCTET)
    )


def build(spec: GridAttention) -> Function:
    """Return the kernel."""
    return _GridAttentionKernel(spec).function()


@dataclass(frozen=True, slots=True)
class _Brought:
    """What a work-item has read of rows that go to shared memory.

    Attributes:
        value: A vector, or a number.
        row: Which row it is of.
        column: Its first entry there.
        is_own: Whether it is this work-item's to bring; None if it surely is.
    """

    value: IrValue
    row: Index
    column: Index
    is_own: IrValue | None


class _GridAttentionKernel:
    def __init__(self, spec: GridAttention) -> None:
        self.spec, self.plan, self.machine = spec.attention, spec.schedule, spec.machine
        self.widths = _widths(spec)
        self.b = b = Builder("grid_attention")
        buffers = declare_buffers(b, self.spec)
        self.q, self.k, self.v, self.y = buffers.q, buffers.k, buffers.v, buffers.y
        self.masks, self.lengths = buffers.masks, buffers.lengths
        plan, widths = self.plan, self.widths
        self.near_queries = b.shared("near_queries", _DTYPE, (plan.queries * widths.pitch,))
        self.slice = b.shared("slice", _DTYPE, (widths.slice_entries(plan),))
        self.powers = b.shared("powers", _DTYPE, (plan.queries, plan.keys + _VECTOR))
        self.vector = Type(_DTYPE, _VECTOR)

    def function(self) -> Function:
        b, spec, plan = self.b, self.spec, self.plan
        b.note(
            f"batch {spec.batch}, {spec.queries} queries, {spec.keys} keys, "
            f"sizes {spec.key_size} and {spec.value_size}"
        )
        b.note(f"{plan}")
        lanes = self.machine.lanes
        shape = (*spec.batch, -(-int(spec.queries) // plan.queries))
        with (
            b.grid(math.prod(shape)) as number,
            b.block(plan.work_items // lanes) as warp,
            b.lane(lanes) as lane,
        ):
            *batch, block = b.unravel(number, shape)
            self.batch, self.first = tuple(batch), block * plan.queries
            self.item = warp * lanes + lane
            octet, self.eighth = b.split(self.item, _OCTET)
            self.rows = [octet * plan.item_queries + r for r in range(plan.item_queries)]
            self._work_item()
        return b.finish()

    def _work_item(self) -> None:
        b, spec, plan = self.b, self.spec, self.plan
        rows, vectors = plan.item_queries, self.widths.value // (_VECTOR * _OCTET)
        brought = self._bring(self.q, self.first, plan.queries, self.widths.key)
        self._put(brought, self.near_queries, self.widths.pitch)
        number = Type(_DTYPE)
        initial = [b.constant(_LOWEST, number)] * rows + [b.constant(0.0, number)] * rows
        initial += [b.constant(0.0, self.vector)] * (rows * vectors)
        end = limit_of(b, spec, self.lengths, self.batch, self.first + plan.queries)
        begin = begin_of(b, spec, self.lengths, self.batch, self.first, plan.keys)

        def step(key: Index, *carried: IrValue) -> Sequence[IrValue]:
            return self._slice(key, carried[:rows], carried[rows : 2 * rows], carried[2 * rows :])

        found = b.loop(begin, end, initial, step, step=plan.keys)
        self._finish(found[rows : 2 * rows], found[2 * rows :])

    # Memory

    def _bring(self, source: Buffer, first: Index, count: int, width: int) -> list[_Brought]:
        """Read what a work-item is to bring of rows, filled up with zeros to a width."""
        b, columns = self.b, int(source.shape[-1])
        last = int(source.shape[-2]) - 1
        lanes = _VECTOR if source.strides[-1] == 1 and columns % _VECTOR == 0 else 1
        vectors, items = count * width // lanes, self.plan.work_items
        found = []
        for number in range(-(-vectors // items)):
            at, is_own = self.item + number * items, None
            if (number + 1) * items > vectors:
                is_own = b.compare("lt", b.index(at), b.index(vectors))
                at = b.smaller(at, vectors - 1)
            row, part = b.split(at, width // lanes)
            column = part * lanes
            inside = column if width == columns else b.smaller(column, columns - lanes)
            value = b.load(source, (*self.batch, b.smaller(first + row, last), inside), lanes)
            if width != columns:
                is_there = b.compare("lt", b.index(column), b.index(columns))
                value = b.select(is_there, value, 0.0)
            found.append(_Brought(value, row, column, is_own))
        return found

    def _put(self, brought: Sequence[_Brought], place: Buffer, pitch: int) -> None:
        """Write into shared memory what was brought."""
        for one in brought:
            at = one.row * pitch + one.column
            if one.is_own is None:
                self.b.store(one.value, place, at)
                continue
            with self.b.where(one.is_own):
                self.b.store(one.value, place, at)

    # Slices

    def _slice(
        self,
        key: Index,
        before: Sequence[IrValue],
        totals: Sequence[IrValue],
        sums: Sequence[IrValue],
    ) -> list[IrValue]:
        """Add a slice of keys and values to the sums."""
        b, plan, widths = self.b, self.plan, self.widths
        self._put(self._bring(self.k, key, plan.keys, widths.key), self.slice, widths.pitch)
        b.barrier()
        is_early = plan.keys * widths.value <= _EARLY * plan.work_items
        brought = self._bring(self.v, key, plan.keys, widths.value) if is_early else []
        scores = self._scores(key)
        peaks, falls, after = [], [], []
        for r, row in enumerate(self.rows):
            peak = before[r]
            for score in scores[r]:
                peak = b.maximum(score, peak)
            for mask in (4, 2, 1):
                peak = b.maximum(b.warp_shuffle(peak, mask), peak)
            fall, total = self._power(before[r], peak), totals[r]
            total = b.mul(total, fall)
            for number, score in enumerate(scores[r]):
                power = self._power(score, peak)
                total = b.add(total, power)
                b.store(power, self.powers, (row, self.eighth + number * _OCTET))
            peaks.append(peak)
            falls.append(fall)
            after.append(total)
        b.barrier()  # nobody reads the keys any more
        brought = brought or self._bring(self.v, key, plan.keys, widths.value)
        self._put(brought, self.slice, widths.value)
        b.barrier()
        sums = self._add_values(falls, sums)
        b.barrier()  # nor the values
        return [*peaks, *after, *sums]

    def _scores(self, key: Index) -> list[list[IrValue]]:
        """Return a work-item's scores: for each of its queries those of every eighth key."""
        b, plan, pitch = self.b, self.plan, self.widths.pitch
        keys = range(plan.keys // _OCTET)

        def step(entry: Index, *sums: IrValue) -> Sequence[IrValue]:
            queries = [b.load(self.near_queries, row * pitch + entry, _VECTOR) for row in self.rows]
            columns = [
                b.load(self.slice, (self.eighth + number * _OCTET) * pitch + entry, _VECTOR)
                for number in keys
            ]
            pairs = [(query, column) for query in queries for column in columns]
            return [b.fma(*pair, total) for pair, total in zip(pairs, sums, strict=True)]

        zeros = [b.constant(0.0, self.vector)] * (len(self.rows) * len(keys))
        sums = b.loop(0, self.widths.key, zeros, step, step=_VECTOR)
        found = []
        for r, row in enumerate(self.rows):
            query = self.first + row
            if int(self.spec.queries) % plan.queries:
                query = b.smaller(query, int(self.spec.queries) - 1)
            parts = sums[r * len(keys) : (r + 1) * len(keys)]
            found.append(
                [
                    self._masked(b.reduce("add", part), query, key + self.eighth + number * _OCTET)
                    for number, part in enumerate(parts)
                ]
            )
        return found

    def _masked(self, product: IrValue, query: Index, key: Index) -> IrValue:
        """Return a score as the softmax is to see it."""
        b, spec = self.b, self.spec
        score = b.mul(product, spec.scale / spec.cap if spec.cap else spec.scale)
        if spec.cap:
            score = b.mul(maths.tanh(b, score), spec.cap)
        there = key
        is_cut = int(spec.keys) % self.plan.keys != 0
        if is_cut:
            there = b.smaller(key, int(spec.keys) - 1)
        for mask, buffer in zip(spec.masks, self.masks, strict=True):
            item = b.load(buffer, (*self.batch, query, there))
            if mask.kind is MaskKind.ADDED:
                score = b.add(score, item)
                continue
            fill = b.constant(mask.fill, score.type)
            pair = (score, fill) if mask.kind is MaskKind.KEPT else (fill, score)
            score = b.select(item, *pair)
        for predicate, bound in self._limits(query, is_cut=is_cut):
            seen = b.compare(predicate, b.index(key), b.index(bound))
            score = b.select(seen, score, -math.inf)
        return score

    def _limits(self, query: Index, *, is_cut: bool) -> list[tuple[str, Index]]:
        """Return what keys that a query sees compare with, and how."""
        b, spec = self.b, self.spec
        limits = [("lt", Index.of(spec.keys))] if is_cut else []
        length = length_of(b, self.lengths, self.batch)
        if length is not None:
            limits.append(("lt", length))
        shift = shift_of(b, spec, self.lengths, self.batch)
        if spec.last is not None:
            limits.append(("le", query + shift + spec.last))
        if spec.first is not None:
            limits.append(("ge", query + shift + spec.first))
        return limits

    def _power(self, score: IrValue, peak: IrValue) -> IrValue:
        """Return the exponential of what a score is below the largest one."""
        b = self.b
        return maths.exp2_nonpositive(b, b.mul(b.sub(score, peak), LOG2_E))

    def _vectors(self) -> list[Index]:
        """Return where a lane's vectors of a value begin."""
        count = self.widths.value // (_VECTOR * _OCTET)
        return [self.eighth * _VECTOR + i * (_VECTOR * _OCTET) for i in range(count)]

    def _add_values(self, falls: Sequence[IrValue], sums: Sequence[IrValue]) -> list[IrValue]:
        """Add a slice of values to the sums, which fall first."""
        b, width, columns = self.b, self.widths.value, self._vectors()
        pairs = [(r, column) for r in range(len(self.rows)) for column in columns]
        fallen = [b.mul(total, falls[r]) for (r, _), total in zip(pairs, sums, strict=True)]

        def step(key: Index, *sums: IrValue) -> Sequence[IrValue]:
            powers = [b.load(self.powers, (row, key), _VECTOR) for row in self.rows]
            totals = list(sums)
            for lane in range(_VECTOR):
                values = [
                    b.load(self.slice, (key + lane) * width + column, _VECTOR) for column in columns
                ]
                for number, (r, _) in enumerate(pairs):
                    value = values[number % len(columns)]
                    power = b.extract(powers[r], lane)
                    totals[number] = b.fma(power, value, totals[number])
            return totals

        return b.loop(0, self.plan.keys, fallen, step, step=_VECTOR)

    def _finish(self, totals: Sequence[IrValue], sums: Sequence[IrValue]) -> None:
        """Divide the sums, and write those of queries that there are."""
        b, spec, columns = self.b, self.spec, self._vectors()
        predicate = {EmptyRow.ZERO: "ne", EmptyRow.CLEAN: "gt"}.get(spec.empty)
        for r, row in enumerate(self.rows):
            total = totals[r]
            for mask in (4, 2, 1):
                total = b.add(total, b.warp_shuffle(total, mask))
            part = b.div(1.0, total)
            for number, column in enumerate(columns):
                value = b.mul(sums[r * len(columns) + number], part)
                if predicate is not None:
                    value = b.select(b.compare(predicate, total, 0.0), value, 0.0)
                self._write(value, self.first + row, column)

    def _write(self, value: IrValue, query: Index, column: Index) -> None:
        """Write entries of a result, if they are there."""
        b, spec = self.b, self.spec
        inside = []
        if int(spec.queries) % self.plan.queries:
            inside.append(b.compare("lt", b.index(query), b.index(int(spec.queries))))
        if spec.value_size % _VECTOR == 0:
            if spec.value_size != self.widths.value:
                inside.append(b.compare("lt", b.index(column), b.index(spec.value_size)))
            self._guarded(value, query, column, inside)
            return
        for lane in range(_VECTOR):
            is_there = b.compare("lt", b.index(column + lane), b.index(spec.value_size))
            one = b.extract(value, lane)
            self._guarded(one, query, column + lane, [*inside, is_there])

    def _guarded(
        self, value: IrValue, query: Index, column: Index, inside: Sequence[IrValue]
    ) -> None:
        b, at = self.b, (*self.batch, query, column)
        if not inside:
            b.store(value, self.y, at, stride=self.y.strides[-1])
            return
        condition = inside[0] if len(inside) == 1 else b.binary("and", *inside)
        with b.where(condition):
            b.store(value, self.y, at, stride=self.y.strides[-1])
