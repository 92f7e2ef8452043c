# SPDX-License-Identifier: Apache-2.0
"""Runs a program region by region and shows what each one read and what it made of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.arrays import Array, from_blocks
from intarsia.graph.state import BLOCKS
from intarsia.plan.plan import RegionStep
from intarsia.process.workers import own_seconds, resident_bytes
from intarsia.runtime.context import Context
from intarsia.runtime.executor import PlanExecutable
from intarsia.runtime.feeds import check_feeds


@dataclass(frozen=True, slots=True)
class WatchedRegion:
    """One call of one region.

    Attributes:
        region: Its position in the placement.
        inputs: What it read, by name, as it was before the call; plain arrays of the host.
        outputs: What it made of that, likewise.
        seconds: How long the call took, but for waiting for a CPU.
        grown: By how many bytes the process grew under it; 0 where the system does not tell.
    """

    region: int
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    seconds: float
    grown: int


Watch = Callable[[WatchedRegion], None]
"""Is shown each call."""


Begin = Callable[[int, Mapping[str, Any]], None]
"""Is told the position of a region, and what it is about to read, before it is called."""


def _ignore(_region: int, _inputs: Mapping[str, Any]) -> None:
    pass


class RunMonitor:
    """Runs a program and shows every call of a region, with copies of what it reads and makes.

    A device is waited for after each step, and no tensor is read while it is written. The numbers
    are those of any other run: the same code runs on the same buffers.

    Args:
        program: It; nothing else is bound to its memory.
        begin: Told of each region before it is called.
    """

    def __init__(self, program: PlanExecutable, begin: Begin = _ignore) -> None:
        self._program, self._begin = program, begin
        self._context = program.context()

    def run(self, feeds: Mapping[str, Any], watch: Watch) -> dict[str, Any]:
        """Run once and return fresh outputs, by name.

        Args:
            feeds: An array per input, by name.
            watch: Shown every call of a region, in their order.

        Raises:
            InputError: A name, dtype or shape is wrong.
            ExecutionError: A backend failed; names the region.
        """
        context = self._context
        context.write_inputs(check_feeds(self._program.inputs, feeds))
        for part in context.parts():
            for position, (step, call) in enumerate(part.bound_steps()):
                if not isinstance(step, RegionStep):
                    part.call(position, call)
                    continue
                inputs = _read(part, step.inputs)
                self._begin(step.region, inputs)
                before, start = resident_bytes(), own_seconds()
                part.call(position, call)
                seconds = own_seconds() - start
                grown = resident_bytes() - before
                watch(WatchedRegion(step.region, inputs, _read(part, step.outputs), seconds, grown))
        return context.read_outputs()


def _read(context: Context, positions: Sequence[int]) -> dict[str, Any]:
    """Return copies of tensors in plain layout, by name."""
    tensors = context.plan.tensors
    return {tensors[i].name: _plain(context.read(i), tensors[i].layout) for i in positions}


def _plain(value: Any, layout: str) -> Array | Any:
    return from_blocks(value) if BLOCKS.get(layout, 0) else value
