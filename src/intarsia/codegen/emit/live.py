# SPDX-License-Identifier: Apache-2.0
"""Drops what no store needs, for compilers that warn of unused variables."""

from __future__ import annotations

from dataclasses import replace

from intarsia.codegen.ir import (
    Function,
    IrValue,
    Load,
    Loop,
    Operation,
    Prefetch,
    Shuffle,
    Store,
    operands,
    results,
    walk,
)


def prune(function: Function) -> Function:
    """Return the kernel without prefetches, and without values that reach no store."""
    makers: dict[IrValue, tuple[IrValue, ...]] = {}
    needed: list[IrValue] = []
    for operation in walk(function.body):
        if isinstance(operation, Loop):
            bounds = operands(replace(operation, initial=()))
            if _writes(operation):
                needed += bounds
            groups = (operation.carried, operation.results, operation.initial, operation.yielded)
            for carried, result, first, following in zip(*groups, strict=True):
                makers[carried] = makers[result] = (first, following, carried, *bounds)
        elif isinstance(operation, Store):
            needed += (operation.value, *_place(operation))
        else:
            for result in results(operation):
                makers[result] = _read(operation)
    live: set[IrValue] = set()
    while needed:
        value = needed.pop()
        if value not in live:
            live.add(value)
            needed += makers.get(value, ())
    return replace(function, body=_kept(function.body, live))


def _kept(body: tuple[Operation, ...], live: set[IrValue]) -> tuple[Operation, ...]:
    out: list[Operation] = []
    for operation in body:
        if isinstance(operation, Loop):
            groups = (operation.initial, operation.carried, operation.yielded, operation.results)
            lines = [line for line in zip(*groups, strict=True) if line[1] in live]
            inner = _kept(operation.body, live)
            if not inner and not lines:
                continue
            initial, carried, yielded, after = zip(*lines, strict=True) if lines else ((),) * 4
            kept = replace(operation, initial=initial, carried=carried, yielded=yielded)
            out.append(replace(kept, results=after, body=inner))
        elif isinstance(operation, Prefetch):
            continue
        elif isinstance(operation, Store) or any(value in live for value in results(operation)):
            out.append(operation)
    return tuple(out)


def _read(operation: Operation) -> tuple[IrValue, ...]:
    """Return the values that an operation without effects needs."""
    match operation:
        case Load():
            return _place(operation)
        case Shuffle(left=left, right=right, lanes=lanes):
            count = left.type.lanes
            is_left, is_right = min(lanes) < count, max(lanes) >= count
            return (*(left,) * is_left, *(right,) * is_right)
        case _:
            return operands(operation)


def _place(access: Load | Store) -> tuple[IrValue, ...]:
    """Return the values that decide where an access goes; of a dimension of stride 0 none do."""
    return tuple(value for value, _ in access.buffer.flatten(access.subscripts).terms)


def _writes(operation: Operation) -> bool:
    return isinstance(operation, Loop) and any(
        isinstance(item, Store) for item in walk(operation.body)
    )
