# SPDX-License-Identifier: Apache-2.0
"""The agent: regions as one program that is carried to a machine, is asked to run them, and times.

What it says is in `agent.c`. It stays open between calls; when the way to it breaks, or it ends,
that call fails, and the next one starts it anew and brings along what it had kept. What takes too
long it ends itself, and itself when nobody asks any more.

    agent_sources(names) -> what to compile and link with the regions
    Agent(program, runner).run(...) -> outputs and seconds
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from intarsia.arrays import Array
from intarsia.errors import ExecutionError
from intarsia.process.runner import Conversation, Runner, carry_seconds, start_program

_SOURCE = Path(__file__).with_name("agent.c")
_MAGIC, _VERSION = 0x746E656761736E69, 2
_LATE = 1 << 32
_KEEP, _RUN, _BYE = 1, 2, 3
_START_SECONDS = 120.0
"""For the first words of a program: an emulator on a machine with much to do takes seconds."""

RUN_SECONDS = 600.0
"""What a call may take if nothing else is said."""
_GRACE_SECONDS = 60.0
"""The agent ends a call that takes too long by itself; after so much more it is taken for dead."""

_TABLE = """\
#include <stdint.h>

typedef int32_t (*agent_region)(const void *const *inputs, void *const *outputs);

{declared}
extern const agent_region agent_regions[];
extern const uint64_t agent_count;
const agent_region agent_regions[] = {{{names}}};
const uint64_t agent_count = {count};
"""


def agent_sources(regions: Sequence[str]) -> dict[str, str]:
    """Return the agent's C99 sources, by the name of a file.

    Args:
        regions: Names of functions that are linked with it, in the order of their numbers; each is
            `int32_t NAME_call(const void *const *inputs, void *const *outputs)` with C linkage.
    """
    declared = "".join(
        f"int32_t {name}_call(const void *const *inputs, void *const *outputs);\n"
        for name in regions
    )
    names = ", ".join(f"{name}_call" for name in regions)
    table = _TABLE.format(declared=declared, names=names, count=len(regions))
    return {"agent.c": _SOURCE.read_text(), "agent_regions.c": table}


@dataclass(frozen=True, slots=True)
class Kept:
    """An input that the agent has: the number of what `Agent.keep` gave it."""

    block: int


@dataclass(frozen=True, slots=True)
class AgentRun:
    """What a region did on a machine.

    Attributes:
        status: What it returned; 0 means done.
        seconds: Of each round, by that machine's clock.
    """

    status: int
    seconds: tuple[float, ...]


class Agent:
    """A program on a machine that runs its regions; started when it is first asked.

    Args:
        program: The executable.
        runner: The way to the machine.
        seconds: How long one call may take there; 0 for no limit.
    """

    def __init__(self, program: bytes, runner: Runner, seconds: float = RUN_SECONDS) -> None:
        self.runner = runner
        self.seconds = seconds
        self._program = program
        self._kept: list[Array] = []
        self._sent = 0
        self._talk: Conversation | None = None
        self._lock = threading.Lock()
        self.starts = 0

    def keep(self, data: Array) -> Kept:
        """Have the agent keep an array: it is sent once, with the next call."""
        with self._lock:
            self._kept.append(data)
            return Kept(len(self._kept) - 1)

    def run(
        self,
        region: int,
        inputs: Sequence[Array | Kept],
        outputs: Sequence[Array | int],
        rounds: int = 1,
    ) -> AgentRun:
        """Run a region on inputs, so many times, and fill the outputs.

        Args:
            region: Its number.
            inputs: Arrays, which are sent, or what is kept there.
            outputs: Arrays, which are filled; or sizes in bytes of memory that is not wanted back.
            rounds: How often it runs; the limit of time is for all of them together.

        Raises:
            LinkError: The way to the machine failed.
            ExecutionError: The program ended, or the region took longer than it may.
        """
        limit = round(self.seconds * 1e9)
        head = [_RUN, region, limit, rounds, len(inputs), len(outputs)]
        for item in inputs:
            head += (1, item.block) if isinstance(item, Kept) else (0, item.nbytes)
        for result in outputs:
            head += (result, 0) if isinstance(result, int) else (result.nbytes, 1)
        parts: list[bytes | memoryview] = [_numbers(*head)]
        parts += (_bytes(item) for item in inputs if not isinstance(item, Kept))
        with self._lock:
            try:
                talk = self._open()
                for part in parts:
                    talk.send(part, seconds=carry_seconds(len(part)))
                status = self._wait(talk, region)
                times = _read_numbers(talk, rounds, _GRACE_SECONDS)
                for result in outputs:
                    if not isinstance(result, int):
                        received = talk.receive(result.nbytes, carry_seconds(result.nbytes))
                        data = np.frombuffer(received, np.uint8)
                        _bytes_view(result)[...] = data
            except BaseException:  # an answer that is still under way would be the next one's
                self._close()
                raise
        return AgentRun(
            struct.unpack("<i", struct.pack("<I", status))[0], tuple(time * 1e-9 for time in times)
        )

    def _wait(self, talk: Conversation, region: int) -> int:
        """Return what a region returned.

        Raises:
            LinkError: The way to the machine failed.
            ExecutionError: The program ended, or the region took longer than it may.
        """
        seconds = self.seconds + _GRACE_SECONDS if self.seconds else None
        (status,) = _read_numbers(talk, 1, seconds)
        if status == _LATE:
            raise ExecutionError(
                f"region {region} of the agent on {self.runner.place} took more than "
                f"{self.seconds:g} s and was ended",
                hint="INTARSIA_CALL_SECONDS says how long a call may take there",
            )
        return status

    def close(self) -> None:
        """End the program; it is started again if it is asked again."""
        with self._lock:
            self._close()

    def __del__(self) -> None:
        if getattr(self, "_talk", None) is not None:
            self._close()

    def _close(self) -> None:
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.close()

    def _open(self) -> Conversation:
        """Return the conversation, with all that is to be kept at the other end."""
        if self._talk is None:
            self._talk = start_program(self.runner, "agent", self._program)
            self._sent = 0
            self.starts += 1
            magic, version, _, is_little = _read_numbers(self._talk, 4, _START_SECONDS)
            if (magic, version, is_little) != (_MAGIC, _VERSION, 1):
                raise ExecutionError(
                    f"the program on {self.runner.place} is not an agent of this version",
                    hint="compile it again; machines with the high byte first cannot be reached",
                )
        for number in range(self._sent, len(self._kept)):
            data = _bytes(self._kept[number])
            head = _numbers(_KEEP, number, len(data))
            self._talk.send(head, data, seconds=carry_seconds(len(data)))
            _read_numbers(self._talk, 1, _GRACE_SECONDS)
            self._sent = number + 1
        return self._talk


def _numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def _read_numbers(talk: Conversation, count: int, seconds: float | None = None) -> tuple[int, ...]:
    return struct.unpack(f"<{count}Q", talk.receive(8 * count, seconds))


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _bytes_view(array: Array) -> Array:
    """Return the bytes of an array that is dense, to be written."""
    return array.reshape(-1).view(np.uint8)
