# SPDX-License-Identifier: Apache-2.0
"""GridSample and RoiAlign: images read between their entries, at places known when it runs.

Coordinates are computed as onnxruntime does, in the type that they come in. Where ONNX's reference
clamps the coordinates of a cubic sample that lies outside, onnxruntime and PyTorch clamp only its
entries, and so does this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod

from intarsia.codegen.body import Layout, load_lanes, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import INT64, Buffer, Function, Index, IrValue, Type
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.gather import read_index, vectors
from intarsia.codegen.scalar_ops.conversion import convert
from intarsia.codegen.unit import AVX512, CpuModel

TAPS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
"""The entries along a dimension that a sample is made of, counted from the one below it."""
PADDINGS = ("zeros", "border", "reflection")
_POINTS = 64
"""Points of a turn: the places and weights of their entries are kept for all channels."""
_PLACES = 1024
"""The most that are kept: 12 KB."""
_CHANNELS = 32
"""Channels of a turn: enough that places and weights are cheap."""
_TOGETHER = 4
"""Channels for which places and weights are read once."""


@dataclass(frozen=True, slots=True)
class GridSample:
    """`y[n, c, p]` is channel c of image n at point p of its grid.

    Attributes:
        batch: Images.
        channels: Of each.
        extents: Of an image; none is 0.
        points: Of the grid of an image.
        x: Over (batch * channels * entries of an image,).
        grid: Over (batch, points, dimensions), the last dimension of an image first; float32 or
            float64; an image is from -1 to 1.
        y: Over (batch, channels, points).
        mode: One of `TAPS`.
        padding: What lies outside: one of `PADDINGS`.
        aligns_corners: Whether -1 and 1 are the centres of the outermost entries, not their edges.
        counts_entries: Whether coordinates are numbers of entries, the first dimension first.
    """

    batch: int
    channels: int
    extents: tuple[int, ...]
    points: int
    x: Layout
    grid: Layout
    y: Layout
    mode: str = "linear"
    padding: str = "zeros"
    aligns_corners: bool = False
    counts_entries: bool = False


@dataclass(frozen=True, slots=True)
class RoiAlign:
    """`y[r, i, j, c]` is the mean, or the largest, of samples in one bin of region r.

    Attributes:
        extents: Of x: batch, height and width, channels.
        out: Of y: regions, bins down and across.
        x: Over the extents.
        boxes: Over (regions, 4): left, top, right, bottom.
        images: Over (regions,): the image of each; int64.
        y: Over (*out, channels).
        ratio: Samples of a bin along a dimension; 0 for one for each entry that it covers.
        scale: From the boxes' coordinates to those of x.
        is_largest: Whether the largest weighted entry is wanted, else the mean of samples.
        is_half_pixel: Whether the first entry's centre is at 0.5.
        unit: What it is shaped for.
    """

    extents: tuple[int, int, int, int]
    out: tuple[int, int, int]
    x: Layout
    boxes: Layout
    images: Layout
    y: Layout
    ratio: int = 0
    scale: float = 1.0
    is_largest: bool = False
    is_half_pixel: bool = True
    unit: CpuModel = AVX512


SPECS = (GridSample, RoiAlign)


def build(spec: GridSample | RoiAlign) -> Function:
    """Return the kernel; its arguments are x, grid, y, or x, boxes, images, y."""
    return _grid_sample(spec) if isinstance(spec, GridSample) else _roi_align(spec)


# GridSample


def _grid_sample(spec: GridSample) -> Function:
    b = Builder("grid_sample")
    plane, whole = prod(spec.extents), spec.channels // _TOGETHER * _TOGETHER
    x = spec.x.declare(b, "x", (spec.batch * spec.channels * plane,))
    grid = spec.grid.declare(b, "grid", (spec.batch, spec.points, len(spec.extents)))
    y = spec.y.declare(b, "y", (spec.batch, spec.channels, spec.points), is_written=True)
    b.note(f"{spec.mode}, {spec.padding}{', corners aligned' * spec.aligns_corners}")
    corners = len(TAPS[spec.mode]) ** len(spec.extents)
    most = min(_POINTS, max(1, _PLACES // corners))
    places = b.local("places", INT64.dtype, (most, corners))
    weights = b.local("weights", x.dtype, (most, corners))
    blocks = (spec.batch, -(-spec.channels // _CHANNELS), -(-spec.points // most))
    for image, part, block in each_turn(b, blocks, prod(y.shape)):
        first, begin = part * _CHANNELS, block * most
        last = b.smaller(first + _CHANNELS, spec.channels)
        end = b.smaller(begin + most, spec.points)

        def look(
            point: Index, least: IrValue, image: Index = image, begin: Index = begin
        ) -> list[IrValue]:
            place = _keep(b, spec, (grid, places, weights), (image, point), point - begin)
            return [b.minimum(least, place)]

        (least,) = b.loop(begin, end, [b.constant(0, INT64)], look)
        ways = [(b.compare("ge", least, 0), True)]
        if spec.padding == "zeros":
            ways.append((b.compare("lt", least, 0), False))
        spans = (
            (first, b.smaller(last, whole), _TOGETHER),
            (b.larger(first, whole), last, 1),
        )
        for (holds, is_inside), (lower, upper, step) in product(ways, spans):
            with b.where(holds), b.serial(lower, upper, step) as channel:
                images = [image * spec.channels + channel + more for more in range(step)]
                starts = [Index.of(b.index(number * plane)) for number in images]
                with b.serial(begin, end) as point:
                    kept = (x, places, weights)
                    values = _sample(b, kept, starts, point - begin, is_inside=is_inside)
                    for more, value in enumerate(values):
                        b.store(value, y, (image, channel + more, point))
    return b.finish()


def _keep(
    b: Builder,
    spec: GridSample,
    buffers: tuple[Buffer, Buffer, Buffer],
    at: tuple[Index, Index],
    row: Index,
) -> IrValue:
    """Keep where the entries of a point are and what they weigh; return the least place."""
    (grid, places, weights), (image, point) = buffers, at
    axes = []
    for dim, extent in enumerate(spec.extents):
        # ONNX's grids have the last dimension first.
        column = dim if spec.counts_entries else len(spec.extents) - 1 - dim
        value = b.load(grid, (image, point, column))
        axes.append(_taps(b, spec, value, extent))
    least = b.constant(0, INT64)
    for number, corner in enumerate(product(*axes)):
        place, *inner = (entry for entry, _ in corner)
        for extent, entry in zip(spec.extents[1:], inner, strict=True):
            place = b.add(b.mul(place, extent), entry)
        if spec.padding == "zeros":  # one that lies outside is negative
            lowest = reduce(b.minimum, [entry for entry, _ in corner])
            place = b.select(b.compare("lt", lowest, 0), -1, place)
            least = b.minimum(least, place)
        b.store(place, places, (row, number))
        if spec.mode != "nearest":
            weight = reduce(b.mul, [weight for _, weight in corner])
            b.store(convert(b, weight, weights.dtype), weights, (row, number))
    return least


def _sample(
    b: Builder,
    buffers: tuple[Buffer, Buffer, Buffer],
    starts: Sequence[Index],
    row: Index,
    *,
    is_inside: bool,
) -> list[IrValue]:
    """Return the weighted sums at a point of images; whether all places are inside is known."""
    x, places, weights = buffers
    corners = places.shape[-1]
    sums: list[IrValue] = []
    for number in range(corners):
        place = b.load(places, (row, number))
        at = Index.of(place) if is_inside else b.larger(Index.of(place), 0)
        values = [b.load(x, start + at) for start in starts]
        if not is_inside:  # not by a weight of 0, which makes NaN of infinity
            here = b.compare("ge", place, 0)
            values = [b.select(here, value, 0) for value in values]
        if corners == 1:
            return values
        weight = b.load(weights, (row, number))
        if sums:
            pairs = zip(values, sums, strict=True)
            sums = [b.fma(weight, value, total) for value, total in pairs]
        else:
            sums = [b.mul(weight, value) for value in values]
    return sums


def _taps(
    b: Builder, spec: GridSample, value: IrValue, extent: int
) -> list[tuple[IrValue, IrValue]]:
    """Return the entries of a dimension that make up a sample, -1 for zero, and their weights."""
    if spec.aligns_corners:
        low, high = 0.0, extent - 1.0
        at = b.mul(b.mul(b.add(value, 1.0), 0.5), high)
    else:
        low, high = -0.5, extent - 0.5
        at = b.mul(b.sub(b.mul(b.add(value, 1.0), float(extent)), 1.0), 0.5)
    at = value if spec.counts_entries else at
    if spec.mode == "nearest":
        at = b.unary("rint", at)
    is_outside = b.binary("or", b.compare("lt", at, low), b.compare("gt", at, high))
    if spec.padding == "border" and spec.mode != "cubic":
        at = b.select(is_outside, _clamp(b, at, 0, extent - 1), at)
    elif spec.padding == "reflection":
        at = _reflect(b, at, low, high)
    # Far enough outside that all taps are, and near enough for an integer; NaN is outside too.
    at = _clamp(b, at, -3, extent + 2)
    below = b.unary("floor", at)
    weights = _weights(b, spec.mode, b.sub(at, below))
    places = []
    for tap in TAPS[spec.mode]:
        place = b.add(below, float(tap))
        if spec.padding == "reflection":
            place = _reflect(b, place, low, high)
        number = b.cast(place, INT64.dtype)
        if spec.padding == "zeros":
            number = b.select(b.compare("lt", number, extent), number, -1)
        else:
            number = b.minimum(b.maximum(number, 0), extent - 1)
        places.append(number)
    return list(zip(places, weights, strict=True))


def _clamp(b: Builder, value: IrValue, low: float, high: float) -> IrValue:
    """Return a number within limits; NaN becomes the lower one."""
    return b.minimum(b.maximum(value, float(low)), float(high))


def _reflect(b: Builder, value: IrValue, low: float, high: float) -> IrValue:
    """Return a coordinate mirrored at two borders until it lies between them."""
    span = max(high - low, 1.0)  # of a single entry with aligned corners it would be 0
    is_below = b.compare("lt", value, low)
    beyond = b.select(is_below, b.sub(low, value), b.sub(value, high))
    times = b.unary("trunc", b.div(beyond, span))
    rest = b.sub(beyond, b.mul(times, span))
    half = b.mul(times, 0.5)
    is_even = b.compare("eq", b.unary("trunc", half), half)
    from_low = b.compare("eq", b.cast(is_below, "int8"), b.cast(is_even, "int8"))
    mirrored = b.select(from_low, b.add(rest, low), b.sub(high, rest))
    is_outside = b.binary("or", is_below, b.compare("gt", value, high))
    return _clamp(b, b.select(is_outside, mirrored, value), low, high)


_SHARPNESS = -0.75
"""The parameter of Keys, "Cubic convolution interpolation for digital image processing", IEEE
Transactions on Acoustics, Speech, and Signal Processing 29(6), 1981."""


def _weights(b: Builder, mode: str, x: IrValue) -> list[IrValue]:
    """Return the weights of the entries around a place, x above the one below it."""
    if mode == "nearest":
        return [x]  # nothing reads it
    rest = b.sub(1.0, x)
    if mode == "linear":
        return [rest, x]

    def near(t: IrValue) -> IrValue:
        inner = b.sub(b.mul(t, _SHARPNESS + 2), _SHARPNESS + 3)
        return b.add(b.mul(b.mul(inner, t), t), 1.0)

    def far(t: IrValue) -> IrValue:
        outer = b.sub(b.mul(t, _SHARPNESS), 5 * _SHARPNESS)
        return b.sub(b.mul(b.add(b.mul(outer, t), 8 * _SHARPNESS), t), 4 * _SHARPNESS)

    return [far(b.add(x, 1.0)), near(x), near(rest), far(b.sub(2.0, x))]


# RoiAlign


def _roi_align(spec: RoiAlign) -> Function:
    b = Builder("roi_align")
    channels, (regions, down, across) = spec.extents[-1], spec.out
    x = spec.x.declare(b, "x", spec.extents)
    boxes = spec.boxes.declare(b, "boxes", (regions, 4))
    images = spec.images.declare(b, "images", (regions,))
    y = spec.y.declare(b, "y", (*spec.out, channels), is_written=True)
    b.note(f"{'largest' if spec.is_largest else 'mean'}, {spec.ratio or 'adaptive'} samples")
    for region, row in each_turn(b, (regions, down), prod(y.shape) * prod(spec.extents)):
        image = read_index(b, images, (region,), spec.extents[0])
        sides = [b.load(boxes, (region, side)) for side in range(4)]
        axes = _bin_axes(b, spec, sides)
        with b.serial(0, across) as column:
            for first, lanes, count in vectors(b, spec.unit, x.dtype, channels):
                value = _bin(b, spec, x, (image, first), (row, column), axes, lanes, count)
                store_lanes(b, value, y, (region, row, column, first), count)
    return b.finish()


@dataclass(frozen=True, slots=True)
class _BinAxis:
    """The bins of a region along a dimension of the image.

    Attributes:
        extent: Of the image.
        start: Coordinate of the first bin.
        size: Of a bin.
        count: Samples of a bin; int64.
    """

    extent: int
    start: IrValue
    size: IrValue
    count: IrValue

    def entries(self, b: Builder, bin_: Index, number: Index) -> list[tuple[Index, IrValue]]:
        """Return the two entries around a sample of a bin, and their weights."""
        dtype = self.size.type.dtype
        start = b.add(self.start, b.mul(b.cast(b.index(bin_), dtype), self.size))
        inside = b.mul(b.add(b.cast(b.index(number), dtype), 0.5), self.size)
        at = b.add(start, b.div(inside, b.cast(self.count, dtype)))
        is_below, is_above = b.compare("lt", at, -1.0), b.compare("gt", at, float(self.extent))
        outside = b.binary("or", is_below, is_above)
        at = _clamp(b, at, 0, self.extent - 1)
        below = b.cast(at, INT64.dtype)
        upper = b.sub(at, b.cast(below, dtype))
        low = Index.of(below)
        pairs = [(low, b.sub(1.0, upper)), (b.smaller(low + 1, self.extent - 1), upper)]
        return [(entry, b.select(outside, 0.0, weight)) for entry, weight in pairs]


def _bin_axes(b: Builder, spec: RoiAlign, sides: Sequence[IrValue]) -> tuple[_BinAxis, _BinAxis]:
    """Return how the bins of a box lie down and across."""
    offset = 0.5 if spec.is_half_pixel else 0.0
    left, top, right, bottom = (b.sub(b.mul(side, spec.scale), offset) for side in sides)
    axes = []
    for dim, (start, end) in enumerate(((top, bottom), (left, right))):
        span = b.sub(end, start)
        if not spec.is_half_pixel:
            span = b.maximum(span, 1.0)
        size = b.div(span, float(spec.out[1 + dim]))
        axes.append(_BinAxis(spec.extents[1 + dim], start, size, _samples(b, spec, size)))
    return axes[0], axes[1]


def _bin(
    b: Builder,
    spec: RoiAlign,
    x: Buffer,
    place: tuple[Index, Index],
    bins: tuple[Index, Index],
    axes: tuple[_BinAxis, _BinAxis],
    lanes: int,
    count: int | None,
) -> IrValue:
    """Return the mean, or the largest, of the samples of a bin, for some channels of an image."""
    (image, first), (row, column), (down, across) = place, bins, axes
    join = b.maximum if spec.is_largest else b.add

    def over_rows(number: Index, value: IrValue) -> list[IrValue]:
        rows = down.entries(b, row, number)

        def over_columns(number: Index, value: IrValue) -> list[IrValue]:
            parts = [
                b.mul(load_lanes(b, x, (image, i, j, first), lanes, count), b.mul(height, width))
                for i, height in rows
                for j, width in across.entries(b, column, number)
            ]
            return [join(value, reduce(join, parts))]

        return b.loop(0, across.count, [value], over_columns)

    start = float("-inf") if spec.is_largest else 0.0
    initial = b.constant(start, Type(x.dtype, lanes))
    (value,) = b.loop(0, down.count, [initial], over_rows)
    samples = b.mul(down.count, across.count)
    if spec.is_largest:
        return b.select(b.compare("gt", samples, 0), value, 0.0)
    return b.div(value, b.cast(b.maximum(samples, 1), x.dtype))


_MOST_SAMPLES = 2.0**31
"""Along a bin; a box without bounds has none."""


def _samples(b: Builder, spec: RoiAlign, size: IrValue) -> IrValue:
    """Return how many samples a bin has along a dimension; int64."""
    if spec.ratio > 0:
        return b.constant(spec.ratio, INT64)
    count = b.maximum(b.unary("ceil", size), 0.0)  # 0 for NaN
    return b.cast(b.select(b.compare("lt", count, _MOST_SAMPLES), count, 0.0), INT64.dtype)
