# SPDX-License-Identifier: Apache-2.0
"""What XNNPACK is known to compute otherwise than ONNX says, as rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from intarsia.arrays import Array
from intarsia.backends.defects import Flushed, KnownDefect, Values, finite_magnitudes

_TRIED = (
    "XNNPACK of LiteRT 2.1 against ONNX Runtime 1.31 without optimisations and onnx.reference 1.23"
)


_rule = partial(KnownDefect.of, "xnnpack", _TRIED)


def _of_exponential(inputs: Sequence[Any], result: Array) -> Array:
    return 5e-6 * finite_magnitudes(result)


_NONFINITE = (Values.NAN, Values.INFINITE)

DEFECTS: tuple[KnownDefect, ...] = (
    _rule("", "subnormal numbers are taken for zeros", Values.SUBNORMAL, flushes=Flushed.ALL),
    _rule("Exp", "of large numbers it is as exact as 5e-6", bound=_of_exponential),
    _rule("Exp", "NaN becomes 0", Values.NAN),
    _rule("Sigmoid", "of huge numbers it is NaN", Values.HUGE),
    _rule("Max Min", "NaN becomes a number", Values.NAN),
    _rule("Sqrt", "of the largest numbers it is too large by half", Values.HUGE),
    _rule(
        "AveragePool GlobalAveragePool GlobalMaxPool MaxPool",
        "a window with NaN becomes an infinity or another of its numbers",
        *_NONFINITE,
    ),
    _rule("Clip Max Min Neg Relu", "of zeros it may give the other one", Values.NEGATIVE_ZERO),
)
"""All that is known of the release; see `docs/numbers.md`."""
