# SPDX-License-Identifier: Apache-2.0
"""Activation functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import pi, sqrt
from typing import Any

import numpy as np

from intarsia.codegen import maths
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue
from intarsia.codegen.scalar_ops.operator import FLOATS, INTS, ScalarOp, binary, unary

Arguments = Sequence[Any]
Attributes = Mapping[str, Any]


def _single(value: float) -> float:
    """Return a default as an attribute holds it: in single precision."""
    return float(np.float32(value))


def _where_negative(b: Builder, x: IrValue, below: IrValue) -> IrValue:
    return b.select(b.compare("lt", x, 0), below, x)


def _leaky_relu(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    return _where_negative(b, x[0], b.mul(x[0], float(attrs.get("alpha", _single(0.01)))))


def _elu(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    return _where_negative(b, x[0], b.mul(maths.expm1(b, x[0]), float(attrs.get("alpha", 1.0))))


def _selu(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    alpha = float(attrs.get("alpha", 1.67326319217681884765625))
    gamma = float(attrs.get("gamma", 1.05070102214813232421875))
    return b.mul(_where_negative(b, x[0], b.mul(maths.expm1(b, x[0]), alpha)), gamma)


def _celu(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    alpha = float(attrs.get("alpha", 1.0))
    below = b.mul(maths.expm1(b, b.div(x[0], alpha)), alpha)
    return _where_negative(b, x[0], below) if alpha else below  # ONNX's minimum with 0 * inf


def _gelu(b: Builder, arguments: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    x: IrValue = arguments[0]
    half = b.mul(x, 0.5)
    if attrs.get("approximate", "none") == "tanh":
        cubic = b.mul(b.mul(x, x), 0.044715 * sqrt(2 / pi))
        return b.fma(half, maths.tanh(b, b.mul(x, b.add(cubic, sqrt(2 / pi)))), half)
    return b.fma(half, maths.erf(b, b.mul(x, sqrt(0.5))), half)


def _hard_sigmoid(b: Builder, x: IrValue, alpha: float, beta: float) -> IrValue:
    return b.maximum(0.0, b.minimum(1.0, b.add(b.mul(x, alpha), beta)))


def _hard_sigmoid_op(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    return _hard_sigmoid(
        b, x[0], float(attrs.get("alpha", _single(0.2))), float(attrs.get("beta", 0.5))
    )


def _swish(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    alpha = float(attrs.get("alpha", 1.0))
    return b.mul(x[0], maths.sigmoid(b, b.mul(x[0], alpha)))


def _thresholded_relu(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    return b.select(b.compare("gt", x[0], float(attrs.get("alpha", 1.0))), x[0], 0.0)


def _shrink(b: Builder, arguments: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    x: IrValue = arguments[0]
    bias, limit = (attrs.get(name, default) for name, default in (("bias", 0.0), ("lambd", 0.5)))
    inner = b.select(b.compare("gt", x, limit), b.sub(x, bias), 0)
    return b.select(b.compare("lt", x, -limit), b.add(x, bias), inner)


ACTIVATIONS = {
    "Relu": unary(lambda b, x: b.maximum(0, x), FLOATS | INTS),
    "LeakyRelu": ScalarOp(_leaky_relu, FLOATS),
    "PRelu": binary(lambda b, x, y: _where_negative(b, x, b.mul(x, y)), FLOATS | INTS),
    "Elu": ScalarOp(_elu, FLOATS),
    "Selu": ScalarOp(_selu, FLOATS),
    "Celu": ScalarOp(_celu, FLOATS),
    "Gelu": ScalarOp(_gelu, FLOATS),
    "HardSigmoid": ScalarOp(_hard_sigmoid_op, FLOATS),
    "HardSwish": unary(lambda b, x: b.mul(x, _hard_sigmoid(b, x, _single(1 / 6), 0.5)), FLOATS),
    "Mish": unary(lambda b, x: b.mul(x, maths.tanh(b, maths.softplus(b, x))), FLOATS),
    "Sigmoid": unary(maths.sigmoid, FLOATS),
    "Softplus": unary(maths.softplus, FLOATS),
    "Softsign": unary(lambda b, x: b.div(x, b.add(b.unary("abs", x), 1.0)), FLOATS),
    "Swish": ScalarOp(_swish, FLOATS),
    "Tanh": unary(maths.tanh, FLOATS),
    "ThresholdedRelu": ScalarOp(_thresholded_relu, FLOATS),
    "Shrink": ScalarOp(_shrink, FLOATS),
}
"""Activation functions of neural networks."""
