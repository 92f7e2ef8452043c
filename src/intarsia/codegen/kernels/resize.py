# SPDX-License-Identifier: Apache-2.0
"""Resize and Upsample: where each output entry comes from, and linear interpolation.

Scales are known when compiling, so that positions and weights are tables. Nearest neighbours are
copies by tables (`nearest`); linear interpolation reads two entries in every resized dimension.
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
from intarsia.codegen.unit import AVX512, VectorUnit

_COORDINATES = frozenset(
    (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_half_pixel_for_nn",
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
    """

    extent: int
    out: int
    scale: float
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"


def refuse(
    mode: str, coordinates: str, rounding: str = "round_prefer_floor", *, antialias: bool = False
) -> str | None:
    """Say why a Resize is not taken."""
    if mode not in ("nearest", "linear"):
        return f"Resize in mode {mode}"
    if coordinates not in _COORDINATES:
        return f"Resize with coordinates {coordinates}"
    if mode == "nearest" and rounding not in _ROUNDINGS:
        return f"Resize with rounding {rounding}"
    return "Resize with antialias" if antialias and mode == "linear" else None


def positions(axis: ResizedAxis, dtype: str) -> Array:
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
    if axis.scale == 1 and axis.out == axis.extent:
        return at
    match axis.coordinates:
        case "asymmetric":
            return at / scale
        case "align_corners":
            if axis.out == 1:
                return np.zeros(1, real)
            return at * real(axis.extent - 1) / real(axis.out - 1)
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
    unit: VectorUnit = AVX512,
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
    unit: VectorUnit = AVX512


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


SPECS = (Linear,)


def build(spec: Linear) -> Function:
    """Return the kernel; its arguments are x, `linear_tables`, y, fused operands."""
    return _Linear(spec).function()


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
