# SPDX-License-Identifier: Apache-2.0
"""TFLite's arithmetic of codes: factors as integers, and exponentials in fixed point.

What LiteRT's reference kernels do (`tflite/kernels/internal/common.cc`, `quantization_util.cc`):
a factor is an int32 with 31 bits after the point and a shift, and a product with it is rounded
twice, by gemmlowp's SaturatingRoundingDoublingHighMul (halves up) and RoundingDivideByPOT (halves
away from zero). LiteRT is built without TFLITE_SINGLE_ROUNDING, and CMSIS-NN by default without
CMSIS_NN_USE_SINGLE_ROUNDING, so both round twice; but LiteRT's reference of a fully connected layer
multiplies by a float64 and rounds once (`reference/integer_ops/fully_connected.h`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from intarsia.arrays import Array

_POINT = 31
_LARGEST = (1 << 31) - 1
ADD_SHIFT = 20
"""Bits by which operands of a sum are moved before they are scaled: TFLite's `left_shift`."""

SOFTMAX_SCALE, SOFTMAX_BITS = 1 / 256, 8
"""What TFLite demands of a softmax of bytes: its scale, and the bits of a result."""
SUM_BITS = 12
"""Bits before the point of a sum of exponentials: TFLite's `kAccumulationIntegerBits`."""
_DIFFERENCE_BITS = 5
"""Bits before the point of differences: TFLite's `kScaledDiffIntegerBits`."""


@dataclass(frozen=True, slots=True)
class FixedPointFactor:
    """A positive number as TFLite has it: `multiplier / 2**31 * 2**shift`.

    Attributes:
        multiplier: In `[2**30, 2**31)`, or 0.
        shift: To the left where it is positive.
    """

    multiplier: int
    shift: int


def factor_of(number: float) -> FixedPointFactor:
    """Return a number as TFLite has it (`QuantizeMultiplier`)."""
    if number == 0:
        return FixedPointFactor(0, 0)
    fraction, shift = math.frexp(number)
    multiplier = math.floor(fraction * (1 << _POINT) + 0.5)
    if multiplier == 1 << _POINT:
        multiplier, shift = multiplier // 2, shift + 1
    if shift < -_POINT:
        return FixedPointFactor(0, 0)
    if shift > _POINT - 1:
        return FixedPointFactor(_LARGEST, _POINT - 1)
    return FixedPointFactor(multiplier, shift)


def code_of(number: float, scale: float, zero: int) -> int:
    """Return the code of a number as limits of activations have it: halves away from zero."""
    quotient = float(np.float32(number) / np.float32(scale))
    return zero + math.floor(abs(quotient) + 0.5) * (1 if quotient >= 0 else -1)


def high_product(left: Array, right: Array | int) -> Array:
    """Return gemmlowp's SaturatingRoundingDoublingHighMul of int32 that are not both the least."""
    product: Array = (left.astype(np.int64) * right + (1 << 30)) >> 31
    return product


def divided(number: Array, exponent: int) -> Array:
    """Return gemmlowp's RoundingDivideByPOT."""
    half = (1 << exponent) >> 1
    below = (number < 0) & (exponent > 0)
    quotient: Array = (number + half - below) >> exponent
    return quotient


def softmax_factor(scale: float) -> FixedPointFactor:
    """Return what differences of codes are multiplied by for a softmax (beta is 1)."""
    return factor_of(min(float(scale) * (1 << (_POINT - _DIFFERENCE_BITS)), float(_LARGEST)))


def softmax_least(factor: FixedPointFactor) -> int:
    """Return the least difference of codes whose exponential is not 0: TFLite's `diff_min`."""
    largest = ((1 << _DIFFERENCE_BITS) - 1) * (1 << (_POINT - _DIFFERENCE_BITS))
    return -math.floor(largest / (1 << factor.shift))


def exponentials(scale: float) -> Array:
    """Return `exp(-scale * d)` for differences `d` of 0 to 255, int32 with 31 bits after the point.

    gemmlowp's `exp_on_negative_values` of numbers with 5 bits before the point: a polynomial
    around -1/8 for the rest below a quarter, times a constant for each bit above it.
    """
    factor = softmax_factor(scale)
    differences = -np.arange(256, dtype=np.int64)
    scaled = high_product(differences << max(0, factor.shift), factor.multiplier)
    after = _POINT - _DIFFERENCE_BITS
    quarter = 1 << (after - 2)
    rest = (scaled & (quarter - 1)) - quarter
    x = (rest << _DIFFERENCE_BITS) + (1 << (_POINT - 3))
    square = high_product(x, x)
    cube, fourth = high_product(square, x), high_product(square, square)
    terms = high_product(divided(fourth, 2) + cube, _THIRD) + square
    result = _EXP_EIGHTH + high_product(x + divided(terms, 1), _EXP_EIGHTH)
    above = rest - scaled
    for place, constant in enumerate(_EXP_BITS):
        bit = 1 << (after - 2 + place)
        result = np.where(above & bit, high_product(result, constant), result)
    result = np.where(scaled == 0, _LARGEST, result)
    return np.where(differences >= softmax_least(factor), result, 0).astype(np.int32)


_EXP_EIGHTH, _THIRD = round(math.exp(-1 / 8) * (1 << 31)), round((1 << 31) / 3)
_EXP_BITS = tuple(round(math.exp(-(2.0**power)) * (1 << 31)) for power in range(-2, 5))
"""The exponentials of minus a quarter, a half, 1, 2, 4, 8 and 16."""
