# SPDX-License-Identifier: Apache-2.0
"""ONNX's Attention as one kernel."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.codegen.kernels.attention import EmptyRow, MaskKind
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.attention import (
    PROBLEM,
    Heads,
    append_attention,
    lower_problem,
    place_of,
)
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.views import View

LARGEST_HEAD = 512
"""Entries of a key or value; a turn's queries and sums lie on the stack of a thread."""

_MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = range(3, 7)
_PRESENT_KEY, _PRESENT_VALUE, _SCORES = range(1, 4)
_FLOAT = 1  # TensorProto.FLOAT


def refuse_attention(operation: Operation) -> str | None:
    """Say why attention is not taken."""
    if PROBLEM in operation.meant:
        return None
    return _refuse_dtypes(operation) or _refuse_form(operation) or _refuse_heads(operation)


def _refuse_dtypes(operation: Operation) -> str | None:
    for position in range(_LENGTHS):
        value = operation.value(position)
        taken = ("float32", "bool") if position == _MASK else ("float32",)
        if value is not None and value.dtype not in taken:
            return f"its input {position} is of {value.dtype}"
    if operation.attribute("softmax_precision", _FLOAT) != _FLOAT:
        return "its softmax has another precision"
    return None


def _refuse_form(operation: Operation) -> str | None:
    past = [operation.value(position) is not None for position in (_PAST_KEY, _PAST_VALUE)]
    if any(past) and not all(past):
        return "it has a past key or value without the other"
    if any(past) and operation.value(_LENGTHS) is not None:
        return "it has both a past and lengths of keys"
    if output_of(operation, _SCORES) >= 0:
        return "its scores are asked for"
    if operation.attribute("softcap", 0.0) < 0:
        return "its soft cap is negative"
    return None


def _refuse_heads(operation: Operation) -> str | None:
    queries, keys, values = (_sizes(operation, position) for position in range(3))
    if queries is None or keys is None or values is None:
        return "its heads do not divide its operands"
    if queries[0] % keys[0] or keys[0] != values[0] or queries[1] != keys[1]:
        return f"its heads do not match: {queries}, {keys} and {values}"
    sizes = (queries[1], values[1])
    if not 0 < min(sizes) <= max(sizes) <= LARGEST_HEAD:
        return f"its heads have {' and '.join(map(str, sizes))} entries"
    return None


def output_of(operation: Operation, position: int) -> int:
    """Return the id of an output, -1 if it is absent."""
    outputs = operation.node.outputs
    return outputs[position] if position < len(outputs) else -1


def _sizes(operation: Operation, position: int) -> tuple[int, int] | None:
    """Return the number of heads of an operand and their size; None if there is none."""
    *_, middle, _, last = (0, *operation.shape(position))
    if len(operation.shape(position)) == len(("batch", "heads", "length", "size")):
        return (middle, last) if middle else None
    heads = operation.attribute("kv_num_heads" if position else "q_num_heads", 0)
    return (heads, last // heads) if heads and last % heads == 0 else None


def lower_attention(assembler: Assembler, group: KernelGroup) -> None:
    """Append the kernel of attention, after copies of past and new keys and values to one tensor.

    Heads that share keys are one more dimension, along which keys and values are broadcast.
    """
    operation = group.anchor
    if PROBLEM in operation.meant:
        lower_problem(assembler, group)
        return
    q, new_k, new_v = (
        _split(operation, assembler.read(operation.node.inputs[position]), position)
        for position in range(3)
    )
    y = _split(operation, place_of(assembler, group.result), 0)
    k = _with_past(assembler, group, new_k, _PAST_KEY, _PRESENT_KEY)
    v = _with_past(assembler, group, new_v, _PAST_VALUE, _PRESENT_VALUE)
    batch, count, queries, size = q.shape
    pairs, total = k.shape[1:3]
    masks: tuple[tuple[View, MaskKind, float], ...] = ()
    mask = operation.value(_MASK)
    if mask is not None:
        view = assembler.read(mask.id)
        view = view.reshaped_to_rank(max(2, len(view.shape)))
        # What a mask does not reach is closed.
        reach = min(total, view.shape[-1])
        k, v = (item.part(2, 0, reach) for item in (k, v))
        view = view.part(len(view.shape) - 1, 0, reach).expanded((batch, count, queries, reach))
        kind = MaskKind.KEPT if mask.dtype == "bool" else MaskKind.ADDED
        masks = ((view.split(1, pairs), kind, float("-inf")),)
    lengths = operation.value(_LENGTHS)
    group_size = count // pairs
    k, v = (
        view.unsqueezed(2).expanded((batch, pairs, group_size, *view.shape[2:])) for view in (k, v)
    )
    length_view = None
    if lengths is not None:
        read = assembler.read(lengths.id)
        length_view = read.unsqueezed(-1).unsqueezed(-1).expanded((batch, pairs, group_size))
    offset = total - new_k.shape[2]
    first, last = _window(operation, offset)
    append_attention(
        assembler,
        Heads(q.split(1, pairs), k, v, y.split(1, pairs), masks, length_view),
        group.names,
        scale=operation.attribute("scale", size**-0.5),
        cap=operation.attribute("softcap", 0.0),
        last=last,
        first=first,
        empty=EmptyRow.ZERO,
    )


def _window(operation: Operation, offset: int) -> tuple[int | None, int | None]:
    """Return the first and the last key that query 0 sees; None for no limit."""
    left = operation.attribute("left_window_size", -1)
    right = operation.attribute("right_window_size", -1)
    if operation.attribute("is_causal", 0):
        right = 0
    return (offset - left if left >= 0 else None, offset + right if right >= 0 else None)


def _split(operation: Operation, view: View, position: int) -> View:
    """Return an operand as (batch, heads, length, size)."""
    if len(view.shape) == len(("batch", "heads", "length", "size")):
        return view
    heads = operation.attribute("kv_num_heads" if position else "q_num_heads")
    return view.split(2, heads).permuted((0, 2, 1, 3))


def _with_past(
    assembler: Assembler, group: KernelGroup, new: View, past_at: int, present_at: int
) -> View:
    """Return keys or values with those before them, as the present that is asked for if any."""
    past, present = group.anchor.value(past_at), output_of(group.anchor, present_at)
    return with_past(
        assembler,
        None if past is None else assembler.read(past.id),
        new,
        assembler.target(present) if present >= 0 else None,
        group.names,
    )


def with_past(
    assembler: Assembler, past: View | None, new: View, whole: View | None, names: Sequence[str]
) -> View:
    """Return keys or values with those before them; new ones where they are if there are none.

    Args:
        assembler: Of the program.
        past: (batch, heads, length before, size).
        new: (batch, heads, length, size).
        whole: Where both are to lie; None for wherever they may.
        names: Of the nodes that are computed.
    """
    if past is None and whole is None:
        return new
    before = 0 if past is None else past.shape[2]
    batch, heads, length, size = new.shape
    if whole is None:
        whole = assembler.scratch(new.dtype, (batch, heads, before + length, size))
    if past is not None:
        assembler.copy(past, whole.part(2, 0, before), names, "past")
    assembler.copy(new, whole.part(2, before, length), names, "present")
    return whole
