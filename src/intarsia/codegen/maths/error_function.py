# SPDX-License-Identifier: Apache-2.0
"""The error function."""

from __future__ import annotations

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Value
from intarsia.codegen.maths.coefficients import ERF_DENOMINATOR, ERF_NUMERATOR, ERF_SMALL, ERFCX
from intarsia.codegen.maths.exponential import exp_nonpositive
from intarsia.codegen.maths.formats import polynomial, with_sign_of


def erf(b: Builder, x: Value) -> Value:
    """Return the error function."""
    return _erf32(b, x) if x.type.dtype == "float32" else _erf64(b, x)


def _erf32(b: Builder, x: Value) -> Value:
    x = b.maximum(-3.95, b.minimum(3.95, x))
    z = b.mul(x, x)
    top = b.mul(x, polynomial(b, z, ERF_NUMERATOR))
    ratio = b.div(top, polynomial(b, z, ERF_DENOMINATOR))
    return b.maximum(-1.0, b.minimum(1.0, ratio))


def _erf64(b: Builder, x: Value) -> Value:
    size = b.minimum(6.0, b.unary("abs", x))
    z = b.mul(size, size)
    small = b.fma(size, polynomial(b, z, ERF_SMALL), size)
    tail = polynomial(b, b.div(b.sub(size, 2.0), b.add(size, 2.0)), ERFCX)
    large = b.sub(1.0, b.mul(exp_nonpositive(b, b.unary("neg", z)), tail))
    return with_sign_of(b, b.select(b.compare("gt", size, 1.0), large, small), x)
