# SPDX-License-Identifier: Apache-2.0
"""Spans of a plan that a device captures, on a device that works as late as it may."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.runtime.test_queues import CHAIN, MACHINE, Late, LateDevice, compile_chain, networks

import intarsia
from intarsia.backends.device import CapturedSteps
from intarsia.backends.registry import collect
from intarsia.errors import ExecutionError, InternalError
from intarsia.runtime.captures import CapturedSpan, CaptureRecord, find_spans
from intarsia.runtime.queued import plan_waits


class CapturingDevice(LateDevice):
    """Queues what it was shown again, by one call."""

    refuses = ""
    recording = None

    def open_queue(self):
        made = type(self)(self.options, self._memory, self.log)
        made.refuses = self.refuses
        return made

    def enqueue(self, work):
        if self.recording is None:
            return super().enqueue(work)
        item = (work,)
        self.recording.append(item)

        def wait():
            while any(item is other for other in self.queue):
                self.queue.pop(0)[0]()

        return wait

    def capture(self, steps, spare=None):
        if self.refuses:
            raise ExecutionError(self.refuses, backend="fake")
        self.log.append("capture" if spare is None else "take over")
        self.recording = recorded = []
        try:
            steps()
        finally:
            self.recording = None

        def launch():
            self.log.append(f"launch {len(recorded)}")
            self.queue.extend(recorded)

        return CapturedSteps(launch, recorded)


class Capturing(Late):
    refuses = ""

    def open(self, placed, options):
        device = CapturingDevice(options, log=self.log)
        device.refuses = self.refuses
        return device


@pytest.fixture
def late():
    return Capturing()


@pytest.fixture
def machine(backends, late):
    return collect({**backends.by_name, "fake": late}.values())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks())
def test_whatever_is_captured_the_numbers_are_right(
    parse_model, random_feeds, evaluate, assert_same, machine, network
):
    text, pins = network
    model = parse_model(text)
    reached = {node.name for node in model.graph.node}
    pins = {name: target for name, target in pins.items() if name in reached}
    exe = intarsia.compile(model, MACHINE, pins=pins, backends=machine)
    for seed in range(4):  # as they are, captured, and launched twice
        feeds = random_feeds(model, seed)
        assert_same(exe.run(feeds), evaluate(model, feeds))


def test_steps_of_one_device_are_launched_by_one_call(parse_model, machine, late):
    _, exe = compile_chain(parse_model, machine)
    feeds = {"x": np.ones(4, np.float32)}
    expected = ([], ["capture", "launch 3", "capture", "launch 3"], ["launch 3", "launch 3"])
    for lines in expected:
        late.log.clear()
        exe.run(feeds)
        assert [line for line in late.log if line.split()[0] in ("capture", "launch")] == lines


def test_a_step_that_waits_for_a_copy_begins_another_span(parse_model, machine):
    _, exe = compile_chain(parse_model, machine)
    plan = exe.plan
    (one, other) = find_spans(plan, plan_waits(plan, {1}), {1: object()})
    assert (one.first, one.device, other.device) == (0, 1, 1)
    assert one.last < other.first
    everywhere = [()] * len(plan.steps)
    everywhere[1] = (0,)
    spans = find_spans(plan, everywhere, {1: object()})
    assert [span.first for span in spans] == [1, other.first]  # a copy alone is no span
    assert find_spans(plan, everywhere, {}) == ()


def test_what_cannot_be_captured_runs_and_says_why(parse_model, machine, late, caplog):
    late.refuses = "no graphs today"
    _, exe = compile_chain(parse_model, machine)
    assert exe.explain().captures[0].endswith("one call from the second run")
    feeds = {"x": np.full(4, 2, np.float32)}
    first = exe.run(feeds)["y"]
    for _ in range(3):
        np.testing.assert_array_equal(exe.run(feeds)["y"], first)
    assert len([record for record in caplog.records if "no graphs today" in record.message]) == 2
    assert all("one by one: no graphs today" in line for line in exe.explain().captures)


def test_a_failure_in_a_span_names_its_step(parse_model, machine, late, monkeypatch):
    _, exe = compile_chain(parse_model, machine)
    feeds = {"x": np.ones(4, np.float32)}
    context = exe.context()
    context.write_inputs(list(feeds.values()))
    enqueue = CapturingDevice.enqueue

    def failing(self, work):
        if len(self.queue) == 2:  # behind a copy and a region
            raise RuntimeError("it broke")
        return enqueue(self, work)

    monkeypatch.setattr(CapturingDevice, "enqueue", failing)
    with pytest.raises(InternalError, match="copying 'b' to another device failed: it broke"):
        context.run()


def test_a_failure_of_a_launch_names_the_whole_span(parse_model, machine, late, monkeypatch):
    """Which of the steps failed nobody knows: the first one is not to blame."""
    _, exe = compile_chain(parse_model, machine)
    context = exe.context()
    context.write_inputs([np.ones(4, np.float32)])
    capture = CapturingDevice.capture

    def failing(self, steps, spare=None):
        def launch():
            raise ExecutionError("the graph broke", backend="fake", hint="mend it")

        return CapturedSteps(launch, capture(self, steps, spare).kept)

    monkeypatch.setattr(CapturingDevice, "capture", failing)
    context.run()
    for _ in range(2):  # captured, and launched again
        with pytest.raises(ExecutionError) as caught:
            context.run()
        assert caught.value.message == (
            "steps 0 to 2 on ext_dev:0/fake failed, which one call starts: the graph broke"
        )
        assert (caught.value.backend, caught.value.hint) == ("fake", "mend it")


class LastTaken(list):
    """A list whose last item another thread takes as soon as somebody has looked."""

    def __bool__(self):
        found = len(self) > 0
        self.clear()
        return found


def test_what_is_left_of_a_context_may_be_taken_by_another_thread():
    record = CaptureRecord(spares=LastTaken([object()]))
    device, ran = CapturingDevice(None), []
    span = CapturedSpan(device, [lambda: ran.append(1)], record, "a step")
    for _ in range(2):
        span()
    assert "take over" in device.log
    other = CapturedSpan(device, [lambda: ran.append(1)], record, "a step")
    for _ in range(2):
        other()
    assert device.log.count("capture") == 1


def test_a_binding_takes_over_what_an_older_one_left(parse_model, machine, late):
    model = parse_model(CHAIN)
    exe = intarsia.compile(model, "fake, reference", backends=machine)
    for expected in ("capture", "take over"):
        late.log.clear()
        x, y = np.ones(4, np.float32), np.empty(4, np.float32)
        step = exe.bind({"x": x}, {"y": y})
        for _ in range(3):
            y[:] = 0
            step()
            np.testing.assert_allclose(y, -np.exp(np.float32(-1)), rtol=1e-6)
        del step
        assert [line for line in late.log if line in ("capture", "take over")] == [expected]
