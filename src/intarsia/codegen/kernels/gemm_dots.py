# SPDX-License-Identifier: Apache-2.0
"""Matrix products of few rows whose right operand is contiguous along k, as dot products.

Vectors go along k and are summed up at the end, which spares a transposition that few rows would
share. Attention of one token over its past is such a product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function, Index, Type, Value
from intarsia.codegen.kernels.conv_window import Split
from intarsia.codegen.kernels.gemm_schedule import Schedule
from intarsia.codegen.kernels.gemm_spec import Gemm, Panels
from intarsia.codegen.tile import multiply_add


def build_dots(spec: Gemm, plan: Schedule) -> Function:
    """Return the kernel of a merged product; `vectors` of its schedule counts columns."""
    b = Builder("gemm")
    assert not isinstance(spec.b, Panels), "panels are contiguous along n"
    left = spec.a.declare(b, "a", (*spec.batch, spec.m, spec.k))
    *outer, k_stride, n_stride = spec.b.strides
    columns_of_b = replace(spec.b, strides=(*outer, n_stride, k_stride))
    right = columns_of_b.declare(b, "b", (*spec.batch, spec.n, spec.k))
    domain = (*spec.batch, spec.m, spec.n)
    result = spec.c.declare(b, "c", domain, is_written=True)
    epilogue = spec.epilogue.bind(b, domain)
    b.note(f"batch {spec.batch}, m {spec.m}, n {spec.n}, k {spec.k}")
    b.note(f"{plan}")
    dtype, lanes = spec.a.dtype, spec.unit.lanes(spec.a.dtype)
    rows, columns = Split.of(spec.m, plan.rows), Split.of(spec.n, plan.vectors)
    chunks = Split.of(columns.count, plan.row_blocks)

    def tile(batch: list[Index], row: Index, column: Index, height: int, width: int) -> None:
        def step(k: Index, sums: Sequence[Value], count: int | None = None) -> list[Value]:
            a, w = (
                [
                    b.load(buffer, (*batch, first + i, k), lanes, stride=along, count=count)
                    for i in range(size)
                ]
                for buffer, first, size, along in (
                    (left, row, height, left.strides[-1]),
                    (right, column, width, 1),
                )
            )
            pairs = [(x, y) for x in a for y in w]
            return [multiply_add(b, *pair, s) for pair, s in zip(pairs, sums, strict=True)]

        sums = [b.constant(0, Type(dtype, lanes))] * (height * width)
        rest = spec.k % lanes
        sums = b.loop(0, spec.k - rest, sums, lambda k, *s: step(k, s), step=lanes)
        if rest:
            sums = step(Index(spec.k - rest), sums, rest)
        for number, total in enumerate(sums):
            r, c = divmod(number, width)
            at = (*batch, row + r, column + c)
            b.store(epilogue(b.reduce("add", total), at, None), result, at)

    shape = (*spec.batch, chunks.count)
    with b.parallel(math.prod(shape)) as turn:
        *batch, chunk = b.unravel(turn, shape)
        begin, end = chunks.begin(b, chunk), chunks.begin(b, chunk + 1)
        for run in columns.runs:
            for column in run.each(b, begin, end):
                for group in rows.runs:
                    for row in group.each(b):
                        tile(batch, row, column, group.size, run.size)
    return b.finish()
