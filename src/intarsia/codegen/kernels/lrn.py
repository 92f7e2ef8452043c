# SPDX-License-Identifier: Apache-2.0
"""Local response normalisation across channels, on blocks of channels or on plain NCHW.

On blocks the neighbouring channels of a vector are lanes of the block before, of its own and of the
next one, so each is read once and shuffled. On plain memory vectors go along the last dimension.
Powers that are quarters are square roots.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from intarsia.codegen import maths
from intarsia.codegen.body import load_lanes, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function, Index, IrValue, Type
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.images import ImageKernel
from intarsia.codegen.kernels.window import over_taps


@dataclass(frozen=True, slots=True)
class Lrn(ImageKernel):
    """`x / (bias + alpha / size * sum of squares of neighbouring channels) ** beta`.

    Attributes:
        size: Channels that are summed.
        alpha: See above.
        beta: See above.
        bias: See above.
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    @property
    def reach(self) -> tuple[int, int]:
        """How many channels before one, and after it, are summed."""
        before = (self.size - 1) // 2
        return before, self.size - 1 - before


def fits_blocks(size: int, block: int) -> bool:
    """Tell whether the neighbours of a block's channels lie in the two blocks beside it."""
    return size // 2 <= block


SPECS = (Lrn,)


def build(spec: Lrn) -> Function:
    """Return the kernel; its arguments are x, y, fused operands."""
    return _Lrn(spec).function()


class _Lrn:
    """Makes one kernel."""

    def __init__(self, spec: Lrn) -> None:
        assert not spec.is_blocked or fits_blocks(spec.size, spec.block), "the window is too wide"
        self.spec = spec
        self.b = b = Builder("lrn")
        domain = spec.domain(spec.extents)
        self.x = spec.own(spec.x).declare(b, "x", domain)
        self.y = spec.own(spec.y).declare(b, "y", domain, is_written=True)
        self.epilogue = spec.own_epilogue.bind(b, domain)

    def function(self) -> Function:
        spec, b = self.spec, self.b
        b.note(f"{spec.channels} channels by {spec.block}, {spec.size} summed, {spec.extents}")
        rows, entries = spec.extents[:-1], prod(self.x.shape)
        if spec.is_blocked:
            for image, *row in each_turn(b, (spec.batch, *rows), entries):
                self._blocks(image, row)
        else:
            for at in each_turn(b, (spec.batch, spec.channels, *rows), entries):
                self._plain_row(at)
        return b.finish()

    def _store(self, total: IrValue, at: list[Index], count: int) -> None:
        """Divide by the power of a sum, and store."""
        b, spec = self.b, self.spec
        lanes = total.type.lanes
        part = count if count < lanes else None
        base = b.fma(total, spec.alpha / spec.size, spec.bias)
        item = load_lanes(b, self.x, at, lanes, part)
        result = b.div(item, self._power(base))
        store_lanes(b, self.epilogue(result, at, part), self.y, at, part)

    def _power(self, base: IrValue) -> IrValue:
        b, quarters = self.b, self.spec.beta * 4
        # ONNX's default of beta is 3/4: two square roots and a product there, instead of a
        # logarithm and an exponential.
        if quarters not in (1, 2, 3, 4):
            exponent = b.splat(b.constant(self.spec.beta, base.type.with_lanes(1)), base.type.lanes)
            return maths.pow(b, base, exponent)
        if quarters == 4:  # noqa: PLR2004 - the whole
            return base
        root = b.unary("sqrt", base)
        if quarters == 2:  # noqa: PLR2004 - a half
            return root
        fourth = b.unary("sqrt", root)
        return fourth if quarters == 1 else b.mul(root, fourth)

    # Blocks of channels

    def _blocks(self, image: Index, row: list[Index]) -> None:
        """Append a row of all blocks; they differ in which neighbours they have."""
        last = self.spec.blocks - 1
        is_cut = self.spec.channels % self.spec.block != 0

        def neighbours(block: int) -> tuple[bool, bool, bool, bool]:
            return block > 0, block < last, is_cut and block == last, is_cut and block == last - 1

        for kinds, run in itertools.groupby(range(last + 1), neighbours):
            numbers = list(run)
            with (
                self.b.serial(numbers[0], numbers[-1] + 1) as block,
                self.b.serial(0, self.spec.extents[-1]) as column,
            ):
                self._block(image, block, [*row, column], kinds)

    def _block(
        self, image: Index, block: Index, at: list[Index], kinds: tuple[bool, bool, bool, bool]
    ) -> None:
        b, lanes = self.b, self.spec.block
        has_before, has_after, is_cut, is_next_cut = kinds
        zero = b.constant(0, Type(self.x.dtype, lanes))
        # Lanes beyond the last channel hold anything, and are neighbours of real ones.
        rest = self.spec.channels % lanes

        def squares(number: Index, *, is_cut: bool) -> IrValue:
            item = b.load(self.x, [image, number, *at, 0], lanes, stride=self.x.strides[-1])
            square = b.mul(item, item)
            if not is_cut:
                return square
            mask = [lane if lane < rest else lanes for lane in range(lanes)]
            return b.shuffle(square, zero, mask)

        middle = squares(block, is_cut=is_cut)
        before = squares(block - 1, is_cut=False) if has_before else zero
        after = squares(block + 1, is_cut=is_next_cut) if has_after else zero
        total = middle
        down, up = self.spec.reach
        for step in range(1, down + 1):
            picks = range(lanes - step, 2 * lanes - step)
            total = b.add(total, b.shuffle(before, middle, list(picks)))
        for step in range(1, up + 1):
            total = b.add(total, b.shuffle(middle, after, list(range(step, lanes + step))))
        self._store(total, [image, block, *at, Index()], lanes)

    # Plain memory

    def _plain_row(self, at: list[Index]) -> None:
        b, spec = self.b, self.spec
        width = spec.extents[-1]
        lanes = min(spec.unit.lanes(self.x.dtype), 1 << (width.bit_length() - 1))
        down, up = spec.reach
        image, channel, *row = at
        first = b.larger(channel - down, 0)
        end = b.smaller(channel + up + 1, spec.channels)

        def tile(column: Index, vectors: int, count: int) -> None:
            part = count if count < lanes else None

            def step(taps: list[Index], totals: Sequence[IrValue]) -> list[IrValue]:
                out = []
                for number, total in enumerate(totals):
                    where = [image, taps[0], *row, column + number * lanes]
                    item = load_lanes(b, self.x, where, lanes, part)
                    out.append(b.fma(item, item, total))
                return out

            start = [b.constant(0, Type(self.x.dtype, lanes))] * vectors
            totals = over_taps(b, [(first, end, 1)], start, step)
            for number, total in enumerate(totals):
                self._store(total, [*at, column + number * lanes], count)

        vectors, rest = divmod(width, lanes)
        # Sums of several vectors are independent, so that none waits for another.
        size = min(_VECTORS, vectors)
        with b.serial(0, vectors // size) as number:
            tile(number * (size * lanes), size, lanes)
        if vectors % size:
            tile(Index((vectors - vectors % size) * lanes), vectors % size, lanes)
        if rest:
            tile(Index(width - rest), 1, rest)


_VECTORS = 4
"""Vectors of a row whose sums are made together."""
