# SPDX-License-Identifier: Apache-2.0
"""What convolutions and poolings share: the sliding window, cuts of extents, loops over taps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from intarsia.codegen.body import Fused, Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Index, IrValue, Subscript
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


@dataclass(frozen=True, slots=True)
class FreeSplit:
    """A free extent cut into parts of one size, the last one smaller; see `Split`."""

    extent: Size
    size: int

    @property
    def larger(self) -> int:
        """How many parts have one more: none."""
        return 0

    @property
    def count(self) -> Size:
        """How many parts there are."""
        return -(-self.extent // self.size)

    @property
    def runs(self) -> tuple[Run | FreeRest, ...]:
        """The whole parts, then the rest: one part, or an even one and one more."""
        whole = self.extent // self.size
        rest = self.extent - whole * self.size

        def reaches(number: int) -> Size:  # 1 or 0, as a rest is smaller than a part
            return (rest + self.size - number) // self.size if number < self.size else 0

        def is_between(low: int, high: int) -> Size:
            return reaches(low) - reaches(high)

        begin = whole * self.size
        # A code for each size costs time to compile, and a single row about as much as three.
        single = [number for number in range(1, self.size) if number <= _SINGLE or number % 2 == 0]
        runs: list[Run | FreeRest] = [Run(0, whole, self.size, 0)]
        for number in single:
            end = number + 1 if number < _SINGLE else number + 2
            runs.append(FreeRest(whole, is_between(number, end), number, begin))
        odd = [is_between(number, number + 1) for number in range(_SINGLE + 1, self.size, 2)]
        if odd:
            runs.append(FreeRest(whole, sum(odd, 0), 1, begin + rest - 1))
        return tuple(runs)

    def begin(self, _builder: Builder, part: Subscript) -> Index:
        """Return where a part begins; beyond the last one that may be beyond the end."""
        return Index.of(part) * self.size

    def at(self, builder: Builder, part: Index) -> Iterator[tuple[Run, Index]]:
        """Open a block for a whole part, and one for each entry of the rest; gives its begin."""
        whole = self.extent // self.size
        with builder.serial(part, builder.smaller(part + 1, whole)) as index:
            yield Run(0, whole, self.size, 0), index * self.size
        if self.size > 1:
            rest = FreeRest(whole, self.extent - whole * self.size, 1, whole * self.size)
            for begin in rest.each(builder, part, part + 1):
                yield Run(0, whole, 1, 0), begin


_FAR = 1 << 20
"""More parts than a rest ever has."""
_SINGLE = 8
"""Up to this many rows, a rest is one part."""


@dataclass(frozen=True, slots=True)
class FreeRest:
    """What is left of a free extent after its whole parts, as far as parts of one size cover it.

    Attributes:
        whole: How many whole parts there are.
        count: How many parts of this size; at most one, unless the whole parts are of no other.
        size: Of a part.
        offset: Where the first one begins.
    """

    whole: Size
    count: Size
    size: int
    offset: Size

    def each(
        self, builder: Builder, begin: Subscript | None = None, end: Subscript | None = None
    ) -> Iterator[Index]:
        """Open a loop over the parts, if the last part of the extent lies in a range."""
        upper = Index.of(self.count)
        if begin is not None and end is not None:  # a range that begins behind it has no turn
            last = builder.larger(Index.of(end) - self.whole, 0)
            upper = builder.smaller(last * _FAR, self.count)
        with builder.serial(0, upper) as part:
            yield part * self.size + self.offset


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
