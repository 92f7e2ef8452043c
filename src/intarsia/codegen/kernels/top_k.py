# SPDX-License-Identifier: Apache-2.0
"""TopK: the largest or smallest entries along a dimension, in order, and where they are.

Of equal entries the first comes first. NaN is larger than every number, as in numpy. Vectors of
entries are compared with the worst one that is wanted, and most are passed over. A few wanted ones
are kept sorted in registers. Of many, the worst is found first: on a heap, or, where they are a
large part, by counting digits of keys; those that are not worse are then sorted by counting digits
(Knuth, "The Art of Computer Programming" 3, 5.2.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import INT64, Buffer, Function, Index, IrValue, Subscript, Type
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.sort_keys import (
    DIGIT,
    DIGITS,
    clear_counts,
    digit_of,
    key_dtype,
    sort_by_digits,
    sort_key,
)
from intarsia.codegen.scalar_ops.conversion import convert
from intarsia.codegen.unit import AVX512, CpuModel

MOST_IN_REGISTERS = 64
"""The most entries that are kept sorted in registers."""
_MOST_LANES = 16
_HEAP_PART = 64
"""A heap finds the worst of wanted entries if there are so many times as many in all."""


@dataclass(frozen=True, slots=True)
class TopK:
    """The first `count` entries along a dimension, by size.

    Attributes:
        extents: Of x.
        axis: The dimension; not negative.
        count: How many; at most the dimension's extent.
        x: Over the extents.
        y: Over the extents, of which that of the axis is `count`.
        indices: Over the same; int64.
        is_largest: Whether the largest are wanted, else the smallest.
        places: Over the same, for indices while they are sorted; int64. None keeps entries sorted
            in registers: for at most `MOST_IN_REGISTERS`.
        unit: What it is shaped for.
    """

    extents: tuple[int, ...]
    axis: int
    count: int
    x: Layout
    y: Layout
    indices: Layout
    is_largest: bool = True
    places: Layout | None = None
    unit: CpuModel = AVX512

    @property
    def extent(self) -> int:
        """Entries that there are to choose from."""
        return self.extents[self.axis]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of y."""
        return (*self.extents[: self.axis], self.count, *self.extents[self.axis + 1 :])


SPECS = (TopK,)


@dataclass(frozen=True, slots=True)
class _Row:
    """The entries along the dimension at one place of the others."""

    b: Builder
    spec: TopK
    x: Buffer
    y: Buffer
    indices: Buffer
    place: tuple[Index, ...]

    def at(self, entry: Subscript) -> list[Index]:
        """Return the subscripts of an entry."""
        axis = self.spec.axis
        return [*self.place[:axis], Index.of(entry), *self.place[axis + 1 :]]

    def read(self, entry: Subscript, lanes: int = 1) -> IrValue:
        """Return entries of x from one on."""
        step = self.x.strides[self.spec.axis]
        if lanes == 1 or step == 0:
            return self.b.splat(self.b.load(self.x, self.at(entry)), lanes)
        return self.b.load(self.x, self.at(entry), lanes, stride=step)

    def key(self, entry: Subscript) -> IrValue:
        """Return an unsigned number that is the smaller the earlier an entry comes."""
        return sort_key(self.b, self.read(entry), is_falling=self.spec.is_largest)


def build(spec: TopK) -> Function:
    """Return the kernel; its arguments are x, y, indices, and places if there are any."""
    b = Builder("top_k" if spec.places is None else "top_k_sorted")
    x = spec.x.declare(b, "x", spec.extents)
    y = spec.y.declare(b, "y", spec.shape, is_written=True)
    indices = spec.indices.declare(b, "indices", spec.shape, is_written=True)
    order = "largest" if spec.is_largest else "smallest"
    b.note(f"{spec.count} of {spec.extents} along {spec.axis}, {order}")
    rows = [1 if dim == spec.axis else size for dim, size in enumerate(spec.shape)]
    if spec.places is None:
        for place in each_turn(b, rows, prod(spec.shape)):
            _keep_sorted(_Row(b, spec, x, y, indices, tuple(place)))
        return b.finish()
    places = spec.places.declare(b, "places", spec.shape, is_written=True)
    counts = b.local("counts", INT64.dtype, (DIGITS,))
    for place in each_turn(b, rows, prod(spec.shape)):
        row = _Row(b, spec, x, y, indices, tuple(place))
        source, target = _memories(row, places)
        if spec.count == spec.extent:
            with b.serial(0, spec.count) as number:
                b.store(b.index(number), source, row.at(number))
        else:
            is_part_small = spec.extent >= _HEAP_PART * spec.count
            find = _find_on_heap if is_part_small else _find_by_digits
            _collect(row, source, *find(row, counts))
        _sort(row, counts, source, target)
    return b.finish()


def _memories(row: _Row, places: Buffer) -> tuple[Buffer, Buffer]:
    """Return where indices lie before they are sorted, and the other memory.

    Each pass writes to the other one, and the last pass to the results'.
    """
    passes = -(-8 * row.x.item_bytes // DIGIT)
    return (row.indices, places) if passes % 2 == 0 else (places, row.indices)


Step = Callable[..., Sequence[IrValue]]


def _scan(
    row: _Row,
    start: int,
    carried: Sequence[IrValue],
    may_matter: Callable[..., IrValue],
    step: Step,
) -> list[IrValue]:
    """Append a walk over the entries from one on, in order, that passes over vectors of them.

    Args:
        row: The entries.
        start: The first one.
        carried: What is carried from entry to entry.
        may_matter: Tells which of a vector's entries may matter, from them and what is carried.
        step: From an entry's number and what is carried to what is carried on; what does not
            matter would leave it as it is.
    """
    b, spec = row.b, row.spec
    lanes = min(_MOST_LANES, max(1, spec.unit.lanes()))

    def each(number: Index, *carried: IrValue) -> list[IrValue]:
        matters = b.cast(may_matter(row.read(number), *carried), INT64.dtype)
        return b.loop(0, Index.of(matters), carried, lambda _turn, *same: step(number, *same))

    def vector(first: Index, *carried: IrValue) -> list[IrValue]:
        matters = may_matter(row.read(first, lanes), *carried)
        is_any = b.reduce("or", b.cast(matters, "int32"))
        return b.loop(
            0,
            Index.of(b.cast(is_any, INT64.dtype)),
            carried,
            lambda _turn, *same: b.loop(first, first + lanes, same, each),
        )

    whole = start + (spec.extent - start) // lanes * lanes
    carried = b.loop(start, whole, carried, vector, step=lanes)
    return b.loop(whole, spec.extent, carried, each)


def _not_worse(row: _Row, x: IrValue, worst: IrValue, *, or_equal: bool) -> IrValue:
    """Tell which entries may come before one; also of those that are NaN, or if it is."""
    b, (left, right) = row.b, _comparable(row.b, x, worst)
    worse = ("lt" if or_equal else "le") if row.spec.is_largest else ("gt" if or_equal else "ge")
    return b.unary("not", b.compare(worse, left, right))


def _comparable(b: Builder, *values: IrValue) -> list[IrValue]:
    is_half = values[0].type.dtype == "float16"
    return [convert(b, value, "float32") if is_half else value for value in values]


def _is_better(row: _Row, new: IrValue, old: IrValue) -> IrValue:
    """Tell whether an entry comes before one that is earlier: it is larger, or smaller."""
    b, (new, old) = row.b, _comparable(row.b, new, old)
    larger, smaller = (new, old) if row.spec.is_largest else (old, new)
    is_above = b.compare("gt", larger, smaller)
    if not larger.type.is_float:
        return is_above
    first_nan = b.binary("and", b.unary("isnan", larger), b.unary("not", b.unary("isnan", smaller)))
    return b.binary("or", is_above, first_nan)


# A few entries


def _keep_sorted(row: _Row) -> None:
    """Append a walk that keeps the best entries so far, and their numbers, sorted in vectors."""
    b, spec = row.b, row.spec
    lanes = min(_MOST_LANES, max(1, spec.unit.lanes()), 1 << (spec.count - 1).bit_length())
    vectors = -(-spec.count // lanes)
    narrow = "int32" if spec.extent <= np.iinfo(np.int32).max else INT64.dtype

    def insert(number: Index, *state: IrValue, is_filling: bool = False) -> list[IrValue]:
        """Move what comes after an entry by one lane, and put the entry in between."""
        new = b.splat(row.read(number), lanes)
        new_place = b.splat(b.cast(b.index(number), narrow), lanes)
        values, places = [new, *state[:vectors]], [new_place, *state[vectors:]]
        following: list[list[IrValue]] = [[], []]
        for i in range(1, vectors + 1):
            before, before_place = (
                b.shuffle(items[i - 1], items[i], range(lanes - 1, 2 * lanes - 1))
                if lanes > 1
                else items[i - 1]
                for items in (values, places)
            )
            moves = _is_better(row, new, values[i])
            is_behind = _is_better(row, new, before)  # one lane before, it moves as well
            if is_filling:  # a lane without an entry has number -1
                moves = b.binary("or", moves, b.compare("lt", places[i], 0))
                is_behind = b.binary("or", is_behind, b.compare("lt", before_place, 0))
            for items, old, item, new_item in (
                (following[0], values[i], before, new),
                (following[1], places[i], before_place, new_place),
            ):
                items.append(b.select(moves, b.select(is_behind, item, new_item), old))
        return [*following[0], *following[1]]

    nothing = b.constant(0, Type(row.x.dtype, lanes)), b.constant(-1, Type(narrow, lanes))
    state = [item for item in nothing for _ in range(vectors)]
    last, lane = divmod(spec.count - 1, lanes)

    def may_matter(x: IrValue, *state: IrValue) -> IrValue:
        worst = b.extract(state[last], lane) if lanes > 1 else state[last]
        return _not_worse(row, x, b.splat(worst, x.type.lanes), or_equal=False)

    def fill(number: Index, *state: IrValue) -> list[IrValue]:
        return insert(number, *state, is_filling=True)

    state = b.loop(0, spec.count, state, fill)
    state = _scan(row, spec.count, state, may_matter, insert)
    for i in range(vectors):
        count = min(lanes, spec.count - i * lanes)
        numbers = b.cast(state[vectors + i], INT64.dtype)
        for value, buffer in ((state[i], row.y), (numbers, row.indices)):
            step = buffer.strides[spec.axis] or 1
            b.store(value, buffer, row.at(i * lanes), stride=step, count=count)


# The worst entry that is wanted, and how many of its size


def _find_on_heap(row: _Row, _counts: Buffer) -> tuple[IrValue, IrValue]:
    """Keep the best entries so far on a heap in y, the worst on top."""
    b, spec = row.b, row.spec

    def sift(start: Subscript, value: IrValue) -> None:
        """Put an entry where a heap begins, and move down what is better than its children."""

        def sink(_step: Index, place: IrValue) -> list[IrValue]:
            here, child = Index.of(place), Index.of(place) * 2 + 1
            left, right = (b.smaller(child + side, spec.count - 1) for side in (0, 1))
            left_value, right_value = (b.load(row.y, row.at(side)) for side in (left, right))
            is_left = _is_better(row, right_value, left_value)
            worse = b.select(is_left, left_value, right_value)
            is_worse = _is_better(row, value, worse)
            moves = b.binary("and", b.compare("lt", b.index(child), spec.count), is_worse)
            b.store(b.select(moves, worse, value), row.y, row.at(here))
            following = b.select(is_left, b.index(left), b.index(right))
            return [b.select(moves, following, place)]

        depth = spec.count.bit_length() - 1
        (place,) = b.loop(0, depth, [b.index(start)], sink)
        b.store(value, row.y, row.at(b.smaller(Index.of(place), spec.count - 1)))

    with b.serial(0, spec.count) as number:
        b.store(row.read(number), row.y, row.at(number))
    half = spec.count // 2
    with b.serial(0, half) as number:
        start = (half - 1) - number
        sift(start, b.load(row.y, row.at(start)))

    def replace(number: Index, worst: IrValue) -> list[IrValue]:
        new = row.read(number)
        with b.where(_is_better(row, new, worst)):
            sift(0, new)
        return [b.load(row.y, row.at(0))]

    def may_matter(x: IrValue, worst: IrValue) -> IrValue:
        return _not_worse(row, x, b.splat(worst, x.type.lanes), or_equal=False)

    (worst,) = _scan(row, spec.count, [b.load(row.y, row.at(0))], may_matter, replace)

    def tally(number: Index, equal: IrValue) -> list[IrValue]:
        is_more = _is_better(row, b.load(row.y, row.at(number)), worst)
        return [b.sub(equal, b.cast(is_more, INT64.dtype))]

    (equal,) = b.loop(0, spec.count, [b.constant(spec.count, INT64)], tally)
    return worst, equal


def _find_by_digits(row: _Row, counts: Buffer) -> tuple[IrValue, IrValue]:
    """Find the digits of the worst wanted entry's key, the highest first."""
    b, spec = row.b, row.spec
    dtype, bits = key_dtype(row.x.dtype), 8 * row.x.item_bytes
    key, equal = b.constant(0, Type(dtype)), b.constant(spec.count, INT64)
    for shift in reversed(range(0, bits, DIGIT)):
        clear_counts(b, counts)
        with b.serial(0, spec.extent) as number:
            entry, amount = row.key(number), b.constant(1, INT64)
            above = shift + DIGIT
            if above < bits:  # only those that have the digits so far
                starts = [b.binary("shr", item, above) for item in (entry, key)]
                amount = b.cast(b.compare("eq", *starts), INT64.dtype)
            digit = digit_of(b, entry, shift)
            b.store(b.add(b.load(counts, digit), amount), counts, digit)

        def look(
            number: Index, before: IrValue, digit: IrValue, rest: IrValue, equal: IrValue = equal
        ) -> list[IrValue]:
            after = b.add(before, b.load(counts, number))
            starts, ends = b.compare("lt", before, equal), b.compare("ge", after, equal)
            is_here = b.binary("and", starts, ends)
            rest = b.select(is_here, b.sub(equal, before), rest)
            return [after, b.select(is_here, b.index(number), digit), rest]

        zero = b.constant(0, INT64)
        _, chosen, equal = b.loop(0, DIGITS, [zero, zero, equal], look)
        key = b.binary("or", key, b.binary("shl", b.cast(chosen, dtype), shift))

    def find(number: Index, place: IrValue) -> list[IrValue]:
        is_it = b.compare("eq", row.key(number), key)
        return [b.select(is_it, b.index(number), place)]

    (place,) = b.loop(0, spec.extent, [b.constant(0, INT64)], find)
    return row.read(Index.of(place)), equal


# All that are wanted


def _collect(row: _Row, places: Buffer, worst: IrValue, equal: IrValue) -> None:
    """Append what writes the numbers of all entries that are wanted, in order."""
    b, spec = row.b, row.spec
    key = sort_key(b, worst, is_falling=spec.is_largest)

    def may_matter(x: IrValue, _place: IrValue, equal: IrValue) -> IrValue:
        last = b.splat(worst, x.type.lanes)
        better, or_equal = (_not_worse(row, x, last, or_equal=flag) for flag in (False, True))
        return b.select(b.splat(b.compare("gt", equal, 0), x.type.lanes), or_equal, better)

    def collect(number: Index, place: IrValue, equal: IrValue) -> list[IrValue]:
        entry = row.key(number)
        is_equal = b.binary("and", b.compare("eq", entry, key), b.compare("gt", equal, 0))
        is_taken = b.binary("or", b.compare("lt", entry, key), is_equal)
        with b.where(is_taken):
            b.store(b.index(number), places, row.at(b.smaller(Index.of(place), spec.count - 1)))
        flags = [b.cast(flag, INT64.dtype) for flag in (is_taken, is_equal)]
        return [b.add(place, flags[0]), b.sub(equal, flags[1])]

    _scan(row, 0, [b.constant(0, INT64), equal], may_matter, collect)


def _sort(row: _Row, counts: Buffer, source: Buffer, target: Buffer) -> None:
    """Append what sorts entries by their keys; equal ones stay in order."""
    b, spec = row.b, row.spec
    bits = 8 * row.x.item_bytes
    sort_by_digits(b, counts, spec.count, bits, row.key, (source, target), row.at)
    with b.serial(0, spec.count) as number:
        entry = b.load(row.indices, row.at(number))
        b.store(row.read(Index.of(entry)), row.y, row.at(number))
