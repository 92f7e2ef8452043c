# SPDX-License-Identifier: Apache-2.0
"""What kernels are shaped for and may do: it comes from the target, never from the host."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np


@dataclass(frozen=True, slots=True)
class CpuModel:
    """What a schedule must know of a CPU.

    Attributes:
        bits: Width of a vector register; 0 for a CPU without vectors.
        registers: Number of vector registers.
        has_fma: Whether it multiplies and adds in one instruction.
        has_half: Whether it converts vectors of float16 to float32.
        l1_bytes: What one core has of the first data cache.
        l2_bytes: What one core has of the second cache.
        dots: LLVM's names of the features that it has of those with dot products of narrow
            numbers (`DOT_FEATURES`).
        tiles: Those of products of tiles that kernels may use (`TILE_FEATURES`): a process has to
            ask the system for tiles first, so that a target's features are not enough.
        is_small: Whether memory counts first, as in a microcontroller: weights of convolutions of
            codes stay bytes, and are not filled up to blocks.
        is_32_bit: Whether addresses, and the C library's sizes of memory, have 32 bits.
        calls_with_floats: Whether LLVM's calls of the C library pass floats as the library takes
            them. On 32-bit Arm they go through integer registers, whatever the triple says; a
            module of WebAssembly has no library.
    """

    bits: int = 512
    registers: int = 32
    has_fma: bool = True
    has_half: bool = False
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    dots: tuple[str, ...] = ()
    tiles: tuple[str, ...] = ()
    is_small: bool = False
    is_32_bit: bool = False
    calls_with_floats: bool = True

    @property
    def has_byte_dots(self) -> bool:
        """Whether an instruction multiplies bytes by fours into 32 bits."""
        is_evex = "avx512vnni" in self.dots and (self.bits == _ZMM_BITS or "avx512vl" in self.dots)
        return is_evex or not {"avxvnni", "dotprod"}.isdisjoint(self.dots)

    @property
    def multiplies_unsigned(self) -> bool:
        """Whether an instruction multiplies unsigned bytes by unsigned ones, by fours."""
        return "dotprod" in self.dots and self.bits == _NEON_BITS

    @property
    def has_byte_pairs(self) -> bool:
        """Whether an instruction multiplies bytes by twos into 16 bits, where it saturates."""
        return {256: "avx2", 512: "avx512bw"}.get(self.bits) in self.dots

    @property
    def divides_slowly(self) -> bool:
        """Whether a division of float32 takes much longer than a product and a multiply-add.

        16 cycles for a register of 512 bits on Intel's, where these two take one.
        """
        return self.bits == _ZMM_BITS and self.has_fma

    @property
    def has_bf16_dots(self) -> bool:
        """Whether an instruction multiplies pairs of bfloat16 into float32."""
        is_evex = "avx512bf16" in self.dots and (self.bits == _ZMM_BITS or "avx512vl" in self.dots)
        return is_evex or "bf16" in self.dots

    def has_blocked_dots(self, dtype: str) -> bool:
        """Whether one instruction makes two by two sums of products of narrow numbers.

        Args:
            dtype: Of the left operand: of bytes, or `uint16` for the bits of bfloat16; the right
                one is of the same, or of int8.
        """
        feature = {"int8": "i8mm", "uint8": "i8mm", "uint16": "bf16"}.get(dtype)
        return feature in self.dots and self.bits == _NEON_BITS

    @property
    def has_bf16_tiles(self) -> bool:
        """Whether kernels may multiply tiles of bfloat16."""
        return "amx-bf16" in self.tiles

    @property
    def has_byte_tiles(self) -> bool:
        """Whether kernels may multiply tiles of bytes."""
        return "amx-int8" in self.tiles

    def lanes(self, dtype: str = "float32") -> int:
        """Return how many elements a register holds; 1 without vectors."""
        return max(1, self.bits // 8 // np.dtype(dtype).itemsize)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """What a schedule must know of a GPU.

    Attributes:
        item: What the code of one work-item is shaped for, where a kernel has no schedule for GPUs.
        lanes: Work-items of a warp: neighbours, which only `ir.Mma` needs together.
        most_items: Work-items that a block may have.
        shared_bytes: Memory that the work-items of a block can share.
        registers: Of 32 bits, what a work-item can have without spilling.
        has_mma: Whether warps multiply matrices of float16 (`ir.Mma`).
        has_tf32: Whether they may multiply those of float32, rounded to TF32.
        has_shuffles: Whether an instruction hands numbers from lane to lane (`ir.WarpShuffle`).
    """

    item: CpuModel
    lanes: int = 32
    most_items: int = 256
    shared_bytes: int = 32 << 10
    registers: int = 128
    has_mma: bool = False
    has_tf32: bool = False
    has_shuffles: bool = False


_ZMM_BITS, _NEON_BITS = 512, 128
_PAIRS = ("sse2", "avx2", "avx512bw")
_BYTES = ("avx512vl", "avx512vnni", "avxvnni", "avxvnniint8", "dotprod", "i8mm")
DOT_FEATURES = (*_PAIRS, *_BYTES, "avx512bf16", "bf16")
"""LLVM's features of CPUs whose dot products of narrow numbers we know: of pairs of int16, of
bytes, of bfloat16."""

TILE_FEATURES = ("amx-bf16", "amx-int8")
"""LLVM's features of CPUs with products of tiles: of bfloat16, and of bytes."""

AVX512 = CpuModel(512, 32)
AVX2 = CpuModel(256, 16)
SSE = CpuModel(128, 16, has_fma=False)
NEON = CpuModel(128, 32)
SCALAR = CpuModel(0, 16, has_fma=False)


class WinogradMode(StrEnum):
    """Which convolutions may be computed by Winograd's transforms: values of `-winograd`."""

    OFF = "off"
    F2 = "f2"
    F4 = "f4"
    AUTO = "auto"  # the largest tiles whose error is within `winograd.transform.LIMIT`, by layer

    @property
    def largest(self) -> int:
        """The largest extent of a tile; 0 for none."""
        return {WinogradMode.OFF: 0, WinogradMode.F2: 2}.get(self, 4)


class Accuracy(StrEnum):
    """What products with weights of few bits do with activations: values of `-accuracy`."""

    MODEL = "model"  # as each node says
    EXACT = "exact"  # weights become float32
    FAST = "fast"  # activations become int8, by block


class Requantise(StrEnum):
    """How sums of codes become codes: values of `-requantise`."""

    ONNX = "onnx"  # as ONNX defines Q and DQ: in floats
    TFLITE = "tflite"  # as LiteRT's reference kernels do it (`codegen/fixed_point.py`)


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """What a target says of how regions are lowered for it.

    Attributes:
        unit: What kernels are shaped for.
        winograd: Which convolutions may be computed by Winograd's transforms.
        half_weights: Whether large weights of products with few rows may be kept as float16.
        accuracy: What products with weights of few bits do with activations.
        is_bf16: Whether products and convolutions of float32 may take bfloat16.
        requantise: How sums of codes become codes.
    """

    unit: CpuModel
    winograd: WinogradMode = WinogradMode.OFF
    half_weights: bool = False
    accuracy: Accuracy = Accuracy.MODEL
    is_bf16: bool = False
    requantise: Requantise = Requantise.ONNX
