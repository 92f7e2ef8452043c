# SPDX-License-Identifier: Apache-2.0
"""Bounds that know of calls between cuts, and plans in the order of these bounds."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from tests.search.brute import SETTINGS, Brute, graph_problem, problems

from intarsia.search.phases import solve_phased
from intarsia.search.problem import Label, PlacementProblem, ProblemTensor
from intarsia.search.search import Search
from intarsia.search.sections import find_sections
from intarsia.search.solve import solve


@settings(max_examples=150, **SETTINGS)
@given(problems(most=5, private=True, intervals=True))
def test_the_bound_of_phases_holds_for_every_plan(problem):
    search = Search(problem)
    phased = solve_phased(search)
    if phased is not None:
        dropped = {id(each) for each in search.dropped_intervals}
        kept = tuple(each for each in problem.intervals if id(each) not in dropped)
        best = Brute(replace(problem, intervals=kept)).best_with_calls()
        assert phased.value <= best + 1e-9


def private_problem(inputs, costs, *, crossing, call_seconds, **more):
    """Each backend keeps its own layout inside its calls; leaving or entering costs `crossing`."""
    size = 1 + max(len(row) for row in costs)
    problem = graph_problem(
        inputs, costs, states=list(range(1, size)), call_seconds=call_seconds, **more
    )
    matrix = np.full((size, size), np.inf)
    matrix[0, :] = matrix[:, 0] = crossing
    np.fill_diagonal(matrix, 0.0)
    return replace(problem, transitions=(matrix,), private=frozenset(range(1, size)))


def test_a_residual_block_pays_for_the_tensor_around_another_call():
    """Before calls are formed, the sum's second input costs nothing; in every plan it does."""
    inputs = [[], [0], [1], [0, 2]]
    costs = [[1.0, 9.0], [1.0, 9.0], [9.0, 1.0], [1.0, 9.0]]
    problem = private_problem(inputs, costs, crossing=0.5, call_seconds=(0.1, 0.1))
    found = solve(problem)
    assert found.seconds == pytest.approx(Brute(problem).best_with_calls())
    assert found.statistics["label bound"] == 7.0
    assert found.seconds == pytest.approx(7.0 + 2 * 0.5 + 3 * 0.1)
    assert found.proof == "optimal under the cost model"


@pytest.mark.parametrize("seed", range(6))
def test_blocks_of_private_layouts_are_proven_to_within_a_few_percent(seed):
    """Residual blocks and parallel branches, as convolutional networks have them."""
    random = Random(seed)
    inputs = [[]]
    for block in range(6):
        x = len(inputs) - 1
        if block % 2:
            inputs += [[x], [x + 1], [x, x + 2]]
        else:
            inputs += [[x], [x], [x + 2], [x], [x + 4], [x + 1, x + 3, x + 5]]
    costs = [[random.lognormvariate(1, 0.5) for _ in range(3)] for _ in inputs]
    problem = private_problem(inputs, costs, crossing=0.3, call_seconds=(0.02,) * 3)
    found = solve(problem)
    assert found.gap < 0.03


@pytest.mark.parametrize("seed", range(40))
def test_small_problems_have_their_best_plan_with_calls(seed):
    random = Random(seed)
    count = random.randint(3, 7)
    inputs = [
        sorted({random.randrange(op) for _ in range(random.randint(1, 2))}) if op else []
        for op in range(count)
    ]
    costs = [[random.uniform(1, 9) for _ in range(3)] for _ in range(count)]
    problem = graph_problem(inputs, costs, transition=0.5, call_seconds=(2.0,) * 3)
    assert solve(problem).seconds == pytest.approx(Brute(problem).best_with_calls())


def test_sections_lie_between_cuts_that_need_one_another():
    """A residual block, then branches of which one needs nothing from before."""
    inputs = [[], [0], [0, 1], [2], [2], [], [3, 4, 5], [6]]
    problem = graph_problem(inputs, [[1.0]] * len(inputs))
    sections = find_sections(problem, ())
    assert sections.cuts == (0, 2, 6, 7)
    assert sections.section == (0, 1, 1, 2, 2, -1, 2, 3)
    assert sections.paths == ((), (1,), (3,), (), ())
    assert find_sections(problem, (4, 5)) is None


def test_without_order_between_operators_there_are_no_sections():
    labels = tuple(Label((op,), 0, 0, 1.0, 0) for op in range(2))
    tensors = tuple(ProblemTensor(op, (), 0, is_output=True) for op in range(2))
    problem = PlacementProblem(2, labels, tensors, (np.zeros((1, 1)),))
    assert find_sections(problem, (0, 1)) is None
