# SPDX-License-Identifier: Apache-2.0
"""Tells whether two sets of outputs agree within tolerances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.arrays import Array


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far outputs are from those expected.

    Attributes:
        agrees: Whether every element is within `atol + rtol * abs(expected)`.
        max_abs_error: The largest absolute difference; infinite if shapes or counts
            differ, or a NaN is on one side only.
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
        wanted, computed = np.asarray(one), np.asarray(other)
        if wanted.shape != computed.shape:
            return Agreement(False, float("inf"), rtol, atol)
        wanted, computed = wanted.astype(np.float64), computed.astype(np.float64)
        agrees = agrees and bool(
            np.allclose(computed, wanted, rtol=rtol, atol=atol, equal_nan=True)
        )
        if wanted.size:
            largest = max(largest, _largest_difference(wanted, computed))
    return Agreement(agrees, largest, rtol, atol)


def _largest_difference(wanted: Array, computed: Array) -> float:
    is_same = (wanted == computed) | (np.isnan(wanted) & np.isnan(computed))
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        difference = np.where(is_same, 0.0, np.abs(computed - wanted))
    return float(np.nan_to_num(difference, nan=np.inf, posinf=np.inf).max())
