# SPDX-License-Identifier: Apache-2.0
"""Estimates: the best source answers, and errors that were seen are corrected."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.cost.cost import Cost, CostSource
from intarsia.cost.estimator import PRIORS, Calibration, CostSubject, Estimator, bound, group_of
from intarsia.cost.peak import Peak
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot

_PEAK = Peak({"float32": 1e9}, 1e9, 1e9, 0)


@pytest.fixture(scope="module")
def graph(parse_model):
    """Products of several sizes, a Relu, and one whose shape nobody knows."""
    return snapshot(
        load(
            parse_model(
                """
                m (float[8,64] a, float[64,64] b, float[64,128] c)
                => (float[8,128] y, int64[2,N] z) {
                    d = MatMul(a, b)
                    e = MatMul(d, c)
                    y = Relu(e)
                    z = NonZero(y)
                }
                """
            )
        )
    )


@pytest.fixture
def make(graph, make_key):
    """A function from node ids to what is asked about."""

    def subject(*nodes, estimate=None):
        region = Region.of(graph, nodes)
        return CostSubject(region, make_key(str(nodes)), _PEAK, None, estimate)

    return subject


def _measured(seconds):
    return Cost(seconds, 0, CostSource.MEASURED, seconds / 1.02, seconds * 1.02)


def _estimated(seconds, source=CostSource.ESTIMATED):
    return lambda: Cost(seconds, 0, source)


def test_the_most_trusted_source_answers(make):
    estimator = Estimator()
    assert estimator.cost(make(0)).source is CostSource.ROOFLINE
    subject = make(0, estimate=_estimated(2e-3))
    assert estimator.cost(subject).source is CostSource.ESTIMATED
    twin = dataclasses.replace(_measured(3e-3), source=CostSource.FINGERPRINT)
    estimator.learn({subject.key: twin})
    assert estimator.cost(subject) == twin
    estimator.learn({subject.key: _measured(3e-3)})
    assert estimator.cost(subject) == _measured(3e-3)


def test_nothing_known_is_assumed(make_graph, make_key):
    region = make_graph(3, [(0, 1)]).whole
    region = Region.of(region.graph, [])
    cost = Estimator().cost(CostSubject(region, make_key(), _PEAK))
    assert cost.source is CostSource.ASSUMED
    assert cost.high_seconds / cost.low_seconds == pytest.approx(100)


def test_a_backend_without_an_answer_is_passed_over(make):
    for nothing in (lambda: None, _estimated(0.0), _estimated(math.nan)):
        assert Estimator().cost(make(0, estimate=nothing)).source is CostSource.ROOFLINE


def test_a_backend_does_not_measure(make):
    cost = Estimator().cost(make(0, estimate=_estimated(1e-3, CostSource.MEASURED)))
    assert cost.source is CostSource.ESTIMATED


def test_without_comparisons_the_prior_is_the_interval(make):
    cost = Estimator().cost(make(0, estimate=_estimated(1e-3)))
    spread = PRIORS[CostSource.ESTIMATED].spread
    assert cost.seconds == pytest.approx(1e-3)
    assert cost.high_seconds / cost.seconds == pytest.approx(spread)
    assert "no comparison yet" in cost.provenance


def test_a_roofline_is_never_below_its_bound(make):
    subject = make(0)
    least = bound(subject.region, _PEAK).seconds
    cost = Estimator().cost(subject)
    assert cost.low_seconds == least
    assert cost.seconds == pytest.approx(2.5 * least)
    fast = Estimator()
    fast.learn({make(1).key: _measured(1e-9)}, [make(1)])  # faster than can be
    assert fast.cost(subject).low_seconds == least
    assert fast.cost(subject).seconds >= least


def test_errors_that_were_seen_are_corrected(make):
    estimator = Estimator()
    seen = make(0, estimate=_estimated(1e-3))
    asked = make(1, estimate=_estimated(2e-3))
    before = estimator.cost(asked)
    estimator.learn({seen.key: _measured(4e-3)}, [seen])
    after = estimator.cost(asked)
    assert before.seconds < after.seconds < 8e-3
    assert "1 comparisons" in after.provenance
    for _ in range(30):
        estimator.learn({seen.key: _measured(4e-3)}, [seen])
    final = estimator.cost(asked)
    assert final.seconds == pytest.approx(8e-3, rel=0.1)
    assert final.high_seconds / final.seconds < before.high_seconds / before.seconds


def test_what_one_target_teaches_does_not_touch_another(make):
    estimator = Estimator()
    seen = make(0)
    estimator.learn({seen.key: _measured(1.0)}, [seen])
    other = dataclasses.replace(make(1), key=dataclasses.replace(make(1).key, target="cuda"))
    assert estimator.cost(other) == Estimator().cost(other)


def test_a_group_is_the_operator_that_does_most(graph):
    assert group_of(graph.whole) == "MatMul"
    assert group_of(Region.of(graph, [2])) == "Relu"
    assert group_of(Region.of(graph, [])) == ""


def test_the_family_lends_what_the_group_lacks():
    calibration = Calibration()
    for _ in range(20):
        calibration.observe(CostSource.ROOFLINE, "t", "Conv", 1.0, 3.0)
        calibration.observe(CostSource.ROOFLINE, "t", "MatMul", 1.0, 2.0)
    assert calibration.factor(CostSource.ROOFLINE, "t", "Conv").middle == pytest.approx(3, rel=0.05)
    assert 2 < calibration.factor(CostSource.ROOFLINE, "t", "Relu").middle < 3
    assert calibration.count(CostSource.ROOFLINE, "t") == 40


@given(st.floats(0.2, 20), st.floats(0.05, 0.6), st.integers(0, 99))
def test_the_interval_holds_what_it_was_not_told(middle, sigma, seed):
    """Factors drawn from one distribution: about 95 % of new ones lie in the interval."""
    rng = np.random.default_rng(seed)
    calibration = Calibration()
    for ratio in middle * np.exp(sigma * rng.standard_normal(200)):
        calibration.observe(CostSource.ESTIMATED, "t", "Conv", 1.0, ratio)
    factor = calibration.factor(CostSource.ESTIMATED, "t", "Conv")
    fresh = middle * np.exp(sigma * rng.standard_normal(2000))
    inside = (fresh > factor.middle / factor.spread) & (fresh < factor.middle * factor.spread)
    assert inside.mean() > 0.88
    assert factor.middle == pytest.approx(middle, rel=0.25)
