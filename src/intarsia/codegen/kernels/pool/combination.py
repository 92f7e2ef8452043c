# SPDX-License-Identifier: Apache-2.0
"""What pooling does with the entries of a window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from intarsia.codegen import maths
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Index, IrValue, Type


class PoolKind(StrEnum):
    """What becomes of a window."""

    MAX = "max"
    AVERAGE = "average"
    LP = "lp"


def refuse_exponent(p: int) -> str | None:
    """Say why an Lp norm is not taken."""
    return f"Lp pooling with p = {p}" if p < 1 else None


@dataclass(frozen=True, slots=True)
class Combination:
    """The arithmetic of one kind of pooling.

    Attributes:
        builder: Of the kernel.
        kind: Which.
        p: The exponent of an Lp norm.
        zero: The zero point of codes whose averages are numbers; None where entries are what they
            are.
    """

    builder: Builder
    kind: PoolKind
    p: int = 2
    zero: int | None = None

    def sum_dtype(self, dtype: str) -> str:
        """Return what entries of a dtype are combined in."""
        return dtype if self.zero is None else "int32"

    def start(self, type_: Type) -> IrValue:
        """Return the result of no entries."""
        if self.kind is not PoolKind.MAX:
            return self.builder.constant(0, type_)
        if type_.is_float:
            return self.builder.constant(-math.inf, type_)
        return self.builder.constant(int(np.iinfo(type_.dtype).min), type_)

    def map(self, item: IrValue) -> IrValue:
        """Return what is combined for an entry."""
        if self.zero is not None:
            wide = self.builder.cast(item, "int32")
            return self.builder.sub(wide, self.zero) if self.zero else wide
        if self.kind is not PoolKind.LP:
            return item
        size = self.builder.unary("abs", item)
        power = size
        # Square and multiply (Knuth, "The Art of Computer Programming", volume 2, section 4.6.3).
        for bit in f"{self.p:b}"[1:]:
            power = self.builder.mul(power, power)
            power = self.builder.mul(power, size) if bit == "1" else power
        return power

    def combine(self, total: IrValue, item: IrValue) -> IrValue:
        """Return the result of what came before and one more."""
        if self.kind is PoolKind.MAX:
            return self.builder.maximum(total, item)
        return self.builder.add(total, item)

    def close(self, total: IrValue, divisor: Index) -> IrValue:
        """Return the result of all entries, of which there are so many."""
        b = self.builder
        if self.zero is not None:
            total = b.cast(total, "float32")
        if self.kind is PoolKind.AVERAGE and not total.type.is_float:
            return self._rounded(total, b.cast(b.index(divisor), total.type.dtype))
        if self.kind is PoolKind.AVERAGE:
            return b.div(total, b.cast(b.index(divisor), total.type.dtype))
        if self.kind is PoolKind.LP:
            return self._root(total)
        return total

    def _rounded(self, total: IrValue, divisor: IrValue) -> IrValue:
        """Return a quotient of integers, halves away from zero as TFLite has them."""
        b = self.builder
        half = b.splat(b.binary("shr", divisor, 1), total.type.lanes)
        away = b.select(b.compare("gt", total, 0), half, b.unary("neg", half))
        return b.div(b.add(total, away), divisor)

    def _root(self, total: IrValue) -> IrValue:
        """Return the p-th root; of powers of two by square roots."""
        b = self.builder
        # Square roots are rounded once each and faster than a power.
        if self.p & (self.p - 1):
            exponent = b.constant(1 / self.p, total.type)
            return maths.pow(b, total, exponent)
        for _ in range(self.p.bit_length() - 1):
            total = b.unary("sqrt", total)
        return total
