# SPDX-License-Identifier: Apache-2.0
"""Copies float32 as bfloat16, or codes, to where products of tiles read rows of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import TILE_BYTES, Function, Type
from intarsia.codegen.kernels.domain import each_turn
from intarsia.extents import Size

PIECE = 16
"""Numbers that lie without gaps where they are read."""


def row_of(dtype: str) -> int:
    """Return how many numbers a row of a tile has; bfloat16 is the `uint16` of its bits."""
    return TILE_BYTES // np.dtype(dtype).itemsize


NARROW_ROW = row_of("uint16")
"""Numbers of bfloat16 in a row of a tile."""


@dataclass(frozen=True, slots=True)
class TileRows:
    """One kernel; its arguments are the numbers and where they are written.

    Attributes:
        extents: Of the rows, which may be free; each is as long as a row of a tile.
        x: Of what is read, over these.
        step: Elements from a piece of a row, of `PIECE` numbers without gaps, to the next.
        y: Of what is written, over the same extents: a `uint16` for a number, or a code.
        pieces: Of a row; zeros fill the rest.
    """

    extents: tuple[Size, ...]
    x: Layout
    step: int
    y: Layout
    pieces: int = 2


SPECS = (TileRows,)


def build(spec: TileRows) -> Function:
    """Return the kernel."""
    b = Builder("tile_rows")
    b.note(f"rows {spec.extents}")
    row = row_of(spec.y.dtype)
    shape = (*spec.extents, spec.pieces, PIECE)
    x = b.argument("x", spec.x.dtype, shape, (*spec.x.strides, spec.step, 1))
    y = b.argument(
        "y", spec.y.dtype, (*spec.extents, row), (*spec.y.strides, 1), is_written=True, align=64
    )
    *outer, last = spec.extents
    if 0 in spec.extents:
        return b.finish_empty()
    rest = b.constant(0, Type(spec.y.dtype, PIECE))
    for at in each_turn(b, outer):
        with b.serial(0, last) as number:
            parts = [b.load(x, (*at, number, piece, 0), PIECE) for piece in range(spec.pieces)]
            if spec.x.dtype != spec.y.dtype:
                parts = [b.unary("bfloat16", part) for part in parts]
            parts += [rest] * (row // PIECE - spec.pieces)
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=True)
                parts = [b.shuffle(p, q, range(2 * p.type.lanes)) for p, q in pairs]
            b.store(parts[0], y, (*at, number, 0))
    return b.finish()
