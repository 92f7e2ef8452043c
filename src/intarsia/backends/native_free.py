# SPDX-License-Identifier: Apache-2.0
"""Programs of native code whose sizes are known when they run: how they are stored, and fixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np

from intarsia.backends.native import (
    Calls,
    CallWords,
    FreeCall,
    FreeRecord,
    problem_of,
    problem_of_calls,
)
from intarsia.codegen.storage import StorageKind
from intarsia.errors import ExecutionError, PackageError
from intarsia.extents import Expression, Extent, evaluate_data, to_data
from intarsia.graph.arena import ALIGNMENT, assign_offsets

if TYPE_CHECKING:
    from intarsia.codegen.lower.program import Program

Payload = TypeVar("Payload", bound=Calls)


def free_record(program: Program) -> FreeRecord | None:
    """Return what of a program depends on sizes; None if nothing does."""
    if not program.is_free:
        return None
    numbers: dict[Expression, int] = {}

    def number(extent: Extent) -> int:
        if not isinstance(extent, Expression):
            return -1
        return numbers.setdefault(extent, len(numbers))

    record = FreeRecord(
        [],
        [number(storage.nbytes) for storage in program.storages],
        [storage.life for storage in program.storages],
        [
            FreeCall(
                number(call.extent),
                [number(argument.offset) for argument in call.arguments],
                [number(size) for size in call.sizes],
            )
            for call in program.calls
        ],
        [number(check.extent) for check in program.checks],
    )
    return msgspec.structs.replace(record, extents=[to_data(item) for item in numbers])


class _Placed(NamedTuple):
    """Where blocks lie, by their first and last call and their cache lines.

    Attributes:
        blocks: These.
        offsets: Of each.
        nbytes: Of all together.
    """

    blocks: list[tuple[int, int, int]]
    offsets: list[int]
    nbytes: int


class FreeCalls(Generic[Payload]):
    """A program of free sizes, ready to be given them.

    A run at new sizes waits for this, so what hundreds of arguments come to is computed by arrays.

    Args:
        payload: With a free record.
        target: What it was compiled for, for errors.

    Raises:
        PackageError: It is damaged.
    """

    def __init__(self, payload: Payload, target: str) -> None:
        free = payload.free
        assert free is not None
        self._payload, self._free, self._target = payload, free, target
        self._placed: _Placed | None = None
        problem = problem_of_calls(payload)
        if problem:
            raise self._damaged(problem)
        with self._telling():
            self._words = CallWords.of(payload.calls)
            numbers = [number for item in free.calls for number in (*item.offsets, *item.sizes)]
            self._numbers = np.array(numbers, np.intp)
            if self._numbers.shape != self._words.offsets.shape:
                raise ValueError(len(numbers))

    def at(self, sizes: Mapping[str, int]) -> tuple[Payload, CallWords]:
        """Return the program for sizes, and what its calls are given, which is not in them then.

        Args:
            sizes: Of every symbol, by name.

        Raises:
            PackageError: The program is damaged.
            ExecutionError: No address goes so far.
        """
        with self._telling():
            values = [evaluate_data(item, sizes) for item in self._free.extents]
            fixed = self._fix(values, sizes)
            nbytes = [nbytes for _, _, nbytes in fixed.storages]
            words = self._fix_words(values, nbytes)
        problem = problem_of(fixed, None)
        if not problem and not words.are_inside(nbytes):
            problem = "an offset"
        if problem:
            raise self._damaged(problem)
        return fixed, words

    def _fix_words(self, values: list[int], nbytes: list[int]) -> CallWords:
        """Return what calls are given, from what expressions come to and the bytes of storages."""
        words = self._words
        known = np.array(values or [0], np.int64)[self._numbers]
        offsets = np.where(self._numbers < 0, words.offsets, known)
        is_empty = np.array([*(not one for one in nbytes), False])
        return replace(words, offsets=np.where(is_empty[words.storages], 0, offsets))

    def _fix(self, values: list[int], sizes: Mapping[str, int]) -> Payload:
        payload, free = self._payload, self._free

        def value(number: int, known: int) -> int:
            return known if number < 0 else values[number]

        nbytes = [
            value(number, known)
            for number, (_, _, known) in zip(free.nbytes, payload.storages, strict=True)
        ]
        # In the order in which they are first used, which is not always that of the storages.
        lives = sorted((*life, i) for i, life in enumerate(free.lives) if life is not None)
        offsets, scratch_bytes = self._place([(first, last, nbytes[i]) for first, last, i in lives])
        starts = {i: offset for (_, _, i), offset in zip(lives, offsets, strict=True)}
        if not lives:  # all scratch memory is of known sizes, and has its places
            scratch_bytes = payload.scratch_bytes
        storages, faults = [], 0
        scratch, fault = str(StorageKind.SCRATCH), str(StorageKind.FAULT)
        for i, (kind, index, _) in enumerate(payload.storages):
            if kind == scratch and lives:
                storages.append((kind, starts.get(i, 0), nbytes[i] if i in starts else 0))
            elif kind == fault:
                storages.append((kind, faults, nbytes[i]))
                faults += nbytes[i]
            else:
                storages.append((kind, index, nbytes[i]))
        calls = []
        for call, item in zip(payload.calls, free.calls, strict=True):
            extent = value(item.extent, call.extent)
            # Operations grow with the turns; they only decide between one thread and several.
            share = extent / max(1, call.extent)
            work = int(call.flop * share), int(call.nbytes * share)
            calls.append(
                msgspec.structs.replace(
                    call, arguments=[], sizes=[], extent=extent, flop=work[0], nbytes=work[1]
                )
            )
        checks = [
            msgspec.structs.replace(check, extent=value(number, check.extent))
            for check, number in zip(payload.checks, free.checks, strict=True)
        ]
        found = [
            msgspec.structs.replace(
                one,
                shape=[n if isinstance(n, int) else evaluate_data(n, sizes) for n in one.shape],
            )
            for one in payload.found
        ]
        fixed = {"storages": storages, "scratch_bytes": scratch_bytes, "calls": calls}
        return msgspec.structs.replace(  # type: ignore[type-var]
            payload, **fixed, found=found, checks=checks, free=None
        )

    def _place(self, lives: list[tuple[int, int, int]]) -> tuple[list[int], int]:
        """Return offsets as of `assign_offsets`: of the sizes before, if blocks are as large.

        From one token to the next, few blocks begin another cache line.
        """
        blocks = [(first, last, -(-nbytes // ALIGNMENT)) for first, last, nbytes in lives]
        placed = self._placed  # read once, as other threads come by here
        if placed is None or placed.blocks != blocks:
            placed = self._placed = _Placed(blocks, *assign_offsets(lives))
        return placed.offsets, placed.nbytes

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Say that the program is damaged where its record does not fit it.

        Raises:
            PackageError: It does not.
            ExecutionError: A number of bytes is more than an address holds.
        """
        try:
            yield
        except OverflowError:
            raise ExecutionError(
                "what lies between the nodes is larger than any memory",
                backend="llvm",
                target=self._target,
                hint="give the model smaller inputs",
            ) from None
        except (LookupError, ValueError, TypeError, ZeroDivisionError) as error:
            raise self._damaged(f"its sizes: {error!r}") from error

    def _damaged(self, problem: str) -> PackageError:
        return PackageError(f"the native code of {self._target} is damaged: {problem}")
