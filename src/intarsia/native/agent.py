# SPDX-License-Identifier: Apache-2.0
"""The agent: regions as one program that is carried to a machine, is asked to run them, and times.

What it says is in `agent.c`. It stays open between calls; when the way to it breaks, or it ends,
that call fails, and the next one starts it anew and brings along what it had kept. What takes too
long it ends itself, and itself when nobody asks any more.

    agent_sources(names) -> what to compile and link with the regions
    Agent(program, runner).run(...) -> outputs and seconds

Agents of one machine pass tensors to one another by files that they map (`MachineMemory`), in
memory where the system has such: nobody copies them, and they do not travel, unless there is no
room for them.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from intarsia.arrays import Array
from intarsia.errors import ExecutionError, LinkError
from intarsia.process.runner import (
    Conversation,
    RemoteFolder,
    Runner,
    carry_seconds,
    start_program,
)

logger = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("agent.c")
_MAGIC, _VERSION = 0x746E656761736E69, 4
_LATE, _LOST = 1 << 32, 1 << 33
_ARRAY, _BLOCK, _FILE = 0, 1, 2
_WANTED, _LEFT = 1, 2
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


class MachineMemory:
    """What agents of one machine leave there for one another: numbered files of a folder.

    The folder goes when nobody here has a tensor in it any more, or when the way breaks; then what
    is written next makes a new one.

    Args:
        runner: The way there.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._folder: RemoteFolder | None = None
        self._free: list[int] = []
        self._count = 0
        self._lock = threading.Lock()
        self._has_warned = False

    @classmethod
    def of(cls, runner: Runner) -> MachineMemory:
        """Return that of a machine; all of this process share it."""
        with _memories_lock:
            memory = _memories.get(runner.text)
            if memory is None:
                memory = _memories[runner.text] = cls(runner)
            return memory

    def tensor(self, nbytes: int, copy: Array | None = None) -> LeftTensor:
        """Return a place for a tensor, until it is garbage.

        Args:
            nbytes: Its size.
            copy: Where it is wanted here too, whenever a region has written it.
        """
        with self._lock:
            if not self._free:
                self._free.append(self._count)
                self._count += 1
            number = self._free.pop()
        tensor = LeftTensor(self, number, nbytes, copy)
        weakref.finalize(tensor, self._free.append, number)
        return tensor

    def path(self, number: int) -> bytes:
        """Return the path of a file there.

        Raises:
            LinkError: The machine is out of reach, or has no place for a folder.
        """
        with self._lock:
            if self._folder is not None and not self._folder.is_held:
                self._forget()
            if self._folder is None:
                self._folder = RemoteFolder(self._runner, in_memory=True)
            return f"{self._folder.path}/{number}".encode()

    def read(self, number: int) -> bytes:
        """Return what is in a file.

        Raises:
            LinkError: It is not there any more.
        """
        self.path(number)
        with self._lock:
            assert self._folder is not None
            return self._folder.get(str(number))

    def forget(self, path: bytes) -> None:
        """Give up the folder that a file was to be in, if it is still the one that is used.

        What is written next makes a new one.
        """
        with self._lock:
            if self._folder is not None and self._folder.path == _folder_of(path):
                self._forget()

    def carry(self, tensor: LeftTensor, path: bytes, why: int) -> None:
        """Take note that a tensor could not be left there, and travels.

        Args:
            tensor: Which one.
            path: The file that could not be written.
            why: The system's number of the reason there, as of Linux.
        """
        if why == errno.ENOENT:  # the folder is gone, with all that was in it; the next has room
            self.forget(path)
        elif not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s has no place for a tensor of %d bytes in %s (%s): it travels with each call",
                self._runner.place,
                tensor.nbytes,
                _folder_of(path),
                os.strerror(why),
            )

    def _forget(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.close()


_memories: weakref.WeakValueDictionary[str, MachineMemory] = weakref.WeakValueDictionary()
"""By the way there; none that nobody uses any more."""
_memories_lock = threading.Lock()


@dataclass(slots=True, weakref_slot=True, eq=False)
class LeftTensor:
    """A tensor that one region leaves on its machine for others there; made by `MachineMemory`.

    Attributes:
        memory: Where it lies.
        number: Of its file.
        nbytes: Its size.
        copy: Where it is wanted here too; None if nowhere.
        carried: What was last written, where the machine had no room for it.
    """

    memory: MachineMemory
    number: int
    nbytes: int
    copy: Array | None = None
    carried: Array | None = None

    def read(self) -> bytes:
        """Return it as it is there now.

        Raises:
            LinkError: The machine is out of reach, or it is not there.
        """
        if self.carried is not None:
            return bytes(_bytes(self.carried))
        left = self.memory.read(self.number)
        if len(left) < self.nbytes:
            raise LinkError(f"a tensor of {self.nbytes} bytes has {len(left)} on its machine")
        return left[: self.nbytes]  # of what was there before, which may have been larger


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
        self.carried_tensors = 0
        """Inputs that were sent and outputs that came back, of all calls that came to their end."""

    def keep(self, data: Array) -> Kept:
        """Have the agent keep an array: it is sent once, with the next call."""
        with self._lock:
            self._kept.append(data)
            return Kept(len(self._kept) - 1)

    def run(
        self,
        region: int,
        inputs: Sequence[Array | Kept | LeftTensor],
        outputs: Sequence[Array | int | LeftTensor],
        rounds: int = 1,
    ) -> AgentRun:
        """Run a region on inputs, so many times, and fill the outputs.

        Args:
            region: Its number.
            inputs: Arrays, which are sent, or what is kept there, or was left there.
            outputs: Arrays, which are filled; or sizes in bytes of memory that is not wanted back;
                or what is left there for other regions.
            rounds: How often it runs; the limit of time is for all of them together.

        Raises:
            LinkError: The way to the machine failed.
            ExecutionError: The program ended, or the region took longer than it may.
        """
        limit = round(self.seconds * 1e9)
        head = [_RUN, region, limit, rounds, len(inputs), len(outputs)]
        parts: list[bytes | memoryview] = []
        sent = 0
        for item in inputs:
            if isinstance(item, Kept):
                head += (_BLOCK, item.block)
                continue
            if isinstance(item, LeftTensor) and item.carried is None:
                head += (_FILE, item.nbytes)
                path = item.memory.path(item.number)
                parts += (_numbers(len(path)), path)
                continue
            array = item.carried if isinstance(item, LeftTensor) else item
            assert array is not None
            head += (_ARRAY, array.nbytes)
            parts.append(_bytes(array))
            sent += 1
        paths: dict[int, bytes] = {}
        for position, result in enumerate(outputs):
            if isinstance(result, LeftTensor):
                head += (result.nbytes, _LEFT | (0 if result.copy is None else _WANTED))
                path = paths[position] = result.memory.path(result.number)
                parts += (_numbers(len(path)), path)
            elif isinstance(result, int):
                head += (result, 0)
            else:
                head += (result.nbytes, _WANTED)
        parts.insert(0, _numbers(*head))
        with self._lock:
            try:
                talk = self._open()
                for part in parts:
                    talk.send(part, seconds=carry_seconds(len(part)))
                status = self._wait(talk, region)
                times = _read_numbers(talk, rounds, _GRACE_SECONDS)
                received = 0
                for position, result in enumerate(outputs):
                    if isinstance(result, LeftTensor):
                        received += _receive_left(talk, result, paths[position])
                    elif not isinstance(result, int):
                        _receive_into(talk, result)
                        received += 1
            except BaseException:  # an answer that is still under way would be the next one's
                self._close()
                raise
            self.carried_tensors += sent + received
        return AgentRun(
            struct.unpack("<i", struct.pack("<I", status))[0], tuple(time * 1e-9 for time in times)
        )

    def _wait(self, talk: Conversation, region: int) -> int:
        """Return what a region returned.

        Raises:
            LinkError: The way to the machine failed, or what was left there is gone.
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
        if status == _LOST:
            raise LinkError(
                f"what a region left on {self.runner.place} for the next one is not there any more",
                hint="run it again: a connection broke, or somebody removed its files there",
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


_LAST_ERRNO = 4095
"""Linux gives no number above it to an error (`MAX_ERRNO`)."""


def _folder_of(path: bytes) -> str:
    return str(PurePosixPath(os.fsdecode(path)).parent)


def _receive_into(talk: Conversation, array: Array) -> None:
    received = talk.receive(array.nbytes, carry_seconds(array.nbytes))
    _bytes_view(array)[...] = np.frombuffer(received, np.uint8)


def _receive_left(talk: Conversation, tensor: LeftTensor, path: bytes) -> int:
    """Hear whether an output was left there, and take it if it is wanted here or had no room.

    Returns:
        1 if it came here.
    """
    # It is written there before that is said.
    (why,) = _read_numbers(talk, 1, carry_seconds(tensor.nbytes))
    if why > _LAST_ERRNO:
        raise LinkError(f"what came of {os.fsdecode(path)} there makes no sense: {why}")
    arrived = tensor.copy
    if why and arrived is None:
        arrived = np.empty(tensor.nbytes, np.uint8) if tensor.carried is None else tensor.carried
    if arrived is not None:
        _receive_into(talk, arrived)
    tensor.carried = arrived if why else None
    if why:
        tensor.memory.carry(tensor, path, why)
    return int(arrived is not None)


def _numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def _read_numbers(talk: Conversation, count: int, seconds: float | None = None) -> tuple[int, ...]:
    return struct.unpack(f"<{count}Q", talk.receive(8 * count, seconds))


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _bytes_view(array: Array) -> Array:
    """Return the bytes of an array that is dense, to be written."""
    return array.reshape(-1).view(np.uint8)
