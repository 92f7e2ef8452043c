# SPDX-License-Identifier: Apache-2.0
"""What the ONNX reference evaluator (onnx 1.23) gets wrong, put right by operators of our own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.recurrent_reference import recurrent

_INFERENCE_FLAGLESS = range(7, 14)
"""Operator sets in which BatchNormalization without its optional outputs is inference, but the
evaluator mixes the batch's own statistics in."""

_FLATTENING = range(1, 13)
"""Operator sets in which the softmax family works on a matrix: all axes from `axis` on as one."""


def corrections(opset: int) -> list[type[Any]]:
    """Return operators that replace the evaluator's, for a version of the operator set."""
    chosen = [*_always(), *_pools(), *_resizing_and_loops(), *recurrent()]
    if opset in _INFERENCE_FLAGLESS:
        chosen.append(_batch_normalization())
    chosen += _flattening_family() if opset in _FLATTENING else _log_softmax()
    return chosen


# The evaluator goes by the names of the classes, and `onnx` is imported only by what evaluates.


def _of_operator(name: str) -> Callable[[type[Any]], type[Any]]:
    """Let the evaluator take a class for an operator of another name."""

    def rename(implementation: type[Any]) -> type[Any]:
        implementation.__name__ = name
        return implementation

    return rename


@cache
def _always() -> tuple[type[Any], ...]:
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops._quant_utils import reshape_input
    from onnx.reference.ops.op_conv_transpose import ConvTranspose as Theirs
    from onnx.reference.ops.op_quantize_linear import _CommonQuantizeLinear

    class LRN(OpRun):  # theirs counts channels by the size of the batch
        def _run(self, x: Any, **attributes: Any) -> tuple[Any]:
            size, channels = attributes["size"], x.shape[1]
            squares = np.zeros_like(x)
            for channel in range(channels):
                first = max(0, channel - (size - 1) // 2)
                squares[:, channel] = np.sum(x[:, first : channel + size // 2 + 1] ** 2, axis=1)
            alpha = float(attributes.get("alpha", np.float32(1e-4)))  # as given ones: float32
            scale = attributes.get("bias", 1.0) + alpha / size * squares
            return ((x / scale ** attributes.get("beta", 0.75)).astype(x.dtype),)

    class LpNormalization(OpRun):  # theirs sums without absolute values
        def _run(self, x: Any, **attributes: Any) -> tuple[Any]:
            axis, p = attributes.get("axis", -1), attributes.get("p", 2)
            norm = np.sum(np.abs(x) ** p, axis=axis, keepdims=True) ** (1.0 / p)
            return (np.where(norm == 0, 0, x / norm).astype(x.dtype),)

    ungrouped: Any = Theirs

    class ConvTranspose(ungrouped):  # type: ignore[misc]  # theirs cuts groups of weights wrongly
        def _run(self, x: Any, w: Any, bias: Any = None, **attributes: Any) -> tuple[Any]:
            group = attributes.pop("group", None) or 1
            biases = [None] * group if bias is None else np.split(bias, group)
            parts = zip(np.split(x, group, 1), np.split(w, group), biases, strict=True)
            run = super()._run
            done = [run(*part, group=1, **attributes)[0] for part in parts]
            return (np.concatenate(done, axis=1),)

    class Pad(OpRun):  # theirs fails at negative pads, which crop
        def _run(self, x: Any, *inputs: Any, **attributes: Any) -> tuple[Any]:
            pads = attributes.get("pads")
            pads = inputs[0] if pads is None else pads
            value = inputs[1] if len(inputs) > 1 else attributes.get("value")
            axes = inputs[2] if len(inputs) > 2 else None  # noqa: PLR2004
            mode = attributes.get("mode") or "constant"
            return (_pad(x, pads, mode, value, range(x.ndim) if axes is None else axes),)

    class Slice(OpRun):  # theirs counts as Python does from before the beginning backwards
        def _run(self, x: Any, *inputs: Any, **attributes: Any) -> tuple[Any]:
            names = ("starts", "ends", "axes", "steps")
            given = list(inputs) or [attributes.get(name) for name in names]
            starts, ends = np.ravel(given[0]), np.ravel(given[1])
            given += [None] * (len(names) - len(given))
            axes, steps = given[2], given[3]
            axes = np.arange(len(starts)) if axes is None else np.ravel(axes)
            steps = np.ones(len(starts), np.int64) if steps is None else np.ravel(steps)
            window = [slice(None)] * x.ndim
            for bounds in zip(axes, starts, ends, steps, strict=True):
                axis, start, end, step = map(int, bounds)
                window[axis] = _window(x.shape[axis], start, end, step)
            return (x[tuple(window)],)

    class Erf(OpRun):  # theirs computes in float32, whatever it reads
        def _run(self, x: Any, **attributes: Any) -> tuple[Any]:
            return (_erf(x),)

    class Gelu(OpRun):  # theirs is ONNX's function, which knows nothing of operators put right
        def _run(self, x: Any, approximate: str | None = None) -> tuple[Any]:
            half, one, root = (x.dtype.type(number) for number in (0.5, 1, math.sqrt(2)))
            if approximate == "tanh":
                factor, cubic = (x.dtype.type(n) for n in (math.sqrt(2 / math.pi), 0.044715))
                return (half * x * (one + np.tanh(factor * (x + cubic * x * x * x))),)
            return (half * x * (one + _erf(x / root)),)

    saturating: Any = _CommonQuantizeLinear

    class QuantizeLinear(saturating):  # type: ignore[misc]  # theirs wraps beyond 2**31 quanta
        def _run(self, x: Any, scale: Any, *zero: Any, **attributes: Any) -> tuple[Any]:
            axis, block = attributes.get("axis", 1), attributes.get("block_size")
            most = 2.0**30 * np.abs(reshape_input(scale, x.shape, axis, block))
            return super()._run(np.clip(x, -most, most), scale, *zero, **attributes)  # type: ignore[no-any-return]

    return LRN, LpNormalization, ConvTranspose, Pad, Slice, Erf, Gelu, QuantizeLinear


@cache
def _pools() -> tuple[type[Any], ...]:
    """Return pooling; theirs is wrong at padding by itself, dilated, beyond the end, before it."""
    from onnx.reference.op_run import OpRun

    class MaxPool(OpRun):
        def _run(self, x: Any, **attributes: Any) -> tuple[Any, ...]:
            taken, is_inside, _ = _windows(x, attributes)
            least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
            counts = is_inside & ~np.isnan(taken)
            seen = np.where(counts, taken, np.asarray(least, x.dtype))
            is_least = seen.max(axis=-1, keepdims=True) == least
            first = np.where(is_least, is_inside.argmax(-1)[..., None], seen.argmax(-1)[..., None])
            largest = np.take_along_axis(np.where(is_inside, taken, seen), first, -1)[..., 0]
            if len(self.onnx_node.output) == 1:
                return (largest,)
            place = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:])
            if attributes.get("storage_order"):
                place = np.arange(place.size).reshape(place.shape[::-1]).T
            planes = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * place.ndim)
            flat, _, _ = _windows(planes * place.size + place, attributes)
            return largest, np.take_along_axis(flat, first, -1)[..., 0]

    class AveragePool(OpRun):
        def _run(self, x: Any, **attributes: Any) -> tuple[Any]:
            taken, is_inside, is_padding = _windows(x, attributes)
            counted = is_inside | is_padding if attributes.get("count_include_pad") else is_inside
            total = np.where(is_inside, taken, 0).sum(axis=-1, dtype=_wide(x))
            return ((total / counted.sum(axis=-1, dtype=_wide(x))).astype(x.dtype),)

    class LpPool(OpRun):
        def _run(self, x: Any, **attributes: Any) -> tuple[Any]:
            p = attributes.get("p") or 2
            taken, is_inside, _ = _windows(x, attributes)
            powers = np.where(is_inside, np.abs(taken.astype(_wide(x))) ** p, 0)
            return ((powers.sum(axis=-1) ** (1.0 / p)).astype(x.dtype),)

    class GlobalMaxPool(OpRun):  # theirs takes two other axes, unless there are just two
        def _run(self, x: Any) -> tuple[Any]:
            return (np.max(x, axis=tuple(range(2, x.ndim)), keepdims=True),)

    return MaxPool, AveragePool, LpPool, GlobalMaxPool


@cache
def _resizing_and_loops() -> tuple[type[Any], ...]:
    from onnx.reference.ops.op_loop import Loop as TheirLoop
    from onnx.reference.ops.op_resize import Resize as TheirResize

    saturating: Any = TheirResize
    merging: Any = TheirLoop

    class Resize(saturating):  # type: ignore[misc]  # theirs has no infinities, multiplies by 0
        def _run(self, x: Any, *inputs: Any, **attributes: Any) -> tuple[Any]:
            if attributes.get("mode") == "nearest":
                places = np.arange(x.size, dtype=np.float64).reshape(x.shape)
                outside = {"extrapolation_value": -1.0}
                (made,) = super()._run(places, *inputs, **{**attributes, **outside})
                found = made.astype(np.int64)
                picked = x.reshape(-1)[found] if x.size else np.empty(found.shape, x.dtype)
                value = np.asarray(attributes.get("extrapolation_value") or 0.0).astype(x.dtype)
                return (np.where(found < 0, value, picked),)
            if x.dtype.kind != "f" or not np.isinf(x).any():
                return super()._run(x, *inputs, **attributes)  # type: ignore[no-any-return]
            outer = (attributes.get("extrapolation_value") or 0.0) * _SMALLER
            attributes = {**attributes, "extrapolation_value": outer}
            (made,) = super()._run(x.astype(np.float64) * _SMALLER, *inputs, **attributes)
            return ((made / _SMALLER).astype(x.dtype),)  # what is saturated overflows again

    @_of_operator("Loop")
    class StackingLoop(merging):  # type: ignore[misc]  # theirs joins what each turn makes, without an axis
        def _run(self, *inputs: Any, **options: Any) -> Any:
            shapes: list[tuple[int, ...]] = []

            def turn(*values: Any, **bound: Any) -> list[Any]:
                results = list(self._run_body(*values, **bound))
                count = len(results) - self.K
                shapes[:] = [value.shape for value in results[count:]]
                return [*results[:count], *(value.reshape(1, -1) for value in results[count:])]

            own: Any = copy.copy(self)
            own.__dict__["_run_body"] = turn
            made = merging._run(own, *inputs, **options)  # noqa: SLF001 - on a copy
            stacked = zip(made[self.N :], shapes, strict=True)
            return (
                *made[: self.N],
                *(value.reshape(len(value), *shape) for value, shape in stacked),
            )

    return Resize, StackingLoop


_SMALLER = 2.0**-4
"""A factor that loses no bit of a float that is multiplied by it, and back, near the largest."""


@cache
def _batch_normalization() -> type[Any]:
    from onnx.reference.op_run import OpRun

    class BatchNormalization(OpRun):
        def _run(
            self, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, **attributes: Any
        ) -> tuple[Any]:
            per_channel = (-1, *(1,) * (x.ndim - 2))
            root = np.sqrt(variance + attributes.get("epsilon", 1e-5))
            factor = (scale / root).reshape(per_channel)
            return ((x - mean.reshape(per_channel)) * factor + bias.reshape(per_channel),)

    return BatchNormalization


@cache
def _log_softmax() -> tuple[type[Any], ...]:
    from onnx.reference.op_run import OpRun

    @_of_operator("LogSoftmax")
    class StableLogSoftmax(
        OpRun
    ):  # theirs is -infinity far below the largest, and writes to its input
        def _run(self, x: Any, axis: int | None = None) -> tuple[Any]:
            axis = -1 if axis is None else axis
            shifted = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
            total = np.exp(shifted).sum(axis=axis, keepdims=True)
            return ((shifted - np.log(total)).astype(x.dtype),)

    return (StableLogSoftmax,)


@cache
def _flattening_family() -> tuple[type[Any], ...]:
    from onnx.reference.op_run import OpRun

    @_of_operator("Softmax")
    class FlatteningSoftmax(OpRun):
        def _run(self, x: Any, **attributes: Any) -> tuple[Any]:
            rows = np.exp(_shifted_rows(x, _old_axis(self.onnx_node)))
            return ((rows / rows.sum(axis=1, keepdims=True)).reshape(x.shape),)

    @_of_operator("LogSoftmax")
    class FlatteningLogSoftmax(OpRun):
        def _run(self, x: Any, **attributes: Any) -> tuple[Any]:
            rows = _shifted_rows(x, _old_axis(self.onnx_node))
            return ((rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))).reshape(x.shape),)

    class Hardmax(OpRun):
        def _run(self, x: Any, **attributes: Any) -> tuple[Any]:
            rows = _shifted_rows(x, _old_axis(self.onnx_node))
            chosen = np.zeros_like(rows)
            if rows.size:
                chosen[np.arange(len(rows)), rows.argmax(axis=1)] = 1
            return (chosen.reshape(x.shape),)

    return FlatteningSoftmax, FlatteningLogSoftmax, Hardmax


_ERF_STEPS = 1024
"""Points of the table of erf, for each 1."""

_ERF_LIMIT = 6
"""From here on erf is 1: what is left is 2.2e-17."""


def _erf(x: Array) -> Array:
    """Return erf, of float64 as C's library has it, else rounded from a relative error of 1e-14.

    A call of C's for each element took three quarters of an evaluation of BERT.
    """
    if x.dtype == np.float64:
        numbers = [math.erf(number) for number in x.ravel().tolist()]
        return np.array(numbers, x.dtype).reshape(x.shape)
    result = np.empty(x.shape, x.dtype)
    flat, out = x.reshape(-1), result.reshape(-1)
    for start in range(0, flat.size, _ERF_BLOCK):
        block = flat[start : start + _ERF_BLOCK].astype(np.float64)
        out[start : start + _ERF_BLOCK] = _erf_by_table(block).astype(x.dtype)
    return result


_ERF_BLOCK = 1 << 14
"""Elements at a time: what is between stays in the caches."""


def _erf_by_table(x: Array) -> Array:
    """Return erf by Taylor's series about the nearest point of a table."""
    size = np.minimum(np.abs(x), _ERF_LIMIT)
    nearest = np.rint(np.where(np.isnan(size), 0, size) * _ERF_STEPS).astype(np.intp)
    rest = size - nearest / _ERF_STEPS
    coefficients = _erf_table()
    total = coefficients[-1][nearest]
    for coefficient in coefficients[-2::-1]:
        total = total * rest + coefficient[nearest]
    signed: Array = np.copysign(total, x)
    return signed


@cache
def _erf_table() -> tuple[Array, ...]:
    """Return the coefficients of Taylor's series of erf at all points, by power.

    The derivatives of erf are those of 2 / sqrt(pi) * exp(-x * x): each is a Hermite polynomial
    times that.
    """
    points = np.arange(_ERF_LIMIT * _ERF_STEPS + 1) / _ERF_STEPS
    slope = 2 / math.sqrt(math.pi) * np.exp(-points * points)
    return (
        np.array([math.erf(point) for point in points.tolist()]),
        slope,
        -points * slope,
        (2 * points * points - 1) * slope / 3,
        points * (3 - 2 * points * points) * slope / 6,
    )


def _old_axis(node: Any) -> int:
    """Return the axis of a node; the evaluator would fill in the default of newer versions."""
    return next((a.i for a in node.attribute if a.name == "axis"), 1)


def _shifted_rows(x: Array, axis: int) -> Array:
    """Return the matrix that the old softmax family works on, less the maximum of each row."""
    axis = axis if axis >= 0 else axis + x.ndim
    height = int(np.prod(x.shape[:axis], dtype=np.int64))
    rows = x.reshape(height, int(np.prod(x.shape[axis:], dtype=np.int64)))
    return rows - rows.max(axis=1, keepdims=True, initial=-np.inf) if rows.size else rows


def _wide(x: Array) -> Any:
    """Return the type that is summed in: halves would overflow where ONNX Runtime's do not."""
    return np.float32 if x.dtype == np.float16 else x.dtype


def _windows(x: Array, attributes: Mapping[str, Any]) -> tuple[Array, Array, Array]:
    """Return what a pooling operator's windows see, as a last axis after those of the output.

    Returns:
        The elements; which of them are of the input; which of them are of its padding, but not of
        what `ceil_mode` adds to it.
    """
    rank = x.ndim - 2
    kernel = attributes["kernel_shape"]
    strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    taken = x
    inside: Array = np.ones((), bool)
    padded: Array = np.ones((), bool)
    for dim in range(rank):
        extent, width = x.shape[2 + dim], kernel[dim]
        reach = (width - 1) * dilations[dim] + 1
        out, before, after = _pooled(dim, extent, reach, strides[dim], attributes)
        at = np.arange(out)[:, None] * strides[dim] + np.arange(width) * dilations[dim] - before
        axis = 2 + 2 * dim
        near = np.clip(at, 0, max(0, extent - 1))
        taken = np.take(taken, near.reshape(-1), axis=axis)
        taken = taken.reshape(*taken.shape[:axis], out, width, *taken.shape[axis + 1 :])
        inside = inside[..., None, None] & (at >= 0) & (at < extent)
        padded = padded[..., None, None] & (at >= -before) & (at < extent + after)
    order = [*range(2), *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2)]
    outs = tuple(taken.shape[2 : 2 + 2 * rank : 2])
    shape = (*x.shape[:2], *outs, math.prod(kernel))
    marks = [
        np.broadcast_to(mark, taken.shape).transpose(order).reshape(shape)
        for mark in (inside, padded)
    ]
    return taken.transpose(order).reshape(shape), marks[0], marks[1] & ~marks[0]


def _pooled(
    dim: int, extent: int, reach: int, stride: int, attributes: Mapping[str, Any]
) -> tuple[int, int, int]:
    """Return an output's extent and its padding before and after, as ONNX's shape inference does.

    Args:
        dim: Which spatial dimension.
        extent: Of the input.
        reach: From a window's first element to its last one, both included.
        stride: From window to window.
        attributes: Of the node.
    """
    automatic = attributes.get("auto_pad") or "NOTSET"
    if automatic.startswith("SAME"):
        out = -(-extent // stride)
        total = max(0, (out - 1) * stride + reach - extent)
        before = (total + (automatic == "SAME_LOWER")) // 2
        return out, before, total - before
    pads: Sequence[int] = attributes.get("pads") or ()
    before = after = 0
    if pads and automatic == "NOTSET":
        before, after = pads[dim], pads[len(pads) // 2 + dim]
    span = extent + before + after - reach
    if not attributes.get("ceil_mode"):
        return span // stride + 1, before, after
    out = -(-span // stride) + 1
    return out - ((out - 1) * stride >= extent + before), before, after


def _window(extent: int, start: int, end: int, step: int) -> slice:
    """Return what Slice takes of an axis; ONNX clamps both ends to where elements are."""
    start, end = (bound + extent if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return slice(min(max(start, 0), extent), min(max(end, 0), extent), step)
    start, end = min(max(start, 0), extent - 1), min(max(end, -1), extent - 1)
    return slice(start, None if end < 0 else end, step) if extent else slice(0, 0)


def _pad(x: Array, pads: Any, mode: str, value: Any, axes: Any) -> Array:
    """Crop by the negative pads, then pad by the positive ones."""
    count = len(pads) // 2
    width = [(0, 0)] * x.ndim
    window = [slice(None)] * x.ndim
    for position, axis in enumerate(int(axis) for axis in axes):
        before, after = int(pads[position]), int(pads[count + position])
        width[axis] = (max(before, 0), max(after, 0))
        window[axis] = slice(max(-before, 0), x.shape[axis] - max(-after, 0))
    options = {}
    if mode == "constant":
        scalar = 0 if value is None else np.asarray(value).reshape(-1)[:1]
        options["constant_values"] = scalar if np.size(scalar) else 0
    inside = x[tuple(window)]
    return np.asarray(np.pad(inside, width, mode, **options), x.dtype)  # type: ignore[call-overload]
