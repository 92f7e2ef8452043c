# SPDX-License-Identifier: Apache-2.0
"""How a convolution by Winograd's transforms is cut, and where it pays.

Both are picked from shapes and the vector unit, never from the host. How it is cut, which changes
no bit of a result, depends on the number of threads as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from intarsia.codegen.kernels.convolution import unit_of_tile
from intarsia.codegen.kernels.window import Split, Window, even_parts
from intarsia.codegen.kernels.winograd.spec import Winograd, WinogradSchedule
from intarsia.codegen.kernels.winograd.transform import OUTPUTS, TAPS
from intarsia.codegen.tile import fitting_widths, is_long_step, tile_rows, unrolled_steps
from intarsia.codegen.unit import CpuModel
from intarsia.extents import least


def tile_grid(window: Window, outputs: int) -> tuple[int, int]:
    """Return rows and columns of tiles, those included that reach beyond the output."""
    height, width = window.out
    return -(-height // outputs), -(-width // outputs)


def schedule(spec: Winograd) -> WinogradSchedule:
    """Return the schedule that a convolution has, or that is picked for it."""
    if spec.schedule:
        return spec.schedule
    # A group of narrow numbers takes the bytes and the step of a float32.
    steps = spec.packed_inputs // spec.group
    chosen = choose_schedule(
        spec.window,
        spec.outputs,
        least(spec.batch),
        steps,
        spec.blocks,
        spec.unit,
        spec.threads,
    )
    if spec.group == 1:
        return chosen
    # Sums of integers are as exact in one chain, so there is none beside the total.
    unit = unit_of_tile(spec)
    return replace(chosen, tiles=tile_rows(chosen.vectors, unit), chunk=steps)


def choose_schedule(
    window: Window,
    outputs: int,
    batch: int,
    inputs: int,
    blocks: int,
    unit: CpuModel,
    threads: int = 1,
) -> WinogradSchedule:
    """Return the schedule of a convolution by `F(outputs, 3)`.

    Args:
        window: Of the convolution.
        outputs: Size of a tile.
        batch: Images.
        inputs: Input channels.
        blocks: Blocks of output channels.
        unit: What it is shaped for.
        threads: Of a run; all of them should have a turn.
    """
    lanes, points = unit.lanes(), (outputs + TAPS - 1) ** 2
    # Two vectors leave registers for many tiles, which read the same weights; an odd number of
    # blocks that three divide has no panel of one vector so.
    vectors = 3 if blocks % 2 and blocks % 3 == 0 else max(1, min(2, blocks))
    panels = Split.of(blocks, vectors).count
    grid = (batch, *tile_grid(window, outputs))
    weight_bytes = 4 * points * inputs * blocks * lanes
    limit = _most_tiles(math.prod(grid), outputs, weight_bytes, unit)
    if panels < threads:  # shares alone are too few turns
        limit = min(limit, max(_LEAST_TILES, math.prod(grid) // -(-threads // max(1, panels))))
    tile_bytes = scratch_bytes(outputs, inputs, vectors, unit)
    block = block_of_tiles(grid, max(1, min(limit, SCRATCH_BYTES // tile_bytes)))
    blocks_of_tiles = block_count(grid, block)
    tiles = register_tiles(vectors, unit)
    prefetch = 0
    # Points and sums of the block take the other half.
    if 2 * weight_bytes > unit.l2_bytes and is_long_step(tiles, vectors):
        prefetch = max(1, _PREFETCH_BYTES // (4 * lanes * vectors))
    wanted = min(_TURNS // blocks_of_tiles, 1 + blocks * lanes // _SHARE_CHANNELS)
    shares = even_parts(panels, wanted) if panels else 1
    if shares * blocks_of_tiles < _LEAST_TURNS and weight_bytes <= 4 * unit.l2_bytes:
        shares = min(panels, -(-_LEAST_TURNS // blocks_of_tiles))
    if shares * blocks_of_tiles < threads:
        transform = -(-inputs // lanes) * _TRANSFORM_OPERATIONS
        shares = _shares(panels, blocks_of_tiles, threads, transform / (inputs * vectors))
    chunk = max(1, _CHUNK_CHANNELS // lanes)
    unroll, is_streamed = unrolled_steps(unit), weight_bytes > unit.l2_bytes
    return WinogradSchedule(*block, tiles, vectors, unroll, prefetch, shares, chunk, is_streamed)


def _most_tiles(tiles: int, outputs: int, weight_bytes: int, unit: CpuModel) -> int:
    """Return how many tiles of all a block should have, by where its weights come from."""
    if weight_bytes <= unit.l2_bytes:  # reading them more often costs little
        return min(_BLOCK_TILES, max(_LEAST_TILES, -(-tiles // _TURNS)))
    if weight_bytes <= 4 * unit.l2_bytes:
        return min(_STREAMED_TILES[outputs], max(_LEAST_TILES, -(-tiles // _FEW_BLOCKS)))
    return _STREAMED_TILES[outputs]


def _shares(panels: int, blocks_of_tiles: int, threads: int, transform: float) -> int:
    """Return into how many shares panels of output channels go so that all threads end soonest.

    Args:
        panels: Of output channels.
        blocks_of_tiles: Each of which is a turn for each share.
        threads: Of a run.
        transform: What transforming the inputs of a block costs, in products of a panel.
    """

    def rounds(shares: int) -> float:
        turns = -(-shares * blocks_of_tiles // threads)
        return turns * (transform + -(-panels // shares))

    return min(range(1, panels + 1), key=rounds, default=1)


def scratch_bytes(outputs: int, inputs: int, vectors: int, unit: CpuModel) -> int:
    """Return what a thread keeps of a tile: its points, and sums of so many vectors."""
    points, lanes = (outputs + TAPS - 1) ** 2, unit.lanes()
    return 4 * points * (-(-inputs // lanes) + vectors) * lanes


def block_of_tiles(grid: tuple[int, int, int], limit: int) -> tuple[int, int, int]:
    """Return images, rows and columns of a block of tiles.

    Args:
        grid: Images, and rows and columns of tiles of one.
        limit: Tiles of a block, at most.
    """
    batch, rows, columns = grid
    width = _part(columns, limit)
    height = _part(rows, limit // width) if width == columns else 1
    images = _part(batch, limit // (width * height)) if height == rows else 1
    return images, height, width


def block_count(grid: tuple[int, int, int], block: tuple[int, int, int]) -> int:
    """Return how many blocks of tiles there are, each of which reads all weights."""
    return math.prod(Split.of(*pair).count for pair in zip(grid, block, strict=True))


def register_tiles(vectors: int, unit: CpuModel) -> int:
    """Return the tiles of a register tile; sums of a chunk stand beside the total."""
    return tile_rows(vectors, unit) // 2 + 1


# Room for 28 tiles of F(4) with 512 input channels (2.1 MiB), as `_STREAMED_TILES` has it.
SCRATCH_BYTES = 9 << 18
"""What a thread keeps of a block of tiles at most (but at least for one tile)."""
_BLOCK_TILES = 16
"""Tiles for which weights are read once from the second cache."""
_STREAMED_TILES = {2: 56, 4: 28}
"""The same, by the outputs of a tile, from beyond it: enough to hide most of that."""
# A register tile of two vectors with 32 registers: see `register_tiles`.
_LEAST_TILES = 8
_FEW_BLOCKS = 3
"""Blocks for which reading weights that nearly fit the second cache costs little."""
_CHUNK_CHANNELS = 16
"""Few, so that rounding errors grow with the square root of channels less than in one long sum."""
_PREFETCH_BYTES = 8 << 10
_TURNS = 8
"""Turns that keep some threads busy; more would cost one thread too much."""
_LEAST_TURNS = 4
_SHARE_CHANNELS = 192
"""Output channels that pay for transforming inputs once more, at some per cent of the time."""


def _part(extent: int, limit: int) -> int:
    """Return the larger size of the parts of an extent."""
    return -(-extent // Split.of(extent, max(1, limit)).count)


def choose_winograd(
    window: Window, batch: int, groups: int, inputs: int, outputs: int, unit: CpuModel
) -> int | None:
    """Return m of the F(m x m, 3 x 3) that computes a convolution fastest; None is a direct one.

    Against the direct convolutions of ONNX Runtime on Cascade Lake, F(4) was 2.3 to 2.7 times as
    fast for 64 channels at 56 x 56 and 128 at 28 x 28, F(2) 1.4 to 1.7 times for 256 at 14 x 14 and
    1.2 to 1.4 for 512 at 7 x 7, where the weights, 1.8 times as many, are what is read.

    Args:
        window: Of the convolution.
        batch: Images.
        groups: Of channels.
        inputs: Input channels.
        outputs: Output channels.
        unit: What it is shaped for.
    """
    if not fits_winograd(window, batch, groups, inputs, outputs, unit):
        return None
    blocks = -(-outputs // unit.lanes())
    best, least = None, _LEAST_GAIN * _direct_cycles(window, batch, inputs, blocks, unit)
    for size in OUTPUTS:  # larger ones have more weights, so they must be worth it
        # The cycles are estimates: what gains less than a tenth by them may lose, and is less
        # exact.
        cycles = _winograd_cycles(window, size, batch, inputs, blocks, unit)
        if cycles < least:
            best, least = size, _LEAST_GAIN * cycles
    return best


def fits_winograd(
    window: Window, batch: int, groups: int, inputs: int, outputs: int, unit: CpuModel
) -> bool:
    """Tell whether Winograd's transforms can compute a convolution; see `choose_winograd`."""
    return (
        window.kernel == (TAPS, TAPS)
        and {*window.strides, *window.dilations} == {1}
        and groups == 1
        and min(inputs, outputs) >= unit.lanes()
        and 0 not in (batch, *window.out)
    )


_LEAST_GAIN = 0.9
_BYTES_PER_CYCLE = 5.5
"""Weights from beyond the second cache, while a core computes. On Emerald Rapids 3.7 were measured,
and more would be chosen wrongly for 256 channels at 14 x 14: there F(2) is faster than F(4)."""
_TRANSFORM_OPERATIONS = 6
"""Loads, arithmetic and stores for each point of a tile of a block of channels."""


def _direct_cycles(window: Window, batch: int, inputs: int, blocks: int, unit: CpuModel) -> float:
    """Return about the cycles of a direct convolution."""
    steps = batch * math.prod(window.out) * TAPS**2 * inputs * blocks
    return max(steps / _rate(unit), _weight_cycles(TAPS**2 * inputs * blocks, unit))


def _winograd_cycles(
    window: Window, outputs: int, batch: int, inputs: int, blocks: int, unit: CpuModel
) -> float:
    """Return about the cycles of a convolution by `F(outputs, 3)`."""
    points = (outputs + TAPS - 1) ** 2
    grid = (batch, *tile_grid(window, outputs))
    tiles = math.prod(grid)
    steps = tiles * points * inputs * blocks
    channels = -(-inputs // unit.lanes()) + blocks
    transforms = tiles * points * channels * _TRANSFORM_OPERATIONS
    plan = choose_schedule(window, outputs, batch, inputs, blocks, unit)
    reads = block_count(grid, (plan.images, plan.rows, plan.columns))
    weights = reads * _weight_cycles(points * inputs * blocks, unit)
    return max((steps + transforms) / _rate(unit), weights)


def _weight_cycles(vectors: int, unit: CpuModel) -> float:
    """Return the cycles that reading so many vectors of weights takes."""
    # What half of the second cache keeps from one run to the next is not far.
    far_bytes = 4 * unit.lanes() * vectors - unit.l2_bytes // 2
    return max(0, far_bytes) / _BYTES_PER_CYCLE


def _rate(unit: CpuModel) -> int:
    """Return how many steps of a vector are done in a cycle: 16 products at most."""
    return min(2, max(1, 16 // unit.lanes()))


def candidates(spec: Winograd) -> Iterator[WinogradSchedule]:
    """Yield schedules to compare, whose blocks of tiles a thread can keep."""

    def is_small(cut: WinogradSchedule) -> bool:
        tiles = cut.images * cut.rows * cut.columns
        nbytes = tiles * scratch_bytes(spec.outputs, spec.in_channels, cut.vectors, spec.unit)
        return tiles == 1 or nbytes <= SCRATCH_BYTES

    return filter(is_small, _cuts(spec))


_TILES = (4, 8, 16, 32, 64)
"""Numbers of tiles of a block to try."""


def _cuts(spec: Winograd) -> Iterator[WinogradSchedule]:
    """Yield schedules to compare; `chunk` decides the order of sums, and stays."""
    heuristic = schedule(spec)
    grid = (spec.batch, *tile_grid(spec.window, spec.outputs))
    for limit in _TILES:
        images, rows, columns = block_of_tiles(grid, limit)
        yield replace(heuristic, images=images, rows=rows, columns=columns)
    for vectors in fitting_widths(spec.unit, min(4, spec.blocks)):
        for tiles in {register_tiles(vectors, spec.unit), tile_rows(vectors, spec.unit)}:
            yield replace(heuristic, vectors=vectors, tiles=tiles)
    panels = -(-spec.blocks // heuristic.vectors)
    for shares in (1, 2, 4, spec.threads):
        yield replace(heuristic, shares=min(shares, panels))
    yield replace(heuristic, is_streamed=not heuristic.is_streamed)
    yield replace(heuristic, prefetch=0)
