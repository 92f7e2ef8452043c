# SPDX-License-Identifier: Apache-2.0
"""Encoders and decoders, in the shape that PyTorch's exporter gives them.

Source: Devlin et al., "BERT", 2018; Wang et al., "MiniLM", 2020; Dosovitskiy et al., "An Image Is
Worth 16x16 Words", 2020; Radford et al., "Robust Speech Recognition via Large-Scale Weak
Supervision", 2022; Radford et al., "Language Models are Unsupervised Multitask Learners", 2019;
Touvron et al., "LLaMA", 2023; Ainslie et al., "GQA", 2023 (several query heads share a key head).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from intarsia.zoo import blocks
from intarsia.zoo.draft import ModelDraft, dims

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnx import ModelProto

_BERT_EPSILON = 1e-12
_POSITIONS, _TOKENS = 512, 128
_PATCH, _SIDE, _CLASSES = 16, 224, 1000
_BANDS, _FRAMES = 80, 3000


@dataclass(frozen=True, slots=True)
class Encoder:
    """The sizes of an encoder."""

    name: str
    layers: int
    width: int
    heads: int
    words: int = 0

    @property
    def gain(self) -> float:
        """How large a branch is, so that the sum of all branches has about unit variance."""
        return 1 / math.sqrt(2 * self.layers)


BERT_BASE = Encoder("bert_base", layers=12, width=768, heads=12, words=30522)
MINILM = Encoder("minilm", layers=6, width=384, heads=12, words=30522)
VIT_B16 = Encoder("vit_b16", layers=12, width=768, heads=12)
WHISPER_TINY = Encoder("whisper_encoder", layers=4, width=384, heads=6)


def bert(size: Encoder, rng: np.random.Generator) -> ModelProto:
    """Build a BERT: layers normalise the sum of each branch and what it started from."""
    d = ModelDraft.start(rng, opset=18)
    names = ("input_ids", "attention_mask", "token_type_ids")
    words, attention, kinds = (d.input(name, (1, _TOKENS), "int64") for name in names)
    x = _bert_embeddings(d.at("embeddings"), size, words, kinds)
    mask = _bert_mask(d.at("mask"), attention)
    for i in range(size.layers):
        layer = d.at("encoder", i)
        branch = blocks.self_attention(layer.at("attention"), x, size.heads, mask=mask)
        x = layer.op("Add", "add1", branch, x)
        x = blocks.layer_norm(layer, "norm1", x, _BERT_EPSILON)
        branch = blocks.mlp(layer.at("mlp"), x, 4 * size.width, 1.0)
        x = layer.op("Add", "add2", branch, x)
        x = blocks.layer_norm(layer, "norm2", x, _BERT_EPSILON)
    pooler = d.at("pooler")
    pooled = _first_token(pooler, x)
    pooled = pooler.op("Tanh", "tanh", blocks.gemm(pooler, "fc", pooled, size.width))
    return d.finish(size.name, {"last_hidden_state": x, "pooler_output": pooled})


def _bert_embeddings(d: ModelDraft, size: Encoder, words: ir.Value, kinds: ir.Value) -> ir.Value:
    width = size.width
    word = d.op("Gather", "word", d.normal("word.weight", (size.words, width), 1.0), words, axis=0)
    kind = d.op("Gather", "kind", d.normal("kind.weight", (2, width), 0.5), kinds, axis=0)
    ids = d.constant(np.arange(_TOKENS)[None], "position.ids")
    table = d.normal("position.weight", (_POSITIONS, width), 0.5)
    position = d.op("Gather", "position", table, ids, axis=0)
    total = d.op("Add", "add2", d.op("Add", "add1", word, kind), position)
    return blocks.layer_norm(d, "norm", total, _BERT_EPSILON)


def _bert_mask(d: ModelDraft, attention: ir.Value) -> ir.Value:
    """Write the mask: the exporter gathers it by (batch, position) pairs."""
    pairs = np.stack([np.zeros(_TOKENS, np.int64), np.arange(_TOKENS)], axis=-1)
    flags = d.op("Cast", "cast", attention, to=9)
    flags = d.op("GatherND", "gather", flags, d.constant(pairs[None, None, None], "pairs"))
    everywhere = d.constant(np.ones((1, 1, _TOKENS, 1), np.bool_), "everywhere")
    return blocks.open_or_closed(d, "where", d.op("And", "and", everywhere, flags))


def _first_token(d: ModelDraft, x: ir.Value) -> ir.Value:
    return d.op("Gather", "first", x, d.constant(np.asarray(0), "first.index"), axis=1)


def vit(size: Encoder, rng: np.random.Generator) -> ModelProto:
    """Build a vision transformer: patches, a class token, layers that normalise first."""
    d = ModelDraft.start(rng, opset=20)
    image = d.input("data", (1, 3, _SIDE, _SIDE))
    x = _patches(d.at("embeddings"), size.width, image)
    count = dims(x)[1]
    everywhere = d.constant(np.ones((1, 1, count, count), np.bool_), "mask/everywhere")
    mask = blocks.open_or_closed(d.at("mask"), "where", everywhere)
    for i in range(size.layers):
        layer = d.at("encoder", i)
        y = blocks.layer_norm(layer, "norm1", x, _BERT_EPSILON)
        branch = blocks.self_attention(layer.at("attention"), y, size.heads, size.gain, mask)
        x = layer.op("Add", "add1", branch, x)
        y = blocks.layer_norm(layer, "norm2", x, _BERT_EPSILON)
        x = layer.op("Add", "add2", blocks.mlp(layer.at("mlp"), y, 4 * size.width, size.gain), x)
    head = d.at("head")
    token = _first_token(head, blocks.layer_norm(head, "norm", x, _BERT_EPSILON))
    return d.finish(size.name, {"logits": blocks.gemm(head, "fc", token, _CLASSES)})


def _patches(d: ModelDraft, width: int, image: ir.Value) -> ir.Value:
    fan_in = 3 * _PATCH * _PATCH
    weight = d.normal("patch.weight", (width, 3, _PATCH, _PATCH), 1 / math.sqrt(fan_in))
    bias = d.normal("patch.bias", (width,), 0.1)
    window = (_PATCH, _PATCH)
    x = d.op("Conv", "patch", image, weight, bias, kernel_shape=window, strides=window)
    count = (_SIDE // _PATCH) ** 2
    x = d.op(
        "Transpose", "transpose", blocks.reshape(d, "flatten", x, 1, width, count), perm=(0, 2, 1)
    )
    x = d.op("Concat", "concat", d.normal("token", (1, 1, width), 0.3), x, axis=1)
    return d.op("Add", "add", x, d.normal("position", (1, count + 1, width), 0.5))


def whisper(size: Encoder, rng: np.random.Generator) -> ModelProto:
    """Build Whisper's encoder: two convolutions over time, then layers that normalise first."""
    d = ModelDraft.start(rng, opset=20)
    x = _sound(d.at("stem"), size.width, d.input("mel", (1, _BANDS, _FRAMES)))
    for i in range(size.layers):
        layer = d.at("encoder", i)
        y = blocks.layer_norm(layer, "norm1", x, 1e-5)
        x = layer.op("Add", "add1", x, _whisper_attention(layer.at("attention"), y, size))
        y = blocks.layer_norm(layer, "norm2", x, 1e-5)
        x = layer.op("Add", "add2", x, blocks.mlp(layer.at("mlp"), y, 4 * size.width, size.gain))
    return d.finish(size.name, {"last_hidden_state": blocks.layer_norm(d, "head/norm", x, 1e-5)})


def _whisper_attention(d: ModelDraft, x: ir.Value, size: Encoder) -> ir.Value:
    """Write attention whose query is scaled once, before the heads, and whose key has no bias."""
    head = size.width // size.heads
    query = blocks.linear(d, "query", x, size.width)
    query = d.op("Mul", "scale", query, head**-0.5)
    key = blocks.linear(d, "key", x, size.width, bias=False)
    value = blocks.linear(d, "value", x, size.width)
    pairs = (("query", query), ("key", key), ("value", value))
    context = blocks.attend(
        d, *(blocks.split_heads(d, name, y, head) for name, y in pairs), scaled=False
    )
    batch, _, length, _ = dims(context)
    context = blocks.reshape(d, "view", context, batch, -1, length, head)
    context = blocks.join_heads(d, context, 1, length, -1)
    return blocks.linear(d, "output", context, size.width, size.gain)


def _sound(d: ModelDraft, width: int, mel: ir.Value) -> ir.Value:
    x = mel
    for i, stride in ((1, 1), (2, 2)):
        fan_in = 3 * dims(x)[1]
        weight = d.normal(f"conv{i}.weight", (width, fan_in // 3, 3), math.sqrt(2 / fan_in))
        bias = d.normal(f"conv{i}.bias", (width,), 0.1)
        x = d.op(
            "Conv", f"conv{i}", x, weight, bias, kernel_shape=(3,), strides=(stride,), pads=(1, 1)
        )
        x = blocks.gelu(d, f"gelu{i}", x)
    x = d.op("Transpose", "transpose", x, perm=(0, 2, 1))
    table = d.weight("position.weight", _sinusoids(dims(x)[1], width))
    ids = d.constant(np.arange(dims(x)[1]), "position.ids")
    return d.op("Add", "add", x, d.op("Gather", "position", table, ids, axis=0))


def _sinusoids(length: int, width: int) -> npt.NDArray[np.float32]:
    """Return sines, then cosines, of geometrically spaced wavelengths: f32[length, width]."""
    rates = np.exp(-math.log(10000) * np.arange(width // 2) / (width // 2 - 1))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


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
