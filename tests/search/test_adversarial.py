# SPDX-License-Identifier: Apache-2.0
"""Graphs that break searches: wide, long, shared, cyclic, degenerate."""

from random import Random

import numpy as np
import pytest
from tests.search.brute import Brute, chain_problem, graph_problem

from intarsia.errors import InternalError
from intarsia.search.calls import Cycle, form_calls
from intarsia.search.engine import Engine, Scenario
from intarsia.search.problem import Infeasible, Label, PlacementProblem, ProblemTensor
from intarsia.search.search import Search
from intarsia.search.solve import solve

BUTTERFLY = [[], [], [0, 1], [0, 1]]


def check(problem, found):
    """The invariants of every plan; returns its backends."""
    assert not isinstance(found, Infeasible), found
    done, backends = set(), {}
    position = {op: place for place, call in enumerate(found.calls) for op in call.ops}
    for place, call in enumerate(found.calls):
        assert not done & set(call.ops)
        done |= set(call.ops)
        backends |= dict.fromkeys(call.ops, call.backend)
        assert {op for piece in call.pieces for op in piece.ops} == set(call.ops)
        assert {piece.backend for piece in call.pieces} == {call.backend}
        assert place == 0 or call.ops
    assert done == set(range(problem.count))
    for tensor in problem.tensors:
        for op in tensor.consumers:
            assert tensor.producer < 0 or position[tensor.producer] <= position[op]
    assert found.bound <= found.seconds
    assert found.gap >= 0
    return [backends[op] for op in range(problem.count)]


def test_two_regions_that_wait_for_each_other_are_never_chosen_together():
    labels = (
        Label((0, 2), 0, 0, 1.0, 0, alone=True),
        Label((1, 3), 1, 1, 1.0, 1, alone=True),
    )
    problem = graph_problem(BUTTERFLY, [[5.0, 5.0]] * 4, transition=0.0, labels=labels)
    assert isinstance(form_calls(problem, labels), Cycle)
    found = solve(problem)
    check(problem, found)
    assert found.label_seconds == 11.0 == Brute(problem).best()


def test_only_labels_that_wait_for_each_other():
    labels = (Label((0, 2), 0, 0, 1.0, 0), Label((1, 3), 0, 0, 1.0, 0))
    problem = PlacementProblem(
        4, labels, (ProblemTensor(0, (2, 3), 0), ProblemTensor(1, (2, 3), 0)), (np.zeros((1, 1)),)
    )
    found = solve(problem)
    assert isinstance(found, Infeasible)
    assert "wait for one another" in found.message


def test_a_chain_of_butterflies_is_cut_into_calls_that_can_run():
    inputs = [[], []]
    for level in range(40):
        inputs += [[2 * level, 2 * level + 1]] * 2
    costs = [[1.0, 9.0] if op % 2 else [9.0, 1.0] for op in range(len(inputs))]
    problem = graph_problem(inputs, costs, transition=0.1, call_seconds=(0.1, 0.1))
    check(problem, solve(problem))


def test_a_fan_of_64():
    inputs = [[], *([[0]] * 64), list(range(1, 65))]
    random = Random(0)
    costs = [[random.uniform(1, 3) for _ in range(4)] for _ in inputs]
    problem = graph_problem(inputs, costs, call_seconds=(0.5,) * 4)
    found = solve(problem)
    check(problem, found)
    singles = [sum(row[backend] for row in costs) for backend in range(4)]
    assert found.seconds <= min(singles) + 2.5


def test_one_tensor_with_10_000_readers():
    count = 10_001
    labels = [Label((0,), 0, 0, 1.0, 0)]
    for op in range(1, count):
        labels += [Label((op,), 0, 0, 2.0, 0), Label((op,), 1, 1, 1.0, 1)]
    matrix = np.array([[0.0, 50.0], [50.0, 0.0]])
    tensors = (ProblemTensor(-1, (0,), 0), ProblemTensor(0, tuple(range(1, count)), 0))
    found = solve(PlacementProblem(count, tuple(labels), tensors, (matrix,)))
    assert found.label_seconds == 1.0 + 50.0 + (count - 1) * 1.0


def test_a_dense_net_of_wide_joins():
    layers, inputs = 22, [[]]
    features = [0]
    for _ in range(layers):
        inputs.append(list(features))
        for _ in range(2):
            inputs.append([len(inputs) - 1])
        features.append(len(inputs) - 1)
    random = Random(5)
    costs = [[random.uniform(1, 9) for _ in range(3)] for _ in inputs]
    problem = graph_problem(inputs, costs, transition=2.0)
    found = solve(problem, seconds=4)
    check(problem, found)
    assert found.statistics["largest table"] == np.inf
    assert found.gap < 0.05
    assert found.proof.startswith(("optimal", "within"))


def test_a_grid_and_bipartite_layers():
    side = 9
    grid = [
        ([op - side] if op >= side else []) + ([op - 1] if op % side else [])
        for op in range(side * side)
    ]
    layers = [[] if op < 6 else list(range(op // 6 * 6 - 6, op // 6 * 6)) for op in range(30)]
    random = Random(2)
    for inputs in (grid, layers):
        costs = [[random.uniform(1, 5), random.uniform(1, 5)] for _ in inputs]
        problem = graph_problem(inputs, costs, transition=1.5)
        found = solve(problem, seconds=4)
        check(problem, found)
        assert found.label_seconds == pytest.approx(found.statistics["label bound"], rel=0.02)


@pytest.mark.exhaustive
def test_a_chain_of_20_000():
    costs = [[1.0, 2.0] if op // 1000 % 2 else [2.0, 1.0] for op in range(20_000)]
    problem = chain_problem(costs, transition=100.0)
    found = solve(problem)
    assert found.label_seconds == 20_000 + 19 * 100.0 + 100.0
    assert len(found.calls) == 20


def test_disconnected_graphs_and_several_results():
    problem = PlacementProblem(
        count=4,
        labels=tuple(Label((op,), s, s, 1.0 + (op + s) % 2, s) for op in range(4) for s in (0, 1)),
        tensors=(
            ProblemTensor(-1, (0, 2), 0, is_output=True),
            ProblemTensor(0, (1,), 0),
            ProblemTensor(0, (1, 3), 0, is_output=True),
            ProblemTensor(2, (), 0),
            ProblemTensor(3, (), 0, is_output=True),
        ),
        transitions=(np.array([[0.0, 0.25], [0.25, 0.0]]),),
    )
    found = solve(problem)
    check(problem, found)
    assert found.statistics["label bound"] == pytest.approx(Brute(problem).best())


def test_an_input_passed_to_an_output_costs_nothing():
    tensors = (ProblemTensor(-1, (), 0, is_output=True),)
    found = solve(PlacementProblem(0, (), tensors, (np.zeros((2, 2)),)))
    assert (found.seconds, found.calls, found.proof) == (0.0, (), "optimal under the cost model")


def test_costs_over_twelve_orders_of_magnitude():
    costs = [[10.0 ** (op % 13 - 9), 10.0 ** ((op + 1) % 13 - 9)] for op in range(52)]
    problem = chain_problem(costs, transition=1e-9)
    found = solve(problem)
    check(problem, found)
    assert found.label_seconds == pytest.approx(sum(map(min, costs)), rel=1e-6)


def test_an_operator_that_no_conversion_reaches():
    problem = chain_problem([[1.0, None], [None, 1.0]], transition=np.inf)
    found = solve(problem)
    assert isinstance(found, Infeasible)
    assert "conversion" in found.message


def test_patterns_that_overlap_and_beat_their_parts():
    labels = (
        Label((0, 1), 1, 1, 2.0, 1),
        Label((1, 2), 1, 1, 1.0, 1),
        Label((2, 3), 1, 1, 2.5, 1),
    )
    problem = chain_problem([[3.0, None]] * 4, transition=0.5, states=[0, 1], labels=labels)
    found = solve(problem)
    assert found.label_seconds == Brute(problem).best() == 0.5 + 2.0 + 2.5 + 0.5


def test_a_region_dearer_than_its_parts_is_not_forced():
    labels = (Label((0, 1, 2), 0, 0, 10.0, 0, alone=True),)
    problem = chain_problem([[3.0]] * 3, labels=labels, call_seconds=(0.1,))
    found = solve(problem)
    assert len(found.chosen) == 3
    assert len(found.calls) == 1


def test_a_private_layout_pays_at_the_border_of_each_call():
    """Backend 1 keeps its layout inside one call; what interrupts it costs leaving and entering."""
    matrix = np.array([[0.0, 2.0], [3.0, 0.0]])
    labels = [
        Label((op,), state, state, cost, state)
        for op, row in enumerate([(9, 1), (9, 1), (1, 99), (9, 1)])
        for state, cost in enumerate(map(float, row))
    ]
    tensors = (
        ProblemTensor(-1, (0,), 0),
        ProblemTensor(0, (1, 2), 0),
        ProblemTensor(1, (3,), 0),
        ProblemTensor(2, (3,), 0),
        ProblemTensor(3, (), 0, is_output=True),
    )
    problem = PlacementProblem(4, tuple(labels), tensors, (matrix,), private=frozenset({1}))
    found = solve(problem)
    # 0's result leaves its call for 2; 1 runs with 3, and takes it in again: 2, not 3 + 2
    assert [(call.backend, call.ops) for call in found.calls] == [(1, (0,)), (0, (2,)), (1, (1, 3))]
    assert found.label_seconds == 4.0 + 2 + 3 + 2 + 3
    assert found.seconds == found.label_seconds + 2 == Brute(problem).best_with_calls()
    assert found.proof == "optimal under the cost model"


def test_along_a_path_the_proof_counts_calls():
    """Whether a change of backend pays for its call is decided exactly."""
    costs = [[1.0, 2.0], [3.0, 1.0], [1.0, 2.0], [5.0, 1.0], [5.0, 1.0], [1.0, 9.0]]
    problem = chain_problem(costs, transition=0.25, call_seconds=(1.5, 1.5))
    found = solve(problem)
    assert found.seconds == pytest.approx(Brute(problem).best_with_calls())
    assert found.proof == "optimal under the cost model"
    assert found.bound == pytest.approx(found.seconds)


def test_without_strain_only_labels_count():
    problem = chain_problem([[1.0, 2.0], [3.0, 1.0]], call_seconds=(9.0, 9.0))
    search = Search(problem)
    engine = Engine(problem, search.model, has_crossings=False)
    plain, priced = engine.solve([Scenario(), Scenario(crossing_price=1.0, spine=1.0)])
    assert plain == priced


def test_labels_cheaper_on_all_counts_drop_others():
    problem = chain_problem([[1.0], [1.0]], labels=(Label((0,), 0, 0, 5.0, 0),))
    assert solve(problem).statistics["labels dropped"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"call_seconds": (-1.0,)},
        {"call_seconds": (np.nan,)},
        {"call_seconds": (np.inf,)},
        {"memory": (np.nan,)},
        {"memory": (-1.0,)},
        {"labels": (Label((0,), 0, 0, -1.0, 0),)},
        {"labels": (Label((0,), 0, 0, np.nan, 0),)},
        {"labels": (Label((0,), 0, 0, 1.0, 0, nbytes=-1),)},
        {"transitions": (np.array([[0.0, -1.0], [1.0, 0.0]]),)},
    ],
    ids=str,
)
def test_what_is_no_cost_is_refused(wrong):
    sound = {"labels": (Label((0,), 0, 0, 1.0, 0),), "transitions": (np.zeros((2, 2)),)}
    PlacementProblem(1, tensors=(), **sound)
    with pytest.raises(InternalError):
        PlacementProblem(1, tensors=(), **(sound | wrong))


def test_a_label_that_takes_for_ever_is_no_plan():
    found = solve(PlacementProblem(1, (Label((0,), 0, 0, np.inf, 0),), (), (np.zeros((1, 1)),)))
    assert isinstance(found, Infeasible)
    assert "infinite" in found.message
