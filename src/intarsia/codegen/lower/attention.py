# SPDX-License-Identifier: Apache-2.0
"""Attention as one kernel: its operands as views over one batch, its result where it is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, TypeAlias

from intarsia.codegen.ir import TILE_ROWS
from intarsia.codegen.kernels.attention import (
    Attention,
    AttentionOfParts,
    EmptyRow,
    Mask,
    MaskKind,
    is_cut,
    parts_shape,
    schedule,
    ways,
)
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.grid import shared_attention
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.views import View
from intarsia.extents import Size, divide, typical
from intarsia.graph.ops import ViewKind, operator_of

Lead: TypeAlias = "tuple[Size, ...]"
"""The extents in front of the last two: items of a batch, heads."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """A stack of matrices as attention reads it: a value, seen through views of it.

    Attributes:
        value: The id of the value.
        is_turned: Whether rows are its last dimension, and columns the one before.
        repeated: The extents in front, ones put in, and what they are broadcast to; None for as
            they are.
        lead: The extents in front at last; of the same product.
        over: Those of the operator that reads it, to which they are broadcast.
    """

    value: int
    is_turned: bool
    repeated: tuple[Lead, Lead] | None
    lead: Lead
    over: Lead


@dataclass(frozen=True, slots=True)
class ScoreMask:
    """What is done to scores, by a value that is broadcast to them.

    Attributes:
        value: The id of the mask.
        kind: What it does.
        over: The extents in front of the scores' last two.
        fill: See `Mask`.
    """

    value: int
    kind: MaskKind
    over: Lead
    fill: float = -math.inf


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """Attention over values of a graph.

    Attributes:
        q: Queries, (*, queries, size).
        k: Keys, (*, keys, size).
        v: Values, (*, keys, size of a value).
        result: The id of what is made, (*, queries, size of a value).
        sizes: Queries, keys, size of a key, size of a value.
        batch: A refinement of all extents in front.
        scale: Factor of the scores.
        cap: See `Attention`.
        masks: Applied in order.
        last: See `Attention`.
        first: See `Attention`.
        empty: What becomes of queries that see nothing.
    """

    q: Matrices
    k: Matrices
    v: Matrices
    result: int
    sizes: tuple[int, int, int, int]
    batch: Lead
    scale: float = 1.0
    cap: float = 0.0
    masks: tuple[ScoreMask, ...] = ()
    last: int | None = None
    first: int | None = None
    empty: EmptyRow = EmptyRow.NAN

    @property
    def inputs(self) -> tuple[int, ...]:
        """The ids of what it reads."""
        return (self.q.value, self.k.value, self.v.value, *(mask.value for mask in self.masks))


_LEAST_OF_TILES = 64
"""Queries and keys of attention by tiles: of fewer, copies to tiles are too large a part."""

PROBLEM = "problem"
"""The attribute of an operation that several nodes spell: its `AttentionProblem`."""


def refine(leads: Sequence[Lead]) -> Lead | None:
    """Return the extents of which all others are products of neighbours; None if there are none.

    Args:
        leads: Extents of the same number of items each.
    """
    steps: set[Size] = {1}
    for lead in leads:
        steps.update(accumulate(reversed(lead), mul))
    parts: list[Size] = [
        divide(outer, inner) for inner, outer in pairwise(sorted(steps, key=typical))
    ]
    return None if None in parts else tuple(parts)[::-1]


def with_lead(view: View, lead: Lead) -> View:
    """Return a plain tensor with its extents in front of the last two cut up; ones come and go."""
    extents, strides = list(view.shape[:-2]), list(view.strides[:-2])
    steps: list[Size] = []
    part: Size = 1  # what is left of the extent at hand
    step: Size = 0  # the stride of what comes next
    for extent in reversed(lead):
        while part == 1 and extents and extent != 1:
            part, step = extents.pop(), strides.pop()
        rest = divide(part, extent)
        assert rest is not None, f"{lead} does not refine {view.shape[:-2]}"
        steps.append(step if extent != 1 else 0)
        part = rest
        step *= extent
    assert part == 1, f"{lead} does not refine {view.shape[:-2]}"
    return replace(
        view,
        shape=(*lead, *view.shape[-2:]),
        strides=(*reversed(steps), *view.strides[-2:]),
    )


@dataclass(frozen=True, slots=True)
class Heads:
    """The tensors of attention, the extents of a batch in front of the last two of each.

    Attributes:
        q: (*batch, queries, size).
        k: (*batch, keys, size).
        v: (*batch, keys, size of a value).
        y: (*batch, queries, size of a value).
        masks: Each with what it does and its fill, over (*batch, queries, keys).
        lengths: Over batch; see `Attention`.
    """

    q: View
    k: View
    v: View
    y: View
    masks: tuple[tuple[View, MaskKind, float], ...] = ()
    lengths: View | None = None


def append_attention(
    assembler: Assembler, heads: Heads, names: Sequence[str], **options: Any
) -> None:
    """Append the kernel of attention.

    Args:
        assembler: Of the program.
        heads: Its tensors.
        names: Of the nodes that it computes.
        options: Further fields of `Attention`.
    """
    *batch, queries, key_size = heads.q.shape
    keys, value_size = heads.v.shape[-2:]
    lengths = heads.lengths
    spec = Attention(
        queries,
        keys,
        key_size,
        value_size,
        heads.q.layout,
        heads.k.layout,
        heads.v.layout,
        heads.y.layout,
        batch=tuple(batch),
        masks=tuple(Mask(view.layout, kind, fill) for view, kind, fill in heads.masks),
        lengths=lengths.layout if lengths else None,
        unit=assembler.unit,
        **options,
    )
    views = [heads.q, heads.k, heads.v, heads.y, *(mask[0] for mask in heads.masks)]
    views += [lengths] if lengths else []
    shared = shared_attention(assembler, spec)
    if shared is not None:
        assembler.call(shared, views, names, "attention")
        return
    if _takes_tiles(assembler, spec, names[0]):
        spec = replace(spec, is_tiled=True)
    for way in ways(spec):
        if not is_cut(way):
            is_tiled = way.is_tiled and not schedule(way).is_by_keys
            note = "attention by bfloat16 tiles" if is_tiled else "attention"
            assembler.call(way, views, names, note)
            continue
        parts = assembler.scratch("float32", parts_shape(way))
        assembler.call(way, [*views, parts], names, "attention of parts of the keys")
        assembler.call(AttentionOfParts(way), [parts, heads.y], names, "parts of the keys")


def _takes_tiles(assembler: Assembler, spec: Attention, name: str) -> bool:
    """Tell whether products of attention are of tiles, as the program for all sizes says.

    Args:
        assembler: Of the program.
        spec: What is computed.
        name: Of the node that it is for.
    """
    unit = spec.unit
    if not assembler.is_bf16 or not unit.has_bf16_tiles or unit.lanes() != TILE_ROWS:
        return False

    def own() -> str:
        few = min(typical(spec.queries), typical(spec.keys)) < _LEAST_OF_TILES
        return "vectors" if few else "tiles"

    return (assembler.settle(f"attention of {name!r}", own) or own()) == "tiles"


def lower_problem(assembler: Assembler, group: KernelGroup) -> None:
    """Append the kernel of attention that several nodes spell."""
    problem: AttentionProblem = group.anchor.meant[PROBLEM]
    queries, keys, *_ = problem.sizes
    batch = problem.batch
    masks = []
    for mask in problem.masks:
        view = assembler.read(mask.value).expanded((*mask.over, queries, keys))
        masks.append((with_lead(view, batch), mask.kind, mask.fill))
    q, k, v = (_read(assembler, item, batch) for item in (problem.q, problem.k, problem.v))
    heads = Heads(
        q,
        k,
        v,
        with_lead(place_of(assembler, problem.result), batch),
        tuple(masks),
    )
    append_attention(
        assembler,
        heads,
        group.names,
        scale=problem.scale,
        cap=problem.cap,
        last=problem.last,
        first=problem.first,
        empty=problem.empty,
    )


def _read(assembler: Assembler, matrices: Matrices, batch: Lead) -> View:
    """Return a stack of matrices over a batch."""
    view = assembler.read(matrices.value)
    if matrices.is_turned:
        rank = len(view.shape)
        view = view.permuted((*range(rank - 2), rank - 1, rank - 2))
    if matrices.repeated is not None:
        ones, repeated = matrices.repeated
        view = with_lead(view, ones).expanded((*repeated, *view.shape[-2:]))
    if math.prod(matrices.lead) != math.prod(matrices.over):
        view = with_lead(view, matrices.lead).expanded((*matrices.over, *view.shape[-2:]))
    return with_lead(view, batch)


def place_of(assembler: Assembler, value_id: int) -> View:
    """Return where a value is to be written: where views of it lie best, if they alone read it.

    The result of a transposition is dense then, and what is an output in the end lies there.
    """
    graph, region = assembler.graph, assembler.region
    value = graph.values[value_id]
    consumers = value.consumers
    if len(consumers) == 1 and consumers[0] in region and value_id not in region.outputs:
        node = graph.nodes[consumers[0]]
        seen: View | None = None
        if node.op_type == "Transpose" and not node.domain:
            place = place_of(assembler, node.outputs[0])
            rank = len(place.shape)
            order = Operation(graph, node).attribute("perm", tuple(reversed(range(rank))))
            seen = None if place.block else place.permuted([order.index(i) for i in range(rank)])
        elif operator_of(node).view is ViewKind.RESHAPED and node.inputs[0] == value_id:
            seen = place_of(assembler, node.outputs[0]).viewed_as(value.shape or ())
        if seen is not None:
            assembler.alias(value_id, seen)
            return seen
    return assembler.target(value_id)
