# SPDX-License-Identifier: Apache-2.0
"""How nodes are drawn that work on windows, channels and images."""

from __future__ import annotations

from typing import Any

import numpy as np

from intarsia.testing.graphs.draft import FLOATS, Draft, Unfit

CHANNELS = (1, 2, 3, 4, 6, 8, 16, 17)


def image(d: Draft, op_type: str, ranks: tuple[int, int] = (3, 5), position: int = 0) -> str:
    """Return a value of batch, channels and one to three spatial dimensions."""

    def shape() -> tuple[int, ...]:
        spatial = [d.extent() for _ in range(d.between(*ranks) - 2)]
        most = (0, 64, 12, 6)[len(spatial)]
        batch = 0 if d.chance(0.01) else d.pick((1, 1, 2, 3))
        return (batch, d.pick(CHANNELS), *(min(extent, most) for extent in spatial))

    def small(array: Any) -> bool:
        return bool(array.shape[1] <= 32 and array.size <= 4000)  # noqa: PLR2004

    return d.take(op_type, position, rank=ranks, shape=shape, fits=small, dtypes=_images(d))


def _images(d: Draft) -> tuple[str, ...]:
    return (*FLOATS, "int8", "uint8", "int32")


def window(
    d: Draft, spatial: tuple[int, ...], *, ceil: bool = False, dilated: bool = True
) -> dict[str, Any]:
    """Draw kernel, strides, pads and dilations for these extents."""
    rank = len(spatial)
    kernel = [d.between(1, 3) for _ in spatial]
    if d.chance(0.15):
        kernel = [1] * rank
    dilations = [d.pick((1, 1, 1, 2)) if dilated else 1 for _ in spatial]
    strides = [d.pick((1, 1, 2, 3)) for _ in spatial]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if max(strides, default=1) > 1 or d.chance(0.3):
        attributes["strides"] = strides
    if max(dilations, default=1) > 1 or d.chance(0.2):
        attributes["dilations"] = dilations
    kind = d.pick(("none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    if kind == "pads":
        attributes["pads"] = [d.between(0, k - 1) for k in (*kernel, *kernel)]
    elif kind != "none":
        attributes["auto_pad"] = kind
    if ceil and d.chance(0.4):
        attributes["ceil_mode"] = 1
    pads = attributes.get("pads", [0] * 2 * rank)
    for i, extent in enumerate(spatial):
        room = extent + pads[i] + pads[i + rank] - (kernel[i] - 1) * dilations[i] - 1
        if room < 0 and not kind.startswith("SAME"):
            raise Unfit("the window is larger than the image")
    return attributes


def conv(d: Draft, op_type: str) -> None:
    """Draw Conv: groups, depthwise, with and without bias."""
    x = image(d, op_type)
    _, channels, *spatial = d.array(x).shape
    dtype = d.dtype_of(x)
    attributes = window(d, tuple(spatial))
    group = d.pick([g for g in (1, 1, 1, 2, channels) if channels and channels % g == 0])
    outputs = group * d.pick((1, 2)) if group > 1 else d.pick(CHANNELS)
    kernel = attributes["kernel_shape"]
    fan = channels // group * int(np.prod(kernel))
    inputs = [x, d.weight(dtype, (outputs, channels // group, *kernel), fan)]
    if d.chance(0.6):
        inputs.append(d.weight(dtype, (outputs,)))
    if d.chance(0.3):
        del attributes["kernel_shape"]
    d.op(op_type, inputs, **attributes, **({"group": group} if group > 1 else {}))


def conv_transpose(d: Draft, op_type: str) -> None:
    """Draw ConvTranspose."""
    x = image(d, op_type, (3, 5))
    _, channels, *spatial = d.array(x).shape
    dtype = d.dtype_of(x)
    attributes = window(d, tuple(spatial))
    kernel = attributes["kernel_shape"]
    strides = attributes.get("strides", [1] * len(kernel))
    group = d.pick([g for g in (1, 1, 2, channels) if channels and channels % g == 0])
    weights = d.weight(dtype, (channels, d.pick((1, 2, 3, 8)), *kernel), channels // group)
    inputs = [x, weights]
    if d.chance(0.6):
        inputs.append(d.weight(dtype, (d.array(weights).shape[1] * group,)))
    if d.chance(0.25):
        attributes["output_padding"] = [d.between(0, stride - 1) for stride in strides]
    elif d.chance(0.1):
        attributes["output_shape"] = [e * s for e, s in zip(spatial, strides, strict=True)]
    d.op(op_type, inputs, **attributes, **({"group": group} if group > 1 else {}))


def conv_integer(d: Draft, op_type: str) -> None:
    """Draw ConvInteger."""
    x = image(d, op_type, (4, 4))
    _, channels, *spatial = d.array(x).shape
    attributes = window(d, tuple(spatial))
    group = d.pick([g for g in (1, 1, channels) if channels])
    outputs = group * d.pick((1, 2, 3))
    weights = d.new("uint8", (outputs, channels // group, *attributes["kernel_shape"]))
    inputs = [x, weights]
    if d.chance(0.6):
        inputs.append(d.constant(np.array(d.between(0, 5)), d.dtype_of(x)))
        if d.chance(0.5):
            inputs.append(d.constant(np.array(d.between(0, 5)), "uint8"))
    d.op(op_type, inputs, **attributes, **({"group": group} if group > 1 else {}))


def deform_conv(d: Draft, op_type: str) -> None:
    """Draw DeformConv."""
    n, c, h, w = d.between(1, 2), d.pick((1, 2, 4)), d.between(3, 6), d.between(3, 6)
    x = d.new("float32", (n, c, h, w))
    outputs = d.pick((1, 2))
    kernel = (2, 2)
    groups = d.pick([g for g in (1, 2) if c % g == 0])
    offset = d.new("float32", (n, groups * 8, h - 1, w - 1), low=-1.5, high=1.5)
    inputs = [x, d.weight("float32", (outputs, c, *kernel), c * 4), offset]
    if d.chance(0.5):
        inputs.append(d.weight("float32", (outputs,)) if d.chance(0.7) else "")
        if d.chance(0.6):
            inputs.append(d.new("float32", (n, groups * 4, h - 1, w - 1), low=0, high=1))
    d.op(op_type, inputs, kernel_shape=kernel, offset_group=groups, **_PLAIN_WINDOW, group=1)


def average_pool(d: Draft, op_type: str) -> None:
    """Draw AveragePool or LpPool."""
    x = image(d, op_type)
    attributes = window(d, d.array(x).shape[2:], ceil=True, dilated=d.opset >= 19)  # noqa: PLR2004
    if op_type == "LpPool":
        attributes |= d.some(p=d.between(1, 3))
    else:
        attributes |= d.some(count_include_pad=d.between(0, 1))
    d.op(op_type, [x], **attributes)


def max_pool(d: Draft, op_type: str) -> None:
    """Draw MaxPool, with its indices now and then."""
    x = image(d, op_type)
    attributes = window(d, d.array(x).shape[2:], ceil=True, dilated=d.opset >= 10)  # noqa: PLR2004
    outputs = 2 if d.chance(0.2) else 1
    if outputs > 1 and d.chance(0.3):
        attributes["storage_order"] = 1
    d.op(op_type, [x], outputs, **attributes)


def max_unpool(d: Draft, op_type: str) -> None:
    """Draw MaxUnpool after the MaxPool that it undoes."""
    n, c, h, w = d.between(1, 2), d.between(1, 3), d.between(2, 6), d.between(2, 6)
    x = d.new("float32", (n, c, h, w), kind="plain", constant=0)
    values, indices = d.op("MaxPool", [x], 2, kernel_shape=(2, 2), strides=(2, 2))
    inputs = [values, indices]
    if d.chance(0.5):
        inputs.append(d.fixed((n, c, h, w)))
    d.op(op_type, inputs, kernel_shape=(2, 2), strides=(2, 2), **d.some(pads=[0] * 4))


def global_pool(d: Draft, op_type: str) -> None:
    """Draw GlobalAveragePool or GlobalMaxPool."""
    d.op(op_type, [image(d, op_type)])


def lrn(d: Draft, op_type: str) -> None:
    """Draw LRN."""
    x = image(d, op_type, (4, 4))
    attributes = d.some(
        alpha=d.pick((1e-4, 0.1)), beta=d.pick((0.75, 0.5)), bias=d.pick((1.0, 2.0))
    )
    d.op(op_type, [x], size=d.pick((1, 3, 5)), **attributes)


def batch_normalization(d: Draft, op_type: str) -> None:
    """Draw BatchNormalization in inference."""
    x = image(d, op_type, (2, 5))
    channels, dtype = d.array(x).shape[1], d.dtype_of(x)
    parameters = [d.weight(dtype, (channels,)) for _ in range(3)]
    variance = d.new(dtype, (channels,), low=0.3, high=2, constant=0.8)
    d.op(op_type, [x, *parameters, variance], **d.some(epsilon=d.pick((1e-5, 1e-3))))


def instance_normalization(d: Draft, op_type: str) -> None:
    """Draw InstanceNormalization."""
    x = image(d, op_type)
    channels, dtype = d.array(x).shape[1], d.dtype_of(x)
    parameters = [d.weight(dtype, (channels,)) for _ in range(2)]
    d.op(op_type, [x, *parameters], **d.some(epsilon=d.pick((1e-5, 1e-2))))


def group_normalization(d: Draft, op_type: str) -> None:
    """Draw GroupNormalization; its scales are one for each group below operator set 21."""
    x = image(d, op_type)
    channels, dtype = d.array(x).shape[1], d.dtype_of(x)
    groups = d.pick([g for g in (1, 2, 3, channels) if channels % g == 0])
    count = channels if d.opset >= 21 else groups  # noqa: PLR2004
    parameters = [d.weight(dtype, (count,)) for _ in range(2)]
    d.op(op_type, [x, *parameters], num_groups=groups, **d.some(epsilon=1e-3, stash_type=1))


def layer_normalization(d: Draft, op_type: str) -> None:
    """Draw LayerNormalization."""
    x = d.take(op_type, rank=(1, 4))
    shape, dtype = d.array(x).shape, d.dtype_of(x)
    axis = d.axis(len(shape)) if d.chance(0.5) else -1
    own = shape[axis:]
    inputs = [x, d.weight(dtype, own)]
    if d.chance(0.7):
        inputs.append(d.weight(dtype, own))
    named = {} if axis == -1 and d.chance(0.5) else {"axis": axis}
    d.op(op_type, inputs, **named, **d.some(epsilon=d.pick((1e-5, 1e-2)), stash_type=1))


def mean_variance_normalization(d: Draft, op_type: str) -> None:
    """Draw MeanVarianceNormalization."""
    x = image(d, op_type, (4, 4))
    d.op(op_type, [x], **d.some(axes=d.pick(([0, 2, 3], [2, 3], [1]))))


def resize(d: Draft, op_type: str) -> None:
    """Draw Resize or Upsample with every coordinate rule and mode."""
    x = image(d, op_type, (3, 5))
    shape = d.array(x).shape
    rank = len(shape)
    factors = [1.0, 1.0, *(d.pick((1.0, 2.0, 0.5, 1.5, 3.0)) for _ in shape[2:])]
    mode = d.pick(("nearest", "linear", "cubic"))
    if mode == "cubic" and rank != 4:  # noqa: PLR2004
        mode = "linear"
    scales = d.fixed(factors, "float32", 0.9)
    if op_type == "Upsample":
        d.op(op_type, [x, d.constant([max(f, 1) for f in factors], "float32")], mode="nearest")
        return
    if d.opset == 10:  # noqa: PLR2004 - its first form has no coordinate rules
        d.op(op_type, [x, scales], mode="nearest" if mode == "cubic" else mode)
        return
    rules = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]
    rules += ["half_pixel_symmetric"] if d.opset >= 19 else []  # noqa: PLR2004
    attributes: dict[str, Any] = d.some(coordinate_transformation_mode=d.pick(rules))
    if mode == "nearest":
        nearest = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        attributes |= d.some(nearest_mode=d.pick(nearest))
    if mode == "cubic":
        attributes |= d.some(cubic_coeff_a=d.pick((-0.75, -0.5)), exclude_outside=d.between(0, 1))
    if mode != "nearest" and d.has(op_type, "antialias") and d.chance(0.5):
        attributes["antialias"] = 1
    empty = "" if d.opset >= 13 else d.constant([], "float32")  # noqa: PLR2004
    if d.chance(0.1) and "antialias" not in attributes:
        rule = {"coordinate_transformation_mode": "tf_crop_and_resize"}
        corners = d.constant(
            [*[0.0] * rank, *[1.0] * 2, *[d.pick((0.7, 1.3))] * (rank - 2)], "float32"
        )
        outside = d.some(extrapolation_value=2.0)
        d.op(op_type, [x, corners, scales], mode=mode, **{**attributes, **rule}, **outside)
        return
    if d.chance(0.5):
        d.op(op_type, [x, empty, scales], mode=mode, **attributes)
        return
    sizes = [max(1, int(e * f)) for e, f in zip(shape, factors, strict=True)]
    sizes[:2] = shape[:2]
    named: dict[str, Any] = {}
    if d.has(op_type, "axes") and d.chance(0.4):
        named["axes"] = list(range(2, rank))
        sizes = sizes[2:]
        if d.chance(0.4):
            named["keep_aspect_ratio_policy"] = d.pick(("stretch", "not_larger", "not_smaller"))
    no_scales = "" if d.opset >= 13 else d.constant([], "float32")  # noqa: PLR2004
    d.op(op_type, [x, empty, no_scales, d.fixed(sizes)], mode=mode, **attributes, **named)


def grid_sample(d: Draft, op_type: str) -> None:
    """Draw GridSample."""
    n, c, h, w = d.between(1, 2), d.between(1, 3), d.between(2, 5), d.between(2, 5)
    x = d.new("float32", (n, c, h, w))
    grid = d.new("float32", (n, d.between(1, 4), d.between(1, 4), 2), low=-1.2, high=1.2)
    modes = ("bilinear", "nearest", "bicubic") if d.opset < 20 else ("linear", "nearest", "cubic")  # noqa: PLR2004
    padding = d.pick(("zeros", "border", "reflection"))
    attributes = d.some(align_corners=d.between(0, 1), padding_mode=padding)
    d.op(op_type, [x, grid], mode=d.pick(modes), **attributes)


def roi_align(d: Draft, op_type: str) -> None:
    """Draw RoiAlign."""
    n, c, h, w = d.between(1, 2), d.between(1, 3), d.between(4, 8), d.between(4, 8)
    count = d.between(1, 3)
    corners = d.rng.uniform(0, 3, (count, 2))
    boxes = np.concatenate([corners, corners + d.rng.uniform(1, 4, (count, 2))], 1)
    inputs = [
        d.new("float32", (n, c, h, w)),
        d.fixed(boxes, "float32", 0.4),
        d.fixed(d.rng.integers(0, n, count), "int64", 0.4),
    ]
    attributes = {"output_height": d.between(1, 3), "output_width": d.between(1, 3)}
    modes = ("half_pixel", "output_half_pixel")
    attributes |= d.some(mode=d.pick(("avg", "max")), coordinate_transformation_mode=d.pick(modes))
    d.op(op_type, inputs, **attributes, sampling_ratio=d.between(1, 2), **d.some(spatial_scale=0.5))


def affine_grid(d: Draft, op_type: str) -> None:
    """Draw AffineGrid."""
    n = d.between(1, 2)
    spatial = [d.between(1, 4) for _ in range(d.between(2, 3))]
    theta = d.new("float32", (n, len(spatial), len(spatial) + 1))
    d.op(op_type, [theta, d.fixed([n, 2, *spatial])], **d.some(align_corners=d.between(0, 1)))


def col2im(d: Draft, op_type: str) -> None:
    """Draw Col2Im."""
    size, block = (d.between(2, 5), d.between(2, 5)), (d.between(1, 2), d.between(1, 2))
    places = (size[0] - block[0] + 1) * (size[1] - block[1] + 1)
    x = d.new("float32", (d.between(1, 2), 2 * block[0] * block[1], places))
    d.op(op_type, [x, d.fixed(size), d.fixed(block)], **d.some(**_PLAIN_WINDOW))


_PLAIN_WINDOW: dict[str, Any] = {"pads": [0] * 4, "strides": [1, 1], "dilations": [1, 1]}


RECIPES = {
    **dict.fromkeys(("AveragePool", "LpPool"), average_pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), global_pool),
    **dict.fromkeys(("Resize", "Upsample"), resize),
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "ConvInteger": conv_integer,
    "DeformConv": deform_conv,
    "MaxPool": max_pool,
    "MaxUnpool": max_unpool,
    "LRN": lrn,
    "BatchNormalization": batch_normalization,
    "Col2Im": col2im,
    "RoiAlign": roi_align,
    "InstanceNormalization": instance_normalization,
    "AffineGrid": affine_grid,
    "GroupNormalization": group_normalization,
    "LayerNormalization": layer_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "GridSample": grid_sample,
}
"""By operator, how it is drawn."""
