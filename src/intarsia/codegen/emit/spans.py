# SPDX-License-Identifier: Apache-2.0
"""Between which two numbers the int64 values of a kernel lie, as far as that is known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from intarsia.codegen import ir

Span = tuple[int, int]
"""The smallest and the largest value that an int64 can have."""


@dataclass(slots=True)
class Spans:
    """The spans of values, found when they are asked for.

    Attributes:
        makers: What makes each value.
        loops: The loop that counts each loop variable.
        known: What is known already; None where nothing can be known.
    """

    makers: dict[ir.IrValue, ir.Operation] = field(default_factory=dict)
    loops: dict[ir.IrValue, ir.Loop] = field(default_factory=dict)
    known: dict[ir.IrValue, Span | None] = field(default_factory=dict)

    @classmethod
    def of(cls, function: ir.Function) -> Spans:
        """Return the spans of a kernel's values."""
        spans = cls()
        for operation in ir.walk(function.body):
            for result in ir.results(operation):
                spans.makers[result] = operation
            if isinstance(operation, ir.Loop):
                spans.loops[operation.variable] = operation
        return spans

    def index(self, index: ir.Index) -> Span | None:
        """Return the least and the largest value of a subscript."""
        low = high = index.const
        for value, scale in index.terms:
            ends_of_value = self.value(value)
            if ends_of_value is None:
                return None
            ends = [end * scale for end in ends_of_value]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def value(self, value: ir.IrValue) -> Span | None:
        """Return the least and the largest of a value's lanes."""
        if value not in self.known:
            self.known[value] = self._find(value)
        return self.known[value]

    def _find(self, value: ir.IrValue) -> Span | None:
        loop = self.loops.get(value)
        if loop is not None:
            first, last = self.index(loop.lower), self.index(loop.upper)
            return None if first is None or last is None else (first[0], max(first[0], last[1] - 1))
        match self.makers.get(value):
            case ir.Constant(value=number):
                return int(number), int(number)
            case ir.IndexValue(index=index):
                return self.index(index)
            case ir.Splat(operand=a) | ir.Extract(operand=a):
                return self.value(a)
            case ir.Cast(operand=operand):
                return _all_of(operand.type.dtype)
            case ir.Select(left=a, right=b) | ir.Shuffle(left=a, right=b):
                first, second = self.value(a), self.value(b)
                return first and second and (min(first[0], second[0]), max(first[1], second[1]))
            case ir.Binary(name=name, left=a, right=b):
                return _combined(name, self.value(a), self.value(b))
            case _:
                return None


def _all_of(dtype: str) -> Span | None:
    """Return the span of all numbers of a dtype that has fewer than 64 bits."""
    if dtype == "bool":
        return 0, 1
    if dtype.startswith("float") or np.dtype(dtype).itemsize == np.dtype("int64").itemsize:
        return None
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _combined(name: str, first: Span | None, second: Span | None) -> Span | None:
    if first is None or second is None:
        return None
    match name:
        case "min" | "max":
            pick = min if name == "min" else max
            return pick(first[0], second[0]), pick(first[1], second[1])
        case "add":
            return _fitting((first[0] + second[0], first[1] + second[1]))
        case "sub":
            return _fitting((first[0] - second[1], first[1] - second[0]))
        case "mul":
            products = [x * y for x in first for y in second]
            return _fitting((min(products), max(products)))
        case "div" if first[0] >= 0 and second[0] > 0:
            return first[0] // second[1], first[1] // second[0]
        case "rem" if second[0] > 0:
            most = second[1] - 1
            return max(-most, min(first[0], 0)), min(most, max(first[1], 0))
        case _:
            return None


def _fitting(span: Span) -> Span | None:
    """Return a span if sums and products that lie in it do not wrap."""
    limits = np.iinfo(np.int64)
    return span if limits.min <= span[0] and span[1] <= limits.max else None
