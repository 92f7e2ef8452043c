# SPDX-License-Identifier: Apache-2.0
"""The loop nest of a kernel: how often loops turn, and which memory they touch.

How often is found by samples: at evenly spread turns of every loop its bounds are computed, so that
remainders and triangles count as often as they occur. Which memory is an interval of each subscript
over the turns of some loops, the others held at a middle turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from intarsia.codegen import ir
from intarsia.extents import Expression, typical

Array = np.ndarray[Any, np.dtype[Any]]

SAMPLES = 64
LINE = 64
"""Bytes of a cache line."""
_ACCESSES = ir.Load | ir.Store | ir.TileLoad | ir.TileStore
_UNKNOWN = 8.0
"""What a number is taken for that comes from memory and steers a loop."""
_FAR = 1 << 40
_Moving = tuple[ir.Buffer, tuple[tuple[ir.IrValue, int], ...], tuple[tuple[int, int], ...]]
"""What accesses have in common that move together: memory, terms, and lanes."""


@dataclass(frozen=True, slots=True)
class Access:
    """A load or a store.

    Attributes:
        buffer: Of which memory.
        offset: Bytes to the first one, without the terms.
        terms: Values, and the bytes that one more of each is.
        nbytes: How many lie there one after another, small gaps between lanes among them.
        lanes: Of lanes that lie far apart, the bytes from one to the next, and how many.
    """

    buffer: ir.Buffer
    offset: int
    terms: tuple[tuple[ir.IrValue, int], ...]
    nbytes: int
    lanes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class BufferFootprint:
    """Memory of one buffer.

    Attributes:
        nbytes: How much.
        lines: In how many cache lines.
        runs: Of lines that follow one another.
        steps: Lines from one run to the next.
    """

    nbytes: float
    lines: float
    runs: float
    steps: tuple[int, ...] = ()

    def room(self, sets: int) -> float:
        """Return how many lines of a cache it takes: runs that lie evenly apart share few sets."""
        if not self.steps:
            return self.lines
        covered = sets // math.gcd(*self.steps, sets) * max(1.0, self.lines / self.runs)
        return self.lines * sets / min(sets, covered)


@dataclass(eq=False, slots=True)
class Nest:
    """A loop with what is in it; or a whole kernel, which turns once.

    Attributes:
        loop: None for the kernel.
        depth: Of the loop; 0 for the kernel.
        body: All operations.
        straight: Operations that are not loops.
        children: Loops in it, in order.
        accesses: Of `straight`.
        executions: How often its body is run in one call, on average.
        turns: How often it turns when it is entered; below 1 for what is mostly left out.
        alone: The loop without those inside of it.
    """

    loop: ir.Loop | None
    depth: int
    body: tuple[ir.Operation, ...]
    straight: list[ir.Operation] = field(default_factory=list)
    children: list[Nest] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    executions: float = 1.0
    turns: float = 1.0

    alone: Nest = field(init=False)

    def __post_init__(self) -> None:
        self.alone = self


class KernelNest:
    """The loops of one kernel, with what is needed to ask about them.

    Attributes:
        root: The kernel.
    """

    def __init__(self, function: ir.Function) -> None:
        self.function = function
        self._definitions: dict[ir.IrValue, ir.Operation] = {}
        self._depths: dict[ir.IrValue, int] = {}
        self._affine: dict[ir.IrValue, tuple[int, dict[ir.IrValue, int]]] = {}
        self._samples: dict[ir.IrValue, Array] = {}
        self._intervals: dict[tuple[ir.IrValue, int], tuple[int, int]] = {}
        sizes = zip(function.sizes, function.free, strict=True)
        self._sizes = {value: typical(extent) for value, extent in sizes}
        self.root = Nest(None, 0, function.body)
        self._fill(self.root, np.ones(SAMPLES))

    # Structure

    def _fill(self, nest: Nest, weight: Array) -> None:
        for operation in nest.body:
            if isinstance(operation, ir.Loop):
                self._definitions[operation.variable] = operation
                self._depths[operation.variable] = nest.depth + 1
                for value in (*operation.carried, *operation.results):
                    self._definitions[value] = operation
                    self._depths[value] = nest.depth + 1
                child = Nest(operation, nest.depth + 1, operation.body)
                inner = weight * self._turns(operation)
                child.executions = float(inner.mean())
                child.turns = child.executions / max(nest.executions, 1e-9)
                nest.children.append(child)
                self._fill(child, inner)
                continue
            nest.straight.append(operation)
            for value in ir.results(operation):
                self._definitions[value] = operation
            if isinstance(operation, _ACCESSES):
                nest.accesses.append(self._access(operation))
        if nest.children:
            nest.alone = Nest(nest.loop, nest.depth, (), accesses=nest.accesses)

    def _turns(self, loop: ir.Loop) -> Array:
        lower, upper = self._sampled_index(loop.lower), self._sampled_index(loop.upper)
        turns = np.maximum(np.ceil((upper - lower) / loop.step), 0)
        # A sequence of small discrepancy, another one for each depth.
        depth = self._depths[loop.variable]
        parts = (np.arange(SAMPLES) * _GOLDEN ** ((depth * 7) % 11 + 1) + 0.5 / SAMPLES) % 1.0
        if depth == 1:
            parts = (np.arange(SAMPLES) + 0.5) / SAMPLES
        self._samples[loop.variable] = lower + loop.step * np.floor(parts * turns)
        return turns

    def _access(self, operation: ir.Load | ir.Store | ir.TileLoad | ir.TileStore) -> Access:
        buffer = operation.buffer
        const, terms = 0, dict[ir.IrValue, int]()
        for subscript, step in zip(operation.subscripts, buffer.strides, strict=True):
            stride = 1 if isinstance(step, Expression) else step
            const += stride * self._add_expanded(subscript, stride, terms)
        item = buffer.item_bytes
        scaled = tuple((value, scale * item) for value, scale in terms.items() if scale)
        if isinstance(operation, ir.TileLoad | ir.TileStore):
            pitch, width = operation.stride * item, ir.TILE_BYTES
            if pitch > width:
                return Access(buffer, const * item, scaled, width, ((pitch, ir.TILE_ROWS),))
            return Access(buffer, const * item, scaled, (ir.TILE_ROWS - 1) * pitch + width)
        type_ = operation.value.type if isinstance(operation, ir.Store) else operation.result.type
        count = operation.count if type_.lanes > 1 else 1
        stride = operation.stride * item
        if stride > LINE:
            return Access(buffer, const * item, scaled, item, ((stride, count),))
        return Access(buffer, const * item, scaled, (count - 1) * stride + item)

    def _expand(self, index: ir.Index) -> tuple[int, dict[ir.IrValue, int]]:
        """Return a subscript in values that are not affine in others."""
        terms = dict[ir.IrValue, int]()
        return self._add_expanded(index, 1, terms), terms

    def _add_expanded(self, index: ir.Index, step: int, terms: dict[ir.IrValue, int]) -> int:
        """Add the terms of a subscript, times a step, to others; return its constant."""
        const = typical(index.const)
        for value, each in index.terms:
            scale = typical(each)
            base, inner = self._affine.get(value) or self._expand_value(value)
            const += base * scale
            for root, factor in inner.items():
                terms[root] = terms.get(root, 0) + factor * scale * step
        return const

    def _expand_value(self, value: ir.IrValue) -> tuple[int, dict[ir.IrValue, int]]:
        if value not in self._affine:
            self._affine[value] = self._defined(value)
        return self._affine[value]

    def _defined(self, value: ir.IrValue) -> tuple[int, dict[ir.IrValue, int]]:
        if value in self._sizes:
            return self._sizes[value], {}
        match self._definitions.get(value):
            case ir.Constant(value=number):
                return int(number), {}
            case ir.IndexValue(index=index):
                return self._expand(index)
            case ir.Binary(name="add" | "sub" as name, left=left, right=right):
                sign = 1 if name == "add" else -1
                return self._expand(ir.Index(0, ((left, 1),)) + ir.Index(0, ((right, sign),)))
            case ir.Cast(operand=operand) if operand.type == ir.INT64:
                return self._expand_value(operand)
        return 0, {value: 1}

    # How often

    def _sampled_index(self, index: ir.Index) -> Array:
        total = np.full(SAMPLES, float(typical(index.const)))
        for value, scale in index.terms:
            total += typical(scale) * self._sampled(value)
        return total

    def _sampled(self, value: ir.IrValue) -> Array:
        if value not in self._samples:
            with np.errstate(all="ignore"):
                found = np.nan_to_num(np.asarray(self._compute(value), float), posinf=0, neginf=0)
            self._samples[value] = np.broadcast_to(found, SAMPLES)
        return self._samples[value]

    def _compute(self, value: ir.IrValue) -> Any:
        if value in self._sizes:
            return float(self._sizes[value])
        match self._definitions.get(value):
            case ir.Constant(value=number):
                return float(number)
            case ir.IndexValue(index=index):
                return self._sampled_index(index)
            case ir.Binary(name=name, left=left, right=right) if name in _SAMPLED:
                return _SAMPLED[name](self._sampled(left), self._sampled(right))
            case ir.Compare(predicate=name, left=left, right=right):
                return _COMPARED[name](self._sampled(left), self._sampled(right))
            case ir.Select(condition=which, left=left, right=right):
                return np.where(self._sampled(which), self._sampled(left), self._sampled(right))
            case ir.Cast(operand=operand) if operand.type.lanes == 1:
                return np.trunc(self._sampled(operand))
        return _UNKNOWN

    # Where

    def interval(self, value: ir.IrValue, depth: int) -> tuple[int, int]:
        """Return the least and the most that a value is while loops from a depth on turn.

        Loops around them stay at a middle turn.
        """
        key = value, depth
        if key not in self._intervals:
            self._intervals[key] = (0, 0)  # what is carried round and round
            self._intervals[key] = self._bounds(value, depth)
        return self._intervals[key]

    def _bounds(self, value: ir.IrValue, depth: int) -> tuple[int, int]:  # noqa: PLR0911
        if value in self._sizes:
            return (self._sizes[value],) * 2
        match self._definitions.get(value):
            case ir.Constant(value=number):
                return (int(number),) * 2
            case ir.IndexValue(index=index):
                return self._index_interval(index, depth)
            case ir.Loop() as loop if loop.variable is value:
                low, _ = self._index_interval(loop.lower, depth)
                _, high = self._index_interval(loop.upper, depth)
                turns = max(1, -(-(high - low) // loop.step))
                if self._depths[value] >= depth:
                    return low, low + (turns - 1) * loop.step
                middle = low + ((turns - 1) // 2) * loop.step
                return middle, middle
            case ir.Binary(name=name, left=left, right=right) if name in _BOUNDED:
                low, high = _BOUNDED[name](self.interval(left, depth), self.interval(right, depth))
                return low, high
            case ir.Cast(operand=operand) if operand.type.lanes == 1:
                return self.interval(operand, depth)
            case ir.Select(left=left, right=right):
                first, second = self.interval(left, depth), self.interval(right, depth)
                return min(first[0], second[0]), max(first[1], second[1])
            case ir.Compare():
                return 0, 1
            case _:
                return -_FAR, _FAR

    def _index_interval(self, index: ir.Index, depth: int) -> tuple[int, int]:
        const, terms = self._expand(index)
        low = high = const
        for value, scale in terms.items():
            ends = [scale * end for end in self.interval(value, depth)]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def _count(self, value: ir.IrValue, depth: int) -> int:
        """Return how many numbers a value is while loops from a depth on turn."""
        low, high = self.interval(value, depth)
        loop = self._definitions.get(value)
        if isinstance(loop, ir.Loop) and loop.variable is value:
            return (high - low) // loop.step + 1
        return int(max(1, min(high - low + 1, self._dependent_turns(value, depth))))

    def _dependent_turns(self, value: ir.IrValue, depth: int) -> float:
        """Return how many turns those loops have that change a value."""
        turns = 1.0
        for variable in self._dependencies(value):
            if self._depths[variable] >= depth:
                turns *= self._count(variable, depth)
        return turns

    def _dependencies(self, value: ir.IrValue) -> set[ir.IrValue]:
        seen, variables, open_ = set(), set(), [value]
        while open_:
            each = open_.pop()
            if each in seen:
                continue
            seen.add(each)
            definition = self._definitions.get(each)
            if isinstance(definition, ir.Loop):
                variables.add(definition.variable)
            elif definition is not None:
                open_ += ir.operands(definition)
        return variables

    def _alike(self, nest: Nest) -> dict[_Moving, set[tuple[int, int]]]:
        """Return the places of a loop's accesses, by what they have in common."""
        if id(nest) not in self._places:
            found: dict[_Moving, set[tuple[int, int]]] = {}
            for each in nest.accesses:
                moving = each.buffer, each.terms, each.lanes
                found.setdefault(moving, set()).add((each.offset, each.nbytes))
            for child in nest.children:
                for moving, places in self._alike(child).items():
                    found.setdefault(moving, set()).update(places)
            self._places[id(nest)] = found
        return self._places[id(nest)]

    @cached_property
    def _places(self) -> dict[int, dict[_Moving, set[tuple[int, int]]]]:
        return {}

    @cached_property
    def _footprints(self) -> dict[tuple[int, int], dict[ir.Buffer, BufferFootprint]]:
        return {}

    def footprints(self, nest: Nest, depth: int) -> dict[ir.Buffer, BufferFootprint]:
        """Return what a loop touches while it and loops from a depth on turn, by buffer."""
        key = id(nest), depth
        if key not in self._footprints:
            shapes: dict[ir.Buffer, dict[tuple[Any, ...], set[tuple[int, int]]]] = {}
            for (buffer, terms, lanes), own in self._alike(nest).items():
                ranges, base = list(lanes), 0
                named = {value for value, _ in terms}
                for value, scale in terms:
                    # What loops of other terms decide moves with these, and adds no places.
                    others = self._dependencies(value) - {value}
                    deep = {each for each in others if self._depths[each] >= depth}
                    if deep and deep <= named:
                        base += scale * self.interval(value, _FAR)[0]
                        continue
                    count = self._count(value, depth)
                    low, high = self.interval(value, depth)
                    if count > 1:
                        step = scale * max(1, (high - low) // (count - 1))
                        ranges.append((abs(step), count))
                    base += min(scale * low, scale * high)
                places = {(base + offset, nbytes) for offset, nbytes in own}
                shape = tuple(sorted(ranges))
                shapes.setdefault(buffer, {}).setdefault(shape, set()).update(places)
            self._footprints[key] = {
                buffer: _cover(buffer, groups) for buffer, groups in shapes.items()
            }
        return self._footprints[key]


_GOLDEN = (math.sqrt(5) - 1) / 2

_SAMPLED: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "div": lambda a, b: np.trunc(a / b),
    "rem": np.fmod,
    "and": np.logical_and,
    "or": np.logical_or,
}
_COMPARED: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _products(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    every = [x * y for x in a for y in b]
    return min(every), max(every)


def _quotients(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    if b[0] <= 0:
        return a
    return a[0] // b[1], a[1] // b[0]


def _remainders(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    most = b[1] - 1
    if b[0] == b[1] and b[0] > 0 and a[0] // b[0] == a[1] // b[0]:
        return a[0] % b[0], a[1] % b[0]
    return 0, max(0, min(most, a[1]) if a[0] >= 0 else most)


_BOUNDED: dict[str, Any] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _products,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "div": _quotients,
    "rem": _remainders,
}


def _cover(
    buffer: ir.Buffer, groups: dict[tuple[Any, ...], set[tuple[int, int]]]
) -> BufferFootprint:
    """Return how much of a buffer accesses touch, each given as places and the steps from them."""
    total = lines = runs = 0.0
    apart: list[int] = []
    low, high = math.inf, -math.inf
    for ranges, places in groups.items():
        starts = sorted(places)
        merged: list[list[int]] = []
        for start, nbytes in starts:
            if merged and start - merged[-1][1] < LINE:
                merged[-1][1] = max(merged[-1][1], start + nbytes)
            else:
                merged.append([start, start + nbytes])
        count, length = float(len(merged)), sum(end - start for start, end in merged) / len(merged)
        span = merged[-1][1] - merged[0][0] + sum(step * (n - 1) for step, n in ranges)
        low = min(low, merged[0][0])
        high = max(high, merged[0][0] + span)
        is_apart, steps = False, list[int]()
        for step, n in ranges:
            if step <= length + LINE - 1:
                length += step * (n - 1)
            else:
                count *= n
                is_apart |= step % LINE > 0
                steps.append(max(1, step // LINE))
        if steps:  # places of one turn lie between those of the next, as rows of a tile do
            steps += [(two - one) // LINE for (one, _), (two, _) in pairwise(merged)]
            apart += filter(None, dict.fromkeys(steps))
        most = span / LINE + 1
        nbytes = min(count * length, span)
        crossed = (length + LINE - 4) / LINE if is_apart else math.ceil(length / LINE)
        total += nbytes
        lines += min(count * crossed, most)
        runs += max(1.0, min(count, most))
    span_bytes = min(high - low, typical(buffer.span) * buffer.item_bytes)
    most = span_bytes / LINE + 1
    return BufferFootprint(min(total, span_bytes), min(lines, most), min(runs, most), tuple(apart))
