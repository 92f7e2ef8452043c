# SPDX-License-Identifier: Apache-2.0
"""Expands loops that turn once or never, before an emitter sees a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any

from intarsia.codegen import ir


def expand(function: ir.Function) -> ir.Function:
    """Return the kernel without serial loops that turn once or never."""
    return replace(function, body=tuple(_expand(function.body, {})))


_StandIns = dict[ir.IrValue, "ir.IrValue | ir.Index"]
"""What stands for a value: another value, or a subscript for a loop's variable."""


def _expand(body: tuple[ir.Operation, ...], stand_ins: _StandIns) -> list[ir.Operation]:
    """Return a body without such loops."""
    out: list[ir.Operation] = []
    for operation in body:
        if isinstance(operation, ir.Loop):
            _expand_loop(operation, stand_ins, out)
        else:
            out.append(_replaced(operation, stand_ins, out))
    return out


def _expand_loop(loop: ir.Loop, stand_ins: _StandIns, out: list[ir.Operation]) -> None:
    lower, upper = _index(loop.lower, stand_ins), _index(loop.upper, stand_ins)
    initial = tuple(_value(value, stand_ins, out) for value in loop.initial)
    loop = replace(loop, lower=lower, upper=upper, initial=initial)
    if loop.kind is ir.LoopKind.SERIAL and loop.trip_count == 0:
        stand_ins.update(zip(loop.results, initial, strict=True))
    elif loop.kind is ir.LoopKind.SERIAL and loop.trip_count == 1:
        stand_ins[loop.variable] = lower
        stand_ins.update(zip(loop.carried, initial, strict=True))
        out += _expand(loop.body, stand_ins)
        yielded = [_value(value, stand_ins, out) for value in loop.yielded]
        stand_ins.update(zip(loop.results, yielded, strict=True))
    else:
        body = _expand(loop.body, stand_ins)
        following = tuple(_value(value, stand_ins, body) for value in loop.yielded)
        out.append(replace(loop, body=tuple(body), yielded=following))


def _replaced(
    operation: ir.Operation, stand_ins: _StandIns, out: list[ir.Operation]
) -> ir.Operation:
    """Return the operation with what stands for its operands, itself if they stand for themselves.

    What operands need is appended to `out`.
    """
    changes: dict[str, Any] = {}
    kind: type = type(operation)
    for name in _read_fields(kind):
        item = getattr(operation, name)
        new: object = item
        if isinstance(item, ir.IrValue):
            if item in stand_ins:
                new = _value(item, stand_ins, out)
        elif isinstance(item, ir.Index):
            new = _index(item, stand_ins)
        else:
            for index in item:
                if any(value in stand_ins for value, _ in index.terms):
                    new = tuple(_index(index, stand_ins) for index in item)
                    break
        if new is not item:
            changes[name] = new
    return replace(operation, **changes) if changes else operation


@cache
def _read_fields(kind: type) -> tuple[str, ...]:
    """Return the fields of a kind of operation that hold values or subscripts that it reads."""
    types = {"IrValue", "Index", "tuple[Index, ...]"}
    return tuple(
        field.name for field in fields(kind) if field.type in types and field.name != "result"
    )


def _value(value: ir.IrValue, stand_ins: _StandIns, out: list[ir.Operation]) -> ir.IrValue:
    """Return what stands for a value; if that is a subscript, `out` gets its computation."""
    stand_in = stand_ins.get(value, value)
    if isinstance(stand_in, ir.IrValue):
        return stand_in
    result = ir.IrValue(ir.INT64, value.name)
    out.append(
        ir.IndexValue(result, stand_in) if stand_in.terms else ir.Constant(result, stand_in.const)
    )
    return result


def _index(index: ir.Index, stand_ins: Mapping[ir.IrValue, ir.IrValue | ir.Index]) -> ir.Index:
    """Return a subscript with what stands for its values, itself if they stand for themselves."""
    if not any(value in stand_ins for value, _ in index.terms):
        return index
    const, merged = index.const, dict[ir.IrValue, int]()
    for value, scale in index.terms:
        stand_in = stand_ins.get(value, value)
        if isinstance(stand_in, ir.IrValue):
            merged[stand_in] = merged.get(stand_in, 0) + scale
            continue
        const += stand_in.const * scale
        for inner, factor in stand_in.terms:
            merged[inner] = merged.get(inner, 0) + factor * scale
    return ir.Index(const, tuple((value, scale) for value, scale in merged.items() if scale))
