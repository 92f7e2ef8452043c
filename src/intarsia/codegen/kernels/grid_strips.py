# SPDX-License-Identifier: Apache-2.0
"""Depthwise and grouped convolutions for GPUs: a work-item has a strip of positions.

Their products have too few columns for tiles in shared memory: a group of a few channels is
multiplied by so few filters that each input entry meets only them. So a work-item has one block of
output channels at some positions below each other. Neighbouring work-items have neighbouring
columns, whose entries lie side by side, and an entry that it has read serves all its rows whose
windows reach it. The weights of a block are the same for all its positions: the work-items of a
warp read them from one place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import store_lanes
from intarsia.codegen.ir import Function, Index, IrValue
from intarsia.codegen.kernels.conv import Conv
from intarsia.codegen.kernels.convolution import ConvKernel
from intarsia.codegen.kernels.depthwise import Depthwise
from intarsia.codegen.kernels.grid_gemm import VECTOR
from intarsia.codegen.kernels.window import over_taps
from intarsia.codegen.unit import GpuModel
from intarsia.extents import is_free
from intarsia.graph.arena import aligned_bytes


@dataclass(frozen=True, slots=True)
class StripSchedule:
    """The choices of a convolution by strips.

    Attributes:
        rows: Positions of a strip.
        warps: Of a block.
        unrolled: What of a window is unrolled: 0 for nothing, 1 for its rows, 2 for its columns
            too. An entry is read once for all rows of taps that are; the others are loops.
    """

    rows: int
    warps: int
    unrolled: int


@dataclass(frozen=True, slots=True)
class GridStrips:
    """One kernel; its arguments are x, packed weights, bias if any, y, fused operands.

    Attributes:
        conv: What is computed: in float32, with blocks of `VECTOR` channels.
        machine: What it is shaped for.
        schedule: How it is cut; None leaves it to the heuristic.
    """

    conv: Conv | Depthwise
    machine: GpuModel
    schedule: StripSchedule | None = None

    @property
    def block(self) -> int:
        """Input channels of a block that each output channel is a sum over: 1 of depthwise ones."""
        return self.conv.x_block if isinstance(self.conv, Conv) else 1

    @property
    def blocks(self) -> int:
        """Such blocks of a group."""
        return self.conv.group_inputs // self.block


SPECS = (GridStrips,)

_BUSY_ITEMS = 1 << 15
"""Work-items that keep a GPU busy. An estimate, as all figures here: nobody has measured them."""
_ROWS = (4, 2, 1)
"""Positions of a strip."""
_WARPS = 4
_ALL = 2
_ENTRIES = 18
"""Vectors of input up to which columns of taps are unrolled, too: all of them may be read first."""


def grid_strips(conv: Conv | Depthwise, machine: GpuModel) -> GridStrips | None:
    """Return the same for a GPU; None where it does not have whole blocks of known sizes.

    Args:
        conv: What is computed.
        machine: What it is for.
    """
    strides = [step for layout in (conv.x, conv.y) for step in layout.strides]
    if is_free((conv.batch, *conv.window.out, *strides)):
        return None
    if {conv.x.dtype, conv.y.dtype, conv.weight_dtype} != {"float32"}:
        return None
    if conv.unit.lanes() != VECTOR or machine.lanes > machine.most_items:
        return None
    is_empty = 0 in (conv.batch, *conv.window.out, conv.window.taps)
    # What fills the last block of input channels is not to be read.
    is_cut = isinstance(conv, Conv) and conv.group_inputs % conv.x_block != 0
    return None if is_empty or is_cut else GridStrips(conv, machine)


def schedule(spec: GridStrips) -> StripSchedule:
    """Return the schedule that a convolution has, or that is picked for it."""
    if spec.schedule is not None:
        return spec.schedule
    conv = spec.conv.normalised()
    height = conv.window.out[-2]
    columns = conv.batch * conv.blocks * math.prod(conv.window.out) // height

    def items(rows: int) -> int:
        return columns * -(-height // rows)

    fitting = [rows for rows in _ROWS if rows <= height]
    rows = next((rows for rows in fitting if items(rows) >= _BUSY_ITEMS), 1)
    return schedule_of_rows(spec, rows)


def schedule_of_rows(spec: GridStrips, rows: int) -> StripSchedule:
    """Return the schedule of strips of so many positions, no more than there are in a column."""
    conv, machine = spec.conv.normalised(), spec.machine
    window, lanes = conv.window, machine.lanes
    # Sums, the weights of a column of taps and an entry, in half of a work-item's registers.
    held = VECTOR * (rows + window.kernel[-2] * spec.block + 1)
    unrolled = int(held <= machine.registers // 2)
    entries = ((rows - 1) * window.strides[-2] + window.kernel[-2]) * window.kernel[-1]
    if unrolled and entries * spec.block <= _ENTRIES:
        unrolled = _ALL
    columns = conv.batch * conv.blocks * math.prod(window.out) // window.out[-2]
    items = columns * -(-window.out[-2] // rows)
    warps = min(_WARPS, machine.most_items // lanes, -(-items // lanes))
    return StripSchedule(rows, warps, unrolled)


def pack(spec: GridStrips, weights: Array) -> Array:
    """Return weights (out_channels, in_channels / groups, *kernel) as the kernel reads them.

    In order: blocks of output channels, blocks of input channels of their group, taps, channels of
    the block, output channels; those that fill the last block are zero.
    """
    conv = spec.conv
    shape = (conv.blocks, spec.blocks, conv.window.taps, spec.block, VECTOR)
    packed = aligned_bytes(math.prod(shape) * 4).view(np.float32).reshape(shape)
    missing = conv.blocks * VECTOR - conv.out_channels
    whole = np.pad(weights, [(0, missing), *[(0, 0)] * (weights.ndim - 1)])
    cut = whole.reshape(conv.blocks, VECTOR, spec.blocks, spec.block, conv.window.taps)
    packed[...] = cut.transpose(0, 2, 4, 3, 1)
    return packed.reshape(-1)


def packing(spec: GridStrips) -> str:
    """Name the order of packed weights."""
    return f"strips by {spec.block}"


def build(spec: GridStrips) -> Function:
    """Return the kernel."""
    return _StripKernel(spec).function()


class _StripKernel(ConvKernel):
    """Makes one kernel."""

    def __init__(self, spec: GridStrips) -> None:
        self.plan = schedule(spec)
        self.strips = spec
        self.conv = conv = spec.conv.normalised()
        lanes = VECTOR if isinstance(conv, Depthwise) else spec.block
        super().__init__(
            "grid_strips",
            conv,
            x=(conv.batch, -(-conv.in_channels // lanes), *conv.window.reach, lanes),
            w=(conv.blocks, spec.blocks, *conv.window.kernel, spec.block * VECTOR),
            channels=conv.blocks * VECTOR,
            y=(conv.batch, conv.blocks, *conv.window.out, VECTOR),
        )

    def function(self) -> Function:
        b, conv, plan, lanes = self.b, self.conv, self.plan, self.strips.machine.lanes
        *outer, height, width = conv.window.out
        b.note(f"{conv.window.out} positions, {conv.window.kernel} taps")
        b.note(f"{conv.in_channels} channels to {conv.out_channels} in {conv.groups} groups")
        b.note(f"{plan}")
        shape = (conv.batch, conv.blocks, *outer, -(-height // plan.rows), width)
        items, total = plan.warps * lanes, math.prod(shape)
        with (
            b.grid(-(-total // items)) as block,
            b.block(plan.warps) as warp,
            b.lane(lanes) as lane,
        ):
            number = block * items + warp * lanes + lane
            conditions = []
            if total % items:
                conditions.append(b.compare("lt", b.index(number), b.index(total)))
                number = b.smaller(number, total - 1)
            *place, strip, column = b.unravel(number, shape)
            first = strip * plan.rows
            row = b.smaller(first, height - plan.rows) if height % plan.rows else first
            sums = self._sums(place, row, column)
            for r, value in enumerate(sums):
                there = list(conditions)
                if height % plan.rows:  # the strip before has the others
                    there.append(b.compare("le", b.index(first), b.index(row + r)))
                self._write(value, (*place, row + r, column), there)
        return b.finish()

    def _sums(self, place: Sequence[Index], row: Index, column: Index) -> list[IrValue]:
        """Return the sums of a strip; `place` is its image, its block, its outer position."""
        conv, kernel = self.conv, self.conv.window.kernel
        image, block, *outer = place
        is_looped = (*[True] * (len(kernel) - 2), self.plan.unrolled < 1, self.plan.unrolled < _ALL)
        dims = [dim for dim, looped in enumerate(is_looped) if looped]
        loops = [(0, self.strips.blocks, 1), *((0, kernel[dim], 1) for dim in dims)]
        first = Index()
        if isinstance(conv, Depthwise):
            first = block
        elif conv.groups > 1:
            group, _ = self.b.split(block, conv.group_blocks)
            first = group * self.strips.blocks

        def step(at: list[Index], sums: Sequence[IrValue]) -> list[IrValue]:
            tap = [Index()] * len(kernel)
            for dim, index in zip(dims, at[1:], strict=True):
                tap[dim] = index
            entry = (image, first + at[0], *conv.window.at((*outer, row, column), tap))
            return self._taps(entry, (block, at[0], *tap), list(sums))

        return over_taps(self.b, loops, [self.start(block, VECTOR)] * self.plan.rows, step)

    def _taps(
        self, entry: tuple[Index, ...], tap: tuple[Index, ...], sums: list[IrValue]
    ) -> list[IrValue]:
        """Add the products of the unrolled taps from one on, which meets `entry` in row 0."""
        window, plan = self.conv.window, self.plan
        rows = window.kernel[-2] if plan.unrolled else 1
        columns = window.kernel[-1] if plan.unrolled == _ALL else 1
        for j in range(columns):
            weights = [self._weights((*tap[:-2], tap[-2] + i, tap[-1] + j)) for i in range(rows)]
            meetings: dict[int, list[tuple[int, int]]] = {}
            for i, r in itertools.product(range(rows), range(plan.rows)):
                down = r * window.strides[-2] + i * window.dilations[-2]
                meetings.setdefault(down, []).append((r, i))
            for down, pairs in sorted(meetings.items()):
                at = (*entry[:-2], entry[-2] + down, entry[-1] + j * window.dilations[-1], Index())
                item = self.b.load(self.x, at, self.x.shape[-1])
                for r, i in pairs:
                    sums[r] = self._multiplied(item, weights[i], sums[r])
        return sums

    def _weights(self, tap: tuple[Index, ...]) -> list[IrValue]:
        """Return those of a tap for each input channel of a block."""
        places = range(0, self.strips.block * VECTOR, VECTOR)
        return [self.b.load(self.w, (*tap, place), VECTOR) for place in places]

    def _multiplied(self, item: IrValue, weights: list[IrValue], total: IrValue) -> IrValue:
        b = self.b
        if isinstance(self.conv, Depthwise):
            return b.fma(item, weights[0], total)
        for channel, weight in enumerate(weights):
            one = item if len(weights) == 1 else b.extract(item, channel)
            total = b.fma(b.splat(one, VECTOR), weight, total)
        return total

    def _write(self, value: IrValue, at: Sequence[Index], conditions: Sequence[IrValue]) -> None:
        """Write the results of a position if it is this work-item's."""
        b, place = self.b, (*at, Index())
        if not conditions:
            store_lanes(b, self.finish(value, place), self.y, place)
            return
        with b.where(reduce(partial(b.binary, "and"), conditions)):
            store_lanes(b, self.finish(value, place), self.y, place)
