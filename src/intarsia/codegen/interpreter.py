# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel in numpy, operation by operation: slow, exact, and checked at every access.

It is the second opinion on every emitter: loads and stores outside a buffer are errors here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intarsia.codegen import ir
from intarsia.errors import InternalError

Array = np.ndarray[Any, np.dtype[Any]]


def interpret(
    function: ir.Function,
    arrays: Sequence[Array],
    sizes: Sequence[int] = (),
    turns: range | None = None,
) -> None:
    """Run a kernel on arrays, which it writes to.

    Args:
        function: The kernel, expanded or not.
        arrays: One-dimensional memory of every buffer, in order, from its first element on.
        sizes: The kernel's sizes.
        turns: Of the parallel loop; None means all.

    Raises:
        InternalError: The kernel leaves a buffer.
    """
    _Interpreter(function, arrays, sizes, turns).run()


class _Interpreter:
    def __init__(
        self,
        function: ir.Function,
        arrays: Sequence[Array],
        sizes: Sequence[int],
        turns: range | None,
    ) -> None:
        self._function = function
        self._turns = turns
        self._memory: dict[ir.Buffer, Array] = dict(zip(function.buffers, arrays, strict=True))
        for buffer in function.locals:
            self._memory[buffer] = np.zeros(int(np.prod(buffer.shape)), buffer.dtype)
        self._values: dict[ir.IrValue, Any] = {}
        for value, size in zip(function.sizes, sizes, strict=True):
            self._values[value] = np.int64(size)

    def run(self) -> None:
        with np.errstate(all="ignore"):
            self._body(self._function.body)

    def _body(self, body: Sequence[ir.Operation]) -> None:
        for operation in body:
            if isinstance(operation, ir.Loop):
                self._loop(operation)
            elif isinstance(operation, ir.Store):
                self._store(operation)
            elif not isinstance(operation, ir.Prefetch):
                self._values[operation.result] = self._compute(operation)

    def _loop(self, loop: ir.Loop) -> None:
        turns = range(self._index(loop.lower), self._index(loop.upper), loop.step)
        if loop is self._function.parallel and self._turns is not None:
            turns = self._turns
        current = [self._values[value] for value in loop.initial]
        for turn in turns:
            self._values[loop.variable] = np.int64(turn)
            self._values.update(zip(loop.carried, current, strict=True))
            self._body(loop.body)
            current = [self._values[value] for value in loop.yielded]
        self._values.update(zip(loop.results, current, strict=True))

    def _index(self, index: ir.Index) -> int:
        parts = [int(self._values[value]) * int(scale) for value, scale in index.terms]
        return sum(parts, int(index.const))

    def _entries(self, operation: ir.Load | ir.Store) -> Array:
        """Return the positions of the lanes that are read or written."""
        buffer = operation.buffer
        first = self._index(buffer.flatten(operation.subscripts))
        entries = first + np.arange(operation.count) * operation.stride
        size = len(self._memory[buffer])
        if entries[0] < 0 or entries[-1] < 0 or max(entries[0], entries[-1]) >= size:
            raise InternalError(
                f"kernel {self._function.name} leaves {buffer.name}: "
                f"entry {entries[0]} to {entries[-1]} of {size}"
            )
        return entries

    def _store(self, store: ir.Store) -> None:
        value = np.atleast_1d(self._values[store.value])
        self._memory[store.buffer][self._entries(store)] = value[: store.count]

    def _load(self, load: ir.Load) -> Any:
        type_ = load.result.type
        read = self._memory[load.buffer][self._entries(load)]
        if type_.lanes == 1:
            return read[0]
        lanes = np.zeros(type_.lanes, type_.dtype)
        lanes[: load.count] = read
        return lanes

    def _compute(self, operation: ir.Operation) -> Any:  # noqa: PLR0911, PLR0912, C901 - one case a line
        values = self._values
        match operation:
            case ir.Constant(result=result, value=value):
                return _filled(value, result)
            case ir.Unary(name=name, operand=a):
                return _UNARY[name](values[a])
            case ir.Binary(name=name, left=a, right=b):
                return apply_binary(name, values[a], values[b])
            case ir.Fma(result=result, left=a, right=b, addend=c):
                dtype = np.dtype(result.type.dtype)
                wide = np.longdouble if dtype == np.float64 else np.float64
                wide = wide if dtype.kind == "f" else dtype.type
                # Of float32 the product is exact so (48 of 53 bits); the sum is rounded twice,
                # which differs from a fused one next to ties alone.
                product = values[a].astype(wide) * values[b].astype(wide)
                return (product + values[c].astype(wide)).astype(dtype)
            case ir.Dot(left=a, right=b, addend=c):
                return _dot(values[a], values[b], values[c])
            case ir.Compare(predicate=predicate, left=a, right=b):
                return _PREDICATES[predicate](values[a], values[b])
            case ir.Select(condition=condition, left=a, right=b):
                return np.where(values[condition], values[a], values[b])[()]
            case ir.Cast(result=result, operand=a):
                return values[a].astype(result.type.dtype)
            case ir.Bitcast(result=result, operand=a):
                return values[a].view(result.type.dtype)
            case ir.Splat(result=result, operand=a):
                return _filled(values[a], result)
            case ir.Shuffle(left=a, right=b, lanes=lanes):
                both = np.concatenate((values[a], values[b]))
                return both[list(lanes)] if len(lanes) > 1 else both[lanes[0]]
            case ir.Extract(operand=a, lane=lane):
                return values[a][lane]
            case ir.Reduce(name=name, operand=a):
                return _reduce(name, values[a])
            case ir.IndexValue(index=index):
                return np.int64(self._index(index))
            case ir.Load():
                return self._load(operation)
            case _:
                raise AssertionError(operation)


def _filled(value: Any, result: ir.IrValue) -> Any:
    type_ = result.type
    if type_.lanes == 1:
        return np.dtype(type_.dtype).type(value)
    return np.full(type_.lanes, value, type_.dtype)


def _dot(left: Array, right: Array, addend: Any) -> Any:
    group = len(left) // np.size(addend)
    if left.dtype == np.uint16:  # bfloat16: the upper half of a float32
        left, right = ((item.astype(np.uint32) << 16).view(np.float32) for item in (left, right))
    wide = np.asarray(addend).dtype
    products = left.astype(wide) * right.astype(wide)
    total = np.atleast_1d(addend)
    for number in reversed(range(group)):
        before, total = total, total + products[number::group]
        if wide == np.int16:
            exact = before.astype(np.int32) + products[number::group]
            assert (total == exact).all(), "a sum does not fit int16"
    return total if np.ndim(addend) else total[0]


def _reduce(name: str, lanes: Array) -> Any:
    while len(lanes) > 1:
        # By halves, as the IR defines it: then emitters and this agree to the bit.
        half = (len(lanes) + 1) // 2
        upper = lanes[half:]
        combined = lanes[:half].copy()
        combined[: len(upper)] = apply_binary(name, lanes[: len(upper)], upper)
        lanes = combined
    return lanes[0]


def apply_binary(name: str, left: Any, right: Any) -> Any:
    """Apply one of `ir.BINARY` as the IR defines it."""
    return _BINARY[name](left, right)


def _quotient(left: Any, right: Any) -> Any:
    dtype = np.asarray(left).dtype
    if dtype.kind == "f":
        return left / right
    safe = np.where(right == 0, 1, right).astype(dtype)
    quotient = left // safe  # rounds down; the smallest integer has no absolute value
    if dtype.kind == "i":
        quotient = quotient + ((left % safe != 0) & ((left < 0) != (safe < 0)))
    return np.asarray(quotient).astype(dtype)[()]


def _remainder(left: Any, right: Any) -> Any:
    dtype = np.asarray(left).dtype
    if dtype.kind == "f":
        return np.fmod(left, right)
    safe = np.where(right == 0, 1, right).astype(dtype)
    return np.asarray(left - _quotient(left, safe) * safe).astype(dtype)[()]


def _same(result: Any, like: Any) -> Any:
    return np.asarray(result).astype(np.asarray(like).dtype)[()]


_UNARY: Mapping[str, Any] = {
    "neg": lambda a: _same(0 - a if np.asarray(a).dtype.kind != "f" else -a, a),
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "not": np.invert,
    "isnan": np.isnan,
}
_BINARY: Mapping[str, Any] = {
    "add": lambda a, b: _same(a + b, a),
    "sub": lambda a, b: _same(a - b, a),
    "mul": lambda a, b: _same(a * b, a),
    "div": _quotient,
    "rem": _remainder,
    # Where one is NaN, the right operand, as `minps` and `maxps` have it.
    "min": lambda a, b: _same(np.where(a < b, a, b), a),
    "max": lambda a, b: _same(np.where(a > b, a, b), a),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "copysign": np.copysign,
}
_PREDICATES: Mapping[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
