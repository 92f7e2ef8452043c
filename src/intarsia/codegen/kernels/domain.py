# SPDX-License-Identifier: Apache-2.0
"""Boxes that kernels run over: simplified, cut into turns of a parallel loop, walked by loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TypeAlias

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Index, IrValue
from intarsia.extents import Expression, Size, typical

Strides: TypeAlias = tuple[Size, ...]
Entries: TypeAlias = "range | Expression"
"""The entries of a dimension; of a free one all, from 0 to an extent."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """Two dimensions that together count one, whose last turn of the outer one is cut short.

    This is how the channels of a blocked layout are a box although they are not a multiple of the
    block: the entries `outer * extent(inner) + inner >= count` do not take part.

    Attributes:
        outer: The dimension of blocks.
        inner: The dimension inside a block.
        count: Entries of both together.
    """

    outer: int
    inner: int
    count: int


@dataclass(frozen=True, slots=True)
class Domain:
    """A box and the strides of every tensor over it, without needless dimensions.

    Attributes:
        extents: At least one.
        strides: For each tensor, for each dimension.
        ragged: In the numbers of these dimensions.
        merged: For each dimension, those that it is made of, outermost first.
    """

    extents: tuple[Size, ...]
    strides: tuple[Strides, ...]
    ragged: Ragged | None = None
    merged: tuple[tuple[int, ...], ...] = ()


def entries_of(extent: Size) -> Entries:
    """Return all entries of a dimension."""
    return extent if isinstance(extent, Expression) else range(extent)


def length_of(entries: Entries) -> Size:
    """Return how many entries there are."""
    return entries if isinstance(entries, Expression) else len(entries)


def simplify(
    extents: Sequence[Size],
    strides: Sequence[Strides],
    order: Sequence[int],
    ragged: Ragged | None = None,
) -> Domain:
    """Return the same box with fewer dimensions.

    Dimensions of extent 1 go, and neighbours become one where every tensor allows it.

    Args:
        extents: Of the box.
        strides: For each tensor, for each dimension.
        order: The dimensions, outermost first.
        ragged: Two dimensions that stay as they are.
    """
    fixed = (ragged.outer, ragged.inner) if ragged else ()
    # Its dimensions, extent, strides by tensor.
    groups: list[tuple[tuple[int, ...], Size, Strides]] = []
    for dim in order:
        if extents[dim] == 1 and dim not in fixed:
            continue
        steps = tuple(stride[dim] for stride in strides)
        if groups and dim not in fixed and groups[-1][0][-1] not in fixed:
            members, outer, outer_steps = groups[-1]
            # Neighbours count as one dimension if every tensor goes on from one to the next,
            # broadcast ones (strides 0) included.
            whole = tuple(step * extents[dim] for step in steps)
            if outer_steps == whole:
                groups[-1] = ((*members, dim), outer * extents[dim], steps)
                continue
        groups.append(((dim,), extents[dim], steps))
    if not groups:
        groups.append(((), 1, tuple(0 for _ in strides)))
    numbers = {dims[-1]: number for number, (dims, _, _) in enumerate(groups) if dims}
    return Domain(
        tuple(extent for _, extent, _ in groups),
        tuple(tuple(group[2][number] for group in groups) for number in range(len(strides))),
        Ragged(numbers[ragged.outer], numbers[ragged.inner], ragged.count) if ragged else None,
        tuple(dims for dims, _, _ in groups),
    )


@dataclass(frozen=True, slots=True)
class SumOrder:
    """In which order a kernel combines entries along several dimensions, whatever their extents.

    Attributes:
        is_across: Whether vectors go along a dimension that stays, rather than along one that goes.
        loops: The dimensions that go, as loops, outermost first; those of one count as one.
    """

    is_across: bool
    loops: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        """Write it as `parse` reads it."""
        loops = ";".join(",".join(map(str, dims)) for dims in self.loops)
        return f"{'across' if self.is_across else 'along'}:{loops}"

    @classmethod
    def parse(cls, text: str) -> SumOrder:
        """Read what `str` wrote."""
        way, loops = text.split(":")
        dims = (tuple(int(dim) for dim in loop.split(",") if dim) for loop in loops.split(";"))
        return cls(way == "across", tuple(dims))

    def arrange(self, extents: Sequence[Size], strides: Sequence[Strides]) -> Domain | None:
        """Return the dimensions that go as these loops; None if tensors do not lie so.

        Args:
            extents: Of these dimensions.
            strides: For each tensor, for each of them.
        """
        inside = {dim for loop in self.loops for dim in loop}
        if any(extent != 1 for dim, extent in enumerate(extents) if dim not in inside):
            return None
        if any(dim >= len(extents) for dim in inside):
            return None
        for loop in self.loops:
            wide = [dim for dim in loop if extents[dim] != 1]
            for outer, inner in pairwise(wide):
                if any(steps[outer] != steps[inner] * extents[inner] for steps in strides):
                    return None
        last = [next((d for d in reversed(loop) if extents[d] != 1), -1) for loop in self.loops]
        return Domain(
            tuple(prod([extents[dim] for dim in loop]) for loop in self.loops),
            tuple(tuple(0 if dim < 0 else steps[dim] for dim in last) for steps in strides),
            merged=self.loops,
        )


def boxes(domain: Domain) -> list[tuple[Entries, ...]]:
    """Return the boxes without ragged borders that make up a domain."""
    whole = [entries_of(extent) for extent in domain.extents]
    if domain.ragged is None:
        return [tuple(whole)]
    outer, inner = domain.ragged.outer, domain.ragged.inner
    full, rest = divmod(domain.ragged.count, domain.extents[inner])
    parts = []
    if full:
        parts.append(tuple(range(full) if dim == outer else r for dim, r in enumerate(whole)))
    if rest:
        cut = {outer: range(full, full + 1), inner: range(rest)}
        parts.append(tuple(cut.get(dim, r) for dim, r in enumerate(whole)))
    return parts


@dataclass(frozen=True, slots=True)
class Axis:
    """How one dimension of a box is walked.

    Attributes:
        dim: Its number.
        span: The entries, from 0 on if there are free ones.
        grain: Entries that one cell takes at once; the last cell takes the rest.
        block: Entries in one turn of the parallel loop, a multiple of the grain.
    """

    dim: int
    span: Entries
    grain: int
    block: int

    @property
    def length(self) -> Size:
        """How many entries there are."""
        return length_of(self.span)

    @property
    def start(self) -> int:
        """The first entry."""
        return 0 if isinstance(self.span, Expression) else self.span.start

    @property
    def blocks(self) -> Size:
        """Turns of the parallel loop along this dimension."""
        return -(-self.length // self.block)

    @property
    def is_one_block(self) -> bool:
        """Whether one turn does all of it; of free entries one never does for certain."""
        return bool(self.blocks == 1)


def plan_axes(
    span: Sequence[Entries],
    order: Sequence[int],
    grains: dict[int, int],
    budget: int,
    limits: dict[int, int] | None = None,
) -> list[Axis]:
    """Return how to walk a box, outermost dimension first.

    Args:
        span: The entries of each dimension.
        order: The dimensions, outermost first.
        grains: Entries of a cell along each dimension; 1 for those that are not named.
        budget: About how many entries one turn of the parallel loop takes.
        limits: The longest blocks along some dimensions.
    """
    axes = []
    inner = 1
    for dim in reversed(order):
        grain, length = grains.get(dim, 1), typical(length_of(span[dim]))
        limit = max(1, budget // inner)
        if limits and dim in limits:
            limit = min(limit, limits[dim])
        cells = -(-length // grain)
        # First how many turns, then even blocks: a last turn that is nearly empty would idle
        # threads.
        turns = -(-cells // max(1, limit // grain))
        block = -(-cells // max(1, turns)) * grain
        if isinstance(span[dim], Expression):  # turns stay short, however many entries there are
            block = max(1, limit // grain) * grain
        axes.append(Axis(dim, span[dim], grain, max(block, grain)))
        inner *= min(block, length)
    return axes[::-1]


def each_turn(builder: Builder, shape: Sequence[Size], entries: Size = 1) -> Iterator[list[Index]]:
    """Open the parallel loop over a row-major box, unless there is nothing to do; gives subscripts.

    Args:
        builder: Of the kernel.
        shape: Of the box; subscripts along what is of extent 1 are the constant 0.
        entries: That are computed; 0 for a kernel without turns.
    """
    turns = prod(shape) if entries else 0
    with builder.parallel(turns) as turn:
        if turns:
            wide = [extent for extent in shape if extent != 1]
            at = iter(builder.unravel(turn, wide) if wide else ())
            yield [Index() if extent == 1 else next(at) for extent in shape]


def turns(axes: Sequence[Axis]) -> Size:
    """Return how many turns of a parallel loop walk a box."""
    return prod([axis.blocks for axis in axes])


Cell: TypeAlias = Callable[[dict[int, Index], dict[int, int]], None]
"""From the first entry of a cell and its extents, by dimension, to its operations."""


def walk(
    builder: Builder,
    axes: Sequence[Axis],
    turn: Index,
    cell: Cell,
    enter: Callable[[int, dict[int, Index]], None] | None = None,
) -> None:
    """Append the loops of one turn of the parallel loop.

    Args:
        builder: Of the kernel.
        axes: Of the box, outermost first.
        turn: Which one.
        cell: What is done for each cell.
        enter: Called before the loop of each axis, with its number and the entries known there.
    """
    places = builder.unravel(turn, [axis.blocks for axis in axes])

    def descend(number: int, at: dict[int, Index], counts: dict[int, int]) -> None:
        if number == len(axes):
            cell(at, counts)
            return
        if enter is not None:
            enter(number, at)
        axis = axes[number]
        whole = axis.length // axis.grain * axis.grain
        start = Index() if axis.is_one_block else places[number] * axis.block
        if whole != 0:
            stop = Index(whole)
            if not axis.is_one_block:
                stop = builder.smaller(start + axis.block, whole)
            if axis.block == axis.grain and (axis.is_one_block or whole == axis.length):
                inside = start + axis.start
                descend(number + 1, {**at, axis.dim: inside}, {**counts, axis.dim: axis.grain})
            else:
                with builder.serial(start, stop, axis.grain) as entry:
                    inside = entry + axis.start
                    descend(number + 1, {**at, axis.dim: inside}, {**counts, axis.dim: axis.grain})
        rest = axis.length - whole
        if isinstance(rest, Expression):  # one by one
            with (
                _only_last(builder, places[number], axis.blocks),
                builder.serial(whole, axis.length) as entry,
            ):
                descend(number + 1, {**at, axis.dim: entry}, {**counts, axis.dim: 1})
        elif rest:
            following = {**at, axis.dim: Index(axis.start + whole)}
            with _only_last(builder, places[number], axis.blocks):
                descend(number + 1, following, {**counts, axis.dim: rest})

    descend(0, {}, {})


def _only_last(builder: Builder, place: Index, blocks: Size) -> AbstractContextManager[None]:
    """Open a block that runs in the last turn along an axis."""
    if blocks == 1:
        return nullcontext()
    last: IrValue = builder.compare("eq", builder.index(place), blocks - 1)
    return builder.where(last)
