# SPDX-License-Identifier: Apache-2.0
"""Expands unrolled loops, and loops that turn once or never, before an emitter sees a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any

from intarsia.codegen import ir


def expand(function: ir.Function) -> ir.Function:
    """Return the kernel without unrolled loops, and without serial ones of a single turn."""
    return replace(function, body=_expand(function.body, {}, is_copy=False))


_Known = dict[ir.IrValue, "ir.IrValue | ir.Index"]
"""What stands for a value: another value, or a subscript for a loop's variable."""


def _expand(
    body: tuple[ir.Operation, ...], known: _Known, *, is_copy: bool
) -> tuple[ir.Operation, ...]:
    """Return a body without such loops; `is_copy` if it is one of several, with its own values."""
    out: list[ir.Operation] = []
    for operation in body:
        if isinstance(operation, ir.Loop):
            _expand_loop(operation, known, out, is_copy=is_copy)
        else:
            out.append(_replaced(operation, known, out, is_copy=is_copy))
    return tuple(out)


def _expand_loop(loop: ir.Loop, known: _Known, out: list[ir.Operation], *, is_copy: bool) -> None:
    lower, upper = _index(loop.lower, known), _index(loop.upper, known)
    initial = tuple(_value(value, known, out) for value in loop.initial)
    loop = replace(loop, lower=lower, upper=upper, initial=initial)
    count = loop.trip_count
    is_flat = loop.kind is ir.LoopKind.UNROLLED or (
        loop.kind is ir.LoopKind.SERIAL and count in (0, 1)
    )
    if not is_flat:
        out.append(_kept(loop, known, is_copy=is_copy))
        return
    assert count is not None, "only loops of constant bounds are unrolled"
    current = initial
    for turn in range(count):
        known[loop.variable] = ir.Index(lower.const + turn * loop.step)
        known.update(zip(loop.carried, current, strict=True))
        out += _expand(loop.body, known, is_copy=is_copy or count > 1)
        current = tuple(_value(value, known, out) for value in loop.yielded)
    known.update(zip(loop.results, current, strict=True))


def _kept(loop: ir.Loop, known: _Known, *, is_copy: bool) -> ir.Loop:
    variable, carried, after = loop.variable, loop.carried, loop.results
    if is_copy:
        variable = ir.IrValue(variable.type, variable.name)
        carried, after = (tuple(ir.IrValue(v.type) for v in group) for group in (carried, after))
        known[loop.variable] = variable
        known.update(zip(loop.carried + loop.results, carried + after, strict=True))
    body = [*_expand(loop.body, known, is_copy=is_copy)]
    yielded = tuple(_value(value, known, body) for value in loop.yielded)
    return replace(
        loop, variable=variable, carried=carried, body=tuple(body), yielded=yielded, results=after
    )


def _replaced(
    operation: ir.Operation, known: _Known, out: list[ir.Operation], *, is_copy: bool
) -> ir.Operation:
    """Return the operation with what stands for its operands, itself if they stand for themselves.

    A copy has a result of its own. What operands need is appended to `out`.
    """
    changes: dict[str, Any] = {}
    kind: type = type(operation)
    for name in _read_fields(kind):
        item = getattr(operation, name)
        new: object = item
        if isinstance(item, ir.IrValue):
            if item in known:
                new = _value(item, known, out)
        elif isinstance(item, ir.Index):
            new = _index(item, known)
        else:
            for index in item:
                if any(value in known for value, _ in index.terms):
                    new = tuple(_index(index, known) for index in item)
                    break
        if new is not item:
            changes[name] = new
    if is_copy:
        for result in ir.results(operation):
            changes["result"] = known[result] = ir.IrValue(result.type, result.name)
    return replace(operation, **changes) if changes else operation


@cache
def _read_fields(kind: type) -> tuple[str, ...]:
    """Return the fields of a kind of operation that hold values or subscripts that it reads."""
    types = {"IrValue", "Index", "tuple[Index, ...]"}
    return tuple(
        field.name for field in fields(kind) if field.type in types and field.name != "result"
    )


def _value(value: ir.IrValue, known: _Known, out: list[ir.Operation]) -> ir.IrValue:
    """Return what stands for a value; if that is a subscript, `out` gets its computation."""
    stand_in = known.get(value, value)
    if isinstance(stand_in, ir.IrValue):
        return stand_in
    result = ir.IrValue(ir.INT64, value.name)
    out.append(
        ir.IndexValue(result, stand_in) if stand_in.terms else ir.Constant(result, stand_in.const)
    )
    return result


def _index(index: ir.Index, known: Mapping[ir.IrValue, ir.IrValue | ir.Index]) -> ir.Index:
    """Return a subscript with what stands for its values, itself if they stand for themselves."""
    if not any(value in known for value, _ in index.terms):
        return index
    const, merged = index.const, dict[ir.IrValue, int]()
    for value, scale in index.terms:
        stand_in = known.get(value, value)
        if isinstance(stand_in, ir.IrValue):
            merged[stand_in] = merged.get(stand_in, 0) + scale
            continue
        const += stand_in.const * scale
        for inner, factor in stand_in.terms:
            merged[inner] = merged.get(inner, 0) + factor * scale
    return ir.Index(const, tuple((value, scale) for value, scale in merged.items() if scale))
