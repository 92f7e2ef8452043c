# SPDX-License-Identifier: Apache-2.0
"""Sums of the codes of each row: what the zero point of a right operand is multiplied by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import DOT_GROUPS, Function, Index, IrValue, Type
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Size

_SUM = "int32"


@dataclass(frozen=True, slots=True)
class CodeSums:
    """One kernel; its arguments are codes and their sums, int32, row by row.

    Attributes:
        extents: Of the rows, which may be free.
        k: Codes of a row, which lie side by side.
        x: Of the codes, over (*extents, k).
        unit: What it is shaped for.
    """

    extents: tuple[Size, ...]
    k: int
    x: Layout
    unit: CpuModel = AVX512

    def __post_init__(self) -> None:
        """Check what the kernel relies on."""
        assert self.x.strides[-1] == 1, f"{self.x}"


SPECS = (CodeSums,)


def build(spec: CodeSums) -> Function:
    """Return the kernel."""
    b = Builder("code_sums")
    b.note(f"rows {spec.extents} of {spec.k}")
    x = spec.x.declare(b, "x", (*spec.extents, spec.k))
    y = b.argument("y", _SUM, spec.extents, is_written=True)
    *outer, last = spec.extents
    if 0 in spec.extents:
        return b.finish_empty()
    lanes = spec.unit.lanes(_SUM)
    width = lanes * DOT_GROUPS[spec.x.dtype]
    # Of an unsigned and a signed operand, which is what most instructions multiply.
    is_unsigned = spec.x.dtype == "uint8"
    ones = b.constant(1, Type("int8" if is_unsigned else "uint8", width))
    rest = spec.k % width

    for at in each_turn(b, outer):
        with b.serial(0, last) as row:

            def step(
                k: Index, *totals: IrValue, place: Sequence[Index] = (*at, row), there: int = width
            ) -> list[IrValue]:
                codes = b.load(x, (*place, k), width, count=there)
                pair = (codes, ones) if is_unsigned else (ones, codes)
                return [b.dot(*pair, total) for total in totals]

            totals = b.loop(0, spec.k - rest, [b.constant(0, Type(_SUM, lanes))], step, step=width)
            if rest:
                totals = step(Index(spec.k - rest), *totals, there=rest)
            b.store(b.reduce("add", totals[0]), y, (*at, row))
    return b.finish()
