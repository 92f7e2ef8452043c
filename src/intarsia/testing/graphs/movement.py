# SPDX-License-Identifier: Apache-2.0
"""How nodes are drawn that move elements, pick them, or make them from nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from intarsia.testing.graphs.draft import FLOATS, Draft, tensor


def concat(d: Draft, op_type: str) -> None:
    """Draw Concat of one to four parts."""
    x = d.take(op_type, rank=(1, 4))
    shape, dtype = d.array(x).shape, d.dtype_of(x)
    axis = d.axis(len(shape))
    parts = [x]
    for _ in range(d.between(0, 3)):
        own = list(shape)
        own[axis] = d.extent()
        parts.append(x if d.chance(0.15) else d.new(dtype, own))
    d.op(op_type, [parts[i] for i in d.rng.permutation(len(parts))], axis=axis)


def split(d: Draft, op_type: str) -> None:
    """Draw Split: in equal or given parts, as attribute or input."""
    x = d.take(op_type, rank=(1, 4), fits=lambda a: max(a.shape) >= 2)  # noqa: PLR2004
    shape = d.array(x).shape
    axis = d.axis(len(shape))
    count = d.between(1, max(1, min(4, shape[axis])))
    sizes = np.diff([0, *sorted(d.rng.integers(0, shape[axis] + 1, count - 1)), shape[axis]])
    if d.has(op_type, "split"):
        d.op(op_type, [x], count, axis=axis, split=[int(size) for size in sizes])
    elif d.has(op_type, "num_outputs") and d.chance(0.4):
        d.op(op_type, [x], count, axis=axis, num_outputs=count)
    else:
        d.op(op_type, [x, d.fixed(sizes)], count, axis=axis)


def slices(d: Draft, op_type: str) -> None:
    """Draw Slice: any ends and steps, as attributes or inputs."""
    x = d.take(op_type, rank=(1, 4))
    shape = d.array(x).shape
    old = d.has(op_type, "starts")
    axes = d.axes(len(shape), 1)
    starts = [d.between(-shape[a] - 2, shape[a] + 1) for a in axes]
    steps = [1 if old else d.pick((1, 1, 2, 3, -1, -2)) for _ in axes]
    far = [2**31 - 1 if step > 0 else -(2**31) for step in steps]  # the end, as ONNX recommends
    ends = [
        d.pick((d.between(-shape[a] - 2, shape[a] + 2), f)) for a, f in zip(axes, far, strict=True)
    ]
    if old:
        d.op(op_type, [x], starts=starts, ends=ends, axes=axes)
        return
    dtype = d.pick(("int64", "int32"))
    inputs = [d.fixed(values, dtype) for values in (starts, ends, axes, steps)]
    d.op(op_type, [x, *inputs])


def gather(d: Draft, op_type: str) -> None:
    """Draw Gather with indices from either end."""
    x = d.take(op_type, rank=(1, 4))
    shape = d.array(x).shape
    axis = d.axis(len(shape))
    indices = d.rng.integers(-shape[axis], shape[axis], d.shape(0, 2))
    d.op(op_type, [x, d.fixed(indices, d.pick(("int64", "int32")), 0.5)], **_axis(d, axis))


def gather_elements(d: Draft, op_type: str) -> None:
    """Draw GatherElements or ScatterElements."""
    x = d.take(op_type, rank=(1, 4))
    array = d.array(x)
    axis = d.axis(array.ndim)
    shape = [d.between(min(1, extent), extent) for extent in array.shape]
    if op_type == "GatherElements":
        indices = d.rng.integers(-array.shape[axis], array.shape[axis], shape)
        d.op(op_type, [x, d.fixed(indices, "int64", 0.5)], **_axis(d, axis))
        return
    # no two updates of one element: their order is not defined
    order = np.argsort(d.rng.random((*shape[:axis], array.shape[axis], *_after(shape, axis))), axis)
    indices = np.take(order, range(shape[axis]), axis)
    reduction = d.pick((None, None, "add", "mul", "min", "max"))
    updates = d.new(d.dtype_of(x), shape)
    inputs = [x, d.fixed(indices, "int64", 0.5), updates]
    d.op(op_type, inputs, axis=axis, reduction=reduction)


def gather_nd(d: Draft, op_type: str) -> None:
    """Draw GatherND."""
    x = d.take(op_type, rank=(1, 4), fits=lambda a: a.size > 0)
    shape = d.array(x).shape
    batch = d.between(0, len(shape) - 1) if d.has(op_type, "batch_dims") and d.chance(0.4) else 0
    depth = d.between(1, len(shape) - batch)
    outer = (*shape[:batch], *(d.between(1, 3) for _ in range(d.between(0, 2))))
    bounds = shape[batch : batch + depth]
    parts = [d.rng.integers(-bound, bound, outer) for bound in bounds]
    indices = d.fixed(np.stack(parts, axis=-1), "int64", 0.5)
    d.op(op_type, [x, indices], **({"batch_dims": batch} if batch else {}))


def scatter_nd(d: Draft, op_type: str) -> None:
    """Draw ScatterND without repeated indices."""
    x = d.take(op_type, rank=(1, 4), fits=lambda a: a.size > 0)
    shape = d.array(x).shape
    depth = d.between(1, len(shape))
    total = int(np.prod(shape[:depth]))
    chosen = d.rng.permutation(total)[: d.between(1, min(total, 6))]
    indices = np.stack(np.unravel_index(chosen, shape[:depth]), axis=-1)
    updates = d.new(d.dtype_of(x), (len(chosen), *shape[depth:]))
    reduction = d.pick((None, None, "add", "mul", "min", "max"))
    d.op(op_type, [x, d.fixed(indices, "int64", 0.5), updates], reduction=reduction)


def transpose(d: Draft, op_type: str) -> None:
    """Draw Transpose."""
    x = d.take(op_type)
    order = [int(axis) for axis in d.rng.permutation(d.array(x).ndim)]
    d.op(op_type, [x], **d.some(perm=order))


def reshape(d: Draft, op_type: str) -> None:
    """Draw Reshape: dimensions put together or apart, with -1 and 0 now and then."""
    x = d.take(op_type)
    array = d.array(x)
    shape = _regrouped(d, list(array.shape))
    zeros = d.between(0, 1) if d.has(op_type, "allowzero") and d.chance(0.3) else 0
    if array.size and shape and d.chance(0.4):
        shape[d.between(0, len(shape) - 1)] = -1
    if not zeros and array.size:
        shape = [
            0 if i < array.ndim and extent == array.shape[i] and d.chance(0.2) else extent
            for i, extent in enumerate(shape)
        ]
    d.op(op_type, [x, d.fixed(shape)], **({"allowzero": 1} if zeros else {}))


def flatten(d: Draft, op_type: str) -> None:
    """Draw Flatten."""
    x = d.take(op_type)
    rank = d.array(x).ndim
    low = -rank if d.opset >= 11 else 0  # noqa: PLR2004 - since then axes count from behind
    d.op(op_type, [x], axis=d.between(low, rank))


def squeeze(d: Draft, op_type: str) -> None:
    """Draw Squeeze: of some dimensions of size one, or of all."""
    x = d.take(op_type, fits=lambda a: 1 in a.shape)
    shape = d.array(x).shape
    axes = [axis - d.pick((0, len(shape))) for axis in range(len(shape)) if shape[axis] == 1]
    axes = [axis for axis in axes if d.chance(0.7)] or axes[:1]
    if d.opset < 11:  # noqa: PLR2004 - since then axes count from behind
        axes = [axis % len(shape) for axis in axes]
    _with_axes(d, op_type, x, axes if d.chance(0.8) else None)


def unsqueeze(d: Draft, op_type: str) -> None:
    """Draw Unsqueeze."""
    x = d.take(op_type, rank=(0, 3))
    rank = d.array(x).ndim
    count = d.between(1, 5 - rank if rank > 2 else 2)  # noqa: PLR2004
    axes = [int(a) for a in d.rng.permutation(rank + count)[:count]]
    if d.opset >= 11:  # noqa: PLR2004
        axes = [axis - d.pick((0, rank + count)) for axis in axes]
    _with_axes(d, op_type, x, axes)


def expand(d: Draft, op_type: str) -> None:
    """Draw Expand."""
    x = d.take(op_type)
    shape = [d.pick((1, 2, 3)) if e == 1 else d.pick((e, e, 1)) for e in d.array(x).shape]
    shape = [d.pick((1, 2))] * d.between(0, 1) + shape
    d.op(op_type, [x, d.fixed(shape)])


def tile(d: Draft, op_type: str) -> None:
    """Draw Tile."""
    x = d.take(op_type, rank=(1, 4))
    repeats = [d.pick((1, 1, 2, 3, 0) if d.chance(0.1) else (1, 2)) for _ in d.array(x).shape]
    d.op(op_type, [x, d.fixed(repeats)])


def pad(d: Draft, op_type: str) -> None:
    """Draw Pad in every mode, with negative pads now and then."""
    x = d.take(op_type, rank=(1, 4))
    shape = d.array(x).shape
    mode = d.pick(("constant", "constant", "reflect", "edge", "wrap"))
    low = -1 if d.chance(0.2) and mode == "constant" else 0
    pads = [d.between(low, max(0, min(2, e - 1))) for e in (*shape, *shape)]
    if mode == "wrap" and d.opset < 19:  # noqa: PLR2004 - since then
        mode = "edge"
    value = d.pick((0.0, 1.5, -2.0))
    if d.has(op_type, "pads"):
        d.op(op_type, [x], mode=mode, pads=pads, **d.some(value=value))
        return
    dtype = d.dtype_of(x)
    value = abs(int(value)) if dtype not in FLOATS else value
    inputs = [x, d.fixed(pads)]
    if mode == "constant" and d.chance(0.6):
        inputs.append(d.fixed(np.array(value), dtype, 0.5))
    d.op(op_type, inputs, **({} if mode == "constant" and d.chance(0.5) else {"mode": mode}))


def depth_space(d: Draft, op_type: str) -> None:
    """Draw DepthToSpace or SpaceToDepth."""
    block = d.pick((1, 2, 3))
    n, c, h, w = (d.between(1, 3) for _ in range(4))
    if op_type == "DepthToSpace":
        x = d.take(op_type, rank=(4, 4), shape=lambda: (n, c * block**2, h, w))
        mode = d.pick(("DCR", "CRD"))
        d.op(op_type, [x], blocksize=block, **d.some(mode=mode))
        return
    d.op(op_type, [d.new(d.dtype, (n, c, h * block, w * block))], blocksize=block)


def one_hot(d: Draft, op_type: str) -> None:
    """Draw OneHot, with indices outside of the depth now and then."""
    shape = d.shape(0, 3)
    depth = d.between(1, 5)
    indices = d.fixed(d.rng.integers(-depth - 1, depth + 1, shape), d.pick(("int64", "int32")), 0.3)
    dtype = d.pick(("float32", "int64", "int32", "float16"))
    number = d.fixed(np.array(depth) if d.chance(0.5) else [depth], "int64")
    values = d.fixed([0, 1] if d.chance(0.5) else [-1, 3], dtype)
    d.op(op_type, [indices, number, values], axis=d.between(-len(shape) - 1, len(shape)))


def shape_of(d: Draft, op_type: str) -> None:
    """Draw Shape or Size."""
    x = d.take(op_type)
    rank = d.array(x).ndim
    attributes = d.some(start=d.between(-rank - 1, rank), end=d.between(-rank - 1, rank))
    d.op(op_type, [x], **attributes)


def constant_of_shape(d: Draft, op_type: str) -> None:
    """Draw ConstantOfShape."""
    dtype = d.pick(("float32", "int64", "bool", "float16", "int8"))
    value = tensor(np.array([d.pick((0, 1, 5))], dtype), "value")
    d.op(op_type, [d.fixed(d.shape(0, 3))], **d.some(value=value))


def constant(d: Draft, op_type: str) -> None:
    """Draw Constant in each of its forms, read by an Add."""
    x = d.take("Add", dtypes=("float32", "int64"))
    whole = d.dtype_of(x) == "int64"
    forms: dict[str, Any] = {"value": tensor(np.array(3, d.dtype_of(x)), "value")}
    if d.has(op_type, "value_int"):
        forms |= {"value_int": 3} if whole else {"value_float": 0.5}
        forms |= {"value_ints": [2]} if whole else {"value_floats": [0.25]}
    name = d.pick(["value", *forms])
    made = d.op(op_type, [], **{name: forms[name]})
    d.op("Add", [x, made[0]])


def ranges(d: Draft, op_type: str) -> None:
    """Draw Range."""
    dtype = d.pick(("int64", "int32", "float32", "float64", "int16"))
    step = d.pick((1, 2, -1, 3))
    start = d.between(-3, 3)
    numbers = (start, start + step * d.between(0, 8) + d.between(0, 1), step)
    d.op(op_type, [d.fixed(np.array(number), dtype, 0.9) for number in numbers])


def eye_like(d: Draft, op_type: str) -> None:
    """Draw EyeLike."""
    x = d.take(op_type, rank=(2, 2))
    element = helper.np_dtype_to_tensor_dtype(np.dtype(d.pick(("float32", "int64", "float16"))))
    d.op(op_type, [x], **d.some(k=d.between(-2, 2), dtype=element))


def trilu(d: Draft, op_type: str) -> None:
    """Draw Trilu."""
    x = d.take(op_type, rank=(2, 4))
    k = d.fixed(np.array(d.between(-3, 3))) if d.chance(0.6) else ""
    d.op(op_type, [x, k], **d.some(upper=d.between(0, 1)))


def non_zero(d: Draft, op_type: str) -> None:
    """Draw NonZero, which counts."""
    d.op(op_type, [d.take(op_type, rank=(1, 3))])


def unique(d: Draft, op_type: str) -> None:
    """Draw Unique of numbers with ties."""
    x = d.new(d.pick(("float32", "int64", "int8")), d.shape(1, 3), kind="ties")
    rank = d.array(x).ndim
    axis = d.axis(rank) if d.chance(0.4) else None
    d.op(op_type, [x], d.between(1, 4), axis=axis, **d.some(sorted=d.between(0, 1)))


def compress(d: Draft, op_type: str) -> None:
    """Draw Compress."""
    x = d.take(op_type, rank=(1, 4), fits=lambda a: a.size > 0)
    array = d.array(x)
    axis = d.axis(array.ndim) if d.chance(0.7) else None
    length = array.size if axis is None else array.shape[axis]
    d.op(op_type, [x, d.fixed(d.rng.integers(0, 2, length), "bool", 0.4)], axis=axis)


def reverse_sequence(d: Draft, op_type: str) -> None:
    """Draw ReverseSequence."""
    x = d.take(op_type, rank=(2, 4), fits=lambda a: a.size > 0)
    shape = d.array(x).shape
    batch = d.between(0, 1)
    lengths = d.rng.integers(1, shape[1 - batch] + 1, shape[batch])
    d.op(op_type, [x, d.fixed(lengths, constant=0.5)], batch_axis=batch, time_axis=1 - batch)


def center_crop_pad(d: Draft, op_type: str) -> None:
    """Draw CenterCropPad."""
    x = d.take(op_type, rank=(1, 4))
    shape = d.array(x).shape
    axes = d.axes(len(shape), 1)
    if d.chance(0.4):
        axes = list(range(len(shape)))
    wanted = [d.between(1, shape[axis] + 3) for axis in axes]
    named: dict[str, Any] = {} if axes == list(range(len(shape))) else {"axes": axes}
    d.op(op_type, [x, d.fixed(wanted)], **named)


def _axis(d: Draft, axis: int) -> dict[str, int]:
    return {} if axis == 0 and d.chance(0.5) else {"axis": axis}


def _after(shape: list[int], axis: int) -> list[int]:
    return shape[axis % len(shape) + 1 :]


def _regrouped(d: Draft, shape: list[int]) -> list[int]:
    if len(shape) > 1 and d.chance(0.5):
        at = d.between(0, len(shape) - 2)
        return [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
    if d.chance(0.3):
        return [int(np.prod(shape))]
    at = d.between(0, len(shape))
    even = at < len(shape) and shape[at] > 2 and shape[at] % 2 == 0  # noqa: PLR2004
    if even:
        return [*shape[:at], 2, shape[at] // 2, *shape[at + 1 :]]
    return [*shape[:at], 1, *shape[at:]]


def _with_axes(d: Draft, op_type: str, x: str, axes: list[int] | None) -> None:
    """Add a node whose axes are an attribute or an input, by the operator set."""
    if d.has(op_type, "axes"):
        d.op(op_type, [x], axes=axes)
    else:
        d.op(op_type, [x] if axes is None else [x, d.fixed(axes)])


RECIPES = {
    **dict.fromkeys(("GatherElements", "ScatterElements"), gather_elements),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), depth_space),
    **dict.fromkeys(("Shape", "Size"), shape_of),
    "Concat": concat,
    "Split": split,
    "Slice": slices,
    "Gather": gather,
    "GatherND": gather_nd,
    "ScatterND": scatter_nd,
    "Transpose": transpose,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Expand": expand,
    "Tile": tile,
    "Pad": pad,
    "OneHot": one_hot,
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "Range": ranges,
    "EyeLike": eye_like,
    "Trilu": trilu,
    "NonZero": non_zero,
    "Unique": unique,
    "Compress": compress,
    "ReverseSequence": reverse_sequence,
    "CenterCropPad": center_crop_pad,
}
"""By operator, how it is drawn."""
