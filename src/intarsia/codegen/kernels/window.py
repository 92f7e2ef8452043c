# SPDX-License-Identifier: Apache-2.0
"""What convolutions and poolings share: the sliding window, cuts of extents, loops over taps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from intarsia.codegen.body import Fused, Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import INT64, Index, IrValue, Subscript
from intarsia.extents import Expression, Size


@dataclass(frozen=True, slots=True)
class Window:
    """A window sliding over any number of spatial dimensions; padding is in the input's memory.

    Attributes:
        out: Positions of the window, in each dimension.
        kernel: Its taps; 0 yields sums of nothing.
        strides: Input entries from one position to the next.
        dilations: Input entries from one tap to the next.
    """

    out: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def reach(self) -> tuple[int, ...]:
        """The extents of the padded input that are read."""
        dims = zip(self.out, self.kernel, self.strides, self.dilations, strict=True)
        return tuple(
            (out - 1) * stride + (kernel - 1) * dilation + 1 if out and kernel else 0
            for out, kernel, stride, dilation in dims
        )

    @property
    def taps(self) -> int:
        """The number of taps in all dimensions."""
        return math.prod(self.kernel)

    @property
    def rank(self) -> int:
        """The number of spatial dimensions."""
        return len(self.out)

    def at(self, position: Sequence[Index], tap: Sequence[Index]) -> list[Index]:
        """Return the input's entry below a tap of the window at a position."""
        steps = zip(position, self.strides, tap, self.dilations, strict=True)
        return [where * stride + index * dilation for where, stride, index, dilation in steps]

    def without(self, dim: int) -> Window:
        """Return the window without a dimension."""
        fields = (self.out, self.kernel, self.strides, self.dilations)
        return Window(*(field[:dim] + field[dim + 1 :] for field in fields))


def window_key(name: str, extents: Sequence[int], window: Window, more: str, dtype: str) -> str:
    """Say in words what a window slides over, for `key` of a kernel family."""
    numbers = (extents, window.out, window.kernel, window.strides, window.dilations)
    shape, out, taps, strides, dilations = ("x".join(map(str, item)) for item in numbers)
    return f"{name} {shape} at {out}, taps {taps} by {strides} / {dilations}, {more}, {dtype}"


@dataclass(frozen=True, slots=True)
class Split:
    """An extent cut into parts that differ by one at most, the larger ones first."""

    extent: int
    count: int

    @classmethod
    def of(cls, extent: int, limit: int) -> Split:
        """Cut into as few parts as can be, none larger than a limit."""
        return cls(extent, max(1, -(-extent // limit)))

    @property
    def size(self) -> int:
        """The size of the smaller parts."""
        return self.extent // self.count

    @property
    def larger(self) -> int:
        """How many parts have one more."""
        return self.extent % self.count

    @property
    def runs(self) -> tuple[Run, ...]:
        """Parts of equal sizes; at most two runs."""
        size, larger = self.size, self.larger
        runs = (Run(0, larger, size + 1, 0), Run(larger, self.count, size, larger))
        return tuple(run for run in runs if run.first < run.end and run.size)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that parts have."""
        return tuple(run.size for run in self.runs)

    def each(
        self, builder: Builder, begin: Subscript | None = None, end: Subscript | None = None
    ) -> Iterator[tuple[int, Index]]:
        """Open a loop for each size of parts, over those in a range; gives size and begin."""
        for run in self.runs:
            for start in run.each(builder, begin, end):
                yield run.size, start

    def at(self, builder: Builder, part: Index) -> Iterator[tuple[Run, Index]]:
        """Open a block for each run, of which the one that holds a part turns; gives its begin."""
        for run in self.runs:
            if len(self.runs) == 1:
                yield run, part * run.size + run.offset
            else:
                for begin in run.each(builder, part, part + 1):
                    yield run, begin

    def begin(self, builder: Builder, part: Subscript) -> Index:
        """Return where a part begins."""
        begin = Index.of(part) * self.size
        return begin + builder.smaller(part, self.larger) if self.larger else begin


def panel_runs(columns: int, lanes: int, panels: Split) -> list[tuple[Run, bool]]:
    """Return runs of panels, and whether the last vector of one is not full: a run of its own.

    Args:
        columns: Of all panels.
        lanes: Columns of a vector.
        panels: The vectors of these columns, cut.
    """
    runs = [(run, False) for run in panels.runs]
    if columns % lanes:
        last, _ = runs.pop()
        if last.end - last.first > 1:
            runs.append((replace(last, end=last.end - 1), False))
        runs.append((replace(last, first=last.end - 1), True))
    return runs


@dataclass(frozen=True, slots=True)
class FreeSplit:
    """A free extent cut into parts of at most one size; see `Split`.

    All are whole but for the last ones: the last whole part and the rest are halved, as few rows
    take nearly as long as many. Up to that, there are as many parts as `count`.
    """

    extent: Size
    size: int

    @property
    def larger(self) -> int:
        """How many parts have one more: none."""
        return 0

    @property
    def count(self) -> Size:
        """How many parts there are, what is left over by two parts being one with the last."""
        return -(-self.extent // self.size)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that parts have, the largest first."""
        # A code for each size costs time to compile.
        fewer = [size for size in range(self.size - 1, 0, -1) if size <= _EACH or size % 2 == 0]
        return (self.size, *fewer)

    def each(
        self, builder: Builder, begin: Subscript | None = None, end: Subscript | None = None
    ) -> Iterator[tuple[int, Index]]:
        """Open a loop for each size of parts, over those in a range; gives size and begin."""
        whole = builder.larger(self.extent // self.size - 1, 0)
        rest = builder.index(whole * -self.size + self.extent)
        tails = [self._tail(length) for length in range(2 * self.size)]
        row = number = Index()
        for size in self.sizes:
            parts = self._looked_up(builder, [tail.count(size) for tail in tails], rest)
            if size == self.size:
                parts = whole + parts
            lower, upper = Index(), parts
            if begin is not None and end is not None:
                lower = builder.larger(Index.of(begin) - number, 0)
                upper = builder.smaller(Index.of(end) - number, parts)
                number = builder.smaller(number + parts, self.count - 1)
            with builder.serial(lower, upper) as part:
                yield size, row + part * size
            row = row + parts * size

    def _tail(self, length: int) -> tuple[int, ...]:
        """Cut what is less than two whole parts, into sizes that there are."""
        if length <= self.size:
            few: Iterable[tuple[int, ...]] = [(length,), (length - 1, 1)]
        else:
            halves = [(length - half, half) for half in range(length // 2, 0, -1)]
            few = [*halves, (self.size, length - self.size - 1, 1)]
        return next((parts for parts in few if set(parts) <= set(self.sizes)), ())

    @staticmethod
    def _looked_up(builder: Builder, counts: Sequence[int], at: IrValue) -> Index:
        """Return an entry of a table of numbers up to 3."""
        total = Index()
        for bit in (1, 2):
            table = sum(1 << entry for entry, count in enumerate(counts) if count & bit)
            assert table < 1 << 63, "too many numbers"
            if table:
                found = builder.binary("shr", builder.constant(table, INT64), at)
                total = total + Index.of(builder.binary("and", found, 1)) * bit
        return total

    def begin(self, _builder: Builder, part: Subscript) -> Index:
        """Return where a part begins, but for the last two; beyond these, maybe beyond the end."""
        return Index.of(part) * self.size

    def at(self, builder: Builder, part: Index) -> Iterator[tuple[Run, Index]]:
        """Open a block for a whole part, and one for each entry of the rest; gives its begin."""
        whole = self.extent // self.size
        with builder.serial(part, builder.smaller(part + 1, whole)) as index:
            yield Run(0, whole, self.size, 0), index * self.size
        if self.size > 1:
            begin = builder.larger(part, whole) * self.size
            end = builder.smaller((part + 1) * self.size, self.extent)
            with builder.serial(begin, end) as index:
                yield Run(0, whole, 1, 0), index


_EACH = 8
"""Up to this size, parts have a code of their own; of larger ones, every other."""


def split_extent(extent: Size, limit: int) -> Split | FreeSplit:
    """Cut an extent into parts, none larger than a limit."""
    return FreeSplit(extent, limit) if isinstance(extent, Expression) else Split.of(extent, limit)


@dataclass(frozen=True, slots=True)
class Run:
    """Parts `first` to `end`, each of one size; part i begins at `i * size + offset`."""

    first: int
    end: Size
    size: int
    offset: int

    @property
    def begins(self) -> tuple[int, ...]:
        """Where each part begins."""
        return tuple(part * self.size + self.offset for part in range(self.first, self.end))

    def each(
        self, builder: Builder, begin: Subscript | None = None, end: Subscript | None = None
    ) -> Iterator[Index]:
        """Open a loop over those parts of the run that lie in a range; gives where each begins."""
        lower = Index(self.first)
        if begin is not None:
            lower = builder.larger(begin, self.first) if self.first else Index.of(begin)
        upper = Index(self.end) if end is None else builder.smaller(end, self.end)
        with builder.serial(lower, upper) as part:
            yield part * self.size + self.offset


def normalise(
    window: Window, x: Layout, y: Layout, epilogue: Fused
) -> tuple[Window, Layout, Layout, Fused]:
    """Return the same window with as few dimensions as layouts allow, but at least two.

    Adjacent dimensions without a window become one where all tensors are dense over both. The
    layouts are over (batch, channels, *spatial, and maybe a block of channels).
    """
    layouts = [x, y, *epilogue.operands]
    dim = window.rank - 2
    while dim >= 0:
        pair = slice(dim, dim + 2)
        # 1 x 1 taps know no rows: 10 x 10 positions are 100 of one, in 8 tiles of at most 14 pixels
        # instead of 10.
        is_point = set(window.kernel[pair]) | set(window.strides[pair]) == {1}
        if is_point and all(_is_dense(layout, window.out, dim) for layout in layouts):
            layouts = [_merge(layout, window.out, dim) for layout in layouts]
            rows, columns = window.out[pair]
            rest = window.without(dim)
            merged = (*rest.out[:dim], rows * columns, *rest.out[dim + 1 :])
            window = replace(rest, out=merged)
        dim -= 1
    if window.rank == 1:
        fields = (window.out, window.kernel, window.strides, window.dilations)
        out, kernel, strides, dilations = ((1, *field) for field in fields)
        window = Window(out, kernel, strides, dilations)
        layouts = [_insert(layout) for layout in layouts]
    return window, layouts[0], layouts[1], epilogue.over(layouts[2:])


def _is_dense(layout: Layout, out: tuple[int, ...], dim: int) -> bool:
    outer, inner = layout.strides[2 + dim : 4 + dim]
    return 1 in out[dim : dim + 2] or outer == inner * out[dim + 1]


def _merge(layout: Layout, out: tuple[int, ...], dim: int) -> Layout:
    outer, inner = layout.strides[2 + dim : 4 + dim]
    step = outer if out[dim + 1] == 1 else inner
    return replace(layout, strides=(*layout.strides[: 2 + dim], step, *layout.strides[4 + dim :]))


def _insert(layout: Layout) -> Layout:
    return replace(layout, strides=(*layout.strides[:2], 0, *layout.strides[2:]))


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the last two dimensions of a window's positions are cut: into tiles, tiles into bands.

    Attributes:
        rows: Tiles along the last dimension but one.
        columns: Tiles along the last one.
        bands: Shares of the tiles, for separate turns of the parallel loop; along rows if there
            are several, else along columns.
    """

    rows: Split
    columns: Split
    bands: Split

    @classmethod
    def of(cls, out: Sequence[int], pixels: int, bands: int) -> Tiling:
        """Cut into tiles of at most `pixels` positions, and at most so many bands."""
        height, width = out[-2:]
        columns = Split.of(width, pixels)
        rows = Split.of(height, max(1, pixels // max(1, columns.size + (columns.larger > 0))))
        tiles = rows.count if rows.count > 1 else columns.count
        return cls(rows, columns, Split(tiles, even_parts(tiles, bands)))

    def each(
        self, builder: Builder, band: Index, body: Callable[[Index, Index, int, int], None]
    ) -> None:
        """Append loops over the tiles of a band.

        Args:
            builder: Of the kernel.
            band: Its number.
            body: From a tile's first row and column, its height and width.
        """
        begin = self.bands.begin(builder, band)
        end = self.bands.begin(builder, band + 1)
        is_by_rows = self.rows.count > 1
        for rows in self.rows.runs:
            for row in rows.each(builder, *((begin, end) if is_by_rows else ())):
                for columns in self.columns.runs:
                    limits = () if is_by_rows else (begin, end)
                    for column in columns.each(builder, *limits):
                        body(row, column, rows.size, columns.size)


def even_parts(extent: int, wanted: int) -> int:
    """Return about as many parts as wanted, of one size if that comes within a factor of two.

    Equal parts are fair to threads and begin at multiples.
    """
    wanted = max(1, min(wanted, extent))
    even = [n for n in range(1, extent + 1) if extent % n == 0 and wanted <= 2 * n <= 4 * wanted]
    return min(even, key=lambda n: abs(n - wanted), default=wanted)


def over_taps(
    builder: Builder,
    extents: Sequence[tuple[Subscript, Subscript, int]],
    initial: Sequence[IrValue],
    body: Callable[[list[Index], Sequence[IrValue]], Sequence[IrValue]],
) -> list[IrValue]:
    """Append nested loops that carry accumulators through.

    Args:
        builder: Of the kernel.
        extents: Lower end, upper end and step of each loop, the outermost first.
        initial: The accumulators before.
        body: From the loops' variables and the accumulators to the next ones.
    """

    def nest(depth: int, at: list[Index], values: Sequence[IrValue]) -> Sequence[IrValue]:
        if depth == len(extents):
            return body(at, values)
        lower, upper, step = extents[depth]
        return builder.loop(
            lower,
            upper,
            values,
            lambda index, *carried: nest(depth + 1, [*at, index], carried),
            step=step,
        )

    return list(nest(0, [], list(initial)))
