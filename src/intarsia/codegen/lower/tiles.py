# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions of bfloat16 and of codes as products of tiles, where the CPU has these.

What is multiplied is copied to rows of tiles first, once for all that read it so: as bfloat16, or
codes as they are. A border of codes is their zero point, so that what it adds to a sum is that of
all positions. Of few channels, as images have, a row of a tile has all taps along a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm, prod
from typing import TYPE_CHECKING

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Fused, Layout
from intarsia.codegen.halves import rounded
from intarsia.codegen.ir import TILE_ROWS, row_major
from intarsia.codegen.kernels import tile_product
from intarsia.codegen.kernels.code_panels import CodePanels
from intarsia.codegen.kernels.gemm import Gemm, merged
from intarsia.codegen.kernels.tile_product import Taps, TileProduct
from intarsia.codegen.kernels.tile_rows import NARROW_ROW, PIECE, TileRows, row_of
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.views import CHANNELS, Pads, View, inner, padded
from intarsia.codegen.lower.windows import WindowAttributes, read_conv_window
from intarsia.codegen.unit import CpuModel
from intarsia.extents import Size, is_free, typical
from intarsia.graph.arena import aligned_bytes
from intarsia.graph.graph import Value

if TYPE_CHECKING:
    from intarsia.codegen.lower.convolution import ConvProblem

_SPATIAL = 2
"""The first spatial dimension."""
_DTYPE = "uint16"
"""Of the bits of a bfloat16."""
_LEAST_ROWS = 8
"""Of a product: fewer are bound by reading the weights, and leave most of a tile empty."""
_MOST_STRIDE = 4
_FEW_SETS = 512
"""Rows a multiple of so many numbers apart share few sets of the first cache."""
_MOST_ITEMS = 64
"""Calls of a product of two computed operands at most: each is of the last dimension of a batch."""
_MOST_TOGETHER = 8
"""Groups of a convolution that are one product: groups of 4 channels, of which an eighth of the
products count."""
_PAIR = 2
"""Blocks of columns that products of tiles take together."""
_TILES, _VECTORS = "tiles", "vectors"
_FEW_CHANNELS = 4
"""Of an image at most, whose taps along a row lie side by side in a row of a tile."""
_LEAST_CHANNELS = 16
"""Of codes, where a row of a tile has one tap: of fewer, it would hold little but zeros."""


def _spare(dtype: str) -> int:
    """Return how many elements behind an operand tiles may read: of positions beyond the last."""
    return TILE_ROWS * row_of(dtype) * _MOST_STRIDE


def reader_key(name: str, reader: str) -> str:
    """Say which node multiplies by which weights, of no other two names the same: see `settle`.

    Args:
        name: Of the weights.
        reader: Of the node.
    """
    return f"{name!r} by {reader!r}"


def tiled_product(
    assembler: Assembler, spec: Gemm, a: View, weights: Array, name: str, reader: str
) -> tuple[TileProduct, View, View] | None:
    """Return a product of tiles, its left operand and its weights; None where it is none.

    Args:
        assembler: Of the program.
        spec: The product, its right operand in panels.
        a: The left operand, `[*batch, m, k]`.
        weights: The right operand, `[*its batch, k, n]`.
        name: Of the weights.
        reader: The name of the node that multiplies by them.
    """
    *batch, k, n = weights.shape
    dtype = _DTYPE if a.dtype == "float32" else a.dtype
    row = row_of(dtype)
    is_fit = prod(batch) == 1 and k > 0 and k % row == 0 and n > 0 and not a.block
    strides = zip(a.strides, a.shape, strict=True)
    is_fit = is_fit and a.strides[-1] == 1 and all(step or n == 1 for step, n in strides)
    if not is_fit or is_free((spec.k, a.strides[-2])):
        return None
    pitch = k if k % (_FEW_SETS * row // row_of(_DTYPE)) else k + row
    rows = tuple(step * pitch for step in row_major(a.shape[:-1]))
    product = merged(replace(spec, a=Layout(spec.a.dtype, (*rows, 1))))
    if product.batch:
        return None

    def own() -> str:
        return _TILES if typical(product.m) >= _LEAST_ROWS else _VECTORS

    if (assembler.settle(f"tiles of {reader_key(name, reader)}", own) or own()) != _TILES:
        return None
    x = _rows_of(assembler, a, dtype, pitch)
    operands = [_in_blocks(layout) for layout in product.epilogue.operands]
    tiled = TileProduct(
        1,
        k,
        n,
        1,
        product.m,
        (0, row, 0, pitch),
        assembler.elements_from(x),
        (Taps(), Taps()),
        _in_blocks(product.c),
        is_cut=True,
        epilogue=product.epilogue.over(operands),
        unit=spec.unit,
        x_dtype=dtype,
        w_dtype=_DTYPE if dtype == _DTYPE else weights.dtype.name,
    )
    return tiled, x, _packed(assembler, tiled, weights.reshape(k, n).T[None], name)


def tile_panels(spec: Gemm, b: View) -> CodePanels | None:
    """Return how products of tiles read a computed right operand of codes; None where none do.

    Args:
        spec: The product.
        b: The operand, `[*its batch, k, n]`, ones where the batch of the product shares it.
    """
    *outer, inner = (1, *spec.batch)
    unit, *own = spec.unit, *b.shape[:-2]
    if is_free((*spec.batch, spec.m, spec.n, spec.k)) or prod(outer) > _MOST_ITEMS:
        return None
    is_fit = unit.has_byte_tiles and unit.lanes() == TILE_ROWS and inner == (own or [1])[-1]
    is_fit = is_fit and spec.k > 0 and spec.k % PIECE == 0 and typical(spec.m) >= _LEAST_ROWS
    if not is_fit or spec.a.strides[-1] != 1:
        return None
    return CodePanels(
        tuple(own), int(spec.k), int(spec.n), b.layout, width=_PAIR, rows=TILE_ROWS, unit=unit
    )


def append_tiled_batch(
    assembler: Assembler,
    spec: Gemm,
    panels: CodePanels,
    operands: Sequence[View],
    views: Sequence[View],
    names: Sequence[str],
) -> None:
    """Append products of tiles of two computed operands.

    Args:
        assembler: Of the program.
        spec: The product of codes.
        panels: See `tile_panels`.
        operands: The left one, `[*batch, m, k]`, and the right one, packed.
        views: The result, and the operands of what is done with sums.
        names: Of the nodes.
    """
    a, packed = operands
    x = _rows_of_codes(assembler, a)
    if not spec.batch:
        x, *views = (view.unsqueezed(0) for view in (x, *views))
    *outer, inner = spec.batch or (1,)
    own = (1,) * (len(outer) + 1 - len(panels.batch)) + panels.batch
    for index in np.ndindex(*outer):
        at = (*index, 0, 0, 0)
        part, *others = (view.at(at) for view in (x, *views))
        y, *fused = (_in_blocks(replace(v.layout, strides=v.strides[-3:])) for v in others)
        item = 0
        for number, extent in zip((*index, 0), own, strict=True):
            item = item * extent + (number if extent > 1 else 0)
        tiled = TileProduct(
            inner,
            panels.steps * panels.group,
            panels.n,
            1,
            spec.m,
            (x.strides[-3], row_of(x.dtype), 0, x.strides[-2]),
            assembler.elements_from(part),
            (Taps(), Taps()),
            y,
            is_cut=True,
            epilogue=spec.epilogue.over(fused),
            unit=spec.unit,
            x_dtype=x.dtype,
            w_dtype=panels.dtype,
            has_own=True,
        )
        weights = packed.at((item * panels.item,))
        note = f"{x.dtype} times {panels.dtype}, tiles"
        assembler.call(tiled, (part, weights, *others), names, note)


def _rows_of_codes(assembler: Assembler, a: View) -> View:
    """Return a left operand of codes as rows of tiles, over the same dimensions; k is filled up."""
    row = row_of(a.dtype)
    once = tuple(1 if step == 0 else n for n, step in zip(a.shape, a.strides, strict=True))
    *rows, k = once
    whole, rest = divmod(k, row)
    length = -(-k // row) * row
    pitch = length if length % (_FEW_SETS * row // row_of(_DTYPE)) else length + row
    x = assembler.scratch(a.dtype, (prod(rows) * pitch,), spare=TILE_ROWS * pitch)
    steps = tuple(step * pitch for step in row_major(tuple(rows)))
    x = replace(x, shape=(*rows, pitch), strides=(*steps, 1))
    for first, count, pieces in ((0, whole, row // PIECE), (whole, 1, rest // PIECE)):
        if not count or not pieces:
            continue
        source, target = (view.at((*[0] * len(rows), first * row)) for view in (a, x))
        spec = TileRows(
            (*rows, count),
            replace(source.layout, strides=(*a.strides[:-1], row)),
            PIECE,
            replace(target.layout, strides=(*steps, row)),
            pieces,
        )
        assembler.call(spec, (source, target), (), "rows of tiles")
    return x.expanded((*a.shape[:-1], pitch))


def _packed(assembler: Assembler, tiled: TileProduct, weights: Array, name: str) -> View:
    """Return weights (products, out_channels, in_channels, *taps) as products of tiles read them.

    Those of one product follow those of the one before.
    """

    def pack() -> Array:
        is_rounded = tiled.w_dtype == _DTYPE
        items = rounded(weights, "bfloat16").view(_DTYPE) if is_rounded else weights
        if len(items) == 1:
            return tile_product.pack(tiled, items[0])
        nbytes = len(items) * tiled.weights * items.itemsize
        packed = aligned_bytes(nbytes).view(items.dtype).reshape(len(items), -1)
        for place, item in zip(packed, items, strict=True):
            place[:] = tile_product.pack(tiled, item)
        return packed.reshape(-1)

    several = f"{len(weights)} products of " if len(weights) > 1 else ""
    return assembler.panels(f"{name}{several}{tile_product.packing(tiled)}", pack)


def _in_blocks(layout: Layout) -> Layout:
    """Return a layout over rows and columns, of items if there are any, as `TileProduct` has it."""
    *by_item, by_row, by_column = layout.strides
    strides = (*(by_item or [0]), by_column * TILE_ROWS, 0, by_row, by_column)
    return replace(layout, strides=strides)


def _rows_of(assembler: Assembler, a: View, dtype: str, pitch: int) -> View:
    """Return a left operand as rows of tiles, each `pitch` elements from the one before."""
    *rows, k = a.shape
    row = row_of(dtype)

    def make() -> tuple[View, ...]:
        x = assembler.scratch(dtype, (prod(rows) * pitch,), spare=TILE_ROWS * pitch)
        steps = tuple(step * pitch for step in row_major(tuple(rows)))
        assert isinstance(k, int)
        spec = TileRows(
            (*rows, k // row),
            replace(a.layout, strides=(*a.strides[:-1], row)),
            PIECE,
            replace(x.layout, strides=(*steps, row)),
            row // PIECE,
        )
        assembler.call(spec, (a, x), (), "as bfloat16" if dtype == _DTYPE else "rows of tiles")
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


def fits_tiles(operation: Operation, unit: CpuModel) -> bool:
    """Tell whether a convolution with constant weights may be a product of tiles of bfloat16."""
    window, channels = read_conv_window(operation), operation.shape()[CHANNELS]
    groups = operation.attribute("group", 1)
    has_rows = channels % PIECE == 0 or reads_few(channels, window)
    if groups > 1:
        has_rows = (
            0 < _products_of(groups, channels, operation.output_shape[CHANNELS]) <= _MOST_ITEMS
        )
    return unit.has_bf16_tiles and has_rows and _is_window_of_tiles(operation, window, unit)


def _products_of(groups: int, channels: int, outputs: int) -> int:
    """Return how many products of tiles the groups of a convolution are; 0 if they fit none.

    Each has whole rows of channels, and whole blocks of results. Groups that fill a part of these
    are one product together, whose weights are zeros where they are no group's.
    """
    inside, results = channels // groups, outputs // groups
    row = row_of(_DTYPE)
    together = lcm(row // gcd(row, inside), TILE_ROWS // gcd(TILE_ROWS, results))
    return 0 if together > _MOST_TOGETHER or groups % together else groups // together


def _as_products(weights: Array, groups: int, products: int) -> Array:
    """Return weights of groups as those of products, zeros between groups that are one.

    Args:
        weights: (out_channels, in_channels / groups, *taps).
        groups: Of channels.
        products: That they are.

    Returns:
        (products, out_channels / products, in_channels / products, *taps).
    """
    together = groups // products
    outputs, inside, *taps = weights.shape
    parts = weights.reshape(products, together, outputs // groups, inside, *taps)
    whole = np.zeros(
        (products, together, outputs // groups, together, inside, *taps), weights.dtype
    )
    for number in range(together):
        whole[:, number, :, number] = parts[:, number]
    return whole.reshape(products, outputs // products, together * inside, *taps)


def reads_few(channels: int, window: WindowAttributes | Window) -> bool:
    """Tell whether a row of a tile of bfloat16 holds few channels of all taps along a row.

    It is to be filled by half at least: three taps of an image are slower so than as float32.
    """
    is_filled = 2 * window.kernel[-1] * _FEW_CHANNELS >= row_of(_DTYPE)
    return channels <= _FEW_CHANNELS and is_filled and _shares_rows(channels, window, _DTYPE)


def fits_tiles_of_codes(operation: Operation, window: WindowAttributes, unit: CpuModel) -> bool:
    """Tell whether a convolution of codes by constant int8 may be a product of tiles."""
    channels = operation.shape()[CHANNELS]
    has_rows = channels >= _LEAST_CHANNELS or _shares_rows(channels, window, "uint8")
    has_rows = has_rows and operation.attribute("group", 1) == 1
    return unit.has_byte_tiles and has_rows and _is_window_of_tiles(operation, window, unit)


def _shares_rows(channels: int, window: WindowAttributes | Window, dtype: str) -> bool:
    """Tell whether a row of a tile holds the channels of all taps along a row."""
    is_next = window.dilations[-1] == 1 or window.kernel[-1] == 1
    return is_next and window.kernel[-1] * _block_of_few(channels) <= row_of(dtype)


def _block_of_few(channels: int) -> int:
    """Return in blocks of how many few channels lie for products of tiles."""
    return _FEW_CHANNELS if channels <= _FEW_CHANNELS else -(-channels // PIECE) * PIECE


def _is_window_of_tiles(operation: Operation, window: WindowAttributes, unit: CpuModel) -> bool:
    shape, out = operation.shape(), operation.output_shape
    spatial = (*shape[_SPATIAL:], *out[_SPATIAL:])
    return (
        unit.lanes() == TILE_ROWS
        and len(shape) - _SPATIAL in (1, 2)
        and not is_free(spatial)
        and 0 not in (shape[CHANNELS], out[CHANNELS], *spatial)
        and max(window.strides) <= _MOST_STRIDE
    )


def append_tiled(
    assembler: Assembler,
    group: KernelGroup,
    problem: ConvProblem,
    pads: Pads,
) -> None:
    """Append a convolution that `fits_tiles`; `x` of the problem is its input without padding."""
    weights, window = problem.weights, problem.window
    assert isinstance(weights, np.ndarray)
    groups = problem.groups
    if groups == 1 and reads_few(weights.shape[1], window):
        x = _few_numbers(assembler, group.anchor.inputs[0], problem.x, pads, window.kernel[-1])
        weights, window = _taps_as_channels(weights, window, _FEW_CHANNELS)
    else:
        x = _image_rows(assembler, group.anchor.node.inputs[0], problem.x, pads)
    biases = () if problem.bias is None else (problem.bias,)
    placed = TiledResult(window, problem.y, problem.epilogue, problem.operands)
    products = _products_of(groups, groups * weights.shape[1], len(weights)) if groups > 1 else 1
    each = _as_products(weights, groups, products)
    # A product writes whole rows of tiles, or none of those who read them expects it to.
    is_whole = each.shape[1] % NARROW_ROW == 0
    narrow = _narrow_result(assembler, group.result, problem.y) if is_whole else None
    # Groups that share a product are other numbers than the same weights of one group.
    key = problem.key if groups == 1 else f"{problem.key}/{groups} groups"
    _append(assembler, group, x, placed, each, key, biases, narrow)


def _taps_as_channels(weights: Array, window: Window, few: int) -> tuple[Array, Window]:
    """Return weights and window of a convolution whose taps along a row are channels.

    Args:
        weights: (out_channels, in_channels, *taps).
        window: Its positions.
        few: In blocks of how many its input channels lie.
    """
    outside = [(0, 0), (0, few - weights.shape[1]), *[(0, 0)] * (weights.ndim - 2)]
    taps = np.moveaxis(np.pad(weights, outside), -1, 1)
    *kernel, along = window.kernel
    shape = (len(weights), few * along, *kernel, 1)
    return taps.reshape(shape), replace(window, kernel=(*kernel, 1))


def append_tiled_codes(
    assembler: Assembler,
    group: KernelGroup,
    placed: TiledResult,
    pads: Pads,
    zero: int,
    weights: Array,
    key: str,
) -> None:
    """Append a convolution of codes that `fits_tiles_of_codes`.

    Args:
        assembler: Of the program.
        group: What the convolution anchors.
        placed: What it writes.
        pads: Its padding.
        zero: The zero point of its input.
        weights: Without their zero points, int8.
        key: Names them.
    """
    value, lanes = group.anchor.inputs[0], assembler.lanes
    few = lanes if assembler.plan.blocks.get(value.id) else _block_of_few(weights.shape[1])
    if weights.shape[1] <= few and _shares_rows(few, placed.window, value.dtype):
        x = _few_channels(assembler, value, few, pads, zero)
        weights, window = _taps_as_channels(weights, placed.window, few)
        placed = replace(placed, window=window)
    else:
        x = _image_rows(assembler, value.id, assembler.read(value.id, lanes), pads, zero)
    _append(assembler, group, x, placed, weights[None], key)


def _few_channels(assembler: Assembler, value: Value, block: int, pads: Pads, zero: int) -> View:
    """Return an input of few channels of codes, in one block of these, with its padding."""

    def make(border: Pads | None) -> View:
        source = assembler.read(value.id, block if assembler.plan.blocks.get(value.id) else 0)
        spare = TILE_ROWS * _MOST_STRIDE * block + row_of(value.dtype)
        x = assembler.scratch(value.dtype, source.shape, block, border, spare=spare, outside=zero)
        assembler.copy(source, x, (), f"{value.name} for tiles")
        return x

    return assembler.read_as((value.id, _TILES, "few", zero), block, pads, make)


def _few_numbers(assembler: Assembler, value: Value, x: View, pads: Pads, along: int) -> View:
    """Return an image of few channels as bfloat16, in one block of these, with its padding.

    Args:
        assembler: Of the program.
        value: The image.
        x: Where it is, plain.
        pads: Of the convolution.
        along: Taps along a row.
    """

    # A row of a tile has channels and columns behind those of the taps: their weights are 0, but 0
    # times what memory happens to hold need not be.
    def make(border: Pads | None) -> View:
        spare = TILE_ROWS * _MOST_STRIDE * _FEW_CHANNELS + row_of(_DTYPE)
        shape, block = padded(x.shape, border), _FEW_CHANNELS
        whole = assembler.scratch("float32", shape, block, half="bfloat16", spare=spare)
        images, *rest = whole.domain
        flat = replace(whole, dtype=_DTYPE, half="", block=0)
        assembler.clear(replace(flat, shape=(images, prod(rest)), strides=(prod(rest), 1)))
        copy = inner(whole, border)
        assembler.copy(x, copy, (), f"{value.name} as bfloat16")
        return replace(copy, dtype=_DTYPE, half="")

    *others, (before, after) = pads
    wide = (*others, (before, after + row_of(_DTYPE) // _FEW_CHANNELS - along))
    return assembler.read_as((value.id, _TILES, "few"), _FEW_CHANNELS, wide, make)


@dataclass(frozen=True, slots=True)
class TiledResult:
    """What a convolution writes.

    Attributes:
        window: Its positions.
        y: Where.
        epilogue: What is done with sums.
        operands: Of that.
    """

    window: Window
    y: View
    epilogue: Fused
    operands: Sequence[View]


def _append(
    assembler: Assembler,
    group: KernelGroup,
    x: View,
    placed: TiledResult,
    weights: Array,
    key: str,
    biases: Sequence[View] = (),
    narrow: View | None = None,
) -> None:
    """Append a product of tiles, or one for each group of channels.

    Args:
        assembler: Of the program.
        group: What the convolution anchors.
        x: Its input as rows of tiles, with its padding.
        placed: What it writes.
        weights: (products, out_channels, in_channels, *taps).
        key: Names them.
        biases: One, or none.
        narrow: Where results are written as bfloat16 too, if output channels of a product are rows
            of tiles; None for nowhere.
    """
    y, (products, outputs, inputs, *taps) = placed.y, weights.shape
    layouts = (y.layout, *placed.epilogue.operands)
    if narrow is not None:
        layouts = (*layouts, narrow.layout)
    at = _Positions.of(placed.window, x, layouts)
    layout, *operands = at.layouts
    narrow_layout = operands.pop() if narrow is not None else None
    is_kept = narrow is None or not assembler.tiled[group.result].is_all
    row = row_of(x.dtype)
    weights = np.pad(weights, [(0, 0), (0, 0), (0, -inputs % row), *[(0, 0)] * len(taps)])
    by_row = inputs // row * x.strides[CHANNELS]
    last = _moved(x, (products - 1) * by_row)
    tiled = TileProduct(
        y.shape[0],
        weights.shape[2],
        outputs,
        at.rows,
        at.columns,
        at.x_strides,
        assembler.elements_from(last),
        at.taps,
        layout,
        bias=bool(biases),
        epilogue=placed.epilogue.over(operands),
        unit=assembler.unit,
        x_dtype=x.dtype,
        w_dtype=_DTYPE if x.dtype == _DTYPE else weights.dtype.name,
        narrow=narrow_layout,
        is_kept=is_kept,
    )
    packed = _packed(assembler, tiled, weights, f"{key}/")
    note = "bfloat16 tiles" if x.dtype == _DTYPE else f"{x.dtype} times {tiled.w_dtype}, tiles"
    blocks = outputs // TILE_ROWS
    for number in range(products):
        written = [_moved(y, number * blocks * y.strides[CHANNELS])] * is_kept
        if narrow is not None:
            step = outputs // NARROW_ROW * narrow.strides[CHANNELS]
            written.append(_moved(narrow, number * step))
        fused = [
            _moved(view, number * blocks * over.strides[CHANNELS])
            for view, over in zip(placed.operands, placed.epilogue.operands, strict=True)
        ]
        arguments = (
            _moved(x, number * by_row),
            packed.at((number * tiled.weights,)),
            *(_moved(bias, number * outputs) for bias in biases),
            *written,
            *fused,
        )
        assembler.call(tiled, arguments, group.names, note)


def _moved(view: View, elements: Size) -> View:
    """Return a view that begins some elements further on in memory."""
    return replace(view, offset=view.offset + elements)


def _narrow_result(assembler: Assembler, value_id: int, y: View) -> View | None:
    """Return where a result is written for the products of tiles that read it; None for nowhere."""
    reads = assembler.tiled.get(value_id)
    if reads is None or y.shape[CHANNELS] % NARROW_ROW or y.half:
        return None
    made: list[View] = []

    def make(border: Pads | None) -> View:
        made.append(assembler.scratch(_DTYPE, y.shape, NARROW_ROW, border, spare=_spare(_DTYPE)))
        return made[0]

    assembler.read_as((value_id, _TILES, 0), NARROW_ROW, reads.pads, make)
    return made[0]


def _image_rows(assembler: Assembler, value_id: int, x: View, pads: Pads, zero: int = 0) -> View:
    """Return an input in blocks of 16 channels in blocks as long as rows, with its padding.

    Numbers are copied as bfloat16. Channels that fill the last block of codes up are anything.
    """
    is_float = x.dtype == "float32"
    dtype = _DTYPE if is_float else x.dtype
    row = row_of(dtype)

    def make(border: Pads | None) -> View:
        rows = assembler.scratch(dtype, x.shape, row, border, spare=_spare(dtype), outside=zero)
        images, blocks, *spatial, _ = x.domain
        by_image, by_block, *steps, _ = x.strides
        whole, rest = divmod(blocks, row // PIECE)
        for first, count, pieces in ((0, whole, row // PIECE), (whole, 1, rest)):
            if not count or not pieces:
                continue
            item, part = (
                view.at((0, number, *[0] * (len(view.strides) - 2)))
                for view, number in ((x, first * (row // PIECE)), (rows, first))
            )
            spec = TileRows(
                (images, count, *spatial),
                replace(item.layout, strides=(by_image, row // PIECE * by_block, *steps)),
                by_block,
                replace(part.layout, strides=part.strides[:-1]),
                pieces,
            )
            assembler.call(spec, (item, part), (), "as bfloat16" if is_float else "rows of tiles")
        return rows

    return assembler.read_as((value_id, _TILES, zero), row, pads, make)
