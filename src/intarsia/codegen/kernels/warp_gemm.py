# SPDX-License-Identifier: Apache-2.0
"""Matrix products for GPUs whose warps multiply matrices of float16 (`ir.Mma`).

As `grid_gemm`, with slices of float16: a warp has some rows and columns of a block's tile, and its
sums lie in its lanes as the instruction has them. Both slices are contiguous along k, so that a
lane reads the neighbours along k that it needs at once. Sums are float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from intarsia.codegen import ir
from intarsia.codegen.ir import Buffer, Function, Index, IrValue, Type
from intarsia.codegen.kernels.grid_gemm import GridGemm, GridGemmSchedule, GridProduct, Placing

_PAIR, _QUAD = 2, 4
"""Neighbours along k or along a row that a lane has, and lanes that share a row."""
_EIGHT = 8
"""Rows from one half of a matrix to the other."""

SCHEDULE = GridGemmSchedule(64, 64, 16, 32, 32)
"""Four warps, of 2 by 4 products each."""


@dataclass(frozen=True, slots=True)
class WarpGemm(GridGemm):
    """`c = epilogue(a @ b)`, of float16 summed in float32; `item_rows` are a warp's."""


SPECS = (WarpGemm,)


def warp_gemm(product: GridGemm) -> WarpGemm | None:
    """Return a product of float32 as one of float16; None if the machine has no memory for it."""
    a, b = (replace(layout, dtype="float16") for layout in (product.a, product.b))
    spec = WarpGemm(
        product.m,
        product.n,
        product.k,
        a,
        b,
        product.c,
        product.batch,
        product.machine,
        product.epilogue,
    )
    made = _WarpProduct(spec, SCHEDULE)
    machine = product.machine
    nbytes = sum(int(one.span) * one.item_bytes for one in (made.left_slice, made.right_slice))
    is_fitting = nbytes <= machine.shared_bytes and made.work_items() <= machine.most_items
    return spec if is_fitting and machine.lanes == ir.MMA_LANES else None


def build(spec: WarpGemm) -> Function:
    """Return the kernel; its arguments are a, b, c, fused operands."""
    return _WarpProduct(spec, spec.schedule or SCHEDULE).function()


class _WarpProduct(GridProduct):
    """Makes one kernel."""

    name = "warp_gemm"

    def work_items(self) -> int:
        plan = self.plan
        warps = plan.rows // plan.item_rows * (plan.columns // plan.item_columns)
        return warps * self.spec.machine.lanes

    def slice_of(self, name: str, along: int) -> Buffer:
        plan = self.plan
        pitch = plan.depth + _EIGHT  # neighbouring rows lie in other banks
        shape = (plan.stages, plan.depth, along)
        return self.b.shared(name, "float16", shape, (along * pitch, 1, pitch))

    def place(self, warp: Index, lane: Index) -> tuple[Index, Index]:
        across = self.plan.columns // self.plan.item_columns
        down, right = self.b.split(warp, across)
        self.group, self.pair = self.b.split(lane, _QUAD)
        return down * self.plan.item_rows, right * self.plan.item_columns

    def zeros(self) -> list[IrValue]:
        plan = self.plan
        self.tiles_down = plan.item_rows // ir.MMA_ROWS
        self.tiles_across = plan.item_columns // ir.MMA_COLUMNS
        zero = self.b.constant(0, Type("float32", 4))
        return [zero] * (self.tiles_down * self.tiles_across)

    def multiply(self, item: Placing, stage: Index, sums: list[IrValue]) -> list[IrValue]:
        sums = list(sums)
        for k in range(0, self.plan.depth, ir.MMA_DEPTH):
            left = [
                self._joined(
                    self._pair(self.left_slice, stage, k + deep, item.down + first + self.group)
                    for deep in (0, _EIGHT)
                    for first in (i * ir.MMA_ROWS, i * ir.MMA_ROWS + _EIGHT)
                )
                for i in range(self.tiles_down)
            ]
            right = [
                self._joined(
                    self._pair(
                        self.right_slice,
                        stage,
                        k + deep,
                        item.across + i * ir.MMA_COLUMNS + self.group,
                    )
                    for deep in (0, _EIGHT)
                )
                for i in range(self.tiles_across)
            ]
            pairs = [(x, y) for x in left for y in right]
            sums = [self.b.mma(x, y, z) for (x, y), z in zip(pairs, sums, strict=True)]
        return sums

    def _pair(self, shared: Buffer, stage: Index, k: int, along: Index) -> IrValue:
        return self.b.load(shared, (stage, self.pair * _PAIR + k, along), _PAIR)

    def _joined(self, vectors: Iterable[IrValue]) -> IrValue:
        """Return vectors of as many lanes as one."""
        parts = list(vectors)
        while len(parts) > 1:
            count = 2 * parts[0].type.lanes
            halves = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.b.shuffle(*half, tuple(range(count))) for half in halves]
        return parts[0]

    def finish(self, item: Placing, sums: Sequence[IrValue]) -> None:
        b = self.b
        is_cut = self.spec.n % _PAIR != 0
        for number, value in enumerate(sums):
            down, across = divmod(number, self.tiles_across)
            column = item.column + item.across + across * ir.MMA_COLUMNS + self.pair * _PAIR
            for part in range(2):
                row = item.row + item.down + down * ir.MMA_ROWS + part * _EIGHT + self.group
                if is_cut:
                    for lane in range(_PAIR):
                        one = b.extract(value, part * _PAIR + lane)
                        self.store(item, one, row, column + lane)
                else:
                    lanes = (part * _PAIR, part * _PAIR + 1)
                    self.store(item, b.shuffle(value, value, lanes), row, column)
