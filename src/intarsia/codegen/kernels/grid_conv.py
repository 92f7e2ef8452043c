# SPDX-License-Identifier: Apache-2.0
"""Convolutions for GPUs as products by tiles in shared memory (implicit GEMM).

Rows are positions of the window in all images, columns output channels, and steps along k the taps
of all input channels. The left operand is nowhere as a whole: a slice of it is gathered from the
images when it is brought to shared memory (Chetlur et al., "cuDNN: Efficient Primitives for Deep
Learning", 2014). All else is `grid_gemm`'s. A convolution of one tap is a product of what lies
there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Layout, store_lanes
from intarsia.codegen.ir import Function, Index, IrValue
from intarsia.codegen.kernels.conv import Conv
from intarsia.codegen.kernels.convolution import LINE_BYTES
from intarsia.codegen.kernels.grid_gemm import (
    VECTOR,
    GridGemm,
    GridGemmSchedule,
    GridProduct,
    Placing,
    has_schedule,
    is_shared,
    schedule,
)
from intarsia.codegen.unit import GpuModel
from intarsia.extents import is_free
from intarsia.graph.arena import aligned_bytes

PACKING = "rows of channels"
"""The order of packed weights."""


@dataclass(frozen=True, slots=True)
class GridConv:
    """One kernel; its arguments are x, packed weights, bias if any, y, fused operands.

    Attributes:
        conv: What is computed: of one group, in float32, with blocks of `VECTOR` output channels.
        machine: What it is shaped for.
        schedule: How the product is cut; None leaves it to the heuristic.
    """

    conv: Conv
    machine: GpuModel
    schedule: GridGemmSchedule | None = None


SPECS = (GridConv,)


def grid_conv(conv: Conv, machine: GpuModel) -> GridConv | None:
    """Return the same for a GPU; None if it has no tiles that are worth sharing.

    Args:
        conv: What is computed.
        machine: What it is for.
    """
    layouts = (conv.x, conv.y)
    strides = [step for layout in layouts for step in layout.strides]
    if is_free((conv.batch, *conv.window.out, *strides)):
        return None
    if {conv.x.dtype, conv.y.dtype, conv.weight_dtype} != {"float32"} or conv.groups != 1:
        return None
    # What fills the last block of input channels is not to be read.
    if conv.unit.lanes() != VECTOR or conv.in_channels % conv.x_block:
        return None
    spec = GridConv(conv, machine)
    product = _product(spec)
    is_worth_it = is_shared(product.m, product.n, product.k) and has_schedule(machine)
    return spec if is_worth_it else None


def _product(spec: GridConv) -> GridGemm:
    """Return the product that a convolution is; how its left operand and its result lie is told.

    Neighbours of the left operand are channels of a block, or else positions.
    """
    conv = spec.conv
    m = conv.batch * math.prod(conv.window.out)
    n = conv.blocks * VECTOR
    k = conv.in_channels * conv.window.taps
    is_blocked = conv.x_block == VECTOR
    a = Layout("float32", (VECTOR, 1) if is_blocked else (1, k), conv.x.align * is_blocked)
    b = Layout("float32", (n, 1), LINE_BYTES)
    c = Layout("float32", (n, 1))
    return GridGemm(m, n, k, a, b, c, (), spec.machine, schedule=spec.schedule)


def pack(spec: GridConv, weights: Array) -> Array:
    """Return weights (out_channels, in_channels, *kernel) as the kernel reads them.

    In order: blocks of input channels, taps, channels of the block, output channels; those that
    fill the last block are zero.
    """
    conv, product = spec.conv, _product(spec)
    packed = aligned_bytes(product.k * product.n * 4).view(np.float32)
    packed = packed.reshape(product.k, product.n)
    packed[...] = 0
    blocks = conv.in_channels // conv.x_block
    cut = weights.reshape(conv.out_channels, blocks, conv.x_block, conv.window.taps)
    rows = cut.transpose(1, 3, 2, 0).reshape(product.k, conv.out_channels)
    packed[:, : conv.out_channels] = rows
    return packed


def build(spec: GridConv) -> Function:
    """Return the kernel."""
    return _ConvProduct(spec).function()


class _ConvProduct(GridProduct):
    name = "grid_conv"

    def __init__(self, spec: GridConv) -> None:
        self.conv = spec.conv
        product = _product(spec)
        super().__init__(product, schedule(product))

    def declare(self) -> None:
        b, conv, window = self.b, self.conv, self.conv.window
        blocks = conv.in_channels // conv.x_block
        self.left = conv.x.declare(b, "x", (conv.batch, blocks, *window.reach, conv.x_block))
        self.right = self.spec.b.declare(b, "w", (self.spec.k, self.spec.n))
        self.bias = None
        if conv.bias:
            self.bias = b.argument("bias", "float32", (self.spec.n,), align=LINE_BYTES)
        domain = (conv.batch, conv.blocks, *window.out, VECTOR)
        self.result = conv.y.declare(b, "y", domain, is_written=True)
        self.epilogue = conv.epilogue.bind(b, domain)

    def left_at(self, item: Placing, row: Index, k: Index) -> tuple[Index, ...]:
        conv, window = self.conv, self.conv.window
        image, *position = self.b.unravel(row, (conv.batch, *window.out))
        blocks = conv.in_channels // conv.x_block
        block, *tap, channel = self.b.unravel(k, (blocks, *window.kernel, conv.x_block))
        return (image, block, *window.at(position, tap), channel)

    def write(self, item: Placing, value: IrValue, row: Index, column: Index) -> None:
        b, conv = self.b, self.conv
        image, *position = b.unravel(row, (conv.batch, *conv.window.out))
        block, _ = b.split(column, VECTOR)
        if self.bias is not None:
            value = b.add(value, b.load(self.bias, column, VECTOR))
        at = (image, block, *position, Index())
        store_lanes(b, self.epilogue(value, at, None), self.result, at)
