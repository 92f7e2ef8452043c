# SPDX-License-Identifier: Apache-2.0
"""Convolution with 3x3 taps by Winograd's transforms."""

from intarsia.codegen.kernels.convolution import flops
from intarsia.codegen.kernels.winograd.kernel import build, pack, packing
from intarsia.codegen.kernels.winograd.schedules import SCRATCH_BYTES, candidates, schedule
from intarsia.codegen.kernels.winograd.spec import Winograd, WinogradSchedule, key

SPECS = (Winograd,)

__all__ = [
    "SCRATCH_BYTES",
    "SPECS",
    "Winograd",
    "WinogradSchedule",
    "build",
    "candidates",
    "flops",
    "key",
    "pack",
    "packing",
    "schedule",
]
