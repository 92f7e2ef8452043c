# SPDX-License-Identifier: Apache-2.0
"""Convolutions for GPUs as products by tiles in shared memory (implicit GEMM).

Rows are positions of the window in all images, columns output channels, and steps along k the taps
of all input channels. The left operand is nowhere as a whole: a slice of it is gathered from the
images when it is brought to shared memory (Chetlur et al., "cuDNN: Efficient Primitives for Deep
Learning", 2014). All else is `grid_gemm`'s, or `warp_gemm`'s where warps multiply by TF32. A
convolution of one tap is a product of what lies there. Groups are a batch of products; those of few
channels are not worth it (`grid_strips`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Layout, store_lanes
from intarsia.codegen.ir import Function, Index, IrValue
from intarsia.codegen.kernels import warp_gemm
from intarsia.codegen.kernels.conv import Conv
from intarsia.codegen.kernels.convolution import LINE_BYTES
from intarsia.codegen.kernels.grid_gemm import (
    VECTOR,
    GridGemm,
    GridGemmSchedule,
    GridProduct,
    Placing,
    Plan,
    SharedProduct,
    has_schedule,
    is_shared,
    schedule,
)
from intarsia.codegen.kernels.warp_gemm import (
    WarpGemm,
    WarpGemmSchedule,
    WarpProduct,
    has_warp_schedule,
)
from intarsia.codegen.unit import GpuModel
from intarsia.extents import is_free
from intarsia.graph.arena import aligned_bytes


@dataclass(frozen=True, slots=True)
class GridConv:
    """One kernel; its arguments are x, packed weights, bias if any, y, fused operands.

    Attributes:
        conv: What is computed: in float32, with blocks of `VECTOR` output channels.
        machine: What it is shaped for.
        schedule: How the product is cut; None leaves it to the heuristic.
    """

    conv: Conv
    machine: GpuModel
    schedule: GridGemmSchedule | WarpGemmSchedule | None = None


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
    if {conv.x.dtype, conv.y.dtype, conv.weight_dtype} != {"float32"}:
        return None
    # What fills the last block of input channels is not to be read.
    if conv.unit.lanes() != VECTOR or conv.group_inputs % conv.x_block:
        return None
    spec = GridConv(conv, machine)
    product = _product(spec)
    is_worth_it = is_shared(product.m, product.n, product.k) and has_schedule(machine)
    is_filled = conv.groups == 1 or product.n >= _LEAST_OF_GROUP
    return spec if is_worth_it and is_filled else None


_LEAST_OF_GROUP = 32
"""Output channels of a group from which it fills the columns of the smallest tile."""


def _product(spec: GridConv) -> GridGemm:
    """Return the product that a convolution is; how its left operand and its result lie is told.

    Neighbours of the left operand are channels of a block, or else positions.
    """
    conv = spec.conv
    m = conv.batch * math.prod(conv.window.out)
    n = conv.group_blocks * VECTOR
    k = conv.group_inputs * conv.window.taps
    is_blocked = conv.x_block == VECTOR
    batch = (conv.groups,) if conv.groups > 1 else ()
    # Groups begin at whole blocks: what is read at once is aligned in each.
    a_steps, b_steps = ((VECTOR,), (k * n,)) if batch else ((), ())
    rows = (VECTOR, 1) if is_blocked else (1, k)
    a = Layout("float32", (*a_steps, *rows), conv.x.align * is_blocked)
    b = Layout("float32", (*b_steps, n, 1), LINE_BYTES)
    c = Layout("float32", (*b_steps, n, 1))
    plan = spec.schedule if isinstance(spec.schedule, GridGemmSchedule) else None
    return GridGemm(m, n, k, a, b, c, batch, spec.machine, schedule=plan)


def pack(spec: GridConv, weights: Array) -> Array:
    """Return weights (out_channels, in_channels / groups, *kernel) as the kernel reads them.

    In order: groups, blocks of input channels, taps, channels of the block, output channels; those
    that fill the last block are zero.
    """
    conv, product = spec.conv, _product(spec)
    outputs, blocks = conv.out_channels // conv.groups, conv.group_inputs // conv.x_block
    packed = aligned_bytes(conv.groups * product.k * product.n * 4).view(np.float32)
    packed = packed.reshape(conv.groups, product.k, product.n)
    packed[...] = 0
    cut = weights.reshape(conv.groups, outputs, blocks, conv.x_block, conv.window.taps)
    packed[:, :, :outputs] = cut.transpose(0, 2, 4, 3, 1).reshape(conv.groups, product.k, outputs)
    return packed


def packing(spec: GridConv) -> str:
    """Name the order of packed weights."""
    return f"rows of channels by {spec.conv.x_block}"


def build(spec: GridConv) -> Function:
    """Return the kernel."""
    product = _product(spec)
    if isinstance(spec.schedule, WarpGemmSchedule):
        return _WarpConv(spec.conv, product, spec.schedule).function()
    if spec.schedule is None and has_warp_schedule(spec.machine, "float32"):
        return _WarpConv(spec.conv, product, warp_gemm.schedule(WarpGemm(product))).function()
    return _ItemConv(spec.conv, product, schedule(product)).function()


class _Convolved(SharedProduct[Plan]):
    """A product whose left operand is gathered from images, and whose result is theirs."""

    def __init__(self, conv: Conv, product: GridGemm, plan: Plan) -> None:
        self.conv = conv
        super().__init__(product, plan)

    def declare(self) -> None:
        b, conv, window = self.b, self.conv, self.conv.window
        blocks = conv.in_channels // conv.x_block
        self.left = conv.x.declare(b, "x", (conv.batch, blocks, *window.reach, conv.x_block))
        spec = self.spec
        self.right = spec.b.declare(b, "w", (*spec.batch, spec.k, spec.n))
        self.bias = None
        if conv.bias:
            self.bias = b.argument("bias", "float32", (conv.groups * spec.n,), align=LINE_BYTES)
        domain = (conv.batch, conv.blocks, *window.out, VECTOR)
        self.result = conv.y.declare(b, "y", domain, is_written=True)
        self.epilogue = conv.epilogue.bind(b, domain)

    def left_at(self, item: Placing, row: Index, k: Index) -> tuple[Index, ...]:
        conv, window = self.conv, self.conv.window
        image, *position = self.b.unravel(row, (conv.batch, *window.out))
        blocks = conv.group_inputs // conv.x_block
        block, *tap, channel = self.b.unravel(k, (blocks, *window.kernel, conv.x_block))
        for group in item.batch:
            block = group * blocks + block
        return (image, block, *window.at(position, tap), channel)

    def write(self, item: Placing, value: IrValue, row: Index, column: Index) -> None:
        b, conv = self.b, self.conv
        image, *position = b.unravel(row, (conv.batch, *conv.window.out))
        block, channel = b.split(column, VECTOR)
        if value.type.lanes == VECTOR:
            channel = Index()  # which ptxas does not find out, and spills registers
        for group in item.batch:
            block = group * conv.group_blocks + block
            column = group * self.spec.n + column
        if self.bias is not None:
            value = b.add(value, b.load(self.bias, column, value.type.lanes))
        at = (image, block, *position, channel)
        store_lanes(b, self.epilogue(value, at, None), self.result, at)


class _ItemConv(_Convolved[GridGemmSchedule], GridProduct):
    name = "grid_conv"


class _WarpConv(_Convolved[WarpGemmSchedule], WarpProduct):
    name = "warp_conv"
