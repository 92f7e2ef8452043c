# SPDX-License-Identifier: Apache-2.0
"""Choosing which plan to prove: rounds of before count, and it ends when more change nothing."""

import math

import numpy as np
import pytest

from intarsia.cost.key import Sample
from intarsia.tuning.finalists import MOST_EARLIER, align_rounds, choose
from intarsia.tuning.proposals.space import PlanCandidate

ONE = PlanCandidate("one alone", ((0, (0, 1)),), 0)
TWO = PlanCandidate("two alone", ((1, (0, 1)),), 1)
MIX = PlanCandidate("mix", ((0, (0,)), (1, (1,))))
ANY = PlanCandidate("other mix", ((1, (0,)), (0, (1,))))


class Machine:
    """Runs plans with noise, on a machine that drifts; counts the samples that it took."""

    def __init__(self, seconds, seed=0, sigma=0.05):
        self.seconds, self.sigma = seconds, sigma
        self.random = np.random.default_rng(seed)
        self.taken = dict.fromkeys(seconds, 0)

    def __call__(self, plans, rounds):
        drift = np.exp(self.random.normal(0, 0.3, rounds))
        for plan in plans:
            self.taken[plan] += rounds
        noise = {plan: np.exp(self.random.normal(0, self.sigma, rounds)) for plan in plans}
        return {plan: tuple(drift * self.seconds[plan] * noise[plan]) for plan in plans}


def _sample(seconds, when, session="here.1"):
    return Sample(seconds, 0.0, "", when, session)


def test_samples_of_one_round_are_aligned():
    rounds = align_rounds(
        {
            ONE: [_sample(1.0, 10.0), _sample(1.1, 20.0), _sample(1.2, 20.0, "here.2")],
            TWO: [_sample(2.0, 10.0), _sample(2.2, 20.0, "here.2"), _sample(9.0, 30.0)],
            MIX: [_sample(3.0, 20.0), _sample(3.1, 20.0)],
        }
    )
    assert rounds[ONE] == [1.0, 1.1, 1.2]
    np.testing.assert_equal(rounds[TWO], [2.0, math.nan, 2.2])
    np.testing.assert_equal(rounds[MIX], [math.nan, 3.0, math.nan])  # the others ran it alone


def test_of_many_rounds_the_latest_count():
    many = range(3 * MOST_EARLIER)
    rounds = align_rounds({plan: [_sample(i, i) for i in many] for plan in (ONE, TWO)})
    assert rounds[ONE] == list(many)[-MOST_EARLIER:]


def test_rounds_of_before_spare_rounds_of_now():
    seconds = {ONE: 1.0, TWO: 1.04, MIX: 0.97}
    fresh, resumed, winners = 0, 0, []
    for seed in range(20):
        anew = Machine(seconds, seed)
        choose((ONE, TWO, MIX), anew)
        fresh += sum(anew.taken.values())
        earlier = Machine(seconds, seed + 100)((ONE, TWO, MIX), 40)
        machine = Machine(seconds, seed)
        found = choose((ONE, TWO, MIX), machine, earlier=earlier)
        resumed += sum(machine.taken.values())
        winners.append(found.winner)
        assert {len(own) for own in found.samples.values()} == {40 + machine.taken[found.winner]}
        assert min(machine.taken.values()) >= 3
    assert resumed < 0.5 * fresh
    assert winners.count(TWO) == 0


def test_a_mixed_plan_that_cannot_be_accepted_leaves():
    seconds = {ONE: 1.0, TWO: 1.0, MIX: 1.06, ANY: 1.3}
    machine = Machine(seconds, sigma=0.01)
    found = choose((ONE, TWO, MIX, ANY), machine)
    assert found.winner in (ONE, TWO)
    assert machine.taken[ANY] == 3
    assert machine.taken[MIX] <= 6
    assert machine.taken[MIX] < machine.taken[found.winner] or found.is_decided


def test_a_mixed_plan_that_is_ahead_is_proven_at_once():
    machine = Machine({ONE: 1.0, TWO: 1.005, MIX: 0.94}, seed=3, sigma=0.05)
    found = choose((ONE, TWO, MIX), machine)
    assert found.winner == MIX
    assert machine.taken[MIX] <= 12


@pytest.mark.parametrize("ratio", [1.05, 0.95])
def test_of_two_that_differ_the_faster_is_chosen(ratio):
    winners = [choose((ONE, TWO), Machine({ONE: 1.0, TWO: ratio}, s)).winner for s in range(100)]
    assert winners.count(TWO if ratio > 1 else ONE) <= 2


def test_what_fails_is_not_chosen():
    def measure(plans, rounds):
        return {plan: ((math.nan if plan == MIX else 1.0),) * rounds for plan in plans}

    assert choose((MIX, ONE), measure).winner == ONE
    assert choose((MIX, ONE), lambda plans, rounds: {}).winner is None
