# SPDX-License-Identifier: Apache-2.0
"""Makes integers of 32 bits of those of 64 that surely fit, for languages of 32-bit machines.

Loop variables, sizes and all subscripts become `int32`; an emitter must not have buffers with
more elements. Other values do where their span is known. What is left of `int64` are elements of
tensors and what is computed from them; the device must have such integers, or the kernel is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from intarsia.codegen import ir
from intarsia.codegen.emit.spans import Spans

_LEAST, _MOST = (int(end) for end in (np.iinfo(np.int32).min, np.iinfo(np.int32).max))
_NARROW, _WIDE = "int32", "int64"


def narrow(function: ir.Function) -> ir.Function:
    """Return the kernel with 32-bit integers where they suffice.

    Args:
        function: Verified, expanded and pruned; each buffer has fewer than 2**31 elements.
    """
    spans = Spans.of(function)
    # Sizes are extents of tensors, and no extent is more than there are elements.
    spans.known |= dict.fromkeys(function.sizes, (0, _MOST))
    return _Narrowing(spans, frozenset(_placing(function.body))).function(function)


def _placing(body: tuple[ir.Operation, ...]) -> Iterator[ir.IrValue]:
    """Yield the values that subscripts depend on."""
    for operation in ir.walk(body):
        indices: tuple[ir.Index, ...] = ()
        match operation:
            case ir.Load(subscripts=subscripts) | ir.Store(subscripts=subscripts):
                indices = subscripts
            case ir.Loop(lower=lower, upper=upper):
                indices = (lower, upper)
            case ir.IndexValue(index=index):
                indices = (index,)
            case _:
                pass
        yield from (value for index in indices for value, _ in index.terms)


@dataclass(slots=True)
class _Narrowing:
    """The rewriting of one kernel.

    Attributes:
        spans: Of its values before.
        placing: Those that subscripts depend on.
        values: What has become of each value.
        places: What stands for a wide value in subscripts: one conversion, where it is defined.
    """

    spans: Spans
    placing: frozenset[ir.IrValue]
    values: dict[ir.IrValue, ir.IrValue] = field(default_factory=dict)
    places: dict[ir.IrValue, ir.IrValue] = field(default_factory=dict)

    def function(self, function: ir.Function) -> ir.Function:
        sizes = tuple(map(self._counter, function.sizes))
        return replace(function, sizes=sizes, body=self._body(function.body))

    def _counter(self, value: ir.IrValue) -> ir.IrValue:
        self.values[value] = ir.IrValue(value.type.with_dtype(_NARROW), value.name)
        return self.values[value]

    def _body(self, body: tuple[ir.Operation, ...]) -> tuple[ir.Operation, ...]:
        out: list[ir.Operation] = []
        for operation in body:
            self._operation(operation, out)
        return tuple(out)

    def _operation(self, operation: ir.Operation, out: list[ir.Operation]) -> None:
        match operation:
            case ir.Loop():
                self._loop(operation, out)
                self._convert(operation.results, out)
            case ir.Load(subscripts=subscripts):
                out.append(replace(operation, subscripts=self._places(subscripts)))
                self._convert((operation.result,), out)
            case ir.Store(subscripts=subscripts, value=value, buffer=buffer):
                places = self._places(subscripts)
                stored = self._as(value, buffer.dtype, out)
                out.append(replace(operation, subscripts=places, value=stored))
            case ir.IndexValue(index=index, result=result):
                if self._fits(result):
                    (place,) = self._places((index,))
                    out.append(ir.IndexValue(self._counter(result), place))
                else:
                    self._add_up(index, result, out)
                    self._convert((result,), out)
            case ir.Prefetch():
                pass
            case ir.Barrier():
                out.append(operation)
            case _:
                self._compute(operation, out)
                self._convert(ir.results(operation), out)

    def _loop(self, loop: ir.Loop, out: list[ir.Operation]) -> None:
        lower, upper = self._places((loop.lower, loop.upper))
        initial = tuple(self._as(v, v.type.dtype, out) for v in loop.initial)
        variable = self._counter(loop.variable)
        inner: list[ir.Operation] = []
        self._convert(loop.carried, inner)
        for operation in loop.body:
            self._operation(operation, inner)
        yielded = tuple(self._as(v, v.type.dtype, inner) for v in loop.yielded)
        changed = replace(loop, variable=variable, lower=lower, upper=upper, initial=initial)
        out.append(replace(changed, body=tuple(inner), yielded=yielded))

    def _compute(self, operation: ir.Operation, out: list[ir.Operation]) -> None:
        """Compute in 32 bits if all 64-bit integers of an operation fit."""
        (result,) = ir.results(operation)
        operands = ir.operands(operation)
        wide = [value for value in (result, *operands) if value.type.dtype == _WIDE]
        if not wide:
            out.append(operation)
            return
        kept: Any = operation  # which fields it has depends on its class
        is_cast = isinstance(operation, ir.Cast)
        # A conversion is between what both sides are; all else has one width.
        fits = all(map(self._fits, wide)) and not isinstance(operation, ir.Bitcast)
        work = _NARROW if fits else _WIDE
        taken = {
            value: self.values.get(value, value) if is_cast else self._as(value, work, out)
            for value in operands
            if value.type.dtype == _WIDE
        }
        fields = {
            name: taken[value]
            for name in ("operand", "left", "right", "addend", "condition")
            if (value := getattr(operation, name, None)) in taken
        }
        if result.type.dtype == _WIDE and self._fits(result):
            if is_cast or work == _NARROW:
                fields["result"] = self._counter(result)
            else:
                made = ir.IrValue(result.type)
                out.append(replace(kept, **fields, result=made))
                out.append(ir.Cast(self._counter(result), made))
                return
        out.append(replace(kept, **fields))

    def _fits(self, value: ir.IrValue) -> bool:
        if value in self.spans.loops:
            return True
        span = self.spans.value(value)
        return span is not None and span[0] >= _LEAST and span[1] <= _MOST

    def _as(self, value: ir.IrValue, dtype: str, out: list[ir.Operation]) -> ir.IrValue:
        """Return a value as one of a dtype, if it is a 64-bit integer or was one."""
        now = self.values.get(value, value)
        if value.type.dtype != _WIDE or now.type.dtype == dtype:
            return now
        converted = ir.IrValue(now.type.with_dtype(dtype))
        out.append(ir.Cast(converted, now))
        return converted

    def _convert(self, values: tuple[ir.IrValue, ...], out: list[ir.Operation]) -> None:
        """Convert values that are still wide for the subscripts, which lie inside of buffers."""
        for value in self.placing.intersection(values):
            self.places[value] = self._as(value, _NARROW, out)

    def _places(self, subscripts: tuple[ir.Index, ...]) -> tuple[ir.Index, ...]:
        return tuple(
            ir.Index(
                index.const,
                tuple(
                    (self.places.get(value, self.values.get(value, value)), scale)
                    for value, scale in index.terms
                ),
            )
            for index in subscripts
        )

    def _add_up(self, index: ir.Index, result: ir.IrValue, out: list[ir.Operation]) -> None:
        """Compute a subscript that may not fit."""
        total = ir.IrValue(ir.INT64)
        out.append(ir.Constant(total, index.const))
        for value, scale in index.terms:
            factor, following = ir.IrValue(ir.INT64), ir.IrValue(ir.INT64)
            out.append(ir.Constant(factor, scale))
            out.append(ir.Fma(following, self._as(value, _WIDE, out), factor, total))
            total = following
        self.values[result] = total
