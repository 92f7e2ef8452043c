# SPDX-License-Identifier: Apache-2.0
"""The best plans with their calls: branch and bound over sequences of calls."""

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from tests.search.brute import SETTINGS, Brute, graph_problem, problems

from intarsia.search import sequences
from intarsia.search.conversions import Conversions
from intarsia.search.engine import Engine, Scenario
from intarsia.search.folding import fold
from intarsia.search.problem import Infeasible, Interval, Label, PlacementProblem, ProblemTensor
from intarsia.search.search import Search
from intarsia.search.sequences import SequencedCall, StagedBuilder, complete, reshape
from intarsia.search.solve import solve


@settings(max_examples=80, **SETTINGS)
@given(problems(most=5, private=True, intervals=True))
def test_small_problems_are_solved_with_their_calls(problem):
    found = solve(problem)
    best = Brute(problem).best_with_calls()
    if isinstance(found, Infeasible):
        assert math.isinf(best) or "no plan was found" in found.message
    else:
        assert found.seconds == pytest.approx(best)
        assert found.bound <= best + 1e-9


@settings(max_examples=40, **SETTINGS)
@given(problems(most=4, private=True))
def test_a_beginning_bounds_all_plans_that_begin_with_it(problem):
    """And what leaves nothing for later costs what the cheapest plan in these calls costs."""
    brute = Brute(problem)
    least: dict[tuple[SequencedCall, ...], float] = {}
    for chosen in brute.covers():
        for call_of in brute.schedules(chosen):
            stages = {}
            for piece, call in zip(chosen, call_of, strict=True):
                place = next(at for at, each in enumerate(problem.labels) if each is piece)
                stages[call] = SequencedCall(piece.backend, place if piece.alone else -1)
            sequence = tuple(stages[call] for call in sorted(stages))
            cost = brute.price_in_calls(chosen, call_of)
            least[sequence] = min(cost, least.get(sequence, math.inf))
    conversions = Conversions.of(problem)
    for sequence in sorted(least)[:6]:
        for length in range(1, len(sequence) + 1):
            begin = sequence[:length]
            calls = [[each] for each in begin]
            paid = sum(problem.overheads[each.backend] for each in begin)
            is_open = length < len(sequence)
            builder = StagedBuilder(problem, conversions, calls, is_open=is_open)
            engine = Engine(problem, builder.build())
            (total,), _ = engine.assign([Scenario(spine=1.0)])
            longer = [cost for each, cost in least.items() if each[:length] == begin]
            assert total + paid <= min(longer if is_open else [least[begin]]) + 1e-9


def test_a_call_that_takes_a_tensor_into_its_layout_pays_for_itself():
    """Two calls of backend 1 around one of backend 0: the tensor enters its layout twice."""
    matrix = np.array([[0.0, 2.0], [2.0, 0.0]])
    labels = (
        Label((0,), 0, 0, 1.0, 0),
        Label((1,), 1, 1, 1.0, 1),
        Label((2,), 0, 0, 1.0, 0),
        Label((3,), 1, 1, 1.0, 1),
    )
    tensors = (
        ProblemTensor(-1, (0,), 0),
        ProblemTensor(0, (1, 3), 0),
        ProblemTensor(1, (2,), 0),
        ProblemTensor(2, (3,), 0),
        ProblemTensor(3, (), 0, is_output=True),
    )
    problem = PlacementProblem(4, labels, tensors, (matrix,), private=frozenset({1}))
    calls = [[SequencedCall(place % 2)] for place in range(4)]
    builder = StagedBuilder(problem, Conversions.of(problem), calls, is_open=False)
    (total,), values = Engine(problem, builder.build()).assign([Scenario()])
    assert total == 4.0 + 2 * 2.0 + 2.0 + 2.0 + 2.0 == Brute(problem).best_with_calls()
    assert builder.decode(values[:, 0]) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_a_bound_is_kept_where_there_is_no_time_to_prove_it():
    random = Random(2)
    inputs = [sorted({random.randrange(op) for _ in range(2)}) if op else [] for op in range(9)]
    costs = [[random.uniform(1, 9) for _ in range(3)] for _ in inputs]
    problem = graph_problem(inputs, costs, transition=0.5, call_seconds=(2.0,) * 3)
    search = Search(problem)
    plan = search.plan(tuple(label for label in problem.labels if label.backend == 0))
    assert complete(search, plan, 1.0, most=0) == (plan, 1.0, 0)
    proven, bound, looked = complete(search, plan, 1.0)
    assert looked > 0
    assert bound == pytest.approx(proven.price.seconds) == solve(problem).seconds


def test_regions_that_wait_for_each_other_are_not_run_together():
    """Each is as cheap as can be; together no order can run them, in one call or in two."""
    labels = (
        Label((0, 2), 0, 0, 1.0, 0, alone=True),
        Label((1, 3), 0, 0, 1.0, 0, alone=True),
        Label((0, 3), 0, 0, 1.5, 0),
        Label((1, 2), 0, 0, 1.5, 0),
    )
    problem = graph_problem(
        [[], [], [0, 1], [0, 1]], [[5.0]] * 4, labels=labels, call_seconds=(0.5,)
    )
    search = Search(problem)
    plan = search.plan(problem.labels[:4])
    proven, bound, _ = complete(search, plan, 0.0)
    assert proven.price.seconds == bound == Brute(problem).best_with_calls()


def test_larger_problems_are_left_alone():
    problem = graph_problem([[op - 1] if op else [] for op in range(30)], [[1.0, 2.0]] * 30)
    search = Search(problem)
    plan = search.plan(tuple(label for label in problem.labels if label.backend == 1))
    assert complete(search, plan, 1.0) == (plan, 1.0, 0)
    assert problem.count > sequences.MOST_OPS


def test_long_intervals_between_what_is_no_cut_are_chosen():
    """They begin and end inside blocks of three branches, with a mask that everything reads."""
    random = Random(4)
    inputs = [[]]
    for _ in range(12):
        x = len(inputs) - 1
        inputs += [[0, x], [x], [x], [x], [x], [x], [x + 1, x + 2, x + 3, x + 4, x + 5, x + 6]]
    count = len(inputs)
    costs = [[random.uniform(1, 2), random.uniform(1, 2)] for _ in inputs]
    ends = [(3, 40), (12, 60), (44, 70)]
    intervals = tuple(
        Interval(first, last, 0, 0, 0.8 * (last - first), 1, f"{first}") for first, last in ends
    )
    problem = graph_problem(
        inputs, costs, transition=0.2, call_seconds=(0.3, 0.3), intervals=intervals
    )
    assert Search(problem).dropped_intervals
    found = solve(problem)
    assert {piece.key for piece in found.chosen if piece.key} == {"3", "44"}
    assert found.statistics["intervals dropped"] == 0
    assert found.gap < 0.05
    folded = Search(fold(problem, intervals)).optimum()
    assert found.statistics["label bound"] == pytest.approx(folded.bound)
    assert count == problem.count


def test_a_plan_is_reshaped_around_its_calls():
    """From everything on one backend but a few islands to the best plan with other borders."""
    random = Random(3)
    inputs = [[]]
    for _ in range(8):
        x = len(inputs) - 1
        inputs += [[x], [x + 1], [x + 2, x]]
    costs = [[random.uniform(1, 4), random.uniform(1, 4)] for _ in inputs]
    problem = graph_problem(inputs, costs, transition=0.1, call_seconds=(0.6, 0.6))
    search = Search(problem)
    islands = {op for op in range(problem.count) if op % 5 == 0}
    labels = (label for label in problem.labels if label.backend == (label.ops[0] in islands))
    plan = search.plan(tuple(labels), thorough=True)
    better, looked = reshape(search, plan, 1.0)
    best = solve(problem)
    assert looked > 1
    assert best.bound <= better.price.seconds < plan.price.seconds
    assert better.price.seconds <= 1.05 * best.seconds
    assert reshape(search, better, better.price.seconds) == (better, 0)
