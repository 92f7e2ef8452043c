# SPDX-License-Identifier: Apache-2.0
"""The same optimum by other methods: CP-SAT, minimum cuts, intervals as labels."""

import math
from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.search.brute import SETTINGS, Brute, graph_problem, problems

from intarsia.search.calls import Cycle, form_calls
from intarsia.search.conversions import Conversions
from intarsia.search.folding import fold
from intarsia.search.pricing import price
from intarsia.search.problem import Label
from intarsia.search.search import Search
from intarsia.search.solve import solve


@settings(max_examples=25, **SETTINGS)
@given(problems(most=5, intervals=True))
def test_cp_sat_excludes_cycles_of_regions_with_several_exits(problem):
    pytest.importorskip("ortools")
    from intarsia.search.cpsat import solve_by_cpsat

    proven = solve_by_cpsat(problem, Conversions.of(problem), seconds=600, seed=0, scale=50.0)
    best = Brute(problem).best()
    if math.isinf(best):
        assert not proven.chosen
    else:
        assert price(problem, proven.chosen).seconds == pytest.approx(best)
        assert proven.bound <= best + 1e-6


@settings(max_examples=60, **SETTINGS)
@given(problems(most=7, intervals=True))
def test_intervals_along_cuts_cost_what_they_do_as_labels(problem):
    """Also those whose last operator has no label in the state in which they end."""
    along, folded = Search(problem), Search(fold(problem, problem.intervals))
    kept = {id(each) for each in along.dropped_intervals}
    if not kept:
        assert along.optimum().bound == pytest.approx(folded.optimum().bound)
    else:
        assert along.optimum().bound >= folded.optimum().bound - 1e-9


def least_cut(count, edges, source, sink):
    """The capacity of a minimum cut: shortest augmenting paths (Edmonds and Karp, 1972)."""
    left = {}
    for a, b, capacity in edges:
        left.setdefault(a, {})[b] = left.get(a, {}).get(b, 0) + capacity
        left.setdefault(b, {}).setdefault(a, 0)
    flow = 0
    while True:
        before = {source: source}
        queue = deque([source])
        while queue and sink not in before:
            node = queue.popleft()
            for other, capacity in left[node].items():
                if capacity > 0 and other not in before:
                    before[other] = node
                    queue.append(other)
        if sink not in before:
            return flow
        path, node = [], sink
        while node != source:
            path.append((before[node], node))
            node = before[node]
        most = min(left[a][b] for a, b in path)
        for a, b in path:
            left[a][b] -= most
            left[b][a] += most
        flow += most


@pytest.mark.parametrize("seed", range(12))
def test_with_two_states_and_no_patterns_it_is_a_minimum_cut(seed):
    """A tensor pays once for each way, however many read it: one more node for each way."""
    random = Random(seed)
    count = 40
    inputs = [
        sorted({random.randrange(max(0, op - 8), op) for _ in range(3)}) if op else []
        for op in range(count)
    ]
    costs = [[random.randint(1, 20), random.randint(1, 20)] for _ in range(count)]
    crossing = 4
    problem = graph_problem(inputs, costs, transition=crossing)
    source, sink = "outside", "other"
    edges = []
    for op, (here, there) in enumerate(costs):
        edges += [(source, op, there), (op, sink, here)]  # cut from the source: it runs there
    for place, tensor in enumerate(problem.tensors):
        maker = source if tensor.producer < 0 else tensor.producer
        readers = [*tensor.consumers, *([source] if tensor.is_output else [])]
        wanted_here, wanted_there = ("here", place), ("there", place)
        edges += [(maker, wanted_there, crossing), (wanted_here, maker, crossing)]
        for reader in readers:
            edges += [(wanted_there, reader, 10**6), (reader, wanted_here, 10**6)]
    assert solve(problem).statistics["label bound"] == least_cut(count, edges, source, sink)


@settings(max_examples=80, **SETTINGS)
@given(problems(most=7), st.randoms(use_true_random=False))
def test_regions_with_one_exit_can_always_be_run(problem, random):
    """Whatever they are: grow each backwards from its exit, along what nothing else reads."""
    readers = [set() for _ in range(problem.count)]
    for tensor in problem.tensors:
        if tensor.producer >= 0:
            readers[tensor.producer] |= set(tensor.consumers)
            if tensor.is_output:
                readers[tensor.producer].add(problem.count)
    chosen, taken = [], set()
    for op in reversed(range(problem.count)):
        if op in taken:
            continue
        region = {op}
        for other in reversed(range(op)):
            inner = readers[other] and readers[other] <= region
            if other not in taken and inner and random.random() < 0.7:
                region.add(other)
        taken |= region
        chosen.append(Label(tuple(sorted(region)), 0, 0, 1.0, random.randrange(problem.backends)))
    formed = form_calls(problem, chosen, beam=True)
    assert not isinstance(formed, Cycle)
    assert sorted(op for call in formed for op in call.ops) == list(range(problem.count))
