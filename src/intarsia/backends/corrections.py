# SPDX-License-Identifier: Apache-2.0
"""What the ONNX reference evaluator (onnx 1.23) gets wrong, put right by operators of our own."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from intarsia.backends.api import Array

_INFERENCE_FLAGLESS = range(7, 14)
"""Operator sets in which BatchNormalization without its optional outputs is inference, but the
evaluator mixes the batch's own statistics in."""

_FLATTENING = range(1, 13)
"""Operator sets in which the softmax family works on a matrix: all axes from `axis` on as one."""


def corrections(opset: int) -> list[type[Any]]:
    """Return operators that replace the evaluator's, for a version of the operator set."""
    chosen = list(_always())
    if opset in _INFERENCE_FLAGLESS:
        chosen.append(_batch_normalization())
    if opset in _FLATTENING:
        chosen += _flattening_family()
    return chosen


# The evaluator goes by the names of the classes, and `onnx` is imported only by who evaluates.


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
            numbers = [math.erf(number) for number in x.ravel().tolist()]
            return (np.array(numbers, x.dtype).reshape(x.shape),)

    saturating: Any = _CommonQuantizeLinear

    class QuantizeLinear(saturating):  # type: ignore[misc]  # theirs wraps beyond 2**31 quanta
        def _run(self, x: Any, scale: Any, *zero: Any, **attributes: Any) -> tuple[Any]:
            axis, block = attributes.get("axis", 1), attributes.get("block_size")
            most = 2.0**30 * np.abs(reshape_input(scale, x.shape, axis, block))
            return super()._run(np.clip(x, -most, most), scale, *zero, **attributes)  # type: ignore[no-any-return]

    return LRN, LpNormalization, ConvTranspose, Pad, Slice, Erf, QuantizeLinear


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
def _flattening_family() -> tuple[type[Any], ...]:
    from onnx.reference.op_run import OpRun

    class Softmax(OpRun):
        def _run(self, x: Any, **attributes: Any) -> tuple[Any]:
            rows = np.exp(_shifted_rows(x, _old_axis(self.onnx_node)))
            return ((rows / rows.sum(axis=1, keepdims=True)).reshape(x.shape),)

    class LogSoftmax(OpRun):
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

    return Softmax, LogSoftmax, Hardmax


def _old_axis(node: Any) -> int:
    """Return the axis of a node; the evaluator would fill in the default of newer versions."""
    return next((a.i for a in node.attribute if a.name == "axis"), 1)


def _shifted_rows(x: Array, axis: int) -> Array:
    """Return the matrix that the old softmax family works on, less the maximum of each row."""
    axis = axis if axis >= 0 else axis + x.ndim
    height = int(np.prod(x.shape[:axis], dtype=np.int64))
    rows = x.reshape(height, int(np.prod(x.shape[axis:], dtype=np.int64)))
    return rows - rows.max(axis=1, keepdims=True, initial=-np.inf) if rows.size else rows


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
