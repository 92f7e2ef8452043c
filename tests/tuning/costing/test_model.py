# SPDX-License-Identifier: Apache-2.0
"""The model of regions gives back the costs that it was made from."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.tuning.costing.model import Evidence, fit, predict


def _evidence(regions, units, call=None):
    return Evidence(
        units,
        regions,
        border=lambda members: 1000 * 2,
        bound=lambda unit: 1e-5,
        family=lambda unit: "op",
        call_seconds=call,
    )


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(1e-4, 1e-1), min_size=2, max_size=12),
    st.floats(1e-7, 5e-5),
    st.floats(1e-10, 5e-9),
)
def test_additive_costs_are_found_again(marginals, call, byte_seconds):
    border = 2000
    units = tuple(range(len(marginals)))

    def seconds(members):
        return call + byte_seconds * border + sum(marginals[unit] for unit in members)

    regions = {(unit,): seconds((unit,)) for unit in units}
    regions[units] = seconds(units)
    model = fit(_evidence(regions, units, call))
    assert predict(model, units, border) == pytest.approx(regions[units], rel=1e-6)
    half = units[: len(units) // 2]
    assert predict(model, half, border) == pytest.approx(seconds(half), rel=0.02)


def test_what_is_not_measured_is_likened_to_what_is():
    regions = {(0,): 2e-3, (1,): 3e-3}
    model = fit(_evidence(regions, (0, 1, 2), 1e-6))
    assert model.measured == {0, 1}
    assert 0 < model.marginals[2] < 2e-3


def test_units_share_what_a_large_region_costs():
    model = fit(_evidence({(0, 1, 2): 3e-3}, (0, 1, 2), 1e-6))
    assert sum(model.marginals.values()) == pytest.approx(3e-3, rel=0.1)


def test_a_region_that_fuses_corrects_its_units():
    regions = {(0,): 1e-3, (1,): 1e-3, (2,): 1e-3, (0, 1): 1.2e-3}
    model = fit(_evidence(regions, (0, 1, 2), 1e-6))
    assert model.marginals[0] + model.marginals[1] == pytest.approx(1.2e-3, rel=0.05)
    assert model.marginals[2] == pytest.approx(1e-3, rel=0.05)
