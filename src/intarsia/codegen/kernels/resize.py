# SPDX-License-Identifier: Apache-2.0
"""Resize and Upsample: where each output entry comes from, and interpolation.

Scales are known when compiling, so that positions and weights are tables. Nearest neighbours are
copies by tables (`nearest`); linear interpolation reads two entries in every resized dimension
(`Linear`). All else (cubic, antialias, crops) is a sum by tables of weights (`Weighted`).
Coordinates are computed as onnxruntime does, in float32, since ties depend on it; for elements that
onnxruntime does not resize, as ONNX's reference does, in float64.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import prod

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import NOTHING, Fused, Layout, load_lanes, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.remap import Remap
from intarsia.codegen.unit import AVX512, CpuModel

_COORDINATES = frozenset(
    (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_half_pixel_for_nn",
        "tf_crop_and_resize",
    )
)
_ROUNDINGS = frozenset(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple"))
_IN_FLOAT32 = frozenset(("float16", "float32", "int8", "uint8", "int32"))
"""Elements that onnxruntime resizes: their coordinates are its own."""


@dataclass(frozen=True, slots=True)
class ResizedAxis:
    """One resized dimension.

    Attributes:
        extent: Of the input.
        out: Of the output.
        scale: As given, or their quotient.
        coordinates: ONNX's `coordinate_transformation_mode`.
        rounding: ONNX's `nearest_mode`; `simple` is that of old Upsample.
        crop: Start and end in the input, from 0 to 1, of `tf_crop_and_resize`.
    """

    extent: int
    out: int
    scale: float
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    crop: tuple[float, float] = (0.0, 1.0)

    @property
    def stays(self) -> bool:
        """Whether each output entry is the input entry of its number."""
        return self.scale == 1 and self.out == self.extent and self.crop == (0, 1)


def refuse(mode: str, coordinates: str, rounding: str = "round_prefer_floor") -> str | None:
    """Say why a Resize is not taken."""
    if mode not in ("nearest", "linear", "cubic"):
        return f"Resize in mode {mode}"
    if coordinates not in _COORDINATES:
        return f"Resize with coordinates {coordinates}"
    if mode == "nearest" and rounding not in _ROUNDINGS:
        return f"Resize with rounding {rounding}"
    return None


def positions(axis: ResizedAxis, dtype: str) -> Array:  # noqa: PLR0911 - a line for each rule
    """Return where each output entry lies in the input: float32 or float64.

    Args:
        axis: The resized dimension.
        dtype: Of the elements.
    """
    real = np.dtype(np.float32 if dtype in _IN_FLOAT32 else np.float64).type
    at: Array = np.arange(axis.out, dtype=real)
    # In the type in which ONNX Runtime computes: at ties a float64 would round to another
    # neighbour.
    scale, half = real(axis.scale), real(0.5)
    if axis.stays:
        return at
    match axis.coordinates:
        case "asymmetric":
            return at / scale
        case "align_corners":
            if axis.out == 1:
                return np.zeros(1, real)
            return at * real(axis.extent - 1) / real(axis.out - 1)
        case "tf_crop_and_resize":
            start, end = (real(bound) for bound in axis.crop)
            last, steps = real(axis.extent - 1), real(axis.out - 1)
            middle = np.full(1, half * (start + end) * last, real)
            return start * last + at * (end - start) * last / steps if steps else middle
        case "tf_half_pixel_for_nn":
            return (at + half) / scale
        case "pytorch_half_pixel" if axis.out <= 1:
            return at * 0
        case "half_pixel_symmetric":
            adjustment = real(axis.out) / (scale * real(axis.extent))
            center = real(axis.extent) / real(2)
            return center * (1 - adjustment) + (at + half) / scale - half
        case _:
            return (at + half) / scale - half


def nearest_table(axis: ResizedAxis, dtype: str) -> Array:
    """Return for each output entry the input entry that it copies: int64.

    Args:
        axis: The resized dimension.
        dtype: Of the elements.
    """
    at = positions(axis, dtype)
    entries: Array
    match axis.rounding:
        case "round_prefer_floor":
            entries = np.ceil(at - at.dtype.type(0.5))
        case "round_prefer_ceil":
            entries = np.floor(at + at.dtype.type(0.5))
        case "floor":
            entries = np.floor(at)
        case "ceil":
            entries = np.ceil(at)
        case _:
            entries = np.ceil(at) if axis.scale < 1 else np.trunc(at)
    # Positions beyond an edge, of half a pixel and more, take the entry at the edge.
    return np.clip(entries.astype(np.int64), 0, axis.extent - 1)


def nearest(
    outer: tuple[int, ...],
    axes: tuple[ResizedAxis, ...],
    block: int,
    x: Layout,
    y: Layout,
    epilogue: Fused = NOTHING,
    unit: CpuModel = AVX512,
) -> tuple[Remap, list[Array]]:
    """Return nearest neighbours as a copy, and its tables in order.

    Args:
        outer: Extents of the dimensions that stay: batch, blocks of channels.
        axes: The resized dimensions.
        block: Channels of a block; 1 for plain memory.
        x: Over (*outer, *extents of the axes, block).
        y: Over (*outer, *outputs of the axes, block).
        epilogue: Over the domain of y.
        unit: What it is shaped for.
    """
    tables = [nearest_table(axis, x.dtype) for axis in axes]
    mapped = [
        not np.array_equal(table, np.arange(axis.extent))
        for table, axis in zip(tables, axes, strict=True)
    ]
    extents = (*outer, *(axis.out for axis in axes))
    sources = (*outer, *(axis.extent for axis in axes))
    factor = 1
    if block > 1:
        extents, sources = (*extents, block), (*sources, block)
    else:
        x, y = x.without_last(), y.without_last()
        epilogue = epilogue.over(item.without_last() for item in epilogue.operands)
        # Whole factors, the usual case: lanes are repeated by shuffles, with no table to read.
        repeats = axes[-1].out // max(1, axes[-1].extent)
        if mapped[-1] and np.array_equal(
            tables[-1], np.repeat(np.arange(axes[-1].extent), repeats)
        ):
            factor, mapped[-1] = repeats, False
    marks = (*(False for _ in outer), *mapped, *((False,) if block > 1 else ()))
    spec = Remap(extents, sources, marks, x, y, factor, epilogue, unit)
    return spec, [table for table, is_mapped in zip(tables, mapped, strict=True) if is_mapped]


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear interpolation in any number of dimensions.

    Attributes:
        outer: Extents of the dimensions that stay: batch, blocks of channels.
        axes: The resized dimensions.
        x: Over (*outer, *extents of the axes, block).
        y: Over (*outer, *outputs of the axes, block).
        block: Channels of a block; 1 for plain memory.
        epilogue: Over the domain of y.
        unit: What it is shaped for.
    """

    outer: tuple[int, ...]
    axes: tuple[ResizedAxis, ...]
    x: Layout
    y: Layout
    block: int = 1
    epilogue: Fused = NOTHING
    unit: CpuModel = AVX512


def linear_tables(spec: Linear) -> list[Array]:
    """Return for each axis the lower entries, the upper ones, and the upper ones' weights."""
    tables = []
    for axis in spec.axes:
        at = np.clip(positions(axis, spec.x.dtype), 0, max(0, axis.extent - 1))
        lower = np.minimum(at.astype(np.int64), axis.extent - 1)
        upper = np.minimum(lower + 1, axis.extent - 1)
        weights = (at - lower).astype(spec.x.dtype)
        # Both are the entry at the edge there; onnxruntime weighs them by halves
        # (`SetupUpsampleBilinear`).
        tables += [lower, upper, np.where(lower == upper, 0.5, weights).astype(spec.x.dtype)]
    return tables


@dataclass(frozen=True, slots=True)
class Filter:
    """How neighbours are weighed.

    Attributes:
        mode: ONNX's `mode`.
        cubic: `cubic_coeff_a` of mode cubic.
        antialias: Whether it is as wide as an output entry where that is wider than an input entry.
        exclude_outside: Whether neighbours beyond an edge do not count; else they are the edge's.
    """

    mode: str
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False


def outside(axis: ResizedAxis, dtype: str) -> Array:
    """Tell which output entries of a crop lie beyond the input: bool."""
    at = positions(axis, dtype)
    return (at < 0) | (at > axis.extent - 1)


def is_doubtful(axis: ResizedAxis, mode: str) -> bool:
    """Tell whether the order of computing decides what an output entry of a crop is.

    Args:
        axis: The resized dimension.
        mode: ONNX's `mode`.
    """
    is_exact = axis.scale * axis.extent == axis.out
    if axis.stays or (is_exact and all((bound * 256).is_integer() for bound in axis.crop)):
        return False
    at, last = positions(axis, "float64"), axis.extent - 1
    margin = 1e-5 * (1 + last)
    is_near = (np.abs(at) < margin) | (np.abs(at - last) < margin)
    if mode == "nearest":  # it rounds at integers or halves
        is_near |= np.abs(2 * at - np.rint(2 * at)) < 2 * margin
    if axis.crop[0] == 0 and axis.out > 1:
        is_near[0] = False
    return bool(is_near.any()) or (axis.out == 1 and not is_exact)


def _first_tap(axis: ResizedAxis, how: Filter) -> int:
    """Return the first neighbour of a position, counted from the entry below it."""
    scale = min(axis.scale, 1.0) if how.antialias else 1.0
    return int(np.floor(-(2 if how.mode == "cubic" else 1) / scale)) + 1


def weighted_table(axis: ResizedAxis, dtype: str, how: Filter) -> tuple[Array, Array]:
    """Return for each output entry the input entries that are summed, and their weights.

    As ONNX's reference has it: the entries nearest to a position, of two as near the lower.

    Args:
        axis: The resized dimension.
        dtype: Of the elements and the weights.
        how: The filter.

    Returns:
        int64 and dtype of shape (out, taps); weights add up to 1.
    """
    if axis.stays or how.mode == "nearest":
        entries = np.arange(axis.out) if axis.stays else nearest_table(axis, dtype)
        return entries[:, None], np.ones((axis.out, 1), dtype)
    at = positions(axis, dtype).astype(np.float64)
    scale = min(axis.scale, 1.0) if how.antialias else 1.0
    first = _first_tap(axis, how)
    neighbours = (np.ceil(at)[:, None] - 1 + np.arange(first, 2 - first)).astype(np.int64)
    distance = np.abs(neighbours - at[:, None]) * scale
    if how.mode == "cubic":
        a = how.cubic
        near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0))  # noqa: PLR2004
    else:
        weights = np.maximum(1 - distance, 0)
    if how.exclude_outside:
        weights = np.where((neighbours < 0) | (neighbours >= axis.extent), 0, weights)
    total = weights.sum(axis=1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    return np.clip(neighbours, 0, axis.extent - 1), weights.astype(dtype)


@dataclass(frozen=True, slots=True)
class Weighted:
    """Sums of neighbours by tables of entries and weights, in any number of dimensions.

    Attributes:
        outer: Extents of the dimensions that stay: batch, blocks of channels.
        axes: The resized dimensions.
        how: The filter.
        x: Over (*outer, *extents of the axes, block).
        y: Over (*outer, *outputs of the axes, block).
        block: Channels of a block; 1 for plain memory.
        extrapolation: What entries outside a crop are; None without a crop.
        epilogue: Over the domain of y.
        unit: What it is shaped for.
    """

    outer: tuple[int, ...]
    axes: tuple[ResizedAxis, ...]
    how: Filter
    x: Layout
    y: Layout
    block: int = 1
    extrapolation: float | None = None
    epilogue: Fused = NOTHING
    unit: CpuModel = AVX512

    @property
    def taps(self) -> tuple[int, ...]:
        """Of each axis, how many entries are summed."""
        return tuple(
            1 if axis.stays or self.how.mode == "nearest" else 2 - 2 * _first_tap(axis, self.how)
            for axis in self.axes
        )


def weighted_tables(spec: Weighted) -> list[Array]:
    """Return for each axis the entries and their weights; then, of a crop, what is inside: 1."""
    dtype = spec.x.dtype
    tables = [table for axis in spec.axes for table in weighted_table(axis, dtype, spec.how)]
    if spec.extrapolation is not None:
        tables += [np.where(outside(axis, dtype), 0, 1).astype(dtype) for axis in spec.axes]
    return tables


SPECS = (Linear, Weighted)


def build(spec: Linear | Weighted) -> Function:
    """Return the kernel; its arguments are x, the tables, y, fused operands.

    The tables are those of `linear_tables` or `weighted_tables`.
    """
    return _Linear(spec).function() if isinstance(spec, Linear) else _Weighted(spec).function()


class _Linear:
    """Makes one kernel."""

    def __init__(self, spec: Linear) -> None:
        self.spec = spec
        self.b = b = Builder("resize_linear")
        extents = (*spec.outer, *(axis.extent for axis in spec.axes), spec.block)
        self.domain = (*spec.outer, *(axis.out for axis in spec.axes), spec.block)
        self.x = spec.x.declare(b, "x", extents)
        dtypes = ("int64", "int64", spec.x.dtype)
        self.tables: list[list[Buffer]] = [
            [
                b.argument(f"t{dim}{role}", dtype, (axis.out,))
                for role, dtype in zip("abw", dtypes, strict=True)
            ]
            for dim, axis in enumerate(spec.axes)
        ]
        self.y = spec.y.declare(b, "y", self.domain, is_written=True)
        self.epilogue = spec.epilogue.bind(b, self.domain)

    def function(self) -> Function:
        b, spec = self.b, self.spec
        shape = self.domain[:-2]  # a turn is a row
        b.note(f"{[axis.extent for axis in spec.axes]} to {[axis.out for axis in spec.axes]}")
        for at in each_turn(b, shape, prod(self.domain)):
            outer = at[: len(spec.outer)]
            entries = [self._entries(dim, index) for dim, index in enumerate(at[len(outer) :])]
            with b.serial(0, self.domain[-2]) as column:
                last = self._entries(len(entries), column)
                total = self._blend(outer, [*entries, last])
                where = [*at, column, Index()]
                store_lanes(b, self.epilogue(total, where, None), self.y, where)
        return b.finish()

    def _entries(self, dim: int, index: Index) -> tuple[Index, Index, IrValue]:
        """Return the lower entry, the upper one, and its weight."""
        lower, upper, weight = (self.b.load(table, index) for table in self.tables[dim])
        return Index.of(lower), Index.of(upper), weight

    def _blend(self, outer: list[Index], entries: list[tuple[Index, Index, IrValue]]) -> IrValue:
        """Interpolate in the last dimension first."""
        b = self.b
        corners = [
            load_lanes(b, self.x, [*outer, *corner, Index()], self.spec.block)
            for corner in itertools.product(*(pair[:2] for pair in entries))
        ]
        for _, _, weight in reversed(entries):
            rest = b.sub(1, weight)
            corners = [
                b.fma(upper, weight, b.mul(lower, rest))
                for lower, upper in zip(corners[::2], corners[1::2], strict=True)
            ]
        return corners[0]


class _Weighted:
    """Makes one kernel."""

    def __init__(self, spec: Weighted) -> None:
        self.spec = spec
        self.b = b = Builder("resize_weighted")
        extents = (*spec.outer, *(axis.extent for axis in spec.axes), spec.block)
        self.domain = (*spec.outer, *(axis.out for axis in spec.axes), spec.block)
        self.x = spec.x.declare(b, "x", extents)
        self.tables = [
            (
                b.argument(f"t{dim}a", "int64", (axis.out, taps)),
                b.argument(f"t{dim}w", spec.x.dtype, (axis.out, taps)),
            )
            for dim, (axis, taps) in enumerate(zip(spec.axes, spec.taps, strict=True))
        ]
        self.inside = [
            b.argument(f"t{dim}i", spec.x.dtype, (axis.out,))
            for dim, axis in enumerate(spec.axes if spec.extrapolation is not None else ())
        ]
        self.y = spec.y.declare(b, "y", self.domain, is_written=True)
        self.epilogue = spec.epilogue.bind(b, self.domain)

    def function(self) -> Function:
        b, spec = self.b, self.spec
        b.note(f"{[axis.extent for axis in spec.axes]} to {[axis.out for axis in spec.axes]}")
        for at in each_turn(b, self.domain[:-2], prod(self.domain)):  # a turn is a row
            with b.serial(0, self.domain[-2]) as column:
                where = [*at, column]
                total = self._sum(where[: len(spec.outer)], where[len(spec.outer) :])
                total = self._extrapolate(total, where[len(spec.outer) :])
                store_lanes(
                    b, self.epilogue(total, [*where, Index()], None), self.y, [*where, Index()]
                )
        return b.finish()

    def _sum(self, sources: list[Index], at: list[Index]) -> IrValue:
        """Sum over the axes that are left, the last one innermost."""
        b, dim = self.b, len(self.spec.axes) - len(at)
        if not at:
            return load_lanes(b, self.x, [*sources, Index()], self.spec.block)
        entries, weights = self.tables[dim]

        def term(tap: Index) -> tuple[IrValue, IrValue]:
            entry = Index.of(b.load(entries, (at[0], tap)))
            return self._sum([*sources, entry], at[1:]), b.load(weights, (at[0], tap))

        def add(tap: Index, total: IrValue) -> list[IrValue]:
            return [b.fma(*term(tap), total)]

        total = b.mul(*term(Index()))
        taps = self.spec.taps[dim]
        if prod(self.spec.taps[dim:]) > _UNROLLED:
            return b.loop(1, taps, [total], add)[0]
        for tap in range(1, taps):
            (total,) = add(Index(tap), total)
        return total

    def _extrapolate(self, total: IrValue, at: list[Index]) -> IrValue:
        b, value = self.b, self.spec.extrapolation
        if value is None:
            return total
        inside = [b.load(table, index) for table, index in zip(self.inside, at, strict=True)]
        least = inside[0]
        for other in inside[1:]:
            least = b.minimum(least, other)
        return b.select(b.compare("gt", b.splat(least, self.spec.block), 0.5), total, value)


_UNROLLED = 64
"""Terms of a sum that are written out: a cubic one in three dimensions."""
