# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel in numpy, operation by operation: slow, exact, and checked at every access.

It is the second opinion on every emitter: loads and stores outside a buffer are errors here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
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
    KernelInterpreter(function, arrays, sizes, turns).run()


Values = dict[ir.IrValue, Any]
Act = Callable[[], None]
"""One operation, made ready: reads its operands from the kernel's values and leaves its result."""


class KernelInterpreter:
    """A kernel as functions, one for each operation: what it says of itself is looked at once."""

    def __init__(
        self,
        function: ir.Function,
        arrays: Sequence[Array],
        sizes: Sequence[int],
        turns: range | None = None,
    ) -> None:
        self._function = function
        self._parallel = None if turns is None else function.parallel
        self._turns = turns
        self._memory: dict[ir.Buffer, Array] = dict(zip(function.buffers, arrays, strict=True))
        for buffer in function.locals:
            self._memory[buffer] = np.zeros(int(np.prod(buffer.shape)), buffer.dtype)
        self._tiles: dict[ir.TileRegister, Array] = {
            tile: np.zeros((ir.TILE_ROWS, tile.columns), tile.dtype) for tile in function.tiles
        }
        self._values: Values = {}
        for value, size in zip(function.sizes, sizes, strict=True):
            self._values[value] = np.int64(size)

    def run(self) -> None:
        """Run it."""
        with np.errstate(all="ignore"):
            for act in self._body(self._function.body):
                act()

    def _body(self, body: Sequence[ir.Operation]) -> list[Act]:
        acts = []
        for operation in body:
            if isinstance(operation, ir.Loop):
                acts.append(self._loop(operation))
            elif isinstance(operation, ir.Store):
                acts.append(self._store(operation))
            elif isinstance(operation, ir.Load):
                acts.append(self._load(operation))
            elif isinstance(operation, ir.TileOperation):
                acts.append(self._tile(operation))
            elif not isinstance(operation, ir.Prefetch):
                acts.append(self._compute(operation))
        return acts

    def _loop(self, loop: ir.Loop) -> Act:
        values, acts, variable = self._values, self._body(loop.body), loop.variable
        lower, upper = self._index(loop.lower), self._index(loop.upper)
        given = self._turns if loop is self._parallel else None

        def run() -> None:
            current = [values[value] for value in loop.initial]
            for turn in range(lower(), upper(), loop.step) if given is None else given:
                values[variable] = np.int64(turn)
                values.update(zip(loop.carried, current, strict=True))
                for act in acts:
                    act()
                current = [values[value] for value in loop.yielded]
            values.update(zip(loop.results, current, strict=True))

        return run

    def _index(self, index: ir.Index) -> Callable[[], int]:
        values, const = self._values, int(index.const)
        terms = [(value, int(scale)) for value, scale in index.terms]
        if not terms:
            return lambda: const
        if len(terms) == 1:
            ((only, scale),) = terms
            return lambda: int(values[only]) * scale + const

        def run() -> int:
            total = const
            for value, scale in terms:
                total += int(values[value]) * scale
            return total

        return run

    def _first(self, operation: ir.Load | ir.Store) -> Callable[[], int]:
        """Return what tells where lane 0 is; every lane is in the buffer, or it raises."""
        buffer, name = operation.buffer, self._function.name
        index = self._index(buffer.flatten(operation.subscripts))
        size, length = len(self._memory[buffer]), (operation.count - 1) * operation.stride

        def run() -> int:
            first = index()
            if 0 <= first < size and 0 <= first + length < size:
                return first
            raise InternalError(
                f"kernel {name} leaves {buffer.name}: entry {first} to {first + length} of {size}"
            )

        return run

    def _store(self, store: ir.Store) -> Act:
        values, memory, first = self._values, self._memory[store.buffer], self._first(store)
        value, count, lanes = store.value, store.count, store.value.type.lanes
        entries = np.arange(count) * store.stride

        def scalar() -> None:
            memory[first()] = values[value]

        def vector() -> None:
            memory[first() + entries] = values[value][:count]

        return scalar if lanes == 1 else vector

    def _load(self, load: ir.Load) -> Act:
        values, memory, first = self._values, self._memory[load.buffer], self._first(load)
        result, count, type_ = load.result, load.count, load.result.type
        entries = np.arange(count) * load.stride

        def scalar() -> None:
            values[result] = memory[first()]

        def vector() -> None:
            values[result] = memory[first() + entries]

        def part() -> None:
            lanes = np.zeros(type_.lanes, type_.dtype)
            lanes[:count] = memory[first() + entries]
            values[result] = lanes

        if type_.lanes == 1:
            return scalar
        return vector if count == type_.lanes else part

    def _tile(self, operation: ir.TileOperation) -> Act:
        if isinstance(operation, ir.TileZero):
            zeroed = self._tiles[operation.tile]
            return lambda: zeroed.fill(0)
        if isinstance(operation, ir.TileDot):
            dotted = (operation.total, operation.left, operation.right)
            total, left, right = (self._tiles[tile] for tile in dotted)

            def dot() -> None:
                total[...] = _tile_dot(total, left, right)

            return dot
        tile, memory = self._tiles[operation.tile], self._memory[operation.buffer]
        index = self._index(operation.buffer.flatten(operation.subscripts))
        entries = np.arange(tile.shape[0])[:, None] * operation.stride + np.arange(tile.shape[1])
        name, is_load = operation.buffer.name, isinstance(operation, ir.TileLoad)

        def run() -> None:
            places = index() + entries
            if places[0, 0] < 0 or places[-1, -1] >= len(memory):
                raise InternalError(
                    f"kernel {self._function.name} leaves {name}: entry {places[0, 0]} to "
                    f"{places[-1, -1]} of {len(memory)}"
                )
            if is_load:
                tile[...] = memory[places]
            else:
                memory[places] = tile

        return run

    def _compute(self, operation: ir.Operation) -> Act:
        values, (result,) = self._values, ir.results(operation)
        if isinstance(operation, ir.IndexValue):
            index = self._index(operation.index)

            def subscript() -> None:
                values[result] = np.int64(index())

            return subscript
        compute = _computation(operation)
        match ir.operands(operation):
            case ():
                value = compute()

                def constant() -> None:
                    values[result] = value

                return constant
            case (a,):

                def unary() -> None:
                    values[result] = compute(values[a])

                return unary
            case (a, b):

                def binary() -> None:
                    values[result] = compute(values[a], values[b])

                return binary
            case (a, b, c):

                def ternary() -> None:
                    values[result] = compute(values[a], values[b], values[c])

                return ternary
            case _:
                raise AssertionError(operation)


def _computation(operation: ir.Operation) -> Callable[..., Any]:  # noqa: PLR0911, PLR0912, C901 - one case a line
    """Return what makes the result of an operation of its operands, in their order."""
    match operation:
        case ir.Constant(result=result, value=value):
            return lambda: _filled(value, result)
        case ir.Unary(name=name):
            unary: Callable[..., Any] = _UNARY[name]
            return unary
        case ir.Binary(name=name):
            binary: Callable[..., Any] = _BINARY[name]
            return binary
        case ir.Fma(result=result):
            return _fused(np.dtype(result.type.dtype))
        case ir.Dot():
            return _dot
        case ir.Compare(predicate=predicate):
            compare: Callable[..., Any] = _PREDICATES[predicate]
            return compare
        case ir.Select():
            return _where
        case ir.Cast(result=result):
            dtype = np.dtype(result.type.dtype)
            return lambda a: a.astype(dtype)
        case ir.Bitcast(result=result):
            bits = np.dtype(result.type.dtype)
            return lambda a: a.view(bits)
        case ir.Splat(result=result):
            return lambda a: _filled(a, result)
        case ir.Shuffle(lanes=(lane,)):
            return lambda a, b: np.concatenate((a, b))[lane]
        case ir.Shuffle(lanes=lanes):
            picked = np.array(lanes)
            return lambda a, b: np.concatenate((a, b))[picked]
        case ir.Extract(lane=lane):
            return lambda a: a[lane]
        case ir.Reduce(name=name):
            return lambda a: _reduce(name, a)
        case _:
            raise AssertionError(operation)


def _fused(dtype: np.dtype[Any]) -> Callable[..., Any]:
    if dtype.kind != "f":
        return lambda a, b, c: a * b + c
    wide = np.dtype(np.longdouble if dtype == np.float64 else np.float64)
    # Of float32 the product is exact so (48 of 53 bits); the sum is rounded twice,
    # which differs from a fused one next to ties alone.
    return lambda a, b, c: (np.multiply(a, b, dtype=wide) + c).astype(dtype)


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


def _tile_dot(total: Array, left: Array, right: Array) -> Array:
    """Return what `ir.TileDot` makes of the total."""
    wide, group = total.dtype, ir.DOT_GROUPS[left.dtype.name]
    rows = left.reshape(ir.TILE_ROWS, -1, group)
    columns = right.reshape(-1, ir.TILE_ROWS, group)
    if wide == np.int32:
        products: Array = np.einsum("ikg,kjg->ij", rows.astype(wide), columns.astype(wide))
        return total + products
    rows, columns = (
        _flushed((item.astype(np.uint32) << 16).view(wide)) for item in (rows, columns)
    )
    sums = np.zeros((*total.shape, group), wide)
    for k in range(rows.shape[1]):
        # Fused: products of bfloat16 are exact in float32 beside what underflows.
        sums += rows[:, None, k] * columns[None, k]
    added: Array = sums.sum(-1, dtype=wide)
    return total + added


def _flushed(numbers: Array) -> Array:
    """Return numbers with denormals as 0."""
    is_small = np.abs(numbers) < np.finfo(numbers.dtype).tiny
    return np.where(is_small, numbers.dtype.type(0), numbers)


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


def _where(condition: Any, left: Any, right: Any) -> Any:
    return np.where(condition, left, right)[()]


_UNARY: Mapping[str, Any] = {
    "neg": operator.neg,
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
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _quotient,
    "rem": _remainder,
    # Where one is NaN, the right operand, as `minps` and `maxps` have it.
    "min": lambda a, b: _where(a < b, a, b),
    "max": lambda a, b: _where(a > b, a, b),
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
