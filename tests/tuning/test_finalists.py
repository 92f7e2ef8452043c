# SPDX-License-Identifier: Apache-2.0
"""No plan ships that was not shown to be best: races with simulated noise."""

import math

import numpy as np
import pytest

from intarsia.tuning.finalists import compare_plans, finalist_rows, is_equal, order_plans
from intarsia.tuning.proposals.space import PlanCandidate

ONE = PlanCandidate("one alone", ((0, (0, 1)),), 0)
TWO = PlanCandidate("two alone", ((1, (0, 1)),), 1)
MIX = PlanCandidate("mix", ((0, (0,)), (1, (1,))))


def _measure(seconds, seed=0, sigma=0.07):
    """Runs that share the machine's drift and have noise of their own."""
    rng = np.random.default_rng(seed)
    calls = []

    def measure(plans, rounds):
        calls.append((tuple(plans), rounds))
        drift = np.exp(rng.normal(0, 0.3, rounds))
        return {
            plan: tuple(drift * seconds[plan] * np.exp(rng.normal(0, sigma, rounds)))
            for plan in plans
        }

    measure.calls = calls
    return measure


def test_a_mixed_plan_that_is_faster_ships():
    found = compare_plans([ONE, TWO, MIX], _measure({ONE: 1.2, TWO: 1.0, MIX: 0.8}))
    assert found.winner == MIX
    assert found.fates[MIX] == "ships"
    assert found.single == TWO
    assert found.ratio(MIX).high < 1


def test_a_mixed_plan_that_is_slower_does_not():
    found = compare_plans([ONE, TWO, MIX], _measure({ONE: 1.0, TWO: 1.5, MIX: 1.2}))
    assert found.winner == ONE


def test_equal_plans_are_seldom_declared_different():
    mixed = 0
    for seed in range(60):
        found = compare_plans([ONE, TWO, MIX], _measure({ONE: 1.0, TWO: 1.0, MIX: 1.0}, seed))
        mixed += found.winner == MIX
    assert mixed <= 3


def test_what_is_accepted_was_confirmed_on_fresh_rounds():
    measure = _measure({ONE: 1.0, TWO: 3.0, MIX: 0.7}, sigma=0.01)
    found = compare_plans([ONE, TWO, MIX], measure)
    assert found.winner == MIX
    plans, rounds = measure.calls[-1]
    assert plans == (MIX, ONE)
    assert len(found.samples[MIX]) >= 3 + rounds


def test_ties_go_to_fewer_regions_then_to_the_order_of_the_user():
    assert order_plans([MIX, TWO, ONE]) == (ONE, TWO, MIX)
    exact = _measure({ONE: 1.0, TWO: 1.0, MIX: 1.0}, sigma=0.0)
    assert compare_plans([MIX, TWO, ONE], exact).winner == ONE


CUT = PlanCandidate("cut alone", ((1, (0,)), (0, (1,)), (1, (2,)), (0, (3,))), 1)


@pytest.mark.parametrize("cut", [0.985, 1.0])
def test_more_regions_never_ship_at_equal_speed(cut):
    for seed in range(40):
        found = compare_plans([CUT, ONE], _measure({ONE: 1.0, CUT: cut}, seed))
        if found.winner == CUT:
            assert not is_equal(found.ratio(ONE))
        else:
            assert found.single == ONE
            assert "with more regions" in found.fates[CUT] or "times the time" in found.fates[CUT]


def test_more_regions_ship_if_they_are_clearly_faster():
    found = compare_plans([CUT, ONE], _measure({ONE: 1.0, CUT: 0.8}))
    assert found.winner == CUT
    assert "times the time" in found.fates[ONE]


def test_a_lower_time_that_does_not_ship_has_its_reason_in_words():
    found = compare_plans([ONE, TWO], _measure({ONE: 1.0, TWO: 1.5}))
    rows = finalist_rows(("a", "b"), found, {ONE: 2.0, TWO: 1.0}, lambda plan: None)
    by_name = {row.name: row.fate for row in rows}
    assert by_name["one alone"] == "ships"
    assert "in the same rounds" in by_name["two alone"]
    rows = finalist_rows(("a", "b"), found, {ONE: 1.0, TWO: 1.5}, lambda plan: None)
    assert all("same rounds" not in row.fate for row in rows)


def test_a_plan_that_never_runs_is_out():
    def measure(plans, rounds):
        return {plan: ((math.nan,) if plan == ONE else (1.0,)) * rounds for plan in plans}

    found = compare_plans([ONE, TWO], measure)
    assert found.winner == TWO
    assert found.fates[ONE] == "could not be run"


def test_nothing_that_runs_is_nothing_that_ships():
    assert compare_plans([ONE, TWO], lambda plans, rounds: {}) is None


@pytest.mark.parametrize("mix", [1.0, 1.03])
def test_a_plan_that_is_no_faster_hardly_ever_ships(mix):
    seconds = {ONE: 1.0, TWO: 1.1, MIX: mix}
    winners = [compare_plans([ONE, TWO, MIX], _measure(seconds, seed)).winner for seed in range(30)]
    assert winners.count(MIX) <= 2
    assert winners.count(TWO) <= 1
