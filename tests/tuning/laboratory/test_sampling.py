# SPDX-License-Identifier: Apache-2.0
"""How a sample is taken: what is done around each run, told without a clock."""

import math

import numpy as np
import pytest

from intarsia.measure.timing import NAP_SECONDS
from intarsia.tuning.laboratory import sampling
from intarsia.tuning.laboratory.sampling import (
    LEAST_SECONDS,
    THREADED_LEAST_SECONDS,
    FixedKernel,
    Sampler,
    TimedRun,
    clock_of,
    lead_of,
    needed_lead,
    whole_sample_seconds,
)


@pytest.fixture
def ticks(monkeypatch):
    """A clock that advances by a microsecond each time that it is read."""
    count = iter(range(10**9))
    monkeypatch.setattr(sampling, "perf_counter", lambda: next(count) * 1e-6)


def test_a_device_with_a_clock_is_believed():
    busy = [0.0]

    def run():
        busy[0] += 0.25

    assert Sampler(1 << 16).sample(TimedRun(run, lambda: busy[0])) == 0.25
    assert busy == [0.25]


@pytest.mark.usefixtures("ticks")
def test_a_region_finds_its_inputs_written_and_its_outputs_used():
    contents, array, out = np.arange(4.0), np.zeros(4), np.ones(4)
    seen = []

    def run():
        seen.append((array.tolist(), out.tolist()))
        array[:] = -1
        out[:] = 7

    subject = TimedRun(run, None, 1 << 10, [(array, contents)], [out])
    assert Sampler(1 << 16).sample(subject, 3e-6) == pytest.approx(1e-6)
    assert seen == [([0, 1, 2, 3], [0, 0, 0, 0])] * len(seen)
    assert len(seen) >= 3


@pytest.mark.usefixtures("ticks")
def test_short_runs_are_timed_together():
    runs = []
    seconds = Sampler(1 << 16).sample(TimedRun(lambda: runs.append(0)), 200e-6)
    assert 0 < seconds < 1e-6 * 2
    assert len(runs) > 200


def test_clocks_count_only_if_all_devices_have_one():
    class Clocked:
        def clock(self):
            return 2.0

    assert clock_of([Clocked(), Clocked()])() == 4.0
    assert clock_of([Clocked(), object()]) is None
    assert clock_of([]) is None


def test_the_caches_of_this_machine_are_known():
    assert Sampler().cache_bytes >= 1 << 15


def test_the_fixed_kernel_computes_something_finite():
    kernel = FixedKernel()
    kernel()
    assert all(map(math.isfinite, kernel._out))


@pytest.mark.usefixtures("ticks")
def test_a_plan_runs_for_a_while_before_it_is_timed(monkeypatch):
    monkeypatch.setattr(sampling, "LEAD_SECONDS", 50.5e-6)
    runs = []

    def count(microseconds):
        def run():
            runs.append(0)
            for _ in range(microseconds - 1):
                sampling.perf_counter()

        runs.clear()
        seconds = Sampler(1 << 16).sample(TimedRun(run), 1e-6)
        assert seconds == pytest.approx(1e-6 * microseconds)
        return len(runs)

    assert count(1) == 51 + 1  # the clock is read once for each run
    assert count(20) == 3 + 1
    assert count(600) == 1  # what takes so long is the sample


def test_several_threads_need_a_lead_that_short_runs_pay():
    assert lead_of(2) == lead_of(16) > lead_of(1)
    assert needed_lead(0.003, lead_of(2)) == lead_of(2)
    assert needed_lead(10.0, lead_of(2)) == 0.0


def test_a_sample_takes_its_nap_its_lead_and_its_runs():
    lead, least = lead_of(2), THREADED_LEAST_SECONDS
    long = 2 * max(lead, least)
    assert whole_sample_seconds(long, 2) == pytest.approx(2 * long + NAP_SECONDS)
    assert whole_sample_seconds(100.0, 2) == pytest.approx(100.0 + NAP_SECONDS)
    assert whole_sample_seconds(1e-6, 2) == pytest.approx(lead + least + NAP_SECONDS, abs=3e-6)
    assert whole_sample_seconds(1e-6, 1) == pytest.approx(lead_of(1) + LEAST_SECONDS, abs=3e-6)
    assert whole_sample_seconds(0.0, 1) == pytest.approx(lead_of(1) + LEAST_SECONDS)


@pytest.fixture
def waits(monkeypatch):
    """How often a sampler has waited for threads to sleep."""
    found = []
    monkeypatch.setattr(sampling, "wait_until_idle", lambda: found.append(0))
    return found


@pytest.mark.usefixtures("ticks")
def test_what_follows_a_plan_with_threads_waits_until_they_sleep(waits):
    whole, part = TimedRun(int, num_threads=2), TimedRun(int, cold_bytes=1 << 10, num_threads=2)
    sampler = Sampler(1 << 16)
    for subject, expected in ((whole, 0), (part, 1), (part, 1), (whole, 1), (whole, 2)):
        sampler.sample(subject, 1e-6)
        assert len(waits) == expected


@pytest.mark.usefixtures("ticks")
def test_one_thread_has_nobody_to_wait_for(waits):
    sampler = Sampler(1 << 16)
    for _ in range(3):
        sampler.sample(TimedRun(int), 1e-6)
    assert not waits


@pytest.mark.usefixtures("ticks")
def test_a_sample_of_a_plan_with_threads_is_of_several_runs(waits):
    runs = []
    subject = TimedRun(lambda: runs.append(0), typical_seconds=100.0, num_threads=2)
    Sampler(1 << 16).sample(subject, 1e-6)
    assert len(runs) > 1
    assert not waits
