# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's MultiHeadAttention and Attention: one kernel, behind what they do before it.

Attention makes queries, keys and values by one product; its past and present are one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
_HIDDEN = -10000.0
"""What is added to scores of keys that are hidden, unless it is told."""


def refuse_multi_head(operation: Operation) -> str | None:
    """Say why a MultiHeadAttention is not taken."""
    if operation.node.inputs[_PAST + 2 :]:
        return "its past has a length of its own"
    if output_of(operation, _SCORES) >= 0:
        return "its scores are asked for"
    present = {position: operation.value(position) for position in range(_PAST + 2)}
    if any(present[position] is None for position in range(3)):
        return "its operands are packed"
    if (present[_PAST] is None) != (present[_PAST + 1] is None):
        return "it has a past key or value without the other"
    if present[_PAST] is None and output_of(operation, _PRESENT_KEY) >= 0:
        return "it has a present without a past"
    why = _refuse_dtypes(operation, _PAST + 2, _KEY_MASK)
    return why or _refuse_multi_head_shapes(operation)


def _refuse_dtypes(operation: Operation, count: int, mask_at: int) -> str | None:
    for position in range(count):
        value = operation.value(position)
        dtype = "int32" if position == mask_at else "float32"
        if value is not None and value.dtype != dtype:
            return f"its input {position} is of {value.dtype}"
    return None


def _refuse_multi_head_shapes(operation: Operation) -> str | None:
    shapes = [operation.shape(position) for position in range(3)]
    heads = operation.attribute("num_heads")
    if any(len(shape) != _SEQUENCES for shape in shapes):
        return "its operands are not of three dimensions"
    if any(shape[-1] % heads for shape in shapes) or shapes[0][-1] != shapes[1][-1]:
        return "its heads do not divide its operands"
    sizes = [shape[-1] // heads for shape in shapes[1:]]
    if not 0 < min(sizes) <= max(sizes) <= LARGEST_HEAD:
        return f"its heads have {' and '.join(map(str, sizes))} entries"
    return _refuse_mask(operation.value(_KEY_MASK), shapes[0][0])


def _refuse_mask(mask: Value | None, batch: Size) -> str | None:
    shape = mask.shape or () if mask is not None else (batch,)
    if len(shape) == 1 and shape[0] not in (batch, 2 * batch):
        return "its mask is of sequences that are joined"
    return "its mask is of four dimensions" if len(shape) > _SEQUENCES else None


def lower_multi_head(assembler: Assembler, group: KernelGroup) -> None:
    """Append the kernel of attention, after copies of what has a bias or a past."""
    operation, heads = group.anchor, group.anchor.attribute("num_heads")
    views, begin = [], 0
    for position in range(3):
        view = assembler.read(operation.node.inputs[position])
        bias = operation.value(_BIAS)
        if bias is not None:
            size = view.shape[-1]
            part = assembler.read(bias.id).part(0, begin, size)
            begin += size
            body = Body(("float32",) * 2, (Apply("Add", (0, 1)),), (2,))
            view = _computed(assembler, group, body, (view, part.expanded(view.shape)))
        views.append(_as_heads(view, heads))
    q, *kept = views
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
    _append(assembler, group, (q, kept[0], kept[1]), _KEY_MASK, _ADDED)


def _as_heads(view: View, heads: int) -> View:
    return view.split(2, heads).permuted((0, 2, 1, 3))


def _append(
    assembler: Assembler,
    group: KernelGroup,
    operands: tuple[View, View, View],
    mask_at: int,
    added_at: int,
) -> None:
    """Append the kernel of attention, with what masks it.

    Args:
        assembler: Of the program.
        group: What is computed.
        operands: Queries, keys and values, (batch, heads, length, size).
        mask_at: The input that says which keys count.
        added_at: The input that is added to scores.
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
        Heads(q, k, v, _as_heads(place_of(assembler, group.result), q.shape[1]), tuple(masks)),
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
    return _refuse_dtypes(operation, _SHARED, _INDEX) or _refuse_packed_shapes(operation)


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
    return _refuse_mask(operation.value(_INDEX), shapes[0][0])


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
    joined = append_linear(assembler, x, weights, operation.value(_WEIGHTS + 1), group.names)
    views, begin = [], 0
    for width in _widths(operation):
        views.append(_as_heads(joined.part(2, begin, width), heads))
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
    _append(assembler, group, (q, kept[0], kept[1]), _INDEX, _INDEX + 2)


def _entry(view: View, number: int) -> View:
    """Return an entry of the first dimension."""
    part = view.part(0, number, 1)
    return replace(part, shape=part.shape[1:], strides=part.strides[1:])
