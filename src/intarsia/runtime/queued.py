# SPDX-License-Identifier: Apache-2.0
"""Copies that a device with a queue does later, and what has to wait for them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from intarsia.backends.device import Buffer, Device, QueuedDevice, Step, peer_of
from intarsia.plan.plan import HOST, CopyStep, Plan, PlanStep, TensorStorage


class QueuedCopy:
    """A copy between host memory and a device with a queue: started by a call, waited for later."""

    __slots__ = ("_destination", "_device", "_source", "_to_device", "pending")

    def __init__(
        self, device: QueuedDevice, source: Buffer, destination: Buffer, *, to_device: bool
    ) -> None:
        self._device = device
        self._source = source
        self._destination = destination
        self._to_device = to_device
        self.pending: Step | None = None
        """What waits until it is done; None if it was not queued."""

    def __call__(self) -> None:
        """Queue it."""
        start = self._device.start_write if self._to_device else self._device.start_read
        self.pending = start(self._source, self._destination)

    def wait(self) -> None:
        """Wait until it is done, if it was queued."""
        if self.pending is not None:
            self.pending()
            self.pending = None


@dataclass(frozen=True, slots=True)
class _HostAccess:
    """Host memory that a step reads or writes: bytes of the arena, or a tensor by itself."""

    tensor: int
    start: int
    end: int
    in_arena: bool
    is_written: bool

    def is_against(self, other: _HostAccess) -> bool:
        """Tell whether the order of the two matters."""
        if not (self.is_written or other.is_written):
            return False
        if self.in_arena and other.in_arena:
            return self.start < other.end and other.start < self.end
        return self.tensor == other.tensor


def copy_routes(plan: Plan, devices: Sequence[Device]) -> list[str]:
    """Return for each copy of a plan how it goes from one device to another.

    Args:
        plan: What is run.
        devices: Its memories.
    """
    routes = []
    for step in plan.copies:
        ends = [plan.tensors[i].device for i in (step.source, step.destination)]
        if HOST in ends:
            routes.append("")
        else:
            peer = peer_of(devices[ends[1]], devices[ends[0]])
            routes.append("through the host" if peer is None else "direct")
    return routes


def plan_waits(plan: Plan, queued: Container[int]) -> tuple[tuple[int, ...], ...]:
    """Return for each step of a plan the copies, by position, to wait for before it.

    A queue is in order: waiting for a copy waits for all before it on that device.

    Args:
        plan: What is run.
        queued: Positions in `plan.devices` of the devices that have queues.
    """
    pending: dict[int, tuple[int, _HostAccess]] = {}
    waits: list[tuple[int, ...]] = []
    for position, step in enumerate(plan.steps):
        accesses = _host_accesses(plan, step)
        needed: list[int] = []
        # The latest first: in an in-order queue, waiting for it waits for all before it too.
        for copy in sorted(pending, reverse=True):
            if copy in pending and any(pending[copy][1].is_against(item) for item in accesses):
                needed.append(copy)
                queue = pending[copy][0]
                for earlier in [at for at in pending if at <= copy and pending[at][0] == queue]:
                    del pending[earlier]
        waits.append(tuple(sorted(needed)))
        device = queued_side(plan, step, queued)
        if device is not None and accesses:
            pending[position] = (device, accesses[0])
    return tuple(waits)


def queued_side(plan: Plan, step: PlanStep, queued: Container[int]) -> int | None:
    """Return the device of a copy between the host and a device with a queue, else None."""
    if not isinstance(step, CopyStep):
        return None
    sides = (plan.tensors[step.source].device, plan.tensors[step.destination].device)
    if HOST not in sides:
        return None
    device = sides[1] if sides[0] == HOST else sides[0]
    return device if device in queued else None


def _host_accesses(plan: Plan, step: PlanStep) -> list[_HostAccess]:
    if isinstance(step, CopyStep):
        sides = [(step.source, False), (step.destination, True)]
    else:
        sides = [*((i, False) for i in step.inputs), *((i, True) for i in step.outputs)]
    accesses = []
    for position, is_written in sides:
        tensor = plan.tensors[position]
        if tensor.device == HOST:
            end = tensor.offset + tensor.spec.nbytes
            in_arena = tensor.storage is TensorStorage.ARENA
            accesses.append(_HostAccess(position, tensor.offset, end, in_arena, is_written))
    return accesses
