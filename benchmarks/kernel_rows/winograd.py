# SPDX-License-Identifier: Apache-2.0
"""3x3 convolutions with bias and ReLU inside a network: by Winograd's transforms, and direct.

Each side is a chain of five with weights of their own, so that large ones come from memory as they
do in a network. ONNX Runtime's time is that of its chain less that of a single one, which has the
same reorders at its borders; ours is that of the whole chain, blocked in and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from intarsia.codegen.body import Layout
from intarsia.codegen.ir import Function, row_major
from intarsia.codegen.kernels import conv, convolution, winograd
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.kernels.winograd.schedules import choose_winograd
from kernel_rows.convolution import RELU, Shape, block_channels, chain
from kernel_rows.row import UNIT, Area, Array, Call, Row, Sides, aligned, kernel_call

_LENGTH = 5


def _ours(shape: Shape, image: Array, *, is_direct: bool) -> tuple[Call, Array]:
    """Return a call of a chain of our kernels, and its output, NCHW."""
    lanes, channels, extent = UNIT.lanes(), shape.inputs, shape.size + 2
    empty = np.zeros((1, channels // lanes, extent, extent, lanes), np.float32)
    tensors = [aligned(empty) for _ in range(_LENGTH + 1)]
    inner = (slice(None), slice(None), slice(1, -1), slice(1, -1))
    tensors[0][inner] = block_channels(image, lanes)
    layout = Layout("float32", row_major(empty.shape), 64)
    window = Window((shape.size,) * 2, (3, 3), (1, 1), (1, 1))
    function: Function
    if is_direct:
        extents = (1, 1, channels, channels)
        direct = conv.Conv(*extents, window, layout, layout, True, RELU, UNIT, x_block=lanes)
        function, packed = conv.build(direct), conv.pack(direct, shape.weights)
    else:
        outputs = choose_winograd(window, 1, 1, channels, channels, UNIT)
        assert outputs is not None, f"{shape} is direct"
        extents = (1, 1, channels, channels)
        spec = winograd.Winograd(
            *extents, window, layout, layout, True, RELU, UNIT, outputs=outputs
        )
        function, packed = winograd.build(spec), winograd.pack(spec, shape.weights)
    first = (extent + 1) * lanes  # beyond the border
    kernels = []
    for x, y in pairwise(tensors):
        arrays = [aligned(packed), aligned(convolution.pack_bias(lanes, shape.bias))]
        kernels.append((function, [x, *arrays, y.reshape(-1)[first:]]))
    return kernel_call(*kernels), np.moveaxis(tensors[-1][inner], -1, 2)


def _build(shape: Shape, *, is_direct: bool) -> Sides:
    """Return both chains."""
    images = (1, shape.inputs, shape.size, shape.size)
    image = aligned(np.random.default_rng(0).standard_normal(images).astype(np.float32))
    ours, result = _ours(shape, image, is_direct=is_direct)
    single, _ = chain([shape], image)
    theirs, exact = chain([shape] * _LENGTH, image)

    def results() -> tuple[Array, Array]:
        ours()
        theirs()
        return result.reshape(exact.shape), exact

    share = _LENGTH / (_LENGTH - 1)
    return Sides(ours, [(theirs, share), (single, -share)], results, tolerance=1e-5)


def _area(name: str, least: float | None, shapes: Sequence[Shape], *, is_direct: bool) -> Area:
    rows = [
        Row(
            *(name, f"{_LENGTH} x {shape}", _LENGTH * shape.flop, "GFLOP/s"),
            lambda shape=shape: _build(shape, is_direct=is_direct),
        )
        for shape in shapes
    ]
    return Area(name, least, rows)


def areas() -> Sequence[Area]:
    """Return the areas of this family, by the smallest extent; a direct one stands beside each."""
    shapes = {
        "@28": (2.2, [Shape(64, 64, 56, 3), Shape(128, 128, 28, 3)]),
        "@14": (1.4, [Shape(256, 256, 14, 3)]),
        "@7": (1.17, [Shape(512, 512, 7, 3)]),
    }
    found = []
    for size, (least, rows) in shapes.items():
        found.append(_area(f"direct {size}", None, rows, is_direct=True))
        found.append(_area(f"winograd {size}", least, rows, is_direct=False))
    return found
