# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's DecoderMaskedMultiHeadAttention: one query behind a past, or across to an encoder.

The past is a tensor with room for more rows; a value says how many of them count.
"""

from __future__ import annotations

import numpy as np

from intarsia.codegen.kernels.cache import CacheLengths
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.attention_operators import LARGEST_HEAD, output_of
from intarsia.codegen.lower.caches import put_rows
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.multi_head import (
    append_masked,
    refuse_dtypes,
    refuse_mask,
    split_heads,
)
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.views import View
from intarsia.extents import Size, UndecidedError

_KEY, _VALUE, _MASK, _ADDED, _PAST, _LENGTH, _BEAMS, _TURNED, _BIAS = 1, 2, 3, 4, 5, 7, 8, 9, 10
_PRESENT, _SCORES = 1, 3
_SEQUENCES, _SPLIT = 3, 4


def refuse_decoder_masked(operation: Operation) -> str | None:
    """Say why such a node is not taken."""
    if output_of(operation, _SCORES) >= 0:
        return "its scores are asked for"
    if operation.value(_TURNED) is not None:
        return "its keys come from several beams"
    if operation.value(_KEY) is None or operation.value(_VALUE) is None:
        return "its operands are packed"
    floats = refuse_dtypes(operation, _LENGTH, _MASK)
    return floats or _refuse_past(operation) or _refuse_shapes(operation)


def _refuse_past(operation: Operation) -> str | None:
    presents = [output_of(operation, _PRESENT + number) >= 0 for number in range(2)]
    if not _is_shared(operation):
        if operation.value(_PAST) is not None or any(presents):
            return "its past does not share its memory with the present, which is not defined"
        return None
    if any(operation.value(_PAST + number) is None for number in range(2)):
        return "it has no past to share memory with"
    length = operation.value(_LENGTH)
    if length is None or length.dtype != "int32" or length.shape not in ((), (1,)):
        return "it does not say the length of its past in int32"
    if len(operation.shape(_KEY)) == _SPLIT:
        return "it has a past and keys of an encoder"
    return None


def _is_shared(operation: Operation) -> bool:
    return bool(operation.attribute("past_present_share_buffer", 0))


def _refuse_shapes(operation: Operation) -> str | None:
    heads, batch = operation.attribute("num_heads"), operation.shape()[0]
    q, k, v = (operation.shape(position) for position in range(3))
    if len(q) != _SEQUENCES or q[1] != 1:
        return "it has several queries for an item"
    if len(k) == _SPLIT:
        size, wide = k[-1], v[-1]
        fits = (k[1], v[1]) == (heads, heads) and q[-1] == heads * size
    else:
        (size, rest), (wide, more) = divmod(k[-1], heads), divmod(v[-1], heads)
        fits = not rest and not more and q == k and v[:2] == k[:2]
    if not fits:
        return "its heads do not divide its operands"
    if not 0 < min(size, wide) <= max(size, wide) <= LARGEST_HEAD:
        return f"its heads have {size} and {wide} entries"
    if _is_shared(operation):
        for number, width in enumerate((size, wide)):
            past = operation.shape(_PAST + number)
            if len(past) != _SPLIT or (*past[:2], past[3]) != (batch, heads, width):
                return "its past does not have the shape of its heads"
    mask = operation.value(_MASK)
    if mask is not None and len(mask.shape or ()) != len(("batch", "keys")):
        return "its mask is not a flag for each key"
    return refuse_mask(mask, batch)


def lower_decoder_masked(assembler: Assembler, group: KernelGroup) -> None:
    """Append kernels for biases and the present, and the kernel of attention."""
    operation = group.anchor
    read = [assembler.read(value) for value in operation.node.inputs[:3]]
    if len(read[1].shape) == _SPLIT:
        (q,) = split_heads(assembler, group, read[:1], _BIAS)
        append_masked(assembler, group, (q, read[1], read[2]), _MASK, _ADDED)
        return
    q, k, v = split_heads(assembler, group, read, _BIAS)
    if not _is_shared(operation):
        append_masked(assembler, group, (q, k, v), _MASK, _ADDED)
        return
    capacity = operation.shape(_PAST)[2]
    masks = [operation.value(position) for position in (_MASK, _ADDED)]
    counted: Size = next((mask.shape[-1] for mask in masks if mask and mask.shape), capacity)
    lengths = _lengths(assembler, operation, counted)
    present = [
        _appended(assembler, group, new, lengths, number).part(2, 0, counted)
        for number, new in enumerate((k, v))
    ]
    append_masked(assembler, group, (q, present[0], present[1]), _MASK, _ADDED, lengths)


def _lengths(assembler: Assembler, operation: Operation, counted: Size) -> View:
    """Append the kernel that reads the length of the past; return how many keys count.

    Args:
        assembler: Of the program.
        operation: The node.
        counted: Keys that there is a mask for, or room.
    """
    inputs, batch = operation.node.inputs, operation.shape()[0]
    if not isinstance(counted, int):
        raise UndecidedError(f"lengths of {counted} keys")
    value = operation.graph.values[inputs[_LENGTH]]
    last = assembler.read_dense(value.id).reshaped((1,)).expanded((batch,))
    most = np.full(1, counted, np.int32)
    total = assembler.constant(f"{operation.node.name}/most", most)
    lengths = assembler.scratch("int64", (batch,))
    spec = CacheLengths(batch, counted, 1, counted, last.layout, total.layout, lengths.layout)
    assembler.check_parameter(spec, [last, total, lengths], value, operation.node)
    return lengths


def _appended(
    assembler: Assembler, group: KernelGroup, new: View, lengths: View, number: int
) -> View:
    """Append the kernel that puts a new row into a copy of the past; return that."""
    operation = group.anchor
    past = assembler.read(operation.node.inputs[_PAST + number])
    present = output_of(operation, _PRESENT + number)
    whole = assembler.target(present) if present >= 0 else assembler.scratch(past.dtype, past.shape)
    put_rows(assembler, group, past, new, lengths, whole, keeps=True)
    return whole
