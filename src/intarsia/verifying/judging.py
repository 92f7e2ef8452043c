# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the outputs of nodes, given what the reference makes of the same inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.measure.divergence import EXACT, ValueComparison, compare_value, find_worst
from intarsia.verifying.values import Fault, Symptom

SLOW_FACTOR = 10.0
"""A region is slow if it takes so many times as long as the reference, which is Python."""

SLOW_SECONDS = 0.1
"""What takes no longer is not slow."""

LEAK_BYTES = 8 << 20
"""By so much the process grows in each run, but for the first, under a region that leaks."""

COST_RUNS = 2
"""In so many runs after the first at least: time and memory of one are often noise."""

_MOVES = 3
_UNITS = 16.0
_FACTOR = 4.0

Evaluate = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Returns what the reference makes of inputs; both by name."""


def judge_outputs(
    inputs: Mapping[str, Any],
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
    operators: Collection[str],
    precision: str,
    evaluate: Evaluate,
) -> tuple[Fault | None, ValueComparison]:
    """Return what is wrong with the first output that is, and the largest error.

    What is more than the tolerance may still be what rounding decides: a sum that cancels, a
    comparison of equals. So the reference is asked again with inputs that are moved by a few units
    in the last place, and an element may be as far off as a few times what that changes.

    Args:
        inputs: What was read, by name.
        expected: What the reference makes of that.
        actual: What was computed.
        operators: Those of the nodes.
        precision: As of `compare_value`.
        evaluate: Asks the reference again.
    """
    largest = 0.0
    moved: list[Mapping[str, Any]] | None = None
    for name, value in expected.items():
        if name not in actual:
            continue
        if not isinstance(value, np.ndarray):
            fault = _judge_other(name, value, actual[name])
            if fault is not None:
                return fault, ValueComparison(fault.text, math.inf)
            continue
        found = compare_value(name, value, actual[name], precision, operators)
        largest = max(largest, found.error if not found.problem else 0.0)
        if not found.problem:
            continue
        if moved is None:
            is_exact = EXACT.issuperset(operators)
            moved = [] if is_exact else [evaluate(_moved(inputs, seed)) for seed in range(_MOVES)]
        if not _is_rounding(value, actual[name], [np.asarray(run[name]) for run in moved]):
            worst = find_worst(value, actual[name])
            return Fault(_symptom(value, actual[name]), found.problem, name, worst), found
    return None, ValueComparison(error=largest)


def judge_cost(
    seconds: Sequence[float], reference_seconds: float, grown: Sequence[int]
) -> Fault | None:
    """Return why the calls of a region take too much, or None: it has to show every time.

    Args:
        seconds: What each took so far, but for the first.
        reference_seconds: What the reference took for the same at best.
        grown: By how many bytes the process grew under each.
    """
    if len(grown) < COST_RUNS:
        return None
    if min(grown) >= LEAK_BYTES:
        text = f"the process grew by at least {min(grown) >> 20} MiB in each of {len(grown)} runs"
        return Fault(Symptom.LEAK, text)
    if min(seconds) > max(SLOW_SECONDS, SLOW_FACTOR * reference_seconds):
        text = f"it took {min(seconds):.3g} s, where the reference takes {reference_seconds:.3g} s"
        return Fault(Symptom.SLOW, text)
    return None


def _judge_other(name: str, expected: Any, actual: Any) -> Fault | None:
    """Compare sequences and optionals, element by element."""
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        if len(expected) != len(actual):
            text = f"{name!r} has {len(actual)} tensors, not {len(expected)}"
            return Fault(Symptom.SHAPE, text, name)
        for one, other in zip(expected, actual, strict=True):
            problem = compare_value(name, np.asarray(one), other).problem
            if problem:
                return Fault(_symptom(np.asarray(one), other), problem, name)
        return None
    if (expected is None) != (actual is None):
        return Fault(Symptom.WRONG, f"{name!r} is {actual!r}, not {expected!r}", name)
    return None


def _symptom(expected: Array, actual: Any) -> Symptom:
    array = np.asarray(actual)
    if array.shape != expected.shape or array.dtype != expected.dtype:
        return Symptom.SHAPE
    if "float" not in expected.dtype.name:
        return Symptom.WRONG
    is_fresh = np.isnan(array.astype(np.float64)) & ~np.isnan(expected.astype(np.float64))
    return Symptom.NAN if is_fresh.any() else Symptom.WRONG


def _moved(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return inputs whose floats are moved at random by a few units in the last place."""
    rng = np.random.default_rng(seed)
    moved = dict(inputs)
    for name, value in inputs.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            far = rng.uniform(-_UNITS, _UNITS, value.shape) * np.finfo(value.dtype).eps
            with np.errstate(all="ignore"):
                moved[name] = np.asarray(value * (1 + far)).astype(value.dtype)
    return moved


def _is_rounding(expected: Array, actual: Any, runs: Sequence[Array]) -> bool:
    """Tell whether no element is farther off than what moved inputs change it by."""
    array = np.asarray(actual)
    if not runs or array.shape != expected.shape or array.dtype != expected.dtype:
        return False
    if expected.dtype == object:
        return False
    wanted, computed = expected.astype(np.float64), array.astype(np.float64)
    with np.errstate(all="ignore"):
        widest = np.max([np.abs(run.astype(np.float64) - wanted) for run in runs], axis=0)
        is_near = np.abs(computed - wanted) <= _FACTOR * widest
        is_same = (wanted == computed) | (np.isnan(wanted) & np.isnan(computed))
    return bool(np.all(is_near | is_same))
