# SPDX-License-Identifier: Apache-2.0
"""EmbedLayerNormalization: rows of tables for words, positions and segments, summed, normalised."""

from __future__ import annotations

from intarsia.codegen.body import Fused, identity
from intarsia.codegen.kernels import gather
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import operand
from intarsia.codegen.lower.reductions import SumFirst, append_normalization
from intarsia.codegen.lower.views import View
from intarsia.graph.graph import Value

_IDS, _SEGMENTS, _WORDS, _POSITIONS, _SEGMENT_TABLE, _SCALE, _SHIFT, _, _POSITION_IDS = range(9)
_MASK_INDEX, _SUM = 1, 2
_INDEX_DTYPES = ("int32", "int64")
DTYPES = frozenset(("float32", "float64", *_INDEX_DTYPES))
"""Of its first input, which holds indices, and of its outputs."""


def refuse_embedding(operation: Operation) -> str | None:
    """Say why embeddings are not taken."""
    mask_index = _output(operation, _MASK_INDEX)
    if mask_index is not None and (mask_index.consumers or mask_index.id in _results(operation)):
        return "its mask index is asked for"
    if len(operation.shape()) != 2 or 0 in operation.output_shape:  # noqa: PLR2004 - batch, length
        return "its words are not a batch of sequences"
    return _refuse_tables(operation) or _refuse_indices(operation)


def _refuse_tables(operation: Operation) -> str | None:
    tables = [operation.value(place) for place in (_WORDS, _POSITIONS, _SEGMENT_TABLE)]
    vectors = [operation.value(place) for place in (_SCALE, _SHIFT)]
    present = [value for value in (*tables, *vectors) if value is not None]
    if {value.dtype for value in present} != {operation.output.dtype}:
        return "its tables are of several dtypes"
    if any((value.shape or (0,))[-1] != operation.output_shape[-1] for value in present):
        return "its tables are not as wide as its result"
    return None


def _refuse_indices(operation: Operation) -> str | None:
    ids = operation.shape()
    segments, positions = operation.value(_SEGMENTS), operation.value(_POSITION_IDS)
    if (segments is None) != (operation.value(_SEGMENT_TABLE) is None):
        return "segments or their table are missing"
    if segments is not None and segments.shape != ids:
        return "its segments are not those of its words"
    if positions is not None and positions.shape not in (ids, (1, ids[1])):
        return "its positions are not those of its words"
    if positions is None and operation.shape(_POSITIONS)[0] < ids[1]:
        return "its table of positions is too short"
    return None


def _output(operation: Operation, place: int) -> Value | None:
    outputs = operation.node.outputs
    is_there = place < len(outputs) and outputs[place] >= 0
    return operation.graph.values[outputs[place]] if is_there else None


def _results(operation: Operation) -> frozenset[int]:
    return frozenset(operation.graph.output_set)


def lower_embedding(assembler: Assembler, group: KernelGroup) -> None:
    """Append a kernel that picks rows for each table, and one that adds and normalises them."""
    operation = group.anchor
    shape = operation.output_shape
    x = _picked(assembler, operation, _IDS, _WORDS)
    if operation.value(_POSITION_IDS) is None:
        table = operation.value(_POSITIONS)
        assert table is not None
        positions = assembler.read(table.id).part(0, 0, shape[1])
    else:
        positions = _picked(assembler, operation, _POSITION_IDS, _POSITIONS)
    added = [positions]
    if operation.value(_SEGMENTS) is not None:
        added.append(_picked(assembler, operation, _SEGMENTS, _SEGMENT_TABLE))
    vectors = [
        None if value is None else operand(assembler, value.id, shape, 0)
        for value in (operation.value(_SCALE), operation.value(_SHIFT))
    ]
    total = _output(operation, _SUM)
    totals = () if total is None else (assembler.target(total.id),)
    append_normalization(
        assembler,
        group,
        x,
        (2,),
        *vectors,
        sum_of=SumFirst(tuple(view.expanded(shape) for view in added), totals),
    )


def _picked(assembler: Assembler, operation: Operation, indices: int, table: int) -> View:
    """Return rows of a table, `[batch, length, width]`."""
    picks_value, table_value = operation.value(indices), operation.value(table)
    assert picks_value is not None
    assert table_value is not None
    picks, data = assembler.read_dense(picks_value.id), assembler.read_dense(table_value.id)
    (batch, length), (rows, width) = picks.shape, data.shape
    count = batch * length
    picks, data = picks.reshaped((count,)), data.reshaped((1, rows, width))
    name = operation.node.name
    assembler.check_indices(picks, rows, name, picks_value.name)
    y = assembler.scratch(data.dtype, (1, count, width))
    layouts = (data.layout, picks.layout, y.layout)
    spec = gather.Gather(
        1, rows, count, width, *layouts, Fused(identity(data.dtype)), assembler.unit
    )
    assembler.call(spec, (data, picks, y), (name,), f"rows of {table_value.name}")
    return y.reshaped((batch, length, width))
