# SPDX-License-Identifier: Apache-2.0
"""What a matrix product is, and how its constants are packed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intarsia.codegen.body import NOTHING, Fused, Layout
from intarsia.codegen.kernels.conv_window import Split
from intarsia.codegen.kernels.gemm_schedule import Problem, Schedule, choose_schedule
from intarsia.codegen.unit import AVX512, VectorUnit
from intarsia.graph.arena import aligned_bytes

Array = np.ndarray[Any, np.dtype[Any]]


_HALVES = ("float32", "float16")


@dataclass(frozen=True, slots=True)
class Panels:
    """A constant right operand, as `pack_b` packs it.

    Attributes:
        dtype: Of its elements: that of the left operand, or float16 for one of float32.
        batch: Its own batch extents, aligned to the last ones of the product; each the product's
            or 1.
    """

    dtype: str = "float32"
    batch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Gemm:
    """`c = epilogue(a @ b)` for every item of a batch.

    Attributes:
        m: Rows of a and c.
        n: Columns of b and c.
        k: Columns of a and rows of b; 0 makes all sums 0.
        a: Over (*batch, m, k).
        b: Over (*batch, k, n), or constant and packed.
        c: Over (*batch, m, n).
        batch: Extents in front.
        epilogue: Over the domain of c.
        unit: What it is shaped for.
        schedule: How; None leaves it to `choose_schedule`.
    """

    m: int
    n: int
    k: int
    a: Layout
    b: Layout | Panels
    c: Layout
    batch: tuple[int, ...] = ()
    epilogue: Fused = NOTHING
    unit: VectorUnit = AVX512
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        """Check what the kernel relies on."""
        is_half = isinstance(self.b, Panels) and (self.a.dtype, self.b.dtype) == _HALVES
        assert is_half or self.a.dtype == self.b.dtype, f"{self.a.dtype} times {self.b.dtype}"
        rank = len(self.batch) + 2
        layouts = [self.a, self.c, *self.epilogue.operands]
        if isinstance(self.b, Panels):
            own = zip(reversed(self.b.batch), reversed(self.batch), strict=False)
            assert len(self.b.batch) <= len(self.batch), f"{self.b.batch} in {self.batch}"
            assert all(part in (1, whole) for part, whole in own), f"{self.b} in {self.batch}"
        else:
            layouts.append(self.b)
        assert all(len(item.strides) == rank for item in layouts), f"layouts of rank {rank}"

    @property
    def plan(self) -> Schedule:
        """The schedule that the kernel and `pack_b` follow."""
        if self.schedule:
            return self.schedule
        spec = merged(self)
        problem = Problem(
            math.prod(spec.batch),
            spec.m,
            spec.n,
            spec.k,
            spec.a.dtype,
            spec.a.strides[-2],
            None if isinstance(spec.b, Panels) else (spec.b.strides[-2], spec.b.strides[-1]),
            spec.c.dtype == spec.a.dtype,
        )
        return choose_schedule(problem, spec.unit)


def flops(spec: Gemm) -> int:
    """Return the additions and multiplications of a product."""
    return 2 * math.prod(spec.batch) * spec.m * spec.n * spec.k


def pack_b(spec: Gemm, weights: Array) -> Array:
    """Return a constant right operand (*its batch, k, n) as the kernel reads it.

    In order: its batch, panels of columns, k, the columns of a panel; the columns that fill the
    last vector are zero.
    """
    assert isinstance(spec.b, Panels)
    lanes = spec.unit.lanes(spec.a.dtype)
    vectors = -(-spec.n // lanes)
    items = math.prod(spec.b.batch)
    packed = aligned_bytes(items * spec.k * vectors * lanes * np.dtype(spec.b.dtype).itemsize)
    rest = packed.view(spec.b.dtype)
    for item in weights.reshape(items, spec.k, spec.n):
        for run in Split.of(vectors, spec.plan.vectors).runs:
            for first in run.begins:
                columns = item[:, first * lanes : (first + run.size) * lanes]
                shape = (spec.k, run.size * lanes)
                place, rest = np.split(rest, [math.prod(shape)])
                place.reshape(shape)[:, : columns.shape[1]] = columns
    return packed.view(spec.b.dtype)


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
        epilogue=replace(spec.epilogue, operands=tuple(operands)),
    )


def _is_shared(b: Layout | Panels, extent: int) -> bool:
    """Whether the last batch dimension, of an extent, does not matter for b."""
    if extent == 1:
        return True
    return b.batch[-1:] in ((), (1,)) if isinstance(b, Panels) else b.strides[-3] == 0


def _without(layout: Layout, dim: int) -> Layout:
    strides = list(layout.strides)
    del strides[dim]
    return replace(layout, strides=tuple(strides))
