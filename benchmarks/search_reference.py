# SPDX-License-Identifier: Apache-2.0
"""Small made-up problems for the search, and the least cost of any plan of them by enumeration.

Nothing here is shared with the search but the problem itself: conversions, prices and calls are
counted again, in the slow and sure way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from random import Random

import numpy as np

from intarsia.search.problem import Interval, Label, Piece, PlacementProblem, ProblemTensor

_INFINITE = float("inf")


def random_structure(random: Random, most: int = 9) -> list[list[int]]:
    """Return any graph of two operators or more: by operator, those that it reads."""
    count = random.randint(2, most)
    return [
        sorted({random.randrange(op) for _ in range(random.randint(1, 2))})
        if op and random.random() > 0.1
        else []
        for op in range(count)
    ]


def harsh(seed: int, most: int = 6) -> PlacementProblem:
    """Return a small problem that is hard for its size.

    Everything costs a small whole number, so that many plans are alike; a call may cost half as
    much as the dearest label. Backends refuse operators, mostly work in private states of their
    own, and have groups of several exits, some of them calls of their own; there are intervals.
    """
    random = Random(seed)
    inputs = random_structure(random, most)
    count, backends = len(inputs), random.randint(2, 3)
    is_private = random.random() < 0.7
    states = backends + 1 if is_private else random.randint(1, 3)
    readers = [[op for op in range(count) if maker in inputs[op]] for maker in range(count)]
    labels: list[Label] = []
    for op in range(count):
        for backend in range(backends):
            if backend == 0 or random.random() > 0.15:
                ends = random.randrange(states), random.randrange(states)
                if is_private and random.random() < 0.9:
                    ends = backend + 1, backend + 1
                seconds, alone = float(random.randint(0, 10)), random.random() < 0.05
                labels.append(Label((op,), *ends, seconds, backend, alone=alone))
        if readers[op] and random.random() < 0.3:
            group = {op, random.choice(readers[op])}
            group |= {random.randrange(count)} if random.random() < 0.3 else set()
            backend = random.randrange(backends)
            state = backend + 1 if is_private else random.randrange(states)
            ops, seconds = tuple(sorted(group)), float(random.randint(0, 14))
            alone = random.random() < 0.2
            labels.append(Label(ops, state, state, seconds, backend, alone=alone))
    matrices = []
    for _ in range(2):
        matrix = np.full((states, states), np.inf)
        for a in range(states):
            for b in range(states):
                if not is_private or 0 in (a, b) or random.random() < 0.1:
                    matrix[a, b] = float(random.randint(0, 6))
        np.fill_diagonal(matrix, 0.0)
        matrices.append(matrix)
    tensors = [ProblemTensor(-1, tuple(op for op in range(count) if not inputs[op]), 0)]
    for maker, after in enumerate(readers):
        is_output = not after or random.random() < 0.1
        tensors.append(ProblemTensor(maker, tuple(after), random.randrange(2), is_output))
    intervals = []
    for _ in range(random.randint(0, 3)):
        first = random.randint(-1, count - 2)
        last = random.randint(first + 1, count - 1)
        seconds = float(random.randint(0, 6 * (last - first)))
        intervals.append(Interval(first, last, 0, 0, seconds, random.randrange(backends)))
    return PlacementProblem(
        count,
        tuple(labels),
        tuple(tensors),
        tuple(matrices),
        call_seconds=tuple(float(random.randint(0, 5)) for _ in range(backends)),
        intervals=tuple(intervals),
        private=frozenset(range(1, states)) if is_private else frozenset(),
    )


class Enumeration:
    """Every plan of a small problem, without those that are already too dear."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.by_first: list[list[Piece]] = [[] for _ in range(problem.count)]
        share = [_INFINITE] * problem.count
        for piece in (*problem.labels, *problem.intervals):
            self.by_first[piece.ops[0]].append(piece)
            for op in piece.ops:
                share[op] = min(share[op], piece.seconds / len(piece.ops))
        self.share = share
        self._known: dict[tuple[int, int, frozenset[int]], float] = {}

    def best(self, limit: float, *, calls: bool) -> float:
        """Return the least cost of any plan, or the limit if none is below.

        Args:
            limit: What is known to be enough.
            calls: Pay for calls; otherwise only plans that no order can run are left out.
        """
        self.least = limit
        self._extend(0, [None] * self.problem.count, 0.0, calls)
        return self.least

    def _extend(self, op: int, pieces: list[Piece | None], cost: float, calls: bool) -> None:
        while op < self.problem.count and pieces[op] is not None:
            op += 1
        rest = sum(self.share[each] for each in range(op, len(pieces)) if pieces[each] is None)
        if cost + rest >= self.least * (1 - 1e-12):
            return
        if op == self.problem.count:
            self._price([piece for piece in pieces if piece is not None], cost, calls)
            return
        for piece in self.by_first[op]:
            if all(pieces[each] is None for each in piece.ops):
                for each in piece.ops:
                    pieces[each] = piece
                self._extend(op + 1, pieces, cost + piece.seconds, calls)
                for each in piece.ops:
                    pieces[each] = None

    def _price(self, by_op: Sequence[Piece], seconds: float, calls: bool) -> None:
        plan = _Cover(self.problem, by_op)
        cost = seconds + sum(
            self._steiner(tensor.transition, state, wanted)
            for tensor, state, wanted in plan.conversions()
        )
        if cost >= self.least:
            return
        overheads = plan.overheads()
        if not calls:
            cost = cost if overheads < _INFINITE else _INFINITE
        elif not self.problem.private:
            cost += overheads
        elif cost + overheads < self.least:
            cost = min((self._in_calls(plan, run, seconds) for run in plan.runs()), default=cost)
        else:
            return
        self.least = min(self.least, cost)

    def _in_calls(self, plan: _Cover, call_of: Sequence[int], seconds: float) -> float:
        """Return what a plan costs in these calls, where private states end with their call."""
        problem = self.problem
        backends = dict(zip(call_of, (piece.backend for piece in plan.pieces), strict=True))
        total = seconds + sum(problem.overheads[backend] for backend in backends.values())
        shared = [state for state in range(problem.states) if state not in problem.private]
        for tensor in problem.tensors:
            if total >= self.least:
                return total
            maker = plan.index[tensor.producer] if tensor.producer >= 0 else -1
            state = plan.pieces[maker].state if maker >= 0 else problem.outside
            wanted = {problem.outside} if tensor.is_output else set()
            entries = set()
            for op in tensor.consumers:
                reader = plan.index[op]
                source = plan.pieces[reader].source
                if reader == maker:
                    continue
                stays = maker >= 0 and call_of[reader] == call_of[maker]
                if source in problem.private and not stays:
                    entries.add((call_of[reader], source))
                else:
                    wanted.add(source)
            total += min(
                self._steiner(tensor.transition, state, wanted | set(extra))
                + sum(
                    min(
                        (
                            self._steiner(tensor.transition, a, {source})
                            for a in {*extra, *wanted, state} - problem.private
                        ),
                        default=_INFINITE,
                    )
                    for _, source in entries
                )
                for size in range(len(shared) + 1)
                for extra in combinations(shared, size)
            )
        return total

    def _steiner(self, transition: int, start: int, wanted: set[int]) -> float:
        name = (transition, start, frozenset(wanted - {start}))
        if name not in self._known:
            matrix = self.problem.transitions[transition]
            self._known[name] = steiner(matrix, start, set(name[2]), self.problem.private)
        return self._known[name]


class _Cover:
    """Pieces that cover each operator once.

    Attributes:
        pieces: What was chosen, ordered by their first operators.
        index: By operator, which of them covers it.
    """

    def __init__(self, problem: PlacementProblem, by_op: Sequence[Piece]) -> None:
        self.problem = problem
        places: dict[int, int] = {}
        self.pieces: list[Piece] = []
        for piece in by_op:
            if id(piece) not in places:
                places[id(piece)] = len(self.pieces)
                self.pieces.append(piece)
        self.index = [places[id(piece)] for piece in by_op]
        self.alone = [isinstance(each, Interval) or each.alone for each in self.pieces]
        self.needs = [0] * len(self.pieces)
        for tensor in problem.tensors:
            for op in tensor.consumers:
                if tensor.producer >= 0 and self.index[op] != self.index[tensor.producer]:
                    self.needs[self.index[op]] |= 1 << self.index[tensor.producer]

    def conversions(self) -> list[tuple[ProblemTensor, int, set[int]]]:
        """Return by tensor the state in which it is made and those in which it is needed."""
        steps = []
        for tensor in self.problem.tensors:
            maker = self.index[tensor.producer] if tensor.producer >= 0 else -1
            state = self.pieces[maker].state if maker >= 0 else self.problem.outside
            readers = {self.index[op] for op in tensor.consumers} - {maker}
            wanted = {self.pieces[reader].source for reader in readers}
            steps.append(
                (tensor, state, wanted | ({self.problem.outside} if tensor.is_output else set()))
            )
        return steps

    def overheads(self) -> float:
        """Return the least overhead of calls that run the pieces; infinite if none can."""
        everything = (1 << len(self.pieces)) - 1

        @cache
        def least(done: int, current: int) -> float:
            if done == everything:
                return 0.0
            best = _INFINITE
            for place, piece in enumerate(self.pieces):
                if not done >> place & 1 and not self.needs[place] & ~done:
                    goes_on = piece.backend == current and not self.alone[place]
                    overhead = 0.0 if goes_on else self.problem.overheads[piece.backend]
                    follow = -1 if self.alone[place] else piece.backend
                    best = min(best, overhead + least(done | 1 << place, follow))
            return best

        return least(0, -1)

    def runs(self) -> list[tuple[int, ...]]:
        """Return by piece its call, for every way to run the pieces in calls."""
        found: set[tuple[int, ...]] = set()
        calls = [0] * len(self.pieces)
        seen: set[tuple[int, ...]] = set()

        def extend(done: int, current: int, call: int) -> None:
            name = (done, current, *calls)
            if name in seen:
                return
            seen.add(name)
            if done + 1 == 1 << len(self.pieces):
                found.add(tuple(calls))
                return
            for place, piece in enumerate(self.pieces):
                if not done >> place & 1 and not self.needs[place] & ~done:
                    mine = call + (self.alone[place] or piece.backend != current)
                    calls[place] = mine
                    extend(done | 1 << place, -1 if self.alone[place] else piece.backend, mine)
                    calls[place] = 0

        extend(0, -1, 0)
        return sorted(found)


def steiner(
    matrix: np.ndarray, start: int, wanted: set[int], private: frozenset[int] = frozenset()
) -> float:
    """Return the cheapest conversions to all wanted states: every way to add one after another.

    Args:
        matrix: f64[S, S], seconds from a state to another.
        start: The state to begin with.
        wanted: The states to reach.
        private: States that are left and entered, but never passed.
    """
    best = [_INFINITE]

    def grow(reached: frozenset[int], cost: float) -> None:
        if wanted <= reached:
            best[0] = min(best[0], cost)
            return
        for a in reached:
            if a != start and a in private:
                continue
            for b in range(len(matrix)):
                if b not in reached and cost + matrix[a, b] < best[0]:
                    grow(reached | {b}, cost + matrix[a, b])

    grow(frozenset({start}), 0.0)
    return best[0]
