# SPDX-License-Identifier: Apache-2.0
"""TopK: the largest or smallest entries along a dimension, in order, and where they are.

Of equal entries the first comes first. NaN is larger than every number, as in numpy. Each turn
keeps the best entries so far in order, in the results' memory, and inserts those that are better.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function, Index, IrValue, Subscript
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.scalar_ops.conversion import convert


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
    """

    extents: tuple[int, ...]
    axis: int
    count: int
    x: Layout
    y: Layout
    indices: Layout
    is_largest: bool = True


SPECS = (TopK,)


def build(spec: TopK) -> Function:
    """Return the kernel; its arguments are x, y, indices."""
    b = Builder("top_k")
    axis, count, extent = spec.axis, spec.count, spec.extents[spec.axis]
    shape = (*spec.extents[:axis], count, *spec.extents[axis + 1 :])
    x = spec.x.declare(b, "x", spec.extents)
    y = spec.y.declare(b, "y", shape, is_written=True)
    indices = spec.indices.declare(b, "indices", shape, is_written=True)
    b.note(
        f"{count} of {spec.extents} along {axis}, {'largest' if spec.is_largest else 'smallest'}"
    )
    rows = [1 if dim == axis else size for dim, size in enumerate(shape)]
    for row in each_turn(b, rows, prod(shape)):

        def at(entry: Subscript, row: list[Index] = row) -> list[Index]:
            return [*row[:axis], Index.of(entry), *row[axis + 1 :]]

        def insert(value: IrValue, number: Index, length: Subscript) -> None:
            """Put an entry behind all of the first `length` results that it is not better than."""

            def move(step: Index, place: IrValue) -> list[IrValue]:
                # From the last one down: those that are not as good move up by one.
                entry = b.larger(Index.of(length) - 1 - step, 0)  # the verifier does not see it
                old, old_index = b.load(y, at(entry)), b.load(indices, at(entry))
                after, after_index = b.load(y, at(entry + 1)), b.load(indices, at(entry + 1))
                moves = _is_better(b, spec, value, old)
                b.store(b.select(moves, old, after), y, at(entry + 1))
                b.store(b.select(moves, old_index, after_index), indices, at(entry + 1))
                return [b.select(moves, b.index(entry), place)]

            (last,) = b.loop(0, length, [b.index(length)], move)
            place = b.smaller(b.larger(last, 0), count - 1)
            b.store(value, y, at(place))
            b.store(b.index(number), indices, at(place))

        b.store(b.load(x, at(0)), y, at(0))
        b.store(b.index(0), indices, at(0))
        with b.serial(1, count) as number:
            insert(b.load(x, at(number)), number, number)

        def look(number: Index, worst: IrValue) -> list[IrValue]:
            value = b.load(x, at(number))
            with b.where(_is_better(b, spec, value, worst)):
                insert(value, number, count - 1)
            return [b.load(y, at(count - 1))]

        b.loop(count, extent, [b.load(y, at(count - 1))], look)
    return b.finish()


def _is_better(b: Builder, spec: TopK, new: IrValue, old: IrValue) -> IrValue:
    """Tell whether a later entry comes before an earlier one: it has to be larger, or smaller."""
    if new.type.dtype == "float16":
        new, old = convert(b, new, "float32"), convert(b, old, "float32")
    larger, smaller = (new, old) if spec.is_largest else (old, new)
    is_above = b.compare("gt", larger, smaller)
    if not new.type.is_float:
        return is_above
    first_nan = b.binary("and", b.unary("isnan", larger), b.unary("not", b.unary("isnan", smaller)))
    return b.binary("or", is_above, first_nan)
