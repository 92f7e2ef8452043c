# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution over blocks of channels: vectors go along the channels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.ir import Function, Index, IrValue
from intarsia.codegen.kernels import convolution
from intarsia.codegen.kernels.convolution import ConvKernel, Convolution, of_codes
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.window import Tiling, Window, over_taps, window_key
from intarsia.codegen.tile import around, multiply_add
from intarsia.codegen.unit import CpuModel
from intarsia.extents import least


@dataclass(frozen=True, slots=True)
class DepthwiseSchedule:
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
class Depthwise(Convolution):
    """A convolution with one filter for each channel, on blocks of L channels.

    There are as many groups as channels; the last block may be part empty. Codes are converted to
    the dtype of the weights as they are read.

    Attributes:
        x: Over (batch, channels / L, *spatial with padding, L).
        y: Over (batch, channels / L, *window.out, L).
        schedule: How; None leaves it to the heuristic.
    """

    schedule: DepthwiseSchedule | None = None

    def __post_init__(self) -> None:
        """Check what the kernel relies on."""
        assert self.groups == self.in_channels == self.out_channels, "filters of several channels"


def key(spec: Depthwise) -> str:
    """Say in words what decides which schedules a convolution can have, and which are fast."""
    extents = (spec.batch, spec.in_channels, spec.out_channels)
    return window_key("depthwise conv", extents, spec.window, of_codes(spec), spec.y.dtype)


SPECS = (Depthwise,)
flops = convolution.flops


# How it is cut: picked from shapes and the vector unit, never from the host


def schedule(spec: Depthwise) -> DepthwiseSchedule:
    """Return the schedule that a convolution has, or that is picked for it."""
    if spec.schedule:
        return spec.schedule
    return choose_schedule(spec.normalised().window, least(spec.batch) * spec.blocks, spec.unit)


def choose_schedule(window: Window, blocks: int, unit: CpuModel) -> DepthwiseSchedule:
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
        # Beside weights in registers there must be 8 sums, or each waits for the one before
        # (`step_cost`).
        if 1 < taps <= registers - _FEW_PIXELS:
            unrolled, held = count, taps
    pixels = min(registers - held, _MANY_PIXELS)
    flop = 2 * unit.lanes() * math.prod(window.out) * window.taps
    bands = max(1, min(_TURNS // max(1, blocks), flop // _TURN_FLOP))
    return DepthwiseSchedule(pixels, unrolled, bands)


_FEW_PIXELS = 8
_MANY_PIXELS = 14
"""With 9 taps in registers: it is bound by loads, of which neighbours share most. On Cascade Lake
96 channels at 56 x 56 were 2.0 times as fast as in ONNX Runtime, 384 at 14 x 14 3.6 times."""
_TURNS = 64
_TURN_FLOP = 1 << 17
"""Work below which a turn of its own does not pay; memory bounds it, so less than for others."""


def candidates(spec: Depthwise) -> Iterator[DepthwiseSchedule]:
    """Yield schedules to compare."""
    heuristic = schedule(spec)
    for pixels in (4, 7, 10, 14, 20):
        if pixels + 2 <= spec.unit.registers:
            most = heuristic.pixels if heuristic.unrolled else pixels  # weights are in registers
            yield replace(heuristic, pixels=min(pixels, most))
    for unrolled in range(heuristic.unrolled):
        yield replace(heuristic, unrolled=unrolled)
    for bands in around(heuristic.bands):
        yield replace(heuristic, bands=bands)


# The kernel


def pack(spec: Depthwise, weights: Array) -> Array:
    """Return weights (channels, 1, *kernel) as `build` reads them: [blocks][taps][L]."""
    lanes, taps = spec.unit.lanes(), spec.window.taps
    padded = np.zeros((spec.blocks * lanes, taps), spec.weight_dtype)
    padded[: spec.out_channels] = weights.reshape(spec.out_channels, taps)
    return padded.reshape(spec.blocks, lanes, taps).transpose(0, 2, 1).reshape(-1)


def packing(spec: Depthwise) -> str:
    """Name the order of packed weights."""
    dtype = "" if spec.weight_dtype == "float32" else spec.weight_dtype
    return f"depthwise{dtype}{spec.unit.lanes()}"


def build(spec: Depthwise) -> Function:
    """Return the kernel; its arguments are x, packed weights, bias if any, y, fused operands."""
    return _DepthwiseKernel(spec).function()


class _DepthwiseKernel(ConvKernel):
    """Makes one kernel."""

    def __init__(self, spec: Depthwise) -> None:
        self.plan = schedule(spec)
        self.spec = spec = spec.normalised()
        self.lanes = lanes = spec.unit.lanes()
        blocks = spec.blocks
        super().__init__(
            "depthwise",
            spec,
            x=(spec.batch, blocks, *spec.window.reach, lanes),
            w=(blocks, *spec.window.kernel, lanes),
            channels=blocks * lanes,
            y=(spec.batch, blocks, *spec.window.out, lanes),
        )

    def function(self) -> Function:
        spec, out = self.spec, self.spec.window.out
        tiling = Tiling.of(out, self.plan.pixels, self.plan.bands)
        self.b.note(f"{out} positions, {spec.window.kernel} taps, {spec.out_channels} channels")
        self.b.note(f"{self.plan}")
        shape = (spec.batch, spec.blocks, *out[:-2], tiling.bands.count)
        for *place, band in each_turn(self.b, shape):
            tiling.each(self.b, band, partial(self._tile, place))
        return self.b.finish()

    def _tile(self, place: list[Index], row: Index, column: Index, height: int, width: int) -> None:
        b, lanes = self.b, self.lanes
        image, block, *outer = place
        pixels = list(itertools.product(range(height), range(width)))
        start = self.start(block, lanes)
        kernel = self.spec.window.kernel
        loops = [(0, extent, 1) for extent in kernel[: len(kernel) - self.plan.unrolled]]

        def step(at: list[Index], sums: Sequence[IrValue]) -> list[IrValue]:
            tap = [*at, *(Index() for _ in range(self.plan.unrolled))]
            entry = self.spec.window.at((*outer, row, column), tap)
            return self._step((image, block), entry, tap, pixels, list(sums))

        sums = over_taps(b, loops, [start] * len(pixels), step)
        for (r, c), value in zip(pixels, sums, strict=True):
            at = (image, block, *outer, row + r, column + c, Index())
            b.store(self.finish(value, at), self.y, at)

    def _step(
        self,
        place: tuple[Index, Index],
        entry: list[Index],
        tap: list[Index],
        pixels: list[tuple[int, int]],
        sums: list[IrValue],
    ) -> list[IrValue]:
        """Add the products of the unrolled taps from one on; `entry` is what it meets first."""
        b, lanes, window = self.b, self.lanes, self.spec.window
        unrolled = self.plan.unrolled
        extents = (1,) * (2 - unrolled) + window.kernel[window.rank - unrolled :]
        weights = {
            (i, j): b.load(self.w, (place[1], *tap[:-2], tap[-2] + i, tap[-1] + j, 0), lanes)
            for i, j in itertools.product(*map(range, extents))
        }
        meetings: dict[tuple[int, int], list[tuple[int, IrValue]]] = {}
        for (i, j), weight in weights.items():
            for number, (r, c) in enumerate(pixels):
                y = r * window.strides[-2] + i * window.dilations[-2]
                x = c * window.strides[-1] + j * window.dilations[-1]
                meetings.setdefault((y, x), []).append((number, weight))
        # Each entry is read once for all pixels and taps that it meets: 2 rows of 7 pixels under 3
        # x 3 taps read 36 entries for 126 products. In order of memory, as hardware foresees it.
        for (y, x), pairs in sorted(meetings.items(), key=lambda item: item[0]):
            at = (*place, *entry[:-2], entry[-2] + y, entry[-1] + x, Index())
            item = b.load(self.x, at, lanes)
            if item.type.dtype != self.sum_dtype:
                item = b.cast(item, self.sum_dtype)
            for number, weight in pairs:
                sums[number] = multiply_add(b, item, weight, sums[number])
        return sums
