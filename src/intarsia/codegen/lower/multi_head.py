# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's MultiHeadAttention and Attention: one kernel, behind what they do before it.

Attention makes queries, keys and values by one product; its past and present are one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

import numpy as np

from intarsia.codegen.body import Apply, Body
from intarsia.codegen.kernels.attention import MaskKind
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.attention import Heads, append_attention, place_of
from intarsia.codegen.lower.attention_operators import LARGEST_HEAD, output_of, with_past
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.products import append_linear
from intarsia.codegen.lower.views import View
from intarsia.extents import Size, UndecidedError
from intarsia.graph.graph import Value

_BIAS, _KEY_MASK, _ADDED, _PAST = 3, 4, 5, 6
_PRESENT_KEY, _SCORES = 1, 3
_SEQUENCES = 3
_SPLIT_RANK = 4
_HIDDEN = -10000.0
"""What is added to scores of keys that are hidden, unless it is told."""


def refuse_multi_head(operation: Operation) -> str | None:
    """Say why a MultiHeadAttention is not taken."""
    if operation.node.inputs[_PAST + 2 :]:
        return "its past has a length of its own"
    if output_of(operation, _SCORES) >= 0:
        return "its scores are asked for"
    past = [operation.value(_PAST + number) for number in range(2)]
    if (past[0] is None) != (past[1] is None):
        return "it has a past key or value without the other"
    are_split = _form(operation) is not _HeadsForm.SEQUENCES
    if are_split and operation.value(_BIAS) is not None:
        return "its operands have heads already and a bias"
    if are_split and (past[0] is not None or output_of(operation, _PRESENT_KEY) >= 0):
        return "its operands have heads already and a past or a present"
    why = refuse_dtypes(operation, _PAST + 2, _KEY_MASK)
    return why or _refuse_multi_head_shapes(operation)


class _HeadsForm(Enum):
    """How queries, keys and values come."""

    SEQUENCES = "each (batch, length, heads * size)"
    SPLIT = "keys and values (batch, heads, length, size)"
    PAIRS = "keys and values together (batch, length, heads, 2, size)"
    TRIPLES = "all together (batch, length, heads, 3, size)"


_APART = (_HeadsForm.SEQUENCES, _HeadsForm.SPLIT)
"""The forms in which there are three inputs."""


def _form(operation: Operation) -> _HeadsForm:
    if operation.value(1) is None:
        return _HeadsForm.TRIPLES
    if operation.value(2) is None:
        return _HeadsForm.PAIRS
    return _HeadsForm.SPLIT if len(operation.shape(1)) == _SPLIT_RANK else _HeadsForm.SEQUENCES


def refuse_dtypes(operation: Operation, count: int, mask_at: int) -> str | None:
    """Say which of the first inputs is not of float32, or of int32 if it is the mask."""
    for position in range(count):
        value = operation.value(position)
        dtype = "int32" if position == mask_at else "float32"
        if value is not None and value.dtype != dtype:
            return f"its input {position} is of {value.dtype}"
    return None


def _refuse_multi_head_shapes(operation: Operation) -> str | None:
    form, heads = _form(operation), operation.attribute("num_heads")
    shapes = [operation.shape(position) for position in range(3 if form in _APART else 1)]
    parts = {_HeadsForm.TRIPLES: (0, 3), _HeadsForm.PAIRS: (1, 2)}.get(form)
    if parts is not None and operation.shape(parts[0])[2:4] != (heads, parts[1]):
        return "its packed operands do not have its heads"
    if form is not _HeadsForm.TRIPLES and len(shapes[0]) != _SEQUENCES:
        return "its queries are not of three dimensions"
    if form is _HeadsForm.SEQUENCES and any(len(shape) != _SEQUENCES for shape in shapes):
        return "its operands are not of three dimensions"
    sizes = _head_sizes(form, operation, heads)
    if sizes is None:
        return "its heads do not divide its operands"
    if not 0 < min(sizes) <= max(sizes) <= LARGEST_HEAD:
        return f"its heads have {' and '.join(map(str, sizes))} entries"
    return refuse_mask(operation.value(_KEY_MASK), shapes[0][0])


def _head_sizes(form: _HeadsForm, operation: Operation, heads: int) -> tuple[int, int] | None:
    """Return the entries of a key and of a value; None if they do not fit the queries."""
    widths = [operation.shape(position)[-1] for position in range(3 if form in _APART else 1)]
    if form is _HeadsForm.TRIPLES:
        return widths[0], widths[0]
    if form is _HeadsForm.PAIRS:
        size = operation.shape(1)[-1]
        return (size, size) if widths[0] == heads * size else None
    if form is _HeadsForm.SPLIT:
        are_heads = all(operation.shape(position)[1] == heads for position in (1, 2))
        return (widths[1], widths[2]) if are_heads and widths[0] == heads * widths[1] else None
    if any(width % heads for width in widths) or widths[0] != widths[1]:
        return None
    return widths[1] // heads, widths[2] // heads


def refuse_mask(mask: Value | None, batch: Size) -> str | None:
    """Say why a mask of keys is not taken."""
    shape = mask.shape or () if mask is not None else (batch,)
    if len(shape) == 1 and shape[0] not in (batch, 2 * batch):
        return "its mask is of sequences that are joined"
    return "its mask is of four dimensions" if len(shape) > _SEQUENCES else None


def lower_multi_head(assembler: Assembler, group: KernelGroup) -> None:
    """Append the kernel of attention, after copies of what has a bias or a past."""
    operation = group.anchor
    q, *kept = _operands(assembler, group)
    for number, new in enumerate(kept):
        past = operation.value(_PAST + number)
        present = output_of(operation, _PRESENT_KEY + number)
        kept[number] = with_past(
            assembler,
            None if past is None else assembler.read(past.id),
            new,
            assembler.target(present) if present >= 0 else None,
            group.names,
        )
    append_masked(assembler, group, (q, kept[0], kept[1]), _KEY_MASK, _ADDED)


def _operands(assembler: Assembler, group: KernelGroup) -> list[View]:
    """Return queries, keys and values as (batch, heads, length, size)."""
    operation, heads = group.anchor, group.anchor.attribute("num_heads")
    form = _form(operation)
    views = [assembler.read(value) for value in operation.node.inputs[:3] if value >= 0]
    if form is _HeadsForm.TRIPLES:
        return [_of_packed(views[0], number) for number in range(3)]
    if form is _HeadsForm.PAIRS:
        return [as_heads(views[0], heads), *(_of_packed(views[1], number) for number in range(2))]
    if form is _HeadsForm.SPLIT:
        return [as_heads(views[0], heads), *views[1:]]
    return split_heads(assembler, group, views, _BIAS)


def split_heads(
    assembler: Assembler, group: KernelGroup, views: Sequence[View], bias_at: int
) -> list[View]:
    """Return sequences as heads, with their parts of a bias, if there is one.

    Args:
        assembler: Of the program.
        group: What is computed.
        views: (batch, length, heads * size) each.
        bias_at: The input that has a number for each of their columns, one after another.
    """
    bias, begin, heads = group.anchor.value(bias_at), 0, group.anchor.attribute("num_heads")
    made = []
    for view in views:
        size, biased = view.shape[-1], view
        if bias is not None:
            part = assembler.read(bias.id).part(0, begin, size)
            body = Body(("float32",) * 2, (Apply("Add", (0, 1)),), (2,))
            biased = _computed(assembler, group, body, (view, part.expanded(view.shape)))
        begin += size
        made.append(as_heads(biased, heads))
    return made


def as_heads(view: View, heads: int) -> View:
    """Return (batch, length, heads * size) as (batch, heads, length, size)."""
    return view.split(2, heads).permuted((0, 2, 1, 3))


def _of_packed(view: View, number: int) -> View:
    """Return one of what lies together in (batch, length, heads, 2 or 3, size)."""
    part = view.part(3, number, 1).permuted((3, 0, 2, 1, 4))
    return _entry(part, 0)


def append_masked(
    assembler: Assembler,
    group: KernelGroup,
    operands: tuple[View, View, View],
    mask_at: int,
    added_at: int,
    lengths: View | None = None,
) -> None:
    """Append the kernel of attention, with what masks it.

    Args:
        assembler: Of the program.
        group: What is computed.
        operands: Queries, keys and values, (batch, heads, length, size).
        mask_at: The input that says which keys count.
        added_at: The input that is added to scores.
        lengths: Over (batch,): how many keys count; None for all.
    """
    operation, (q, k, v) = group.anchor, operands
    scores = (*q.shape[:3], k.shape[2])
    masks = []
    hidden, added = operation.value(mask_at), operation.value(added_at)
    if hidden is not None:
        mask = _hiding(assembler, group, hidden, scores)
        masks.append((mask.expanded(scores), MaskKind.ADDED, 0.0))
    if added is not None:
        masks.append((assembler.read(added.id).expanded(scores), MaskKind.ADDED, 0.0))
    is_causal = operation.attribute("unidirectional", 0)
    append_attention(
        assembler,
        Heads(
            q,
            k,
            v,
            as_heads(place_of(assembler, group.result), q.shape[1]),
            tuple(masks),
            None if lengths is None else lengths.unsqueezed(-1).expanded(scores[:2]),
        ),
        group.names,
        scale=operation.attribute("scale", 0.0) or q.shape[-1] ** -0.5,
        last=scores[3] - scores[2] if is_causal else None,
    )


def _hiding(assembler: Assembler, group: KernelGroup, mask: Value, scores: Sequence[Size]) -> View:
    """Return what is added to scores for keys that a mask hides: by flags, or where keys end."""
    operation = group.anchor
    factor = operation.attribute("mask_filter_value", _HIDDEN)
    fill = assembler.constant(f"{operation.node.name}/hidden", np.full((), factor, np.float32))
    none = assembler.constant(f"{operation.node.name}/shown", np.zeros((), np.float32))
    read = assembler.read(mask.id)
    steps: tuple[Apply, ...] = (Apply("Cast", (2,), (), "bool"), Apply("Where", (3, 0, 1)))
    shape, operands = read.shape, [read]
    if len(shape) == 1:
        batch, _, _, keys = scores
        if not isinstance(keys, int):
            raise UndecidedError(f"lengths of {keys} keys")
        numbers = assembler.constant(f"keys/{keys}", np.arange(keys, dtype=np.int32))
        operands = [numbers, read.part(0, 0, batch).unsqueezed(1)]
        steps = (Apply("Less", (2, 3)), Apply("Where", (4, 0, 1)))
        if shape != (batch,):  # ends, then starts
            operands.append(read.part(0, batch, batch).unsqueezed(1))
            seen = (Apply("Less", (2, 3)), Apply("GreaterOrEqual", (2, 4)), Apply("And", (5, 6)))
            steps = (*seen, Apply("Where", (7, 0, 1)))
        shape = (batch, keys)
    views = [view.expanded(shape) for view in (none, fill, *operands)]
    body = Body(tuple(view.dtype for view in views), steps, (len(views) + len(steps) - 1,))
    result = _computed(assembler, group, body, views)
    return result.unsqueezed(1) if len(shape) == _SEQUENCES else result.unsqueezed(1).unsqueezed(1)


def _computed(
    assembler: Assembler, group: KernelGroup, body: Body, operands: Sequence[View]
) -> View:
    """Return the float32 that a body makes of operands of one shape."""
    result = assembler.scratch("float32", operands[0].shape)
    layouts = tuple(view.layout for view in operands)
    spec = Elementwise(result.domain, layouts, (result.layout,), body, assembler.unit)
    assembler.call(spec, (*operands, result), group.names)
    return result


# Attention of com.microsoft: a product in front

_WEIGHTS, _INDEX, _STATE, _SHARED = 1, 3, 4, 6
_PRESENT = 1


def refuse_packed(operation: Operation) -> str | None:
    """Say why an Attention of ONNX Runtime is not taken."""
    if operation.value(_SHARED) is not None or operation.attribute("past_present_share_buffer", 0):
        return "its past has a length of its own"
    if operation.attribute("do_rotary", 0):
        return "it turns queries and keys"
    if operation.value(_STATE) is None and output_of(operation, _PRESENT) >= 0:
        return "it has a present without a past"
    return refuse_dtypes(operation, _SHARED, _INDEX) or _refuse_packed_shapes(operation)


def _refuse_packed_shapes(operation: Operation) -> str | None:
    widths, heads = _widths(operation), operation.attribute("num_heads")
    shapes = [operation.shape(position) for position in (0, _WEIGHTS)]
    if len(shapes[0]) != _SEQUENCES or shapes[1] != (shapes[0][-1], sum(widths)):
        return "its weights do not fit its input"
    if any(width % heads for width in widths) or widths[0] != widths[1]:
        return "its heads do not divide its weights"
    sizes = [width // heads for width in widths]
    if not 0 < min(sizes) <= max(sizes) <= LARGEST_HEAD:
        return f"its heads have {sizes[0]} and {sizes[2]} entries"
    if operation.value(_STATE) is not None and sizes[0] != sizes[2]:
        return "its past has keys and values of several sizes"
    return refuse_mask(operation.value(_INDEX), shapes[0][0])


def _widths(operation: Operation) -> tuple[int, int, int]:
    """Return the columns of queries, keys and values."""
    third = operation.shape(_WEIGHTS)[-1] // 3
    q, k, v = operation.attribute("qkv_hidden_sizes", ()) or (third,) * 3
    return q, k, v


def lower_packed(assembler: Assembler, group: KernelGroup) -> None:
    """Append the product that makes queries, keys and values, and the kernel of attention."""
    operation, heads = group.anchor, group.anchor.attribute("num_heads")
    weights = operation.value(_WEIGHTS)
    assert weights is not None
    x = assembler.read(operation.node.inputs[0])
    joined = append_linear(assembler, group, x, weights, operation.value(_WEIGHTS + 1))
    views, begin = [], 0
    for width in _widths(operation):
        views.append(as_heads(joined.part(2, begin, width), heads))
        begin += width
    q, *kept = views
    past, present = operation.value(_STATE), output_of(operation, _PRESENT)
    if past is not None:
        whole = assembler.target(present) if present >= 0 else None
        for number, new in enumerate(kept):
            kept[number] = with_past(
                assembler,
                _entry(assembler.read(past.id), number),
                new,
                None if whole is None else _entry(whole, number),
                group.names,
            )
    append_masked(assembler, group, (q, kept[0], kept[1]), _INDEX, _INDEX + 2)


def _entry(view: View, number: int) -> View:
    """Return an entry of the first dimension."""
    part = view.part(0, number, 1)
    return replace(part, shape=part.shape[1:], strides=part.strides[1:])
