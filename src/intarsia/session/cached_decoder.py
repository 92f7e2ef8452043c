# SPDX-License-Identifier: Apache-2.0
"""A decoder whose caches grow where they lie, for models that join them: `Concat(past, new)`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from intarsia.arrays import Array, address_of
from intarsia.compiler import compile as compile_model
from intarsia.errors import InputError, ModelError
from intarsia.graph.arena import aligned_bytes
from intarsia.graph.load import ModelLike, parse
from intarsia.passes.grow_caches import GrownCache, grow_caches
from intarsia.runtime.executor import PlanExecutable
from intarsia.runtime.free import Program
from intarsia.runtime.memories import RunMemory

_LEAST_ROWS = 64
"""That there is room for from the start."""


@dataclass(slots=True)
class _Rows:
    """The memory of one cache.

    Attributes:
        memory: Over (room, *the other dimensions).
        count: How many of its rows are the cache's.
        present: What was returned as these rows last, in the model's shape.
        start: Where the memory begins.
    """

    memory: Array
    count: int = 0
    present: Array | None = None
    start: int = field(init=False)

    def __post_init__(self) -> None:
        """Find out where it lies."""
        self.start = address_of(self.memory)

    def holds(self, rows: Array) -> bool:
        """Tell whether rows are this cache: those of an older step are not, as others follow."""
        return (
            len(rows) == self.count > 0
            and rows.dtype == self.memory.dtype
            and rows.shape[1:] == self.memory.shape[1:]
            and rows.strides == self.memory.strides
            and address_of(rows) == self.start
        )

    def overlaps(self, start: int, end: int) -> bool:
        """Tell whether it has some of the bytes between two addresses."""
        return start < self.start + self.memory.nbytes and self.start < end


class CachedDecoder:
    """A model with caches in the layout of Optimum's exports, which grow in place.

    The model is unchanged: a past of any length goes in, and comes out longer by the new rows. A
    present is a view of memory that has room. Who feeds it as the next past has it used where it
    lies, and a step writes its own rows. Any other array, an older present among them, is copied
    once; arrays that were returned never change. Memory doubles when there is no more room.

    It is not to be run from two threads at once.

    Args:
        model: As of `intarsia.compile`.
        target: Likewise.
        options: Likewise.

    Attributes:
        executable: What runs the model with rows first, as `caches` names them.
        caches: The pasts and presents.
        copied_bytes: Bytes of caches that were copied so far: the caller's own arrays, what
            outgrew its memory, and where a backend cannot add to what it reads, each step's past.

    Raises:
        ModelError: The model has no such cache, or is invalid.
        IntarsiaError: As of `intarsia.compile`.
    """

    def __init__(self, model: ModelLike, target: Any = None, **options: Any) -> None:
        turned = parse(model)
        self.caches: tuple[GrownCache, ...] = grow_caches(turned)
        if not self.caches:
            raise ModelError(
                "the model has no cache that grows: no input is joined with new rows (Concat) that "
                "are an output with it",
                hint="compile it as it is; caches of GroupQueryAttention are bound as past and as "
                "present (docs/decoding.md)",
            )
        self.executable: Program = compile_model(turned, target, **options)
        self.copied_bytes = 0
        self._rows: dict[str, _Rows] = {}
        self._memory = RunMemory()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Run one step.

        Args:
            feeds: An array for each input of the model, in the model's shapes.

        Returns:
            The outputs, in the model's shapes; a present is a view that need not be contiguous.

        Raises:
            InputError: An array is missing, unknown, or does not fit.
            ExecutionError: A backend failed.
        """
        pasts = {cache.past for cache in self.caches}
        inputs = {
            name: np.asarray(value) if name in pasts else self._bindable(value)
            for name, value in feeds.items()
        }
        for cache in self.caches:
            inputs[cache.past] = self._past(cache, inputs)
        program = self.executable.program_for(inputs)
        specs = {spec.name: spec for spec in program.outputs}
        in_place = _named_in_place(program)
        outputs: dict[str, Array] = {}
        for cache in self.caches:
            total = (specs[cache.present].shape or (0,))[0]
            rows = self._make_room(cache, total, is_kept=in_place.get(cache.past) == cache.present)
            inputs[cache.past] = rows[: len(inputs[cache.past])]
            outputs[cache.present] = self._rows[cache.present].memory[:total]
        context = program.context(inputs, outputs, memory=self._memory)
        context.run()
        found: dict[str, Array] = context.read_outputs(outputs)
        for cache in self.caches:
            held = self._rows[cache.present]
            rows = outputs[cache.present]
            held.count = len(rows)
            held.present = rows.transpose(_axes(rows.ndim, cache.axis)[1])
            found[cache.present] = held.present
        return found

    def _bindable(self, value: Any) -> Array:
        """Return an array as a program reads it: contiguous, and not where caches are written."""
        array: Array = np.asarray(value, order="C")
        start = address_of(array)
        end = start + array.nbytes
        is_ours = any(rows.overlaps(start, end) for rows in self._rows.values())
        return array.copy() if is_ours else array

    def _past(self, cache: GrownCache, inputs: Mapping[str, Array]) -> Array:
        """Return the rows that were fed, in memory of ours."""
        if cache.past not in inputs:
            raise InputError(f"no array is given for {cache.past!r}")
        given, held = inputs[cache.past], self._rows.get(cache.present)
        if given.ndim <= cache.axis:
            raise InputError(f"{cache.past!r} has {given.ndim} dimensions, which are too few")
        if held is not None and given is held.present and given.shape[cache.axis] == held.count:
            return held.memory[: held.count]  # the usual case: a step has dozens of caches
        rows = given.transpose(_axes(given.ndim, cache.axis)[0])
        if held is None or not held.holds(rows):
            held = self._rows[cache.present] = _Rows(_room_for(rows, len(rows)), len(rows))
            held.memory[: len(rows)] = rows
            self.copied_bytes += rows.nbytes
        return held.memory[: len(rows)]

    def _make_room(self, cache: GrownCache, total: int, *, is_kept: bool) -> Array:
        """See that the present fits its memory; return where the past is.

        Args:
            cache: The cache.
            total: Its rows behind the step.
            is_kept: Whether the step can add to the memory of the past.
        """
        held = self._rows[cache.present]
        past = held.memory
        if is_kept and total <= len(past):
            return past
        memory = past if total <= len(past) else _room_for(past, total)
        if memory is past:
            memory = np.empty_like(past)
        if is_kept:
            memory[: held.count] = past[: held.count]
        self.copied_bytes += past[: held.count].nbytes
        self._rows[cache.present] = _Rows(memory, held.count)
        return memory if is_kept else past


@functools.cache
def _axes(rank: int, axis: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the order of axes that puts one first, and the one that puts it back."""
    others = [i for i in range(rank) if i != axis]
    back = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
    return (axis, *others), tuple(back)


def _room_for(rows: Array, count: int) -> Array:
    """Return memory for twice as many rows as these."""
    room = max(_LEAST_ROWS, 2 * count)
    shape = (room, *rows.shape[1:])
    nbytes = int(np.prod(shape)) * rows.itemsize
    memory: Array = aligned_bytes(nbytes).view(rows.dtype).reshape(shape)
    return memory


def _named_in_place(program: PlanExecutable) -> dict[str, str]:
    """Return which outputs a program may write where inputs are, by the inputs' names."""
    tensors = program.plan.tensors
    return {tensors[a].name: tensors[b].name for a, b in program.in_place.items()}
