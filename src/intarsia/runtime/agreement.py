# SPDX-License-Identifier: Apache-2.0
"""Tells whether two sets of outputs agree within tolerances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far outputs are from those expected.

    Attributes:
        agrees: Whether every element is within `atol + rtol * abs(expected)`.
        max_abs_error: The largest absolute difference; infinite if shapes or counts differ.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
    """

    agrees: bool
    max_abs_error: float
    rtol: float
    atol: float


def compare_outputs(
    expected: Sequence[Any], actual: Sequence[Any], *, rtol: float = 1e-3, atol: float = 1e-4
) -> Agreement:
    """Compare numeric arrays in their order."""
    if len(expected) != len(actual):
        return Agreement(False, float("inf"), rtol, atol)
    agrees, largest = True, 0.0
    for one, other in zip(expected, actual, strict=True):
        wanted, found = np.asarray(one), np.asarray(other)
        if wanted.shape != found.shape:
            return Agreement(False, float("inf"), rtol, atol)
        wanted, found = wanted.astype(np.float64), found.astype(np.float64)
        agrees = agrees and bool(np.allclose(found, wanted, rtol=rtol, atol=atol, equal_nan=True))
        if wanted.size:
            difference = np.where(wanted == found, 0.0, np.abs(found - wanted))
            largest = max(largest, float(np.nanmax(np.nan_to_num(difference, nan=0.0))))
    return Agreement(agrees, largest, rtol, atol)
