# SPDX-License-Identifier: Apache-2.0
"""A loaded region: its program on the machine that it is for, with its constants."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from intarsia.backends.device import Buffer, Step
from intarsia.backends.remote import RemoteRegion
from intarsia.backends.values import Artifact
from intarsia.native.agent import Agent
from intarsia.process.runner import parse_runner


class AclExecutable:
    """A region on its machine: the constants are sent once, tensors with each call.

    Args:
        artifact: Its first constant is the program; the others come behind the program's inputs.
        runner: The text of the way to the machine.
    """

    scratch_bytes = 0

    def __init__(self, artifact: Artifact, runner: str) -> None:
        executable, *constants = artifact.constants
        agent = Agent(executable.data.tobytes(), parse_runner(runner))
        self._constants = tuple(agent.keep(constant.data) for constant in constants)
        self._region = RemoteRegion(agent, artifact.target)

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
