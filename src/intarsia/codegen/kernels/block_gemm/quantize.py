# SPDX-License-Identifier: Apache-2.0
"""Activations as int8 in blocks: codes, scales, and what zero points of weights are multiplied by.

A block is divided by the 127th part of its largest number and rounded to the nearest integer. So
no number changes by more than the 254th part of the largest one of its block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function, Index, IrValue, Type
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Size

LARGEST = 127
"""Of a code; there is no -128, so that sums of two products with codes of 4 bits fit 16 bits."""


@dataclass(frozen=True, slots=True)
class QuantizeBlocks:
    """One kernel; its arguments are a, and codes, scales and sums of its blocks.

    Attributes:
        rows: Extents in front; they may be free.
        k: Numbers of a row.
        size: Numbers of a block; the last one of a row is filled up with zeros.
        a: Over (*rows, k), float32.
        codes: Over (*rows, k filled up), int8.
        factor: What sums of codes are multiplied by.
        sums: Their dtype, int32 or float32.
        unit: What it is shaped for.
    """

    rows: tuple[Size, ...]
    k: int
    size: int
    a: Layout
    codes: Layout
    factor: int
    sums: str
    unit: CpuModel = AVX512


def build(spec: QuantizeBlocks) -> Function:
    """Return the kernel."""
    b = Builder("quantize_blocks")
    blocks, rows = -(-spec.k // spec.size), spec.rows
    a = spec.a.declare(b, "a", (*rows, spec.k))
    codes = spec.codes.declare(b, "codes", (*rows, blocks * spec.size), is_written=True)
    scales = b.argument("scales", "float32", (*rows, blocks), is_written=True)
    sums = b.argument("sums", spec.sums, (*rows, blocks), is_written=True)
    b.note(f"{rows} x {spec.k} by {spec.size}")
    if 0 in rows:
        return b.finish_empty()
    lanes = min(spec.unit.lanes(), spec.size)

    def block(row: list[Index], number: Index, count: int) -> None:
        """Quantise a block of which `count` numbers are there."""
        first = number * spec.size
        starts = range(0, spec.size, lanes)
        parts = [
            b.load(
                a,
                (*row, first + start),
                lanes,
                stride=a.strides[-1],
                count=min(lanes, count - start),
            )
            if start < count
            else b.constant(0.0, Type("float32", lanes))
            for start in starts
        ]
        largest = b.unary("abs", parts[0])
        # 0, but NaN where a number is none: no maximum tells of that.
        odd = b.mul(parts[0], 0.0)
        for part in parts[1:]:
            largest = b.maximum(largest, b.unary("abs", part))
            odd = b.fma(part, 0.0, odd)
        top = b.reduce("max", largest)
        scale = b.div(top, float(LARGEST))
        is_zero = b.compare("eq", top, 0.0)
        inverse = b.div(float(LARGEST), b.select(is_zero, 1.0, top))
        total: IrValue | None = None
        for start, part in zip(starts, parts, strict=True):
            number_of = b.unary("rint", b.mul(part, inverse))
            # In this order NaN becomes a number, as codes are.
            number_of = b.minimum(b.maximum(number_of, float(-LARGEST)), float(LARGEST))
            code = b.cast(number_of, "int32")
            b.store(b.cast(code, "int8"), codes, (*row, first + start))
            total = code if total is None else b.add(total, code)
        assert total is not None
        b.store(b.add(scale, b.reduce("add", odd)), scales, (*row, number))
        whole = b.mul(b.reduce("add", total), spec.factor)
        b.store(b.cast(whole, spec.sums), sums, (*row, number))

    with b.parallel(math.prod(rows)) as turn:
        row = b.unravel(turn, rows)
        full = spec.k // spec.size
        with b.serial(0, full) as number:
            block(row, number, spec.size)
        if full < blocks:
            block(row, Index(full), spec.k - full * spec.size)
    return b.finish()
