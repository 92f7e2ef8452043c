# SPDX-License-Identifier: Apache-2.0
"""What ncnn is known to compute otherwise than ONNX says, as rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.defects import KnownDefect, Values, finite_magnitudes

_TRIED = "ncnn 1.0 against ONNX Runtime 1.31 without optimisations and onnx.reference 1.23"


_rule = partial(KnownDefect.of, "ncnn", _TRIED)


def _of_exponential(inputs: Sequence[Any], result: Array) -> Array:
    """Return how far `alpha * (exp(x) - 1)` is off: in units of the largest, which is `alpha`."""
    below = finite_magnitudes(np.where(result < 0, result, 0))
    return np.asarray(2e-7 * max(1.0, float(below.max(initial=0))))


def _of_mish(inputs: Sequence[Any], result: Array) -> Array:
    return np.asarray(3e-7 * np.maximum(1, finite_magnitudes(inputs[0])))


_NONFINITE = (Values.NAN, Values.INFINITE)

DEFECTS: tuple[KnownDefect, ...] = (
    _rule("Cos Sin Tan", "from some ten millions on it is NaN or infinite"),
    _rule("Elu", "it is exp(x) - 1, as exact as 2e-7, also next to 0", bound=_of_exponential),
    _rule("Tanh", "it is as exact as 3e-7, also next to 0", bound=lambda inputs, result: 3e-7),
    _rule("Mish", "it is as exact as 3e-7 times its operand", bound=_of_mish),
    _rule(
        "Exp",
        "NaN becomes a number, and what is above 2.4e38 becomes that",
        *_NONFINITE,
        Values.HUGE,
    ),
    _rule("Sigmoid", "NaN becomes 4e-39", Values.NAN),
    _rule("Sigmoid", "what would be subnormal becomes 4e-39", Values.SUBNORMAL),
    _rule("Atan", "infinities become NaN", Values.INFINITE),
    _rule("Clip HardSigmoid Max Min ReduceMax ReduceMin Tanh", "NaN becomes a number", Values.NAN),
    _rule("HardSigmoid LeakyRelu", "an infinity times 0 becomes 0", Values.INFINITE),
    _rule(
        "ReduceMax ReduceMin",
        "of infinities alone it gives the largest finite number",
        Values.INFINITE,
    ),
    _rule("Softmax", "NaN stays in its place of the row, where ONNX spreads it", *_NONFINITE),
    _rule("MaxPool", "which of NaN and numbers it is depends on their order", *_NONFINITE),
    _rule("Elu LeakyRelu Max Min Tanh", "-0.0 may become 0.0", Values.NEGATIVE_ZERO),
)
"""All that is known of the release; see `docs/numbers.md`."""
