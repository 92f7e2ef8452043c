# SPDX-License-Identifier: Apache-2.0
"""Times for people: those of tiny models are not 0."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.cli.output import milliseconds
from intarsia.plan.tuning import time_text


@pytest.mark.parametrize("text", [milliseconds, time_text])
@given(st.floats(1e-8, 1e4))
def test_a_time_keeps_at_least_two_digits(text, seconds):
    figure, unit = text(seconds).split()
    assert unit == "ms"
    assert float(figure) == pytest.approx(1e3 * seconds, rel=0.01)


def test_a_time_that_is_not_known_is_a_dash():
    assert time_text(None) == "-"
