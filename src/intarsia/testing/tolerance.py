# SPDX-License-Identifier: Apache-2.0
"""How far a backend's numbers may be from the reference's, by dtype, and how that is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from intarsia.arrays import Array


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An element passes if it is within `atol + rtol * abs(expected)`.

    Attributes:
        rtol: Relative part; 0 with `atol` 0 means bit-exact values.
        atol: Absolute part.
    """

    rtol: float = 0.0
    atol: float = 0.0

    def times(self, factor: float) -> Tolerance:
        """Return a wider one, for results of several operators."""
        return Tolerance(self.rtol * factor, self.atol * factor)

    def __str__(self) -> str:
        return f"rtol {self.rtol:g}, atol {self.atol:g}"


EXACT = Tolerance()

TOLERANCES: Mapping[str, Tolerance] = MappingProxyType(
    {
        "float64": Tolerance(1e-9, 1e-10),  # what is computed in float32 does not pass
        "float32": Tolerance(1e-4, 1e-5),
        "float16": Tolerance(1e-2, 2e-3),
        "bfloat16": Tolerance(5e-2, 1e-2),
    }
)
"""By dtype of the output, for one operator; every dtype that is not here is exact."""

REGION_FACTOR = 10.0
"""How much wider the tolerances are for regions of several operators."""


def difference(expected: Any, actual: Any, tolerance: Tolerance) -> str | None:
    """Return in words how two values differ beyond a tolerance, or None.

    Args:
        expected: An array, or a list of arrays for a sequence.
        actual: Likewise.
        tolerance: Of each element.
    """
    if isinstance(expected, list | tuple):
        count = len(actual) if isinstance(actual, list | tuple) else -1
        if count != len(expected):
            return f"it is not a sequence of {len(expected)} tensors"
        parts = (difference(e, a, tolerance) for e, a in zip(expected, actual, strict=True))
        return next((part for part in parts if part is not None), None)
    reference, computed = np.asarray(expected), np.asarray(actual)
    if reference.shape != computed.shape:
        return f"its shape is {list(computed.shape)}, not {list(reference.shape)}"
    if reference.dtype.kind in "OUS":
        same = reference.astype(str).tolist() == computed.astype(str).tolist()
        return None if same else f"it is {computed.tolist()}, not {reference.tolist()}"
    if reference.dtype != computed.dtype:
        return f"its dtype is {computed.dtype.name}, not {reference.dtype.name}"
    return _largest_error(reference, computed, tolerance)


def _largest_error(reference: Array, computed: Array, tolerance: Tolerance) -> str | None:
    if reference.dtype.kind in "biu":
        wrong = reference != computed  # exact, and without rounding of large integers
        error = np.abs(reference.astype(np.float64) - computed.astype(np.float64))
    else:
        kind = np.complex128 if reference.dtype.kind == "c" else np.float64
        left, right = reference.astype(kind), computed.astype(kind)
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(same, 0.0, np.abs(left - right))
            error = np.where(np.isnan(error), np.inf, error)
            bound = tolerance.atol + tolerance.rtol * np.abs(left)
            bound = np.where(np.isfinite(bound), bound, 0.0)
        wrong = error > bound
    if not wrong.any():
        return None
    place = np.unravel_index(int(np.argmax(np.where(wrong, error, -1.0))), reference.shape)
    at = [int(position) for position in place]
    return (
        f"{int(wrong.sum())} of {reference.size} elements are wrong; largest error "
        f"{float(error[place]):.3g} at {at}: {computed[place]}, expected {reference[place]}; "
        f"tolerance {tolerance}"
    )
