# SPDX-License-Identifier: Apache-2.0
"""Reductions on GPUs along what lies side by side: a warp or several for a result.

What is computed is what `reduce` computes; here the entries of a result are shared by work-items
(`row_items`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function, Index, IrValue, Type
from intarsia.codegen.kernels.reduce import Reduction, ReductionKernel, reduction_domains
from intarsia.codegen.kernels.reduce_kinds import ReductionKind, fold
from intarsia.codegen.kernels.row_items import RowItems, RowTeams, row_teams
from intarsia.codegen.unit import GpuModel


@dataclass(frozen=True, slots=True)
class GridReduction:
    """One kernel; its arguments are those of `reduce`.

    Attributes:
        reduction: What is computed.
        machine: What it is shaped for.
        teams: How the entries of results are shared.
    """

    reduction: Reduction
    machine: GpuModel
    teams: RowTeams


SPECS = (GridReduction,)


def grid_reduction(reduction: Reduction, machine: GpuModel) -> GridReduction | None:
    """Return the same for a GPU; None where its results are not worth a warp each.

    Args:
        reduction: What is computed.
        machine: What it is for.
    """
    kept, gone, is_across = reduction_domains(reduction)
    if is_across or gone.strides[0][-1] != 1:
        return None
    teams = row_teams(kept.extents, gone.extents, reduction.x.dtype, machine)
    if teams is None:
        return None
    if reduction.kind.startswith("Arg"):
        if len(gone.extents) > 1:
            return None
        teams = RowTeams(teams.warps, teams.team, 1)
    return GridReduction(reduction, machine, teams)


def build(spec: GridReduction) -> Function:
    """Return the kernel."""
    return _GridReductionKernel(spec).build()


class _GridReductionKernel(ReductionKernel):
    def __init__(self, spec: GridReduction) -> None:
        super().__init__(Builder("grid_reduce"), spec.reduction)
        b, teams = self._b, spec.teams
        b.note(f"{spec.reduction.kind} of {prod(self._gone.extents)} entries: {teams}")
        lanes = spec.machine.lanes
        self._items = RowItems(b, teams, self._kept.extents, self._gone.extents, lanes)
        self._lanes = teams.width

    def build(self) -> Function:
        with self._items.row() as place:
            result = self._along(place)
            with self._items.writing(is_once=True):
                self._store(result, place, 1)
        return self._b.finish()

    def along_pass(
        self, kind: ReductionKind, place: list[Index], change: Callable[[IrValue], IrValue]
    ) -> IrValue:
        b, width = self._b, self._lanes
        first = b.constant(kind.neutral(self._dtype), Type(self._dtype, width))

        def step(
            number: int, point: list[Index], carried: tuple[IrValue, ...]
        ) -> Sequence[IrValue]:
            value = change(self._load((*place, *point), 0, width))
            return [kind.join(b, carried[0], value)]

        (whole,) = self._items.each([first], step, is_unrolled=False)

        def both(left: Sequence[IrValue], right: Sequence[IrValue]) -> list[IrValue]:
            return [kind.combine(b, left[0], right[0])]

        return self._items.combined([fold(b, whole, kind.combine)], both)[0]

    def argument(self, place: list[Index]) -> IrValue:
        b = self._b
        best = b.constant(self._worst(), Type(self._dtype))
        where = b.constant(0, Type("int32"))

        def step(
            number: int, point: list[Index], carried: tuple[IrValue, ...]
        ) -> Sequence[IrValue]:
            value = self._load((*place, *point), 0, 1)
            return self._better(value, self._number(point[-1]), *carried)

        def both(left: Sequence[IrValue], right: Sequence[IrValue]) -> list[IrValue]:
            return list(self._first_of((right[0], right[1]), (left[0], left[1])))

        first = self._items.each([best, where], step, is_unrolled=False)
        return b.cast(self._items.combined(first, both)[1], "int64")
