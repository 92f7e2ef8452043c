# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution over blocks of channels."""

from intarsia.codegen.kernels.convolution import flops
from intarsia.codegen.kernels.depthwise.kernel import build, pack, packing
from intarsia.codegen.kernels.depthwise.schedules import candidates, schedule
from intarsia.codegen.kernels.depthwise.spec import Depthwise, DepthwiseSchedule, key

SPECS = (Depthwise,)

__all__ = [
    "SPECS",
    "Depthwise",
    "DepthwiseSchedule",
    "build",
    "candidates",
    "flops",
    "key",
    "pack",
    "packing",
    "schedule",
]
