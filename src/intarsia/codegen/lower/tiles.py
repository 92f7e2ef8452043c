# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions of bfloat16 as products of tiles, where the CPU has these.

What is multiplied is copied as bfloat16 first, once for all that read it so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Layout
from intarsia.codegen.halves import rounded
from intarsia.codegen.ir import TILE_ROWS, row_major
from intarsia.codegen.kernels import tile_product
from intarsia.codegen.kernels.gemm import Gemm, merged
from intarsia.codegen.kernels.tile_product import Taps, TileProduct
from intarsia.codegen.kernels.tile_rows import ROW, TileRows
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.views import CHANNELS, Pads, View
from intarsia.codegen.lower.windows import read_conv_window
from intarsia.codegen.unit import VectorUnit
from intarsia.extents import Size, is_free, typical

if TYPE_CHECKING:
    from intarsia.codegen.lower.convolution import ConvProblem

_SPATIAL = 2
"""The first spatial dimension."""
_DTYPE = "uint16"
"""Of the bits of a bfloat16."""
_LEAST_ROWS = 8
"""Of a product: fewer are bound by reading the weights, and leave most of a tile empty."""
_MOST_STRIDE = 4
_SPARE = TILE_ROWS * ROW * _MOST_STRIDE
"""Elements behind an image that tiles may read: of positions beyond the last one."""
_FEW_SETS = 512
"""Rows a multiple of so many numbers apart share few sets of the first cache."""
_TILES, _VECTORS = "tiles", "vectors"


def tiled_product(
    assembler: Assembler, spec: Gemm, a: View, weights: Array, name: str
) -> tuple[TileProduct, View, View] | None:
    """Return a product of tiles, its left operand and its weights; None where it is none.

    Args:
        assembler: Of the program.
        spec: The product, its right operand in panels.
        a: The left operand, `[*batch, m, k]`.
        weights: The right operand, `[*its batch, k, n]`.
        name: Of the weights.
    """
    *batch, k, n = weights.shape
    is_fit = prod(batch) == 1 and k > 0 and k % ROW == 0 and n > 0 and not a.block
    strides = zip(a.strides, a.shape, strict=True)
    is_fit = is_fit and a.strides[-1] == 1 and all(step or n == 1 for step, n in strides)
    if not is_fit or is_free((spec.k, a.strides[-2])):
        return None
    pitch = k if k % _FEW_SETS else k + ROW
    rows = tuple(step * pitch for step in row_major(a.shape[:-1]))
    product = merged(replace(spec, a=Layout(spec.a.dtype, (*rows, 1))))
    if product.batch:
        return None

    def own() -> str:
        return _TILES if typical(product.m) >= _LEAST_ROWS else _VECTORS

    if (assembler.settle(f"tiles of {name}", own) or own()) != _TILES:
        return None
    x = _rows_of(assembler, a, pitch)
    operands = [_in_blocks(layout) for layout in product.epilogue.operands]
    tiled = TileProduct(
        1,
        k,
        n,
        1,
        product.m,
        (0, ROW, 0, pitch),
        assembler.elements_from(x),
        (Taps(), Taps()),
        _in_blocks(product.c),
        is_cut=True,
        epilogue=product.epilogue.over(operands),
        unit=spec.unit,
    )
    return tiled, x, _packed(assembler, tiled, weights.reshape(k, n).T, name)


def _packed(assembler: Assembler, tiled: TileProduct, weights: Array, name: str) -> View:
    """Return weights (out_channels, in_channels, *taps) as a product of tiles reads them."""

    def pack() -> Array:
        return tile_product.pack(tiled, rounded(weights, "bfloat16").view(_DTYPE))

    return assembler.panels(f"{name}{tile_product.packing(tiled)}", pack)


def _in_blocks(layout: Layout) -> Layout:
    """Return a layout over rows and columns as one over positions and blocks of channels."""
    by_row, by_column = layout.strides
    return replace(layout, strides=(0, by_column * TILE_ROWS, 0, by_row, by_column))


def _rows_of(assembler: Assembler, a: View, pitch: int) -> View:
    """Return a left operand as rows of tiles, each `pitch` elements from the one before."""
    *rows, k = a.shape

    def make() -> tuple[View, ...]:
        x = assembler.scratch(_DTYPE, (prod(rows) * pitch,), spare=TILE_ROWS * pitch)
        steps = tuple(step * pitch for step in row_major(tuple(rows)))
        assert isinstance(k, int)
        spec = TileRows(
            (*rows, k // ROW),
            replace(a.layout, strides=(*a.strides[:-1], ROW)),
            ROW // 2,
            replace(x.layout, strides=(*steps, ROW)),
        )
        assembler.call(spec, (a, x), (), "as bfloat16")
        return (x,)

    if not assembler.is_written_once(a):
        return make()[0]
    return assembler.derived((_TILES, pitch, a), make)[0]


@dataclass(frozen=True, slots=True)
class _Positions:
    """Positions of a window as rows and columns, with what is between those of the input.

    Attributes:
        rows: How many rows.
        columns: How many columns.
        x_strides: See `TileProduct`.
        taps: Along both.
        layouts: Of the result and of what goes with it, over the domain of a `TileProduct`.
    """

    rows: int
    columns: int
    x_strides: tuple[Size, Size, int, int]
    taps: tuple[Taps, Taps]
    layouts: tuple[Layout, ...]

    @classmethod
    def of(cls, window: Window, x: View, layouts: Sequence[Layout]) -> _Positions:
        """Return the positions of a window of one or two dimensions over an input in rows."""
        by_image, by_group, *steps, _ = x.strides
        dims = zip(steps, window.kernel, window.strides, window.dilations, strict=True)
        parts = [(step * stride, Taps(count, step * gap)) for step, count, stride, gap in dims]
        out = window.out
        if window.rank == 1:
            parts, out = [(0, Taps()), *parts], (1, *out)
            layouts = [_with_a_row(layout) for layout in layouts]
        (by_row, along_rows), (by_column, along_columns) = parts
        taps = (along_rows, along_columns)
        rows, columns = out
        steps_of = [(by_row, by_column), *(layout.strides[2:4] for layout in layouts)]
        if rows > 1 and all(outer == columns * step for outer, step in steps_of):
            layouts = [_joined(layout) for layout in layouts]
            rows, columns, by_row = 1, rows * columns, 0
        return cls(rows, columns, (by_image, by_group, by_row, by_column), taps, tuple(layouts))


def _with_a_row(layout: Layout) -> Layout:
    by_image, by_block, by_column, by_channel = layout.strides
    return replace(layout, strides=(by_image, by_block, 0, by_column, by_channel))


def _joined(layout: Layout) -> Layout:
    by_image, by_block, _, by_column, by_channel = layout.strides
    return replace(layout, strides=(by_image, by_block, 0, by_column, by_channel))


def fits_tiles(operation: Operation, unit: VectorUnit) -> bool:
    """Tell whether a convolution with constant weights may be a product of tiles of bfloat16."""
    shape, out = operation.shape(), operation.output_shape
    spatial = (*shape[_SPATIAL:], *out[_SPATIAL:])
    return (
        unit.has_bf16_tiles
        and unit.lanes() == TILE_ROWS
        and len(shape) - _SPATIAL in (1, 2)
        and shape[CHANNELS] % ROW == 0
        and operation.attribute("group", 1) == 1
        and not is_free(spatial)
        and 0 not in (shape[CHANNELS], out[CHANNELS], *spatial)
        and max(read_conv_window(operation).strides) <= _MOST_STRIDE
    )


def append_tiled(
    assembler: Assembler,
    group: KernelGroup,
    problem: ConvProblem,
    pads: Pads,
) -> None:
    """Append a convolution that `fits_tiles`; `x` of the problem is its input without padding."""
    assert isinstance(problem.weights, np.ndarray)
    x = _image_rows(assembler, group.anchor.node.inputs[0], problem.x, pads)
    layouts = (problem.y.layout, *problem.epilogue.operands)
    narrow = _narrow_result(assembler, group.result, problem.y)
    if narrow is not None:
        layouts = (*layouts, narrow.layout)
    at = _Positions.of(problem.window, x, layouts)
    y, *operands = at.layouts
    narrow_layout = operands.pop() if narrow is not None else None
    is_kept = narrow is None or not assembler.tiled[group.result].is_all
    biases = [] if problem.bias is None else [problem.bias]
    tiled = TileProduct(
        problem.x.shape[0],
        problem.x.shape[CHANNELS],
        problem.y.shape[CHANNELS],
        at.rows,
        at.columns,
        at.x_strides,
        assembler.elements_from(x),
        at.taps,
        y,
        bias=bool(biases),
        epilogue=problem.epilogue.over(operands),
        unit=assembler.unit,
        narrow=narrow_layout,
        is_kept=is_kept,
    )
    weights = _packed(assembler, tiled, problem.weights, f"{problem.key}/")
    written = [problem.y] * is_kept + [item for item in (narrow,) if item is not None]
    arguments = (x, weights, *biases, *written, *problem.operands)
    assembler.call(tiled, arguments, group.names, "bfloat16 tiles")


def _narrow_result(assembler: Assembler, value_id: int, y: View) -> View | None:
    """Return where a result is written for the products of tiles that read it; None for nowhere."""
    reads = assembler.tiled.get(value_id)
    if reads is None or y.shape[CHANNELS] % ROW or y.half:
        return None
    made: list[View] = []

    def make(border: Pads | None) -> View:
        made.append(assembler.scratch(_DTYPE, y.shape, ROW, border, spare=_SPARE))
        return made[0]

    assembler.read_as((value_id, _TILES), ROW, reads.pads, make)
    return made[0]


def _image_rows(assembler: Assembler, value_id: int, x: View, pads: Pads) -> View:
    """Return an input in blocks of 16 channels as bfloat16 in blocks of 32, with its padding."""

    def make(border: Pads | None) -> View:
        rows = assembler.scratch(_DTYPE, x.shape, ROW, border, spare=_SPARE)
        images, blocks, *spatial, _ = x.domain
        by_image, by_block, *steps, _ = x.strides
        spec = TileRows(
            (images, blocks // 2, *spatial),
            replace(x.layout, strides=(by_image, 2 * by_block, *steps)),
            by_block,
            replace(rows.layout, strides=rows.strides[:-1]),
        )
        assembler.call(spec, (x, rows), (), "as bfloat16")
        return rows

    return assembler.read_as((value_id, _TILES), ROW, pads, make)
