# SPDX-License-Identifier: Apache-2.0
"""What it costs to make one tensor available in several states: Steiner trees over few states.

The tables are those of Dreyfus and Wagner, "The Steiner problem in graphs" (Networks 1, 1971):
cheap, because there are at most eight states. Conversions may go through shared states only; a
private state is left or entered, never passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.search.problem import PlacementProblem


@dataclass(frozen=True, eq=False)
class Conversions:
    """The cheapest conversions of every transition.

    Attributes:
        direct: f64[X, S, S] seconds from one state to another, through shared states if cheaper.
        multicast: f64[X, S, 2**S] seconds from one state to every state of a bit set.
    """

    direct: NDArray[np.float64]
    multicast: NDArray[np.float64]

    @classmethod
    def of(cls, problem: PlacementProblem) -> Conversions:
        """Tabulate the transitions of a problem."""
        states = problem.states
        shared = [state for state in range(states) if state not in problem.private]
        matrices = problem.transitions or (np.zeros((1, 1)),)
        direct = np.array(matrices, dtype=np.float64)
        for through in shared:
            np.minimum(
                direct, direct[:, :, through, None] + direct[:, through, None, :], out=direct
            )
        return cls(direct, _multicast(direct, shared))


def _multicast(direct: NDArray[np.float64], shared: list[int]) -> NDArray[np.float64]:
    count, states, _ = direct.shape
    table = np.zeros((1 << states, count, states))
    for wanted in range(1, 1 << states):
        if wanted & (wanted - 1) == 0:
            table[wanted] = direct[:, :, wanted.bit_length() - 1]
            continue
        lowest = wanted & -wanted
        # The part that has the lowest state: each split once, not twice.
        parts = (part for part in _subsets(wanted) if part & lowest and part != wanted)
        split = np.min([table[part] + table[wanted ^ part] for part in parts], axis=0)
        moved = [direct[:, :, state] + split[:, None, state] for state in shared]
        table[wanted] = np.minimum(split, np.min(moved, axis=0))
    return np.ascontiguousarray(table.transpose(1, 2, 0))


def _subsets(bits: int) -> list[int]:
    subsets, subset = [], bits
    while subset:
        subsets.append(subset)
        subset = (subset - 1) & bits
    return subsets
