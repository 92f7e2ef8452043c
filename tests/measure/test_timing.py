# SPDX-License-Identifier: Apache-2.0
"""Measuring, comparing and making up inputs."""

import math

import numpy as np
import pytest

from intarsia.backends.values import TensorSpec
from intarsia.errors import InputError
from intarsia.measure.agreement import compare_outputs
from intarsia.measure.timing import measure_streams, percentiles, time_interleaved, time_runs
from intarsia.runtime.feeds import sample_feeds


def test_blocks_alternate_and_their_first_third_does_not_count():
    calls = []
    timings = time_interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2, runs=3
    )
    assert "".join(calls) == "aaabbb" + "bbbaaa"
    assert [timing.runs for timing in timings.values()] == [4, 4]


def test_every_run_counts_without_blocks():
    assert time_runs(lambda: None, 5).runs == 5


def test_outputs_within_the_tolerance_agree():
    found = compare_outputs([np.ones(3)], [np.ones(3) + 5e-4])
    assert found.agrees
    assert found.max_abs_error == pytest.approx(5e-4)


@pytest.mark.parametrize(
    "actual", [[np.ones(3) + 1], [np.ones(4)], [], [np.full(3, np.nan)], [np.full(3, np.inf)]]
)
def test_other_outputs_disagree(actual):
    assert not compare_outputs([np.ones(3)], actual).agrees


def test_equal_infinities_and_nans_agree():
    array = np.array([np.inf, -np.inf, np.nan, 1.0])
    found = compare_outputs([array], [array.copy()])
    assert found.agrees
    assert found.max_abs_error == 0


def test_a_nan_where_none_is_expected_is_an_infinite_error():
    assert math.isinf(compare_outputs([np.ones(2)], [np.array([1, np.nan])]).max_abs_error)


def test_samples_follow_from_the_seed():
    specs = [TensorSpec("x", "float32", (2, 3)), TensorSpec("i", "int64", (2,))]
    first, again = sample_feeds(specs, 3), sample_feeds(specs, 3)
    np.testing.assert_array_equal(first["x"], again["x"])
    assert first["x"].dtype == np.float32
    assert first["i"].all()
    assert (sample_feeds(specs, 4)["x"] != first["x"]).any()


@pytest.mark.parametrize(("dtype", "zero"), [("bool", True), ("string", "")])
def test_samples_of_other_types_hide_nothing(dtype, zero):
    assert sample_feeds([TensorSpec("x", dtype, (2,))])["x"].tolist() == [zero, zero]


def test_several_streams_are_timed_together():
    counts = [0, 0, 0]

    def call(stream):
        def run():
            counts[stream] += 1

        return run

    found = measure_streams([call(i) for i in range(3)], 0.01)
    assert min(counts) >= 2
    assert found.streams == 3
    assert found.p50_seconds <= found.p90_seconds <= found.p99_seconds
    assert found.runs_per_second > 0


def test_a_stream_that_fails_ends_all():
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure_streams([lambda: None, broken], 0.01)


def test_percentiles_are_times_that_were_measured():
    assert percentiles([3.0, 1.0, 2.0]) == (2.0, 3.0, 3.0)
    assert percentiles([float(i) for i in range(1, 101)]) == (50.0, 90.0, 99.0)


def test_a_loose_shape_has_no_sample():
    with pytest.raises(InputError, match="'x' has no fixed shape"):
        sample_feeds([TensorSpec("x", "float32", None)])
