# SPDX-License-Identifier: Apache-2.0
"""Functions of float32 and float64 as operations of the loop-level IR, without any library.

One implementation for all backends and all numbers of lanes. NaN, infinities, denormals, overflow
and underflow come out as IEEE 754 and C say; `tests/codegen/test_maths.py` states the measured
errors. They hold where `fma` rounds once; elsewhere they are some units in the last place larger.
"""

from intarsia.codegen.maths.elementary import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    cos,
    cosh,
    erf,
    exp,
    exp_nonpositive,
    expm1,
    sigmoid,
    sin,
    sinh,
    softplus,
    tan,
    tanh,
)
from intarsia.codegen.maths.logarithm import log, log1p
from intarsia.codegen.maths.power import pow  # noqa: A004 - the operator's name

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp_nonpositive",
    "expm1",
    "log",
    "log1p",
    "pow",
    "sigmoid",
    "sin",
    "sinh",
    "softplus",
    "tan",
    "tanh",
]
