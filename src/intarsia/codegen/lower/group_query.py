# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's GroupQueryAttention: angles, keys and values behind those before, attention.

Where new keys go is known when it runs (`kernels.cache`). An item whose first run ends in padding
is computed as if that were not there: what ONNX Runtime makes of it is not defined.
"""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.codegen.kernels.attention import EmptyRow, MaskKind
from intarsia.codegen.kernels.cache import CacheLengths
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.attention import Heads, append_attention, place_of
from intarsia.codegen.lower.attention_operators import LARGEST_HEAD, output_of
from intarsia.codegen.lower.caches import put_rows
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.rotary import pick_angles, turn_pairs
from intarsia.codegen.lower.views import View
from intarsia.extents import Size

_KEY, _VALUE, _PAST_KEY, _PAST_VALUE, _LAST, _TOTAL, _COS, _SIN, _POSITIONS, _BIAS = range(1, 11)
_UNTAKEN_INPUTS = {
    11: "its heads have sinks",
    12: "its keys are quantised",
    13: "its values are quantised",
    14: "its queries are normalised",
    15: "its keys are normalised",
}
_UNTAKEN_ATTRIBUTES = {
    "smooth_softmax": (0, -1, "its softmax is smooth"),
    "qk_output": (0, 0, "its scores are asked for"),
    "sliding_window_cache": (0, 0, "its cache is a window"),
    "kv_cache_bit_width": (0, 0, "its cache is quantised"),
    "k_quant_type": ("NONE", "NONE", "its keys are quantised"),
    "v_quant_type": ("NONE", "NONE", "its values are quantised"),
    "causal": (1, 1, "it is not causal"),
}
"""Attributes with two values that are taken, and why others are not."""
_PRESENT_KEY, _PRESENT_VALUE, _SCORES = range(1, 4)
_SEQUENCES = 3
_LENGTH, _CAPACITY = 1, 2


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of a node.

    Attributes:
        batch: Items.
        new: New keys of each item, as many as queries.
        past: Keys before them that there is room for.
        capacity: Keys of the present.
        heads: Of queries.
        pairs: Heads of keys and values.
        size: Entries of a head.
    """

    batch: Size
    new: Size
    past: Size
    capacity: Size
    heads: int
    pairs: int
    size: int


def _read(operation: Operation) -> _Sizes | str:
    """Return the sizes, or why they are not known."""
    shape = operation.shape()
    heads, pairs = (int(operation.attribute(name)) for name in ("num_heads", "kv_num_heads"))
    is_packed = operation.value(_KEY) is None
    if is_packed != (operation.value(_VALUE) is None):
        return "it has keys or values without the others"
    if len(shape) != _SEQUENCES:
        return "its queries are not of three dimensions"
    if heads < 1 or pairs < 1 or heads % pairs:
        return f"its heads do not match: {heads} and {pairs}"
    size, rest = divmod(shape[-1], heads + 2 * pairs if is_packed else heads)
    if rest or not 0 < size <= LARGEST_HEAD:
        return f"{shape[-1]} columns are not so many heads, or their entries too many"
    for position in () if is_packed else (_KEY, _VALUE):
        if operation.shape(position) != (*shape[:2], pairs * size):
            return "its keys or values do not have the length of its queries"
    past: Size = 0
    if operation.value(_PAST_KEY) is not None:
        past = operation.shape(_PAST_KEY)[_CAPACITY]
    present = output_of(operation, _PRESENT_KEY)
    capacity: Size = past + shape[1]
    if present >= 0:
        capacity = (operation.graph.values[present].shape or ())[_CAPACITY]
    return _Sizes(shape[0], shape[1], past, capacity, heads, pairs, size)


def refuse_group_query(operation: Operation) -> str | None:
    """Say why a GroupQueryAttention is not taken."""
    for position, why in _UNTAKEN_INPUTS.items():
        if operation.value(position) is not None:
            return why
    for name, (*taken, why) in _UNTAKEN_ATTRIBUTES.items():
        if operation.attribute(name, taken[0]) not in taken:
            return why
    if output_of(operation, _SCORES) >= 0:
        return "its scores are asked for"
    if operation.attribute("softcap", 0.0) < 0:
        return "its soft cap is negative"
    floats = (_KEY, _VALUE, _PAST_KEY, _PAST_VALUE, _COS, _SIN, _BIAS)
    for position in floats:
        value = operation.value(position)
        if value is not None and value.dtype != "float32":
            return f"its input {position} is of {value.dtype}"
    for position in (_LAST, _TOTAL):
        value = operation.value(position)
        if value is None or value.dtype != "int32":
            return "it does not say its lengths in int32"
    sizes = _read(operation)
    return sizes if isinstance(sizes, str) else _refuse_shapes(operation, sizes)


def _refuse_shapes(operation: Operation, sizes: _Sizes) -> str | None:
    past = (sizes.batch, sizes.pairs, sizes.past, sizes.size)
    pasts = [operation.value(position) for position in (_PAST_KEY, _PAST_VALUE)]
    presents = [output_of(operation, position) for position in (_PRESENT_KEY, _PRESENT_VALUE)]
    if None in pasts and pasts != [None, None]:
        return "it has a past key or value without the other"
    if any(item is not None and item.shape != past for item in pasts):
        return "its past does not have the shape of its heads"
    present = (*past[:_CAPACITY], sizes.capacity, sizes.size)
    if any(item >= 0 and operation.graph.values[item].shape != present for item in presents):
        return "its present does not have the shape of its heads"
    if operation.shape(_LAST) not in ((sizes.batch,), (sizes.batch, 1)):
        return "its lengths are not one for each item"
    bias = operation.value(_BIAS)
    if bias is not None and (bias.shape or ())[-1:] != (sizes.capacity,):
        return "its bias is not one for each key of the present"
    return _refuse_tables(operation, sizes)


def _refuse_tables(operation: Operation, sizes: _Sizes) -> str | None:
    if not operation.attribute("do_rotary", 0):
        return None
    tables = [operation.value(position) for position in (_COS, _SIN)]
    if None in tables:
        return "it has no tables of angles"
    shapes = {value.shape for value in tables if value is not None}
    if len(shapes) > 1 or not all(shape and len(shape) == 2 for shape in shapes):  # noqa: PLR2004
        return "its tables do not have the same shape"
    ((rows, pairs),) = shapes  # type: ignore[misc] # of rank 2
    if not rows or not 0 < 2 * pairs <= sizes.size:
        return "its tables do not have the pairs of a head"
    return None


def lower_group_query(assembler: Assembler, group: KernelGroup) -> None:
    """Append kernels for lengths, angles, turned queries and keys, present tensors, attention."""
    operation = group.anchor
    sizes = _read(operation)
    assert isinstance(sizes, _Sizes)
    q, k, v = _heads(assembler, operation, sizes)
    lengths, positions = _lengths(assembler, operation, sizes)
    if positions is not None:
        tables = [operation.value(position) for position in (_COS, _SIN)]
        known = [table for table in tables if table is not None]
        angles = pick_angles(assembler, known, positions, operation.node.name, "seqlens_k")
        is_interleaved = bool(operation.attribute("rotary_interleaved", 0))
        turned = []
        for view in (q, k):
            result = assembler.scratch(view.dtype, view.shape)
            turn_pairs(assembler, view, result, angles, group.names, is_interleaved=is_interleaved)
            turned.append(result)
        q, k = turned
    present = [
        _appended(assembler, group, sizes, view.permuted((0, 2, 1, 3)), lengths, past, output)
        for view, past, output in (
            (k, _PAST_KEY, _PRESENT_KEY),
            (v, _PAST_VALUE, _PRESENT_VALUE),
        )
    ]
    batch = (sizes.batch, sizes.pairs, sizes.heads // sizes.pairs)
    shared = (*batch, sizes.capacity, sizes.size)
    q = q.permuted((0, 2, 1, 3)).split(1, sizes.pairs)
    k, v = (view.unsqueezed(2).expanded(shared) for view in present)
    y = place_of(assembler, group.result).split(2, sizes.heads).permuted((0, 2, 1, 3))
    masks: tuple[tuple[View, MaskKind, float], ...] = ()
    bias = operation.value(_BIAS)
    if bias is not None:
        scores = (sizes.batch, sizes.heads, sizes.new, sizes.capacity)
        mask = assembler.read(bias.id).expanded(scores)
        masks = ((mask.split(1, sizes.pairs), MaskKind.ADDED, 0.0),)
    window = operation.attribute("local_window_size", -1)
    append_attention(
        assembler,
        Heads(
            q,
            k,
            v,
            y.split(1, sizes.pairs),
            masks,
            lengths.unsqueezed(-1).unsqueezed(-1).expanded(batch),
        ),
        group.names,
        scale=operation.attribute("scale", 0.0) or sizes.size**-0.5,
        cap=operation.attribute("softcap", 0.0),
        last=0,
        first=1 - window if window > 0 else None,
        empty=EmptyRow.ZERO,
    )


def _heads(assembler: Assembler, operation: Operation, sizes: _Sizes) -> tuple[View, View, View]:
    """Return queries, keys and values as (batch, length, heads, size)."""
    read = assembler.read(operation.node.inputs[0])
    if operation.value(_KEY) is None:
        parts, begin = [], 0
        for count in (sizes.heads, sizes.pairs, sizes.pairs):
            parts.append(read.part(2, begin * sizes.size, count * sizes.size).split(2, count))
            begin += count
        q, k, v = parts
        return q, k, v
    k, v = (
        assembler.read(operation.node.inputs[position]).split(2, sizes.pairs)
        for position in (_KEY, _VALUE)
    )
    return read.split(2, sizes.heads), k, v


def _lengths(assembler: Assembler, operation: Operation, sizes: _Sizes) -> tuple[View, View | None]:
    """Append the kernel that reads lengths; return them, and positions if angles want some."""
    inputs = operation.node.inputs
    last = assembler.read_dense(inputs[_LAST]).reshaped((sizes.batch,))
    total = assembler.read_dense(inputs[_TOTAL]).reshaped((1,))
    lengths = assembler.scratch("int64", (sizes.batch,))
    positions = given = None
    if operation.attribute("do_rotary", 0):
        positions = assembler.scratch("int64", (sizes.batch, sizes.new))
        value = operation.value(_POSITIONS)
        given = None if value is None else assembler.read(value.id)
    spec = CacheLengths(
        sizes.batch,
        sizes.past,
        sizes.new,
        sizes.capacity,
        last.layout,
        total.layout,
        lengths.layout,
        None if positions is None else positions.layout,
        None if given is None else given.layout,
    )
    views = [view for view in (last, total, given, lengths, positions) if view is not None]
    assembler.check_parameter(spec, views, operation.graph.values[inputs[_LAST]], operation.node)
    return lengths, positions


def _appended(
    assembler: Assembler,
    group: KernelGroup,
    sizes: _Sizes,
    new: View,
    lengths: View,
    past_at: int,
    present_at: int,
) -> View:
    """Append the kernels that put new keys or values behind those before; return them all."""
    value, present = group.anchor.value(past_at), output_of(group.anchor, present_at)
    shape = (sizes.batch, sizes.pairs, sizes.capacity, sizes.size)
    whole = assembler.target(present) if present >= 0 else assembler.scratch(new.dtype, shape)
    past = None if value is None or 0 in (value.shape or ()) else assembler.read(value.id)
    put_rows(assembler, group, past, new, lengths, whole)
    return whole
