# SPDX-License-Identifier: Apache-2.0
"""Direct convolution of unsigned bytes by instructions that multiply these by twos, exactly.

`pmaddubsw` adds two products in 16 bits, and saturates. Two weights are safe with any codes if they
differ in sign, or if their sum is within 128 (`kernels.gemm.small_pairs`). Quantised by channel,
one to seven in a hundred pairs are not, and the columns of a vector share them. Yet who is whose
neighbour is free: the input is there in three kinds of pairs (`kernels.paired_codes`), and each
vector of columns has each group of four channels in the one in which its weights are smallest.
Where none is safe, the group comes twice, with halves of its weights, which are safe in any.

So the steps of a vector of columns are a list: where in the input the bytes of each are, all taps
and channels alike, and the weights that they are multiplied by. Their order is free as well: two
steps whose positive weights add up to 128 at most in each pair of each column, and the negative
ones too, are summed in 16 bits, and widened together. These couples come first. They take five
instructions for eight products of a column, where two single steps take six, and three
multiplications instead of four.

A tile has one vector, as fewer columns have fewer pairs that are not safe, and as many positions as
registers hold. Of one tap, the input lies in strips: what a tile reads is in one piece, channels
outside. Else its lines are as far apart as an image's blocks of channels, few in each set of a
cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Layout
from intarsia.codegen.ir import Function, Index, IrValue, Type
from intarsia.codegen.kernels.conv.schedules import choose_schedule
from intarsia.codegen.kernels.convolution import (
    LINE_BYTES,
    ConvKernel,
    Convolution,
    flops,
    of_codes,
    unit_of_pairs,
    unit_of_tile,
)
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.paired_codes import GROUP, PAIRINGS, SPREAD
from intarsia.codegen.kernels.window import Tiling, Window, window_key
from intarsia.codegen.tile import around, tile_rows
from intarsia.codegen.unit import CpuModel
from intarsia.extents import least
from intarsia.graph.arena import aligned_bytes


@dataclass(frozen=True, slots=True)
class PairSchedule:
    """The choices of a convolution by pairs of bytes.

    Attributes:
        pixels: Positions of a register tile, at most.
        bands: Shares of an image's tiles, for turns of their own.
        is_channels_first: Whether turns go through images for each vector of output channels,
            rather than the other way round.
    """

    pixels: int
    bands: int = 1
    is_channels_first: bool = True


@dataclass(frozen=True, slots=True)
class PairConv(Convolution):
    """A convolution of codes in pairs by int8, of one group of channels.

    Attributes:
        x: Over (batch, blocks of L channels, *spatial with padding, 2 L), as `PairedCodes` writes.
            In strips over (batch, blocks, strips, positions of a strip, 2 L).
        y: Over (batch, out_channels / L, *window.out, L).
        steps: Steps that a vector of columns has room for.
        strip: Positions of a strip of the input, which is a tile; the window is one row of one tap
            then. 0 where the input lies as the window wants it.
        schedule: How; None leaves it to the heuristic.
    """

    steps: int = field(kw_only=True)
    strip: int = field(default=0, kw_only=True)
    schedule: PairSchedule | None = None

    def normalised(self) -> PairConv:
        """Return the same convolution with as few dimensions as layouts allow, but at least two."""
        return self if self.strip else Convolution.normalised(self)


SPECS = (PairConv,)


def key(spec: PairConv) -> str:
    """Say in words what decides which schedules a convolution can have, and which are fast."""
    extents = (spec.batch, spec.in_channels, spec.out_channels)
    more = f"{spec.steps} steps, strips of {spec.strip}{of_codes(spec)}"
    return window_key("pair conv", extents, spec.window, more, spec.y.dtype)


def schedule(spec: PairConv) -> PairSchedule:
    """Return the schedule that a convolution has, or that is picked for it."""
    if spec.schedule:
        return spec.schedule
    window, unit = spec.normalised().window, unit_of_tile(spec)
    if spec.strip:
        return PairSchedule(spec.strip, is_channels_first=False)
    steps = -(-spec.in_channels // GROUP)
    like = choose_schedule(window, steps, spec.blocks, least(spec.batch), 1, unit, has_rows=True)
    return PairSchedule(tile_rows(1, unit), like.bands, like.is_channels_first)


def strip_of(positions: int, unit: CpuModel) -> int:
    """Return how many positions of a convolution of one tap are a strip."""
    most = tile_rows(1, unit_of_pairs(unit))
    return -(-positions // -(-positions // most))


def candidates(spec: PairConv) -> Iterator[PairSchedule]:
    """Yield schedules to compare."""
    heuristic = schedule(spec)
    yield replace(heuristic, is_channels_first=not heuristic.is_channels_first)
    for bands in around(heuristic.bands) if not spec.strip else ():
        yield replace(heuristic, bands=bands)


# Weights


@dataclass(frozen=True, slots=True)
class PairSteps:
    """The steps of all vectors of columns.

    Attributes:
        couples: How many two steps each vector has whose products are summed together in 16 bits;
            they are the first ones.
        singles: How many others it has, behind these.
        groups: Over (vectors, steps), which group of channels, taps outside, each has.
        begins: The same, at which byte of the group it begins.
        weights: Over (vectors, steps, columns, 4); what a vector has no step for is zeros.
        all_groups: How many groups there are.
    """

    couples: Array
    singles: Array
    groups: Array
    begins: Array
    weights: Array
    all_groups: int

    @property
    def capacity(self) -> int:
        """The steps that every vector has room for."""
        return int(self.weights.shape[1])

    @property
    def cost(self) -> float:
        """The cost of all steps, by `STEP_COSTS`, for each group of a vector."""
        couple, single = STEP_COSTS
        total = couple * self.couples.sum() + single * self.singles.sum()
        return float(total / max(1, len(self.couples) * self.all_groups))

    def packed(self) -> Array:
        """Return the weights as `build` reads them: of vectors, their steps, columns, channels."""
        return self.weights.reshape(-1)


STEP_COSTS = (1.7, 1.25)
"""Cycles that a couple of steps takes for a row, and a single one: Zen 3, in registers alone. Two
products of pairs of int16, which do the same as a single step, take 1.3."""


def find_steps(weights: Array, lanes: int) -> PairSteps:
    """Return the steps that weights are multiplied in.

    Args:
        weights: Over (out_channels, in_channels, *kernel), int8.
        lanes: Columns of a vector.
    """
    grouped = _grouped(weights, lanes)
    vectors, groups = grouped.shape[:2]
    slab = max(1, _SLAB // max(1, groups))
    parts = [_find_some(grouped[first : first + slab]) for first in range(0, vectors, slab)]
    found = [vector for part in parts for vector in part]
    coarse = max(groups // _PARTS, 1)  # weights of one shape shall mostly share a kernel
    more = max((len(item.groups) for item in found), default=0) - groups
    capacity = groups + -(-more // coarse) * coarse
    steps = PairSteps(
        np.array([item.couples for item in found], np.int32),
        np.array([len(item.groups) - 2 * item.couples for item in found], np.int32),
        np.zeros((vectors, capacity), np.int64),
        np.zeros((vectors, capacity), np.int64),
        aligned_bytes(vectors * capacity * lanes * GROUP)
        .view(np.int8)
        .reshape(vectors, capacity, lanes, GROUP),
        groups,
    )
    for number, item in enumerate(found):
        steps.groups[number, : len(item.groups)] = item.groups
        steps.begins[number, : len(item.groups)] = item.begins
        steps.weights[number, : len(item.groups)] = item.weights
    return steps


_PARTS = 16
_SLAB = 1 << 15
"""Groups, of all vectors, that are sought partners for at a time: a megabyte of sums or so."""


def _grouped(weights: Array, lanes: int) -> Array:
    """Return weights over (vectors, groups of channels, taps outside, columns, 4), all full."""
    outputs, inputs = weights.shape[:2]
    flat = weights.reshape(outputs, inputs, -1)
    flat = np.pad(flat, ((0, -outputs % lanes), (0, -inputs % lanes), (0, 0)))
    split = flat.reshape(flat.shape[0] // lanes, lanes, -1, GROUP, flat.shape[2])
    grouped: Array = split.transpose(0, 4, 2, 1, 3).reshape(len(split), -1, lanes, GROUP)
    return grouped


@dataclass(frozen=True, slots=True)
class _VectorSteps:
    """The steps of a vector of columns; see `PairSteps`."""

    couples: int
    groups: Array
    begins: Array
    weights: Array


def _find_some(grouped: Array) -> list[_VectorSteps]:
    """Return the steps of some vectors of columns, from their weights as `_grouped` has them."""
    begins, orders = np.array(list(PAIRINGS)), list(PAIRINGS.values())
    worst = np.stack([_sums_of_signs(grouped[..., list(order)]).max(-1) for order in orders])
    way, is_split = worst.argmin(0), worst.min(0) > _SAFE
    ordered = np.take_along_axis(grouped, np.array(orders)[way][:, :, None], -1)
    halves = np.where(is_split[..., None, None], ordered // 2, 0).astype(np.int8)
    both = np.stack((ordered - halves, halves), 2)
    is_kept = np.stack((np.ones_like(is_split), is_split), 2)
    numbers = np.repeat(np.arange(grouped.shape[1]), 2).reshape(-1, 2)
    count = int(is_kept.sum((1, 2)).max(initial=0))
    weights = np.zeros((len(grouped), count, *grouped.shape[2:]), np.int8)
    groups = [numbers[kept] for kept in is_kept]
    for number, (kept, all_) in enumerate(zip(is_kept, both, strict=True)):
        weights[number, : len(groups[number])] = all_[kept]
    lengths = np.array([len(item) for item in groups])
    partners = _partners(_sums_of_signs(weights), np.arange(count) < lengths[:, None])
    found = []
    for number, (partner, group) in enumerate(zip(partners, groups, strict=True)):
        own = np.arange(len(group))
        first, alone = own[own < partner[own]], own[own == partner[own]]
        order = np.concatenate((np.stack((first, partner[first]), 1).reshape(-1), alone))
        places = begins[way[number, group[order]]]
        found.append(_VectorSteps(len(first), group[order], places, weights[number, order]))
    return found


_SAFE = 128
"""The largest sum of weights of one sign of which 255 times as much is an int16."""


def _sums_of_signs(groups: Array) -> Array:
    """Return what the positive weights of each pair add up to, and the negative ones.

    Of groups over (..., columns, 4) as uint8, over (..., all of these sums).
    """
    signed = groups.astype(np.int16)
    parts = [np.maximum(sign * signed, 0) for sign in (1, -1)]
    sums = np.concatenate([part[..., 0::2] + part[..., 1::2] for part in parts], -1)
    most = np.minimum(sums, np.iinfo(np.uint8).max).astype(np.uint8)
    result: Array = most.reshape(*groups.shape[:-2], -1)
    return result


def _partners(sums: Array, is_there: Array) -> Array:
    """Return for each step the one that it is a couple with, or itself if it has none.

    Steps of a vector are parted into as many as `_CROWD`, among which those that fit with few are
    first to choose, and choose what fits with few.

    Args:
        sums: `_sums_of_signs` over (vectors, steps, sums).
        is_there: Which of these steps there are.
    """
    vectors, count, _ = sums.shape
    parts = -(-count // _CROWD)
    crowd = -(-count // max(1, parts))
    missing = ((0, 0), (0, parts * crowd - count))
    # One of 128 fits with nothing but zeros, and two of them would be 0 in eight bits.
    is_free = np.pad(is_there & (sums.max(-1, initial=0) < _SAFE), missing)
    is_free = is_free.reshape(vectors * parts, crowd)
    crowded = np.pad(sums, (*missing, (0, 0))).reshape(vectors * parts, crowd, -1)
    both = np.zeros((len(crowded), crowd, crowd), np.uint8)
    for each in np.ascontiguousarray(np.moveaxis(crowded, -1, 0)):
        np.maximum(both, each[:, :, None] + each[:, None], out=both)
    fits = (both <= _SAFE) & is_free[:, None] & is_free[:, :, None]
    fits &= ~np.eye(crowd, dtype=bool)
    choices = fits.sum(-1, dtype=np.uint8)
    order, every = choices.argsort(-1, kind="stable"), np.arange(len(fits))
    partner = np.broadcast_to(np.arange(crowd), is_free.shape).copy()
    for own in order.T:
        choice = fits[every, own] & is_free & is_free[every, own][:, None]
        other = np.where(choice, choices, _CROWD).argmin(-1)
        found = np.flatnonzero(choice[every, other])
        one, two = own[found], other[found]
        partner[found, one], partner[found, two] = two, one
        is_free[found, one] = is_free[found, two] = False
    names: Array = (
        partner.reshape(vectors, parts, crowd) + np.arange(0, parts * crowd, max(1, crowd))[:, None]
    )
    return names.reshape(vectors, -1)


_CROWD = 64


def pack(spec: PairConv, weights: Array) -> Array:
    """Return weights (out_channels, in_channels, *kernel) as `build` reads them."""
    return find_steps(weights, spec.unit.lanes()).packed()


def place_steps(spec: PairConv, steps: PairSteps) -> Array:
    """Return what `build` reads of each vector of columns: its steps, and where these read.

    Before places are the numbers of couples and of single steps. A place is in bytes from a
    position's first tap and channel.
    """
    spec = spec.normalised()
    lanes = spec.unit.lanes()
    taps = np.array(_tap_places(spec.window, spec.x), np.int64)
    tap, group = np.divmod(steps.groups, -(-spec.in_channels // lanes) * lanes // GROUP)
    block, within = np.divmod(group, lanes // GROUP)
    found = taps[tap] + block * spec.x.strides[1] + within * SPREAD * GROUP + steps.begins
    counts = (steps.couples, steps.singles)
    return np.column_stack((*counts, found)).astype(np.int32).reshape(-1)


def _tap_places(window: Window, x: Layout) -> list[int]:
    """Return where taps are from the first one, in elements of the input."""
    steps = x.strides[2:-1]
    return [
        sum(
            tap * dilation * step
            for tap, dilation, step in zip(at, window.dilations, steps, strict=True)
        )
        for at in np.ndindex(*window.kernel)
    ]


def packing(spec: PairConv) -> str:
    """Name the order of packed weights."""
    return f"couples{spec.steps}x{spec.unit.lanes()}"


# The kernel


def build(spec: PairConv) -> Function:
    """Return the kernel; its arguments are x, packed weights, y, fused operands, places."""
    return _PairConvKernel(spec).function()


class _PairConvKernel(ConvKernel):
    """Makes one kernel."""

    def __init__(self, spec: PairConv) -> None:
        self.plan = schedule(spec)
        self.spec = spec = spec.normalised()
        self.lanes = lanes = spec.unit.lanes()
        window, x = spec.window, spec.x
        blocks = -(-spec.in_channels // lanes)
        # Taps, blocks and channels are one dimension: steps say where in it they read.
        first = [(out - 1) * step + 1 for out, step in zip(window.out, window.strides, strict=True)]
        first = [-(-window.out[-1] // spec.strip), spec.strip] if spec.strip else first
        reach = (blocks - 1) * x.strides[1] + max(_tap_places(window, x)) + SPREAD * lanes
        strides = (x.strides[0], *x.strides[2:])
        super().__init__(
            "pair_conv",
            replace(spec, x=replace(x, strides=strides)),
            x=(spec.batch, *first, reach),
            w=(spec.blocks * spec.steps * lanes * GROUP,),
            channels=0,
            y=(spec.batch, spec.blocks, *window.out, lanes),
        )
        self.places = self.b.argument(
            "places", "int32", (spec.blocks, _COUNTS + spec.steps), align=LINE_BYTES
        )

    def function(self) -> Function:
        b, spec, plan, out = self.b, self.spec, self.plan, self.spec.window.out
        tiling = Tiling.of(out, plan.pixels, plan.bands)
        bands = -(-out[-1] // spec.strip) if spec.strip else tiling.bands.count
        b.note(f"{out} positions, {spec.window.kernel} taps, {spec.in_channels} channels")
        b.note(f"{plan}")
        pixels = (spec.batch, *out[:-2], bands)
        shape = (spec.blocks, *pixels) if plan.is_channels_first else (*pixels, spec.blocks)
        for at in each_turn(b, shape):
            if plan.is_channels_first:
                block, image, *outer, band = at
            else:
                image, *outer, band, block = at
            counts = [self._number(block, entry) for entry in range(_COUNTS)]
            if spec.strip:
                self._strip(image, block, counts, band)
            else:
                self._tiles((image, *outer), block, counts, tiling, band)
        return b.finish()

    def _number(self, block: Index, entry: Index | int) -> Index:
        """Return an entry of what is known of a vector's steps."""
        return Index.of(self.b.cast(self.b.load(self.places, (block, entry)), "int64"))

    def _tiles(
        self,
        outer: Sequence[Index],
        block: Index,
        counts: Sequence[Index],
        tiling: Tiling,
        band: Index,
    ) -> None:
        def tile(row: Index, column: Index, height: int, width: int) -> None:
            places = [(row + r, column + c) for r in range(height) for c in range(width)]
            pixels = [(*outer[1:], *place) for place in places]
            strides = self.spec.window.strides
            entries = [
                [at * step for at, step in zip(pixel, strides, strict=True)] for pixel in pixels
            ]
            self._tile(outer[0], entries, pixels, block, counts)

        tiling.each(self.b, band, tile)

    def _strip(self, image: Index, block: Index, counts: Sequence[Index], strip: Index) -> None:
        size, positions = self.spec.strip, self.spec.window.out[-1]
        whole, rest = divmod(positions, size)
        # All but the last strip are whole.
        for count, first, end in ((size, 0, whole), (rest, whole, whole + 1)):
            if count and end > first:
                with self.b.serial(
                    self.b.larger(strip, first), self.b.smaller(strip + 1, end)
                ) as number:
                    entries = [(number, Index(position)) for position in range(count)]
                    begin = number * size
                    pixels = [(Index(), begin + position) for position in range(count)]
                    self._tile(image, entries, pixels, block, counts)

    def _tile(
        self,
        image: Index,
        entries: Sequence[Sequence[Index]],
        pixels: Sequence[tuple[Index, ...]],
        block: Index,
        counts: Sequence[Index],
    ) -> None:
        sums = self._sums(image, entries, block, counts)
        for pixel, total in zip(pixels, sums, strict=True):
            at = (image, block, *pixel, Index())
            self.b.store(self.finish(total, at), self.y, at)

    def _sums(
        self,
        image: Index,
        entries: Sequence[Sequence[Index]],
        block: Index,
        counts: Sequence[Index],
    ) -> list[IrValue]:
        b, spec, lanes = self.b, self.spec, self.lanes
        begin = block * (spec.steps * lanes * GROUP)
        half = Type("int16", 2 * lanes)

        def weights(number: Index) -> IrValue:
            return b.load(self.w, begin + number * (lanes * GROUP), lanes * GROUP)

        def codes(entry: Sequence[Index], place: Index) -> IrValue:
            group = b.load(self.x, (image, *entry, place), GROUP)
            return b.shuffle(group, group, tuple(range(GROUP)) * lanes)

        def couple(number: Index, *sums: IrValue) -> Sequence[IrValue]:
            steps = [number * 2, number * 2 + 1]
            both = [(weights(step), self._number(block, step + _COUNTS)) for step in steps]
            out = []
            for entry, total in zip(entries, sums, strict=True):
                pairs = b.constant(0, half)
                for each, place in both:
                    pairs = b.dot(codes(entry, place), each, pairs)
                out.append(b.dot(pairs, b.constant(1, half), total))
            return out

        def single(number: Index, *sums: IrValue) -> Sequence[IrValue]:
            each, place = weights(number), self._number(block, number + _COUNTS)
            rows = zip(entries, sums, strict=True)
            return [
                b.dot(codes(entry, place), each, total, fits_pairs=True) for entry, total in rows
            ]

        couples, singles = counts
        sums = b.loop(0, couples, [self.start(block, lanes)] * len(entries), couple)
        return b.loop(couples * 2, couples * 2 + singles, sums, single)


_COUNTS = 2
"""Numbers before the places of a vector's steps."""


__all__ = [
    "SPECS",
    "PairConv",
    "PairSchedule",
    "PairSteps",
    "build",
    "candidates",
    "find_steps",
    "flops",
    "key",
    "pack",
    "packing",
    "place_steps",
    "schedule",
    "strip_of",
]
