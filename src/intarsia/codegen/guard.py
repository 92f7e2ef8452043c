# SPDX-License-Identifier: Apache-2.0
"""Kernels that run or not by a number that comes when they run."""

from __future__ import annotations

from dataclasses import replace

from intarsia.codegen import ir


def guarded(function: ir.Function, number: int) -> ir.Function:
    """Return a kernel with one more argument, int64[1], that does nothing unless it is a number."""
    assert function.grid is None, "a barrier may not come to all work-items"
    choice = ir.Buffer("choice", ir.INT64.dtype, (1,), (1,), align=8)
    given, wanted = ir.IrValue(ir.INT64), ir.IrValue(ir.INT64)
    is_it, turns = ir.IrValue(ir.Type("bool")), ir.IrValue(ir.INT64)
    test = (
        ir.Load(given, choice, (ir.Index(),), 1, 1),
        ir.Constant(wanted, number),
        ir.Compare(is_it, "eq", given, wanted),
        ir.Cast(turns, is_it),
    )

    def where(body: tuple[ir.Operation, ...]) -> tuple[ir.Operation, ...]:
        once = ir.IrValue(ir.INT64)
        kind = ir.LoopKind.SERIAL
        return *test, ir.Loop(once, ir.Index(), ir.Index.of(turns), 1, kind, body=body)

    parallel = function.parallel
    if parallel is None:
        body = where(function.body)
    else:
        inside = replace(parallel, body=where(parallel.body))
        body = tuple(inside if item is parallel else item for item in function.body)
    return replace(function, buffers=(*function.buffers, choice), body=body)
