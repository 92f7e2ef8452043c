# SPDX-License-Identifier: Apache-2.0
"""What a plan costs, counted from the plan itself and not from the tables that found it."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.place.search.conversions import Conversions
from intarsia.place.search.problem import Call, Conversion, Piece, Price, Problem, covering


def price(
    problem: Problem,
    chosen: Sequence[Piece],
    calls: Sequence[Call] | None = None,
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
    costs = (
        Conversion(position, seconds)
        for position in range(len(problem.tensors))
        if (seconds := counter.tensor(position)) > 0
    )
    overheads = problem.overheads
    return Price(
        sum(piece.seconds for piece in chosen),
        tuple(costs),
        sum(overheads[call.backend] for call in calls or ()),
    )


class _Counter:
    """The state of one count."""

    def __init__(
        self,
        problem: Problem,
        chosen: Sequence[Piece],
        calls: Sequence[Call] | None,
        conversions: Conversions,
    ) -> None:
        self.problem = problem
        self.conversions = conversions
        self.piece_of = covering(problem.count, chosen)
        self.sources = [chosen[piece].source for piece in self.piece_of]
        self.states = [chosen[piece].state for piece in self.piece_of]
        self.call_of: list[int] | None = None
        if calls is not None and problem.private:
            self.call_of = [-1] * problem.count
            for position, call in enumerate(calls):
                for op in call.ops:
                    self.call_of[op] = position
        self._known: dict[object, float] = {}

    def tensor(self, position: int) -> float:
        """Return the cost of all conversions of one tensor."""
        problem = self.problem
        tensor = problem.tensors[position]
        producer = tensor.producer
        state, piece = problem.outside, -1
        if producer >= 0:
            state, piece = self.states[producer], self.piece_of[producer]
        wanted = 1 << problem.outside if tensor.is_output else 0
        entries: set[tuple[int, int]] = set()
        for op in tensor.consumers:
            if self.piece_of[op] == piece:
                continue
            source = self.sources[op]
            if (
                self.call_of is None
                or source not in problem.private
                or self._together(producer, op)
            ):
                wanted |= 1 << source
            else:
                entries.add((self.call_of[op], source))
        if not entries:
            if wanted in (0, 1 << state):
                return 0.0
            return float(self.conversions.multicast[tensor.transition, state, wanted])
        destinations = tuple(sorted(source for _, source in entries))
        name = (tensor.transition, state, wanted, destinations)
        if name not in self._known:
            self._known[name] = self._entered(tensor.transition, state, wanted, destinations)
        return self._known[name]

    def _together(self, producer: int, op: int) -> bool:
        return (
            self.call_of is not None
            and producer >= 0
            and self.call_of[producer] == self.call_of[op]
        )

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
        for choice in range(1 << len(shared)):
            extra = {s for place, s in enumerate(shared) if choice >> place & 1}
            at = extra | {s for s in shared if wanted >> s & 1} | {state} - private
            if at:
                bits = wanted | sum(1 << s for s in extra if not wanted >> s & 1)
                entering = sum(float(min(direct[s, d] for s in at)) for d in destinations)
                best = min(best, float(multicast[bits] + entering))
        return best
