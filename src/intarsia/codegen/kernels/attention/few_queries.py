# SPDX-License-Identifier: Apache-2.0
"""Attention of few queries: lanes are keys for scores, and entries for values.

With as many queries as lanes or more, lanes are queries (`kernel.py`). With one, each key and each
value is read once, as fast as memory. Query heads that share keys are one turn's, which reads a
block of keys for all of them; of many keys, each part is a turn (`parts.py`). Where the number of
queries is free, this is one of two kernels, of which that one has turns which is for so many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from intarsia.codegen import maths
from intarsia.codegen.body import load_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue, Type
from intarsia.codegen.kernels.attention.arguments import AttentionBuffers, declare_buffers
from intarsia.codegen.kernels.attention.limits import begin_of, length_of, limit_of, shift_of
from intarsia.codegen.kernels.attention.parts import (
    PartRow,
    few_turns,
    is_cut,
    part_count,
    parts_shape,
    result_writer,
)
from intarsia.codegen.kernels.attention.spec import (
    Attention,
    AttentionSchedule,
    MaskKind,
)
from intarsia.codegen.kernels.lane_transpose import lane_numbers, transpose_lanes
from intarsia.codegen.kernels.window import Split
from intarsia.extents import Expression, Size

_DTYPE = "float32"
_KEY = "int32"
_LOWEST = float(np.finfo(_DTYPE).min)
_CHUNK = 8
"""Vectors of sums of values that registers hold at once."""
_SHARED_BYTES = 32 << 10
"""Most memory for the queries and sums of a turn, beyond those of one head."""


def build_few(spec: Attention, plan: AttentionSchedule) -> Function:
    """Return the kernel; its arguments are q, k, v, y, masks, lengths, parts."""
    b = Builder("attention")
    buffers = declare_buffers(b, spec)
    parts = None
    if is_cut(spec):
        parts = b.argument("parts", _DTYPE, parts_shape(spec), is_written=True)
    group = _group(spec, plan.few or spec.queries)
    b.note(
        f"batch {spec.batch}, {spec.queries} queries, {spec.keys} keys, "
        f"sizes {spec.key_size} and {spec.value_size}, {group} heads together"
    )
    b.note(f"{plan}")
    if 0 in (*spec.batch, spec.queries, spec.value_size):
        return b.finish_empty()
    turns = _FewQueriesTurn(b, spec, plan, buffers, parts, group)
    shape = (*(spec.batch[:-1] if group > 1 else spec.batch), part_count(spec))
    with b.parallel(math.prod(shape) * few_turns(spec)) as turn:
        turns.append(*b.unravel(turn, shape))
    return b.finish()


class _FewQueriesTurn:
    """Makes what one turn does: the queries of an item, or of heads that share keys.

    Args:
        b: Of the kernel.
        spec: What it computes.
        plan: How.
        buffers: The kernel's arguments.
        parts: What is left of each part of the keys; None if there is one part.
        group: How many heads are one turn's.
    """

    def __init__(
        self,
        b: Builder,
        spec: Attention,
        plan: AttentionSchedule,
        buffers: AttentionBuffers,
        parts: Buffer | None,
        group: int,
    ) -> None:
        self.b, self.spec, self.args, self.group = b, spec, buffers, group
        self.keys, self.part, self.parts = plan.keys, plan.part, parts
        self.lanes = spec.unit.lanes(_DTYPE)
        self.type = Type(_DTYPE, self.lanes)
        self.rows = group * spec.queries
        key_width, value_width = (
            -(-size // self.lanes) * self.lanes for size in (spec.key_size, spec.value_size)
        )
        rows = group * (plan.few or spec.queries)
        keys = plan.keys
        self.scaled = b.local("scaled", _DTYPE, (rows, key_width))
        self.scores = b.local("dots", _DTYPE, (-(-keys // self.lanes) * self.lanes,))
        self.peaks = b.local("peaks", _DTYPE, (rows, self.lanes))
        self.totals = b.local("totals", _DTYPE, (rows, self.lanes))
        self.sums = b.local("added", _DTYPE, (rows, value_width))
        self.batch: list[Index] = []
        self.shift = Index()
        self.number, self.begin, self.end = Index(), Index(), Index(spec.keys)
        self.length: Index | None = None
        self.is_rest = False
        """Whether lanes of a block may lie beyond the last key, which stands for them then."""
        # Masks of the last keys are read one by one, where the number of keys is free.
        is_free = isinstance(spec.keys, Expression)
        self.spread = [
            b.local(f"spread{i}", _DTYPE, (self.lanes,)) if is_free else None
            for i in range(len(spec.masks))
        ]

    def append(self, *place: Index) -> None:
        """Append the turn of an item of the batch and a part of the keys."""
        b, spec, size = self.b, self.spec, self.keys
        *self.batch, self.number = place
        self._limit()
        with b.serial(0, self.rows) as row:
            self._start(row)
        whole = spec.keys // size * size
        self._blocks(self.begin, b.smaller(whole, self.end), size)
        rest = spec.keys - whole
        self.is_rest = isinstance(rest, Expression)
        if self.is_rest or rest:
            self._blocks(Index.of(whole), self.end, rest)
        with b.serial(0, self.rows) as row:
            self._finish(row)

    def _blocks(self, begin: Index, end: Index, size: Size) -> None:
        """Append what the blocks of a range of keys add to the sums of all rows."""
        b = self.b
        with b.serial(begin, end, self.keys) as key, b.serial(0, self.rows) as row:
            self._block(key, size, row)

    def _key(self, key: Index) -> Index:
        """Return a key that is there."""
        return self.b.smaller(key, self.spec.keys - 1) if self.is_rest else key

    def _limit(self) -> None:
        """Find out from where on and up to where the part has keys that are seen."""
        b, spec, lengths = self.b, self.spec, self.args.lengths
        item = [*self.batch, *[Index()] * (self.group > 1)]
        self.length = length_of(b, lengths, item)
        self.shift = shift_of(b, spec, lengths, item)
        self.begin = begin_of(b, spec, lengths, item, Index(), self.keys)
        self.end = limit_of(b, spec, lengths, item, Index.of(spec.queries))
        if self.parts is not None:
            first = self.number * self.part
            self.begin = b.larger(self.begin, first)
            self.end = b.smaller(self.end, first + self.part)

    def _item(self, row: Index) -> tuple[list[Index], Index]:
        """Return the item of a batch, and the query, of a row."""
        if self.group == 1:
            return self.batch, row
        head, query = self.b.split(row, self.spec.queries)
        return [*self.batch, head], query

    def _vectors(self, size: int) -> list[tuple[int, int]]:
        """Return where vectors of some entries begin, and how many lanes of each count."""
        return [(at, min(self.lanes, size - at)) for at in range(0, size, self.lanes)]

    def _start(self, row: Index) -> None:
        """Scale the query of a row, and clear its sums."""
        b, spec, q = self.b, self.spec, self.args.q
        item, query = self._item(row)
        factor = spec.scale / spec.cap if spec.cap else spec.scale
        for at, count in self._vectors(spec.key_size):
            value = b.load(
                q, (*item, query, at), self.lanes, stride=q.strides[-1] or 1, count=count
            )
            b.store(b.mul(value, factor), self.scaled, (row, at))
        zero = b.constant(0.0, self.type)
        b.store(b.constant(_LOWEST, self.type), self.peaks, (row, 0))
        b.store(zero, self.totals, (row, 0))
        for at, _ in self._vectors(spec.value_size):
            b.store(zero, self.sums, (row, at))

    def _block(self, begin: Index, size: Size, row: Index) -> None:
        """Append what a block of keys adds to the sums of a row."""
        b, lanes = self.b, self.lanes
        item, query = self._item(row)
        before = b.load(self.peaks, (row, 0), lanes)
        whole = size if self.is_rest else size // lanes * lanes

        def score(key: Index, peak: IrValue, count: int = lanes) -> list[IrValue]:
            dots = self._dots(item, row, begin + key, count)
            value = self._masked(dots, item, query, begin + key, count)
            b.store(value, self.scores, key)
            return [b.maximum(value, peak)]

        (peak,) = b.loop(0, whole, [before], score, step=lanes)
        if size != whole:
            (peak,) = score(Index(whole), peak, size - whole)
        peak = b.splat(b.reduce("max", peak), lanes)
        fall = maths.exp_nonpositive(b, b.sub(before, peak))

        def rise(key: Index, total: IrValue) -> list[IrValue]:
            value = maths.exp_nonpositive(b, b.sub(b.load(self.scores, key, lanes), peak))
            b.store(value, self.scores, key)
            return [b.add(total, value)]

        total = b.mul(b.load(self.totals, (row, 0), lanes), fall)
        (total,) = b.loop(0, size, [total], rise, step=lanes)
        b.store(total, self.totals, (row, 0))
        b.store(peak, self.peaks, (row, 0))
        self._add_values(item, row, begin, size, fall)

    def _dots(self, item: list[Index], row: Index, key: Index, count: int) -> IrValue:
        """Return the products of a row's query with keys, each in a lane."""
        b, spec, k, lanes = self.b, self.spec, self.args.k, self.lanes

        def step(entry: Index, *sums: IrValue, valid: int = lanes) -> Sequence[IrValue]:
            q = b.load(self.scaled, (row, entry), lanes)
            stride = k.strides[-1] or 1
            return [
                b.fma(
                    q,
                    b.load(k, (*item, keys[c], entry), lanes, stride=stride, count=valid),
                    total,
                )
                for c, total in enumerate(sums)
            ]

        keys = [self._key(key + c) for c in range(count)]
        zero = b.constant(0.0, self.type)
        whole = spec.key_size // lanes * lanes
        sums = b.loop(0, whole, [zero] * count, step, step=lanes)
        if spec.key_size > whole:
            sums = list(step(Index(whole), *sums, valid=spec.key_size - whole))
        columns = transpose_lanes(b, [*sums, *[zero] * (lanes - count)])
        while len(columns) > 1:  # by halves: short chains, and rounded less
            half = len(columns) // 2
            columns = [b.add(x, y) for x, y in zip(columns[:half], columns[half:], strict=True)]
        return columns[0]

    def _masked(
        self, value: IrValue, item: list[Index], query: Index, key: Index, count: int
    ) -> IrValue:
        """Return scores of keys as the softmax is to see them."""
        b, spec, lanes = self.b, self.spec, self.lanes
        if spec.cap:
            value = b.mul(maths.tanh(b, value), spec.cap)
        for mask, buffer, spread in zip(spec.masks, self.args.masks, self.spread, strict=True):
            if self.is_rest and spread is not None:
                read = self._mask_of_rest(buffer, spread, [*item, query], key)
            else:
                read = load_lanes(b, buffer, (*item, query, key), lanes, count)
            if mask.kind is MaskKind.ADDED:
                value = b.add(value, read)
                continue
            fill = b.constant(mask.fill, self.type)
            pair = (value, fill) if mask.kind is MaskKind.KEPT else (fill, value)
            value = b.select(read, *pair)
        limits: list[tuple[str, Index]] = []
        if self.length is not None:
            limits.append(("lt", self.length))
        if self.is_rest:
            limits.append(("lt", Index.of(spec.keys)))
        elif count < lanes:
            limits.append(("lt", key + count))
        if spec.last is not None:
            limits.append(("le", query + self.shift + spec.last))
        if spec.first is not None:
            limits.append(("ge", query + self.shift + spec.first))
        if not limits:
            return value
        numbers = b.add(lane_numbers(b, Type(_KEY, lanes)), b.cast(b.index(key), _KEY))
        for predicate, bound in limits:
            seen = b.compare(predicate, numbers, b.cast(b.index(bound), _KEY))
            value = b.select(seen, value, -math.inf)
        return value

    def _mask_of_rest(
        self, mask: Buffer, spread: Buffer, place: list[Index], key: Index
    ) -> IrValue:
        """Read a mask key by key, as none beyond the last may be read."""
        b = self.b
        for lane in range(self.lanes):
            one = b.load(mask, (*place, self._key(key + lane)))
            b.store(b.cast(one, _DTYPE), spread, lane)
        read = b.load(spread, 0, self.lanes)
        return b.compare("ne", read, 0.0) if mask.dtype == "bool" else read

    def _add_values(
        self, item: list[Index], row: Index, begin: Index, size: Size, fall: IrValue
    ) -> None:
        """Add the values of a block of keys to a row's sums, which fall first."""
        b, v, lanes = self.b, self.args.v, self.lanes
        vectors = self._vectors(self.spec.value_size)
        for run in Split.of(len(vectors), _CHUNK).runs:
            for first in run.begins:
                chunk = vectors[first : first + run.size]

                def step(
                    key: Index, *sums: IrValue, chunk: Sequence[tuple[int, int]] = tuple(chunk)
                ) -> Sequence[IrValue]:
                    weight = b.splat(b.load(self.scores, key), lanes)
                    stride = v.strides[-1] or 1
                    return [
                        b.fma(
                            weight,
                            b.load(v, (*item, begin + key, at), lanes, stride=stride, count=count),
                            total,
                        )
                        for (at, count), total in zip(chunk, sums, strict=True)
                    ]

                sums = [b.mul(b.load(self.sums, (row, at), lanes), fall) for at, _ in chunk]
                for (at, _), value in zip(chunk, b.loop(0, size, sums, step), strict=True):
                    b.store(value, self.sums, (row, at))

    def _finish(self, row: Index) -> None:
        """Write what a row has of the part; the result, if there is no other part."""
        b, spec, parts = self.b, self.spec, self.parts
        if parts is None:
            self._write(row)
            return
        if not isinstance(spec.keys, Expression):
            self._leave(row, parts)
            return
        keys = b.index(spec.keys)
        with b.where(b.compare("le", keys, self.part)):
            self._write(row)
        with b.where(b.compare("gt", keys, self.part)):
            self._leave(row, parts)

    def _write(self, row: Index) -> None:
        """Divide a row's sums, and write them."""
        b, lanes = self.b, self.lanes
        item, query = self._item(row)
        total = b.load(self.totals, (row, 0), lanes)
        write = result_writer(b, self.spec, self.args.y, (*item, query), total)
        for at, count in self._vectors(self.spec.value_size):
            write(at, count, b.load(self.sums, (row, at), lanes))

    def _leave(self, row: Index, parts: Buffer) -> None:
        """Leave a row's sums and what they are relative to."""
        b, lanes, layout = self.b, self.lanes, PartRow.of(self.spec)
        item, query = self._item(row)
        places = [(self.sums, at, at) for at, _ in layout.vectors]
        places += [(self.peaks, 0, layout.peak), (self.totals, 0, layout.total)]
        for buffer, source, target in places:
            value = b.load(buffer, (row, source), lanes)
            b.store(value, parts, (*item, self.number, query, target))


def _group(spec: Attention, most: int) -> int:
    """Return how many heads of one turn, of so many queries at most, share keys and values."""
    if not spec.batch:
        return 1
    group = spec.batch[-1]
    if not isinstance(group, int) or spec.k.strides[-3] != 0 or spec.v.strides[-3] != 0:
        return 1
    if spec.lengths is not None and spec.lengths.strides[-1] != 0:
        return 1
    nbytes = 4 * group * most * (spec.key_size + spec.value_size)
    return group if nbytes <= _SHARED_BYTES else 1
