# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution over blocks of channels: vectors go along the channels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intarsia.codegen.body import NOTHING, Epilogue, Fused, Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, Type, Value
from intarsia.codegen.kernels.conv_window import Tiling, Window, normalise, over_taps, unravel
from intarsia.codegen.unit import AVX512, VectorUnit

Array = np.ndarray[Any, np.dtype[Any]]
_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Schedule:
    """The choices of a depthwise convolution.

    Attributes:
        pixels: Positions of a register tile, at most.
        unrolled: Of how many of the last two dimensions the taps are unrolled, their weights held
            in registers and each input entry read once for all of them; the others are loops.
        bands: Shares of a block's tiles, for turns of their own.
    """

    pixels: int
    unrolled: int = 0
    bands: int = 1


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A convolution of float32 with one filter for each channel, on blocks of L channels.

    Attributes:
        batch: Images.
        channels: Of input and output; the last block may be part empty.
        window: The spatial dimensions.
        x: Over (batch, channels / L, *spatial with padding, L).
        y: Over (batch, channels / L, *window.out, L).
        bias: Whether there is one.
        epilogue: Over the domain of y.
        unit: What it is shaped for.
        schedule: How; None leaves it to `choose_schedule`.
    """

    batch: int
    channels: int
    window: Window
    x: Layout
    y: Layout
    bias: bool = False
    epilogue: Fused = NOTHING
    unit: VectorUnit = AVX512
    schedule: Schedule | None = None

    @property
    def blocks(self) -> int:
        """Blocks of channels."""
        return -(-self.channels // self.unit.lanes())


def flops(spec: Depthwise) -> int:
    """Return the additions and multiplications of a convolution."""
    window = spec.window
    return 2 * spec.batch * spec.channels * math.prod(window.out) * window.taps


def choose_schedule(window: Window, blocks: int, unit: VectorUnit) -> Schedule:
    """Return the schedule of a depthwise convolution.

    Args:
        window: Normalised.
        blocks: Images times blocks of channels.
        unit: What it is shaped for.
    """
    registers = unit.registers - (2 if unit.has_fma else 3)  # an input entry, and one to spare
    unrolled, held = 0, 1
    for count in (1, 2):
        taps = math.prod(window.kernel[-count:])
        if 1 < taps <= registers - _FEW_PIXELS:
            unrolled, held = count, taps
    pixels = min(registers - held, _MANY_PIXELS)
    flop = 2 * unit.lanes() * math.prod(window.out) * window.taps
    bands = max(1, min(_TURNS // max(1, blocks), flop // _TURN_FLOP))
    return Schedule(pixels, unrolled, bands)


_FEW_PIXELS = 8
_MANY_PIXELS = 14
_TURNS = 64
_TURN_FLOP = 1 << 17
"""Work below which a turn of its own does not pay; memory bounds it, so less than for others."""


def pack_weights(spec: Depthwise, weights: Array) -> Array:
    """Return weights (channels, 1, *kernel) as `build` reads them: [blocks][taps][L]."""
    lanes, taps = spec.unit.lanes(), spec.window.taps
    padded = np.zeros((spec.blocks * lanes, taps), np.float32)
    padded[: spec.channels] = weights.reshape(spec.channels, taps)
    return padded.reshape(spec.blocks, lanes, taps).transpose(0, 2, 1).reshape(-1)


def build(spec: Depthwise) -> Function:
    """Return the kernel; its arguments are x, packed weights, bias if any, y, fused operands."""
    return _Depthwise(spec).function()


class _Depthwise:
    """Makes one kernel."""

    def __init__(self, spec: Depthwise) -> None:
        window, x, y, epilogue = normalise(spec.window, spec.x, spec.y, spec.epilogue)
        self.spec = spec = replace(spec, window=window, x=x, y=y, epilogue=epilogue)
        self.plan = spec.schedule or choose_schedule(window, spec.batch * spec.blocks, spec.unit)
        self.lanes = lanes = spec.unit.lanes()
        self.b = Builder("depthwise")
        blocks = spec.blocks
        self.x = x.declare(self.b, "x", (spec.batch, blocks, *window.reach, lanes))
        shape = (blocks, *window.kernel, lanes)
        self.w = self.b.argument("w", "float32", shape, align=_LINE_BYTES)
        self.bias: Buffer | None = None
        if spec.bias:
            self.bias = self.b.argument("bias", "float32", (blocks * lanes,), align=_LINE_BYTES)
        domain = (spec.batch, blocks, *window.out, lanes)
        self.y = y.declare(self.b, "y", domain, is_written=True)
        self.epilogue: Epilogue = epilogue.bind(self.b, domain)

    def function(self) -> Function:
        spec, out = self.spec, self.spec.window.out
        tiling = Tiling.of(out, self.plan.pixels, self.plan.bands)
        self.b.note(f"{out} positions, {spec.window.kernel} taps, {spec.channels} channels")
        self.b.note(f"{self.plan}")
        shape = (spec.batch, spec.blocks, *out[:-2], tiling.bands.count)
        with self.b.parallel(math.prod(shape)) as turn:
            *place, band = unravel(self.b, turn, shape)
            tiling.each(self.b, band, lambda *tile: self._tile(place, *tile))
        return self.b.finish()

    def _tile(self, place: list[Index], row: Index, column: Index, height: int, width: int) -> None:
        b, lanes = self.b, self.lanes
        image, block, *outer = place
        pixels = list(itertools.product(range(height), range(width)))
        if self.bias is None:
            start = b.constant(0, Type("float32", lanes))
        else:
            start = b.load(self.bias, block * lanes, lanes)
        kernel = self.spec.window.kernel
        loops = [(0, extent, 1) for extent in kernel[: len(kernel) - self.plan.unrolled]]

        def step(at: list[Index], sums: Sequence[Value]) -> list[Value]:
            tap = [*at, *(Index() for _ in range(self.plan.unrolled))]
            entry = self.spec.window.at((*outer, row, column), tap)
            return self._step((image, block), entry, tap, pixels, list(sums))

        sums = over_taps(b, loops, [start] * len(pixels), step)
        for (r, c), value in zip(pixels, sums, strict=True):
            at = (image, block, *outer, row + r, column + c, Index())
            b.store(self.epilogue(value, at, None), self.y, at)

    def _step(
        self,
        place: tuple[Index, Index],
        entry: list[Index],
        tap: list[Index],
        pixels: list[tuple[int, int]],
        sums: list[Value],
    ) -> list[Value]:
        """Add the products of the unrolled taps from one on; `entry` is what it meets first."""
        b, lanes, window = self.b, self.lanes, self.spec.window
        unrolled = self.plan.unrolled
        extents = (1,) * (2 - unrolled) + window.kernel[window.rank - unrolled :]
        weights = {
            (i, j): b.load(self.w, (place[1], *tap[:-2], tap[-2] + i, tap[-1] + j, 0), lanes)
            for i, j in itertools.product(*map(range, extents))
        }
        meetings: dict[tuple[int, int], list[tuple[int, Value]]] = {}
        for (i, j), weight in weights.items():
            for number, (r, c) in enumerate(pixels):
                y = r * window.strides[-2] + i * window.dilations[-2]
                x = c * window.strides[-1] + j * window.dilations[-1]
                meetings.setdefault((y, x), []).append((number, weight))
        for (y, x), pairs in sorted(meetings.items(), key=lambda item: item[0]):
            at = (*place, *entry[:-2], entry[-2] + y, entry[-1] + x, Index())
            item = b.load(self.x, at, lanes)
            for number, weight in pairs:
                sums[number] = b.fma(item, weight, sums[number])
        return sums
