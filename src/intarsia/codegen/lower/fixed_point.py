# SPDX-License-Identifier: Apache-2.0
"""What TFLite's operators add to kernels of codes: factors in fixed point, as steps of a body.

`patterns/fixed_point.py` finds these operators. Each is LiteRT's reference kernel of it to the bit
(`codegen/fixed_point.py` says where its arithmetic is defined).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Apply
from intarsia.codegen.fixed_point import ADD_SHIFT, FixedPointFactor, code_of, factor_of
from intarsia.codegen.lower.conversions import convert_step
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.scalar_ops.fixed_point import MULTIPLY, ROUND_AWAY
from intarsia.errors import InternalError

FIXED_CONV, FIXED_PRODUCT = "FixedPointConv", "FixedPointProduct"
"""A convolution, and a product with a matrix: inputs as those of three DequantizeLinear, one after
the other, a bias without a scale being of floats or, as int32, of sums; behind them the inputs 1
and 2 of QuantizeLinear. The attributes `low` and `high` are what an activation leaves."""
FIXED_ADD, FIXED_MUL = "FixedPointAdd", "FixedPointMul"
"""The same of two operands without a bias."""
FIXED_AVERAGE_POOL, FIXED_SOFTMAX = "FixedPointAveragePool", "FixedPointSoftmax"
"""The same of one operand."""

SourcesAndSteps: TypeAlias = "tuple[tuple[int | tuple[str, Array], ...], tuple[Apply, ...]]"
"""Operands, and what is done with them: as in a `Recipe`."""

_SUM, _WIDE = "int32", "float64"
_B, _B_SCALE, _B_ZERO = 6, 7, 8


class Steps:
    """Steps of a body, by the numbers of what they read: operands first, then steps.

    Args:
        name: Of the node, for the names of constants.
        sources: Ids of values, or what stands for one.
        rank: Dimensions of constants that are made: one number, or numbers of channels.
        axis: The dimension that channels go along.
    """

    def __init__(self, name: str, sources: tuple[int, ...], rank: int, axis: int) -> None:
        self._name, self._axis = name, axis
        self._rank = rank
        self._sources: list[int | tuple[str, Array]] = list(sources)
        self._steps: list[Apply] = []

    def constant(self, role: str, numbers: Array) -> int:
        """Add an operand: one number, or one for each channel; return what stands for it."""
        array = np.asarray(numbers).reshape(-1)
        shape = [1] * self._rank
        if array.size > 1:
            shape[self._axis] = array.size
        self._sources.append((f"{self._name}/{role}", array.reshape(shape)))
        return -len(self._sources)

    def source(self, number: int) -> int:
        """Return what stands for an operand that was given."""
        return -1 - number

    def append(self, step: Apply) -> int:
        """Add a step; its arguments are what this class returned."""
        self._steps.append(step)
        return len(self._steps) - 1

    def convert(self, argument: int, source: str, target: str) -> int:
        """Add a conversion."""
        return self.append(convert_step(argument, source, target))

    def apply(self, op_type: str, *arguments: int, dtype: str = _SUM) -> int:
        """Add a step of several operands."""
        return self.append(Apply(op_type, arguments, (), dtype))

    def scaled(self, number: int, role: str, *factors: FixedPointFactor) -> int:
        """Add a product with a factor, or with one for each channel."""
        parts = {
            "multiplier": [factor.multiplier for factor in factors],
            "left": [max(0, factor.shift) for factor in factors],
            "right": [max(0, -factor.shift) for factor in factors],
        }
        operands = [
            self.constant(f"{role} {part}", np.array(numbers, np.int32))
            for part, numbers in parts.items()
        ]
        return self.apply(MULTIPLY, number, *operands)

    def rounded_once(self, number: int, scales: Array) -> int:
        """Add a product with float64 numbers, rounded to an integer, halves away from zero."""
        wide = self.convert(number, _SUM, _WIDE)
        factors = self.constant("scales", scales.astype(_WIDE))
        product = self.apply("Mul", wide, factors, dtype=_WIDE)
        return self.convert(self.apply(ROUND_AWAY, product, dtype=_WIDE), _WIDE, _SUM)

    def as_codes(self, number: int, operation: Operation, position: int) -> None:
        """Add what makes codes of multiples of the scale of a result, which is at a position."""
        dtype = operation.output.dtype
        zero, (low, high) = _zero(operation, position + 1), limits_of(operation, position)
        if zero:
            number = self.apply("Add", number, self.constant("offset", np.array([zero], _SUM)))
        attributes = (("max", high), ("min", low))
        number = self.append(Apply("Clip", (number,), attributes, _SUM))
        self.convert(number, _SUM, dtype)

    def finish(self) -> SourcesAndSteps:
        """Return sources and steps, as a `Recipe` has them."""
        count = len(self._sources)

        def number(item: int) -> int:
            return -1 - item if item < 0 else count + item

        steps = (
            replace(step, arguments=tuple(map(number, step.arguments))) for step in self._steps
        )
        return tuple(self._sources), tuple(steps)


def limits_of(operation: Operation, position: int) -> tuple[int, int]:
    """Return the least and the largest code of a result, with an activation in them.

    Args:
        operation: With the attributes `low` and `high`, or without an activation.
        position: Of the scale of its result.
    """
    limits = np.iinfo(operation.output.dtype)
    scale, zero = float(operation.array(position).item()), _zero(operation, position + 1)
    low, high = operation.attribute("low", -np.inf), operation.attribute("high", np.inf)
    least = limits.min if low == -np.inf else max(limits.min, code_of(low, scale, zero))
    largest = limits.max if high == np.inf else min(limits.max, code_of(high, scale, zero))
    return min(int(least), int(limits.max)), max(int(largest), int(limits.min))


def factors_of(operation: Operation) -> list[float]:
    """Return by what sums of a convolution or product are multiplied, for each channel or all."""
    x_scale, y_scale = (float(operation.array(i).item()) for i in (1, 9))
    scales = operation.array(4).reshape(-1)
    return [x_scale * float(scale) / y_scale for scale in scales]


def bias_of(operation: Operation) -> Array | None:
    """Return what is added to the sums of each channel, int32; None for nothing."""
    if operation.value(_B) is None:
        return None
    bias = operation.array(_B).reshape(-1)
    scale = float(operation.array(1).item()) * operation.array(4).reshape(-1).astype(np.float64)
    own = operation.value(_B_SCALE)
    if bias.dtype == np.int32 and own is None:
        return bias
    number = bias.astype(np.float64)
    if own is not None:
        own_scale = operation.array(_B_SCALE).reshape(-1).astype(np.float64)
        zero = 0 if operation.value(_B_ZERO) is None else operation.array(_B_ZERO).reshape(-1)
        is_alike = np.allclose(own_scale, scale, rtol=1e-6, atol=0)
        if is_alike and not np.any(zero) and bias.dtype == np.int32:
            return bias
        number = (number - zero) * own_scale
    limits = np.iinfo(np.int32)
    return np.clip(np.rint(number / scale), limits.min, limits.max).astype(np.int32)


def _zero(operation: Operation, position: int) -> int:
    return 0 if operation.value(position) is None else int(operation.array(position).item())


def fixed_binary(operation: Operation) -> SourcesAndSteps:
    """Return the steps of a sum or product of codes, as a `Recipe` has them."""
    node = operation.node
    rank = len(operation.output_shape)
    steps = Steps(node.name, (node.inputs[0], node.inputs[3]), rank, 0)
    scales = [float(operation.array(i).item()) for i in (1, 4, 6)]
    numbers = []
    for number, place in enumerate((0, 3)):
        item = steps.convert(
            steps.source(number), operation.graph.values[node.inputs[place]].dtype, _SUM
        )
        zero = _zero(operation, place + 2)
        if zero:
            item = steps.apply(
                "Sub", item, steps.constant(f"zero {number}", np.array([zero], _SUM))
            )
        numbers.append(item)
    if operation.op_type == FIXED_MUL:
        total = steps.apply("Mul", *numbers)
        factor = factor_of(
            float(np.float32(scales[0]) * np.float32(scales[1]) / np.float32(scales[2]))
        )
        result = steps.scaled(total, "factor", factor)
    elif operation.op_type == FIXED_ADD:
        twice = 2 * max(scales[:2])
        shift = steps.constant("unit", np.array([1 << ADD_SHIFT], _SUM))
        moved = [steps.apply("Mul", item, shift) for item in numbers]
        parts = [
            steps.scaled(item, f"factor {number}", factor_of(scales[number] / twice))
            for number, item in enumerate(moved)
        ]
        total = steps.apply("Add", *parts)
        result = steps.scaled(total, "factor", factor_of(twice / ((1 << ADD_SHIFT) * scales[2])))
    else:
        raise InternalError(f"{operation.op_type} is no operator of two operands", node=node.name)
    steps.as_codes(result, operation, 6)
    return steps.finish()
