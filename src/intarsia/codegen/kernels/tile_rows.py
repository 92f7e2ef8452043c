# SPDX-License-Identifier: Apache-2.0
"""Copies float32 as bfloat16 to where products of tiles read rows of 32 numbers."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function, IrValue
from intarsia.codegen.kernels.domain import each_turn
from intarsia.extents import Size

ROW = 32
"""Numbers of bfloat16 in a row of a tile."""
_HALF = ROW // 2


@dataclass(frozen=True, slots=True)
class TileRows:
    """One kernel; its arguments are the numbers and where they are written.

    Attributes:
        extents: Of the rows, which may be free; each is of `ROW` numbers.
        x: Of what is read, over these.
        half: Elements from the first number of a row to its 17th; each half lies without gaps.
        y: Of what is written, a `uint16` for a number, over the same extents.
    """

    extents: tuple[Size, ...]
    x: Layout
    half: int
    y: Layout


SPECS = (TileRows,)


def build(spec: TileRows) -> Function:
    """Return the kernel."""
    b = Builder("tile_rows")
    b.note(f"rows {spec.extents}")
    x = b.argument("x", spec.x.dtype, (*spec.extents, 2, _HALF), (*spec.x.strides, spec.half, 1))
    y = b.argument(
        "y", spec.y.dtype, (*spec.extents, ROW), (*spec.y.strides, 1), is_written=True, align=64
    )
    *outer, last = spec.extents
    if 0 in spec.extents:
        return b.finish_empty()
    for at in each_turn(b, outer):
        with b.serial(0, last) as number:
            halves = [
                bfloat16_bits(b, b.load(x, (*at, number, half, 0), _HALF)) for half in range(2)
            ]
            b.store(b.shuffle(*halves, range(ROW)), y, (*at, number, 0))
    return b.finish()


def bfloat16_bits(b: Builder, x: IrValue) -> IrValue:
    """Return float32 as the bits of bfloat16, to nearest with ties to even; NaN stays one."""
    bits = b.bitcast(x, "uint32")
    upper = b.binary("shr", bits, 16)
    # Half a unit less one, and the last bit that stays: a carry into the exponent is right.
    near = b.binary("shr", b.add(b.add(bits, 0x7FFF), b.binary("and", upper, 1)), 16)
    quiet = b.binary("or", upper, 0x40)
    return b.cast(b.select(b.unary("isnan", x), quiet, near), "uint16")
