# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution over blocks of channels: vectors go along the channels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function, Index, IrValue
from intarsia.codegen.kernels.convolution import ConvArguments
from intarsia.codegen.kernels.depthwise.schedules import schedule
from intarsia.codegen.kernels.depthwise.spec import Depthwise
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.window import Tiling, normalise, over_taps


def pack(spec: Depthwise, weights: Array) -> Array:
    """Return weights (channels, 1, *kernel) as `build` reads them: [blocks][taps][L]."""
    lanes, taps = spec.unit.lanes(), spec.window.taps
    padded = np.zeros((spec.blocks * lanes, taps), np.float32)
    padded[: spec.out_channels] = weights.reshape(spec.out_channels, taps)
    return padded.reshape(spec.blocks, lanes, taps).transpose(0, 2, 1).reshape(-1)


def packing(spec: Depthwise) -> str:
    """Name the order of packed weights."""
    return f"depthwise{spec.unit.lanes()}"


def build(spec: Depthwise) -> Function:
    """Return the kernel; its arguments are x, packed weights, bias if any, y, fused operands."""
    return _DepthwiseKernel(spec).function()


class _DepthwiseKernel:
    """Makes one kernel."""

    def __init__(self, spec: Depthwise) -> None:
        self.plan = schedule(spec)
        window, x, y, epilogue = normalise(spec.window, spec.x, spec.y, spec.epilogue)
        self.spec = spec = replace(spec, window=window, x=x, y=y, epilogue=epilogue)
        self.lanes = lanes = spec.unit.lanes()
        self.b = Builder("depthwise")
        blocks = spec.blocks
        tensors = ConvArguments.declare(
            self.b,
            spec,
            x=(spec.batch, blocks, *window.reach, lanes),
            w=(blocks, *window.kernel, lanes),
            channels=blocks * lanes,
            y=(spec.batch, blocks, *window.out, lanes),
        )
        self.tensors, self.x, self.w, self.y = tensors, tensors.x, tensors.w, tensors.y
        self.epilogue = tensors.epilogue

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
        start = self.tensors.start(b, block, lanes)
        kernel = self.spec.window.kernel
        loops = [(0, extent, 1) for extent in kernel[: len(kernel) - self.plan.unrolled]]

        def step(at: list[Index], sums: Sequence[IrValue]) -> list[IrValue]:
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
            for number, weight in pairs:
                sums[number] = b.fma(item, weight, sums[number])
        return sums
