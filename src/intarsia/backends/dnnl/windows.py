# SPDX-License-Identifier: Apache-2.0
"""Operators that slide a window: convolutions, pooling, local response normalisation, Resize."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from intarsia.backends.dnnl.lowering import Ids, Problem, first_input, node_call, unsupported
from intarsia.backends.dnnl.program import PrimitiveCall
from intarsia.backends.dnnl.words import Pooling, Resampling
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.windows import WindowAttributes, read_window

_SPATIAL = (1, 2, 3)


def lower_conv(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a convolution; further inputs of the call: weights, bias."""
    weights = operation.shape(1)
    rank = len(weights) - 2
    if rank not in _SPATIAL:
        return unsupported(f"a convolution over {rank} dimensions")
    window = read_window(operation, weights[2:])
    group = operation.attribute("group", 1)
    lists = {
        "strides": window.strides,
        "dilations": tuple(d - 1 for d in window.dilations),
        "begin": tuple(begin for begin, _ in window.pads),
        "end": tuple(end for _, end in window.pads),
    }
    if min(lists["begin"] + lists["end"]) < 0:
        return unsupported("a pad is negative")
    if group > 1:
        lists["shape1"] = (group, weights[0] // group, *weights[1:])
    return node_call("convolution", operation, ids, lists=lists)


def lower_conv_transpose(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a deconvolution; its weights are the operator's, seen through strides."""
    channels, filters, *kernel = operation.shape(1)
    if len(kernel) not in _SPATIAL:
        return unsupported(f"a convolution over {len(kernel)} dimensions")
    auto = operation.attribute("auto_pad", "NOTSET")
    if auto not in ("NOTSET", "VALID") or operation.attribute("output_shape") is not None:
        return unsupported(f"auto_pad={auto} or output_shape of a transposed convolution")
    window = read_window(operation, kernel)
    group = operation.attribute("group", 1)
    begin = tuple(begin for begin, _ in window.pads)
    # The library wants what is cut off behind as a pad; `output_padding` makes that smaller, even
    # negative, so it is computed from the result's extent.
    end = tuple(
        (size - 1) * stride + (taps - 1) * dilation + 1 - out - pad
        for out, size, taps, stride, dilation, (pad, _) in _dimensions(operation, kernel, window)
    )
    taps = prod(kernel)
    steps = [prod(kernel[dim + 1 :]) for dim in range(len(kernel))]
    lists = {
        "strides": window.strides,
        "dilations": tuple(d - 1 for d in window.dilations),
        "begin": begin,
        "end": end,
        "shape1": (group, filters, channels // group, *kernel),
        "strides1": (channels // group * filters * taps, taps, filters * taps, *steps),
    }
    if group == 1:
        lists["shape1"], lists["strides1"] = lists["shape1"][1:], lists["strides1"][1:]
    if min(begin) < 0:
        return unsupported("a pad is negative")
    return node_call("deconvolution", operation, ids, lists=lists)


def _dimensions(
    operation: Operation, kernel: Sequence[int], window: WindowAttributes
) -> Iterator[tuple[int, int, int, int, int, tuple[int, int]]]:
    """Yield of each spatial dimension result, operand, taps, stride, dilation, and both pads."""
    return zip(
        operation.output_shape[2:],
        operation.shape()[2:],
        kernel,
        window.strides,
        window.dilations,
        window.pads,
        strict=True,
    )


def lower_pool(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a pooling."""
    if len(operation.outputs) > 1:
        return unsupported("indices as an output of pooling")
    kernel = tuple(operation.attribute("kernel_shape"))
    if len(kernel) not in _SPATIAL:
        return unsupported(f"pooling over {len(kernel)} dimensions")
    window = read_window(operation, kernel)
    begin = tuple(begin for begin, _ in window.pads)
    end = tuple(
        # With `ceil_mode` the last window may reach beyond the pads that are stated; the library
        # checks that its extents fit, so the pad at the end grows.
        max((out - 1) * stride + (taps - 1) * dilation + 1 - size - pad, end_pad)
        for out, size, taps, stride, dilation, (pad, end_pad) in _dimensions(
            operation, kernel, window
        )
    )
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, window.dilations, strict=True)]
    # The library refuses windows that lie in the padding alone; their maximum would be that of
    # nothing.
    if min(begin) < 0 or any(
        pad >= span for pads in (begin, end) for pad, span in zip(pads, spans, strict=True)
    ):
        return unsupported("a pad is negative, or as large as the window")
    algorithm = Pooling.MAX
    if operation.op_type == "AveragePool":
        counts_pads = bool(operation.attribute("count_include_pad", 0))
        if counts_pads and end != tuple(end for _, end in window.pads):
            return unsupported("count_include_pad of windows that reach beyond the pads")
        algorithm = Pooling.AVERAGE_WITH_PADDING if counts_pads else Pooling.AVERAGE
    return pooling_call(
        operation,
        ids,
        algorithm,
        {
            "kernel": kernel,
            "strides": window.strides,
            "dilations": tuple(d - 1 for d in window.dilations),
            "begin": begin,
            "end": end,
        },
    )


def lower_global_pool(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a pooling whose window is the image."""
    is_max = operation.op_type == "GlobalMaxPool"
    return whole_pooling(operation, ids, Pooling.MAX if is_max else Pooling.AVERAGE)


def whole_pooling(operation: Operation, ids: Ids, algorithm: Pooling) -> PrimitiveCall | Problem:
    """Return a pooling over all spatial dimensions."""
    kernel = operation.shape()[2:]
    if len(kernel) not in _SPATIAL:
        return unsupported(f"pooling over {len(kernel)} dimensions")
    zeros = (0,) * len(kernel)
    lists = {"kernel": kernel, "strides": (1,) * len(kernel), "dilations": zeros}
    return pooling_call(operation, ids, algorithm, {**lists, "begin": zeros, "end": zeros})


def pooling_call(
    operation: Operation, ids: Ids, algorithm: Pooling, lists: dict[str, tuple[int, ...]]
) -> PrimitiveCall:
    """Return a pooling of an operation's first input."""
    shape = (*operation.shape()[:2], *(1 for _ in lists["kernel"]))
    if len(operation.output_shape) != len(shape):
        lists = {**lists, "shape": shape}
    source = first_input(operation, ids)
    return node_call("pooling", operation, ids, algorithm, inputs=source, lists=lists)


def lower_lrn(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a normalisation over neighbouring channels."""
    size = operation.attribute("size")
    if size % 2 == 0:
        return unsupported("an even size: there would be more neighbours on one side")
    if len(operation.shape()) not in (3, 4, 5):
        return unsupported(f"normalising {len(operation.shape())} dimensions")
    numbers = {
        "alpha": operation.attribute("alpha", 1e-4),
        "beta": operation.attribute("beta", 0.75),
        "bias": operation.attribute("bias", 1.0),
    }
    return node_call("lrn", operation, ids, lists={"size": (size,)}, numbers=numbers)


def lower_resize(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a resampling, where ONNX's coordinates are the library's."""
    shape, result = operation.shape(), operation.output_shape
    rank = len(shape) - 2
    if rank not in _SPATIAL or shape[:2] != result[:2]:
        return unsupported("resizing of other than 1 to 3 spatial dimensions")
    scales = _scales(operation, len(shape))
    if scales is None or any(
        # ONNX derives coordinates from the scale that is stated, oneDNN from the ratio of the
        # extents: they agree only where the extents divide.
        abs(size * scale - out) > 1e-3  # noqa: PLR2004 - scales are rounded to float32
        for size, scale, out in zip(shape, scales, result, strict=True)
    ):
        return unsupported("scales that do not divide, `axes`, or a policy of aspect ratios")
    if operation.attribute("antialias", 0) or operation.attribute("exclude_outside", 0):
        return unsupported("antialias or exclude_outside")
    mode = operation.attribute("mode", "nearest")
    where = operation.attribute("coordinate_transformation_mode", "half_pixel")
    if mode == "linear" and where == "half_pixel":
        algorithm = Resampling.LINEAR
    # Whole repetitions are one mapping under either name: no coordinate is a tie, and floor(i / k)
    # is the cell that the half-pixel centre lies in.
    elif mode == "nearest" and _repeats(operation, where, shape, result):
        algorithm = Resampling.NEAREST
    else:
        return unsupported(f"mode={mode} with coordinates {where}")
    source = first_input(operation, ids)
    return node_call("resampling", operation, ids, algorithm, inputs=source)


def _scales(operation: Operation, rank: int) -> tuple[float, ...] | None:
    """Return the scales; None if they are not known, or not one per dimension."""
    if operation.attribute("axes") is not None:
        return None
    if operation.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    has_sizes = operation.is_constant(3) and operation.array(3).size
    if has_sizes:
        pairs = zip(operation.output_shape, operation.shape(), strict=True)
        return tuple(out / size for out, size in pairs)
    if not operation.is_constant(2):
        return None
    scales = tuple(float(scale) for scale in operation.array(2).reshape(-1))
    return scales if len(scales) == rank else None


def _repeats(
    operation: Operation, where: str, shape: tuple[int, ...], result: tuple[int, ...]
) -> bool:
    """Tell whether each element is repeated a whole number of times."""
    rounding = operation.attribute("nearest_mode", "round_prefer_floor")
    return all(out % size == 0 for out, size in zip(result, shape, strict=True)) and (
        (where == "asymmetric" and rounding == "floor")
        or (where == "half_pixel" and rounding.startswith("round_prefer"))
    )
