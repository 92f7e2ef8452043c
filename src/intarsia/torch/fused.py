# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch's fast paths of inference, in operators that its ONNX exporter knows.

`torch.nn.TransformerEncoderLayer` and `torch.nn.MultiheadAttention` call one operator each where no
gradient is asked for; the exporter has no form of either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

_OF_KEYS = 1
"""The type of a mask of (batch, keys)."""


def fused_attention() -> Mapping[Any, Callable[..., Any]]:
    """Return what computes the same, by operator of the fast paths."""
    import torch

    layer = torch.ops.aten._transformer_encoder_layer_fwd.default  # noqa: SLF001 - its name
    attention = torch.ops.aten._native_multi_head_attention.default  # noqa: SLF001 - likewise
    return {
        layer: lambda *given, **named: _encoder_layer(_bound(layer, given, named)),
        attention: lambda *given, **named: _of_heads(_bound(attention, given, named)),
    }


def _bound(operator: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> SimpleNamespace:
    """Return the arguments of a call under the names that the operator's schema has for them."""
    declared = operator._schema.arguments  # noqa: SLF001 - there is no other way to names
    values = {argument.name: argument.default_value for argument in declared}
    values.update(zip(values, given, strict=False))
    return SimpleNamespace(**{**values, **named})


def _encoder_layer(of: SimpleNamespace) -> Any:
    """Compute one layer of an encoder: attention and two linear layers, each with its norm.

    Args:
        of: The operator's arguments; `src` is (batch, length, embed_dim).

    Source:
        aten/src/ATen/native/transformers/transformer.cpp of PyTorch.
    """
    from torch.nn import functional

    def first_norm(x: Any) -> Any:
        return functional.layer_norm(x, (of.embed_dim,), of.norm_weight_1, of.norm_bias_1, of.eps)

    def second_norm(x: Any) -> Any:
        return functional.layer_norm(x, (of.embed_dim,), of.norm_weight_2, of.norm_bias_2, of.eps)

    def attended(x: Any) -> Any:
        return _attended(of, (x, x, x), of.num_heads)[0]

    def fed(x: Any) -> Any:
        inner = functional.linear(x, of.ffn_weight_1, of.ffn_bias_1)
        active = functional.gelu(inner) if of.use_gelu else functional.relu(inner)
        return functional.linear(active, of.ffn_weight_2, of.ffn_bias_2)

    if of.norm_first:
        x = of.src + attended(first_norm(of.src))
        return x + fed(second_norm(x))
    x = first_norm(of.src + attended(of.src))
    return second_norm(x + fed(x))


def _of_heads(of: SimpleNamespace) -> tuple[Any, Any]:
    """Compute attention of several heads, and its weights; nothing for them if none are needed.

    Args:
        of: The operator's arguments; `query`, `key` and `value` are (batch, length, embed_dim).

    Source:
        aten/src/ATen/native/transformers/attention.cpp of PyTorch.
    """
    rows = (of.query, of.key, of.value)
    attended, weights = _attended(of, rows, of.num_head)
    if not of.need_weights:
        return attended, of.query.new_empty(0)
    return attended, weights.mean(1) if of.average_attn_weights else weights


def _attended(of: SimpleNamespace, rows: tuple[Any, Any, Any], heads: int) -> tuple[Any, Any]:
    """Return what is attended, and the weights of each head.

    As in the operators, a query whose keys are all masked has NaN.
    """
    from torch.nn import functional

    q, k, v = _projected(of, rows, heads)
    scores = q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)
    if of.mask is not None:
        scores = scores.masked_fill(_closed_scores(of), float("-inf"))
    weights = scores.softmax(-1)
    mixed = (weights @ v).transpose(1, 2).flatten(2)
    return functional.linear(mixed, of.proj_weight, of.proj_bias), weights


def _projected(of: SimpleNamespace, rows: tuple[Any, Any, Any], heads: int) -> list[Any]:
    """Return queries, keys and values, each (batch, heads, length, width of a head)."""
    from torch.nn import functional

    width = of.embed_dim
    parts = [slice(i * width, (i + 1) * width) for i in range(3)]
    return [
        functional.linear(x, of.qkv_weight[part], of.qkv_bias[part])
        .unflatten(-1, (heads, width // heads))
        .transpose(1, 2)
        for x, part in zip(rows, parts, strict=True)
    ]


def _closed_scores(of: SimpleNamespace) -> Any:
    """Return which scores do not count, to be spread over (batch, heads, queries, keys).

    The mask is true, or a number other than zero, where a score does not count.
    """
    closed = of.mask.bool()
    return closed[:, None, None, :] if of.mask_type == _OF_KEYS else closed
