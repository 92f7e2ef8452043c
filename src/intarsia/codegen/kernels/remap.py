# SPDX-License-Identifier: Apache-2.0
"""Copies by a table for each dimension: `y[i, j, ...] = x[t0[i], t1[j], ...]`.

Nearest-neighbour `Resize` and the modes of `Pad` that repeat entries are copies of this kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from intarsia.codegen.body import NOTHING, Fused, Layout, load_lanes, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.unit import AVX512, CpuModel


@dataclass(frozen=True, slots=True)
class Remap:
    """A copy by tables.

    Attributes:
        extents: Of y.
        sources: Of x.
        tables: Whether a dimension has a table, int64 and as long as y; without one, entry i comes
            from entry `i // factor`.
        factor: How often each entry of the last dimension is repeated, if that has no table.
        x: Over the sources.
        y: Over the extents.
        epilogue: Over the extents.
        unit: What it is shaped for.
        outside: Over (1,): what entries are for which a table says -1; None if none does. The last
            dimension has a table then.
    """

    extents: tuple[int, ...]
    sources: tuple[int, ...]
    tables: tuple[bool, ...]
    x: Layout
    y: Layout
    factor: int = 1
    epilogue: Fused = NOTHING
    unit: CpuModel = AVX512
    outside: Layout | None = None


SPECS = (Remap,)


def build(spec: Remap) -> Function:
    """Return the kernel; its arguments are x, the tables in order, outside, y, fused operands."""
    return _Remap(spec).function()


class _Remap:
    """Makes one kernel."""

    def __init__(self, spec: Remap) -> None:
        self.spec = spec
        self.b = b = Builder("remap")
        self.x = spec.x.declare(b, "x", spec.sources)
        self.tables: list[Buffer | None] = [
            b.argument(f"t{dim}", "int64", (extent,)) if is_mapped else None
            for dim, (extent, is_mapped) in enumerate(zip(spec.extents, spec.tables, strict=True))
        ]
        self.outside = spec.outside.declare(b, "outside", (1,)) if spec.outside else None
        self.y = spec.y.declare(b, "y", spec.extents, is_written=True)
        self.epilogue = spec.epilogue.bind(b, spec.extents)

    def function(self) -> Function:
        b, extents = self.b, self.spec.extents
        shared = max(0, len(extents) - _INNER)
        b.note(f"{self.spec.sources} to {extents}")
        for at in each_turn(b, extents[:shared], prod(extents)):
            self._nest(at, [self._source(dim, index) for dim, index in enumerate(at)])
        return b.finish()

    def _source(self, dim: int, index: Index) -> Index:
        table = self.tables[dim]
        return index if table is None else Index.of(self.b.load(table, index))

    def _nest(self, at: list[Index], sources: list[Index]) -> None:
        dim = len(at)
        if dim == len(self.spec.extents) - 1:
            self._row(at, sources)
            return
        with self.b.serial(0, self.spec.extents[dim]) as index:
            self._nest([*at, index], [*sources, self._source(dim, index)])

    def _row(self, at: list[Index], sources: list[Index]) -> None:
        b, spec = self.b, self.spec
        extent = spec.extents[-1]
        if self.tables[-1] is not None:
            with b.serial(0, extent) as index:
                entry = [*sources, self._source(len(at), index)]
                self._store(self._entry(entry), [*at, index], 1)
            return
        length = extent // spec.factor
        lanes = min(spec.unit.lanes(spec.x.dtype), 1 << (length.bit_length() - 1))
        with b.serial(0, length // lanes) as number:
            self._vector(at, sources, number * lanes, lanes, lanes)
        if length % lanes:
            self._vector(at, sources, Index(length - length % lanes), lanes, length % lanes)

    def _entry(self, sources: list[Index]) -> IrValue:
        """Return an entry of x, or what those outside are."""
        b = self.b
        if self.outside is None:
            return b.load(self.x, sources)
        value = b.load(self.x, [b.larger(source, 0) for source in sources])
        for source, table in zip(sources, self.tables, strict=True):
            if table is not None:
                is_outside = b.compare("lt", b.index(source), 0)
                value = b.select(is_outside, b.load(self.outside, 0), value)
        return value

    def _vector(
        self, at: list[Index], sources: list[Index], first: Index, lanes: int, count: int
    ) -> None:
        """Copy a vector, each lane as often as is wanted."""
        factor = self.spec.factor
        part = count if count < lanes else None
        value = load_lanes(self.b, self.x, [*sources, first], lanes, part)
        for copy in range(-(-count * factor // lanes)):
            picks = [min((copy * lanes + lane) // factor, lanes - 1) for lane in range(lanes)]
            spread = value
            if picks != list(range(lanes)):
                spread = self.b.shuffle(value, value, picks)
            where = [*at, first * factor + copy * lanes]
            self._store(spread, where, min(lanes, count * factor - copy * lanes))

    def _store(self, value: IrValue, at: Sequence[Index], count: int) -> None:
        part = count if count < value.type.lanes else None
        store_lanes(self.b, self.epilogue(value, at, part), self.y, at, part)


_INNER = 2
"""Dimensions that one turn of the parallel loop walks itself."""
