# SPDX-License-Identifier: Apache-2.0
"""What a worker process runs to time what lies between regions: copies, and calls of nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.device import Device, HostDevice, Step, ThreadOptions
from intarsia.backends.values import TensorSpec
from intarsia.graph.arena import aligned_bytes
from intarsia.plan.devices import HOST_DOMAIN, domain_text
from intarsia.target.priority import is_complete
from intarsia.tuning.laboratory.sampling import TimedRun, clock_of, time_in_rounds
from intarsia.tuning.laboratory.session import Session, session

_NOTHING = 1
"""Elements of the tensor of an empty call."""


def time_copies(sizes: Sequence[int], rounds: int, seed: int) -> list[list[Any]]:
    """Time copies between every ordered pair of memory domains of the machine, in rounds.

    Args:
        sizes: In bytes.
        rounds: Samples of each.
        seed: For the orders.

    Returns:
        Rows of a source, a destination (texts of domains), a size, and the seconds of each round.
        A copy from a domain to itself is one on the host: what staging would cost.
    """
    opened = _open_domains(session())
    subjects: list[tuple[str, str, int, TimedRun]] = []
    for source, one in opened.items():
        for destination, other in opened.items():
            if source == destination and not isinstance(one, HostDevice):
                continue
            for nbytes in sizes:
                step = _copy(one, other, nbytes)
                clock = clock_of(d for d in (one, other) if not isinstance(d, HostDevice))
                subjects.append((source, destination, nbytes, TimedRun(step, clock)))
    timed = [subject for *_, subject in subjects]
    timed_rounds = time_in_rounds(session().sampler, timed, rounds, seed=seed)
    return [
        [source, destination, nbytes, row]
        for (source, destination, nbytes, _), row in zip(
            subjects, timed_rounds.seconds, strict=True
        )
    ]


def _open_domains(current: Session) -> dict[str, Device]:
    options = ThreadOptions(current.spec.num_threads, current.spec.is_shared)
    opened: dict[str, Device] = {domain_text(HOST_DOMAIN): HostDevice(options)}
    ordered = sorted(current.setting.capabilities, key=lambda item: not is_complete(item.target))
    for capability in ordered:  # a complete kind opens the memory that a partial one shares
        text = domain_text(current.setting.constraints.domains[capability.target])
        if text not in opened:
            opened[text] = capability.backend.open(capability.target, options)
    return opened


def _copy(one: Device, other: Device, nbytes: int) -> Step:
    """Return the copy of a tensor as a plan does it: between two devices by way of the host."""
    spec = TensorSpec("copied", "uint8", (nbytes,))
    source, destination = (
        device.tensor(device.allocate(nbytes), 0, spec) for device in (one, other)
    )
    if isinstance(one, HostDevice):
        return partial(other.write, source, destination)
    if isinstance(other, HostDevice):
        return partial(one.read, source, destination)
    staging = aligned_bytes(nbytes)

    def relay() -> None:
        one.read(source, staging)
        other.write(staging, destination)

    return relay


@dataclass(frozen=True, slots=True)
class _Empty:
    """A model of one operator on one element."""

    operator: str

    def model(self) -> bytes:
        from onnx import TensorProto, helper

        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [_NOTHING]) for name in "xy"]
        node = helper.make_node(self.operator, ["x"], ["y"], name="nothing")
        graph = helper.make_graph([node], "empty", ends[:1], ends[1:])
        opsets = [helper.make_opsetid("", 13)]
        return bytes(
            helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
        )


def time_calls(rounds: int, seed: int) -> list[list[float]]:
    """Time a call of one operator on one element on every target, in rounds.

    Args:
        rounds: Samples of each.
        seed: For the orders.

    Returns:
        By position of the target, the seconds of each round; empty where it takes neither of the
        operators that are tried.
    """
    from intarsia.graph.load import load
    from intarsia.graph.snapshot import snapshot

    current = session()
    values: dict[int, Array] = {0: np.ones(_NOTHING, np.float32)}
    seconds: list[list[float]] = [[] for _ in current.setting.capabilities]
    for operator in ("Relu", "Neg"):
        left = [position for position, row in enumerate(seconds) if not row]
        if not left:
            break
        graph = snapshot(load(_Empty(operator).model()))
        spec = replace(current.spec, borders={})  # which are the model's
        small = Session(spec, current.mark, graph, values)
        ready = [
            position
            for position in left
            if small.prepare(position, [(position, [0])], is_checked=False, is_part=True).refusal
            is None
        ]
        race = small.race(ready, rounds, seed)
        for position, row in zip(ready, race.seconds, strict=True):
            seconds[position] = row
    return seconds
