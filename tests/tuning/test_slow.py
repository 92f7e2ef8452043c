# SPDX-License-Identifier: Apache-2.0
"""The line that says that the reference evaluator has nodes says what time it takes."""

import logging
import re

import pytest
from tests.place.test_host import MODELS, expected_of

import intarsia
from intarsia.backends.registry import collect
from intarsia.tuning import trial

TIME = re.compile(r"; reference takes (\S+) ms of the (\S+) ms of a run$")
ENDLESS = """
g (float[4] x) => (float[4] y) <int64 trips = {1000000000000}, bool go = {1}> {
    [first] r = Relu(x)
    [special] t = Loop (trips, go, r) <
        body = b (int64 i, bool before, float[4] v) => (bool after, float[4] w) {
            after = Identity(before) w = Add(v, r) }>
    [last] y = Sigmoid(t)
}"""


@pytest.fixture
def compile_slowly(backends, caplog, monkeypatch):
    """Compiles for targets beside which nothing but the evaluator is there; returns the line."""
    monkeypatch.setattr(trial, "LIMIT_SECONDS", 600.0)  # for the start of a process, too
    known = collect([backends.named(name) for name in ("llvm", "fake", "reference")])

    def run(model, target, **options):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "intarsia"):
            exe = intarsia.compile(model, target, backends=known, **options)
        (line,) = [text for text in caplog.messages if " on reference" in text]
        assert line.startswith(exe.placement.shortfall)
        return exe, line

    return run


@pytest.mark.parametrize(
    "target", ["llvm", "fake -ops=Relu,Sigmoid, llvm", "fake -ops=Relu, reference"]
)
def test_the_line_carries_the_time(target, parse_model, compile_slowly, random_feeds, assert_same):
    model = parse_model(MODELS["Det"])
    exe, line = compile_slowly(model, target, probe=True)
    taken, whole = map(float, TIME.search(line).groups())
    assert 0 < taken <= whole
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), expected_of(model, feeds))


@pytest.mark.exhaustive
@pytest.mark.parametrize("operator", MODELS)
def test_the_line_carries_the_time_of_whatever_falls_to_it(operator, parse_model, compile_slowly):
    model = parse_model(MODELS[operator])
    assert TIME.search(compile_slowly(model, "fake -ops=Relu, reference", probe=True)[1])


def test_nothing_runs_where_that_is_forbidden(parse_model, compile_slowly, monkeypatch):
    def fail(*_):
        pytest.fail("a process was started")

    monkeypatch.setattr(trial, "Worker", fail)
    line = compile_slowly(parse_model(MODELS["Det"]), "llvm", probe=False)[1]
    assert not TIME.search(line)


def test_a_run_without_an_end_is_ended(parse_model, compile_slowly, monkeypatch):
    monkeypatch.setattr(trial, "LIMIT_SECONDS", 6.0)
    line = compile_slowly(parse_model(ENDLESS), "fake -ops=Relu, reference", probe=True)[1]
    assert line.endswith("; reference takes over 6 s of a run")


@pytest.mark.parametrize("fault", ["segfault", "run"])
def test_a_run_that_fails_costs_the_time_alone(fault, parse_model, compile_slowly):
    target = f"fake -ops=Relu -fault={fault}, reference"
    line = compile_slowly(parse_model(MODELS["Det"]), target, probe=True)[1]
    assert not TIME.search(line)


def test_a_program_that_is_too_large_is_not_written(parse_model, compile_slowly, monkeypatch):
    monkeypatch.setattr(trial, "MOST_PROGRAM_BYTES", -1)
    line = compile_slowly(parse_model(MODELS["Conv"]), "fake -ops=Relu, reference", probe=True)[1]
    assert not TIME.search(line)
