# SPDX-License-Identifier: Apache-2.0
"""Other objectives and limits: what a plan is worth under them, and weighted problems for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.problem import Piece, Price, Problem
from intarsia.search.search import Search

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.search.search import Plan


def is_plain(problem: Problem) -> bool:
    """Return whether nothing but the seconds of a run counts."""
    return problem.objective == "latency" and not any(np.isfinite(problem.memory))


def kept_bytes(problem: Problem, chosen: Sequence[Piece]) -> list[int]:
    """Return by device how many bytes a plan keeps on it."""
    kept = [0] * (1 + max(problem.device_of, default=0))
    for piece in chosen:
        kept[problem.device_of[piece.backend]] += piece.nbytes
    return kept


def fits(problem: Problem, chosen: Sequence[Piece]) -> bool:
    """Return whether a plan keeps every limit of memory."""
    kept = kept_bytes(problem, chosen)
    return all(bytes_ <= limit for bytes_, limit in zip(kept, problem.memory, strict=False))


def loads(problem: Problem, chosen: Sequence[Piece], cost: Price) -> list[float]:
    """Return by device its seconds in one run, calls left out, and last those of conversions."""
    busy = [0.0] * (1 + max(problem.device_of, default=0))
    for piece in chosen:
        busy[problem.device_of[piece.backend]] += piece.seconds
    return [*busy, sum(conversion.seconds for conversion in cost.conversions)]


def value_of(problem: Problem, plan: Plan) -> float:
    """Return the objective of a plan: seconds, bytes, or seconds of the busiest part."""
    if problem.objective == "latency":
        return plan.price.seconds
    if problem.objective == "memory":
        return float(sum(kept_bytes(problem, plan.chosen)))
    busy = loads(problem, plan.chosen, plan.price)
    for call in plan.calls:
        busy[problem.device_of[call.backend]] += problem.overheads[call.backend]
    return max(busy)


@dataclass(frozen=True, slots=True)
class Weights:
    """How costs are added up to one sum.

    Attributes:
        seconds: By device, the weight of a second on it.
        link: The weight of a second of conversions.
        nbytes: By device, the cost of a byte kept on it.
    """

    seconds: tuple[float, ...]
    link: float
    nbytes: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Weighted:
    """The optimum of a weighted sum.

    Attributes:
        value: The least sum; infinite if there is no plan.
        chosen: The pieces of the problem itself; empty if there is no plan.
    """

    value: float
    chosen: tuple[Piece, ...]


def solve_weighted(problem: Problem, weights: Weights) -> Weighted | None:
    """Minimise a weighted sum exactly, cycles excluded; None if the tables are too large."""
    device = problem.device_of

    def cost(piece: Piece) -> float:
        place = device[piece.backend]
        return piece.seconds * weights.seconds[place] + piece.nbytes * weights.nbytes[place]

    labels = tuple(replace(label, seconds=cost(label)) for label in problem.labels)
    intervals = tuple(replace(each, seconds=cost(each)) for each in problem.intervals)
    original: dict[int, Piece] = dict(zip(map(id, labels), problem.labels, strict=True))
    original.update(zip(map(id, intervals), problem.intervals, strict=True))
    other = replace(
        problem,
        labels=labels,
        intervals=intervals,
        transitions=tuple(_scaled(matrix, weights.link) for matrix in problem.transitions),
        objective="latency",
        memory=(),
    )
    search = Search(other)
    if not search.is_narrow:
        return None
    found = search.optimum()
    if found.found is None:
        return Weighted(found.bound, ())
    return Weighted(found.bound, tuple(original[id(piece)] for piece in found.found.chosen))


def _scaled(matrix: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    return np.where(np.isinf(matrix), np.inf, np.where(np.isinf(matrix), 0.0, matrix) * weight)
