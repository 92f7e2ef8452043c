# SPDX-License-Identifier: Apache-2.0
"""Attention of few queries and many keys: these are cut in parts, and what parts have is joined.

With one query and one head of keys there is one turn, and a long cache of keys is read by one
thread. So keys are cut in parts, which are turns of their own; each leaves the sums of its values,
its largest score and the sum of its exponentials, and a second kernel joins them in their order
(Dao et al., "Flash-Decoding for long-context inference", 2023). How long parts are depends on
nothing, so that results do not either: not on threads, and not on which sizes are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from intarsia.codegen import maths
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue
from intarsia.codegen.kernels.attention.schedules import schedule
from intarsia.codegen.kernels.attention.spec import Attention, EmptyRow
from intarsia.extents import Size, at_most, most

_DTYPE = "float32"
_CHUNK = 8
"""Vectors of sums that registers hold at once."""


@dataclass(frozen=True, slots=True)
class AttentionOfParts:
    """The result of attention, of what its kernel leaves of each part of the keys.

    Attributes:
        attention: What leaves it; its schedule has parts.
    """

    attention: Attention


@dataclass(frozen=True, slots=True)
class PartRow:
    """What is left of a query and a part of the keys: a row of vectors.

    Attributes:
        lanes: Of a vector.
        value_size: Entries of the sums, in front; then come a vector of the largest score and one
            of the sums of exponentials, whose lanes are still to be added.
    """

    lanes: int
    value_size: int

    @classmethod
    def of(cls, spec: Attention) -> PartRow:
        """Return that of a kernel."""
        return cls(spec.unit.lanes(_DTYPE), spec.value_size)

    @property
    def vectors(self) -> list[tuple[int, int]]:
        """Where vectors of sums begin, and how many lanes of each count."""
        size = self.value_size
        return [(at, min(self.lanes, size - at)) for at in range(0, size, self.lanes)]

    @property
    def peak(self) -> int:
        """Where the largest score is."""
        return len(self.vectors) * self.lanes

    @property
    def total(self) -> int:
        """Where the sums of exponentials are."""
        return self.peak + self.lanes

    @property
    def width(self) -> int:
        """All entries."""
        return self.total + self.lanes


def part_count(spec: Attention) -> Size:
    """Return how many parts a kernel cuts its keys in; of no keys there is one, which is empty."""
    part = schedule(spec).part
    return -(-spec.keys // part) + at_most(spec.keys, 0) if part else 1


def parts_shape(spec: Attention) -> tuple[Size, ...]:
    """Return the shape of what a kernel leaves of parts: (*batch, parts, queries, row).

    It has room for as many queries as the kernel has turns for.
    """
    queries = schedule(spec).few or spec.queries
    return (*spec.batch, part_count(spec), queries, PartRow.of(spec).width)


def is_cut(spec: Attention) -> bool:
    """Tell whether a kernel may leave parts, which then are its last argument."""
    plan = schedule(spec)
    return plan.part > 0 and most(spec.keys, plan.part + 1) > plan.part


def few_turns(spec: Attention) -> Size:
    """Return 1 for sizes at which few queries are those of a kernel by keys, else 0."""
    few = schedule(spec).few
    return at_most(spec.queries, few) if few else 1


def result_writer(
    b: Builder, spec: Attention, y: Buffer, place: tuple[Index, ...], total: IrValue
) -> Callable[[int, int, IrValue], None]:
    """Return what divides a query's sums by that of its exponentials, and writes them.

    Args:
        b: Of the kernel.
        spec: What is computed.
        y: Where to.
        place: The item and the query.
        total: Sums of exponentials, whose lanes are added.

    Returns:
        What does so from an entry on, for a number of lanes of a vector of sums.
    """
    total = b.splat(b.reduce("add", total), total.type.lanes)
    share = b.div(1.0, total)
    predicate = {EmptyRow.ZERO: "ne", EmptyRow.CLEAN: "gt"}.get(spec.empty)

    def write(at: int, count: int, sums: IrValue) -> None:
        value = b.mul(sums, share)
        if predicate is not None:
            value = b.select(b.compare(predicate, total, 0.0), value, 0.0)
        b.store(value, y, (*place, at), stride=y.strides[-1] or 1, count=count)

    return write


def build_joining(join: AttentionOfParts) -> Function:
    """Return the kernel that joins parts; its arguments are the parts and y.

    Where there is one part, its result is written already, and there is nothing to do.
    """
    spec = join.attention
    b = Builder("attention_parts")
    row = PartRow.of(spec)
    parts = b.argument("parts", _DTYPE, parts_shape(spec))
    queries = (*spec.batch, spec.queries)
    y = spec.y.declare(b, "y", (*queries, spec.value_size), is_written=True)
    b.note(f"batch {spec.batch}, {spec.queries} queries, {spec.keys} keys")
    if 0 in (*spec.batch, spec.queries, spec.value_size):
        return b.finish_empty()
    count = part_count(spec)
    is_joined = 1 - at_most(spec.keys, schedule(spec).part)
    with b.parallel(math.prod(queries) * few_turns(spec) * is_joined) as turn:
        *batch, query = b.unravel(turn, queries)

        def read(part: Index, entry: int) -> IrValue:
            return b.load(parts, (*batch, part, query, entry), row.lanes)

        def larger(part: Index, peak: IrValue) -> list[IrValue]:
            return [b.maximum(read(part, row.peak), peak)]

        (peak,) = b.loop(1, count, [read(Index(), row.peak)], larger)

        def joined(entries: Sequence[int]) -> list[IrValue]:
            def step(part: Index, *sums: IrValue) -> list[IrValue]:
                fall = maths.exp_nonpositive(b, b.sub(read(part, row.peak), peak))
                return [
                    b.fma(read(part, entry), fall, value)
                    for entry, value in zip(entries, sums, strict=True)
                ]

            return b.loop(0, count, [b.constant(0.0, peak.type)] * len(entries), step)

        (total,) = joined([row.total])
        write = result_writer(b, spec, y, (*batch, query), total)
        for first in range(0, len(row.vectors), _CHUNK):
            vectors = row.vectors[first : first + _CHUNK]
            for (at, lanes), sums in zip(vectors, joined([at for at, _ in vectors]), strict=True):
                write(at, lanes, sums)
    return b.finish()
