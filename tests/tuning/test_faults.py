# SPDX-License-Identifier: Apache-2.0
"""Whatever a backend does costs the probe that was at work, and nothing else."""

import math
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from intarsia.errors import ReasonCode
from intarsia.measure import racing
from intarsia.process import workers
from intarsia.process.workers import Limits, resident_bytes
from intarsia.tuning.laboratory.store import Mark, WorkerStage
from intarsia.tuning.laboratory.values import OutOfTimeError, Probe

COSTS = "-cost=MatMul:5e-3,Relu:1e-3,Sigmoid:2e-3,Tanh:3e-3,Add:4e-3 -call-cost=1e-4"

FAULTS = {
    "compile": (ReasonCode.COMPILE_FAILED, "as its target asks"),
    "load": (ReasonCode.COMPILE_FAILED, "as its target asks"),
    "shape": (ReasonCode.NUMERICS, "the model says"),
    "dtype": (ReasonCode.NUMERICS, "float64"),
    "run": (ReasonCode.CRASHED, "as its target asks"),
    "nan": (ReasonCode.NUMERICS, "NaN in 8 places"),
    "wrong": (ReasonCode.NUMERICS, "is off by up to"),
    "segfault": (ReasonCode.CRASHED, "SIGSEGV"),
    "compile-segfault": (ReasonCode.CRASHED, "while compiling"),
    "hang": (ReasonCode.TIMEOUT, "while running once"),
    "compile-hang": (ReasonCode.TIMEOUT, "while compiling"),
}


def is_at(laboratory, stage, probe):
    """Whether the worker is doing something with a probe."""
    return Mark(laboratory._folder).get() == (stage, laboratory._ids.get(probe))


@pytest.fixture
def run_out_of_time(monkeypatch):
    """A function that lets time pass as soon as a probe is at some stage, and not before."""
    awaited = []

    def monotonic():
        later = 1e6 if awaited and is_at(*awaited[-1]) else 0.0
        return time.monotonic() + later

    monkeypatch.setattr(
        workers, "time", SimpleNamespace(monotonic=monotonic, perf_counter=time.perf_counter)
    )
    return lambda *place: awaited.append(place)


@pytest.mark.exhaustive
def test_a_fault_costs_the_probe_that_has_it_and_no_other(
    chain_model, open_laboratory, run_out_of_time
):
    targets = [f"fake:0 {COSTS}", *(f"fake:{i} -fault={f}" for i, f in enumerate(FAULTS, 1))]
    laboratory = open_laboratory(chain_model, targets)
    good = [Probe.region(0, [node]) for node in (0, 3)]
    bad = {fault: Probe.region(i, [3]) for i, fault in enumerate(FAULTS, 1)}
    laboratory.prepare(good)
    for fault, probe in bad.items():
        if fault.endswith("hang"):
            stage = WorkerStage.COMPILE if fault.startswith("compile") else WorkerStage.RUN
            run_out_of_time(laboratory, stage, probe)
        refusal = laboratory.prepare([probe])[probe].refusal
        code, words = FAULTS[fault]
        assert refusal[0] is code, fault
        assert words in refusal[1], fault
    assert laboratory.deaths == 4
    race = laboratory.race([*bad.values(), *good], rounds=3)
    assert set(race.refusals) == set(bad.values())
    assert race.seconds[good[0]] == pytest.approx([5.1e-3] * 3)
    assert race.seconds[good[1]] == pytest.approx([3.1e-3] * 3)
    assert all(math.isnan(one) for probe in bad.values() for one in race.seconds[probe])


@pytest.mark.exhaustive
def test_a_run_that_fails_later_costs_the_rounds_of_its_probe(chain_model, open_laboratory):
    laboratory = open_laboratory(chain_model, f"fake:0 {COSTS}, fake:1 -fault=later-segfault")
    good, bad = Probe.region(0, [0]), Probe.region(1, [3])
    assert laboratory.prepare([good, bad])[bad].refusal is None
    race = laboratory.race([good, bad], rounds=20)
    assert race.seconds[good] == pytest.approx([5.1e-3] * 20)
    assert race.refusals[bad][0] is ReasonCode.CRASHED
    assert "while being timed" in race.refusals[bad][1]


def test_a_leak_costs_the_probe_that_leaks(chain_model, open_laboratory):
    laboratory = open_laboratory(chain_model, f"fake {COSTS} -fault=leak -fault-ops=Tanh")
    good, bad = Probe.region(0, [0]), Probe.region(0, [3])
    laboratory.prepare([good, bad])
    laboratory.limits = Limits(60, laboratory_bytes(laboratory) + (256 << 20))
    race = laboratory.race([good, bad], rounds=20)
    assert race.refusals[bad][0] is ReasonCode.CRASHED
    assert "memory" in race.refusals[bad][1]
    assert set(race.refusals) == {bad}
    assert race.seconds[good] == pytest.approx([5.1e-3] * 20)


def test_what_is_ready_together_is_no_fault_of_the_next(chain_model, open_laboratory, monkeypatch):
    laboratory = open_laboratory(chain_model, f"fake {COSTS}")
    first, second = Probe.region(0, [0]), Probe.region(0, [1])
    laboratory.prepare([first])
    call, killed = laboratory._worker.call, []

    def run_out_of_memory_once(function, *arguments, **options):
        if function.endswith(":prepare") and not killed:
            killed.append(laboratory._worker.pid)
            os.kill(killed[0], signal.SIGKILL)
            while laboratory._worker.pid is not None:
                time.sleep(0.01)
        return call(function, *arguments, **options)

    monkeypatch.setattr(laboratory._worker, "call", run_out_of_memory_once)
    assert laboratory.prepare([second])[second].refusal is None
    assert laboratory.deaths == 1
    assert laboratory.race([first, second], rounds=1).seconds[first] == pytest.approx((5.1e-3,))


def laboratory_bytes(laboratory):
    return resident_bytes(laboratory._worker.pid)


def test_one_slow_run_changes_nothing(chain_model, open_laboratory):
    laboratory = open_laboratory(
        chain_model, f"fake:0 {COSTS} -fault=slow-once -fault-ops=Tanh, fake:1 -cost=Tanh:4e-3"
    )
    slow_once, other = Probe.region(0, [3]), Probe.region(1, [3])
    result = racing.halve(
        [other, slow_once], lambda *field: laboratory.race(field[0], rounds=field[1]).seconds
    )
    assert result.winner == slow_once
    assert max(result.samples[slow_once]) == pytest.approx(0.3, rel=0.1)


def test_a_budget_ends_what_may_be_loaded(chain_model, open_laboratory):
    laboratory = open_laboratory(chain_model, f"fake {COSTS} -budget=2")
    found = list(laboratory.prepare([Probe.region(0, [node]) for node in (0, 1, 2)]).values())
    assert [one.refusal is None for one in found] == [True, True, False]
    assert "may load no more" in found[2].refusal[1]


def test_a_worker_that_dies_between_two_calls_is_replaced(chain_model, open_laboratory):
    laboratory = open_laboratory(chain_model, f"fake {COSTS}")
    probe = Probe.region(0, [0])
    laboratory.prepare([probe])
    os.kill(laboratory._worker.pid, signal.SIGKILL)
    while laboratory._worker.pid is not None:
        time.sleep(0.01)
    race = laboratory.race([probe], rounds=2)
    assert race.seconds[probe] == pytest.approx([5.1e-3] * 2)
    assert not race.refusals


def test_an_interruption_loses_no_more_than_the_call_in_flight(chain_model, open_laboratory):
    laboratory = open_laboratory(
        chain_model, f"fake {COSTS} -fault=hang -fault-ops=Tanh", limits=Limits(seconds=60)
    )
    good, bad = Probe.region(0, [0]), Probe.region(0, [3])
    laboratory.prepare([good])
    over = threading.Event()

    def interrupt():
        while not over.wait(0.01):
            if is_at(laboratory, WorkerStage.RUN, bad):
                signal.raise_signal(signal.SIGINT)
                return

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            laboratory.prepare([bad])
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert laboratory.race([good], rounds=2).seconds[good] == pytest.approx([5.1e-3] * 2)


def test_what_there_is_no_time_for_is_stopped_and_nobody_is_to_blame(
    chain_model, open_laboratory, run_out_of_time
):
    laboratory = open_laboratory(
        chain_model, f"fake {COSTS} -fault=compile-hang -fault-ops=Tanh", limits=Limits(seconds=60)
    )
    good, slow = Probe.region(0, [0]), Probe.region(0, [3])
    laboratory.prepare([good])
    laboratory.left = lambda: 30.0
    run_out_of_time(laboratory, WorkerStage.COMPILE, slow)
    with pytest.raises(OutOfTimeError, match="out of time while compiling"):
        laboratory.prepare([slow])
    laboratory.left = lambda: 0.0
    with pytest.raises(OutOfTimeError):
        laboratory.race([good], rounds=2)
    laboratory.left = lambda: 60.0
    race = laboratory.race([good], rounds=2)
    assert race.seconds[good] == pytest.approx([5.1e-3] * 2)
    assert not race.refusals


def test_files_and_process_are_gone_afterwards(chain_model, open_laboratory):
    laboratory = open_laboratory(chain_model, f"fake {COSTS}")
    laboratory.prepare([Probe.region(0, [0])])
    folder = laboratory._folder
    assert list(folder.iterdir())
    laboratory.close()
    assert not folder.exists()
    assert laboratory._worker.pid is None
