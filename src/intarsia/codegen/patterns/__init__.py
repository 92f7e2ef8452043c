# SPDX-License-Identifier: Apache-2.0
"""Nodes that spell an operator, and shapes of several kernels that are lowered together: rows.

Shapes are found among the groups of a region, which elementwise operators have joined already, so
that a pattern names anchors only. The first row that finds a chain has it.
"""

from intarsia.codegen.patterns.bands import BANDS
from intarsia.codegen.patterns.gelu import GELUS
from intarsia.codegen.patterns.norms import NORMS
from intarsia.codegen.patterns.rotary import ROTARIES
from intarsia.codegen.patterns.shape import FusedShape
from intarsia.graph.pattern import Table

SPELLINGS: Table = (*NORMS, *GELUS, *ROTARIES)
"""Earlier ones have priority."""

FUSED_SHAPES: tuple[FusedShape, ...] = (BANDS,)
