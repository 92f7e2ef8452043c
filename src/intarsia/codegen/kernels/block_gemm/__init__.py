# SPDX-License-Identifier: Apache-2.0
"""Products with constant weights of 4 or 8 bits in blocks, each of which has a scale."""

from intarsia.codegen.kernels.block_gemm.kernel import build
from intarsia.codegen.kernels.block_gemm.quantize import QuantizeBlocks
from intarsia.codegen.kernels.block_gemm.spec import (
    BlockGemm,
    BlockWeights,
    has_tiles,
    pack_codes,
    pack_numbers,
)

SPECS = (BlockGemm, QuantizeBlocks)

__all__ = [
    "SPECS",
    "BlockGemm",
    "BlockWeights",
    "QuantizeBlocks",
    "build",
    "has_tiles",
    "pack_codes",
    "pack_numbers",
]
