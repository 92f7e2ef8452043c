# SPDX-License-Identifier: Apache-2.0
"""What a matrix product is, and the choices of how it is cut."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from intarsia.codegen.body import NOTHING, Fused, Layout
from intarsia.codegen.ir import DOT_GROUPS, DOT_SUMS
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Size

_NARROW = {
    "uint8": ("int8", "uint8"),
    "int8": ("int8",),
    "int16": ("int8", "int16"),
    "uint16": ("uint16",),
}
"""By a left operand's dtype, those of right ones that dot products of its groups take."""


class PanelSource(StrEnum):
    """Where the tile macro reads the right operand."""

    PANELS = "panels"  # constant, in panels that were packed at compile time
    PLACE = "place"  # where it lies
    COPY = "copy"  # a panel that the kernel packed into a buffer of its own
    DOTS = "dots"  # where it lies, vectors going along k: it is contiguous there


@dataclass(frozen=True, slots=True)
class GemmSchedule:
    """The choices of a matrix product.

    Attributes:
        rows: Of a register tile, at most.
        vectors: Of a row of a register tile, at most; so wide is a panel of the right operand.
            Columns, for dot products.
        source: Where the right operand is read.
        depth: Steps along k that are summed before the next tile; 0 for all.
        unroll: Steps of an iteration of the innermost loop.
        prefetch: How many steps ahead the right operand is asked for; 0 for not at all.
        streamed: Entries of the next panel that a step of a tile asks for, so that the tiles of one
            panel ask for all of the next; 0 for none. Where rows are free, at most: it is what
            their number needs.
        row_blocks: Blocks of rows of a turn of the parallel loop, at most. Blocks of columns, for
            dot products.
        turn_panels: Panels of a turn, at most; all of them meet a part of a long k before the next
            part.
        is_rows_first: Whether turns go through the panels for each chunk of rows, rather than
            through the rows for each panel.
    """

    rows: int
    vectors: int
    source: PanelSource
    depth: int = 0
    # On Cascade Lake unrolling gained nothing, as a tile is 24 to 28 products long: see
    # `is_long_step`.
    unroll: int = 1
    prefetch: int = 0
    streamed: int = 0
    row_blocks: int = 1 << 30
    turn_panels: int = 1
    is_rows_first: bool = False


@dataclass(frozen=True, slots=True)
class Panels:
    """A constant right operand, as `pack` packs it.

    Attributes:
        dtype: Of its elements: that of the left operand, or int8 for one of narrow integers.
        batch: Its own batch extents, aligned to the last ones of the product; each the product's
            or 1.
        split: How many groups of a panel are there twice, with parts of their weights each, so that
            no two products of neighbours add up to more than an int16; None if they may.
    """

    dtype: str = "float32"
    batch: tuple[int, ...] = ()
    split: int | None = None


@dataclass(frozen=True, slots=True)
class Gemm:
    """`c = epilogue(a @ b)` for every item of a batch.

    Attributes:
        m: Rows of a and c; they and the batch may be free, the rest where a schedule takes it.
        n: Columns of b and c.
        k: Columns of a and rows of b; 0 makes all sums 0.
        a: Over (*batch, m, k); contiguous along k if it is of narrow numbers.
        b: Over (*batch, k, n), or constant and packed.
        c: Over (*batch, m, n).
        batch: Extents in front.
        epilogue: Over the domain of c.
        unit: What it is shaped for.
        schedule: How; None leaves it to the heuristic.
        is_dots: Whether vectors go along k where they can, as in the program for all sizes; None
            leaves it to the sizes.
    """

    m: Size
    n: Size
    k: Size
    a: Layout
    b: Layout | Panels
    c: Layout
    batch: tuple[Size, ...] = ()
    epilogue: Fused = NOTHING
    unit: CpuModel = AVX512
    schedule: GemmSchedule | None = None
    is_dots: bool | None = None

    algorithm: ClassVar[str] = "direct"

    def __post_init__(self) -> None:
        """Check what the kernel relies on."""
        is_right = self.group > 1 or self.a.dtype == self.b.dtype
        assert is_right, f"{self.a.dtype} times {self.b.dtype}"
        assert self.group == 1 or self.a.strides[-1] == 1, "groups lie apart"
        assert not self.has_small_pairs or (self.a.dtype == "uint8" and self.k % self.group == 0)
        rank = len(self.batch) + 2
        layouts = [self.a, self.c, *self.epilogue.operands]
        if isinstance(self.b, Panels):
            pairs = zip(reversed(self.b.batch), reversed(self.batch), strict=False)
            assert len(self.b.batch) <= len(self.batch), f"{self.b.batch} in {self.batch}"
            assert all(part in (1, whole) for part, whole in pairs), f"{self.b} in {self.batch}"
        else:
            layouts.append(self.b)
        assert all(len(item.strides) == rank for item in layouts), f"layouts of rank {rank}"

    @property
    def group(self) -> int:
        """Steps along k of one product: more than 1 for narrow numbers times packed ones."""
        return DOT_GROUPS[self.a.dtype] * (1 + self.is_blocked) if self._is_narrow else 1

    @property
    def is_blocked(self) -> bool:
        """Whether it is made of blocks of two rows by two columns."""
        assert isinstance(self.b, Panels) or not self._is_narrow
        is_there = self._is_narrow and self.unit.has_blocked_dots(self.a.dtype)
        return is_there and not self.has_small_pairs

    @property
    def _is_narrow(self) -> bool:
        return isinstance(self.b, Panels) and self.b.dtype in _NARROW.get(self.a.dtype, ())

    @property
    def has_small_pairs(self) -> bool:
        """Whether products of two neighbours add up to an int16."""
        return isinstance(self.b, Panels) and self.b.split is not None

    @property
    def sum_dtype(self) -> str:
        """What products are summed in: the first input of the epilogue."""
        return DOT_SUMS[self.a.dtype] if self.group > 1 else self.a.dtype

    @property
    def batches(self) -> Size:
        """Products of the same shape."""
        return math.prod(self.batch)

    @property
    def b_strides(self) -> tuple[int, int] | None:
        """Elements from one k and one n of the right operand to the next; None for panels."""
        return None if isinstance(self.b, Panels) else (self.b.strides[-2], self.b.strides[-1])

    @property
    def is_measurable(self) -> bool:
        """Whether it does anything, on the numbers that a tuner makes up."""
        dtypes = {self.a.dtype, self.b.dtype, self.c.dtype}
        return dtypes == {"float32"} and 0 not in (*self.batch, self.m, self.n, self.k)


def flops(spec: Gemm) -> Size:
    """Return the additions and multiplications of a product."""
    return 2 * spec.batches * spec.m * spec.n * spec.k


def key(spec: Gemm) -> str:
    """Say in words what decides which schedules a product can have, and which are fast."""
    batch = "x".join(map(str, spec.batch))
    if isinstance(spec.b, Panels):
        right = f"panels {'x'.join(map(str, spec.b.batch))}"
        right += f" of {spec.b.dtype}" if spec.group > 1 else ""
        right += " in blocks" if spec.is_blocked else ""
        right += f", {spec.b.split} groups split" if spec.has_small_pairs else ""
    else:
        right = f"strides {spec.b.strides}"
    return (
        f"gemm {batch} {spec.m}x{spec.k}x{spec.n}, {spec.a.dtype}, rows "
        f"{spec.a.strides[-2:]}, {right}, to {spec.c.dtype} {spec.c.strides[-2:]}"
    )


def merged(spec: Gemm) -> Gemm:
    """Return the same product with as many batch dimensions as possible made rows.

    That is right where all items share b, and where rows of all others go on from item to item.
    """
    layouts = [spec.a, spec.c, *spec.epilogue.operands]
    batch, m, b = spec.batch, spec.m, spec.b
    while batch and _is_shared(b, batch[-1]):
        if batch[-1] != 1:
            steps = [layout.strides[-3:-1] for layout in layouts]
            if m != 1 and any(outer != m * inner for outer, inner in steps):
                break
        drop = -3 if m != 1 or batch[-1] == 1 else -2  # a single row has no stride of its own
        layouts = [_without(layout, drop) for layout in layouts]
        b = replace(b, batch=b.batch[:-1]) if isinstance(b, Panels) else _without(b, -3)
        batch, m = batch[:-1], m * batch[-1]
    a, c, *operands = layouts
    return replace(
        spec,
        m=m,
        a=a,
        b=b,
        c=c,
        batch=batch,
        epilogue=spec.epilogue.over(operands),
    )


def _is_shared(b: Layout | Panels, extent: Size) -> bool:
    """Whether the last batch dimension, of an extent, does not matter for b."""
    if extent == 1:
        return True
    return b.batch[-1:] in ((), (1,)) if isinstance(b, Panels) else b.strides[-3] == 0


def _without(layout: Layout, dim: int) -> Layout:
    strides = list(layout.strides)
    del strides[dim]
    return replace(layout, strides=tuple(strides))
