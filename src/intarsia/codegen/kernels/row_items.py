# SPDX-License-Identifier: Apache-2.0
"""Work-items of a GPU that walk rows together: a warp for a row, or several of them.

Neighbouring work-items read neighbouring entries. What the work-items of a row come to is
combined by shuffles inside of a warp, and between warps in shared memory (NVIDIA, "Faster Parallel
Reductions on Kepler", 2014). The order in which that is done is the same in each run, and every
work-item of a row gets the same bits.

Work-items beyond the end of a row or of all rows read the last entries again, and write nothing:
all of a block come to each barrier and shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import SHUFFLE_DTYPES, Index, IrValue
from intarsia.codegen.unit import GpuModel
from intarsia.extents import Size, is_free

VECTOR = 4
"""Entries that a work-item reads at once, where a row is long enough for it."""

_ENTRIES = 32
"""Entries of a row for each work-item, from which on a row gets more warps. An estimate: nobody
has measured it on a GPU."""
_FEW_ENTRIES = 4
"""The same where there are few rows, so that more warps would have nothing to do."""
_BUSY_WARPS = 512
"""Warps that keep a GPU busy."""
_BLOCK_WARPS = 4
"""Warps of a block that has more rows than one."""

Combine = Callable[[Sequence[IrValue], Sequence[IrValue]], Sequence[IrValue]]
Step = Callable[[int, list[Index], tuple[IrValue, ...]], Sequence[IrValue]]
"""From a number (of an unrolled step, else -1), the subscripts along a row and what was carried to
what is carried on."""


@dataclass(frozen=True, slots=True)
class RowTeams:
    """How the warps of a block share rows.

    Attributes:
        warps: Of a block.
        team: Those that share a row; it divides `warps`.
        width: Entries that a work-item reads at once.
    """

    warps: int
    team: int
    width: int

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.warps // self.team


def row_teams(
    kept: Sequence[Size], gone: Sequence[Size], dtype: str, machine: GpuModel
) -> RowTeams | None:
    """Return how rows are shared on a GPU; None where they are not worth a warp each.

    Args:
        kept: Extents of the box of rows.
        gone: Extents along a row, whose entries lie side by side along the last one.
        dtype: What is combined.
        machine: What it is for.
    """
    if is_free((*kept, *gone)) or dtype not in SHUFFLE_DTYPES:
        return None
    rows, length = prod(map(int, kept)), prod(map(int, gone))
    lanes, most = machine.lanes, machine.most_items // machine.lanes
    if length < lanes or not rows or not most:
        return None
    width = VECTOR if int(gone[-1]) % VECTOR == 0 and length >= VECTOR * lanes else 1
    team = 1
    while 2 * team <= most and length >= 2 * team * lanes * width:
        enough = _ENTRIES if rows * team >= _BUSY_WARPS else _FEW_ENTRIES
        if length <= enough * team * lanes:
            break
        team *= 2
    warps = team
    while 2 * warps <= min(most, _BLOCK_WARPS) and rows > warps // team:
        warps *= 2
    return RowTeams(warps, team, width)


class RowItems:
    """Writes what the work-items of a block do with rows.

    Args:
        builder: Of the kernel.
        teams: How they share rows.
        kept: Extents of the box of rows.
        gone: Extents along a row.
        lanes: Of a warp.
    """

    def __init__(
        self,
        builder: Builder,
        teams: RowTeams,
        kept: Sequence[Size],
        gone: Sequence[Size],
        lanes: int,
    ) -> None:
        self._b = builder
        self._teams = teams
        self._kept = [int(extent) for extent in kept]
        self._gone = [int(extent) for extent in gone]
        self._lanes = lanes
        self._length = prod(self._gone)
        self._row_is_there: IrValue | None = None
        self._entry_is_there: IrValue | None = None
        self._meetings = 0

    @property
    def stride(self) -> int:
        """Entries that the work-items of a row read at once."""
        return self._teams.team * self._lanes * self._teams.width

    @property
    def steps(self) -> int:
        """Steps of a work-item along a row, the last one of which may be of some only."""
        return -(-self._length // self.stride)

    @contextmanager
    def row(self) -> Iterator[list[Index]]:
        """Open the loops over blocks and their work-items; gives the subscripts of a row."""
        b, teams, rows = self._b, self._teams, prod(self._kept)
        with (
            b.grid(-(-rows // teams.rows)) as block,
            b.block(teams.warps) as warp,
            b.lane(self._lanes) as lane,
        ):
            own, number = b.split(warp, teams.team)
            row = block * teams.rows + own
            if rows % teams.rows:
                self._row_is_there = b.compare("lt", b.index(row), b.index(rows))
                row = b.smaller(row, rows - 1)
            self._lane, self._warp, self._first = lane, warp, own * teams.team
            self._item = number * self._lanes + lane
            yield b.unravel(row, self._kept)

    def each(self, initial: Sequence[IrValue], step: Step, *, is_unrolled: bool) -> list[IrValue]:
        """Append a step for all that a work-item has of a row.

        Args:
            initial: What is carried before the first one.
            step: Appends it.
            is_unrolled: Whether each has a number.

        Returns:
            What is carried after the last one.
        """
        whole = self._length // self.stride
        if is_unrolled:
            values = list(initial)
            for number in range(self.steps):
                start = Index(number * self.stride)
                values = self._step(number, start, values, step, is_cut=number >= whole)
            return values

        # Multiples of a number, not steps of it: then it is seen how vectors are aligned.
        def turn(number: Index, *carried: IrValue) -> list[IrValue]:
            return self._step(-1, number * self.stride, carried, step, is_cut=False)

        values = self._b.loop(0, whole, initial, turn)
        if whole == self.steps:
            return values
        return self._step(-1, Index(whole * self.stride), values, step, is_cut=True)

    def _step(
        self, number: int, start: Index, values: Sequence[IrValue], step: Step, *, is_cut: bool
    ) -> list[IrValue]:
        b, width = self._b, self._teams.width
        entry = start + self._item * width
        self._entry_is_there = None
        if is_cut:
            self._entry_is_there = b.compare("lt", b.index(entry), b.index(self._length))
            entry = b.smaller(entry, self._length - width)
        after = step(number, b.unravel(entry, self._gone), tuple(values))
        is_there = self._entry_is_there
        self._entry_is_there = None
        if is_there is None:
            return list(after)
        pairs = zip(after, values, strict=True)
        return [b.select(is_there, new, old) for new, old in pairs]

    @contextmanager
    def writing(self, *, is_once: bool = False) -> Iterator[None]:
        """Open a block for what a work-item writes of its entry, if there is one.

        Args:
            is_once: Whether it is written once for a row, outside of its steps.
        """
        b = self._b
        conditions = [self._row_is_there, self._entry_is_there]
        if is_once:
            conditions.append(b.compare("eq", b.index(self._item), b.index(0)))
        there = [condition for condition in conditions if condition is not None]
        if not there:
            yield
            return
        first, *others = there
        for other in others:
            first = b.binary("and", first, other)
        with b.where(first):
            yield

    def combined(self, values: Sequence[IrValue], combine: Combine) -> list[IrValue]:
        """Return what the scalars of all work-items of a row come to; each of them gets it."""
        b, parts, mask = self._b, list(values), self._lanes // 2
        while mask:
            others = [b.warp_shuffle(value, mask) for value in parts]
            parts = list(combine(parts, others))
            mask //= 2
        if self._teams.team == 1:
            return parts
        places = [
            b.shared(f"meeting{self._meetings + number}", value.type.dtype, (self._teams.warps,))
            for number, value in enumerate(parts)
        ]
        self._meetings += len(places)  # its own for each, or there would be one more barrier
        with b.where(b.compare("eq", b.index(self._lane), b.index(0))):
            for value, place in zip(parts, places, strict=True):
                b.store(value, place, self._warp)
        b.barrier()
        parts = [b.load(place, self._first) for place in places]
        for number in range(1, self._teams.team):
            others = [b.load(place, self._first + number) for place in places]
            parts = list(combine(parts, others))
        return parts
