# SPDX-License-Identifier: Apache-2.0
"""Decoders of text, in the shape that PyTorch's exporter gives them.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; Touvron et al.,
"LLaMA", 2023; Ainslie et al., "GQA", 2023 (several query heads share a key head).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from intarsia.zoo import blocks
from intarsia.zoo.draft import ModelDraft, dims

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnx import ModelProto

_GPT2_POSITIONS, _GPT2_EPSILON = 1024, 1e-5
_GPT2_SPREAD = 0.08  # of the tied embedding, so that logits spread by about 2
_LLAMA_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Gpt2:
    """The sizes of a GPT-2 and of its prompt; by default those of the small one, 64 tokens."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    words: int = 50257
    tokens: int = 64


@dataclass(frozen=True, slots=True)
class Llama:
    """The sizes of a Llama and of its cache; by default 100 million parameters, 128 positions."""

    layers: int = 8
    width: int = 768
    hidden: int = 2048
    heads: int = 12
    key_heads: int = 4
    words: int = 32000
    past: int = 128

    @property
    def head(self) -> int:
        """The size of a head."""
        return self.width // self.heads


def gpt2(size: Gpt2, rng: np.random.Generator) -> ModelProto:
    """Build GPT-2 small, reading a whole prompt; its embedding is its last layer as well."""
    d = ModelDraft.start(rng, opset=18)
    gain = _GPT2_SPREAD / math.sqrt(2 * size.layers)
    words = d.normal("embeddings/word.weight", (size.words, size.width), _GPT2_SPREAD)
    x = _gpt2_embeddings(
        d.at("embeddings"), size, words, d.input("input_ids", (1, size.tokens), "int64")
    )
    lowest = np.full((size.tokens, size.tokens), np.finfo(np.float32).min)
    mask = d.constant(np.triu(lowest, 1)[None, None], "mask/causal")
    for i in range(size.layers):
        layer = d.at("decoder", i)
        y = blocks.layer_norm(layer, "norm1", x, _GPT2_EPSILON)
        x = layer.op("Add", "add1", _gpt2_attention(layer.at("attention"), size, y, mask, gain), x)
        y = blocks.layer_norm(layer, "norm2", x, _GPT2_EPSILON)
        y = blocks.mlp(
            layer.at("mlp"),
            y,
            4 * size.width,
            gain,
            layer=blocks.conv1d,
            activation=blocks.gelu_tanh,
        )
        x = layer.op("Add", "add2", x, y)
    head = d.at("head")
    x = blocks.layer_norm(head, "norm", x, _GPT2_EPSILON)
    x = blocks.reshape(head, "rows", x, -1, size.tokens, size.width)
    weight = head.op("Transpose", "transpose", words, perm=(1, 0))
    return d.finish("gpt2", {"logits": head.op("MatMul", "matmul", x, weight)})


def _gpt2_embeddings(d: ModelDraft, size: Gpt2, words: ir.Value, tokens: ir.Value) -> ir.Value:
    tokens = blocks.reshape(d, "rows", tokens, -1, size.tokens)
    table = d.normal("position.weight", (_GPT2_POSITIONS, size.width), _GPT2_SPREAD)
    ids = d.constant(np.arange(size.tokens)[None], "position.ids")
    word = d.op("Gather", "word", words, tokens, axis=0)
    return d.op("Add", "add", word, d.op("Gather", "position", table, ids, axis=0))


def _gpt2_attention(
    d: ModelDraft, size: Gpt2, x: ir.Value, mask: ir.Value, gain: float
) -> ir.Value:
    """Write attention whose three projections are one product, split afterwards."""
    width, head = size.width, size.width // size.heads
    parts = d.split("split", blocks.conv1d(d, "projection", x, 3 * width), (width,) * 3, axis=2)
    query, key, value = (
        blocks.split_heads(d, name, part, head)
        for name, part in zip(("query", "key", "value"), parts, strict=True)
    )
    context = blocks.attend(d, query, key, value, mask)
    d, (batch, _, length, _) = d.at("output"), dims(context)
    rows = blocks.join_heads(d, context, batch * length, width)
    weight = d.normal("weight", (width, width), gain / math.sqrt(width))
    y = d.op("Gemm", "gemm", rows, weight, d.normal("bias", (width,), 0.1 * gain))
    return blocks.reshape(d, "batch", y, batch, length, width)


def llama_decode(size: Llama, rng: np.random.Generator) -> ModelProto:
    """Build one step of a small Llama: one token, a cache of keys and values in and out."""
    d = ModelDraft.start(rng, opset=18)
    token = d.input("input_ids", (1, 1), "int64")
    position = d.input("position_ids", (1, 1), "int64")
    shape = (1, size.key_heads, size.past, size.head)
    past = [
        [d.input(f"past.{i}.{kind}", shape) for kind in ("key", "value")]
        for i in range(size.layers)
    ]
    table = d.normal("embeddings/word.weight", (size.words, size.width), 1.0)
    x = d.op("Gather", "embeddings/word", table, token, axis=0)
    turn = _rotary(d.at("rotary"), size, position)
    mask = d.constant(np.zeros((1, 1, 1, size.past + 1), np.float32), "mask/causal")
    present: dict[str, ir.Value] = {}
    for i, cache in enumerate(past):
        layer, gain = d.at("decoder", i), 1 / math.sqrt(2 * size.layers)
        y = blocks.rms_norm(layer, "norm1", x, _LLAMA_EPSILON)
        y, new = _llama_attention(layer.at("attention"), size, y, cache, turn, mask, gain)
        present |= {f"present.{i}.key": new[0], f"present.{i}.value": new[1]}
        x = layer.op("Add", "add1", x, y)
        y = blocks.rms_norm(layer, "norm2", x, _LLAMA_EPSILON)
        x = layer.op("Add", "add2", x, blocks.swiglu(layer.at("mlp"), y, size.hidden, gain))
    x = blocks.rms_norm(d, "head/norm", x, _LLAMA_EPSILON)
    logits = blocks.linear(d, "head/fc", x, size.words, 2.0, bias=False)
    return d.finish("llama_decode", {"logits": logits, **present})


def _rotary(d: ModelDraft, size: Llama, position: ir.Value) -> list[ir.Value]:
    """Write the cosine and the sine of each angle at a position: f32[1, 1, 1, head]."""
    rates = 10000.0 ** -(np.arange(0, size.head, 2) / size.head)
    where = d.op("Cast", "cast", d.op("Unsqueeze", "position", position, (2,)), to=1)
    rate = d.constant(rates.astype(np.float32), "rates")
    angle = d.op("Mul", "angle", where, rate)
    angle = d.op("Concat", "angles", angle, angle, axis=-1)
    waves = [d.op(op, op.lower(), angle) for op in ("Cos", "Sin")]
    return [d.op("Unsqueeze", f"heads{i}", wave, (1,)) for i, wave in enumerate(waves)]


def _llama_attention(
    d: ModelDraft,
    size: Llama,
    x: ir.Value,
    past: list[ir.Value],
    turn: list[ir.Value],
    mask: ir.Value,
    gain: float,
) -> tuple[ir.Value, list[ir.Value]]:
    """Write attention over the cache and one position more; return it and the new cache."""
    widths = {"query": size.heads, "key": size.key_heads, "value": size.key_heads}
    query, key, value = (
        blocks.split_heads(
            d,
            name,
            blocks.linear(d, name, x, heads * size.head, bias=False),
            size.head,
        )
        for name, heads in widths.items()
    )
    query = blocks.rotate(d, "query/rotate", query, *turn)
    key = blocks.rotate(d, "key/rotate", key, *turn)
    key = d.op("Concat", "key/present", past[0], key, axis=-2)
    value = d.op("Concat", "value/present", past[1], value, axis=-2)
    keys, values = _repeat(d.at("key"), key, size.heads), _repeat(d.at("value"), value, size.heads)
    values = blocks.reshape(d, "value/heads", values, *dims(query)[:2], *dims(value)[2:])
    context = blocks.attend(d, query, keys, values, mask)
    context = blocks.reshape(d, "view", context, 1, -1, 1, size.head)
    context = blocks.join_heads(d, context, 1, 1, -1)
    return blocks.linear(d, "output", context, size.width, gain, bias=False), [key, value]


def _repeat(d: ModelDraft, x: ir.Value, heads: int) -> ir.Value:
    """Write the repetition of each key head for the query heads that share it."""
    batch, key_heads, *rest = dims(x)
    shape = (batch, key_heads, heads // key_heads, *rest)
    return d.op("Expand", "repeat", d.op("Unsqueeze", "unsqueeze", x, (2,)), shape)
