# SPDX-License-Identifier: Apache-2.0
"""Matrix products for GPUs: tiles in shared memory, smaller ones in registers.

A block computes a tile of the result. It walks along k in steps: its work-items bring a slice of
both operands into shared memory, the left one transposed, and each of them adds the products of
some rows and columns of it to sums that stay in registers. With two stages the next slice is on its
way while one is multiplied, and a step has one barrier (NVIDIA, "CUTLASS: Efficient GEMM in CUDA").

Beyond the edges of the operands the last row or column is read again, and along k zeros are taken:
nothing of that is written.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from intarsia.codegen.body import NOTHING, Fused, Layout, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue, Type
from intarsia.codegen.kernels.gemm import Gemm, merged
from intarsia.codegen.tile import mma_step
from intarsia.codegen.unit import GpuModel
from intarsia.extents import Size, is_free

VECTOR = 4
"""Columns of a vector: what a work-item reads at once, where memory is aligned so."""


@dataclass(frozen=True, slots=True)
class GridGemmSchedule:
    """The choices of a product on a GPU.

    Attributes:
        rows: Of a block's tile of the result.
        columns: Of it.
        depth: Steps along k of a slice in shared memory.
        item_rows: Rows of a work-item's part of the tile; a multiple of `VECTOR`.
        item_columns: Columns of it; a multiple of `VECTOR`.
        stages: Slices in shared memory: 2 if one is brought while another is multiplied.
    """

    rows: int
    columns: int
    depth: int
    item_rows: int
    item_columns: int
    stages: int = 2

    @property
    def work_items(self) -> int:
        """Work-items of a block."""
        return self.rows // self.item_rows * (self.columns // self.item_columns)

    @property
    def pitch(self) -> int:
        """Entries from one step to the next of the transposed left slice."""
        return self.rows + VECTOR  # neighbours along k lie in other banks

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        return 4 * self.stages * self.depth * (self.pitch + self.columns)


@dataclass(frozen=True, slots=True)
class GridGemm:
    """`c = epilogue(a @ b)` in float32 for every item of a batch, on a GPU.

    Attributes:
        m: Rows of a and c.
        n: Columns of b and c.
        k: Columns of a and rows of b.
        a: Over (*batch, m, k).
        b: Over (*batch, k, n).
        c: Over (*batch, m, n).
        batch: Extents in front.
        machine: What it is shaped for.
        epilogue: Over the domain of c.
        schedule: How; None leaves it to the heuristic.
    """

    m: int
    n: int
    k: int
    a: Layout
    b: Layout
    c: Layout
    batch: tuple[int, ...]
    machine: GpuModel
    epilogue: Fused = NOTHING
    schedule: GridGemmSchedule | None = None


class TilePlan(Protocol):
    """What the schedules of all products by tiles in shared memory say."""

    @property
    def rows(self) -> int:
        """Of a block's tile of the result."""

    @property
    def columns(self) -> int:
        """Of it."""

    @property
    def depth(self) -> int:
        """Steps along k of a slice in shared memory."""

    @property
    def stages(self) -> int:
        """Slices in shared memory: 2 if one is brought while another is multiplied."""


Plan = TypeVar("Plan", bound=TilePlan)


SPECS = (GridGemm,)

_LEAST = 16
"""Rows and columns from which a tile is worth sharing."""
_LEAST_DEPTH = 8
_SCHEDULES = {
    1.0: GridGemmSchedule(128, 128, 8, 8, 8),
    0.9: GridGemmSchedule(64, 64, 8, 8, 8),
    0.5: GridGemmSchedule(32, 32, 16, 4, 4),
}
"""By how near to a GPU's peak they come where all of it is busy: with the tile grows what a number
that was brought is multiplied by. An estimate: nobody has measured them on a GPU."""
_BUSY_BLOCKS = 64
"""Blocks that keep a GPU busy."""


def grid_gemm(product: Gemm, b: Layout, machine: GpuModel) -> GridGemm | None:
    """Return a product for a GPU; None if it has no tiles that are worth sharing.

    Args:
        product: The product.
        b: Where its right operand lies, over (*batch, k, n).
        machine: What it is for.
    """
    sizes = (*product.batch, product.m, product.n, product.k)
    if is_free(sizes) or {product.a.dtype, b.dtype, product.c.dtype} != {"float32"}:
        return None
    if is_free((*product.a.strides, *b.strides, *product.c.strides)):
        return None
    whole = merged(replace(product, b=b))
    assert isinstance(whole.b, Layout)
    if not is_shared(whole.m, whole.n, whole.k) or 0 in whole.batch:
        return None
    spec = GridGemm(
        whole.m,
        whole.n,
        whole.k,
        whole.a,
        whole.b,
        whole.c,
        whole.batch,
        machine,
        whole.epilogue,
    )
    return spec if has_schedule(machine) else None


def has_schedule(machine: GpuModel) -> bool:
    """Tell whether a machine has what some schedule needs."""
    return any(fits(plan, machine) for plan in _SCHEDULES.values())


def is_shared(m: Size, n: Size, k: Size) -> bool:
    """Tell whether a product has tiles that are worth sharing."""
    return not is_free((m, n, k)) and min(m, n) >= _LEAST and k >= _LEAST_DEPTH


def fits(plan: GridGemmSchedule, machine: GpuModel) -> bool:
    """Tell whether a machine has what a schedule needs."""
    across = plan.columns // plan.item_columns
    return (
        plan.work_items <= machine.most_items
        and plan.shared_bytes <= machine.shared_bytes
        and plan.work_items % machine.lanes == 0
        and machine.lanes % across == 0
        and plan.item_rows * plan.item_columns * 2 <= machine.registers
    )


def schedule(spec: GridGemm) -> GridGemmSchedule:
    """Return the schedule that a product has, or that is picked for it."""
    if spec.schedule is not None:
        return spec.schedule

    fitting = {peak: plan for peak, plan in _SCHEDULES.items() if fits(plan, spec.machine)}
    return best_plan(spec, fitting)


def best_plan(spec: GridGemm, plans: Mapping[float, Plan]) -> Plan:
    """Return the one of some schedules that a product is done soonest by.

    Args:
        spec: The product.
        plans: By how near to a GPU's peak they come where all of it is busy.
    """

    def gain(peak: float) -> float:
        plan = plans[peak]
        down, across = -(-spec.m // plan.rows), -(-spec.n // plan.columns)
        blocks = math.prod(spec.batch) * down * across
        used = spec.m * spec.n / (down * plan.rows * across * plan.columns)
        return peak * used * min(1.0, blocks / _BUSY_BLOCKS)

    return plans[max(plans, key=gain)]


def build(spec: GridGemm) -> Function:
    """Return the kernel; its arguments are a, b, c, fused operands."""
    return GridProduct(spec, schedule(spec)).function()


@dataclass(frozen=True, slots=True)
class _Slice:
    """A slice of an operand: what of it a work-item brings, and where that lies.

    Attributes:
        operand: From where.
        shared: Where to, `[stages, depth, along]`.
        is_left: Whether it is the left operand, whose rows are `along`.
        width: Entries that are read at once.
        is_along: Whether these lie along `along`, not along k.
        places: Of each vector: its first row or column in the tile, and its first step.
    """

    operand: Buffer
    shared: Buffer
    is_left: bool
    width: int
    is_along: bool
    places: tuple[tuple[Index, Index], ...]


@dataclass(frozen=True, slots=True)
class Placing:
    """Where a work-item is.

    Attributes:
        batch: The item of the batch.
        row: The first row of its block.
        column: The first column of its block.
        down: Its own first row there.
        across: Its own first column there.
    """

    batch: list[Index]
    row: Index
    column: Index
    down: Index
    across: Index


class SharedProduct(ABC, Generic[Plan]):
    """Makes one kernel, whose blocks each have a tile of the result and share slices of operands.

    Args:
        spec: The product.
        plan: How it is cut.
    """

    name: str

    def __init__(self, spec: GridGemm, plan: Plan) -> None:
        self.spec = spec
        self.plan = plan
        self.b = Builder(self.name)
        self.declare()
        self.left_slice = self.slice_of("left", plan.rows)
        self.right_slice = self.slice_of("right", plan.columns)
        self.steps = -(-spec.k // plan.depth)

    def declare(self) -> None:
        """Declare the arguments."""
        b, spec = self.b, self.spec
        self.left = spec.a.declare(b, "a", (*spec.batch, spec.m, spec.k))
        self.right = spec.b.declare(b, "b", (*spec.batch, spec.k, spec.n))
        domain = (*spec.batch, spec.m, spec.n)
        self.result = spec.c.declare(b, "c", domain, is_written=True)
        self.epilogue = spec.epilogue.bind(b, domain)

    def left_at(self, item: Placing, row: Index, k: Index) -> tuple[Index, ...]:
        """Return where an entry of the left operand lies."""
        return (*item.batch, row, k)

    def function(self) -> Function:
        """Return the kernel."""
        b, spec, plan = self.b, self.spec, self.plan
        b.note(f"batch {spec.batch}, m {spec.m}, n {spec.n}, k {spec.k}")
        b.note(f"{plan}")
        shape = (*spec.batch, -(-spec.m // plan.rows), -(-spec.n // plan.columns))
        lanes = spec.machine.lanes
        with (
            b.grid(math.prod(shape)) as number,
            b.block(self.work_items() // lanes) as warp,
            b.lane(lanes) as lane,
        ):
            *batch, down, right = b.unravel(number, shape)
            own = self.place(warp, lane)
            item = Placing(batch, down * plan.rows, right * plan.columns, *own)
            self._work_item(item, warp * lanes + lane)
        return b.finish()

    @abstractmethod
    def work_items(self) -> int:
        """Return the work-items of a block."""

    @abstractmethod
    def slice_of(self, name: str, along: int) -> Buffer:
        """Declare the slices of an operand in shared memory, `[stages, depth, along]`."""

    @abstractmethod
    def place(self, warp: Index, lane: Index) -> tuple[Index, Index]:
        """Return the first row and column of a work-item in its block."""

    @abstractmethod
    def zeros(self) -> list[IrValue]:
        """Return the sums before the first product."""

    @abstractmethod
    def multiply(self, item: Placing, stage: Index, sums: list[IrValue]) -> list[IrValue]:
        """Add the products of a slice."""

    @abstractmethod
    def finish(self, item: Placing, sums: Sequence[IrValue]) -> None:
        """Write the results that lie inside."""

    def _work_item(self, item: Placing, number: Index) -> None:
        plan, sums = self.plan, self.zeros()
        slices = (self._slice(number, is_left=True), self._slice(number, is_left=False))
        sums = (
            self._overlapped(item, slices, sums)
            if plan.stages > 1
            else self._in_turn(item, slices, sums)
        )
        self.finish(item, sums)

    def _overlapped(
        self, item: Placing, slices: Sequence[_Slice], sums: list[IrValue]
    ) -> list[IrValue]:
        """Multiply slices; the next one comes meanwhile."""
        b, last = self.b, self.steps - 1
        self._put(slices, self._fetch(item, slices, Index(0)), Index(0))
        b.barrier()

        def step(number: Index, *sums: IrValue) -> Sequence[IrValue]:
            _, stage = b.split(number, 2)
            fetched = self._fetch(item, slices, number + 1)
            totals = self.multiply(item, stage, list(sums))
            self._put(slices, fetched, 1 - stage)
            b.barrier()
            return totals

        sums = b.loop(0, last, sums, step)
        return self.multiply(item, Index(last % 2), sums)

    def _in_turn(
        self, item: Placing, slices: Sequence[_Slice], sums: list[IrValue]
    ) -> list[IrValue]:
        """Bring a slice, multiply it, bring the next one."""

        def step(number: Index, *sums: IrValue) -> Sequence[IrValue]:
            fetched = self._fetch(item, slices, number)
            self.b.barrier()  # nobody reads the one before any more
            self._put(slices, fetched, Index(0))
            self.b.barrier()
            return self.multiply(item, Index(0), list(sums))

        return self.b.loop(0, self.steps, sums, step)

    # Slices

    def _slice(self, number: Index, *, is_left: bool) -> _Slice:
        """Return what a work-item brings of an operand: neighbours in memory, as far as they go."""
        spec, plan = self.spec, self.plan
        layout, operand = (spec.a, self.left) if is_left else (spec.b, self.right)
        by_along, by_k = layout.strides[-2:] if is_left else layout.strides[:-3:-1]
        along, size = (plan.rows, spec.m) if is_left else (plan.columns, spec.n)
        is_along = by_along == 1 if by_k != 1 else by_along == 1 and size > spec.k
        others = [step for step in layout.strides if step != 1]
        near, extent = (along, size) if is_along else (plan.depth, spec.k)
        is_near = (by_along if is_along else by_k) == 1
        nbytes = VECTOR * operand.item_bytes
        is_aligned = layout.align % nbytes == 0 and layout.align > 0
        is_whole = extent % VECTOR == 0 and not any(step % VECTOR for step in others)
        enough = near * (plan.depth if is_along else along) >= VECTOR * self.work_items()
        width = VECTOR if is_near and is_aligned and is_whole and enough else 1
        far = plan.depth if is_along else along
        places = [
            (at_near * width, at_far) if is_along else (at_far, at_near * width)
            for at_near, at_far in self._spread(number, near // width, far)
        ]
        shared = self.left_slice if is_left else self.right_slice
        return _Slice(operand, shared, is_left, width, is_along, tuple(places))

    def _spread(self, number: Index, near: int, far: int) -> Iterator[tuple[Index, Index]]:
        """Yield the entries of a box that are a work-item's: neighbours have near ones."""
        items = self.work_items()
        if near >= items:
            for i in range(near // items * far):
                row, part = divmod(i, near // items)
                yield number + part * items, Index(row)
            return
        at_far, at_near = self.b.split(number, near)
        for i in range(near * far // items):
            yield at_near, at_far + i * (items // near)

    def _fetch(self, item: Placing, slices: Sequence[_Slice], step: Index) -> list[IrValue]:
        """Read what a work-item brings of both slices of a step."""
        return [
            self._read(item, one, along, step * self.plan.depth + k)
            for one in slices
            for along, k in one.places
        ]

    def _read(self, item: Placing, one: _Slice, along: Index, k: Index) -> IrValue:
        b, spec, plan = self.b, self.spec, self.plan
        size, tile = (spec.m, plan.rows) if one.is_left else (spec.n, plan.columns)
        along = along + (item.row if one.is_left else item.column)
        is_cut = spec.k % plan.depth != 0
        wide_k, wide = (1, one.width) if one.is_along else (one.width, 1)
        if size % tile:
            along = b.smaller(along, size - wide)
        place = b.smaller(k, spec.k - wide_k) if is_cut else k
        at = self.left_at(item, along, place) if one.is_left else (*item.batch, place, along)
        value = b.load(one.operand, at, one.width)
        if not is_cut:
            return value
        is_inside = b.compare("lt", b.index(k), b.index(spec.k))
        return b.select(is_inside, value, 0)

    def _put(self, slices: Sequence[_Slice], values: Sequence[IrValue], stage: Index) -> None:
        """Write what was brought into shared memory."""
        places = [(one, place) for one in slices for place in one.places]
        for value, (one, (along, k)) in zip(values, places, strict=True):
            stride = one.shared.strides[-1 if one.is_along else -2]
            self.b.store(value, one.shared, (stage, k, along), stride=stride)

    # Results

    def store(self, item: Placing, value: IrValue, row: Index, column: Index) -> None:
        """Write neighbours along a row, if they lie inside."""
        b, spec, plan = self.b, self.spec, self.plan
        inside = [
            b.compare("lt", b.index(place), b.index(extent))
            for place, extent, tile in ((row, spec.m, plan.rows), (column, spec.n, plan.columns))
            if extent % tile
        ]
        if not inside:
            self.write(item, value, row, column)
            return
        condition = inside[0] if len(inside) == 1 else b.binary("and", *inside)
        with b.where(condition):
            self.write(item, value, row, column)

    def write(self, item: Placing, value: IrValue, row: Index, column: Index) -> None:
        """Write neighbours along a row, which lie inside."""
        at = (*item.batch, row, column)
        store_lanes(self.b, self.epilogue(value, at, None), self.result, at)


class GridProduct(SharedProduct[GridGemmSchedule]):
    """Makes one kernel, whose work-items each have rows and columns of a tile."""

    name = "grid_gemm"

    def work_items(self) -> int:
        """Return the work-items of a block."""
        return self.plan.work_items

    def slice_of(self, name: str, along: int) -> Buffer:
        """Declare the slices of an operand in shared memory, `[stages, depth, along]`."""
        plan = self.plan
        pitch = plan.pitch if name == "left" else along
        shape = (plan.stages, plan.depth, along)
        return self.b.shared(name, "float32", shape, (plan.depth * pitch, pitch, 1))

    def place(self, warp: Index, lane: Index) -> tuple[Index, Index]:
        """Return the first row and column of a work-item in its block."""
        across = self.plan.columns // self.plan.item_columns
        row, column = self.b.split(lane, across)
        down = warp * (self.spec.machine.lanes // across) + row
        return down * VECTOR, column * VECTOR

    def zeros(self) -> list[IrValue]:
        """Return the sums before the first product."""
        zero = self.b.constant(0, Type("float32", VECTOR))
        return [zero] * (self.plan.item_rows * self.plan.item_columns // VECTOR)

    def multiply(self, item: Placing, stage: Index, sums: list[IrValue]) -> list[IrValue]:
        """Add the products of a slice."""
        b = self.b

        def step(k: Index, *sums: IrValue) -> Sequence[IrValue]:
            left = [b.load(self.left_slice, (stage, k, row), VECTOR) for row in self._rows(item)]
            right = [
                b.load(self.right_slice, (stage, k, column), VECTOR)
                for column in self._columns(item)
            ]
            return mma_step(
                b,
                sums,
                self.plan.item_rows,
                len(right),
                lambda r: b.extract(left[r // VECTOR], r % VECTOR),
                lambda v: right[v],
            )

        return b.loop(0, self.plan.depth, sums, step)

    def _rows(self, item: Placing) -> list[Index]:
        """Return the first rows of a work-item's groups of `VECTOR` rows, in its block."""
        groups = self.plan.item_rows // VECTOR
        return [item.down + i * (self.plan.rows // groups) for i in range(groups)]

    def _columns(self, item: Placing) -> list[Index]:
        """Return the first columns of its vectors: neighbours read neighbouring ones."""
        vectors = self.plan.item_columns // VECTOR
        return [item.across + i * (self.plan.columns // vectors) for i in range(vectors)]

    def finish(self, item: Placing, sums: Sequence[IrValue]) -> None:
        """Write the results that lie inside."""
        b, spec, plan = self.b, self.spec, self.plan
        columns = self._columns(item)
        is_cut = spec.n % VECTOR != 0
        for r in range(plan.item_rows):
            row = item.row + self._rows(item)[r // VECTOR] + r % VECTOR
            for v, first in enumerate(columns):
                column, value = item.column + first, sums[r * len(columns) + v]
                if not is_cut:
                    self.store(item, value, row, column)
                    continue
                for lane in range(VECTOR):
                    self.store(item, b.extract(value, lane), row, column + lane)
