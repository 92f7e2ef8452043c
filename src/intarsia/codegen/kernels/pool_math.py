# SPDX-License-Identifier: Apache-2.0
"""What pooling does with the entries of a window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Index, Type, Value


class PoolKind(StrEnum):
    """What becomes of a window."""

    MAX = "max"
    AVERAGE = "average"
    LP = "lp"


def refuse_exponent(p: int) -> str | None:
    """Say why an Lp norm is not taken."""
    if p < 1 or p & (p - 1):
        return f"Lp pooling with p = {p}: only powers of two"
    return None


@dataclass(frozen=True, slots=True)
class Combination:
    """The arithmetic of one kind of pooling.

    Attributes:
        builder: Of the kernel.
        kind: Which.
        p: The exponent of an Lp norm.
    """

    builder: Builder
    kind: PoolKind
    p: int = 2

    def start(self, type_: Type) -> Value:
        """Return the result of no entries."""
        if self.kind is not PoolKind.MAX:
            return self.builder.constant(0, type_)
        if type_.is_float:
            return self.builder.constant(-math.inf, type_)
        return self.builder.constant(int(np.iinfo(type_.dtype).min), type_)

    def map(self, item: Value) -> Value:
        """Return what is combined for an entry."""
        if self.kind is not PoolKind.LP:
            return item
        if self.p == 1:
            return self.builder.unary("abs", item)
        for _ in range(self.p.bit_length() - 1):
            item = self.builder.mul(item, item)
        return item

    def combine(self, total: Value, item: Value) -> Value:
        """Return the result of what came before and one more."""
        if self.kind is PoolKind.MAX:
            return self.builder.maximum(total, item)
        return self.builder.add(total, item)

    def close(self, total: Value, divisor: Index) -> Value:
        """Return the result of all entries, of which there are so many."""
        b = self.builder
        if self.kind is PoolKind.AVERAGE:
            return b.div(total, b.cast(b.index(divisor), total.type.dtype))
        if self.kind is PoolKind.LP:
            for _ in range(self.p.bit_length() - 1):
                total = b.unary("sqrt", total)
        return total
