# SPDX-License-Identifier: Apache-2.0
"""Which products keep their weights as float16, if the target asks for it (`-weights=f16`)."""

from __future__ import annotations

from dataclasses import replace

from intarsia.codegen.kernels.gemm import Gemm, Panels
from intarsia.codegen.kernels.gemm_spec import merged
from intarsia.codegen.kernels.half_weights import LEAST_BYTES, MOST_ROWS, Array, half_error
from intarsia.codegen.lower.assembler import Assembler

_AHEAD = 16
"""Steps along k that weights are asked for ahead: with half the bytes a step, a core asks for too
few lines by itself. On dense layers of AlexNet it makes 1.3 times 1.95."""


def with_half_weights(assembler: Assembler, spec: Gemm, weights: Array) -> tuple[Gemm, str]:
    """Return a product with its weights as float16 if that pays and they allow it, and a note.

    Args:
        assembler: Knows what the target asks for.
        spec: The product, its right operand in panels.
        weights: That operand, `[..., k, n]`.
    """
    is_wanted = (
        assembler.half_weights
        and weights.dtype == "float32"
        and weights.nbytes >= LEAST_BYTES
        and merged(spec).m <= MOST_ROWS
    )
    if not is_wanted:
        return spec, ""
    error = half_error(weights)
    if error is None:
        return spec, "weights stay float32: float16 does not hold them"
    assert isinstance(spec.b, Panels)
    note = f"float16 weights, relative error {error:.1e}"
    half = replace(spec, b=replace(spec.b, dtype="float16"))
    plan = replace(half.plan, prefetch=half.plan.prefetch or _AHEAD)
    return replace(half, schedule=plan), note
