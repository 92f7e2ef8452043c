# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel in numpy, operation by operation: slow, exact, and checked at every access.

It is the second opinion on every emitter: loads and stores outside a buffer are errors here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen import ir
from intarsia.codegen.computation import computation
from intarsia.codegen.work_items import WorkItems
from intarsia.errors import InternalError


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
        turns: Of the parallel or grid loop; None means all.

    Raises:
        InternalError: The kernel leaves a buffer, or work-items of a GPU race.
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
        self._parallel = None if turns is None else function.parallel or function.grid
        self._turns = turns
        self._memory: dict[ir.Buffer, Array] = dict(zip(function.buffers, arrays, strict=True))
        for buffer in (item for item in function.locals if item.scope is ir.Scope.LOCAL):
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
            if isinstance(operation, ir.Loop) and operation.kind is ir.LoopKind.BLOCK:
                acts.append(self._work_items(operation))
            elif isinstance(operation, ir.Loop):
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

    def _work_items(self, loop: ir.Loop) -> Act:
        """Return what runs the work-items of a block side by side."""
        grid = self._function.grid
        assert grid is not None, "a block loop stands in a grid loop"
        items = WorkItems(self._function, self._memory, self._values)
        values = self._values
        return lambda: items.run(loop, int(values[grid.variable]))

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
        compute = computation(operation)
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
