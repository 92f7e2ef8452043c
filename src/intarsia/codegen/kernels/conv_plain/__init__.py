# SPDX-License-Identifier: Apache-2.0
"""Convolution of plain NCHW, for any groups and channels."""

from intarsia.codegen.kernels.conv_plain.kernel import build, pack, packing
from intarsia.codegen.kernels.conv_plain.schedules import candidates, schedule
from intarsia.codegen.kernels.conv_plain.spec import PlainConv, PlainConvSchedule, key
from intarsia.codegen.kernels.convolution import flops

SPECS = (PlainConv,)

__all__ = [
    "SPECS",
    "PlainConv",
    "PlainConvSchedule",
    "build",
    "candidates",
    "flops",
    "key",
    "pack",
    "packing",
    "schedule",
]
