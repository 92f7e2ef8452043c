# SPDX-License-Identifier: Apache-2.0
"""Which of the kernels of attention a description means."""

from __future__ import annotations

from intarsia.codegen.ir import Function
from intarsia.codegen.kernels.attention.few_queries import build_few
from intarsia.codegen.kernels.attention.kernel import AttentionKernel
from intarsia.codegen.kernels.attention.parts import AttentionOfParts, build_joining
from intarsia.codegen.kernels.attention.schedules import schedule
from intarsia.codegen.kernels.attention.spec import Attention
from intarsia.codegen.kernels.attention.tiles import TiledAttentionKernel


def build(spec: Attention | AttentionOfParts) -> Function:
    """Return the kernel; its arguments are q, k, v, y, masks, lengths, and parts if there are any.

    Those of what joins parts are these and y.
    """
    if isinstance(spec, AttentionOfParts):
        return build_joining(spec)
    plan = schedule(spec)
    if plan.is_by_keys:
        return build_few(spec, plan)
    kernel = TiledAttentionKernel if spec.is_tiled else AttentionKernel
    return kernel(spec, plan).function()
