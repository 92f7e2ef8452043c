# SPDX-License-Identifier: Apache-2.0
"""What ONNX Runtime's optimised sessions compute otherwise than its plain ones, as rules.

A target `onnxruntime` is what ONNX Runtime's users have: its errors are followed, and named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.backends.defects import Bound, KnownDefect, Values

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node

_TRIED = "ONNX Runtime 1.31, all optimisations against none, and onnx.reference 1.23"
_REDUCTIONS = frozenset(
    (
        *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
    )
)


def _counts_axes_from_the_end(graph: Graph, node: Node) -> bool:
    """Tell whether an empty tensor is reduced along an axis that is, or may be, negative."""
    if 0 not in (graph.values[node.inputs[0]].shape or ()):
        return False
    axes = node.ir.attributes.get_ints("axes", ())
    if len(node.inputs) > 1 and node.inputs[1] >= 0:
        given = graph.values[node.inputs[1]].constant
        if given is None:
            return True
        axes = given.numpy().reshape(-1).tolist()
    return any(axis < 0 for axis in axes)


def _rule(
    operators: str, says: str, *values: Values, bound: Bound | None = None, dtypes: str = ""
) -> KnownDefect:
    return KnownDefect(
        *("onnxruntime", frozenset(operators.split()), says, _TRIED),
        *(frozenset(values), bound, frozenset(dtypes.split())),
    )


DEFECTS: tuple[KnownDefect, ...] = (
    _rule(
        "QuantizeLinear",
        "behind quantised tensors it is one operator, which rounds the bias too: two quanta",
        bound=lambda inputs, made: 2.0,
    ),
    KnownDefect(
        "onnxruntime",
        _REDUCTIONS,
        "of an empty tensor it passes over axes that are counted from the end",
        _TRIED,
        where=_counts_axes_from_the_end,
    ),
    _rule("MaxPool GlobalMaxPool", "of NaN and numbers it depends on their order", Values.NAN),
    _rule(
        "ReduceProd",
        "of int32 it computes in floats and saturates",
        bound=lambda inputs, made: 2.0**31,
        dtypes="int32",
    ),
    _rule("ReduceLogSumExp", "of infinities alone it is -infinity or NaN", Values.INFINITE),
    _rule(
        "PRelu",
        "of halves it multiplies and adds, so that an infinity becomes NaN",
        *(Values.NAN, Values.INFINITE, Values.HUGE),
        dtypes="float16",
    ),
    _rule(
        "Add Sub Mul Div Exp Pow Sqrt Reciprocal Softmax Sum Mean ReduceSum ReduceMean Cast",
        "halves stay float32 from node to node, so that nothing overflows in between",
        *(Values.INFINITE, Values.HUGE),
        dtypes="float16",
    ),
    _rule("Selu Elu Celu LeakyRelu PRelu Pow", "-0.0 may become 0.0", Values.NEGATIVE_ZERO),
    _rule(
        "Conv ConvTranspose Gemm MatMul",
        "which sums overflow depends on the order of summing",
        Values.HUGE,
    ),
    _rule(
        "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization LRN Gelu "
        "Erf",
        "what overflows on the way depends on the order of computing",
        *(Values.INFINITE, Values.HUGE),
    ),
)
"""All that is known of releases up to 1.31; see `docs/numbers.md`."""
