# SPDX-License-Identifier: Apache-2.0
"""Parameters that come when a kernel runs: read, compared with what the shapes say, made handy.

Shapes are known when compiling, so that most of such a parameter is. What it says otherwise is a
fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import INT64, Function, Index, IrValue


@dataclass(frozen=True, slots=True)
class AxisSet:
    """Dimensions as a number: of each the bit.

    Attributes:
        count: Of the given axes.
        rank: They are in `[-rank, rank)`; at most 62.
        axes: Over (count,); int32 or int64.
        allowed: What the number may be.
    """

    count: int
    rank: int
    axes: Layout
    allowed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SameNumbers:
    """Numbers that have to be some.

    Attributes:
        wanted: What they have to be.
        numbers: Over (len(wanted),); int32 or int64.
    """

    wanted: tuple[int, ...]
    numbers: Layout


SPECS = (AxisSet, SameNumbers)


def build(spec: AxisSet | SameNumbers) -> Function:
    """Return the kernel; its arguments are axes, choice and fault, or numbers and fault."""
    return _axis_set(spec) if isinstance(spec, AxisSet) else _same_numbers(spec)


def _axis_set(spec: AxisSet) -> Function:
    b = Builder("axes")
    axes = spec.axes.declare(b, "axes", (spec.count,))
    choice = b.argument("choice", INT64.dtype, (1,), is_written=True)
    fault = b.argument("fault", INT64.dtype, (1,), is_written=True)
    b.note(f"{spec.count} of {spec.rank}")
    zero, one = b.constant(0, INT64), b.constant(1, INT64)
    with b.parallel(1):
        number = zero
        for at in range(spec.count):
            axis = b.cast(b.load(axes, at), INT64.dtype)
            axis = b.select(b.compare("lt", axis, 0), b.add(axis, spec.rank), axis)
            is_axis = b.binary("and", b.compare("ge", axis, 0), b.compare("lt", axis, spec.rank))
            # Another axis is a bit that no allowed number has.
            place = b.select(is_axis, axis, spec.rank)
            number = b.binary("or", number, b.binary("shl", one, place))
        b.store(number, choice, 0)
        is_allowed = [b.compare("eq", number, item) for item in spec.allowed]
        b.store(b.select(_any(b, is_allowed), zero, one), fault, 0)
    return b.finish()


def _same_numbers(spec: SameNumbers) -> Function:
    b = Builder("same_numbers")
    numbers = spec.numbers.declare(b, "numbers", (len(spec.wanted),))
    fault = b.argument("fault", INT64.dtype, (1,), is_written=True)
    b.note(f"{spec.wanted}")
    with b.parallel(1):
        others = [
            b.compare("ne", b.cast(b.load(numbers, Index(at)), INT64.dtype), number)
            for at, number in enumerate(spec.wanted)
        ]
        b.store(b.cast(_any(b, others), INT64.dtype), fault, 0)
    return b.finish()


def _any(b: Builder, conditions: list[IrValue]) -> IrValue:
    return reduce(lambda left, right: b.binary("or", left, right), conditions)
