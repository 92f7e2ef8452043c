# SPDX-License-Identifier: Apache-2.0
"""Operators that move or rename elements, copy or blend them by tables, or are known already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from intarsia.codegen.body import Fused, identity
from intarsia.codegen.kernels import resize
from intarsia.codegen.kernels.entry_tables import PadTables, SliceTables
from intarsia.codegen.kernels.fill import Fill, pad_table
from intarsia.codegen.kernels.remap import Remap
from intarsia.codegen.kernels.resize import Filter, Linear, ResizedAxis, Weighted
from intarsia.codegen.lower.assembler import Array, Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.layouts import Wish, concat_dim
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import fuse
from intarsia.codegen.lower.views import CHANNELS, View
from intarsia.codegen.unit import CpuModel
from intarsia.extents import Size, UndecidedError, divide, is_free
from intarsia.graph.ops import ViewKind, operator_of


def lower_reshape(assembler: Assembler, group: KernelGroup) -> None:
    """Rename a tensor, copied if strides forbid it: Reshape, Flatten, Squeeze, Unsqueeze."""
    operation = group.anchor
    source, shape = operation.node.inputs[0], operation.output_shape
    before = assembler.read(source)
    view = before.viewed_as(shape)
    if view is None and _joins_channels(before.shape, shape):
        assembler.join_channels(group.result, source)
        return
    if view is None:
        view = assembler.read_dense(source).reshaped(shape)
    assembler.alias(group.result, view)


def _joins_channels(before: Sequence[Size], after: Sequence[Size]) -> bool:
    """Tell whether a Reshape makes channels of two dimensions, and leaves all others."""
    two, more = before[CHANNELS : CHANNELS + 2], before[CHANNELS + 2 :]
    return (
        len(before) == len(after) + 1 > CHANNELS + 2
        and not is_free(two)
        and 0 not in two
        and (*before[:CHANNELS], prod(two), *more) == tuple(after)
    )


def lower_transpose(assembler: Assembler, group: KernelGroup) -> None:
    """Swap the strides; its reader may copy it."""
    operation = group.anchor
    view = assembler.read(operation.node.inputs[0])
    rank = len(view.shape)
    order = operation.attribute("perm", tuple(reversed(range(rank))))
    assembler.alias(group.result, view.permuted(order))


def lower_expand(assembler: Assembler, group: KernelGroup) -> None:
    """Broadcast by strides of 0."""
    operation = group.anchor
    view = assembler.read(operation.node.inputs[0])
    assembler.alias(group.result, view.expanded(operation.output_shape))


def lower_concat(assembler: Assembler, group: KernelGroup) -> None:
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
                source = assembler.read(value_id, whole.block)
                # Rows that others are joined to may be where they belong, as a cache's are.
                is_kept = dim == start == 0 and not whole.block
                assembler.copy(source, part, group.names, "join", is_kept=is_kept)
        start += size


def _join_inside(
    assembler: Assembler, part: View, whole: View, start: int, group: KernelGroup
) -> None:
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
                group.names,
                "join",
            )


def _lanes(view: View, place: tuple[int, int], count: int, lanes: int) -> View:
    """Return some lanes of some blocks of channels from a block and lane on, as a plain tensor."""
    block, lane = place
    begin = view.at((0, block, *[0] * len(view.shape[2:]), lane))
    return replace(begin, shape=(view.shape[0], count, *view.shape[2:], lanes), block=0)


def refuse_split(operation: Operation) -> str | None:
    """Say why a split is not taken."""
    rank = len(operation.shape())
    extents = operation.inputs[0].extents or operation.shape()
    has_sizes = operation.value(1) is not None or operation.attribute("split") is not None
    if has_sizes and is_free((extents[operation.attribute("axis", 0) % rank],)):
        return "its sizes may not add up to the extent, which is free"
    return None


def lower_split(assembler: Assembler, group: KernelGroup) -> None:
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
    """Say why a slice is not taken."""
    if is_slice_computed(operation) and not operation.shape():
        return "its input is a scalar"
    return None


def is_slice_computed(operation: Operation) -> bool:
    """Tell whether where it starts, or its axes or steps, come when it runs."""
    names = {1: "starts are", 3: "axes are", 4: "steps are"}
    return operation.opset >= _SLICE_BY_INPUTS and operation.why_computed(names) is not None


_SLICE_BY_INPUTS = 10
"""The operator set in which the attributes of Slice became inputs."""


def slices(operation: Operation) -> list[tuple[int, int, int]]:
    """Return first index, size and step of a `Slice` for each dimension."""
    shape, wanted = operation.shape(), operation.output_shape
    cuts = [(0, extent, 1) for extent in shape]
    starts = operation.attribute("starts") or operation.numbers(1) or ()
    axes = operation.attribute("axes") or operation.numbers(3) or tuple(range(len(starts)))
    steps = operation.numbers(4) or (1,) * len(starts)
    for start, axis, step in zip(starts, axes, steps, strict=True):
        dim = axis % len(shape)
        extent = shape[dim]
        first = start + extent if start < 0 else start
        first = min(max(first, 0), extent if step > 0 else extent - 1)
        cuts[dim] = (first, wanted[dim], step)
    return cuts


def lower_slice(assembler: Assembler, group: KernelGroup) -> None:
    """Take a part as a view; steps, also backwards, are strides."""
    operation = group.anchor
    if is_slice_computed(operation):
        _slice_by_tables(assembler, group)
        return
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


def _slice_by_tables(assembler: Assembler, group: KernelGroup) -> None:
    """Copy what parameters say that come when it runs."""
    operation = group.anchor
    x, y = assembler.read(operation.node.inputs[0]), assembler.target(group.result)
    starts = operation.value(1)
    if starts is None or 0 in y.shape:
        return
    parameters = _read_parameters(assembler, operation, (1, 2, 3, 4))
    layouts = (view.layout if view else None for view in parameters)
    spec = SliceTables(x.shape, y.shape, prod(starts.shape or ()), *layouts)  # type: ignore[arg-type] # starts and ends are there
    given = [view for view in parameters if view is not None]
    tables = assembler.make_tables(spec, given, starts, operation.node)
    _remap(assembler, group, x, y, list(tables))


def _read_parameters(
    assembler: Assembler, operation: Operation, positions: Sequence[int]
) -> list[View | None]:
    """Return parameters without gaps; None for those that are absent."""
    values = [operation.value(position) for position in positions]
    return [None if value is None else assembler.read_dense(value.id) for value in values]


def _block_for_parts(assembler: Assembler, value_id: int, dim: int, starts: list[int]) -> int:
    """Return the block that a value has if parts of it can be taken in that layout, else 0."""
    block = assembler.plan.blocks.get(value_id, 0)
    if block and dim == CHANNELS and any(start % block for start in starts):
        return 0
    return block


def lower_shuffle(assembler: Assembler, group: KernelGroup) -> None:
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


def _shape(operation: Operation) -> Array:
    shape = operation.shape()
    return np.array(shape[operation.attribute("start", 0) : operation.attribute("end")], np.int64)


def _size(operation: Operation) -> Array:
    return np.array(prod(operation.shape()), np.int64)


def _constant_of_shape(operation: Operation) -> Array:
    return np.full(operation.output_shape, _repeated(operation))


def _repeated(operation: Operation) -> Array:
    """Return the number of a `ConstantOfShape`, as a scalar."""
    value: Array = operation.attribute("value", np.zeros(1, np.float32))
    return value.reshape(())


def _eye_like(operation: Operation) -> Array:
    rows, columns = operation.output_shape
    dtype = np.dtype(operation.output.dtype)
    return np.eye(rows, columns, operation.attribute("k", 0), dtype)


def _constant(operation: Operation) -> Array:
    (value,) = operation.attributes.values()
    return np.asarray(value, operation.output.dtype)


CONSTANTS: dict[str, Callable[[Operation], Array]] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _eye_like,
    "Shape": _shape,
    "Size": _size,
}
"""Each operator with what computes its result."""


def lower_constant(assembler: Assembler, group: KernelGroup) -> None:
    """Say that the result is a constant.

    Raises:
        UndecidedError: It is of a free size, and not one number everywhere.
    """
    operation = group.anchor
    shape, name = operation.output_shape, operation.output.name
    if is_free(shape):  # one number is read everywhere
        if operation.op_type != "ConstantOfShape":
            raise UndecidedError(
                f"where the numbers of {operation.op_type} are depends on the sizes"
            )
        view = assembler.constant(name, _repeated(operation))
        view = replace(view, shape=shape, strides=(0,) * len(shape))
    else:
        view = assembler.constant(name, CONSTANTS[operation.op_type](operation))
    assembler.alias(group.result, view)


_PAD_BY_INPUTS = 11
"""The operator set in which the attributes of Pad became inputs."""
_OUTER = 2
"""Dimensions of a blocked tensor before the spatial ones."""


# Pad


def borders(operation: Operation) -> list[tuple[int, int]]:
    """Return for each dimension what a `Pad` adds before and after it; negative ones cut off."""
    if operation.op_type == "CenterCropPad":
        pairs = zip(operation.shape(), operation.output_shape, strict=True)
        return [_around_centre(old, new) for old, new in pairs]
    rank = len(operation.shape())
    amounts = operation.attribute("pads") or operation.attribute("paddings") or operation.numbers(1)
    assert amounts is not None
    axes = tuple(range(rank))
    if operation.opset >= _PAD_BY_INPUTS:
        axes = operation.axes("axes", 3) or axes
    added = [(0, 0)] * rank
    for axis, pair in zip(
        axes, zip(amounts[: len(axes)], amounts[len(axes) :], strict=True), strict=True
    ):
        added[axis] = pair
    return added


def _around_centre(old: int, new: int) -> tuple[int, int]:
    """Return what is added on both sides of a dimension; of an odd number more behind it."""
    before, after = abs(new - old) // 2, (abs(new - old) + 1) // 2
    return (before, after) if new >= old else (-before, -after)


def refuse_pad(operation: Operation) -> str | None:
    """Say why a `Pad` is not taken."""
    mode = operation.attribute("mode", "constant")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        return f"Pad in mode {mode}"
    if operation.opset >= _PAD_BY_INPUTS:
        if not operation.shape():
            return "its input is a scalar"
        if _is_pad_computed(operation):
            pairs = zip(operation.shape(), operation.output_shape, strict=True)
            if 0 in operation.shape():
                return "its pads are not constant, and its input is empty"
            # Libraries differ in what entries that are cut off are reflected of.
            is_cut = any(new < max(1, old) for old, new in pairs)
            return "its pads are not constant" if mode != "constant" and is_cut else None
    if not operation.shape():
        return "its input is a scalar"
    if mode != "constant":
        if 0 in operation.shape():
            return f"its input is empty, and there is nothing to {mode}"
        if any(min(pair) < 0 for pair in borders(operation)):
            return f"it cuts entries off in mode {mode}"
    return None


def _is_pad_computed(operation: Operation) -> bool:
    """Tell whether pads, their axes or the value come when it runs."""
    names = {1: "pads are", 2: "value is", 3: "axes are"}
    has_inputs = operation.op_type == "Pad" and operation.opset >= _PAD_BY_INPUTS
    return has_inputs and operation.why_computed(names) is not None


def wish_pad(operation: Operation, _unit: CpuModel) -> Wish:
    """Keep blocks of channels where only spatial dimensions get wider."""
    if _is_pad_computed(operation) or any(any(pair) for pair in borders(operation)[:_OUTER]):
        return Wish()
    return Wish("follow", (operation.node.inputs[0],))


def lower_pad(assembler: Assembler, group: KernelGroup) -> None:
    """Copy into the inside, and fill what is around it; the other modes copy by tables."""
    operation = group.anchor
    if _is_pad_computed(operation):
        _pad_by_tables(assembler, group)
        return
    block = assembler.plan.blocks.get(group.result, 0)
    x, y = assembler.read(operation.node.inputs[0], block), assembler.target(group.result)
    pads = borders(operation)
    mode = operation.attribute("mode", "constant")
    if mode != "constant":
        tables = [
            pad_table(mode, extent, *pair) if any(pair) else None
            for extent, pair in zip(x.shape, pads, strict=True)
        ]
        _remap(assembler, group, x, y, tables)
        return
    source, inside = x, y
    for dim, (before, after) in enumerate(pads):
        cut = x.shape[dim] + min(before, 0) + min(after, 0)
        source = (
            source.part(dim, max(-before, 0), max(cut, 0)) if (before, after) != (0, 0) else source
        )
        if before > 0 or after > 0:
            inside = inside.part(dim, max(before, 0), max(cut, 0))
    assembler.copy(source, inside, group.names, "inside")
    inner = [
        (max(before, 0), extent - max(after, 0))
        for extent, (before, after) in zip(y.shape, pads, strict=True)
    ]
    if 0 in source.shape:
        inner = [(0, 0)] * len(inner)
    if block:
        batch, channels, *spatial = inner
        whole = (0, y.domain[CHANNELS]) if channels[1] else (0, 0)
        inner = [batch, whole, *spatial, (0, block)]
    spec = Fill(y.domain, tuple(inner), y.layout, _pad_value(operation), assembler.unit)
    entries = prod(y.domain) - prod(end - first for first, end in inner)
    filled = entries * y.item_bytes
    assembler.call(spec, (y,), group.names, "border", filled, is_border=True)


def _pad_by_tables(assembler: Assembler, group: KernelGroup) -> None:
    """Pad as parameters say that come when it runs."""
    operation = group.anchor
    x, y = assembler.read(operation.node.inputs[0]), assembler.target(group.result)
    amounts = operation.value(1)
    if amounts is None or 0 in y.shape:
        return
    mode = operation.attribute("mode", "constant")
    pads, axes, value = _read_parameters(assembler, operation, (1, 3, 2))
    assert pads is not None
    axes_layout = axes.layout if axes else None
    spec = PadTables(x.shape, y.shape, prod(pads.shape) // 2, mode, pads.layout, axes_layout)
    parameters = (pads, axes) if axes else (pads,)
    tables = assembler.make_tables(spec, parameters, amounts, operation.node)
    outside = None
    if mode == "constant":
        if value is None or 0 in value.shape:
            value = assembler.constant("zero", np.zeros(1, x.dtype))
        outside = value.reshaped((1,))
    _remap(assembler, group, x, y, list(tables), outside)


def _pad_value(operation: Operation) -> float:
    if operation.opset < _PAD_BY_INPUTS:
        return float(operation.attribute("value", 0.0))
    if operation.value(2) is None or not operation.array(2).size:
        return 0
    number: float = operation.array(2).reshape(-1)[0].item()
    return number


def _remap(
    assembler: Assembler,
    group: KernelGroup,
    x: View,
    y: View,
    tables: Sequence[Array | View | None],
    outside: View | None = None,
) -> None:
    """Append a copy by a table for each of some dimensions; -1 stands for a value from outside."""
    marks = [table is not None for table in tables]
    if x.block:
        marks.append(False)
    epilogue = Fused(identity(x.dtype))
    spec = Remap(
        y.domain,
        x.domain,
        tuple(marks),
        x.layout,
        y.layout,
        1,
        epilogue,
        assembler.unit,
        outside.layout if outside else None,
    )
    name = group.anchor.node.name
    views = [
        table if isinstance(table, View) else assembler.constant(f"{name}/table{dim}", table)
        for dim, table in enumerate(tables)
        if table is not None
    ]
    values = () if outside is None else (outside,)
    assembler.call(spec, (x, *views, *values, y), group.names)


# Resize


def refuse_resize(operation: Operation) -> str | None:
    """Say why a `Resize` or `Upsample` is not taken."""
    if not operation.shape() or 0 in operation.shape():
        return "its input is empty or a scalar"
    mode = operation.attribute("mode", "nearest")
    if _is_old(operation):
        mode = "linear" if mode == "bilinear" else mode
        problem = operation.why_computed({1: "scales are"})
        if mode == "cubic":
            problem = f"{operation.op_type} in mode cubic before version 11"
        problem = problem or resize.refuse(mode, "asymmetric", "simple")
    else:
        value = operation.value(2)
        if value is not None and value.shape != (0,) and not operation.is_constant(2):
            return "its scales are not constant"
        is_stretched = operation.attribute("keep_aspect_ratio_policy", "stretch") == "stretch"
        if _are_sizes_computed(operation) and not is_stretched:
            return "its sizes are not constant"
        rounding = operation.attribute("nearest_mode", "round_prefer_floor")
        problem = resize.refuse(mode, _coordinates(operation), rounding)
    problem = problem or _why_ambiguous(operation)
    if problem is not None:
        return problem
    dtype = operation.inputs[0].dtype
    is_copy = mode == "nearest" and _coordinates(operation) != _CROP
    if not is_copy and dtype not in ("float32", "float64"):
        return f"{mode} {operation.op_type} of {dtype} has no native code"
    is_crop = _coordinates(operation) == _CROP
    if dtype == "float64" and (mode == "cubic" or (is_crop and mode == "linear")):
        return f"{mode} {operation.op_type} of {dtype}, which ONNX's reference weighs in float32"
    return None


def _are_sizes_computed(operation: Operation) -> bool:
    """Tell whether the sizes come when it runs; those of the result say what they are."""
    value = None if _is_old(operation) else operation.value(3)
    return value is not None and value.shape != (0,) and value.constant is None


def _why_ambiguous(operation: Operation) -> str | None:
    """Say where ONNX and its runtimes differ about a Resize, or rounding decides."""
    coordinates, how = _coordinates(operation), _filter(operation)
    if coordinates == _CROP and not operation.is_constant(1):
        return "its region is not constant"
    if coordinates in ("align_corners", _CROP) and any(
        not axis.stays and abs(axis.scale * axis.extent - axis.out) > _ROUNDING * axis.out
        for axis in resized(operation)[1]
    ):
        return "it aligns corners that lie between entries"
    if coordinates == _CROP:
        if operation.attribute("antialias", 0):
            return "antialias of a region"
        if any(resize.is_doubtful(axis, how.mode) for axis in resized(operation)[1]):
            return "which entries its region has is up to rounding"
    if how.mode == "nearest" or (
        how.mode == "linear" and not (how.antialias or how.exclude_outside)
    ):
        return None
    if coordinates == "pytorch_half_pixel" and any(
        axis.out == 1 and not axis.stays for axis in resized(operation)[1]
    ):
        return "where one entry lies in pytorch_half_pixel"
    if how.exclude_outside and any(
        not _is_inside(axis) for axis in resized(operation)[1] if coordinates != _CROP
    ):
        return "all that an entry reads may lie outside"
    return None


def _is_inside(axis: ResizedAxis) -> bool:
    """Tell whether every output entry lies less than one entry outside."""
    at = resize.positions(axis, "float64")
    return bool(((at > -1) & (at < axis.extent)).all())


_CROP = "tf_crop_and_resize"
_ROUNDING = 1e-5
"""How far off a scale may be, which is a float32."""
_OLD_RESIZE = 10
"""The operator set of the first `Resize`, whose coordinates are those of `Upsample`."""


def _is_old(operation: Operation) -> bool:
    return operation.op_type == "Upsample" or operation.opset <= _OLD_RESIZE


def _filter(operation: Operation) -> Filter:
    mode = operation.attribute("mode", "nearest")
    return Filter(
        "linear" if mode == "bilinear" else mode,
        operation.attribute("cubic_coeff_a", -0.75),
        bool(operation.attribute("antialias", 0)),
        bool(operation.attribute("exclude_outside", 0)),
    )


def _coordinates(operation: Operation) -> str:
    default = "asymmetric" if operation.opset <= _OLD_RESIZE else "half_pixel"
    mode: str = operation.attribute("coordinate_transformation_mode", default)
    return mode


def _scales(operation: Operation) -> list[float]:
    """Return the factor of each dimension."""
    shape, out = operation.shape(), operation.output_shape
    # One that stays may be free.
    scales = [1.0 if new == old else new / old for new, old in zip(out, shape, strict=True)]
    position = 1 if _is_old(operation) else 2
    factors = operation.attribute("scales")
    if factors is None and operation.is_constant(position):
        factors = operation.array(position).reshape(-1).tolist()
    axes = [axis % len(shape) for axis in operation.attribute("axes") or range(len(shape))]
    if factors:
        for axis, scale in zip(axes, factors, strict=True):
            scales[axis] = scale
        return scales
    policy = operation.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        sizes = operation.numbers(3) or ()
        choose = min if policy == "not_larger" else max
        common = choose(size / shape[axis] for size, axis in zip(sizes, axes, strict=True))
        for axis in axes:
            scales[axis] = common
    return scales


def _crops(operation: Operation) -> list[tuple[float, float]]:
    """Return the region of each dimension, from 0 to 1."""
    rank = len(operation.shape())
    crops = [(0.0, 1.0)] * rank
    if _coordinates(operation) == _CROP and operation.array(1).size:
        bounds = operation.array(1).astype(np.float64).reshape(2, -1).T.tolist()
        axes = operation.attribute("axes") or range(rank)
        for axis, (start, end) in zip(axes, bounds, strict=True):
            crops[axis % rank] = (start, end)
    return crops


def resized(operation: Operation) -> tuple[int, tuple[ResizedAxis, ...]]:
    """Return how many dimensions in front stay, and how the others are resized."""
    is_old = _is_old(operation)
    rounding = "simple" if is_old else operation.attribute("nearest_mode", "round_prefer_floor")
    coordinates = "asymmetric" if is_old else _coordinates(operation)
    axes = [
        ResizedAxis(old, new, scale, coordinates, rounding, crop)
        for old, new, scale, crop in zip(
            operation.shape(),
            operation.output_shape,
            _scales(operation),
            _crops(operation),
            strict=True,
        )
    ]
    stay = 0
    while stay < len(axes) - 1 and axes[stay].stays:
        stay += 1
    return stay, tuple(axes[stay:])


def wish_resize(operation: Operation, unit: CpuModel) -> Wish:
    """Keep blocks of channels where only spatial dimensions are resized; tokens are blocks too."""
    stay, _ = resized(operation)
    if stay < _OUTER:
        return Wish()
    channels = operation.shape()[CHANNELS]
    is_filled = isinstance(channels, int) and not channels % unit.lanes()
    if is_filled and operation.output.dtype == "float32" and _were_tokens(operation):
        return Wish("blocked")
    return Wish("follow", (operation.node.inputs[0],))


def _were_tokens(operation: Operation) -> bool:
    """Tell whether an image is made of tokens, whose channels lie one after the other."""
    graph, producer = operation.graph, operation.inputs[0].producer
    while producer >= 0:
        node = graph.nodes[producer]
        if node.op_type == "Transpose" and not node.domain:
            perm = node.ir.attributes.get_ints("perm", ())
            return len(perm) > CHANNELS and perm[CHANNELS] == len(perm) - 1
        if operator_of(node).view is not ViewKind.RESHAPED:
            return False
        producer = graph.values[node.inputs[0]].producer
    return False


def lower_resize(assembler: Assembler, group: KernelGroup) -> None:
    """Append nearest neighbours as a copy by tables, linear interpolation, or a weighted sum."""
    operation = group.anchor
    block = assembler.plan.blocks.get(group.result, 0)
    stay, axes = resized(operation)
    sizes = operation.value(3)
    if sizes is not None and sizes.entries is None and _are_sizes_computed(operation):
        shape, dims = operation.output_shape, operation.attribute("axes")
        wanted = [shape[dim] for dim in dims] if dims else shape
        assembler.check_numbers(sizes, wanted, operation.node)
    if block and stay > _OUTER:
        rest = operation.shape()[_OUTER:stay]
        axes = (*(ResizedAxis(extent, extent, 1.0) for extent in rest), *axes)
        stay = _OUTER
    x = assembler.read(operation.node.inputs[0], block)
    fused, operands = fuse(assembler, group, x.dtype)
    y = assembler.target(group.result)
    views = [view.as_blocks() for view in (x, y, *operands)]
    layouts = [view.layout for view in views]
    epilogue = fused.over(layouts[2:])
    outer = y.domain[:stay]
    how = _filter(operation)
    is_crop = _coordinates(operation) == _CROP
    spec: Remap | Linear | Weighted
    if (
        is_crop
        or how.mode == "cubic"
        or (how.mode == "linear" and (how.antialias or how.exclude_outside))
    ):
        outside = operation.attribute("extrapolation_value", 0.0) if is_crop else None
        spec = Weighted(
            outer, axes, how, layouts[0], layouts[1], block or 1, outside, epilogue, assembler.unit
        )
        tables = resize.weighted_tables(spec)
    elif how.mode == "nearest":
        spec, tables = resize.nearest(
            outer, axes, block or 1, layouts[0], layouts[1], epilogue, assembler.unit
        )
    else:
        spec = Linear(
            outer, axes, layouts[0], layouts[1], block or 1, epilogue=epilogue, unit=assembler.unit
        )
        tables = resize.linear_tables(spec)
    constants = [
        assembler.constant(f"{operation.node.name}/table{number}", table)
        for number, table in enumerate(tables)
    ]
    assembler.call(spec, (views[0], *constants, *views[1:]), group.names)


# Tile


def refuse_tile(operation: Operation) -> str | None:
    """Say why a `Tile` is not taken."""
    if operation.opset < _TILE_BY_REPEATS:
        return "Tile before operator set 6"
    return None


_TILE_BY_REPEATS = 6
"""The operator set in which Tile got all repeats as one input."""


def _times(new: Size, old: Size) -> Size:
    """Return how often an extent is in another one, once if it is 0."""
    if old == 0:
        return new
    times = divide(new, old)
    assert times is not None
    return times


def lower_tile(assembler: Assembler, group: KernelGroup) -> None:
    """Copy a tensor that is broadcast along a new dimension before each one."""
    operation = group.anchor
    x, y = assembler.read(operation.node.inputs[0]), assembler.target(group.result)
    repeats = [_times(new, old) for new, old in zip(y.shape, x.shape, strict=True)]
    given = operation.value(1)
    is_open = given is not None and given.constant is None and given.entries is None
    if given is not None and is_open and 0 not in (*x.shape, *y.shape):
        assembler.check_numbers(given, repeats, operation.node)
    shape: list[Size] = []
    strides: list[Size] = []
    for dim, (count, extent, step) in enumerate(zip(repeats, x.shape, x.strides, strict=True)):
        shape += [count, extent]
        # The new dimension has a stride of 0: each repetition reads the same entries.
        strides += [0, step]
        y = y.split(2 * dim, count)
    if 0 not in shape:
        assembler.copy(replace(x, shape=tuple(shape), strides=tuple(strides)), y, group.names)
