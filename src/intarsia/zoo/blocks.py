# SPDX-License-Identifier: Apache-2.0
"""The blocks of transformers, operator for operator as PyTorch's exporter writes them.

The exporter spells `scaled_dot_product_attention` out: both factors are scaled by the square root
of the scale, keys are transposed as a stack of matrices, and under a mask a row without any key,
whose softmax is not a number, becomes zero.

Source: Vaswani et al., "Attention Is All You Need", 2017; Hendrycks and Gimpel, "Gaussian Error
Linear Units", 2016; Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019; Su et al.,
"RoFormer", 2021; Shazeer, "GLU Variants Improve Transformer", 2020. Operators: `torch.onnx.export`
of PyTorch 2.13 with `dynamo=True`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from intarsia.zoo.draft import dims

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

    from intarsia.zoo.draft import ModelDraft

_JITTER = 0.1  # spread of scales around 1 and of biases around 0
_SHARPNESS = 2.0  # spread of scores: some positions weigh more than the mean of all
_GELU_OPSET = 20
_END = np.iinfo(np.int64).max


def linear(
    d: ModelDraft, name: str, x: ir.Value, width: int, gain: float = 1.0, *, bias: bool = True
) -> ir.Value:
    """Write a linear layer of rows: a MatMul and, with a bias, an Add."""
    d = d.at(name)
    fan_in = dims(x)[-1]
    weight = d.normal("weight", (fan_in, width), gain / math.sqrt(fan_in))
    y = d.op("MatMul", "matmul", x, weight)
    return d.op("Add", "add", y, d.normal("bias", (width,), _JITTER * gain)) if bias else y


def gemm(d: ModelDraft, name: str, x: ir.Value, width: int, gain: float = 1.0) -> ir.Value:
    """Write a linear layer of a matrix: a Gemm with the weight transposed."""
    fan_in = dims(x)[-1]
    weight = d.normal(f"{name}.weight", (width, fan_in), gain / math.sqrt(fan_in))
    return d.op("Gemm", name, x, weight, d.normal(f"{name}.bias", (width,), _JITTER), transB=1)


def conv1d(d: ModelDraft, name: str, x: ir.Value, width: int, gain: float = 1.0) -> ir.Value:
    """Write what GPT-2 calls Conv1D: rows flattened to a matrix, a Gemm, and back."""
    d, (*batch, fan_in) = d.at(name), dims(x)
    x = reshape(d, "rows", x, -1, fan_in)
    weight = d.normal("weight", (fan_in, width), gain / math.sqrt(fan_in))
    y = d.op("Gemm", "gemm", x, weight, d.normal("bias", (width,), _JITTER * gain))
    return reshape(d, "batch", y, *batch, width)


def reshape(d: ModelDraft, name: str, x: ir.Value, *shape: int) -> ir.Value:
    """Write a Reshape."""
    return d.op("Reshape", name, x, shape)


def layer_norm(d: ModelDraft, name: str, x: ir.Value, epsilon: float) -> ir.Value:
    """Write a layer normalisation over the last axis."""
    width = dims(x)[-1:]
    scale = d.normal(f"{name}.scale", width, _JITTER, 1.0)
    bias = d.normal(f"{name}.bias", width, _JITTER)
    return d.op("LayerNormalization", name, x, scale, bias, axis=-1, epsilon=epsilon)


def rms_norm(d: ModelDraft, name: str, x: ir.Value, epsilon: float) -> ir.Value:
    """Write a root-mean-square normalisation over the last axis."""
    d = d.at(name)
    mean = d.op("ReduceMean", "mean", d.op("Pow", "square", x, 2.0), (-1,), keepdims=1)
    root = d.op("Sqrt", "root", d.op("Add", "epsilon", mean, epsilon))
    unit = d.op("Mul", "unit", x, d.op("Reciprocal", "reciprocal", root))
    return d.op("Mul", "scaled", d.normal("scale", dims(x)[-1:], _JITTER, 1.0), unit)


def gelu(d: ModelDraft, name: str, x: ir.Value) -> ir.Value:
    """Write a GELU: one operator from opset 20 on, else by the error function."""
    if d.opset >= _GELU_OPSET:
        return d.op("Gelu", name, x, approximate="none")
    d = d.at(name)
    erf = d.op("Erf", "erf", d.op("Div", "div", x, math.sqrt(2)))
    return d.op("Mul", "mul", x, d.op("Mul", "half", 0.5, d.op("Add", "add", erf, 1.0)))


def gelu_tanh(d: ModelDraft, name: str, x: ir.Value) -> ir.Value:
    """Write the GELU by the hyperbolic tangent, as GPT-2 has it."""
    d = d.at(name)
    half = d.op("Mul", "half", x, 0.5)
    cubic = d.op("Mul", "cubic", d.op("Pow", "cube", x, 3.0), 0.044715)
    inner = d.op("Mul", "inner", d.op("Add", "sum", x, cubic), math.sqrt(2 / math.pi))
    return d.op("Mul", "mul", half, d.op("Add", "add", d.op("Tanh", "tanh", inner), 1.0))


def mlp(
    d: ModelDraft,
    x: ir.Value,
    width: int,
    gain: float,
    *,
    layer: Callable[..., ir.Value] = linear,
    activation: Callable[..., ir.Value] = gelu,
) -> ir.Value:
    """Write two layers with an activation between them."""
    y = activation(d, "gelu", layer(d, "up", x, width))
    return layer(d, "down", y, dims(x)[-1], gain)


def swiglu(d: ModelDraft, x: ir.Value, width: int, gain: float) -> ir.Value:
    """Write the gated layers of a Llama."""
    gate = linear(d, "gate", x, width, bias=False)
    silu = d.op("Mul", "silu", gate, d.op("Sigmoid", "sigmoid", gate))
    y = d.op("Mul", "mul", silu, linear(d, "up", x, width, bias=False))
    return linear(d, "down", y, dims(x)[-1], gain, bias=False)


def split_heads(d: ModelDraft, name: str, x: ir.Value, size: int) -> ir.Value:
    """Move heads of this size before the positions: f32[b, n, h * size] to f32[b, h, n, size]."""
    d, (batch, length, _) = d.at(name), dims(x)
    x = reshape(d, "split", x, batch, length, -1, size)
    return d.op("Transpose", "transpose", x, perm=(0, 2, 1, 3))


def join_heads(d: ModelDraft, x: ir.Value, *shape: int) -> ir.Value:
    """Undo `split_heads`, to this shape."""
    return reshape(d, "join", d.op("Transpose", "transpose", x, perm=(0, 2, 1, 3)), *shape)


def attend(
    d: ModelDraft,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    mask: ir.Value | None = None,
    *,
    scaled: bool = True,
) -> ir.Value:
    """Write scaled dot-product attention.

    Args:
        d: Where.
        query: f32[b, h, n, c].
        key: f32[b, h, m, c], or f32[b, k, h / k, m, c] with a repetition of each head.
        value: f32[b, h, m, c].
        mask: What is added to the scores.
        scaled: False if the query is scaled already: a scale of 1 leaves no node.
    """
    batch, heads, _, size = dims(query)
    length = dims(key)[-2]
    stack = reshape(d, "key_stack", key, batch * heads, length, size)
    stack = d.op("Transpose", "key_transpose", stack, perm=(0, 2, 1))
    key = reshape(d, "key_heads", stack, batch, heads, size, length)
    if scaled:
        query = d.op("Mul", "query_scale", query, size**-0.25)
        key = d.op("Mul", "key_scale", key, size**-0.25)
    scores = d.op("MatMul", "scores", query, key)
    if mask is not None:
        scores = d.op("Add", "mask", scores, mask)
    weights = d.op("Softmax", "softmax", scores, axis=-1)
    if mask is not None:
        empty = d.op("IsNaN", "isnan", weights)
        weights = d.op("Where", "where", empty, 0.0, weights)
    return d.op("MatMul", "context", weights, value)


def self_attention(
    d: ModelDraft,
    x: ir.Value,
    heads: int,
    gain: float = 1.0,
    mask: ir.Value | None = None,
) -> ir.Value:
    """Write the attention of an encoder: three projections, heads, one more projection."""
    width = dims(x)[-1]
    query, key, value = (
        split_heads(d, name, linear(d, name, x, width, spread), width // heads)
        for name, spread in (("query", _SHARPNESS), ("key", 1.0), ("value", 1.0))
    )
    context = join_heads(d, attend(d, query, key, value, mask), *dims(x)[:-1], -1)
    return linear(d, "output", context, width, gain)


def open_or_closed(d: ModelDraft, name: str, is_open: ir.Value) -> ir.Value:
    """Turn a bool mask into what `attend` adds: 0, or the lowest float32."""
    return d.op("Where", name, is_open, 0.0, float(np.finfo(np.float32).min))


def rotate(d: ModelDraft, name: str, x: ir.Value, cos: ir.Value, sin: ir.Value) -> ir.Value:
    """Write a rotary embedding: each half of the last axis of x turned against the other."""
    d, half = d.at(name), dims(x)[-1] // 2
    straight = d.op("Mul", "straight", x, cos)
    first = d.op("Slice", "first", x, (0,), (half,), (3,), (1,))
    second = d.op("Neg", "neg", d.op("Slice", "second", x, (half,), (_END,), (3,), (1,)))
    turned = d.op("Concat", "turned", second, first, axis=-1)
    return d.op("Add", "add", straight, d.op("Mul", "across", turned, sin))
