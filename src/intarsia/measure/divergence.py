# SPDX-License-Identifier: Apache-2.0
"""How far one output is from what it should be: its worst element, and whether that is tolerated.

The tolerance follows the type and the operators: what only moves elements is exact, what sums is
not. It is relative to the size of the numbers, so that small outputs are not excused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.arrays import Array

_TOLERANCES = {"float64": 1e-3, "float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
_TOLERANCE_BELOW = 0.3
"""Tolerance of floating-point types of eight bits or fewer."""

_PRECISIONS = {"f16": 1e-2, "fp16": 1e-2, "float16": 1e-2, "bf16": 5e-2, "bfloat16": 5e-2}
_PRECISIONS["tf32"] = _PRECISIONS["f16"]  # its mantissa has as many bits
"""Tolerances of targets that compute in a narrower type."""

_MATH = {
    ("math_mode", "tf32"): "tf32",
    ("math_type", "tensor_op"): "tf32",
    ("math_type", "tensor_op_allow_conversion"): "f16",
}
"""What attributes of NVIDIA's libraries ask for, as `precision` names it."""

_ROUNDED = frozenset(("int8", "uint8"))
"""Quantised types: halves may be rounded either way."""


EXACT = frozenset(
    (
        *("Compress", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather"),
        *("GatherElements", "GatherND", "Identity", "MaxPool", "GlobalMaxPool", "Neg", "Abs"),
        *("Pad", "Relu", "Reshape", "ReverseSequence", "Slice", "SpaceToDepth", "Split", "Squeeze"),
        *("Tile", "Transpose", "Unsqueeze", "Where", "Max", "Min", "ReduceMax", "ReduceMin"),
    )
)
"""Operators whose results are some of their operands, up to the sign: nothing is rounded."""

POINTWISE = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Exp", "Log", "Tanh", "Sigmoid", "Erf"),
        *("Elu", "Selu", "Celu", "LeakyRelu", "PRelu", "HardSigmoid", "HardSwish", "Softplus"),
        *(
            "Softsign",
            "Gelu",
            "Mish",
            "Sin",
            "Cos",
            "Pow",
            "Clip",
            "Cast",
            "Floor",
            "Ceil",
            "Round",
        ),
    )
)
"""Operators of one element at a time: few roundings."""

_POINTWISE_PART = 0.1
"""Of a type's tolerance, where no operator sums."""


@dataclass(frozen=True, slots=True)
class WorstElement:
    """The element of an output that is farthest from what it should be.

    Attributes:
        index: Its place.
        expected: What it should be, as text: so NaN and text can be told.
        actual: What it is.
        relative: The difference as a part of the expected number; infinite where one is not finite.
        ulps: The same in units in the last place of the expected number; infinite likewise.
    """

    index: tuple[int, ...]
    expected: str
    actual: str
    relative: float
    ulps: float

    def __str__(self) -> str:
        place = ",".join(map(str, self.index))
        far = "" if np.isinf(self.ulps) else f" ({self.relative:.3g} of it, {self.ulps:.3g} ULP)"
        return f"[{place}] is {self.actual}, not {self.expected}{far}"


@dataclass(frozen=True, slots=True)
class ValueComparison:
    """What a comparison found.

    Attributes:
        problem: What is wrong, in words; empty if nothing is.
        error: The largest error as a part of what is tolerated; 0 for equal values, infinite if
            there is a problem.
    """

    problem: str = ""
    error: float = 0.0


def asked_precision(attrs: Mapping[str, Any]) -> str:
    """Return the precision that a target's attributes ask for; empty if none.

    Args:
        attrs: Those of a target of any kind.
    """
    said = str(attrs.get("precision") or "")
    return said or next((word for pair, word in _MATH.items() if pair in attrs.items()), "")


def tolerance_of(dtype: str, precision: str = "", operators: Collection[str] = ()) -> float:
    """Return the relative error that is tolerated in values of a type.

    Args:
        dtype: By its numpy or ml_dtypes name; a floating-point type.
        precision: What the target's attribute says, if it has one.
        operators: Those that made it; without any, all that there are may have.
    """
    tolerance = _TOLERANCES.get(dtype, _TOLERANCE_BELOW)
    if precision not in _PRECISIONS and operators:
        if EXACT.issuperset(operators):
            return 0.0
        if (EXACT | POINTWISE).issuperset(operators):
            tolerance *= _POINTWISE_PART
    return max(tolerance, _PRECISIONS.get(precision, 0.0))


def compare_value(
    name: str,
    expected: Array,
    actual: Any,
    precision: str = "",
    operators: Collection[str] = (),
) -> ValueComparison:
    """Compare one output with what it should be.

    Args:
        name: For the message.
        expected: What it should be.
        actual: What was computed.
        precision: As in `tolerance_of`, and so are the operators.
        operators: Those that made it.
    """
    array = np.asarray(actual)
    if array.dtype != expected.dtype or array.shape != expected.shape:
        return ValueComparison(
            f"{name!r} came out as {array.dtype}{list(array.shape)}, "
            f"not {expected.dtype}{list(expected.shape)}",
            float("inf"),
        )
    if "float" not in expected.dtype.name:
        return _compare_exact(name, expected, array)
    tolerance = tolerance_of(expected.dtype.name, precision, operators)
    error = _quick_error(expected, array, tolerance)
    if error <= 1:
        return ValueComparison(error=error)
    wanted, computed = expected.astype(np.float64), array.astype(np.float64)
    fresh = np.isnan(computed) & ~np.isnan(wanted)
    if fresh.any():
        return ValueComparison(
            f"{name!r} has NaN in {np.count_nonzero(fresh)} places where the reference has none",
            float("inf"),
        )
    finite = wanted[np.isfinite(wanted)]
    scale = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    allowed = tolerance * (scale + np.abs(wanted)) + float(np.finfo(np.float32).tiny)
    with np.errstate(invalid="ignore"):  # infinity minus infinity, and NaN
        is_same = (wanted == computed) | np.isnan(wanted) & np.isnan(computed)
        off = np.where(is_same, 0.0, np.abs(computed - wanted))
        error = float(np.max(off / np.where(np.isfinite(allowed), allowed, 1.0), initial=0.0))
    if error <= 1:
        return ValueComparison(error=error)
    return ValueComparison(
        f"{name!r} is off by up to {np.max(off):.3g}, where its values are about "
        f"{scale:.3g} and {tolerance:g} of that is tolerated",
        float("inf"),
    )


def _quick_error(expected: Array, computed: Array, tolerance: float) -> float:
    """Return the error of ordinary float32 numbers; NaN or more than 1 where that tells nothing.

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
        off = computed.reshape(-1) - flat
        np.abs(off, out=off)
        off /= allowed  # what is zero everywhere, or not finite, gives NaN
        return float(off.max())


def _compare_exact(name: str, expected: Array, computed: Array) -> ValueComparison:
    if expected.dtype == object:
        same = expected == computed
    elif expected.dtype.name in _ROUNDED:
        same = np.abs(expected.astype(np.int16) - computed.astype(np.int16)) <= 1
    else:
        same = expected == computed
    wrong = int(same.size - np.count_nonzero(same))
    if wrong:
        return ValueComparison(f"{name!r} differs in {wrong} of {same.size} elements", float("inf"))
    return ValueComparison()


def find_worst(expected: Array, actual: Any) -> WorstElement | None:
    """Return the element that is farthest from what it should be; None if all are equal.

    Args:
        expected: What it should be.
        actual: What was computed; of the same shape, else there is no such element.
    """
    array = np.asarray(actual)
    if array.shape != expected.shape or not expected.size:
        return None
    if expected.dtype == object or expected.dtype.kind in "bUS":
        wrong = np.asarray(expected != array)
        if not wrong.any():
            return None
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        return WorstElement(index, str(expected[index]), str(array[index]), np.inf, np.inf)
    wanted, computed = expected.astype(np.float64), array.astype(np.float64)
    with np.errstate(all="ignore"):
        is_same = (wanted == computed) | (np.isnan(wanted) & np.isnan(computed))
        off = np.where(is_same, 0.0, np.abs(computed - wanted))
    off = np.where(np.isnan(off), np.inf, off)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(off)), off.shape))
    far = float(off[index])
    if not far:
        return None
    size = abs(float(wanted[index]))
    relative = far / size if size and np.isfinite(far) else np.inf
    return WorstElement(
        index, str(expected[index]), str(array[index]), relative, far / _unit(expected, size)
    )


def _unit(expected: Array, size: float) -> float:
    """Return the unit in the last place of a number of a type; 1 of integers."""
    if "float" not in expected.dtype.name:
        return 1.0
    limits = find_limits(expected.dtype)
    least = float(limits.smallest_normal)
    return float(float(limits.eps) * 2.0 ** np.floor(np.log2(max(size, least))))


def find_limits(dtype: np.dtype[Any]) -> Any:
    """Return what `numpy.finfo` says of a floating-point type, also of one that numpy lacks."""
    try:
        return np.finfo(dtype)
    except ValueError:
        import ml_dtypes

        finfo: Any = ml_dtypes.finfo
        return finfo(dtype)
