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


@dataclass(frozen=True, slots=True)
class RangeLength:
    """How many numbers a `Range` has to have.

    Attributes:
        wanted: How many.
        start: Over (1,), as all that follow.
        limit: Beyond the last number.
        delta: From one to the next.
    """

    wanted: int
    start: Layout
    limit: Layout
    delta: Layout


SPECS = (AxisSet, SameNumbers, RangeLength)


def build(spec: AxisSet | SameNumbers | RangeLength) -> Function:
    """Return the kernel; its arguments are the layouts in order, of `AxisSet` choice, and fault."""
    if isinstance(spec, RangeLength):
        return _range_length(spec)
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


def _range_length(spec: RangeLength) -> Function:
    b = Builder("range_length")
    pairs = (("start", spec.start), ("limit", spec.limit), ("delta", spec.delta))
    buffers = [layout.declare(b, name, (1,)) for name, layout in pairs]
    fault = b.argument("fault", INT64.dtype, (1,), is_written=True)
    b.note(f"{spec.wanted}")
    with b.parallel(1):
        start, limit, delta = (b.load(buffer, 0) for buffer in buffers)
        # Floats are subtracted as they are, and divided in float64, as in ONNX Runtime.
        if start.type.is_float:
            way = b.cast(b.sub(limit, start), "float64")
        else:
            way = b.sub(b.cast(limit, "float64"), b.cast(start, "float64"))
        length = b.maximum(0.0, b.unary("ceil", b.div(way, b.cast(delta, "float64"))))
        is_other = b.compare("ne", length, float(spec.wanted))  # also of NaN
        b.store(b.cast(is_other, INT64.dtype), fault, 0)
    return b.finish()


def _any(b: Builder, conditions: list[IrValue]) -> IrValue:
    return reduce(lambda left, right: b.binary("or", left, right), conditions)
