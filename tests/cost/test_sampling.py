# SPDX-License-Identifier: Apache-2.0
"""Costs from samples: drift cancels, intervals hold the truth as often as they say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.cost.cost import CostSource
from intarsia.cost.key import Sample
from intarsia.cost.sampling import FEW, FLOOR, estimate_cost, median_interval, median_ranks


def test_a_ratio_to_the_anchor_cancels_drift():
    drift = [1.0, 1.1, 1.3, 1.6, 2.0, 1.4, 1.0, 0.9]
    samples = [Sample(3e-3 * d, 1e-3 * d, "anchor", 0.0, "here.1") for d in drift]
    history = {"anchor": [("here.0", 1e-3)] * 9}
    cost = estimate_cost(samples, history, "here")
    assert cost.seconds == pytest.approx(3e-3)
    assert cost.low_seconds == pytest.approx(3e-3 / FLOOR)
    assert cost.high_seconds == pytest.approx(3e-3 * FLOOR)
    assert cost.source is CostSource.MEASURED
    assert cost.provenance == "8 samples"


def test_two_anchors_give_one_figure():
    samples = [
        Sample(2e-3, 1e-3, "a", 0.0, "here.1"),
        Sample(4e-3, 1e-2, "b", 0.0, "here.2"),  # the machine was twice as slow
    ]
    history = {"a": [("here.1", 1e-3)], "b": [("here.1", 5e-3)] * 3 + [("here.2", 1e-2)]}
    assert estimate_cost(samples, history, "here").seconds == pytest.approx(2e-3)


def test_samples_of_this_host_come_before_those_of_its_twin():
    samples = [Sample(9.0, session="there.1"), Sample(1.0, session="here.1")]
    cost = estimate_cost(samples, {}, "here")
    assert cost.seconds == pytest.approx(1.0)
    assert cost.source is CostSource.MEASURED
    cost = estimate_cost(samples[:1], {}, "here")
    assert cost.seconds == pytest.approx(9.0)
    assert cost.source is CostSource.FINGERPRINT


def test_the_anchor_is_timed_by_this_host_where_it_was():
    samples = [Sample(2.0, 1.0, "a", 0.0, "here.1")]
    history = {"a": [("there.1", 7.0)] * 5 + [("here.1", 1.0)]}
    assert estimate_cost(samples, history, "here").seconds == pytest.approx(2.0)


def test_without_an_anchor_the_time_itself_counts():
    assert estimate_cost([Sample(0.5)] * 3, {}, "here").seconds == pytest.approx(0.5)
    assert estimate_cost([Sample(0.0)], {}, "here").seconds > 0


def test_one_sample_has_a_wide_interval():
    middle, low, high = median_interval([0.0])
    assert middle == 0.0
    assert -low == pytest.approx(math.log(FEW)) == high


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=300))
def test_the_interval_holds_the_median(values):
    middle, low, high = median_interval(values)
    assert low <= middle <= high
    assert low >= min(values) - math.log(FEW)
    assert high <= max(values) + math.log(FEW)


@pytest.mark.parametrize("count", [6, 9, 12, 24, 100, 201, 400])
def test_the_interval_holds_the_truth_as_often_as_it_says(count):
    draws = np.random.default_rng(count).standard_exponential((2000, count))
    truth = math.log(2)
    inside = sum(low <= truth <= high for _, low, high in map(median_interval, draws.tolist()))
    assert inside / 2000 >= 0.935


@pytest.mark.parametrize(
    ("count", "ranks"),
    # David and Nagaraja; also Conover, Practical Nonparametric Statistics, 3rd edition, table A3.
    [(1, None), (5, None), (6, (0, 5)), (9, (1, 7)), (12, (2, 9)), (24, (6, 17)), (100, (39, 60))],
)
def test_the_ranks_are_those_of_the_tables(count, ranks):
    assert median_ranks(count, 0.95) == ranks
