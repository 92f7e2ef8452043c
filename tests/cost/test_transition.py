# SPDX-License-Identifier: Apache-2.0
"""Transitions follow their probes, and never get cheaper with size."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.cost.cost import CostSource
from intarsia.cost.peak import Peak
from intarsia.cost.transition import PROBE_BYTES, TransitionTable

_PROBES = st.lists(
    st.tuples(st.integers(1, 1 << 30), st.floats(1e-9, 1e3)), min_size=1, max_size=30
)


def test_probes_come_back():
    table = TransitionTable.from_probes([(1000, 1e-6), (1000, 3e-6), (1000, 9e-6), (10**6, 1e-3)])
    assert table.seconds(1000) == pytest.approx(3e-6)
    assert table.seconds(10**6) == pytest.approx(1e-3)
    assert table.seconds(math.isqrt(10**9)) == pytest.approx(math.sqrt(3e-9), rel=1e-3)
    assert table.seconds(10) == pytest.approx(3e-6)
    assert table.seconds(0) == pytest.approx(3e-6)
    assert table.seconds(3 * 10**6) == pytest.approx(3e-3)


def test_a_knee_is_kept_where_a_line_would_not():
    def real(nbytes):
        return 1e-6 + nbytes * (1e-11 if nbytes <= 1 << 20 else 1e-10)

    table = TransitionTable.from_probes((size, real(size)) for size in PROBE_BYTES)
    for nbytes in PROBE_BYTES:
        assert table.seconds(nbytes) == pytest.approx(real(nbytes))
    slope = (real(1 << 25) - real(1 << 10)) / ((1 << 25) - (1 << 10))
    line = real(1 << 10) + slope * (1 << 20)
    assert line > 5 * table.seconds(1 << 20)


@given(_PROBES)
def test_more_bytes_never_cost_less(probes):
    table = TransitionTable.from_probes(probes)
    sizes = sorted({0, *(size for size, _ in probes), *range(1, 1 << 30, 1 << 25)})
    seconds = [table.seconds(size) for size in sizes]
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(seconds))
    least = min(second for _, second in probes)
    assert min(seconds) >= least * (1 - 1e-9)


def test_noise_is_evened_out():
    table = TransitionTable.from_probes([(1, 1e-6), (2, 4e-6), (3, 1e-6), (4, 8e-6)])
    assert [second for _, second in table.points] == pytest.approx([1e-6, 2e-6, 2e-6, 8e-6])


def test_an_assumed_copy_follows_the_machine():
    table = TransitionTable.assumed(Peak({"float32": 1.0}, 1e9, 1e10, 1 << 20))
    assert table.seconds(1 << 25) == pytest.approx(2 * (1 << 25) / 1e9, rel=0.01)
    cost = table.cost(1 << 14)
    assert cost.source is CostSource.ASSUMED
    assert cost.low_seconds < cost.seconds < cost.high_seconds
    assert cost.nbytes == 1 << 14
