# SPDX-License-Identifier: Apache-2.0
"""Times for people: those of tiny models are not 0."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.cli.output import milliseconds, show_json, write_json_line
from intarsia.plan.tuning import time_text


@pytest.mark.parametrize("text", [milliseconds, time_text])
@given(st.floats(1e-8, 1e4))
def test_a_time_keeps_at_least_two_digits(text, seconds):
    figure, unit = text(seconds).split()
    assert unit == "ms"
    assert float(figure) == pytest.approx(1e3 * seconds, rel=0.01)


def test_a_time_that_is_not_known_is_a_dash():
    assert time_text(None) == "-"


@pytest.mark.parametrize("print_json", [show_json, write_json_line])
@pytest.mark.parametrize("name", ["m", "m\udcff"])
def test_json_has_null_for_what_is_no_number_whatever_names_are(print_json, name, capsys):
    print_json({name: [math.nan, (math.inf, 1.5)]})
    assert json.loads(capsys.readouterr().out) == {name: [None, [None, 1.5]]}
