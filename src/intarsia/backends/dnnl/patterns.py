# SPDX-License-Identifier: Apache-2.0
"""The patterns of what runs as one primitive: rows of the table with what may follow them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import prod

import msgspec
import numpy as np

from intarsia.arrays import Array
from intarsia.backends.dnnl.chains import CHAINS, GATE
from intarsia.backends.dnnl.lowering import aligned
from intarsia.backends.dnnl.numbering import Numbering, OpenNumbering
from intarsia.backends.dnnl.pointwise import BINARY, UNARY, post_of
from intarsia.backends.dnnl.program import Post, PrimitiveCall
from intarsia.backends.dnnl.quantised import quantising_post, rounding_posts
from intarsia.backends.dnnl.rows import refuse_part, shuffle_groups
from intarsia.backends.dnnl.table import BYTES, FLOATS, TABLE, Follow, PrimitiveRow, entry_of
from intarsia.backends.dnnl.words import BinaryAlgorithm, Eltwise
from intarsia.backends.scaled_integers import ScaledIntegers, integers_of, read_linear
from intarsia.codegen.lower.operation import Operation
from intarsia.graph.graph import Value
from intarsia.graph.ops import operator_of
from intarsia.graph.pattern import ANY, CONSTANT, SOURCE, Match, Op, Pattern, Tier


@dataclass(frozen=True, eq=False)
class DraftedCall:
    """The meaning of a match that others may follow: the call of its head.

    Attributes:
        call: Its tensors are those of the draft.
        draft: What stands for them.
    """

    call: PrimitiveCall
    draft: OpenNumbering

    def number(self, ids: Numbering) -> PrimitiveCall:
        """Return the call with the tensors of a program."""
        return self.call.of_tensors(self.draft.number(ids))


@dataclass(frozen=True, eq=False)
class DraftedPosts:
    """The meaning of most followers: what is done to a result.

    Attributes:
        posts: Their operands are those of the draft.
        draft: What stands for them.
    """

    posts: tuple[Post, ...]
    draft: OpenNumbering = field(default_factory=OpenNumbering)

    def number(self, ids: Numbering) -> tuple[Post, ...]:
        """Return the posts with the tensors of a program."""
        tensors = self.draft.number(ids)
        return tuple(post.of_tensors(tensors) for post in self.posts)


def _function(match: Match) -> Post | None:
    """Return what one operation with one operand does to a result."""
    post = post_of(Operation(match.graph, match.nodes[0]), match.source, OpenNumbering())
    return post if post is not None and post.operand < 0 else None


def _elementwise(match: Match) -> Post | DraftedPosts | None:
    """Return what one operation does to a result, with another operand or without."""
    draft = OpenNumbering()
    post = post_of(Operation(match.graph, match.nodes[0]), match.source, draft)
    if post is None or post.operand < 0:
        return post
    shape = _flattened(post.shape, _call_before(match))
    if shape is None:
        return None
    return DraftedPosts((msgspec.structs.replace(post, shape=shape),), draft)


def _flattened(shape: tuple[int, ...], call: PrimitiveCall) -> tuple[int, ...] | None:
    """Return an operand's shape as a call with flattened rows sees it; None if that is not one."""
    seen = call.lists.get("shape")
    if seen is None or len(seen) >= len(shape):
        return shape
    leading = prod(shape[:-1])
    # Rows were flattened into one dimension; an operand that repeats within them has no such shape.
    return (leading, shape[-1]) if leading in (1, seen[0]) else None


def _call_before(match: Match) -> PrimitiveCall:
    """Return the call of the head that a follower follows."""
    assert match.follows is not None
    drafted = match.follows.meaning
    assert isinstance(drafted, DraftedCall)
    return drafted.call


def _cast(match: Match) -> DraftedPosts | None:
    """Return nothing to be done: the primitive writes int32 sums as float32 itself."""
    is_float = Operation(match.graph, match.nodes[0]).output.dtype == "float32"
    return DraftedPosts(()) if is_float else None


def _quantised(match: Match) -> Post | None:
    """Return a conversion to integers of what is of integers, or of a sum of two tensors."""
    call = _call_before(match)
    is_taken = bool(call.scalings) or call.kind == "binary"  # with a number it is a function
    return quantising_post(Operation(match.graph, match.nodes[0])) if is_taken else None


def _residual(match: Match) -> DraftedPosts | None:
    """Return a sum of a result that was rounded to integers and other integers, or None.

    Nothing is written between: the result is rounded as if it were, and the sum is made in
    units of the other's scale.
    """
    total, floats, quantize = (Operation(match.graph, node) for node in match.nodes)
    written, read = read_linear(quantize), read_linear(floats)
    operand = _other(total, floats)
    other = operand and integers_of(operand, match.region)
    if not (isinstance(written, ScaledIntegers) and isinstance(read, ScaledIntegers) and other):
        return None
    is_plain = written.axis is None and other.axis is None and _call_before(match).scalings
    if not is_plain or not written.is_same(read):
        return None
    if other.value.shape != written.value.shape or other.value.dtype not in BYTES:
        return None
    unit, draft = float(other.scale[0]), OpenNumbering()
    addend = Post(BinaryAlgorithm.ADD, operand=draft(other.value.id), shape=total.output_shape)
    back = Post(Eltwise.LINEAR, unit, -unit * other.zero)
    return DraftedPosts((*rounding_posts(written, unit), addend, back), draft)


def _other(total: Operation, floats: Operation) -> Value | None:
    """Return the operand of a sum that is not a given result, or None if there is no other."""
    result = floats.node.outputs[0]
    others = [value for value in total.inputs if value.id != result]
    return others[0] if len(others) == 1 == len(total.inputs) - 1 else None


@dataclass(frozen=True, eq=False)
class ChannelFactor:
    """A product or sum with a number for each channel.

    Attributes:
        numbers: `f64[channels]`, or one number for all.
        is_product: Whether it is a product.
    """

    numbers: Array
    is_product: bool


def _channel_factor(match: Match) -> ChannelFactor | None:
    """Return what is folded into a normalisation: its scale and shift then are others."""
    before = match.follows
    assert before is not None
    head = Operation(match.graph, before.nodes[0])
    is_first = all(follower.pattern is _FACTOR for follower in before.followers)
    if not (is_first and head.is_constant(1) and head.is_constant(2)):
        return None
    operation = Operation(match.graph, match.nodes[0])
    position = 1 - operation.node.inputs.index(match.source)
    shape = operation.shape(position)
    rank = len(operation.output_shape)
    if len(shape) > rank:
        return None
    if any(extent != 1 for dim, extent in enumerate(aligned(shape, rank)) if dim != 1):
        return None
    numbers = operation.array(position).reshape(-1).astype(np.float64)
    return ChannelFactor(numbers, operation.op_type == "Mul")


_FACTOR = Pattern("factor", Op(("Add", "Mul"), SOURCE, CONSTANT), _channel_factor)
_FUNCTIONS, _ELEMENTWISE = (
    tuple(
        Pattern("elementwise", shape, predicate)
        for shape in (Op((*UNARY, *BINARY), SOURCE), Op(BINARY, ANY, SOURCE))
    )
    for predicate in (_function, _elementwise)
)
_CAST = Pattern("cast", Op("Cast", SOURCE), _cast)
_RESIDUAL = Pattern(
    "residual",
    Op(("Add", "Sum"), Op("DequantizeLinear", Op("QuantizeLinear", SOURCE)), ANY),
    _residual,
)
_QUANTIZE = Pattern("quantize", Op("QuantizeLinear", SOURCE), _quantised)


def _followers(row: PrimitiveRow) -> tuple[Pattern, ...]:
    """Return what may follow a primitive."""
    followers: list[Pattern] = []
    if "BatchNormalization" in row.types:
        followers.append(_FACTOR)
    if Follow.ELTWISE in row.takes:
        followers += [GATE, *CHAINS]
        followers += _ELEMENTWISE if Follow.BINARY in row.takes else _FUNCTIONS
    if Follow.CAST in row.takes:
        followers.append(_CAST)
    if Follow.QUANTIZE in row.takes:
        followers += [_RESIDUAL, _QUANTIZE] if row.is_heavy else [_QUANTIZE]
    return tuple(followers)


def _lowered(row: PrimitiveRow, match: Match) -> DraftedCall | str:
    draft = OpenNumbering()
    call = row.call(Operation(match.graph, match.nodes[0]), match.region, draft)
    return DraftedCall(call, draft) if isinstance(call, PrimitiveCall) else call[1]


def _pattern_of(row: PrimitiveRow) -> Pattern:
    followers = _followers(row)
    return Pattern(
        row.name, Op(row.types), partial(_lowered, row) if followers else None, followers
    )


def _kept_integers(match: Match) -> dict[int, int] | None:
    """Return the integers that stand for floats, by these, of what moves both alike.

    All operands are dequantised, and the result is quantised, with the same numbers.
    """
    follower, head = (Operation(match.graph, node) for node in match.nodes)
    row, written = entry_of(head.node), read_linear(follower)
    assert row is not None
    if not operator_of(head.node).keeps_scale:
        return None
    if not isinstance(written, ScaledIntegers) or written.axis is not None:
        return None
    operands = head.inputs[: row.data]
    parts = [integers_of(value, match.region) for value in operands]
    if not all(part is not None and part.is_same(written) for part in parts):
        return None
    integers = {
        value.id: part.value.id for value, part in zip(operands, parts, strict=True) if part
    }
    return {**integers, head.output.id: follower.output.id}


SHUFFLE = Pattern("channel shuffle", Op("Reshape", Op("Transpose", Op("Reshape"))), shuffle_groups)
SLICE = "slice"
_MOVED = [row.types for row in TABLE if row.dtypes == FLOATS | BYTES and row.name != SLICE]
KEPT_INTEGERS = Pattern(
    "kept integers", Op("QuantizeLinear", Op(tuple(chain(*_MOVED)))), _kept_integers
)
DEQUANTIZE = "dequantize"

OPERATORS = tuple(Pattern(row.name, Op(row.types)) for row in TABLE)
"""A pattern for each row: whatever else it is a part of, an operator is placed for its own."""

_ROWS = {row.name: _pattern_of(row) for row in TABLE if row.lower is not refuse_part}
_HEAVY = tuple(_ROWS[row.name] for row in TABLE if row.is_heavy)
_LIGHT = tuple(
    pattern for name, pattern in _ROWS.items() if pattern not in _HEAVY and name != DEQUANTIZE
)

PRIMITIVES: tuple[Tier | Pattern, ...] = (
    # of two convolutions whose results are added, the later one takes the sum
    Tier(_HEAVY, is_reversed=True),
    Tier((SHUFFLE, *CHAINS, KEPT_INTEGERS, *_LIGHT)),
    _ROWS[DEQUANTIZE],  # last: where all readers take the integers, nothing needs the floats
)
"""What runs as one primitive."""
