# SPDX-License-Identifier: Apache-2.0
"""How a direct convolution is cut: picked from shapes and the vector unit, never from the host."""

from __future__ import annotations

import math
from dataclasses import dataclass

from intarsia.codegen.kernels.conv_window import Split, Tiling, Window, even_parts
from intarsia.codegen.tile import tile_rows
from intarsia.codegen.unit import VectorUnit


@dataclass(frozen=True, slots=True)
class Schedule:
    """The choices of a direct convolution.

    Attributes:
        pixels: Positions of a register tile, at most.
        vectors: Blocks of output channels of a register tile, at most.
        unroll: Input channels of an iteration of the innermost loop, at most.
        prefetch: How many input channels ahead weights are asked for; 0 for not at all.
        chunk: Blocks of input channels that are summed before the next tile; 0 for all.
        bands: Shares of an image's tiles, for turns of their own.
        is_channels_first: Whether turns go through images for each tile of output channels, so
            that weights stay cached, rather than the other way round, so that inputs do.
    """

    pixels: int
    vectors: int
    unroll: int = 4
    prefetch: int = 0
    chunk: int = 0
    bands: int = 1
    is_channels_first: bool = True


def channel_groups(blocks: int, schedule: Schedule) -> Split:
    """Cut blocks of output channels into register tiles."""
    return Split.of(blocks, schedule.vectors)


def choose_schedule(
    window: Window, inputs: int, blocks: int, batch: int, groups: int, unit: VectorUnit
) -> Schedule:
    """Return the schedule of a direct convolution.

    Args:
        window: Normalised.
        inputs: Input channels of a group.
        blocks: Blocks of output channels of a group.
        batch: Images.
        groups: Of channels.
        unit: What it is shaped for.
    """
    vectors = min(_VECTORS, key=lambda vectors: _cost(window, blocks, vectors, unit))
    pixels = tile_rows(vectors, unit)
    tiling = Tiling.of(window.out, pixels, 1)
    step_bytes = 4 * unit.lanes() * min(vectors, max(1, blocks))
    tile_bytes = step_bytes * inputs * window.taps
    is_reread = tiling.rows.count * tiling.columns.count > 1
    prefetch = chunk = 0
    if is_reread and 2 * tile_bytes > unit.l1_bytes:
        prefetch = max(1, _PREFETCH_BYTES // step_bytes)
    if is_reread and 2 * tile_bytes > unit.l2_bytes:  # keep in L2 what each tile of pixels reads
        wanted = _CHUNK_BYTES // (step_bytes * window.taps) // unit.lanes()
        x_blocks = inputs // unit.lanes()
        chunk = -(-x_blocks // even_parts(x_blocks, x_blocks // max(1, wanted)))
    weight_bytes = 4 * groups * blocks * unit.lanes() * inputs * window.taps
    x_bytes = 4 * inputs * math.prod(window.reach[-2:])
    x_bands = max(1, 4 * x_bytes // unit.l2_bytes)
    # what the other order reads again for each tile of channels, or each band, from beyond L2
    rereads_x = batch * x_bytes > unit.l2_bytes
    tiles = Split.of(blocks, vectors).count if rereads_x else 1
    x_again = (tiles - 1) * groups * batch * x_bytes
    weights_again = (batch * x_bands - 1) * weight_bytes
    is_channels_first = 2 * weight_bytes > unit.l2_bytes and x_again <= weights_again
    bands = 1
    if not chunk:
        flop = weight_bytes // 2 * batch * math.prod(window.out)
        others = batch * groups * Split.of(blocks, vectors).count * math.prod(window.out[:-2])
        bands = min(_TURNS, flop // _TURN_FLOP) // max(1, others)
    if not is_channels_first:
        bands = max(bands, x_bands)
    if not chunk and inputs * window.taps >= 2 * _CHAIN:  # rounded less than one long chain
        x_blocks = inputs // unit.lanes()
        chunk = -(-x_blocks // even_parts(x_blocks, inputs * window.taps // _CHAIN))
    return Schedule(pixels, vectors, 4, prefetch, chunk, max(1, bands), is_channels_first)


_PREFETCH_BYTES = 8 << 10
_CHUNK_BYTES = 128 << 10
_CHAIN = 1024
"""Products of a sum of which two are worth a pass over the output."""
_TURNS = 64
"""Turns that keep tens of threads busy."""
_TURN_FLOP = 1 << 19
"""Work below which a turn of its own does not pay: some five microseconds."""
_VECTORS = (2, 4, 3, 1, 6, 8)
"""In the order of preference between equals."""


def _cost(window: Window, blocks: int, vectors: int, unit: VectorUnit) -> int:
    """Return half cycles of a tap of an input channel, over all positions and outputs."""
    tiling = Tiling.of(window.out, tile_rows(vectors, unit), 1)
    return sum(
        (channels.end - channels.first)
        * (rows.end - rows.first)
        * (columns.end - columns.first)
        * _step_cost(rows.size * columns.size, channels.size)
        for channels in Split.of(blocks, vectors).runs
        for rows in tiling.rows.runs
        for columns in tiling.columns.runs
    )


def _step_cost(pixels: int, vectors: int) -> int:
    """Return half cycles of a step, at two products and two loads a cycle with latency 4."""
    return max(pixels * vectors, pixels + vectors, 8) + 1
