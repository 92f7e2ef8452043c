# SPDX-License-Identifier: Apache-2.0
"""Tells whether what a probe computes is what the reference run computed.

A border's inputs are those of the reference run, so that only the probe's own error counts. The
absolute tolerance follows the size of the numbers: small outputs are not excused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.arrays import Array

_TOLERANCES = {"float64": 1e-3, "float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
_TOLERANCE_BELOW = 0.3
"""Of floating-point types of eight bits and less."""

_PRECISIONS = {"f16": 1e-2, "fp16": 1e-2, "float16": 1e-2, "bf16": 5e-2, "bfloat16": 5e-2}
"""Of targets that were asked to compute in a narrower type."""

_ROUNDED = frozenset(("int8", "uint8"))
"""Quantised types: halves may be rounded either way."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a comparison found.

    Attributes:
        problem: What is wrong, in words; empty if nothing is.
        error: The largest error as a part of what is tolerated; 0 for equal values, infinite if
            there is a problem.
    """

    problem: str = ""
    error: float = 0.0


def tolerance_of(dtype: str, precision: str = "") -> float:
    """Return the relative error that is tolerated in values of a type.

    Args:
        dtype: By its numpy or ml_dtypes name; a floating-point type.
        precision: What the target's attribute says, if it has one.
    """
    own = _TOLERANCES.get(dtype, _TOLERANCE_BELOW)
    return max(own, _PRECISIONS.get(precision, 0.0))


def compare_value(name: str, expected: Array, actual: Any, precision: str = "") -> Finding:
    """Compare one output with the reference run's.

    Args:
        name: For the message.
        expected: The reference run's.
        actual: The probe's.
        precision: As in `tolerance_of`.
    """
    found = np.asarray(actual)
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return Finding(
            f"{name!r} came out as {found.dtype}{list(found.shape)}, "
            f"not {expected.dtype}{list(expected.shape)}",
            float("inf"),
        )
    if "float" not in expected.dtype.name:
        return _compare_exact(name, expected, found)
    tolerance = tolerance_of(expected.dtype.name, precision)
    error = _quick_error(expected, found, tolerance)
    if error <= 1:
        return Finding(error=error)
    wanted, got = expected.astype(np.float64), found.astype(np.float64)
    fresh = np.isnan(got) & ~np.isnan(wanted)
    if fresh.any():
        return Finding(
            f"{name!r} has NaN in {np.count_nonzero(fresh)} places where the reference has none",
            float("inf"),
        )
    finite = wanted[np.isfinite(wanted)]
    scale = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    allowed = tolerance * (scale + np.abs(wanted)) + float(np.finfo(np.float32).tiny)
    with np.errstate(invalid="ignore"):  # infinity minus infinity, and NaN
        is_same = (wanted == got) | np.isnan(wanted) & np.isnan(got)
        off = np.where(is_same, 0.0, np.abs(got - wanted))
        error = float(np.max(off / np.where(np.isfinite(allowed), allowed, 1.0), initial=0.0))
    if error <= 1:
        return Finding(error=error)
    return Finding(
        f"{name!r} is off by up to {np.max(off):.3g}, where its values are about "
        f"{scale:.3g} and {tolerance:g} of that is tolerated",
        float("inf"),
    )


def _quick_error(expected: Array, found: Array, tolerance: float) -> float:
    """Return the error of ordinary float32 numbers, or NaN or more than 1 where that is no answer.

    It is what most comparisons need, at a fifth of the time.
    """
    if expected.dtype != np.float32 or not expected.size:
        return float("nan")
    with np.errstate(all="ignore"):
        flat = expected.reshape(-1)
        square = np.dot(flat, flat)
        if not np.isfinite(square):
            return float("nan")
        allowed = np.abs(flat)
        allowed += np.sqrt(square / flat.size)
        allowed *= tolerance
        off = found.reshape(-1) - flat
        np.abs(off, out=off)
        off /= allowed  # what is zero everywhere, or not finite, gives NaN
        return float(off.max())


def _compare_exact(name: str, expected: Array, found: Array) -> Finding:
    if expected.dtype == object:
        same = expected == found
    elif expected.dtype.name in _ROUNDED:
        same = np.abs(expected.astype(np.int16) - found.astype(np.int16)) <= 1
    else:
        same = expected == found
    wrong = int(same.size - np.count_nonzero(same))
    if wrong:
        return Finding(f"{name!r} differs in {wrong} of {same.size} elements", float("inf"))
    return Finding()
