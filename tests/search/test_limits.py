# SPDX-License-Identifier: Apache-2.0
"""Limits of memory, runners-up, and measuring lazily."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from tests.search.brute import Brute, graph_problem

from intarsia.search import solve as solving
from intarsia.search.pricing import price
from intarsia.search.problem import Infeasible, Label, PlacementProblem, ProblemTensor
from intarsia.search.search import PricedPlan
from intarsia.search.solve import fits, kept_bytes, solve
from intarsia.search.sweep import finalists


@pytest.fixture(params=[True, False], ids=["ortools", "eliminations"])
def cp_sat(request, monkeypatch):
    """With and without OR-Tools."""
    if request.param:
        pytest.importorskip("ortools")
    monkeypatch.setattr(solving, "cpsat_is_available", lambda: request.param)
    return request.param


def random_problem(seed, count=7, **more):
    random = Random(seed)
    inputs = [
        sorted({random.randrange(max(0, op - 3), op) for _ in range(2)}) if op else []
        for op in range(count)
    ]
    costs = [[random.uniform(1, 9), random.uniform(1, 9)] for _ in range(count)]
    problem = graph_problem(inputs, costs, transition=0.5, **more)
    labels = tuple(replace(each, nbytes=random.randrange(1, 100)) for each in problem.labels)
    return replace(problem, labels=labels)


@pytest.mark.parametrize("seed", range(5))
def test_a_limit_of_memory_is_kept(cp_sat, seed):
    problem = random_problem(seed)
    kept = kept_bytes(problem, solve(problem).chosen)
    device = int(np.argmax(kept))
    limits = tuple(kept[device] / 2 if each == device else np.inf for each in range(2))
    problem = replace(problem, memory=limits)
    best = min(
        Brute(problem).price(chosen) for chosen in Brute(problem).covers() if fits(problem, chosen)
    )
    found = solve(problem)
    assert kept_bytes(problem, found.chosen)[device] <= limits[device]
    assert found.bound <= best + 1e-6
    assert found.label_seconds >= best - 1e-9
    if cp_sat:
        assert found.label_seconds == pytest.approx(best)
        assert found.proof == "optimal under the cost model"
    elif found.gap:
        assert found.proof.startswith("within")
        assert "pip install 'intarsia[search]'" in found.proof


@pytest.mark.parametrize("transition", [0.0, 3.0])
def test_equal_layers_fill_the_room_that_there_is(cp_sat, transition):
    """A price of bytes takes all of them or none; three of eight have room."""
    inputs = [[op - 1] if op else [] for op in range(8)]
    problem = graph_problem(inputs, [[1.0, 9.0]] * 8, transition=transition)
    labels = tuple(replace(each, nbytes=10) for each in problem.labels)
    problem = replace(problem, labels=labels, memory=(35.0, np.inf))
    found = solve(problem)
    assert kept_bytes(problem, found.chosen)[0] == 30
    assert [piece.backend for piece in found.chosen].count(0) == 3
    assert found.label_seconds == min(
        Brute(problem).price(chosen) for chosen in Brute(problem).covers() if fits(problem, chosen)
    )


def test_a_limit_that_no_plan_keeps(cp_sat):
    found = solve(replace(random_problem(0), memory=(1.0, 1.0)))
    assert isinstance(found, Infeasible)
    assert "memory" in found.message


def test_a_limit_of_memory_where_all_is_free():
    labels = tuple(Label((op,), 0, 0, 0.0, 0, nbytes=3) for op in range(2))
    tensors = (ProblemTensor(0, (1,), 0),)
    found = solve(
        PlacementProblem(2, labels, tensors, (np.zeros((1, 1)),), memory=(6.0,)), seconds=1
    )
    assert (found.seconds, found.proof) == (0.0, "optimal under the cost model")


def test_a_limit_of_memory_where_nothing_is_possible():
    labels = (Label((0,), 0, 0, np.inf, 0, nbytes=3),)
    found = solve(PlacementProblem(1, labels, (), (np.zeros((1, 1)),), memory=(6.0,)), seconds=1)
    assert isinstance(found, Infeasible)


def test_runners_up_differ_and_are_ordered():
    random = Random(7)
    inputs = [[op - 1] if op else [] for op in range(30)]
    costs = [[random.uniform(1, 4) for _ in range(3)] for _ in inputs]
    problem = graph_problem(inputs, costs, call_seconds=(0.3,) * 3)
    best = solve(problem)
    others = finalists(problem, best, 4)
    assert len(others) == 4
    assert len({plan.chosen for plan in others} | {best.chosen}) == 5
    seconds = [plan.price.seconds for plan in others]
    assert seconds == sorted(seconds)
    assert seconds[0] >= best.seconds
    for plan in others:
        assert isinstance(plan, PricedPlan)
        assert plan.price.seconds == price(problem, plan.chosen, plan.calls).seconds


@pytest.mark.parametrize("seed", range(6))
def test_measuring_only_what_the_best_plan_uses_ends_at_the_optimum(seed):
    """Optimistic bounds first; whatever the present plan uses is measured; until all of it is."""
    random = Random(seed)
    count = 24
    inputs = [
        sorted({random.randrange(max(0, op - 3), op) for _ in range(2)}) if op else []
        for op in range(count)
    ]
    true = graph_problem(
        inputs, [[random.uniform(1, 9) for _ in range(3)] for _ in range(count)], transition=1.0
    )
    known = [replace(each, seconds=each.seconds * random.uniform(0.5, 1)) for each in true.labels]
    measured: set[int] = set()
    for _ in range(count * 3):
        problem = replace(true, labels=tuple(known))
        found = solve(problem)
        place = {id(label): position for position, label in enumerate(known)}
        fresh = {place[id(piece)] for piece in found.chosen} - measured
        if not fresh:
            break
        for position in fresh:
            known[position] = true.labels[position]
        measured |= fresh
    assert found.label_seconds == pytest.approx(solve(true).label_seconds)
    assert len(measured) < len(true.labels)
    assert all(isinstance(piece, Label) for piece in found.chosen)
