# SPDX-License-Identifier: Apache-2.0
"""What kernels of attention read and write, in the order of their arguments."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer
from intarsia.codegen.kernels.attention.spec import Attention


@dataclass(frozen=True, slots=True)
class AttentionBuffers:
    """The arguments of a kernel; see `Attention`."""

    q: Buffer
    k: Buffer
    v: Buffer
    y: Buffer
    masks: tuple[Buffer, ...]
    lengths: Buffer | None


def declare_buffers(b: Builder, spec: Attention) -> AttentionBuffers:
    """Declare the arguments of a kernel: q, k, v, y, masks, lengths."""
    queries, keys = (*spec.batch, spec.queries), (*spec.batch, spec.keys)
    return AttentionBuffers(
        spec.q.declare(b, "q", (*queries, spec.key_size)),
        spec.k.declare(b, "k", (*keys, spec.key_size)),
        spec.v.declare(b, "v", (*keys, spec.value_size)),
        spec.y.declare(b, "y", (*queries, spec.value_size), is_written=True),
        tuple(
            mask.layout.declare(b, f"mask{number}", (*queries, spec.keys))
            for number, mask in enumerate(spec.masks)
        ),
        spec.lengths.declare(b, "lengths", spec.batch) if spec.lengths else None,
    )
