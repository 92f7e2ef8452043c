# SPDX-License-Identifier: Apache-2.0
"""Dropout and BatchNormalization of training graphs: with masks and statistics of a batch.

Without those they are elementwise (`recipes`), and join their neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from intarsia.codegen.body import Apply, Body
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.kernels.reduce import Reduction
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.grid import shared_reduction
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.reductions import in_settled_order
from intarsia.codegen.lower.views import CHANNELS, View
from intarsia.graph.graph import ABSENT

_RATIO, _MODE = 1, 2
"""Positions of inputs of Dropout."""

_FIRST_WITHOUT_MODE = 7
"""Before this operator set, an attribute `is_test` said that it is not in training."""


def refuse_dropout(operation: Operation) -> str | None:
    """Say why a `Dropout` with a mask or a mode is not taken."""
    if operation.opset < _FIRST_WITHOUT_MODE and not operation.attribute("is_test", 0):
        return "it is in training mode"
    if operation.value(_MODE) is None:
        return None
    if not operation.is_constant(_MODE):
        return "it may be in training mode"
    if not operation.array(_MODE).any():
        return None
    is_idle = operation.is_constant(_RATIO) and not operation.array(_RATIO).any()
    return None if is_idle else "it is in training mode"


def lower_dropout(assembler: Assembler, group: KernelGroup) -> None:
    """Pass the input on; nothing is masked."""
    operation = group.anchor
    assembler.alias(operation.output.id, assembler.read(operation.node.inputs[0]))
    for mask in operation.outputs[1:]:
        one = assembler.constant(f"one, {mask.dtype}", np.ones(1, mask.dtype))
        assembler.alias(mask.id, replace(one, shape=(), strides=()).expanded(mask.shape or ()))


_FIRST_TRAINING = 14
"""The operator set in which BatchNormalization got the results that it has in training now."""


def refuse_batch_normalization(operation: Operation) -> str | None:
    """Say why a `BatchNormalization` with computed statistics is not taken."""
    is_training = bool(operation.attribute("training_mode", 0))
    is_old = operation.opset < _FIRST_TRAINING
    has_mode = operation.opset < _FIRST_WITHOUT_MODE
    if (is_old and len(operation.node.outputs) > 1) or (
        has_mode and not operation.attribute("is_test", 0)
    ):
        return "it is in training mode"
    if not operation.attribute("spatial", 1):
        return "its statistics are for each entry"
    if len({value.dtype for value in operation.inputs}) > 1:
        return "its tensors are of several dtypes"
    if len(operation.shape()) <= CHANNELS:
        return "it has no channels"
    if is_training and not prod(operation.shape()):
        return "its input is empty, and has no mean"
    return None


def lower_batch_normalization(assembler: Assembler, group: KernelGroup) -> None:
    """Append the statistics in training, then factors of channels, then `x * factor + shift`."""
    operation, names = group.anchor, group.names
    x, *parameters = (assembler.read(value_id) for value_id in operation.node.inputs)
    scale, bias, mean, variance = parameters
    if operation.attribute("training_mode", 0):
        means = _statistics(assembler, x, names)
        for number, (old, new) in enumerate(zip((mean, variance), means, strict=True), start=1):
            _mix(assembler, group, number, old, new)
        mean, variance = means
    dtype = x.dtype
    factor, shift = (assembler.scratch(dtype, scale.shape) for _ in range(2))
    epsilon = _number(assembler, operation.attribute("epsilon", 1e-5), scale)
    steps = [("Add", (0, 1)), ("Sqrt", (3,)), ("Div", (2, 4))]
    _append(assembler, names, steps, (variance, epsilon, scale, factor))
    _append(assembler, names, [("Mul", (0, 1)), ("Sub", (2, 3))], (mean, factor, bias, shift))
    wide = [_by_channel(view, x.shape) for view in (factor, shift)]
    y = assembler.target(group.result)
    _append(assembler, names, [("Mul", (0, 1)), ("Add", (3, 2))], (x, *wide, y))


def _statistics(assembler: Assembler, x: View, names: Sequence[str]) -> tuple[View, View]:
    """Append mean and variance of each channel."""
    axes = tuple(dim for dim in range(len(x.shape)) if dim != CHANNELS)
    channels = x.shape[CHANNELS]
    count = prod(x.shape) // channels
    mean, squares, variance = (assembler.scratch(x.dtype, (channels,)) for _ in range(3))
    centered = assembler.scratch(x.dtype, x.shape)
    for source, kind, target in ((x, "Mean", mean), (centered, "SumSquare", squares)):
        spec = Reduction(x.shape, axes, kind, source.layout, target.layout, unit=assembler.unit)
        spec = in_settled_order(assembler, spec, f"{'/'.join(names)}/{kind}")
        if source is centered:
            wide = _by_channel(mean, x.shape)
            _append(assembler, names, [("Sub", (0, 1))], (x, wide, centered))
        assembler.call(shared_reduction(assembler, spec), (source, target), names, kind)
    _append(
        assembler, names, [("Div", (0, 1))], (squares, _number(assembler, count, mean), variance)
    )
    return mean, variance


def _mix(assembler: Assembler, group: KernelGroup, number: int, old: View, new: View) -> None:
    """Append a running statistic, if it is wanted."""
    outputs = group.anchor.node.outputs
    if number >= len(outputs) or outputs[number] == ABSENT:
        return
    momentum = group.anchor.attribute("momentum", 0.9)
    shares = [_number(assembler, share, old) for share in (momentum, 1 - momentum)]
    steps = [("Mul", (0, 2)), ("Mul", (1, 3)), ("Add", (4, 5))]
    views = (old, new, *shares, assembler.target(outputs[number]))
    _append(assembler, group.names, steps, views)


def _number(assembler: Assembler, number: float, like: View) -> View:
    """Return a number at every place of a vector."""
    one = assembler.constant(f"number {number!r}, {like.dtype}", np.full(1, number, like.dtype))
    return replace(one, shape=like.shape, strides=(0,))


def _by_channel(view: View, shape: tuple[int, ...]) -> View:
    """Return a vector over channels as a tensor."""
    strides = tuple(view.strides[0] if dim == CHANNELS else 0 for dim in range(len(shape)))
    return replace(view, shape=shape, strides=strides)


def _append(
    assembler: Assembler,
    names: Sequence[str],
    steps: Sequence[tuple[str, tuple[int, ...]]],
    views: Sequence[View],
) -> None:
    """Append elementwise operators, from all views but the last to that."""
    *inputs, target = views
    dtype = target.dtype
    applied = tuple(Apply(name, arguments, (), dtype) for name, arguments in steps)
    body = Body((dtype,) * len(inputs), applied, (len(inputs) + len(steps) - 1,))
    layouts = tuple(view.layout for view in inputs)
    spec = Elementwise(target.domain, layouts, (target.layout,), body, assembler.unit)
    assembler.call(spec, views, names)
