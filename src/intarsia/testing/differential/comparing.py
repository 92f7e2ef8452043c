# SPDX-License-Identifier: Apache-2.0
"""Whether a result agrees with the judges: bit by bit, by units, or by what rounding explains.

An element agrees if it equals that of either judge: the reference evaluator, or ONNX Runtime
without optimisations. Floats are equal within two units in the last place, or four times what
rounding moves the element by (`rounding`). NaN is equal to NaN, an infinity to the same infinity.
The sign of a zero counts where every node only moves elements (`SIGN_KEEPING`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from intarsia.arrays import Array
from intarsia.backends.defects import is_float
from intarsia.testing.differential.rounding import epsilon

UNITS = 2.0
FACTOR = 4.0

SIGN_KEEPING = frozenset(
    (
        *("Abs", "Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity"),
        *("GatherElements", "GatherND", "Neg", "Reshape", "ReverseSequence", "Slice", "Split"),
        *("SpaceToDepth", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    )
)
"""Operators after which the sign of a zero is compared too."""


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """How one output differs.

    Attributes:
        output: Its name.
        effect: `nan`, `infinity`, `value`, `sign`, `shape` or `type`.
        count: How many elements.
        size: Of how many.
        text: The worst of them in words.
    """

    output: str
    effect: str
    count: int
    size: int
    text: str

    def __str__(self) -> str:
        return f"{self.output}: {self.effect}: {self.count} of {self.size}: {self.text}"


def compare(
    computed: Mapping[str, Any],
    judges: Sequence[Mapping[str, Any]],
    moved: Callable[[], Sequence[Mapping[str, Any]]],
    *,
    is_signed: bool = False,
) -> list[OutputDifference]:
    """Return the outputs that agree with no judge.

    Args:
        computed: By name, what was computed.
        judges: By name, what each judge computed; the first is the reference evaluator.
        moved: Returns the reference's runs with moved floats; called only if it is needed.
        is_signed: Whether the sign of a zero counts.
    """
    differences = []
    for name, value in computed.items():
        answers = [judge[name] for judge in judges if name in judge]
        difference = _output(name, value, answers, partial(_runs, moved, name), is_signed)
        if difference is not None:
            differences.append(difference)
    return differences


def _output(
    name: str,
    computed: Any,
    answers: Sequence[Any],
    moved: Callable[[], Sequence[Any]],
    is_signed: bool,
) -> OutputDifference | None:
    if isinstance(answers[0], list) or isinstance(computed, list | tuple):
        return _sequence(name, computed, answers, moved, is_signed)
    array = np.asarray(computed)
    wanted = [np.asarray(answer) for answer in answers]
    if array.dtype.kind in "OUS":
        same = any(array.astype(str).tolist() == w.astype(str).tolist() for w in wanted)
        return None if same else OutputDifference(name, "value", 1, 1, f"{array} for {wanted[0]}")
    shaped = [w for w in wanted if w.shape == array.shape]
    if not shaped:
        if any(np.shape(run) != wanted[0].shape for run in moved()):
            return None  # rounding decides how many there are
        text = f"{array.shape} for {wanted[0].shape}"
        return OutputDifference(name, "shape", 1, 1, text)
    if all(w.dtype != array.dtype for w in shaped):
        return OutputDifference(name, "type", 1, 1, f"{array.dtype} for {shaped[0].dtype}")
    agrees = np.zeros(array.shape, bool)
    for answer in shaped:
        agrees |= _equals(array, answer, is_signed)
    if agrees.all():
        return None
    runs = [np.asarray(run) for run in moved()]
    rounded = _is_rounding(array, shaped, [run for run in runs if run.shape == array.shape])
    agrees |= rounded & (array != shaped[0]) if is_signed else rounded
    return None if agrees.all() else _describe(name, array, shaped[0], ~agrees)


def _sequence(
    name: str,
    computed: Any,
    answers: Sequence[Any],
    moved: Callable[[], Sequence[Any]],
    is_signed: bool,
) -> OutputDifference | None:
    lists = [answer for answer in answers if isinstance(answer, list)]
    if not isinstance(computed, list | tuple) or all(
        len(sequence) != len(computed) for sequence in lists
    ):
        return OutputDifference(name, "shape", 1, 1, f"no sequence of {len(answers[0])} tensors")
    for i, part in enumerate(computed):
        parts = [sequence[i] for sequence in lists if len(sequence) > i]
        difference = _output(name, part, parts, partial(_parts, moved, i), is_signed)
        if difference is not None:
            return difference
    return None


def _runs(moved: Callable[[], Sequence[Mapping[str, Any]]], name: str) -> list[Any]:
    return [run[name] for run in moved()]


def _parts(moved: Callable[[], Sequence[Any]], position: int) -> list[Any]:
    return [run[position] for run in moved()]


def _equals(computed: Array, answer: Array, is_signed: bool) -> Array:
    if not is_float(computed):
        return np.asarray(computed == answer)
    left, right = computed.astype(np.float64), answer.astype(np.float64)
    with np.errstate(all="ignore"):
        unit = epsilon(computed.dtype) * np.maximum(np.abs(left), np.abs(right))
        limits = ml_dtypes.finfo(computed.dtype)  # type: ignore[no-untyped-call]
        least = float(limits.smallest_subnormal)
        near = np.abs(left - right) <= UNITS * np.maximum(unit, least)
    near &= np.isfinite(left) & np.isfinite(right)
    same = (left == right) | (np.isnan(left) & np.isnan(right)) | near
    if is_signed:
        same &= ~((left == 0) & (right == 0) & (np.signbit(left) != np.signbit(right)))
    return np.asarray(same)


def _kinds(array: Array) -> Array:
    """Return 0 for finite numbers, 1 for NaN, 2 and 3 for the infinities."""
    array = array.astype(np.float64)
    return np.where(
        np.isnan(array), 1, np.where(np.isposinf(array), 2, np.where(np.isneginf(array), 3, 0))
    )


def _is_rounding(computed: Array, answers: Sequence[Array], runs: Sequence[Array]) -> Array:
    """Return where rounding explains what differs from every judge."""
    if not runs:  # only the other judge has this shape, or every run met a node that did not fit
        return np.zeros(computed.shape, bool)
    centre = answers[0]
    if computed.dtype in (np.int8, np.uint8):  # quanta, which are near to each other; no indices
        steps = [np.abs(run.astype(int) - centre) for run in runs]
        far = [np.abs(computed.astype(int) - answer) for answer in answers]
        return np.asarray(np.min(far, axis=0) <= FACTOR * np.max(steps, axis=0))
    if not is_float(computed):
        return np.asarray(np.any([run != centre for run in runs], axis=0))
    wide = computed.astype(np.float64)
    kinds = _kinds(centre)
    turns = np.any([_kinds(run) != kinds for run in runs], axis=0)
    with np.errstate(all="ignore"):
        moves = [np.abs(run.astype(np.float64) - centre) for run in runs]
        widest = np.max([np.where(np.isfinite(move), move, 0) for move in moves], axis=0)
        unit = UNITS * epsilon(computed.dtype) * np.abs(centre.astype(np.float64))
        bound = np.where(np.isfinite(unit), FACTOR * widest + unit, 0)
        near = [np.abs(wide - answer.astype(np.float64)) <= bound for answer in answers]
    finite = np.isfinite(wide)
    return np.asarray(turns | (finite & np.any(near, axis=0)))


def _describe(name: str, computed: Array, answer: Array, wrong: Array) -> OutputDifference:
    if not is_float(computed):
        effect = "value"
        place = np.argwhere(wrong)[0]
    else:
        one, other = computed.astype(np.float64), answer.astype(np.float64)
        with np.errstate(all="ignore"):
            error = np.abs(one - other)
        error = np.where(np.isnan(error), np.inf, error)
        place = np.unravel_index(int(np.argmax(np.where(wrong, error, -1))), wrong.shape)
        a, b = one[tuple(place)], other[tuple(place)]
        if np.isnan(a) != np.isnan(b):
            effect = "nan"
        elif np.isinf(a) or np.isinf(b):
            effect = "infinity"
        else:
            effect = "sign" if a == b else "value"
    at = tuple(int(i) for i in place)
    text = f"{computed[at]} for {answer[at]} at {list(at)}"
    return OutputDifference(name, effect, int(wrong.sum()), int(wrong.size), text)
