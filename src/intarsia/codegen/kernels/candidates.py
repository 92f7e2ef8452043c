# SPDX-License-Identifier: Apache-2.0
"""A few schedules of a kernel beside the one that its heuristic picks, for a tuner to compare.

None of them changes a result by a bit: what decides in which order sums are made (`chunk`, `depth`)
is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from intarsia.codegen.kernels import (
    conv_plain,
    conv_schedule,
    depthwise,
    gemm_schedule,
    pool_spec,
    winograd_schedule,
)
from intarsia.codegen.kernels.conv import Conv
from intarsia.codegen.kernels.conv_plain import PlainConv
from intarsia.codegen.kernels.conv_window import normalise
from intarsia.codegen.kernels.depthwise import Depthwise
from intarsia.codegen.kernels.gemm_spec import Gemm
from intarsia.codegen.kernels.pool_spec import Pool
from intarsia.codegen.kernels.winograd_spec import Winograd
from intarsia.codegen.tile import tile_rows
from intarsia.codegen.unit import VectorUnit

Spec: TypeAlias = Conv | Winograd | Depthwise | PlainConv | Gemm | Pool
"""Kernels that have schedules to choose from."""

Schedule: TypeAlias = (
    conv_schedule.Schedule
    | winograd_schedule.Schedule
    | depthwise.Schedule
    | conv_plain.Schedule
    | gemm_schedule.Schedule
    | pool_spec.Schedule
)

_VECTORS = (1, 2, 3, 4, 6, 8)


def schedule_of(spec: Spec) -> Schedule:
    """Return the schedule that a kernel has, or that its heuristic picks."""
    if spec.schedule is not None:
        return spec.schedule
    if isinstance(spec, Depthwise):
        window, *_ = normalise(spec.window, spec.x, spec.y, spec.epilogue)
        return depthwise.choose_schedule(window, spec.batch * spec.blocks, spec.unit)
    if isinstance(spec, Pool):
        return pool_spec.choose_schedule(spec)
    return spec.plan


def candidates(spec: Spec) -> tuple[Schedule, ...]:
    """Return schedules of a kernel that has none yet, the heuristic's first; each once."""
    own = schedule_of(spec)
    others: Iterable[Schedule]
    match spec, own:
        case Conv(), conv_schedule.Schedule():
            others = _direct(spec, own)
        case Winograd(), winograd_schedule.Schedule():
            others = _winograd(spec, own)
        case Depthwise(), depthwise.Schedule():
            others = _depthwise(spec.unit, own)
        case PlainConv(), conv_plain.Schedule():
            others = [
                replace(own, vectors=vectors, channels=tile_rows(vectors, spec.unit))
                for vectors in _fitting(spec.unit, own.vectors + 1)
            ]
        case Gemm(), gemm_schedule.Schedule():
            others = _gemm(spec, own)
        case Pool(), pool_spec.Schedule():
            others = _pool(own)
        case _:
            others = ()
    return tuple(dict.fromkeys((own, *others)))


def _fitting(unit: VectorUnit, most: int) -> list[int]:
    """Return widths of register tiles in vectors, as far as registers and the result have them."""
    return [n for n in _VECTORS if n <= max(1, most) and 2 * n + 1 <= unit.registers]


def _around(value: int) -> tuple[int, ...]:
    """Return numbers of turns that are far enough apart to differ."""
    return tuple(sorted({1, max(1, value // 2), 2 * value, 4 * value}))


def _direct(spec: Conv, own: conv_schedule.Schedule) -> Iterable[Schedule]:
    line = 4 * spec.unit.lanes()
    for vectors in _fitting(spec.unit, spec.group_blocks):
        pixels = tile_rows(vectors, spec.unit)
        for prefetch in {0, own.prefetch * own.vectors // vectors}:
            yield replace(own, vectors=vectors, pixels=pixels, prefetch=prefetch)
    yield replace(own, prefetch=0 if own.prefetch else max(1, _PREFETCH_BYTES // line))
    yield replace(own, is_channels_first=not own.is_channels_first)
    yield replace(own, unroll=2)
    yield replace(own, unroll=8)
    for bands in _around(own.bands):
        yield replace(own, bands=bands)


_PREFETCH_BYTES = 8 << 10


def _winograd(spec: Winograd, own: winograd_schedule.Schedule) -> Iterable[Schedule]:
    """Return schedules whose blocks of tiles a thread can keep."""

    def is_small(schedule: winograd_schedule.Schedule) -> bool:
        tiles = schedule.images * schedule.rows * schedule.columns
        extents = (spec.outputs, spec.in_channels, schedule.vectors, spec.unit)
        nbytes = tiles * winograd_schedule.scratch_bytes(*extents)
        return tiles == 1 or nbytes <= winograd_schedule.SCRATCH_BYTES

    return filter(is_small, _winograd_cuts(spec, own))


def _winograd_cuts(
    spec: Winograd, own: winograd_schedule.Schedule
) -> Iterable[winograd_schedule.Schedule]:
    grid = (spec.batch, *winograd_schedule.tile_grid(spec.window, spec.outputs))
    for limit in _TILES:
        images, rows, columns = winograd_schedule.block_of_tiles(grid, limit)
        yield replace(own, images=images, rows=rows, columns=columns)
    for vectors in _fitting(spec.unit, min(4, spec.out_blocks)):
        for tiles in {
            winograd_schedule.register_tiles(vectors, spec.unit),
            tile_rows(vectors, spec.unit),
        }:
            yield replace(own, vectors=vectors, tiles=tiles)
    panels = -(-spec.out_blocks // own.vectors)
    for shares in (1, 2, 4, spec.threads):
        yield replace(own, shares=min(shares, panels))
    yield replace(own, is_streamed=not own.is_streamed)
    yield replace(own, prefetch=0)


_TILES = (4, 8, 16, 32, 64)
"""Of a block, at most."""


def _depthwise(unit: VectorUnit, own: depthwise.Schedule) -> Iterable[Schedule]:
    for pixels in (4, 7, 10, 14, 20):
        if pixels + 2 <= unit.registers:
            yield replace(own, pixels=min(pixels, own.pixels) if own.unrolled else pixels)
    for unrolled in range(own.unrolled):
        yield replace(own, unrolled=unrolled)
    for bands in _around(own.bands):
        yield replace(own, bands=bands)


def _gemm(spec: Gemm, own: gemm_schedule.Schedule) -> Iterable[Schedule]:
    blocks = min(own.row_blocks, -(-spec.m // own.rows))
    for count in _around(blocks):
        yield replace(own, row_blocks=count)
    if own.source is gemm_schedule.Source.DOTS:
        return
    is_copied = own.source is gemm_schedule.Source.COPY  # its size was bounded for the own width
    for vectors in _fitting(spec.unit, own.vectors if is_copied else max(_VECTORS)):
        for rows in {tile_rows(vectors, spec.unit), min(7, tile_rows(vectors, spec.unit))}:
            yield replace(own, vectors=vectors, rows=rows)
    yield replace(own, prefetch=0 if own.prefetch else 16)
    if not is_copied:
        yield replace(own, is_rows_first=not own.is_rows_first)


def _pool(own: pool_spec.Schedule) -> Iterable[Schedule]:
    for positions in (1, 2, 4, 8):
        yield replace(own, positions=min(positions, own.positions))
    for unrolled in (1, 3, 16):
        yield replace(own, unrolled=unrolled)
    for bands in _around(own.bands):
        yield replace(own, bands=bands)
