# SPDX-License-Identifier: Apache-2.0
"""Conv: which kernel computes it, in which layouts, with which weights."""

from __future__ import annotations

from dataclasses import replace

from intarsia.codegen.body import Layout
from intarsia.codegen.kernels import conv, conv_plain, depthwise
from intarsia.codegen.kernels.conv import Kind
from intarsia.codegen.kernels.conv_window import Window
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import Group
from intarsia.codegen.lower.layouts import Wish
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import fuse
from intarsia.codegen.lower.views import View
from intarsia.codegen.lower.windows import WindowAttributes, read_window
from intarsia.codegen.unit import VectorUnit


def conv_kind(operation: Operation, unit: VectorUnit) -> Kind:
    """Return the kernel that computes a convolution."""
    outputs, _, *_ = operation.shape(1)
    inputs = operation.shape()[1]
    return conv.choose(operation.attribute("group", 1), inputs, outputs, unit)


def refuse_conv(operation: Operation) -> str | None:
    """Say why a convolution is not taken."""
    if not operation.is_constant(1):
        return "its weights are not constant"
    if operation.value(2) is not None and not operation.is_constant(2):
        return "its bias is not constant"
    if len(operation.shape()) < 3:
        return "it has no spatial dimension"
    return None


def wish_conv(operation: Operation, unit: VectorUnit) -> Wish:
    """Return what a convolution wants of layouts."""
    kind = conv_kind(operation, unit)
    if kind is Kind.PLAIN:
        return Wish()
    pads = _window(operation).pads
    return Wish("blocked", borders=((operation.node.inputs[0], pads),))


def _window(operation: Operation) -> WindowAttributes:
    return read_window(operation, operation.shape(1)[2:])


def lower_conv(assembler: Assembler, group: Group) -> None:
    """Append the calls of a convolution with its epilogue."""
    operation, unit = group.anchor, assembler.unit
    attributes = _window(operation)
    kind = conv_kind(operation, unit)
    value_id = operation.node.inputs[0]
    batch, inputs, *_ = operation.shape()
    outputs = operation.shape(1)[0]
    window = Window(
        operation.output_shape[2:], attributes.kernel, attributes.strides, attributes.dilations
    )
    block = 0
    if kind is Kind.DEPTHWISE or (kind is Kind.DIRECT and _is_read_blocked(assembler, operation)):
        block = assembler.lanes
    x = assembler.read(value_id, block, attributes.pads)
    fused, operands = fuse(assembler, group)
    y = assembler.target(group.result)
    weights, name = operation.array(1), operation.inputs[1].name
    constants: list[View] = []
    if kind is Kind.DIRECT:
        x_layout = x.layout if block else _with_channel_of_one(x)
        spec = conv.Conv(
            *(batch, operation.attribute("group", 1), inputs, outputs, window),
            *(x_layout, y.layout, block or 1),
            bias=operation.value(2) is not None,
            epilogue=fused,
            unit=unit,
        )
        key = f"{name}/direct{spec.x_block}x{assembler.lanes}{spec.plan}"
        constants.append(assembler.packed(key, lambda: conv.pack_weights(spec, weights)))
        constants += _bias(assembler, operation, blocked=True)
        arguments = (x, *constants, y, *operands)
        assembler.call(spec, conv.build, arguments, group.names)
    elif kind is Kind.DEPTHWISE:
        deep = depthwise.Depthwise(
            *(batch, inputs, window, x.layout, y.layout),
            bias=operation.value(2) is not None,
            epilogue=fused,
            unit=unit,
        )
        key = f"{name}/depthwise{assembler.lanes}"
        constants.append(assembler.packed(key, lambda: depthwise.pack_weights(deep, weights)))
        constants += _bias(assembler, operation, blocked=True)
        assembler.call(deep, depthwise.build, (x, *constants, y, *operands), group.names)
    else:
        plain = conv_plain.PlainConv(
            *(batch, operation.attribute("group", 1), inputs, outputs, window),
            *(x.layout, y.layout),
            bias=operation.value(2) is not None,
            epilogue=fused,
            unit=unit,
        )
        key = f"{name}/plain"
        constants.append(assembler.packed(key, lambda: conv_plain.pack_weights(plain, weights)))
        constants += _bias(assembler, operation, blocked=False)
        assembler.call(plain, conv_plain.build, (x, *constants, y, *operands), group.names)


def _is_read_blocked(assembler: Assembler, operation: Operation) -> bool:
    """Tell whether a direct convolution reads blocks: plain images of few channels it reads as is.

    More channels are worth a conversion, and groups need it.
    """
    if assembler.plan.blocks.get(operation.node.inputs[0]):
        return True
    return operation.shape()[1] >= assembler.lanes or operation.attribute("group", 1) > 1


def _with_channel_of_one(x: View) -> Layout:
    """Return a plain tensor as blocks of one channel."""
    layout = x.layout
    return replace(layout, strides=(*layout.strides, 1))


def _bias(assembler: Assembler, operation: Operation, *, blocked: bool) -> list[View]:
    value = operation.value(2)
    if value is None:
        return []
    bias = operation.array(2)
    if not blocked:
        return [assembler.constant(value.name, bias)]
    key = f"{value.name}/by{assembler.lanes}"
    return [assembler.packed(key, lambda: conv.pack_bias(assembler.lanes, bias))]
