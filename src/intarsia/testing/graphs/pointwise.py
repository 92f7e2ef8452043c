# SPDX-License-Identifier: Apache-2.0
"""How nodes are drawn that work element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper

from intarsia.arrays import np_dtype
from intarsia.backends.defects import is_float
from intarsia.testing.graphs.draft import FLOATS, Draft, Unfit

UNARY = (
    *("Abs", "Neg", "Sign", "Ceil", "Floor", "Round", "Sqrt", "Reciprocal", "Exp", "Log", "Sin"),
    *("Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh"),
    *("Erf", "Sigmoid", "Softplus", "Softsign", "Relu", "Identity", "Not", "BitwiseNot", "IsNaN"),
    *("HardSwish", "Mish"),
)
"""Operators of one input without attributes."""

ALPHAS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "Elu": {"alpha": (0.5, 1.0, 2.0, 0.0)},
    "Celu": {"alpha": (0.5, 1.0, 2.0, 0.0)},
    "Selu": {"alpha": (1.5, 0.5, 0.0), "gamma": (1.0, 2.0)},
    "LeakyRelu": {"alpha": (0.01, 0.3, 0.0, -0.5, 2.0)},
    "HardSigmoid": {"alpha": (0.2, 0.5), "beta": (0.5, 0.0, 0.3)},
    "ThresholdedRelu": {"alpha": (1.0, 0.5, 0.0, -0.5)},
    "Shrink": {"bias": (0.0, 0.3), "lambd": (0.5, 1.0, 0.0)},
    "IsInf": {"detect_negative": (0, 1), "detect_positive": (0, 1)},
    "Gelu": {"approximate": ("none", "tanh")},
}
"""Operators of one input with attributes, and values for these."""

ARITHMETIC = ("Add", "Sub", "Mul")
COMPARISONS = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
LOGIC = ("And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
VARIADIC = ("Max", "Min", "Mean", "Sum")

_MOST_EXACT = 60.0
"""Casts to integers stay in a range that every integer type has."""


def unary(d: Draft, op_type: str) -> None:
    """Draw an operator of one input, with its attributes if it has some."""
    choices = {name: d.pick(options) for name, options in ALPHAS.get(op_type, {}).items()}
    d.op(op_type, [d.take(op_type)], **d.some(**choices))


def binary(d: Draft, op_type: str) -> None:
    """Draw an operator of two inputs that broadcast, in either order."""
    x = d.take(op_type)
    pair = [x, d.broadcast(x, d.dtype_of(x))]
    if d.chance(0.4):
        pair.reverse()
    d.op(op_type, pair)


def variadic(d: Draft, op_type: str) -> None:
    """Draw an operator of one to four inputs that broadcast."""
    x = d.take(op_type)
    inputs = [x, *(d.broadcast(x, d.dtype_of(x)) for _ in range(d.between(0, 3)))]
    d.op(op_type, [inputs[i] for i in d.rng.permutation(len(inputs))])


def divide(d: Draft, op_type: str) -> None:
    """Draw Div or Mod; integers are never divided by zero, nor the least one by -1."""
    x = d.take(op_type, dtypes=None)
    dtype = d.dtype_of(x)
    if dtype in FLOATS:
        y = d.broadcast(x, dtype)
        pair = [y, x] if d.chance(0.3) else [x, y]
        attributes = {"fmod": 1} if op_type == "Mod" else {}
        d.op(op_type, pair, **attributes)
        return
    shape = [1 if d.chance(0.3) else extent for extent in d.array(x).shape]
    y = d.new(dtype, shape, low=1, high=9)
    if not dtype.startswith("u") and d.chance(0.5) and y in d.constants:
        y = d.constant(-d.constants[y] - 1)
    d.op(op_type, [x, y], **(d.some(fmod=d.between(0, 1)) if op_type == "Mod" else {}))


def power(d: Draft, op_type: str) -> None:
    """Draw Pow: any bases with the exponents that networks use, positive ones with any."""
    x = d.take(op_type, dtypes=(*FLOATS, "int32", "int64"))
    dtype = d.dtype_of(x)
    if dtype not in FLOATS:
        x = d.new(dtype, d.array(x).shape, low=-6, high=6)
        y = d.constant(d.pick((0, 1, 2, 3)), dtype)
    elif d.chance(0.6):
        y = d.constant(d.pick((2.0, 0.5, 3.0, -1.0, 1.0, 0.0, 1.5, -0.5, -2.0)), dtype)
    else:
        x = d.new(dtype, d.array(x).shape, low=0.1, high=4)
        y = d.broadcast(x, dtype)
    d.op(op_type, [x, y])


def prelu(d: Draft, op_type: str) -> None:
    """Draw PRelu, whose slope broadcasts towards the input."""
    x = d.take(op_type, dtypes=FLOATS, rank=(1, 4))
    shape = [1 if d.chance(0.4) else extent for extent in d.array(x).shape]
    shape = shape[d.between(0, len(shape) - 1) :]
    d.op(op_type, [x, d.new(d.dtype_of(x), shape, constant=0.7)])


def shift(d: Draft, op_type: str) -> None:
    """Draw BitShift by less than the width."""
    x = d.take(op_type)
    width = d.array(x).dtype.itemsize * 8
    y = d.new(d.dtype_of(x), d.array(x).shape, low=0, high=width - 1)
    d.op(op_type, [x, y], direction=d.pick(("LEFT", "RIGHT")))


def clip(d: Draft, op_type: str) -> None:
    """Draw Clip: bounds as attributes or inputs, one, both or none."""
    x = d.take(op_type)
    dtype = d.dtype_of(x)
    own = np_dtype(dtype)
    low, high = (0, 3) if own.kind == "u" else (d.pick((-1, 0, -2)), d.pick((1, 2, 6)))
    if d.has(op_type, "min"):
        d.op(op_type, [x], **d.some(min=float(low), max=float(high)))
        return
    bounds = [d.fixed(np.array(bound), dtype) if d.chance(0.75) else "" for bound in (low, high)]
    d.op(op_type, [x, *bounds])


def cast(d: Draft, op_type: str) -> None:
    """Draw Cast or CastLike; to integers only numbers that they have."""
    to = d.pick(d.dtypes)
    x = d.take("Cast")
    source, kind = d.array(x), np_dtype(to).kind
    if is_float(source) and kind in "iu":
        low = 0.0 if kind == "u" else -_MOST_EXACT
        x = d.new(source.dtype.name, source.shape, low=low, high=_MOST_EXACT)
    if op_type == "CastLike":
        d.op(op_type, [x, d.new(to, (1,), kind="plain")])
        return
    d.op(op_type, [x], to=helper.np_dtype_to_tensor_dtype(np_dtype(to)))


def where(d: Draft, op_type: str) -> None:
    """Draw Where."""
    x = d.take(op_type, 1)
    condition = d.broadcast(x, "bool", constant=0.2)
    d.op(op_type, [condition, *d.rng.permutation([x, d.broadcast(x, d.dtype_of(x))]).tolist()])


def softmax(d: Draft, op_type: str) -> None:
    """Draw one of the softmax family."""
    x = d.take(op_type, rank=(1, 4), dtypes=FLOATS)
    d.op(op_type, [x], **d.some(axis=d.axis(d.array(x).ndim)))


def lp_normalization(d: Draft, op_type: str) -> None:
    """Draw LpNormalization."""
    x = d.take(op_type, rank=(1, 4))
    d.op(op_type, [x], **d.some(axis=d.axis(d.array(x).ndim), p=d.between(1, 2)))


def dropout(d: Draft, op_type: str) -> None:
    """Draw Dropout in inference."""
    x = d.take(op_type)
    outputs = d.between(1, 2)
    if d.has(op_type, "ratio"):
        d.op(op_type, [x], outputs, **d.some(ratio=0.3))
        return
    ratio = d.constant(0.3, "float32") if d.chance(0.5) else ""
    mode = d.constant(False, "bool") if d.chance(0.4) else ""
    d.op(op_type, [x, ratio, mode], outputs)


def string(d: Draft, op_type: str) -> None:
    """Draw an operator on text."""
    words = np.array(["a", "the bee", "", "C d e", "42", "Ünder"], object)

    def text(*shape: int) -> str:
        return d.fed(d.rng.choice(words, shape))

    size = d.between(1, 4)
    if op_type == "StringConcat":
        d.op(op_type, [text(size), text(d.pick((1, size)))])
    elif op_type == "RegexFullMatch":
        d.op(op_type, [text(size)], pattern=d.pick(("[a-z ]*", "[0-9]+", ".?")))
    elif op_type == "StringSplit":
        d.op(op_type, [text(size)], 2, **d.some(delimiter=" ", maxsplit=d.between(1, 2)))
    elif op_type == "StringNormalizer":
        action = d.pick(("NONE", "LOWER", "UPPER"))
        d.op(
            op_type,
            [text(size)],
            case_change_action=action,
            is_case_sensitive=d.between(0, 1),
            **d.some(stopwords=["a"]),
        )
    else:
        raise Unfit(op_type)


RECIPES = {
    **dict.fromkeys((*UNARY, *ALPHAS), unary),
    **dict.fromkeys((*ARITHMETIC, *COMPARISONS, *LOGIC), binary),
    **dict.fromkeys(VARIADIC, variadic),
    **dict.fromkeys(("Div", "Mod"), divide),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), softmax),
    **dict.fromkeys(("Cast", "CastLike"), cast),
    **dict.fromkeys(("StringConcat", "RegexFullMatch", "StringSplit", "StringNormalizer"), string),
    "Pow": power,
    "PRelu": prelu,
    "BitShift": shift,
    "Clip": clip,
    "Where": where,
    "LpNormalization": lp_normalization,
    "Dropout": dropout,
}
"""By operator, how it is drawn."""
