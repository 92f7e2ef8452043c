# SPDX-License-Identifier: Apache-2.0
"""Matrix products for GPUs whose warps multiply matrices (`ir.Mma`): of float16, or by TF32.

As `grid_gemm`, but a warp has some rows and columns of a block's tile, and its sums lie in its
lanes as the instruction has them. Slices keep the dtype of the operands, and are contiguous along
k, so that a lane reads the neighbours along k that it needs at once. Sums are float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from intarsia.codegen import ir
from intarsia.codegen.ir import Buffer, Function, Index, IrValue, Type
from intarsia.codegen.kernels.grid_gemm import GridGemm, Placing, SharedProduct, best_plan
from intarsia.codegen.unit import GpuModel

_PAIR, _QUAD = 2, 4
"""Neighbours along k or along a row that a lane has, and lanes that share a row."""
_EIGHT = 8
"""Rows from one half of a matrix to the other."""


@dataclass(frozen=True, slots=True)
class WarpGemmSchedule:
    """The choices of a product of warps.

    Attributes:
        rows: Of a block's tile of the result.
        columns: Of it.
        depth: Steps along k of a slice in shared memory.
        warp_rows: Rows of a warp's part of the tile; a multiple of `ir.MMA_ROWS`.
        warp_columns: Columns of it; a multiple of `ir.MMA_COLUMNS`.
        stages: Slices in shared memory: 2 if one is brought while another is multiplied.
    """

    rows: int
    columns: int
    depth: int
    warp_rows: int
    warp_columns: int
    stages: int = 2

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.rows // self.warp_rows * (self.columns // self.warp_columns)

    @property
    def pitch(self) -> int:
        """Entries from one row or column of a slice to the next."""
        return self.depth + _EIGHT  # neighbouring ones lie in other banks

    def shared_bytes(self, dtype: str) -> int:
        """Return the bytes of shared memory of a block."""
        along = self.rows + self.columns
        return np.dtype(dtype).itemsize * self.stages * self.pitch * along


@dataclass(frozen=True, slots=True)
class WarpGemm:
    """One kernel; its arguments are a, b, c, fused operands.

    Attributes:
        product: What is computed, from operands that are both float16, or float32 (by TF32).
        schedule: How; None leaves it to the heuristic.
    """

    product: GridGemm
    schedule: WarpGemmSchedule | None = None


SPECS = (WarpGemm,)

_SCHEDULES = {
    1.0: WarpGemmSchedule(128, 128, 16, 64, 32),
    0.8: WarpGemmSchedule(64, 64, 16, 32, 32),
    0.5: WarpGemmSchedule(32, 32, 16, 16, 16),
}
"""As those of `grid_gemm`, an estimate, too."""


def warp_gemm(product: GridGemm, dtype: str) -> WarpGemm | None:
    """Return a product as one of a GPU's warps; None if it has none, or no memory for it.

    Args:
        product: What is computed.
        dtype: Of both operands in memory: float16, or float32 for products by TF32.
    """
    if not has_warp_schedule(product.machine, dtype):
        return None
    a, b = (replace(layout, dtype=dtype) for layout in (product.a, product.b))
    return WarpGemm(replace(product, a=a, b=b, schedule=None))


def has_warp_schedule(machine: GpuModel, dtype: str) -> bool:
    """Tell whether a machine has what some schedule needs for operands of a dtype."""
    is_able = machine.has_mma if dtype == "float16" else machine.has_tf32
    return is_able and any(fits(plan, machine, dtype) for plan in _SCHEDULES.values())


def fits(plan: WarpGemmSchedule, machine: GpuModel, dtype: str) -> bool:
    """Tell whether a machine has what a schedule needs for operands of a dtype."""
    return (
        machine.lanes == ir.MMA_LANES
        and plan.warps * machine.lanes <= machine.most_items
        and plan.shared_bytes(dtype) <= machine.shared_bytes
        and plan.warp_rows * plan.warp_columns * 2 <= machine.registers * machine.lanes
    )


def schedule(spec: WarpGemm) -> WarpGemmSchedule:
    """Return the schedule that a product has, or that is picked for it."""
    if spec.schedule is not None:
        return spec.schedule
    product = spec.product
    able = {k: v for k, v in _SCHEDULES.items() if fits(v, product.machine, product.a.dtype)}
    return best_plan(product, able)


def build(spec: WarpGemm) -> Function:
    """Return the kernel; its arguments are a, b, c, fused operands."""
    return WarpProduct(spec.product, schedule(spec)).function()


class WarpProduct(SharedProduct[WarpGemmSchedule]):
    """Makes one kernel, whose warps each have rows and columns of a tile."""

    name = "warp_gemm"

    def work_items(self) -> int:
        """Return the work-items of a block."""
        return self.plan.warps * self.spec.machine.lanes

    def slice_of(self, name: str, along: int) -> Buffer:
        """Declare the slices of an operand in shared memory, `[stages, depth, along]`."""
        plan = self.plan
        shape = (plan.stages, plan.depth, along)
        strides = (along * plan.pitch, 1, plan.pitch)
        return self.b.shared(name, self.spec.a.dtype, shape, strides)

    def place(self, warp: Index, lane: Index) -> tuple[Index, Index]:
        """Return the first row and column of a work-item in its block."""
        across = self.plan.columns // self.plan.warp_columns
        down, right = self.b.split(warp, across)
        self.group, self.pair = self.b.split(lane, _QUAD)
        return down * self.plan.warp_rows, right * self.plan.warp_columns

    def zeros(self) -> list[IrValue]:
        """Return the sums before the first product."""
        plan = self.plan
        self.tiles_down = plan.warp_rows // ir.MMA_ROWS
        self.tiles_across = plan.warp_columns // ir.MMA_COLUMNS
        zero = self.b.constant(0, Type("float32", 4))
        return [zero] * (self.tiles_down * self.tiles_across)

    def multiply(self, item: Placing, stage: Index, sums: list[IrValue]) -> list[IrValue]:
        """Add the products of a slice."""
        sums, step = list(sums), ir.MMA_DEPTHS[self.spec.a.dtype]
        for k in range(0, self.plan.depth, step):
            down = [item.down + i * ir.MMA_ROWS + self.group for i in range(self.tiles_down)]
            across = [
                item.across + i * ir.MMA_COLUMNS + self.group for i in range(self.tiles_across)
            ]
            deep = range(k, k + step, _EIGHT)
            left = [self._left(stage, deep, row) for row in down]
            right = [
                self._joined(self._pair(self.right_slice, stage, at, column) for at in deep)
                for column in across
            ]
            pairs = [(x, y) for x in left for y in right]
            sums = [self.b.mma(x, y, z) for (x, y), z in zip(pairs, sums, strict=True)]
        return sums

    def _left(self, stage: Index, deep: Sequence[int], row: Index) -> IrValue:
        """Return a lane's elements of the left matrix."""
        whole = self._joined(
            self._pair(self.left_slice, stage, at, row + half)
            for at in deep
            for half in (0, _EIGHT)
        )
        if len(deep) > 1:
            return whole
        # Of float32 elements 0 and 1 are those of one column. Which of the columns of both matrices
        # meet in one product is free: here neighbours are what the instruction has four apart.
        return self.b.shuffle(whole, whole, (0, 2, 1, 3))

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
        """Write the results that lie inside."""
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
