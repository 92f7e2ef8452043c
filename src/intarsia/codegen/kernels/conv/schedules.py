# SPDX-License-Identifier: Apache-2.0
"""How a direct convolution is cut: picked from shapes and the vector unit, never from the host."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from intarsia.codegen.kernels.conv.spec import Conv, ConvSchedule
from intarsia.codegen.kernels.convolution import unit_of_tile
from intarsia.codegen.kernels.window import Split, Tiling, Window, even_parts
from intarsia.codegen.tile import (
    around,
    blocked_rows,
    crowding,
    fitting_widths,
    is_long_step,
    step_cost,
    tile_rows,
    unrolled_steps,
)
from intarsia.codegen.unit import CpuModel
from intarsia.extents import least


def channel_groups(blocks: int, schedule: ConvSchedule) -> Split:
    """Cut blocks of output channels into register tiles."""
    return Split.of(blocks, schedule.vectors)


def schedule(spec: Conv) -> ConvSchedule:
    """Return the schedule that a convolution has, or that is picked for it."""
    if spec.schedule:
        return spec.schedule
    window, unit = spec.normalised().window, unit_of_tile(spec)
    # A group of narrow numbers takes the bytes and the step of a float32.
    steps = spec.packed_inputs // spec.neighbours
    shape = (window, steps, spec.group_blocks, least(spec.batch), spec.groups)
    chosen = choose_schedule(*shape, unit, has_rows=spec.group > 1)
    if spec.is_blocked:  # of any tile, columns take twice the registers, and rows go by twos
        vectors = chosen.vectors if 4 * chosen.vectors < unit.registers else _VECTORS[0]
        pixels = min(chosen.pixels, blocked_rows(vectors, unit))
        chosen = replace(chosen, pixels=pixels, vectors=vectors)
    holds_sums = spec.y.dtype == spec.sum_dtype == "float32"
    return chosen if holds_sums else replace(chosen, chunk=0)


def choose_schedule(
    window: Window,
    inputs: int,
    blocks: int,
    batch: int,
    groups: int,
    unit: CpuModel,
    *,
    has_rows: bool = False,
) -> ConvSchedule:
    """Return the schedule of a direct convolution.

    Args:
        window: Normalised.
        inputs: Input channels of a group.
        blocks: Blocks of output channels of a group.
        batch: Images.
        groups: Of channels.
        unit: What it is shaped for.
        has_rows: Whether a register tile is to have several rows. One row loads weights anew for
            each product. At 7 x 7 positions with a stride of 2, pairs of int16 by 2 vectors of 5
            rows took 0.59 of the time of 8 vectors of one with 3x3 taps, 0.75 with 1x1 (Zen 3).
    """
    widths = [n for n in _VECTORS if tile_rows(n, unit) > 1] if has_rows else _VECTORS
    vectors = min(widths, key=lambda vectors: _cost(window, blocks, vectors, unit))
    pixels = tile_rows(vectors, unit)
    tiling = Tiling.of(window.out, pixels, 1)
    step_bytes = 4 * unit.lanes() * min(vectors, max(1, blocks))
    tile_bytes = step_bytes * inputs * window.taps
    is_reread = tiling.rows.count * tiling.columns.count > 1
    prefetch = chunk = 0
    # Twice: beside the weights of a tile, half of a cache is for inputs and outputs.
    if is_reread and 2 * tile_bytes > unit.l1_bytes and is_long_step(pixels, vectors):
        prefetch = max(1, _PREFETCH_BYTES // step_bytes)
    if is_reread and 2 * tile_bytes > unit.l2_bytes:  # keep in L2 what each tile of pixels reads
        wanted = _CHUNK_BYTES // (step_bytes * window.taps) // unit.lanes()
        x_blocks = inputs // unit.lanes()
        chunk = -(-x_blocks // even_parts(x_blocks, x_blocks // max(1, wanted)))
    weight_bytes = 4 * groups * blocks * unit.lanes() * inputs * window.taps
    x_bytes = 4 * inputs * math.prod(window.reach[-2:])
    x_bands = max(1, 4 * x_bytes // unit.l2_bytes)
    # what the other order reads again for each tile of channels, or each band, from beyond L2
    # Inputs that stay in the second cache from one tile of channels to the next cost nothing again.
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
    # A band's inputs take a quarter of the second cache, so that they are there for all channels.
    if not is_channels_first:
        bands = max(bands, x_bands)
    if not chunk and inputs * window.taps >= 2 * _CHAIN:  # rounded less than one long chain
        x_blocks = inputs // unit.lanes()
        chunk = -(-x_blocks // even_parts(x_blocks, inputs * window.taps // _CHAIN))
    unroll = unrolled_steps(unit)
    return ConvSchedule(pixels, vectors, unroll, prefetch, chunk, max(1, bands), is_channels_first)


_PREFETCH_BYTES = 8 << 10
"""Of weights, that are asked for ahead: 64 channels for tiles of 32 outputs. On Cascade Lake that
made 512 channels at 7 x 7 1.13 times as fast, 256 at 14 x 14 1.1 times."""
_CHUNK_BYTES = 128 << 10
"""Bytes of weights that tiles of pixels read again from the second cache."""
_CHAIN = 1024
"""Products of a sum of which two are worth a pass over the output."""
_TURNS = 64
"""Turns that keep tens of threads busy."""
_TURN_FLOP = 1 << 19
"""Work below which a turn of its own does not pay: some five microseconds."""
_VECTORS = (2, 4, 3, 1, 6, 8)
"""In the order of preference between equals: 14 pixels of 2 vectors and 6 of 4 both reached nine
tenths of the peak on Cascade Lake."""


def _cost(window: Window, blocks: int, vectors: int, unit: CpuModel) -> float:
    """Return half cycles of a tap of an input channel, over all positions and outputs."""
    tiling = Tiling.of(window.out, tile_rows(vectors, unit), 1)
    half_cycles: int = sum(
        (channels.end - channels.first)
        * (rows.end - rows.first)
        * (columns.end - columns.first)
        * step_cost(rows.size * columns.size, channels.size)
        for channels in Split.of(blocks, vectors).runs
        for rows in tiling.rows.runs
        for columns in tiling.columns.runs
    )
    return crowding(vectors, unit) * half_cycles


def candidates(spec: Conv) -> Iterator[ConvSchedule]:
    """Yield schedules to compare; `chunk` decides the order of sums, and stays."""
    heuristic = schedule(spec)
    for vectors in fitting_widths(spec.unit, spec.group_blocks):
        pixels = tile_rows(vectors, unit_of_tile(spec))
        pixels = blocked_rows(vectors, spec.unit) if spec.is_blocked else pixels
        for prefetch in {0, heuristic.prefetch * heuristic.vectors // vectors}:
            yield replace(heuristic, vectors=vectors, pixels=pixels, prefetch=prefetch)
    # Where the heuristic asks for nothing ahead, this does as for tiles of one vector.
    line = 4 * spec.unit.lanes()
    prefetch = 0 if heuristic.prefetch else max(1, _PREFETCH_BYTES // line)
    yield replace(heuristic, prefetch=prefetch)
    yield replace(heuristic, is_channels_first=not heuristic.is_channels_first)
    yield replace(heuristic, unroll=2)
    yield replace(heuristic, unroll=8)
    for bands in around(heuristic.bands):
        yield replace(heuristic, bands=bands)
