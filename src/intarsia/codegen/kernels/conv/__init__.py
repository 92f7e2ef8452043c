# SPDX-License-Identifier: Apache-2.0
"""Direct convolution of float32 with blocks of output channels."""

from intarsia.codegen.kernels.conv.kernel import build, pack, packing
from intarsia.codegen.kernels.conv.schedules import candidates, schedule
from intarsia.codegen.kernels.conv.spec import Conv, ConvSchedule, blocked_channels, key
from intarsia.codegen.kernels.convolution import flops

SPECS = (Conv,)

__all__ = [
    "SPECS",
    "Conv",
    "ConvSchedule",
    "blocked_channels",
    "build",
    "candidates",
    "flops",
    "key",
    "pack",
    "packing",
    "schedule",
]
