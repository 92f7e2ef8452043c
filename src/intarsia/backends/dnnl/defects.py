# SPDX-License-Identifier: Apache-2.0
"""What oneDNN is known to get wrong, as rules; what it does not compute at all is in `table`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.defects import (
    KnownDefect,
    Values,
    off_by_zero_point,
)
from intarsia.backends.onednn_defects import onednn_defects

_TRIED = "oneDNN 3.x against ONNX Runtime 1.31 without optimisations and onnx.reference 1.23"


_rule = partial(KnownDefect.of, "dnnl", _TRIED)


def _of_error_function(inputs: Sequence[Any], result: Array) -> Array:
    return np.asarray(6e-7 * np.maximum(1, np.abs(inputs[0].astype(np.float64))))


_NONFINITE = (Values.NAN, Values.INFINITE)
_BEYOND = (*_NONFINITE, Values.HUGE)

DEFECTS: tuple[KnownDefect, ...] = (
    _rule("Relu Clip HardSigmoid Max Min LeakyRelu", "NaN becomes a number", Values.NAN),
    _rule("Exp", "NaN becomes infinity", Values.NAN),
    _rule("Sigmoid", "NaN may become 0", Values.NAN),
    _rule("MaxPool GlobalMaxPool ReduceMax ReduceMin", "NaN is passed over", Values.NAN),
    _rule(
        "MaxPool GlobalMaxPool ReduceMax ReduceMin",
        "of infinities alone it gives the largest finite number",
        Values.INFINITE,
    ),
    _rule("QuantizeLinear", "NaN becomes the largest integer or the smallest", Values.NAN),
    _rule(
        "PRelu",
        "max(x, 0) + slope * min(x, 0): a slope without bounds makes NaN of positive numbers too",
        *_NONFINITE,
    ),
    _rule(
        "Softmax",
        "NaN stays in its place of the row, where ONNX spreads it",
        *_NONFINITE,
    ),
    _rule("Resize", "a neighbour of weight 0 that is not finite makes NaN", *_NONFINITE),
    _rule("Erf Gelu", "it is as exact as 6e-7, also next to 0", bound=_of_error_function),
    _rule("Erf Gelu", "infinity becomes NaN, and the largest numbers infinity", *_BEYOND),
    _rule(
        "Conv ConvTranspose Gemm MatMul",
        "which sums overflow depends on the order of summing",
        Values.HUGE,
    ),
    _rule(
        "Conv",
        "padding is left out, of which infinite weights would make NaN",
        Values.INFINITE,
    ),
    _rule(
        "Pow",
        "a power of 0.5 is a square root, also of -0.0 and -infinity",
        *_NONFINITE,
        Values.NEGATIVE_ZERO,
    ),
    _rule(
        "AveragePool BatchNormalization GlobalAveragePool LayerNormalization LRN ReduceMean "
        "ReduceSum ReduceSumSquare ReduceL1 ReduceL2 Resize",
        "what overflows on the way depends on the order of computing",
        Values.HUGE,
    ),
    _rule(
        "Add Clip Div Elu LeakyRelu Max Min Mul Neg PRelu Relu Sub",
        "-0.0 may become 0.0",
        Values.NEGATIVE_ZERO,
    ),
    _rule(
        "DequantizeLinear",
        "where an addition is fused, the zero point is subtracted after scaling",
        bound=off_by_zero_point,
    ),
    *onednn_defects("dnnl"),
)
"""All that is known of oneDNN 3; see `docs/numbers.md`."""
