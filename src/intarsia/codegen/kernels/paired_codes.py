# SPDX-License-Identifier: Apache-2.0
"""Codes of bytes in an order in which each four channels are found in three kinds of pairs.

An instruction that multiplies bytes by twos saturates where the products of a pair are too large
together, which depends on who is whose neighbour. Of four channels 0 to 3 the bytes 0 1 2 3 0 2 1 3
are written: the four from the first byte on are the pairs 01 and 23, from the second one on 12 and
30, from the fifth one on 02 and 13.
"""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function
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
        y: Of the results, with `SPREAD` bytes for each channel.
    """

    extents: tuple[Size, ...]
    x: Layout
    y: Layout


SPECS = (PairedCodes,)


def build(spec: PairedCodes) -> Function:
    """Return the kernel."""
    b = Builder("paired_codes")
    *outer, columns, lanes = spec.extents
    assert isinstance(lanes, int)
    assert lanes % GROUP == 0, "a block holds no groups"
    x = spec.x.declare(b, "x", spec.extents)
    y = spec.y.declare(b, "y", (*outer, columns, SPREAD * lanes), is_written=True)
    order = [group + channel for group in range(0, lanes, GROUP) for channel in _ORDER]
    for at in each_turn(b, outer):
        with b.serial(0, columns) as column:
            place = (*at, column, 0)
            codes = b.load(x, place, lanes)
            b.store(b.shuffle(codes, codes, order), y, place)
    return b.finish()
