# SPDX-License-Identifier: Apache-2.0
"""Waiting for threads that spin, on a machine with clocks of its own."""

import pytest

from intarsia.measure import timing
from intarsia.measure.timing import MOST_SECONDS, NAP_SECONDS, wait_until_idle


@pytest.fixture
def spin_for(monkeypatch):
    """A function that says for how long another thread spins; returns the naps that are taken."""
    machine = {"now": 0.0, "until": 0.0}
    naps = []

    def sleep(seconds):
        machine["now"] += seconds
        naps.append(seconds)

    monkeypatch.setattr(timing, "sleep", sleep)
    monkeypatch.setattr(timing, "perf_counter", lambda: machine["now"])
    monkeypatch.setattr(timing, "process_time", lambda: min(machine["now"], machine["until"]))

    def spin(seconds):
        machine["until"] = seconds
        return naps

    return spin


def test_nobody_is_waited_for_longer_than_a_nap(spin_for):
    naps = spin_for(0.0)
    assert wait_until_idle() == pytest.approx(NAP_SECONDS)
    assert len(naps) == 1


def test_threads_that_spin_are_waited_for(spin_for):
    spin_for(3.5 * NAP_SECONDS)
    assert wait_until_idle() == pytest.approx(5 * NAP_SECONDS)


def test_a_thread_that_never_sleeps_is_not_waited_for_for_ever(spin_for):
    spin_for(1e9)
    assert MOST_SECONDS <= wait_until_idle() <= MOST_SECONDS + NAP_SECONDS
