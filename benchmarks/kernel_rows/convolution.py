# SPDX-License-Identifier: Apache-2.0
"""Convolutions with bias and ReLU: blocked in and out, weights packed, borders padded already.

ONNX Runtime's time is that inside a network, without the reorders at its borders: that of a chain
less that of a shorter one. A chain of 1x1 convolutions goes forth and back between two numbers of
channels. Strided ones have a single node as their peer: for the stem that is what a network has,
because it reads a plain image; for the depthwise one it counts reorders too, hence no limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from intarsia.codegen.body import Apply, Body, Fused, Layout
from intarsia.codegen.ir import Function, row_major
from intarsia.codegen.kernels import conv, convolution, depthwise
from intarsia.codegen.kernels.window import Window
from kernel_rows.row import UNIT, Area, Array, Call, Row, Sides, aligned, kernel_call, session_call

RELU = Fused(Body(("float32",), (Apply("Relu", (0,)),), (1,)))


@dataclass(frozen=True)
class Shape:
    """A square convolution that keeps the extent, but for its stride."""

    inputs: int
    outputs: int
    size: int
    kernel: int
    stride: int = 1
    is_depthwise: bool = False

    @property
    def pad(self) -> int:
        """Zeros at each side."""
        return self.kernel // 2

    @property
    def out(self) -> int:
        """Extent of the output."""
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def groups(self) -> int:
        """Groups of channels."""
        return self.inputs if self.is_depthwise else 1

    @property
    def flop(self) -> int:
        """Additions and multiplications."""
        terms = self.inputs // self.groups * self.kernel**2
        return 2 * self.outputs * self.out**2 * terms

    @property
    def weights(self) -> Array:
        """Weights that keep the variance."""
        shape = (self.outputs, self.inputs // self.groups, self.kernel, self.kernel)
        terms = self.inputs // self.groups * self.kernel**2
        items = np.random.default_rng(1).standard_normal(shape) * (2 / terms) ** 0.5
        return items.astype(np.float32)

    @property
    def bias(self) -> Array:
        """A bias."""
        return np.random.default_rng(2).standard_normal(self.outputs).astype(np.float32)

    def __str__(self) -> str:
        kind = "depthwise " if self.is_depthwise else ""
        stride = f" /{self.stride}" if self.stride > 1 else ""
        channels = f"{self.inputs}" if self.is_depthwise else f"{self.inputs}->{self.outputs}"
        return f"{kind}{self.kernel}x{self.kernel} {channels} @{self.size}{stride}"


def block_channels(array: Array, lanes: int) -> Array:
    """Return an NCHW array with blocks of channels."""
    batch, channels, *extents = array.shape
    return np.moveaxis(array.reshape(batch, channels // lanes, lanes, *extents), 2, -1)


def _ours(shape: Shape, image: Array) -> tuple[Call, Array]:
    """Return a call of our kernel, and its output, NCHW."""
    unit, lanes, pad = UNIT, UNIT.lanes(), shape.pad
    padded = np.pad(image, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    is_plain = shape.inputs < lanes
    x = aligned(padded[..., None] if is_plain else block_channels(padded, lanes))
    # The next convolution's borders are around the output.
    extent = shape.out + 2 * pad
    y = aligned(np.zeros((1, shape.outputs // lanes, extent, extent, lanes), np.float32))
    inner = y[:, :, : shape.out, : shape.out]
    window = Window(*((n, n) for n in (shape.out, shape.kernel, shape.stride, 1)))
    layouts = (Layout("float32", row_major(x.shape), 64), Layout("float32", row_major(y.shape), 64))
    function: Function
    if shape.is_depthwise:
        extents = (1, shape.inputs, shape.inputs, shape.inputs)
        deep = depthwise.Depthwise(*extents, window, *layouts, True, RELU, unit)
        weights, function = depthwise.pack(deep, shape.weights), depthwise.build(deep)
    else:
        block = 1 if is_plain else lanes
        extents = (1, 1, shape.inputs, shape.outputs)
        spec = conv.Conv(*extents, window, *layouts, True, RELU, unit, x_block=block)
        weights, function = conv.pack(spec, shape.weights), conv.build(spec)
    arrays = [x, aligned(weights), aligned(convolution.pack_bias(lanes, shape.bias)), y]
    result = np.moveaxis(inner, -1, 2)  # a view: what a call writes is seen
    return kernel_call((function, arrays)), result


def chain(shapes: Sequence[Shape], image: Array) -> tuple[Call, Array]:
    """Return a call of convolutions with ReLU, one after another, and its output."""
    nodes: list[NodeProto] = []
    constants: dict[str, Array] = {}
    for number, shape in enumerate(shapes):
        constants |= {f"w{number}": shape.weights, f"b{number}": shape.bias}
        names = [f"x{number}", f"w{number}", f"b{number}"]
        attributes = {"pads": [shape.pad] * 4, "strides": [shape.stride] * 2}
        nodes += [
            helper.make_node("Conv", names, [f"c{number}"], group=shape.groups, **attributes),
            helper.make_node("Relu", [f"c{number}"], [f"x{number + 1}"]),
        ]
    last = shapes[-1]
    out = aligned(np.zeros((1, last.outputs, last.out, last.out), np.float32))
    return session_call(nodes, {"x0": image}, {f"x{len(shapes)}": out}, constants), out


def _build(shape: Shape) -> Sides:
    """Return our kernel, and ONNX Runtime's chains around the same convolution."""
    rng = np.random.default_rng(0)
    images = (1, shape.inputs, shape.size, shape.size)
    image = aligned(rng.standard_normal(images).astype(np.float32))
    ours, result = _ours(shape, image)
    single, want = chain([shape], image)
    if shape.inputs < UNIT.lanes() or shape.stride > 1:
        peers = [(single, 1.0)]
    else:
        back = Shape(shape.outputs, shape.inputs, shape.size, shape.kernel, 1, shape.is_depthwise)
        longer, _ = chain([shape, back, shape, back, shape], image)
        peers = [(longer, 0.25), (single, -0.25)]

    def results() -> tuple[Array, Array]:
        ours()
        single()
        return result.reshape(want.shape), want

    return Sides(ours, peers, results, tolerance=1e-5)


def _area(name: str, least: float | None, shapes: Sequence[Shape]) -> Area:
    rows = [
        Row(name, str(shape), shape.flop, "GFLOP/s", lambda shape=shape: _build(shape))
        for shape in shapes
    ]
    return Area(name, least, rows)


def areas() -> Sequence[Area]:
    """Return the areas of this family."""
    square = [(64, 56), (128, 28), (256, 14), (512, 7)]
    pairs = [(256, 64, 56), (64, 256, 56), (512, 128, 28), (1024, 256, 14), (256, 1024, 14)]
    return (
        _area("conv 3x3", 1.0, [Shape(n, n, size, 3) for n, size in square]),
        _area("conv 1x1", 0.95, [Shape(*shape, 1) for shape in (*pairs, (2048, 512, 7))]),
        _area("conv stem", 1.0, [Shape(3, 64, 224, 7, 2)]),
        _area("depthwise", 2.0, [_depthwise(96, 56), _depthwise(384, 14)]),
        _area("depthwise /2", None, [_depthwise(96, 112, 2)]),
    )


def _depthwise(channels: int, size: int, stride: int = 1) -> Shape:
    return Shape(channels, channels, size, 3, stride, is_depthwise=True)
