# SPDX-License-Identifier: Apache-2.0
"""Steps of a plan that a device starts by one call: which they are, and when they are captured.

A GPU's driver takes some microseconds for every kernel and every copy that is queued, and Python
more. So steps that follow one another on one device are captured as they are queued (on NVIDIA's: a
graph of the driver's), and a run starts that. Addresses are in it: a context has its own.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from intarsia.backends.device import CapturingDevice, Device, Step, capturing_of, queue_of
from intarsia.errors import ExecutionError
from intarsia.plan.plan import Plan, RegionStep
from intarsia.runtime.queued import QueuedCopy, plan_waits, queued_side

logger = logging.getLogger(__name__)

_MOST_SPARES = 2


@dataclass(frozen=True, slots=True)
class StepSpan:
    """Steps of a plan that follow one another on one device.

    Attributes:
        first: Position of the first in `Plan.steps`.
        last: Position behind the last.
        device: Position in `Plan.devices`.
    """

    first: int
    last: int
    device: int

    def title(self, plan: Plan) -> str:
        """Return its steps and its device, in words."""
        count, device = self.last - self.first, plan.devices[self.device]
        if count == 1:
            return f"step {self.first} on {device}"
        return f"steps {self.first} to {self.last - 1} on {device}"


@dataclass(slots=True)
class CaptureRecord:
    """What the contexts of a program know of a span.

    Attributes:
        problem: Why it is not captured; empty if nothing is known against it.
        spares: Of contexts that are gone: what the next capture may take over.
    """

    problem: str = ""
    spares: list[object] = field(default_factory=list)


def capturing_devices(devices: Sequence[Device]) -> dict[int, CapturingDevice]:
    """Return the devices that capture, by position."""
    found = ((position, capturing_of(device)) for position, device in enumerate(devices))
    return {position: device for position, device in found if device is not None}


def describe_spans(
    plan: Plan, devices: Sequence[Device], records: Mapping[StepSpan, CaptureRecord]
) -> tuple[str, ...]:
    """Say for each span of a plan that it is captured, or why it is not.

    Args:
        plan: Whose stages, if it has any, are bound at sizes that the data decides, each by itself.
        devices: Its memories.
        records: What is known by now.
    """
    able = capturing_devices(devices)
    if not able or plan.late:
        return ()
    queued = {position for position, one in enumerate(devices) if queue_of(one) is not None}
    lines = []
    for span in find_spans(plan, plan_waits(plan, queued), able):
        record = records.get(span, CaptureRecord())
        how = f"one by one: {record.problem}" if record.problem else "one call from the second run"
        lines.append(f"{span.title(plan)}: {how}")
    return tuple(lines)


def find_spans(
    plan: Plan, waits: Sequence[Sequence[int]], devices: Mapping[int, object]
) -> tuple[StepSpan, ...]:
    """Return the spans of a plan that are worth a capture: those with a region.

    A step before which the host waits for a copy begins another one.

    Args:
        plan: What is run.
        waits: For each step the copies to wait for before it.
        devices: By position, those that capture.
    """
    spans: list[StepSpan] = []
    if not devices:
        return ()
    first, device, has_region = 0, -1, False
    for position in range(len(plan.steps) + 1):
        on = _device_of(plan, position, devices) if position < len(plan.steps) else -1
        if on != device or (on >= 0 and waits[position]):
            if device >= 0 and has_region:
                spans.append(StepSpan(first, position, device))
            first, device, has_region = position, on, False
        if on >= 0:
            has_region = has_region or isinstance(plan.steps[position], RegionStep)
    return tuple(spans)


def _device_of(plan: Plan, position: int, devices: Mapping[int, object]) -> int:
    """Return the device that captures a step; -1 if none does."""
    step = plan.steps[position]
    if isinstance(step, RegionStep):
        found = plan.devices.index(plan.placement.regions[step.region].device)
        return found if found in devices else -1
    side = queued_side(plan, step, devices)
    return -1 if side is None else side


class CapturedSpan:
    """The bound steps of a span: a call runs them, from the second on by one launch.

    The first call is theirs as they are: many contexts run once, and the driver loads kernels then,
    which it does not in a capture. The second captures them.

    Args:
        device: On which they are.
        steps: Them.
        record: What is known of the span.
        place: For messages.

    Attributes:
        place: As given.
    """

    def __init__(
        self, device: CapturingDevice, steps: Sequence[Step], record: CaptureRecord, place: str
    ) -> None:
        self.reached: int | None = 0
        """Which of them failed, if the last call did; None if their launch did."""
        self.place = place
        self._device, self._steps, self._record = device, steps, record
        self._has_run = False
        self._launch: Step | None = None  # no method of its own: a context is no cycle

    def __call__(self) -> None:
        """Run them."""
        if self._launch is None and self._has_run and not self._record.problem:
            self._launch = self._capture()
        if self._launch is not None:
            self.reached = None
            self._launch()
            return
        self._run_each()
        self._has_run = True

    def _run_each(self) -> None:
        for self.reached, step in enumerate(self._steps):  # noqa: B020 - read by the handler
            step()

    def _capture(self) -> Step | None:
        """Return what launches them; None if they cannot be captured, as the record says then."""
        record = self._record
        try:
            spare = record.spares.pop()
        except IndexError:  # asked first, another thread might take the last one in between
            spare = None
        try:
            captured = self._device.capture(self._run_each, spare)
        except ExecutionError as error:  # if the device is at fault, it fails again right behind
            record.problem = error.message
            logger.warning("%s run one by one: %s", self.place, error.message)
            return None
        finally:
            self.reached = 0
        copies = [step for step in self._steps if isinstance(step, QueuedCopy)]
        waits = [(copy, copy.pending) for copy in copies]
        # A context may outlive its program, whose record goes with it.
        kept = weakref.finalize(self, _keep, record.spares, captured.kept)
        kept.atexit = False

        def launch() -> None:
            captured.launch()
            for copy, pending in waits:
                copy.pending = pending

        return launch


def _keep(spares: list[object], kept: object) -> None:
    if len(spares) < _MOST_SPARES:
        spares.append(kept)
