# SPDX-License-Identifier: Apache-2.0
"""Where the user gave no order, what was chosen runs once beside what another library would do."""

import logging
import time
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import intarsia
from intarsia.backends.reference import ReferenceBackend
from intarsia.backends.registry import collect
from intarsia.backends.values import Detection
from intarsia.cost.database import CostDatabase
from intarsia.cost.exchange import export_costs
from intarsia.errors import ExecutionError
from intarsia.plan.lock import lock_plan
from intarsia.settings import Settings
from intarsia.target import Target
from intarsia.tuning import trial
from intarsia.tuning.laboratory import sampling
from intarsia.tuning.laboratory.sampling import time_in_rounds


class RunClock:
    """A clock that goes on by what runs are said to take, and a bit whenever it is read."""

    seconds = 0.0

    def __call__(self):
        self.seconds += 1e-5
        return self.seconds

    def take(self, seconds):
        self.seconds += seconds


class Library(ReferenceBackend):
    """Serves `bnns`: every run takes so long, or fails."""

    name = "library"
    kinds = ("bnns",)
    take = staticmethod(time.sleep)

    def __init__(self, seconds=0.0, rank=0, failure=None):
        self.seconds, self.rank, self.failure = seconds, rank, failure
        self.runs = 0

    def detect(self):
        return Detection((Target("bnns"),), rank=self.rank)

    def load(self, artifact, device):
        return _Counted(super().load(artifact, device), self)


class _Counted:
    scratch_bytes = 0

    def __init__(self, executable, library):
        self._executable, self._library = executable, library

    def bind(self, inputs, outputs, scratch):
        step = self._executable.bind(inputs, outputs, scratch)

        def run():
            self._library.runs += 1
            if self._library.failure is not None:
                raise self._library.failure
            self._library.take(self._library.seconds)
            step()

        return run


@pytest.fixture(autouse=True)
def probing(tmp_path, monkeypatch):
    """What users have by default, with a cost database and a clock of the test's own."""
    monkeypatch.setenv("INTARSIA_PROBE", "1")
    monkeypatch.setenv("INTARSIA_COSTS", str(tmp_path / "costs.sqlite"))
    clock = RunClock()
    monkeypatch.setattr(Library, "take", clock.take)
    monkeypatch.setattr(sampling, "perf_counter", clock)
    monkeypatch.setattr(trial, "time", SimpleNamespace(perf_counter=clock, time=time.time))


@pytest.fixture(scope="module")
def model(parse_model):
    return parse_model("g (float[4] x) => (float[4] y) { [only] a = Relu(x) y = Neg(a) }")


@pytest.fixture
def compile_with(model, backends):
    """Compiles the model for a library and ONNX Runtime; returns the program and its target."""

    def run(library, target=None, **options):
        known = collect([library, backends.named("onnxruntime"), backends.named("reference")])
        exe = intarsia.compile(model, target, backends=known, num_threads=1, **options)
        (region,) = exe.placement.regions
        return exe, region.target

    return run


def test_a_library_that_takes_twice_as_long_goes_last(compile_with, caplog):
    slow = Library(seconds=3e-3)
    with caplog.at_level(logging.INFO, "intarsia"):
        exe, target = compile_with(slow)
    assert target == "onnxruntime"
    assert slow.runs > 0
    (line,) = exe.placement.passed_over
    assert line.startswith("bnns goes last: a run takes ")
    assert line.endswith(" ms with onnxruntime in its place")
    assert line in str(exe.explain())
    assert [r.levelno for r in caplog.records if r.getMessage() == line] == [logging.INFO]
    x = np.array([-1, 0, 1, 2], np.float32)
    np.testing.assert_array_equal(exe(x), -np.maximum(x, 0))


@pytest.mark.parametrize(("clear", "rounds"), [(2.0, 1), (1e9, 2)])
def test_what_is_not_clear_is_timed_again(clear, rounds, compile_with, monkeypatch):
    monkeypatch.setattr(trial, "CLEAR", clear)
    timed = []

    def count(*arguments, **options):
        timed.append(arguments)
        return time_in_rounds(*arguments, **options)

    monkeypatch.setattr(trial, "time_in_rounds", count)
    assert compile_with(Library(seconds=3e-3))[1] == "onnxruntime"
    assert len(timed) == rounds


def test_a_library_that_is_not_slower_stays(compile_with, caplog):
    slow = Library(seconds=3e-3, rank=99)
    with caplog.at_level(logging.INFO, "intarsia"):
        exe, target = compile_with(slow)
    assert target == "onnxruntime"
    assert slow.runs > 0
    assert exe.placement.passed_over == ()
    assert [r for r in caplog.records if r.getMessage().startswith("onnxruntime stays: a run")]


def test_the_same_database_gives_the_same_plan_and_nothing_runs(compile_with):
    first, _ = compile_with(Library(seconds=3e-3))
    quick = Library()  # it would stay, if it were timed
    again, target = compile_with(quick)
    assert target == "onnxruntime"
    assert again.placement == first.placement
    assert compile_with(Library(rank=99))[1] == "onnxruntime"
    assert quick.runs == 0


def test_both_times_are_measured_costs(compile_with):
    compile_with(Library(seconds=3e-3))
    with CostDatabase.open(settings=Settings.from_environment(), create=False) as database:
        text = "".join(export_costs(database))
    assert "bnns" in text
    assert "onnxruntime" in text


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("bnns, onnxruntime", {}),
        (None, {"probe": False}),
        (None, {"pins": {"only": "cpu"}}),
        (None, {"exclude": ["onnxruntime:Neg"]}),
        (None, {"strict": True}),
        (None, {"placement": "greedy"}),
        (None, {"placement": "manual"}),
    ],
)
def test_nothing_runs_where_it_was_forbidden_or_something_was_said(compile_with, target, options):
    slow = Library(seconds=3e-3)
    exe, _ = compile_with(slow, target, **options)
    assert slow.runs == 0
    assert not any("goes last" in line for line in exe.placement.passed_over)


def test_nothing_runs_for_a_lock_file(compile_with):
    slow = Library(seconds=3e-3)
    lock = lock_plan(compile_with(slow, probe=False)[0].plan)
    assert compile_with(slow, frozen=lock)[1] == "bnns"
    assert slow.runs == 0


def test_nothing_runs_if_the_setting_says_so(compile_with, monkeypatch):
    monkeypatch.setenv("INTARSIA_PROBE", "0")
    slow = Library(seconds=3e-3)
    assert compile_with(slow)[1] == "bnns"
    assert slow.runs == 0
    assert compile_with(slow, probe=True)[1] == "onnxruntime"


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_NODES"])
def test_nothing_runs_of_a_large_model(limit, compile_with, monkeypatch):
    monkeypatch.setattr(trial, limit, -1)
    slow = Library(seconds=3e-3)
    assert compile_with(slow)[1] == "bnns"
    assert slow.runs == 0


def test_what_runs_long_runs_once(compile_with, monkeypatch):
    monkeypatch.setattr(trial, "MOST_SECONDS", 1e-3)
    slow = Library(seconds=3e-3)
    assert compile_with(slow)[1] == "bnns"
    assert slow.runs == 1


@pytest.mark.parametrize(
    ("firsts", "runs", "target"),
    [
        ((40.0, 10.0), 2, "onnxruntime"),  # there is no time for more, and it is clear
        ((30.0, 20.0), 2, "bnns"),  # it is not
        ((10.0, 40.0), 2, "bnns"),  # nothing could be won
        ((20.0, 10.0, 20.0, 9.0), 4, "onnxruntime"),
        ((20.0, 10.0, 20.0, 11.0), 4, "bnns"),
        ((46.0,), 1, "bnns"),  # the other one would not fit in
    ],
)
def test_what_runs_long_is_decided_in_time(firsts, runs, target, compile_with, monkeypatch):
    """By the first runs alone, if there is no time for more: these take seconds of a budget."""
    monkeypatch.setattr(trial, "MOST_SECONDS", 45.0)
    monkeypatch.setattr(trial, "LONG_SECONDS", 1.0)
    waiting = list(firsts)
    monkeypatch.setattr(trial, "_time_run", lambda context: waiting.pop(0))
    assert compile_with(Library())[1] == target
    assert len(firsts) - len(waiting) == runs


def test_what_runs_rather_long_is_decided_by_one_more_run(compile_with, monkeypatch):
    monkeypatch.setattr(trial, "LONG_SECONDS", 1e-3)
    slow = Library(seconds=3e-3)
    assert compile_with(slow)[1] == "onnxruntime"
    assert slow.runs == 2


@pytest.mark.parametrize("failure", [ValueError("no"), ExecutionError("no")])
def test_a_run_that_fails_changes_nothing(failure, compile_with, tmp_path):
    failing = Library(failure=failure)
    assert compile_with(failing)[1] == "bnns"
    assert failing.runs == 1
    assert not (tmp_path / "costs.sqlite").exists()


def test_a_damaged_database_is_one_warning(compile_with, tmp_path, caplog):
    (tmp_path / "costs.sqlite").write_bytes(b"no database" * 100)
    assert compile_with(Library(seconds=3e-3))[1] == "onnxruntime"
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert line.startswith("the costs cannot be read, so placement is greedy: ")


def test_a_program_that_was_kept_needs_no_other_trial(
    tmp_path, own_cache, parse_model, monkeypatch
):
    pytest.importorskip("openvino")
    monkeypatch.setenv("INTARSIA_PROGRAMS", "1")
    model = parse_model(
        """g (float[1,1,8,8] x, float[1,5] r) => (float[1,1,2,2] y)
        { y = MaxRoiPool<pooled_shape = [2, 2]>(x, r) }"""
    )
    file = tmp_path / "pool.onnx"
    onnx.save(model, file)
    tried = []
    choose = trial.choose_quicker

    def count(setting, decision, builder):
        tried.append(decision)
        return choose(setting, decision, builder)

    monkeypatch.setattr(trial, "choose_quicker", count)
    first = intarsia.compile(file, num_threads=1)
    assert (tmp_path / "costs.sqlite").exists()
    assert intarsia.compile(file, num_threads=1).placement == first.placement
    assert len(tried) == 1
    intarsia.compile(file, num_threads=1, probe=False)
    assert len(list(own_cache.glob("programs/*.intarsia"))) == 2
    assert len(tried) == 1
