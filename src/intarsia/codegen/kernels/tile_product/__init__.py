# SPDX-License-Identifier: Apache-2.0
"""Products of tiles: convolutions and matrix products of bfloat16, with constant weights packed."""

from intarsia.codegen.kernels.tile_product.kernel import build, pack, packing
from intarsia.codegen.kernels.tile_product.spec import Taps, TileProduct, TileSchedule, schedule

SPECS = (TileProduct,)

__all__ = [
    "SPECS",
    "Taps",
    "TileProduct",
    "TileSchedule",
    "build",
    "pack",
    "packing",
    "schedule",
]
