# SPDX-License-Identifier: Apache-2.0
"""Shapes of several kernels that are lowered together: one row each.

They are found among the groups of a region, which elementwise operators have joined already, so
that a pattern names anchors only. The first row that finds a chain has it.
"""

from intarsia.codegen.patterns.bands import BANDS
from intarsia.codegen.patterns.shape import FusedShape

FUSED_SHAPES: tuple[FusedShape, ...] = (BANDS,)
