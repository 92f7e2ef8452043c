# SPDX-License-Identifier: Apache-2.0
"""Softmax of codes of 8 bits in integers, as TFLite's reference kernel does it.

The exponential of a difference of codes is one of 256 numbers: a table. Sums have 12 bits before
the point, and are inverted by three steps of Newton's (gemmlowp's
`one_over_one_plus_x_for_x_in_0_1`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.fixed_point import SOFTMAX_BITS, SUM_BITS
from intarsia.codegen.ir import Function, Index, IrValue, Type
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.scalar_ops.fixed_point import divide, high_product

_WORD, _WIDE = Type("int32"), Type("int64")
_LARGEST = (1 << 31) - 1
_SIGN_BITS = 31


@dataclass(frozen=True, slots=True)
class CodeSoftmax:
    """One kernel; its arguments are the codes, the table of exponentials and the results.

    Attributes:
        rows: The extents of what is not summed over.
        entries: Of a row: fewer than 4096.
        x: Of the codes over rows and entries.
        y: Of the results over them, bytes of either sign; a step is 1/256, and the least code is 0.
    """

    rows: tuple[int, ...]
    entries: int
    x: Layout
    y: Layout


SPECS = (CodeSoftmax,)
CODES = 256


def build(spec: CodeSoftmax) -> Function:
    """Return the kernel."""
    b = Builder("code_softmax")
    shape = (*spec.rows, spec.entries)
    x = spec.x.declare(b, "x", shape)
    table = b.argument("table", "int32", (CODES,))
    y = spec.y.declare(b, "y", shape, is_written=True)
    if 0 in shape:
        return b.finish_empty()
    lowest = int(np.iinfo(spec.y.dtype).min)

    for row in each_turn(b, spec.rows or (1,)):
        place = row[: len(spec.rows)]

        def code(entry: Index, place: list[Index] = place) -> IrValue:
            return b.cast(b.load(x, [*place, entry]), "int32")

        def largest(entry: Index, most: IrValue) -> list[IrValue]:
            return [b.maximum(most, code(entry))]

        first = b.constant(int(np.iinfo(spec.x.dtype).min), _WORD)
        (most,) = b.loop(0, spec.entries, [first], largest)

        def exponential(entry: Index, most: IrValue = most) -> IrValue:
            difference = b.cast(b.sub(most, code(entry)), "int64")
            return b.load(table, Index.of(difference))

        def added(entry: Index, total: IrValue) -> list[IrValue]:
            shift = b.constant(SUM_BITS, _WORD)
            return [b.add(total, divide(b, exponential(entry), shift))]

        (total,) = b.loop(0, spec.entries, [b.constant(0, _WORD)], added)
        zeros = _leading_zeros(b, total)
        inverse = _inverse(b, total, zeros)
        exponent = b.sub(SUM_BITS + _SIGN_BITS - SOFTMAX_BITS, zeros)
        with b.serial(0, spec.entries) as entry:
            product = high_product(b, inverse, exponential(entry))
            quotient = divide(b, b.cast(product, "int64"), b.cast(exponent, "int64"))
            result = b.minimum(b.add(b.cast(quotient, "int32"), lowest), lowest + CODES - 1)
            b.store(b.cast(result, spec.y.dtype), y, [*place, entry])
    return b.finish()


def _leading_zeros(b: Builder, number: IrValue) -> IrValue:
    """Return how many bits of a positive int32 are 0 before the first that is not."""
    zeros = b.constant(32, _WORD)
    for shift in (16, 8, 4, 2, 1):
        upper = b.binary("shr", number, shift)
        is_there = b.compare("ne", upper, 0)
        zeros = b.select(is_there, b.sub(zeros, shift), zeros)
        number = b.select(is_there, upper, number)
    return b.sub(zeros, number)


def _inverse(b: Builder, total: IrValue, zeros: IrValue) -> IrValue:
    """Return 1 / (1 + x), 31 bits after the point; x is what follows the first bit of a sum."""
    wide = b.binary("shl", b.cast(total, "int64"), b.cast(zeros, "int64"))
    rest = b.sub(wide, 1 << _SIGN_BITS)
    # The mean of x and 1, halves up: both are positive (RoundingHalfSum).
    half = b.cast(b.binary("shr", b.add(rest, _LARGEST + 1), 1), "int32")
    guess = b.add(high_product(b, half, b.constant(_SLOPE, _WORD)), _START)
    for _ in range(3):
        error = b.sub(1 << (_SIGN_BITS - _INTEGER_BITS), high_product(b, half, guess))
        step = b.binary("shl", b.cast(high_product(b, guess, error), "int64"), _INTEGER_BITS)
        guess = b.add(guess, b.cast(_saturated(b, step), "int32"))
    return b.cast(_saturated(b, b.binary("shl", b.cast(guess, "int64"), 1)), "int32")


def _saturated(b: Builder, number: IrValue) -> IrValue:
    return b.maximum(-_LARGEST - 1, b.minimum(_LARGEST, number))


_INTEGER_BITS = 2
_START, _SLOPE = 1515870810, -1010580540
"""48/17 and -32/17 with 29 bits after the point."""
