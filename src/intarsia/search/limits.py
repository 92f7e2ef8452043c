# SPDX-License-Identifier: Apache-2.0
"""Limits of memory: plans that keep them, by elimination with a price for bytes.

For any price of bytes, the least sum of seconds and prices bounds the optimum (Lagrangian
duality); the prices are moved towards what is violated, and the plans met on the way are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.problem import Piece, PlacementProblem
from intarsia.search.search import Search

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEPS = 24
_FLAT = 1e-4


@dataclass(frozen=True, slots=True)
class WithinLimits:
    """What pricing bytes gave.

    Attributes:
        bound: No plan within the limits costs less, before calls are formed.
        chosen: The pieces of plans within the limits.
    """

    bound: float
    chosen: tuple[tuple[Piece, ...], ...]


def has_limits(problem: PlacementProblem) -> bool:
    """Return whether some device may keep only so much."""
    return bool(np.isfinite(problem.memory).any())


def kept_bytes(problem: PlacementProblem, chosen: Sequence[Piece]) -> list[int]:
    """Return by device how many bytes a plan keeps on it."""
    kept = [0] * (1 + max(problem.device_of, default=0))
    for piece in chosen:
        kept[problem.device_of[piece.backend]] += piece.nbytes
    return kept


def fits(problem: PlacementProblem, chosen: Sequence[Piece]) -> bool:
    """Return whether a plan keeps every limit of memory."""
    kept = kept_bytes(problem, chosen)
    return all(bytes_ <= limit for bytes_, limit in zip(kept, problem.memory, strict=False))


def search_within_limits(problem: PlacementProblem) -> WithinLimits | None:
    """Return plans within the limits and a bound on all of them; None if tables are too large.

    Bytes on devices that keep too many get a price, which doubles until the plan fits; then it is
    halved into the interval in which it begins to fit.
    """
    limits = np.full(1 + max(problem.device_of), np.inf)
    limits[: len(problem.memory)] = problem.memory[: len(limits)]
    bound, fitting = 0.0, []
    low = rate = np.zeros(len(limits))
    high: NDArray[np.float64] | None = None
    for _ in range(_STEPS):
        cheapest = _solve_charged(problem, rate)
        if cheapest is None:
            return None
        value, chosen = cheapest
        bound = max(bound, value - float(rate @ np.where(rate > 0, limits, 0.0)))
        if not chosen:
            break
        kept = np.array(kept_bytes(problem, chosen), dtype=np.float64)
        over = kept > limits
        if not over.any():
            if chosen not in fitting:
                fitting.append(chosen)
            if not rate.any():
                break
            high = rate
        elif high is None:
            usual = value / np.maximum(kept, 1.0)
            low, rate = rate, np.where(over, np.maximum(2 * rate, usual), rate)
            continue
        else:
            low = rate
        rate = (low + high) / 2
        if (high - low).max() <= _FLAT * high.max():
            break
    return WithinLimits(bound, tuple(fitting))


def _solve_charged(
    problem: PlacementProblem, rate: NDArray[np.float64]
) -> tuple[float, tuple[Piece, ...]] | None:
    """Return the least sum of seconds and bytes at a price, and the pieces of the problem itself.

    No pieces if there is no plan; None if the tables are too large. Plans with cycles do not count.
    """
    device = problem.device_of

    def cost(piece: Piece) -> float:
        return float(piece.seconds + piece.nbytes * rate[device[piece.backend]])

    labels = tuple(replace(label, seconds=cost(label)) for label in problem.labels)
    intervals = tuple(replace(each, seconds=cost(each)) for each in problem.intervals)
    original: dict[int, Piece] = dict(zip(map(id, labels), problem.labels, strict=True))
    original.update(zip(map(id, intervals), problem.intervals, strict=True))
    search = Search(replace(problem, labels=labels, intervals=intervals, memory=()))
    if not search.is_narrow:
        return None
    exact = search.optimum()
    if exact.found is None:
        return exact.bound, ()
    return exact.bound, tuple(original[id(piece)] for piece in exact.found.chosen)
