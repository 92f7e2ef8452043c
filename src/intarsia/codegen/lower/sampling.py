# SPDX-License-Identifier: Apache-2.0
"""Operators that read images between their entries, and grids to read them by."""

from __future__ import annotations

from math import prod

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Apply, Body, Fused, identity
from intarsia.codegen.kernels import sampling
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.kernels.gemm import Gemm
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.indices import dense_target
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.products import choose_product, dots_key
from intarsia.codegen.lower.views import View
from intarsia.codegen.scalar_ops.operator import FLOATS
from intarsia.graph.indices import find_outside

_SPATIAL = 2
"""Dimensions of a tensor before those of an image."""
_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""What modes of GridSample were called before operator set 20."""


def _mode(operation: Operation) -> str:
    mode: str = operation.attribute("mode", "linear")
    return _MODES.get(mode, mode)


def refuse_grid_sample(operation: Operation) -> str | None:
    """Say why a `GridSample` is not taken."""
    shape, (dtype, grid) = operation.shape(), (value.dtype for value in operation.inputs)
    if _mode(operation) not in sampling.TAPS:
        return f"GridSample in mode {_mode(operation)}"
    if operation.attribute("padding_mode", "zeros") not in sampling.PADDINGS:
        return f"GridSample with padding {operation.attribute('padding_mode')}"
    if len(shape) <= _SPATIAL or len(operation.shape(1)) != len(shape):
        return "its input is not a batch of images"
    if operation.shape(1)[-1] != len(shape) - _SPATIAL:
        return "its grid has other dimensions than its images"
    if 0 in shape[_SPATIAL:]:
        return "its images are empty"
    if grid not in FLOATS:
        return f"its grid is {grid}"
    if _mode(operation) != "nearest" and dtype not in FLOATS:
        return f"{_mode(operation)} GridSample of {dtype} has no native code"
    return None


def lower_grid_sample(assembler: Assembler, group: KernelGroup) -> None:
    """Append samples of images at the points of a grid."""
    operation = group.anchor
    x = assembler.read_dense(operation.node.inputs[0])
    grid = assembler.read_dense(operation.node.inputs[1])
    batch, channels, *extents = x.shape
    points = prod(grid.shape[1:-1])
    grid = grid.reshaped((batch, points, len(extents)))
    with dense_target(assembler, group) as target:
        y = target.reshaped((batch, channels, points))
        spec = sampling.GridSample(
            batch,
            channels,
            tuple(extents),
            points,
            x.reshaped((prod(x.shape),)).layout,
            grid.layout,
            y.layout,
            _mode(operation),
            operation.attribute("padding_mode", "zeros"),
            bool(operation.attribute("align_corners", 0)),
        )
        assembler.call(spec, (x, grid, y), group.names)


_HALF_PIXEL = 16
"""The operator set since which the centre of the first entry is at 0.5 unless a model says else."""


def refuse_roi_align(operation: Operation) -> str | None:
    """Say why a `RoiAlign` is not taken."""
    if 0 in operation.shape():
        return "its input is empty"
    if len({value.dtype for value in operation.inputs[:2]}) > 1:
        return "its regions are of another type than its input"
    if operation.attribute("mode", "avg") not in ("avg", "max"):
        return f"RoiAlign in mode {operation.attribute('mode')}"
    if operation.is_constant(2):
        outside = find_outside(operation.array(2), operation.shape()[:1])
        if outside is not None:
            return f"its index {outside[0]} is out of {outside[1]} entries"
    return None


def lower_roi_align(assembler: Assembler, group: KernelGroup) -> None:
    """Append means or maxima of samples in the bins of regions."""
    operation = group.anchor
    x, boxes = (assembler.read(operation.node.inputs[i]) for i in (0, 1))
    images, y = assembler.read_dense(operation.node.inputs[2]), assembler.target(group.result)
    x, y = (view.permuted((0, 2, 3, 1)) for view in (x, y))  # channels are what vectors go along
    batch, height, width, channels = x.shape
    if not operation.is_constant(2):
        names = (operation.node.name, operation.inputs[2].name)
        assembler.check_indices(images, batch, *names)
    default = "half_pixel" if operation.opset >= _HALF_PIXEL else "output_half_pixel"
    spec = sampling.RoiAlign(
        (batch, height, width, channels),
        (y.shape[0], y.shape[1], y.shape[2]),
        x.layout,
        boxes.layout,
        images.layout,
        y.layout,
        max(0, operation.attribute("sampling_ratio", 0)),
        operation.attribute("spatial_scale", 1.0),
        operation.attribute("mode", "avg") == "max",
        operation.attribute("coordinate_transformation_mode", default) == "half_pixel",
        assembler.unit,
    )
    assembler.call(spec, (x, boxes, images, y), group.names)


def refuse_affine_grid(operation: Operation) -> str | None:
    """Say why an `AffineGrid` is not taken."""
    batch, *_, dims = operation.output_shape
    is_square = len(operation.output_shape) == dims + _SPATIAL
    if not is_square or operation.shape() != (batch, dims, dims + 1):
        return "its matrices do not fit its grid"
    if operation.attribute("align_corners", 0) and 1 in operation.output_shape[1:-1]:
        return "it aligns the corners of a dimension with one entry"
    return None


def lower_affine_grid(assembler: Assembler, group: KernelGroup) -> None:
    """Append the product of each image's matrix with the coordinates of every point, and 1."""
    operation = group.anchor
    theta = assembler.read(operation.node.inputs[0])
    batch, *extents, dims = operation.output_shape
    axes = []
    for extent in extents:
        places = np.arange(extent, dtype=np.float64)
        if operation.attribute("align_corners", 0):
            axes.append(places * 2 / (extent - 1) - 1)
        else:
            axes.append((places * 2 + 1) / extent - 1)
    # The last dimension is the first coordinate.
    coordinates = np.stack(np.meshgrid(*axes, indexing="ij")[::-1], -1).reshape(-1, dims)
    name, domain = operation.node.name, (batch, len(coordinates), dims)
    views = []
    for dim in range(dims):
        column = coordinates[:, dim].astype(theta.dtype)
        view = assembler.constant(f"{name}/coordinate{dim}", column)
        views.append(view.unsqueezed(-1).expanded(domain))
    factors = [theta.part(2, dim, 1).permuted((0, 2, 1)) for dim in range(dims + 1)]
    views += [factor.expanded(domain) for factor in factors]
    dtype, count = theta.dtype, len(views)
    steps = [Apply("Mul", (dim, dims + dim), (), dtype) for dim in range(dims)]
    for dim in range(dims):
        total = count + dims + dim - 1 if dim else 2 * dims
        steps.append(Apply("Add", (total, count + dim), (), dtype))
    body = Body((dtype,) * count, tuple(steps), (count + len(steps) - 1,))
    with dense_target(assembler, group) as target:
        y = target.reshaped(domain)
        layouts = tuple(view.layout for view in views)
        spec = Elementwise(domain, layouts, (y.layout,), body, assembler.unit)
        assembler.call(spec, (*views, y), group.names)


_OFFSET, _BIAS, _MASK = 2, 3, 4
"""Positions of the inputs of a `DeformConv`."""


def refuse_deform_conv(operation: Operation) -> str | None:
    """Say why a `DeformConv` is not taken."""
    shape, weights, offset = operation.shape(), operation.shape(1), operation.shape(_OFFSET)
    if len(shape) != 2 * _SPATIAL:
        return "its input is not a batch of flat images"
    if 0 in (*shape, *weights, *operation.output_shape):
        return "it is empty"
    groups = operation.attribute("offset_group", 1)
    wanted = [(shape[0], groups * prod(weights[2:]) * 2, *operation.output_shape[2:])]
    given = [offset]
    if operation.value(_MASK) is not None:
        wanted.append((shape[0], groups * prod(weights[2:]), *operation.output_shape[2:]))
        given.append(operation.shape(_MASK))
    if (
        given != wanted
        or shape[1] % groups
        or weights[1] * operation.attribute("group", 1) != shape[1]
    ):
        return "its inputs do not fit one another"
    return None


def lower_deform_conv(assembler: Assembler, group: KernelGroup) -> None:
    """Append samples of the input for each place of the kernel, and the product with weights."""
    operation = group.anchor
    x, weights, offset = (assembler.read_dense(operation.node.inputs[i]) for i in range(3))
    batch, channels, *extents = x.shape
    parts, places = operation.attribute("offset_group", 1), prod(weights.shape[2:])
    points = prod(operation.output_shape[2:])
    # Coordinates of all samples: where the kernel lies, and the offset.
    domain, dtype = (batch * parts, places, points, 2), x.dtype
    base = assembler.constant(
        f"{operation.node.name}/places", _kernel_places(operation).astype(dtype)
    )
    offset = offset.reshaped((batch * parts, places, 2, points)).permuted((0, 1, 3, 2))
    grid = _combine(assembler, group, "Add", (offset, base.expanded(domain)), domain)
    grid = grid.reshaped((batch * parts, places * points, 2))
    columns = assembler.scratch(dtype, (batch * parts, channels // parts, places * points))
    spec = sampling.GridSample(
        batch * parts,
        channels // parts,
        tuple(extents),
        places * points,
        x.reshaped((prod(x.shape),)).layout,
        grid.layout,
        columns.layout,
        counts_entries=True,
    )
    assembler.call(spec, (x, grid, columns), group.names, "samples")
    if operation.value(_MASK) is not None:
        mask = assembler.read_dense(operation.node.inputs[_MASK])
        mask = mask.reshaped((batch * parts, 1, places * points)).expanded(columns.shape)
        columns = _combine(assembler, group, "Mul", (columns, mask), columns.shape)
    groups = operation.attribute("group", 1)
    rows, depth = weights.shape[0] // groups, channels // groups * places
    stack = (batch, groups)
    a = weights.reshaped((groups, rows, depth)).expanded((*stack, rows, depth))
    columns = columns.reshaped((*stack, depth, points))
    operands, epilogue = [], Fused(identity(dtype))
    if operation.value(_BIAS) is not None:
        bias = assembler.read_dense(operation.node.inputs[_BIAS]).reshaped((groups, rows, 1))
        operands.append(bias.expanded((*stack, rows, points)))
        add = Body((dtype, dtype), (Apply("Add", (0, 1), (), dtype),), (2,))
        epilogue = Fused(add, (operands[0].layout,))
    with dense_target(assembler, group) as target:
        y = target.reshaped((*stack, rows, points))
        product = Gemm(
            rows,
            points,
            depth,
            a.layout,
            columns.layout,
            y.layout,
            stack,
            epilogue,
            assembler.unit,
        )
        chosen = choose_product(assembler, product, dots_key(operation))
        assembler.call(chosen, (a, columns, y, *operands), group.names)


def _kernel_places(operation: Operation) -> Array:
    """Return the coordinates that a kernel reads without offsets: [place, point, dimension]."""
    kernel, out = operation.shape(1)[_SPATIAL:], operation.output_shape[_SPATIAL:]
    ones = (1,) * len(kernel)
    strides, dilations = (operation.attribute(name, ones) for name in ("strides", "dilations"))
    pads = operation.attribute("pads", (0, 0, 0, 0))
    axes = [
        np.arange(size)[:, None] * dilation + np.arange(count) * stride - pad
        for size, count, dilation, stride, pad in zip(
            kernel, out, dilations, strides, pads[: len(kernel)], strict=True
        )
    ]
    down, across = np.broadcast_arrays(axes[0][:, None, :, None], axes[1][None, :, None, :])
    return np.stack([down, across], -1).reshape(prod(kernel), prod(out), len(kernel))


def _combine(
    assembler: Assembler,
    group: KernelGroup,
    op_type: str,
    views: tuple[View, View],
    domain: tuple[int, ...],
) -> View:
    """Append an operator of two tensors over a domain, and return its result."""
    dtype = views[0].dtype
    result = assembler.scratch(dtype, domain)
    body = Body((dtype, dtype), (Apply(op_type, (0, 1), (), dtype),), (2,))
    layouts = tuple(view.layout for view in views)
    spec = Elementwise(domain, layouts, (result.layout,), body, assembler.unit)
    assembler.call(spec, (*views, result), group.names)
    return result
