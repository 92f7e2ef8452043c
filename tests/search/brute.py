# SPDX-License-Identifier: Apache-2.0
"""Random problems, and the slow and sure way to solve them."""

import functools
import itertools

import numpy as np
from hypothesis import strategies as st

from intarsia.search.problem import Interval, Label, PlacementProblem, ProblemTensor

SETTINGS = {"deadline": None, "derandomize": True, "database": None}


def steiner(problem, transition, start, wanted):
    """The cheapest set of single conversions that reaches every wanted state, by enumeration."""
    matrix = problem.transitions[transition]
    states = range(len(matrix))
    edges = [
        (a, b)
        for a, b in itertools.permutations(states, 2)
        if (a == start or a not in problem.private) and np.isfinite(matrix[a, b])
    ]
    best = np.inf
    for bits in range(1 << len(edges)):
        taken = [edge for place, edge in enumerate(edges) if bits >> place & 1]
        cost = sum(matrix[edge] for edge in taken)
        if cost >= best:
            continue
        reached = {start}
        while fresh := {b for a, b in taken if a in reached and b not in reached}:
            reached |= fresh
        if wanted <= reached:
            best = cost
    return best


class Brute:
    """Prices and enumerates plans of one small problem."""

    def __init__(self, problem):
        self.problem = problem
        self.known = {}

    def multicast(self, transition, start, wanted):
        name = (transition, start, frozenset(wanted))
        if name not in self.known:
            self.known[name] = steiner(self.problem, transition, start, set(wanted))
        return self.known[name]

    def price(self, chosen):
        """Labels and conversions, before calls are formed."""
        problem = self.problem
        piece_of = {op: piece for piece in chosen for op in piece.ops}
        total = sum(piece.seconds for piece in chosen)
        for tensor in problem.tensors:
            maker = piece_of.get(tensor.producer)
            wanted = {piece_of[op].source for op in tensor.consumers if piece_of[op] is not maker}
            if tensor.is_output:
                wanted.add(problem.outside)
            state = problem.outside if maker is None else maker.state
            total += self.multicast(tensor.transition, state, wanted - {state})
        return total

    def covers(self):
        """Every exact cover."""
        problem = self.problem
        by_first = [[] for _ in range(problem.count)]
        for piece in (*problem.labels, *problem.intervals):
            by_first[piece.ops[0]].append(piece)

        def extend(op, taken, chosen):
            while op < problem.count and taken >> op & 1:
                op += 1
            if op == problem.count:
                yield tuple(chosen)
                return
            for piece in by_first[op]:
                bits = sum(1 << each for each in piece.ops)
                if not taken & bits:
                    yield from extend(op + 1, taken | bits, [*chosen, piece])

        yield from extend(0, 0, [])

    def is_acyclic(self, chosen):
        piece_of = {op: index for index, piece in enumerate(chosen) for op in piece.ops}
        needs = {index: set() for index in range(len(chosen))}
        for tensor in self.problem.tensors:
            for op in tensor.consumers:
                if tensor.producer >= 0 and piece_of[op] != piece_of[tensor.producer]:
                    needs[piece_of[op]].add(piece_of[tensor.producer])
        while free := [index for index, before in needs.items() if not before]:
            for index in free:
                del needs[index]
            for before in needs.values():
                before.difference_update(free)
        return not needs

    def calls_cost(self, chosen):
        """The least overhead of calls that run these pieces in some order, private states aside."""
        problem = self.problem
        piece_of = {op: index for index, piece in enumerate(chosen) for op in piece.ops}
        needs = [0] * len(chosen)
        for tensor in problem.tensors:
            for op in tensor.consumers:
                if tensor.producer >= 0 and piece_of[op] != piece_of[tensor.producer]:
                    needs[piece_of[op]] |= 1 << piece_of[tensor.producer]
        everything = (1 << len(chosen)) - 1

        @functools.cache
        def least(done, current):
            if done == everything:
                return 0.0
            best = np.inf
            for index, piece in enumerate(chosen):
                if done >> index & 1 or needs[index] & ~done:
                    continue
                alone = isinstance(piece, Interval) or piece.alone
                goes_on = not alone and piece.backend == current
                overhead = 0.0 if goes_on else problem.overheads[piece.backend]
                follow = least(done | 1 << index, -1 if alone else piece.backend)
                best = min(best, overhead + follow)
            return best

        return least(0, -1)

    def schedules(self, chosen):
        """Every way to run these pieces in calls, as the call of each piece."""
        problem = self.problem
        piece_of = {op: index for index, piece in enumerate(chosen) for op in piece.ops}
        needs = [0] * len(chosen)
        for tensor in problem.tensors:
            for op in tensor.consumers:
                if tensor.producer >= 0 and piece_of[op] != piece_of[tensor.producer]:
                    needs[piece_of[op]] |= 1 << piece_of[tensor.producer]
        found = set()

        def extend(done, current, calls):
            if len(calls) == len(chosen):
                found.add(tuple(sorted(calls)))
                return
            for index, piece in enumerate(chosen):
                if not done >> index & 1 and not needs[index] & ~done:
                    alone = isinstance(piece, Interval) or piece.alone
                    call = calls[-1][1] if calls else -1
                    call += alone or piece.backend != current
                    follow = -1 if alone else piece.backend
                    extend(done | 1 << index, follow, [*calls, (index, call)])

        extend(0, -1, [])
        return [[call for _, call in calls] for calls in found]

    def price_in_calls(self, chosen, call_of):
        """Labels, overheads, and conversions, with private states kept inside calls."""
        problem = self.problem
        index_of = {op: index for index, piece in enumerate(chosen) for op in piece.ops}
        backends = dict(zip(call_of, (piece.backend for piece in chosen), strict=True))
        total = sum(piece.seconds for piece in chosen)
        total += sum(problem.overheads[backend] for backend in backends.values())
        shared = [state for state in range(problem.states) if state not in problem.private]
        for tensor in problem.tensors:
            maker = index_of.get(tensor.producer)
            state = problem.outside if maker is None else chosen[maker].state
            wanted = {problem.outside} if tensor.is_output else set()
            entries = set()
            for op in tensor.consumers:
                reader = index_of[op]
                source = chosen[reader].source
                if reader == maker:
                    continue
                if source in problem.private and (
                    maker is None or call_of[reader] != call_of[maker]
                ):
                    entries.add((call_of[reader], source))
                else:
                    wanted.add(source)
            best = np.inf
            for size in range(len(shared) + 1):
                for extra in itertools.combinations(shared, size):
                    at = {*extra, *({state} - problem.private)}
                    if entries and not at:
                        continue
                    cost = self.multicast(tensor.transition, state, (wanted | {*extra}) - {state})
                    for _, source in entries:
                        cost += min(self.multicast(tensor.transition, a, {source}) for a in at)
                    best = min(best, cost)
            total += best
        return total

    def best_with_calls(self):
        """The least price of any plan with its calls."""
        best = np.inf
        overhead = min(self.problem.overheads, default=0.0)
        for least, chosen in sorted(
            ((self.price(chosen), chosen) for chosen in self.covers()), key=lambda item: item[0]
        ):
            if least + overhead >= best:
                break
            for call_of in self.schedules(chosen):
                best = min(best, self.price_in_calls(chosen, call_of))
        return best

    def best(self):
        """The least price of an executable plan before calls are formed; infinite if none."""
        best = np.inf
        for chosen in self.covers():
            cost = self.price(chosen)
            if cost < best and self.is_acyclic(chosen):
                best = cost
        return best


@st.composite
def problems(draw, *, most=7, states=3, intervals=False, private=False, multi_exit=True):
    """Any graph, capabilities, costs, pins (labels that are not there), patterns."""
    count = draw(st.integers(1, most))
    number = st.integers(0, 12).map(float)
    backends = draw(st.integers(1, 3))
    labels = []
    for op in range(count):
        for backend in range(backends):
            if backend == 0 or draw(st.integers(0, 3)):
                source = draw(st.integers(0, states - 1))
                state = draw(st.integers(0, states - 1))
                labels.append(Label((op,), source, state, draw(number), backend))
    makers = [-1 if draw(st.booleans()) else op for op in range(count)]
    tensors = []
    for maker in sorted({*range(count), *makers, -1}):
        later = range(maker + 1, count)
        for _ in range(draw(st.integers(1, 2)) if maker >= 0 else 2):
            readers = draw(st.lists(st.sampled_from(later), max_size=3)) if later else []
            readers = tuple(dict.fromkeys(readers))
            tensors.append(
                ProblemTensor(maker, readers, draw(st.integers(0, 1)), draw(st.booleans()))
            )
    for _ in range(draw(st.integers(0, 4))):
        ops = draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=4))
        if multi_exit or len(ops) == 1:
            labels.append(
                Label(
                    tuple(sorted(ops)),
                    draw(st.integers(0, states - 1)),
                    draw(st.integers(0, states - 1)),
                    draw(number),
                    draw(st.integers(0, backends - 1)),
                    alone=draw(st.booleans()),
                )
            )
    matrices = []
    for _ in range(2):
        cells = st.integers(0, 15).map(lambda drawn: np.inf if drawn > 13 else float(drawn))
        matrix = np.array([[draw(cells) for _ in range(states)] for _ in range(states)])
        np.fill_diagonal(matrix, 0.0)
        matrices.append(matrix)
    spans = []
    if intervals:
        for _ in range(draw(st.integers(0, 4))):
            first = draw(st.integers(-1, count - 2))
            last = draw(st.integers(first + 1, count - 1))
            spans.append(
                Interval(
                    first,
                    last,
                    draw(st.integers(0, states - 1)),
                    draw(st.integers(0, states - 1)),
                    draw(number),
                    draw(st.integers(0, backends - 1)),
                )
            )
    return PlacementProblem(
        count,
        tuple(labels),
        tuple(tensors),
        tuple(matrices),
        call_seconds=tuple(draw(number) for _ in range(backends)),
        intervals=tuple(spans),
        private=frozenset({states - 1}) if private and draw(st.booleans()) else frozenset(),
    )


def chain_problem(costs, *, transition=1.0, states=None, call_seconds=(), **more):
    """A chain of operators; costs[op][backend] is None where a backend cannot run it."""
    return graph_problem(
        [[op - 1] if op else [] for op in range(len(costs))],
        costs,
        transition=transition,
        states=states,
        call_seconds=call_seconds,
        **more,
    )


def graph_problem(inputs, costs, *, transition=1.0, states=None, call_seconds=(), **more):
    """Operators with one result each; backend b works in state b unless `states` says otherwise.

    Operators without inputs read the problem's input; results that nobody reads are outputs.
    """
    count = len(inputs)
    backends = max(len(row) for row in costs)
    states = states or list(range(backends))
    readers = {maker: [] for maker in range(count)}
    for op, makers in enumerate(inputs):
        for maker in makers:
            readers[maker].append(op)
    sources = tuple(op for op in range(count) if not inputs[op])
    labels = [
        Label((op,), states[backend], states[backend], cost, backend)
        for op, row in enumerate(costs)
        for backend, cost in enumerate(row)
        if cost is not None
    ]
    size = max(states) + 1
    matrix = np.full((size, size), float(transition))
    np.fill_diagonal(matrix, 0.0)
    tensors = [ProblemTensor(op, tuple(after), 0, not after) for op, after in readers.items()]
    extra = more.pop("labels", ())
    return PlacementProblem(
        count,
        (*labels, *extra),
        (ProblemTensor(-1, sources, 0), *tensors),
        (matrix,),
        call_seconds=tuple(call_seconds),
        **more,
    )
