# SPDX-License-Identifier: Apache-2.0
"""Right operands of codes that are computed: packed when it runs, and what zero points add.

The sum of products of codes `a` and `b` less their zero points `p` and `q` is, with k terms,

    sum(a * b) - q * sum(a) - p * (sum(b) - k * q)

so that rows have a number of their own, and columns. Both are int32, which wraps: the result is
exact if it fits. Codes that are packed as signed bytes are less 128 each, and so is their zero
point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from intarsia.codegen.body import Apply, Body
from intarsia.codegen.kernels.code_panels import TOP, CodePanels
from intarsia.codegen.kernels.code_sums import CodeSums
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.conversions import convert_step
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.views import View

_SUM = "int32"

ZeroPoint: TypeAlias = "int | View"
"""A number that is known when compiling, or where one is when it runs, as int32."""


def as_zero_point(
    assembler: Assembler, operation: Operation, position: int, *, is_turned: bool = False
) -> ZeroPoint:
    """Return a zero point of one number, an input of an operation; none is 0.

    Args:
        assembler: Of the program.
        operation: Whose input it is.
        position: Of the input.
        is_turned: Whether the codes have their top bit turned.
    """
    value, less = operation.value(position), TOP if is_turned else 0
    if value is None or value.constant is not None:
        return (0 if value is None else int(operation.array(position).item())) - less
    source = replace(assembler.read(value.id), shape=(1,), strides=(1,))
    steps = (convert_step(0, value.dtype, _SUM), Apply("Sub", (2, 1), (), _SUM))
    zero = assembler.scratch(_SUM, (1,))
    body = Body((value.dtype, _SUM), steps, (3,))
    assembler.copy(source, zero, (), "zero point", body, [_number(assembler, less)])
    return zero


def has_zero(zero: ZeroPoint) -> bool:
    """Tell whether a zero point may be another number than 0."""
    return isinstance(zero, View) or zero != 0


def of_rows(assembler: Assembler, a: View, zero: ZeroPoint) -> View | None:
    """Return what is to be taken from the sums of each row; None for nothing.

    Args:
        assembler: Of the program.
        a: The left operand, `[*, m, k]`, contiguous along k.
        zero: Of the right one, as it is packed.

    Returns:
        A number for each row, `[*, m, 1]`.
    """
    if not has_zero(zero):
        return None
    *extents, k = a.shape
    sums = assembler.scratch(_SUM, tuple(extents))
    layout = replace(a.layout, strides=(*a.strides[:-1], 1))
    spec = CodeSums(tuple(extents), k, layout, assembler.unit)
    assembler.call(spec, (a, sums), (), "sums of rows")
    return _scaled(assembler, sums, 0, 0, zero).unsqueezed(-1)


def of_columns(
    assembler: Assembler, sums: View, k: int, left: ZeroPoint, right: ZeroPoint
) -> View | None:
    """Return what is to be taken from the sums of each column; None for nothing.

    Args:
        assembler: Of the program.
        sums: Of the columns of the right operand as it is packed, `[*, n]`.
        k: Its rows.
        left: The zero point of the left operand.
        right: That of the right one, as it is packed.

    Returns:
        A number for each column, `[*, 1, n]`.
    """
    if not has_zero(left):
        return None
    return _scaled(assembler, sums, k, right, left).unsqueezed(-2)


def _scaled(
    assembler: Assembler, sums: View, count: int, taken: ZeroPoint, factor: ZeroPoint
) -> View:
    """Return `(sums - count * taken) * factor`."""
    if not isinstance(taken, View):
        count, taken = 1, count * taken
    numbers = [
        item if isinstance(item, View) else _number(assembler, item)
        for item in (taken, factor, count)
    ]
    steps = (
        Apply("Mul", (1, 3), (), _SUM),
        Apply("Sub", (0, 4), (), _SUM),
        Apply("Mul", (5, 2), (), _SUM),
    )
    scaled = assembler.scratch(_SUM, sums.shape)
    body = Body((_SUM,) * 4, steps, (6,))
    assembler.copy(sums, scaled, (), "zero points", body, numbers)
    return scaled


def _number(assembler: Assembler, number: int) -> View:
    """Return a number as an operand of elementwise kernels."""
    return assembler.constant(f"int32/{number}", np.full(1, number, _SUM))


def right_codes(assembler: Assembler, view: View) -> View:
    """Return a right operand contiguous along its columns; what is broadcast is there once."""
    shape = tuple(
        1 if step == 0 else extent for extent, step in zip(view.shape, view.strides, strict=True)
    )
    view = replace(view, shape=(*shape[:-2], *view.shape[-2:]))
    if view.strides[-1] == 1 or view.shape[-1] == 1:
        return view
    copy = assembler.scratch(view.dtype, view.shape)
    assembler.copy(view, copy, (), "row by row")
    return copy


def pack_codes(
    assembler: Assembler, spec: CodePanels, read: Sequence[View], sums: Sequence[View]
) -> View:
    """Append what packs a right operand, and return where that lies.

    Args:
        assembler: Of the program.
        spec: How.
        read: The operand, and its zero point if the kernel takes that away.
        sums: Where sums of columns go, if there are any.
    """
    packed = assembler.scratch(spec.dtype, (math.prod(spec.batch) * spec.item,))
    assembler.call(spec, (*read, packed, *sums), (), f"panels of {spec.dtype}")
    return packed
