# SPDX-License-Identifier: Apache-2.0
"""How the optimum must move when the problem does."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.search.brute import SETTINGS, graph_problem, problems

from intarsia.search.problem import Infeasible, Label, PlacementProblem, ProblemTensor
from intarsia.search.solve import solve

MANY = settings(max_examples=40, **SETTINGS)


def optimum(problem):
    """The least cost before calls are formed; calls are free, so that none is looked for."""
    found = solve(replace(problem, call_seconds=()))
    return np.inf if isinstance(found, Infeasible) else found.statistics["label bound"]


@MANY
@given(problems(), st.randoms(use_true_random=False))
def test_permuting_labels_and_tensors_changes_nothing(problem, random):
    labels, tensors = list(problem.labels), list(problem.tensors)
    random.shuffle(labels)
    random.shuffle(tensors)
    other = replace(problem, labels=tuple(labels), tensors=tuple(tensors))
    assert optimum(other) == pytest.approx(optimum(problem))


@MANY
@given(problems(), st.randoms(use_true_random=False))
def test_renumbering_operators_keeps_the_cost(problem, random):
    after = [set() for _ in range(problem.count)]
    for tensor in problem.tensors:
        for op in tensor.consumers:
            if tensor.producer >= 0:
                after[tensor.producer].add(op)
    number, left = {}, list(range(problem.count))
    while left:
        ready = [op for op in left if not any(op in after[other] for other in left)]
        op = random.choice(ready)
        number[op] = len(number)
        left.remove(op)
    number[-1] = -1
    other = replace(
        problem,
        labels=tuple(
            replace(label, ops=tuple(sorted(number[op] for op in label.ops)))
            for label in problem.labels
        ),
        tensors=tuple(
            replace(
                tensor,
                producer=number[tensor.producer],
                consumers=tuple(number[op] for op in tensor.consumers),
            )
            for tensor in problem.tensors
        ),
    )
    assert optimum(other) == pytest.approx(optimum(problem))


@MANY
@given(problems(), st.sampled_from([1e-9, 0.5, 1e3]))
def test_scaling_all_costs_scales_the_optimum(problem, factor):
    other = replace(
        problem,
        labels=tuple(replace(label, seconds=label.seconds * factor) for label in problem.labels),
        transitions=tuple(matrix * factor for matrix in problem.transitions),
    )
    assert optimum(other) == pytest.approx(optimum(problem) * factor)


@MANY
@given(problems(), st.data())
def test_another_label_never_makes_it_dearer(problem, data):
    op = data.draw(st.integers(0, problem.count - 1))
    state = data.draw(st.integers(0, problem.states - 1))
    fresh = Label((op,), state, state, data.draw(st.floats(0, 10)), problem.backends)
    assert optimum(replace(problem, labels=(*problem.labels, fresh))) <= optimum(problem) + 1e-9


@MANY
@given(problems(), st.data())
def test_a_dearer_transition_never_makes_it_cheaper(problem, data):
    row, column = data.draw(st.permutations(range(problem.states)))[:2]
    matrix = problem.transitions[0].copy()
    matrix[row, column] += 5
    other = replace(problem, transitions=(matrix, *problem.transitions[1:]))
    assert optimum(other) >= optimum(problem) - 1e-9


@MANY
@given(problems())
def test_a_backend_given_twice_changes_nothing(problem):
    twins = tuple(replace(label, backend=label.backend + 3) for label in problem.labels)
    assert optimum(replace(problem, labels=problem.labels + twins)) == pytest.approx(
        optimum(problem)
    )


@MANY
@given(problems())
def test_without_transitions_and_patterns_every_operator_has_its_least(problem):
    free = replace(
        problem,
        transitions=tuple(np.zeros_like(matrix) for matrix in problem.transitions),
        labels=tuple(label for label in problem.labels if len(label.ops) == 1),
    )
    least = [
        min(label.seconds for label in free.labels if label.ops == (op,))
        for op in range(free.count)
    ]
    assert optimum(free) == pytest.approx(sum(least))


def test_without_conversions_each_component_has_its_best_backend():
    costs = [[1.0, 3.0], [5.0, 1.0], [9.0, 1.0], [1.0, 4.0], [2.0, 2.5]]
    problem = graph_problem([[], [0], [1], [], [3]], costs, transition=np.inf)
    free = np.zeros((2, 2))
    tensors = tuple(
        replace(each, transition=1) if each.producer < 0 or not each.consumers else each
        for each in problem.tensors
    )
    problem = replace(problem, transitions=(*problem.transitions, free), tensors=tensors)
    assert optimum(problem) == 5.0 + 3.0


@MANY
@given(problems())
def test_pinning_a_label_that_is_chosen_changes_nothing(problem):
    found = solve(problem)
    assume(not isinstance(found, Infeasible))
    piece = found.chosen[0]
    pinned = tuple(
        label for label in problem.labels if label is piece or not set(label.ops) & set(piece.ops)
    )
    assert solve(replace(problem, labels=pinned)).label_seconds <= found.label_seconds + 1e-9


def test_an_identity_that_costs_nothing_changes_nothing():
    costs = [[3.0, 1.0], [1.0, 4.0], [6.0, 1.0], [2.0, 2.0]]
    plain = graph_problem([[], [0], [0], [1, 2]], costs)
    free = [0.0, 0.0]
    inserted = graph_problem(
        [[], [0], [0], [1], [2, 3]], [costs[0], costs[1], costs[2], free, costs[3]]
    )
    assert optimum(inserted) == optimum(plain)


def test_ties_go_to_fewer_calls_and_then_to_the_users_order():
    problem = graph_problem([[], [0], [1]], [[1.0, 1.0, 1.0]] * 3, transition=0.0)
    found = solve(problem)
    assert [call.backend for call in found.calls] == [0]
    barred = replace(problem, labels=tuple(each for each in problem.labels if each.backend))
    assert [call.backend for call in solve(barred).calls] == [1]


def test_the_same_problem_has_the_same_plan_whatever_the_hash_seed():
    script = (
        "from random import Random\n"
        "from tests.search.brute import graph_problem\n"
        "from intarsia.search.solve import solve\n"
        "from intarsia.search.sweep import finalists\n"
        "r = Random(3)\n"
        "inputs = [sorted({r.randrange(max(0, i - 5), i) for _ in range(2)}) if i else []"
        " for i in range(60)]\n"
        "costs = [[float(r.randrange(1, 9)) for _ in range(3)] for _ in inputs]\n"
        "p = graph_problem(inputs, costs, transition=2.0, call_seconds=(1.0, 1.0, 1.0))\n"
        "s = solve(p)\n"
        "print([(c.backend, c.ops) for c in s.calls], s.seconds, s.proof)\n"
        "q = graph_problem(inputs[:14], costs[:14], call_seconds=(3.0, 3.0, 3.0))\n"
        "t = solve(q)\n"
        "print([(c.backend, c.ops) for c in t.calls], t.seconds, t.proof, t.statistics)\n"
        "print([[c.ops for c in f.calls] for f in finalists(p, s, 3)])\n"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(["", *sys.path])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    assert "[(" in texts.pop()


def test_operators_without_a_label_are_named():
    problem = PlacementProblem(
        count=3,
        labels=(Label((0,), 0, 0, 1.0, 0), Label((2,), 0, 0, 1.0, 0)),
        tensors=(ProblemTensor(0, (1,), 0), ProblemTensor(1, (2,), 0)),
        transitions=(np.zeros((1, 1)),),
    )
    found = solve(problem)
    assert isinstance(found, Infeasible)
    assert found.ops == (1,)
    assert str(found) == "no label covers operator 1"
