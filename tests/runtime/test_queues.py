# SPDX-License-Identifier: Apache-2.0
"""Devices with queues: what the host waits for, seen by a device that works as late as it may."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import intarsia
from intarsia.backends.device import QueuedDevice
from intarsia.backends.fake import FakeBackend, FakeDevice, FakeExecutable
from intarsia.backends.registry import collect
from intarsia.errors import ExecutionError
from intarsia.plan.plan import CopyStep
from intarsia.runtime.queued import plan_waits


class LateDevice(FakeDevice):
    """Does nothing that is queued until it is waited for, and then no more than that."""

    def __init__(self, options, memory=None, log=None):
        super().__init__(options)
        if memory is not None:
            self._memory = memory
        self.log = [] if log is None else log
        self.queue = []

    def open_queue(self):
        return LateDevice(self.options, self._memory, self.log)

    def enqueue(self, work):
        item = (work,)
        self.queue.append(item)

        def wait():
            self.log.append("wait")
            while any(item is other for other in self.queue):
                self.queue.pop(0)[0]()

        return wait

    def start_write(self, source, destination):
        return self.enqueue(lambda: FakeDevice.write(self, source, destination))

    def start_read(self, source, destination):
        return self.enqueue(lambda: FakeDevice.read(self, source, destination))

    def write(self, source, destination):
        self.start_write(source, destination)()

    def read(self, source, destination):
        self.start_read(source, destination)()

    def synchronize(self):
        self.log.append("synchronize")
        while self.queue:
            self.queue.pop(0)[0]()


class LateExecutable(FakeExecutable):
    """Queues what the fake one does at once."""

    def bind(self, inputs, outputs, scratch):
        owner = outputs[0].device
        assert all(item.device is owner for item in (*inputs, *outputs))
        plain = FakeDevice(owner.options)
        plain._memory, plain._own = owner._memory, lambda tensor: None
        self._device = plain
        work = super().bind(inputs, outputs, scratch)
        return lambda: owner.enqueue(work) and None


class Late(FakeBackend):
    """The fake accelerator with a queue."""

    def __init__(self):
        self.log = []

    def open(self, placed, options):
        return LateDevice(options, log=self.log)

    def load(self, artifact, device):
        assert isinstance(device, QueuedDevice)
        return LateExecutable(artifact, device)


@pytest.fixture
def late(backends):
    return Late()


@pytest.fixture
def machine(backends, late):
    return collect({**backends.by_name, "fake": late}.values())


TARGETS = ("fake:0", "fake:1", "reference")
MACHINE = ", ".join(TARGETS)


@st.composite
def networks(draw):
    """Return the text of a network, and the target of each node."""
    values, lines, pins = ["x", "z"], [], {}
    for number in range(draw(st.integers(1, 12))):
        op = draw(st.sampled_from(("Neg", "Abs", "Add", "Mul", "Max")))
        count = 1 if op in ("Neg", "Abs") else 2
        operands = [draw(st.sampled_from(values)) for _ in range(count)]
        lines.append(f"[n{number}] v{number} = {op}({', '.join(operands)})")
        pins[f"n{number}"] = draw(st.sampled_from(TARGETS))
        values.append(f"v{number}")
    made = values[2:]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    declared = ", ".join(f"float[33] {name}" for name in outputs)
    body = "\n".join(lines)
    return f"g (float[33] x, float[33] z) => ({declared}) {{ {body} }}", pins


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks())
def test_whatever_is_late_the_numbers_are_right(
    parse_model, random_feeds, evaluate, assert_same, machine, network
):
    text, pins = network
    model = parse_model(text)
    reached = {node.name for node in model.graph.node}
    exe = intarsia.compile(model, MACHINE, pins={n: t for n, t in pins.items() if n in reached},
                           backends=machine)  # fmt: skip
    for seed in range(2):  # the second run meets what the first left
        feeds = random_feeds(model, seed)
        assert_same(exe.run(feeds), evaluate(model, feeds))


CHAIN = """
    g (float[4] x) => (float[4] y)
    { [a] a = Neg(x) [b] b = Exp(a) [c] c = Neg(b) [d] d = Abs(c) [e] y = Neg(d) }"""


def compile_chain(parse_model, machine):
    model = parse_model(CHAIN)
    pins = {"a": "fake", "b": "fake", "c": "reference", "d": "reference", "e": "fake"}
    return model, intarsia.compile(model, "fake, reference", pins=pins, backends=machine)


def test_the_host_waits_for_what_it_reads_and_for_the_end(parse_model, machine, late):
    _, exe = compile_chain(parse_model, machine)
    late.log.clear()
    exe.run({"x": np.ones(4, np.float32)})
    assert late.log == ["wait", "synchronize"]


def test_waits_are_planned_for_devices_with_queues_only(parse_model, machine):
    _, exe = compile_chain(parse_model, machine)
    plan = exe.plan
    assert plan_waits(plan, ()) == ((),) * len(plan.steps)
    waits = plan_waits(plan, {1})
    (reader,) = [position for position, copies in enumerate(waits) if copies]
    (copy,) = waits[reader]
    assert isinstance(plan.steps[copy], CopyStep)
    assert plan.tensors[plan.steps[copy].source].name == "b"


def test_a_wait_covers_all_that_was_queued_before(parse_model, machine):
    model = parse_model("""
        g (float[4] x) => (float[4] y)
        { [a] a = Neg(x) [b] b = Exp(x) [c] c = Mul(a, b) [d] d = Add(c, b) [e] y = Neg(d) }""")
    pins = {"a": "fake", "b": "fake", "c": "reference", "d": "reference", "e": "reference"}
    exe = intarsia.compile(model, "fake, reference", pins=pins, backends=machine)
    assert len(exe.plan.copies) == 3
    assert sum(map(len, plan_waits(exe.plan, {1}))) == 1  # of two copies, for the later one


def test_a_buffer_is_not_overwritten_while_it_is_sent(parse_model, machine):
    """Two host tensors share bytes of the arena; the first is still on its way."""
    _, exe = compile_chain(parse_model, machine)
    plan = exe.plan
    sent = next(
        position
        for position, step in enumerate(plan.steps)
        if isinstance(step, CopyStep) and plan.tensors[step.source].name == "d"
    )
    source = plan.steps[sent].source
    overwrite = next(s for s in plan.steps if not isinstance(s, CopyStep) and source in s.outputs)
    again = replace(plan, steps=(*plan.steps, overwrite))
    assert plan_waits(again, {1})[-1] == (sent,)


def test_each_context_has_a_queue_of_its_own(parse_model, machine):
    _, exe = compile_chain(parse_model, machine)
    first, second = exe.context(), exe.context()
    (one,), (other,) = (context._queued for context in (first, second))
    assert one is not other
    assert one._memory is other._memory


def test_what_fails_late_is_an_error_of_the_run(parse_model, machine):
    model = parse_model("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    exe = intarsia.compile(model, "fake -fault=run, reference", backends=machine)
    with pytest.raises(ExecutionError, match="failed") as caught:
        exe.run({"x": np.ones(4, np.float32)})
    assert "the fake device failed" in caught.value.message


def test_a_profile_waits_for_every_step(parse_model, machine, late):
    _, exe = compile_chain(parse_model, machine)
    late.log.clear()
    profile = exe.profile({"x": np.ones(4, np.float32)}, runs=3)
    assert profile.runs == 3
    assert len(profile.seconds) == len(exe.plan.steps)
    assert min(profile.seconds) >= 0
    # The first run is not timed, and waits at its end only.
    assert late.log.count("synchronize") == 3 * len(exe.plan.steps) + 1
