# SPDX-License-Identifier: Apache-2.0
"""Programs of native code whose sizes are known when they run: how they are stored, and fixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace

from intarsia.arrays import Array
from intarsia.backends.native import (
    Calls,
    FreeCall,
    FreeRecord,
    problem_of,
    problem_of_calls,
)
from intarsia.backends.native_calls import SizedCalls
from intarsia.codegen.storage import StorageKind
from intarsia.errors import ExecutionError, PackageError
from intarsia.extents import Data, DataFactor, Expression, Extent, evaluate_data, to_data
from intarsia.graph.arena import ALIGNMENT, assign_offsets

if TYPE_CHECKING:
    from intarsia.codegen.lower.program import Program


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
    return replace(record, extents=[to_data(item) for item in numbers])


_Terms: TypeAlias = "list[tuple[int, tuple[int, ...]]]"
"""A sum: coefficients, and the numbers of the factors of each product."""


class _ExtentTable:
    """Stored expressions, which are computed together.

    They are sums of few products of fewer factors: a decoder has some hundred expressions of 40
    products.

    Args:
        extents: As `intarsia.extents.to_data` writes them.
    """

    def __init__(self, extents: Sequence[Data]) -> None:
        self._numbers: dict[str, int] = {}
        self._factors: list[str | tuple[_Terms, int | _Terms]] = []
        rows = [self._terms(extent) for extent in extents]
        products: dict[tuple[int, ...], int] = {}
        for row in rows:
            for _, factors in row:
                products.setdefault(factors, len(products))
        # One more factor, of 1, fills up products of few.
        width = max(map(len, products), default=1)
        filled = [(*one, *(len(self._factors),) * (width - len(one))) for one in products]
        self._products = np.array(filled, np.intp).reshape(-1, width)
        self._coefficients = np.zeros((len(rows), len(products)), np.int64)
        for number, row in enumerate(rows):
            for coefficient, factors in row:
                self._coefficients[number, products[factors]] += coefficient
        self._weights = np.abs(self._coefficients.astype(np.float64))

    def _terms(self, data: Data) -> _Terms:
        return [(number, tuple(sorted(map(self._number, parts)))) for number, parts in data]

    def _number(self, part: DataFactor) -> int:
        """Return the number of a factor; what it is made of has smaller ones."""
        key = repr(part)
        if key not in self._numbers:
            if isinstance(part, str):
                factor: str | tuple[_Terms, int | _Terms] = part
            else:
                first, second = part
                other = second if isinstance(second, int) else self._terms(second)
                factor = self._terms(first), other
            self._numbers[key] = len(self._factors)
            self._factors.append(factor)
        return self._numbers[key]

    def at(self, sizes: Mapping[str, int]) -> Array:
        """Return what each comes to: int64.

        Raises:
            KeyError: A symbol has no size.
            ZeroDivisionError: One divides by 0.
            OverflowError: A number has more than 62 bits.
        """
        values: list[int] = []

        def total(terms: _Terms) -> int:
            return sum([number * prod([values[i] for i in factors]) for number, factors in terms])

        for factor in self._factors:
            if isinstance(factor, str):
                values.append(sizes[factor])
                continue
            first, second = factor
            value = total(first)
            if isinstance(second, int):
                values.append(value // second)
            else:
                values.append(max(value, total(second)))
        factors = np.array([*values, 1], np.int64)[self._products]
        magnitudes = np.abs(factors.astype(np.float64)).prod(1)
        if len(self._weights) and (self._weights @ magnitudes).max() >= _MOST:
            raise OverflowError
        extents: Array = self._coefficients @ factors.prod(1)
        return extents


class _Numbers(NamedTuple):
    """Numbers of which some come from a table of extents.

    Attributes:
        known: All of them; int64.
        positions: Of those that come from it.
        rows: Where they are in it.
    """

    known: Array
    positions: Array
    rows: Array

    @classmethod
    def of(cls, rows: Sequence[int], known: Array) -> _Numbers:
        """Return numbers, of which those with a row of 0 or more come from a table.

        Raises:
            ValueError: There are not as many rows.
        """
        numbers = np.array(rows, np.intp)
        if numbers.shape != known.shape:
            raise ValueError(len(numbers))
        positions = np.flatnonzero(numbers >= 0)
        return cls(known, positions, numbers[positions])

    def at(self, values: Array) -> Array:
        """Return all numbers, given what the table comes to."""
        numbers = self.known.copy()
        numbers[self.positions] = values[self.rows]
        return numbers


_MOST = float(1 << 62)
_MOST_PLACED = 16
_COARSE_LINES = 4
"""Cache lines by which a block of free size grows at least, as far as its place is concerned."""
_STEPS = 4
"""Bits of how large it is taken to be, behind the first one: a sixteenth more at most."""


class FreeCalls:
    """A program of free sizes, ready to be given them.

    A run at new sizes waits for this, so what hundreds of arguments come to is computed by arrays.

    Args:
        payload: With a free record.
        target: What it was compiled for, for errors.

    Raises:
        PackageError: It is damaged.
    """

    def __init__(self, payload: Calls, target: str) -> None:
        free = payload.free
        assert free is not None
        self._payload, self._free, self._target = payload, free, target
        self._placed: dict[bytes, tuple[list[int], int]] = {}
        self._is_checked = False
        problem = problem_of_calls(payload)
        if problem:
            raise self._damaged(problem)
        with self._telling():
            self._table = _ExtentTable(free.extents)
            self._known = SizedCalls.of(payload)
            words = [number for item in free.calls for number in (*item.offsets, *item.sizes)]
            self._offsets = _Numbers.of(words, self._known.words.offsets)
            self._nbytes = _Numbers.of(free.nbytes, self._known.nbytes)
            self._turns = _Numbers.of([item.extent for item in free.calls], self._known.turns)
            # In the order in which they are first used, which is not always that of the storages.
            lives = sorted((*one, i) for i, one in enumerate(free.lives) if one is not None)
            self._lives = [(first, last) for first, last, _ in lives]
            self._live = np.array([i for *_, i in lives], np.intp)
            self._is_free = np.array([free.nbytes[i] >= 0 for *_, i in lives], bool)
            kinds = [kind for kind, _, _ in payload.storages]
            scratch = [i for i, kind in enumerate(kinds) if kind == StorageKind.SCRATCH]
            self._scratch = np.array(scratch, np.intp)
            # A place of its own has what is live; nothing else of the scratch memory is used.
            self._unused = np.setdiff1d(self._scratch, self._live)
            faults = [i for i, kind in enumerate(kinds) if kind == StorageKind.FAULT]
            self._faults = np.array(faults, np.intp)

    def at(self, sizes: Mapping[str, int]) -> SizedCalls:
        """Return what calls are given for sizes.

        Args:
            sizes: Of every symbol, by name.

        Raises:
            PackageError: The program is damaged.
            ExecutionError: No address goes so far.
        """
        with self._telling():
            values = self._table.at(sizes)
            nbytes, turns = self._nbytes.at(values), self._turns.at(values)
            starts, scratch_bytes = self._known.starts.copy(), self._known.scratch_bytes
            if self._lives:  # else all scratch memory is of known sizes, and has its places
                nbytes[self._unused] = 0
                starts[self._scratch] = 0
                starts[self._live], scratch_bytes = self._place(nbytes[self._live])
            faults = nbytes[self._faults]
            starts[self._faults] = np.cumsum(faults) - faults
            known, offsets = self._known.words, self._offsets.at(values)
            offsets[np.append(nbytes == 0, [False])[known.storages]] = 0
            checks = [
                replace(check, extent=int(values[number])) if number >= 0 else check
                for check, number in zip(self._payload.checks, self._free.checks, strict=True)
            ]
            found = [
                replace(
                    one,
                    shape=[n if isinstance(n, int) else evaluate_data(n, sizes) for n in one.shape],
                )
                for one in self._payload.found
            ]
            words = known.moved(offsets)
            sized = SizedCalls(words, nbytes, starts, turns, scratch_bytes, checks, found)
            problem = self._problem_with(sized)
        if problem:
            raise self._damaged(problem)
        return sized

    def _problem_with(self, sized: SizedCalls) -> str:
        """Return what is wrong with what calls are given; empty if nothing is."""
        problem = ""
        if not self._is_checked:  # what sizes do not change is looked at once
            problem = problem_of(sized.recorded(self._payload), None)
            self._is_checked = not problem
        elif (sized.nbytes < 0).any() or (sized.turns < 0).any():
            problem = "its sizes"
        return problem or ("" if sized.words.are_inside(sized.nbytes) else "an offset")

    def _place(self, nbytes: Array) -> tuple[list[int], int]:
        """Return where blocks of scratch memory lie, and the bytes of all together.

        A block counts as a little larger than it is, so that most sizes find their places known:
        from one token to the next, some block begins another cache line nearly always.

        Args:
            nbytes: Of each block.
        """
        lines = -(-nbytes // ALIGNMENT)
        coarse = 1 << np.maximum(np.frexp(lines)[1].astype(np.int64) - 1 - _STEPS, 0)
        coarse = np.maximum(coarse, _COARSE_LINES)
        lines = np.where(self._is_free, -(-lines // coarse) * coarse, lines)
        key = lines.tobytes()
        placed = self._placed.get(key)
        if placed is None:
            if len(self._placed) >= _MOST_PLACED:
                self._placed.clear()
            blocks = zip(self._lives, (lines * ALIGNMENT).tolist(), strict=True)
            placed = assign_offsets([(first, last, size) for (first, last), size in blocks])
            self._placed[key] = placed
        return placed

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
