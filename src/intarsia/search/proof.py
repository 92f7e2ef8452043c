# SPDX-License-Identifier: Apache-2.0
"""How good a plan is, in words and as a bound."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite

from intarsia.search.problem import PlacementProblem

_EQUAL = 1e-7
OPTIMAL = "optimal under the cost model"


def bound_with_calls(problem: PlacementProblem, plain: float, singles: Sequence[float]) -> float:
    """Return what no plan can undercut once its calls are paid.

    A plan of one backend costs at least the best labels of that backend and one call; any other
    costs at least the best labels of all and a call of each of two backends.

    Args:
        problem: The problem.
        plain: The optimum before calls are formed.
        singles: By backend, the optimum of that backend on its own.
    """
    overheads = problem.overheads
    if not problem.count or not overheads:
        return plain
    alone = [cost + overhead for cost, overhead in zip(singles, overheads, strict=False)]
    mixed = plain + sum(sorted(overheads)[:2])
    if len(overheads) == 1:
        return plain + overheads[0]
    return min(mixed, *alone)


def gap(value: float, bound: float) -> float:
    """Return how much of a value could at most be saved, as a fraction of the bound."""
    if value <= bound * (1 + _EQUAL):
        return 0.0
    return value / bound - 1.0 if bound > 0 else float("inf")


def proof_text(value: float, bound: float, remark: str = "") -> str:
    """Return `optimal under the cost model`, or `within 1.8%`, rounded up, with a remark."""
    left = gap(value, bound)
    if not left:
        return OPTIMAL
    if not isfinite(left):
        return f"no bound{remark}"
    return f"within {ceil(left * 1000) / 10:.1f}%{remark}"
