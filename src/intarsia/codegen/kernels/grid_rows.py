# SPDX-License-Identifier: Apache-2.0
"""Softmax and its kin, and normalisations, on GPUs: a warp or several for a row.

What is computed is what `rows` computes; here a row is shared by work-items (`row_items`). A row of
which each has few entries is read once and stays in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from intarsia.codegen.body import store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue
from intarsia.codegen.kernels.row_items import RowItems, RowTeams, row_teams
from intarsia.codegen.kernels.rows import Rows, RowsKernel, RowVector, Step, row_domains
from intarsia.codegen.unit import GpuModel


@dataclass(frozen=True, slots=True)
class GridRows:
    """One kernel; its arguments are those of `rows`.

    Attributes:
        rows: What is computed.
        machine: What it is shaped for.
        teams: How rows are shared.
    """

    rows: Rows
    machine: GpuModel
    teams: RowTeams


SPECS = (GridRows,)

_HELD = 8
"""Part of a work-item's registers that may hold entries of a row: one in so many."""


def grid_rows(rows: Rows, machine: GpuModel) -> GridRows | None:
    """Return the same for a GPU; None where its rows are not worth a warp each.

    Args:
        rows: What is computed.
        machine: What it is for.
    """
    kept, gone, is_across = row_domains(rows)
    is_along = not is_across and gone.strides[0][-1] == 1
    if not is_along or (rows.kind == "Hardmax" and len(gone.extents) > 1):
        return None
    teams = row_teams(kept.extents, gone.extents, rows.x.dtype, machine)
    return None if teams is None else GridRows(rows, machine, teams)


def build(spec: GridRows) -> Function:
    """Return the kernel."""
    return _GridRowsKernel(spec).build()


class _GridRowsKernel(RowsKernel):
    keeps_in_memory = False  # what it would read back may be a neighbour's

    def __init__(self, spec: GridRows) -> None:
        super().__init__(Builder("grid_rows"), spec.rows)
        b, teams = self._b, spec.teams
        b.note(f"{spec.rows.kind} of {prod(self._kept.extents)} rows: {teams}")
        lanes = spec.machine.lanes
        self._items = RowItems(b, teams, self._kept.extents, self._gone.extents, lanes)
        self._lanes = teams.width
        self._is_resident = self._items.steps * teams.width <= spec.machine.registers // _HELD
        if spec.rows.made is None:
            self._made = None

    def build(self) -> Function:
        with self._items.row() as place:
            self._row(place, 1)
        return self._b.finish()

    def fetch_ahead(self, place: list[Index]) -> None:
        """Leave that to the other warps of a multiprocessor."""

    def visit(
        self, place: list[Index], count: int, initial: list[IrValue], step: Step
    ) -> list[IrValue]:
        width = self._lanes

        def visit(
            number: int, point: list[Index], carried: tuple[IrValue, ...]
        ) -> Sequence[IrValue]:
            return step(RowVector(number, (*place, *point), width, point[-1]), carried)

        values = self._items.each(initial, visit, is_unrolled=self._is_resident)
        self._made = None  # it has been written
        return values

    def joined(
        self, values: list[IrValue], combine: Callable[[IrValue, IrValue], IrValue]
    ) -> list[IrValue]:
        def both(left: Sequence[IrValue], right: Sequence[IrValue]) -> list[IrValue]:
            return [combine(*pair) for pair in zip(left, right, strict=True)]

        return self._items.combined(values, both)

    def put(self, value: IrValue, buffer: Buffer, entry: RowVector) -> None:
        with self._items.writing():
            store_lanes(self._b, value, buffer, entry.at, entry.count)

    def write_statistic(self, number: int, value: IrValue, place: list[Index], count: int) -> None:
        buffer = self._statistics[number]
        if buffer is not None:
            with self._items.writing(is_once=True):
                self._b.store(value, buffer, place)
