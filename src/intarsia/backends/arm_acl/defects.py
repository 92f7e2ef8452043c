# SPDX-License-Identifier: Apache-2.0
"""What Arm Compute Library is known to compute otherwise than ONNX says, as rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.defects import KnownDefect

_TRIED = "Arm Compute Library 20.08 of Debian 12 under qemu-aarch64 7.2 against onnx.reference 1.23"


_rule = partial(KnownDefect.of, "arm_acl", _TRIED)


def _of_winograd(inputs: Sequence[Any], result: Array) -> Array:
    return np.asarray(1e-4 + 1e-4 * np.abs(result.astype(np.float64)))


DEFECTS: tuple[KnownDefect, ...] = (
    _rule("Conv", "Winograd's transforms are as exact as 1e-4", bound=_of_winograd),
    _rule(
        "QLinearConv QLinearMatMul",
        "sums are rounded in fixed point, one step off at most",
        bound=lambda inputs, result: 1.0,
    ),
)
"""All that is known of the release; see `docs/numbers.md`."""
