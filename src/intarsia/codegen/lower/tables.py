# SPDX-License-Identifier: Apache-2.0
"""Operators that copy or blend entries at places known when compiling: Pad, Resize, Tile."""

from __future__ import annotations

from dataclasses import replace

from intarsia.codegen.body import Fused, identity
from intarsia.codegen.kernels import resize
from intarsia.codegen.kernels.fill import Fill, pad_table
from intarsia.codegen.kernels.remap import Remap
from intarsia.codegen.kernels.resize import Linear, ResizedAxis
from intarsia.codegen.lower.assembler import Array, Assembler
from intarsia.codegen.lower.groups import Group
from intarsia.codegen.lower.layouts import Wish
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import fuse
from intarsia.codegen.lower.views import CHANNELS, View
from intarsia.codegen.unit import VectorUnit

_PAD_BY_INPUTS = 11
"""The operator set in which the attributes of Pad became inputs."""
_OUTER = 2
"""Dimensions of a blocked tensor before the spatial ones."""


# Pad


def borders(operation: Operation) -> list[tuple[int, int]]:
    """Return for each dimension what a `Pad` adds before and after it; negative ones cut off."""
    rank = len(operation.shape())
    given = operation.attribute("pads") or operation.attribute("paddings") or operation.numbers(1)
    assert given is not None
    axes = tuple(range(rank))
    if operation.opset >= _PAD_BY_INPUTS:
        axes = operation.axes("axes", 3) or axes
    found = [(0, 0)] * rank
    for axis, pair in zip(
        axes, zip(given[: len(axes)], given[len(axes) :], strict=True), strict=True
    ):
        found[axis] = pair
    return found


def refuse_pad(operation: Operation) -> str | None:
    """Say why a `Pad` is not taken."""
    mode = operation.attribute("mode", "constant")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        return f"Pad in mode {mode}"
    if operation.opset >= _PAD_BY_INPUTS:
        for position, name in ((1, "pads"), (2, "value"), (3, "axes")):
            if operation.value(position) is not None and not operation.is_constant(position):
                return f"its {name} {'is' if position == _OUTER else 'are'} not constant"
    if not operation.shape():
        return "its input is a scalar"
    if mode != "constant":
        if 0 in operation.shape():
            return f"its input is empty, and there is nothing to {mode}"
        if any(min(pair) < 0 for pair in borders(operation)):
            return f"it cuts entries off in mode {mode}"
    return None


def wish_pad(operation: Operation, unit: VectorUnit) -> Wish:
    """Keep blocks of channels where only spatial dimensions get wider."""
    del unit
    if any(any(pair) for pair in borders(operation)[:_OUTER]):
        return Wish()
    return Wish("follow", (operation.node.inputs[0],))


def lower_pad(assembler: Assembler, group: Group) -> None:
    """Copy into the inside, and fill what is around it; the other modes copy by tables."""
    operation = group.anchor
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
    assembler.call(spec, (y,), group.names, "border")


def _pad_value(operation: Operation) -> float:
    if operation.opset < _PAD_BY_INPUTS:
        return float(operation.attribute("value", 0.0))
    if operation.value(2) is None or not operation.array(2).size:
        return 0
    number: float = operation.array(2).reshape(-1)[0].item()
    return number


def _remap(
    assembler: Assembler, group: Group, x: View, y: View, tables: list[Array | None]
) -> None:
    """Append a copy by a table for each of some dimensions."""
    marks = [table is not None for table in tables]
    if x.block:
        marks.append(False)
    epilogue = Fused(identity(x.dtype))
    spec = Remap(
        *(y.domain, x.domain, tuple(marks), x.layout, y.layout, 1, epilogue, assembler.unit)
    )
    found = [
        assembler.constant(f"{group.anchor.node.name}/table{dim}", table)
        for dim, table in enumerate(tables)
        if table is not None
    ]
    assembler.call(spec, (x, *found, y), group.names)


# Resize


def refuse_resize(operation: Operation) -> str | None:
    """Say why a `Resize` or `Upsample` is not taken."""
    if not operation.shape() or 0 in operation.shape():
        return "its input is empty or a scalar"
    if operation.op_type == "Upsample":
        if operation.value(1) is not None and not operation.is_constant(1):
            return "its scales are not constant"
        mode = operation.attribute("mode", "nearest")
        mode = "linear" if mode == "bilinear" else mode
        problem = resize.refuse(mode, "asymmetric", "simple")
    else:
        for position, name in ((2, "scales"), (3, "sizes")):
            value = operation.value(position)
            if value is not None and value.shape != (0,) and not operation.is_constant(position):
                return f"its {name} are not constant"
        mode = operation.attribute("mode", "nearest")
        problem = resize.refuse(
            mode,
            _coordinates(operation),
            operation.attribute("nearest_mode", "round_prefer_floor"),
            antialias=bool(operation.attribute("antialias", 0)),
        )
        if operation.attribute("exclude_outside", 0) and mode != "nearest":
            problem = "Resize that excludes what is outside"
    if problem is not None:
        return problem
    if _coordinates(operation) == "align_corners" and any(
        abs(scale * extent - out) > _ROUNDING * out
        for extent, out, scale in zip(
            operation.shape(), operation.output_shape, _scales(operation), strict=True
        )
    ):
        return "it aligns corners that lie between entries"  # ONNX and its runtimes differ
    if mode == "linear" and operation.inputs[0].dtype not in ("float32", "float64"):
        return f"linear {operation.op_type} of {operation.inputs[0].dtype} has no native code"
    return None


_ROUNDING = 1e-5
"""How far off a scale may be, which is a float32."""
_OLD_RESIZE = 10
"""The operator set of the first `Resize`, whose coordinates are those of `Upsample`."""


def _coordinates(operation: Operation) -> str:
    default = "asymmetric" if operation.opset <= _OLD_RESIZE else "half_pixel"
    found: str = operation.attribute("coordinate_transformation_mode", default)
    return found


def _scales(operation: Operation) -> list[float]:
    """Return the factor of each dimension."""
    shape, out = operation.shape(), operation.output_shape
    scales = [new / old for new, old in zip(out, shape, strict=True)]
    position = 1 if operation.op_type == "Upsample" or operation.opset <= _OLD_RESIZE else 2
    given = operation.attribute("scales")
    if given is None and operation.is_constant(position):
        given = operation.array(position).reshape(-1).tolist()
    axes = [axis % len(shape) for axis in operation.attribute("axes") or range(len(shape))]
    if given:
        for axis, scale in zip(axes, given, strict=True):
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


def resized(operation: Operation) -> tuple[int, tuple[ResizedAxis, ...]]:
    """Return how many dimensions in front stay, and how the others are resized."""
    is_old = operation.op_type == "Upsample" or operation.opset <= _OLD_RESIZE
    rounding = "simple" if is_old else operation.attribute("nearest_mode", "round_prefer_floor")
    coordinates = "asymmetric" if is_old else _coordinates(operation)
    axes = [
        ResizedAxis(old, new, scale, coordinates, rounding)
        for old, new, scale in zip(
            operation.shape(), operation.output_shape, _scales(operation), strict=True
        )
    ]
    stay = 0
    while stay < len(axes) - 1 and axes[stay].extent == axes[stay].out and axes[stay].scale == 1:
        stay += 1
    return stay, tuple(axes[stay:])


def wish_resize(operation: Operation, unit: VectorUnit) -> Wish:
    """Keep blocks of channels where only spatial dimensions are resized."""
    del unit
    stay, _ = resized(operation)
    return Wish("follow", (operation.node.inputs[0],)) if stay >= _OUTER else Wish()


def lower_resize(assembler: Assembler, group: Group) -> None:
    """Append nearest neighbours as a copy by tables, or linear interpolation."""
    operation = group.anchor
    block = assembler.plan.blocks.get(group.result, 0)
    stay, axes = resized(operation)
    if block and stay > _OUTER:
        rest = operation.shape()[_OUTER:stay]
        axes = (*(ResizedAxis(extent, extent, 1.0) for extent in rest), *axes)
        stay = _OUTER
    x = assembler.read(operation.node.inputs[0], block)
    fused, operands = fuse(assembler, group, x.dtype)
    y = assembler.target(group.result)
    views = [view.as_blocks() for view in (x, y, *operands)]
    layouts = [view.layout for view in views]
    epilogue = replace(fused, operands=tuple(layouts[2:]))
    outer = y.domain[:stay]
    mode = operation.attribute("mode", "nearest")
    name = operation.node.name
    if mode == "nearest":
        spec, tables = resize.nearest(
            *(outer, axes, block or 1, layouts[0], layouts[1], epilogue, assembler.unit)
        )
        constants = [
            assembler.constant(f"{name}/table{number}", table)
            for number, table in enumerate(tables)
        ]
        assembler.call(spec, (views[0], *constants, *views[1:]), group.names)
        return
    linear = Linear(
        *(outer, axes, layouts[0], layouts[1], block or 1), epilogue=epilogue, unit=assembler.unit
    )
    constants = [
        assembler.constant(f"{name}/table{number}", table)
        for number, table in enumerate(resize.linear_tables(linear))
    ]
    assembler.call(linear, (views[0], *constants, *views[1:]), group.names)


# Tile


def refuse_tile(operation: Operation) -> str | None:
    """Say why a `Tile` is not taken."""
    return None if operation.is_constant(1) else "its repeats are not constant"


def lower_tile(assembler: Assembler, group: Group) -> None:
    """Copy a tensor that is broadcast along a new dimension before each one."""
    operation = group.anchor
    x, y = assembler.read(operation.node.inputs[0]), assembler.target(group.result)
    repeats = operation.numbers(1) or ()
    shape: list[int] = []
    strides: list[int] = []
    for dim, (count, extent, step) in enumerate(zip(repeats, x.shape, x.strides, strict=True)):
        shape += [count, extent]
        strides += [0, step]
        y = y.split(2 * dim, count)
    if 0 not in shape:
        assembler.copy(replace(x, shape=tuple(shape), strides=tuple(strides)), y, group.names)
