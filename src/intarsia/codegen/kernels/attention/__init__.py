# SPDX-License-Identifier: Apache-2.0
"""Attention: a softmax of scaled products of queries and keys, times values, as one kernel."""

from intarsia.codegen.kernels.attention.family import build
from intarsia.codegen.kernels.attention.parts import AttentionOfParts, is_cut, parts_shape
from intarsia.codegen.kernels.attention.schedules import schedule, ways
from intarsia.codegen.kernels.attention.spec import (
    Attention,
    AttentionSchedule,
    EmptyRow,
    Mask,
    MaskKind,
    flops,
)

SPECS = (Attention, AttentionOfParts)

__all__ = [
    "SPECS",
    "Attention",
    "AttentionOfParts",
    "AttentionSchedule",
    "EmptyRow",
    "Mask",
    "MaskKind",
    "build",
    "flops",
    "is_cut",
    "parts_shape",
    "schedule",
    "ways",
]
