# SPDX-License-Identifier: Apache-2.0
"""Expands unrolled loops, and loops that turn once or never, before an emitter sees a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any

from intarsia.codegen.ir import (
    INT64,
    Constant,
    Function,
    Index,
    IndexValue,
    Loop,
    LoopKind,
    Operation,
    Value,
    results,
)


def expand(function: Function) -> Function:
    """Return the kernel without unrolled loops, and without serial ones of a single turn."""
    return replace(function, body=_expand(function.body, {}))


_Known = dict[Value, "Value | Index"]
"""What stands for a value: another value, or a subscript for a loop's variable."""


def _expand(body: tuple[Operation, ...], known: _Known) -> tuple[Operation, ...]:
    out: list[Operation] = []
    for operation in body:
        if isinstance(operation, Loop):
            out += _expand_loop(operation, known)
        else:
            out.append(_copy(operation, known, out))
    return tuple(out)


def _expand_loop(loop: Loop, known: _Known) -> list[Operation]:
    out: list[Operation] = []
    loop = replace(
        loop,
        lower=_index(loop.lower, known),
        upper=_index(loop.upper, known),
        initial=tuple(_value(value, known, out) for value in loop.initial),
    )
    count = loop.trip_count
    is_flat = loop.kind is LoopKind.UNROLLED or (loop.kind is LoopKind.SERIAL and count in (0, 1))
    if not is_flat:
        return [*out, _kept(loop, known)]
    assert count is not None, "only loops of constant bounds are unrolled"
    current = loop.initial
    for turn in range(count):
        known[loop.variable] = Index(loop.lower.const + turn * loop.step)
        known.update(zip(loop.carried, current, strict=True))
        out += _expand(loop.body, known)
        current = tuple(_value(value, known, out) for value in loop.yielded)
    known.update(zip(loop.results, current, strict=True))
    return out


def _kept(loop: Loop, known: _Known) -> Loop:
    variable = Value(loop.variable.type, loop.variable.name)
    known[loop.variable] = Index.of(variable)
    carried = tuple(Value(value.type) for value in loop.carried)
    known.update(zip(loop.carried, carried, strict=True))
    body = [*_expand(loop.body, known)]
    yielded = tuple(_value(value, known, body) for value in loop.yielded)
    after = tuple(Value(value.type) for value in loop.results)
    known.update(zip(loop.results, after, strict=True))
    return replace(
        loop, variable=variable, carried=carried, body=tuple(body), yielded=yielded, results=after
    )


def _copy(operation: Operation, known: _Known, out: list[Operation]) -> Operation:
    """Return the operation with a result of its own: a body may be copied several times.

    What its operands need is appended to `out`.
    """
    changes: dict[str, Any] = {}
    kind: type = type(operation)
    for name in _field_names(kind):
        item = getattr(operation, name)
        if isinstance(item, Value) and name != "result":
            item = _value(item, known, out)
        elif isinstance(item, Index):
            item = _index(item, known)
        elif name == "subscripts":
            item = tuple(_index(index, known) for index in item)
        changes[name] = item
    for result in results(operation):
        changes["result"] = Value(result.type, result.name)
        known[result] = changes["result"]
    return type(operation)(**changes)


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _value(value: Value, known: _Known, out: list[Operation]) -> Value:
    """Return what stands for a value; if that is a subscript, `out` gets its computation."""
    found = known.get(value, value)
    if isinstance(found, Value):
        return found
    result = Value(INT64, value.name)
    out.append(IndexValue(result, found) if found.terms else Constant(result, found.const))
    return result


def _index(index: Index, known: Mapping[Value, Value | Index]) -> Index:
    const, merged = index.const, dict[Value, int]()
    for value, scale in index.terms:
        found = known.get(value, value)
        if isinstance(found, Value):
            merged[found] = merged.get(found, 0) + scale
            continue
        const += found.const * scale
        for inner, factor in found.terms:
            merged[inner] = merged.get(inner, 0) + factor * scale
    return Index(const, tuple((value, scale) for value, scale in merged.items() if scale))
