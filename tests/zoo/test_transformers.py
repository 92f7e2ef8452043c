# SPDX-License-Identifier: Apache-2.0
"""Transformers compute what their papers say; small ones show it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from intarsia.zoo.transformers import Encoder, Gpt2, Llama, bert, gpt2, llama_decode

Array = np.ndarray[Any, Any]
LLAMA = Llama(layers=2, width=48, hidden=80, heads=6, key_heads=2, words=50, past=7)


def run(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def test_a_later_token_does_not_change_earlier_logits() -> None:
    model = gpt2(Gpt2(layers=2, width=48, heads=4, words=60, tokens=10), np.random.default_rng(0))
    tokens = np.random.default_rng(1).integers(0, 60, (1, 10))
    changed = tokens.copy()
    changed[0, 6] = (tokens[0, 6] + 1) % 60
    before, after = (run(model, {"input_ids": ids})["logits"] for ids in (tokens, changed))
    np.testing.assert_array_equal(before[:, :6], after[:, :6])
    assert (np.abs(before[:, 6:] - after[:, 6:]).max(axis=-1) > 1e-3).all()


def test_a_masked_token_changes_no_other_token() -> None:
    size = Encoder("bert", layers=2, width=48, heads=4, words=60)
    model = bert(size, np.random.default_rng(0))
    tokens, attention = np.random.default_rng(1).integers(0, 60, (1, 128)), np.ones((1, 128), int)
    attention[0, 100:] = 0
    changed = tokens.copy()
    changed[0, 110] = (tokens[0, 110] + 1) % 60
    feeds = {"attention_mask": attention, "token_type_ids": np.zeros((1, 128), int)}
    before, after = (
        run(model, {"input_ids": ids, **feeds})["last_hidden_state"] for ids in (tokens, changed)
    )
    np.testing.assert_array_equal(before[0, :100], after[0, :100])
    assert np.abs(before[0, 110] - after[0, 110]).max() > 1e-3


class Reference:
    """A Llama in NumPy that reads a whole prompt at once, without a cache."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self.cache: dict[str, Array] = {}

    def logits(self, tokens: Array) -> Array:
        x = self.weights["embeddings/word.weight"][tokens]
        for i in range(LLAMA.layers):
            x = x + self.attention(i, self.norm(f"decoder/{i}/norm1", x))
            y, mlp = self.norm(f"decoder/{i}/norm2", x), f"decoder/{i}/mlp"
            gate, up = self.linear(f"{mlp}/gate", y), self.linear(f"{mlp}/up", y)
            x = x + self.linear(f"{mlp}/down", gate / (1 + np.exp(-gate)) * up)
        return self.linear("head/fc", self.norm("head/norm", x))

    def linear(self, name: str, x: Array) -> Array:
        y: Array = x @ self.weights[f"{name}/weight"]
        return y

    def norm(self, name: str, x: Array) -> Array:
        scale = np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)
        y: Array = x / scale * self.weights[f"{name}/scale"]
        return y

    def rotate(self, x: Array) -> Array:
        half = x.shape[-1] // 2
        angle = np.arange(x.shape[1])[:, None] * 10000.0 ** -(np.arange(half) / half)
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def attention(self, i: int, x: Array) -> Array:
        name, count = f"decoder/{i}/attention", len(x)
        query, key, value = (
            self.linear(f"{name}/{part}", x).reshape(count, -1, LLAMA.head).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        query, key = self.rotate(query), self.rotate(key)
        self.cache |= {f"past.{i}.key": key, f"past.{i}.value": value}
        key, value = (np.repeat(part, LLAMA.heads // LLAMA.key_heads, 0) for part in (key, value))
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(LLAMA.head)
        scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return self.linear(
            f"{name}/output", (weights @ value).transpose(1, 0, 2).reshape(count, -1)
        )


def test_a_decode_step_equals_reading_the_same_tokens_at_once() -> None:
    model = llama_decode(LLAMA, np.random.default_rng(0))
    reference = Reference(model)
    tokens = np.random.default_rng(1).integers(0, LLAMA.words, LLAMA.past + 1)
    expected = reference.logits(tokens)[-1]
    cache = {name: part[None].astype(np.float32) for name, part in reference.cache.items()}
    step = {"input_ids": tokens[None, -1:], "position_ids": np.array([[LLAMA.past]])}
    outputs = run(model, step | {name: part[:, :, :-1] for name, part in cache.items()})
    np.testing.assert_allclose(outputs["logits"][0, 0], expected, atol=1e-4)
    for name, part in cache.items():
        np.testing.assert_allclose(outputs[name.replace("past", "present")], part, atol=1e-5)
