# SPDX-License-Identifier: Apache-2.0
"""CumSum, CumProd, Trilu, ReverseSequence, Range: what entries are depends on where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from intarsia.codegen.body import Layout, load_lanes, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function, Index, IrValue, Subscript, Type
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.gather import vectors
from intarsia.codegen.kernels.reduce_kinds import KINDS
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Size


@dataclass(frozen=True, slots=True)
class Scan:
    """Sums or products of all entries up to one, along a dimension.

    Attributes:
        outer: Entries before the scanned dimension.
        extent: Of the scanned dimension.
        inner: Entries after it.
        x: Over (outer, extent, inner).
        y: Over (outer, extent, inner).
        is_exclusive: Whether an entry's own value is left out.
        is_reversed: Whether it goes from the end.
        kind: `Sum` or `Prod`.
        unit: What it is shaped for.
    """

    outer: int
    extent: int
    inner: int
    x: Layout
    y: Layout
    is_exclusive: bool = False
    is_reversed: bool = False
    kind: str = "Sum"
    unit: CpuModel = AVX512


@dataclass(frozen=True, slots=True)
class Trilu:
    """One side of a diagonal; zeros are on the other.

    Attributes:
        batch: Matrices.
        rows: Of each.
        columns: Of each.
        x: Over (batch, rows, columns).
        y: Over (batch, rows, columns).
        diagonal: Which one, 0 the main one; it is kept. A layout over (1,), int64, if it comes when
            the kernel runs.
        is_upper: Whether the part above is kept.
    """

    batch: int
    rows: int
    columns: int
    x: Layout
    y: Layout
    diagonal: int | Layout = 0
    is_upper: bool = True


@dataclass(frozen=True, slots=True)
class ReversedStarts:
    """Sequences of which so many entries are turned round, and the others stay.

    Attributes:
        extent: Of a sequence.
        batch: Sequences.
        inner: Entries of each step.
        x: Over (extent, batch, inner).
        lengths: Over (batch,); in `[0, extent]`.
        y: Over (extent, batch, inner).
        unit: What it is shaped for.
    """

    extent: int
    batch: int
    inner: int
    x: Layout
    lengths: Layout
    y: Layout
    unit: CpuModel = AVX512


@dataclass(frozen=True, slots=True)
class Progression:
    """`y[i] = start + i * delta`.

    Attributes:
        count: How many.
        start: Over (1,), as delta.
        delta: From one to the next.
        y: Over (count,).
    """

    count: Size
    start: Layout
    delta: Layout
    y: Layout


SPECS = (Scan, Trilu, ReversedStarts, Progression)


def build(spec: Scan | Trilu | ReversedStarts | Progression) -> Function:
    """Return the kernel; its arguments are x, a diagonal that is a tensor or the lengths, y.

    Those of a progression are start, delta and y.
    """
    if isinstance(spec, Progression):
        return _progression(spec)
    if isinstance(spec, ReversedStarts):
        return _reversed_starts(spec)
    return _scan(spec) if isinstance(spec, Scan) else _trilu(spec)


def _scan(spec: Scan) -> Function:
    b = Builder(f"cum{spec.kind.lower()}")
    kind = KINDS[spec.kind]
    domain = (spec.outer, spec.extent, spec.inner)
    x = spec.x.declare(b, "x", domain)
    y = spec.y.declare(b, "y", domain, is_written=True)
    b.note(f"{spec.outer} x {spec.extent} x {spec.inner}")
    with b.parallel(spec.outer if prod(domain) else 0) as outer:
        for first, lanes, count in vectors(b, spec.unit, x.dtype, spec.inner):

            def step(
                number: Index, total: IrValue, first: Index = first, count: int | None = count
            ) -> list[IrValue]:
                entry = (spec.extent - 1) - number if spec.is_reversed else number
                at = (outer, entry, first)
                following = kind.join(b, total, load_lanes(b, x, at, total.type.lanes, count))
                store_lanes(b, total if spec.is_exclusive else following, y, at, count)
                return [following]

            # One after another, as ONNX's reference does: a parallel scan would round otherwise.
            neutral = b.constant(kind.neutral(x.dtype), Type(x.dtype, lanes))
            b.loop(0, spec.extent, [neutral], step)
    return b.finish()


def _trilu(spec: Trilu) -> Function:
    b = Builder("trilu")
    domain = (spec.batch, spec.rows, spec.columns)
    x = spec.x.declare(b, "x", domain)
    diagonal = spec.diagonal
    given = diagonal.declare(b, "k", (1,)) if isinstance(diagonal, Layout) else None
    y = spec.y.declare(b, "y", domain, is_written=True)
    b.note(f"{'above' if spec.is_upper else 'below'} diagonal {diagonal if given is None else 'k'}")
    zero = b.constant(0, Type(x.dtype))
    for image, row in each_turn(b, domain[:2], prod(domain)):
        if isinstance(diagonal, int):
            start = row + diagonal
        else:
            assert given is not None
            # All that lie outside are one: no sum overflows.
            inside = b.minimum(spec.columns + 1, b.maximum(-spec.rows - 1, b.load(given, 0)))
            start = row + Index.of(inside)
        cut = start + (0 if spec.is_upper else 1)
        cut = b.smaller(b.larger(cut, 0), spec.columns)
        sides: list[tuple[Subscript, Subscript]] = [(0, cut), (cut, spec.columns)]
        copied, cleared = reversed(sides) if spec.is_upper else sides
        with b.serial(*copied) as column:
            b.store(b.load(x, (image, row, column)), y, (image, row, column))
        with b.serial(*cleared) as column:
            b.store(zero, y, (image, row, column))
    return b.finish()


def _reversed_starts(spec: ReversedStarts) -> Function:
    b = Builder("reversed_starts")
    domain = (spec.extent, spec.batch, spec.inner)
    x = spec.x.declare(b, "x", domain)
    lengths = spec.lengths.declare(b, "lengths", (spec.batch,))
    y = spec.y.declare(b, "y", domain, is_written=True)
    b.note(f"{spec.extent} x {spec.batch} x {spec.inner}")
    for step, row in each_turn(b, domain[:2], prod(domain)):
        length = b.cast(b.load(lengths, row), "int64")
        length = b.minimum(spec.extent, b.maximum(0, length))
        at = b.index(step)
        turned = b.sub(b.sub(length, 1), at)
        source = Index.of(b.select(b.compare("lt", at, length), turned, at))
        for first, lanes, count in vectors(b, spec.unit, x.dtype, spec.inner):
            value = load_lanes(b, x, (source, row, first), lanes, count)
            store_lanes(b, value, y, (step, row, first), count)
    return b.finish()


def _progression(spec: Progression) -> Function:
    b = Builder("range")
    start, delta = (
        b.load(layout.declare(b, name, (1,)), 0)
        for name, layout in (("start", spec.start), ("delta", spec.delta))
    )
    y = spec.y.declare(b, "y", (spec.count,), is_written=True)
    b.note(f"{spec.count} numbers")
    with b.parallel(1), b.serial(0, spec.count) as i:
        b.store(b.add(start, b.mul(b.cast(b.index(i), y.dtype), delta)), y, i)
    return b.finish()
