# SPDX-License-Identifier: Apache-2.0
"""Unique: what occurs among entries, or among slices along a dimension, where, and how often.

Numbers of items are sorted by all entries of their slices, the last one first, each by counting
digits: so equal items lie side by side, the first of them first. It is one turn, as it moves little
and compares nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import INT64, Buffer, Function, Index, IrValue, Subscript
from intarsia.codegen.kernels.sort_keys import DIGITS, largest_key, sort_by_digits, sort_key
from intarsia.extents import Size


@dataclass(frozen=True, slots=True)
class Unique:
    """The distinct items `x[:, a, :]`.

    Attributes:
        outer: Extents before the dimension.
        extent: Items.
        inner: Extents behind the dimension.
        x: Over (outer, extent, inner).
        is_sorted: Whether distinct items are in ascending order, entry by entry, else in that in
            which they occur first.
        has_equal_nans: Whether NaN is equal to NaN.
    """

    outer: Size
    extent: Size
    inner: Size
    x: Layout
    is_sorted: bool = True
    has_equal_nans: bool = True


SPECS = (Unique,)


def build(spec: Unique) -> Function:
    """Return the kernel.

    Its arguments are x; memory for two int64 an item; the distinct items, without gaps, the first
    place of each, the number of each item's among the distinct ones, and how often each occurs;
    then for the first, second and fourth of these how many there are.
    """
    return _UniqueKernel(spec).build()


class _UniqueKernel:
    def __init__(self, spec: Unique) -> None:
        self.spec = spec
        self.b = b = Builder("unique")
        word = INT64.dtype

        def written(name: str, entries: Size, dtype: str = word) -> Buffer:
            return b.argument(name, dtype, (entries,), is_written=True)

        self._is_float = spec.x.dtype.startswith("float")
        self.x = spec.x.declare(b, "x", (spec.outer, spec.extent, spec.inner))
        self.order, self.spare = written("order", spec.extent), written("spare", spec.extent)
        self.y = written("y", spec.outer * spec.extent * spec.inner, spec.x.dtype)
        self.firsts = written("firsts", spec.extent)
        self.inverse = written("inverse", spec.extent)
        self.counts = written("counts", spec.extent)
        self.sizes = [written(f"{name}_size", 1) for name in ("y", "firsts", "counts")]
        self.digits = b.local("digits", word, (DIGITS,))
        order = "sorted" if spec.is_sorted else "as they come"
        b.note(f"{spec.extent} of ({spec.outer}, {spec.inner}) {spec.x.dtype}, {order}")

    def build(self) -> Function:
        """Append what sorts, numbers and copies items."""
        b, spec = self.b, self.spec
        with b.parallel(1):
            self._sort()
            total = self._number_sorted()
            if not spec.is_sorted:
                total = self._number_as_they_come()
            for size in self.sizes:
                b.store(total, size, 0)
            self._copy(total)
        return b.finish()

    def _sort(self) -> None:
        """Append what sorts the numbers of items, equal ones as they come."""
        b, spec = self.b, self.spec
        with b.serial(0, spec.extent) as number:
            b.store(b.index(number), self.order, number)

        def by_entry(outer: Index, inner: Index) -> None:
            def key(item: Index) -> IrValue:
                return sort_key(b, b.load(self.x, (outer, item, inner)))

            bits = 8 * self.x.item_bytes
            memories = (self.order, self.spare)
            there = sort_by_digits(b, self.digits, spec.extent, bits, key, memories)
            if there is not self.order:
                with b.serial(0, spec.extent) as number:
                    b.store(b.load(there, number), self.order, number)

        with b.serial(0, spec.outer) as outer, b.serial(0, spec.inner) as inner:
            by_entry(self._from_behind(outer, spec.outer), self._from_behind(inner, spec.inner))

    def _from_behind(self, number: Index, extent: Size) -> Index:
        b = self.b
        return Index.of(b.sub(b.index(extent - 1), b.index(number)))

    def _over_slice(self, visit: Callable[[Index, Index, IrValue], IrValue]) -> IrValue:
        """Append a step for each entry of a slice; return what it carries, an int64 from 0 on."""
        b, spec = self.b, self.spec

        def row(outer: Index, state: IrValue) -> list[IrValue]:
            return b.loop(0, spec.inner, [state], lambda inner, one: [visit(outer, inner, one)])

        return b.loop(0, spec.outer, [b.constant(0, INT64)], row)[0]

    def _differ(self, left: IrValue, right: IrValue) -> IrValue:
        """Return 1 if two items differ, else 0."""
        b = self.b

        def visit(outer: Index, inner: Index, differs: IrValue) -> IrValue:
            keys = [sort_key(b, b.load(self.x, (outer, item, inner))) for item in (left, right)]
            is_other = b.compare("ne", *keys)
            if self._is_float and not self.spec.has_equal_nans:
                is_nan = b.compare("eq", keys[0], largest_key(self.x.dtype))
                is_other = b.binary("or", is_other, is_nan)
            return b.binary("or", differs, b.cast(is_other, INT64.dtype))

        return self._over_slice(visit)

    def _number_sorted(self) -> IrValue:
        """Append a walk through the sorted items; return how many are distinct.

        Where they are wanted as they come, it only says for each item which one is its first.
        """
        b, spec = self.b, self.spec

        def visit(place: Index, number: IrValue, first: IrValue, before: IrValue) -> list[IrValue]:
            item = b.load(self.order, place)
            differs = b.compare("ne", self._differ(item, before), 0)
            is_new = b.binary("or", differs, b.compare("eq", b.index(place), 0))
            number = b.add(number, b.cast(is_new, INT64.dtype))
            first = b.select(is_new, item, first)
            if spec.is_sorted:
                self._count(item, b.sub(number, 1), is_new)
            else:
                b.store(first, self.inverse, item)
            return [number, first, item]

        return b.loop(0, spec.extent, [b.constant(0, INT64)] * 3, visit)[0]

    def _count(self, item: IrValue, number: IrValue, is_new: IrValue) -> None:
        """Append what notes that an item is one of the distinct ones, and perhaps their first."""
        b = self.b
        with b.where(is_new):
            b.store(item, self.firsts, number)
            b.store(b.constant(0, INT64), self.counts, number)
        b.store(b.add(b.load(self.counts, number), 1), self.counts, number)
        b.store(number, self.inverse, item)

    def _number_as_they_come(self) -> IrValue:
        """Append a walk through the items, each of which knows its first; return as above."""
        b = self.b

        def visit(place: Index, number: IrValue) -> list[IrValue]:
            item = b.index(place)
            first = b.load(self.inverse, place)
            is_new = b.compare("eq", first, item)
            with b.where(is_new):
                b.store(number, self.order, place)
            self._count(item, b.load(self.order, first), is_new)
            return [b.add(number, b.cast(is_new, INT64.dtype))]

        return b.loop(0, self.spec.extent, [b.constant(0, INT64)], visit)[0]

    def _copy(self, total: IrValue) -> None:
        """Append what copies the distinct items."""
        b, spec = self.b, self.spec
        with b.serial(0, spec.outer) as outer, b.serial(0, Index.of(total)) as number:
            item: Subscript = b.load(self.firsts, number)
            row = b.add(b.mul(total, b.index(outer)), b.index(number))
            start = Index.of(b.mul(row, b.index(spec.inner)))
            with b.serial(0, spec.inner) as inner:
                b.store(b.load(self.x, (outer, item, inner)), self.y, start + inner)
