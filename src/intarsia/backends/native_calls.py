# SPDX-License-Identifier: Apache-2.0
"""What the calls of native code are given, as arrays: hundreds of them are bound at once.

A token of a decoder has sizes that no run had before, so that binding is a part of every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import structs

from intarsia.arrays import Array, address_of
from intarsia.codegen.storage import StorageKind
from intarsia.native.chunks import call_works, chunk_counts

if TYPE_CHECKING:
    from intarsia.backends.native import CallRecord, Calls, CheckRecord, FoundRecord, Payload

# Texts, as payloads have them: members of enumerations take long to look up and to compare.
_SCRATCH, _FAULTS, _COUNT = map(str, (StorageKind.SCRATCH, StorageKind.FAULT, StorageKind.COUNT))
_CONSTANT, _CUT = str(StorageKind.CONSTANT), (_SCRATCH, _FAULTS, _COUNT)
"""What is known when code is loaded, and kinds of which each storage is a part of one block."""


@dataclass(frozen=True, slots=True)
class CallWords:
    """What all calls of a program are given, in one row: places in storages, then sizes.

    Attributes:
        storages: Of each word, as a number; -1 for a size.
        offsets: Bytes from there, or the size; int64.
        ends: Where the words of each call end.
    """

    storages: Array
    offsets: Array
    ends: tuple[int, ...]

    @classmethod
    def of(cls, calls: Sequence[CallRecord]) -> CallWords:
        """Return the words of calls, as they are recorded."""
        rows = [[*call.arguments, *((-1, size) for size in call.sizes)] for call in calls]
        words = np.array([word for row in rows for word in row], np.int64).reshape(-1, 2)
        return cls(words[:, 0], words[:, 1], tuple(accumulate(map(len, rows))))

    def are_inside(self, nbytes: Array) -> bool:
        """Tell whether all places are inside of storages of so many bytes."""
        room = np.append(nbytes, 0)[self.storages]
        # `<=`: an argument of no bytes may begin at the end.
        is_inside = (self.offsets >= 0) & (self.offsets <= room)
        return bool((is_inside | (self.storages < 0)).all())

    def moved(self, offsets: Array) -> CallWords:
        """Return the same words with other offsets."""
        return replace(self, offsets=offsets)


@dataclass(frozen=True, slots=True)
class SizedCalls:
    """What of a program depends on sizes, at some of them.

    Attributes:
        words: What its calls are given.
        nbytes: Of each storage; int64.
        starts: Of each storage, bytes from where memory of its kind begins, or which one it is.
        turns: Of the parallel loop of each call; int64.
        scratch_bytes: Size of the scratch memory.
        checks: The checks of indices.
        found: The outputs whose sizes are found.
    """

    words: CallWords
    nbytes: Array
    starts: Array
    turns: Array
    scratch_bytes: int
    checks: Sequence[CheckRecord]
    found: Sequence[FoundRecord]

    @classmethod
    def of(cls, payload: Calls) -> SizedCalls:
        """Return a program as it is recorded."""
        return cls(
            CallWords.of(payload.calls),
            np.array([nbytes for _, _, nbytes in payload.storages], np.int64),
            np.array([start for _, start, _ in payload.storages], np.int64),
            np.array([call.extent for call in payload.calls], np.int64),
            payload.scratch_bytes,
            payload.checks,
            payload.found,
        )

    def new_faults(self) -> Array:
        """Return memory for what the checks of a run find: an int64 for each turn of each check."""
        nbytes = sum(int(self.nbytes[check.storage]) for check in self.checks)
        return np.zeros(nbytes // np.dtype(np.int64).itemsize, np.int64)

    def recorded(self, payload: Payload) -> Payload:
        """Return the records of a program of free sizes as they are at these."""
        kinds = [kind for kind, _, _ in payload.storages]
        storages = list(zip(kinds, self.starts.tolist(), self.nbytes.tolist(), strict=True))
        doings = _Doings.of(payload.calls).at(self.turns).tolist()
        calls = [
            structs.replace(call, extent=extent, flop=flop, nbytes=nbytes)
            for call, extent, (flop, nbytes) in zip(
                payload.calls, self.turns.tolist(), doings, strict=True
            )
        ]
        changed = {"storages": storages, "calls": calls, "scratch_bytes": self.scratch_bytes}
        changed |= {"checks": list(self.checks), "found": list(self.found), "free": None}
        return structs.replace(payload, **changed)  # type: ignore[type-var]


class _Doings(NamedTuple):
    """Operations and bytes of calls; they only decide between one thread and several.

    Attributes:
        known: As they are recorded: f64[calls, 2].
        turns: Of the parallel loops then.
    """

    known: Array
    turns: Array

    @classmethod
    def of(cls, calls: Sequence[CallRecord]) -> _Doings:
        """Return those of calls."""
        known = np.array([(call.flop, call.nbytes) for call in calls], np.float64).reshape(-1, 2)
        return cls(known, np.array([max(1, call.extent) for call in calls], np.int64))

    def at(self, turns: Array) -> Array:
        """Return what they grow to with the turns: int64[calls, 2]."""
        grown: Array = (self.known * (turns / self.turns)[:, None]).astype(np.int64)
        return grown


def call_chunks(
    calls: Sequence[CallRecord], works: Sequence[int], turns: Array, threads: int
) -> Array:
    """Return into how many chunks each call is cut.

    Args:
        calls: Of a program.
        works: For each kernel, the work that decides whether several threads pay off.
        turns: Of the parallel loop of each call.
        threads: That share the work.
    """
    flop, nbytes = _Doings.of(calls).at(turns).T
    counts = np.array([works[call.kernel] for call in calls], np.int64)
    return chunk_counts(turns, call_works(counts, flop, nbytes), threads)


class BoundCalls(NamedTuple):
    """Calls on memory.

    Attributes:
        numbers: Which calls of the program they are.
        words: What all calls of the program are given; uint64.
        rows: For each its code, the address of its words, turns and chunks; uint64.
    """

    numbers: Array
    words: Array
    rows: Array


class CallTable:
    """The calls of a program, as far as they are the same at all sizes.

    Args:
        payload: The program.
        constants: Addresses of its constants.
        codes: Addresses of its kernels.
        works: For each kernel, the work that decides whether several threads pay off.
    """

    def __init__(
        self,
        payload: Calls,
        constants: Sequence[int],
        codes: Sequence[int],
        works: Sequence[int],
    ) -> None:
        by_kind: dict[str, list[int]] = {}
        for position, (kind, _, _) in enumerate(payload.storages):
            by_kind.setdefault(kind, []).append(position)
        self._positions = {kind: np.array(some, np.intp) for kind, some in by_kind.items()}
        self._bases = np.zeros(len(payload.storages) + 1, np.int64)  # the last one is of sizes
        held = self._positions.get(_CONSTANT)
        if held is not None:
            numbers = [payload.storages[i][1] for i in held]
            self._bases[held] = np.array([*constants, 0], np.int64)[numbers]
        calls = payload.calls
        starts = [0, *accumulate(len(call.arguments) + len(call.sizes) for call in calls)]
        self._word_starts = np.array(starts[:-1], np.int64)
        self._codes = np.array([codes[call.kernel] for call in calls], np.uint64)
        self._kept = np.array([i for i, call in enumerate(calls) if call.kept], np.intp)
        self._results = np.array([calls[i].kept for i in self._kept], np.int64)
        self._works = np.array([works[call.kernel] for call in calls], np.int64)
        self._doings = _Doings.of(calls)

    def bind(
        self,
        sized: SizedCalls,
        memory: Mapping[str, Sequence[int]],
        threads: int,
    ) -> BoundCalls:
        """Return the calls on memory.

        What would copy an input to an output in the same memory is left out.

        Args:
            sized: What depends on sizes.
            memory: Addresses by kind: of each input or output, or of the one block.
            threads: That share the work.
        """
        bases = self._bases.copy()
        for kind, positions in self._positions.items():
            if kind in _CUT:
                start = memory[kind][0] if memory[kind] else 0
                bases[positions] = start + sized.starts[positions]
            elif kind != _CONSTANT:
                bases[positions] = np.array(memory[kind], np.int64)[sized.starts[positions]]
        words = (bases[sized.words.storages] + sized.words.offsets).view(np.uint64)
        rows = np.empty((len(self._codes), 4), np.uint64)
        rows[:, 0] = self._codes
        rows[:, 1] = address_of(words) + words.itemsize * self._word_starts
        rows[:, 2] = sized.turns
        rows[:, 3] = 1 if threads == 1 else self._chunks(sized.turns, threads)
        numbers = np.arange(len(rows))
        if len(self._kept):
            first = self._word_starts[self._kept]
            is_done = words[first] == words[first + self._results]
            numbers = np.delete(numbers, self._kept[is_done])
            rows = rows[numbers]
        return BoundCalls(numbers, words, rows)

    def flop(self, sized: SizedCalls) -> int:
        """Return how many operations all calls are."""
        return int(self._doings.at(sized.turns)[:, 0].sum())

    def place(
        self, sized: SizedCalls, words: Array, kind: StorageKind, index: int
    ) -> Callable[[int], None]:
        """Return what tells bound calls at which address an input or output lies.

        Args:
            sized: What they were bound with.
            words: Theirs.
            kind: Whether it is an input or an output.
            index: Which one.
        """
        positions = self._positions.get(str(kind), np.zeros(0, np.intp))
        positions = positions[sized.starts[positions] == index]
        (slots,) = np.nonzero(np.isin(sized.words.storages, positions))
        offsets = sized.words.offsets[slots]

        def put(address: int) -> None:
            words[slots] = (offsets + address).view(np.uint64)

        return put

    def _chunks(self, turns: Array, threads: int) -> Array:
        flop, nbytes = self._doings.at(turns).T
        return chunk_counts(turns, call_works(self._works, flop, nbytes), threads)
