# SPDX-License-Identifier: Apache-2.0
"""Operators that only move or rename elements: most are views, and cost nothing."""

from __future__ import annotations

from dataclasses import replace

from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import Group
from intarsia.codegen.lower.layouts import concat_dim
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.views import CHANNELS, View


def lower_reshape(assembler: Assembler, group: Group) -> None:
    """Rename a dense tensor: Reshape, Flatten, Squeeze, Unsqueeze."""
    operation = group.anchor
    view = assembler.read_dense(operation.node.inputs[0])
    assembler.alias(group.result, view.reshaped(operation.output_shape))


def lower_transpose(assembler: Assembler, group: Group) -> None:
    """Swap the strides; who reads it may copy it."""
    operation = group.anchor
    view = assembler.read(operation.node.inputs[0])
    rank = len(view.shape)
    order = operation.attribute("perm", tuple(reversed(range(rank))))
    assembler.alias(group.result, view.permuted(order))


def lower_expand(assembler: Assembler, group: Group) -> None:
    """Broadcast by strides of 0."""
    operation = group.anchor
    view = assembler.read(operation.node.inputs[0])
    assembler.alias(group.result, view.expanded(operation.output_shape))


def lower_concat(assembler: Assembler, group: Group) -> None:
    """Copy what does not lie in its place already."""
    operation, dim = group.anchor, concat_dim(group)
    whole = assembler.target(group.result)
    start = 0
    for value_id in operation.node.inputs:
        size = (assembler.graph.values[value_id].shape or ())[dim]
        if whole.block and dim == CHANNELS and start % whole.block:
            _join_inside(assembler, assembler.read(value_id, whole.block), whole, start, group)
        else:
            part = whole.part(dim, start, size)
            if not assembler.lies_at(value_id, part):
                assembler.copy(assembler.read(value_id, whole.block), part, group.names, "join")
        start += size


def _join_inside(assembler: Assembler, part: View, whole: View, start: int, group: Group) -> None:
    """Copy blocked channels to where they begin inside a block: each block goes to two.

    The lanes behind the last channel come along; what is joined next overwrites them.
    """
    size, block = part.shape[CHANNELS], part.block
    first, lane = divmod(start, block)
    head = block - lane
    for source, place, lanes in ((0, (first, lane), head), (head, (first + 1, 0), lane)):
        count = -(-(size - source) // block)  # blocks that have something there
        if count > 0:
            assembler.copy(
                _lanes(part, (0, source), count, lanes),
                _lanes(whole, place, count, lanes),
                *(group.names, "join"),
            )


def _lanes(view: View, place: tuple[int, int], count: int, lanes: int) -> View:
    """Return some lanes of some blocks of channels from a block and lane on, as a plain tensor."""
    block, lane = place
    begin = view.at((0, block, *[0] * len(view.shape[2:]), lane))
    return replace(begin, shape=(view.shape[0], count, *view.shape[2:], lanes), block=0)


def lower_split(assembler: Assembler, group: Group) -> None:
    """Take parts as views."""
    operation = group.anchor
    value_id = operation.node.inputs[0]
    rank = len(operation.shape())
    dim = operation.attribute("axis", 0) % rank
    start = 0
    sizes = [(value.shape or ())[dim] for value in operation.outputs]
    block = _block_for_parts(assembler, value_id, dim, [sum(sizes[:i]) for i in range(len(sizes))])
    view = assembler.read(value_id, block)
    for value, size in zip(operation.outputs, sizes, strict=True):
        assembler.alias(value.id, view.part(dim, start, size))
        start += size


def refuse_slice(operation: Operation) -> str | None:
    """Say why a slice is not taken: where it starts has to be known when compiling."""
    if operation.opset >= _SLICE_BY_INPUTS:
        for position, name in ((1, "starts"), (3, "axes"), (4, "steps")):
            if operation.value(position) is not None and not operation.is_constant(position):
                return f"its {name} are not constant"
    return None


_SLICE_BY_INPUTS = 10
"""The operator set in which the attributes of Slice became inputs."""


def slices(operation: Operation) -> list[tuple[int, int, int]]:
    """Return first index, size and step of a `Slice` for each dimension."""
    shape, wanted = operation.shape(), operation.output_shape
    found = [(0, extent, 1) for extent in shape]
    starts = operation.attribute("starts") or operation.numbers(1) or ()
    axes = operation.attribute("axes") or operation.numbers(3) or tuple(range(len(starts)))
    steps = operation.numbers(4) or (1,) * len(starts)
    for start, axis, step in zip(starts, axes, steps, strict=True):
        dim = axis % len(shape)
        extent = shape[dim]
        first = start + extent if start < 0 else start
        first = min(max(first, 0), extent if step > 0 else extent - 1)
        found[dim] = (first, wanted[dim], step)
    return found


def lower_slice(assembler: Assembler, group: Group) -> None:
    """Take a part as a view; steps, also backwards, are strides."""
    operation = group.anchor
    parts = slices(operation)
    value_id = operation.node.inputs[0]
    block = 0
    if len(parts) > CHANNELS and parts[CHANNELS][2] == 1:
        block = _block_for_parts(assembler, value_id, CHANNELS, [parts[CHANNELS][0]])
    view = assembler.read(value_id, block)
    for dim, (first, size, step) in enumerate(parts):
        is_all = first == 0 and step == 1 and size == view.shape[dim]
        if not is_all and size:
            view = view.part(dim, first, size, step)
    view = replace(view, shape=operation.output_shape)
    if any(step < 0 for _, _, step in parts):  # other kernels only go forwards
        assembler.copy(view, assembler.target(group.result), group.names, "backwards")
    else:
        assembler.alias(group.result, view)


def _block_for_parts(assembler: Assembler, value_id: int, dim: int, starts: list[int]) -> int:
    """Return the block that a value has if parts of it can be taken in that layout, else 0."""
    block = assembler.plan.blocks.get(value_id, 0)
    if block and dim == CHANNELS and any(start % block for start in starts):
        return 0
    return block


def lower_shuffle(assembler: Assembler, group: Group) -> None:
    """Copy with channels and both spatial dimensions cut up: DepthToSpace, SpaceToDepth."""
    operation = group.anchor
    x, y = assembler.read(operation.node.inputs[0]), assembler.target(group.result)
    size = operation.attribute("blocksize")
    is_deep = operation.op_type == "SpaceToDepth"
    deep, wide = (y, x) if is_deep else (x, y)
    channels = wide.shape[CHANNELS]
    if operation.attribute("mode", "DCR") == "CRD":
        order = (0, 1, 4, 2, 5, 3)
        deep = deep.split(CHANNELS, channels).split(CHANNELS + 1, size)
    else:
        order = (0, 3, 4, 1, 5, 2)
        deep = deep.split(CHANNELS, size).split(CHANNELS + 1, size)
    deep = deep.permuted(order)
    wide = wide.split(3, wide.shape[3] // size).split(2, wide.shape[2] // size)
    assembler.copy(*((wide, deep) if is_deep else (deep, wide)), group.names)
