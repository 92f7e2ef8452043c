# SPDX-License-Identifier: Apache-2.0
"""Runs the work-items of a block of a GPU side by side in numpy, and finds races.

They go on in lockstep: each operation is done for all of them at once, axis 0 of its values being
the work-items, and loops whose turns differ have a mask. What they race for does not depend on that
order: between two barriers it is noted who has read and who has written each entry, so that a race
is found whether or not it changes a number. Blocks never wait for each other, so what one of them
writes no other one may touch in the whole call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen import ir
from intarsia.codegen.computation import computation
from intarsia.errors import InternalError

_NOBODY = -1

Places = tuple[Array, Array]


def _fragments() -> dict[str, tuple[Places, Places, Places]]:
    """Return the row and the column of each lane's elements of the matrices of `ir.Mma`.

    By the dtype of its operands.
    """
    lanes = np.arange(ir.MMA_LANES)[:, None]
    group, pair = lanes // 4, lanes % 4 * 2
    eight, four, two = np.arange(8), np.arange(4), np.arange(2)
    total = group + four // 2 * 8, pair + four % 2
    halves = (
        (group + eight // 2 % 2 * 8, pair + eight % 2 + eight // 4 * 8),
        (pair + four % 2 + four // 2 * 8, group + 0 * four),
    )
    singles = (
        (group + four % 2 * 8, lanes % 4 + four // 2 * 4),
        (lanes % 4 + two * 4, group + 0 * two),
    )
    return {"float16": (*halves, total), "float32": (*singles, total)}


_FRAGMENTS = _fragments()


def _rounded_to_tf32(array: Array) -> Array:
    """Return numbers of float32 with ten bits behind the leading one, halves away from zero."""
    single = array.astype(np.float32)
    half, kept = np.uint32(1 << 12), np.uint32(0xFFFFE000)
    rounded = ((single.view(np.uint32) + half) & kept).view(np.float32)
    return np.where(np.isfinite(single), rounded, single).astype(np.float64)


Values = dict[ir.IrValue, Any]
Act = Callable[[], None]


class WorkItems:
    """The work-items of one block after the other.

    Args:
        function: The kernel.
        memory: Of its arguments.
        values: What is known outside of the block loop, which this adds to.
    """

    def __init__(
        self, function: ir.Function, memory: dict[ir.Buffer, Array], values: Values
    ) -> None:
        self._name = function.name
        self._count = function.work_items
        lane = function.lane
        self._lanes = 1 if lane is None else lane.trip_count or 0
        self._values = values
        self._mask: Array | None = None
        self._block = 0
        self._numbers = np.arange(self._count)
        self._memory = dict(memory)
        self._own = [item for item in function.locals if item.scope is ir.Scope.SHARED]
        for buffer in self._own:
            self._memory[buffer] = np.zeros(buffer.span, buffer.dtype)
        self._registers = {
            item: np.zeros((self._count, item.span), item.dtype)
            for item in function.locals
            if item.scope is ir.Scope.REGISTER
        }
        written = [buffer for buffer in self._memory if buffer.is_written]
        self._between = {item: _ItemAccesses(item, len(self._memory[item])) for item in written}
        self._ever = {
            item: _ItemAccesses(item, len(self._memory[item]))
            for item in written
            if item not in self._own
        }
        self._acts: dict[ir.Loop, list[Act]] = {}

    def run(self, loop: ir.Loop, block: int) -> None:
        """Run a block.

        Args:
            loop: The block loop.
            block: The turn of the grid loop.

        Raises:
            InternalError: A work-item leaves a buffer, two race, or not all come to a barrier.
        """
        if loop not in self._acts:
            self._acts[loop] = self._body(loop.body)
        self._block = block
        own = [self._memory[buffer] for buffer in self._own]
        for memory in (*own, *self._registers.values()):  # what a block finds there is of no use
            memory.fill(np.nan if memory.dtype.kind == "f" else np.iinfo(np.int8).max)
        self._forget()
        self._values[loop.variable] = self._numbers // self._lanes
        for act in self._acts[loop]:
            act()

    def _forget(self) -> None:
        for accesses in self._between.values():
            accesses.clear()

    def _body(self, body: Sequence[ir.Operation]) -> list[Act]:
        acts: list[Act] = []
        for operation in body:
            match operation:
                case ir.Loop(kind=ir.LoopKind.LANE):
                    acts.append(self._lane(operation))
                    acts += self._body(operation.body)
                case ir.Loop():
                    acts.append(self._loop(operation))
                case ir.Load():
                    acts.append(self._load(operation))
                case ir.Store():
                    acts.append(self._store(operation))
                case ir.Barrier():
                    acts.append(self._barrier)
                case ir.Prefetch():
                    pass
                case ir.IndexValue(result=result, index=index):
                    acts.append(self._subscript(result, self._index(index)))
                case ir.Mma():
                    acts.append(self._mma(operation))
                case ir.WarpShuffle():
                    acts.append(self._warp_shuffle(operation))
                case _:
                    acts.append(self._compute(operation))
        return acts

    def _lane(self, loop: ir.Loop) -> Act:
        values, numbers = self._values, self._numbers

        def run() -> None:
            values[loop.variable] = numbers % self._lanes

        return run

    def _barrier(self) -> None:
        if self._mask is not None and not self._mask.all():
            raise InternalError(
                f"kernel {self._name} has a barrier that work-item {int(self._mask.argmin())} "
                "does not come to"
            )
        self._forget()

    def _compute(self, operation: ir.Operation) -> Act:
        values, (result,), read = self._values, ir.results(operation), ir.operands(operation)
        compute = computation(operation)

        def run() -> None:
            values[result] = compute(*[values[value] for value in read])

        return run

    def _mma(self, mma: ir.Mma) -> Act:
        values, dtype = self._values, mma.left.type.dtype
        fragments, is_single = _FRAGMENTS[dtype], dtype == "float32"

        def run() -> None:
            mask = self._mask
            if mask is not None and (mask != np.repeat(mask[:: self._lanes], self._lanes)).any():
                raise InternalError(
                    f"kernel {self._name} has a product of a warp that not all its lanes come to"
                )
            left, right, addend = (
                _gathered(self._wide(values[value], value.type.lanes), places)
                for value, places in zip(ir.operands(mma), fragments, strict=True)
            )
            if is_single:
                left, right = _rounded_to_tf32(left), _rounded_to_tf32(right)
            total = (np.matmul(left, right) + addend).astype(np.float32)
            values[mma.result] = _scattered(total, fragments[2])

        return run

    def _warp_shuffle(self, shuffle: ir.WarpShuffle) -> Act:
        values, partners = self._values, self._numbers ^ shuffle.mask

        def run() -> None:
            if self._mask is not None and not self._mask.all():
                raise InternalError(
                    f"kernel {self._name} has a shuffle that work-item {int(self._mask.argmin())} "
                    "does not come to"
                )
            values[shuffle.result] = self._wide(values[shuffle.operand], 1)[partners, 0]

        return run

    def _subscript(self, result: ir.IrValue, index: Callable[[], Any]) -> Act:
        values = self._values

        def run() -> None:
            values[result] = np.asarray(index(), np.int64)[()]

        return run

    def _index(self, index: ir.Index) -> Callable[[], Any]:
        values, const = self._values, int(index.const)
        terms = [(value, int(scale)) for value, scale in index.terms]

        def run() -> Any:
            total: Any = const
            for value, scale in terms:
                total = total + values[value] * scale
            return total

        return run

    # Loops

    def _loop(self, loop: ir.Loop) -> Act:
        values, acts = self._values, self._body(loop.body)
        lower, upper = self._index(loop.lower), self._index(loop.upper)

        def run() -> None:
            first, end = lower(), upper()
            outer = self._mask
            current = [values[value] for value in loop.initial]
            if np.ndim(first) == 0 and np.ndim(end) == 0:
                for turn in range(int(first), int(end), loop.step):
                    values[loop.variable] = np.int64(turn)
                    values.update(zip(loop.carried, current, strict=True))
                    for act in acts:
                        act()
                    current = [values[value] for value in loop.yielded]
            else:
                counter = np.broadcast_to(first, (self._count,)).astype(np.int64)
                while True:
                    active = counter < end
                    if outer is not None:
                        active = active & outer
                    if not active.any():
                        break
                    self._mask = active
                    values[loop.variable] = counter
                    values.update(zip(loop.carried, current, strict=True))
                    for act in acts:
                        act()
                    current = [
                        self._chosen(active, values[value], old, value.type.lanes)
                        for value, old in zip(loop.yielded, current, strict=True)
                    ]
                    counter = counter + loop.step
                self._mask = outer
            values.update(zip(loop.results, current, strict=True))

        return run

    def _chosen(self, active: Array, new: Any, old: Any, lanes: int) -> Array:
        chosen = np.where(active[:, None], self._wide(new, lanes), self._wide(old, lanes))
        return chosen if lanes > 1 else chosen[:, 0]

    # Memory

    def _places(self, operation: ir.Load | ir.Store) -> Callable[[], tuple[Array, Array]]:
        """Return what tells who accesses memory, and which entries each of them."""
        buffer, count = operation.buffer, operation.count
        index = self._index(buffer.flatten(operation.subscripts))
        entries = np.arange(count) * operation.stride
        size = len(self._memory[buffer])
        is_store = isinstance(operation, ir.Store)
        between, ever = self._between.get(buffer), self._ever.get(buffer)

        def run() -> tuple[Array, Array]:
            who = self._numbers if self._mask is None else np.flatnonzero(self._mask)
            first = np.broadcast_to(index(), (self._count,))[who]
            places = first[:, None] + entries
            outside = (places < 0) | (places >= size)
            if outside.any():
                row = int(outside.any(1).argmax())
                raise InternalError(
                    f"kernel {self._name} leaves {buffer.name}: work-item {who[row]} at entry "
                    f"{places[row, 0]} to {places[row, -1]} of {size}"
                )
            if between is not None:
                flat, whose = places.reshape(-1), np.repeat(who, count)
                self._note(between, flat, whose, "work-items", is_store=is_store)
                if ever is not None:
                    blocks = np.full_like(whose, self._block)
                    self._note(ever, flat, blocks, "blocks", is_store=is_store)
            return who, places

        return run

    def _note(
        self, accesses: _ItemAccesses, places: Array, who: Array, kind: str, *, is_store: bool
    ) -> None:
        found = accesses.write(places, who) if is_store else accesses.read(places, who)
        if found is not None:
            entry, one, other = found
            raise InternalError(
                f"kernel {self._name} has a race: {kind} {min(one, other)} and {max(one, other)} "
                f"touch entry {entry} of {accesses.buffer.name}, and one writes it"
            )

    def _load(self, load: ir.Load) -> Act:
        values, result, count = self._values, load.result, load.count
        lanes = result.type.lanes
        if load.buffer in self._registers:
            return self._load_register(load)
        memory, places_of = self._memory[load.buffer], self._places(load)

        def run() -> None:
            who, places = places_of()
            found = np.zeros((self._count, lanes), memory.dtype)
            found[who, :count] = memory[places]
            values[result] = found if lanes > 1 else found[:, 0]

        return run

    def _store(self, store: ir.Store) -> Act:
        values, value, count = self._values, store.value, store.count
        if store.buffer in self._registers:
            return self._store_register(store)
        memory, places_of = self._memory[store.buffer], self._places(store)

        def run() -> None:
            who, places = places_of()
            memory[places] = self._wide(values[value], value.type.lanes)[who, :count]

        return run

    def _wide(self, value: Any, lanes: int) -> Array:
        """Return a value of all work-items, `[work-items, lanes]`."""
        found = np.asarray(value)
        if lanes == 1:
            found = found[..., None]
        return np.broadcast_to(found, (self._count, lanes))

    def _at(self, access: ir.Load | ir.Store) -> Array:
        first: int = access.buffer.flatten(access.subscripts).const
        return first + np.arange(access.count) * access.stride

    def _load_register(self, load: ir.Load) -> Act:
        values, result, own = self._values, load.result, self._registers[load.buffer]
        at, lanes = self._at(load), load.result.type.lanes

        def run() -> None:
            found = np.zeros((self._count, lanes), own.dtype)
            found[:, : len(at)] = own[:, at]
            values[result] = found if lanes > 1 else found[:, 0]

        return run

    def _store_register(self, store: ir.Store) -> Act:
        values, value, own = self._values, store.value, self._registers[store.buffer]
        at, lanes = self._at(store), store.value.type.lanes

        def run() -> None:
            who = self._numbers if self._mask is None else np.flatnonzero(self._mask)
            own[who[:, None], at] = self._wide(values[value], lanes)[who, : len(at)]

        return run


@dataclass(slots=True)
class _ItemAccesses:
    """Who has written and read the entries of a buffer.

    Attributes:
        buffer: Which.
        size: How many entries it has.
        writers: The last one of each entry.
        readers: The last one of each entry.
        others: One more reader of each entry, if there is one.
    """

    buffer: ir.Buffer
    size: int

    writers: Array = field(init=False)
    readers: Array = field(init=False)
    others: Array = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nobody."""
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.writers, self.readers, self.others = np.full((3, self.size), _NOBODY)

    def read(self, places: Array, who: Array) -> tuple[int, int, int] | None:
        """Note reads.

        Returns:
            An entry that somebody else has written, who reads it and who wrote it; or nothing.
        """
        found = _conflict(places, who, self.writers)
        before = self.readers[places]
        is_other = (before != _NOBODY) & (before != who)
        self.others[places[is_other]] = before[is_other]
        self.readers[places] = who
        is_other = self.readers[places] != who  # several at once: the last one is noted
        self.others[places[is_other]] = who[is_other]
        return found

    def write(self, places: Array, who: Array) -> tuple[int, int, int] | None:
        """Note writes.

        Returns:
            An entry that somebody else has touched, who writes it and who touched it; or nothing.
        """
        for seen in (self.writers, self.readers, self.others):
            found = _conflict(places, who, seen)
            if found is not None:
                return found
        self.writers[places] = who
        return _conflict(places, who, self.writers)


def _conflict(places: Array, who: Array, seen: Array) -> tuple[int, int, int] | None:
    others = seen[places]
    is_other = (others != _NOBODY) & (others != who)
    if not is_other.any():
        return None
    first = int(is_other.argmax())
    return int(places[first]), int(who[first]), int(others[first])


def _gathered(fragments: Array, places: Places) -> Array:
    """Return the matrices that warps' lanes have, in float64, `[warps, rows, columns]`."""
    rows, columns = places
    parts = fragments.reshape(-1, *rows.shape)
    matrices = np.zeros((len(parts), int(rows.max()) + 1, int(columns.max()) + 1))
    matrices[:, rows, columns] = parts
    return matrices


def _scattered(matrices: Array, places: Places) -> Array:
    """Return what lanes have of their warps' matrices, `[work-items, elements]`."""
    rows, columns = places
    return matrices[:, rows, columns].reshape(-1, rows.shape[1])
