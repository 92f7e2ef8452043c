# SPDX-License-Identifier: Apache-2.0
"""Regions that run on another machine: tensors lie here, and travel with each call.

What regions of one machine hand to one another stays there (`machine_memory`).

A call takes as long here as the way there and back too. `RemoteClock` knows how much of the time
was that, so that what is measured is what the machine itself takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from intarsia.backends.device import Buffer, Step
from intarsia.errors import ExecutionError
from intarsia.native.agent import RUN_SECONDS, Agent, MachineMemory
from intarsia.process.runner import parse_runner

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.native.agent import Kept, LeftTensor
    from intarsia.process.runner import Runner


@runtime_checkable
class Away(Protocol):
    """What an executable has that runs elsewhere."""

    @property
    def runner(self) -> str:
        """Text of the way to its machine."""

    def away_seconds(self) -> float:
        """Return how much of the time of all calls so far was spent on the way."""


class RemoteRegion:
    """A region of an agent, and how much time went by on the way to it.

    Args:
        agent: The program that holds it, open or not.
        target: Text of the target, for errors.
        number: Which of its regions it is.
    """

    def __init__(self, agent: Agent, target: str, number: int = 0) -> None:
        self.agent = agent
        self._target = target
        self._number = number
        self._away = 0.0

    def run(
        self,
        inputs: Sequence[Array | Kept | LeftTensor],
        outputs: Sequence[Array | int | LeftTensor],
        rounds: int = 1,
    ) -> tuple[float, ...]:
        """Run it and return the seconds of each round, by the clock of that machine.

        Args:
            inputs: As `Agent.run`.
            outputs: Likewise.
            rounds: How often; outputs are those of the last time.

        Raises:
            LinkError: The way to the machine failed; the next call tries anew.
            ExecutionError: It failed there.
        """
        begin = time.perf_counter()
        try:
            done = self.agent.run(self._number, inputs, outputs, rounds)
        except ExecutionError as error:
            error.target = self._target
            raise
        self._away += time.perf_counter() - begin - sum(done.seconds)
        if done.status:
            raise ExecutionError(
                f"the region on {self.agent.runner.place} failed with {done.status}",
                target=self._target,
            )
        return done.seconds

    def away_seconds(self) -> float:
        """Return how much of the time of all calls so far was spent on the way."""
        return self._away


def machine_memory(executable: object) -> MachineMemory | None:
    """Return where a region leaves tensors for others of its machine.

    Its steps then take a `LeftTensor` in the place of an array, as its attribute `takes_left` says.
    None if it does not, as any that runs here.
    """
    if not (getattr(executable, "takes_left", False) and isinstance(executable, Away)):
        return None
    return MachineMemory.of(parse_runner(executable.runner))


class RemoteExecutable:
    """A region whose function takes its inputs and outputs as they are, and its constants.

    Args:
        program: An executable for that machine: an agent that is linked with the region.
        runner: The way to the machine.
        target: Text of the target, for errors.
        number: Which of the agent's regions it is.
        constants: What its function has behind its inputs; they are sent once.
        seconds: How long a call may take there; 0 for no limit.
    """

    scratch_bytes = 0
    takes_left = True

    def __init__(
        self,
        program: bytes,
        runner: Runner,
        target: str,
        number: int = 0,
        *,
        constants: Sequence[Array] = (),
        seconds: float = RUN_SECONDS,
    ) -> None:
        agent = Agent(program, runner, seconds)
        self._constants = tuple(map(agent.keep, constants))
        self._region = RemoteRegion(agent, target, number)

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that runs the region there on these arrays."""
        return partial(self._region.run, (*inputs, *self._constants), tuple(outputs))

    @property
    def runner(self) -> str:
        """Text of the way to its machine."""
        return self._region.agent.runner.text

    def away_seconds(self) -> float:
        """Return how much of the time of all calls so far was spent on the way."""
        return self._region.away_seconds()

    @property
    def carried_tensors(self) -> int:
        """How many tensors all calls so far sent there or had back."""
        return self._region.agent.carried_tensors


class RemoteClock:
    """The time that goes by without that spent on the way to other machines.

    Args:
        executables: Of a plan; those that are not away count as they are.
    """

    def __init__(self, executables: Iterable[object]) -> None:
        self._away = [each for each in executables if isinstance(each, Away)]

    def __bool__(self) -> bool:
        """Tell whether any is away."""
        return bool(self._away)

    def __call__(self) -> float:
        """Return it, in seconds since some moment."""
        return time.perf_counter() - sum(each.away_seconds() for each in self._away)
