# SPDX-License-Identifier: Apache-2.0
"""Attention: a softmax of scaled products of queries and keys, times values, as one kernel."""

from intarsia.codegen.kernels.attention.kernel import build
from intarsia.codegen.kernels.attention.schedules import schedule
from intarsia.codegen.kernels.attention.spec import (
    Attention,
    AttentionSchedule,
    EmptyRow,
    Mask,
    MaskKind,
    flops,
)

SPECS = (Attention,)

__all__ = [
    "SPECS",
    "Attention",
    "AttentionSchedule",
    "EmptyRow",
    "Mask",
    "MaskKind",
    "build",
    "flops",
    "schedule",
]
