# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel in numpy as the lanes of blocks do, with their barriers, and finds races.

A turn of the parallel loop is a block; its lanes share loops as `distribute` says. Lanes run one
after another from barrier to barrier, so the order in which they race is always the same; a race is
found whether or not it changes a number.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen import ir
from intarsia.codegen.computation import apply_binary
from intarsia.codegen.emit.distribute import Distribution
from intarsia.codegen.interpreter import KernelInterpreter
from intarsia.errors import InternalError

_MANY = -1
"""Stands for several readers."""

Steps = Callable[[], Generator[None]]
"""Operations, made ready: it yields where the lane waits."""


def interpret_lanes(
    function: ir.Function,
    arrays: Sequence[Array],
    plan: Distribution,
    lanes: int,
    sizes: Sequence[int] = (),
) -> None:
    """Run a kernel on arrays, which it writes to.

    Args:
        function: The kernel, as `plan` was made for it.
        arrays: One-dimensional memory of every buffer, in order, from its first element on.
        plan: How lanes share a turn.
        lanes: Of a block; at most one has work if the plan shares nothing.
        sizes: The kernel's sizes.

    Raises:
        InternalError: The kernel leaves a buffer, two lanes race, or not all come to a barrier.
    """
    count = lanes if plan.items > 1 else 1
    block = _Block(
        plan, count, _Accesses(function.name, "turns"), _Accesses(function.name, "lanes")
    )
    memory = {buffer: np.zeros(buffer.span, buffer.dtype) for buffer in function.locals}
    members = [_Lane(function, arrays, sizes, block, lane, memory) for lane in range(count)]
    programs = [member.steps(function.body, is_inside=False) for member in members]
    while block.turn < block.turns:
        block.accesses.clear()
        for own in memory.values():
            own.fill(0)
        with np.errstate(all="ignore"):
            _run([program() for program in programs], block, function.name)
        block.turn += 1


@dataclass(slots=True)
class _Accesses:
    """Who has written and read entries of buffers since all have waited.

    Attributes:
        kernel: Its name, for messages.
        whose: What the numbers count, for messages.
        writers: By buffer and entry.
        readers: Likewise.
    """

    kernel: str
    whose: str
    writers: dict[tuple[ir.Buffer, int], int] = field(default_factory=dict)
    readers: dict[tuple[ir.Buffer, int], int] = field(default_factory=dict)

    def add(self, buffer: ir.Buffer, entry: int, who: int, *, is_store: bool) -> None:
        """Note an access.

        Raises:
            InternalError: Somebody else has written the entry, or has read what is written.
        """
        key = (buffer, entry)
        others = [self.writers.get(key, who)]
        if is_store:
            others.append(self.readers.get(key, who))
            self.writers[key] = who
        elif self.readers.setdefault(key, who) != who:
            self.readers[key] = _MANY
        if any(other != who for other in others):
            raise InternalError(
                f"kernel {self.kernel} has a race: two {self.whose} touch entry {entry} of "
                f"{buffer.name}, and one writes it"
            )

    def clear(self) -> None:
        """Forget all: everybody has waited."""
        self.writers.clear()
        self.readers.clear()


@dataclass(slots=True)
class _Block:
    """What the lanes of one turn after the other have in common.

    Attributes:
        plan: How they share it.
        lanes: How many there are.
        everywhere: Accesses of all turns.
        accesses: Of these lanes since their last barrier.
        turn: Its number.
        turns: How many there are, as soon as a lane has come to the parallel loop.
        met: What lanes show each other.
    """

    plan: Distribution
    lanes: int
    everywhere: _Accesses
    accesses: _Accesses
    turn: int = 0
    turns: int = 1
    met: dict[int, Any] = field(default_factory=dict)


def _run(lanes: Sequence[Generator[None]], block: _Block, kernel: str) -> None:
    """Run lanes from barrier to barrier.

    Raises:
        InternalError: Some end where others wait.
    """
    while True:
        waiting = [next(lane, lanes) is None for lane in lanes]
        if not any(waiting):
            return
        if not all(waiting):
            raise InternalError(f"kernel {kernel} has a barrier that not all lanes come to")
        block.accesses.clear()


class _Lane(KernelInterpreter):
    """One lane; it stops where it waits for the others.

    Args:
        function: The kernel.
        arrays: Of its buffers.
        sizes: Of its sizes.
        block: Its block.
        lane: Its number there.
        memory: The kernel's own buffers, which all lanes of a block share.
    """

    def __init__(
        self,
        function: ir.Function,
        arrays: Sequence[Array],
        sizes: Sequence[int],
        block: _Block,
        lane: int,
        memory: dict[ir.Buffer, Array],
    ) -> None:
        super().__init__(function, arrays, sizes)
        self._memory |= memory
        self._own = frozenset(memory)
        self._block = block
        self._lane = lane

    def steps(self, body: Sequence[ir.Operation], *, is_inside: bool) -> Steps:
        """Return what runs operations.

        Args:
            body: The operations.
            is_inside: Whether a shared loop is around them.
        """
        parts = [self._step(item, is_inside) for item in body if not isinstance(item, ir.Prefetch)]

        def run() -> Generator[None]:
            for waits, part in parts:
                if waits:
                    yield
                yield from part()

        return run

    def _step(self, operation: ir.Operation, is_inside: bool) -> tuple[bool, Steps]:
        """Return whether lanes wait before an operation, and what runs it."""
        waits = id(operation) in self._block.plan.barriers
        if isinstance(operation, ir.Loop):
            return waits, self._loop_steps(operation, is_inside)
        # Outside of shared loops all lanes compute the same: one of them writes it.
        is_idle = isinstance(operation, ir.Store) and not is_inside and self._lane > 0
        acts = [] if is_idle else self._body((operation,))

        def run() -> Generator[None]:
            for act in acts:
                act()
            yield from ()

        return waits, run

    def _loop_steps(self, loop: ir.Loop, is_inside: bool) -> Steps:
        plan, values, block = self._block.plan, self._values, self._block
        is_shared, closes = id(loop) in plan.shared, id(loop) in plan.closing
        body = self.steps(loop.body, is_inside=is_inside or is_shared)
        lower, upper = self._index(loop.lower), self._index(loop.upper)
        names = plan.reduced.get(id(loop), ())

        def run() -> Generator[None]:
            turns = range(lower(), upper(), loop.step)
            if loop is self._function.parallel:
                block.turns = len(turns)
                turns = turns[block.turn : block.turn + 1]
            elif is_shared:
                turns = turns[self._lane :: block.lanes]
            current = [values[value] for value in loop.initial]
            if self._lane:  # only one lane may bring the initial value of a sum
                current[: len(names)] = map(_neutral, names, current)
            for turn in turns:
                values[loop.variable] = np.int64(turn)
                values.update(zip(loop.carried, current, strict=True))
                yield from body()
                if closes:
                    yield
                current = [values[value] for value in loop.yielded]
            if names:
                current = yield from self._combine(current, names)
            values.update(zip(loop.results, current, strict=True))

        return run

    def _combine(
        self, current: Sequence[Any], names: Sequence[str]
    ) -> Generator[None, None, list[Any]]:
        """Return all lanes' terms combined, in the order of the lanes."""
        block = self._block
        block.met[self._lane] = list(current)
        yield
        total = list(block.met[0])
        for other in range(1, block.lanes):
            pairs = zip(names, block.met[other], total, strict=True)
            total = [apply_binary(name, value, so_far) for name, value, so_far in pairs]
        yield
        return total

    def _first(self, operation: ir.Load | ir.Store) -> Callable[[], int]:
        first, buffer, block = super()._first(operation), operation.buffer, self._block
        is_store, is_own = isinstance(operation, ir.Store), operation.buffer in self._own
        offsets = [lane * operation.stride for lane in range(operation.count)]

        def run() -> int:
            start = first()
            for offset in offsets:
                block.accesses.add(buffer, start + offset, self._lane, is_store=is_store)
                if not is_own:
                    block.everywhere.add(buffer, start + offset, block.turn, is_store=is_store)
            return start

        return run


def _neutral(name: str, value: Any) -> Any:
    """Return what changes no sum and no product; an extremum does not mind its own value."""
    return np.full_like(value, name == "mul")[()] if name in ("add", "mul") else value
