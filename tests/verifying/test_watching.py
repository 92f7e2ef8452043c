# SPDX-License-Identifier: Apache-2.0
"""Every region of a run is compared with the reference: a fault is named where it is."""

import contextlib
import threading
import time

import numpy as np
import onnx
import pytest

import intarsia
from intarsia.backends import fake
from intarsia.errors import SettingError
from intarsia.place.request import Request
from intarsia.process.workers import own_seconds
from intarsia.runtime import monitor
from intarsia.verifying import references
from intarsia.verifying.values import Symptom
from intarsia.verifying.verify import VerifyOptions, VerifyWorkers, verify
from intarsia.verifying.watching import WHOLE, open_verified


@pytest.fixture
def model(parse_model):
    return parse_model(
        "g (float[4,6] x) => (float[4,6] y, int64[4,1] most) {"
        " [first] a = Sin(x) [second] b = Softmax(a) [third] c = Mul(b, x)"
        " [fourth] y = Tanh(c) [fifth] most = ArgMax<axis=1>(y) }"
    )


class SleepClock:
    """A clock of its thread's sleeps alone: whatever else the machine does takes no time."""

    def __init__(self):
        self.seconds, self.thread = 0.0, threading.get_ident()

    def __call__(self):
        if threading.get_ident() != self.thread:
            return own_seconds()
        self.seconds += 1e-4  # so that the reference takes some, and half a second is many times
        return self.seconds

    def sleep(self, seconds):
        if threading.get_ident() != self.thread:
            time.sleep(seconds)
        else:
            self.seconds += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = SleepClock()
    for module in (fake, monitor, references):
        monkeypatch.setattr(module, "own_seconds", clock)
    monkeypatch.setattr(fake, "time", clock)
    return clock


def opened(model, target, **more):
    request = Request(model=model, target=target, probe=False, num_threads=1, **more)
    return open_verified("g.onnx", request, None)


@pytest.mark.parametrize(
    ("fault", "symptom", "run"),
    [
        ("wrong", Symptom.WRONG, 0),
        ("layout", Symptom.WRONG, 0),
        ("nan", Symptom.NAN, 0),
        ("later-wrong", Symptom.WRONG, 2),
        ("leak", Symptom.LEAK, 2),
        ("slow", Symptom.SLOW, 2),
    ],
)
def test_a_fault_is_named_with_its_region_run_and_worst_element(model, clock, fault, symptom, run):
    verified, feeds = opened(model, f"fake -ops=Softmax,Mul -fault={fault}, onnxruntime")
    for _ in range(run):
        verified.run(feeds)
        assert not verified.faults
    outputs = verified.run(feeds)
    assert (clock.seconds > 1) == (fault == "slow")
    assert set(outputs) == {"y", "most"}
    (found,) = verified.faults
    assert (found.nodes, found.run) == (("second", "third"), run)
    assert found.target.startswith("fake")
    assert found.fault.symptom is symptom
    worst = verified.agreements()[found.region].worst
    assert (worst is None) == (symptom in (Symptom.LEAK, Symptom.SLOW))
    for row in verified.agreements():
        assert not row.unchecked
        if row.region != found.region:  # what follows a fault is fed with it, and is right
            assert row.error <= 1


def test_a_program_that_is_right_has_no_fault(model):
    verified, feeds = opened(model, "dnnl, llvm")
    for _ in range(2):
        outputs = verified.run(feeds)
    assert not verified.faults
    assert [row.unchecked for row in verified.agreements()] == [""] * len(verified.agreements())
    np.testing.assert_array_equal(outputs["most"][:, 0], np.argmax(outputs["y"], 1))


def test_a_wrong_rewrite_is_seen_in_the_whole(model, monkeypatch):
    verified, feeds = opened(model, "reference")
    run = verified._monitor.run

    def off(*arguments):
        return {name: value + 1 for name, value in run(*arguments).items()}

    monkeypatch.setattr(verified._monitor, "run", off)
    verified.run(feeds)
    (found,) = verified.faults
    assert found.region == WHOLE
    assert "off by" in str(found)


def test_blocked_layouts_other_memories_and_late_sizes_are_compared(parse_model):
    convs = parse_model(
        "g (float[1,16,8,8] x, float[2,3] z, float[16,16,3,3] w, float[16,16,1,1] v, int64[1] axis)"
        " => (float[1,16,8,8] y, int64[2,n] at, float[n] s) {"
        " a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) y = Conv(b, v)"
        " at = NonZero(z) t = Cast<to=1>(at) two = ReduceSum<keepdims=0>(t, axis) s = Sqrt(two) }"
    )
    rng = np.random.default_rng(0)
    del convs.graph.input[2:]
    for name, shape in (("w", (16, 16, 3, 3)), ("v", (16, 16, 1, 1))):
        array = rng.standard_normal(shape).astype(np.float32)
        convs.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    axis = onnx.numpy_helper.from_array(np.array([0]), "axis")
    convs.graph.initializer.append(axis)
    verified, feeds = opened(convs, "fake -ops=Relu, dnnl, llvm")
    verified.run(feeds)
    assert not verified.faults
    assert {row.unchecked for row in verified.agreements()} == {""}
    assert {row.target.split()[0] for row in verified.agreements()} >= {"fake", "dnnl", "llvm"}


def test_a_package_has_its_model_or_is_given_it(model, tmp_path):
    file = tmp_path / "g.intarsia"
    intarsia.compile(model, "llvm", num_threads=1).save(file)
    verified, feeds = open_verified(file, None, None)
    verified.run(feeds)
    assert not verified.faults
    assert all(not row.unchecked for row in verified.agreements())
    intarsia.compile(model, "onnxruntime", num_threads=1).save(file)
    with pytest.raises(SettingError, match="holds no model"):
        open_verified(file, None, None)
    verified, feeds = open_verified(file, Request(model=model), None)
    verified.run(feeds)
    assert all(not row.unchecked for row in verified.agreements())


def test_it_says_why_the_whole_is_not_compared(model):
    verified, feeds = opened(model, "onnxruntime")

    def unreadable():
        raise SettingError("no such size")

    verified._model = unreadable
    verified.run(feeds)
    assert not verified.faults
    assert verified.unchecked == "the outputs of the whole were not compared: no such size"
    whole, feeds = opened(model, "onnxruntime")
    whole.run(feeds)
    assert not whole.unchecked


@pytest.mark.exhaustive
def test_workers_verify_more_than_once_and_are_left_to_their_caller(model, tmp_path):
    file = tmp_path / "g.onnx"
    onnx.save(model, file)
    workers = VerifyWorkers(1)
    with contextlib.closing(workers):
        processes = set()
        for fault, operator in (("wrong", "Softmax"), ("nan", "Mul"), ("segfault", "Tanh")):
            target = f"fake -ops=Softmax,Mul,Tanh -fault={fault} -fault-ops={operator}, onnxruntime"
            request = Request(model=file, target=target, num_threads=1, cache=False, probe=False)
            options = VerifyOptions(out=tmp_path / fault)
            found = verify(file, request, options=options, workers=workers)
            assert found.faults[0].fault.symptom.startswith({"segfault": "crash"}.get(fault, fault))
            assert found.smallest.operators == (operator,)
            processes.add(workers.watching.pid)
        assert None not in processes
        assert len(processes) == 2  # the same one until it died
    assert workers.watching.pid is None
    assert workers.trying.pid is None
