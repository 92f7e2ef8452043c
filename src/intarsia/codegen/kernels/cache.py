# SPDX-License-Identifier: Apache-2.0
"""Keys and values kept for later: where new ones go, which a run knows, and joining both."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from intarsia.codegen.body import Layout, load_lanes, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import INT64, Buffer, Function, Index, IrValue, Subscript, Type
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.gather import vectors
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Size

_TURN_ROWS = 256
"""Rows of a turn of the parallel loop."""

CLEAN_ROWS = 384
"""What kernels of attention read whole blocks of divides this: 64, 96, 128 or 192 keys."""


@dataclass(frozen=True, slots=True)
class CacheLengths:
    """How many keys count for each item of a batch, and the positions of its new ones.

    An item's length is `last + 1`, but at least all of its new keys count: those of a first run may
    end in padding. What does not fit the extents is a fault, and is clamped.

    Attributes:
        batch: Items.
        past: Keys that there is room for before the new ones.
        new: New keys of each item.
        capacity: Keys that there is room for, the new ones among them; the larger one of `past` and
            what `total` says.
        last: Over (batch,): the number of the last key that counts; int32 or int64.
        total: Over (1,): the most keys of an item.
        lengths: Over (batch,), int64.
        positions: Over (batch, new), int64; None if nobody wants them.
        given: Positions over (batch, new) instead of those that follow from lengths; of a first run
            only the first one counts, and the others follow it.
    """

    batch: Size
    past: Size
    new: Size
    capacity: Size
    last: Layout
    total: Layout
    lengths: Layout
    positions: Layout | None = None
    given: Layout | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """`y[i, h, n:n + new] = x[i, h]`, where `n + new = lengths[i]`; rows before stay.

    Rows behind are 0 up to the end of the block of `CLEAN_ROWS` in which the last one lies: what
    reads y in blocks may find no numbers there, as 0 times what is no number is none. A run that
    goes on from rows of one before finds the block clean that it begins in.

    Attributes:
        batch: Items.
        heads: Of each.
        new: Rows of x.
        capacity: Rows of y.
        size: Columns.
        x: Over (batch, heads, new, size).
        y: Over (batch, heads, capacity, size).
        lengths: Over (batch,), int64.
        unit: What it is shaped for.
        keeps: Whether rows behind stay as they were.
    """

    batch: Size
    heads: int
    new: Size
    capacity: Size
    size: int
    x: Layout
    y: Layout
    lengths: Layout
    unit: CpuModel = AVX512
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Carry:
    """`y[i, h, :n] = past[i, h, :n]`, and a rest from `n + new` on, where `n + new = lengths[i]`.

    The rest is zeros, but for the rows that `Append` cleans; or as it was in the past.

    Attributes:
        batch: Items.
        heads: Of each.
        past: Rows of what was before; 0 for nothing.
        new: Rows that stay as they are.
        capacity: Rows of y.
        size: Columns.
        before: Over (batch, heads, past, size); not an argument without a past.
        y: Over (batch, heads, capacity, size).
        lengths: Over (batch,), int64.
        unit: What it is shaped for.
        keeps: Whether rows behind the new ones stay as they were; then the past has all rows.
    """

    batch: Size
    heads: int
    past: Size
    new: Size
    capacity: Size
    size: int
    before: Layout | None
    y: Layout
    lengths: Layout
    unit: CpuModel = AVX512
    keeps: bool = False


SPECS = (CacheLengths, Append, Carry)


def build(spec: CacheLengths | Append | Carry) -> Function:
    """Return the kernel.

    Its arguments are last, total, given positions, lengths, positions and fault; x, lengths and y;
    or past, lengths and y.
    """
    match spec:
        case CacheLengths():
            return _cache_lengths(spec)
        case Append():
            return _append(spec)
        case Carry():
            return _carry(spec)


def _cache_lengths(spec: CacheLengths) -> Function:
    b = Builder("cache_lengths")
    last = spec.last.declare(b, "last", (spec.batch,))
    total = spec.total.declare(b, "total", (1,))
    box = (spec.batch, spec.new)
    given = spec.given.declare(b, "given", box) if spec.given else None
    lengths = spec.lengths.declare(b, "lengths", (spec.batch,), is_written=True)
    positions = None
    if spec.positions is not None:
        positions = spec.positions.declare(b, "positions", box, is_written=True)
    fault = b.argument("fault", INT64.dtype, (1,), is_written=True)
    b.note(f"{spec.new} new keys behind at most {spec.past}, room for {spec.capacity}")

    def place(item: Index, row: Index, begin: Index, is_first: IrValue) -> IrValue:
        if given is None:
            return b.index(begin + row)
        follows = b.add(b.cast(b.load(given, (0, 0)), INT64.dtype), b.index(row))
        return b.select(is_first, follows, b.cast(b.load(given, (item, row)), INT64.dtype))

    def item(at: Index, fault: IrValue) -> list[IrValue]:
        found = b.cast(b.load(last, at), INT64.dtype)
        end = Index.of(found) + 1
        begin = b.larger(end - spec.new, 0)
        room = b.smaller(spec.past, b.larger(Index.of(spec.capacity) - spec.new, 0))
        clamped = b.smaller(begin, room)
        b.store(b.index(clamped + spec.new), lengths, at)
        if positions is not None:
            with b.serial(0, spec.new) as row:
                b.store(place(at, row, clamped, is_first), positions, (at, row))
        is_wrong = b.compare("lt", found, 0)
        is_wrong = b.binary("or", is_wrong, b.compare("gt", b.index(begin), b.index(room)))
        return [b.select(is_wrong, 1, fault)]

    with b.parallel(1):
        most = b.cast(b.load(total, 0), INT64.dtype)
        is_first = b.compare("eq", most, spec.new)
        room = b.index(b.larger(Index.of(most), spec.past))
        is_other = b.cast(b.compare("ne", room, spec.capacity), INT64.dtype)
        (wrong,) = b.loop(0, spec.batch, [is_other], item)
        b.store(wrong, fault, 0)
    return b.finish()


def _append(spec: Append) -> Function:
    b = Builder("append")
    shape = (spec.batch, spec.heads)
    x = spec.x.declare(b, "x", (*shape, spec.new, spec.size))
    lengths = spec.lengths.declare(b, "lengths", (spec.batch,))
    y = spec.y.declare(b, "y", (*shape, spec.capacity, spec.size), is_written=True)
    b.note(f"{spec.new} rows of {spec.size} in {spec.capacity}")
    turns = (*shape, -(-spec.new // _TURN_ROWS))
    for item, head, block in each_turn(b, turns, prod((*turns, spec.size))):
        begin = block * _TURN_ROWS
        end = Index.of(b.load(lengths, item))
        start = end - spec.new
        with b.serial(begin, b.smaller(begin + _TURN_ROWS, spec.new)) as row:
            for at, lanes, count in vectors(b, spec.unit, y.dtype, spec.size):
                value = load_lanes(b, x, (item, head, row, at), lanes, count)
                store_lanes(b, value, y, (item, head, start + row, at), count)
        if spec.keeps:
            continue
        first, last = _cleaned(b, start, end)
        with (
            b.where(b.compare("eq", b.index(block), 0)),
            b.serial(first, b.smaller(last, spec.capacity)) as row,
        ):
            for at, lanes, count in vectors(b, spec.unit, y.dtype, spec.size):
                zero = b.constant(0, Type(y.dtype, lanes))
                store_lanes(b, zero, y, (item, head, row, at), count)
    return b.finish()


def _cleaned(b: Builder, start: Index, end: Index) -> tuple[Index, Index]:
    """Return which rows new ones between `start` and `end` have zeros written to, see `Append`."""
    begun, last = (
        b.split(place + CLEAN_ROWS - 1, CLEAN_ROWS)[0] * CLEAN_ROWS for place in (start, end)
    )
    return b.larger(end, begun), last


def _carry(spec: Carry) -> Function:
    b = Builder("carry")
    shape = (spec.batch, spec.heads)
    past = None
    if spec.before is not None:
        past = spec.before.declare(b, "past", (*shape, spec.past, spec.size))
    lengths = spec.lengths.declare(b, "lengths", (spec.batch,))
    y = spec.y.declare(b, "y", (*shape, spec.capacity, spec.size), is_written=True)
    b.note(f"{spec.past} rows of {spec.size} in {spec.capacity}")
    turns = (*shape, -(-spec.capacity // _TURN_ROWS))
    for item, head, block in each_turn(b, turns, prod((*turns, spec.size))):
        begin = block * _TURN_ROWS
        stop = b.smaller(begin + _TURN_ROWS, spec.capacity)
        end = Index.of(b.load(lengths, item))
        start = end - spec.new
        parts: list[tuple[Subscript, Subscript, Buffer | None]] = []
        if past is not None:
            parts.append((0, start, past))
        if spec.keeps:
            parts.append((end, spec.capacity, past))
        else:  # around the rows that are cleaned with the new ones, in place or not
            begun, done = _cleaned(b, start, end)
            parts += [(end, begun, None), (b.larger(done, end), spec.capacity, None)]
        for first, last, source in parts:
            with b.serial(b.larger(begin, first), b.smaller(stop, last)) as row:
                for at, lanes, count in vectors(b, spec.unit, y.dtype, spec.size):
                    value = b.constant(0, Type(y.dtype, lanes))
                    if source is not None:
                        value = load_lanes(b, source, (item, head, row, at), lanes, count)
                    store_lanes(b, value, y, (item, head, row, at), count)
    return b.finish()
