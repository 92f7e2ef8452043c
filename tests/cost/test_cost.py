# SPDX-License-Identifier: Apache-2.0
"""Costs and keys as values."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.cost.cost import Cost, CostSource
from intarsia.cost.key import CostKey, new_session, session_host
from intarsia.hashing import digest


def test_the_order_of_trust():
    order = sorted(CostSource, key=lambda source: source.rank)
    assert [source.value for source in order] == [
        "measured", "fingerprint", "estimated", "roofline", "assumed"
    ]  # fmt: skip
    assert [source.is_measured for source in order] == [True, True, False, False, False]


def test_a_cost_without_an_interval_says_nothing_of_one():
    cost = Cost(2e-3, 0, CostSource.ESTIMATED)
    assert not cost.has_interval
    assert str(cost) == "2.000 ms (estimated)"


def test_an_interval_moves_with_its_figure():
    cost = Cost(2e-3, 8, CostSource.MEASURED).within(2.0)
    assert (cost.low_seconds, cost.high_seconds) == (1e-3, 4e-3)
    assert str(cost) == "2.000 ms [1.000, 4.000] (measured)"
    scaled = cost.scaled(3.0)
    assert scaled.seconds == pytest.approx(6e-3)
    assert scaled.low_seconds == pytest.approx(3e-3)
    assert scaled.high_seconds == pytest.approx(12e-3)
    assert scaled.nbytes == 8
    assert Cost(1.0, 0, CostSource.ROOFLINE).scaled(2.0).high_seconds == math.inf


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_no_two_lists_of_texts_have_one_digest(left, right):
    assert (digest(left) == digest(right)) == (left == right)


def test_fields_do_not_run_into_one_another():
    assert CostKey("ab", "c", "", "", "").digest != CostKey("a", "bc", "", "", "").digest


def test_a_session_is_new_and_says_where():
    names = {new_session() for _ in range(100)}
    assert len(names) == 100
    assert len(set(map(session_host, names))) == 1
