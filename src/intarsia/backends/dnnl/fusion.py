# SPDX-License-Identifier: Apache-2.0
"""From a region to a program: its matches as calls, and the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from intarsia.backends.dnnl.lowering import aligned
from intarsia.backends.dnnl.numbering import Numbering, Substituted
from intarsia.backends.dnnl.patterns import (
    DEQUANTIZE,
    KEPT_INTEGERS,
    PRIMITIVES,
    SHUFFLE,
    SLICE,
    ChannelFactor,
    DraftedCall,
    DraftedPosts,
)
from intarsia.backends.dnnl.program import (
    Origin,
    Post,
    PrimitiveCall,
    PrimitiveProgram,
    ProgramTensor,
)
from intarsia.backends.dnnl.rows import slices_of
from intarsia.backends.dnnl.table import entry_of, find_alone
from intarsia.backends.dnnl.words import BinaryAlgorithm
from intarsia.backends.values import FusedGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.errors import InternalError
from intarsia.graph.pattern import Match, match_region

if TYPE_CHECKING:
    from intarsia.backends.dnnl.numbering import Derived
    from intarsia.graph.region import Region


def make_program(
    region: Region, precision: str, fpmath: str, num_threads: int
) -> tuple[PrimitiveProgram, Sequence[int | Derived]]:
    """Return the program of a region whose nodes the table takes, and its constants.

    Args:
        region: What is lowered.
        precision: As in `PrimitiveProgram`.
        fpmath: Likewise.
        num_threads: Likewise.
    """
    graph, ids = region.graph, Numbering(region)
    lowered = _lower(region, ids)
    taken = {node for match, _ in lowered for node in match.members}
    for node_id in region.nodes:
        if node_id not in taken:
            node = graph.nodes[node_id]
            problem = find_alone(graph, node)
            reason = problem[1] if problem else "no pattern matches it"
            raise InternalError(f"{node.op_type} is not taken: {reason}", node=node.name)
    program = PrimitiveProgram(
        tensors=tuple(ids.tensors),
        calls=tuple(_with_bias(call, ids.tensors) for _, calls in lowered for call in calls),
        outputs=tuple(ids(value) for value in region.outputs),
        precision=precision,
        fpmath=fpmath,
        num_threads=num_threads,
    )
    return program, ids.constants


def _lower(region: Region, ids: Numbering) -> list[tuple[Match, list[PrimitiveCall]]]:
    """Return the matches in a region with the calls that compute them, in the order of running.

    A DequantizeLinear of which only the integers are read has none.
    """
    lowered = []
    for match in match_region(region, PRIMITIVES):
        is_needed = match.pattern.name != DEQUANTIZE or (
            match.result in ids.ids or match.result in region.outputs
        )
        lowered.append((match, _calls(match, ids) if is_needed else []))
    return sorted(lowered, key=lambda pair: pair[0].members[-1])


def _calls(match: Match, ids: Numbering) -> list[PrimitiveCall]:
    """Return the calls that compute a match: one, or several for a Split."""
    head = Operation(match.graph, match.nodes[-1])
    if match.pattern.name == SLICE:
        parts = slices_of(head, ids)
        assert isinstance(parts, list)
        return parts
    if isinstance(match.meaning, Post):
        post, inputs = match.meaning, (ids(match.source),)
        numbers = {"alpha": post.alpha, "beta": post.beta}
        call = PrimitiveCall("eltwise", inputs, -1, post.algorithm, numbers=numbers)
    elif match.pattern is SHUFFLE:
        call = PrimitiveCall(
            "shuffle", (ids(head.inputs[0].id),), -1, lists={"group_size": (match.meaning,)}
        )
    else:
        call = _head_call(match, head, ids)
    call = _with_factors(call, head, match, ids)
    posts = list(call.posts)
    for follower in match.followers:
        meaning = follower.meaning
        if isinstance(meaning, Post):
            posts.append(meaning)
        elif isinstance(meaning, DraftedPosts):
            posts += meaning.number(ids)
    names = [
        node.name
        for part in (match, *match.followers)
        for node in sorted(part.nodes, key=lambda node: node.id)
    ]
    return [
        msgspec.structs.replace(
            call, output=ids(match.result), posts=tuple(posts), nodes=tuple(names)
        )
    ]


def _head_call(match: Match, head: Operation, ids: Numbering) -> PrimitiveCall:
    """Return the call of a row's operator."""
    if isinstance(match.meaning, DraftedCall):
        return match.meaning.number(ids)
    row = entry_of(head.node)
    assert row is not None
    if match.pattern is KEPT_INTEGERS:
        instead = {floats: ids(integers) for floats, integers in match.meaning.items()}
        call = row.lower(head, Substituted(ids, instead))
    else:
        call = row.call(head, match.region, ids)
    if not isinstance(call, PrimitiveCall):
        raise InternalError(f"{head.op_type} is not taken: {call[1]}", node=head.node.name)
    return call


def _with_factors(
    call: PrimitiveCall, head: Operation, match: Match, ids: Numbering
) -> PrimitiveCall:
    """Return a batch normalisation with products and sums per channel behind it folded in."""
    meanings = (follower.meaning for follower in match.followers)
    factors = [meaning for meaning in meanings if isinstance(meaning, ChannelFactor)]
    if not factors:
        return call
    scale, shift = (head.array(position).astype(np.float64) for position in (1, 2))
    for factor in factors:
        if factor.is_product:
            scale, shift = scale * factor.numbers, shift * factor.numbers
        else:
            shift = shift + factor.numbers
    source, _, _, *rest = call.inputs
    dtype = head.array(1).dtype
    constants = (
        ids.constant(f"{head.node.name}/{name}", array.astype(dtype))
        for name, array in (("scale", scale), ("shift", shift))
    )
    return msgspec.structs.replace(call, inputs=(source, *constants, *rest))


def _with_bias(call: PrimitiveCall, tensors: list[ProgramTensor]) -> PrimitiveCall:
    """Return a matrix product with an addition of a constant row as its bias."""
    if call.kind != "matmul" or len(call.inputs) != 2 or not call.posts:  # noqa: PLR2004
        return call
    post = call.posts[0]
    shape = call.lists.get("shape") or tensors[call.output].shape
    row = aligned((shape[-1],), len(shape))
    if post.algorithm != BinaryAlgorithm.ADD or post.shape != row:
        return call
    if tensors[post.operand].origin is not Origin.CONSTANT:
        return call
    return msgspec.structs.replace(
        call,
        inputs=(*call.inputs, post.operand),
        lists={**call.lists, "shape2": row},
        posts=call.posts[1:],
    )


def fused_groups(region: Region) -> tuple[FusedGroup, ...]:
    """Return the nodes of every primitive that computes two or more.

    A DequantizeLinear of which only one primitive reads, and only the integers, is a part of that.

    Args:
        region: Nodes that the table takes.
    """
    groups = {}
    owner: dict[int, Match] = {}
    skipped: list[int] = []
    for match, calls in _lower(region, Numbering(region)):
        if not calls:
            skipped += match.members
            continue
        groups[match] = (calls[0].kind, set(match.members))
        owner.update(dict.fromkeys(match.members, match))
    for node in skipped:
        readers = {owner.get(after) for after in region.graph.successors[node]}
        reader = readers.pop() if len(readers) == 1 else None
        if reader is not None:
            groups[reader][1].add(node)
    return tuple(
        FusedGroup(tuple(sorted(nodes)), kind) for kind, nodes in groups.values() if len(nodes) > 1
    )
