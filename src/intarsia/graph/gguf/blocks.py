# SPDX-License-Identifier: Apache-2.0
"""GGUF's blocks of narrow weights as operands of MatMulNBits: codes, scales, zero points.

Q4_0, Q8_0 and Q6_K are the same numbers. A weight `w` of Q4_K is `d * code - m`; as a zero point
of MatMulNBits, `m / d` is rounded to float32, so that `w` is up to `2**-24 * (m + 2 * abs(w))` off,
less than what any sum of products in float32 is rounded by.

Source of the layouts: `ggml-common.h` and `ggml-quants.c` of ggml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]

_BLOCK = 32
_SUPER = 256  # weights that share the scales of scales, in the types whose names end in K
_NIBBLE, _FOUR = np.uint8(15), np.uint8(4)
_PAIR_BITS = 4  # of codes that lie in pairs
_SIX_BITS = np.uint8(63)
_MIDDLE = np.uint8(128)  # the zero point of codes of 8 bits
_Q6_K_ZERO = np.uint8(32)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Weights of which each is `scale * (code - zero point)`.

    Attributes:
        bits: Of a code: 4, of which a byte has two, the lower one first; or 8.
        codes: uint8[rows, blocks, bytes].
        scales: float32[rows, blocks].
        zero_points: float32[rows, blocks]; None if all are `2 ** (bits - 1)`.
    """

    bits: int
    codes: Bytes
    scales: Floats
    zero_points: Floats | None = None

    @property
    def size(self) -> int:
        """How many weights a block has."""
        return int(self.codes.shape[2]) * 8 // self.bits

    def numbers(self) -> Floats:
        """Return the weights: float32[rows, columns]."""
        points = self.middle if self.zero_points is None else self.zero_points[..., None]
        result: Floats = self.scales[..., None] * (self.unpacked() - points)
        return result.reshape(len(result), -1)

    @property
    def middle(self) -> np.float32:
        """The zero point of all blocks, where these have none of their own."""
        return np.float32(2 ** (self.bits - 1))

    def unpacked(self) -> Bytes:
        """Return the codes, a byte for each: uint8[rows, blocks, size]."""
        if self.bits != _PAIR_BITS:
            return self.codes
        pairs = np.stack([self.codes & _NIBBLE, self.codes >> _FOUR], -1)
        return pairs.reshape(*self.codes.shape[:2], -1)


def _q4_0(raw: Bytes) -> Blocks:
    """Read blocks of a float16 scale and 32 codes, the first half of them in low nibbles."""
    block = raw.reshape(len(raw), -1, 2 + _BLOCK // 2)
    return Blocks(4, _pairs(_halves(block[..., 2:])), _floats(block[..., :2]))


def _q8_0(raw: Bytes) -> Blocks:
    """Read blocks of a float16 scale and 32 numbers of int8."""
    block = raw.reshape(len(raw), -1, 2 + _BLOCK)
    return Blocks(8, block[..., 2:] ^ _MIDDLE, _floats(block[..., :2]))


def _q4_k(raw: Bytes) -> Blocks:
    """Read super-blocks: two float16 scales, 8 scales and 8 minima of 6 bits, 256 codes."""
    block = raw.reshape(len(raw), -1, 16 + _SUPER // 2)
    low, middle, high = (block[..., start : start + 4] for start in (4, 8, 12))
    upper = [(part >> 2) & 0x30 for part in (low, middle)]
    scales = np.concatenate([low & _SIX_BITS, (high & _NIBBLE) | upper[0]], -1)
    minima = np.concatenate([middle & _SIX_BITS, (high >> _FOUR) | upper[1]], -1)
    # Products of float16 and 6 bits: float32 has them as they are.
    scale = _floats(block[..., :2])[..., None] * scales
    minimum = _floats(block[..., 2:4])[..., None] * minima
    codes = _halves(block[..., 16:].reshape(*block.shape[:2], 4, _BLOCK))
    codes = codes.reshape(*scale.shape, _BLOCK)
    # Where codes count nothing, one scale stands for the minimum: (0 - 1) * minimum.
    is_flat = scale == 0
    codes = codes * ~is_flat[..., None]
    zero_points = np.where(is_flat, 1, minimum / np.where(is_flat, 1, scale))
    rows = (len(raw), -1)
    return Blocks(
        4,
        _pairs(codes).reshape(*rows, _BLOCK // 2),
        np.where(is_flat, minimum, scale).reshape(rows),
        zero_points.astype(np.float32).reshape(rows),
    )


def _q6_k(raw: Bytes) -> Blocks:
    """Read super-blocks: 256 codes of 4 and of 2 more bits, 16 scales of int8, a float16 scale."""
    block = raw.reshape(len(raw), -1, 18 + _SUPER * 3 // 4)
    low = _halves(block[..., : _SUPER // 2].reshape(*block.shape[:2], 2, 64))
    high = block[..., _SUPER // 2 : _SUPER * 3 // 4].reshape(*block.shape[:2], 2, 1, _BLOCK)
    high = (high >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & np.uint8(3)
    codes = low.reshape(*block.shape[:2], _SUPER) | (
        high.reshape(*block.shape[:2], _SUPER) << _FOUR
    )
    scales = block[..., -18:-2].view(np.int8) * _floats(block[..., -2:])[..., None]
    codes += _MIDDLE - _Q6_K_ZERO
    return Blocks(8, codes.reshape(len(raw), -1, 16), scales.reshape(len(raw), -1))


def _halves(packed: Bytes) -> Bytes:
    """Return low nibbles, and behind them the high ones: [..., 2 * bytes]."""
    return np.concatenate([packed & _NIBBLE, packed >> _FOUR], -1)


def _pairs(codes: Bytes) -> Bytes:
    """Put codes that follow one another into one byte, the first one into the low nibble."""
    return codes[..., ::2] | (codes[..., 1::2] << _FOUR)


def _floats(raw: Bytes) -> Floats:
    """Return float16 numbers of two bytes each, without their last axis."""
    return np.ascontiguousarray(raw).view(np.float16)[..., 0].astype(np.float32)


DECODERS: Mapping[str, Callable[[Any], Blocks]] = MappingProxyType(
    {"Q4_0": _q4_0, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q6_K": _q6_k}
)
"""By GGUF's name of a type, what reads its bytes: uint8[rows, bytes]."""

BLOCKS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"Q4_0": (_BLOCK, 18), "Q8_0": (_BLOCK, 34), "Q4_K": (_SUPER, 144), "Q6_K": (_SUPER, 210)}
)
"""How many weights a block has that lies in a file, and how many bytes."""
