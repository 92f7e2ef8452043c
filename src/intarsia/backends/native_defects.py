# SPDX-License-Identifier: Apache-2.0
"""What code of our own computes otherwise than ONNX's references, as rules: all are choices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.defects import KnownDefect, Values

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node

_LENGTHS = 6
"""Which input of Attention says how many keys of an item count."""

_TRIED = "native code against ONNX Runtime 1.31 without optimisations and onnx.reference 1.23"
_NORMALISATIONS = "GroupNormalization InstanceNormalization LayerNormalization"


def _of_cancelled_one(inputs: Sequence[Any], result: Array) -> Array:
    return np.asarray(2 * np.finfo(result.dtype).eps * np.abs(inputs[0].astype(np.float64)))


def _of_float32(inputs: Sequence[Any], result: Array) -> float:
    """Return what float32 is off by, where a mean is subtracted and the rest scaled."""
    sizes = np.abs(inputs[0])
    spread = float(np.std(inputs[0])) or 1.0
    return 2.0**-20 * float(np.max(np.abs(result), initial=0) + np.max(sizes, initial=0) / spread)


def _leaves_keys_out(graph: Graph, node: Node) -> bool:
    if node.ir.attributes.get_int("is_causal", False):
        return True
    return len(node.inputs) > _LENGTHS and node.inputs[_LENGTHS] >= 0


def native_defects(backend: str) -> tuple[KnownDefect, ...]:
    """Return the rules of a backend whose kernels are `intarsia.codegen`'s.

    Args:
        backend: Its name.
    """
    rule = partial(KnownDefect.of, backend, _TRIED)
    return (
        rule(
            "MaxPool GlobalMaxPool",
            "of NaN and numbers it depends on their order which one it is, as in ONNX Runtime",
            Values.NAN,
        ),
        rule("Hardmax", "the first NaN is the largest, as in onnx.reference", Values.NAN),
        rule("Sin Cos Tan", "the turns cannot be counted: it is NaN", Values.FAR),
        rule(
            "Conv",
            "Winograd's transformation spreads what is not finite over a tile, and so do tiles of"
            " bfloat16 (AMX) that hold taps of an image, to windows that end beside it",
            Values.NAN,
            Values.INFINITE,
        ),
        rule(
            "Resize Upsample",
            "at an entry of its input a neighbour has weight 0, and may make NaN of it or not",
            Values.NAN,
            Values.INFINITE,
        ),
        rule(
            "Conv ConvTranspose Gemm MatMul",
            "which sums overflow depends on the order of summing",
            Values.HUGE,
        ),
        rule(
            f"AveragePool BatchNormalization LRN LpNormalization {_NORMALISATIONS}",
            "what overflows on the way depends on the order of computing",
            Values.HUGE,
        ),
        rule(
            "Softmax",
            "a quotient that is subnormal becomes 0, because numbers far below the largest do",
            Values.SUBNORMAL,
        ),
        rule(
            "AveragePool Celu CumSum Gelu LpNormalization Max Min Sin Tan",
            "-0.0 may become 0.0",
            Values.NEGATIVE_ZERO,
        ),
        rule(
            _NORMALISATIONS,
            "it computes in float64, where ONNX's stash_type says float32: more exact",
            bound=_of_float32,
            dtypes="float64",
        ),
        rule(
            "Add Sub Mul Div Exp Pow Sqrt Reciprocal Softmax Sum Mean ReduceSum ReduceMean",
            "halves stay float32 from node to node, so that nothing overflows in between",
            Values.INFINITE,
            Values.HUGE,
            dtypes="float16 bfloat16",
        ),
        rule(
            "Gelu",
            "one is added to the error function, as ONNX writes it, which cancels below zero",
            bound=_of_cancelled_one,
        ),
        rule(
            "Attention",
            "keys behind the lengths, or that is_causal leaves out, have weight 0 whatever they"
            " hold, where ONNX adds -infinity to a score that may be NaN",
            Values.NAN,
            Values.INFINITE,
            where=_leaves_keys_out,
        ),
    )
