# SPDX-License-Identifier: Apache-2.0
"""Drops what no store needs, for compilers that warn of unused variables."""

from __future__ import annotations

from dataclasses import replace

from intarsia.codegen import ir


def prune(function: ir.Function) -> ir.Function:
    """Return the kernel without prefetches, and without values that reach no store."""
    makers: dict[ir.IrValue, tuple[ir.IrValue, ...]] = {}
    needed: list[ir.IrValue] = []
    for operation in ir.walk(function.body):
        if isinstance(operation, ir.Loop):
            bounds = ir.operands(replace(operation, initial=()))
            if _writes(operation):
                needed += bounds
            groups = (operation.carried, operation.results, operation.initial, operation.yielded)
            for carried, result, first, following in zip(*groups, strict=True):
                makers[carried] = makers[result] = (first, following, carried, *bounds)
        elif isinstance(operation, ir.Store):
            needed += (operation.value, *_place(operation))
        else:
            for result in ir.results(operation):
                makers[result] = _read(operation)
    live: set[ir.IrValue] = set()
    while needed:
        value = needed.pop()
        if value not in live:
            live.add(value)
            needed += makers.get(value, ())
    return replace(function, body=_pruned(function.body, live))


def _pruned(body: tuple[ir.Operation, ...], live: set[ir.IrValue]) -> tuple[ir.Operation, ...]:
    out: list[ir.Operation] = []
    for operation in body:
        if isinstance(operation, ir.Loop):
            groups = (operation.initial, operation.carried, operation.yielded, operation.results)
            lines = [line for line in zip(*groups, strict=True) if line[1] in live]
            inner = _pruned(operation.body, live)
            if not inner and not lines:
                continue
            initial, carried, yielded, after = zip(*lines, strict=True) if lines else ((),) * 4
            pruned = replace(operation, initial=initial, carried=carried, yielded=yielded)
            out.append(replace(pruned, results=after, body=inner))
        elif isinstance(operation, ir.Prefetch):
            continue
        elif isinstance(operation, ir.Store | ir.Barrier) or any(
            value in live for value in ir.results(operation)
        ):
            out.append(operation)
    return tuple(out)


def _read(operation: ir.Operation) -> tuple[ir.IrValue, ...]:
    """Return the values that an operation without effects needs."""
    match operation:
        case ir.Load():
            return _place(operation)
        case ir.Shuffle(left=left, right=right, lanes=lanes):
            count = left.type.lanes
            is_left, is_right = min(lanes) < count, max(lanes) >= count
            return (*(left,) * is_left, *(right,) * is_right)
        case _:
            return ir.operands(operation)


def _place(access: ir.Load | ir.Store) -> tuple[ir.IrValue, ...]:
    """Return the values that decide where an access goes; of a dimension of stride 0 none do."""
    return tuple(value for value, _ in access.buffer.flatten(access.subscripts).terms)


def _writes(operation: ir.Operation) -> bool:
    return isinstance(operation, ir.Loop) and any(
        isinstance(item, ir.Store | ir.Barrier) for item in ir.walk(operation.body)
    )
