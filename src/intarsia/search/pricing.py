# SPDX-License-Identifier: Apache-2.0
"""What a plan costs, counted from the plan itself and not from the tables that found it.

And how good that is, in words and as a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite

import numpy as np

from intarsia.search.conversions import Conversions
from intarsia.search.problem import (
    Conversion,
    Piece,
    PlacementProblem,
    PlannedCall,
    Price,
    covering,
)

# The same costs summed in another order differ by less, and no cost is known so well.
_EQUAL = 1e-7
OPTIMAL = "optimal under the cost model"


def price(
    problem: PlacementProblem,
    chosen: Sequence[Piece],
    calls: Sequence[PlannedCall] | None = None,
    conversions: Conversions | None = None,
) -> Price:
    """Return what a plan costs.

    Args:
        problem: The problem.
        chosen: Labels and intervals that cover each operator once.
        calls: The calls that run them. None: before calls are formed, so there are no overheads,
            and a tensor stays in its private state however its readers are split.
        conversions: The conversions of this problem, if they are at hand.

    Raises:
        InternalError: An operator is covered twice or not at all.
    """
    counter = _Counter(problem, chosen, calls, conversions or Conversions.of(problem))
    overheads = problem.overheads
    return Price(
        sum(piece.seconds for piece in chosen),
        tuple(Conversion(*each) for each in counter.tensors()),
        sum(overheads[call.backend] for call in calls or ()),
    )


class _Counter:
    """The state of one count."""

    def __init__(
        self,
        problem: PlacementProblem,
        chosen: Sequence[Piece],
        calls: Sequence[PlannedCall] | None,
        conversions: Conversions,
    ) -> None:
        self.problem = problem
        self.conversions = conversions
        pieces = np.array(covering(problem.count, chosen), dtype=np.intp)
        states = [(piece.source, piece.state) for piece in chosen]
        by_op = np.array(states, dtype=np.intp).reshape(-1, 2)[pieces]
        reads = problem.reads
        self.sources = by_op[reads.ops, 0]
        self.states = np.where(
            reads.producers < 0, problem.outside, np.append(by_op[:, 1], 0)[reads.producers]
        )
        made_by = np.append(pieces, -1)[reads.producers]  # -1: an input of the problem
        self.is_outside = pieces[reads.ops] != made_by[reads.tensors]
        self.enters = np.zeros(len(reads.ops), dtype=bool)
        if calls is not None and problem.private:
            sizes = [len(call.ops) for call in calls]
            call_of = np.empty(problem.count + 1, dtype=np.intp)
            call_of[-1] = -1
            call_of[[op for call in calls for op in call.ops]] = np.repeat(
                np.arange(len(sizes)), sizes
            )
            self.call_of = call_of[reads.ops]
            apart = self.call_of != call_of[reads.producers][reads.tensors]
            self.enters = self.is_outside & apart & np.isin(self.sources, sorted(problem.private))

    def tensors(self) -> list[tuple[int, float]]:
        """Return the tensors that cost something, ascending, each with all its conversions."""
        reads, multicast = self.problem.reads, self.conversions.multicast
        is_plain = self.is_outside & ~self.enters
        wanted = np.where(reads.is_output, 1 << self.problem.outside, 0)
        np.bitwise_or.at(wanted, reads.tensors[is_plain], 1 << self.sources[is_plain])
        seconds = np.where(
            wanted == 1 << self.states, 0.0, multicast[reads.transitions, self.states, wanted]
        )
        entered: dict[int, set[tuple[int, int]]] = {}
        for place in np.flatnonzero(self.enters).tolist():
            entry = int(self.call_of[place]), int(self.sources[place])
            entered.setdefault(int(reads.tensors[place]), set()).add(entry)
        entry_seconds: dict[object, float] = {}
        for tensor, entries in entered.items():
            destinations = tuple(sorted(source for _, source in entries))
            start = int(reads.transitions[tensor]), int(self.states[tensor])
            name = (*start, int(wanted[tensor]), destinations)
            if name not in entry_seconds:
                entry_seconds[name] = self._entered(*name)
            seconds[tensor] = entry_seconds[name]
        costly = np.flatnonzero(seconds > 0)
        return list(zip(costly.tolist(), seconds[costly].tolist(), strict=True))

    def _entered(
        self, transition: int, state: int, wanted: int, destinations: Sequence[int]
    ) -> float:
        """Return the cost where some calls take the tensor into private states of their own.

        Each such call starts from a shared state, so the best set of shared states is looked for.
        """
        multicast = self.conversions.multicast[transition, state]
        direct = self.conversions.direct[transition]
        private = self.problem.private
        shared = [s for s in range(self.problem.states) if s not in private]
        best = float("inf")
        # All sets: with at most 8 states there are at most 256, and each is asked for once.
        for choice in range(1 << len(shared)):
            extra = {s for place, s in enumerate(shared) if choice >> place & 1}
            at = extra | {s for s in shared if wanted >> s & 1} | {state} - private
            if at:
                bits = wanted | sum(1 << s for s in extra if not wanted >> s & 1)
                entering = sum(float(min(direct[s, d] for s in at)) for d in destinations)
                best = min(best, float(multicast[bits] + entering))
        return best


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
