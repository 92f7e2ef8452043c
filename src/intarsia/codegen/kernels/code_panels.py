# SPDX-License-Identifier: Apache-2.0
"""Packs a computed right operand of codes in the order in which products read it.

Constant weights are packed when compiling (`gemm.pack`, `tile_product.pack`); what is computed, as
keys and values of attention are, is packed by this kernel when it runs. Where a CPU multiplies
bytes, codes stay bytes: unsigned ones have their top bit turned, which takes 128 from each, and the
sums of the columns come with them, as zero points are taken from sums of products then. Elsewhere
they become int16 without their zero point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from intarsia.codegen.body import Layout, load_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import DOT_GROUPS, Buffer, Function, Index, IrValue, Type
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.window import Split, panel_runs
from intarsia.codegen.unit import AVX512, CpuModel

TOP = 128
"""What a byte differs by as a signed and as an unsigned number if its top bit is turned."""
_SUM = "int32"
_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class CodePanels:
    """One kernel; its arguments are codes, their zero point if any, panels, and sums if any.

    In order: the batch, panels of vectors of columns, parts of `rows` groups, the vectors of a
    panel, the groups of a part, the columns of a vector, and what a group has of each along k.
    Columns that fill the last vector are anything; so are groups that fill the last part.

    Attributes:
        batch: Extents in front.
        k: Rows of the operand.
        n: Columns of the operand.
        x: Of the codes, over (*batch, k, n).
        dtype: Of the panels: int8, with sums of columns, or int16, without a zero point.
        width: Vectors of a panel, at most.
        rows: Groups of a part.
        has_zero: Whether there is a zero point, one number of the dtype of the codes: for int16.
        unit: What it is shaped for.
    """

    batch: tuple[int, ...]
    k: int
    n: int
    x: Layout
    dtype: str = "int8"
    width: int = 2
    rows: int = 1
    has_zero: bool = False
    unit: CpuModel = AVX512

    def __post_init__(self) -> None:
        """Check what the kernel relies on."""
        assert self.dtype == "int16" or not self.has_zero, "bytes keep their zero point"
        assert len(self.x.strides) == len(self.batch) + 2, f"{self.x}"

    @property
    def group(self) -> int:
        """Neighbours along k; twice as many where products are made of blocks."""
        is_blocked = self.dtype == "int8" and self.unit.has_blocked_dots(self.dtype)
        return DOT_GROUPS[self.dtype] * (1 + is_blocked)

    @property
    def lanes(self) -> int:
        """Columns of a vector."""
        return self.unit.lanes(_SUM)

    @property
    def vectors(self) -> int:
        """Of all columns."""
        return -(-self.n // self.lanes)

    @property
    def steps(self) -> int:
        """Groups along k, those among them that fill the last part."""
        return -(-self.k // (self.group * self.rows)) * self.rows

    @property
    def item(self) -> int:
        """Elements of the panels of one item of the batch."""
        return self.steps * self.group * self.vectors * self.lanes

    @property
    def sums(self) -> tuple[int, ...] | None:
        """The shape of the sums, whole vectors of columns; None where there are none."""
        return (*self.batch, self.vectors * self.lanes) if self.dtype == "int8" else None


SPECS = (CodePanels,)


def build(spec: CodePanels) -> Function:
    """Return the kernel."""
    b = Builder("code_panels")
    b.note(f"batch {spec.batch}, {spec.k} x {spec.n} in panels of {spec.width} vectors")
    x = spec.x.declare(b, "x", (*spec.batch, spec.k, spec.n))
    zero = b.argument("zero", spec.x.dtype, (1,)) if spec.has_zero else None
    size = (math.prod(spec.batch) * spec.item,)
    y = b.argument("y", spec.dtype, size, is_written=True, align=_LINE_BYTES)
    sums = None
    if spec.sums is not None:
        sums = b.argument("sums", _SUM, spec.sums, is_written=True, align=_LINE_BYTES)
    if 0 in (*spec.batch, spec.n):
        return b.finish_empty()
    vector = _Vector(b, spec, x, zero, y, sums)
    panels = Split.of(spec.vectors, spec.width)
    for *batch, panel in each_turn(b, (*spec.batch, panels.count)):
        item = Index()
        for at, extent in zip(batch, spec.batch, strict=True):
            item = item * extent + at
        for run, is_cut in panel_runs(spec.n, spec.lanes, panels):
            for first in run.each(b, panel, panel + 1):
                begin = item * spec.item + first * (spec.steps * spec.group * spec.lanes)
                for number in range(run.size):
                    is_last = is_cut and number == run.size - 1
                    count = spec.n % spec.lanes if is_last else None
                    vector.append(batch, (first, number, run.size), begin, count)
    return b.finish()


@dataclass(frozen=True, slots=True)
class _Vector:
    """Packs a vector of columns.

    Attributes:
        b: Of the kernel.
        spec: It.
        x: Codes.
        zero: Their zero point, if there is one.
        y: Panels.
        sums: Of columns, if there are any.
    """

    b: Builder
    spec: CodePanels
    x: Buffer
    zero: Buffer | None
    y: Buffer
    sums: Buffer | None

    def append(
        self, batch: Sequence[Index], at: tuple[Index, int, int], begin: Index, count: int | None
    ) -> None:
        """Append what packs one vector of a panel.

        Args:
            batch: The item.
            at: The first vector of the panel, which one of it this is, and how many it has.
            begin: Where the panel begins.
            count: Columns that are there; None for all.
        """
        b, spec = self.b, self.spec
        first, number, size = at
        column = (first + number) * spec.lanes

        def step(group: Index, *totals: IrValue, there: int = spec.group) -> list[IrValue]:
            part, row = b.split(group, spec.rows) if spec.rows > 1 else (group, Index())
            place = ((part * size + number) * spec.rows + row) * (spec.lanes * spec.group)
            k = group * spec.group
            codes = [self._row((*batch, k + i, column), count) for i in range(there)]
            codes += [b.constant(0, codes[0].type)] * (spec.group - there)
            return self._write(codes, begin + place, totals)

        zero = b.constant(0, Type(_SUM, spec.lanes))
        whole, rest = divmod(spec.k, spec.group)
        totals = b.loop(0, whole, [] if self.sums is None else [zero], step)
        if rest:
            totals = step(Index(whole), *totals, there=rest)
        if self.sums is not None:
            b.store(totals[0], self.sums, (*batch, column))

    def _row(self, at: Sequence[Index], count: int | None) -> IrValue:
        """Return a vector of a row of the operand as it is packed."""
        b, spec = self.b, self.spec
        value = load_lanes(b, self.x, at, spec.lanes, count)
        if spec.dtype == "int8":
            turned = b.binary("xor", value, TOP) if spec.x.dtype == "uint8" else value
            return b.bitcast(turned, spec.dtype)
        wide = b.cast(value, spec.dtype)
        if self.zero is None:
            return wide
        return b.sub(wide, b.cast(b.load(self.zero, (0,)), spec.dtype))

    def _write(
        self, codes: Sequence[IrValue], place: Index, totals: Sequence[IrValue]
    ) -> list[IrValue]:
        """Write a group of each column; return the sums with it."""
        b, lanes = self.b, self.spec.lanes
        if lanes == 1:
            for number, code in enumerate(codes):
                b.store(code, self.y, place + number)
            for code in codes if totals else ():
                totals = [b.add(totals[0], b.cast(code, _SUM))]
            return list(totals)
        parts, summed = list(codes), list(codes)
        while len(parts) > 1:  # neighbours side by side, then pairs of them
            inside = parts[0].type.lanes // lanes
            order = [
                lane + side * inside * lanes
                for column in range(lanes)
                for side in range(2)
                for lane in range(column * inside, (column + 1) * inside)
            ]
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [b.shuffle(left, right, order) for left, right in pairs]
            if 2 * inside == DOT_GROUPS[self.spec.dtype]:
                summed = parts
        b.store(parts[0], self.y, place)
        # Of an unsigned and a signed operand, which is what most instructions multiply.
        ones = b.constant(1, Type("uint8", summed[0].type.lanes))
        for part in summed:
            totals = [b.dot(ones, part, total) for total in totals]
        return list(totals)
