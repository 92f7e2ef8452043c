# SPDX-License-Identifier: Apache-2.0
"""What the families of convolutions share: their description, their arguments, their bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import NOTHING, Coordinates, Fused, Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import DOT_GROUPS, DOT_SUMS, Buffer, Index, IrValue, Type
from intarsia.codegen.kernels.window import Window, normalise
from intarsia.codegen.unit import AVX512, CpuModel

LINE_BYTES = 64


class ConvKind(StrEnum):
    """Which kernel computes a convolution."""

    DIRECT = "direct"
    DEPTHWISE = "depthwise"
    PLAIN = "plain"


def choose(groups: int, in_channels: int, out_channels: int, unit: CpuModel) -> ConvKind:
    """Return the kernel for a convolution of so many channels, all groups together.

    Direct and depthwise ones want blocks of channels to be well filled; plain takes everything.
    """
    lanes = unit.lanes()
    if groups == in_channels == out_channels and groups > 1:
        # From half a vector of channels on, a block with idle lanes does at least half of its work
        # for something; below that, vectors along the image waste less.
        return ConvKind.DEPTHWISE if 2 * groups >= lanes else ConvKind.PLAIN
    if groups == 1:
        return ConvKind.DIRECT if 2 * out_channels >= lanes else ConvKind.PLAIN
    is_blocked = in_channels // groups % lanes == 0 and out_channels // groups % lanes == 0
    return ConvKind.DIRECT if is_blocked else ConvKind.PLAIN


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of float32, or of codes of narrow integers without their zero points.

    Codes are multiplied by groups where kernels have dot products; else in the dtype of the
    weights, of which float32 is right where it holds every sum. The epilogue begins with sums of
    int32.

    Attributes:
        batch: Images.
        groups: Of channels.
        in_channels: Of all groups.
        out_channels: Of all groups.
        window: The spatial dimensions.
        x: Of the input with its padding.
        y: Of the output.
        bias: Whether there is one.
        epilogue: Over the domain of y.
        unit: What it is shaped for.
        weight_dtype: Of packed weights.
    """

    batch: int
    groups: int
    in_channels: int
    out_channels: int
    window: Window
    x: Layout
    y: Layout
    bias: bool = False
    epilogue: Fused = NOTHING
    unit: CpuModel = AVX512
    weight_dtype: str = field(default="float32", kw_only=True)

    @property
    def group(self) -> int:
        """Input channels of one product: more than 1 for narrow numbers times narrow ones."""
        return self.neighbours

    @property
    def neighbours(self) -> int:
        """Input channels that a lane of a dot product has; 1 where there is none."""
        is_narrow = self.x.dtype in DOT_GROUPS and self.weight_dtype in DOT_GROUPS
        return DOT_GROUPS[self.x.dtype] if is_narrow else 1

    @property
    def sum_dtype(self) -> str:
        """What products are summed in."""
        return DOT_SUMS[self.x.dtype] if self.group > 1 else self.weight_dtype

    @property
    def result_dtype(self) -> str:
        """The first input of the epilogue."""
        return self.epilogue.body.inputs[0]

    @property
    def algorithm(self) -> str:
        """Which of the ways to the same result it is."""
        return "direct"

    @property
    def group_inputs(self) -> int:
        """Input channels of a group."""
        return self.in_channels // self.groups

    @property
    def blocks(self) -> int:
        """Blocks of output channels, where these are in blocks."""
        return -(-self.out_channels // self.unit.lanes())

    def normalised(self) -> Self:
        """Return the same convolution with as few dimensions as layouts allow, but at least two."""
        window, x, y, epilogue = normalise(self.window, self.x, self.y, self.epilogue)
        return replace(self, window=window, x=x, y=y, epilogue=epilogue)

    @property
    def is_measurable(self) -> bool:
        """Whether it does anything, on the numbers that a tuner makes up."""
        dtypes = {self.x.dtype, self.weight_dtype, self.result_dtype}
        return dtypes == {"float32"} and 0 not in (self.batch, *self.window.out)


def flops(spec: Convolution) -> int:
    """Return the additions and multiplications of a convolution when it is done directly."""
    pixels = spec.batch * math.prod(spec.window.out)
    return 2 * pixels * spec.out_channels * spec.group_inputs * spec.window.taps


def unit_of_tile(spec: Convolution) -> CpuModel:
    """Return the unit for whose registers tiles are.

    Products of pairs are added afterwards, and a tile that leaves a register free for that is
    faster: LLVM adds products of several steps to one another first.
    """
    unit = spec.unit
    has_sums = spec.group == 1 or unit.has_byte_dots
    return unit if has_sums else unit_of_pairs(unit)


def unit_of_pairs(unit: CpuModel) -> CpuModel:
    """Return the unit for whose registers tiles of products of pairs are."""
    return replace(unit, has_fma=False, registers=unit.registers - 1)


def of_codes(spec: Convolution) -> str:
    """Say for `key` of a family what is multiplied if these are codes."""
    return "" if spec.result_dtype == "float32" else f" of {spec.x.dtype} by {spec.weight_dtype}"


def pack_bias(lanes: int, bias: Array) -> Array:
    """Return a bias with zeros up to whole blocks."""
    return np.pad(bias.astype(np.float32), (0, -len(bias) % lanes))


class ConvKernel:
    """A kernel in the making with its arguments: x, weights, bias if any, y, fused operands.

    Args:
        name: Of the kernel.
        spec: What it computes.
        x: Shape of the input with its padding.
        w: Shape of the weights.
        channels: Entries of the bias.
        y: Shape of the output.
        w_strides: Of weights that are not packed, in elements; None for dense ones.
        align: Bytes to which weights and bias are aligned; None for one element.
    """

    def __init__(
        self,
        name: str,
        spec: Convolution,
        *,
        x: Sequence[int],
        w: Sequence[int],
        channels: int,
        y: Sequence[int],
        w_strides: Sequence[int] | None = None,
        align: int | None = LINE_BYTES,
    ) -> None:
        self.b = b = Builder(name)
        self.x = spec.x.declare(b, "x", x)
        self.w = b.argument("w", spec.weight_dtype, w, w_strides, align=align)
        self.sum_dtype, self.result_dtype = spec.sum_dtype, spec.result_dtype
        self.bias: Buffer | None = None
        if spec.bias:
            self.bias = b.argument("bias", "float32", (channels,), align=align)
            assert spec.sum_dtype == "float32", "codes have their bias in the epilogue"
        self.y = spec.y.declare(b, "y", y, is_written=True)
        self.epilogue = spec.epilogue.bind(b, y)

    def start(self, block: Index, lanes: int) -> IrValue:
        """Return what the sums of a block of output channels start from: the bias, or zeros."""
        if self.bias is None:
            return self.b.constant(0, Type(self.sum_dtype, lanes))
        return self.b.load(self.bias, block * lanes, lanes)

    def finish(self, total: IrValue, at: Coordinates, count: int | None = None) -> IrValue:
        """Return what is stored for a sum."""
        if total.type.dtype != self.result_dtype:
            total = self.b.cast(total, self.result_dtype)
        return self.epilogue(total, at, count)
