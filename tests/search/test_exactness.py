# SPDX-License-Identifier: Apache-2.0
"""The search against enumeration of every plan of small problems."""

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.search.brute import SETTINGS, Brute, graph_problem, problems, steiner

from intarsia.search.calls import Cycle, form_calls
from intarsia.search.conversions import Conversions
from intarsia.search.layout import find_layout
from intarsia.search.marginals import min_marginals
from intarsia.search.model import find_ties
from intarsia.search.pricing import price
from intarsia.search.problem import Infeasible, Interval, Label, PlacementProblem, ProblemTensor
from intarsia.search.search import Search
from intarsia.search.solve import solve
from intarsia.search.wide import search_wide


def usable(problem):
    """The problem without intervals that do not begin and end at cuts."""
    if not problem.intervals:
        return problem
    kept = find_layout(problem, sorted(find_ties(problem))).intervals
    return replace(problem, intervals=tuple(problem.intervals[each] for each in kept))


@settings(max_examples=150, **SETTINGS)
@given(problems(most=6, private=True, intervals=True))
def test_the_optimum_is_that_of_all_plans(problem):
    problem = usable(problem)
    best = Brute(problem).best()
    found = solve(problem)
    if isinstance(found, Infeasible):
        assert math.isinf(best)
        return
    assert found.statistics["label bound"] == pytest.approx(best)
    assert found.label_seconds >= best - 1e-9
    assert found.bound <= found.seconds


@settings(max_examples=100, **SETTINGS)
@given(problems(most=5, private=True, intervals=True))
def test_the_bound_holds_for_every_plan_with_its_calls(problem):
    problem = usable(problem)
    found = solve(problem)
    best = Brute(problem).best_with_calls()
    if isinstance(found, Infeasible):
        assert math.isinf(best) or "no plan was found" in found.message
        return
    assert found.bound <= best + 1e-9
    assert best <= found.seconds + 1e-9


@settings(max_examples=80, **SETTINGS)
@given(problems(most=6, intervals=True), st.randoms(use_true_random=False))
def test_a_price_is_that_of_its_lines(problem, random):
    covers = list(Brute(problem).covers())
    for chosen in random.sample(covers, min(3, len(covers))):
        cost = price(problem, chosen)
        assert cost.seconds == pytest.approx(Brute(problem).price(chosen))
        assert cost.call_seconds == 0
        formed = form_calls(problem, chosen, beam=True)
        assert isinstance(formed, Cycle) == (not Brute(problem).is_acyclic(chosen))
        if not isinstance(formed, Cycle):
            with_calls = price(problem, chosen, formed)
            overheads = sum(problem.overheads[call.backend] for call in formed)
            assert with_calls.seconds == pytest.approx(cost.seconds + overheads)
            assert overheads >= Brute(problem).calls_cost(chosen) - 1e-9


@settings(max_examples=80, **SETTINGS)
@given(problems(most=5, intervals=True))
def test_marginals_are_the_best_plans_with_each_label(problem):
    problem = usable(problem)
    brute = Brute(problem)
    least = math.inf
    best = [math.inf] * len(problem.labels)
    for chosen in brute.covers():
        cost = brute.price(chosen)
        least = min(least, cost)
        for place, label in enumerate(problem.labels):
            if any(label is piece for piece in chosen):
                best[place] = min(best[place], cost)
    found = min_marginals(problem)
    np.testing.assert_allclose(found.labels, best)
    assert found.best == pytest.approx(least)


@settings(max_examples=25, **SETTINGS)
@given(problems(most=6))
def test_the_search_without_exact_tables_bounds_and_finds(problem):
    best = min((Brute(problem).price(c) for c in Brute(problem).covers()), default=math.inf)
    search = Search(problem)
    wide = search_wide(search, 10.0, 0)
    if wide.chosen:
        assert wide.bound <= best + 1e-9
        assert best <= price(problem, wide.chosen[-1]).seconds + 1e-9


@settings(max_examples=60, **SETTINGS)
@given(problems(most=2, states=3, private=True))
def test_multicasts_are_steiner_trees(problem):
    table = Conversions.of(problem).multicast
    for transition in range(len(problem.transitions)):
        for start in range(3):
            for bits in (0b011, 0b101, 0b110, 0b111):
                wanted = {state for state in range(3) if bits >> state & 1}
                expected = steiner(problem, transition, start, wanted)
                assert table[transition, start, bits] == pytest.approx(expected)


def test_a_multicast_over_four_states():
    """From state 0 the way to 2 and 3 goes through 1, which is paid once."""
    matrix = np.full((4, 4), 10.0)
    matrix[0, 1], matrix[1, 2], matrix[1, 3] = 4.0, 2.0, 3.0
    np.fill_diagonal(matrix, 0.0)
    problem = PlacementProblem(
        1, (Label((0,), 0, 0, 1.0, 0),), (ProblemTensor(0, (), 0),), (matrix,)
    )
    table = Conversions.of(problem).multicast[0, 0]
    assert (table[0b0100], table[0b1000], table[0b1100]) == (6.0, 7.0, 9.0)
    assert table[0b1111] == steiner(problem, 0, 0, {1, 2, 3}) == 9.0
    private = replace(problem, private=frozenset({1}))
    assert Conversions.of(private).multicast[0, 0, 0b1100] == 20.0


@settings(max_examples=60, **SETTINGS)
@given(problems(most=5, intervals=True))
def test_the_bound_holds_for_intervals_that_no_cut_allows(problem):
    found = solve(problem)
    best = Brute(problem).best_with_calls()
    if isinstance(found, Infeasible):
        assert math.isinf(best)
    else:
        assert found.bound <= best + 1e-9


def test_a_small_interval_that_no_cut_allows_is_chosen_as_a_label():
    """Six of eight branches: too many results go past its end to look at all their states."""
    inputs = [[], *([[0]] * 8), list(range(1, 9))]
    interval = Interval(0, 6, 0, 0, 1.0, 1, "branches")
    problem = graph_problem(inputs, [[5.0, 6.0]] * 10, intervals=(interval,))
    assert not find_layout(problem, []).intervals
    found = solve(problem)
    assert found.label_seconds == 21.0 == Brute(problem).best()
    assert [piece.key for piece in found.chosen] == [None, "branches", None, None, None]
    assert found.statistics["intervals dropped"] == 0


def test_intervals_that_no_cut_allows_may_be_the_only_plan():
    """Each leaves many results behind, and is larger than what becomes a label at once."""
    count = 40
    tensors = tuple(
        ProblemTensor(op, tuple(range(op + 1, min(op + 8, count))), 0) for op in range(count)
    )
    halves = (Interval(-1, 19, 0, 0, 3.0, 0), Interval(19, count - 1, 0, 0, 4.0, 0))
    problem = PlacementProblem(count, (), tensors, (np.zeros((1, 1)),), intervals=halves)
    assert len(find_layout(problem, []).intervals) < len(halves)
    found = solve(problem)
    assert found.seconds == 7.0
    assert len(found.calls) == 2


def test_no_plan_has_a_tensor_that_cannot_get_into_its_call():
    """One call keeps the tensor in its private state; two cannot, as nothing converts it."""
    matrix = np.array([[0.0, 1.0], [np.inf, 0.0]])
    tensors = (ProblemTensor(-1, (0,), 0), ProblemTensor(0, (2,), 0), ProblemTensor(1, (2,), 1))
    between = (
        Label((0,), 1, 1, 1.0, 0),
        Label((1,), 0, 0, 1.0, 1, alone=True),
        Label((2,), 1, 0, 1.0, 0),
    )
    private = frozenset({1})
    problem = PlacementProblem(3, between, tensors, (matrix, matrix), private=private)
    assert solve(problem).seconds == 5.0
    tensors = (ProblemTensor(-1, (0,), 0), ProblemTensor(0, (1, 2), 1), ProblemTensor(1, (2,), 1))
    between = (Label((0,), 1, 1, 1.0, 0), Label((1,), 1, 0, 1.0, 1), between[2])
    found = solve(PlacementProblem(3, between, tensors, (matrix, matrix), private=private))
    assert isinstance(found, Infeasible)
    assert "one after another" in found.message


def test_an_interval_may_end_in_a_state_that_no_label_of_its_last_operator_has():
    """A first version lost such plans: cuts had no value for "an interval ends here"."""
    matrix = np.array([[0.0, 50.0], [50.0, 0.0]])
    problem = PlacementProblem(
        count=4,
        labels=(
            *(Label((op,), 0, 0, 10.0, 0) for op in range(4)),
            Label((3,), 1, 1, 1.0, 1),
            Label((2,), 1, 1, 1.0, 1),
        ),
        tensors=(
            ProblemTensor(-1, (0,), 0),
            *(ProblemTensor(op, (op + 1,), 0) for op in range(3)),
            ProblemTensor(3, (), 1, is_output=True),
        ),
        transitions=(matrix, np.zeros((2, 2))),
        intervals=(Interval(-1, 1, 0, 1, 5.0, 2),),
    )
    found = solve(problem)
    assert found.seconds == 7.0
    assert found.proof == "optimal under the cost model"
    assert [piece.backend for piece in found.chosen] == [2, 1, 1]


def test_intervals_are_chosen_past_a_shared_mask():
    """A tensor that every cut sees passing by does not keep intervals from being chosen."""
    layers, width = 4, 3
    inputs = [[]]
    for layer in range(layers):
        for step in range(width):
            before = len(inputs) - 1
            inputs.append([before, 0] if step == 1 and layer else [before])
    count = len(inputs)
    ends = [layer * width for layer in range(1, layers + 1)]
    random = Random(1)
    problem = graph_problem(
        inputs,
        [[random.uniform(1, 2), random.uniform(1, 2)] for _ in range(count)],
        intervals=tuple(
            Interval(first, last, 1, 1, (last - first) * random.uniform(0.8, 1.3), 1)
            for place, first in enumerate(ends)
            for last in ends[place + 1 :]
        ),
    )
    assert not find_layout(problem, []).intervals
    found = solve(problem)
    assert found.statistics["label bound"] == pytest.approx(Brute(problem).best())
    assert any(len(piece.ops) > 1 for piece in found.chosen)


@pytest.mark.parametrize("seed", range(4))
def test_cp_sat_agrees_with_elimination(seed):
    pytest.importorskip("ortools")
    from intarsia.search.cpsat import solve_by_cpsat

    random = Random(seed)
    count = 25
    inputs = [
        sorted({random.randrange(max(0, op - 4), op) for _ in range(2)}) if op else []
        for op in range(count)
    ]
    costs = [[random.uniform(5, 50) for _ in range(3)] for _ in range(count)]
    problem = graph_problem(inputs, costs, transition=8.0)
    found = solve(problem)
    proven = solve_by_cpsat(problem, Conversions.of(problem), seconds=600, seed=0, scale=500.0)
    assert price(problem, proven.chosen).seconds == pytest.approx(found.statistics["label bound"])
    assert proven.bound <= found.statistics["label bound"] + 1e-6
