# SPDX-License-Identifier: Apache-2.0
"""What a reduction does with each entry, and with what comes of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from intarsia.codegen import maths
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue
from intarsia.codegen.scalar_ops.arithmetic import divide, larger, smaller
from intarsia.extents import Expression, Size


@dataclass(frozen=True, slots=True)
class ReductionKind:
    """One kind of reduction.

    Attributes:
        neutral: From a dtype to what changes nothing.
        join: Takes an accumulator and an entry.
        combine: Takes two accumulators.
        finish: From what came of all entries, and how many there were, to the result.
    """

    neutral: Callable[[str], float | int | bool]
    join: Callable[[Builder, IrValue, IrValue], IrValue]
    combine: Callable[[Builder, IrValue, IrValue], IrValue]
    finish: Callable[[Builder, IrValue, Size], IrValue] = lambda b, value, count: value


def lowest(dtype: str) -> float | int | bool:
    """Return what no number of a dtype is below."""
    return _limit(dtype, float("-inf"), "min")


def highest(dtype: str) -> float | int | bool:
    """Return what no number of a dtype is above."""
    return _limit(dtype, float("inf"), "max")


def _limit(dtype: str, infinity: float, name: str) -> float | int | bool:
    if dtype == "bool":
        return infinity > 0
    if dtype.startswith("float"):
        return infinity
    return int(getattr(np.iinfo(dtype), name))


def fold(
    b: Builder, vector: IrValue, combine: Callable[[Builder, IrValue, IrValue], IrValue]
) -> IrValue:
    """Return what all lanes of a vector come to, combined by halves."""
    # Halves are pairwise summation, whose error bound grows with the logarithm (Higham, "Accuracy
    # and Stability of Numerical Algorithms", 2002, section 4.2); the order is fixed, unlike that of
    # LLVM's reductions that may reassociate.
    while vector.type.lanes > 1:
        half = vector.type.lanes // 2
        lower = _part(b, vector, 0, half)
        vector = combine(b, lower, _part(b, vector, half, half))
    return vector


def merge(values: Sequence[IrValue], combine: Callable[[IrValue, IrValue], IrValue]) -> IrValue:
    """Return what several accumulators come to, combined by halves."""
    parts = list(values)
    while len(parts) > 1:
        half = (len(parts) + 1) // 2
        joint = [combine(*pair) for pair in zip(parts, parts[half:], strict=False)]
        parts = [*joint, *parts[len(joint) : half]]
    return parts[0]


def _part(b: Builder, vector: IrValue, first: int, count: int) -> IrValue:
    if count == 1:
        return b.extract(vector, first)
    return b.shuffle(vector, vector, range(first, first + count))


def _add_square(b: Builder, total: IrValue, x: IrValue) -> IrValue:
    return b.fma(x, x, total) if x.type.is_float else b.add(total, b.mul(x, x))


def _mean(b: Builder, total: IrValue, count: Size) -> IrValue:
    if isinstance(count, Expression):
        number = b.cast(b.index(count), total.type.dtype)
        return divide(b, total, b.splat(number, total.type.lanes))
    return divide(b, total, b.constant(count, total.type))


def _greatest(b: Builder, left: IrValue, right: IrValue) -> IrValue:
    # The entry, not the accumulator, is asked whether it is NaN: that need not wait for the entry
    # before. An accumulator that is NaN stays, as a comparison with it is false.
    return b.binary("or", left, right) if left.type.dtype == "bool" else larger(b, right, left)


def _least(b: Builder, left: IrValue, right: IrValue) -> IrValue:
    return b.binary("and", left, right) if left.type.dtype == "bool" else smaller(b, right, left)


def _zero(dtype: str) -> int:
    return 0


def _sum(
    join: Callable[[Builder, IrValue, IrValue], IrValue], finish: object = None
) -> ReductionKind:
    if callable(finish):
        return ReductionKind(_zero, join, Builder.add, finish)
    return ReductionKind(_zero, join, Builder.add)


KINDS = {
    "Sum": _sum(Builder.add),
    "Mean": _sum(Builder.add, _mean),
    "Prod": ReductionKind(lambda dtype: 1, Builder.mul, Builder.mul),
    "Max": ReductionKind(lowest, _greatest, _greatest),
    "Min": ReductionKind(highest, _least, _least),
    "L1": _sum(lambda b, total, x: b.add(total, b.unary("abs", x))),
    "L2": _sum(_add_square, lambda b, value, count: b.unary("sqrt", value)),
    "SumSquare": _sum(_add_square),
    "LogSum": _sum(Builder.add, lambda b, value, count: maths.log(b, value)),
}
"""Reductions of one pass. `LogSumExp`, `ArgMax` and `ArgMin` are kernels' own."""
