# SPDX-License-Identifier: Apache-2.0
"""Fuse what scales and shifts channels into the convolution or product before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from intarsia.passes.provenance import hidden

if TYPE_CHECKING:
    import onnx_ir as ir

_INTO = ("Conv", "ConvTranspose", "Gemm")
_FOLLOWERS = ("BatchNormalization", "Mul", "Div", "Add", "Sub")


def fuse_affine(model: ir.Model) -> None:
    """Fuse affine nodes into the node before them; the latter keeps its name."""
    found = {pair for node in model.graph if node.op_type in _INTO for pair in _pairs(node)}
    if not found:
        return
    from intarsia.passes.affine_rules import apply_rules  # its import takes longer than most passes

    pairs = [(into, last) for into in _INTO for last in _FOLLOWERS if (into, last) in found]
    with hidden(model), np.errstate(all="ignore"):
        apply_rules(model, pairs)


def _pairs(node: ir.Node) -> set[tuple[str, str]]:
    """Return a node's operator with each affine one in the chains after it.

    Of a chain, one after the other comes to stand behind the node.
    """
    found: set[tuple[str, str]] = set()
    results = [node.outputs[0]]
    while results:
        result = results.pop()
        for reader in result.consumers():
            others = [value for value in reader.inputs if value is not result]
            if reader.op_type in _FOLLOWERS and all(o and o.is_initializer() for o in others):
                found.add((node.op_type, reader.op_type))
                results.append(reader.outputs[0])
    return found
