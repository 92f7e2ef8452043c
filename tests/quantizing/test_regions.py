# SPDX-License-Identifier: Apache-2.0
"""Which regions are found, and that no more stay in f32 than the bound needs."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.quantizing.regions import (
    MOST_REGIONS,
    count_measurements,
    fewest_left,
    find_regions,
    nodes_of,
)

NOISES = st.lists(st.floats(1e-6, 1), min_size=1, max_size=90)


def independent(noises):
    """Return names, and what measures errors that add up as independent ones do."""
    names = [f"n{i}" for i in range(len(noises))]

    def measure(left):
        rest = (e for name, e in zip(names, noises, strict=True) if name not in left)
        return math.sqrt(sum(e * e for e in rest))

    return names, measure


@settings(max_examples=30)
@given(NOISES)
def test_regions_are_every_node_once_the_worst_first(noises):
    names, measure = independent(noises)
    calls = []
    regions = find_regions(names, lambda left: calls.append(left) or measure(left))
    assert sorted(nodes_of(regions)) == sorted(names)
    assert sum(len(region.nodes) for region in regions) == len(names)
    assert [one.error for one in regions] == sorted((one.error for one in regions), reverse=True)
    assert len(regions) <= MOST_REGIONS
    assert len(calls) <= count_measurements(len(names))
    places = {name: i for i, name in enumerate(names)}
    for region in regions:  # a run in the model's order, measured alone
        start = places[region.nodes[0]]
        assert list(region.nodes) == names[start : start + len(region.nodes)]
        assert region.error == measure(frozenset(names) - set(region.nodes))


@given(NOISES, st.floats(1e-3, 2))
def test_the_fewest_regions_are_left(noises, bound):
    names, measure = independent(noises)
    regions = find_regions(names, measure)
    count = fewest_left(regions, lambda left: measure(left) <= bound)
    holding = [k for k in range(1, len(regions)) if measure(nodes_of(regions[:k])) <= bound]
    assert count == (holding[0] if holding else None)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_whatever_the_errors_do_the_answer_holds_and_one_less_does_not(holds):
    names = [f"n{i}" for i in range(len(holds))]
    regions = find_regions(names[:MOST_REGIONS], lambda left: 0.5)
    count = fewest_left(regions, lambda left: holds[len(left)])
    if count is not None:
        assert holds[count]
        assert count == 1 or not holds[count - 1]


def test_the_worst_single_node_of_a_long_model_is_found():
    noises = [0.01] * 300
    noises[217] = 0.9
    names, measure = independent(noises)
    worst = find_regions(names, measure)[0]
    assert worst.nodes == ("n217",)
