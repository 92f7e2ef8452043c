# SPDX-License-Identifier: Apache-2.0
"""Matrix products: batches of them, of operands with any strides, with constant weights packed."""

from intarsia.codegen.kernels.gemm.kernel import build, pack, packing
from intarsia.codegen.kernels.gemm.schedules import candidates, schedule
from intarsia.codegen.kernels.gemm.small_pairs import count_split, pays
from intarsia.codegen.kernels.gemm.spec import (
    Gemm,
    GemmSchedule,
    Panels,
    PanelSource,
    flops,
    key,
    merged,
)

SPECS = (Gemm,)

__all__ = [
    "SPECS",
    "Gemm",
    "GemmSchedule",
    "PanelSource",
    "Panels",
    "build",
    "candidates",
    "count_split",
    "flops",
    "key",
    "merged",
    "pack",
    "packing",
    "pays",
    "schedule",
]
