# SPDX-License-Identifier: Apache-2.0
"""Encoders of text, images and sound, in the shape that PyTorch's exporter gives them.

Source: Devlin et al., "BERT", 2018; Wang et al., "MiniLM", 2020; Dosovitskiy et al., "An Image Is
Worth 16x16 Words", 2020; Radford et al., "Robust Speech Recognition via Large-Scale Weak
Supervision", 2022.
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
