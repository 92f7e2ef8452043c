# SPDX-License-Identifier: Apache-2.0
"""RotaryEmbedding: pairs of entries of each head, turned by the angle of their position.

Source:
    Su et al., "RoFormer: Enhanced transformer with rotary position embedding", 2021
    (arXiv:2104.09864).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Apply, Body, Fused, identity
from intarsia.codegen.kernels import gather
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import operand
from intarsia.codegen.lower.views import View
from intarsia.graph.extract import constant_array
from intarsia.graph.graph import Value

CONTRIBUTED = "com.microsoft.RotaryEmbedding"
_SEQUENCES = 3
_HEADS = 4
_INDEX_DTYPES = ("int32", "int64")


@dataclass(frozen=True, slots=True)
class _Rotary:
    """What an operation turns.

    Attributes:
        cos: The table of cosines, `[positions, pairs]`; `[batch, length, pairs]` without positions.
        sin: Likewise of sines.
        positions: Rows of the tables, `[batch, length]`, or one: that of the first entry.
        heads: How many there are.
        pairs: Of each head.
        is_interleaved: Whether the entries of a pair lie side by side, not half a head apart.
    """

    cos: Value
    sin: Value
    positions: Value | None
    heads: int
    pairs: int
    is_interleaved: bool


def _read(operation: Operation) -> _Rotary | str:
    """Return what an operation turns, or why that is not known."""
    shape = operation.shape()
    if len(shape) not in (_SEQUENCES, _HEADS):
        return "its input has neither three nor four dimensions"
    if 0 in shape:
        return "its input is empty"
    order = (2, 3, 1) if operation.op_type == CONTRIBUTED else (1, 2, 3)
    cos, sin, positions = (operation.value(position) for position in order)
    assert cos is not None
    assert sin is not None
    turned = int(operation.attribute("rotary_embedding_dim", 0))
    heads = int(operation.attribute("num_heads", 0))
    table = cos.shape or ()
    if len(shape) == _HEADS:
        heads = shape[1]
    elif operation.op_type == CONTRIBUTED and not heads:
        if turned or not table or not table[-1] or shape[-1] % (2 * table[-1]):
            return "it does not say how many heads there are"
        heads = shape[-1] // (2 * table[-1])
    if not heads or (len(shape) == _SEQUENCES and shape[-1] % heads):
        return "its input is not a number of heads"
    size = shape[-1] if len(shape) == _HEADS else shape[-1] // heads
    turned = turned or size
    if turned % 2 or turned > size:
        return "it does not turn pairs"
    is_interleaved = bool(operation.attribute("interleaved", 0))
    return _Rotary(cos, sin, positions, heads, turned // 2, is_interleaved)


def refuse_rotary(operation: Operation) -> str | None:
    """Say why a rotary embedding is not taken."""
    if operation.attribute("full_angles", 0):
        dtypes = {value.dtype for value in operation.inputs}
        return "its angles are of another dtype" if len(dtypes) > 1 else None
    if operation.attribute("scale", 1.0) != 1:
        return "it has a scale"
    if operation.attribute("is_packed_batching", 0):
        return "its batch is packed"
    rotary = _read(operation)
    if isinstance(rotary, str):
        return rotary
    if {rotary.cos.dtype, rotary.sin.dtype} != {operation.inputs[0].dtype}:
        return "its tables are of another dtype"
    if rotary.positions is not None:
        return _refuse_positions(operation, rotary, rotary.positions)
    of_input = (*_extents(operation), rotary.pairs)
    return None if {rotary.cos.shape, rotary.sin.shape} == {of_input} else _OTHER_TABLES


def _refuse_positions(operation: Operation, rotary: _Rotary, positions: Value) -> str | None:
    if positions.dtype not in _INDEX_DTYPES:
        return f"its positions are {positions.dtype}"
    rows = (rotary.cos.shape or (0,))[0]
    if {rotary.cos.shape, rotary.sin.shape} != {(rows, rotary.pairs)} or not rows:
        return _OTHER_TABLES
    if not _is_first(positions) and positions.shape != _extents(operation):
        return "its positions are not those of its input"
    if positions.constant is not None:
        numbers = _positions(operation, positions)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < rows:
            return "a position is outside of its tables"
    return None


def _is_first(positions: Value) -> bool:
    """Tell whether one position is given: that of the first entry of each sequence."""
    return positions.shape == (1,)


_OTHER_TABLES = "its tables do not have the shape of its input"


def _extents(operation: Operation) -> tuple[int, int]:
    """Return the batch and the length of the sequences."""
    shape = operation.shape()
    return shape[0], shape[1 if len(shape) == _SEQUENCES else 2]


def _positions(operation: Operation, positions: Value) -> Array:
    """Return constant positions, `[batch or 1, length]`."""
    array = operation.array(operation.node.inputs.index(positions.id)).astype(np.int64)
    return array + np.arange(_extents(operation)[1])[None] if _is_first(positions) else array


def lower_rotary(assembler: Assembler, group: KernelGroup) -> None:
    """Append one kernel that turns all pairs, behind those that pick their angles."""
    operation = group.anchor
    if operation.attribute("full_angles", 0):
        _lower_full(assembler, group)
        return
    rotary = _read(operation)
    assert isinstance(rotary, _Rotary)
    if rotary.positions is None:
        angles = [assembler.read(table.id) for table in (rotary.cos, rotary.sin)]
    else:
        angles = _pick_angles(assembler, operation, rotary, rotary.positions)
    x = _as_heads(assembler.read(operation.node.inputs[0]), rotary)
    y = _as_heads(assembler.target(group.result), rotary)
    turn_pairs(assembler, x, y, angles, group.names, is_interleaved=rotary.is_interleaved)


def turn_pairs(
    assembler: Assembler,
    x: View,
    y: View,
    angles: Sequence[View],
    names: Sequence[str],
    *,
    is_interleaved: bool,
) -> None:
    """Append one kernel that turns pairs of entries, and a copy of those that are in no pair.

    Args:
        assembler: Of the program.
        x: `[batch, length, heads, size]`.
        y: Likewise, for the result.
        angles: Cosines and sines, `[batch or 1, length, pairs]`.
        names: Of the nodes that it computes.
        is_interleaved: Whether the entries of a pair lie side by side, not half a head apart.
    """
    pairs = angles[0].shape[-1]
    domain = (*x.shape[:-1], pairs)
    wide = [view.unsqueezed(2).expanded(domain) for view in angles]
    halves = [
        part for view in (x, y) for part in _halves(view, pairs, is_interleaved=is_interleaved)
    ]
    views = (*halves[:2], *wide, *halves[2:])
    layouts = tuple(view.layout for view in views)
    spec = Elementwise(domain, layouts[:4], layouts[4:], _turn(x.dtype), assembler.unit)
    assembler.call(spec, views, names)
    rest = x.shape[-1] - 2 * pairs
    if rest:
        x, y = (view.part(3, 2 * pairs, rest) for view in (x, y))
        assembler.copy(x, y, names, "not turned")


def _lower_full(assembler: Assembler, group: KernelGroup) -> None:
    """Append `x * cos + (-x2, x1) * sin`, of angles for all entries, in one kernel."""
    operation = group.anchor
    x, y = assembler.read(operation.node.inputs[0]), assembler.target(group.result)
    angles = [operand(assembler, i, x.shape, 0) for i in operation.node.inputs[1:]]
    is_interleaved = bool(operation.attribute("interleaved", 0))
    half = x.shape[-1] // 2
    parts = [_halves(view, half, is_interleaved=is_interleaved) for view in (x, *angles, y)]
    (x1, x2), (cos1, cos2), (sin1, sin2), results = parts
    views = (x1, x2, cos1, cos2, sin1, sin2, *results)
    products = ((0, 2), (1, 4), (1, 3), (0, 5))
    steps = [Apply("Mul", pair, (), x.dtype) for pair in products]
    steps += [Apply("Sub", (6, 7), (), x.dtype), Apply("Add", (8, 9), (), x.dtype)]
    layouts = tuple(view.layout for view in views)
    body = Body((x.dtype,) * 6, tuple(steps), (10, 11))
    spec = Elementwise(x1.shape, layouts[:6], layouts[6:], body, assembler.unit)
    assembler.call(spec, views, group.names)


def _turn(dtype: str) -> Body:
    """Return the body from two entries, a cosine and a sine to the entries turned."""
    products = ((0, 2), (1, 3), (0, 3), (1, 2))
    steps = [Apply("Mul", pair, (), dtype) for pair in products]
    steps += [Apply("Sub", (4, 5), (), dtype), Apply("Add", (6, 7), (), dtype)]
    return Body((dtype,) * 4, tuple(steps), (8, 9))


def _as_heads(view: View, rotary: _Rotary) -> View:
    """Return a tensor as `[batch, length, heads, size]`."""
    if len(view.shape) == _HEADS:
        return view.permuted((0, 2, 1, 3))
    return view.split(2, rotary.heads)


def _halves(view: View, pairs: int, *, is_interleaved: bool) -> tuple[View, View]:
    """Return the first and the second entries of all pairs."""
    last = len(view.shape) - 1
    if is_interleaved:
        return view.part(last, 0, pairs, 2), view.part(last, 1, pairs, 2)
    return view.part(last, 0, pairs), view.part(last, pairs, pairs)


def _pick_angles(
    assembler: Assembler, operation: Operation, rotary: _Rotary, positions: Value
) -> list[View]:
    """Return the entries of both tables for all positions, `[batch or 1, length, pairs]`."""
    tables, name = (rotary.cos, rotary.sin), operation.node.name
    if positions.constant is not None:
        numbers = _positions(operation, positions)
        if all(table.constant is not None for table in tables):
            return [
                assembler.constant(f"{name}/{table.name}", constant_array(table)[numbers])
                for table in tables
            ]
        picks = assembler.constant(f"{name}/positions", numbers)
    elif _is_first(positions):
        picks = _following(assembler, operation, positions)
    else:
        picks = assembler.read_dense(positions.id)
    is_checked = positions.constant is None
    return pick_angles(assembler, tables, picks, name, positions.name if is_checked else None)


def pick_angles(
    assembler: Assembler,
    tables: Sequence[Value],
    picks: View,
    name: str,
    checked: str | None,
) -> list[View]:
    """Append kernels that pick rows of tables; return them, `[batch, length, pairs]`.

    Args:
        assembler: Of the program.
        tables: Of cosines and of sines, `[positions, pairs]`.
        picks: Positions, dense, `[batch, length]`.
        name: Of the node.
        checked: The name of the positions if some may be outside of the tables, else None.
    """
    batch, length = picks.shape
    rows, pairs = tables[0].shape or (0, 0)
    count = batch * length
    picks = picks.reshaped((count,))
    if checked is not None:
        assembler.check_indices(picks, rows, name, checked)
    picked = []
    for table in tables:
        data = assembler.read_dense(table.id).reshaped((1, rows, pairs))
        angles = assembler.scratch(data.dtype, (1, count, pairs))
        layouts = (data.layout, picks.layout, angles.layout)
        keep = Fused(identity(data.dtype))
        spec = gather.Gather(1, rows, count, pairs, *layouts, keep, assembler.unit)
        assembler.call(spec, (data, picks, angles), (name,), f"angles of {table.name}")
        picked.append(angles.reshaped((batch, length, pairs)))
    return picked


def _following(assembler: Assembler, operation: Operation, first: Value) -> View:
    """Return the positions from the first one on, `[1, length]`."""
    length = _extents(operation)[1]
    steps = assembler.constant(
        f"steps/{length}/{first.dtype}", np.arange(length, dtype=first.dtype)
    )
    start = assembler.read(first.id).expanded((length,))
    total = assembler.scratch(first.dtype, (length,))
    views = (start, steps, total)
    layouts = tuple(view.layout for view in views)
    body = Body((first.dtype,) * 2, (Apply("Add", (0, 1), (), first.dtype),), (2,))
    spec = Elementwise((length,), layouts[:2], layouts[2:], body, assembler.unit)
    assembler.call(spec, views, (operation.node.name,), "positions")
    return total.reshaped((1, length))
