# SPDX-License-Identifier: Apache-2.0
"""Limits of memory and other objectives: weighted sums by elimination, then CP-SAT.

For any weights, the least weighted sum bounds the optimum (Lagrangian duality); the weights are
moved towards what is violated or busiest, and the best plan met on the way is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.conversions import Conversions
from intarsia.search.objective import Weights, fits, kept_bytes, loads, solve_weighted
from intarsia.search.pricing import price
from intarsia.search.problem import Piece, Problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEPS = 24
_FLAT = 1e-4
_SLIGHT = 1e-6  # seconds decide only between plans of equal bytes


@dataclass(frozen=True, slots=True)
class Constrained:
    """What weighted sums found.

    Attributes:
        bound: No plan within the limits is worth less.
        chosen: The pieces of plans within the limits.
        steps: How many weighted sums were solved.
    """

    bound: float
    chosen: tuple[tuple[Piece, ...], ...]
    steps: int


def search_constrained(problem: Problem) -> Constrained | None:
    """Return plans within the limits and a bound on all of them; None if tables are too large."""
    devices = 1 + max(problem.device_of)
    latency = Weights((1.0,) * devices, 1.0, (0.0,) * devices)
    if problem.objective == "throughput":
        return _balance(problem, latency)
    if problem.objective == "latency":
        return _within_limits(problem, latency)
    pure = solve_weighted(problem, Weights((0.0,) * devices, 0.0, (1.0,) * devices))
    first = solve_weighted(problem, latency)
    if pure is None or first is None:
        return None
    slight = _SLIGHT / max(first.value, 1e-12) if isfinite(first.value) else 0.0
    found = _within_limits(problem, Weights((slight,) * devices, slight, (1.0,) * devices))
    return found and Constrained(pure.value, found.chosen, found.steps + 2)


def _within_limits(problem: Problem, weights: Weights) -> Constrained | None:
    """Charge for bytes on devices that keep too many: double until it fits, then halve."""
    limits = np.full(len(weights.nbytes), np.inf)
    limits[: len(problem.memory)] = problem.memory[: len(limits)]
    bound, found = 0.0, []
    low = np.zeros(len(limits))
    high: NDArray[np.float64] | None = None
    rate = low
    steps = 0
    while steps < _STEPS:
        steps += 1
        charged = tuple((np.array(weights.nbytes) + rate).tolist())
        best = solve_weighted(problem, Weights(weights.seconds, weights.link, charged))
        if best is None:
            return None
        bound = max(bound, best.value - float(rate @ np.where(rate > 0, limits, 0.0)))
        if not best.chosen:
            break
        kept = np.array(kept_bytes(problem, best.chosen), dtype=np.float64)
        over = kept > limits
        if not over.any():
            if best.chosen not in found:
                found.append(best.chosen)
            if not rate.any():
                break
            high = rate
        elif high is None:
            usual = best.value / np.maximum(kept, 1.0)
            low, rate = rate, np.where(over, np.maximum(2 * rate, usual), rate)
            continue
        else:
            low = rate
        rate = (low + high) / 2
        if (high - low).max() <= _FLAT * high.max():
            break
    return Constrained(bound, tuple(found), steps)


def _balance(problem: Problem, latency: Weights) -> Constrained | None:
    """Weigh each device, and the link, by how busy it was: multiplicative weights."""
    conversions = Conversions.of(problem)
    weights = np.full(len(latency.seconds) + 1, 1.0)
    weights /= weights.sum()
    bound, found = 0.0, []
    for step in range(_STEPS):
        *seconds, link = weights.tolist()
        best = solve_weighted(problem, Weights(tuple(seconds), link, latency.nbytes))
        if best is None:
            return None
        bound = max(bound, best.value)
        if not best.chosen:
            break
        if best.chosen not in found and fits(problem, best.chosen):
            found.append(best.chosen)
        busy = np.array(loads(problem, best.chosen, price(problem, best.chosen, None, conversions)))
        weights = weights * np.exp(2.0 / np.sqrt(step + 1) * busy / max(busy.max(), 1e-300))
        weights /= weights.sum()
    return Constrained(bound, tuple(found), _STEPS)
