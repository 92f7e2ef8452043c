# SPDX-License-Identifier: Apache-2.0
"""Codes of bytes in an order in which each four channels are found in three kinds of pairs.

An instruction that multiplies bytes by twos saturates where the products of a pair are too large
together, which depends on who is whose neighbour. Of four channels 0 to 3 the bytes 0 1 2 3 0 2 1 3
are written: the four from the first byte on are the pairs 01 and 23, from the second one on 12 and
30, from the fifth one on 02 and 13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index
from intarsia.codegen.kernels.domain import each_turn
from intarsia.extents import Size

GROUP = 4
"""Channels of a product."""
SPREAD = 2
"""Bytes for each channel."""
_ORDER = (0, 1, 2, 3, 0, 2, 1, 3)
PAIRINGS = {0: (0, 1, 2, 3), 1: (1, 2, 3, 0), 4: (0, 2, 1, 3)}
"""By the byte of a group that they begin at: channels in the order in which they are pairs."""


@dataclass(frozen=True, slots=True)
class PairedCodes:
    """One kernel; its arguments are the codes, in blocks of channels, and where they are written.

    Attributes:
        extents: Images, blocks, spatial dimensions, channels of a block.
        x: Of the codes, over these.
        y: Of the results, with `SPREAD` bytes for each channel: over the same dimensions, or over
            images, strips, blocks, positions of a strip, bytes.
        strip: How many positions, row by row, are a strip; 0 where they lie in rows.
    """

    extents: tuple[Size, ...]
    x: Layout
    y: Layout
    strip: int = 0


SPECS = (PairedCodes,)


def build(spec: PairedCodes) -> Function:
    """Return the kernel."""
    b = Builder("paired_codes")
    *outer, columns, lanes = spec.extents
    assert isinstance(lanes, int)
    assert lanes % GROUP == 0, "a block holds no groups"
    x = spec.x.declare(b, "x", spec.extents)
    order = [group + channel for group in range(0, lanes, GROUP) for channel in _ORDER]
    if not spec.strip:
        y = spec.y.declare(b, "y", (*outer, columns, SPREAD * lanes), is_written=True)
        for at in each_turn(b, outer):
            with b.serial(0, columns) as column:
                codes = b.load(x, (*at, column, 0), lanes)
                b.store(b.shuffle(codes, codes, order), y, (*at, column, 0))
        return b.finish()
    _in_strips(b, spec, x, order)
    return b.finish()


def _in_strips(b: Builder, spec: PairedCodes, x: Buffer, order: Sequence[int]) -> None:
    """Append what writes strips of positions."""
    images, blocks, *rows, lanes = spec.extents
    positions, size = math.prod(rows), spec.strip
    assert isinstance(lanes, int)
    assert isinstance(positions, int), "positions of strips are known"
    shape = (images, -(-positions // size), blocks, size, SPREAD * lanes)
    y = spec.y.declare(b, "y", shape, is_written=True)

    def copy(source: Sequence[Index], target: Sequence[Index]) -> None:
        codes = b.load(x, (*source, Index()), lanes)
        b.store(b.shuffle(codes, codes, order), y, (*target, Index()))

    steps = spec.x.strides[2:-1]
    if all(step == inner * n for step, inner, n in zip(steps, steps[1:], rows[1:], strict=False)):
        corner = [Index()] * (len(rows) - 1)
        for image, strip, block in each_turn(b, shape[:3]):
            with b.serial(0, b.smaller(strip * -size + positions, size)) as position:
                at = (image, strip, block, position)
                copy((image, block, *corner, strip * size + position), at)
        return
    for image, *place in each_turn(b, (images, *rows[:-1])):
        first = Index()
        for index, extent in zip(place, rows, strict=False):
            first = first * extent + index
        with b.serial(0, rows[-1]) as column:
            # All blocks of a position in turn: where it is in its strip is computed once.
            strip, position = b.split(first * rows[-1] + column, size)
            with b.serial(0, blocks) as block:
                copy((image, block, *place, column), (image, strip, block, position))
