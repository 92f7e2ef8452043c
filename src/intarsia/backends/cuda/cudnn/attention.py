# SPDX-License-Identifier: Apache-2.0
"""Attention as cuDNN has it: of items, heads, rows and entries, whose strides are free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from intarsia.backends.cuda.cudnn.drafts import GraphDraft, dense
from intarsia.backends.cuda.cudnn.graphs import DnnOperation, DnnTensor, dense_strides
from intarsia.codegen.lower.operation import Operation
from intarsia.extents import is_free

if TYPE_CHECKING:
    from intarsia.graph.graph import Value
    from intarsia.graph.pattern import Match

_RANK = 4
_PIECE = 8
"""Entries of a head come in pieces of so many."""


def attention(match: Match) -> GraphDraft | str:
    """Return attention that is spelled as two products and a softmax, or why it is not taken."""
    graph = match.graph
    softmax = next(node for node in match.nodes if node.op_type == "Softmax")
    last, scores = match.nodes[0], match.nodes[-2]
    turned, scaled = match.nodes[-1], match.nodes[2:-2]
    q, k = graph.values[scores.inputs[0]], graph.values[turned.inputs[0]]
    v, output = graph.values[last.inputs[1]], graph.values[last.outputs[0]]
    problem = _refuse_attention((q, k, v, output))
    if problem:
        return problem
    shape = graph.values[softmax.outputs[0]].shape or ()
    rank = len(shape)
    if Operation(graph, softmax).attribute("axis", -1) % max(rank, 1) != rank - 1:
        return "its softmax is not over keys"
    order = Operation(graph, turned).attribute("perm") or tuple(range(rank))[::-1]
    steps = dense_strides(list(k.shape or ()))
    keys = [steps[axis] for axis in order]
    sizes = [(k.shape or ())[axis] for axis in order]
    sizes[-2:], keys[-2:] = sizes[:-3:-1], keys[:-3:-1]
    scale = 1.0
    for node in scaled:
        operation = Operation(graph, node)
        constant = next((at for at in (0, 1) if operation.is_constant(at)), None)
        if constant is None or operation.array(constant).size != 1:
            return "its scores are multiplied by more than one number"
        factor = float(operation.array(constant).reshape(-1)[0])
        if node.op_type == "Div" and (constant == 0 or not factor):
            return "its scores are not divided by a number other than zero"
        scale = factor if node.op_type == "Mul" else 1 / factor
    tensors = {
        "Q": dense(q),
        "K": DnnTensor(k.dtype, sizes, keys, k.id),
        "V": dense(v),
    }
    return _attended(softmax.name, tensors, dense(output), scale)


def attention_operator(match: Match) -> GraphDraft | str:
    """Return what ONNX's `Attention` computes, or why it is not taken."""
    operation = Operation(match.graph, match.nodes[0])
    if len(operation.inputs) > 3 or len(operation.outputs) > 1:  # noqa: PLR2004
        return "it has a mask or a cache"
    problem = _refuse_attention((*operation.inputs, *operation.outputs))
    if problem:
        return problem
    if any(
        operation.attribute(name, 0) for name in ("is_causal", "softcap", "qk_matmul_output_mode")
    ):
        return "some keys are left out, or its scores are bounded"
    heads = [operation.attribute(name, 0) for name in ("q_num_heads", "kv_num_heads")]
    if len(operation.inputs[0].shape or ()) != _RANK and not all(heads):
        return "how many heads it has is not said"
    counts = (heads[0], heads[1], heads[1], heads[0])
    values = (*operation.inputs, operation.output)
    seen = []
    for value, count in zip(values, counts, strict=True):
        shape = list(value.shape or ())
        if len(shape) == _RANK:
            seen.append(dense(value))
            continue
        items, rows, width = shape
        dims = [items, count, rows, width // count]
        steps = [rows * width, width // count, width, 1]
        seen.append(DnnTensor(value.dtype, dims, steps, value.id))
    q, k, v, output = seen
    scale = operation.attribute("scale")
    factor = 1 / np.sqrt(q.dims[-1]) if scale is None else scale
    tensors = {"Q": q, "K": k, "V": v}
    return _attended(operation.node.name, tensors, output, float(factor))


def _attended(
    node: str, tensors: Mapping[str, DnnTensor], output: DnnTensor, scale: float
) -> GraphDraft | str:
    """Return attention of items, heads, rows and entries."""
    if any(tensor.strides[-1] != 1 for tensor in tensors.values()):
        return "the entries of a head do not lie together"
    q, k, v = (_of_heads(tensors[letter]) for letter in "QKV")
    if (q.dims[0], q.dims[-1]) != (k.dims[0], k.dims[-1]) or k.dims[:3] != v.dims[:3]:
        return "its items or heads are repeated"
    result = _of_heads(output)
    if result.dims != [*q.dims[:3], v.dims[3]]:
        return "its result has other dimensions than its queries"
    if q.dims[1] % k.dims[1]:
        return "its heads are not divided among those of keys"
    if q.dims[-1] % _PIECE or v.dims[-1] % _PIECE:
        return f"the entries of a head are no multiple of {_PIECE}"
    number = DnnTensor("float32", [1] * 4, [1] * 4, number=scale)
    return GraphDraft(
        node,
        DnnOperation("attention", {}),
        {"Q": q, "K": k, "V": v, "SCALE": number},
        result,
    )


def _of_heads(tensor: DnnTensor) -> DnnTensor:
    """Return a tensor with a dimension of heads."""
    if len(tensor.dims) == _RANK:
        return tensor
    items, *others = tensor.dims
    step, *steps = tensor.strides
    return DnnTensor(tensor.dtype, [items, 1, *others], [step, step, *steps], tensor.tensor)


def _refuse_attention(values: Sequence[Value]) -> str:
    for value in values:
        if value.dtype not in ("float16", "bfloat16"):
            return "cuDNN's attention is of 16-bit floating-point numbers"
        if value.shape is None or is_free(value.shape):
            return "a size is not known"
        if len(value.shape) not in (3, 4) or 0 in value.shape:
            return "it has not the dimensions of attention"
    if len({len(value.shape or ()) for value in values}) > 1:
        return "its tensors are not of one number of dimensions"  # heads of one are items of others
    return ""
